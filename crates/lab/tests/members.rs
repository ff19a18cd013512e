//! A pool of members: who is let in, with programs that others wrote, and who is refused: at the
//! coordinator's port, at donors' ports, and at exports.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use cheetah_lab::pool::Pool;
use cheetah_lab::process::Process;
use cheetah_lab::{tools, wait};
use serde_json::Value;

/// A coordinator that lets members in only, and a directory for the identity of each who comes in.
struct Members {
    // Ends before its directories go.
    donors: Vec<Process>,
    coordinator: Process,
    url: String,
    pool: Pool,
}

impl Members {
    fn start(more: &[&str]) -> Members {
        let pool = Pool::without_coordinator(None);
        let (coordinator, url) = Members::coordinate(&pool, "127.0.0.1:0", more);
        let pool = Members { donors: Vec::new(), coordinator, url, pool };
        assert_eq!(pool.json("admin", &["status"])["donors"], Value::Array(Vec::new()));
        pool
    }

    fn coordinate(pool: &Pool, listen: &str, more: &[&str]) -> (Process, String) {
        let mut command = pool.command();
        command.args(["coordinate", "--listen", listen, "--state"]);
        command.arg(pool.scratch().join("state")).args(more);
        command.env("CHEETAH_IDENTITY", pool.scratch().join("admin")).env_remove("CHEETAH_POOL");
        let mut coordinator = Process::start("coordinator", command, pool.scratch().path());
        let ready = coordinator.wait_for_line("ready: cheetah://", wait::SOON);
        let url = ready.trim_start_matches("ready: ").to_owned();
        (coordinator, url)
    }

    fn identity(&self, who: &str) -> PathBuf {
        self.pool.scratch().join(who)
    }

    /// The program as somebody uses it who has come in before: without --pool.
    fn of(&self, who: &str, arguments: &[&str]) -> Command {
        let mut command = self.pool.command();
        command.args(arguments).env_remove("CHEETAH_POOL").env("CHEETAH_IDENTITY", self.identity(who));
        command.env("XDG_RUNTIME_DIR", self.pool.scratch().directory(&format!("run-{who}")));
        command.stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn ok(&self, who: &str, arguments: &[&str]) -> String {
        tools::expect_success(&mut self.of(who, arguments))
    }

    #[track_caller]
    fn fails(&self, who: &str, arguments: &[&str]) -> String {
        tools::expect_failure(&mut self.of(who, arguments))
    }

    #[track_caller]
    fn json(&self, who: &str, arguments: &[&str]) -> Value {
        let out = self.ok(who, &[arguments, &["--json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error} in {out}"))
    }

    /// Somebody new, by a token of an admin.
    #[track_caller]
    fn join(&self, who: &str, role: &str) {
        let invitation = self.ok("admin", &["token", "new", "--role", role]);
        self.ok(who, &["join", invitation.trim()]);
    }

    #[track_caller]
    fn donate(&mut self, name: &str) -> String {
        self.join(name, "donor");
        let mut command = self.of(name, &["donate", "128M", "--name", name, "--listen", "127.0.0.1:0"]);
        command.env("CHEETAH_HOST_ID", name);
        let mut process = Process::start(&format!("donor-{name}"), command, self.pool.scratch().path());
        let ready = process.wait_for_line("ready: donor", wait::SOON);
        self.donors.push(process);
        let address = ready.split(" at ").nth(1).and_then(|rest| rest.split(' ').next());
        address.expect("where it lends").to_owned()
    }

    /// A volume that this client has attached as an export on TCP: `nbds://IP:PORT/NAME`.
    #[track_caller]
    fn export(&self, who: &str, name: &str) -> String {
        self.ok(who, &["create", name, "32M", "--redundancy", "linear"]);
        let attached = self.json(who, &["attach", name, "--front", "export", "--listen", "127.0.0.1:0"]);
        attached["uri"].as_str().expect("an address").to_owned()
    }

    /// With the certificate of somebody, as libnbd takes it.
    fn with(&self, who: &str, uri: &str) -> String {
        format!("{uri}?tls-certificates={}", self.identity(who).display())
    }

    fn port(&self) -> &str {
        self.url.trim_start_matches("cheetah://")
    }

    #[track_caller]
    fn member(&self, role: &str) -> String {
        let members = self.json("admin", &["member", "list"]);
        let all = members["members"].as_array().expect("members");
        let found = all.iter().find(|member| member["role"] == role).and_then(|m| m["member"].as_str());
        found.unwrap_or_else(|| panic!("no {role} in {members}")).to_owned()
    }
}

/// What another pool's coordinator certifies is nobody here.
fn stranger() -> (Members, &'static str) {
    let other = Members::start(&[]);
    other.join("eve", "client");
    (other, "eve")
}

#[test]
fn other_peoples_programs_read_and_write_with_a_certificate_of_the_pool() {
    let mut pool = Members::start(&[]);
    pool.donate("d1");
    pool.join("eve", "client");
    let uri = pool.export("eve", "case");
    assert!(uri.starts_with("nbds://"), "{uri}");
    let written = pool.pool.scratch().file("written", &[0x5a; 1 << 20]);
    std::fs::File::options().write(true).open(&written).expect("a file").set_len(32 << 20).expect("room");
    let read = pool.pool.scratch().join("read");
    tools::run("nbdcopy", [written.as_os_str(), pool.with("eve", &uri).as_ref()]);
    // Another program's own directory of certificates, of a member of its own.
    pool.ok("admin", &["token", "new", "--role", "client", "--pem", &pool.identity("pem").to_string_lossy()]);
    tools::run("nbdcopy", [pool.with("pem", &uri).as_ref(), read.as_os_str()]);
    assert!(std::fs::read(&written).expect("written") == std::fs::read(&read).expect("read"));
    let info = tools::run("nbdinfo", [pool.with("pem", &uri)]);
    assert!(info.contains("with TLS"), "{info}");

    let port = uri.trim_start_matches("nbds://127.0.0.1:").trim_end_matches("/case");
    let image = format!(
        r#"json:{{"driver":"nbd","host":"127.0.0.1","port":"{port}","export":"case","tls-creds":"t"}}"#
    );
    let credentials = format!("tls-creds-x509,id=t,endpoint=client,dir={}", pool.identity("pem").display());
    let shown = tools::run("qemu-img", ["info", "--object", &credentials, &image]);
    assert!(shown.contains("32 MiB"), "{shown}");

    let authority = pool.identity("pem").join("ca-cert.pem").display().to_string();
    let client = ["s_client", "-connect", pool.port(), "-CAfile", &authority, "-verify_return_error"];
    let said = tools::expect_success(tools::command("openssl").args(client).stdin(Stdio::null()));
    assert!(said.contains("TLSv1.3") && said.contains("Verification: OK"), "{said}");
    let older = [&client[..], &["-tls1_2"]].concat();
    tools::expect_failure(tools::command("openssl").args(older).stdin(Stdio::null()));
    pool.ok("eve", &["detach", "case"]);
}

#[test]
fn who_shows_no_certificate_or_another_pools_is_refused_at_every_port() {
    let mut pool = Members::start(&[]);
    let donor = pool.donate("d1");
    pool.join("eve", "client");
    let uri = pool.export("eve", "case");
    let (other, spy) = stranger();
    let foreign = other.identity(spy).display().to_string();

    // In the clear, at each.
    let clear = uri.replace("nbds://", "nbd://");
    for address in [clear, format!("nbd://{donor}/")] {
        let said = tools::expect_failure(tools::command("nbdinfo").args(["--size", &address]));
        tools::names(&said, &["TLS"]);
    }
    let said = tools::run("curl", ["-s", &format!("http://{}/v1/pool", pool.port())]);
    tools::names(&said, &["forbidden", "members only"]);
    let said = pool.fails("nobody", &["status", "--pool", &format!("http://{}", pool.port())]);
    tools::names(&said, &["members only", "cheetah://"]);

    // By TLS, without a certificate and with one of another authority.
    for address in [uri, format!("nbds://{donor}/")] {
        tools::expect_failure(tools::command("nbdinfo").args(["--size", &address]));
        let with = format!("{address}?tls-certificates={foreign}");
        tools::expect_failure(tools::command("nbdinfo").args(["--size", &with]));
    }
    let authority = pool.identity("eve").join("ca-cert.pem").display().to_string();
    let https = format!("https://{}/v1/pool", pool.port());
    let said = tools::run("curl", ["-s", "--cacert", &authority, &https]);
    tools::names(&said, &["forbidden", "there was no certificate"]);
    let key = |name: &str| other.identity(spy).join(name).display().to_string();
    let (certificate, key) = (key("client-cert.pem"), key("client-key.pem"));
    let shown = ["-s", "--cacert", &authority, "--cert", &certificate, "--key", &key, &https];
    tools::expect_failure(tools::command("curl").args(shown));

    // Our own programs, as a member of the other pool, and as nobody.
    let mut command = other.of(spy, &["status", "--pool", &pool.url]);
    tools::expect_failure(&mut command);
    let said = pool.fails("nobody", &["status", "--pool", &pool.url]);
    tools::names(&said, &["members only", "cheetah join"]);
    let forged = format!("{}/{}", pool.url, "A".repeat(64));
    tools::expect_failure(&mut pool.of("nobody", &["join", &forged]));
    assert!(!pool.identity("nobody").join("client-key.pem").exists(), "nothing is left of it");
}

#[test]
fn a_role_is_held_to_what_it_is_there_for() {
    let mut pool = Members::start(&[]);
    pool.donate("d1");
    for role in ["viewer", "client"] {
        pool.join(role, role);
    }
    pool.ok("client", &["create", "case", "16M"]);
    pool.ok("viewer", &["status"]);
    for (who, refused) in [
        ("viewer", &["create", "other", "16M"][..]),
        ("viewer", &["delete", "case"]),
        ("viewer", &["attach", "case", "--front", "export"]),
        ("d1", &["attach", "case", "--front", "export"]),
        ("d1", &["create", "other", "16M"]),
        ("client", &["leave", "d1", "--force"]),
        ("client", &["token", "new", "--role", "admin"]),
        ("client", &["member", "list"]),
        ("client", &["donate", "64M"]),
    ] {
        let said = pool.fails(who, refused);
        tools::names(&said, &["may not do that", "--identity"]);
    }
    // A token is for as many as it says.
    let once = pool.ok("admin", &["token", "new", "--role", "client"]);
    pool.ok("first", &["join", once.trim()]);
    tools::names(&pool.fails("second", &["join", once.trim()]), &["used up"]);
    let revoked = pool.json("admin", &["token", "new", "--role", "client"]);
    pool.ok("admin", &["token", "revoke", revoked["token"].as_str().expect("its name")]);
    tools::names(
        &pool.fails("second", &["join", revoked["url"].as_str().expect("an address")]),
        &["revoked"],
    );
}

#[test]
fn a_lease_is_of_no_use_with_another_certificate() {
    let mut pool = Members::start(&[]);
    let donor = pool.donate("d1");
    pool.join("eve", "client");
    pool.join("bob", "client");
    pool.export("eve", "case");
    let record = pool.pool.scratch().join("run-eve/cheetah/case.json");
    let record: Value = serde_json::from_slice(&std::fs::read(record).expect("a record")).expect("JSON");
    let token = record["token"].as_str().expect("a lease").to_owned();
    let size = |who: &str, export: &str| {
        let mut command = tools::command("nbdinfo");
        command.args(["--size", &pool.with(who, &format!("nbds://{donor}/{export}"))]);
        command
    };
    let lease = format!("case@{token}.4000000000");
    tools::names(&tools::expect_failure(&mut size("bob", &lease)), &["no export named"]);
    let guessed = "case@00000000000000ab.1";
    tools::names(&tools::expect_failure(&mut size("bob", guessed)), &["no export named"]);
    tools::expect_success(&mut size("eve", &lease));
    // Nor at the coordinator.
    let file = |name: &str| pool.identity("bob").join(name).display().to_string();
    let [authority, certificate, key] = ["ca-cert.pem", "client-cert.pem", "client-key.pem"].map(file);
    let lease = format!("https://{}/v1/volumes/case/leases/{token}", pool.port());
    let version = format!("cheetah-api: {}", cheetah_core::api::API_VERSION);
    let end = [
        "-s",
        "-X",
        "DELETE",
        "-H",
        &version,
        "--cacert",
        &authority,
        "--cert",
        &certificate,
        "--key",
        &key,
        &lease,
    ];
    tools::names(&tools::run("curl", end), &["forbidden", "another certificate"]);
}

#[test]
fn who_is_revoked_is_out_with_leases_and_memory() {
    let mut pool = Members::start(&[]);
    pool.donate("d1");
    pool.join("eve", "client");
    let uri = pool.export("eve", "case");
    let read = || {
        let mut command = tools::command("nbdcopy");
        command.args([&pool.with("admin", &uri), "null:"]);
        tools::output(&mut command).status.success()
    };
    assert!(read());
    pool.ok("admin", &["member", "revoke", &pool.member("client")]);
    wait::until("the lease to be gone", wait::SOON, || !read());
    tools::names(&pool.fails("eve", &["status"]), &["revoked", "new token"]);
    let attached = pool.json("admin", &["status"])["volumes"][0]["attachments"].clone();
    assert_eq!(attached, Value::Array(Vec::new()));
    pool.ok("admin", &["member", "revoke", &pool.member("donor")]);
    pool.donors[0].wait_for_end(wait::SOON);
    assert_eq!(pool.json("admin", &["status"])["bytes_total"], 0);
}

#[test]
fn who_is_revoked_while_connected_to_an_export_is_out_and_comes_in_no_more() {
    let mut pool = Members::start(&[]);
    pool.donate("d1");
    pool.join("bob", "client");
    let bob = pool.member("client");
    pool.join("eve", "client");
    let uri = pool.export("eve", "case");
    let script = format!(
        "import nbd, time\n\
         h = nbd.NBD(); h.set_uri_allow_local_file(True); h.connect_uri('{}')\n\
         print('connected', flush=True)\n\
         for _ in range(600):\n    time.sleep(0.1)\n    try:\n        h.pread(4096, 0)\n\
         \x20   except nbd.Error:\n        print('closed', flush=True); break\n",
        pool.with("bob", &uri)
    );
    let reads = |name: &str| {
        let mut command = tools::command("python3");
        command.args(["-c", &script]);
        Process::start(name, command, pool.pool.scratch().path())
    };
    let mut before = reads("before");
    before.wait_for_line("connected", wait::SOON);
    pool.ok("admin", &["member", "revoke", &bob]);
    before.wait_for_line("closed", wait::SOON);
    let mut anew = reads("anew");
    assert!(!anew.wait_for_end(wait::SOON).success(), "{}", anew.log());
    let (mut command, uri) = (tools::command("nbdinfo"), pool.with("eve", &uri));
    tools::expect_success(command.args(["--size", &uri]));
}

#[test]
fn a_certificate_that_has_expired_is_refused_and_who_lives_has_the_next() {
    let mut pool = Members::start(&["--certificates-last", "6s"]);
    pool.donate("d1");
    pool.join("eve", "client");
    let uri = pool.export("eve", "case");
    // Nobody renews this one.
    pool.ok("admin", &["token", "new", "--role", "client", "--pem", &pool.identity("pem").to_string_lossy()]);
    let size = |who: &str| {
        let with = pool.with(who, &uri);
        tools::output(tools::command("nbdinfo").args(["--size", &with])).status.success()
    };
    assert!(size("pem"));
    wait::until("the certificate to expire", wait::SOON, || !size("pem"));
    let key = |name: &str| pool.identity("pem").join(name).display().to_string();
    let [authority, certificate, key] = ["ca-cert.pem", "client-cert.pem", "client-key.pem"].map(key);
    let https = format!("https://{}/v1/pool", pool.port());
    let shown = ["-s", "--cacert", &authority, "--cert", &certificate, "--key", &key, &https];
    tools::expect_failure(tools::command("curl").args(shown));
    tools::names(&pool.fails("pem", &["status"]), &["expired", "new token"]);
    // The attachment and the donor renew theirs, and so serve on.
    assert!(size("eve"));
    pool.ok("eve", &["status"]);
    pool.donors[0].is_running().then_some(()).expect("the donor runs");
}

#[test]
fn donors_rebuild_among_themselves_and_nbdkit_by_tls_is_one_of_them() {
    let mut pool = Members::start(&[]);
    for name in ["d1", "d2"] {
        pool.donate(name);
    }
    pool.ok("admin", &["create", "case", "32M", "--redundancy", "mirror:2"]);
    let attached = pool.json("admin", &["attach", "case", "--front", "export", "--listen", "127.0.0.1:0"]);
    let uri = pool.with("admin", attached["uri"].as_str().expect("an address"));
    let write = |uri: &str| tools::run("nbdcopy", [pool.identity("written").as_os_str(), uri.as_ref()]);
    std::fs::write(pool.identity("written"), vec![0x5a; 32 << 20]).expect("room");
    write(&uri);
    pool.ok("admin", &["detach", "case"]);
    // The third is another's program, which asks for a certificate, and shows that of a donor.
    let directory = pool.identity("kit").display().to_string();
    pool.ok("admin", &["token", "new", "--role", "donor", "--pem", &directory]);
    let mut kit = tools::command("nbdkit");
    kit.args([
        "--foreground",
        "--tls=require",
        "--tls-verify-peer",
        &format!("--tls-certificates={directory}"),
    ]);
    let (port, address) = free_port();
    kit.args(["--ipaddr", "127.0.0.1", "--port", &port, "memory", "128M"]);
    let _kit = Process::start("nbdkit", kit, pool.pool.scratch().path());
    wait::until("nbdkit to listen", wait::SOON, || std::net::TcpStream::connect(&address).is_ok());
    pool.join("lender", "donor");
    let mut command = pool.of("lender", &["donate", &format!("nbd://{address}/"), "--name", "kit"]);
    command.env("CHEETAH_HOST_ID", "kit");
    let mut lender = Process::start("donor-kit", command, pool.pool.scratch().path());
    lender.wait_for_line("ready: donor", wait::SOON);
    // Nobody has the volume attached: the donor that is left does it.
    pool.donors[1].kill();
    wait::until("the mirror to be whole on nbdkit", Duration::from_secs(90), || {
        let status = pool.json("admin", &["show", "case"]);
        let on_kit = |donor: &Value| donor["name"] == "kit" && donor["extents_held"] == 1;
        status["status"]["health"] == "whole"
            && status["donors"].as_array().expect("donors").iter().any(on_kit)
    });
    let attached = pool.json("admin", &["attach", "case", "--front", "export", "--listen", "127.0.0.1:0"]);
    let uri = pool.with("admin", attached["uri"].as_str().expect("an address"));
    let read = pool.identity("read");
    tools::run("nbdcopy", [uri.as_ref(), read.as_os_str()]);
    assert!(std::fs::read(read).expect("read") == vec![0x5a; 32 << 20]);
    pool.ok("admin", &["detach", "case"]);
}

/// A port that nobody has now, and its address.
fn free_port() -> (String, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    (address.port().to_string(), address.to_string())
}

#[test]
fn a_pool_of_members_stays_one_when_it_is_started_again() {
    let mut pool = Members::start(&[]);
    pool.join("eve", "client");
    pool.coordinator.terminate(wait::SOON);
    let listen = pool.port().to_owned();
    let state = pool.pool.scratch().join("state").display().to_string();
    let clear = ["coordinate", "--plaintext", "--listen", &listen, "--state", &state];
    tools::names(&pool.fails("admin", &clear), &["members", "--plaintext"]);
    (pool.coordinator, _) = Members::coordinate(&pool.pool, &listen, &[]);
    pool.ok("eve", &["status"]);
    let store = std::fs::metadata(pool.pool.scratch().join("state/pool.redb")).expect("a state");
    let (mode, key) =
        (std::os::unix::fs::PermissionsExt::mode(&store.permissions()) & 0o777, pool.identity("eve"));
    let key = std::fs::metadata(key.join("client-key.pem")).expect("a key").permissions();
    assert_eq!((mode, std::os::unix::fs::PermissionsExt::mode(&key) & 0o777), (0o600, 0o600));
    assert!(!pool.coordinator.log().contains("PRIVATE KEY"));
}
