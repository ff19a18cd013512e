//! `cheetah validate`: a healthy pool passes, each of four builds with a fault in it fails and names the
//! requirement, what cannot be done is not shown, and nothing is left of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cheetah_lab::planted::{self, FAULTS};
use cheetah_lab::pool::Pool;
use cheetah_lab::process::Process;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::{mark, tools, wait};
use rustix::process::Signal;
use serde_json::Value;

const LONG: Duration = Duration::from_secs(300);

/// The image, as another program makes it: what its hash is.
const IMAGE: &str = "\
import hashlib, struct
M = (1 << 64) - 1
def mixed(seed):
    z = (seed + 0x9E3779B97F4A7C15) & M
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
    return z ^ (z >> 31)
def block(n):
    if n % 8 == 3: return bytes(4096)
    if n % 8 == 5: return bytes([n // 8 % 255 + 1]) * 4096
    out = bytearray(b''.join(struct.pack('<Q', mixed(n * 512 + word)) for word in range(512)))
    for s in range(8):
        label = b'cheetah validation image, sector %012d\\n' % (n * 8 + s)
        out[s * 512:s * 512 + len(label)] = label
    return bytes(out)
size = 8390144
data = b''.join(block(n) for n in range((size + 4095) // 4096))[:size]
print(hashlib.sha256(data).hexdigest())
";

fn pool_of_three() -> Pool {
    let mut pool = Pool::start();
    for name in ["one", "two", "three"] {
        pool.donate(name, "512M");
    }
    pool
}

fn read(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// The verdict of each requirement, as the report has them.
fn verdicts(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let requirements = report["requirements"].as_array().expect("requirements");
    requirements.iter().map(|one| (text(&one["requirement"]), text(&one["verdict"]))).collect()
}

#[track_caller]
fn no_volume_but(pool: &Pool, names: &[&str]) {
    let list = pool.json(["list"]);
    let volumes = list["volumes"].as_array().expect("volumes");
    let found: Vec<&str> = volumes.iter().filter_map(|volume| volume["name"].as_str()).collect();
    assert_eq!(found, names);
}

#[test]
fn a_healthy_pool_passes_and_programs_of_others_check_the_report() {
    tools::need_root("the memory of another process");
    let mut pool = pool_of_three();
    pool.ok(["create", "case7", "64M"]);
    pool.attach_export_unix("case7", &[]);
    let directory = pool.scratch().join("validation");
    let out = directory.display().to_string();
    let notes = "<script>alert(1)</script> & so on";
    let said = pool.run(["validate", "--out", &out, "--examiner", "R. Roe", "--notes", notes, "--json"]);
    assert_eq!(said.status.code(), Some(0), "{}{}", said.out, said.err);
    let short: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(short["verdict"], "passed", "{short}");
    let report: Value = serde_json::from_str(&read(&directory, "validation.json")).expect("JSON");
    let all = verdicts(&report);
    assert!(all.len() >= 10 && all.iter().all(|(_, verdict)| verdict == "passed"), "{all:?}");
    assert_eq!(verdicts(&short), all);
    let cases = report["requirements"].as_array().expect("requirements").iter();
    let cases: Vec<&Value> = cases.flat_map(|one| one["cases"].as_array().expect("cases")).collect();
    assert!(cases.iter().all(|case| case["checks"].as_array().is_some_and(|checks| !checks.is_empty())));
    // A line for each, though nobody looks.
    for case in &cases {
        let line = format!("passed     {}", case["case"].as_str().expect("a name"));
        assert!(said.err.contains(&line), "{line}: {}", said.err);
    }
    let hash = tools::run("python3", ["-c", IMAGE]);
    assert_eq!(report["image"]["whole"]["sha256"], hash.trim(), "another program makes the same image");

    // The page: whole, alone, and with everything that matters.
    tools::expect_success(tools::command("xmllint").arg("--noout").arg(directory.join("validation.html")));
    let page = read(&directory, "validation.html");
    tools::names(
        &page,
        &["R. Roe", "&lt;script&gt;", "write-blocked", "ISO/IEC 17025:2017", hash.trim(), "Limits"],
    );
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("http-equiv"), "{page}");
    let check = |file: &str| {
        let mut minisign = tools::command("minisign");
        minisign.args(["-Vm", file, "-p", "pool.pub"]).current_dir(&directory);
        minisign
    };
    let signed = tools::expect_success(&mut check("validation.sha256"));
    tools::names(&signed, &["report of a validation", "by admin "]);
    let sums = || {
        let mut sums = tools::command("sha256sum");
        sums.args(["-c", "validation.sha256"]).current_dir(&directory);
        sums
    };
    tools::expect_success(&mut sums());
    let file = directory.join("validation.html");
    std::fs::write(&file, page.replace("R. Roe", "R. Row")).expect("written");
    tools::expect_failure(&mut sums());

    // Nothing is left of it, and nothing of others was touched.
    no_volume_but(&pool, &["case7"]);
    assert_eq!(pool.volume_status("case7")["attachments"].as_array().map(Vec::len), Some(1));
    let said = pool.run(["validate", "--out", &out]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    tools::names(&said.err, &["is there already", "--out"]);
    assert_eq!(pool.run(["validate", "--size", "1M"]).status.code(), Some(2));
    assert_eq!(pool.run(["validate", "--only", "speed"]).status.code(), Some(2));
}

/// A pool of the planted build, as `up` makes one, and how its commands are run.
struct Planted {
    scratch: Scratch,
    program: PathBuf,
    requirement: &'static str,
    url: String,
    identity: String,
    up: Process,
}

impl Planted {
    fn command(scratch: &Scratch, program: &Path, requirement: &str) -> std::process::Command {
        let mut command = std::process::Command::new(program);
        command
            .env(planted::VARIABLE, requirement)
            .env(mark::VARIABLE, mark::own())
            .env("XDG_RUNTIME_DIR", scratch.directory("run"))
            .env("XDG_CONFIG_HOME", scratch.directory("config"))
            .env("TMPDIR", scratch.directory("tmp"))
            .env("CHEETAH_CONFIG", "");
        command
    }

    #[track_caller]
    fn start(program: &Path, requirement: &'static str) -> Planted {
        let scratch = Scratch::new();
        let mut command = Planted::command(&scratch, program, requirement);
        command.args(["up", "--donors", "3", "--size", "64M"]);
        let mut up = Process::start("up", command, scratch.path());
        let line = up.wait_for_line("lets a shell in", wait::SOON);
        let between = |from: &str, to: &str| {
            let (_, rest) = line.split_once(from).unwrap_or_else(|| panic!("no {from} in {line}"));
            rest.split_once(to).map_or(rest, |(part, _)| part).to_owned()
        };
        let (url, identity) = (between("pool ", ";"), between("CHEETAH_IDENTITY=", "`"));
        Planted { scratch, program: program.to_path_buf(), requirement, url, identity, up }
    }

    /// The exit code, and the report.
    #[track_caller]
    fn validate(&mut self, name: &str, only: &str) -> (Option<i32>, Value) {
        let out = self.scratch.join(name);
        let mut command = Planted::command(&self.scratch, &self.program, self.requirement);
        command.args(["validate", "--pool", &self.url, "--identity", &self.identity, "--only", only]);
        command.arg("--out").arg(&out);
        let mut process = Process::start(name, command, self.scratch.path());
        let code = process.wait_for_end(LONG).code();
        assert!(out.join("validation.json").exists(), "{}", process.log());
        (code, serde_json::from_str(&read(&out, "validation.json")).expect("JSON"))
    }
}

#[test]
fn a_build_with_a_planted_fault_fails_and_the_requirement_is_named() {
    tools::need_root("the memory of another process");
    let program = planted::program();
    for fault in FAULTS {
        let requirement = fault.requirement;
        let mut pool = Planted::start(&program, requirement);
        let (code, report) = pool.validate("fault", requirement);
        assert_eq!(code, Some(6), "{requirement}: {report}");
        assert_eq!(report["verdict"], "failed");
        let bad: Vec<String> =
            verdicts(&report).into_iter().filter(|(_, v)| v == "failed").map(|(name, _)| name).collect();
        assert_eq!(bad, [requirement]);
        let statement = report["statement"].as_str().expect("a statement");
        assert!(statement.contains(&format!("Not met: {requirement}.")), "{statement}");
        pool.up.terminate(wait::SOON);
    }
    // The same build without a fault has none: it is the fault that was found.
    let mut pool = Planted::start(&program, "none");
    let all = FAULTS.map(|fault| fault.requirement).join(",");
    let (code, report) = pool.validate("none", &all);
    assert_eq!((code, &report["verdict"]), (Some(0), &Value::from("passed")), "{report}");
    pool.up.terminate(wait::SOON);
}

#[test]
fn what_cannot_be_done_here_is_not_shown_and_does_not_pass() {
    let pool = pool_of_three();
    let directory = pool.scratch().join("validation");
    let mut command = pool.command();
    // No tool of others.
    command.env("PATH", pool.scratch().directory("empty"));
    command.args(["validate", "--only", "acquired-exactly,saved-exactly", "--out"]).arg(&directory);
    let mut process = Process::start("validate", command, pool.scratch().path());
    assert_eq!(process.wait_for_end(LONG).code(), Some(7), "{}", process.log());
    tools::names(&process.log(), &["not shown  e01", "ewfacquirestream is not here", "passed     raw"]);
    let report: Value = serde_json::from_str(&read(&directory, "validation.json")).expect("JSON");
    assert_eq!(report["verdict"], "not_shown");
    let all = verdicts(&report);
    let of = |name: &str| all.iter().find(|(one, _)| one == name).map(|(_, verdict)| verdict.as_str());
    assert_eq!(of("acquired-exactly"), Some("not_shown"));
    assert_eq!(of("saved-exactly"), Some("passed"));
    assert_eq!(of("write-blocked"), Some("not_asked_for"));
    tools::names(&read(&directory, "validation.html"), &["ewfacquirestream is not here", "Not asked for:"]);
}

#[test]
fn a_pool_without_memory_shows_nothing_and_one_who_only_looks_is_told_so() {
    let pool = Pool::start();
    let directory = pool.scratch().join("empty");
    let said = pool.run(["validate", "--only", "saved-exactly", "--out", &directory.display().to_string()]);
    assert_eq!(said.status.code(), Some(7), "{}{}", said.out, said.err);
    tools::names(&said.out, &["not shown  save", "Not shown, or not all of it: saved-exactly."]);
    let invitation = pool.ok(["token", "new", "--role", "viewer"]);
    let viewer = pool.scratch().join("viewer").display().to_string();
    pool.ok(["join", invitation.trim(), "--identity", &viewer]);
    let directory = pool.scratch().join("viewer-report").display().to_string();
    let validate = ["validate", "--only", "saved-exactly", "--out", &directory, "--identity", &viewer];
    let said = pool.run(validate);
    assert_eq!(said.status.code(), Some(4), "{}{}", said.out, said.err);
    tools::names(&said.out, &["not shown  save"]);
    tools::names(&said.err, &["is not signed", "a viewer looks"]);
}

#[test]
fn one_that_is_interrupted_takes_back_what_it_made() {
    let pool = pool_of_three();
    let directory = pool.scratch().join("validation");
    let mut command = pool.command();
    let temporary = pool.scratch().directory("tmp");
    command.env("TMPDIR", &temporary).args(["validate", "--out"]).arg(&directory);
    let mut process = Process::start("validate", command, pool.scratch().path());
    // A volume is there, and another is being made.
    process.wait_for_line("passed     source-file", LONG);
    process.signal(Signal::INT);
    assert_eq!(process.wait_for_end(LONG).code(), Some(1), "{}", process.log());
    tools::names(&process.log(), &["interrupted: there is no report"]);
    no_volume_but(&pool, &[]);
    let left = |path: &Path| std::fs::read_dir(path).map_or(0, Iterator::count);
    assert_eq!((left(&temporary), directory.exists()), (0, false));
    assert!(pool.daemons().is_empty(), "{:?}", pool.daemons());
}
