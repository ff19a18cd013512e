//! A run on a volume of the program: a fresh pool on the lab's hosts, one group, a fault on its donors.
//!
//! Invariant: the volume is one group, so that every write meets the donors that fail or their group.
//! After the load everything is read back while the fault lasts; then it is lifted (or a fresh donor comes
//! where one was killed), the volume becomes whole, and everything is read back again.
//! Called by: `bin/faults.rs`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dice::Dice;
use crate::faults::trial::{self, Hosts, Strike};
use crate::faults::{Case, DONORS, Fault, Front, Outcome};
use crate::fio::{Fio, Target};
use crate::lan::Node;
use crate::pool::{Access, Pool, State};

const VOLUME: &str = "case";
const EXTENT_BYTES: u64 = 64 << 20;
const DONOR_SIZE: &str = "256M";
/// How long a volume may take to become whole when there is nothing in its way.
const WHOLE_LIMIT: Duration = Duration::from_secs(30);

/// Runs one case; what went wrong is in the outcome. Panics when the lab itself fails.
pub fn run(hosts: &Hosts, case: Case, redundancy: &str, dice: &mut Dice, outcome: &mut Outcome, keep: &Path) {
    hosts.heal();
    let mut pool = Pool::of(Access::Plaintext, State::Directory, Some(Arc::clone(&hosts.lan)));
    pool.donate_everywhere(DONORS, DONOR_SIZE);
    let size = one_group_bytes(redundancy);
    pool.ok(["create", VOLUME, &size.to_string(), "--redundancy", redundancy]);
    let target = match case.front {
        Front::Export => Target::Export(pool.attach_export_unix(VOLUME, &[]).uri),
        Front::Fuse => Target::File(pool.attach_fuse(VOLUME, &[]).path),
    };
    outcome.lap("pool");
    run_attached(hosts, case, &target, &mut pool, dice, outcome);
    // Before the pool's end, which detaches: that must not wait for a donor that cannot answer.
    hosts.heal();
    if outcome.missed().is_some() {
        keep_logs(pool.scratch().path(), &keep.join(format!("{case}-{}", outcome.repeat).replace('/', "-")));
    }
}

fn run_attached(
    hosts: &Hosts,
    case: Case,
    target: &Target,
    pool: &mut Pool,
    dice: &mut Dice,
    outcome: &mut Outcome,
) {
    let mut holders = pool.holders(VOLUME, 0);
    dice.shuffle(&mut holders);
    outcome.victims = holders.into_iter().take(case.subject.parity().into()).collect();
    outcome.victims.sort();
    let victims: Vec<Node> = outcome.victims.iter().map(|name| node_of(name)).collect();
    let copies = u64::from(case.subject.parity()) + 1;
    let strike = Strike { fault: case.fault, victims: &victims, lifted_after: None, copies };
    {
        let fio = Fio { lan: Some(&hosts.lan), target, scratch: pool.scratch() };
        trial::prepare(hosts, &fio, &strike);
        outcome.lap("fill");
        trial::strike(hosts, &fio, &strike, dice, outcome);
        trial::read_back(&fio, "with the fault", outcome);
    }
    let held = pool.holders(VOLUME, 0);
    outcome.excluded = outcome.victims.iter().filter(|victim| !held.contains(victim)).cloned().collect();
    if outcome.errors > 0 {
        return;
    }
    let lifted = Instant::now();
    trial::lift(hosts, &strike);
    if case.fault == Fault::Kill {
        for victim in &victims {
            pool.donate_at(*victim, &format!("fresh-{victim}"), DONOR_SIZE);
        }
    }
    if become_whole(pool) {
        outcome.whole_after_ms = u64::try_from(lifted.elapsed().as_millis()).ok();
    } else {
        outcome.fail(format!("not whole {WHOLE_LIMIT:?} after the fault"));
    }
    outcome.lap("whole");
    let fio = Fio { lan: Some(&hosts.lan), target, scratch: pool.scratch() };
    trial::read_back(&fio, "after the fault", outcome);
}

/// The size of a volume of one group: an extent for each data fragment.
fn one_group_bytes(redundancy: &str) -> u64 {
    let data = match redundancy.split_once(':') {
        Some(("parity", numbers)) => numbers.split_once('+').and_then(|(data, _)| data.parse().ok()),
        Some(("stripe", data)) => data.parse().ok(),
        _ => None,
    };
    data.unwrap_or(1) * EXTENT_BYTES
}

/// The host of a donor that `donate_everywhere` or this run named.
pub(super) fn node_of(donor: &str) -> Node {
    let number = donor.rsplit('-').next().and_then(|number| number.parse().ok());
    Node::Donor(number.unwrap_or_else(|| panic!("donor {donor} names no host")))
}

fn become_whole(pool: &Pool) -> bool {
    let start = Instant::now();
    loop {
        if pool.volume_status(VOLUME)["health"] == "whole" {
            return true;
        }
        if start.elapsed() > WHOLE_LIMIT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Copies the logs of a run that missed something, and fio's.
fn keep_logs(from: &Path, to: &Path) {
    let mut directories = vec![from.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let kept = [".log", ".out"].iter().any(|end| name.ends_with(end));
            if path.is_dir() && !name.starts_with("mnt-") {
                directories.push(path);
            } else if kept && std::fs::create_dir_all(to).is_ok() {
                // For a look only; the run's result does not hang on it.
                let _ = std::fs::copy(&path, to.join(name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_an_extent_for_each_data_fragment() {
        assert_eq!(one_group_bytes("mirror:3"), 64 << 20);
        assert_eq!(one_group_bytes("parity:3+2"), 192 << 20);
        assert_eq!(one_group_bytes("stripe:4"), 256 << 20);
        assert_eq!(node_of("host-4"), Node::Donor(4));
        assert_eq!(node_of("fresh-2"), Node::Donor(2));
    }
}
