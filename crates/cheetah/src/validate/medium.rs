//! A medium to load from: the image, served by NBD on a Unix socket of this user's, with a sector that cannot
//! be read, and with a place where it waits.
//!
//! Owns the server and the count of the commands that it got. Never: more of the protocol than a source asks
//! for (`cheetah_nbd` has that). Invariant: what it got is counted before it is answered; nothing that is
//! written to it is kept. Called by `acquiring`. Tests: `lab/tests/validate.rs`.

use super::image::Image;
use cheetah_nbd::server::reply;
use cheetah_nbd::server::transmission::{Step as Got, Transmission};
use cheetah_nbd::server::{Handshake, Step};
use cheetah_nbd::{
    Command, Descriptor, Errno, ExportInfo, Negotiated, RequestHeader, StateFlags, TransmissionFlags,
};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How it behaves.
#[derive(Clone, Debug, Default)]
pub struct Habits {
    /// What it does not give.
    pub bad: Option<Range<u64>>,
    /// Reads of this wait until it is let go. Its end is not: who opens an image looks there first.
    pub waits_in: Option<Range<u64>>,
}

struct Inside {
    image: Image,
    habits: Habits,
    let_go: Mutex<bool>,
    changed: Condvar,
    got: Mutex<BTreeMap<String, u64>>,
    has_ended: AtomicBool,
}

/// A server, until this is dropped.
pub struct Medium {
    inside: Arc<Inside>,
    socket: PathBuf,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Medium {
    /// `socket` is made.
    pub fn serve(image: Image, habits: Habits, socket: &Path) -> io::Result<Medium> {
        let listener = UnixListener::bind(socket)?;
        let (let_go, changed, got) = (Mutex::default(), Condvar::new(), Mutex::default());
        let has_ended = AtomicBool::new(false);
        let inside = Arc::new(Inside { image, habits, let_go, changed, got, has_ended });
        let serving = inside.clone();
        std::thread::Builder::new().name("medium".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                if serving.has_ended.load(Ordering::Acquire) {
                    return;
                }
                let inside = serving.clone();
                // Who gets no thread gets no medium, and says so.
                let _ = std::thread::Builder::new().name("medium".to_owned()).spawn(move || {
                    // A client that goes is no fault.
                    let _ = inside.serve(stream);
                });
            }
        })?;
        Ok(Medium { inside, socket: socket.to_path_buf() })
    }

    /// As `load` takes it.
    pub fn uri(&self) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
        let escaped = |byte: u8| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        };
        let path: String = self.socket.as_os_str().as_encoded_bytes().iter().copied().map(escaped).collect();
        format!("nbd+unix:///disk?socket={path}")
    }

    /// Nothing waits any more.
    pub fn let_go(&self) {
        *locked(&self.inside.let_go) = true;
        self.inside.changed.notify_all();
    }

    /// How often each command came.
    pub fn got(&self) -> BTreeMap<String, u64> {
        locked(&self.inside.got).clone()
    }

    /// Commands that would have changed it.
    pub fn got_writes(&self) -> u64 {
        let reads = ["Read", "BlockStatus", "Disc", "Flush", "Cache"];
        self.got()
            .into_iter()
            .filter(|(name, _)| !reads.contains(&name.as_str()))
            .map(|(_, count)| count)
            .sum()
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        self.inside.has_ended.store(true, Ordering::Release);
        self.let_go();
        // So that its thread looks.
        let _ = UnixStream::connect(&self.socket);
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Inside {
    fn serve(self: &Arc<Inside>, mut stream: UnixStream) -> io::Result<()> {
        let Some((session, mut input)) = self.shake_hands(&mut stream)? else { return Ok(()) };
        let answers = Arc::new(Mutex::new(stream.try_clone()?));
        let mut transmission = Transmission::new(session.clone(), u32::MAX);
        let mut room = vec![0; 64 << 10];
        loop {
            let mut rest = &input[..];
            let mut has_ended = false;
            while let Some(step) = transmission.next(&mut rest).map_err(io::Error::other)? {
                match step {
                    Got::Request { header, .. } if self.waits(&header) => {
                        let (inside, session, answers) = (self.clone(), session.clone(), answers.clone());
                        // What is asked behind it is answered before it.
                        std::thread::Builder::new().name("medium".to_owned()).spawn(move || {
                            inside.wait();
                            // A client that has gone is no fault.
                            let _ = locked(&answers).write_all(&inside.answer(&session, &header));
                        })?;
                    }
                    Got::Request { header, .. } => {
                        locked(&answers).write_all(&self.answer(&session, &header))?;
                    }
                    Got::Payload { .. } | Got::Whole(_) => {}
                    Got::End => {
                        has_ended = true;
                        break;
                    }
                }
            }
            let left = rest.len();
            input.drain(..input.len() - left);
            if has_ended {
                return Ok(());
            }
            match stream.read(&mut room)? {
                0 => return Ok(()),
                count => input.extend_from_slice(&room[..count]),
            }
        }
    }

    fn shake_hands(&self, stream: &mut UnixStream) -> io::Result<Option<(Negotiated, Vec<u8>)>> {
        let (mut handshake, mut input, mut output) = (Handshake::new(), Vec::new(), Vec::new());
        let mut room = [0; 4096];
        loop {
            handshake.take_output(&mut output);
            stream.write_all(&output)?;
            output.clear();
            match handshake.poll() {
                // Writable for who asks it, so that a write that comes is seen.
                Step::Lookup { .. } => {
                    let flags = TransmissionFlags::HAS_FLAGS
                        | TransmissionFlags::SEND_FLUSH
                        | TransmissionFlags::SEND_TRIM
                        | TransmissionFlags::SEND_WRITE_ZEROES;
                    handshake.answer_lookup(Ok(ExportInfo::new(self.image.bytes, flags)));
                }
                Step::List => handshake.answer_list(Ok(&[])),
                Step::Ready(session) => return Ok(Some((session, input))),
                Step::StartTls | Step::Close(_) => return Ok(None),
                Step::NeedInput => {
                    if input.is_empty() {
                        match stream.read(&mut room)? {
                            0 => return Ok(None),
                            count => input.extend_from_slice(&room[..count]),
                        }
                    }
                    let used = handshake.input(&input).map_err(io::Error::other)?;
                    input.drain(..used);
                }
            }
        }
    }

    fn answer(&self, session: &Negotiated, header: &RequestHeader) -> Vec<u8> {
        let RequestHeader { command, cookie, offset, length, .. } = *header;
        *locked(&self.got).entry(format!("{command:?}")).or_default() += 1;
        let mut out = Vec::new();
        let fails = |errno, out: &mut Vec<u8>| match session.structured_replies {
            true => reply::error(cookie, true, errno, "the sector cannot be read", out),
            false => out.extend(reply::simple(cookie, Some(errno))),
        };
        match (command, session.base_allocation) {
            (Command::Read, _) if meets(&self.habits.bad, header) => fails(Errno::Io, &mut out),
            (Command::Read, _) => {
                match session.structured_replies {
                    true => out.extend(reply::offset_data(cookie, true, offset, length)),
                    false => out.extend(reply::simple(cookie, None)),
                }
                out.extend(self.image.read(offset, length.into()));
            }
            (Command::BlockStatus, Some(context)) => {
                let descriptor = Descriptor { length, flags: StateFlags::EMPTY };
                reply::block_status(cookie, true, context, &[descriptor], &mut out);
            }
            (Command::Flush | Command::Write | Command::Trim | Command::WriteZeroes, _) => {
                match session.structured_replies {
                    true => out.extend(reply::none_done(cookie)),
                    false => out.extend(reply::simple(cookie, None)),
                }
            }
            _ => fails(Errno::Inval, &mut out),
        }
        out
    }

    fn waits(&self, header: &RequestHeader) -> bool {
        header.command == Command::Read && meets(&self.habits.waits_in, header) && !*locked(&self.let_go)
    }

    /// Until it is let go.
    fn wait(&self) {
        let mut let_go = locked(&self.let_go);
        while !*let_go {
            let_go = self.changed.wait(let_go).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn meets(range: &Option<Range<u64>>, header: &RequestHeader) -> bool {
    let end = header.offset + u64::from(header.length);
    range.as_ref().is_some_and(|range| header.offset < range.end && range.start < end)
}
