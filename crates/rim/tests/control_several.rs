//! One client, several coordinators: whom it asks, and what it makes of those that do not lead or do not
//! answer.

use cheetah_core::api::{API_VERSION, Answer, Call, RefusalCode};
use cheetah_rim::control::{CallError, Client, CoordinateOptions, Coordination, StateAt, coordinate};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

async fn leader() -> Coordination {
    let listen = "127.0.0.1:0".parse().expect("an address");
    coordinate(CoordinateOptions::new(listen, StateAt::Memory)).await.expect("starts")
}

/// A port that refuses connections.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    format!("http://{}", listener.local_addr().expect("its address"))
}

/// What a coordinator that is stopped looks like: the kernel accepts, nobody answers.
async fn stopped() -> (String, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    (format!("http://{}", listener.local_addr().expect("its address")), listener)
}

/// A coordinator that stands by, and how many calls it turned away.
async fn standby() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(turn_away(stream, Arc::clone(&counter)));
        }
    });
    (url, calls)
}

async fn turn_away(stream: TcpStream, calls: Arc<AtomicUsize>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut line, mut length, mut first) = (String::new(), 0, String::new());
        while stream.read_line(&mut line).await? > 2 {
            if first.is_empty() {
                first.clone_from(&line);
            }
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap_or(0);
            }
            line.clear();
        }
        if first.is_empty() {
            return Ok(());
        }
        stream.read_exact(&mut vec![0; length]).await?;
        let greeted = first.starts_with("GET / ");
        if !greeted {
            calls.fetch_add(1, Ordering::Relaxed);
        }
        let (status, body) = match greeted {
            true => ("200 OK", "hello".to_owned()),
            false => (
                "503 Service Unavailable",
                r#"{"code":"standby","message":"this coordinator stands by: ask the other"}"#.to_owned(),
            ),
        };
        let length = body.len();
        let seal = seal(&status[..3], &body);
        let head = format!(
            "HTTP/1.1 {status}\r\ncheetah-api: {API_VERSION}\r\ncheetah-seal: {seal}\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.get_mut().write_all(format!("{head}{body}").as_bytes()).await?;
    }
}

/// As the coordinator says it of its answers.
fn seal(status: &str, body: &str) -> String {
    format!("{:08x}", crc32c::crc32c(format!("{status}\n{API_VERSION}\n{body}\n").as_bytes()))
}

fn client(urls: &[&str]) -> Client {
    Client::new(&urls.join(",")).expect("URLs")
}

#[tokio::test]
async fn the_one_that_leads_is_found_and_remembered() {
    let leader = leader().await;
    let (standby, turned_away) = standby().await;
    let client = client(&[&nobody().await, &standby, &leader.url()]);
    for _ in 0..3 {
        let pool = client.call(Call::Pool).await;
        assert!(matches!(&pool, Ok(Answer::Pool(pool)) if pool.pool == leader.pool()), "{pool:?}");
    }
    assert_eq!(turned_away.load(Ordering::Relaxed), 1);
    // A no of the leader is the answer; nobody else is asked.
    let shown = client.call(Call::Show { name: "none".into() }).await;
    assert!(matches!(shown, Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::NotFound));
    assert_eq!(turned_away.load(Ordering::Relaxed), 1);
    assert_eq!(client.local_ip().await.map(|ip| ip.to_string()), Ok("127.0.0.1".to_owned()));
}

#[tokio::test]
async fn what_changes_something_is_not_sent_to_one_that_is_stopped() {
    let leader = leader().await;
    let (stopped, _listener) = stopped().await;
    let client = client(&[&stopped, &leader.url()]);
    // Leaving is not repeated when it may have been carried out; so it must not have been sent there at all.
    let left = client.call(Call::Leave { donor: "none".into(), force: false }).await;
    assert!(
        matches!(&left, Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::NotFound),
        "{left:?}"
    );
}

#[tokio::test]
async fn when_the_leader_ends_the_next_one_is_asked() {
    let (first, second) = (leader().await, leader().await);
    let client = client(&[&first.url(), &second.url()]);
    client.call(Call::Pool).await.expect("answered");
    let pool = second.pool();
    first.stop().await.expect("stops");
    let answer = client.call(Call::Pool).await;
    assert!(matches!(&answer, Ok(Answer::Pool(answer)) if answer.pool == pool), "{answer:?}");
}

#[tokio::test]
async fn nobody_who_leads_is_told_apart_from_nobody_there() {
    let (standby, turned_away) = standby().await;
    let alone = client(&[&standby]).call(Call::Pool).await.expect_err("refused");
    assert!(matches!(&alone, CallError::NoLeader { url, .. } if *url == standby), "{alone}");
    assert!(alone.to_string().contains("ask the other"), "{alone}");
    assert_eq!(turned_away.load(Ordering::Relaxed), 1, "one coordinator is asked once");

    let both = [nobody().await, nobody().await];
    let client = client(&[&both[0], &both[1]]);
    let error = client.call(Call::Pool).await.expect_err("nobody there");
    assert!(matches!(&error, CallError::Unreachable { url, .. } if url == client.url()), "{error}");
    assert!(both.iter().all(|url| error.to_string().contains(url)), "{error}");
}

#[tokio::test]
async fn while_one_stands_by_the_lead_is_waited_for() {
    let (standby, turned_away) = standby().await;
    let late = nobody().await;
    let client = client(&[&standby, &late]);
    let asking = tokio::spawn(async move { client.call(Call::Pool).await });
    while turned_away.load(Ordering::Relaxed) < 2 {
        tokio::task::yield_now().await;
    }
    let listen = late.trim_start_matches("http://").parse().expect("an address");
    let leader = coordinate(CoordinateOptions::new(listen, StateAt::Memory)).await.expect("starts");
    let answer = asking.await.expect("no panic");
    assert!(matches!(&answer, Ok(Answer::Pool(answer)) if answer.pool == leader.pool()), "{answer:?}");
}
