//! A temporary directory of one test, removed with whatever is mounted below it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::mark;

/// A private directory that lives as long as this value.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A directory where temporary files go (`TMPDIR`, else `/tmp`).
    pub fn new() -> Self {
        Self::under(&std::env::temp_dir())
    }

    /// A directory in memory, for servers that lend a file.
    pub fn in_memory() -> Self {
        Self::under(Path::new("/dev/shm"))
    }

    /// A directory on a disk, which /tmp is not everywhere.
    pub fn on_disk() -> Self {
        Self::under(Path::new("/var/tmp"))
    }

    fn under(parent: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        mark::sweep_stale();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{}.{count}", mark::own()));
        fs::create_dir(&path).expect("a scratch directory");
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in the directory; nothing is made there.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// A directory in the directory, made if need be; also one that a dead mount covers, which cannot be
    /// looked at.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => panic!("{}: {error}", path.display()),
            _ => path,
        }
    }

    /// A file in the directory with these bytes.
    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path.join(name);
        fs::write(&path, bytes).expect("a file in the scratch directory");
        path
    }

    /// A sparse file in the directory.
    pub fn sparse_file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path.join(name);
        fs::File::create(&path)
            .and_then(|file| file.set_len(bytes))
            .expect("a sparse file in the scratch directory");
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("CHEETAH_LAB_KEEP").is_some() {
            eprintln!("kept for a look: {}", self.path.display());
            return;
        }
        mark::remove_directory(&self.path);
    }
}
