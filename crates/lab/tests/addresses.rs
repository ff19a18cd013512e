//! Addresses between hosts of their own: a donor goes by the one that others reach, an address that nobody
//! reaches is refused, and a client that does not reach its donors has no volume.

use std::sync::Arc;

use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::pool::{Pool, State};
use cheetah_lab::process::Process;
use cheetah_lab::wait;
use serde_json::json;

#[track_caller]
fn start(pool: &Pool, node: Node, name: &str, arguments: &[&str]) -> Process {
    let mut command = pool.command_on(node);
    command.args(arguments);
    Process::start(name, command, pool.scratch().path())
}

#[track_caller]
fn addresses(pool: &Pool) -> Vec<String> {
    let status = pool.status();
    let donors = status["donors"].as_array().cloned().unwrap_or_default();
    let mut all: Vec<String> = (donors.iter())
        .map(|donor| {
            donor["address"].as_str().unwrap_or_default().split(':').next().unwrap_or_default().into()
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_donor_goes_by_the_address_that_reaches_its_pool() {
    let lan = Arc::new(Lan::new(1, "1gbit"));
    let mut pool = Pool::without_coordinator(Some(lan));
    let all = ["coordinate", "--listen", "0.0.0.0:10808", "--state", "memory", "--plaintext"];
    let mut coordinator = start(&pool, Node::Coordinator, "coordinator", &all);
    coordinator.wait_for_line("ready: ", wait::SOON);
    pool.look_at("http://10.77.0.101:10808");
    // As the help has it: nothing is said of addresses.
    let donate = |name| ["donate", "64M", "--pool", "http://10.77.0.101:10808", "--name", name];
    let mut far = start(&pool, Node::Donor(1), "far", &donate("far"));
    far.wait_for_line("ready: donor far", wait::SOON);
    // Beside the coordinator, without a default route, by loopback.
    let beside = ["donate", "64M", "--pool", "http://127.0.0.1:10808", "--name"];
    let mut near = start(&pool, Node::Coordinator, "near", &[&beside[..], &["near"]].concat());
    near.wait_for_line("ready: donor near", wait::SOON);
    let everywhere = [&beside[..], &["all", "--listen", "0.0.0.0:0"]].concat();
    let mut everywhere = start(&pool, Node::Coordinator, "everywhere", &everywhere);
    everywhere.wait_for_line("ready: donor all", wait::SOON);
    assert_eq!(addresses(&pool), ["10.77.0.1", "10.77.0.101", "10.77.0.101"]);

    pool.ok(["create", "case", "192M", "--redundancy", "linear"]);
    pool.attach_export("case", &[]);
    pool.detach("case");

    for (node, listen) in [(Node::Donor(1), "127.0.0.1:0"), (Node::Coordinator, "127.0.0.1:0")] {
        let loopback = [&donate("loop")[..], &["--listen", listen]].concat();
        let mut refused = start(&pool, node, "loop", &loopback);
        assert_eq!(refused.wait_for_end(wait::SOON).code(), Some(4), "{}", refused.log());
        assert!(refused.log().contains("no other machine reaches"), "{}", refused.log());
    }
    assert_eq!(addresses(&pool).len(), 3);
}

#[test]
fn an_address_that_is_not_reached_is_refused_with_what_to_do() {
    let lan = Arc::new(Lan::new(1, "1gbit"));
    let pool = Pool::with(State::Memory, Some(Arc::clone(&lan)));
    lan.run(Node::Donor(1), "ip", &["address", "add", "192.168.9.1/24", "dev", "e0"]);
    let url = pool.url().to_owned();
    let arguments = ["donate", "64M", "--pool", &url, "--name", "lost", "--listen", "192.168.9.1:0"];
    let mut refused = start(&pool, Node::Donor(1), "lost", &arguments);
    assert_eq!(refused.wait_for_end(wait::SOON).code(), Some(4), "{}", refused.log());
    let said = refused.log();
    assert!(said.contains("192.168.9.1:") && said.contains("leave --listen out"), "{said}");
    assert_eq!(pool.status()["donors"], json!([]));
}

#[test]
fn a_client_that_does_not_reach_the_donors_has_no_volume() {
    let lan = Arc::new(Lan::new(3, "1gbit"));
    let mut pool = Pool::with(State::Memory, Some(Arc::clone(&lan)));
    pool.donate_everywhere(3, "192M");
    pool.ok(["create", "striped", "64M", "--redundancy", "stripe:3"]);
    pool.ok(["create", "safe", "64M", "--redundancy", "parity:2+1"]);
    // As from another subnet, to which there is no way.
    lan.run(Node::Client, "ip", &["route", "add", "unreachable", "10.77.0.1/32"]);
    let attach = ["attach", "striped", "--front", "export", "--listen", "127.0.0.1:0"];
    let said = pool.fails(attach);
    assert!(said.contains("'striped'") && said.contains("host-1 (10.77.0.1:"), "{said}");
    assert!(said.contains("does not reach a donor") && !said.contains("host-2"), "{said}");
    assert_eq!(pool.volume_status("striped")["attachments"], json!([]), "and leaves no lease");

    // Redundancy covers one, and it is said.
    pool.attach_export("safe", &["--read-only"]);
    wait::until("a word of the donor that it does without", wait::SOON, || {
        pool.volume_status("safe")["attachments"][0]["lost"].as_array().map(Vec::len) == Some(1)
    });
    pool.detach("safe");
    lan.run(Node::Client, "ip", &["route", "add", "unreachable", "10.77.0.2/32"]);
    let said = pool.fails(["attach", "safe", "--front", "export", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("host-1 (") && said.contains("host-2 ("), "{said}");

    // Nor has a load: it leaves nothing of a volume that it could not write.
    let image = pool.scratch().file("image", &[7; 4096]).display().to_string();
    let said = pool.fails(["load", &image, "loaded"]);
    assert!(said.contains("does not reach donors") && said.contains("host-2 ("), "{said}");
    assert!(said.contains("nothing was loaded") && said.contains("deleted again"), "{said}");
    let status = pool.status();
    let volumes = status["volumes"].as_array().cloned().unwrap_or_default();
    assert!(volumes.len() == 2 && volumes.iter().all(|volume| volume["name"] != "loaded"), "{status}");
}

/// As in README: who lends may be there first.
#[test]
fn a_donor_waits_for_its_coordinator() {
    let mut pool = Pool::without_coordinator(None);
    let address =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
    let url = format!("http://{address}");
    let donate = ["donate", "64M", "--pool", &url, "--name", "early"];
    let mut early = start(&pool, Node::Client, "early", &donate);
    let mut other =
        start(&pool, Node::Client, "other", &["donate", "64M", "--pool", &url, "--name", "other"]);
    for donor in [&mut early, &mut other] {
        let line = donor.wait_for_line("waiting for the pool", wait::SOON);
        assert!(line.contains(&url) && line.contains("refused"), "{line}");
    }
    // Ctrl-C.
    other.signal(rustix::process::Signal::INT);
    assert!(other.wait_for_end(wait::SOON).success(), "{}", other.log());

    let listen = address.to_string();
    let coordinate = ["coordinate", "--listen", &listen, "--state", "memory", "--plaintext"];
    let mut coordinator = start(&pool, Node::Client, "coordinator", &coordinate);
    coordinator.wait_for_line("ready: ", wait::SOON);
    early.wait_for_line("ready: donor early", wait::SOON);
    pool.look_at(&url);
    assert_eq!(pool.status()["donors"][0]["name"], "early");
    // What waiting does not mend is said at once.
    let said = pool.run(["donate", "64M", "--pool", "http://a b", "--name", "x"]);
    assert!(!said.status.success() && said.err.contains("not the URL"), "{}", said.err);
    let said = pool.run(["donate", "nonsense", "--pool", "http://127.0.0.1:9"]);
    assert_eq!(said.status.code(), Some(2), "{}", said.err);
}
