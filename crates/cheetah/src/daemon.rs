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
use crate::failure::{Failure, Told};
use crate::front_end::{FrontEnd, Of};
use crate::members;
use crate::runtime_dir::{Claim, Record, RuntimeDir};
use crate::signals::Signals;
use crate::starting::{Ended, Stops, Waiter};
use cheetah_client::{Lease, Options, Volume};
use cheetah_front::Shared;
use cheetah_rim::control::Client;
use cheetah_rim::descriptors;
use cheetah_rim::memory;
use cheetah_rim::own_fault::own_fault;
use cheetah_rim::swap::{self, Kept};
use cheetah_rim::volume::{Caching, Rule, Tuning};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::sync::watch;

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
        Options { read_only, writable, incomplete, raw: false, blind: false, tuning }
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
        let (keeps, takes) = (self.front.keeps_reads(), self.front.takes_ahead() && self.read_only);
        Caching { bytes, keeps, takes, rule: self.read_ahead }
    }
}

/// The hidden command `serve`.
pub async fn serve_from_stdin() -> Result<(), Failure> {
    abort_on_panic();
    let (mut waiter, order) = Waiter::listen::<Order>().await?;
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
    shared: Shared,
    fronts: Vec<FrontEnd>,
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
        let pool = members::client(&order.pool).await?;
        let claim = RuntimeDir::open()?.claim(&order.name)?;
        let asked = UnixListener::from_std(claim.listen()?)
            .map_err(|e| Failure::failed(format!("cannot listen for `detach`: {}", own_fault(&e))))?;
        let asked = Asked::listen(asked);
        claim.store(&order.record())?;
        if let Err(why) = memory::own_cgroup("cheetah-attach") {
            tracing::info!(%why, "no cgroup of its own");
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
        let mut volume = match Volume::start(&lease, order.options().tuning) {
            Ok(volume) => volume,
            Err(error) => {
                give_back(&lease).await;
                return Err(error.into());
            }
        };
        if let Some(overlay) = &lease.granted.content.overlay {
            // What tools get is another thing than this volume.
            if let Err(error) = volume.ready_as_seen(&order.options()).await {
                volume.close().await;
                give_back(&lease).await;
                return Err(error.into());
            }
            notes.push(format!(
                "volume '{}' is an overlay of '{}', which is read and not changed",
                order.name, overlay.base
            ));
        }
        let shared = Shared::new(volume.handle().clone());
        let ready = Ready { size: volume.size(), pid: std::process::id(), notes, ..Ready::default() };
        let mut attachment = Attachment {
            order: order.clone(),
            volume,
            shared,
            fronts: Vec::new(),
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
        self.add(FrontEnd::ordered(&self.order)?).await?;
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

    /// One front end more. What it began is there also when it is given up.
    pub async fn add(&mut self, front: FrontEnd) -> Result<(), Failure> {
        self.fronts.push(front);
        let writer_beside = *self.volume.writer_beside().borrow();
        let transport = self.volume.lease().pool().transport();
        let of = Of { volume: &self.shared, writer_beside, transport };
        match self.fronts.last_mut() {
            Some(front) => front.start(&of, &mut self.ready).await,
            None => Ok(()),
        }
    }

    /// Writes down what there is of it by now.
    fn remember(&self) -> Result<(), Failure> {
        self.claim.store(&Record {
            token: Some(self.volume.lease().granted.token),
            loop_device: self.fronts.iter().find_map(FrontEnd::device_path),
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
        self.fronts.iter().for_each(FrontEnd::let_go);
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
        let mut ended = self.fronts.iter().find_map(FrontEnd::ended);
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
                () = by_others(&mut ended) => break,
                Ok(()) = sizes.changed() => {
                    let bytes = *sizes.borrow_and_update();
                    for front in &mut self.fronts {
                        front.grow(bytes).await;
                    }
                }
                Ok(()) = writer_beside.changed() => {
                    let there = *writer_beside.borrow_and_update();
                    self.fronts.iter().for_each(|front| front.set_writer_beside(there));
                }
            }
        }
        self.finish().await;
        Ok(())
    }

    /// As far as nobody uses them; one that is in use is still there, and those behind it.
    async fn end_fronts(&mut self) -> Result<(), Failure> {
        for front in &mut self.fronts {
            front.end().await?;
        }
        Ok(())
    }

    async fn finish(mut self) {
        // A file that is in use goes now, with its users' errors.
        self.fronts.clear();
        if let Err(error) = self.volume.detach().await {
            tracing::warn!("the lease was not given back and runs out by itself: {error}");
        }
        self.order.remove_mountpoint();
    }
}

async fn by_others(ended: &mut Option<watch::Receiver<bool>>) {
    match ended {
        Some(ended) => drop(ended.wait_for(|ended| *ended).await),
        None => std::future::pending().await,
    }
}
