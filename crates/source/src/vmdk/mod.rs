//! VMDK images: VMware's, in one file (`monolithicSparse`, `streamOptimized`) or a descriptor and its extents
//! (`twoGbMaxExtentSparse`, `twoGbMaxExtentFlat`, `monolithicFlat`).
//!
//! Owns: putting the extents together, and where each grain lies. Never: a file that a descriptor names by
//! more than a plain name: extents lie beside it. An image that stands on a parent is refused, and so is
//! an extent without its descriptor. Compressed grains have zlib's checksum, the others none. Written by
//! VMware's "Virtual Disk Format 5.0". Called by `open`. Files: `descriptor` reads the text, `sparse` the
//! extents that have grains. Tests: `hostile`, `lab/tests/sources.rs`.

mod descriptor;
mod sparse;

use crate::blocks::{Block, Blocks, Found, Table};
use crate::container::QEMU;
use crate::files::{Fault, TABLE_BYTES_MAX, damaged, refused};
use crate::{Claims, RawSource, Source, SourceError};
use descriptor::{Descriptor, Extent, Kind};
use sparse::Sparse;
use std::path::Path;

const SECTOR: u64 = 512;
/// Of what is flat: smaller where extents do not end on such a border.
const FLAT_BLOCK_BYTES: u64 = 64 << 10;

/// A run of the disk, and where it lies.
#[derive(Debug)]
struct Run {
    /// In blocks of the whole disk.
    first: u64,
    lies: Lies,
}

#[derive(Debug)]
enum Lies {
    Nowhere,
    Flat { file: usize, offset: u64 },
    Sparse { file: usize, sparse: Sparse },
}

#[derive(Debug)]
struct Runs {
    block_bytes: u64,
    /// Ascending.
    runs: Vec<Run>,
}

/// An extent with grains, or a descriptor.
pub(crate) fn is_one(head: &[u8]) -> bool {
    sparse::is_one(head) || descriptor::is_one(head)
}

pub(crate) fn open(file: RawSource) -> Result<impl Source, SourceError> {
    let path = file.path().to_path_buf();
    let (files, found) = read(file).map_err(|fault| fault.of(&path))?;
    Blocks::new(path, files, found)
}

type Opened = (Vec<RawSource>, Found<Runs>);

fn read(file: RawSource) -> Result<Opened, Fault> {
    let path = file.path().to_path_buf();
    let head = file.part(0, file.size().min(SECTOR))?;
    if !sparse::is_one(&head) {
        let text = file.part(0, file.size().min(descriptor::BYTES_MAX))?;
        let described = Descriptor::parse(&text)?;
        check(&described, &path)?;
        return put_together(&file, &described);
    }
    let (sparse, described) = Sparse::read(&file)?;
    let Some(described) = described else {
        return refused(
            &path,
            "one extent of a VMDK image, without its descriptor: load the descriptor, a small .vmdk file beside it that names \
             all extents"
                .to_owned(),
        );
    };
    let described = Descriptor::parse(&described)?;
    check(&described, &path)?;
    let (size, block_bytes) = (sparse.size, sparse.grain_bytes);
    let runs = vec![Run { first: 0, lies: Lies::Sparse { file: 0, sparse } }];
    Ok((vec![file], found(&described, size, Runs { block_bytes, runs })))
}

fn found(described: &Descriptor, size: u64, runs: Runs) -> Found<Runs> {
    Found {
        what: format!("VMDK image ({})", described.kind),
        block: "grain",
        size,
        block_bytes: runs.block_bytes,
        table: runs,
        is_checksummed: false,
        claims: Claims::default(),
    }
}

/// Refuses what would be read from a file that is not beside the image.
fn check(described: &Descriptor, path: &Path) -> Result<(), Fault> {
    if let Some(parent) = &described.parent {
        return refused(
            path,
            format!(
                "a VMDK image that holds what differs from another ({parent}), and no file is opened because an image names \
                 it: {QEMU}"
            ),
        );
    }
    let outside = described.extents.iter().find(|extent| !extent.is_beside());
    if let Some(Extent { name, .. }) = outside {
        return refused(
            path,
            format!(
                "the descriptor of a VMDK image with an extent elsewhere ({name}), and no file is opened because an image \
                 names it: put its extents beside it, and their plain names into it; or {QEMU}"
            ),
        );
    }
    Ok(())
}

fn put_together(given: &RawSource, described: &Descriptor) -> Result<Opened, Fault> {
    let (mut files, mut runs, mut at) = (Vec::new(), Vec::new(), 0_u64);
    let mut grain = None;
    for Extent { sectors, kind, name, offset } in &described.extents {
        let bytes = sectors.saturating_mul(SECTOR);
        let lies = match kind {
            Kind::Zero => Lies::Nowhere,
            Kind::Flat | Kind::Sparse => {
                let file = given.part_beside(&given.path().with_file_name(name))?;
                let lies = extent(&file, files.len(), *kind, bytes, *offset)?;
                files.push(file);
                lies
            }
        };
        if let Lies::Sparse { sparse, .. } = &lies
            && *grain.get_or_insert(sparse.grain_bytes) != sparse.grain_bytes
        {
            return damaged("its extents have grains of several sizes");
        }
        runs.push((at, lies));
        at = at.saturating_add(bytes);
    }
    // One size of blocks for all: each run begins on a border of it.
    let begins = runs.iter().fold(0, |bits, (at, _)| bits | at);
    let block_bytes = grain.unwrap_or_else(|| FLAT_BLOCK_BYTES.min(1 << begins.trailing_zeros().min(16)));
    if begins % block_bytes != 0 {
        return damaged("one of its extents begins inside of a grain");
    }
    let runs = runs.into_iter().map(|(at, lies)| Run { first: at / block_bytes, lies }).collect();
    Ok((files, found(described, at, Runs { block_bytes, runs })))
}

fn extent(file: &RawSource, index: usize, kind: Kind, bytes: u64, offset: u64) -> Result<Lies, Fault> {
    let named = |what: String| Fault::File(SourceError::Damaged { path: file.path().to_path_buf(), what });
    if kind == Kind::Flat {
        let offset = offset.saturating_mul(SECTOR);
        file.check_inside(offset, bytes)?;
        return Ok(Lies::Flat { file: index, offset });
    }
    let head = file.part(0, file.size().min(SECTOR))?;
    if !sparse::is_one(&head) {
        return Err(named("it does not begin as an extent of a VMDK image".to_owned()));
    }
    let (sparse, _) = Sparse::read(file).map_err(|fault| match fault {
        Fault::Damaged(what) => named(what),
        other => other,
    })?;
    if sparse.size < bytes {
        return Err(named(format!(
            "it has {} bytes of the disk, and its descriptor says {bytes}",
            sparse.size
        )));
    }
    Ok(Lies::Sparse { file: index, sparse })
}

impl Table for Runs {
    fn locate(&self, files: &[RawSource], index: u64) -> Result<Block, Fault> {
        let at = self.runs.partition_point(|run| run.first <= index);
        let Some(run) = at.checked_sub(1).map(|at| &self.runs[at]) else {
            return damaged("no extent has it");
        };
        let inside = index - run.first;
        match &run.lies {
            Lies::Nowhere => Ok(Block::Zero),
            Lies::Flat { file, offset } => {
                Ok(Block::Plain { file: *file, offset: offset + inside * self.block_bytes })
            }
            Lies::Sparse { file, sparse } => match files.get(*file) {
                Some(source) => sparse.locate(source, *file, inside),
                None => damaged("it lies in no file of it"),
            },
        }
    }
}
