//! Waiting for a condition, with a deadline. The only sleep of the lab is the pause between two looks.
//! Never: a fixed pause in place of a condition.

use std::time::{Duration, Instant};

/// How long a test waits for anything that ought to happen at once; generous, for a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(5);

/// Looks until `look` answers something, or panics naming `what` when `limit` has passed.
#[track_caller]
pub fn for_some<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain for: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Looks until `look` answers true, or panics naming `what` when `limit` has passed.
#[track_caller]
pub fn until(what: &str, limit: Duration, mut look: impl FnMut() -> bool) {
    for_some(what, limit, || look().then_some(()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_what_was_found() {
        let mut looks = 0;
        let found = for_some("three looks", SOON, || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, 3);
    }

    #[test]
    #[should_panic(expected = "in vain for: the moon")]
    fn names_what_did_not_come() {
        until("the moon", Duration::from_millis(10), || false);
    }
}
