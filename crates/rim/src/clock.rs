//! Whether this machine's clock is kept by somebody: NTP, PTP or a hypervisor's.
//!
//! Owns one question to the kernel. Never: setting a clock. Called by `cheetah doctor`. One of the named
//! modules that may use unsafe.
#![allow(unsafe_code)]

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
