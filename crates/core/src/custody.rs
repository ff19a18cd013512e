//! The log of custody of a volume: what it is made of, and whether a copy of one is whole.
//!
//! Owns the entries, the bytes that are hashed, and the check of a copy. Never: when something is put
//! down (`coordinator::custody`), signatures, or files. Invariant: an entry is one line of JSON with a
//! line end, its hash is the SHA-256 of just that line, and each but the first has the hash of the one
//! before it in `previous`; so `sha256sum` and `jq` are enough to follow it. Called by
//! `coordinator::custody`, and by whoever verifies. Tests: `tests/coordinator_custody.rs`.

use crate::content::{Check, Source};
use crate::map::{MemberId, PoolId, VolumeId};
use crate::proofs::Root;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The pool that puts it down.
    pub pool: PoolId,
    /// What it is about. Another volume of the same name has another identity and a log of its own.
    pub volume: VolumeId,
    /// The volume's name.
    pub name: String,
    /// From 1 on, without a gap.
    pub sequence: u64,
    /// The hash of the entry before; 64 zeros in the first.
    pub previous: String,
    /// Seconds since 1970 by the coordinator's clock.
    pub at: u64,
    /// The same for people.
    pub utc: String,
    /// Who made the call that brought it about, by its own word, and from which address. Absent when time
    /// did.
    #[serde(default)]
    pub by: Option<String>,
    /// The member that made it, in a pool of members, as its certificate proves.
    #[serde(default)]
    pub member: Option<MemberId>,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened. The name of one stays for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The volume was made.
    Created {
        /// Exact, in bytes.
        size: u64,
        /// Like `mirror:2`.
        redundancy: String,
    },
    /// It was made larger.
    Grown {
        /// Exact, in bytes.
        size: u64,
    },
    /// An examiner's client said what this is, and what it does.
    Case(Case),
    /// Somebody begins to fill it from a source.
    FillBegun {
        /// What it is filled from; for a disk its make, model and serial number.
        source: Source,
        /// Who, by its own word.
        holder: String,
    },
    /// All of the source is there.
    Filled {
        /// Of the source, with zeros for what could not be read.
        md5: String,
        /// The same.
        sha256: String,
        /// Whether what donors hold was compared.
        check: Check,
        /// How the source changed meanwhile.
        changed: Option<String>,
        /// Bytes that could not be read.
        unreadable_bytes: u64,
    },
    /// Nobody changes it any more.
    Sealed {
        /// Who sealed it.
        holder: String,
        /// Of the whole volume, with zeros for what could not be read.
        blake3: Root,
        /// The same.
        sha256: String,
    },
    /// All of it is there, and it was not sealed, though it was to be.
    NotSealed {
        /// A sentence.
        why: String,
    },
    /// A volume was made to hold changes of it, which is not touched by them.
    OverlayMade {
        /// The name of that volume.
        overlay: String,
    },
    /// Who filled it ended before the end of the source.
    FillEnded {
        /// Bytes that were there by then.
        bytes_done: u64,
    },
    /// Somebody has it.
    Attached {
        /// Who, by its own word: user, host and process.
        holder: String,
        /// Without the right to write.
        read_only: bool,
    },
    /// It was given back, or its time ran out.
    Detached {
        /// As when it was attached.
        holder: String,
        /// How long it was attached.
        seconds: u64,
        /// False: whoever had it ended without a word.
        given_back: bool,
    },
    /// The first write of a tool since it was made or filled.
    Written {
        /// Who had it.
        holder: String,
        /// False: whoever had it for writing ended without a word.
        certain: bool,
    },
    /// Donors are gone, and data with them.
    DataLost {
        /// The bytes of the volume that cannot be read now.
        bytes: u64,
    },
    /// Donors of a volume with write-back stopped, more than redundancy covers: what they had in memory alone
    /// is lost, which no flush had covered.
    Unflushed {
        /// The bytes of the volume, at most, that may be older than what was written last.
        bytes: u64,
    },
    /// A donor that held a part of it is gone.
    DonorLost {
        /// Its name.
        donor: String,
        /// Its machine.
        host: String,
    },
    /// A donor missed a write, and what it held is rebuilt.
    DonorSetAside {
        /// Its name.
        donor: String,
        /// As the writer said.
        why: String,
    },
    /// Blocks that were not what was written.
    WrongBlocks {
        /// The donor that held them, or whose answer was wrong.
        donor: String,
        /// How many were found since the last entry of that.
        blocks: u64,
        /// How many of the attachment's were put right so far.
        healed: u64,
    },
    /// Somebody copied it out.
    Exported {
        /// Where to.
        file: String,
        /// Bytes.
        bytes: u64,
        /// Of what the volume gave, with zeros for what could not be read.
        sha256: String,
    },
    /// So much is put down that from here on only fills, losses, exports and the end are.
    Full,
    /// The volume is gone; its log stays.
    Deleted,
}

/// What an examiner's client says of itself and of the case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// The number or name of the case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case: Option<String>,
    /// The number of the evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    /// Who examines it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub examiner: Option<String>,
    /// Anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// The version of the client.
    #[serde(default)]
    pub version: String,
    /// Its command line, without secrets.
    #[serde(default)]
    pub command: String,
}

impl Case {
    /// Whether it says anything of the case.
    #[must_use]
    pub fn is_named(&self) -> bool {
        [&self.case, &self.evidence, &self.examiner, &self.notes].into_iter().any(Option::is_some)
    }
}

/// What a client has put down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Said {
    /// About the case, before it begins.
    Case(Case),
    /// That it copied the volume out.
    Exported {
        /// Where to.
        file: String,
        /// Bytes.
        bytes: u64,
        /// Of what the volume gave, in hexadecimal digits.
        sha256: String,
    },
}

/// The end of a log: who knows it knows that nothing before it is missing or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Of the last entry.
    pub sequence: u64,
    /// Its hash, in hexadecimal digits.
    pub hash: String,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.sequence, self.hash)
    }
}

/// A text that is no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHead;

impl fmt::Display for BadHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write a head as SEQUENCE:HASH, the hash in 64 hexadecimal digits")
    }
}

impl std::error::Error for BadHead {}

impl FromStr for Head {
    type Err = BadHead;

    fn from_str(text: &str) -> Result<Self, BadHead> {
        let (sequence, hash) = text.split_once(':').ok_or(BadHead)?;
        let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let sequence = sequence.parse().ok().filter(|_| is_hash).ok_or(BadHead)?;
        Ok(Head { sequence, hash: hash.to_ascii_lowercase() })
    }
}

/// What stands for the entry before the first.
#[must_use]
pub fn no_hash() -> String {
    "0".repeat(64)
}

/// The hash of an entry, from its line without the line end.
#[must_use]
pub fn hash_of(line: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(line.as_bytes());
    hash.update(b"\n");
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The line of an entry, without the line end.
#[must_use]
pub fn line_of(entry: &Entry) -> String {
    serde_json::to_string(entry).expect("the shapes of an entry have string keys only")
}

/// What a trusted comment of the log's signature says.
#[must_use]
pub fn comment_of(pool: PoolId, volume: VolumeId, head: &Head) -> String {
    format!("cheetah custody log, pool {pool}, volume {volume}, head {head}")
}

/// The head in such a comment.
#[must_use]
pub fn head_in(comment: &str) -> Option<Head> {
    comment.rsplit_once("head ")?.1.trim().parse().ok()
}

/// A log that is whole in itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Its entries.
    pub entries: Vec<Entry>,
    /// The hash of each.
    pub hashes: Vec<String>,
}

impl Whole {
    /// Its end. None is empty.
    #[must_use]
    pub fn head(&self) -> Head {
        let hash = self.hashes.last().cloned().unwrap_or_else(no_hash);
        Head { sequence: self.hashes.len() as u64, hash }
    }

    /// Whether it has all entries up to a head that was known before.
    ///
    /// # Errors
    /// What is missing or another.
    pub fn reaches(&self, known: &Head) -> Result<(), Broken> {
        let last = self.hashes.len() as u64;
        let index = usize::try_from(known.sequence).unwrap_or(usize::MAX).wrapping_sub(1);
        match self.hashes.get(index) {
            None if known.sequence > last => Err(Broken {
                line: last,
                why: format!(
                    "the log ends with entry {last}, and the head that is known is entry {}: the last of them were cut off",
                    known.sequence
                ),
            }),
            Some(hash) if *hash == known.hash => Ok(()),
            _ => Err(Broken {
                line: known.sequence,
                why: format!(
                    "entry {} is not the one that is known: its hash is {}, and {} is known",
                    known.sequence,
                    self.hashes.get(index).map_or("none", String::as_str),
                    known.hash
                ),
            }),
        }
    }
}

/// Where a copy of a log is not as it was written, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// From 1 on.
    pub line: u64,
    /// A sentence.
    pub why: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// Follows a log from its first line to its last.
///
/// # Errors
/// The first entry that is wrong.
pub fn check(text: &str) -> Result<Whole, Broken> {
    let (mut entries, mut hashes) = (Vec::<Entry>::new(), Vec::<String>::new());
    if text.is_empty() {
        return Err(Broken { line: 1, why: "the log is empty".to_owned() });
    }
    for (at, line) in text.split_inclusive('\n').enumerate() {
        let number = at as u64 + 1;
        let broken = |why: String| Err(Broken { line: number, why });
        let Some(line) = line.strip_suffix('\n') else {
            return broken(format!("entry {number} is cut off: its line has no end"));
        };
        let entry: Entry = match serde_json::from_str(line) {
            Ok(entry) => entry,
            Err(why) => return broken(format!("entry {number} was changed: it cannot be read ({why})")),
        };
        if entry.sequence != number {
            return broken(out_of_order(number, entry.sequence));
        }
        let before = hashes.last().cloned().unwrap_or_else(no_hash);
        if entry.previous != before {
            return broken(match number {
                1 => "the first entry follows another: what was before it is missing".to_owned(),
                _ => format!(
                    "entry {} was changed after it was put down, or entry {number}: {number} follows one with the hash {}, \
                     and {} has {before}",
                    number - 1,
                    entry.previous,
                    number - 1
                ),
            });
        }
        if entries.first().is_some_and(|first| (first.pool, first.volume) != (entry.pool, entry.volume)) {
            return broken(format!("entry {number} is another volume's"));
        }
        hashes.push(hash_of(line));
        entries.push(entry);
    }
    Ok(Whole { entries, hashes })
}

fn out_of_order(wanted: u64, found: u64) -> String {
    match found > wanted {
        true if found - wanted == 1 => format!(
            "entry {found} stands where entry {wanted} belongs: entries were reordered, or entry {wanted} is missing"
        ),
        true => format!(
            "entry {found} stands where entry {wanted} belongs: entries were reordered, or entries {wanted} to {} are missing",
            found - 1
        ),
        false => {
            format!("entry {found} stands where entry {wanted} belongs: entries were reordered or repeated")
        }
    }
}
