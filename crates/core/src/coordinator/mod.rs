//! The coordinator: who is in the pool, which volume lies where, who may write.
//!
//! Owns the donors, volumes and leases of one pool, and answers `api::Call`s. Never: I/O, or a place in
//! the data path. A driver steps it with calls and the time, commits its `Store` and `Forget` effects
//! durably, and only then sends the replies that follow them. Key invariants: an extent belongs to one
//! volume at most; one writer per volume; and an answer that lets a client reach a donor is held until
//! that donor has confirmed that it knows (`confirm`). Called by `rim::control` and `sim`. Tests:
//! `tests/coordinator_*.rs`.
//!
//! Files: `donors` (join, sync, silence), `lineage` (a disk and its copies), `doubt` (donors that may have
//! ended), `drain` (leaving), `volumes` (create, grow, delete), `leases` (attach, renew, detach),
//! `members` (who may call), `keys` (of encrypted volumes, wrapped), `amend` (what a writer found out),
//! `repair` (new homes for fragments), `retire` (extents that slots have left), `content` (what volumes
//! hold), `open` (sources behind them), `seal` (volumes that nobody writes any more), `overlay` (what lies
//! over those), `rehearsal` (what the loss of one more host would cost), `tend` (volumes at rest), `blame`
//! (wrong blocks by donor), `strangers` (donors of other pools), `asleep` (time in which nobody listened),
//! `greet` (addresses that are tried), `confirm` (answers held back), `status`, `notes` (what happened),
//! `record` (what is stored), `extents` (free ones), `wants` (donors that a volume may lie on), `signing`
//! (the pool's key), `custody` (what is put down of volumes), `door` (what callers say, bounded),
//! `invariants`.

mod amend;
mod asleep;
mod blame;
mod confirm;
mod content;
mod custody;
mod donors;
mod door;
mod doubt;
mod drain;
mod extents;
mod greet;
mod invariants;
mod keys;
mod leases;
mod lineage;
mod members;
mod notes;
mod open;
mod overlay;
mod record;
mod rehearsal;
mod repair;
mod retire;
mod seal;
mod signing;
mod status;
mod strangers;
mod tend;
mod volumes;
mod wants;

pub use custody::CustodyRecord;
pub use greet::NotGreeted;
pub use keys::Keys;
pub use members::{AuthorityRecord, MemberRecord, TokenRecord};
pub use notes::Note;
pub use record::{BadState, ContentRecord, DonorRecord, Key, LeaseRecord, PoolRecord, Record, VolumeRecord};
pub use retire::Retired;
pub use signing::SigningRecord;

use crate::api::{Answer, Call, Refusal, RefusalCode};
use crate::content::UnixSeconds;
use crate::map::{DonorId, DonorSecret, LeaseToken, PoolId, VolumeId};
use crate::members::Caller;
use crate::seed::Seed;
use crate::units::Time;
use confirm::Held;
use custody::Logs;
use donors::Donor;
use greet::Joining;
use leases::Lease;
use members::Members;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use strangers::Strangers;
use volumes::Volume;

/// Names one call while it is open; the driver never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// What the driver tells the coordinator.
#[derive(Clone, Debug)]
pub enum Event {
    /// `entropy`: 64 truly random bits, fresh for each call; identities and tokens come from it. `pool`:
    /// whom the caller means, if it knows; another one's call is not carried out.
    Call {
        /// The call, which a `Reply` answers in this step or a later one.
        call: CallId,
        /// The seed of all that is drawn for the call.
        entropy: u64,
        /// None: the caller takes whichever pool answers.
        pool: Option<PoolId>,
        /// Who asks, as far as that is proved.
        caller: Caller,
        /// The question.
        request: Call,
    },
    /// What came of a `Greet`: the donor answered there, or why it is not to be had.
    Greeted {
        /// As `Greet` named it; a call that is not open any more is passed over.
        call: CallId,
        /// The refusal of the join repeats what is wrong.
        result: Result<(), NotGreeted>,
    },
    /// The caller of a held call went away.
    Hangup {
        /// The call; it gets no reply any more.
        call: CallId,
    },
    /// What a `Reach` found.
    Reached {
        /// As `Reach` named it.
        donor: DonorId,
        /// As `Reach` named it. Where the donor has another by now, `Nothing` says nothing.
        address: String,
        /// `Nothing` counts only while the donor has no sync open.
        found: Found,
    },
    /// The time that `WakeAt` named has come. Also the first event after `restore`.
    Wake,
}

/// Whether anything listens at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Something took the connection, the donor or another.
    Listener,
    /// Its host says that nothing listens there.
    Nothing,
    /// No answer: the host is gone, or the way to it.
    Silence,
}

/// What the driver does for the coordinator, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Keep this record, in place of an earlier one of the same key.
    Store(Record),
    /// Remove the record of this key, if there is one.
    Forget(Key),
    /// Send only after the `Store`s and `Forget`s before it are durable.
    Reply {
        /// The call. Each gets one reply, in this step or a later one, unless it hangs up.
        call: CallId,
        /// A refusal is sent with the HTTP status of its code.
        answer: Result<Answer, Refusal>,
    },
    /// Connect to the donor's address, have it answer to `greeting_name` (another's NBD server: offer
    /// that export, with as many extents), and say `Greeted`.
    Greet {
        /// The join that waits for the answer.
        call: CallId,
        /// The donor that has to answer.
        donor: DonorId,
        /// `IP:PORT`, as the join gave it.
        address: String,
        /// None: a Cheetah donor. Otherwise the export that a foreign server has to offer.
        foreign_export: Option<String>,
        /// Extents of 64 MiB; a foreign export has to be as large at least.
        extents: u32,
    },
    /// Step with `Wake` at this time, which replaces an earlier one. A step without it waits for nothing.
    WakeAt(Time),
    /// Connect to the donor, for nothing but to hear whether anything listens there; answer with
    /// `Reached`.
    Reach {
        /// The donor that may have ended.
        donor: DonorId,
        /// `IP:PORT`, as the donor gave it.
        address: String,
    },
    /// For the record of what happened, once what was stored before it is durable.
    Note(Note),
}

/// What becomes of a call: answered now, or held until a time at most.
#[expect(clippy::large_enum_variant, reason = "one at a time, and it is moved once")]
enum Outcome {
    Answer(Answer),
    Hold(Held, Time),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Held(CallId),
    Donor(DonorId),
    /// It may have ended.
    Doubted(DonorId),
    Lease(LeaseToken),
    Dismissed(DonorId),
    /// Donors may be homes for fragments again.
    Plan,
    /// The volume may need somebody to tend it now.
    Tend(VolumeId),
}

/// The control plane of one pool.
#[derive(Clone, Debug)]
pub struct Coordinator {
    pool: PoolId,
    /// Grows with each change of what any donor shall hold.
    revision: u64,
    joins: u64,
    donors: BTreeMap<DonorId, Donor>,
    /// Donors taken out that have not heard of it yet, and when to stop waiting for that.
    dismissed: BTreeMap<DonorId, (Time, Option<DonorSecret>)>,
    strangers: Strangers,
    /// Where this coordinator is reached, as far as its driver said.
    addresses: Vec<SocketAddr>,
    /// Joins whose donors are being greeted.
    joining: BTreeMap<CallId, Joining>,
    volumes: BTreeMap<VolumeId, Volume>,
    names: BTreeMap<String, VolumeId>,
    leases: BTreeMap<LeaseToken, Lease>,
    held: BTreeMap<CallId, (Held, Time)>,
    timers: BTreeSet<(Time, Timer)>,
    /// Volumes that may have slots that want a new home.
    wanting: BTreeSet<VolumeId>,
    /// As the driver said last.
    time_of_day: UnixSeconds,
    /// When `Timer::Plan` is set for.
    plan_at: Option<Time>,
    /// Of the last step.
    now: Time,
    /// The call that the step is about.
    calling: Option<CallId>,
    /// Who makes it.
    caller: Caller,
    members: Members,
    signing: Option<SigningRecord>,
    custody: Logs,
    /// Who makes the call, by its own word.
    by: Option<String>,
    notes: Vec<Note>,
    // What the current step still has to do at its end; empty between steps.
    /// Volumes of which somebody must look whether they need tending.
    unsure: BTreeSet<VolumeId>,
    /// Donors that may hold nothing any more.
    emptied: BTreeSet<DonorId>,
    dirty: BTreeSet<Key>,
    woken: BTreeSet<DonorId>,
    reaches: Vec<(DonorId, String)>,
    unsettled: bool,
    replan: bool,
    replies: Vec<(CallId, Result<Answer, Refusal>)>,
    greets: Vec<Effect>,
}

impl Coordinator {
    /// A pool that nobody has joined yet. Its first step stores it.
    #[must_use]
    pub fn new(pool: PoolId) -> Self {
        Coordinator {
            pool,
            revision: 1,
            joins: 0,
            donors: BTreeMap::new(),
            dismissed: BTreeMap::new(),
            strangers: Strangers::default(),
            addresses: Vec::new(),
            joining: BTreeMap::new(),
            volumes: BTreeMap::new(),
            names: BTreeMap::new(),
            leases: BTreeMap::new(),
            held: BTreeMap::new(),
            timers: BTreeSet::new(),
            wanting: BTreeSet::new(),
            time_of_day: 0,
            plan_at: None,
            now: 0,
            calling: None,
            caller: Caller::Anyone,
            members: Members::default(),
            signing: None,
            custody: Logs::default(),
            by: None,
            notes: Vec::new(),
            unsure: BTreeSet::new(),
            emptied: BTreeSet::new(),
            dirty: BTreeSet::from([Key::Pool]),
            woken: BTreeSet::new(),
            reaches: Vec::new(),
            unsettled: false,
            replan: true,
            replies: Vec::new(),
            greets: Vec::new(),
        }
    }

    /// Where this coordinator is reached, those first that other machines reach. Said by the driver
    /// before the first call.
    pub fn reached_at(&mut self, addresses: Vec<SocketAddr>) {
        self.addresses = addresses;
    }

    /// The pool's identity, for the life of its state.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Takes one event, and adds what follows to `effects`.
    ///
    /// The driver calls it with whatever happens, one event at a time, in any order. `now` is in
    /// nanoseconds from any beginning; one before that of the last step counts as that. The driver
    /// carries out the effects in their order, all of them before the next step; what an effect asks for
    /// comes back as an event of its own. Nothing is kept of `effects` between steps.
    pub fn step(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        let now = self.wake(now);
        // What time brings about is nobody's call.
        let by = self.by.take();
        self.expire(now);
        match event {
            Event::Call { call, entropy, pool, caller, request } => {
                (self.calling, self.caller, self.by) = (Some(call), caller, by);
                let meant = self.check_pool(pool).and_then(|()| self.check_caller(&request));
                match meant.and_then(|()| self.answer(now, call, &mut Seed(entropy), request)) {
                    Ok(Outcome::Answer(answer)) => self.replies.push((call, Ok(answer))),
                    Ok(Outcome::Hold(held, until)) => self.hold(call, held, until),
                    Err(refusal) => self.replies.push((call, Err(refusal))),
                }
            }
            Event::Greeted { call, result } => self.greeted(now, call, result),
            Event::Hangup { call } => self.hang_up(call),
            Event::Reached { donor, address, found } => self.reached(now, donor, &address, found),
            Event::Wake => {}
        }
        (self.calling, self.caller, self.by) = (None, Caller::Anyone, None);
        self.finish(now, effects);
    }

    fn answer(
        &mut self,
        now: Time,
        call: CallId,
        seed: &mut Seed,
        request: Call,
    ) -> Result<Outcome, Refusal> {
        match request {
            Call::Pool => Ok(Outcome::Answer(Answer::Pool(self.pool_status(now)))),
            Call::Join(join) => self.join(now, call, seed, join),
            Call::Sync { donor, sync } => self.sync(now, call, donor, &sync),
            Call::Leave { donor, force } => self.leave(now, &donor, force),
            Call::Create(create) => self.create(now, seed, create),
            Call::Show { name } => self.show(&name),
            Call::Manifest { name } => {
                self.manifest(&name).map(|manifest| Outcome::Answer(Answer::Manifest(Box::new(manifest))))
            }
            Call::Validation(validation) => self.validation(&validation),
            Call::Grow { name, size } => self.grow(now, seed, &name, size),
            Call::Member { member } => self.show_member(member),
            Call::GrantKey { name, grant } => self.grant_key(&name, grant),
            Call::Delete { name } => self.delete(now, &name),
            Call::Attach { name, attach } => self.attach(now, seed, &name, attach),
            Call::Renew { name, token, renew } => self.renew(now, &name, token, renew),
            Call::Amend { name, token, amend } => self.amend(now, &name, token, amend),
            Call::Tell { name, token, tell } => self.tell(&name, token, tell),
            Call::Detach { name, token } => self.detach(&name, token),
            Call::Log { name } => self.log(&name),
            Call::Say { name, said } => self.say(&name, said),
            Call::NewToken(new) => self.new_token(new),
            Call::Tokens => Ok(self.tokens()),
            Call::RevokeToken { token } => self.revoke_token(token),
            Call::Enrol { enrol, hash } => self.enrol(seed, enrol, &hash),
            Call::Recertify(recertify) => self.recertify(&recertify),
            Call::Members => Ok(self.list_members()),
            Call::RevokeMember { member } => self.revoke_member(now, member),
        }
    }

    fn expire(&mut self, now: Time) {
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Held(call) => self.answer_late(call),
                Timer::Donor(donor) => self.donor_timer(now, donor),
                Timer::Doubted(donor) => self.doubt_again(donor, at),
                Timer::Lease(token) => self.lease_expired(token),
                Timer::Dismissed(donor) => {
                    self.dismissed.remove(&donor);
                }
                Timer::Plan => (self.plan_at, self.replan) = (None, true),
                Timer::Tend(volume) => {
                    self.unsure.insert(volume);
                }
            }
        }
    }

    /// Turns what the step left to do into effects: what is stored first, replies after it.
    fn finish(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for donor in std::mem::take(&mut self.emptied) {
            self.tidy_donor(now, donor);
        }
        self.plan(now);
        self.appoint(now);
        self.settle();
        for donor in std::mem::take(&mut self.woken) {
            self.answer_poll(donor);
        }
        for key in std::mem::take(&mut self.dirty) {
            effects.push(self.record(key).map_or(Effect::Forget(key), Effect::Store));
        }
        effects.extend(self.notes.drain(..).map(Effect::Note));
        self.note_given();
        let reaches = self.reaches.drain(..);
        effects.extend(reaches.map(|(donor, address)| Effect::Reach { donor, address }));
        effects.append(&mut self.greets);
        effects.extend(self.replies.drain(..).map(|(call, answer)| Effect::Reply { call, answer }));
        if let Some((at, _)) = self.timers.first() {
            effects.push(Effect::WakeAt((*at).max(now)));
        }
    }

    fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.dirty.insert(Key::Pool);
        self.unsettled = true;
        self.revision
    }

    /// The donors of the volume shall hear that something about it changed.
    fn touch_volume(&mut self, id: VolumeId) {
        let revision = self.next_revision();
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        volume.revision = revision;
        self.unsure.insert(id);
        for donor in volume.map.routes.keys() {
            if let Some(donor) = self.donors.get_mut(donor) {
                donor.revision = revision;
            }
            self.woken.insert(*donor);
        }
    }

    fn volume_named(&self, name: &str) -> Result<VolumeId, Refusal> {
        self.names.get(name).copied().ok_or_else(|| {
            let message =
                format!("there is no volume '{name}' in this pool; `cheetah list` shows those there are");
            refuse(RefusalCode::NotFound, message)
        })
    }
}

fn refuse(code: RefusalCode, message: impl Into<String>) -> Refusal {
    Refusal { code, message: message.into() }
}

/// Both ends say which side is the older one.
fn check_version(theirs: u32, who: &str) -> Result<(), Refusal> {
    let ours = crate::api::API_VERSION;
    let upgrade = match theirs.cmp(&ours) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => format!("upgrade cheetah on {who}"),
        std::cmp::Ordering::Greater => "upgrade cheetah on the coordinator's machine".to_owned(),
    };
    let message = format!("{who} speaks API version {theirs} and the coordinator version {ours}: {upgrade}");
    Err(refuse(RefusalCode::Version, message))
}
