//! All that a command prints: tables and lines for people, JSON for scripts; the report on stdout, all else
//! on stderr.
//!
//! Owns the shape of what is printed and how it ends when nobody reads it. Never: decisions. Invariants: a
//! closed pipe or terminal never ends a command; text of peers cannot move the cursor or reorder what is
//! shown. `docs/JSON.md` says what scripts may rely on. Tests: below.

use crate::failure::{Exit, Failure};
use cheetah_core::text::is_harmless;
use indicatif::ProgressBar;
use sd_notify::NotifyState;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Of every document that is printed with `--json`; it grows when a field changes its meaning or goes.
pub const JSON_VERSION: u32 = 1;
/// A cell of a table is cut at so many columns of a terminal; the last one of a row may be longer.
const CELL_COLUMNS_MAX: usize = 64;
const LAST_COLUMNS_MAX: usize = 160;

/// Whether `--json` was given. Set once, before anything is printed.
static JSON: AtomicBool = AtomicBool::new(false);

pub fn use_json() {
    JSON.store(true, Ordering::Relaxed);
}

pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    report: &'a T,
}

/// The report of a command: one JSON object on stdout, with its version.
pub fn json(report: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&Versioned { version: JSON_VERSION, report })
        .map_err(|e| Failure::failed(format!("the report cannot be written as JSON: {e}")))?;
    write_out(&escaped(&text));
    Ok(())
}

/// JSON on stdout whose shape is another's.
pub fn document(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document)
        .map_err(|e| Failure::failed(format!("the document cannot be written as JSON: {e}")))?;
    write_out(&escaped(&text));
    Ok(())
}

/// One JSON object on one line of stderr: what happens beside the report.
pub fn json_beside(report: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(&Versioned { version: JSON_VERSION, report }) {
        write_beside(&escaped(&text));
    }
}

pub fn line(text: &str) {
    write_out(&plain(text));
}

/// `ready: ...`: who waits for it may go on, and so may the service manager. Of what runs until it is told to
/// end, with `--json`, one object on a line.
pub fn ready(what: &str) {
    tell_manager(&[NotifyState::Ready, NotifyState::Status(what)]);
    match is_json() {
        true => {
            let object = serde_json::json!({ "version": JSON_VERSION, "ready": what });
            write_out(&escaped(&object.to_string()));
        }
        false => line(&format!("ready: {what}")),
    }
}

/// What it is about, before it is ready: for who asks the service manager.
pub fn waits(what: &str) {
    tell_manager(&[NotifyState::Status(what)]);
}

/// Without `NOTIFY_SOCKET` there is none, and nothing is said.
fn tell_manager(said: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(said) {
        tracing::debug!(%error, "the service manager hears nothing");
    }
}

/// A line behind `ready:`; with `--json`, where stdout is the report's alone, a remark.
pub fn aside(text: &str) {
    if is_json() { note(text) } else { line(text) }
}

/// A remark on stderr.
pub fn note(text: &str) {
    if is_json() {
        return json_beside(&serde_json::json!({ "note": text }));
    }
    write_beside(&format!("cheetah: {}", plain(text)));
}

fn write_out(text: &str) {
    raw(format!("{text}\n").as_bytes());
}

/// Bytes on stdout as they are.
pub fn raw(bytes: &[u8]) {
    let written = above_bar(|| {
        let mut out = std::io::stdout().lock();
        // Flushed, so that a reader that waits for `ready:` through a pipe gets it now.
        out.write_all(bytes).and_then(|()| out.flush())
    });
    match written {
        Ok(()) => {}
        // Whoever read it has seen enough.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
        Err(e) => {
            write_beside(&format!("cheetah: the output cannot be written: {e}"));
            std::process::exit(Exit::Failed as i32);
        }
    }
}

/// A line of another process of ours, on stderr as it is.
pub fn beside(text: &str) {
    write_beside(&plain(text));
}

/// Nobody may be there to read it, which is no reason to end.
fn write_beside(text: &str) {
    let _ = above_bar(|| writeln!(std::io::stderr().lock(), "{text}"));
}

/// The bar that is drawn on the last line of the terminal, if one is.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

pub fn set_bar(bar: Option<ProgressBar>) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// What is printed stands above the bar, on lines of its own.
fn above_bar<T>(print: impl FnOnce() -> T) -> T {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Where the log goes; it comes line by line.
#[derive(Clone, Copy, Debug)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        above_bar(|| std::io::stderr().lock().write(line))
    }

    fn write_all(&mut self, line: &[u8]) -> std::io::Result<()> {
        above_bar(|| std::io::stderr().lock().write_all(line))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Text as it may be shown, whoever it comes from.
pub fn plain(text: &str) -> Cow<'_, str> {
    match text.chars().all(is_harmless) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(text.chars().map(|c| if is_harmless(c) { c } else { '\u{fffd}' }).collect()),
    }
}

/// JSON leaves some of these characters as they are.
fn escaped(json: &str) -> Cow<'_, str> {
    let stays = |c: char| is_harmless(c) || c == '\n';
    if json.chars().all(stays) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match stays(c) {
            true => out.push(c),
            // They stand in strings only, which have characters beyond 2^16 as pairs.
            false => out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}"))),
        }
    }
    Cow::Owned(out)
}

/// Cut to so many columns of a terminal, with a mark where something is missing.
fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if text.width() <= columns {
        return Cow::Borrowed(text);
    }
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        let width = c.width().unwrap_or(0);
        if used + width > columns.saturating_sub(1) {
            break;
        }
        used += width;
        kept.push(c);
    }
    kept.push('…');
    Cow::Owned(kept)
}

/// Left-aligned columns, as wide as their widest cell.
pub fn lay_out(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let last = head.len().saturating_sub(1);
    let cell = |row: &Vec<String>, column: usize| {
        let text = row.get(column).map(String::as_str).unwrap_or_default();
        let columns = if column == last { LAST_COLUMNS_MAX } else { CELL_COLUMNS_MAX };
        cut(&plain(text), columns).into_owned()
    };
    let head: Vec<String> = head.iter().map(|text| (*text).to_owned()).collect();
    let rows = rows.iter().map(|row| (0..head.len()).map(|column| cell(row, column)).collect());
    let rows: Vec<Vec<String>> = std::iter::once(head.clone()).chain(rows).collect();
    let widths: Vec<usize> =
        (0..head.len()).map(|column| rows.iter().map(|row| row[column].width()).max().unwrap_or(0)).collect();
    // Not by a width in `format!`, which counts characters instead of columns and panics beyond 65,535.
    let padded = |(text, width): (&String, &usize)| {
        format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
    };
    let join = |row: &Vec<String>| row.iter().zip(&widths).map(padded).collect::<Vec<_>>().join("  ");
    rows.iter().map(|row| join(row).trim_end().to_owned()).collect()
}

/// Sorts `d10` behind `d9`: text and numbers by turns.
pub fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(end);
        let number = if number.is_empty() { 0 } else { number.parse().unwrap_or(u64::MAX) };
        parts.push((text.to_owned(), number));
        rest = tail;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_as_people_count() {
        let mut names = ["d10", "lab7-4711", "d9", "a", "d1", "lab7", "d"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(names, ["a", "d", "d1", "d9", "d10", "lab7", "lab7-4711"]);
    }

    #[test]
    fn a_table_takes_text_of_any_width() {
        let rows = lay_out(&["A", "B"], &[vec!["long cell".into(), "x".into()], vec![]]);
        assert_eq!(rows, ["A          B", "long cell  x", ""]);
        // Seventeen readers of 4,000 letters each made a cell of more than 65,535.
        let rows = lay_out(&["A", "B"], &[vec!["y".repeat(70_000), "x".repeat(70_000)]]);
        assert_eq!(rows[1].width(), CELL_COLUMNS_MAX + 2 + LAST_COLUMNS_MAX);
        assert!(rows[1].ends_with('…'));
    }

    #[test]
    fn columns_stand_below_each_other_whatever_is_written_in_them() {
        let rows =
            lay_out(&["A", "B"], &[vec!["証拠".into(), "x".into()], vec!["e\u{301}".into(), "y".into()]]);
        assert_eq!(rows, ["A     B", "証拠  x", "e\u{301}     y"]);
        assert_eq!(cut("証拠証拠", 5), "証拠…");
        assert_eq!(cut("証拠", 4), "証拠");
        assert_eq!(cut("abc", 0), "…");
    }

    #[test]
    fn text_of_peers_is_shown_and_not_acted_upon() {
        let evil = "a\u{1b}[2Jb\rc\u{9b}d\u{202e}e\nf\u{200b}g\u{e0041}";
        assert_eq!(plain(evil), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}f\u{fffd}g\u{fffd}");
        assert_eq!(plain("Grüße"), "Grüße");
        let json = serde_json::to_string_pretty(&serde_json::json!({ "holder": evil })).expect("JSON");
        let shown = escaped(&json);
        assert!(shown.chars().all(|c| is_harmless(c) || c == '\n'), "{shown:?}");
        let back: serde_json::Value = serde_json::from_str(&shown).expect("still JSON");
        assert_eq!(back["holder"], evil);
    }
}
