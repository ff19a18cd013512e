//! Bad input: each ends with a nonzero code and a message that names what to do, and nothing is lost by it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use cheetah_lab::lone::LoneDonor;
use cheetah_lab::pool::{Pool, binary};
use cheetah_lab::process::Process;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::{tools, wait};
use serde_json::json;

/// Asserts that a message names each of these, whatever the case of its letters.
#[track_caller]
fn names(message: &str, words: &[&str]) {
    let lower = message.to_lowercase();
    for word in words {
        assert!(lower.contains(&word.to_lowercase()), "{word:?} is not in: {message}");
    }
}

/// A pool with one donor of 256 MiB and a volume of 128 MiB that holds a known pattern.
fn small_pool() -> Pool {
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool.create_linear("kept", "128M");
    pool
}

#[test]
fn no_pool_found() {
    let pool = Pool::without_coordinator(None);
    for arguments in
        [&["status"][..], &["list"], &["create", "x", "1G"], &["attach", "x"], &["load", "/etc/passwd", "x"]]
    {
        let said = pool.fails(arguments);
        names(&said, &["127.0.0.1:9", "--pool"]);
    }
}

#[test]
fn no_pool_named_and_none_on_the_network() {
    let mut command = std::process::Command::new(tools::need("timeout"));
    command.arg("60").arg(binary()).arg("status").env_remove("CHEETAH_POOL");
    let output = tools::output(&mut command);
    // Another pool of this machine's user may be found on the network; then there is nothing to show here.
    if !output.status.success() {
        assert_ne!(output.status.code(), Some(124), "looking for a pool never ends");
        names(&String::from_utf8_lossy(&output.stderr), &["pool", "cheetah coordinate", "--pool"]);
    }
}

#[test]
fn pool_full_says_how_much_is_free_and_where() {
    let pool = small_pool();
    let said = pool.fails(["create", "big", "1G", "--redundancy", "linear"]);
    names(&said, &["free", "one", "128 MiB"]);
    let said = pool.fails(["grow", "kept", "1G"]);
    names(&said, &["free", "one", "128 MiB"]);
    assert_eq!(pool.volume_status("kept")["size"], json!(128 << 20));
    pool.create_linear("fits", "128M");
}

#[test]
fn a_stripe_wider_than_the_pool() {
    let pool = small_pool();
    names(&pool.fails(["create", "wide", "64M", "--redundancy", "stripe:4"]), &["4", "donor"]);
}

#[test]
fn sizes_of_zero_and_beyond_what_there_is() {
    let pool = small_pool();
    for size in ["0", "0G", "9223372036854775808", "16E", "-1", "1Q", "", "G", "99999999999999999999999"] {
        let said = pool.fails(["create", "--redundancy", "linear", "--", "x", size]);
        names(&said, &["size"]);
    }
    for size in ["0", "9223372036854775808"] {
        names(&pool.fails(["grow", "kept", size]), &["size"]);
        names(&pool.fails(["donate", size, "--no-pool", "--listen", "127.0.0.1:0"]), &[size]);
    }
    names(&pool.fails(["grow", "kept", "64M"]), &["134217728", "shrink"]);
    assert_eq!(pool.volume_status("kept")["size"], json!(128 << 20));
}

#[test]
fn names_taken_and_malformed() {
    let pool = small_pool();
    names(&pool.fails(["create", "kept", "64M"]), &["kept", "already"]);
    let long = "x".repeat(65);
    for name in ["", ".", "..", "a/b", "a b", "a\nb", "-", "ä", long.as_str()] {
        let said = pool.fails(["create", "--redundancy", "linear", "--", name, "64M"]);
        names(&said, &["name"]);
    }
    assert_eq!(pool.status()["volumes"].as_array().map(Vec::len), Some(1));
}

#[test]
fn volumes_that_do_not_exist() {
    let pool = small_pool();
    for arguments in [
        &["attach", "ghost", "--front", "export", "--listen", "127.0.0.1:0"][..],
        &["show", "ghost"],
        &["grow", "ghost", "1G"],
        &["delete", "ghost"],
    ] {
        names(&pool.fails(arguments), &["ghost"]);
    }
    names(&pool.fails(["leave", "nobody"]), &["nobody"]);
}

#[test]
fn a_mount_point_that_is_missing_or_busy() {
    let mut pool = small_pool();
    let missing = pool.scratch().join("missing").display().to_string();
    names(&pool.fails(["attach", "kept", &missing, "--front", "fuse"]), &[&missing, "mkdir"]);
    let file = pool.scratch().file("file", b"x").display().to_string();
    names(&pool.fails(["attach", "kept", &file, "--front", "fuse"]), &[&file, "director"]);

    pool.create_linear("other", "64M");
    let path = pool.attach_fuse("kept", &[]).path;
    let busy = path.parent().expect("a mount point").display().to_string();
    names(&pool.fails(["attach", "other", &busy, "--front", "fuse"]), &[&busy]);
    assert!(path.exists(), "the failed attach took the first one away");
    pool.detach("kept");
}

#[test]
fn no_fuse() {
    tools::need_root("hiding /dev/fuse");
    let pool = small_pool();
    let directory = pool.mount_directory("kept").display().to_string();
    // In a mount namespace of its own, /dev has what any program needs but no /dev/fuse.
    let few = pool.scratch().directory("dev").display().to_string();
    let script = format!(
        "mount -t tmpfs few {few} && cp -a /dev/null /dev/zero /dev/urandom /dev/random {few}/ && \
         mkdir {few}/shm && mount --move {few} /dev && exec \"$@\""
    );
    let mut inner = tools::command("unshare");
    inner.args(["--mount", "sh", "-c", &script, "sh"]).arg(binary());
    inner.args(["attach", "kept", &directory, "--front", "fuse"]);
    for (key, value) in pool.command().get_envs() {
        inner.env(key, value.unwrap_or_default());
    }
    names(&tools::expect_failure(&mut inner), &["/dev/fuse", "--front export"]);
    wait::until("the end of the daemon", wait::SOON, || pool.daemons().is_empty());
    assert_eq!(pool.volume_status("kept")["attachments"], json!([]), "the lease is left");
}

#[test]
fn a_donor_asked_for_more_than_the_machine_has() {
    let pool = small_pool();
    let said =
        pool.fails(["donate", "100T", "--pool", pool.url(), "--listen", "127.0.0.1:0", "--name", "huge"]);
    names(&said, &["100 TiB", "auto"]);
    assert_eq!(pool.status()["donors"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_second_writer_is_told_who_the_first_is() {
    let mut pool = small_pool();
    let uri = pool.attach_export_unix("kept", &[]).uri;
    let again = ["attach", "kept", "--front", "export", "--listen", "127.0.0.1:0"];
    names(&pool.fails(again), &["kept", &uri, "cheetah detach kept"]);
    // From another machine, which has no record of the first attachment.
    let other = Scratch::new();
    let mut elsewhere = pool.command();
    elsewhere.env("XDG_RUNTIME_DIR", other.path()).args(again);
    names(&tools::expect_failure(&mut elsewhere), &["kept", "process", "--read-only"]);
    names(&pool.fails(["delete", "kept"]), &["kept", "detach"]);
    tools::run("qemu-io", ["-f", "raw", "-c", "write -P 1 0 1M", "-c", "flush", &uri]);
    pool.detach("kept");
    pool.attach_export("kept", &[]);
    pool.detach("kept");
}

#[test]
fn detach_of_what_is_not_attached() {
    let pool = small_pool();
    names(&pool.fails(["detach", "kept"]), &["kept", "not attached"]);
    names(&pool.fails(["detach", "ghost"]), &["ghost", "no volume"]);
}

/// The record is in another runtime directory: that is said, and where it was looked for.
#[test]
fn detach_says_where_it_looked() {
    let mut pool = small_pool();
    pool.attach_export("kept", &[]);
    let other = Scratch::new();
    let mut elsewhere = pool.command();
    elsewhere.env("XDG_RUNTIME_DIR", other.path()).args(["detach", "kept"]);
    let looked_for = other.join("cheetah/kept.json").display().to_string();
    names(&tools::expect_failure(&mut elsewhere), &["kept", &looked_for, "another XDG_RUNTIME_DIR"]);
    pool.detach("kept");
}

#[test]
fn what_means_nothing_on_a_command_line_is_refused() {
    let pool = small_pool();
    let directory = pool.scratch().directory("point").display().to_string();
    for (arguments, words) in [
        (&["attach", "kept", &directory, "--listen", "127.0.0.1:0"][..], &["--listen", "--front export"][..]),
        (&["status", "--pool", "https://10.0.0.1:1"], &["https://10.0.0.1:1", "URL of a coordinator"]),
        (&["donate", "64M", "--pool", "https://10.0.0.1:1"], &["URL of a coordinator"]),
        (&["donate", "64M", "--host-id", ""], &["--host-id"]),
        (&["donate", "-5"], &["'-5'", "512M or 4G"]),
        (&["create", "x", "-5"], &["'-5'", "512M or 4G"]),
        (&["create", "-x"], &["'-x'", "512M or 4G"]),
        (&["grow", "kept", "-1G"], &["'-1G'", "512M or 4G"]),
    ] {
        let said = pool.run(arguments);
        assert_eq!(said.status.code(), Some(2), "{arguments:?}: {}{}", said.out, said.err);
        names(&said.err, words);
        assert!(!said.err.contains("-- -"), "{}", said.err);
    }
    assert_eq!(pool.volume_status("kept")["attachments"], json!([]));
}

/// Whoever finds it out, the command or the daemon that it starts.
#[test]
fn the_same_failure_has_the_same_code() {
    let pool = small_pool();
    for arguments in [&["show", "nope"][..], &["delete", "nope"], &["leave", "nope"], &["attach", "nope"]] {
        let said = pool.run(arguments.iter().chain(&["--json"]));
        assert_eq!(said.status.code(), Some(4), "{arguments:?}");
        let error: serde_json::Value = serde_json::from_str(&said.err).expect("JSON");
        assert_eq!(error["error"]["code"], "not_found", "{arguments:?}: {}", said.err);
        assert!(error["error"]["do"].is_string(), "{arguments:?}: {}", said.err);
    }
}

#[test]
fn memory_that_is_no_whole_number_of_extents_is_said() {
    let pool = small_pool();
    let arguments = ["donate", "100M", "--pool", pool.url(), "--listen", "127.0.0.1:0", "--name", "part"];
    let mut command = pool.command();
    command.args(arguments).env("CHEETAH_HOST_ID", "part");
    let mut donor = Process::start("part", command, pool.scratch().path());
    donor.wait_for_line("ready: donor part lends 64 MiB", wait::SOON);
    names(&donor.log(), &["whole extents of 64 MiB", "100 MiB"]);
}

#[test]
fn an_image_larger_than_the_volume() {
    let pool = small_pool();
    let image = pool.scratch().sparse_file("large.raw", (128 << 20) + 1);
    let said = pool.fails(["load", &image.display().to_string(), "kept"]);
    names(&said, &["large.raw", "kept", "grow"]);
    names(&pool.fails(["load", "/no/such/image", "kept"]), &["/no/such/image"]);
    let directory = pool.scratch().directory("directory").display().to_string();
    names(&pool.fails(["load", &directory, "kept"]), &[&directory]);
    assert_eq!(pool.volume_status("kept")["attachments"], json!([]), "the lease is left");
}

#[test]
fn a_volume_that_was_written_is_not_overwritten_unasked() {
    let mut pool = small_pool();
    let image = pool.scratch().sparse_file("small.raw", 1 << 20).display().to_string();
    let uri = pool.attach_export_unix("kept", &[]).uri;
    tools::run("qemu-io", ["-f", "raw", "-c", "write -P 1 0 4k", "-c", "flush", &uri]);
    let said = pool.fails(["load", &image, "kept", "--overwrite"]);
    names(&said, &["kept", "attached for writing", "detach"]);
    assert!(!said.contains("--read-only"), "load cannot do that: {said}");
    pool.detach("kept");
    let said = pool.run(["load", &image, "kept"]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    names(&said.err, &["kept", "--overwrite"]);
    assert_eq!(pool.volume_status("kept")["attachments"], json!([]), "the lease is left");
    pool.attach_export("kept", &["--read-only"]);
    let said = pool.run(["load", &image, "kept", "--overwrite"]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    names(&said.err, &["kept", "reads", "detach"]);
    pool.detach("kept");
    names(&pool.ok(["load", &image, "kept", "--overwrite"]), &["verified"]);
    pool.ok(["create", "new", "64M"]);
    names(&pool.ok(["load", &image, "new"]), &["verified"]);
}

/// The source shrinks while it is read: the load says how far it came, and does not claim a hash.
#[test]
fn a_short_read_while_loading() {
    let mut pool = Pool::start();
    pool.donate("one", "2G");
    pool.create_linear("kept", "1536M");
    let image = pool.scratch().sparse_file("shrinks.raw", 1536 << 20);
    let mut command = pool.command();
    command.args(["load", &image.display().to_string(), "kept"]);
    let mut load = Process::start("load", command, pool.scratch().path());
    wait::until("the load to be under way", wait::SOON, || {
        assert!(load.is_running(), "the load ended before the source shrank: {}", load.log());
        pool.status()["donors"][0]["bytes_used"].as_u64() > Some(0)
            || pool.volume_status("kept")["attachments"] != json!([])
    });
    std::fs::File::options()
        .write(true)
        .open(&image)
        .and_then(|file| file.set_len(4097))
        .expect("a shorter file");
    let status = load.wait_for_end(wait::SOON);
    let said = load.log();
    assert!(!status.success(), "a short source was loaded without complaint: {said}");
    names(&said, &["shrinks.raw", "ended at byte", "1610612736"]);
    assert!(!said.contains("SHA-256"), "a hash of what is not whole: {said}");
}

#[test]
fn a_port_in_use() {
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = holder.local_addr().expect("its address");
    let (port, address) = (address.port().to_string(), address.to_string());
    let in_use = |said: &str| names(said, &["127.0.0.1", &port, "in use"]);
    let mut pool = small_pool();
    in_use(&pool.fails(["coordinate", "--listen", &address, "--state", "memory"]));
    in_use(&pool.fails(["donate", "64M", "--no-pool", "--listen", &address]));
    in_use(&pool.fails(["donate", "64M", "--pool", pool.url(), "--listen", &address, "--name", "two"]));
    in_use(&pool.fails(["attach", "kept", "--front", "export", "--listen", &address]));
    pool.attach_export("kept", &[]);
    pool.detach("kept");
}

/// A coordinator that speaks another version of the API answers 426; both sides are named.
#[test]
fn a_coordinator_of_another_version() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer_another_version));
    let pool = Pool::without_coordinator(None);
    let url = url.as_str();
    for arguments in [
        &["status", "--pool", url][..],
        &["donate", "64M", "--listen", "127.0.0.1:0", "--name", "one", "--pool", url],
        &["attach", "kept", "--front", "export", "--listen", "127.0.0.1:0", "--pool", url],
    ] {
        names(&pool.fails(arguments), &["version", "9"]);
    }
}

/// Reads one request whole, whatever it is, and refuses it.
fn answer_another_version(mut connection: TcpStream) {
    let mut request = Vec::new();
    let mut bytes = [0; 4096];
    while !is_whole(&request) {
        match connection.read(&mut bytes) {
            Ok(count) if count > 0 => request.extend_from_slice(&bytes[..count]),
            _ => return,
        }
    }
    let body = r#"{"code":"version","message":"this coordinator speaks API version 99; upgrade the client"}"#;
    // A client that went away meanwhile is none of ours.
    let _ = write!(
        connection,
        "HTTP/1.1 426 Upgrade Required\r\ncheetah-api: 99\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
}

/// Whether an HTTP request has its head and the body that the head announces.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let announced = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let announced = announced.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
    body.len() >= announced
}

#[test]
fn a_second_coordinator_on_the_same_state() {
    let mut pool = Pool::with(cheetah_lab::pool::State::Directory, None);
    pool.donate("one", "64M");
    let state = pool.scratch().join("state").display().to_string();
    names(&pool.fails(["coordinate", "--listen", "127.0.0.1:0", "--state", &state]), &[&state]);
    assert_eq!(pool.status()["donors"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_socket_path_that_cannot_be() {
    let scratch = Scratch::new();
    let missing = format!("unix:{}", scratch.join("no/such/directory/x.sock").display());
    let pool = Pool::without_coordinator(None);
    names(&pool.fails(["donate", "64M", "--no-pool", "--listen", &missing]), &["no/such/directory"]);
    // A socket left by a killed donor is no obstacle.
    let mut donor = LoneDonor::unix("64M");
    let socket = donor.uri.split("socket=").nth(1).expect("a socket").to_owned();
    donor.process.kill();
    assert!(Path::new(&socket).exists(), "a killed donor cannot have removed its socket");
    let mut command = pool.command();
    command.args(["donate", "64M", "--no-pool", "--listen", &format!("unix:{socket}")]);
    Process::start("again", command, scratch.path()).wait_for_line("ready: donor", wait::SOON);
}
