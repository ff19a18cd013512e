//! The formulas of the paper's section 3, with its names.
//!
//! Owns: T_lm, T_rm, T_raid, T_pc and T_dralic, in seconds; and T_raid for a block that lies on fewer disks
//! than there are nodes. Never: queues; each is the time of a request that is alone. Invariant: with as many
//! disks as nodes `t_raid` is the paper's. Called by the commands and as the mark that the simulation is held
//! to. Tests: below, by hand.

use crate::hardware::Hardware;

/// What the last term of T_rm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remote {
    /// B/BW_disk, as it is printed.
    Printed,
    /// B/BW_mem: what a remote memory would be expected to take.
    Memory,
}

/// A point of the model: T_dralic, and what it is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// N.
    pub nodes: u32,
    /// H_lm.
    pub local_hits: f64,
    /// H_rm: of what was not hit locally.
    pub remote_hits: f64,
    /// T_raid, for its number of disks.
    pub raid_s: f64,
    /// T_dralic.
    pub seconds: f64,
}

/// T_lm = B / BW_mem.
#[must_use]
pub fn t_lm(hardware: &Hardware) -> f64 {
    hardware.block_bytes / hardware.memory_bandwidth
}

/// T_rm = B / BW_net + OH_net + B / BW_disk, as it is printed; or with BW_mem.
#[must_use]
pub fn t_rm(hardware: &Hardware, remote: Remote) -> f64 {
    let b = hardware.block_bytes;
    b / hardware.network_bandwidth + hardware.network_overhead_s + b / remote_bandwidth(hardware, remote)
}

/// That of the last term of T_rm.
#[must_use]
pub fn remote_bandwidth(hardware: &Hardware, remote: Remote) -> f64 {
    match remote {
        Remote::Printed => hardware.disk_bandwidth,
        Remote::Memory => hardware.memory_bandwidth,
    }
}

/// T_raid = (N-1) B / (N BW_net) + N OH_net + B / (N BW_disk) + OH_disk, where a block lies on all N disks.
/// Where it lies on w of them: w messages, each disk gives B/w, and N-1 of N bytes still come from others.
#[must_use]
pub fn t_raid(hardware: &Hardware, nodes: u32, disks: u32) -> f64 {
    let (n, w, b) = (f64::from(nodes.max(1)), f64::from(disks.max(1)), hardware.block_bytes);
    (n - 1.0) * b / (n * hardware.network_bandwidth)
        + w * hardware.network_overhead_s
        + b / (w * hardware.disk_bandwidth)
        + hardware.disk_overhead_s
}

/// T_pc = OH_disk + B / BW_disk.
#[must_use]
pub fn t_pc(hardware: &Hardware) -> f64 {
    hardware.disk_overhead_s + hardware.block_bytes / hardware.disk_bandwidth
}

/// T_dralic = H_lm T_lm + (1-H_lm) H_rm T_rm + (1-H_lm) (1-H_rm) T_raid, for blocks on `disks` disks.
#[must_use]
pub fn t_dralic(
    hardware: &Hardware,
    remote: Remote,
    nodes: u32,
    disks: u32,
    local_hits: f64,
    remote_hits: f64,
) -> Point {
    let raid_s = t_raid(hardware, nodes, disks);
    let missed = 1.0 - local_hits;
    let seconds = local_hits * t_lm(hardware)
        + missed * remote_hits * t_rm(hardware, remote)
        + missed * (1.0 - remote_hits) * raid_s;
    Point { nodes, local_hits, remote_hits, raid_s, seconds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::PAPER;
    use crate::hits::RemoteHits;

    #[track_caller]
    fn is_us(seconds: f64, microseconds: f64) {
        assert!((seconds * 1e6 - microseconds).abs() < 1e-6, "{} us, not {microseconds}", seconds * 1e6);
    }

    /// By hand: B/BW_mem = 8192/132e6 = 62.0606 us, B/BW_net = 81.92 us, B/BW_disk = 327.68 us.
    #[test]
    fn each_formula_is_what_a_hand_computes() {
        assert!((t_lm(&PAPER) * 1e6 - 62.060_606).abs() < 1e-5);
        is_us(t_rm(&PAPER, Remote::Printed), 81.92 + 200.0 + 327.68);
        assert!((t_rm(&PAPER, Remote::Memory) * 1e6 - (81.92 + 200.0 + 62.060_606)).abs() < 1e-5);
        is_us(t_pc(&PAPER), 12_327.68);
        is_us(t_raid(&PAPER, 1, 1), 200.0 + 327.68 + 12_000.0);
        is_us(t_raid(&PAPER, 2, 2), 40.96 + 400.0 + 163.84 + 12_000.0);
        is_us(t_raid(&PAPER, 4, 4), 61.44 + 800.0 + 81.92 + 12_000.0);
        is_us(t_raid(&PAPER, 8, 8), 71.68 + 1_600.0 + 40.96 + 12_000.0);
        // On one disk of eight: one message, and all of the block from it.
        is_us(t_raid(&PAPER, 8, 1), 71.68 + 200.0 + 327.68 + 12_000.0);
    }

    #[test]
    fn the_whole_is_the_sum_of_its_parts() {
        let at =
            |nodes, local, remote| t_dralic(&PAPER, Remote::Printed, nodes, nodes, local, remote).seconds;
        is_us(at(2, 0.0, 0.5), 0.5 * 609.6 + 0.5 * 12_604.8);
        is_us(at(4, 0.0, 0.8), 0.8 * 609.6 + 0.2 * 12_943.36);
        is_us(at(4, 1.0, 0.8), t_lm(&PAPER) * 1e6);
        is_us(at(4, 0.5, 0.8), 0.5 * (0.8 * 609.6 + 0.2 * 12_943.36) + 0.5 * t_lm(&PAPER) * 1e6);
    }

    /// "Even with hit ratio of 50 %, performance is doubled with two nodes. With remote hit ratio of 80 %, a
    /// factor of 4 performance improvement can be obtained with 4 nodes."
    #[test]
    fn the_two_points_that_the_text_tells_are_met_without_local_hits() {
        let times = |nodes: u32, hits: f64, remote| {
            t_pc(&PAPER) / t_dralic(&PAPER, remote, nodes, nodes, 0.0, hits).seconds
        };
        let printed = [times(2, 0.5, Remote::Printed), times(4, 0.8, Remote::Printed)];
        assert!((printed[0] - 1.866).abs() < 0.001 && (printed[1] - 4.007).abs() < 0.001, "{printed:?}");
        let memory = [times(2, 0.5, Remote::Memory), times(4, 0.8, Remote::Memory)];
        assert!((memory[0] - 1.904).abs() < 0.001 && (memory[1] - 4.305).abs() < 0.001, "{memory:?}");
    }

    /// The shape of figure 3, and what lies beyond it: T falls while hits grow; as printed, each further node
    /// then costs a network overhead for each block, which a block on one disk does not pay.
    #[test]
    fn figure_three_falls_and_as_printed_rises_again() {
        let hits = RemoteHits::PAPER;
        let at = |nodes: u32, disks: u32| {
            t_dralic(&PAPER, Remote::Printed, nodes, disks, 0.0, hits.at(nodes)).seconds
        };
        assert!([1, 2, 4].windows(2).all(|pair| at(pair[1], pair[1]) < at(pair[0], pair[0])));
        assert!(at(1_000, 1_000) > 5.0 * at(8, 8), "{} {}", at(1_000, 1_000), at(8, 8));
        assert!(at(1_000, 1) < 1.001 * at(8, 1), "{} {}", at(1_000, 1), at(8, 1));
    }
}
