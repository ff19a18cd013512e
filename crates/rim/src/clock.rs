//! This machine's time of day, and whether somebody keeps its clock: NTP, PTP or a hypervisor's.
//!
//! Owns two questions to the kernel. Never: setting a clock, or measuring how long something takes
//! (`control::Clock`). Called by whoever puts a time down, and by `cheetah doctor`. One of the named modules
//! that may use unsafe.
#![allow(unsafe_code)]

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, UTC; 0 before that.
#[must_use]
pub fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `None`: the kernel does not tell.
#[must_use]
pub fn is_synchronised() -> Option<bool> {
    // SAFETY: all of it is numbers, for which zero is a value.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: without modes it changes nothing, and writes to what it is given.
    let state = unsafe { libc::adjtimex(&raw mut clock) };
    (state >= 0).then_some(state != libc::TIME_ERROR && clock.status & libc::STA_UNSYNC == 0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_tells() {
        assert!(super::is_synchronised().is_some());
    }
}
