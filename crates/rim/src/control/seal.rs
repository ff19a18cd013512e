//! What a call and its answer were when they left, said beside them.
//!
//! Owns the header `cheetah-seal`: a CRC32C, in eight hexadecimal digits, over what follows from the message.
//! Never: secrecy, or protection from who wants to change something, which is TLS's. TCP's checksum lets one
//! of some thousand hits pass, and a digit that flipped in a donor's duties would have it wipe what it holds.
//! Tests: below, `tests/control_seal.rs`.

use super::wire::{POOL_HEADER, VERSION_HEADER};
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};

pub(super) const SEAL_HEADER: &str = "cheetah-seal";

/// Of a call: its method, its path, the version and the pool that its headers name, and its body.
pub(super) fn of_call(method: &Method, path: &str, headers: &HeaderMap, body: &[u8]) -> String {
    let named = |header: &str| headers.get(header).map_or(&[][..], |value| value.as_bytes());
    let parts =
        [method.as_str().as_bytes(), path.as_bytes(), named(VERSION_HEADER), named(POOL_HEADER), body];
    of(parts)
}

/// Of an answer: its status, the version that its head names, and its body.
pub(super) fn of_answer(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> String {
    let version = headers.get(VERSION_HEADER).map_or(&[][..], |value| value.as_bytes());
    of([status.as_str().as_bytes(), version, body])
}

/// Whether the message is what its seal says; `None`: it has none.
pub(super) fn fits(headers: &HeaderMap, seal: impl FnOnce() -> String) -> Option<bool> {
    headers.get(SEAL_HEADER).map(|said| said.as_bytes() == seal().as_bytes())
}

/// No part has a line feed but the last, so that what belongs to which is not in doubt.
fn of<const PARTS: usize>(parts: [&[u8]; PARTS]) -> String {
    let append = |sum, part: &&[u8]| crc32c::crc32c_append(crc32c::crc32c_append(sum, part), b"\n");
    format!("{:08x}", parts.iter().fold(0, append))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn every_part_of_a_message_is_under_its_seal() {
        let mut headers = HeaderMap::new();
        let sealed = |method: Method, path: &str, headers: &HeaderMap, body: &[u8]| {
            of_call(&method, path, headers, body)
        };
        let first = sealed(Method::POST, "/v1/donors", &headers, b"{}");
        assert_eq!(first, sealed(Method::POST, "/v1/donors", &headers, b"{}"));
        assert_ne!(first, sealed(Method::PUT, "/v1/donors", &headers, b"{}"));
        assert_ne!(first, sealed(Method::POST, "/v1/donorr", &headers, b"{}"));
        assert_ne!(first, sealed(Method::POST, "/v1/donors", &headers, b"{]"));
        for header in [VERSION_HEADER, POOL_HEADER] {
            headers.insert(header, HeaderValue::from_static("5"));
            assert_ne!(first, sealed(Method::POST, "/v1/donors", &headers, b"{}"), "{header}");
            headers.clear();
        }
        assert_eq!(fits(&headers, || first.clone()), None);
        headers.insert(SEAL_HEADER, first.parse().unwrap());
        assert_eq!(
            (fits(&headers, || first.clone()), fits(&headers, || "0".into())),
            (Some(true), Some(false))
        );
        let answer = |status, body| of_answer(status, &HeaderMap::new(), body);
        assert_ne!(answer(StatusCode::OK, b"1"), answer(StatusCode::GONE, b"1"));
        assert_ne!(answer(StatusCode::OK, b"1"), answer(StatusCode::OK, b"3"));
    }
}
