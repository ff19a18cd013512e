//! Tests of the order in which a volume is filled. Never: of memory that is full (`room_tests`).

use super::*;

const P: u64 = PIECE_BYTES;
const OK: Result<Fetched, ()> = Ok(Fetched { bad: Vec::new(), zeros: Vec::new() });
/// Nobody has asked lately.
const CALM: Time = SECOND_NS;

#[test]
fn what_is_asked_for_comes_before_what_lies_next_and_is_read_once() {
    let mut order = Order::new(40 * P, None);
    assert_eq!(order.next(0, false), Some(Work::Fetch(0..16 * P)));
    assert_eq!(order.ask(0, 1, 20 * P + 5..20 * P + 9), None);
    assert_eq!(order.ask(0, 2, 20 * P..21 * P), None);
    assert_eq!(order.ask(0, 3, 3 * P..4 * P), None, "it is on its way");
    assert_eq!(order.next(0, true), Some(Work::Fetch(20 * P..21 * P)));
    assert_eq!(order.next(0, true), None);
    let told = order.fetched(0, 20 * P..21 * P, OK);
    assert_eq!(told.iter().map(|answer| answer.to).collect::<Vec<_>>(), [1, 2], "one read serves both");
    assert_eq!(order.fetched(0, 0..16 * P, OK), [Answer { to: 3, result: Ok(()) }]);
    assert_eq!(order.next(CALM, false), Some(Work::Fetch(16 * P..20 * P)), "up to what is here");
    assert_eq!(order.next(CALM, false), Some(Work::Fetch(21 * P..32 * P)));
    order.check_invariants();
}

#[test]
fn what_the_source_cannot_give_is_an_error_there_alone() {
    let mut order = Order::new(4 * P - 100, None);
    order.ask(0, 1, 0..4096);
    order.ask(0, 2, 4096..8192);
    let bad = ByteRange { offset: 4096, len: 4096 };
    assert_eq!(order.next(0, true), Some(Work::Fetch(0..P)));
    let told = order.fetched(0, 0..P, Ok(Fetched { bad: vec![bad], ..Fetched::default() }));
    let unreadable = Err(FetchError::Unreadable);
    assert_eq!(told, [Answer { to: 1, result: Ok(()) }, Answer { to: 2, result: unreadable }]);
    assert_eq!(order.next(CALM, false), Some(Work::Fetch(P..4 * P - 100)));
    order.fetched(CALM, P..4 * P - 100, OK);
    assert!(order.is_complete() && order.next(0, false).is_none());
    assert_eq!(order.ask(0, 3, 4 * P..5 * P).map(|told| told.result), Some(unreadable), "behind the end");
}

#[test]
fn a_failure_is_told_to_who_waits_and_tried_again_later() {
    let mut order = Order::new(2 * P, None);
    order.ask(0, 1, 0..2 * P);
    assert_eq!(order.next(7, true), Some(Work::Fetch(0..2 * P)), "what is asked for together");
    let told = order.fetched(7, 0..2 * P, Err(()));
    assert_eq!(told, [Answer { to: 1, result: Err(FetchError::Away) }]);
    assert_eq!(order.next(7, false), None);
    assert!(order.wake_at(7).is_some_and(|at| at <= CALM + PAUSE_NS), "it is tried again");
    assert_eq!(order.next(CALM + PAUSE_NS, false), Some(Work::Fetch(0..2 * P)));
    order.check_invariants();
}

#[test]
fn what_is_here_is_not_read_again_unless_donors_lack_it() {
    let mut order = Order::new(3 * P, None);
    order.learn(0..2 * P, true);
    assert_eq!(order.bytes_here(), 2 * P);
    order.ask(0, 1, 0..10);
    assert_eq!(order.next(0, true), Some(Work::Check(0..P)));
    assert_eq!(order.checked(0..P, Ok(true)), [Answer { to: 1, result: Ok(()) }]);
    order.ask(0, 2, 0..10);
    assert_eq!(order.next(0, true), Some(Work::Check(0..P)));
    assert_eq!(order.checked(0..P, Ok(false)), []);
    assert_eq!(order.next(0, true), Some(Work::Fetch(0..P)));
    assert_eq!(order.fetched(0, 0..P, OK), [Answer { to: 2, result: Ok(()) }]);
    order.ask(0, 3, 0..10);
    assert_eq!(order.next(0, true), Some(Work::Check(0..P)));
    let away = Answer { to: 3, result: Err(FetchError::Away) };
    assert_eq!(order.checked(0..P, Err(())), [away], "donors do not say");
    order.check_invariants();
}

#[test]
fn donors_are_asked_once_and_what_came_since_is_not_read_again() {
    let mut order = Order::new(2 * P, None);
    order.learn(0..2 * P, true);
    order.ask(0, 1, 0..10);
    order.ask(0, 2, 0..10);
    assert_eq!(order.next(0, true), Some(Work::Check(0..P)));
    assert_eq!(order.next(0, true), None, "one answer serves both");
    // It is found to be gone otherwise, and comes, before donors have answered.
    order.learn(0..P, false);
    assert_eq!(order.next(0, true), Some(Work::Fetch(0..P)));
    assert_eq!(order.fetched(0, 0..P, OK).len(), 2);
    assert_eq!(order.checked(0..P, Ok(false)), []);
    assert_eq!((order.next(0, false), order.is_complete()), (None, true));
    order.check_invariants();
}

#[test]
fn what_is_expected_comes_before_the_rest_and_behind_what_is_asked_for() {
    let mut order = Order::new(64 * P, None);
    order.expect([40 * P..42 * P, 20 * P + 1..20 * P + 2].into_iter(), false);
    order.expect(std::iter::once(20 * P..21 * P), false);
    order.ask(0, 1, 50 * P..50 * P + 1);
    let fetch = |from: u64, to: u64| Some(Work::Fetch(from * P..to * P));
    assert_eq!(order.next(0, true), fetch(50, 51));
    assert_eq!(order.next(0, true), None, "nobody waits for more");
    assert_eq!(order.next(CALM, false), fetch(40, 42));
    order.expect([33 * P..34 * P, 30 * P..31 * P].into_iter(), true);
    order.fetched(CALM, 50 * P..51 * P, OK);
    assert_eq!(order.next(CALM, false), fetch(33, 34), "sooner than what was expected before");
    assert_eq!(order.next(CALM, false), fetch(30, 31));
    order.fetched(CALM, 30 * P..31 * P, Err(()));
    let again = CALM + PAUSE_NS;
    assert_eq!(order.next(again, false), fetch(30, 31));
    order.expect(std::iter::once(20 * P..21 * P), true);
    assert_eq!(order.next(again, false), fetch(20, 21), "once");
    assert_eq!(order.next(again, false), fetch(0, 16), "the rest");
    order.check_invariants();
}

#[test]
fn a_pause_and_a_rate_hold_up_only_what_nobody_waits_for() {
    let mut order = Order::new(64 * P, None);
    order.pause(true);
    assert_eq!((order.next(0, false), order.wake_at(0)), (None, None));
    order.ask(0, 1, 0..1);
    assert_eq!(order.next(0, false), Some(Work::Fetch(0..P)));
    order.fetched(0, 0..P, OK);
    order.pause(false);
    order.limit(Some(15 * P));
    assert_eq!(order.next(CALM, false), Some(Work::Fetch(P..16 * P)));
    assert_eq!((order.next(CALM, false), order.wake_at(CALM)), (None, Some(CALM + SECOND_NS)));
    order.ask(CALM, 2, 40 * P..40 * P + 1);
    assert_eq!(order.next(CALM, false), Some(Work::Fetch(40 * P..41 * P)));
    order.fetched(CALM, 40 * P..41 * P, OK);
    assert_eq!(order.next(CALM + SECOND_NS, false), Some(Work::Fetch(16 * P..32 * P)));
}
