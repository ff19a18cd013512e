//! The command lines of `attach`, `detach` and `diff`. Never: behaviour.

use crate::cli::{Front, JsonArg, PoolArg, ReadAhead};
use cheetah_core::limits::POLL_DEFAULT_US;
use cheetah_core::units::{BadSize, parse_bytes};
use clap::{Args, ValueHint};
use std::fmt;
use std::path::PathBuf;

pub const ATTACH_EXAMPLES: &str = "\
Examples:
  cheetah attach case7 /mnt/case7                      /mnt/case7/case7.raw
  cheetah attach case7 /mnt/case7 --front loop         /dev/loop0
  cheetah attach case7 --front export                  nbd+unix:///case7?socket=...
  cheetah attach case7 --front export --listen unix:/run/case7.sock --read-only
  cheetah attach case7 --front export --listen 127.0.0.1:10809
  cheetah attach case7 --front loop --overlay          writable, and case7 stays as it is";

#[derive(Debug, Args)]
pub struct Attach {
    pub name: String,
    /// An empty directory for the volume's file; not for `--front export`.
    /// Without it: one is made under the runtime directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Front::Fuse)]
    pub front: Front,
    /// For `--front export`: IP:PORT (port 0 picks a free one), which every user of this machine can reach,
    /// or unix:PATH. Without it: a Unix socket in the runtime directory that only this user can reach.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// For `--front loop`: the length of the device's sectors. Without it: what a GPT in the volume says,
    /// else 512.
    #[arg(long, value_name = "BYTES", value_parser = parse_sector)]
    pub sector: Option<u32>,
    /// Refuse every write, in the daemon and at the donors. What `load` filled is attached so unless
    /// --writable is given.
    #[arg(long, conflicts_with = "writable")]
    pub read_only: bool,
    /// Let tools change what `load` filled. A volume that `create` made is writable without this.
    #[arg(long)]
    pub writable: bool,
    /// For writing, without touching the volume: what tools change goes to a volume of its own, OVERLAY
    /// (NAME-overlay without a name), which is made if there is none. It stays when it is detached, and
    /// the next who attaches it goes on with it, on any host.
    #[arg(long, value_name = "OVERLAY", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["read_only", "writable", "incomplete"])]
    pub overlay: Option<String>,
    /// Also when a load of the volume did not come to its end: what was not loaded reads as zeros.
    #[arg(long)]
    pub incomplete: bool,
    /// Connections to each donor, 1 to 16. Without it: one, more where there are few donors or they are far
    /// away.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub connections: Option<u8>,
    /// Look for answers this long before sleeping, 0 to 1000 microseconds, while they come that soon and
    /// nobody else wants the processor: it spares waking up, most of all for tools that read one small block
    /// after the other. 0: never.
    #[arg(long, value_name = "US", default_value_t = POLL_DEFAULT_US, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub poll_us: u16,
    /// Memory of this machine for what is read before a tool asks for it, 1M to 3G.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_cache)]
    pub cache: u64,
    /// Read ahead of tools that read forward, backward or in strides; `thesis` is the 2006 rule, to compare
    /// with.
    #[arg(long, value_enum, default_value_t = ReadAhead::Auto)]
    pub read_ahead: ReadAhead,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Diff {
    /// The overlay's name.
    pub name: String,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Detach {
    pub name: String,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

/// A value that an option does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadValue {
    Size(BadSize),
    Sector,
    Cache,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadValue::Size(bad) => bad.fmt(f),
            BadValue::Sector => f.write_str("sectors have 512 or 4096 bytes"),
            BadValue::Cache => f.write_str("a cache has 1M to 3G; `--read-ahead off` does without"),
        }
    }
}

impl std::error::Error for BadValue {}

pub fn parse_sector(text: &str) -> Result<u32, BadValue> {
    match text {
        "512" => Ok(512),
        "4096" | "4K" | "4k" => Ok(4096),
        _ => Err(BadValue::Sector),
    }
}

pub fn parse_cache(text: &str) -> Result<u64, BadValue> {
    match parse_bytes(text).map_err(BadValue::Size)? {
        bytes @ 0x10_0000..=0xc000_0000 => Ok(bytes),
        _ => Err(BadValue::Cache),
    }
}
