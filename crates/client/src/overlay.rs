//! An overlay: the volume under it attached beside it, and the view that tools get of both.
//!
//! Owns the base's attachment, and having the overlay made larger. Never: what is read where
//! (`rim::volume`). Invariant: the base is attached for reading alone, for as long as the view is there.
//! Called by `volume`. Tests: `lab/tests/overlay.rs`.

use crate::error::Error;
use crate::lease::{Lease, Options};
use crate::volume::Volume;
use cheetah_core::api::{Answer, Call, Size};
use cheetah_core::content::Overlay;
use cheetah_rim::volume::{More, OverlayError, VolumeHandle};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// What tools get of an overlay.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) handle: VolumeHandle,
    pub(crate) base: Volume,
    grows: JoinHandle<()>,
}

impl View {
    /// Of the overlay that `top` serves under `lease`; `volume` is what lies under that, if it is encrypted.
    pub(crate) async fn open(
        lease: &Lease,
        (top, volume): (&VolumeHandle, &VolumeHandle),
        options: &Options,
    ) -> Result<View, Error> {
        let Some(Overlay { of, base, .. }) = lease.granted.content.overlay.as_deref() else {
            return Err(Error::Answer(format!("volume '{}' is no overlay", lease.volume())));
        };
        let bad = |why: String| Error::Overlay { volume: lease.volume().to_owned(), base: base.clone(), why };
        let reads = Options { read_only: true, writable: false, ..*options };
        let under = Box::pin(Volume::open(lease.pool(), base, &reads)).await?;
        if under.lease().granted.map.volume != *of {
            let _ = Box::pin(under.detach()).await;
            return Err(bad("another volume has that name now".to_owned()));
        }
        let (more, asked) = mpsc::channel(1);
        match VolumeHandle::over(under.handle(), top, *of, more).await {
            Ok(handle) => {
                let grows = tokio::spawn(grow(lease.clone(), volume.clone(), asked));
                Ok(View { handle, base: under, grows })
            }
            Err(error) => {
                let _ = Box::pin(under.detach()).await;
                Err(match error {
                    OverlayError::Machine(error) => Error::Machine(error),
                    other => bad(other.to_string()),
                })
            }
        }
    }

    /// Answers what was submitted to it. The overlay's volume is still there.
    pub(crate) async fn close(&self) {
        self.handle.close().await;
        self.grows.abort();
        Box::pin(self.base.close()).await;
        // What is not given back runs out by itself.
        let _ = self.base.lease().give_back().await;
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.handle.begin_to_close();
        self.grows.abort();
    }
}

/// Has the overlay's volume made larger, and takes the map that comes of it.
async fn grow(lease: Lease, volume: VolumeHandle, mut asked: mpsc::Receiver<More>) {
    while let Some(More { bytes, answer }) = asked.recv().await {
        let (name, size) = (lease.volume().to_owned(), Size::Bytes(bytes));
        let is_there = volume.size() >= bytes
            || match lease.pool().call(Call::Grow { name, size }).await {
                Ok(Answer::Volume(detail)) => {
                    volume.update_map(detail.map.clone());
                    true
                }
                Ok(_) => false,
                Err(error) => {
                    tracing::warn!(
                        event = "overlay-full",
                        volume = lease.volume(),
                        "what tools write to overlay '{}' has no room: {error}",
                        lease.volume()
                    );
                    false
                }
            };
        let _ = answer.send(is_there);
    }
}
