//! The control plane at the rim: HTTP and JSON between coordinator, donors, clients and commands.
//!
//! Owns the coordinator's listener and store (`coordinate`), the client that everyone calls it with
//! (`Client`), how a coordinator is found (`find_pool`), and the loop that keeps a donor in its pool
//! (`DonorControl`). Never: decisions, which `cheetah_core::{coordinator, donor}` make, or data of
//! volumes. Key invariant: a reply leaves only after what it depends on is stored. Tests:
//! `tests/control*.rs`.
//!
//! Files: `wire` (a call as HTTP, both ways), `seal`, `server`, `doorkeeper`, `service`, `membership`,
//! `machine` and `options` (the coordinator), `signing` (the pool's signatures), `store`, `store_etcd`,
//! `term`, `etcd` and `etcd_tls` (several coordinators), `addresses`, `client`, `error`, `http`, `discovery`,
//! `donor` and `donor_calls`, `journal` (what happened), and `openapi` (a test of `openapi.json`, the
//! description for others).

mod addresses;
mod client;
mod discovery;
mod donor;
mod donor_calls;
mod doorkeeper;
mod error;
mod etcd;
mod etcd_tls;
mod http;
mod journal;
mod machine;
mod membership;
#[cfg(test)]
mod openapi;
mod options;
mod seal;
mod server;
mod service;
pub mod signing;
mod store;
mod store_etcd;
mod term;
mod wire;

pub use addresses::public_at;
pub use client::{BadUrl, CallError, Client};
pub use discovery::{NoPool, PoolFound, discover, find_pool};
pub use donor::{Admission, DonorControl, DonorHandle, DonorHooks, DonorState};
pub use donor_calls::{DonorOptions, reached_from};
pub use error::CoordinateError;
pub use etcd::EtcdAt;
pub use etcd_tls::BadCertificates;
pub use journal::own_name;
pub use membership::{NotEnrolled, enrol_by};
pub use options::{Access, CoordinateOptions, StateAt};
pub use server::{Coordination, coordinate};
pub use service::Role;
pub use wire::OPENAPI;

use cheetah_core::units::Time;
use std::time::Duration;
use tokio::time::Instant;

/// The monotonic clock that a machine is stepped with.
#[derive(Clone, Copy, Debug)]
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Clock(Instant::now())
    }

    fn now(self) -> Time {
        // Counts from 1: 0 reads as "never" in traces.
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn at(self, time: Time) -> Instant {
        self.0 + Duration::from_nanos(time)
    }
}

/// 64 bits from the kernel.
///
/// # Errors
/// It gives none.
pub fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    let read = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    // The kernel does not cut requests of up to 256 bytes short.
    assert_eq!(read, bytes.len(), "getrandom fills 8 bytes");
    Ok(u64::from_le_bytes(bytes))
}
