//! Disks that a server has and gives out by TLS alone: as sources, and as disks of a pool.
//!
//! Servers are nbdkit and qemu-nbd, which want a certificate, and an export of another pool. What comes is
//! compared by its hash with what was served. Certificates are `openssl`'s.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cheetah_lab::authority::{self, AUTHORITY, CERTIFICATE, KEY};
use cheetah_lab::dice::noise;
use cheetah_lab::pool::Pool;
use cheetah_lab::process::Process;
use cheetah_lab::rivals::{free_port, wait_for_unix};
use cheetah_lab::scratch::Scratch;
use cheetah_lab::tools::names;
use cheetah_lab::verified::Verified;
use cheetah_lab::{hash, tools, wait};
use cheetah_source::{Options, Source};

const MIB: usize = 1 << 20;

/// Certificates of one authority, which a server and its clients have.
struct Keys {
    scratch: Scratch,
}

impl Keys {
    fn new() -> Keys {
        let keys = Keys { scratch: Scratch::new() };
        authority::certify(&keys.scratch);
        for (of, name) in [(CERTIFICATE, "server-cert.pem"), (KEY, "server-key.pem")] {
            fs::copy(keys.scratch.join(of), keys.scratch.join(name)).expect("certified");
        }
        keys
    }

    fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// A directory with some of the files, as a client has that was given no more.
    fn only(&self, name: &str, files: &[&str]) -> PathBuf {
        let directory = self.scratch.directory(name);
        for file in files {
            fs::copy(self.scratch.join(file), directory.join(file)).expect("certified");
        }
        directory
    }

    fn address(&self, uri: &str) -> String {
        with(uri, self.directory())
    }

    /// nbdkit, at a socket; it lets in nobody without a certificate of the authority.
    fn nbdkit(&self, at: &Path, file: &Path) -> Process {
        let mut command = tools::command("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--tls=require", "--tls-verify-peer"]);
        command.arg(format!("--tls-certificates={}", self.directory().display()));
        command.arg("--unix").arg(at).arg("file").arg(file);
        let process = Process::start("nbdkit", command, self.scratch.path());
        wait_for_unix(at);
        process
    }

    /// qemu-nbd, on TCP, in the same way; and where.
    fn qemu_nbd(&self, file: &Path) -> (Process, String) {
        let port = free_port();
        let mut command = tools::command("qemu-nbd");
        command.args(["--format=raw", "--persistent", "--shared=0", "--bind=127.0.0.1", "--object"]);
        let directory = self.directory().display();
        command.arg(format!("tls-creds-x509,id=keys,endpoint=server,verify-peer=on,dir={directory}"));
        command.args(["--tls-creds=keys", &format!("--port={port}"), "--export-name=disk"]).arg(file);
        let process = Process::start("qemu-nbd", command, self.scratch.path());
        let uri = format!("nbds://127.0.0.1:{port}/disk");
        wait::until("qemu-nbd", wait::SOON, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        (process, uri)
    }
}

fn with(uri: &str, directory: &Path) -> String {
    let before = if uri.contains('?') { '&' } else { '?' };
    format!("{uri}{before}tls-certificates={}", directory.display())
}

/// By TLS, at a socket of this machine; the certificate is of 127.0.0.1.
fn at_socket(socket: &Path) -> String {
    format!("nbds+unix:///?socket={}&tls-hostname=127.0.0.1", socket.display())
}

fn pool() -> Pool {
    let mut pool = Pool::start();
    pool.donate("one", "512M");
    pool
}

/// `load` of what is not to be had, and what it says.
#[track_caller]
fn load_fails(pool: &Pool, url: &str, says: &[&str]) {
    let mut command = pool.command();
    // Nobody's certificates lie there.
    command.args(["load", url, "case", "--patience", "1"]).env("HOME", pool.scratch().directory("nobody"));
    names(&tools::expect_failure(&mut command), says);
    assert_eq!(pool.status()["volumes"], serde_json::json!([]), "{url}");
}

#[test]
fn a_disk_comes_by_tls_from_servers_that_others_wrote() {
    let (pool, keys) = (pool(), Keys::new());
    let mut bytes = noise(40 * MIB, 1);
    bytes[10 * MIB..20 * MIB].fill(0);
    let disk = pool.scratch().file("disk.raw", &bytes);
    let expected = hash::of_file(&disk);
    let socket = keys.scratch.join("kit.sock");
    let _kit = keys.nbdkit(&socket, &disk);
    let (_qemu, uri) = keys.qemu_nbd(&disk);
    for (number, address) in [at_socket(&socket), uri.clone()].into_iter().enumerate() {
        let address = keys.address(&address);
        for what in ["load", "open"] {
            let name = format!("{what}{number}");
            pool.ok([what, &address, &name]);
            let content = || pool.json(["show", &name])["status"]["content"].clone();
            wait::until("it is sealed", wait::SOON, || !content()["sealed"].is_null());
            assert_eq!(content()["load"]["sha256"], expected, "{address}");
        }
    }
    // Where this machine's certificates lie is nothing to the pool, but for a socket of this machine.
    let content = pool.json(["show", "load1"])["status"]["content"].clone();
    assert_eq!(content["load"]["source"]["name"], uri, "{content}");

    // Where libnbd looks by itself.
    let home = pool.scratch().directory("home");
    fs::create_dir_all(home.join(".pki")).expect("a directory");
    std::os::unix::fs::symlink(keys.directory(), home.join(".pki/libnbd")).expect("a link");
    tools::expect_success(pool.command().args(["load", &uri, "found"]).env("HOME", &home));
}

#[test]
fn an_export_of_another_pool_is_a_source() {
    let (mut other, pool) = (pool(), pool());
    let bytes = noise(9 * MIB, 2);
    let disk = other.scratch().file("disk.raw", &bytes);
    other.ok(["load", &disk.display().to_string(), "case"]);
    let export = other.attach_export("case", &["--read-only"]);
    names(&export.uri, &["nbds://", "tls-certificates="]);
    pool.ok(["load", &export.uri, "copy"]);
    let content = pool.json(["show", "copy"])["status"]["content"].clone();
    assert_eq!(content["load"]["sha256"], hash::of_file(&disk), "{content}");
    other.detach("case");
}

#[test]
fn nobody_is_read_from_for_whom_nobody_vouches() {
    let (pool, keys) = (pool(), Keys::new());
    let disk = pool.scratch().file("disk.raw", &noise(MIB, 3));
    let (_qemu, uri) = keys.qemu_nbd(&disk);
    let fails = |url: &str, says: &[&str]| load_fails(&pool, url, says);
    fails(&uri, &["the server's certificate is not good"]);
    let authority = keys.only("authority", &[AUTHORITY]);
    fails(&with(&uri, &authority), &["does not let us in", "client-cert.pem"]);
    fails(&with(&uri, Keys::new().directory()), &["the server's certificate is not good"]);
    // It is another host's: unless that is said to be meant.
    let elsewhere = keys.address(&uri.replace("127.0.0.1", "localhost"));
    fails(&elsewhere, &["certificate is not good", "tls-hostname"]);
    pool.ok(["load", &format!("{elsewhere}&tls-hostname=127.0.0.1"), "meant"]);
    pool.ok(["delete", "meant"]);
    let revoked = keys.only("revoked", &[AUTHORITY, CERTIFICATE, KEY]);
    authority::revoke(&keys.scratch);
    fs::copy(keys.scratch.join("ca-crl.pem"), revoked.join("ca-crl.pem")).expect("a list");
    fails(&with(&uri, &revoked), &["certificate is not good", "revoked"]);
    // What is asked for wrongly.
    fails(&uri.replace("nbds", "nbd"), &["requires TLS", "nbds://"]);
    fails(&keys.address(&uri.replace("nbds", "nbd")), &["in the clear", "nbds://"]);
    fails(&format!("{uri}?tls-verify-peer=false"), &["any server believed", "tls-certificates"]);
    fails(&with(&uri, Path::new("/nowhere")), &["/nowhere", "no such directory"]);
    let half = keys.only("half", &[AUTHORITY, CERTIFICATE]);
    fails(&with(&uri, &half), &["client-key.pem", "cannot be used"]);
}

/// Nothing is said in the clear that was to go by TLS, and nothing is taken that came so.
#[test]
fn a_server_that_talks_tls_down_gets_no_name_and_gives_no_byte() {
    let (pool, keys) = (pool(), Keys::new());
    let disk = pool.scratch().file("disk.raw", &noise(MIB, 4));
    let clear = cheetah_lab::rivals::Rival::nbdkit(&["file", &disk.display().to_string()]);
    load_fails(&pool, &keys.address(&clear.uri.replace("nbd://", "nbds://")), &["offers no TLS"]);

    // One that agrees, and says more in the clear behind that.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        client.write_all(b"NBDMAGICIHAVEOPT\x00\x03").expect("sent");
        let mut asked = [0; 4 + 16];
        client.read_exact(&mut asked).expect("an option");
        let option = asked[12..16].to_vec();
        let answer = |kind: u32| {
            let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
            [&magic[..], &option, &kind.to_be_bytes(), &0_u32.to_be_bytes()].concat()
        };
        client.write_all(&[answer(1), answer(1)].concat()).expect("sent");
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).expect("it ends");
        (option, rest)
    });
    let address = keys.address(&format!("nbds://127.0.0.1:{port}/secret"));
    load_fails(&pool, &address, &["speaks on in the clear"]);
    let (option, rest) = server.join().expect("it was asked");
    assert_eq!((option, rest), (vec![0, 0, 0, 5], Vec::new()), "STARTTLS, and not a byte behind it");
}

/// It ends while it is read, and comes back.
#[test]
fn reads_go_on_when_a_server_is_back() {
    let keys = Keys::new();
    let bytes = noise(16 * MIB, 5);
    let disk = keys.scratch.file("disk.raw", &bytes);
    let socket = keys.scratch.join("kit.sock");
    let mut kit = keys.nbdkit(&socket, &disk);
    let patience = Duration::from_secs(60);
    let address = keys.address(&at_socket(&socket));
    let options = Options { patience, ..Options::default() };
    let source: Box<dyn Source> =
        cheetah_source::open(Path::new(&address), &options).unwrap_or_else(|error| panic!("{error}"));
    std::thread::scope(|threads| {
        for reader in 0..4 {
            let (source, bytes) = (&source, &bytes);
            threads.spawn(move || {
                // Of odd lengths, so that records end anywhere.
                let mut room = vec![0; 100_001];
                for at in (reader * room.len()..15 * MIB).step_by(4 * room.len()) {
                    source.read_exact_at(at as u64, &mut room).unwrap_or_else(|error| panic!("{error}"));
                    assert!(room == bytes[at..at + room.len()], "at {at}");
                }
            });
        }
        for _ in 0..3 {
            kit.kill();
            fs::remove_file(&socket).expect("its socket");
            kit = keys.nbdkit(&socket, &disk);
        }
    });
}

#[test]
fn an_export_by_tls_is_a_disk_of_the_pool() {
    let keys = Keys::new();
    let place = Scratch::on_disk();
    let disk = place.sparse_file("disk", 300 << 20);
    let (mut qemu, uri) = keys.qemu_nbd(&disk);
    let mut pool = Pool::start();
    pool.donate_as("d0", &["--disk", &keys.address(&uri), "--cache", "64M"]);
    let bytes = noise(32 * MIB, 6);
    pool.ok(["create", "v", "32M", "--on", "disk", "--redundancy", "linear"]);
    let path = pool.attach_fuse("v", &[]).path;
    fs::write(&path, &bytes).expect("written");
    assert!(fs::read(&path).expect("read") == bytes);
    let verified = Verified::run(&pool, "v");
    assert_eq!(verified.code, 0, "{verified:?}");
    pool.detach("v");
    // Both come back, and what was written is there.
    pool.donor("d0").kill();
    qemu.kill();
    let (_qemu, uri) = keys.qemu_nbd(&disk);
    pool.donate_as("d0", &["--disk", &keys.address(&uri), "--cache", "64M"]);
    let path = pool.attach_fuse("v", &[]).path;
    assert!(fs::read(&path).expect("read") == bytes);
}
