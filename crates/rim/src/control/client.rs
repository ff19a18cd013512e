//! The client that donors, attached volumes and commands call a coordinator with.
//!
//! Owns which coordinator is asked, of several of which one leads, and the deadline of each call.
//! Never: a second try of a call that may have been carried out, unless it changes nothing or says the same
//! again; the choice of pool (`discovery`), or a connection (`http`). Key invariant: every call ends by its
//! deadline, however many coordinators are asked. Tests: `tests/control.rs`, `tests/control_several.rs`.

use super::http::{NoReply, Server};
use super::journal::{BY_HEADER, own_name};
use super::seal::{self, SEAL_HEADER};
use super::wire::{POOL_HEADER, VERSION_HEADER, Wire, version_refusal, wire};
use crate::cipher::{KeyError, VolumeKey};
use crate::members::{Credentials, Identity};
use crate::memory::wipe;
use crate::stream::Transport;
use cheetah_core::api::{API_VERSION, Answer, Call, Refusal, RefusalCode};
use cheetah_core::limits::{CONNECT_DEADLINE_NS, CONTROL_ATTEMPT_NS, CONTROL_DEADLINE_NS, COORDINATOR_PORT};
use cheetah_core::map::PoolId;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Request, StatusCode, header};
use rustls::ClientConfig;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Between two rounds over several coordinators while none leads.
const ROUND_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct Client {
    to: Arc<To>,
    /// Whom its calls are meant for.
    pool: Option<PoolId>,
    key_file: Option<Arc<Path>>,
}

#[derive(Debug)]
struct To {
    /// All of them, as they are named.
    url: String,
    coordinators: Vec<Coordinator>,
    /// The one that answered last.
    current: AtomicUsize,
    /// What is shown to them, and to donors.
    credentials: Option<Arc<Credentials>>,
    /// Where that is kept, and renewed.
    identity: Option<Identity>,
}

/// One coordinator.
#[derive(Debug)]
struct Coordinator {
    url: String,
    server: Server,
    /// Who calls it, for its record.
    by: HeaderValue,
}

/// Why one coordinator was of no use.
enum Miss {
    /// The next may be: this one has not carried out the call.
    Undone(CallError),
    /// It may have.
    Unknown(CallError),
    /// No other would say anything else.
    Final(CallError),
}

/// A `--pool` that is not a URL of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadUrl {
    Malformed(String),
    /// In the clear, and at an address of the Internet.
    Public(String),
}

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadUrl::Malformed(text) => write!(
                f,
                "'{text}' is not the URL of a coordinator: write it like cheetah://10.0.0.1:{COORDINATOR_PORT}, or of a pool in \
                 the clear http://10.0.0.1:{COORDINATOR_PORT}, and several with commas between them"
            ),
            BadUrl::Public(text) => write!(
                f,
                "{text} is on the Internet, and a pool in the clear is for loopback and private addresses alone: write \
                 cheetah:// for one of members"
            ),
        }
    }
}

impl std::error::Error for BadUrl {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The coordinator's answer is no.
    Refused(Refusal),
    /// It could not be asked, or did not answer in time; whether it did anything is unknown.
    Unreachable { url: String, why: String },
    /// It is not whom this machine knows, or does not know this machine; nothing was done.
    NotBelieved { url: String, why: String },
    /// None of those that answer leads its pool; nothing was done.
    NoLeader { url: String, why: String },
    /// Something else listens there.
    NotCheetah { url: String, why: String },
    /// A coordinator whose answers this build cannot read, though both name the same version. It may have
    /// done what it was asked.
    OtherBuild { url: String, why: String },
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Refused(refusal) => f.write_str(&refusal.message),
            CallError::Unreachable { url, why } => write!(
                f,
                "the coordinator at {url} does not answer ({why}); see that `cheetah coordinate` runs there and that \
                 this machine can reach it, or name another with --pool"
            ),
            CallError::NotBelieved { url, why } => write!(
                f,
                "the coordinator at {url} and this machine do not believe each other's certificates ({why}): see that both \
                 clocks are right, and join again with a new token if this machine was away for long, or that pool is another"
            ),
            CallError::NoLeader { url, why } => write!(f, "no coordinator leads at {url}: {why}"),
            CallError::NotCheetah { url, why } => {
                write!(f, "what listens at {url} is not a Cheetah coordinator ({why}); name one with --pool")
            }
            CallError::OtherBuild { url, why } => write!(
                f,
                "the coordinator at {url} is another build of cheetah, whose answer this one cannot read ({why}); \
                 install the same build on both machines"
            ),
        }
    }
}

impl std::error::Error for CallError {}

/// `HOST`, `HOST:PORT`, `[IPv6]` or `[IPv6]:PORT`, the host without brackets.
pub(super) fn host_port(text: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address has colons of its own.
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (text, default),
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_v6 = bracketed.is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let good = port != 0 && (is_v6 || (!host.is_empty() && host.chars().all(plain)));
    good.then(|| (bracketed.unwrap_or(host).to_owned(), port))
}

/// Calls that may be made twice: they change nothing, or say again what holds.
fn repeats(call: &Call) -> bool {
    let reads = matches!(call, Call::Pool | Call::Show { .. } | Call::Manifest { .. });
    // What an amendment asks for and finds done is passed over.
    reads
        || matches!(
            call,
            Call::Join(_) | Call::Sync { .. } | Call::Renew { .. } | Call::Amend { .. } | Call::Tell { .. }
        )
}

impl Client {
    /// `http://HOST[:PORT]`, or `HOST[:PORT]`; several of one pool with commas between them.
    ///
    /// # Errors
    /// When it is not that.
    pub fn new(urls: &str) -> Result<Self, BadUrl> {
        Client::through(urls, "http", None, None, None)
    }

    /// The same for a pool of members: `cheetah://HOST[:PORT]`, by TLS and nothing else.
    ///
    /// # Errors
    /// When it is not that.
    pub fn of_member(urls: &str, credentials: Arc<Credentials>) -> Result<Self, BadUrl> {
        let tls = credentials.to_coordinator();
        Client::through(urls, "cheetah", Some(&tls), Some(credentials), None)
    }

    /// The same, as the member whose identity this is: `stay_certified` keeps it one.
    ///
    /// # Errors
    /// When it is not that.
    pub fn of_identity(urls: &str, identity: Identity) -> Result<Self, BadUrl> {
        let credentials = Arc::clone(identity.credentials());
        let tls = credentials.to_coordinator();
        Client::through(urls, "cheetah", Some(&tls), Some(credentials), Some(identity))
    }

    /// The same for who is no member yet.
    pub(crate) fn of_stranger(urls: &str, tls: &Arc<ClientConfig>) -> Result<Self, BadUrl> {
        Client::through(urls, "cheetah", Some(tls), None, None)
    }

    fn through(
        urls: &str,
        scheme: &str,
        tls: Option<&Arc<ClientConfig>>,
        credentials: Option<Arc<Credentials>>,
        identity: Option<Identity>,
    ) -> Result<Self, BadUrl> {
        let bad = || BadUrl::Malformed(urls.to_owned());
        let scheme = format!("{scheme}://");
        let texts: Vec<&str> = urls.split(',').map(str::trim).collect();
        let one_of_several = texts.len() > 1;
        let connect_time = Duration::from_nanos(CONNECT_DEADLINE_NS);
        let by = HeaderValue::from_str(&own_name()).unwrap_or(HeaderValue::from_static("somebody"));
        let coordinator = |text: &&str| {
            let rest = text.strip_prefix(&scheme).unwrap_or(text);
            let (host, port) = host_port(rest.strip_suffix('/').unwrap_or(rest), COORDINATOR_PORT)?;
            let server = Server::new(host, port, connect_time, one_of_several);
            let url = format!("{scheme}{}", server.name());
            let server = match tls {
                Some(tls) => server.over(Arc::clone(tls)),
                None => server.in_the_clear(),
            };
            Some(Coordinator { url, server, by: by.clone() })
        };
        let coordinators = texts.iter().map(coordinator).collect::<Option<Vec<_>>>().ok_or_else(bad)?;
        // What a name means is seen once it is connected to.
        if let Some(public) = coordinators.iter().find(|coordinator| coordinator.server.is_too_far()) {
            return Err(BadUrl::Public(public.url.clone()));
        }
        let url =
            coordinators.iter().map(|coordinator| coordinator.url.as_str()).collect::<Vec<_>>().join(",");
        let to = To { url, coordinators, current: AtomicUsize::new(0), credentials, identity };
        Ok(Client { to: Arc::new(to), pool: None, key_file: None })
    }

    /// The same, for calls that mean nothing to any other pool: they are not carried out by one that came to
    /// this address, and of several coordinators one of that pool is looked for.
    #[must_use]
    pub fn meant_for(&self, pool: PoolId) -> Self {
        Client { pool: Some(pool), ..self.clone() }
    }

    /// The same, for whom keys of encrypted volumes come from this file, and not from the pool.
    #[must_use]
    pub fn with_key_file(self, path: &Path) -> Self {
        Client { key_file: Some(path.into()), ..self }
    }

    /// See `with_key_file`.
    #[must_use]
    pub fn key_file(&self) -> Option<&Path> {
        self.key_file.as_deref()
    }

    /// All that are asked, with commas between them: `new` takes it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.to.url
    }

    /// What is shown by who calls; absent in a pool in the clear.
    #[must_use]
    pub fn credentials(&self) -> Option<&Arc<Credentials>> {
        self.to.credentials.as_ref()
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.to.identity.as_ref()
    }

    /// The public key of the member that calls, as it is certified; absent in a pool in the clear.
    #[must_use]
    pub fn public_key(&self) -> Option<String> {
        self.to.identity.as_ref().map(|identity| identity.key().public())
    }

    /// Opens the key of a volume that was wrapped for the member that calls. `None`: it has no identity.
    #[must_use]
    pub fn unwrap_key(&self, wrapped: &str) -> Option<Result<VolumeKey, KeyError>> {
        let key = self.to.identity.as_ref()?.key();
        let private = key.pkcs8();
        let opened = VolumeKey::unwrap(wrapped, &private, &key.public());
        wipe(private);
        Some(opened)
    }

    /// How the pool's data is reached: with members alone where the pool is one of members.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match &self.to.credentials {
            Some(credentials) => Transport::default().with_tls(Arc::clone(credentials)),
            None => Transport::default(),
        }
    }

    /// One call, answered or given up on in bounded time. Of several coordinators the one that answered last
    /// is asked first; then the others, for as long as one of them is there and none leads yet.
    ///
    /// # Errors
    /// When it was refused, or could not be made.
    pub async fn call(&self, call: Call) -> Result<Answer, CallError> {
        let wire = Wire { pool: self.pool, ..wire(&call) };
        let until = Instant::now() + wire.deadline;
        let several = self.to.coordinators.len();
        let repeats = several > 1 && repeats(&call);
        // A coordinator that is stopped takes calls and never answers.
        let patience = match repeats {
            true => wire.deadline - Duration::from_nanos(CONTROL_DEADLINE_NS - CONTROL_ATTEMPT_NS),
            false => wire.deadline,
        };
        let first = self.to.current.load(Ordering::Relaxed);
        let mut misses: Vec<Option<CallError>> = vec![None; several];
        let mut tried = 0;
        loop {
            let at = (first + tried) % several;
            let coordinator = &self.to.coordinators[at];
            match coordinator.ask(&wire, until.min(Instant::now() + patience)).await {
                Ok(answer) => {
                    self.to.current.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(Miss::Final(error)) => {
                    self.to.current.store(at, Ordering::Relaxed);
                    return Err(error);
                }
                Err(Miss::Unknown(error)) if !repeats => {
                    self.to.current.store((at + 1) % several, Ordering::Relaxed);
                    return Err(error);
                }
                Err(Miss::Undone(error) | Miss::Unknown(error)) => misses[at] = Some(error),
            }
            tried += 1;
            if tried.is_multiple_of(several) {
                let stands_by = |miss: &Option<CallError>| matches!(miss, Some(CallError::NoLeader { .. }));
                let hopeless = several == 1 || !misses.iter().any(stands_by);
                if hopeless || Instant::now() + ROUND_PAUSE >= until {
                    return Err(self.all(misses));
                }
                tokio::time::sleep(ROUND_PAUSE).await;
            } else if Instant::now() >= until {
                return Err(self.all(misses));
            }
        }
    }

    /// What all of them said, as one error.
    fn all(&self, misses: Vec<Option<CallError>>) -> CallError {
        let mut misses: Vec<CallError> = misses.into_iter().flatten().collect();
        let refuses = |miss: &CallError| matches!(miss, CallError::Refused(_));
        if (misses.len() == 1 || misses.iter().all(refuses))
            && let Some(only) = misses.pop()
        {
            return only;
        }
        let led = misses.iter().all(|miss| !matches!(miss, CallError::NoLeader { .. }));
        let parts = |miss| match miss {
            CallError::Unreachable { url, why }
            | CallError::NoLeader { url, why }
            | CallError::NotBelieved { url, why }
            | CallError::NotCheetah { url, why }
            | CallError::OtherBuild { url, why } => (url, why),
            CallError::Refused(refusal) => (self.to.url.clone(), refusal.message),
        };
        let whys: Vec<(String, String)> = misses.into_iter().map(parts).collect();
        let why = match whys.split_first() {
            // etcd is away, for instance: all say the same.
            Some(((_, first), rest)) if rest.iter().all(|(_, why)| why == first) => first.clone(),
            _ => whys.iter().map(|(url, why)| format!("{url}: {why}")).collect::<Vec<_>>().join("; "),
        };
        let url = self.to.url.clone();
        if led { CallError::Unreachable { url, why } } else { CallError::NoLeader { url, why } }
    }

    /// This machine's address as the coordinator sees it.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn local_ip(&self) -> Result<IpAddr, CallError> {
        let several = self.to.coordinators.len();
        let first = self.to.current.load(Ordering::Relaxed);
        let mut misses = Vec::new();
        for tried in 0..several {
            let coordinator = &self.to.coordinators[(first + tried) % several];
            match coordinator.server.local_ip().await {
                Ok(ip) => return Ok(ip),
                Err(why) => misses.push(Some(coordinator.unreachable(why))),
            }
        }
        Err(self.all(misses))
    }
}

impl Coordinator {
    async fn ask(&self, wire: &Wire, until: Instant) -> Result<Answer, Miss> {
        let began = Instant::now();
        let late = |_| {
            let waited = began.elapsed().as_secs_f64();
            // Those that were asked before took all the time there was.
            let why = if waited < 0.1 {
                "no time was left to ask it".into()
            } else {
                format!("no answer in {waited:.1} s")
            };
            Miss::Unknown(self.unreachable(why))
        };
        let (status, body) = timeout_at(until, self.exchange(wire)).await.map_err(late)??;
        if status.is_success() {
            let parsed = (wire.parse)(&body);
            let other = |error: serde_json::Error| {
                Miss::Final(CallError::OtherBuild { url: self.url.clone(), why: error.to_string() })
            };
            return parsed.map_err(other);
        }
        match serde_json::from_slice::<Refusal>(&body) {
            Ok(refusal) if refusal.code == RefusalCode::Standby => {
                let (url, why) = (self.url.clone(), refusal.message);
                Err(Miss::Undone(CallError::NoLeader { url, why }))
            }
            Ok(refusal) if refusal.code == RefusalCode::Damaged => {
                Err(Miss::Undone(self.unreachable(refusal.message)))
            }
            // Another may be of the pool that is meant.
            Ok(refusal) if refusal.code == RefusalCode::OtherPool => {
                Err(Miss::Undone(CallError::Refused(refusal)))
            }
            Ok(refusal) => Err(Miss::Final(CallError::Refused(refusal))),
            Err(_) => Err(Miss::Undone(self.not_cheetah(format!("it answers {status}")))),
        }
    }

    async fn exchange(&self, wire: &Wire) -> Result<(StatusCode, Bytes), Miss> {
        let request = Request::builder()
            .method(wire.method.clone())
            .uri(wire.path.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .header(VERSION_HEADER, API_VERSION)
            .header(BY_HEADER, &self.by);
        let request = match wire.pool {
            Some(pool) => request.header(POOL_HEADER, pool.to_string()),
            None => request,
        };
        let request = request.body(Bytes::copy_from_slice(&wire.body));
        let mut request = request.map_err(|error| Miss::Final(self.unreachable(error)))?;
        let seal = seal::of_call(&wire.method, &wire.path, request.headers(), &wire.body);
        let seal = HeaderValue::try_from(seal).expect("digits");
        request.headers_mut().insert(SEAL_HEADER, seal);
        let missed = |none| match none {
            NoReply::Unsent(why) => Miss::Undone(self.unreachable(why)),
            NoReply::Unknown(why) => Miss::Unknown(self.unreachable(why)),
            NoReply::NotBelieved(why) => Miss::Undone(CallError::NotBelieved { url: self.url.clone(), why }),
        };
        let reply = self.server.exchange(&request).await.map_err(missed)?;
        let (status, headers) = (reply.status, reply.headers.clone());
        let body = reply.read().await.map_err(missed)?;
        let version = headers.get(VERSION_HEADER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
        let fits = seal::fits(&headers, || seal::of_answer(status, &headers, &body));
        match (version, fits) {
            (_, Some(false)) | (Some(API_VERSION), None) => Err(Miss::Unknown(
                self.unreachable("what came is not what it answered: a bit flipped on its way"),
            )),
            (None, _) => {
                let why = format!("it answers {status} without a Cheetah API version");
                Err(Miss::Undone(self.not_cheetah(why)))
            }
            (Some(API_VERSION), Some(true)) => Ok((status, body)),
            (Some(other), _) => {
                let them = format!("the coordinator at {}", self.url);
                Err(Miss::Final(CallError::Refused(version_refusal(other, "this machine", &them))))
            }
        }
    }

    fn unreachable(&self, why: impl fmt::Display) -> CallError {
        CallError::Unreachable { url: self.url.clone(), why: why.to_string() }
    }

    fn not_cheetah(&self, why: String) -> CallError {
        CallError::NotCheetah { url: self.url.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_people_write_them() {
        for (text, url) in [
            ("http://10.0.0.1:99", "http://10.0.0.1:99"),
            ("http://pool.lan/", "http://pool.lan:10808"),
            ("127.0.0.1", "http://127.0.0.1:10808"),
            ("[::1]:7", "http://[::1]:7"),
            ("[::1]", "http://[::1]:10808"),
            ("http://a:1, b/", "http://a:1,http://b:10808"),
        ] {
            assert_eq!(Client::new(text).map(|client| client.url().to_owned()), Ok(url.to_owned()));
        }
        for bad in [
            "",
            "https://x",
            "http://",
            "http://a/b",
            "a:0",
            "a:x",
            "::1",
            "http://a b",
            "a,",
            ",a",
            "a,https://b",
        ] {
            assert!(Client::new(bad).is_err(), "{bad}");
        }
    }
}
