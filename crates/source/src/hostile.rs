//! Images that lie: samples of every format, flipped and cut at random, thousands of times. Each is opened or
//! refused, and each read gives bytes or an error; none panics, goes on for ever or takes memory that it has
//! no file for.
//!
//! The samples are made here, byte by byte, so that this needs no other program; `lab/tests/sources.rs` has
//! those of others.

use crate::fields::le32;
use crate::files::tests::Scratch;
use crate::inflate::adler32;
use crate::vhdx::{BAT, DISK_SIZE, LOGICAL_SECTOR, METADATA, PARAMETERS};
use crate::{Options, Source, SourceError, open};
use std::io::Write;
use std::path::Path;

/// Of each sample.
const TURNS: usize = 1_000;
const DISK_BYTES: usize = 200_000;

fn disk() -> Vec<u8> {
    (0..DISK_BYTES).map(|at| if at % 40_000 < 20_000 { 0 } else { (at * at / 7) as u8 }).collect()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut stream = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    stream.write_all(bytes).expect("memory");
    stream.finish().expect("memory")
}

fn put(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    if bytes.len() < at + what.len() {
        bytes.resize(at + what.len(), 0);
    }
    bytes[at..at + what.len()].copy_from_slice(what);
}

/// A section of version 1, with its descriptor.
fn section(image: &mut Vec<u8>, kind: &str, data: &[u8]) {
    let at = image.len();
    let next = if ["done", "next"].contains(&kind) { at } else { at + 76 + data.len() };
    let mut descriptor = vec![0; 72];
    put(&mut descriptor, 0, kind.as_bytes());
    put(&mut descriptor, 16, &(next as u64).to_le_bytes());
    put(&mut descriptor, 24, &(76 + data.len() as u64).to_le_bytes());
    descriptor.extend(adler32(&descriptor).to_le_bytes());
    image.extend(descriptor);
    image.extend(data);
}

fn with_sum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(adler32(&bytes).to_le_bytes());
    bytes
}

const CHUNK: usize = 4096;

fn e01(disk: &[u8]) -> Vec<u8> {
    let mut image = b"EVF\x09\x0d\x0a\xff\x00\x01\x01\x00\x00\x00".to_vec();
    let mut volume = vec![0; 1048];
    let chunks: Vec<&[u8]> = disk.chunks(CHUNK).collect();
    put(&mut volume, 4, &(chunks.len() as u32).to_le_bytes());
    put(&mut volume, 8, &8_u32.to_le_bytes());
    put(&mut volume, 12, &512_u32.to_le_bytes());
    put(&mut volume, 16, &(disk.len() as u64 / 512).to_le_bytes());
    section(&mut image, "volume", &with_sum(volume));
    let base = image.len() + 76;
    let (mut data, mut entries) = (Vec::new(), Vec::new());
    for (at, chunk) in chunks.iter().enumerate() {
        let packed = at % 3 != 0;
        entries.extend((data.len() as u32 | (u32::from(packed) << 31)).to_le_bytes());
        data.extend(if packed { zlib(chunk) } else { with_sum(chunk.to_vec()) });
    }
    section(&mut image, "sectors", &data);
    let mut header = vec![0; 20];
    put(&mut header, 0, &(chunks.len() as u32).to_le_bytes());
    put(&mut header, 8, &(base as u64).to_le_bytes());
    let table = [with_sum(header), with_sum(entries)].concat();
    section(&mut image, "table", &table);
    section(&mut image, "table2", &table);
    // Of what could not be read then: two sectors from the third on.
    let mut errors = vec![0; 516];
    put(&mut errors, 0, &1_u32.to_le_bytes());
    let sectors = [3_u32.to_le_bytes(), 2_u32.to_le_bytes()].concat();
    section(&mut image, "error2", &[with_sum(errors), with_sum(sectors)].concat());
    section(&mut image, "hash", &with_sum([vec![7; 16], vec![0; 16]].concat()));
    section(&mut image, "done", &[]);
    image
}

/// A section of version 2: its descriptor stands behind it.
fn section_two(image: &mut Vec<u8>, previous: &mut u64, kind: u32, data: &[u8]) {
    let padding = data.len().next_multiple_of(16) - data.len();
    image.extend(data);
    image.extend(vec![0; padding]);
    let mut descriptor = vec![0; 60];
    put(&mut descriptor, 0, &kind.to_le_bytes());
    put(&mut descriptor, 8, &previous.to_le_bytes());
    put(&mut descriptor, 16, &((data.len() + padding) as u64).to_le_bytes());
    put(&mut descriptor, 24, &64_u32.to_le_bytes());
    put(&mut descriptor, 28, &(padding as u32).to_le_bytes());
    *previous = image.len() as u64;
    image.extend(with_sum(descriptor));
}

fn ex01(disk: &[u8]) -> Vec<u8> {
    let mut image = b"EVF2\x0d\x0a\x81\x00\x02\x01\x01\x00\x01\x00\x00\x00".to_vec();
    image.extend([9; 16]);
    let mut previous = 0;
    let text = |text: &str| {
        let units = std::iter::once('\u{feff}').chain(text.chars());
        zlib(&units.flat_map(|letter| (letter as u16).to_le_bytes()).collect::<Vec<u8>>())
    };
    let device = format!("1\nmain\nsn\tts\tbp\nserial\t{}\t512\n\n", disk.len() / 512);
    section_two(&mut image, &mut previous, 1, &text(&device));
    section_two(&mut image, &mut previous, 2, &text("1\nmain\nnm\tsb\ncase\t8\n\n"));
    let (base, mut data, mut entries) = (image.len(), Vec::new(), Vec::new());
    for (at, chunk) in disk.chunks(CHUNK).enumerate() {
        let (offset, flags, bytes) = match at % 3 {
            _ if chunk.iter().all(|byte| *byte == 0) => (0, 5, Vec::new()),
            0 => ((base + data.len()) as u64, 2, with_sum(chunk.to_vec())),
            _ => ((base + data.len()) as u64, 1, zlib(chunk)),
        };
        entries.extend(offset.to_le_bytes());
        entries.extend((bytes.len() as u32).to_le_bytes());
        entries.extend(u32::to_le_bytes(flags));
        data.extend(bytes);
    }
    section_two(&mut image, &mut previous, 3, &data);
    let mut header = vec![0; 16];
    put(&mut header, 8, &(disk.len().div_ceil(CHUNK) as u32).to_le_bytes());
    let table = [with_sum(header), vec![0; 12], with_sum(entries), vec![0; 12]].concat();
    section_two(&mut image, &mut previous, 4, &table);
    section_two(&mut image, &mut previous, 8, &[with_sum(vec![7; 16]), vec![0; 12]].concat());
    section_two(&mut image, &mut previous, 0x0f, &[]);
    image
}

fn qcow2(disk: &[u8]) -> Vec<u8> {
    const CLUSTER: usize = 4096;
    let mut image = vec![0; 3 * CLUSTER];
    put(&mut image, 0, b"QFI\xfb\x00\x00\x00\x03");
    put(&mut image, 20, &12_u32.to_be_bytes());
    put(&mut image, 24, &(disk.len() as u64).to_be_bytes());
    put(&mut image, 36, &1_u32.to_be_bytes());
    put(&mut image, 40, &(CLUSTER as u64).to_be_bytes());
    put(&mut image, 100, &104_u32.to_be_bytes());
    put(&mut image, CLUSTER, &((1 << 63) | (2 * CLUSTER as u64)).to_be_bytes());
    for (at, cluster) in disk.chunks(CLUSTER).enumerate() {
        let offset = image.len() as u64;
        let entry = if cluster.iter().all(|byte| *byte == 0) {
            at as u64 % 2
        } else if at % 3 == 0 {
            let whole = [cluster, &vec![0; CLUSTER - cluster.len()]].concat();
            let mut stream = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            stream.write_all(&whole).expect("memory");
            let packed = stream.finish().expect("memory");
            let sectors = packed.len().div_ceil(512) as u64 - 1;
            image.extend(packed);
            image.resize(image.len().next_multiple_of(512), 0);
            (1 << 62) | (sectors << 58) | offset
        } else {
            image.resize(image.len().next_multiple_of(CLUSTER), 0);
            let offset = image.len() as u64;
            image.extend(cluster);
            (1 << 63) | offset
        };
        put(&mut image, 2 * CLUSTER + at * 8, &entry.to_be_bytes());
    }
    image.resize(image.len().next_multiple_of(CLUSTER), 0);
    image
}

fn vmdk(disk: &[u8], is_stream: bool) -> Vec<u8> {
    let text =
        b"# Disk DescriptorFile\nversion=1\nparentCID=ffffffff\ncreateType=\"x\"\nRW 391 SPARSE \"d\"\n";
    let grains = disk.len().div_ceil(CHUNK);
    let mut header = vec![0; 512];
    put(&mut header, 0, b"KDMV\x01\x00\x00\x00");
    put(&mut header, 8, &(if is_stream { 0x3_0001_u32 } else { 1 }).to_le_bytes());
    put(&mut header, 12, &(disk.len() as u64).div_ceil(512).to_le_bytes());
    put(&mut header, 20, &8_u64.to_le_bytes());
    put(&mut header, 28, &1_u64.to_le_bytes());
    put(&mut header, 36, &1_u64.to_le_bytes());
    put(&mut header, 44, &16_u32.to_le_bytes());
    put(&mut header, 77, &u16::from(is_stream).to_le_bytes());
    let mut image = header.clone();
    put(&mut image, 512, text);
    image.resize(1024, 0);
    let mut entries = Vec::new();
    for (at, grain) in disk.chunks(CHUNK).enumerate() {
        let mut whole = grain.to_vec();
        whole.resize(CHUNK, 0);
        let sector = (image.len() / 512) as u32;
        if whole.iter().all(|byte| *byte == 0) {
            entries.push(0);
            continue;
        }
        entries.push(sector);
        if is_stream {
            let packed = zlib(&whole);
            image.extend((at as u64 * 8).to_le_bytes());
            image.extend((packed.len() as u32).to_le_bytes());
            whole = packed;
        }
        image.extend(whole);
        image.resize(image.len().next_multiple_of(512), 0);
    }
    let mut directory = Vec::new();
    for table in entries.chunks(16) {
        directory.extend(((image.len() / 512) as u32).to_le_bytes());
        table.iter().for_each(|entry| image.extend(entry.to_le_bytes()));
        image.resize(image.len().next_multiple_of(512), 0);
    }
    assert_eq!(directory.len() / 4, grains.div_ceil(16));
    let at = (image.len() / 512) as u64;
    image.extend(directory);
    image.resize(image.len().next_multiple_of(512), 0);
    put(&mut header, 56, &at.to_le_bytes());
    if is_stream {
        put(&mut image, 56, &u64::MAX.to_le_bytes());
        image.extend(header);
        image.extend([0; 512]);
    } else {
        put(&mut image, 0, &header);
    }
    image
}

fn turned_sum(bytes: &[u8]) -> [u8; 4] {
    (!bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>()).to_be_bytes()
}

fn vhd(disk: &[u8], is_dynamic: bool) -> Vec<u8> {
    let mut footer = vec![0; 512];
    put(&mut footer, 0, b"conectix");
    put(&mut footer, 16, &(if is_dynamic { 512 } else { u64::MAX }).to_be_bytes());
    put(&mut footer, 48, &(disk.len() as u64).to_be_bytes());
    put(&mut footer, 60, &(if is_dynamic { 3_u32 } else { 2 }).to_be_bytes());
    let sum = turned_sum(&footer);
    put(&mut footer, 64, &sum);
    if !is_dynamic {
        return [disk, &footer].concat();
    }
    let mut header = vec![0; 1024];
    put(&mut header, 0, b"cxsparse");
    put(&mut header, 16, &1536_u64.to_be_bytes());
    put(&mut header, 28, &(disk.len().div_ceil(CHUNK) as u32).to_be_bytes());
    put(&mut header, 32, &(CHUNK as u32).to_be_bytes());
    let sum = turned_sum(&header);
    put(&mut header, 36, &sum);
    let mut image = [footer.clone(), header, vec![0xff; 512]].concat();
    for (at, block) in disk.chunks(CHUNK).enumerate() {
        if block.iter().any(|byte| *byte != 0) {
            let sector = ((image.len() / 512) as u32).to_be_bytes();
            put(&mut image, 1536 + at * 4, &sector);
            image.extend([0xff; 512]);
            image.extend(block);
            image.resize(image.len().next_multiple_of(512), 0);
        }
    }
    image.extend(footer);
    image
}

const MIB: usize = 1 << 20;

fn with_crc(bytes: &mut [u8], at: usize, len: usize) {
    bytes[at + 4..at + 8].fill(0);
    let sum = crc32c::crc32c(&bytes[at..at + len]);
    bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Of which the second block is there, and the first is zeros.
fn vhdx(disk: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 4 * MIB];
    put(&mut image, 0, b"vhdxfile");
    put(&mut image, 64 << 10, b"head");
    put(&mut image, (64 << 10) + 66, &1_u16.to_le_bytes());
    let regions = 192 << 10;
    put(&mut image, regions, b"regi");
    put(&mut image, regions + 8, &2_u32.to_le_bytes());
    for (at, name, place) in [(16, BAT, MIB), (48, METADATA, 2 * MIB)] {
        put(&mut image, regions + at, &name);
        put(&mut image, regions + at + 16, &(place as u64).to_le_bytes());
        put(&mut image, regions + at + 24, &(MIB as u32).to_le_bytes());
    }
    let metadata = 2 * MIB;
    put(&mut image, metadata, b"metadata");
    put(&mut image, metadata + 10, &3_u16.to_le_bytes());
    let size = (MIB + disk.len()) as u64;
    let items = [
        (PARAMETERS, (MIB as u64).to_le_bytes()),
        (DISK_SIZE, size.to_le_bytes()),
        (LOGICAL_SECTOR, 512_u64.to_le_bytes()),
    ];
    for (number, (name, value)) in items.into_iter().enumerate() {
        let (entry, place) = (metadata + 32 + number * 32, (64 << 10) + number * 8);
        put(&mut image, entry, &name);
        put(&mut image, entry + 16, &(place as u32).to_le_bytes());
        put(&mut image, entry + 20, &8_u32.to_le_bytes());
        put(&mut image, metadata + place, &value);
    }
    put(&mut image, MIB + 8, &((3 << 20) | 6_u64).to_le_bytes());
    put(&mut image, 3 * MIB, disk);
    with_crc(&mut image, 64 << 10, 4 << 10);
    with_crc(&mut image, regions, 64 << 10);
    image
}

/// Who means harm puts right the checksums of what he changes.
fn sum_again(name: &str, image: &mut [u8]) {
    let sum = |image: &mut [u8], at: usize, len: usize| {
        if at.checked_add(len + 4).is_some_and(|end| end <= image.len()) {
            let sum = adler32(&image[at..at + len]).to_le_bytes();
            image[at + len..at + len + 4].copy_from_slice(&sum);
        }
    };
    let number = |image: &[u8], at: usize| image.get(at..at + 4).map_or(0, |_| le32(image, at) as usize);
    match name {
        "e01" => {
            let mut at = 13;
            for _ in 0..20 {
                sum(image, at, 72);
                match image.get(at..at + 5) {
                    Some(b"volum") => sum(image, at + 76, 1048),
                    Some(b"table") => {
                        sum(image, at + 76, 20);
                        let entries = number(image, at + 76).min(1 << 20) * 4;
                        sum(image, at + 100, entries);
                    }
                    Some(b"hash\0") => sum(image, at + 76, 32),
                    _ => {}
                }
                let next = number(image, at + 16);
                if next <= at || next >= image.len() {
                    return;
                }
                at = next;
            }
        }
        "ex01" => {
            let mut at = image.len().saturating_sub(64);
            for _ in 0..20 {
                sum(image, at, 60);
                let start = at.saturating_sub(number(image, at + 16));
                if number(image, at) == 4 {
                    sum(image, start, 16);
                    let entries = number(image, start + 8).min(1 << 20) * 16;
                    sum(image, start + 32, entries);
                }
                let previous = number(image, at + 8);
                if previous >= at || previous == 0 {
                    return;
                }
                at = previous;
            }
        }
        "dynamic.vhd" | "fixed.vhd" if image.len() > 2048 => {
            let end = image.len() - 512;
            for (at, len, own) in [(512, 1024, 36), (end, 512, 64)] {
                image[at + own..at + own + 4].fill(0);
                let sum = turned_sum(&image[at..at + len]);
                image[at + own..at + own + 4].copy_from_slice(&sum);
            }
        }
        "vhdx" if image.len() > MIB => {
            with_crc(image, 64 << 10, 4 << 10);
            with_crc(image, 192 << 10, 64 << 10);
        }
        _ => {}
    }
}

fn samples() -> [(&'static str, Vec<u8>); 8] {
    // In whole sectors, as all of these count.
    let disk = &disk()[..DISK_BYTES / 512 * 512];
    [
        ("e01", e01(disk)),
        ("ex01", ex01(disk)),
        ("qcow2", qcow2(disk)),
        ("vmdk", vmdk(disk, false)),
        ("stream.vmdk", vmdk(disk, true)),
        ("fixed.vhd", vhd(disk, false)),
        ("dynamic.vhd", vhd(disk, true)),
        ("vhdx", vhdx(disk)),
    ]
}

fn read_all(source: &dyn Source) -> Result<Vec<u8>, SourceError> {
    // A hostile image may say that its disk is large: its ends and its middle are looked at then.
    let size = source.size();
    let mut all = vec![1; usize::try_from(size.min(300_000)).expect("small")];
    source.read_exact_at(0, &mut all)?;
    Ok(all)
}

/// Any bytes at all: bytes or an error, soon. Answers whether it was opened.
fn try_all(path: &Path) -> bool {
    let Ok(source) = open(path, &Options::default()) else { return false };
    let size = source.size();
    let _ = read_all(&*source);
    for from in [0, size / 2, size.saturating_sub(70_000)] {
        let len = usize::try_from((size - from).min(70_000)).expect("small");
        let mut room = vec![1; len];
        match source.read_past_errors_at(from, &mut room) {
            Ok(lost) => assert!(lost.iter().all(|lost| {
                from <= lost.range.start
                    && lost.range.start < lost.range.end
                    && lost.range.end <= from + len as u64
            })),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let _ = (source.describe(), source.identity(), source.claims());
    true
}

#[test]
fn samples_are_read_as_they_were_made() {
    let (scratch, disk) = (Scratch::new(), disk());
    for (name, image) in samples() {
        let source = open(&scratch.file(name, &image), &Options::default());
        let source = source.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut all = read_all(&*source).unwrap_or_else(|error| panic!("{name}: {error}"));
        let claims = source.claims();
        assert_eq!(claims.md5.is_some_and(|md5| md5 == "07".repeat(16)), name.ends_with("01"), "{name}");
        assert_eq!(claims.unread_then.first().cloned(), (name == "e01").then_some(1536..2560), "{name}");
        if name == "vhdx" {
            // Its smallest block is larger than the disk: the disk stands in the second.
            assert!(all.iter().all(|byte| *byte == 0) && source.size() > MIB as u64);
            source.read_exact_at(MIB as u64, &mut all[..DISK_BYTES - 512]).expect("its disk");
            assert!(all[..DISK_BYTES - 512] == disk[..DISK_BYTES - 512]);
            continue;
        }
        assert_eq!(all.len(), DISK_BYTES / 512 * 512, "{name}");
        assert!(all[..] == disk[..all.len()], "{name}");
        let mut room = vec![1; 9000];
        for from in (0..all.len() - 9000).step_by(7777) {
            source.read_exact_at(from as u64, &mut room).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(room[..] == all[from..from + 9000], "{name} from {from} on");
        }
    }
}

#[test]
fn flips_and_cuts_are_errors_at_most() {
    let scratch = Scratch::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut dice = |end: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % end as u64) as usize
    };
    for (name, image) in samples() {
        // Of a sample that is large a few.
        let turns = TURNS.min((400 << 20) / image.len());
        let mut opened = 0;
        for _ in 0..turns {
            let mut bytes = image.clone();
            // Headers and tables are what is believed: most goes there.
            for _ in 0..=dice(3) {
                let len = bytes.len();
                let near = |at: usize, reach: usize| (at, reach.min(len - at));
                let (from, reach) = match (dice(4), name) {
                    (0, _) => (0, len),
                    (1, "vhdx") => near([64 << 10, 192 << 10][dice(2)], 128),
                    (2, "vhdx") => near([MIB, 2 * MIB][dice(2)], 160),
                    (3, "vhdx") => near(2 * MIB + (64 << 10), 24),
                    (1, _) => (len - 4096, 4096),
                    _ => (0, 4096),
                };
                let at = from + dice(reach);
                match dice(3) {
                    0 => bytes[at] ^= 1 << dice(8),
                    1 => bytes[at] = [0, 0xff, 0x80, 0x7f][dice(4)],
                    _ => {
                        let end = (at + 8).min(bytes.len());
                        bytes[at..end].fill([0, 0xff][dice(2)]);
                    }
                }
            }
            if dice(2) == 0 {
                sum_again(name, &mut bytes);
            }
            if dice(8) == 0 {
                bytes.truncate(1 + dice(bytes.len() - 1));
            }
            opened += usize::from(try_all(&scratch.file(name, &bytes)));
        }
        assert!((turns / 20..turns).contains(&opened), "{name}: {opened} of {turns} were opened");
    }
}

#[test]
fn what_is_encrypted_or_no_disk_is_refused_and_said() {
    let scratch = Scratch::new();
    for (kind, word) in [("x_encryption", "encrypted"), ("ltree", "holds files and no disk")] {
        let mut image = b"EVF\x09\x0d\x0a\xff\x00\x01\x01\x00\x00\x00".to_vec();
        section(&mut image, kind, &[0; 84]);
        section(&mut image, "done", &[]);
        match open(&scratch.file("case.E01", &image), &Options::default()) {
            Err(error @ SourceError::Refused { .. }) => assert!(error.to_string().contains(word), "{error}"),
            other => panic!("{kind}: {other:?}"),
        }
    }
}

/// Where a checksum is there, no flip gives another byte.
#[test]
fn no_flip_of_an_e01_gives_another_byte() {
    let (scratch, disk) = (Scratch::new(), disk());
    for (name, image) in samples().into_iter().filter(|(name, _)| *name == "e01") {
        for at in (13..image.len()).step_by(97) {
            let mut bytes = image.clone();
            bytes[at] ^= 0x04;
            let Ok(source) = open(&scratch.file(name, &bytes), &Options::default()) else { continue };
            let mut all = vec![1; usize::try_from(source.size()).expect("small")];
            let lost = source.read_past_errors_at(0, &mut all).unwrap_or_else(|error| panic!("{error}"));
            assert!(lost.len() <= 1, "a flip at byte {at}: {lost:?}");
            let is_lost = |at: usize| lost.iter().any(|lost| lost.range.contains(&(at as u64)));
            assert_eq!(all.len(), DISK_BYTES / 512 * 512);
            for (at, byte) in all.iter().enumerate() {
                assert!(*byte == disk[at] || (is_lost(at) && *byte == 0), "byte {at} of the disk");
            }
        }
    }
}
