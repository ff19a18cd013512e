//! What a coordinator is started with.
//!
//! Owns those words. Never: what they come to (`server`, `service`). Tests: `tests/control.rs`.

use super::etcd::EtcdAt;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct CoordinateOptions {
    pub listen: SocketAddr,
    pub state: StateAt,
    pub access: Access,
    /// How long certificates last, if not as usual.
    pub certificates_last: Option<Duration>,
}

impl CoordinateOptions {
    /// A pool in the clear.
    #[must_use]
    pub fn new(listen: SocketAddr, state: StateAt) -> Self {
        CoordinateOptions { listen, state, access: Access::Plaintext, certificates_last: None }
    }
}

/// Whom the pool lets in. A stored pool is one or the other, and stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Members alone, by TLS.
    Members,
    /// Anybody who can reach it, in the clear: on loopback and private networks.
    Plaintext,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateAt {
    /// A directory, made if it is missing.
    Directory(PathBuf),
    /// Shared by several coordinators: one leads, the others stand by.
    Etcd(EtcdAt),
    /// Lost when the process ends.
    Memory,
}

impl fmt::Display for StateAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateAt::Directory(directory) => directory.display().fmt(f),
            StateAt::Etcd(at) => at.fmt(f),
            StateAt::Memory => f.write_str("memory"),
        }
    }
}
