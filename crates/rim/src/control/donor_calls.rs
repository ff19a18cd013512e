//! The two calls of a donor's loop, and what comes of each.
//!
//! Owns what a join and a sync say, and what their answers are to the machine. Never: when one is made
//! (`core::donor`). Called by `donor`.

use super::addresses::reached_by_others;
use super::client::{CallError, Client};
use cheetah_core::api::{API_VERSION, Answer, Call, Join, Lineage, Refusal, RefusalCode, Sync};
use cheetah_core::donor::Event;
use cheetah_core::map::{DonorId, DonorSecret, Medium, PoolId};
use std::net::{IpAddr, SocketAddr};
use tokio::sync::watch;

#[derive(Clone, Debug)]
pub struct DonorOptions {
    pub name: String,
    /// The pool may add a number to the name where another donor has it.
    pub or_numbered: bool,
    /// The machine's name, for people.
    pub host: String,
    /// What tells the machine from any other.
    pub machine: String,
    /// Where clients connect. An unspecified address (`0.0.0.0`) is replaced by the one that this machine has
    /// towards the coordinator.
    pub listen: SocketAddr,
    pub extents: u32,
    /// The export of another's NBD server at `listen`.
    pub foreign_export: Option<String>,
    /// What it lends.
    pub medium: Medium,
    /// Of a disk: it has a place for what belongs to each block of an encrypted volume.
    pub keeps_auths: bool,
}

/// What a donor says of itself when it joins.
pub(super) struct Said {
    pub(super) donor: DonorId,
    pub(super) secret: DonorSecret,
    pub(super) pool: Option<PoolId>,
    pub(super) revision: u64,
    pub(super) lineage: Option<Box<Lineage>>,
}

/// Joins as it says; what comes of that. `called`: what it is called from then on.
pub(super) async fn join(
    options: DonorOptions,
    called: watch::Sender<String>,
    client: Client,
    said: Said,
) -> Event {
    let ip = match options.listen.ip() {
        ip if !ip.is_unspecified() => ip,
        _ => match reached_from(&client).await {
            Ok(ip) => ip,
            Err(error) => return unreachable(&options.name, &error),
        },
    };
    let address = SocketAddr::new(ip, options.listen.port()).to_string();
    let DonorOptions { name, or_numbered, host, machine, extents, foreign_export, .. } = options;
    let DonorOptions { medium, keeps_auths, .. } = options;
    let Said { donor, secret, pool, revision, lineage } = said;
    let join = Join {
        version: API_VERSION,
        donor,
        secret,
        pool,
        revision,
        name: name.clone(),
        or_numbered,
        host,
        machine,
        address,
        extents,
        foreign_export,
        medium,
        keeps_auths,
        lineage,
    };
    match client.call(Call::Join(join)).await {
        Ok(Answer::Joined(joined)) => {
            // An older coordinator calls it what it calls itself.
            called.send_replace(if joined.name.is_empty() { name } else { joined.name });
            Event::Joined { pool: joined.pool }
        }
        Ok(_) => Event::Unreachable,
        Err(CallError::Refused(refusal)) => Event::JoinRefused { refusal },
        Err(error) => unreachable(&name, &error),
    }
}

/// The address at which others reach this machine, as far as its coordinator's network goes.
///
/// # Errors
/// When the coordinator does not answer.
pub async fn reached_from(client: &Client) -> Result<IpAddr, CallError> {
    let from = client.local_ip().await?;
    if !from.is_loopback() {
        return Ok(from);
    }
    match client.call(Call::Pool).await? {
        Answer::Pool(status) => Ok(reached_by_others(from, &status.addresses)),
        _ => Ok(from),
    }
}

/// Syncs; what comes of that. `quiet`: that nobody answers was said before.
pub(super) async fn sync_with(client: Client, donor: DonorId, sync: Sync, quiet: bool) -> Event {
    match client.call(Call::Sync { donor, sync }).await {
        Ok(Answer::Duties(duties)) => Event::Duties(duties),
        Ok(_) => Event::Unreachable,
        Err(CallError::Refused(Refusal {
            code: RefusalCode::Gone | RefusalCode::Forbidden | RefusalCode::OtherPool,
            ..
        })) => Event::Forgotten,
        Err(error) => {
            if !quiet {
                tracing::warn!("{error}; the donor serves on, and keeps asking");
            }
            Event::Unreachable
        }
    }
}

fn unreachable(name: &str, error: &CallError) -> Event {
    tracing::debug!("donor '{name}': {error}");
    Event::Unreachable
}
