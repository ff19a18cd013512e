//! The coordinator over real sockets and a real store, and how it says no.

mod greeter;

use cheetah_core::api::{
    API_VERSION, Amend, Answer, Attach, Call, Create, Join, RefusalCode, Renew, Size, Sync, VolumeStatus,
};
use cheetah_core::map::{DonorId, DonorSecret, Medium};
use cheetah_rim::control::{
    CallError, Client, CoordinateError, CoordinateOptions, Coordination, StateAt, coordinate,
};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A directory of its own, gone at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cheetah-control-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const LOOPBACK: &str = "127.0.0.1:0";

async fn start(state: StateAt) -> (Coordination, Client) {
    let listen = LOOPBACK.parse().expect("an address");
    let coordination = coordinate(CoordinateOptions::new(listen, state)).await.expect("starts");
    let client = Client::new(&coordination.url()).expect("a URL");
    (coordination, client)
}

fn state(directory: &Path) -> StateAt {
    StateAt::Directory(directory.to_owned())
}

fn join(id: u64, name: &str) -> Join {
    Join {
        version: API_VERSION,
        donor: DonorId(id),
        secret: DonorSecret(id),
        pool: None,
        revision: 0,
        name: name.into(),
        or_numbered: false,
        host: "h".into(),
        machine: String::new(),
        address: greeter::listens().to_string(),
        extents: 4,
        foreign_export: None,
        medium: Medium::Memory,
        keeps_auths: false,
        lineage: None,
    }
}

fn create(name: &str) -> Call {
    let size = Size::Bytes(100_000_001);
    Call::Create(Create::new(name, size))
}

/// Keeps a donor's syncs going until the test ends.
async fn keep_syncing(client: Client, donor: DonorId) {
    keep_syncing_as(client, donor, DonorSecret(donor.0)).await;
}

async fn keep_syncing_as(client: Client, donor: DonorId, secret: DonorSecret) {
    let mut revision = 0;
    loop {
        let (leaving, goodbye, extents_offered) = (false, false, u32::MAX);
        let sync = Sync {
            secret,
            revision,
            bytes_used: 0,
            connections: 0,
            leaving,
            goodbye,
            extents_offered,
            incarnation: None,
        };
        match client.call(Call::Sync { donor, sync }).await {
            Ok(Answer::Duties(duties)) => revision = duties.revision,
            _ => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    }
}

fn refusal(answer: Result<Answer, CallError>) -> (RefusalCode, String) {
    match answer {
        Err(CallError::Refused(refusal)) => (refusal.code, refusal.message),
        other => panic!("refused, not {other:?}"),
    }
}

#[tokio::test]
async fn every_call_works_and_a_restart_loses_nothing() {
    let directory = Directory::new("restart");
    let (coordination, client) = start(state(&directory.0)).await;
    client.call(Call::Join(join(1, "d"))).await.expect("joins");
    let syncing = tokio::spawn(keep_syncing(client.clone(), DonorId(1)));
    client.call(create("v")).await.expect("created");
    let attach = Attach::new(false, "me");
    let attached = client.call(Call::Attach { name: "v".into(), attach: attach.clone() }).await;
    let Ok(Answer::Attached(attached)) = attached else { panic!("{attached:?}") };
    let grown = client.call(Call::Grow { name: "v".into(), size: Size::All }).await;
    let Ok(Answer::Volume(before)) = grown else { panic!("{grown:?}") };
    assert_eq!(before.status.size, 4 << 26);
    let grown_map = before.map.clone();
    syncing.abort();
    coordination.stop().await.expect("stops");

    let (coordination, client) = start(state(&directory.0)).await;
    let syncing = tokio::spawn(keep_syncing(client.clone(), DonorId(1)));
    let shown = client.call(Call::Show { name: "v".into() }).await;
    let Ok(Answer::Volume(after)) = shown else { panic!("{shown:?}") };
    // How it is now nobody has said yet.
    assert_eq!((after.map, after.lost), (before.map, before.lost));
    let holders = |status: &VolumeStatus| {
        status.attachments.iter().map(|attachment| attachment.holder.clone()).collect::<Vec<_>>()
    };
    assert_eq!(holders(&after.status), holders(&before.status));
    let renew = Renew {
        epoch: attached.map.epoch,
        place: "here".into(),
        lost: Vec::new(),
        report: Box::default(),
        guests: Vec::new(),
    };
    let renewed = client.call(Call::Renew { name: "v".into(), token: attached.token, renew }).await;
    assert!(matches!(renewed, Ok(Answer::Renewed(renewed)) if renewed.map.is_some()), "the lease goes on");
    let second = client.call(Call::Attach { name: "v".into(), attach }).await;
    assert_eq!(refusal(second).0, RefusalCode::Conflict);
    let amend = Amend { exclude: vec![(DonorId(1), "late".into())], ..Amend::default() };
    let amended = client.call(Call::Amend { name: "v".into(), token: attached.token, amend }).await;
    let same = matches!(amended, Ok(Answer::Renewed(renewed)) if renewed.map.as_ref() == Some(&grown_map));
    assert!(same, "linear has no redundancy to do without a donor");
    client.call(Call::Detach { name: "v".into(), token: attached.token }).await.expect("detached");
    client.call(Call::Delete { name: "v".into() }).await.expect("deleted");
    client.call(Call::Leave { donor: "d".into(), force: false }).await.expect("leaves");
    let pool = client.call(Call::Pool).await;
    assert!(
        matches!(pool, Ok(Answer::Pool(pool)) if pool.donors.is_empty() && pool.pool == coordination.pool())
    );
    syncing.abort();
    coordination.stop().await.expect("stops");
}

#[tokio::test]
async fn refusals_arrive_with_code_and_message() {
    let (_coordination, client) = start(StateAt::Memory).await;
    let (code, message) = refusal(client.call(create("v")).await);
    assert!(code == RefusalCode::PoolFull && message.contains("cheetah donate"), "{message}");
    let (code, message) = refusal(client.call(Call::Show { name: "a/../b?c".into() }).await);
    assert!(code == RefusalCode::NotFound && message.contains("'a/../b?c'"), "{message}");
    let (code, message) =
        refusal(client.call(Call::Join(Join { version: API_VERSION + 1, ..join(1, "d") })).await);
    assert!(code == RefusalCode::Version && message.contains("upgrade"), "{message}");
}

#[tokio::test]
async fn two_coordinators_cannot_share_a_state() {
    let directory = Directory::new("shared");
    let (_first, _) = start(state(&directory.0)).await;
    let listen = LOOPBACK.parse().expect("an address");
    let second = coordinate(CoordinateOptions::new(listen, state(&directory.0))).await;
    let error = second.expect_err("refused");
    assert!(matches!(error, CoordinateError::StateInUse { .. }), "{error}");
    let says = error.to_string();
    assert!(
        says.contains("--state") && says.contains(&directory.0.join("pool.redb").display().to_string()),
        "{says}"
    );
}

#[tokio::test]
async fn a_damaged_state_is_refused_and_kept() {
    let directory = Directory::new("damaged");
    std::fs::create_dir_all(&directory.0).expect("a directory");
    let file = directory.0.join("pool.redb");
    std::fs::write(&file, b"not a database, but somebody's notes").expect("written");
    let listen = LOOPBACK.parse().expect("an address");
    let error = coordinate(CoordinateOptions::new(listen, state(&directory.0))).await.expect_err("refused");
    assert!(matches!(error, CoordinateError::State { .. }), "{error}");
    assert_eq!(std::fs::read(&file).expect("still there"), b"not a database, but somebody's notes");
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let taken = TcpListener::bind(LOOPBACK).await.expect("binds");
    let listen: SocketAddr = taken.local_addr().expect("an address");
    let error = coordinate(CoordinateOptions::new(listen, StateAt::Memory)).await.expect_err("in use");
    let says = error.to_string();
    assert!(says.contains(&listen.port().to_string()) && says.contains("--listen"), "{says}");
}

/// A server that answers one request with these bytes, whatever it is.
async fn answering_once(answer: String) -> (Client, JoinHandle<()>) {
    let listener = TcpListener::bind(LOOPBACK).await.expect("binds");
    let client = Client::new(&format!("http://{}", listener.local_addr().expect("an address")));
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut head = [0; 1024];
        let _ = stream.read(&mut head).await;
        stream.write_all(answer.as_bytes()).await.expect("answers");
    });
    (client.expect("a URL"), serving)
}

#[tokio::test]
async fn who_does_not_answer_or_is_no_coordinator_is_named() {
    let (client, serving) = answering_once("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".into()).await;
    let error = client.call(Call::Pool).await.expect_err("not ours");
    assert!(
        matches!(error, CallError::NotCheetah { .. }) && error.to_string().contains(client.url()),
        "{error}"
    );
    serving.await.expect("served");
    let error = client.call(Call::Pool).await.expect_err("gone");
    assert!(
        matches!(error, CallError::Unreachable { .. }) && error.to_string().contains("--pool"),
        "{error}"
    );
}

#[tokio::test]
async fn a_coordinator_of_another_build_is_called_that() {
    let seal = format!("{:08x}", crc32c::crc32c(format!("200\n{API_VERSION}\n{{}}\n").as_bytes()));
    let head =
        format!("HTTP/1.1 200 OK\r\ncheetah-api: {API_VERSION}\r\ncheetah-seal: {seal}\r\ncontent-length: 2");
    let (client, serving) = answering_once(format!("{head}\r\n\r\n{{}}")).await;
    let error = client.call(Call::Pool).await.expect_err("a pool has an identity");
    assert!(matches!(error, CallError::OtherBuild { .. }), "{error}");
    let says = error.to_string();
    assert!(
        says.contains(client.url()) && says.contains("same build") && says.contains("missing field"),
        "{says}"
    );
    serving.await.expect("served");
}

/// What the server answers to these bytes, until it closes.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(request.as_bytes()).await.expect("sends");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("answers and closes");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn other_versions_strange_routes_and_large_bodies_are_refused() {
    let (coordination, _) = start(StateAt::Memory).await;
    let at = coordination.address();
    let ours = format!("cheetah-api: {API_VERSION}");
    let get = |path: &str, more: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n{more}\r\n")
    };
    let answer = raw(at, &get("/v1/pool", &format!("cheetah-api: {}\r\n", API_VERSION + 1))).await;
    assert!(answer.starts_with("HTTP/1.1 426") && answer.contains("upgrade"), "{answer}");
    let answer = raw(at, &get("/v1/pool", "")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(&ours), "{answer}");
    let answer = raw(at, &get("/v1/nothing", "")).await;
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("/openapi.json"), "{answer}");
    assert!(raw(at, &get("/openapi.json", "")).await.contains("\"openapi\": \"3.1.0\""));
    assert!(raw(at, &get("/", "")).await.contains("Cheetah coordinator"));
    let post = |path: &str, length: usize, body: &str| {
        let head =
            format!("host: localhost\r\n{ours}\r\nconnection: close\r\ncontent-type: application/json");
        format!("POST {path} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    let answer = raw(at, &post("/v1/volumes", 2, "{}")).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("missing field"), "{answer}");
    let answer = raw(at, &post("/v1/volumes", 1 << 40, "")).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("limit"), "{answer}");
    let answer = raw(at, &post("/v1/donors/zz/sync", 2, "{}")).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("hexadecimal"), "{answer}");
}

/// Who may speak for a donor, and who may read and write a volume.
#[tokio::test]
async fn what_proves_who_somebody_is_is_shown_to_nobody() {
    let (coordination, client) = start(StateAt::Memory).await;
    let secret = DonorSecret(0x5ec2_e75e_c2e7_5ec2);
    let donor = Join { secret, ..join(1, "d") };
    client.call(Call::Join(donor)).await.expect("joins");
    let syncing = tokio::spawn(keep_syncing_as(client.clone(), DonorId(1), secret));
    client.call(create("v")).await.expect("created");
    let attach = Attach::new(false, "me");
    let attached = client.call(Call::Attach { name: "v".into(), attach }).await;
    let Ok(Answer::Attached(attached)) = attached else { panic!("{attached:?}") };
    let at = coordination.address();
    for path in ["/v1/pool", "/v1/volumes/v"] {
        let shown = raw(at, &format!("GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n")).await;
        assert!(shown.starts_with("HTTP/1.1 200") && shown.contains("\"me\""), "{shown}");
        for proof in [String::from(secret), attached.token.to_string()] {
            assert!(!shown.contains(&proof), "{proof} is in {shown}");
        }
    }
    syncing.abort();
}

#[tokio::test]
async fn a_caller_that_hangs_up_leaves_nothing_behind() {
    let (_coordination, client) = start(StateAt::Memory).await;
    client.call(Call::Join(join(1, "d"))).await.expect("joins");
    // The donor never confirms, so both calls are held; the attach is given up.
    let creating = tokio::spawn({
        let client = client.clone();
        async move { client.call(create("v")).await }
    });
    while refused_or_missing(client.call(Call::Show { name: "v".into() }).await) {}
    let attach = Attach::new(false, "me");
    let attaching = tokio::spawn({
        let client = client.clone();
        async move { client.call(Call::Attach { name: "v".into(), attach }).await }
    });
    while attachments(&client).await == 0 {}
    attaching.abort();
    while attachments(&client).await > 0 {}
    creating.abort();
}

fn refused_or_missing(answer: Result<Answer, CallError>) -> bool {
    matches!(answer, Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::NotFound)
}

async fn attachments(client: &Client) -> usize {
    match client.call(Call::Show { name: "v".into() }).await {
        Ok(Answer::Volume(detail)) => detail.status.attachments.len(),
        other => panic!("{other:?}"),
    }
}

/// What a crash, a full disk or a `truncate` leaves; a new pool in its place would be none of the donors'.
#[tokio::test]
async fn a_state_without_a_pool_is_damage() {
    let directory = Directory::new("damage");
    let (coordination, _) = start(state(&directory.0)).await;
    assert!(coordination.is_new());
    let pool = coordination.pool();
    coordination.stop().await.expect("stops");
    let files: Vec<_> = std::fs::read_dir(&directory.0).expect("a directory").flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let (again, _) = start(state(&directory.0)).await;
    assert_eq!((again.is_new(), again.pool()), (false, pool));
    again.stop().await.expect("stops");
    std::fs::write(directory.0.join("pool.redb"), []).expect("emptied");
    let listen = LOOPBACK.parse().expect("an address");
    let error = coordinate(CoordinateOptions::new(listen, state(&directory.0))).await.expect_err("no");
    let said = error.to_string();
    assert!(said.contains("is empty") && said.contains("restore it") && said.contains("--state"), "{said}");
}
