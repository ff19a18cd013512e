//! The world: time, the queue of what happens next, and who lives in it.
//!
//! Owns: the clock (it jumps to the next event), the order of events, the digest and the trace. Never: what
//! an event does (`network`, `donor`, `client`, `coordinator`, `director`). Invariant: everything that
//! happens is an event of the queue, taken in order of time and, at one time, in the order it was put in;
//! every choice comes from the one stream of the seed. Tests: `tests/determinism.rs`.

use crate::Setup;
use crate::bugs::Bug;
use crate::client::{Client, Tick};
use crate::contents::Contents;
use crate::coordinator::CoordinatorHost;
use crate::director::Director;
use crate::donor::DonorHost;
use crate::load::Loads;
use crate::network::Network;
use crate::on_disk::DiskEv;
use crate::oracle::{Oracle, Order};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::stats::Stats;
use crate::verdict::Verdict;
use crate::wounds::Wounds;
use cheetah_core::api::Amend;
use cheetah_core::coordinator::Found;
use cheetah_core::map::DonorId;
use cheetah_core::units::Time;
use cheetah_core::volume::Key;
use std::collections::{BTreeMap, VecDeque};

/// Events of one run at most: a world that never comes to rest is a bug of its own.
const EVENTS_MAX: u64 = 3_000_000;

#[derive(Debug)]
pub(crate) enum Ev {
    Donor(usize, DonorEv),
    Client(usize, ClientEv),
    /// The front of the queue of this connection arrives at the donor.
    ToDonor(u64),
    ToClient(u64),
    /// The socket of this connection's client has room again.
    Drained(u64),
    /// The donor takes the next message of this connection.
    Serve(u64),
    /// The donor has stopped serving a connection that it dropped.
    Closed(u64),
    CallArrives(u64),
    CallAnswered(u64),
    CallTimeout(u64),
    Hangup(u64),
    /// The coordinator tries the address of a donor that joins by this call, in this slot.
    Greets(u64, DonorId, usize),
    CoordinatorWake(u64),
    CoordinatorStart,
    /// The coordinator connects to where a donor listened, to hear whether anything does.
    Reaches(DonorId, String),
    Reached(DonorId, String, Found),
    Fault,
    Admin,
    Replace(usize),
    DiskRecovers(usize),
    /// The power of the whole pool.
    PowerLost,
    SleepCounts,
    FirstDeath,
    StrangerStart,
    StrangerEnd,
    /// What follows in the scene of a writer and a donor that end together.
    Scene,
    Terminate(usize),
    /// Someone else wants what this client has.
    TakeOver(usize),
    Join,
}

#[derive(Debug)]
pub(crate) enum DonorEv {
    Wake(Time),
    Wipe(Vec<u32>),
    Disk(DiskEv),
}

#[derive(Debug)]
pub(crate) enum ClientEv {
    Wake(Time),
    Tick(Tick),
    /// A connection could not be made.
    Refused(u64),
    AckEarly(Key),
    TakeForGranted(Amend),
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) bug: Option<Bug>,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    queue: BTreeMap<(Time, u64), Ev>,
    queued: u64,
    /// The first place in the order at each time, of late.
    orders: VecDeque<(Time, Order)>,
    digest: u64,
    trace: Option<fn(&str)>,
    pub(crate) network: Network,
    pub(crate) donors: Vec<DonorHost>,
    pub(crate) clients: Vec<Client>,
    pub(crate) coordinator: CoordinatorHost,
    pub(crate) director: Director,
    pub(crate) oracle: Oracle,
    pub(crate) loads: Loads,
    pub(crate) contents: Contents,
    pub(crate) verdict: Verdict,
    pub(crate) wounds: Wounds,
    pub(crate) stats: Stats,
    pub(crate) failure: Option<String>,
}

macro_rules! say {
    ($world:expr, $($text:tt)*) => {
        if $world.is_traced() {
            $world.say(&format!($($text)*));
        }
    };
}
pub(crate) use say;

impl World {
    pub(crate) fn new(seed: u64, setup: Setup, trace: Option<fn(&str)>) -> World {
        let mut rng = Rng::new(seed);
        let plan = Plan::pick(&mut rng, setup);
        let coordinator = CoordinatorHost::new(&mut rng);
        World {
            director: Director::new(&plan),
            plan,
            bug: setup.bug,
            rng,
            now: 0,
            queue: BTreeMap::new(),
            queued: 0,
            orders: VecDeque::new(),
            digest: 0xcbf2_9ce4_8422_2325,
            trace,
            network: Network::default(),
            donors: Vec::new(),
            clients: Vec::new(),
            coordinator,
            oracle: Oracle::new(),
            loads: Loads::default(),
            contents: Contents::default(),
            verdict: Verdict::default(),
            wounds: Wounds::default(),
            stats: Stats::default(),
            failure: None,
        }
    }

    /// Runs until `until`, or until something is wrong.
    pub(crate) fn run_until(&mut self, until: Time) {
        while self.failure.is_none() {
            let Some(((at, _), _)) = self.queue.first_key_value() else { break };
            if *at > until {
                break;
            }
            let Some(((at, order), event)) = self.queue.pop_first() else { break };
            self.now = at;
            self.fold(at);
            self.fold(order);
            self.stats.events += 1;
            if self.stats.events > EVENTS_MAX {
                self.fail(format!("the world did not come to rest in {EVENTS_MAX} events"));
                break;
            }
            self.dispatch(event);
        }
        self.now = self.now.max(until);
    }

    fn dispatch(&mut self, event: Ev) {
        match event {
            Ev::Donor(d, event) => self.donor_event(d, event),
            Ev::Client(c, event) => self.client_event(c, event),
            Ev::ToDonor(conn) => self.arrive_at_donor(conn),
            Ev::ToClient(conn) => self.arrive_at_client(conn),
            Ev::Drained(conn) => self.drained(conn),
            Ev::Serve(conn) => self.serve(conn),
            Ev::Closed(conn) => self.conn_closed(conn),
            Ev::CallArrives(call) => self.call_arrives(call),
            Ev::CallAnswered(call) => self.call_answered(call),
            Ev::CallTimeout(call) => self.call_timed_out(call),
            Ev::Hangup(call) => self.hangup_arrives(call),
            Ev::Greets(call, donor, slot) => self.greet_arrives(call, donor, slot),
            Ev::CoordinatorWake(at) => self.coordinator_wake(at),
            Ev::CoordinatorStart => self.coordinator_start(),
            Ev::Reaches(donor, address) => self.reaches(donor, address),
            Ev::Reached(donor, address, found) => self.reached(donor, address, found),
            Ev::Fault => self.fault_tick(),
            Ev::Admin => self.admin_tick(),
            Ev::Replace(slot) => self.replace_donor(slot),
            Ev::DiskRecovers(d) => self.disk_recovers(d),
            Ev::PowerLost => self.lose_all_power(),
            Ev::Scene => self.scene_tick(),
            Ev::FirstDeath => self.look_at_deaths(),
            Ev::SleepCounts => self.sleep_counts(),
            Ev::StrangerStart => self.stranger_starts(),
            Ev::StrangerEnd => self.stranger_goes(),
            Ev::Terminate(d) => self.terminate_donor(d),
            Ev::TakeOver(c) => self.take_over_from(c),
            Ev::Join => self.new_donor(),
        }
    }

    pub(crate) fn at(&mut self, time: Time, event: Ev) {
        self.queued += 1;
        self.queue.insert((time.max(self.now), self.queued), event);
    }

    pub(crate) fn after(&mut self, delay: u64, event: Ev) {
        self.at(self.now + delay, event);
    }

    /// A place in the order of everything; each is given once.
    pub(crate) fn order(&mut self) -> Order {
        self.queued += 1;
        if self.orders.back().is_none_or(|(at, _)| *at < self.now) {
            self.orders.push_back((self.now, self.queued));
        }
        self.queued
    }

    /// The first place in the order that was given at this time or later; nobody asks about an earlier time
    /// again.
    pub(crate) fn order_since(&mut self, time: Time) -> Order {
        while self.orders.front().is_some_and(|(at, _)| *at < time) {
            self.orders.pop_front();
        }
        self.orders.front().map_or(self.queued, |(_, order)| *order)
    }

    /// FNV-1a, a word at a time.
    pub(crate) fn fold(&mut self, word: u64) {
        for byte in word.to_le_bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn fail(&mut self, what: impl std::fmt::Display) {
        say!(self, "VIOLATION: {what}");
        let seconds = self.now as f64 / 1e9;
        self.failure.get_or_insert_with(|| format!("at {seconds:.6} s: {what}"));
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    pub(crate) fn say(&self, text: &str) {
        if let Some(trace) = self.trace {
            trace(&format!("{:>12.6} {text}", self.now as f64 / 1e9));
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        self.stats.count(what);
    }
}
