//! `cheetah attach` and `detach`: start the daemon that serves a volume, and end it, dead or alive.
//!
//! Owns: the daemon's start and end as its user sees them, and cleaning up behind one that was killed.
//! Never: serving (`daemon`).

use crate::cli;
use crate::control;
use crate::daemon::{Order, Ready, Report};
use crate::failure::{Exit, Failure};
use crate::front_end::FrontEnd;
use crate::output;
use crate::overlay;
use crate::pool::find;
use crate::runtime_dir::{Claim, Record, RuntimeDir};
use crate::signals::Signals;
use cheetah_client::Lease;
use cheetah_core::api::Call;
use cheetah_front::export;
use cheetah_rim::own_fault::own_fault;
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

/// Longer than any request may take, so that a daemon that ends is never taken for one that hangs.
const END_TIME: Duration = Duration::from_secs(40);
/// What a killed process takes to give its memory back.
pub const DYING_TIME: Duration = Duration::from_secs(5);

/// Of each of the daemon's threads, whose memory is present from the beginning.
const THREAD_STACK_BYTES: &str = "524288";

pub async fn attach(mut options: cli::Attach) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    if let Some(overlay) = options.overlay.take() {
        options.name = overlay::make(&pool, &options.name, overlay).await?;
    }
    let directory = RuntimeDir::open()?;
    if let Some(record) = directory.load::<Record>(&options.name)? {
        match claim_of_ended(&record)? {
            None => return Err(Failure::new(Exit::Refused, attached_already(&record))),
            Some(claim) => clean_up(claim, &record).await?,
        }
    }
    options.front.check(&options)?;
    let (mountpoint, mountpoint_made) = match &options.mountpoint {
        _ if !options.front.has_mountpoint() => (None, false),
        Some(given) => (Some(absolute(given)?), false),
        None => (Some(directory.make_mountpoint(&options.name)?), true),
    };
    let listen = match &options.listen {
        // Here, for the daemon works in another directory.
        Some(given) => given.parse::<export::Endpoint>().map_err(Failure::usage)?.to_string(),
        None => directory.export(&options.name)?,
    };
    let order = Order {
        pool: pool.url().to_owned(),
        name: options.name.clone(),
        front: options.front,
        mountpoint,
        mountpoint_made,
        listen,
        sector: options.sector,
        read_only: options.read_only,
        writable: options.writable,
        incomplete: options.incomplete,
        connections: options.connections,
        poll_us: options.poll_us,
        cache: options.cache,
        read_ahead: options.read_ahead.into(),
        owner: owner(),
    };
    let started = start_daemon(&directory, "serve", &order.name, &order).await;
    if let (Err(_), true, Some(point)) = (&started, order.mountpoint_made, &order.mountpoint) {
        // The daemon does so as well, unless it could not.
        let _ = std::fs::remove_dir(point);
    }
    let ready = started?;
    if options.json.json {
        return output::json(&ready);
    }
    for note in &ready.notes {
        output::note(note);
    }
    output::line(&format!("ready: {}", ready.place));
    Ok(())
}

fn attached_already(record: &Record) -> String {
    let Record { name, place, pid, .. } = record;
    if record.is_starting() {
        return format!(
            "volume '{name}' is just being attached on this machine (process {pid}): wait for that, or \
             `cheetah detach {name}` ends it"
        );
    }
    format!(
        "volume '{name}' is attached on this machine already, at {place}: use it, or `cheetah detach {name}` first"
    )
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    // Not canonicalize: a mount point whose server died cannot even be looked at.
    std::path::absolute(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
}

/// A directory that is there already is fine, also one where a dead mount is: mounting clears that away.
pub fn make_directory(point: &Path) -> Result<(), Failure> {
    match std::fs::create_dir_all(point) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Failure::failed(format!("cannot make the mount point {}: {e}", point.display())))
        }
        _ => Ok(()),
    }
}

/// Who shall own the volume's file: with sudo, the user who typed it.
pub fn owner() -> (u32, u32) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    (number("SUDO_UID").unwrap_or(uid), number("SUDO_GID").unwrap_or(gid))
}

/// Starts this program again as a daemon and waits until it is ready or has failed. One whose order nobody
/// waits for any more ends.
pub async fn start_daemon(
    directory: &RuntimeDir,
    command: &str,
    name: &str,
    order: &impl Serialize,
) -> Result<Ready, Failure> {
    let fault = |what: &str, e: &std::io::Error| Failure::failed(format!("cannot {what}: {}", own_fault(e)));
    let mut signals = Signals::listen()?;
    let program = std::env::current_exe().map_err(|e| fault("find this program", &e))?;
    let (log, log_is_new) = directory.open_log(name)?;
    let mut child = Command::new(program)
        .arg(command)
        .envs(crate::members::environment())
        .env(crate::configuration::VARIABLE, "")
        .env("RUST_MIN_STACK", THREAD_STACK_BYTES)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|e| fault("start the daemon", &e))?;
    let mut text = serde_json::to_vec(order).map_err(|e| Failure::failed(e.to_string()))?;
    text.push(b'\n');
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Failure::failed("the daemon has no input or output"));
    };
    let mut line = String::new();
    let talk = async {
        // One that ended before it read this says why, or its end does.
        let _ = stdin.write_all(&text).await;
        BufReader::new(stdout).read_line(&mut line).await
    };
    let told = tokio::select! {
        read = talk => read.map_err(|e| fault("hear from the daemon", &e)).map(|_| None)?,
        told = signals.next() => Some(told),
    };
    if told.is_some() {
        drop(stdin);
        return Err(interrupted(name, child, &mut signals).await);
    }
    match serde_json::from_str(&line) {
        // From now on it goes on by itself.
        Ok(Report::Ready(ready)) if stdin.write_all(b"\n").await.is_ok() => Ok(ready),
        Ok(Report::Failed(told)) => {
            drop(stdin);
            let _ = child.wait().await;
            // All that it would say is said here.
            if log_is_new {
                directory.remove_log(name);
            }
            Err(told.into())
        }
        _ => {
            let status = child.wait().await.map_or_else(|e| e.to_string(), |status| status.to_string());
            Err(Failure::failed(format!(
                "the daemon ended before it was ready ({status}): its log is {}",
                directory.path_of(name, "log").display()
            )))
        }
    }
}

/// The daemon has been told that nobody waits for it: it takes back what it has begun.
async fn interrupted(name: &str, mut child: Child, signals: &mut Signals) -> Failure {
    let pid = child.id().unwrap_or_default();
    let ended = tokio::select! {
        _ = child.wait() => true,
        () = tokio::time::sleep(END_TIME) => false,
        _ = signals.next() => false,
    };
    Failure::failed(match ended {
        true => format!("interrupted: nothing was begun with volume '{name}'"),
        false => format!("interrupted; the daemon (process {pid}) still takes back what it has begun"),
    })
}

pub async fn detach(options: cli::Detach) -> Result<(), Failure> {
    let directory = RuntimeDir::open()?;
    let Some(record) = directory.load::<Record>(&options.name)? else {
        return Err(not_attached(&options, &directory).await);
    };
    match claim_of_ended(&record)? {
        Some(claim) => clean_up(claim, &record).await?,
        None => {
            if let Err(failure) = end_daemon(&directory, &record) {
                // It may have been killed while it was asked.
                let claim = claim_of_ended(&record)?.ok_or(failure)?;
                clean_up(claim, &record).await?;
            }
        }
    }
    crate::pool::done(&options.json, &format!("detached {}", record.name))
}

/// Whether there is such a volume, and who has it, if the pool can be asked.
async fn not_attached(options: &cli::Detach, directory: &RuntimeDir) -> Failure {
    let name = &options.name;
    let by_you = format!(
        "volume '{name}' is not attached on this machine by this user ({} is not there)",
        directory.path_of(name, "json").display()
    );
    let call = Call::Show { name: name.clone() };
    let text = match find(&options.pool).await {
        Ok(pool) => match crate::pool::volume(&pool, call).await {
            Err(failure) if failure.exit == Exit::Refused => return failure,
            Ok(detail) if detail.status.attachments.is_empty() => format!("{by_you}, nor anywhere else"),
            Ok(detail) => {
                let who = detail.status.attachments.iter().map(crate::health::attached);
                format!(
                    "{by_you}, but by {}; an attachment of your own that was made with another XDG_RUNTIME_DIR is \
                     detached with that",
                    who.collect::<Vec<_>>().join(" and by ")
                )
            }
            Err(_) => by_you,
        },
        Err(_) => by_you,
    };
    Failure::new(Exit::Refused, text)
}

/// Asks the daemon to end, and waits until it has.
fn end_daemon(directory: &RuntimeDir, record: &Record) -> Result<(), Failure> {
    let silent =
        |why: &str| Failure::failed(format!("the daemon (process {}) does not answer: {why}", record.pid));
    let fault = |e: std::io::Error| silent(&e.to_string());
    let Some(claim) = directory.other_claim(&record.name)? else { return Ok(()) };
    let mut stream = directory.connect(&record.name).map_err(|failure| silent(&failure.message))?;
    stream.set_read_timeout(Some(END_TIME)).map_err(fault)?;
    control::say_detach(&stream).map_err(fault)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => no_answer(record),
        _ => fault(e),
    })?;
    if let Ok(Report::Failed(told)) = serde_json::from_str(&answer) {
        return Err(told.into());
    }
    let patience = Instant::now() + END_TIME;
    while !claim.has_ended() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
    if !claim.has_ended() {
        return Err(Failure::failed(format!("the daemon (process {}) has not ended yet", record.pid)));
    }
    Ok(())
}

/// The place of a daemon that has ended. One that was killed just now has its lock until the last of its
/// threads is gone.
fn claim_of_ended(record: &Record) -> Result<Option<Claim>, Failure> {
    claim_of(record.pid, || RuntimeDir::open()?.try_claim(&record.name))
}

/// As `try_claim` says it, of the place that this process had.
pub fn claim_of(
    pid: u32,
    try_claim: impl Fn() -> Result<Option<Claim>, Failure>,
) -> Result<Option<Claim>, Failure> {
    let patience = Instant::now() + if is_running(pid) { Duration::ZERO } else { DYING_TIME };
    loop {
        let claim = try_claim()?;
        if claim.is_some() || Instant::now() >= patience {
            return Ok(claim);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether there is such a process as seen from here: in another namespace it has another number.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

fn no_answer(Record { name, pid, .. }: &Record) -> Failure {
    Failure::failed(format!(
        "the daemon of volume '{name}' (process {pid}) has not answered for {} s, and has not ended: if it was stopped, \
         `kill -CONT {pid}` lets it go on, then detach again; if it hangs, `kill -KILL {pid}` ends it, then `cheetah detach {name}` \
         clears away what it leaves (who has the file open gets errors then)",
        END_TIME.as_secs()
    ))
}

/// Behind a daemon that was killed, whose place is ours meanwhile: its loop device, its mount, its lease, its
/// record.
async fn clean_up(claim: Claim, record: &Record) -> Result<(), Failure> {
    let ended = FrontEnd::recover(record);
    if ended.is_err() {
        // What is left is found by it.
        claim.leave();
        return ended;
    }
    // The lease runs out by itself; giving it back lets the next writer in at once.
    if let (Ok(pool), Some(token)) = (crate::members::client(&record.pool).await, record.token) {
        Lease::give_back_of_ended(&pool, &record.name, token, true).await;
    }
    Ok(())
}
