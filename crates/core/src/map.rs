//! The map of a volume: its exact size, its redundancy, and which extent of which donor holds what.
//!
//! Owns the types that coordinator and client exchange about placement, and the checks that a map is whole.
//! Never: addresses inside a request (`layout`) or the choice of donors (`placement`).
//! Invariant: every group has exactly `redundancy.width()` slots, no donor is in a group twice, and the
//! groups cover the size. Tests: below, and the properties in `tests/layout.rs`.

mod backing;
mod secret;

pub(crate) use backing::one_layer;
pub use backing::{Backing, Filler, layers_max};
pub use secret::{BadSecret, DonorSecret};

use crate::layout::Chunks;
use crate::limits::{
    EXTENT_BYTES, PARITY_MAX, STRIPE_DONORS_MAX, UNIT_MAX_BYTES, UNIT_MIN_BYTES, UNIT_PARITY_BYTES,
    UNIT_STRIPE_BYTES, VOLUME_BYTES_MAX,
};
use crate::proofs::{Root, Tree};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A text that is no identity or token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadIdentity {
    /// It has not as many digits as one has.
    Length(String),
    /// Something in it is no digit.
    Digits(String),
}

impl fmt::Display for BadIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadIdentity::Length(text) => write!(f, "'{text}' is not 16 hexadecimal digits"),
            BadIdentity::Digits(text) => write!(f, "'{text}' is not hexadecimal"),
        }
    }
}

impl std::error::Error for BadIdentity {}

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}:{:016x}", stringify!($name), self.0)
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
        impl TryFrom<String> for $name {
            type Error = BadIdentity;
            fn try_from(text: String) -> Result<Self, BadIdentity> {
                text.parse()
            }
        }
        impl std::str::FromStr for $name {
            type Err = BadIdentity;
            fn from_str(text: &str) -> Result<Self, BadIdentity> {
                if text.len() != 16 {
                    return Err(BadIdentity::Length(text.to_owned()));
                }
                let bad = |_| BadIdentity::Digits(text.to_owned());
                u64::from_str_radix(text, 16).map($name).map_err(bad)
            }
        }
    };
}

identity!(
    /// One donor: of memory for one run of its process, which holds nothing at its start; of a disk for as
    /// long as the disk is lent.
    DonorId
);
identity!(
    /// One run of the process of a disk's donor.
    Incarnation
);
identity!(
    /// One volume, from its creation to its deletion; a name may be used again, an id never is.
    VolumeId
);
identity!(
    /// One pool, from the first start of its coordinator's state.
    PoolId
);
identity!(
    /// Proof of the right to write (or read) one volume; known to the coordinator, its holder and the donors.
    LeaseToken
);
identity!(
    /// One member of a pool, from when it came in until it is revoked.
    MemberId
);
identity!(
    /// One token, by the beginning of its hash: it says nothing of the secret.
    TokenId
);

/// k data and m parity fragments: `linear` = 1+0, `stripe:k` = k+0, `mirror:r` = 1+(r-1), `parity:k+m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Redundancy {
    /// k, at least 1: the data slots of a group, which covers as many extents of the volume.
    pub data: u32,
    /// m: the donors of a group that may be lost at once. At most `PARITY_MAX`, except of mirrors.
    pub parity: u32,
}

impl Redundancy {
    /// Each group is one extent of one donor.
    pub const LINEAR: Redundancy = Redundancy { data: 1, parity: 0 };

    /// How many donors one group spans.
    #[must_use]
    pub fn width(self) -> u32 {
        self.data + self.parity
    }

    /// The unit of its rows, unless another is asked for.
    #[must_use]
    pub fn default_unit(self) -> u32 {
        if self.parity == 0 { UNIT_STRIPE_BYTES } else { UNIT_PARITY_BYTES }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.data, self.parity) {
            (1, 0) => write!(f, "linear"),
            (k, 0) => write!(f, "stripe:{k}"),
            (1, m) => write!(f, "mirror:{}", m + 1),
            (k, m) => write!(f, "parity:{k}+{m}"),
        }
    }
}

impl From<Redundancy> for String {
    fn from(redundancy: Redundancy) -> String {
        redundancy.to_string()
    }
}

impl TryFrom<String> for Redundancy {
    type Error = BadRedundancy;
    fn try_from(text: String) -> Result<Self, BadRedundancy> {
        text.parse()
    }
}

/// A text that is no redundancy. Its own text says what is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadRedundancy {
    /// No scheme has this name.
    Unknown(String),
    /// A parity scheme of which only the data is named.
    NoParity(String),
    /// The numbers are none, or a group would have too few or too many donors.
    Span {
        /// What was written.
        text: String,
        /// What may be.
        example: &'static str,
    },
}

impl fmt::Display for BadRedundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRedundancy::Unknown(text) => write!(
                f,
                "'{text}' is not a redundancy: use linear, stripe:K, mirror:R or parity:K+M, like stripe:4, \
                 mirror:2 or parity:4+1"
            ),
            BadRedundancy::NoParity(text) => {
                write!(f, "'{text}': +M is missing, how many donors may be lost at once: like {text}+1")
            }
            BadRedundancy::Span { text, example } => {
                write!(f, "'{text}': it spans 2 to {STRIPE_DONORS_MAX} donors, like {example}")
            }
        }
    }
}

impl std::error::Error for BadRedundancy {}

impl std::str::FromStr for Redundancy {
    type Err = BadRedundancy;

    fn from_str(text: &str) -> Result<Self, BadRedundancy> {
        let spans = |width: u32| (2..=STRIPE_DONORS_MAX).contains(&width);
        let (scheme, numbers) = text.split_once(':').unwrap_or((text, ""));
        let (data, parity, example) = match scheme {
            "linear" if numbers.is_empty() && text == "linear" => return Ok(Redundancy::LINEAR),
            "stripe" => (numbers.parse().ok(), Some(0), "stripe:4"),
            "mirror" => (Some(1), numbers.parse().ok().and_then(|r: u32| r.checked_sub(1)), "mirror:2"),
            "parity" => {
                let (k, m) = numbers.split_once('+').unwrap_or((numbers, ""));
                let parity = m.parse().ok().filter(|m| (1..=PARITY_MAX).contains(m));
                (k.parse().ok().filter(|k| *k >= 2), parity, "parity:4+1 (at least 2 data, 1 to 4 parity)")
            }
            _ => return Err(BadRedundancy::Unknown(text.to_owned())),
        };
        let redundancy =
            data.zip(parity).map(|(data, parity): (u32, u32)| (data, parity, data.saturating_add(parity)));
        match redundancy {
            Some((data, parity, width)) if spans(width) => Ok(Redundancy { data, parity }),
            _ if scheme == "parity" && numbers.parse::<u32>().is_ok() => {
                Err(BadRedundancy::NoParity(text.to_owned()))
            }
            _ => Err(BadRedundancy::Span { text: text.to_owned(), example }),
        }
    }
}

/// Where one fragment of a group lies: `extent` counts 64 MiB units from the start of the donor's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Placement {
    /// The donor whose arena has the extent.
    pub donor: DonorId,
    /// The extent's number, below the number of extents that the donor lends.
    pub extent: u32,
}

/// The place of one fragment in its group: who holds it, and who is being given it.
///
/// | `held` | `filling` | |
/// |---|---|---|
/// | some | none | whole |
/// | none | none | missing: what it held is read from the other slots |
/// | none | some | being rebuilt |
/// | some | some | being moved, off a donor that drains |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Has every acknowledged write.
    pub held: Option<Placement>,
    /// Gets what the writer copies or rebuilds; never read before the coordinator made it `held`.
    pub filling: Option<Placement>,
}

impl Slot {
    /// A slot that is whole.
    #[must_use]
    pub fn held(placement: Placement) -> Self {
        Slot { held: Some(placement), filling: None }
    }

    /// The extents that the slot takes.
    pub fn placements(&self) -> impl Iterator<Item = Placement> {
        self.held.into_iter().chain(self.filling)
    }
}

/// k+m slots, the data first; it covers k extents of the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// k+m. A slot's index decides its coefficients, so the order stays.
    pub slots: Vec<Slot>,
}

impl Group {
    /// Every extent that the group takes.
    pub fn placements(&self) -> impl Iterator<Item = Placement> + '_ {
        self.slots.iter().flat_map(Slot::placements)
    }
}

/// A run of one data fragment that no redundancy can give back: it answers EIO until it is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BadRange {
    /// Index of the group in the map.
    pub group: u32,
    /// Index of a data slot in its group: below k.
    pub slot: u32,
    /// Byte offsets inside the extent.
    pub from: u32,
    /// The first byte behind the range: more than `from`, at most 64 MiB.
    pub to: u32,
}

impl BadRange {
    /// Whether it has all bytes of `other`.
    #[must_use]
    pub fn covers(&self, other: &BadRange) -> bool {
        (self.group, self.slot) == (other.group, other.slot) && self.from <= other.from && other.to <= self.to
    }

    /// Whether any byte of the slot from `from` to `to` is in it.
    #[must_use]
    pub fn reaches(&self, group: u32, slot: u32, from: u32, to: u32) -> bool {
        (self.group, self.slot) == (group, slot) && self.from.max(from) < self.to.min(to)
    }
}

/// How a client reaches a donor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The donor's name, for messages.
    pub name: String,
    /// `IP:PORT` of its NBD listener.
    pub address: String,
    /// `None` for a Cheetah donor, which is asked for `VOLUME@TOKEN.SESSION.DONOR`; for another's NBD server
    /// the export to ask for, as it stands.
    pub foreign_export: Option<String>,
}

/// The placement of one volume in one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMap {
    /// The volume's identity. The name may be another volume's later.
    pub volume: VolumeId,
    /// The name that export names on Cheetah's donors begin with.
    pub name: String,
    /// Grows with each change of the map.
    pub epoch: u64,
    /// Exact, in bytes.
    pub size: u64,
    /// As the volume was made; no epoch changes it.
    pub redundancy: Redundancy,
    /// Bytes of one donor's share of a row.
    pub unit: u32,
    /// In the order of the volume, k extents each. The last may reach beyond the size.
    pub groups: Vec<Group>,
    /// One at least for each donor that a slot names.
    pub routes: BTreeMap<DonorId, Route>,
    /// Disjoint, ascending.
    #[serde(default)]
    pub bad: Vec<BadRange>,
    /// What the source could not give when the volume was loaded. Zeros stand there, which nobody is given.
    /// As `bad`.
    #[serde(default)]
    pub unreadable: Vec<BadRange>,
    /// Some of what moves is on its way off a machine whose owner needs the memory now.
    #[serde(default)]
    pub hurry: bool,
    /// What a block is that no donor has been given: without a backing zeros.
    #[serde(default)]
    pub backing: Option<Backing>,
    /// What proves each block, behind the size.
    #[serde(default)]
    pub proofs: Option<Proofs>,
    /// What all of it lies on.
    #[serde(default, skip_serializing_if = "Medium::is_memory")]
    pub medium: Medium,
    /// Donors have ciphertext of it, with nonce and authentication tag beside each block.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// A write is answered when it is in the memory of all who hold a part of it, and is on their disks after
    /// the next flush.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub write_back: bool,
}

/// What a donor lends, and what a volume lies on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Medium {
    /// Fast, and gone with the donor's process.
    #[default]
    Memory,
    /// It stays: a donor that starts again on the same disk is the same donor.
    Disk,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Medium::Memory => "memory",
            Medium::Disk => "disk",
        })
    }
}

impl Medium {
    /// Whether it is the one that is meant where nothing is said.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        *self == Medium::Memory
    }
}

/// The room for proofs behind a volume's end, as [`Tree`] divides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proofs {
    /// What they come to: the volume is sealed. Nobody writes it, and every block that is read has to fit.
    #[serde(default)]
    pub root: Option<Root>,
}

impl VolumeMap {
    /// Bytes of the volume that one group covers.
    #[must_use]
    pub fn group_bytes(&self) -> u64 {
        u64::from(self.redundancy.data) * EXTENT_BYTES
    }

    pub(crate) fn bytes_own(&self) -> u64 {
        if self.encrypted { self.size.next_multiple_of(crate::limits::BLOCK_BYTES) } else { self.size }
    }

    /// Bytes that have a place on donors: the volume's own, of an encrypted one in whole blocks, and its
    /// proofs.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.proofs.map_or(self.bytes_own(), |_| self.tree().end())
    }

    /// The tree that proves it: over its bytes, or over whole blocks of its ciphertext.
    #[must_use]
    pub fn tree(&self) -> Tree {
        Tree::new(self.bytes_own())
    }

    /// The hash that every block is proved by, once the volume is sealed.
    #[must_use]
    pub fn seal(&self) -> Option<Root> {
        self.proofs.and_then(|proofs| proofs.root)
    }

    /// How many extents of the volume share one of memory.
    #[must_use]
    pub fn layers(&self) -> u32 {
        self.backing.as_ref().map_or(1, |backing| backing.layers)
    }

    /// How it is dealt out to its groups.
    #[must_use]
    pub fn chunks(&self) -> Chunks {
        Chunks { bytes: self.group_bytes(), groups: self.groups.len() as u64 }
    }

    /// Memory of donors that it takes at most.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.groups.len() as u64 * u64::from(self.redundancy.width()) * EXTENT_BYTES
    }

    /// Every donor of the map, each once, in order of identity.
    pub fn donors(&self) -> impl Iterator<Item = DonorId> + '_ {
        self.routes.keys().copied()
    }

    /// Whether a block may still come from a source.
    #[must_use]
    pub fn is_filled_later(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| !backing.complete)
    }

    /// Who is asked for what is not here.
    #[must_use]
    pub fn filler(&self) -> Option<&Filler> {
        self.backing.as_ref().filter(|backing| !backing.complete).and_then(|backing| backing.filler.as_ref())
    }

    /// Refuses a map that the arithmetic could not serve: used on what comes from the network or a store.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), BadMap> {
        match self.fault() {
            None => Ok(()),
            Some(fault) => Err(BadMap { volume: self.name.clone(), fault }),
        }
    }

    fn fault(&self) -> Option<MapFault> {
        if self.size == 0 || self.size > VOLUME_BYTES_MAX {
            return Some(MapFault::Size);
        }
        if !self.unit.is_power_of_two() || !(UNIT_MIN_BYTES..=UNIT_MAX_BYTES).contains(&self.unit) {
            return Some(MapFault::Unit);
        }
        if self.redundancy.data == 0
            || self.redundancy.width() > STRIPE_DONORS_MAX
            || (self.redundancy.data > 1 && self.redundancy.parity > PARITY_MAX)
        {
            return Some(MapFault::Redundancy);
        }
        let (chunks, layers) = (self.bytes().div_ceil(self.group_bytes()), self.layers());
        let groups = self.groups.len() as u64;
        if groups == 0 || groups > chunks || chunks.div_ceil(groups) != u64::from(layers) {
            return Some(MapFault::Cover);
        }
        let can_have_layers = self.redundancy.parity == 0 && self.is_filled_later();
        if layers > 1 && (layers > layers_max(self.redundancy) || !can_have_layers) {
            return Some(MapFault::Layers);
        }
        for group in &self.groups {
            if group.slots.len() as u64 != u64::from(self.redundancy.width()) {
                return Some(MapFault::Width);
            }
            let mut seen = BTreeSet::new();
            for placement in group.placements() {
                if !self.routes.contains_key(&placement.donor) {
                    return Some(MapFault::Route);
                }
                if !seen.insert(placement.donor) {
                    return Some(MapFault::Twice);
                }
            }
        }
        let outside = |bad: &BadRange| {
            let slot = self.groups.get(bad.group as usize).and(Some(bad.slot));
            slot.is_none_or(|slot| slot >= self.redundancy.data)
                || bad.from >= bad.to
                || u64::from(bad.to) > u64::from(layers) * EXTENT_BYTES
        };
        if self.bad.iter().chain(&self.unreadable).any(outside) {
            return Some(MapFault::Bad);
        }
        None
    }
}

/// A map that is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMap {
    /// The name of its volume.
    pub volume: String,
    /// The first thing that is wrong with it.
    pub fault: MapFault,
}

/// What may be wrong with a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapFault {
    /// No volume can be that small or large.
    Size,
    /// No volume can have this unit.
    Unit,
    /// No volume can have this redundancy.
    Redundancy,
    /// It has too few or too many groups for its size.
    Cover,
    /// It keeps a part of itself in memory, and cannot: it has too many layers, or no source to read again.
    Layers,
    /// A group has not as many slots as the redundancy is wide.
    Width,
    /// A placement names a donor that nobody can find.
    Route,
    /// A group has two placements on one donor.
    Twice,
    /// What is recorded as lost or unreadable is no data of the volume.
    Bad,
}

impl fmt::Display for BadMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.fault {
            MapFault::Size => "has an impossible size",
            MapFault::Unit => "has an impossible unit",
            MapFault::Redundancy => "has an impossible redundancy",
            MapFault::Cover => "does not cover its size",
            MapFault::Layers => "has layers that it cannot have",
            MapFault::Width => "has a group of the wrong width",
            MapFault::Route => "names a donor without a route",
            MapFault::Twice => "has a group with one donor twice",
            MapFault::Bad => "has a bad range outside its data",
        };
        write!(f, "the map of volume '{}' {what}", self.volume)
    }
}

impl std::error::Error for BadMap {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redundancy_reads_what_it_writes() {
        for text in ["linear", "stripe:2", "stripe:32", "mirror:2", "mirror:32", "parity:2+1", "parity:8+2"] {
            assert_eq!(text.parse::<Redundancy>().map(|r| r.to_string()), Ok(text.to_owned()));
        }
        for bad in [
            "",
            "stripe",
            "stripe:1",
            "stripe:33",
            "mirror:1",
            "mirror:0",
            "mirror:33",
            "parity:4",
            "parity:1+1",
            "parity:4+0",
            "parity:4+5",
            "parity:31+2",
            "linear:1",
            "raid0",
        ] {
            assert!(bad.parse::<Redundancy>().is_err(), "{bad}");
        }
    }

    #[test]
    fn identities_read_what_they_write() {
        let id = DonorId(0x00ab_cdef_0123_4567);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("xyz".parse::<DonorId>().is_err());
    }
}
