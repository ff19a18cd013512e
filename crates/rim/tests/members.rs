//! Who gets a stream through TLS to a server, and who does not: real sockets, certificates of all kinds.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cheetah_core::map::{MemberId, PoolId};
use cheetah_core::members::{Member, Role};
use cheetah_rim::arena::Arena;
use cheetah_rim::donor::{DonorServer, Gate};
use cheetah_rim::members::{Authority, Credentials, Key};
use cheetah_rim::net::{Bound, Endpoint};
use cheetah_rim::stream::Transport;
use cheetah_rim::volume::probe;

const HOUR: Duration = Duration::from_secs(3600);

fn authority(pool: u64) -> Authority {
    let pool = PoolId(pool);
    Authority::of(pool, &Authority::make(pool).expect("a key")).expect("an authority")
}

fn member(authority: &Authority, id: u64, role: Role, lasts: Duration) -> (Arc<Credentials>, Key) {
    let (key, member) = (Key::make().expect("a key"), Member { id: MemberId(id), role });
    let certificate = authority.certify(member, &key.public(), &[], lasts).expect("a certificate");
    let credentials = Credentials::new(authority.pem(), &certificate, &key).expect("a member");
    (Arc::new(credentials), key)
}

/// One whose time is over: it was good to the end of the second in which it was made.
fn expired(authority: &Authority, role: Role) -> (Arc<Credentials>, Key) {
    let made = member(authority, 2, role, Duration::ZERO);
    let second = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
    let last = second();
    while second() <= last {
        std::thread::sleep(Duration::from_millis(20));
    }
    made
}

fn over(credentials: &Arc<Credentials>) -> Transport {
    Transport::default().with_tls(Arc::clone(credentials))
}

/// A server of memory, for these credentials; in the clear without.
fn serve(transport: &Transport) -> SocketAddr {
    let bound = Bound::new(&Endpoint::Tcp(([127, 0, 0, 1], 0).into())).expect("a port");
    let Endpoint::Tcp(address) = bound.endpoint else { panic!("bound to TCP") };
    let arena = Arc::new(Arena::new(1).expect("memory"));
    DonorServer::start(bound, &arena, &Gate::alone(1), transport).expect("a server");
    address
}

/// Whether somebody learns the size of what the server has, or why not.
fn ask(address: SocketAddr, transport: &Transport) -> Result<u64, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let asked = runtime.block_on(probe(Endpoint::Tcp(address), String::new(), transport));
    asked.map(|session| session.info.size).map_err(|why| format!("{why:?}"))
}

#[test]
fn members_of_one_pool_reach_each_other_and_nobody_else_does() {
    let (own, other) = (authority(1), authority(2));
    let (donor, _) = member(&own, 1, Role::Donor, HOUR);
    let address = serve(&over(&donor));
    for role in [Role::Client, Role::Admin, Role::Donor, Role::Coordinator] {
        let (credentials, _) = member(&own, 2, role, HOUR);
        assert!(ask(address, &over(&credentials)).is_ok(), "{role}");
    }
    let refused = |what: &str, transport: &Transport| {
        let said = ask(address, transport).expect_err(what);
        assert!(!said.contains("does not answer"), "{what}: {said}");
    };
    refused("in the clear", &Transport::default());
    refused("a viewer", &over(&member(&own, 3, Role::Viewer, HOUR).0));
    refused("another pool's", &over(&member(&other, 2, Role::Client, HOUR).0));
    // Its authority says that it is this pool's, and has another key.
    refused("a forged one", &over(&member(&authority(1), 2, Role::Client, HOUR).0));
    refused("one that has expired", &over(&expired(&own, Role::Client).0));
}

#[test]
fn a_client_takes_nobody_for_a_donor_but_members_that_are() {
    let (own, other) = (authority(1), authority(2));
    let (client, _) = member(&own, 1, Role::Client, HOUR);
    for (what, transport) in [
        ("in the clear", Transport::default()),
        ("another pool's", over(&member(&other, 2, Role::Donor, HOUR).0)),
        ("a viewer", over(&member(&own, 2, Role::Viewer, HOUR).0)),
        ("a client", over(&member(&own, 2, Role::Client, HOUR).0)),
        ("an admin", over(&member(&own, 2, Role::Admin, HOUR).0)),
        ("expired", over(&expired(&own, Role::Donor).0)),
    ] {
        let said = ask(serve(&transport), &over(&client)).expect_err(what);
        assert!(!said.contains("does not answer"), "{what}: {said}");
    }
}

#[test]
fn a_renewed_certificate_is_shown_from_then_on() {
    let own = authority(1);
    let (donor, _) = member(&own, 1, Role::Donor, HOUR);
    let address = serve(&over(&donor));
    let (client, key) = expired(&own, Role::Client);
    assert!(ask(address, &over(&client)).is_err());
    let again = own.certify(client.member(), &key.public(), &[], HOUR).expect("a certificate");
    client.renew(&again, &key).expect("the same member");
    assert!(ask(address, &over(&client)).is_ok());
    let other = Member { id: MemberId(3), role: Role::Admin };
    let other = own.certify(other, &key.public(), &[], HOUR).expect("a certificate");
    assert!(client.renew(&other, &key).is_err(), "it stays who it is");
    assert!(client.renew(&again, &Key::make().expect("a key")).is_err());
}

/// Passes one connection on to the server, and answers what the client sent.
fn listen_in(to: SocketAddr) -> (SocketAddr, std::thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let heard = std::thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let server = TcpStream::connect(to).expect("the server");
        let (mut back, mut down) =
            (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
        std::thread::spawn(move || std::io::copy(&mut down, &mut back));
        let (mut client, mut server, mut said, mut bytes) = (client, server, Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = client.read(&mut bytes) {
            said.extend_from_slice(&bytes[..count]);
            server.write_all(&bytes[..count]).expect("the server");
        }
        said
    });
    (address, heard)
}

#[test]
fn what_was_heard_of_one_connection_opens_no_other() {
    let own = authority(1);
    let address = serve(&over(&member(&own, 1, Role::Donor, HOUR).0));
    let (between, heard) = listen_in(address);
    assert!(ask(between, &over(&member(&own, 2, Role::Client, HOUR).0)).is_ok());
    let said = heard.join().expect("what was said");
    // All of it was of use once.
    let mut again = TcpStream::connect(address).expect("the server");
    again.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    again.write_all(&said).expect("room");
    let mut answers = Vec::new();
    // The server ends it, or resets what it has not read.
    let ended = again.read_to_end(&mut answers);
    let waited = ended.is_err_and(|why| why.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!waited, "the server goes on with it");
}
