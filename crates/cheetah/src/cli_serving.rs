//! The command line of who serves a pool: its coordinators, and its donors. Never: behaviour.

use crate::cli::{JsonArg, PoolArg};
use crate::cli_members::parse_time;
use cheetah_core::units::parse_bytes;
use cheetah_nbd::uri::{Uri, UriError};
use cheetah_rim::disk::DiskAt;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct Coordinate {
    /// Where to listen for donors, clients and commands.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10808")]
    pub listen: String,
    /// Where to keep what must outlive a restart (placements and leases, never data): a directory, `memory`
    /// (lost at the end), or an etcd that several coordinators share,
    /// etcd[s]://HOST:PORT[,HOST:PORT...][/PREFIX]. Without it: $XDG_STATE_HOME/cheetah.
    #[arg(long, value_name = "DIR|memory|etcd[s]://...")]
    pub state: Option<String>,
    /// With --state etcds://: a directory with ca-cert.pem, which certifies etcd, and with client-cert.pem
    /// and client-key.pem where etcd asks who this is.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub etcd_certificates: Option<PathBuf>,
    /// Let in anybody, and say everything in the clear: for isolated networks. Without it, everybody shows a
    /// certificate, and all goes by TLS; the first start makes you the pool's admin and prints a line for
    /// donors.
    #[arg(long)]
    pub plaintext: bool,
    /// How long certificates last, which are renewed in time; 7d without it.
    #[arg(long, value_name = "TIME", conflicts_with = "plaintext", value_parser = parse_time)]
    pub certificates_last: Option<Duration>,
    #[command(flatten)]
    pub json: JsonArg,
}

/// A colon in a path is no trouble where no size follows it.
fn parse_disk(text: &str) -> Result<DiskAt, String> {
    match text.parse::<Uri>() {
        Ok(uri) => return Ok(DiskAt::Export(uri)),
        Err(UriError::Scheme) => {}
        Err(why) => return Err(why.to_string()),
    }
    let sized = text.rsplit_once(':').filter(|(path, _)| !path.is_empty());
    let sized = sized.and_then(|(path, size)| Some((path, parse_bytes(size).ok()?)));
    match sized {
        Some((path, bytes)) => Ok(DiskAt::File { path: path.into(), bytes: Some(bytes) }),
        None if text.is_empty() => Err("name a file, a block device or an export".to_owned()),
        None => Ok(DiskAt::File { path: text.into(), bytes: None }),
    }
}

#[derive(Clone, Debug, Args)]
pub struct Donate {
    /// How much memory: 16G, `auto` (what is free less a reserve for the owner), or nbd://HOST:PORT/EXPORT.
    /// It is lent in whole extents of 64M: of 100M, 64M.
    pub size: Option<String>,
    /// Lend a disk: a file, which is made of this size if it is not there, a block device, or an export of an
    /// NBD server (nbd://HOST:PORT/EXPORT). Each is a donor of its own, and the same one when it is lent
    /// again. Only what is blank, or was lent before, is taken.
    #[arg(long, value_name = "PATH[:SIZE]", value_parser = parse_disk, conflicts_with = "no_pool")]
    pub disk: Vec<DiskAt>,
    /// Memory that keeps what is used of each disk at hand. Without it: a sixteenth of this machine's.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "disk")]
    pub cache: Option<u64>,
    /// Where to listen for clients. Without it: any port of the address by which this machine reaches the
    /// pool (of 127.0.0.1 with --no-pool).
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// What to call this donor. Without it: the host's name, and a number where another donor has that (lab7,
    /// lab7-2).
    #[arg(long)]
    pub name: Option<String>,
    /// What tells this machine from any other: parts of a volume that are to survive each other are kept on
    /// different ones. Without it: $CHEETAH_HOST_ID, then this kernel's boot. Name one where one machine runs
    /// several kernels that lend.
    #[arg(long, value_name = "ID")]
    pub host_id: Option<String>,
    /// Serve all of the memory as one NBD export named "" (or `arena`) to anyone who connects, without a
    /// pool.
    #[arg(long, conflicts_with = "pool")]
    pub no_pool: bool,
    /// What has to stay available to the owner of this machine, who gets memory back when it does not.
    /// Without it: a quarter of the machine (at least 1G) for `auto`, a sixteenth (128M to 1G) for a size.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub reserve: Option<u64>,
    /// The most that `auto` lends. Without it: what is available less the reserve at the start.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max: Option<u64>,
    /// Leave at once when told to end: what this donor holds is lost instead of moved to others.
    #[arg(long)]
    pub no_drain: bool,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_a_path_and_what_of_it_is_lent() {
        let at = |path: &str, bytes| Ok(DiskAt::File { path: path.into(), bytes });
        assert_eq!(parse_disk("/var/d:10G"), at("/var/d", Some(10 << 30)));
        assert_eq!(parse_disk("/dev/disk/by-path/pci-0:1:2"), at("/dev/disk/by-path/pci-0:1", Some(2)));
        assert_eq!(parse_disk("/dev/sdb"), at("/dev/sdb", None));
        assert_eq!(parse_disk("a:b"), at("a:b", None));
        for uri in ["nbd://lab7:10809/a", "nbds://lab7/a?tls-certificates=/pki"] {
            assert_eq!(parse_disk(uri), Ok(DiskAt::Export(uri.parse().expect("a URI"))));
        }
        assert!(parse_disk("nbds://lab7/a?tls-psk-file=keys").is_err_and(|why| why.contains("certificates")));
        assert!(parse_disk("").is_err());
    }
}
