//! What commands print: plain tables for people, JSON for scripts. Never: decisions.

use crate::failure::Failure;
use serde::Serialize;
use std::io::Write;

/// One JSON document on stdout.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::failed(e.to_string()))?;
    line(&text);
    Ok(())
}

pub fn line(text: &str) {
    let mut out = std::io::stdout();
    // Flushed, so that a reader that waits for `ready:` through a pipe gets it now.
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => {}
        // Whoever read it has seen enough.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
        Err(e) => {
            eprintln!("cheetah: cannot write the output: {e}");
            std::process::exit(crate::failure::Exit::Failed as i32);
        }
    }
}

/// Left-aligned columns, as wide as their widest cell.
pub fn table(head: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let print = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(padded.collect::<Vec<_>>().join("  ").trim_end());
    };
    print(head.to_vec());
    for row in rows {
        print(row.iter().map(String::as_str).collect());
    }
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
    #[test]
    fn names_are_sorted_as_people_count() {
        let mut names = ["d10", "lab7-4711", "d9", "a", "d1", "lab7", "d"];
        names.sort_by_cached_key(|name| super::natural(name));
        assert_eq!(names, ["a", "d", "d1", "d9", "d10", "lab7", "lab7-4711"]);
    }

    #[test]
    fn a_table_takes_rows_of_any_width() {
        super::table(&["a", "b"], &[vec!["long cell".into(), "x".into()], vec![]]);
    }
}
