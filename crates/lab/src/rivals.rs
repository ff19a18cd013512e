//! Servers, front ends and meters that others wrote: nbdkit, qemu-nbd with and without its quorum driver,
//! nbd-server, nbdfuse, iperf3.
//! Invariant: every server has a port or socket of its own, is ready when its constructor returns, and is
//! ended by id.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;

use crate::lan::{Lan, Node};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::{mark, tools, wait};

/// Where a server that goes into the background says which process it is.
const PID_FILE: &str = "pid";
/// So many ports, from the one with this number on, are for servers that have to be told one.
const PORTS: u16 = 12_000;

/// A running NBD server of somebody else's.
#[derive(Debug)]
pub struct Rival {
    pub process: Process,
    pub uri: String,
    pub address: Option<SocketAddr>,
    scratch: Scratch,
}

impl Drop for Rival {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(self.scratch.join(PID_FILE)).unwrap_or_default();
        if let Ok(pid) = pid.trim().parse() {
            mark::signal(pid, Signal::KILL);
        }
    }
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
        Self { process, uri: unix_uri(&socket, ""), address: None, scratch }
    }

    /// `qemu-nbd` over a file in memory, under this export name.
    #[track_caller]
    pub fn qemu_nbd(bytes: u64, export: &str) -> Self {
        Self::on_tcp("qemu-nbd", export, |port, scratch| {
            qemu_nbd(port, export, &scratch.sparse_file("qemu-nbd.raw", bytes))
        })
    }

    /// `qemu-nbd` over a file that stays when it ends.
    #[track_caller]
    pub fn qemu_nbd_of(file: &Path) -> Self {
        Self::on_tcp("qemu-nbd", "", |port, _| qemu_nbd(port, "", file))
    }

    /// `nbd-server` over a file in memory, under the name `lent`.
    #[track_caller]
    pub fn nbd_server(bytes: u64) -> Self {
        Self::on_tcp("nbd-server", "lent", |port, scratch| {
            let file = scratch.sparse_file("nbd-server.raw", bytes);
            let text = format!(
                "[generic]\nlistenaddr = 127.0.0.1\nport = {port}\n[lent]\nexportname = {}\n",
                file.display()
            );
            // It either serves one connection and ends, or goes into the background; what stays in the
            // foreground ends with it.
            let script = "\"$0\" -C \"$1\" -p \"$2\" && while kill -0 \"$(cat \"$2\")\"; do sleep 1; done";
            let mut command = tools::command("sh");
            command.args(["-c", script]).arg(tools::need("nbd-server"));
            command.arg(scratch.file("nbd-server.conf", text.as_bytes())).arg(scratch.join(PID_FILE));
            command
        })
    }

    /// qemu's quorum driver over other servers, served by `qemu-nbd`: a mirror, each write goes to all of
    /// them, each read to the first. This is the most that qemu does to join servers; it has no stripe.
    #[track_caller]
    pub fn quorum(children: &[Self]) -> Self {
        let mut options = "driver=quorum,vote-threshold=1,read-pattern=fifo".to_owned();
        for (number, child) in children.iter().enumerate() {
            let address = child.address.expect("a child on TCP");
            let server = format!("children.{number}.server");
            options += &format!(
                ",children.{number}.driver=nbd,{server}.type=inet,{server}.host={},{server}.port={}",
                address.ip(),
                address.port()
            );
        }
        Self::on_tcp("quorum", "", |port, _| {
            let mut command = tools::command("qemu-nbd");
            command.args(["--persistent", "--shared=0", "--bind=127.0.0.1"]);
            command.arg(format!("--port={port}")).arg("--image-opts").arg(&options);
            command
        })
    }

    fn on_tcp(name: &str, export: &str, command: impl Fn(u16, &Scratch) -> Command) -> Self {
        let scratch = Scratch::in_memory();
        // A free port may be taken by another run before the server binds it; then the server ends, and we
        // ask again.
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
                return Self { process, uri, address: Some(address), scratch };
            }
        }
        panic!("{name} did not start on any of five ports");
    }
}

fn qemu_nbd(port: u16, export: &str, file: &Path) -> Command {
    let mut command = tools::command("qemu-nbd");
    command.args(["--format=raw", "--persistent", "--shared=0", "--discard=unmap", "--bind=127.0.0.1"]);
    command.arg(format!("--port={port}")).arg(format!("--export-name={export}")).arg(file);
    command
}

/// `nbdfuse` in front of a server: its export as a file, which is what a user has today.
#[derive(Debug)]
pub struct NbdFuse {
    pub process: Process,
    pub path: PathBuf,
    // Last: it takes the mount with it.
    _scratch: Scratch,
}

impl NbdFuse {
    #[track_caller]
    pub fn start(uri: &str) -> Self {
        Self::of(tools::command("nbdfuse"), &[uri])
    }

    /// In front of an nbdkit of its own, which is told these.
    #[track_caller]
    pub fn of_nbdkit(arguments: &[&str]) -> Self {
        let nbdkit = tools::need("nbdkit").display().to_string();
        Self::of(tools::command("nbdfuse"), &[&["--command", &nbdkit, "-s"], arguments].concat())
    }

    /// On a host of a lab.
    #[track_caller]
    pub fn on(lan: &Lan, node: Node, uri: &str) -> Self {
        Self::of(lan.exec(node, tools::need("nbdfuse")), &[uri])
    }

    #[track_caller]
    fn of(mut command: Command, server: &[&str]) -> Self {
        let scratch = Scratch::new();
        let directory = scratch.directory("mnt");
        let path = directory.join("nbd");
        command.arg(&path).args(server);
        let process = Process::start("nbdfuse", command, scratch.path());
        wait::until("nbdfuse's file", wait::SOON, || {
            std::fs::metadata(&path).is_ok_and(|file| file.len() > 0)
        });
        Self { process, path, _scratch: scratch }
    }
}

/// Several memories joined into one file by the kernel: nbdkit servers, nbdfuse in front of each, a loop
/// device over each file, and btrfs with its data striped over these. Kernels with md or device-mapper have
/// other stripes; this one asks for btrfs only, which writes in place and keeps no checksums, as they would;
/// copies of what is rewritten filled it up.
#[derive(Debug)]
pub struct Striped {
    pub path: PathBuf,
    mount: PathBuf,
    devices: Vec<String>,
    files: Vec<NbdFuse>,
    servers: Vec<Rival>,
    _scratch: Scratch,
}

impl Striped {
    pub const NAME: &'static str = "RAID0 (btrfs) of four loop devices over nbdfuse on nbdkit";

    /// A sparse file of this size.
    #[track_caller]
    pub fn new(devices: usize, bytes: u64) -> Self {
        // What the file system keeps for itself.
        let each = bytes / devices as u64 + (192 << 20);
        let scratch = Scratch::new();
        let servers: Vec<Rival> =
            (0..devices).map(|_| Rival::nbdkit_unix(&["memory", &each.to_string()])).collect();
        let files: Vec<NbdFuse> = servers.iter().map(|server| NbdFuse::start(&server.uri)).collect();
        let mount = scratch.directory("mnt");
        let path = mount.join("file");
        // Built up in place, so that a failure half way is cleaned up by its drop.
        let mut striped = Self { path, mount, devices: Vec::new(), files, servers, _scratch: scratch };
        for file in &striped.files {
            let path = file.path.display().to_string();
            let device = tools::run("losetup", ["--find", "--show", "--direct-io=on", path.as_str()]);
            striped.devices.push(device.trim().to_owned());
        }
        let mut mkfs = tools::command("mkfs.btrfs");
        mkfs.args(["--quiet", "--force", "--data", "raid0", "--metadata", "raid0"]).args(&striped.devices);
        tools::expect_success(&mut mkfs);
        let devices: Vec<String> = striped.devices.iter().map(|device| format!("device={device}")).collect();
        let options = format!("nodatacow,noatime,{}", devices.join(","));
        let mount = striped.mount.display().to_string();
        tools::run(
            "mount",
            ["-t", "btrfs", "-o", options.as_str(), striped.devices[0].as_str(), mount.as_str()],
        );
        std::fs::File::create(&striped.path)
            .and_then(|file| file.set_len(bytes))
            .expect("a file on the stripe");
        striped
    }

    /// Everything behind it.
    pub fn pids(&self) -> Vec<u32> {
        let files = self.files.iter().map(|file| file.process.pid());
        files.chain(self.servers.iter().map(|server| server.process.pid())).collect()
    }
}

impl Drop for Striped {
    fn drop(&mut self) {
        // Mounts and devices first: what serves them ends afterwards. What is not there any more is fine.
        let _ = tools::output(tools::command("umount").arg("--lazy").arg(&self.mount));
        for device in &self.devices {
            let _ = tools::output(tools::command("losetup").args(["--detach", device]));
        }
    }
}

/// A TCP port that is free, for a server that has to be told one. It lies below those that the kernel deals
/// out by itself, so that no connection, and no listener that leaves the choice to the kernel, gets it before
/// that server.
#[track_caller]
pub fn free_port() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    // Runs beside each other begin in different places.
    let first = std::process::id().wrapping_mul(61);
    let next = || first.wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed)) % u32::from(PORTS);
    let mut ports = std::iter::repeat_with(next).take(PORTS.into()).map(|number| PORTS + number as u16);
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).expect("a free port")
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
    iperf3_streams(lan, from, to, seconds, 1)
}

/// The same with several connections at once.
#[track_caller]
pub fn iperf3_streams(lan: &Lan, from: Node, to: Node, seconds: u32, streams: u32) -> f64 {
    let iperf = tools::need("iperf3");
    let mut client = lan.exec(from, &iperf);
    client.args(["--parallel", &streams.to_string()]);
    iperf3(lan.exec(to, &iperf), client, &to.address(), (5201, 5201), seconds).mbit_per_second
}

/// The same, but the client goes to a relay that hands on to port 5201 of the host `to`.
#[track_caller]
pub fn iperf3_via(lan: &Lan, from: Node, to: Node, relay: (&str, u16), seconds: u32) -> f64 {
    let iperf = tools::need("iperf3");
    let (server, client) = (lan.exec(to, &iperf), lan.exec(from, &iperf));
    iperf3(server, client, relay.0, (5201, relay.1), seconds).mbit_per_second
}

/// What iperf3 did.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    pub mbit_per_second: f64,
    /// Processor time of both ends, in seconds.
    pub cpu_per_gb: f64,
}

/// iperf3 over loopback.
#[track_caller]
pub fn iperf3_loopback(seconds: u32) -> Moved {
    let port = free_port();
    iperf3(tools::command("iperf3"), tools::command("iperf3"), "127.0.0.1", (port, port), seconds)
}

/// The same with one hop more: through a relay that copies what it receives to who shall have it, and does no
/// more. `copies`: it hands them to so many, of whom all but one throw away what they get.
#[track_caller]
pub fn iperf3_relayed(seconds: u32, copies: usize) -> f64 {
    let port = free_port();
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let ports = (port, relay(here, (here, port).into(), copies).expect("sockets for a relay"));
    iperf3(tools::command("iperf3"), tools::command("iperf3"), "127.0.0.1", ports, seconds).mbit_per_second
}

/// As much as a relay copies at once.
const RELAYED_BYTES: usize = 256 << 10;

/// Hands on the two connections of an iperf3 client, that of its orders and that of its data; its port.
///
/// # Errors
/// No sockets.
pub fn relay(at: IpAddr, to: SocketAddr, copies: usize) -> io::Result<u16> {
    let (listener, port) = listen(at)?;
    let more = copies - 1;
    let sinks = (IpAddr::V4(Ipv4Addr::LOCALHOST), sink(more)?).into();
    std::thread::spawn(move || {
        // The other way round it would wait for a third connection.
        for (more, near) in [0, more].into_iter().zip(listener.incoming().flatten()) {
            // iperf3 tells of a connection that is missing.
            let addresses = std::iter::once(to).chain(std::iter::repeat_n(sinks, more));
            let Ok(far) = addresses.map(connect).collect::<io::Result<Vec<_>>>() else { return };
            if let (Ok(near), Ok(far)) = (near.try_clone(), far[0].try_clone()) {
                std::thread::spawn(move || hand_on(far, vec![near]));
            }
            std::thread::spawn(move || hand_on(near, far));
        }
    });
    Ok(port)
}

fn listen(at: IpAddr) -> io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind((at, 0))?;
    // What is accepted inherits it.
    rustix::net::sockopt::set_tcp_congestion(&listener, "reno")?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    let _ = rustix::net::sockopt::set_tcp_congestion(&stream, "reno");
    Ok(stream)
}

/// Reads all that so many connections send, of which nothing becomes; its port.
fn sink(connections: usize) -> io::Result<u16> {
    let (listener, port) = listen(Ipv4Addr::LOCALHOST.into())?;
    std::thread::spawn(move || {
        for stream in listener.incoming().take(connections).flatten() {
            std::thread::spawn(move || hand_on(stream, Vec::new()));
        }
    });
    Ok(port)
}

/// Until the end of the stream. By hand: the library's copy would splice, and touch no byte.
fn hand_on(mut from: TcpStream, mut to: Vec<TcpStream>) {
    let mut bytes = vec![0; RELAYED_BYTES];
    while let Ok(got @ 1..) = from.read(&mut bytes)
        && to.iter_mut().all(|to| to.write_all(&bytes[..got]).is_ok())
    {}
    to.iter().for_each(|to| _ = to.shutdown(Shutdown::Write));
}

/// The server listens on the first port, the client goes to the second.
fn iperf3(mut server: Command, mut client: Command, address: &str, ports: (u16, u16), seconds: u32) -> Moved {
    let scratch = Scratch::new();
    server.args(["--server", "--one-off", "--forceflush", "--port", &ports.0.to_string()]);
    let mut server = Process::start("iperf3", server, scratch.path());
    server.wait_for_line("Server listening", wait::SOON);
    client.args(["--json", "--client", address, "--port", &ports.1.to_string(), "--congestion", "reno"]);
    client.args(["--time", &seconds.to_string()]);
    let report: serde_json::Value =
        serde_json::from_str(&tools::expect_success(&mut client)).expect("iperf3 reports JSON");
    let end = &report["end"];
    let number = |value: &serde_json::Value| {
        value.as_f64().unwrap_or_else(|| panic!("iperf3 leaves out what it should report: {report}"))
    };
    let of_processor = &end["cpu_utilization_percent"];
    let busy = (number(&of_processor["host_total"]) + number(&of_processor["remote_total"])) / 100.0;
    let bits_per_second = number(&end["sum_received"]["bits_per_second"]);
    Moved { mbit_per_second: bits_per_second / 1e6, cpu_per_gb: busy * 8e9 / bits_per_second }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_free_port_is_nobody_elses() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port() + 1)).ok();
        let ports: Vec<u16> = (0..100).map(|_| free_port()).collect();
        let taken = taken.map(|listener| listener.local_addr().expect("an address").port());
        assert!(ports.iter().all(|port| (PORTS..2 * PORTS).contains(port) && Some(*port) != taken));
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), ports.len());
    }

    #[test]
    fn every_server_is_ready_and_tells_its_size() {
        let size = 1 << 20;
        let servers = [
            Rival::nbdkit(&["memory", "1M"]),
            Rival::nbdkit_unix(&["memory", "1M"]),
            Rival::qemu_nbd(size, "lent"),
            Rival::nbd_server(size),
        ];
        for server in &servers {
            let told = tools::run("nbdinfo", ["--size", &server.uri]);
            assert_eq!(told.trim(), size.to_string(), "{}", server.uri);
        }
    }

    #[test]
    fn a_relay_hands_on_what_iperf3_sends() {
        assert!(iperf3_relayed(1, 1) > 0.0 && iperf3_relayed(1, 4) > 0.0);
    }

    #[test]
    fn a_stripe_of_files_holds_what_is_written() {
        let striped = Striped::new(2, 32 << 20);
        std::fs::write(&striped.path, vec![7; 32 << 20]).expect("a write");
        let devices = striped.devices.clone();
        assert_eq!((striped.pids().len(), devices.len()), (4, 2));
        assert!(std::fs::read(&striped.path).expect("a read").iter().all(|byte| *byte == 7));
        drop(striped);
        let used = tools::run("losetup", ["--list", "--noheadings", "--output", "NAME"]);
        assert!(used.lines().all(|line| !devices.contains(&line.trim().to_owned())), "{used}");
    }

    #[test]
    fn a_quorum_writes_to_all_and_nbdfuse_shows_it() {
        let children: Vec<Rival> = (0..3).map(|_| Rival::nbdkit(&["memory", "1M"])).collect();
        let quorum = Rival::quorum(&children);
        tools::run("qemu-io", ["-f", "raw", "-c", "write -P 7 4096 512", &quorum.uri]);
        for server in children.iter().chain([&quorum]) {
            let file = NbdFuse::start(&server.uri);
            let bytes = std::fs::read(&file.path).expect("its file");
            assert_eq!((bytes.len(), bytes[4096], bytes[4608]), (1 << 20, 7, 0), "{}", server.uri);
        }
    }
}
