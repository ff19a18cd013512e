//! A disk whose blocks lie somewhere in files: in chunks, clusters or grains, compressed or as they are.
//!
//! Owns: reading any range by blocks, decoding them (several threads beside each other), the last ones
//! kept, and what of a range cannot be had. Never: where a block lies; a format's `Table` says it.
//! Invariant: a byte that is given came from the place that the table names, and where there is a checksum
//! it fits. Called by `open`; made by `ewf`, `qcow`, `vmdk`, `vhd`, `vhdx`. Tests: theirs.

use crate::cache::Cache;
use crate::files::{self, Fault, damaged};
use crate::inflate::{Form, adler32, inflate};
use crate::{Claims, RawSource, Source, SourceError, Unreadable, past_errors};
use std::fmt::Debug;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Decoded blocks that are kept, all together.
const KEPT_BYTES: usize = 8 << 20;
/// No format that is read has larger ones.
pub(crate) const BLOCK_BYTES_MAX: u64 = 256 << 20;
/// A checksum behind a block.
const CHECKSUM_BYTES: u64 = 4;

/// Where one block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// It lies nowhere, and reads as zeros.
    Zero,
    /// These bytes again and again.
    Pattern([u8; 8]),
    /// As it is.
    Plain { file: usize, offset: u64 },
    /// As it is, with its Adler-32 behind it.
    Summed { file: usize, offset: u64 },
    /// Compressed, in at most so many bytes.
    Deflated { file: usize, offset: u64, len: u64, form: Form },
}

/// What says where the blocks of a disk are.
pub(crate) trait Table: Debug + Send + Sync {
    fn locate(&self, files: &[RawSource], index: u64) -> Result<Block, Fault>;
}

/// A disk by its table.
#[derive(Debug)]
pub(crate) struct Blocks<T> {
    /// As it was given.
    pub path: PathBuf,
    /// In the field's words.
    pub what: String,
    /// What the field calls a block.
    pub block: &'static str,
    pub files: Vec<RawSource>,
    pub table: T,
    pub size: u64,
    pub block_bytes: u64,
    pub is_checksummed: bool,
    pub claims: Claims,
    decoded: Cache<Vec<u8>>,
}

/// What a format finds out when it opens an image.
pub(crate) struct Found<T> {
    pub what: String,
    pub block: &'static str,
    pub table: T,
    pub size: u64,
    pub block_bytes: u64,
    pub is_checksummed: bool,
    pub claims: Claims,
}

impl<T: Table> Blocks<T> {
    /// `Damaged` where the sizes cannot be.
    pub fn new(path: PathBuf, files: Vec<RawSource>, found: Found<T>) -> Result<Blocks<T>, SourceError> {
        let Found { what, block, table, size, block_bytes, is_checksummed, claims } = found;
        // Offsets of a volume are signed numbers in many tools.
        if size == 0 || size > 1 << 60 || block_bytes == 0 || block_bytes > BLOCK_BYTES_MAX {
            let what = format!("it says that its disk has {size} bytes, in {block}s of {block_bytes}");
            return Err(SourceError::Damaged { path, what });
        }
        let decoded = Cache::new(KEPT_BYTES, usize::try_from(block_bytes).unwrap_or(usize::MAX));
        Ok(Blocks { path, what, block, files, table, size, block_bytes, is_checksummed, claims, decoded })
    }

    /// An image that is one file.
    pub fn of_one(
        file: RawSource,
        read: impl FnOnce(&RawSource) -> Result<Found<T>, Fault>,
    ) -> Result<Blocks<T>, SourceError> {
        let path = file.path().to_path_buf();
        let found = read(&file).map_err(|fault| fault.of(&path))?;
        Blocks::new(path, vec![file], found)
    }

    /// How many bytes a block has: the last one has what is left.
    fn len_of(&self, index: u64) -> u64 {
        (self.size - index * self.block_bytes).min(self.block_bytes)
    }

    /// The pieces of a range, a block each: which, where in it, where in the room.
    fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = (u64, u64, Range<usize>)> + use<T> {
        let block_bytes = self.block_bytes;
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let (index, inside) = (at / block_bytes, at % block_bytes);
            let left = len - done;
            let take = usize::try_from(block_bytes - inside).map_or(left, |block| block.min(left));
            let place = done..done + take;
            done += take;
            (take > 0).then_some((index, inside, place))
        })
    }

    fn read_piece(&self, block: Block, index: u64, inside: u64, room: &mut [u8]) -> Result<(), Fault> {
        match block {
            Block::Zero => room.fill(0),
            Block::Pattern(pattern) => {
                let from = usize::try_from(inside % 8).unwrap_or_default();
                room.iter_mut().zip(pattern.iter().cycle().skip(from)).for_each(|(to, byte)| *to = *byte);
            }
            Block::Plain { file, offset } => {
                let (file, offset) = self.place(file, offset, inside, room.len())?;
                file.read_exact_at(offset, room)?;
            }
            Block::Summed { .. } | Block::Deflated { .. } if room.len() as u64 == self.len_of(index) => {
                self.decode(block, room)?;
            }
            Block::Summed { .. } | Block::Deflated { .. } => {
                let whole = self.decoded.get_or(index, || {
                    let mut whole = vec![0; usize::try_from(self.len_of(index)).unwrap_or_default()];
                    self.decode(block, &mut whole).map(|()| Arc::new(whole))
                })?;
                let from = usize::try_from(inside).unwrap_or(usize::MAX);
                room.copy_from_slice(&whole[from..from + room.len()]);
            }
        }
        Ok(())
    }

    /// Where a piece of a block as it is lies.
    fn place(&self, file: usize, offset: u64, inside: u64, len: usize) -> Result<(&RawSource, u64), Fault> {
        let Some(file) = self.files.get(file) else { return damaged("a block lies in no file of it") };
        let offset = offset.saturating_add(inside);
        file.check_inside(offset, len as u64)?;
        Ok((file, offset))
    }

    /// The whole of a block that is not as it is.
    fn decode(&self, block: Block, room: &mut [u8]) -> Result<(), Fault> {
        match block {
            Block::Summed { file, offset } => {
                let (file, offset) = self.place(file, offset, 0, room.len() + CHECKSUM_BYTES as usize)?;
                file.read_exact_at(offset, room)?;
                let mut sum = [0; CHECKSUM_BYTES as usize];
                file.read_exact_at(offset + room.len() as u64, &mut sum)?;
                match adler32(room) == u32::from_le_bytes(sum) {
                    true => Ok(()),
                    false => damaged("it does not fit its checksum"),
                }
            }
            Block::Deflated { file, offset, len, form } => {
                // What is compressed to more than it was is a claim that no writer makes.
                let len = len.min(self.block_bytes + self.block_bytes / 8 + 4096);
                let Some(file) = self.files.get(file) else { return damaged("it lies in no file of it") };
                let packed = file.part(offset, len.min(file.size().saturating_sub(offset)))?;
                // As X-Ways does where it is told to.
                if form == Form::Zlib && packed.starts_with(b"\x28\xb5\x2f\xfd") {
                    return damaged("it is compressed with zstd, which is not read");
                }
                // The last one may hold more than the disk.
                let wanted = room.len();
                let came = if wanted as u64 == self.block_bytes {
                    inflate(form, &packed, room)
                } else {
                    let mut whole = vec![0; usize::try_from(self.block_bytes).unwrap_or_default()];
                    inflate(form, &packed, &mut whole).inspect(|_| room.copy_from_slice(&whole[..wanted]))
                };
                match came {
                    Ok(came) if came >= wanted => Ok(()),
                    Ok(came) => damaged(format!("it decompresses to {came} bytes and has {wanted}")),
                    Err(why) => damaged(why),
                }
            }
            Block::Zero | Block::Pattern(_) | Block::Plain { .. } => damaged("it is not encoded"),
        }
    }

    /// What is wrong with a block, in words that name it.
    fn named(&self, index: u64, what: &str) -> String {
        let (at, len) = (index * self.block_bytes, self.len_of(index));
        format!("the {} of {len} bytes at byte {at} of the disk: {what}", self.block)
    }

    /// A piece, or zeros and what of it is lost.
    fn read_past(
        &self,
        (index, inside, room): (u64, u64, &mut [u8]),
        lost: &mut Vec<Unreadable>,
    ) -> Result<(), SourceError> {
        let start = index * self.block_bytes + inside;
        let located = self.table.locate(&self.files, index);
        let fault = match located {
            // Of what lies there as it is, sectors are lost and no more.
            Ok(Block::Plain { file, offset }) => match self.place(file, offset, inside, room.len()) {
                Ok((file, offset)) => {
                    let within = file.read_past_errors_at(offset, room)?;
                    lost.extend(within.into_iter().map(|Unreadable { range, why }| Unreadable {
                        range: start + (range.start - offset)..start + (range.end - offset),
                        why,
                    }));
                    return Ok(());
                }
                Err(fault) => fault,
            },
            Ok(block) => match self.read_piece(block, index, inside, room) {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            },
            Err(fault) => fault,
        };
        let why = match fault {
            Fault::Damaged(what) => self.named(index, &what),
            Fault::File(SourceError::Read { why, .. }) if past_errors::is_of_the_medium(&why) => {
                self.named(index, &why.to_string())
            }
            Fault::File(error) => return Err(error),
        };
        room.fill(0);
        lost.push(Unreadable { range: start..start + room.len() as u64, why });
        Ok(())
    }
}

impl<T: Table> Source for Blocks<T> {
    fn size(&self) -> u64 {
        self.size
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn describe(&self) -> String {
        self.what.clone()
    }

    fn read_exact_at(&self, offset: u64, room: &mut [u8]) -> Result<(), SourceError> {
        for (index, inside, place) in self.pieces(offset, room.len()) {
            let piece = &mut room[place];
            let read = self.table.locate(&self.files, index);
            let read = read.and_then(|block| self.read_piece(block, index, inside, piece));
            read.map_err(|fault| match fault {
                Fault::File(error) => error,
                Fault::Damaged(what) => {
                    SourceError::Damaged { path: self.path.clone(), what: self.named(index, &what) }
                }
            })?;
        }
        Ok(())
    }

    fn read_past_errors_at(&self, offset: u64, room: &mut [u8]) -> Result<Vec<Unreadable>, SourceError> {
        let mut lost = Vec::new();
        for (index, inside, place) in self.pieces(offset, room.len()) {
            self.read_past((index, inside, &mut room[place]), &mut lost)?;
        }
        Ok(lost)
    }

    fn identity(&self) -> String {
        format!("{}: {}", self.what, files::identity(&self.files))
    }

    fn changed(&self) -> Option<String> {
        files::changed(&self.files)
    }

    fn is_checksummed(&self) -> bool {
        self.is_checksummed
    }

    fn readers(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from).min(8)
    }

    fn claims(&self) -> Claims {
        self.claims.clone()
    }
}
