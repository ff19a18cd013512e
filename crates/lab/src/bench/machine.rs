//! What the benchmark ran on, told with its results.
//! Called by: `results`.

use std::fs;

use serde_json::{Value, json};

use crate::tools;

/// Congestion control of every namespace that a benchmark runs in, on both ends and for all sides.
pub const CONGESTION: &str = "reno";

/// What this network namespace has.
pub fn congestion_control() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default().trim().to_owned()
}

/// The machine, and how busy it was before the benchmark began.
/// Its own congestion control is asked for outside of the benchmark's network namespace.
pub fn describe(share: &str, congestion: &str) -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let load: Vec<String> = read("/proc/loadavg").split(' ').take(3).map(str::to_owned).collect();
    json!({
        "kernel": read("/proc/sys/kernel/osrelease"),
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "cores": cores,
        "memory": memory,
        "load_at_start": load.join(" "),
        "share": share,
        "congestion_control": {
            "machine": congestion,
            "cheetah": CONGESTION, "peers": CONGESTION, "limits": CONGESTION,
        },
        "date": tools::run("date", ["--utc", "+%FT%TZ"]).trim(),
        "commit": commit(),
    })
}

/// Of the source that this program was built from, where there is a repository.
fn commit() -> Option<String> {
    let mut command = tools::command("git");
    // Asked for now and not when it is built: two checkouts share one build directory.
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".into());
    command.args(["-C", &here, "describe", "--always", "--dirty", "--abbrev=12"]);
    let output = tools::output(&mut command);
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// One line for the head of the table.
pub fn line(machine: &Value) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".to_owned(),
        other => other.to_string(),
    };
    format!(
        "{} cores ({}), {}, Linux {}, congestion control {} on every side, {}, load at start {}, {}, commit {}.",
        text(&machine["cores"]),
        text(&machine["processor"]),
        text(&machine["memory"]),
        text(&machine["kernel"]),
        text(&machine["congestion_control"]["cheetah"]),
        text(&machine["share"]),
        text(&machine["load_at_start"]),
        text(&machine["date"]),
        text(&machine["commit"]),
    )
}
