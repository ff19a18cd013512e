//! etcd (v3) as a client: keys, guarded transactions, leases.
//!
//! Owns which member is asked, and the deadline of each request. Never: which keys there are (`store_etcd`),
//! who leads (`term`), or a connection (`http`). Speaks the JSON gateway that every member serves beside
//! gRPC, so that it needs no second HTTP stack and no compiler of protocols. Key invariant: every request
//! ends by its time; one that is asked of a second member may be carried out by the first, before or after,
//! so callers make requests that can be repeated. Tests: below, and the end-to-end tests with a real etcd
//! (`lab/tests/etcd.rs`).

use super::client::host_port;
use super::etcd_tls::{self, BadCertificates};
use super::http::{NoReply, Server, name_of};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use cheetah_core::limits::{ETCD_ATTEMPT_NS, ETCD_NEXT_NS, ETCD_PAGE_KEYS_MAX, ETCD_PORT};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, header};
use rustls::ClientConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Between two rounds over all members.
const ROUND_PAUSE: Duration = Duration::from_millis(50);

/// Which etcd, and where in it: `etcd://HOST[:PORT][,HOST[:PORT]...][/PREFIX]`, or `etcds://` by TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAt {
    is_tls: bool,
    /// Whom to believe there, and what to show.
    certificates: Option<PathBuf>,
    members: Vec<(String, u16)>,
    /// Pools that share one etcd differ by it.
    prefix: String,
}

impl FromStr for EtcdAt {
    type Err = BadEtcd;

    fn from_str(text: &str) -> Result<Self, BadEtcd> {
        let bad = || BadEtcd::Malformed(text.to_owned());
        let (scheme, rest) = text.trim().split_once("://").ok_or_else(bad)?;
        let is_tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(bad()),
        };
        if rest.contains('@') {
            return Err(BadEtcd::UserName);
        }
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let members = members.split(',').map(|member| host_port(member.trim(), ETCD_PORT));
        let members = members.collect::<Option<Vec<_>>>().ok_or_else(bad)?;
        let prefix = prefix.trim_matches('/');
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/');
        if !prefix.chars().all(plain) {
            return Err(bad());
        }
        let prefix = if prefix.is_empty() { "cheetah" } else { prefix }.to_owned();
        Ok(EtcdAt { is_tls, certificates: None, members, prefix })
    }
}

impl EtcdAt {
    /// The directory that `etcds://` needs, with `ca-cert.pem` and, where etcd asks for them,
    /// `client-cert.pem` and `client-key.pem`.
    #[must_use]
    pub fn with_certificates(self, directory: Option<PathBuf>) -> Self {
        EtcdAt { certificates: directory, ..self }
    }

    /// Whether what is kept there crosses no network in the clear.
    pub(super) fn keeps_secrets(&self) -> bool {
        let here = |host: &str| {
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
        };
        self.is_tls || self.members.iter().all(|(host, _)| here(host))
    }

    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, BadCertificates> {
        match (self.is_tls, &self.certificates) {
            (false, None) => Ok(None),
            (true, Some(directory)) => etcd_tls::config(directory).map(Some),
            (true, None) => Err(BadCertificates::missing()),
            (false, Some(_)) => Err(BadCertificates::unasked()),
        }
    }
}

/// A text that names no etcd that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadEtcd {
    Malformed(String),
    /// It is to be reached under a user's name.
    UserName,
}

impl fmt::Display for BadEtcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadEtcd::Malformed(text) => write!(
                f,
                "'{text}' does not name an etcd: write it like etcd://10.0.0.1:{ETCD_PORT},10.0.0.2:{ETCD_PORT}/lab"
            ),
            BadEtcd::UserName => {
                f.write_str("etcd with user names is not supported: it has to be reached without")
            }
        }
    }
}

impl std::error::Error for BadEtcd {}

impl fmt::Display for EtcdAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<String> = self.members.iter().map(|(host, port)| name_of(host, *port)).collect();
        let scheme = if self.is_tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", members.join(","), self.prefix)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EtcdError {
    /// No member answered in time; whether something was done is unknown.
    Unreachable(String),
    /// etcd's answer is no.
    Refused(String),
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EtcdError::Unreachable(why) | EtcdError::Refused(why) => f.write_str(why),
        }
    }
}

/// A condition of a transaction.
#[derive(Clone, Debug)]
pub(super) enum If {
    Absent(String),
    /// The key is the one that was made at this revision, not a later one of the same name.
    Created(String, i64),
    Holds(String, String),
}

/// A part of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Bound to a lease unless that is 0.
    Put(String, Vec<u8>, i64),
    /// From the first key to before the second.
    Delete(String, String),
    Get(String),
}

impl Op {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Op::Put(key, value, _) => key.len() + value.len(),
            Op::Delete(from, to) => from.len() + to.len(),
            Op::Get(key) => key.len(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    pub(super) created: i64,
    pub(super) lease: i64,
}

#[derive(Debug)]
pub(super) struct Done {
    pub(super) succeeded: bool,
    pub(super) revision: i64,
    /// What the `Get`s of the branch that was taken found.
    pub(super) found: Vec<Found>,
}

#[derive(Debug)]
pub(super) struct Etcd {
    members: Arc<Members>,
}

#[derive(Debug)]
struct Members {
    at: EtcdAt,
    /// In the order of `at`.
    servers: Vec<Server>,
    /// The member that answered last.
    first: AtomicUsize,
}

impl Etcd {
    pub(super) fn new(at: EtcdAt) -> Result<Self, BadCertificates> {
        let time = Duration::from_nanos(ETCD_ATTEMPT_NS);
        let tls = at.tls()?;
        let server = |(host, port): &(String, u16)| {
            let server = Server::new(host.clone(), *port, time, false);
            match &tls {
                Some(tls) => server.certified(Arc::clone(tls)),
                None => server,
            }
        };
        let servers = at.members.iter().map(server).collect();
        let members = Members { at, servers, first: AtomicUsize::new(0) };
        Ok(Etcd { members: Arc::new(members) })
    }

    pub(super) fn at(&self) -> &EtcdAt {
        &self.members.at
    }

    /// A key of ours.
    pub(super) fn key(&self, name: &str) -> String {
        format!("/{}/{name}", self.members.at.prefix)
    }

    pub(super) async fn get(&self, key: &str, until: Instant) -> Result<Option<Found>, EtcdError> {
        let found: RangeAnswer = self.ask("/v3/kv/range", &json!({"key": encode(key)}), until).await?;
        found.kvs.into_iter().next().map(Found::try_from).transpose()
    }

    /// All keys from the first to before the second, ascending.
    /// `until` is asked for each page.
    pub(super) async fn range(
        &self,
        from: &str,
        to: &str,
        until: impl Fn() -> Instant,
    ) -> Result<Vec<Found>, EtcdError> {
        let mut all = Vec::new();
        let mut from = from.to_owned();
        loop {
            let body = json!({"key": encode(&from), "range_end": encode(to), "limit": ETCD_PAGE_KEYS_MAX.to_string()});
            let page: RangeAnswer = self.ask("/v3/kv/range", &body, until()).await?;
            for found in page.kvs {
                all.push(Found::try_from(found)?);
            }
            match all.last() {
                Some(last) if page.more => from = format!("{}\0", last.key),
                _ => return Ok(all),
            }
        }
    }

    pub(super) async fn transact(
        &self,
        guards: &[If],
        then: &[Op],
        otherwise: &[Op],
        until: Instant,
    ) -> Result<Done, EtcdError> {
        let body = json!({
            "compare": guards.iter().map(compare).collect::<Vec<_>>(),
            "success": then.iter().map(request).collect::<Vec<_>>(),
            "failure": otherwise.iter().map(request).collect::<Vec<_>>(),
        });
        let answer: TxnAnswer = self.ask("/v3/kv/txn", &body, until).await?;
        let ranges = answer.responses.into_iter().filter_map(|part| part.response_range);
        let found = ranges.flat_map(|range| range.kvs).map(Found::try_from).collect::<Result<_, _>>()?;
        Ok(Done { succeeded: answer.succeeded, revision: answer.header.revision, found })
    }

    /// A new lease, and the seconds that etcd gives it: not fewer than its own elections take.
    pub(super) async fn grant(&self, seconds: u64, until: Instant) -> Result<(i64, u64), EtcdError> {
        let body = json!({"TTL": seconds.to_string()});
        let lease: LeaseAnswer = self.ask("/v3/lease/grant", &body, until).await?;
        Ok((lease.id, u64::try_from(lease.ttl).unwrap_or(0)))
    }

    /// The seconds that the lease has from now; 0 when there is no such lease any more.
    pub(super) async fn keep_alive(&self, lease: i64, until: Instant) -> Result<u64, EtcdError> {
        let body = json!({"ID": lease.to_string()});
        let kept: KeepAnswer = self.ask("/v3/lease/keepalive", &body, until).await?;
        Ok(u64::try_from(kept.result.ttl).unwrap_or(0))
    }

    /// Ends a lease; its keys are gone with it.
    pub(super) async fn revoke(&self, lease: i64, until: Instant) -> Result<(), EtcdError> {
        let _: Value = self.ask("/v3/lease/revoke", &json!({"ID": lease.to_string()}), until).await?;
        Ok(())
    }

    /// This machine's address as etcd sees it.
    pub(super) async fn local_ip(&self, until: Instant) -> Result<IpAddr, EtcdError> {
        let mut why = String::new();
        for server in &self.members.servers {
            match timeout_at(until, server.local_ip()).await {
                Ok(Ok(ip)) => return Ok(ip),
                Ok(Err(error)) => why = format!("{}: {error}", server.name()),
                Err(_) => why = format!("{}: no connection in time", server.name()),
            }
        }
        Err(EtcdError::Unreachable(why))
    }

    /// Asks one member after the other until one answers or the time is over. The next is asked soon, without
    /// giving up the one before: a member that is stopped takes requests and never answers, and what the
    /// others had been asked before they chose another leader they never answer either.
    async fn ask<T: DeserializeOwned>(
        &self,
        path: &'static str,
        body: &Value,
        until: Instant,
    ) -> Result<T, EtcdError> {
        let body = Bytes::from(body.to_string());
        let members = self.members.at.members.len();
        let first = self.members.first.load(Ordering::Relaxed);
        let mut whys = vec![String::new(); members];
        // One that is alone is not asked twice at once.
        let patience = Duration::from_nanos(if members == 1 { ETCD_ATTEMPT_NS } else { ETCD_NEXT_NS });
        let mut asked = JoinSet::new();
        for tried in 0.. {
            let member = (first + tried) % members;
            let (to, body) = (Arc::clone(&self.members), body.clone());
            let attempt = until.min(Instant::now() + Duration::from_nanos(ETCD_ATTEMPT_NS));
            asked.spawn(async move { (member, timeout_at(attempt, to.attempt(member, path, body)).await) });
            let next = until.min(Instant::now() + patience);
            // Who has failed is not asked again at once.
            let soonest = Instant::now() + ROUND_PAUSE / u32::try_from(members).unwrap_or(u32::MAX);
            while let Ok(Some(ended)) = timeout_at(next, asked.join_next()).await {
                let Ok((member, answer)) = ended else { continue };
                let name = self.members.servers[member].name();
                match answer {
                    Ok(Ok((status, answer))) => match understand(status, &answer) {
                        Ok(answer) => {
                            self.members.first.store(member, Ordering::Relaxed);
                            return Ok(answer);
                        }
                        Err(EtcdError::Unreachable(why)) => whys[member] = format!("{name}: {why}"),
                        Err(EtcdError::Refused(why)) => {
                            return Err(EtcdError::Refused(format!("{name}: {why}")));
                        }
                    },
                    Ok(Err(why)) => whys[member] = format!("{name}: {why}"),
                    // One that was cut short says less than what was heard before.
                    Err(_) if whys[member].is_empty() || attempt < until => {
                        whys[member] =
                            format!("{name}: no answer in {:?}", Duration::from_nanos(ETCD_ATTEMPT_NS));
                    }
                    Err(_) => {}
                }
            }
            tokio::time::sleep_until(soonest.min(until)).await;
            if Instant::now() >= until {
                break;
            }
        }
        whys.retain(|why| !why.is_empty());
        if whys.is_empty() {
            whys.push("no answer in time".to_owned());
        }
        Err(EtcdError::Unreachable(whys.join("; ")))
    }
}

impl Members {
    async fn attempt(&self, member: usize, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), NoReply> {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json").body(body);
        let request = request.map_err(|error| NoReply::Unsent(error.to_string()))?;
        let reply = self.servers[member].exchange(&request).await?;
        Ok((reply.status, reply.read().await?))
    }
}

/// gRPC's codes for what another member, or the same one a moment later, may answer well.
const DEADLINE_EXCEEDED: i64 = 4;
const UNAVAILABLE: i64 = 14;

fn understand<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, EtcdError> {
    if status.is_success() {
        let foreign = |error| EtcdError::Refused(format!("not etcd's v3 API ({error})"));
        return serde_json::from_slice(body).map_err(foreign);
    }
    match serde_json::from_slice::<ErrorAnswer>(body) {
        Ok(no) if [DEADLINE_EXCEEDED, UNAVAILABLE].contains(&no.code) => {
            Err(EtcdError::Unreachable(no.error))
        }
        Ok(no) if !no.error.is_empty() => Err(EtcdError::Refused(no.error)),
        _ => Err(EtcdError::Refused(format!("it answers {status}; etcd 3.4 or later is needed"))),
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64.encode(bytes)
}

fn compare(guard: &If) -> Value {
    match guard {
        If::Absent(key) => json!({"key": encode(key), "target": "CREATE", "create_revision": "0"}),
        If::Created(key, at) => {
            json!({"key": encode(key), "target": "CREATE", "create_revision": at.to_string()})
        }
        If::Holds(key, value) => json!({"key": encode(key), "target": "VALUE", "value": encode(value)}),
    }
}

fn request(op: &Op) -> Value {
    match op {
        Op::Put(key, value, lease) => {
            json!({"request_put": {"key": encode(key), "value": encode(value), "lease": lease.to_string()}})
        }
        Op::Delete(from, to) => {
            json!({"request_delete_range": {"key": encode(from), "range_end": encode(to)}})
        }
        Op::Get(key) => json!({"request_range": {"key": encode(key)}}),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeyValue {
    key: String,
    value: String,
    #[serde(deserialize_with = "number")]
    create_revision: i64,
    #[serde(deserialize_with = "number")]
    lease: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RangeAnswer {
    kvs: Vec<KeyValue>,
    more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Part {
    response_range: Option<RangeAnswer>,
}

/// Answers that lack their header are not etcd's.
#[derive(Debug, Deserialize)]
struct TxnAnswer {
    header: Header,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<Part>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LeaseAnswer {
    #[serde(rename = "ID", deserialize_with = "number")]
    id: i64,
    #[serde(rename = "TTL", deserialize_with = "number")]
    ttl: i64,
}

#[derive(Debug, Deserialize)]
struct KeepAnswer {
    result: LeaseAnswer,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorAnswer {
    error: String,
    code: i64,
}

/// 64-bit numbers come as strings.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

impl TryFrom<KeyValue> for Found {
    type Error = EtcdError;

    fn try_from(from: KeyValue) -> Result<Self, EtcdError> {
        let foreign = || EtcdError::Refused("a key or value is not what etcd's v3 API says".to_owned());
        let key = BASE64.decode(from.key).map_err(|_| foreign())?;
        let key = String::from_utf8(key).map_err(|_| foreign())?;
        let value = BASE64.decode(from.value).map_err(|_| foreign())?;
        Ok(Found { key, value, created: from.create_revision, lease: from.lease })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, shown) in [
            ("etcd://10.0.0.1", "etcd://10.0.0.1:2379/cheetah"),
            ("etcd://a:1,[::1]:2,c/lab/", "etcd://a:1,[::1]:2,c:2379/lab"),
            ("etcd://a/x/y", "etcd://a:2379/x/y"),
            ("etcds://a", "etcds://a:2379/cheetah"),
        ] {
            assert_eq!(text.parse::<EtcdAt>().map(|at| at.to_string()), Ok(shown.to_owned()));
        }
        for bad in
            ["etcd://", "etcd:a", "http://a", "etcd://a,", "etcd://a:0", "etcd://u:p@a", "etcd://a/x y"]
        {
            assert!(bad.parse::<EtcdAt>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_crosses_no_network_in_the_clear_may_be_secret() {
        let keeps = |text: &str| text.parse::<EtcdAt>().expect("an address").keeps_secrets();
        assert!(["etcds://10.0.0.1", "etcd://127.0.0.1:1,[::1],localhost"].into_iter().all(keeps));
        assert!(!["etcd://10.0.0.1", "etcd://127.0.0.1,lab5"].into_iter().any(keeps));
    }

    #[test]
    fn what_passes_is_told_from_what_stays() {
        let no = |status: StatusCode, body: &str| understand::<RangeAnswer>(status, body.as_bytes()).err();
        let passes = no(StatusCode::SERVICE_UNAVAILABLE, r#"{"error":"no leader","code":14}"#);
        assert_eq!(passes, Some(EtcdError::Unreachable("no leader".into())));
        let stays = no(StatusCode::BAD_REQUEST, r#"{"error":"request is too large","code":3}"#);
        assert_eq!(stays, Some(EtcdError::Refused("request is too large".into())));
        assert!(matches!(no(StatusCode::NOT_FOUND, "404"), Some(EtcdError::Refused(_))));
        assert!(matches!(no(StatusCode::OK, "<html>"), Some(EtcdError::Refused(_))));
    }
}
