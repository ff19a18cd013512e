//! What a node's memory, link and disk can do. Never: where figures come from.

use std::fmt;

/// The parameters of the model. Seconds, and bytes per second; a megabyte has 10^6 bytes, as bandwidths are
/// given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// B: bytes of a request.
    pub block_bytes: f64,
    /// BW_mem: bytes per second of a memory.
    pub memory_bandwidth: f64,
    /// BW_net: bytes per second of a node's link, each way.
    pub network_bandwidth: f64,
    /// OH_net: seconds that a node is busy with each message that it sends for.
    pub network_overhead_s: f64,
    /// BW_dsk: bytes per second of a disk.
    pub disk_bandwidth: f64,
    /// OH_dsk: seconds until a disk has found a block.
    pub disk_overhead_s: f64,
}

/// The paper's section 3: PCI of 33 MHz and 32 bits, Gigabit Ethernet, and the disk of its table 1. Its block
/// of 8 KB is taken as 8,192 bytes.
pub const PAPER: Hardware = Hardware {
    block_bytes: 8_192.0,
    memory_bandwidth: 132e6,
    network_bandwidth: 100e6,
    network_overhead_s: 0.2e-3,
    disk_bandwidth: 25e6,
    disk_overhead_s: 12e-3,
};

/// A parameter that nothing can be computed with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BadHardware {
    /// Which parameter, by its flag.
    pub what: &'static str,
    /// What it is.
    pub is: f64,
    /// What it has to be.
    pub must: &'static str,
}

impl fmt::Display for BadHardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, and must be {}", self.what, self.is, self.must)
    }
}

impl std::error::Error for BadHardware {}

impl Hardware {
    /// Refuses what would divide by zero, or last for years.
    ///
    /// # Errors
    /// Which parameter it is.
    pub fn check(&self) -> Result<(), BadHardware> {
        const BLOCK: &str = "512 bytes to 32 MiB";
        const BANDWIDTH: &str = "from 1 KB to 10 TB a second";
        const OVERHEAD: &str = "10 s at most";
        let bandwidth = 1e3..=1e13;
        let checks = [
            ("--block", self.block_bytes, 512.0..=33_554_432.0, BLOCK),
            ("--memory-bandwidth", self.memory_bandwidth, bandwidth.clone(), BANDWIDTH),
            ("--network-bandwidth", self.network_bandwidth, bandwidth.clone(), BANDWIDTH),
            ("--network-overhead", self.network_overhead_s, 0.0..=10.0, OVERHEAD),
            ("--disk-bandwidth", self.disk_bandwidth, bandwidth, BANDWIDTH),
            ("--disk-overhead", self.disk_overhead_s, 0.0..=10.0, OVERHEAD),
        ];
        let bad = checks.into_iter().find(|(_, is, range, _)| !range.contains(is));
        bad.map_or(Ok(()), |(what, is, _, must)| Err(BadHardware { what, is, must }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_computed_with_is_refused() {
        assert_eq!(PAPER.check(), Ok(()));
        let none = Hardware { disk_bandwidth: 0.0, ..PAPER };
        assert_eq!(none.check().map_err(|bad| bad.what), Err("--disk-bandwidth"));
        let not_a_number = Hardware { network_overhead_s: f64::NAN, ..PAPER };
        assert_eq!(not_a_number.check().map_err(|bad| bad.what), Err("--network-overhead"));
        assert_eq!(Hardware { block_bytes: 1.0, ..PAPER }.check().map_err(|bad| bad.what), Err("--block"));
    }
}
