//! Read-ahead: what a client asks donors for before a tool asks for it.
//!
//! Owns finding streams in the reads of a volume (forward, backward, strided, many at once), how far ahead of
//! each is fetched, and how much that shrinks when it goes unread. Never: memory, requests, or anything of
//! donors. Pure: reads in, ranges to fetch out. Invariant: a window grows only when a read waited, and not
//! beyond what its stream was worth so far. Called by `volume::cached`. Files: `places` (the last reads),
//! `stream` (one of them, and how far ahead), `pipe` (what the path holds), `around` (what is near a read of
//! none), `holes` (what was passed over). Tests: `tests/ahead.rs`; the simulator runs it in
//! every attachment.
//!
//! **Finding.** Of the last reads that belonged to no stream, or to one that may go another way, the places
//! are kept. A read is the next of a stream when a majority of the places where the stream would have been
//! before are among them: one for a read that continues another, two backwards, and three of four for a
//! stride; so reads of other streams, or of none, in between do not matter.
//!
//! **Following.** A stream takes what it expects, what is a little further on, and what it passed over, for
//! reads that are under way together come in any order; not what it has read before. While most of what it
//! passes goes unread, or its reads leap one after the other, what is merely near begins a stream of its own
//! as soon as one is found: the next tool may read the same place another way. Who passed much of what was
//! fetched for it gets more only where it goes on. After an open, or a second without a read, a stream takes
//! only what it expects; an open makes places forgotten, and windows small until a stream went on twice.
//!
//! **How far.** A window begins at two reads, or an eighth of what the path holds (bandwidth times delay,
//! measured). It doubles each time that a read of the stream has to wait, or asks for what it was offered too
//! late, as long as it is no larger than what the tool took of the stream; at most it is twice what the path
//! holds, or its part of 4 MiB (of 50 ms of a slow path), whatever is more. A tool that keeps the path busy
//! by itself is left alone. What goes unread halves the window, and slows down all growth.
//!
//! **Around.** Where a round trip takes long, a read of no stream brings with it what is near, as much as the
//! path carries in an eighth of that time; as long as that spares other reads theirs.
//!
//! **Offers.** A reader behind a cache of its own (the kernel's) may be given all of a backward or strided
//! stream but what it has to ask for to show how far it is; as long as it does not ask for most of that all
//! the same.

mod around;
mod holes;
mod pipe;
mod places;
mod stream;

use crate::limits::{BLOCK_BYTES, MILLISECOND_NS, SECOND_NS};
use crate::units::Time;
use around::Around;
use pipe::Pipe;
use places::Places;
use serde::{Deserialize, Serialize};
use stream::{Fit, Stream, Trend};

/// Streams followed at once; the one that was longest not read makes room.
const STREAMS_MAX: usize = 32;
/// One fetch.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Places of a stride that are fetched ahead.
const ITEMS_MAX: u64 = 256;
/// What is ahead of all streams together on a fast LAN, where scheduling and not the wire is what delays,
const WINDOW_FLOOR_BYTES: u64 = 4 << 20;
/// and of each of them: were it more, all would go in vain that is ahead of each when its reader ends.
const WINDOW_FLOOR_EACH_BYTES: u64 = 512 << 10;
/// But no more than what the path carries in this part of a second: donors that are asked for more would look
/// slow.
const WINDOW_FLOOR_PART: u64 = 20;
/// A tool with this much of its own on its way, or twice what the path holds, needs nobody to read ahead.
const BUSY_BYTES: u64 = 2 << 20;
/// This part of what the path holds takes so little longer than the round trip that it is worth a guess.
const FREE_PART: u64 = 8;
/// From this delay on a read of no stream brings its neighbours.
const AROUND_DELAY_NS: u64 = MILLISECOND_NS;
/// What was used and wasted counts half after this much more.
const MEMORY_BYTES: u64 = 64 << 20;
/// The number of what is fetched around reads of no stream.
pub const AROUND: u32 = 0;
/// The thesis's window (see `Rule::Thesis`).
const THESIS_MIN_BYTES: u64 = 4 << 10;
const THESIS_MAX_BYTES: u64 = 128 << 10;

/// What became of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// All of it is in the cache.
    Here,
    /// Here, though its reader was offered it: that came too late.
    Offered,
    /// It waits for what is on its way.
    Coming,
    /// Donors are asked for it.
    Missed,
}

/// A read of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Bytes from the start of the volume.
    pub offset: u64,
    /// Bytes; a read of 0 shows nothing.
    pub len: u32,
    /// What became of it, before anything is fetched for it.
    pub found: Found,
}

/// How it is decided what to fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Nothing is read ahead.
    Off,
    /// As the 2006 thesis did, to compare with: 4 KiB behind a read, doubled while reads are adjacent, 128
    /// KiB at most, and anew after a read that is not.
    Thesis,
    /// The rule of this module's header, and the default.
    #[default]
    Streams,
}

/// A range to fetch: whole blocks, but for the end of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Bytes from the start of the volume.
    pub offset: u64,
    /// Bytes, more than 0.
    pub len: u32,
    /// For whom; `used`, `wasted` and `refused` name it.
    pub stream: u32,
}

/// Bytes that were fetched ahead, by what became of them; what is long ago counts less.
#[derive(Debug, Default)]
struct Worth {
    used: u64,
    wasted: u64,
}

impl Worth {
    fn note(&mut self, used: u64, wasted: u64) {
        self.used += used;
        self.wasted += wasted;
        if self.used + self.wasted > MEMORY_BYTES {
            self.used /= 2;
            self.wasted /= 2;
        }
    }

    /// `bytes`, and less of it the more was wasted.
    fn scale(&self, bytes: u64) -> u64 {
        part(bytes, self.used + 1, self.used + self.wasted + 1)
    }
}

/// The read-ahead of one volume: what its reads showed, and what to fetch.
#[derive(Debug)]
pub struct Ahead {
    rule: Rule,
    /// Bytes that all streams may have ahead.
    windows_max: u64,
    streams: Vec<Stream>,
    numbered: u32,
    places: Places,
    pipe: Pipe,
    worth: Worth,
    around: Around,
    thesis: Thesis,
}

#[derive(Debug, Default)]
struct Thesis {
    end: u64,
    window: u64,
}

impl Ahead {
    /// `memory`: bytes that there are for what is fetched.
    #[must_use]
    pub fn new(rule: Rule, memory: u64) -> Ahead {
        Ahead {
            rule,
            windows_max: memory / 2,
            streams: Vec::with_capacity(STREAMS_MAX),
            numbered: AROUND,
            places: Places::new(),
            pipe: Pipe::default(),
            worth: Worth::default(),
            around: Around::default(),
            thesis: Thesis::default(),
        }
    }

    /// A tool reads; adds what is to be fetched, the most urgent first. `busy`: bytes that tools wait for
    /// otherwise. `size`: of the volume.
    pub fn read(&mut self, now: Time, read: Read, busy: u64, size: u64, wants: &mut Vec<Want>) {
        let Read { offset, len, found } = read;
        match self.rule {
            Rule::Off => return,
            Rule::Thesis => return self.read_as_the_thesis(offset, len, size, wants),
            Rule::Streams => {}
        }
        if len == 0 {
            return;
        }
        let Some((index, fit)) = self.stream_of(now, read) else {
            if found == Found::Missed && self.pipe.delay() >= AROUND_DELAY_NS {
                self.around.fetch(offset, len, size, self.pipe.bytes(), self.windows_max / FREE_PART, wants);
            }
            return;
        };
        let is_busy = busy >= BUSY_BYTES.max(2 * self.pipe.bytes());
        let is_doubtful = fit != Fit::Next && !self.streams[index].is_worth_more();
        if is_busy || is_doubtful {
            return;
        }
        if found != Found::Here {
            let lately = |stream: &&Stream| stream.used_at + SECOND_NS > now;
            let active = (self.streams.iter().filter(lately).count() as u64).max(1);
            let floor = (WINDOW_FLOOR_BYTES / active).max(WINDOW_FLOOR_EACH_BYTES);
            let floor = floor.min(self.pipe.rate() / WINDOW_FLOOR_PART / active);
            let most = floor.max(2 * self.pipe.bytes()).min(self.windows_max / active);
            let worth = self.worth.scale(self.streams[index].consumed);
            self.streams[index].grow(worth.min(most));
        }
        self.streams[index].extend(size, wants);
    }

    /// The stream that a read belongs to, which it may begin, and how well it fits.
    fn stream_of(&mut self, now: Time, read: Read) -> Option<(usize, Fit)> {
        let Read { offset, len, .. } = read;
        let (mut next, mut near, mut sparse) = (None, None, None);
        for (index, stream) in self.streams.iter().enumerate() {
            let Some(fit) = stream.fit(now, offset, len) else { continue };
            let found = Some((index, fit));
            match fit {
                Fit::Next => {
                    next = found;
                    break;
                }
                Fit::Near => near = near.or(found),
                Fit::Sparse => sparse = found,
            }
        }
        let follows = next.or(near);
        if follows.is_none() {
            if let Some(trend) = self.places.trend(offset, len) {
                return Some((self.add_stream(now, trend, read), Fit::Next));
            }
            self.places.remember(offset, len);
        }
        let (index, fit) = follows.or(sparse)?;
        self.streams[index].follow(now, offset, len);
        Some((index, fit))
    }

    fn add_stream(&mut self, now: Time, trend: Trend, read: Read) -> usize {
        self.numbered = self.numbered.checked_add(1).unwrap_or(AROUND + 1);
        let stream = Stream::new(self.numbered, trend, now, read, self.free());
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
            return self.streams.len() - 1;
        }
        let oldest =
            (0..STREAMS_MAX).min_by_key(|index| self.streams[*index].used_at).expect("there are some");
        let given_up = std::mem::replace(&mut self.streams[oldest], stream);
        self.worth.note(0, given_up.ahead());
        oldest
    }

    /// One that is still followed.
    fn stream(&mut self, number: u32) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.number == number)
    }

    /// Bytes ahead that cost next to nothing.
    fn free(&self) -> u64 {
        self.worth.scale(self.pipe.bytes() / FREE_PART).min(self.windows_max / FREE_PART)
    }

    fn read_as_the_thesis(&mut self, offset: u64, len: u32, size: u64, wants: &mut Vec<Want>) {
        let end = offset + u64::from(len);
        let adjacent = offset == self.thesis.end;
        let window = match self.thesis.window {
            before if adjacent && before > 0 => (2 * before).min(THESIS_MAX_BYTES),
            _ => THESIS_MIN_BYTES,
        };
        self.thesis = Thesis { end, window };
        wants.extend(blocks(end, end + window, size, AROUND));
    }

    /// So many bytes from the beginning of what was fetched may be given to the tool before it asks.
    #[must_use]
    pub fn offer(&mut self, stream: u32, start: u64, len: u32) -> u32 {
        self.stream(stream).map_or(0, |stream| stream.offer(start, len))
    }

    /// A tool asked for so much of what it had been offered.
    pub fn untaken(&mut self, stream: u32, bytes: u32) {
        if let Some(stream) = self.stream(stream) {
            stream.untaken += u64::from(bytes);
        }
    }

    /// A donor answered a read of so many bytes after so long.
    pub fn answered(&mut self, now: Time, bytes: u32, took: u64) {
        self.pipe.answered(now, bytes, took);
    }

    /// This, or what was not there yet of it, is fetched.
    pub fn fetched(&mut self, want: Want) {
        if want.stream == AROUND {
            self.around.fetched(want.len);
        } else if let Some(stream) = self.stream(want.stream) {
            stream.fetched(want.len);
        }
    }

    /// A tool read so much of what was fetched.
    pub fn used(&mut self, stream: u32, bytes: u32) {
        if stream == AROUND {
            return self.around.hit();
        }
        self.worth.note(u64::from(bytes), 0);
        let spared = self.pipe.bytes() / FREE_PART;
        if let Some(stream) = self.stream(stream) {
            stream.used(bytes, spared);
        }
    }

    /// So much of what was fetched is given up unread.
    pub fn wasted(&mut self, stream: u32, bytes: u32) {
        // Of a stream that is followed no more it was noted then, and what was around a read when it was
        // fetched.
        if let Some(stream) = self.stream(stream) {
            stream.wasted();
            self.worth.note(0, u64::from(bytes));
        }
    }

    /// Nothing of what was fetched is there any more, and who reads may be another.
    pub fn restart(&mut self) {
        let free = self.free();
        self.streams.iter_mut().for_each(|stream| stream.forget(free));
        self.places = Places::new();
    }

    /// There was no room for this now.
    pub fn refused(&mut self, want: Want) {
        if let Some(stream) = self.stream(want.stream) {
            stream.refused(want);
        }
    }
}

/// `whole` times `some` of `all`, which are not none.
fn part(whole: u64, some: u64, all: u64) -> u64 {
    let part = u128::from(whole) * u128::from(some) / u128::from(all);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// The whole blocks that a range touches, up to the end of the volume; none when it is empty or beyond.
fn blocks(from: u64, to: u64, size: u64, stream: u32) -> Option<Want> {
    let offset = from / BLOCK_BYTES * BLOCK_BYTES;
    let end = to.next_multiple_of(BLOCK_BYTES).min(size);
    let len = u32::try_from(end.checked_sub(offset)?).ok().filter(|len| *len > 0 && from < to)?;
    Some(Want { offset, len, stream })
}
