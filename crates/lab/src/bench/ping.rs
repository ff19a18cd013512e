//! A request and its answer, bare: raw TCP of the same sizes with blocking sockets, one hop, or two through a relay; one at a
//! time, or several over a connection to each of many servers. One at a time it is the limit; with several it is what a plain
//! program makes, which joins no requests and sends no page as it is.
//!
//! Owns: server, relay and client, each a process of its own as donor, daemon and tool are. Never: more than one
//! connection of a server at a time, any work on the bytes. Invariants: a request begins with how many bytes follow its head,
//! and how many are wanted back; a server goes round its memory, as one does that keeps what it is given.
//! Called by: `worker`. Tests: below.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use serde_json::json;

use crate::bench::worker::{Load, Server, Worker, orders, take_orders};
use crate::load::{self, Done, Pattern};

/// The heads of an NBD request and of its reply.
pub(super) const QUESTION_BYTES: usize = 28;
pub(super) const REPLY_BYTES: usize = 20;
const PAGE_BYTES: usize = 4096;

/// What goes both ways for a request.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    /// Bytes behind the request's head.
    sent: usize,
    /// Bytes of the whole reply.
    returned: usize,
}

impl Exchange {
    fn of(load: Load) -> Self {
        match load.pattern {
            Pattern::RandomRead | Pattern::SequentialRead => {
                Self { sent: 0, returned: REPLY_BYTES + load.block }
            }
            Pattern::SequentialWrite => Self { sent: load.block, returned: REPLY_BYTES },
        }
    }

    fn head(self) -> [u8; QUESTION_BYTES] {
        let mut head = [1; QUESTION_BYTES];
        head[..8].copy_from_slice(&(self.sent as u64).to_le_bytes());
        head[8..16].copy_from_slice(&(self.returned as u64).to_le_bytes());
        head
    }

    fn read_head(stream: &mut TcpStream) -> io::Result<Self> {
        let mut head = [0; QUESTION_BYTES];
        stream.read_exact(&mut head)?;
        let number =
            |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes")) as usize;
        Ok(Self { sent: number(0), returned: number(8) })
    }

    fn buffer(self, bytes: &mut Vec<u8>) -> &mut [u8] {
        bytes.resize(self.sent.max(self.returned), 7);
        bytes
    }
}

/// The head of a question behind which so many bytes come, and that is answered with so many.
pub(super) fn question(sent: usize, returned: usize) -> [u8; QUESTION_BYTES] {
    Exchange { sent, returned }.head()
}

/// Answers requests on a connection until it ends, from so much memory and into it.
fn answer(mut stream: TcpStream, memory: usize) -> io::Result<()> {
    let (mut memory, mut at) = (vec![7; memory], 0);
    loop {
        let exchange = Exchange::read_head(&mut stream)?;
        let most = exchange.sent.max(exchange.returned);
        if at + most > memory.len() {
            at = 0;
            memory.resize(memory.len().max(most), 7);
        }
        stream.read_exact(&mut memory[at..at + exchange.sent])?;
        stream.write_all(&memory[at..at + exchange.returned])?;
        at += most / PAGE_BYTES * PAGE_BYTES;
    }
}

/// Hands requests on, and replies back.
fn relay(mut near: TcpStream, address: &str) -> io::Result<()> {
    let mut far = TcpStream::connect(address)?;
    far.set_nodelay(true)?;
    let mut bytes = Vec::new();
    loop {
        let exchange = Exchange::read_head(&mut near)?;
        let bytes = exchange.buffer(&mut bytes);
        near.read_exact(&mut bytes[..exchange.sent])?;
        far.write_all(&exchange.head())?;
        far.write_all(&bytes[..exchange.sent])?;
        far.read_exact(&mut bytes[..exchange.returned])?;
        near.write_all(&bytes[..exchange.returned])?;
    }
}

fn listen(address: &str, serve: impl Fn(TcpStream) -> io::Result<()> + Send + 'static) -> String {
    let listener =
        TcpListener::bind(address).unwrap_or_else(|error| panic!("cannot listen at {address}: {error}"));
    let bound = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A peer that hangs up is done; the next may come.
            let _ = stream.set_nodelay(true).and_then(|()| serve(stream));
        }
    });
    bound
}

/// Where a worker that answers, or hands on, listens.
#[track_caller]
pub(super) fn address(worker: &Worker) -> String {
    worker.ready["address"].as_str().expect("an address").to_owned()
}

/// A worker that answers from so much memory, in MiB.
pub fn serve_server(address: &str, mib: usize) {
    let bound = listen(address, move |stream| answer(stream, mib << 20));
    orders(&json!({"address": bound}), |_| Ok(json!({})));
}

/// A worker that hands on.
pub fn serve_relay(address: &str, far: &str) {
    let far = far.to_owned();
    let bound = listen(address, move |stream| relay(stream, &far));
    orders(&json!({"address": bound}), |_| Ok(json!({})));
}

/// Workers on this machine that answer from so much memory together, in MiB, and their addresses.
#[track_caller]
pub(super) fn start_servers(count: usize, mib: u64) -> (Vec<Worker>, Vec<String>) {
    let each = (mib / count as u64).to_string();
    let start = |_| Worker::start(&["ping-server", "127.0.0.1:0", &each]);
    let servers: Vec<Worker> = (0..count).map(start).collect();
    let addresses = servers.iter().map(address).collect();
    (servers, addresses)
}

#[track_caller]
pub(super) fn connect(address: &str) -> TcpStream {
    let stream =
        TcpStream::connect(address).unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"));
    stream.set_nodelay(true).expect("a TCP socket");
    stream
}

/// A worker that asks each of these in turn.
pub fn serve_client(addresses: &[&str]) {
    take_orders(Pinger::to(addresses), &json!({}));
}

struct Pinger(Vec<TcpStream>);

impl Pinger {
    fn to(addresses: &[&str]) -> Self {
        Self(addresses.iter().map(|address| connect(address)).collect())
    }

    fn ping(&mut self, load: Load) -> io::Result<Done> {
        let exchange = Exchange::of(load);
        let mut question = exchange.head().to_vec();
        question.resize(QUESTION_BYTES + exchange.sent, 7);
        let mut reply = vec![0; exchange.returned];
        let (mut asked, mut answered, mut latencies) = (0, 0, Vec::new());
        let count = self.0.len();
        let start = Instant::now();
        loop {
            let asked_at = Instant::now();
            while asked - answered < load.depth && start.elapsed() < load.time {
                self.0[asked % count].write_all(&question)?;
                asked += 1;
            }
            if asked == answered {
                break;
            }
            self.0[answered % count].read_exact(&mut reply)?;
            answered += 1;
            if load.depth == 1 {
                latencies.push(asked_at.elapsed());
            }
        }
        let (requests, took) = (answered as u64, start.elapsed());
        Ok(Done { requests, bytes: requests * load.block as u64, took, median: load::median(&mut latencies) })
    }
}

impl Server for Pinger {
    fn fill(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn run(&mut self, load: Load) -> Result<Done, String> {
        self.ping(load).map_err(|error| error.to_string())
    }
}

/// A server of 1 MiB in this process; its address.
#[cfg(test)]
pub(super) fn test_server() -> String {
    listen("127.0.0.1:0", |stream| answer(stream, 1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn expect_answers(addresses: &[&str], depth: usize) {
        let mut pinger = Pinger::to(addresses);
        for (pattern, block) in [(Pattern::RandomRead, 4096), (Pattern::SequentialWrite, 1 << 20)] {
            let load = Load { pattern, block, depth, time: Duration::from_millis(20) };
            let done = pinger.ping(load).expect("pings");
            assert!(done.requests >= depth as u64, "{addresses:?}");
            assert_eq!(done.median > Duration::ZERO, depth == 1, "one at a time has a latency of its own");
            assert_eq!(done.bytes, done.requests * block as u64);
        }
    }

    #[test]
    fn replies_come_back_directly_and_through_a_relay() {
        let server = test_server();
        let far = server.clone();
        let relayed = listen("127.0.0.1:0", move |stream| relay(stream, &far));
        // One at a time, as the server serves: the relay's connection ends with the first client.
        for address in [relayed, server] {
            expect_answers(&[&address], 1);
        }
    }

    #[test]
    fn several_are_asked_in_turn_with_many_under_way() {
        let servers = [test_server(), test_server()];
        expect_answers(&servers.each_ref().map(String::as_str), 7);
    }
}
