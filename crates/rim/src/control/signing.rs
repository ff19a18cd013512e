//! The pool's signatures, in the form of minisign, so that anybody verifies them with `minisign -V`.
//!
//! Owns making the key, signing, verifying, and the text of signatures and public keys. Never: what is
//! signed, or where the key is kept. Invariants: the private key leaves this module as the stored record
//! alone; what is signed is the BLAKE2b-512 of a file, and a trusted comment with it. Called by `machine`
//! (which signs), and by whoever verifies. Tests: below, with Debian's minisign too.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use blake2::{Blake2b512, Digest};
use cheetah_core::coordinator::SigningRecord;
use cheetah_core::text::hex;
use std::fmt;
use std::str::FromStr;

/// Of a signature over the hash of a file, and of a key.
const PREHASHED: [u8; 2] = *b"ED";
const KEY: [u8; 2] = *b"Ed";
const ID_BYTES: usize = 8;
const PUBLIC_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 64;
/// minisign reads no longer ones.
const COMMENT_BYTES_MAX: usize = 1024;
const UNTRUSTED: &str = "untrusted comment: ";
const TRUSTED: &str = "trusted comment: ";

/// Why there is no key: what is stored is none, or the kernel gives no random numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadKey(String);

impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadKey {}

/// Why a signature is not good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadSignature {
    /// It is no signature of minisign over the hash of a file.
    Form(&'static str),
    /// Another key than the one that was named has signed.
    OtherKey {
        /// The number of the key that signed, by its own word.
        signed: String,
        /// The number of the key that was named.
        named: String,
    },
    /// The file is not what was signed, or the named key did not sign it.
    File,
    /// The trusted comment is not what was signed.
    Comment,
}

impl fmt::Display for BadSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadSignature::Form(what) => write!(f, "it is no signature in minisign's form: {what}"),
            BadSignature::OtherKey { signed, named } => {
                write!(
                    f,
                    "key {signed} signed it, and not key {named}: another pool's, or not what was signed"
                )
            }
            BadSignature::File => f.write_str("the file is not what was signed, or another key signed it"),
            BadSignature::Comment => f.write_str("the trusted comment is not what was signed"),
        }
    }
}

impl std::error::Error for BadSignature {}

/// What the pool signs with.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    id: [u8; ID_BYTES],
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &show_id(&self.id)).finish_non_exhaustive()
    }
}

/// What others verify with. Its text is what `minisign -P` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey {
    id: [u8; ID_BYTES],
    point: [u8; PUBLIC_BYTES],
}

impl SigningKey {
    /// A key that nobody has, as it is stored.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn generate() -> Result<SigningRecord, BadKey> {
        let (mut id, mut seed) = ([0; ID_BYTES], [0; PUBLIC_BYTES]);
        for part in [&mut id[..], &mut seed[..]] {
            aws_lc_rs::rand::fill(part).map_err(|_| BadKey("there are no random numbers".to_owned()))?;
        }
        Ok(SigningRecord { id: hex(&id), seed: hex(&seed) })
    }

    /// As it is stored.
    ///
    /// # Errors
    /// What is stored is no key.
    pub fn of(record: &SigningRecord) -> Result<SigningKey, BadKey> {
        let bad = || BadKey("the pool's signing key cannot be read".to_owned());
        let id = unhex::<ID_BYTES>(&record.id).ok_or_else(bad)?;
        let seed = unhex::<PUBLIC_BYTES>(&record.seed).ok_or_else(bad)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| bad())?;
        Ok(SigningKey { pair, id })
    }

    /// What others verify with.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let point = self.pair.public_key().as_ref().try_into().expect("a point of Ed25519 has 32 bytes");
        PublicKey { id: self.id, point }
    }

    /// The text of the signature file of these bytes. The trusted comment is signed with them, is one
    /// line, and is cut at 1024 bytes.
    #[must_use]
    pub fn sign(&self, file: &[u8], trusted_comment: &str) -> String {
        let comment = one_line(trusted_comment);
        let signature = self.pair.sign(&Blake2b512::digest(file));
        let all = self.pair.sign(&[signature.as_ref(), comment.as_bytes()].concat());
        let head = [&PREHASHED[..], &self.id, signature.as_ref()].concat();
        format!(
            "{UNTRUSTED}signature of a cheetah pool, key {}\n{}\n{TRUSTED}{comment}\n{}\n",
            show_id(&self.id),
            BASE64.encode(head),
            BASE64.encode(all.as_ref())
        )
    }
}

/// Verifies the text of a signature file, and gives its trusted comment.
///
/// # Errors
/// What is wrong; then nothing that the signature says is to be believed.
pub fn verify(file: &[u8], signature: &str, key: &PublicKey) -> Result<String, BadSignature> {
    let mut lines = signature.lines();
    let mut next = |what| lines.next().ok_or(BadSignature::Form(what));
    if !next("it is empty")?.starts_with("untrusted comment:") {
        return Err(BadSignature::Form("its first line is no untrusted comment"));
    }
    let head = BASE64.decode(next("it has one line")?.trim());
    let head = head.map_err(|_| BadSignature::Form("its second line is no base64"))?;
    let comment = next("it has two lines")?.strip_prefix(TRUSTED);
    let comment = comment.ok_or(BadSignature::Form("its third line is no trusted comment"))?;
    let all = BASE64.decode(next("it has three lines")?.trim());
    let all = all.map_err(|_| BadSignature::Form("its fourth line is no base64"))?;
    if head.len() != 2 + ID_BYTES + SIGNATURE_BYTES || head[..2] != PREHASHED {
        return Err(BadSignature::Form("its second line is no signature over a hash"));
    }
    let (id, signed) = head[2..].split_at(ID_BYTES);
    if id != key.id {
        return Err(BadSignature::OtherKey { signed: show_id(id), named: show_id(&key.id) });
    }
    let point = UnparsedPublicKey::new(&ED25519, &key.point);
    point.verify(&Blake2b512::digest(file), signed).map_err(|_| BadSignature::File)?;
    let both = [signed, comment.as_bytes()].concat();
    point.verify(&both, &all).map_err(|_| BadSignature::Comment)?;
    Ok(comment.to_owned())
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode([&KEY[..], &self.id, &self.point].concat()))
    }
}

/// The text that `minisign -P` takes, or that of the file that `minisign -p` takes.
impl FromStr for PublicKey {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        let bad = || BadKey("that is no public key of minisign: 56 characters that begin with RW".to_owned());
        let line = text.lines().find(|line| !line.starts_with("untrusted comment:")).ok_or_else(bad)?;
        let bytes = BASE64.decode(line.trim()).map_err(|_| bad())?;
        let rest = bytes.strip_prefix(&KEY[..]).ok_or_else(bad)?;
        let (id, point) = rest.split_at_checked(ID_BYTES).ok_or_else(bad)?;
        let (id, point) = (id.try_into().map_err(|_| bad())?, point.try_into().map_err(|_| bad())?);
        Ok(PublicKey { id, point })
    }
}

fn one_line(comment: &str) -> String {
    let mut line: String = comment.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut bytes = line.len().min(COMMENT_BYTES_MAX - TRUSTED.len());
    while !line.is_char_boundary(bytes) {
        bytes -= 1;
    }
    line.truncate(bytes);
    line
}

/// As minisign shows it: a number, the last byte first.
fn show_id(id: &[u8]) -> String {
    id.iter().rev().map(|byte| format!("{byte:02X}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Command;

    fn key() -> SigningKey {
        SigningKey::of(&SigningKey::generate().expect("random numbers")).expect("a key")
    }

    #[test]
    fn what_was_signed_verifies_and_nothing_else() {
        let (key, other) = (key(), key());
        let text = key.sign(b"a file", "head 3:abc\nand more");
        let comment = verify(b"a file", &text, &key.public()).expect("good");
        assert_eq!(comment, "head 3:abc and more");
        assert_eq!(verify(b"a fila", &text, &key.public()), Err(BadSignature::File));
        let forged = text.replace("head 3", "head 2");
        assert_eq!(verify(b"a file", &forged, &key.public()), Err(BadSignature::Comment));
        let by_other = verify(b"a file", &text, &other.public());
        assert!(matches!(by_other, Err(BadSignature::OtherKey { .. })), "{by_other:?}");
        let same_id = PublicKey { id: key.id, ..other.public() };
        assert_eq!(verify(b"a file", &text, &same_id), Err(BadSignature::File));
        for cut in 0..text.len() - 1 {
            assert!(verify(b"a file", &text[..cut], &key.public()).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let record = SigningKey::generate().expect("random numbers");
        let (one, again) = (SigningKey::of(&record).expect("a key"), SigningKey::of(&record).expect("a key"));
        let public = one.public();
        assert_eq!(again.public(), public);
        assert_eq!(public.to_string().parse(), Ok(public));
        assert_eq!(format!("untrusted comment: minisign public key\n{public}\n").parse(), Ok(public));
        for bad in ["", "RW", "RWQ=", "x", &public.to_string()[1..]] {
            assert!(bad.parse::<PublicKey>().is_err(), "{bad}");
        }
        let short = SigningRecord { seed: record.seed[1..].to_owned(), ..record.clone() };
        assert!(SigningKey::of(&short).is_err());
        assert!(!format!("{record:?} {one:?}").contains(&record.seed));
    }

    #[test]
    fn minisign_verifies_what_we_sign_and_we_what_it_signs() {
        let dir = std::env::temp_dir().join(format!("cheetah-signing-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let at = |name: &str| dir.join(name);
        let run = |arguments: &[&str]| {
            let ran = Command::new("minisign").current_dir(&dir).args(arguments).output();
            ran.expect("minisign runs: scripts/setup installs it")
        };
        let (key, write) =
            (key(), |name: &str, text: &[u8]| std::fs::write(at(name), text).expect("written"));
        let read = |path: &Path| std::fs::read_to_string(path).expect("read");
        let (public, long) = (key.public().to_string(), "ä".repeat(3_000));
        for comment in ["head 1:00", "", &long] {
            write("file", b"what is signed\n");
            write("file.minisig", key.sign(b"what is signed\n", comment).as_bytes());
            let good = run(&["-Vm", "file", "-P", &public]);
            assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
            write("file", b"what is signed!\n");
            assert!(!run(&["-Vm", "file", "-P", &public]).status.success());
        }
        assert!(run(&["-GW", "-p", "theirs.pub", "-s", "theirs.key"]).status.success());
        assert!(run(&["-Sm", "file", "-s", "theirs.key", "-t", "their comment"]).status.success());
        let theirs: PublicKey = read(&at("theirs.pub")).parse().expect("a key");
        let signature = read(&at("file.minisig"));
        assert_eq!(verify(b"what is signed!\n", &signature, &theirs), Ok("their comment".to_owned()));
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
