//! What the policies stand on: the map, the links, the jobs, the requests, and what is known of rows and
//! slots.
//!
//! Owns how a part gets to its donor and what becomes of it, and a job's end. Never: what is read or written
//! for whom (`read`, `write`, `resync`, `upkeep`), or when a donor is given up (`watch`). Invariants: a job
//! ends once, and no part of it touches memory afterwards; an answer counts once. Tests: those of the
//! policies.
//!
//! A policy is a module of functions over this. What follows for others it leaves in queues, `failed` and
//! `jobs.ended`, which the machine works off before anything else goes on.

use super::absent::Absent;
use super::cached::{Cached, WAIT_JOBS_MAX};
use super::doubts::{Doubts, Stage};
use super::fill::Fills;
use super::job::{Content, Failure, Job, Part, Phase, Progress, Run, Slots, Undo, Work, bit};
use super::jobs::Jobs;
use super::join::Joins;
use super::link::{Link, Links, Trust};
use super::pace::Pace;
use super::request::{Asker, Requests};
use super::shape::Shape;
use super::stale::Unflushed;
use super::tally::Tally;
use super::types::{At, Effect, Fragment, Mem, PartOp, VolumeError};
use super::{Key, PARTS_MAX, doubts};
use crate::donor::WriteMark;
use crate::layout::{self, Geometry};
use crate::map::{DonorId, Placement};
use crate::units::Time;
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
pub(super) struct Base {
    /// The time of the step that is under way, and what follows from it for the driver.
    pub(super) now: Time,
    pub(super) effects: Vec<Effect>,
    pub(super) shape: Shape,
    pub(super) links: Links,
    pub(super) requests: Requests,
    pub(super) joins: Joins,
    pub(super) jobs: Jobs,
    /// Parts that will have no good answer, for whoever sent them.
    pub(super) failed: VecDeque<(Key, Failure)>,
    pub(super) doubts: Doubts,
    pub(super) fills: Fills,
    /// Whom the coordinator shall take out of the map, and why.
    pub(super) exclusions: BTreeMap<DonorId, String>,
    pub(super) pace: Pace,
    pub(super) tally: Tally,
    pub(super) cached: Option<Cached>,
    /// Segments of the cache that were answered just now, and whether well.
    pub(super) fetched: Vec<(Key, bool)>,
    pub(super) absent: Absent,
    pub(super) unflushed: Unflushed,
    /// The flush that asks donors for their disks, and when the next one may.
    pub(super) flushing: Option<Key>,
    pub(super) flush_pause_until: Time,
    /// Something changed that upkeep has to look at.
    pub(super) upkeep_due: bool,
    pub(super) lease_lost: bool,
    /// No request follows; the service ends then at the latest.
    pub(super) finishing: Option<Time>,
    pub(super) finished: bool,
    /// When the links were last looked at.
    pub(super) ticked_at: Time,
}

impl Base {
    pub(super) fn new(shape: Shape, stage: Stage) -> Base {
        Base {
            now: 0,
            effects: Vec::new(),
            links: Links::new(&shape.map),
            shape,
            requests: Requests::new(),
            joins: Joins::default(),
            jobs: Jobs::new(),
            failed: VecDeque::with_capacity(PARTS_MAX),
            doubts: Doubts::new(stage),
            fills: Fills::default(),
            exclusions: BTreeMap::new(),
            pace: Pace::new(),
            tally: Tally::default(),
            cached: None,
            fetched: Vec::new(),
            absent: Absent::default(),
            unflushed: Unflushed::default(),
            flushing: None,
            flush_pause_until: 0,
            upkeep_due: true,
            lease_lost: false,
            finishing: None,
            finished: false,
            ticked_at: 0,
        }
    }

    /// A job that waits for its lock, or is ready if it need not. Upkeep has no request.
    pub(super) fn add_job(&mut self, request: Option<Key>, work: Work, group: u32, lo: u32, hi: u32) -> Key {
        self.jobs.born += 1;
        if let Some(request) = request {
            self.requests[request].jobs_open += 1;
        }
        self.jobs.insert(Job::new(request, work, group, lo, hi, self.jobs.born))
    }

    pub(super) fn set_phase(&mut self, key: Key, phase: Phase) {
        self.jobs.set_phase(key, phase);
    }

    /// Ends a job. What follows for others is done next.
    pub(super) fn end_job(&mut self, key: Key, result: Result<(), VolumeError>) {
        self.drop_parts(key);
        self.jobs.end(key, result);
    }

    /// Whether one that starves may go on: it gets what it needs, or nothing of it is wanted any more.
    pub(super) fn can_feed(&self, key: Key) -> bool {
        let Some(job) = self.jobs.get(key) else { return true };
        self.failed_elsewhere(job).is_some() || self.jobs.has_room(self.scratch_bytes(job))
    }

    pub(super) fn scratch_bytes(&self, job: &Job) -> u32 {
        let (geometry, len) = (self.shape.geometry, job.len());
        let lanes = if geometry.parity == 0 { 1 } else { geometry.data + geometry.parity };
        match job.work {
            Work::Gather(_) | Work::Patch { .. } | Work::Joined(_) => len * lanes,
            Work::Fill { .. } | Work::Heal { .. } | Work::Resync | Work::Mend { .. } => len * lanes,
            // Beside the lanes that are read, the parity that they should have.
            Work::Compare | Work::Fit => len * (lanes + geometry.parity),
            Work::Rows(_, Content::Payload) => len * geometry.parity,
            _ => 0,
        }
    }

    /// Sends a part, or lets it wait for its link to open. False when its donor is set aside: nothing was
    /// done.
    pub(super) fn add_part(&mut self, key: Key, slot: u32, to: Placement, op: PartOp, run: Run) -> bool {
        let link = &mut self.links[to.donor];
        if link.is_down() {
            return false;
        }
        let numbered = self.shape.geometry.parity > 0;
        let part = self.jobs.add_part(key, Part::new(key, slot, to, op, run, self.now), numbered);
        match link.is_up() {
            true => self.send(part),
            false => link.waiting.push_back(part),
        }
        true
    }

    /// Sends a part over its link, which is up.
    #[inline]
    pub(super) fn send(&mut self, key: Key) {
        let part = self.jobs.parts.get_mut(key).expect("sent only while it exists");
        (part.progress, part.sent_at) = (Progress::Sent, self.now);
        let Part { job, slot, placement, op, run, .. } = *part;
        self.links[placement.donor].owed.push_back((self.now, key));
        let job = &self.jobs[job];
        let mark = self.mark_of(job, op);
        let fragment = Fragment { group: job.group, slot, local: run.local };
        self.effects.push(Effect::Send {
            donor: placement.donor,
            part: key,
            op,
            address: layout::address(placement.extent, run.local),
            mem: run.mem,
            scatter: run.scatter,
            fragment,
            mark,
        });
    }

    /// The donor of a part owes nothing for it any more.
    #[inline]
    pub(super) fn came(&mut self, key: Key) {
        let sent = |part: &&mut Part| part.progress == Progress::Sent;
        let Some(part) = self.jobs.parts.get_mut(key).filter(sent) else { return };
        part.progress = Progress::Came;
        self.links[part.placement.donor].note_answer(self.now, part.sent_at, part.op);
    }

    /// A part will have no good answer, unless it has one.
    pub(super) fn fail_part(&mut self, key: Key, failure: Failure) {
        let open = |part: &&mut Part| part.progress != Progress::Done;
        if let Some(part) = self.jobs.parts.get_mut(key).filter(open) {
            part.progress = Progress::Done;
            self.failed.push_back((key, failure));
        }
    }

    /// Whether a request is of a tool, not of what reads ahead.
    pub(super) fn is_of_a_tool(&self, request: Option<Key>) -> bool {
        let request = request.and_then(|request| self.requests.get(request));
        request.is_some_and(|request| matches!(request.asker, Asker::Tool(_)))
    }

    /// Jobs that requests may need which were admitted without them.
    pub(super) fn jobs_promised(&self) -> usize {
        let waiting = self.cached.as_ref().map_or(0, Cached::waiting);
        self.joins.waiting().count() + WAIT_JOBS_MAX * waiting + self.absent.jobs_promised()
    }

    /// The donor missed something: it must not be believed again.
    pub(super) fn exclude(&mut self, donor: DonorId, why: String) {
        self.exclusions.entry(donor).or_insert(why);
    }

    /// Where what a job reads or writes for its request is.
    pub(super) fn payload(&self, key: Key) -> Mem {
        self.payload_of(self.jobs.get(key).and_then(|job| job.request).expect("a job of a request"))
    }

    pub(super) fn payload_of(&self, request: Key) -> Mem {
        match self.requests[request].asker {
            Asker::Tool(tag) => Mem::Payload(tag),
            Asker::Cache(_) => Mem::Cache,
        }
    }

    /// Why there is no use in the job any more. One of several requests is not given up for one of them.
    pub(super) fn failed_elsewhere(&self, job: &Job) -> Option<VolumeError> {
        let alone = !matches!(job.work, Work::Joined(_));
        job.request.filter(|_| alone).and_then(|request| self.requests.get(request)?.failed)
    }

    pub(super) fn deadline(&self, job: &Job) -> Time {
        let request = job.request.and_then(|request| self.requests.get(request));
        request.map_or(Time::MAX, |request| request.deadline)
    }

    /// Where the lane of a slot is in the job's scratch.
    pub(super) fn lane(&self, key: Key, slot: u32) -> At {
        let job = &self.jobs[key];
        let lane = if self.shape.geometry.parity == 0 { 0 } else { slot };
        At { mem: Mem::Scratch(job.scratch.expect("taken before it began")), offset: lane * job.len() }
    }

    pub(super) fn fragment(&self, key: Key, slot: u32) -> Fragment {
        let job = &self.jobs[key];
        Fragment { group: job.group, slot, local: job.lo }
    }

    /// What the donor is told with a part.
    fn mark_of(&self, job: &Job, op: PartOp) -> Option<WriteMark> {
        let Geometry { data, parity, .. } = self.shape.geometry;
        let complete = || doubts::complete_up_to(self);
        match (job.work, op) {
            (Work::Undo(Undo { number, slots }), _) => {
                Some(WriteMark { number, targets: slots, complete: 0, keep: false })
            }
            // What was written last has no write behind it to say so.
            (_, PartOp::Age) if parity > 0 => {
                Some(WriteMark { number: 0, targets: 0, complete: complete(), keep: false })
            }
            _ if op.writes() && job.number > 0 => Some(WriteMark {
                number: job.number,
                targets: self.targets_of(job),
                complete: complete(),
                // A copy is whole for itself.
                keep: data > 1,
            }),
            _ => None,
        }
    }

    /// The slots that are sent a part of what the job writes, each for all of its range.
    fn targets_of(&self, job: &Job) -> Slots {
        let (data, slots) = (self.shape.geometry.data, self.shape.geometry.data + self.shape.geometry.parity);
        let parity = (data..slots).map(bit).sum::<Slots>();
        match job.work {
            Work::Patch { span, .. } if data > 1 => self.shape.wanted(span, job.lo, job.hi) | parity,
            Work::Fill { slot, .. } | Work::Heal { slot } | Work::Mend { slot } => bit(slot),
            Work::Resync if data > 1 => parity,
            _ => (0..slots).map(bit).sum(),
        }
    }

    /// Forgets the parts that the job has; those still on their way are reads, whose answers are not
    /// wanted.
    pub(super) fn drop_parts(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let mut next = job.parts.take();
        (job.open, job.coming) = (0, 0);
        while let Some((key, part)) = next.and_then(|key| Some((key, self.jobs.parts.remove(key)?))) {
            next = part.next;
            match part.progress {
                Progress::Sent | Progress::Came => {
                    assert!(!part.op.writes(), "a write on its way reads its payload");
                    self.effects.push(Effect::Abandon { donor: part.placement.donor, part: key });
                }
                Progress::Waiting => {
                    let link = &mut self.links[part.placement.donor];
                    link.waiting.retain(|waiting| *waiting != key);
                }
                Progress::Done => {}
            }
        }
    }

    /// Whether redundancy cannot make up for the holders that are not there.
    pub(super) fn is_out_of_reach(&self, group: u32) -> bool {
        let slots = self.shape.slots();
        let there = slots.filter(|slot| self.source(group, *slot).is_some()).count();
        self.shape.geometry.parity > 0 && there < self.shape.geometry.data as usize
    }

    /// The holder of a slot that can be asked, and how willingly.
    pub(super) fn source(&self, group: u32, slot: u32) -> Option<(Placement, Trust)> {
        let held = self.shape.slot(group, slot).held?;
        let trust = self.links.get(held.donor)?.trust()?;
        Some((held, trust))
    }

    /// Lets the job wait without its lock, which whatever makes the rows fit together needs.
    pub(super) fn wait_for_rows(&mut self, key: Key) {
        self.drop_parts(key);
        self.jobs.free_scratch(key);
        let job = &mut self.jobs[key];
        (job.phase, job.have, job.avoid) = (Phase::Locking, 0, job.wrong);
        let group = job.group;
        self.jobs.unlock(group, key);
        self.jobs.waiting.push(key);
        self.upkeep_due = true;
    }

    /// The donor refused this reader: it may have nothing of the volume any more.
    pub(super) fn note_shut_out(&mut self, donor: DonorId) {
        if let Some(link) = self.links.get_mut(donor) {
            link.shut_out = self.shape.read_only;
        }
    }

    /// Whether a newer map may say where the group is.
    pub(super) fn may_have_moved(&self, group: u32) -> bool {
        let mut held = self.shape.holders(group);
        held.any(|held| self.links.get(held.donor).is_some_and(|link| link.shut_out))
    }

    pub(super) fn check_invariants(&self) {
        let Base { jobs, joins, links, requests, shape, .. } = self;
        for (key, part) in jobs.parts.iter() {
            let link = links.get(part.placement.donor);
            let waits = link.is_some_and(|link| link.waiting.contains(&key));
            let settled = link.is_some_and(Link::is_settled);
            match part.progress {
                Progress::Waiting => assert!(waits && !settled, "a part waits for nothing"),
                Progress::Sent | Progress::Came => {
                    assert!(!waits && links.is_up(part.placement.donor), "a part is sent over no link");
                }
                Progress::Done => assert!(!waits, "a part that is done waits"),
            }
        }
        let mut open: BTreeMap<u64, u32> = BTreeMap::new();
        let of_jobs = jobs.iter().flat_map(|(key, job)| job.request.into_iter().chain(joins.beside(key)));
        for request in of_jobs.chain(joins.waiting()) {
            *open.entry(request.to_u64()).or_default() += 1;
        }
        let excluding = |job: &Job| job.phase == Phase::Excluding;
        assert!(!shape.read_only || !jobs.iter().any(|(_, job)| excluding(job)), "a reader excludes nobody");
        assert!(self.failed.is_empty() && self.fetched.is_empty(), "something is not worked off");
        jobs.check_invariants();
        requests.check_invariants(&open);
        links.check_invariants();
        if let Some(cached) = &self.cached {
            cached.check_invariants();
        }
    }
}

/// A volume of one group over donors 1, 2 and so on, in service, with all links open.
#[cfg(test)]
pub(super) fn sample(redundancy: &str) -> Base {
    use crate::limits::EXTENT_BYTES;
    use crate::map::{Group, Route, Slot, VolumeId, VolumeMap};
    let redundancy: crate::map::Redundancy = redundancy.parse().expect("a redundancy");
    let donors = 1..=u64::from(redundancy.data + redundancy.parity);
    let slot = |donor| Slot::held(Placement { donor: DonorId(donor), extent: 0 });
    let route = |donor| {
        let (name, address) = (format!("d{donor}"), "127.0.0.1:1".to_owned());
        (DonorId(donor), Route { name, address, foreign_export: None })
    };
    let map = VolumeMap {
        volume: VolumeId(7),
        name: "v".to_owned(),
        epoch: 1,
        size: u64::from(redundancy.data) * EXTENT_BYTES,
        redundancy,
        unit: redundancy.default_unit(),
        groups: vec![Group { slots: donors.clone().map(slot).collect() }],
        routes: donors.clone().map(route).collect(),
        bad: Vec::new(),
        unreadable: Vec::new(),
        hurry: false,
        backing: None,
        proofs: None,
        encrypted: false,
        write_back: false,
        medium: crate::map::Medium::Memory,
    };
    map.check().expect("a sound map");
    let mut base = Base::new(Shape::new(map, false), Stage::Serving);
    super::watch::open_links(&mut base);
    donors.for_each(|donor| assert!(super::watch::opened(&mut base, DonorId(donor), 1)));
    base.effects.clear();
    base
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::EXTENT_BYTES;

    const EXTENT: Placement = Placement { donor: DonorId(2), extent: 3 };

    fn sent(base: &Base) -> Vec<Key> {
        let part = |effect: &Effect| if let Effect::Send { part, .. } = effect { Some(*part) } else { None };
        base.effects.iter().filter_map(part).collect()
    }

    #[test]
    fn a_part_says_where_its_bytes_are_and_whose_write_it_is() {
        let mut base = sample("parity:2+1");
        let key = base.add_job(None, Work::Heal { slot: 1 }, 0, 4096, 8192);
        let at = At { mem: Mem::Scratch(5), offset: 64 };
        assert!(base.add_part(key, 1, EXTENT, PartOp::Write, Run::whole(4096, at, 4096)));
        let [Effect::Send { donor, address, fragment, mark: Some(mark), .. }] = &base.effects[..] else {
            panic!("{:?}", base.effects)
        };
        assert_eq!((*donor, *address), (EXTENT.donor, 3 * EXTENT_BYTES + 4096));
        assert_eq!(*fragment, Fragment { group: 0, slot: 1, local: 4096 });
        assert_eq!((mark.number, mark.targets, mark.complete), (1, bit(1), 0));
    }

    #[test]
    fn a_read_has_no_number_and_leaves_none_behind() {
        let mut base = sample("parity:2+1");
        let key = base.add_job(None, Work::Compare, 0, 0, 4096);
        assert!(base.add_part(key, 1, EXTENT, PartOp::Read, Run::about(0, 4096)));
        assert!(matches!(base.effects[..], [Effect::Send { mark: None, .. }]));
        assert!(!base.jobs[key].wrote);
        assert_eq!(base.jobs.numbers.over(), 0, "nothing was numbered");
    }

    #[test]
    fn who_is_set_aside_is_asked_for_nothing_and_its_parts_fail_once() {
        let mut base = sample("parity:2+1");
        let key = base.add_job(None, Work::Compare, 0, 0, 4096);
        assert!(base.add_part(key, 1, EXTENT, PartOp::Read, Run::about(0, 4096)));
        let part = sent(&base)[0];
        super::super::watch::set_aside(&mut base, EXTENT.donor, "a test".to_owned());
        assert!(!base.add_part(key, 1, EXTENT, PartOp::Read, Run::about(0, 4096)));
        assert_eq!(base.jobs[key].open, 1, "it counts until its job has heard of it");
        base.fail_part(part, Failure::Late);
        assert_eq!(base.failed, [(part, Failure::Down)]);
    }

    #[test]
    fn a_job_that_ends_lets_others_have_what_it_had() {
        let mut base = sample("parity:2+1");
        let first = base.add_job(None, Work::Heal { slot: 0 }, 0, 0, 8192);
        let next = base.add_job(None, Work::Heal { slot: 1 }, 0, 4096, 8192);
        assert_eq!(base.jobs.ready, [first], "the next waits for its lock");
        assert!(base.add_part(first, 1, EXTENT, PartOp::Read, Run::about(0, 4096)));
        let part = sent(&base)[0];
        let free = base.jobs.scratch.free();
        base.jobs[first].scratch = base.jobs.scratch.take(4096);
        base.end_job(first, Ok(()));
        assert_eq!(base.effects.last(), Some(&Effect::Abandon { donor: EXTENT.donor, part }));
        assert_eq!((base.jobs.scratch.free(), base.jobs.parts.len()), (free, 0));
        assert_eq!(base.jobs.ready, [first, next]);
        assert_eq!(base.jobs.ended, [(first, Ok(()))]);
    }

    #[test]
    fn what_reaches_too_few_holders_is_out_of_reach() {
        let mut base = sample("parity:2+1");
        assert!(!base.is_out_of_reach(0));
        super::super::watch::set_aside(&mut base, DonorId(1), "a test".to_owned());
        assert!(!base.is_out_of_reach(0));
        super::super::watch::set_aside(&mut base, DonorId(2), "a test".to_owned());
        assert!(base.is_out_of_reach(0));
        assert_eq!(base.source(0, 0), None);
        assert!(base.source(0, 2).is_some());
    }
}
