//! Why a coordinator does not start, or ends; each text says what to do.
//! Never: why a call is refused, which core says.

use super::etcd_tls::BadCertificates;
use super::store::StoreError;
use cheetah_core::limits::DESCRIPTORS_SPARE;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a coordinator did not start, or ended. Each says what to do.
#[derive(Debug)]
pub enum CoordinateError {
    PortInUse {
        address: SocketAddr,
    },
    Listen {
        address: SocketAddr,
        why: std::io::Error,
    },
    StateInUse {
        directory: PathBuf,
    },
    /// The state cannot be opened or read; nothing was changed.
    State {
        state: String,
        why: String,
    },
    /// No member of etcd answered.
    Etcd {
        at: String,
        why: String,
    },
    /// A change could not be stored, so it was not answered.
    Store {
        why: String,
    },
    /// A pool of members is not served in the clear.
    MembersOnly {
        state: String,
    },
    /// A pool in the clear does not become one of members unasked: its donors would be shut out.
    InTheClear {
        state: String,
    },
    EtcdCertificates(BadCertificates),
    /// The key of a pool of members does not cross a network unsealed.
    EtcdInTheClear {
        at: String,
    },
    /// What is in the clear is not for everybody.
    Public {
        address: SocketAddr,
    },
    Random(std::io::Error),
    /// This process may have too few files and sockets open.
    Descriptors {
        allowed: u64,
    },
}

impl fmt::Display for CoordinateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoordinateError::PortInUse { address } => write!(
                f,
                "port {} on {} is in use, perhaps by another coordinator: stop that one, or listen elsewhere with \
                 --listen {}:{}",
                address.port(),
                address.ip(),
                address.ip(),
                address.port().checked_add(1).unwrap_or(0)
            ),
            CoordinateError::Listen { address, why } => {
                write!(f, "cannot listen on {address}: {why}; name another address with --listen IP:PORT")
            }
            CoordinateError::StateInUse { directory } => write!(
                f,
                "another coordinator is running on the state in {}: stop it first, or name another directory with \
                 --state",
                directory.join("pool.redb").display()
            ),
            CoordinateError::State { state, why } => {
                write!(f, "the coordinator's state in {state} cannot be used: {why}; nothing was changed")
            }
            CoordinateError::Etcd { at, why } => write!(
                f,
                "the coordinator cannot start on {at}: {why}; nothing was changed. See that etcd (3.4 or later) \
                 runs there, that this machine reaches it, and that a majority of its members is up, or name its \
                 members with --state etcd://HOST:PORT,HOST:PORT"
            ),
            CoordinateError::Store { why } => write!(
                f,
                "the coordinator stopped because a change could not be stored ({why}); attached volumes go on, and \
                 it continues where it was when it is started again with room to write"
            ),
            CoordinateError::Descriptors { allowed } => write!(
                f,
                "this process may have {allowed} files and sockets open, and a coordinator needs {}: raise the hard limit \
                 (`ulimit -Hn`, or LimitNOFILE= of its service)",
                2 * DESCRIPTORS_SPARE
            ),
            CoordinateError::MembersOnly { state } => write!(
                f,
                "the pool in {state} is one of members, and is not served in the clear: start its coordinator without \
                 --plaintext"
            ),
            CoordinateError::InTheClear { state } => write!(
                f,
                "the pool in {state} is in the clear: start its coordinator with --plaintext, as before, or make a pool of \
                 members with another --state and move its volumes there"
            ),
            CoordinateError::EtcdCertificates(why) => why.fmt(f),
            CoordinateError::EtcdInTheClear { at } => write!(
                f,
                "the key of a pool of members is in its state, and does not cross a network in the clear to {at}: write etcds:// \
                 and name --etcd-certificates, use an etcd member on this machine (127.0.0.1), or say --plaintext"
            ),
            CoordinateError::Public { address } => write!(
                f,
                "{address} can be reached from the Internet, and --plaintext is for loopback and private addresses alone: \
                 leave it out, or name a private address with --listen"
            ),
            CoordinateError::Random(why) => write!(f, "the kernel gives no random numbers: {why}"),
        }
    }
}

impl std::error::Error for CoordinateError {}

impl From<StoreError> for CoordinateError {
    fn from(error: StoreError) -> Self {
        CoordinateError::Store { why: error.to_string() }
    }
}
