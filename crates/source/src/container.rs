//! What is not a disk though it is about one, and is not read: some containers of images, and archives.
//!
//! Owns: telling them by content (the first and last bytes). Never: reading them. Invariant: who loads one as
//! it stands has a volume with the right hashes and no file system on it, so a disk is never taken for one of
//! these: each signature is one that no boot sector or file system begins with. Called by `open`. Tests:
//! below, `lab/tests/evidence.rs`.

use crate::{Source, SourceError, past_errors};
use std::fmt;

/// How much of a source's beginning and end it takes to tell.
const HEAD_BYTES: usize = 4 << 10;
/// A zip's last record and its comment have at most so much.
const TAIL_BYTES: usize = (64 << 10) + 22;

/// What a source is, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Container {
    /// With its article: `an E01 image (EnCase, EWF)`.
    pub what: &'static str,
    pub way_out: &'static str,
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and not a disk: {}", self.what, self.way_out)
    }
}

const FILES: &str = "it holds files and no disk; extract those that are wanted";
pub(crate) const QEMU: &str = "`qemu-nbd --read-only --connect /dev/nbd0 FILE` shows what it holds as /dev/nbd0, which can be loaded \
                    (`qemu-img convert -O raw FILE disk.raw` copies it)";
const UNPACK: &str = "unpack it and load what it holds";

const AFF4: Container = Container {
    what: "an AFF4 image",
    way_out: "export the image stream in it as a raw file, and load that",
};
const ZIP: Container = Container { what: "a zip archive", way_out: UNPACK };

/// Where the bytes of a signature stand.
enum At {
    Start(usize),
    /// So many bytes before the end.
    End(usize),
}

struct Signature {
    at: At,
    bytes: &'static [u8],
    container: Container,
}

const fn starts(bytes: &'static [u8], what: &'static str, way_out: &'static str) -> Signature {
    Signature { at: At::Start(0), bytes, container: Container { what, way_out } }
}

const SIGNATURES: &[Signature] = &[
    // libewf, "Expert Witness Compression Format (EWF)" and "... version 2 (EWF2)", section file header.
    starts(b"LVF\x09\x0d\x0a\xff\x00", "an L01 image (EnCase, logical)", FILES),
    starts(b"LEF2\x0d\x0a\x81\x00", "an Lx01 image (EnCase, logical)", FILES),
    // AFFLIB, afflib.h: AF_HEADER.
    starts(
        b"AFF10\x0d\x0a\x00",
        "an AFF image",
        "`affuse FILE DIR` shows what it holds as a raw file in DIR",
    ),
    // FTK Imager's logical images: pyad1 and ad1tools name the same bytes.
    starts(b"ADSEGMENTEDFILE\x00", "an AD1 image (AccessData, logical)", FILES),
    // QEMU, docs/interop/qed_spec.rst.
    starts(b"QED\x00", "a QED image (QEMU)", QEMU),
    // Older extents of VMware's ESX servers, as in QEMU, block/vmdk.c.
    starts(b"COWD", "a VMDK image (VMware)", QEMU),
    starts(b"\xbe\xba\xfe\xca\x00\x00\x00\x00", "a VMDK image (VMware)", QEMU),
    // VirtualBox and Parallels, as in QEMU: block/vdi.c, docs/interop/parallels.rst.
    Signature {
        at: At::Start(0x40),
        bytes: b"\x7f\x10\xda\xbe",
        container: Container { what: "a VDI image (VirtualBox)", way_out: QEMU },
    },
    starts(b"WithoutFreeSpace", "an HDD image (Parallels)", QEMU),
    starts(b"WithouFreSpacExt", "an HDD image (Parallels)", QEMU),
    // QEMU, block/dmg.c: the trailer of a UDIF image.
    Signature {
        at: At::End(512),
        bytes: b"koly\x00\x00\x00\x04",
        container: Container { what: "a DMG image (Apple, UDIF)", way_out: QEMU },
    },
    // RFC 1952 (deflate is the only method); file(1) for compress.
    starts(b"\x1f\x8b\x08", "compressed with gzip", "`gunzip --keep FILE`, and load what comes of it"),
    starts(b"\x1f\x9d", "compressed with compress", "`gunzip --keep FILE`, and load what comes of it"),
    // The tukaani project's "The .xz File Format", 2.1.1.1.
    starts(b"\xfd7zXZ\x00", "compressed with xz", "`unxz --keep FILE`, and load what comes of it"),
    // RFC 8878: a frame.
    starts(b"\x28\xb5\x2f\xfd", "compressed with zstd", "`unzstd FILE`, and load what comes of it"),
    // LZ4 Frame Format Description; lzip's manual, "File format".
    starts(b"\x04\x22\x4d\x18", "compressed with lz4", "`unlz4 FILE`, and load what comes of it"),
    starts(b"LZIP\x01", "compressed with lzip", "`lzip --decompress --keep FILE`, and load what comes of it"),
    // 7-Zip, 7zFormat.txt; RARLAB's technote.
    starts(b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    starts(b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    // POSIX ustar, and what GNU tar writes; an OVA is one.
    Signature {
        at: At::Start(257),
        bytes: b"ustar\x0000",
        container: Container { what: "a tar archive", way_out: UNPACK },
    },
    Signature {
        at: At::Start(257),
        bytes: b"ustar  \x00",
        container: Container { what: "a tar archive", way_out: UNPACK },
    },
];

/// The first and the last bytes of a source. What a medium cannot give of them says nothing; of a source that
/// is gone nothing can be told.
pub(crate) fn ends(source: &dyn Source) -> Result<(Vec<u8>, Vec<u8>), SourceError> {
    let size = source.size();
    let read = |from: u64, bytes: usize| {
        let mut room = vec![0; usize::try_from(size - from).map_or(bytes, |left| left.min(bytes))];
        match source.read_exact_at(from, &mut room) {
            Ok(()) => Ok(room),
            Err(SourceError::Read { why, .. }) if past_errors::is_of_the_medium(&why) => Ok(Vec::new()),
            Err(other) => Err(other),
        }
    };
    Ok((read(0, HEAD_BYTES)?, read(size.saturating_sub(TAIL_BYTES as u64), TAIL_BYTES)?))
}

/// What begins with `head` and ends with `tail` is, if it is no raw image; `head` has `HEAD_BYTES` and `tail`
/// `TAIL_BYTES`, or all that there is.
#[must_use]
pub(crate) fn recognise(head: &[u8], tail: &[u8]) -> Option<Container> {
    let stands = |signature: &&Signature| match signature.at {
        At::Start(offset) => head.get(offset..).is_some_and(|from| from.starts_with(signature.bytes)),
        At::End(before) => {
            let from = tail.len().checked_sub(before);
            from.is_some_and(|from| tail[from..].starts_with(signature.bytes))
        }
    };
    if let Some(signature) = SIGNATURES.iter().find(stands) {
        return Some(signature.container);
    }
    if is_bzip2(head) {
        return Some(Container {
            what: "compressed with bzip2",
            way_out: "`bunzip2 --keep FILE`, and load what comes of it",
        });
    }
    is_zip(head).then(|| if is_aff4(head, tail) { AFF4 } else { ZIP })
}

/// The same of raw parts that were put together; containers that are read have to be one file for that.
pub(crate) fn in_parts(head: &[u8], tail: &[u8]) -> Option<Container> {
    const OTHER: Container = Container {
        what: "one part of an image of another kind",
        way_out: "put the parts together with `cat`, in order, and load what comes of it",
    };
    recognise(head, tail).or_else(|| crate::Format::of(head, tail).map(|_| OTHER))
}

/// bzip2's source, `BZ_HDR_*`: the size of its blocks as a digit, then a block or the end of the stream.
fn is_bzip2(head: &[u8]) -> bool {
    let (block, end) = (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90");
    let sized = head.starts_with(b"BZh") && head.get(3).is_some_and(|digit| (b'1'..=b'9').contains(digit));
    sized && head.get(4..10).is_some_and(|magic| magic == block || magic == end)
}

/// PKWARE's APPNOTE.TXT, 4.3: a file, an archive without any, or the first of several volumes.
fn is_zip(head: &[u8]) -> bool {
    [b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"].iter().any(|magic| head.starts_with(*magic))
}

/// AFF4 Standard 1.0: a zip whose comment is the volume's URN, which also stands in `container.description`.
fn is_aff4(head: &[u8], tail: &[u8]) -> bool {
    let has = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
    has(head, b"container.description") || has(tail, b"container.description") || has(tail, b"aff4://")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(head: &[u8], tail: &[u8]) -> Option<&'static str> {
        recognise(head, tail).map(|container| container.what)
    }

    #[test]
    fn each_signature_is_told_where_it_stands_and_nowhere_else() {
        for signature in SIGNATURES {
            let mut bytes = vec![0; HEAD_BYTES];
            let at = match signature.at {
                At::Start(offset) => offset,
                At::End(before) => HEAD_BYTES - before,
            };
            bytes[at..at + signature.bytes.len()].copy_from_slice(signature.bytes);
            assert_eq!(recognise(&bytes, &bytes), Some(signature.container));
            bytes.rotate_right(1);
            let moved = recognise(&bytes, &bytes);
            assert!(moved.is_none(), "{moved:?} where {} is not", signature.container);
            // A source that ends inside of it is none.
            assert_eq!(recognise(&signature.bytes[..1], &signature.bytes[..1]), None);
        }
    }

    #[test]
    fn disks_and_file_systems_are_none_of_these() {
        let mut disk = vec![0; 1 << 20];
        assert_eq!(what(&disk[..HEAD_BYTES], &disk), None, "zeros");
        disk[..3].copy_from_slice(b"\xeb\x52\x90");
        disk[3..7].copy_from_slice(b"NTFS");
        disk[510..512].copy_from_slice(b"\x55\xaa");
        disk[1080..1082].copy_from_slice(b"\x53\xef");
        disk[0x8001..0x8006].copy_from_slice(b"CD001");
        assert_eq!(what(&disk[..HEAD_BYTES], &disk), None);
        assert_eq!(what(b"", b""), None);
        // A boot loader's text, and three letters that bzip2 alone does not make a stream of.
        assert_eq!(what(b"BZh9 no stream", b""), None);
        assert_eq!(what(b"PK of another kind", b""), None);
    }

    #[test]
    fn a_zip_is_told_from_an_aff4() {
        assert_eq!(what(b"PK\x03\x04 rest", b"PK\x05\x06 end"), Some("a zip archive"));
        assert_eq!(what(b"PK\x03\x04....container.description", b""), Some("an AFF4 image"));
        assert_eq!(what(b"PK\x03\x04 rest", b"PK\x05\x06..aff4://685e15cc"), Some("an AFF4 image"));
        assert_eq!(what(b"BZh91AY&SY", b""), Some("compressed with bzip2"));
    }
}
