//! An attachment that is given up while it starts leaves nothing: no process, no lease, no mount, no record.
//!
//! What keeps it from being ready is that its donors are stopped: the coordinator waits for them for 5 s
//! before it gives the lease that it has noted, and the daemon for 2 s more.

use std::path::Path;

use cheetah_lab::command::Said;
use cheetah_lab::pool::Pool;
use cheetah_lab::process::Process;
use cheetah_lab::wait;
use rustix::process::Signal;
use serde_json::json;

/// On its way to a volume all of whose donors are stopped.
struct Stuck {
    pool: Pool,
    attach: Process,
}

impl Stuck {
    #[track_caller]
    fn new(front: &[&str]) -> Stuck {
        let mut pool = Pool::start();
        for name in ["d1", "d2", "d3"] {
            pool.donate(name, "128M");
        }
        pool.ok(["create", "case", "64M", "--redundancy", "parity:2+1"]);
        pool.attach_export("case", &[]);
        pool.kill_daemons();
        wait::until("the end of the first lease", wait::SOON, || attachments(&pool) == json!([]));
        for name in ["d1", "d2", "d3"] {
            pool.donor(name).signal(Signal::STOP);
        }
        let mut command = pool.command();
        command.args(["attach", "case", "--front"]).args(front);
        let attach = Process::start("attach", command, pool.scratch().path());
        wait::until("the lease of the second", wait::SOON, || attachments(&pool) != json!([]));
        Stuck { pool, attach }
    }

    /// Nothing of it is left, though its donors are silent still.
    #[track_caller]
    fn leaves_nothing(&mut self) {
        wait::until("the end of the daemon", wait::SOON * 2, || self.pool.daemons().is_empty());
        assert_eq!(attachments(&self.pool), json!([]), "the lease is left");
        let run = self.pool.scratch().join("run/cheetah");
        let left = |kind: &str| run.join(format!("case.{kind}")).exists();
        for kind in ["json", "control", "lock", "new"] {
            assert!(!left(kind), "case.{kind} is left");
        }
        assert!(!run.join("mnt/case").exists(), "the mount point is left");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!mounts.contains(&run.display().to_string()), "a mount is left");
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        for name in ["d1", "d2", "d3"] {
            self.pool.donor(name).signal(Signal::CONT);
        }
    }
}

#[track_caller]
fn attachments(pool: &Pool) -> serde_json::Value {
    pool.volume_status("case")["attachments"].clone()
}

#[test]
fn ctrl_c_ends_it() {
    let mut stuck = Stuck::new(&["fuse"]);
    assert!(stuck.attach.is_running(), "it was ready or failed: {}", stuck.attach.log());
    stuck.attach.signal(Signal::INT);
    let status = stuck.attach.wait_for_end(wait::SOON * 2);
    assert_eq!(status.code(), Some(1), "{}", stuck.attach.log());
    assert!(stuck.attach.log().contains("interrupted"), "{}", stuck.attach.log());
    stuck.leaves_nothing();
}

#[test]
fn a_command_that_is_killed_ends_it() {
    let mut stuck = Stuck::new(&["export"]);
    stuck.attach.kill();
    stuck.leaves_nothing();
}

#[test]
fn detach_ends_it() {
    let mut stuck = Stuck::new(&["loop"]);
    stuck.pool.ok(["detach", "case"]);
    let status = stuck.attach.wait_for_end(wait::SOON);
    assert_eq!(status.code(), Some(4), "{}", stuck.attach.log());
    assert!(stuck.attach.log().contains("was detached before it was ready"), "{}", stuck.attach.log());
    stuck.leaves_nothing();
}

#[test]
fn a_signal_of_the_daemon_ends_it() {
    let mut stuck = Stuck::new(&["fuse"]);
    let attach = stuck.attach.pid();
    let daemons = stuck.pool.daemons();
    let daemon = daemons.iter().find(|running| running.pid != attach).expect("a daemon");
    cheetah_lab::mark::signal(daemon.pid, Signal::TERM);
    let status = stuck.attach.wait_for_end(wait::SOON);
    assert_eq!(status.code(), Some(1), "{}", stuck.attach.log());
    assert!(stuck.attach.log().contains("told to end"), "{}", stuck.attach.log());
    stuck.leaves_nothing();
}

#[test]
fn a_second_one_is_told_of_the_first() {
    let mut stuck = Stuck::new(&["fuse"]);
    let Said { status, err, .. } = stuck.pool.run(["attach", "case"]);
    assert_eq!(status.code(), Some(4), "{err}");
    assert!(err.contains("cheetah detach case"), "{err}");
    stuck.attach.kill();
    stuck.leaves_nothing();
}

/// A start that fails for a reason of its own takes back as much.
#[test]
fn an_error_takes_back_what_was_begun() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.create_linear("case", "64M");
    let listen = format!("unix:{}", pool.scratch().join("no/such/directory/x").display());
    pool.fails(["attach", "case", "--front", "export", "--listen", &listen]);
    assert_eq!(attachments(&pool), json!([]), "the lease is left");
    let run = pool.scratch().join("run/cheetah");
    let files = std::fs::read_dir(Path::new(&run)).expect("the runtime directory");
    let files: Vec<_> = files.flatten().map(|entry| entry.file_name()).collect();
    assert!(files.is_empty(), "{files:?} are left");
}
