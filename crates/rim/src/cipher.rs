//! The cipher of encrypted volumes: AES-256-GCM for each block, and the key of a volume, which travels
//! wrapped for one member at a time.
//!
//! Owns what is encrypted, what is bound to it, and the form in which a key is kept or given. Never: who may
//! have a key, or where blocks lie. Invariants: each block that is encrypted has a nonce of its own, drawn by
//! the kernel; a block opens only at the place of the volume that it was encrypted for; and key bytes are
//! overwritten when they are not needed any more.
//! A volume's identity is drawn when it is made and never used again, and so is its key: both are the
//! generation that is bound. Nonces are random, 96 bits: of 2^32 blocks, which is 16 TiB written under one
//! key, two have the same with a chance of 2^-33. Called by `volume::encrypted`, `volume::memory` and
//! `cheetah_client`. Tests: below.

use crate::auth::{AUTH_BYTES, Auth, NONE};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::agreement::{self, ECDH_P256, PrivateKey, UnparsedPublicKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::rand;
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::map::VolumeId;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const BLOCK: usize = BLOCK_BYTES as usize;
const KEY_BYTES: usize = 32;
const POINT_BYTES: usize = 65;
/// A key that is wrapped: the public part of a key made for that, then the key and its tag.
const WRAPPED_BYTES: usize = POINT_BYTES + KEY_BYTES + MAX_TAG_LEN;
/// Of what a key follows from with another, so that it encrypts once.
const SALT_BYTES: usize = 16;
/// A key under that of a base: what the wrapping key follows from, then the key and its tag.
const UNDER_BYTES: usize = SALT_BYTES + KEY_BYTES + MAX_TAG_LEN;
const CHECK_BYTES: usize = 8;

const _: () = assert!(AUTH_BYTES == NONCE_LEN + MAX_TAG_LEN);

/// 32 bytes that nobody else shall see.
struct Secret([u8; KEY_BYTES]);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        std::hint::black_box(&self.0);
    }
}

/// The key of one volume.
pub struct VolumeKey {
    secret: Secret,
    /// Of the same key; the library overwrites it when it goes.
    aead: LessSafeKey,
}

impl fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VolumeKey(..)")
    }
}

/// What is not what was encrypted there with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// Why there is no key. Each says what to do.
#[derive(Debug)]
pub enum KeyError {
    /// The file cannot be read.
    Io { path: PathBuf, error: io::Error },
    /// Others may read it, or it belongs to another user.
    Exposed { path: PathBuf },
    /// It is neither 32 bytes nor 64 hexadecimal digits.
    Form { path: PathBuf },
    /// What came as a wrapped key is none for this member.
    Wrapped,
    /// The member's public key is no point of P-256.
    Public,
    /// The kernel gives no random numbers.
    Random,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Io { path, error } => write!(f, "key file {}: {error}", path.display()),
            KeyError::Exposed { path } => write!(
                f,
                "key file {} can be read by others than its owner: chmod 600 it as its owner, and make the volume anew \
                 with another key if somebody may have read it",
                path.display()
            ),
            KeyError::Form { path } => write!(
                f,
                "key file {} holds no key, which is 32 bytes or 64 hexadecimal digits: make one with `openssl rand -hex 32`",
                path.display()
            ),
            KeyError::Wrapped => write!(
                f,
                "the key that was granted to this member cannot be opened with its identity: have it granted anew with \
                 `cheetah grant`"
            ),
            KeyError::Public => write!(f, "the member's public key is none that a key can be wrapped for"),
            KeyError::Random => write!(f, "the kernel gives no random numbers"),
        }
    }
}

impl std::error::Error for KeyError {}

impl VolumeKey {
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn make() -> Result<VolumeKey, KeyError> {
        let mut secret = Secret([0; KEY_BYTES]);
        rand::fill(&mut secret.0).map_err(|_| KeyError::Random)?;
        Ok(VolumeKey::of(secret))
    }

    fn of(secret: Secret) -> VolumeKey {
        let key = UnboundKey::new(&AES_256_GCM, &secret.0).expect("32 bytes are a key");
        VolumeKey { secret, aead: LessSafeKey::new(key) }
    }

    /// Reads a key that its owner alone may read: 32 bytes, or 64 hexadecimal digits.
    ///
    /// # Errors
    /// There is none, or others may read it.
    pub fn from_file(path: &Path) -> Result<VolumeKey, KeyError> {
        let at = |error| KeyError::Io { path: path.to_owned(), error };
        let found = std::fs::metadata(path).map_err(at)?;
        if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned() });
        }
        let bytes = std::fs::read(path).map_err(at)?;
        let key = secret_of(&bytes).map(VolumeKey::of);
        crate::memory::wipe(bytes);
        key.ok_or_else(|| KeyError::Form { path: path.to_owned() })
    }

    /// By which a key is told from another, and nothing else can be learned of it.
    #[must_use]
    pub fn check(&self) -> String {
        let mut check = [0; CHECK_BYTES];
        derive(&self.secret.0, &[b"cheetah key check"], &mut check);
        hex(&check)
    }

    // Blocks.

    /// Encrypts whole blocks in place, of which the first is this block of the volume, and appends the nonce
    /// and tag of each.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub(crate) fn seal(
        &self,
        volume: VolumeId,
        first: u64,
        bytes: &mut [u8],
        auths: &mut Vec<Auth>,
    ) -> Result<(), KeyError> {
        let (blocks, rest) = bytes.as_chunks_mut::<BLOCK>();
        debug_assert!(rest.is_empty(), "whole blocks");
        let mut nonces = vec![[0; NONCE_LEN]; blocks.len()];
        rand::fill(nonces.as_flattened_mut()).map_err(|_| KeyError::Random)?;
        for ((number, block), nonce) in (first..).zip(blocks).zip(nonces) {
            let aad = Aad::from(bound(volume, number));
            let sealed =
                self.aead.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, block);
            let tag = sealed.expect("a block is within the cipher's limits");
            let mut auth = NONE;
            auth[..NONCE_LEN].copy_from_slice(&nonce);
            auth[NONCE_LEN..].copy_from_slice(tag.as_ref());
            auths.push(auth);
        }
        Ok(())
    }

    /// Decrypts one block in place. One that has no nonce and tag was never written, and is zeros.
    ///
    /// # Errors
    /// It is not what was encrypted there. What is in `block` then is of no use.
    pub(crate) fn open(
        &self,
        volume: VolumeId,
        number: u64,
        auth: &Auth,
        block: &mut [u8],
    ) -> Result<(), Forged> {
        if *auth == NONE {
            return if block.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(Forged) };
        }
        let (nonce, tag) = auth.split_at(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|Unspecified| Forged)?;
        let aad = Aad::from(bound(volume, number));
        let opened = self.aead.open_in_place_separate_tag(nonce, aad, tag, block);
        opened.map(drop).map_err(|Unspecified| Forged)
    }

    // For others.

    /// The key, for who has the private key of this public one, an uncompressed point in hexadecimal digits:
    /// ECDH with a key that is made for this alone, HKDF-SHA256, AES-256-GCM.
    ///
    /// # Errors
    /// It is no public key of P-256, or the kernel gives no random numbers.
    pub fn wrap(&self, public: &str) -> Result<String, KeyError> {
        let theirs = unhex(public).filter(|point| point.len() == POINT_BYTES).ok_or(KeyError::Public)?;
        let own = PrivateKey::generate(&ECDH_P256).map_err(|_| KeyError::Random)?;
        let point = own.compute_public_key().map_err(|_| KeyError::Random)?;
        let wrapping = agreed(&own, &theirs, point.as_ref(), &theirs).ok_or(KeyError::Public)?;
        let mut wrapped = Vec::with_capacity(WRAPPED_BYTES);
        wrapped.extend_from_slice(point.as_ref());
        let mut key = Secret(self.secret.0);
        let sealed = wrapping.seal_in_place_separate_tag(nonce_of_one(), Aad::empty(), &mut key.0);
        wrapped.extend_from_slice(&key.0);
        wrapped.extend_from_slice(sealed.map_err(|_| KeyError::Public)?.as_ref());
        Ok(hex(&wrapped))
    }

    /// The inverse of `wrap`, by who has the private key in PKCS#8 and its public part.
    ///
    /// # Errors
    /// It was not wrapped for this one, or is not what was.
    pub(crate) fn unwrap(wrapped: &str, private: &[u8], public: &str) -> Result<VolumeKey, KeyError> {
        let wrapped = unhex(wrapped).filter(|bytes| bytes.len() == WRAPPED_BYTES).ok_or(KeyError::Wrapped)?;
        let public = unhex(public).ok_or(KeyError::Wrapped)?;
        let private = PrivateKey::from_private_key_der(&ECDH_P256, private).map_err(|_| KeyError::Wrapped)?;
        let (point, sealed) = wrapped.split_at(POINT_BYTES);
        let wrapping = agreed(&private, point, point, &public).ok_or(KeyError::Wrapped)?;
        let (key, tag) = sealed.split_at(KEY_BYTES);
        let mut secret = Secret([0; KEY_BYTES]);
        secret.0.copy_from_slice(key);
        let opened = wrapping.open_in_place_separate_tag(nonce_of_one(), Aad::empty(), tag, &mut secret.0);
        opened.map_err(|_| KeyError::Wrapped)?;
        Ok(VolumeKey::of(secret))
    }

    /// The key of an overlay, for who has that of its base: HKDF-SHA256 of the base's key and a salt,
    /// AES-256-GCM.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn wrap_under(&self, base: &VolumeKey) -> Result<String, KeyError> {
        let mut wrapped = vec![0; SALT_BYTES];
        rand::fill(&mut wrapped).map_err(|_| KeyError::Random)?;
        let wrapping = base.wrapping(&wrapped);
        let mut key = Secret(self.secret.0);
        let sealed = wrapping.seal_in_place_separate_tag(nonce_of_one(), Aad::empty(), &mut key.0);
        let tag = sealed.expect("a key is within the cipher's limits");
        wrapped.extend_from_slice(&key.0);
        wrapped.extend_from_slice(tag.as_ref());
        Ok(hex(&wrapped))
    }

    /// The inverse of `wrap_under`. `None`: it was not wrapped under this one, or is not what was.
    #[must_use]
    pub fn unwrap_under(wrapped: &str, base: &VolumeKey) -> Option<VolumeKey> {
        let wrapped = unhex(wrapped).filter(|bytes| bytes.len() == UNDER_BYTES)?;
        let (salt, sealed) = wrapped.split_at(SALT_BYTES);
        let (key, tag) = sealed.split_at(KEY_BYTES);
        let mut secret = Secret([0; KEY_BYTES]);
        secret.0.copy_from_slice(key);
        let wrapping = base.wrapping(salt);
        let opened = wrapping.open_in_place_separate_tag(nonce_of_one(), Aad::empty(), tag, &mut secret.0);
        let is_opened = opened.is_ok();
        is_opened.then(|| VolumeKey::of(secret))
    }

    fn wrapping(&self, salt: &[u8]) -> LessSafeKey {
        let mut secret = Secret([0; KEY_BYTES]);
        derive(&self.secret.0, &[b"cheetah overlay key", salt], &mut secret.0);
        let key = UnboundKey::new(&AES_256_GCM, &secret.0).expect("32 bytes are a key");
        LessSafeKey::new(key)
    }
}

/// What a block's tag speaks for beside its content.
fn bound(volume: VolumeId, number: u64) -> [u8; 16] {
    let mut bound = [0; 16];
    bound[..8].copy_from_slice(&volume.0.to_be_bytes());
    bound[8..].copy_from_slice(&number.to_be_bytes());
    bound
}

/// A wrapping key encrypts once, so its nonce need not differ.
fn nonce_of_one() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// The wrapping key of two that agree, bound to both public keys.
fn agreed(own: &PrivateKey, theirs: &[u8], made: &[u8], member: &[u8]) -> Option<LessSafeKey> {
    let theirs = UnparsedPublicKey::new(&ECDH_P256, theirs);
    agreement::agree(own, theirs, (), |shared| {
        let mut secret = Secret([0; KEY_BYTES]);
        derive(shared, &[b"cheetah volume key", made, member], &mut secret.0);
        UnboundKey::new(&AES_256_GCM, &secret.0).map(LessSafeKey::new).map_err(|_| ())
    })
    .ok()
}

fn derive(from: &[u8], about: &[&[u8]], into: &mut [u8]) {
    struct Length(usize);
    impl aws_lc_rs::hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let length = Length(into.len());
    let derived = Salt::new(HKDF_SHA256, b"cheetah").extract(from);
    let filled = derived.expand(about, length).and_then(|okm| okm.fill(into));
    filled.expect("a short key is within the limits of HKDF");
}

fn secret_of(bytes: &[u8]) -> Option<Secret> {
    let mut secret = Secret([0; KEY_BYTES]);
    if bytes.len() == KEY_BYTES {
        secret.0.copy_from_slice(bytes);
        return Some(secret);
    }
    let text = bytes.trim_ascii();
    if text.len() != 2 * KEY_BYTES {
        return None;
    }
    for (byte, digits) in secret.0.iter_mut().zip(text.as_chunks::<2>().0) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = (value(digits[0])? << 4 | value(digits[1])?) as u8;
    }
    Some(secret)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let value = |digit: u8| char::from(digit).to_digit(16);
    let pair = |two: &[u8; 2]| Some((value(two[0])? << 4 | value(two[1])?) as u8);
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(pair).collect()).flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::members::Key;
    use std::os::unix::fs::PermissionsExt;

    const VOLUME: VolumeId = VolumeId(7);

    fn sealed(key: &VolumeKey, first: u64, plain: &[u8]) -> (Vec<u8>, Vec<Auth>) {
        let (mut bytes, mut auths) = (plain.to_vec(), Vec::new());
        key.seal(VOLUME, first, &mut bytes, &mut auths).unwrap();
        (bytes, auths)
    }

    #[test]
    fn a_block_opens_as_it_was_where_it_was_and_nowhere_else() {
        let key = VolumeKey::make().unwrap();
        let plain: Vec<u8> = (0..2 * BLOCK).map(|at| (at / 13) as u8).collect();
        let (bytes, auths) = sealed(&key, 41, &plain);
        assert_ne!(bytes, plain);
        let open = |key: &VolumeKey, volume, number, auth: &Auth, change: usize| {
            let mut block = bytes[BLOCK..].to_vec();
            block[change % BLOCK] ^= (change / BLOCK) as u8;
            key.open(volume, number, auth, &mut block).map(|()| block)
        };
        assert_eq!(open(&key, VOLUME, 42, &auths[1], 0), Ok(plain[BLOCK..].to_vec()));
        assert_eq!(open(&key, VOLUME, 42, &auths[1], BLOCK + 9), Err(Forged), "altered");
        assert_eq!(open(&key, VOLUME, 41, &auths[1], 0), Err(Forged), "moved");
        assert_eq!(open(&key, VolumeId(8), 42, &auths[1], 0), Err(Forged), "another volume's");
        assert_eq!(open(&key, VOLUME, 42, &auths[0], 0), Err(Forged), "with another's tag");
        assert_eq!(open(&VolumeKey::make().unwrap(), VOLUME, 42, &auths[1], 0), Err(Forged), "another key");
        assert_eq!(open(&key, VOLUME, 42, &NONE, 0), Err(Forged), "without a tag there are zeros only");
        assert_eq!(key.open(VOLUME, 42, &NONE, &mut [0; BLOCK]), Ok(()));
        let again = sealed(&key, 41, &plain);
        assert!(again.1.iter().chain(&auths).all(|auth| *auth != NONE) && again.1 != auths, "nonces are new");
    }

    #[test]
    fn a_key_is_unwrapped_by_the_member_it_was_wrapped_for_alone() {
        let (key, member, other) = (VolumeKey::make().unwrap(), Key::make().unwrap(), Key::make().unwrap());
        let wrapped = key.wrap(&member.public()).unwrap();
        assert!(!wrapped.contains(&hex(&key.secret.0)));
        let unwrapped = VolumeKey::unwrap(&wrapped, &member.pkcs8(), &member.public()).unwrap();
        assert_eq!((unwrapped.secret.0, unwrapped.check()), (key.secret.0, key.check()));
        assert!(VolumeKey::unwrap(&wrapped, &other.pkcs8(), &other.public()).is_err());
        assert!(VolumeKey::unwrap(&wrapped, &member.pkcs8(), &other.public()).is_err());
        let broken = wrapped.replacen(&wrapped[200..202], "zz", 1);
        assert!(VolumeKey::unwrap(&broken, &member.pkcs8(), &member.public()).is_err());
        assert!(key.wrap("04aa").is_err() && key.wrap(&"04".repeat(65)).is_err());
    }

    #[test]
    fn the_key_of_an_overlay_is_opened_by_that_of_its_base_alone() {
        let (key, base) = (VolumeKey::make().unwrap(), VolumeKey::make().unwrap());
        let wrapped = key.wrap_under(&base).unwrap();
        assert!(!wrapped.contains(&hex(&key.secret.0)));
        assert_ne!(wrapped, key.wrap_under(&base).unwrap());
        let unwrapped = VolumeKey::unwrap_under(&wrapped, &base).unwrap();
        assert_eq!((unwrapped.secret.0, unwrapped.check()), (key.secret.0, key.check()));
        assert!(VolumeKey::unwrap_under(&wrapped, &key).is_none());
        for at in (0..wrapped.len()).step_by(2) {
            let mut broken = wrapped.clone();
            let digit = if &wrapped[at..=at] == "0" { "1" } else { "0" };
            broken.replace_range(at..=at, digit);
            assert!(VolumeKey::unwrap_under(&broken, &base).is_none(), "digit {at}");
        }
        assert!(VolumeKey::unwrap_under(&wrapped[2..], &base).is_none());
    }

    #[test]
    fn a_key_file_is_its_owners_alone_and_has_one_of_two_forms() {
        let path = std::env::temp_dir().join(format!("cheetah-key-{}", std::process::id()));
        let write = |bytes: &[u8], mode| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            VolumeKey::from_file(&path)
        };
        let raw = write(&[0xab; 32], 0o600).unwrap();
        let text = write(format!("{}\n", "Ab".repeat(32)).as_bytes(), 0o400).unwrap();
        assert_eq!(raw.check(), text.check());
        assert_ne!(raw.check(), VolumeKey::make().unwrap().check());
        assert!(matches!(write(&[0xab; 32], 0o640), Err(KeyError::Exposed { .. })));
        assert!(matches!(write(&[0xab; 31], 0o600), Err(KeyError::Form { .. })));
        assert!(matches!(write("xy".repeat(32).as_bytes(), 0o600), Err(KeyError::Form { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(VolumeKey::from_file(&path), Err(KeyError::Io { .. })));
    }

    /// `cargo test --release -p cheetah-rim speed_of_the_cipher -- --ignored --nocapture`
    #[test]
    #[ignore = "it measures"]
    #[allow(clippy::print_stdout)]
    fn speed_of_the_cipher() {
        let key = VolumeKey::make().unwrap();
        let mut bytes = vec![1; 1 << 20];
        let mut auths = Vec::with_capacity(256);
        for _ in 0..2 {
            let (begun, rounds) = (std::time::Instant::now(), 2000);
            for _ in 0..rounds {
                auths.clear();
                key.seal(VOLUME, 0, &mut bytes, &mut auths).unwrap();
            }
            let sealing = begun.elapsed();
            let sealed = bytes.clone();
            let begun = std::time::Instant::now();
            for _ in 0..rounds {
                bytes.copy_from_slice(&sealed);
                for ((number, auth), block) in (0..).zip(&auths).zip(bytes.chunks_mut(BLOCK)) {
                    key.open(VOLUME, number, auth, block).unwrap();
                }
            }
            let gigabytes = f64::from(rounds << 20) / 1e9;
            println!(
                "sealed {:.2} GB/s, opened (and copied) {:.2} GB/s",
                gigabytes / sealing.as_secs_f64(),
                gigabytes / begun.elapsed().as_secs_f64()
            );
        }
    }
}
