//! What happened to the pool is noted, once each, with what it is about and who brought it about.

use crate::pool::{E, World, joining};
use cheetah_core::api::{Amend, Attach, Call, Renew, Size, VolumeReport};
use cheetah_core::limits::{LEASE_NS, SECOND_NS};
use cheetah_core::map::DonorId;

/// The events noted since the last look, each with its donor, volume and holder.
fn noted(world: &mut World) -> Vec<String> {
    let notes = std::mem::take(&mut world.notes);
    let of = |text: Option<String>| text.map(|text| format!(" {text}")).unwrap_or_default();
    let line = |note: cheetah_core::coordinator::Note| {
        assert!(!note.text.is_empty() && !note.text.contains('\n'), "{note:?}");
        format!("{}{}{}{}", note.event, of(note.donor), of(note.volume), of(note.holder))
    };
    notes.into_iter().map(line).collect()
}

#[test]
fn joining_leaving_and_falling_silent_are_noted() {
    let mut world = World::with_donors(&[4, 4]);
    assert_eq!(noted(&mut world), ["donor-joined d1", "donor-joined d2"]);
    world.ask(Call::Join(joining(1, 4))).expect("joins again");
    world.pass(30 * SECOND_NS);
    assert_eq!(noted(&mut world), Vec::<String>::new(), "nothing happened");
    world.silence(2);
    assert_eq!(noted(&mut world), ["donor-lost d2"]);
    world.donors.insert(DonorId(2), Default::default());
    world.pass(SECOND_NS);
    assert_eq!(noted(&mut world), ["donor-returned d2"]);
    let call = world.send(Call::Leave { donor: "d2".into(), force: true });
    let call_of = world.notes.iter().map(|note| note.call).next_back();
    assert_eq!(call_of, Some(Some(call)), "who asked for it can be told");
    assert_eq!(noted(&mut world), ["donor-left d2"]);
}

#[test]
fn volumes_and_leases_are_noted_with_their_holders() {
    let mut world = World::with_donors(&[4, 4]);
    noted(&mut world);
    world.create("v", Size::Bytes(E), Some("linear")).expect("created");
    world.grow("v", Size::Bytes(2 * E)).expect("grown");
    assert_eq!(noted(&mut world), ["volume-created v", "volume-grown v"]);
    let writer = world.attach("v", false).expect("attached");
    world.detach("v", writer.token).expect("detached");
    assert_eq!(noted(&mut world), ["attached v eve@lab pid 7", "detached v eve@lab pid 7"]);
    let alone = Attach { alone: true, ..Attach::new(false, "joe") };
    world.ask(Call::Attach { name: "v".into(), attach: alone }).expect("attached");
    assert_eq!(noted(&mut world), ["load-begun v joe"]);
    world.pass(LEASE_NS + SECOND_NS);
    assert_eq!(noted(&mut world), ["lease-ended v joe"]);
    world.delete("v").expect("deleted");
    assert_eq!(noted(&mut world), ["volume-deleted v"]);
    assert!(world.delete("v").is_err());
    assert_eq!(noted(&mut world), Vec::<String>::new(), "what was refused did not happen");
}

#[test]
fn lost_data_is_noted() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(8 * E), Some("linear")).expect("created");
    noted(&mut world);
    world.silence(1);
    assert_eq!(noted(&mut world), ["donor-lost d1", "data-lost v"]);
}

#[test]
fn who_set_a_donor_aside_and_why_is_noted() {
    let mut world = World::with_donors(&[4, 4, 4]);
    world.create("v", Size::Bytes(E), Some("parity:2+1")).expect("created");
    let writer = world.attach("v", false).expect("attached");
    noted(&mut world);
    let exclude = vec![(DonorId(2), "silent for 800 ms".to_owned())];
    world.amend("v", writer.token, Amend { exclude, ..Amend::default() }).expect("amended");
    assert!(world.notes[0].text.contains("silent for 800 ms"), "{:?}", world.notes);
    assert_eq!(noted(&mut world), ["donor-set-aside d2 v eve@lab pid 7"]);
}

#[test]
fn what_may_be_older_than_what_was_written_last_is_noted_once_and_stays_in_the_log() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(E), Some("mirror:2")).expect("created");
    let writer = world.attach("v", false).expect("attached");
    noted(&mut world);
    for unflushed_bytes in [0, 1 << 20, 1 << 20, 3 << 20] {
        let report = Box::new(VolumeReport { unflushed_bytes, ..VolumeReport::default() });
        let epoch = world.show("v").map.epoch;
        let renew = Renew { epoch, place: String::new(), lost: Vec::new(), report, guests: Vec::new() };
        world.send(Call::Renew { name: "v".into(), token: writer.token, renew });
    }
    let texts: Vec<&str> = world.notes.iter().map(|note| note.text.as_str()).collect();
    assert!(texts.len() == 2 && texts[0].starts_with("up to 1 MiB") && texts[1].starts_with("up to 2 MiB"));
    assert!(world.notes.iter().all(|note| note.is_bad && note.event == "writes-unflushed"));
    let log = crate::coordinator_custody::log(&mut world, "v").lines;
    assert!(log.iter().any(|line| line.contains(r#""event":"unflushed","bytes":2097152"#)), "{log:?}");
}
