//! The part `postmark`: the experiment of the paper on DRALIC (He, Zhang, Yang, 2002): PostMark on the disk
//! of one node, and on a volume over the disks of two, three and four, whose first one it runs on.
//!
//! How the file system uses the disk decides. Names are put down when a creation or deletion returns (chattr
//! +D), as file systems of the time did and the paper's 78 transactions a second on a disk of 12 ms tell;
//! data goes by the page cache, of which PostMark has 64 MiB, a machine's of the time. With ext4's defaults
//! a small run never reaches a disk. What a name waits for is one request after the other; what the cache
//! writes back is many at once. All have the same ext4 on a loop device; disks are models (`disk_model`).
//!
//! Invariant: the rate is of transactions alone, counted in the directory between two moments after all files
//! were made: each makes or deletes one file, and files are numbered. A cell is bounded in time. Called by:
//! `bench`. Tests: below.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bench::disk_model::{DiskModel, OF_THE_PAPER, Plain, SATA_SSD};
use crate::bench::lan::hosts;
use crate::bench::part::Bench;
use crate::bench::plot::Scaling;
use crate::bench::row::{Bar, Figure};
use crate::cgroup::Cgroup;
use crate::figures::{self, Series};
use crate::lan::Node;
use crate::mounted::Mounted;
use crate::pool::{Access, Pool, State};
use crate::process::Process;
use crate::rivals::Rival;
use crate::scratch::Scratch;
use crate::{tools, wait};

pub const SECONDS: f64 = 9000.0;
pub const SETS: usize = MODELS.len() * (1 + LINKS.len() * POOLS.len()) * RUNS.len();

const MODELS: [DiskModel; 2] = [OF_THE_PAPER, SATA_SSD];
const LINKS: [&str; 2] = ["1gbit", "100mbit"];
const VOLUME: &str = "case";
const VOLUME_MIB: u64 = 1024;
/// With room for a share of the volume, and for what a donor keeps for itself.
const DISK_MIB: u64 = 1024;
/// What PostMark has of memory, its page cache included, and what each donor keeps of its disk at hand.
const MEMORY_BYTES: u64 = 64 << 20;
const CACHE: &str = "64M";
/// What four nodes have to be beside one disk: the paper's best.
const BAR: f64 = 4.2;
const LOOK: Duration = Duration::from_millis(10);
/// All files made, whatever the disk.
const CREATION: Duration = Duration::from_secs(600);

/// A configuration of PostMark, and what the paper has for one disk and two, three and four nodes.
struct Run {
    name: &'static str,
    files: u64,
    transactions: u64,
    paper: [f64; 4],
}

const RUNS: [Run; 3] = [
    Run { name: "small", files: 1_000, transactions: 50_000, paper: [78.0, 177.0, 218.0, 243.0] },
    Run { name: "medium", files: 20_000, transactions: 50_000, paper: [21.0, 53.0, 79.0, 89.0] },
    Run { name: "large", files: 20_000, transactions: 100_000, paper: [12.0, 26.0, 35.0, 41.0] },
];

/// So many nodes, joined so. The paper's formulas have stripes, its text parity.
struct Joined {
    nodes: u8,
    redundancy: &'static str,
    /// Whether it is what the paper's figures are compared with.
    is_papers: bool,
}

const POOLS: [Joined; 4] = [
    Joined { nodes: 2, redundancy: "stripe:2", is_papers: true },
    Joined { nodes: 3, redundancy: "stripe:3", is_papers: true },
    Joined { nodes: 4, redundancy: "stripe:4", is_papers: true },
    Joined { nodes: 4, redundancy: "parity:3+1", is_papers: false },
];

/// Where a rate was measured.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    model: &'static str,
    run: &'static str,
    /// None: one disk, without a pool.
    pooled: Option<(&'static str, &'static str, Writes)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Writes {
    Through,
    Back,
}

impl Writes {
    fn word(self) -> &'static str {
        match self {
            Self::Through => "write-through",
            Self::Back => "write-back",
        }
    }
}

/// What was measured, in transactions a second.
type Rates = BTreeMap<Cell, f64>;

pub fn run(bench: &mut Bench) {
    let mut rates = Rates::new();
    let links = if bench.quick { &LINKS[..1] } else { &LINKS };
    let ways: &[Writes] =
        if bench.write_back { &[Writes::Through, Writes::Back] } else { &[Writes::Through] };
    for model in &MODELS {
        one_disk(bench, model, &mut rates);
        for link in links {
            for (joined, writes) in POOLS.iter().flat_map(|joined| ways.iter().map(move |way| (joined, *way)))
            {
                pooled(bench, model, link, (joined, writes), &mut rates);
            }
            bench.plots.push(plot(model, link, &rates));
        }
    }
    figures::write_text("postmark.md", &table(&rates, links));
}

/// The disk of a node by itself.
fn one_disk(bench: &mut Bench, model: &'static DiskModel, rates: &mut Rates) {
    let disk = Plain::start(model, VOLUME_MIB);
    for run in &RUNS {
        bench.set(&format!("{}, {}, one disk", model.name, run.name));
        let rate = measure(run, &disk.device, bench.quick);
        bench.prepare(&format!("{rate:.1} a second"));
        rates.insert(Cell { model: model.id, run: run.name, pooled: None }, rate);
        let value: Series = [rate].into_iter().collect();
        let id = format!("postmark.{}.{}.base", model.id, run.name);
        let what = format!("PostMark {}, {}, by itself (paper: {})", run.name, model.name, run.paper[0]);
        bench.row(&Figure::new(&id, what, "/s", &value));
    }
}

/// A volume over the disks of some nodes.
fn pooled(
    bench: &mut Bench,
    model: &'static DiskModel,
    link: &'static str,
    (joined, writes): (&'static Joined, Writes),
    rates: &mut Rates,
) {
    let lan = hosts(link, joined.nodes);
    let disks: Vec<Rival> = (0..joined.nodes).map(|_| model.start(DISK_MIB)).collect();
    let mut pool = Pool::of(Access::Plaintext, State::Memory, Some(Arc::clone(&lan)));
    for (number, disk) in (1..).zip(&disks) {
        pool.donate_disk_at(Node::Donor(number), &format!("host-{number}"), &disk.uri, CACHE);
    }
    let size = format!("{VOLUME_MIB}M");
    let create = ["create", VOLUME, &size, "--on", "disk", "--redundancy", joined.redundancy];
    let write_back = (writes == Writes::Back).then_some("--write-back");
    pool.ok(create.into_iter().chain(write_back));
    let device = pool.attach_loop_at(Node::Donor(1), VOLUME).path;
    let name = joined.redundancy;
    for run in &RUNS {
        let which = format!("{}, {}, {} over {link}, {}", model.name, run.name, name, writes.word());
        bench.set(&which);
        let rate = measure(run, &device, bench.quick);
        bench.prepare(&format!("{rate:.1} a second"));
        rates.insert(Cell { model: model.id, run: run.name, pooled: Some((link, name, writes)) }, rate);
        let base = rates[&Cell { model: model.id, run: run.name, pooled: None }];
        let [value, base] = [rate, base].map(|once| [once].into_iter().collect::<Series>());
        let way = if writes == Writes::Back { ".back" } else { "" };
        let id = format!("postmark.{}.{}.{link}.{name}{way}", model.id, run.name);
        let papers = run.paper[usize::from(joined.nodes) - 1];
        let what = match joined.is_papers {
            true => format!("PostMark {which} (paper: {papers}, {:.1} x)", papers / run.paper[0]),
            false => format!("PostMark {which}"),
        };
        let bar = (joined.is_papers && joined.nodes == 4).then_some(Bar::RatioAtLeast(BAR));
        let peer = Some(("one disk", &base));
        bench.row(&Figure { peer, bar, ..Figure::new(&id, what, "/s", &value) });
    }
    pool.detach(VOLUME);
}

/// Transactions a second on an ext4 that is made for it.
#[track_caller]
fn measure(run: &Run, device: &Path, quick: bool) -> f64 {
    let (share, settle, time) = if quick { (10, 2, 8) } else { (1, 10, 120) };
    let (settle, time) = (Duration::from_secs(settle), Duration::from_secs(time));
    let scratch = Scratch::new();
    let name = device.display().to_string();
    // Nobody zeroes the tables of inodes meanwhile. What a volume on disk is told to forget it puts down,
    // page by page of its log: that takes a minute of such disks, and no transaction needs it.
    tools::run(
        "mkfs.ext4",
        ["-q", "-F", "-b", "4096", "-i", "8192", "-E", "lazy_itable_init=1,nodiscard", &name],
    );
    let point = scratch.directory("ext4");
    let mounted = Mounted::new(&["-o", "noinit_itable"], device, &point);
    let files = point.join("files");
    std::fs::create_dir(&files).expect("a directory on a new file system");
    let orders = format!(
        "set location {}\nset number {}\nset transactions {}\nrun\nquit\n",
        files.display(),
        run.files,
        run.transactions / share
    );
    let orders = scratch.file("orders", orders.as_bytes());
    let cgroup = Cgroup::new("postmark", 16 * MEMORY_BYTES);
    let mut command = cgroup.command(tools::need("postmark"));
    command.arg(orders);
    let mut process = Process::start("postmark", command, scratch.path());
    process.wait_for_line_begun("Performing transactions", CREATION);
    let begun = Instant::now();
    tools::expect_success(tools::command("chattr").arg("+D").arg(&files));
    tools::expect_success(tools::command("sync").arg("--file-system").arg(&files));
    wait::until("less memory", wait::SOON, || cgroup.try_limit(MEMORY_BYTES));
    let ended = |process: &Process| process.log().contains("Deleting files");
    let first = (begun, 0);
    let settled =
        until(begun + settle, || ended(&process)).then(|| (Instant::now(), done(&files, run.files)));
    let from = settled.unwrap_or(first);
    let to = match until(Instant::now() + time, || ended(&process)) {
        true => (Instant::now(), done(&files, run.files)),
        false => (Instant::now(), run.transactions / share),
    };
    process.kill();
    drop(process);
    mounted.unmount_in_time();
    (to.1 - from.1) as f64 / (to.0 - from.0).as_secs_f64()
}

/// Waits for a moment; whether it came before the end.
fn until(moment: Instant, ended: impl Fn() -> bool) -> bool {
    while Instant::now() < moment {
        if ended() {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// How many transactions were carried out: files that were made since, and those that are gone.
#[track_caller]
fn done(files: &Path, at_first: u64) -> u64 {
    let entries = std::fs::read_dir(files).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let numbers: Vec<u64> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    transactions(&numbers, at_first)
}

/// Files are numbered from 0 on. One that was made last and deleted at once is missed, and nothing else.
fn transactions(numbers: &[u64], at_first: u64) -> u64 {
    let made = numbers.iter().max().map_or(0, |last| last + 1).max(at_first);
    let (made_since, gone) = (made - at_first, made - numbers.len() as u64);
    made_since + gone
}

/// As many times one disk, by nodes, beside the paper's.
fn plot(model: &DiskModel, link: &'static str, rates: &Rates) -> Scaling {
    let mut lines = Vec::new();
    for run in &RUNS {
        let base = rates[&Cell { model: model.id, run: run.name, pooled: None }];
        for writes in [Writes::Through, Writes::Back] {
            let points = POOLS.iter().filter(|joined| joined.is_papers).filter_map(|joined| {
                let pooled = Some((link, joined.redundancy, writes));
                let rate = rates.get(&Cell { model: model.id, run: run.name, pooled })?;
                Some((f64::from(joined.nodes), rate / base))
            });
            let points: Vec<(f64, f64)> = std::iter::once((1.0, 1.0)).chain(points).collect();
            if points.len() > 1 {
                lines.push((format!("{}, {}", run.name, writes.word()), points));
            }
        }
        let paper = (1_u8..).zip(run.paper).map(|(nodes, rate)| (f64::from(nodes), rate / run.paper[0]));
        lines.push((format!("{}, the paper", run.name), paper.collect()));
    }
    Scaling {
        id: format!("postmark-{}-{link}", model.id),
        title: format!("PostMark, {}, links of {link}", model.name),
        x: "nodes".to_owned(),
        y: "times one disk".to_owned(),
        lines,
    }
}

/// The paper's table 2, and ours in the same form.
fn table(rates: &Rates, links: &[&'static str]) -> String {
    let mut text =
        "| disk | link | writes | run | one disk | 2 nodes | 3 nodes | 4 nodes | 4 / 1 | 4, parity |\n\
                    |---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for run in &RUNS {
        let [base, two, three, four] = run.paper;
        let ratio = four / base;
        let _ = writeln!(
            text,
            "| paper | 100mbit | | {} | {base} | {two} | {three} | {four} | {ratio:.1} | |",
            run.name
        );
    }
    let rows = MODELS.iter().flat_map(|model| links.iter().map(move |link| (model, *link)));
    let rows = rows.flat_map(|row| [(row, Writes::Through), (row, Writes::Back)]);
    for (((model, link), writes), run) in rows.flat_map(|row| RUNS.iter().map(move |run| (row, run))) {
        let base = rates.get(&Cell { model: model.id, run: run.name, pooled: None }).copied();
        let at = |redundancy| {
            let pooled = Some((link, redundancy, writes));
            rates.get(&Cell { model: model.id, run: run.name, pooled }).copied()
        };
        let said = |rate: Option<f64>| rate.map_or("not measured".to_owned(), |rate| format!("{rate:.1}"));
        let ratio = at("stripe:4").zip(base).map(|(four, base)| four / base);
        let _ = writeln!(
            text,
            "| {} | {link} | {} | {} | {} | {} | {} | {} | {} | {} |",
            model.id,
            writes.word(),
            run.name,
            said(base),
            said(at("stripe:2")),
            said(at("stripe:3")),
            said(at("stripe:4")),
            said(ratio),
            said(at("parity:3+1"))
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_files_made_and_files_gone() {
        assert_eq!(transactions(&[0, 1, 2], 3), 0);
        assert_eq!(transactions(&[0, 2], 3), 1);
        assert_eq!(transactions(&[0, 2, 3, 5], 3), 3 + 2);
        assert_eq!(transactions(&[], 0), 0);
    }

    #[test]
    fn the_table_has_the_papers_figures_and_says_what_was_not_measured() {
        let cell = |pooled| Cell { model: "paper", run: "small", pooled };
        let rates =
            Rates::from([(cell(None), 30.0), (cell(Some(("1gbit", "stripe:4", Writes::Through))), 75.0)]);
        let text = table(&rates, &["1gbit"]);
        assert!(text.contains("| paper | 100mbit | | small | 78 | 177 | 218 | 243 | 3.1 | |"), "{text}");
        let ours =
            "| paper | 1gbit | write-through | small | 30.0 | not measured | not measured | 75.0 | 2.5 | not";
        assert!(text.contains(ours), "{text}");
        let plot = plot(&OF_THE_PAPER, "1gbit", &all_alike());
        assert!(plot.lines.iter().any(|(name, points)| name == "small, the paper" && points.len() == 4));
    }

    fn all_alike() -> Rates {
        RUNS.iter().map(|run| (Cell { model: "paper", run: run.name, pooled: None }, 1.0)).collect()
    }

    #[test]
    #[ignore = "needs postmark, which one benchmark alone has installed"]
    fn postmark_is_counted_on_a_file_system_of_this_machine() {
        let disk = Plain::start(&SATA_SSD, 256);
        let few = Run { name: "few", files: 100, transactions: 2_000, paper: [0.0; 4] };
        assert!(measure(&few, &disk.device, true) > 0.0);
    }
}
