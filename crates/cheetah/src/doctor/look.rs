//! Finds what `judge` judges: files of the kernel, limits of this process, sockets, the pool. Never: a
//! judgement, or a change of anything. Called by `doctor`.

use super::judge::{Access, Found, Pool, Port, Reached, Room, Runtime};
use crate::cli::PoolArg;
use crate::failure::{Exit, Failure};
use crate::{members, pool, runtime_dir};
use cheetah_core::api::{Call, DonorHealth};
use cheetah_core::limits::COORDINATOR_PORT;
use cheetah_rim::control::{CallError, Client, reached_from};
use cheetah_rim::owner::{Machine, Memory};
use cheetah_rim::{clock, descriptors, swap};
use rustix::fs::Access as Asked;
use rustix::process::{Resource, getrlimit};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinSet;

/// A donor that does not take a connection by then is not reached.
const REACH_TIME: Duration = Duration::from_secs(2);
/// Where mDNS is spoken.
const MDNS_GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);

pub async fn look(named: &PoolArg) -> Result<Found, Failure> {
    swap::raise_limit();
    let memlock_bytes = match swap::may_lock_any() {
        true => None,
        false => Some(getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX)),
    };
    let limited = Machine::own().memory();
    Ok(Found {
        is_root: rustix::process::geteuid().is_root(),
        fuse: fuse(),
        has_fusermount: has_fusermount(),
        memlock_bytes,
        swaps: swap::swap_devices(Path::new("/")),
        open_files: descriptors::raise(),
        machine_bytes: machine_bytes(),
        limited: limited
            .map(|Memory { total_bytes, available_bytes }| (total_bytes, available_bytes))
            .map_err(|why| why.to_string()),
        huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        congestion: text("/proc/sys/net/ipv4/tcp_congestion_control"),
        clock: clock::is_synchronised(),
        port: port().await,
        multicast: multicast().map_err(|why| why.to_string()),
        pool: find(named).await?,
        state: pool::default_state().ok().map(|path| room(&path)),
        runtime: runtime(&runtime_dir::place()),
    })
}

fn text(file: &str) -> Option<String> {
    std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

/// `always [madvise] never`
fn chosen(file: &str) -> Option<String> {
    text(file)?.split_once('[')?.1.split_once(']').map(|(word, _)| word.to_owned())
}

fn machine_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram * u64::from(system.mem_unit)
}

fn fuse() -> Access {
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Access::Open,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Access::Denied,
        Err(_) => Access::Missing,
    }
}

fn has_fusermount() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin"].map(PathBuf::from);
    let mut folders = std::env::split_paths(&path).chain(usual);
    folders.any(|folder| folder.join("fusermount3").is_file())
}

/// A look that binds it for a moment.
async fn port() -> Port {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, COORDINATOR_PORT)) {
        Ok(_) => Port::Free,
        Err(e) if e.kind() == ErrorKind::AddrInUse => {
            let Ok(here) = Client::new(&format!("http://127.0.0.1:{COORDINATOR_PORT}")) else {
                return Port::Other;
            };
            match here.call(Call::Pool).await {
                Err(
                    CallError::NotCheetah { .. }
                    | CallError::NotBelieved { .. }
                    | CallError::Unreachable { .. },
                ) => Port::Other,
                // Also one that stands by, or is of another version.
                _ => Port::Coordinator,
            }
        }
        Err(e) => Port::Refused(e.to_string()),
    }
}

fn multicast() -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.join_multicast_v4(&MDNS_GROUP, &Ipv4Addr::UNSPECIFIED)
}

/// # Errors
/// The command line is wrong.
async fn find(named: &PoolArg) -> Result<Pool, Failure> {
    let variable = std::env::var("CHEETAH_POOL").is_ok_and(|url| !url.trim().is_empty());
    let is_named = named.pool.is_some() || variable || members::named(named)?.is_some();
    let client = match pool::find(named).await {
        Ok(client) => client,
        Err(failure) if failure.exit == Exit::Usage => return Err(failure),
        Err(failure) if is_named || !failure.message.starts_with("no pool found") => {
            return Ok(Pool::Unreached(failure.message));
        }
        Err(_) => return Ok(Pool::Unnamed),
    };
    let status = match pool::pool_status(&client).await {
        Ok(status) => status,
        Err(failure) => return Ok(Pool::Unreached(failure.message)),
    };
    let from = match reached_from(&client).await {
        Ok(from) => from,
        Err(error) => return Ok(Pool::Unreached(error.to_string())),
    };
    let living = status.donors.iter().filter(|donor| donor.health == DonorHealth::Alive);
    let addresses: Vec<String> = living.map(|donor| donor.address.clone()).collect();
    Ok(Pool::Reached(Reached {
        url: client.url().to_owned(),
        donors: addresses.len(),
        silent: silent(addresses).await,
        from,
        listens: TcpListener::bind((from, 0)).map(drop).map_err(|why| why.to_string()),
        coordinator: ip_of(client.url()),
    }))
}

async fn silent(addresses: Vec<String>) -> Vec<String> {
    let mut trying = JoinSet::new();
    for address in addresses {
        trying.spawn(async move {
            let made = tokio::time::timeout(REACH_TIME, tokio::net::TcpStream::connect(&address)).await;
            (!made.is_ok_and(|made| made.is_ok())).then_some(address)
        });
    }
    let mut silent: Vec<String> = trying.join_all().await.into_iter().flatten().collect();
    silent.sort_unstable();
    silent
}

fn ip_of(url: &str) -> Option<IpAddr> {
    let place = url.split_once("://")?.1.split(['/', ',']).next()?;
    place.parse().map(|at: SocketAddr| at.ip()).ok()
}

/// Of the directory, or of what it would be made in.
fn room(path: &Path) -> Room {
    let above = path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/"));
    let bytes_free = rustix::fs::statvfs(above).map_or(0, |found| found.f_bavail * found.f_frsize);
    Room { path: path.display().to_string(), bytes_free, is_writable: is_writable(above) }
}

fn is_writable(directory: &Path) -> bool {
    rustix::fs::access(directory, Asked::WRITE_OK | Asked::EXEC_OK).is_ok()
}

fn runtime(path: &Path) -> (String, Runtime) {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) if !found.is_dir() => Runtime::NotOwn("is a link or no directory".into()),
        Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => {
            Runtime::NotOwn(format!("belongs to the user with the number {}", found.uid()))
        }
        Ok(found) => Runtime::Own { mode: found.mode() & 0o777 },
        Err(_) => {
            let above = path.ancestors().skip(1).find(|above| above.exists());
            Runtime::Unmade { can_be_made: above.is_some_and(is_writable) }
        }
    };
    (path.display().to_string(), found)
}
