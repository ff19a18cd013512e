//! Who leads, when several coordinators share one etcd: a key bound to a lease, and the clock that ends a
//! term.
//!
//! Owns the leader's key, its lease and the task that renews it. Never: records (`store_etcd`), or what a
//! coordinator does with its term (`service`). Key invariant: a term ends here, by a clock that also counts
//! while the machine sleeps, before etcd may give the lead to another. Tests: `lab/tests/etcd.rs`.

use super::etcd::{Etcd, EtcdError, Found, If, Op};
use super::store::StoreError;
use cheetah_core::limits::{LEADER_LEASE_NS, LEADER_MARGIN_NS, LEADER_RENEW_NS, SECOND_NS};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// What the leader's key holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leader {
    /// Where it is reached.
    pub(super) url: String,
    /// Of the process: two at one address are told apart.
    pub(super) process: u64,
}

#[derive(Debug)]
pub(super) enum Vote {
    Won(Term),
    /// By another, or by an earlier term of this process.
    Taken(Leader),
}

/// The right to lead. Dropping it ends the renewals, not the lease: `resign` does.
#[derive(Debug)]
pub(super) struct Term {
    etcd: Arc<Etcd>,
    lease: i64,
    /// At which the leader's key was made: conditions name it.
    created: i64,
    until: watch::Sender<Ends>,
    renewing: AbortHandle,
}

/// Why a term is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// It was not renewed in time.
    Late,
    /// etcd has given its lease up.
    GivenUp,
    Resigned,
    /// etcd could not be asked to renew it.
    Unheard(EtcdError),
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Over::Late => f.write_str("its time is over"),
            Over::GivenUp => f.write_str("etcd has given its lease up"),
            Over::Resigned => f.write_str("it gave the lead back"),
            Over::Unheard(error) => error.fmt(f),
        }
    }
}

impl From<Over> for StoreError {
    fn from(over: Over) -> StoreError {
        StoreError::Deposed(over.to_string())
    }
}

/// When a term ends, unless it is renewed, and why it was not.
#[derive(Clone, Debug)]
struct Ends {
    at: u64,
    why: Over,
}

/// Nanoseconds since the machine started, those asleep included.
fn uptime() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec) * SECOND_NS + part(now.tv_nsec)
}

fn in_time(ns: u64) -> Instant {
    Instant::now() + Duration::from_nanos(ns)
}

/// Where a lease that etcd granted for these seconds ends for us, who asked for it at `asked`.
fn end_of(asked: u64, seconds: u64) -> u64 {
    asked + (seconds * SECOND_NS).min(LEADER_LEASE_NS) - LEADER_MARGIN_NS
}

/// Who leads now. What is left of an earlier term of this process, which could not resign, is taken away.
pub(super) async fn look(etcd: &Etcd, us: &Leader, until: Instant) -> Result<Option<Leader>, EtcdError> {
    let Some(found) = etcd.get(&etcd.key("leader"), until).await? else { return Ok(None) };
    let leader = read(&found)?;
    if leader.process != us.process {
        return Ok(Some(leader));
    }
    // It runs out by itself otherwise.
    let _ = etcd.revoke(found.lease, until).await;
    Ok(None)
}

fn read(found: &Found) -> Result<Leader, EtcdError> {
    let foreign =
        |error| EtcdError::Refused(format!("the key {} is not a coordinator's: {error}", found.key));
    serde_json::from_slice(&found.value).map_err(foreign)
}

/// Takes the lead unless another has it.
pub(super) async fn campaign(etcd: &Arc<Etcd>, us: &Leader, until: Instant) -> Result<Vote, EtcdError> {
    let key = etcd.key("leader");
    let asked = uptime();
    let (lease, seconds) = etcd.grant(LEADER_LEASE_NS / SECOND_NS, until).await?;
    let value = serde_json::to_vec(us).map_err(|error| EtcdError::Refused(error.to_string()))?;
    let take = [Op::Put(key.clone(), value, lease)];
    let done = etcd.transact(&[If::Absent(key.clone())], &take, &[Op::Get(key.clone())], until).await?;
    let other = done.found.first();
    let created = match other {
        _ if done.succeeded => done.revision,
        // Our first try was carried out though we did not hear of it.
        Some(found) if found.lease == lease => found.created,
        other => {
            // It runs out by itself.
            let _ = etcd.revoke(lease, until).await;
            let gone = || EtcdError::Unreachable("the lead is changing hands".to_owned());
            return Ok(Vote::Taken(read(other.ok_or_else(gone)?)?));
        }
    };
    let ends = Ends { at: end_of(asked, seconds), why: Over::Late };
    let (sender, _) = watch::channel(ends);
    let renewing = tokio::spawn(renew(Arc::clone(etcd), lease, sender.clone())).abort_handle();
    Ok(Vote::Won(Term { etcd: Arc::clone(etcd), lease, created, until: sender, renewing }))
}

/// Renews until the lease is gone or the time is over.
async fn renew(etcd: Arc<Etcd>, lease: i64, until: watch::Sender<Ends>) {
    loop {
        tokio::time::sleep(Duration::from_nanos(LEADER_RENEW_NS)).await;
        let asked = uptime();
        let ends = until.borrow().at;
        let Some(left) = ends.checked_sub(asked) else { return };
        match etcd.keep_alive(lease, in_time(left)).await {
            Ok(0) => {
                let why = Over::GivenUp;
                until.send_replace(Ends { at: 0, why });
                return;
            }
            // Unless the term was over before the answer came: others have been told so.
            Ok(seconds) if uptime() < ends => {
                let why = Over::Late;
                until.send_replace(Ends { at: end_of(asked, seconds), why });
            }
            Ok(_) => return,
            // It was tried until the time was over.
            Err(error) => {
                until.send_modify(|ends| ends.why = Over::Unheard(error));
                return;
            }
        }
    }
}

impl Term {
    pub(super) fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    pub(super) fn created(&self) -> i64 {
        self.created
    }

    /// What has to hold for anything that the leader writes.
    pub(super) fn guard(&self) -> If {
        If::Created(self.etcd.key("leader"), self.created)
    }

    /// # Errors
    /// Why it is over.
    pub(super) fn check(&self) -> Result<(), Over> {
        let ends = self.until.borrow();
        if uptime() < ends.at { Ok(()) } else { Err(ends.why.clone()) }
    }

    /// The latest time for a request of this term.
    pub(super) fn deadline(&self) -> Instant {
        in_time(self.until.borrow().at.saturating_sub(uptime()))
    }

    /// Ends when the term does, and says why.
    pub(super) async fn ended(&self) -> Over {
        let mut changes = self.until.subscribe();
        loop {
            changes.mark_unchanged();
            if let Err(why) = self.check() {
                return why;
            }
            tokio::select! {
                () = tokio::time::sleep_until(self.deadline()) => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Gives the lead back, so that another has it at once; as far as etcd can be reached.
    pub(super) async fn resign(&self) {
        self.renewing.abort();
        self.until.send_replace(Ends { at: 0, why: Over::Resigned });
        // Its lease ends by itself otherwise.
        let _ = self.etcd.revoke(self.lease, in_time(SECOND_NS)).await;
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}
