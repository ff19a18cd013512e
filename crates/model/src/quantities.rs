//! Times, bandwidths and shares as people write them: `12ms`, `25MB`, `1Gbit`, `0.8`; and how they are shown.
//!
//! Never: sizes of volumes, which are exact (`core::units`). A bandwidth says whether it counts in bytes or
//! bits, and in tens or twos, for a bare `M` would be read in several ways. Tests: below.

use std::fmt;

/// A text that is no such quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadQuantity {
    text: String,
    wanted: &'static str,
}

impl fmt::Display for BadQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not {}", self.text, self.wanted)
    }
}

impl std::error::Error for BadQuantity {}

const TIMES: [(&str, f64); 9] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("h", 3_600.0),
    ("d", DAY_S),
    ("y", YEAR_S),
    ("", 1.0),
];
const DAY_S: f64 = 86_400.0;
/// 365.25 days.
pub const YEAR_S: f64 = 365.25 * DAY_S;

const RATES: [(&str, f64); 11] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1_024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("kbit", 125.0),
    ("Mbit", 125e3),
    ("Gbit", 125e6),
];

fn parse(text: &str, units: &[(&str, f64)], wanted: &'static str) -> Result<f64, BadQuantity> {
    let bad = || BadQuantity { text: text.to_owned(), wanted };
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let unit = unit.trim();
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    let factor = units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let value = factor.map(|factor| number * factor).filter(|value| value.is_finite());
    // A second without a unit would be a thousand times what was meant, but for none at all.
    value.filter(|value| !unit.is_empty() || *value == 0.0).ok_or_else(bad)
}

/// Seconds of `12ms`, `200us`, `0.2ms`, `30s`, `90d`, `2y`.
///
/// # Errors
/// It is none.
pub fn parse_seconds(text: &str) -> Result<f64, BadQuantity> {
    parse(text, &TIMES, "a time: write a number with ns, us, ms, s, min, h, d or y, like 12ms or 90d")
}

/// Bytes per second of `25MB`, `132MB/s`, `100MiB`, `1Gbit`.
///
/// # Errors
/// It is none.
pub fn parse_rate(text: &str) -> Result<f64, BadQuantity> {
    const WANTED: &str = "a bandwidth: write a number with B, kB, MB, GB, KiB, MiB, GiB, kbit, Mbit or Gbit, like 25MB or 1Gbit";
    parse(text, &RATES, WANTED)
}

/// A share from 0 to 1.
///
/// # Errors
/// It is none.
pub fn parse_share(text: &str) -> Result<f64, BadQuantity> {
    let value: Option<f64> = text.trim().parse().ok();
    let wanted = "a share: write a number from 0 to 1, like 0.8";
    let bad = || BadQuantity { text: text.to_owned(), wanted };
    value.filter(|value| (0.0..=1.0).contains(value)).ok_or_else(bad)
}

/// Three digits of a number, without an exponent where it can do without.
#[must_use]
pub fn show_number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { value.to_string() };
    }
    let power = value.abs().log10().floor();
    if !(-6.0..7.0).contains(&power) {
        return format!("{value:.2e}");
    }
    let digits = (2.0 - power).clamp(0.0, 8.0);
    let text = format!("{value:.*}", digits as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// `12.3 ms`, `62.1 us`, `3.2 d`, `41 y`.
#[must_use]
pub fn show_seconds(seconds: f64) -> String {
    let units = [
        (YEAR_S, "y"),
        (DAY_S, "d"),
        (3_600.0, "h"),
        (60.0, "min"),
        (1.0, "s"),
        (1e-3, "ms"),
        (1e-6, "us"),
        (1e-9, "ns"),
    ];
    let of = units.into_iter().find(|(factor, _)| seconds >= *factor);
    of.map_or_else(|| "0 s".to_owned(), |(factor, name)| format!("{} {name}", show_number(seconds / factor)))
}

/// `25 MB/s`.
#[must_use]
pub fn show_rate(bytes_per_s: f64) -> String {
    let units = [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (0.0, "B/s")];
    let of = units.into_iter().find(|(factor, _)| bytes_per_s >= *factor);
    let (factor, name) = of.unwrap_or((0.0, "B/s"));
    format!("{} {name}", show_number(bytes_per_s / factor.max(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_bandwidths_are_what_people_mean() {
        let close = |read: Result<f64, BadQuantity>, is: f64| {
            read.is_ok_and(|value| (value - is).abs() <= is.abs() * 1e-12)
        };
        assert!(close(parse_seconds("12ms"), 0.012) && close(parse_seconds("0.2 ms"), 0.0002));
        assert!(close(parse_seconds("2y"), 2.0 * YEAR_S) && close(parse_seconds("0"), 0.0));
        assert!(close(parse_rate("25MB"), 25e6) && close(parse_rate("1Gbit/s"), 125e6));
        assert!(close(parse_rate("1MiB"), 1_048_576.0));
        assert_eq!(parse_share("0.8"), Ok(0.8));
        for bad in ["", "12", "ms", "-1ms", "1e3s", "12 parsecs", "infs"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
        for bad in ["", "25", "25M", "1gbit", "NaNMB"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        for bad in ["", "1.1", "-0.1", "NaN", "80%"] {
            assert!(parse_share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.0, 0.012_327_68, 62.06e-6, 1.0, 100.0 * YEAR_S].map(show_seconds);
        assert_eq!(shown, ["0 s", "12.3 ms", "62.1 us", "1 s", "100 y"]);
        assert_eq!(
            [25e6, 125e6, 512.0, 3.2e9].map(show_rate),
            ["25 MB/s", "125 MB/s", "512 B/s", "3.2 GB/s"]
        );
        assert_eq!([1234.4, 0.000_123_4, 5e9, 10.0].map(show_number), ["1234", "0.000123", "5.00e9", "10"]);
    }
}
