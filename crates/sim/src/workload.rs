//! What an attached tool does, and the judgement of every answer it gets.
//!
//! Owns: the requests (sizes, places, kinds) and the rules for their completion: once, by the deadline, right
//! bytes, and an error only where `verdict` excuses one. Never: faults.

use crate::bugs::Bug;
use crate::bytes::{SECTOR, sectors};
use crate::client::{Phase, ReadStream, Slot, Tick};
use crate::oracle::{POISON, written};
use crate::redundancy::is_degraded;
use crate::together::REMEMBERED_NS;
use crate::verdict::{groups_of, holders, is_short};
use crate::world::{ClientEv, Ev, World, say};
use cheetah_core::limits::{AHEAD_KEEP_NS, BLOCK_BYTES, EXTENT_BYTES, REQUEST_DEADLINE_NS};
use cheetah_core::map::{DonorId, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::{Event, Op, Request, StatusRun, VolumeError};
use std::collections::BTreeSet;

/// The whole rows that a request touches.
pub(crate) fn rows_of(map: &VolumeMap, request: Request) -> std::ops::Range<u64> {
    let row = u64::from(map.redundancy.data) * u64::from(map.unit);
    let end = request.offset + u64::from(request.len);
    request.offset / row * row..end.next_multiple_of(row)
}

/// The donors that have the groups of a request, or are being given them.
fn placed(map: &VolumeMap, request: Request) -> BTreeSet<DonorId> {
    let groups = &map.groups[groups_of(map, request.offset, request.len.into())];
    groups.iter().flat_map(|group| group.placements()).map(|placement| placement.donor).collect()
}

impl World {
    pub(crate) fn app_tick(&mut self, c: usize) {
        if self.clients[c].phase != Phase::Attached || self.director.healing {
            return;
        }
        let in_order = self.rng.percent(self.plan.streams) && self.has_rows(c);
        let reads_on = !in_order && self.rng.percent(self.plan.read_streams);
        let burst = if in_order || reads_on { self.rng.range(2, 16) } else { self.rng.skewed(1, 8) };
        for _ in 0..burst {
            if self.clients[c].slots.len() < self.plan.depth_max {
                let request = match (in_order, reads_on) {
                    (true, _) => self.next_in_order(c),
                    (_, true) => self.read_on(c),
                    _ => self.pick_request(c),
                };
                if request.op.writes() && !self.clients[c].read_only {
                    self.note_tool_writes(c);
                }
                self.submit(c, request);
            }
        }
        let gap = self.rng.around(self.plan.request_gap_ns);
        self.after(gap, Ev::Client(c, ClientEv::Tick(Tick::App)));
    }

    pub(crate) fn pick_request(&mut self, c: usize) -> Request {
        let Some(machine) = &self.clients[c].machine else { unreachable!("ticks have a machine") };
        let (size, unit) = (machine.map().size, u64::from(machine.map().unit));
        let writes = if self.clients[c].read_only { 5 } else { self.plan.writes };
        let op = if self.rng.percent(writes) {
            match self.rng.below(10) {
                0 => Op::Zero { keep: self.rng.percent(50) },
                1 => Op::Trim,
                _ => Op::Write,
            }
        } else {
            match self.rng.below(12) {
                0 => Op::Status,
                1 => Op::Flush,
                2 if self.rng.percent(20) => Op::Cache,
                _ => Op::Read,
            }
        };
        let grain = if self.rng.percent(50) { 4096 } else { SECTOR };
        // Where requests meet: a few hot places, the edges of extents and of the volume, or anywhere.
        let aimed = self.aim_at_rot(c);
        let around = match self.rng.below(6) {
            _ if aimed.is_some() => aimed.unwrap_or_default(),
            0 => self.rng.below(size),
            1 => size,
            2 => self.rng.below(size / EXTENT_BYTES + 1) * EXTENT_BYTES,
            _ => self.rng.below(4) * unit * 2 + self.rng.below(4) * EXTENT_BYTES,
        };
        let most = if matches!(op, Op::Trim | Op::Zero { .. } | Op::Status) && self.rng.percent(10) {
            3 * EXTENT_BYTES
        } else {
            self.plan.length_max
        };
        let mut len = self.rng.skewed(1, most).min(size);
        let mut offset = around.saturating_sub(self.rng.below(len + 1)).min(size - len);
        offset -= offset % grain;
        len = len.next_multiple_of(grain).min(size - offset);
        Request { op, offset, len: u32::try_from(len).expect("below 4 GiB") }
    }

    fn has_rows(&self, c: usize) -> bool {
        let redundancy = self.clients[c].machine.as_ref().map(|machine| machine.map().redundancy);
        redundancy.is_some_and(|redundancy| redundancy.data > 1 && redundancy.parity > 0)
    }

    /// Writes that follow one another and meet in rows.
    fn next_in_order(&mut self, c: usize) -> Request {
        let Some(machine) = &self.clients[c].machine else { unreachable!("ticks have a machine") };
        let (size, row) = (machine.map().size, u64::from(machine.map().redundancy.data * machine.map().unit));
        let most = row.min(self.plan.length_max) / self.rng.range(1, 4);
        let offset = self.clients[c].stream % size;
        let len = self.rng.range(1, most.max(1)).next_multiple_of(SECTOR).min(size - offset);
        self.clients[c].stream = offset + len;
        Request { op: Op::Write, offset, len: u32::try_from(len).expect("at most a row") }
    }

    /// Reads that follow one another, until another place and way is taken.
    fn read_on(&mut self, c: usize) -> Request {
        let Some(machine) = &self.clients[c].machine else { unreachable!("ticks have a machine") };
        let size = machine.map().size;
        let anew = self.rng.percent(5);
        let ReadStream { mut next, mut stride, mut len } = self.clients[c].reading;
        if anew || len == 0 || next >= size {
            let grain = if self.rng.percent(70) { BLOCK_BYTES } else { SECTOR };
            len = self.rng.skewed(1, self.plan.length_max.min(256 << 10)).next_multiple_of(grain);
            next = self.rng.below(size) / grain * grain;
            let way = i64::try_from(len).expect("small");
            stride = match self.rng.below(5) {
                0 | 1 => way,
                2 | 3 => -way,
                _ => 5 * way,
            };
        }
        let request =
            Request { op: Op::Read, offset: next, len: u32::try_from(len.min(size - next)).expect("small") };
        // Below the beginning of the volume the next one is anew.
        next = next.checked_add_signed(stride).unwrap_or(u64::MAX);
        self.clients[c].reading = ReadStream { next, stride, len };
        request
    }

    pub(crate) fn submit(&mut self, c: usize, request: Request) {
        let order = self.order();
        // What a reader has read ahead may be as old as this.
        let since = self.order_since(self.now.saturating_sub(AHEAD_KEEP_NS));
        let client = &mut self.clients[c];
        let (Some(machine), Some(volume)) = (&client.machine, client.volume) else { return };
        if !machine.has_room() {
            return;
        }
        let down = machine.lost().map(|(donor, _)| donor).collect();
        let degraded = is_degraded(machine.map(), |_| false);
        let asked = placed(machine.map(), request);
        let tag = client.next_tag;
        client.next_tag += 1;
        if machine.map().write_back {
            self.oracle.flushed(volume, 0);
        }
        let len = u64::from(request.len);
        let (writes, loads) = (request.op.writes() && !client.read_only, client.load.is_some());
        let reads = matches!(request.op, Op::Read | Op::Status);
        let zeros = request.op != Op::Write;
        let version = writes.then(|| self.oracle.begin_write(order, volume, request.offset, len, zeros));
        self.oracle.forget_before(since);
        if let Some(version) = version.filter(|_| loads) {
            self.contents.wrote(volume, version);
        }
        let before = (client.read_only && request.op == Op::Read).then_some(since);
        let reading = reads.then(|| self.oracle.begin_read(volume, request.offset, len, before));
        let deadline = self.now + REQUEST_DEADLINE_NS;
        let submitted = self.now;
        let slot = Slot { request, submitted, order, deadline, version, reading, degraded, asked, down };
        let client = &mut self.clients[c];
        client.slots.insert(tag, slot);
        let payload = match (request.op, version) {
            (Op::Write, Some(version)) => Some(written(version, request.offset, request.offset + len)),
            (Op::Read, _) => Some(vec![POISON; sectors(len)]),
            _ => None,
        };
        client.memory.payloads.extend(payload.map(|payload| (tag, payload)));
        self.stats.requests += 1;
        say!(
            self,
            "client {c} request {tag}: {request:?} {}",
            version.map_or(String::new(), |v| format!("write {v}"))
        );
        self.step_client(c, Event::Submit { tag, request });
    }

    pub(crate) fn completed(
        &mut self,
        c: usize,
        tag: u64,
        mut result: Result<(), VolumeError>,
        status: &[StatusRun],
    ) {
        let order = self.order();
        say!(self, "client {c} request {tag} ends: {result:?} {status:?}");
        self.fold(tag);
        self.fold(result.map_or_else(|error| 1 + error as u64, |()| 0));
        let Some(slot) = self.clients[c].slots.remove(&tag) else {
            return self.fail(format!("request {tag} of client {c} was completed twice"));
        };
        let mut payload = match self.clients[c].memory.end_request(tag) {
            Ok(payload) => payload.unwrap_or_default(),
            Err(what) => return self.fail(format!("client {c}: {what}")),
        };
        if self.now > slot.deadline {
            let late = self.now - slot.deadline;
            self.fail(format!("request {tag} of client {c} was answered {late} ns after its deadline"));
        }
        if self.bug == Some(Bug::ZerosForLost)
            && slot.reading.is_some()
            && result == Err(VolumeError::DonorLost)
        {
            payload.fill(0);
            result = Ok(());
        }
        if slot.version.is_some() {
            let wrote = &mut self.clients[c].wrote;
            let old = self.now.saturating_sub(REMEMBERED_NS);
            wrote.extend([(self.now, slot.request.offset, u64::from(slot.request.len))]);
            while wrote.front().is_some_and(|(at, ..)| *at < old) {
                wrote.pop_front();
            }
        }
        if let Some(version) = slot.version {
            self.oracle.end_write(order, version, result.is_ok());
            if result.is_err() {
                self.verdict.torn.extend(self.clients[c].volume);
                self.note_half_written(c, &slot);
            }
        }
        let judged = match result {
            Ok(()) => self.judge_success(c, &slot, &payload, status),
            Err(error) => self.judge_failure(c, &slot, error),
        };
        slot.reading.into_iter().for_each(|read| self.oracle.forget_read(read));
        self.load_completed(c, &slot, result);
        if let Err(what) = judged {
            let bytes = slot.request.offset..slot.request.offset + u64::from(slot.request.len);
            let volume = self.clients[c].volume;
            let story = volume.map_or(String::new(), |volume| self.wounds.tell(volume, bytes));
            self.fail(format!("client {c}, request {tag} {:?}: {what}{story}", slot.request));
        }
        self.close_when_idle(c);
    }

    /// The donors whose memory the request is about, and its length as far as it was answered.
    fn concerned(&self, c: usize, slot: &Slot, status: &[StatusRun]) -> BTreeSet<DonorId> {
        let Some(machine) = &self.clients[c].machine else { return BTreeSet::new() };
        let len = match slot.request.op {
            Op::Status => status.iter().map(|run| u64::from(run.len)).sum(),
            Op::Flush | Op::Cache => 0,
            _ => u64::from(slot.request.len),
        };
        holders(machine.map(), slot.request.offset, len)
    }

    fn is_redundant(&self, c: usize) -> bool {
        self.clients[c].machine.as_ref().is_some_and(|machine| machine.map().redundancy.parity > 0)
    }

    fn judge_success(
        &mut self,
        c: usize,
        slot: &Slot,
        payload: &[u8],
        status: &[StatusRun],
    ) -> Result<(), String> {
        let request = slot.request;
        let concerned = self.concerned(c, slot, status);
        let redundant = self.is_redundant(c);
        let cached = request.op == Op::Read && self.plan.caching.bytes > 0;
        let marked = request.op == Op::Status && self.meets_unreadable(c, slot);
        // Others have what it had, or it was read before, or its source could not give it.
        let is_excused = redundant || cached || marked;
        let gone = concerned.iter().find(|donor| self.verdict.died_before(**donor, slot.order));
        if let Some(donor) = gone.filter(|_| !is_excused) {
            return Err(format!("succeeded though donor {donor}, which holds a part of it, was gone before"));
        }
        if self.clients[c].read_only && request.op.writes() {
            return Err("a write of a read-only attachment succeeded".into());
        }
        self.judge_lease(c, slot, &concerned)?;
        match request.op {
            Op::Read => self.judge_read(c, slot, payload)?,
            Op::Status => self.judge_status(c, slot, status)?,
            Op::Flush => {
                self.count("flushes");
                self.note_flushed(c, slot.order);
                let unflushed = std::mem::take(&mut self.clients[c].unflushed);
                let lost =
                    |donor: &&DonorId| self.verdict.dead.contains_key(donor) && slot.down.contains(donor);
                if let Some(donor) = unflushed.iter().find(lost).filter(|_| !redundant) {
                    return Err(format!("a flush hid the loss of donor {donor}, which had writes"));
                }
            }
            Op::Cache | Op::Presence => {}
            Op::Write | Op::Zero { .. } | Op::Trim => {
                self.count("writes acknowledged");
                self.forget_rotted(c, request);
                if let Some(volume) = self.clients[c].volume {
                    let end = request.offset + u64::from(request.len);
                    self.wounds.rewritten(volume, request.offset..end);
                    self.forget_torn(volume, request.offset..end);
                }
                self.clients[c].unflushed.extend(concerned);
                self.check_holders(c, slot)?;
            }
        }
        Ok(())
    }

    /// Promise 3, as the client sees it.
    fn judge_lease(&self, c: usize, slot: &Slot, concerned: &BTreeSet<DonorId>) -> Result<(), String> {
        let Some(token) = self.clients[c].token.filter(|_| slot.request.op.writes()) else { return Ok(()) };
        let Some((since, unconfirmed)) = self.verdict.superseded.get(&token) else { return Ok(()) };
        if slot.order > *since && concerned.iter().any(|donor| !unconfirmed.contains(donor)) {
            return Err("a write was acknowledged after another writer was confirmed".into());
        }
        Ok(())
    }

    fn judge_read(&mut self, c: usize, slot: &Slot, payload: &[u8]) -> Result<(), String> {
        self.count("reads checked");
        self.judge_readable(c, slot)?;
        let order = self.order();
        // Of what a reader sees something newer may have been there a moment before.
        let settles = !self.is_redundant(c) && !self.clients[c].read_only;
        let old = self.reads_old(c, slot.submitted);
        let brought = [(slot.request.offset, payload)];
        slot.reading.map_or(Ok(()), |read| self.oracle.end_read(order, read, &brought, settles, old))
    }

    /// A reader beside a writer learns of an excluded donor, or of one that gave its part to another, after
    /// the writer did; until then it may still ask it. So may a writer that has not heard that another took
    /// over.
    fn reads_old(&mut self, c: usize, since: Time) -> bool {
        let client = &self.clients[c];
        let (Some(machine), Some(volume)) = (&client.machine, client.volume) else { return false };
        let stored = self.stored_map(volume).map_or(0, |map| map.epoch);
        let reader = client.read_only || client.token.is_some_and(|t| self.verdict.lease_ended.contains(&t));
        let old = reader && (machine.map().epoch < stored || client.map_since >= since);
        if old {
            self.count("reads of a reader that has not heard of the newest map");
        }
        old
    }

    /// What it calls a hole has to be zeros; what it calls data may be anything.
    fn judge_status(&mut self, c: usize, slot: &Slot, status: &[StatusRun]) -> Result<(), String> {
        let total: u64 = status.iter().map(|run| u64::from(run.len)).sum();
        if total > u64::from(slot.request.len) || (total == 0 && slot.request.len > 0) {
            return Err(format!("a status of {total} bytes"));
        }
        let (mut at, mut holes) = (slot.request.offset, Vec::new());
        for run in status {
            let end = at + u64::from(run.len);
            if run.hole {
                holes.push((at, vec![0; sectors(end - at)]));
            }
            at = end;
        }
        let holes: Vec<(u64, &[u8])> = holes.iter().map(|(at, zeros)| (*at, zeros.as_slice())).collect();
        let order = self.order();
        let (settles, old) = (!self.is_redundant(c), self.reads_old(c, slot.submitted));
        slot.reading.map_or(Ok(()), |read| self.oracle.end_read(order, read, &holes, settles, old))
    }

    fn judge_failure(&mut self, c: usize, slot: &Slot, error: VolumeError) -> Result<(), String> {
        self.look_at_rot();
        if error == VolumeError::Unreadable {
            return self.judge_unreadable(c, slot);
        }
        let request = slot.request;
        let client = &self.clients[c];
        if client.read_only && request.op.writes() {
            self.count("write attempts of a read-only attachment");
            return if error == VolumeError::ReadOnly {
                Ok(())
            } else {
                Err(format!("failed with {error:?}"))
            };
        }
        if request.op == Op::Flush {
            // Reported once, whatever the cause.
            self.clients[c].unflushed.clear();
        }
        let client = &self.clients[c];
        let ended = client.token.is_some_and(|token| self.verdict.lease_ended.contains(&token));
        if ended {
            if client.token.is_some_and(|token| self.verdict.superseded.contains_key(&token)) {
                self.count("writes of a former writer refused");
            }
            return Ok(());
        }
        if matches!(error, VolumeError::DonorLost | VolumeError::Corrupt)
            && self.needs_torn(c, slot.request, slot.submitted)
        {
            self.count("errors of blocks that were torn");
            return Ok(());
        }
        match self.is_redundant(c) {
            true => self.judge_failure_of_redundant(c, slot, error),
            false => self.judge_failure_of_bare(c, slot, error),
        }
    }

    /// Without redundancy a request fails when a donor that it needs is out of reach.
    fn judge_failure_of_bare(&mut self, c: usize, slot: &Slot, error: VolumeError) -> Result<(), String> {
        let (client, request, since) = (&self.clients[c], slot.request, slot.submitted);
        let size = client.machine.as_ref().map_or(0, |machine| machine.map().size);
        // At one that is slow the last of a long queue is late, and it is set aside.
        let queues = matches!(error, VolumeError::TimedOut | VolumeError::DonorLost);
        let excused = |donor: &DonorId| {
            self.verdict.excuses(c, *donor, since) || (queues && self.verdict.is_slow(*donor, since))
        };
        let full_group = [StatusRun { len: request.len, hole: false }];
        let concerned = self.concerned(c, slot, &full_group);
        // A write that waits for its donor keeps others waiting, also one that waits for whom the slot is
        // moved to.
        let now = client.machine.as_ref().map(|machine| placed(machine.map(), request)).unwrap_or_default();
        let waits = slot.asked.iter().chain(&now).any(excused);
        match error {
            VolumeError::OutOfRange if request.offset + u64::from(request.len) > size => Ok(()),
            VolumeError::DonorLost if self.reads_by_an_old_map(c) => Ok(()),
            VolumeError::DonorLost if request.op == Op::Flush => {
                // Down when it was asked, or lost while it waited for a link to be opened.
                let lost = client.machine.iter().flat_map(|machine| machine.lost()).map(|(donor, _)| donor);
                let caused = slot.down.iter().copied().chain(lost).any(|donor| excused(&donor));
                self.count("flushes that reported a loss");
                if caused { Ok(()) } else { Err("a flush failed without cause".into()) }
            }
            VolumeError::TimedOut if waits => {
                self.count("requests that timed out");
                Ok(())
            }
            VolumeError::Corrupt if self.has_rotted(c, request) => {
                self.count("errors of what flipped and had no other copy");
                Ok(())
            }
            VolumeError::Corrupt if !self.verdict.full_disks.is_disjoint(&concerned) => {
                self.count("errors of what a full disk did not take");
                Ok(())
            }
            // It is asked for again, and a bit may flip each time.
            VolumeError::Corrupt
                if self.plan.flips_per_million > 0
                    && concerned.iter().any(|donor| self.verdict.is_link_slow(c, *donor, since)) =>
            {
                Ok(())
            }
            // Its slot was moved.
            VolumeError::DonorLost if self.has_rotted(c, request) && self.is_recorded_bad(c, request) => {
                self.count("errors of what flipped and was recorded as lost");
                Ok(())
            }
            // A disk without room is in trouble, too.
            VolumeError::DonorFailed if self.plan.disks > 0 && concerned.iter().any(excused) => Ok(()),
            VolumeError::DonorLost | VolumeError::TimedOut | VolumeError::LeaseLost
                if concerned.iter().any(excused) =>
            {
                if error == VolumeError::TimedOut {
                    self.count("requests that timed out");
                }
                if concerned.iter().any(|donor| self.verdict.died_before(*donor, slot.order)) {
                    self.count("lost ranges answered with an error");
                }
                Ok(())
            }
            other => {
                Err(format!("failed with {other:?}, and every donor of its range was there: {concerned:?}"))
            }
        }
    }

    /// A write that more donors missed than redundancy covers: its rows fit together no more, and when one of
    /// those stays away nothing can tell what it had of them.
    fn note_half_written(&mut self, c: usize, slot: &Slot) {
        let (request, since) = (slot.request, slot.submitted);
        let Some(map) = self.clients[c].machine.as_ref().map(|machine| machine.map()) else { return };
        let out = |donor: DonorId| self.verdict.may_be_passed_over(c, donor, since);
        if is_short(map, groups_of(map, request.offset, request.len.into()), out) {
            let (volume, rows) = (map.volume, rows_of(map, request));
            self.verdict.half_written.push((volume, rows));
        }
    }

    fn is_half_written(&self, map: &VolumeMap, request: Request) -> bool {
        let rows = rows_of(map, request);
        let here = |other: &std::ops::Range<u64>| other.start < rows.end && rows.start < other.end;
        self.verdict.half_written.iter().any(|(volume, other)| *volume == map.volume && here(other))
    }

    /// A reader that the coordinator has not told yet where its volume went.
    fn reads_by_an_old_map(&self, c: usize) -> bool {
        let client = &self.clients[c];
        let epoch = client.machine.as_ref().map_or(0, |machine| machine.map().epoch);
        let stored = client.volume.and_then(|volume| self.stored_map(volume));
        client.read_only && stored.is_some_and(|map| epoch < map.epoch)
    }

    /// With redundancy a request fails only when more donors of a group are out of reach than its parity
    /// covers, or when a write missed one and the coordinator could not be told of it.
    fn judge_failure_of_redundant(
        &mut self,
        c: usize,
        slot: &Slot,
        error: VolumeError,
    ) -> Result<(), String> {
        if self.is_accounted_for(c, slot, error) {
            return Ok(());
        }
        let (request, since) = (slot.request, slot.submitted);
        let client = &self.clients[c];
        let Some(map) = client.machine.as_ref().map(|machine| machine.map()) else { return Ok(()) };
        let out = |donor: DonorId| self.verdict.may_be_passed_over(c, donor, since);
        let (groups, size) = (groups_of(map, request.offset, request.len.into()), map.size);
        let all = 0..map.groups.len();
        let one_is_out = groups.clone().any(|group| {
            let slots = &map.groups[group].slots;
            slots.iter().any(|slot| slot.held.is_none_or(|held| out(held.donor)))
        });
        // A read of rows that are being written waits for the write, which waits for the coordinator.
        let untold = one_is_out && self.verdict.coordinator_excuses(c, since);
        let excused = match error {
            VolumeError::OutOfRange => request.offset + u64::from(request.len) > size,
            VolumeError::DonorLost if request.op == Op::Flush => is_short(map, all, out),
            // What a writer may have left half written nobody rebuilds, nor anybody by an old map.
            VolumeError::DonorLost
                if client.read_only
                    && map.redundancy.data > 1
                    && (one_is_out || slot.degraded || client.map_since >= since) =>
            {
                true
            }
            // A block that came wrong in rows that did not fit together, or rows that a failed write left so.
            VolumeError::DonorLost
                if self.is_recorded_bad(c, request)
                    && (self.plan.corrupts() || self.is_half_written(map, request)) =>
            {
                true
            }
            VolumeError::DonorLost if self.reads_by_an_old_map(c) => true,
            // A bit that flips while a slot has no holder.
            VolumeError::DonorLost if self.plan.beyond && self.plan.corrupts() && slot.degraded => true,
            VolumeError::DonorLost | VolumeError::TimedOut | VolumeError::LeaseLost => {
                is_short(map, groups, out) || (untold && error == VolumeError::TimedOut)
            }
            VolumeError::Corrupt => is_short(map, groups, out) && self.plan.corrupts(),
            _ => false,
        };
        if excused || client.volume.is_some_and(|volume| self.verdict.beyond.contains(&volume)) {
            self.count("requests that redundancy did not cover");
            return Ok(());
        }
        Err(format!("failed with {error:?}, and no more was out of reach than redundancy covers"))
    }

    /// Whether what it asks for, or has to read for that, was half written when a writer and a donor ended
    /// together. In the end it has to be recorded as well.
    fn is_accounted_for(&self, c: usize, slot: &Slot, error: VolumeError) -> bool {
        let client = &self.clients[c];
        let Some(map) = client.machine.as_ref().map(|machine| machine.map()) else { return false };
        let waits = match error {
            VolumeError::DonorLost => false,
            VolumeError::TimedOut => true,
            _ => return false,
        };
        let request = slot.request;
        let bytes = match request.op {
            // A group whose silent holder is held back takes no writes.
            Op::Write | Op::Zero { .. } | Op::Trim => {
                let (group, end) = (map.group_bytes(), request.offset + u64::from(request.len));
                request.offset / group * group..end.next_multiple_of(group)
            }
            _ => request.offset..request.offset + u64::from(request.len),
        };
        self.wounds.excuse(map.volume, bytes, slot.submitted, waits)
            && (!self.director.last_pass || request.op.writes() || self.is_recorded_bad(c, request))
    }

    /// The order after which nothing was submitted yet.
    pub(crate) fn outstanding(&self) -> Option<(usize, u64)> {
        let live = self.clients.iter().enumerate().filter(|(_, client)| client.alive);
        live.flat_map(|(c, client)| client.slots.keys().map(move |tag| (c, *tag))).next()
    }
}
