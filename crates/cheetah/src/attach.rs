//! `cheetah attach` and `detach`: start the daemon that serves a volume, and end it, dead or alive.
//!
//! Owns: the daemon's start and end as its user sees them, and cleaning up behind one that was killed.
//! Never: serving (`daemon`).

use crate::cli::{self, Front};
use crate::daemon::{Order, Report};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::pool::find;
use crate::runtime_dir::{self, Record};
use cheetah_core::api::Call;
use cheetah_front::{fuse, loopdev};
use cheetah_rim::control::Client;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than any request may take, so that a daemon that ends is never taken for one that hangs.
const END_TIME: Duration = Duration::from_secs(40);

/// Of each of the daemon's threads, whose memory is present from the beginning.
const THREAD_STACK_BYTES: &str = "524288";

pub async fn attach(options: cli::Attach) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    if let Some(record) = runtime_dir::load(&options.name)? {
        if record.is_alive() {
            let text = format!(
                "volume '{}' is attached on this machine already, at {}: use it, or `cheetah detach {}` first",
                record.name, record.place, record.name
            );
            return Err(Failure::new(Exit::Refused, text));
        }
        clean_up(&record).await?;
    }
    if options.front == Front::Export && options.mountpoint.is_some() {
        return Err(Failure::usage("an export has no mount point: leave it out, or choose another --front"));
    }
    let (mountpoint, mountpoint_made) = match (&options.mountpoint, options.front) {
        (_, Front::Export) => (None, false),
        (Some(given), _) => (Some(absolute(given)?), false),
        (None, _) => (Some(make_mountpoint(&options.name)?), true),
    };
    let order = Order {
        pool: pool.url().to_owned(),
        name: options.name.clone(),
        front: options.front,
        mountpoint,
        mountpoint_made,
        listen: options.listen.clone(),
        read_only: options.read_only,
        connections: options.connections,
        poll_us: options.poll_us,
        cache: options.cache,
        read_ahead: options.read_ahead.into(),
        owner: owner(),
    };
    let ready = start_daemon(&order)?;
    if options.json.json {
        return output::json(&ready);
    }
    for note in &ready.notes {
        output::note(note);
    }
    output::line(&format!("ready: {}", ready.place));
    Ok(())
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    // Not canonicalize: a mount point whose server died cannot even be looked at.
    std::path::absolute(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
}

pub fn make_mountpoint(name: &str) -> Result<PathBuf, Failure> {
    cheetah_core::units::check_name(name).map_err(Failure::usage)?;
    let point = runtime_dir::directory()?.join("mnt").join(name);
    make_directory(&point)?;
    Ok(point)
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

/// Starts this program again as a daemon and waits until it is ready or has failed.
fn start_daemon(order: &Order) -> Result<crate::daemon::Ready, Failure> {
    let fault = |what: &str, e: std::io::Error| Failure::failed(format!("cannot {what}: {e}"));
    let program = std::env::current_exe().map_err(|e| fault("find this program", e))?;
    let log_path = runtime_dir::log_path(&order.name)?;
    let log = std::fs::File::create(&log_path).map_err(|e| fault("write the daemon's log", e))?;
    let mut child = Command::new(program)
        .arg("serve")
        .env("RUST_MIN_STACK", THREAD_STACK_BYTES)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|e| fault("start the daemon", e))?;
    let text = serde_json::to_vec(order).map_err(|e| Failure::failed(e.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&text).map_err(|e| fault("tell the daemon its order", e))?;
    }
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(|e| fault("hear from the daemon", e))?;
    }
    match serde_json::from_str(&line) {
        Ok(Report::Ready(ready)) => Ok(ready),
        Ok(Report::Failed { exit, message }) => Err(Failure::new(exit, message)),
        Err(_) => {
            let status = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            Err(Failure::failed(format!(
                "the daemon ended before it was ready ({status}): its log is {}",
                log_path.display()
            )))
        }
    }
}

pub async fn detach(options: cli::Detach) -> Result<(), Failure> {
    let Some(record) = runtime_dir::load(&options.name)? else {
        return Err(not_attached(&options).await);
    };
    if record.is_alive() {
        end_daemon(&record)?;
    } else {
        clean_up(&record).await?;
    }
    crate::pool::done(&options.json, &format!("detached {}", record.name))
}

/// Whether there is such a volume, and who has it, if the pool can be asked.
async fn not_attached(options: &cli::Detach) -> Failure {
    let name = &options.name;
    let by_you = format!("volume '{name}' is not attached on this machine by this user");
    let call = Call::Show { name: name.clone() };
    let text = match find(&options.pool).await {
        Ok(pool) => match crate::pool::volume(&pool, call).await {
            Err(failure) if failure.exit == Exit::Refused => return failure,
            Ok(detail) if detail.status.attachments.is_empty() => format!("{by_you}, nor anywhere else"),
            Ok(detail) => {
                let who = detail.status.attachments.iter().map(crate::health::attached);
                format!("{by_you}, but by {}", who.collect::<Vec<_>>().join(" and by "))
            }
            Err(_) => by_you,
        },
        Err(_) => by_you,
    };
    Failure::new(Exit::Refused, text)
}

/// Asks the daemon to end, and waits until it has.
fn end_daemon(record: &Record) -> Result<(), Failure> {
    let socket = runtime_dir::socket_path(&record.name)?;
    let fault = |e: std::io::Error| {
        Failure::failed(format!(
            "the daemon (process {}) does not answer at {}: {e}",
            record.pid,
            socket.display()
        ))
    };
    let mut stream = UnixStream::connect(&socket).map_err(fault)?;
    stream.set_read_timeout(Some(END_TIME)).map_err(fault)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(fault)?;
    if let Ok(Report::Failed { exit, message }) = serde_json::from_str(&answer) {
        return Err(Failure::new(exit, message));
    }
    let patience = Instant::now() + END_TIME;
    while record.is_alive() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
    if record.is_alive() {
        return Err(Failure::failed(format!("the daemon (process {}) has not ended yet", record.pid)));
    }
    Ok(())
}

/// Behind a daemon that was killed: its loop device, its mount, its lease, its record.
async fn clean_up(record: &Record) -> Result<(), Failure> {
    if let Some(device) = &record.loop_device {
        let file = record.mountpoint.as_ref().map(|point| point.join(format!("{}.raw", record.name)));
        if file.is_some_and(|file| loopdev::standing_on(&file).contains(device)) {
            loopdev::detach(device).map_err(|e| Failure::new(Exit::Refused, e.to_string()))?;
        }
    }
    if let Some(point) = &record.mountpoint {
        fuse::abandon(point).map_err(|e| {
            Failure::failed(format!("the mount that a killed daemon left at {} stays: {e}", point.display()))
        })?;
        if record.mountpoint_made {
            let _ = std::fs::remove_dir(point);
        }
    }
    // The lease runs out by itself; giving it back lets the next writer in at once.
    if let Ok(pool) = Client::new(&record.pool) {
        let _ = pool.call(Call::Detach { name: record.name.clone(), token: record.token }).await;
    }
    runtime_dir::remove(&record.name);
    Ok(())
}
