//! Reads that are answered from what was read ahead, and the reading ahead.
//!
//! Owns what a read finds in the cache, waits for there, or brings about. Never: which ranges are worth it
//! (`ahead`), where they are kept (`cache`). Invariants: nothing is answered from here that a write which was
//! begun before may have changed; a read that waits for the cache is asked of donors when the cache does not
//! get it. Tests: `tests/volume_cache.rs`, the simulator.

use super::base::Base;
use super::cache::{Cache, Wasted};
use super::job::Job;
use super::request::Asker;
use super::types::{Caching, Effect, Op, Request, Tag};
use super::{JOBS_PER_REQUEST_MAX, Key, PARTS_MAX, request};
use crate::ahead::{Ahead, Found, Read, Rule, Want};
use crate::limits::{AHEAD_KEEP_NS, REQUESTS_IN_FLIGHT_MAX, SCRATCH_LARGE_COUNT};
use crate::units::Time;

/// Reads that wait for what is on its way; others ask donors. Each may need so many jobs when it has to ask
/// after all.
const WAITS_MAX: usize = 128;
pub(super) const WAIT_JOBS_MAX: usize = 6;
/// Segments on their way at once; the other half of the requests is for tools.
const FETCHES_MAX: usize = REQUESTS_IN_FLIGHT_MAX / 2;

/// For `VolumeReport`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) here: u64,
    pub(super) coming: u64,
    pub(super) asked: u64,
    pub(super) bytes_used: u64,
    pub(super) bytes_unread: u64,
}

#[derive(Debug)]
pub(super) struct Cached {
    cache: Cache,
    ahead: Ahead,
    takes: bool,
    /// Bytes of the reads that tools wait for.
    reading: u64,
    counts: Counts,
    /// Reads that wait for segments.
    waiting: usize,
    /// Emptied before each use.
    wants: Vec<Want>,
    gaps: Vec<Want>,
    found: Vec<Key>,
    wasted: Vec<Wasted>,
}

impl Cached {
    /// None when there is no memory for it.
    pub(super) fn new(caching: Caching) -> Option<Cached> {
        let cache = Cache::new(caching.bytes, caching.keeps);
        let bytes = cache.bytes();
        (bytes > 0 && caching.rule != Rule::Off).then(|| Cached {
            cache,
            ahead: Ahead::new(caching.rule, bytes.into()),
            takes: caching.takes,
            reading: 0,
            counts: Counts::default(),
            waiting: 0,
            wants: Vec::new(),
            gaps: Vec::new(),
            found: Vec::new(),
            wasted: Vec::new(),
        })
    }

    fn tell_wasted(&mut self) {
        for (stream, bytes) in self.wasted.drain(..) {
            self.counts.bytes_unread += u64::from(bytes);
            self.ahead.wasted(stream, bytes);
        }
    }

    fn used(&mut self, key: Key, bytes: u32) {
        let segment = self.cache.get(key).expect("in use");
        let (stream, offered) = (segment.stream, segment.offered);
        self.cache.used(key, bytes);
        if offered {
            return self.ahead.untaken(stream, bytes);
        }
        self.ahead.used(stream, bytes);
        self.counts.bytes_used += u64::from(bytes);
    }

    /// Hands a segment that came to the reader, as far as it is likely to be read at once.
    fn offer(&mut self, now: Time, key: Key, effects: &mut Vec<Effect>) {
        let segment = self.cache.get(key).expect("it came");
        if segment.asked + AHEAD_KEEP_NS < now {
            return;
        }
        let (place, stream) = (segment.place, segment.stream);
        let len = self.ahead.offer(stream, place.start, place.len);
        if len > 0 {
            effects.push(Effect::Offer { offset: place.start, at: place.at, len });
            self.cache.offered(key);
            self.ahead.used(stream, len);
            self.counts.bytes_used += u64::from(len);
        }
    }

    /// Reads that wait for segments.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn check_invariants(&self) {
        self.cache.check_invariants();
    }
}

/// Answers a read from the cache, or has it wait for what is on its way there; false when donors must be
/// asked.
pub(super) fn read(base: &mut Base, tag: Tag, request: Request) -> bool {
    let Some(cached) = &mut base.cached else { return false };
    let Request { offset, len, .. } = request;
    if !cached.cache.cover(offset, len, &mut cached.found) {
        return false;
    }
    let segments = || cached.found.iter().filter_map(|key| cached.cache.get(*key));
    // Another may write: beside a reader, and when this writer's lease has ended and it has not heard.
    if segments().any(|segment| segment.asked + AHEAD_KEEP_NS < base.now) {
        cached.cache.forget(offset, offset + u64::from(len), &mut cached.wasted);
        cached.tell_wasted();
        return false;
    }
    let coming = segments().filter(|segment| !segment.here).count();
    if coming > 0 && cached.waiting == WAITS_MAX {
        return false;
    }
    cached.waiting += usize::from(coming > 0);
    let found = std::mem::take(&mut cached.found);
    let waits = (coming > 0).then(|| {
        let key = request::admit(base, Asker::Tool(tag), request);
        base.requests[key].coming = u32::try_from(coming).expect("segments");
        key
    });
    let cached = base.cached.as_mut().expect("looked at above");
    let mut offered = false;
    for key in &found {
        let segment = cached.cache.get_mut(*key).expect("found");
        if segment.here {
            offered |= segment.offered;
            let (copy, bytes) = segment.place.copy_to(tag, offset, len);
            base.effects.push(copy);
            cached.used(*key, bytes);
        } else {
            segment.waiting.extend(waits);
        }
    }
    cached.found = found;
    if waits.is_none() {
        base.effects.push(Effect::Complete { tag, result: Ok(()), status: Vec::new() });
    }
    let found = match coming {
        0 if offered => Found::Offered,
        0 => Found::Here,
        _ => Found::Coming,
    };
    read_ahead(base, request, found);
    true
}

/// Fetches what a tool will likely read after this.
pub(super) fn read_ahead(base: &mut Base, read: Request, found: Found) {
    let Some(cached) = &mut base.cached else { return };
    let (mut wants, mut gaps) = (std::mem::take(&mut cached.wants), std::mem::take(&mut cached.gaps));
    wants.clear();
    let count = match found {
        Found::Here | Found::Offered => &mut cached.counts.here,
        Found::Coming => &mut cached.counts.coming,
        Found::Missed => &mut cached.counts.asked,
    };
    *count += 1;
    let others = cached.reading.saturating_sub(read.len.into());
    let read = Read { offset: read.offset, len: read.len, found };
    cached.ahead.read(base.now, read, others, base.shape.map.bytes_own(), &mut wants);
    for want in &wants {
        gaps.clear();
        base.cached.as_ref().expect("looked at above").cache.gaps(*want, &mut gaps);
        let refused = gaps.iter().find(|gap| !fetch(base, **gap));
        if let Some(gap) = refused {
            base.cached.as_mut().expect("as above").ahead.refused(*gap);
            break;
        }
    }
    let cached = base.cached.as_mut().expect("as above");
    cached.tell_wasted();
    (cached.wants, cached.gaps) = (wants, gaps);
}

fn may_fetch(base: &Base, cached: &Cached) -> bool {
    cached.cache.coming() < FETCHES_MAX
        && base.requests.room() > FETCHES_MAX
        && base.jobs.room() >= 2 * JOBS_PER_REQUEST_MAX + base.jobs_promised()
        // What is read ahead while donors are missing needs scratch memory, and tools come first.
        && base.jobs.starving.is_empty()
        && base.jobs.scratch.large_free() > SCRATCH_LARGE_COUNT as usize / 2
        && base.jobs.parts.room() >= PARTS_MAX / 4
        && base.finishing.is_none()
}

/// False when there is no room for it now.
fn fetch(base: &mut Base, gap: Want) -> bool {
    if !base.cached.as_ref().is_some_and(|cached| may_fetch(base, cached)) {
        return false;
    }
    let cached = base.cached.as_mut().expect("looked at above");
    let Some(segment) = cached.cache.begin(base.now, gap, &mut cached.wasted) else { return false };
    cached.ahead.fetched(gap);
    let at = cached.cache.get(segment).expect("just begun").place.at;
    let request = Request { op: Op::Read, offset: gap.offset, len: gap.len };
    let key = request::admit(base, Asker::Cache(segment), request);
    request::plan_all(base, key, at);
    true
}

pub(super) fn take(base: &mut Base, key: Key, good: bool) {
    let cached = base.cached.as_mut().expect("it fetched");
    let segment = cached.cache.get_mut(key).expect("it is there until it came");
    let place = segment.place;
    let waiting = std::mem::take(&mut segment.waiting);
    let stays = cached.cache.came(key, good, &mut cached.wasted);
    let mut used = 0;
    for waits in waiting {
        let Some(pending) = base.requests.get_mut(waits).filter(|pending| pending.coming > 0) else {
            continue;
        };
        let Asker::Tool(tag) = pending.asker else { unreachable!("the cache waits for nothing") };
        if !good {
            pending.coming = 0;
            waits_no_more(base);
            request::plan_all(base, waits, 0);
            continue;
        }
        let (copy, bytes) = place.copy_to(tag, pending.offset, pending.len);
        base.effects.push(copy);
        used += bytes;
        pending.coming -= 1;
        if pending.coming == 0 {
            waits_no_more(base);
            request::complete_if_done(base, waits);
        }
    }
    let cached = base.cached.as_mut().expect("as above");
    if stays && used > 0 {
        cached.used(key, used);
    } else if stays && cached.takes {
        cached.offer(base.now, key, &mut base.effects);
    }
    cached.tell_wasted();
}

/// A read that waited for the cache does so no more.
pub(super) fn waits_no_more(base: &mut Base) {
    if let Some(cached) = &mut base.cached {
        cached.waiting -= 1;
    }
}

/// What the cache has of a range is not, or may not be, what donors hold.
pub(super) fn forget(base: &mut Base, offset: u64, end: u64) {
    if let Some(cached) = &mut base.cached {
        cached.cache.forget(offset, end, &mut cached.wasted);
        // It was no bad guess.
        cached.wasted.clear();
        if (offset, end) == (0, u64::MAX) {
            cached.ahead.restart();
        }
    }
}

/// How fast donors answer.
pub(super) fn note_speed(base: &mut Base, bytes: u32, took: u64) {
    if let Some(cached) = &mut base.cached {
        cached.ahead.answered(base.now, bytes, took);
    }
}

/// A request has begun, or ended.
pub(super) fn note_reading(base: &mut Base, asker: Asker, op: Op, len: u32, begins: bool) {
    if let Some(cached) = &mut base.cached
        && let (Asker::Tool(_), Op::Read) = (asker, op)
    {
        let len = u64::from(len);
        cached.reading = if begins { cached.reading + len } else { cached.reading - len };
    }
}

/// Nothing is answered from the cache any more.
pub(super) fn stop(base: &mut Base) {
    forget(base, 0, u64::MAX);
    if let Some(cached) = &mut base.cached {
        cached.ahead = Ahead::new(Rule::Off, 0);
    }
}

/// The jobs that read ahead.
pub(super) fn fetches(base: &Base) -> Vec<Key> {
    let fetches = |job: &Job| {
        let request = job.request.and_then(|request| base.requests.get(request));
        request.is_some_and(|request| matches!(request.asker, Asker::Cache(_)))
    };
    base.jobs.iter().filter(|(_, job)| fetches(job)).map(|(key, _)| key).collect()
}
