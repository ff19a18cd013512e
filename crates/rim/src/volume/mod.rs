//! The driver of `core::volume`: one thread that owns the machine, the donors' connections and every request
//! on its way, and carries out what the machine decides.
//!
//! Owns: the thread, its clock and timer, which request has which buffer, the inbox that front ends fill.
//! Never: policy. Invariant: the machine is stepped, and payloads are touched, on this thread only; effects
//! are carried out before the next step, but that checksums of what is written may wait until it is sent;
//! everything that a batch of events caused is sent together, connection by connection. Called by `cheetah
//! attach` and the tests. Parts: `handle` (what front ends hold), `orders` (what it is told beside requests),
//! `links` (the connections to each donor), `conn` (one of them), `open` (making one), `heads` (of the writes
//! that leave by it), `fetching` (of what is not here yet), `proving` (of what is sealed), `traffic` (how
//! much is on its way), `memory` (payloads, scratch memory, checksums); `overlay`, a view of one volume
//! through another; `encrypted`, the view of one that is; and `view`, what the two have in common.

mod conn;
mod encrypted;
mod fetching;
mod handle;
mod heads;
mod links;
mod memory;
mod open;
mod orders;
mod overlay;
mod proving;
mod traffic;
mod view;

pub use cheetah_core::ahead::Rule;
pub use cheetah_core::volume::{Caching, FetchError, Scope, Scrubbed, ScrubbedDonor};
pub use handle::{Completion, LocalTask, Op, Sink, StatusRun, Submission, Taker, VolumeError, VolumeHandle};
pub use open::probe;
pub use overlay::{More, OverlayError, read_table};

use crate::buffer::{Buffer, Pool};
use crate::cipher::VolumeKey;
use crate::stream::Transport;
use cheetah_core::api::{Amend, VolumeReport};
use cheetah_core::layout::{Scatter, unreadable_ranges};
use cheetah_core::limits::{BLOCK_BYTES, POLL_DEFAULT_US, REQUESTS_IN_FLIGHT_MAX};
use cheetah_core::map::{DonorId, LeaseToken, VolumeMap};
use cheetah_core::poll::Poll;
use cheetah_core::units::Time;
use cheetah_core::volume::{self as machine, At, Effect, Event, Fragment, Key, Mem};
use conn::{Conn, Part};
use encrypted::Opening;
use fetching::Ask;
use handle::{Shared, Unreadable};
use links::Link;
use memory::{Memory, Pending};
use orders::take_orders;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot};
use traffic::Traffic;

/// So many steps of a batch share one look at the clock: it costs as much as a small step, and a batch may be
/// of any length.
const STEPS_PER_LOOK: usize = 32;

/// What a look at a volume shows.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The donors that cannot be reached, and why.
    pub lost: Vec<(DonorId, String)>,
    /// What `status` shows of it.
    pub report: VolumeReport,
    /// What donors said of the checksums of what they hold.
    pub scrubbed: Scrubbed,
}

/// How to reach the donors, and as whom.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    pub map: VolumeMap,
    pub token: LeaseToken,
    pub read_only: bool,
    /// Nobody wrote before: every block is zero.
    pub fresh: bool,
    pub tuning: Tuning,
    pub transport: Transport,
    /// Of an encrypted volume; who repairs one needs none.
    pub key: Option<Arc<VolumeKey>>,
}

/// What changes speed and memory, and no answer.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Connections to each donor; unless given, as the link asks for.
    pub connections: Option<usize>,
    /// For so long the data thread looks for what comes next, before it sleeps.
    pub poll: Duration,
    pub caching: Caching,
}

impl Default for Tuning {
    fn default() -> Self {
        let poll = Duration::from_micros(POLL_DEFAULT_US.into());
        Tuning { connections: None, poll, caching: Caching::OFF }
    }
}

impl VolumeHandle {
    /// Starts the data thread and connects to the donors.
    ///
    /// # Errors
    /// No memory for the buffers, or no thread.
    pub fn start(options: VolumeOptions) -> std::io::Result<VolumeHandle> {
        // One is on its way at most.
        let (amendments, amendments_out) = mpsc::channel(1);
        let pool = Pool::new()?;
        pool.prefault();
        let VolumeOptions { map, read_only, .. } = &options;
        let shared = Shared::new(map.name.clone(), (*read_only, map.write_back), map.size, pool);
        let shared = Arc::new(Shared { amendments: Mutex::new(Some(amendments_out)), ..shared });
        let width = options.map.redundancy.width();
        let (caching, encrypted) = (options.tuning.caching, options.map.encrypted);
        let mut memory = Memory::new(REQUESTS_IN_FLIGHT_MAX, width, caching.bytes, encrypted)?;
        memory.opening = options.key.clone().map(|key| Opening::new(key, &options.map));
        if !options.read_only {
            // Beside a reader there may be a writer, of whose checksums nothing is known here.
            memory.know_groups(groups_known(&options.map), options.fresh);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let for_thread = shared.clone();
        std::thread::Builder::new().name("volume".into()).spawn(move || {
            crate::memory::declare_io_flusher();
            tokio::task::LocalSet::new().block_on(&runtime, run(for_thread, options, memory, amendments));
        })?;
        Ok(VolumeHandle(shared))
    }
}

struct Driver {
    machine: machine::Volume,
    effects: Vec<Effect>,
    memory: Memory,
    amendments: mpsc::Sender<Amend>,
    finished: bool,
    backlog: VecDeque<Submission>,
    links: BTreeMap<DonorId, Link>,
    to_flush: Vec<Rc<Conn>>,
    traffic: Rc<Traffic>,
    /// What fragments shall hold, to be noted once it is on its way to donors, and before any other effect.
    to_learn: Vec<(Fragment, u32, Mem, Scatter)>,
    /// Answers that need no donor; taken by `carry_out`, never inside a step.
    answered_here: Vec<Event>,
    wake_at: Option<Time>,
    wake_changed: Rc<Notify>,
    started: Instant,
    /// When the batch of events began that is being worked through. A look at the clock costs a hundredth of
    /// a small read.
    now: Time,
    token: LeaseToken,
    connections: Option<usize>,
    transport: Transport,
    poll: Poll,
    /// It is time to look rather than to sleep.
    look: Rc<Notify>,
    settling: Vec<oneshot::Sender<Vec<(DonorId, String)>>>,
    /// Where who fills the volume is asked; made when that is first needed.
    fetching: Option<mpsc::UnboundedSender<Ask>>,
    shared: Arc<Shared>,
    this: std::rc::Weak<RefCell<Driver>>,
}

async fn run(shared: Arc<Shared>, options: VolumeOptions, memory: Memory, amendments: mpsc::Sender<Amend>) {
    let driver = Rc::new_cyclic(|this| {
        RefCell::new(Driver {
            machine: machine::Volume::new(options.map, options.read_only, options.fresh)
                .with_cache(options.tuning.caching),
            effects: Vec::with_capacity(256),
            memory,
            amendments,
            finished: false,
            backlog: VecDeque::with_capacity(REQUESTS_IN_FLIGHT_MAX),
            links: BTreeMap::new(),
            to_flush: Vec::with_capacity(64),
            traffic: Rc::default(),
            to_learn: Vec::with_capacity(REQUESTS_IN_FLIGHT_MAX),
            answered_here: Vec::new(),
            wake_at: None,
            wake_changed: Rc::new(Notify::new()),
            started: Instant::now(),
            now: 0,
            token: options.token,
            connections: options.tuning.connections,
            transport: options.transport,
            poll: Poll::new(u64::try_from(options.tuning.poll.as_nanos()).unwrap_or(u64::MAX)),
            look: Rc::new(Notify::new()),
            settling: Vec::new(),
            fetching: None,
            shared: shared.clone(),
            this: this.clone(),
        })
    });
    tokio::task::spawn_local(keep_time(driver.clone()));
    tokio::task::spawn_local(look_again(driver.clone()));
    driver.borrow_mut().look_whether_sealed();
    driver.borrow().announce_unreadable();
    driver.borrow_mut().event(Event::Start);
    // As a task, for what wakes this future runs only after the runtime has asked for events: a system call
    // more for each batch.
    let closing =
        tokio::task::spawn_local(take_orders(driver.clone(), shared)).await.expect("it ends when told to");
    // Requests that are still on their way end by their deadline at the latest.
    while driver.borrow().busy() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    driver.borrow_mut().event(Event::Finish);
    while !driver.borrow().finished {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    driver.borrow_mut().hang_up();
    let _ = closing.send(());
}

async fn keep_time(driver: Rc<RefCell<Driver>>) {
    let changed = driver.borrow().wake_changed.clone();
    loop {
        let (at, started) = (driver.borrow().wake_at, driver.borrow().started);
        let Some(at) = at else {
            changed.notified().await;
            continue;
        };
        let until = tokio::time::Instant::from_std(started + Duration::from_nanos(at));
        tokio::select! {
            () = tokio::time::sleep_until(until) => {
                let mut driver = driver.borrow_mut();
                driver.wake_at = None;
                driver.event(Event::Wake);
            }
            () = changed.notified() => {}
        }
    }
}

/// While this task is ready the thread does not sleep, but asks for what is there between any two turns of
/// it.
async fn look_again(driver: Rc<RefCell<Driver>>) {
    let look = driver.borrow().look.clone();
    loop {
        look.notified().await;
        while driver.borrow_mut().makes_way_and_looks() {
            tokio::task::yield_now().await;
        }
    }
}

impl Driver {
    /// A batch of work came from outside.
    fn came(&mut self) {
        self.now = self.clock();
        self.poll.came(self.now);
        if self.poll.again(self.now) {
            self.look.notify_one();
        }
    }

    /// Whether to look again. If so, a donor or a tool that waits for this processor had it first: where all
    /// run on one, looking would keep the answer away.
    fn makes_way_and_looks(&mut self) -> bool {
        let now = self.clock();
        let again = self.poll.again(now);
        if again {
            rustix::thread::sched_yield();
            self.poll.offered(now, self.clock());
        }
        again
    }

    /// Before each step of a batch.
    fn keep_clock(&mut self, nth: usize) {
        if nth.is_multiple_of(STEPS_PER_LOOK) {
            self.now = self.clock();
        }
    }

    fn clock(&self) -> Time {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(Time::MAX)
    }

    fn busy(&self) -> bool {
        !self.memory.is_idle() || !self.backlog.is_empty()
    }

    fn lost(&self) -> Vec<(DonorId, String)> {
        self.machine.lost().map(|(id, why)| (id, why.to_owned())).collect()
    }

    /// Of an encrypted volume, before anybody hears of what changed that.
    fn announce_unreadable(&self) {
        let map = self.machine.map();
        if map.encrypted {
            let mut told = self.shared.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
            if told.runs != map.unreadable {
                *told = Unreadable { runs: map.unreadable.clone(), ranges: unreadable_ranges(map) };
            }
        }
    }

    fn announce_size(&self) {
        let size = self.machine.map().size;
        self.shared.size.store(size, Ordering::Release);
        self.shared.size_changes.send_if_modified(|last| std::mem::replace(last, size) != size);
    }

    /// One event and all that follows from it.
    fn event(&mut self, event: Event) {
        self.now = self.clock();
        self.step(event);
        self.carry_out();
    }

    /// One event; its effects wait for `carry_out`, so that a batch is sent together.
    fn step(&mut self, event: Event) {
        let mut effects = std::mem::take(&mut self.effects);
        let may_grow = matches!(event, Event::Map(_) | Event::Amended(Some(_)));
        self.machine.step(self.now, event, &mut effects);
        if may_grow {
            // Before anything of what is new is written.
            if !self.shared.read_only {
                self.memory.know_groups(groups_known(self.machine.map()), true);
            }
            self.announce_size();
            self.announce_unreadable();
            self.look_whether_sealed();
        }
        let mut rest = effects.drain(..).peekable();
        while let Some(effect) = rest.next() {
            if !matches!(effect, Effect::Send { .. } | Effect::Learn { .. } | Effect::WakeAt(_)) {
                self.learn();
            }
            match (&effect, rest.peek()) {
                (Effect::Copy { from, to, len }, Some(Effect::Complete { tag, result: Ok(()), .. }))
                    if from.mem == Mem::Cache
                        && self.is_whole_payload(*tag, *to, *len)
                        && self.is_plain() =>
                {
                    self.give(*tag, *from, *len);
                    rest.next();
                }
                _ => self.carry_out_one(effect),
            }
        }
        drop(rest);
        self.effects = effects;
    }

    /// What a request gets is nothing but bytes.
    fn is_plain(&self) -> bool {
        !self.machine.map().encrypted
    }

    fn is_whole_payload(&self, tag: u64, at: At, len: u32) -> bool {
        let payload = Mem::Payload(tag);
        at == At { mem: payload, offset: 0 } && self.memory.buffer(payload).len() == len as usize
    }

    /// Answers a read that the cache has in one piece, without copying it.
    fn give(&mut self, tag: u64, from: At, len: u32) {
        let Pending { token, sink, buffer } = self.memory.release(tag);
        let completion = Completion { token, result: Ok(()), buffer, status: Vec::new() };
        sink.give(completion, self.memory.bytes(from, len));
    }

    fn submit_all(&mut self, submissions: impl Iterator<Item = Submission>) {
        for (nth, submission) in submissions.enumerate() {
            self.keep_clock(nth);
            self.submit(submission);
        }
    }

    fn submit(&mut self, submission: Submission) {
        if !self.has_room_for_tools() || !self.backlog.is_empty() {
            return self.backlog.push_back(submission);
        }
        if submission.op == Op::Read {
            self.ask_for_proofs(submission.offset, submission.len);
        }
        self.submit_now(submission);
    }

    fn has_room_for_tools(&self) -> bool {
        self.machine.has_room()
            && (self.memory.proving.is_none() || self.memory.requests() < proving::TOOLS_MAX)
    }

    fn submit_now(&mut self, submission: Submission) {
        let Submission { op, offset, len, buffer, token, sink } = submission;
        // Through its view alone: ciphertext is nobody's data.
        let has_auths = |buffer: &Buffer| buffer.auths().len() as u64 * BLOCK_BYTES == buffer.len() as u64;
        if !self.is_plain() && !buffer.as_ref().is_none_or(has_auths) {
            let result = Err(VolumeError::Unsupported);
            return sink.complete(Completion { token, result, buffer, status: Vec::new() });
        }
        let tag = self.memory.admit(Pending { token, sink, buffer });
        self.step(Event::Submit { tag, request: machine::Request { op, offset, len } });
    }

    /// Takes in what waited for room, sends what the last steps queued and then computes its checksums, for
    /// which no donor need wait; answers who waits for the links.
    fn carry_out(&mut self) {
        loop {
            for (nth, event) in std::mem::take(&mut self.answered_here).into_iter().enumerate() {
                self.keep_clock(nth);
                self.step(event);
            }
            while !self.backlog.is_empty() && self.has_room_for_tools() {
                let Some(next) = self.backlog.pop_front() else { break };
                let rest = std::mem::take(&mut self.backlog);
                self.submit(next);
                self.backlog = rest;
            }
            if !self.prove() && self.answered_here.is_empty() {
                break;
            }
        }
        let merges_bytes_max = self.traffic.batch_merges_bytes_max();
        while let Some(conn) = self.to_flush.pop() {
            conn.flush(&self.memory, merges_bytes_max);
        }
        self.learn();
        if !self.settling.is_empty() && self.machine.is_settled() {
            let lost = self.lost();
            for waiting in self.settling.drain(..) {
                let _ = waiting.send(lost.clone());
            }
        }
    }

    pub(super) fn learn(&mut self) {
        for (fragment, copies, mem, scatter) in self.to_learn.drain(..) {
            self.memory.learn(fragment, copies, mem, scatter);
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Send { donor, part, op, address, mem, scatter, fragment, mark } => {
                self.send(donor, Part { part, op, address, mem, scatter, fragment, mark });
            }
            Effect::Abandon { donor, part } => {
                let conns = self.links.get(&donor).map(|link| &link.conns[..]).unwrap_or_default();
                let _ = conns.iter().any(|conn| conn.abandon(part))
                    || self.forget_waiting(|_, waiting| waiting == part);
            }
            Effect::Combine(combine) => self.memory.combine(&combine),
            Effect::Copy { from, to, len } => self.memory.copy(from, to, len),
            Effect::Zero { at, len } => self.memory.zero(at, len),
            Effect::Verify { job, fragment, at, len } => {
                self.verify(job, fragment, at, len);
            }
            Effect::Compare { job, a, b, len } => {
                let right = self.memory.is_equal(a, b, len);
                self.answered_here.push(Event::Verified { job, right });
            }
            Effect::Learn { fragment, copies, mem, scatter } => {
                self.to_learn.push((fragment, copies, mem, scatter));
            }
            Effect::Forget { fragment, len } => self.memory.forget(fragment, len),
            Effect::Amend(amend) => {
                if self.amendments.try_send(amend).is_err() {
                    self.answered_here.push(Event::Amended(None));
                }
            }
            Effect::Offer { offset, at, len } => {
                let (asked, done) = (&self.shared.forgets, &self.shared.forgotten);
                let forgotten = done.load(Ordering::Acquire);
                if let Some(take) = &*self.shared.taker()
                    && asked.load(Ordering::Acquire) == forgotten
                {
                    take(offset, self.memory.bytes(At { mem: Mem::Cache, offset: at }, len), forgotten);
                }
            }
            Effect::Finished => self.finished = true,
            Effect::Complete { tag, result, status } => {
                let Pending { token, sink, buffer } = self.memory.release(tag);
                if let Err(error) = result {
                    tracing::debug!(?error, "a request failed");
                }
                self.announce_unreadable();
                sink.complete(Completion { token, result, buffer, status });
            }
            Effect::WakeAt(at) => {
                if self.wake_at.is_none_or(|before| at < before) {
                    self.wake_at = Some(at);
                    self.wake_changed.notify_one();
                }
            }
            Effect::Fetch { request, offset, len } => self.fetch(request, offset, len),
            Effect::Open { donor, session } => self.open(donor, session),
            Effect::Probe { donor, session } => self.probe(donor, session),
            Effect::Close { donor, session } => {
                tracing::debug!(%donor, session, "link closed");
                self.close(donor);
            }
        }
    }

    fn fetch(&mut self, request: Key, offset: u64, len: u32) {
        let Some(filler) = self.machine.map().filler().cloned() else {
            let result = Err(FetchError::Away);
            return self.answered_here.push(Event::Fetched { request, result });
        };
        let Driver { fetching, this, transport, .. } = self;
        let asks = fetching.get_or_insert_with(|| fetching::start(this.clone(), transport.clone()));
        // Its task lives as long as this does.
        let _ = asks.send(Ask { request, offset, len, filler });
    }

    /// A batch of answers, and all that follows from it.
    fn answered(&mut self, events: &mut Vec<Event>) {
        if events.is_empty() {
            return;
        }
        self.came();
        for (nth, event) in events.drain(..).enumerate() {
            self.keep_clock(nth);
            self.step(event);
        }
        self.carry_out();
    }
}

/// Of so many groups it is known here what they hold. Of a volume that is larger than its memory donors alone
/// know: a table would grow with the source.
fn groups_known(map: &VolumeMap) -> usize {
    if map.layers() > 1 { 0 } else { map.groups.len() }
}
