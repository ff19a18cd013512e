//! How far a command is, on stderr: a bar on a terminal, else a line each few seconds; with `--json` an
//! object on each.
//!
//! Owns which of these, and when. Never: stdout, which is the report's; or the arithmetic (`core::progress`).
//! Called by `load` and `leave`. Tests: below; `lab/tests/reports.rs`.

use crate::output;
use cheetah_core::progress::Meter;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Until the first line, and between two.
const FIRST: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_secs(5);

pub struct Shown {
    done: Arc<AtomicU64>,
    show: Show,
}

enum Show {
    Bar(ProgressBar),
    /// Its thread ends when this is dropped.
    Lines {
        _until: mpsc::Sender<()>,
    },
    Nothing,
}

impl Shown {
    /// `what` is done to `subject`, like `loading` and `case7`.
    pub fn start(what: &'static str, subject: &str, bytes: u64) -> Shown {
        let done = Arc::new(AtomicU64::new(0));
        let show = if !output::is_json() && std::io::stderr().is_terminal() {
            let bar = bar(what, bytes);
            output::set_bar(Some(bar.clone()));
            Show::Bar(bar)
        } else {
            let (until, ended) = mpsc::channel();
            let (counted, subject) = (done.clone(), subject.to_owned());
            let telling = std::thread::Builder::new().name("progress".into());
            let telling = telling.spawn(move || tell(what, &subject, bytes, &counted, &ended));
            // Without a thread the work goes on all the same.
            if telling.is_ok() { Show::Lines { _until: until } } else { Show::Nothing }
        };
        Shown { done, show }
    }

    pub fn inc(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
        if let Show::Bar(bar) = &self.show {
            bar.inc(bytes);
        }
    }

    pub fn set_position(&self, bytes: u64) {
        self.done.store(bytes, Ordering::Relaxed);
        if let Show::Bar(bar) = &self.show {
            bar.set_position(bytes);
        }
    }

    pub fn finish_and_clear(self) {}
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Show::Bar(bar) = &self.show {
            bar.finish_and_clear();
            output::set_bar(None);
        }
    }
}

fn bar(what: &'static str, bytes: u64) -> ProgressBar {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
    let style =
        ProgressStyle::with_template(template(columns)).unwrap_or_else(|_| ProgressStyle::default_bar());
    // What begins together stands below each other.
    ProgressBar::new(bytes).with_style(style.progress_chars("=> ")).with_message(format!("{what:<8}"))
}

/// What fits on one line of so many columns; zero are not known. The bar takes what the rest leaves.
fn template(columns: u16) -> &'static str {
    match columns {
        0 | 90.. => {
            "{msg} {percent:>3}% [{wide_bar}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left"
        }
        50.. => "{msg} {percent:>3}% [{wide_bar}] {binary_bytes_per_sec}, {eta} left",
        20.. => "{msg} {percent:>3}% [{wide_bar}]",
        _ => "{percent:>3}%",
    }
}

fn tell(what: &str, subject: &str, bytes: u64, done: &AtomicU64, ended: &mpsc::Receiver<()>) {
    let began = Instant::now();
    let mut meter = Meter::new(bytes, 0);
    let mut wait = FIRST;
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wait) {
        wait = EVERY;
        let now = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let progress = meter.measure(now, done.load(Ordering::Relaxed));
        match output::is_json() {
            true => {
                let mut object = json!(progress);
                object["what"] = json!(what);
                object["subject"] = json!(subject);
                output::json_beside(&json!({ "progress": object }));
            }
            false => output::note(&format!("{what} {subject}: {}", progress.text())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest that stands in the place of each.
    fn columns_beside_the_bar(template: &str) -> usize {
        let longest = [
            ("{msg}", "checking"),
            ("{percent:>3}", "100"),
            ("{wide_bar}", "=>"),
            ("{bytes}", "1023.99 GiB"),
            ("{total_bytes}", "1023.99 GiB"),
            ("{binary_bytes_per_sec}", "1023.99 MiB/s"),
            ("{eta}", "59m"),
        ];
        longest.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value)).len()
    }

    #[test]
    fn the_bar_and_what_stands_beside_it_fit_on_one_line() {
        for columns in [8, 19, 20, 40, 49, 50, 80, 89, 90, 200] {
            assert!(columns_beside_the_bar(template(columns)) <= usize::from(columns), "{columns}");
        }
        assert!(template(40).contains("{wide_bar}") && template(80).contains("{eta}"));
        assert_eq!(template(0), template(200), "where the width is not known");
    }
}
