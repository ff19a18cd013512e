//! Text that others handed in, made fit to be kept and shown: one line, of bounded length, that moves no cursor.
//!
//! Owns which characters may reach a terminal. Never: where that is; the coordinator's door and whoever prints calls it.
//! Invariant: what is harmless stays as it is, so doing it twice changes nothing. Tests: below.

use std::ops::RangeInclusive;

/// Characters that change how what is around them is shown, or are not shown at all: soft hyphens, joiners and spaces without
/// width, marks and overrides of direction, separators of lines, annotations, tags, and what no font has.
const UNSEEN: [RangeInclusive<char>; 14] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{61c}'..='\u{61c}',
    '\u{115f}'..='\u{1160}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{e000}'..='\u{f8ff}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{fff0}'..='\u{fffc}',
    '\u{e0000}'..='\u{10ffff}',
];

/// What stands for the rest of a text that was cut.
const CUT: &str = "...";

/// Whether a terminal shows it as itself and nothing else.
#[must_use]
pub fn is_harmless(c: char) -> bool {
    !c.is_control() && !UNSEEN.iter().any(|range| range.contains(&c))
}

/// The text on one line of at most `bytes_max` bytes: each character that is not harmless as `?`, and `...` for what is cut.
#[must_use]
pub fn harmless(text: &str, bytes_max: usize) -> String {
    let shown = |c: char| if is_harmless(c) { c } else { '?' };
    let mut out = String::with_capacity(text.len().min(bytes_max));
    // Where `out` ends when `...` has to follow.
    let mut cut_at = 0;
    for c in text.chars().map(shown) {
        if out.len() + c.len_utf8() > bytes_max {
            out.truncate(cut_at);
            out.push_str(&CUT[..CUT.len().min(bytes_max)]);
            break;
        }
        out.push(c);
        if out.len() + CUT.len() <= bytes_max {
            cut_at = out.len();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_that_moves_a_cursor_or_turns_a_line_comes_through() {
        for (text, shown) in [
            ("anna@lab7 pid 4711", "anna@lab7 pid 4711"),
            ("Müller@büro 案件-7", "Müller@büro 案件-7"),
            ("\u{1b}[2J\u{1b}]0;owned\u{7}", "?[2J?]0;owned?"),
            ("a\r\nready: all is well\t!", "a??ready: all is well?!"),
            ("c1 \u{9b}31m\u{85}next", "c1 ?31m?next"),
            ("gnp.\u{202e}exe\u{2066}x\u{200f}", "gnp.?exe?x?"),
            ("a\u{200b}b\u{feff}c\u{2028}d\u{e0041}", "a?b?c?d?"),
            ("\0", "?"),
        ] {
            assert_eq!(harmless(text, 100), shown, "{text:?}");
        }
    }

    #[test]
    fn what_is_long_is_cut_where_a_character_ends() {
        assert_eq!(harmless("abcdef", 6), "abcdef");
        assert_eq!(harmless("abcdefg", 6), "abc...");
        assert_eq!(harmless("ééééé", 8), "éé...");
        assert_eq!(harmless("abc", 2), "..");
        assert_eq!(harmless("abc", 0), "");
        assert_eq!(harmless(&"x".repeat(4000), 128).len(), 128);
    }

    proptest! {
        #[test]
        fn any_text_comes_out_bounded_and_stays(text in any::<String>(), bytes_max in 0usize..100) {
            let once = harmless(&text, bytes_max);
            prop_assert!(once.len() <= bytes_max);
            prop_assert!(once.chars().all(is_harmless));
            prop_assert_eq!(harmless(&once, bytes_max), once);
        }
    }
}
