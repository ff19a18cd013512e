//! A checksum in the place of a magic: whoever takes a head for another one than was sent finds out.
//!
//! Owns: the seal of requests and of replies' heads, between a client and a server that agreed on
//! `cheetah:context`. Never: data, which has checksums of its own. Where a bit of a request's offset flips on
//! its way, its data would lie somewhere else with the right checksums, over what is there.
//! The seal is the magic XOR the CRC32C of all that follows it in the head, so it takes no bytes, and to put
//! it on is to take it off. Without it the magic is as in the protocol. Tests: below, `tests/sealed.rs`.

/// CRC32C (Castagnoli): polynomial 0x1edc6f41, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const MAGIC_BYTES: usize = 4;

/// Of each byte, followed by so many zeros as the number of its table.
const TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ POLYNOMIAL };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before: u32 = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

fn crc32c(bytes: &[u8]) -> u32 {
    let of = |table: usize, byte: u32| TABLES[table][(byte & 0xff) as usize];
    let (eights, rest) = bytes.as_chunks::<8>();
    let mut crc = !0;
    for [a, b, c, d, e, f, g, h] in eights {
        let low = crc ^ u32::from_le_bytes([*a, *b, *c, *d]);
        crc = of(7, low) ^ of(6, low >> 8) ^ of(5, low >> 16) ^ of(4, low >> 24);
        crc ^= of(3, u32::from(*e)) ^ of(2, u32::from(*f)) ^ of(1, u32::from(*g)) ^ of(0, u32::from(*h));
    }
    for byte in rest {
        crc = crc >> 8 ^ of(0, crc ^ u32::from(*byte));
    }
    !crc
}

/// Puts the seal on a head, or takes it off: a request's header, or of a reply all but the data of a READ.
pub fn seal(head: &mut [u8]) {
    if let Some((magic, rest)) = head.split_first_chunk_mut::<MAGIC_BYTES>() {
        *magic = (u32::from_be_bytes(*magic) ^ crc32c(rest)).to_be_bytes();
    }
}

/// What stands where a sealed head has its magic, without the seal.
pub(crate) fn magic_of(head: &[u8]) -> Option<u32> {
    let (magic, rest) = head.split_first_chunk::<MAGIC_BYTES>()?;
    Some(u32::from_be_bytes(*magic) ^ crc32c(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_checksum_of_iscsi() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let counted: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&counted), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn it_comes_off_as_it_went_on() {
        for len in 0..40 {
            let before: Vec<u8> = (0..len).map(|at: u8| at.wrapping_mul(7) + 1).collect();
            let mut head = before.clone();
            seal(&mut head);
            assert!(len <= 4 || head != before);
            assert_eq!(magic_of(&head), before.first_chunk().map(|magic| u32::from_be_bytes(*magic)));
            seal(&mut head);
            assert_eq!(head, before);
        }
    }
}
