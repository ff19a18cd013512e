//! Runs of a disk: which blocks of one cannot be given, which parts are zeros, and which pieces are whole.
//!
//! Never: reading, writing, or what is here. Called by `work` and `hashing`. Tests: below.

use cheetah_core::content::ByteRange;
use cheetah_core::filling::PIECE_BYTES;
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_source::Unreadable;
use std::ops::Range;

/// The blocks that are not whole.
pub(super) fn bad_blocks(unreadable: &[Unreadable], size: u64) -> Vec<ByteRange> {
    let mut bad = Vec::new();
    let blocks = unreadable.iter().map(|Unreadable { range, .. }| {
        let (from, to) = (range.start / BLOCK_BYTES * BLOCK_BYTES, range.end.next_multiple_of(BLOCK_BYTES));
        ByteRange::from(from..to.min(size))
    });
    cheetah_core::content::cover(&mut bad, blocks);
    bad
}

/// Makes zeros of what of a run lies in these blocks: nobody is given any of it.
pub(super) fn blank(run: &Range<u64>, bytes: &mut [u8], bad: &[ByteRange]) {
    for range in bad {
        let (from, to) = (range.offset.max(run.start), range.end().min(run.end));
        let at = |byte: u64| usize::try_from(byte - run.start).expect("inside of the run");
        if from < to {
            bytes[at(from)..at(to)].fill(0);
        }
    }
}

/// What of the range lies in none of these, which are ascending and apart.
pub(super) fn outside(range: &Range<u64>, bad: &[ByteRange]) -> Vec<Range<u64>> {
    let (mut at, mut parts) = (range.start, Vec::new());
    for bad in bad.iter().filter(|bad| bad.offset < range.end && range.start < bad.end()) {
        if at < bad.offset {
            parts.push(at..bad.offset);
        }
        at = bad.end();
    }
    if at < range.end {
        parts.push(at..range.end);
    }
    parts
}

/// A part of a run in pieces of zeros and others, so that only those take memory that have to.
pub(super) fn by_zeros(run: &Range<u64>, bytes: &[u8], part: Range<u64>) -> Vec<Range<u64>> {
    let at = |byte: u64| usize::try_from(byte - run.start).expect("inside of the run");
    let is_zero = |range: &Range<u64>| bytes[at(range.start)..at(range.end)].iter().all(|byte| *byte == 0);
    let (mut begin, mut parts): (u64, Vec<Range<u64>>) = (part.start, Vec::new());
    while begin < part.end {
        let end = (begin / PIECE_BYTES * PIECE_BYTES + PIECE_BYTES).min(part.end);
        match parts.last_mut() {
            Some(last) if is_zero(last) == is_zero(&(begin..end)) => last.end = end,
            _ => parts.push(begin..end),
        }
        begin = end;
    }
    parts
}

/// The pieces that lie in the range as a whole: of the others nothing is known yet.
pub(super) fn whole_pieces(range: &Range<u64>, size: u64) -> Range<u64> {
    let end = if range.end == size { size } else { range.end / PIECE_BYTES * PIECE_BYTES };
    range.start.next_multiple_of(PIECE_BYTES).min(end)..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_left_out_by_whole_blocks() {
        let unreadable = |range: Range<u64>| Unreadable { range, why: String::new() };
        let bad = bad_blocks(&[unreadable(5000..5512), unreadable(20_000..20_001)], 20_100);
        assert_eq!(bad, [ByteRange { offset: 4096, len: 4096 }, ByteRange { offset: 16_384, len: 3716 }]);
        assert_eq!(outside(&(0..20_100), &bad), [0..4096, 8192..16_384]);
        assert_eq!(outside(&(4096..8192), &bad), []);
        assert_eq!(outside(&(8192..9000), &bad).first(), Some(&(8192..9000)));
        let mut bytes = vec![7; 4100];
        blank(&(16_000..20_100), &mut bytes, &bad);
        assert!(bytes[..384].iter().all(|byte| *byte == 7) && bytes[384..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn zeros_are_told_from_the_rest_by_whole_pieces() {
        const P: u64 = PIECE_BYTES;
        let mut bytes = vec![0; 5 * P as usize];
        bytes[2 * P as usize] = 1;
        assert_eq!(by_zeros(&(P..6 * P), &bytes, P..6 * P), [P..3 * P, 3 * P..4 * P, 4 * P..6 * P]);
        let parts = [2 * P + 512..3 * P, 3 * P..4 * P, 4 * P..4 * P + 512];
        assert_eq!(by_zeros(&(P..6 * P), &bytes, 2 * P + 512..4 * P + 512), parts);
    }

    #[test]
    fn only_whole_pieces_count_as_here() {
        let piece = PIECE_BYTES;
        assert_eq!(whole_pieces(&(4096..3 * piece + 5), 9 * piece), piece..3 * piece);
        assert_eq!(whole_pieces(&(0..piece + 7), piece + 7), 0..piece + 7, "the last one is shorter");
        assert!(whole_pieces(&(4096..8192), 9 * piece).is_empty());
    }
}
