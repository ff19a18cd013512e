//! A sealed volume read to its end: each block against the seal, also where its donor says that it is right.
//!
//! Owns what came of that. Never: the check (`rim::volume::proving`), or whether a donor's own checksums fit
//! (`verify`). Invariant: a byte counts as proved only when it was read. Called by `verify`. Tests:
//! `lab/tests/seal.rs`.

use crate::failure::{Exit, Failure};
use crate::fill;
use crate::load::blocking;
use crate::output::natural;
use crate::progress::Shown;
use cheetah_client::Volume;
use cheetah_core::content::{ByteRange, cover};
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::proofs::Root;
use cheetah_core::units::{show_bytes, show_count};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Proved {
    /// What it was sealed as.
    blake3: Root,
    bytes_proved: u64,
    /// What the source could not give, and was sealed so.
    bytes_unreadable: u64,
    /// What could not be read, or is something else on every donor that has it.
    errors: Vec<ByteRange>,
    /// Blocks that fit the checksums of their donors, and not the seal.
    forged: Vec<Forged>,
}

#[derive(Debug, Serialize)]
struct Forged {
    donor: String,
    blocks: u64,
}

/// Reads all of it.
pub async fn read_through(volume: &Volume, root: Root) -> Result<Proved, Failure> {
    let own = volume.undisclosed()?;
    let handle = own.as_ref().unwrap_or(volume.handle()).clone();
    let bytes = volume.size();
    let content = &volume.lease().granted.content;
    let blake3 = content.sealed.as_ref().map_or(root, |sealed| sealed.blake3());
    let load = content.load.as_ref();
    let known: Vec<ByteRange> = load.map(|load| load.unreadable.clone()).unwrap_or_default();
    let before = wrong_in_memory(volume).await;
    let (mut bytes_proved, mut bytes_unreadable, mut errors) = (0, 0, Vec::new());
    let read = blocking(move || {
        let shown = Shown::start("proving", handle.name(), bytes);
        fill::read_in_order(&handle, 0, bytes, &mut |offset, there| {
            let end = bytes.min(offset + fill::CHUNK_BYTES as u64);
            shown.inc(end - offset);
            if there.is_ok() {
                bytes_proved += end - offset;
                return Ok(true);
            }
            for at in (offset..end).step_by(BLOCK_BYTES as usize) {
                let len = BLOCK_BYTES.min(end - at);
                match fill::read_once(&handle, at, usize::try_from(len).unwrap_or(0))? {
                    Ok(_) => bytes_proved += len,
                    Err(_) if known.iter().any(|range| range.offset < at + len && at < range.end()) => {
                        bytes_unreadable += len;
                    }
                    Err(_) => cover(&mut errors, [ByteRange { offset: at, len }]),
                }
            }
            Ok(true)
        })?;
        shown.finish_and_clear();
        Ok((bytes_proved, bytes_unreadable, errors))
    });
    let read = read.await;
    if let Some(own) = own {
        own.close().await;
    }
    let (bytes_proved, bytes_unreadable, errors) = read?;
    let had = |name: &str| before.iter().find(|(known, _)| known == name).map_or(0, |(_, blocks)| *blocks);
    let mut forged: Vec<Forged> = wrong_in_memory(volume)
        .await
        .into_iter()
        .map(|(donor, blocks)| Forged { blocks: blocks.saturating_sub(had(&donor)), donor })
        .filter(|forged| forged.blocks > 0)
        .collect();
    forged.sort_by_cached_key(|forged| natural(&forged.donor));
    Ok(Proved { blake3, bytes_proved, bytes_unreadable, errors, forged })
}

async fn wrong_in_memory(volume: &Volume) -> Vec<(String, u64)> {
    let report = volume.handle().look().await.unwrap_or_default().report;
    let named = |(id, blocks): &(_, u64)| (volume.lease().donor_name(*id), *blocks);
    report.wrong_in_memory.iter().map(named).collect()
}

impl Proved {
    pub fn is_right(&self) -> bool {
        self.errors.is_empty() && self.forged.is_empty()
    }

    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} were read, and fit the seal: BLAKE3 {}",
            show_bytes(self.bytes_proved),
            self.blake3
        )];
        let lie = |Forged { donor, blocks }: &Forged| {
            format!(
                "FORGED {} on donor {donor} fit its checksums, and not the seal",
                show_count(*blocks, "block")
            )
        };
        lines.extend(self.forged.iter().map(lie));
        let error = |ByteRange { offset, len }: &ByteRange| format!("ERROR  {len} bytes from {offset} on");
        lines.extend(self.errors.iter().map(error));
        lines
    }

    pub fn fault(&self, volume: &str) -> Option<Failure> {
        if self.is_right() {
            return None;
        }
        let donors: Vec<&str> = self.forged.iter().map(|forged| forged.donor.as_str()).collect();
        let lost: u64 = self.errors.iter().map(|range| range.len).sum();
        let what = match (donors.is_empty(), lost) {
            (true, _) => {
                format!("{} of volume '{volume}' cannot be read as they were sealed", show_bytes(lost))
            }
            (false, 0) => format!(
                "donors hold something else than volume '{volume}' was sealed as, and say that it is right: {}; no tool got \
                 that, for others have it right",
                donors.join(", ")
            ),
            (false, _) => format!(
                "donors hold something else than volume '{volume}' was sealed as, and say that it is right: {}; {} of it \
                 answer EIO",
                donors.join(", "),
                show_bytes(lost)
            ),
        };
        let advice = match lost {
            0 => {
                "do not trust these machines: `cheetah leave DONOR` takes one out, and what it held is made from the others"
            }
            _ => {
                "do not trust these machines: delete the volume, take them out with `cheetah leave DONOR --force`, and load it again"
            }
        };
        Some(Failure::new(Exit::DataLost, what).advise(advice))
    }
}
