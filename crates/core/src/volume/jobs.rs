//! All jobs of a volume, and what they wait for: locks, scratch memory, room for parts, time.
//!
//! Owns the queues. Never: what a job reads or writes, links. Invariant: every job is in one of them, or has
//! parts on their way. Tests: `locks`, `numbers`, `slab`; the machine's invariants.

use super::job::{Job, Part, Phase, Progress};
use super::locks::Locks;
use super::numbers::Numbers;
use super::scratch::Scratch;
use super::slab::Slab;
use super::types::VolumeError;
use super::{Key, PARTS_MAX};
use crate::limits::{JOBS_MAX, STRIPE_DONORS_MAX};
use crate::units::Time;
use std::collections::{BTreeMap, VecDeque};

/// Those that end in one go, at most, before the machine looks at them.
const ENDED_USUALLY: usize = 64;

#[derive(Debug)]
pub(super) struct Jobs {
    slab: Slab<Job>,
    pub(super) parts: Slab<Part>,
    pub(super) locks: Locks,
    pub(super) numbers: Numbers,
    pub(super) scratch: Scratch,
    /// How many there were.
    pub(super) born: u64,
    /// Those that may go on.
    pub(super) ready: VecDeque<Key>,
    /// Those that wait for scratch memory or room for parts.
    pub(super) starving: VecDeque<Key>,
    /// Those that begin anew a little later.
    pub(super) resting: Vec<(Time, Key)>,
    /// Those of requests that wait, without a lock, until the rows that they need fit together.
    pub(super) waiting: Vec<Key>,
    /// A reader's, that go on when the coordinator said that the map is still the newest: those that it is
    /// yet to be asked for, and those that it was asked for.
    pub(super) unvouched: Vec<Key>,
    pub(super) vouching: Vec<Key>,
    /// Those that are over, and how they ended: to be removed, and told to whoever began them.
    pub(super) ended: VecDeque<(Key, Result<(), VolumeError>)>,
}

impl Jobs {
    pub(super) fn new() -> Jobs {
        Jobs {
            slab: Slab::with_capacity(JOBS_MAX),
            parts: Slab::with_capacity(PARTS_MAX),
            locks: Locks::default(),
            numbers: Numbers::default(),
            scratch: Scratch::new(),
            born: 0,
            ready: VecDeque::with_capacity(JOBS_MAX),
            starving: VecDeque::with_capacity(JOBS_MAX),
            resting: Vec::new(),
            waiting: Vec::new(),
            unvouched: Vec::new(),
            vouching: Vec::new(),
            ended: VecDeque::with_capacity(ENDED_USUALLY),
        }
    }

    pub(super) fn room(&self) -> usize {
        self.slab.room()
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Job> {
        self.slab.get(key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Job> {
        self.slab.get_mut(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Job)> {
        self.slab.iter()
    }

    /// One that waits for its lock, or is ready if it need not.
    pub(super) fn insert(&mut self, job: Job) -> Key {
        let (work, group, lo, hi) = (job.work, job.group, job.lo, job.hi);
        let key = self.slab.insert(job);
        if !work.is_locked() || self.locks.ask(group, key, lo, hi, work.is_alone()) {
            self.ready.push_back(key);
        }
        key
    }

    /// Its lock and scratch memory are others' from now on; the parts that it has were dropped.
    #[inline]
    pub(super) fn end(&mut self, key: Key, result: Result<(), VolumeError>) {
        self.free_scratch(key);
        let Job { number, group, .. } = self[key];
        if number > 0 {
            self.numbers.end(number);
        }
        if !self.starving.is_empty() {
            self.starving.retain(|starving| *starving != key);
        }
        self.unlock(group, key);
        self.ended.push_back((key, result));
    }

    pub(super) fn remove(&mut self, key: Key) -> Job {
        self.slab.remove(key).expect("a job ends once")
    }

    /// A part that waits for its link. `numbered`: the job's writes have a number.
    #[inline]
    pub(super) fn add_part(&mut self, key: Key, part: Part, numbered: bool) -> Key {
        let job = self.slab.get_mut(key).expect("parts are of jobs");
        job.wrote |= part.op.writes();
        if numbered && part.op.writes() && job.number == 0 {
            job.number = self.numbers.begin();
        }
        let part = self.parts.insert(Part { next: job.parts, ..part });
        job.parts = Some(part);
        job.open += 1;
        part
    }

    #[inline]
    pub(super) fn unlock(&mut self, group: u32, key: Key) {
        let ready = &mut self.ready;
        self.locks.release(group, key, |granted| ready.push_back(granted));
    }

    pub(super) fn free_scratch(&mut self, key: Key) {
        if let Some(piece) = self.slab.get_mut(key).and_then(|job| job.scratch.take()) {
            self.scratch.give_back(piece);
        }
    }

    /// For the parts of another job, and for so much of scratch memory.
    pub(super) fn has_room(&self, scratch_bytes: u32) -> bool {
        let scratch = scratch_bytes == 0 || self.scratch.has(scratch_bytes);
        self.parts.room() >= 2 * STRIPE_DONORS_MAX as usize && scratch
    }

    /// The answer to one of a job's checks.
    pub(super) fn verified(&mut self, key: Key, right: bool) {
        let Some(job) = self.slab.get_mut(key).filter(|job| job.phase == Phase::Checking) else { return };
        job.open -= 1;
        if !right {
            job.failed = Some(VolumeError::Corrupt);
        }
        self.goes_on(key);
    }

    /// A job whose last part is answered goes on.
    pub(super) fn goes_on(&mut self, key: Key) {
        if self.slab.get(key).is_some_and(|job| job.open == 0) {
            self.ready.push_back(key);
        }
    }

    pub(super) fn set_phase(&mut self, key: Key, phase: Phase) {
        let job = &mut self[key];
        job.phase = phase;
        if job.open == 0 {
            self.ready.push_back(key);
        }
    }

    /// Jobs that wait for an exclusion look whether it is there.
    pub(super) fn look_at_waiting(&mut self) {
        let waiting = self.slab.iter().filter(|(_, job)| job.phase == Phase::Excluding);
        self.ready.extend(waiting.map(|(key, _)| key));
    }

    /// Those parts of a job that have no answer.
    pub(super) fn open_parts(&self, key: Key) -> impl Iterator<Item = (Key, &Part)> {
        let mut next = self.slab.get(key).and_then(|job| job.parts);
        std::iter::from_fn(move || {
            let key = next?;
            let part = self.parts.get(key)?;
            next = part.next;
            Some((key, part))
        })
        .filter(|(_, part)| part.progress != Progress::Done)
    }

    pub(super) fn check_invariants(&self) {
        let mut open: BTreeMap<u64, u32> = BTreeMap::new();
        for (_, part) in self.parts.iter() {
            assert!(self.slab.get(part.job).is_some(), "a part outlived its job");
            *open.entry(part.job.to_u64()).or_default() += u32::from(part.progress != Progress::Done);
        }
        let mut pieces = 0;
        for (key, job) in self.slab.iter() {
            let parts = open.get(&key.to_u64()).copied().unwrap_or(0);
            if job.phase != Phase::Checking {
                assert_eq!(parts, job.open, "parts are miscounted: {job:?}");
            }
            let waits = match job.phase {
                Phase::Locking => !self.locks.is_granted(job.group, key),
                Phase::Starving => self.starving.contains(&key),
                Phase::Reading | Phase::Writing | Phase::Checking => job.open > 0,
                Phase::Excluding => true,
                Phase::Resting => {
                    let rests = self.resting.iter().any(|(_, resting)| *resting == key);
                    rests || self.unvouched.contains(&key) || self.vouching.contains(&key)
                }
            };
            assert!(waits, "a job waits for nothing: {job:?}");
            pieces += usize::from(job.scratch.is_some());
        }
        assert_eq!(pieces + self.scratch.free(), Scratch::sizes().count(), "scratch memory is lost");
        assert!(self.ready.is_empty() && self.ended.is_empty(), "a step ends when nothing can go on");
        self.locks.check_invariants(|key| self.slab.get(key).is_some());
    }
}

impl std::ops::Index<Key> for Jobs {
    type Output = Job;

    fn index(&self, key: Key) -> &Job {
        self.slab.get(key).expect("a job is looked at only while it exists")
    }
}

impl std::ops::IndexMut<Key> for Jobs {
    fn index_mut(&mut self, key: Key) -> &mut Job {
        self.slab.get_mut(key).expect("a job is looked at only while it exists")
    }
}
