//! The keys of encrypted volumes: where this process gets one from, and giving it on.
//!
//! Owns the choice: the pool's key file (`Client::with_key_file`), else what the pool has wrapped for this
//! member. An overlay has a key of its own, which that of its base opens: who may read what lies under it
//! goes on with it. Never: the cipher (`cheetah_rim::cipher`), or what is encrypted. Invariant: a key is told
//! from others by what the pool keeps of it, so that nobody reads or writes a volume with another one. Called
//! by `lease`, and by who makes encrypted volumes. Tests: `lab/tests/encrypted.rs`.

use crate::error::Error;
use crate::lease::{Lease, Options};
use cheetah_core::api::{Attached, Call, GrantKey, WrappedKey};
use cheetah_core::map::MemberId;
use cheetah_rim::cipher::VolumeKey;
use cheetah_rim::control::Client;
use std::path::Path;
use std::sync::Arc;

/// The key of a volume that is about to be made: that of the key file, or a new one. With it, what the pool
/// keeps: wrapped for this member, if it is one.
///
/// # Errors
/// There is no key file, and this is no member that a key could be wrapped for.
pub fn key_of_new(pool: &Client, volume: &str) -> Result<Box<WrappedKey>, Error> {
    let public = pool.public_key();
    let key = match (pool.key_file(), &public) {
        (Some(file), _) => VolumeKey::from_file(file),
        (None, Some(_)) => VolumeKey::make(),
        (None, None) => return Err(Error::NoMember { volume: volume.to_owned() }),
    };
    let bad = |why| Error::BadKey { volume: volume.to_owned(), why };
    let key = key.map_err(bad)?;
    let wrapped = public.map(|public| key.wrap(&public)).transpose().map_err(bad)?;
    Ok(Box::new(WrappedKey { check: key.check(), wrapped, under: None }))
}

/// The key of an overlay that is about to be made over this volume; none over one that is not encrypted.
///
/// # Errors
/// There is no key of the base for this one, or the pool refused.
pub async fn key_of_overlay(pool: &Client, base: &str) -> Result<Option<Box<WrappedKey>>, Error> {
    let reads = Options { read_only: true, ..Options::default() };
    let lease = Lease::for_tools(pool, base, &reads).await?;
    let made = lease.key.as_deref().map(|under| {
        let key = VolumeKey::make()?;
        let under = Some(key.wrap_under(under)?);
        Ok(Box::new(WrappedKey { check: key.check(), wrapped: None, under }))
    });
    // What is not given back runs out by itself.
    let _ = lease.give_back().await;
    made.transpose().map_err(|why| Error::BadKey { volume: base.to_owned(), why })
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
    let base = granted.content.overlay.as_ref().map(|overlay| &overlay.base);
    // Whose key it is that is in the file, or was given.
    let whose = || base.cloned().unwrap_or_else(volume);
    let known = granted.key.as_deref();
    let wrapped = known.and_then(|key| key.wrapped.as_deref());
    let key = match pool.key_file() {
        Some(file) => VolumeKey::from_file(file),
        None => {
            let opened = wrapped.and_then(|wrapped| pool.unwrap_key(wrapped));
            opened.ok_or_else(|| Error::NoKey { volume: whose() })?
        }
    };
    let key = key.map_err(|why| Error::BadKey { volume: whose(), why })?;
    let key = match known.and_then(|known| known.under.as_deref()) {
        Some(under) => VolumeKey::unwrap_under(under, &key),
        None => Some(key),
    };
    let key = key.filter(|key| known.is_some_and(|known| known.check == key.check()));
    let other = || Error::OtherKey { volume: whose(), file: pool.key_file().map(Path::to_owned) };
    Ok(Some(Arc::new(key.ok_or_else(other)?)))
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
    let key = WrappedKey { check: key.check(), wrapped: Some(wrapped), under: None };
    pool.call(Call::GrantKey { name, grant: GrantKey { member, key } }).await?;
    Ok(())
}
