//! What a tool sees of a volume: a file (`fuse`), a block device (`loopdev`, over the file), an NBD export
//! (`export`).
//!
//! Owns: translating each of their requests into a `Submission` and each `Completion` into their answer, and
//! mounts, loop devices and listeners with all that can be wrong about them. Never: donors, layouts, or an
//! answer the volume did not give. Key invariant: every request gets exactly one answer, with an errno of its
//! own protocol, chosen in one place per front end (`errno.rs`).
//! Called by `cheetah attach`, `detach` and `up`. Tests: beside the code; `tests/`.
#![deny(unsafe_code)]

mod changes;
pub mod export;
pub mod fuse;
pub mod loopdev;
pub mod mountinfo;

pub use changes::Shared;
