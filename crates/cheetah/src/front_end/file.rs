//! The volume as a file of a mount.
//!
//! Owns: the mount, from its order to its end, and what is left of one whose daemon was killed. Never: the
//! requests (`cheetah_front::fuse`). Tests: `lab/tests/starting.rs` and others.

use super::Of;
use crate::daemon::{Order, Ready};
use crate::failure::{Exit, Failure};
use crate::runtime_dir::Record;
use cheetah_front::fuse::{self, Mounted};
use std::error::Error;
use std::path::{Path, PathBuf};
use tokio::sync::watch;

const READ_AHEAD_KB: u32 = 1024;

pub struct File {
    point: PathBuf,
    options: fuse::Options,
    mounted: Option<Mounted>,
}

impl File {
    pub fn ordered(order: &Order) -> Result<File, Failure> {
        let point = order.mountpoint.clone().ok_or_else(|| Failure::usage("a file needs a mount point"))?;
        let (uid, gid) = order.owner;
        let options = fuse::Options { uid, gid, read_only: order.read_only };
        Ok(File { point, options, mounted: None })
    }

    pub fn start(&mut self, of: &Of<'_>, ready: &mut Ready) -> Result<(), Failure> {
        let mounted =
            fuse::mount(of.volume, &self.point, &self.options).map_err(|e| Failure::failed(e.to_string()))?;
        // Not inside the macro, which evaluates nothing that is not logged.
        let tuned = mounted.tune(READ_AHEAD_KB);
        tracing::info!(%tuned, "mounted");
        if !mounted.shared_with_root() {
            ready.notes.push(
                "only this user can read the file, root cannot: attach as root, or put user_allow_other into \
                 /etc/fuse.conf, for tools that run as root (sudo, losetup)"
                    .to_owned(),
            );
        }
        mounted.set_writer_beside(of.writer_beside);
        ready.path = Some(mounted.path().to_path_buf());
        ready.place = mounted.path().display().to_string();
        self.mounted = Some(mounted);
        Ok(())
    }

    pub fn set_writer_beside(&self, there: bool) {
        self.mounted.iter().for_each(|mounted| mounted.set_writer_beside(there));
    }

    pub fn ended(&self) -> Option<watch::Receiver<bool>> {
        self.mounted.as_ref().map(Mounted::ended)
    }

    /// Whether it could end after `device`, a loop device over it, if nobody uses either.
    pub async fn check_unused(&mut self, device: Option<PathBuf>) -> Result<(), Failure> {
        self.apart(move |mounted| mounted.check_unused(device.as_deref())).await
    }

    pub async fn end(&mut self) -> Result<(), Failure> {
        self.apart(Mounted::unmount).await?;
        self.mounted = None;
        Ok(())
    }

    /// The kernel asks this process while it does such things: not on the thread that runs the rest.
    async fn apart<E: Error + Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut Mounted) -> Result<(), E> + Send + 'static,
    ) -> Result<(), Failure> {
        let Some(mut mounted) = self.mounted.take() else { return Ok(()) };
        let acted = tokio::task::spawn_blocking(move || {
            let result = act(&mut mounted);
            (mounted, result)
        });
        let (mounted, result) = acted.await.map_err(|e| Failure::failed(e.to_string()))?;
        self.mounted = Some(mounted);
        result.map_err(|why| Failure::new(Exit::Refused, why))
    }
}

/// The path of a volume's file below its mount point.
pub fn path_below(point: &Path, volume: &str) -> PathBuf {
    point.join(format!("{volume}.raw"))
}

pub fn recover(record: &Record) -> Result<(), Failure> {
    let Some(point) = &record.mountpoint else { return Ok(()) };
    fuse::abandon(point).map_err(|e| {
        Failure::failed(format!("the mount that a killed daemon left at {} stays: {e}", point.display()))
    })?;
    if record.mountpoint_made {
        let _ = std::fs::remove_dir(point);
    }
    Ok(())
}
