//! Memory that extents of one volume share: where it lies, how much of it may come, and what is dropped.
//!
//! Owns the addresses of layers in an arena, and dropping blocks. Never: which (their client says so).
//! Invariant: who reads while blocks are dropped can tell (`drops`). Called by `donor`.
//! Tests: `arena/tests.rs`.

use super::{Arena, Room, bit, word_of};
use crate::layers::Layers;
use cheetah_core::checksum::ZERO_BLOCK_CRC;
use cheetah_core::layout::layer_of;
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES};
use std::io;
use std::sync::atomic::Ordering;

impl Arena {
    /// Where in this memory what a client calls by this address lies.
    pub(crate) fn offset_of(&self, address: u64) -> u64 {
        match layer_of(address) {
            (0, offset) => offset,
            (layer, offset) => {
                let (extent, inside) = (offset / EXTENT_BYTES, offset % EXTENT_BYTES);
                self.bytes + Layers::extent(extent, layer) * EXTENT_BYTES + inside
            }
        }
    }

    /// Before a write of a volume whose extents share memory: takes room for blocks that it brings.
    ///
    /// # Errors
    /// `StorageFull`: all of the extent is in use; others: there is no memory to note it.
    pub(crate) fn take_room(&self, address: u64, len: u64) -> io::Result<Room> {
        let (offset, (_, inside)) = (self.offset_of(address), layer_of(address));
        self.make_layer(offset)?;
        let blocks = offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES);
        let extent = u32::try_from(inside / EXTENT_BYTES).map_err(io::Error::other)?;
        let new = blocks.filter(|block| !self.is_present(*block)).count() as u64;
        let held = || self.present_in(extent);
        self.layers.take_room(extent, new, held)
    }

    /// Has a place for what is to be known of the range that begins there.
    ///
    /// # Errors
    /// There is no memory for that.
    pub(crate) fn make_layer(&self, offset: u64) -> io::Result<()> {
        match offset.checked_sub(self.bytes) {
            Some(behind) => self.layers.ensure(&self.memory, self.bytes, behind),
            None => Ok(()),
        }
    }

    pub(crate) fn give_back_room(&self, room: Room) {
        self.layers.settled(room, || ());
    }

    /// Blocks that are present in all layers of an extent.
    fn present_in(&self, extent: u32) -> u64 {
        let words =
            word_of(u64::from(extent) * EXTENT_BLOCKS)..word_of((u64::from(extent) + 1) * EXTENT_BLOCKS);
        let first = self.presence[words].iter().map(|word| word.load(Ordering::Acquire).count_ones());
        u64::from(first.sum::<u32>()) + self.layers.blocks_of(extent)
    }

    /// A number that is another one when blocks were dropped since.
    pub(crate) fn drops(&self) -> u64 {
        self.layers.drops()
    }

    /// Makes the whole blocks of the range absent: nobody has said what they hold.
    pub(crate) fn drop_blocks(&self, offset: u64, len: u64) {
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(BLOCK_BYTES), end / BLOCK_BYTES * BLOCK_BYTES);
        if first >= last || !self.layers.has(offset.checked_sub(self.bytes)) {
            return;
        }
        self.writing.begin(first, last);
        let blocks = first / BLOCK_BYTES..last / BLOCK_BYTES;
        // Whoever reads meanwhile sees one of the two numbers change.
        self.layers.count_drop();
        for block in blocks.clone() {
            self.known(block).fetch_and(!bit(block), Ordering::AcqRel);
            self.word(block).fetch_and(!bit(block), Ordering::AcqRel);
        }
        self.punch(&(first..last));
        self.auths.clear(blocks.start, blocks.end);
        blocks.for_each(|block| self.contexts.set(block, ZERO_BLOCK_CRC));
        self.layers.count_drop();
        self.writing.end(first, last);
    }
}
