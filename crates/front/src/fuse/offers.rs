//! What was read ahead, given to the kernel's page cache before a tool asks for it: a read of it then costs no request.
//!
//! Owns: a queue, and the thread that empties it. Never: for a file that may be written, whose newer bytes it could
//! overwrite. Invariant: nothing here waits on the data thread; what finds no room is not given, and is read when it is asked
//! for. A thread of its own, because the kernel makes whoever stores a page wait for a read of it that is under way.
//! Called by `mount`. Tests: `read_ahead` of the end-to-end tests.

use super::fs;
use cheetah_rim::buffer::Buffer;
use cheetah_rim::volume::VolumeHandle;
use fuser::Notifier;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Offers that wait for the thread.
const OFFERS_MAX: usize = 256;
/// The kernel takes this much at once.
const STORE_BYTES_MAX: usize = 1 << 20;

type Offer = (u64, Buffer);

/// Takes offers of the volume from now on; the thread ends with the volume.
pub(super) fn start(handle: &VolumeHandle, notifier: Notifier) -> io::Result<JoinHandle<()>> {
    let (give, given): (SyncSender<Offer>, Receiver<Offer>) = sync_channel(OFFERS_MAX);
    let thread = std::thread::Builder::new().name("offers".into()).spawn(move || {
        for (offset, bytes) in given {
            for (piece, at) in bytes.chunks(STORE_BYTES_MAX).zip((offset..).step_by(STORE_BYTES_MAX)) {
                if let Err(error) = notifier.store(fs::FILE, at, piece) {
                    tracing::debug!(%error, at, "the kernel took nothing");
                }
            }
        }
    })?;
    let pool = handle.pool().clone();
    handle.offer_to(Some(Box::new(move |offset, bytes| {
        let Some(mut buffer) = pool.try_take(bytes.len()) else { return };
        buffer.copy_from_slice(bytes);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = give.try_send((offset, buffer)) {
            tracing::trace!(offset, "no room for an offer");
        }
    })));
    Ok(thread)
}
