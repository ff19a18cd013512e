//! The parameters of the model as they are here: memory, the way to a pool's donors, a disk.
//!
//! Owns a volume of its own for that, which is deleted whatever comes. Never: writes to the disk; decides
//! what a parameter means. Invariant: a read is counted when its bytes are here. Tests: `lab/tests/model.rs`.

use crate::failure::{Exit, Failure};
use crate::files;
use crate::output;
use crate::pool::{own_thing, pool_status, volume};
use crate::signals::Signals;
use cheetah_client::{Options, Volume};
use cheetah_core::api::{Call, Create, DonorHealth, DonorStatus, Size};
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::Redundancy;
use cheetah_core::seed::Seed;
use cheetah_rim::control::Client;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// What the volume is used of.
const USED: u64 = 32 << 20;
/// Donors of the volume at most.
const DONORS_MAX: u32 = 8;
const SMALL: usize = 4_096;
const LARGE: usize = 8 * MIB;
/// How long each kind of read goes on, and how many there are at least.
const TIME: Duration = Duration::from_millis(800);
const READS_MIN: usize = 20;
/// A smaller disk would be read from its own cache.
const DISK_MIN: u64 = 16 << 20;
/// Direct reads begin and end at multiples of this.
const ALIGNED: usize = 4_096;

/// File systems that take direct reads, and have no disk (statfs(2)).
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

/// What was found. Seconds, bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub memory_bandwidth: f64,
    pub network_bandwidth: f64,
    pub network_overhead: f64,
    /// Of one block, from the pool.
    pub block_read: f64,
    /// By how many it was measured.
    pub donors: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Disk {
    pub path: String,
    pub bandwidth: f64,
    pub overhead: f64,
}

pub async fn measure(pool: &Client, block: u64, disk: Option<&Path>) -> Result<Measured, Failure> {
    let block = usize::try_from(block).unwrap_or(usize::MAX);
    if !(512..=LARGE).contains(&block) {
        return Err(Failure::usage(format!("a block of {block} bytes is not measured: 512 bytes to 8 MiB")));
    }
    // What may be refused is looked at before anything is made.
    let disk = disk.map(|path| measure_disk(path, block)).transpose()?;
    let memory_bandwidth = memory(block);
    let way = measure_pool(pool, block).await?;
    Ok(Measured { memory_bandwidth, disk, ..way })
}

/// Blocks anywhere in a memory that no processor's cache holds, copied to one place.
fn memory(block: usize) -> f64 {
    let from: Vec<u8> = (0..256 * MIB).map(|at| (at >> 12) as u8).collect();
    let mut to = vec![0; block];
    let mut seed = Seed(1);
    let (start, mut copied) = (Instant::now(), 0usize);
    while start.elapsed() < TIME {
        for _ in 0..256 {
            let at = seed.draw() as usize % (from.len() - block);
            to.copy_from_slice(&from[at..at + block]);
            black_box(&mut to);
            copied += block;
        }
    }
    copied as f64 / start.elapsed().as_secs_f64()
}

async fn measure_pool(pool: &Client, block: usize) -> Result<Measured, Failure> {
    let mut signals = Signals::listen()?;
    let (name, donors) = make(pool).await?;
    let measured = match Volume::open(pool, &name, &Options::default()).await {
        Ok(attached) => {
            let measured = tokio::select! {
                measured = read_all(&attached, block) => measured,
                _ = signals.next() => Err(Failure::failed("it was stopped before all was measured")),
            };
            // A lease that was not given back runs out by itself.
            let _ = attached.detach().await;
            measured
        }
        Err(error) => Err(error.into()),
    };
    match pool.call(Call::Delete { name: name.clone() }).await {
        Ok(_) => {}
        Err(error) => {
            output::note(&format!("the volume {name}, made to measure, could not be deleted: {error}"))
        }
    }
    Ok(Measured { donors, ..measured? })
}

/// A volume over as many donors as there are, up to some.
async fn make(pool: &Client) -> Result<(String, u32), Failure> {
    let status = pool_status(pool).await?;
    let lends = |donor: &&DonorStatus| donor.health == DonorHealth::Alive && donor.medium.is_memory();
    let alive = status.donors.iter().filter(lends).count();
    let alive = u32::try_from(alive).unwrap_or(u32::MAX).min(DONORS_MAX);
    if alive == 0 {
        let none = Failure::new(Exit::PoolFull, "no donor of the pool is there to be measured");
        return Err(none.advise("lend memory with `cheetah donate`"));
    }
    let name = own_thing("measure")?;
    let of = |donors: u32| Create {
        redundancy: Some(Redundancy { data: donors, parity: 0 }),
        ..Create::new(name.clone(), Size::Bytes(u64::from(donors) * EXTENT_BYTES))
    };
    let made = volume(pool, Call::Create(of(alive))).await;
    match made {
        Ok(_) => Ok((name, alive)),
        // One of them may be full.
        Err(full) if full.exit == Exit::PoolFull && alive > 1 => {
            volume(pool, Call::Create(of(1))).await.map(|_| (name, 1))
        }
        Err(failure) => Err(failure),
    }
}

async fn read_all(attached: &Volume, block: usize) -> Result<Measured, Failure> {
    let data: Vec<u8> = (0..LARGE).map(|at| (at >> 9) as u8 | 1).collect();
    for at in (0..USED).step_by(LARGE) {
        attached.write_at(at, &data).await?;
    }
    let small = median(attached, SMALL).await?;
    let block_read = median(attached, block).await?;
    let network_bandwidth = bandwidth(attached).await?;
    // What is left of a small read without its bytes.
    let network_overhead = (small - SMALL as f64 / network_bandwidth).max(0.0);
    let (memory_bandwidth, donors, disk) = (0.0, 0, None);
    Ok(Measured { memory_bandwidth, network_bandwidth, network_overhead, block_read, donors, disk })
}

/// Of reads anywhere, one after the other.
async fn median(attached: &Volume, len: usize) -> Result<f64, Failure> {
    let mut bytes = vec![0; len];
    let mut seed = Seed(2);
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < READS_MIN || start.elapsed() < TIME {
        let at = seed.draw() % (USED / len as u64) * len as u64;
        let begun = Instant::now();
        attached.read_at(at, &mut bytes).await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64())
}

/// Of large reads, two at a time.
async fn bandwidth(attached: &Volume) -> Result<f64, Failure> {
    let (mut one, mut two) = (vec![0; LARGE], vec![0; LARGE]);
    let (start, mut read) = (Instant::now(), 0u64);
    while start.elapsed() < TIME || read < 4 * USED {
        let at = read % USED;
        let (first, second) =
            tokio::join!(attached.read_at(at, &mut one), attached.read_at(at + LARGE as u64, &mut two));
        first.and(second)?;
        read += 2 * LARGE as u64;
    }
    Ok(read as f64 / start.elapsed().as_secs_f64())
}

/// Reads only, past the kernel's pages.
fn measure_disk(path: &Path, block: usize) -> Result<Disk, Failure> {
    let (disk, size) = open(path)?;
    let mut memory = vec![0; MIB.max(block) + 2 * ALIGNED];
    let begin = memory.as_ptr().align_offset(ALIGNED);
    let cannot = |why: io::Error| files::cannot("read", path, &why);
    let mut run = |len: usize, at: &mut dyn FnMut() -> u64| -> Result<f64, Failure> {
        let bytes = &mut memory[begin..begin + len];
        let (start, mut reads) = (Instant::now(), 0);
        while reads < READS_MIN || start.elapsed() < TIME {
            disk.read_exact_at(bytes, at()).map_err(cannot)?;
            reads += 1;
        }
        Ok(start.elapsed().as_secs_f64() / reads as f64)
    };
    let mut next = 0;
    let mib = MIB as u64;
    let in_order = run(MIB, &mut || {
        next += mib;
        (next - mib) % (size / mib * mib)
    })?;
    let bandwidth = MIB as f64 / in_order;
    let len = block.next_multiple_of(ALIGNED);
    let places = (size - len as u64) / ALIGNED as u64;
    let mut seed = Seed(3);
    let anywhere = run(len, &mut || seed.draw() % places * ALIGNED as u64)?;
    Ok(Disk {
        path: path.display().to_string(),
        bandwidth,
        overhead: (anywhere - len as f64 / bandwidth).max(0.0),
    })
}

fn open(path: &Path) -> Result<(File, u64), Failure> {
    let cannot = |why: io::Error| files::cannot("read", path, &why);
    let named = |why: &str| Failure::usage(format!("--disk {}: {why}", path.display()));
    let found = std::fs::metadata(path).map_err(cannot)?;
    if !found.is_file() && !found.file_type().is_block_device() {
        return Err(named("it is neither a disk nor a file on one"));
    }
    if found.is_file() && found.blocks() * 512 < found.len() / 2 {
        return Err(named("most of it are holes, which no disk is asked for"));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let in_memory = || named("it lies in memory, and no disk would be measured");
    let mut disk = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(disk) => File::from(disk),
        Err(rustix::io::Errno::INVAL) => return Err(in_memory()),
        Err(why) => return Err(cannot(why.into())),
    };
    let system = rustix::fs::fstatfs(&disk).map_err(|why| cannot(why.into()))?;
    if [TMPFS, RAMFS].contains(&(system.f_type as u64)) {
        return Err(in_memory());
    }
    let size = disk.seek(SeekFrom::End(0)).map_err(cannot)?;
    match size {
        0..DISK_MIN => Err(named("it is smaller than 16 MiB")),
        _ => Ok((disk, size)),
    }
}
