//! Outputs that nobody reads any more, and files that may not grow: errors of their own, never a panic or a
//! signal.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use cheetah_lab::pool::{Pool, binary};
use cheetah_lab::tools;

/// The end of a pipe whose reader has gone.
fn closed_pipe() -> OwnedFd {
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    writer.into()
}

fn full_disk() -> OwnedFd {
    File::options().write(true).open("/dev/full").expect("/dev/full").into()
}

#[track_caller]
fn ends(command: &mut Command) -> ExitStatus {
    let status = command.stdin(Stdio::null()).status().expect("a status");
    assert_eq!(status.signal(), None, "{command:?} ended by a signal");
    assert_ne!(status.code(), Some(101), "{command:?} panicked");
    status
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_quietly() {
    let pool = Pool::start();
    for arguments in
        [&["completions", "zsh"][..], &["completions", "bash"], &["status"], &["list", "--json"], &["--help"]]
    {
        let mut command = pool.command();
        command.args(arguments).stdout(closed_pipe()).stderr(Stdio::piped());
        let output = command.output().expect("its output");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{arguments:?}: {} {said}", output.status);
    }
}

#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    let mut command = Command::new(binary());
    command.args(["completions", "zsh"]).stdout(full_disk()).stderr(Stdio::piped());
    let output = command.output().expect("its output");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("output cannot be written"), "{said}");
}

#[test]
fn errors_that_nobody_hears_keep_their_exit_code() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    let image = pool.scratch().sparse_file("image", 64 << 20).display().to_string();
    for stderr in [closed_pipe, full_disk] {
        let run = |arguments: &[&str]| {
            let mut command = pool.command();
            command.args(arguments).env("CHEETAH_LOG", "debug").stdout(Stdio::null());
            ends(command.stderr(stderr())).code()
        };
        assert_eq!(run(&["load", "/no/such/image", "x"]), Some(1));
        assert_eq!(run(&["delete", "ghost"]), Some(4));
        assert_eq!(run(&["load"]), Some(2));
        assert_eq!(run(&["status"]), Some(0));
        // It has something to say all the time: what it made, how far it is, that it is done.
        for more in ["--json", "--overwrite"] {
            assert_eq!(run(&["load", &image, "case", "--writable", more]), Some(0));
        }
        assert_eq!(run(&["delete", "case"]), Some(0));
    }
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_no_signal() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.create_linear("kept", "64M");
    let limited = |arguments: &[&str]| {
        let program = pool.command();
        let mut command = tools::command("prlimit");
        command.arg("--fsize=0").arg(program.get_program());
        command.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = command.output().expect("its output");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        said
    };
    let said = limited(&["donate", "64M", "--no-pool"]);
    assert!(said.contains("ulimit -f"), "{said}");
    let state = pool.scratch().directory("limited").display().to_string();
    let said = limited(&["coordinate", "--listen", "127.0.0.1:0", "--state", &state]);
    assert!(said.contains(&state) && said.contains("File too large"), "{said}");
    let said = limited(&["attach", "kept", "--front", "export"]);
    assert!(said.contains("ulimit -f"), "{said}");
    assert!(pool.daemons().is_empty(), "a daemon that could not be recorded lives on");
    assert_eq!(pool.volume_status("kept")["attachments"], serde_json::json!([]), "the lease is left");
}
