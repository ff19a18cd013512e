//! What the export says of itself in a handshake.
//!
//! Owns: names, flags and block sizes. Never: the bytes of the handshake, which `rim::accept` drives.
//! Called by `export`. Tests: below; with real clients, end to end.

use cheetah_core::members::{Member, Role};
use cheetah_nbd::limits::REQUEST_PAYLOAD_BYTES_MAX;
use cheetah_nbd::server::{ExportError, Purpose};
use cheetah_nbd::{ExportInfo, ListEntry, TransmissionFlags};
use cheetah_rim::accept::Exports;
use cheetah_rim::volume::VolumeHandle;

/// The volume, under its name and as the default export.
pub(super) struct One<'a>(pub(super) &'a VolumeHandle);

impl Exports for One<'_> {
    /// A donor lends memory, and reads no volume.
    fn meets(&mut self, member: Member) -> bool {
        matches!(member.role, Role::Client | Role::Admin)
    }

    async fn lookup(&mut self, export: &str, _: Purpose) -> Result<ExportInfo, ExportError> {
        look_up(self.0, export)
    }

    fn list(&self) -> Result<Vec<ListEntry>, ExportError> {
        Ok(vec![ListEntry { name: self.0.name().to_owned(), description: String::new() }])
    }
}

fn look_up(handle: &VolumeHandle, export: &str) -> Result<ExportInfo, ExportError> {
    if !export.is_empty() && export != handle.name() {
        let only = "there is no export of this name here: the default one, \"\", is all there is";
        return Err(ExportError::Unknown(only.to_owned()));
    }
    let mut info = describe(handle.size(), handle.read_only());
    if handle.write_back() {
        // Who wants a write on the disk flushes behind it.
        info.flags = info.flags.without(TransmissionFlags::SEND_FUA);
    }
    Ok(info)
}

/// Multi-conn holds: a write that was answered is with the donor, where every connection reads it.
fn describe(size: u64, read_only: bool) -> ExportInfo {
    let mut flags = TransmissionFlags::HAS_FLAGS
        | TransmissionFlags::SEND_FLUSH
        | TransmissionFlags::SEND_FUA
        | TransmissionFlags::SEND_DF
        | TransmissionFlags::SEND_CACHE
        | TransmissionFlags::CAN_MULTI_CONN;
    if read_only {
        flags |= TransmissionFlags::READ_ONLY;
    } else {
        flags |= TransmissionFlags::SEND_TRIM
            | TransmissionFlags::SEND_WRITE_ZEROES
            | TransmissionFlags::SEND_FAST_ZERO;
    }
    let mut info = ExportInfo::new(size, flags);
    (info.block_min, info.block_preferred, info.block_max) = (1, 4096, REQUEST_PAYLOAD_BYTES_MAX);
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_export_offers_no_change() {
        let changes = [
            TransmissionFlags::SEND_TRIM,
            TransmissionFlags::SEND_WRITE_ZEROES,
            TransmissionFlags::SEND_FAST_ZERO,
        ];
        let (writable, sealed) = (describe(5, false), describe(5, true));
        assert!(changes.iter().all(|flag| writable.flags.contains(*flag) && !sealed.flags.contains(*flag)));
        assert!(sealed.flags.contains(TransmissionFlags::READ_ONLY | TransmissionFlags::CAN_MULTI_CONN));
        assert!(!writable.flags.contains(TransmissionFlags::READ_ONLY));
        assert_eq!((writable.size, writable.block_min), (5, 1));
    }
}
