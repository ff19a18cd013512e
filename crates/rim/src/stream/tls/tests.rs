//! Our records, and those of rustls at the other end. Never: programs of others (`lab/tests/members.rs`).

use super::*;
use crate::members::{Authority, Key};
use cheetah_core::map::{MemberId, PoolId};
use cheetah_core::members::Role;
use rustls::{ClientConnection, ConnectionCommon, ServerConnection, SideData};
use std::io::{Read, Write};
use std::ops::DerefMut;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// More records than a key seals here.
const BYTES: usize = 3 << 20;

fn member(authority: &Authority, role: Role) -> Arc<Credentials> {
    let (key, member) = (Key::make().unwrap(), Member { id: MemberId(1), role });
    let hour = Duration::from_secs(3600);
    let certificate = authority.certify(member, &key.public(), &[], hour).unwrap();
    Arc::new(Credentials::new(authority.pem(), &certificate, &key).unwrap())
}

/// A client and a donor of one pool.
fn members() -> (Arc<Credentials>, Arc<Credentials>) {
    let authority = Authority::of(PoolId(7), &Authority::make(PoolId(7)).unwrap()).unwrap();
    (member(&authority, Role::Client), member(&authority, Role::Donor))
}

fn rustls_client(credentials: &Credentials) -> ClientConnection {
    let name = ServerName::try_from("member.cheetah").unwrap();
    ClientConnection::new(credentials.to(Holder::Donor), name).unwrap()
}

fn rustls_server(credentials: &Credentials) -> ServerConnection {
    ServerConnection::new(credentials.for_members()).unwrap()
}

fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Sends and receives in turns, in pieces of all sizes, with new keys between; then it says that it ends,
/// and waits for the same.
fn talk<S: SideData>(
    mut tls: impl DerefMut<Target = ConnectionCommon<S>> + Send + 'static,
    mut socket: UnixStream,
) -> JoinHandle<io::Result<()>> {
    std::thread::spawn(move || {
        let mut stream = rustls::Stream::new(&mut tls, &mut socket);
        let mut at = 0;
        for len in (1..).map(|turn: usize| turn * 997 % 40_000 + 1) {
            if at == BYTES {
                break;
            }
            let len = len.min(BYTES - at);
            stream.write_all(&pattern(at, len))?;
            stream.flush()?;
            let mut back = vec![0; len];
            stream.read_exact(&mut back)?;
            assert!(back == pattern(at, len), "other bytes came back at {at}");
            if at / (1 << 19) != (at + len) / (1 << 19) {
                stream.conn.refresh_traffic_keys().unwrap();
            }
            at += len;
        }
        stream.conn.send_close_notify();
        stream.flush()?;
        assert_eq!(stream.read(&mut [0; 1])?, 0, "it ends as TLS wants it");
        Ok(())
    })
}

/// Sends back what comes, in pieces that are none of its own, until it ends.
async fn echo(mut ours: Stream) -> io::Result<usize> {
    let mut all = 0;
    loop {
        let mut bytes = Vec::new();
        match ours.receive_some(&mut bytes).await {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(all),
            received => received?,
        }
        all += bytes.len();
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        let mut pieces = [IoSlice::new(head), IoSlice::new(tail)];
        let mut pieces = &mut pieces[..];
        while !pieces.is_empty() {
            let stream = &mut ours;
            std::future::poll_fn(move |cx| stream.poll_writable(cx)).await?;
            match ours.try_send_from(pieces, false) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                sent => IoSlice::advance_slices(&mut pieces, sent?),
            }
        }
    }
}

fn sockets() -> (Stream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (Stream::plain(ours.into()).unwrap(), theirs)
}

#[tokio::test]
async fn what_rustls_says_is_understood_and_the_other_way_round() {
    let (client, donor) = members();
    let (plain, socket) = sockets();
    let theirs = talk(rustls_server(&donor), socket);
    let ours = client.connect(plain, Holder::Donor).await.unwrap();
    assert_eq!(ours.member().unwrap().role, Role::Donor);
    assert_eq!(echo(ours).await.unwrap(), BYTES);
    theirs.join().unwrap().unwrap();

    let (plain, socket) = sockets();
    let theirs = talk(rustls_client(&client), socket);
    let ours = donor.accept(plain).await.unwrap();
    assert_eq!(ours.member().unwrap().role, Role::Client);
    assert_eq!(echo(ours).await.unwrap(), BYTES);
    theirs.join().unwrap().unwrap();
}

#[tokio::test]
async fn who_is_not_believed_is_told_so() {
    let ((client, _), (_, stranger)) = (members(), members());
    let (plain, socket) = sockets();
    let theirs = talk(rustls_server(&stranger), socket);
    let why = client.connect(plain, Holder::Donor).await.err().unwrap();
    assert_eq!(why.kind(), io::ErrorKind::InvalidData, "{why}");
    let why = theirs.join().unwrap().unwrap_err();
    assert!(why.to_string().contains("alert"), "{why}");
}

/// A relay that changes one bit of a record, or leaves off the end.
#[tokio::test]
async fn what_was_changed_or_cut_off_is_an_error() {
    for cut in [false, true] {
        let (client, donor) = members();
        let ((plain, mut near), (far, socket)) = (sockets(), UnixStream::pair().unwrap());
        let mut back = (far.try_clone().unwrap(), near.try_clone().unwrap());
        std::thread::spawn(move || io::copy(&mut back.1, &mut back.0));
        let theirs = talk(rustls_server(&donor), socket);
        std::thread::spawn(move || {
            let (mut far, mut passed, mut bytes) = (far, 0, [0; 4096]);
            loop {
                let len = far.read(&mut bytes).unwrap_or(0);
                let meets = (passed..passed + len).contains(&100_000);
                if len == 0 || (cut && meets) {
                    return near.shutdown(std::net::Shutdown::Both);
                }
                if meets {
                    bytes[100_000 - passed] ^= 4;
                }
                near.write_all(&bytes[..len])?;
                passed += len;
            }
        });
        let ours = client.connect(plain, Holder::Donor).await.unwrap();
        let ended = echo(ours).await;
        let came = ended.as_ref().map_or(0, |came| *came);
        match cut {
            // What TLS does not say it did not end is told by who knows how much there is to come.
            true => assert!(ended.is_err() || came < BYTES, "{ended:?}"),
            false => assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::InvalidData),
        }
        let _ = theirs.join().unwrap();
    }
}
