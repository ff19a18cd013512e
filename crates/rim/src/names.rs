//! How a static program looks up names of hosts: in /etc/hosts and by DNS, which are in it, and by nothing
//! that it would have to load.
//!
//! Owns that one choice. Why: /etc/nsswitch.conf names plug-ins of the machine's libc. A static program of
//! another libc that loads them ends by SIGFPE (built with glibc 2.36, run beside 2.41). Names that only a
//! plug-in knows, of mDNS or of containers, are not found by a static program. One of the named modules that
//! may use unsafe. Called by `main`.
#![allow(unsafe_code)]

/// To be called before the first name is looked up, while there is one thread. A program that is not static
/// is left as it is.
pub fn look_up_without_plugins() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    {
        use std::ffi::{c_char, c_int};
        unsafe extern "C" {
            fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
        }
        // SAFETY: both are texts that end in a zero and live for ever; nothing is looked up meanwhile.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    }
}
