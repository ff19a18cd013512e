//! The text that describes a VMDK image: its kind, its extents, what it stands on. Called by `vmdk`. Tests:
//! below.

use crate::files::{Fault, damaged};

/// VMware's have some hundred bytes for each extent.
pub(super) const BYTES_MAX: u64 = 1 << 20;
const EXTENTS_MAX: usize = 4096;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub kind: String,
    pub extents: Vec<Extent>,
    /// The name of what it holds the differences from.
    pub parent: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub sectors: u64,
    pub kind: Kind,
    pub name: String,
    /// Of a flat one, in sectors of its file.
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sparse,
    Flat,
    Zero,
}

pub(super) fn is_one(head: &[u8]) -> bool {
    const BEGINS: &[u8] = b"# disk descriptorfile";
    head.len() >= BEGINS.len() && head[..BEGINS.len()].eq_ignore_ascii_case(BEGINS)
}

impl Descriptor {
    pub fn parse(bytes: &[u8]) -> Result<Descriptor, Fault> {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let text = String::from_utf8_lossy(&bytes[..end]);
        let mut found = Descriptor::default();
        let (mut parent_id, mut hint) = (None, None);
        for line in text.lines().map(str::trim) {
            if let Some(extent) = Extent::parse(line)? {
                found.extents.push(extent);
                if found.extents.len() > EXTENTS_MAX {
                    return damaged("its descriptor names more extents than an image has");
                }
                continue;
            }
            let Some((name, value)) = line.split_once('=') else { continue };
            let value = plain(value.trim().trim_matches('"'));
            match name.trim().to_ascii_lowercase().as_str() {
                "createtype" => found.kind = value,
                "parentcid" => parent_id = Some(value.to_ascii_lowercase()),
                "parentfilenamehint" => hint = Some(value),
                _ => {}
            }
        }
        let stands = parent_id.is_some_and(|id| id != "ffffffff");
        found.parent =
            (stands || hint.is_some()).then(|| hint.unwrap_or_else(|| "which it does not name".to_owned()));
        if found.extents.is_empty() {
            return damaged("its descriptor names no extent");
        }
        Ok(found)
    }
}

impl Extent {
    /// `RW 4192256 SPARSE "disk-s001.vmdk"`; `None` for a line of another kind.
    fn parse(line: &str) -> Result<Option<Extent>, Fault> {
        let (head, rest) = match line.split_once('"') {
            Some((head, rest)) => (head, Some(rest)),
            None => (line, None),
        };
        let mut words = head.split_whitespace();
        let access = words.next().unwrap_or_default().to_ascii_uppercase();
        if !["RW", "RDONLY", "NOACCESS"].contains(&access.as_str()) {
            return Ok(None);
        }
        let (name, behind) = rest.and_then(|rest| rest.split_once('"')).unwrap_or_default();
        let sectors = words.next().and_then(|word| word.parse().ok());
        let kind = words.next().unwrap_or_default().to_ascii_uppercase();
        let (Some(sectors), true) = (sectors, access != "NOACCESS") else {
            return damaged(format!("its descriptor has an extent that cannot be read: {}", plain(line)));
        };
        let kind = match kind.as_str() {
            "SPARSE" => Kind::Sparse,
            "FLAT" | "VMFS" => Kind::Flat,
            "ZERO" => Kind::Zero,
            other => return damaged(format!("its extents are of kind {}, which is not read", plain(other))),
        };
        let offset = behind.split_whitespace().next().map_or(Some(0), |word| word.parse().ok());
        let Some(offset) = offset.filter(|_| sectors < 1 << 50) else {
            return damaged(format!("its descriptor has an extent that cannot be read: {}", plain(line)));
        };
        Ok(Some(Extent { sectors, kind, name: name.to_owned(), offset }))
    }

    /// Whether its file can only be one beside the descriptor.
    pub fn is_beside(&self) -> bool {
        let plain = !self.name.contains(['/', '\\', '\0']) && !["", ".", ".."].contains(&self.name.as_str());
        self.kind == Kind::Zero || plain
    }
}

/// What can be shown.
fn plain(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(lines: &str) -> Result<Descriptor, Fault> {
        Descriptor::parse(
            format!("# Disk DescriptorFile\ncreateType=\"twoGbMaxExtentSparse\"\n{lines}\n").as_bytes(),
        )
    }

    #[test]
    fn extents_are_read_as_they_are_written() {
        let found = extents(
            "parentCID=ffffffff\nRW 4192256 SPARSE \"d s001.vmdk\"\nRW 9 FLAT \"d-flat.vmdk\" 7\nRW 1 ZERO",
        );
        let found = found.expect("it is one");
        let made =
            |sectors, kind, name: &str, offset| Extent { sectors, kind, name: name.to_owned(), offset };
        assert_eq!(found.kind, "twoGbMaxExtentSparse");
        assert_eq!(found.parent, None);
        assert_eq!(
            found.extents,
            [
                made(4_192_256, Kind::Sparse, "d s001.vmdk", 0),
                made(9, Kind::Flat, "d-flat.vmdk", 7),
                made(1, Kind::Zero, "", 0)
            ]
        );
        assert!(found.extents.iter().all(Extent::is_beside));
    }

    #[test]
    fn what_lies_elsewhere_is_told_from_what_lies_beside() {
        for name in ["/etc/passwd", "../d.vmdk", "..", "a/b", "a\\b", ""] {
            let found = extents(&format!("RW 9 FLAT \"{name}\" 0")).expect("it is one");
            assert!(!found.extents[0].is_beside(), "{name}");
        }
        let found = extents("parentCID=1234abcd\nparentFileNameHint=\"/etc/passwd\"\nRW 9 SPARSE \"d\"");
        assert_eq!(found.expect("it is one").parent.as_deref(), Some("/etc/passwd"));
    }

    #[test]
    fn what_cannot_be_read_is_damaged() {
        for lines in
            ["", "RW x SPARSE \"d\"", "RW 9 SESPARSE \"d\"", "RW 9 FLAT \"d\" x", "NOACCESS 9 FLAT \"d\""]
        {
            assert!(matches!(extents(lines), Err(Fault::Damaged(_))), "{lines}");
        }
        assert!(extents(&format!("RW {} FLAT \"d\"", u64::MAX)).is_err());
    }
}
