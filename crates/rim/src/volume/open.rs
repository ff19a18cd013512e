//! Making the connections of a link: connect, handshake, check that the server can do what is needed.
//! Owns: one attempt. Never: when to try (the machine says), or anything after the handshake.

use crate::members::Holder;
use crate::net::{self, BadEndpoint, Endpoint};
use crate::stream::{Stream, Transport};
use cheetah_core::limits::CONNECT_DEADLINE_NS;
use cheetah_core::map::Route;
use cheetah_core::volume::LinkFailure;
use cheetah_nbd::{Negotiated, TransmissionFlags, client};
use cheetah_terms::client::{Abilities, first_words, link_failure};
use rustix::io::Errno;
use std::fmt::Display;
use std::io;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How much longer than twice the first one the other connections may take.
const OTHERS_TIME: Duration = Duration::from_millis(100);

/// A bit of the handshake that flips twice in a row is no accident.
const ATTEMPTS: usize = 2;

/// What the server has to be able to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    pub(super) writable: bool,
    /// Nonces and authentication tags, of an encrypted volume.
    pub(super) auth: bool,
}

/// What is asked of a server.
#[derive(Clone, Copy)]
struct Asked {
    is_donor: bool,
    auth: bool,
}

/// A connection ready for requests.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) stream: Stream,
    pub(super) session: Negotiated,
    /// Bytes that came behind the handshake.
    pub(super) early: Vec<u8>,
}

/// Opens as many as `connections` says of a round trip in nanoseconds, but one if the server says that it
/// cannot keep several consistent. The first one decides; of the others those count that come about as soon.
///
/// # Errors
/// A sentence: the address, and what happened there.
pub(super) async fn open_link(
    route: &Route,
    export: &str,
    transport: &Transport,
    connections: impl Fn(u64) -> usize,
    needs: Needs,
) -> Result<Vec<Opened>, LinkFailure> {
    let endpoint: Endpoint =
        route.address.parse().map_err(|bad: BadEndpoint| LinkFailure::NotOpened(bad.to_string()))?;
    let begun = Instant::now();
    // A server that others wrote has what it has; a donor has all that is asked for.
    let Needs { writable, auth } = needs;
    let asked = Asked { is_donor: route.foreign_export.is_none(), auth };
    let first = open_as(&endpoint, export, transport, asked).await?;
    let (took, round_trip_ns) = (begun.elapsed(), first.stream.round_trip_ns());
    let flags = first.session.info.flags;
    if writable && flags.contains(TransmissionFlags::READ_ONLY) {
        return Err(LinkFailure::NotOpened(format!("{endpoint} serves it read-only")));
    }
    let mut all = vec![first];
    if flags.contains(TransmissionFlags::CAN_MULTI_CONN) {
        let connections = connections(round_trip_ns);
        let open_others = open_others(&endpoint, export, transport, asked, connections, &mut all);
        // Nobody shall wait for the link because one of them was lost on its way.
        let _ = tokio::time::timeout(2 * took + OTHERS_TIME, open_others).await;
    }
    Ok(all)
}

/// All at once: far away each takes several round trips.
async fn open_others(
    endpoint: &Endpoint,
    export: &str,
    transport: &Transport,
    asked: Asked,
    connections: usize,
    all: &mut Vec<Opened>,
) {
    let mut others = JoinSet::new();
    for _ in 1..connections {
        let (endpoint, export, transport) = (endpoint.clone(), export.to_owned(), transport.clone());
        others.spawn_local(async move { open_as(&endpoint, &export, &transport, asked).await });
    }
    while let Some(opened) = others.join_next().await {
        all.extend(opened.ok().and_then(Result::ok));
    }
}

/// Whether the fault is this machine's: a limit, no memory, a rule of its own, no way to the network.
fn is_own(error: &io::Error) -> bool {
    const OWN: [Errno; 8] = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::NOBUFS,
        Errno::PERM,
        Errno::ACCESS,
        Errno::ADDRNOTAVAIL,
        Errno::NETUNREACH,
    ];
    Errno::from_io_error(error).is_some_and(|errno| OWN.contains(&errno))
}

/// As `open_one`. A donor that did not agree to all that it can do was asked for something else, or answered
/// so: a bit flipped on its way. Without checksums no other that flips would be found, so it is asked anew.
async fn open_as(
    endpoint: &Endpoint,
    export: &str,
    transport: &Transport,
    asked: Asked,
) -> Result<Opened, LinkFailure> {
    let Asked { is_donor, auth } = asked;
    for _ in 0..ATTEMPTS {
        let opened = open_one(endpoint, export, transport, auth).await?;
        let can = Abilities::of(&opened.session);
        if (!is_donor || can.is_a_donors()) && (!auth || can.has_auth()) {
            return Ok(opened);
        }
    }
    if auth {
        return Err(LinkFailure::NotOpened(format!(
            "{endpoint} does not keep what belongs to the blocks of an encrypted volume: an older version runs there"
        )));
    }
    Err(LinkFailure::NotOpened(format!("{endpoint}: what was agreed on is not what was asked for")))
}

/// One connection to a donor, through its handshake.
async fn open_one(
    endpoint: &Endpoint,
    export: &str,
    transport: &Transport,
    auth: bool,
) -> Result<Opened, LinkFailure> {
    let want = client::Want {
        export: export.to_owned(),
        structured: true,
        base_allocation: true,
        dirty: true,
        context: true,
        auth,
    };
    connect_as(endpoint, Holder::Donor, want, transport).await
}

/// One connection that wants this, through its handshake.
///
/// # Errors
/// A sentence: the address, and what happened there.
pub(super) async fn connect_as(
    endpoint: &Endpoint,
    holder: Holder,
    want: client::Want,
    transport: &Transport,
) -> Result<Opened, LinkFailure> {
    let failed = |why: &dyn Display| LinkFailure::NotOpened(format!("{endpoint}: {why}"));
    let at = |e: io::Error| match e.kind() {
        io::ErrorKind::ConnectionRefused => {
            LinkFailure::Refused(format!("{endpoint} refused the connection: nothing listens there"))
        }
        _ if is_own(&e) => failed(&format_args!("this machine cannot connect to it ({e})")),
        _ => failed(&e),
    };
    let plain = net::connect(endpoint).await.map_err(at)?;
    let mut stream = transport.connected(plain).await.map_err(at)?;
    let mut handshake = client::Handshake::new(want);
    if transport.tls().is_some() {
        handshake = handshake.over_tls();
    }
    let (mut input, mut output) = (Vec::new(), Vec::new());
    loop {
        let used = handshake.input(&input).map_err(|violation| failed(&violation))?;
        input.drain(..used);
        handshake.take_output(&mut output);
        stream.send_all(&mut output).await.map_err(at)?;
        match handshake.poll() {
            client::Step::Ready(session) => {
                stream.suit_distance();
                if Abilities::of(&session).numbers_writes() {
                    output.extend_from_slice(&first_words(session.is_sealed()));
                    stream.send_all(&mut output).await.map_err(at)?;
                }
                return Ok(Opened { stream, session, early: input });
            }
            client::Step::StartTls => {
                let Some(tls) = transport.tls().filter(|_| input.is_empty()) else {
                    return Err(failed(&"it goes on in the clear behind its word that TLS begins"));
                };
                stream = tls.connect(stream, holder).await.map_err(at)?;
                handshake.tls_started();
            }
            client::Step::Listed(_) => return Err(failed(&"it answered with a list")),
            client::Step::Failed(error) => return Err(link_failure(&error, endpoint)),
            client::Step::NeedInput => match stream.receive_some(&mut input).await {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => handshake.eof(),
                read => read.map_err(at)?,
            },
        }
    }
}

/// Connects to any NBD server's export, learns what it says of it, and leaves.
///
/// # Errors
/// What would keep a link from being opened.
pub async fn probe(
    endpoint: Endpoint,
    export: String,
    transport: &Transport,
) -> Result<Negotiated, LinkFailure> {
    let connecting = open_one(&endpoint, &export, transport, false);
    let limit = Duration::from_nanos(CONNECT_DEADLINE_NS);
    let late = |_| LinkFailure::NotOpened(format!("{endpoint} does not answer within {} s", limit.as_secs()));
    let opened = tokio::time::timeout(limit, connecting).await.map_err(late)?;
    Ok(opened?.session)
}
