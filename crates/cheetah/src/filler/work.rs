//! The threads that fill a volume from its source, and who they work for.
//!
//! Owns: reading at the source, writing what was read, and asking donors what they hold. Never: what comes
//! next (`core::filling`), hashing (`hashing`), the lease or the pool (`filler`), or writing to the source.
//! Invariants: what counts as here was written and acknowledged; a block that the source cannot give is not
//! written, so that it stays absent; what changes on donors behind what was proved is proved anew; and once
//! all is held nothing is written any more. Called by `filler`. Tests: `lab/tests/open.rs`.

use super::hashing::Hashed;
use super::metadata::{self, KnownFiles};
use super::runs::{bad_blocks, blank, by_zeros, outside, whole_pieces};
use crate::fill::ToChannel;
use crate::proofs::tree_of;
use cheetah_core::content::{ByteRange, OnDisk};
use cheetah_core::filling::{Answer, Fetched, Order, Sharing, Work};
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_rim::filler::{Brings, Done};
use cheetah_rim::volume::{Completion, FetchError, Op, Submission, VolumeError, VolumeHandle};
use cheetah_source::{Source, Unreadable};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Threads that read only what somebody waits for, so that nobody waits for one that reads on.
const FOR_WAITERS: usize = 2;
/// What was read in order is kept for hashing up to so far behind what was hashed last.
const KEPT_BYTES_MAX: u64 = 16 << 20;
/// A range that a donor is asked about at once: it has room for the runs of one in its answer.
const ASKED_BYTES: u64 = 16 << 20;
/// Who sleeps looks again after this in any case.
pub(super) const LOOK: Duration = Duration::from_secs(1);

pub struct Filling {
    source: Arc<dyn Source>,
    pub(super) volume: VolumeHandle,
    /// It is to be sealed, and has room for what proves it.
    pub(super) proves: bool,
    started: Instant,
    state: Mutex<State>,
    pub(super) changed: Condvar,
    /// Bytes that were read at the source.
    bytes_read: AtomicU64,
    files: KnownFiles,
    /// Set once somebody has looked.
    on_disk: OnceLock<OnDisk>,
}

pub(super) struct State {
    pub(super) order: Order,
    askers: u64,
    asked: BTreeMap<u64, Done>,
    /// Runs that were read in order and are not hashed yet, by where they begin.
    pub(super) kept: BTreeMap<u64, Arc<Vec<u8>>>,
    pub(super) hashed: u64,
    /// What donors have before this may be proved as it was then.
    pub(super) taken: u64,
    /// And some of it was written since, or its proofs are gone.
    pub(super) again: bool,
    pub(super) result: Option<Hashed>,
    /// Why nothing can be read or written, while that is so.
    trouble: Option<String>,
    /// The same of proofs, and how far hashing was then.
    pub(super) stuck: Option<(u64, String)>,
    /// Pieces of work that somebody is at.
    working: usize,
    /// Nothing more is begun.
    held: bool,
    /// The lease is gone, or somebody wants it to end.
    pub(super) ends: bool,
}

impl State {
    /// What was proved is not so any more.
    pub(super) fn begin_anew(&mut self) {
        (self.again, self.result) = (true, None);
    }
}

/// How far it is.
#[derive(Clone, Debug)]
pub struct Progress {
    pub bytes_here: u64,
    pub bad: Vec<ByteRange>,
    pub paused: bool,
    pub trouble: Option<String>,
    /// Donors hold as much as there is room for.
    pub full: bool,
    /// All is here and hashed.
    pub hashed: bool,
}

impl Filling {
    pub fn new(
        source: Arc<dyn Source>,
        volume: VolumeHandle,
        (rate, proves): (Option<u64>, bool),
        sharing: Option<Sharing>,
    ) -> Arc<Filling> {
        let mut order = Order::new(source.size(), sharing);
        order.limit(rate);
        let state = State {
            order,
            askers: 0,
            asked: BTreeMap::new(),
            kept: BTreeMap::new(),
            hashed: 0,
            taken: 0,
            again: false,
            result: None,
            trouble: None,
            stuck: None,
            working: 0,
            held: false,
            ends: false,
        };
        Arc::new(Filling {
            source,
            volume,
            proves,
            started: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            bytes_read: AtomicU64::new(0),
            files: KnownFiles::default(),
            on_disk: OnceLock::new(),
        })
    }

    /// Starts its threads.
    pub fn start(self: &Arc<Filling>) -> std::io::Result<()> {
        if self.proves {
            // From the first write on.
            self.volume.note_proofs();
        }
        let readers = self.source.readers().max(1) + 1;
        for thread in 0..FOR_WAITERS + readers {
            let (this, for_waiters) = (self.clone(), thread < FOR_WAITERS);
            let name = if for_waiters { "asked" } else { "in-order" };
            std::thread::Builder::new().name(name.into()).spawn(move || this.work(for_waiters))?;
        }
        if !self.shares() {
            let this = self.clone();
            std::thread::Builder::new().name("hash".into()).spawn(move || this.hash())?;
        }
        let this = self.clone();
        let expect = move || metadata::expect(&this, &this.files);
        std::thread::Builder::new().name("metadata".into()).spawn(expect)?;
        Ok(())
    }

    pub fn progress(&self) -> Progress {
        let state = self.state();
        let stuck = state.stuck.as_ref().map(|(_, why)| why);
        Progress {
            bytes_here: state.order.bytes_here(),
            bad: state.order.bad().to_vec(),
            paused: state.order.is_paused(),
            trouble: state.trouble.as_ref().or(stuck).cloned(),
            full: state.order.is_full(),
            hashed: state.result.is_some() && state.order.is_complete(),
        }
    }

    /// What stands on the disk, once that is known.
    pub fn on_disk(&self) -> Option<&OnDisk> {
        self.on_disk.get()
    }

    pub fn found(&self, on_disk: OnDisk) {
        // It is looked at once.
        let _ = self.on_disk.set(on_disk);
    }

    pub fn size(&self) -> u64 {
        self.source.size()
    }

    /// Tools are expected to ask for these.
    pub fn expect(&self, ranges: Vec<Range<u64>>, soon: bool) {
        self.state().order.expect(ranges.into_iter(), soon);
        self.changed.notify_all();
    }

    /// These are metadata, which stays as long as anything.
    pub fn value(&self, ranges: &[Range<u64>]) {
        let mut state = self.state();
        ranges.iter().for_each(|range| state.order.value(range));
    }

    /// Whether not all of the volume is kept.
    pub fn shares(&self) -> bool {
        self.state().order.shares()
    }

    /// Waits until all of these are here; false: it ends before, or there is no room for them.
    pub fn comes(&self, range: &Range<u64>) -> bool {
        let mut state = self.state();
        while !state.order.has(range) {
            if state.ends || (state.order.shares() && !state.order.is_coming(range)) {
                return false;
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// What the volume has there, once it is here.
    pub fn read_when_here(&self, range: Range<u64>) -> std::io::Result<Vec<u8>> {
        if !self.comes(&range) {
            return Err(std::io::Error::other("nobody reads it any more"));
        }
        let Completion { result, buffer, .. } = self.request(Op::Read, range, None);
        result.map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(buffer.map_or_else(Vec::new, |buffer| buffer.to_vec()))
    }

    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    pub fn pause(&self, paused: bool) {
        self.state().order.pause(paused);
        self.changed.notify_all();
    }

    pub fn limit(&self, rate: Option<u64>) {
        self.state().order.limit(rate);
        self.changed.notify_all();
    }

    /// Nothing is read any more; who waits is told so.
    pub fn end(&self) {
        let mut state = self.state();
        state.ends = true;
        let asked = std::mem::take(&mut state.asked);
        drop(state);
        self.changed.notify_all();
        asked.into_values().for_each(|done| done(Err(FetchError::Away)));
    }

    /// Has nothing more read or written, and waits for what is. What all of it comes to; none: that is not
    /// so any more, and it goes on.
    pub fn hold(&self) -> Option<Hashed> {
        let mut state = self.state();
        state.held = true;
        while state.working > 0 && !state.ends {
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let result = state.result.clone().filter(|_| state.order.is_complete() && !state.ends);
        state.held = result.is_some();
        drop(state);
        self.changed.notify_all();
        result
    }

    /// Learns from donors what is here. Whether all is, that the source can give.
    pub fn survey(&self) -> Result<bool, VolumeError> {
        let mut at = 0;
        while at < self.source.size() {
            let end = (at + ASKED_BYTES).min(self.source.size());
            for (range, is_here) in self.presence(at..end)? {
                self.note_presence(range, is_here);
            }
            at = end;
        }
        Ok(self.state().order.is_complete())
    }

    fn note_presence(&self, range: Range<u64>, is_here: bool) {
        let mut state = self.state();
        match is_here {
            true => {
                let whole = whole_pieces(&range, self.source.size());
                state.order.learn(whole.clone(), true);
                state.order.doubt(&(range.start..whole.start.min(range.end)));
                state.order.doubt(&(whole.end.max(range.start)..range.end));
            }
            false => {
                let missing = outside(&range, state.order.bad());
                missing.into_iter().for_each(|range| state.order.learn(range, false));
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Whether donors hold all proofs that were made; where they do not, they are made anew.
    pub fn proofs_are_here(&self) -> Result<bool, VolumeError> {
        if !self.state().result.as_ref().is_some_and(Hashed::is_proved) {
            return Ok(true);
        }
        let tree = tree_of(&self.volume, self.source.size());
        let (mut at, mut all) = (tree.begin(), true);
        while at < tree.end() {
            let end = (at + ASKED_BYTES).min(tree.end());
            all &= self.presence(at..end)?.into_iter().all(|(_, is_here)| is_here);
            at = end;
        }
        if !all {
            tracing::warn!("proofs went with a donor, and are made anew");
            self.state().begin_anew();
            self.changed.notify_all();
        }
        Ok(all)
    }

    /// Runs of the range and whether donors hold them.
    fn presence(&self, range: Range<u64>) -> Result<Vec<(Range<u64>, bool)>, VolumeError> {
        let (mut at, mut runs) = (range.start, Vec::new());
        while at < range.end {
            let completion = self.request(Op::Presence, at..range.end, None);
            completion.result?;
            let before = at;
            for run in completion.status {
                let end = (at + u64::from(run.len)).min(range.end);
                runs.push((at..end, !run.hole));
                at = end;
            }
            if at == before {
                return Err(VolumeError::DonorFailed);
            }
        }
        Ok(runs)
    }

    // Working.

    fn work(&self, for_waiters: bool) {
        while let Some(work) = self.next(for_waiters) {
            match work {
                Work::Fetch(range) => self.fetch(range),
                Work::Check(range) => self.check(range),
                Work::Drop(ranges) => self.drop_all(ranges),
            }
            self.state().working -= 1;
            self.changed.notify_all();
        }
    }

    /// The next thing to do; none: it ends.
    fn next(&self, for_waiters: bool) -> Option<Work> {
        let mut state = self.state();
        loop {
            if state.ends {
                return None;
            }
            let now = self.now();
            let work = if state.held { None } else { state.order.next(now, for_waiters) };
            if let Some(work) = work {
                state.working += 1;
                return Some(work);
            }
            let wait = match state.order.wake_at(now).filter(|_| !for_waiters) {
                Some(at) => Duration::from_nanos(at.saturating_sub(now)).min(LOOK),
                None => LOOK,
            };
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fetch(&self, range: Range<u64>) {
        let len = usize::try_from(range.end - range.start).expect("a run fits in memory");
        let mut bytes = vec![0; len];
        let read = self.source.read_past_errors_at(range.start, &mut bytes).map_err(|e| e.to_string());
        // What is read again and again never comes to an end at which that would be said.
        let changed = if self.shares() { self.source.changed() } else { None };
        let read = read.and_then(|unreadable| match changed {
            Some(how) => Err(format!("the source is not what it was when it was opened: {how}")),
            None => Ok(unreadable),
        });
        let done = read.and_then(|unreadable| {
            self.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
            let bad = bad_blocks(&unreadable, self.source.size());
            blank(&range, &mut bytes, &bad);
            let mut parts = outside(&range, &bad);
            if self.shares() {
                parts = parts.into_iter().flat_map(|part| by_zeros(&range, &bytes, part)).collect();
            }
            let mut zeros = Vec::new();
            for part in parts {
                let is_zero = self.write(&range, &bytes, part.clone());
                let is_zero = is_zero.map_err(|e| format!("donors do not take what was read: {e}"))?;
                zeros.extend(is_zero.then_some(part));
            }
            Ok((Fetched { bad, zeros }, unreadable))
        });
        let mut state = self.state();
        if self.proves && range.start < state.taken {
            // Read again, it may be something else, and was encrypted anew.
            state.begin_anew();
        }
        let result = match done {
            Ok((fetched, unreadable)) => {
                for Unreadable { range, why } in unreadable {
                    tracing::warn!("bytes {} to {} cannot be read: {why}", range.start, range.end);
                }
                state.trouble = None;
                if !state.order.shares()
                    && range.start >= state.hashed
                    && range.end <= state.hashed + KEPT_BYTES_MAX
                {
                    state.kept.insert(range.start, Arc::new(bytes));
                }
                Ok(fetched)
            }
            Err(why) => {
                if state.trouble.as_ref() != Some(&why) {
                    tracing::warn!("filling waits: {why}");
                }
                state.trouble = Some(why);
                Err(())
            }
        };
        let answers = state.order.fetched(self.now(), range, result);
        self.tell(state, answers);
    }

    fn check(&self, range: Range<u64>) {
        let result = self.is_here(&range);
        let mut state = self.state();
        let answers = state.order.checked(range, result.map_err(drop));
        self.tell(state, answers);
    }

    /// Whether donors hold what the source could give of the range, as it was written.
    fn is_here(&self, range: &Range<u64>) -> Result<bool, VolumeError> {
        let runs = self.presence(range.clone())?;
        let bad = self.state().order.bad().to_vec();
        if !runs.iter().all(|(range, is_here)| *is_here || outside(range, &bad).is_empty()) {
            return Ok(false);
        }
        for part in outside(range, &bad) {
            match self.request(Op::Read, part, None).result {
                Err(VolumeError::Corrupt) => return Ok(false),
                result => result?,
            }
        }
        Ok(true)
    }

    fn tell(&self, mut state: MutexGuard<'_, State>, answers: Vec<Answer>) {
        let told =
            answers.into_iter().filter_map(|Answer { to, result }| Some((state.asked.remove(&to)?, result)));
        let told: Vec<_> = told.collect();
        drop(state);
        self.changed.notify_all();
        told.into_iter().for_each(|(done, result)| done(result));
    }

    /// Has donors forget what makes room for another.
    fn drop_all(&self, ranges: Vec<Range<u64>>) {
        let size = self.source.size();
        let dropped = ranges.into_iter().map(|range| {
            // A block that ends with the volume in its middle stays.
            let end = if range.end == size { size / BLOCK_BYTES * BLOCK_BYTES } else { range.end };
            let done = end <= range.start || self.request(Op::Trim, range.start..end, None).result.is_ok();
            (range, done)
        });
        let dropped: Vec<_> = dropped.collect();
        let mut state = self.state();
        state.order.dropped(self.now(), dropped);
        drop(state);
        self.changed.notify_all();
    }

    /// Writes a part of a run. Whether it is zeros.
    fn write(&self, run: &Range<u64>, bytes: &[u8], part: Range<u64>) -> Result<bool, VolumeError> {
        let at = |byte: u64| usize::try_from(byte - run.start).expect("inside of the run");
        let bytes = &bytes[at(part.start)..at(part.end)];
        if bytes.iter().all(|byte| *byte == 0) {
            return self.request(Op::Zero { keep: false }, part, None).result.map(|()| true);
        }
        self.request(Op::Write, part, Some(bytes)).result.map(|()| false)
    }

    /// Who gets something else of the range than was written, or nothing, waits until it is read again, or
    /// cannot be.
    pub(super) fn bring_again(&self, range: &Range<u64>) {
        let (told, done) = mpsc::channel();
        let end: Done = Box::new(move |result| {
            let _ = told.send(result);
        });
        self.ask(range.clone(), end, &[]);
        let _ = done.recv();
    }

    /// `soon`: what is expected to be asked for next.
    fn ask(&self, range: Range<u64>, done: Done, soon: &[Range<u64>]) {
        let mut state = self.state();
        if state.ends {
            drop(state);
            return done(Err(FetchError::Away));
        }
        state.order.expect(soon.iter().cloned(), true);
        state.askers += 1;
        let asker = state.askers;
        match state.order.ask(self.now(), asker, range) {
            Some(answer) => {
                drop(state);
                done(answer.result);
            }
            None => {
                state.asked.insert(asker, done);
                drop(state);
                self.changed.notify_all();
            }
        }
    }

    /// One request, and its end.
    pub(super) fn request(&self, op: Op, range: Range<u64>, bytes: Option<&[u8]>) -> Completion {
        let len = usize::try_from(range.end - range.start).expect("one request's");
        let buffer = (matches!(op, Op::Read | Op::Write)).then(|| {
            let mut buffer = self.volume.pool().take_blocking(len);
            if let Some(bytes) = bytes {
                buffer.copy_from_slice(bytes);
            }
            buffer
        });
        let (sink, done) = mpsc::channel();
        let (len, sink) = (u32::try_from(len).expect("one request's"), Arc::new(ToChannel(sink)));
        self.volume.submit(Submission { op, offset: range.start, len, buffer, token: 0, sink });
        done.recv().unwrap_or(Completion {
            token: 0,
            result: Err(VolumeError::DonorLost),
            buffer: None,
            status: Vec::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Brings for Filling {
    fn bring(&self, offset: u64, len: u32, done: Done) {
        let rest = self.files.rest(offset);
        self.ask(offset..offset.saturating_add(len.into()), done, &rest);
    }
}
