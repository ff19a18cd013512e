//! Every decision of Cheetah, and nothing else.
//!
//! Owns: units and limits, the layout arithmetic, placement, read-ahead, and three state machines (volume,
//! donor, coordinator). Never does: I/O, clocks, threads, async, randomness or unsafe. A machine is
//! `step(now, event, &mut effects)`: time is handed in, randomness is a seed, effects are data that the
//! driver (in `rim`, or in `sim`) carries out before the next step.
//!
//! What a redundancy survives, and where a byte of a volume lies:
//!
//! ```
//! use cheetah_core::layout::{Chunks, Geometry};
//! use cheetah_core::limits::EXTENT_BYTES;
//! use cheetah_core::map::Redundancy;
//!
//! let redundancy: Redundancy = "parity:4+2".parse()?;
//! assert_eq!((redundancy.width(), redundancy.parity), (6, 2), "six donors, and any two may be lost");
//!
//! // A row has 64 KiB of each of the four data slots, and a group has an extent of each.
//! let geometry = Geometry::new(redundancy, redundancy.default_unit());
//! let group_bytes = u64::from(redundancy.data) * EXTENT_BYTES;
//! let chunks = Chunks { bytes: group_bytes, groups: 3 };
//! let span = chunks.spans(group_bytes + (65 << 10), 1).next().expect("a byte is in a group");
//! let (slot, byte) = (1, 1 << 10);
//! assert_eq!((span.group, geometry.touched(span.begin, span.end)), (1, 1 << slot));
//! assert_eq!(geometry.column(span.begin, span.end, slot), (byte, byte + 1));
//! # Ok::<(), cheetah_core::map::BadRedundancy>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod ahead;
pub mod api;
mod bad;
pub mod checksum;
pub mod code;
pub mod content;
pub mod coordinator;
pub mod custody;
pub mod disk;
pub mod donor;
pub mod filling;
pub mod findings;
pub mod hosts;
pub mod layout;
pub mod limits;
pub mod map;
pub mod members;
pub mod overlay;
pub mod placement;
pub mod poll;
pub mod progress;
pub mod proofs;
pub mod runs;
pub mod seats;
pub mod seed;
pub mod text;
pub mod units;
pub mod volume;
