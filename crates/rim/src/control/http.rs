//! One server that is spoken to in HTTP/1.1, and the connections to it that are kept for the next request.
//!
//! Owns: connecting, keep-alive, and whether a request that failed may have been carried out. Never: which of
//! several servers is asked, when one is given up (`client`, `etcd`), or what an answer means. Invariants: a
//! request is sent again by itself only where the connection had closed before it was sent; a connection is
//! kept only when its answer was read to the end. Tests: `tests/control*.rs`, `lab/tests/etcd.rs`.

use cheetah_core::limits::CONTROL_ANSWER_BYTES_MAX;
use cheetah_core::members::may_be_clear;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode, header, http};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Connections kept for the next request.
const IDLE_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct Server {
    /// A name or an address, without brackets.
    host: String,
    port: u16,
    connect_time: Duration,
    /// Each new connection is tried before it carries a request.
    greets: bool,
    idle: Mutex<Vec<Connection>>,
    /// Whom it has to be, and what is shown to it; absent: it is spoken to in the clear.
    tls: Option<Arc<ClientConfig>>,
    /// Its certificate has to have the name, or the address, that it is reached by.
    is_named: bool,
    /// Nothing is said to it at an address of the Internet.
    is_private: bool,
}

/// A connection, and the address that it goes to: what a server is called elsewhere it need not know.
#[derive(Debug)]
struct Connection {
    requests: Requests,
    host: SocketAddr,
}

/// A reply of which the head has come.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Incoming,
    server: &'a Server,
    connection: Connection,
}

impl Reply<'_> {
    /// The rest of it. A reply that is dropped ends its connection.
    pub(super) async fn read(self) -> Result<Bytes, NoReply> {
        let body = Limited::new(self.body, CONTROL_ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| NoReply::Unknown(error.to_string()))?.to_bytes();
        let mut idle = self.server.idle();
        if idle.len() < IDLE_MAX {
            idle.push(self.connection);
        }
        Ok(body)
    }
}

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum NoReply {
    /// The request was not sent.
    Unsent(String),
    /// It may have been carried out.
    Unknown(String),
    /// One end does not believe the other's certificate; nothing was carried out.
    NotBelieved(String),
}

impl fmt::Display for NoReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoReply::Unsent(why) | NoReply::Unknown(why) | NoReply::NotBelieved(why) => f.write_str(why),
        }
    }
}

impl From<NoConnection> for NoReply {
    fn from(none: NoConnection) -> NoReply {
        match &none {
            NoConnection::Failed(error) => match disbelief(error.as_ref()) {
                Some(why) => NoReply::NotBelieved(why),
                None => NoReply::Unsent(none.to_string()),
            },
            NoConnection::Late(_) => NoReply::Unsent(none.to_string()),
        }
    }
}

/// What TLS says of a certificate, ours or theirs, wherever that is among the causes.
fn disbelief(error: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let tls = within.and_then(|within| within.downcast_ref()).or_else(|| error.downcast_ref());
        match tls {
            Some(rustls::Error::InvalidCertificate(why)) => return Some(format!("theirs: {why}")),
            Some(rustls::Error::AlertReceived(alert)) => return Some(format!("ours: they say {alert:?}")),
            _ => {}
        }
        cause = error.source();
    }
    None
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// None in that time.
    Late(Duration),
    /// The name is not known, nobody listens, or who does speaks something else.
    Failed(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoConnection::Late(time) => write!(f, "no connection in {:.1} s", time.as_secs_f64()),
            NoConnection::Failed(error) => error.fmt(f),
        }
    }
}

impl Server {
    /// Whether `greets`: the kernel accepts for a process that is stopped, so where another could answer
    /// instead, what changes something is sent only to one that answers.
    pub(super) fn new(host: String, port: u16, connect_time: Duration, greets: bool) -> Server {
        Server {
            host,
            port,
            connect_time,
            greets,
            idle: Mutex::new(Vec::new()),
            tls: None,
            is_named: false,
            is_private: false,
        }
    }

    /// Through TLS, to a member of a pool: it is who its certificate says, whatever it is called.
    pub(super) fn over(self, tls: Arc<ClientConfig>) -> Server {
        Server { tls: Some(tls), ..self }
    }

    /// Through TLS, to a server that others certify.
    pub(super) fn certified(self, tls: Arc<ClientConfig>) -> Server {
        Server { tls: Some(tls), is_named: true, ..self }
    }

    /// In the clear, and therefore at loopback and private addresses alone.
    pub(super) fn in_the_clear(self) -> Server {
        Server { tls: None, is_private: true, ..self }
    }

    /// Whether it is named by an address at which nothing is said to it.
    pub(super) fn is_too_far(&self) -> bool {
        self.is_private && self.host.parse().is_ok_and(|ip: IpAddr| !may_be_clear(ip))
    }

    /// `HOST:PORT`, with brackets where an IPv6 address needs them.
    pub(super) fn name(&self) -> String {
        name_of(&self.host, self.port)
    }

    /// Sends a request, without its host.
    pub(super) async fn exchange(&self, request: &Request<Bytes>) -> Result<Reply<'_>, NoReply> {
        let mut kept = self.kept();
        loop {
            let (mut connection, reused) = match kept.take() {
                Some(connection) => (connection, true),
                None => (self.connect().await?.0, false),
            };
            let to_send = connection.addressed(request).map_err(|e| NoReply::Unsent(e.to_string()))?;
            match connection.requests.try_send_request(to_send).await {
                Ok(response) => {
                    let (http::response::Parts { status, headers, .. }, body) = response.into_parts();
                    return Ok(Reply { status, headers, body, server: self, connection });
                }
                Err(mut error) => {
                    let unsent = error.take_message().is_some();
                    // A kept connection may have closed before.
                    if !(reused && unsent) {
                        let error = error.into_error();
                        if let Some(why) = disbelief(&error) {
                            return Err(NoReply::NotBelieved(why));
                        }
                        let why = error.to_string();
                        return Err(if unsent { NoReply::Unsent(why) } else { NoReply::Unknown(why) });
                    }
                }
            }
        }
    }

    /// This machine's address as the server sees it.
    pub(super) async fn local_ip(&self) -> Result<IpAddr, NoConnection> {
        self.connect().await.map(|(_, ip)| ip)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle();
        idle.retain(|connection| !connection.requests.is_closed());
        idle.pop()
    }

    async fn connect(&self) -> Result<(Connection, IpAddr), NoConnection> {
        let connected = timeout(self.connect_time, self.connected()).await;
        connected.map_err(|_| NoConnection::Late(self.connect_time))?.map_err(NoConnection::Failed)
    }

    async fn connected(&self) -> Result<(Connection, IpAddr), Box<dyn Error + Send + Sync>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let local = stream.local_addr()?;
        let peer = stream.peer_addr()?;
        if self.is_private && !may_be_clear(peer.ip()) {
            return Err(format!(
                "{} is an address of the Internet, and a pool in the clear is for loopback and private addresses alone",
                peer.ip()
            )
            .into());
        }
        // Without the scope that a link-local one may have.
        let host = SocketAddr::new(peer.ip(), peer.port());
        // Only a matter of latency.
        let _ = stream.set_nodelay(true);
        let requests = match &self.tls {
            None => speak(stream).await?,
            Some(tls) => {
                let name = if self.is_named { self.host.as_str() } else { "coordinator.cheetah" };
                let name = ServerName::try_from(name.to_owned())?;
                speak(TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?).await?
            }
        };
        let mut made = Connection { requests, host };
        if self.greets {
            let hello = made.addressed(&Request::get("/").body(Bytes::new())?)?;
            let response = made.requests.send_request(hello).await?;
            Limited::new(response.into_body(), CONTROL_ANSWER_BYTES_MAX).collect().await?;
            made.requests.ready().await?;
        }
        Ok((made, local.ip()))
    }
}

type Requests = SendRequest<Full<Bytes>>;

async fn speak(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> hyper::Result<Requests> {
    let (requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the sender; its errors reach whoever waits for an answer.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(requests)
}

impl Connection {
    fn addressed(&self, request: &Request<Bytes>) -> http::Result<Request<Full<Bytes>>> {
        let mut to_send = Request::builder()
            .method(request.method().clone())
            .uri(request.uri().clone())
            .header(header::HOST, self.host.to_string());
        for (name, value) in request.headers() {
            to_send = to_send.header(name, value);
        }
        to_send.body(Full::new(request.body().clone()))
    }
}

/// `HOST:PORT`, with brackets where an IPv6 address needs them.
pub(super) fn name_of(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
