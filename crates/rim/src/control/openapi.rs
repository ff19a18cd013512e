//! `openapi.json` says what the API does: every route of every call, and every field of every shape.

use super::wire::{GrowBody, LeaveBody, OPENAPI, wire};
use cheetah_core::api::{
    Amend, AtStake, Attach, Attached, Attachment, Call, Create, Crowd, DonorHealth, DonorStatus, Duties,
    Duty, Enrol, Enrolled, Filled, GrantKey, Join, Joined, KeptSlot, Leaving, Lineage, LogReport,
    MemberStatus, NewToken, OlderLog, PoolStatus, Recertify, Refusal, RefusalCode, Rehearsal, Renew, Renewed,
    SignedText, Size, Stranger, Sync, TokenStatus, Validation, VolumeDetail, VolumeHealth, VolumeReport,
    VolumeStatus, WaitsFor, WrappedKey,
};
use cheetah_core::content::{
    Beside, ByteRange, Check, Content, ContentState, Fill, FillFrom, Filling, Load, Loaded, OnDisk, Overlay,
    Partition, Scheme, Sealed, Sealing, Source, Tell, ToLoad, Written,
};
use cheetah_core::custody::{Case, Head, Said};
use cheetah_core::layout::LostRange;
use cheetah_core::map::{
    Backing, BadRange, DonorId, DonorSecret, Filler, Group, Incarnation, LeaseToken, Medium, MemberId,
    Placement, PoolId, Proofs, Redundancy, Route, Slot, TokenId, VolumeId, VolumeMap,
};
use cheetah_core::members::{Role, TokenHash, TokenSecret};
use cheetah_core::proofs::Root;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const DONOR: DonorId = DonorId(1);
const TOKEN: LeaseToken = LeaseToken(2);
const BAD: BadRange = BadRange { group: 0, slot: 0, from: 0, to: 4096 };

fn calls() -> Vec<Call> {
    let name = || "v".to_owned();
    let attach = Attach { yields: true, fill: Some(fill()), ..Attach::new(true, String::new()) };
    let renew = Renew {
        epoch: 1,
        place: String::new(),
        lost: vec![(DONOR, String::new())],
        report: report().into(),
        guests: vec![MemberId(9)],
    };
    vec![
        Call::Pool,
        Call::Join(join()),
        Call::Sync {
            donor: DONOR,
            sync: Sync {
                secret: DonorSecret(3),
                revision: 1,
                bytes_used: 2,
                connections: 3,
                leaving: false,
                goodbye: false,
                extents_offered: 4,
                incarnation: Some(Incarnation(1)),
            },
        },
        Call::Leave { donor: "d".into(), force: true },
        Call::Create(create()),
        Call::Show { name: name() },
        Call::Manifest { name: name() },
        Call::Validation(validation()),
        Call::Grow { name: name(), size: Size::All },
        Call::GrantKey { name: name(), grant: GrantKey { member: MemberId(5), key: wrapped_key() } },
        Call::Delete { name: name() },
        Call::Attach { name: name(), attach },
        Call::Renew { name: name(), token: TOKEN, renew },
        Call::Amend { name: name(), token: TOKEN, amend: amend() },
        Call::Tell { name: name(), token: TOKEN, tell: tell() },
        Call::Detach { name: name(), token: TOKEN },
        Call::Log { name: name() },
        Call::Say { name: name(), said: Said::Case(case()) },
        Call::NewToken(new_token()),
        Call::Tokens,
        Call::RevokeToken { token: TokenId(6) },
        Call::Enrol { enrol: enrol(), hash: TokenHash::new([1; 32]) },
        Call::Recertify(Recertify { key: String::new() }),
        Call::Members,
        Call::Member { member: MemberId(5) },
        Call::RevokeMember { member: MemberId(5) },
    ]
}

fn validation() -> Validation {
    Validation { html: String::new(), json: String::new() }
}

fn case() -> Case {
    let text = || Some(String::new());
    let (version, command) = (String::new(), String::new());
    Case { case: text(), evidence: text(), examiner: text(), notes: text(), version, command }
}

fn custody_shapes() -> Vec<(&'static str, Value)> {
    let head = Head { sequence: 1, hash: String::new() };
    let older = OlderLog { volume: VolumeId(2), head: head.clone() };
    let log = LogReport {
        pool: PoolId(1),
        volume: VolumeId(1),
        name: String::new(),
        deleted: false,
        lines: Vec::new(),
        head: head.clone(),
        older: vec![older.clone()],
        key: String::new(),
        signature: String::new(),
    };
    let (file, sha256) = (String::new(), String::new());
    vec![
        ("Case", json!(case())),
        ("Log", json!(log)),
        ("OlderLog", json!(older)),
        ("Head", json!(head)),
        ("SaidCase", json!(Said::Case(case()))),
        ("SaidExported", json!(Said::Exported { file, bytes: 1, sha256 })),
    ]
}

fn new_token() -> NewToken {
    NewToken { hash: TokenHash::new([1; 32]), role: Role::Donor, uses: Some(1), seconds: 2 }
}

fn enrol() -> Enrol {
    Enrol { secret: TokenSecret::new([1; 16]), key: String::new(), name: String::new() }
}

fn member_shapes() -> Vec<(&'static str, Value)> {
    let (token, role, member, text) = (TokenId(6), Role::Donor, MemberId(5), String::new);
    let (certificate, authority) = (text(), text());
    let enrolled = Enrolled { pool: PoolId(1), member, role, certificate, authority, lasts: 3 };
    let (name, joined, certified) = (text(), 1, 2);
    vec![
        ("NewToken", json!(new_token())),
        ("TokenStatus", json!(TokenStatus { token, role, uses_left: Some(1), used: 2, expires: 3 })),
        ("Enrol", json!(enrol())),
        ("Recertify", json!(Recertify { key: text() })),
        ("Enrolled", json!(enrolled)),
        ("WrappedKey", json!(wrapped_key())),
        (
            "MemberStatus",
            json!(MemberStatus { member, role, name, token: Some(token), joined, certified, key: text() }),
        ),
    ]
}

fn fill() -> Fill {
    let source =
        Source { name: "/e/disk.raw".into(), size: 1, identity: "inode 7".into(), checksummed: true };
    Fill { source, from: FillFrom::Fresh }
}

fn filler() -> Filler {
    Filler { address: "127.0.0.1:1".into(), export: "fill".into() }
}

fn filling() -> Filling {
    Filling { bytes_per_second: 1, paused: true, trouble: Some(String::new()), full: true }
}

fn on_disk() -> OnDisk {
    let partition = Partition { number: 1, offset: 0, len: 1, holds: String::new(), encrypted: true };
    OnDisk { scheme: Scheme::Gpt, partitions: vec![partition], left_out: 1 }
}

fn tell() -> Tell {
    let unreadable = vec![ByteRange { offset: 0, len: 512 }];
    let (text, check, unsealed) = (String::new, Check::Same, Some(String::new()));
    let (md5, sha256, changed) = (text(), text(), unsealed.clone());
    let loaded = Loaded { md5, sha256, check, changed, unsealed, unreadable: unreadable.clone() };
    Tell {
        bytes_done: Some(1),
        unreadable,
        loaded: Some(Box::new(loaded)),
        filling: Some(filling().into()),
        filler: Some(filler().into()),
        on_disk: Some(on_disk().into()),
        sealed: Some(sealing().into()),
        ..Tell::default()
    }
}

fn sealing() -> Sealing {
    let (root, hash) = (Root([0; 32]), String::new);
    Sealing { root, contents: Some(root), md5: hash(), sha1: hash(), sha256: hash(), by_reading: true }
}

fn sealed() -> Sealed {
    let Sealing { root, contents, md5, sha1, sha256, by_reading } = sealing();
    let custody = Some(Head { sequence: 1, hash: String::new() });
    Sealed { at: 1, by: String::new(), root, contents, md5, sha1, sha256, by_reading, custody }
}

fn content() -> Content {
    let load = Load {
        source: fill().source,
        by: "x".into(),
        begun: 1,
        ended: Some(2),
        bytes_done: 1,
        filling: Some(filling()),
        made: false,
        md5: Some(String::new()),
        sha256: Some(String::new()),
        check: Check::No,
        changed: Some(String::new()),
        unsealed: Some(String::new()),
        unreadable: tell().unreadable,
        on_disk: tell().on_disk,
        memory: Some(1),
    };
    let written = Written { at: 3, by: "y".into(), certain: true };
    Content {
        state: ContentState::Loaded,
        load: Some(Box::new(load)),
        written: Some(written),
        sealed: Some(sealed().into()),
        overlay: Some(overlay().into()),
    }
}

fn overlay() -> Overlay {
    Overlay { of: VolumeId(1), base: "case6".into(), size: 1 }
}

fn report() -> VolumeReport {
    let corrupt_blocks = vec![(DONOR, 1)];
    VolumeReport { wrong_in_memory: corrupt_blocks.clone(), corrupt_blocks, ..VolumeReport::default() }
}

fn amend() -> Amend {
    let placement = Placement { donor: DONOR, extent: 0 };
    Amend {
        epoch: 1,
        exclude: vec![(DONOR, String::new())],
        keep: vec![KeptSlot { group: 0, slot: 0 }],
        filled: vec![Filled { group: 0, slot: 0, placement }],
        bad: vec![BAD],
        rewritten: vec![BAD],
    }
}

fn join() -> Join {
    let (last, tried) = (Some(Incarnation(1)), vec![Incarnation(3)]);
    Join {
        version: 1,
        donor: DONOR,
        secret: DonorSecret(3),
        pool: Some(PoolId(1)),
        revision: 1,
        name: "d".to_owned(),
        or_numbered: true,
        host: "h".to_owned(),
        machine: "m".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        extents: 1,
        foreign_export: Some(String::new()),
        medium: Medium::Disk,
        keeps_auths: true,
        lineage: Some(Box::new(Lineage { incarnation: Incarnation(2), last, tried })),
    }
}

fn to_load() -> ToLoad {
    ToLoad { source: fill().source, by: "x".into(), backed: true, memory: Some(64 << 20) }
}

fn create() -> Create {
    Create {
        name: "v".into(),
        size: Size::Bytes(1),
        redundancy: Some(Redundancy::LINEAR),
        unit: Some(4096),
        follow: false,
        load: Some(Box::new(to_load())),
        overlay_of: Some("case6".into()),
        on: Medium::Disk,
        encrypted: Some(Box::new(wrapped_key())),
        write_back: true,
    }
}

fn attachment() -> Attachment {
    Attachment {
        holder: "x".into(),
        read_only: true,
        place: "p".into(),
        lost: vec![(DONOR, "y".into())],
        report: report(),
        health: VolumeHealth::Lost,
        slots_missing: 1,
        bytes_lost: 1,
        heard: true,
        silent_ms: 1,
    }
}

fn volume_status() -> VolumeStatus {
    VolumeStatus {
        volume: VolumeId(1),
        name: "v".into(),
        size: 1,
        redundancy: Redundancy::LINEAR,
        unit: 4096,
        medium: Medium::Disk,
        encrypted: true,
        write_back: true,
        epoch: 1,
        follow: true,
        attachments: vec![attachment()],
        health: VolumeHealth::Degraded,
        lost_donors: vec!["d".into()],
        slots_missing: 1,
        slots: 1,
        slots_filling: 1,
        bytes_lost: 1,
        repair: Some(String::new()),
        waits_for: Some(WaitsFor::Donor),
        may_lose_hosts: Some(1),
        crowd: Some(Crowd { host: "h".into(), slots: 2 }),
        content: Box::new(content()),
    }
}

fn donor_status() -> DonorStatus {
    DonorStatus {
        donor: DONOR,
        name: "d".into(),
        host: "h".into(),
        machine: "m".into(),
        address: "a".into(),
        health: DonorHealth::Alive,
        medium: Medium::Disk,
        bytes_total: 1,
        bytes_free: 1,
        bytes_used: 1,
        bytes_held: 1,
        bytes_offered: 1,
        leaving: true,
        heard: true,
        silent_ms: 1,
        stuck: Some(String::new()),
        bytes_given_up: 1,
        wrong_blocks: 1,
        has_bad_memory: true,
        keeps_checksums: true,
    }
}

/// Those that say what a volume holds.
fn content_shapes() -> Vec<(&'static str, Value)> {
    vec![
        ("Content", json!(content())),
        ("Load", json!(content().load)),
        ("Written", json!(content().written)),
        ("Sealing", json!(sealing())),
        ("Sealed", json!(sealed())),
        ("Overlay", json!(overlay())),
        ("Proofs", json!(map().proofs)),
        ("Validation", json!(validation())),
        (
            "SignedText",
            json!(SignedText { text: String::new(), signature: String::new(), key: String::new() }),
        ),
        ("Source", json!(fill().source)),
        ("Fill", json!(fill())),
        ("ByteRange", json!(tell().unreadable[0])),
        ("Loaded", json!(tell().loaded)),
        ("OnDisk", json!(on_disk())),
        ("Partition", json!(on_disk().partitions[0])),
        ("Lineage", json!(join().lineage)),
        ("Filling", json!(filling())),
        ("Filler", json!(filler())),
        ("Backing", json!(backing())),
        ("ToLoad", json!(to_load())),
    ]
}

/// Those that callers send.
fn bodies() -> Vec<(&'static str, Value)> {
    let bodies = calls().into_iter().filter_map(|call| {
        let name = match call {
            Call::Join(_) => "Join",
            Call::Sync { .. } => "Sync",
            Call::Attach { .. } => "Attach",
            Call::Renew { .. } => "Renew",
            Call::Create(_) => "Create",
            Call::Amend { .. } => "Amend",
            Call::Tell { .. } => "Tell",
            Call::GrantKey { .. } => "GrantKey",
            _ => return None,
        };
        Some((name, serde_json::from_slice(&wire(&call).body).expect("JSON")))
    });
    bodies.collect()
}

fn backing() -> Backing {
    Backing { filler: Some(filler()), complete: true, layers: 1 }
}

fn map() -> VolumeMap {
    let route = Route { name: "d".into(), address: "a".into(), foreign_export: Some(String::new()) };
    let placement = Placement { donor: DONOR, extent: 0 };
    VolumeMap {
        volume: VolumeId(1),
        name: "v".into(),
        epoch: 1,
        size: 1,
        redundancy: Redundancy::LINEAR,
        unit: 4096,
        groups: vec![Group { slots: vec![Slot { held: Some(placement), filling: Some(placement) }] }],
        routes: BTreeMap::from([(DONOR, route)]),
        bad: vec![BAD],
        unreadable: vec![BAD],
        hurry: true,
        backing: Some(backing()),
        proofs: Some(Proofs { root: Some(Root([0; 32])) }),
        encrypted: true,
        write_back: true,
        medium: Medium::Disk,
    }
}

fn duties() -> Duties {
    let duty = Duty {
        volume: VolumeId(1),
        name: "v".into(),
        epoch: 1,
        extents: vec![0],
        writer: Some(TOKEN),
        readers: vec![TOKEN],
        tend: true,
        repairs: true,
        sealed: true,
        backed: true,
        layers: 1,
        encrypted: true,
        write_back: true,
        members: BTreeMap::from([(TOKEN, MemberId(5))]),
    };
    Duties {
        revision: 1,
        volumes: vec![duty],
        dismissed: false,
        stuck: Some(String::new()),
        at_stake: Some(vec![AtStake { volume: "v".to_owned(), bytes: 1, slots_crowded: 1 }]),
    }
}

fn stranger() -> Stranger {
    Stranger { name: "d".into(), host: "h".into(), address: "a".into(), pool: PoolId(2) }
}

fn pool_status() -> PoolStatus {
    PoolStatus {
        version: 1,
        pool: PoolId(1),
        bytes_total: 1,
        bytes_free: 1,
        donors: vec![donor_status()],
        volumes: vec![volume_status()],
        addresses: vec!["a".to_owned()],
        strangers: vec![stranger()],
        members_only: true,
    }
}

fn beside() -> Beside {
    Beside { holder: "x".into(), read_only: true }
}

fn attached() -> Attached {
    Attached {
        token: TOKEN,
        pool: PoolId(1),
        lease_ms: 1,
        map: map(),
        unconfirmed: vec![DONOR],
        fresh: true,
        read_only: false,
        content: content(),
        beside: vec![beside()],
        key: Some(Box::new(wrapped_key())),
    }
}

fn wrapped_key() -> WrappedKey {
    WrappedKey { check: String::new(), wrapped: Some(String::new()), under: Some(String::new()) }
}

/// One of each shape, by the name of its schema, with every option present.
fn shapes() -> Vec<(&'static str, Value)> {
    let (map, status, donor, duties) = (map(), volume_status(), donor_status(), duties());
    let (group, route, bad) = (&map.groups[0], &map.routes[&DONOR], &map.bad[0]);
    let crowd = status.crowd.as_ref().expect("every option is present");
    let at_stake = duties.at_stake.as_ref().expect("every option is present");
    let rehearsal = Rehearsal { host: "h".into(), slots: 1, slots_homeless: 1 };
    let lost = LostRange { donor: Some(DONOR), offset: 0, len: 1, stride: 1, count: 1 };
    let refusal = Refusal { code: RefusalCode::PoolFull, message: String::new() };
    let mut shapes = bodies();
    shapes.extend([
        ("Leave", json!(LeaveBody { force: true })),
        ("Grow", json!(GrowBody { size: Size::All })),
        ("Joined", json!(Joined { pool: PoolId(1), heartbeat_ms: 1, name: "d".to_owned() })),
        ("Duties", json!(duties)),
        ("AtStake", json!(at_stake[0])),
        ("Duty", json!(duties.volumes[0])),
        ("Attached", json!(attached())),
        ("VolumeReport", json!(report())),
        ("Filled", json!(amend().filled[0])),
        (
            "Renewed",
            json!(Renewed {
                map: Some(map.clone()),
                beside: vec![beside()],
                silent: vec![DONOR],
                scrub: true,
                strangers: vec![MemberId(9)]
            }),
        ),
        ("VolumeMap", json!(map)),
        ("Group", json!(group)),
        ("Placement", json!(group.slots[0].held)),
        ("Slot", json!(group.slots[0])),
        ("BadRange", json!(bad)),
        ("Route", json!(route)),
        ("PoolStatus", json!(pool_status())),
        ("DonorStatus", json!(donor)),
        ("Stranger", json!(stranger())),
        ("VolumeStatus", json!(status)),
        ("Attachment", json!(attachment())),
        (
            "VolumeDetail",
            json!(VolumeDetail {
                status: status.clone(),
                map: map.clone(),
                lost: vec![lost.clone()],
                lost_to: vec![vec![lost.clone()]],
                rehearsal: Some(rehearsal.clone()),
                unreadable: vec![lost.clone()],
                case: Some(case()),
            }),
        ),
        ("Crowd", json!(crowd)),
        ("Rehearsal", json!(rehearsal)),
        ("Leaving", json!(Leaving { at_stake: at_stake.clone(), ..Leaving::default() })),
        ("LostRange", json!(lost)),
        ("Beside", json!(beside())),
        ("Refusal", json!(refusal)),
    ]);
    shapes.extend(content_shapes());
    shapes.extend(member_shapes());
    shapes.extend(custody_shapes());
    shapes
}

fn description() -> Value {
    serde_json::from_str(OPENAPI).expect("openapi.json is JSON")
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let description = description();
    let paths = description["paths"].as_object().expect("paths");
    let items = paths.values().flat_map(|path| path.as_object().expect("an item").keys());
    let mut described = items.filter(|key| *key != "parameters").count();
    for call in calls() {
        let wire = wire(&call);
        let path = (wire.path.replace("/leases/0000000000000002", "/leases/{token}"))
            .replace("/donors/0000000000000001/", "/donors/{donor}/")
            .replace("/donors/d/", "/donors/{donor}/")
            .replace("/tokens/0000000000000006", "/tokens/{token}")
            .replace("/members/0000000000000005", "/members/{member}")
            .replace("/volumes/v", "/volumes/{name}");
        let operation = &paths[&path][wire.method.as_str().to_lowercase()];
        assert!(operation.is_object(), "{} {path}", wire.method);
        assert_eq!(operation["requestBody"].is_object(), !wire.body.is_empty(), "{path}");
        described -= 1;
    }
    assert_eq!(described, 0, "openapi.json describes a route that is not there");
}

#[test]
fn every_field_is_described_and_nothing_else() {
    let description = description();
    let schemas = description["components"]["schemas"].as_object().expect("schemas");
    let mut seen = BTreeSet::from(["Size", "Done"]);
    for (name, value) in shapes() {
        seen.insert(name);
        let keys =
            |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<BTreeSet<_>>();
        let properties = &schemas[name]["properties"];
        assert_eq!(keys(&value), keys(properties), "{name}");
        for required in schemas[name]["required"].as_array().expect("required") {
            assert!(value.get(required.as_str().expect("a name")).is_some(), "{name}: {required}");
        }
    }
    assert_eq!(schemas.keys().map(String::as_str).collect::<BTreeSet<_>>(), seen);
    assert!(OPENAPI.matches("#/components/schemas/").count() > schemas.len(), "shapes are used");
    let used = OPENAPI.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next());
    used.for_each(|name| assert!(schemas.contains_key(name), "{name} is described"));
}
