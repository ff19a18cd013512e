//! One donor connection beside nbdkit's memory plugin: `make bench-donor`.
//!
//! Both servers hold the same prefilled amount of memory, are asked by the same load generator, in turns (A B A B),
//! and reported as medians with their spread. As root the whole run moves into a network namespace of its own where
//! the congestion control is `reno` for both; BBR, some machines' default, halves loopback's speed.
//! Prints a Markdown table and writes `bench/donor.json` in the build directory.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the program's output")]

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use cheetah_lab::figures::{self, Series};
use cheetah_lab::load::{Connection, Pattern};
use cheetah_lab::pool::LoneDonor;
use cheetah_lab::process;
use cheetah_lab::rivals::Rival;
use cheetah_lab::tools;
use serde_json::json;

const CONGESTION: &str = "reno";
const INSIDE: &str = "CHEETAH_BENCH_INSIDE";

struct Shape {
    name: &'static str,
    pattern: Pattern,
    block: usize,
    depth: usize,
    /// Times as fast as the rival, at least; and the part of its processor time per GB, at most.
    speed_bar: f64,
    cpu_bar: f64,
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "4 KiB random reads, depth 64",
        pattern: Pattern::RandomRead,
        block: 4096,
        depth: 64,
        speed_bar: 4.0,
        cpu_bar: 0.5,
    },
    Shape {
        name: "1 MiB sequential reads, depth 16",
        pattern: Pattern::SequentialRead,
        block: 1 << 20,
        depth: 16,
        speed_bar: 1.5,
        cpu_bar: 0.5,
    },
];

struct Options {
    rounds: usize,
    time: Duration,
    size: String,
    structured: bool,
}

/// One server's figures in one shape.
#[derive(Default)]
struct Turns {
    gb_per_second: Series,
    kiops: Series,
    cpu_per_gb: Series,
}

fn main() {
    let options = options();
    let where_run = enter_own_network();
    let donor = LoneDonor::tcp(&options.size);
    let rival = Rival::nbdkit(&["memory", &options.size]);
    let servers = [("cheetah", donor.process.pid(), address_of(&donor.uri)), {
        ("nbdkit memory", rival.process.pid(), rival.address.expect("nbdkit on TCP"))
    }];
    let mut connections = servers.map(|(name, _, address)| {
        let mut connection = Connection::open(address, CONGESTION, options.structured)
            .unwrap_or_else(|error| panic!("cannot connect to {name}: {error}"));
        assert_eq!(connection.is_structured(), options.structured, "{name} and its kind of replies");
        connection.fill().unwrap_or_else(|error| panic!("cannot fill {name}: {error}"));
        connection
    });

    let mut report = Vec::new();
    println!(
        "One connection, {}, {} rounds of {:?}, {where_run}.\n",
        options.size, options.rounds, options.time
    );
    println!("| | cheetah | nbdkit memory | ratio | bar | |\n|---|---|---|---|---|---|");
    for shape in &SHAPES {
        let mut series = [Turns::default(), Turns::default()];
        // One turn of each first, which is not counted.
        for round in 0..=options.rounds {
            for ((connection, (name, pid, _)), series) in connections.iter_mut().zip(servers).zip(&mut series)
            {
                let before = process::cpu_time(pid);
                let done = connection
                    .run_for(shape.pattern, shape.block, shape.depth, options.time)
                    .unwrap_or_else(|error| panic!("{} from {name}: {error}", shape.name));
                let cpu = process::cpu_time(pid) - before;
                if round > 0 {
                    series.gb_per_second.push(done.bytes_per_second() / 1e9);
                    series.kiops.push(done.per_second() / 1e3);
                    series.cpu_per_gb.push(cpu.as_secs_f64() / (done.bytes as f64 / 1e9));
                }
            }
        }
        report.push(print_shape(shape, &series));
    }
    let replies = if options.structured { "structured" } else { "simple" };
    let report = json!({"where": where_run, "replies": replies, "size": options.size, "rounds": options.rounds,
                        "seconds": options.time.as_secs_f64(), "shapes": report});
    let path = figures::write_report("donor.json", &report);
    println!("\nWritten to {}", path.display());
}

fn print_shape(shape: &Shape, [ours, theirs]: &[Turns; 2]) -> serde_json::Value {
    let is_small = shape.block < 64 << 10;
    let (unit, our_speed, their_speed) = match is_small {
        true => ("thousand a second", &ours.kiops, &theirs.kiops),
        false => ("GB/s", &ours.gb_per_second, &theirs.gb_per_second),
    };
    let speed = our_speed.median() / their_speed.median();
    let cpu = ours.cpu_per_gb.median() / theirs.cpu_per_gb.median();
    let row = |what: String, ours: &Series, theirs: &Series, ratio: f64, bar: String, met: bool| {
        let verdict = if met { "met" } else { "**missed**" };
        println!("| {what} | {} | {} | {ratio:.2} | {bar} | {verdict} |", ours.shown(3), theirs.shown(3));
    };
    let bar = format!("at least {}", shape.speed_bar);
    row(format!("{}, {unit}", shape.name), our_speed, their_speed, speed, bar, speed >= shape.speed_bar);
    let bar = format!("at most {}", shape.cpu_bar);
    let what = "the same, server's CPU seconds per GB".to_owned();
    row(what, &ours.cpu_per_gb, &theirs.cpu_per_gb, cpu, bar, cpu <= shape.cpu_bar);
    let figures = |turns: &Turns| json!({"gb_per_second": turns.gb_per_second.values(), "kiops": turns.kiops.values(), "cpu_s_per_gb": turns.cpu_per_gb.values()});
    json!({"shape": shape.name, "cheetah": figures(ours), "nbdkit": figures(theirs),
           "speed_ratio": speed, "speed_bar": shape.speed_bar, "cpu_ratio": cpu, "cpu_bar": shape.cpu_bar})
}

/// Runs the program again in a network namespace of its own, where both servers use the same congestion control.
/// Answers, inside, what the table says of it.
fn enter_own_network() -> String {
    if std::env::var_os(INSIDE).is_some() {
        return format!("loopback of its own namespace, congestion control {CONGESTION} on both ends");
    }
    if !tools::is_root() {
        let default =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
        return format!("loopback, not root: nbdkit sends with {}, cheetah as it chooses", default.trim());
    }
    let script = format!(
        "ip link set lo up && echo {CONGESTION} >/proc/sys/net/ipv4/tcp_congestion_control && exec \"$@\""
    );
    let program = std::env::current_exe().expect("the path of this program");
    let mut again = tools::command("unshare");
    again.args(["--net", "sh", "-c", &script, "sh"]).arg(program).args(std::env::args_os().skip(1));
    let error = again.env(INSIDE, "1").exec();
    panic!("cannot start again in a namespace: {error}");
}

fn options() -> Options {
    let mut options =
        Options { rounds: 5, time: Duration::from_secs(2), size: "1G".to_owned(), structured: true };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--rounds" => options.rounds = value().parse().expect("a number of rounds"),
            "--seconds" => options.time = Duration::from_secs_f64(value().parse().expect("seconds")),
            "--size" => options.size = value(),
            "--simple" => options.structured = false,
            _ => panic!("usage: bench_donor [--rounds N] [--seconds S] [--size SIZE] [--simple]"),
        }
    }
    options
}

fn address_of(uri: &str) -> SocketAddr {
    let host = uri.trim_start_matches("nbd://").trim_end_matches('/');
    host.parse().unwrap_or_else(|error| panic!("{host}: {error}"))
}
