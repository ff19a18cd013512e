//! What ends an attachment that is not ready yet: nobody waits for it any more, a signal, `detach`, or time.
//!
//! Owns the pipe to the command that waits, and the race between a start and its ends. Never: what is
//! started, or taken back. Invariant: an attachment goes on only after its command has heard that it is
//! ready; so one that was given up, or whose command was killed at any moment, leaves nothing. Called by
//! `daemon`. Tests: `lab/tests/starting.rs`.

use crate::control::Asked;
use crate::daemon::Report;
use crate::failure::{Exit, Failure};
use crate::signals::Signals;
use cheetah_core::limits::START_DEADLINE_NS;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// An order is a few hundred bytes and some paths.
const ORDER_BYTES_MAX: u64 = 64 << 10;

/// The command that started this daemon, at the other end of its standard input.
pub struct Waiter {
    pipe: BufReader<pipe::Receiver>,
}

impl Waiter {
    pub async fn listen<T: DeserializeOwned>() -> Result<(Waiter, T), Failure> {
        let wrong = |why: String| {
            Failure::usage(format!("this is started by `cheetah attach` and `cheetah open` ({why})"))
        };
        let stdin = rustix::io::dup(std::io::stdin()).map_err(|e| wrong(e.to_string()))?;
        let pipe = pipe::Receiver::from_owned_fd(stdin).map_err(|e| wrong(e.to_string()))?;
        let mut pipe = BufReader::new(pipe);
        let mut line = String::new();
        let read = (&mut pipe).take(ORDER_BYTES_MAX).read_line(&mut line).await;
        read.map_err(|e| wrong(e.to_string()))?;
        let order = serde_json::from_str(&line).map_err(|e| wrong(e.to_string()))?;
        Ok((Waiter { pipe }, order))
    }

    /// Whether it has heard what it waited for; false when it is gone.
    pub async fn heard(&mut self) -> bool {
        self.pipe.read_u8().await.is_ok()
    }
}

/// Why a start is given up.
pub enum Ended {
    NobodyWaits,
    Told,
    /// `detach` asked, and waits for an answer here.
    Detached(UnixStream),
    Late,
}

/// Whoever may end a start, beside `detach`. None: this process waits for itself, as `up` does.
pub struct Stops<'a> {
    pub waiter: Option<&'a mut Waiter>,
    pub signals: Option<&'a mut Signals>,
}

impl Stops<'_> {
    /// Carries on with `start` until it is done or somebody ends it. It may go on from where it was
    /// afterwards.
    pub async fn race<T>(
        &mut self,
        asked: &mut Asked,
        start: &mut (impl Future<Output = T> + Unpin),
    ) -> Result<T, Ended> {
        let Stops { waiter, signals } = self;
        let gone = async {
            match waiter {
                // It says nothing before it has heard; whatever comes is its end.
                Some(waiter) => drop(waiter.heard().await),
                None => std::future::pending().await,
            }
        };
        let told = async {
            match signals {
                Some(signals) => drop(signals.next().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = gone => Err(Ended::NobodyWaits),
            () = told => Err(Ended::Told),
            stream = asked.next() => Err(Ended::Detached(stream)),
            done = start => Ok(done),
            () = tokio::time::sleep(Duration::from_nanos(START_DEADLINE_NS)) => Err(Ended::Late),
        }
    }
}

impl Ended {
    /// `waited_for` is said of a start that came to no end.
    pub fn failure(&self, name: &str, waited_for: &str) -> Failure {
        let seconds = Duration::from_nanos(START_DEADLINE_NS).as_secs();
        match self {
            Ended::NobodyWaits => Failure::failed(format!("nobody waits for volume '{name}' any more")),
            Ended::Told => Failure::failed(format!("told to end before volume '{name}' was ready")),
            Ended::Detached(_) => {
                Failure::new(Exit::Refused, format!("volume '{name}' was detached before it was ready"))
            }
            Ended::Late => Failure::failed(format!(
                "volume '{name}' is not ready after {seconds} s: {waited_for}; nothing of it is lost by this, attach \
                 it again when they answer"
            )),
        }
    }

    /// After all was taken back.
    pub async fn answer(self) {
        if let Ended::Detached(mut stream) = self {
            // Nothing is said of an end that went well.
            let _ = stream.shutdown().await;
        }
    }
}

impl From<&Failure> for Report {
    fn from(failure: &Failure) -> Self {
        Report::Failed(failure.into())
    }
}
