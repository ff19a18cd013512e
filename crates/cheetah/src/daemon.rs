//! The process that serves an attachment: lease, volume, front end, until it is told to end.
//!
//! Owns: the order in which these begin and end, growth, and what `detach` is told. Never: bytes of the
//! volume, or when a start is given up (`starting`). Invariants: nothing is reported ready before a tool
//! could use it; from before its lease on there is a record by which `detach` finds it; what was begun is
//! ended in reverse, also when it was given up half-way, and a device in use is left as it is, with a message
//! that says who uses it.

use crate::cli::Front;
use crate::content;
use crate::control::Asked;
use crate::failure::{Exit, Failure, Told};
use crate::runtime_dir::{Claim, Record, RuntimeDir};
use crate::signals::Signals;
use crate::starting::{Ended, Stops, Waiter};
use cheetah_client::{Lease, Options, Volume};
use cheetah_front::loopdev::{self, LoopDevice};
use cheetah_front::{export, fuse};
use cheetah_rim::control::Client;
use cheetah_rim::descriptors;
use cheetah_rim::memory;
use cheetah_rim::own_fault::own_fault;
use cheetah_rim::stream::Transport;
use cheetah_rim::swap::{self, Kept};
use cheetah_rim::volume::{Caching, Rule, Tuning};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// How long an export's clients get to take their last answers.
const EXPORT_PATIENCE: Duration = Duration::from_secs(35);
const READ_AHEAD_KB: u32 = 1024;
const GROWTH_TRIES: u32 = 100;
const GROWTH_PAUSE: Duration = Duration::from_millis(50);
/// A lease that was asked for may be granted until then, also when nobody wants it any more. Else it runs out
/// by itself.
const LEASE_PATIENCE: Duration = Duration::from_secs(12);
/// The volume's own thread answers at once, unless it is stuck.
const WORD_PATIENCE: Duration = Duration::from_secs(1);

/// What `attach` wants served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub pool: String,
    pub name: String,
    pub front: Front,
    pub mountpoint: Option<PathBuf>,
    pub mountpoint_made: bool,
    pub listen: String,
    /// Of a loop device; none: as the volume says.
    pub sector: Option<u32>,
    /// As it was asked for; what was loaded may be given for reading alone.
    pub read_only: bool,
    #[serde(default)]
    pub writable: bool,
    #[serde(default)]
    pub incomplete: bool,
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
    Failed(Told),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ready {
    /// The path or URI to give to a tool.
    pub place: String,
    pub path: Option<PathBuf>,
    pub uri: Option<String>,
    /// Devices of the partitions of a loop device.
    #[serde(default)]
    pub partitions: Vec<PathBuf>,
    pub size: u64,
    pub pid: u32,
    /// What the user ought to know, in sentences.
    pub notes: Vec<String>,
}

impl Order {
    fn options(&self) -> Options {
        let Order { read_only, writable, incomplete, .. } = *self;
        let poll = Duration::from_micros(self.poll_us.into());
        let tuning = Tuning { connections: self.connections.map(usize::from), poll, caching: self.caching() };
        Options { read_only, writable, incomplete, tuning }
    }

    /// Of an attachment that has nothing yet.
    fn record(&self) -> Record {
        Record {
            name: self.name.clone(),
            pool: self.pool.clone(),
            token: None,
            front: self.front,
            pid: std::process::id(),
            mountpoint: self.mountpoint.clone(),
            mountpoint_made: self.mountpoint_made,
            loop_device: None,
            place: String::new(),
        }
    }

    fn remove_mountpoint(&self) {
        if let (Some(point), true) = (&self.mountpoint, self.mountpoint_made) {
            let _ = std::fs::remove_dir(point);
        }
    }

    fn caching(&self) -> Caching {
        let bytes = match self.read_ahead {
            Rule::Off => 0,
            _ => u32::try_from(self.cache).unwrap_or(u32::MAX),
        };
        // The kernel keeps what was read of a file; tools that read an export may not.
        let keeps = self.front == Front::Export;
        // What the kernel is given must not be overtaken by a write; a loop device goes past the kernel's
        // cache.
        let takes = self.front == Front::Fuse && self.read_only;
        Caching { bytes, keeps, takes, rule: self.read_ahead }
    }
}

/// The hidden command `serve`.
pub async fn serve_from_stdin() -> Result<(), Failure> {
    abort_on_panic();
    let (mut waiter, order) = Waiter::listen().await?;
    let _ = rustix::process::setsid();
    let mut signals = Signals::listen()?;
    let stops = Stops { waiter: Some(&mut waiter), signals: Some(&mut signals) };
    let started = Attachment::start(&order, stops).await;
    let report = match &started {
        Ok(attachment) => Report::Ready(attachment.ready.clone()),
        Err(failure) => Report::from(failure),
    };
    let line = serde_json::to_string(&report).map_err(|e| Failure::failed(e.to_string()))?;
    crate::output::line(&line);
    let attachment = started?;
    if !waiter.heard().await {
        attachment.abandon().await;
        return Err(Ended::NobodyWaits.failure(&order.name, ""));
    }
    // Whoever waits for the end of our output has it now.
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
    let told = async { _ = signals.next().await };
    let (volume, place) = (order.name.as_str(), attachment.ready.place.clone());
    tracing::info!(target: "journal", event = "attached", volume, place, "volume {volume} is attached at {place}");
    let ended = attachment.serve_until(told).await;
    tracing::info!(target: "journal", event = "detached", volume, place, "volume {volume} is detached");
    ended
}

/// A thread that serves a volume and is gone would leave its readers waiting for ever; a process that is gone
/// ends the mount, and they get an error.
pub fn abort_on_panic() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::abort();
    }));
}

/// A volume that tools can use, or that is on its way to that.
pub struct Attachment {
    order: Order,
    volume: Volume,
    mounted: Option<fuse::Mounted>,
    /// A device that is being made: it is waited for, whatever comes between.
    making: Option<JoinHandle<Result<LoopDevice, loopdev::LoopError>>>,
    device: Option<LoopDevice>,
    exported: Option<export::Exported>,
    /// Where `detach` asks, while nobody listens there.
    asked: Option<Asked>,
    /// By which `detach` finds it; gone at the very end.
    claim: Claim,
    pub ready: Ready,
}

async fn give_back(lease: &Lease) {
    if let Err(error) = lease.give_back().await {
        tracing::warn!("the lease was not given back and runs out by itself: {error}");
    }
}

async fn take_lease(
    order: &Order,
    pool: &Client,
    asked: &mut Asked,
    stops: &mut Stops<'_>,
) -> Result<Lease, Failure> {
    let options = order.options();
    let mut leasing = pin!(Lease::for_tools(pool, &order.name, &options));
    let ended = match stops.race(asked, &mut leasing).await {
        Ok(lease) => return lease.map_err(Failure::from),
        Err(ended) => ended,
    };
    // What was asked for may be granted.
    if let Ok(Ok(lease)) = tokio::time::timeout(LEASE_PATIENCE, leasing).await {
        give_back(&lease).await;
    }
    let failure = ended.failure(&order.name, "the coordinator has not given its lease");
    ended.answer().await;
    Err(failure)
}

impl Attachment {
    /// What was begun is taken back when it fails, and when one of those who may end it does.
    pub async fn start(order: &Order, stops: Stops<'_>) -> Result<Attachment, Failure> {
        let pool = Client::new(&order.pool).map_err(|e| Failure::usage(e.to_string()))?;
        let claim = RuntimeDir::open()?.claim(&order.name)?;
        let asked = UnixListener::from_std(claim.listen()?)
            .map_err(|e| Failure::failed(format!("cannot listen for `detach`: {}", own_fault(&e))))?;
        let asked = Asked::listen(asked);
        claim.store(&order.record())?;
        if let Err(why) = memory::own_cgroup("cheetah-attach") {
            tracing::info!(why, "no cgroup of its own");
        }
        memory::forbid_dumps();
        // One for each client of an export, and for each donor.
        let _ = descriptors::raise();
        let granted = memory::prepare();
        tracing::info!(?granted, "memory prepared");
        let started = Attachment::begin(order, &pool, claim, asked, stops).await;
        if started.is_err() {
            order.remove_mountpoint();
        }
        started
    }

    async fn begin(
        order: &Order,
        pool: &Client,
        claim: Claim,
        mut asked: Asked,
        mut stops: Stops<'_>,
    ) -> Result<Attachment, Failure> {
        let lease = take_lease(order, pool, &mut asked, &mut stops).await?;
        let mut notes = content::notes_at_attach(&lease.granted, order.read_only);
        notes.extend(lease.beside_note());
        // What was loaded may be given for reading alone.
        let order = &Order { read_only: lease.granted.read_only, ..order.clone() };
        let volume = match Volume::start(&lease, order.options().tuning) {
            Ok(volume) => volume,
            Err(error) => {
                give_back(&lease).await;
                return Err(error.into());
            }
        };
        let ready = Ready { size: volume.size(), pid: std::process::id(), notes, ..Ready::default() };
        let mut attachment = Attachment {
            order: order.clone(),
            volume,
            mounted: None,
            making: None,
            device: None,
            exported: None,
            asked: None,
            claim,
            ready,
        };
        let begun = match attachment.remember() {
            Ok(()) => stops.race(&mut asked, &mut Box::pin(attachment.make_ready())).await,
            Err(failure) => Ok(Err(failure)),
        };
        attachment.asked = Some(asked);
        let (failure, ended) = match begun {
            Ok(Ok(())) => return Ok(attachment),
            Ok(Err(failure)) => (failure, None),
            Err(ended) => (ended.failure(&order.name, &attachment.waits_for().await), Some(ended)),
        };
        attachment.abandon().await;
        if let Some(ended) = ended {
            ended.answer().await;
        }
        Err(failure)
    }

    /// May be given up at any point; what it began is then in `self`.
    async fn make_ready(&mut self) -> Result<(), Failure> {
        self.ready.notes.extend(self.volume.ready().await?);
        if let kept @ Kept::Exposed(_) = swap::of_buffers() {
            self.ready.notes.push(kept.to_string());
        }
        match self.order.front {
            Front::Fuse => self.mount()?,
            Front::Loop => {
                self.mount()?;
                self.loop_over_file().await?;
            }
            Front::Export => self.export(&self.order.listen.clone())?,
        }
        memory::grow_heap();
        self.remember()
    }

    /// Who keeps it from being ready.
    async fn waits_for(&self) -> String {
        let lost = tokio::time::timeout(WORD_PATIENCE, self.volume.lost_donors()).await.unwrap_or_default();
        match lost.iter().map(|(name, why)| format!("{name} ({why})")).collect::<Vec<_>>() {
            none if none.is_empty() => "its donors have not all told what was written last".to_owned(),
            donors => format!("it waits for donor {}", donors.join(", ")),
        }
    }

    pub fn mount(&mut self) -> Result<(), Failure> {
        let point =
            self.order.mountpoint.clone().ok_or_else(|| Failure::usage("a file needs a mount point"))?;
        let (uid, gid) = self.order.owner;
        let options = fuse::Options { uid, gid, read_only: self.order.read_only };
        let mounted = fuse::mount(self.volume.handle(), &point, &options)
            .map_err(|e| Failure::failed(e.to_string()))?;
        // Not inside the macro, which evaluates nothing that is not logged.
        let tuned = mounted.tune(READ_AHEAD_KB);
        tracing::info!(%tuned, "mounted");
        if !mounted.shared_with_root() {
            self.ready.notes.push(
                "only this user can read the file, root cannot: attach as root, or put user_allow_other into \
                 /etc/fuse.conf, for tools that run as root (sudo, losetup)"
                    .to_owned(),
            );
        }
        mounted.set_writer_beside(*self.volume.writer_beside().borrow());
        self.ready.path = Some(mounted.path().to_path_buf());
        self.ready.place = mounted.path().display().to_string();
        self.mounted = Some(mounted);
        Ok(())
    }

    async fn loop_over_file(&mut self) -> Result<(), Failure> {
        let file =
            self.ready.path.clone().ok_or_else(|| Failure::failed("the volume's file is not mounted"))?;
        let options = loopdev::Options {
            read_only: self.order.read_only,
            block_size: self.order.sector,
            ..loopdev::Options::default()
        };
        // The kernel opens the file, which this process serves: not from the thread that runs the rest.
        let making = tokio::task::spawn_blocking(move || loopdev::attach(&file, &options));
        let made = self.making.insert(making).await;
        self.making = None;
        let device = made.map_err(|e| Failure::failed(e.to_string()))?;
        let device = device.map_err(|e| Failure::failed(e.to_string()))?;
        self.ready.notes.extend(device.notes().iter().cloned());
        self.ready.partitions = device.partitions();
        let shown: Vec<String> =
            self.ready.partitions.iter().map(|path| path.display().to_string()).collect();
        if !shown.is_empty() {
            self.ready.notes.push(format!("partitions: {}", shown.join(", ")));
        }
        self.ready.path = Some(device.path());
        self.ready.place = device.path().display().to_string();
        self.device = Some(device);
        Ok(())
    }

    pub fn export(&mut self, listen: &str) -> Result<(), Failure> {
        let endpoint: export::Endpoint = listen.parse().map_err(Failure::usage)?;
        let exported = export::serve(self.volume.handle(), &endpoint, Transport::default())
            .map_err(|e| Failure::failed(e.to_string()))?;
        let endpoint = exported.endpoint();
        match endpoint {
            _ if !exported.is_local() => {
                self.ready.notes.push(format!("{endpoint} is in the clear and open to who can reach it"));
            }
            export::Endpoint::Tcp(_) => self.ready.notes.push(format!(
                "{endpoint} is open to every user of this machine: without --listen only you can reach the export"
            )),
            export::Endpoint::Unix(_) => {}
        }
        self.ready.uri = Some(exported.uri());
        if self.ready.place.is_empty() {
            self.ready.place = exported.uri();
        }
        self.exported = Some(exported);
        Ok(())
    }

    /// Writes down what there is of it by now.
    fn remember(&self) -> Result<(), Failure> {
        self.claim.store(&Record {
            token: Some(self.volume.lease().granted.token),
            loop_device: self.device.as_ref().map(LoopDevice::path),
            place: self.ready.place.clone(),
            ..self.order.record()
        })
    }

    /// Gives up an attachment that was never served.
    pub async fn abandon(mut self) {
        if self.end_fronts().await.is_err() {
            self.let_go();
        }
        self.finish().await;
    }

    /// What is in use goes with its last user.
    fn let_go(&self) {
        if let Some(device) = &self.device {
            device.let_go();
        }
    }

    /// Until `detach`, `told`, or somebody else's umount.
    pub async fn serve_until(mut self, told: impl Future<Output = ()>) -> Result<(), Failure> {
        tokio::pin!(told);
        let Some(mut asked) = self.asked.take() else {
            return Err(Failure::failed("`detach` cannot be heard"));
        };
        self.volume.set_place(&self.ready.place);
        let mut sizes = self.volume.handle().size_changes();
        let mut writer_beside = self.volume.writer_beside();
        let mut unmounted = self.mounted.as_ref().map(fuse::Mounted::ended);
        loop {
            tokio::select! {
                mut stream = asked.next() => {
                    let ended = self.end_fronts().await;
                    let report = ended.as_ref().err().map(Report::from);
                    let text = report.and_then(|report| serde_json::to_string(&report).ok());
                    let text = text.unwrap_or_default();
                    let _ = stream.write_all(text.as_bytes()).await;
                    if ended.is_ok() {
                        break;
                    }
                }
                () = &mut told => {
                    // Nobody waits for an answer: what is in use goes on lazily until its last user is gone.
                    if let Err(failure) = self.end_fronts().await {
                        tracing::warn!("ended while in use: {}", failure.text());
                        self.let_go();
                    }
                    break;
                }
                () = ended(&mut unmounted) => break,
                Ok(()) = sizes.changed() => self.grown().await,
                Ok(()) = writer_beside.changed() => {
                    let there = *writer_beside.borrow_and_update();
                    self.mounted.iter().for_each(|mounted| mounted.set_writer_beside(there));
                }
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
        if let Some(making) = self.making.take()
            && let Ok(Ok(device)) = making.await
        {
            self.device = Some(device);
        }
        // Before the first of them ends: a refusal changes nothing.
        if let Some(mounted) = self.mounted.take() {
            let device = self.device.as_ref().map(LoopDevice::path);
            let (mounted, unused) = tokio::task::spawn_blocking(move || {
                let unused = mounted.check_unused(device.as_deref()).map_err(|e| e.to_string());
                (mounted, unused)
            })
            .await
            .map_err(|e| Failure::failed(e.to_string()))?;
            self.mounted = Some(mounted);
            unused.map_err(in_use)?;
        }
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
        if let Err(error) = self.volume.detach().await {
            tracing::warn!("the lease was not given back and runs out by itself: {error}");
        }
        self.order.remove_mountpoint();
    }
}

async fn ended(unmounted: &mut Option<tokio::sync::watch::Receiver<bool>>) {
    match unmounted {
        Some(unmounted) => drop(unmounted.wait_for(|ended| *ended).await),
        None => std::future::pending().await,
    }
}
