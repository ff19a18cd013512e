//! Every decision of Cheetah, and nothing else.
//!
//! Owns: units and limits, the layout arithmetic, placement, read-ahead, and three state machines (volume,
//! donor, coordinator). Never does: I/O, clocks, threads, async, randomness or unsafe. A machine is
//! `step(now, event, &mut effects)`: time is handed in, randomness is a seed, effects are data that the
//! driver (in `rim`, or in `sim`) carries out before the next step.
#![forbid(unsafe_code)]

pub mod ahead;
pub mod api;
mod bad;
pub mod checksum;
pub mod code;
pub mod content;
pub mod coordinator;
pub mod donor;
pub mod findings;
pub mod hosts;
pub mod layout;
pub mod limits;
pub mod map;
pub mod placement;
pub mod poll;
pub mod progress;
pub mod seats;
pub mod text;
pub mod units;
pub mod volume;
