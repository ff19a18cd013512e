//! What a pool is unless told otherwise, and where it may be in the clear: at private addresses, when both
//! ends say so.

use std::net::TcpListener;
use std::process::Command;

use cheetah_lab::pool::{Access, Pool, State};
use cheetah_lab::process::Process;
use cheetah_lab::{tools, wait};

/// Of the documentation (RFC 5737): on the Internet, as far as an address tells.
const PUBLIC: &str = "203.0.113.7";

fn coordinate(pool: &Pool, listen: &str, state: &str, more: &[&str]) -> Command {
    let mut command = pool.command();
    command.args(["coordinate", "--listen", listen, "--state", state]).args(more);
    command
}

#[test]
fn a_pool_lets_members_in_only_and_an_address_without_a_scheme_means_one() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    assert_eq!(pool.status()["members_only"], true);
    let text = pool.ok(["status"]);
    assert!(!text.contains("in the clear"), "{text}");
    let bare = pool.host_and_port().to_owned();
    pool.ok(["status", "--pool", &bare]);
    // Somebody without an identity, who is told what to do.
    let nobody = pool.scratch().directory("nobody");
    let mut status = pool.command();
    status.args(["status", "--pool", &bare]).env("XDG_CONFIG_HOME", &nobody);
    let said = tools::expect_failure(&mut status);
    tools::names(&said, &["members only", "cheetah join", "http://HOST:PORT"]);
}

#[test]
fn a_pool_in_the_clear_is_one_where_both_ends_say_so() {
    let mut pool = Pool::of(Access::Plaintext, State::Directory, None);
    pool.donate("one", "128M");
    let text = pool.ok(["status"]);
    assert!(text.contains("in the clear"), "{text}");
    assert_eq!(pool.status()["members_only"], false);
    // An address that does not say so means a pool of members, and nothing is said in the clear to it.
    let bare = pool.host_and_port().to_owned();
    pool.ok(["status", "--pool", &format!("http://{bare}")]);
    let said = pool.run(["status", "--pool", &bare]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    // Nor does its state become one of members, or the other way round.
    let state = pool.scratch().join("state").display().to_string();
    pool.kill_coordinator();
    let said = tools::expect_failure(&mut coordinate(&pool, &bare, &state, &[]));
    tools::names(&said, &["in the clear", "--plaintext", &state, "another --state"]);
    pool.restart_coordinator();
    wait::until("the donor", wait::SOON, || pool.status()["donors"][0]["heard"] == true);
}

#[test]
fn nothing_is_in_the_clear_on_the_internet() {
    let pool = Pool::without_coordinator(None);
    let listen = format!("{PUBLIC}:10808");
    let said = tools::expect_failure(&mut coordinate(&pool, &listen, "memory", &["--plaintext"]));
    tools::names(&said, &[PUBLIC, "--plaintext", "private"]);
    let url = format!("http://{listen}");
    for command in [&["status", "--pool", &url][..], &["donate", "64M", "--pool", &url]] {
        let said = pool.run(command);
        assert_eq!(said.status.code(), Some(2), "{}", said.err);
        tools::names(&said.err, &[PUBLIC, "cheetah://"]);
    }
    // With members this is an address like any other: only this machine does not have it.
    let said = tools::expect_failure(&mut coordinate(&pool, &listen, "memory", &[]));
    tools::names(&said, &["cannot listen"]);
}

#[test]
fn a_token_is_not_left_where_others_of_the_machine_read_it() {
    let pool = Pool::start();
    let invitation = pool.ok(["token", "new", "--role", "donor"]).trim().to_owned();
    let own = pool.scratch().join("lender").display().to_string();
    let mut command = pool.command();
    command.args(["donate", "64M", "--listen", "127.0.0.1:0", "--name", "quiet", "--identity", &own]);
    command.args(["--pool", &invitation]);
    let mut donor = Process::start("donor", command, pool.scratch().path());
    donor.wait_for_line("ready: donor quiet", wait::SOON);
    let line = std::fs::read(format!("/proc/{}/cmdline", donor.pid())).expect("its command line");
    let line = String::from_utf8_lossy(&line);
    let token = invitation.rsplit('/').next().expect("a token");
    assert!(line.contains("cheetah://") && line.contains("quiet") && !line.contains(token), "{line}");
    assert!(!donor.log().contains(token), "{}", donor.log());
    assert_eq!(pool.status()["donors"][0]["name"], "quiet");
    donor.terminate(wait::SOON);
    // Nor while it waits for a coordinator that is not there.
    let away = invitation.replace(pool.host_and_port(), "127.0.0.1:9");
    let mut command = pool.command();
    command.args(["donate", "64M", "--name", "early", "--pool", &away, "--identity"]);
    command.arg(pool.scratch().join("early"));
    let mut early = Process::start("early", command, pool.scratch().path());
    early.wait_for_line("waiting for the pool", wait::SOON);
    let line = std::fs::read(format!("/proc/{}/cmdline", early.pid())).expect("its command line");
    let line = String::from_utf8_lossy(&line);
    assert!(line.contains("127.0.0.1:9") && !line.contains(token), "{line}");
    drop(early);
    // Whoever types another command with that address does not use the token up.
    let said = pool.run(["status", "--pool", &invitation, "--identity", &format!("{own}-2")]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    tools::names(&said.err, &["cheetah join"]);

    // From standard input, it is on no command line at all.
    let invitation = pool.ok(["token", "new", "--role", "viewer"]);
    let file = pool.scratch().file("invitation", invitation.as_bytes());
    let mut join = pool.command();
    join.args(["join", "-", "--identity"]).arg(pool.scratch().join("viewer"));
    join.stdin(std::fs::File::open(file).expect("a file"));
    let said = tools::expect_success(&mut join);
    assert!(said.contains("viewer"), "{said}");
    // Who is a member already is told so, and stays it.
    let another = pool.ok(["token", "new", "--role", "client"]).trim().to_owned();
    let viewer = pool.scratch().join("viewer").display().to_string();
    let said = pool.run(["join", &another, "--identity", &viewer]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    tools::names(&said.err, &["holds viewer", "already", "--identity DIR"]);
    assert!(pool.ok(["token", "list"]).contains("client"), "the token is still good");
}

/// The only admin is who started the coordinator: it stays one while that runs, and finds it where it
/// listens.
#[test]
fn the_admin_follows_the_coordinator() {
    let pool = Pool::without_coordinator(None);
    let state = pool.scratch().directory("state").display().to_string();
    let start = |name: &str, listen: &str| {
        let mut command = coordinate(&pool, listen, &state, &["--certificates-last", "12s"]);
        command.env_remove("CHEETAH_POOL");
        let mut coordinator = Process::start(name, command, pool.scratch().path());
        coordinator.wait_for_line("ready: cheetah://", wait::SOON);
        coordinator
    };
    let status = || {
        let mut status = pool.command();
        tools::expect_success(status.arg("status").env_remove("CHEETAH_POOL"))
    };
    let mut first = start("first", "127.0.0.1:0");
    status();
    first.terminate(wait::SOON);
    // At another address than before; longer than a certificate lasts.
    let _second = start("second", "127.0.0.1:0");
    status();
    std::thread::sleep(std::time::Duration::from_secs(15));
    status();
    // An identity of another user's is not renewed for them, in files that they cannot read.
    std::os::unix::fs::chown(pool.identity(), Some(65534), Some(65534)).expect("root");
    let mut other = pool.command();
    let said = tools::expect_failure(other.arg("status").env_remove("CHEETAH_POOL"));
    tools::names(&said, &["belongs to another user", "--identity DIR"]);
}

/// Whoever announces itself may be anybody.
#[test]
fn a_pool_in_the_clear_is_not_used_because_it_was_found() {
    let pool = Pool::without_coordinator(None);
    // Where one is looked for; another run's may be there.
    let listen = "127.0.0.1:10808";
    let free = TcpListener::bind(listen).is_ok();
    let mut command = coordinate(&pool, listen, "memory", &["--plaintext"]);
    command.env_remove("CHEETAH_POOL");
    let _coordinator = free.then(|| {
        let mut coordinator = Process::start("coordinator", command, pool.scratch().path());
        coordinator.wait_for_line("ready: ", wait::SOON);
        coordinator
    });
    let mut status = pool.command();
    let said = tools::expect_failure(status.arg("status").env_remove("CHEETAH_POOL"));
    tools::names(&said, &["no pool was named", "in the clear", "--pool http://127.0.0.1:10808"]);
}
