//! The bytes that the machine decides about: payloads of requests, scratch memory, their checksums, and of
//! ciphertext the nonces and authentication tags, which go wherever its blocks go.
//!
//! Owns where they are, and what effects do to them. Never: which effect, or what a checksum that differs
//! means. Invariant: only the data thread touches them, and the outputs of a computation overlap nothing else
//! in it. Called by the driver and its connections. Tests: below, `tests/data_path.rs`.
//! One of the named modules that may use unsafe (several pieces of one buffer at once).
#![allow(unsafe_code)]

use super::conn::Body;
use super::encrypted::Opening;
use super::handle::Sink;
use super::proving::Proving;
use crate::auth::{self, Auth, NONE};
use crate::buffer::Buffer;
use crate::code;
use crate::proofs::Checked;
use cheetah_core::checksum::{Checksums, ZERO_BLOCK_CRC};
use cheetah_core::layout::Scatter;
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::map::DonorId;
use cheetah_core::volume::{At, Combine, Fragment, Mem, Volume};
use cheetah_nbd::client::Answer;
use std::io;
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u32 = BLOCK_BYTES as u32;

/// A request on its way, under its tag.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) token: u64,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) buffer: Option<Buffer>,
}

#[derive(Debug)]
pub(super) struct Memory {
    slots: Vec<Option<Pending>>,
    free: Vec<usize>,
    scratch: Vec<Buffer>,
    cache: Buffer,
    sums: Checksums,
    width: u32,
    /// Of a sealed volume that is read.
    pub(super) proving: Option<Proving>,
    /// Of an encrypted volume, by who has its key.
    pub(super) opening: Option<Opening>,
}

impl Drop for Memory {
    /// If a fault in the program ends the thread, nobody gets payloads that the kernel may still be sending
    /// from.
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

impl Memory {
    /// Takes all of it, present and ready.
    ///
    /// # Errors
    /// The machine has no memory for it.
    pub(super) fn new(requests: usize, width: u32, cache_bytes: u32, encrypted: bool) -> io::Result<Memory> {
        let standing = |bytes: u32| {
            let mut buffer = Buffer::standing(bytes as usize)?;
            if encrypted {
                buffer.expect_auths();
            }
            Ok(buffer)
        };
        let scratch = Volume::scratch_sizes().map(standing).collect::<io::Result<_>>()?;
        let (slots, free) = (Vec::with_capacity(requests), Vec::with_capacity(requests));
        let cache = standing(cache_bytes)?;
        Ok(Memory {
            slots,
            free,
            scratch,
            cache,
            sums: Checksums::new(),
            width,
            proving: None,
            opening: None,
        })
    }

    /// Makes room for the checksums of this many groups; `fresh`: those that are new hold zeros.
    pub(super) fn know_groups(&mut self, groups: usize, fresh: bool) {
        let groups = u32::try_from(groups).expect("a volume has fewer groups");
        self.sums.grow(groups, self.width, fresh);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.requests() == 0
    }

    /// Those that are on their way.
    pub(super) fn requests(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a request in; its tag.
    pub(super) fn admit(&mut self, pending: Pending) -> u64 {
        let tag = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[tag] = Some(pending);
        tag as u64
    }

    /// Hands a request back; its tag may be used again.
    pub(super) fn release(&mut self, tag: u64) -> Pending {
        let index = usize::try_from(tag).expect("tags are slots");
        self.free.push(index);
        self.slots[index].take().expect("a tag is completed once")
    }

    pub(super) fn buffer(&self, mem: Mem) -> &Buffer {
        match mem {
            Mem::Payload(tag) => {
                let slot =
                    usize::try_from(tag).ok().and_then(|tag| self.slots.get(tag)).and_then(Option::as_ref);
                slot.and_then(|slot| slot.buffer.as_ref())
                    .expect("a request has its payload until it is completed")
            }
            Mem::Scratch(piece) => &self.scratch[piece as usize],
            Mem::Cache => &self.cache,
            Mem::Nothing => unreachable!("a part without data"),
        }
    }

    pub(super) fn buffer_mut(&mut self, mem: Mem) -> &mut Buffer {
        match mem {
            Mem::Payload(tag) => {
                let slot = usize::try_from(tag)
                    .ok()
                    .and_then(|tag| self.slots.get_mut(tag))
                    .and_then(Option::as_mut);
                slot.and_then(|slot| slot.buffer.as_mut())
                    .expect("a request has its payload until it is completed")
            }
            Mem::Scratch(piece) => &mut self.scratch[piece as usize],
            Mem::Cache => &mut self.cache,
            Mem::Nothing => unreachable!("a part without data"),
        }
    }

    pub(super) fn bytes(&self, at: At, len: u32) -> &[u8] {
        &self.buffer(at.mem)[range(at, len)]
    }

    pub(super) fn bytes_mut(&mut self, at: At, len: u32) -> &mut [u8] {
        &mut self.buffer_mut(at.mem)[range(at, len)]
    }

    /// What is kept with the blocks there, of ciphertext.
    pub(super) fn auths(&self, at: At, len: u32) -> &[Auth] {
        self.buffer(at.mem).auths().get(blocks_of(at, len)).unwrap_or_default()
    }

    fn put_auths(&mut self, at: At, auths: &[Auth]) {
        let len = u32::try_from(auths.len()).expect("blocks of a buffer") * BLOCK;
        if let Some(room) = self.buffer_mut(at.mem).auths_mut().get_mut(blocks_of(at, len)) {
            room.copy_from_slice(auths);
        }
    }

    /// What came with the blocks of a part.
    pub(super) fn put_auths_of(&mut self, fragment: Fragment, mem: Mem, scatter: Scatter, auths: &[Auth]) {
        if !auths.is_empty() {
            for ((_, offset), auth) in Memory::blocks(fragment, scatter).zip(auths) {
                self.put_auths(At { mem, offset }, std::slice::from_ref(auth));
            }
        }
    }

    /// What leaves with the blocks of a part.
    pub(super) fn auths_of(&self, fragment: Fragment, mem: Mem, scatter: Scatter) -> Vec<u8> {
        let of = |(_, offset)| self.auths(At { mem, offset }, BLOCK).first().copied().unwrap_or(NONE);
        Memory::blocks(fragment, scatter).flat_map(of).collect()
    }

    /// How many blocks of a part are not what was encrypted there, as far as that is looked at here: of what
    /// goes to a tool whoever decrypts it says so, and asks again for this.
    pub(super) fn forged(&self, fragment: Fragment, mem: Mem, scatter: Scatter) -> u32 {
        let Some(opening) = &self.opening else { return 0 };
        let is_checked = match mem {
            Mem::Payload(_) => self.buffer(mem).is_checked(),
            Mem::Scratch(_) => true,
            Mem::Cache | Mem::Nothing => false,
        };
        if is_checked { self.forged_in(opening, fragment, mem, scatter) } else { 0 }
    }

    fn forged_in(&self, opening: &Opening, fragment: Fragment, mem: Mem, scatter: Scatter) -> u32 {
        let is_forged = |&(block, offset): &(u32, u32)| {
            let at = At { mem, offset };
            let auth = self.auths(at, BLOCK).first().unwrap_or(&NONE);
            !opening.opens(fragment, block * BLOCK, auth, self.bytes(at, BLOCK))
        };
        count(Memory::blocks(fragment, scatter).filter(is_forged))
    }

    /// The checksum of a block.
    fn sum(&self, mem: Mem, offset: u32) -> u32 {
        let at = At { mem, offset };
        let crc = code::crc32c(self.bytes(at, BLOCK));
        self.auths(at, BLOCK).first().map_or(crc, |auth| crc ^ auth::sum(auth))
    }

    pub(super) fn zero(&mut self, at: At, len: u32) {
        self.bytes_mut(at, len).fill(0);
        if let Some(auths) = self.buffer_mut(at.mem).auths_mut().get_mut(blocks_of(at, len)) {
            auths.fill(NONE);
        }
    }

    pub(super) fn is_equal(&self, a: At, b: At, len: u32) -> bool {
        self.bytes(a, len) == self.bytes(b, len) && self.auths(a, len) == self.auths(b, len)
    }

    pub(super) fn copy(&mut self, from: At, to: At, len: u32) {
        if !self.buffer(to.mem).auths().is_empty() {
            let auths = self.auths(from, len).to_vec();
            self.put_auths(to, &auths);
        }
        if from.mem == to.mem {
            let start = to.offset as usize;
            self.buffer_mut(to.mem).copy_within(range(from, len), start);
            return;
        }
        let source: *const [u8] = self.bytes(from, len);
        // SAFETY: a piece of another buffer than the one that is written; nothing frees it meanwhile.
        let source = unsafe { &*source };
        self.bytes_mut(to, len).copy_from_slice(source);
    }

    pub(super) fn combine(&mut self, combine: &Combine) {
        let Combine { len, coefficients, inputs, outputs, add } = combine;
        for (number, output) in outputs.iter().enumerate() {
            let others = inputs.iter().chain(&outputs[..number]);
            let apart = |other: &At| other.mem != output.mem || other.offset.abs_diff(output.offset) >= *len;
            assert!(others.into_iter().all(apart), "outputs overlap nothing");
        }
        let pointers: Vec<*mut [u8]> =
            outputs.iter().map(|at| std::ptr::from_mut(self.bytes_mut(*at, *len))).collect();
        let sources: Vec<*const [u8]> =
            inputs.iter().map(|at| std::ptr::from_ref(self.bytes(*at, *len))).collect();
        // SAFETY: each points into a buffer that lives through this call, and no output overlaps another
        // piece (asserted above), so the exclusive references are exclusive.
        let (sources, mut results): (Vec<&[u8]>, Vec<&mut [u8]>) = unsafe {
            (
                sources.iter().map(|piece| &**piece).collect(),
                pointers.iter().map(|piece| &mut **piece).collect(),
            )
        };
        code::combine(coefficients, &sources, &mut results, *add);
        if outputs.iter().any(|at| !self.buffer(at.mem).auths().is_empty()) {
            self.combine_auths(combine);
        }
    }

    /// Parity has those of its blocks computed like their bytes, so that whoever has no key gives both back.
    fn combine_auths(&mut self, combine: &Combine) {
        let Combine { len, coefficients, inputs, outputs, add } = combine;
        let of = |memory: &Memory, at: &At| memory.auths(*at, *len).to_vec();
        let sources: Vec<Vec<Auth>> = inputs.iter().map(|at| of(self, at)).collect();
        let mut results: Vec<Vec<Auth>> = outputs.iter().map(|at| of(self, at)).collect();
        let sources: Vec<&[u8]> = sources.iter().map(|auths| auths.as_flattened()).collect();
        let mut bytes: Vec<&mut [u8]> = results.iter_mut().map(|auths| auths.as_flattened_mut()).collect();
        code::combine(coefficients, &sources, &mut bytes, *add);
        outputs.iter().zip(results).for_each(|(at, auths)| self.put_auths(*at, &auths));
    }

    /// Whether these bytes are what is known of the fragment; what is not known counts as right.
    pub(super) fn verify(&self, fragment: Fragment, at: At, len: u32) -> bool {
        if fragment.slot >= self.width {
            return true;
        }
        let scatter = Scatter::whole(at.offset, len);
        let forged = |opening| self.forged_in(opening, fragment, at.mem, scatter);
        self.wrong_blocks(fragment, at.mem, scatter, &[]) == 0 && self.opening.as_ref().map_or(0, forged) == 0
    }

    /// Notes what `copies` slots from the fragment's on shall hold; `Nothing` is zeros.
    pub(super) fn learn(&mut self, fragment: Fragment, copies: u32, mem: Mem, scatter: Scatter) {
        if !self.knows(fragment) {
            return;
        }
        for (block, offset) in Memory::blocks(fragment, scatter) {
            let crc = match mem {
                Mem::Nothing => ZERO_BLOCK_CRC,
                mem => self.sum(mem, offset),
            };
            for slot in fragment.slot..fragment.slot + copies {
                self.sums.set(fragment.group, slot, block, crc);
            }
        }
    }

    pub(super) fn forget(&mut self, fragment: Fragment, len: u32) {
        if self.knows(fragment) {
            let (from, to) = (fragment.local / BLOCK, (fragment.local + len).div_ceil(BLOCK));
            self.sums.forget(fragment.group, fragment.slot, from, to);
        }
    }

    fn knows(&self, fragment: Fragment) -> bool {
        (fragment.group as usize) < self.sums.groups()
    }

    /// The blocks of a part, in the order of its extent: number in the extent, offset in its buffer.
    fn blocks(fragment: Fragment, scatter: Scatter) -> impl Iterator<Item = (u32, u32)> {
        debug_assert!(
            fragment.local.is_multiple_of(BLOCK) && scatter.len.is_multiple_of(BLOCK),
            "whole blocks"
        );
        (0..scatter.len / BLOCK).map(move |number| {
            let (offset, left) = scatter.locate(number * BLOCK);
            debug_assert!(left >= BLOCK, "a block is in one piece");
            (fragment.local / BLOCK + number, offset)
        })
    }

    /// For data in one piece.
    pub(super) fn is_zero(&self, mem: Mem, scatter: Scatter) -> bool {
        let bytes = self.bytes(At { mem, offset: scatter.start }, scatter.first.min(scatter.len));
        // Two comparisons that the compiler turns into wide ones: the first byte, and each with its
        // neighbour.
        let auths = self.auths(At { mem, offset: scatter.start }, scatter.first.min(scatter.len));
        auths.iter().all(|auth| *auth == NONE)
            && scatter.first == scatter.len
            && bytes.first() == Some(&0)
            && bytes[1..] == bytes[..bytes.len() - 1]
    }

    /// How many blocks of what was read are not what was written: as this client knows it, and as `sums` say,
    /// which are the donor's.
    pub(super) fn wrong_blocks(&self, fragment: Fragment, mem: Mem, scatter: Scatter, sums: &[u32]) -> u32 {
        let knows = self.knows(fragment);
        if !knows && sums.is_empty() {
            return 0;
        }
        let wrong = |(nth, (block, offset)): &(usize, (u32, u32))| {
            let crc = self.sum(mem, *offset);
            sums.get(*nth).is_some_and(|sum| *sum != crc)
                || knows && self.sums.check(fragment.group, fragment.slot, *block, crc) == Some(false)
        };
        count(Memory::blocks(fragment, scatter).enumerate().filter(wrong))
    }

    /// Whether it is what the volume was sealed as, if it was.
    pub(super) fn prove(&self, fragment: Fragment, mem: Mem, scatter: Scatter) -> Checked {
        let proving = self.proving.as_ref();
        proving.map_or(Checked::Wrong(0), |proving| proving.check(self, fragment, mem, scatter))
    }

    /// It is not known yet.
    pub(super) fn waits(&mut self, donor: DonorId, answer: Answer<Body>, has_sums: bool) {
        if let Some(proving) = &mut self.proving {
            proving.waits(donor, answer, has_sums);
        }
    }

    /// The checksums of what is to be written, in the order of the extent.
    pub(super) fn sums_of(
        &self,
        fragment: Fragment,
        mem: Mem,
        scatter: Scatter,
    ) -> impl Iterator<Item = u32> {
        let knows = self.knows(fragment);
        Memory::blocks(fragment, scatter).map(move |(block, offset)| {
            let known = knows.then(|| self.sums.get(fragment.group, fragment.slot, block)).flatten();
            known.unwrap_or_else(|| self.sum(mem, offset))
        })
    }

    /// How many blocks of what was written a donor has otherwise, as its `sums` say.
    pub(super) fn wrongly_taken(&self, fragment: Fragment, mem: Mem, scatter: Scatter, sums: &[u32]) -> u32 {
        let knows = self.knows(fragment);
        let wrong = |((block, offset), sum): &((u32, u32), &u32)| {
            let known =
                knows.then(|| self.sums.check(fragment.group, fragment.slot, *block, **sum)).flatten();
            let is_right = || self.sum(mem, *offset) == **sum;
            !known.unwrap_or_else(is_right)
        };
        count(Memory::blocks(fragment, scatter).zip(sums).filter(wrong))
    }
}

fn count(blocks: impl Iterator) -> u32 {
    u32::try_from(blocks.count()).expect("blocks of one part")
}

fn blocks_of(at: At, len: u32) -> Range<usize> {
    (at.offset / BLOCK) as usize..(at.offset + len).div_ceil(BLOCK) as usize
}

fn range(at: At, len: u32) -> Range<usize> {
    at.offset as usize..(at.offset + len) as usize
}
