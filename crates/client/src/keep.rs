//! The tasks that keep an attached volume in touch with its coordinator: the lease renewed, newer maps taken,
//! what the volume finds out about its donors told, and that it was written.
//!
//! Owns those tasks. Never: decisions; the machine in `core` makes them. Called by `volume`. Tests:
//! `lab/tests` (`starting`, `survive`, `asleep` and others).

use crate::journal::{Journal, Names};
use crate::lease::{Lease, beside_note, has_writer};
use cheetah_core::api::{Answer, Call, Refusal, RefusalCode, Renew};
use cheetah_core::content::Tell;
use cheetah_core::limits::EXCLUDE_NS;
use cheetah_core::map::DonorId;
use cheetah_rim::control::CallError;
use cheetah_rim::volume::{Scope, Seen, VolumeHandle};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often is looked whether there is something that the coordinator should hear at once.
const NEWS_LOOK: Duration = Duration::from_millis(200);
/// Between two tries of a call that may come to something.
const RETRY: Duration = Duration::from_secs(1);
/// A donor that is named again within this time has not been there meanwhile.
const STILL_AWAY: Duration = Duration::from_nanos(2 * EXCLUDE_NS);

/// What they are started with, and what they say.
pub(crate) struct Said {
    pub(crate) place: watch::Receiver<String>,
    pub(crate) gone: watch::Sender<bool>,
    pub(crate) writer_beside: watch::Sender<bool>,
}

pub(crate) fn start(lease: &Lease, handle: &VolumeHandle, said: Said) -> [JoinHandle<()>; 4] {
    let Said { place, gone, writer_beside } = said;
    let names = Names::of(&lease.granted.map);
    let keeping = Keeping { lease: lease.clone(), volume: handle.clone(), names, gone };
    let journal = Journal::new(lease.volume(), keeping.names.clone());
    let pool = lease.pool().clone();
    [
        tokio::spawn(keep_journal(journal, handle.clone())),
        tokio::spawn(renew(keeping.clone(), place, writer_beside)),
        tokio::spawn(amend(keeping)),
        tokio::spawn(async move { pool.stay_certified().await }),
    ]
}

/// Until the pool knows that a tool wrote.
pub(crate) async fn mark_written(lease: Lease, volume: VolumeHandle) {
    volume.first_write().await;
    while let Err(error) = lease.tell(Tell { written: true, ..Tell::default() }).await {
        tracing::warn!("that the volume was written is not recorded yet, trying again: {error}");
        tokio::time::sleep(RETRY).await;
    }
}

/// What the tasks share.
#[derive(Clone)]
struct Keeping {
    lease: Lease,
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
        let volume = self.lease.volume();
        if self.lease.yields {
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
    compare_mismatches: u64,
    fills: bool,
}

impl News {
    fn of(Seen { lost, report, .. }: &Seen) -> News {
        News {
            lost: lost.iter().map(|(id, _)| *id).collect(),
            corrupt_blocks: report.corrupt_blocks.clone(),
            compare_mismatches: report.compare_mismatches,
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
    let Keeping { lease, volume, names, .. } = &keeping;
    let (pool, name, token) = (lease.pool(), lease.volume().to_owned(), lease.granted.token);
    let mut epoch = lease.granted.map.epoch;
    let mut told = false;
    let mut beside = lease.granted.beside.clone();
    // Doubled each time a call is let go of: news that never end must not keep the lease from being renewed.
    let mut pause = NEWS_LOOK;
    let mut seen = Seen::default();
    loop {
        // While it closes, the lease is kept with what was seen last.
        seen = volume.look().await.unwrap_or(seen);
        let news = News::of(&seen);
        let Seen { lost, report, .. } = seen.clone();
        let shown = place.borrow_and_update().clone();
        let guests = pool.credentials().map(|credentials| credentials.guests().list()).unwrap_or_default();
        let renew = Renew { epoch, place: shown, lost, report: Box::new(report), guests };
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
                        tracing::error!(%why, "the coordinator sent a map that cannot be");
                        tokio::time::sleep(RETRY).await;
                    }
                    None => {}
                }
                if let Some(credentials) = pool.credentials() {
                    credentials.guests().expel(&renewed.strangers);
                }
                look_where_it_says(volume, renewed.silent, renewed.scrub);
            }
            Ok(_) => tokio::time::sleep(RETRY).await,
            Err(error) => {
                if let CallError::Refused(refusal) = &error
                    && matches!(refusal.code, RefusalCode::Gone | RefusalCode::Forbidden)
                {
                    keeping.lease_ended(refusal);
                } else if !std::mem::replace(&mut told, true) {
                    tracing::warn!(
                        event = "coordinator-away",
                        volume = name,
                        "the lease was not renewed, trying again each second: {error}"
                    );
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// The coordinator has not heard of these donors for long, or has heard of wrong blocks.
fn look_where_it_says(volume: &VolumeHandle, silent: Vec<DonorId>, scrub: bool) {
    if !silent.is_empty() {
        tracing::debug!(?silent, "the coordinator has not heard of donors");
        volume.ask_donors(silent);
    }
    if scrub {
        volume.scrub(Scope::All);
    }
}

/// Tells the coordinator what the volume found out about its donors, and the volume what came of it.
async fn amend(keeping: Keeping) {
    let Keeping { lease, volume, names, .. } = &keeping;
    let (pool, name, token) = (lease.pool(), lease.volume().to_owned(), lease.granted.token);
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
            Err(CallError::Refused(refusal))
                if matches!(refusal.code, RefusalCode::Gone | RefusalCode::Forbidden) =>
            {
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
