//! The overlay that `attach --overlay` names: found, or made.
//! Never: what is written to one. Called by `attach`. Tests: `lab/tests/overlay.rs`.

use crate::failure::{Exit, Failure};
use crate::output;
use crate::pool::volume;
use cheetah_core::api::{Call, Create, Size};
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_rim::control::Client;

/// What it is called. `name`: empty for the usual one.
pub fn name_of(base: &str, name: String) -> String {
    if name.is_empty() { format!("{base}-overlay") } else { name }
}

/// The name of the overlay of `base`, which is there from then on. `name`: empty for the usual one.
pub async fn make(pool: &Client, base: &str, name: String) -> Result<String, Failure> {
    let name = name_of(base, name);
    if let Ok(there) = volume(pool, Call::Show { name: name.clone() }).await {
        return match there.status.content.overlay {
            Some(overlay) if overlay.base == base => Ok(name),
            Some(overlay) => Err(Failure::new(
                Exit::Refused,
                format!("volume '{name}' is an overlay of '{}', and not of '{base}'", overlay.base),
            )),
            None => Err(Failure::new(
                Exit::Refused,
                format!("volume '{name}' is there and is no overlay: name another one with --overlay NAME"),
            )),
        };
    }
    // The pool says how large it has to be.
    let size = Size::Bytes(EXTENT_BYTES);
    let under = volume(pool, Call::Show { name: base.to_owned() }).await?;
    let encrypted = match under.status.encrypted {
        true => cheetah_client::key_of_overlay(pool, base).await?,
        false => None,
    };
    let overlay_of = Some(base.to_owned());
    let create = Create { overlay_of, encrypted, ..Create::new(name.clone(), size) };
    let made = volume(pool, Call::Create(create)).await?;
    output::note(&format!("made overlay {name} of {base}, {}", made.status.redundancy));
    Ok(name)
}
