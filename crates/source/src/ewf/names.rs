//! What the segments of a set are called: `.E01` to `.E99`, then `.EAA` to `.ZZZ`; of version 2 `.Ex01` to
//! `.Ex99`, then `.ExAA`, `.EyAA`, `.EzZZ`, `.FaAA`. Called by `ewf`. Tests: below.

use super::Header;
use crate::files;
use std::path::{Path, PathBuf};

/// Numbers that are written with two digits.
const COUNTED: u32 = 99;
/// Those with the same letter in front.
const LETTERED: u32 = 26 * 26;

/// How the segments of one set are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    version: u8,
    /// The letter of the first ones, a capital.
    letter: u8,
    is_small: bool,
}

impl Name {
    /// From the name of one segment; `None` where that is not what its header says.
    pub fn of(path: &Path, header: &Header) -> Option<Name> {
        let ending = files::ending(path)?;
        let first = *ending.as_bytes().first()?;
        // The letter may have moved on since the first.
        let moved =
            u8::try_from(header.number.checked_sub(COUNTED + 1).map_or(0, |over| over / LETTERED)).ok()?;
        let moved = if header.version == 2 { (moved + 23) / 26 } else { moved };
        let letter = first.to_ascii_uppercase().checked_sub(moved)?;
        let name = Name { version: header.version, letter, is_small: first.is_ascii_lowercase() };
        let named = letter.is_ascii_uppercase() && name.ending(header.number)?.eq_ignore_ascii_case(ending);
        named.then_some(name)
    }

    /// The segment of this number, beside another one of the set.
    pub fn segment(&self, beside: &Path, number: u32) -> PathBuf {
        let ending = self.ending(number).unwrap_or_else(|| format!("{number}"));
        let made = files::with_ending(beside, &ending);
        // Copies of a set may have names in small letters or capitals, each by itself.
        let other = if self.is_small { ending.to_ascii_uppercase() } else { ending.to_ascii_lowercase() };
        let other = files::with_ending(beside, &other);
        if !made.exists() && other.exists() { other } else { made }
    }

    /// `E01`, `Ex01`, `S01`.
    pub fn kind(&self) -> String {
        let letter = char::from(self.letter);
        if self.version == 2 { format!("{letter}x01") } else { format!("{letter}01") }
    }

    fn ending(&self, number: u32) -> Option<String> {
        let small = self.is_small;
        let second = if self.version == 2 { "x" } else { "" };
        let text = if number <= COUNTED {
            format!("{}{second}{number:02}", char::from(self.letter))
        } else {
            let over = number - COUNTED - 1;
            let (front, rest) = (over / LETTERED, over % LETTERED);
            let capital = |number: u32| u8::try_from(number).map(|number| char::from(b'A' + number)).ok();
            let (tens, ones) = (capital(rest / 26)?, capital(rest % 26)?);
            // Of version 2 the second letter counts on from x.
            let (first, second) = match self.version {
                2 => {
                    let place = front + 23;
                    let second = char::from(b'a' + u8::try_from(place % 26).ok()?);
                    (u32::from(self.letter) + place / 26, Some(second))
                }
                _ => (u32::from(self.letter) + front, None),
            };
            let first = u8::try_from(first).ok().filter(u8::is_ascii_uppercase)?;
            let second = second.map_or_else(String::new, |second| second.to_string());
            format!("{}{second}{tens}{ones}", char::from(first))
        };
        Some(if small { text.to_ascii_lowercase() } else { text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u8, number: u32) -> Header {
        Header { version, number, method: 1, set: [0; 16] }
    }

    #[test]
    fn segments_are_called_as_encase_calls_them() {
        for (version, number, ending) in [
            (1, 1, "E01"),
            (1, 99, "E99"),
            (1, 100, "EAA"),
            (1, 126, "EBA"),
            (1, 775, "EZZ"),
            (1, 776, "FAA"),
            (1, 100, "eaa"),
            (1, 2, "s02"),
            (2, 1, "Ex01"),
            (2, 100, "ExAA"),
            (2, 776, "EyAA"),
            (2, 100 + 3 * 676, "FaAA"),
        ] {
            let path = PathBuf::from(format!("/no/such/case.1.{ending}"));
            let name = Name::of(&path, &header(version, number)).unwrap_or_else(|| panic!("{ending}"));
            assert_eq!(name.segment(&path, number), path);
            let first = name.segment(&path, 1);
            assert_eq!(Name::of(&first, &header(version, 1)), Some(name), "{}", first.display());
        }
        assert_eq!(Name::of(Path::new("case.E02"), &header(1, 1)), None);
        assert_eq!(Name::of(Path::new("case.img"), &header(1, 1)), None);
        assert_eq!(Name::of(Path::new("case"), &header(1, 1)), None);
    }
}
