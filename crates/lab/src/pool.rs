//! The program under test as a user runs it: a coordinator, donors, commands and attached volumes, each a
//! process.
//!
//! Owns: the place of the binary, private state and runtime directories, ports (always the kernel's choice),
//! and the end of every process of the pool, those that detached themselves included. Never: looks inside the
//! program. Invariant: dropping a pool leaves no process, mount or loop device of it.
//! Called by: the end-to-end tests and benchmarks.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::cgroup::Cgroup;
use crate::command::{Said, end_within, run_to_end};
use crate::lan::{Lan, Node};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::{mark, wait};

/// The program: `CHEETAH_BIN`, else the release build beside the build of the caller.
#[track_caller]
pub fn binary() -> PathBuf {
    let path = std::env::var_os("CHEETAH_BIN").map(PathBuf::from).or_else(|| {
        let exe = std::env::current_exe().ok()?;
        exe.ancestors().map(|directory| directory.join("release/cheetah")).find(|path| path.exists())
    });
    match path {
        Some(path) if path.exists() => path,
        _ => panic!("needs the program (release/cheetah, or CHEETAH_BIN): run make build"),
    }
}

/// Where the coordinator keeps its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Memory,
    Directory,
}

/// Whom a pool lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Members by TLS, as a pool does unless told otherwise. The pool's environment is its admin's.
    Members,
    /// Anybody, in the clear: for what looks into the bytes of connections, or measures.
    Plaintext,
}

/// What `attach` answered.
#[derive(Clone, Debug)]
pub struct Attached {
    pub volume: String,
    /// The file or block device, for the front ends that have one.
    pub path: PathBuf,
    /// The address of the export, for the front end that has one.
    pub uri: String,
    /// The daemon that serves it.
    pub pid: u32,
}

/// A pool of processes on this machine, or spread over the hosts of a lab.
#[derive(Debug)]
pub struct Pool {
    url: String,
    mark: String,
    state: State,
    access: Access,
    lan: Option<Arc<Lan>>,
    coordinator: Option<Process>,
    donors: BTreeMap<String, Process>,
    attached: Vec<String>,
    scratch: Scratch,
}

impl Pool {
    /// A coordinator that keeps its state in memory, on loopback.
    #[track_caller]
    pub fn start() -> Self {
        Self::with(State::Memory, None)
    }

    /// The same, of a pool in the clear.
    #[track_caller]
    pub fn in_the_clear() -> Self {
        Self::of(Access::Plaintext, State::Memory, None)
    }

    /// A coordinator with this kind of state; in a lab it runs on a host of its own.
    #[track_caller]
    pub fn with(state: State, lan: Option<Arc<Lan>>) -> Self {
        Self::of(Access::Members, state, lan)
    }

    /// The same, of either kind of pool.
    #[track_caller]
    pub fn of(access: Access, state: State, lan: Option<Arc<Lan>>) -> Self {
        let mut pool = Self::without_coordinator(lan);
        (pool.state, pool.access) = (state, access);
        let listen = format!("{}:0", pool.address_of(Node::Coordinator));
        pool.start_coordinator(&listen);
        pool
    }

    /// No coordinator at all: for what must work, or fail well, without one.
    pub fn without_coordinator(lan: Option<Arc<Lan>>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}.pool.{}", mark::own(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self {
            // The discard port: nothing listens there.
            url: "http://127.0.0.1:9".to_owned(),
            mark,
            state: State::Memory,
            access: Access::Plaintext,
            lan,
            coordinator: None,
            donors: BTreeMap::new(),
            attached: Vec::new(),
            scratch: Scratch::new(),
        }
    }

    /// Commands and donors of this pool look for its coordinators here from now on: such as the caller has
    /// started, one or several with commas between them.
    pub fn look_at(&mut self, url: &str) {
        self.url = url.to_owned();
    }

    fn address_of(&self, node: Node) -> String {
        if self.lan.is_some() { node.address() } else { "127.0.0.1".to_owned() }
    }

    #[track_caller]
    fn start_coordinator(&mut self, listen: &str) {
        let state = match self.state {
            State::Memory => "memory".to_owned(),
            State::Directory => self.scratch.directory("state").display().to_string(),
        };
        let mut command = self.command_on(Node::Coordinator);
        command.args(["coordinate", "--listen", listen, "--state", &state]);
        if self.access == Access::Plaintext {
            command.arg("--plaintext");
        }
        let mut process = Process::start("coordinator", command, self.scratch.path());
        let line = process.wait_for_line("ready: ", wait::SOON);
        self.url = after(&line, "ready: ");
        if self.access == Access::Members && !self.donors_identity().exists() {
            let line = process.wait_for_line("lend to it within a day: ", wait::SOON);
            let invitation = after(&line, "--pool ");
            let identity = self.donors_identity().display().to_string();
            self.ok(["join", &invitation, "--identity", &identity]);
        }
        self.coordinator = Some(process);
    }

    /// Of the admin of a pool of members, as whom its commands run.
    pub fn identity(&self) -> PathBuf {
        self.scratch.join("config/cheetah/identity")
    }

    /// Of all donors of this pool: each process is one machine's, and finds it as `donate` does.
    fn donors_identity(&self) -> PathBuf {
        self.scratch.join("config/cheetah/donor")
    }

    /// Kills the coordinator (SIGKILL).
    pub fn kill_coordinator(&mut self) {
        self.coordinator = None;
    }

    /// Starts the coordinator again at the address it had.
    #[track_caller]
    pub fn restart_coordinator(&mut self) {
        let listen = self.host_and_port().to_owned();
        self.start_coordinator(&listen);
    }

    /// What the coordinator has said.
    #[track_caller]
    pub fn coordinator_log(&self) -> String {
        self.coordinator.as_ref().expect("a coordinator").log()
    }

    /// A coordinator of another pool, at the address of this one's, which has to be away.
    #[track_caller]
    pub fn start_stranger(&self, state: &str) -> Process {
        let mut command = self.command_on(Node::Coordinator);
        command.args(["coordinate", "--listen", self.host_and_port(), "--state", state]);
        if self.access == Access::Plaintext {
            command.arg("--plaintext");
        }
        let mut process = Process::start("stranger", command, self.scratch.path());
        process.wait_for_line("ready: ", wait::SOON);
        process
    }

    /// The process of the coordinator.
    #[track_caller]
    pub fn coordinator(&mut self) -> &mut Process {
        self.coordinator.as_mut().expect("a coordinator runs")
    }

    /// The address of the coordinator.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `HOST:PORT` of the coordinator.
    #[track_caller]
    pub fn host_and_port(&self) -> &str {
        self.url.split_once("://").expect("a scheme").1
    }

    /// A private directory of this pool, for the caller's files.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// The program with this pool's environment.
    pub fn command(&self) -> Command {
        self.command_on(Node::Client)
    }

    /// The program with this pool's environment on a host of the lab (here, when there is none).
    pub fn command_on(&self, node: Node) -> Command {
        let mut command = match &self.lan {
            Some(lan) => lan.exec(node, binary()),
            None => Command::new(binary()),
        };
        command
            .stdin(Stdio::null())
            .env(mark::VARIABLE, &self.mark)
            .env("CHEETAH_POOL", &self.url)
            .env("XDG_RUNTIME_DIR", self.scratch.directory("run"))
            .env("XDG_STATE_HOME", self.scratch.directory("state-home"))
            .env("XDG_CONFIG_HOME", self.scratch.directory("config"))
            // No file of this machine's has a say.
            .env("CHEETAH_CONFIG", "");
        command
    }

    /// Starts a donor on this machine, or, in a lab, the next donor on the next host.
    #[track_caller]
    pub fn donate(&mut self, name: &str, size: &str) -> &mut Process {
        let number = u8::try_from(self.donors.len() + 1).expect("fewer donors than hosts");
        let node = Node::Donor(number);
        let listen = format!("{}:0", self.address_of(node));
        self.donate_on(node, name, &[size, "--listen", &listen])
    }

    /// Starts a donor of something else than this machine's memory: another's NBD server, a disk.
    #[track_caller]
    pub fn donate_as(&mut self, name: &str, arguments: &[&str]) -> &mut Process {
        self.donate_on(Node::Client, name, arguments)
    }

    /// Starts a donor that the pool does not let in, and waits until it says why.
    #[track_caller]
    pub fn donate_in_vain(&self, name: &str, arguments: &[&str], says: &str) -> Process {
        let mut process = self.spawn_donor(Node::Client, name, arguments);
        process.wait_for_line(says, wait::SOON);
        process
    }

    #[track_caller]
    fn donate_on(&mut self, node: Node, name: &str, arguments: &[&str]) -> &mut Process {
        let mut process = self.spawn_donor(node, name, arguments);
        process.wait_for_line("ready: donor", wait::SOON);
        self.donors.insert(name.to_owned(), process);
        self.donor(name)
    }

    /// Starts a donor on this machine that counts against the limit of a memory cgroup from its first page
    /// on.
    #[track_caller]
    pub fn donate_in(&mut self, cgroup: &Cgroup, name: &str, arguments: &[&str]) -> &mut Process {
        let program = self.command();
        let mut command = cgroup.command(program.get_program());
        command.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.arg("donate").args(arguments).args(["--listen", "127.0.0.1:0"]);
        command.args(["--pool", &self.url, "--name", name, "--host-id", name]);
        let mut process = Process::start(&format!("donor-{name}"), command, self.scratch.path());
        process.wait_for_line("ready: donor", wait::SOON);
        self.donors.insert(name.to_owned(), process);
        self.donor(name)
    }

    fn spawn_donor(&self, node: Node, name: &str, arguments: &[&str]) -> Process {
        let mut command = self.command_on(node);
        command.arg("donate").args(arguments).args(["--pool", &self.url, "--name", name]);
        if self.lan.is_none() {
            // Each stands for a machine.
            command.env("CHEETAH_HOST_ID", name);
        }
        Process::start(&format!("donor-{name}"), command, self.scratch.path())
    }

    /// Starts a donor on this host of the lab, which may have had one before.
    #[track_caller]
    pub fn donate_at(&mut self, node: Node, name: &str, size: &str) -> &mut Process {
        let listen = format!("{}:0", self.address_of(node));
        self.donate_on(node, name, &[size, "--listen", &listen])
    }

    /// Starts a donor of a disk on this host of the lab, with so much of it in memory.
    #[track_caller]
    pub fn donate_disk_at(&mut self, node: Node, name: &str, disk: &str, cache: &str) -> &mut Process {
        let listen = format!("{}:0", self.address_of(node));
        self.donate_on(node, name, &["--disk", disk, "--cache", cache, "--listen", &listen])
    }

    /// Starts `host-1`, `host-2` and so on, each on its host of the lab, all at once.
    #[track_caller]
    pub fn donate_everywhere(&mut self, donors: u8, size: &str) {
        let started: Vec<(String, Process)> = (1..=donors)
            .map(|number| {
                let name = format!("host-{number}");
                let listen = format!("{}:0", self.address_of(Node::Donor(number)));
                let process = self.spawn_donor(Node::Donor(number), &name, &[size, "--listen", &listen]);
                (name, process)
            })
            .collect();
        for (name, mut process) in started {
            process.wait_for_line("ready: donor", wait::SOON);
            self.donors.insert(name, process);
        }
    }

    /// The lost ranges that `show` lists, as (offset, length), neighbours joined.
    #[track_caller]
    pub fn lost_ranges(&self, volume: &str) -> Vec<(u64, u64)> {
        let detail = self.json(["show", volume]);
        let number = |range: &Value, name: &str| {
            range[name].as_u64().unwrap_or_else(|| panic!("no {name} in a lost range: {range}"))
        };
        let mut all = Vec::new();
        for range in detail["lost"].as_array().expect("lost ranges") {
            let (offset, length) = (number(range, "offset"), number(range, "len"));
            all.extend(
                (0..number(range, "count")).map(|turn| (offset + turn * number(range, "stride"), length)),
            );
        }
        all.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (offset, length) in all {
            match joined.last_mut() {
                Some(last) if last.0 + last.1 == offset => last.1 += length,
                _ => joined.push((offset, length)),
            }
        }
        joined
    }

    /// The names of the donors that hold slots of a volume's group, in the order of its slots.
    #[track_caller]
    pub fn holders(&self, volume: &str, group: usize) -> Vec<String> {
        let detail = self.json(["show", volume]);
        let map = &detail["map"];
        let slots = map["groups"][group]["slots"].as_array();
        let slots = slots.unwrap_or_else(|| panic!("no slots of group {group} in {detail}"));
        let name = |slot: &Value| {
            let donor = slot["held"]["donor"].as_str()?;
            map["routes"][donor]["name"].as_str().map(str::to_owned)
        };
        slots.iter().filter_map(name).collect()
    }

    /// A donor by its name.
    #[track_caller]
    pub fn donor(&mut self, name: &str) -> &mut Process {
        self.donors.get_mut(name).unwrap_or_else(|| panic!("no donor {name}"))
    }

    /// The processes of all donors.
    pub fn donor_pids(&self) -> Vec<u32> {
        self.donors.values().map(Process::pid).collect()
    }

    #[track_caller]
    fn process_of(&self, donor: &str) -> &Process {
        self.donors.get(donor).unwrap_or_else(|| panic!("no donor {donor}"))
    }

    #[track_caller]
    pub fn pid_of(&self, donor: &str) -> u32 {
        self.process_of(donor).pid()
    }

    #[track_caller]
    pub fn log_of(&self, donor: &str) -> String {
        self.process_of(donor).log()
    }

    /// Runs a command of the program to its end, whatever comes of it.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        let mut command = self.command();
        command.args(arguments);
        run_to_end(command)
    }

    /// Runs a command that must succeed; answers its standard output.
    #[track_caller]
    pub fn ok<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let arguments = owned(arguments);
        let said = self.run(&arguments);
        assert!(said.status.success(), "cheetah {arguments:?}: {}\n{}{}", said.status, said.out, said.err);
        said.out
    }

    /// Runs a command that must fail, by itself and with a message; answers the message.
    #[track_caller]
    pub fn fails<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let arguments = owned(arguments);
        let said = self.run(&arguments);
        let code = said.status.code();
        assert!(
            code.is_some_and(|code| code != 0 && code != 101),
            "cheetah {arguments:?} must fail cleanly: {}\n{}{}",
            said.status,
            said.out,
            said.err
        );
        assert!(!said.err.trim().is_empty(), "cheetah {arguments:?} fails without a message");
        assert!(!said.err.contains("panicked at"), "cheetah {arguments:?}: {}", said.err);
        said.err
    }

    /// Runs a command with `--json`; answers what it reports.
    #[track_caller]
    pub fn json<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Value {
        let mut arguments = owned(arguments);
        arguments.push("--json".into());
        let out = self.ok(&arguments);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("cheetah {arguments:?}: {error} in {out}"))
    }

    /// Makes a volume over the donors, one after the other.
    #[track_caller]
    pub fn create_linear(&self, name: &str, size: &str) {
        self.ok(["create", name, size, "--redundancy", "linear"]);
    }

    /// Attaches a volume as a file.
    #[track_caller]
    pub fn attach_fuse(&mut self, name: &str, more: &[&str]) -> Attached {
        let directory = self.mount_directory(name);
        self.attach(name, Some(&directory), "fuse", more)
    }

    /// Attaches a volume as a block device.
    #[track_caller]
    pub fn attach_loop(&mut self, name: &str, more: &[&str]) -> Attached {
        let directory = self.mount_directory(name);
        self.attach(name, Some(&directory), "loop", more)
    }

    /// The same on another host of the lab than the examiner's.
    #[track_caller]
    pub fn attach_loop_at(&mut self, node: Node, name: &str) -> Attached {
        let directory = self.mount_directory(name);
        self.attach_at(node, name, Some(&directory), "loop", &[])
    }

    /// Attaches a volume as an NBD export on TCP.
    #[track_caller]
    pub fn attach_export(&mut self, name: &str, more: &[&str]) -> Attached {
        let listen = format!("{}:0", self.address_of(Node::Client));
        self.attach(name, None, "export", &[&["--listen", listen.as_str()], more].concat())
    }

    /// Attaches a volume as an NBD export on a Unix socket.
    #[track_caller]
    pub fn attach_export_unix(&mut self, name: &str, more: &[&str]) -> Attached {
        let listen = format!("unix:{}", self.scratch.join(format!("{name}.sock")).display());
        self.attach(name, None, "export", &[&["--listen", listen.as_str()], more].concat())
    }

    #[track_caller]
    fn attach(&mut self, name: &str, directory: Option<&Path>, front: &str, more: &[&str]) -> Attached {
        self.attach_at(Node::Client, name, directory, front, more)
    }

    #[track_caller]
    fn attach_at(
        &mut self,
        node: Node,
        name: &str,
        directory: Option<&Path>,
        front: &str,
        more: &[&str],
    ) -> Attached {
        let mut arguments: Vec<String> = vec!["attach".into(), name.into()];
        arguments.extend(directory.map(|path| path.display().to_string()));
        arguments.extend(["--front".into(), front.into()]);
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        self.attached.push(name.to_owned());
        arguments.push("--json".into());
        let mut command = self.command_on(node);
        let said = run_to_end({
            command.args(&arguments);
            command
        });
        assert!(said.status.success(), "cheetah {arguments:?}: {}\n{}{}", said.status, said.out, said.err);
        let answer: Value = serde_json::from_str(&said.out).expect("an attachment in JSON");
        let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
        let pid = answer["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default();
        let uri = self.certified(&text("uri"));
        Attached { volume: name.to_owned(), path: text("path").into(), uri, pid }
    }

    /// With the certificate of this pool's admin, as libnbd takes it, where the address asks for one.
    pub fn certified(&self, uri: &str) -> String {
        match uri.starts_with("nbds://") {
            true => format!("{uri}?tls-certificates={}", self.identity().display()),
            false => uri.to_owned(),
        }
    }

    /// An empty directory to mount a volume at.
    pub fn mount_directory(&self, name: &str) -> PathBuf {
        self.scratch.directory(&format!("mnt-{name}"))
    }

    #[track_caller]
    pub fn detach(&mut self, name: &str) {
        self.ok(["detach", name]);
        self.attached.retain(|attached| attached != name);
    }

    /// The pool as `status` reports it.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.json(["status"])
    }

    /// One volume as `status` reports it.
    #[track_caller]
    pub fn volume_status(&self, name: &str) -> Value {
        let status = self.status();
        let volumes = status["volumes"].as_array().expect("volumes in the status");
        match volumes.iter().find(|volume| volume["name"] == name) {
            Some(volume) => volume.clone(),
            None => panic!("no volume {name} in {status}"),
        }
    }

    /// The processes of this pool that no guard of ours holds: the daemons that serve attached volumes.
    pub fn daemons(&self) -> Vec<mark::Running> {
        let guarded: Vec<u32> =
            self.coordinator.iter().chain(self.donors.values()).map(Process::pid).collect();
        let mut found = mark::processes(mark::own_start(), |mark| mark == self.mark);
        found.retain(|running| !guarded.contains(&running.pid));
        found
    }

    /// Kills (SIGKILL) the daemons that serve attached volumes and waits until they are gone.
    #[track_caller]
    pub fn kill_daemons(&self) {
        let daemons = self.daemons();
        assert!(!daemons.is_empty(), "no daemon runs that could be killed");
        for daemon in &daemons {
            mark::signal(daemon.pid, Signal::KILL);
        }
        wait::until("the end of the daemons", wait::SOON, || {
            daemons.iter().all(|daemon| mark::start_time(daemon.pid).is_none())
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for name in std::mem::take(&mut self.attached) {
            let mut command = self.command();
            command.args(["detach", &name]);
            // A test that fails leaves what it leaves; the kill below and the scratch directory take the
            // rest.
            let _ = end_within(command, Duration::from_secs(20));
        }
        for running in mark::processes(mark::own_start(), |mark| mark == self.mark) {
            mark::signal(running.pid, Signal::KILL);
        }
    }
}

fn owned<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Vec<std::ffi::OsString> {
    arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect()
}

fn after(line: &str, prefix: &str) -> String {
    line.split_once(prefix).map_or(line, |(_, rest)| rest).trim().to_owned()
}
