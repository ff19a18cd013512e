//! A bare NBD client for the tests of a donor over the wire: it sends what it is told and reads what comes.
//! Owns: one connection. Never: a check of its own before it sends.
#![allow(dead_code, clippy::unwrap_used)]

use cheetah_core::limits::DIRTY_REGION_BYTES as REGION;
use cheetah_nbd::client::{Error, Handshake, Reply, Step, Want};
use cheetah_nbd::{CmdFlags, Command, Errno, Negotiated, RequestHeader, StateFlags};
use cheetah_rim::donor::DonorServer;
use cheetah_rim::net::Endpoint;
use std::io::{Read, Write};
use std::net::TcpStream;

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) session: Negotiated,
}

/// Chunks of one answer: context, and (length, dirty or hole) of each run.
pub(crate) type Status = Vec<(Option<u32>, Vec<(u64, bool)>)>;

/// A handshake to its last step.
pub(crate) fn shake(donor: &DonorServer, mut handshake: Handshake) -> (TcpStream, Step) {
    let Endpoint::Tcp(address) = donor.endpoint() else { panic!("bound to TCP") };
    let mut stream = TcpStream::connect(address).unwrap();
    let mut output = Vec::new();
    loop {
        handshake.take_output(&mut output);
        stream.write_all(&output).unwrap();
        output.clear();
        match handshake.poll() {
            Step::NeedInput => {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                // What was broken is told by the next step.
                if let Ok(used) = handshake.input(&byte) {
                    assert_eq!(used, 1);
                }
            }
            step => return (stream, step),
        }
    }
}

impl Client {
    /// The default export of a donor without a pool.
    pub(crate) fn connect(donor: &DonorServer, base_allocation: bool, dirty: bool) -> Client {
        let want = Want {
            export: String::new(),
            structured: true,
            base_allocation,
            dirty,
            context: false,
            auth: false,
        };
        Client::open(donor, want).unwrap()
    }

    /// # Errors
    /// What the donor says.
    pub(crate) fn open(donor: &DonorServer, want: Want) -> Result<Client, Error> {
        match shake(donor, Handshake::new(want)) {
            (stream, Step::Ready(session)) => Ok(Client { stream, session }),
            (_, Step::Failed(error)) => Err(error),
            (_, other) => panic!("{other:?}"),
        }
    }

    pub(crate) fn send(&mut self, command: Command, flags: CmdFlags, offset: u64, length: u64) {
        let length = u32::try_from(length).unwrap();
        let header = RequestHeader { flags, command, cookie: 1, offset, length };
        self.stream.write_all(&header.encode_in(self.session.is_sealed())).unwrap();
        if command == Command::Write {
            self.stream.write_all(&vec![7; header.payload_bytes() as usize]).unwrap();
        }
    }

    pub(crate) fn reply(&mut self) -> Reply {
        let mut bytes = Vec::new();
        loop {
            if let Some((reply, used)) = Reply::decode_in(&bytes, self.session.is_sealed()).unwrap() {
                assert_eq!(used, bytes.len());
                return reply;
            }
            let need = Reply::need_in(&bytes, self.session.is_sealed()).unwrap();
            let had = bytes.len();
            bytes.resize(need, 0);
            self.stream.read_exact(&mut bytes[had..]).unwrap();
        }
    }

    /// Takes the reply to a read of this range, chunk by chunk in their order.
    pub(crate) fn data(&mut self, cookie: u64, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length);
        loop {
            let here = offset + bytes.len() as u64;
            let reply = self.reply();
            let (of, is_done, at, count) = match reply {
                Reply::OffsetData { cookie, done, offset, data_bytes } => (cookie, done, offset, data_bytes),
                Reply::OffsetHole { cookie, done, offset, hole_bytes } => (cookie, done, offset, hole_bytes),
                ref other => panic!("{other:?}"),
            };
            assert_eq!((of, at), (cookie, here), "{reply:?}");
            let had = bytes.len();
            bytes.resize(had + count as usize, 0);
            if matches!(reply, Reply::OffsetData { .. }) {
                self.stream.read_exact(&mut bytes[had..]).unwrap();
            }
            if is_done {
                assert_eq!(bytes.len(), length);
                return bytes;
            }
        }
    }

    pub(crate) fn done(&mut self, command: Command, offset: u64, length: u64) -> Option<Errno> {
        self.send(command, CmdFlags::EMPTY, offset, length);
        match self.reply() {
            Reply::None { .. } => None,
            Reply::Error { errno, .. } => Some(errno),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn status(&mut self, flags: CmdFlags, offset: u64, length: u64) -> Status {
        self.send(Command::BlockStatus, flags, offset, length);
        let mut chunks = Vec::new();
        loop {
            let Reply::BlockStatus { done, context, descriptors, .. } = self.reply() else { panic!() };
            let run =
                |d: &cheetah_nbd::Descriptor| (u64::from(d.length), d.flags.contains(StateFlags::DIRTY));
            chunks.push((Some(context), descriptors.iter().map(run).collect()));
            if done {
                return chunks;
            }
        }
    }

    /// What it says of the first regions in `cheetah:dirty`.
    pub(crate) fn dirty(&mut self, regions: u64) -> Vec<bool> {
        let status = self.status(CmdFlags::EMPTY, 0, regions * REGION);
        let [(context, runs)] = &status[..] else { panic!("{status:?}") };
        assert_eq!(*context, self.session.dirty);
        let regions = |(len, dirty): &(u64, bool)| std::iter::repeat_n(*dirty, (len / REGION) as usize);
        runs.iter().flat_map(regions).collect()
    }
}
