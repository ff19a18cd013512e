//! Where this machine is reached: what a coordinator announces, and what a donor on its machine goes by.
//!
//! Owns the list of its own addresses and their order. Never: a packet. Invariant: what no other machine can
//! use comes last (loopback) or not at all (link-local). Tests: below, and `lab/tests/addresses.rs`.

use cheetah_core::members::may_be_clear;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Every address at which what listens here is reached, those first that other machines reach.
pub(super) fn reached_at(listens: SocketAddr) -> Vec<SocketAddr> {
    if !listens.ip().is_unspecified() {
        return vec![listens];
    }
    let interfaces = if_addrs::get_if_addrs()
        .inspect_err(|error| tracing::warn!("the addresses of this machine are not known: {error}"))
        .unwrap_or_default();
    let own =
        interfaces.iter().filter(|interface| !interface.is_link_local()).map(|interface| interface.ip());
    in_order(own.collect(), listens)
}

/// Of what listens there, an address that is not for the clear: others than this network reach it.
#[must_use]
pub fn public_at(listens: SocketAddr) -> Option<SocketAddr> {
    reached_at(listens).into_iter().find(|at| !may_be_clear(at.ip()))
}

fn in_order(mut own: Vec<IpAddr>, listens: SocketAddr) -> Vec<SocketAddr> {
    // What listens on all of IPv4 is not reached by IPv6.
    own.retain(|ip| listens.is_ipv6() || ip.is_ipv4());
    if own.is_empty() {
        own.push(Ipv4Addr::LOCALHOST.into());
    }
    own.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    own.dedup();
    own.into_iter().map(|ip| SocketAddr::new(ip, listens.port())).collect()
}

/// The address at which others reach a donor that reaches its coordinator from `from`: on the coordinator's
/// own machine that is loopback, and nobody else's.
pub(super) fn reached_by_others(from: IpAddr, coordinator: &[String]) -> IpAddr {
    let addresses = coordinator.iter().filter_map(|address| address.parse().ok());
    let beyond = addresses.map(|address: SocketAddr| address.ip()).find(|ip| !ip.is_loopback());
    beyond.filter(|_| from.is_loopback()).unwrap_or(from)
}

/// A donor on the coordinator's own machine that listens everywhere is to be reached by the others, too: by
/// the address that packets leave from. No packet is sent to find it.
pub(super) fn reachable_ip(seen: IpAddr) -> IpAddr {
    if !seen.is_loopback() || seen.is_ipv6() {
        return seen;
    }
    let outward = || -> std::io::Result<IpAddr> {
        let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
        // TEST-NET-1: any address beyond this network will do.
        socket.connect(("192.0.2.1", 9))?;
        Ok(socket.local_addr()?.ip())
    };
    outward().ok().filter(|ip| !ip.is_unspecified()).unwrap_or(seen)
}

/// How what listens at an address is reached from this machine.
pub(super) fn url_of(address: SocketAddr, members_only: bool) -> String {
    let loopback: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    let ip = if address.ip().is_unspecified() { loopback } else { address.ip() };
    let scheme = if members_only { "cheetah" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn what_others_reach_comes_first() {
        let own = ["127.0.0.1", "::1", "2001:db8::1", "192.168.1.5", "10.0.0.5"].map(ip);
        let shown = |listens: &str| {
            let listens = listens.parse().expect("an address");
            in_order(own.to_vec(), listens).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(shown("0.0.0.0:7"), ["192.168.1.5:7", "10.0.0.5:7", "127.0.0.1:7"]);
        let all = ["192.168.1.5:7", "10.0.0.5:7", "[2001:db8::1]:7", "127.0.0.1:7", "[::1]:7"];
        assert_eq!(shown("[::]:7"), all);
        assert_eq!(reached_at("10.0.0.5:7".parse().expect("an address")).len(), 1);
    }

    #[test]
    fn a_donor_beside_its_coordinator_is_reached_where_that_is() {
        let coordinator = ["10.0.0.5:10808", "127.0.0.1:10808"].map(str::to_owned);
        assert_eq!(reached_by_others(ip("127.0.0.1"), &coordinator), ip("10.0.0.5"));
        assert_eq!(reached_by_others(ip("10.0.0.7"), &coordinator), ip("10.0.0.7"));
        assert_eq!(reached_by_others(ip("127.0.0.1"), &coordinator[1..]), ip("127.0.0.1"));
    }
}
