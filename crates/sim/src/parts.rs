//! What a client sends over its connections to donors and takes from them, as `rim::volume` does: parts
//! become requests, writes merged as chance wants it, and answers land where their part said.
//!
//! Owns: the client's end of data connections between opening and closing. Never: links (`client`), the
//! protocol (`nbd`), or what memory may be touched when (`memory`). A socket that is full takes a part of
//! what leaves, and the rest later.

use crate::bugs::Bug;
use crate::bytes::{BLOCK, SECTOR, sum};
use crate::client::Slot;
use crate::network::{Awaited, ToDonor};
use crate::verdict::runs_of;
use crate::wire::{Body, Taking, answer_in_bytes, cut, wired_len};
use crate::world::{ClientEv, Ev, World, say};
use cheetah_core::limits::{BLOCK_BYTES, MILLISECOND_NS};
use cheetah_core::map::DonorId;
use cheetah_core::volume::{Event, Fragment, Key, Mem, PartError, PartOp, Request};
use cheetah_nbd::StateFlags;
use cheetah_nbd::client::{Answer, Take};
use cheetah_terms::client::answered;

impl World {
    pub(crate) fn send_part(
        &mut self,
        c: usize,
        donor: DonorId,
        part: Key,
        address: u64,
        awaited: Awaited,
    ) -> Result<(), String> {
        let Awaited { op, mem, scatter, fragment, .. } = awaited;
        say!(self, "client {c} -> {donor} at {address}: {op:?} {fragment:?} {mem:?} {scatter:?}");
        let conns =
            self.clients[c].conns_of(donor).ok_or("a part was to be sent over a link that is not up")?;
        let Some(conn) = self.rng.pick(&conns) else { return Ok(()) };
        let client = &mut self.clients[c];
        let mut data = client.memory.begin_part(part.to_u64(), awaited)?;
        client.sent.insert(part.to_u64(), conn);
        if self.skips_parity(c, &awaited) {
            self.after(0, Ev::Client(c, ClientEv::AckEarly(part)));
            return Ok(());
        }
        let sums = data.chunks(BLOCK).map(sum).collect();
        self.flip_on_the_way(c, donor, fragment, Some((address, part)), &mut data);
        if let Some(end) = self.network.conns.get_mut(&conn).and_then(|conn| conn.client_end.as_mut()) {
            end.queue(address, Body { part, awaited, data, sums });
        }
        self.clients[c].to_flush.insert(conn);
        if self.bug == Some(Bug::AckEarly) && op.writes() {
            self.after(0, Ev::Client(c, ClientEv::AckEarly(part)));
        }
        Ok(())
    }

    /// For a planted bug: it reads what a write needs that begins or ends inside of a block.
    fn completes_a_block(&self, c: usize, part: &Awaited) -> bool {
        let ends = |request: &Request| [request.offset, request.offset + u64::from(request.len)];
        let writes = self.clients[c].slots.values().filter(|slot| slot.version.is_some());
        let cut = writes.flat_map(|slot| ends(&slot.request)).filter(|at| !at.is_multiple_of(BLOCK_BYTES));
        let touched = |at: u64| self.touches(c, part, at, 1);
        matches!(part.mem, Mem::Scratch(_)) && cut.into_iter().any(touched)
    }

    /// Likewise: what a slot is to be filled with, and no request is about.
    fn is_for_a_move(&self, c: usize, part: &Awaited) -> bool {
        let Some(map) = self.clients[c].machine.as_ref().map(|machine| machine.map()) else { return false };
        let group = map.groups.get(part.fragment.group as usize);
        let fills = group.is_some_and(|group| group.slots.iter().any(|slot| slot.filling.is_some()));
        let asked = |slot: &Slot| self.touches(c, part, slot.request.offset, slot.request.len.into());
        fills && matches!(part.mem, Mem::Scratch(_)) && !self.clients[c].slots.values().any(asked)
    }

    /// Whether these bytes of its volume are in what a part is of.
    fn touches(&self, c: usize, part: &Awaited, offset: u64, len: u64) -> bool {
        let Some(map) = self.clients[c].machine.as_ref().map(|machine| machine.map()) else { return false };
        let Fragment { group, slot, local } = part.fragment;
        let (from, to) = (u64::from(local), u64::from(local) + u64::from(part.scatter.len));
        let len = len.min(map.size.saturating_sub(offset));
        runs_of(map, offset, len).into_iter().any(|run| {
            let column = map.redundancy.data == 1 || run.slot == slot as usize;
            column && run.group == group as usize && run.from < to && from < run.from + run.len
        })
    }

    fn skips_parity(&self, c: usize, part: &Awaited) -> bool {
        let Some(map) = self.clients[c].machine.as_ref().map(|machine| machine.map()) else { return false };
        let skips = match self.bug {
            Some(Bug::ParityNotUpdated) => true,
            Some(Bug::OneCopy) => map.write_back,
            _ => false,
        };
        skips && part.op.writes() && part.fragment.slot >= map.redundancy.data
    }

    /// Behind a batch of effects.
    pub(crate) fn flush_parts(&mut self, c: usize) {
        for conn in std::mem::take(&mut self.clients[c].to_flush) {
            self.flush_conn(conn);
        }
    }

    /// There is room again.
    pub(crate) fn drained(&mut self, id: u64) {
        let Some(conn) = self.network.conns.get_mut(&id).filter(|conn| conn.client_open) else { return };
        let until = self.clients[conn.client].paused_until;
        if until > self.now {
            return self.at(until, Ev::Drained(id));
        }
        if let Some(end) = &mut conn.client_end {
            end.is_full = false;
            self.flush_conn(id);
        }
    }

    fn flush_conn(&mut self, id: u64) {
        // The policy asks for some number between none and 1 MiB (`core::volume::merge`): any must be right.
        let merges_bytes_max = match self.rng.percent(50) {
            true => wired_len(self.rng.skewed(16, 2048) * SECTOR),
            false => 0,
        };
        let swaps = self.bug == Some(Bug::MergedOutOfOrder);
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        let Some(end) = conn.client_end.as_mut().filter(|end| !end.is_full) else { return };
        end.transmission.make_requests(merges_bytes_max);
        let skip = end.transmission.front_sent();
        let (mut bytes, mut merged) = (Vec::new(), 0);
        let mut payload_at = 0;
        for part in end.transmission.unsent() {
            let (head, body) = (part.head, &part.request.body);
            if head.is_empty() {
                merged += 1;
                if swaps {
                    bytes.splice(payload_at..payload_at, body.data.iter().copied());
                    continue;
                }
            } else {
                bytes.extend_from_slice(head);
                payload_at = bytes.len();
            }
            if part.request.payload_bytes() > 0 {
                bytes.extend_from_slice(&body.data);
            }
        }
        bytes.drain(..skip);
        if bytes.is_empty() {
            return;
        }
        let taken = if self.rng.percent(10) { self.rng.index(bytes.len()) } else { bytes.len() };
        end.transmission.sent(taken);
        end.is_full = taken < bytes.len();
        if end.is_full {
            bytes.truncate(taken);
            let later = self.rng.skewed(MILLISECOND_NS / 8, 20 * MILLISECOND_NS);
            self.after(later, Ev::Drained(id));
        }
        if merged > 0 {
            self.count("writes that left in one request with others");
        }
        let cuts = cut(&mut self.rng, bytes);
        let last = cuts.len() - 1;
        for (nth, bytes) in cuts.into_iter().enumerate() {
            self.send_to_donor(id, ToDonor::Bytes(bytes));
            if nth < last && self.rng.percent(20) {
                let by = self.rng.skewed(MILLISECOND_NS, 200 * MILLISECOND_NS);
                self.slow_down(id, by);
            }
        }
    }

    /// Bytes of answers.
    pub(crate) fn answers_arrive(&mut self, c: usize, id: u64, bytes: &[u8]) {
        let goes_direct = self.rng.percent(50);
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        let donor = conn.link;
        let Some(end) = &mut conn.client_end else { return };
        let (mut taking, mut bytes) = (Taking::default(), bytes);
        if let Some(incoming) = end.transmission.incoming().filter(|_| goes_direct) {
            let direct = bytes.len().min((incoming.end - incoming.at) as usize);
            taking.data(incoming.body, incoming.at, &bytes[..direct]);
            end.transmission.landed(u32::try_from(direct).expect("inside of a part"));
            bytes = &bytes[direct..];
        }
        end.input.extend_from_slice(bytes);
        match end.transmission.received(&end.input, &mut taking) {
            Ok(used) => drop(end.input.drain(..used)),
            Err(violation) => return self.fail(format!("client {c} and {donor}: {violation}")),
        }
        for (part, awaited, at, bytes) in taking.data {
            if let Err(what) = self.data_lands(c, donor, part, awaited, at, bytes) {
                return self.fail(format!("client {c}: {what}"));
            }
        }
        let mut events = Vec::new();
        for answer in taking.answers {
            if let Err(what) = self.part_answered(c, answer, &mut events) {
                return self.fail(format!("client {c}: {what}"));
            }
        }
        events.into_iter().for_each(|event| self.step_client(c, event));
    }

    fn data_lands(
        &mut self,
        c: usize,
        donor: DonorId,
        part: Key,
        awaited: Awaited,
        at: usize,
        mut bytes: Vec<u8>,
    ) -> Result<(), String> {
        let mut fragment = awaited.fragment;
        fragment.local += u32::try_from(at as u64 * SECTOR).expect("inside of an extent");
        self.flip_on_the_way(c, donor, fragment, None, &mut bytes);
        self.clients[c].memory.land(part.to_u64(), &awaited, at, &bytes)
    }

    fn part_answered(
        &mut self,
        c: usize,
        mut answer: Answer<Body>,
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        let Body { part, awaited, .. } = answer.body;
        if answer.abandoned {
            return Ok(());
        }
        let unchecked = match self.bug {
            Some(Bug::ChecksumIgnored) => true,
            Some(Bug::PartialSigned) => self.completes_a_block(c, &awaited),
            Some(Bug::MoveLosesContext) => self.is_for_a_move(c, &awaited),
            _ => false,
        };
        let client = &mut self.clients[c];
        client.memory.end_part(part.to_u64());
        client.sent.remove(&part.to_u64());
        let unheard = match self.bug {
            Some(Bug::TornForWhole) => Some(PartOp::Survey),
            Some(Bug::VerifyIgnored) => Some(PartOp::Verify),
            _ => None,
        };
        if unheard == Some(awaited.op) {
            answer.ledger = None;
            answer.status.iter_mut().for_each(|run| run.flags = StateFlags::EMPTY);
        }
        if self.bug == Some(Bug::WholeRowGivenUp) {
            let entries = answer.ledger.iter_mut().flat_map(|(_, entries)| entries);
            entries.for_each(|entry| entry.landed = false);
        }
        let wrong = match (answer.error, awaited.op) {
            (None, PartOp::Read) if !unchecked => {
                let ignored = self.bug == Some(Bug::ContextIgnored);
                client.memory.wrong_blocks(&awaited, if ignored { &[] } else { &answer.sums })?
            }
            (None, PartOp::Write | PartOp::Sparse) if self.bug != Some(Bug::WriteReplyIgnored) => {
                client.memory.wrongly_taken(&awaited, &answer.sums)?
            }
            _ => 0,
        };
        if wrong > 0 {
            self.count("corrupt blocks found");
        }
        let wrong = (wrong > 0).then_some(PartError::Corrupt { blocks: wrong, forged: false });
        answered(awaited.op, answer_in_bytes(answer), wrong, events);
        if let Some(Event::Answered { answer: Err(error), .. }) = events.last() {
            say!(self, "client {c}: {awaited:?} fails: {error:?}");
        }
        Ok(())
    }
}
