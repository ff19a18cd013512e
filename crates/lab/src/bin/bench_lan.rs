//! Five hosts at 1 Gbit/s: a stripe over four donors, read and written through the file and through the export,
//! beside iperf3 over the same links in the same run: `make bench-lan`.
//!
//! Each round measures everything once, iperf3 first; medians are reported, with their spread. Reads of the file
//! bypass the page cache. Prints a Markdown table and writes `bench/lan.json` in the build directory.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the program's output")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use cheetah_lab::figures::{self, Series};
use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::pool::{Pool, State};
use cheetah_lab::{rivals, tools};
use serde_json::json;

const DONORS: u8 = 4;
const RATE: &str = "1gbit";
const MIB: u64 = 512;
const ROUNDS: usize = 3;
const IPERF_SECONDS: u32 = 4;

fn main() {
    let lan = Arc::new(Lan::new(DONORS, RATE));
    let mut pool = Pool::with(State::Memory, Some(lan.clone()));
    for donor in 1..=DONORS {
        pool.donate(&format!("host-{donor}"), "512M");
    }
    pool.ok(["create", "evidence", &format!("{MIB}M"), "--redundancy", &format!("stripe:{DONORS}")]);
    let noise = pool.scratch().join("noise");
    tools::expect_success(tools::command("dd").args([
        "if=/dev/urandom",
        &format!("of={}", noise.display()),
        "bs=1M",
        &format!("count={MIB}"),
        "status=none",
    ]));

    let mut series: [Series; 6] = Default::default();
    for _ in 0..ROUNDS {
        let [to_client, from_client, file_read, file_write, export_read, export_write] = &mut series;
        to_client.push(rivals::iperf3_between(&lan, Node::Donor(1), Node::Client, IPERF_SECONDS));
        from_client.push(rivals::iperf3_between(&lan, Node::Client, Node::Donor(1), IPERF_SECONDS));
        let file = pool.attach_fuse("evidence", &[]).path;
        file_write.push(timed(dd(&noise, &file, &["oflag=direct", "conv=fsync,notrunc"])));
        file_read.push(timed(dd(&file, Path::new("/dev/null"), &["iflag=direct"])));
        pool.detach("evidence");
        let uri = pool.attach_export_unix("evidence", &[]).uri;
        let nbdcopy = |from: &str, to: &str| {
            let mut command = lan.exec(Node::Client, tools::need("nbdcopy"));
            command.args(["--flush", from, to]);
            command
        };
        export_write.push(timed(nbdcopy(&noise.display().to_string(), &uri)));
        export_read.push(timed(nbdcopy(&uri, "null:")));
        pool.detach("evidence");
    }

    let [to_client, from_client, file_read, file_write, export_read, export_write] = &series;
    println!(
        "{DONORS} donors, links of {RATE}, {MIB} MiB, medians of {ROUNDS} rounds (least-most), Mbit/s of payload.\n"
    );
    println!("| sequential, stripe:{DONORS} | cheetah | iperf3 | ratio |\n|---|---|---|---|");
    let mut rows = Vec::new();
    for (what, ours, limit) in [
        ("read, file", file_read, to_client),
        ("write, file", file_write, from_client),
        ("read, NBD export", export_read, to_client),
        ("write, NBD export", export_write, from_client),
    ] {
        let ratio = ours.median() / limit.median();
        println!("| {what} | {} | {} | {ratio:.3} |", ours.shown(0), limit.shown(0));
        rows.push(
            json!({"what": what, "mbit_s": ours.values(), "iperf3_mbit_s": limit.values(), "ratio": ratio}),
        );
    }
    let path =
        figures::write_report("lan.json", &json!({"donors": DONORS, "rate": RATE, "mib": MIB, "rows": rows}));
    println!("\nWritten to {}", path.display());
}

fn dd(from: &Path, to: &Path, more: &[&str]) -> Command {
    let mut command = tools::command("dd");
    command.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
    command.args(["bs=4M", "status=none"]).args(more);
    command
}

/// Mbit/s at which the command moved the volume's payload.
fn timed(mut command: Command) -> f64 {
    let start = Instant::now();
    tools::expect_success(&mut command);
    let bits = (MIB << 20) as f64 * 8.0;
    bits / 1e6 / start.elapsed().as_secs_f64()
}
