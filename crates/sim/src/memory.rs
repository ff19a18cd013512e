//! A client's own memory: payloads of requests, scratch pieces, and what is on its way to or from them.
//!
//! Owns: carrying out what the volume machine says to compute, copy, compare, learn and forget, and the check
//! that nothing touches memory that a donor still reads or fills. Never: decisions. Key rule: what is sent is
//! what the memory held when it was sent, and an answer lands where its part said, or nowhere once it is not
//! wanted.

use crate::bytes::{BLOCK, SECTOR, Sums, sectors, sum};
use crate::network::Awaited;
use crate::oracle::POISON;
use cheetah_core::code;
use cheetah_core::layout::Scatter;
use cheetah_core::volume::{At, Combine, Fragment, Mem, PartOp, Tag, Volume};
use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct ClientMemory {
    pub(crate) payloads: BTreeMap<Tag, Vec<u8>>,
    scratch: Vec<Vec<u8>>,
    cache: Vec<u8>,
    pub(crate) sums: Sums,
    /// Parts on their way that have memory, by number.
    busy: BTreeMap<u64, Awaited>,
}

fn overlap(scatter: Scatter, from: u32, to: u32) -> bool {
    scatter.pieces().any(|(start, len)| start < to && from < start + len)
}

impl ClientMemory {
    pub(crate) fn new(sums: Sums, cache_bytes: u32) -> ClientMemory {
        let scratch = Volume::scratch_sizes().map(|size| vec![POISON; sectors(size.into())]).collect();
        let cache = vec![POISON; sectors(cache_bytes.into())];
        ClientMemory { payloads: BTreeMap::new(), scratch, cache, sums, busy: BTreeMap::new() }
    }

    fn of(&self, mem: Mem) -> Result<&[u8], String> {
        match mem {
            Mem::Payload(tag) => {
                self.payloads.get(&tag).map(Vec::as_slice).ok_or(format!("request {tag} has no payload"))
            }
            Mem::Scratch(piece) => Ok(&self.scratch[piece as usize]),
            Mem::Cache => Ok(&self.cache),
            Mem::Nothing => Err("a part without data was to have some".into()),
        }
    }

    fn of_mut(&mut self, mem: Mem) -> Result<&mut [u8], String> {
        match mem {
            Mem::Payload(tag) => self
                .payloads
                .get_mut(&tag)
                .map(Vec::as_mut_slice)
                .ok_or(format!("request {tag} has no payload")),
            Mem::Scratch(piece) => Ok(&mut self.scratch[piece as usize]),
            Mem::Cache => Ok(&mut self.cache),
            Mem::Nothing => Err("a part without data was to have some".into()),
        }
    }

    /// Memory that is read must not be on its way in; memory that is changed not on its way at all.
    fn check_free(&self, mem: Mem, from: u32, to: u32, changes: bool) -> Result<(), String> {
        let clash = self.busy.iter().find(|(_, part)| {
            part.mem == mem && (changes || part.op == PartOp::Read) && overlap(part.scatter, from, to)
        });
        match clash {
            None => Ok(()),
            Some((key, part)) => {
                Err(format!("{mem:?} {from}..{to} is used while part {key} ({:?}) has it", part.op))
            }
        }
    }

    fn get(&self, at: At, len: u32) -> Result<Vec<u8>, String> {
        self.check_free(at.mem, at.offset, at.offset + len, false)?;
        let (from, count) = (sectors(at.offset.into()), sectors(len.into()));
        let memory = self.of(at.mem)?;
        memory
            .get(from..from + count)
            .map(<[u8]>::to_vec)
            .ok_or(format!("{at:?} and {len} is beyond its end"))
    }

    fn put(&mut self, at: At, bytes: &[u8]) -> Result<(), String> {
        let len = u32::try_from(bytes.len() as u64 * SECTOR).expect("a piece");
        self.check_free(at.mem, at.offset, at.offset + len, true)?;
        let from = sectors(at.offset.into());
        let place = self.of_mut(at.mem)?.get_mut(from..from + bytes.len());
        place.ok_or(format!("{at:?} and {len} is beyond its end"))?.copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn combine(&mut self, combine: &Combine) -> Result<(), String> {
        let Combine { len, coefficients, inputs, outputs, add } = combine;
        let inputs: Vec<Vec<u8>> = inputs.iter().map(|at| self.get(*at, *len)).collect::<Result<_, _>>()?;
        let mut results: Vec<Vec<u8>> =
            outputs.iter().map(|at| self.get(*at, *len)).collect::<Result<_, _>>()?;
        let from: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut to: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
        code::combine(coefficients, &from, &mut to, *add);
        outputs.iter().zip(&results).try_for_each(|(at, bytes)| self.put(*at, bytes))
    }

    pub(crate) fn copy(&mut self, from: At, to: At, len: u32) -> Result<(), String> {
        let bytes = self.get(from, len)?;
        self.put(to, &bytes)
    }

    pub(crate) fn zero(&mut self, at: At, len: u32) -> Result<(), String> {
        self.put(at, &vec![0; sectors(len.into())])
    }

    pub(crate) fn verify(&self, fragment: Fragment, at: At, len: u32) -> Result<bool, String> {
        let bytes = self.get(at, len)?;
        Ok(self.sums.wrong(fragment.group, fragment.slot, sectors(fragment.local.into()), &bytes, &[]) == 0)
    }

    pub(crate) fn compare(&self, a: At, b: At, len: u32) -> Result<bool, String> {
        Ok(self.get(a, len)? == self.get(b, len)?)
    }

    /// Notes what a fragment, and so many slots from it on, shall hold. `Nothing` is zeros.
    pub(crate) fn learn(
        &mut self,
        fragment: Fragment,
        copies: u32,
        mem: Mem,
        scatter: Scatter,
    ) -> Result<(), String> {
        let mut bytes = Vec::with_capacity(sectors(scatter.len.into()));
        match mem {
            Mem::Nothing => bytes.resize(sectors(scatter.len.into()), 0),
            _ => {
                for (offset, len) in scatter.pieces() {
                    bytes.extend(self.get(At { mem, offset }, len)?);
                }
            }
        }
        let mut slots = fragment.slot..fragment.slot + copies;
        slots.try_for_each(|slot| self.note(Fragment { slot, ..fragment }, &bytes))
    }

    fn note(&mut self, fragment: Fragment, bytes: &[u8]) -> Result<(), String> {
        let at = sectors(fragment.local.into());
        if !at.is_multiple_of(BLOCK) || !bytes.len().is_multiple_of(BLOCK) {
            return Err(format!("{fragment:?} and {} sectors are not whole blocks", bytes.len()));
        }
        self.sums.note(fragment.group, fragment.slot, at, bytes);
        Ok(())
    }

    pub(crate) fn forget(&mut self, fragment: Fragment, len: u32) {
        let at = sectors(fragment.local.into());
        self.sums.forget(fragment.group, fragment.slot, at, sectors(len.into()));
    }

    /// The part goes on its way; the bytes that go with it.
    pub(crate) fn begin_part(&mut self, key: u64, part: Awaited) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        match part.op {
            PartOp::Write | PartOp::Sparse => {
                for (offset, len) in part.scatter.pieces() {
                    bytes.extend(self.get(At { mem: part.mem, offset }, len)?);
                }
            }
            PartOp::Read => {
                for (offset, len) in part.scatter.pieces() {
                    self.check_free(part.mem, offset, offset + len, true)?;
                }
            }
            _ => {}
        }
        if part.mem != Mem::Nothing {
            self.busy.insert(key, part);
        }
        Ok(bytes)
    }

    /// Whether a write to some of these bytes of a slot is on its way.
    pub(crate) fn is_writing(&self, group: usize, slot: usize, from: u64, len: u64) -> bool {
        self.busy.values().filter(|part| part.op.writes()).any(|part| {
            let Fragment { group: of, slot: to, local } = part.fragment;
            let (begin, end) = (u64::from(local), u64::from(local) + u64::from(part.scatter.len));
            (of as usize, to as usize) == (group, slot) && begin < from + len && from < end
        })
    }

    /// The part is answered, or its memory must not be touched any more.
    pub(crate) fn end_part(&mut self, key: u64) {
        self.busy.remove(&key);
    }

    /// The answer to a read is not wanted any more. A write's memory may be sent from until it is answered.
    pub(crate) fn abandon_part(&mut self, key: u64) -> Result<(), String> {
        match self.busy.remove(&key) {
            Some(part) if part.op.writes() => Err(format!("part {key} is given up, a {:?}", part.op)),
            _ => Ok(()),
        }
    }

    /// Bytes of the answer to a read land, from sector `at` of the part on.
    pub(crate) fn land(&mut self, key: u64, part: &Awaited, at: usize, bytes: &[u8]) -> Result<(), String> {
        let Some(busy) = self.busy.remove(&key) else {
            return Err(format!("part {key} lands where nobody waits for it"));
        };
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let start = u32::try_from(at as u64 * SECTOR).expect("inside of a part");
            let (offset, len) = part.scatter.locate(start);
            let (here, behind) = rest.split_at(rest.len().min(sectors(len.into())));
            self.put(At { mem: part.mem, offset }, here)?;
            (at, rest) = (at + here.len(), behind);
        }
        self.busy.insert(key, busy);
        Ok(())
    }

    /// How many blocks of a read that is answered are wrong, as this client knows or `sums` say.
    pub(crate) fn wrong_blocks(&self, part: &Awaited, sums: &[u32]) -> Result<u32, String> {
        let bytes = self.bytes_of(part)?;
        let Fragment { group, slot, local } = part.fragment;
        let at = sectors(local.into());
        if !at.is_multiple_of(BLOCK) || !bytes.len().is_multiple_of(BLOCK) {
            return Err(format!(
                "{:?} reads {} sectors, which are not whole blocks",
                part.fragment,
                bytes.len()
            ));
        }
        Ok(self.sums.wrong(group, slot, at, &bytes, sums))
    }

    /// How many blocks a donor has otherwise than they were sent.
    pub(crate) fn wrongly_taken(&self, part: &Awaited, sums: &[u32]) -> Result<u32, String> {
        let bytes = self.bytes_of(part)?;
        let wrong = bytes.chunks(BLOCK).zip(sums).filter(|(block, has)| sum(block) != **has);
        Ok(u32::try_from(wrong.count()).expect("blocks of a part"))
    }

    fn bytes_of(&self, part: &Awaited) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::with_capacity(sectors(part.scatter.len.into()));
        for (offset, len) in part.scatter.pieces() {
            bytes.extend(self.get(At { mem: part.mem, offset }, len)?);
        }
        Ok(bytes)
    }

    /// The request is answered, and its memory is the front end's again.
    pub(crate) fn end_request(&mut self, tag: Tag) -> Result<Option<Vec<u8>>, String> {
        match self.busy.iter().find(|(_, part)| part.mem == Mem::Payload(tag)) {
            None => Ok(self.payloads.remove(&tag)),
            Some((key, part)) => {
                Err(format!("request {tag} is answered while part {key} ({:?}) has its payload", part.op))
            }
        }
    }
}
