//! A bit that flips on the way to a coordinator or from it: nothing is carried out, and nothing believed,
//! that was not said.

mod greeter;

use cheetah_core::api::{API_VERSION, Answer, Call, Join, PoolStatus};
use cheetah_core::map::{DonorId, DonorSecret};
use cheetah_rim::control::{Client, CoordinateOptions, StateAt, coordinate};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// What lies outside a seal at most: a message that does not end because its length flipped.
const PATIENCE: Duration = Duration::from_millis(300);

/// Which bit flips of what passes, counted over the connection; none.
#[derive(Debug)]
struct Flip {
    to: AtomicUsize,
    from: AtomicUsize,
    /// Bits that passed to the coordinator, and from it, on the last connection.
    passed: [AtomicUsize; 2],
}

const NONE: usize = usize::MAX;

async fn pass(mut read: OwnedReadHalf, mut write: OwnedWriteHalf, flip: usize, passed: &AtomicUsize) {
    let (mut bytes, mut at) = (vec![0; 16 << 10], 0);
    while let Ok(got @ 1..) = read.read(&mut bytes).await {
        if let Some(bit) = flip.checked_sub(at * 8).filter(|bit| *bit < got * 8) {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        at += got;
        passed.store(at * 8, Ordering::Relaxed);
        if write.write_all(&bytes[..got]).await.is_err() {
            return;
        }
    }
}

async fn way(to: SocketAddr) -> (SocketAddr, Arc<Flip>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (none, passed) = (|| AtomicUsize::new(NONE), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    let flip = Arc::new(Flip { to: none(), from: none(), passed });
    let orders = Arc::clone(&flip);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (client_read, client_write) = client.into_split();
            let Ok(server) = TcpStream::connect(to).await else { return };
            let (server_read, server_write) = server.into_split();
            let (there, back) = (Arc::clone(&orders), Arc::clone(&orders));
            tokio::spawn(async move {
                let bit = there.to.load(Ordering::Relaxed);
                pass(client_read, server_write, bit, &there.passed[0]).await;
            });
            tokio::spawn(async move {
                let bit = back.from.load(Ordering::Relaxed);
                pass(server_read, client_write, bit, &back.passed[1]).await;
            });
        }
    });
    (address, flip)
}

fn join() -> Call {
    Call::Join(Join {
        version: API_VERSION,
        donor: DonorId(0x1234),
        secret: DonorSecret(7),
        pool: None,
        revision: 0,
        name: "lab".into(),
        or_numbered: false,
        host: "here".into(),
        machine: String::new(),
        address: greeter::listens().to_string(),
        extents: 4,
        foreign_export: None,
        medium: cheetah_core::map::Medium::Memory,
        keeps_auths: false,
        lineage: None,
    })
}

async fn pool(client: &Client) -> PoolStatus {
    match client.call(Call::Pool).await {
        Ok(Answer::Pool(pool)) => pool,
        other => panic!("{other:?}"),
    }
}

/// What does not change while it is asked again and again.
fn fixed(pool: &PoolStatus) -> Vec<(DonorId, String, String, String)> {
    let each = |donor: &cheetah_core::api::DonorStatus| {
        (donor.donor, donor.name.clone(), donor.host.clone(), donor.address.clone())
    };
    pool.donors.iter().map(each).collect()
}

#[tokio::test]
async fn a_bit_that_flips_makes_no_call_another_and_no_answer() {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let coordination = coordinate(CoordinateOptions::new(listen, StateAt::Memory)).await.expect("starts");
    let (address, flip) = way(coordination.address()).await;
    let straight = Client::new(&coordination.url()).expect("a URL");
    // Each has a connection of its own.
    let crooked = || Client::new(&format!("http://{address}")).expect("a URL");
    let join = join();
    crooked().call(join.clone()).await.expect("joins");
    let right = fixed(&pool(&straight).await);
    assert_eq!(right.len(), 1);

    let bits = flip.passed[0].load(Ordering::Relaxed);
    assert!(bits > 8 * 300, "all of a call: {bits}");
    let mut refused = 0;
    // Every byte, each with another of its bits.
    for byte in 0..bits / 8 {
        flip.to.store(byte * 8 + byte % 8, Ordering::Relaxed);
        let answer = tokio::time::timeout(PATIENCE, crooked().call(join.clone())).await;
        refused += usize::from(!matches!(answer, Ok(Ok(_))));
        assert_eq!(fixed(&pool(&straight).await), right, "byte {byte} of the call");
    }
    flip.to.store(NONE, Ordering::Relaxed);
    assert!(refused * 8 > bits / 2, "{refused} of {} were noticed", bits / 8);

    pool(&crooked()).await;
    let bits = flip.passed[1].load(Ordering::Relaxed);
    assert!(bits > 8 * 300, "all of an answer: {bits}");
    for byte in 0..bits / 8 {
        flip.from.store(byte * 8 + byte % 8, Ordering::Relaxed);
        let answer = tokio::time::timeout(PATIENCE, crooked().call(Call::Pool)).await;
        if let Ok(Ok(Answer::Pool(pool))) = answer {
            assert_eq!(fixed(&pool), right, "byte {byte} of the answer");
        }
    }
}
