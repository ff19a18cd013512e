//! A volume of a pool, for programs.
//!
//! Owns what a process that attaches a volume has to do beside reading and writing it: the lease taken, kept
//! and given back, newer maps taken, what the volume finds out about its donors told, and its log. Never:
//! decisions (`core`), sockets and memory (`rim`), front ends or commands. Invariant: whatever a volume does
//! to its bytes, it does under a lease that this crate keeps; there is no other client in the house.
//! Called by the program (daemon, `load`, a donor that moves what nobody else does), the benchmark, and by
//! programs that others write. Tests: in each file; `lab/tests/client.rs` with a real pool.
//!
//! Files: `member` (which pool), `volume` (an attached volume), `access` (its bytes), `blocking` (the same
//! for programs without async), `lease`, `keep` (the tasks that keep it), `key` (of an encrypted volume),
//! `journal` (its log), `files` (how many it may open), `overlay` (what lies under one), `error`.
//!
//! ```no_run
//! use cheetah_client::{Options, blocking::Volume, joined};
//!
//! fn main() -> Result<(), cheetah_client::Error> {
//!     let pool = joined()?;
//!     let volume = Volume::open(&pool, "case7", &Options::default())?;
//!     let mut sector = [0; 512];
//!     volume.read_at(0, &mut sector)?;
//!     volume.write_at(1 << 20, b"a note")?;
//!     volume.flush()?;
//!     volume.detach()
//! }
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
pub mod blocking;
mod error;
mod files;
mod journal;
mod keep;
mod key;
mod lease;
mod member;
mod overlay;
mod volume;

pub use cheetah_rim::control::Client;
pub use cheetah_rim::volume::{Caching, Rule, Tuning, VolumeError};
pub use error::Error;
pub use key::{give_key, key_of_new, key_of_overlay};
pub use lease::{Lease, Options};
pub use member::{joined, of_identity};
pub use volume::Volume;
