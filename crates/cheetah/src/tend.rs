//! A volume with the tasks that keep it in touch with its coordinator: the lease renewed, newer maps taken,
//! and what the volume finds out about its donors told.
//!
//! Owns those tasks, from the lease to the last word. Never: decisions; the machine in `core` makes them.
//! Called by `daemon`, `load` and `mover`.

use crate::failure::Failure;
use crate::journal::{Journal, Names};
use crate::own_fault::{check_files, own_fault};
use cheetah_core::api::{Answer, Attach, Attached, Call, Refusal, RefusalCode, Renew};
use cheetah_core::content::{Beside, ContentState, Fill, Tell};
use cheetah_core::layout::{beyond, lost_ranges};
use cheetah_core::limits::EXCLUDE_NS;
use cheetah_core::map::{DonorId, VolumeMap};
use cheetah_rim::control::{CallError, Client, own_name};
use cheetah_rim::stream::Transport;
use cheetah_rim::volume::{Seen, Tuning, VolumeHandle, VolumeOptions};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often is looked whether there is something that the coordinator should hear at once.
const NEWS_LOOK: Duration = Duration::from_millis(200);
/// How long the end of an attachment waits for the pool to hear that it was written, and how often it looks.
const MARK_TIME: Duration = Duration::from_secs(3);
const MARK_LOOK: Duration = Duration::from_millis(5);
/// A donor that is named again within this time has not been there meanwhile.
const STILL_AWAY: Duration = Duration::from_nanos(2 * EXCLUDE_NS);

/// Takes a lease on a volume that nobody reads, to fill it.
pub async fn lease_to_fill(pool: &Client, name: &str, fill: Fill) -> Result<Attached, Failure> {
    let attach = Attach { alone: true, fill: Some(fill), ..Attach::new(false, own_name()) };
    lease_as(pool, name, attach).await
}

/// Takes a lease for tools; the answer says whether it is for reading alone.
pub async fn lease_for_tools(
    pool: &Client,
    name: &str,
    read_only: bool,
    writable: bool,
    incomplete: bool,
) -> Result<Attached, Failure> {
    let attach = Attach { writable, incomplete, ..Attach::new(read_only, own_name()) };
    lease_as(pool, name, attach).await
}

/// Says to the pool what was put into the volume.
pub async fn tell(pool: &Client, lease: &Attached, tell: Tell) -> Result<(), Failure> {
    let (name, token) = (lease.map.name.clone(), lease.token);
    pool.call(Call::Tell { name, token, tell }).await?;
    Ok(())
}

pub async fn lease_as(pool: &Client, name: &str, attach: Attach) -> Result<Attached, Failure> {
    match pool.call(Call::Attach { name: name.to_owned(), attach }).await? {
        Answer::Attached(attached) => {
            attached.map.check().map_err(Failure::failed)?;
            Ok(attached)
        }
        other => {
            Err(Failure::failed(format!("the coordinator answered something else than was asked: {other:?}")))
        }
    }
}

/// An attached volume and its tasks, which end with it.
#[derive(Debug)]
pub struct Tended {
    pub volume: VolumeHandle,
    place: watch::Sender<String>,
    lost: watch::Receiver<bool>,
    writer_beside: watch::Receiver<bool>,
    tasks: [JoinHandle<()>; 3],
    /// Tells the pool once a tool has written.
    marking: Option<JoinHandle<()>>,
}

impl Tended {
    /// Starts it; `settled` of the volume says when it can be used.
    ///
    /// # Errors
    /// This machine has no memory for it, or may not open as many files.
    pub fn start(pool: &Client, lease: &Attached, read_only: bool, tuning: Tuning) -> Result<Self, Failure> {
        Tended::start_as(pool, lease, read_only, tuning, false)
    }

    /// Under a lease that yields: its end is no fault.
    ///
    /// # Errors
    /// As of `start`.
    pub fn start_to_yield(pool: &Client, lease: &Attached, tuning: Tuning) -> Result<Self, Failure> {
        Tended::start_as(pool, lease, false, tuning, true)
    }

    fn start_as(
        pool: &Client,
        lease: &Attached,
        read_only: bool,
        tuning: Tuning,
        yields: bool,
    ) -> Result<Self, Failure> {
        check_files(&lease.map.name, lease.map.routes.len(), tuning.connections)?;
        let (map, token, fresh) = (lease.map.clone(), lease.token, lease.fresh);
        // Another pool's word is not the end of this one's lease.
        let pool = pool.meant_for(lease.pool);
        let options = VolumeOptions { map, token, read_only, fresh, tuning, transport: Transport::default() };
        let volume = VolumeHandle::start(options)
            .map_err(|e| Failure::failed(format!("this machine cannot serve a volume: {}", own_fault(&e))))?;
        let place = watch::Sender::new(String::new());
        let (gone, lost) = watch::channel(false);
        let (beside, writer_beside) = watch::channel(has_writer(&lease.beside));
        let names = Names::of(&lease.map);
        let keeping =
            Keeping { pool: pool.clone(), lease: lease.clone(), yields, volume: volume.clone(), names, gone };
        let journal = Journal::new(&lease.map.name, keeping.names.clone());
        let tasks = [
            tokio::spawn(keep_journal(journal, volume.clone())),
            tokio::spawn(renew(keeping.clone(), place.subscribe(), beside)),
            tokio::spawn(amend(keeping)),
        ];
        // Who fills it says what comes of that, and who yields changes nothing of what it holds.
        let marks = !read_only && lease.content.state != ContentState::Loading;
        let marking = marks.then(|| tokio::spawn(mark_written(pool.clone(), lease.clone(), volume.clone())));
        Ok(Tended { volume, place, lost, writer_beside, tasks, marking })
    }

    /// Where tools find it, for `status`.
    pub fn set_place(&self, place: &str) {
        self.place.send_replace(place.to_owned());
    }

    /// Whether somebody else has the volume for writing, as far as the coordinator told.
    pub fn writer_beside(&self) -> watch::Receiver<bool> {
        self.writer_beside.clone()
    }

    /// Resolves when the lease is gone.
    pub async fn lease_lost(&self) {
        let mut lost = self.lost.clone();
        if lost.wait_for(|lost| *lost).await.is_err() {
            // Its tasks have ended without a word, so nobody will ever know.
            std::future::pending().await
        }
    }

    /// Whether the pool knows that tools wrote, if they did.
    pub fn is_told(&self) -> bool {
        !self.volume.is_written() || self.marking.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the volume, then its tasks: its last requests may still need the coordinator.
    pub async fn close(&self) {
        self.volume.close().await;
        let late = tokio::time::Instant::now() + MARK_TIME;
        while !self.is_told() && tokio::time::Instant::now() < late {
            tokio::time::sleep(MARK_LOOK).await;
        }
        if self.is_told() {
            self.marking.iter().for_each(JoinHandle::abort);
        }
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Drop for Tended {
    fn drop(&mut self) {
        self.tasks.iter().chain(&self.marking).for_each(JoinHandle::abort);
    }
}

/// Until the pool knows that a tool wrote.
async fn mark_written(pool: Client, lease: Attached, volume: VolumeHandle) {
    volume.first_write().await;
    while let Err(failure) = tell(&pool, &lease, Tell { written: true, ..Tell::default() }).await {
        tracing::warn!("that the volume was written is not recorded yet, trying again: {}", failure.message);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn has_writer(beside: &[Beside]) -> bool {
    beside.iter().any(|other| !other.read_only)
}

/// Who else has the volume, as far as that changes what is read.
fn beside_note(beside: &[Beside]) -> String {
    let named: Vec<&str> = beside.iter().map(|other| other.holder.as_str()).collect();
    match beside.first() {
        None => "nobody else has the volume attached so that it matters any more".to_owned(),
        Some(other) if other.read_only => {
            format!("the volume is read by {}, who will see what is written here", named.join(" and "))
        }
        Some(_) => {
            format!(
                "the volume is attached for writing by {}: what is read here may change",
                named.join(" and ")
            )
        }
    }
}

/// The same for who attaches it.
pub fn beside_notes(lease: &Attached) -> Vec<String> {
    if lease.beside.is_empty() { Vec::new() } else { vec![beside_note(&lease.beside)] }
}

/// A volume is of no use where what it holds cannot be reached, though it is there for others; what the pool
/// itself has lost is another matter, and the rest may be read. A writer needs more than what can be read: a
/// group that has lost more than redundancy covers takes no writes at all.
///
/// # Errors
/// Which donors cannot be reached from this machine, and what to do.
pub fn check_reached(lease: &Attached, lost: &[(DonorId, String)]) -> Result<(), Failure> {
    let map = &lease.map;
    let is_lost = |id: DonorId| lost.iter().any(|(lost, _)| *lost == id);
    let is_lost_to_all = |id: DonorId| is_lost(id) && lease.unconfirmed.contains(&id);
    let is_read = lost_ranges(map, is_lost) == lost_ranges(map, is_lost_to_all);
    let is_written = || beyond(map, is_lost).eq(beyond(map, is_lost_to_all));
    if is_read && (lease.read_only || is_written()) {
        return Ok(());
    }
    let here = lost.iter().filter(|(id, _)| !lease.unconfirmed.contains(id));
    let each: Vec<String> = here.map(|(id, why)| format!("{} ({why})", name_in(map, *id))).collect();
    Err(Failure::failed(format!(
        "volume '{}' cannot be used on this machine, which does not reach {} that the pool does: {}; see that this machine has a way \
         to their addresses (another network, a firewall), or use it on one that has",
        map.name,
        if each.len() == 1 { "a donor" } else { "donors" },
        each.join(", ")
    )))
}

/// Sentences about donors that cannot be reached.
pub fn lost_notes(lease: &Attached, lost: &[(DonorId, String)]) -> Vec<String> {
    let map = &lease.map;
    let beyond = !lost_ranges(map, |id| lost.iter().any(|(lost, _)| *lost == id)).is_empty();
    let so = match beyond {
        true => format!("ranges answer EIO, `cheetah show {}` lists them", map.name),
        false => "its part is read from the others".to_owned(),
    };
    let note = |(id, why): &(DonorId, String)| {
        format!("donor {} cannot be reached ({why}): {so}", name_in(map, *id))
    };
    lost.iter().map(note).collect()
}

pub fn name_in(map: &VolumeMap, id: DonorId) -> String {
    map.routes.get(&id).map_or_else(|| id.to_string(), |route| route.name.clone())
}

/// What the tasks share.
#[derive(Clone)]
struct Keeping {
    pool: Client,
    lease: Attached,
    yields: bool,
    volume: VolumeHandle,
    names: Names,
    gone: watch::Sender<bool>,
}

impl Keeping {
    /// The coordinator does not know the lease any more.
    fn lease_ended(&self, refusal: &Refusal) {
        if self.gone.send_replace(true) {
            return;
        }
        self.volume.lease_lost();
        let volume = &self.lease.map.name;
        if self.yields {
            tracing::info!(
                event = "lease-yielded",
                volume,
                "somebody else wants the volume, or it is gone: what is left to move or to rebuild is left to others"
            );
        } else {
            tracing::error!(
                event = "lease-lost",
                volume,
                "the lease is lost, donors refuse what follows: {}",
                refusal.message
            );
        }
    }
}

/// Looks for what belongs into the log, also while the coordinator is away.
async fn keep_journal(mut journal: Journal, volume: VolumeHandle) {
    while let Some(seen) = volume.look().await {
        journal.look(&seen.lost, &seen.report);
        tokio::time::sleep(NEWS_LOOK).await;
    }
}

/// What a coordinator hears of at once. Progress has time until the next renewal.
#[derive(PartialEq, Eq)]
struct News {
    lost: Vec<DonorId>,
    corrupt_blocks: Vec<(DonorId, u64)>,
    scrub_mismatches: u64,
    fills: bool,
}

impl News {
    fn of(Seen { lost, report }: &Seen) -> News {
        News {
            lost: lost.iter().map(|(id, _)| *id).collect(),
            corrupt_blocks: report.corrupt_blocks.clone(),
            scrub_mismatches: report.scrub_mismatches,
            fills: report.fill_bytes_total > 0,
        }
    }
}

/// Resolves when there is news since `told`, or the volume is served somewhere else. Of one that is closed
/// there is none.
async fn has_news(volume: &VolumeHandle, told: &News, place: &mut watch::Receiver<String>, pause: Duration) {
    let look = async {
        loop {
            tokio::time::sleep(pause).await;
            if volume.look().await.is_some_and(|seen| News::of(&seen) != *told) {
                return;
            }
        }
    };
    tokio::select! {
        () = look => {}
        Ok(()) = place.changed() => {}
    }
}

/// Keeps the lease, reports what is lost, and takes newer maps. While the coordinator is away, reads and
/// writes go on.
async fn renew(keeping: Keeping, mut place: watch::Receiver<String>, writer_beside: watch::Sender<bool>) {
    let Keeping { pool, lease, volume, names, .. } = &keeping;
    let (name, token) = (lease.map.name.clone(), lease.token);
    let mut epoch = lease.map.epoch;
    let mut told = false;
    let mut beside = lease.beside.clone();
    // Doubled each time a call is let go of: news that never end must not keep the lease from being renewed.
    let mut pause = NEWS_LOOK;
    let mut seen = Seen::default();
    loop {
        // While it closes, the lease is kept with what was seen last.
        seen = volume.look().await.unwrap_or(seen);
        let news = News::of(&seen);
        let Seen { lost, report } = seen.clone();
        let shown = place.borrow_and_update().clone();
        let renew = Renew { epoch, place: shown, lost, report: Box::new(report) };
        let renewed = tokio::select! {
            renewed = pool.call(Call::Renew { name: name.clone(), token, renew }) => renewed,
            // The coordinator has heard the last and holds its answer back: it is told anew, and hears that
            // nobody waits for the other answer any more. A map that this may have carried comes with the
            // next.
            () = has_news(volume, &news, &mut place, pause), if !told => {
                pause = pause.saturating_mul(2);
                continue;
            }
        };
        pause = NEWS_LOOK;
        match renewed {
            Ok(Answer::Renewed(renewed)) => {
                if std::mem::take(&mut told) {
                    tracing::warn!(
                        event = "coordinator-back",
                        volume = name,
                        "the coordinator answers again"
                    );
                }
                if renewed.beside != beside {
                    tracing::warn!("{}", beside_note(&renewed.beside));
                    writer_beside.send_replace(has_writer(&renewed.beside));
                    beside = renewed.beside;
                }
                match renewed.map.map(|map| map.check().map(|()| map)) {
                    Some(Ok(map)) => {
                        tracing::debug!(epoch = map.epoch, "a newer map");
                        epoch = map.epoch;
                        names.learn(&map);
                        volume.update_map(map);
                    }
                    Some(Err(why)) => {
                        tracing::error!(why, "the coordinator sent a map that cannot be");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                    None => {}
                }
                if !renewed.silent.is_empty() {
                    tracing::debug!(silent = ?renewed.silent, "the coordinator has not heard of donors");
                    volume.ask_donors(renewed.silent);
                }
            }
            Ok(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            Err(error) => {
                if let CallError::Refused(refusal) = &error
                    && refusal.code == RefusalCode::Gone
                {
                    keeping.lease_ended(refusal);
                } else if !std::mem::replace(&mut told, true) {
                    tracing::warn!(
                        event = "coordinator-away",
                        volume = name,
                        "the lease was not renewed, trying again each second: {error}"
                    );
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Tells the coordinator what the volume found out about its donors, and the volume what came of it.
async fn amend(keeping: Keeping) {
    let Keeping { pool, lease, volume, names, .. } = &keeping;
    let (name, token) = (lease.map.name.clone(), lease.token);
    let Some(mut amendments) = volume.take_amendments() else { return };
    let mut named = BTreeMap::new();
    while let Some(amend) = amendments.recv().await {
        let asks = amend.is_empty();
        for (donor, why) in &amend.exclude {
            // What redundancy does not cover is not granted, and asked for again while the donor stays away.
            let named_before = named.insert(*donor, Instant::now());
            if named_before.is_some_and(|before| before.elapsed() < STILL_AWAY) {
                continue;
            }
            let donor = names.get(*donor);
            tracing::warn!(
                target: "journal",
                event = "donor-set-aside",
                volume = name,
                donor,
                "donor {donor} is set aside ({why}); what it held is rebuilt as far as redundancy covers it"
            );
        }
        match pool.call(Call::Amend { name: name.clone(), token, amend }).await {
            Ok(Answer::Renewed(renewed)) => match renewed.map.map(|map| map.check().map(|()| map)) {
                Some(Ok(map)) => {
                    tracing::debug!(epoch = map.epoch, "the map is amended");
                    names.learn(&map);
                    volume.amended(Some(map));
                }
                None if asks => volume.amended(None),
                other => {
                    tracing::error!(?other, "the coordinator sent no map that can be");
                    volume.amended(None);
                }
            },
            Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::Gone => {
                keeping.lease_ended(&refusal);
            }
            Err(error) => {
                tracing::warn!("what donors missed is not recorded yet, trying again: {error}");
                volume.amended(None);
            }
            Ok(answer) => {
                tracing::warn!(?answer, "the coordinator answered something else than was asked");
                volume.amended(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_core::limits::EXTENT_BYTES;
    use cheetah_core::map::{Group, LeaseToken, Placement, PoolId, Route, Slot, VolumeId};

    /// A volume on donors 1, 2 and 3, of which the coordinator has not heard lately of these.
    fn lease(redundancy: &str, silent: &[u64]) -> Attached {
        let redundancy: cheetah_core::map::Redundancy = redundancy.parse().expect("a redundancy");
        let donors = 1..=u64::from(redundancy.width());
        let slot = |donor: u64| Slot::held(Placement { donor: DonorId(donor), extent: 0 });
        let route = |donor: u64| {
            let (name, address) = (format!("d{donor}"), format!("10.0.0.{donor}:1000"));
            (DonorId(donor), Route { name, address, foreign_export: None })
        };
        let map = VolumeMap {
            volume: VolumeId(1),
            name: "v".into(),
            epoch: 1,
            size: u64::from(redundancy.data) * EXTENT_BYTES,
            redundancy,
            unit: 65536,
            groups: vec![Group { slots: donors.clone().map(slot).collect() }],
            routes: donors.map(route).collect(),
            bad: Vec::new(),
            hurry: false,
            unreadable: Vec::new(),
        };
        let unconfirmed = silent.iter().map(|id| DonorId(*id)).collect();
        Attached {
            token: LeaseToken(1),
            pool: PoolId(1),
            lease_ms: 1,
            map,
            unconfirmed,
            fresh: false,
            read_only: false,
            content: Default::default(),
            beside: Vec::new(),
        }
    }

    #[test]
    fn what_only_this_machine_does_not_reach_is_no_volume_for_it() {
        let lost = |ids: &[u64]| {
            let why = |id: &u64| (DonorId(*id), format!("10.0.0.{id}:1000: no route"));
            ids.iter().map(why).collect::<Vec<_>>()
        };
        let check = |redundancy, silent: &[u64], ids: &[u64]| {
            check_reached(&lease(redundancy, silent), &lost(ids)).map_err(|failure| failure.message)
        };
        assert_eq!(check("parity:2+1", &[], &[2]), Ok(()), "redundancy covers it");
        let said = check("parity:2+1", &[], &[2, 3]).expect_err("more than redundancy covers");
        assert!(said.contains("'v'") && said.contains("d2 (10.0.0.2:1000: no route), d3 ("), "{said}");
        assert!(
            check("stripe:3", &[], &[1]).is_err_and(|said| said.contains("a donor that the pool does: d1 ("))
        );
        assert_eq!(check("stripe:3", &[1], &[1]), Ok(()), "it is lost to all, and the rest can be read");
        assert!(check("stripe:3", &[1], &[1, 2]).is_err_and(|said| !said.contains("d1")));
        let map = VolumeMap { size: 4096, ..lease("parity:2+1", &[]).map };
        let small = Attached { map, ..lease("parity:2+1", &[]) };
        let slots: Vec<_> = small.map.groups[0].slots.iter().flat_map(|slot| slot.held).collect();
        let others = lost(&[slots[1].donor.0, slots[2].donor.0]);
        assert!(check_reached(&small, &others).is_err(), "what is there can be read, but nothing be written");
        let reader = Attached { read_only: true, ..small };
        assert_eq!(check_reached(&reader, &others).map_err(|failure| failure.message), Ok(()));
        assert!(check("parity:2+1", &[1], &[1, 2]).is_err(), "with one lost to all the other is needed");
    }
}
