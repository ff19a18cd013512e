//! Text that others handed in, made fit to be kept and shown: one line, of bounded length, that moves no
//! cursor.
//!
//! Owns which characters may reach a terminal, and bytes as digits. Never: where that is; the coordinator's
//! door and whoever prints calls it. Invariant: what is harmless stays as it is, so doing it twice changes
//! nothing. Tests: below.

use std::ops::RangeInclusive;

/// Characters that change how what is around them is shown, or are not shown at all: soft hyphens, joiners
/// and spaces without width, marks and overrides of direction, separators of lines, annotations, tags, and
/// what no font has.
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

/// Bytes as hexadecimal digits, as hashes are written.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a text is what `hex` makes of 256 bits.
#[must_use]
pub fn is_hex_of_256_bits(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a terminal shows it as itself and nothing else.
#[must_use]
pub fn is_harmless(c: char) -> bool {
    !c.is_control() && !UNSEEN.iter().any(|range| range.contains(&c))
}

/// The text on one line of at most `bytes_max` bytes: each character that is not harmless as `?`, and `...`
/// for what is cut.
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

/// Bytes that need not be text, such as a file's name, in a form that is harmless and can be read back: what
/// is not harmless as `\n`, `\r`, `\t` or `\u{202e}`, a byte that is no UTF-8 as `\xff`, and a backslash
/// doubled.
#[must_use]
pub fn written(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' | '\r' | '\t' => out.extend(c.escape_default()),
                c if is_harmless(c) => out.push(c),
                c => out.extend(c.escape_unicode()),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
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

    #[test]
    fn a_name_is_written_so_that_it_can_be_read_back() {
        for (name, form) in [
            (&b"disk 7.dd"[..], "disk 7.dd"),
            ("Grüße-案件.dd".as_bytes(), "Grüße-案件.dd"),
            (b"a\nb\r\tc", "a\\nb\\r\\tc"),
            (b"a\\nb", "a\\\\nb"),
            (b"disk\xff\xfe.dd", "disk\\xff\\xfe.dd"),
            ("x\u{202e}y\u{fffd}".as_bytes(), "x\\u{202e}y\u{fffd}"),
            (b"\x1b[2J", "\\u{1b}[2J"),
        ] {
            assert_eq!(written(name), form);
        }
    }

    /// What `docs/JSON.md` says of reading it.
    fn read_back(form: &str) -> Vec<u8> {
        let (mut out, mut rest) = (Vec::new(), form);
        while let Some(at) = rest.find('\\') {
            out.extend(&rest.as_bytes()[..at]);
            let escape = &rest[at + 1..];
            let (bytes, len) = match escape.as_bytes()[0] {
                b'\\' => (b"\\".to_vec(), 1),
                b'n' => (b"\n".to_vec(), 1),
                b'r' => (b"\r".to_vec(), 1),
                b't' => (b"\t".to_vec(), 1),
                b'x' => (vec![u8::from_str_radix(&escape[1..3], 16).expect("two digits")], 3),
                _ => {
                    let end = escape.find('}').expect("an end");
                    let number = u32::from_str_radix(&escape[2..end], 16).expect("digits");
                    (char::from_u32(number).expect("a character").to_string().into_bytes(), end + 1)
                }
            };
            out.extend(bytes);
            rest = &escape[len..];
        }
        out.extend(rest.as_bytes());
        out
    }

    proptest! {
        #[test]
        fn any_bytes_are_written_harmless_and_read_back(
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
            text in any::<String>(),
        ) {
            for bytes in [bytes, text.into_bytes()] {
                let form = written(&bytes);
                prop_assert!(form.chars().all(is_harmless));
                prop_assert_eq!(read_back(&form), bytes);
            }
        }

        #[test]
        fn any_text_comes_out_bounded_and_stays(text in any::<String>(), bytes_max in 0usize..100) {
            let once = harmless(&text, bytes_max);
            prop_assert!(once.len() <= bytes_max);
            prop_assert!(once.chars().all(is_harmless));
            prop_assert_eq!(harmless(&once, bytes_max), once);
        }
    }
}
