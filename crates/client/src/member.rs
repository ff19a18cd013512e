//! The pool of a member, as `cheetah join` left it.
//!
//! Owns where that is found. Never: coming in, or renewing (`rim::control`). Tests: `lab/tests/client.rs`.

use crate::Error;
use cheetah_rim::control::Client;
use cheetah_rim::members::Identity;
use std::path::{Path, PathBuf};

/// The pool that this user has joined, as the program finds it: by `$CHEETAH_IDENTITY`, else in the user's
/// configuration directory. Attached volumes keep its certificate good.
///
/// # Errors
/// Nobody has joined a pool, or what was kept of that is of no use.
pub fn joined() -> Result<Client, Error> {
    let directory = Identity::usual_directory(false);
    of_identity(&directory.ok_or_else(|| Error::NoIdentity(PathBuf::from("~/.config/cheetah/identity")))?)
}

/// The pool of the member whose identity is in that directory.
///
/// # Errors
/// As [`joined`].
pub fn of_identity(directory: &Path) -> Result<Client, Error> {
    let none = || Error::NoIdentity(directory.to_owned());
    let identity = Identity::load(directory)?.ok_or_else(none)?;
    let urls = Identity::pool_url(directory)?.ok_or_else(none)?;
    Ok(Client::of_identity(&urls, identity)?)
}
