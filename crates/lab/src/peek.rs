//! A look into a process's memory for what must not be there, and the text that is planted for it.
//!
//! Never: a change of it (`flip` does that). Called by the tests of encrypted volumes.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// What tools write, and no donor may have.
pub const SECRET: &[u8] = b"PLANTED: the address of a witness, and nobody else's business.";

/// Whether a process has this in any of its memory, what it lends included.
///
/// # Panics
/// It may not be looked into, which root may.
#[must_use]
#[track_caller]
pub fn memory_has(pid: u32, marker: &[u8]) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("needs root");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("needs root");
    let ranges = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let at = |text| u64::from_str_radix(text, 16).ok();
        (rest.starts_with('r') && !rest.contains("[v")).then_some((at(from)?, at(to)?))
    });
    let has = |(from, to): (u64, u64)| {
        let mut bytes = vec![0; 1 << 20];
        // Pieces overlap, so that none is missed at a border; reserved addresses have nothing to read.
        (from..to).step_by((1 << 20) - 4096).any(|at| {
            let len = (to - at).min(1 << 20) as usize;
            let got = memory.read_at(&mut bytes[..len], at).unwrap_or(0);
            let mut rest = &bytes[..got];
            while let Some(first) = rest.iter().position(|byte| *byte == marker[0]) {
                if rest[first..].starts_with(marker) {
                    return true;
                }
                rest = &rest[first + 1..];
            }
            false
        })
    };
    ranges.collect::<Vec<_>>().into_iter().any(has)
}
