//! How a coordinator is found: by name, on this machine, or by mDNS (`_cheetah._tcp`).
//!
//! Owns the order in which that is tried, and the announcement. Never: a failure to start because multicast
//! is not to be had. Tests: below, and `tests/control.rs`.

use super::client::{BadUrl, CallError, Client};
use cheetah_core::api::Call;
use cheetah_core::limits::{COORDINATOR_PORT, DISCOVERY_NS};
use cheetah_core::map::PoolId;
use mdns_sd::{ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const SERVICE: &str = "_cheetah._tcp.local.";
/// Once one coordinator was found, how much longer others are listened for.
const OTHERS_TIME: Duration = Duration::from_millis(300);

/// An address of a coordinator that is not reached by then is left for its others.
const REACH_TIME: Duration = Duration::from_secs(1);

/// An announcement; it ends when this is dropped.
pub(super) struct Announcement {
    daemon: ServiceDaemon,
    name: String,
}

impl fmt::Debug for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcement").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // Says goodbye to those who cached it, if it can.
        let _ = self.daemon.unregister(&self.name);
        let _ = self.daemon.shutdown();
    }
}

/// Announces a coordinator to the local network; `None` where that is not possible.
pub(super) fn announce(pool: PoolId, address: SocketAddr) -> Option<Announcement> {
    let announcing = || -> mdns_sd::Result<Announcement> {
        let daemon = ServiceDaemon::new()?;
        let id = pool.to_string();
        // Several coordinators of a pool announce it, each under a name of its own.
        let own = super::random().map_err(|error| mdns_sd::Error::Msg(error.to_string()))?;
        let name = format!("{id}-{:08x}", own & 0xffff_ffff);
        let host = format!("cheetah-{name}.local.");
        let properties = [("pool", id.as_str())];
        let ip = address.ip();
        let service = if ip.is_unspecified() {
            ServiceInfo::new(SERVICE, &name, &host, "", address.port(), &properties[..])?.enable_addr_auto()
        } else {
            ServiceInfo::new(SERVICE, &name, &host, ip, address.port(), &properties[..])?
        };
        let name = service.get_fullname().to_owned();
        daemon.register(service)?;
        Ok(Announcement { daemon, name })
    };
    announcing().inspect_err(|error| tracing::debug!("no announcement by mDNS: {error}")).ok()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFound {
    pub url: String,
    /// As announced; `None` when it did not say.
    pub pool: Option<PoolId>,
}

/// Coordinators that announce themselves on the local network.
pub async fn discover(limit: Duration) -> Vec<PoolFound> {
    let searching = tokio::task::spawn_blocking(move || search(limit));
    let found = searching.await.unwrap_or_else(|error| Err(mdns_sd::Error::Msg(error.to_string())));
    let found = found.inspect_err(|error| tracing::debug!("no search by mDNS: {error}")).unwrap_or_default();
    let mut reached = JoinSet::new();
    for Announced { at, pool } in found {
        reached.spawn(async move { Some(PoolFound { url: first_reached(at).await?, pool }) });
    }
    let mut found: Vec<PoolFound> = reached.join_all().await.into_iter().flatten().collect();
    found.sort_by(|one, other| one.url.cmp(&other.url));
    found
}

/// One coordinator, on every network of its machine.
struct Announced {
    at: Vec<SocketAddr>,
    pool: Option<PoolId>,
}

/// The URL by the first address that can be reached from here; when there is none, by the first, so that what
/// is wrong is said of it.
async fn first_reached(at: Vec<SocketAddr>) -> Option<String> {
    let mut url = at.first().map(|address| format!("http://{address}"));
    let mut trying = JoinSet::new();
    for (order, address) in at.into_iter().enumerate() {
        let connecting = tokio::time::timeout(REACH_TIME, TcpStream::connect(address));
        trying.spawn(
            async move { connecting.await.is_ok_and(|made| made.is_ok()).then_some((order, address)) },
        );
    }
    let mut best = usize::MAX;
    while let Some(tried) = trying.join_next().await {
        if let Ok(Some((order, address))) = tried
            && order < best
        {
            (best, url) = (order, Some(format!("http://{address}")));
            if order == 0 {
                break;
            }
        }
    }
    url
}

fn search(limit: Duration) -> mdns_sd::Result<Vec<Announced>> {
    let daemon = ServiceDaemon::new()?;
    let events = daemon.browse(SERVICE)?;
    let mut until = Instant::now() + limit;
    let mut found = BTreeMap::new();
    while let Ok(event) = events.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if let ServiceEvent::ServiceResolved(service) = event {
            let at = addresses_of(&service);
            if at.is_empty() {
                continue;
            }
            let pool = service.txt_properties.get_property_val_str("pool").and_then(|pool| pool.parse().ok());
            found.insert(service.fullname, Announced { at, pool });
            // Which of two is meant, no third one tells.
            if found.values().map(|announced| announced.pool).collect::<BTreeSet<_>>().len() > 1 {
                break;
            }
            until = until.min(Instant::now() + OTHERS_TIME);
        }
    }
    // The daemon's thread ends by itself; nobody waits for it.
    let _ = daemon.shutdown();
    Ok(found.into_values().collect())
}

/// IPv4 first: a link-local IPv6 address needs a scope that a URL does not carry well.
fn addresses_of(service: &ResolvedService) -> Vec<SocketAddr> {
    let scoped = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let mut ips: Vec<IpAddr> = service.addresses.iter().map(mdns_sd::ScopedIp::to_ip_addr).collect();
    ips.retain(|ip| !scoped(ip));
    ips.sort_by_key(|ip| (ip.is_ipv6(), *ip));
    ips.into_iter().map(|ip| SocketAddr::new(ip, service.port)).collect()
}

/// No coordinator was found; says all that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPool {
    BadUrl(BadUrl),
    /// The one on this machine says no.
    Here(CallError),
    Several(Vec<String>),
    None {
        local: String,
    },
}

impl From<BadUrl> for NoPool {
    fn from(error: BadUrl) -> Self {
        NoPool::BadUrl(error)
    }
}

impl fmt::Display for NoPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPool::BadUrl(error) => error.fmt(f),
            NoPool::Here(error) => error.fmt(f),
            NoPool::Several(urls) => {
                write!(
                    f,
                    "there are several pools on this network, and none was named: say --pool and one of these: {}",
                    urls.join("  or  ")
                )
            }
            NoPool::None { local } => write!(
                f,
                "no pool found: --pool and CHEETAH_POOL are not set, {local}, and nothing announced itself by mDNS \
                 (_cheetah._tcp) in {} s. Join one with the line that its admin gives (`cheetah join cheetah://HOST:PORT/TOKEN`), or \
                 start one with `cheetah coordinate`",
                DISCOVERY_NS / 1_000_000_000
            ),
        }
    }
}

impl std::error::Error for NoPool {}

/// A coordinator that nobody named: the one on this machine, else the only one that announces itself. It has
/// answered, in the clear: who is found so may be anybody.
///
/// # Errors
/// When there is none, or several.
pub async fn find_pool() -> Result<Client, NoPool> {
    let here = Client::new(&format!("http://127.0.0.1:{COORDINATOR_PORT}"))?;
    let local = match here.call(Call::Pool).await {
        Ok(_) => return Ok(here),
        // It is there, and has something to say: another version.
        Err(
            error @ (CallError::Refused(_) | CallError::OtherBuild { .. } | CallError::NotBelieved { .. }),
        ) => {
            return Err(NoPool::Here(error));
        }
        Err(CallError::Unreachable { url, why }) => format!("nothing answers at {url} ({why})"),
        Err(CallError::NoLeader { url, why }) => format!("the coordinator at {url} does not lead ({why})"),
        Err(CallError::NotCheetah { url, why }) => {
            format!("what listens at {url} is not a coordinator ({why})")
        }
    };
    let mut pools = by_pool(discover(Duration::from_nanos(DISCOVERY_NS)).await);
    match pools.len() {
        0 => Err(NoPool::None { local }),
        1 => Ok(Client::new(&pools.remove(0))?),
        _ => Err(NoPool::Several(pools)),
    }
}

/// The URLs of each pool, as `--pool` takes them: one coordinator leads it, the others stand by.
fn by_pool(found: Vec<PoolFound>) -> Vec<String> {
    let mut pools: BTreeMap<PoolId, Vec<String>> = BTreeMap::new();
    let mut unnamed = Vec::new();
    for PoolFound { url, pool } in found {
        match pool {
            Some(pool) => pools.entry(pool).or_default().push(url),
            None => unnamed.push(url),
        }
    }
    pools.into_values().map(|urls| urls.join(",")).chain(unnamed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A coordinator on several networks announces all of its addresses; not all of them are on ours.
    #[tokio::test]
    async fn of_several_addresses_the_first_is_taken_that_is_reached() {
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let (here, also) = (listen(), listen());
        let at = |listener: &std::net::TcpListener| listener.local_addr().expect("bound");
        // The discard port: nobody listens there.
        let nowhere: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        let url = |address: SocketAddr| Some(format!("http://{address}"));
        assert_eq!(first_reached(vec![nowhere, at(&here), at(&also)]).await, url(at(&here)));
        assert_eq!(first_reached(vec![nowhere]).await, url(nowhere), "so that what is wrong is said of it");
        assert_eq!(first_reached(Vec::new()).await, None);
    }

    #[test]
    fn coordinators_of_one_pool_are_one_choice() {
        let found = |url: &str, pool: Option<u64>| PoolFound { url: url.into(), pool: pool.map(PoolId) };
        let all = vec![found("a", Some(1)), found("b", Some(2)), found("c", Some(1)), found("d", None)];
        assert_eq!(by_pool(all), ["a,c", "b", "d"]);
        assert_eq!(by_pool(Vec::new()), Vec::<String>::new());
    }
}
