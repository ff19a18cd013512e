//! Disks that lie: boot sectors that are believed, with noise behind them. Each map ends, reads no byte
//! outside the disk and no more than its limit, and does not panic.

use std::cell::Cell;

use proptest::prelude::*;

use crate::{map, partitions};

const DISK_BYTES: usize = 256 << 10;
/// Twice the disk and what is spared, as `walk` says, and what tells the file systems apart.
const READ_BYTES_MAX: u64 = 2 * DISK_BYTES as u64 + (16 << 20) + (68 << 10);

fn put(disk: &mut [u8], at: usize, bytes: &[u8]) {
    disk[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A beginning that is believed.
fn begin(disk: &mut [u8], kind: u8) {
    match kind {
        0 => {
            put(disk, 3, b"NTFS    ");
            put(disk, 11, &[0, 2, 8]);
            put(disk, 48, &4_u64.to_le_bytes());
            put(disk, 56, &2_u64.to_le_bytes());
            put(disk, 64, &[246]);
        }
        1 => {
            put(disk, 1024, &[0; 300]);
            put(disk, 1024 + 4, &256_u32.to_le_bytes());
            put(disk, 1024 + 20, &1_u32.to_le_bytes());
            put(disk, 1024 + 32, &64_u32.to_le_bytes());
            put(disk, 1024 + 40, &64_u32.to_le_bytes());
            put(disk, 1024 + 56, &[0x53, 0xef]);
        }
        2 => {
            let boot = [0xeb, 0, 0x90, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 1, 0, 1, 64, 0, 0, 2, 0xf8, 2, 0];
            put(disk, 0, &boot);
            put(disk, 510, &[0x55, 0xaa]);
        }
        3 => {
            put(disk, 3, b"EXFAT   ");
            let numbers = [1_u32, 1, 2, 400, 2];
            for (at, number) in (80..).step_by(4).zip(numbers) {
                put(disk, at, &number.to_le_bytes());
            }
            put(disk, 108, &[9, 0, 1]);
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn noise_ends_in_bounded_reads(seed in any::<u64>(), kind in 0_u8..5, narrow in any::<bool>()) {
        let mut state = seed | 1;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Small numbers name places that there are.
            if narrow { (state as u8) & (state >> 8) as u8 & (state >> 16) as u8 } else { state as u8 }
        };
        let mut disk: Vec<u8> = (0..DISK_BYTES).map(|_| noise()).collect();
        begin(&mut disk, kind);
        let bytes = Cell::new(0);
        let read = |offset: u64, room: &mut [u8]| {
            let from = usize::try_from(offset).expect("small");
            room.copy_from_slice(&disk[from..from + room.len()]);
            bytes.set(bytes.get() + room.len() as u64);
            Ok(())
        };
        partitions(&read, DISK_BYTES as u64).expect("it can be read");
        bytes.set(0);
        let mut inside = true;
        let made = map(&read, 0..DISK_BYTES as u64, &mut |runs| {
            inside &= runs.iter().all(|run| run.bytes > 0 && run.end() <= DISK_BYTES as u64);
        });
        prop_assert!(inside);
        prop_assert!(bytes.get() <= READ_BYTES_MAX, "{} bytes", bytes.get());
        if let Err(error) = made {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
