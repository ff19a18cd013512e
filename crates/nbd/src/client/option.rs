//! The data of options as a client writes it, and of the option replies it reads.
//!
//! Owns: layouts, and whether what a server says of an export is possible. Never: the order of the
//! handshake. Key invariant: an export that gets out has a size below 2^63 and usable block sizes.
//! Tests: `tests/client_options.rs`, `tests/pair.rs`.

use super::handshake::Want;
use crate::export::{ExportInfo, ListEntry};
use crate::limits::{
    BLOCK_MIN_BYTES_MAX, EXPORT_BYTES_MAX, MESSAGE_BYTES_MAX, REQUEST_PAYLOAD_BYTES_MAX, STRING_BYTES_MAX,
};
use crate::proto::{BASE_ALLOCATION, CHEETAH_AUTH, CHEETAH_CONTEXT, CHEETAH_DIRTY, TransmissionFlags, info};
use crate::violation::Violation;
use crate::wire::{Fields, len32, lossy};

/// What INFO replies said so far.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Info {
    size_and_flags: Option<(u64, TransmissionFlags)>,
    blocks: Option<(u32, u32, u32)>,
    description: String,
}

impl Info {
    pub(super) const EMPTY: Self = Self { size_and_flags: None, blocks: None, description: String::new() };

    /// The export, if its size was said.
    pub(super) fn export(self) -> Option<Result<ExportInfo, Violation>> {
        let (size, flags) = self.size_and_flags?;
        Some(export(size, flags).map(|mut export| {
            if let Some((min, preferred, max)) = self.blocks {
                (export.block_min, export.block_preferred, export.block_max) = (min, preferred, max);
            }
            export.description = self.description;
            export
        }))
    }
}

pub(super) fn export(size: u64, flags: TransmissionFlags) -> Result<ExportInfo, Violation> {
    if size > EXPORT_BYTES_MAX {
        return Err(Violation::ExportSize(size));
    }
    // Without HAS_FLAGS the other bits mean nothing.
    let said = flags.contains(TransmissionFlags::HAS_FLAGS);
    Ok(ExportInfo::new(size, if said { flags } else { TransmissionFlags::EMPTY }))
}

/// Reads one INFO reply into `said`. An error of None is a malformed reply.
pub(super) fn info(data: &[u8], said: &mut Info) -> Result<(), Option<Violation>> {
    let mut fields = Fields(data);
    match fields.u16().ok_or(None)? {
        info::EXPORT => {
            let (size, flags) = (fields.u64().ok_or(None)?, fields.u16().ok_or(None)?);
            said.size_and_flags = Some((size, TransmissionFlags(flags)));
        }
        info::BLOCK_SIZE => {
            let mut size = || fields.u32().ok_or(None);
            let (min, preferred, max) = (size()?, size()?, size()?);
            let possible = min.is_power_of_two() && min <= BLOCK_MIN_BYTES_MAX;
            if !possible || preferred < min || max < min {
                return Err(Some(Violation::BlockSizes { min, preferred, max }));
            }
            let max = max.min(REQUEST_PAYLOAD_BYTES_MAX);
            said.blocks = Some((min, preferred.min(max), max));
        }
        info::DESCRIPTION => said.description = lossy(fields.rest(), STRING_BYTES_MAX),
        // The name is the one asked for; what is unknown is to be ignored.
        _ => {
            fields.rest();
        }
    }
    if fields.is_empty() { Ok(()) } else { Err(None) }
}

/// The id and the name of a selected metadata context.
pub(super) fn meta_context(data: &[u8]) -> Option<(u32, &[u8])> {
    let mut fields = Fields(data);
    Some((fields.u32()?, fields.rest()))
}

/// One export of a list. A name that is not text cannot be asked for, so it is malformed.
pub(super) fn server(data: &[u8]) -> Option<ListEntry> {
    let mut fields = Fields(data);
    let name = fields.counted().filter(|name| name.len() <= STRING_BYTES_MAX)?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    Some(ListEntry { name, description: lossy(fields.rest(), STRING_BYTES_MAX) })
}

/// The words of an error reply.
pub(super) fn message(data: &[u8]) -> String {
    lossy(data, MESSAGE_BYTES_MAX)
}

/// The data of GO: the export, and what to be told of it beside size and flags.
pub(super) fn info_query(export: &str) -> Vec<u8> {
    let mut data = counted(export);
    let wanted = [info::BLOCK_SIZE, info::DESCRIPTION];
    data.extend_from_slice(&2u16.to_be_bytes());
    data.extend(wanted.iter().flat_map(|info| info.to_be_bytes()));
    data
}

/// The data of SET_META_CONTEXT.
pub(super) fn meta_query(want: &Want) -> Vec<u8> {
    let contexts = [
        (want.base_allocation, BASE_ALLOCATION),
        (want.dirty, CHEETAH_DIRTY),
        (want.context, CHEETAH_CONTEXT),
        (want.auth, CHEETAH_AUTH),
    ];
    let wanted = contexts.iter().filter(|(is_wanted, _)| *is_wanted);
    let mut data = counted(&want.export);
    data.extend_from_slice(&(wanted.clone().count() as u32).to_be_bytes());
    wanted.for_each(|(_, name)| data.extend_from_slice(&counted(name)));
    data
}

fn counted(text: &str) -> Vec<u8> {
    let mut data = len32(text.as_bytes()).to_be_bytes().to_vec();
    data.extend_from_slice(text.as_bytes());
    data
}
