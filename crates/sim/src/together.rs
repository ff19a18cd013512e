//! A writer and a donor that end together, and what is done to the volume afterwards.
//!
//! Owns: the scene. Rows are written, many at once; the writer crashes (or its host) and a donor is killed,
//! lost or only stopped, in either order, up to some seconds apart; another writer attaches at once and
//! writes rows anew while the coordinator may stand still; everything is read back; it detaches in order,
//! another attaches, and everything is read back again. Never: a judgement (`workload`), or what may be lost
//! (`wounds`). Key rule: a scene begins only where all is whole, and while it is not the budget keeps other
//! donors of the volume from trouble, so that every byte is accounted for.

use crate::calls::Caller;
use crate::client::{Client, Phase, Tick};
use crate::network::Node;
use crate::redundancy::is_degraded;
use crate::world::{ClientEv, Ev, World, say};
use crate::wounds::{Missing, Rows, rows_touched};
use cheetah_core::api::Call;
use cheetah_core::limits::{MILLISECOND_NS, REQUEST_DEADLINE_NS, SECOND_NS};
use cheetah_core::map::{DonorId, LeaseToken, VolumeId, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::{Op, Request};
use std::collections::VecDeque;

/// Of one run: each takes as long as a fault or two.
const SCENES_MAX: usize = 2;
/// Between the end of the one and of the other.
const APART_NS: u64 = 8 * SECOND_NS;
/// Rows of a storm, and pieces that are read back.
const ROWS_MAX: u64 = 64;
const PIECES_MAX: usize = 400;
const PIECE_BYTES: u64 = 256 << 10;
/// A scene that hangs for so long is given up; the end of the run asks for all that it would have.
const GIVE_UP_NS: u64 = 3 * REQUEST_DEADLINE_NS;
/// What a client remembers of its writes: as long as donors do, and longer.
pub(crate) const REMEMBERED_NS: u64 = 4 * SECOND_NS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Killed,
    HostLost,
    Stopped(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// All is whole, and rows are written.
    Writing,
    /// One of the two has ended.
    Between,
    /// Both have; nobody has attached since.
    Alone,
    /// An attachment is on its way.
    Attaching,
    /// The new writer writes rows anew.
    Storming,
    Reading,
    Detaching,
    Returning,
    ReadingAgain,
}

#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) name: String,
    volume: VolumeId,
    donor: usize,
    how: How,
    donor_first: bool,
    host: bool,
    /// The writer of now, and what it was let in by.
    client: usize,
    token: Option<LeaseToken>,
    stage: Stage,
    /// What is still to be asked, so many at once, with so much time between two looks.
    queue: VecDeque<Request>,
    depth: usize,
    gap_ns: u64,
    half_written: Vec<Rows>,
    /// Rows that were written lately when the writer ended.
    lately: Vec<u64>,
    /// The coordinator stands still for so long when the new writer's first write is acknowledged, or as soon
    /// as it is let in.
    holds_up: Option<(bool, u64)>,
    ends_at: Time,
    give_up_at: Time,
}

impl Client {
    /// What it wrote lately, or is writing: from `since` on, acknowledged or not.
    fn written_since(&self, since: Time) -> impl Iterator<Item = (u64, u64)> + '_ {
        let open = self.slots.values().filter(|slot| slot.version.is_some());
        let open = open.map(|slot| (slot.request.offset, u64::from(slot.request.len)));
        let ended = self.wrote.iter().filter(move |(at, ..)| *at >= since);
        open.chain(ended.map(|(_, offset, len)| (*offset, *len)))
    }
}

impl World {
    /// Whether every slot has a holder that nobody has trouble with.
    fn is_whole(&self, map: &VolumeMap) -> bool {
        !is_degraded(map, |donor| self.verdict.is_in_trouble(donor, self.now))
    }

    pub(crate) fn end_together(&mut self) {
        if self.director.scene.is_some() || self.director.scenes >= SCENES_MAX {
            return;
        }
        let Some(scene) = self.pick_scene() else {
            return self.count("faults spared by the budget");
        };
        say!(self, "a writer and a donor will end together: {scene:?}");
        self.director.scenes += 1;
        self.director.scene = Some(scene);
        self.scene_rows(false);
        self.after(0, Ev::Scene);
    }

    fn pick_scene(&mut self) -> Option<Scene> {
        let writes = |client: &Client| {
            client.phase == Phase::Attached
                && !client.read_only
                && client.load.is_none()
                && client.machine.as_ref().is_some_and(|machine| machine.is_settled())
        };
        let writers: Vec<usize> = (0..self.clients.len()).filter(|c| writes(&self.clients[*c])).collect();
        let client = self.rng.pick(&writers)?;
        let volume = self.clients[client].volume?;
        // What was covered is kept in memory alone, and who has ended may come back: a disk is another
        // matter.
        let map =
            self.stored_map(volume).filter(|map| map.redundancy.parity > 0 && map.medium.is_memory())?;
        let map = map.clone();
        let beyond = self.verdict.beyond.contains(&volume) && !self.plan.beyond;
        let excused = self.verdict.torn.contains(&volume) || beyond;
        if excused || self.wounds.is_accounted(volume) || !self.is_whole(&map) {
            return None;
        }
        let (data, all) = (map.redundancy.data as usize, map.groups[0].slots.len());
        let slot =
            if self.rng.percent(75) { self.rng.index(data) } else { data + self.rng.index(all - data) };
        let group = self.rng.index(map.groups.len());
        let id = map.groups[group].slots[slot].held?.donor;
        let donor = self.donors.iter().position(|donor| donor.id == id && donor.alive)?;
        if !self.beyond_by(Some(id)).is_empty() {
            return None;
        }
        let how = match self.rng.below(10) {
            0..=4 => How::Killed,
            5 => How::HostLost,
            _ => How::Stopped(self.rng.skewed(100 * MILLISECOND_NS, 40 * SECOND_NS)),
        };
        let holds_up =
            self.rng.percent(50).then(|| (self.rng.percent(60), self.rng.range(300, 3_500) * MILLISECOND_NS));
        Some(Scene {
            name: self.clients[client].name.clone(),
            volume,
            donor,
            how,
            donor_first: self.rng.percent(50),
            host: self.rng.percent(30),
            client,
            token: self.clients[client].token,
            stage: Stage::Writing,
            queue: VecDeque::new(),
            depth: usize::try_from(self.rng.range(1, 16)).expect("a few"),
            gap_ns: self.rng.skewed(MILLISECOND_NS / 2, 20 * MILLISECOND_NS),
            half_written: Vec::new(),
            lately: Vec::new(),
            holds_up,
            ends_at: self.now + self.rng.below(1_500) * MILLISECOND_NS,
            give_up_at: self.now + GIVE_UP_NS,
        })
    }

    /// Puts rows into the queue: those that were written lately, and some from the beginning on.
    fn scene_rows(&mut self, anew: bool) {
        let Some(mut scene) = self.director.scene.take() else { return };
        if let Some(map) = self.stored_map(scene.volume) {
            let row = u64::from(map.redundancy.data) * u64::from(map.unit);
            let (size, count) = (map.size, map.size.div_ceil(row));
            let mut rows: Vec<u64> = if anew { std::mem::take(&mut scene.lately) } else { Vec::new() };
            rows.extend(0..count.min(ROWS_MAX));
            rows.sort_unstable();
            rows.dedup();
            rows.truncate(usize::try_from(2 * ROWS_MAX).expect("small"));
            if self.rng.percent(40) {
                for at in (1..rows.len()).rev() {
                    rows.swap(at, self.rng.index(at + 1));
                }
            }
            for at in rows {
                let (from, to) = (at * row, ((at + 1) * row).min(size));
                let (offset, len) = match self.rng.below(8) {
                    0 => {
                        let offset = from + self.rng.below(to - from) / 512 * 512;
                        (offset, self.rng.range(1, to - offset).next_multiple_of(512).min(to - offset))
                    }
                    _ => (from, to - from),
                };
                let len = u32::try_from(len).expect("a row");
                scene.queue.push_back(Request { op: Op::Write, offset, len });
            }
        }
        self.director.scene = Some(scene);
    }

    /// Puts everything that was ever written into the queue, to be read.
    fn scene_reads(&mut self) {
        let Some(mut scene) = self.director.scene.take() else { return };
        let size = self.stored_map(scene.volume).map_or(0, |map| map.size);
        let mut pieces = Vec::new();
        for (from, to) in self.oracle.touched(scene.volume) {
            let mut at = from;
            while at < to.min(size) {
                let len = (to.min(size) - at).min(PIECE_BYTES);
                pieces.push(Request { op: Op::Read, offset: at, len: u32::try_from(len).expect("a piece") });
                at += len;
            }
        }
        if pieces.len() > PIECES_MAX {
            let skip = self.rng.index(pieces.len() - PIECES_MAX);
            pieces.drain(..skip.min(pieces.len() / 4));
            pieces.truncate(PIECES_MAX);
        }
        scene.queue = pieces.into();
        self.director.scene = Some(scene);
    }

    pub(crate) fn scene_tick(&mut self) {
        let Some(mut scene) = self.director.scene.take() else { return };
        if self.director.healing || self.now >= scene.give_up_at {
            say!(self, "the scene of {} is given up at {:?}", scene.name, scene.stage);
            return;
        }
        let (stage, client) = (scene.stage, scene.client);
        let Some(delay) = self.scene_step(&mut scene) else {
            say!(self, "the scene of {} ends at {:?}", scene.name, scene.stage);
            return;
        };
        let fills = match scene.stage {
            next if next == stage && client == scene.client => None,
            Stage::Storming => Some(true),
            Stage::Reading | Stage::ReadingAgain => Some(false),
            _ => None,
        };
        self.director.scene = Some(scene);
        match fills {
            Some(true) => self.scene_rows(true),
            Some(false) => self.scene_reads(),
            None => {}
        }
        self.after(delay, Ev::Scene);
    }

    /// Goes on; after which time again, or never.
    fn scene_step(&mut self, scene: &mut Scene) -> Option<u64> {
        match scene.stage {
            Stage::Writing => {
                self.ask_some(scene);
                if self.now < scene.ends_at {
                    return Some(scene.gap_ns);
                }
                scene.queue.clear();
                self.first_end(scene)
            }
            Stage::Between => self.second_end(scene),
            Stage::Alone => {
                // As the next attachment of a machine does, whose daemon was killed.
                if let Some(token) = scene.token {
                    let name = scene.name.clone();
                    self.call(Caller::Admin, Node::Coordinator, Call::Detach { name, token });
                }
                scene.stage = Stage::Attaching;
                Some(2 * self.plan.delay_ns + 5 * MILLISECOND_NS)
            }
            Stage::Attaching | Stage::Returning => self.scene_attaches(scene),
            Stage::Storming | Stage::Reading | Stage::ReadingAgain => {
                if !self.clients[scene.client].alive {
                    return None;
                }
                self.ask_some(scene);
                if !scene.queue.is_empty() || !self.clients[scene.client].slots.is_empty() {
                    return Some(scene.gap_ns);
                }
                match scene.stage {
                    Stage::Storming => {
                        scene.stage = Stage::Reading;
                        Some(self.rng.skewed(MILLISECOND_NS, 4 * SECOND_NS))
                    }
                    Stage::Reading => {
                        scene.stage = Stage::Detaching;
                        self.after(0, Ev::Client(scene.client, ClientEv::Tick(Tick::Close)));
                        Some(20 * MILLISECOND_NS)
                    }
                    _ => {
                        self.count("volumes read back after a writer and a donor ended together");
                        None
                    }
                }
            }
            Stage::Detaching => {
                if !self.clients[scene.client].alive {
                    scene.stage = Stage::Returning;
                }
                Some(20 * MILLISECOND_NS)
            }
        }
    }

    /// Asks for what is next in the queue, as far as the volume takes it. A process that is stopped takes
    /// nothing.
    fn ask_some(&mut self, scene: &mut Scene) {
        let c = scene.client;
        if self.clients[c].paused_until > self.now {
            return;
        }
        while self.clients[c].slots.len() < scene.depth && self.clients[c].phase == Phase::Attached {
            let room = self.clients[c].machine.as_ref().is_some_and(|machine| machine.has_room());
            let Some(request) = scene.queue.pop_front().filter(|_| room) else { return };
            self.submit(c, request);
            if self.failure.is_some() {
                return;
            }
        }
        let acknowledged = self.clients[c].wrote.iter().next().is_some();
        if scene.stage == Stage::Storming
            && let Some((_, length)) = scene.holds_up.take_if(|(at_once, _)| *at_once || acknowledged)
        {
            self.stop_coordinator(length);
        }
    }

    fn first_end(&mut self, scene: &mut Scene) -> Option<u64> {
        let map = self.stored_map(scene.volume)?.clone();
        let id = self.donors[scene.donor].id;
        let ready = self.clients[scene.client].phase == Phase::Attached
            && self.donors[scene.donor].alive
            && self.is_whole(&map)
            && !self.verdict.torn.contains(&scene.volume)
            && self.beyond_by(Some(id)).is_empty();
        if !ready {
            self.count("faults spared by the budget");
            return None;
        }
        scene.stage = Stage::Between;
        if scene.donor_first {
            self.donor_ends(scene);
        } else {
            self.writer_ends(scene, &map);
        }
        Some(if self.rng.percent(25) { 0 } else { self.rng.skewed(MILLISECOND_NS, APART_NS) })
    }

    /// Nothing else happened to the volume's donors meanwhile, or the two are more than is accounted for.
    fn second_end(&mut self, scene: &mut Scene) -> Option<u64> {
        let map = self.stored_map(scene.volume)?.clone();
        let id = self.donors[scene.donor].id;
        let others_out = {
            let out = |donor: DonorId| donor != id && self.verdict.is_in_trouble(donor, self.now);
            let slots = map.groups.iter().flat_map(|group| &group.slots);
            let held = slots.filter_map(|slot| slot.held).any(|held| out(held.donor));
            let missing =
                map.groups.iter().map(|group| group.slots.iter().filter(|s| s.held.is_none()).count());
            // What the donor held has no holder now, or is held by it.
            held || missing.max().unwrap_or(0) > 1
        };
        let others_short = self.beyond_by(Some(id)).into_iter().any(|volume| volume != scene.volume);
        let there = if scene.donor_first {
            self.clients[scene.client].phase == Phase::Attached
        } else {
            self.donors[scene.donor].alive
        };
        if others_out || others_short || !there {
            self.count("faults spared by the budget");
            return None;
        }
        if scene.donor_first {
            self.writer_ends(scene, &map);
        } else {
            let story = self.story(scene, &map);
            self.wounds.open(scene.volume, scene.half_written.clone(), story);
            self.donor_ends(scene);
        }
        self.count("fault: a writer and a donor ended together");
        if self.plan.beyond {
            // What is lost is not weighed there, but what is read is right.
            self.verdict.beyond.insert(scene.volume);
        }
        scene.stage = Stage::Alone;
        Some(self.rng.skewed(MILLISECOND_NS, 3 * SECOND_NS))
    }

    fn donor_ends(&mut self, scene: &Scene) {
        let (d, id) = (scene.donor, self.donors[scene.donor].id);
        if let How::Stopped(length) = scene.how {
            let until = self.now + length;
            self.count("fault: donor stopped beside its writer's end");
            self.donors[d].paused_until = self.donors[d].paused_until.max(until);
            return self.verdict.donor_in_trouble(id, until);
        }
        self.director.deaths += 1;
        self.end_donor(d, scene.how == How::Killed);
    }

    fn story(&self, scene: &Scene, map: &VolumeMap) -> String {
        let donor = match scene.how {
            How::Killed => "killed".to_owned(),
            How::HostLost => "lost with its host".to_owned(),
            How::Stopped(length) => format!("stopped for {} ms", length / MILLISECOND_NS),
        };
        let order = if scene.donor_first { "before" } else { "after" };
        let holds = match scene.holds_up {
            Some((_, length)) => {
                format!(", then the coordinator stands still for {} ms", length / MILLISECOND_NS)
            }
            None => String::new(),
        };
        format!(
            "{}+{}, donor {} {donor} {order} its writer's end{holds}",
            map.redundancy.data, map.redundancy.parity, scene.donor
        )
    }

    fn writer_ends(&mut self, scene: &mut Scene, map: &VolumeMap) {
        let client = &self.clients[scene.client];
        let written = client.written_since(self.now);
        scene.half_written = written.flat_map(|(offset, len)| rows_touched(map, offset, len)).collect();
        let row = u64::from(map.redundancy.data) * u64::from(map.unit);
        let lately = client.written_since(self.now.saturating_sub(REMEMBERED_NS));
        scene.lately = lately
            .flat_map(|(offset, len)| (offset / row..(offset + len).div_ceil(row)).take(8))
            .filter(|at| at * row < map.size)
            .collect();
        scene.token = client.token;
        if scene.donor_first {
            let story = self.story(scene, map);
            self.wounds.open(scene.volume, scene.half_written.clone(), story);
        }
        self.crash_client(scene.client, scene.host);
        // What its end costs while a donor is missing is accounted for block by block.
        if !self.plan.beyond {
            self.verdict.beyond.remove(&scene.volume);
        }
    }

    fn scene_attaches(&mut self, scene: &mut Scene) -> Option<u64> {
        let c = scene.client;
        let machine = self.clients[c].machine.as_ref();
        if self.clients[c].alive && machine.is_some_and(|machine| machine.has_room()) {
            scene.stage = if scene.stage == Stage::Attaching { Stage::Storming } else { Stage::ReadingAgain };
            return Some(0);
        }
        let dead = !self.clients[c].alive || self.clients[c].name != scene.name;
        if !dead {
            return Some(3 * MILLISECOND_NS);
        }
        // Somebody else may have been let in.
        let writer = self.attached_to(&scene.name).into_iter().find(|c| !self.clients[*c].read_only);
        scene.client = writer.unwrap_or(self.clients.len());
        if writer.is_none() {
            self.attach_for_all(&scene.name);
        }
        Some(self.rng.range(20, 300) * MILLISECOND_NS)
    }

    /// How a donor of the map is missing now.
    fn missing(&self, donor: DonorId) -> Option<Missing> {
        let there = self.donors.iter().find(|other| other.id == donor && other.alive);
        match there {
            None => Some(Missing::Gone),
            Some(there) if there.paused_until > self.now => Some(Missing::StoppedUntil(there.paused_until)),
            Some(_) => None,
        }
    }

    /// Looks who is missing of a volume that waits to be mended.
    pub(crate) fn look_at_wound(&mut self, volume: VolumeId) {
        if let Some(map) = self.stored_map(volume).filter(|_| self.wounds.is_accounted(volume)).cloned() {
            let mut wounds = std::mem::take(&mut self.wounds);
            wounds.look(&map, !self.plan.undo_is_short, |donor| self.missing(donor));
            self.wounds = wounds;
        }
    }

    /// What is whole again is as before.
    pub(crate) fn close_wounds(&mut self) {
        for volume in self.wounds.open_ones() {
            let whole = self.stored_map(volume).is_none_or(|map| self.is_whole(map));
            if whole && !self.verdict.torn.contains(&volume) {
                self.wounds.close(volume);
            }
        }
    }
}
