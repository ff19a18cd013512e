//! A command of the program that is run to its end, and what it said.
//!
//! Never: a process that stays (`process`). Invariant: one that does not end, or leaves its outputs open to
//! others, counts as hanging, and is ended. Called by: `pool`.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long a command may take before it counts as hanging.
const COMMAND_LIMIT: Duration = Duration::from_secs(180);

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Said {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

#[track_caller]
pub(crate) fn run_to_end(command: Command) -> Said {
    let what = format!("{command:?}");
    end_within(command, COMMAND_LIMIT).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Ends when the command has ended **and** both its outputs are closed: a daemon that keeps them open would
/// hang a shell's `$(...)`, and so counts as a command that hangs.
pub(crate) fn end_within(mut command: Command, limit: Duration) -> Result<Said, String> {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let out = collect(child.stdout.take());
    let err = collect(child.stderr.take());
    let start = std::time::Instant::now();
    let left = || limit.saturating_sub(start.elapsed());
    let texts = out.recv_timeout(left()).and_then(|out| Ok((out, err.recv_timeout(left())?)));
    let Ok((out, err)) = texts else {
        let ended = matches!(child.try_wait(), Ok(Some(_)));
        // Only to end it; that it may have ended meanwhile is fine.
        let _ = child.kill();
        let _ = child.wait();
        let which = if ended { "has ended but something keeps its outputs open" } else { "did not end" };
        return Err(format!("{which} within {limit:?}"));
    };
    let status = child.wait().map_err(|error| error.to_string())?;
    Ok(Said { status, out, err })
}

fn collect(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (to, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            // What could be read before an error is what there is to show.
            let _ = from.read_to_end(&mut bytes);
        }
        // The receiver is gone when the command took too long.
        let _ = to.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
