//! Peers that want no good, or have no luck, against real processes: what they can find out, use up, and
//! leave behind.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use cheetah_core::api::API_VERSION;
use cheetah_lab::pool::{Pool, binary};
use cheetah_lab::process::Process;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::{tools, wait};
use serde_json::Value;

/// So long half a request may take, and a handshake: then it is ended, and who waited for its place gets that
/// anyway.
const HALF_REQUEST: Duration = Duration::from_secs(30);
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The program as a child that may have no more than so many files open.
fn with_files(limit: u32, arguments: &[&str]) -> Command {
    let mut command = tools::command("prlimit");
    command.arg(format!("--nofile={limit}:{limit}")).arg(binary()).args(arguments);
    command
}

/// What the coordinator answers to these bytes.
fn ask(url: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).expect("the coordinator");
    stream.set_read_timeout(Some(wait::SOON)).expect("a limit");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    let head = format!("Host: localhost\r\nCheetah-Api: {API_VERSION}\r\nConnection: close");
    let content = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
    format!("POST {path} HTTP/1.1\r\n{head}\r\n{content}\r\n\r\n{body}")
}

#[test]
fn half_sent_requests_keep_nobody_out() {
    // A request, and what TLS begins with.
    for (more, half) in
        [(&["--plaintext"][..], &b"GET /v1/pool HTTP/1.1\r\nhost: local"[..]), (&[], b"\x16\x03\x01")]
    {
        let scratch = Scratch::new();
        let arguments = ["coordinate", "--listen", "127.0.0.1:0", "--state", "memory"];
        let mut command = with_files(256, &[&arguments[..], more].concat());
        let identity = scratch.join("identity");
        command.env("CHEETAH_IDENTITY", &identity);
        let mut coordinator = Process::start("coordinator", command, scratch.path());
        let line = coordinator.wait_for_line("ready: ", wait::SOON);
        let url = line.trim_start_matches("ready: ").to_owned();
        let address = url.split_once("://").expect("a scheme").1;
        let began = Instant::now();
        let mut half_sent = Vec::new();
        for _ in 0..400 {
            let mut stream = TcpStream::connect(address).expect("the kernel accepts");
            // The oldest are closed by now.
            let _ = stream.write_all(half);
            half_sent.push(stream);
        }
        let mut status = with_files(256, &["status", "--pool", &url]);
        tools::expect_success(status.env("CHEETAH_IDENTITY", &identity));
        assert!(began.elapsed() < HALF_REQUEST * 2 / 3, "they were waited for: {:?}", began.elapsed());
        assert!(coordinator.open_files() < 256, "it has some left");
    }
}

/// More connections than there are places for, each with the beginning of a handshake.
fn half_open(address: &str) -> Vec<TcpStream> {
    let one = |_| {
        let mut stream = TcpStream::connect(address).expect("the kernel accepts");
        // The oldest are closed by now.
        let _ = stream.write_all(&[0, 0]);
        stream
    };
    (0..600).map(one).collect()
}

/// At once, not when a handshake has taken too long.
#[track_caller]
fn assert_makes_room(mut oldest: &TcpStream) {
    oldest.set_read_timeout(Some(HANDSHAKE / 2)).expect("a limit");
    let ended = oldest.read_to_end(&mut Vec::new());
    assert!(!matches!(&ended, Err(e) if e.kind() == ErrorKind::WouldBlock), "the oldest is kept: {ended:?}");
}

/// As at a coordinator: connections that say nothing make room for those that ask for something.
#[test]
fn half_open_connections_keep_nobody_from_a_donor() {
    let mut pool = Pool::start();
    let program = pool.command();
    let arguments = ["donate", "128M", "--name", "few", "--listen", "127.0.0.1:0"];
    let mut command = with_files(400, &arguments);
    command.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut donor = Process::start("few", command, pool.scratch().path());
    donor.wait_for_line("ready: donor", wait::SOON);
    pool.create_linear("case", "64M");
    let uri = pool.attach_export_unix("case", &[]).uri;
    let io = |uri: &str, what: &str| {
        let mode = if what == "read" { &["-r"][..] } else { &[] };
        let command = format!("{what} -P 0x3c 0 1M");
        let said = tools::run("qemu-io", [mode, &["-f", "raw", "-c", &command, uri]].concat());
        assert!(!said.contains("failed"), "{said}");
    };
    io(&uri, "write");
    let address = pool.status()["donors"][0]["address"].as_str().expect("an address").to_owned();
    let half_open = half_open(&address);
    assert_makes_room(&half_open[0]);
    // Who was there before, and who comes now.
    io(&uri, "read");
    let reader = pool.scratch().directory("run-2");
    let mut command = pool.command();
    command
        .args(["attach", "case", "--front", "export", "--read-only", "--json"])
        .env("XDG_RUNTIME_DIR", &reader);
    let answer: Value = serde_json::from_str(&tools::expect_success(&mut command)).expect("JSON");
    io(answer["uri"].as_str().expect("a URI"), "read");
    let mut command = pool.command();
    tools::expect_success(command.args(["detach", "case"]).env("XDG_RUNTIME_DIR", &reader));
    assert!(donor.open_files() < 400, "it has some left");
    drop(half_open);
    pool.detach("case");
}

/// As at a donor: strangers that say nothing take no member's place at an export.
#[test]
fn half_open_connections_keep_no_member_from_an_export() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.create_linear("case", "64M");
    let program = pool.command();
    let listen = ["attach", "case", "--front", "export", "--listen", "127.0.0.1:0", "--json"];
    let mut attach = with_files(400, &listen);
    attach.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let answer: Value = serde_json::from_str(&tools::expect_success(&mut attach)).expect("JSON");
    let uri = answer["uri"].as_str().expect("a URI");
    let address = uri.trim_start_matches("nbds://").split('/').next().expect("an address");
    let size = || tools::run("nbdinfo", ["--size", &pool.certified(uri)]);
    assert_eq!(size().trim(), (64 << 20).to_string());
    let half_open = half_open(address);
    assert_makes_room(&half_open[0]);
    assert_eq!(size().trim(), (64 << 20).to_string());
    drop(half_open);
    pool.ok(["detach", "case"]);
}

#[test]
fn who_may_open_few_files_is_told_so() {
    for arguments in [
        &["donate", "64M", "--no-pool", "--listen", "127.0.0.1:0"][..],
        &["coordinate", "--listen", "127.0.0.1:0", "--state", "memory", "--plaintext"],
    ] {
        let said = tools::expect_failure(&mut with_files(24, arguments));
        assert!(said.contains("24 files") && said.contains("ulimit"), "{said}");
        assert!(!said.contains("ready:"), "{said}");
    }
}

#[test]
fn a_page_in_a_browser_changes_and_learns_nothing() {
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "128M");
    pool.create_linear("case-7", "64M");
    let of = |request: &str| ask(pool.url(), request);
    for foreign in ["Host: evil.example", "Host: localhost\r\nOrigin: http://evil.example"] {
        for what in ["GET /v1/pool", "DELETE /v1/volumes/case-7", "GET /v1/volumes/case-7"] {
            let answer = of(&format!(
                "{what} HTTP/1.1\r\n{foreign}\r\nCheetah-Api: {API_VERSION}\r\nConnection: close\r\n\r\n"
            ));
            assert!(answer.starts_with("HTTP/1.1 400") && !answer.contains("case-7"), "{answer}");
        }
    }
    // What a form of a page can send.
    let answer = of("DELETE /v1/volumes/case-7 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("cheetah-api"), "{answer}");
    assert!(pool.ok(["list"]).contains("case-7"));
}

#[test]
fn any_length_of_a_peers_text_is_shown_in_a_line() {
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "128M");
    pool.create_linear("case", "64M");
    for reader in 0..17 {
        let holder = format!("{reader}\u{1b}[31m{}", "x".repeat(4000));
        let attach = serde_json::json!({ "version": API_VERSION, "read_only": true, "holder": holder });
        let answer = ask(pool.url(), &post("/v1/volumes/case/leases", &attach));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    for command in [&["status"][..], &["list"], &["show", "case"]] {
        let said = pool.ok(command);
        assert!(!said.contains('\u{1b}'), "{said}");
        assert!(command[0] != "show" || said.contains("[31mxxx"), "{said}");
    }
}

#[test]
fn a_donor_of_a_pool_names_nothing_and_says_how_to_ask() {
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "128M");
    pool.create_linear("case-7", "64M");
    let status = pool.status();
    let address = status["donors"][0]["address"].as_str().expect("an address").to_owned();
    // What the server says is told to who asks for it.
    let nbdinfo = |arguments: &[&str]| {
        tools::expect_failure(tools::command("nbdinfo").env("LIBNBD_DEBUG", "1").args(arguments))
    };
    let said = nbdinfo(&["--list", &format!("nbd://{address}")]);
    assert!(said.contains("NAME@TOKEN") && !said.contains("case-7"), "{said}");
    for export in ["", "case-7"] {
        let said = nbdinfo(&[&format!("nbd://{address}/{export}")]);
        assert!(said.contains("NAME@TOKEN"), "{said}");
    }
    let attach = serde_json::json!({ "version": API_VERSION, "read_only": true, "holder": "me" });
    let answer = ask(pool.url(), &post("/v1/volumes/case-7/leases", &attach));
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let attached: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    let token = attached["token"].as_str().expect("a token");
    let uri = format!("nbd://{address}/case-7@{token}");
    assert_eq!(tools::run("nbdinfo", ["--size", &uri]).trim(), (64 << 20).to_string());
}

/// Private memory of a process that can be written, which the lent memory is not.
fn private_memory_has(pid: u32, marker: &[u8]) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("needs root");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("needs root");
    let ranges = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (range, access) = (fields.next()?, fields.next()?);
        let (from, to) = range.split_once('-')?;
        let at = |text| u64::from_str_radix(text, 16).ok();
        access.starts_with("rw-p").then_some((at(from)?, at(to)?))
    });
    let has = |(from, to): (u64, u64)| {
        let mut bytes = vec![0; usize::try_from(to - from).expect("fits")];
        // Reserved addresses have nothing to read.
        let _ = memory.read_at(&mut bytes, from);
        bytes.windows(marker.len()).any(|window| window == marker)
    };
    ranges.collect::<Vec<_>>().into_iter().any(has)
}

#[test]
fn what_was_written_is_nowhere_in_a_donor_once_its_volume_is_gone() {
    tools::need_root("to look into another process's memory");
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "128M");
    let pid = pool.pid_of("one");
    pool.create_linear("case", "64M");
    let uri = pool.attach_export("case", &[]).uri;
    // Small requests, many at once: writes are received in batches. And some that are large.
    let all = |what: &str| -> Vec<String> {
        let small = (0..256).map(|at| format!("aio_{what} -q -P 0xa7 {}k 4k", 8 * at));
        let large = (4..8).map(|at| format!("aio_{what} -q -P 0xa7 {at}M 1M"));
        small.chain(large).chain(["aio_flush".to_owned()]).collect()
    };
    let io = |uri: &str, requests: &[String]| {
        let mut qemu_io = tools::command("qemu-io");
        qemu_io.args(["-f", "raw"]);
        for request in requests {
            qemu_io.args(["-c", request]);
        }
        let said = tools::expect_success(qemu_io.arg(uri));
        assert!(!said.contains("failed"), "{said}");
    };
    io(&uri, &all("write"));
    pool.detach("case");
    // Read by another, who has nothing of it yet.
    let uri = pool.attach_export("case", &[]).uri;
    io(&uri, &all("read"));
    pool.detach("case");
    pool.ok(["delete", "case"]);
    wait::until("the donor has let go", wait::SOON, || !private_memory_has(pid, &[0xa7; 64]));
}
