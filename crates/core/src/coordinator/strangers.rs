//! What is meant for another pool: calls that are not carried out, and donors that are not taken in.
//!
//! Owns the refusal, and who was turned away lately, for `status`. Never: a change for anybody's sake; a pool
//! that came to another's address (other state, none at all) must not touch what was lent to that one.
//! Nothing of it is stored. Tests: `tests/coordinator_strangers.rs`.

use super::{Coordinator, refuse};
use crate::api::{Join, Refusal, RefusalCode, Stranger};
use crate::limits::{STRANGER_SHOWN_NS, STRANGERS_MAX};
use crate::map::{DonorId, PoolId};
use crate::units::Time;
use std::collections::BTreeMap;

/// With the time at which each asked last.
#[derive(Clone, Debug, Default)]
pub(super) struct Strangers(BTreeMap<DonorId, (Time, Stranger)>);

impl Strangers {
    fn note(&mut self, now: Time, join: &Join, pool: PoolId) {
        self.0.retain(|_, (at, _)| now < *at + STRANGER_SHOWN_NS);
        if self.0.len() < STRANGERS_MAX || self.0.contains_key(&join.donor) {
            let Join { name, host, address, .. } = join.clone();
            self.0.insert(join.donor, (now, Stranger { name, host, address, pool }));
        }
    }

    pub(super) fn shown(&self, now: Time) -> Vec<Stranger> {
        let asks = self.0.values().filter(|(at, _)| now < *at + STRANGER_SHOWN_NS);
        asks.map(|(_, stranger)| stranger.clone()).collect()
    }
}

impl Coordinator {
    /// Whether a call is meant for this pool, as far as its caller said.
    pub(super) fn check_pool(&self, meant: Option<PoolId>) -> Result<(), Refusal> {
        let Some(other) = meant.filter(|meant| *meant != self.pool) else { return Ok(()) };
        let message = format!(
            "this is pool {}, and the call is meant for pool {other}: another coordinator listens here now, or the same \
             with another --state",
            self.pool
        );
        Err(refuse(RefusalCode::OtherPool, message))
    }

    /// A donor that holds memory of another pool keeps it.
    pub(super) fn check_joins_here(&mut self, now: Time, join: &Join) -> Result<(), Refusal> {
        let Some(other) = join.pool.filter(|pool| *pool != self.pool) else { return Ok(()) };
        self.strangers.note(now, join, other);
        let message = format!(
            "this is pool {}, and donor '{}' on {} holds memory of pool {other}, which it keeps until the coordinator of \
             that pool is back; to lend here instead, end it and start it again, which wipes what it holds",
            self.pool, join.name, join.host
        );
        Err(refuse(RefusalCode::OtherPool, message))
    }
}
