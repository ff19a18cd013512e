//! Memory at a scale of 1:512, as a donor lends it and as a client has it.
//!
//! Owns: a sparse memory with presence by block, what was in it before a write, and the checksums that a
//! client keeps. One byte stands for a sector of 512 bytes and eight for a block of 4096, so the code's
//! arithmetic works on it as on real memory.
//! Never: who reads or writes it, or what a byte means (`oracle`). Positions and lengths here count sectors.
//! Invariant: what is absent is zero. Tests: below.

use crate::oracle::POISON;
use cheetah_core::donor::Before;
use std::collections::BTreeMap;

/// Bytes of a volume that one byte here stands for.
pub(crate) const SECTOR: u64 = 512;
/// Sectors of a block.
pub(crate) const BLOCK: usize = 8;
/// Sectors of a piece of sparse memory: 1 MiB.
const CHUNK: usize = 2048;
const BLOCKS: usize = CHUNK / BLOCK;

pub(crate) fn sectors(bytes: u64) -> usize {
    debug_assert!(bytes.is_multiple_of(SECTOR), "{bytes} bytes are not whole sectors");
    usize::try_from(bytes / SECTOR).expect("fits into memory")
}

#[derive(Clone)]
struct Chunk {
    bytes: [u8; CHUNK],
    present: [bool; BLOCKS],
    /// What each block's content was when it was signed last.
    sums: [u32; BLOCKS],
}

/// What stands for the CRC32C of a block: two that differ in one byte never have the same.
pub(crate) fn sum(block: &[u8]) -> u32 {
    let hash = block.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ hash >> 32) as u32
}

#[derive(Clone, Default)]
pub(crate) struct Memory(BTreeMap<usize, Box<Chunk>>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} pieces)", self.0.len())
    }
}

/// Cuts a range at the borders of pieces: number, from and to inside the piece.
fn pieces(at: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut next = at;
    let end = at + len;
    std::iter::from_fn(move || {
        let (chunk, from) = (next / CHUNK, next % CHUNK);
        let to = (from + end - next).min(CHUNK);
        let piece = (next < end).then_some((chunk, from, to));
        next = chunk * CHUNK + to;
        piece
    })
}

/// The piece that a block is in, and where.
fn place_of(block: u64) -> (usize, usize) {
    let at = usize::try_from(block).expect("inside of the memory");
    (at / BLOCKS, at % BLOCKS)
}

impl Chunk {
    fn zeros() -> Chunk {
        let zeros = sum(&[0; BLOCK]);
        Chunk { bytes: [0; CHUNK], present: [false; BLOCKS], sums: [zeros; BLOCKS] }
    }

    fn block(&self, block: usize) -> &[u8] {
        &self.bytes[block * BLOCK..(block + 1) * BLOCK]
    }
}

impl Memory {
    fn chunk(&mut self, at: usize) -> &mut Chunk {
        self.0.entry(at).or_insert_with(|| Box::new(Chunk::zeros()))
    }

    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let mut done = 0;
        for (chunk, from, to) in pieces(at, bytes.len()) {
            let chunk = self.chunk(chunk);
            chunk.bytes[from..to].copy_from_slice(&bytes[done..done + to - from]);
            chunk.present[from / BLOCK..to.div_ceil(BLOCK)].fill(true);
            done += to - from;
        }
    }

    /// Zeros; `keep` makes the blocks present, else whole ones become absent.
    pub(crate) fn zero(&mut self, at: usize, len: usize, keep: bool) {
        for (chunk, from, to) in pieces(at, len) {
            if !keep && !self.0.contains_key(&chunk) {
                continue;
            }
            let chunk = self.chunk(chunk);
            chunk.bytes[from..to].fill(0);
            let (first, end) =
                if keep { (from / BLOCK, to.div_ceil(BLOCK)) } else { (from.div_ceil(BLOCK), to / BLOCK) };
            if first < end {
                chunk.present[first..end].fill(keep);
            }
        }
    }

    /// The blocks that the range touches hold what was meant.
    pub(crate) fn sign(&mut self, at: usize, len: usize) {
        for (chunk, from, to) in pieces(at, len) {
            let Some(chunk) = self.0.get_mut(&chunk) else { continue };
            for block in from / BLOCK..to.div_ceil(BLOCK) {
                chunk.sums[block] = sum(chunk.block(block));
            }
        }
    }

    /// The blocks that the range touches are not taken for what was meant.
    pub(crate) fn disown(&mut self, at: usize, len: usize) {
        for (chunk, from, to) in pieces(at, len) {
            let Some(chunk) = self.0.get_mut(&chunk) else { continue };
            for block in from / BLOCK..to.div_ceil(BLOCK) {
                chunk.sums[block] = !sum(chunk.block(block));
            }
        }
    }

    /// Bits of the checksum of a block flip; what it is then.
    pub(crate) fn flip_sum(&mut self, at: usize, bits: u32) -> u32 {
        let sum = &mut self.chunk(at / CHUNK).sums[at % CHUNK / BLOCK];
        *sum ^= bits;
        *sum
    }

    /// The checksums of the blocks that the range touches, as they were signed.
    pub(crate) fn sums(&self, at: usize, len: usize) -> Vec<u32> {
        let zeros = sum(&[0; BLOCK]);
        let of = |(chunk, from, to): (usize, usize, usize)| {
            let blocks = from / BLOCK..to.div_ceil(BLOCK);
            blocks.map(move |block| self.0.get(&chunk).map_or(zeros, |chunk| chunk.sums[block]))
        };
        pieces(at, len).flat_map(of).collect()
    }

    /// Whether each of the blocks that the range touches is what was signed.
    pub(crate) fn verify(&self, at: usize, len: usize) -> Vec<bool> {
        let of = |(chunk, from, to): (usize, usize, usize)| {
            let is_right = |chunk: &Chunk, block| chunk.sums[block] == sum(chunk.block(block));
            let blocks = from / BLOCK..to.div_ceil(BLOCK);
            blocks.map(move |block| self.0.get(&chunk).is_none_or(|chunk| is_right(chunk, block)))
        };
        pieces(at, len).flat_map(of).collect()
    }

    /// What is there, if these are whole blocks.
    pub(crate) fn keep(&self, at: usize, len: usize) -> Option<Kept> {
        if !at.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) {
            return None;
        }
        let zeros = Was { bytes: [0; BLOCK], present: false, sum: sum(&[0; BLOCK]) };
        let was = |at: usize| {
            self.0.get(&(at / CHUNK)).map_or(zeros, |chunk| {
                let block = at % CHUNK / BLOCK;
                let bytes = chunk.block(block).try_into().expect("a block");
                Was { bytes, present: chunk.present[block], sum: chunk.sums[block] }
            })
        };
        Some(Kept((at..at + len).step_by(BLOCK).map(was).collect()))
    }

    /// Makes what is there what it was.
    pub(crate) fn put_back(&mut self, at: usize, kept: &Kept) {
        for (at, was) in (at..).step_by(BLOCK).zip(&kept.0) {
            let (chunk, block) = (self.chunk(at / CHUNK), at % CHUNK / BLOCK);
            chunk.bytes[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(&was.bytes);
            (chunk.present[block], chunk.sums[block]) = (was.present, was.sum);
        }
    }

    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        let mut done = 0;
        for (chunk, from, to) in pieces(at, into.len()) {
            let out = &mut into[done..done + to - from];
            match self.0.get(&chunk) {
                Some(chunk) => out.copy_from_slice(&chunk.bytes[from..to]),
                None => out.fill(0),
            }
            done += to - from;
        }
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes);
        bytes
    }

    /// Runs of equal presence that make up the range: length, present.
    pub(crate) fn runs(&self, at: usize, len: usize) -> Vec<(usize, bool)> {
        let mut runs: Vec<(usize, bool)> = Vec::new();
        let mut add = |len: usize, present: bool| match runs.last_mut() {
            Some(last) if last.1 == present => last.0 += len,
            _ => runs.push((len, present)),
        };
        for (chunk, from, to) in pieces(at, len) {
            let Some(chunk) = self.0.get(&chunk) else {
                add(to - from, false);
                continue;
            };
            let mut at = from;
            while at < to {
                let end = ((at / BLOCK + 1) * BLOCK).min(to);
                add(end - at, chunk.present[at / BLOCK]);
                at = end;
            }
        }
        runs
    }

    /// Whether a block is present.
    pub(crate) fn has(&self, block: u64) -> bool {
        let (chunk, block) = place_of(block);
        self.0.get(&chunk).is_some_and(|chunk| chunk.present[block])
    }

    /// A block is this, by its checksum, or zeros; its content is not here.
    pub(crate) fn note(&mut self, block: u64, is: Option<u32>) {
        let (chunk, block) = place_of(block);
        if is.is_none() && !self.0.contains_key(&chunk) {
            return;
        }
        let chunk = self.chunk(chunk);
        (chunk.present[block], chunk.sums[block]) = (is.is_some(), is.unwrap_or(sum(&[0; BLOCK])));
        let byte = if is.is_some() { POISON } else { 0 };
        chunk.bytes[block * BLOCK..(block + 1) * BLOCK].fill(byte);
    }

    /// The content of a block comes, which is what it was before; or goes.
    pub(crate) fn bring(&mut self, block: u64, content: Option<[u8; BLOCK]>) {
        let (chunk, block) = place_of(block);
        let Some(chunk) = self.0.get_mut(&chunk).filter(|chunk| chunk.present[block]) else { return };
        let content = content.unwrap_or([POISON; BLOCK]);
        chunk.bytes[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(&content);
    }

    /// Positions of the blocks that are present.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().flat_map(|(number, chunk)| {
            let present = (0..BLOCKS).filter(|block| chunk.present[*block]);
            present.map(move |block| number * CHUNK + block * BLOCK)
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks().next().is_none()
    }
}

#[derive(Clone, Copy, Debug)]
struct Was {
    bytes: [u8; BLOCK],
    present: bool,
    sum: u32,
}

/// Blocks beside each other as they were.
#[derive(Clone, Debug)]
pub(crate) struct Kept(Vec<Was>);

impl Before for Kept {
    fn split_off(&mut self, bytes: u64) -> Kept {
        Kept(self.0.split_off(sectors(bytes) / BLOCK))
    }
}

/// Blocks of one run of a fragment; unknown where there is none.
type Known = [Option<[u8; BLOCK]>; BLOCKS];

/// What a client knows of the blocks of each fragment, as `core::checksum` but sparse; the block is its own
/// checksum.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// Whether a group began as known zeros.
    fresh: Vec<bool>,
    chunks: BTreeMap<(u32, u32, usize), Box<Known>>,
}

impl Sums {
    pub(crate) fn grow(&mut self, groups: usize, fresh: bool) {
        let groups = groups.max(self.fresh.len());
        self.fresh.resize(groups, fresh);
    }

    fn chunk(&mut self, group: u32, slot: u32, chunk: usize) -> &mut Known {
        let fresh = self.fresh[group as usize];
        let first = fresh.then_some([0; BLOCK]);
        self.chunks.entry((group, slot, chunk)).or_insert_with(|| Box::new([first; BLOCKS]))
    }

    pub(crate) fn note(&mut self, group: u32, slot: u32, at: usize, bytes: &[u8]) {
        assert!(
            at.is_multiple_of(BLOCK) && bytes.len().is_multiple_of(BLOCK),
            "checksums are of whole blocks"
        );
        let mut done = 0;
        for (chunk, from, to) in pieces(at, bytes.len()) {
            let known = self.chunk(group, slot, chunk);
            for (block, bytes) in (from / BLOCK..).zip(bytes[done..done + to - from].chunks_exact(BLOCK)) {
                known[block] = bytes.try_into().ok();
            }
            done += to - from;
        }
    }

    pub(crate) fn forget(&mut self, group: u32, slot: u32, at: usize, len: usize) {
        for (chunk, from, to) in pieces(at, len) {
            self.chunk(group, slot, chunk)[from / BLOCK..to.div_ceil(BLOCK)].fill(None);
        }
    }

    /// How many blocks are not what is known of them. `sums` are a donor's: none are not looked at.
    pub(crate) fn wrong(&self, group: u32, slot: u32, at: usize, bytes: &[u8], sums: &[u32]) -> u32 {
        assert!(
            at.is_multiple_of(BLOCK) && bytes.len().is_multiple_of(BLOCK),
            "checksums are of whole blocks"
        );
        let (mut done, mut wrong) = (0, 0);
        for (chunk, from, to) in pieces(at, bytes.len()) {
            let known = self.chunks.get(&(group, slot, chunk));
            let fresh = self.fresh.get(group as usize) == Some(&true);
            for (block, bytes) in (from / BLOCK..).zip(bytes[done..done + to - from].chunks_exact(BLOCK)) {
                let bad = match known {
                    Some(known) => known[block].is_some_and(|known| known != *bytes),
                    None => fresh && bytes.iter().any(|byte| *byte != 0),
                };
                let said = sums.get((done + (block - from / BLOCK) * BLOCK) / BLOCK);
                wrong += u32::from(bad || said.is_some_and(|said| *said != sum(bytes)));
            }
            done += to - from;
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn memory_agrees_with_an_array() {
        const LEN: u64 = 3 * CHUNK as u64;
        let mut rng = Rng::new(1);
        for _ in 0..50 {
            let (mut memory, mut array) = (Memory::default(), vec![0u8; CHUNK * 3]);
            for _ in 0..40 {
                let from = usize::try_from(rng.below(LEN)).expect("small");
                let len = usize::try_from(rng.range(0, LEN - from as u64)).expect("small");
                let byte = u8::try_from(rng.below(256)).expect("a byte");
                match rng.below(2) {
                    0 => memory.write(from, &vec![byte; len]),
                    _ => memory.zero(from, len, rng.percent(50)),
                }
                let wrote = memory.get(from, len).first().copied().unwrap_or(0);
                array[from..from + len].fill(wrote);
                assert_eq!(memory.get(0, array.len()), array);
                let mut at = 0;
                for (len, present) in memory.runs(0, array.len()) {
                    assert!(present || array[at..at + len].iter().all(|byte| *byte == 0), "absent is zero");
                    at += len;
                }
                assert_eq!(at, array.len());
            }
        }
    }

    #[test]
    fn a_whole_block_of_zeros_is_given_back() {
        let mut memory = Memory::default();
        memory.write(0, &[1; 24]);
        memory.zero(4, 18, false);
        assert_eq!(memory.runs(0, 32), [(8, true), (8, false), (8, true), (8, false)]);
        memory.zero(0, 24, false);
        assert!(memory.is_empty());
        memory.zero(0, 1, true);
        assert_eq!(memory.runs(0, 16), [(8, true), (8, false)]);
    }

    #[test]
    fn sums_tell_what_is_known() {
        let mut sums = Sums::default();
        sums.grow(1, true);
        sums.grow(2, false);
        assert_eq!((sums.wrong(0, 0, 0, &[0; 8], &[]), sums.wrong(0, 0, 0, &[1; 16], &[])), (0, 2));
        assert_eq!(sums.wrong(1, 0, 0, &[1; 16], &[]), 0, "unknown");
        sums.note(1, 0, 8, &[3; 8]);
        assert_eq!(sums.wrong(1, 0, 0, &[1; 16], &[]), 1);
        sums.forget(1, 0, 8, 8);
        assert_eq!(sums.wrong(1, 0, 8, &[1; 8], &[]), 0, "forgotten");
    }
}
