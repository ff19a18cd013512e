//! ext2, ext3, ext4: where a listing finds inodes and directories.
//!
//! Owns: superblock, group descriptors (also of META_BG), inodes with block pointers and with extents. A
//! listing reads all inode tables whole, for it looks for deleted files as well. Directories' blocks come
//! from the inodes, whether these are in use or not; what directories hold is not looked at. Files' runs
//! are known as far as inodes hold them, and not where they lie in blocks of their own. Called by `map`.
//! Tests: `hostile`.

use crate::Kind;
use crate::error::{MapError, damaged};
use crate::fields::{has, le16, le32};
use crate::run::Run;
use crate::walk::{Stream, TOGETHER_BYTES, Walk};

const SUPERBLOCK: usize = 1024;
/// Bits of the superblock's `feature_*`.
const COMPAT_JOURNAL: u64 = 0x4;
const INCOMPAT_META_BG: u64 = 0x10;
const INCOMPAT_EXTENTS: u64 = 0x40;
const INCOMPAT_64BIT: u64 = 0x80;
const INCOMPAT_FLEX_BG: u64 = 0x200;
const RO_COMPAT_OF_EXT4: u64 = 0x8 | 0x10 | 0x20 | 0x40 | 0x200 | 0x400;
/// Of a group: its inode table was never written to.
const INODES_UNUSED: u64 = 0x1;
/// Bits of an inode's flags.
const HAS_EXTENTS: u64 = 0x8_0000;
const HAS_INLINE_DATA: u64 = 0x1000_0000;
const DIRECTORY: u64 = 0x4000;
const FILE: u64 = 0x8000;
const DIRECT_POINTERS: usize = 12;
const EXTENT_MAGIC: u64 = 0xf30a;
const EXTENT_DEPTH_MAX: u64 = 5;
/// Of the directories of one piece of an inode table: blocks that say where others are, in one level.
const INDEX_BLOCKS_MAX: usize = 1 << 18;
/// Runs that are told at once, and so in memory.
const RUNS_AT_ONCE: usize = 1 << 16;

pub(crate) fn recognise(head: &[u8]) -> Option<Kind> {
    let superblock = head.get(SUPERBLOCK..)?;
    if !has(superblock, 56, &[0x53, 0xef]) {
        return None;
    }
    let (compat, incompat) = (le32(superblock, 92)?, le32(superblock, 96)?);
    let later = INCOMPAT_EXTENTS | INCOMPAT_64BIT | INCOMPAT_FLEX_BG;
    Some(if incompat & later != 0 || le32(superblock, 100)? & RO_COMPAT_OF_EXT4 != 0 {
        Kind::Ext4
    } else if compat & COMPAT_JOURNAL != 0 {
        Kind::Ext3
    } else {
        Kind::Ext2
    })
}

/// What the superblock says.
#[derive(Debug)]
struct Shape {
    block: u64,
    blocks: u64,
    first_block: u64,
    groups: u64,
    group_blocks: u64,
    group_inodes: u64,
    inode_bytes: u64,
    descriptor_bytes: u64,
    /// From this block of descriptors on they lie in the groups that they describe.
    first_meta: Option<u64>,
}

impl Shape {
    fn read(superblock: &[u8]) -> Option<Shape> {
        let block = 1024_u64.checked_shl(u32::try_from(le32(superblock, 24)?).ok()?)?;
        let incompat = le32(superblock, 96)?;
        let is_wide = incompat & INCOMPAT_64BIT != 0;
        let high = if is_wide { le32(superblock, 0x150)? } else { 0 };
        let blocks = le32(superblock, 4)? | (high << 32);
        let first_block = le32(superblock, 20)?;
        let group_blocks = le32(superblock, 32)?;
        let is_old = le32(superblock, 76)? == 0;
        let shape = Shape {
            block,
            blocks,
            first_block,
            groups: blocks
                .checked_sub(first_block)?
                .checked_add(group_blocks)?
                .checked_sub(1)?
                .checked_div(group_blocks)?,
            group_blocks,
            group_inodes: le32(superblock, 40)?,
            inode_bytes: if is_old { 128 } else { le16(superblock, 88)? },
            descriptor_bytes: if is_wide { le16(superblock, 254)?.max(32) } else { 32 },
            first_meta: (incompat & INCOMPAT_META_BG != 0).then_some(le32(superblock, 260)?),
        };
        let fits = (1024..=64 << 10).contains(&block)
            && (128..=block).contains(&shape.inode_bytes)
            && shape.inode_bytes.is_power_of_two()
            && (1..=block * 8).contains(&shape.group_inodes)
            && (1..=block).contains(&shape.descriptor_bytes)
            && shape.descriptor_bytes.is_power_of_two()
            && blocks.checked_mul(block).is_some();
        fits.then_some(shape)
    }

    fn blocks_run(&self, first: u64, count: u64) -> Option<Run> {
        let inside = first.checked_add(count).is_some_and(|end| end <= self.blocks);
        (inside && first > 0 && count > 0).then(|| Run::new(first * self.block, count * self.block))
    }

    /// Where the group descriptors lie, in their order.
    fn descriptors(&self) -> Vec<Run> {
        let in_block = self.block / self.descriptor_bytes;
        let wanted = self.groups.div_ceil(in_block);
        let meta = self.first_meta.unwrap_or(wanted).min(wanted);
        let mut runs: Vec<Run> = self.blocks_run(self.first_block + 1, meta).into_iter().collect();
        for index in meta..wanted {
            // The first group of those that this block describes has it, behind a superblock if there is one.
            let group = index * in_block;
            let first = self.first_block.saturating_add(group.saturating_mul(self.group_blocks));
            runs.extend(self.blocks_run(first + u64::from(has_superblock(group)), 1));
        }
        runs
    }
}

/// Of a file system with META_BG, which is sparse as well.
fn has_superblock(group: u64) -> bool {
    let is_power = |base: u64| {
        let mut power = base;
        while power < group {
            power *= base;
        }
        power == group
    };
    group <= 1 || is_power(3) || is_power(5) || is_power(7)
}

/// A group's inode table.
struct Table {
    whole: Run,
    /// From its beginning: what was ever written to.
    used_inodes: u64,
    first_inode: u64,
}

pub(crate) fn map(walk: &mut Walk<'_>, head: &[u8]) -> Result<(), MapError> {
    let superblock = head.get(SUPERBLOCK..).unwrap_or_default();
    let Some(shape) = Shape::read(superblock) else {
        return damaged("its superblock contradicts itself");
    };
    if shape.blocks * shape.block > walk.size() {
        walk.gap("it goes on behind the end of the disk");
    }
    let descriptors = shape.descriptors();
    let mut first = vec![Run::new(0, shape.block.max(2048))];
    first.extend(&descriptors);
    walk.tell(&first);
    let mut stream = Stream::new(&descriptors, shape.descriptor_bytes as usize);
    let mut group = 0;
    while let Some((_, bytes)) = stream.next(walk)? {
        let mut tables = Vec::new();
        let mut runs = Vec::new();
        for descriptor in bytes.chunks_exact(shape.descriptor_bytes as usize) {
            if group == shape.groups {
                break;
            }
            tables.extend(group_of(&shape, group, descriptor, &mut runs));
            group += 1;
        }
        runs.sort_unstable();
        walk.tell(&runs);
        read_tables(walk, &shape, &tables)?;
    }
    Ok(())
}

/// Notes where its bitmaps and its inodes lie.
fn group_of(shape: &Shape, group: u64, descriptor: &[u8], runs: &mut Vec<Run>) -> Option<Table> {
    let place = |low: usize, high: usize| {
        let high = if shape.descriptor_bytes >= 64 { le32(descriptor, high)? } else { 0 };
        Some(le32(descriptor, low)? | (high << 32))
    };
    runs.extend(place(0, 32).and_then(|block| shape.blocks_run(block, 1)));
    runs.extend(place(4, 36).and_then(|block| shape.blocks_run(block, 1)));
    let table_bytes = shape.group_inodes * shape.inode_bytes;
    let whole = shape.blocks_run(place(8, 40)?, table_bytes.div_ceil(shape.block))?;
    runs.push(whole);
    let flags = le16(descriptor, 18)?;
    let unused = le16(descriptor, 28)?;
    let used = if flags & INODES_UNUSED != 0 { 0 } else { shape.group_inodes.saturating_sub(unused) };
    Some(Table { whole, used_inodes: used, first_inode: group * shape.group_inodes + 1 })
}

/// Blocks that say where other blocks are: of directories.
#[derive(Clone, Copy)]
struct Index {
    block: u64,
    shape: IndexShape,
}

#[derive(Clone, Copy)]
enum IndexShape {
    /// So many levels of them are below it; 0: pointers to blocks of data.
    Pointers {
        below: u32,
    },
    Extents {
        depth: u64,
    },
}

/// What inodes and index blocks name.
#[derive(Default)]
struct Named {
    data: Vec<Run>,
    index: Vec<Index>,
}

fn read_tables(walk: &mut Walk<'_>, shape: &Shape, tables: &[Table]) -> Result<(), MapError> {
    let inode_bytes = shape.inode_bytes as usize;
    for table in tables.iter().filter(|table| table.used_inodes > 0) {
        let used = Run::new(table.whole.offset, table.used_inodes * shape.inode_bytes);
        let mut stream = Stream::new(&[used], inode_bytes);
        while let Some((position, bytes)) = stream.next(walk)? {
            let first = table.first_inode + position / shape.inode_bytes;
            let mut named = Named::default();
            for (number, inode) in (first..).zip(bytes.chunks_exact(inode_bytes)) {
                match le16(inode, 0).unwrap_or(0) & 0xf000 {
                    DIRECTORY => name_blocks(shape, inode, &mut named),
                    FILE => add_file(walk, shape, number, inode),
                    _ => {}
                }
            }
            follow(walk, shape, named)?;
        }
    }
    Ok(())
}

/// Tells of directories' blocks, level by level of what says where they are.
fn follow(walk: &mut Walk<'_>, shape: &Shape, mut named: Named) -> Result<(), MapError> {
    loop {
        tell_data(walk, &mut named);
        if named.index.is_empty() {
            return Ok(());
        }
        named.index.sort_unstable_by_key(|index| index.block);
        named.index.dedup_by_key(|index| index.block);
        let mut below = Named::default();
        for batch in named.index.chunks((TOGETHER_BYTES / shape.block) as usize) {
            let runs: Vec<Run> = batch.iter().filter_map(|index| shape.blocks_run(index.block, 1)).collect();
            walk.tell(&runs);
            // Each of these names a block that is there, so there is a run for each.
            let lists: Vec<Vec<Run>> = runs.into_iter().map(|run| vec![run]).collect();
            for (index, bytes) in batch.iter().zip(walk.together(&lists)?) {
                match index.shape {
                    IndexShape::Pointers { below: levels } => pointers(shape, levels, &bytes, &mut below),
                    // A node of another depth than its parent said is no tree, and could be a circle.
                    IndexShape::Extents { depth } if extent_depth(&bytes) == Some(depth) => {
                        extents(shape, &bytes, &mut below);
                    }
                    IndexShape::Extents { .. } => walk.gap("the extents of a directory are damaged"),
                }
                if below.data.len() > RUNS_AT_ONCE {
                    tell_data(walk, &mut below);
                }
                if below.index.len() > INDEX_BLOCKS_MAX {
                    below.index.truncate(INDEX_BLOCKS_MAX);
                    walk.gap("directories have more blocks than are followed");
                }
            }
        }
        named = below;
    }
}

fn tell_data(walk: &mut Walk<'_>, named: &mut Named) {
    named.data.sort_unstable();
    walk.tell(&named.data);
    named.data.clear();
}

/// What a directory's inode names.
fn name_blocks(shape: &Shape, inode: &[u8], named: &mut Named) {
    let Some(flags) = le32(inode, 32) else { return };
    let Some(blocks) = inode.get(40..100) else { return };
    if flags & HAS_INLINE_DATA != 0 {
        return;
    }
    if flags & HAS_EXTENTS != 0 {
        return extents(shape, blocks, named);
    }
    pointers(shape, 0, &blocks[..DIRECT_POINTERS * 4], named);
    for level in 0..3 {
        let block = le32(blocks, (DIRECT_POINTERS + level) * 4).unwrap_or(0);
        if shape.blocks_run(block, 1).is_some() {
            let below = u32::try_from(level).unwrap_or(0);
            named.index.push(Index { block, shape: IndexShape::Pointers { below } });
        }
    }
}

/// `levels`: of pointers that are between these and data.
fn pointers(shape: &Shape, levels: u32, bytes: &[u8], named: &mut Named) {
    for at in (0..bytes.len()).step_by(4) {
        let Some(block) = le32(bytes, at) else { return };
        let Some(run) = shape.blocks_run(block, 1) else { continue };
        match levels.checked_sub(1) {
            None => named.data.push(run),
            Some(below) => {
                named.index.push(Index { block, shape: IndexShape::Pointers { below } });
            }
        }
    }
}

fn extent_depth(node: &[u8]) -> Option<u64> {
    let depth = le16(node, 6)?;
    (le16(node, 0)? == EXTENT_MAGIC && depth <= EXTENT_DEPTH_MAX).then_some(depth)
}

/// The entries of a node of a tree of extents.
fn entries(node: &[u8]) -> impl Iterator<Item = &[u8]> {
    let count = le16(node, 2).unwrap_or(0);
    node.get(12..).unwrap_or_default().chunks_exact(12).take(usize::try_from(count).unwrap_or(0))
}

fn extents(shape: &Shape, node: &[u8], named: &mut Named) {
    match extent_depth(node) {
        None => {}
        Some(0) => named.data.extend(entries(node).filter_map(|entry| Some(extent(shape, entry)?.1))),
        Some(depth) => {
            for entry in entries(node) {
                let (Some(low), Some(high)) = (le32(entry, 4), le16(entry, 8)) else { continue };
                let block = low | (high << 32);
                if shape.blocks_run(block, 1).is_some() {
                    let shape = IndexShape::Extents { depth: depth - 1 };
                    named.index.push(Index { block, shape });
                }
            }
        }
    }
}

/// Where in the file, and where on the disk.
fn extent(shape: &Shape, entry: &[u8]) -> Option<(u64, Run)> {
    let len = le16(entry, 4)?;
    // Longer ones have room that was not written yet.
    if len > 0x8000 {
        return None;
    }
    let block = le32(entry, 8)? | (le16(entry, 6)? << 32);
    Some((le32(entry, 0)? * shape.block, shape.blocks_run(block, len)?))
}

/// Notes the runs that the inode itself holds.
fn add_file(walk: &mut Walk<'_>, shape: &Shape, number: u64, inode: &[u8]) {
    let (Some(flags), Some(links)) = (le32(inode, 32), le16(inode, 26)) else { return };
    let Some(blocks) = inode.get(40..100) else { return };
    if links == 0 || flags & HAS_INLINE_DATA != 0 {
        return;
    }
    if flags & HAS_EXTENTS == 0 {
        for index in 0..DIRECT_POINTERS {
            let block = le32(blocks, index * 4).unwrap_or(0);
            if let Some(run) = shape.blocks_run(block, 1) {
                walk.files.add(number, index as u64 * shape.block, run);
            }
        }
    } else if extent_depth(blocks) == Some(0) {
        for (position, run) in entries(blocks).filter_map(|entry| extent(shape, entry)) {
            walk.files.add(number, position, run);
        }
    }
}
