//! Several coordinators on one real etcd: who leads, what a change of leader disturbs, and what etcd's
//! absence does.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cheetah_lab::etcd::{Cluster, Etcd};
use cheetah_lab::filled::{holds_at, write_at};
use cheetah_lab::pool::Pool;
use cheetah_lab::process::Process;
use cheetah_lab::rivals::Rival;
use cheetah_lab::wait;
use rustix::process::Signal;
use serde_json::json;

const MIB: u64 = 1 << 20;

/// An etcd, two coordinators on it, and a pool that knows both.
struct Pair {
    pool: Pool,
    first: Coordinator,
    second: Coordinator,
    etcd: Etcd,
}

struct Coordinator {
    process: Process,
    url: String,
}

impl Coordinator {
    #[track_caller]
    fn start(pool: &Pool, name: &str, listen: &str, state: &str) -> Self {
        let mut command = pool.command();
        command.args(["coordinate", "--plaintext", "--listen", listen, "--state", state]);
        let mut process = Process::start(name, command, pool.scratch().path());
        let line = process.wait_for_line("ready: http://", wait::SOON);
        Coordinator { process, url: line.trim_start_matches("ready: ").to_owned() }
    }

    fn listen(&self) -> String {
        self.url.trim_start_matches("http://").to_owned()
    }

    fn leads(&mut self) {
        self.process.wait_for_line("takes the lead", wait::SOON);
    }
}

impl Pair {
    #[track_caller]
    fn start() -> Self {
        let etcd = Etcd::start();
        let mut pool = Pool::without_coordinator(None);
        let first = Coordinator::start(&pool, "first", "127.0.0.1:0", &etcd.state());
        // A member that is away: the discard port.
        let state = etcd.state().replace("etcd://", "etcd://127.0.0.1:9,");
        let mut second = Coordinator::start(&pool, "second", "127.0.0.1:0", &state);
        let line = second.process.wait_for_line("stands by: ", wait::SOON);
        assert!(line.contains(&first.url), "{line}");
        pool.look_at(&format!("{},{}", first.url, second.url));
        Pair { pool, first, second, etcd }
    }

    /// Two donors, and a volume over both, attached as a file.
    #[track_caller]
    fn with_volume() -> (Self, PathBuf) {
        let mut pair = Pair::start();
        pair.pool.donate("one", "256M");
        pair.pool.donate("two", "256M");
        pair.pool.ok(["create", "case", "256M", "--redundancy", "stripe:2"]);
        let path = pair.pool.attach_fuse("case", &[]).path;
        write_at(&path, 0x11, 0);
        (pair, path)
    }

    /// Until whoever leads now has heard of the donors and the attachment, and makes the volume `more`.
    #[track_caller]
    fn wait_until_whole(&self) {
        wait::until("room on a donor that was heard", wait::SOON, || {
            self.pool.run(["create", "more", "64M", "--redundancy", "linear"]).status.success()
        });
        wait::until("both donors and the attachment", wait::SOON, || {
            let said = self.pool.run(["status", "--json"]);
            let status: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_default();
            let live = |donor: &serde_json::Value| donor["health"] == "alive";
            let donors = status["donors"].as_array().cloned().unwrap_or_default();
            let places = status["volumes"][0]["attachments"][0]["place"].as_str().unwrap_or_default();
            donors.len() == 2 && donors.iter().all(live) && !places.is_empty()
        });
    }
}

/// Writes and reads a volume for as long as it is asked to, and answers the longest that one round took.
struct User {
    stop: Arc<AtomicBool>,
    working: JoinHandle<Duration>,
}

impl User {
    fn start(path: &Path) -> Self {
        let (path, stop) = (path.to_owned(), Arc::new(AtomicBool::new(false)));
        let asked = Arc::clone(&stop);
        let working = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            let mut byte = 0_u8;
            while !asked.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                let began = Instant::now();
                write_at(&path, byte, 128 * MIB);
                assert!(holds_at(&path, byte, 128 * MIB), "a write that is not there");
                longest = longest.max(began.elapsed());
            }
            longest
        });
        User { stop, working }
    }

    #[track_caller]
    fn stop(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.working.join().expect("no error in the volume")
    }
}

#[test]
fn the_other_takes_over_when_the_leader_is_killed_and_no_volume_notices() {
    let (mut pair, path) = Pair::with_volume();
    let before = pair.pool.status()["pool"].clone();
    let user = User::start(&path);

    pair.first.process.kill();
    let killed = Instant::now();
    wait::until("an answer", wait::SOON, || pair.pool.run(["status"]).status.success());
    let answered = killed.elapsed();
    pair.wait_until_whole();
    let whole = killed.elapsed();
    eprintln!(
        "after kill -9 of the leader: calls answered in {answered:.1?}, a volume created, donors and attachment back \
         in {whole:.1?}; longest round of I/O {:.1?}",
        user.stop()
    );
    assert_eq!(pair.pool.status()["pool"], before, "the same pool");
    pair.second.leads();

    // What the first one had stored holds, and what donors hold was not wiped.
    assert!(holds_at(&path, 0x11, 0));
    pair.pool.detach("case");
    let path = pair.pool.attach_fuse("case", &[]).path;
    assert!(holds_at(&path, 0x11, 0));
    write_at(&path, 0x22, 64 * MIB);

    // The first one comes back as the one that stands by, and takes over in its turn, faster: it is told.
    let listen = pair.first.listen();
    pair.first = Coordinator::start(&pair.pool, "first-again", &listen, &pair.etcd.state());
    pair.first.process.wait_for_line("stands by: ", wait::SOON);
    assert!(pair.second.process.terminate(wait::SOON).success());
    let ended = Instant::now();
    pair.first.leads();
    eprintln!("after SIGTERM of the leader: the other leads in {:.1?}", ended.elapsed());
    pair.pool.ok(["delete", "more"]);
    pair.wait_until_whole();
    assert!(holds_at(&path, 0x22, 64 * MIB));
    pair.pool.detach("case");
}

#[test]
fn a_leader_that_was_stopped_past_its_lease_answers_and_writes_nothing() {
    let (mut pair, path) = Pair::with_volume();
    pair.first.process.signal(Signal::STOP);
    // Sent to the one that is stopped: it lies in its socket until it goes on.
    let mut command = pair.pool.command();
    command.args(["create", "ghost", "64M", "--redundancy", "linear", "--pool", &pair.first.url]);
    let mut asking = Process::start("asking", command, pair.pool.scratch().path());
    let stopped = Instant::now();
    pair.second.leads();
    eprintln!("after SIGSTOP of the leader: the other leads in {:.1?}", stopped.elapsed());
    pair.wait_until_whole();
    eprintln!("donors and attachment are back in {:.1?}", stopped.elapsed());
    let before = (pair.etcd.stored("records/", "records0"), pair.etcd.stored("leader", "leader0"));

    // A question that needs no store, there before the process goes on.
    let mut question = TcpStream::connect(pair.first.listen()).expect("the kernel accepts");
    question.set_read_timeout(Some(wait::SOON)).expect("a limit");
    question.write_all(b"GET /v1/pool HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("the kernel takes it");
    pair.first.process.signal(Signal::CONT);
    let mut answer = String::new();
    question.read_to_string(&mut answer).expect("an answer");
    assert!(answer.split("\r\n").next().is_some_and(|status| status.contains(" 503 ")), "{answer}");
    let line = pair.first.process.wait_for_line("stands by: ", wait::SOON);
    eprintln!("the deposed one: {line}");
    assert!(!asking.wait_for_end(wait::SOON).success(), "{}", asking.log());
    // It looks who leads now a moment after it has stepped down.
    wait::until("a refusal that names the leader", wait::SOON, || {
        let said = pair.pool.fails(["status", "--pool", &pair.first.url]);
        assert!(said.contains("stands by"), "{said}");
        said.contains(&pair.second.url)
    });
    let ghost = ["create", "ghost", "64M", "--redundancy", "linear", "--pool", &pair.first.url];
    let said = pair.pool.fails(ghost);
    assert!(said.contains("stands by") && said.contains(&pair.second.url), "{said}");
    let after = (pair.etcd.stored("records/", "records0"), pair.etcd.stored("leader", "leader0"));
    assert_eq!(after, before, "the deposed one has written");
    assert_eq!(pair.pool.status()["volumes"].as_array().map(Vec::len), Some(2));
    assert!(holds_at(&path, 0x11, 0));
    pair.pool.detach("case");
}

#[test]
fn while_etcd_is_away_volumes_go_on_and_calls_are_refused_with_the_cause() {
    let (mut pair, path) = Pair::with_volume();
    let user = User::start(&path);
    pair.etcd.go_away();
    let said = wait::for_some("a refusal that names etcd", wait::SOON, || {
        let said = pair.pool.run(["create", "more", "64M", "--redundancy", "linear"]);
        assert!(!said.status.success(), "created without its store: {}", said.out);
        said.err.contains(&pair.etcd.address().to_string()).then_some(said)
    });
    eprintln!("while etcd is away: {}", said.err.trim());
    assert_eq!(said.status.code(), Some(3));
    assert!(said.err.contains("does not answer"), "{}", said.err);
    assert!(pair.pool.fails(["status"]).contains("attached volumes go on"));
    write_at(&path, 0x22, 64 * MIB);
    assert!(holds_at(&path, 0x11, 0) && holds_at(&path, 0x22, 64 * MIB));

    assert!(pair.etcd.come_back(), "its ports are taken");
    let back = Instant::now();
    pair.wait_until_whole();
    eprintln!(
        "{:.1?} after etcd is back all is well; longest round of I/O meanwhile {:.1?}",
        back.elapsed(),
        user.stop()
    );
    pair.pool.detach("case");
    let path = pair.pool.attach_fuse("case", &[]).path;
    assert!(holds_at(&path, 0x11, 0) && holds_at(&path, 0x22, 64 * MIB));
    pair.pool.detach("case");
}

/// A map of 64,000 extents is several MiB of JSON, which etcd takes neither as one value nor in one request.
#[test]
fn restarts_keep_all_and_a_map_that_no_request_of_etcd_holds() {
    let (mut pair, path) = Pair::with_volume();
    let rival = Rival::nbdkit(&["null", "4T"]);
    pair.pool.donate_as("vast", &[&rival.uri]);
    pair.pool.ok(["create", "big", "4T", "--redundancy", "linear"]);
    let parts = pair.etcd.stored("records/volume/", "records/volume0");
    let parts = parts.as_array().map_or(0, Vec::len);
    assert!(parts > 4, "the map is in one piece: {parts}");
    assert_eq!(pair.etcd.stored("journal", "journal~"), json!(null), "the journal is not emptied");
    let big = pair.pool.json(["show", "big"]);

    for _ in 0..2 {
        let (first, second) = (pair.first.listen(), pair.second.listen());
        pair.first.process.terminate(wait::SOON);
        pair.second.process.terminate(wait::SOON);
        write_at(&path, 0x22, 64 * MIB);
        pair.second = Coordinator::start(&pair.pool, "second", &second, &pair.etcd.state());
        pair.first = Coordinator::start(&pair.pool, "first", &first, &pair.etcd.state());
        pair.first.process.wait_for_line("stands by: ", wait::SOON);
        let same = |name: &str, field: &str| pair.pool.json(["show", name])[field] == big[field];
        wait::until("the same volume", wait::SOON, || same("big", "volume") && same("big", "size"));
        assert_eq!(pair.pool.json(["show", "big"])["map"], big["map"]);
        assert!(holds_at(&path, 0x11, 0) && holds_at(&path, 0x22, 64 * MIB));
    }
    pair.pool.ok(["delete", "big"]);
    assert!(pair.etcd.stored("records/volume/", "records/volume0").as_array().map_or(0, Vec::len) <= 2);
    pair.pool.detach("case");
}

#[test]
fn a_commit_that_was_cut_short_counts_from_its_last_word_on() {
    let mut pair = Pair::start();
    pair.pool.donate("one", "256M");
    pair.pool.ok(["create", "case", "64M", "--redundancy", "linear"]);
    let id = pair.pool.volume_status("case")["volume"].as_str().expect("an identity").to_owned();
    let names = |pool: &Pool| {
        let status = pool.status();
        let volumes = status["volumes"].as_array().cloned().unwrap_or_default();
        volumes.iter().filter_map(|volume| volume["name"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let journal = json!({format!("volume/{id}"): null}).to_string();
    let (head, tail) = journal.split_at(journal.len() / 2);

    // Not all of it was written: it never happened.
    pair.etcd.put("journal#000000", head);
    pair.first.process.kill();
    pair.second.leads();
    assert_eq!(names(&pair.pool), ["case"]);
    assert_eq!(pair.etcd.stored("journal", "journal~"), json!(null), "the journal is not emptied");

    // All of it was written, nothing carried out.
    pair.etcd.put("journal#000000", head);
    pair.etcd.put("journal#000001", tail);
    pair.etcd.put("journal-complete", "yes");
    pair.second.process.kill();
    let listen = pair.first.listen();
    pair.first = Coordinator::start(&pair.pool, "first-again", &listen, &pair.etcd.state());
    wait::until("the end of the volume", wait::SOON, || {
        let said = pair.pool.run(["status", "--json"]);
        said.status.success() && names(&pair.pool).is_empty()
    });
    assert_eq!(pair.etcd.stored("journal", "journal~"), json!(null), "the journal is not emptied");
}

/// As with a file: where there was a pool, none that is new takes its place; and who has lost all of it is a
/// stranger.
#[test]
fn an_etcd_without_its_records_is_damage_and_an_empty_one_is_another_pool() {
    let etcd = Etcd::start();
    let mut pool = Pool::without_coordinator(None);
    let mut only = Coordinator::start(&pool, "only", "127.0.0.1:0", &etcd.state());
    pool.look_at(&only.url);
    pool.donate("one", "128M");
    pool.donate("two", "128M");
    pool.ok(["create", "case", "128M", "--redundancy", "stripe:2"]);
    let path = pool.attach_fuse("case", &[]).path;
    write_at(&path, 0x11, 0);
    let (own, listen) = (pool.status()["pool"].clone(), only.listen());
    only.process.terminate(wait::SOON);
    let kept = etcd.stored("", "~");
    etcd.forget("records/", "records0");
    let said = pool.fails(["coordinate", "--plaintext", "--listen", &listen, "--state", &etcd.state()]);
    assert!(said.contains("its records are gone") && said.contains("another prefix"), "{said}");

    etcd.forget("", "~");
    let mut stranger = Coordinator::start(&pool, "stranger", &listen, &etcd.state());
    assert!(stranger.process.log().contains("new pool"), "{}", stranger.process.log());
    let status = wait::for_some("both donors, turned away", wait::SOON, || {
        let status = pool.status();
        (status["strangers"].as_array().map(Vec::len) == Some(2)).then_some(status)
    });
    assert_eq!(status["donors"], json!([]));
    write_at(&path, 0x22, MIB);
    stranger.process.terminate(wait::SOON);

    etcd.forget("", "~");
    etcd.restore(&kept);
    let again = Coordinator::start(&pool, "again", &listen, &etcd.state());
    wait::until("both donors again", wait::SOON, || {
        let status = pool.status();
        let donors = status["donors"].as_array().cloned().unwrap_or_default();
        status["pool"] == own && donors.len() == 2 && donors.iter().all(|donor| donor["heard"] == true)
    });
    assert!(holds_at(&path, 0x11, 0) && holds_at(&path, 0x22, MIB));
    pool.detach("case");
    drop(again);
}

/// A member that is stopped takes requests and never answers; one that led the others, until they have
/// another leader.
#[test]
fn a_frozen_member_of_etcd_holds_nobody_up() {
    let etcd = Cluster::start();
    let mut pool = Pool::without_coordinator(None);
    let mut coordinator = Coordinator::start(&pool, "only", "127.0.0.1:0", &etcd.state());
    pool.look_at(&coordinator.url);
    pool.donate("one", "384M");
    pool.create_linear("case", "192M");
    let path = pool.attach_fuse("case", &[]).path;
    let user = User::start(&path);
    let leader = etcd.leader();
    for member in [(leader + 1) % 3, (leader + 2) % 3, leader] {
        etcd.freeze(member);
        let (frozen, name) = (Instant::now(), format!("while-{member}"));
        let what = if member == leader { "the leader of etcd" } else { "a member" };
        wait::until("a volume is made", wait::SOON, || {
            pool.run(["create", &name, "64M", "--redundancy", "linear"]).status.success()
        });
        eprintln!("{what} is frozen: a volume was made after {:.1?}", frozen.elapsed());
        pool.ok(["delete", &name]);
        assert!(member == leader || !coordinator.process.log().contains("stands by"), "nothing was to do");
        etcd.thaw(member);
    }
    eprintln!("longest round of I/O {:.1?}", user.stop());
    assert!(coordinator.process.is_running());
    pool.detach("case");
}

/// Two coordinators of one pool of members, on an etcd that is spoken to by TLS: each shows a certificate of
/// the pool's, made with a key that both find in etcd.
#[test]
fn a_pool_of_members_has_several_coordinators() {
    let etcd = Etcd::start_tls();
    let mut pool = Pool::without_coordinator(None);
    let certificates = etcd.certificates().display().to_string();
    let start = |pool: &Pool, name: &str| {
        let mut command = pool.command();
        command.args(["coordinate", "--listen", "127.0.0.1:0", "--state", &etcd.state()]);
        command.args(["--etcd-certificates", &certificates]);
        let mut process = Process::start(name, command, pool.scratch().path());
        let line = process.wait_for_line("ready: cheetah://", wait::SOON);
        Coordinator { process, url: line.trim_start_matches("ready: ").to_owned() }
    };
    let mut first = start(&pool, "first");
    let line = first.process.wait_for_line("lend to it within a day: ", wait::SOON);
    let invitation = line.rsplit(' ').next().expect("an address with a token").to_owned();
    let mut second = start(&pool, "second");
    let line = second.process.wait_for_line("stands by: ", wait::SOON);
    assert!(line.contains(&first.url), "{line}");
    let identity = pool.scratch().join("config/cheetah/donor").display().to_string();
    pool.ok(["join", &invitation, "--identity", &identity]);
    pool.look_at(&format!("{},{}", first.url, second.url));
    pool.donate("one", "128M");
    pool.create_linear("case", "64M");
    let path = pool.attach_fuse("case", &[]).path;
    write_at(&path, 0x11, 0);

    first.process.signal(Signal::KILL);
    second.leads();
    assert_eq!(pool.status()["members_only"], true);
    wait::until("the donor and the attachment", wait::SOON, || {
        let status = pool.status();
        status["donors"][0]["heard"] == true
            && status["volumes"][0]["attachments"][0]["place"].as_str().is_some_and(|place| !place.is_empty())
    });
    write_at(&path, 0x22, MIB);
    assert!(holds_at(&path, 0x11, 0) && holds_at(&path, 0x22, MIB));
    // Who takes over lets others in, and puts out whom the first let in.
    let listed = pool.json(["member", "list"]);
    let donor = listed["members"].as_array().and_then(|all| all.iter().find(|one| one["role"] == "donor"));
    let donor = donor.and_then(|donor| donor["member"].as_str()).expect("a donor").to_owned();
    let later = pool.ok(["token", "new", "--role", "viewer"]);
    let viewer = pool.scratch().join("viewer").display().to_string();
    pool.ok(["join", later.trim(), "--identity", &viewer]);
    pool.ok(["status", "--identity", &viewer]);
    pool.detach("case");
    pool.ok(["member", "revoke", &donor]);
    wait::until("the donor, put out", wait::SOON, || pool.status()["donors"][0]["health"] != "alive");

    // In the clear the pool's key does not cross a network, and etcd does not answer.
    let listen = ["coordinate", "--listen", "127.0.0.1:0", "--state"];
    let said = pool.fails([&listen[..], &["etcd://10.99.0.1:2379/lab"]].concat());
    assert!(said.contains("etcds://") && said.contains("in the clear"), "{said}");
    let said = pool.fails([&listen[..], &[&etcd.state()]].concat());
    assert!(said.contains("--etcd-certificates"), "{said}");
}

#[test]
fn an_etcd_that_is_not_there_is_named_with_what_to_do() {
    let pool = Pool::without_coordinator(None);
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let listen = ["coordinate", "--listen", "127.0.0.1:0", "--state"];
    let said = pool.fails([&listen[..], &[&format!("etcd://{nobody}")]].concat());
    assert!(said.contains(&nobody.to_string()) && said.contains("refused"), "{said}");
    assert!(said.contains("nothing was changed") && said.contains("--state"), "{said}");
    let said = pool.run([&listen[..], &["etcd://a b"]].concat());
    assert_eq!(said.status.code(), Some(2), "{}", said.err);
    assert!(said.err.contains("etcd://10.0.0.1:2379"), "{}", said.err);
}
