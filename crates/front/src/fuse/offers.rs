//! What was read ahead, given to the kernel's page cache before a tool asks for it: a read of it then costs
//! no request.
//!
//! Owns: a queue, and the thread that empties it. Never: for a file that may be written, whose newer bytes it
//! could overwrite. Invariants: nothing here waits on the data thread; what finds no room is not given, and
//! is read when it is asked for; the queue holds a part of the pool at most, since a store may wait for a
//! read that waits for a buffer. What was read before an open of the file is not given after it. A thread of
//! its own, because the kernel makes whoever stores a page wait for a read of it that is under way. Called by
//! `mount`. Tests: `read_ahead` of the end-to-end tests.

use super::device::Device;
use super::fs;
use cheetah_rim::buffer::{Buffer, LARGE_COUNT, SMALL_BYTES, SMALL_COUNT};
use cheetah_rim::volume::VolumeHandle;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) const LARGE_MAX: usize = LARGE_COUNT / 5;
const SMALL_MAX: usize = SMALL_COUNT / 4;
/// What waited longer is not given any more.
const AGE_MAX: Duration = Duration::from_secs(1);

struct Offer {
    offset: u64,
    bytes: Buffer,
    forgets: u64,
    since: Instant,
}

/// Offers that have a buffer of the pool, by its size.
#[derive(Debug, Default)]
struct Held {
    large: AtomicUsize,
    small: AtomicUsize,
}

impl Held {
    fn of(&self, len: usize) -> (&AtomicUsize, usize) {
        if len > SMALL_BYTES { (&self.large, LARGE_MAX) } else { (&self.small, SMALL_MAX) }
    }
}

/// Takes offers of the volume from now on; the thread ends when nobody takes them any more.
pub(super) fn start(handle: &VolumeHandle, device: Weak<Device>) -> io::Result<JoinHandle<()>> {
    let (give, given): (SyncSender<Offer>, Receiver<Offer>) = sync_channel(LARGE_MAX + SMALL_MAX);
    let (held, volume) = (Arc::new(Held::default()), handle.clone());
    let for_thread = held.clone();
    let thread = std::thread::Builder::new().name("offers".into()).spawn(move || {
        for offer in given {
            let len = offer.bytes.len();
            if let Some(device) = device.upgrade() {
                store(&volume, &device, &offer);
            }
            drop(offer);
            for_thread.of(len).0.fetch_sub(1, Ordering::AcqRel);
        }
    })?;
    let pool = handle.pool().clone();
    handle.offer_to(Some(Box::new(move |offset, from, forgets| {
        let (count, most) = held.of(from.len());
        if count.load(Ordering::Acquire) >= most {
            return;
        }
        let Some(mut bytes) = pool.try_take(from.len()) else { return };
        bytes.copy_from_slice(from);
        count.fetch_add(1, Ordering::AcqRel);
        let offer = Offer { offset, bytes, forgets, since: Instant::now() };
        if give.try_send(offer).is_err() {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    })));
    Ok(thread)
}

fn store(volume: &VolumeHandle, device: &Device, offer: &Offer) {
    let is_old = || volume.forgets() != offer.forgets;
    if is_old() || offer.since.elapsed() > AGE_MAX {
        return;
    }
    if let Err(error) = device.store(fs::FILE, offer.offset, &offer.bytes) {
        tracing::debug!(%error, offset = offer.offset, "the kernel took nothing");
    }
    // An open came between, and dropped the kernel's cache before this was in it.
    if is_old() {
        let (Ok(offset), Ok(len)) = (i64::try_from(offer.offset), i64::try_from(offer.bytes.len())) else {
            return;
        };
        if let Err(error) = device.invalidate(fs::FILE, offset, len) {
            tracing::warn!(%error, "the kernel keeps what was read before the file was opened");
        }
    }
}
