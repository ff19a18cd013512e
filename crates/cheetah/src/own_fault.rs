//! Faults of this machine, said as such: what the system refused, and which limit or right stands behind it.
//! Never: blame for donors, or for the pool. Called wherever a command or the daemon asks the system for
//! something.

use crate::failure::Failure;
use cheetah_core::limits::CONNECTIONS_FAR;
use cheetah_core::units::show_count;
use cheetah_rim::descriptors;
use rustix::io::Errno;
use std::io;

/// Descriptors of a process that serves a volume, beside those of its connections to donors: the front end,
/// its clients, the runtime.
const FILES_OWN: u64 = 64;
/// A socket, and the pipe through which pages are lent to it.
const FILES_EACH: u64 = 3;

/// What the system said, with what to do where that can be known.
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

/// Opens the way to as many files as this user may have, and says when that is too few to connect to a
/// volume's donors: what cannot be opened here would look like donors that are gone.
pub fn check_files(volume: &str, donors: usize, connections: Option<usize>) -> Result<(), Failure> {
    let have = descriptors::raise();
    let need = files_needed(donors, connections);
    if have >= need {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "this process may open {have} files, and volume '{volume}' on {} needs {need}: raise `ulimit -n`",
        show_count(donors as u64, "donor")
    )))
}

fn files_needed(donors: usize, connections: Option<usize>) -> u64 {
    // One more to each, by which it is asked whether it is there.
    let each = connections.unwrap_or_else(|| CONNECTIONS_FAR.div_ceil(donors.max(1))) as u64 * FILES_EACH + 1;
    FILES_OWN + donors as u64 * each
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_by_donors_and_connections() {
        assert_eq!(files_needed(4, None), 64 + 4 * 7);
        assert_eq!(files_needed(100, None), 64 + 100 * 4);
        assert_eq!(files_needed(2, Some(16)), 64 + 2 * 49);
        assert!(check_files("case", 1, None).is_ok());
        assert!(
            check_files("case", usize::MAX >> 8, None)
                .is_err_and(|failure| failure.message.contains("ulimit -n"))
        );
    }

    #[test]
    fn a_limit_is_named_with_how_to_raise_it() {
        let said = |errno: Errno| own_fault(&errno.into());
        assert!(said(Errno::MFILE).contains("`ulimit -n`"));
        assert!(said(Errno::FBIG).contains("`ulimit -f`"));
        assert_eq!(said(Errno::ACCESS), io::Error::from(Errno::ACCESS).to_string());
    }
}
