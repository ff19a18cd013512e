//! Who is connected to this process as a member, so that one who is revoked does not stay.
//!
//! Owns who is here, by connection. Never: who is a member, which the coordinator says when the lease is
//! renewed (`client::keep`); or a connection, which its server ends once `Guest::is_expelled` is over.
//! Invariant: who is expelled comes in no more. Tests: below; `lab/tests/members.rs`.

use cheetah_core::map::MemberId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

#[derive(Debug, Default)]
struct Known {
    /// How many connections each has, and what ends them.
    here: BTreeMap<MemberId, (usize, watch::Sender<bool>)>,
    /// No identity is given twice, so they stay strangers.
    strangers: BTreeSet<MemberId>,
}

/// All who are connected.
#[derive(Clone, Debug, Default)]
pub struct Guests(Arc<Mutex<Known>>);

/// A connection of one of them, until it is dropped.
#[derive(Debug)]
pub struct Guest {
    member: MemberId,
    guests: Guests,
    expelled: watch::Receiver<bool>,
}

impl Guests {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None: it was expelled before.
    pub(crate) fn enter(&self, member: MemberId) -> Option<Guest> {
        let Known { here, strangers } = &mut *self.known();
        if strangers.contains(&member) {
            return None;
        }
        let (count, expel) = here.entry(member).or_insert_with(|| (0, watch::Sender::new(false)));
        *count += 1;
        Some(Guest { member, guests: self.clone(), expelled: expel.subscribe() })
    }

    /// Each once, ascending.
    #[must_use]
    pub fn list(&self) -> Vec<MemberId> {
        self.known().here.keys().copied().collect()
    }

    /// These are no members any more.
    pub fn expel(&self, strangers: &[MemberId]) {
        let mut known = self.known();
        known.strangers.extend(strangers);
        for (_, expel) in strangers.iter().filter_map(|member| known.here.remove(member)) {
            expel.send_replace(true);
        }
    }
}

impl Guest {
    /// Waits until it is to go.
    pub async fn is_expelled(&mut self) {
        // The sender goes with the last connection, so it is there.
        let _ = self.expelled.wait_for(|expelled| *expelled).await;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let here = &mut self.guests.known().here;
        if let Some((count, _)) = here.get_mut(&self.member) {
            *count -= 1;
            if *count == 0 {
                here.remove(&self.member);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_expelled_goes_with_all_connections_and_does_not_come_again() {
        let guests = Guests::default();
        let (eve, bob) = (MemberId(1), MemberId(2));
        let enter = |member| guests.enter(member).expect("a member");
        let (mut one, mut other, third) = (enter(eve), enter(eve), enter(bob));
        assert_eq!(guests.list(), [eve, bob]);
        drop(third);
        assert_eq!(guests.list(), [eve]);
        guests.expel(&[eve]);
        one.is_expelled().await;
        other.is_expelled().await;
        assert!(guests.list().is_empty() && guests.enter(eve).is_none());
        drop((one, other));
        assert_eq!(guests.enter(bob).map(|bob| bob.member), Some(bob));
    }
}
