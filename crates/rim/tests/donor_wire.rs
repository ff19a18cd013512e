//! A donor over the wire: its dirty map (which requests mark, what a flush does, what each client is told), and replies that
//! leave together.
#![allow(clippy::unwrap_used)]

use cheetah_core::limits::DIRTY_REGION_BYTES as REGION;
use cheetah_nbd::client::{Handshake, Reply, Step, Want};
use cheetah_nbd::{CmdFlags, Command, Errno, Mark, Negotiated, RequestHeader, StateFlags};
use cheetah_rim::arena::Arena;
use cheetah_rim::donor::{DonorServer, Gate};
use cheetah_rim::net::{Bound, Endpoint};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

struct Client {
    stream: TcpStream,
    session: Negotiated,
}

/// Chunks of one answer: context, and (length, dirty or hole) of each run.
type Status = Vec<(Option<u32>, Vec<(u64, bool)>)>;

fn donor() -> DonorServer {
    let arena = Arc::new(Arena::new(1).unwrap());
    let bound = Bound::new(&"127.0.0.1:0".parse().unwrap()).unwrap();
    DonorServer::start(bound, &arena, &Gate::alone(1)).unwrap()
}

impl Client {
    fn connect(donor: &DonorServer, base_allocation: bool, dirty: bool) -> Client {
        let Endpoint::Tcp(address) = donor.endpoint() else { panic!("bound to TCP") };
        let mut stream = TcpStream::connect(address).unwrap();
        let want = Want { export: String::new(), structured: true, base_allocation, dirty };
        let mut handshake = Handshake::new(want);
        let mut output = Vec::new();
        loop {
            handshake.take_output(&mut output);
            stream.write_all(&output).unwrap();
            output.clear();
            match handshake.poll() {
                Step::NeedInput => {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    assert_eq!(handshake.input(&byte), Ok(1));
                }
                Step::Ready(session) => return Client { stream, session },
                other => panic!("{other:?}"),
            }
        }
    }

    fn send(&mut self, command: Command, flags: CmdFlags, offset: u64, length: u64) {
        let length = u32::try_from(length).unwrap();
        let header = RequestHeader { flags, command, cookie: 1, offset, length };
        self.stream.write_all(&header.encode()).unwrap();
        if command == Command::Write {
            self.stream.write_all(&vec![7; length as usize]).unwrap();
        }
    }

    fn reply(&mut self) -> Reply {
        let mut bytes = Vec::new();
        loop {
            if let Some((reply, used)) = Reply::decode(&bytes).unwrap() {
                assert_eq!(used, bytes.len());
                return reply;
            }
            let need = Reply::need(&bytes).unwrap();
            let had = bytes.len();
            bytes.resize(need, 0);
            self.stream.read_exact(&mut bytes[had..]).unwrap();
        }
    }

    /// Takes the reply to a read of this range, chunk by chunk in their order.
    fn data(&mut self, cookie: u64, offset: u64, length: usize) -> Vec<u8> {
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

    fn done(&mut self, command: Command, offset: u64, length: u64) -> Option<Errno> {
        self.send(command, CmdFlags::EMPTY, offset, length);
        match self.reply() {
            Reply::None { .. } => None,
            Reply::Error { errno, .. } => Some(errno),
            other => panic!("{other:?}"),
        }
    }

    fn status(&mut self, flags: CmdFlags, offset: u64, length: u64) -> Status {
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
    fn dirty(&mut self, regions: u64) -> Vec<bool> {
        let status = self.status(CmdFlags::EMPTY, 0, regions * REGION);
        let [(context, runs)] = &status[..] else { panic!("{status:?}") };
        assert_eq!(*context, self.session.dirty);
        let regions = |(len, dirty): &(u64, bool)| std::iter::repeat_n(*dirty, (len / REGION) as usize);
        runs.iter().flat_map(regions).collect()
    }
}

#[test]
fn what_changes_data_marks_and_the_second_flush_forgets() {
    let donor = donor();
    let (mut writer, mut reader) =
        (Client::connect(&donor, true, false), Client::connect(&donor, false, true));
    assert_eq!(reader.dirty(6), [false; 6]);
    assert_eq!(writer.done(Command::Write, REGION - 1, 2), None);
    assert_eq!(writer.done(Command::Trim, 2 * REGION, REGION), None);
    assert_eq!(writer.done(Command::Flush, 0, 0), None);
    assert_eq!(writer.done(Command::WriteZeroes, 4 * REGION + 5, 1), None);
    assert_eq!(writer.done(Command::Cache, 5 * REGION, REGION), None);
    assert_eq!(reader.dirty(6), [true, true, true, false, true, false]);
    assert_eq!(reader.done(Command::Flush, 0, 0), None, "any connection that may write");
    assert_eq!(reader.dirty(6), [false, false, false, false, true, false]);
    assert_eq!(writer.done(Command::Flush, 0, 0), None);
    assert_eq!(reader.dirty(6), [false; 6]);
}

#[test]
fn what_is_refused_marks_nothing() {
    let donor = donor();
    let mut client = Client::connect(&donor, false, true);
    let end = cheetah_core::limits::EXTENT_BYTES;
    assert_eq!(client.done(Command::Write, end - 1, 2), Some(Errno::NoSpc));
    assert_eq!(client.done(Command::Trim, end - 1, 2), Some(Errno::Inval));
    assert_eq!(client.status(CmdFlags::EMPTY, 0, end), [(client.session.dirty, vec![(end, false)])]);
}

#[test]
fn each_client_is_answered_in_the_contexts_it_agreed_to() {
    let donor = donor();
    let (mut both, mut base) = (Client::connect(&donor, true, true), Client::connect(&donor, true, false));
    assert_eq!(both.done(Command::Write, 4096, 4096), None);
    let (holes, marks) = (
        (both.session.base_allocation, vec![(4096, true), (4096, false), (REGION, true)]),
        (both.session.dirty, vec![(REGION, true), (8192, false)]),
    );
    assert_eq!(both.status(CmdFlags::EMPTY, 0, REGION + 8192), [holes.clone(), marks]);
    assert_eq!(base.status(CmdFlags::EMPTY, 0, REGION + 8192), [holes]);
    let one = both.status(CmdFlags::REQ_ONE, 0, REGION + 8192);
    assert_eq!(one.iter().map(|(_, runs)| runs.len()).collect::<Vec<_>>(), [1, 1]);
    let mut none = Client::connect(&donor, false, false);
    assert_eq!(none.done(Command::BlockStatus, 0, 4096), Some(Errno::Inval));
}

#[test]
fn replies_that_leave_together_are_what_was_asked_for() {
    const HALF: usize = 2 << 20;
    let donor = donor();
    let mut client = Client::connect(&donor, false, false);
    // Data, nothing, data.
    let mut kept: Vec<u8> =
        (0..3 * HALF as u32 / 4).flat_map(|number| (number | 1 << 31).to_le_bytes()).collect();
    kept[HALF..2 * HALF].fill(0);
    for at in [0, 2 * HALF] {
        let length = HALF as u32;
        let header = RequestHeader {
            flags: CmdFlags::EMPTY,
            command: Command::Write,
            cookie: 0,
            offset: at as u64,
            length,
        };
        client.stream.write_all(&header.encode()).unwrap();
        client.stream.write_all(&kept[at..at + HALF]).unwrap();
        assert!(matches!(client.reply(), Reply::None { .. }));
    }
    // More than sockets hold, so that they are full in the middle of replies: lent and copied ones, and holes.
    let lens = [65_536, 65_536, 1 << 20, 4096, 100_001, 262_144, 512, 131_072, 65_535, 1 << 20, 65_537];
    let asked: Vec<(usize, usize)> = (0..200)
        .map(|number| (number * 77_824 % (3 * HALF - (1 << 20)), lens[number % lens.len()]))
        .collect();
    let mut headers = Vec::new();
    for (cookie, (offset, length)) in asked.iter().enumerate() {
        let (cookie, offset, length) = (cookie as u64, *offset as u64, *length as u32);
        let header = RequestHeader { flags: CmdFlags::EMPTY, command: Command::Read, cookie, offset, length };
        headers.extend(header.encode());
    }
    client.stream.write_all(&headers).unwrap();
    for (cookie, (offset, length)) in asked.into_iter().enumerate() {
        let data = client.data(cookie as u64, offset as u64, length);
        assert!(data == kept[offset..offset + length], "request {cookie}: {offset}+{length}");
    }
}

#[test]
fn a_client_that_numbers_its_writes_is_told_which_are_not_known_to_be_complete() {
    let donor = donor();
    let mut writer = Client::connect(&donor, false, true);
    let mark = |number, complete| Mark { number, targets: 0b11, complete }.header().encode();
    let mut write = |number, complete, offset| {
        writer.stream.write_all(&mark(number, complete)).unwrap();
        assert_eq!(writer.done(Command::Write, offset, 4096), None);
    };
    write(7, 0, 0);
    write(8, 0, REGION);
    write(9, 7, 2 * REGION);
    // A write that its client does not finish.
    writer.stream.write_all(&mark(10, 7)).unwrap();
    let header = RequestHeader {
        flags: CmdFlags::EMPTY,
        command: Command::Write,
        cookie: 1,
        offset: 4096,
        length: 4096,
    };
    writer.stream.write_all(&header.encode()).unwrap();
    writer.stream.write_all(&[7; 100]).unwrap();
    drop(writer);
    let mut next = Client::connect(&donor, false, true);
    next.stream.write_all(&mark(0, 0)).unwrap();
    let listed = (0..1_000).find_map(|_| {
        next.send(Command::BlockStatus, CmdFlags::EMPTY, 0, 4 * REGION);
        let Reply::Ledger { complete, entries, .. } = next.reply() else { panic!("no ledger") };
        let Reply::BlockStatus { descriptors, .. } = next.reply() else { panic!("no status") };
        assert!(descriptors.iter().all(|run| run.flags == StateFlags::EMPTY), "all have numbers");
        let listed: Vec<_> = entries.iter().map(|entry| (entry.number, entry.from, entry.landed)).collect();
        // The donor may not have read all of it yet.
        (listed.len() == 3).then_some((complete, listed))
    });
    let listed = listed.expect("the last write was noted");
    assert_eq!(listed, (7, vec![(8, REGION, true), (9, 2 * REGION, true), (10, 4096, false)]));
    // Whoever gives no numbers is told of all that was written lately, as before.
    let mut reader = Client::connect(&donor, false, true);
    assert_eq!(reader.dirty(4), [true, true, true, false]);
}
