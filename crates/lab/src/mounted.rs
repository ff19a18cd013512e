//! A file system that is mounted for the life of a value.
//! Never: makes or checks one.

use std::path::Path;

use crate::tools;

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
