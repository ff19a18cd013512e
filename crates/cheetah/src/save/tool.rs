//! A program of others that is run, fed and waited for.
//!
//! Owns: the process, what it says, and its end. Never: what it is for (`ewf`). Invariants: it does not
//! live longer than its `Tool`; nothing waits for it that does not look whether the command shall end; a
//! signal of the terminal is the command's to hear, not its. Called by `ewf`. Tests: below,
//! `lab/tests/save.rs`.

use crate::failure::Failure;
use crate::fill::Progress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks at whether it has ended, and whether the command shall.
const LOOK: Duration = Duration::from_millis(20);
/// How long it may take nothing until it is looked again.
const TAKE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Of what it says, the end.
const SAID_BYTES_MAX: usize = 16 << 10;

pub struct Tool {
    name: String,
    child: Child,
    /// What of the volume goes to it, until that is all.
    stdin: Option<ChildStdin>,
    said: Option<JoinHandle<String>>,
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    name: String,
    pub status: ExitStatus,
    pub said: String,
}

impl Tool {
    /// `package` is Debian's.
    pub fn start(mut command: Command, package: &str, is_fed: bool) -> Result<Tool, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let cannot = |why: &io::Error| match why.kind() {
            ErrorKind::NotFound => Failure::failed(format!("{name} is not here, which is needed for an E01"))
                .advise(format!("install it (Debian: {package}), or save a raw image")),
            _ => Failure::failed(format!("cannot start {name}: {why}")),
        };
        let (said, says) = io::pipe().map_err(|why| cannot(&why))?;
        let second = says.try_clone().map_err(|why| cannot(&why))?;
        let stdin = if is_fed { Stdio::piped() } else { Stdio::null() };
        command.stdin(stdin).stdout(says).stderr(second).process_group(0);
        let mut child = command.spawn().map_err(|why| cannot(&why))?;
        // It has the writing ends of what it says, and so nobody else may.
        drop(command);
        let stdin = child.stdin.take();
        let said = Some(std::thread::spawn(move || listen(said)));
        if let Some(stdin) = &stdin {
            let flags = fcntl_getfl(stdin).map_err(|why| cannot(&why.into()))?;
            fcntl_setfl(stdin, flags | OFlags::NONBLOCK).map_err(|why| cannot(&why.into()))?;
        }
        Ok(Tool { name, child, stdin, said })
    }

    pub fn stdin(&self) -> Option<&ChildStdin> {
        self.stdin.as_ref()
    }

    /// Hands it all of these; `false`: it takes no more.
    pub fn feed(&mut self, bytes: &[u8], progress: &Progress) -> Result<bool, Failure> {
        let Some(stdin) = &mut self.stdin else { return Ok(false) };
        let cannot = |why: io::Error| Failure::failed(format!("cannot write to {}: {why}", self.name));
        let mut rest = bytes;
        while !rest.is_empty() {
            match stdin.write(rest) {
                Ok(taken) => rest = rest.get(taken..).unwrap_or_default(),
                Err(why) if why.kind() == ErrorKind::WouldBlock => {
                    progress.go_on()?;
                    let _ = poll(&mut [PollFd::new(stdin, PollFlags::OUT)], Some(&TAKE));
                }
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if why.kind() == ErrorKind::BrokenPipe => return Ok(false),
                Err(why) => return Err(cannot(why)),
            }
        }
        Ok(true)
    }

    /// It has got all: waits for its end.
    pub fn end(mut self, progress: &Progress) -> Result<Ended, Failure> {
        drop(self.stdin.take());
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {
                    progress.go_on()?;
                    std::thread::sleep(LOOK);
                }
                Err(why) => return Err(Failure::failed(format!("cannot wait for {}: {why}", self.name))),
            }
        };
        let said = self.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
        Ok(Ended { name: self.name.clone(), status, said })
    }
}

impl Drop for Tool {
    /// Before its stdin is closed, which it would take for the end of the disk.
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// What happened, in a line; `None` where it says that all went well.
    pub fn fault(&self) -> Option<String> {
        if self.status.success() {
            return None;
        }
        let said = match why(&self.said) {
            Some(why) => format!(": {why}"),
            None => String::new(),
        };
        // `exit status: 1`, `signal: 9 (SIGKILL)`.
        Some(format!("{} failed ({}){said}", self.name, self.status))
    }
}

/// Of what libewf says, from the cause up to who called, the line that has the cause.
fn why(said: &str) -> Option<&str> {
    let cause = said.lines().rev().find_map(|line| line.split_once("with error: "));
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let told = lines.rev().find(|line| line.contains("nable to") || line.contains("nvalid"));
    cause.map(|(_, cause)| cause.trim()).or(told)
}

fn listen(mut from: PipeReader) -> String {
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match from.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => said.extend_from_slice(piece.get(..read).unwrap_or_default()),
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        let over = said.len().saturating_sub(SAID_BYTES_MAX);
        said.drain(..over);
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_told_and_not_who_called() {
        let full = "Unable to close output.\n\
                    libcfile_file_write_buffer_with_error_code: unable to write to file with error: No space left \
                    on device\nlibewf_handle_close: unable to finalize write.\n";
        assert_eq!(why(full), Some("No space left on device"));
        assert_eq!(why("a\nUnable to open it.\n\nb\n"), Some("Unable to open it."));
        assert_eq!(why("ewfverify: FAILURE\n"), None);
    }

    fn shell(text: &str, is_fed: bool) -> Tool {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        Tool::start(command, "dash", is_fed).expect("there is a shell")
    }

    #[test]
    fn it_gets_all_and_its_end_is_told() {
        let progress = Progress::default();
        let mut tool = shell("wc -c; echo 'x: unable to sing' >&2; exit 3", true);
        assert_eq!(tool.feed(&vec![0; 300_000], &progress), Ok(true));
        let ended = tool.end(&progress).expect("it ends");
        assert!(ended.said.contains("300000"), "{ended:?}");
        assert_eq!(ended.fault().as_deref(), Some("sh failed (exit status: 3): x: unable to sing"));
    }

    #[test]
    fn one_that_is_gone_takes_no_more_and_one_that_hangs_is_ended() {
        let progress = Progress::default();
        let mut tool = shell("exit 0", true);
        let mut took = true;
        while took {
            took = tool.feed(&[0; 4096], &progress).expect("a pipe");
        }
        let hangs = shell("sleep 1000", true);
        progress.stop();
        assert!(hangs.end(&progress).is_err(), "it was told to end");
        let missing = Tool::start(Command::new("no-such-tool"), "no-such-package", false);
        let failure = missing.err().expect("it is not there").text();
        assert!(failure.contains("no-such-tool") && failure.contains("no-such-package"), "{failure}");
    }
}
