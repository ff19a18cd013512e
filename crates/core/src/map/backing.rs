//! What is behind a volume that was opened from a source.
//! Never: who may fill it (`coordinator::open`), or what is here of it.

use super::Redundancy;
use crate::limits::LAYERS_MAX;
use serde::{Deserialize, Serialize};

/// A source behind a volume: blocks that are not here yet are read there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backing {
    /// Who reads the source now, and nobody else does.
    #[serde(default)]
    pub filler: Option<Filler>,
    /// All that the source could give is here: what is absent now nobody fetches.
    #[serde(default)]
    pub complete: bool,
    /// So many extents of the volume share each extent of memory, of which donors hold the blocks that were
    /// put there last; 1: all of the volume has a place.
    #[serde(default = "one_layer")]
    pub layers: u32,
}

pub(crate) fn one_layer() -> u32 {
    1
}

impl Default for Backing {
    /// Nobody fills the volume, and all of it has a place.
    fn default() -> Backing {
        Backing { filler: None, complete: false, layers: 1 }
    }
}

/// How many extents of a volume may share one of memory: what a group covers is counted in 32 bits.
#[must_use]
pub fn layers_max(redundancy: Redundancy) -> u32 {
    LAYERS_MAX / redundancy.data
}

/// Where who fills a volume is asked for blocks that are not here yet: an NBD server whose CACHE brings them
/// to the donors. It gives no bytes away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filler {
    /// `IP:PORT`.
    pub address: String,
    /// The export to ask for, which only holders of a lease are told.
    pub export: String,
}
