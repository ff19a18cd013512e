//! `cheetah leave`: asks the coordinator to empty a donor, and shows how that goes until it is out.
//! Never: the moving, which the writers of the volumes do, or one of the donors when there is none.
//! Interrupting it ends the waiting only.

use crate::cli;
use crate::failure::Failure;
use crate::output;
use crate::pool::{find, pool_status, volume};
use crate::progress::Shown;
use crate::signals::Signals;
use cheetah_core::api::{Answer, AtStake, Call, DonorHealth, DonorStatus, Leaving, PoolStatus};
use cheetah_core::findings::taken_out;
use cheetah_core::map::DonorId;
use cheetah_rim::control::Client;
use serde::Serialize;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(500);
/// Polls without an answer until the waiting is given up.
const UNANSWERED_MAX: u32 = 60;
/// Polls between two looks at which volumes have no writer.
const IDLE_EVERY: u32 = 20;

#[derive(Debug, Serialize)]
struct LeaveReport {
    donor: DonorId,
    name: String,
    /// It is out of the pool.
    done: bool,
    bytes_moved: u64,
    bytes_left: u64,
    seconds: f64,
    /// It does not answer any more; what it holds is rebuilt from redundancy as far as there is some.
    silent: bool,
    /// Volumes that it still holds parts of and that nobody has attached for writing.
    waits_for_writers_of: Vec<String>,
    /// What it costs the volumes that had a part there, as the coordinator saw it at first.
    at_stake: Vec<AtStake>,
    /// Of a donor that did not answer, or was taken out by force: what others rebuild of it, and what of
    /// volumes nothing gives back.
    bytes_to_rebuild: u64,
    bytes_lost: u64,
}

pub async fn leave(options: cli::Leave) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let before = named(&pool_status(&pool).await?, &options.donor);
    let answer = pool.call(Call::Leave { donor: options.donor.clone(), force: options.force }).await?;
    let mut leaving = if let Answer::Leaving(leaving) = answer { leaving } else { Leaving::default() };
    let at_stake = std::mem::take(&mut leaving.at_stake);
    if !options.json.json {
        crate::drain::crowded(&at_stake).iter().for_each(|line| output::line(line));
    }
    // What the coordinator knows and the list did not is gone already.
    let Some(before) = before else { return report(&options, &LeaveReport::of_gone(&options.donor)) };
    let started = Instant::now();
    let mut drain = LeaveReport {
        donor: before.donor,
        name: before.name.clone(),
        done: options.force,
        bytes_moved: 0,
        bytes_left: before.bytes_held,
        seconds: 0.0,
        silent: false,
        waits_for_writers_of: Vec::new(),
        at_stake,
        bytes_to_rebuild: 0,
        bytes_lost: 0,
    };
    drain.look(&pool, before.bytes_held).await?;
    if !options.no_wait && !drain.done {
        let mut signals = Signals::listen()?;
        tokio::select! {
            waited = drain.wait(&options, &pool, before.bytes_held) => waited?,
            _ = signals.next() => {}
        }
    }
    drain.seconds = started.elapsed().as_secs_f64();
    if leaving.silent || options.force {
        (drain.silent, drain.bytes_moved) = (leaving.silent, 0);
        (drain.bytes_to_rebuild, drain.bytes_lost) = (leaving.bytes_to_rebuild, leaving.bytes_lost);
        if !options.json.json {
            output::line(&taken_out(&drain.name, &leaving));
            return Ok(());
        }
    }
    report(&options, &drain)
}

impl LeaveReport {
    fn of_gone(name: &str) -> Self {
        LeaveReport {
            donor: DonorId(0),
            name: name.to_owned(),
            done: true,
            bytes_moved: 0,
            bytes_left: 0,
            seconds: 0.0,
            silent: false,
            waits_for_writers_of: Vec::new(),
            at_stake: Vec::new(),
            bytes_to_rebuild: 0,
            bytes_lost: 0,
        }
    }

    /// Takes in how far it is.
    async fn look(&mut self, pool: &Client, held_before: u64) -> Result<(), Failure> {
        let status = pool_status(pool).await?;
        let donor = status.donors.iter().find(|donor| donor.donor == self.donor);
        let gone = |donor: &DonorStatus| donor.health == DonorHealth::Lost;
        self.silent = donor.is_some_and(|donor| gone(donor) && donor.leaving);
        self.done |= donor.is_none_or(|donor| gone(donor) && !donor.leaving);
        self.bytes_left = donor.map_or(0, |donor| donor.bytes_held);
        self.bytes_moved = held_before.saturating_sub(self.bytes_left);
        Ok(())
    }

    async fn wait(&mut self, options: &cli::Leave, pool: &Client, held_before: u64) -> Result<(), Failure> {
        let bar = Shown::start("emptying", &options.donor, held_before);
        let (mut unanswered, mut polls) = (0, 0);
        while !self.done {
            tokio::time::sleep(POLL).await;
            match self.look(pool, held_before).await {
                Ok(()) => unanswered = 0,
                Err(failure) if unanswered >= UNANSWERED_MAX => return Err(failure),
                Err(_) => unanswered += 1,
            }
            bar.set_position(self.bytes_moved);
            if self.silent {
                bar.finish_and_clear();
                return Err(Failure::failed(format!(
                    "donor {} stopped answering while it was emptied: `cheetah status` shows whether anything is \
                     lost with it, and `cheetah leave {} --force` takes it out",
                    self.name, self.name
                )));
            }
            polls += 1;
            if polls % IDLE_EVERY == 0 && !self.done {
                let idle = idle(pool, self.donor).await.unwrap_or_default();
                if idle != self.waits_for_writers_of {
                    tell_idle(options, &idle);
                    self.waits_for_writers_of = idle;
                }
            }
        }
        bar.finish_and_clear();
        self.waits_for_writers_of.clear();
        Ok(())
    }
}

/// A live donor of this name before a lost one; or the one with this identity.
fn named(status: &PoolStatus, name: &str) -> Option<DonorStatus> {
    let is_named = |donor: &&DonorStatus| donor.name == name || donor.donor.to_string() == name;
    let lives = |donor: &&DonorStatus| donor.health == DonorHealth::Alive;
    let mut found = status.donors.iter().filter(is_named);
    found.clone().find(lives).or_else(|| found.next()).cloned()
}

/// Volumes with parts on the donor that nobody has attached for writing.
async fn idle(pool: &Client, donor: DonorId) -> Result<Vec<String>, Failure> {
    let status = pool_status(pool).await?;
    let mut idle = Vec::new();
    for candidate in status.volumes.iter().filter(|volume| volume.attachments.iter().all(|a| a.read_only)) {
        // Deleted meanwhile, perhaps.
        let Ok(detail) = volume(pool, Call::Show { name: candidate.name.clone() }).await else { continue };
        if detail.map.routes.contains_key(&donor) {
            idle.push(candidate.name.clone());
        }
    }
    Ok(idle)
}

fn tell_idle(options: &cli::Leave, idle: &[String]) {
    if !idle.is_empty() && !options.json.json {
        output::line(&format!(
            "nobody has {} attached for writing: a donor moves it by itself, in some seconds",
            idle.join(", ")
        ));
    }
}

fn report(options: &cli::Leave, drain: &LeaveReport) -> Result<(), Failure> {
    if options.json.json {
        return output::json(drain);
    }
    let show = cheetah_core::units::show_bytes;
    let name = &drain.name;
    match drain.done {
        true => output::line(&format!(
            "{name} left the pool: {} moved to other donors in {:.1} s",
            show(drain.bytes_moved),
            drain.seconds
        )),
        false => output::line(&format!(
            "{name} is being emptied, {} left; `cheetah status` shows how far it is",
            show(drain.bytes_left)
        )),
    }
    Ok(())
}
