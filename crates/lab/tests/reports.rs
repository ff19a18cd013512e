//! What commands report: JSON as docs/JSON.md says, one line about all, progress beside it, the coordinator's
//! record.

use cheetah_lab::pool::Pool;
use cheetah_lab::{tools, wait};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Stdio;

const DOCUMENTED: &str = include_str!("../../../docs/JSON.md");

/// The fields of a command's report: those that are always there, and those that may be absent.
fn documented(command: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let row = DOCUMENTED.lines().find_map(|line| line.strip_prefix(&format!("| {command} | ")));
    let row = row.unwrap_or_else(|| panic!("docs/JSON.md has no row for {command}"));
    let fields = row.trim_end_matches(" |").split(", ").map(str::to_owned);
    let (absent, always): (BTreeSet<String>, BTreeSet<String>) =
        fields.partition(|field| field.starts_with('['));
    (always, absent.iter().map(|field| field.trim_matches(['[', ']']).to_owned()).collect())
}

#[track_caller]
fn assert_documented(command: &str, report: &Value) {
    let found: BTreeSet<String> = report.as_object().expect("an object").keys().cloned().collect();
    let (always, may_be) = documented(command);
    assert!(always.is_subset(&found), "{command}: {always:?} are documented, {found:?} found");
    let all: BTreeSet<String> = always.union(&may_be).cloned().collect();
    assert!(found.is_subset(&all), "{command}: {found:?} found, only {all:?} are documented");
    assert_eq!(report["version"], 1, "{command}");
}

#[test]
fn every_report_has_the_fields_that_are_documented() {
    let mut pool = Pool::start();
    for name in ["one", "two", "three", "four"] {
        pool.donate(name, "256M");
    }
    let image = pool.scratch().sparse_file("small.raw", 1 << 20).display().to_string();
    let report = |command: &str, arguments: &[&str]| {
        let report = pool.json(arguments);
        assert_documented(command, &report);
        report
    };
    report("create", &["create", "v", "64M", "--redundancy", "parity:2+1"]);
    report("grow", &["grow", "v", "128M"]);
    report("load", &["load", &image, "case"]);
    report("verify", &["verify", "case"]);
    report("list", &["list"]);
    report("show", &["show", "v"]);
    let status = report("status", &["status"]);
    let well = report("status -x", &["status", "-x"]);
    assert_eq!(well["state"], status["state"], "both judge alike");
    report("explain", &["explain", "volume-lost"]);
    report("model", &["model", "--measure"]);
    report("simulate", &["simulate", "--nodes", "4", "--requests", "1000"]);
    let socket = format!("unix:{}", pool.scratch().join("v.sock").display());
    report("attach", &["attach", "v", "--front", "export", "--listen", &socket]);
    report("detach", &["detach", "v"]);
    report("delete", &["delete", "v"]);
    report("leave", &["leave", "four", "--force"]);

    let said = pool.run(["show", "ghost", "--json"]);
    assert_eq!((said.status.code(), said.out.as_str()), (Some(4), ""));
    let error: Value = serde_json::from_str(&said.err).expect("one JSON object");
    assert_eq!((&error["version"], &error["error"]["code"]), (&1.into(), &"not_found".into()));
    assert!(error["error"]["message"].as_str().is_some_and(|message| message.contains("ghost")));
    let said = pool.run(["show", "--json"]);
    assert_eq!(said.status.code(), Some(2));
    let error: Value = serde_json::from_str(&said.err).expect("one JSON object");
    assert_eq!(error["error"]["code"], "usage");

    // The record of the same: what, of what, and who.
    let log = pool.coordinator_log();
    for event in [
        "donor-joined",
        "volume-created",
        "volume-grown",
        "load-begun",
        "attached",
        "detached",
        "volume-deleted",
    ] {
        let line = log.lines().find(|line| line.contains(&format!("event=\"{event}\"")));
        let line = line.unwrap_or_else(|| panic!("no {event} in {log}"));
        // A donor joins when it was greeted, which nobody asked for.
        let by = line.contains("by=\"") && line.contains("from 127.0.0.1");
        assert!(by || event == "donor-joined", "{line}");
        assert!(line.contains(if event == "donor-joined" { "donor=\"one\"" } else { "volume=\"" }), "{line}");
    }
    assert!(log.contains("donor-left"), "{log}");
}

#[test]
fn one_line_and_an_exit_code_say_whether_all_is_well() {
    let mut pool = Pool::start();
    let said = pool.run(["status", "-x"]);
    assert_eq!((said.status.code(), said.out.lines().count()), (Some(7), 1), "{said:?}");
    assert!(said.out.starts_with("degraded: pool (pool-empty)"), "{said:?}");
    pool.donate("one", "128M");
    pool.create_linear("v", "64M");
    let said = pool.run(["status", "-x"]);
    assert_eq!((said.status.code(), said.err.as_str()), (Some(0), ""), "{said:?}");
    assert!(said.out.starts_with("all is well") && said.out.lines().count() == 1, "{said:?}");
    pool.donor("one").kill();
    wait::until("the loss", wait::SOON, || pool.run(["status", "-x"]).status.code() == Some(6));
    let said = pool.run(["status", "-x"]);
    assert!(said.out.starts_with("lost: volume v (volume-lost)"), "{said:?}");
    let text = pool.ok(["status"]);
    for part in [
        "  state  lost",
        "  what   64 MiB of volume v",
        "  do     Bring back",
        "  see    cheetah explain volume-lost",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(pool.coordinator_log().contains("event=\"data-lost\" volume=\"v\""));
    pool.kill_coordinator();
    assert_eq!(pool.run(["status", "-x"]).status.code(), Some(3), "nobody to ask is not well");
}

/// Without a terminal, progress is lines on stderr: JSON with `--json`, so that stdout stays the report's
/// alone.
#[test]
fn progress_is_lines_where_there_is_no_terminal() {
    let mut pool = Pool::start();
    for name in ["one", "two", "three"] {
        pool.donate(name, "1G");
    }
    let image = pool.scratch().sparse_file("large.raw", 1 << 30).display().to_string();
    let said = pool.run(["load", &image, "case", "--json"]);
    assert!(said.status.success(), "{said:?}");
    let report: Value = serde_json::from_str(&said.out).expect("one report");
    assert_eq!(report["verified"], true);
    let lines: Vec<Value> =
        said.err.lines().map(|line| serde_json::from_str(line).expect("JSON on each line")).collect();
    let progress = lines.iter().find(|line| line["progress"].is_object()).expect("progress");
    for field in
        ["what", "subject", "bytes_done", "bytes_total", "percent", "bytes_per_second", "seconds_left"]
    {
        assert!(progress["progress"].get(field).is_some(), "{progress} has {field}");
    }
    pool.ok(["delete", "case"]);
    let said = pool.run(["load", &image, "case", "--no-verify"]);
    let line = said.err.lines().find(|line| line.starts_with("cheetah: loading case: "));
    let line = line.unwrap_or_else(|| panic!("{said:?}"));
    assert!(line.contains(" %, ") && line.contains(" of 1 GiB, ") && line.contains("/s, "), "{line}");
}

/// What is said beside the bar has lines of its own, and the bar one line, however narrow the terminal is.
#[test]
fn a_bar_on_a_narrow_terminal_takes_one_line() {
    let mut pool = Pool::start();
    pool.donate("one", "512M");
    let image = pool.scratch().sparse_file("image", 256 << 20);
    let program = pool.command();
    let load = format!(
        "stty cols 40 rows 24; CHEETAH_LOG=debug {} load {} case",
        program.get_program().display(),
        image.display()
    );
    let mut script = tools::command("script");
    script.args(["-qec", &load, "/dev/null"]);
    script.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let output = tools::output(&mut script);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}");
    let pieces: Vec<&str> = shown.split(['\r', '\n']).filter(|piece| piece.contains("% [")).collect();
    assert!(!pieces.is_empty(), "{shown:?}");
    for piece in pieces {
        let bar = &piece[..=piece.find(']').unwrap_or_else(|| panic!("{piece:?}"))];
        let plain = bar.trim_start_matches("\u{1b}[2K");
        assert!(plain.chars().count() <= 40, "{piece:?}");
        assert!(!piece.contains("DEBUG") && !piece.contains("WARN"), "{piece:?}");
    }
}

#[test]
fn a_closed_pipe_ends_nobody_in_a_panic() {
    let pool = Pool::start();
    for arguments in
        [&["status"][..], &["list"], &["--help"], &["explain", "volume-lost"], &["show", "ghost"]]
    {
        let mut command = pool.command();
        let mut child =
            command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        drop((child.stdout.take(), child.stderr.take()));
        let code = child.wait().expect("it ends").code();
        assert!(code.is_some_and(|code| code != 101), "{arguments:?}: {code:?}");
    }
}
