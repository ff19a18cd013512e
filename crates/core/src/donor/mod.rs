//! The donor: which volume each extent of its memory belongs to, and which connections may touch it.
//!
//! Owns the duties that the coordinator gave, the connections that are open, and the order in which things
//! change hands. Never: memory or sockets; the driver (`rim`, `sim`) has those. Key invariants: a connection
//! of an older session, or of a lease that ended, is closed before anyone newer is admitted to that volume;
//! an extent is wiped after the last such connection closed, and reaches another volume only after that; a
//! revision is confirmed once all of this is done. Tests: `tests/donor_*.rs`.
//!
//! The driver's part: it opens nothing without `Admit`; after `Drop` it stops serving the connection and
//! sends `Closed` once no request of it can touch memory any more; it sends `Closed` for each admitted
//! connection that ends, and none for a refused one. A `Sync` or `Join` replaces one that is under way.
//!
//! Files: `access` (what the data path checks), `dirty` (what was written lately), `ledger` (which writes
//! that was), `pool` (talking to the coordinator), `owner` (how much is lent).

mod access;
mod dirty;
mod ledger;
pub mod owner;
mod pool;

pub use access::{Access, Backed, Denied, Grant, OpenError, export_name, greeting_name};
pub use dirty::DirtyMap;
pub use ledger::{Before, Ledger, ListedWrite, Ticket, WriteMark};
pub use pool::{Draining, LeftWith};

use crate::api::{Duties, Lineage, Refusal};
use crate::disk::Held;
use crate::limits::LAYERS_MAX;
use crate::map::{DonorId, Incarnation, LeaseToken, MemberId, PoolId, VolumeId};
use crate::units::Time;
use pool::Pool;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One connection to the donor's NBD listener; the driver never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// What the driver tells the donor.
#[derive(Clone, Debug)]
pub enum Event {
    /// The beginning, before any other event.
    Started,
    /// The answer to `Join`: the donor is in.
    Joined {
        /// The pool that answered. A donor that holds memory of another one stays out.
        pool: PoolId,
    },
    /// The answer to `Join`: the donor is not in.
    JoinRefused {
        /// Its code decides: ask again, keep what is held for the own pool, or end.
        refusal: Refusal,
    },
    /// The answer to a sync.
    Duties(Duties),
    /// A sync was refused: the coordinator does not know this donor (`Gone`), or is another pool's
    /// (`OtherPool`).
    Forgotten,
    /// The coordinator did not answer, or could not.
    Unreachable,
    /// A connection asks for this export.
    Opened {
        /// A number that was not used before.
        conn: ConnId,
        /// The name as the client spelt it.
        export: String,
        /// Who asks, as its certificate says; None in the clear.
        member: Option<MemberId>,
    },
    /// An admitted connection has ended, and nothing of it touches memory any more.
    Closed {
        /// As `Opened` named it.
        conn: ConnId,
    },
    /// The answer to `Wipe`.
    Wiped {
        /// Extents that are absent now.
        extents: Vec<u32>,
    },
    /// Told to go once what it holds has been moved to others; `bounded`: in `DRAIN_NS` at the latest.
    Leave {
        /// False: it has all the time that it needs.
        bounded: bool,
    },
    /// Told to go at once: what it holds is lost.
    Terminate,
    /// How many extents the machine's owner can spare has changed.
    Offered {
        /// More than the donor lends counts as that.
        extents: u32,
    },
    /// The time of `WakeAt` has come.
    Wake,
}

/// What the driver does for the donor, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Join as this donor; `pool`, `revision`: see `api::Join`.
    Join {
        /// The donor's own identity.
        donor: DonorId,
        /// None: the donor holds no memory, and any pool may take it.
        pool: Option<PoolId>,
        /// The newest revision of that pool that is carried out in full; 0 without one.
        revision: u64,
        /// Of a disk: which run of its donor this is.
        lineage: Option<Box<Lineage>>,
    },
    /// `pool`: whom it is meant for.
    Sync {
        /// The donor's own identity.
        donor: DonorId,
        /// Another pool's coordinator refuses the call.
        pool: Option<PoolId>,
        /// The newest revision that is carried out in full.
        revision: u64,
        /// Open connections, and those that wait to be admitted or to close.
        connections: u32,
        /// The donor wants to go once what it holds is moved.
        leaving: bool,
        /// The donor goes now, with whatever it holds.
        goodbye: bool,
        /// Extents that its owner can spare now, held ones included.
        offered: u32,
        /// Of a disk: which run of its donor this is.
        incarnation: Option<Incarnation>,
    },
    /// What the data path checks from now on.
    Publish(Arc<Access>),
    /// Serve the connection.
    Admit {
        /// As `Opened` named it.
        conn: ConnId,
        /// What it may do. [`Access::check`] has the last word on each request.
        grant: Grant,
    },
    /// Refuse the connection its export. It is forgotten: no `Closed` follows.
    Refuse {
        /// As `Opened` named it.
        conn: ConnId,
        /// The reason, which the client is shown.
        reason: OpenError,
    },
    /// Stop serving the connection, and send `Closed` once nothing of it can touch memory.
    Drop {
        /// As `Opened` named it.
        conn: ConnId,
    },
    /// Fill with absence, then say `Wiped`.
    Wipe {
        /// Extents that [`Access`] gives to nobody until `Wiped`.
        extents: Vec<u32>,
    },
    /// Send `Wake` at this time at the latest. Of several times the earliest counts.
    WakeAt(Time),
    /// The process ends: nobody is connected, and nothing is held.
    Exit(Exit),
}

/// Why a donor ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The donor was told to go: at once, or after all was moved.
    Terminated,
    /// `cheetah leave`.
    Dismissed,
    /// The pool took the donor out, or refused it while it held nothing.
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Conn {
    export: String,
    member: Option<MemberId>,
    grant: Grant,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// For older connections of the volume to close.
    Waiting,
    Open,
    Dropping,
}

/// One donor: its pool, its duties, its connections.
#[derive(Clone, Debug)]
pub struct Donor {
    extents: u32,
    /// How many of them the machine's owner can spare.
    offered: u32,
    pool: Pool,
    duties: Duties,
    /// Volumes of the duties that were once said to be sealed.
    sealed: BTreeSet<VolumeId>,
    /// The last revision that is carried out in full.
    confirmed: u64,
    /// Extents that may hold a volume's data: those in `access`.
    owners: BTreeMap<u32, VolumeId>,
    /// Extents that a volume gave up, not wiped yet.
    unwiped: BTreeMap<u32, VolumeId>,
    wiping: BTreeSet<u32>,
    access: Arc<Access>,
    conns: BTreeMap<ConnId, Conn>,
    /// The newest session of each lease.
    sessions: BTreeMap<LeaseToken, u64>,
    /// It holds what it held before it was started, and has not heard yet who may have it.
    returned: bool,
}

impl Donor {
    /// `identity`: random, fresh for each start of the process.
    #[must_use]
    pub fn new(identity: DonorId, extents: u32) -> Self {
        Donor {
            extents,
            offered: extents,
            pool: Pool::new(identity),
            duties: Duties::default(),
            sealed: BTreeSet::new(),
            confirmed: 0,
            owners: BTreeMap::new(),
            unwiped: BTreeMap::new(),
            wiping: BTreeSet::new(),
            access: Arc::new(Access::closed(identity, extents)),
            conns: BTreeMap::new(),
            sessions: BTreeMap::new(),
            returned: false,
        }
    }

    /// A donor of a disk that was one before: nobody is let in until the pool has said who may have what it
    /// holds. `extents`: as many as it had. `incarnation`: random, fresh for each start of the process.
    #[must_use]
    pub fn returned(identity: DonorId, extents: u32, held: Held, incarnation: Incarnation) -> Self {
        let mut donor = Donor::new(identity, extents);
        let Held { pool, confirmed, owners, unwiped, sealed, before } = held;
        (donor.pool.pool, donor.pool.incarnation, donor.pool.before) = (pool, Some(incarnation), before);
        donor.duties.revision = confirmed;
        (donor.confirmed, donor.owners, donor.unwiped, donor.sealed) = (confirmed, owners, unwiped, sealed);
        donor.returned = true;
        donor
    }

    /// What has to be found again if it is to be the same donor after a stop.
    #[must_use]
    pub fn held(&self) -> Held {
        // Nobody is connected to these any more, whosever they were.
        let wiping = self.wiping.iter().map(|extent| (*extent, VolumeId(0)));
        Held {
            pool: self.pool.pool,
            confirmed: self.confirmed,
            owners: self.owners.clone(),
            unwiped: self.unwiped.iter().map(|(extent, volume)| (*extent, *volume)).chain(wiping).collect(),
            sealed: self.sealed.clone(),
            before: self.pool.before.clone(),
        }
    }

    /// Takes one event, and adds what follows to `effects`.
    ///
    /// The driver calls it: with `Event::Started` first, then with whatever happens, one event at a time.
    /// `now` is in nanoseconds from any beginning; one before that of the last step counts as that. The
    /// driver carries out the effects in their order, all of them before the next step; what an effect asks
    /// for comes back as an event of its own. Nothing is kept of `effects` between steps.
    pub fn step(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        let now = self.awake(now);
        match event {
            Event::Started => {
                effects.push(Effect::Publish(Arc::clone(&self.access)));
                self.ask(now, effects);
            }
            Event::Joined { pool } => self.joined(now, pool, effects),
            Event::JoinRefused { refusal } => self.join_refused(now, refusal, effects),
            Event::Duties(duties) => self.heard(now, duties, effects),
            Event::Forgotten => self.forgotten(now),
            Event::Unreachable => self.unreachable(now),
            Event::Opened { conn, export, member } => self.opened(conn, export, member, effects),
            Event::Closed { conn } => {
                self.conns.remove(&conn);
            }
            Event::Wiped { extents } => extents.iter().for_each(|extent| {
                self.wiping.remove(extent);
            }),
            Event::Leave { bounded } => self.drain(now, bounded, effects),
            Event::Terminate => self.leave(now, Exit::Terminated, effects),
            Event::Offered { extents } => self.offer(now, extents, effects),
            Event::Wake => {}
        }
        self.drain_advance(now, effects);
        self.advance(now, effects);
        self.run_timers(now, effects);
    }

    /// Takes on new duties: publishes what can be had at once, and drops who has lost what it had.
    fn take_on(&mut self, duties: Duties, effects: &mut Vec<Effect>) {
        self.duties = duties;
        let is_held = |id: &VolumeId| self.duties.volumes.iter().any(|duty| duty.volume == *id);
        self.sealed.retain(is_held);
        self.sealed.extend(self.duties.volumes.iter().filter(|duty| duty.sealed).map(|duty| duty.volume));
        let wanted = self.wanted();
        let mut shrunk = BTreeSet::new();
        for (extent, volume) in std::mem::take(&mut self.owners) {
            if wanted.get(&extent) == Some(&volume) {
                self.owners.insert(extent, volume);
            } else {
                self.unwiped.insert(extent, volume);
                shrunk.insert(volume);
            }
        }
        self.publish(effects);
        let access = Arc::clone(&self.access);
        self.sessions.retain(|token, _| access.has_token(*token));
        for (id, conn) in &mut self.conns {
            let Grant { token, volume, .. } = conn.grant;
            let stays = access.has_lease(token, volume) && !shrunk.contains(&volume);
            if conn.state == State::Open && !stays {
                conn.state = State::Dropping;
                effects.push(Effect::Drop { conn: *id });
            }
        }
    }

    /// Which volume each extent shall belong to. An extent that is not ours, or named twice, is passed over.
    fn wanted(&self) -> BTreeMap<u32, VolumeId> {
        let mut wanted = BTreeMap::new();
        for duty in &self.duties.volumes {
            for extent in duty.extents.iter().filter(|extent| **extent < self.extents) {
                wanted.entry(*extent).or_insert(duty.volume);
            }
        }
        wanted
    }

    /// Publishes the duties, without the extents that are still to be wiped.
    fn publish(&mut self, effects: &mut Vec<Effect>) {
        let mut owners = self.wanted();
        owners.retain(|extent, _| !self.unwiped.contains_key(extent) && !self.wiping.contains(extent));
        let mut access = Access::closed(self.identity(), self.extents);
        let mut seen = BTreeSet::new();
        for duty in self.duties.volumes.iter().filter(|duty| seen.insert(duty.volume)) {
            let ours = |extent: &u32| owners.get(extent) == Some(&duty.volume);
            let extents = duty.extents.iter().copied().filter(ours).collect::<BTreeSet<u32>>();
            let readers = duty.readers.iter().map(|token| (*token, false));
            // A coordinator whose state is older than the seal does not undo it.
            let writable = duty.repairs || !self.sealed.contains(&duty.volume);
            let leases = readers.chain(duty.writer.map(|token| (token, writable)));
            let leases = leases.map(|(token, writable)| (token, writable, duty.members.get(&token).copied()));
            let backed = duty.backed.then_some(Backed { layers: duty.layers.clamp(1, LAYERS_MAX) });
            let kind = access::Kind { backed, encrypted: duty.encrypted, write_back: duty.write_back };
            access.add_volume(duty.volume, (&duty.name, kind), extents.into_iter(), leases);
        }
        self.owners = owners;
        if access != *self.access {
            self.access = Arc::new(access);
            effects.push(Effect::Publish(Arc::clone(&self.access)));
        }
    }

    fn opened(&mut self, id: ConnId, export: String, member: Option<MemberId>, effects: &mut Vec<Effect>) {
        let grant = match self.access.open(&export, member) {
            _ if self.pool.is_leaving() => Err(OpenError::Leaving),
            Ok(grant) if self.is_superseded(&grant) => Err(OpenError::Superseded),
            other => other,
        };
        let grant = match grant {
            Ok(grant) => grant,
            Err(reason) => return effects.push(Effect::Refuse { conn: id, reason }),
        };
        self.sessions.insert(grant.token, grant.session);
        for (other, conn) in &mut self.conns {
            let older = conn.grant.token == grant.token && conn.grant.session < grant.session;
            if older && conn.state == State::Open {
                conn.state = State::Dropping;
                effects.push(Effect::Drop { conn: *other });
            }
        }
        self.conns.insert(id, Conn { export, member, grant, state: State::Waiting });
    }

    fn is_superseded(&self, grant: &Grant) -> bool {
        self.sessions.get(&grant.token).is_some_and(|newest| grant.session < *newest)
    }

    /// Does whatever no longer has to wait: wiping, admitting, confirming, ending.
    fn advance(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let dropping = self.conns.values().filter(|conn| conn.state == State::Dropping);
        let closing: BTreeSet<VolumeId> = dropping.map(|conn| conn.grant.volume).collect();
        let ready = |volume: &VolumeId| !closing.contains(volume);
        let extents: Vec<u32> =
            self.unwiped.iter().filter(|(_, volume)| ready(volume)).map(|(e, _)| *e).collect();
        if !extents.is_empty() {
            extents.iter().for_each(|extent| {
                self.unwiped.remove(extent);
            });
            self.wiping.extend(&extents);
            effects.push(Effect::Wipe { extents });
        }
        self.admit(&closing, effects);
        let done = closing.is_empty() && self.is_clean();
        if done && self.confirmed != self.duties.revision {
            self.publish(effects);
            self.confirmed = self.duties.revision;
        }
        self.pool_advance(now, effects);
    }

    fn is_clean(&self) -> bool {
        self.unwiped.is_empty() && self.wiping.is_empty()
    }

    fn admit(&mut self, closing: &BTreeSet<VolumeId>, effects: &mut Vec<Effect>) {
        let waits = |conn: &Conn| conn.state == State::Waiting;
        let waiting: Vec<ConnId> =
            self.conns.iter().filter(|(_, conn)| waits(conn)).map(|(id, _)| *id).collect();
        for id in waiting {
            let Some(conn) = self.conns.get(&id) else { continue };
            // Asked again: much may have changed while it waited.
            let grant = match self.access.open(&conn.export, conn.member) {
                _ if self.pool.is_leaving() => Err(OpenError::Leaving),
                Ok(grant) if self.is_superseded(&grant) => Err(OpenError::Superseded),
                Ok(grant) if grant.volume != conn.grant.volume => Err(OpenError::Unknown),
                other => other,
            };
            match grant {
                Ok(grant) if closing.contains(&grant.volume) => {}
                Ok(grant) => {
                    effects.push(Effect::Admit { conn: id, grant });
                    self.conns.entry(id).and_modify(|conn| (conn.grant, conn.state) = (grant, State::Open));
                }
                Err(reason) => {
                    effects.push(Effect::Refuse { conn: id, reason });
                    self.conns.remove(&id);
                }
            }
        }
    }

    /// # Panics
    /// When the donor contradicts itself: a bug.
    pub fn check_invariants(&self) {
        for (extent, volume) in self.owners.iter().filter(|_| !self.returned) {
            assert_eq!(self.access.owner(*extent), Some(*volume), "what is owned is published");
        }
        for extent in 0..self.extents {
            let owned = self.access.owner(extent).is_some();
            let places = [owned, self.unwiped.contains_key(&extent), self.wiping.contains(&extent)];
            assert!(
                places.iter().filter(|place| **place).count() <= 1,
                "extent {extent} is in one place: {places:?}"
            );
        }
        for conn in self.conns.values().filter(|conn| conn.state == State::Open) {
            let Grant { token, volume, session, .. } = conn.grant;
            assert!(self.access.has_lease(token, volume), "who is open has a lease");
            assert_eq!(self.sessions.get(&token), Some(&session), "who is open is of the newest session");
        }
        for conn in self.conns.values().filter(|conn| conn.state == State::Waiting) {
            let closing =
                |other: &Conn| other.state == State::Dropping && other.grant.volume == conn.grant.volume;
            assert!(self.conns.values().any(closing), "who waits waits for someone");
        }
        assert!(self.confirmed <= self.duties.revision);
    }
}
