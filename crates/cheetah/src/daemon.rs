//! The process that serves an attachment: lease, volume, front end, until it is told to end.
//!
//! Owns: the order in which these begin and end, the lease's renewal, growth, and what `detach` is told.
//! Never: bytes of the volume. Invariants: nothing is reported ready before a tool could use it; what was begun is
//! ended in reverse, and a device in use is left as it is, with a message that says who uses it.

use crate::cli::Front;
use crate::failure::{Exit, Failure};
use crate::runtime_dir::{self, Record};
use crate::signals::Signals;
use crate::tend::{Tended, lease_for_tools, lost_notes};
use cheetah_core::api::{Attached, Call};
use cheetah_front::loopdev::{self, LoopDevice};
use cheetah_front::{export, fuse};
use cheetah_rim::control::Client;
use cheetah_rim::descriptors;
use cheetah_rim::memory;
use cheetah_rim::swap::{self, Kept};
use cheetah_rim::volume::{Caching, Rule, Tuning, VolumeHandle};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

/// How long an export's clients get to take their last answers.
const EXPORT_PATIENCE: Duration = Duration::from_secs(35);
const READ_AHEAD_KB: u32 = 1024;
const GROWTH_TRIES: u32 = 100;
const GROWTH_PAUSE: Duration = Duration::from_millis(50);

/// What `attach` wants served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub pool: String,
    pub name: String,
    pub front: Front,
    pub mountpoint: Option<PathBuf>,
    pub mountpoint_made: bool,
    pub listen: String,
    pub read_only: bool,
    pub connections: Option<u8>,
    pub poll_us: u16,
    /// Bytes for what is read ahead, and how that is decided.
    pub cache: u64,
    pub read_ahead: Rule,
    /// uid and gid of the file's owner.
    pub owner: (u32, u32),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Ready(Ready),
    Failed { exit: Exit, message: String },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ready {
    /// The path or URI to give to a tool.
    pub place: String,
    pub path: Option<PathBuf>,
    pub uri: Option<String>,
    pub size: u64,
    pub pid: u32,
    /// What the user ought to know, in sentences.
    pub notes: Vec<String>,
}

impl Order {
    fn tuning(&self) -> Tuning {
        let poll = Duration::from_micros(self.poll_us.into());
        Tuning { connections: self.connections.map(usize::from), poll, caching: self.caching() }
    }

    fn caching(&self) -> Caching {
        let bytes = match self.read_ahead {
            Rule::Off => 0,
            _ => u32::try_from(self.cache).unwrap_or(u32::MAX),
        };
        // The kernel keeps what was read of a file; tools that read an export may not.
        let keeps = self.front == Front::Export;
        // What the kernel is given must not be overtaken by a write; a loop device goes past the kernel's cache.
        let takes = self.front == Front::Fuse && self.read_only;
        Caching { bytes, keeps, takes, rule: self.read_ahead }
    }
}

impl From<&Failure> for Report {
    fn from(failure: &Failure) -> Self {
        Report::Failed { exit: failure.exit, message: failure.text() }
    }
}

/// The hidden command `serve`.
pub async fn serve_from_stdin() -> Result<(), Failure> {
    abort_on_panic();
    let order: Order = serde_json::from_reader(std::io::stdin().lock())
        .map_err(|e| Failure::usage(format!("`serve` is started by `cheetah attach` ({e})")))?;
    let _ = rustix::process::setsid();
    // One that comes before it is ready ends it, in order, when it is.
    let mut signals = Signals::listen()?;
    let started = Attachment::start(&order).await;
    let report = match &started {
        Ok(attachment) => Report::Ready(attachment.ready.clone()),
        Err(failure) => Report::from(failure),
    };
    let line = serde_json::to_string(&report).map_err(|e| Failure::failed(e.to_string()))?;
    crate::output::line(&line);
    let attachment = started?;
    // Whoever waits for the end of our output has it now.
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
    let told = async { _ = signals.next().await };
    attachment.serve_until(told).await
}

/// A thread that serves a volume and is gone would leave its readers waiting for ever; a process that is gone ends
/// the mount, and they get an error.
pub fn abort_on_panic() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::abort();
    }));
}

/// A volume that tools can use.
pub struct Attachment {
    order: Order,
    pool: Client,
    lease: Attached,
    volume: VolumeHandle,
    tended: Tended,
    mounted: Option<fuse::Mounted>,
    device: Option<LoopDevice>,
    exported: Option<export::Exported>,
    /// Where `detach` asks: there before anyone is told that the volume is ready.
    asked: Option<UnixListener>,
    pub ready: Ready,
}

impl Attachment {
    pub async fn start(order: &Order) -> Result<Attachment, Failure> {
        let pool = Client::new(&order.pool).map_err(|e| Failure::usage(e.to_string()))?;
        let mut notes = Vec::new();
        if let Err(why) = memory::own_cgroup("cheetah-attach") {
            tracing::info!(why, "no cgroup of its own");
        }
        memory::forbid_dumps();
        // One for each client of an export, and for each donor.
        let _ = descriptors::raise();
        let granted = memory::prepare();
        tracing::info!(?granted, "memory prepared");
        let lease = lease_for_tools(&pool, &order.name, order.read_only).await?;
        let begun = Attachment::begin(order, &pool, &lease, &mut notes).await;
        if begun.is_err() {
            let _ = pool.call(Call::Detach { name: order.name.clone(), token: lease.token }).await;
        }
        let mut attachment = begun?;
        if let kept @ Kept::Exposed(_) = swap::of_buffers() {
            notes.push(kept.to_string());
        }
        attachment.ready.notes = notes;
        memory::grow_heap();
        if let Err(failure) = attachment.remember() {
            attachment.abandon().await;
            return Err(failure);
        }
        Ok(attachment)
    }

    async fn begin(
        order: &Order,
        pool: &Client,
        lease: &Attached,
        notes: &mut Vec<String>,
    ) -> Result<Attachment, Failure> {
        let tended = Tended::start(pool, lease, order.read_only, order.tuning())?;
        let volume = tended.volume.clone();
        notes.extend(lost_notes(lease, &volume.settled().await));
        let ready = Ready { size: volume.size(), pid: std::process::id(), ..Ready::default() };
        let mut attachment = Attachment {
            order: order.clone(),
            pool: pool.clone(),
            lease: lease.clone(),
            volume,
            tended,
            mounted: None,
            device: None,
            exported: None,
            asked: None,
            ready,
        };
        match order.front {
            Front::Fuse => attachment.mount()?,
            Front::Loop => {
                attachment.mount()?;
                attachment.loop_over_file(notes).await?;
            }
            Front::Export => attachment.export(&order.listen, notes)?,
        }
        Ok(attachment)
    }

    pub fn mount(&mut self) -> Result<(), Failure> {
        let point =
            self.order.mountpoint.clone().ok_or_else(|| Failure::usage("a file needs a mount point"))?;
        let (uid, gid) = self.order.owner;
        let options = fuse::Options { uid, gid, read_only: self.order.read_only };
        let mounted =
            fuse::mount(&self.volume, &point, &options).map_err(|e| Failure::failed(e.to_string()))?;
        // Not inside the macro, which evaluates nothing that is not logged.
        let tuned = mounted.tune(READ_AHEAD_KB);
        tracing::info!(%tuned, "mounted");
        self.ready.path = Some(mounted.path().to_path_buf());
        self.ready.place = mounted.path().display().to_string();
        self.mounted = Some(mounted);
        Ok(())
    }

    async fn loop_over_file(&mut self, notes: &mut Vec<String>) -> Result<(), Failure> {
        let file =
            self.ready.path.clone().ok_or_else(|| Failure::failed("the volume's file is not mounted"))?;
        let options = loopdev::Options { read_only: self.order.read_only, ..loopdev::Options::default() };
        // The kernel opens the file, which this process serves: not from the thread that runs the rest.
        let attached = tokio::task::spawn_blocking(move || loopdev::attach(&file, &options)).await;
        let device = attached.map_err(|e| Failure::failed(e.to_string()))?;
        let device = device.map_err(|e| Failure::failed(e.to_string()))?;
        notes.extend(device.notes().iter().cloned());
        self.ready.path = Some(device.path());
        self.ready.place = device.path().display().to_string();
        self.device = Some(device);
        Ok(())
    }

    pub fn export(&mut self, listen: &str, notes: &mut Vec<String>) -> Result<(), Failure> {
        let endpoint: export::Endpoint = listen.parse().map_err(Failure::usage)?;
        let exported = export::serve(&self.volume, &endpoint).map_err(|e| Failure::failed(e.to_string()))?;
        if !exported.is_local() {
            notes.push(format!("{} is in the clear and open to who can reach it", exported.endpoint()));
        }
        self.ready.uri = Some(exported.uri());
        if self.ready.place.is_empty() {
            self.ready.place = exported.uri();
        }
        self.exported = Some(exported);
        Ok(())
    }

    /// From here on `detach` finds it.
    fn remember(&mut self) -> Result<(), Failure> {
        let socket = runtime_dir::socket_path(&self.order.name)?;
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(|e| {
            Failure::failed(format!("cannot listen for `detach` at {}: {e}", socket.display()))
        })?;
        self.asked = Some(listener);
        let pid = std::process::id();
        runtime_dir::store(&Record {
            name: self.order.name.clone(),
            pool: self.order.pool.clone(),
            token: self.lease.token,
            front: self.order.front,
            pid,
            started: runtime_dir::start_time(pid).unwrap_or_default(),
            mountpoint: self.order.mountpoint.clone(),
            mountpoint_made: self.order.mountpoint_made,
            loop_device: self.device.as_ref().map(LoopDevice::path),
            place: self.ready.place.clone(),
        })
    }

    /// Gives up an attachment that was never served.
    pub async fn abandon(mut self) {
        let _ = self.end_fronts().await;
        self.finish().await;
    }

    /// Until `detach`, `told`, or somebody else's umount.
    pub async fn serve_until(mut self, told: impl Future<Output = ()>) -> Result<(), Failure> {
        tokio::pin!(told);
        let Some(asked) = self.asked.take() else { return Err(Failure::failed("`detach` cannot be heard")) };
        self.tended.set_place(&self.ready.place);
        let mut sizes = self.volume.size_changes();
        let mut unmounted = self.mounted.as_ref().map(fuse::Mounted::ended);
        loop {
            tokio::select! {
                came = asked.accept() => {
                    let Ok((mut stream, _)) = came else {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    };
                    let ended = self.end_fronts().await;
                    let report = ended.as_ref().err().map(Report::from);
                    let text = report.and_then(|report| serde_json::to_string(&report).ok()).unwrap_or_default();
                    let _ = stream.write_all(text.as_bytes()).await;
                    if ended.is_ok() {
                        break;
                    }
                }
                () = &mut told => {
                    // Nobody waits for an answer: what is in use goes on lazily until its last user is gone.
                    if let Err(failure) = self.end_fronts().await {
                        tracing::warn!("ended while in use: {}", failure.text());
                    }
                    break;
                }
                () = ended(&mut unmounted) => break,
                Ok(()) = sizes.changed() => self.grown().await,
            }
        }
        self.finish().await;
        Ok(())
    }

    async fn grown(&mut self) {
        let Some(mut device) = self.device.take() else { return };
        let wanted = self.volume.size() / 512 * 512;
        let grown = tokio::task::spawn_blocking(move || {
            // The file's new size reaches the kernel with the front end's own notice; ask until it has.
            let mut result = device.set_capacity();
            for _ in 0..GROWTH_TRIES {
                if !matches!(result, Ok(size) if size < wanted) {
                    break;
                }
                std::thread::sleep(GROWTH_PAUSE);
                result = device.set_capacity();
            }
            (device, result)
        });
        if let Ok((device, result)) = grown.await {
            if let Err(error) = result {
                tracing::warn!(%error, "the loop device keeps its size");
            }
            self.device = Some(device);
        }
    }

    /// Loop device, mount, export: as far as nobody uses them.
    async fn end_fronts(&mut self) -> Result<(), Failure> {
        let in_use = |text: String| Failure::new(Exit::Refused, text);
        if let Some(device) = self.device.take() {
            let (device, result) = tokio::task::spawn_blocking(move || {
                let result = device.detach().map_err(|e| e.to_string());
                (device, result)
            })
            .await
            .map_err(|e| Failure::failed(e.to_string()))?;
            if let Err(why) = result {
                self.device = Some(device);
                return Err(in_use(why));
            }
        }
        if let Some(mut mounted) = self.mounted.take() {
            let (mounted, result) = tokio::task::spawn_blocking(move || {
                let result = mounted.unmount().map_err(|e| e.to_string());
                (mounted, result)
            })
            .await
            .map_err(|e| Failure::failed(e.to_string()))?;
            if let Err(why) = result {
                self.mounted = Some(mounted);
                return Err(in_use(why));
            }
        }
        if let Some(exported) = self.exported.take() {
            exported.stop(EXPORT_PATIENCE).await;
        }
        Ok(())
    }

    async fn finish(mut self) {
        drop(self.mounted.take());
        self.tended.close().await;
        let detach = Call::Detach { name: self.order.name.clone(), token: self.lease.token };
        if let Err(error) = self.pool.call(detach).await {
            tracing::warn!("the lease was not given back and runs out by itself: {error}");
        }
        if let (Some(point), true) = (&self.order.mountpoint, self.order.mountpoint_made) {
            let _ = std::fs::remove_dir(point);
        }
        runtime_dir::remove(&self.order.name);
        if let Ok(socket) = runtime_dir::socket_path(&self.order.name) {
            let _ = std::fs::remove_file(socket);
        }
    }
}

async fn ended(unmounted: &mut Option<tokio::sync::watch::Receiver<bool>>) {
    match unmounted {
        Some(unmounted) => drop(unmounted.wait_for(|ended| *ended).await),
        None => std::future::pending().await,
    }
}
