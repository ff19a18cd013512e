//! What a donor does with the bytes of a connection, as `rim::donor` does: requests in order, each checked by
//! `Access` when its header is there, payloads that land as they come, answers in batches.
//!
//! Owns: the donor's end of data connections. Never: decisions, or the protocol (`nbd`). Also checks, where
//! bytes land, that nothing of an older session or lease lands after a newer one was admitted (promise 3).

use crate::bugs::Bug;
use crate::bytes::{BLOCK, Kept, Memory, SECTOR, sectors};
use crate::network::{Stage, ToClient};
use crate::wire::{DonorEnd, Write, cut, entry_in_sectors, in_bytes, wired_len};
use crate::world::World;
use cheetah_core::donor::{DirtyMap, Grant, Ledger, ListedWrite, Ticket, WriteMark};
use cheetah_nbd::server::Run;
use cheetah_nbd::server::transmission::{Payload, Step};
use cheetah_nbd::{Command, Descriptor, Digest, Errno, RequestHeader};
use cheetah_terms::donor::{Asked, entry, lately, permit, presence, rightness, tell_status};

/// A hole of this many sectors is named (`rim::donor`: 32 KiB).
const HOLE_SECTORS_MIN: u64 = 64;

impl World {
    pub(crate) fn requests_arrive(&mut self, d: usize, id: u64, bytes: &[u8]) {
        let goes_direct = self.rng.percent(50);
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        let (Some(grant), Some(mut end)) = (conn.grant, conn.donor_end.take()) else { return };
        let mut bytes = bytes;
        if let (Some(payload), true) = (end.transmission.payload().copied(), goes_direct) {
            let (direct, rest) = bytes.split_at(bytes.len().min(payload.missing()));
            self.payload_lands(d, id, &mut end, &payload.header, payload.at, direct);
            end.transmission.landed(direct.len());
            bytes = rest;
        }
        let mut input = std::mem::take(&mut end.input);
        input.extend_from_slice(bytes);
        let mut rest = &input[..];
        loop {
            match end.transmission.next(&mut rest) {
                Err(violation) => return self.fail(format!("donor {d}: {violation}")),
                Ok(None | Some(Step::End)) => break,
                Ok(Some(Step::Request { header, verdict })) => {
                    self.serve_request(d, id, &mut end, &grant, header, verdict);
                }
                Ok(Some(Step::Payload { at, bytes })) => {
                    if let Some(Payload { header, .. }) = end.transmission.payload().copied() {
                        self.payload_lands(d, id, &mut end, &header, at, bytes);
                    }
                }
                Ok(Some(Step::Whole(header))) => self.finish_write(d, id, &mut end, &grant, &header),
            }
        }
        end.input = rest.to_vec();
        let answers = end.answers();
        if let Some(conn) = self.network.conns.get_mut(&id).filter(|conn| conn.stage == Stage::Serving) {
            conn.donor_end = Some(end);
        }
        if !answers.is_empty() {
            for bytes in cut(&mut self.rng, answers) {
                self.send_to_client(id, ToClient::Bytes(bytes));
            }
        }
    }

    fn serve_request(
        &mut self,
        d: usize,
        id: u64,
        end: &mut DonorEnd,
        grant: &Grant,
        header: RequestHeader,
        verdict: Result<Command, Errno>,
    ) {
        let cookie = header.cookie;
        let (address, len) = (header.offset * SECTOR, u64::from(header.length) * SECTOR);
        let verdict = verdict.and_then(|command| self.disk_takes(d, &header).map(|()| command));
        let checked = verdict.and_then(|_| self.permits(d, grant, &header));
        if header.payload_bytes() > 0 {
            let refused = checked.err();
            let ticket =
                if refused.is_none() { self.begin_write(d, grant, end.mark, address, len) } else { None };
            end.late = (refused.is_none() && self.writes_back(d, grant)).then(Vec::new);
            if refused.is_none() && end.late.is_none() {
                self.donors[d].begin_on_disk(sectors(address), sectors(len));
            }
            end.write = Some(Write { refused, ticket, digest: end.digest.take() });
            return;
        }
        match checked.map(|()| Asked::of(&header)) {
            Err(errno) => end.outbox.error(cookie, errno, ""),
            Ok(Asked::Read) if self.may_be_older(d, grant, &header) => {
                end.outbox.error(cookie, Errno::Io, "")
            }
            Ok(Asked::Flush) => self.flush_to_disk(d, id, end, grant, &header),
            Ok(Asked::Read) => self.read(d, id, end, &header, false),
            Ok(Asked::Status) => self.tell_status(d, end, grant, &header),
            Ok(Asked::Verify) if self.donors[d].disk.is_some() => self.check_on_disk(d, id, &header),
            Ok(Asked::Verify) => self.verify(d, end, &header),
            Ok(Asked::Age) => {
                let donor = &mut self.donors[d];
                donor.dirty.age(donor.access.written_by(grant));
                donor.unnumbered.age(donor.access.written_by(grant));
                end.outbox.done(cookie);
            }
            Ok(Asked::Mark(mark)) => {
                self.donors[d].ledgers.entry(grant.volume).or_default().settle(mark.complete);
                end.mark = Some(mark);
            }
            Ok(Asked::Zero { keep }) => self.zero(d, id, end, grant, &header, keep),
            Ok(Asked::Digest(digest)) => end.digest = Some(digest),
            Ok(Asked::Undo) => self.undo(d, id, end, grant, &header),
            Ok(Asked::Write | Asked::Nothing) => {
                self.fail(format!("donor {d} was asked for {header:?}"));
            }
        }
    }

    /// What is in memory, once all of it is.
    pub(crate) fn read(
        &mut self,
        d: usize,
        id: u64,
        end: &mut DonorEnd,
        header: &RequestHeader,
        again: bool,
    ) {
        if !self.is_in_memory(d, id, header, again) {
            return;
        }
        let (at, count) = (sectors(header.offset * SECTOR), header.length as usize);
        let memory = &self.donors[d].memory;
        end.outbox.contexts(header, memory.sums(at, count).into_iter());
        let run = |(bytes, is_present): (usize, bool)| Run { bytes: bytes as u64, is_present };
        let runs: Vec<Run> = memory.runs(at, count).into_iter().map(run).collect();
        end.outbox.read(header, &runs, HOLE_SECTORS_MIN, |at, run| {
            let place = usize::try_from(at).expect("inside of the memory");
            memory.get(place, usize::try_from(run.bytes).expect("a part"))
        });
    }

    fn zero(
        &mut self,
        d: usize,
        id: u64,
        end: &mut DonorEnd,
        grant: &Grant,
        header: &RequestHeader,
        keep: bool,
    ) {
        let (address, len) = (header.offset * SECTOR, u64::from(header.length) * SECTOR);
        let (at, count) = (sectors(address), sectors(len));
        let ticket = self.begin_write(d, grant, end.mark, address, len);
        if self.writes_back(d, grant) {
            return self.lands(d, id, (end, grant), (header, ticket), (None, None));
        }
        let donor = &mut self.donors[d];
        donor.begin_on_disk(at, count);
        donor.memory.zero(at, count, keep && donor.disk.is_none());
        donor.memory.sign(at, count);
        self.check_fence(d, id);
        if self.donors[d].disk.is_some() {
            return self.goes_to_disk(d, id, header, ticket);
        }
        self.donors[d].landed(grant.volume, ticket);
        end.outbox.done(header.cookie);
    }

    fn permits(&self, d: usize, grant: &Grant, header: &RequestHeader) -> Result<(), Errno> {
        if self.bug == Some(Bug::LeaseNotChecked) {
            return Ok(());
        }
        permit(&self.donors[d].access, grant, &in_bytes(header))
    }

    /// Notes a write before it touches memory.
    fn begin_write(
        &mut self,
        d: usize,
        grant: &Grant,
        mark: Option<WriteMark>,
        address: u64,
        len: u64,
    ) -> Option<Ticket> {
        let short = self.plan.undo_is_short && self.rng.percent(30);
        let donor = &mut self.donors[d];
        donor.dirty.mark(address, len);
        let Some(mark) = mark.filter(|mark| mark.number > 0) else {
            donor.unnumbered.mark(address, len);
            return None;
        };
        // What a disk covered is not kept: it would have to be read first.
        let keeps = mark.keep && !short && donor.disk.is_none();
        let kept = if keeps { donor.memory.keep(sectors(address), sectors(len)) } else { None };
        let unnumbered = &donor.unnumbered;
        let spill = |write: ListedWrite| unnumbered.mark(write.from, write.to - write.from);
        Some(donor.ledgers.entry(grant.volume).or_default().begin(mark, address, len, kept, spill))
    }

    /// Puts back what the write of the last mark covered.
    fn undo(&mut self, d: usize, id: u64, end: &mut DonorEnd, grant: &Grant, header: &RequestHeader) {
        let (address, len) = (header.offset * SECTOR, u64::from(header.length) * SECTOR);
        let donor = &mut self.donors[d];
        let number = end.mark.map_or(0, |mark| mark.number);
        if number == 0 && donor.disk.is_some() {
            self.adopt(d, address, len);
            return end.outbox.done(header.cookie);
        }
        let ledger = donor.ledgers.entry(grant.volume).or_default();
        let Some(pieces) = ledger.undo(number, address, address + len) else {
            return end.outbox.error(header.cookie, Errno::NotSup, "");
        };
        donor.dirty.mark(address, len);
        if self.bug != Some(Bug::UndoForgotten) {
            pieces.iter().for_each(|(at, kept)| donor.memory.put_back(sectors(*at), kept));
        }
        end.outbox.done(header.cookie);
        self.count("writes undone");
        self.check_fence(d, id);
    }

    fn tell_status(&mut self, d: usize, end: &mut DonorEnd, grant: &Grant, header: &RequestHeader) {
        let (address, len) = (header.offset * SECTOR, u64::from(header.length) * SECTOR);
        let mut holes = holes(&self.donors[d].memory, sectors(address), sectors(len));
        if self.rng.percent(20) {
            holes.truncate(1 + self.rng.index(holes.len()));
        }
        let stale = self.donors[d].stale_in(address, len);
        let donor = &mut self.donors[d];
        // Who numbers writes is told of those that are not.
        let (ledger, marks) = match end.mark {
            Some(_) => (Some(&*donor.ledgers.entry(grant.volume).or_default()), &donor.unnumbered),
            None => (None, &donor.dirty),
        };
        let listed = || {
            let entries = |ledger: &Ledger<Kept>| {
                let all = stale.into_iter().chain(ledger.within(address, len));
                all.map(entry).map(entry_in_sectors).collect()
            };
            ledger.map(|ledger| (ledger.complete(), entries(ledger)))
        };
        let (session, dirty) = (end.transmission.session(), || written(marks, address, len));
        tell_status(&mut end.outbox, session, header, || holes, listed, dirty);
    }

    fn verify(&mut self, d: usize, end: &mut DonorEnd, header: &RequestHeader) {
        let at = sectors(header.offset * SECTOR);
        let right = self.donors[d].memory.verify(at, header.length as usize);
        self.tell_rightness(d, end, header, right);
    }

    /// Blocks that others are writing at this moment count as right.
    pub(crate) fn tell_rightness(
        &mut self,
        d: usize,
        end: &mut DonorEnd,
        header: &RequestHeader,
        right: Vec<bool>,
    ) {
        let Some(context) = end.transmission.session().context else { return };
        let place = |sectors: u64| usize::try_from(sectors).expect("inside of the memory");
        let writes = |payload: &Payload| {
            let from = place(payload.header.offset);
            from..from + payload.header.length as usize
        };
        let of_donor = self.network.conns.values().filter(|conn| conn.donor == Some(d));
        let ends = of_donor.filter_map(|conn| conn.donor_end.as_ref());
        let written: Vec<_> = ends.filter_map(|end| end.transmission.payload()).map(writes).collect();
        let runs = (place(header.offset)..).step_by(BLOCK).zip(right).map(|(block, is_right)| {
            let is_written = written.iter().any(|range| range.start < block + BLOCK && block < range.end);
            Descriptor { length: BLOCK as u32, flags: rightness(is_right || is_written) }
        });
        end.outbox.status(header, true, context, &runs.collect::<Vec<_>>());
    }

    fn finish_write(&mut self, d: usize, id: u64, end: &mut DonorEnd, grant: &Grant, header: &RequestHeader) {
        let cookie = header.cookie;
        let Some(Write { refused, ticket, digest }) = end.write.take() else {
            return self.fail(format!("donor {d} has the end of a write that it did not begin"));
        };
        match refused {
            Some(errno) => end.outbox.error(cookie, errno, ""),
            None if let Some(bytes) = end.late.take() => {
                self.lands(d, id, (end, grant), (header, ticket), (Some(bytes), digest));
            }
            None => {
                let (at, count) = (sectors(header.offset * SECTOR), header.length as usize);
                let donor = &mut self.donors[d];
                donor.memory.sign(at, count);
                let has = Digest::of_blocks((at / BLOCK) as u64, donor.memory.sums(at, count));
                let ignored = self.bug == Some(Bug::DigestIgnored);
                if digest.is_some_and(|digest| digest.sums != has && !ignored) {
                    donor.memory.disown(at, count);
                    self.note_disowned(d, grant.volume, at..at + count);
                } else if donor.disk.is_some() {
                    return self.goes_to_disk(d, id, header, ticket);
                } else {
                    donor.landed(grant.volume, ticket);
                    self.arrived_well(d, at..at + count);
                }
                // Its client sends again what has none that fit: each write of those that came as one.
                end.outbox.done_with(cookie, self.donors[d].memory.sums(at, count).into_iter());
                self.donors[d].cut_on_disk(at, count);
            }
        }
    }

    /// Bytes of a write's payload, from `at` on, reach the memory unless it was refused.
    fn payload_lands(
        &mut self,
        d: usize,
        id: u64,
        end: &mut DonorEnd,
        header: &RequestHeader,
        at: usize,
        bytes: &[u8],
    ) {
        if bytes.is_empty() || end.write.is_some_and(|write| write.refused.is_some()) {
            return;
        }
        if let Some(late) = &mut end.late {
            return late.extend_from_slice(bytes);
        }
        let from = usize::try_from(header.offset).expect("inside of the memory") + at;
        self.donors[d].memory.write(from, bytes);
        self.check_fence(d, id);
    }

    /// Promise 3, and what sessions are for: whoever writes is the newest that was let in.
    pub(crate) fn check_fence(&mut self, d: usize, id: u64) {
        let Some(grant) = self.network.conns.get(&id).and_then(|conn| conn.grant) else { return };
        let donor = &self.donors[d];
        let newest = donor.sessions.get(&grant.token).copied().unwrap_or(0);
        let writer = donor.writers.get(&grant.volume).and_then(|writers| writers.last()).copied();
        if newest != grant.session {
            self.fail(format!(
                "donor {d} carried out a write of session {} of lease {} after it admitted session {newest}",
                grant.session, grant.token
            ));
        } else if writer != Some(grant.token) {
            self.fail(format!(
                "donor {d} carried out a write of lease {} after it admitted the writer {writer:?}",
                grant.token
            ));
        }
    }
}

fn holes(memory: &Memory, at: usize, count: usize) -> Vec<Descriptor> {
    let run = |(len, present): (usize, bool)| Descriptor {
        length: u32::try_from(len).expect("a part"),
        flags: presence(present),
    };
    memory.runs(at, count).into_iter().map(run).collect()
}

fn written(marks: &DirtyMap, address: u64, len: u64) -> Vec<Descriptor> {
    let mut runs = Vec::new();
    marks.runs(address, len, |len, dirty| {
        runs.push(Descriptor { length: wired_len(len), flags: lately(dirty) });
    });
    runs
}
