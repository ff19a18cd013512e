//! What serves one thing at a time, in the order of coming: memories, links, disks, and what a message costs
//! a node.
//!
//! Invariant: who comes to a station comes in the order of time, so that a place in its queue is a time.
//! Never: what is served.

use crate::hardware::Hardware;
use cheetah_core::units::Time;
use std::collections::VecDeque;

/// Nanoseconds.
pub(super) fn ns(seconds: f64) -> Time {
    (seconds * 1e9).round() as Time
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Station {
    free: Time,
    pub(super) busy: Time,
}

impl Station {
    /// When this is done that comes now and takes so long.
    pub(super) fn serve(&mut self, now: Time, takes: Time) -> Time {
        self.free = self.free.max(now) + takes;
        self.busy += takes;
        self.free
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// What a message costs who sends it.
    pub(super) protocol: Station,
    pub(super) memory: Station,
    pub(super) disk: Station,
    /// Parts that the disk has not begun, and whether it is at one.
    pub(super) waiting: VecDeque<u32>,
    pub(super) is_at_one: bool,
    /// The two ways of its link.
    pub(super) out: Station,
    pub(super) into: Station,
    /// Where on the disk the last read or write ended: what goes on there need not be found.
    ended: Option<u64>,
}

impl Node {
    /// A read or write of its disk. `address`: where, unless nothing else can follow it there.
    pub(super) fn on_disk(
        &mut self,
        now: Time,
        hardware: &Hardware,
        overhead_s: f64,
        bytes: u32,
        address: Option<u64>,
    ) -> Time {
        let goes_on = address.is_some() && self.ended == address;
        self.ended = address.map(|at| at + u64::from(bytes));
        let overhead_s = if goes_on { 0.0 } else { overhead_s };
        self.disk.serve(now, ns(overhead_s + f64::from(bytes) / hardware.disk_bandwidth))
    }
}

/// When these bytes have come from one node to another. Both ends are busy for the same time; a switch is
/// between them that no other traffic fills.
pub(super) fn transfer(nodes: &mut [Node], from: u32, to: u32, now: Time, takes: Time) -> Time {
    let (out, into) = (nodes[from as usize].out, nodes[to as usize].into);
    let done = now.max(out.free).max(into.free) + takes;
    nodes[from as usize].out = Station { free: done, busy: out.busy + takes };
    nodes[to as usize].into = Station { free: done, busy: into.busy + takes };
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::PAPER;

    #[test]
    fn one_thing_at_a_time() {
        let mut station = Station::default();
        assert_eq!([station.serve(0, 10), station.serve(5, 10), station.serve(50, 1)], [10, 20, 51]);
        assert_eq!(station.busy, 21);
        let mut nodes = vec![Node::default(); 3];
        assert_eq!(transfer(&mut nodes, 0, 2, 0, 10), 10);
        assert_eq!(transfer(&mut nodes, 1, 2, 0, 10), 20, "one way into a node");
        assert_eq!(transfer(&mut nodes, 2, 0, 0, 10), 10, "the other way is free");
    }

    #[test]
    fn a_disk_finds_nothing_anew_that_goes_on_where_it_is() {
        let mut node = Node::default();
        let mut at = |now, address| node.on_disk(now, &PAPER, 12e-3, 25_000, address);
        assert_eq!(at(0, Some(0)), 13_000_000);
        assert_eq!(at(0, Some(25_000)), 14_000_000);
        assert_eq!(at(0, Some(0)), 27_000_000);
        assert_eq!(at(0, None), 40_000_000);
        assert_eq!(at(0, None), 53_000_000);
    }
}
