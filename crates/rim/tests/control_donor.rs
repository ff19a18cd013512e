//! The donor loop against a real coordinator: admissions, growth, outages and the end.

mod greeter;

use cheetah_core::api::{Answer, Attach, Attached, Call, Create, PoolStatus, RefusalCode, Size};
use cheetah_core::donor::{Denied, Exit, OpenError, export_name};
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{DonorId, Medium};
use cheetah_rim::control::{
    CallError, Client, CoordinateOptions, Coordination, DonorControl, DonorHandle, DonorHooks, DonorOptions,
    StateAt, coordinate,
};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

struct Donor {
    handle: DonorHandle,
    task: JoinHandle<Exit>,
    wiped: Arc<Mutex<Vec<u32>>>,
}

async fn coordinator(listen: &str, state: StateAt) -> Coordination {
    let listen = listen.parse().expect("an address");
    coordinate(CoordinateOptions::new(listen, state)).await.expect("starts")
}

fn donate(url: &str, name: &str) -> Donor {
    let wiped = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&wiped);
    let wipe = move |extents: &[u32]| {
        record.lock().expect("unpoisoned").extend_from_slice(extents);
        Ok(())
    };
    let hooks = DonorHooks { wipe: Arc::new(wipe), bytes_used: Arc::new(|| 4096), keep: None };
    let options = DonorOptions {
        name: name.into(),
        or_numbered: false,
        host: "h".into(),
        machine: String::new(),
        listen: greeter::listens(),
        extents: 4,
        foreign_export: None,
        medium: Medium::Memory,
        keeps_auths: false,
    };
    let (control, handle) =
        DonorControl::new(options, Client::new(url).expect("a URL"), hooks).expect("random");
    Donor { handle, task: tokio::spawn(control.run()), wiped }
}

async fn create(client: &Client, name: &str) {
    let (name, size) = (name.to_owned(), Size::Bytes(2 * EXTENT_BYTES));
    let create = Create::new(name, size);
    client.call(Call::Create(create)).await.expect("created");
}

async fn attach(client: &Client, name: &str) -> Attached {
    let attach = Attach::new(false, "me");
    match client.call(Call::Attach { name: name.into(), attach }).await {
        Ok(Answer::Attached(attached)) => attached,
        other => panic!("{other:?}"),
    }
}

/// The only donor of the volume.
fn donor_of(lease: &Attached) -> DonorId {
    lease.map.donors().next().expect("a donor")
}

async fn status(client: &Client) -> PoolStatus {
    match client.call(Call::Pool).await {
        Ok(Answer::Pool(status)) => status,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_lease_opens_connections_and_its_end_closes_them() {
    let coordination = coordinator("127.0.0.1:0", StateAt::Memory).await;
    let client = Client::new(&coordination.url()).expect("a URL");
    let mut donor = donate(&coordination.url(), "d");
    assert_eq!(donor.handle.joined().await, Some(coordination.pool()));
    create(&client, "v").await;
    let lease = attach(&client, "v").await;
    assert_eq!(lease.unconfirmed, [], "the donor knows it by now");

    let mut first =
        donor.handle.open(&export_name("v", lease.token, 1, donor_of(&lease)), None).await.expect("admitted");
    assert_eq!((first.grant.writable, first.grant.size, first.is_dropped()), (true, 2 * EXTENT_BYTES, false));
    let access = donor.handle.access();
    assert_eq!(access.borrow().check(&first.grant, true, 0, 4096), Ok(()));
    assert_eq!(access.borrow().check(&first.grant, true, 2 * EXTENT_BYTES, 1), Err(Denied::Beyond));
    assert_eq!(donor.handle.open("v@00", None).await.err(), Some(OpenError::Malformed));

    let opening = tokio::spawn({
        let (handle, export) = (donor.handle.clone(), export_name("v", lease.token, 2, donor_of(&lease)));
        async move { handle.open(&export, None).await }
    });
    first.dropped().await;
    assert!(!opening.is_finished(), "the newer session waits for the older to be closed");
    drop(first);
    let mut second = opening.await.expect("no panic").expect("admitted");

    client.call(Call::Detach { name: "v".into(), token: lease.token }).await.expect("detached");
    second.dropped().await;
    assert_eq!(access.borrow().check(&second.grant, false, 0, 1), Err(Denied::LeaseEnded));
    drop(second);
    client.call(Call::Delete { name: "v".into() }).await.expect("deleted");
    // Answered once the donor has wiped and confirmed.
    create(&client, "w").await;
    assert_eq!(*donor.wiped.lock().expect("unpoisoned"), [0, 1]);

    donor.handle.terminate();
    assert_eq!(donor.task.await.expect("no panic"), Exit::Terminated);
    assert_eq!(*donor.wiped.lock().expect("unpoisoned"), [0, 1, 0, 1]);
    let lost = status(&client).await.volumes[0].bytes_lost;
    assert_eq!(lost, 2 * EXTENT_BYTES, "said at once, without waiting for silence");
}

#[tokio::test]
async fn a_restarted_coordinator_disturbs_nobody() {
    let directory: PathBuf = std::env::temp_dir().join(format!("cheetah-donor-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let coordination = coordinator("127.0.0.1:0", StateAt::Directory(directory.clone())).await;
    let (url, listen) = (coordination.url(), coordination.address().to_string());
    let client = Client::new(&url).expect("a URL");
    let mut donor = donate(&url, "d");
    donor.handle.joined().await;
    create(&client, "v").await;
    let lease = attach(&client, "v").await;
    let open =
        donor.handle.open(&export_name("v", lease.token, 1, donor_of(&lease)), None).await.expect("admitted");
    coordination.stop().await.expect("stops");
    donor
        .handle
        .open(&export_name("v", lease.token, 1, donor_of(&lease)), None)
        .await
        .expect("admitted without a coordinator");

    let again = coordinator(&listen, StateAt::Directory(directory.clone())).await;
    // Nothing new is placed on a donor before the new coordinator has heard of it.
    let grown = loop {
        match client.call(Call::Grow { name: "v".into(), size: Size::All }).await {
            Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::Unavailable => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => break other,
        }
    };
    assert!(matches!(grown, Ok(Answer::Volume(_))), "{grown:?}");
    // On a machine that is busy the donor may be heard late, and counts as silent until then.
    let mut looks = 0..3000;
    while status(&client).await.volumes[0].bytes_lost > 0 && looks.next().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!looks.is_empty(), "nothing is lost for good");
    assert!(!open.is_dropped());
    assert_eq!(donor.handle.access().borrow().check(&open.grant, true, 3 * EXTENT_BYTES, 1), Ok(()));
    assert!(donor.wiped.lock().expect("unpoisoned").is_empty());
    again.stop().await.expect("stops");
    let _ = std::fs::remove_dir_all(&directory);
}

#[tokio::test]
async fn a_dismissed_or_unwanted_donor_ends_and_knows_why() {
    let coordination = coordinator("127.0.0.1:0", StateAt::Memory).await;
    let client = Client::new(&coordination.url()).expect("a URL");
    let mut donor = donate(&coordination.url(), "d");
    donor.handle.joined().await;
    match donate(&coordination.url(), "a b").task.await.expect("no panic") {
        Exit::Refused(refusal) => assert!(refusal.message.contains("'a b'"), "{refusal:?}"),
        other => panic!("{other:?}"),
    }
    client.call(Call::Leave { donor: "d".into(), force: false }).await.expect("leaves");
    assert_eq!(donor.task.await.expect("no panic"), Exit::Dismissed);
    assert_eq!(donor.handle.open("v@0000000000000001", None).await.err(), Some(OpenError::Leaving));
    assert_eq!(status(&client).await.donors, []);
}

#[tokio::test]
async fn told_to_leave_it_stays_for_what_it_holds_and_no_longer() {
    let coordination = coordinator("127.0.0.1:0", StateAt::Memory).await;
    let client = Client::new(&coordination.url()).expect("a URL");
    let mut empty = donate(&coordination.url(), "e");
    empty.handle.joined().await.expect("joins");
    empty.handle.leave(false);
    assert!(matches!(empty.task.await.expect("no panic"), Exit::Terminated | Exit::Dismissed));

    let mut donor = donate(&coordination.url(), "d");
    donor.handle.joined().await.expect("joins");
    create(&client, "v").await;
    let mut state = donor.handle.state();
    state.wait_for(|state| state.extents_held == 2).await.expect("runs");
    donor.handle.leave(false);
    let state = state.wait_for(|state| state.draining.is_some()).await.expect("runs").clone();
    assert_eq!(state.draining.expect("told").volumes, ["v"]);
    let lease = attach(&client, "v").await;
    let export = export_name("v", lease.token, 1, donor_of(&lease));
    drop(donor.handle.open(&export, None).await.expect("nobody else has it, so it serves on"));
    donor.handle.terminate();
    assert_eq!(donor.task.await.expect("no panic"), Exit::Terminated);
    assert_eq!(*donor.wiped.lock().expect("unpoisoned"), [0, 1]);
}
