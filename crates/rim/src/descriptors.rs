//! How many files and sockets this process may have open: as many as it is allowed, and known before they run
//! out.
//!
//! Owns the limit. Never: who gets them (`core::seats`). Called by who listens. Tests: below.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one and returns it. The soft one is small for the sake of programs that
/// use `select`, which none here does.
#[must_use]
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // What is refused leaves the limit as it is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_that_is_allowed_is_had() {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        assert_eq!(super::raise(), limit.maximum.unwrap_or(u64::MAX));
    }
}
