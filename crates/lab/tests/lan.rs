//! The lab itself: what every other test of lost and slow hosts rests on.

use std::path::Path;

use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::{mark, process::Process, rivals, scratch::Scratch, tools, wait};

/// Whether a host answers: nothing listens on port 9, so it says at once that it refuses.
fn reaches(lan: &Lan, from: Node, to: Node) -> bool {
    let mut command = lan.exec(from, tools::need("timeout"));
    command.args(["1", "bash", "-c", &format!("echo >/dev/tcp/{}/9", to.address())]);
    tools::expect_failure(&mut command).contains("refused")
}

#[test]
fn hosts_reach_each_other_and_faults_do_what_they_say() {
    let lan = Lan::new(2, "1gbit");
    let (one, two, client) = (Node::Donor(1), Node::Donor(2), Node::Client);
    assert!(reaches(&lan, client, one) && reaches(&lan, one, two));

    for (what, fault, undo) in [
        ("unplug", Lan::unplug as fn(&Lan, Node), Lan::plug as fn(&Lan, Node)),
        ("cut", Lan::cut, Lan::heal),
        ("mute", Lan::mute, Lan::heal),
        ("deafen", Lan::deafen, Lan::heal),
    ] {
        fault(&lan, one);
        assert!(!reaches(&lan, client, one), "{what} lets packets pass");
        assert!(reaches(&lan, client, two), "{what} hits another host");
        undo(&lan, one);
        wait::until(&format!("the end of {what}"), wait::SOON, || reaches(&lan, client, one));
    }
}

#[test]
fn a_link_carries_its_rate_and_no_more() {
    let lan = Lan::new(1, "100mbit");
    let rate = rivals::iperf3_between(&lan, Node::Donor(1), Node::Client, 2);
    assert!((60.0..105.0).contains(&rate), "{rate} Mbit/s over a link of 100");
    lan.rate(Node::Donor(1), "20mbit");
    let rate = rivals::iperf3_between(&lan, Node::Client, Node::Donor(1), 2);
    assert!(rate < 40.0, "{rate} Mbit/s over a link of 20");
}

#[test]
fn kill_and_stop_hit_the_processes_of_that_host_only() {
    let lan = Lan::new(2, "1gbit");
    let scratch = Scratch::new();
    let sleeper = |node: Node| {
        let mut command = lan.exec(node, tools::need("sleep"));
        command.arg("1000");
        Process::start(&format!("sleep{node}"), command, scratch.path())
    };
    let mut first = sleeper(Node::Donor(1));
    let mut second = sleeper(Node::Donor(2));
    wait::until("both sleepers", wait::SOON, || {
        lan.pids(Node::Donor(1)) == [first.pid()] && lan.pids(Node::Donor(2)) == [second.pid()]
    });
    lan.stop(Node::Donor(1));
    wait::until("a stopped sleeper", wait::SOON, || state(first.pid()) == "T");
    assert_ne!(state(second.pid()), "T");
    lan.cont(Node::Donor(1));
    wait::until("a sleeper that goes on", wait::SOON, || state(first.pid()) != "T");
    lan.kill(Node::Donor(1));
    first.wait_for_end(wait::SOON);
    assert!(second.is_running());
}

#[test]
fn a_panicking_test_leaves_nothing_behind() {
    let sweeper = std::thread::spawn(|| {
        let lan = Lan::new(1, "1gbit");
        assert!(reaches(&lan, Node::Client, Node::Donor(1)));
        let switch = format!("{lan:?}");
        std::panic::panic_any(switch);
    });
    let lan = *sweeper.join().expect_err("a panic").downcast::<String>().expect("the lab's description");
    let name = lan.split('"').nth(1).expect("a name").to_owned();
    assert!(name.starts_with(&mark::own()));
    for node in ["1", "c", "sw"] {
        assert!(!Path::new(&format!("/run/netns/{name}-{node}")).exists(), "{name}-{node} is still there");
    }
}

#[test]
fn nothing_is_routed_to_the_machine() {
    let _lan = Lan::new(1, "1gbit");
    let routes = tools::run("ip", ["-4", "route", "show", "table", "all"]);
    assert!(!routes.contains("10.77.0."), "{routes}");
}

fn state(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).unwrap_or("").to_owned()
}
