//! `cheetah model` and `cheetah simulate`: table, JSON and plot of the formulas and of the simulation, what
//! is measured on a pool, and what is refused.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cheetah_lab::pool::{Pool, binary};
use cheetah_lab::scratch::Scratch;
use cheetah_lab::{tools, wait};
use serde_json::Value;

/// Without a pool, or any file of this user's.
fn cheetah(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).env("CHEETAH_CONFIG", "").stdin(Stdio::null());
    command
}

fn json(arguments: &[&str]) -> Value {
    let out = tools::expect_success(cheetah(arguments).arg("--json"));
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error} in {out}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn rows(report: &Value, of: &str) -> Vec<Value> {
    report[of].as_array().unwrap_or_else(|| panic!("no {of} in {report}")).clone()
}

/// The texts of an SVG file that an XML parser has taken.
fn texts(path: &Path) -> String {
    let program = "import sys, xml.etree.ElementTree as tree\n\
                   root = tree.parse(sys.argv[1]).getroot()\n\
                   assert root.tag.endswith('svg'), root.tag\n\
                   print('\\n'.join(text.text for text in root.iter('{http://www.w3.org/2000/svg}text')))";
    tools::run("python3", ["-c", program, &path.display().to_string()])
}

#[test]
fn the_formulas_are_told_as_a_table_as_json_and_as_a_plot() {
    let scratch = Scratch::new();
    let plot = scratch.join("model.svg");
    let told = tools::expect_success(&mut cheetah(&["model", "--plot", &plot.display().to_string()]));
    tools::names(&told, &["T_pc, a computer alone", "12.3 ms", "3.08 ms (4.01x)", "parity:8+1"]);
    let drawn = texts(&plot);
    tools::names(
        &drawn,
        &["Figure 2 of the paper", "Figure 3 of the paper", "T_rm as printed", "milliseconds"],
    );

    // By hand, of the paper's parameters: four nodes, 80 % remote hits.
    let report = json(&["model", "--nodes", "4"]);
    let four = &rows(&report, "points")[2];
    assert_eq!((four["nodes"].as_u64(), report["plot"].is_null()), (Some(4), true), "{report}");
    assert!((number(&four["t_dralic_printed"]) - 3.076_352e-3).abs() < 1e-9, "{four}");
    assert!((number(&report["t_rm_printed"]) - 609.6e-6).abs() < 1e-12, "{report}");
    assert!(rows(&report, "parameters").iter().all(|parameter| parameter["from"] == "paper"));

    // Other hardware has a figure of its own.
    let other = scratch.join("other.svg").display().to_string();
    tools::expect_success(&mut cheetah(&["model", "--disk-overhead", "0.1ms", "--plot", &other]));
    tools::names(&texts(Path::new(&other)), &["on hardware as given"]);
}

#[test]
fn what_cannot_be_computed_is_refused_as_a_wrong_command_line() {
    let scratch = Scratch::new();
    let there = scratch.file("there.svg", b"mine").display().to_string();
    for (arguments, why) in [
        (&["model", "--disk-bandwidth", "25M"][..], "is not a bandwidth"),
        (&["model", "--disk-bandwidth", "0MB"], "--disk-bandwidth is 0"),
        (&["model", "--network-overhead", "1h"], "--network-overhead is 3600"),
        (&["model", "--disk-overhead", "12"], "is not a time"),
        (&["model", "--hit-local", "1.5"], "is not a share"),
        (&["model", "--hit-remote", "log:1"], "is no hit ratio"),
        (&["model", "--nodes", "0"], "0 is not in 1..=10000"),
        (&["model", "--disk", "/dev/zero"], "--measure"),
        (&["model", "--plot", &there], "is there already"),
        (&["simulate", "--plot", &there], "is there already"),
        (&["simulate", "--nodes", "10001"], "10001 is not in 1..=10000"),
        (&["simulate", "--load", "0"], "a load of 0"),
        (&["simulate", "--load", "0.99"], "a load of 0.99"),
        (&["simulate", "--nodes", "3", "--redundancy", "parity:8+1"], "needs 9 nodes"),
        (&["simulate", "--nodes", "4", "--failed", "4"], "somebody has to ask"),
        (&["simulate", "--mttf", "0"], "--mttf"),
        (&["simulate", "--data", "1K"], "--data"),
    ] {
        let output = cheetah(arguments).output().expect("its output");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(why), "{arguments:?} says {said}");
    }
    assert_eq!(fs::read(&there).expect("the file"), b"mine");
}

#[test]
fn a_pool_and_a_disk_are_measured_and_left_as_they_were() {
    let mut pool = Pool::start();
    for name in ["one", "two"] {
        pool.donate(name, "256M");
    }
    let disk = pool.scratch().file("disk", &vec![7; 32 << 20]).display().to_string();
    let plot = pool.scratch().join("measured.svg");
    let arguments = ["model", "--measure", "--disk", &disk, "--nodes", "64", "--plot"];
    let report = pool.json(arguments.into_iter().chain([&*plot.display().to_string()]));
    let measured = &report["measured"];
    assert_eq!(measured["donors"], 2, "{report}");
    assert_eq!(measured["disk"]["path"], disk.as_str());
    for what in ["memory_bandwidth", "network_bandwidth", "network_overhead", "block_read"] {
        assert!(number(&measured[what]) > 0.0, "{what} of {measured}");
    }
    assert!(number(&measured["disk"]["bandwidth"]) > 0.0);
    let from = |name: &str| {
        let all = rows(&report, "parameters");
        let found = all.into_iter().find(|parameter| parameter["name"] == name).expect("a parameter");
        found["from"].as_str().expect("a text").to_owned()
    };
    let sources = ["block_bytes", "memory_bandwidth", "network_overhead", "disk_overhead"].map(from);
    assert_eq!(sources, ["paper", "measured", "measured", "measured"]);
    tools::names(&texts(&plot), &["on hardware as measured"]);
    assert_eq!(pool.json(["list"])["volumes"], Value::Array(Vec::new()), "its volume is deleted");
    assert_eq!(fs::read(&disk).expect("the disk"), vec![7; 32 << 20], "it is only read");

    // What was given is not measured over, and the disk may be left out.
    let report = pool.json(["model", "--measure", "--network-overhead", "1ms"]);
    let overhead = &rows(&report, "parameters")[3];
    assert_eq!((&overhead["from"], number(&overhead["value"])), (&Value::from("given"), 1e-3), "{report}");
    assert!(report["measured"]["disk"].is_null());

    let memory = Scratch::in_memory();
    let small = pool.scratch().file("small", &[7; 4_096]).display().to_string();
    let holes = pool.scratch().sparse_file("holes", 64 << 20).display().to_string();
    let in_memory = memory.file("pages", &vec![7; 32 << 20]).display().to_string();
    for (disk, why) in [
        (small.as_str(), "smaller than 16 MiB"),
        (&holes, "most of it are holes"),
        (&in_memory, "it lies in memory"),
        ("/dev/zero", "neither a disk nor a file on one"),
        ("/nowhere", "No such file"),
    ] {
        let said = pool.fails(["model", "--measure", "--disk", disk]);
        assert!(said.contains(why), "{disk}: {said}");
    }
    assert_eq!(
        pool.json(["list"])["volumes"],
        Value::Array(Vec::new()),
        "and none was made for what is refused"
    );
}

#[test]
fn who_stops_a_measurement_leaves_no_volume() {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    let mut command = pool.command();
    command.args(["model", "--measure"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let measuring = command.spawn().expect("cheetah");
    let attached = || {
        let volumes = rows(&pool.json(["list"]), "volumes");
        volumes.iter().any(|volume| volume["attachments"].as_array().is_some_and(|all| !all.is_empty()))
    };
    wait::until("its volume is attached", Duration::from_secs(20), attached);
    tools::run("kill", ["-INT", &measuring.id().to_string()]);
    let output = measuring.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    tools::names(&said, &["stopped before all was measured"]);
    assert_eq!(pool.json(["list"])["volumes"], Value::Array(Vec::new()));
}

#[test]
fn a_pool_without_donors_cannot_be_measured() {
    let pool = Pool::start();
    let said = pool.run(["model", "--measure"]);
    assert_eq!(said.status.code(), Some(5), "{}", said.err);
    tools::names(&said.err, &["no donor of the pool", "cheetah donate"]);
}

/// Where nobody waits long, every mean is that of the formulas within a tenth, up to a thousand nodes.
#[test]
fn a_thousand_nodes_are_simulated_as_the_model_says() {
    let scratch = Scratch::new();
    let plot = scratch.join("pool.svg");
    let report = json(&["simulate", "--nodes", "1000", "--plot", &plot.display().to_string()]);
    let sizes = rows(&report, "over_nodes");
    assert_eq!((sizes.len(), sizes[9]["nodes"].as_u64()), (10, Some(1_000)));
    for size in &sizes {
        for way in ["striped", "groups"] {
            let ratio = number(&size[way]["ratio"]);
            assert!((0.9..=1.1).contains(&ratio), "{way}: {size}");
        }
    }
    // In groups a pool gives as much more as it has more nodes; striped it does not.
    let full = |at: usize, way: &str| number(&sizes[at][way]);
    assert!(full(9, "groups_full") > 80.0 * full(3, "groups_full"), "{:?}", sizes[9]);
    assert!(full(9, "striped_full") < 10.0 * full(3, "striped_full"), "{:?}", sizes[9]);
    // Queues are what parts them.
    let loads = rows(&report, "over_load");
    let (calm, busy) = (&loads[0]["layout"], &loads[loads.len() - 1]["layout"]);
    assert!(number(&calm["ratio"]) < 1.1 && number(&busy["ratio"]) > 3.0, "{calm} {busy}");
    let failures = rows(&report, "failures");
    assert_eq!(failures.len(), 3, "{failures:?}");
    assert!(number(&failures[2]["rebuilt_bytes"]) > 0.0, "{failures:?}");
    let losses = rows(&report, "losses");
    assert!(losses.iter().any(|row| row["nodes"] == 1_000 && row["mttdl"].is_number()), "{losses:?}");
    tools::names(
        &texts(&plot),
        &["striped over all nodes: simulated", "T_raid, without queues", "parity:8+1: formula"],
    );
}

#[test]
fn a_seed_is_one_report() {
    let of = |seed: &str| json(&["simulate", "--nodes", "12", "--requests", "1000", "--seed", seed]);
    let seven = of("7");
    assert_eq!(seven, of("7"));
    assert_ne!(seven["over_nodes"], of("8")["over_nodes"]);
}
