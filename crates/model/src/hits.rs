//! How often what is asked for is in another node's memory: the paper's figure 2.
//!
//! The paper says "a logarithm function of number of nodes", and its text tells two points of it: 50 % with
//! two nodes and 80 % with four. One logarithm goes through both: 0.2 + 0.3 log2 N. It would exceed 1 from
//! seven nodes on, so there is a most, which the paper does not tell; 0.95 is assumed. One node has no other.
//! Never: hits of the own memory, which are a constant. Tests: below.

use std::fmt;
use std::str::FromStr;

/// H_rm as a function of N.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RemoteHits {
    /// The same for every number of nodes but one.
    Fixed(f64),
    /// `base + doubling * log2 N`, up to `most`.
    Logarithm {
        /// What the logarithm starts from.
        base: f64,
        /// What twice as many nodes add.
        doubling: f64,
        /// It does not grow beyond this.
        most: f64,
    },
}

impl RemoteHits {
    /// Through the two points that the paper's text tells.
    pub const PAPER: RemoteHits = RemoteHits::Logarithm { base: 0.2, doubling: 0.3, most: 0.95 };

    /// H_rm of a pool of so many nodes.
    #[must_use]
    pub fn at(self, nodes: u32) -> f64 {
        match self {
            _ if nodes <= 1 => 0.0,
            RemoteHits::Fixed(share) => share,
            RemoteHits::Logarithm { base, doubling, most } => {
                (base + doubling * f64::from(nodes).log2()).clamp(0.0, most)
            }
        }
    }
}

/// A text that is no such function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHits(String);

impl fmt::Display for BadHits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is no hit ratio: write a share like 0.8, or log:BASE,DOUBLING,MOST like {}",
            self.0,
            RemoteHits::PAPER
        )
    }
}

impl std::error::Error for BadHits {}

impl fmt::Display for RemoteHits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteHits::Fixed(share) => write!(f, "{share}"),
            RemoteHits::Logarithm { base, doubling, most } => write!(f, "log:{base},{doubling},{most}"),
        }
    }
}

impl FromStr for RemoteHits {
    type Err = BadHits;

    fn from_str(text: &str) -> Result<RemoteHits, BadHits> {
        let bad = || BadHits(text.to_owned());
        let share = |text: &str| {
            let value: Option<f64> = text.trim().parse().ok();
            value.filter(|value| (0.0..=1.0).contains(value)).ok_or_else(bad)
        };
        let Some(numbers) = text.trim().strip_prefix("log:") else {
            return share(text).map(RemoteHits::Fixed);
        };
        let numbers = numbers.split(',').map(share).collect::<Result<Vec<f64>, BadHits>>()?;
        let [base, doubling, most] = numbers[..] else { return Err(bad()) };
        Ok(RemoteHits::Logarithm { base, doubling, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_goes_through_the_points_of_the_text() {
        let at = |nodes| RemoteHits::PAPER.at(nodes);
        assert_eq!(at(1), 0.0);
        assert!((at(2) - 0.5).abs() < 1e-12 && (at(4) - 0.8).abs() < 1e-12);
        assert_eq!([at(8), at(1_000), at(10_000)], [0.95; 3]);
        assert_eq!((RemoteHits::Fixed(0.5).at(1), RemoteHits::Fixed(0.5).at(9)), (0.0, 0.5));
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for hits in [RemoteHits::PAPER, RemoteHits::Fixed(0.8), RemoteHits::Fixed(0.0)] {
            assert_eq!(hits.to_string().parse(), Ok(hits));
        }
        for bad in ["", "2", "-1", "log:", "log:1,2", "log:0.1,0.1,0.1,0.1", "NaN", "log:0,0,x"] {
            assert!(bad.parse::<RemoteHits>().is_err(), "{bad}");
        }
    }
}
