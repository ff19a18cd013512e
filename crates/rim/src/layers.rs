//! Memory that extents of one volume share: layers behind a donor's arena, which have what was written.
//!
//! Owns where each layer is mapped, which of its blocks take memory and which are known, and how many blocks
//! may come. Never: the bytes, or their checksums (`arena`). Invariants: a layer takes memory for its tables
//! when something is first written to it; it stays mapped then, so that a reply on its way finds it; and all
//! layers of an extent together hold no more blocks than an extent has, those on their way included.
//! Called by `arena`. Tests: `arena/tests.rs`.

use crate::mapping::Mapping;
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, LAYERS_MAX};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Behind the first, which is the arena's own.
const OTHERS: u64 = LAYERS_MAX as u64 - 1;
const WORDS: usize = (EXTENT_BLOCKS / 64) as usize;

static NOTHING: AtomicU64 = AtomicU64::new(0);

/// A bit for each block of so many bytes.
pub(crate) fn bits(bytes: u64) -> Box<[AtomicU64]> {
    (0..bytes / BLOCK_BYTES / 64).map(|_| AtomicU64::new(0)).collect()
}

#[derive(Debug)]
struct Layer {
    mapping: Mapping,
    presence: Box<[AtomicU64]>,
    known: Box<[AtomicU64]>,
}

#[derive(Debug)]
pub(crate) struct Layers {
    /// By extent, and then by layer.
    all: Box<[OnceLock<Layer>]>,
    /// Blocks on their way into an extent.
    coming: Mutex<BTreeMap<u32, u64>>,
    drops: AtomicU64,
    locks: AtomicBool,
}

/// Room for blocks that a write may bring, until it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    extent: u32,
    blocks: u64,
}

impl Layers {
    pub(crate) fn new(extents: u32) -> Layers {
        let all = (0..u64::from(extents) * OTHERS).map(|_| OnceLock::new()).collect();
        Layers { all, coming: Mutex::default(), drops: AtomicU64::new(0), locks: AtomicBool::new(false) }
    }

    /// The number of an extent's layer, from 1 on, among all.
    pub(crate) fn extent(extent: u64, layer: u32) -> u64 {
        extent * OTHERS + u64::from(layer - 1)
    }

    /// What comes is locked from now on, as far as this process may: it is no part of what it was told to
    /// lend.
    pub(crate) fn lock(&self) {
        self.locks.store(true, Ordering::Relaxed);
    }

    fn at(&self, offset: u64) -> Option<&Layer> {
        let number = usize::try_from(offset / EXTENT_BYTES).ok()?;
        self.all.get(number)?.get()
    }

    /// Whether there is anything of the layer that an offset behind the arena lies in; None: in the arena.
    pub(crate) fn has(&self, offset: Option<u64>) -> bool {
        offset.is_none_or(|offset| self.at(offset).is_some())
    }

    /// Makes the layer at an offset behind the arena, if it is not there.
    ///
    /// # Errors
    /// The kernel gives no address space for it.
    pub(crate) fn ensure(&self, memory: &OwnedFd, arena_bytes: u64, offset: u64) -> io::Result<()> {
        let number = offset / EXTENT_BYTES;
        let place = usize::try_from(number).ok().and_then(|number| self.all.get(number));
        let place = place.ok_or(io::ErrorKind::InvalidInput)?;
        if place.get().is_some() {
            return Ok(());
        }
        let bytes = usize::try_from(EXTENT_BYTES).map_err(io::Error::other)?;
        let mapping = Mapping::of_file(memory, arena_bytes + number * EXTENT_BYTES, bytes)?;
        if self.locks.load(Ordering::Relaxed) {
            let _ = mapping.lock_as_it_comes();
        }
        // Another may have been faster.
        let _ = place.set(Layer { mapping, presence: bits(EXTENT_BYTES), known: bits(EXTENT_BYTES) });
        Ok(())
    }

    /// The address of a byte behind the arena, or of the end of its layer.
    pub(crate) fn address(&self, offset: u64) -> *mut u8 {
        let layer = self.at(offset).expect("a layer is made before it is used");
        let inside = usize::try_from(offset % EXTENT_BYTES).expect("mapped, so it fits");
        layer.mapping.start().as_ptr().wrapping_add(inside)
    }

    /// A word of the bits of what takes memory.
    pub(crate) fn presence(&self, word: usize) -> &AtomicU64 {
        let layer = self.all.get(word / WORDS).and_then(OnceLock::get);
        layer.map_or(&NOTHING, |layer| &layer.presence[word % WORDS])
    }

    /// A word of the bits of what is known.
    pub(crate) fn known(&self, word: usize) -> &AtomicU64 {
        let layer = self.all.get(word / WORDS).and_then(OnceLock::get);
        layer.map_or(&NOTHING, |layer| &layer.known[word % WORDS])
    }

    /// Blocks that take memory, in all.
    pub(crate) fn blocks(&self) -> u64 {
        self.all.iter().filter_map(OnceLock::get).map(Layer::blocks).sum()
    }

    fn places(&self, extent: u32) -> std::ops::Range<usize> {
        let place = |extent: u64| usize::try_from(extent * OTHERS).expect("as many as were made");
        place(extent.into())..place(u64::from(extent) + 1)
    }

    /// The same of one extent.
    pub(crate) fn blocks_of(&self, extent: u32) -> u64 {
        self.all[self.places(extent)].iter().filter_map(OnceLock::get).map(Layer::blocks).sum()
    }

    /// Where its layers begin that were made, behind the arena.
    pub(crate) fn of_extent(&self, extent: u32) -> impl Iterator<Item = u64> {
        let places = self.places(extent);
        places.filter(|place| self.all[*place].get().is_some()).map(|place| place as u64 * EXTENT_BYTES)
    }

    // Room.

    /// Room for new blocks, of an extent that holds so many.
    ///
    /// # Errors
    /// `StorageFull`.
    pub(crate) fn take_room(&self, extent: u32, blocks: u64, held: impl Fn() -> u64) -> io::Result<Room> {
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        let of_extent = coming.entry(extent).or_default();
        if blocks > 0 && *of_extent + blocks + held() > EXTENT_BLOCKS {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *of_extent += blocks;
        Ok(Room { extent, blocks })
    }

    /// A write has ended that `settle` has held from then on.
    pub(crate) fn settled(&self, room: Room, settle: impl FnOnce()) {
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        settle();
        if let Some(of_extent) = coming.get_mut(&room.extent) {
            *of_extent -= room.blocks;
        }
        coming.retain(|_, blocks| *blocks > 0);
    }

    // What was dropped.

    pub(crate) fn drops(&self) -> u64 {
        self.drops.load(Ordering::SeqCst)
    }

    pub(crate) fn count_drop(&self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

impl Layer {
    fn blocks(&self) -> u64 {
        self.presence.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }
}
