//! Times of requests, by their mean and percentiles. Never: which requests count.

/// Each a time in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    all: Vec<u64>,
}

/// What becomes of them, in seconds. All zero where there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean_s: f64,
    /// Half of them took no longer.
    pub p50_s: f64,
    /// 95 of a hundred took no longer.
    pub p95_s: f64,
    /// 99 of a hundred took no longer.
    pub p99_s: f64,
    /// The longest.
    pub max_s: f64,
}

impl Latencies {
    /// One more.
    pub fn add(&mut self, ns: u64) {
        self.all.push(ns);
    }

    /// Those of both.
    pub fn extend(&mut self, other: &Latencies) {
        self.all.extend_from_slice(&other.all);
    }

    /// Their figures.
    #[must_use]
    pub fn summary(mut self) -> Summary {
        let Some(last) = self.all.len().checked_sub(1) else { return Summary::default() };
        self.all.sort_unstable();
        let seconds = |ns: u64| ns as f64 * 1e-9;
        // The least that so many of a hundred do not exceed.
        let at = |percent: usize| seconds(self.all[(self.all.len() * percent).div_ceil(100) - 1]);
        let sum: u128 = self.all.iter().map(|ns| u128::from(*ns)).sum();
        Summary {
            count: self.all.len() as u64,
            mean_s: sum as f64 * 1e-9 / self.all.len() as f64,
            p50_s: at(50),
            p95_s: at(95),
            p99_s: at(99),
            max_s: seconds(self.all[last]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_least_that_so_many_do_not_exceed() {
        let mut times = Latencies::default();
        (1..=200).rev().for_each(|number| times.add(number * 1_000_000_000));
        let Summary { count, mean_s, p50_s, p95_s, p99_s, max_s } = times.summary();
        assert_eq!((count, p50_s, p95_s, p99_s, max_s), (200, 100.0, 190.0, 198.0, 200.0));
        assert!((mean_s - 100.5).abs() < 1e-9);
        assert_eq!(Latencies::default().summary(), Summary::default());
    }
}
