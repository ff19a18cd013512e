//! Reads and writes of a file as plain programs do them, with the page cache emptied before: forward,
//! backward, strided, several places in turns, anywhere.
//!
//! Owns: the worker and its orders (`forward plain BLOCK BYTES PATH` and so on). Never: direct I/O (fio does
//! that), any use of what an earlier order left in the page cache. Called by: `front`, `lan`, `far`, `ahead`,
//! `thesis`, `scale`. Tests: below.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise, fdatasync};
use serde_json::{Value, json};

use crate::bench::worker::{Worker, orders, own_cpu};
use crate::load;

/// The order in which blocks of a file are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    Forward,
    Backward,
    /// One block in each so many bytes.
    Strided(u64),
    /// Forward in so many equal parts of the file, a block of each in turn.
    Turns(u64),
    /// Any block, as many as there are.
    Random,
    /// Written from the beginning, and flushed.
    Write,
}

impl Walk {
    fn word(self) -> String {
        match self {
            Self::Forward => "forward".to_owned(),
            Self::Backward => "backward".to_owned(),
            Self::Strided(stride) => format!("strided:{stride}"),
            Self::Turns(parts) => format!("turns:{parts}"),
            Self::Random => "random".to_owned(),
            Self::Write => "write".to_owned(),
        }
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "forward" => Some(Self::Forward),
            "backward" => Some(Self::Backward),
            "random" => Some(Self::Random),
            "write" => Some(Self::Write),
            _ => match word.split_once(':')? {
                ("strided", stride) => stride.parse().ok().map(Self::Strided),
                ("turns", parts) => parts.parse().ok().map(Self::Turns),
                _ => None,
            },
        }
    }

    /// Where the blocks are, of a file of so many bytes.
    fn offsets(self, block: u64, bytes: u64) -> Box<dyn Iterator<Item = u64>> {
        let blocks = bytes / block;
        match self {
            Self::Forward | Self::Write => Box::new((0..blocks).map(move |number| number * block)),
            Self::Backward => Box::new((0..blocks).rev().map(move |number| number * block)),
            Self::Strided(stride) => Box::new((0..bytes / stride).map(move |number| number * stride)),
            Self::Turns(parts) => {
                let each = blocks / parts;
                let at = move |number| number % parts * each + number / parts;
                Box::new((0..each * parts).map(move |number| at(number) * block))
            }
            Self::Random => {
                let seeds = std::iter::successors(Some(load::next_random(0x2006)), |seed| {
                    Some(load::next_random(*seed))
                });
                Box::new(seeds.zip(0..blocks).map(move |(seed, _)| (seed >> 16) % blocks * block))
            }
        }
    }
}

/// Who walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// A program like any other.
    Plain,
    /// The same right behind a walk of that kind.
    Again,
    /// One that the kernel does not read ahead of, so that it waits for each block, or somebody else had it
    /// come; for so long at most.
    Waiting(Duration),
}

impl Manner {
    fn word(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Again => "again".to_owned(),
            Self::Waiting(longest) => format!("waiting:{}", longest.as_millis()),
        }
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "plain" => Some(Self::Plain),
            "again" => Some(Self::Again),
            _ => {
                let millis = word.strip_prefix("waiting:")?.parse().ok()?;
                Some(Self::Waiting(Duration::from_millis(millis)))
            }
        }
    }
}

/// Bytes a second of the bytes that were asked for, and the processor time of the reader itself.
#[derive(Clone, Copy, Debug)]
pub struct Walked {
    pub bytes: u64,
    pub seconds: f64,
    pub cpu: f64,
}

impl Walked {
    pub fn mb_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
}

/// Has a worker walk over the first `bytes` of a file.
#[track_caller]
pub fn walk(worker: &mut Worker, walk: Walk, path: &Path, block: u64, bytes: u64) -> Walked {
    order(worker, walk, Manner::Plain, path, block, bytes)
}

/// The same right behind `walk`: the page cache takes the memory that the first one gave up. For what is
/// faster than 1 Gbit/s.
#[track_caller]
pub fn walk_again(worker: &mut Worker, walk: Walk, path: &Path, block: u64, bytes: u64) -> Walked {
    order(worker, walk, Manner::Again, path, block, bytes)
}

/// `walk` for so long at most, by a reader that the kernel does not read ahead of.
#[track_caller]
pub fn wait_for_each(
    worker: &mut Worker,
    walk: Walk,
    path: &Path,
    block: u64,
    bytes: u64,
    longest: Duration,
) -> Walked {
    order(worker, walk, Manner::Waiting(longest), path, block, bytes)
}

#[track_caller]
fn order(worker: &mut Worker, walk: Walk, manner: Manner, path: &Path, block: u64, bytes: u64) -> Walked {
    let told = worker.ask(&format!("{} {} {block} {bytes} {}", walk.word(), manner.word(), path.display()));
    let number = |name: &str| told[name].as_f64().unwrap_or_else(|| panic!("no {name} in {told}"));
    Walked { bytes: number("bytes") as u64, seconds: number("seconds"), cpu: number("cpu") }
}

/// Empties the page cache of a file.
#[track_caller]
pub fn forget(path: &Path) {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    fadvise(&file, 0, None, Advice::DontNeed).expect("a file that can be forgotten");
}

/// The worker.
pub fn serve() {
    orders(&json!({}), |line| {
        let mut words = line.splitn(5, ' ');
        let mut next = || words.next().ok_or_else(|| format!("no such order: {line}"));
        let (walk, manner, block, bytes, path) = (next()?, next()?, next()?, next()?, next()?);
        let walk = Walk::parse(walk).ok_or("no such walk")?;
        let manner = Manner::parse(manner).ok_or("no such manner")?;
        let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        carry_out(walk, manner, Path::new(path), number(block)?, number(bytes)?)
            .map_err(|error| error.to_string())
    });
}

fn carry_out(walk: Walk, manner: Manner, path: &Path, block: u64, bytes: u64) -> io::Result<Value> {
    let file = File::options().read(true).write(walk == Walk::Write).open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let longest = match manner {
        Manner::Plain | Manner::Again => Duration::MAX,
        Manner::Waiting(longest) => {
            fadvise(&file, 0, None, Advice::Random)?;
            longest
        }
    };
    if manner != Manner::Again {
        have_at_hand(bytes);
    }
    let mut buffer = load::pattern_bytes(block as usize);
    let (start, cpu, mut moved) = (Instant::now(), own_cpu(), 0);
    for offset in walk.offsets(block, bytes) {
        match walk {
            Walk::Write => file.write_all_at(&buffer, offset)?,
            _ => file.read_exact_at(&mut buffer, offset)?,
        }
        moved += block;
        if start.elapsed() >= longest {
            break;
        }
    }
    if walk == Walk::Write {
        fdatasync(&file)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({"bytes": moved, "seconds": seconds, "cpu": own_cpu().saturating_sub(cpu).as_secs_f64()}))
}

/// Touches so much memory and gives it up. A virtual machine whose free memory its host takes back pays
/// several times for each page that it touches anew: the page cache would measure the host. What was given up
/// just now is taken first, mostly.
fn have_at_hand(bytes: u64) {
    drop(std::hint::black_box(vec![1_u8; bytes as usize]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn walks_touch_the_blocks_they_say() {
        let offsets = |walk: Walk| walk.offsets(4, 16).collect::<Vec<u64>>();
        assert_eq!(offsets(Walk::Forward), [0, 4, 8, 12]);
        assert_eq!(offsets(Walk::Backward), [12, 8, 4, 0]);
        assert_eq!(offsets(Walk::Strided(8)), [0, 8]);
        assert_eq!(offsets(Walk::Turns(2)), [0, 8, 4, 12]);
        let random = offsets(Walk::Random);
        assert!(random.len() == 4 && random.iter().all(|offset| offset % 4 == 0 && *offset < 16));
        let longer: Vec<u64> = Walk::Random.offsets(4, 4096).collect();
        let distinct: std::collections::BTreeSet<u64> = longer.iter().copied().collect();
        assert!(distinct.len() > 512, "{} places of 1024", distinct.len());
        for walk in
            [Walk::Forward, Walk::Backward, Walk::Strided(204_800), Walk::Turns(8), Walk::Random, Walk::Write]
        {
            assert_eq!(Walk::parse(&walk.word()), Some(walk));
        }
        for manner in [Manner::Plain, Manner::Again, Manner::Waiting(Duration::from_millis(700))] {
            assert_eq!(Manner::parse(&manner.word()), Some(manner));
        }
        assert_eq!((Walk::parse("strided"), Manner::parse("waiting:")), (None, None));
        let scratch = Scratch::new();
        let path = scratch.sparse_file("file", 1 << 20);
        let walk =
            |walk, manner| carry_out(walk, manner, &path, 4096, 1 << 20).expect("a walk")["bytes"].clone();
        assert_eq!(walk(Walk::Write, Manner::Plain), 1 << 20);
        assert_eq!(walk(Walk::Strided(200 << 10), Manner::Plain), 5 * 4096);
        assert_eq!(walk(Walk::Forward, Manner::Waiting(Duration::from_secs(600))), 1 << 20);
        assert_eq!(walk(Walk::Forward, Manner::Waiting(Duration::ZERO)), 4096, "it ends in time");
        assert_eq!(std::fs::read(&path).expect("the file")[..100], load::pattern_bytes(4096)[..100]);
    }
}
