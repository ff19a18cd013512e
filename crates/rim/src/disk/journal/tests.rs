//! A disk that loses power at any moment: what was written since its last flush is there, or not, or in part,
//! sector by sector.

use super::*;
use crate::auth::{self, AUTH_BYTES, Auth};
use cheetah_core::checksum::ZERO_BLOCK_CRC;
use cheetah_core::disk::{Held, NO_AUTH, Noted, PAGE_BYTES};
use cheetah_core::map::{DonorId, DonorSecret, VolumeId};
use cheetah_core::seed::Seed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

const PAGE: usize = PAGE_BYTES as usize;
const SECTOR: usize = 512;
const VOLUME: VolumeId = VolumeId(5);

#[derive(Debug, Default)]
struct Lossy(Mutex<Power>);

#[derive(Debug)]
struct Power {
    pages: BTreeMap<u64, Vec<u8>>,
    /// Since the last flush.
    pending: Vec<(u64, Vec<u8>)>,
    /// So many calls until it is gone.
    left: u32,
}

impl Default for Power {
    fn default() -> Power {
        Power { pages: BTreeMap::new(), pending: Vec::new(), left: u32::MAX }
    }
}

impl Power {
    fn spend(&mut self) -> io::Result<()> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 { Err(io::Error::other("no power")) } else { Ok(()) }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        for (nth, page) in bytes.chunks(PAGE).enumerate() {
            self.pages.insert(at / PAGE_BYTES + nth as u64, page.to_vec());
        }
    }

    fn get(&self, at: u64, into: &mut [u8]) {
        for (nth, page) in into.chunks_mut(PAGE).enumerate() {
            match self.pages.get(&(at / PAGE_BYTES + nth as u64)) {
                Some(found) => page.copy_from_slice(found),
                None => page.fill(0),
            }
        }
    }
}

impl Lossy {
    fn locked(&self) -> std::sync::MutexGuard<'_, Power> {
        self.0.lock().expect("no test panics here")
    }

    /// Power goes, and comes again.
    fn cut(&self, seed: &mut Seed) {
        let mut power = self.locked();
        for (at, bytes) in std::mem::take(&mut power.pending) {
            let mut page = vec![0; bytes.len()];
            power.get(at, &mut page);
            let fate = seed.draw() % 4;
            for (old, new) in page.chunks_mut(SECTOR).zip(bytes.chunks(SECTOR)) {
                if fate == 0 || (fate == 1 && seed.draw().is_multiple_of(2)) {
                    old.copy_from_slice(new);
                }
            }
            power.put(at, &page);
        }
        power.left = u32::MAX;
    }
}

impl Blocks for Lossy {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut power = self.locked();
        power.spend()?;
        power.get(at, into);
        let pending = std::mem::take(&mut power.pending);
        let end = at + into.len() as u64;
        for (from, bytes) in &pending {
            let (begin, stop) = (at.max(*from), end.min(from + bytes.len() as u64));
            if begin < stop {
                let len = (stop - begin) as usize;
                into[(begin - at) as usize..][..len]
                    .copy_from_slice(&bytes[(begin - from) as usize..][..len]);
            }
        }
        power.pending = pending;
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(at.is_multiple_of(PAGE_BYTES) && bytes.len().is_multiple_of(PAGE), "whole pages");
        let mut power = self.locked();
        power.pending.push((at, bytes.to_vec()));
        power.spend()
    }

    fn flush(&self) -> io::Result<()> {
        let mut power = self.locked();
        power.spend()?;
        for (at, bytes) in std::mem::take(&mut power.pending) {
            power.put(at, &bytes);
        }
        Ok(())
    }

    fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        let mut power = self.locked();
        power.spend()?;
        let range = at / PAGE_BYTES..(at + len) / PAGE_BYTES;
        power.pages.retain(|page, _| !range.contains(page));
        power.pending.retain(|(from, _)| !range.contains(&(from / PAGE_BYTES)));
        Ok(())
    }
}

/// What a block may be: its content with its nonce and authentication tag, or zeros.
type Content = Option<(Vec<u8>, Auth)>;

fn noted(content: &Content) -> Noted {
    match content {
        Some((bytes, auth)) => Noted { sum: crc32c(bytes) ^ auth::sum(auth), is_data: true, is_known: true },
        None => Noted { sum: ZERO_BLOCK_CRC, is_data: false, is_known: true },
    }
}

fn write_of(first: u64, contents: &[Content]) -> Write {
    let auths = contents.iter().map(|content| content.as_ref().map_or(NO_AUTH, |(_, auth)| *auth));
    let mut auths: Vec<Auth> = auths.collect();
    if auths.iter().all(|auth| *auth == NO_AUTH) {
        auths.clear();
    }
    let data: Vec<u8> = contents.iter().flatten().flat_map(|(bytes, _)| bytes.clone()).collect();
    Write { first, notes: contents.iter().map(noted).collect(), auths, data: Pages::of(&data) }
}

fn random_auth(seed: &mut Seed) -> Auth {
    let bytes: Vec<u8> = std::iter::repeat_with(|| seed.draw().to_le_bytes()).take(4).flatten().collect();
    *bytes.first_chunk::<AUTH_BYTES>().expect("32 bytes")
}

/// Of a volume that is encrypted, or is not.
fn random_write(seed: &mut Seed, used: &mut BTreeSet<u64>, is_encrypted: bool) -> (Write, Vec<Content>) {
    let (mut first, count) = (seed.draw() % 40, 1 + seed.draw() % 6);
    while (first..first + count).any(|block| used.contains(&block)) {
        first += 1;
    }
    used.extend(first..first + count);
    let content = |seed: &mut Seed| -> Content {
        let fill = seed.draw();
        let auth = if is_encrypted { random_auth(seed) } else { NO_AUTH };
        (!fill.is_multiple_of(4)).then(|| (fill.to_le_bytes().repeat(BLOCK / 8), auth))
    };
    let contents: Vec<Content> = (0..count).map(|_| content(seed)).collect();
    (write_of(first, &contents), contents)
}

fn on(blocks: &Arc<Lossy>) -> OnBlocks {
    OnBlocks(Arc::clone(blocks) as Arc<dyn Blocks>)
}

/// Nobody knows of regions that others may not have.
fn none(_: &Held) -> Vec<u64> {
    Vec::new()
}

fn opened(blocks: &Arc<Lossy>, place: Place) -> Journal {
    let opened = Journal::open(on(blocks), place.bytes());
    opened.expect("it is ours").expect("it is not blank")
}

/// What a reader would get; None where it is wrong.
fn content(journal: &mut Journal, block: u64) -> Option<Content> {
    let (noted, auth) = (journal.noted(block), journal.auth(block));
    if !noted.is_data {
        assert_eq!(auth, NO_AUTH, "zeros have none");
        return Some(None);
    }
    let bytes = raw(journal, block);
    (crc32c(&bytes) ^ auth::sum(&auth) == noted.sum).then_some(Some((bytes, auth)))
}

/// What the disk has there, whatever that is.
fn raw(journal: &Journal, block: u64) -> Vec<u8> {
    let mut page = Pages::new(BLOCK);
    journal.disk().0.read_at(journal.place().block(block), page.bytes_mut()).expect("there is power");
    page.bytes().to_vec()
}

fn life_of_a_disk(seed: u64) {
    let is_encrypted = seed.is_multiple_of(2);
    let place = Place { extents: 1, keeps_auths: is_encrypted || seed.is_multiple_of(3) };
    let mut seed = Seed(seed);
    let blocks = Arc::new(Lossy::default());
    let format = Journal::format(on(&blocks), DonorId(1), DonorSecret(2), place);
    let mut journal = format.expect("there is power");
    let held = Held { owners: BTreeMap::from([(0, VOLUME)]), ..Held::default() };
    journal.keep(held.clone()).expect("there is power");
    let mut is: BTreeMap<u64, Content> = BTreeMap::new();
    for _ in 0..6 {
        blocks.locked().left = 2 + (seed.draw() % 60) as u32;
        // A log that is nearly full begins anew in the middle of it.
        journal.limit_log(if seed.draw().is_multiple_of(3) { 0 } else { u64::MAX });
        let mut under_way: BTreeMap<u64, Content> = BTreeMap::new();
        loop {
            let mut used = BTreeSet::new();
            let count = 1 + seed.draw() % 3;
            let (writes, contents): (Vec<_>, Vec<_>) =
                (0..count).map(|_| random_write(&mut seed, &mut used, is_encrypted)).unzip();
            let each = writes.iter().map(Write::blocks).zip(contents);
            let news: BTreeMap<u64, Content> =
                each.flat_map(|(blocks, contents)| blocks.zip(contents)).collect();
            match journal.commit(&writes, none) {
                Ok(done) if done.iter().all(Result::is_ok) => is.extend(news),
                _ => {
                    under_way.extend(news);
                    break;
                }
            }
        }
        blocks.cut(&mut seed);
        if seed.draw().is_multiple_of(2) {
            // Also while what was found is put down.
            blocks.locked().left = 2 + (seed.draw() % 30) as u32;
            let _ = Journal::open(on(&blocks), place.bytes());
            blocks.cut(&mut seed);
        }
        journal = opened(&blocks, place);
        assert_eq!(*journal.held(), held);
        for block in 0..64 {
            let (found, acknowledged) = (content(&mut journal, block), is.get(&block).cloned().flatten());
            let dirty = journal.dirty_at_start();
            match under_way.get(&block) {
                None => assert_eq!(found, Some(acknowledged), "block {block} was acknowledged"),
                // Torn, new or old; from now on it is what it is.
                Some(new) => {
                    assert!(
                        found.as_ref().is_none_or(|it| it == new || *it == acknowledged),
                        "block {block}"
                    );
                    // What was not torn is right, with what belongs to it.
                    let there = raw(&journal, block);
                    let is_whole = |content: &Content| content.as_ref().is_some_and(|it| it.0 == there);
                    let is_one = is_whole(new) || is_whole(&acknowledged);
                    assert!(found.is_some() || !is_one, "block {block} is all there");
                    if found == Some(new.clone()) && *new != acknowledged {
                        let is_marked = dirty.iter().any(|range| range.contains(&(block * BLOCK_BYTES)));
                        assert!(is_marked, "who writes next asks whether others have block {block}");
                    }
                    match found {
                        Some(found) => drop(is.insert(block, found)),
                        None => rewrite(&mut journal, &mut is, block),
                    }
                }
            }
        }
    }
}

/// As redundancy heals it.
fn rewrite(journal: &mut Journal, is: &mut BTreeMap<u64, Content>, block: u64) {
    let content = Some((vec![7; BLOCK], NO_AUTH));
    let write = write_of(block, std::slice::from_ref(&content));
    journal.commit(&[write], none).expect("there is power").remove(0).expect("there is power");
    is.insert(block, content);
}

#[test]
fn what_was_acknowledged_is_there_whenever_power_goes() {
    for seed in 0..400 {
        life_of_a_disk(seed);
    }
}

#[test]
fn what_was_wiped_is_gone_and_does_not_come_back() {
    let place = Place::of(2);
    for cut in 2..40_u32 {
        let blocks = Arc::new(Lossy::default());
        let format = Journal::format(on(&blocks), DonorId(1), DonorSecret(2), place);
        let mut journal = format.expect("there is power");
        let owners = BTreeMap::from([(0, VOLUME), (1, VOLUME)]);
        journal.keep(Held { owners, ..Held::default() }).expect("there is power");
        let mut seed = Seed(cut.into());
        let (write, _) = random_write(&mut seed, &mut BTreeSet::new(), true);
        let touched = write.blocks();
        journal.commit(&[write], none).expect("there is power");
        if cut.is_multiple_of(2) {
            journal.begin_anew(Vec::new()).expect("there is power");
        }
        blocks.locked().left = cut;
        let wiped = journal.wipe(&[0], none).is_ok();
        let _ = journal.begin_anew(Vec::new());
        blocks.cut(&mut seed);
        let journal = opened(&blocks, place);
        for block in touched.filter(|_| wiped) {
            assert!(!journal.noted(block).is_known, "cut after {cut} calls");
            assert_eq!(journal.auth(block), NO_AUTH, "cut after {cut} calls");
            let mut auths = Pages::new(PAGE);
            blocks.read_at(place.auths(0), auths.bytes_mut()).expect("there is power");
            assert!(auths.bytes().iter().all(|byte| *byte == 0), "nor of what belonged to it");
            let mut page = Pages::new(BLOCK);
            blocks.read_at(place.block(block), page.bytes_mut()).expect("there is power");
            assert!(page.bytes().iter().all(|byte| *byte == 0), "no byte stays on the disk");
        }
    }
}

#[test]
fn what_rots_behind_a_mark_is_wrong_and_not_what_it_was_before() {
    let place = Place::of(1);
    let blocks = Arc::new(Lossy::default());
    let format = Journal::format(on(&blocks), DonorId(1), DonorSecret(2), place);
    let mut journal = format.expect("there is power");
    let owners = BTreeMap::from([(0, VOLUME)]);
    journal.keep(Held { owners, ..Held::default() }).expect("there is power");
    rewrite(&mut journal, &mut BTreeMap::new(), 3);
    assert!(journal.is_to_be_marked());
    journal.mark(none).map_err(io_error).and_then(|()| blocks.flush()).expect("there is power");
    assert!(!journal.is_to_be_marked());
    blocks.write_at(place.block(3), &[8; BLOCK]).and_then(|()| blocks.flush()).expect("it rots");
    let mut journal = opened(&blocks, place);
    assert_eq!(content(&mut journal, 3), None, "it was acknowledged, and is not zeros");
}

#[test]
fn what_belongs_to_another_volume_before_is_not_taken_for_this_ones() {
    let place = Place::of(1);
    let blocks = Arc::new(Lossy::default());
    // What a disk had before it was lent.
    for page in 0..place.block(0) / PAGE_BYTES {
        blocks.locked().put(page * PAGE_BYTES, &[0xee; PAGE]);
    }
    let format = Journal::format(on(&blocks), DonorId(1), DonorSecret(2), place);
    let mut journal = format.expect("there is power");
    let owners = BTreeMap::from([(0, VOLUME)]);
    let held = Held { owners, ..Held::default() };
    journal.keep(held.clone()).expect("there is power");
    let content = Some((vec![3; BLOCK], [9; AUTH_BYTES]));
    journal.commit(&[write_of(5, std::slice::from_ref(&content))], none).expect("there is power");
    // It is the log alone that has it yet.
    journal.keep(held).expect("there is power");
    for begins_anew in [false, true] {
        if begins_anew {
            journal.begin_anew(Vec::new()).expect("there is power");
        }
        let mut journal = opened(&blocks, place);
        assert_eq!(self::content(&mut journal, 5), Some(content.clone()));
        assert!((0..5).chain(6..1000).all(|block| journal.auth(block) == NO_AUTH));
    }
}

#[test]
fn a_disk_of_an_earlier_version_has_no_tags_until_it_is_let_go() {
    let bytes = 3 * cheetah_core::limits::EXTENT_BYTES;
    let place = Place { extents: 2, keeps_auths: false };
    let blocks = Arc::new(Lossy::default());
    let format = Journal::format(on(&blocks), DonorId(1), DonorSecret(2), place);
    let owners = BTreeMap::from([(0, VOLUME)]);
    let held = Held { owners, ..Held::default() };
    format.expect("there is power").keep(held).expect("there is power");
    let open = || Journal::open(on(&blocks), bytes).expect("it is ours").expect("it is not blank");
    let mut journal = open();
    assert_eq!(journal.place(), place);
    let with_auth = write_of(5, &[Some((vec![3; BLOCK], [9; AUTH_BYTES]))]);
    let refused = journal.commit(&[with_auth], none);
    assert!(matches!(refused, Err(JournalError::NoAuths)), "{refused:?}");
    let plain = Some((vec![3; BLOCK], NO_AUTH));
    journal.commit(&[write_of(5, std::slice::from_ref(&plain))], none).expect("there is power");
    let mut journal = open();
    assert_eq!(content(&mut journal, 5), Some(plain));
    assert!(matches!(journal.renew(DonorId(3), DonorSecret(4)), Err(JournalError::Holds)));
    journal.wipe(&[0], none).expect("there is power");
    journal.keep(Held::default()).expect("there is power");
    journal.renew(DonorId(3), DonorSecret(4)).expect("there is power");
    let journal = open();
    assert_eq!((journal.donor(), journal.secret()), (DonorId(3), DonorSecret(4)));
    assert_eq!(Some(journal.place()), Place::on(bytes));
    assert!(journal.place().keeps_auths && *journal.held() == Held::default());
    let mut known = 0;
    journal.each_known(|_, _| known += 1);
    assert_eq!(known, 0);
}

#[test]
fn pages_that_lie_side_by_side_are_one_request() {
    let place = Place { extents: 1, keeps_auths: true };
    let blocks = Arc::new(Lossy::default());
    let mut journal =
        Journal::format(on(&blocks), DonorId(1), DonorSecret(2), place).expect("there is power");
    let requests = |journal: &mut Journal, job: &dyn Fn(&mut Journal)| {
        blocks.locked().left = u32::MAX;
        job(journal);
        u32::MAX - blocks.locked().left
    };
    // Of 600 blocks that are zeros, three pages of the log; and a flush.
    let write = write_of(0, &vec![None; 600]);
    let commit =
        |journal: &mut Journal| _ = journal.commit(std::slice::from_ref(&write), none).expect("it is taken");
    assert_eq!(requests(&mut journal, &commit), 2);
    // Pages of the table from its first on, and its last; the state; a flush of each.
    let anew = |journal: &mut Journal| journal.begin_anew(Vec::new()).expect("it is taken");
    assert_eq!(requests(&mut journal, &anew), 5);
    // Where the log goes round they are two.
    journal.limit_log(u64::MAX);
    (0..place.log_pages() / 3 - 1).for_each(|_| commit(&mut journal));
    assert_eq!(requests(&mut journal, &commit), 3);
}
