//! Addresses are tried, not believed: a donor that joins is greeted at the address it gave, and taken in when
//! it answers there.
//!
//! Owns joins that wait for that, and which addresses need not be tried. Never: connections; the driver makes
//! one, through NBD's greeting, to an export that only this donor has (`donor::greeting_name`), or to the one
//! that another's server lends. Invariants: nothing of a join is stored or believed before its greeting was
//! answered; and what was checked before is checked again then. Tests: `tests/coordinator_greet.rs`.

use super::confirm::Held;
use super::{CallId, Coordinator, Effect, Outcome, door, refuse};
use crate::api::{Answer, Call, Join, Refusal, RefusalCode};
use crate::limits::GREETING_NS;
use crate::members::{Caller, may_be_clear};
use crate::seed::Seed;
use crate::units::{Time, show_bytes};
use std::fmt;
use std::net::SocketAddr;

/// A join that waits, with the entropy of its call.
#[derive(Clone, Debug)]
pub(super) struct Joining {
    join: Join,
    seed: u64,
    caller: Caller,
}

/// Why a donor is not to be had at the address that it gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotGreeted {
    /// It is no address.
    NoAddress,
    /// Nobody answered there as that donor; in the driver's words.
    Unanswered(String),
    /// Another's server, with less than is lent.
    TooSmall {
        /// Bytes that its export has.
        has: u64,
        /// Bytes that the donor lends.
        lent: u64,
    },
}

impl fmt::Display for NotGreeted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotGreeted::NoAddress => f.write_str("that is no address"),
            NotGreeted::Unanswered(why) => f.write_str(why),
            NotGreeted::TooSmall { has, lent } => {
                write!(f, "it has {}, and {} are lent", show_bytes(*has), show_bytes(*lent))
            }
        }
    }
}

impl std::error::Error for NotGreeted {}

impl Coordinator {
    pub(super) fn join(
        &mut self,
        now: Time,
        call: CallId,
        seed: &Seed,
        join: Join,
    ) -> Result<Outcome, Refusal> {
        let join = door::join(join);
        self.check_joining(now, &join)?;
        self.greets.push(Effect::Greet {
            call,
            donor: join.donor,
            address: join.address.clone(),
            foreign_export: join.foreign_export.clone(),
            extents: join.extents,
        });
        self.joining.insert(call, Joining { join, seed: seed.0, caller: self.caller });
        Ok(Outcome::Hold(Held::Join { call }, now + GREETING_NS))
    }

    /// The greeting was answered as that donor, or why not.
    pub(super) fn greeted(&mut self, now: Time, call: CallId, result: Result<(), NotGreeted>) {
        let Some(Joining { join, seed, caller }) = self.joining.remove(&call) else { return };
        self.release(call);
        (self.calling, self.caller) = (Some(call), caller);
        let answer = match result {
            // It may have been revoked meanwhile.
            Ok(()) => self
                .check_caller(&Call::Join(join.clone()))
                .and_then(|()| self.check_joining(now, &join))
                .and_then(|()| self.take_in(now, &mut Seed(seed), join)),
            Err(why) => Err(self.out_of_reach(&join, &why.to_string())),
        };
        self.replies.push((call, answer.map(Answer::Joined)));
    }

    /// Its time is over.
    pub(super) fn ungreeted(&mut self, call: CallId) -> Result<Answer, Refusal> {
        match self.joining.remove(&call) {
            Some(joining) => Err(self.out_of_reach(&joining.join, "no answer in time")),
            None => Err(refuse(RefusalCode::Unavailable, "the donor asked again meanwhile")),
        }
    }

    fn out_of_reach(&self, join: &Join, why: &str) -> Refusal {
        let Join { name, address, .. } = join;
        let lent = match join.foreign_export {
            Some(_) => "lend it by an address that other machines reach",
            None => "leave --listen out, or name with it an address of that machine that others reach",
        };
        let message = format!(
            "donor '{name}' gave {address}, and cannot be reached there from the coordinator's machine ({why}): {lent}, and see \
             that no firewall is in the way"
        );
        refuse(RefusalCode::Unreachable, message)
    }

    /// Loopback is nobody else's, where there may be others; what is public is nothing for the clear.
    pub(super) fn check_address(&self, join: &Join) -> Result<(), Refusal> {
        let at: Option<SocketAddr> = join.address.parse().ok();
        if self.authority().is_none() && at.is_some_and(|at| !may_be_clear(at.ip())) {
            let message = format!(
                "donor '{}' gave {}, and this pool is in the clear, for loopback and private addresses alone: name one with \
                 --listen, or make a pool of members (`cheetah coordinate` without --plaintext)",
                join.name, join.address
            );
            return Err(refuse(RefusalCode::Forbidden, message));
        }
        let loopback = at.is_some_and(|at| at.ip().is_loopback());
        let beyond = self.addresses.iter().find(|address| !address.ip().is_loopback());
        if let Some(beyond) = beyond.filter(|_| loopback) {
            let message = format!(
                "donor '{}' gave {}, which no other machine reaches, and this pool has others (its coordinator is at \
                 {beyond}): leave --listen out, or name an address of that machine, like --listen {}:0",
                join.name,
                join.address,
                beyond.ip()
            );
            return Err(refuse(RefusalCode::Unreachable, message));
        }
        let lent = |other: &&super::Donor| {
            let record = &other.record;
            other.alive && record.donor != join.donor && record.address == join.address
        };
        let same = self.donors.values().filter(lent).find(|other| {
            join.foreign_export.is_some() && other.record.foreign_export == join.foreign_export
        });
        if let Some(other) = same {
            let message = format!(
                "what {} lends is lent by donor '{}' already; lend another export, or end that donor first",
                join.address, other.record.name
            );
            return Err(refuse(RefusalCode::Conflict, message));
        }
        Ok(())
    }
}
