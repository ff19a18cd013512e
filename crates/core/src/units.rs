//! Sizes and names as people write them: `4G`, `64K`, `512M`, `12345`. Binary multiples, as in qemu and
//! nbdkit. Never: floating point; a size is exact to the byte.

use crate::limits::NAME_BYTES_MAX;
use std::fmt;

/// Nanoseconds on the driver's monotonic clock. Only differences mean anything.
pub type Time = u64;

/// A text that is no size. Its own text says what is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadSize {
    /// Not of the form that sizes are written in.
    Malformed(String),
    /// Beyond what a volume may have.
    TooLarge(String),
}

impl fmt::Display for BadSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadSize::Malformed(text) => write!(
                f,
                "'{text}' is not a size: write bytes or a number with K, M, G or T, like 512M or 4G"
            ),
            BadSize::TooLarge(text) => write!(f, "'{text}' is too large: a size is below 2^63 bytes"),
        }
    }
}

impl std::error::Error for BadSize {}

/// Parses `123`, `4K`, `4KiB`, `1.5G`, `2T` (binary multiples, case ignored) into bytes.
///
/// # Errors
/// It is no size, or too large.
pub fn parse_bytes(text: &str) -> Result<u64, BadSize> {
    let bad = || BadSize::Malformed(text.to_owned());
    let trimmed = text.trim();
    let digits_end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits_end);
    let suffix = suffix.trim().to_ascii_uppercase();
    let multiple: u64 = match suffix.strip_suffix("IB").or(suffix.strip_suffix('B')).unwrap_or(&suffix) {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        "P" => 1 << 50,
        _ => return Err(bad()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 || (multiple == 1 && number.contains('.')) {
        return Err(bad());
    }
    let too_large = || BadSize::TooLarge(text.to_owned());
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = u128::from(whole) * u128::from(multiple);
    if !fraction.is_empty() {
        let value: u128 = fraction.parse().map_err(|_| bad())?;
        bytes += value * u128::from(multiple) / 10u128.pow(u32::try_from(fraction.len()).map_err(|_| bad())?);
    }
    u64::try_from(bytes).ok().filter(|b| *b <= crate::limits::VOLUME_BYTES_MAX).ok_or_else(too_large)
}

/// `1.50 GiB`, `64.00 KiB`, `12 B`: for people; scripts read the exact bytes from `--json`.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    const NAMES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    if power == 0 {
        return format!("{bytes} B");
    }
    let unit = 1u128 << (10 * power);
    let hundredths = (u128::from(bytes) * 100 + unit / 2) / unit;
    if hundredths.is_multiple_of(100) {
        format!("{} {}", hundredths / 100, NAMES[power])
    } else {
        format!("{}.{:02} {}", hundredths / 100, hundredths % 100, NAMES[power])
    }
}

/// A text that neither a volume nor a donor may have as its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadName(pub String);

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a name: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-', \
             and start with a letter, digit or '_'",
            self.0
        )
    }
}

impl std::error::Error for BadName {}

/// A volume or donor name: 1 to 64 of `A-Z a-z 0-9 . _ -`, not starting with `.` or `-`
/// (it becomes a file name and an NBD export name).
///
/// # Errors
/// It is no such name.
pub fn check_name(name: &str) -> Result<(), BadName> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || !name.chars().all(allowed)
        || name.starts_with(['.', '-'])
    {
        return Err(BadName(name.to_owned()));
    }
    Ok(())
}

/// `1 donor`, `2 donors`.
#[must_use]
pub fn show_count(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Seconds since 1970: `2026-11-25 22:15:07 UTC`.
#[must_use]
pub fn show_time(seconds: u64) -> String {
    if seconds == 0 {
        return "a time that is not known".to_owned();
    }
    let [year, month, day, hour, minute, second] = calendar(seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Seconds since 1970, for programs: `2026-11-25T22:15:07Z`.
#[must_use]
pub fn iso_time(seconds: u64) -> String {
    let [year, month, day, hour, minute, second] = calendar(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month, day, hour, minute and second of these seconds since 1970, in UTC.
fn calendar(seconds: u64) -> [u64; 6] {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, eras have 400 of
    // them.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    [year, month, day, second / 3_600, second / 60 % 60, second % 60]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(iso_time(0), "1970-01-01T00:00:00Z");
        assert_eq!(iso_time(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(iso_time(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(iso_time(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(iso_time(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn sizes_parse_exactly() {
        assert_eq!(parse_bytes("0"), Ok(0));
        assert_eq!(parse_bytes("4K"), Ok(4096));
        assert_eq!(parse_bytes("4kib"), Ok(4096));
        assert_eq!(parse_bytes("1.5G"), Ok(3 << 29));
        assert_eq!(parse_bytes("52428801"), Ok(52_428_801));
        assert_eq!(parse_bytes("9223372036854775807"), Ok((1 << 63) - 1));
        for bad in ["", "G", "4X", "-1", "1.5", "4 G G", "9223372036854775808", "99999999T", "1..5G"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_show_for_people() {
        assert_eq!(show_bytes(0), "0 B");
        assert_eq!(show_bytes(1023), "1023 B");
        assert_eq!(show_bytes(64 << 20), "64 MiB");
        assert_eq!(show_bytes(3 << 29), "1.50 GiB");
    }

    #[test]
    fn names_are_safe_as_file_and_export_names() {
        for good in ["a", "case-7.raw", "_x", &"n".repeat(64)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "-x", "a/b", "a b", "ü", &"n".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_is_what_date_says() {
        assert_eq!(show_time(1_764_108_907), "2025-11-25 22:15:07 UTC");
        assert_eq!(show_time(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(show_time(4_107_542_399), "2100-02-28 23:59:59 UTC");
        assert_eq!(show_time(1), "1970-01-01 00:00:01 UTC");
    }
}
