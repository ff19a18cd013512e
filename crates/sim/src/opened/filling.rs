//! Who fills the volume: what `cheetah open` starts does this with threads.
//!
//! Owns its lives, what it reads at the source and writes, and whom it tells. Never: what comes next
//! (`core::filling`). Key rule: nothing is read at the source that donors hold.

use super::{Client, Ev, FILLER, Job, WORKERS, World};
use crate::bugs::Bug;
use crate::bytes::{BLOCK, sectors};
use cheetah_core::filling::{Answer, Fetched, Order, PIECE_BYTES, Work};
use cheetah_core::limits::{BLOCK_BYTES, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{Backing, Filler};
use cheetah_core::volume::{Event, FetchError, Key, Op, Request, StatusRun, Tag, VolumeError};
use std::collections::BTreeSet;

impl World {
    /// A new life: its lease shuts the one before out.
    pub(super) fn begin_filling(&mut self) {
        let life = self.clients[FILLER].life + 1;
        self.say(|| format!("filler {life} begins"));
        self.clients[FILLER] = Client::new(self.map.clone(), false, life);
        // Whatever failed before, donors say what came of it.
        self.doubted.clear();
        (self.order, self.jobs, self.surveyed, self.fills) =
            (Order::new(self.map.size, self.sharing), Vec::new(), false, true);
        self.step(FILLER, Event::Start);
        self.survey();
        self.expect_some();
    }

    /// Metadata, and the rest of files.
    fn expect_some(&mut self) {
        for _ in 0..self.rng.below(4) {
            let from = self.rng.below(self.map.size);
            let range = from..(from + self.rng.skewed(512, 8 * PIECE_BYTES)).min(self.map.size);
            self.order.expect(std::iter::once(range), self.rng.percent(50));
        }
    }

    /// Asks donors what is here.
    pub(super) fn survey(&mut self) {
        self.surveys_again = false;
        let mut at = 0;
        while at < self.map.size {
            let end = (at + 16 * PIECE_BYTES).min(self.map.size);
            self.ask_presence(Work::Check(at..end));
            at = end;
        }
    }

    pub(super) fn ask_presence(&mut self, work: Work) {
        let (Work::Check(range) | Work::Fetch(range)) = work.clone() else { return };
        self.jobs.push(Job { work, good: true, ..Job::default() });
        self.submit_for(self.jobs.len() - 1, Op::Presence, range);
    }

    /// Sends a request of a job, which waits for it.
    fn submit_for(&mut self, job: usize, op: Op, range: std::ops::Range<u64>) {
        match self.submit(FILLER, op, range.clone()) {
            Some(tag) if self.clients[FILLER].asked.contains_key(&tag) => {
                self.jobs[job].open.insert(tag);
            }
            Some(_) => self.fail(format!("{op:?} of {range:?} was answered before its job waits for it")),
            None => self.jobs[job].good = false,
        }
    }

    /// Of some of what a job asked donors can say nothing yet: they are asked of that alone, as `cheetah
    /// open` does. It may be here.
    fn ask_the_rest(&mut self) {
        for job in 0..self.jobs.len() {
            if let Some(rest) = self.jobs[job].unsaid.take() {
                self.stats.count("answers that ended before what was asked");
                self.submit_for(job, Op::Presence, rest);
            }
        }
        self.look_at_jobs();
    }

    pub(super) fn end_filling(&mut self) {
        self.say(|| "the filler is killed".into());
        self.stats.count("fault: a filler was killed");
        let life = self.clients[FILLER].life + 1;
        self.clients[FILLER] = Client::new(self.map.clone(), false, life);
        (self.fills, self.surveyed) = (false, false);
        self.jobs.clear();
        for (reader, request) in std::mem::take(&mut self.asks).into_values() {
            let delay = self.delay();
            self.after(delay, Ev::Told { reader, request, result: Err(FetchError::Away) });
        }
        self.set_filler(None);
        let gap = self.rng.skewed(100 * MILLISECOND_NS, 40 * SECOND_NS);
        self.after(gap, Ev::Begin);
    }

    pub(super) fn set_filler(&mut self, filler: Option<Filler>) {
        self.map.backing = Some(Backing { filler, complete: false, layers: self.map.layers() });
        self.tell_map();
    }

    pub(super) fn tell_map(&mut self) {
        self.map.epoch += 1;
        for client in 0..self.clients.len() {
            let (life, map) = (self.clients[client].life, Box::new(self.map.clone()));
            let delay = self.rng.skewed(20_000, SECOND_NS);
            self.after(delay, Ev::Map { client, life, map });
        }
    }

    pub(super) fn is_asked(&mut self, reader: usize, request: Key, range: std::ops::Range<u64>) {
        if !self.fills || !self.surveyed {
            let delay = self.delay();
            return self.after(delay, Ev::Told { reader, request, result: Err(FetchError::Away) });
        }
        self.next += 1;
        let asker = self.next;
        self.asks.insert(asker, (reader, request));
        if let Some(answer) = self.order.ask(self.now, asker, range) {
            self.tell(vec![answer]);
        }
        self.pump();
    }

    pub(super) fn tell(&mut self, answers: Vec<Answer>) {
        self.order.check_invariants();
        for answer in answers {
            let Some((reader, request)) = self.asks.remove(&answer.to) else {
                return self.fail(format!("{answer:?} is told to nobody"));
            };
            let delay = self.delay();
            self.after(delay, Ev::Told { reader, request, result: answer.result });
        }
    }

    /// Gives its workers what there is to do.
    pub(super) fn pump(&mut self) {
        if self.jobs.iter().any(|job| job.unsaid.is_some()) {
            self.ask_the_rest();
        }
        while self.fills && self.surveyed && self.jobs.len() < WORKERS {
            let Some(work) = self.order.next(self.now, false) else { break };
            match work {
                Work::Check(_) => self.ask_presence(work),
                Work::Fetch(range) => {
                    self.read_source(range.clone());
                    if self.bug == Some(Bug::DroppedWhileWritten) && self.rng.percent(20) {
                        let answers = self.order.fetched(self.now, range, Err(()));
                        self.tell(answers);
                    }
                }
                Work::Drop(ranges) => ranges.into_iter().for_each(|range| self.drop_range(range)),
            }
        }
        if let Some(at) = self.order.wake_at(self.now) {
            let wait = at - self.now;
            self.after(wait, Ev::Pump);
        }
    }

    pub(super) fn read_source(&mut self, range: std::ops::Range<u64>) {
        let held = (range.start..range.end).step_by(PIECE_BYTES as usize);
        let pieces = held.map(|piece| piece..(piece + PIECE_BYTES).min(range.end));
        if let Some(piece) =
            pieces.into_iter().find(|piece| !self.doubted.contains(&piece.start) && self.donors_hold(piece))
        {
            self.fail(format!("{piece:?} is read at the source, and donors hold it"));
        }
        self.stats.count("runs read at a source");
        let life = self.clients[FILLER].life;
        let work = Work::Fetch(range.clone());
        self.jobs.push(Job { work, good: true, ..Job::default() });
        let delay = self.rng.skewed(100_000, 500 * MILLISECOND_NS);
        self.after(delay, Ev::Read { life, range });
    }

    /// Whether all of it is where the map says.
    pub(super) fn donors_hold(&self, range: &std::ops::Range<u64>) -> bool {
        (range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES))
            .all(|block| self.known_byte(block).is_some())
    }

    /// The first byte of a block, if somebody has written it.
    pub(super) fn known_byte(&self, block: u64) -> Option<u8> {
        let at = block * BLOCK_BYTES;
        let (data, unit) = (u64::from(self.map.redundancy.data), u64::from(self.map.unit));
        let (slot, local) = match data {
            1 => (0, at),
            _ => (at / unit % data, at / unit / data * unit + at % unit),
        };
        let held = self.map.groups[0].slots[usize::try_from(slot).expect("small")].held?;
        let extent = self.extents.get(&held)?;
        let first = sectors(local);
        let is_known = extent.known.contains(&(first / BLOCK));
        is_known.then(|| extent.bytes.get(&first).copied().unwrap_or(0))
    }

    pub(super) fn source_answers(&mut self, life: u64, range: std::ops::Range<u64>) {
        let is_it = |job: &Job| job.work == Work::Fetch(range.clone());
        let Some(at) = self.jobs.iter().position(is_it).filter(|_| self.clients[FILLER].life == life) else {
            return;
        };
        if self.source_fails {
            self.jobs[at].good = false;
            return self.look_at_jobs();
        }
        let mut parts = vec![range.clone()];
        for bad in self.bad.clone().iter().filter(|bad| bad.offset < range.end && range.start < bad.end()) {
            parts = vec![range.start..bad.offset, bad.end().min(range.end)..range.end];
            self.jobs[at].bad.push(*bad);
        }
        if self.sharing.is_some() {
            let pieces = |part: std::ops::Range<u64>| {
                let first = part.start / PIECE_BYTES;
                (first..part.end.div_ceil(PIECE_BYTES)).map(move |piece| {
                    part.start.max(piece * PIECE_BYTES)..part.end.min((piece + 1) * PIECE_BYTES)
                })
            };
            parts = parts.into_iter().filter(|part| part.start < part.end).flat_map(pieces).collect();
        }
        for part in parts.into_iter().filter(|part| part.start < part.end) {
            let zeros = self.source_bytes(&part).iter().all(|byte| *byte == 0);
            if zeros {
                self.jobs[at].zeros.push(part.clone());
            }
            let op = if zeros { Op::Zero { keep: false } } else { Op::Write };
            self.submit_for(at, op, part);
        }
        self.look_at_jobs();
    }

    /// Has donors forget it. A block that ends with the volume in its middle stays.
    fn drop_range(&mut self, range: std::ops::Range<u64>) {
        self.stats.count("ranges dropped for others");
        let end = if range.end == self.map.size { range.end / BLOCK_BYTES * BLOCK_BYTES } else { range.end };
        let (at, work) = (self.jobs.len(), Work::Drop(vec![range.clone()]));
        self.jobs.push(Job { work, good: true, ..Job::default() });
        if range.start < end {
            self.submit_for(at, Op::Trim, range.start..end);
        }
        self.look_at_jobs();
    }

    pub(super) fn filler_completed(
        &mut self,
        tag: Tag,
        request: Request,
        result: Result<(), VolumeError>,
        status: &[StatusRun],
    ) {
        let Some(job) = self.jobs.iter_mut().find(|job| job.open.contains(&tag)) else { return };
        job.open.remove(&tag);
        job.good &= result.is_ok();
        let mut at = request.offset;
        let end = at + u64::from(request.len);
        for run in status {
            let next = (at + u64::from(run.len)).min(end);
            if run.hole {
                job.absent.push(at..next);
            }
            at = next;
        }
        if request.op == Op::Presence && result.is_ok() && at < end {
            // Nothing is known of what the answer does not reach. One that says nothing at all is a failure.
            job.good &= at > request.offset;
            job.unsaid = Some(at..end).filter(|_| job.good);
        }
        self.look_at_jobs();
    }

    /// Ends jobs of which nothing is open. One whose source has not answered yet stays.
    pub(super) fn look_at_jobs(&mut self) {
        let now = self.clients[FILLER].life;
        let reading: BTreeSet<u64> = (self.events.values())
            .filter_map(|event| match event {
                Ev::Read { life, range } if *life == now => Some(range.start),
                _ => None,
            })
            .collect();
        let is_over = |job: &Job| {
            let waits = matches!(&job.work, Work::Fetch(range) if reading.contains(&range.start));
            job.open.is_empty() && job.unsaid.is_none() && !waits
        };
        let over: Vec<Job> = self.jobs.extract_if(.., |job| is_over(job)).collect();
        for Job { work, bad, good, absent, zeros, .. } in over {
            let known_bad = self.order.bad().to_vec();
            let answers = match work {
                Work::Fetch(range) => {
                    for piece in (range.start..range.end).step_by(PIECE_BYTES as usize) {
                        match good {
                            true => self.doubted.remove(&piece),
                            false => self.doubted.insert(piece),
                        };
                    }
                    self.order.fetched(
                        self.now,
                        range,
                        match good {
                            true => Ok(Fetched { bad, zeros }),
                            false => Err(()),
                        },
                    )
                }
                Work::Drop(ranges) => {
                    self.order.dropped(self.now, ranges.into_iter().map(|range| (range, good)).collect());
                    Vec::new()
                }
                Work::Check(range) if !self.surveyed => {
                    if good {
                        self.learn(&range, &absent);
                    } else if !std::mem::replace(&mut self.surveys_again, true) {
                        self.after(SECOND_NS, Ev::Survey { life: now });
                    }
                    Vec::new()
                }
                Work::Check(range) => {
                    let is_bad = |absent: &std::ops::Range<u64>| {
                        known_bad.iter().any(|bad| bad.offset <= absent.start && absent.end <= bad.end())
                    };
                    let here = absent.iter().all(is_bad);
                    self.order.checked(range, if good { Ok(here) } else { Err(()) })
                }
            };
            self.tell(answers);
        }
        if self.fills && !self.surveyed && self.jobs.is_empty() && !self.surveys_again {
            self.surveyed = true;
            let filler = Filler { address: "127.0.0.1:2".into(), export: self.next.to_string() };
            self.set_filler(Some(filler));
            self.calm_since = self.now + SECOND_NS;
        }
        self.after(0, Ev::Pump);
    }

    pub(super) fn learn(&mut self, range: &std::ops::Range<u64>, absent: &[std::ops::Range<u64>]) {
        let mut at = range.start;
        while at < range.end {
            let end = (at + PIECE_BYTES).min(range.end);
            let misses = absent.iter().any(|absent| absent.start < end && at < absent.end);
            self.order.learn(at..end, !misses);
            if misses && !absent.iter().any(|absent| absent.start <= at && end <= absent.end) {
                self.order.doubt(&(at..end));
            }
            at = end;
        }
    }
}
