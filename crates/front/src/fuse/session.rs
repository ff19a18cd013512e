//! The requests of the kernel for one mounted volume, one after the other as they come.
//!
//! Owns: the loop that receives them. Never: waits for the network; it waits for buffers, which bounds what
//! is on its way. Invariant: it runs on the volume's data thread, so that a request costs no wake-up of
//! another thread, what is there at once goes out to donors together, and the bytes of a large write arrive
//! where they are sent from.
//! Called by `mount`. Tests: `tests/file.rs`.

use super::device::Device;
use super::fs::{Answer, VolumeFs};
use super::requests::Requests;
use super::wire::{REQUEST_BYTES, Request};
use cheetah_rim::buffer::{Buffer, LARGE_BYTES, Pool, SMALL_BYTES};
use cheetah_rim::net;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// Requests, and bytes of writes, before other tasks of the thread have their turn.
const ROUNDS_MAX: u32 = 32;
const BYTES_MAX: usize = 2 << 20;

pub(super) struct Session {
    pub(super) fs: Arc<VolumeFs>,
    pub(super) device: Arc<Device>,
    pub(super) requests: Arc<Requests>,
    pub(super) ended: watch::Sender<bool>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.ended.send_replace(true);
    }
}

impl Session {
    /// Until the file system is unmounted.
    pub(super) async fn serve(self) {
        if let Err(error) = self.run().await {
            tracing::error!(%error, "the file cannot be served any more");
        }
    }

    async fn run(&self) -> io::Result<()> {
        let ready = net::register(self.device.as_fd().try_clone_to_owned()?)?;
        let pool = self.requests.pool();
        let mut request = [0; REQUEST_BYTES];
        let mut landing = None;
        loop {
            let mut bytes = 0;
            for _ in 0..ROUNDS_MAX {
                let mut room = match landing.take() {
                    Some(room) => room,
                    None => pool.take(LARGE_BYTES).await,
                };
                let Some((head, behind)) = self.receive(&ready, &mut request, &mut room).await? else {
                    return Ok(());
                };
                landing = self.take(&request[..head], room, behind, pool).await;
                bytes += behind;
                if bytes >= BYTES_MAX {
                    break;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// The next request, as `Device::receive` tells of it; none when the file system is gone.
    async fn receive(
        &self,
        ready: &AsyncFd<OwnedFd>,
        request: &mut [u8; REQUEST_BYTES],
        room: &mut Buffer,
    ) -> io::Result<Option<(usize, usize)>> {
        loop {
            let received = ready.try_io(Interest::READABLE, |_| Ok(self.device.receive(request, room)?));
            let Err(error) = received else { return received.map(Some) };
            if error.kind() == io::ErrorKind::WouldBlock {
                // That the file system is gone is said as an error alone.
                let mut woken = ready.ready(Interest::READABLE | Interest::ERROR).await?;
                woken.retain_ready();
                if woken.ready().is_error() {
                    return Ok(None);
                }
                continue;
            }
            match Errno::from_io_error(&error) {
                Some(Errno::NODEV) => return Ok(None),
                // A request was given up before it was here.
                Some(Errno::NOENT | Errno::INTR) => {}
                _ => return Err(error),
            }
        }
    }

    /// One request, of a write with `behind` bytes in `room`, which comes back if it is not on its way.
    async fn take(&self, request: &[u8], mut room: Buffer, behind: usize, pool: &Pool) -> Option<Buffer> {
        let Some(request) = Request::parse(request) else {
            tracing::warn!("the kernel sent a request without a head");
            return Some(room);
        };
        let unique = request.unique;
        match self.fs.answer(&request, behind) {
            Answer::Body(body) => self.device.answer(unique, &body),
            Answer::Attributes { asked } => {
                let (fs, device) = (self.fs.clone(), self.device.clone());
                // Others are served meanwhile.
                tokio::task::spawn_local(async move {
                    fs.held.counted(asked).await;
                    device.answer(unique, &fs.attributes_now(asked));
                });
            }
            Answer::Error(errno) => self.device.fail(unique, errno),
            Answer::None => {}
            Answer::Read { offset, len } => {
                let buffer = pool.take(len as usize).await;
                self.requests.read(unique, offset, buffer);
            }
            Answer::Write { offset, len } => {
                let len = len as usize;
                if len <= SMALL_BYTES
                    && let Some(mut small) = pool.try_take(len)
                {
                    small.copy_from_slice(&room[..len]);
                    self.requests.write(unique, offset, small);
                } else {
                    room.truncate(len);
                    self.requests.write(unique, offset, room);
                    return None;
                }
            }
            Answer::Flush => self.requests.flush(unique),
            Answer::Zero { at, end, keep } => self.requests.zero(unique, at, end, keep),
            Answer::Seek { at, end, want } => self.requests.seek(unique, at, end, want),
        }
        Some(room)
    }
}
