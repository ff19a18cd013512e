//! A tool that reads an export, and tries to write to it.
//!
//! Owns one connection to an NBD server on a Unix socket. Never: retries, or what an answer means for a
//! requirement. Invariant: each request is answered before the next is sent. Called by `reading`, `blocking`,
//! `acquiring` and `harming`. Tests: `lab/tests/validate.rs`.

use super::image::{Answers, Hasher};
use cheetah_nbd::client::{Handshake, Reply, Step, Want};
use cheetah_nbd::{CmdFlags, Command, Errno, Negotiated, RequestHeader, TransmissionFlags};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A request of an attachment ends by its deadline of 30 s.
const PATIENCE: Duration = Duration::from_secs(60);
const PIECE_BYTES: u32 = 1 << 20;

pub struct Export {
    stream: UnixStream,
    session: Negotiated,
    input: Vec<u8>,
    cookie: u64,
}

impl Export {
    pub fn connect(socket: &Path) -> io::Result<Export> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let want = Want {
            export: String::new(),
            structured: false,
            base_allocation: false,
            dirty: false,
            context: false,
            auth: false,
        };
        let (mut handshake, mut input, mut output) = (Handshake::new(want), Vec::new(), Vec::new());
        loop {
            handshake.take_output(&mut output);
            stream.write_all(&output)?;
            output.clear();
            match handshake.poll() {
                Step::NeedInput => {}
                Step::Ready(session) => return Ok(Export { stream, session, input, cookie: 0 }),
                other => return Err(io::Error::other(format!("the handshake ends with {other:?}"))),
            }
            if input.is_empty() {
                receive(&mut stream, &mut input)?;
            }
            let used = handshake.input(&input).map_err(io::Error::other)?;
            input.drain(..used);
        }
    }

    pub fn bytes(&self) -> u64 {
        self.session.info.size
    }

    pub fn is_read_only(&self) -> bool {
        self.session.info.flags.contains(TransmissionFlags::READ_ONLY)
    }

    /// What stands there, or the error that was answered.
    pub fn read(&mut self, offset: u64, length: u32) -> io::Result<Result<Vec<u8>, Errno>> {
        if let Some(errno) = self.ask(Command::Read, offset, length)? {
            return Ok(Err(errno));
        }
        while self.input.len() < length as usize {
            receive(&mut self.stream, &mut self.input)?;
        }
        Ok(Ok(self.input.drain(..length as usize).collect()))
    }

    /// A command that would change what stands there. None: it was acknowledged.
    pub fn change(&mut self, command: Command, offset: u64, length: u32) -> io::Result<Option<Errno>> {
        self.ask(command, offset, length)
    }

    /// The hashes of all of it; `Err`: where it cannot be read.
    pub fn hash(&mut self) -> io::Result<Result<Answers, u64>> {
        let mut hasher = Hasher::new();
        let (mut at, end) = (0, self.bytes());
        while at < end {
            let length = u32::try_from(end - at).unwrap_or(u32::MAX).min(PIECE_BYTES);
            match self.read(at, length)? {
                Ok(bytes) => hasher.feed(&bytes),
                Err(_) => return Ok(Err(at)),
            }
            at += u64::from(length);
        }
        Ok(Ok(hasher.finish()))
    }

    fn ask(&mut self, command: Command, offset: u64, length: u32) -> io::Result<Option<Errno>> {
        self.cookie += 1;
        let header = RequestHeader { flags: CmdFlags::EMPTY, command, cookie: self.cookie, offset, length };
        self.stream.write_all(&header.encode())?;
        if command == Command::Write {
            self.stream.write_all(&vec![0xa5; length as usize])?;
        }
        loop {
            match Reply::decode(&self.input).map_err(io::Error::other)? {
                Some((Reply::Simple { cookie, error }, used)) if cookie == self.cookie => {
                    self.input.drain(..used);
                    return Ok(error);
                }
                Some((other, _)) => return Err(io::Error::other(format!("it answers {other:?}"))),
                None => receive(&mut self.stream, &mut self.input)?,
            }
        }
    }
}

fn receive(stream: &mut UnixStream, input: &mut Vec<u8>) -> io::Result<()> {
    let mut room = [0; 64 << 10];
    match stream.read(&mut room)? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the export closed the connection")),
        count => {
            input.extend_from_slice(&room[..count]);
            Ok(())
        }
    }
}
