//! A file system that is mounted for the life of a value.
//! Never: makes or checks one.

use std::path::Path;

use crate::{tools, wait};

/// Mounted, until `unmount`.
#[derive(Debug)]
pub struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    /// `arguments`: of mount, before the device.
    #[track_caller]
    pub fn new(arguments: &[&str], device: &Path, point: &'a Path) -> Self {
        tools::expect_success(tools::command("mount").args(arguments).arg(device).arg(point));
        Self(point)
    }

    /// The same, behind a process that was killed: others may look at what is mounted for a moment.
    #[track_caller]
    pub fn unmount_in_time(self) {
        wait::until("nobody uses the file system", wait::SOON, || {
            tools::output(tools::command("umount").arg(self.0)).status.success()
        });
        std::mem::forget(self);
    }

    /// Nobody may be using it.
    #[track_caller]
    pub fn unmount(self) {
        tools::run("umount", [self.0]);
        std::mem::forget(self);
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Only a failing test comes here; the scratch directory takes what this leaves.
        let _ = tools::output(tools::command("umount").arg("--lazy").arg(self.0));
    }
}
