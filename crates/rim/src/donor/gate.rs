//! How the data server asks whom to let in: the pool's control loop, or nobody when there is no pool.
//! Never: the decision, which is `core::donor`'s. Invariant: a `Pass` is held until its connection has
//! touched the arena for the last time; only then may a newer session be admitted.

use crate::control::{Admission, DonorHandle};
use cheetah_core::donor::{Access, Grant, OpenError};
use cheetah_core::map::MemberId;
use std::sync::Arc;
use tokio::sync::watch;

#[derive(Clone, Debug)]
pub enum Gate {
    /// Everyone is let in that this snapshot lets in: a donor without a pool.
    Alone(Arc<Access>),
    Pooled(DonorHandle),
}

/// What requests are checked against, as it is now.
#[derive(Clone, Debug)]
pub(super) enum AccessNow {
    Fixed(Arc<Access>),
    Watched(watch::Receiver<Arc<Access>>),
}

impl AccessNow {
    pub(super) fn get(&self) -> Arc<Access> {
        match self {
            AccessNow::Fixed(access) => access.clone(),
            AccessNow::Watched(access) => access.borrow().clone(),
        }
    }
}

/// The right to be connected.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) grant: Grant,
    admission: Option<Admission>,
}

impl Pass {
    /// Resolves when the connection has to end at once.
    pub(super) async fn ended(watched: Option<watch::Receiver<bool>>) {
        match watched {
            // A control loop that has ended has nobody left to serve.
            Some(mut dropped) => drop(dropped.wait_for(|dropped| *dropped).await),
            None => std::future::pending().await,
        }
    }

    pub(super) fn watch(&self) -> Option<watch::Receiver<bool>> {
        self.admission.as_ref().map(Admission::watch)
    }
}

impl Gate {
    /// The gate of a donor without a pool.
    #[must_use]
    pub fn alone(extents: u32) -> Gate {
        Gate::Alone(Arc::new(Access::alone(extents)))
    }

    pub(super) fn access(&self) -> AccessNow {
        match self {
            Gate::Alone(access) => AccessNow::Fixed(access.clone()),
            Gate::Pooled(handle) => AccessNow::Watched(handle.access()),
        }
    }

    pub(super) async fn open(&self, export: &str, member: Option<MemberId>) -> Result<Pass, OpenError> {
        match self {
            Gate::Alone(access) => Ok(Pass { grant: access.open(export, member)?, admission: None }),
            Gate::Pooled(handle) => {
                let admission = handle.open(export, member).await?;
                Ok(Pass { grant: admission.grant, admission: Some(admission) })
            }
        }
    }
}
