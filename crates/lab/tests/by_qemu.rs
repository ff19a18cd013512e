//! Disks behind iSCSI and SSH, which a `qemu-nbd` of ours reads: what comes is what lies there, and a target
//! that dies, hangs or comes back is an error in time or goes on. Formats that it reads: `tests/sources.rs`.
//!
//! The target is tgt, the server of files Dropbear with OpenSSH's `sftp-server`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cheetah_lab::dice::noise;
use cheetah_lab::pool::Pool;
use cheetah_lab::process::Process;
use cheetah_lab::rivals::free_port;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::tools::names;
use cheetah_lab::{hash, tools, wait};
use cheetah_source::{Options, Source};
use rustix::process::Signal;
use serde_json::json;

const NAME: &str = "iqn.2026-11.lab:suspect";

/// tgt with one target of one disk; its sockets of control are told apart by a number.
struct Target {
    portal: u16,
    control: String,
    disk: PathBuf,
    scratch: Scratch,
    process: Process,
}

impl Target {
    fn start(disk: &Path) -> Target {
        let (portal, scratch) = (free_port(), Scratch::new());
        let control = portal.to_string();
        let process = Target::serve(portal, &control, &scratch);
        let target = Target { portal, control, disk: disk.to_owned(), scratch, process };
        target.describe();
        target
    }

    fn serve(portal: u16, control: &str, scratch: &Scratch) -> Process {
        let mut command = tools::command("tgtd");
        command.args(["-f", "-C", control, "--iscsi", &format!("portal=127.0.0.1:{portal}")]);
        Process::start("tgtd", command, scratch.path())
    }

    fn admin(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = tools::command("tgtadm");
        command.args(["-C", &self.control, "--lld", "iscsi"]).args(arguments);
        command
    }

    fn describe(&self) {
        let new = || self.admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", NAME]);
        wait::until("tgtd", wait::SOON, || tools::output(&mut new()).status.success());
        let mut unit =
            self.admin(&["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b"]);
        tools::expect_success(unit.arg(&self.disk));
        tools::expect_success(
            &mut self.admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"]),
        );
    }

    fn again(&mut self) {
        self.process = Target::serve(self.portal, &self.control, &self.scratch);
        self.describe();
    }

    fn url(&self) -> String {
        format!("iscsi://127.0.0.1:{}/{NAME}/1", self.portal)
    }
}

fn pool() -> Pool {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool
}

fn opened(url: &str, seconds: u64) -> Box<dyn Source> {
    let options = Options { patience: Duration::from_secs(seconds), ..Options::default() };
    cheetah_source::open(Path::new(url), &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Processes that were started by this one and read for it.
fn helpers() -> usize {
    let own = std::process::id().to_string();
    let of_own = |status: &str| status.lines().any(|line| line.strip_prefix("PPid:\t") == Some(&own));
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let status = processes.filter_map(|process| fs::read_to_string(process.path().join("status")).ok());
    status.filter(|status| status.starts_with("Name:\tqemu-nbd") && of_own(status)).count()
}

#[test]
fn a_disk_behind_iscsi_is_loaded_as_it_is_and_nobody_is_left_behind() {
    let pool = pool();
    let disk = pool.scratch().file("disk.raw", &noise(12 << 20, 1));
    let target = Target::start(&disk);
    let sha256 = hash::of_file(&disk);
    let report = pool.json(["load", &target.url(), "case", "--read-back"]);
    assert_eq!((&report["verified"], &report["volume_hashes"]["sha256"]), (&json!(true), &json!(sha256)));
    assert_eq!(report["source"], "iSCSI disk", "{report}");
    pool.ok(["delete", "case"]);
    let wrong = target.url().replace("suspect", "nobody");
    names(&pool.run(["load", &wrong, "case"]).err, &["qemu-nbd says", "nobody"]);
    let secret = target.url().replace("://", "://eve%geheim@");
    names(&pool.run(["load", &secret, "case"]).err, &["a password in an address"]);
    assert_eq!(pool.status()["volumes"], json!([]), "a source that could not be opened left a volume");
}

#[test]
fn a_target_that_hangs_or_dies_is_an_error_in_time_and_one_that_is_back_goes_on() {
    let scratch = Scratch::new();
    let bytes = noise(8 << 20, 2);
    let disk = scratch.file("disk.raw", &bytes);
    let mut target = Target::start(&disk);
    let source = opened(&target.url(), 2);
    let right = |at: usize| {
        let mut room = vec![0; 1 << 20];
        source.read_exact_at(at as u64, &mut room).unwrap_or_else(|error| panic!("{error}"));
        assert!(room == bytes[at..at + (1 << 20)], "at {at}");
    };
    let wrong = |at: u64| {
        let since = Instant::now();
        let error = source.read_exact_at(at, &mut vec![0; 4096]).expect_err("nobody gives it");
        names(&error.to_string(), &["nothing came in 2 s"]);
        assert!(since.elapsed() < wait::SOON, "it waited for {:?}", since.elapsed());
    };
    right(0);
    target.process.signal(Signal::STOP);
    wrong(4 << 20);
    target.process.signal(Signal::CONT);
    right(1 << 20);
    target.process.kill();
    wrong(5 << 20);
    target.again();
    right(2 << 20);
    assert_eq!((source.changed(), helpers()), (None, 1));
    drop(source);
    assert_eq!(helpers(), 0, "the one that read for it is gone with it");
}

/// As somebody does who has a key there: the home of this process's user has it, in a namespace of its own.
#[test]
fn an_image_on_another_machine_is_read_by_ssh() {
    let pool = pool();
    let bytes = noise(6 << 20, 3);
    let disk = pool.scratch().file("disk.raw", &bytes);
    let home = pool.scratch().directory("home");
    let (port, key) = (free_port(), home.join("id_rsa"));
    let mut make = tools::command("ssh-keygen");
    tools::expect_success(make.args(["-q", "-t", "rsa", "-N", "", "-m", "PEM", "-f"]).arg(&key));
    let public = fs::read_to_string(home.join("id_rsa.pub")).expect("a key");
    fs::write(home.join("authorized_keys"), &public).expect("written");
    for (path, mode) in [(&home, 0o700), (&home.join("authorized_keys"), 0o600)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("own files");
    }
    let host = pool.scratch().join("host_key");
    tools::expect_success(tools::command("dropbearkey").args(["-t", "rsa", "-f"]).arg(&host));
    let in_home = |program: &str| {
        let mut command = tools::command("unshare");
        let script = "mkdir -p ~root/.ssh && mount --bind \"$0\" ~root/.ssh && exec \"$@\"";
        command.args(["--mount", "sh", "-c", script]).arg(&home).arg(program);
        command
    };
    let mut command = in_home("dropbear");
    command.args(["-F", "-E", "-s", "-p", &format!("127.0.0.1:{port}"), "-r"]).arg(&host);
    let _server = Process::start("dropbear", command, pool.scratch().path());
    let mut scan = tools::command("ssh-keyscan");
    scan.args(["-t", "rsa", "-p", &port.to_string(), "127.0.0.1"]);
    let mut known = String::new();
    wait::until("dropbear", wait::SOON, || {
        known = String::from_utf8_lossy(&tools::output(&mut scan).stdout).into_owned();
        !known.is_empty()
    });
    let url = format!("ssh://root@127.0.0.1:{port}{}", disk.display());
    let load = || {
        let mut own = pool.command();
        own.args(["load", &url, "case", "--json"]);
        let mut command = in_home(&own.get_program().to_string_lossy());
        command.args(own.get_args()).envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    // A server that nobody has vouched for is not read.
    names(&tools::expect_failure(&mut load()), &["qemu-nbd says", "known_hosts"]);
    fs::write(home.join("known_hosts"), known).expect("written");
    let report: serde_json::Value =
        serde_json::from_str(&tools::expect_success(&mut load())).expect("a report");
    assert_eq!(report["source"], "file by SSH", "{report}");
    assert_eq!(report["file_hashes"]["sha256"], hash::of_file(&disk), "{report}");
    pool.ok(["delete", "case"]);
}
