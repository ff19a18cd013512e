//! Hashes that a disk is expected to have: of the command, and of files beside an image.
//!
//! Owns: reading both, and comparing. Never: what an image itself claims (`claims`), or hashing (`fill`). A
//! file beside an image says what that file's bytes are, so of an image in a container it says nothing of the
//! disk, and is not looked for. Called by `load` and `filler`. Tests: below, `lab/tests/remote.rs`.

use crate::fill::Hashes;
use crate::output;
use cheetah_core::content::ByteRange;
use cheetah_core::units::show_count;
use cheetah_source::{Options, Source};
use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Of a file beside an image: a list of hashes of a whole directory has less.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Md5,
    Sha1,
    Sha256,
}

/// `sha256:HEX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hash {
    kind: Kind,
    /// In small letters.
    digits: String,
}

/// A hash that the disk is to have, who says so, and whether it has.
#[derive(Clone, Debug, Serialize)]
pub struct Expected {
    #[serde(serialize_with = "as_text")]
    hash: Hash,
    /// `--expect`, or a file.
    by: String,
    same: bool,
}

fn as_text<S: Serializer>(hash: &Hash, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{}:{}", hash.kind.ending(), hash.digits))
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Md5, Kind::Sha1, Kind::Sha256];

    fn ending(self) -> &'static str {
        match self {
            Kind::Md5 => "md5",
            Kind::Sha1 => "sha1",
            Kind::Sha256 => "sha256",
        }
    }

    /// As it is called.
    fn name(self) -> &'static str {
        match self {
            Kind::Md5 => "MD5",
            Kind::Sha1 => "SHA-1",
            Kind::Sha256 => "SHA-256",
        }
    }

    fn digits(self) -> usize {
        match self {
            Kind::Md5 => 32,
            Kind::Sha1 => 40,
            Kind::Sha256 => 64,
        }
    }

    fn of(self, is: &Hashes) -> &str {
        match self {
            Kind::Md5 => &is.md5,
            Kind::Sha1 => &is.sha1,
            Kind::Sha256 => &is.sha256,
        }
    }

    fn hash(self, digits: &str) -> Option<Hash> {
        let is_one = digits.len() == self.digits() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_one.then(|| Hash { kind: self, digits: digits.to_ascii_lowercase() })
    }
}

impl FromStr for Hash {
    type Err = String;

    fn from_str(text: &str) -> Result<Hash, String> {
        let (kind, digits) = text.split_once(':').unwrap_or(("", text));
        let kind = Kind::ALL.into_iter().find(|of| kind.eq_ignore_ascii_case(of.ending()));
        let kind = kind.ok_or("write md5:HEX, sha1:HEX or sha256:HEX")?;
        kind.hash(digits).ok_or_else(|| format!("{} has {} hexadecimal digits", kind.name(), kind.digits()))
    }
}

/// What the disk is to be: by the command, and by files beside it.
pub fn expected(source: &dyn Source, given: &[Hash]) -> Vec<(Hash, String)> {
    let mut all: Vec<_> = given.iter().map(|hash| (hash.clone(), "--expect".to_owned())).collect();
    if !source.is_bare() || !source.has_neighbours() {
        return all;
    }
    for kind in Kind::ALL {
        let mut beside = source.path().as_os_str().to_owned();
        beside.push(format!(".{}", kind.ending()));
        let beside = PathBuf::from(beside);
        let Some(text) = read(&beside) else { continue };
        match hash_of(&text, kind, source.path()) {
            Some(hash) => all.push((hash, beside.display().to_string())),
            None => output::note(&format!(
                "{} names no {} of {}: nothing is compared with it",
                beside.display(),
                kind.name(),
                source.path().display()
            )),
        }
    }
    all
}

fn read(path: &Path) -> Option<String> {
    let file = cheetah_source::open(path, &Options { raw: true, ..Options::default() }).ok()?;
    let mut bytes = vec![0; usize::try_from(file.size().min(BYTES_MAX)).ok()?];
    file.read_exact_at(0, &mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The hash of a file in what `md5sum` and its kin write, with or without --tag, or in a line of its own.
fn hash_of(text: &str, kind: Kind, path: &Path) -> Option<Hash> {
    let name = path.file_name()?.to_string_lossy();
    let is_it = |other: &str| Path::new(other).file_name().is_some_and(|of| of.to_string_lossy() == name);
    text.lines().map(str::trim).find_map(|line| {
        if let Some((tag, digits)) = line.rsplit_once(" = ") {
            let (_, other) = tag.split_once(" (")?;
            return is_it(other.strip_suffix(')')?).then(|| kind.hash(digits))?;
        }
        match line.split_once([' ', '\t']) {
            None => kind.hash(line),
            Some((digits, other)) => {
                is_it(other.trim_start_matches([' ', '\t', '*'])).then(|| kind.hash(digits))?
            }
        }
    })
}

/// Which of these the disk has.
pub fn compared(expected: Vec<(Hash, String)>, is: &Hashes) -> Vec<Expected> {
    let one = |(hash, by): (Hash, String)| {
        let same = hash.kind.of(is) == hash.digits;
        Expected { hash, by, same }
    };
    expected.into_iter().map(one).collect()
}

impl Expected {
    pub fn line(&self) -> String {
        let Expected { hash: Hash { kind, digits }, by, same } = self;
        match same {
            true => format!("{} as {by} expects", kind.name()),
            false => format!("{} DIFFERS: {by} expects {digits}", kind.name()),
        }
    }
}

/// What is wrong, if anything is.
pub fn fault(expected: &[Expected], file: &str, volume: &str, unreadable: &[ByteRange]) -> Option<String> {
    let wrong = differing(expected);
    if wrong.is_empty() {
        return None;
    }
    let why = match unreadable.len() as u64 {
        0 => "it is another disk, or was changed since".to_owned(),
        count => format!("zeros stand in it for {} that could not be read", show_count(count, "range")),
    };
    Some(format!(
        "{file} does not have {}: {why}. Volume '{volume}' holds what was read",
        wrong.join(" nor ")
    ))
}

/// Those that it has not.
pub fn differing(expected: &[Expected]) -> Vec<String> {
    let name = |Expected { hash, by, .. }: &Expected| format!("the {} that {by} expects", hash.kind.name());
    expected.iter().filter(|one| !one.same).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MD5: &str = "d41d8cd98f00b204e9800998ecf8427e";

    #[test]
    fn a_hash_is_told_from_what_is_none() {
        let hash: Hash = format!("MD5:{}", MD5.to_uppercase()).parse().expect("a hash");
        assert_eq!(hash, Hash { kind: Kind::Md5, digits: MD5.to_owned() });
        for bad in [MD5, "md5:", "sha256:d41d8cd98f00b204e9800998ecf8427e", "crc:12", "md5:zz"] {
            assert!(bad.parse::<Hash>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_tools_write_is_read() {
        let of = |text: &str| hash_of(text, Kind::Md5, Path::new("/e/disk.raw")).map(|hash| hash.digits);
        let found = Some(MD5.to_owned());
        assert_eq!(of(MD5), found);
        assert_eq!(of(&format!("{MD5}  disk.raw\n")), found);
        assert_eq!(of(&format!("{MD5} *images/disk.raw\n")), found);
        assert_eq!(of(&format!("MD5 (disk.raw) = {}\n", MD5.to_uppercase())), found);
        let others = "00000000000000000000000000000000  other.raw\n";
        assert_eq!(of(&format!("{others}{MD5}  disk.raw\n")), found);
        for none in ["", others, "hello", "MD5 (other) = d41d8cd98f00b204e9800998ecf8427e"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(hash_of(MD5, Kind::Sha1, Path::new("disk.raw")), None);
    }

    #[test]
    fn what_differs_is_said() {
        let is = Hashes { md5: MD5.into(), sha1: "bb".into(), sha256: "cc".into() };
        let hash = |digits: &str| Hash { kind: Kind::Md5, digits: digits.into() };
        let all = compared(vec![(hash(MD5), "--expect".into()), (hash("00"), "disk.md5".into())], &is);
        assert_eq!(all[0].line(), "MD5 as --expect expects");
        assert_eq!(all[1].line(), "MD5 DIFFERS: disk.md5 expects 00");
        assert!(fault(&all[..1], "disk", "case", &[]).is_none());
        let said = fault(&all, "disk", "case", &[]).expect("one differs");
        assert!(
            said.starts_with("disk does not have the MD5 that disk.md5 expects: it is another"),
            "{said}"
        );
        let json = serde_json::to_value(&all[0]).expect("it has a form");
        assert_eq!(json["hash"], format!("md5:{MD5}"));
    }
}
