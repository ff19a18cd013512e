//! A request and its answer by raw TCP: of the same sizes with blocking sockets, one at a time, one hop,
//! or two through a relay. The limit of what waits for each of its requests.
//!
//! Owns: server, relay and client, each a process of its own as donor, daemon and tool are. Never: more than
//! one connection of a server at a time, any work on the bytes. Invariant: a request begins with how many
//! bytes follow its head, and how many are wanted back.
//! Called by: `worker`. Tests: below.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use serde_json::json;

use crate::bench::worker::{Load, Server, Worker, orders, take_orders};
use crate::load::{self, Done, Pattern};

/// The heads of an NBD request and of its reply.
const QUESTION_BYTES: usize = 28;
const REPLY_BYTES: usize = 20;

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

    /// Of a whole head.
    fn parse(head: &[u8]) -> Self {
        let number =
            |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes")) as usize;
        Self { sent: number(0), returned: number(8) }
    }

    fn read_head(stream: &mut TcpStream) -> io::Result<Self> {
        let mut head = [0; QUESTION_BYTES];
        stream.read_exact(&mut head)?;
        Ok(Self::parse(&head))
    }

    fn buffer(self, bytes: &mut Vec<u8>) -> &mut [u8] {
        bytes.resize(self.sent.max(self.returned), 7);
        bytes
    }
}

/// Answers requests on a connection until it ends.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let exchange = Exchange::read_head(&mut stream)?;
        let bytes = exchange.buffer(&mut bytes);
        stream.read_exact(&mut bytes[..exchange.sent])?;
        stream.write_all(&bytes[..exchange.returned])?;
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

/// Serves one connection after the other; where.
fn listen(address: &str, mut serve: impl FnMut(TcpStream) -> io::Result<()> + Send + 'static) -> String {
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

/// A worker that answers.
pub fn serve_server(address: &str) {
    let bound = listen(address, answer);
    orders(&json!({"address": bound}), |_| Ok(json!({})));
}

/// A worker that hands on.
pub fn serve_relay(address: &str, far: &str) {
    let far = far.to_owned();
    let bound = listen(address, move |stream| relay(stream, &far));
    orders(&json!({"address": bound}), |_| Ok(json!({})));
}

#[track_caller]
fn connect(address: &str) -> TcpStream {
    let stream =
        TcpStream::connect(address).unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"));
    stream.set_nodelay(true).expect("a TCP socket");
    stream
}

/// A worker that asks.
pub fn serve_client(address: &str) {
    take_orders(Pinger(connect(address)), &json!({}));
}

struct Pinger(TcpStream);

impl Pinger {
    fn ping(&mut self, load: Load) -> io::Result<Done> {
        assert_eq!(load.depth, 1, "one at a time");
        let exchange = Exchange::of(load);
        let mut question = exchange.head().to_vec();
        question.resize(QUESTION_BYTES + exchange.sent, 7);
        let mut reply = vec![0; exchange.returned];
        let mut latencies = Vec::new();
        let start = Instant::now();
        while start.elapsed() < load.time {
            let asked_at = Instant::now();
            self.0.write_all(&question)?;
            self.0.read_exact(&mut reply)?;
            latencies.push(asked_at.elapsed());
        }
        let (requests, took) = (latencies.len() as u64, start.elapsed());
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn replies_come_back_directly_and_through_a_relay() {
        let server = listen("127.0.0.1:0", answer);
        let far = server.clone();
        let relayed = listen("127.0.0.1:0", move |stream| relay(stream, &far));
        // The server serves one at a time: the relay's connection ends with its client.
        for address in [relayed, server] {
            let mut pinger = Pinger(connect(&address));
            for (pattern, block) in [(Pattern::RandomRead, 4096), (Pattern::SequentialWrite, 1 << 20)] {
                let load = Load { pattern, block, depth: 1, time: Duration::from_millis(20) };
                let done = pinger.ping(load).expect("pings");
                assert!(done.requests > 0 && done.median > Duration::ZERO, "{address}");
                assert_eq!(done.bytes, done.requests * block as u64);
            }
        }
    }
}
