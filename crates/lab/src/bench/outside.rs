//! The benchmark's outer process: the program again, in a network namespace of its own, and the end of
//! whatever it started.
//!
//! Owns: that namespace, and what a signal does to a run. Never: measures. Invariant: a run that is
//! interrupted has nothing left behind when this process ends; only one that is killed (SIGKILL) leaves that
//! to the next.
//! Called by: `bench`. Tests: `tests/bench_interrupted.rs`.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

use tokio::signal::unix::{SignalKind, signal};

use crate::bench::{machine, share};
use crate::tools;

/// Set in the run inside, to the congestion control outside.
const INSIDE: &str = "CHEETAH_BENCH_INSIDE";

/// The congestion control that this machine has outside of the namespace; None outside.
pub fn congestion_control() -> Option<String> {
    std::env::var(INSIDE).ok()
}

/// Runs the program again in a network namespace of its own, where every side has the same congestion
/// control: BBR, some machines' default, halves loopback's speed, and programs that cannot choose would be
/// measured by it.
pub fn run() -> ExitCode {
    tools::need_root("the benchmark, for a network of its own,");
    let script = format!(
        "ip link set lo up && echo {} >/proc/sys/net/ipv4/tcp_congestion_control && exec \"$@\"",
        machine::CONGESTION
    );
    let program = std::env::current_exe().expect("the path of this program");
    // Each execs the next: the child is the program itself.
    let mut again = tools::command("unshare");
    again.args(["--net", "sh", "-c", &script, "sh"]).arg(program).args(std::env::args_os().skip(1));
    again.env(INSIDE, machine::congestion_control());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (status, interrupted) = runtime.block_on(until_it_ends(again));
    if let Some(signal) = interrupted.or(status.signal()) {
        eprintln!("bench: ended by signal {signal}; ending what it started");
        share::sweep();
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX));
    }
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// How it ended, and by which signal to this process. A terminal gives the same signal to both; who names a
/// process, to this one.
async fn until_it_ends(command: Command) -> (ExitStatus, Option<i32>) {
    let hear = |kind: SignalKind| signal(kind).expect("signals from the kernel");
    let mut terminate = hear(SignalKind::terminate());
    let mut interrupt = hear(SignalKind::interrupt());
    let mut hangup = hear(SignalKind::hangup());
    let mut command = tokio::process::Command::from(command);
    let mut child =
        command.spawn().unwrap_or_else(|error| panic!("cannot start again in a namespace: {error}"));
    let told = tokio::select! {
        status = child.wait() => return (status.expect("the end of a child"), None),
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = hangup.recv() => SignalKind::hangup(),
    };
    // Fails only for one that has ended already.
    let _ = child.start_kill();
    (child.wait().await.expect("the end of a child"), Some(told.as_raw_value()))
}
