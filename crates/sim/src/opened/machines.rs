//! The machines of readers and of who fills, and the donors that they talk to.
//!
//! Owns what an effect does, what a donor answers, and the judgement of what a reader got. Never: what
//! is read at the source (`filling`), or what goes wrong (`faults`).

use super::{Ev, FILLER, Sent, World, source_byte};
use crate::bugs::Bug;
use crate::bytes::{BLOCK, SECTOR, sectors};
use cheetah_core::filling::PIECE_BYTES;
use cheetah_core::layout::{Scatter, layer_of};
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES, REQUEST_DEADLINE_NS, SECOND_NS};
use cheetah_core::map::Placement;
use cheetah_core::volume::{At, Effect, Event, Op, PartError, PartOp, Request, StatusRun, Tag, VolumeError};
use std::collections::VecDeque;

impl World {
    pub(super) fn step(&mut self, c: usize, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            let client = &mut self.clients[c];
            client.machine.step(self.now, event, &mut effects);
            client.machine.check_invariants();
            for effect in effects {
                self.carry_out(c, effect, &mut events);
            }
        }
    }

    pub(super) fn carry_out(&mut self, c: usize, effect: Effect, events: &mut VecDeque<Event>) {
        let client = &mut self.clients[c];
        let life = client.life;
        match effect {
            Effect::Open { donor, session } => events.push_back(Event::Opened { donor, session }),
            Effect::Send { donor, part, op, address, mem, scatter, .. } => {
                let writes = matches!(op, PartOp::Write | PartOp::Sparse);
                let bytes = if writes { client.bytes(mem, scatter) } else { Vec::new() };
                let sent =
                    Sent { client: c, life, part, op, address, mem, scatter, donor, bytes, is_late: false };
                let delay = self.delay();
                self.after(delay, Ev::Arrive(sent));
            }
            Effect::Abandon { part, .. } => {
                client.abandoned.insert(part.to_u64());
            }
            Effect::Copy { from, to, len } => {
                let bytes = client.bytes(from.mem, Scatter::whole(from.offset, len));
                client.land(to.mem, Scatter::whole(to.offset, len), &bytes);
            }
            Effect::Zero { at: At { mem, offset }, len } => {
                client.land(mem, Scatter::whole(offset, len), &vec![0; sectors(len.into())]);
            }
            Effect::Verify { job, .. } | Effect::Compare { job, .. } => {
                events.push_back(Event::Verified { job, right: true });
            }
            Effect::Fetch { request, offset, len } => {
                let range = offset..offset + u64::from(len);
                let delay = self.delay();
                self.after(delay, Ev::Ask { reader: c, request, range });
            }
            Effect::Amend(amend) => {
                for filled in &amend.filled {
                    self.moved(filled.placement);
                }
                events.push_back(Event::Amended(Some(self.map.clone())));
            }
            Effect::WakeAt(at) if client.wake_at.is_none_or(|before| at < before) => {
                client.wake_at = Some(at);
                let wait = at.saturating_sub(self.now);
                self.after(wait, Ev::Wake { client: c, life, at });
            }
            Effect::Complete { tag, result, status } => self.completed(c, tag, result, &status),
            _ => {}
        }
    }

    /// A part reaches its donor, unless who sent it has been shut out.
    pub(super) fn arrives(&mut self, sent: Sent) {
        let is_shut_out = self.clients[sent.client].life != sent.life;
        if is_shut_out != sent.is_late {
            return;
        }
        if self.bug == Some(Bug::LateFill) && sent.client == FILLER && sent.op.writes() && !sent.is_late {
            let late = self.rng.range(SECOND_NS, 40 * SECOND_NS);
            self.after(late, Ev::Arrive(Sent { is_late: true, ..sent.clone() }));
        }
        let (layer, address) = layer_of(sent.address);
        let extent = u32::try_from(address / EXTENT_BYTES).expect("a few extents");
        let placement = Placement { donor: sent.donor, extent };
        let holds = self.map.groups[0].placements().any(|place| place == placement)
            || self.retired.contains(&placement);
        let local = u64::from(layer) * EXTENT_BYTES + address % EXTENT_BYTES;
        let (at, count) = (sectors(local), sectors(sent.scatter.len.into()));
        let blocks = at / BLOCK..(at + count).div_ceil(BLOCK);
        let memory = self.extents.entry(placement).or_default();
        let (mut answer, mut bytes) = (Ok(Vec::new()), Vec::new());
        let absent = blocks.clone().any(|block| !memory.known.contains(&block));
        match sent.op {
            _ if !holds => answer = Err(PartError::Denied),
            PartOp::Read if absent && self.bug != Some(Bug::AbsentAsZero) => answer = Err(PartError::Absent),
            PartOp::Read => {
                bytes =
                    (at..at + count).map(|sector| memory.bytes.get(&sector).copied().unwrap_or(0)).collect();
            }
            PartOp::Presence => {
                let run = |block| StatusRun { len: BLOCK_BYTES as u32, hole: !memory.known.contains(&block) };
                answer = Ok(blocks.map(run).collect());
            }
            PartOp::Trim if self.sharing.is_some() => blocks.for_each(|block| {
                if self.bug != Some(Bug::DroppedAsZero) {
                    memory.known.remove(&block);
                }
                memory.data.remove(&block);
                for sector in block * BLOCK..(block + 1) * BLOCK {
                    memory.bytes.remove(&sector);
                }
            }),
            op if op.writes() => {
                let zero = vec![0; count];
                let from = if sent.bytes.is_empty() { &zero } else { &sent.bytes };
                memory.bytes.extend((at..).zip(from.iter().copied()));
                for block in blocks {
                    let is_zero = (block * BLOCK..(block + 1) * BLOCK)
                        .all(|sector| memory.bytes.get(&sector).copied().unwrap_or(0) == 0);
                    memory.known.insert(block);
                    if is_zero {
                        memory.data.remove(&block)
                    } else {
                        memory.data.insert(block)
                    };
                }
                let (holds, per_piece) = (memory.data.len(), sectors(PIECE_BYTES) / BLOCK);
                // A block that ends with the volume in its middle is not dropped.
                if self.sharing.is_some_and(|sharing| holds > sharing.room as usize * per_piece + 1) {
                    self.fail(format!("an extent holds {holds} blocks, which is more than it has room for"));
                }
            }
            _ => {}
        }
        let delay = self.delay();
        self.after(delay, Ev::Answer { sent, answer, bytes });
    }

    pub(super) fn answered(&mut self, sent: &Sent, answer: Result<Vec<StatusRun>, PartError>, bytes: &[u8]) {
        let client = &mut self.clients[sent.client];
        if client.life != sent.life || client.abandoned.remove(&sent.part.to_u64()) {
            return;
        }
        if sent.op == PartOp::Read && answer.is_ok() {
            client.land(sent.mem, sent.scatter, bytes);
        }
        self.step(sent.client, Event::Answered { part: sent.part, answer });
    }

    pub(super) fn submit(&mut self, c: usize, op: Op, range: std::ops::Range<u64>) -> Option<Tag> {
        if !self.clients[c].machine.has_room() {
            return None;
        }
        self.tags += 1;
        let tag = self.tags;
        let len = u32::try_from(range.end - range.start).expect("a request");
        let request = Request { op, offset: range.start, len };
        let payload = match op {
            Op::Write => Some(self.source_bytes(&range)),
            Op::Read => Some(vec![0xee; sectors(len.into())]),
            _ => None,
        };
        let client = &mut self.clients[c];
        client.payloads.extend(payload.map(|payload| (tag, payload)));
        client.asked.insert(tag, (request, self.now));
        self.stats.requests += 1;
        self.step(c, Event::Submit { tag, request });
        Some(tag)
    }

    pub(super) fn completed(
        &mut self,
        c: usize,
        tag: Tag,
        result: Result<(), VolumeError>,
        status: &[StatusRun],
    ) {
        let Some((request, since)) = self.clients[c].asked.remove(&tag) else {
            return self.fail(format!("request {tag} was completed twice"));
        };
        let payload = self.clients[c].payloads.remove(&tag).unwrap_or_default();
        let range = request.offset..request.offset + u64::from(request.len);
        self.say(|| format!("client {c} {:?} {range:?}: {result:?}", request.op));
        if self.now > since + REQUEST_DEADLINE_NS {
            self.fail(format!("{request:?} was answered after its deadline"));
        }
        if c == FILLER {
            return self.filler_completed(tag, request, result, status);
        }
        match result {
            Ok(()) => {
                self.stats.count("reads of an opened volume");
                if payload != self.source_bytes(&range) {
                    self.fail(format!("{range:?} is not what the source says"));
                } else if self.meets_bad(&range) {
                    self.fail(format!("{range:?} was given, which the source cannot give"));
                }
            }
            Err(VolumeError::Unreadable) if self.meets_bad(&range) => {}
            // Nobody could bring it all the time, or some of it.
            Err(VolumeError::TimedOut) if since <= self.calm_since || !self.is_calm() => {}
            Err(error) => self.fail(format!("{range:?} failed with {error:?} since {since}")),
        }
    }

    pub(super) fn source_bytes(&self, range: &std::ops::Range<u64>) -> Vec<u8> {
        let seed = self.map.size;
        (range.start / SECTOR..range.end / SECTOR).map(|sector| source_byte(sector, seed)).collect()
    }

    pub(super) fn meets_bad(&self, range: &std::ops::Range<u64>) -> bool {
        self.bad.iter().any(|bad| bad.offset < range.end && range.start < bad.end())
    }

    pub(super) fn is_calm(&self) -> bool {
        self.fills && self.surveyed && !self.source_fails
    }
}
