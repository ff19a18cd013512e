//! What callers tell is bounded and harmless once it is in, whatever they send.

use crate::pool::{self, E, World, assert_refused, joining};
use cheetah_core::api::{Answer, Attach, Call, Join, RefusalCode, Renew, Size, Sync, VolumeReport};
use cheetah_core::limits::{
    DONOR_EXTENTS_MAX, DONOR_MEMORY_EXTENTS_MAX, EXTENT_BYTES, HOLDER_BYTES_MAX, HOST_BYTES_MAX,
    PLACE_BYTES_MAX, REASON_BYTES_MAX,
};
use cheetah_core::map::DonorId;
use cheetah_core::text::is_harmless;

const EVIL: &str = "\u{1b}[2J\u{202e}gnp.exe\nready\u{9b}31m";

fn evil(bytes: usize) -> String {
    EVIL.repeat(bytes / EVIL.len() + 1)
}

fn is_fit(text: &str, bytes_max: usize) -> bool {
    text.len() <= bytes_max && text.chars().all(is_harmless)
}

#[test]
fn text_is_cut_and_made_harmless_where_it_comes_in() {
    let mut world = World::with_donors(&[4, 4]);
    let host = evil(4000);
    world.ask(Call::Join(Join { host, ..joining(3, 4) })).expect("a host may be called anything");
    let status = world.status();
    assert!(status.donors.iter().all(|donor| is_fit(&donor.host, HOST_BYTES_MAX)), "{status:?}");
    let export = Some("a\nb".to_owned());
    let foreign = Call::Join(Join { foreign_export: export, ..joining(4, 4) });
    assert_refused(world.ask(foreign), RefusalCode::Invalid, &["export"]);

    world.create("v", Size::Bytes(2 * E), Some("stripe:2")).expect("created");
    let attach = Call::Attach { name: "v".into(), attach: Attach::new(true, evil(4000)) };
    let Ok(Answer::Attached(lease)) = world.ask(attach) else { panic!("a holder may be called anything") };
    let donor = lease.map.donors().next().expect("a donor");
    let lost = vec![(donor, evil(4000)), (donor, "again".into())];
    let renew = Renew { epoch: 1, place: evil(10_000), lost, report: Box::default(), guests: Vec::new() };
    world.send(Call::Renew { name: "v".into(), token: lease.token, renew });
    let detail = world.show("v");
    let seen = &detail.status.attachments[0];
    assert!(is_fit(&seen.holder, HOLDER_BYTES_MAX), "{}", seen.holder);
    assert!(is_fit(&seen.place, PLACE_BYTES_MAX), "{}", seen.place);
    assert_eq!(seen.lost.len(), 1, "of each donor once");
    assert!(is_fit(&seen.lost[0].1, REASON_BYTES_MAX), "{:?}", seen.lost);
    // What is stored is the same, and comes back as it was.
    let (holder, hosts) = (seen.holder.clone(), status.donors);
    world.restart();
    assert_eq!(world.show("v").status.attachments[0].holder, holder);
    assert!(world.status().donors.iter().all(|donor| is_fit(&donor.host, HOST_BYTES_MAX)), "{hosts:?}");
}

#[test]
fn reports_are_about_donors_that_the_volume_has_or_had() {
    let mut world = World::with_donors(&[4, 4, 4, 4]);
    world.create("v", Size::Bytes(2 * E), Some("parity:2+1")).expect("created");
    let lease = world.attach("v", false).expect("attached");
    let of_map: Vec<DonorId> = lease.map.donors().collect();
    let report = |world: &mut World, blocks: Vec<(DonorId, u64)>| {
        let lost = (0..40_000).map(|id| (DonorId(id), "gone".to_owned())).collect();
        let report = Box::new(VolumeReport { corrupt_blocks: blocks, ..VolumeReport::default() });
        let renew =
            Renew { epoch: lease.map.epoch, place: "/mnt/x".into(), lost, report, guests: Vec::new() };
        world.send(Call::Renew { name: "v".into(), token: lease.token, renew });
        let attachment = world.show("v").status.attachments.remove(0);
        assert!(attachment.lost.len() <= 4, "{}: of donors of the pool alone", attachment.lost.len());
        attachment.report.corrupt_blocks
    };
    let many = |count: u64| (0..40_000).map(move |id| (DonorId(id), count)).collect::<Vec<_>>();
    let told = report(&mut world, [many(7), many(8)].concat());
    assert_eq!(told.len(), of_map.len(), "of donors of the volume alone");
    assert_eq!(told, of_map.iter().map(|donor| (*donor, 7)).collect::<Vec<_>>(), "and of each once");
    // One that is taken out because of what it sent is still told of.
    let map = world.exclude("v", lease.token, &[of_map[0].0]);
    assert!(!map.routes.contains_key(&of_map[0]));
    let told = report(&mut world, many(9));
    // And of the one that took its place, of which nothing was told before.
    assert!(told.contains(&(of_map[0], 9)) && told.len() <= of_map.len() + 1, "{told:?}");
    assert_eq!(report(&mut world, vec![]), []);
}

#[test]
fn a_donor_uses_no_more_than_it_lends() {
    let mut world = World::with_donors(&[4]);
    let (bytes_used, extents_offered) = (u64::MAX, u32::MAX);
    let sync = Sync {
        secret: pool::secret_of(DonorId(1)),
        revision: 1,
        bytes_used,
        connections: 0,
        leaving: false,
        goodbye: false,
        extents_offered,
        incarnation: None,
    };
    world.send(Call::Sync { donor: DonorId(1), sync });
    assert_eq!(world.status().donors[0].bytes_used, 4 * EXTENT_BYTES);
}

#[test]
fn a_claim_beyond_any_machines_memory_is_not_believed() {
    let mut world = World::new();
    let most = DONOR_MEMORY_EXTENTS_MAX;
    assert_refused(world.join(1, most + 1), RefusalCode::Invalid, &["16 TiB"]);
    world.join(1, most).expect("as large as machines are");
    let foreign_export = Some(String::new());
    let join = Join { foreign_export, ..joining(2, DONOR_EXTENTS_MAX) };
    world.ask(Call::Join(join)).expect("another's server may have disks");
}
