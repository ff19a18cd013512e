//! The volume machine: what a client does with a request of a front end, and with donors that come and go.
//!
//! Owns: which policy is asked about what happened, and in which order. Never: payload bytes (effects say
//! what to compute and compare, the driver has them), sockets, clocks, or how many connections a link has.
//! Invariants: every submitted request is completed exactly once, by its deadline at the latest; an
//! acknowledged write is on every slot of its groups that the map calls held; an answer counts only once;
//! what a write sends changes only after its answer or `Close`; after `Close` or `Abandon` the driver touches
//! none of those payloads, so a `Complete` behind it may hand the memory back.
//! Called by `rim::volume` and by `sim`. Tests: `tests/volume_*.rs`, the simulator.
//!
//! Files: what policies stand on, as one `base`: `shape` (the map, and where bytes lie), `link` (one donor),
//! `job` (a locked piece of work and its parts), `jobs`, `request`, `doubts` (rows that may not fit
//! together), `tally`. Policies over that: `read`, `beside` (a writer), `status`, `write`, `join` (rows
//! written by several requests), `lanes` (what several share), `flush`, `stale` (what donors may have lost of
//! what no flush covered), `absent` (what a source is still to give), `expiry` (requests that are late);
//! `watch` (donors that come and go), `changes` (what the coordinator is told, newer maps); `resync` (rows
//! half written), `judge` (which of them fit together, by what donors list), `fit` (likewise, by what they
//! hold); `upkeep` with `fill`, `heal`, `scrub`, `compare`, `age`; `proofs` (who does not wait for one);
//! `cached` (reads from what was read ahead). Small parts: `types` (events, effects), `cache`, `buddy` (its
//! memory), `numbers` (by which donors list writes), `merge` (what leaves as one request), `locks`,
//! `scratch`, `pace`, `slab`.

mod absent;
mod age;
mod base;
mod beside;
mod buddy;
mod cache;
mod cached;
mod changes;
mod compare;
mod doubts;
mod expiry;
mod fill;
mod fit;
mod flush;
mod heal;
mod job;
mod jobs;
mod join;
mod judge;
mod lanes;
mod link;
mod locks;
mod merge;
mod numbers;
mod pace;
mod proofs;
mod read;
mod request;
mod resync;
mod scratch;
mod scrub;
mod shape;
mod slab;
mod stale;
mod status;
mod tally;
mod types;
mod upkeep;
mod watch;
mod write;

use crate::api::VolumeReport;
use crate::limits::{
    BLOCK_BYTES, FINISH_NS, JOBS_MAX, PARITY_MAX, REQUEST_DEADLINE_NS, REQUESTS_IN_FLIGHT_MAX, SECOND_NS,
    STRIPE_DONORS_MAX, TICK_NS, WRITE_MARGIN_NS,
};
use crate::map::{DonorId, VolumeMap};
use crate::units::Time;
use base::Base;
use cached::Cached;
use changes::Changes;
use doubts::Stage;
use job::{Failure, Missed, Part, Phase, Progress, Still, Work, bit};
pub use link::connections;
pub use merge::{LinkMerges, batch_merges_bytes_max};
use resync::Resync;
use scratch::Scratch;
use shape::Shape;
pub use slab::Key;
pub use types::{
    At, Caching, Combine, Effect, Event, FetchError, Fragment, LinkFailure, Mem, Op, PartError, PartOp,
    Request, Scope, Scrubbed, ScrubbedDonor, StatusRun, Tag, Unproved, VolumeError,
};
use upkeep::Upkeep;

const BLOCK: u32 = BLOCK_BYTES as u32;
/// One request is cut into this many jobs at most: 64 groups of a 4 GiB TRIM in three each, or 32 MiB of
/// rows whose lanes or parity just fit into scratch memory.
const JOBS_PER_REQUEST_MAX: usize = 256;
const PARTS_MAX: usize = 16 * REQUESTS_IN_FLIGHT_MAX;
/// What could not be done is tried again after this.
const PAUSE_NS: Time = SECOND_NS / 2;

const _: () = assert!(JOBS_PER_REQUEST_MAX < JOBS_MAX && PARITY_MAX < STRIPE_DONORS_MAX);

/// One attached volume: its requests, its links to donors, its upkeep.
#[derive(Debug)]
pub struct Volume {
    base: Base,
    resync: Resync,
    upkeep: Upkeep,
    changes: Changes,
    wake_announced: Option<Time>,
}

impl Volume {
    /// `map` has passed its own `check`. `fresh`: nobody wrote before, so nothing can be half written.
    #[must_use]
    pub fn new(map: VolumeMap, read_only: bool, fresh: bool) -> Self {
        let settled = read_only || fresh || map.redundancy.parity == 0;
        let surveyed_groups = if settled { 0 } else { map.groups.len() };
        let stage = if settled { Stage::Serving } else { Stage::Linking };
        Volume {
            base: Base::new(Shape::new(map, read_only), stage),
            resync: Resync::new(surveyed_groups),
            upkeep: Upkeep::default(),
            changes: Changes::default(),
            wake_announced: None,
        }
    }

    /// Reads ahead from now on; `Mem::Cache` is as large as `caching` says.
    #[must_use]
    pub fn with_cache(mut self, caching: Caching) -> Self {
        self.base.cached = Cached::new(caching);
        self
    }

    /// The newest map that it was given.
    #[must_use]
    pub fn map(&self) -> &VolumeMap {
        &self.base.shape.map
    }

    /// Bytes of each piece of scratch memory that `Mem::Scratch` numbers.
    pub fn scratch_sizes() -> impl Iterator<Item = u32> {
        Scratch::sizes()
    }

    /// Whether another request may be submitted now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let Base { requests, jobs, doubts, .. } = &self.base;
        doubts.stage == Stage::Serving
            && requests.room() > 0
            && jobs.room() >= JOBS_PER_REQUEST_MAX + self.base.jobs_promised()
            && jobs.parts.room() >= 2 * STRIPE_DONORS_MAX as usize
    }

    /// Whether requests are worked on; before that, rows that a writer left half written are mended.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.base.doubts.stage == Stage::Serving
    }

    /// Whether every donor has been reached or set aside and nothing is half written: the moment at which
    /// attaching is done.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.base.doubts.stage == Stage::Serving && self.base.links.all_settled()
    }

    /// The donors that cannot be reached, and why.
    pub fn lost(&self) -> impl Iterator<Item = (DonorId, &str)> {
        self.base.links.lost()
    }

    /// Whether what is to be checked goes without the proof at this offset, which may wait for it.
    #[must_use]
    pub fn goes_without_proof(&self, what: Unproved, offset: u64) -> bool {
        proofs::goes_without(&self.base, what, offset)
    }

    /// What `status` shows of this volume.
    #[must_use]
    pub fn report(&self) -> VolumeReport {
        let counts = self.base.cached.as_ref().map(Cached::counts).unwrap_or_default();
        self.base.tally.report(self.scrubbed(), counts)
    }

    /// What the pass of the scrubber has found that runs, or the last one.
    #[must_use]
    pub fn scrubbed(&self) -> &Scrubbed {
        self.upkeep.scrubbing.found()
    }

    /// Takes one event, and adds what follows to `effects`.
    ///
    /// The driver calls it: with `Event::Start` first and once, then with whatever happens, one event at a
    /// time. `now` is in nanoseconds from any beginning, and never goes back. The driver carries out the
    /// effects in their order, all of them before the next step; what an effect asks for comes back as an
    /// event of its own. Nothing is kept of `effects` between steps.
    pub fn step(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        self.base.now = now;
        std::mem::swap(&mut self.base.effects, effects);
        self.take(event);
        let base = &mut self.base;
        base.upkeep_due |= base.doubts.stage == Stage::Linking;
        absent::look(base);
        if base.doubts.stage == Stage::Excluding && !self.changes.still_excludes(base) {
            self.resync.excluded(base);
        }
        self.run();
        join::stop_waiting(&mut self.base);
        if !self.base.jobs.ready.is_empty() {
            self.run();
        }
        // What upkeep starts may end at once and make more of it due.
        while self.base.upkeep_due && !self.base.finished {
            upkeep::keep_up(&mut self.base, &mut self.resync, &mut self.upkeep);
            self.run();
        }
        self.changes.tell(&mut self.base);
        self.announce_wake();
        std::mem::swap(&mut self.base.effects, effects);
    }

    #[inline]
    fn take(&mut self, event: Event) {
        let base = &mut self.base;
        match event {
            Event::Start => watch::start(base),
            Event::Submit { tag, request } => {
                assert!(self.has_room(), "the driver checks has_room before it submits");
                match request.op {
                    Op::Flush => flush::submit(&mut self.base, tag),
                    _ => request::submit(&mut self.base, tag, request),
                }
            }
            Event::Map(map) => changes::replace_map(base, map),
            Event::Amended(map) => {
                let granted = map.is_some() && !base.shape.read_only;
                self.changes.amended(base, map);
                if granted {
                    self.resync.excluded(base);
                }
            }
            Event::LeaseLost => {
                base.lease_lost = true;
                cached::stop(base);
                base.upkeep_due = true;
                base.jobs.look_at_waiting();
            }
            Event::Silent(donors) => self.upkeep.ask_donors(base, &donors),
            Event::Opened { donor, session } => {
                if watch::opened(base, donor, session) {
                    stale::returned(base, donor);
                    self.upkeep.aging.again(base);
                }
            }
            Event::Reached { donor, session } => watch::reached(base, donor, session),
            Event::Failed { donor, session, failure } => watch::failed(base, donor, session, failure),
            Event::Listed { part, complete, writes } => self.resync.listed(base, part, complete, &writes),
            Event::Came { part } => base.came(part),
            Event::Answered { part, answer } => self.answered(part, answer),
            Event::Verified { job, right } => base.jobs.verified(job, right),
            Event::Fetched { request, result } => absent::fetched(base, request, result),
            Event::Forget => cached::forget(base, 0, u64::MAX),
            Event::Scrub(scope) => self.upkeep.scrub(base, scope),
            Event::Compare => self.upkeep.comparing.begin_pass(base),
            Event::Finish => {
                let fetches = cached::fetches(base);
                expiry::give_up(self, fetches);
                self.upkeep.scrubbing.stop();
                let base = &mut self.base;
                let flushes = base.shape.map.write_back && !base.shape.read_only && !base.lease_lost;
                base.finishing = Some(base.now + if flushes { REQUEST_DEADLINE_NS } else { FINISH_NS });
                if flushes {
                    flush::to_disks(base, None);
                }
                base.upkeep_due = true;
            }
            Event::Wake => self.wake(),
        }
    }

    /// Works through what can go on, until everything waits: first what follows from parts and jobs that are
    /// over.
    fn run(&mut self) {
        loop {
            if !self.base.failed.is_empty() || !self.base.jobs.ended.is_empty() {
                self.work_off();
            }
            if let Some(key) = self.base.jobs.ready.pop_front() {
                self.advance(key);
                continue;
            }
            let fed = self.base.jobs.starving.front().is_some_and(|key| self.base.can_feed(*key));
            if fed {
                let Base { jobs, .. } = &mut self.base;
                jobs.ready.extend(jobs.starving.pop_front());
            } else if let Some((segment, good)) = self.base.fetched.pop() {
                cached::take(&mut self.base, segment, good);
            } else {
                return;
            }
        }
    }

    fn work_off(&mut self) {
        loop {
            if let Some((part, failure)) = self.base.failed.pop_front() {
                self.part_failed(part, failure);
            } else if let Some((job, result)) = self.base.jobs.ended.pop_front() {
                self.job_ended(job, result);
            } else {
                return;
            }
        }
    }

    fn advance(&mut self, key: Key) {
        let base = &mut self.base;
        let Some(job) = base.jobs.get(key) else { return };
        // What everyone has written is not torn because another job failed.
        if let Some(error) = base.failed_elsewhere(job)
            && job.open == 0
            && job.phase != Phase::Writing
        {
            return base.end_job(key, Err(error));
        }
        let begins = matches!(job.phase, Phase::Locking | Phase::Starving | Phase::Checking);
        if begins && job.open == 0 && job.is_write() && base.now + WRITE_MARGIN_NS > base.deadline(job) {
            // Cut short, it would be half written.
            return base.end_job(key, Err(VolumeError::TimedOut));
        }
        match job.phase {
            Phase::Locking | Phase::Starving => {
                let may = || !job.work.is_locked() || base.jobs.locks.is_granted(job.group, key);
                debug_assert!(may(), "it begins without its lock: {job:?}");
                let bytes = base.scratch_bytes(job);
                if !base.jobs.has_room(bytes) {
                    base.jobs[key].phase = Phase::Starving;
                    return base.jobs.starving.push_back(key);
                }
                base.jobs[key].scratch = (bytes > 0).then(|| base.jobs.scratch.take(bytes)).flatten();
                self.begin(key);
            }
            _ if job.open > 0 => {}
            Phase::Reading => self.reading_done(key),
            Phase::Checking => self.checked(key),
            Phase::Writing | Phase::Excluding => write::done(base, key),
            Phase::Resting => {}
        }
    }

    fn begin(&mut self, key: Key) {
        let base = &mut self.base;
        let job = &base.jobs[key];
        match job.work {
            // Too few would have it: sent to those, it would only spoil what was there.
            _ if job.is_users_write() && base.is_out_of_reach(job.group) => {
                base.end_job(key, Err(VolumeError::DonorLost));
            }
            _ if read::needs_what_is_lost(base, job) => base.end_job(key, Err(VolumeError::DonorLost)),
            // What is acknowledged there could not be kept.
            _ if job.is_users_write() && doubts::is_in_doubt(base, job.group, job.lo, job.hi) => {
                match doubts::may_settle(base, key) {
                    true => base.wait_for_rows(key),
                    false => base.end_job(key, Err(VolumeError::DonorLost)),
                }
            }
            Work::Read(span) => read::begin(base, key, span),
            Work::Direct(span, content) => write::begin_direct(base, key, span, content),
            Work::Rows(span, content) => write::begin_rows(base, key, span, content),
            Work::Joined(_) => join::begin(base, key),
            Work::Status(span) => status::begin(base, key, span),
            Work::Barrier => flush::begin(base, key),
            Work::Flush => flush::begin_to_disks(base, key),
            Work::Survey => self.resync.begin_survey(base, key),
            Work::Age => age::begin(base, key),
            Work::Ask { slot, of } => upkeep::begin_ask(base, key, slot, of),
            Work::Patch { .. } => write::begin_patch(base, key),
            Work::Resync | Work::Mend { .. } | Work::Undo(_) | Work::Fit => resync::begin(base, key),
            Work::Scrub { slot, .. } => scrub::begin(base, key, slot),
            Work::Heal { slot } => heal::begin(base, key, slot),
            Work::Gather(_) | Work::Fill { .. } | Work::Compare => lanes::read(base, key),
        }
    }

    fn reading_done(&mut self, key: Key) {
        let base = &mut self.base;
        let job = &base.jobs[key];
        match job.work {
            _ if let Some(error) = job.failed => base.end_job(key, Err(error)),
            Work::Read(_) | Work::Status(_) | Work::Barrier | Work::Undo(_) => base.end_job(key, Ok(())),
            Work::Survey | Work::Age | Work::Ask { .. } | Work::Scrub { .. } => base.end_job(key, Ok(())),
            Work::Resync => resync::write_lanes(base, key),
            Work::Flush => flush::done_on_disks(base, key),
            Work::Compare => compare::compare(base, key),
            Work::Fit => fit::compare(base, key),
            _ => lanes::complete(base, key),
        }
    }

    fn checked(&mut self, key: Key) {
        let base = &mut self.base;
        let job = &base.jobs[key];
        match job.work {
            Work::Compare => compare::checked(base, &mut self.upkeep.healing, key),
            Work::Fit => fit::checked(base, key),
            Work::Fill { slot, to } if job.failed.is_some() => fill::wrongly_rebuilt(base, key, slot, to),
            _ if let Some(error) = job.failed => lanes::wrongly_rebuilt(base, key, error),
            Work::Gather(span) => {
                read::copy_out(base, key, span);
                base.end_job(key, Ok(()));
            }
            Work::Patch { span, content, delta } => write::patch_lanes(base, key, span, content, delta),
            Work::Fill { slot, to } => fill::write(base, key, slot, to),
            Work::Mend { .. } if !doubts::is_to_be_mended(base, key) => {
                base.end_job(key, Err(VolumeError::DonorLost));
            }
            Work::Heal { slot } | Work::Mend { slot } => heal::write(base, key, slot),
            _ => unreachable!("nothing else is checked"),
        }
    }

    fn answered(&mut self, key: Key, answer: Result<Vec<StatusRun>, PartError>) {
        let base = &mut self.base;
        let sent = |part: &&Part| matches!(part.progress, Progress::Sent | Progress::Came);
        let Some(part) = base.jobs.parts.get(key).filter(sent).copied() else { return };
        let took = base.now.saturating_sub(part.sent_at);
        let request = base.jobs.get(part.job).and_then(|job| job.request);
        if part.progress == Progress::Sent {
            base.links[part.placement.donor].note_answer(base.now, part.sent_at, part.op);
        }
        if base.is_of_a_tool(request) && matches!(part.op, PartOp::Read | PartOp::Write) {
            base.pace.note(took);
        }
        if request.is_some() && part.op == PartOp::Read {
            cached::note_speed(base, part.run.scatter.len, took);
        }
        match answer {
            Ok(runs) => self.part_succeeded(key, &part, &runs),
            Err(error) => base.fail_part(key, Failure::Answer(error)),
        }
    }

    fn part_succeeded(&mut self, key: Key, part: &Part, runs: &[StatusRun]) {
        let Base { jobs, .. } = &mut self.base;
        jobs.parts.get_mut(key).expect("it was just answered").progress = Progress::Done;
        let job = &mut jobs[part.job];
        job.open -= 1;
        if job.coming & bit(part.slot) != 0 && part.op == PartOp::Read {
            job.coming &= !bit(part.slot);
            job.have |= bit(part.slot);
        }
        match part.op {
            PartOp::Status if matches!(job.work, Work::Ask { .. }) => {}
            PartOp::Presence if let Work::Fill { slot, to } = job.work => {
                fill::presence_told(&mut self.base, part.job, slot, to, runs);
            }
            PartOp::Status | PartOp::Presence => status::answered(&mut self.base, part, runs),
            PartOp::Survey if job.work == Work::Survey => self.resync.answered(job.group, runs.to_vec()),
            PartOp::Survey if runs.iter().any(|run| !run.hole) => job.still = Still::Disturbed,
            PartOp::Verify => self.upkeep.verified(&mut self.base, part, runs),
            op if op.writes() => {
                self.base.links[part.placement.donor].undurable = true;
                let Base { jobs, requests, joins, .. } = &mut self.base;
                let job = &jobs[part.job];
                let of = job.request.into_iter().chain(joins.beside(part.job));
                of.for_each(|request| requests.touched(request, (job.group, part.slot)));
            }
            _ => {}
        }
        self.base.jobs.goes_on(part.job);
    }

    /// The job learns that a part of it will have no good answer. One that is over, or begins anew, has no
    /// use for that.
    fn part_failed(&mut self, key: Key, failure: Failure) {
        let base = &mut self.base;
        let Some(part) = base.jobs.parts.get(key).copied() else { return };
        let missed = Missed { slot: part.slot, placement: part.placement };
        base.jobs[part.job].open -= 1;
        if let Failure::Answer(PartError::Corrupt { blocks, forged }) = failure {
            // Of what is forged its donor would say that it is right.
            if (!forged && beside::has_it_verified(base, &part)) || write::again(base, &part, blocks) {
                return;
            }
            if forged {
                base.tally.found_in_memory(part.placement.donor, blocks);
            }
            if forged || !base.shape.read_only {
                self.upkeep.healing.found_corrupt(base, part, blocks);
            }
        }
        let job = &mut base.jobs[part.job];
        job.coming &= !bit(part.slot);
        match part.op {
            PartOp::Read => read::failed(base, part.job, part.slot, failure),
            op if op.writes() => {
                job.missed.push(missed);
                write::failed(base, part.job, missed, failure);
            }
            PartOp::Status if matches!(job.work, Work::Ask { .. }) => {}
            PartOp::Presence if matches!(job.work, Work::Fill { .. }) => job.failed = Some(failure.error()),
            PartOp::Status | PartOp::Presence => status::failed(base, &part, failure),
            PartOp::Survey if job.work == Work::Survey => {
                self.resync.survey_failed(job.group, missed, failure);
            }
            PartOp::Survey => beside::survey_failed(job, failure),
            PartOp::Verify if matches!(job.work, Work::Heal { .. }) => {
                self.upkeep.healing.not_verified(base, &part, failure);
            }
            PartOp::Verify if !matches!(job.work, Work::Scrub { .. }) => {
                self.upkeep.healing.not_told(base, &part, failure);
            }
            PartOp::Age if job.work == Work::Age => {}
            PartOp::Flush => flush::failed(base, part.job, part.placement.donor, failure),
            PartOp::Undo => resync::undo_failed(base, part.job, failure),
            PartOp::Age if failure == Failure::Moved => flush::moved(base, part.job),
            _ => job.failed = Some(failure.error()),
        }
        // One that waits for its lock goes on when it is given that.
        if self.base.jobs.get(part.job).is_some_and(|job| job.phase != Phase::Locking) {
            self.base.jobs.goes_on(part.job);
        }
    }

    fn job_ended(&mut self, key: Key, result: Result<(), VolumeError>) {
        let base = &mut self.base;
        let job = base.jobs.remove(key);
        if base.shape.map.write_back {
            flush::ended(base, key);
            stale::note_written(base, &job);
        }
        if result.is_err() && matches!(job.phase, Phase::Writing | Phase::Excluding) {
            write::tear(base, &job);
        }
        let result = result.and(job.failed.map_or(Ok(()), Err));
        if job.is_write() && base.shape.geometry.parity > 0 {
            self.upkeep.aging.write_ended(base.now, &job);
        }
        let Some(request) = job.request else {
            self.upkeep.ended(base, &job, result.is_ok());
            self.resync.ended(base, &job, result.is_ok());
            base.upkeep_due = true;
            return;
        };
        if let Work::Joined(_) = job.work {
            for request in base.joins.ended(key) {
                request::job_ended(base, request, result);
            }
        }
        request::job_ended(base, request, result);
    }

    fn wake(&mut self) {
        self.wake_announced = None;
        join::stop_waiting(&mut self.base);
        expiry::expire_requests(self);
        let base = &mut self.base;
        watch::expire(base);
        self.changes.expire(base);
        if base.now >= base.ticked_at + TICK_NS {
            watch::doubt_connections(base);
            if base.shape.geometry.parity > 0 {
                watch::look(base);
            } else {
                base.ticked_at = base.now;
            }
            watch::exclude_who_is_gone(base);
            base.upkeep_due |= !base.jobs.waiting.is_empty();
            self.upkeep.tick(base);
            beside::tick_resting(base);
        }
    }

    fn announce_wake(&mut self) {
        let base = &mut self.base;
        let deadline = base.requests.first_due().map(|(at, _)| at);
        let links = base.links.waits();
        let gone = base.shape.geometry.parity > 0 && links.any_down;
        let waits = base.jobs.len() > 0 || !base.jobs.resting.is_empty() || self.upkeep.waits(base);
        let tick = (waits || gone).then_some(base.ticked_at + TICK_NS);
        let aging = self.upkeep.aging.wake_at(base);
        let (joins, absent) = (base.joins.wake_at(), base.absent.wake_at());
        let all = [deadline, links.wake_at, tick, self.changes.retry_at, aging, joins, absent];
        let Some(next) = all.iter().filter_map(|at| *at).min().filter(|_| !base.finished) else { return };
        if self.wake_announced.is_none_or(|announced| next < announced) {
            self.wake_announced = Some(next);
            base.effects.push(Effect::WakeAt(next));
        }
    }

    /// Panics when a rule that the code relies on does not hold. For tests and the simulator: it looks at
    /// everything.
    pub fn check_invariants(&self) {
        self.base.check_invariants();
    }
}
