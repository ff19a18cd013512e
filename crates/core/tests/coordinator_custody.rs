//! What is put down of a volume: in the step of what it tells of, in a chain that shows what was changed,
//! and for longer than the volume lives.

use crate::pool::{E, World};
use cheetah_core::api::{Answer, Call, LogReport, Size};
use cheetah_core::coordinator::Record;
use cheetah_core::custody::{Case, Event, Head, Said, check, comment_of, head_in};
use cheetah_core::limits::{CUSTODY_ENTRIES_MAX, LEASE_NS, SECOND_NS};

pub(crate) fn log(world: &mut World, name: &str) -> LogReport {
    match world.ask(Call::Log { name: name.into() }).expect("a log") {
        Answer::Log(log) => log,
        other => panic!("{other:?}"),
    }
}

/// The names of what happened, of a log that is whole.
pub(crate) fn events(log: &LogReport) -> Vec<String> {
    let whole = check(&log.text()).expect("whole");
    assert_eq!(whole.head(), log.head);
    let name =
        |event: &Event| serde_json::to_value(event).expect("JSON")["event"].as_str().map(str::to_owned);
    whole.entries.iter().filter_map(|entry| name(&entry.event)).collect()
}

fn case(number: &str) -> Said {
    Said::Case(Case { case: Some(number.into()), command: "cheetah load".into(), ..Case::default() })
}

/// A volume with some life behind it.
fn lived() -> World {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    world.ask(Call::Say { name: "v".into(), said: case("7\u{1b}[2J") }).expect("said");
    let writer = world.attach("v", false).expect("attached");
    world.detach("v", writer.token).expect("detached");
    world.attach("v", false).expect("attached");
    world.pass(LEASE_NS + SECOND_NS);
    world
}

#[test]
fn what_happens_to_a_volume_is_put_down_and_outlives_it() {
    let mut world = lived();
    let all = ["created", "case", "attached", "detached", "attached", "detached", "written"];
    assert_eq!(events(&log(&mut world, "v")), all);
    assert_eq!(world.show("v").case.and_then(|case| case.case).as_deref(), Some("7?[2J"));
    let id = world.show("v").status.volume;
    world.restart();
    assert_eq!(world.show("v").case.and_then(|case| case.case).as_deref(), Some("7?[2J"));
    world.delete("v").expect("deleted");
    let old = log(&mut world, "v");
    assert!(old.deleted);
    assert_eq!(events(&old), [&all[..], &["deleted"]].concat());
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    let anew = log(&mut world, "v");
    assert_eq!((events(&anew), anew.older.len()), (vec!["created".to_owned()], 1));
    assert_eq!(anew.older[0].head, old.head);
    world.restart();
    assert_eq!(log(&mut world, &id.to_string()).lines, old.lines);
    assert!(world.ask(Call::Log { name: "w".into() }).is_err());
}

#[test]
fn what_time_brings_about_is_not_the_next_callers() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    world.attach("v", false).expect("attached");
    world.now += LEASE_NS + SECOND_NS;
    world.coordinator.called_by(Some("eve from 10.0.0.1".into()));
    world.ask(Call::Pool).expect("answered");
    let whole = check(&log(&mut world, "v").text()).expect("whole");
    assert!(whole.entries.iter().all(|entry| entry.by.is_none()), "{:?}", whole.entries);
    world.coordinator.called_by(Some("eve from 10.0.0.1".into()));
    world.ask(Call::Say { name: "v".into(), said: case("7") }).expect("said");
    let whole = check(&log(&mut world, "v").text()).expect("whole");
    assert_eq!(whole.entries.last().and_then(|entry| entry.by.as_deref()), Some("eve from 10.0.0.1"));
}

#[test]
fn an_entry_is_stored_before_what_it_tells_of_is_answered() {
    // `World` asserts that nothing is stored behind a reply; here each step's entry is in the store by
    // then.
    let mut world = lived();
    let stored = world.store.values().filter(|record| matches!(record, Record::Custody(_))).count();
    assert_eq!(stored, log(&mut world, "v").lines.len());
}

#[test]
fn each_kind_of_damage_is_found_where_it_is() {
    let mut world = lived();
    let log = log(&mut world, "v");
    let of = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let lines: Vec<&str> = log.lines.iter().map(String::as_str).collect();
    let broken = |text: String| check(&text).expect_err("broken");
    let mut changed = lines.clone();
    let other = changed[2].replace("eve@lab", "bob@lab");
    changed[2] = &other;
    assert_eq!(broken(of(&changed)).line, 4);
    assert!(broken(of(&changed)).why.contains("entry 3 was changed"));
    let mut swapped = lines.clone();
    swapped.swap(2, 4);
    assert!(broken(of(&swapped)).why.contains("reordered"));
    let mut less = lines.clone();
    less.remove(3);
    assert!(broken(of(&less)).why.contains("entry 4 is missing"), "{}", broken(of(&less)));
    less.remove(3);
    assert!(broken(of(&less)).why.contains("entries 4 to 5 are missing"), "{}", broken(of(&less)));
    let whole = of(&lines);
    let cut = whole[..whole.len() - 9].to_owned();
    assert!(broken(cut).why.contains("cut off"));
    assert!(broken(of(&lines[1..])).why.contains("entry 2 stands where entry 1"));
    let short = check(&of(&lines[..3])).expect("whole in itself");
    assert!(short.reaches(&log.head).expect_err("shorter").why.contains("cut off"));
    let early = short.head();
    check(&whole).expect("whole").reaches(&early).expect("it goes on from there");
    let other = Head { hash: "0".repeat(64), ..early };
    assert!(check(&whole).expect("whole").reaches(&other).is_err());
    assert_eq!(head_in(&comment_of(log.pool, log.volume, &log.head)), Some(log.head));
}

#[test]
fn a_log_is_bounded_and_says_so() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    for number in 0..CUSTODY_ENTRIES_MAX + 9 {
        world.ask(Call::Say { name: "v".into(), said: case(&number.to_string()) }).expect("answered");
    }
    let events_of = |world: &mut World| events(&log(world, "v"));
    assert_eq!(events_of(&mut world).len(), CUSTODY_ENTRIES_MAX + 1);
    assert_eq!(events_of(&mut world).last().map(String::as_str), Some("full"));
    let sha256 = "0".repeat(64);
    let exported = Said::Exported { file: "f".into(), bytes: 1, sha256 };
    world.ask(Call::Say { name: "v".into(), said: exported }).expect("answered");
    world.delete("v").expect("deleted");
    assert_eq!(events_of(&mut world)[CUSTODY_ENTRIES_MAX..], ["full", "exported", "deleted"]);
}
