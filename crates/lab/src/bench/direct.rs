//! fio as a load: random reads and writes of a file past the page cache, and what fio says of them.
//! Never: checks what it reads (the fault runs do). Called by: the parts of the benchmark. Tests: below.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::tools;

/// What fio is to do with a file.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    pub path: &'a Path,
    /// fio's own word: `randread`, `write`.
    pub pattern: &'a str,
    pub block: u64,
    pub depth: u32,
    pub bytes: u64,
    pub seconds: f64,
}

/// Thousand requests a second.
#[track_caller]
pub fn kiops(job: &Job<'_>) -> f64 {
    let mut command = tools::command("fio");
    add_options(&mut command, job);
    let told = tools::expect_success(&mut command);
    told_of(&told, "iops").unwrap_or_else(|| panic!("fio told no rate: {told}")) / 1e3
}

fn add_options(command: &mut Command, job: &Job<'_>) {
    command.args(["--name=bench", "--output-format=json", "--ioengine=libaio", "--direct=1", "--thread"]);
    command.args(["--allow_file_create=0", "--norandommap", "--time_based"]);
    command.arg(format!("--filename={}", job.path.display())).arg(format!("--rw={}", job.pattern));
    command.arg(format!("--bs={}", job.block)).arg(format!("--iodepth={}", job.depth));
    command.arg(format!("--size={}", job.bytes)).arg(format!("--runtime={}ms", (job.seconds * 1e3) as u64));
}

/// A figure of fio's report, of what was read or else of what was written.
pub fn told_of(told: &str, name: &str) -> Option<f64> {
    // Remarks may stand before the report.
    let report: Value = serde_json::from_str(&told[told.find('{')?..]).ok()?;
    let job = &report["jobs"][0];
    let value = |way: &str| job[way][name].as_f64().filter(|value| *value > 0.0);
    value("read").or_else(|| value("write"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn fio_runs_and_is_understood() {
        let scratch = Scratch::in_memory();
        let path = scratch.file("file", &[7; 1 << 20]);
        let job =
            Job { path: &path, pattern: "randread", block: 4096, depth: 4, bytes: 1 << 20, seconds: 0.05 };
        assert!(kiops(&job) > 0.0);
        assert!(told_of("no report", "iops").is_none() && told_of("{\"jobs\": []}", "iops").is_none());
    }
}
