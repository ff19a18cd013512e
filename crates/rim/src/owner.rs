//! A donor's machine as its owner needs it: how much memory is left, and the loop that gives back what is
//! missing.
//!
//! Owns reading `/proc` and the memory cgroups. Never: the rule (`core::donor::owner`), moving data, or
//! ending the process. Invariant: what a limit of a cgroup leaves counts like what the machine leaves, the
//! smallest of all; a figure that is not there is passed over, except how much memory is available, without
//! which nothing can be lent. Called by `cheetah donate`. Tests: `tests/owner.rs`, on files like the
//! kernel's.

use crate::arena::Arena;
use crate::collapse::Collapsing;
use crate::control::DonorHandle;
use cheetah_core::donor::owner::{Ease, Owner, Pressure, Sample};
use cheetah_core::limits::OWNER_LOOK_NS;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory in all, and what could be used without pushing anything out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total_bytes: u64,
    pub available_bytes: u64,
}

/// Why nothing can be lent: nobody knows how much memory there is.
#[derive(Debug)]
pub enum MemoryUnknown {
    Unread(io::Error),
    /// A kernel that does not tell what is available.
    Untold,
}

impl fmt::Display for MemoryUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot tell how much memory there is: /proc/meminfo ")?;
        match self {
            MemoryUnknown::Unread(error) => write!(f, "cannot be read: {error}"),
            MemoryUnknown::Untold => f.write_str("has no MemAvailable"),
        }
    }
}

impl std::error::Error for MemoryUnknown {}

/// Where this process finds its figures.
#[derive(Debug)]
pub struct Machine {
    root: PathBuf,
    /// The memory cgroup of this process and those above it.
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    directory: PathBuf,
    files: &'static Files,
}

/// What a version of the kernel's cgroups calls its figures.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// In `memory.stat`: file pages, which count as usage and are given up first, as in the machine's
    /// `MemAvailable`. A donor's data is not among them.
    file: [&'static str; 2],
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    file: ["total_inactive_file ", "total_active_file "],
};
const V2: Files =
    Files { limit: "memory.max", usage: "memory.current", file: ["inactive_file ", "active_file "] };

impl Machine {
    /// Of this process.
    #[must_use]
    pub fn own() -> Machine {
        Machine::under(Path::new("/"))
    }

    /// With `proc` and `sys` below another directory, as tests have them.
    #[must_use]
    pub fn under(root: &Path) -> Machine {
        let memberships = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let groups = memberships.lines().flat_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
            let (mount, files) = match controllers {
                "" => ("sys/fs/cgroup", &V2),
                _ if controllers.split(',').any(|name| name == "memory") => ("sys/fs/cgroup/memory", &V1),
                _ => return Vec::new(),
            };
            let mount = root.join(mount);
            let own = mount.join(path.trim_start_matches('/'));
            // In a container the path may be one of outside; what is mounted is then its own.
            let own = if own.is_dir() { own } else { mount.clone() };
            let up = own.ancestors().take_while(|directory| directory.starts_with(&mount));
            up.map(|directory| Group { directory: directory.to_owned(), files }).collect()
        });
        Machine { groups: groups.collect(), root: root.to_owned() }
    }

    /// # Errors
    /// `/proc/meminfo` does not tell.
    pub fn memory(&self) -> Result<Memory, MemoryUnknown> {
        let text = std::fs::read_to_string(self.root.join("proc/meminfo"));
        let text = text.map_err(MemoryUnknown::Unread)?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
        };
        let machine = field("MemTotal:").zip(field("MemAvailable:"));
        let (total_bytes, available_bytes) = machine.ok_or(MemoryUnknown::Untold)?;
        let least = |memory: Memory, group: Memory| Memory {
            total_bytes: memory.total_bytes.min(group.total_bytes),
            available_bytes: memory.available_bytes.min(group.available_bytes),
        };
        let limits = self.groups.iter().filter_map(Group::memory);
        Ok(limits.fold(Memory { total_bytes, available_bytes }, least))
    }

    /// Of the innermost cgroup with a limit, or of the machine. `None`: the kernel does not tell.
    #[must_use]
    pub fn pressure(&self) -> Option<Pressure> {
        let limited = self.groups.iter().filter(|group| group.limit().is_some());
        let files = limited.map(|group| group.directory.join("memory.pressure"));
        let all = files.chain([self.root.join("proc/pressure/memory")]);
        all.filter_map(|file| std::fs::read_to_string(file).ok()).find_map(|text| parse_pressure(&text))
    }
}

impl Group {
    fn read(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.directory.join(file)).ok()
    }

    fn limit(&self) -> Option<u64> {
        // Version 1 writes a number beyond any machine's memory where there is no limit, and version 2 `max`.
        self.read(self.files.limit)?.trim().parse().ok().filter(|limit| *limit < 1 << 62)
    }

    /// `None`: it has no limit.
    fn memory(&self) -> Option<Memory> {
        let total_bytes = self.limit()?;
        let usage: u64 = self.read(self.files.usage)?.trim().parse().ok()?;
        let stat = self.read("memory.stat").unwrap_or_default();
        let field = |name: &str| {
            stat.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok()).unwrap_or(0)
        };
        let file: u64 = self.files.file.iter().map(|name| field(name)).sum();
        let used = usage.saturating_sub(file);
        Some(Memory { total_bytes, available_bytes: total_bytes.saturating_sub(used) })
    }
}

/// `some avg10=0.12 avg60=... total=MICROSECONDS` and a line `full` like it.
fn parse_pressure(text: &str) -> Option<Pressure> {
    let field = |kind: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split_whitespace().find_map(|field| field.strip_prefix(name))
    };
    let hundredths = |kind: &str| {
        let (whole, part) = field(kind, "avg10=")?.split_once('.')?;
        Some(whole.parse::<u32>().ok()? * 100 + part.parse::<u32>().ok()?)
    };
    Some(Pressure {
        some_avg10: hundredths("some ")?,
        full_avg10: hundredths("full ").unwrap_or(0),
        stall_ns_total: field("some ", "total=")?.parse::<u64>().ok()? * 1000,
    })
}

/// Looks at the machine again and again, and lets the pool know of each change of what its owner can spare.
/// While that is plenty, what is held is collapsed on huge pages.
/// Returns when memory runs out faster than data can be moved: with what was seen, and the process has to end
/// at once. Otherwise it goes on until it is dropped.
pub async fn yield_to_owner(
    machine: Machine,
    mut owner: Owner,
    arena: Arc<Arena>,
    donor: DonorHandle,
) -> Sample {
    let start = Instant::now();
    let state = donor.state();
    if machine.pressure().is_none() {
        tracing::warn!(
            "this kernel does not tell who waits for memory (PSI); the donor goes by what is available alone"
        );
    }
    let collapsing = Collapsing::new(arena.clone());
    let mut told = None;
    loop {
        let held_extents = state.borrow().extents_held;
        let pressure = machine.pressure();
        let look = match machine.memory() {
            Ok(Memory { available_bytes, .. }) => {
                let used_bytes = arena.bytes_resident();
                let sample = Sample { available_bytes, used_bytes, held_extents, pressure };
                let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let offer = owner.step(now, &sample);
                donor.offer(offer.extents);
                if told != Some(offer.ease) {
                    tracing::info!(?offer, ?sample, "what the owner can spare");
                    told = Some(offer.ease);
                }
                match offer.ease {
                    Ease::Outrun => return sample,
                    // It may have to wait for memory, which must not look as if the owner did.
                    Ease::Plenty if owner.leaves_room(&sample) => collapsing.go_on(),
                    Ease::Shrinking | Ease::Tight | Ease::Plenty => {}
                }
                owner.pause_ns(&sample)
            }
            Err(why) => {
                tracing::warn!("{why}");
                OWNER_LOOK_NS
            }
        };
        tokio::time::sleep(Duration::from_nanos(look)).await;
    }
}

/// When memory runs out after all, the kernel takes this process before any of the owner's.
pub fn go_first() {
    const FIRST: &str = "1000";
    match std::fs::write("/proc/self/oom_score_adj", FIRST) {
        Ok(()) => tracing::debug!("this process is the first that the kernel ends when memory runs out"),
        Err(error) => tracing::debug!(%error, "this process is not the first that the kernel ends"),
    }
}
