//! Numbers at fixed places of structures on a disk.
//!
//! Owns: reading them from bytes that may be too few, which is `None` and never a panic. Called by all
//! readers. Tests: theirs.

pub(crate) fn le16(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u16::from_le_bytes(array(bytes, at)?)))
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(array(bytes, at)?)))
}

pub(crate) fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(array(bytes, at)?))
}

pub(crate) fn byte(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at).map(|byte| u64::from(*byte))
}

/// Whether these bytes stand there.
pub(crate) fn has(bytes: &[u8], at: usize, what: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(what))
}

pub(crate) fn array<const LEN: usize>(bytes: &[u8], at: usize) -> Option<[u8; LEN]> {
    bytes.get(at..at.checked_add(LEN)?)?.try_into().ok()
}
