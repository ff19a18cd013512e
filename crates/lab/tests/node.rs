//! `cheetah node`: what a machine lends and has attached, kept by one supervisor.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cheetah_lab::pool::{Pool, State};
use cheetah_lab::process::Process;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::{mark, tools, wait};
use rustix::process::Signal;

/// For a rebuild, or a pause that has grown, on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const USAGE: i32 = 2;

/// A node as its file has it, of a host of its own.
fn start(pool: &Pool, host: &str, file: &str) -> Process {
    let file = pool.scratch().file(&format!("{host}.toml"), file.as_bytes());
    let mut command = pool.command();
    command.env("CHEETAH_HOST_ID", host).arg("--config").arg(file).arg("node");
    Process::start(host, command, pool.scratch().path())
}

/// Memory and a disk, in files of this pool's.
fn lends(place: &Scratch, number: u32) -> String {
    let disk = place.join(format!("disk-{number}"));
    let disk = format!("--disk {}:400M --cache 64M --name d{number}", disk.display());
    format!("[node]\ndonate = [\"128M --name m{number}\", \"{disk}\"]\n")
}

/// The process of this pool with these words on its command line.
#[track_caller]
fn with_words(pool: &Pool, words: &str) -> u32 {
    let line = |pid: u32| {
        let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    let found: Vec<u32> = pool
        .daemons()
        .iter()
        .map(|running| running.pid)
        .filter(|pid| {
            let line = line(*pid);
            line.contains(words) && !line.contains(" node")
        })
        .collect();
    assert_eq!(found.len(), 1, "processes with {words:?}");
    found[0]
}

#[track_caller]
fn kill(pool: &Pool, words: &str) {
    mark::signal(with_words(pool, words), Signal::KILL);
}

/// How often a process has said something.
fn said(process: &Process, what: &str) -> usize {
    process.log().matches(what).count()
}

/// By dd, through the page cache and to the disks.
#[track_caller]
fn copy(from: &Path, to: &Path) {
    let (from, to) = (format!("if={}", from.display()), format!("of={}", to.display()));
    tools::run("dd", [&from, &to, "bs=1M", "conv=notrunc,fsync", "status=none"]);
}

#[track_caller]
fn compare(one: &Path, other: &Path) {
    let bytes = std::fs::metadata(one).expect("a file").len().to_string();
    tools::expect_success(tools::command("cmp").args(["--bytes", &bytes]).arg(one).arg(other));
}

#[test]
fn three_nodes_lend_and_one_of_them_uses_what_is_lent() {
    let pool = Pool::with(State::Directory, None);
    let place = Scratch::on_disk();
    let mut two = start(&pool, "host-2", &lends(&place, 2));
    let mut three = start(&pool, "host-3", &lends(&place, 3));
    for node in [&mut two, &mut three] {
        node.wait_for_line("ready: node of 2 donors and 0 attachments", wait::SOON);
    }
    let mount = pool.mount_directory("case");
    let attach = format!("attach = [\"case {}\"]\n", mount.display());
    let mut one = start(&pool, "host-1", &(lends(&place, 1) + &attach));
    // There is no such volume yet, which is said, and tried again.
    one.wait_for_line("volume case: it ended with exit status: 4; it is started again in 2 s", wait::SOON);
    pool.ok(["create", "case", "96M", "--on", "disk", "--redundancy", "parity:2+1"]);
    one.wait_for_line("ready: node of 2 donors and 1 attachment", LONG);
    let path = mount.join("case.raw");
    let noise = pool.scratch().join("noise");
    tools::run(
        "dd",
        ["if=/dev/urandom", &format!("of={}", noise.display()), "bs=1M", "count=24", "status=none"],
    );
    copy(&noise, &path);
    compare(&noise, &path);

    // A donor that is killed takes nobody along, and is back as who it was.
    kill(&pool, "--name d2");
    two.wait_for_line("d2: it ended with signal: 9", wait::SOON);
    compare(&noise, &path);
    wait::until("d2 is back", LONG, || said(&two, "d2: ready: donor d2 lends") == 2);
    assert_eq!(said(&two, "m2: ready: donor m2 lends"), 1);
    wait::until("it is whole", LONG, || pool.volume_status("case")["health"] == "whole");

    // So is an attachment.
    kill(&pool, " serve");
    wait::until("it is attached again", LONG, || said(&one, "volume case: ready:") == 2);
    compare(&noise, &path);

    // It ends in order, and nothing is left.
    assert!(one.terminate(LONG).success(), "{}", one.log());
    let log = one.log();
    let at = |what: &str| log.find(what).unwrap_or_else(|| panic!("no {what:?} in {log}"));
    assert!(at("volume case: detached case") < at("d1: stopped; what it holds stays on"), "{log}");
    assert!(mark::mount_points().iter().all(|point| Path::new(point) != mount));
    for node in [&mut two, &mut three] {
        assert!(node.terminate(LONG).success(), "{}", node.log());
    }
    assert!(pool.daemons().is_empty(), "{:?}", pool.daemons());
}

#[test]
fn a_second_signal_waits_for_nothing() {
    let mut pool = Pool::start();
    let mut node = start(&pool, "host-1", "[node]\ndonate = [\"128M --name m1\"]\n");
    node.wait_for_line("ready: node of 1 donor", wait::SOON);
    pool.create_linear("v", "64M");
    let path: PathBuf = pool.attach_fuse("v", &[]).path;
    std::fs::write(&path, vec![7; 1 << 20]).expect("a write");
    pool.detach("v");
    node.signal(Signal::TERM);
    // There is nobody to take what it holds.
    node.wait_for_line("m1: cheetah: ", wait::SOON);
    assert!(node.is_running());
    node.signal(Signal::TERM);
    assert!(node.wait_for_end(wait::SOON).success(), "{}", node.log());
    assert!(pool.daemons().is_empty());
    tools::names(&node.log(), &["m1: cheetah: left at once with"]);
}

#[test]
fn what_its_pool_let_go_and_what_is_typed_wrong_is_not_started_again() {
    let pool = Pool::start();
    let file = "[node]\ndonate = [\"128M --name m1\", \"1M --name small\"]\n";
    let mut node = start(&pool, "host-1", file);
    node.wait_for_line("small: it cannot be started as it is typed", wait::SOON);
    node.wait_for_line("ready: node of 1 donor and 0 attachments", wait::SOON);
    pool.ok(["leave", "m1"]);
    node.wait_for_line("m1: its pool let it go; it is not started again", wait::SOON);
    // Nothing is left to keep, and the reason is the configuration.
    assert_eq!(node.wait_for_end(wait::SOON).code(), Some(USAGE));
    assert_eq!((said(&node, "small: it cannot"), said(&node, "m1: ready:")), (1, 1));
}

#[test]
fn what_would_be_run_is_told_and_what_is_wrong_has_its_line() {
    let pool = Pool::start();
    let file = |text: &str| pool.scratch().file("node.toml", text.as_bytes());
    let run = |path: &Path| {
        let words = ["--config".into(), path.display().to_string(), "node".into(), "--check".into()];
        pool.run::<String>(words)
    };
    let said =
        run(&file("[node]\ndonate = [\"auto --max 1G\"]\nattach = [\"case /mnt/c\", \"b --overlay\"]\n"));
    let expected = "memory: cheetah donate auto --max 1G\nvolume case: cheetah attach case /mnt/c\n\
                    volume b-overlay: cheetah attach b --overlay\n";
    assert_eq!((said.status.code(), said.out.as_str()), (Some(0), expected));
    for (text, why) in [
        ("[node]\ndonate = [\"auto\", \"auto --frobnicate\"]\n", &["node.toml:2", "--frobnicate"][..]),
        ("[node]\nattach = [\"case --front moon\"]\n", &["node.toml:2", "moon"]),
        ("[node]\nattach = [\"case\", \"case /mnt\"]\n", &["would be attached twice"]),
        ("[donate]\nsize = \"auto\"\n", &["nothing to lend and nothing to attach"]),
    ] {
        let said = run(&file(text));
        assert_eq!(said.status.code(), Some(USAGE), "{text}: {}", said.err);
        tools::names(&said.err, why);
    }
    assert!(pool.daemons().is_empty());
}
