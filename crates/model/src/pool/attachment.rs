//! A node's volume machine, as it runs in production, and the least driver that lets it work.
//!
//! Owns: the machine, its map, the sessions of its links, and what waits for room. What it computes and
//! compares takes no time and is always right. Never: how long anything takes; `world` hears what is asked,
//! and answers. Invariant: effects are carried out before the next event, and an answer over a link that was
//! closed is passed over. Tests: `world`.

use super::placed::index;
use cheetah_core::api::Amend;
use cheetah_core::map::{DonorId, Slot, VolumeMap};
use cheetah_core::units::Time;
use cheetah_core::volume::{
    Effect, Event, FetchError, Key, LinkFailure, Op, PartOp, Request, StatusRun, Tag, Volume,
};
use std::collections::{BTreeMap, VecDeque};

/// What the machine wants of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Open { donor: DonorId, session: u64, probe: bool },
    Part { donor: DonorId, session: u64, key: Key, op: PartOp, address: u64, bytes: u32 },
    Done { tag: Tag, succeeded: bool },
    WakeAt(Time),
}

#[derive(Debug)]
pub(super) struct Attachment {
    volume: Volume,
    map: VolumeMap,
    sessions: BTreeMap<DonorId, u64>,
    /// Requests that came while the machine had no room.
    waiting: VecDeque<(Tag, u64)>,
    block: u32,
    /// Bytes of slots that were filled.
    pub(super) rebuilt_bytes: u64,
    pub(super) wake: Option<Time>,
}

impl Attachment {
    pub(super) fn new(map: VolumeMap, block: u32) -> Attachment {
        Attachment {
            volume: Volume::new(map.clone(), false, true),
            map,
            sessions: BTreeMap::new(),
            waiting: VecDeque::new(),
            block,
            rebuilt_bytes: 0,
            wake: None,
        }
    }

    pub(super) fn start(&mut self, now: Time, asked: &mut Vec<Asked>) {
        self.step(now, Event::Start, asked);
    }

    /// Blocks that can be read.
    pub(super) fn blocks(&self) -> u64 {
        self.map.size / u64::from(self.block)
    }

    pub(super) fn read(&mut self, now: Time, tag: Tag, block: u64, asked: &mut Vec<Asked>) {
        self.waiting.push_back((tag, block * u64::from(self.block)));
        self.submit(now, asked);
    }

    pub(super) fn opened(
        &mut self,
        now: Time,
        donor: DonorId,
        session: u64,
        is_there: bool,
        asked: &mut Vec<Asked>,
    ) {
        let event = match is_there {
            true => Event::Opened { donor, session },
            false => {
                let failure = LinkFailure::Refused("it has failed".to_owned());
                Event::Failed { donor, session, failure }
            }
        };
        self.step(now, event, asked);
    }

    pub(super) fn reached(&mut self, now: Time, donor: DonorId, session: u64, asked: &mut Vec<Asked>) {
        self.step(now, Event::Reached { donor, session }, asked);
    }

    pub(super) fn woken(&mut self, now: Time, asked: &mut Vec<Asked>) {
        self.wake = None;
        self.step(now, Event::Wake, asked);
    }

    /// A donor's answer, if the link still is the one that it was sent over.
    pub(super) fn answered(
        &mut self,
        now: Time,
        (donor, session): (DonorId, u64),
        (key, op, bytes): (Key, PartOp, u32),
        asked: &mut Vec<Asked>,
    ) {
        if !self.has_session(donor, session) {
            return;
        }
        // Nothing is a hole, nothing was written lately, nothing is wrong.
        let hole = !matches!(op, PartOp::Status | PartOp::Presence);
        let lists = matches!(op, PartOp::Status | PartOp::Presence | PartOp::Survey | PartOp::Verify);
        let runs = if lists { vec![StatusRun { len: bytes, hole }] } else { Vec::new() };
        self.step(now, Event::Answered { part: key, answer: Ok(runs) }, asked);
    }

    /// Whether the link to a donor still is this one.
    pub(super) fn has_session(&self, donor: DonorId, session: u64) -> bool {
        self.sessions.get(&donor) == Some(&session)
    }

    fn submit(&mut self, now: Time, asked: &mut Vec<Asked>) {
        while self.volume.has_room()
            && let Some((tag, offset)) = self.waiting.pop_front()
        {
            let request = Request { op: Op::Read, offset, len: self.block };
            self.work(now, Event::Submit { tag, request }, asked);
        }
    }

    fn step(&mut self, now: Time, event: Event, asked: &mut Vec<Asked>) {
        self.work(now, event, asked);
        self.submit(now, asked);
    }

    /// One event, and those that follow from it at once.
    fn work(&mut self, now: Time, event: Event, asked: &mut Vec<Asked>) {
        let mut events = VecDeque::from([event]);
        let mut effects = Vec::new();
        while let Some(event) = events.pop_front() {
            self.volume.step(now, event, &mut effects);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Open { donor, session } => {
                        self.sessions.insert(donor, session);
                        asked.push(Asked::Open { donor, session, probe: false });
                    }
                    Effect::Probe { donor, session } => {
                        asked.push(Asked::Open { donor, session, probe: true });
                    }
                    Effect::Close { donor, .. } => drop(self.sessions.remove(&donor)),
                    Effect::Send { donor, part, op, address, scatter, .. } => {
                        let session = self.sessions.get(&donor).copied().unwrap_or_default();
                        let bytes = scatter.len;
                        asked.push(Asked::Part { donor, session, key: part, op, address, bytes });
                    }
                    Effect::Complete { tag, result, .. } => {
                        asked.push(Asked::Done { tag, succeeded: result.is_ok() });
                    }
                    Effect::WakeAt(at) => asked.push(Asked::WakeAt(at)),
                    Effect::Verify { job, .. } | Effect::Compare { job, .. } => {
                        events.push_back(Event::Verified { job, right: true });
                    }
                    Effect::Fetch { request, .. } => {
                        events.push_back(Event::Fetched { request, result: Err(FetchError::Away) });
                    }
                    Effect::Amend(amend) => events.push_back(Event::Amended(Some(self.amend(&amend)))),
                    Effect::Abandon { .. }
                    | Effect::Combine(_)
                    | Effect::Copy { .. }
                    | Effect::Zero { .. }
                    | Effect::Learn { .. }
                    | Effect::Forget { .. }
                    | Effect::Offer { .. }
                    | Effect::Finished => {}
                }
            }
        }
    }

    /// The coordinator's answer: what was filled is held, and who missed a write holds nothing, as far as k
    /// others do.
    fn amend(&mut self, amend: &Amend) -> VolumeMap {
        let map = &mut self.map;
        let is_current = amend.epoch == map.epoch;
        for filled in amend.filled.iter().filter(|_| is_current) {
            let slot = &mut map.groups[filled.group as usize].slots[filled.slot as usize];
            if slot.filling == Some(filled.placement) {
                *slot = Slot::held(filled.placement);
                self.rebuilt_bytes += cheetah_core::limits::EXTENT_BYTES;
            }
        }
        let is_excluded = |donor: DonorId| amend.exclude.iter().any(|(other, _)| *other == donor);
        for group in &mut map.groups {
            let goes = |slot: &Slot| slot.held.is_some_and(|held| is_excluded(held.donor));
            let stays = group.slots.iter().filter(|slot| slot.held.is_some() && !goes(slot)).count();
            if stays >= map.redundancy.data as usize {
                group.slots.iter_mut().filter(|slot| goes(slot)).for_each(|slot| slot.held = None);
            }
        }
        map.epoch += 1;
        map.clone()
    }

    /// Slots that are still to be filled.
    pub(super) fn filling(&self) -> usize {
        let slots = self.map.groups.iter().flat_map(|group| &group.slots);
        slots.filter(|slot| slot.filling.is_some()).count()
    }
}

/// A node by the donor that it is.
pub(super) fn node_of(donor: DonorId) -> u32 {
    u32::try_from(index(donor)).unwrap_or(u32::MAX)
}
