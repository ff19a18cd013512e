//! Which jobs may work on which part of a group now.
//!
//! Owns range locks over the extents of each group: readers share, everything that writes is alone. First
//! come, first served: a job also waits for one that waits. Never: what a job does with its lock.
//! Invariants: no two granted locks overlap unless both are shared; a job has one lock, and none when it is
//! over. Tests: below, the simulator.

use super::Key;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Lock {
    job: Key,
    from: u32,
    to: u32,
    alone: bool,
    granted: bool,
}

impl Lock {
    fn conflicts(&self, other: &Lock) -> bool {
        (self.alone || other.alone) && self.from < other.to && other.from < self.to
    }
}

#[derive(Debug, Default)]
pub(super) struct Locks {
    /// By group; each in order of arrival. Emptied lists stay, so that a busy group allocates once.
    groups: BTreeMap<u32, Vec<Lock>>,
}

impl Locks {
    /// Asks for bytes `from..to` of the group's extents; false when the job has to wait for `release` to
    /// name it.
    pub(super) fn ask(&mut self, group: u32, job: Key, from: u32, to: u32, alone: bool) -> bool {
        let locks = self.groups.entry(group).or_default();
        let mut lock = Lock { job, from, to, alone, granted: false };
        lock.granted = !locks.iter().any(|other| other.conflicts(&lock));
        locks.push(lock);
        lock.granted
    }

    /// Gives a lock back, granted or not, and names the jobs that need not wait any more.
    pub(super) fn release(&mut self, group: u32, job: Key, mut granted: impl FnMut(Key)) {
        let Some(locks) = self.groups.get_mut(&group) else { return };
        let Some(at) = locks.iter().position(|lock| lock.job == job) else { return };
        let released = locks.remove(at);
        for next in at..locks.len() {
            let lock = locks[next];
            let waits = !lock.granted && lock.conflicts(&released);
            if waits && !locks[..next].iter().any(|other| other.conflicts(&lock)) {
                locks[next].granted = true;
                granted(lock.job);
            }
        }
    }

    pub(super) fn is_granted(&self, group: u32, job: Key) -> bool {
        self.groups.get(&group).is_some_and(|locks| locks.iter().any(|lock| lock.job == job && lock.granted))
    }

    /// Whether a reader of these bytes would wait now.
    pub(super) fn bar_readers(&self, group: u32, from: u32, to: u32) -> bool {
        let bars = |lock: &Lock| lock.alone && lock.from < to && from < lock.to;
        self.groups.get(&group).is_some_and(|locks| locks.iter().any(bars))
    }

    pub(super) fn check_invariants(&self, exists: impl Fn(Key) -> bool) {
        for locks in self.groups.values() {
            for (at, lock) in locks.iter().enumerate() {
                let blocked = locks[..at].iter().any(|other| other.conflicts(lock));
                assert_eq!(lock.granted, !blocked, "a lock is granted when nothing before it conflicts");
                assert!(exists(lock.job), "a lock outlived its job: {lock:?}");
                let again = locks[..at].iter().any(|other| other.job == lock.job);
                assert!(!again, "a job asked for its lock twice: {lock:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        Key::from_u64(number)
    }

    #[test]
    fn readers_share_and_a_writer_waits_its_turn() {
        let mut locks = Locks::default();
        assert!(locks.ask(0, key(1), 0, 10, false));
        assert!(locks.ask(0, key(2), 5, 15, false));
        assert!(!locks.ask(0, key(3), 8, 9, true));
        assert!(!locks.ask(0, key(4), 0, 20, false), "behind the writer that waits");
        assert!(locks.ask(0, key(5), 20, 30, true), "elsewhere");
        assert!(locks.ask(1, key(6), 0, 10, true), "in another group");
        let mut granted = Vec::new();
        locks.release(0, key(1), |job| granted.push(job));
        assert!(granted.is_empty());
        locks.release(0, key(2), |job| granted.push(job));
        assert_eq!(granted, [key(3)]);
        locks.release(0, key(3), |job| granted.push(job));
        assert_eq!(granted, [key(3), key(4)]);
        locks.check_invariants(|_| true);
    }

    #[test]
    fn one_that_gives_up_waiting_lets_others_pass() {
        let mut locks = Locks::default();
        assert!(locks.ask(0, key(1), 0, 10, false));
        assert!(!locks.ask(0, key(2), 0, 10, true));
        assert!(!locks.ask(0, key(3), 0, 10, false));
        let mut granted = Vec::new();
        locks.release(0, key(2), |job| granted.push(job));
        assert_eq!(granted, [key(3)]);
        assert!(!locks.is_granted(0, key(2)));
    }
}
