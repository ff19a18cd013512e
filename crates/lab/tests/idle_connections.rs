//! A thousand idle connections, and one that sends a byte a second, beside one that works.
//! Compared is the work done, never a time: with the idlers there, the same work is done, at no more than a
//! small multiple of the processor time; afterwards memory and file descriptors are back where they were. And
//! an attachment that looked for work while there was some takes no processor time when there is none.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cheetah_lab::lone::LoneDonor;
use cheetah_lab::pool::Pool;
use cheetah_lab::process::{self, Process};
use cheetah_lab::{tools, wait};

const IDLERS: usize = 1000;

/// Connects and takes the greeting, then says nothing more.
fn idler(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let mut greeting = [0; 18];
    stream.set_read_timeout(Some(wait::SOON)).expect("a limit");
    stream.read_exact(&mut greeting).expect("the greeting of an NBD server");
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    stream
}

/// The fixed work of the one that works: 256 MiB in, read back and compared. Answers the server's processor
/// time.
fn work(uri: &str, pid: u32) -> Duration {
    let before = process::cpu_time(pid);
    let commands = ["-c", "write -P 0x3c 0 256M", "-c", "flush", "-c", "read -P 0x3c 0 256M"];
    let said = tools::run("qemu-io", ["-f", "raw"].iter().chain(&commands).chain(&[uri]));
    assert!(!said.contains("failed"), "{said}");
    process::cpu_time(pid) - before
}

fn a_crowd_slows_nobody_and_leaves_nothing(uri: &str, pid: u32) {
    let address = uri.trim_start_matches("nbd://").split('/').next().expect("an address").to_owned();
    // Once to warm up, so that what a first connection allocates for good is not counted as a leak.
    work(uri, pid);
    drop((0..16).map(|_| idler(&address)).collect::<Vec<_>>());
    let alone = work(uri, pid);
    wait::until("the first idlers to be forgotten", wait::SOON, || process::open_files(pid) < 64);
    let (files, memory) = (process::open_files(pid), process::resident_bytes(pid));

    let crowd: Vec<TcpStream> = (0..IDLERS).map(|_| idler(&address)).collect();
    assert!(process::open_files(pid) >= IDLERS, "the server does not hold the idlers");
    let crowded_memory = process::resident_bytes(pid).saturating_sub(memory);
    assert!(crowded_memory < IDLERS as u64 * 64 * 1024, "{crowded_memory} bytes for {IDLERS} idlers");

    // One that dribbles the client's flags and an option header, a byte at a time.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let mut slow = idler(&address);
    let dribbler = std::thread::spawn(move || {
        for byte in [0, 0, 0, 3].into_iter().chain(*b"IHAVEOPT").chain([0; 64]) {
            if slow.write_all(&[byte]).is_err() || stopped.recv_timeout(Duration::from_secs(1)).is_ok() {
                return;
            }
        }
    });
    let start = Instant::now();
    let crowded = work(uri, pid);
    eprintln!("server's processor time alone {alone:?}, in a crowd {crowded:?}, over {:?}", start.elapsed());
    // A server that looks at every connection for every request would need hundreds of times as much.
    assert!(crowded < alone * 3 + Duration::from_millis(200), "alone {alone:?}, in a crowd {crowded:?}");
    // The dribbler may have been told to go by the server already.
    let _ = stop.send(());
    dribbler.join().expect("the dribbler ends");

    drop(crowd);
    wait::until("the file descriptors of before", wait::SOON, || process::open_files(pid) <= files + 2);
    let after = process::resident_bytes(pid);
    assert!(after < memory + (8 << 20), "{memory} bytes before, {after} after");
    work(uri, pid);
}

#[test]
fn a_donor_with_a_thousand_idle_connections() {
    let donor = LoneDonor::tcp("512M");
    let pid = Process::pid(&donor.process);
    a_crowd_slows_nobody_and_leaves_nothing(&donor.uri, pid);
}

#[test]
fn an_export_with_a_thousand_idle_connections() {
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "512M");
    pool.create_linear("case", "512M");
    let uri = pool.attach_export("case", &[]).uri;
    let daemons = pool.daemons();
    let [daemon] = daemons.as_slice() else { panic!("one daemon, not {daemons:?}") };
    a_crowd_slows_nobody_and_leaves_nothing(&uri, daemon.pid);
    pool.detach("case");
}

#[test]
fn an_attachment_that_nobody_uses_any_more_takes_no_processor_time() {
    const ROUNDS: u32 = 6;
    const PAUSE: Duration = Duration::from_millis(500);
    let mut pool = Pool::start();
    pool.donate("one", "512M");
    pool.create_linear("case", "512M");
    // As long as can be, so that it looks however slow this machine is.
    let export = pool.attach_export_unix("case", &["--poll-us", "1000"]);
    let reads = ["-c", "read 0 4k"].repeat(50);
    let mut idle = Duration::ZERO;
    // More than once: news of the pool come from time to time, behind which it sleeps anyway.
    for _ in 0..ROUNDS {
        tools::run("qemu-io", ["-r", "-f", "raw"].iter().chain(&reads).chain(&[export.uri.as_str()]));
        let before = process::cpu_time(export.pid);
        std::thread::sleep(PAUSE);
        idle += process::cpu_time(export.pid) - before;
    }
    assert!(idle < PAUSE * ROUNDS / 10, "{idle:?} in {ROUNDS} pauses of {PAUSE:?}");
    pool.detach("case");
}
