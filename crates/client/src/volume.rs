//! A volume that this process has attached.
//!
//! Owns its beginning and its end, from the lease to the last word. Never: its bytes (`access`), or the tasks
//! beside it (`keep`). Invariant: whoever closes it has been answered; its tasks end with it, and last, for
//! its last requests may still need the coordinator. Tests: `lab/tests/client.rs`.

use crate::error::Error;
use crate::files;
use crate::keep::{self, mark_written};
use crate::lease::{Lease, Options, has_writer};
use crate::overlay::View;
use cheetah_core::content::ContentState;
use cheetah_rim::cipher::VolumeKey;
use cheetah_rim::control::Client;
use cheetah_rim::volume::{Caching, Tuning, VolumeHandle, VolumeOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long the end of an attachment waits for the pool to hear that it was written, and how often it looks.
const MARK_TIME: Duration = Duration::from_secs(3);
const MARK_LOOK: Duration = Duration::from_millis(5);

/// An attached volume and the tasks that keep it so, which end with it. Made inside of a tokio runtime, whose
/// tasks they are.
#[derive(Debug)]
pub struct Volume {
    handle: VolumeHandle,
    /// What tools get of an encrypted volume.
    clear: Option<VolumeHandle>,
    lease: Lease,
    place: watch::Sender<String>,
    lost: watch::Receiver<bool>,
    writer_beside: watch::Receiver<bool>,
    tasks: [JoinHandle<()>; 4],
    /// Tells the pool once a tool has written.
    marking: Option<JoinHandle<()>>,
    /// What tools get in its place, where it is an overlay.
    view: Option<Box<View>>,
}

impl Volume {
    /// Attaches a volume and waits until it can be used.
    ///
    /// # Errors
    /// The pool refused it, this machine has no memory for it, or does not reach the donors that it needs.
    pub async fn open(pool: &Client, name: &str, options: &Options) -> Result<Volume, Error> {
        let lease = Lease::for_tools(pool, name, options).await?;
        let opened = match Volume::start(&lease, options.tuning) {
            Ok(mut volume) => match volume.ready_as_seen(options).await {
                Ok(_) => return Ok(volume),
                Err(error) => {
                    volume.close().await;
                    error
                }
            },
            Err(error) => error,
        };
        // What is not given back runs out by itself.
        let _ = lease.give_back().await;
        Err(opened)
    }

    /// Begins to serve a volume under a lease; `ready` says when it can be used.
    ///
    /// # Errors
    /// This machine has no memory for it, or may not open as many files.
    pub fn start(lease: &Lease, tuning: Tuning) -> Result<Volume, Error> {
        let granted = &lease.granted;
        // What follows what in an overlay's volume says nothing of what tools read next.
        let caching = if granted.content.overlay.is_some() { Caching::OFF } else { tuning.caching };
        let tuning = Tuning { caching, ..tuning };
        files::check(lease.volume(), granted.map.routes.len(), tuning.connections)?;
        let options = VolumeOptions {
            map: granted.map.clone(),
            token: granted.token,
            read_only: granted.read_only,
            fresh: granted.fresh,
            tuning,
            transport: lease.pool().transport(),
            key: lease.key.clone(),
        };
        if granted.map.encrypted && lease.key.is_none() && !lease.blind {
            return Err(Error::NoKey { volume: lease.volume().to_owned() });
        }
        let handle = VolumeHandle::start(options).map_err(Error::Machine)?;
        let view = |key: &Arc<VolumeKey>| VolumeHandle::decrypted(&handle, granted.map.volume, key.clone());
        let clear = lease.key.as_ref().map(view).transpose().map_err(Error::Machine)?;
        let place = watch::Sender::new(String::new());
        let (gone, lost) = watch::channel(false);
        let (beside, writer_beside) = watch::channel(has_writer(&granted.beside));
        let said = keep::Said { place: place.subscribe(), gone, writer_beside: beside };
        let tasks = keep::start(lease, &handle, said);
        // Who fills it says what comes of that, and who yields changes nothing of what it holds.
        let fills = matches!(granted.content.state, ContentState::Loading | ContentState::Opened);
        let marks = !granted.read_only && !fills && !lease.seals;
        let marking = marks.then(|| tokio::spawn(mark_written(lease.clone(), handle.clone())));
        let view = None;
        Ok(Volume { handle, clear, lease: lease.clone(), place, lost, writer_beside, tasks, marking, view })
    }

    /// Waits until every donor was reached or set aside, and says in sentences which were set aside.
    ///
    /// # Errors
    /// This machine does not reach donors that the pool does, and the volume is of no use without them.
    pub async fn ready(&self) -> Result<Vec<String>, Error> {
        let lost = self.handle.settled().await;
        self.lease.check_reached(&lost)?;
        Ok(self.lease.lost_notes(&lost))
    }

    /// The same; of an overlay tools get the view from then on, unless it is to be had as it is.
    ///
    /// # Errors
    /// As of `ready`; or what is under it cannot be attached, or its table not be read.
    pub async fn ready_as_seen(&mut self, options: &Options) -> Result<Vec<String>, Error> {
        let notes = self.ready().await?;
        if self.lease.granted.content.overlay.is_some() && !options.raw {
            let seen = self.clear.as_ref().unwrap_or(&self.handle);
            self.view = Some(Box::new(View::open(&self.lease, (seen, &self.handle), options).await?));
        }
        Ok(notes)
    }

    /// What front ends submit requests to.
    #[must_use]
    pub fn handle(&self) -> &VolumeHandle {
        let own = self.clear.as_ref().unwrap_or(&self.handle);
        self.view.as_ref().map_or(own, |view| &view.handle)
    }

    /// Of an encrypted volume: where reads end as those of tools do, and give nothing, for who asks whether
    /// donors hold what was sealed. That takes no key. Closed by who asked.
    ///
    /// # Errors
    /// No thread.
    pub fn undisclosed(&self) -> Result<Option<VolumeHandle>, Error> {
        let map = &self.lease.granted.map;
        let view = || VolumeHandle::undisclosed(&self.handle, map.volume);
        map.encrypted.then(view).transpose().map_err(Error::Machine)
    }

    /// Under which it is served.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Bytes, exact; it grows when the volume does.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.handle().size()
    }

    /// Where tools find it, for `cheetah status`.
    pub fn set_place(&self, place: &str) {
        self.place.send_replace(place.to_owned());
    }

    /// Whether somebody else has the volume for writing, as far as the coordinator told.
    #[must_use]
    pub fn writer_beside(&self) -> watch::Receiver<bool> {
        self.writer_beside.clone()
    }

    /// Resolves when the lease is gone: every request fails from then on.
    pub async fn lease_lost(&self) {
        let mut lost = self.lost.clone();
        if lost.wait_for(|lost| *lost).await.is_err() {
            // Its tasks have ended without a word, so nobody will ever know.
            std::future::pending().await
        }
    }

    /// Which donors cannot be reached now, by name, and why.
    pub async fn lost_donors(&self) -> Vec<(String, String)> {
        let lost = self.handle.look().await.unwrap_or_default().lost;
        let mut lost: Vec<_> = lost.into_iter().map(|(id, why)| (self.lease.donor_name(id), why)).collect();
        if let Some(view) = &self.view {
            lost.extend(Box::pin(view.base.lost_donors()).await);
        }
        lost
    }

    /// Answers what was submitted, ends the volume, then its tasks. The lease is kept, for what is to be said
    /// under it.
    pub async fn close(&self) {
        if let Some(view) = &self.view {
            view.close().await;
        }
        if let Some(clear) = &self.clear {
            clear.close().await;
        }
        self.handle.close().await;
        let late = tokio::time::Instant::now() + MARK_TIME;
        while !self.is_told() && tokio::time::Instant::now() < late {
            tokio::time::sleep(MARK_LOOK).await;
        }
        if self.is_told() {
            self.marking.iter().for_each(JoinHandle::abort);
        }
        self.tasks.iter().for_each(JoinHandle::abort);
    }

    /// Closes it and gives its lease back.
    ///
    /// # Errors
    /// The pool was not told, so the lease runs out by itself.
    pub async fn detach(self) -> Result<(), Error> {
        self.close().await;
        // Given back, it would say that nobody wrote.
        if self.is_told() { self.lease.give_back().await } else { Err(Error::Untold) }
    }

    /// Whether the pool knows that tools wrote, if they did.
    fn is_told(&self) -> bool {
        !self.handle.is_written() || self.marking.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Volume {
    /// Without `detach` the lease runs out by itself.
    fn drop(&mut self) {
        self.clear.iter().for_each(VolumeHandle::begin_to_close);
        self.handle.begin_to_close();
        self.tasks.iter().chain(&self.marking).for_each(JoinHandle::abort);
    }
}
