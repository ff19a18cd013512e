//! The rival: qemu's quorum driver over three nbdkit servers in memory, on the same hosts, under the same
//! load.
//!
//! qemu waits for every child of a write, and for a child that is silent as long as TCP does; so the fault is
//! lifted after a while, and the silence then says how long it lasted, not when qemu would have given up.
//! Called by: `bin/faults.rs`.

use std::time::Duration;

use crate::dice::Dice;
use crate::faults::trial::{self, Hosts, Strike};
use crate::faults::{Case, Outcome};
use crate::fio::{Fio, Target};
use crate::lan::{Lan, Node};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::{rivals, tools, wait};

const CHILDREN: u8 = 3;
const PORT: u16 = 10_809;
const SIZE: &str = "64M";
/// When the fault ends that qemu waits for.
const FAULT_LIMIT: Duration = Duration::from_secs(4);

/// Three servers and the quorum over them.
#[derive(Debug)]
struct Quorum {
    _servers: Vec<Process>,
    _front: Process,
    uri: String,
}

impl Quorum {
    #[track_caller]
    fn start(lan: &Lan, scratch: &Scratch) -> Self {
        let servers = (1..=CHILDREN).map(|number| server(lan, Node::Donor(number), scratch)).collect();
        let socket = scratch.join("quorum.sock");
        let mut command = lan.exec(Node::Client, tools::need("qemu-nbd"));
        command.args(["--persistent", "--shared=0", "--socket"]).arg(&socket);
        command.arg("--image-opts").arg(options());
        let front = Process::start("quorum", command, scratch.path());
        rivals::wait_for_unix(&socket);
        Self { _servers: servers, _front: front, uri: rivals::unix_uri(&socket, "") }
    }
}

fn options() -> String {
    let mut options = "driver=quorum,vote-threshold=2".to_owned();
    for child in 0..CHILDREN {
        let address = Node::Donor(child + 1).address();
        let server = format!("children.{child}.server");
        options += &format!(
            ",children.{child}.driver=nbd,{server}.type=inet,{server}.host={address},{server}.port={PORT}"
        );
    }
    options
}

#[track_caller]
fn server(lan: &Lan, node: Node, scratch: &Scratch) -> Process {
    let mut command = lan.exec(node, tools::need("nbdkit"));
    command.args(["--foreground", "--ipaddr", &node.address(), "--port", &PORT.to_string(), "memory", SIZE]);
    let process = Process::start(&format!("nbdkit-{node}"), command, scratch.path());
    let uri = format!("nbd://{}:{PORT}/", node.address());
    wait::until(&format!("nbdkit on host {node}"), wait::SOON, || {
        let mut ask = lan.exec(node, tools::need("nbdinfo"));
        tools::output(ask.args(["--size", &uri])).status.success()
    });
    process
}

/// Runs one case; what went wrong is in the outcome. Panics when the lab itself fails.
pub fn run(hosts: &Hosts, case: Case, dice: &mut Dice, outcome: &mut Outcome) {
    hosts.heal();
    let scratch = Scratch::new();
    let quorum = Quorum::start(&hosts.lan, &scratch);
    let victim = 1 + u8::try_from(dice.below(CHILDREN.into())).unwrap_or_default();
    outcome.victims = vec![format!("host-{victim}")];
    let target = Target::Export(quorum.uri);
    let fio = Fio { lan: Some(&hosts.lan), target: &target, scratch: &scratch };
    let victims = [Node::Donor(victim)];
    let lifted_after = Some(FAULT_LIMIT);
    let strike = Strike { fault: case.fault, victims: &victims, lifted_after, copies: CHILDREN.into() };
    trial::prepare(hosts, &fio, &strike);
    outcome.lap("fill");
    trial::strike(hosts, &fio, &strike, dice, outcome);
    trial::lift(hosts, &strike);
    trial::read_back(&fio, "after the fault", outcome);
}
