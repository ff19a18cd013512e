//! What the pool signs: the manifest of a sealed volume, and which files the report of a validation is.
//! Never: behaviour, or the signature's making (`rim::control::signing`).

use crate::content::{ByteRange, Source, UnixSeconds};
use crate::custody::{Case, Head};
use crate::map::{PoolId, VolumeId};
use crate::proofs::Root;
use crate::text::is_hex_of_256_bits;
use serde::{Deserialize, Serialize};

/// What a sealed volume holds. As JSON text it is what the pool signs; `docs/FORMATS.md` describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// `cheetah manifest`.
    pub format: String,
    /// Grows when a field changes its meaning: 2 of an encrypted volume, else 1.
    pub version: u32,
    /// The volume's name when it was asked for.
    pub volume: String,
    /// The identity of the volume, which no other has.
    pub id: VolumeId,
    /// The pool that holds it, and signs.
    pub pool: PoolId,
    /// Bytes of the volume.
    pub bytes: u64,
    /// Of all of them, with zeros where the source could not be read.
    pub hashes: ManifestHashes,
    /// Of an encrypted volume, whose donors hold other bytes than those that were hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<ManifestCiphertext>,
    /// True: they are of what donors gave back. False: of what was sent to donors, which confirmed it.
    pub hashed_by_reading: bool,
    /// Seconds since 1970.
    pub sealed_at: UnixSeconds,
    /// The holder of the lease that it was sealed under.
    pub sealed_by: String,
    /// What an examiner's client said of the case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case: Option<Case>,
    /// Where the volume's log of custody ended when it was sealed: a log that has this is whole up to there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custody: Option<Head>,
    /// Absent: tools wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Seconds since 1970: the beginning of the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_at: Option<UnixSeconds>,
    /// The source changed while it was read: how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_changed: Option<String>,
    /// What the source could not give: these ranges answer an error.
    pub unreadable: Vec<ByteRange>,
}

/// The version of the manifest of an encrypted volume: its blocks are not proved by its BLAKE3.
pub const MANIFEST_OF_CIPHERTEXT: u32 = 2;

/// What proves each block of an encrypted volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestCiphertext {
    /// 64 digits: what the tree over ciphertext, nonces and authentication tags comes to.
    pub root: Root,
}

impl Manifest {
    /// What each block is proved by.
    #[must_use]
    pub fn root(&self) -> Root {
        self.encrypted.as_ref().map_or(self.hashes.blake3, |encrypted| encrypted.root)
    }
}

/// Hashes of a whole volume, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestHashes {
    /// 32 digits.
    pub md5: String,
    /// 40 digits.
    pub sha1: String,
    /// 64 digits.
    pub sha256: String,
    /// 64 digits. Every block is proved by this one, unless the volume is encrypted.
    pub blake3: Root,
}

/// A text, and what proves that the pool stands for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedText {
    /// The text.
    pub text: String,
    /// What stands in the signature file of minisign.
    pub signature: String,
    /// The pool's public key, as `minisign -P` takes it.
    pub key: String,
}

/// The files of a report of `cheetah validate`, by their SHA-256. The pool signs these, and nothing that a
/// caller wrote: so nothing that it signs here can be taken for a manifest or a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validation {
    /// Of the page: 64 hexadecimal digits.
    pub html: String,
    /// Of the same for programs.
    pub json: String,
}

/// What the page of such a report is called.
pub const VALIDATION_HTML: &str = "validation.html";
/// The same for programs.
pub const VALIDATION_JSON: &str = "validation.json";

impl Validation {
    /// Whether each is the SHA-256 of something.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        is_hex_of_256_bits(&self.html) && is_hex_of_256_bits(&self.json)
    }

    /// As `sha256sum -c` reads it.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}  {VALIDATION_HTML}\n{}  {VALIDATION_JSON}\n", self.html, self.json)
    }
}

/// What is to be signed of a validation, and what the pool itself says beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validated {
    /// As `sha256sum -c` reads it.
    pub text: String,
    /// Whose report it is, and when it came.
    pub comment: String,
}
