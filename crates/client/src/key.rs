//! The keys of encrypted volumes: where this process gets one from, and giving it on.
//!
//! Owns the choice: the key file that was named, else what the pool has wrapped for this member. Never: the
//! cipher (`cheetah_rim::cipher`), or what is encrypted. Invariant: a key is told from others by what the
//! pool keeps of it, so that nobody reads or writes a volume with another one. Called by `lease`, and by who
//! makes encrypted volumes. Tests: `lab/tests/encrypted.rs`.

use crate::error::Error;
use cheetah_core::api::{Attached, Call, GrantKey, WrappedKey};
use cheetah_core::map::MemberId;
use cheetah_rim::cipher::VolumeKey;
use cheetah_rim::control::Client;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// What names a key file in place of the pool's own word.
pub const KEY_FILE_VARIABLE: &str = "CHEETAH_KEY_FILE";

static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Keys come from this file from now on, which is said once, before any volume is opened.
pub fn use_key_file(path: Option<&Path>) {
    let named = path.map(Path::to_owned).or_else(named_by_environment);
    // Daemons work in another directory.
    let _ = FILE.set(named.map(|path| std::path::absolute(&path).unwrap_or(path)));
}

fn named_by_environment() -> Option<PathBuf> {
    std::env::var_os(KEY_FILE_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The file that keys come from, if one was named.
pub fn key_file() -> Option<&'static PathBuf> {
    FILE.get_or_init(named_by_environment).as_ref()
}

/// The key of a volume that is about to be made: that of the key file, or a new one. With it, what the pool
/// keeps: wrapped for this member, if it is one.
///
/// # Errors
/// There is no key file, and this is no member that a key could be wrapped for.
pub fn key_of_new(pool: &Client, volume: &str) -> Result<Box<WrappedKey>, Error> {
    let (file, public) = (key_file(), pool.public_key());
    let key = match (file, &public) {
        (Some(file), _) => VolumeKey::from_file(file),
        (None, Some(_)) => VolumeKey::make(),
        (None, None) => return Err(Error::NoMember { volume: volume.to_owned() }),
    };
    let bad = |why| Error::BadKey { volume: volume.to_owned(), why };
    let key = key.map_err(bad)?;
    let wrapped = public.map(|public| key.wrap(&public)).transpose().map_err(bad)?;
    Ok(Box::new(WrappedKey { check: key.check(), wrapped }))
}

/// The key of the volume that was granted; none of one that is not encrypted.
///
/// # Errors
/// There is none for this one, or it is another volume's.
pub(crate) fn key_for(pool: &Client, granted: &Attached) -> Result<Option<Arc<VolumeKey>>, Error> {
    if !granted.map.encrypted {
        return Ok(None);
    }
    let volume = || granted.map.name.clone();
    let known = granted.key.as_deref();
    let wrapped = known.and_then(|key| key.wrapped.as_deref());
    let (key, file) = match key_file() {
        Some(file) => (VolumeKey::from_file(file), Some(file)),
        None => {
            let opened = wrapped.and_then(|wrapped| pool.unwrap_key(wrapped));
            (opened.ok_or_else(|| Error::NoKey { volume: volume() })?, None)
        }
    };
    let key = key.map_err(|why| Error::BadKey { volume: volume(), why })?;
    if known.is_none_or(|known| known.check != key.check()) {
        return Err(Error::OtherKey { volume: volume(), file: file.cloned() });
    }
    Ok(Some(Arc::new(key)))
}

/// Gives the key of a volume that was granted to a member, whose public key this is.
///
/// # Errors
/// This one has no key, the pool refused, or could not be asked.
pub async fn give_key(
    pool: &Client,
    granted: &Attached,
    member: MemberId,
    public: &str,
) -> Result<(), Error> {
    let name = granted.map.name.clone();
    let Some(key) = key_for(pool, granted)? else { return Ok(()) };
    let wrapped = key.wrap(public).map_err(|why| Error::BadKey { volume: name.clone(), why })?;
    let key = WrappedKey { check: key.check(), wrapped: Some(wrapped) };
    pool.call(Call::GrantKey { name, grant: GrantKey { member, key } }).await?;
    Ok(())
}
