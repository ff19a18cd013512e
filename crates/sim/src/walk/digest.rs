//! Digests of machines by what they print of themselves: two that print the same go on in the same way.
//!
//! Owns which numbers are no difference: times count from now on, and names of calls and connections by the
//! order in which they appear. Never: what has to be in a digest (`legacy`, `life`). Tests: below.

use cheetah_core::units::Time;
use std::cell::Cell;
use std::fmt::{self, Debug, Write};
use std::rc::Rc;

/// When a walk begins: so late that a time is not taken for anything else.
pub(super) const BEGIN: Time = 1_000_000_000_000_000;
/// A number so near to now is a time.
const NEAR: u64 = 10_000_000_000_000;
/// Calls and connections are named from here on, and up to `NAMES_END`.
pub(super) const CALLS: u64 = 2_000_000_000_000_000;
pub(super) const CONNS: u64 = 3_000_000_000_000_000;
const NAMES_END: u64 = 4_000_000_000_000_000;

/// Takes in text and numbers.
pub(super) struct Digest {
    hash: u64,
    now: Time,
    number: u64,
    digits: u64,
    names: Vec<u64>,
}

impl Digest {
    pub(super) fn new(now: Time) -> Digest {
        Digest { hash: 0, now, number: 0, digits: 0, names: Vec::new() }
    }

    pub(super) fn add(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// A time that may be none.
    pub(super) fn add_time(&mut self, at: Option<Time>) {
        self.add(at.map_or(u64::MAX, |at| at.wrapping_sub(self.now)));
    }

    pub(super) fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        bytes.iter().for_each(|byte| self.add((*byte).into()));
    }

    pub(super) fn print(&mut self, what: &impl Debug) {
        write!(self, "{what:?}").expect("nothing fails here");
        self.end_number();
        self.add(0);
    }

    fn end_number(&mut self) {
        let (number, digits) = (std::mem::take(&mut self.number), std::mem::take(&mut self.digits));
        if digits == 0 {
            return;
        }
        if number.abs_diff(self.now) < NEAR {
            self.add(number.wrapping_sub(self.now));
        } else if (CALLS..NAMES_END).contains(&number) {
            let known = self.names.iter().position(|name| *name == number);
            let at = known.unwrap_or_else(|| {
                self.names.push(number);
                self.names.len() - 1
            });
            self.add(at as u64 + CALLS);
        } else {
            self.add(number ^ digits << 56);
        }
    }

    pub(super) fn value(&self) -> u64 {
        self.hash ^ self.hash >> 32
    }
}

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte.is_ascii_digit() {
                self.number = self.number.wrapping_mul(10).wrapping_add((byte - b'0').into());
                self.digits += 1;
            } else {
                self.end_number();
                self.add(byte.into());
            }
        }
        Ok(())
    }
}

/// A machine with its digest, which is worked out again only where it has been stepped since. Shared by all
/// paths that have not.
#[derive(Clone, Debug)]
pub(super) struct Seen<T> {
    machine: Rc<T>,
    stepped: Time,
    digest: Cell<Option<u64>>,
}

impl<T: Clone + Debug> Seen<T> {
    pub(super) fn new(machine: T, now: Time) -> Seen<T> {
        Seen { machine: Rc::new(machine), stepped: now, digest: Cell::new(None) }
    }

    pub(super) fn get(&self) -> &T {
        &self.machine
    }

    /// To be changed.
    pub(super) fn at(&mut self, now: Time) -> &mut T {
        self.stepped = now;
        self.digest.set(None);
        Rc::make_mut(&mut self.machine)
    }

    /// Of it as it was changed last, and of how long ago that was.
    pub(super) fn add_to(&self, digest: &mut Digest) {
        let of_it = self.digest.get().unwrap_or_else(|| {
            let mut digest = Digest::new(self.stepped);
            digest.print(&self.machine);
            digest.value()
        });
        self.digest.set(Some(of_it));
        digest.add(of_it);
        digest.add_time(Some(self.stepped));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_from_now_and_names_by_their_order() {
        let of = |now: Time, what: &[u64]| {
            let mut digest = Digest::new(now);
            digest.print(&what);
            digest.value()
        };
        let later = BEGIN + 77;
        assert_eq!(of(BEGIN, &[BEGIN + 5, 3, CALLS + 1]), of(later, &[later + 5, 3, CALLS + 9]));
        assert_ne!(of(BEGIN, &[BEGIN + 5]), of(BEGIN, &[BEGIN + 6]));
        assert_ne!(of(BEGIN, &[CALLS, CALLS + 1]), of(BEGIN, &[CALLS, CALLS]), "one name, and two");
        assert_ne!(of(BEGIN, &[3]), of(BEGIN, &[4]));
    }
}
