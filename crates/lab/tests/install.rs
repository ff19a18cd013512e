//! What others get: the package and what is in it, services that say when they are ready, configuration
//! files, and the look at a machine that finds what is in the way.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cheetah_lab::pool::{Pool, binary};
use cheetah_lab::process::Process;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::{tools, wait};
use serde_json::Value;

/// The script that packs, and the program that is tested: nothing is built for this.
fn pack(into: &Path) -> PathBuf {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let mut script = Command::new(Path::new(&root).join("../../scripts/deb"));
    script.arg(binary()).arg(into);
    // Small or not is nobody's question here.
    script.env("SOURCE_DATE_EPOCH", "1700000000").env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    let path = PathBuf::from(tools::expect_success(&mut script).trim());
    assert!(path.is_file(), "{}", path.display());
    path
}

/// A package, and what is in it.
struct Package {
    scratch: Scratch,
    file: PathBuf,
    root: PathBuf,
}

impl Package {
    fn new() -> Package {
        let scratch = Scratch::new();
        let file = pack(&scratch.directory("built"));
        let root = scratch.directory("root");
        tools::expect_success(tools::command("dpkg-deb").arg("-x").arg(&file).arg(&root));
        Package { scratch, file, root }
    }

    fn field(&self, name: &str) -> String {
        let said = tools::expect_success(tools::command("dpkg-deb").arg("-f").arg(&self.file).arg(name));
        said.trim().to_owned()
    }

    fn program(&self) -> PathBuf {
        self.root.join("usr/bin/cheetah")
    }
}

/// What is packed at this place, for everybody to read, and of root.
const FILES: [&str; 12] = [
    "etc/cheetah/cheetah.toml",
    "usr/lib/systemd/system/cheetah-coordinator.service",
    "usr/lib/systemd/system/cheetah-donor.service",
    "usr/lib/systemd/system/cheetah-node.service",
    "usr/share/bash-completion/completions/cheetah",
    "usr/share/zsh/vendor-completions/_cheetah",
    "usr/share/fish/vendor_completions.d/cheetah.fish",
    "usr/share/man/man1/cheetah.1.gz",
    "usr/share/man/man1/cheetah-donate.1.gz",
    "usr/share/man/man1/cheetah-token-new.1.gz",
    "usr/share/doc/cheetah/copyright",
    "usr/share/doc/cheetah/changelog.gz",
];

#[test]
fn the_package_holds_what_it_should_as_it_should() {
    let package = Package::new();
    for file in FILES {
        let mode =
            fs::metadata(package.root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}")).permissions();
        assert_eq!(mode.mode() & 0o777, 0o644, "{file}");
    }
    let mode = fs::metadata(package.program()).expect("the program").permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    let listed = tools::expect_success(tools::command("dpkg-deb").arg("-c").arg(&package.file));
    for line in listed.lines() {
        assert!(line.contains(" root/root "), "{line}");
    }
    let said = tools::expect_success(Command::new(package.program()).arg("--version"));
    assert_eq!(said.trim(), format!("cheetah {}", package.field("Version")));
    let architecture = tools::run("dpkg", ["--print-architecture"]);
    assert_eq!(package.field("Architecture"), architecture.trim());
    let control = package.scratch.directory("control");
    tools::expect_success(tools::command("dpkg-deb").arg("-e").arg(&package.file).arg(&control));
    let conffiles = fs::read_to_string(control.join("conffiles")).expect("conffiles");
    assert_eq!(conffiles.trim(), "/etc/cheetah/cheetah.toml");
    for script in ["postinst", "prerm", "postrm"] {
        tools::expect_success(tools::command("sh").arg("-n").arg(control.join(script)));
    }
    // The configuration that comes with it is right, and lends.
    let mut command = Command::new(package.program());
    command.args(["donate", "--help"]).env("CHEETAH_CONFIG", package.root.join("etc/cheetah/cheetah.toml"));
    tools::names(&tools::expect_success(&mut command), &["[default: auto]"]);
}

#[test]
fn the_same_program_gives_the_same_package() {
    let scratch = Scratch::new();
    let packed = |name: &str| fs::read(pack(&scratch.directory(name))).expect("a package");
    assert!(packed("one") == packed("other"), "they differ");
}

#[test]
fn services_are_as_systemd_has_them() {
    let package = Package::new();
    let units = package.scratch.directory("units");
    let own = &["User=cheetah", "NoNewPrivileges=yes", "ProtectSystem=strict"][..];
    for (name, own) in [
        ("cheetah-coordinator.service", own),
        ("cheetah-donor.service", own),
        ("cheetah-node.service", &["KillMode=mixed"]),
    ] {
        let text =
            fs::read_to_string(package.root.join("usr/lib/systemd/system").join(name)).expect("a unit");
        for line in own.iter().chain(&["Type=notify", "RestartPreventExitStatus=2"]) {
            assert!(text.lines().any(|there| there == *line), "{name} lacks {line}");
        }
        // It is looked whether the program is there.
        let here = package.program().display().to_string();
        fs::write(units.join(name), text.replace("/usr/bin/cheetah", &here)).expect("a unit");
        let mut verify = tools::command("systemd-analyze");
        verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(units.join(name));
        let output = tools::output(&mut verify);
        let said = tools::describe(&verify, &output);
        let named = String::from_utf8_lossy(&output.stderr).lines().any(|line| line.contains(name));
        assert!(output.status.success() && !named, "{said}");
    }
}

#[test]
fn the_manual_is_well_formed_and_complete() {
    let scratch = Scratch::new();
    let pages = scratch.directory("man");
    tools::expect_success(Command::new(binary()).arg("manual").arg(&pages));
    let mut names = Vec::new();
    for page in fs::read_dir(&pages).expect("pages").flatten().map(|entry| entry.path()) {
        let mut groff = tools::command("groff");
        let output = tools::output(groff.args(["-man", "-Tutf8", "-ww", "-P-c"]).arg(&page));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{}: {said}", page.display());
        assert!(output.stdout.len() > 500, "{} is next to empty", page.display());
        names.push(page.file_name().expect("a name").to_string_lossy().into_owned());
    }
    let help = tools::expect_success(Command::new(binary()).arg("--help"));
    let commands =
        help.split("Commands:\n").nth(1).expect("commands").lines().take_while(|line| !line.is_empty());
    for command in commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()) {
        if !command.is_empty() && command != "help" {
            assert!(names.contains(&format!("cheetah-{command}.1")), "no page of {command}: {names:?}");
        }
    }
    let top = fs::read_to_string(pages.join("cheetah.1")).expect("the first page");
    tools::names(&top, &["EXIT CODES", "ENVIRONMENT", ".nf"]);
}

/// What a service manager hears.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    heard: String,
}

impl Manager {
    fn new(scratch: &Scratch, name: &str) -> Manager {
        let path = scratch.join(name);
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a limit");
        Manager { socket, path, heard: String::new() }
    }

    fn start(&self, name: &str, mut command: Command, scratch: &Scratch) -> Process {
        command.env("NOTIFY_SOCKET", &self.path);
        Process::start(name, command, scratch.path())
    }

    fn listen(&mut self) {
        let mut bytes = [0; 4096];
        match self.socket.recv(&mut bytes) {
            Ok(len) => self.heard.push_str(&format!("{}\n", String::from_utf8_lossy(&bytes[..len]))),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => panic!("{e}"),
        }
    }

    #[track_caller]
    fn hears(&mut self, what: &str, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.heard.contains(what) {
            assert!(Instant::now() < until, "{what:?} was not said; {:?} was", self.heard);
            self.listen();
        }
    }

    fn has_heard(&self, what: &str) -> bool {
        self.heard.lines().any(|line| line == what)
    }
}

#[test]
fn a_service_manager_hears_when_a_coordinator_and_a_donor_are_ready() {
    let pool = Pool::without_coordinator(None);
    let scratch = pool.scratch();
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let url = format!("http://{port}");
    let (mut of_coordinator, mut of_donor) = (Manager::new(scratch, "one"), Manager::new(scratch, "two"));

    let mut command = pool.command();
    command.args(["donate", "128M", "--name", "lab7", "--pool", &url]);
    let mut donor = of_donor.start("donor", command, scratch);
    of_donor.hears("STATUS=waiting for the pool", wait::SOON);
    assert!(!of_donor.has_heard("READY=1") && donor.is_running(), "its coordinator is not there yet");

    let mut command = pool.command();
    command.args(["coordinate", "--plaintext", "--state", "memory", "--listen", &port.to_string()]);
    let coordinator = of_coordinator.start("coordinator", command, scratch);
    of_coordinator.hears("READY=1", wait::SOON);
    of_donor.hears("READY=1", wait::SOON);
    of_donor.hears("STATUS=donor lab7 lends 128 MiB", wait::SOON);
    assert!(of_coordinator.has_heard("READY=1") && of_donor.has_heard("READY=1"));
    assert!(coordinator.log().contains("ready: http://"), "{}", coordinator.log());
}

/// The program with files as this user and a machine have them, and without `CHEETAH_POOL`.
fn configured(pool: &Pool, text: &str) -> Command {
    let home = pool.scratch().directory("config").join("cheetah");
    fs::create_dir_all(&home).expect("a directory");
    fs::write(home.join("cheetah.toml"), text).expect("a file");
    let mut command = pool.command();
    command.env_remove("CHEETAH_CONFIG").env_remove("CHEETAH_POOL");
    command
}

#[test]
fn a_flag_goes_before_the_environment_and_that_before_a_file() {
    let pool = Pool::start();
    // Nobody listens there.
    let nowhere = "http://127.0.0.1:9";
    let (right, wrong) = (format!("pool = \"{}\"\n", pool.url()), format!("[list]\npool = \"{nowhere}\"\n"));

    tools::expect_success(configured(&pool, &right).arg("list"));
    let said = tools::expect_failure(configured(&pool, &wrong).arg("list"));
    tools::names(&said, &["127.0.0.1:9"]);
    tools::expect_success(configured(&pool, &wrong).arg("list").env("CHEETAH_POOL", pool.url()));
    tools::expect_failure(configured(&pool, &right).arg("list").env("CHEETAH_POOL", nowhere));
    let line = ["list", "--pool", pool.url()];
    tools::expect_success(configured(&pool, &wrong).args(line).env("CHEETAH_POOL", nowhere));

    let other = pool.scratch().join("other.toml");
    fs::write(&other, &right).expect("a file");
    tools::expect_success(configured(&pool, &wrong).arg("list").env("CHEETAH_CONFIG", &other));
    tools::expect_success(configured(&pool, &wrong).arg("list").arg("--config").arg(&other));
}

#[test]
fn a_wrong_file_is_named_with_its_line_and_help_is_given_all_the_same() {
    let pool = Pool::without_coordinator(None);
    let text = "[donate]\nsize = \"auto\"\nreserv = \"8G\"\n";
    let output = tools::output(configured(&pool, text).arg("list"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    tools::names(&said, &["cheetah/cheetah.toml:3", "'reserv'", "reserve"]);
    tools::expect_success(configured(&pool, text).args(["donate", "--help"]));
    let said = tools::expect_failure(pool.command().args(["--config", "/no/such/file", "list"]));
    tools::names(&said, &["/no/such/file", "cannot be read"]);
    let output = tools::output(configured(&pool, text).args(["list", "--json"]));
    let error: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    assert_eq!(error["error"]["code"], "usage");
}

fn checks(pool: &Pool, more: &[&str]) -> (Option<i32>, Value) {
    let output = tools::output(pool.command().args(["doctor", "--json"]).args(more));
    let said = String::from_utf8_lossy(&output.stdout);
    let report = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    (output.status.code(), report)
}

#[track_caller]
fn state_of<'a>(report: &'a Value, check: &str) -> &'a str {
    let all = report["checks"].as_array().expect("checks");
    let found = all.iter().find(|one| one["check"] == check);
    found.and_then(|one| one["state"].as_str()).unwrap_or_else(|| panic!("no {check} in {report}"))
}

#[test]
fn the_doctor_says_what_is_in_the_way() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    let (code, report) = checks(&pool, &[]);
    assert_eq!(report["version"], 1);
    for check in
        ["fuse", "locked memory", "open files", "memory", "swap", "huge pages", "clock", "port", "mDNS"]
    {
        assert!(["ok", "slower", "in_the_way"].contains(&state_of(&report, check)), "{report}");
    }
    for check in ["pool", "donors", "state directory", "runtime directory"] {
        assert_eq!(state_of(&report, check), "ok", "{report}");
    }
    assert_eq!(code, Some(if report["state"] == "in_the_way" { 7 } else { 0 }), "{report}");

    let said = tools::output(pool.command().arg("doctor"));
    let lines = String::from_utf8_lossy(&said.stdout).lines().count();
    assert_eq!(lines, report["checks"].as_array().map_or(0, Vec::len), "one line each");

    // Nobody listens there, and the runtime directory is a file.
    let (code, report) = checks(&pool, &["--pool", "http://127.0.0.1:9"]);
    assert_eq!((code, state_of(&report, "pool")), (Some(7), "in_the_way"), "{report}");
    let run = pool.scratch().directory("bad-run");
    fs::write(run.join("cheetah"), "").expect("a file");
    let output = tools::output(pool.command().arg("doctor").env("XDG_RUNTIME_DIR", &run));
    assert_eq!(output.status.code(), Some(7));
    tools::names(&String::from_utf8_lossy(&output.stdout), &["in the way  runtime directory"]);
}
