//! A disk, its copies, and what it was before: one of them is let in, and it is the one that knows most.

use crate::pool::{E, World, assert_refused, joining, refused};
use cheetah_core::api::{Answer, Call, Create, Join, Lineage, Refusal, RefusalCode, Size, VolumeHealth};
use cheetah_core::disk::Before;
use cheetah_core::limits::SECOND_NS;
use cheetah_core::map::{DonorId, Incarnation, Medium, Redundancy};

/// What of a donor's disk is set back with it.
#[derive(Clone, Debug, Default)]
struct Disk(Before);

const DISK: u64 = 11;

impl Disk {
    /// A process is started for the disk, and asks to join from this port.
    fn starts(&mut self, world: &mut World, run: u64, port: u16) -> Result<Answer, Refusal> {
        self.asks(world, run, port).inspect(|_| self.is_told(world, run))
    }

    /// What it is told is lost.
    fn asks(&mut self, world: &mut World, run: u64, port: u16) -> Result<Answer, Refusal> {
        let Before { last, tried } = self.0.clone();
        let lineage = Lineage { incarnation: Incarnation(run), last, tried };
        self.0.tries(Incarnation(run));
        let (address, lineage) = (format!("10.0.0.11:{port}"), Some(Box::new(lineage)));
        let join = Join { medium: Medium::Disk, address, lineage, ..joining(DISK, 4) };
        let before = world.incarnations.insert(DonorId(DISK), Incarnation(run));
        let answer = world.join_unheard(join);
        if let Some(before) = before.filter(|_| answer.is_err()) {
            world.incarnations.insert(DonorId(DISK), before);
        }
        answer
    }

    fn is_told(&mut self, world: &mut World, run: u64) {
        self.0 = Before { last: Some(Incarnation(run)), tried: Vec::new() };
        world.hears(DISK);
    }
}

fn world() -> World {
    World::with_donors(&[4])
}

#[test]
fn a_disk_that_was_set_back_is_refused_and_the_newest_is_let_in() {
    let (mut world, mut disk) = (world(), Disk::default());
    disk.starts(&mut world, 1, 1).expect("new");
    world.kill(DISK);
    let copy = disk.clone();
    disk.starts(&mut world, 2, 2).expect("behind the first");
    world.kill(DISK);
    for _ in 0..2 {
        refused(copy.clone().starts(&mut world, 3, 3), &["at 10.0.0.11:3 was set back", "cheetah leave d11"]);
        // That somebody tried is no reason to refuse who is right, nor is a coordinator that starts again.
        world.restart();
    }
    disk.starts(&mut world, 4, 4).expect("the newest");
}

#[test]
fn a_copy_is_refused_while_the_disk_is_lent() {
    let (mut world, mut disk) = (world(), Disk::default());
    disk.starts(&mut world, 1, 1).expect("new");
    let mut copy = disk.clone();
    for run in 2..5 {
        let answer = copy.starts(&mut world, run, 2);
        assert_refused(answer, RefusalCode::Unavailable, &["runs already, at 10.0.0.11:1"]);
        world.pass(SECOND_NS);
    }
    let asked = world.reaches.iter().any(|(donor, address)| donor.0 == DISK && address == "10.0.0.11:1");
    assert!(asked, "whether that one has ended is found out at once");
    world.kill(DISK);
    copy.starts(&mut world, 5, 2).expect("it has all that the other had");
    refused(disk.starts(&mut world, 6, 3), &["was set back"]);
}

#[test]
fn one_that_is_started_again_in_the_place_of_the_other_need_not_wait() {
    let (mut world, mut disk) = (world(), Disk::default());
    disk.starts(&mut world, 1, 1).expect("new");
    disk.starts(&mut world, 2, 1).expect("nothing else listens there");
}

#[test]
fn a_run_that_was_let_in_and_did_not_hear_it_is_no_reason_to_refuse_the_next() {
    let (mut world, mut disk) = (world(), Disk::default());
    disk.starts(&mut world, 1, 1).expect("new");
    world.kill(DISK);
    for run in 2..100 {
        disk.asks(&mut world, run, 2).expect("let in");
        world.restart();
    }
    disk.asks(&mut world, 100, 2).expect("behind the last that tried");
    // The copy knows that this one asks, and not that it was let in.
    let mut copy = disk.clone();
    disk.is_told(&mut world, 100);
    world.kill(DISK);
    refused(copy.starts(&mut world, 101, 3), &["was set back"]);
}

#[test]
fn who_was_let_in_before_is_sent_to_ask_again() {
    let (mut world, mut disk) = (world(), Disk::default());
    disk.starts(&mut world, 1, 1).expect("new");
    disk.starts(&mut world, 2, 1).expect("started again");
    world.incarnations.insert(DonorId(DISK), Incarnation(1));
    let answer = world.sync(DonorId(DISK)).expect("an answer");
    assert_refused(answer, RefusalCode::Gone, &["was started again since"]);
}

#[test]
fn a_state_of_before_there_were_any_takes_whoever_comes_first() {
    let mut world = world();
    world.join_as(Join { medium: Medium::Disk, ..joining(DISK, 4) }).expect("of an older version");
    world.restart();
    Disk::default().starts(&mut world, 1, 2).expect("it named none before");
}

#[test]
fn what_a_refused_disk_holds_is_lost_to_the_pool_until_the_newest_is_back() {
    let (mut world, mut disk) = (world(), Disk::default());
    disk.starts(&mut world, 1, 1).expect("new");
    let redundancy = Some(Redundancy { data: 1, parity: 0 });
    let create = Create { redundancy, on: Medium::Disk, ..Create::new("v", Size::Bytes(E)) };
    world.ask(Call::Create(create)).expect("there is room");
    world.kill(DISK);
    let mut copy = disk.clone();
    disk.starts(&mut world, 2, 2).expect("the newest");
    world.kill(DISK);
    world.silence(DISK);
    refused(copy.starts(&mut world, 3, 3), &["was set back"]);
    assert_eq!(world.show("v").status.health, VolumeHealth::Lost);
    disk.starts(&mut world, 4, 4).expect("the newest");
    assert_eq!(world.show("v").status.health, VolumeHealth::Whole);
}
