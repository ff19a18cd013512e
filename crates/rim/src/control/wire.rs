//! A call as HTTP: method, path and body, and the answer or refusal that comes back.
//!
//! Owns the routes, for client and server alike, and the header by which both ends know each other's API
//! version. Never: sockets. Tests: below, and `tests/control.rs` for each route with a real server.

use cheetah_core::api::{API_VERSION, Answer, Call, Refusal, RefusalCode, Size};
use cheetah_core::limits::{
    CONTROL_DEADLINE_NS, DONOR_SILENCE_NS, GREETING_NS, HEARTBEAT_NS, LEASE_RENEW_NS,
};
use cheetah_core::map::PoolId;
use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The description of the API (OpenAPI 3.1), as `GET /openapi.json` serves it.
pub const OPENAPI: &str = include_str!("openapi.json");

/// Both ends send it with every message.
pub(super) const VERSION_HEADER: &str = "cheetah-api";

/// The pool that a call is meant for, where its caller knows; another pool's coordinator does not carry it
/// out.
pub(super) const POOL_HEADER: &str = "cheetah-pool";

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct LeaveBody {
    #[serde(default)]
    pub(super) force: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GrowBody {
    pub(super) size: Size,
}

pub(super) struct Wire {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) pool: Option<PoolId>,
    /// JSON; empty when the call has no body.
    pub(super) body: Vec<u8>,
    pub(super) deadline: Duration,
    pub(super) parse: fn(&[u8]) -> Result<Answer, serde_json::Error>,
}

/// The body of a call without one.
const NONE: Vec<u8> = Vec::new();

/// The request that carries a call.
pub(super) fn wire(call: &Call) -> Wire {
    let (method, path, body, held, parse): (_, _, _, _, fn(&[u8]) -> _) = match call {
        Call::Pool => (Method::GET, "/v1/pool".to_owned(), NONE, 0, |b| json(b).map(Answer::Pool)),
        Call::Join(join) => {
            (Method::POST, "/v1/donors".to_owned(), bytes(join), GREETING_NS, |b| json(b).map(Answer::Joined))
        }
        Call::Sync { donor, sync } => {
            let path = format!("/v1/donors/{donor}/sync");
            (Method::POST, path, bytes(sync), HEARTBEAT_NS, |b| json(b).map(Answer::Duties))
        }
        Call::Leave { donor, force } => {
            let path = format!("/v1/donors/{}/leave", segment(donor));
            let body = bytes(&LeaveBody { force: *force });
            (Method::POST, path, body, 0, |b| json(b).map(Answer::Leaving))
        }
        Call::Create(create) => {
            let path = "/v1/volumes".to_owned();
            (Method::POST, path, bytes(create), DONOR_SILENCE_NS, |b| json(b).map(Answer::Volume))
        }
        Call::Show { name } => (Method::GET, volume(name, ""), NONE, 0, |b| json(b).map(Answer::Volume)),
        Call::Manifest { name } => {
            (Method::GET, volume(name, "/manifest"), NONE, 0, |b| json(b).map(Answer::Signed))
        }
        Call::Validation(validation) => {
            (Method::POST, "/v1/validations".to_owned(), bytes(validation), 0, |b| {
                json(b).map(Answer::Signed)
            })
        }
        Call::Grow { name, size } => {
            let body = bytes(&GrowBody { size: *size });
            (Method::POST, volume(name, "/grow"), body, DONOR_SILENCE_NS, |b| json(b).map(Answer::Volume))
        }
        Call::Delete { name } => (Method::DELETE, volume(name, ""), NONE, 0, |_| Ok(Answer::Done)),
        Call::Attach { name, attach } => {
            let path = volume(name, "/leases");
            (Method::POST, path, bytes(attach), DONOR_SILENCE_NS, |b| json(b).map(Answer::Attached))
        }
        Call::Renew { name, token, renew } => {
            let path = volume(name, &format!("/leases/{token}/renew"));
            (Method::POST, path, bytes(renew), LEASE_RENEW_NS, |b| json(b).map(Answer::Renewed))
        }
        Call::Amend { name, token, amend } => {
            let path = volume(name, &format!("/leases/{token}/amend"));
            (Method::POST, path, bytes(amend), 0, |b| json(b).map(Answer::Renewed))
        }
        Call::Tell { name, token, tell } => {
            let path = volume(name, &format!("/leases/{token}/content"));
            (Method::POST, path, bytes(tell), 0, |_| Ok(Answer::Done))
        }
        Call::Detach { name, token } => {
            (Method::DELETE, volume(name, &format!("/leases/{token}")), NONE, 0, |_| Ok(Answer::Done))
        }
        Call::Log { name } => (Method::GET, volume(name, "/log"), NONE, 0, |b| json(b).map(Answer::Log)),
        Call::Say { name, said } => {
            (Method::POST, volume(name, "/log"), bytes(said), 0, |_| Ok(Answer::Done))
        }
        Call::NewToken(new) => {
            (Method::POST, "/v1/tokens".to_owned(), bytes(new), 0, |b| json(b).map(Answer::Token))
        }
        Call::Tokens => (Method::GET, "/v1/tokens".to_owned(), NONE, 0, |b| json(b).map(Answer::Tokens)),
        Call::RevokeToken { token } => {
            (Method::DELETE, format!("/v1/tokens/{token}"), NONE, 0, |_| Ok(Answer::Done))
        }
        Call::Enrol { enrol, hash: _ } => {
            (Method::POST, "/v1/members".to_owned(), bytes(enrol), 0, |b| json(b).map(Answer::Enrolled))
        }
        Call::Recertify(recertify) => {
            let path = "/v1/members/self".to_owned();
            (Method::POST, path, bytes(recertify), 0, |b| json(b).map(Answer::Enrolled))
        }
        Call::Members => (Method::GET, "/v1/members".to_owned(), NONE, 0, |b| json(b).map(Answer::Members)),
        Call::GrantKey { .. } | Call::Member { .. } => return of_keys(call),
        Call::RevokeMember { member } => {
            (Method::DELETE, format!("/v1/members/{member}"), NONE, 0, |_| Ok(Answer::Done))
        }
    };
    let deadline = Duration::from_nanos(held + CONTROL_DEADLINE_NS);
    Wire { method, path, pool: None, body, deadline, parse }
}

/// The same for calls by which a member is given a key.
fn of_keys(call: &Call) -> Wire {
    let (pool, deadline) = (None, Duration::from_nanos(CONTROL_DEADLINE_NS));
    match call {
        Call::GrantKey { name, grant } => {
            let (method, path, body) = (Method::POST, volume(name, "/keys"), bytes(grant));
            Wire { method, path, pool, body, deadline, parse: |_| Ok(Answer::Done) }
        }
        Call::Member { member } => {
            let (method, path, body) = (Method::GET, format!("/v1/members/{member}"), NONE);
            Wire { method, path, pool, body, deadline, parse: |b| json(b).map(Answer::Member) }
        }
        _ => unreachable!("others are not about keys"),
    }
}

fn volume(name: &str, rest: &str) -> String {
    format!("/v1/volumes/{}{rest}", segment(name))
}

fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("the API's shapes have string keys only")
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(body)
}

/// A name as one segment of a path: whatever a user typed reaches the coordinator, which refuses it by name.
fn segment(name: &str) -> String {
    let escaped = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => char::from(byte).to_string(),
        b'.' if name.len() > 2 => ".".to_owned(),
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(escaped).collect()
}

/// The body of an answer. A big map makes a big body, so this is not done on the machine's task.
pub(super) fn answer_body(answer: &Answer) -> Vec<u8> {
    match answer {
        Answer::Pool(body) => bytes(body),
        Answer::Joined(body) => bytes(body),
        Answer::Duties(body) => bytes(body),
        Answer::Volume(body) => bytes(body),
        Answer::Manifest(body) => bytes(body),
        // Callers get it signed.
        Answer::Validated(body) => bytes(&body.text),
        Answer::Signed(body) => bytes(body),
        Answer::Attached(body) => bytes(body),
        Answer::Renewed(body) => bytes(body),
        Answer::Leaving(body) => bytes(body),
        Answer::Log(body) => bytes(body),
        Answer::Token(body) => bytes(body),
        Answer::Tokens(body) => bytes(body),
        Answer::Enrolled(body) => bytes(body),
        Answer::Members(body) => bytes(body),
        Answer::Member(body) => bytes(body),
        Answer::Done => b"{}".to_vec(),
    }
}

pub(super) fn status(code: RefusalCode) -> StatusCode {
    match code {
        RefusalCode::Invalid | RefusalCode::Damaged => StatusCode::BAD_REQUEST,
        RefusalCode::Forbidden => StatusCode::FORBIDDEN,
        RefusalCode::NotFound => StatusCode::NOT_FOUND,
        RefusalCode::Conflict => StatusCode::CONFLICT,
        RefusalCode::PoolFull => StatusCode::INSUFFICIENT_STORAGE,
        RefusalCode::Unreachable => StatusCode::FAILED_DEPENDENCY,
        RefusalCode::Version => StatusCode::UPGRADE_REQUIRED,
        RefusalCode::Gone => StatusCode::GONE,
        RefusalCode::OtherPool => StatusCode::MISDIRECTED_REQUEST,
        RefusalCode::Unavailable | RefusalCode::Standby => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Says which of two sides is the older one.
pub(super) fn version_refusal(theirs: u32, us: &str, them: &str) -> Refusal {
    let older = if theirs < API_VERSION { them } else { us };
    let message = format!(
        "{them} speaks API version {theirs} and {us} version {API_VERSION}: upgrade cheetah on {older}'s side"
    );
    Refusal { code: RefusalCode::Version, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_one_segment() {
        assert_eq!(segment("case-7.raw"), "case-7.raw");
        assert_eq!(segment("../x?#"), "..%2Fx%3F%23");
        assert_eq!(segment(".."), "%2E%2E");
    }
}
