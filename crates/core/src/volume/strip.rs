//! Strips: the locked parts that requests and upkeep are made of, and the parts that a strip sends to donors.
//!
//! Owns a strip's way from its lock to its end, its scratch memory and its parts. Never: what it reads or
//! writes (`read`, `write`, `upkeep`). Invariant: a strip ends once; no part of it touches memory afterwards.
//!
//! ```text
//!   Locking -> Starving -> Reading -> Checking -> Writing -> Excluding -> ended
//!                          \-> Resting -/
//! ```

use super::scratch::Scratch;
use super::slab::Slab;
use super::types::{At, Effect, Fragment, Mem, PartError, PartOp, StatusRun, VolumeError};
use super::{Key, Volume, link};
use crate::donor::WriteMark;
use crate::layout::{Scatter, Span};
use crate::limits::{EXTENT_BYTES, STRIPE_DONORS_MAX, WRITE_MARGIN_NS};
use crate::map::{DonorId, Placement};
use crate::units::Time;

/// A set of slots of one group.
pub(super) type Slots = u32;

pub(super) fn bit(slot: u32) -> Slots {
    1 << slot
}

pub(super) fn slots_of(mut set: Slots) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let slot = set.trailing_zeros();
        set &= set.checked_sub(1)?;
        Some(slot)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Payload,
    Zero { keep: bool },
    Trim,
}

impl Content {
    pub(super) fn of(op: super::Op) -> Content {
        match op {
            super::Op::Write => Content::Payload,
            super::Op::Zero { keep } => Content::Zero { keep },
            _ => Content::Trim,
        }
    }

    pub(super) fn part_op(self) -> PartOp {
        match self {
            Content::Payload => PartOp::Write,
            Content::Zero { keep } => PartOp::Zero { keep },
            Content::Trim => PartOp::Trim,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Data slots straight into the payload.
    Read(Span),
    /// Into scratch, rebuilt where a slot cannot be had, then into the payload.
    Gather(Span),
    /// The same to every copy, or to data slots without parity.
    Direct(Span, Content),
    /// Whole rows, with their parity.
    Rows(Span, Content),
    /// A row that several requests have written.
    Joined(Span),
    /// Less than a row or a block: read, changed, written back. `delta`: from the old data and the old
    /// parity.
    Patch {
        span: Span,
        content: Content,
        delta: bool,
    },
    Status(Span),
    /// A flush that waits for links to be opened.
    Barrier,
    /// One slot's bytes from the others, or from its holder, to `to`.
    Fill {
        slot: u32,
        to: Placement,
    },
    /// A slot's bytes put right where they are.
    Heal {
        slot: u32,
    },
    /// Parity from data, copies from the first.
    Resync,
    /// A slot that missed a write of a row in doubt, from those that fit together.
    Mend {
        slot: u32,
    },
    Scrub,
    /// Which rows were written lately.
    Survey,
    Age,
    /// Is a donor there? Whether it has this or not: any answer is one.
    Ask {
        slot: u32,
        of: Placement,
    },
}

impl Work {
    /// Whether nobody else may work on its rows.
    pub(super) fn is_alone(self) -> bool {
        !matches!(self, Work::Read(_) | Work::Gather(_) | Work::Scrub)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Locking,
    /// For scratch memory or room for parts.
    Starving,
    Reading,
    /// For `Verified`.
    Checking,
    Writing,
    /// For the coordinator to record that donors missed a write.
    Excluding,
    /// For another's writes to what it reads to be over, or for the coordinator's word that the map is the
    /// newest.
    Resting,
}

/// How far a reader is in finding out that nobody writes what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Still {
    Unasked,
    /// Lanes are read since then, by the map of that epoch.
    Reading {
        since: Time,
        epoch: u64,
    },
    /// They were read, and their holders are asked who wrote lately.
    Asked {
        since: Time,
        epoch: u64,
    },
    /// Nobody had, and the coordinator said that no donor was excluded or replaced meanwhile.
    Vouched,
    /// Somebody had, or one that was asked did not answer.
    Disturbed,
}

/// A placement that missed a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    pub(super) slot: u32,
    pub(super) placement: Placement,
}

#[derive(Debug)]
pub(super) struct Strip {
    pub(super) work: Work,
    pub(super) group: u32,
    /// The bytes of each extent of the group that it locks.
    pub(super) lo: u32,
    pub(super) hi: u32,
    pub(super) request: Option<Key>,
    pub(super) phase: Phase,
    pub(super) born: u64,
    parts: Option<Key>,
    pub(super) open: u32,
    pub(super) scratch: Option<u32>,
    /// Lanes that are in scratch.
    pub(super) have: Slots,
    /// Lanes on their way.
    pub(super) coming: Slots,
    /// Slots whose holder failed this strip, or is late.
    pub(super) avoid: Slots,
    /// Of those, the ones that gave a bad answer: asking them again is of no use.
    pub(super) wrong: Slots,
    /// Those that are late are waited for: there is no way round them.
    pub(super) waits_for_late: bool,
    pub(super) tries: u32,
    pub(super) rests: u32,
    pub(super) still: Still,
    /// Somebody may have some of what it writes.
    pub(super) wrote: bool,
    pub(super) missed: Vec<Missed>,
    pub(super) failed: Option<VolumeError>,
    /// Of its writes, once there are any.
    number: u64,
}

impl Strip {
    pub(super) fn len(&self) -> u32 {
        self.hi - self.lo
    }

    /// Takes in a part that is in the slab already.
    pub(super) fn hold(&mut self, key: Key, parts: &mut Slab<Part>) {
        parts.get_mut(key).expect("just inserted").next = self.parts.replace(key);
        self.open += 1;
    }

    /// The bytes of the request that it is a part of.
    pub(super) fn span(&self) -> Option<Span> {
        match self.work {
            Work::Read(span) | Work::Gather(span) | Work::Status(span) => Some(span),
            Work::Direct(span, _) | Work::Rows(span, _) | Work::Patch { span, .. } => Some(span),
            Work::Joined(span) => Some(span),
            _ => None,
        }
    }

    /// Whether donors may hold a part of it when it is cut short, and mark it as written lately.
    pub(super) fn is_write(&self) -> bool {
        let mends =
            matches!(self.work, Work::Fill { .. } | Work::Heal { .. } | Work::Resync | Work::Mend { .. });
        self.is_users_write() || mends
    }

    pub(super) fn is_users_write(&self) -> bool {
        matches!(self.work, Work::Direct(..) | Work::Rows(..) | Work::Joined(_) | Work::Patch { .. })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) strip: Key,
    pub(super) slot: u32,
    pub(super) placement: Placement,
    pub(super) donor: DonorId,
    pub(super) op: PartOp,
    pub(super) mem: Mem,
    pub(super) scatter: Scatter,
    pub(super) local: u32,
    pub(super) progress: Progress,
    pub(super) sent_at: Time,
    /// The next part of the same strip.
    next: Option<Key>,
}

impl Part {
    /// Asks nothing of a donor but to be reached.
    pub(super) fn barrier(strip: Key, placement: Placement) -> Part {
        let (mem, scatter) = (Mem::Nothing, Scatter::whole(0, 0));
        let (op, progress, donor) = (PartOp::Age, Progress::Waiting, placement.donor);
        Part {
            strip,
            slot: 0,
            placement,
            donor,
            op,
            mem,
            scatter,
            local: 0,
            progress,
            sent_at: 0,
            next: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// For its link.
    Waiting,
    Sent,
    Done,
}

/// Why a part has no good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Its donor was set aside.
    Down,
    /// It is late, and redundancy can answer.
    Late,
    /// The slot has another holder now.
    Moved,
    Answer(PartError),
}

impl Failure {
    pub(super) fn error(self) -> VolumeError {
        match self {
            Failure::Down | Failure::Moved => VolumeError::DonorLost,
            Failure::Late => VolumeError::TimedOut,
            Failure::Answer(PartError::Io) => VolumeError::DonorFailed,
            Failure::Answer(PartError::NoMemory) => VolumeError::NoMemory,
            Failure::Answer(PartError::Denied) => VolumeError::LeaseLost,
            Failure::Answer(PartError::Unsupported) => VolumeError::Unsupported,
            Failure::Answer(PartError::Corrupt { .. }) => VolumeError::Corrupt,
        }
    }
}

/// For the parts of another strip, and for so much of scratch memory.
fn has_room(parts: &Slab<Part>, scratch: &Scratch, bytes: u32) -> bool {
    parts.room() >= 2 * STRIPE_DONORS_MAX as usize && (bytes == 0 || scratch.has(bytes))
}

impl Volume {
    /// A strip that waits for its lock, or is ready if it need not. Upkeep has no request.
    pub(super) fn add_strip(
        &mut self,
        request: Option<Key>,
        work: Work,
        group: u32,
        lo: u32,
        hi: u32,
    ) -> Key {
        self.born += 1;
        let strip = Strip {
            work,
            group,
            lo,
            hi,
            request,
            phase: Phase::Locking,
            born: self.born,
            parts: None,
            open: 0,
            scratch: None,
            have: 0,
            coming: 0,
            avoid: 0,
            waits_for_late: false,
            wrong: 0,
            tries: 0,
            rests: 0,
            still: Still::Unasked,
            wrote: false,
            missed: Vec::new(),
            failed: None,
            number: 0,
        };
        let key = self.strips.insert(strip);
        if let Some(request) = request {
            self.requests
                .get_mut(request)
                .expect("strips are made for requests that are there")
                .strips_open += 1;
        }
        let unlocked =
            matches!(work, Work::Status(_) | Work::Barrier | Work::Survey | Work::Age | Work::Ask { .. });
        if unlocked || self.locks.ask(group, key, lo, hi, work.is_alone()) {
            self.ready.push_back(key);
        }
        key
    }

    /// Works through what can go on, until everything waits.
    pub(super) fn run(&mut self, now: Time, effects: &mut Vec<Effect>) {
        loop {
            while let Some(key) = self.ready.pop_front() {
                self.advance(now, key, effects);
            }
            let fed = self.starving.front().is_some_and(|key| self.can_feed(*key));
            match fed {
                true => self.ready.extend(self.starving.pop_front()),
                false => return,
            }
        }
    }

    fn advance(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let Some(strip) = self.strips.get(key) else { return };
        // What everyone has written is not torn because another strip failed.
        if let Some(error) = self.failed_elsewhere(strip)
            && strip.open == 0
            && strip.phase != Phase::Writing
        {
            return self.end_strip(now, key, Err(error), effects);
        }
        let begins = matches!(strip.phase, Phase::Locking | Phase::Starving | Phase::Checking);
        if begins && strip.open == 0 && strip.is_write() && now + WRITE_MARGIN_NS > self.deadline(strip) {
            // Cut short, it would be half written.
            return self.end_strip(now, key, Err(VolumeError::TimedOut), effects);
        }
        match strip.phase {
            Phase::Locking | Phase::Starving => {
                let bytes = self.scratch_bytes(strip);
                let strip = self.strips.get_mut(key).expect("looked at above");
                if !has_room(&self.parts, &self.scratch, bytes) {
                    strip.phase = Phase::Starving;
                    return self.starving.push_back(key);
                }
                strip.scratch = (bytes > 0).then(|| self.scratch.take(bytes)).flatten();
                self.begin(now, key, effects);
            }
            _ if strip.open > 0 => {}
            Phase::Reading => self.reading_done(now, key, effects),
            Phase::Checking => self.checked(now, key, effects),
            Phase::Writing | Phase::Excluding => self.writing_done(now, key, effects),
            Phase::Resting => {}
        }
    }

    /// Why there is no use in the strip any more. One of several requests is not given up for one of them.
    pub(super) fn failed_elsewhere(&self, strip: &Strip) -> Option<VolumeError> {
        let alone = !matches!(strip.work, Work::Joined(_));
        strip.request.filter(|_| alone).and_then(|request| self.requests.get(request)?.failed)
    }

    fn deadline(&self, strip: &Strip) -> Time {
        let request = strip.request.and_then(|request| self.requests.get(request));
        request.map_or(Time::MAX, |request| request.deadline)
    }

    /// Whether one that starves may go on: it gets what it needs, or nothing of it is wanted any more.
    fn can_feed(&self, key: Key) -> bool {
        let Some(strip) = self.strips.get(key) else { return true };
        self.failed_elsewhere(strip).is_some()
            || has_room(&self.parts, &self.scratch, self.scratch_bytes(strip))
    }

    fn scratch_bytes(&self, strip: &Strip) -> u32 {
        let (geometry, len) = (self.geometry, strip.len());
        let lanes = if geometry.parity == 0 { 1 } else { geometry.data + geometry.parity };
        match strip.work {
            Work::Gather(_) | Work::Patch { .. } | Work::Joined(_) => len * lanes,
            Work::Fill { .. } | Work::Heal { .. } | Work::Resync | Work::Mend { .. } => len * lanes,
            // Beside the lanes that are read, the parity that they should have.
            Work::Scrub => len * (lanes + geometry.parity),
            Work::Rows(_, Content::Payload) => len * geometry.parity,
            _ => 0,
        }
    }

    fn begin(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let strip = self.strips.get(key).expect("it is being begun");
        match strip.work {
            // Too few would have it: sent to those, it would only spoil what was there.
            _ if strip.is_users_write() && self.is_out_of_reach(strip.group) => {
                self.end_strip(now, key, Err(VolumeError::DonorLost), effects);
            }
            _ if self.needs_what_is_lost(strip) => {
                self.end_strip(now, key, Err(VolumeError::DonorLost), effects);
            }
            // What is acknowledged there could not be kept.
            _ if strip.is_users_write() && self.is_in_doubt(strip.group, strip.lo, strip.hi) => {
                match self.may_settle(now, key) {
                    true => self.wait_for_rows(key, effects),
                    false => self.end_strip(now, key, Err(VolumeError::DonorLost), effects),
                }
            }
            Work::Read(span) => self.begin_read(now, key, span, effects),
            Work::Direct(span, content) => self.begin_direct(now, key, span, content, effects),
            Work::Rows(span, content) => self.begin_rows(now, key, span, content, effects),
            Work::Joined(_) => self.begin_joined(now, key, effects),
            Work::Status(span) => self.begin_status(now, key, span, effects),
            Work::Barrier => self.begin_barrier(key),
            Work::Survey => self.begin_survey(now, key, effects),
            Work::Age => self.begin_age(now, key, effects),
            Work::Ask { slot, of } => self.begin_ask(now, key, slot, of, effects),
            Work::Patch { .. } => self.begin_patch(now, key, effects),
            Work::Resync | Work::Mend { .. } => self.begin_resync(now, key, effects),
            Work::Gather(_) | Work::Fill { .. } | Work::Heal { .. } | Work::Scrub => {
                self.read_lanes(now, key, effects);
            }
        }
    }

    pub(super) fn set_phase(&mut self, key: Key, phase: Phase) {
        let strip = self.strips.get_mut(key).expect("it changes its phase");
        strip.phase = phase;
        if strip.open == 0 {
            self.ready.push_back(key);
        }
    }

    /// Where the lane of a slot is in the strip's scratch.
    pub(super) fn lane(&self, key: Key, slot: u32) -> At {
        let strip = self.strips.get(key).expect("a strip with lanes");
        let lane = if self.geometry.parity == 0 { 0 } else { slot };
        At { mem: Mem::Scratch(strip.scratch.expect("taken before it began")), offset: lane * strip.len() }
    }

    pub(super) fn fragment(&self, key: Key, slot: u32) -> Fragment {
        let strip = self.strips.get(key).expect("a strip of a group");
        Fragment { group: strip.group, slot, local: strip.lo }
    }

    /// Sends a part, or lets it wait for its link to open. False when its donor is set aside: nothing was
    /// done.
    #[expect(clippy::too_many_arguments, reason = "what a part is")]
    pub(super) fn add_part(
        &mut self,
        now: Time,
        key: Key,
        slot: u32,
        placement: Placement,
        op: PartOp,
        local: u32,
        mem: Mem,
        scatter: Scatter,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let donor = placement.donor;
        let link = self.links.get_mut(&donor).expect("a checked map routes every member");
        if link.is_down() {
            return false;
        }
        let strip = self.strips.get_mut(key).expect("parts are of strips");
        strip.wrote |= op.writes();
        if op.writes() && strip.number == 0 && self.geometry.parity > 0 {
            strip.number = self.numbers.begin();
        }
        let progress = Progress::Waiting;
        let next = strip.parts;
        let part = Part {
            strip: key,
            slot,
            placement,
            donor,
            op,
            mem,
            scatter,
            local,
            progress,
            sent_at: now,
            next,
        };
        let part = self.parts.insert(part);
        strip.parts = Some(part);
        strip.open += 1;
        if link.is_up() {
            self.send(now, part, effects)
        } else {
            link.waiting.push_back(part)
        }
        true
    }

    pub(super) fn send(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let part = self.parts.get_mut(key).expect("sent only while it exists");
        part.progress = Progress::Sent;
        part.sent_at = now;
        self.links.get_mut(&part.donor).expect("links of parts stay").owed.push_back((now, key));
        let part = *part;
        let strip = self.strips.get(part.strip).expect("a part never outlives its strip");
        let mark = part.op.writes().then_some(strip.number).filter(|number| *number > 0);
        let mark = mark.map(|number| WriteMark {
            number,
            targets: self.targets_of(strip),
            complete: self.complete(),
        });
        effects.push(Effect::Send {
            donor: part.donor,
            part: key,
            op: part.op,
            address: u64::from(part.placement.extent) * EXTENT_BYTES + u64::from(part.local),
            mem: part.mem,
            scatter: part.scatter,
            fragment: Fragment { group: strip.group, slot: part.slot, local: part.local },
            mark,
        });
    }

    /// The slots that are sent a part of what the strip writes, each for all of its range.
    fn targets_of(&self, strip: &Strip) -> Slots {
        let (data, slots) = (self.geometry.data, self.geometry.data + self.geometry.parity);
        let parity = (data..slots).map(bit).sum::<Slots>();
        match strip.work {
            Work::Patch { span, .. } if data > 1 => self.wanted(span, strip.lo, strip.hi) | parity,
            Work::Fill { slot, .. } | Work::Heal { slot } | Work::Mend { slot } => bit(slot),
            Work::Resync if data > 1 => parity,
            _ => (0..slots).map(bit).sum(),
        }
    }

    pub(super) fn answered(
        &mut self,
        now: Time,
        key: Key,
        answer: Result<Vec<StatusRun>, PartError>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(part) = self.parts.get_mut(key).filter(|part| part.progress == Progress::Sent) else {
            return;
        };
        let (donor, op, sent_at, bytes) = (part.donor, part.op, part.sent_at, part.scatter.len);
        let users_request = self.strips.get(part.strip).and_then(|strip| strip.request);
        self.links.get_mut(&donor).expect("links of parts stay").note_answer(now, sent_at, op);
        if self.is_of_a_tool(users_request) && matches!(op, PartOp::Read | PartOp::Write) {
            self.pace.note(now.saturating_sub(sent_at));
        }
        if users_request.is_some() && op == PartOp::Read {
            self.note_speed(now, bytes, now.saturating_sub(sent_at));
        }
        match answer {
            Ok(runs) => self.part_succeeded(key, &runs),
            Err(error) => self.part_failed(now, key, Failure::Answer(error), effects),
        }
    }

    fn part_succeeded(&mut self, key: Key, runs: &[StatusRun]) {
        let part = self.parts.get_mut(key).expect("checked by the caller");
        part.progress = Progress::Done;
        let (strip_key, slot, op, scatter) = (part.strip, part.slot, part.op, part.scatter);
        let strip = self.strips.get_mut(strip_key).expect("a part never outlives its strip");
        strip.open -= 1;
        if strip.coming & bit(slot) != 0 && op == PartOp::Read {
            strip.coming &= !bit(slot);
            strip.have |= bit(slot);
        }
        match op {
            PartOp::Status if matches!(strip.work, Work::Ask { .. }) => {}
            PartOp::Status => {
                let request = strip.request.and_then(|request| self.requests.get_mut(request));
                super::collect_status(&mut request.expect("asked by a request").status, scatter, runs)
            }
            PartOp::Survey if strip.work == Work::Survey => self.surveyed.push((strip.group, runs.to_vec())),
            PartOp::Survey if runs.iter().any(|run| !run.hole) => strip.still = Still::Disturbed,
            _ if op.writes() => {
                for key in strip.request.into_iter().chain(self.joins.beside(strip_key)) {
                    if let Some(request) = self.requests.get_mut(key)
                        && !request.touched.contains(&(strip.group, slot))
                    {
                        request.touched.push((strip.group, slot));
                    }
                }
            }
            _ => {}
        }
        if strip.open == 0 {
            self.ready.push_back(strip_key);
        }
    }

    /// The strip learns that a part of it will have no good answer.
    pub(super) fn part_failed(&mut self, now: Time, key: Key, failure: Failure, effects: &mut Vec<Effect>) {
        let Some(part) = self.parts.get_mut(key).filter(|part| part.progress != Progress::Done) else {
            return;
        };
        part.progress = Progress::Done;
        let (strip_key, slot, op) = (part.strip, part.slot, part.op);
        let missed = Missed { slot, placement: part.placement };
        let (local, scatter, len) = (part.local, part.scatter, part.scatter.len);
        let strip = self.strips.get_mut(strip_key).expect("a part never outlives its strip");
        strip.open -= 1;
        strip.coming &= !bit(slot);
        if let Failure::Answer(PartError::Corrupt { blocks }) = failure {
            self.found_corrupt(strip_key, missed, local, len, blocks);
        }
        let strip = self.strips.get_mut(strip_key).expect("looked at above");
        match op {
            PartOp::Read => self.read_failed(now, strip_key, slot, failure, effects),
            _ if op.writes() => {
                strip.missed.push(missed);
                self.write_failed(strip_key, missed, failure);
            }
            PartOp::Status if matches!(strip.work, Work::Ask { .. }) => {}
            PartOp::Status
                if self.geometry.parity == 0
                    && failure != Failure::Moved
                    && !(self.read_only && failure == Failure::Answer(PartError::Denied)) =>
            {
                match failure.error() {
                    // What is in front of it is none the worse.
                    error @ (VolumeError::DonorLost | VolumeError::DonorFailed | VolumeError::TimedOut) => {
                        self.status_ends(strip_key, scatter, 0, error);
                    }
                    error => strip.failed = Some(error),
                }
            }
            PartOp::Status => {
                // What its holder would say is not known; present is never wrong.
                let request = strip.request.and_then(|request| self.requests.get_mut(request));
                super::collect_status(&mut request.expect("asked by a request").status, scatter, &[]);
            }
            PartOp::Survey if strip.work != Work::Survey => match failure {
                Failure::Answer(PartError::Unsupported) => strip.failed = Some(VolumeError::DonorLost),
                _ => strip.still = Still::Disturbed,
            },
            PartOp::Survey if failure == Failure::Answer(PartError::Unsupported) => {
                let all = u32::try_from(EXTENT_BYTES).expect("an extent is 64 MiB");
                self.surveyed.push((strip.group, vec![StatusRun { len: all, hole: false }]));
            }
            PartOp::Survey => {
                let group = strip.group;
                self.survey_missed(group, missed);
            }
            PartOp::Age if strip.work == Work::Age => {}
            PartOp::Age if failure == Failure::Moved => self.barrier_moved(strip_key),
            _ => strip.failed = Some(failure.error()),
        }
        if self.strips.get(strip_key).is_some_and(|strip| strip.open == 0) {
            self.ready.push_back(strip_key);
        }
    }

    /// Forgets the parts that the strip has; those still on their way are reads, whose answers are not
    /// wanted.
    pub(super) fn drop_parts(&mut self, key: Key, effects: &mut Vec<Effect>) {
        let Some(strip) = self.strips.get_mut(key) else { return };
        let mut next = strip.parts.take();
        (strip.open, strip.coming) = (0, 0);
        while let Some((key, part)) = next.and_then(|key| Some((key, self.parts.remove(key)?))) {
            next = part.next;
            match part.progress {
                Progress::Sent => {
                    assert!(!part.op.writes(), "a write on its way reads its payload");
                    effects.push(Effect::Abandon { donor: part.donor, part: key });
                }
                Progress::Waiting => {
                    let link = self.links.get_mut(&part.donor).expect("links of parts stay");
                    link.waiting.retain(|waiting| *waiting != key);
                }
                Progress::Done => {}
            }
        }
    }

    pub(super) fn each_open_part(&self, key: Key) -> impl Iterator<Item = (Key, &Part)> {
        let mut next = self.strips.get(key).and_then(|strip| strip.parts);
        std::iter::from_fn(move || {
            let key = next?;
            let part = self.parts.get(key)?;
            next = part.next;
            Some((key, part))
        })
        .filter(|(_, part)| part.progress != Progress::Done)
    }

    pub(super) fn end_strip(
        &mut self,
        now: Time,
        key: Key,
        result: Result<(), VolumeError>,
        effects: &mut Vec<Effect>,
    ) {
        self.drop_parts(key, effects);
        self.free_scratch(key);
        let strip = self.strips.remove(key).expect("a strip ends once");
        if result.is_err() && matches!(strip.phase, Phase::Writing | Phase::Excluding) {
            self.tear(&strip, effects);
        }
        if strip.number > 0 {
            self.numbers.end(strip.number);
        }
        self.starving.retain(|starving| *starving != key);
        let ready = &mut self.ready;
        self.locks.release(strip.group, key, |granted| ready.push_back(granted));
        self.upkeep_ended(now, &strip, result);
        let result = result.and(strip.failed.map_or(Ok(()), Err));
        if let Work::Joined(_) = strip.work {
            for request in self.joins.ended(key) {
                self.strip_of_request_ended(request, result, effects);
            }
        }
        if let Some(request) = strip.request {
            self.strip_of_request_ended(request, result, effects);
        }
    }

    pub(super) fn free_scratch(&mut self, key: Key) {
        if let Some(piece) = self.strips.get_mut(key).and_then(|strip| strip.scratch.take()) {
            self.scratch.give_back(piece);
        }
    }

    /// Whether redundancy cannot make up for the holders that are not there.
    fn is_out_of_reach(&self, group: u32) -> bool {
        let slots = 0..self.geometry.data + self.geometry.parity;
        let there = slots.filter(|slot| self.source(group, *slot).is_some()).count();
        self.geometry.parity > 0 && there < self.geometry.data as usize
    }

    /// The holder of a slot that can be asked, and how willingly.
    pub(super) fn source(&self, group: u32, slot: u32) -> Option<(Placement, link::Trust)> {
        let held = self.map.groups[group as usize].slots[slot as usize].held?;
        let trust = self.links.get(&held.donor)?.trust()?;
        Some((held, trust))
    }
}
