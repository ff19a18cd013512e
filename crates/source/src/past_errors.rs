//! Reading past what a medium cannot give: by halves down to its sector, with zeros for what stays
//! unreadable.
//!
//! Owns that descent, and which errors are the medium's. Never: which zeros are which to its caller; it says
//! so. Invariant: every byte is either what the source gave or in a range that is named, and no range is
//! larger than the sectors that failed. Called by `RawSource`. Tests: below.

use std::io;
use std::ops::Range;

/// Smaller than any page: reading through the page cache, a page fails as a whole.
pub(crate) const SECTOR_BYTES: usize = 512;

/// Whether the medium failed there, so that what is beside it may be read; else the source itself is gone.
pub(crate) fn is_of_the_medium(error: &io::Error) -> bool {
    // EIO; ENODATA and EREMOTEIO of disks; EILSEQ and EBADMSG of what does not fit its checksum.
    const OF_THE_MEDIUM: [i32; 5] = [5, 61, 121, 84, 74];
    error.raw_os_error().is_some_and(|code| OF_THE_MEDIUM.contains(&code))
}

/// Fills `room`, which begins at a sector, by `read(at, part)`; answers which parts of it could not be read,
/// in order, as whole sectors. `read` fills its part or fails.
///
/// # Errors
/// What `read` said, where that was not of the medium.
pub(crate) fn fill(
    room: &mut [u8],
    sector: usize,
    read: &mut impl FnMut(usize, &mut [u8]) -> io::Result<()>,
) -> io::Result<Vec<Range<usize>>> {
    let mut failed: Vec<Range<usize>> = Vec::new();
    // The next part is on top, so that the medium is read forward.
    let mut parts: Vec<Range<usize>> = Vec::new();
    parts.push(0..room.len());
    while let Some(part) = parts.pop() {
        match read(part.start, &mut room[part.clone()]) {
            Ok(()) => {}
            Err(error) if !is_of_the_medium(&error) => return Err(error),
            Err(_) if part.len() > sector => {
                let half = part.start + (part.len() / 2).next_multiple_of(sector);
                let half = if half < part.end { half } else { part.start + sector };
                parts.push(half..part.end);
                parts.push(part.start..half);
            }
            Err(_) => {
                room[part.clone()].fill(0);
                match failed.last_mut().filter(|last| last.end == part.start) {
                    Some(last) => last.end = part.end,
                    None => failed.push(part),
                }
            }
        }
    }
    Ok(failed)
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]
mod tests {
    use super::*;

    /// A medium of which these bytes cannot be read, through a cache whose pages fail as a whole.
    fn read_with(bad: &[Range<usize>], len: usize, sector: usize) -> (Vec<u8>, Vec<Range<usize>>, usize) {
        let mut room = vec![9; len];
        let mut asked = 0;
        let failed = fill(&mut room, sector, &mut |at, part: &mut [u8]| {
            asked += 1;
            let end = at + part.len();
            if bad.iter().any(|bad| bad.start < end && at < bad.end) {
                return Err(io::Error::from_raw_os_error(5));
            }
            part.fill(7);
            Ok(())
        });
        (room, failed.expect("only the medium fails"), asked)
    }

    #[test]
    fn what_is_lost_is_the_sector_and_no_more() {
        let (room, failed, asked) = read_with(&[5000..5001], 1 << 20, 512);
        assert_eq!(failed, [4608..5120]);
        assert!(room[..4608].iter().chain(&room[5120..]).all(|byte| *byte == 7));
        assert!(room[4608..5120].iter().all(|byte| *byte == 0));
        assert!(asked < 40, "{asked}");
    }

    #[test]
    fn ranges_join_and_the_last_sector_may_be_short() {
        assert_eq!(read_with(&[512..2048], 4096, 512).1, [512..2048]);
        assert_eq!(read_with(&[1024..1030], 1030, 512).1, [1024..1030]);
        assert_eq!(read_with(&[0..1, 3000..3001], 3001, 512).1, [0..512, 2560..3001]);
        let everything = 0..3 * 4096 + 5;
        assert_eq!(read_with(std::slice::from_ref(&everything), everything.end, 4096).1, [everything]);
        assert!(read_with(&[], 4096, 512).1.is_empty());
    }

    #[test]
    fn a_source_that_is_gone_is_no_bad_sector() {
        let mut room = [0; 4096];
        // ENXIO, ESTALE.
        for code in [6, 116] {
            let gone = fill(&mut room, 512, &mut |_, _| Err(io::Error::from_raw_os_error(code)));
            assert_eq!(gone.expect_err("it is gone").raw_os_error(), Some(code));
        }
    }
}
