//! The loop that keeps a donor in its pool, and through which its data server opens and closes connections.
//!
//! Owns core's donor machine and carries out its effects: joins and syncs, snapshots of access, admissions,
//! wiping. Never: sockets of the data path or memory; those belong to the data server, which gets a
//! `DonorHandle`. Key invariant: a `Closed` is said only when an `Admission` is dropped, so the server keeps
//! it until the last request of its connection is done. Also runs beside another's NBD server that lends its
//! memory (`foreign_export`), with no data server at all. Tests: `tests/control_donor.rs`.

use super::client::Client;
use super::donor_calls::{DonorOptions, Said, join, sync_with};
use super::{Clock, random};
use cheetah_core::api::{RefusalCode, Sync};
use cheetah_core::disk::Held;
use cheetah_core::donor::{Access, ConnId, Donor, Draining, Effect, Event, Exit, Grant, LeftWith, OpenError};
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{DonorId, DonorSecret, Incarnation, MemberId, PoolId};
use cheetah_core::units::{Time, show_bytes};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

type WipeHook = dyn Fn(&[u32]) -> std::io::Result<()> + Send + std::marker::Sync;
type KeepHook = dyn Fn(Held) -> std::io::Result<()> + Send + std::marker::Sync;

/// What the loop needs of the memory.
#[derive(Clone)]
pub struct DonorHooks {
    /// Makes these extents absent. May take long; runs on a thread of its own. Where it fails nothing that
    /// waits for it goes on.
    pub wipe: Arc<WipeHook>,
    /// Bytes that present blocks take.
    pub bytes_used: Arc<dyn Fn() -> u64 + Send + std::marker::Sync>,
    /// Of a disk: puts down what the donor holds, before anything is done by it. Where it fails nothing is.
    pub keep: Option<Arc<KeepHook>>,
}

impl DonorHooks {
    /// For a foreign donor: its memory is not ours to wipe or to count.
    #[must_use]
    pub fn none() -> Self {
        DonorHooks { wipe: Arc::new(|_| Ok(())), bytes_used: Arc::new(|| 0), keep: None }
    }
}

impl fmt::Debug for DonorHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DonorHooks").finish_non_exhaustive()
    }
}

enum Ask {
    Open { export: String, member: Option<MemberId>, reply: oneshot::Sender<Result<Admission, OpenError>> },
    Closed(ConnId),
    Leave { bounded: bool },
    Terminate,
    Offer(u32),
}

/// What a donor's owner is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DonorState {
    /// Extents that hold a volume's data.
    pub extents_held: u32,
    /// Why what it holds cannot be moved, while it has to be.
    pub stuck: Option<String>,
    /// Why it is in no pool, while it keeps what it holds of one.
    pub estranged: Option<String>,
    /// Set once it was told to leave.
    pub draining: Option<Draining>,
    /// Set once it went of its own accord while it held data.
    pub left_with: Option<LeftWith>,
    /// Volumes that it shall attach, by name, because nobody else does what is due there.
    pub tends: Vec<String>,
}

/// The data server's side of a donor. Cheap to clone; works from any runtime or thread.
#[derive(Clone, Debug)]
pub struct DonorHandle {
    asks: mpsc::UnboundedSender<Ask>,
    access: watch::Receiver<Arc<Access>>,
    joined: watch::Receiver<Option<PoolId>>,
    called: watch::Receiver<String>,
    state: watch::Receiver<DonorState>,
}

/// The right to serve one connection, until `dropped` says otherwise. Dropping it says that the connection is
/// closed and that no request of it touches memory any more.
#[derive(Debug)]
pub struct Admission {
    pub conn: ConnId,
    pub grant: Grant,
    dropped: watch::Receiver<bool>,
    asks: mpsc::UnboundedSender<Ask>,
}

impl Admission {
    /// Ends when the connection has to be closed at once.
    pub async fn dropped(&mut self) {
        // A loop that has ended has nobody left to serve.
        let _ = self.dropped.wait_for(|dropped| *dropped).await;
    }

    /// Whether it has to be closed: a cheap look, for the loop that serves it.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        *self.dropped.borrow() || self.dropped.has_changed().is_err()
    }

    /// A receiver of its own for whoever waits while another holds the admission; true means close.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.dropped.clone()
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        // A loop that has ended needs no telling.
        let _ = self.asks.send(Ask::Closed(self.conn));
    }
}

impl DonorHandle {
    /// Asks to serve a connection of this member that named this export. May wait for older connections to
    /// close.
    ///
    /// # Errors
    /// Why it is not to be served.
    pub async fn open(&self, export: &str, member: Option<MemberId>) -> Result<Admission, OpenError> {
        let (reply, answer) = oneshot::channel();
        let asked = self.asks.send(Ask::Open { export: export.to_owned(), member, reply });
        asked.map_err(|_| OpenError::Leaving)?;
        answer.await.unwrap_or(Err(OpenError::Leaving))
    }

    /// What requests are checked against: keep a receiver per thread, and borrow it anew for each batch.
    #[must_use]
    pub fn access(&self) -> watch::Receiver<Arc<Access>> {
        self.access.clone()
    }

    /// Ends once the donor is in a pool; `None` when its loop ended before.
    pub async fn joined(&mut self) -> Option<PoolId> {
        self.joined.wait_for(Option::is_some).await.ok().and_then(|pool| *pool)
    }

    /// What the pool calls it, once it is in one.
    #[must_use]
    pub fn called(&self) -> watch::Receiver<String> {
        self.called.clone()
    }

    #[must_use]
    pub fn state(&self) -> watch::Receiver<DonorState> {
        self.state.clone()
    }

    /// How many extents the machine's owner can spare from now on.
    pub fn offer(&self, extents: u32) {
        // A loop that has ended lends nothing.
        let _ = self.asks.send(Ask::Offer(extents));
    }

    /// Asks for what the donor holds to be moved to others; then `DonorControl::run` ends. `bounded`: after
    /// `DRAIN_NS` at the latest.
    pub fn leave(&self, bounded: bool) {
        // A loop that has ended is what was wanted.
        let _ = self.asks.send(Ask::Leave { bounded });
    }

    /// Says goodbye, drops everyone, wipes everything; then `DonorControl::run` ends.
    pub fn terminate(&self) {
        // A loop that has ended is what was wanted.
        let _ = self.asks.send(Ask::Terminate);
    }
}

type Question = Pin<Box<dyn Future<Output = Event> + Send>>;

struct Connection {
    /// Until it is admitted or refused.
    reply: Option<oneshot::Sender<Result<Admission, OpenError>>>,
    dropped: watch::Sender<bool>,
}

pub struct DonorControl {
    options: DonorOptions,
    pool: Client,
    hooks: DonorHooks,
    clock: Clock,
    secret: DonorSecret,
    machine: Donor,
    /// What was put down last.
    kept: Held,
    asks: mpsc::UnboundedReceiver<Ask>,
    asks_sender: mpsc::UnboundedSender<Ask>,
    wiped: (mpsc::UnboundedSender<Vec<u32>>, mpsc::UnboundedReceiver<Vec<u32>>),
    access: watch::Sender<Arc<Access>>,
    joined: watch::Sender<Option<PoolId>>,
    called: watch::Sender<String>,
    state: watch::Sender<DonorState>,
    connections: BTreeMap<ConnId, Connection>,
    conns: u64,
    question: Option<Question>,
    wake: Option<Time>,
    exit: Option<Exit>,
    /// So that an outage is told once.
    reachable: bool,
    /// Why it is not let in, as was said last.
    estranged: Option<String>,
    /// Why it was not let in when it last asked, where that passes, and whether that was said.
    put_off: Option<(String, bool)>,
}

impl fmt::Debug for DonorControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DonorControl").field("options", &self.options).finish_non_exhaustive()
    }
}

impl DonorControl {
    /// A donor with a fresh identity. Nothing is asked before `run`.
    ///
    /// # Errors
    /// When the kernel gives no random numbers.
    pub fn new(
        options: DonorOptions,
        pool: Client,
        hooks: DonorHooks,
    ) -> std::io::Result<(Self, DonorHandle)> {
        let machine = Donor::new(DonorId(random()?), options.extents);
        Ok(Self::of(machine, DonorSecret(random()?), options, pool, hooks))
    }

    /// The donor of a disk, which is the same each time it starts. Nothing is asked before `run`.
    ///
    /// # Errors
    /// When the kernel gives no random numbers.
    pub fn returned(
        (donor, secret, held): (DonorId, DonorSecret, Held),
        options: DonorOptions,
        pool: Client,
        hooks: DonorHooks,
    ) -> std::io::Result<(Self, DonorHandle)> {
        let machine = Donor::returned(donor, options.extents, held, Incarnation(random()?));
        Ok(Self::of(machine, secret, options, pool, hooks))
    }

    fn of(
        machine: Donor,
        secret: DonorSecret,
        options: DonorOptions,
        pool: Client,
        hooks: DonorHooks,
    ) -> (Self, DonorHandle) {
        let kept = machine.held();
        let (asks_sender, asks) = mpsc::unbounded_channel();
        let (access, access_receiver) = watch::channel(Arc::new(Access::default()));
        let (joined, joined_receiver) = watch::channel(None);
        let (called, called_receiver) = watch::channel(options.name.clone());
        let (state, state_receiver) = watch::channel(DonorState::default());
        let handle = DonorHandle {
            asks: asks_sender.clone(),
            access: access_receiver,
            joined: joined_receiver,
            called: called_receiver,
            state: state_receiver,
        };
        let control = DonorControl {
            options,
            pool,
            hooks,
            clock: Clock::start(),
            secret,
            machine,
            kept,
            asks,
            asks_sender,
            wiped: mpsc::unbounded_channel(),
            access,
            joined,
            called,
            state,
            connections: BTreeMap::new(),
            conns: 0,
            question: None,
            wake: None,
            exit: None,
            reachable: true,
            estranged: None,
            put_off: None,
        };
        (control, handle)
    }

    /// Runs until the donor ends: told to, dismissed, or refused by the pool.
    pub async fn run(mut self) -> Exit {
        self.step(Event::Started);
        loop {
            if let Some(exit) = self.exit.take() {
                return exit;
            }
            let wake = self.wake.map(|at| self.clock.at(at));
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let question = async {
                match &mut self.question {
                    Some(question) => question.await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                event = question => {
                    self.question = None;
                    self.note_reachable(&event);
                    self.note_put_off(&event);
                    event
                }
                Some(ask) = self.asks.recv() => self.event_of(ask),
                Some(extents) = self.wiped.1.recv() => Event::Wiped { extents },
                () = sleep => Event::Wake,
            };
            self.step(event);
        }
    }

    fn event_of(&mut self, ask: Ask) -> Event {
        match ask {
            Ask::Open { export, member, reply } => {
                self.conns += 1;
                let conn = ConnId(self.conns);
                let (dropped, _) = watch::channel(false);
                self.connections.insert(conn, Connection { reply: Some(reply), dropped });
                Event::Opened { conn, export, member }
            }
            Ask::Closed(conn) => {
                self.connections.remove(&conn);
                Event::Closed { conn }
            }
            Ask::Leave { bounded } => Event::Leave { bounded },
            Ask::Terminate => Event::Terminate,
            Ask::Offer(extents) => Event::Offered { extents },
        }
    }

    fn note_reachable(&mut self, event: &Event) {
        let reachable = !matches!(event, Event::Unreachable);
        if reachable && !self.reachable {
            tracing::warn!(
                "donor '{}': the coordinator at {} answers again",
                *self.called.borrow(),
                self.pool.url()
            );
        }
        self.reachable = reachable;
    }

    /// What passes need not be said, unless it does not.
    fn note_put_off(&mut self, event: &Event) {
        let why = match event {
            Event::JoinRefused { refusal } if refusal.code == RefusalCode::Unavailable => &refusal.message,
            _ => return self.put_off = None,
        };
        match &mut self.put_off {
            Some((before, is_said)) if before == why => {
                if !std::mem::replace(is_said, true) {
                    tracing::warn!("donor '{}' is not let in: {why}; it keeps asking", *self.called.borrow());
                }
            }
            _ => self.put_off = Some((why.clone(), false)),
        }
    }

    /// Says why it is not in its pool any more, and what that means, once for each reason; and that it is in
    /// another pool than before.
    fn note_pool(&mut self, joins: bool) {
        let (name, url) = (self.called.borrow().clone(), self.pool.url());
        let (before, pool) = (*self.joined.borrow(), self.machine.pool());
        let shown = |pool: Option<PoolId>| pool.map_or_else(String::new, |pool| pool.to_string());
        let estranged = self.machine.estranged().map(|why| why.message.clone());
        if let Some(why) = estranged.as_ref().filter(|_| estranged != self.estranged) {
            let held = show_bytes(u64::from(self.machine.extents_held()) * EXTENT_BYTES);
            tracing::warn!(
                "donor '{name}': the coordinator at {url} does not let it in: {why}. The {held} that it holds stay, who has \
                 them attached is served, and it keeps asking for pool {}",
                shown(pool)
            );
        }
        let is_in = joins && estranged.is_none();
        if is_in && self.estranged.is_some() {
            tracing::warn!("donor '{name}': the coordinator at {url} lets it in again");
        }
        self.estranged = estranged;
        // A disk knows its pool before it is let in.
        if is_in && pool != before {
            if before.is_some() {
                tracing::warn!(
                    "donor '{name}': the coordinator at {url} has another pool now, {}, and this donor joined it; it held \
                     nothing of pool {}",
                    shown(pool),
                    shown(before)
                );
            }
            self.joined.send_replace(pool);
        }
    }

    fn step(&mut self, event: Event) {
        let joins = matches!(event, Event::Joined { .. });
        let mut effects = Vec::new();
        self.machine.step(self.clock.now(), event, &mut effects);
        self.note_pool(joins);
        if let Some(keep) = &self.hooks.keep {
            let held = self.machine.held();
            if held != self.kept {
                if let Err(error) = keep(held.clone()) {
                    tracing::error!(
                        "what donor '{}' holds cannot be put down: {error}",
                        *self.called.borrow()
                    );
                    return;
                }
                self.kept = held;
            }
        }
        // Each step names its next wake-up; none means that nothing is waited for.
        self.wake = None;
        for effect in effects {
            self.carry_out(effect);
        }
        self.show();
    }

    fn show(&self) {
        let machine = &self.machine;
        let (extents_held, draining) = (machine.extents_held(), machine.draining());
        self.state.send_if_modified(|state| {
            // Who is told to leave is told why not, too.
            if machine.stuck() != state.stuck.as_deref()
                && draining.is_none()
                && let Some(why) = machine.stuck()
            {
                tracing::warn!("what this donor holds cannot be moved: {why}");
            }
            let tends = machine.tends().into_iter().map(str::to_owned).collect();
            let (stuck, left_with) = (machine.stuck().map(str::to_owned), machine.left_with().cloned());
            let estranged = machine.estranged().map(|why| why.message.clone());
            let now = DonorState { extents_held, draining, left_with, stuck, estranged, tends };
            let is_old = *state == now;
            *state = now;
            !is_old
        });
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Join { donor, pool, revision, lineage } => {
                let said = Said { donor, secret: self.secret, pool, revision, lineage };
                let join = join(self.options.clone(), self.called.clone(), self.pool.clone(), said);
                self.question = Some(Box::pin(join));
            }
            Effect::Sync { donor, pool, revision, connections, leaving, goodbye, offered, incarnation } => {
                let (bytes_used, extents_offered) = ((self.hooks.bytes_used)(), offered);
                let secret = self.secret;
                let sync = Sync {
                    secret,
                    revision,
                    bytes_used,
                    connections,
                    leaving,
                    goodbye,
                    extents_offered,
                    incarnation,
                };
                // A call under way is given up for this one.
                let quiet = !self.reachable;
                let client = pool.map_or_else(|| self.pool.clone(), |pool| self.pool.meant_for(pool));
                self.question = Some(Box::pin(sync_with(client, donor, sync, quiet)));
            }
            Effect::Publish(access) => {
                self.access.send_replace(access);
            }
            Effect::Admit { conn, grant } => self.admit(conn, grant),
            Effect::Refuse { conn, reason } => {
                let reply = self.connections.remove(&conn).and_then(|connection| connection.reply);
                if let Some(reply) = reply {
                    // Whoever asked may be gone.
                    let _ = reply.send(Err(reason));
                }
            }
            Effect::Drop { conn } => {
                if let Some(connection) = self.connections.get(&conn) {
                    connection.dropped.send_replace(true);
                }
            }
            Effect::Wipe { extents } => {
                let (wipe, wiped) = (Arc::clone(&self.hooks.wipe), self.wiped.0.clone());
                tokio::task::spawn_blocking(move || {
                    match wipe(&extents) {
                        // The loop waits for this unless it has ended.
                        Ok(()) => drop(wiped.send(extents)),
                        Err(error) => tracing::error!("what was given up cannot be wiped: {error}"),
                    }
                });
            }
            Effect::WakeAt(at) => self.wake = Some(self.wake.map_or(at, |wake| wake.min(at))),
            Effect::Exit(exit) => self.exit = Some(exit),
        }
    }

    fn admit(&mut self, conn: ConnId, grant: Grant) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let Some(reply) = connection.reply.take() else { return };
        let dropped = connection.dropped.subscribe();
        // Whoever asked may be gone: the admission is dropped then, and so is the connection closed.
        let _ = reply.send(Ok(Admission { conn, grant, dropped, asks: self.asks_sender.clone() }));
    }
}
