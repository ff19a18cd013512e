//! What memory has of a disk's blocks that the disk has not: a volatile write cache.
//!
//! Owns which blocks are dirty and since when, which regions have an intent on the disk, when what is written
//! back, whose writes and flushes wait for that, and which blocks are stale. Never: the bytes, the log
//! (`journal`), or which blocks stay in memory (`resident`: its caller holds what is dirty). Invariants: a
//! write is answered once each of its regions has an intent on the disk; a flush once no block is dirty that
//! was when it was asked for; a region loses its intent only while nothing of it is dirty, being written or
//! stale. A block is stale that had an intent when its donor stopped, until it is written as a whole or
//! adopted as it is. Its caller carries out what `next` says, one after the other, and tells what became of
//! it. Called by `rim::disk`, under one lock, and the simulator. Tests: below.

use crate::limits::{
    INTENT_REGION_BLOCKS, INTENT_REGIONS_MAX, WRITE_BACK_AFTER_NS, WRITE_BACK_AGAIN_NS, WRITE_BACK_SHARE,
};
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// So many blocks are written back at once.
const BATCH_BLOCKS: usize = 4096;
const WORDS: usize = (INTENT_REGION_BLOCKS / 64) as usize;

/// What becomes of a write that is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// It is answered now.
    Done,
    /// When its intents are on the disk, and there is room.
    Waits,
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// To put down that memory may have what the disk has not, of these regions.
    Intend(Vec<u64>),
    /// To write these blocks as they are in memory, ascending.
    Write(Vec<u64>),
    /// To put down that the disk has all of these regions.
    Clean(Vec<u64>),
    /// Nothing, until then. None: until something lands.
    Sleep(Option<Time>),
}

#[derive(Clone, Copy, Debug)]
struct Dirty {
    order: u64,
    since: Time,
}

#[derive(Debug)]
struct Write<T> {
    who: T,
    regions: Range<u64>,
}

/// The write cache of one disk. `T`: who waits for something.
#[derive(Debug)]
pub struct WriteBack<T> {
    /// So many blocks may be dirty before writes wait.
    room: u64,
    /// So many regions may have an intent.
    regions_max: usize,
    dirty: BTreeMap<u64, Dirty>,
    /// The same in the order in which they became so.
    oldest: BTreeSet<(u64, u64)>,
    /// Those that are being written, by when they became dirty.
    writing: BTreeMap<u64, Dirty>,
    /// Blocks of each region that are dirty, and being written.
    counts: BTreeMap<u64, u64>,
    order: u64,
    /// All that became dirty up to here is to be written.
    target: u64,
    intended: BTreeSet<u64>,
    waiting: Vec<Write<T>>,
    flushes: Vec<(u64, T)>,
    /// When regions of which nothing is dirty lose their intents.
    clean_at: Option<Time>,
    /// The disk took some of it not, and is tried again then.
    again_at: Option<Time>,
    stale: BTreeMap<u64, [u64; WORDS]>,
}

/// Who is told, and what: the disk took it, or did not.
pub type Told<T> = Vec<(T, bool)>;

impl<T> WriteBack<T> {
    /// Nothing is dirty. `cache`: blocks that there is room for in memory. `stale`: regions that had an
    /// intent before the start.
    #[must_use]
    pub fn new(cache: u64, stale: &BTreeSet<u64>) -> WriteBack<T> {
        WriteBack {
            room: (cache / WRITE_BACK_SHARE).max(1),
            regions_max: INTENT_REGIONS_MAX,
            dirty: BTreeMap::new(),
            oldest: BTreeSet::new(),
            writing: BTreeMap::new(),
            counts: BTreeMap::new(),
            order: 0,
            target: 0,
            intended: stale.clone(),
            waiting: Vec::new(),
            flushes: Vec::new(),
            clean_at: None,
            again_at: None,
            stale: stale.iter().map(|region| (*region, [u64::MAX; WORDS])).collect(),
        }
    }

    /// How many blocks are in memory alone.
    #[must_use]
    pub fn dirty(&self) -> u64 {
        (self.dirty.len() + self.writing.len()) as u64
    }

    /// Whether memory has what the disk has not of this block.
    #[must_use]
    pub fn is_dirty(&self, block: u64) -> bool {
        self.dirty.contains_key(&block) || self.writing.contains_key(&block)
    }

    /// These are in memory as they shall be. `who` is told when that is answered, if it waits; without one
    /// nobody is, and a flush follows. Also which of them were dirty before: their holds are two.
    pub fn landed(&mut self, now: Time, blocks: Range<u64>, who: Option<T>) -> (Landed, Vec<u64>) {
        let regions = regions_of(&blocks);
        let mut twice = Vec::new();
        for block in blocks {
            self.fresh(block);
            if self.dirty.contains_key(&block) {
                twice.push(block);
                continue;
            }
            self.order += 1;
            self.dirty.insert(block, Dirty { order: self.order, since: now });
            self.oldest.insert((self.order, block));
            *self.counts.entry(block / INTENT_REGION_BLOCKS).or_default() += 1;
        }
        let Some(who) = who else { return (Landed::Waits, twice) };
        if self.waiting.is_empty() && self.has_room() && self.are_intended(&regions) {
            return (Landed::Done, twice);
        }
        self.waiting.push(Write { who, regions });
        (Landed::Waits, twice)
    }

    /// `who` is told when the disk has all that is in memory now.
    pub fn flush(&mut self, who: T) -> Option<T> {
        if self.dirty.is_empty() && self.writing.is_empty() {
            return Some(who);
        }
        self.target = self.order;
        self.again_at = None;
        self.flushes.push((self.order, who));
        None
    }

    /// What is to be done.
    pub fn next(&mut self, now: Time) -> Next {
        let wanted = self.wanted();
        let room = self.regions_max.saturating_sub(self.intended.len());
        if !wanted.is_empty() && room > 0 {
            return Next::Intend(wanted.into_iter().take(room).collect());
        }
        let is_late = |dirty: &Dirty| now >= dirty.since + WRITE_BACK_AFTER_NS;
        let first = self.oldest.first().and_then(|(_, block)| self.dirty.get(block)).copied();
        if !self.waiting.is_empty() || first.as_ref().is_some_and(is_late) {
            // Writes wait for room, of one kind or the other.
            self.target = self.order;
            self.clean_at = Some(now);
        }
        let waits = self.again_at.is_some_and(|at| now < at);
        if first.is_some_and(|first| first.order <= self.target) && !waits {
            let due = self.dirty.iter().filter(|(_, dirty)| dirty.order <= self.target);
            return Next::Write(due.map(|(block, _)| *block).take(BATCH_BLOCKS).collect());
        }
        let clean = self.clean_at.filter(|at| *at <= now).map(|_| self.cleanable());
        if let Some(regions) = clean {
            self.clean_at = None;
            if !regions.is_empty() {
                for region in &regions {
                    self.intended.remove(region);
                }
                return Next::Clean(regions);
            }
        }
        let late = first.map(|first| first.since + WRITE_BACK_AFTER_NS);
        let soon = if waits { self.again_at } else { late };
        Next::Sleep(soon.into_iter().chain(self.clean_at).min())
    }

    /// Regions that writes wait for.
    fn wanted(&self) -> BTreeSet<u64> {
        let all = self.waiting.iter().flat_map(|write| write.regions.clone());
        all.filter(|region| !self.intended.contains(region)).collect()
    }

    fn cleanable(&self) -> Vec<u64> {
        let waited: BTreeSet<u64> = self.waiting.iter().flat_map(|write| write.regions.clone()).collect();
        let rests = |region: &&u64| {
            !(self.counts.contains_key(region) || self.stale.contains_key(region) || waited.contains(region))
        };
        self.intended.iter().filter(rests).copied().collect()
    }

    fn has_room(&self) -> bool {
        self.dirty() <= self.room
    }

    fn are_intended(&self, regions: &Range<u64>) -> bool {
        regions.clone().all(|region| self.intended.contains(&region))
    }

    /// The intents of these are on the disk; who is told that.
    pub fn intended(&mut self, regions: &[u64]) -> Told<T> {
        self.intended.extend(regions);
        self.let_in()
    }

    fn let_in(&mut self) -> Told<T> {
        if !self.has_room() {
            return Vec::new();
        }
        let intended = &self.intended;
        let ready = |write: &mut Write<T>| write.regions.clone().all(|region| intended.contains(&region));
        self.waiting.extract_if(.., ready).map(|write| (write.who, true)).collect()
    }

    /// These are taken out of memory to be written: what lands from now on is dirty again.
    pub fn begin(&mut self, blocks: &[u64]) {
        for block in blocks {
            if let Some(dirty) = self.dirty.remove(block) {
                self.oldest.remove(&(dirty.order, *block));
                self.writing.insert(*block, dirty);
            }
        }
    }

    /// They were written, or the disk did not take them; who is told, and what is held once less.
    pub fn written(&mut self, now: Time, blocks: &[u64], is_taken: bool) -> (Told<T>, Vec<u64>) {
        let mut let_go = Vec::new();
        let mut failed = u64::MAX;
        for block in blocks {
            let Some(was) = self.writing.remove(block) else { continue };
            if is_taken || self.dirty.contains_key(block) {
                self.less(*block);
                let_go.push(*block);
            }
            if !is_taken {
                failed = failed.min(was.order);
                self.dirty.entry(*block).or_insert_with(|| {
                    self.oldest.insert((was.order, *block));
                    Dirty { since: now, ..was }
                });
            }
        }
        let mut told: Told<T> = Vec::new();
        if !is_taken {
            (self.again_at, self.target) = (Some(now + WRITE_BACK_AGAIN_NS), 0);
            let without = self.flushes.extract_if(.., |(order, _)| *order >= failed);
            told.extend(without.map(|(_, who)| (who, false)));
            if !self.has_room() {
                told.extend(self.waiting.drain(..).map(|write| (write.who, false)));
            }
        }
        self.settle(now, &mut told);
        (told, let_go)
    }

    fn settle(&mut self, now: Time, told: &mut Told<T>) {
        let first = self.oldest.first().map(|(order, _)| *order);
        let begun = self.writing.values().map(|dirty| dirty.order).min();
        let open = first.into_iter().chain(begun).min().unwrap_or(u64::MAX);
        told.extend(self.flushes.extract_if(.., |(order, _)| *order < open).map(|(_, who)| (who, true)));
        told.extend(self.let_in());
        if self.clean_at.is_none() && open > self.target {
            self.clean_at = Some(now + WRITE_BACK_AFTER_NS);
        }
    }

    fn less(&mut self, block: u64) {
        let region = block / INTENT_REGION_BLOCKS;
        if let Some(count) = self.counts.get_mut(&region) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&region);
            }
        }
    }

    /// These are nobody's any more; who waited for something is told that it is done, and what was held.
    pub fn forget(&mut self, now: Time, blocks: Range<u64>) -> (Told<T>, Vec<u64>) {
        let dirty: Vec<u64> = self.dirty.range(blocks.clone()).map(|(block, _)| *block).collect();
        for block in &dirty {
            if let Some(dirty) = self.dirty.remove(block) {
                self.oldest.remove(&(dirty.order, *block));
                self.less(*block);
            }
        }
        let regions = regions_of(&blocks);
        self.stale.retain(|region, _| !regions.contains(region));
        self.intended.retain(|region| !regions.contains(region));
        let mine = self.waiting.extract_if(.., |write| regions.contains(&write.regions.start));
        let mut told: Told<T> = mine.map(|write| (write.who, true)).collect();
        self.settle(now, &mut told);
        (told, dirty)
    }

    /// Whether what the disk has of this block may be older than what was acknowledged.
    #[must_use]
    pub fn is_stale(&self, block: u64) -> bool {
        let (region, at) = (block / INTENT_REGION_BLOCKS, block % INTENT_REGION_BLOCKS);
        let words = self.stale.get(&region);
        words.is_some_and(|words| words[(at / 64) as usize] >> (at % 64) & 1 == 1)
    }

    /// Whether anything of a range may be.
    #[must_use]
    pub fn any_stale(&self, blocks: Range<u64>) -> bool {
        !self.stale.is_empty() && blocks.into_iter().any(|block| self.is_stale(block))
    }

    /// Runs of whole regions of which some block may be, in a range.
    pub fn stale_runs(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (region, _) in self.stale.range(regions_of(&blocks)) {
            let first = region * INTENT_REGION_BLOCKS;
            match runs.last_mut() {
                Some(last) if last.end == first => last.end += INTENT_REGION_BLOCKS,
                _ => runs.push(first..first + INTENT_REGION_BLOCKS),
            }
        }
        runs
    }

    fn fresh(&mut self, block: u64) {
        let (region, at) = (block / INTENT_REGION_BLOCKS, block % INTENT_REGION_BLOCKS);
        let Some(words) = self.stale.get_mut(&region) else { return };
        words[(at / 64) as usize] &= !(1 << (at % 64));
        if *words == [0; WORDS] {
            self.stale.remove(&region);
        }
    }

    /// What is stale of these counts as it is on the disk from now on: which blocks that were.
    #[must_use]
    pub fn adopt(&mut self, now: Time, blocks: Range<u64>) -> Vec<u64> {
        if self.stale.is_empty() {
            return Vec::new();
        }
        let stale: Vec<u64> = blocks.filter(|block| self.is_stale(*block)).collect();
        stale.iter().for_each(|block| self.fresh(*block));
        self.clean_at.get_or_insert(now + WRITE_BACK_AFTER_NS);
        stale
    }
}

fn regions_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / INTENT_REGION_BLOCKS..blocks.end.div_ceil(INTENT_REGION_BLOCKS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SECOND_NS;

    const REGION: u64 = INTENT_REGION_BLOCKS;

    fn cache(room: u64) -> WriteBack<char> {
        WriteBack::new(room * WRITE_BACK_SHARE, &BTreeSet::new())
    }

    /// Carries out what is to be done until there is nothing; who is told.
    fn run(cache: &mut WriteBack<char>, now: Time) -> (Vec<Next>, Told<char>) {
        let (mut done, mut told) = (Vec::new(), Vec::new());
        loop {
            let next = cache.next(now);
            match &next {
                Next::Intend(regions) => told.extend(cache.intended(regions)),
                Next::Write(blocks) => {
                    cache.begin(blocks);
                    told.extend(cache.written(now, blocks, true).0);
                }
                Next::Clean(_) => {}
                Next::Sleep(_) => return (done, told),
            }
            done.push(next);
        }
    }

    #[test]
    fn a_write_is_answered_once_its_region_has_an_intent_and_the_next_ones_at_once() {
        let mut cache = cache(1000);
        assert_eq!(cache.landed(0, 5..7, Some('a')), (Landed::Waits, vec![]));
        assert_eq!(run(&mut cache, 0), (vec![Next::Intend(vec![0])], vec![('a', true)]));
        assert_eq!(cache.landed(1, 6..9, Some('b')), (Landed::Done, vec![6]), "an overwrite costs nothing");
        assert_eq!(cache.dirty(), 4);
        assert_eq!(cache.landed(1, REGION - 1..REGION + 1, Some('c')).0, Landed::Waits, "another region");
        assert_eq!(run(&mut cache, 1), (vec![Next::Intend(vec![1])], vec![('c', true)]));
    }

    #[test]
    fn what_is_old_is_written_in_order_of_address_and_its_region_is_clean_then() {
        let mut cache = cache(1000);
        for block in [9, 3, 4] {
            cache.landed(0, block..block + 1, Some('a'));
        }
        run(&mut cache, 0);
        assert_eq!(cache.next(1), Next::Sleep(Some(WRITE_BACK_AFTER_NS)));
        let (done, _) = run(&mut cache, WRITE_BACK_AFTER_NS);
        assert_eq!(done, [Next::Write(vec![3, 4, 9]), Next::Clean(vec![0])]);
        assert_eq!(cache.next(100 * SECOND_NS), Next::Sleep(None));
        assert_eq!(cache.landed(0, 3..4, Some('b')).0, Landed::Waits, "it needs an intent again");
    }

    #[test]
    fn a_flush_waits_for_all_that_was_dirty_and_for_nothing_that_lands_later() {
        let mut cache = cache(1000);
        assert_eq!(cache.flush('f'), Some('f'), "there is nothing");
        cache.landed(0, 1..3, Some('a'));
        run(&mut cache, 0);
        assert_eq!(cache.flush('f'), None);
        let Next::Write(blocks) = cache.next(0) else { panic!("it is to be written") };
        cache.begin(&blocks);
        assert_eq!(cache.landed(0, 2..4, Some('b')), (Landed::Done, vec![]), "it was taken out before");
        let (told, let_go) = cache.written(0, &blocks, true);
        assert_eq!((told, let_go), (vec![('f', true)], vec![1, 2]));
        assert!(cache.is_dirty(2) && !cache.is_dirty(1));
        assert!(matches!(cache.next(0), Next::Sleep(Some(_))), "nobody asked for those");
        // Its region has its intent still, for some of it is dirty.
        let (done, _) = run(&mut cache, WRITE_BACK_AFTER_NS);
        assert_eq!(done, [Next::Write(vec![2, 3]), Next::Clean(vec![0])]);
    }

    #[test]
    fn a_write_that_finds_no_room_waits_for_some() {
        let mut cache = cache(4);
        cache.landed(0, 0..4, Some('a'));
        assert_eq!(run(&mut cache, 0).1, [('a', true)]);
        assert_eq!(cache.landed(0, 8..10, Some('b')).0, Landed::Waits);
        let (done, told) = run(&mut cache, 0);
        assert_eq!(done[0], Next::Write(vec![0, 1, 2, 3, 8, 9]));
        assert_eq!(told, [('b', true)]);
        // Regions are bounded likewise.
        cache.landed(1, 0..1, Some('a'));
        run(&mut cache, 1);
        cache.regions_max = 1;
        assert_eq!(cache.landed(1, 5 * REGION..5 * REGION + 1, Some('c')).0, Landed::Waits);
        let (done, told) = run(&mut cache, 1);
        assert!(done.contains(&Next::Clean(vec![0])), "{done:?}");
        assert_eq!(told, [('c', true)]);
    }

    #[test]
    fn what_the_disk_does_not_take_stays_and_fails_the_flush() {
        let mut cache = cache(2);
        cache.landed(0, 1..3, Some('a'));
        run(&mut cache, 0);
        cache.flush('f');
        let Next::Write(blocks) = cache.next(0) else { panic!("it is to be written") };
        cache.begin(&blocks);
        assert_eq!(cache.written(0, &blocks, false), (vec![('f', false)], vec![]));
        assert_eq!((cache.dirty(), cache.next(0)), (2, Next::Sleep(Some(WRITE_BACK_AGAIN_NS))));
        cache.landed(0, 5..6, Some('b'));
        assert_eq!(cache.next(1), Next::Sleep(Some(WRITE_BACK_AGAIN_NS)), "it waits for room");
        let Next::Write(blocks) = cache.next(WRITE_BACK_AGAIN_NS) else { panic!("again") };
        cache.begin(&blocks);
        assert_eq!(cache.written(0, &blocks, false).0, [('b', false)], "there will be none");
    }

    #[test]
    fn what_had_an_intent_is_stale_until_it_is_written_or_adopted() {
        let mut cache: WriteBack<char> = WriteBack::new(1000, &BTreeSet::from([0, 1, 4]));
        assert_eq!(cache.stale_runs(0..10 * REGION), [0..2 * REGION, 4 * REGION..5 * REGION]);
        assert!(
            cache.is_stale(7) && !cache.is_stale(2 * REGION) && cache.any_stale(2 * REGION - 1..3 * REGION)
        );
        cache.landed(0, 0..REGION - 1, Some('a'));
        assert!(!cache.is_stale(7) && cache.is_stale(REGION - 1));
        assert_eq!(cache.adopt(0, REGION - 2..REGION + 1), [REGION - 1, REGION]);
        assert_eq!(cache.stale_runs(0..10 * REGION), [REGION..2 * REGION, 4 * REGION..5 * REGION]);
        let (done, _) = run(&mut cache, WRITE_BACK_AFTER_NS);
        assert!(done.contains(&Next::Clean(vec![0])), "what is stale keeps its intent: {done:?}");
        let _ = cache.forget(0, 4 * REGION..8 * REGION);
        assert!(!cache.is_stale(4 * REGION));
    }
}
