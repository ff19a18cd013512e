//! What is ok, what makes things slower or less safe, and what is in the way: from what was found. Never: a
//! look at the machine. Called by `doctor`. Tests: below.

use cheetah_core::limits::{COORDINATOR_PORT, EXTENT_BYTES};
use cheetah_core::units::show_bytes;
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ok,
    /// It works, with less speed or less certainty than it could.
    Slower,
    /// Something that people do with this program fails here.
    InTheWay,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Ok => "ok",
            State::Slower => "slower",
            State::InTheWay => "in the way",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judgement {
    pub check: &'static str,
    pub state: State,
    pub found: String,
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// What there is of something that may be closed to this user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Missing,
    Denied,
    Open,
}

/// Who listens at the coordinator's usual port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    Free,
    Coordinator,
    Other,
    /// It cannot be had, and why.
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Nobody said which, and none is found.
    Unnamed,
    /// Whatever was named or found, and why it is of no use.
    Unreached(String),
    Reached(Reached),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    pub url: String,
    pub donors: usize,
    /// Addresses of living donors that do not answer here.
    pub silent: Vec<String>,
    /// By which address this machine reaches it, and whether one can listen there.
    pub from: IpAddr,
    pub listens: Result<(), String>,
    /// The coordinator's, where its URL has one.
    pub coordinator: Option<IpAddr>,
}

/// A directory that is needed, or the one above it where it is not made yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    pub path: String,
    pub bytes_free: u64,
    pub is_writable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// It is not there, and can be made or not.
    Unmade {
        can_be_made: bool,
    },
    /// A link, a file, or another user's.
    NotOwn(String),
    Own {
        mode: u32,
    },
}

/// All that was looked at.
#[derive(Clone, Debug)]
pub struct Found {
    pub is_root: bool,
    pub fuse: Access,
    pub has_fusermount: bool,
    /// At most, by this user; `None`: as much as it likes.
    pub memlock_bytes: Option<u64>,
    pub swaps: Vec<String>,
    pub open_files: u64,
    pub machine_bytes: u64,
    /// What cgroups leave of it, and what of that is available.
    pub limited: Result<(u64, u64), String>,
    /// The word in brackets of the kernel's file; `None`: it has none.
    pub huge_pages: Option<String>,
    pub congestion: Option<String>,
    pub clock: Option<bool>,
    pub port: Port,
    pub multicast: Result<(), String>,
    pub pool: Pool,
    pub state: Option<Room>,
    pub runtime: (String, Runtime),
}

/// Each in its turn.
pub fn judge(found: &Found) -> Vec<Judgement> {
    let mut all = vec![
        fuse(found),
        locked(found),
        open_files(found.open_files),
        memory(found),
        swap(found),
        huge_pages(found.huge_pages.as_deref()),
        congestion(found.congestion.as_deref()),
        clock(found.clock),
        port(&found.port),
        multicast(&found.multicast),
        pool(&found.pool),
    ];
    if let Pool::Reached(reached) = &found.pool {
        all.push(donors(reached));
        all.push(lending(reached));
    }
    all.push(state_directory(found.state.as_ref()));
    all.push(runtime_directory(&found.runtime));
    all
}

fn ok(check: &'static str, found: impl Into<String>) -> Judgement {
    Judgement { check, state: State::Ok, found: found.into(), advice: None }
}

fn slower(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Judgement {
    Judgement { check, state: State::Slower, found: found.into(), advice: Some(advice.into()) }
}

fn blocks(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Judgement {
    Judgement { check, state: State::InTheWay, found: found.into(), advice: Some(advice.into()) }
}

/// Only `attach` needs it, and not for an export.
fn fuse(found: &Found) -> Judgement {
    const CHECK: &str = "fuse";
    match (found.fuse, found.is_root || found.has_fusermount) {
        (Access::Missing, _) => blocks(
            CHECK,
            "no /dev/fuse: a volume cannot be attached as a file or a device",
            "run `modprobe fuse` as root (in a container, pass the device in), or attach with --front export",
        ),
        (Access::Denied, _) => blocks(
            CHECK,
            "/dev/fuse may not be opened by this user",
            "run `chmod 666 /dev/fuse` as root, attach as root, or attach with --front export",
        ),
        (Access::Open, false) => blocks(
            CHECK,
            "no fusermount3, without which only root can mount",
            "install the package fuse3, attach as root, or attach with --front export",
        ),
        (Access::Open, true) => ok(CHECK, "volumes can be attached as files"),
    }
}

fn locked(found: &Found) -> Judgement {
    const CHECK: &str = "locked memory";
    match found.memlock_bytes {
        None => ok(CHECK, "no limit"),
        Some(bytes) if found.swaps.is_empty() => ok(
            CHECK,
            format!("{} at most, which is enough on a machine that does not swap", show_bytes(bytes)),
        ),
        Some(bytes) => blocks(
            CHECK,
            format!("{} at most: what volumes hold may be written to swap", show_bytes(bytes)),
            "raise it (`ulimit -Hl`, memlock in /etc/security/limits.conf, LimitMEMLOCK= of a service), or turn swap off",
        ),
    }
}

fn open_files(most: u64) -> Judgement {
    const CHECK: &str = "open files";
    let advice = "raise it (`ulimit -Hn`, nofile in /etc/security/limits.conf, LimitNOFILE= of a service)";
    match most {
        0..256 => blocks(CHECK, format!("{most} at most, too few for a pool's connections"), advice),
        256..4096 => slower(CHECK, format!("{most} at most, few for a large pool"), advice),
        u64::MAX => ok(CHECK, "no limit"),
        _ => ok(CHECK, format!("{most} at most")),
    }
}

fn memory(found: &Found) -> Judgement {
    const CHECK: &str = "memory";
    let (total, available) = match &found.limited {
        Ok(limited) => *limited,
        Err(why) => return blocks(CHECK, why.clone(), "mount /proc"),
    };
    let shown = format!("{} of {} are available", show_bytes(available), show_bytes(total));
    if available < 2 * EXTENT_BYTES {
        return blocks(CHECK, format!("{shown}: nothing to lend"), "end something that takes memory");
    }
    // What firmware and kernel keep for themselves is no limit.
    if total < found.machine_bytes / 8 * 7 {
        let text =
            format!("{shown}, by the limit of a cgroup; the machine has {}", show_bytes(found.machine_bytes));
        return slower(
            CHECK,
            text,
            "raise that limit (memory.max, MemoryMax= of a service) to lend or keep more",
        );
    }
    ok(CHECK, shown)
}

fn swap(found: &Found) -> Judgement {
    const CHECK: &str = "swap";
    match (found.swaps.is_empty(), found.memlock_bytes) {
        (true, _) => ok(CHECK, "none on a disk"),
        (false, None) => ok(CHECK, format!("on {}; what volumes hold is locked", found.swaps.join(", "))),
        (false, Some(_)) => blocks(
            CHECK,
            format!("on {}, and memory cannot be locked", found.swaps.join(", ")),
            "let this user lock memory, or `swapoff -a` as root",
        ),
    }
}

fn huge_pages(chosen: Option<&str>) -> Judgement {
    const CHECK: &str = "huge pages";
    match chosen {
        None => slower(CHECK, "this kernel has none", "use a kernel with transparent huge pages"),
        Some("never") => slower(
            CHECK,
            "turned off: reads cost up to a quarter more",
            "`echo madvise >/sys/kernel/mm/transparent_hugepage/enabled` as root",
        ),
        Some(chosen) => ok(CHECK, chosen),
    }
}

fn congestion(chosen: Option<&str>) -> Judgement {
    const CHECK: &str = "congestion control";
    match chosen {
        Some("cubic" | "reno") | None => ok(CHECK, chosen.unwrap_or("not told")),
        Some("bbr") => ok(CHECK, "bbr, which is used over long ways only"),
        Some(other) => slower(
            CHECK,
            format!("{other}, which nobody has measured here"),
            "`sysctl net.ipv4.tcp_congestion_control=cubic` as root",
        ),
    }
}

fn clock(is_kept: Option<bool>) -> Judgement {
    const CHECK: &str = "clock";
    match is_kept {
        Some(true) => ok(CHECK, "synchronised"),
        None => ok(CHECK, "the kernel does not tell who keeps it"),
        Some(false) => slower(
            CHECK,
            "not synchronised: times in records may be wrong, and certificates be refused",
            "run a time service, like systemd-timesyncd or chrony",
        ),
    }
}

fn port(port: &Port) -> Judgement {
    const CHECK: &str = "port";
    match port {
        Port::Free => ok(CHECK, format!("{COORDINATOR_PORT} is free for a coordinator")),
        Port::Coordinator => ok(CHECK, format!("a coordinator listens at {COORDINATOR_PORT}")),
        Port::Other => blocks(
            CHECK,
            format!("another program listens at {COORDINATOR_PORT}"),
            "end it, or `cheetah coordinate --listen IP:PORT`",
        ),
        Port::Refused(why) => blocks(
            CHECK,
            format!("nobody can listen at {COORDINATOR_PORT}: {why}"),
            "bring up the loopback interface, or `cheetah coordinate --listen IP:PORT`",
        ),
    }
}

fn multicast(had: &Result<(), String>) -> Judgement {
    const CHECK: &str = "mDNS";
    match had {
        Ok(()) => ok(CHECK, "multicast works here"),
        Err(why) => slower(
            CHECK,
            format!("no multicast ({why}): pools are not found by themselves"),
            "name the pool with --pool, CHEETAH_POOL or `pool` in cheetah.toml",
        ),
    }
}

fn pool(pool: &Pool) -> Judgement {
    const CHECK: &str = "pool";
    match pool {
        Pool::Reached(reached) => ok(CHECK, format!("{} answers", reached.url)),
        // Whoever is about to make one has not done anything wrong.
        Pool::Unnamed => Judgement {
            advice: Some("start one with `cheetah coordinate`, or name it with --pool".into()),
            ..ok(CHECK, "none is named, and none is found")
        },
        Pool::Unreached(why) => blocks(
            CHECK,
            why.clone(),
            "see that the coordinator runs and that a firewall lets this machine reach it",
        ),
    }
}

fn donors(reached: &Reached) -> Judgement {
    const CHECK: &str = "donors";
    let Reached { donors, silent, .. } = reached;
    match silent.len() {
        0 if *donors == 0 => ok(CHECK, "none yet"),
        0 => ok(CHECK, format!("all {donors} are reached from here")),
        some => blocks(
            CHECK,
            format!("{some} of {donors} are not reached from here: {}", silent.join(", ")),
            "see that routes and firewalls let this machine reach these addresses",
        ),
    }
}

/// Whether a donor here would be reached. A firewall is seen only when one joins: the coordinator tries.
fn lending(reached: &Reached) -> Judgement {
    const CHECK: &str = "lending";
    let Reached { from, listens, coordinator, .. } = reached;
    if let Err(why) = listens {
        return blocks(
            CHECK,
            format!("a donor here cannot listen at {from}: {why}"),
            "name an address of this machine with `cheetah donate --listen IP:PORT`",
        );
    }
    if coordinator.is_some_and(is_public) && !is_public(*from) {
        return blocks(
            CHECK,
            format!("this machine reaches the pool from {from}, which the pool does not reach"),
            "put both on one network, or lend at an address that the pool reaches, with `cheetah donate --listen`",
        );
    }
    match from.is_loopback() {
        true => slower(
            CHECK,
            "a donor here would be reached by this machine alone",
            "have the coordinator listen at an address of a network",
        ),
        false => {
            ok(CHECK, format!("a donor here listens at {from}; the coordinator tries that when it joins"))
        }
    }
}

/// Not one that has a meaning in some network alone.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            let is_shared = a == 100 && (64..128).contains(&b);
            !(ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified() || is_shared)
        }
        IpAddr::V6(ip) => {
            !(ip.is_loopback() || ip.is_unspecified() || ip.is_unique_local() || ip.is_unicast_link_local())
        }
    }
}

fn state_directory(room: Option<&Room>) -> Judgement {
    const CHECK: &str = "state directory";
    const NEEDED_BYTES: u64 = 64 << 20;
    match room {
        None => blocks(
            CHECK,
            "neither XDG_STATE_HOME nor HOME is set",
            "name a directory with `cheetah coordinate --state DIR`",
        ),
        Some(Room { path, is_writable: false, .. }) => blocks(
            CHECK,
            format!("{path} cannot be written to by this user"),
            "name another with `cheetah coordinate --state DIR`",
        ),
        Some(Room { path, bytes_free, .. }) if *bytes_free < NEEDED_BYTES => blocks(
            CHECK,
            format!("{} are free for {path}", show_bytes(*bytes_free)),
            "make room, or name another with `cheetah coordinate --state DIR`",
        ),
        Some(Room { path, bytes_free, .. }) => {
            ok(CHECK, format!("{} are free for {path}", show_bytes(*bytes_free)))
        }
    }
}

fn runtime_directory((path, runtime): &(String, Runtime)) -> Judgement {
    const CHECK: &str = "runtime directory";
    let advice = "set XDG_RUNTIME_DIR to a directory of your own";
    match runtime {
        Runtime::Unmade { can_be_made: true } => ok(CHECK, format!("{path} is made when it is needed")),
        Runtime::Unmade { can_be_made: false } => blocks(CHECK, format!("{path} cannot be made"), advice),
        Runtime::NotOwn(why) => blocks(CHECK, format!("{path} {why}"), format!("remove it, or {advice}")),
        Runtime::Own { mode } if mode & 0o077 != 0 => slower(
            CHECK,
            format!("{path} is open to others ({mode:04o}), until it is used next"),
            format!("`chmod 700 {path}`"),
        ),
        Runtime::Own { .. } => ok(CHECK, format!("{path} is this user's alone")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which nothing is in the way.
    fn well() -> Found {
        Found {
            is_root: false,
            fuse: Access::Open,
            has_fusermount: true,
            memlock_bytes: None,
            swaps: Vec::new(),
            open_files: 1 << 20,
            machine_bytes: 64 << 30,
            limited: Ok((62 << 30, 40 << 30)),
            huge_pages: Some("madvise".into()),
            congestion: Some("cubic".into()),
            clock: Some(true),
            port: Port::Free,
            multicast: Ok(()),
            pool: Pool::Reached(reached()),
            state: Some(Room { path: "/s".into(), bytes_free: 1 << 30, is_writable: true }),
            runtime: ("/r".into(), Runtime::Own { mode: 0o700 }),
        }
    }

    fn reached() -> Reached {
        Reached {
            url: "http://10.0.0.5:10808".into(),
            donors: 2,
            silent: Vec::new(),
            from: "10.0.0.7".parse().expect("an address"),
            listens: Ok(()),
            coordinator: Some("10.0.0.5".parse().expect("an address")),
        }
    }

    /// The only thing that is not ok when this is changed.
    #[track_caller]
    fn after(change: impl FnOnce(&mut Found)) -> Judgement {
        let mut found = well();
        change(&mut found);
        let mut rest = judge(&found);
        rest.retain(|check| check.state != State::Ok);
        assert_eq!(rest.len(), 1, "{rest:#?}");
        rest.remove(0)
    }

    #[test]
    fn nothing_is_in_the_way_of_a_machine_that_is_well() {
        for check in judge(&well()) {
            assert_eq!((check.state, &check.advice), (State::Ok, &None), "{check:?}");
        }
    }

    #[test]
    fn whatever_is_not_ok_says_what_to_do() {
        type Change = fn(&mut Found);
        let changes: [(&str, State, Change); 19] = [
            ("fuse", State::InTheWay, |f| f.fuse = Access::Missing),
            ("fuse", State::InTheWay, |f| f.fuse = Access::Denied),
            ("fuse", State::InTheWay, |f| f.has_fusermount = false),
            ("open files", State::Slower, |f| f.open_files = 1024),
            ("open files", State::InTheWay, |f| f.open_files = 64),
            ("memory", State::Slower, |f| f.limited = Ok((8 << 30, 4 << 30))),
            ("memory", State::InTheWay, |f| f.limited = Ok((62 << 30, 1 << 20))),
            ("huge pages", State::Slower, |f| f.huge_pages = Some("never".into())),
            ("congestion control", State::Slower, |f| f.congestion = Some("vegas".into())),
            ("clock", State::Slower, |f| f.clock = Some(false)),
            ("port", State::InTheWay, |f| f.port = Port::Other),
            ("mDNS", State::Slower, |f| f.multicast = Err("no route".into())),
            ("pool", State::InTheWay, |f| f.pool = Pool::Unreached("silence".into())),
            ("state directory", State::InTheWay, |f| f.state = None),
            ("state directory", State::InTheWay, |f| f.state.as_mut().expect("one").bytes_free = 1 << 20),
            ("state directory", State::InTheWay, |f| f.state.as_mut().expect("one").is_writable = false),
            ("runtime directory", State::InTheWay, |f| f.runtime.1 = Runtime::NotOwn("is a link".into())),
            ("runtime directory", State::InTheWay, |f| f.runtime.1 = Runtime::Unmade { can_be_made: false }),
            ("runtime directory", State::Slower, |f| f.runtime.1 = Runtime::Own { mode: 0o755 }),
        ];
        for (check, state, change) in changes {
            let judged = after(change);
            assert_eq!((judged.check, judged.state), (check, state), "{judged:?}");
            assert!(judged.advice.is_some(), "{judged:?}");
        }
    }

    #[test]
    fn swap_matters_where_memory_cannot_be_locked() {
        let mut found = Found { swaps: vec!["/dev/sda2".into()], ..well() };
        assert!(judge(&found).iter().all(|check| check.state == State::Ok), "it is locked");
        found.memlock_bytes = Some(8 << 20);
        let not_ok: Vec<_> = judge(&found).into_iter().filter(|check| check.state != State::Ok).collect();
        assert_eq!(not_ok.len(), 2, "{not_ok:?}");
        found.swaps.clear();
        assert!(judge(&found).iter().all(|check| check.state == State::Ok), "there is no swap");
    }

    #[test]
    fn root_mounts_without_help() {
        let found = Found { is_root: true, has_fusermount: false, ..well() };
        assert!(judge(&found).iter().all(|check| check.state == State::Ok));
    }

    #[test]
    fn no_pool_is_a_beginning_and_no_fault() {
        let found = Found { pool: Pool::Unnamed, ..well() };
        let judged = judge(&found);
        assert!(judged.iter().all(|check| check.state == State::Ok));
        let pool = judged.iter().find(|check| check.check == "pool").expect("it is judged");
        assert!(pool.advice.is_some());
    }

    #[test]
    fn who_would_not_be_reached_is_told() {
        let with = |change: fn(&mut Reached)| {
            let mut reached = reached();
            change(&mut reached);
            after(|found| found.pool = Pool::Reached(reached))
        };
        let silent = with(|r| r.silent = vec!["10.0.0.9:1".into()]);
        assert_eq!((silent.check, silent.state), ("donors", State::InTheWay));
        assert!(silent.found.contains("1 of 2") && silent.found.contains("10.0.0.9:1"));
        let deaf = with(|r| r.listens = Err("no such address".into()));
        assert_eq!((deaf.check, deaf.state), ("lending", State::InTheWay));
        let behind = with(|r| r.coordinator = Some([203, 0, 113, 5].into()));
        assert_eq!((behind.check, behind.state), ("lending", State::InTheWay));
        let alone = with(|r| r.from = [127, 0, 0, 1].into());
        assert_eq!((alone.check, alone.state), ("lending", State::Slower));
    }

    #[test]
    fn the_worst_counts() {
        assert!(State::InTheWay > State::Slower && State::Slower > State::Ok);
        assert_eq!(serde_json::to_value(State::InTheWay).expect("JSON"), "in_the_way");
    }
}
