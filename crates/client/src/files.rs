//! How many files a process may open that serves a volume.
//!
//! Owns the count. Never: opens any. Why: what cannot be opened here would look like donors that are gone.
//! Called by `volume`. Tests: below.

use crate::error::Error;
use cheetah_core::limits::CONNECTIONS_FAR;
use cheetah_rim::descriptors;

/// Descriptors of a process that serves a volume, beside those of its connections to donors: the front end,
/// its clients, the runtime.
const FILES_OWN: u64 = 64;
/// A socket, and the pipe through which pages are lent to it.
const FILES_EACH: u64 = 3;

/// Opens the way to as many files as this user may have, and says when that is too few to connect to a
/// volume's donors.
pub(crate) fn check(volume: &str, donors: usize, connections: Option<usize>) -> Result<(), Error> {
    let (have, need) = (descriptors::raise(), needed(donors, connections));
    match have >= need {
        true => Ok(()),
        false => Err(Error::Files { volume: volume.to_owned(), donors, have, need }),
    }
}

fn needed(donors: usize, connections: Option<usize>) -> u64 {
    // One more to each, by which it is asked whether it is there.
    let each = connections.unwrap_or_else(|| CONNECTIONS_FAR.div_ceil(donors.max(1))) as u64 * FILES_EACH + 1;
    FILES_OWN + donors as u64 * each
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_by_donors_and_connections() {
        assert_eq!(needed(4, None), 64 + 4 * 7);
        assert_eq!(needed(100, None), 64 + 100 * 4);
        assert_eq!(needed(2, Some(16)), 64 + 2 * 49);
        assert!(check("case", 1, None).is_ok());
        let said = check("case", usize::MAX >> 8, None).expect_err("nobody may open that many");
        assert!(said.to_string().contains("raise `ulimit -n`"), "{said}");
    }
}
