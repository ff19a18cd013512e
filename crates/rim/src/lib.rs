//! Effects at the rim: sockets, the clock, memory arenas and stores, and the drivers that run the core's
//! machines.
//!
//! Owns everything that touches the world on the data and control paths. Never: policy; what to do is decided
//! in `cheetah_core`, by `step(now, event, effects)`. Unsafe is confined to the modules whose header says so.
#![deny(unsafe_code)]

pub mod accept;
pub mod arena;
mod auth;
pub mod buffer;
pub mod cipher;
pub mod clock;
pub mod code;
pub mod collapse;
mod contexts;
pub mod control;
pub mod descriptors;
pub mod disk;
pub mod donor;
pub mod filler;
mod layers;
mod ledgers;
mod mapping;
pub mod members;
pub mod memory;
pub mod names;
pub mod net;
pub mod own_fault;
pub mod owner;
pub mod proofs;
pub mod seating;
pub mod stream;
pub mod swap;
mod undo;
pub mod volume;
mod writing;
