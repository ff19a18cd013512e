//! Whether this coordinator answers, and from what: alone on its state, or elected among those that share
//! an etcd.
//!
//! Owns the machine while it leads, and what callers are told while it does not. Never: HTTP (`server`),
//! the election itself (`term`) or decisions (core). Key invariant: a machine begins with what is stored
//! after its term began, and no machine outlives its term. Tests: `tests/control.rs`,
//! `lab/tests/etcd.rs`.

use super::addresses::{reachable_ip, reached_at, url_of};
use super::error::CoordinateError;
use super::etcd::{Etcd, EtcdAt, EtcdError};
use super::machine::{Callers, Desk, Machine, Message};
use super::membership::Membership;
use super::options::{Access, CoordinateOptions, StateAt};
use super::signing::SigningKey;
use super::store::{Seen, Store, StoreError};
use super::store_etcd::EtcdStore;
use super::term::{Leader, Term, Vote, campaign, look};
use super::{Clock, random};
use crate::members::Authority;
use crate::stream::Transport;
use cheetah_core::api::{Refusal, RefusalCode};
use cheetah_core::coordinator::{AuthorityRecord, BadState, Coordinator, Key, Record};
use cheetah_core::limits::{CONTROL_DEADLINE_NS, ETCD_ATTEMPT_NS, LEADER_LOOK_NS};
use cheetah_core::map::PoolId;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// What a coordinator is to its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    Leads,
    /// It answers no call; the text says who does, or why nobody.
    StandsBy(String),
}

type Messages = mpsc::UnboundedSender<Message>;

pub(super) struct Service {
    pool: PoolId,
    /// There was none before.
    is_new: bool,
    desk: watch::Sender<Desk>,
    role: watch::Sender<Role>,
    kind: Kind,
    membership: Option<Arc<Membership>>,
}

enum Kind {
    Alone(Box<Machine>),
    Elected(Box<Election>),
}

/// A machine and what it may answer by.
struct Office {
    term: Arc<Term>,
    is_new: bool,
    machine: Machine,
    messages: Messages,
}

struct Election {
    etcd: Arc<Etcd>,
    us: Leader,
    options: CoordinateOptions,
    listens: SocketAddr,
    clock: Clock,
    office: Option<Office>,
    /// Known once a pool is.
    membership: Option<Arc<Membership>>,
}

impl Service {
    /// Restores what is stored; with an etcd, once it is known who leads.
    pub(super) async fn start(
        options: &CoordinateOptions,
        address: SocketAddr,
        clock: Clock,
    ) -> Result<Self, CoordinateError> {
        let state = &options.state;
        let (desk, role) = (watch::channel(Err(standby("it starts"))).0, watch::channel(Role::Leads).0);
        let (store, coordinator, is_new) = match state {
            StateAt::Memory => (Store::Memory, restore(None, clock), true),
            StateAt::Directory(directory) => {
                let failed = |error| match error {
                    StoreError::InUse => CoordinateError::StateInUse { directory: directory.clone() },
                    other => unusable(state, other),
                };
                let mut seen = Seen::look(directory).map_err(failed)?;
                let is_new = seen.records.is_none();
                let coordinator = restore(seen.records.take(), clock).map_err(failed)?;
                (Store::File(Arc::new(seen.open().map_err(failed)?)), Ok(coordinator), is_new)
            }
            StateAt::Etcd(at) => {
                let (election, pool) = Election::begin(at, options, address, clock, &role).await?;
                let is_new = election.office.as_ref().is_some_and(|office| office.is_new);
                if let Some(office) = &election.office {
                    let _ = desk.send_replace(Ok(office.messages.clone()));
                }
                let membership = election.membership.clone();
                let kind = Kind::Elected(Box::new(election));
                return Ok(Service { pool, is_new, desk, role, kind, membership });
            }
        };
        let mut coordinator = coordinator.map_err(|error| unusable(state, error))?;
        open_to(&mut coordinator, is_new, options)?;
        let membership = membership(coordinator.pool(), coordinator.authority(), options, address)?;
        coordinator.reached_at(reached_at(address));
        let transport = transport(membership.as_ref());
        let (mut machine, messages) = Machine::new(coordinator, store, clock, transport);
        machine.start().await?;
        let _ = desk.send_replace(Ok(messages));
        let (pool, kind) = (machine.pool(), Kind::Alone(Box::new(machine)));
        Ok(Service { pool, is_new, desk, role, kind, membership })
    }

    pub(super) fn pool(&self) -> PoolId {
        self.pool
    }

    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(super) fn callers(&self) -> Callers {
        Callers::new(self.desk.subscribe(), self.membership.clone())
    }

    pub(super) fn role(&self) -> watch::Receiver<Role> {
        self.role.subscribe()
    }

    /// Runs until `stop`, or until what is stored cannot be used.
    pub(super) async fn run(self, mut stop: oneshot::Receiver<()>) -> Result<(), CoordinateError> {
        match self.kind {
            Kind::Alone(machine) => Ok(machine.run(&mut stop).await?),
            Kind::Elected(election) => election.run(&self.desk, &self.role, &mut stop).await,
        }
    }
}

/// A pool is made one of members at its first start, and stays one. It has a key to sign with from the
/// first start on of a version that signs.
fn open_to(
    coordinator: &mut Coordinator,
    is_new: bool,
    options: &CoordinateOptions,
) -> Result<(), CoordinateError> {
    check_access(coordinator.authority(), is_new, options)?;
    if is_new && options.access == Access::Members {
        let made = Authority::make(coordinator.pool());
        coordinator.adopt(made.map_err(|why| unusable(&options.state, why))?);
    }
    if coordinator.signing().is_none() {
        let made = SigningKey::generate();
        coordinator.sign_with(made.map_err(|why| unusable(&options.state, why))?);
    }
    Ok(())
}

/// Whether a pool, as it is stored or new, is served as this coordinator was told to.
fn check_access(
    authority: Option<&AuthorityRecord>,
    is_new: bool,
    options: &CoordinateOptions,
) -> Result<(), CoordinateError> {
    let state = options.state.to_string();
    match (authority.is_some(), options.access) {
        (true, Access::Plaintext) => Err(CoordinateError::MembersOnly { state }),
        (false, Access::Members) if !is_new => Err(CoordinateError::InTheClear { state }),
        _ => Ok(()),
    }
}

fn membership(
    pool: PoolId,
    authority: Option<&AuthorityRecord>,
    options: &CoordinateOptions,
    listens: SocketAddr,
) -> Result<Option<Arc<Membership>>, CoordinateError> {
    let Some(authority) = authority else { return Ok(None) };
    let of = Membership::of(pool, authority, &reached_at(listens), options.certificates_last);
    of.map(Some).map_err(|why| unusable(&options.state, why))
}

fn transport(membership: Option<&Arc<Membership>>) -> Transport {
    match membership {
        Some(membership) => Transport::default().with_tls(Arc::clone(membership.credentials())),
        None => Transport::default(),
    }
}

fn unusable(state: &StateAt, why: impl std::fmt::Display) -> CoordinateError {
    CoordinateError::State { state: state.to_string(), why: why.to_string() }
}

fn restore(records: Option<Vec<Record>>, clock: Clock) -> Result<Coordinator, StoreError> {
    let Some(records) = records else {
        let pool = random().map_err(|error| StoreError::Failed(format!("no random numbers: {error}")))?;
        return Ok(Coordinator::new(PoolId(pool)));
    };
    Coordinator::restore(records, clock.now()).map_err(|BadState(why)| StoreError::Failed(why))
}

fn standby(why: &str) -> Refusal {
    Refusal { code: RefusalCode::Standby, message: format!("this coordinator stands by: {why}") }
}

fn soon(ns: u64) -> Instant {
    Instant::now() + Duration::from_nanos(ns)
}

impl Election {
    /// Leads, or knows who does and which pool it is.
    async fn begin(
        at: &EtcdAt,
        options: &CoordinateOptions,
        address: SocketAddr,
        clock: Clock,
        role: &watch::Sender<Role>,
    ) -> Result<(Self, PoolId), CoordinateError> {
        let members_only = options.access == Access::Members;
        if members_only && !at.keeps_secrets() {
            return Err(CoordinateError::EtcdInTheClear { at: at.to_string() });
        }
        let unreachable = |why: EtcdError| CoordinateError::Etcd { at: at.to_string(), why: why.to_string() };
        let etcd = Etcd::new(at.clone()).map_err(CoordinateError::EtcdCertificates)?;
        let etcd = Arc::new(etcd);
        let until = soon(CONTROL_DEADLINE_NS);
        // Others reach this machine at the address that etcd does.
        let mut reached = address;
        if address.ip().is_unspecified() {
            reached.set_ip(reachable_ip(etcd.local_ip(until).await.map_err(unreachable)?));
        }
        let url = url_of(reached, members_only);
        let us = Leader { url, process: random().map_err(CoordinateError::Random)? };
        let options = options.clone();
        let mut election =
            Election { etcd, us, options, listens: address, clock, office: None, membership: None };
        look(&election.etcd, &election.us, until).await.map_err(unreachable)?;
        loop {
            match election.vote(until).await {
                Ok(None) => {
                    let pool = election.office.as_ref().map(|office| office.machine.pool());
                    if let Some(pool) = pool {
                        return Ok((election, pool));
                    }
                }
                Ok(Some(why)) => {
                    // The leader may be about to store it.
                    if let Some((pool, authority)) = election.stored(until).await.map_err(unreachable)? {
                        check_access(authority.as_ref(), false, &election.options)?;
                        election.membership =
                            membership(pool, authority.as_ref(), &election.options, address)?;
                        role.send_replace(Role::StandsBy(why));
                        return Ok((election, pool));
                    }
                }
                Err(StoreError::Deposed(why)) if Instant::now() >= until => {
                    return Err(CoordinateError::Etcd { at: at.to_string(), why });
                }
                Err(StoreError::Deposed(_)) => {}
                Err(error) => return Err(unusable(&StateAt::Etcd(at.clone()), error)),
            }
            if Instant::now() >= until {
                let why = "another coordinator leads there, but has not stored its pool".to_owned();
                return Err(CoordinateError::Etcd { at: at.to_string(), why });
            }
            tokio::time::sleep(Duration::from_nanos(LEADER_LOOK_NS)).await;
        }
    }

    /// The pool that is stored, and its authority, which is stored no later.
    async fn stored(&self, until: Instant) -> Result<Option<(PoolId, Option<AuthorityRecord>)>, EtcdError> {
        let Some(Record::Pool(record)) = self.record(Key::Pool, until).await? else { return Ok(None) };
        let authority = match self.record(Key::Authority, until).await? {
            Some(Record::Authority(authority)) => Some(authority),
            _ => None,
        };
        Ok(Some((record.pool, authority)))
    }

    /// One that is not cut into parts.
    async fn record(&self, key: Key, until: Instant) -> Result<Option<Record>, EtcdError> {
        let found = self.etcd.get(&self.etcd.key(&format!("records/{key}#000000")), until).await?;
        Ok(found.and_then(|found| serde_json::from_slice(&found.value).ok()))
    }

    async fn run(
        mut self: Box<Self>,
        desk: &watch::Sender<Desk>,
        role: &watch::Sender<Role>,
        stop: &mut oneshot::Receiver<()>,
    ) -> Result<(), CoordinateError> {
        loop {
            if let Some(Office { term, machine, messages, .. }) = self.office.take() {
                let _ = desk.send_replace(Ok(messages));
                role.send_replace(Role::Leads);
                let ended = machine.run(stop).await;
                let why = match &ended {
                    Err(StoreError::Deposed(why)) => format!("it led until now ({why})"),
                    _ => "it stops".to_owned(),
                };
                tell(desk, role, &why);
                term.resign().await;
                match ended {
                    Err(StoreError::Deposed(_)) => {}
                    other => return Ok(other?),
                }
            }
            tokio::select! {
                _ = &mut *stop => return Ok(()),
                ready = self.stand_by(desk, role) => ready?,
            }
        }
    }

    /// Until this coordinator leads.
    async fn stand_by(
        &mut self,
        desk: &watch::Sender<Desk>,
        role: &watch::Sender<Role>,
    ) -> Result<(), CoordinateError> {
        loop {
            match self.vote(soon(2 * ETCD_ATTEMPT_NS)).await {
                Ok(None) => return Ok(()),
                Ok(Some(why)) | Err(StoreError::Deposed(why)) => tell(desk, role, &why),
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(Duration::from_nanos(LEADER_LOOK_NS)).await;
        }
    }

    /// Takes the lead if nobody has it: then there is an office, and no reason why not.
    async fn vote(&mut self, until: Instant) -> Result<Option<String>, StoreError> {
        let leader = match self.ask(until).await.map_err(|error| self.adrift(error))? {
            Vote::Taken(leader) => leader,
            Vote::Won(term) => {
                self.take_office(Arc::new(term)).await?;
                return Ok(None);
            }
        };
        if leader.process == self.us.process {
            return Ok(Some("its own last term is running out".to_owned()));
        }
        let (them, us) = (leader.url, &self.us.url);
        Ok(Some(format!("the one at {them} leads the pool; name both: --pool {them},{us}")))
    }

    async fn ask(&self, until: Instant) -> Result<Vote, EtcdError> {
        match look(&self.etcd, &self.us, until).await? {
            Some(leader) => Ok(Vote::Taken(leader)),
            None => campaign(&self.etcd, &self.us, until).await,
        }
    }

    /// What callers are told while etcd is of no help.
    fn adrift(&self, error: EtcdError) -> StoreError {
        let at = self.etcd.at();
        match error {
            EtcdError::Unreachable(why) => StoreError::Deposed(format!(
                "{at} does not answer ({why}), and without it nobody leads; attached volumes go on. See that etcd \
                 runs and that a majority of its members can reach each other"
            )),
            EtcdError::Refused(why) => StoreError::Failed(format!("{at} refuses: {why}")),
        }
    }

    async fn take_office(&mut self, term: Arc<Term>) -> Result<(), StoreError> {
        let serving = async {
            let store = EtcdStore::open(Arc::clone(&term)).await?;
            let records = store.load().await?;
            let is_new = records.is_none();
            let mut coordinator = restore(records, self.clock)?;
            let failed = |error: CoordinateError| StoreError::Failed(error.to_string());
            open_to(&mut coordinator, is_new, &self.options).map_err(failed)?;
            let membership = match &self.membership {
                Some(membership) => Some(Arc::clone(membership)),
                None => membership(coordinator.pool(), coordinator.authority(), &self.options, self.listens)
                    .map_err(failed)?,
            };
            coordinator.reached_at(reached_at(self.listens));
            let transport = transport(membership.as_ref());
            let (mut machine, messages) =
                Machine::new(coordinator, Store::Etcd(store), self.clock, transport);
            machine.start().await?;
            Ok((is_new, machine, messages, membership))
        };
        match serving.await {
            Ok((is_new, machine, messages, membership)) => {
                self.membership = membership;
                self.office = Some(Office { term, is_new, machine, messages });
                Ok(())
            }
            Err(error) => {
                term.resign().await;
                Err(error)
            }
        }
    }
}

/// Tells callers, and whoever watches, that this coordinator does not lead, and why.
fn tell(desk: &watch::Sender<Desk>, role: &watch::Sender<Role>, why: &str) {
    let _ = desk.send_replace(Err(standby(why)));
    let now = Role::StandsBy(why.to_owned());
    role.send_if_modified(|role| std::mem::replace(role, now.clone()) != now);
}
