//! The task that runs the coordinator's machine: one call after another, stored before it is answered.
//!
//! Owns the machine, its store and the callers that wait. Never: HTTP (`server`) or decisions (core). Key
//! invariant: when a commit fails the task ends, and nothing that was not stored was ever said to anyone; nor
//! is anything said once another coordinator may lead.

use super::journal::{BY, log};
use super::membership::Membership;
use super::signing::SigningKey;
use super::store::{Store, StoreError};
use super::{Clock, random};
use crate::clock::seconds_since_1970;
use crate::net::Endpoint;
use crate::stream::Transport;
use crate::volume::probe;
use cheetah_core::api::{Answer, Call, Manifest, Refusal, RefusalCode, SignedText};
use cheetah_core::coordinator::{CallId, Coordinator, Effect, Event, Found, NotGreeted};
use cheetah_core::custody::comment_of;
use cheetah_core::donor::greeting_name;
use cheetah_core::limits::{CONNECT_DEADLINE_NS, EXTENT_BYTES};
use cheetah_core::map::{DonorId, PoolId};
use cheetah_core::members::Caller;
use cheetah_core::units::{Time, show_time};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// Calls that share one commit.
const BATCH_MAX: usize = 256;

pub(super) type Outcome = Result<Answer, Refusal>;

pub(super) enum Message {
    Call {
        call: CallId,
        by: Option<String>,
        pool: Option<PoolId>,
        caller: Caller,
        request: Box<Call>,
        reply: oneshot::Sender<Outcome>,
    },
    Hangup {
        call: CallId,
    },
    Greeted {
        call: CallId,
        result: Result<(), NotGreeted>,
    },
}

/// Where calls go now: to a machine, or nowhere, and why.
pub(super) type Desk = Result<mpsc::UnboundedSender<Message>, Refusal>;

/// Where calls are put in. The queue is bounded by the connections: each has one call open at most.
#[derive(Clone, Debug)]
pub(super) struct Callers {
    desk: watch::Receiver<Desk>,
    next: Arc<std::sync::atomic::AtomicU64>,
    membership: Option<Arc<Membership>>,
}

/// Tells the machine when the caller goes away before its answer.
struct Waiting {
    call: CallId,
    messages: mpsc::UnboundedSender<Message>,
    answered: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.answered {
            // A machine that has ended needs no telling.
            let _ = self.messages.send(Message::Hangup { call: self.call });
        }
    }
}

impl Callers {
    pub(super) fn new(desk: watch::Receiver<Desk>, membership: Option<Arc<Membership>>) -> Self {
        Callers { desk, next: Arc::default(), membership }
    }

    /// Of a pool of members.
    pub(super) fn membership(&self) -> Option<&Arc<Membership>> {
        self.membership.as_ref()
    }

    /// `pool`: whom the caller means.
    pub(super) async fn call(&self, pool: Option<PoolId>, caller: Caller, request: Call) -> Outcome {
        let stopping = || Refusal {
            code: RefusalCode::Unavailable,
            message:
                "the coordinator stopped or lost the lead before it answered, so this may be done or not: \
                      look, and try again"
                    .to_owned(),
        };
        let messages = self.desk.borrow().clone()?;
        let call = CallId(self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let (reply, answer) = oneshot::channel();
        let by = BY.try_with(Clone::clone).ok();
        let message = Message::Call { call, by, pool, caller, request: Box::new(request), reply };
        messages.send(message).map_err(|_| stopping())?;
        let mut waiting = Waiting { call, messages, answered: false };
        let answer = answer.await;
        waiting.answered = true;
        answer.unwrap_or_else(|_| Err(stopping()))
    }
}

pub(super) struct Machine {
    coordinator: Coordinator,
    store: Store,
    clock: Clock,
    messages: mpsc::UnboundedReceiver<Message>,
    /// For what greets donors. Whether there are callers is not its matter.
    greeters: mpsc::WeakUnboundedSender<Message>,
    replies: BTreeMap<CallId, oneshot::Sender<Outcome>>,
    wake: Option<Time>,
    /// Donors that are asked whether they are there; they end with the machine.
    reaching: JoinSet<(DonorId, String, Found)>,
    /// Who made the calls of this batch that are noted.
    callers: BTreeMap<CallId, String>,
    /// How donors are greeted.
    transport: Transport,
    /// What the pool signs with.
    signing: Option<SigningKey>,
}

/// Of a pool whose state is older than its signatures.
fn no_key() -> Refusal {
    let message = "this pool has no key to sign with".to_owned();
    Refusal { code: RefusalCode::Unavailable, message }
}

/// The text of a manifest, for which the pool stands.
fn signed_manifest(manifest: &Manifest, key: &SigningKey) -> SignedText {
    let text = serde_json::to_string_pretty(manifest).expect("its fields have names") + "\n";
    let Manifest { volume, id, pool, sealed_at, .. } = manifest;
    let comment =
        format!("manifest of volume {volume} {id} of pool {pool}, sealed {}", show_time(*sealed_at));
    let (signature, key) = (key.sign(text.as_bytes(), &comment), key.public().to_string());
    SignedText { text, signature, key }
}

/// Whether anything listens at the address of a donor.
async fn reach(donor: DonorId, address: String) -> (DonorId, String, Found) {
    let limit = Duration::from_nanos(CONNECT_DEADLINE_NS);
    let found = match tokio::time::timeout(limit, TcpStream::connect(&address)).await {
        Ok(Ok(_)) => Found::Listener,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => Found::Nothing,
        Ok(Err(_)) | Err(_) => Found::Silence,
    };
    (donor, address, found)
}

impl Machine {
    pub(super) fn new(
        coordinator: Coordinator,
        store: Store,
        clock: Clock,
        transport: Transport,
    ) -> (Self, mpsc::UnboundedSender<Message>) {
        let (sender, messages) = mpsc::unbounded_channel();
        let (greeters, reaching) = (sender.downgrade(), JoinSet::new());
        let (replies, callers, wake) = (BTreeMap::new(), BTreeMap::new(), None);
        let signing = coordinator.signing().and_then(|record| SigningKey::of(record).ok());
        let machine = Machine {
            signing,
            coordinator,
            store,
            clock,
            messages,
            greeters,
            replies,
            wake,
            reaching,
            callers,
            transport,
        };
        (machine, sender)
    }

    pub(super) fn pool(&self) -> PoolId {
        self.coordinator.pool()
    }

    /// Stores what a new or restored machine has to store; before anything is served.
    pub(super) async fn start(&mut self) -> Result<(), StoreError> {
        let mut effects = Vec::new();
        self.coordinator.step(self.clock.now(), Event::Wake, &mut effects);
        self.carry_out(effects).await
    }

    /// Runs until `stop`, or until the store fails or another coordinator may lead.
    pub(super) async fn run(mut self, stop: &mut oneshot::Receiver<()>) -> Result<(), StoreError> {
        loop {
            let wake = self.wake.map(|at| self.clock.at(at));
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let mut effects = Vec::new();
            tokio::select! {
                // Sent, or its handle dropped: both mean stop.
                _ = &mut *stop => return Ok(()),
                why = self.store.deposed() => return Err(why),
                message = self.messages.recv() => match message {
                    Some(message) => self.take(message, &mut effects)?,
                    None => return Ok(()),
                },
                Some(Ok((donor, address, found))) = self.reaching.join_next() => {
                    if found == Found::Nothing {
                        tracing::warn!("nothing listens at {address} any more, where donor {donor} did");
                    }
                    let event = Event::Reached { donor, address, found };
                    self.step(event, &mut effects);
                }
                () = sleep => self.step(Event::Wake, &mut effects),
            }
            for _ in 1..BATCH_MAX {
                let Ok(message) = self.messages.try_recv() else { break };
                self.take(message, &mut effects)?;
            }
            self.carry_out(effects).await?;
        }
    }

    fn take(&mut self, message: Message, effects: &mut Vec<Effect>) -> Result<(), StoreError> {
        let mut named = None;
        let event = match message {
            Message::Call { call, by, pool, caller, request, reply } => {
                self.replies.insert(call, reply);
                named = by.map(|by| (call, by));
                let entropy =
                    random().map_err(|error| StoreError::Failed(format!("no random numbers: {error}")))?;
                Event::Call { call, entropy, pool, caller, request: *request }
            }
            Message::Greeted { call, result } => Event::Greeted { call, result },
            Message::Hangup { call } => {
                self.replies.remove(&call);
                Event::Hangup { call }
            }
        };
        let before = effects.len();
        self.coordinator.called_by(named.as_ref().map(|(_, by)| by.clone()));
        self.step(event, effects);
        // Most calls bring nothing about that is noted.
        if effects[before..].iter().any(|effect| matches!(effect, Effect::Note(_))) {
            self.callers.extend(named);
        }
        Ok(())
    }

    fn step(&mut self, event: Event, effects: &mut Vec<Effect>) {
        self.coordinator.tell_time_of_day(seconds_since_1970());
        self.coordinator.step(self.clock.now(), event, effects);
    }

    /// With the pool's signature, where the answer is something that is signed.
    fn signed(&self, mut answer: Outcome) -> Outcome {
        let Some(key) = &self.signing else {
            let unsigned = matches!(answer, Ok(Answer::Validated(_)));
            return if unsigned { Err(no_key()) } else { answer };
        };
        match &mut answer {
            Ok(Answer::Log(log)) => {
                let comment = comment_of(log.pool, log.volume, &log.head);
                log.signature = key.sign(log.text().as_bytes(), &comment);
                log.key = key.public().to_string();
                answer
            }
            Ok(Answer::Validated(validated)) => {
                let text = std::mem::take(&mut validated.text);
                let (signature, key) =
                    (key.sign(text.as_bytes(), &validated.comment), key.public().to_string());
                Ok(Answer::Signed(Box::new(SignedText { text, signature, key })))
            }
            Ok(Answer::Manifest(manifest)) => Ok(Answer::Signed(Box::new(signed_manifest(manifest, key)))),
            _ => answer,
        }
    }

    async fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), StoreError> {
        let stores = |effect: &Effect| matches!(effect, Effect::Store(_) | Effect::Forget(_));
        let effects = if effects.iter().any(stores) { self.store.commit(effects).await? } else { effects };
        self.store.check()?;
        // Each step names its next wake-up; none means that nothing is waited for.
        self.wake = None;
        for effect in effects {
            match effect {
                Effect::Reply { call, answer } => {
                    if let Some(reply) = self.replies.remove(&call) {
                        let answer = self.signed(answer);
                        // The caller may have hung up this moment.
                        let _ = reply.send(answer);
                    }
                }
                Effect::WakeAt(at) => self.wake = Some(at),
                Effect::Reach { donor, address } => {
                    self.reaching.spawn(reach(donor, address));
                }
                Effect::Note(note) => {
                    let by = note.call.and_then(|call| self.callers.get(&call));
                    log(&note, by.map(String::as_str));
                }
                Effect::Greet { call, donor, address, foreign_export, extents } => {
                    let (greeters, transport) = (self.greeters.clone(), self.transport.clone());
                    tokio::spawn(async move {
                        let result = greet(donor, &address, foreign_export, extents, &transport).await;
                        // A machine that has ended takes nobody in.
                        let _ = greeters.upgrade().map(|to| to.send(Message::Greeted { call, result }));
                    });
                }
                Effect::Store(_) | Effect::Forget(_) => {}
            }
        }
        self.callers.clear();
        Ok(())
    }
}

/// Whether the donor, or the server that lends its memory, answers at its address.
async fn greet(
    donor: DonorId,
    address: &str,
    foreign_export: Option<String>,
    extents: u32,
    transport: &Transport,
) -> Result<(), NotGreeted> {
    let address: SocketAddr = address.parse().map_err(|_| NotGreeted::NoAddress)?;
    let own = foreign_export.is_none();
    let export = foreign_export.unwrap_or_else(|| greeting_name(donor));
    let session = probe(Endpoint::Tcp(address), export, transport).await;
    let session = session.map_err(|failure| NotGreeted::Unanswered(failure.into_why()))?;
    let (has, lent) = (session.info.size, u64::from(extents) * EXTENT_BYTES);
    if own || has >= lent {
        return Ok(());
    }
    Err(NotGreeted::TooSmall { has, lent })
}
