//! The part `remote`: triage of a disk that is far away, in the shape of Roussev's experiment of 2016: a
//! listing of its file system, then the files whose names are of interest, by several workers, then short
//! reads anywhere. Twice, by how long a round trip takes.
//!
//! The sides: nbdfuse on the far server, as tools are used without a cache; the same through nbdkit's filters
//! `cache` and `readahead` on the examiner's host; and `cheetah open`, with two donors near it. Each side has
//! a disk that it has not seen yet, and what the kernel keeps of the file is forgotten between passes.
//!
//! Owns: the image (NTFS, a real tree) and the triage. Invariant: every tool's output is what it is on the
//! image itself. Never: repeats, for a first pass is one only once; minutes do not jitter. Called by:
//! `bench`.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::bench::file;
use crate::bench::lan::hosts;
use crate::bench::part::Bench;
use crate::bench::plot::Scaling;
use crate::bench::row::{Bar, Figure};
use crate::dice::Dice;
use crate::figures::Series;
use crate::lan::{Lan, Node};
use crate::pool::{Access, Pool, State};
use crate::process::Process;
use crate::rivals::{NbdFuse, unix_uri, wait_for_unix};
use crate::scratch::Scratch;
use crate::wire::Wire;
use crate::{hash, tools, tree, wait};

pub const SECONDS: f64 = 1500.0;
pub const SETS: usize = 12;

/// Near the examiner's host, and the one whose disk it is.
const DONORS: u8 = 2;
const FAR: Node = Node::Donor(3);
const PORT: &str = "10809";
/// Of the far host; the others are on a LAN.
const LINK: &str = "100mbit";
const LAN: &str = "1gbit";
const ROUND_TRIPS_MS: [u64; 4] = [0, 10, 20, 50];
const SHORT: [u64; 2] = [0, 20];
/// What a triage looks for, how much of that it takes, and by how many at once.
const OF_INTEREST: &str = ".h";
const FETCHED: usize = 160;
const WORKERS: usize = 4;
const READS: u64 = 200;
const MIB: u64 = 1 << 20;

/// The image, and what its tools say when it is here.
struct Evidence {
    image: PathBuf,
    listing: String,
    inodes: Vec<String>,
    files: String,
}

/// Seconds of each step, and bytes that the far host sent.
#[derive(Clone, Copy, Default)]
struct Pass {
    listing: f64,
    fetching: f64,
    reading: f64,
    bytes: u64,
}

impl Pass {
    fn triage(self) -> f64 {
        self.listing + self.fetching
    }

    /// Id, what it is, and its figure.
    fn steps(self) -> [(&'static str, &'static str, f64); 4] {
        [
            ("list", "fls -r", self.listing),
            ("fetch", "icat of files by name", self.fetching),
            ("reads", "4 KiB anywhere", self.reading),
            ("mib", "MiB from there", self.bytes as f64 / MIB as f64),
        ]
    }
}

pub fn run(bench: &mut Bench) {
    bench.prepare("an NTFS image with a real tree");
    let scratch = Scratch::new();
    let evidence = evidence(&scratch, if bench.quick { 1 } else { 2 });
    let lan = hosts(LAN, DONORS + 1);
    lan.rate(FAR, LINK);
    // It has no wire yet, and needs none where nothing is far.
    let mut wire: Option<Wire> = None;
    let served = serve(&lan, &evidence.image, &scratch);
    let uri = format!("nbd://{}:{PORT}", FAR.address());
    let mut near: Option<Pass> = None;
    let mut lines = NAMES.map(|name| [(); 2].map(|()| (name.to_owned(), Vec::new())));
    let round_trips = if bench.quick { &SHORT[..] } else { &ROUND_TRIPS_MS };
    for millis in round_trips {
        let more = Duration::from_millis(*millis);
        match &wire {
            Some(wire) => wire.delay(more / 2),
            None if *millis > 0 => {
                wire = Some(Wire::long(&lan, more));
                lan.detour(FAR);
            }
            None => {}
        }
        let mut sides = [[Pass::default(); 2]; 3];
        for (side, passes) in NAMES.iter().zip(&mut sides) {
            bench.set(&format!("{millis} ms: {side}"));
            *passes = match *side {
                BARE => through_nbdfuse(&lan, &uri, &evidence),
                CACHED => through_nbdkit(&lan, &uri, &evidence),
                _ => through_cheetah(&lan, &uri, &evidence),
            };
        }
        for (lines, passes) in lines.iter_mut().zip(&sides) {
            for ((_, points), pass) in lines.iter_mut().zip(passes) {
                points.push((*millis as f64, pass.triage()));
            }
        }
        let near = *near.get_or_insert(sides[2][1]);
        rows(bench, *millis, &sides, near);
    }
    drop(served);
    for (pass, name) in ["first", "second"].iter().enumerate() {
        bench.plots.push(Scaling {
            id: format!("remote-{name}"),
            title: format!("Triage of a disk over {LINK}, {name} pass"),
            x: "RTT, ms".to_owned(),
            y: "s".to_owned(),
            lines: lines.iter().map(|of| of[pass].clone()).collect(),
        });
    }
}

const BARE: &str = "nbdfuse";
const CACHED: &str = "nbdkit's cache and readahead";
const NAMES: [&str; 3] = [BARE, CACHED, "cheetah open"];

fn rows(bench: &mut Bench, millis: u64, sides: &[[Pass; 2]; 3], near: Pass) {
    let [bare, cached, ours] = sides;
    let series = |value: f64| [value].into_iter().collect::<Series>();
    for (pass, word) in ["first", "second"].into_iter().enumerate() {
        let (bare, cached) = (bare[pass].steps(), cached[pass].steps());
        for (step, (id, what, value)) in ours[pass].steps().into_iter().enumerate() {
            let unit = if id == "mib" { "MiB" } else { "s" };
            let value = series(value);
            for (peer, name, there) in [("bare", BARE, bare[step].2), ("cached", CACHED, cached[step].2)] {
                let there = series(there);
                let bar = match (id, peer, pass) {
                    ("mib", ..) => None,
                    (_, "bare", 0) if millis >= 20 && id != "reads" => Some(Bar::RatioAtMost(1.0 / 3.0)),
                    (_, "bare", _) => Some(Bar::RatioAtMost(1.1)),
                    _ => None,
                };
                let id = format!("remote.{millis}.{word}.{id}.{peer}");
                let what = format!("RTT {millis} ms, {LINK}, {word} pass: {what}");
                bench.row(&Figure {
                    peer: Some((name, &there)),
                    bar,
                    ..Figure::new(&id, what, unit, &value)
                });
            }
        }
    }
    let (value, near) = (series(ours[1].triage()), series(near.triage()));
    let what = format!("RTT {millis} ms: the second pass, beside itself at 0 ms");
    let (peer, bar) = (Some(("at 0 ms", &near)), Some(Bar::RatioAtMost(1.5)));
    let id = format!("remote.{millis}.again");
    bench.row(&Figure { peer, bar, ..Figure::new(&id, what, "s", &value) });
}

// The sides.

#[track_caller]
fn serve(lan: &Lan, image: &Path, scratch: &Scratch) -> Process {
    let mut command = lan.exec(FAR, tools::need("nbdkit"));
    command.args([
        "--foreground",
        "--exit-with-parent",
        "--readonly",
        "--ipaddr",
        &FAR.address(),
        "--port",
        PORT,
    ]);
    command.arg("file").arg(image);
    Process::start("nbdkit-far", command, scratch.path())
}

#[track_caller]
fn through_nbdfuse(lan: &Lan, uri: &str, evidence: &Evidence) -> [Pass; 2] {
    let fuse = NbdFuse::on(lan, Node::Client, uri);
    [(); 2].map(|()| pass(lan, &fuse.path, evidence))
}

#[track_caller]
fn through_nbdkit(lan: &Lan, uri: &str, evidence: &Evidence) -> [Pass; 2] {
    let scratch = Scratch::new();
    let socket = scratch.join("cache.sock");
    let mut command = lan.exec(Node::Client, tools::need("nbdkit"));
    command.args(["--foreground", "--exit-with-parent", "--readonly", "--unix"]).arg(&socket);
    command.args(["--filter=readahead", "--filter=cache", "nbd", uri, "cache-on-read=true"]);
    let _cache = Process::start("nbdkit-cache", command, scratch.path());
    wait_for_unix(&socket);
    through_nbdfuse(lan, &unix_uri(&socket, ""), evidence)
}

#[track_caller]
fn through_cheetah(lan: &Arc<Lan>, uri: &str, evidence: &Evidence) -> [Pass; 2] {
    let size = std::fs::metadata(&evidence.image).expect("the image").len();
    let mut pool = Pool::of(Access::Plaintext, State::Memory, Some(Arc::clone(lan)));
    pool.donate_everywhere(DONORS, &format!("{}M", size / MIB / u64::from(DONORS) + 128));
    pool.ok(["open", uri, "case"]);
    let attached = pool.attach_fuse("case", &["--read-only"]);
    let first = pass(lan, &attached.path, evidence);
    wait::until("all is here", Duration::from_secs(600), || {
        pool.json(["show", "case"])["status"]["content"]["state"] == "loaded"
    });
    let passes = [first, pass(lan, &attached.path, evidence)];
    pool.detach("case");
    passes
}

// The triage.

#[track_caller]
fn pass(lan: &Lan, path: &Path, evidence: &Evidence) -> Pass {
    file::forget(path);
    let before = lan.bytes_sent(FAR);
    let (listing, listed) = timed(|| list(path));
    assert!(listed == evidence.listing, "another listing than that of the image");
    let (fetching, files) = timed(|| fetch(path, &evidence.inodes));
    assert_eq!(files, evidence.files, "other files than those of the image");
    let (reading, ()) = timed(|| read(path, &evidence.image));
    Pass { listing, fetching, reading, bytes: lan.bytes_sent(FAR) - before }
}

#[track_caller]
fn timed<T>(does: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let done = does();
    (start.elapsed().as_secs_f64(), done)
}

#[track_caller]
fn list(path: &Path) -> String {
    tools::expect_success(tools::command("fls").args(["-f", "ntfs", "-r", "-p", "-F"]).arg(path))
}

/// The files of these inodes, each to a hash, by several at once.
#[track_caller]
fn fetch(path: &Path, inodes: &[String]) -> String {
    let (next, hashes) = (AtomicUsize::new(0), Mutex::new(vec![String::new(); inodes.len()]));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some((number, inode)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|number| Some((number, inodes.get(number)?)))
                {
                    let mut command = tools::command("icat");
                    let output = tools::output(command.args(["-f", "ntfs"]).arg(path).arg(inode));
                    assert!(output.status.success(), "{}", tools::describe(&command, &output));
                    let hash = hash::of_reader(&output.stdout[..]).expect("a slice reads");
                    hashes.lock().expect("no fetcher panicked")[number] = hash;
                }
            });
        }
    });
    hashes.into_inner().expect("no fetcher panicked").join(" ")
}

/// One block after the other, anywhere.
#[track_caller]
fn read(path: &Path, image: &Path) {
    let [file, right] = [path, image].map(|path| std::fs::File::open(path).expect("it is there"));
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("advice");
    let blocks = right.metadata().expect("a size").len() / 4096;
    let (mut dice, mut here, mut there) = (Dice::new(7), [0; 4096], [0; 4096]);
    for _ in 0..READS {
        let at = dice.roll() % blocks * 4096;
        file.read_exact_at(&mut here, at).expect("a block");
        right.read_exact_at(&mut there, at).expect("a block");
        assert!(here == there, "another block at {at}");
    }
}

/// NTFS, with so many copies of a real tree.
#[track_caller]
fn evidence(scratch: &Scratch, copies: u64) -> Evidence {
    let image = scratch.sparse_file("disk.img", copies * 512 * MIB);
    let mount = scratch.directory("tree");
    let (image_name, mount_name) = (image.display().to_string(), mount.display().to_string());
    tools::run("mkntfs", ["-F", "-Q", "-q", &image_name]);
    tools::run("ntfs-3g", [&image_name, &mount_name]);
    for copy in 0..copies {
        let to = mount.join(format!("copy {copy}"));
        std::fs::create_dir(&to).expect("a directory");
        tree::fill(&to);
    }
    tools::run("umount", [&mount_name]);
    let listing = list(&image);
    // `r/r 5-128-1:\tNAME`.
    let of_interest = listing.lines().filter(|line| line.ends_with(OF_INTEREST));
    let inodes: Vec<_> = of_interest.filter_map(|line| line.split([' ', ':']).nth(1)).collect();
    let step = (inodes.len() / FETCHED).max(1);
    let inodes: Vec<String> = inodes.into_iter().step_by(step).take(FETCHED).map(str::to_owned).collect();
    assert_eq!(inodes.len(), FETCHED, "files of interest");
    let files = fetch(&image, &inodes);
    Evidence { image, listing, inodes, files }
}
