//! Raw TCP to several servers that keep what they are given, by every means that Cheetah has to be fast and
//! with no other work: requests and answers are joined, large ones leave as pages of memory, and land where
//! they belong.
//!
//! Owns: the servers and the client, each a process of its own, and the pipes of what they lend. Never: a
//! protocol beyond sizes, a look at the bytes, a second client of a server at a time. Why: a bar that this
//! misses asks for more than the machine has. Invariants: a question begins with how many bytes follow its
//! head, and how many are wanted back; a server answers in the order in which it was asked, and goes round
//! its memory; memory that was lent always holds the same bytes. Called by: `worker`; its servers also by
//! `bare_file` and `bare_export`. Tests: below.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use cheetah_rim::buffer::Buffer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags};
use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags};
use serde_json::json;

use crate::bench::ping::{self, Exchange, QUESTION_BYTES, REPLY_BYTES};
use crate::bench::worker::{Load, Server, Worker, orders, take_orders};
use crate::load::Done;

/// What is lent instead of copied; and what is received where it belongs, not with what follows it.
const LARGE_BYTES: usize = 32 << 10;
/// For questions that are received together.
const ROOM_BYTES: usize = 64 << 10;
/// The same behind a large write, of which the beginning may come with its head.
const SMALL_ROOM_BYTES: usize = 4 << 10;
const PIPE_BYTES: usize = 1 << 20;
/// Replies that are received together.
const TOGETHER_MAX: usize = 32;
/// Heads and bodies that are.
const PIECES_MAX: usize = 2 * TOGETHER_MAX;
const FROM_CLIENT: u8 = 8;
const FROM_SERVER: u8 = 9;
/// Of a reply; a static, for it is lent.
static HEAD: [u8; REPLY_BYTES] = [7; REPLY_BYTES];

/// A pipe through which a socket gets pages, which it sends from until its peer has them.
#[derive(Debug)]
pub(super) struct Lender {
    from: OwnedFd,
    to: OwnedFd,
}

impl Lender {
    pub(super) fn new() -> io::Result<Self> {
        let (from, to) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        rustix::pipe::fcntl_setpipe_size(&to, PIPE_BYTES)?;
        Ok(Self { from, to })
    }

    /// Sends all of it: as pages where it is large, otherwise by a copy.
    pub(super) fn send<'a>(
        &self,
        pieces: impl Iterator<Item = &'a [u8]>,
        mut socket: &TcpStream,
    ) -> io::Result<()> {
        send(pieces, |pieces| {
            let large = pieces.iter().any(|piece| piece.len() >= LARGE_BYTES);
            if large { self.lend(pieces, socket) } else { socket.write_vectored(pieces) }
        })
    }

    fn lend(&self, pieces: &[IoSlice<'_>], socket: &TcpStream) -> io::Result<usize> {
        // SAFETY: both are an iovec by their definition; the pieces are borrowed, and read only.
        let filled = unsafe {
            let pieces = std::slice::from_raw_parts(pieces.as_ptr().cast::<IoSliceRaw<'_>>(), pieces.len());
            rustix::pipe::vmsplice(&self.to, pieces, SpliceFlags::NONBLOCK)?
        };
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        let more = if filled < all { SpliceFlags::MORE } else { SpliceFlags::empty() };
        let mut held = filled;
        while held > 0 {
            match rustix::pipe::splice(&self.from, None, socket, None, held, more)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                passed => held -= passed,
            }
        }
        Ok(filled)
    }
}

/// Sends all of it by a copy.
pub(super) fn copy<'a>(pieces: impl Iterator<Item = &'a [u8]>, mut socket: &TcpStream) -> io::Result<()> {
    send(pieces, |pieces| socket.write_vectored(pieces))
}

fn send<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    mut some: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
) -> io::Result<()> {
    let mut pieces: Vec<IoSlice<'_>> = pieces.filter(|piece| !piece.is_empty()).map(IoSlice::new).collect();
    let mut pieces = &mut pieces[..];
    while !pieces.is_empty() {
        match some(pieces)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => IoSlice::advance_slices(&mut pieces, sent),
        }
    }
    Ok(())
}

/// Receives what is there into these pieces, of which so many bytes came before; how many more did now.
pub(super) fn receive_into<'a>(
    pieces: impl Iterator<Item = &'a mut [u8]>,
    before: usize,
    stream: &TcpStream,
) -> io::Result<usize> {
    let mut skip = before;
    let missing = pieces.filter_map(|piece| {
        let from = skip.min(piece.len());
        skip -= from;
        (from < piece.len()).then(|| IoSliceMut::new(&mut piece[from..]))
    });
    let mut missing: Vec<IoSliceMut<'_>> = missing.take(PIECES_MAX).collect();
    let mut control = RecvAncillaryBuffer::default();
    match rustix::net::recvmsg(stream, &mut missing, &mut control, RecvFlags::DONTWAIT) {
        Ok(got) if got.bytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(got) => Ok(got.bytes),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits, so long at most, until there is something for one of these; for which of them.
pub(super) fn wait<'a>(
    looks: impl Iterator<Item = PollFd<'a>>,
    longest: Option<&Timespec>,
) -> io::Result<Vec<bool>> {
    let mut looks: Vec<PollFd<'_>> = looks.collect();
    match poll(&mut looks, longest) {
        Ok(_) | Err(Errno::INTR) => Ok(looks.iter().map(|look| !look.revents().is_empty()).collect()),
        Err(errno) => Err(errno.into()),
    }
}

/// Questions that were received, and how much may be received behind them.
#[derive(Debug)]
pub(super) struct Room {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
    most: usize,
}

impl Room {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; ROOM_BYTES], from: 0, to: 0, most: ROOM_BYTES }
    }

    pub(super) fn has_head(&self) -> bool {
        self.all().len() >= QUESTION_BYTES
    }

    pub(super) fn all(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    pub(super) fn take(&mut self, count: usize) -> &[u8] {
        self.from += count;
        &self.bytes[self.from - count..self.from]
    }

    /// Takes the bytes behind a head that are here already; how many. The rest is to be received next.
    pub(super) fn begin(&mut self, bytes: &mut [u8]) -> usize {
        let came = bytes.len().min(self.all().len());
        bytes[..came].copy_from_slice(self.take(came));
        self.most = if bytes.len() >= LARGE_BYTES { SMALL_ROOM_BYTES } else { ROOM_BYTES };
        came
    }

    /// Receives until `first` is full, and behind it as much as there is.
    pub(super) fn receive_behind(&mut self, mut first: &mut [u8], mut stream: &TcpStream) -> io::Result<()> {
        self.bytes.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        loop {
            let wanted = first.len();
            let room = &mut self.bytes[self.to..self.most];
            let got = stream.read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(room)])?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.to += got.saturating_sub(wanted);
            if got >= wanted {
                return Ok(());
            }
            first = &mut first[got..];
        }
    }
}

/// Where in a server's memory a reply begins, and its bytes behind the head.
type Reply = (usize, usize);

/// Answers questions on a connection until it ends, from this memory and into it.
fn answer(stream: &TcpStream, memory: &mut [u8]) -> io::Result<()> {
    let lender = Lender::new()?;
    let mut room = Room::new();
    let (mut at, mut replies): (usize, Vec<Reply>) = (0, Vec::new());
    loop {
        while !room.has_head() {
            reply(&mut replies, memory, &lender, stream)?;
            room.receive_behind(&mut [], stream)?;
        }
        let Exchange { sent, returned } = Exchange::parse(room.take(QUESTION_BYTES));
        let body = returned - REPLY_BYTES;
        let most = sent.max(body);
        at = if at + most > memory.len() { 0 } else { at };
        let came = room.begin(&mut memory[at..at + sent]);
        if came < sent {
            reply(&mut replies, memory, &lender, stream)?;
            room.receive_behind(&mut memory[at + came..at + sent], stream)?;
        }
        replies.push((at, body));
        at += most.next_multiple_of(4096);
    }
}

fn reply(replies: &mut Vec<Reply>, memory: &[u8], lender: &Lender, stream: &TcpStream) -> io::Result<()> {
    let pieces = replies.drain(..).flat_map(|(at, body)| [&HEAD[..], &memory[at..at + body]]);
    lender.send(pieces, stream)
}

/// A worker that answers from so much memory, in MiB.
pub fn serve_server(address: &str, mib: usize) {
    let bound = listen(address, mib << 20);
    orders(&json!({"address": bound}), |_| Ok(json!({})));
}

fn listen(address: &str, bytes: usize) -> String {
    let mut memory = Buffer::standing(bytes).expect("memory");
    memory.fill(FROM_SERVER);
    ping::listen(address, move |stream| answer(&stream, &mut memory))
}

/// Workers on this machine that answer from so much memory together, in MiB, and their addresses.
#[track_caller]
pub(super) fn start_servers(count: usize, mib: u64) -> (Vec<Worker>, Vec<String>) {
    let each = (mib / count as u64).to_string();
    let start = |_| Worker::start(&["bare-server", "127.0.0.1:0", &each]);
    let servers: Vec<Worker> = (0..count).map(start).collect();
    let addresses = servers.iter().map(ping::address).collect();
    (servers, addresses)
}

/// A worker that asks each of these in turn.
pub fn serve_client(addresses: &[&str]) {
    take_orders(Bare::to(addresses), &json!({}));
}

/// One server, and the buffers of what it was asked for.
struct Far {
    stream: TcpStream,
    owed: VecDeque<Buffer>,
    /// The last so many of them were not asked for yet.
    new: usize,
    /// Bytes of its first reply that have come.
    came: usize,
}

struct Bare {
    far: Vec<Far>,
    lender: Lender,
    /// It is lent, so it stays where it is, and as it is while it is under way.
    question: Box<[u8; QUESTION_BYTES]>,
}

impl Bare {
    fn to(addresses: &[&str]) -> Self {
        let far =
            |address: &&str| Far { stream: ping::connect(address), owed: VecDeque::new(), new: 0, came: 0 };
        let lender = Lender::new().expect("a pipe");
        Self { far: addresses.iter().map(far).collect(), lender, question: Box::new([0; QUESTION_BYTES]) }
    }

    /// Keeps as many requests under way as there are buffers; they come back.
    fn exchange(&mut self, load: Load, free: &mut Vec<Buffer>) -> io::Result<Done> {
        let exchange = Exchange::of(load);
        *self.question = exchange.head();
        let (mut asked, mut answered, count) = (0, 0, self.far.len());
        let start = Instant::now();
        loop {
            let new = if start.elapsed() < load.time { free.len() } else { 0 };
            for (number, buffer) in free.drain(..new).enumerate() {
                let far = &mut self.far[(asked + number) % count];
                far.owed.push_back(buffer);
                far.new += 1;
            }
            asked += new;
            if asked == answered {
                break;
            }
            for far in &mut self.far {
                far.ask(&self.question[..], exchange.sent, &self.lender)?;
            }
            answered += self.receive(exchange, free)?;
        }
        let requests = answered as u64;
        let (bytes, took) = (requests * load.block as u64, start.elapsed());
        Ok(Done { requests, bytes, took, median: Duration::ZERO })
    }

    /// Waits for what servers send, and takes what is there; how many replies came to their end.
    fn receive(&mut self, exchange: Exchange, free: &mut Vec<Buffer>) -> io::Result<usize> {
        let streams = self.far.iter().map(|far| far.stream.as_fd());
        let came = wait(streams.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)), None)?;
        let before = free.len();
        for (far, _) in self.far.iter_mut().zip(came).filter(|(_, came)| *came) {
            far.receive(exchange.returned, free)?;
        }
        Ok(free.len() - before)
    }
}

impl Far {
    /// Sends all new questions at once.
    fn ask(&mut self, question: &[u8], sent: usize, lender: &Lender) -> io::Result<()> {
        let new = self.owed.range(self.owed.len() - self.new..);
        let pieces = new.flat_map(|buffer| [question, &buffer[..sent]]);
        lender.send(pieces, &self.stream)?;
        self.new = 0;
        Ok(())
    }

    fn receive(&mut self, reply_bytes: usize, free: &mut Vec<Buffer>) -> io::Result<()> {
        let mut heads = [[0; REPLY_BYTES]; TOGETHER_MAX];
        let replies = heads.iter_mut().zip(&mut self.owed);
        let pieces =
            replies.flat_map(|(head, buffer)| [&mut head[..], &mut buffer[..reply_bytes - REPLY_BYTES]]);
        self.came += receive_into(pieces, self.came, &self.stream)?;
        while self.came >= reply_bytes {
            self.came -= reply_bytes;
            free.extend(self.owed.pop_front());
        }
        Ok(())
    }
}

/// Page-aligned, as many as are under way.
fn buffers(load: Load) -> io::Result<Vec<Buffer>> {
    let buffer = |_| {
        let mut buffer = Buffer::standing(load.block)?;
        buffer.fill(FROM_CLIENT);
        Ok(buffer)
    };
    (0..load.depth).map(buffer).collect()
}

impl Server for Bare {
    fn fill(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn run(&mut self, load: Load) -> Result<Done, String> {
        let done = buffers(load).and_then(|mut buffers| self.exchange(load, &mut buffers));
        done.map_err(|error| error.to_string())
    }
}

/// A server of 1 MiB in this process; its address.
#[cfg(test)]
pub(super) fn test_server() -> String {
    listen("127.0.0.1:0", 1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Pattern;
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    const MEMORY_BYTES: usize = 2 << 20;

    /// A server that ends with its client, and then tells its memory.
    fn server() -> (String, JoinHandle<Buffer>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
        let address = listener.local_addr().expect("an address").to_string();
        let serving = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            let mut memory = Buffer::standing(MEMORY_BYTES).expect("memory");
            memory.fill(FROM_SERVER);
            answer(&stream, &mut memory).expect_err("the client ends");
            memory
        });
        (address, serving)
    }

    /// So many at a time of one pattern, for a moment; what is in the buffers then.
    fn exchange(bare: &mut Bare, pattern: Pattern, block: usize, depth: usize) -> Vec<Buffer> {
        let load = Load { pattern, block, depth, time: Duration::from_millis(20) };
        let mut buffers = buffers(load).expect("memory");
        let done = bare.exchange(load, &mut buffers).expect("servers that answer");
        assert!(done.requests >= depth as u64 && done.bytes == done.requests * block as u64);
        assert_eq!(buffers.len(), depth);
        buffers
    }

    #[test]
    fn what_is_asked_for_comes_from_servers_into_the_buffers() {
        for (block, depth) in [(4096, 64), (64 << 10, 7), (1 << 20, 3)] {
            let servers = [server(), server()];
            let mut bare = Bare::to(&servers.each_ref().map(|(address, _)| address.as_str()));
            for buffer in exchange(&mut bare, Pattern::SequentialRead, block, depth) {
                assert!(buffer.iter().all(|byte| *byte == FROM_SERVER), "{block} bytes, {depth} at a time");
            }
        }
    }

    #[test]
    fn what_is_written_is_kept_and_nothing_else() {
        for (block, depth) in [(4096, 64), (64 << 10, 7), (1 << 20, 3)] {
            let (address, serving) = server();
            let mut bare = Bare::to(&[&address]);
            for _ in 0..3 {
                // Small questions between, so that what comes behind a large write is another's.
                exchange(&mut bare, Pattern::SequentialWrite, block, depth);
                exchange(&mut bare, Pattern::RandomRead, 4096, 2);
            }
            drop(bare);
            let memory = serving.join().expect("the server");
            let kept = memory.iter().take_while(|byte| **byte == FROM_CLIENT).count();
            assert!(kept >= block, "{kept} bytes of a first write of {block}");
            assert!(memory[kept..].iter().all(|byte| [FROM_CLIENT, FROM_SERVER].contains(byte)));
        }
    }
}
