//! The coordinator's record of what happened to its pool: one line each, with the time, what, of what, and
//! who.
//!
//! Owns the form of a line, for people and as `key=value`, and how it is known who calls. Never: what is
//! worth one (core). Invariant: who a caller says it is stands beside where it called from, which it cannot
//! choose.
//! Called by `server` (who calls) and `machine` (the lines).

use cheetah_core::coordinator::Note;
use cheetah_core::members::Member;
use std::net::IpAddr;

/// Who calls, as it says itself: `eve@lab process 7`. For the record only.
pub(super) const BY_HEADER: &str = "cheetah-by";
const BY_BYTES_MAX: usize = 128;

tokio::task_local! {
    /// Where the connection comes from on which the task answers.
    pub(super) static PEER: IpAddr;
    /// Who makes the call that the task answers.
    pub(super) static BY: String;
}

/// Of the caller whose request has this header; `None` outside of a connection.
pub(super) fn by(header: Option<&str>, member: Option<Member>) -> String {
    let said = header.unwrap_or("somebody");
    let said: String = said.chars().filter(|c| !c.is_control()).take(BY_BYTES_MAX).collect();
    match PEER.try_with(|peer| *peer) {
        Ok(peer) => match member {
            Some(member) => format!("{said} from {peer} as {member}"),
            None => format!("{said} from {peer}"),
        },
        Err(_) => said,
    }
}

/// Who this process is to a coordinator.
#[must_use]
pub fn own_name() -> String {
    let user = std::env::var("SUDO_USER").or_else(|_| std::env::var("USER"));
    let user = user.unwrap_or_else(|_| format!("uid {}", rustix::process::getuid().as_raw()));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{user}@{host} process {}", std::process::id())
}

pub(super) fn log(note: &Note, by: Option<&str>) {
    let Note { event, volume, donor, holder, text, is_bad, call: _ } = note;
    let (volume, donor, holder) = (volume.as_deref(), donor.as_deref(), holder.as_deref());
    match is_bad {
        true => tracing::warn!(target: "journal", event, volume, donor, holder, by, "{text}"),
        false => tracing::info!(target: "journal", event, volume, donor, holder, by, "{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_calls_is_what_it_says_and_where_it_calls_from() {
        assert_eq!(by(Some("eve@lab process 7"), None), "eve@lab process 7");
        let peer = IpAddr::from([10, 0, 0, 9]);
        assert_eq!(PEER.sync_scope(peer, || by(Some("a\u{1b}b"), None)), "ab from 10.0.0.9");
        assert_eq!(PEER.sync_scope(peer, || by(None, None)), "somebody from 10.0.0.9");
        assert!(by(Some(&"x".repeat(4_000)), None).len() <= BY_BYTES_MAX);
        assert!(own_name().contains('@'));
    }
}
