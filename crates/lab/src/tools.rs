//! Foreign tools: found by absolute path, run to their end, their output in the message when they fail.
//! Invariant: a tool that is missing fails the test loudly and says how to get it; nothing is ever skipped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where Debian puts tools. PATH is left out on purpose: a version manager of Python in front of it hides the
/// system's python3, the only one that has libnbd's module.
const DIRECTORIES: [&str; 5] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"];

/// The absolute path of a tool, or a panic that says how to get it.
#[track_caller]
pub fn need(name: &str) -> PathBuf {
    match DIRECTORIES.iter().map(|directory| Path::new(directory).join(name)).find(|path| path.exists()) {
        Some(path) => path,
        None => panic!("needs {name}: run make setup"),
    }
}

/// A command for a tool, with no standard input.
#[track_caller]
pub fn command(name: &str) -> Command {
    let mut command = Command::new(need(name));
    command.stdin(Stdio::null());
    command
}

/// A command for a program of a Python package, which is installed once for the user.
#[track_caller]
pub fn python_tool(package: &str, program: &str) -> Command {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let mut install = Command::new(Path::new(&root).join("../../scripts/python-tool"));
    let directory = expect_success(install.arg(package).stdin(Stdio::null()));
    let mut command = Command::new(Path::new(directory.trim()).join(program));
    command.stdin(Stdio::null());
    command
}

/// Runs a tool that must succeed; answers what it printed.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> String {
    expect_success(command(name).args(arguments))
}

/// Runs a command that must succeed; answers what it printed on standard output.
#[track_caller]
pub fn expect_success(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{}", describe(command, &output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must fail; answers what it printed on both outputs.
#[track_caller]
pub fn expect_failure(command: &mut Command) -> String {
    let output = output(command);
    assert!(!output.status.success(), "succeeded but must not: {}", describe(command, &output));
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a command to its end, whatever comes of it.
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!("cannot start {command:?}: {error}"),
    }
}

/// What was run and what it said, for the message of a failed assertion.
pub fn describe(command: &Command, output: &Output) -> String {
    format!(
        "{command:?}: {}\n--- stdout\n{}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Asserts that a message names each of these.
#[track_caller]
pub fn names(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

/// Whether the caller is root, which namespaces, loop devices and mounts need.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Fails loudly when the caller is not root.
#[track_caller]
pub fn need_root(what: &str) {
    assert!(is_root(), "{what} needs root: run the tests as root (sudo make test)");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "needs no-such-tool: run make setup")]
    fn a_missing_tool_fails_loudly() {
        need("no-such-tool");
    }

    #[test]
    fn output_is_handed_on() {
        assert_eq!(run("printf", ["%s", "x y"]), "x y");
        assert!(expect_failure(command("ls").arg("/no/such/place")).contains("/no/such/place"));
    }
}
