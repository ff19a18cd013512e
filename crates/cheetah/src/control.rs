//! What is said to the daemon of an attachment or of a filling, over the socket beside its record: one line
//! that names a command.
//!
//! Owns: the words, for both ends, and waiting for them. Never: what a command does, or its answer.
//! Invariants: a connection that says nothing, or anything else, is closed and changes nothing, for a socket
//! is connected to by whoever looks what it is; and those that are silent keep others waiting for
//! `LINE_PATIENCE` at most. Called by `daemon`, `filler` and `starting` (hear), `attach` and `open` (say).
//! Tests: below; `lab/tests/exposure.rs`.

use crate::daemon::Report;
use crate::failure::Failure;
use rustix::net::RecvFlags;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

/// Of its files in the runtime directory.
pub const KIND: &str = "control";
/// In front of a command; the number grows when an older daemon would take the line for something else.
const VERSION: &str = "cheetah-control 1 ";
const DETACH: &str = "detach";

/// What the daemon of a filling can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    Stop,
    Pause,
    Resume,
    /// Bytes each second; 0: as fast as it goes.
    Rate(u64),
}

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Word::Stop => f.write_str("stop"),
            Word::Pause => f.write_str("pause"),
            Word::Resume => f.write_str("resume"),
            Word::Rate(bytes) => write!(f, "rate {bytes}"),
        }
    }
}

impl Word {
    fn of(text: &str) -> Option<Word> {
        match text {
            "stop" => Some(Word::Stop),
            "pause" => Some(Word::Pause),
            "resume" => Some(Word::Resume),
            _ => text.strip_prefix("rate ")?.parse().ok().map(Word::Rate),
        }
    }
}

/// Asks the daemon of a filling for something. It answers with nothing once that is done.
pub fn say(mut stream: impl std::io::Write, word: &Word) -> std::io::Result<()> {
    stream.write_all(format!("{VERSION}{word}\n").as_bytes())
}

const LINE_BYTES_MAX: usize = 64;
const LINE_PATIENCE: Duration = Duration::from_secs(2);
const CONNECTIONS_MAX: usize = 16;

/// Asks the daemon to end. It answers with nothing when it has, or with a `Report` of why not.
pub fn say_detach(mut stream: impl std::io::Write) -> std::io::Result<()> {
    stream.write_all(format!("{VERSION}{DETACH}\n").as_bytes())
}

/// Those who ask the daemon to end.
pub struct Asked {
    asking: mpsc::Receiver<(Option<Word>, UnixStream)>,
    hearing: JoinHandle<()>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.hearing.abort();
    }
}

impl Asked {
    pub fn listen(listener: UnixListener) -> Asked {
        let (tell, asking) = mpsc::channel(1);
        Asked { asking, hearing: tokio::spawn(hear_all(listener, tell)) }
    }

    /// The next, who waits for an answer here. May be given up, and asked again.
    pub async fn next(&mut self) -> UnixStream {
        loop {
            // What only a filling understands is for no attachment.
            if let (None, stream) = self.next_word().await {
                return stream;
            }
        }
    }

    /// The same with what is asked for; none: to end, as an attachment does.
    pub async fn next_word(&mut self) -> (Option<Word>, UnixStream) {
        match self.asking.recv().await {
            Some(asked) => asked,
            None => std::future::pending().await,
        }
    }
}

async fn hear_all(listener: UnixListener, tell: mpsc::Sender<(Option<Word>, UnixStream)>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(permit) = room.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let tell = tell.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    let _ = tokio::time::timeout(LINE_PATIENCE, hear(stream, tell)).await;
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn hear(mut stream: UnixStream, tell: mpsc::Sender<(Option<Word>, UnixStream)>) {
    let Some(line) = line_of(&mut stream).await else { return };
    let said = line.strip_prefix(VERSION).unwrap_or_default();
    let word = Word::of(said);
    if said == DETACH || word.is_some() {
        if has_hung_up(&stream) {
            return;
        }
        // Whoever comes while one is being answered is answered after that.
        if let Ok(place) = tell.reserve().await {
            place.send((word, stream));
        }
    } else if line.starts_with("cheetah-control ") {
        let message = format!(
            "the daemon of this attachment (process {}) is of another version and does not understand what it is asked: \
             use the program that attached the volume, or end the process with SIGTERM",
            std::process::id()
        );
        let text = serde_json::to_string(&Report::from(&Failure::failed(message)));
        let _ = stream.write_all(text.unwrap_or_default().as_bytes()).await;
    }
}

/// Whoever gave up waiting was told that nothing came of it.
fn has_hung_up(stream: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(rustix::net::recv(stream, &mut [0; 1], flags), Ok((_, 0)))
}

async fn line_of(stream: &mut UnixStream) -> Option<String> {
    let mut line = Vec::new();
    while line.len() < LINE_BYTES_MAX {
        match stream.read_u8().await.ok()? {
            b'\n' => return String::from_utf8(line).ok(),
            byte => line.push(byte),
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What comes back, and whether somebody was heard.
    async fn answer(said: &[u8], hangs_up: bool) -> (String, bool) {
        let (mut client, server) = UnixStream::pair().unwrap();
        let (tell, mut asking) = mpsc::channel(1);
        client.write_all(said).await.unwrap();
        if hangs_up {
            client.shutdown().await.unwrap();
        }
        hear(server, tell).await;
        let heard = asking.recv().await.is_some();
        let mut text = String::new();
        // With bytes that were not taken it is reset.
        let _ = client.read_to_string(&mut text).await;
        (text, heard)
    }

    #[tokio::test]
    async fn only_who_says_what_he_wants_is_heard() {
        let mut line = Vec::new();
        say_detach(&mut line).unwrap();
        assert_eq!(answer(&line, false).await, (String::new(), true));
        assert_eq!(answer(&line, true).await, (String::new(), false));
        for other in
            [&b""[..], b"\n", b"detach\n", b"NBDMAGICIHAVEOPT\n", &line[..line.len() - 1], &[b'x'; 999]]
        {
            assert_eq!(answer(other, true).await, (String::new(), false), "{other:?}");
        }
        let (text, heard) = answer(b"cheetah-control 2 detach\n", false).await;
        assert!(text.contains("another version") && !heard, "{text}");
    }
}
