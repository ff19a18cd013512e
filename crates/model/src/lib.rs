//! What a pool of memories and disks would do: the formulas of a paper, and a simulation of hardware under
//! core's own machines.
//!
//! Owns: the model of "DRALIC: A Peer-to-Peer Storage Architecture" (He, Zhang, Yang), with its parameters
//! and units; a simulation by events of nodes with a disk, a memory and a link each; one of failures and
//! rebuilds over years; and their plots. Core's own are `placement`, `layout`, and the volume machine, which
//! cuts requests, reads round what is lost, and rebuilds it. Hardware is modelled: a station serves one thing
//! at a time, in the order of coming.
//! Never: clocks, threads, I/O, or randomness but from a seed. Invariant: the same settings and seed give the
//! same figures. Called by `cheetah model` and `cheetah simulate`; the lab draws its plots with `plot`.
//! `docs/MODEL.md` has the sources, what is assumed, and what was found.
//!
//! Parts: `hardware` (parameters), `quantities` (how people write them), `formula`, `hits` (of caches),
//! `figures` (the paper's), `pool` (requests at stations), `durability` (years of failures), `latencies`,
//! `chance`, `plot`.
//! Tests: in each, against figures computed by hand; `lab/tests/model.rs` runs the commands.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod chance;
pub mod durability;
pub mod figures;
pub mod formula;
pub mod hardware;
pub mod hits;
pub mod latencies;
pub mod plot;
pub mod pool;
pub mod quantities;
