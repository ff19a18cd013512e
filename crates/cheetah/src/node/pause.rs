//! How long something that ended is left alone: longer each time, until it has run for a while.
//! Never: a clock. Called by `keep`. Tests: below.

use std::time::Duration;

/// By then its pool has mostly noticed that a donor is gone, and gives it the same name again.
const FIRST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(60);
/// Whatever ran for so long is well.
const WELL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct Pause {
    next: Option<Duration>,
}

impl Pause {
    /// After something that ran for so long.
    pub fn after(&mut self, ran: Duration) -> Duration {
        let pause = match self.next {
            Some(next) if ran < WELL => next,
            _ => FIRST,
        };
        self.next = Some((pause * 2).min(LONGEST));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_grows_until_what_is_started_again_stays() {
        let mut pause = Pause::default();
        let seconds = |pause: &mut Pause, ran| pause.after(Duration::from_secs(ran)).as_secs();
        let all: Vec<u64> = (0..7).map(|_| seconds(&mut pause, 1)).collect();
        assert_eq!(all, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(seconds(&mut pause, 60), 2);
        assert_eq!(seconds(&mut pause, 0), 4);
    }
}
