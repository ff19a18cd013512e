//! A donor's part in moving and rebuilding what nobody writes: it attaches the volumes that the coordinator
//! names, without a front end, for as long as it names them.
//!
//! Owns those attachments. Never: which volumes, or what is moved where (the coordinator), or how
//! (`core::volume`). Invariant: each has a lease that yields, so that a person who attaches the volume is not
//! kept waiting, and who was moved aside stops at once. Called by `donate`. Tests: `lab/tests/drain.rs`.

use cheetah_client::{Error, Lease, Volume};
use cheetah_core::limits::{DONOR_TENDS_MAX, TEND_RETRY_NS};
use cheetah_rim::control::{Client, DonorHandle};
use cheetah_rim::volume::{Caching, Tuning};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Each has buffers to fill, so one connection to a donor carries it.
const TUNING: Tuning = Tuning { connections: Some(1), poll: Duration::ZERO, caching: Caching::OFF };

struct Running {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Until the donor ends.
pub async fn tend_what_lies_idle(pool: Client, donor: DonorHandle) {
    let (mut state, called) = (donor.state(), donor.called());
    // Or its end would never be seen.
    drop(donor);
    let mut running: BTreeMap<String, Running> = BTreeMap::new();
    loop {
        let tends = state.borrow_and_update().tends.clone();
        let (stay, stops): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut running).into_iter().partition(|(name, _)| tends.contains(name));
        running = stay;
        end(stops).await;
        for name in tends {
            if running.len() >= DONOR_TENDS_MAX || running.contains_key(&name) {
                continue;
            }
            let (stop, stopped) = watch::channel(false);
            let holder = format!("donor {}, which moves or rebuilds what nobody else does", *called.borrow());
            let task = tokio::spawn(tend(pool.clone(), name.clone(), holder, stopped));
            running.insert(name, Running { stop, task });
        }
        if state.changed().await.is_err() {
            return end(running).await;
        }
    }
}

async fn end(running: BTreeMap<String, Running>) {
    for running in running.values() {
        running.stop.send_replace(true);
    }
    for (volume, running) in running {
        if running.task.await.is_err() {
            tracing::warn!(volume, "what moved it had ended already");
        }
    }
}

/// Attaches the volume, again when that ends, until it is told to stop.
async fn tend(pool: Client, name: String, holder: String, mut stop: watch::Receiver<bool>) {
    loop {
        let tended = match Lease::for_tending(&pool, &name, holder.clone()).await {
            Ok(lease) => tend_with(&lease, &mut stop).await,
            Err(error) => Err(error),
        };
        if let Err(why) = tended {
            tracing::info!(volume = name, %why, "not attached to move what it has");
        }
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(Duration::from_nanos(TEND_RETRY_NS)) => {}
        }
    }
}

async fn tend_with(lease: &Lease, stop: &mut watch::Receiver<bool>) -> Result<(), Error> {
    let started = Volume::start(lease, TUNING);
    if let Ok(volume) = &started {
        tracing::info!(volume = lease.volume(), "attached to move or rebuild what nobody else does");
        volume.set_place("no front end");
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = volume.lease_lost() => {}
        }
        volume.close().await;
    }
    // One that was taken away is not there to be given back.
    let _ = lease.give_back().await;
    started.map(drop)
}
