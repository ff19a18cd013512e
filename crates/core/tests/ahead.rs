//! Which ranges are read ahead of which reads.

use cheetah_core::ahead::{Ahead, Found, Read, Rule, Want};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const STRIDE: u64 = 200 << 10;
const MS: u64 = 1_000_000;
const SIZE: u64 = 4 << 30;

/// Knuth's MMIX generator; its upper bits are random enough.
fn next_random(seed: u64) -> u64 {
    seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// A tool that reads, and a cache that holds all that was ever wanted.
struct Reader {
    ahead: Ahead,
    now: u64,
    size: u64,
    /// What was read stays in the cache.
    keeps: bool,
    /// For whom each block was fetched.
    here: BTreeMap<u64, u32>,
    /// As the kernel does, it takes what it is offered and asks for it no more.
    takes: bool,
    taken: BTreeSet<u64>,
    wants: Vec<Want>,
    hits: usize,
    reads: usize,
}

impl Reader {
    fn new(rule: Rule) -> Reader {
        Reader {
            ahead: Ahead::new(rule, 64 * MIB),
            now: 1,
            size: SIZE,
            keeps: true,
            here: BTreeMap::new(),
            takes: false,
            taken: BTreeSet::new(),
            wants: Vec::new(),
            hits: 0,
            reads: 0,
        }
    }

    /// Over a path of 125 MB/s at 20 ms.
    fn far(rule: Rule) -> Reader {
        let mut reader = Reader::new(rule);
        for number in 0..1000 {
            reader.now = number * 524_288;
            reader.ahead.answered(reader.now, 65_536, 20 * MS + 524_288);
        }
        reader
    }

    fn read(&mut self, offset: u64, len: u64) -> bool {
        self.now += MS / 10;
        let blocks = || offset / BLOCK..(offset + len).div_ceil(BLOCK);
        if blocks().all(|block| self.taken.remove(&block)) {
            self.reads += 1;
            self.hits += 1;
            return true;
        }
        let missed = !blocks().all(|block| self.here.contains_key(&block));
        if !missed {
            // Each stream is told once of all that was fetched for it.
            let mut used = BTreeMap::<u32, u32>::new();
            blocks().for_each(|block| *used.entry(self.here[&block]).or_default() += BLOCK as u32);
            used.into_iter().for_each(|(stream, bytes)| self.ahead.used(stream, bytes));
        }
        let from = self.wants.len();
        let found = match missed {
            true => Found::Missed,
            // It comes a little late to what it must ask for.
            false if self.takes => Found::Coming,
            false => Found::Here,
        };
        let read = Read { offset, len: u32::try_from(len).expect("small"), found };
        self.ahead.read(self.now, read, 0, self.size, &mut self.wants);
        for want in &self.wants[from..] {
            let end = want.offset + u64::from(want.len);
            assert!(want.len > 0 && want.offset.is_multiple_of(BLOCK) && end <= self.size, "{want:?}");
            assert!(end.is_multiple_of(BLOCK) || end == self.size, "{want:?}");
            for block in want.offset / BLOCK..end.div_ceil(BLOCK) {
                if let Entry::Vacant(gap) = self.here.entry(block) {
                    gap.insert(want.stream);
                    let len = (end - block * BLOCK).min(BLOCK) as u32;
                    self.ahead.fetched(Want { offset: block * BLOCK, len, stream: want.stream });
                }
            }
            if self.takes {
                let given = u64::from(self.ahead.offer(want.stream, want.offset, want.len));
                self.taken.extend(want.offset / BLOCK..(want.offset + given).div_ceil(BLOCK));
            }
        }
        if !self.keeps {
            blocks().for_each(|block| _ = self.here.remove(&block));
        }
        self.reads += 1;
        self.hits += usize::from(!missed);
        !missed
    }

    fn wanted(&self) -> u64 {
        self.wants.iter().map(|want| u64::from(want.len)).sum()
    }

    #[track_caller]
    fn expect_hits(&self, at_least: usize) {
        assert!(self.hits >= at_least, "{} of {} reads were there", self.hits, self.reads);
    }
}

#[test]
fn reads_that_continue_find_what_follows_from_the_third_on() {
    for len in [BLOCK, 64 << 10, 100_000] {
        let mut reader = Reader::new(Rule::Streams);
        for number in 0..400 {
            reader.read(number * len, len);
        }
        reader.expect_hits(397);
        assert!(reader.wanted() < 400 * len + 5 * MIB, "{} bytes were fetched", reader.wanted());
    }
}

#[test]
fn reads_backwards_find_what_precedes() {
    let mut reader = Reader::new(Rule::Streams);
    for number in (0..1000).rev() {
        reader.read(number * BLOCK, BLOCK);
    }
    reader.expect_hits(996);
}

#[test]
fn strides_are_found_both_ways_and_only_their_items_fetched() {
    for way in [1, -1] {
        let mut reader = Reader::new(Rule::Streams);
        for number in 0..2000_i64 {
            let offset = (2_i64 << 30) + way * number * 200 * 1024;
            reader.read(offset.try_into().expect("positive"), BLOCK);
        }
        reader.expect_hits(1990);
        assert!(reader.wanted() <= 2300 * BLOCK, "{} bytes for 2000 blocks", reader.wanted());
    }
}

#[test]
fn a_strided_reader_that_passes_what_was_asked_for_is_asked_nothing_behind_it() {
    let mut reader = Reader::new(Rule::Streams);
    (0..20).for_each(|number| _ = reader.read(number * STRIDE, BLOCK));
    let asked = reader.wants.last().expect("strides are found").offset;
    let past = asked + 2 * STRIDE;
    let from = reader.wants.len();
    (0..3).for_each(|number| _ = reader.read(past + number * STRIDE, BLOCK));
    let behind: Vec<&Want> = reader.wants[from..].iter().filter(|want| want.offset <= past).collect();
    assert!(reader.wants.len() > from && behind.is_empty(), "{behind:?}");
}

#[test]
fn many_streams_at_once_do_not_disturb_each_other() {
    let mut reader = Reader::new(Rule::Streams);
    let mut noise = 7_u64;
    for number in 0..300 {
        // Sixteen near one another, forward, backward and strided, and reads at random in between.
        for stream in 0..16_u64 {
            let base = (stream + 1) * 40 * MIB;
            let offset = match stream % 3 {
                0 => base + number * BLOCK,
                1 => base + 2000 * BLOCK - number * BLOCK,
                _ => base + number * 16 * BLOCK,
            };
            reader.read(offset, BLOCK);
        }
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        reader.read((noise >> 20) % (SIZE / BLOCK) * BLOCK, BLOCK);
    }
    reader.expect_hits(15 * 300);
}

#[test]
fn a_tool_may_read_where_others_read_before_it_another_way() {
    type Pass = fn(u64) -> u64;
    let passes: [(&str, Pass); 5] = [
        ("forward", |number| number * BLOCK),
        ("backward", |number| 64 * MIB - (number + 1) * BLOCK),
        ("strided", |number| number * 200 * 1024),
        ("strided behind the end of the first", |number| 1000 * BLOCK + (number + 1) * 200 * 1024),
        ("strided backward", |number| 200 * MIB - number * 200 * 1024),
    ];
    // A tool that opens the file anew, and one that goes on.
    for anew in [true, false] {
        let mut reader = Reader { keeps: false, ..Reader::new(Rule::Streams) };
        for round in 0..4 {
            for (name, pass) in passes {
                if anew {
                    reader.here.clear();
                    reader.ahead.restart();
                }
                (reader.hits, reader.reads) = (0, 0);
                reader.wants.clear();
                let count = 1000;
                (0..count).for_each(|number| _ = reader.read(pass(number), BLOCK));
                assert!(reader.hits > 950, "{round}, {name}, {anew}: {} of {count} were there", reader.hits);
                let most = 3 * count * BLOCK + 10 * MIB;
                assert!(reader.wanted() < most, "{round}, {name}, {anew}: {} bytes", reader.wanted());
            }
        }
    }
}

#[test]
fn strides_are_found_where_another_tool_had_read_what_is_before_one_of_them() {
    for anew in [true, false] {
        let mut reader = Reader { keeps: false, ..Reader::new(Rule::Streams) };
        reader.read(STRIDE - BLOCK, BLOCK);
        if anew {
            reader.ahead.restart();
        }
        (reader.hits, reader.reads) = (0, 0);
        (0..1000).for_each(|number| _ = reader.read(number * STRIDE, BLOCK));
        // Nobody opened the file: the second of them continues that other read, and is no forward reader for
        // long.
        reader.expect_hits(if anew { 996 } else { 993 });
        assert!(reader.wanted() < 1100 * BLOCK, "{anew}: {} bytes for 1000 blocks", reader.wanted());
    }
}

#[test]
fn who_begins_where_another_tool_ended_is_not_taken_for_it_at_once() {
    for backward in [false, true] {
        let mut reader = Reader::new(Rule::Streams);
        // All of its reads wait, so its window is as large as can be.
        reader.takes = true;
        for number in 0..1024 {
            let number = if backward { 1023 - number } else { number };
            reader.read((number + 1024) * (64 << 10), 64 << 10);
        }
        reader.ahead.restart();
        (reader.takes, reader.here, reader.taken) = (false, BTreeMap::new(), BTreeSet::new());
        // The place where the other one ended is one of these.
        let (end, items) = (if backward { 64 * MIB - BLOCK } else { 128 * MIB }, 700);
        let before = reader.wanted();
        (0..items).for_each(|number| _ = reader.read(end % STRIDE + number * STRIDE, BLOCK));
        assert!((0..items).any(|number| end % STRIDE + number * STRIDE == end), "{end}");
        let fetched = reader.wanted() - before;
        assert!(fetched < items * BLOCK + MIB, "{fetched} bytes for {items} blocks, backward: {backward}");
    }
}

#[test]
fn records_that_lie_apart_are_read_ahead_of_as_one_stream() {
    let mut reader = Reader { keeps: false, ..Reader::new(Rule::Streams) };
    let places = (0..200).flat_map(|record| (0..16).map(move |block| record * (256 << 10) + block * BLOCK));
    places.for_each(|offset| _ = reader.read(offset, BLOCK));
    reader.expect_hits(3100);
    let streams: BTreeSet<u32> = reader.wants.iter().map(|want| want.stream).collect();
    assert_eq!(streams.len(), 1, "{streams:?}");
}

#[test]
fn a_backward_reader_that_takes_what_it_is_given_stays_one_stream() {
    let mut reader = Reader { keeps: false, takes: true, ..Reader::new(Rule::Streams) };
    let count = 64 * MIB / BLOCK;
    (0..count).for_each(|number| _ = reader.read(100 * MIB - (number + 1) * BLOCK, BLOCK));
    reader.expect_hits(count as usize - 8);
    let streams: BTreeSet<u32> = reader.wants.iter().map(|want| want.stream).collect();
    assert_eq!(streams.len(), 1, "{streams:?}");
}

#[test]
fn a_far_reader_that_skips_is_followed_as_long_as_it_goes_no_other_way() {
    let mut reader = Reader::far(Rule::Streams);
    let (mut offset, mut seed) = (MIB, 7_u64);
    (0..8).for_each(|number| _ = reader.read(MIB + number * BLOCK, BLOCK));
    for _ in 0..400 {
        // As a list of a tar is made: a header of some, and contents of any size skipped.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        offset += (8 + (seed >> 33) % 48) * BLOCK;
        reader.read(offset, 3 * BLOCK);
    }
    reader.expect_hits(390);
}

#[test]
fn strides_that_go_on_where_a_backward_reader_ended_are_found() {
    let mut reader = Reader { keeps: false, ..Reader::new(Rule::Streams) };
    (0..1000).for_each(|number| _ = reader.read(400 * MIB - number * BLOCK, BLOCK));
    reader.wants.clear();
    (0..1000).for_each(|number| _ = reader.read(396 * MIB - number * 200 * 1024, BLOCK));
    assert!(reader.wanted() < 15 * MIB, "{} bytes for 1000 blocks", reader.wanted());
}

#[test]
fn reads_that_are_under_way_together_come_in_any_order() {
    let cases = [(BLOCK, 2), (BLOCK, 8), (BLOCK, 32), (128 << 10, 2), (128 << 10, 8), (MIB, 2)];
    for (block, together) in cases {
        // Backward they may be as far apart as what a reader leaves out.
        let near = together as u64 * block <= 256 << 10;
        for backward in [false, true].into_iter().filter(|backward| near || !backward) {
            let mut reader = Reader::new(Rule::Streams);
            let count = (128 * MIB / block).min(4096);
            let place =
                |number: u64| if backward { 256 * MIB - (number + 1) * block } else { number * block };
            let mut seed = 7_u64;
            // It begins with one at a time, as readers do.
            (0..8).for_each(|number| _ = reader.read(place(number), block));
            for first in (8..count).step_by(together) {
                let mut numbers: Vec<u64> = (first..first + together as u64).collect();
                while !numbers.is_empty() {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let number = numbers.swap_remove((seed >> 33) as usize % numbers.len());
                    reader.read(place(number), block);
                }
            }
            let (hits, what) = (reader.hits as u64, format!("{block}, {together} together, {backward}"));
            assert!(hits * 10 > count * 8, "{what}: {hits} of {count} were there");
            let items = reader.wants.iter().filter(|want| u64::from(want.len) < 16 << 10).count();
            assert!(items < 20, "{what}: {items} of {} are of strides", reader.wants.len());
            let streams: BTreeSet<u32> = reader.wants.iter().map(|want| want.stream).collect();
            assert!(streams.len() < 3, "{what}: {} streams", streams.len());
        }
    }
}

#[test]
fn reads_at_random_fetch_nothing_on_a_lan() {
    let mut reader = Reader::new(Rule::Streams);
    let mut random = 1_u64;
    for _ in 0..10_000 {
        random = next_random(random);
        reader.read((random >> 24) % (SIZE / BLOCK) * BLOCK, BLOCK);
    }
    assert!(reader.wants.len() < 20, "{} fetches for reads at random", reader.wants.len());
}

#[test]
fn reads_at_random_of_a_small_volume_fetch_next_to_nothing() {
    // Some of so many continue others by chance, and many more are near to those.
    let (mut random, count) = (1_u64, 100_000);
    let mut reader = Reader { keeps: false, size: 256 * MIB, ..Reader::new(Rule::Streams) };
    for _ in 0..count {
        random = next_random(random);
        reader.read((random >> 24) % (reader.size / BLOCK) * BLOCK, BLOCK);
    }
    assert!(reader.wanted() < count * BLOCK / 20, "{} bytes for {count} blocks", reader.wanted());
}

#[test]
fn the_window_grows_to_what_a_far_path_holds_and_ends_with_the_volume() {
    let mut reader = Reader::far(Rule::Streams);
    let mut most = 0;
    for number in 0..2000 {
        let offset = number * (64 << 10);
        // It always comes a little late.
        let read = Read { offset, len: 64 << 10, found: Found::Coming };
        reader.ahead.read(number, read, 0, SIZE, &mut reader.wants);
        let last = reader.wants.iter().map(|want| want.offset + u64::from(want.len)).max().unwrap_or(0);
        most = most.max(last.saturating_sub(offset));
    }
    // Bandwidth times delay is 2.5 MB.
    assert!((4 * MIB..7 * MIB).contains(&most), "{most} bytes ahead");
    let mut reader = Reader::new(Rule::Streams);
    reader.size = 10 * MIB + 123;
    for number in 0..160 {
        reader.read(number * (64 << 10), 64 << 10);
    }
    reader.expect_hits(157);
}

#[test]
fn a_tool_that_keeps_the_path_busy_is_left_alone() {
    let mut reader = Reader::new(Rule::Streams);
    for number in 0..100 {
        let read = Read { offset: number * MIB, len: MIB as u32, found: Found::Missed };
        reader.ahead.read(number, read, 16 * MIB, SIZE, &mut reader.wants);
    }
    assert_eq!(reader.wants, []);
}

#[test]
fn what_goes_unread_makes_the_window_small() {
    let mut reader = Reader::new(Rule::Streams);
    let mut fetched = 0;
    for run in 0..200 {
        // Four reads that look like a stream, and then another place.
        for number in 0..4 {
            reader.read(run * 20 * MIB + number * (64 << 10), 64 << 10);
        }
        let stream = reader.wants.last().expect("it reads ahead").stream;
        let wanted = reader.wanted() - fetched;
        fetched = reader.wanted();
        reader.ahead.wasted(stream, u32::try_from(wanted).expect("small").saturating_sub(128 << 10));
    }
    let reads = 800 * (64 << 10);
    assert!(fetched < 3 * reads, "{fetched} bytes fetched for {reads} bytes read");
}

#[test]
fn around_a_far_read_its_neighbours_come_along_while_they_are_read() {
    let mut reader = Reader::far(Rule::Streams);
    assert!(!reader.read(100 * MIB + 64 * BLOCK, BLOCK));
    assert!(reader.read(100 * MIB + 100 * BLOCK, BLOCK) && reader.read(100 * MIB + 65 * BLOCK, BLOCK));
    let first = reader.wanted();
    assert!((100_000..1_000_000).contains(&first), "{first} bytes around one read");
    // None of it is ever read, which no cache says that has room for all.
    let mut random = 1_u64;
    for _ in 0..2000 {
        random = next_random(random);
        reader.read((random >> 24) % (SIZE / BLOCK) * BLOCK, BLOCK);
    }
    let unread = reader.wanted() - first;
    assert!(unread < 10 * MIB, "{unread} bytes for 2000 reads of which none was near another");
}

#[test]
fn after_long_at_random_what_is_near_is_tried_again() {
    let mut reader = Reader::far(Rule::Streams);
    let mut random = 1_u64;
    // For more than half a minute small answers are all that tells of the path.
    for _ in 0..2000 {
        random = next_random(random);
        let from = reader.wants.len();
        reader.read((random >> 24) % (SIZE / BLOCK) * BLOCK, BLOCK);
        reader.now += 20 * MS;
        reader.ahead.answered(reader.now, 4096, 20 * MS);
        for want in reader.wants[from..].iter().copied() {
            let took = 20 * MS + u64::from(want.len) * 8;
            reader.ahead.answered(reader.now, want.len, took);
        }
    }
    // Then twelve near one place, and then another place.
    reader.hits = 0;
    for number in 0..1200 {
        random = next_random(random);
        let place = (number / 12) * 7919 % (SIZE / MIB) * MIB;
        reader.read(place + (random >> 24) % 64 * BLOCK, BLOCK);
        reader.now += 20 * MS;
    }
    reader.expect_hits(800);
}

#[test]
fn little_is_ahead_of_each_of_many_readers_when_they_end() {
    let mut reader = Reader::new(Rule::Streams);
    // Its reads wait for what is on its way, so that windows grow as far as they may.
    reader.takes = true;
    let (places, len) = (8, 16 << 10);
    let reads = 4000;
    for number in 0..reads {
        reader.read(number % places * 256 * MIB + number / places * len, len);
    }
    reader.expect_hits(reads as usize - 3 * places as usize);
    let unread = reader.wanted() - reads * len;
    assert!((2 * MIB..6 * MIB).contains(&unread), "{unread} bytes were fetched in vain");
}

#[test]
fn backwards_and_in_strides_all_is_offered_but_what_tells_how_far_the_reader_is() {
    let mut reader = Reader::new(Rule::Streams);
    for number in (0..50).rev() {
        reader.read(100 * MIB + number * BLOCK, BLOCK);
    }
    let want = *reader.wants.last().expect("it reads ahead");
    let offered = reader.ahead.offer(want.stream, want.offset, want.len);
    assert_eq!(u64::from(want.len - offered), BLOCK, "the block that is read first");
    let mut reader = Reader::new(Rule::Streams);
    for number in 0..200 {
        reader.read(number * 50 * BLOCK, BLOCK);
    }
    let offered = |want: &&Want| reader.ahead.offer(want.stream, want.offset, want.len) > 0;
    let (all, offered) = (reader.wants.len(), reader.wants.iter().filter(offered).count());
    assert!(8 * (all - offered) <= all + 8 && offered < all, "{offered} of {all} items");
    // A reader that asks for what it was offered does not take it.
    let last = *reader.wants.last().expect("it reads ahead");
    reader.ahead.untaken(last.stream, 150 * BLOCK as u32);
    assert!((0..8).all(|number| reader.ahead.offer(
        last.stream,
        last.offset + 50 * number * BLOCK,
        last.len
    ) == 0));
}

#[test]
fn who_asks_for_what_was_offered_too_late_is_kept_further_behind() {
    let ahead_of = |found: Found| {
        let (mut ahead, mut wants) = (Ahead::new(Rule::Streams, 64 * MIB), Vec::new());
        let stride = 50 * BLOCK;
        for item in 0..400 {
            let found = if item < 8 { Found::Missed } else { found };
            let read = Read { offset: item * stride, len: BLOCK as u32, found };
            ahead.read(item + 1, read, 0, SIZE, &mut wants);
        }
        wants.last().expect("strides are found").offset / stride - 399
    };
    let (in_time, late) = (ahead_of(Found::Here), ahead_of(Found::Offered));
    assert!(in_time <= 64 && late > 128, "{in_time} and {late} items ahead");
}

#[test]
fn what_was_refused_is_asked_for_again() {
    let mut reader = Reader::new(Rule::Streams);
    reader.read(0, 64 << 10);
    reader.read(64 << 10, 64 << 10);
    let refused = reader.wants[0];
    reader.ahead.refused(refused);
    let before = reader.wants.len();
    reader.read(128 << 10, 64 << 10);
    let again = reader.wants[before..].iter().any(|want| want.offset <= 192 << 10);
    assert!(again, "{:?}", &reader.wants[before..]);
}

#[test]
fn the_thesis_doubles_from_4_to_128_kib_and_begins_anew_after_a_jump() {
    let mut ahead = Ahead::new(Rule::Thesis, 64 * MIB);
    let mut windows = Vec::new();
    let mut offset = MIB;
    for number in 0..9_u64 {
        let mut wants = Vec::new();
        offset = if number == 7 { 100 * MIB } else { offset };
        ahead.read(number, Read { offset, len: 4096, found: Found::Missed }, 0, SIZE, &mut wants);
        assert_eq!(wants[0].offset, offset + 4096);
        windows.push(wants[0].len >> 10);
        offset += 4096;
    }
    assert_eq!(windows, [4, 8, 16, 32, 64, 128, 128, 4, 8]);
}

#[test]
fn off_is_off() {
    let mut reader = Reader::far(Rule::Off);
    for number in 0..100 {
        reader.read(number * BLOCK, BLOCK);
    }
    assert_eq!(reader.wants, []);
}
