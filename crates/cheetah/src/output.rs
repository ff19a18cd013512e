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

#[cfg(test)]
mod tests {
    #[test]
    fn a_table_takes_rows_of_any_width() {
        super::table(&["a", "b"], &[vec!["long cell".into(), "x".into()], vec![]]);
    }
}
