//! What one seed picks: topology, network, workload, and which faults there are.
//!
//! Owns the ranges. Each fault kind is on or off for a whole run (a swarm), so that some runs are harsh in
//! one way and calm in all others. Never: anything that happens later than the start.

use crate::Setup;
use crate::rng::Rng;
use cheetah_core::ahead::Rule;
use cheetah_core::limits::{MILLISECOND_NS, SECOND_NS};
use cheetah_core::volume::Caching;
use std::fmt;

/// A kind of fault that is on or off for a whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    LoseConnection,
    StallConnection,
    KillDonor,
    PauseDonor,
    EndDonor,
    CutLink,
    CutCoordinator,
    RestartCoordinator,
    CrashClient,
    PauseClient,
    SlowDonor,
    RepeatCall,
    DrainDonor,
    SpareLess,
    EndTogether,
    StopCoordinator,
    Stranger,
    KillTwo,
    DisturbClock,
    /// Volumes are loaded as well, and loads end before their end.
    EndLoad,
    /// Bits flip in donors' memory, and on their way from donors and to them.
    Rot,
    /// A volume is opened from a source, and who fills it dies: a world of its own.
    Opened,
    /// All donors lend disks, and the whole pool loses power.
    Power,
    /// Disks have blocks that cannot be read, have no room, or end.
    BadDisk,
}

/// So many ordinary runs have disks.
const DISKS_PERCENT: u64 = 20;

/// What ordinary runs are made of, beside loads; each of the other kinds makes runs of its own.
const FAULTS: [Fault; 15] = [
    Fault::LoseConnection,
    Fault::StallConnection,
    Fault::KillDonor,
    Fault::PauseDonor,
    Fault::EndDonor,
    Fault::CutLink,
    Fault::CutCoordinator,
    Fault::RestartCoordinator,
    Fault::CrashClient,
    Fault::PauseClient,
    Fault::SlowDonor,
    Fault::RepeatCall,
    Fault::DrainDonor,
    Fault::SpareLess,
    Fault::EndTogether,
];

impl Fault {
    /// The kinds that a run can be made of alone.
    pub const ALONE: [Fault; 9] = [
        Fault::EndTogether,
        Fault::StopCoordinator,
        Fault::Stranger,
        Fault::KillTwo,
        Fault::DisturbClock,
        Fault::EndLoad,
        Fault::Rot,
        Fault::Opened,
        Fault::Power,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fault::EndTogether => "end-together",
            Fault::StopCoordinator => "stop-coordinator",
            Fault::Stranger => "stranger",
            Fault::KillTwo => "kill-two",
            Fault::DisturbClock => "clock",
            Fault::EndLoad => "end-load",
            Fault::Rot => "rot",
            Fault::Opened => "opened",
            Fault::Power => "power",
            _ => "of every run",
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Fault> {
        Fault::ALONE.into_iter().find(|fault| fault.name() == name)
    }
}

/// The redundancy of every volume, and how many donors there are beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub data: u32,
    pub parity: u32,
    pub spares: u32,
}

impl Layout {
    /// `K+M` or `K+M+SPARES`.
    #[must_use]
    pub fn named(name: &str) -> Option<Layout> {
        let numbers: Option<Vec<u32>> = name.split('+').map(|number| number.parse().ok()).collect();
        let (data, parity, spares) = match numbers?[..] {
            [data, parity] => (data, parity, 0),
            [data, parity, spares] => (data, parity, spares),
            _ => return None,
        };
        let fits = (1..=4).contains(&data) && (1..=2).contains(&parity) && spares <= 4;
        fits.then_some(Layout { data, parity, spares })
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}+{}", self.data, self.parity, self.spares)
    }
}

pub(crate) struct Plan {
    pub(crate) donors: usize,
    /// Of these, how many join only later.
    pub(crate) donors_late: usize,
    pub(crate) extents_max: u64,
    pub(crate) volumes: usize,
    pub(crate) connections: usize,
    pub(crate) delay_ns: u64,
    pub(crate) jitter_ns: u64,
    pub(crate) duration_ns: u64,
    pub(crate) request_gap_ns: u64,
    pub(crate) depth_max: usize,
    pub(crate) length_max: u64,
    /// Percent of requests that change the volume.
    pub(crate) writes: u64,
    /// Percent of bursts that are writes of which each begins where the one before ended.
    pub(crate) streams: u64,
    /// Percent of bursts that are reads that follow one another: forward, backward or strided.
    pub(crate) read_streams: u64,
    /// How clients cache; nothing where its memory is none.
    pub(crate) caching: Caching,
    pub(crate) admin_gap_ns: u64,
    pub(crate) fault_gap_ns: u64,
    /// Steps of a volume machine between two looks at its invariants, which take long.
    pub(crate) steps_unchecked: u64,
    pub(crate) faults: Vec<Fault>,
    /// How many donors may end.
    pub(crate) deaths_max: usize,
    /// How many of a million messages with data have a bit flipped.
    pub(crate) flips_per_million: u64,
    /// Percent of donors that lend disks.
    pub(crate) disks: u64,
    /// How long a disk takes for a thing.
    pub(crate) disk_ns: u64,
    /// Blocks of a disk that its donor has room for in memory.
    pub(crate) disk_room: u64,
    /// So many entries a disk's log has at most before it begins anew.
    pub(crate) log_max: u64,
    /// Blocks of disks may become unreadable.
    pub(crate) reads_fail: bool,
    /// Machines that donors run on.
    pub(crate) hosts: usize,
    /// More may go wrong at once than redundancy covers.
    pub(crate) beyond: bool,
    /// Donors have no room for all that writes cover.
    pub(crate) undo_is_short: bool,
    /// Every volume has data and parity,
    pub(crate) parity_only: bool,
    /// and these.
    pub(crate) layout: Option<Layout>,
}

/// What goes wrong, and how often a bit flips.
fn pick_faults(rng: &mut Rng) -> (Vec<Fault>, u64) {
    let share = rng.range(10, 70);
    let mut faults: Vec<Fault> = FAULTS.into_iter().filter(|_| rng.percent(share)).collect();
    // By a stream of their own: a run without loads is what it was before there were any.
    if Rng::new(rng.clone().draw()).percent(share) {
        faults.push(Fault::EndLoad);
    }
    let flips_per_million = if rng.percent(20) { rng.skewed(200, 50_000) } else { 0 };
    (faults, flips_per_million)
}

/// What runs of one kind of fault are made of.
fn faults_of(fault: Fault) -> Vec<Fault> {
    match fault {
        // Whoever comes after a writer, or reads beside it, finds what is wrong; so does whoever moves or
        // rebuilds it.
        Fault::Rot => {
            let others = [Fault::CrashClient, Fault::LoseConnection, Fault::KillDonor];
            let others = others.into_iter().chain([Fault::DrainDonor, Fault::RestartCoordinator]);
            [fault; 4].into_iter().chain(others).collect()
        }
        Fault::Power => vec![Fault::KillDonor, Fault::CrashClient, Fault::LoseConnection],
        _ => vec![fault],
    }
}

/// What is lent: memory, in most runs, or disks; and how fast and how well cached those are.
fn with_disks(mut rng: Rng, plan: Plan, only: Option<Fault>) -> Plan {
    let all = match only {
        Some(Fault::Power) => true,
        None if rng.percent(DISKS_PERCENT) => rng.percent(60),
        _ => return plan,
    };
    let mut faults = plan.faults.clone();
    if all {
        faults.push(Fault::Power);
    }
    if rng.percent(40) {
        faults.push(Fault::BadDisk);
    }
    Plan {
        disks: if all { 100 } else { rng.range(30, 70) },
        disk_ns: rng.skewed(MILLISECOND_NS / 10, 60 * MILLISECOND_NS),
        disk_room: rng.skewed(16, 4096),
        log_max: rng.skewed(8, 16 << 10),
        flips_per_million: 0,
        reads_fail: faults.contains(&Fault::BadDisk) && rng.percent(50),
        faults,
        ..plan
    }
}

impl Plan {
    pub(crate) fn pick(rng: &mut Rng, setup: Setup) -> Plan {
        let few = rng.percent(12);
        let donors = usize::try_from(if few { rng.range(1, 2) } else { rng.range(3, 8) }).expect("small");
        let delay_ns = rng.skewed(10_000, 20 * MILLISECOND_NS);
        let (faults, flips_per_million) = pick_faults(rng);
        // By a stream of its own, too.
        let undo_is_short = Rng::new(!rng.clone().draw()).percent(15);
        let of_disks = Rng::new(rng.clone().draw().rotate_left(17));
        let plan = Plan {
            undo_is_short,
            donors,
            donors_late: if rng.percent(50) { 0 } else { rng.index(donors) },
            extents_max: rng.range(1, 6),
            volumes: usize::try_from(rng.range(1, 2)).expect("small"),
            connections: usize::try_from(rng.range(1, 3)).expect("small"),
            delay_ns,
            jitter_ns: rng.below(delay_ns * 2),
            duration_ns: rng.range(15, 50) * SECOND_NS,
            request_gap_ns: rng.skewed(100 * MILLISECOND_NS, 800 * MILLISECOND_NS),
            depth_max: usize::try_from(rng.skewed(1, 64)).expect("small"),
            length_max: rng.skewed(4096, 4 << 20),
            writes: rng.range(20, 80),
            streams: if rng.percent(50) { 0 } else { rng.range(5, 60) },
            read_streams: if rng.percent(30) { 0 } else { rng.range(10, 60) },
            caching: Caching {
                bytes: if rng.percent(25) { 0 } else { u32::try_from(rng.range(1, 8)).expect("small") << 20 },
                keeps: rng.percent(50),
                takes: rng.percent(30),
                rule: if rng.percent(15) { Rule::Thesis } else { Rule::Streams },
            },
            admin_gap_ns: rng.range(1, 8) * SECOND_NS,
            fault_gap_ns: rng.skewed(SECOND_NS / 2, 10 * SECOND_NS),
            steps_unchecked: if rng.percent(10) { 1 } else { 32 },
            faults,
            deaths_max: rng.index(donors + 1),
            flips_per_million,
            disks: 0,
            disk_ns: 0,
            disk_room: 0,
            log_max: 0,
            reads_fail: false,
            hosts: usize::try_from(rng.range(2, 8)).expect("small"),
            beyond: setup.beyond,
            parity_only: setup.layout.is_some(),
            layout: setup.layout,
        };
        let plan = match setup.only {
            None => plan,
            Some(fault) => Plan {
                donors: plan.donors.max(3),
                donors_late: 0,
                extents_max: plan.extents_max.max(2),
                faults: faults_of(fault),
                fault_gap_ns: rng.range(SECOND_NS, 4 * SECOND_NS),
                flips_per_million: if fault == Fault::Rot { rng.skewed(2_000, 200_000) } else { 0 },
                parity_only: !matches!(fault, Fault::Power | Fault::Rot),
                ..plan
            },
        };
        let plan = with_disks(of_disks, plan, setup.only);
        match setup.layout {
            None => plan,
            Some(Layout { data, parity, spares }) => {
                let donors = (data + parity + spares) as usize;
                // Each on its own machine.
                Plan { donors, donors_late: 0, hosts: donors, extents_max: plan.extents_max.max(3), ..plan }
            }
        }
    }

    /// Whether bytes may change without anybody writing them.
    pub(crate) fn corrupts(&self) -> bool {
        self.flips_per_million > 0 || self.rots() || self.reads_fail
    }

    /// Also in donors' memory.
    pub(crate) fn rots(&self) -> bool {
        self.faults.contains(&Fault::Rot)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / MILLISECOND_NS as f64;
        write!(
            f,
            "{} donors ({} late) of up to {} extents, {} volumes, {} connections a link, delay {:.2}+{:.2} ms, {} s, \
             requests of up to {} B every {:.0} ms at depth {}, {} % writes, {} % of bursts in order, {} % reads in order, cache {:?}, faults every {:.0} ms: {:?}, {} flips, {} % disks of {:.2} ms with {} blocks at hand",
            self.donors,
            self.donors_late,
            self.extents_max,
            self.volumes,
            self.connections,
            ms(self.delay_ns),
            ms(self.jitter_ns),
            self.duration_ns / SECOND_NS,
            self.length_max,
            ms(self.request_gap_ns),
            self.depth_max,
            self.writes,
            self.streams,
            self.read_streams,
            self.caching,
            ms(self.fault_gap_ns),
            self.faults,
            self.flips_per_million,
            self.disks,
            ms(self.disk_ns),
            self.disk_room
        )
    }
}
