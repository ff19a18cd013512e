//! Nonces and authentication tags of blocks on disks: those of encrypted volumes, which every second extent
//! here is taken for.
//!
//! Owns which a block has: it follows from its content, and a checksum covers both, so one that goes with
//! other content is found where a block is looked at. Never: the wire, or memory, where none are. Called by
//! `on_disk`, `write_back`, `disk_words`, `media`.

use crate::bytes::{BLOCK, Memory, sum};
use crate::disk::{Content, SimDisk};
use cheetah_core::checksum::ZERO_BLOCK_CRC;
use cheetah_core::disk::{Auth, Journal, NO_AUTH, Noted, Pages, auth_sum};
use cheetah_core::limits::EXTENT_BLOCKS;

/// Of a block with this content.
fn auth_of(block: u64, content: &[u8]) -> Auth {
    let is_encrypted = (block / EXTENT_BLOCKS).is_multiple_of(2);
    let bytes = sum(content).to_le_bytes();
    // None has none.
    if is_encrypted { std::array::from_fn(|at| bytes[at % 4] ^ at as u8 | 0x80) } else { NO_AUTH }
}

fn beside(auth: &Auth) -> u32 {
    auth_sum(auth, SimDisk::crc)
}

/// What is put down of a block as it is in memory.
pub(crate) fn noted_in(memory: &Memory, block: u64) -> (Noted, Auth) {
    let at = usize::try_from(block).expect("inside of the memory") * BLOCK;
    if !memory.has(block) {
        return (Noted { sum: ZERO_BLOCK_CRC, is_data: false, is_known: true }, NO_AUTH);
    }
    let auth = auth_of(block, &memory.get(at, BLOCK));
    (Noted { sum: memory.sums(at, BLOCK)[0] ^ beside(&auth), is_data: true, is_known: true }, auth)
}

/// What the disk knows of a block, as memory has it: the checksum of its content, or that it has none.
pub(crate) fn known(journal: &Journal<SimDisk>, block: u64) -> Option<u32> {
    let noted = journal.noted(block);
    noted.is_data.then(|| content_sum(journal, block))
}

/// The checksum of what a block should hold.
pub(crate) fn content_sum(journal: &Journal<SimDisk>, block: u64) -> u32 {
    journal.noted(block).sum ^ beside(&journal.auth(block))
}

/// Whether this is what the disk should have there.
pub(crate) fn fits(noted: Noted, auth: &Auth, found: Option<&Content>) -> bool {
    !noted.is_data || found.is_some_and(|found| sum(found) ^ beside(auth) == noted.sum)
}
