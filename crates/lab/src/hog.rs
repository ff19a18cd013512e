//! A machine's owner who wants memory back: a process that fills memory at a steady rate, beside a donor
//! whose data is in the way, and what is seen meanwhile of donor, volume and kernel.
//!
//! Owns: the hog, memory that is kept at hand for it, and a run from its start until the donor has given back
//! what it takes. Never: a verdict.
//! Invariant: donor and hog are in one memory cgroup, which is their machine, so that no other process of the
//! real one is in danger; the volume is written or read, and checked, all the while.
//! Called by: `bench::owner`, `tests/owners.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cgroup::Cgroup;
use crate::fio::{Fio, Load, Reads, Region, Target};
use crate::pool::Pool;
use crate::process::{self, Process};
use crate::scratch::Scratch;
use crate::{mark, tools, wait};

const MIB: u64 = 1 << 20;
/// Between two looks, each of which starts a process: they must not take what donor and owner need.
const LOOK: Duration = Duration::from_millis(100);
const TOUCH_LIMIT: Duration = Duration::from_secs(120);
const TAKE_LIMIT: Duration = Duration::from_secs(120);

/// Fills memory with bytes that differ, in steps, and says how much it has; then keeps it. What it does
/// before a step is `Pace`.
const HOG: &str = r#"
import os, sys, time
total, rate, step = int(sys.argv[1]), int(sys.argv[2]), 8 << 20
noise, kept, start = os.urandom(1 << 20) * 8, [], time.monotonic()
def tasks(pid):
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        lines = dict(line.split(":", 1) for line in open(f"/proc/{pid}/task/{task}/status"))
        if lines["State"].split()[0] not in "ZX":
            found[task] = int(lines["voluntary_ctxt_switches"])
    return found
def at_once():
    pass
def in_step(pid):
    seen = -1
    def had_turn():
        nonlocal seen
        try:
            found = tasks(pid)
        except OSError:
            return not os.path.exists(f"/proc/{pid}")
        # Without its main thread it is ending, and its memory is not free until the last one is gone.
        before, seen = seen, found.get(pid, seen)
        return not found or seen != before
    def wait():
        while not had_turn():
            time.sleep(0.001)
    return wait
def patient(file, most):
    def wait():
        while int(open(file).read()) + step > int(most):
            time.sleep(0.01)
    return wait
wait = {0: lambda: at_once, 1: in_step, 2: patient}[len(sys.argv) - 3](*sys.argv[3:])
for n in range(total // step):
    late = start + n * step / rate - time.monotonic()
    if late > 0:
        time.sleep(late)
    wait()
    kept.append(bytearray(noise))
print("hog: took", time.monotonic() - start, flush=True)
time.sleep(600)
"#;

/// How fast the owner takes memory at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At its rate, whatever becomes of anybody.
    Own,
    /// A donor that gets no processor holds up the owner as well: its main thread, which looks after the
    /// owner. So no other load of the machine decides.
    InStep,
    /// Waits while less than a quarter of the reserve is left, for as long as it takes to move data away.
    Patient,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub machine_bytes: u64,
    pub reserve_bytes: u64,
    /// How large the volume is: the donor in the small machine has a copy of all of it.
    pub volume_bytes: u64,
    /// The part of it, at its end, that is read and checked while the owner takes memory.
    pub checked_bytes: u64,
    /// What the donor has to give back.
    pub wanted_bytes: u64,
    /// How fast the owner takes memory.
    pub rate: u64,
    /// Whether there are donors with room for what has to go.
    pub room_elsewhere: bool,
    pub pace: Pace,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// From the moment at which the owner had all that was free, down to the reserve, until the donor had
    /// given back what was wanted.
    pub given_back_s: Option<f64>,
    pub held_before: u64,
    pub held_after: u64,
    /// How long the hog took for all that it wanted.
    pub hog_s: Option<f64>,
    /// The most that the two took together.
    pub peak_bytes: u64,
    pub killed: u64,
    pub swapped_bytes: u64,
    /// The most slots of the volume that ever had no holder, and whether it was ever anything but whole.
    pub slots_missing_max: u64,
    pub always_whole: bool,
    /// The donor ended: its last words.
    pub donor_ended: Option<String>,
    /// What fio complained about while the owner took memory, and afterwards.
    pub complaints: Vec<String>,
}

impl Scene {
    /// Plays it through.
    #[track_caller]
    pub fn play(&self) -> Seen {
        self.play_with(&mut AtHand::keep(0))
    }

    /// Plays it with memory at hand for those who take some.
    #[track_caller]
    pub fn play_with(&self, at_hand: &mut AtHand) -> Seen {
        tools::need_root("a memory cgroup");
        let cgroup = Cgroup::new("owner", self.machine_bytes);
        let mut pool = Pool::in_the_clear();
        let mib = |bytes: u64| format!("{}M", bytes / MIB);
        let lent = mib(self.volume_bytes + 64 * MIB);
        pool.donate_in(&cgroup, "small", &[&lent, "--reserve", &mib(self.reserve_bytes)]);
        pool.donate("other", &lent);
        pool.ok(["create", "case", &mib(self.volume_bytes), "--redundancy", "mirror:2"]);
        if self.room_elsewhere {
            for name in ["third", "fourth"] {
                pool.donate(name, &lent);
            }
        }
        let target = Target::Export(pool.attach_export_unix("case", &[]).uri);
        let filled = self.volume_bytes - self.checked_bytes;
        let checked = Region { offset: filled, bytes: self.checked_bytes };
        let fio = Fio { lan: None, target: &target, scratch: pool.scratch() };
        // Two jobs at once, so their regions must not overlap.
        fio.prepare(filled, Some(checked));
        let reading = fio.read_at_random(&Reads {
            region: checked,
            block_bytes: 64 << 10,
            depth: 4,
            seconds: 20,
            bytes_per_second: Some(50 * MIB),
            seed: 1,
        });
        let mut seen = at_hand.while_handed_out(|| self.take(&cgroup, &pool));
        let read = reading.wait(Duration::from_secs(60), || false);
        seen.complaints.extend((!read.good()).then_some(read.complaint));
        let load = Load { bytes: self.checked_bytes, seconds: 2, depth: 8, seed: 3 };
        for ended in [
            fio.write(&load).wait(Duration::from_secs(60), || false),
            fio.read_back(load.bytes).wait(Duration::from_secs(60), || false),
        ] {
            seen.complaints.extend((!ended.good()).then_some(ended.complaint));
        }
        seen.killed = cgroup.killed();
        pool.detach("case");
        seen
    }

    /// The owner takes memory; what is seen until the donor has given back what is wanted and the hog has
    /// all.
    #[track_caller]
    fn take(&self, cgroup: &Cgroup, pool: &Pool) -> Seen {
        let held_before = wait::for_some("the donor's count of its memory", TOUCH_LIMIT, || {
            Some(bytes_used(pool)).filter(|held| *held >= self.wanted_bytes)
        });
        // All that the machine has beside the donor's data, and what is wanted of that.
        let total = self.machine_bytes - cgroup.usage_bytes() + self.wanted_bytes - self.reserve_bytes;
        let swap_before = swapped_bytes();
        let donor = pool.pid_of("small");
        let mut python = cgroup.command(tools::need("python3"));
        let most = self.machine_bytes - self.reserve_bytes / 4;
        let pace = match self.pace {
            Pace::Own => Vec::new(),
            Pace::InStep => vec![donor.to_string()],
            Pace::Patient => vec![cgroup.usage_file().display().to_string(), most.to_string()],
        };
        python.args(hog_arguments(total, self.rate)).args(pace);
        let mut hog = Process::start("hog", python, pool.scratch().path());
        let start = Instant::now();
        let mut seen = Seen {
            given_back_s: None,
            held_before,
            held_after: held_before,
            hog_s: None,
            peak_bytes: 0,
            killed: 0,
            swapped_bytes: 0,
            slots_missing_max: 0,
            always_whole: true,
            donor_ended: None,
            complaints: Vec::new(),
        };
        let shared_before = process::shared_bytes(donor);
        let mut needed: Option<Instant> = None;
        while start.elapsed() < TAKE_LIMIT && (seen.given_back_s.is_none() || seen.hog_s.is_none()) {
            std::thread::sleep(LOOK);
            let volume = pool.volume_status("case");
            seen.slots_missing_max =
                seen.slots_missing_max.max(volume["slots_missing"].as_u64().unwrap_or(u64::MAX));
            seen.always_whole &= volume["health"] == "whole";
            let usage = cgroup.usage_bytes();
            seen.peak_bytes = seen.peak_bytes.max(usage);
            if usage + self.reserve_bytes > self.machine_bytes {
                needed.get_or_insert_with(Instant::now);
            }
            let (ended, shared) = (mark::start_time(donor).is_none(), process::shared_bytes(donor));
            if ended {
                seen.donor_ended = Some(pool.log_of("small"));
            }
            // Between the two, its figures are gone and its memory is not free yet.
            let given_back = ended || (shared > 0 && shared + self.wanted_bytes <= shared_before);
            if seen.given_back_s.is_none() && given_back {
                seen.given_back_s = Some(needed.map_or(0.0, |needed| needed.elapsed().as_secs_f64()));
            }
            if seen.hog_s.is_none() {
                seen.hog_s = took(&hog);
            }
            if !hog.is_running() {
                seen.complaints.push("the owner's process was ended".to_owned());
                break;
            }
        }
        seen.held_after = bytes_used(pool);
        seen.swapped_bytes = swapped_bytes().saturating_sub(swap_before);
        seen
    }
}

fn hog_arguments(bytes: u64, rate: u64) -> [String; 4] {
    ["-c".to_owned(), HOG.to_owned(), bytes.to_string(), rate.to_string()]
}

/// The seconds in which it took all that it wanted, once it has.
fn took(hog: &Process) -> Option<f64> {
    hog.log().lines().find_map(|line| line.strip_prefix("hog: took ")?.trim().parse().ok())
}

/// Memory kept at hand. A virtual machine whose free memory its host takes back pays several times for each
/// page that it touches anew: the owner's process is then slower than any donor, and what is measured is the
/// host. Of memory that was given up just now the next process takes before it reaches for such pages.
#[derive(Debug)]
pub struct AtHand(Vec<Vec<u8>>);

impl AtHand {
    const PIECE: usize = 64 << 20;
    /// This much is free that was touched lately: what all take in one pause, several times.
    const AHEAD: u64 = 768 * MIB;
    const PAUSE: Duration = Duration::from_millis(5);

    #[must_use]
    pub fn keep(bytes: u64) -> Self {
        let pieces = usize::try_from(bytes).expect("memory") / Self::PIECE;
        Self((0..pieces).map(|_| vec![1; Self::PIECE]).collect())
    }

    /// Gives it up as fast as others take memory while `work` is done, until it is all gone.
    fn while_handed_out<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| self.hand_out(&done));
            // Otherwise the scope would wait for ever for the other thread.
            let result = catch_unwind(AssertUnwindSafe(work));
            done.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn hand_out(&mut self, done: &AtomicBool) {
        let free_before = free_bytes();
        while !self.0.is_empty() && !done.load(Ordering::Relaxed) {
            match free_bytes() < free_before + Self::AHEAD {
                true => drop(self.0.pop()),
                false => std::thread::sleep(Self::PAUSE),
            }
        }
    }
}

/// What nobody in this machine has.
fn free_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemFree:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.expect("MemFree in /proc/meminfo") << 10
}

/// How long the owner's process takes for so many bytes at this rate when nobody is in its way.
#[track_caller]
pub fn alone(bytes: u64, rate: u64, at_hand: &mut AtHand) -> f64 {
    let scratch = Scratch::new();
    at_hand.while_handed_out(|| {
        let mut python = Command::new(tools::need("python3"));
        python.args(hog_arguments(bytes, rate));
        let hog = Process::start("hog", python, scratch.path());
        wait::for_some("a process that takes memory", TOUCH_LIMIT, || took(&hog))
    })
}

/// What the donor in the small machine says that it holds.
fn bytes_used(pool: &Pool) -> u64 {
    let status = pool.status();
    let donors = status["donors"].as_array().expect("donors in the status");
    let donor = donors.iter().find(|donor| donor["name"] == "small");
    donor.and_then(|donor| donor["bytes_used"].as_u64()).unwrap_or(0)
}

/// What the whole machine has in its swap.
fn swapped_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let pages = text.lines().find_map(|line| line.strip_prefix("pswpout ")?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
