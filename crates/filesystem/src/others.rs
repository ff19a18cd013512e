//! File systems and encryption that are recognised and not mapped.
//!
//! Owns: their signatures. Called by `recognise`. Tests: here.

use crate::Kind;
use crate::fields::has;

/// BitLocker To Go writes a FAT file system in front, and this in its boot sector.
const TO_GO: &[u8] =
    &[0x3b, 0xd6, 0x67, 0x49, 0x29, 0x2e, 0xd8, 0x4a, 0x83, 0x99, 0xf6, 0xa3, 0x39, 0xe3, 0xd0, 0x01];

const SIGNATURES: [(usize, &[u8], Kind); 10] = [
    (3, b"-FVE-FS-", Kind::BitLocker),
    (424, TO_GO, Kind::BitLocker),
    (0, b"LUKS\xba\xbe", Kind::Luks),
    (3, b"ReFS\0\0\0\0", Kind::ReFs),
    (0, b"XFSB", Kind::Xfs),
    (32, b"NXSB", Kind::Apfs),
    (1024, b"H+\0\x04", Kind::HfsPlus),
    (1024, b"HX\0\x05", Kind::HfsPlus),
    (1024, b"H+\0\x05", Kind::HfsPlus),
    (0x1_0040, b"_BHRfS_M", Kind::Btrfs),
];

pub(crate) fn recognise(head: &[u8]) -> Option<Kind> {
    let found = SIGNATURES.iter().find(|(at, signature, _)| has(head, *at, signature));
    found.map(|(_, _, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MapError, map};

    #[test]
    fn each_is_named_and_not_mapped() {
        for (at, signature, kind) in SIGNATURES {
            let mut disk = vec![0; 80 << 10];
            disk[at..at + signature.len()].copy_from_slice(signature);
            let read = |offset: u64, room: &mut [u8]| {
                let from = usize::try_from(offset).expect("small");
                room.copy_from_slice(&disk[from..from + room.len()]);
                Ok(())
            };
            let made = map(&read, 0..disk.len() as u64, &mut |_| ());
            let error = made.expect_err("there is no map of it");
            assert!(matches!(error, MapError::NotMapped { kind: found } if found == kind), "{error}");
            assert!(error.to_string().contains(&kind.to_string()), "{error}");
        }
    }
}
