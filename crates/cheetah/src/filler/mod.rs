//! The process that fills a volume from its source while tools read it, until all is here or it is told to
//! end.
//!
//! Owns: the order in which lease, volume, server and threads begin and end, what the pool is told of how far
//! it is, and the end. Never: what is read next (`core::filling`), reading and writing (`work`), or starting
//! itself (`open`). Invariants: from before its lease on there is a record by which `fill` finds it; readers
//! are sent here only once it serves; the volume counts as complete only when donors were asked after the
//! last write and lack nothing that the source could give, and the pool knows what is on the disk; and what
//! is sealed is told to be complete and sealed in one word. Files: `work` (reading and writing), `runs`
//! (parts of what is read), `metadata` (what is expected to be asked for), `hashing`, `sealing`. Tests:
//! `lab/tests/open.rs`, `lab/tests/open_sealed.rs`.

mod hashing;
mod metadata;
mod runs;
mod sealing;
mod work;

use crate::control::{Asked, Word};
use crate::daemon::{Ready, Report, abort_on_panic};
use crate::expected::{self, Hash};
use crate::failure::Failure;
use crate::fill::Hashes;
use crate::health::FILLING;
use crate::load::{blocking, described, not_opened, tell_until_heard};
use crate::runtime_dir::{Claim, RuntimeDir};
use crate::seal;
use crate::signals::Signals;
use crate::starting::Waiter;
use crate::verify;
use cheetah_client::{Lease, Volume};
use cheetah_core::content::{ByteRange, Check, Filling as Rate, Loaded, Tell};
use cheetah_core::filling::Sharing;
use cheetah_core::map::{Filler, LeaseToken};
use cheetah_core::units::show_bytes;
use cheetah_rim::control::{Client, reached_from};
use cheetah_rim::net::{Bound, Endpoint};
use cheetah_rim::own_fault::own_fault;
use cheetah_rim::volume::{Tuning, VolumeError};
use cheetah_rim::{descriptors, filler, memory};
use cheetah_source::{Options, Source};
use hashing::Hashed;
use sealing::{Filled, Plan, Verdict};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::MissedTickBehavior;
use work::{Filling, Progress};

/// How often the pool is told how far it is.
const TELL_EACH: Duration = Duration::from_secs(1);
/// Donors that do not say what they hold are asked again after this.
const SURVEY_AGAIN: Duration = Duration::from_secs(1);

/// What `open` and `fill` want filled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub pool: String,
    pub name: String,
    pub source: PathBuf,
    pub raw: bool,
    /// A file system on it may be mounted for writing.
    pub mounted: bool,
    /// Bytes each second, for what nobody waits for.
    pub rate: Option<u64>,
    /// It is not sealed when all of it is here.
    #[serde(default)]
    pub writable: bool,
}

impl Order {
    /// Its source, which may wait for a disk or a server.
    pub async fn open(&self) -> Result<Arc<dyn Source>, Failure> {
        let (path, how) =
            (self.source.clone(), Options { raw: self.raw, mounted: self.mounted, ..Options::default() });
        let opened = move || cheetah_source::open(&path, &how).map(Arc::from);
        blocking(move || opened().map_err(|error| not_opened(&error))).await
    }
}

/// What this machine remembers of a filler while it lasts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub order: Order,
    pub pid: u32,
    /// None while it is asked for.
    pub token: Option<LeaseToken>,
}

/// The hidden command `serve-fill`.
pub async fn serve_from_stdin() -> Result<(), Failure> {
    abort_on_panic();
    let (mut waiter, order) = Waiter::listen::<Order>().await?;
    let _ = rustix::process::setsid();
    let mut signals = Signals::listen()?;
    let started = Running::start(&order).await;
    let report = match &started {
        Ok(filler) => Report::Ready(filler.ready()),
        Err(failure) => Report::from(failure),
    };
    let line = serde_json::to_string(&report).map_err(|e| Failure::failed(e.to_string()))?;
    crate::output::line(&line);
    let filler = started?;
    if !waiter.heard().await {
        let mut filler = filler;
        filler.end().await;
        return Err(Failure::failed(format!("nobody waits for volume '{}' any more", order.name)));
    }
    // Whoever waits for the end of our output has it now.
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
    filler.serve(&mut signals).await
}

/// A volume that is being filled.
struct Running {
    order: Order,
    source: Arc<dyn Source>,
    /// Hashes that it is to have, and who says so.
    expected: Vec<(Hash, String)>,
    plan: Plan,
    volume: Volume,
    filling: Arc<Filling>,
    asked: Asked,
    /// When and at how many bytes the pool was told last.
    told: (Instant, u64),
    /// The pool knows what is on the disk.
    told_on_disk: bool,
    rate: u64,
    /// Gone at the very end.
    _claim: Claim,
}

impl Running {
    /// Until readers can be sent here. What was begun is taken back when it fails.
    async fn start(order: &Order) -> Result<Running, Failure> {
        let pool = crate::members::client(&order.pool).await?;
        let claim = RuntimeDir::of_fillers()?.claim(&order.name)?;
        let asked = UnixListener::from_std(claim.listen()?)
            .map_err(|e| Failure::failed(format!("cannot listen for `fill`: {}", own_fault(&e))))?;
        let asked = Asked::listen(asked);
        let record = Record { order: order.clone(), pid: std::process::id(), token: None };
        claim.store(&record)?;
        memory::forbid_dumps();
        let _ = descriptors::raise();
        let source = order.open().await?;
        let lease = Lease::for_opening(&pool, &order.name, described(&*source), !order.writable).await?;
        let begun = Running::begin(order, &pool, source, &lease, asked, claim, record).await;
        if begun.is_err() {
            // What is not given back runs out by itself.
            let _ = lease.give_back().await;
        }
        begun
    }

    async fn begin(
        order: &Order,
        pool: &Client,
        source: Arc<dyn Source>,
        lease: &Lease,
        asked: Asked,
        claim: Claim,
        record: Record,
    ) -> Result<Running, Failure> {
        claim.store(&Record { token: Some(lease.granted.token), ..record })?;
        let volume = Volume::start(lease, Tuning::default())?;
        volume.set_place(FILLING);
        let plan = planned(order, lease);
        let read = source.clone();
        let begun = async {
            let expected = blocking(move || Ok(expected::expected(&*read, &[]))).await?;
            volume.ready().await?;
            let filling = Filling::new(
                source.clone(),
                volume.handle().clone(),
                (order.rate, plan == Plan::Seals),
                Sharing::of(&lease.granted.map),
            );
            survey(&filling).await?;
            // What an earlier one has left, before this one reads.
            let told = (Instant::now(), filling.progress().bytes_here);
            let filler = listen(pool, source.size(), &filling).await?;
            filling
                .start()
                .map_err(|e| Failure::failed(format!("no thread to fill with: {}", own_fault(&e))))?;
            lease.tell(Tell { filler: Some(Box::new(filler)), ..Tell::default() }).await?;
            Ok::<_, Failure>((filling, expected, told))
        };
        match begun.await {
            Ok((filling, expected, told)) => Ok(Running {
                order: order.clone(),
                source,
                expected,
                plan,
                volume,
                filling,
                asked,
                told,
                told_on_disk: false,
                rate: 0,
                _claim: claim,
            }),
            Err(failure) => {
                volume.close().await;
                Err(failure)
            }
        }
    }

    fn ready(&self) -> Ready {
        Ready { size: self.source.size(), pid: std::process::id(), ..Ready::default() }
    }

    /// Until all is here, the lease is lost, or it is told to end.
    async fn serve(mut self, signals: &mut Signals) -> Result<(), Failure> {
        let (volume, at) = (self.order.name.clone(), show_bytes(self.told.1));
        tracing::info!(target: "journal", event = "filling", volume, "volume {volume} is filled, {at} are here");
        let mut tick = tokio::time::interval(TELL_EACH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let verdict = loop {
            let lost = self.volume.lease_lost();
            tokio::select! {
                () = lost => {
                    self.filling.end();
                    return Err(Failure::failed(format!("volume '{volume}': the lease is lost, another may fill it")));
                }
                _ = signals.next() => break None,
                (word, stream) = self.asked.next_word() => {
                    let ends = matches!(word, None | Some(Word::Stop));
                    self.heed(word, stream).await;
                    if ends {
                        return Ok(());
                    }
                }
                _ = tick.tick() => {
                    let progress = self.filling.progress();
                    self.tell(&progress).await;
                    if progress.hashed
                        && self.told_on_disk
                        && self.is_whole().await
                        && let Some(verdict) = self.finish().await?
                    {
                        break Some(verdict);
                    }
                }
            }
        };
        self.end().await;
        if let Some(Verdict::Unsealed { mends: true, .. }) = verdict {
            let pool = self.volume.lease().pool().clone();
            sealing::by_reading(&pool, &self.order.name, &mut self.asked, signals).await;
        }
        Ok(())
    }

    async fn heed(&mut self, word: Option<Word>, mut stream: UnixStream) {
        match word {
            Some(Word::Pause) => self.filling.pause(true),
            Some(Word::Resume) => self.filling.pause(false),
            Some(Word::Rate(rate)) => self.filling.limit(Some(rate)),
            None | Some(Word::Stop) => self.wind_up().await,
        }
        let progress = self.filling.progress();
        self.tell(&progress).await;
        let _ = stream.shutdown().await;
    }

    /// Says to the pool how far it is. What cannot be told now is told next time.
    async fn tell(&mut self, progress: &Progress) {
        let (now, (then, before)) = (Instant::now(), self.told);
        let seconds = now.duration_since(then).as_secs_f64();
        if seconds > 0.1 {
            let rate = progress.bytes_here.saturating_sub(before) as f64 / seconds;
            // Smoothed: what is read at once comes in runs.
            self.rate = (self.rate as f64 * 0.5 + rate * 0.5) as u64;
            self.told = (now, progress.bytes_here);
        }
        let all = progress.full || progress.bytes_here == self.source.size();
        let rate = if all { 0 } else { self.rate };
        let (paused, trouble, full) = (progress.paused, progress.trouble.clone(), progress.full);
        let filling = Some(Box::new(Rate { bytes_per_second: rate, paused, trouble, full }));
        let (bytes_done, unreadable) = (Some(progress.bytes_here), progress.bad.clone());
        let on_disk = self.filling.on_disk().filter(|_| !self.told_on_disk).cloned().map(Box::new);
        let tells_on_disk = on_disk.is_some();
        let tell = Tell { bytes_done, unreadable, filling, on_disk, ..Tell::default() };
        match self.volume.lease().tell(tell).await {
            Ok(_) => self.told_on_disk |= tells_on_disk,
            Err(error) => tracing::debug!(%error, "the pool was not told how far it is"),
        }
    }

    /// Whether donors hold all that the source could give, now that it was all written, and what proves it.
    async fn is_whole(&self) -> bool {
        let filling = self.filling.clone();
        let look = move || Ok::<_, VolumeError>(filling.survey()? && filling.proofs_are_here()?);
        matches!(tokio::task::spawn_blocking(look).await, Ok(Ok(true)))
    }

    /// The volume needs its source no more, and is sealed if it can be; none: some of what it held went
    /// meanwhile.
    async fn finish(&mut self) -> Result<Option<Verdict>, Failure> {
        let checked = verify::check(&self.volume).await?;
        if !self.is_whole().await {
            return Ok(None);
        }
        let filling = self.filling.clone();
        // From here on nothing is written any more: what is told is so.
        let held = blocking(move || Ok(filling.hold())).await?;
        let Some(hashed) = held else { return Ok(None) };
        let check = match checked.is_of_all() {
            _ if checked.blocks_left > 0 => Check::Differs,
            true => Check::Same,
            false => Check::No,
        };
        let (unreadable, changed) = (self.filling.progress().bad, self.source.changed());
        let filled = Filled {
            source: &*self.source,
            volume: &self.order.name,
            hashed: &hashed,
            check,
            changed: changed.as_ref(),
            unreadable: &unreadable,
            expected: &self.expected,
        };
        let (verdict, faults) = (filled.verdict(self.plan), filled.faults());
        self.tell_loaded(&hashed, check, (changed, unreadable), &verdict).await?;
        faults.iter().for_each(|fault| tracing::error!("{fault}"));
        self.log_filled(&verdict);
        Ok(Some(verdict))
    }

    /// Waits for a coordinator that is away.
    async fn tell_loaded(
        &self,
        hashed: &Hashed,
        check: Check,
        (changed, unreadable): (Option<String>, Vec<ByteRange>),
        verdict: &Verdict,
    ) -> Result<(), Failure> {
        let Hashes { md5, sha256, .. } = hashed.hashes.clone();
        let (sealed, unsealed) = match verdict {
            Verdict::Sealed(sealing) => (Some(sealing.clone()), None),
            Verdict::Unsealed { why, .. } => (None, Some(why.clone())),
            Verdict::StaysOpen => (None, None),
        };
        let loaded = Some(Box::new(Loaded { md5, sha256, check, changed, unsealed, unreadable }));
        tell_until_heard(self.volume.lease(), &Tell { loaded, sealed, ..Tell::default() }).await
    }

    fn log_filled(&self, verdict: &Verdict) {
        let (volume, read) = (&self.order.name, show_bytes(self.filling.bytes_read()));
        let file = self.order.source.display();
        tracing::info!(
            target: "journal",
            event = "filled",
            volume,
            "volume {volume} holds all of {file}, of which {read} were read here"
        );
        match verdict {
            Verdict::Sealed(sealing) => {
                sealing::sealed(volume, &sealing.blake3().to_string());
            }
            Verdict::Unsealed { why, .. } => tracing::error!("volume {volume} is not sealed: {why}"),
            Verdict::StaysOpen => {}
        }
    }

    /// Reads and writes nothing any more, and lets the next one in.
    async fn wind_up(&self) {
        self.filling.end();
        self.volume.close().await;
        if let Err(error) = self.volume.lease().give_back().await {
            tracing::warn!("the lease was not given back and runs out by itself: {error}");
        }
    }

    async fn end(&mut self) {
        let progress = self.filling.progress();
        self.tell(&progress).await;
        self.wind_up().await;
        let (volume, read) = (&self.order.name, show_bytes(self.filling.bytes_read()));
        tracing::info!(target: "journal", event = "filling-ended", volume, "{read} of the source were read");
    }
}

/// What becomes of it in the end, by what was ordered and where the pool has room.
fn planned(order: &Order, lease: &Lease) -> Plan {
    let map = &lease.granted.map;
    if order.writable || map.layers() > 1 {
        return Plan::StaysOpen;
    }
    if map.proofs.is_some() {
        return Plan::Seals;
    }
    tracing::warn!("volume {} is not to be sealed: {}", order.name, seal::takes_room(map.size));
    Plan::HasNoRoom
}

/// Learns what is here, as soon as donors say so.
async fn survey(filling: &Arc<Filling>) -> Result<(), Failure> {
    let (started, patience) = (Instant::now(), Duration::from_secs(30));
    loop {
        let surveyed = filling.clone();
        let surveyed = tokio::task::spawn_blocking(move || surveyed.survey()).await;
        match surveyed.map_err(|e| Failure::failed(e.to_string()))? {
            Ok(_) => return Ok(()),
            Err(error) if started.elapsed() > patience => {
                return Err(Failure::failed(format!(
                    "donors do not say what they hold of the volume: {error}"
                )));
            }
            Err(_) => tokio::time::sleep(SURVEY_AGAIN).await,
        }
    }
}

/// Where readers on any machine reach it.
async fn listen(pool: &Client, size: u64, filling: &Arc<Filling>) -> Result<Filler, Failure> {
    let ip = reached_from(pool).await?;
    let bound = Bound::new(&Endpoint::Tcp(SocketAddr::new(ip, 0))).map_err(Failure::failed)?;
    filler::serve(bound, size, filling.clone(), pool.transport())
        .map_err(|e| Failure::failed(format!("cannot serve readers: {}", own_fault(&e))))
}
