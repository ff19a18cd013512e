//! What one life leaves to the next: the pool with all that its donors hold and all that is still on its way
//! to them, and what is known of each block.
//!
//! Owns that, and what the blocks' versions look like. Never: a writer, which ends with its life (`life`).
//! Tests: those of the walk.

use super::digest::Digest;
use super::pool::Pool;
use crate::bugs::Bug;
use crate::bytes::BLOCK;
use crate::plan::Layout;
use cheetah_core::api::Attached;
use std::collections::BTreeSet;

/// What is known of a block: what was acknowledged or read, and the versions that may be there as well. A
/// writer that is killed may leave some sectors of either, as it would on a disk.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    pub(super) known: Vec<u8>,
    pub(super) maybe: BTreeSet<u8>,
}

impl Truth {
    pub(super) fn allows(&self, block: usize, found: &[u8]) -> bool {
        let versions: Vec<Vec<u8>> = self.maybe.iter().map(|version| content(*version, block)).collect();
        let can_be = |at: usize| versions.iter().any(|version| version[at] == found[at]);
        (0..BLOCK).all(|at| self.known[at] == found[at] || can_be(at))
    }
}

/// What one life leaves to the next.
#[derive(Clone, Debug)]
pub(super) struct Legacy {
    pub(super) pool: Pool,
    pub(super) blocks: Vec<Truth>,
    pub(super) version: u8,
    pub(super) fault_left: bool,
    /// The lease of the writer that is next to live; none is given yet where it waits for one.
    pub(super) attached: Option<Box<Attached>>,
}

impl Legacy {
    pub(super) fn new(layout: Layout, bug: Option<Bug>) -> Result<Legacy, String> {
        let blocks = vec![Truth { known: vec![0; BLOCK], maybe: BTreeSet::new() }; layout.data as usize];
        let pool = Pool::new(layout, bug)?;
        Ok(Legacy { pool, blocks, version: 0, fault_left: true, attached: None })
    }

    /// Left out: `attached`, which is as the pool was at its time, and is what a life begins with.
    pub(super) fn add_to(&self, digest: &mut Digest) {
        self.pool.add_to(digest);
        for Truth { known, maybe } in &self.blocks {
            digest.add_bytes(known);
            digest.print(maybe);
        }
        digest.add(self.version.into());
        digest.add(self.fault_left.into());
    }

    /// Of all that a life begins with.
    pub(super) fn digest(&self) -> u64 {
        let mut digest = Digest::new(self.pool.now);
        self.add_to(&mut digest);
        digest.print(&self.attached);
        digest.value()
    }
}

pub(super) fn content(version: u8, block: usize) -> Vec<u8> {
    let byte = |sector: u8| version.wrapping_mul(37) ^ (block as u8 + 1).wrapping_mul(91) ^ sector;
    if version == 0 { vec![0; BLOCK] } else { (0..BLOCK as u8).map(byte).collect() }
}
