//! A load generator for one NBD connection that batches: many requests in one send, many replies from one
//! receive. Never: the bottleneck for small blocks (fio's NBD engine is), checks of content (the foreign
//! clients do that). Invariant: exactly `depth` requests are in flight until the run ends, then all are
//! answered.
//! Called by: the benchmark's workers, with blocking sockets.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use cheetah_nbd::client::{Handshake, Reply, Step, Want};
use cheetah_nbd::{CmdFlags, Command, RequestHeader};
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};

/// Replies below this size come through a large buffer, those above straight into their destination. A size
/// of its own: what is measured may change its own, and the measure stays.
const DIRECT_BYTES: usize = 16 << 10;
const BUFFER_BYTES: usize = 512 << 10;
/// Where payloads land begins on a page. From a server that sends pages as they are, the kernel then copies
/// page to page; some bytes off, its copy runs at half the speed on processors with 4 KiB aliasing.
const PAGE_BYTES: usize = 4096;
/// The head of a read's reply: structured (chunk header and offset) and simple. Received with the payload
/// before it, and no more, so that the next payload is received whole.
const STRUCTURED_HEAD_BYTES: usize = 28;
const SIMPLE_HEAD_BYTES: usize = 16;

/// What to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    RandomRead,
    SequentialRead,
    SequentialWrite,
}

/// One connection, past its handshake.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    size: u64,
    structured: bool,
    /// Received and not yet parsed: `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The first page boundary in `destination` is where payloads land.
    destination: Vec<u8>,
    aligned: usize,
}

/// What a run did.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub requests: u64,
    pub bytes: u64,
    pub took: Duration,
    /// What half of the requests took at most, measured where one is in flight at a time; zero elsewhere.
    pub median: Duration,
}

impl Done {
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.took.as_secs_f64()
    }

    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64()
    }
}

impl Connection {
    /// Connects with this congestion control, set before connecting as it must be, and negotiates an export.
    pub fn open(address: SocketAddr, export: &str, congestion: &str, structured: bool) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket: OwnedFd = rustix::net::socket(family, SocketType::STREAM, Some(ipproto::TCP))?;
        sockopt::set_tcp_congestion(&socket, congestion)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        rustix::net::connect(&socket, &address)?;
        let mut connection = Self {
            stream: TcpStream::from(socket),
            size: 0,
            structured: false,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            destination: Vec::new(),
            aligned: 0,
        };
        connection.negotiate(export, structured)?;
        Ok(connection)
    }

    fn negotiate(&mut self, export: &str, structured: bool) -> io::Result<()> {
        let want = Want {
            export: export.to_owned(),
            structured,
            base_allocation: false,
            dirty: false,
            context: false,
            auth: false,
        };
        let mut handshake = Handshake::new(want);
        let mut output = Vec::new();
        loop {
            handshake.take_output(&mut output);
            self.stream.write_all(&output)?;
            output.clear();
            match handshake.poll() {
                Step::NeedInput => {}
                Step::Ready(negotiated) => {
                    self.size = negotiated.info.size;
                    self.structured = negotiated.structured_replies;
                    return Ok(());
                }
                other => return Err(io::Error::other(format!("the handshake ends with {other:?}"))),
            }
            if self.start == self.end {
                self.receive()?;
            }
            let taken = handshake.input(&self.buffer[self.start..self.end]).map_err(wrong)?;
            self.start += taken;
        }
    }

    /// The size of the export.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the server sends structured replies.
    pub fn is_structured(&self) -> bool {
        self.structured
    }

    /// Writes the whole export once, so that reads afterwards move real memory.
    pub fn fill(&mut self) -> io::Result<()> {
        let block = 1 << 20;
        let blocks = self.size / block as u64;
        self.run(Pattern::SequentialWrite, block, 16, |asked| asked < blocks).map(drop)
    }

    /// Keeps `depth` requests of `block` bytes in flight for at least `time`.
    pub fn run_for(
        &mut self,
        pattern: Pattern,
        block: usize,
        depth: usize,
        time: Duration,
    ) -> io::Result<Done> {
        let start = Instant::now();
        self.run(pattern, block, depth, |_| start.elapsed() < time)
    }

    /// Keeps `depth` requests in flight while `go_on(requests asked so far)` holds (it is asked once per
    /// batch).
    pub(crate) fn run(
        &mut self,
        pattern: Pattern,
        block: usize,
        depth: usize,
        go_on: impl Fn(u64) -> bool,
    ) -> io::Result<Done> {
        let command = if pattern == Pattern::SequentialWrite { Command::Write } else { Command::Read };
        let blocks = self.size / block as u64;
        let payload = if command == Command::Write { pattern_bytes(block) } else { Vec::new() };
        self.destination = vec![0; block + PAGE_BYTES];
        self.aligned = self.destination.as_ptr().align_offset(PAGE_BYTES);
        let (mut asked, mut answered, mut seed) = (0_u64, 0_u64, 0x2006_u64);
        let mut batch = Vec::new();
        let mut latencies = Vec::new();
        let start = Instant::now();
        loop {
            let asked_at = Instant::now();
            batch.clear();
            while asked - answered < depth as u64 && go_on(asked) {
                seed = next_random(seed);
                let number =
                    if pattern == Pattern::RandomRead { (seed >> 16) % blocks } else { asked % blocks };
                let header = RequestHeader {
                    flags: CmdFlags::EMPTY,
                    command,
                    cookie: asked,
                    offset: number * block as u64,
                    length: u32::try_from(block).map_err(io::Error::other)?,
                };
                batch.extend_from_slice(&header.encode());
                batch.extend_from_slice(&payload);
                asked += 1;
                if batch.len() >= BUFFER_BYTES {
                    // Large writes go out as they come; a server that answers meanwhile has room in its
                    // buffers.
                    self.stream.write_all(&batch)?;
                    batch.clear();
                }
            }
            self.stream.write_all(&batch)?;
            if asked == answered {
                break;
            }
            answered += self.some_replies(block, command)?;
            if depth == 1 {
                latencies.push(asked_at.elapsed());
            }
        }
        let (bytes, took) = (answered * block as u64, start.elapsed());
        Ok(Done { requests: answered, bytes, took, median: median(&mut latencies) })
    }

    /// Takes every reply that is there, waiting for the first; answers how many requests they ended. Of large
    /// ones only the first: asking again at once keeps the server busy, and costs nothing beside the data.
    fn some_replies(&mut self, block: usize, command: Command) -> io::Result<u64> {
        let mut ended = 0;
        loop {
            let head = Reply::decode(&self.buffer[self.start..self.end]).map_err(wrong)?;
            let Some((reply, used)) = head else {
                if ended > 0 {
                    return Ok(ended);
                }
                self.receive_some(block)?;
                continue;
            };
            self.start += used;
            match reply {
                Reply::Simple { error: None, .. } if command == Command::Read => {
                    self.take_data(block, block)?
                }
                Reply::Simple { error: None, .. } | Reply::None { .. } | Reply::OffsetHole { .. } => {}
                Reply::OffsetData { data_bytes, .. } => self.take_data(data_bytes as usize, block)?,
                ref other => return Err(io::Error::other(format!("the server answers {other:?}"))),
            }
            ended += u64::from(reply.done());
            if ended > 0 && block >= DIRECT_BYTES {
                return Ok(ended);
            }
        }
    }

    /// Takes the data of one reply: what is buffered by a copy, the rest straight into its destination, with
    /// the next head in the same receive.
    fn take_data(&mut self, data: usize, block: usize) -> io::Result<()> {
        if data > block {
            return Err(io::Error::other(format!("{data} bytes in answer to a request of {block}")));
        }
        let destination = &mut self.destination[self.aligned..];
        let mut have = data.min(self.end - self.start);
        destination[..have].copy_from_slice(&self.buffer[self.start..self.start + have]);
        self.start += have;
        while have < data {
            self.start = 0;
            self.end = 0;
            let look_ahead = match self.structured {
                _ if block < DIRECT_BYTES => BUFFER_BYTES,
                true => STRUCTURED_HEAD_BYTES,
                false => SIMPLE_HEAD_BYTES,
            };
            let (rest, ahead) = (&mut destination[have..data], &mut self.buffer[..look_ahead]);
            let wanted = rest.len();
            let got = self.stream.read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(ahead)])?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            have += got.min(wanted);
            self.end = got.saturating_sub(wanted);
        }
        Ok(())
    }

    /// Receives more behind what is buffered: much for small blocks, about a head for large ones.
    fn receive_some(&mut self, block: usize) -> io::Result<()> {
        if block < DIRECT_BYTES {
            return self.receive();
        }
        self.compact();
        let need = Reply::need(&self.buffer[..self.end]).map_err(wrong)?;
        let until = need.max(self.end + 1);
        self.fill_buffer(until)
    }

    fn receive(&mut self) -> io::Result<()> {
        self.compact();
        self.fill_buffer(BUFFER_BYTES)
    }

    fn fill_buffer(&mut self, until: usize) -> io::Result<()> {
        let got = self.stream.read(&mut self.buffer[self.end..until])?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.end += got;
        Ok(())
    }

    fn compact(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }
}

/// Zero of nothing.
pub(crate) fn median(latencies: &mut [Duration]) -> Duration {
    latencies.sort_unstable();
    latencies.get(latencies.len() / 2).copied().unwrap_or_default()
}

fn wrong(violation: cheetah_nbd::Violation) -> io::Error {
    io::Error::other(format!("the server breaks the protocol: {violation:?}"))
}

/// Bytes of which no 4 KiB block is zero or like another.
pub(crate) fn pattern_bytes(count: usize) -> Vec<u8> {
    let mut seed = 1;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        seed = next_random(seed);
        bytes.extend_from_slice(&seed.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// Knuth's MMIX generator; its upper bits are random enough to spread reads.
pub fn next_random(seed: u64) -> u64 {
    seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rivals::Rival;

    #[test]
    fn every_request_is_answered_by_servers_of_others() {
        for server in [Rival::nbdkit(&["memory", "16M"]), Rival::qemu_nbd(16 << 20, "")] {
            for structured in [true, false] {
                let address = server.address.expect("a TCP server");
                let mut connection = Connection::open(address, "", "reno", structured).expect("a connection");
                assert_eq!(connection.size(), 16 << 20);
                connection.fill().expect("a fill");
                for (pattern, block, depth) in
                    [(Pattern::RandomRead, 4096, 64), (Pattern::SequentialRead, 1 << 20, 16)]
                {
                    let done = connection
                        .run(pattern, block, depth, |asked| asked < 1000)
                        .unwrap_or_else(|error| panic!("{pattern:?} from {}: {error}", server.uri));
                    assert_eq!(done.requests, 1000);
                    assert_eq!(done.median, Duration::ZERO, "only one at a time has a latency of its own");
                    assert!(connection.start == connection.end, "bytes are left over");
                }
                let one =
                    connection.run(Pattern::RandomRead, 4096, 1, |asked| asked < 10).expect("ten reads");
                assert!(one.median > Duration::ZERO && one.median * 5 < one.took);
                let last = &connection.destination[connection.aligned..][..4096];
                assert!(last.iter().any(|byte| *byte != 0), "what was filled reads as zeros");
            }
        }
    }
}
