//! The client that donors, attached volumes and commands call a coordinator with.
//!
//! Owns the connections to one coordinator and the deadline of each call. Never: retries of a call that may
//! have been carried out, or the choice of coordinator (`discovery`). Key invariant: every call ends.
//! Tests: `tests/control.rs`.

use super::wire::{VERSION_HEADER, version_refusal, wire};
use cheetah_core::api::{API_VERSION, Answer, Call, Refusal};
use cheetah_core::limits::{CONNECT_DEADLINE_NS, CONTROL_ANSWER_BYTES_MAX, COORDINATOR_PORT};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Connections kept for the next call.
const IDLE_MAX: usize = 4;

type Sender = SendRequest<Full<Bytes>>;

#[derive(Clone, Debug)]
pub struct Client {
    to: Arc<To>,
}

#[derive(Debug)]
struct To {
    url: String,
    host: String,
    port: u16,
    idle: Mutex<Vec<Sender>>,
}

/// A `--pool` that is not a URL of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUrl(String);

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not the URL of a coordinator: write it like http://10.0.0.1:{COORDINATOR_PORT}",
            self.0
        )
    }
}

impl std::error::Error for BadUrl {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The coordinator's answer is no.
    Refused(Refusal),
    /// It could not be asked, or did not answer in time; whether it did anything is unknown.
    Unreachable { url: String, why: String },
    /// Something else listens there.
    NotCheetah { url: String, why: String },
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
            CallError::NotCheetah { url, why } => {
                write!(f, "what listens at {url} is not a Cheetah coordinator ({why}); name one with --pool")
            }
        }
    }
}

impl std::error::Error for CallError {}

impl Client {
    /// `http://HOST[:PORT]`, or `HOST[:PORT]`.
    ///
    /// # Errors
    /// When it is not that.
    pub fn new(url: &str) -> Result<Self, BadUrl> {
        let bad = || BadUrl(url.to_owned());
        let rest = url.trim().strip_prefix("http://").unwrap_or(url.trim());
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.rsplit_once(':') {
            // An IPv6 address has colons of its own.
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| bad())?),
            _ => (rest, COORDINATOR_PORT),
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_v6 = bracketed.is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if port == 0 || !(is_v6 || (!host.is_empty() && host.chars().all(plain))) {
            return Err(bad());
        }
        let url = format!("http://{host}:{port}");
        let host = bracketed.unwrap_or(host).to_owned();
        Ok(Client { to: Arc::new(To { url, host, port, idle: Mutex::new(Vec::new()) }) })
    }

    #[must_use]
    pub fn url(&self) -> &str {
        &self.to.url
    }

    /// One call, answered or given up on in bounded time.
    ///
    /// # Errors
    /// When it was refused, or could not be made.
    pub async fn call(&self, call: Call) -> Result<Answer, CallError> {
        let wire = wire(&call);
        let until = Instant::now() + wire.deadline;
        let request = || {
            Request::builder()
                .method(wire.method.clone())
                .uri(wire.path.as_str())
                .header(header::HOST, self.to.url.trim_start_matches("http://"))
                .header(header::CONTENT_TYPE, "application/json")
                .header(VERSION_HEADER, API_VERSION)
                .body(Full::new(Bytes::copy_from_slice(&wire.body)))
                .map_err(|error| self.unreachable(error))
        };
        let asking = async {
            let mut sender = self.idle();
            loop {
                let (mut connection, reused) = match sender.take() {
                    Some(sender) => (sender, true),
                    None => (self.connect().await?.0, false),
                };
                match connection.try_send_request(request()?).await {
                    Ok(response) => return self.read(connection, response).await,
                    Err(mut error) => {
                        // Unless the kept connection had closed before this request was sent on it.
                        if !reused || error.take_message().is_none() {
                            return Err(self.unreachable(error.into_error()));
                        }
                    }
                }
            }
        };
        let answer = timeout_at(until, asking).await;
        let (status, body) =
            answer.map_err(|_| self.unreachable(format!("no answer in {:?}", wire.deadline)))??;
        if status.is_success() {
            return (wire.parse)(&body).map_err(|error| self.not_cheetah(format!("its answer: {error}")));
        }
        let refusal = serde_json::from_slice(&body);
        Err(refusal.map_or_else(|_| self.not_cheetah(format!("it answers {status}")), CallError::Refused))
    }

    /// This machine's address as the coordinator sees it.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn local_ip(&self) -> Result<IpAddr, CallError> {
        Ok(self.connect().await?.1)
    }

    async fn read(
        &self,
        connection: Sender,
        response: hyper::Response<hyper::body::Incoming>,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let (head, body) = response.into_parts();
        let version =
            head.headers.get(VERSION_HEADER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
        let Some(version) = version else {
            return Err(self.not_cheetah(format!("it answers {} without a Cheetah API version", head.status)));
        };
        if version != API_VERSION {
            let them = format!("the coordinator at {}", self.to.url);
            return Err(CallError::Refused(version_refusal(version, "this machine", &them)));
        }
        let body = Limited::new(body, CONTROL_ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| self.unreachable(error))?.to_bytes();
        if let Ok(mut idle) = self.to.idle.lock()
            && idle.len() < IDLE_MAX
        {
            idle.push(connection);
        }
        Ok((head.status, body))
    }

    fn idle(&self) -> Option<Sender> {
        let mut idle = self.to.idle.lock().ok()?;
        idle.retain(|sender| !sender.is_closed());
        idle.pop()
    }

    async fn connect(&self) -> Result<(Sender, IpAddr), CallError> {
        let deadline = Duration::from_nanos(CONNECT_DEADLINE_NS);
        let connecting = TcpStream::connect((self.to.host.as_str(), self.to.port));
        let stream = tokio::time::timeout(deadline, connecting).await;
        let stream = stream.map_err(|_| self.unreachable(format!("no connection in {deadline:?}")))?;
        let stream = stream.map_err(|error| self.unreachable(error))?;
        let local = stream.local_addr().map_err(|error| self.unreachable(error))?;
        // Only a matter of latency.
        let _ = stream.set_nodelay(true);
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| self.unreachable(error))?;
        // Ends with the sender; its errors reach whoever waits for an answer.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok((sender, local.ip()))
    }

    fn unreachable(&self, why: impl fmt::Display) -> CallError {
        CallError::Unreachable { url: self.to.url.clone(), why: why.to_string() }
    }

    fn not_cheetah(&self, why: String) -> CallError {
        CallError::NotCheetah { url: self.to.url.clone(), why }
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
        ] {
            assert_eq!(Client::new(text).map(|client| client.url().to_owned()), Ok(url.to_owned()));
        }
        for bad in ["", "https://x", "http://", "http://a/b", "a:0", "a:x", "::1", "http://a b"] {
            assert!(Client::new(bad).is_err(), "{bad}");
        }
    }
}
