//! How far the benchmark is: percent, what runs, and about how long it still takes, on stderr.
//! Never: anything on stdout. Called by: `bench`.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// What is to be done, weighted by the seconds that it is known to take.
#[derive(Debug)]
pub struct Progress {
    begun: Instant,
    total: f64,
    done: f64,
    /// Of the part that runs: its weight, and what of it one set is.
    step: f64,
    part: &'static str,
    part_end: f64,
}

impl Progress {
    pub fn new(seconds: impl Iterator<Item = f64>) -> Self {
        Self { begun: Instant::now(), total: seconds.sum(), done: 0.0, step: 0.0, part: "", part_end: 0.0 }
    }

    pub fn part(&mut self, name: &'static str, seconds: f64, sets: usize) {
        self.done = self.part_end;
        self.part_end += seconds;
        self.step = seconds / sets.max(1) as f64;
        self.part = name;
    }

    /// A set begins: the one before it is done.
    pub fn set(&mut self, what: &str) {
        self.say(what);
        self.advance();
    }

    fn advance(&mut self) {
        self.done = (self.done + self.step).min(self.part_end);
    }

    /// Tells what goes on; nothing is done by it.
    pub fn say(&self, what: &str) {
        let (line, elapsed) = (self.line(what, self.begun.elapsed()), self.begun.elapsed().as_secs());
        let stderr = std::io::stderr();
        let (start, end) = if stderr.is_terminal() { ("\r\u{1b}[K", "") } else { ("", "\n") };
        // Nobody to tell is no reason to stop.
        let _ = write!(stderr.lock(), "{start}{elapsed:4} s {line}{end}");
    }

    fn line(&self, what: &str, elapsed: Duration) -> String {
        let percent = 100.0 * self.done / self.total;
        // Once enough is done, this machine's own pace counts.
        let pace = match self.done >= self.total / 10.0 {
            true => elapsed.as_secs_f64() / self.done,
            false => 1.0,
        };
        let left = ((self.total - self.done) * pace).round() as u64;
        format!("{percent:3.0} % {}: {what}, about {}:{:02} left", self.part, left / 60, left % 60)
    }

    pub fn end(&self) {
        if std::io::stderr().is_terminal() {
            eprintln!("\r\u{1b}[Kdone in {} s", self.begun.elapsed().as_secs());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_the_pace_of_this_machine() {
        let mut progress = Progress::new([60.0, 40.0].into_iter());
        progress.part("local", 60.0, 2);
        assert_eq!(progress.line("reads", Duration::ZERO), "  0 % local: reads, about 1:40 left");
        progress.advance();
        assert_eq!(progress.line("writes", Duration::from_secs(60)), " 30 % local: writes, about 2:20 left");
        progress.part("front", 40.0, 1);
        assert_eq!(progress.line("files", Duration::from_secs(60)), " 60 % front: files, about 0:40 left");
    }
}
