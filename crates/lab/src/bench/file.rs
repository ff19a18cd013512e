//! Reads and writes of a file as plain programs do them, with the page cache emptied before: forward, backward, strided.
//!
//! Owns: the worker and its orders (`forward PATH BLOCK BYTES` and so on). Never: direct I/O (fio does that), any use of
//! what an earlier order left in the page cache. Called by: `front`, `lan`, `thesis`. Tests: below.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Advice, fadvise, fdatasync};
use serde_json::{Value, json};

use crate::bench::worker::{Worker, orders, own_cpu};

/// The order in which blocks of a file are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    Forward,
    Backward,
    /// One block in each so many bytes.
    Strided(u64),
    /// Written from the beginning, and flushed.
    Write,
}

impl Walk {
    fn word(self) -> String {
        match self {
            Self::Forward => "forward".to_owned(),
            Self::Backward => "backward".to_owned(),
            Self::Strided(stride) => format!("strided:{stride}"),
            Self::Write => "write".to_owned(),
        }
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "forward" => Some(Self::Forward),
            "backward" => Some(Self::Backward),
            "write" => Some(Self::Write),
            _ => word.strip_prefix("strided:")?.parse().ok().map(Self::Strided),
        }
    }

    /// Where the blocks are, of a file of so many bytes.
    fn offsets(self, block: u64, bytes: u64) -> Box<dyn Iterator<Item = u64>> {
        let blocks = bytes / block;
        match self {
            Self::Forward | Self::Write => Box::new((0..blocks).map(move |number| number * block)),
            Self::Backward => Box::new((0..blocks).rev().map(move |number| number * block)),
            Self::Strided(stride) => Box::new((0..bytes / stride).map(move |number| number * stride)),
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
    let told = worker.ask(&format!("{} {block} {bytes} {}", walk.word(), path.display()));
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
        let mut words = line.splitn(4, ' ');
        let mut next = || words.next().ok_or_else(|| format!("no such order: {line}"));
        let (walk, block, bytes, path) = (next()?, next()?, next()?, next()?);
        let walk = Walk::parse(walk).ok_or("no such walk")?;
        let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        carry_out(walk, Path::new(path), number(block)?, number(bytes)?).map_err(|error| error.to_string())
    });
}

fn carry_out(walk: Walk, path: &Path, block: u64, bytes: u64) -> io::Result<Value> {
    let file = File::options().read(true).write(walk == Walk::Write).open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    have_at_hand(bytes);
    let mut buffer = crate::load::pattern_bytes(block as usize);
    let (start, cpu, mut moved) = (Instant::now(), own_cpu(), 0);
    for offset in walk.offsets(block, bytes) {
        match walk {
            Walk::Write => file.write_all_at(&buffer, offset)?,
            _ => file.read_exact_at(&mut buffer, offset)?,
        }
        moved += block;
    }
    if walk == Walk::Write {
        fdatasync(&file)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({"bytes": moved, "seconds": seconds, "cpu": own_cpu().saturating_sub(cpu).as_secs_f64()}))
}

/// Touches so much memory and gives it up. A virtual machine whose free memory its host takes back pays several times for each
/// page that it touches anew: the page cache would measure the host. What was given up just now is taken first.
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
        for walk in [Walk::Forward, Walk::Backward, Walk::Strided(204_800), Walk::Write] {
            assert_eq!(Walk::parse(&walk.word()), Some(walk));
        }
        let scratch = Scratch::new();
        let path = scratch.sparse_file("file", 1 << 20);
        let told = carry_out(Walk::Write, &path, 4096, 1 << 20).expect("a write");
        assert_eq!(told["bytes"], 1 << 20);
        let told = carry_out(Walk::Strided(200 << 10), &path, 4096, 1 << 20).expect("a read");
        assert_eq!(told["bytes"], 5 * 4096);
        assert_eq!(std::fs::read(&path).expect("the file")[..100], crate::load::pattern_bytes(4096)[..100]);
    }
}
