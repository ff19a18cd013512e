//! What happened in a run: faults by kind, and how often each thing that the swarm shall exercise occurred.
//!
//! Owns the names; a name of `COVERAGE` that stays at zero is visible, and fails a test. Never: a verdict.

use std::collections::BTreeMap;

/// What a swarm of 1,000 seeds has to have seen.
pub const COVERAGE: &[&str] = &[
    "reads checked",
    "writes acknowledged",
    "flushes",
    "flushes that reported a loss",
    "lost ranges answered with an error",
    "requests that timed out",
    "volumes created",
    "volumes deleted",
    "volumes grown while attached",
    "volumes that followed a new donor",
    "extents wiped",
    "second writers refused",
    "takeovers of a lease",
    "writes of a former writer refused",
    "links refenced with a newer session",
    "donors asked whether they are there",
    "donors found to have ended",
    "writers told of donors that are silent",
    "links opened anew beside a connection that hung",
    "writes that left in one request with others",
    "bytes that came late on an old connection",
    "writes torn by a lost connection",
    "writes undone",
    "writes that were cut off and undone",
    "write attempts of a read-only attachment",
    "fault: connection lost",
    "fault: connection stalled",
    "fault: donor killed",
    "fault: donor's host lost",
    "fault: donor paused",
    "fault: donor terminated",
    "fault: donor told to leave",
    "fault: donor restarted under its address",
    "fault: link cut",
    "fault: coordinator cut off",
    "fault: coordinator restarted",
    "fault: coordinator lost a step",
    "fault: client crashed",
    "fault: client's host lost",
    "fault: client paused",
    "fault: one way cut",
    "fault: donor slow",
    "fault: a call came twice",
    "fault: donor asked to move what it holds",
    "fault: donor's owner needs memory",
    "fault: coordinator down for long",
    "fault: coordinator stood still",
    "fault: a writer and a donor ended together",
    "fault: donor stopped beside its writer's end",
    "fault: a bit flipped on the way",
    "faults spared by the budget",
    "amendments",
    "payloads that were not what was sent",
    "reads given up",
    "copies out of a client's cache",
    "segments offered to a reader",
    "corrupt blocks found",
    "acknowledged writes found on their holders",
    "reads of a reader that has not heard of the newest map",
    "volumes taken beyond their redundancy by a writer's end",
    "volumes detached in order",
    "volumes mended after a writer died",
    "volumes whose fragments were compared at the end",
    "volumes read back after a writer and a donor ended together",
    "requests that redundancy did not cover",
    "loads begun",
    "loads ended early",
    "loads resumed",
    "loads completed",
    "volumes as they were made after a load of nothing",
    "reads of what a source could not give",
    "fault: a loader was killed",
    "steps of a disk",
    "writes answered from memory",
    "regions that were clean again",
    "flushes of volumes with write-back",
    "donors that came back with stale regions",
    "stale regions adopted",
    "reads that waited for a disk",
    "logs told that all is done",
    "donors that came back with their disks",
    "fault: the whole pool lost power",
];

/// What only runs of one kind of fault see.
const ALONE: &[&str] = &[
    "errors of blocks that were torn",
    "disks of which blocks were torn",
    "fault: a donor lost power while it put down what it holds",
    "fault: blocks of a disk that cannot be read",
    "fault: a disk that takes nothing any more",
    "fault: a disk without room",
    "writes that a disk had no room for",
    "disks believed that missed writes",
    "losses told",
    "errors of what was half written when a writer and a donor ended",
    "fault: donor killed after a repair",
    "fault: donor killed beside a spare one",
    "fault: coordinator stopped",
    "fault: a clock leapt",
    "fault: a stopped machine's clock stood still",
    "fault: a stranger's coordinator at its address",
    "fault: a bit flipped at rest",
    "fault: a bit of a checksum flipped at rest",
    "errors of what flipped and had no other copy",
    "errors of what flipped and was recorded as lost",
    "blocks that flipped and were written again",
    "writers told to compare all fragments",
    "reads of an opened volume",
    "runs read at a source",
    "slots of an opened volume moved",
    "fault: a filler was killed",
    "fault: a slot began anew",
    "ranges dropped for others",
    "answers that ended before what was asked",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    counts: BTreeMap<&'static str, u64>,
    pub requests: u64,
    pub events: u64,
    pub virtual_ns: u64,
}

impl Stats {
    pub(crate) fn count(&mut self, what: &'static str) {
        debug_assert!(COVERAGE.contains(&what) || ALONE.contains(&what), "{what} is not in the list");
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Stats) {
        other.counts.iter().for_each(|(what, count)| *self.counts.entry(what).or_default() += count);
        self.requests += other.requests;
        self.events += other.events;
        self.virtual_ns += other.virtual_ns;
    }

    /// What runs of one kind saw beside that.
    pub fn alone(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let seen = ALONE.iter().filter_map(|what| Some((*what, *self.counts.get(what)?)));
        seen.filter(|(_, count)| *count > 0)
    }

    /// In the order of `COVERAGE`, the zeros too.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        COVERAGE.iter().map(|what| (*what, self.counts.get(what).copied().unwrap_or(0)))
    }
}
