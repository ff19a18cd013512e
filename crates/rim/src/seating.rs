//! Who has a place at a listener, beside the sockets themselves: a place is held by its connection, which
//! hears when it has to go.
//!
//! Owns the clock and the lock around `core::seats`, which decides. Never: a decision.
//! Called by `control::server`, `donor`, `filler`, and exports. Tests: `core::seats`; with real processes
//! `lab/tests/hostile.rs`.

use crate::descriptors;
use cheetah_core::limits::{DATA_CONNECTION_DESCRIPTORS, DESCRIPTORS_SPARE};
use cheetah_core::seats::{Arrival, SeatId, Seats};
use cheetah_core::units::Time;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// For so many connections of the data path descriptors are left, of those that a process may have.
pub(crate) fn places_of_data(allowed: u64) -> u64 {
    allowed.saturating_sub(DESCRIPTORS_SPARE) / DATA_CONNECTION_DESCRIPTORS
}

/// The places of one listener.
#[derive(Clone, Debug)]
pub struct Seating(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    began: Instant,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    seats: Seats,
    next: u64,
    /// How each is told to go.
    bells: BTreeMap<SeatId, Arc<Notify>>,
}

/// The place of one connection, given back when dropped.
#[derive(Debug)]
pub struct Place {
    seating: Seating,
    id: SeatId,
    bell: Arc<Notify>,
}

impl Seating {
    /// As many places for connections of the data path as this process may have descriptors for, `most` at
    /// most; each peer may take them all.
    #[must_use]
    pub fn of_data(most: usize) -> Seating {
        let places = usize::try_from(places_of_data(descriptors::raise())).unwrap_or(most).min(most);
        Seating::new(places, places)
    }

    #[must_use]
    pub fn new(seats_max: usize, peer_max: usize) -> Seating {
        let table = Table { seats: Seats::new(seats_max, peer_max), next: 0, bells: BTreeMap::new() };
        Seating(Arc::new(Shared { began: Instant::now(), table: Mutex::new(table) }))
    }

    /// A place for a newcomer; none when everybody is at work.
    #[must_use]
    pub fn take(&self, peer: Option<IpAddr>) -> Option<Place> {
        let now = self.now();
        let mut table = self.table();
        let id = SeatId(table.next);
        table.next += 1;
        match table.seats.arrive(now, id, peer) {
            Arrival::Seated => {}
            Arrival::InPlaceOf(out) => {
                if let Some(bell) = table.bells.remove(&out) {
                    bell.notify_one();
                }
            }
            Arrival::Full => return None,
        }
        let bell = Arc::new(Notify::new());
        table.bells.insert(id, Arc::clone(&bell));
        drop(table);
        Some(Place { seating: self.clone(), id, bell })
    }

    /// How many places are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.table().seats.taken()
    }

    fn now(&self) -> Time {
        u64::try_from(self.0.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Ends when another needs the place.
    pub async fn wanted(&self) {
        self.bell.notified().await;
    }

    /// It has asked for something, or is let in: it is not sent away.
    pub fn works(&self) {
        self.seating.table().seats.works(self.id);
    }

    /// It has its answer, and may be sent away.
    pub fn rests(&self) {
        let now = self.seating.now();
        self.seating.table().seats.rests(now, self.id);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.seating.table();
        table.seats.leave(self.id);
        table.bells.remove(&self.id);
    }
}
