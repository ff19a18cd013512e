//! The limit of a random read: a raw TCP ping-pong of the same sizes with blocking sockets, one hop, or two through a
//! relay.
//!
//! Owns: server, relay and client, each a process of its own as donor, daemon and tool are. Never: more than one
//! connection at a time, any work on the bytes. Called by: `worker`. Tests: below.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::worker::{Load, Server, orders, take_orders};
use crate::load::{self, Done};

/// An NBD request.
const REQUEST_BYTES: usize = 28;
/// A block of 4 KiB and the head of a reply.
const REPLY_BYTES: usize = 4096 + 20;

/// Answers requests on a connection until it ends.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    let (mut request, reply) = ([0; REQUEST_BYTES], [7; REPLY_BYTES]);
    loop {
        stream.read_exact(&mut request)?;
        stream.write_all(&reply)?;
    }
}

/// Hands requests on, and replies back.
fn relay(mut near: TcpStream, address: &str) -> io::Result<()> {
    let mut far = TcpStream::connect(address)?;
    far.set_nodelay(true)?;
    let (mut request, mut reply) = ([0; REQUEST_BYTES], [0; REPLY_BYTES]);
    loop {
        near.read_exact(&mut request)?;
        far.write_all(&request)?;
        far.read_exact(&mut reply)?;
        near.write_all(&reply)?;
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

/// A worker that asks.
pub fn serve_client(address: &str) {
    let stream =
        TcpStream::connect(address).unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"));
    stream.set_nodelay(true).expect("a TCP socket");
    take_orders(Pinger(stream), &json!({}));
}

struct Pinger(TcpStream);

impl Pinger {
    fn ping(&mut self, time: Duration) -> io::Result<Done> {
        let (request, mut reply) = ([1; REQUEST_BYTES], [0; REPLY_BYTES]);
        let mut latencies = Vec::new();
        let start = Instant::now();
        while start.elapsed() < time {
            let asked_at = Instant::now();
            self.0.write_all(&request)?;
            self.0.read_exact(&mut reply)?;
            latencies.push(asked_at.elapsed());
        }
        let (requests, took) = (latencies.len() as u64, start.elapsed());
        Ok(Done { requests, bytes: requests * 4096, took, median: load::median(&mut latencies) })
    }
}

impl Server for Pinger {
    fn fill(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Whatever the pattern: one request at a time.
    fn run(&mut self, load: Load) -> Result<Done, String> {
        self.ping(load.time).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_come_back_directly_and_through_a_relay() {
        let server = listen("127.0.0.1:0", answer);
        let far = server.clone();
        let relayed = listen("127.0.0.1:0", move |stream| relay(stream, &far));
        // One at a time, as the server serves: the relay's connection ends with the first client.
        for address in [relayed, server] {
            let mut pinger = Pinger(TcpStream::connect(&address).expect("a connection"));
            let done = pinger.ping(Duration::from_millis(20)).expect("pings");
            assert!(done.requests > 0 && done.median > Duration::ZERO, "{address}");
        }
    }
}
