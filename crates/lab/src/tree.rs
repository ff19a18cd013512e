//! A real directory tree to fill file systems with.

use std::path::Path;

use crate::tools;

/// Trees that every Debian machine with a compiler has.
const SOURCES: [&str; 2] = ["/usr/include", "/usr/share/perl"];

/// Copies a real tree of some ten thousand files into `target`.
#[track_caller]
pub fn fill(target: &Path) {
    for source in SOURCES {
        if Path::new(source).exists() {
            tools::run("cp", ["--archive", source, &target.to_string_lossy()]);
        }
    }
    tools::run("cp", ["--archive", crate::images::PLANTED, &target.to_string_lossy()]);
}
