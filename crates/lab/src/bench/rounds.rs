//! Interleaved rounds: every side has its turn in each round, A B A B, so that a machine that gets slower or
//! busier does it to all of them.
//!
//! Owns: the order of turns, the warm-up round that does not count, the probe of the machine in each round,
//! and the further rounds that noise is answered with (decided by the spread alone, never by who is ahead).
//! Never: ratios. Called by: the parts of the benchmark. Tests: below.

use std::time::{Duration, Instant};

use crate::bench::quiet::Times;
use crate::bench::row::UNCERTAINTY_MAX;
use crate::figures::Series;

/// What one turn of a side brought: the value in the unit of its set, and the processor time of both ends
/// (seconds per GB), NaN where that was not asked.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub value: f64,
    pub cpu_per_gb: f64,
}

impl Turn {
    pub fn of(value: f64) -> Self {
        Self { value, cpu_per_gb: f64::NAN }
    }
}

/// A measured thing.
pub struct Side<'a> {
    pub name: &'static str,
    turn: Box<dyn FnMut() -> Turn + 'a>,
}

impl<'a> Side<'a> {
    pub fn new(name: &'static str, turn: impl FnMut() -> Turn + 'a) -> Self {
        Self { name, turn: Box::new(turn) }
    }
}

/// What one side brought, a value a round.
#[derive(Debug, Default)]
struct Brought {
    name: &'static str,
    value: Series,
    cpu: Series,
    busy: Series,
}

/// What every side brought.
#[derive(Debug)]
pub struct Taken {
    sides: Vec<Brought>,
    pub probe: Series,
}

impl Taken {
    #[track_caller]
    pub fn value(&self, side: &str) -> &Series {
        &self.side(side).value
    }

    #[track_caller]
    pub fn cpu(&self, side: &str) -> &Series {
        &self.side(side).cpu
    }

    /// The part of all cores' time in which they were not idle, whoever had them, in percent.
    #[track_caller]
    pub fn busy(&self, side: &str) -> &Series {
        &self.side(side).busy
    }

    #[track_caller]
    fn side(&self, name: &str) -> &Brought {
        self.sides.iter().find(|side| side.name == name).unwrap_or_else(|| panic!("no side {name}"))
    }

    fn is_noisy(&self) -> bool {
        let values = self.sides.iter().map(|side| &side.value);
        values.chain([&self.probe]).any(|series| series.uncertainty() > UNCERTAINTY_MAX)
    }
}

/// Takes `rounds` that count, and up to as many again while any side or the machine is too noisy.
pub fn take(rounds: usize, sides: &mut [Side<'_>], mut probe: impl FnMut() -> f64) -> Taken {
    let mut taken = Taken {
        sides: sides.iter().map(|side| Brought { name: side.name, ..Brought::default() }).collect(),
        probe: Series::default(),
    };
    for round in 0..=2 * rounds {
        if round > rounds && !taken.is_noisy() {
            break;
        }
        let probed = probe();
        let timed = |side: &mut Side<'_>| {
            let before = Times::now();
            ((side.turn)(), 100.0 * Times::now().busy_since(before))
        };
        let turns: Vec<(Turn, f64)> = sides.iter_mut().map(timed).collect();
        if round == 0 {
            continue;
        }
        taken.probe.push(probed);
        for (side, (turn, busy)) in taken.sides.iter_mut().zip(turns) {
            side.value.push(turn.value);
            side.cpu.push(turn.cpu_per_gb);
            side.busy.push(busy);
        }
    }
    taken
}

/// How long the probe copies.
const PROBE_TIME: Duration = Duration::from_millis(120);
/// More than fits into the caches of two cores.
const PROBE_BYTES: usize = 64 << 20;

/// GB/s that all cores together copy in memory: less, when somebody else has a core.
#[derive(Debug)]
pub struct Probe(Vec<(Vec<u8>, Vec<u8>)>);

impl Probe {
    pub fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Touched once, or the first round would measure the kernel's zeroing.
        Self((0..cores).map(|core| (vec![core as u8 + 1; PROBE_BYTES], vec![1; PROBE_BYTES])).collect())
    }

    pub fn gb_per_second(&mut self) -> f64 {
        let copied: f64 = std::thread::scope(|scope| {
            let copiers: Vec<_> =
                self.0.iter_mut().map(|(from, to)| scope.spawn(|| copy(from, to))).collect();
            copiers.into_iter().map(|copier| copier.join().expect("a copier ends")).sum()
        });
        copied / 1e9
    }
}

/// Bytes a second.
fn copy(from: &[u8], to: &mut [u8]) -> f64 {
    const PIECE: usize = 1 << 20;
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < PROBE_TIME {
        let at = bytes % from.len();
        to[at..at + PIECE].copy_from_slice(&from[at..at + PIECE]);
        bytes += PIECE;
    }
    std::hint::black_box(&to);
    bytes as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn sides_take_turns_and_the_first_round_does_not_count() {
        let order = RefCell::new(String::new());
        let count = RefCell::new(0.0);
        let turn = |name: &'static str| {
            let (order, count) = (&order, &count);
            Side::new(name, move || {
                order.borrow_mut().push_str(name);
                *count.borrow_mut() += 1.0;
                Turn { value: 100.0 + *count.borrow(), cpu_per_gb: 0.5 }
            })
        };
        let taken = take(3, &mut [turn("a"), turn("b")], || 1.0);
        assert_eq!(*order.borrow(), "abababab");
        assert_eq!(taken.value("a").values(), [103.0, 105.0, 107.0]);
        assert_eq!(taken.cpu("b").values(), [0.5; 3]);
        assert_eq!(taken.busy("a").values().len(), 3);
        assert_eq!(taken.probe.values(), [1.0; 3]);
    }

    #[test]
    fn noise_is_answered_with_some_more_rounds() {
        let mut values = [5.0, 1.0, 9.0, 3.0, 2.0, 5.0, 7.0, 1.0].into_iter();
        let taken = take(3, &mut [Side::new("a", || Turn::of(values.next().expect("not so many")))], || 1.0);
        assert_eq!(taken.value("a").values().len(), 6);
    }

    #[test]
    fn the_probe_copies() {
        assert!(Probe::new().gb_per_second() > 0.0);
    }
}
