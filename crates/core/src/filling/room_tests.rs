//! Tests of a volume that is larger than its memory: what goes, when, and what is never dropped.

use super::*;

const P: u64 = PIECE_BYTES;
const OK: Result<Fetched, ()> = Ok(Fetched { bad: Vec::new(), zeros: Vec::new() });
/// Nobody has asked lately.
const CALM: Time = SECOND_NS;

/// 64 pieces, of which one extent has room for 32; two of those are for who asks.
fn order() -> Order {
    Order::new(64 * P, Some(Sharing { chunk: 32, groups: 1, data: 1, unit: 32, room: 32 }))
}

fn fetch(from: u64, to: u64) -> Option<Work> {
    Some(Work::Fetch(from * P..to * P))
}

fn drops(pieces: &[u64]) -> Option<Work> {
    Some(Work::Drop(pieces.iter().map(|piece| piece * P..(piece + 1) * P).collect()))
}

fn gone(order: &mut Order, work: Option<Work>) {
    let Some(Work::Drop(ranges)) = work else { panic!("{work:?} drops nothing") };
    order.dropped(CALM, ranges.into_iter().map(|range| (range, true)).collect());
    order.check_invariants();
}

fn filled() -> Order {
    let mut order = order();
    while let Some(work) = order.next(CALM, false) {
        let Work::Fetch(range) = work else { panic!("{work:?} while there is room") };
        order.fetched(CALM, range, OK);
    }
    order
}

#[test]
fn what_lies_next_is_read_while_there_is_room_and_what_is_asked_for_always() {
    let mut order = filled();
    assert_eq!((order.bytes_here(), order.is_full()), (30 * P, true), "the rest is for who asks");
    for asker in 0..2 {
        order.ask(CALM, asker, (60 + asker) * P..(60 + asker) * P + 1);
        let work = order.next(CALM, true);
        assert_eq!(work, fetch(60 + asker, 61 + asker));
        order.fetched(CALM, (60 + asker) * P..(61 + asker) * P, OK);
    }
    order.ask(CALM, 2, 50 * P..50 * P + 1);
    let work = order.next(CALM, true);
    assert_eq!(work, drops(&[0]), "nobody has asked for the first");
    assert_eq!(order.next(CALM, true), None, "there is no room yet");
    gone(&mut order, work);
    assert_eq!(order.next(CALM, true), fetch(50, 51));
    assert_eq!(order.fetched(CALM, 50 * P..51 * P, OK), [Answer { to: 2, result: Ok(()) }]);
    assert!(!order.has(&(0..1)) && order.has(&(50 * P..51 * P)) && order.bytes_here() == 32 * P);
    order.check_invariants();
}

#[test]
fn what_is_on_its_way_or_waited_for_is_not_dropped() {
    let mut order = filled();
    // Piece 40 comes, 41 as well, and both are wanted.
    order.ask(CALM, 1, 40 * P..42 * P);
    assert_eq!(order.next(CALM, true), fetch(40, 42));
    for piece in 0..30 {
        order.ask(CALM, 10 + piece, piece * P..piece * P + 1);
        assert_eq!(order.next(CALM, true), Some(Work::Check(piece * P..(piece + 1) * P)));
    }
    order.ask(CALM, 2, 50 * P..51 * P);
    assert_eq!(order.next(CALM, true), None, "donors are being asked for all that is here");
    for piece in 0..30 {
        order.checked(piece * P..(piece + 1) * P, Ok(true));
    }
    let work = order.next(CALM, true);
    assert_eq!(work, drops(&[0]));
    // Who misses it while it goes gets it anew.
    order.ask(CALM, 3, 0..1);
    assert_eq!(order.next(CALM, true), None, "one makes room already, and comes again when it is gone");
    gone(&mut order, work);
    assert_eq!(order.next(CALM, true), fetch(0, 1));
}

#[test]
fn what_may_be_there_in_part_goes_before_it_comes_again() {
    let mut order = order();
    order.pause(true);
    order.ask(0, 1, 0..1);
    assert_eq!(order.next(0, true), fetch(0, 1));
    order.fetched(0, 0..P, Err(()));
    order.ask(0, 2, 0..1);
    let work = order.next(0, true);
    assert_eq!(work, drops(&[0]));
    order.dropped(0, vec![(0..P, false)]);
    assert_eq!((order.next(0, true), order.wake_at(0)), (None, Some(PAUSE_NS)), "nobody answered");
    let work = order.next(PAUSE_NS, true);
    gone(&mut order, work);
    assert_eq!(order.next(PAUSE_NS, true), fetch(0, 1));
    // What an earlier one has left.
    order.doubt(&(9 * P + 5..10 * P));
    assert_eq!(order.next(PAUSE_NS, true), drops(&[9]));
    order.check_invariants();
}

#[test]
fn zeros_take_no_room() {
    let mut order = order();
    while let Some(Work::Fetch(range)) = order.next(CALM, false) {
        let zeros = vec![range.clone()];
        order.fetched(CALM, range, Ok(Fetched { zeros, ..Fetched::default() }));
    }
    assert!(order.is_complete() && !order.is_full(), "all of it fits");
}

#[test]
fn metadata_stays_and_what_follows_in_a_row_is_read_ahead() {
    let mut order = order();
    order.value(&(0..8 * P));
    order.expect(std::iter::once(0..8 * P), false);
    while let Some(work) = order.next(CALM, false) {
        let Work::Fetch(range) = work else { panic!("{work:?}") };
        order.fetched(CALM, range, OK);
    }
    let mut asked = Vec::new();
    for piece in 32..64 {
        let range = piece * P..(piece + 1) * P;
        if order.has(&range) {
            continue;
        }
        asked.push(piece);
        order.ask(CALM, piece, range);
        let now = 100 * CALM * piece;
        while let Some(work) = order.next(now, false) {
            match work {
                Work::Fetch(range) => drop(order.fetched(now, range, OK)),
                Work::Check(range) => drop(order.checked(range, Ok(true))),
                work @ Work::Drop(_) => gone(&mut order, Some(work)),
            }
        }
    }
    assert!(order.has(&(0..8 * P)), "metadata");
    assert!(asked.len() < 32, "each was missed: {asked:?}");
}

#[test]
fn a_piece_that_ends_in_the_middle_of_a_block_stays() {
    let sharing = Sharing { chunk: 32, groups: 1, data: 1, unit: 32, room: 2 };
    let mut order = Order::new(2 * P + 512, Some(sharing));
    order.ask(0, 1, P..2 * P + 512);
    assert_eq!(order.next(0, true), Some(Work::Fetch(P..2 * P + 512)));
    order.fetched(0, P..2 * P + 512, OK);
    order.ask(0, 2, 0..1);
    assert_eq!(order.next(0, true), drops(&[1]), "though the last one came as early");
}
