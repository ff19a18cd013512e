//! A child of the benchmark, which is this program run again: which load each kind of worker makes.
//!
//! Owns: the words that a kind begins with. Never: the lines between a child and the benchmark (`worker` has
//! them). Called by: `bench`, before anything else.

use std::net::Ipv4Addr;

use serde_json::json;

use crate::bench::machine::CONGESTION;
use crate::bench::worker::{Many, orders, take_orders};
use crate::bench::{client, file, ping};
use crate::load::Connection;
use crate::rivals;

/// The life of a child of this program: its first line says that it is ready, then it takes orders until none
/// come.
pub fn serve(kind: &[String]) {
    let words: Vec<&str> = kind.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["client", pool, connections, poll_us, volumes @ ..] => {
            client::serve(pool, connections, poll_us, volumes);
        }
        ["nbd", address, export] => take_orders(connect(address, export), &json!({})),
        ["nbd-many", address, export, count] => {
            let count: usize = count.parse().expect("a number of connections");
            take_orders(Many((0..count).map(|_| connect(address, export)).collect()), &json!({}));
        }
        ["ping", address] => ping::serve_client(address),
        ["ping-server", listen] => ping::serve_server(listen),
        ["ping-relay", listen, address] => ping::serve_relay(listen, address),
        ["relay", address] => {
            let to = address.parse().expect("an address");
            let port = rivals::relay(Ipv4Addr::UNSPECIFIED.into(), to, 1).expect("sockets for a relay");
            orders(&json!({"port": port}), |_| Ok(json!({})));
        }
        ["file"] => file::serve(),
        other => panic!("no such worker: {other:?}"),
    }
}

fn connect(address: &str, export: &str) -> Connection {
    let opened = Connection::open(address.parse().expect("an address"), export, CONGESTION, true);
    opened.unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"))
}
