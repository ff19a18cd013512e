//! What a disk donor knows of itself and finds again after a stop.
//!
//! Owns its form on the disk. Never: when it is written (`rim::disk`), or what follows from it (`donor`).
//! Invariant: of the two places for it the one with the greater number counts, if it was written in full;
//! the other is what was before. Tests: below.

use super::PAGE_BYTES;
use crate::limits::{DIRTY_REGION_BYTES, EXTENT_BYTES, INTENT_REGION_BYTES};
use crate::map::{DonorSecret, Incarnation, PoolId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const MAGIC: u32 = 0x6174_7363;
const HEAD: usize = 16;
/// Regions of an extent, and words of as many bits.
const REGIONS: u64 = EXTENT_BYTES / DIRTY_REGION_BYTES;
const WORDS: usize = (REGIONS / 64) as usize;
/// Those of an extent of which memory may have what the disk has not: a word of bits.
const INTENTS: u64 = EXTENT_BYTES / INTENT_REGION_BYTES;
const _: () = assert!(INTENTS == 64);

/// What a donor holds of a pool, and how far it has come with what it was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// None: it was in no pool yet.
    pub pool: Option<PoolId>,
    /// The newest revision of that pool that is carried out in full.
    pub confirmed: u64,
    /// Whose data is in which extent.
    pub owners: BTreeMap<u32, VolumeId>,
    /// Extents that a volume gave up and that are not wiped yet.
    pub unwiped: BTreeMap<u32, VolumeId>,
    /// Volumes that are sealed.
    pub sealed: BTreeSet<VolumeId>,
    /// Runs of the donor before this one.
    pub before: Before,
}

/// What tells a disk from an older copy of it: see [`Lineage`](crate::api::Lineage).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// The last run that was told that it is in its pool.
    pub last: Option<Incarnation>,
    /// Runs since then that asked to join.
    pub tried: Vec<Incarnation>,
}

/// Of runs that were told nothing, so many are remembered: the coordinator let in the last of them that it
/// heard, which is one of the newest.
const TRIED_MAX: usize = 64;

impl Before {
    /// One more asks.
    pub fn tries(&mut self, incarnation: Incarnation) {
        if self.tried.last() == Some(&incarnation) || self.last == Some(incarnation) {
            return;
        }
        self.tried.push(incarnation);
        let beyond = self.tried.len().saturating_sub(TRIED_MAX);
        self.tried.drain(..beyond);
    }
}

/// All that is written at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Grows with each one that is written.
    pub number: u64,
    /// From the page of the log with this number on it has what is not in the table.
    pub log_from: u64,
    /// How often the log began anew.
    pub round: u64,
    /// What proves to the coordinator that it is this donor.
    pub secret: DonorSecret,
    /// What the donor has.
    pub held: Held,
    /// Regions of `DIRTY_REGION_BYTES` that were written lately, when the log began.
    pub dirty: Vec<u64>,
    /// Regions of `INTENT_REGION_BYTES` of which memory may have what the disk has not.
    pub intents: BTreeSet<u64>,
    /// Extents whose nonces and authentication tags the disk has; those of others are none.
    pub with_auths: BTreeSet<u32>,
}

/// What is there is no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadState;

impl fmt::Display for BadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("both copies of what it knows of itself are damaged")
    }
}

impl std::error::Error for BadState {}

impl State {
    /// Of a donor that holds nothing.
    #[must_use]
    pub fn first(secret: DonorSecret) -> State {
        State {
            number: 1,
            log_from: 0,
            round: 1,
            secret,
            held: Held::default(),
            dirty: Vec::new(),
            intents: BTreeSet::new(),
            with_auths: BTreeSet::new(),
        }
    }

    /// Whole pages; None: it is longer than `room`.
    #[must_use]
    pub fn encode(&self, room: u64, crc: impl Fn(&[u8]) -> u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; HEAD];
        let mut put = |number: u64| bytes.extend_from_slice(&number.to_le_bytes());
        let Held { pool, confirmed, owners, unwiped, sealed, before } = &self.held;
        let DonorSecret(secret) = self.secret;
        [self.number, self.log_from, self.round, secret, pool.is_some().into()]
            .into_iter()
            .for_each(&mut put);
        put(pool.map_or(0, |pool| pool.0));
        put(*confirmed);
        for extents in [owners, unwiped] {
            put(extents.len() as u64);
            extents.iter().for_each(|(extent, volume)| {
                put((*extent).into());
                put(volume.0);
            });
        }
        put(sealed.len() as u64);
        sealed.iter().for_each(|volume| put(volume.0));
        // A bit for each region of an extent that has one.
        let mut marked: BTreeMap<u64, [u64; WORDS]> = BTreeMap::new();
        for region in &self.dirty {
            let inside = (region % REGIONS) as usize;
            marked.entry(region / REGIONS).or_default()[inside / 64] |= 1 << (inside % 64);
        }
        put(marked.len() as u64);
        marked.iter().for_each(|(extent, words)| {
            put(*extent);
            words.iter().for_each(|word| put(*word));
        });
        let Before { last, tried } = before;
        put(last.is_some().into());
        put(last.map_or(0, |last| last.0));
        put(tried.len() as u64);
        tried.iter().for_each(|tried| put(tried.0));
        // A bit for each of these regions of an extent that has one.
        let mut intents: BTreeMap<u64, u64> = BTreeMap::new();
        for region in &self.intents {
            *intents.entry(region / INTENTS).or_default() |= 1 << (region % INTENTS);
        }
        put(intents.len() as u64);
        intents.iter().for_each(|(extent, word)| {
            put(*extent);
            put(*word);
        });
        put(self.with_auths.len() as u64);
        self.with_auths.iter().for_each(|extent| put((*extent).into()));
        let length = u32::try_from(bytes.len()).ok()?;
        bytes[4..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        let sum = crc(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(usize::try_from(PAGE_BYTES).ok()?), 0);
        (bytes.len() as u64 <= room).then_some(bytes)
    }

    /// The one that counts of what is in the two places.
    ///
    /// # Errors
    /// Neither holds one.
    pub fn newest(places: [&[u8]; 2], crc: impl Fn(&[u8]) -> u32) -> Result<State, BadState> {
        let found = places.iter().filter_map(|place| State::decode(place, &crc));
        found.max_by_key(|state| state.number).ok_or(BadState)
    }

    fn decode(bytes: &[u8], crc: impl Fn(&[u8]) -> u32) -> Option<State> {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let length = usize::try_from(word(8)?).ok()?;
        if word(4)? != MAGIC || crc(bytes.get(4..length)?) != word(0)? {
            return None;
        }
        let mut words = bytes.get(HEAD..length)?.chunks_exact(8);
        let mut next = || words.next()?.try_into().ok().map(u64::from_le_bytes);
        let (number, log_from, round, secret, has_pool) = (next()?, next()?, next()?, next()?, next()? != 0);
        let (pool, confirmed) = (next()?, next()?);
        let mut extents = || {
            let count = next()?;
            let pairs = (0..count).map(|_| Some((u32::try_from(next()?).ok()?, VolumeId(next()?))));
            pairs.collect::<Option<BTreeMap<u32, VolumeId>>>()
        };
        let (owners, unwiped) = (extents()?, extents()?);
        let sealed = (0..next()?).map(|_| next().map(VolumeId)).collect::<Option<_>>()?;
        let mut dirty = Vec::new();
        for _ in 0..next()? {
            let first = next()?.checked_mul(REGIONS)?;
            for word in 0..WORDS as u64 {
                let bits = next()?;
                dirty.extend((0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| first + word * 64 + bit));
            }
        }
        // A disk of before there were any ends here.
        let (has_last, last, count) = (next(), next(), next());
        let last = last.map(Incarnation).filter(|_| has_last == Some(1));
        let tried = (0..count.unwrap_or(0)).map(|_| next().map(Incarnation)).collect::<Option<_>>()?;
        let before = Before { last, tried };
        let mut intents = BTreeSet::new();
        for _ in 0..next().unwrap_or(0) {
            let (first, word) = (next()?.checked_mul(INTENTS)?, next()?);
            intents.extend((0..INTENTS).filter(|bit| word >> bit & 1 == 1).map(|bit| first + bit));
        }
        let count = next().unwrap_or(0);
        let with_auths = (0..count).map(|_| u32::try_from(next()?).ok()).collect::<Option<_>>()?;
        let held =
            Held { pool: has_pool.then_some(PoolId(pool)), confirmed, owners, unwiped, sealed, before };
        Some(State { number, log_from, round, secret: DonorSecret(secret), held, dirty, intents, with_auths })
    }
}

#[cfg(test)]
mod tests {
    use super::super::sum;
    use super::*;

    #[test]
    fn the_newer_one_counts_that_was_written_in_full() {
        let held = Held {
            pool: Some(PoolId(5)),
            confirmed: 8,
            owners: BTreeMap::from([(1, VolumeId(10)), (3, VolumeId(11))]),
            unwiped: BTreeMap::from([(2, VolumeId(10))]),
            sealed: BTreeSet::from([VolumeId(11)]),
            before: Before { last: Some(Incarnation(20)), tried: vec![Incarnation(21), Incarnation(22)] },
        };
        let one = State {
            number: 4,
            log_from: 9,
            round: 2,
            secret: DonorSecret(3),
            held,
            dirty: vec![7, 70, 5000],
            intents: BTreeSet::from([0, 63, 64, 700]),
            with_auths: BTreeSet::from([3, 700]),
        };
        let two = State {
            number: 5,
            held: Held::default(),
            dirty: vec![],
            intents: BTreeSet::new(),
            with_auths: BTreeSet::new(),
            ..one
        };
        let write = |state: &State| state.encode(1 << 20, sum).expect("there is room");
        let (first, mut second) = (write(&one), write(&two));
        assert!(first.len().is_multiple_of(4096));
        assert_eq!(State::newest([&first, &second], sum), Ok(two.clone()));
        assert_eq!(State::newest([&second, &first], sum), Ok(two));
        second[30] ^= 1;
        assert_eq!(State::newest([&first, &second], sum), Ok(one.clone()));
        assert_eq!(State::newest([&second, &[]], sum), Err(BadState));
        assert_eq!(one.encode(4095, sum), None);
    }
}
