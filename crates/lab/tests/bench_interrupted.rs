//! A benchmark that is interrupted leaves nothing on the machine.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cheetah_lab::{mark, process::Process, scratch::Scratch, wait};
use rustix::process::Signal;

/// What carries the mark of a process: processes, network namespaces, directories.
fn left_by(pid: u32) -> Vec<String> {
    let prefix = format!("cheetah-lab-{pid}-");
    let names = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<String>>()
    };
    let directories = [Path::new("/run/netns"), &std::env::temp_dir(), Path::new("/dev/shm")];
    let named = directories.into_iter().flat_map(names).filter(|name| name.starts_with(&prefix));
    let running = mark::processes(mark::own_start(), |mark| mark.starts_with(&prefix));
    running.into_iter().map(|process| process.command).chain(named).collect()
}

fn only_child(pid: u32) -> Option<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.trim().parse().ok()
}

#[test]
fn a_benchmark_that_is_interrupted_leaves_nothing() {
    let scratch = Scratch::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(["--quick", "lan"]);
    let mut bench = Process::start("bench", command, scratch.path());
    let inner = wait::for_some("the benchmark in its namespace", wait::SOON, || only_child(bench.pid()));
    wait::until("a file on hosts of its own", Duration::from_secs(60), || {
        assert!(bench.is_running(), "{}", bench.log());
        let left = left_by(inner);
        ["cheetah donate", "cheetah serve", "-sw"]
            .iter()
            .all(|what| left.iter().any(|line| line.contains(what)))
    });
    bench.signal(Signal::INT);
    let status = bench.wait_for_end(Duration::from_secs(30));
    assert_eq!(status.code(), Some(130), "{}", bench.log());
    assert_eq!(left_by(inner), [""; 0]);
    let mounts = mark::mount_points();
    assert!(!mounts.iter().any(|point| point.contains(&format!("cheetah-lab-{inner}-"))), "{mounts:?}");
}
