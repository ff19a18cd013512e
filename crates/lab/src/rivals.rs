//! Servers and meters that others wrote: nbdkit, qemu-nbd, iperf3.
//! Invariant: every server has a port or socket of its own, is ready when its constructor returns, and is ended by id.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use crate::lan::{Lan, Node};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::{tools, wait};

/// A running NBD server of somebody else's.
#[derive(Debug)]
pub struct Rival {
    pub process: Process,
    pub uri: String,
    pub address: Option<SocketAddr>,
    _scratch: Scratch,
}

impl Rival {
    /// `nbdkit memory SIZE` (or another plugin) on TCP.
    #[track_caller]
    pub fn nbdkit(plugin: &[&str]) -> Self {
        Self::on_tcp("nbdkit", "", |port, _| {
            let mut command = tools::command("nbdkit");
            command.args(["--foreground", "--exit-with-parent", "--ipaddr", "127.0.0.1", "--port"]);
            command.arg(port.to_string()).args(plugin);
            command
        })
    }

    /// nbdkit with a plugin on a Unix socket.
    #[track_caller]
    pub fn nbdkit_unix(plugin: &[&str]) -> Self {
        let scratch = Scratch::new();
        let socket = scratch.join("nbdkit.sock");
        let mut command = tools::command("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(plugin);
        let process = Process::start("nbdkit", command, scratch.path());
        wait_for_unix(&socket);
        Self { process, uri: unix_uri(&socket, ""), address: None, _scratch: scratch }
    }

    /// `qemu-nbd` over a file in memory, under this export name.
    #[track_caller]
    pub fn qemu_nbd(bytes: u64, export: &str) -> Self {
        Self::on_tcp("qemu-nbd", export, |port, scratch| {
            let file = scratch.sparse_file("qemu-nbd.raw", bytes);
            let mut command = tools::command("qemu-nbd");
            command.args([
                "--format=raw",
                "--persistent",
                "--shared=0",
                "--discard=unmap",
                "--bind=127.0.0.1",
            ]);
            command.arg(format!("--port={port}")).arg(format!("--export-name={export}")).arg(file);
            command
        })
    }

    fn on_tcp(name: &str, export: &str, command: impl Fn(u16, &Scratch) -> Command) -> Self {
        let scratch = Scratch::in_memory();
        // A free port may be taken by another run before the server binds it; then the server ends, and we ask again.
        for _ in 0..5 {
            let port = free_port();
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let mut process = Process::start(name, command(port, &scratch), scratch.path());
            let ready = wait::for_some(&format!("{name} on port {port}"), wait::SOON, || {
                match TcpStream::connect(address) {
                    Ok(_) => Some(true),
                    Err(_) => (!process.is_running()).then_some(false),
                }
            });
            if ready && process.is_running() {
                let uri = format!("nbd://{address}/{export}");
                return Self { process, uri, address: Some(address), _scratch: scratch };
            }
        }
        panic!("{name} did not start on any of five ports");
    }
}

/// A TCP port that was free a moment ago. Only for servers that cannot be told to choose one themselves.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port()
}

/// Waits until something listens on a Unix socket.
#[track_caller]
pub fn wait_for_unix(path: &Path) {
    wait::until(&format!("a listener on {}", path.display()), wait::SOON, || {
        std::os::unix::net::UnixStream::connect(path).is_ok()
    });
}

/// The address of an export on a Unix socket, as libnbd writes it.
pub fn unix_uri(socket: &Path, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

/// Mbit/s that iperf3 moves from one host of a lab to another in `seconds`.
#[track_caller]
pub fn iperf3_between(lan: &Lan, from: Node, to: Node, seconds: u32) -> f64 {
    let iperf = tools::need("iperf3");
    iperf3(lan.exec(to, &iperf), lan.exec(from, &iperf), &to.address(), 5201, seconds)
}

/// Mbit/s of iperf3 over loopback.
#[track_caller]
pub fn iperf3_loopback(seconds: u32) -> f64 {
    iperf3(tools::command("iperf3"), tools::command("iperf3"), "127.0.0.1", free_port(), seconds)
}

fn iperf3(mut server: Command, mut client: Command, address: &str, port: u16, seconds: u32) -> f64 {
    let scratch = Scratch::new();
    server.args(["--server", "--one-off", "--forceflush", "--port", &port.to_string()]);
    let mut server = Process::start("iperf3", server, scratch.path());
    server.wait_for_line("Server listening", wait::SOON);
    client.args(["--json", "--client", address, "--port", &port.to_string(), "--congestion", "reno"]);
    client.args(["--time", &seconds.to_string()]);
    let report: serde_json::Value =
        serde_json::from_str(&tools::expect_success(&mut client)).expect("iperf3 reports JSON");
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.unwrap_or_else(|| panic!("iperf3 reported no rate: {report}")) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_is_ready_and_tells_its_size() {
        let size = 1 << 20;
        let servers = [
            Rival::nbdkit(&["memory", "1M"]),
            Rival::nbdkit_unix(&["memory", "1M"]),
            Rival::qemu_nbd(size, "lent"),
        ];
        for server in &servers {
            let told = tools::run("nbdinfo", ["--size", &server.uri]);
            assert_eq!(told.trim(), size.to_string(), "{}", server.uri);
        }
    }
}
