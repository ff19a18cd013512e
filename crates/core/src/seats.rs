//! Places for connections, of which there are only so many: who gets one when all are taken, and who has to
//! go for it.
//!
//! Owns the list of who is connected and since when each has had nothing to do. Never: a socket. Invariants:
//! there are never more than there are places, nor more of one peer than its share; who is at work is never
//! sent away; and of the idle the peer with the most gives up its oldest, so that one that takes all it can
//! get takes it from itself.
//! Called by the listeners of coordinators, donors, fillers and exports. Tests: below.

use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// One connection. The driver never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeatId(pub u64);

#[derive(Clone, Copy, Debug)]
struct Seat {
    /// None where peers are not told apart: a Unix socket.
    peer: Option<IpAddr>,
    /// Since when; none: it is at work.
    idle: Option<Time>,
}

/// The connections of one listener, and the places that they take.
#[derive(Debug)]
pub struct Seats {
    seats_max: usize,
    peer_max: usize,
    taken: BTreeMap<SeatId, Seat>,
    peers: BTreeMap<Option<IpAddr>, Peer>,
}

#[derive(Debug, Default)]
struct Peer {
    count: usize,
    idle: BTreeSet<(Time, SeatId)>,
}

/// What becomes of a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A place was free.
    Seated,
    /// This one goes for it.
    InPlaceOf(SeatId),
    /// Everybody is at work.
    Full,
}

impl Seats {
    /// At least one place, and at least one for each peer.
    #[must_use]
    pub fn new(seats_max: usize, peer_max: usize) -> Seats {
        let seats_max = seats_max.max(1);
        let peer_max = peer_max.clamp(1, seats_max);
        Seats { seats_max, peer_max, taken: BTreeMap::new(), peers: BTreeMap::new() }
    }

    /// How many places are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Somebody connects, and has said nothing yet. Who goes in its place is out at once.
    pub fn arrive(&mut self, now: Time, id: SeatId, peer: Option<IpAddr>) -> Arrival {
        let has_its_share = self.peers.get(&peer).is_some_and(|of| of.count >= self.peer_max);
        let mut arrival = Arrival::Seated;
        if has_its_share || self.taken.len() >= self.seats_max {
            let may_give = |of: &(&Option<IpAddr>, &Peer)| !has_its_share || *of.0 == peer;
            let idle =
                self.peers.iter().filter(may_give).filter_map(|(_, of)| Some((of.count, of.idle.first()?)));
            let Some((_, (_, out))) = idle.max_by_key(|(count, _)| *count) else { return Arrival::Full };
            let out = *out;
            self.leave(out);
            arrival = Arrival::InPlaceOf(out);
        }
        self.taken.insert(id, Seat { peer, idle: Some(now) });
        let of = self.peers.entry(peer).or_default();
        of.count += 1;
        of.idle.insert((now, id));
        arrival
    }

    /// It has asked for something, or is let in.
    pub fn works(&mut self, id: SeatId) {
        self.set_idle(id, None);
    }

    /// It has its answer.
    pub fn rests(&mut self, now: Time, id: SeatId) {
        self.set_idle(id, Some(now));
    }

    fn set_idle(&mut self, id: SeatId, idle: Option<Time>) {
        let Some(seat) = self.taken.get_mut(&id) else { return };
        let was = std::mem::replace(&mut seat.idle, idle);
        let Some(of) = self.peers.get_mut(&seat.peer) else { return };
        if let Some(was) = was {
            of.idle.remove(&(was, id));
        }
        of.idle.extend(idle.map(|since| (since, id)));
    }

    /// It is gone; nothing, when it was sent away before.
    pub fn leave(&mut self, id: SeatId) {
        self.works(id);
        let Some(seat) = self.taken.remove(&id) else { return };
        let Some(of) = self.peers.get_mut(&seat.peer) else { return };
        of.count -= 1;
        if of.count == 0 {
            self.peers.remove(&seat.peer);
        }
    }

    /// Connections that have a place, idle or at work.
    #[must_use]
    pub fn count(&self) -> usize {
        self.taken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    fn arrive(seats: &mut Seats, at: Time, of: u8) -> Arrival {
        seats.arrive(at, SeatId(at), peer(of))
    }

    #[test]
    fn who_takes_all_it_can_get_takes_it_from_itself() {
        let mut seats = Seats::new(100, 80);
        assert_eq!(arrive(&mut seats, 1, 1), Arrival::Seated);
        for at in 2..=81 {
            assert_eq!(arrive(&mut seats, at, 2), Arrival::Seated);
        }
        // Its share is full: its own oldest goes.
        assert_eq!(arrive(&mut seats, 82, 2), Arrival::InPlaceOf(SeatId(2)));
        for at in 83..=101 {
            assert_eq!(arrive(&mut seats, at, 3), Arrival::Seated);
        }
        assert_eq!(seats.count(), 100);
        // All are taken: who has most gives up its oldest, not the one that has waited longest.
        for at in 102..120 {
            let gone = SeatId(at - 99);
            assert_eq!(arrive(&mut seats, at, 4), Arrival::InPlaceOf(gone));
        }
        assert_eq!(seats.count(), 100);
    }

    #[test]
    fn who_is_at_work_stays() {
        let mut seats = Seats::new(3, 2);
        for at in 1..=3 {
            arrive(&mut seats, at, u8::try_from(at).expect("small"));
        }
        seats.works(SeatId(1));
        seats.works(SeatId(2));
        assert_eq!(arrive(&mut seats, 4, 4), Arrival::InPlaceOf(SeatId(3)));
        seats.works(SeatId(4));
        assert_eq!(arrive(&mut seats, 5, 5), Arrival::Full);
        assert_eq!(arrive(&mut seats, 6, 1), Arrival::Full);
        seats.rests(7, SeatId(2));
        assert_eq!(arrive(&mut seats, 8, 5), Arrival::InPlaceOf(SeatId(2)));
        seats.works(SeatId(8));
        // Who was sent away, and says so later, takes nobody's place along.
        seats.leave(SeatId(2));
        seats.works(SeatId(2));
        assert_eq!(seats.count(), 3);
        seats.leave(SeatId(1));
        assert_eq!(arrive(&mut seats, 9, 8), Arrival::Seated);
    }

    #[test]
    fn a_peer_whose_share_is_at_work_gets_no_more_and_others_do() {
        let mut seats = Seats::new(10, 2);
        for at in 1..=2 {
            arrive(&mut seats, at, 1);
            seats.works(SeatId(at));
        }
        assert_eq!(arrive(&mut seats, 3, 1), Arrival::Full);
        assert_eq!(arrive(&mut seats, 4, 2), Arrival::Seated);
        assert_eq!(seats.arrive(5, SeatId(5), None), Arrival::Seated, "over a Unix socket");
    }
}
