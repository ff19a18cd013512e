//! A bare export to compare with: an NBD server whose reads and writes raw TCP servers answer, and that does
//! no more.
//!
//! Owns: one client at a time, and its requests on their way. Never: redundancy, checksums, a cache, a
//! request beside reads and writes, an error of a server (it ends the connection), reads and large writes
//! together (both ends would wait). Requests that come together and lie one behind the other are one for a
//! server, and large ones leave as pages, as Cheetah does. Replies to the client are copied: nobody says when
//! it has read pages that it was lent, and their buffer may be used anew. Invariant: a server answers in the
//! order in which it was asked (`ping`).
//! Called by: `local`, as a worker. Tests: below.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;

use cheetah_nbd::server::{Handshake, Step, reply};
use cheetah_nbd::{Command, ExportInfo, RequestHeader, TransmissionFlags};
use cheetah_rim::buffer::Buffer;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::json;

use crate::bench::bare::{self, Lender, Room};
use crate::bench::ping::{self, Exchange, QUESTION_BYTES, REPLY_BYTES};
use crate::bench::worker::{Worker, orders};

/// The largest request, also of several. So much one behind the other is with one server.
const LARGE_BYTES: usize = 1 << 20;
/// Of requests that are taken before they are handed on.
const BATCH_BYTES: usize = 512 << 10;
/// Replies that are received together.
const TOGETHER_MAX: usize = 64;

/// A worker that exports so many MiB of servers at these addresses.
pub fn serve(address: &str, mib: u64, servers: &[&str]) {
    let bound = listen(address, mib << 20, servers);
    orders(&json!({"address": bound}), |_| Ok(json!({})));
}

fn listen(address: &str, size: u64, servers: &[&str]) -> String {
    let servers: Vec<String> = servers.iter().map(|address| (*address).to_owned()).collect();
    ping::listen(address, move |near| Export::new(near, size, &servers)?.run())
}

/// Where a worker exports.
#[track_caller]
pub(super) fn uri(worker: &Worker) -> String {
    format!("nbd://{}", ping::address(worker))
}

/// A request, and the buffer of what it reads or writes; behind that its question, which is lent until it was
/// answered.
struct Request {
    header: RequestHeader,
    buffer: Buffer,
}

impl Request {
    fn is_read(&self) -> bool {
        self.header.command == Command::Read
    }

    fn len(&self) -> usize {
        self.header.length as usize
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len()]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len();
        &mut self.buffer[..len]
    }
}

/// Requests of one kind that lie one behind the other: one at least.
struct Group(Vec<Request>);

impl Group {
    fn is_read(&self) -> bool {
        self.0[0].is_read()
    }

    fn len(&self) -> usize {
        self.0.iter().map(Request::len).sum()
    }

    fn takes(&self, next: &Request) -> bool {
        let len = self.len();
        let goes_on = self.0[0].header.offset + len as u64 == next.header.offset;
        goes_on && self.is_read() == next.is_read() && len + next.len() <= LARGE_BYTES
    }

    fn exchange(&self) -> Exchange {
        let (sent, body) = if self.is_read() { (0, self.len()) } else { (self.len(), 0) };
        Exchange { sent, returned: REPLY_BYTES + body }
    }

    /// What is sent of it.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let question = &self.0[0].buffer[LARGE_BYTES..][..QUESTION_BYTES];
        let written = self.0.iter().filter(|request| !request.is_read());
        std::iter::once(question).chain(written.map(Request::bytes))
    }
}

/// A server, and what it owes an answer.
struct Far {
    stream: TcpStream,
    owed: VecDeque<Group>,
    /// The last so many of them were not sent yet.
    new: usize,
    /// Bytes of its first reply that have come.
    came: usize,
}

impl Far {
    fn connect(address: &str) -> Self {
        Self { stream: ping::connect(address), owed: VecDeque::new(), new: 0, came: 0 }
    }

    fn add(&mut self, request: Request) {
        match self.owed.back_mut().filter(|last| self.new > 0 && last.takes(&request)) {
            Some(last) => last.0.push(request),
            None => {
                self.owed.push_back(Group(vec![request]));
                self.new += 1;
            }
        }
    }

    fn send(&mut self, lender: &Lender) -> io::Result<()> {
        let from = self.owed.len() - self.new;
        for group in self.owed.range_mut(from..) {
            let head = group.exchange().head();
            group.0[0].buffer[LARGE_BYTES..][..QUESTION_BYTES].copy_from_slice(&head);
        }
        lender.send(self.owed.range(from..).flat_map(Group::pieces), &self.stream)?;
        self.new = 0;
        Ok(())
    }

    /// Takes what came where it belongs; requests that were answered come back.
    fn receive(&mut self, answered: &mut Vec<Request>) -> io::Result<()> {
        let mut heads = [[0; REPLY_BYTES]; TOGETHER_MAX];
        let pieces = heads.iter_mut().zip(&mut self.owed).flat_map(|(head, group)| {
            let read = group.0.iter_mut().filter(|request| request.is_read());
            std::iter::once(&mut head[..]).chain(read.map(Request::bytes_mut))
        });
        self.came += bare::receive_into(pieces, self.came, &self.stream)?;
        while self.owed.front().is_some_and(|group| group.exchange().returned <= self.came)
            && let Some(group) = self.owed.pop_front()
        {
            self.came -= group.exchange().returned;
            answered.extend(group.0);
        }
        Ok(())
    }
}

struct Export {
    near: TcpStream,
    room: Room,
    far: Vec<Far>,
    lender: Lender,
    free: Vec<Buffer>,
    answered: Vec<Request>,
}

impl Export {
    /// Answers the client's handshake.
    fn new(near: TcpStream, size: u64, servers: &[String]) -> io::Result<Self> {
        let mut export = Self {
            near,
            room: Room::new(),
            far: servers.iter().map(|address| Far::connect(address)).collect(),
            lender: Lender::new()?,
            free: Vec::new(),
            answered: Vec::new(),
        };
        let mut info = ExportInfo::new(size, TransmissionFlags::HAS_FLAGS);
        info.block_max = LARGE_BYTES as u32;
        let (mut handshake, mut output) = (Handshake::new(), Vec::new());
        loop {
            handshake.take_output(&mut output);
            export.near.write_all(&output)?;
            output.clear();
            match handshake.poll() {
                Step::NeedInput => {
                    let taken = handshake.input(export.room.all()).map_err(wrong)?;
                    export.room.take(taken);
                    if taken == 0 {
                        export.room.receive_behind(&mut [], &export.near)?;
                    }
                }
                Step::Lookup { .. } => handshake.answer_lookup(Ok(info.clone())),
                Step::List => handshake.answer_list(Ok(&[])),
                Step::Ready(agreed) if agreed.structured_replies => return Ok(export),
                other => return Err(wrong(other)),
            }
        }
    }

    /// Until the client goes.
    fn run(&mut self) -> io::Result<()> {
        loop {
            let came = self.wait()?;
            if (came[0] || self.room.has_head()) && !self.take_requests()? {
                return Ok(());
            }
            for (far, came) in self.far.iter_mut().zip(&came[1..]) {
                far.send(&self.lender)?;
                if *came {
                    far.receive(&mut self.answered)?;
                }
            }
            self.reply()?;
        }
    }

    /// Until something comes, unless a request is here already; who sent, the client first.
    fn wait(&self) -> io::Result<Vec<bool>> {
        let streams = std::iter::once(&self.near).chain(self.far.iter().map(|far| &far.stream));
        let look = |stream| PollFd::from_borrowed_fd(AsFd::as_fd(stream), PollFlags::IN);
        let at_once = Timespec::default();
        bare::wait(streams.map(look), self.room.has_head().then_some(&at_once))
    }

    /// Takes the requests that are there, until they are enough for now. False when the client says that it
    /// goes.
    fn take_requests(&mut self) -> io::Result<bool> {
        if !self.room.has_head() {
            self.room.receive_behind(&mut [], &self.near)?;
        }
        let mut taken = 0;
        while self.room.has_head() && taken < BATCH_BYTES {
            let head = self.room.take(RequestHeader::BYTES).try_into().expect("a head");
            let header = RequestHeader::decode(head).map_err(wrong)?;
            let len = header.length as usize;
            match header.command {
                Command::Read | Command::Write if len > 0 && len <= LARGE_BYTES => {}
                Command::Disc => return Ok(false),
                _ => return Err(wrong(header)),
            }
            let mut buffer = match self.free.pop() {
                Some(buffer) => buffer,
                None => Buffer::standing(LARGE_BYTES + QUESTION_BYTES)?,
            };
            if header.command == Command::Write {
                let came = self.room.begin(&mut buffer[..len]);
                if came < len {
                    self.room.receive_behind(&mut buffer[came..len], &self.near)?;
                }
            }
            let count = self.far.len() as u64;
            self.far[(header.offset / LARGE_BYTES as u64 % count) as usize].add(Request { header, buffer });
            taken += len;
        }
        Ok(true)
    }

    fn reply(&mut self) -> io::Result<()> {
        let head = |request: &Request| match request.header {
            RequestHeader { command: Command::Read, cookie, offset, length, .. } => {
                reply::offset_data(cookie, true, offset, length).to_vec()
            }
            RequestHeader { cookie, .. } => reply::none_done(cookie).to_vec(),
        };
        let heads: Vec<Vec<u8>> = self.answered.iter().map(head).collect();
        let pieces = heads.iter().zip(&self.answered).flat_map(|(head, request)| {
            let read: &[u8] = if request.is_read() { request.bytes() } else { &[] };
            [&head[..], read]
        });
        bare::copy(pieces, &self.near)?;
        self.free.extend(self.answered.drain(..).map(|request| request.buffer));
        Ok(())
    }
}

fn wrong(what: impl std::fmt::Debug) -> io::Error {
    io::Error::other(format!("not for a bare export: {what:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Connection, Pattern};
    use crate::tools;

    fn export() -> String {
        let servers = [bare::test_server(), bare::test_server()];
        listen("127.0.0.1:0", 16 << 20, &servers.each_ref().map(String::as_str))
    }

    #[test]
    fn what_a_client_of_others_reads_and_writes_goes_through_the_servers() {
        let uri = format!("nbd://{}", export());
        // The servers keep nothing of where it was: every byte of their memory is a seven then.
        let commands = ["-f", "raw", "-c", "write -P 7 0 8M", "-c", "read -P 7 1234567 3M", &uri];
        let said = tools::run("qemu-io", commands);
        assert!(said.contains("wrote 8388608/8388608") && said.contains("read 3145728/3145728"), "{said}");
        assert!(!said.contains("Pattern verification failed"), "{said}");
    }

    #[test]
    fn requests_of_all_sizes_are_answered() {
        let address = export().parse().expect("an address");
        let mut connection = Connection::open(address, "", "reno", true).expect("a connection");
        for pattern in [Pattern::SequentialWrite, Pattern::SequentialRead, Pattern::RandomRead] {
            for (block, depth) in [(4096, 64), (64 << 10, 16), (1 << 20, 16)] {
                let count = 2 * depth as u64;
                let done = connection.run(pattern, block, depth, |asked| asked < count).expect("answers");
                assert!(done.requests >= count && done.bytes == done.requests * block as u64);
            }
        }
    }

    #[test]
    fn requests_one_behind_the_other_are_one_for_a_server() {
        let request = |command, offset, length| {
            let header = RequestHeader { flags: Default::default(), command, cookie: 1, offset, length };
            Request { header, buffer: Buffer::standing(LARGE_BYTES + QUESTION_BYTES).expect("memory") }
        };
        let server = bare::test_server();
        let mut far = Far::connect(&server);
        far.add(request(Command::Write, 0, 4096));
        far.add(request(Command::Write, 4096, 4096));
        far.add(request(Command::Write, 12_288, 4096));
        far.add(request(Command::Read, 16_384, 4096));
        let shape = |far: &Far| far.owed.iter().map(|group| (group.0.len(), group.len())).collect::<Vec<_>>();
        assert_eq!(shape(&far), [(2, 8192), (1, 4096), (1, 4096)]);
        far.send(&Lender::new().expect("a pipe")).expect("the server");
        far.add(request(Command::Read, 20_480, 4096));
        assert_eq!((shape(&far).len(), far.new), (4, 1), "what was sent grows no more");
    }
}
