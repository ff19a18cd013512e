//! What FAT and exFAT have in common: a table that links clusters to chains, and a tree of directories
//! whose entries name the first cluster of each file.
//!
//! Owns: following chains; going down the tree level by level, so that directories of one level are read
//! together. Key invariants: a directory is visited once; all chains together have at most twice as many
//! links as there are clusters; at most `TABLE_PAGES_MAX` MiB of the table are in memory. Never: what an
//! entry looks like. Called by the maps of both. Tests: `hostile`.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::MapError;
use crate::run::Run;
use crate::walk::{PIECE_BYTES, TOGETHER_BYTES, Walk};

/// 64 MiB of the table: 16 million clusters of FAT32, 512 GiB of 32 KiB each.
const TABLE_PAGES_MAX: usize = 64;
/// Larger ones are followed so far; FAT allows 2 MiB, exFAT 256 MiB.
const DIRECTORY_BYTES_MAX: u64 = 16 << 20;
/// That are visited: 40 MiB of memory.
const DIRECTORIES_MAX: usize = 1 << 20;

/// How wide an entry of the table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Bits12,
    Bits16,
    /// FAT32: the upper four bits mean nothing.
    Bits28,
    Bits32,
}

/// Clusters, from number 2 on.
#[derive(Debug)]
pub(crate) struct Clusters {
    /// The table, in the file system.
    pub(crate) table: Run,
    pub(crate) width: Width,
    /// Where cluster 2 begins.
    pub(crate) heap: u64,
    pub(crate) cluster: u64,
    pub(crate) count: u64,
    pages: BTreeMap<u64, Vec<u8>>,
    links_left: u64,
}

impl Clusters {
    pub(crate) fn new(table: Run, width: Width, heap: u64, cluster: u64, count: u64) -> Self {
        Self {
            table,
            width,
            heap,
            cluster,
            count,
            pages: BTreeMap::new(),
            links_left: count.saturating_mul(2),
        }
    }

    /// `None` for a number that no cluster has.
    pub(crate) fn run(&self, first: u64, clusters: u64) -> Option<Run> {
        let index = first.checked_sub(2)?;
        let inside = index.checked_add(clusters).is_some_and(|end| end <= self.count);
        (inside && clusters > 0).then(|| Run::new(self.heap + index * self.cluster, clusters * self.cluster))
    }

    /// A number of the table that begins at this byte.
    fn entry(&mut self, walk: &mut Walk<'_>, at: u64, bytes: usize) -> Result<u64, MapError> {
        let page = at / PIECE_BYTES;
        if !self.pages.contains_key(&page) {
            if self.pages.len() >= TABLE_PAGES_MAX {
                self.pages.clear();
            }
            let from = page * PIECE_BYTES;
            let run = Run::new(self.table.offset + from, (self.table.bytes - from).min(PIECE_BYTES));
            let content = walk.together(&[vec![run]])?.remove(0);
            self.pages.insert(page, content);
        }
        let within = usize::try_from(at % PIECE_BYTES).unwrap_or(usize::MAX);
        let found = self.pages.get(&page).and_then(|page| page.get(within..within.checked_add(bytes)?));
        // No entry that is cut off by the end of a page: 12 bits are in tables of 6 KiB.
        Ok(found.unwrap_or_default().iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
    }

    /// The cluster that follows in its chain.
    fn next(&mut self, walk: &mut Walk<'_>, cluster: u64) -> Result<Option<u64>, MapError> {
        let (at, bytes) = match self.width {
            Width::Bits12 => (cluster + cluster / 2, 2),
            Width::Bits16 => (cluster * 2, 2),
            Width::Bits28 | Width::Bits32 => (cluster * 4, 4),
        };
        if at + bytes as u64 > self.table.bytes {
            return Ok(None);
        }
        let number = self.entry(walk, at, bytes)?;
        let number = match self.width {
            Width::Bits12 if cluster.is_multiple_of(2) => number & 0xfff,
            Width::Bits12 => number >> 4,
            Width::Bits28 => number & 0x0fff_ffff,
            Width::Bits16 | Width::Bits32 => number,
        };
        Ok(self.run(number, 1).map(|_| number))
    }

    /// The runs of a chain, in its order, of at most so many bytes.
    fn chain(&mut self, walk: &mut Walk<'_>, first: u64, bytes: u64) -> Result<Vec<Run>, MapError> {
        let mut runs: Vec<Run> = Vec::new();
        let Some(run) = self.run(first, 1) else { return Ok(runs) };
        runs.push(run);
        // The place that a circle comes back to: it is moved on when as many links as before were followed.
        let (mut mark, mut until_moved, mut power) = (first, 1_u64, 1_u64);
        let mut cluster = first;
        for _ in 1..bytes.div_ceil(self.cluster) {
            let Some(next) = self.next(walk, cluster)? else { break };
            if next == mark || self.links_left == 0 {
                walk.gap("a chain of clusters is a circle, or belongs to several files");
                break;
            }
            self.links_left -= 1;
            until_moved -= 1;
            if until_moved == 0 {
                power *= 2;
                (mark, until_moved) = (next, power);
            }
            let Some(run) = self.run(next, 1) else { break };
            match runs.last_mut() {
                Some(last) if last.end() == run.offset => last.bytes += run.bytes,
                _ => runs.push(run),
            }
            cluster = next;
        }
        Ok(runs)
    }

    fn runs_of(&mut self, walk: &mut Walk<'_>, entry: &Entry, bytes: u64) -> Result<Vec<Run>, MapError> {
        let clusters = bytes.div_ceil(self.cluster).max(1);
        // Of what was deleted the chain is gone.
        if entry.is_contiguous || entry.is_deleted {
            let there = (self.count + 2).saturating_sub(entry.first);
            return Ok(self.run(entry.first, clusters.min(there)).into_iter().collect());
        }
        self.chain(walk, entry.first, bytes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Directory,
    File,
    /// Its content is metadata.
    System,
}

/// What a directory says of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) of: Of,
    pub(crate) first: u64,
    /// Of a directory of FAT there is none: what its chain has.
    pub(crate) bytes: Option<u64>,
    /// It has no chain: one cluster lies behind the other.
    pub(crate) is_contiguous: bool,
    pub(crate) is_deleted: bool,
}

/// Takes the entries out of a directory's bytes, which may be those of a deleted one.
pub(crate) type Parse = fn(&[u8], is_deleted: bool) -> Vec<Entry>;

/// Goes down from what the root is, or from the entries in it.
pub(crate) fn descend(
    walk: &mut Walk<'_>,
    clusters: &mut Clusters,
    root: Vec<Entry>,
    parse: Parse,
) -> Result<(), MapError> {
    let mut visited = BTreeSet::new();
    let mut level = sort_in(walk, clusters, root, &mut visited)?;
    while !level.is_empty() {
        level.sort_unstable_by_key(|entry| entry.first);
        let mut below = Vec::new();
        let mut rest = &level[..];
        while !rest.is_empty() {
            let (mut lists, mut bytes): (Vec<Vec<Run>>, u64) = (Vec::new(), 0);
            for entry in rest {
                // Of a deleted one whose size is not said, the first cluster is all that is known.
                let unsaid = if entry.is_deleted { clusters.cluster } else { DIRECTORY_BYTES_MAX };
                let most = entry.bytes.unwrap_or(unsaid).min(DIRECTORY_BYTES_MAX);
                let runs = clusters.runs_of(walk, entry, most)?;
                let of_this = runs.iter().map(|run| run.bytes).sum::<u64>();
                if of_this >= DIRECTORY_BYTES_MAX {
                    walk.gap("a directory is larger than is followed");
                }
                lists.push(runs);
                bytes += of_this;
                if bytes > TOGETHER_BYTES {
                    break;
                }
            }
            let mut told: Vec<Run> = lists.iter().flatten().copied().collect();
            told.sort_unstable();
            walk.tell(&told);
            let (now, later) = rest.split_at(lists.len());
            for (entry, content) in now.iter().zip(walk.together(&lists)?) {
                let entries = parse(&content, entry.is_deleted);
                below.extend(sort_in(walk, clusters, entries, &mut visited)?);
            }
            rest = later;
        }
        level = below;
    }
    Ok(())
}

/// Notes files and what is metadata; answers the directories that were not visited yet.
fn sort_in(
    walk: &mut Walk<'_>,
    clusters: &mut Clusters,
    entries: Vec<Entry>,
    visited: &mut BTreeSet<u64>,
) -> Result<Vec<Entry>, MapError> {
    let mut directories = Vec::new();
    for entry in entries {
        if clusters.run(entry.first, 1).is_none() {
            continue;
        }
        match entry.of {
            Of::Directory if visited.len() >= DIRECTORIES_MAX => walk.gap("there are too many directories"),
            Of::Directory => {
                if visited.insert(entry.first) {
                    directories.push(entry);
                }
            }
            Of::System => {
                let runs = clusters.runs_of(walk, &entry, entry.bytes.unwrap_or(0))?;
                walk.tell(&runs);
            }
            Of::File if entry.is_deleted => {}
            Of::File => {
                let mut position = 0;
                for run in clusters.runs_of(walk, &entry, entry.bytes.unwrap_or(0))? {
                    walk.files.add(entry.first, position, run);
                    position += run.bytes;
                }
            }
        }
    }
    Ok(directories)
}
