//! Faults of this machine, said as such: what the system refused, and which limit or right stands behind it.
//!
//! Owns the words. Never: blame for donors, or for the pool. Called wherever the system is asked for
//! something. Tests: below.

use rustix::io::Errno;
use std::io;

/// What the system said, with what to do where that can be known.
#[must_use]
pub fn own_fault(error: &io::Error) -> String {
    let hint = match Errno::from_io_error(error) {
        Some(Errno::FBIG) => "files of this process may not be that large: raise `ulimit -f`",
        Some(Errno::MFILE) => "this process may not open more files: raise `ulimit -n`",
        Some(Errno::NFILE) => "this machine has no more open files: see /proc/sys/fs/file-max",
        Some(Errno::NOMEM) => {
            "this machine has no memory for it: end something, or see `ulimit -v` and `ulimit -l`"
        }
        Some(Errno::AGAIN) => {
            "this user may not start more threads or lock more memory: see `ulimit -u` and `ulimit -l`"
        }
        Some(Errno::NOSPC | Errno::DQUOT) => "make room there",
        Some(Errno::ROFS) => "that file system is read-only",
        _ => return error.to_string(),
    };
    format!("{error}; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_with_how_to_raise_it() {
        let said = |errno: Errno| own_fault(&errno.into());
        assert!(said(Errno::MFILE).contains("`ulimit -n`"));
        assert!(said(Errno::FBIG).contains("`ulimit -f`"));
        assert_eq!(said(Errno::ACCESS), io::Error::from(Errno::ACCESS).to_string());
    }
}
