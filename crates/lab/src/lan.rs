//! A small LAN on one machine: donor hosts, a client host and a coordinator's host in network namespaces,
//! joined by a bridge in a namespace of its own, every link shaped both ways by tbf. Nothing is routed to the
//! machine itself.
//!
//! Owns: the namespaces and every process inside them. Never: needs netem or a kernel module, touches another
//! lab. Invariant: names carry this process' mark, so several runs share a machine; dropping the lab removes
//! all of it, in a panicking test too, and what a killed run left behind goes at the start of the next.
//! Called by: the tests of lost and slow hosts, and the LAN benchmark.

use std::fmt;
use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;

use crate::tap::{self, LargeSends};
use crate::{mark, tools};

const BRIDGE: &str = "br0";
/// The bridge of those whose frames go over the wire.
const WIRE_BRIDGE: &str = "br1";
/// The kernel drops what a tap's reader did not take in time, as it often does not on a machine of two cores.
const TAP_FRAMES: usize = 32 << 10;

/// A host of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A donor host, from 1 on, at 10.77.0.N.
    Donor(u8),
    /// The examiner's host, at 10.77.0.100.
    Client,
    /// The coordinator's host, at 10.77.0.101.
    Coordinator,
}

impl Node {
    /// The host's address.
    pub fn address(self) -> String {
        match self {
            Self::Donor(number) => format!("10.77.0.{number}"),
            Self::Client => "10.77.0.100".to_owned(),
            Self::Coordinator => "10.77.0.101".to_owned(),
        }
    }

    /// The name of the bridge's port towards this host.
    fn port(self) -> String {
        format!("p{self}")
    }
}

impl fmt::Display for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Donor(number) => write!(formatter, "{number}"),
            Self::Client => write!(formatter, "c"),
            Self::Coordinator => write!(formatter, "k"),
        }
    }
}

/// The lab. Dropping it ends every process inside and removes it.
#[derive(Debug)]
pub struct Lan {
    name: String,
    donors: u8,
    rate: String,
}

impl Lan {
    /// Makes `donors` donor hosts, a client and a coordinator's host, each link of `rate` (in tc's words:
    /// `1gbit`, `100mbit`).
    #[track_caller]
    pub fn new(donors: u8, rate: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        tools::need_root("a lab of network namespaces");
        assert!((1..100).contains(&donors), "a lab has 1 to 99 donor hosts, not {donors}");
        mark::sweep_stale();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Built first, so that a failure half way is cleaned up by its drop.
        let lan = Self { name: format!("{}-{count}", mark::own()), donors, rate: rate.to_owned() };
        let switch = lan.switch();
        ip(&["netns", "add", &switch]);
        lan.add_bridge(BRIDGE);
        for node in lan.nodes() {
            lan.connect(node);
        }
        lan
    }

    fn add_bridge(&self, name: &str) {
        let switch = self.switch();
        ip(&["-n", &switch, "link", "add", name, "type", "bridge", "stp_state", "0", "forward_delay", "0"]);
        ip(&["-n", &switch, "link", "set", name, "up"]);
    }

    fn connect(&self, node: Node) {
        let (switch, host, port) = (self.switch(), self.namespace(node), node.port());
        let address = format!("{}/24", node.address());
        ip(&["netns", "add", &host]);
        ip(&["-n", &host, "link", "add", "e0", "type", "veth", "peer", "name", &port, "netns", &switch]);
        ip(&["-n", &host, "address", "add", &address, "dev", "e0"]);
        ip(&["-n", &host, "link", "set", "e0", "up"]);
        ip(&["-n", &host, "link", "set", "lo", "up"]);
        ip(&["-n", &switch, "link", "set", &port, "master", BRIDGE, "up"]);
        self.rate(node, &self.rate);
    }

    /// Every host: the donors in order, then the client and the coordinator's.
    pub fn nodes(&self) -> Vec<Node> {
        (1..=self.donors).map(Node::Donor).chain([Node::Client, Node::Coordinator]).collect()
    }

    /// A command that runs on a host. Only the network and the host's name are its own: mounts stay those of
    /// the machine, so that a FUSE mount made by one command is seen by the next (`ip netns exec` would hide
    /// it). The process id is that of the program itself.
    #[track_caller]
    pub fn exec(&self, node: Node, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = tools::command("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace(node))).arg("--");
        command.arg(tools::need("unshare")).args(["--uts", "--", "/bin/sh", "-c"]);
        command.arg("echo \"$0\" >/proc/sys/kernel/hostname && exec \"$@\"");
        command.arg(format!("host-{node}")).arg(program);
        // One kernel stands for many machines.
        command.env("CHEETAH_HOST_ID", format!("host-{node}"));
        command
    }

    /// Runs a tool on a host to its end, which must be a good one.
    #[track_caller]
    pub fn run(&self, node: Node, tool: &str, arguments: &[&str]) {
        tools::expect_success(self.exec(node, tools::need(tool)).args(arguments));
    }

    /// Sets the congestion control of every host, for whatever does not choose its own.
    #[track_caller]
    pub fn congestion_control(&self, name: &str) {
        for node in self.nodes() {
            let mut command = self.exec(node, "/bin/sh");
            tools::expect_success(command.args([
                "-c",
                "echo \"$0\" >/proc/sys/net/ipv4/tcp_congestion_control",
                name,
            ]));
        }
    }

    /// The processes that run on a host.
    pub fn pids(&self, node: Node) -> Vec<u32> {
        let output = tools::output(tools::command("ip").args(["netns", "pids", &self.namespace(node)]));
        String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Every process of the host is killed, as when its power fails (but the kernel still answers for it).
    pub fn kill(&self, node: Node) {
        self.signal(node, Signal::KILL);
    }

    /// Every process of the host is stopped: connections stay, nothing answers.
    pub fn stop(&self, node: Node) {
        self.signal(node, Signal::STOP);
    }

    /// Undoes [`Lan::stop`].
    pub fn cont(&self, node: Node) {
        self.signal(node, Signal::CONT);
    }

    fn signal(&self, node: Node, signal: Signal) {
        for pid in self.pids(node) {
            mark::signal(pid, signal);
        }
    }

    /// Pulls the cable: both ends see the link go.
    pub fn unplug(&self, node: Node) {
        ip(&["-n", &self.switch(), "link", "set", &node.port(), "down"]);
    }

    /// Undoes [`Lan::unplug`].
    pub fn plug(&self, node: Node) {
        ip(&["-n", &self.switch(), "link", "set", &node.port(), "up"]);
    }

    /// Makes a black hole: no packet passes, no reset is sent, the link stays up.
    pub fn cut(&self, node: Node) {
        self.port_state(node, "0");
    }

    /// Undoes [`Lan::cut`], [`Lan::mute`], [`Lan::deafen`] and [`Lan::detour`]; the rate is the lab's again.
    pub fn heal(&self, node: Node) {
        ip(&["-n", &self.switch(), "link", "set", &node.port(), "master", BRIDGE]);
        self.port_state(node, "3");
        self.rate(node, &self.rate);
    }

    fn port_state(&self, node: Node, state: &str) {
        tools::run("bridge", ["-n", &self.switch(), "link", "set", "dev", &node.port(), "state", state]);
    }

    /// One-way loss: drops only what the host sends.
    pub fn mute(&self, node: Node) {
        replace_root(&self.namespace(node), "e0", &["blackhole"]);
    }

    /// One-way loss: drops only what the host should receive.
    pub fn deafen(&self, node: Node) {
        replace_root(&self.switch(), &node.port(), &["blackhole"]);
    }

    /// Shapes a host's link both ways.
    pub fn rate(&self, node: Node, rate: &str) {
        let shape = ["tbf", "rate", rate, "burst", "1mb", "latency", "20ms"];
        replace_root(&self.namespace(node), "e0", &shape);
        replace_root(&self.switch(), &node.port(), &shape);
    }

    /// Leads a host's link over the lab's wire ([`crate::wire::Wire`]).
    pub fn detour(&self, node: Node) {
        ip(&["-n", &self.switch(), "link", "set", &node.port(), "master", WIRE_BRIDGE]);
    }

    /// Makes the second bridge, and a tap on each of the two bridges.
    #[track_caller]
    pub(crate) fn lay_wire(&self, large: LargeSends) -> [File; 2] {
        let switch = self.switch();
        self.add_bridge(WIRE_BRIDGE);
        [("tap0", BRIDGE), ("tap1", WIRE_BRIDGE)].map(|(name, bridge)| {
            let tap = tap::open_in(&format!("/run/netns/{switch}"), name, large)
                .unwrap_or_else(|error| panic!("cannot make a tap: {error}"));
            let queue = TAP_FRAMES.to_string();
            ip(&["-n", &switch, "link", "set", name, "master", bridge, "txqueuelen", &queue, "up"]);
            tap
        })
    }

    /// Frames that the taps of the wire dropped, before the wire had them.
    #[cfg(test)]
    pub(crate) fn dropped_at_taps(&self) -> u64 {
        ["tap0", "tap1"].map(|tap| counted(&self.switch(), tap, "tx", "dropped")).into_iter().sum()
    }

    /// Bytes that a host has sent and received since the lab was made.
    #[track_caller]
    pub fn bytes_moved(&self, node: Node) -> (u64, u64) {
        let count = |way| counted(&self.namespace(node), "e0", way, "bytes");
        (count("tx"), count("rx"))
    }

    /// Bytes that a host has sent since the lab was made.
    #[track_caller]
    pub fn bytes_sent(&self, node: Node) -> u64 {
        self.bytes_moved(node).0
    }

    fn namespace(&self, node: Node) -> String {
        format!("{}-{node}", self.name)
    }

    fn switch(&self) -> String {
        format!("{}-sw", self.name)
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for node in self.nodes() {
            self.kill(node);
            self.cont(node);
        }
        let hosts = self.nodes().into_iter().map(|node| self.namespace(node));
        for namespace in hosts.chain([self.switch()]) {
            // Absent when the making of the lab failed half way.
            let _ = tools::output(tools::command("ip").args(["netns", "del", &namespace]));
        }
    }
}

#[track_caller]
fn ip(arguments: &[&str]) {
    tools::run("ip", arguments);
}

/// What the kernel counts of a device, one way.
#[track_caller]
fn counted(namespace: &str, device: &str, way: &str, what: &str) -> u64 {
    let shown = tools::run("ip", ["-n", namespace, "-s", "-json", "link", "show", "dev", device]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("ip prints JSON");
    shown[0]["stats64"][way][what].as_u64().unwrap_or_else(|| panic!("no count of {what} in {shown}"))
}

#[track_caller]
fn replace_root(namespace: &str, device: &str, discipline: &[&str]) {
    let place = ["-n", namespace, "qdisc", "replace", "dev", device, "root"];
    tools::run("tc", place.iter().chain(discipline));
}
