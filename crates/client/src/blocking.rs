//! An attached volume for programs without async.
//!
//! Owns the runtime that the volume's tasks turn in, a thread of its own. Never: another way to the bytes
//! than `access`. Not to be called from inside of an async runtime, where nothing may block. Tests:
//! `lab/tests/client.rs`.

use crate::error::Error;
use crate::lease::Options;
use cheetah_rim::control::Client;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// As [`crate::Volume`]; several threads may use it at once.
#[derive(Debug)]
pub struct Volume {
    volume: crate::Volume,
    runtime: Turning,
}

/// A runtime that a thread of its own turns until this is dropped.
#[derive(Debug)]
struct Turning {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Turning {
    fn start() -> std::io::Result<Turning> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, (stop, stopped)) = (runtime.handle().clone(), oneshot::channel());
        let thread = std::thread::Builder::new().name("volume-tasks".into()).spawn(move || {
            // An error means that the other end is gone, which is the same.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Turning { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Turning {
    fn drop(&mut self) {
        drop(self.stop.take());
        // One that panicked has said so.
        self.thread.take().map(JoinHandle::join);
    }
}

impl Volume {
    /// Attaches a volume and waits until it can be used.
    ///
    /// # Errors
    /// As of [`crate::Volume::open`].
    pub fn open(pool: &Client, name: &str, options: &Options) -> Result<Volume, Error> {
        let runtime = Turning::start().map_err(Error::Machine)?;
        let volume = runtime.handle.block_on(crate::Volume::open(pool, name, options))?;
        Ok(Volume { volume, runtime })
    }

    /// Fills `bytes` with what the volume holds from `offset` on.
    ///
    /// # Errors
    /// As of [`crate::Volume::read_at`].
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.runtime.handle.block_on(self.volume.read_at(offset, bytes))
    }

    /// Puts `bytes` into the volume from `offset` on.
    ///
    /// # Errors
    /// As of [`crate::Volume::write_at`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.runtime.handle.block_on(self.volume.write_at(offset, bytes))
    }

    /// Makes `len` bytes from `offset` on read as zeros, and gives their memory back.
    ///
    /// # Errors
    /// As of [`crate::Volume::zero_at`].
    pub fn zero_at(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.runtime.handle.block_on(self.volume.zero_at(offset, len))
    }

    /// A barrier: fails if what was acknowledged since the last one is gone with its donors.
    ///
    /// # Errors
    /// It is gone.
    pub fn flush(&self) -> Result<(), Error> {
        self.runtime.handle.block_on(self.volume.flush())
    }

    /// Closes it and gives its lease back.
    ///
    /// # Errors
    /// As of [`crate::Volume::detach`].
    pub fn detach(self) -> Result<(), Error> {
        self.runtime.handle.block_on(self.volume.detach())
    }
}

impl std::ops::Deref for Volume {
    type Target = crate::Volume;

    /// What needs no waiting: its size, its lease, its handle.
    fn deref(&self) -> &crate::Volume {
        &self.volume
    }
}
