//! The pages of a disk's log: what was put down of writes before their blocks were touched.
//!
//! Owns their form. Never: where they go (`place`), or what follows from them (`replay`). A page has 32 bytes
//! of head (its checksum, how many slots are used, its number, which of its batch it is, its round) and slots
//! of 16. An entry takes one; that of a block which has a nonce and an authentication tag takes three, which
//! begin with what one has. Invariant: no entry is on two pages, and a page that was not written in full, or
//! in another round, is not taken for one. Tests: below.

use super::PAGE_BYTES;
use super::auths::{Auth, NO_AUTH};
use crate::limits::AUTH_BYTES;

/// So many slots for entries are on a page.
pub const LOG_SLOTS_MAX: usize = (PAGE as usize - HEAD) / ENTRY;

const PAGE: u64 = PAGE_BYTES;
const HEAD: usize = 32;
const ENTRY: usize = 16;
/// Slots of a block's entry behind the first.
const AUTH_SLOTS: usize = AUTH_BYTES.div_ceil(ENTRY);
const MAGIC: u32 = 0x676f_6c63;

/// Which page of the log one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPage {
    /// Counts all pages that were ever written.
    pub number: u64,
    /// How often the log began anew: a page that was lost while a later one was not does not bring that back.
    pub round: u64,
}

/// What a page says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Of the pages that were written together, which one it is. What those before them say is done.
    pub nth: u32,
    /// In the order in which they count.
    pub entries: Vec<Entry>,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The CRC32C of what it holds; that of zeros where it has no data.
    pub sum: u32,
    /// It holds data. Otherwise it is zeros, whatever the disk has there.
    pub is_data: bool,
    /// Somebody said what it holds.
    pub is_known: bool,
}

/// What the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A block is changed.
    Block {
        /// Its number on this disk.
        block: u64,
        /// What it was.
        old: Noted,
        /// What it is as soon as the write is done.
        new: Noted,
        /// The nonce and the authentication tag that it has then.
        auth: Auth,
    },
    /// All of an extent is absent from here on.
    Wiped {
        /// Its number on this disk.
        extent: u32,
    },
    /// Others may not have yet what was written there. Counts once `Marked` is behind it.
    Mark {
        /// Counts regions of `DIRTY_REGION_BYTES`.
        region: u64,
    },
    /// So many marks stand before this; what was written before them is complete elsewhere but for these.
    Marked {
        /// How many.
        marks: u32,
    },
    /// From here on memory may have what the disk has not.
    Intent {
        /// Counts regions of `INTENT_REGION_BYTES`.
        region: u64,
    },
    /// The disk has all that was acknowledged there before this.
    Clean {
        /// Counts regions of `INTENT_REGION_BYTES`.
        region: u64,
    },
}

const OLD_DATA: u64 = 1 << 63;
const OLD_KNOWN: u64 = 1 << 62;
const NEW_DATA: u64 = 1 << 61;
const NEW_KNOWN: u64 = 1 << 60;
const IS_WIPE: u64 = 1 << 59;
const IS_MARK: u64 = 1 << 58;
const IS_MARKED: u64 = 1 << 57;
const IS_INTENT: u64 = 1 << 56;
const IS_CLEAN: u64 = 1 << 55;
const HAS_AUTH: u64 = 1 << 54;
const NUMBER: u64 = HAS_AUTH - 1;

impl Entry {
    /// How many slots of a page it takes.
    #[must_use]
    pub fn slots(&self) -> usize {
        if self.auth().is_some() { 1 + AUTH_SLOTS } else { 1 }
    }

    /// What its slots behind the first have.
    fn auth(&self) -> Option<&Auth> {
        match self {
            Entry::Block { auth, .. } => Some(auth).filter(|auth| **auth != NO_AUTH),
            _ => None,
        }
    }

    fn encode(self) -> [u8; ENTRY] {
        let flag = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let (first, old, new) = match self {
            Entry::Block { block, old, new, auth } => {
                let has_auth = flag(auth != NO_AUTH, HAS_AUTH);
                let olds = flag(old.is_data, OLD_DATA) | flag(old.is_known, OLD_KNOWN);
                let news = flag(new.is_data, NEW_DATA) | flag(new.is_known, NEW_KNOWN);
                (block & NUMBER | has_auth | olds | news, old.sum, new.sum)
            }
            Entry::Wiped { extent } => (u64::from(extent) | IS_WIPE, 0, 0),
            Entry::Mark { region } => (region & NUMBER | IS_MARK, 0, 0),
            Entry::Marked { marks } => (u64::from(marks) | IS_MARKED, 0, 0),
            Entry::Intent { region } => (region & NUMBER | IS_INTENT, 0, 0),
            Entry::Clean { region } => (region & NUMBER | IS_CLEAN, 0, 0),
        };
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..12].copy_from_slice(&old.to_le_bytes());
        bytes[12..].copy_from_slice(&new.to_le_bytes());
        bytes
    }

    /// The first of these slots, and those behind it which belong to it.
    fn decode(slots: &mut &[u8]) -> Option<Entry> {
        let (bytes, behind) = slots.split_at_checked(ENTRY)?;
        *slots = behind;
        let (first, sums) = bytes.split_first_chunk::<8>()?;
        let (old, new) = sums.split_first_chunk::<4>()?;
        let new: [u8; 4] = new.try_into().ok()?;
        let first = u64::from_le_bytes(*first);
        if first & IS_WIPE != 0 {
            return Some(Entry::Wiped { extent: u32::try_from(first & NUMBER).ok()? });
        }
        if first & IS_MARK != 0 {
            return Some(Entry::Mark { region: first & NUMBER });
        }
        if first & IS_MARKED != 0 {
            return Some(Entry::Marked { marks: u32::try_from(first & NUMBER).ok()? });
        }
        if first & (IS_INTENT | IS_CLEAN) != 0 {
            let region = first & NUMBER;
            let is_intent = first & IS_INTENT != 0;
            return Some(if is_intent { Entry::Intent { region } } else { Entry::Clean { region } });
        }
        let noted = |sum: [u8; 4], data: u64, known: u64| Noted {
            sum: u32::from_le_bytes(sum),
            is_data: first & data != 0,
            is_known: first & known != 0,
        };
        let (old, new) = (noted(*old, OLD_DATA, OLD_KNOWN), noted(new, NEW_DATA, NEW_KNOWN));
        let auth = match first & HAS_AUTH {
            0 => NO_AUTH,
            _ => {
                let (auth, behind) = slots.split_at_checked(AUTH_SLOTS * ENTRY)?;
                *slots = behind;
                *auth.first_chunk()?
            }
        };
        Some(Entry::Block { block: first & NUMBER, old, new, auth })
    }
}

/// Divides entries among pages, in their order.
pub fn pages_of(entries: &[Entry]) -> impl Iterator<Item = &[Entry]> {
    let mut rest = entries;
    std::iter::from_fn(move || {
        let mut slots = 0;
        let fits = |entry: &&Entry| {
            slots += entry.slots();
            slots <= LOG_SLOTS_MAX
        };
        let (page, behind) = rest.split_at(rest.iter().take_while(fits).count());
        rest = behind;
        (!page.is_empty()).then_some(page)
    })
}

/// A page of the log, of entries that take at most [`LOG_SLOTS_MAX`] slots; `nth`: which of its batch.
#[must_use]
pub fn seal_page(here: LogPage, nth: u32, entries: &[Entry], crc: impl Fn(&[u8]) -> u32) -> Vec<u8> {
    let slots: usize = entries.iter().map(Entry::slots).sum();
    assert!(slots <= LOG_SLOTS_MAX, "as many as fit");
    let mut page = vec![0; PAGE as usize];
    page[4..8].copy_from_slice(&MAGIC.to_le_bytes());
    page[8..16].copy_from_slice(&here.number.to_le_bytes());
    page[16..20].copy_from_slice(&(slots as u32).to_le_bytes());
    page[20..24].copy_from_slice(&nth.to_le_bytes());
    page[24..32].copy_from_slice(&here.round.to_le_bytes());
    let mut at = HEAD;
    for entry in entries {
        page[at..at + ENTRY].copy_from_slice(&entry.encode());
        if let Some(auth) = entry.auth() {
            page[at + ENTRY..][..AUTH_BYTES].copy_from_slice(auth);
        }
        at += entry.slots() * ENTRY;
    }
    let sum = crc(&page[4..]);
    page[..4].copy_from_slice(&sum.to_le_bytes());
    page
}

/// What a page says; None: it is not this one, or was not written in full.
#[must_use]
pub fn open_page(page: &[u8], here: LogPage, crc: impl Fn(&[u8]) -> u32) -> Option<Page> {
    let word = |at: usize| page.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
    if word(4)? != MAGIC || crc(page.get(4..)?) != word(0)? {
        return None;
    }
    let long = |at: usize| page.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    if (long(8)?, long(24)?) != (here.number, here.round) {
        return None;
    }
    let count = usize::try_from(word(16)?).ok().filter(|count| *count <= LOG_SLOTS_MAX)?;
    let mut slots = page.get(HEAD..HEAD + count * ENTRY)?;
    let mut entries = Vec::new();
    while !slots.is_empty() {
        entries.push(Entry::decode(&mut slots)?);
    }
    Some(Page { nth: word(20)?, entries })
}

#[cfg(test)]
mod tests {
    use super::super::sum;
    use super::*;

    #[test]
    fn a_page_is_read_back_and_one_that_was_torn_is_none() {
        let old = Noted { sum: 1, is_data: false, is_known: true };
        let new = Noted { sum: u32::MAX, is_data: true, is_known: false };
        let auth = std::array::from_fn(|at| at as u8 + 200);
        let all: Vec<Entry> = (0..LOG_SLOTS_MAX as u64)
            .map(|nth| match nth % 8 {
                0 => Entry::Wiped { extent: nth as u32 },
                2 => Entry::Mark { region: nth << 20 },
                3 => Entry::Marked { marks: nth as u32 },
                4 => Entry::Intent { region: nth << 20 },
                5 => Entry::Clean { region: nth },
                1 => Entry::Block { block: nth << 20, old, new, auth: NO_AUTH },
                6 => Entry::Block { block: nth << 20, old, new, auth },
                _ => Entry::Block { block: nth, old: new, new: old, auth: NO_AUTH },
            })
            .collect();
        let pages: Vec<&[Entry]> = pages_of(&all).collect();
        assert_eq!((pages.len(), pages.concat()), (2, all.clone()), "those with a tag take more room");
        let entries = pages[0].to_vec();
        let slots: usize = entries.iter().map(Entry::slots).sum();
        assert!((LOG_SLOTS_MAX - AUTH_SLOTS..=LOG_SLOTS_MAX).contains(&slots), "{slots}");
        let here = LogPage { number: 77, round: 4 };
        let page = seal_page(here, 3, &entries, sum);
        assert_eq!(open_page(&page, here, sum), Some(Page { nth: 3, entries }));
        for other in [LogPage { number: 78, ..here }, LogPage { round: 3, ..here }] {
            assert_eq!(open_page(&page, other, sum), None);
        }
        for at in [0, 5, 9, 17, 40, 4095] {
            let mut torn = page.clone();
            torn[at] ^= 1;
            assert_eq!(open_page(&torn, here, sum), None, "byte {at}");
        }
        assert_eq!(open_page(&page[..100], here, sum), None);
        let empty = Some(Page { nth: 0, entries: vec![] });
        assert_eq!(open_page(&seal_page(here, 0, &[], sum), here, sum), empty);
    }

    #[test]
    fn an_entry_of_a_block_without_a_tag_is_what_it_was_before_there_were_any() {
        let noted = Noted { sum: 7, is_data: true, is_known: true };
        let entry = Entry::Block { block: 5, old: noted, new: noted, auth: NO_AUTH };
        let here = LogPage { number: 1, round: 1 };
        let page = seal_page(here, 0, &[entry], sum);
        let flags = OLD_DATA | OLD_KNOWN | NEW_DATA | NEW_KNOWN;
        assert_eq!(page[HEAD..HEAD + 8], (5 | flags).to_le_bytes());
        assert!(page[HEAD + ENTRY..].iter().all(|byte| *byte == 0));
        // One that lacks slots which it names is none.
        let mut cut =
            seal_page(here, 0, &[Entry::Block { block: 5, old: noted, new: noted, auth: [1; 28] }], sum);
        cut[16] = 2;
        let crc = sum(&cut[4..]);
        cut[..4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(open_page(&cut, here, sum), None);
    }
}
