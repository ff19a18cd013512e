//! What is not well is found, with its code, its state and what to do; and nothing is found where all is
//! well.

use crate::pool::{self, World};
use cheetah_core::api::{
    API_VERSION, Attachment, Call, Crowd, DonorHealth, DonorStatus, PoolStatus, Renew, Size, Stranger,
    VolumeHealth, VolumeReport, VolumeStatus, WaitsFor,
};
use cheetah_core::content::{Check, Content, ContentState, Load, Sealed, Source, Written};
use cheetah_core::findings::{Code, Finding, State, of_pool, worst};
use cheetah_core::limits::{ATTACHMENT_SILENCE_NS, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, PoolId, Redundancy, VolumeId};

const CODES: &str = include_str!("../../../docs/CODES.md");

fn donor(id: u64) -> DonorStatus {
    DonorStatus {
        donor: DonorId(id),
        name: format!("d{id}"),
        host: format!("h{id}"),
        machine: format!("boot{id}"),
        address: format!("10.0.0.{id}:1000"),
        health: DonorHealth::Alive,
        medium: cheetah_core::map::Medium::Memory,
        bytes_total: 8 << 30,
        bytes_free: 4 << 30,
        bytes_used: 0,
        bytes_held: 1 << 30,
        bytes_offered: 8 << 30,
        leaving: false,
        heard: true,
        silent_ms: 200,
        stuck: None,
        bytes_given_up: 0,
        wrong_blocks: 0,
        has_bad_memory: false,
        keeps_checksums: true,
    }
}

fn attachment() -> Attachment {
    Attachment {
        holder: "eve@lab process 7".into(),
        read_only: false,
        place: "/mnt/c/case7.raw".into(),
        lost: Vec::new(),
        report: VolumeReport::default(),
        health: VolumeHealth::Whole,
        slots_missing: 0,
        bytes_lost: 0,
        heard: true,
        silent_ms: 1_500,
    }
}

fn volume() -> VolumeStatus {
    VolumeStatus {
        volume: VolumeId(1),
        name: "case7".into(),
        size: 1 << 30,
        redundancy: Redundancy { data: 3, parity: 1 },
        unit: 65_536,
        medium: cheetah_core::map::Medium::Memory,
        encrypted: false,
        write_back: false,
        epoch: 1,
        follow: false,
        attachments: vec![attachment()],
        health: VolumeHealth::Whole,
        lost_donors: Vec::new(),
        slots_missing: 0,
        slots: 24,
        slots_filling: 0,
        bytes_lost: 0,
        repair: None,
        waits_for: None,
        may_lose_hosts: Some(1),
        crowd: None,
        content: Box::default(),
    }
}

fn well() -> PoolStatus {
    PoolStatus {
        version: API_VERSION,
        pool: PoolId(7),
        bytes_total: 32 << 30,
        bytes_free: 16 << 30,
        donors: (1..=4).map(donor).collect(),
        volumes: vec![volume()],
        addresses: Vec::new(),
        strangers: Vec::new(),
        members_only: false,
    }
}

/// The one finding of a pool that was well before this change.
fn found(change: impl FnOnce(&mut PoolStatus)) -> Finding {
    let mut status = well();
    change(&mut status);
    let mut found = of_pool(&status);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn assert_says(finding: &Finding, code: Code, state: State, words: &[&str]) {
    assert_eq!((finding.code, finding.state), (code, state), "{finding:?}");
    let said = format!("{}: {} {}", finding.subject, finding.what, finding.advice);
    for word in words {
        assert!(said.contains(word), "'{said}' says '{word}'");
    }
    assert!(finding.what.ends_with('.') && finding.advice.ends_with('.'), "sentences: {finding:?}");
}

#[test]
fn a_pool_that_is_well_has_no_findings() {
    assert_eq!(of_pool(&well()), []);
    assert_eq!(worst(&[]), State::Well);
    let mut moving = well();
    moving.volumes[0].slots_filling = 3;
    moving.donors[0].leaving = true;
    assert_eq!(of_pool(&moving), [], "what was asked for is no fault");
}

#[test]
fn what_is_wrong_with_donors_is_found() {
    let empty = found(|status| (status.donors, status.volumes) = (Vec::new(), Vec::new()));
    assert_says(&empty, Code::PoolEmpty, State::Degraded, &["No donor", "cheetah donate"]);
    let (name, host, address) = ("d9".into(), "h9".into(), "10.0.0.9:1".into());
    let stranger = Stranger { name, host, address, pool: PoolId(9) };
    let other = found(|pool| pool.strangers.push(stranger));
    let says = ["donor d9", "h9", "0000000000000009", "keeps", "--state", "wipes"];
    assert_says(&other, Code::DonorOfOtherPool, State::Degraded, &says);
    let gone = found(|status| {
        status.donors[2].health = DonorHealth::Lost;
        status.donors[2].silent_ms = 37_500;
    });
    assert_says(
        &gone,
        Code::DonorGone,
        State::Degraded,
        &["donor d3", "h3", "37 seconds", "1 GiB", "10.0.0.3:1000"],
    );
    let unheard = found(|status| status.donors[0].health = DonorHealth::Unknown);
    assert_says(&unheard, Code::DonorUnheard, State::Unknown, &["donor d1", "since it began"]);
}

#[test]
fn what_lay_on_a_donor_that_is_gone_is_said_to_be_rebuilt_where_it_is() {
    let gone = |given_up, missing| {
        let mut status = well();
        let donor = &mut status.donors[2];
        (donor.health, donor.bytes_held, donor.bytes_given_up) = (DonorHealth::Lost, 0, given_up);
        status.volumes[0].slots_missing = missing;
        let found = of_pool(&status).into_iter().find(|finding| finding.code == Code::DonorGone);
        found.expect("it is gone").what
    };
    assert!(gone(0, 0).ends_with("No volume counts on it."));
    assert!(gone(64 << 20, 0).contains("the 64 MiB that lay there are rebuilt on others."));
    assert!(gone(64 << 20, 1).contains("Others rebuild the 64 MiB of volumes that lay there"));
    let mut world = World::with_donors(&[4; 4]);
    world.create("v", Size::Bytes(pool::E), Some("mirror:2")).expect("created");
    let map = world.show("v").map;
    let holder = (1..=4).find(|id| pool::held_by(&map, *id) > 0).expect("a holder");
    world.kill(holder);
    let status = world.status();
    let donor = status.donors.iter().find(|donor| donor.donor == DonorId(holder)).expect("listed");
    assert_eq!((donor.bytes_held, donor.bytes_given_up), (0, pool::E));
}

#[test]
fn what_is_lost_is_loaded_again_only_where_a_load_filled_it() {
    let lost = |content: Content| {
        found(|status| {
            let volume = &mut status.volumes[0];
            (volume.health, volume.bytes_lost, volume.content) =
                (VolumeHealth::Lost, 1 << 20, content.into());
        })
        .advice
    };
    let written = Written { at: 1, by: "bob".into(), certain: true };
    let plain = Content {
        state: ContentState::Written,
        load: None,
        written: Some(written.clone()),
        ..Content::default()
    };
    let said = lost(plain);
    assert!(said.contains("no load filled it") && !said.contains("source"), "{said}");
    let source =
        Source { name: "/e/disk.raw".into(), size: 1 << 30, identity: "inode 7".into(), checksummed: false };
    let load = Load {
        source,
        by: "eve".into(),
        begun: 1,
        ended: Some(2),
        bytes_done: 1 << 30,
        filling: None,
        md5: None,
        sha256: None,
        check: Check::Same,
        changed: None,
        unsealed: None,
        unreadable: Vec::new(),
        on_disk: None,
        memory: None,
        made: false,
    };
    let loaded = Content { state: ContentState::Loaded, load: Some(Box::new(load)), ..Content::default() };
    let said = lost(loaded.clone());
    assert!(said.contains("`cheetah load /e/disk.raw case7 --overwrite`"), "{said}");
    let (root, custody, hash) = (cheetah_core::proofs::Root([0; 32]), None, String::new);
    let (at, by, by_reading) = (3, "eve".to_owned(), false);
    let contents = None;
    let sealed =
        Sealed { at, by, root, contents, md5: hash(), sha1: hash(), sha256: hash(), by_reading, custody };
    let said = lost(Content { sealed: Some(sealed.into()), ..loaded.clone() });
    assert!(said.contains("`cheetah delete case7` and `cheetah load /e/disk.raw case7`"), "{said}");
    let said = lost(Content { written: Some(written), ..loaded });
    assert!(said.contains("without what was written since"), "{said}");
}

#[test]
fn a_donor_that_cannot_be_emptied_is_found() {
    let mut world = World::with_donors(&[4, 4]);
    world.create("v", Size::Bytes(8 * pool::E), Some("linear")).expect("created");
    assert_eq!(of_pool(&world.status()), []);
    let refused = world.leave("d1", false);
    assert!(refused.is_err(), "who asks for it is told at once");
    world.leaving.insert(DonorId(1));
    world.settle();
    let all = of_pool(&world.status());
    assert_eq!(all.len(), 1, "{all:?}");
    let words =
        ["donor d1", "is to leave", "256 MiB", "No other donor can take 4 fragments", "cheetah donate"];
    assert_says(&all[0], Code::DonorStuck, State::Exposed, &words);
    world.join(3, 8).expect("another");
    world.settle();
    assert_eq!(of_pool(&world.status()), [], "it is moved");
    let less = found(|status| {
        let donor = &mut status.donors[0];
        (donor.stuck, donor.bytes_offered) = (Some("no other donor can take it: start one".into()), 0);
    });
    assert_says(&less, Code::DonorStuck, State::Exposed, &["1 GiB back to its owner"]);
}

#[test]
fn a_host_that_holds_too_much_of_a_group_is_found() {
    let crowded = |parity, may_lose| {
        found(|status| {
            let volume = &mut status.volumes[0];
            (volume.health, volume.redundancy.parity) = (VolumeHealth::Crowded, parity);
            (volume.may_lose_hosts, volume.crowd) =
                (Some(may_lose), Some(Crowd { host: "kali".into(), slots: 2 }));
        })
    };
    let words = ["case7 is whole", "host kali holds 2", "Data is lost when it goes", "cheetah donate"];
    assert_says(&crowded(1, 0), Code::VolumeCrowded, State::Exposed, &words);
    assert_says(&crowded(2, 1), Code::VolumeCrowded, State::Exposed, &["parity:3+2 covers that"]);
}

#[test]
fn what_is_wrong_with_a_volume_is_found() {
    let lost = found(|status| {
        let volume = &mut status.volumes[0];
        (volume.health, volume.bytes_lost, volume.slots_missing) = (VolumeHealth::Lost, 64 << 20, 2);
        volume.lost_donors = vec!["d1".into(), "d2".into()];
    });
    let words = [
        "64 MiB of volume case7",
        "2 of 24 fragments",
        "d1, d2 are gone",
        "EIO",
        "Bring back",
        "not written",
    ];
    assert_says(&lost, Code::VolumeLost, State::Lost, &words);
    let bad = found(|status| {
        let volume = &mut status.volumes[0];
        (volume.health, volume.bytes_lost) = (VolumeHealth::Lost, 4096);
    });
    assert_says(&bad, Code::VolumeLost, State::Lost, &["4 KiB", "written there anew"]);
    assert!(!bad.advice.contains("Bring back"), "nobody is gone");
    let degraded = |repair: Option<&str>, waits_for| {
        found(|status| {
            let volume = &mut status.volumes[0];
            (volume.health, volume.slots_missing) = (VolumeHealth::Degraded, 2);
            (volume.repair, volume.waits_for) = (repair.map(str::to_owned), waits_for);
        })
    };
    let by_itself = degraded(Some("a donor rebuilds it in a moment"), None);
    assert_says(
        &by_itself,
        Code::VolumeDegraded,
        State::Degraded,
        &["can be read", "Nothing: a donor rebuilds it"],
    );
    let needs = degraded(Some("no donor has room for 2 fragments"), Some(WaitsFor::Donor));
    assert_says(&needs, Code::VolumeNeedsDonor, State::Degraded, &["No donor has room"]);
    let needs = degraded(Some("parity:3+1 needs 4 donors"), Some(WaitsFor::Donor));
    assert_says(&needs, Code::VolumeNeedsDonor, State::Degraded, &["parity:3+1 needs"]);
    let needs = degraded(Some("none of its donors can attach it"), Some(WaitsFor::Writer));
    assert_says(&needs, Code::VolumeNeedsWriter, State::Degraded, &["None of its donors"]);
    let unheard = found(|status| status.volumes[0].health = VolumeHealth::Unknown);
    assert_says(&unheard, Code::VolumeUnheard, State::Unknown, &["case7", "since the coordinator began"]);
}

#[test]
fn a_rebuild_under_way_says_how_far_it_is() {
    let finding = found(|status| {
        let volume = &mut status.volumes[0];
        (volume.health, volume.slots_missing, volume.slots_filling) = (VolumeHealth::Degraded, 2, 2);
        volume.attachments[0].report = VolumeReport {
            fill_bytes_done: 34 << 20,
            fill_bytes_total: 100 << 20,
            fill_bytes_per_second: 3 << 20,
            ..VolumeReport::default()
        };
    });
    assert_says(&finding, Code::VolumeDegraded, State::Degraded, &["rebuilt, 34 %, 3 MiB/s, 22 s left"]);
}

#[test]
fn what_an_attachment_met_is_found() {
    let far = |bytes_lost| {
        found(|status| {
            let attachment = &mut status.volumes[0].attachments[0];
            attachment.lost = vec![(DonorId(2), "silent for 800 ms".into())];
            attachment.bytes_lost = bytes_lost;
        })
    };
    let words = ["eve@lab process 7 cannot reach donor d2 (silent for 800 ms)", "read from the others"];
    assert_says(&far(0), Code::DonorUnreachable, State::Degraded, &words);
    let mut gone = well();
    gone.donors[1].health = DonorHealth::Lost;
    gone.volumes[0].lost_donors = vec!["d2".into()];
    gone.volumes[0].attachments[0].lost = vec![(DonorId(2), "refused".into())];
    let codes: Vec<Code> = of_pool(&gone).iter().map(|finding| finding.code).collect();
    assert_eq!(codes, [Code::DonorGone], "said once");
    assert_says(
        &far(1 << 20),
        Code::DonorUnreachable,
        State::Lost,
        &["1 MiB of volume case7 answer EIO there"],
    );
    let wrong = found(|status| {
        let report = &mut status.volumes[0].attachments[0].report;
        (report.corrupt_blocks, report.healed_blocks) = (vec![(DonorId(1), 1), (DonorId(3), 7)], 8);
    });
    let words = ["8 blocks", "1 from d1, 7 from d3", "8 were healed", "cheetah leave d3"];
    assert_says(&wrong, Code::DonorWrongBlocks, State::Degraded, &words);
    let amiss = found(|status| status.volumes[0].attachments[0].report.compare_mismatches = 1);
    assert_says(&amiss, Code::VolumeDisagrees, State::Degraded, &["1 place,", "no checksum"]);
    let older = found(|status| status.volumes[0].attachments[0].report.unflushed_bytes = 3 << 20);
    assert_says(
        &older,
        Code::VolumeUnflushed,
        State::Degraded,
        &["Up to 3 MiB", "stopped before", "cheetah log"],
    );
}

#[test]
fn what_is_stale_is_unknown_and_never_well() {
    let old = ATTACHMENT_SILENCE_NS / MILLISECOND_NS;
    let silent = found(|status| status.volumes[0].attachments[0].silent_ms = old);
    assert_says(&silent, Code::AttachmentSilent, State::Unknown, &["eve@lab process 7", "for 6 seconds"]);
    let unheard = found(|status| status.volumes[0].attachments[0].heard = false);
    assert_says(&unheard, Code::AttachmentSilent, State::Unknown, &["since the coordinator began"]);
    let mut status = well();
    let attachment = &mut status.volumes[0].attachments[0];
    attachment.lost = vec![(DonorId(2), "refused".into())];
    (attachment.bytes_lost, attachment.silent_ms) = (1 << 20, old);
    let found = of_pool(&status);
    assert_eq!(found.len(), 1, "what it said before is of then: {found:?}");
}

#[test]
fn the_worst_comes_first() {
    let mut status = well();
    status.donors[0].health = DonorHealth::Unknown;
    status.donors[1].health = DonorHealth::Lost;
    (status.volumes[0].health, status.volumes[0].bytes_lost) = (VolumeHealth::Lost, 1);
    let found = of_pool(&status);
    let codes: Vec<Code> = found.iter().map(|finding| finding.code).collect();
    assert_eq!(codes, [Code::VolumeLost, Code::DonorGone, Code::DonorUnheard]);
    assert_eq!(worst(&found), State::Lost);
}

#[test]
fn every_code_is_explained_once() {
    for code in Code::ALL {
        assert_eq!(CODES.matches(&format!("\n| {} | ", code.word())).count(), 1, "{}", code.word());
    }
    assert_eq!(
        CODES.lines().filter(|line| line.starts_with("| ")).count(),
        Code::ALL.len() + 1,
        "no code but these"
    );
}

/// The coordinator's word, from the machine itself: after a restart nothing is well until it was heard of.
#[test]
fn a_restarted_coordinator_knows_nothing_until_it_hears() {
    let mut world = World::with_donors(&[8, 8, 8]);
    world.create("v", Size::Bytes(pool::E), Some("parity:2+1")).expect("created");
    let attached = world.attach("v", false).expect("attached");
    assert_eq!(of_pool(&world.status()), []);
    let donors = std::mem::take(&mut world.donors);
    world.restart();
    let call = world.send(Call::Pool);
    let status = match world.answer(call) {
        Some(Ok(cheetah_core::api::Answer::Pool(status))) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!((status.bytes_total, status.bytes_free), (0, 0), "who may be dead lends nothing");
    assert!(status.donors.iter().all(|donor| donor.health == DonorHealth::Unknown));
    assert_eq!(status.volumes[0].health, VolumeHealth::Unknown);
    let found = of_pool(&status);
    let count = |code| found.iter().filter(|finding| finding.code == code).count();
    assert_eq!(
        (count(Code::DonorUnheard), count(Code::VolumeUnheard), count(Code::AttachmentSilent)),
        (3, 1, 1)
    );
    assert_eq!(worst(&found), State::Unknown);
    world.donors = donors;
    world.settle();
    let renew = Renew {
        epoch: attached.map.epoch,
        place: "/x".into(),
        lost: Vec::new(),
        report: Box::default(),
        guests: Vec::new(),
    };
    world.send(Call::Renew { name: "v".into(), token: attached.token, renew });
    assert_eq!(of_pool(&world.status()), [], "all were heard of");
    world.pass(ATTACHMENT_SILENCE_NS + SECOND_NS);
    let found = of_pool(&world.status());
    assert_eq!(found.iter().map(|finding| finding.code).collect::<Vec<_>>(), [Code::AttachmentSilent]);
}
