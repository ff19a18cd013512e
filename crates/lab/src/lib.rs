//! Hosts, links and foreign tools on one machine, for the end-to-end tests and the benchmarks.
//!
//! Owns: network namespaces that behave like a small LAN ([`lan`]) with a bad link ([`wire`]), guarded
//! child processes ([`process`], [`command`]), the program under test ([`pool`], [`lone`]), also as
//! another member has it ([`member`]), with disks ([`disks`]), or with faults in it ([`planted`]),
//! servers that others wrote ([`rivals`], [`web`], [`etcd`]) and what certifies them ([`authority`]),
//! real disk images ([`images`]), loads that check what they read ([`fio`], [`writer`]), bits that flip
//! in a donor's memory ([`flip`], [`loaded`]), a look into it ([`peek`]), what `verify` says of them
//! ([`verified`]), and the table of faults ([`faults`]). Never: needed by the product; a sleep that hopes
//! (see [`wait`]); a skip for a tool that is missing (see [`tools`]). Invariant: whatever a test starts
//! carries the test process' [`mark`], so that it is removed when the test ends, and by the next run when
//! the test process was killed. Called by: `tests/*.rs` and `src/bin/*.rs` of this crate, `make test`,
//! `make bench`, `make faults`.
#![deny(unsafe_code)]
#![allow(clippy::missing_panics_doc, reason = "a helper of tests reports by panicking")]

pub mod authority;
pub mod bench;
pub mod cgroup;
pub mod command;
pub mod dice;
pub mod direct;
pub mod disks;
pub mod etcd;
pub mod faults;
pub mod figures;
pub mod filled;
pub mod fio;
pub mod flip;
pub mod fragment;
pub mod hash;
pub mod hog;
pub mod images;
pub mod lan;
pub mod load;
pub mod loaded;
pub mod lone;
pub mod mark;
pub mod member;
pub mod mounted;
pub mod peek;
pub mod planted;
pub mod pool;
pub mod process;
pub mod rivals;
pub mod scratch;
pub mod tap;
pub mod tools;
pub mod tree;
pub mod verified;
pub mod wait;
pub mod web;
pub mod wire;
pub mod writer;
