//! What people do to the pool: donors that join, volumes made, grown and deleted, attachments that come and
//! go.
//!
//! Owns: the calls of administrators, and what their answers promised. Never: faults (`faults`).

use crate::bugs::Bug;
use crate::calls::{Caller, Outcome};
use crate::client::{Phase, Tick};
use crate::deaths::FirstDeath;
use crate::donor::DonorHost;
use crate::network::Node;
use crate::on_disk::OnDisk;
use crate::plan::{Layout, Plan};
use crate::power::LostOnDisk;
use crate::rng::Rng;
use crate::rot::Rot;
use crate::together::Scene;
use crate::world::{ClientEv, Ev, World, say};
use cheetah_core::api::{Answer, Call, Create, RefusalCode, Size};
use cheetah_core::content::FillFrom;
use cheetah_core::donor;
use cheetah_core::limits::{EXTENT_BYTES, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, Incarnation, Medium, Redundancy};
use cheetah_core::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// What the answers of the coordinator said about a volume; an unanswered call makes it uncertain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// `None`: a call that would change it was not answered.
    pub(crate) exists: Option<bool>,
    pub(crate) size_min: u64,
    busy: bool,
    /// A client had it before.
    was_attached: bool,
    follows: bool,
    /// Loads that make the volume anew, with another size, and of which nobody knows whether they did.
    anew: usize,
}

#[derive(Debug)]
pub(crate) struct Director {
    pub(crate) volumes: BTreeMap<String, Known>,
    calls: BTreeMap<u64, Call>,
    /// Addresses whose machine is gone: not even a refusal comes from there.
    pub(crate) dark: BTreeSet<usize>,
    pub(crate) deaths: usize,
    pub(crate) rot: Vec<Rot>,
    /// No more faults, no more changes.
    pub(crate) healing: bool,
    /// All is read a last time.
    pub(crate) last_pass: bool,
    /// What was begun has come to its end by then: everything heals.
    pub(crate) ends_at: Time,
    pub(crate) scene: Option<Scene>,
    pub(crate) scenes: usize,
    /// How often power went.
    pub(crate) outages: usize,
    pub(crate) lost_on_disk: Vec<LostOnDisk>,
    pub(crate) first_deaths: Vec<FirstDeath>,
    slots: usize,
}

/// Where the donors of a slot listen.
pub(crate) fn address(slot: usize) -> String {
    format!("10.0.0.{}:10809", slot + 1)
}

pub(crate) fn slot_of(address: &str) -> usize {
    let host = address.strip_prefix("10.0.0.").and_then(|rest| rest.split(':').next());
    host.and_then(|host| host.parse::<usize>().ok()).map_or(usize::MAX, |host| host - 1)
}

impl Director {
    pub(crate) fn new(plan: &Plan) -> Director {
        let known = Known { exists: Some(false), ..Known::default() };
        let volumes = (0..plan.volumes).map(|v| (format!("v{v}"), known.clone())).collect();
        Director {
            volumes,
            calls: BTreeMap::new(),
            dark: BTreeSet::new(),
            deaths: 0,
            rot: Vec::new(),
            healing: false,
            last_pass: false,
            ends_at: plan.duration_ns,
            scene: None,
            scenes: 0,
            outages: 0,
            lost_on_disk: Vec::new(),
            first_deaths: Vec::new(),
            slots: 0,
        }
    }
}

impl Director {
    /// Whether it may be loaded now.
    pub(crate) fn may_load(&self, name: &str) -> bool {
        let plays = self.scene.as_ref().is_some_and(|scene| scene.name == name);
        self.volumes.get(name).is_some_and(|known| !known.busy && known.exists != Some(false)) && !plays
    }

    pub(crate) fn load_is_sent(&mut self, name: &str, from: FillFrom) {
        let known = self.volumes.entry(name.to_owned()).or_default();
        known.busy = true;
        if from == FillFrom::Overwrite {
            (known.anew, known.size_min) = (known.anew + 1, 0);
        }
    }

    /// `None`: nobody heard what came of it.
    pub(crate) fn load_is_answered(&mut self, name: &str, from: FillFrom, size: Option<u64>, heard: bool) {
        let known = self.volumes.entry(name.to_owned()).or_default();
        known.busy = false;
        if from == FillFrom::Overwrite && heard {
            known.anew -= 1;
            known.size_min = size.filter(|_| known.anew == 0).unwrap_or(0);
        }
    }
}

impl World {
    /// Sets the first events.
    pub(crate) fn begin(&mut self) {
        let plan = self.plan.to_string();
        say!(self, "{plan}");
        for at in 0..self.plan.donors {
            let late = at >= self.plan.donors - self.plan.donors_late;
            let delay = if late {
                self.rng.below(self.plan.duration_ns * 3 / 4)
            } else {
                self.rng.below(50 * MILLISECOND_NS)
            };
            self.after(delay, Ev::Join);
        }
        self.after(SECOND_NS, Ev::Admin);
        let gap = self.rng.around(self.plan.fault_gap_ns);
        self.after(2 * SECOND_NS + gap, Ev::Fault);
    }

    pub(crate) fn new_donor(&mut self) {
        if self.director.healing {
            return;
        }
        let slot = self.director.slots;
        self.director.slots += 1;
        self.start_donor(slot);
    }

    pub(crate) fn start_donor(&mut self, slot: usize) {
        let id = DonorId(self.rng.draw());
        let extents = u32::try_from(self.rng.range(1, self.plan.extents_max)).expect("a few");
        let d = self.donors.len();
        say!(self, "donor {d} ({id}) starts at {} with {extents} extents", address(slot));
        let mut donor = DonorHost::new(id, slot, format!("d{slot}"), extents);
        if self.rng.clone().percent(self.plan.disks) {
            let disk = OnDisk::format(id, donor.secret(), extents, self.plan.disk_room);
            donor.take_disk(disk, self.plan.log_max, Incarnation(d as u64));
            let flush_ignored = self.bug == Some(Bug::FlushIgnored);
            donor.disk.iter_mut().for_each(|disk| disk.journal.disk_mut().never_flushed = flush_ignored);
        }
        self.donors.push(donor);
        // Until it has joined.
        self.verdict.donor_in_trouble(id, self.now + SECOND_NS);
        for c in 0..self.clients.len() {
            // What was cut from its predecessor is cut from it.
            let (client, address) = (Node::Client(c), Node::Donor(slot));
            let cut = self.cut_until(client, address).max(self.cut_until(address, client));
            cut.into_iter().for_each(|until| self.verdict.link_in_trouble(c, id, until + SECOND_NS));
        }
        self.step_donor(d, donor::Event::Started);
    }

    pub(crate) fn admin_tick(&mut self) {
        if self.director.healing {
            return;
        }
        if self.coordinator.stranger.is_some() {
            let gap = self.rng.around(self.plan.admin_gap_ns);
            return self.after(gap, Ev::Admin);
        }
        let names: Vec<String> = self.director.volumes.keys().cloned().collect();
        for name in names {
            if self.rng.percent(70) {
                self.manage(&name);
            }
        }
        let gap = self.rng.around(self.plan.admin_gap_ns);
        self.after(gap, Ev::Admin);
    }

    fn manage(&mut self, name: &str) {
        let known = self.director.volumes[name].clone();
        let plays = self.director.scene.as_ref().is_some_and(|scene| scene.name == name);
        if known.busy || plays {
            return;
        }
        if known.exists == Some(false) {
            return self.create(name);
        }
        let attached = self.attached_to(name);
        if self.has_loads() && self.rng.percent(if attached.is_empty() { 40 } else { 5 }) {
            return self.begin_load(name);
        }
        match self.rng.below(12) {
            0..=4 if attached.is_empty() => self.attach(name, false),
            0..=2 => self.attach(name, self.rng.clone().percent(60)),
            5 | 6 => {
                let size = if self.rng.percent(20) {
                    Size::All
                } else {
                    Size::Bytes(known.size_min + self.rng.skewed(512, 2 * EXTENT_BYTES).next_multiple_of(512))
                };
                self.admin(name, Call::Grow { name: name.to_owned(), size });
            }
            7 if attached.len() < 2 => self.admin(name, Call::Delete { name: name.to_owned() }),
            8 | 9 => {
                if let Some(c) = self.rng.pick(&attached) {
                    self.after(0, Ev::Client(c, ClientEv::Tick(Tick::Close)));
                }
            }
            10 => self.admin(name, Call::Show { name: name.to_owned() }),
            _ => {}
        }
    }

    pub(crate) fn note_attached(&mut self, name: &str) {
        self.director.volumes.entry(name.to_owned()).or_default().was_attached = true;
    }

    pub(crate) fn attached_to(&self, name: &str) -> Vec<usize> {
        let clients = self.clients.iter().enumerate();
        let on = clients.filter(|(_, client)| client.name == name && client.phase == Phase::Attached);
        on.map(|(c, _)| c).collect()
    }

    fn create(&mut self, name: &str) {
        let follow = !self.plan.parity_only && self.rng.percent(10);
        let redundancy = self.pick_redundancy(follow);
        let size = match self.rng.below(10) {
            0 => Size::All,
            1 => Size::Bytes(self.rng.range(1, 4) * EXTENT_BYTES),
            _ => Size::Bytes(self.rng.skewed(512, 4 * EXTENT_BYTES).next_multiple_of(512)),
        };
        let unit = Some(4096 << self.rng.below(9));
        self.director.volumes.entry(name.to_owned()).or_default().follows = follow;
        let on = if self.rng.clone().percent(self.plan.disks) { Medium::Disk } else { Medium::Memory };
        let can = on == Medium::Disk && redundancy.is_some_and(|redundancy| redundancy.parity > 0);
        // By a stream of its own.
        let write_back = can && Rng::new(self.rng.clone().draw().rotate_left(23)).percent(50);
        let create = Create { redundancy, unit, follow, on, write_back, ..Create::new(name, size) };
        self.admin(name, Call::Create(create));
    }

    fn pick_redundancy(&mut self, follow: bool) -> Option<Redundancy> {
        if let Some(Layout { data, parity, .. }) = self.plan.layout {
            return Some(Redundancy { data, parity });
        }
        let donors = self.plan.donors as u64;
        let kind = if self.plan.parity_only { 19 } else { self.rng.below(20) };
        let narrow = |count: u64| u32::try_from(count).expect("few");
        match kind {
            0 => None,
            1 => Some(Redundancy::LINEAR),
            _ if follow => Some(Redundancy::LINEAR),
            2 | 3 => Some(Redundancy { data: narrow(self.rng.range(2, donors.max(2))), parity: 0 }),
            4..8 => Some(Redundancy { data: 1, parity: narrow(self.rng.range(1, 2)) }),
            _ => {
                let parity = self.rng.range(1, 2).min(donors.saturating_sub(2)).max(1);
                let data = self.rng.range(2, 4).min(donors.saturating_sub(parity)).max(2);
                Some(Redundancy { data: narrow(data), parity: narrow(parity) })
            }
        }
    }

    pub(crate) fn admin(&mut self, name: &str, call: Call) {
        self.director.volumes.entry(name.to_owned()).or_default().busy = true;
        let id = self.call(Caller::Admin, Node::Coordinator, call.clone());
        self.director.calls.insert(id, call);
    }

    pub(crate) fn admin_answered(&mut self, id: u64, outcome: Option<Outcome>) {
        let Some(call) = self.director.calls.remove(&id) else { return };
        let (Call::Create(Create { name, .. })
        | Call::Grow { name, .. }
        | Call::Delete { name }
        | Call::Show { name }) = &call
        else {
            return;
        };
        let known = self.director.volumes.entry(name.clone()).or_default();
        known.busy = false;
        let refused = matches!(&outcome, Some(Err(refusal)) if refusal.code != RefusalCode::Unavailable);
        let wrong = match (&call, outcome) {
            (Call::Show { .. }, Some(Err(refusal))) if refusal.code == RefusalCode::NotFound => {
                let wrong = known.exists == Some(true);
                (known.exists, known.size_min) = (Some(false), 0);
                wrong.then(|| format!("volume {name} is not there, though it was made"))
            }
            (Call::Show { .. } | Call::Create(_) | Call::Grow { .. }, Some(Ok(Answer::Volume(detail)))) => {
                let (before, after) = (known.size_min, detail.status.size);
                let was_gone = known.exists == Some(false) && matches!(call, Call::Show { .. });
                let followed =
                    known.anew == 0 && known.follows && after > before && matches!(call, Call::Show { .. });
                (known.exists, known.size_min) = (Some(true), if known.anew == 0 { after } else { 0 });
                if matches!(call, Call::Create(_)) {
                    self.count("volumes created");
                } else if followed && before > 0 {
                    self.count("volumes that followed a new donor");
                }
                if was_gone {
                    Some(format!("volume {name} is there, though it was deleted"))
                } else if after < before {
                    Some(format!("volume {name} has {after} bytes; it was said to have {before}"))
                } else {
                    None
                }
            }
            (Call::Delete { .. }, Some(Ok(_))) => {
                (known.exists, known.size_min) = (Some(false), 0);
                self.count("volumes deleted");
                None
            }
            (Call::Create(_), _) if refused => None,
            (Call::Create(_) | Call::Delete { .. }, None) => {
                (known.exists, known.size_min) = (None, 0);
                None
            }
            _ => None,
        };
        wrong.into_iter().for_each(|what| self.fail(what));
    }
}
