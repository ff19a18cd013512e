//! Loads: attachments that fill a volume from a source in order, and how they end before their end.
//!
//! Owns: the driver of a load, which does what `cheetah load` does (attach to fill, compare what counts as
//! loaded, write, tell how far it is, tell its end, read back, give the lease back), the sources, and the
//! kind of fault that is made of loads. Never: what must hold of it (`contents`, `oracle`). Key rule: what it
//! tells was acknowledged to it. Called by `client`, `workload`, `director` and `faults`. Tests: the planted
//! bugs.

use crate::bugs::Bug;
use crate::bytes::SECTOR;
use crate::calls::{Caller, Outcome};
use crate::client::{Phase, Slot, Tick};
use crate::contents::Word;
use crate::network::Node;
use crate::plan::Fault;
use crate::world::{ClientEv, Ev, World, say};
use cheetah_core::api::{Answer, Attach, Call};
use cheetah_core::content::{ByteRange, Check, Fill, FillFrom, Loaded, Source, Tell};
use cheetah_core::limits::{LEASE_NS, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::VolumeId;
use cheetah_core::volume::{Op, Request, VolumeError};
use std::collections::{BTreeMap, BTreeSet};

/// How often a load tells how far it is.
const TELL_EACH_NS: u64 = SECOND_NS;
/// Pieces of a source, and its bytes.
const PIECES_MAX: u64 = 40;
const SOURCE_BYTES_MAX: u64 = 64 << 20;
/// Of ten pieces so many are zeros.
const ZEROS_OF_TEN: u64 = 2;

#[derive(Clone, Copy, Debug)]
struct SourceFile {
    size: u64,
    piece: u64,
    /// What cannot be read of it.
    unreadable: Option<ByteRange>,
}

/// Every source that there was, and which one a volume of a name was filled from last.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    sources: Vec<SourceFile>,
    last: BTreeMap<String, usize>,
}

impl Loads {
    pub(crate) fn size(&self, source: usize) -> u64 {
        self.sources[source].size
    }

    fn described(&self, source: usize) -> Source {
        let (name, identity) = ("/e/disk.raw".to_owned(), format!("inode {source}"));
        Source { name, size: self.size(source), identity, checksummed: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Reads what counts as loaded, up to there.
    Comparing(u64),
    Writing,
    TellingEnd,
    ReadingBack,
    /// Nothing more.
    Ended,
}

#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) source: usize,
    pub(crate) from: FillFrom,
    doing: Doing,
    depth: usize,
    gap_ns: u64,
    /// Ends by itself before its first byte.
    ends_at_once: bool,
    reads_back: bool,
    /// So much of it an earlier load has written.
    known: u64,
    /// Where it reads or writes next, and what is on its way.
    next: u64,
    under_way: BTreeSet<u64>,
    /// So many bytes from the start are written.
    done: u64,
    /// Something was sent to the volume.
    begun: bool,
    /// The coordinator heard that, or that it has come to its end.
    told: Option<u64>,
    told_loaded: bool,
    told_at: u64,
    said_last: bool,
}

impl Load {
    /// What the coordinator shall know of it.
    fn progress(&self) -> u64 {
        if self.begun { self.done } else { self.done.max(self.known) }
    }
}

fn tell(word: Word, unreadable: Vec<ByteRange>) -> Tell {
    let hash = |digits| "0".repeat(digits);
    match word {
        Word::Written => Tell { written: true, ..Tell::default() },
        Word::Done(bytes) => Tell { bytes_done: Some(bytes), unreadable, ..Tell::default() },
        Word::Untouched => Tell { untouched: true, ..Tell::default() },
        Word::Loaded(check) => {
            let (md5, sha256) = (hash(32), hash(64));
            let loaded = Loaded { md5, sha256, check, changed: None, unsealed: None, unreadable };
            Tell { loaded: Some(Box::new(loaded)), ..Tell::default() }
        }
    }
}

impl World {
    pub(crate) fn has_loads(&self) -> bool {
        self.plan.faults.contains(&Fault::EndLoad)
    }

    /// As tools attach, that know or do not know that it was loaded.
    pub(crate) fn some_attach(&mut self, read_only: bool) -> Attach {
        let plain = Attach::new(read_only, String::new());
        if !self.has_loads() {
            return plain;
        }
        Attach { writable: self.rng.percent(50), incomplete: self.rng.percent(25), ..plain }
    }

    /// For writing, whatever it holds.
    pub(crate) fn attach_for_all(&mut self, name: &str) {
        let attach = Attach { writable: true, incomplete: true, ..Attach::new(false, String::new()) };
        self.attach_as(name, attach, None);
    }

    /// A load of the volume, in one of the ways there are.
    pub(crate) fn begin_load(&mut self, name: &str) {
        let last = self.loads.last.get(name).copied();
        let from = match (self.rng.below(10), last) {
            (0..=5, Some(_)) => FillFrom::Resume,
            (6..=8, _) => FillFrom::Overwrite,
            _ => FillFrom::Fresh,
        };
        let other = self.rng.percent(5);
        let same = last.filter(|_| from == FillFrom::Resume && !other);
        let source = same.unwrap_or_else(|| self.make_source(name, from));
        if from != FillFrom::Resume {
            self.loads.last.insert(name.to_owned(), source);
        }
        let load = Load {
            source,
            from,
            doing: Doing::Comparing(0),
            depth: usize::try_from(self.rng.skewed(1, 16)).expect("a few"),
            gap_ns: self.rng.skewed(MILLISECOND_NS, 300 * MILLISECOND_NS),
            ends_at_once: self.rng.percent(15),
            reads_back: self.rng.percent(50),
            known: 0,
            next: 0,
            under_way: BTreeSet::new(),
            done: 0,
            begun: false,
            told: None,
            told_loaded: false,
            told_at: 0,
            said_last: false,
        };
        let fill = Some(Fill { source: self.loads.described(source), from });
        let attach = Attach { alone: true, fill, ..Attach::new(false, String::new()) };
        self.director.load_is_sent(name, from);
        self.contents.sought(name);
        self.attach_as(name, attach, Some(load));
    }

    fn make_source(&mut self, name: &str, from: FillFrom) -> usize {
        let there = self.stored_maps().find(|map| map.name == name).map_or(SOURCE_BYTES_MAX, |map| map.size);
        // One that overwrites may be larger than what is there.
        let most = if from == FillFrom::Overwrite { 2 * there } else { there };
        let most = most.min(SOURCE_BYTES_MAX);
        let size = self.rng.skewed(512, most.max(512)).next_multiple_of(512);
        let piece = (size.div_ceil(PIECES_MAX)).next_power_of_two().max(4096);
        let piece = piece << self.rng.below(3);
        let unreadable = self.rng.percent(30).then(|| {
            let offset = self.rng.below(size) / SECTOR * SECTOR;
            let len = self.rng.skewed(SECTOR, 4 * piece).next_multiple_of(SECTOR).min(size - offset);
            ByteRange { offset, len }
        });
        self.loads.sources.push(SourceFile { size, piece, unreadable });
        self.loads.sources.len() - 1
    }

    /// Its lease is there.
    pub(crate) fn load_attached(&mut self, c: usize, known: u64) {
        let Some(load) = &mut self.clients[c].load else { return };
        load.known = known;
        let resumes = load.from == FillFrom::Resume;
        let piece = self.loads.sources[load.source].piece;
        // A piece that is not known as a whole is written again.
        let whole = if known >= self.loads.size(load.source) { known } else { known / piece * piece };
        load.doing = Doing::Comparing(whole);
        self.count(if resumes { "loads resumed" } else { "loads begun" });
        self.after(0, Ev::Client(c, ClientEv::Tick(Tick::Load)));
    }

    pub(crate) fn load_tick(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let Some(load) = client.load.as_mut().filter(|_| client.phase == Phase::Attached) else { return };
        let serves = client.machine.as_ref().is_some_and(|machine| machine.has_room());
        let (gap, doing) = (load.gap_ns, load.doing);
        let begins = load.known == 0 && !load.begun;
        if doing == Doing::Ended || (begins && load.ends_at_once) {
            return self.end_load(c);
        }
        if serves {
            self.load_goes_on(c, doing);
        }
        self.tell_progress(c);
        self.after(gap, Ev::Client(c, ClientEv::Tick(Tick::Load)));
    }

    fn load_goes_on(&mut self, c: usize, doing: Doing) {
        let Some(load) = &mut self.clients[c].load else { return };
        let SourceFile { size, piece, .. } = self.loads.sources[load.source];
        match doing {
            Doing::Comparing(known) if load.next >= known => {
                load.doing = Doing::Writing;
                if self.bug == Some(Bug::ResumeSkips) && load.known > 0 {
                    load.next = (load.next + piece).min(size);
                }
            }
            Doing::ReadingBack if load.next >= size => self.says_loaded(c, Check::Same),
            Doing::Comparing(_) | Doing::ReadingBack if load.under_way.is_empty() => {
                self.ask_piece(c, Op::Read);
            }
            Doing::Writing if load.next >= size && load.under_way.is_empty() => {
                load.done = size;
                self.says_loaded(c, Check::No);
            }
            Doing::Writing => self.write_some(c, size),
            _ => {}
        }
    }

    fn write_some(&mut self, c: usize, size: u64) {
        loop {
            let client = &self.clients[c];
            let room = client.machine.as_ref().is_some_and(|machine| machine.has_room());
            let Some(load) = client.load.as_ref().filter(|_| room && self.failure.is_none()) else { return };
            if load.next >= size || load.under_way.len() >= load.depth || load.doing != Doing::Writing {
                return;
            }
            let piece = self.loads.sources[load.source].piece;
            let mixed =
                ((load.next / piece) ^ ((load.source as u64) << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let zeros = (mixed >> 40) % 10 < ZEROS_OF_TEN;
            self.ask_piece(c, if zeros { Op::Zero { keep: false } } else { Op::Write });
        }
    }

    fn ask_piece(&mut self, c: usize, op: Op) {
        let Some(load) = &mut self.clients[c].load else { return };
        let SourceFile { size, piece, .. } = self.loads.sources[load.source];
        let offset = load.next;
        let len = piece.min(size - offset);
        load.under_way.insert(offset);
        if op.writes() {
            load.begun = true;
            load.next = offset + len;
        }
        let len = u32::try_from(len).expect("a piece");
        self.submit(c, Request { op, offset, len });
    }

    /// A request of the load is answered.
    pub(crate) fn load_completed(&mut self, c: usize, slot: &Slot, result: Result<(), VolumeError>) {
        let client = &mut self.clients[c];
        let (Some(load), Some(volume)) = (&mut client.load, client.volume) else { return };
        let (from, len) = (slot.request.offset, u64::from(slot.request.len));
        load.under_way.remove(&from);
        if slot.request.op.writes() {
            if result.is_err() {
                // It still counts as on its way.
                load.under_way.insert(from);
                load.doing = Doing::Ended;
                return;
            }
            load.done = load.done.max(load.under_way.first().copied().unwrap_or(load.next));
            return self.contents.acknowledged(volume, load.done);
        }
        let (doing, end) = (load.doing, from + len);
        let of_source = self.holds_the_source(c, from, end, false);
        let Some(load) = &mut self.clients[c].load else { return };
        match (doing, result) {
            (Doing::Comparing(_), Ok(())) if of_source => {
                (load.next, load.done) = (end, end);
            }
            (Doing::Comparing(_), _) => load.doing = Doing::Writing,
            (Doing::ReadingBack, Ok(())) => load.next = end,
            (Doing::ReadingBack, Err(_)) => load.doing = Doing::Ended,
            _ => {}
        }
    }

    /// Whether the range can only be what loads of the source wrote; with `open`, or what somebody who was
    /// shut out was writing.
    fn holds_the_source(&self, c: usize, from: u64, to: u64, open: bool) -> bool {
        let Some(volume) = self.clients[c].volume else { return false };
        let versions = self.contents.versions(volume);
        versions.is_some_and(|versions| self.oracle.is_only_of(volume, versions, from, to, open))
    }

    /// What the source of the volume could not give, as far as the request is about that.
    fn unreadable_in(&self, volume: VolumeId, slot: &Slot) -> Option<ByteRange> {
        let range = self.loads.sources[self.contents.source(volume)?].unreadable?;
        let end = range.end().min(slot.request.offset + u64::from(slot.request.len));
        let offset = range.offset.max(slot.request.offset);
        (offset < end).then(|| ByteRange { offset, len: end - offset })
    }

    pub(crate) fn meets_unreadable(&self, c: usize, slot: &Slot) -> bool {
        self.clients[c].volume.is_some_and(|volume| self.unreadable_in(volume, slot).is_some())
    }

    /// A read that says that the source could not give this.
    pub(crate) fn judge_unreadable(&mut self, c: usize, slot: &Slot) -> Result<(), String> {
        if self.clients[c].load.is_some() {
            return Err("is said to be unreadable to who loads it".into());
        }
        if slot.request.op != Op::Read || !self.meets_unreadable(c, slot) {
            return Err("is said to be what its source could not give, and it could".into());
        }
        self.count("reads of what a source could not give");
        Ok(())
    }

    /// A read that brought bytes: who attached what was loaded gets none for those.
    pub(crate) fn judge_readable(&self, c: usize, slot: &Slot) -> Result<(), String> {
        let client = &self.clients[c];
        let Some(volume) = client.volume.filter(|_| client.found_whole) else { return Ok(()) };
        let there = self.unreadable_in(volume, slot);
        match there.filter(|range| self.holds_the_source(c, range.offset, range.end(), false)) {
            Some(range) => Err(format!("brought bytes of {range:?}, which its source could not give")),
            None => Ok(()),
        }
    }

    fn says_loaded(&mut self, c: usize, check: Check) {
        if self.clients[c].telling.is_some() {
            return;
        }
        let Some(load) = &mut self.clients[c].load else { return };
        load.doing = Doing::TellingEnd;
        let size = self.loads.sources[load.source].size;
        if check == Check::No && !self.holds_the_source(c, 0, size, true) {
            return self
                .fail(format!("client {c} has loaded its volume, which does not hold what its source has"));
        }
        let differs = check == Check::Same && self.rng.percent(10);
        self.say_word(c, Word::Loaded(if differs { Check::Differs } else { check }));
    }

    fn tell_progress(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let Some(load) = client.load.as_mut().filter(|_| client.telling.is_none()) else { return };
        if load.told_loaded || self.now < load.told_at + TELL_EACH_NS {
            return;
        }
        let ahead = self.bug == Some(Bug::LoadToldAhead) && load.doing == Doing::Writing;
        let done = if ahead { load.next } else { load.progress() };
        if load.told != Some(done) {
            load.told_at = self.now;
            self.say_word(c, Word::Done(done));
        }
    }

    /// Says it to the coordinator; one word at a time.
    pub(crate) fn say_word(&mut self, c: usize, word: Word) {
        let client = &mut self.clients[c];
        let (Some(token), Some(volume)) = (client.token, client.volume) else { return };
        client.telling = Some(word);
        let name = client.name.clone();
        // What it has read of its source so far.
        let met = |load: &Load| {
            let there = self.loads.sources[load.source].unreadable;
            there.filter(|range| load.told_loaded || range.offset < load.next.max(load.done))
        };
        let unreadable: Vec<ByteRange> = client.load.as_ref().and_then(met).into_iter().collect();
        self.contents.says(volume, token, word);
        self.call(Caller::Tell(c), Node::Client(c), Call::Tell { name, token, tell: tell(word, unreadable) });
    }

    pub(crate) fn tell_answered(&mut self, c: usize, outcome: Option<&Outcome>) {
        let Some(word) = self.clients[c].telling.take() else { return };
        let heard = matches!(outcome, Some(Ok(Answer::Done)));
        if heard {
            self.word_is_heard(c, word);
        }
        let client = &mut self.clients[c];
        if !client.alive {
            return;
        }
        match (&mut client.load, word) {
            (Some(load), Word::Done(done)) if heard => load.told = Some(done),
            (Some(load), Word::Loaded(_)) => {
                let first = heard && !load.told_loaded && load.reads_back;
                let completed = heard && !load.told_loaded;
                load.told_loaded |= heard;
                (load.doing, load.next) = (if first { Doing::ReadingBack } else { Doing::Ended }, 0);
                if completed {
                    self.count("loads completed");
                }
            }
            (None, Word::Written) => client.said_written = heard,
            _ => {}
        }
        if self.clients[c].phase == Phase::Ended {
            self.last_word(c);
        }
    }

    /// What is said before the lease is given back; then that.
    pub(crate) fn last_word(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.telling.is_some() {
            return;
        }
        if let Some(load) = client.load.as_mut().filter(|load| !load.told_loaded && !load.said_last) {
            load.said_last = true;
            let untouched = !load.begun && load.known == 0;
            let word = if untouched { Word::Untouched } else { Word::Done(load.progress()) };
            self.count("loads ended early");
            return self.say_word(c, word);
        }
        let Some(token) = client.token else { return };
        let name = client.name.clone();
        self.call(Caller::Detach(c), Node::Client(c), Call::Detach { name, token });
    }

    /// A tool's first write is told.
    pub(crate) fn note_tool_writes(&mut self, c: usize) {
        let client = &self.clients[c];
        let said = client.said_written || client.telling.is_some() || client.load.is_some();
        if self.has_loads() && !said {
            self.say_word(c, Word::Written);
        }
    }

    fn end_load(&mut self, c: usize) {
        self.after(0, Ev::Client(c, ClientEv::Tick(Tick::Close)));
    }

    /// The kind of fault: a load is ended, or what it needs; where there is none, one is begun.
    pub(crate) fn disturb_some_load(&mut self) {
        let loads = |c: &usize| {
            let client = &self.clients[*c];
            client.load.is_some() && client.alive && client.phase != Phase::Ended
        };
        let loads: Vec<usize> = (0..self.clients.len()).filter(loads).collect();
        let Some(c) = self.rng.pick(&loads) else { return self.load_some_volume() };
        match self.rng.below(10) {
            0..=3 if self.may_tear() => {
                self.count("fault: a loader was killed");
                let host = self.rng.percent(30);
                self.crash_client(c, host);
            }
            4 | 5 => self.end_load(c),
            6 => self.crash_coordinator(),
            7 => {
                let length = self.rng.skewed(100 * MILLISECOND_NS, 20 * SECOND_NS);
                self.stop_coordinator(length);
            }
            8 => self.kill_some_donor(),
            9 if self.may_tear() => self.cut_load_off(c),
            _ => {}
        }
    }

    fn load_some_volume(&mut self) {
        let names: Vec<String> = self.director.volumes.keys().cloned().collect();
        let at = self.rng.index(names.len());
        if self.director.may_load(&names[at]) && self.attached_to(&names[at]).is_empty() {
            self.begin_load(&names[at]);
        }
    }

    /// What it asks is not heard, or the answers are not.
    fn cut_load_off(&mut self, c: usize) {
        let until = self.now + self.rng.skewed(100 * MILLISECOND_NS, 40 * SECOND_NS);
        say!(self, "client {c} is cut off from the coordinator");
        self.cut_ways(Node::Coordinator, Node::Client(c), until, "fault: coordinator cut off");
        self.verdict.client_cut_off(c, until);
        if until > self.now + LEASE_NS / 2 {
            self.verdict.torn.extend(self.clients[c].volume);
        }
    }
}
