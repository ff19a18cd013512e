//! Tests of a donor's memory. Never: anything over a wire (`tests/donor_wire.rs`).
#![allow(clippy::unwrap_used)]

use super::*;

fn presence(arena: &Arena, offset: u64, len: u64) -> Vec<(u64, bool)> {
    let mut all = Vec::new();
    arena.runs(offset, len, |len, present| all.push((len, present)));
    all
}

fn wrong_blocks(arena: &Arena) -> Vec<u64> {
    let (mut wrong, mut at) = (Vec::new(), 0);
    runs(
        0,
        arena.bytes(),
        BLOCK_BYTES,
        |block| arena.is_right(block),
        |len, is_right| {
            if !is_right {
                wrong.extend((at / BLOCK_BYTES)..(at + len) / BLOCK_BYTES);
            }
            at += len;
        },
    );
    wrong
}

/// As bad memory does.
fn flip(arena: &Arena, offset: u64) {
    let byte = byte(arena, offset) ^ 1;
    arena.copy_in(offset, &[byte]);
}

#[test]
fn every_block_has_the_checksum_of_what_was_written() {
    let arena = Arena::new(1).unwrap();
    arena.write(100, &[7; 9000]);
    arena.write(8192, &[0; 4096]);
    arena.zero(4000, 200, false);
    arena.zero(12288, 4096, true);
    arena.zero(12289, 1, false);
    arena.write(20480, &[0; 8192]);
    arena.write(20481, b"x");
    assert!(wrong_blocks(&arena).is_empty());
    let sums: Vec<u32> = arena.sums(8191, 2).collect();
    let mut second = [7; 4096];
    second[..104].fill(0);
    assert_eq!(sums, [code::crc32c(&second), ZERO_BLOCK_CRC]);
    arena.wipe(&[0]);
    assert!(wrong_blocks(&arena).is_empty());
    assert!(arena.sums(0, arena.bytes()).all(|sum| sum == ZERO_BLOCK_CRC));
}

#[test]
fn what_is_wrong_stays_so_until_it_is_written_as_a_whole() {
    let arena = Arena::new(1).unwrap();
    arena.write(0, &[5; 16384]);
    flip(&arena, 4096 + 17);
    flip(&arena, 8192 + 17);
    // An absent block that holds something after all.
    flip(&arena, 40960);
    assert_eq!(wrong_blocks(&arena), [1, 2]);
    arena.write(4000, &[6; 100]);
    arena.write(4096 + 1000, &[6; 4096]);
    arena.zero(4096 + 4000, 200, false);
    assert_eq!(wrong_blocks(&arena), [1, 2], "a part of it was written");
    arena.write(4096, &[6; 4096]);
    arena.zero(8192, 4096, false);
    assert!(wrong_blocks(&arena).is_empty());
}

#[test]
fn what_was_kept_is_put_back_as_it_was() {
    let arena = Arena::new(1).unwrap();
    arena.write(0, &[5; 8192]);
    flip(&arena, 17);
    let kept = arena.keep(0, 16384).unwrap();
    arena.write(0, &[6; 16384]);
    arena.put_back(0, &kept);
    assert_eq!(presence(&arena, 0, 16384), [(8192, true), (8192, false)]);
    assert_eq!((byte(&arena, 4096), byte(&arena, 8192)), (5, 0));
    assert_eq!(wrong_blocks(&arena), [0], "what was wrong is wrong again");
    assert!(arena.keep(0, 4097).is_none() && arena.keep(1, 4096).is_none());
}

fn byte(arena: &Arena, offset: u64) -> u8 {
    // SAFETY: inside the arena of the test, which has one thread.
    unsafe { arena.address(offset).read() }
}

#[test]
fn zeros_take_no_memory_and_partial_blocks_count_whole() {
    let arena = Arena::new(1).unwrap();
    arena.write(4096, &[0; 8192]);
    assert_eq!(arena.bytes_used(), 0);
    arena.write(100, b"x");
    assert_eq!(arena.bytes_used(), 4096);
    assert_eq!(presence(&arena, 0, 12288), [(4096, true), (8192, false)]);
    arena.write(0, &[0; 4096]);
    assert_eq!(byte(&arena, 100), 0, "zeros over a present block are written");
}

#[test]
fn zeroing_spares_what_is_beside_the_range() {
    let arena = Arena::new(1).unwrap();
    arena.write(0, &[7; 16384]);
    arena.zero(100, 8192, false);
    assert_eq!(presence(&arena, 0, 16384), [(4096, true), (4096, false), (8192, true)]);
    assert_eq!((byte(&arena, 99), byte(&arena, 100), byte(&arena, 8291), byte(&arena, 8292)), (7, 0, 0, 7));
    arena.zero(10, 20, false);
    assert_eq!((byte(&arena, 9), byte(&arena, 10), byte(&arena, 29), byte(&arena, 30)), (7, 0, 0, 7));
    arena.zero(4096, 4096, true);
    assert_eq!(presence(&arena, 0, 16384), [(16384, true)]);
}

/// What the kernel has locked of this process's memory, by page and not by mapping.
fn locked_bytes(arena: &Arena) -> u64 {
    let begin = format!("{:x}-", arena.address(0) as usize);
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mine = maps.lines().skip_while(|line| !line.starts_with(&begin));
    let kib = mine.into_iter().find_map(|line| line.strip_prefix("Locked:")).unwrap();
    kib.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn what_is_locked_is_given_back_when_it_is_wiped() {
    let arena = Arena::new(2).unwrap();
    arena.write(0, &[7; 8192]);
    assert!(arena.lock(), "needs to lock 128 MiB: raise `ulimit -l`");
    assert_eq!(locked_bytes(&arena), 8192, "and no page comes by that");
    let page = HUGE_PAGE_BYTES as u64;
    arena.write(EXTENT_BYTES, &vec![1; 2 * HUGE_PAGE_BYTES]);
    assert_eq!(locked_bytes(&arena), 8192 + 2 * page);
    let first = usize::try_from(EXTENT_BYTES / page).unwrap();
    assert_eq!(arena.collapse(first).ok(), Some(true), "huge pages can be locked, too");
    // It is looked at again, so it is there again: as a huge page.
    assert_eq!(byte(&arena, EXTENT_BYTES), 1);
    arena.zero(EXTENT_BYTES + page, 4096, false);
    arena.wipe(&[0, 1]);
    assert_eq!((locked_bytes(&arena), arena.bytes_resident()), (0, 0));
    arena.write(0, &[7; 4096]);
    assert_eq!(locked_bytes(&arena), 4096);
}

#[test]
fn a_wiped_extent_is_absent_and_zero() {
    let arena = Arena::new(2).unwrap();
    arena.write(EXTENT_BYTES + 5, b"secret");
    arena.dirty().mark(EXTENT_BYTES + 5, 6);
    arena.wipe(&[1]);
    arena.dirty().runs(0, arena.bytes(), |_, dirty| assert!(!dirty));
    assert_eq!(arena.bytes_used(), 0);
    assert_eq!(byte(&arena, EXTENT_BYTES + 5), 0);
}

#[test]
fn what_came_otherwise_than_it_was_sent_is_wrong_for_all_until_it_is_sent_again() {
    let arena = Arena::new(1).unwrap();
    let sent = [[7; 4096], [8; 4096]].concat();
    let digest = |bytes: &[u8]| Digest { sums: Digest::of_blocks(2, bytes.chunks(4096).map(code::crc32c)) };
    let said = Said { digest: digest(&sent), first: 2 };
    let land = |came: &[u8]| {
        let begun = arena.begin_write(8192, 8192);
        arena.copy_in(8192, came);
        arena.wrote(begun, 8192, None, Some(said))
    };
    let mut came = sent.clone();
    came[5000] ^= 4;
    assert!(!land(&came));
    assert_eq!(wrong_blocks(&arena), [2, 3]);
    assert!(land(&sent) && wrong_blocks(&arena).is_empty());
}

#[test]
fn layers_share_the_memory_of_an_extent_and_no_more_comes_than_that() {
    let arena = Arena::new(2).unwrap();
    let address =
        |layer: u32, local: u32| cheetah_core::layout::address(1, layer * (EXTENT_BYTES as u32) + local);
    let write = |address: u64, bytes: &[u8]| {
        let room = arena.take_room(address, bytes.len() as u64)?;
        let place = arena.offset_of(address);
        let begun = arena.begin_write(place, bytes.len() as u64);
        arena.copy_in(place, bytes);
        arena.wrote(begun, bytes.len() as u64, Some(room), None);
        Ok::<u64, io::Error>(place)
    };
    assert_eq!(
        arena.first_unknown(arena.offset_of(address(5, 0)), 4096),
        Some(arena.offset_of(address(5, 0)))
    );
    let half = vec![7; EXTENT_BYTES as usize / 2];
    let first = write(address(0, 0), &half).unwrap();
    let last = write(address(62, 4096), &half).unwrap();
    assert_eq!((first, arena.bytes_used()), (EXTENT_BYTES, EXTENT_BYTES));
    assert_eq!((byte(&arena, last), arena.first_unknown(last, 4096)), (7, None));
    assert_eq!(arena.sums(last, 4096).next(), Some(code::crc32c(&[7; 4096])));
    let full = write(address(3, 0), &[1; 4096]).map_err(|error| error.kind());
    assert_eq!(full, Err(io::ErrorKind::StorageFull), "all of it is taken");
    assert!(write(address(62, 8192), &[2; 8192]).is_ok(), "what is there can be written");
    let before = arena.drops();
    arena.drop_blocks(last, 12288 + 100);
    assert!(arena.drops() > before);
    assert_eq!((arena.first_unknown(last, 4096), byte(&arena, last)), (Some(last), 0));
    assert_eq!(arena.first_unknown(last + 12288, 4096), None, "a block of which a part is named stays");
    let third = write(address(3, 0), &[1; 4096]).unwrap();
    assert_eq!(byte(&arena, third), 1);
    assert!(wrong_blocks(&arena).is_empty());
    arena.wipe(&[1]);
    assert_eq!((arena.bytes_used(), arena.bytes_resident()), (0, 0));
    assert_eq!((arena.first_unknown(third, 1), byte(&arena, third)), (Some(third), 0));
}
