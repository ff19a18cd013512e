//! Reads: straight from the data slots, and from redundancy where a slot cannot be had.
//!
//! Owns the choice of whom to ask, and what is done when one fails or is late. Never: writes, or repair.
//! Invariant: what a request is answered with came from the holder of its data or was rebuilt from k others,
//! and a rebuilt block agrees with its checksum where that is known. Tests: `tests/volume_degraded.rs`, the
//! simulator.

use super::link::Trust;
use super::strip::{Failure, Phase, Slots, Still, Strip, Work, bit, slots_of};
use super::types::{At, Combine, Effect, Mem, PartError, PartOp, VolumeError};
use super::{Asker, Key, Volume};
use crate::layout::{Scatter, Span};
use crate::limits::{BLOCK_BYTES, READ_TOGETHER_NS, READ_TOGETHER_TRIES, SCRATCH_LARGE_BYTES};
use crate::map::BadRange;
use crate::units::Time;

const BLOCK: u32 = BLOCK_BYTES as u32;
/// A block that came wrong without redundancy may have been hit on its way: it is asked for again this often.
const READ_AGAIN_MAX: u32 = 3;

impl Volume {
    /// Cuts the read of one span into strips.
    pub(super) fn plan_read(&mut self, request: Key, span: Span) {
        let failed = if self.is_bad(span) {
            Some(VolumeError::DonorLost)
        } else {
            self.is_unreadable(span).then_some(VolumeError::Unreadable)
        };
        if failed.is_some() {
            self.requests.get_mut(request).expect("being planned").failed = failed;
            return;
        }
        // What is checked is a block, so a part of one is read as a whole and cut.
        let (head, tail) = (span.begin.next_multiple_of(BLOCK), span.end / BLOCK * BLOCK);
        if head > tail {
            return self.plan_gathers(request, span, 0, 0);
        }
        if span.begin < head {
            self.plan_gathers(request, span.cut(span.begin, head), 0, 0);
        }
        if head < tail {
            let middle = span.cut(head, tail);
            let (lo, hi) = self.local_range(middle);
            self.add_strip(Some(request), Work::Read(middle), span.group, lo, hi);
        }
        if tail < span.end {
            self.plan_gathers(request, span.cut(tail, span.end), 0, 0);
        }
    }

    /// The blocks of each extent of its group that a span touches.
    pub(super) fn local_range(&self, span: Span) -> (u32, u32) {
        let (lo, hi) = self.geometry.reach(span.begin, span.end);
        (lo / BLOCK * BLOCK, hi.next_multiple_of(BLOCK))
    }

    /// Bytes of one lane at most, so that all lanes of a strip fit into a piece of scratch memory.
    pub(super) fn lane_max(&self) -> u32 {
        let lanes = self.geometry.data + self.geometry.parity;
        let bytes = SCRATCH_LARGE_BYTES / lanes / BLOCK * BLOCK;
        if bytes > self.geometry.unit { bytes / self.geometry.unit * self.geometry.unit } else { bytes }
    }

    /// Strips that bring a span together in scratch memory.
    pub(super) fn plan_gathers(&mut self, request: Key, span: Span, avoid: Slots, wrong: Slots) {
        let (lo, hi) = self.local_range(span);
        let step = if self.geometry.parity == 0 { BLOCK } else { self.lane_max() };
        let mut at = lo;
        while at < hi {
            let end = (at / step * step + step).min(hi);
            if self.wanted(span, at, end) != 0 {
                let key = self.add_strip(Some(request), Work::Gather(span), span.group, at, end);
                let strip = self.strips.get_mut(key).expect("just added");
                (strip.avoid, strip.wrong) = (avoid, wrong);
            }
            at = end;
        }
    }

    /// The data slots of which a span needs something between `lo` and `hi`.
    pub(super) fn wanted(&self, span: Span, lo: u32, hi: u32) -> Slots {
        let touches = |slot: &u32| {
            let (from, to) = self.geometry.column(span.begin, span.end, *slot);
            from.max(lo) < to.min(hi)
        };
        (0..self.geometry.data).filter(touches).map(bit).sum()
    }

    pub(super) fn begin_read(&mut self, now: Time, key: Key, span: Span, effects: &mut Vec<Effect>) {
        let wanted = self.geometry.touched(span.begin, span.end);
        if self.geometry.data == 1 && self.geometry.parity > 0 {
            return self.read_copy(now, key, span, effects);
        }
        let (lo, hi) = self.strips.get(key).map(|strip| (strip.lo, strip.hi)).expect("being begun");
        let missed = self.missed_there(span.group, lo, hi);
        let good = |slot| {
            let source = self.source(span.group, slot).filter(|_| missed & bit(slot) == 0);
            source.is_some_and(|(_, trust)| trust >= self.worth_asking())
        };
        if self.geometry.parity > 0 && !slots_of(wanted).all(good) {
            return self.read_otherwise(now, key, span, 0, 0, effects);
        }
        for slot in slots_of(wanted) {
            if !self.read_column(now, key, slot, slot, span, effects) {
                self.strips.get_mut(key).expect("being begun").failed = Some(VolumeError::DonorLost);
            }
        }
        self.set_phase(key, Phase::Reading);
    }

    /// Asks `from` for the bytes of data slot `slot`; false when it cannot be asked.
    fn read_column(
        &mut self,
        now: Time,
        key: Key,
        slot: u32,
        from: u32,
        span: Span,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some((held, _)) = self.source(span.group, from) else { return false };
        let (begin, end) = self.geometry.column(span.begin, span.end, slot);
        let scatter = self.geometry.scatter(slot, begin, end, span.begin, span.payload);
        let mem = self.payload(key);
        self.add_part(now, key, from, held, PartOp::Read, begin, mem, scatter, effects)
    }

    /// Where what a strip reads or writes for its request is.
    pub(super) fn payload(&self, key: Key) -> Mem {
        self.payload_of(self.strips.get(key).and_then(|strip| strip.request).expect("a strip of a request"))
    }

    pub(super) fn payload_of(&self, request: Key) -> Mem {
        match self.requests.get(request).expect("it has strips").asker {
            Asker::Tool(tag) => Mem::Payload(tag),
            Asker::Cache(_) => Mem::Cache,
        }
    }

    /// From the copy that is asked least. Where copies may differ until they are resynced, always from the
    /// first.
    fn read_copy(&mut self, now: Time, key: Key, span: Span, effects: &mut Vec<Effect>) {
        let strip = self.strips.get(key).expect("being begun");
        let torn = self.is_torn(span.group, strip.lo, strip.hi);
        let avoid = strip.avoid | self.missed_there(span.group, strip.lo, strip.hi);
        let slots = (0..self.geometry.parity + 1).filter(|slot| avoid & bit(*slot) == 0);
        let candidates = slots.filter_map(|slot| {
            let (held, trust) = self.source(span.group, slot)?;
            let load = if torn { 0 } else { self.links[&held.donor].load() };
            Some((std::cmp::Reverse(trust), load, slot))
        });
        match candidates.min() {
            Some((_, _, from)) => {
                self.read_column(now, key, 0, from, span, effects);
                self.set_phase(key, Phase::Reading);
            }
            None if self.asks_the_late_again(key) => self.read_copy(now, key, span, effects),
            None if self.may_have_moved(span.group) => self.rest(now, key, effects),
            None => self.end_strip(now, key, Err(VolumeError::DonorLost), effects),
        }
    }

    /// Going round those that are late is no way any more: waits for them after all. False when there are
    /// none.
    fn asks_the_late_again(&mut self, key: Key) -> bool {
        let strip = self.strips.get(key).expect("it has read");
        let (group, wrong) = (strip.group, strip.wrong);
        let again = |slot: &u32| wrong & bit(*slot) == 0 && self.source(group, *slot).is_some();
        let again: Slots = slots_of(strip.avoid).filter(again).map(bit).sum();
        let strip = self.strips.get_mut(key).expect("it has read");
        strip.avoid &= !again;
        strip.waits_for_late |= again != 0;
        again != 0
    }

    /// The read goes on as gathers, which go round `avoid`.
    fn read_otherwise(
        &mut self,
        now: Time,
        key: Key,
        span: Span,
        avoid: Slots,
        wrong: Slots,
        effects: &mut Vec<Effect>,
    ) {
        let request = self.strips.get(key).and_then(|strip| strip.request).expect("a read of a request");
        self.report.reads_rebuilt += 1;
        self.plan_gathers(request, span, avoid, wrong);
        self.end_strip(now, key, Ok(()), effects);
    }

    pub(super) fn read_late(&mut self, now: Time, key: Key, slot: u32, effects: &mut Vec<Effect>) {
        let Some(strip) = self.strips.get(key) else { return };
        if self.geometry.parity == 0 || strip.phase != Phase::Reading || strip.avoid & bit(slot) != 0 {
            return;
        }
        // There is no comparison without all of them, and who waits for its lock needs the same donors.
        if self.worth_asking() == Trust::Poor || strip.work == Work::Scrub || strip.waits_for_late {
            return;
        }
        let missed = self.missed_there(strip.group, strip.lo, strip.hi);
        let (group, avoid) = (strip.group, strip.avoid | missed | bit(slot));
        let others = (0..self.geometry.data + self.geometry.parity).filter(|other| avoid & bit(*other) == 0);
        let able =
            others.filter(|other| self.source(group, *other).is_some_and(|(_, t)| t == Trust::Good)).count();
        if able < self.geometry.data as usize || self.is_torn(group, strip.lo, strip.hi) {
            return; // Waiting is all that is left.
        }
        let part = self.each_open_part(key).find(|(_, part)| part.slot == slot && part.op == PartOp::Read);
        let Some((part, donor)) = part.map(|(part_key, part)| (part_key, part.donor)) else { return };
        effects.push(Effect::Abandon { donor, part });
        self.part_failed(now, part, Failure::Late, effects);
    }

    /// A read part of any strip has no good answer.
    pub(super) fn read_failed(
        &mut self,
        now: Time,
        key: Key,
        slot: u32,
        failure: Failure,
        effects: &mut Vec<Effect>,
    ) {
        let geometry = self.geometry;
        let strip = self.strips.get_mut(key).expect("looked at by the caller");
        if strip.request.and_then(|request| self.requests.get(request)).is_some_and(|r| r.failed.is_some()) {
            return; // It ends when its other parts have.
        }
        if failure == Failure::Moved {
            return self.read_again(now, key, slot, effects);
        }
        let corrupt = matches!(failure, Failure::Answer(PartError::Corrupt { .. }));
        let shut_out = self.read_only && failure == Failure::Answer(PartError::Denied);
        if shut_out && let Some(held) = self.map.groups[strip.group as usize].slots[slot as usize].held {
            self.note_shut_out(held.donor);
        }
        if failure == Failure::Answer(PartError::Denied) {
            // The lease may be another's, who writes.
            self.forget_cached(0, u64::MAX);
        }
        let torn = self.is_torn_for(key);
        let strip = self.strips.get_mut(key).expect("looked at above");
        if geometry.parity == 0 {
            if shut_out {
                // It may have given the slot to another, which the newest map tells.
                return self.rest(now, key, effects);
            }
            if corrupt && strip.tries < READ_AGAIN_MAX {
                strip.tries += 1;
                return self.read_again(now, key, slot, effects);
            }
            strip.failed = Some(failure.error());
            return;
        }
        strip.avoid |= bit(slot);
        if matches!(failure, Failure::Answer(_)) {
            strip.wrong |= bit(slot);
        }
        match strip.work {
            Work::Read(span) if geometry.data == 1 => {
                self.drop_parts(key, effects);
                self.report.reads_rebuilt += 1;
                self.read_copy(now, key, span, effects);
            }
            Work::Read(span) => {
                let (avoid, wrong) = (strip.avoid, strip.wrong);
                self.read_otherwise(now, key, span, avoid, wrong, effects);
            }
            Work::Resync if corrupt && strip.tries < READ_AGAIN_MAX => {
                // A bit may have flipped on the way.
                (strip.tries, strip.avoid, strip.wrong) = (strip.tries + 1, 0, 0);
                self.read_again(now, key, slot, effects);
            }
            // Where the others fit together, healing gives it back.
            Work::Resync if corrupt && torn => self.resync_wrong(now, key, slot, effects),
            // The others may be wrong as well; without all of them nothing is compared, but each is checked.
            Work::Scrub => {}
            _ => self.read_lanes(now, key, effects),
        }
    }

    /// Whom to ask before going round them. Where others may be writing, what is rebuilt may not be of one
    /// moment, so it is the last resort.
    fn worth_asking(&self) -> Trust {
        let last_resort = self.geometry.parity == 0 || (self.read_only && self.geometry.data > 1);
        if last_resort { Trust::Poor } else { Trust::Good }
    }

    fn read_again(&mut self, now: Time, key: Key, slot: u32, effects: &mut Vec<Effect>) {
        let asked = match self.strips.get(key).expect("looked at by the caller").work {
            Work::Read(span) => {
                let column = if self.geometry.data == 1 { 0 } else { slot };
                self.read_column(now, key, column, slot, span, effects)
            }
            _ => self.read_lane(now, key, slot, effects),
        };
        if !asked {
            self.strips.get_mut(key).expect("looked at by the caller").failed = Some(VolumeError::DonorLost);
        }
    }

    pub(super) fn read_lane(&mut self, now: Time, key: Key, slot: u32, effects: &mut Vec<Effect>) -> bool {
        let at = self.lane(key, slot);
        let strip = self.strips.get_mut(key).expect("a strip with lanes");
        strip.coming |= bit(slot);
        let (group, local, len) = (strip.group, strip.lo, strip.len());
        let Some((held, _)) = self.source(group, slot) else { return false };
        self.add_part(
            now,
            key,
            slot,
            held,
            PartOp::Read,
            local,
            at.mem,
            Scatter::whole(at.offset, len),
            effects,
        )
    }

    /// The slots whose content a strip with lanes needs before it can go on.
    fn needed(&self, key: Key) -> Slots {
        let strip = self.strips.get(key).expect("a strip with lanes");
        let data: Slots = (0..self.geometry.data).map(bit).sum();
        match strip.work {
            Work::Gather(span) => self.wanted(span, strip.lo, strip.hi),
            Work::Patch { span, delta, .. } => self.patch_needs(key, span, delta),
            Work::Fill { slot, .. } | Work::Heal { slot } | Work::Mend { slot } => bit(slot),
            Work::Resync if self.geometry.data == 1 => 0,
            Work::Resync => slots_of(data).filter(|slot| self.is_held(strip.group, *slot)).map(bit).sum(),
            Work::Scrub => {
                let all = 0..self.geometry.data + self.geometry.parity;
                all.filter(|slot| self.is_held(strip.group, *slot)).map(bit).sum()
            }
            _ => 0,
        }
    }

    pub(super) fn is_held(&self, group: u32, slot: u32) -> bool {
        self.map.groups[group as usize].slots[slot as usize].held.is_some()
    }

    /// Asks for the lanes that are still missing: each needed one of its holder, or so many others that it
    /// can be rebuilt. Called at the beginning and after each failure.
    pub(super) fn read_lanes(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let needed = self.needed(key);
        let geometry = self.geometry;
        let strip = self.strips.get(key).expect("a strip with lanes");
        let (group, here) = (strip.group, strip.have | strip.coming);
        // Parity is made from data as it is; all else goes round who missed a write.
        let as_it_is = strip.work == Work::Resync && geometry.data > 1;
        let missed = if as_it_is { 0 } else { self.missed_there(group, strip.lo, strip.hi) };
        let avoid = strip.avoid | missed;
        let rebuilds = !matches!(strip.work, Work::Resync | Work::Scrub)
            && !matches!(strip.work, Work::Patch { delta: true, .. });
        let trust = |slot: u32| {
            let usable = avoid & bit(slot) == 0 && here & bit(slot) == 0;
            self.source(group, slot).filter(|_| usable).map(|(_, trust)| trust)
        };
        let missing = needed & !here;
        let enough = if rebuilds { self.worth_asking() } else { Trust::Poor };
        let mut ask: Slots =
            slots_of(missing).filter(|s| trust(*s).is_some_and(|t| t >= enough)).map(bit).sum();
        let mut possible = true;
        if missing & !ask != 0 {
            // Any k of the others rebuild what is missing: those that answer first, data before parity.
            let mut others: Vec<(std::cmp::Reverse<Trust>, u32)> = (0..geometry.data + geometry.parity)
                .filter(|slot| ask & bit(*slot) == 0)
                .filter_map(|slot| Some((std::cmp::Reverse(trust(slot)?), slot)))
                .collect();
            others.sort_unstable();
            let known = (here | ask).count_ones();
            let more = geometry.data.saturating_sub(known) as usize;
            possible = rebuilds && geometry.parity > 0 && others.len() >= more && !self.is_torn_for(key);
            if possible {
                ask |= others.iter().take(more).map(|(_, slot)| bit(*slot)).sum::<Slots>();
            } else if slots_of(missing).all(|slot| trust(slot).is_some()) {
                // Going round those that are late is no way: they are waited for.
                (ask, possible) = (missing, true);
            }
        }
        if matches!(self.strips.get(key).expect("above").work, Work::Resync)
            && geometry.data == 1
            && here == 0
        {
            let first = (0..=geometry.parity).find(|slot| trust(*slot).is_some());
            possible = first.is_some();
            ask = first.map_or(0, bit);
        }
        if !possible {
            return self.lanes_impossible(now, key, effects);
        }
        let epoch = self.map.epoch;
        let strip = self.strips.get_mut(key).expect("a strip with lanes");
        if strip.still == Still::Unasked || here == 0 {
            strip.still = Still::Reading { since: now, epoch };
        }
        for slot in slots_of(ask) {
            self.read_lane(now, key, slot, effects);
        }
        self.set_phase(key, Phase::Reading);
    }

    fn lanes_impossible(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let strip = self.strips.get_mut(key).expect("a strip with lanes");
        if let Work::Patch { span, content, delta: true } = strip.work {
            strip.work = Work::Patch { span, content, delta: false };
            return self.read_lanes(now, key, effects);
        }
        if self.asks_the_late_again(key) {
            return self.read_lanes(now, key, effects);
        }
        if self.takes_blocks_alone(key) {
            return self.end_strip(now, key, Ok(()), effects);
        }
        if self.may_settle(now, key) {
            return self.wait_for_rows(key, effects);
        }
        let group = self.strips.get(key).expect("a strip with lanes").group;
        if self.may_have_moved(group) {
            return self.rest(now, key, effects);
        }
        self.end_strip(now, key, Err(VolumeError::DonorLost), effects);
    }

    /// Blocks that are wrong on one slot may be right on the others, and the other way round in other rows;
    /// and rows that do not fit together may lie beside rows that do: what was to be read at once is read
    /// block by block. False when that was done, or nothing was wrong.
    fn takes_blocks_alone(&mut self, key: Key) -> bool {
        let strip = self.strips.get(key).expect("it has read");
        let (work, group, lo, hi) = (strip.work, strip.group, strip.lo, strip.hi);
        let (Some(request), Some(span)) = (strip.request, strip.span()) else { return false };
        let blocks = ((hi - lo) / BLOCK) as usize;
        let wrong = strip.wrong != 0 && strip.phase == Phase::Reading;
        let splits = matches!(work, Work::Gather(_) | Work::Patch { .. }) && (wrong || self.is_torn_for(key));
        if !splits || blocks < 2 || self.strips.room() <= blocks {
            return false;
        }
        for at in (lo..hi).step_by(BLOCK as usize) {
            if self.wanted(span, at, at + BLOCK) != 0 {
                self.add_strip(Some(request), work, group, at, at + BLOCK);
            }
        }
        true
    }

    pub(super) fn reading_done(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let strip = self.strips.get(key).expect("it has read");
        if let Some(error) = strip.failed {
            return self.end_strip(now, key, Err(error), effects);
        }
        match strip.work {
            Work::Read(_) | Work::Status(_) | Work::Barrier | Work::Survey | Work::Age | Work::Ask { .. } => {
                self.end_strip(now, key, Ok(()), effects);
            }
            Work::Resync => self.resync_lanes(now, key, effects),
            Work::Scrub => self.compare_lanes(key, effects),
            _ => {
                let needed = self.needed(key);
                let rebuilt = needed & !self.strips.get(key).expect("it has read").have;
                if rebuilt != 0 && self.read_only {
                    if self.is_lost_now(key, rebuilt) {
                        return self.end_strip(now, key, Err(VolumeError::DonorLost), effects);
                    }
                    if self.ask_who_wrote(now, key, effects) {
                        return;
                    }
                }
                self.rebuild_lanes(key, rebuilt, effects);
                self.set_phase(key, Phase::Checking);
            }
        }
    }

    /// Without the write lease, another may be writing: lanes that were read before and after a write of
    /// their row make up a block that never was. So the donors that were read from are asked who wrote there
    /// lately, sooner after the first lane was asked for than a writer makes them forget: of a write that
    /// came in between, or was half done before, the one that had it knows, and for that long after the write
    /// is complete. A donor that was excluded or replaced does not hear of writes any more; that there is
    /// none of them the coordinator knows, whose map is then the newest still. Otherwise it begins anew a
    /// little later. False when all that is settled.
    fn ask_who_wrote(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) -> bool {
        let newest = self.map.epoch;
        let strip = self.strips.get_mut(key).expect("it has read");
        match strip.still {
            _ if self.geometry.data == 1 => return false,
            Still::Vouched => return false,
            Still::Reading { since, epoch } => strip.still = Still::Asked { since, epoch },
            Still::Asked { since, epoch } if now < since + READ_TOGETHER_NS && epoch == newest => {
                strip.phase = Phase::Resting;
                self.unvouched.push(key);
                return true;
            }
            _ => {
                self.rest(now, key, effects);
                return true;
            }
        }
        let (group, have, local, len) = (strip.group, strip.have, strip.lo, strip.len());
        for slot in slots_of(have) {
            let scatter = Scatter::whole(0, len);
            let asked = self.source(group, slot).is_some_and(|(held, _)| {
                self.add_part(now, key, slot, held, PartOp::Survey, local, Mem::Nothing, scatter, effects)
            });
            if !asked {
                self.strips.get_mut(key).expect("it has read").still = Still::Disturbed;
            }
        }
        self.set_phase(key, Phase::Reading);
        true
    }

    /// Lets a strip begin anew a little later. Rows that a writer left half written stay so until the next
    /// one comes.
    fn rest(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        self.drop_parts(key, effects);
        self.free_scratch(key);
        let group = self.strips.get(key).expect("it has read").group;
        let moved = self.may_have_moved(group);
        let strip = self.strips.get_mut(key).expect("looked at above");
        if moved {
            strip.wrong = 0;
        }
        (strip.have, strip.avoid, strip.still) = (0, strip.wrong, Still::Unasked);
        strip.rests += 1;
        if strip.rests > READ_TOGETHER_TRIES {
            return self.end_strip(now, key, Err(VolumeError::DonorLost), effects);
        }
        strip.phase = Phase::Resting;
        self.resting.push((now + (READ_TOGETHER_NS << (strip.rests - 1)), key));
    }

    /// What was read before the coordinator was asked fits together if the map is the newest still.
    pub(super) fn vouched(&mut self, newest: bool) {
        let asked = std::mem::take(&mut self.vouching);
        self.settle(asked, newest);
    }

    /// There is a newer map: what was read by the one before is read again.
    pub(super) fn unvouch(&mut self) {
        let unvouched = std::mem::take(&mut self.unvouched);
        self.settle(unvouched, false);
    }

    fn settle(&mut self, strips: Vec<Key>, newest: bool) {
        for key in strips {
            let Some(strip) = self.strips.get_mut(key) else { continue };
            strip.still = if newest { Still::Vouched } else { Still::Disturbed };
            strip.phase = Phase::Reading;
            self.ready.push_back(key);
        }
    }

    /// Whoever has rested for long enough begins anew.
    pub(super) fn tick_resting(&mut self, now: Time) {
        for (_, key) in self.resting.extract_if(.., |(until, _)| *until <= now) {
            if let Some(strip) = self.strips.get_mut(key) {
                strip.phase = Phase::Locking;
                self.ready.push_back(key);
            }
        }
    }

    /// Computes lanes from k others, and has them checked.
    pub(super) fn rebuild_lanes(&mut self, key: Key, lanes: Slots, effects: &mut Vec<Effect>) {
        let strip = self.strips.get(key).expect("it has read");
        let (have, len) = (strip.have, strip.len());
        if lanes == 0 {
            return;
        }
        let sources: Vec<u32> = slots_of(have).take(self.geometry.data as usize).collect();
        let inputs: Vec<At> = sources.iter().map(|slot| self.lane(key, *slot)).collect();
        let coefficients = slots_of(lanes).flat_map(|slot| self.code.rebuild(&sources, slot)).collect();
        let outputs: Vec<At> = slots_of(lanes).map(|slot| self.lane(key, slot)).collect();
        effects.push(Effect::Combine(Combine {
            len,
            coefficients,
            inputs,
            outputs: outputs.clone(),
            add: false,
        }));
        // Parity that was computed from all of the data is right, whatever was known of it.
        let from_data = sources.iter().all(|slot| *slot < self.geometry.data);
        let checked =
            slots_of(lanes).zip(outputs).filter(|(slot, _)| *slot < self.geometry.data || !from_data);
        for (slot, at) in checked.collect::<Vec<_>>() {
            effects.push(Effect::Verify { strip: key, fragment: self.fragment(key, slot), at, len });
            self.strips.get_mut(key).expect("it has read").open += 1;
        }
        self.strips.get_mut(key).expect("it has read").have |= lanes;
    }

    pub(super) fn verified(&mut self, key: Key, right: bool) {
        let Some(strip) = self.strips.get_mut(key).filter(|strip| strip.phase == Phase::Checking) else {
            return;
        };
        strip.open -= 1;
        if !right {
            strip.failed = Some(VolumeError::Corrupt);
        }
        if strip.open == 0 {
            self.ready.push_back(key);
        }
    }

    pub(super) fn checked(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let strip = self.strips.get(key).expect("it was checked");
        if let Some(error) = strip.failed
            && strip.work != Work::Scrub
        {
            return self.wrongly_rebuilt(now, key, error, effects);
        }
        match strip.work {
            Work::Gather(span) => {
                self.copy_out(key, span, effects);
                self.end_strip(now, key, Ok(()), effects);
            }
            Work::Patch { span, content, delta } => self.patch_lanes(now, key, span, content, delta, effects),
            Work::Fill { slot, to } => self.write_filled(now, key, slot, to, effects),
            Work::Heal { slot } | Work::Mend { slot } => self.write_healed(now, key, slot, effects),
            Work::Scrub => self.scrubbed(now, key, effects),
            _ => unreachable!("nothing else is checked"),
        }
    }

    /// What was rebuilt is not what was written. A holder that was only late still knows.
    fn wrongly_rebuilt(&mut self, now: Time, key: Key, error: VolumeError, effects: &mut Vec<Effect>) {
        let strip = self.strips.get_mut(key).expect("it was checked");
        if strip.tries == 0 && strip.avoid != 0 && matches!(strip.work, Work::Gather(_)) {
            strip.tries = 1;
            (strip.avoid, strip.wrong, strip.have, strip.failed) = (0, 0, 0, None);
            self.drop_parts(key, effects);
            return self.read_lanes(now, key, effects);
        }
        if let Work::Fill { slot, to } = strip.work {
            // Each of the others was what it should be, so nothing else can give this back.
            (strip.failed, strip.tries) = (None, 1);
            if slot < self.geometry.data {
                let (group, from, to) = (strip.group, strip.lo, strip.hi);
                self.report_bad(BadRange { group, slot, from, to });
                // What its new holder is given is not what was written there, and not its fault.
                effects.push(Effect::Forget { fragment: self.fragment(key, slot), len: to - from });
            }
            return self.write_filled(now, key, slot, to, effects);
        }
        self.end_strip(now, key, Err(error), effects);
    }

    fn copy_out(&mut self, key: Key, span: Span, effects: &mut Vec<Effect>) {
        let mem = self.payload(key);
        let strip = self.strips.get(key).expect("it has read");
        for slot in slots_of(self.wanted(span, strip.lo, strip.hi)) {
            let lane = self.lane(key, slot);
            for (local, payload, len) in self.overlap(span, slot, strip.lo, strip.hi) {
                let from = At { offset: lane.offset + (local - strip.lo), ..lane };
                effects.push(Effect::Copy { from, to: At { mem, offset: payload }, len });
            }
        }
    }

    /// The pieces of a span in data slot `slot` between `lo` and `hi`: offset in the extent, in the payload,
    /// length.
    pub(super) fn overlap(&self, span: Span, slot: u32, lo: u32, hi: u32) -> Vec<(u32, u32, u32)> {
        let (from, to) = self.geometry.column(span.begin, span.end, slot);
        let (from, to) = (from.max(lo), to.min(hi));
        if from >= to {
            return Vec::new();
        }
        let mut local = from;
        let pieces = self.geometry.scatter(slot, from, to, span.begin, span.payload).pieces();
        let placed = pieces.map(|(payload, len)| {
            local += len;
            (local - len, payload, len)
        });
        placed.collect()
    }

    pub(super) fn begin_status(&mut self, now: Time, key: Key, span: Span, effects: &mut Vec<Effect>) {
        for slot in slots_of(self.geometry.touched(span.begin, span.end)) {
            let (lo, hi) = self.strips.get(key).map(|strip| (strip.lo, strip.hi)).expect("being begun");
            let missed = self.missed_there(span.group, lo, hi) & bit(slot) != 0;
            let (from, to) = self.geometry.column(span.begin, span.end, slot);
            // What is lost for good is no hole: who reads it has to hear that it is lost.
            let lost = self.lost_ranges().filter(|bad| bad.reaches(span.group, slot, from, to));
            let lost = lost.map(|bad| bad.from.max(from)).min();
            // Nor is what stands for what the source could not give.
            let unreadable = touched_of(&self.map.unreadable, span.group, slot, from, to).next().is_some();
            let source = self.source(span.group, slot).filter(|_| !missed);
            let source_is_there = source.is_some();
            let source = source.filter(|_| lost.is_none() && !unreadable);
            let scatter = self.geometry.scatter(slot, from, to, span.begin, span.payload);
            let asked = source.is_some_and(|(held, _)| {
                self.add_part(now, key, slot, held, PartOp::Status, from, Mem::Nothing, scatter, effects)
            });
            if asked {
                continue;
            }
            // What its holder would say is not known, or says nothing; present is never wrong.
            let request = self.request_of(key);
            super::collect_status(&mut request.status, scatter, &[]);
            if self.geometry.parity == 0 && !unreadable {
                let known = if source_is_there { lost.map_or(0, |at| at - from) } else { 0 };
                self.status_ends(key, scatter, known, VolumeError::DonorLost);
            }
        }
        self.set_phase(key, Phase::Reading);
    }

    fn request_of(&mut self, strip: Key) -> &mut super::Pending {
        let request = self.strips.get(strip).and_then(|strip| strip.request);
        request.and_then(|request| self.requests.get_mut(request)).expect("asked by a request")
    }

    /// Of what a slot has of the request, something can be said of `known` bytes: what is in front of that is
    /// still answered.
    pub(super) fn status_ends(&mut self, strip: Key, scatter: Scatter, known: u32, error: VolumeError) {
        let (at, _) = scatter.locate(known);
        let request = self.request_of(strip);
        if request.status_ends.is_none_or(|(end, _)| at < end) {
            request.status_ends = Some((at, error));
        }
    }

    /// Whether a writer found, after the read began, that these lanes cannot be rebuilt.
    fn is_lost_now(&self, key: Key, lanes: Slots) -> bool {
        let strip = self.strips.get(key).expect("it has read");
        let (group, lo, hi) = (strip.group, strip.lo, strip.hi);
        slots_of(lanes).any(|slot| self.lost_ranges().any(|bad| bad.reaches(group, slot, lo, hi)))
    }

    /// Whether something of what the strip is to read, or of a block that it is to change in part, was found
    /// to be lost after it was planned.
    pub(super) fn needs_what_is_lost(&self, strip: &Strip) -> bool {
        let Some(span) = strip.span().filter(|_| self.lost_ranges().next().is_some()) else { return false };
        (0..self.geometry.data).any(|slot| {
            let (from, to) = self.geometry.column(span.begin, span.end, slot);
            let (from, to) = (from.max(strip.lo), to.min(strip.hi));
            let lost = |from, to| self.lost_ranges().any(|bad| bad.reaches(strip.group, slot, from, to));
            match strip.work {
                Work::Read(_) | Work::Gather(_) => lost(from, to),
                Work::Patch { .. } if from < to => {
                    let (first, last) = (from / BLOCK * BLOCK, (to - 1) / BLOCK * BLOCK);
                    (first < from && lost(first, first + BLOCK))
                        || (to < last + BLOCK && lost(last, last + BLOCK))
                }
                _ => false,
            }
        })
    }

    /// Whether a part of the span could not be read when the volume was loaded.
    fn is_unreadable(&self, span: Span) -> bool {
        let list = &self.map.unreadable;
        !list.is_empty()
            && (0..self.geometry.data).any(|slot| {
                let (from, to) = self.geometry.column(span.begin, span.end, slot);
                touched_of(list, span.group, slot, from, to).next().is_some()
            })
    }

    /// Whether a part of the span is known to be lost for good.
    pub(super) fn is_bad(&self, span: Span) -> bool {
        self.lost_ranges().any(|bad| {
            let (from, to) = self.geometry.column(span.begin, span.end, bad.slot);
            bad.reaches(span.group, bad.slot, from, to)
        })
    }
}

/// Those of an ascending list that the run of a slot touches.
pub(super) fn touched_of(
    list: &[BadRange],
    group: u32,
    slot: u32,
    from: u32,
    to: u32,
) -> impl Iterator<Item = &BadRange> {
    let first = list.partition_point(|range| (range.group, range.slot, range.to) <= (group, slot, from));
    list[first..].iter().take_while(move |range| range.reaches(group, slot, from, to))
}
