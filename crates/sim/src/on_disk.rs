//! The driver of a donor whose memory is a cache over a disk: what `rim::disk`, its threads and
//! `rim::donor::waiting` do, in virtual time.
//!
//! Owns: requests that wait for the disk, what is written together, and which blocks are in memory. Never:
//! the order of a write, or which blocks stay (core's `Journal` and `Resident`), or what is on the disk
//! (`disk`). Invariants: an answer to a write leaves when the disk has it; what is in memory of a block
//! that is not held may go at any time, and nobody reads what has gone.

use crate::auths::{fits, known, noted_in};
use crate::bugs::Bug;
use crate::bytes::{BLOCK, Memory};
use crate::disk::{Content, SimDisk};
use crate::disk_words::marked_of;
use crate::donor::DonorHost;
use crate::network::{Conn, Stage, ToClient};
use crate::rng::Rng;
use crate::wire::{DonorEnd, cut};
use crate::world::{DonorEv, Ev, World, say};
use cheetah_core::disk::{Auth, Held, Hold, Journal, Noted, Resident, Write, WriteBack};
use cheetah_core::donor::{Donor, Event, Grant, Ticket};
use cheetah_core::limits::{EXTENT_BLOCKS, MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::{DonorId, DonorSecret, Incarnation};
use cheetah_core::units::Time;
use cheetah_nbd::{Command, Errno, RequestHeader};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// When nobody writes for so long, the log is told that all is done; and now and then while somebody does.
const QUIET_NS: u64 = 200 * MILLISECOND_NS;
const MARK_EVERY_NS: u64 = SECOND_NS;

#[derive(Debug)]
pub(crate) enum DiskEv {
    /// The step with this number is done.
    Done(u64),
    /// A reading is; what it found when it began, or what is there now.
    Brought { bring: u64, blocks: Range<u64>, found: Option<Vec<Option<Content>>> },
    /// What was asked for is looked at; what was known of it when that began.
    Checked { wait: u64, blocks: Range<u64>, before: Vec<(Noted, Auth)> },
    /// Nobody has written since that step.
    Quiet(u64),
    /// It may be time to write something back.
    Look,
    /// What waits for this is told that it is done before it is: a planted bug.
    Early(u64),
}

/// What goes on once the disk has done its part, and for which connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) conn: u64,
    pub(crate) header: RequestHeader,
    ticket: Option<Ticket>,
}

#[derive(Debug)]
enum Job {
    Commit { write: Write<Vec<u8>>, wait: u64 },
    Wipe(Vec<u32>),
}

/// What the disk is at, and what is to follow.
#[derive(Debug)]
pub(crate) enum Step {
    /// Blocks, who waits, and whether they were written.
    Commit(Vec<(Range<u64>, u64, bool)>),
    Wipe(Vec<u32>),
    /// Of volumes with write-back: intents, blocks and whether they were written, and that regions are clean.
    Intend(Vec<u64>),
    Back(Vec<(u64, bool)>),
    Clean,
}

#[derive(Debug)]
pub(crate) struct OnDisk {
    pub(crate) journal: Journal<SimDisk>,
    pub(crate) resident: Resident<u64>,
    pub(crate) write_back: WriteBack<u64>,
    /// Blocks that there is room for in memory.
    pub(crate) room: u64,
    /// When it is looked at next.
    pub(crate) look_at: Option<Time>,
    pub(crate) waiting: BTreeMap<u64, Waiting>,
    waits: u64,
    jobs: VecDeque<Job>,
    doing: Option<Step>,
    steps: u64,
    marked_at: Time,
    /// What was put down last.
    kept: Held,
    /// The next time that something is put down of itself, its power goes in the middle of it.
    pub(crate) doomed: bool,
}

pub(crate) fn blocks_of(at: usize, count: usize) -> Range<u64> {
    (at / BLOCK) as u64..(at + count).div_ceil(BLOCK) as u64
}

impl OnDisk {
    fn of(journal: Journal<SimDisk>, extents: u32, room: u64) -> OnDisk {
        let kept = journal.held().clone();
        OnDisk {
            write_back: WriteBack::new(room, journal.stale_at_start()),
            room,
            look_at: None,
            journal,
            resident: Resident::new(extents, room),
            waiting: BTreeMap::new(),
            waits: 0,
            jobs: VecDeque::new(),
            doing: None,
            steps: 0,
            marked_at: 0,
            kept,
            doomed: false,
        }
    }

    /// What a disk has that was a donor's before.
    pub(crate) fn open(disk: SimDisk, room: u64) -> Result<OnDisk, String> {
        let place = disk.place();
        match Journal::open(disk, place.bytes()) {
            Ok(Some(mut journal)) => {
                journal.disk_mut().step_is_done();
                Ok(OnDisk::of(journal, place.extents, room))
            }
            other => Err(format!("a disk is not what it was: {:?}", other.map(|_| "blank"))),
        }
    }

    pub(crate) fn format(id: DonorId, secret: DonorSecret, extents: u32, room: u64) -> OnDisk {
        let disk = SimDisk::new(extents);
        let place = disk.place();
        let mut journal = Journal::format(disk, id, secret, place).expect("a disk that takes all");
        journal.disk_mut().step_is_done();
        OnDisk::of(journal, place.extents, room)
    }

    /// Its donor ends, and its machine unless it is the `process_only`.
    pub(crate) fn ends(&mut self, process_only: bool, rng: &mut Rng) {
        let disk = self.journal.disk_mut();
        if let Some(Step::Commit(done)) = &self.doing {
            disk.in_flight.extend(done.iter().flat_map(|(blocks, ..)| blocks.clone()));
        }
        if let Some(Step::Back(blocks)) = &self.doing {
            disk.in_flight.extend(blocks.iter().map(|(block, _)| *block));
        }
        match process_only {
            true => disk.lose_donor(rng),
            false => disk.lose_power(rng),
        }
        (self.doing, self.jobs) = (None, VecDeque::new());
    }

    /// Blocks that are not what their checksum says. All of them were being written.
    pub(crate) fn torn(&mut self) -> Result<Vec<u64>, u64> {
        let mut torn = Vec::new();
        let disk = self.journal.disk();
        self.journal.each_known(|block, noted| {
            let found = disk.block(block);
            if found.is_some() && !fits(noted, &self.journal.auth(block), found.as_ref()) {
                torn.push(block);
            }
        });
        if let Some(block) = torn.iter().find(|block| !disk.in_flight.contains(block)) {
            return Err(*block);
        }
        self.journal.disk_mut().in_flight = torn.iter().copied().collect();
        Ok(torn)
    }

    pub(crate) fn waits_no_more(&mut self, wait: u64) {
        self.waiting.remove(&wait);
    }

    pub(crate) fn wait(&mut self, conn: u64, header: RequestHeader, ticket: Option<Ticket>) -> u64 {
        self.waits += 1;
        self.waiting.insert(self.waits, Waiting { conn, header, ticket });
        self.waits
    }

    /// What is there of a block: in memory, or else on the disk, as while a part of it has landed in memory.
    fn content(&self, memory: &Memory, block: u64) -> Content {
        let at = usize::try_from(block).expect("inside of the memory") * BLOCK;
        let is_whole = self.resident.has(block) && memory.verify(at, BLOCK)[0];
        if is_whole || !memory.has(block) {
            return memory.get(at, BLOCK).try_into().expect("a block");
        }
        self.journal.disk().raw(block)
    }

    /// Takes what can be written together.
    fn batch(&mut self) -> Vec<(Write<Vec<u8>>, u64)> {
        let (mut touched, mut batch) = (BTreeSet::new(), Vec::new());
        while let Some(Job::Commit { write, .. }) = self.jobs.front() {
            if write.blocks().any(|block| touched.contains(&block)) {
                break;
            }
            touched.extend(write.blocks());
            if let Some(Job::Commit { write, wait }) = self.jobs.pop_front() {
                batch.push((write, wait));
            }
        }
        batch
    }
}

impl DonorHost {
    /// A donor of a disk, with what that has.
    pub(crate) fn take_disk(&mut self, mut on_disk: OnDisk, log_max: u64, incarnation: Incarnation) {
        let held = on_disk.journal.held().clone();
        self.machine = Donor::returned(self.id, self.extents, held, incarnation);
        on_disk.journal.limit_log(log_max);
        let OnDisk { journal, .. } = &on_disk;
        journal.each_known(|block, _| self.memory.note(block, known(journal, block)));
        for region in on_disk.journal.dirty_at_start() {
            self.dirty.mark(region.start, region.end - region.start);
            self.unnumbered.mark(region.start, region.end - region.start);
        }
        self.disk = Some(Box::new(on_disk));
    }

    /// What it holds, wherever it is.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let DonorHost { memory, disk, .. } = self;
        let Some(disk) = disk else { return memory.get(at, len) };
        let first = at / BLOCK * BLOCK;
        let all: Vec<u8> = blocks_of(at, len).flat_map(|block| disk.content(memory, block)).collect();
        all[at - first..at - first + len].to_vec()
    }

    /// Puts down what it holds, if that is news. False: the disk does not take it.
    pub(crate) fn keep(&mut self) -> bool {
        let Some(disk) = &mut self.disk else { return true };
        let held = self.machine.held();
        if held == disk.kept {
            return true;
        }
        disk.kept = held.clone();
        let is_kept = disk.journal.keep(held).is_ok();
        // Nothing else is done meanwhile, and what was begun before is done.
        disk.journal.disk_mut().step_is_done();
        is_kept
    }

    /// Puts down what it holds; its power goes meanwhile.
    pub(crate) fn keep_in_part(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        let _ = disk.journal.keep(self.machine.held());
    }

    /// Whether the next thing that it puts down is the last, and it would put something down now.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.doomed && self.machine.held() != disk.kept)
    }

    /// A hold less. What is doomed and held by nobody goes, and is what the disk has.
    pub(crate) fn let_go(&mut self, blocks: Range<u64>) {
        let Some(disk) = &mut self.disk else { return };
        if disk.resident.let_go(blocks.clone()) {
            for block in disk.resident.take_doomed(blocks) {
                self.memory.note(block, known(&disk.journal, block));
            }
        }
    }

    pub(crate) fn make_room(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        disk.resident.evict().into_iter().for_each(|block| self.memory.bring(block, None));
    }

    /// Before a write of whole blocks reaches memory.
    pub(crate) fn begin_on_disk(&mut self, at: usize, count: usize) {
        if let Some(disk) = &mut self.disk {
            disk.resident.begin(blocks_of(at, count));
        }
    }

    /// What landed of a write is not what its client meant: the disk has what counts.
    pub(crate) fn cut_on_disk(&mut self, at: usize, count: usize) {
        if let Some(disk) = &mut self.disk {
            disk.resident.doom(blocks_of(at, count));
            self.let_go(blocks_of(at, count));
        }
    }

    /// What landed of a write in memory goes to the disk as it is now.
    pub(crate) fn commit_on_disk(
        &mut self,
        conn: u64,
        header: RequestHeader,
        ticket: Option<Ticket>,
        bug: Option<Bug>,
    ) {
        let Some(disk) = &mut self.disk else { return };
        let (at, count) = (header.offset, u64::from(header.length));
        let at = usize::try_from(at).expect("inside of the memory");
        let blocks = blocks_of(at, usize::try_from(count).expect("a part"));
        let (notes, auths): (Vec<_>, Vec<_>) =
            blocks.clone().map(|block| noted_in(&self.memory, block)).unzip();
        let (mut data, mut zeros) = (Vec::new(), Vec::new());
        for (block, noted) in blocks.clone().zip(&notes) {
            let at = usize::try_from(block).expect("inside of the memory") * BLOCK;
            if noted.is_data {
                data.extend(self.memory.get(at, BLOCK));
            } else {
                zeros.push(block);
            }
        }
        disk.resident.all_went(&zeros);
        let wait = disk.wait(conn, header, ticket);
        let auths = match bug {
            Some(Bug::AuthOfAnother) => blocks.clone().map(|block| disk.journal.auth(block)).collect(),
            _ => auths,
        };
        let write = Write { first: blocks.start, notes, auths, data };
        disk.jobs.push_back(Job::Commit { write, wait });
        if bug == Some(Bug::DirtyEvicted) {
            // A planted bug: nobody holds it on its way to the disk.
            self.let_go(blocks.clone());
            if let Some(disk) = &mut self.disk {
                disk.resident.all_went(&blocks.clone().collect::<Vec<_>>());
            }
            blocks.for_each(|block| self.memory.bring(block, None));
        }
    }
}

impl World {
    /// How long the disks of this world take for one thing.
    pub(crate) fn disk_delay(&mut self) -> u64 {
        self.rng.around(self.plan.disk_ns)
    }

    /// A disk knows whole blocks only.
    pub(crate) fn disk_takes(&self, d: usize, header: &RequestHeader) -> Result<(), Errno> {
        let changes = matches!(header.command, Command::Write | Command::WriteZeroes | Command::Trim);
        let is_whole = (header.offset | u64::from(header.length)).is_multiple_of(BLOCK as u64);
        if self.donors[d].disk.is_some() && changes && !is_whole { Err(Errno::Inval) } else { Ok(()) }
    }

    /// Whether what a read asks for is in memory; else it waits.
    pub(crate) fn is_in_memory(&mut self, d: usize, conn: u64, header: &RequestHeader, again: bool) -> bool {
        let DonorHost { disk, memory, .. } = &mut self.donors[d];
        let Some(disk) = disk else { return true };
        let at = usize::try_from(header.offset).expect("inside of the memory");
        let blocks = blocks_of(at, header.length as usize);
        let wait = disk.wait(conn, *header, None);
        let is_data = |block| memory.has(block);
        let (hold, brings) = match again {
            false => disk.resident.hold(blocks.clone(), is_data, &wait),
            true => disk.resident.look(blocks.clone(), is_data, &wait),
        };
        if hold == Hold::Here {
            // The answer is made at once.
            disk.waiting.remove(&wait);
            self.donors[d].let_go(blocks);
            return true;
        }
        self.count("reads that waited for a disk");
        for (bring, blocks) in brings {
            let at_once = self.rng.percent(50);
            let found = at_once.then(|| self.read_disk(d, blocks.clone()));
            let delay = self.disk_delay();
            self.after(delay, Ev::Donor(d, DonorEv::Disk(DiskEv::Brought { bring, blocks, found })));
        }
        false
    }

    fn read_disk(&mut self, d: usize, blocks: Range<u64>) -> Vec<Option<Content>> {
        let Some(disk) = &mut self.donors[d].disk else { return Vec::new() };
        let disk = disk.journal.disk();
        blocks.map(|block| disk.block_now(block, &mut self.rng)).collect()
    }

    /// What landed of a write goes to the disk.
    pub(crate) fn goes_to_disk(
        &mut self,
        d: usize,
        conn: u64,
        header: &RequestHeader,
        ticket: Option<Ticket>,
    ) {
        self.donors[d].commit_on_disk(conn, *header, ticket, self.bug);
        self.disk_goes_on(d);
    }

    pub(crate) fn wipe_on_disk(&mut self, d: usize, extents: Vec<u32>) {
        if let Some(disk) = &mut self.donors[d].disk {
            disk.jobs.push_back(Job::Wipe(extents));
        }
        self.disk_goes_on(d);
    }

    /// The disk takes what is next.
    pub(crate) fn disk_goes_on(&mut self, d: usize) {
        let delay = self.disk_delay() + self.disk_delay();
        let now = self.now;
        if self.donors[d].disk.as_ref().is_none_or(|disk| disk.doing.is_some()) {
            return;
        }
        match self.write_back_step(d) {
            Err(()) => return self.disk_dies(d),
            Ok(None) => {}
            Ok(Some(step)) => return self.disk_begins(d, step, delay),
        }
        let DonorHost { disk, unnumbered, ledgers, .. } = &mut self.donors[d];
        let Some(disk) = disk.as_mut().filter(|disk| disk.doing.is_none() && !disk.jobs.is_empty()) else {
            return;
        };
        let marked = |held: &Held| marked_of(unnumbered, ledgers, held);
        // Also while somebody writes all the time.
        if disk.journal.is_to_be_marked() && now > disk.marked_at + MARK_EVERY_NS {
            disk.marked_at = now;
            if disk.journal.mark(marked).is_err() {
                return self.disk_dies(d);
            }
        }
        let (step, early) = match disk.jobs.front() {
            Some(Job::Wipe(extents)) => {
                let extents = extents.clone();
                disk.jobs.pop_front();
                self.nothing_is_dirty_in(d, &extents);
                let DonorHost { disk, unnumbered, ledgers, .. } = &mut self.donors[d];
                let marked = |held: &Held| marked_of(unnumbered, ledgers, held);
                let Some(disk) = disk else { return };
                if disk.journal.wipe(&extents, marked).is_err() {
                    return self.disk_dies(d);
                }
                (Step::Wipe(extents), Vec::new())
            }
            _ => {
                let (writes, waits): (Vec<_>, Vec<u64>) = disk.batch().into_iter().unzip();
                let Ok(done) = disk.journal.commit(&writes, marked) else { return self.disk_dies(d) };
                let each = writes.iter().zip(&waits).zip(done);
                let each = each.map(|((write, wait), done)| (write.blocks(), *wait, done.is_ok()));
                (Step::Commit(each.collect()), waits)
            }
        };
        if self.bug == Some(Bug::LogUnflushed) {
            early
                .into_iter()
                .for_each(|wait| self.after(0, Ev::Donor(d, DonorEv::Disk(DiskEv::Early(wait)))));
        }
        self.disk_begins(d, step, delay);
    }

    /// It is at this step, for so long.
    fn disk_begins(&mut self, d: usize, step: Step, delay: u64) {
        let Some(disk) = &mut self.donors[d].disk else { return };
        disk.steps += 1;
        disk.doing = Some(step);
        let step = disk.steps;
        self.count("steps of a disk");
        self.after(delay, Ev::Donor(d, DonorEv::Disk(DiskEv::Done(step))));
    }

    pub(crate) fn disk_event(&mut self, d: usize, event: DiskEv) {
        match event {
            DiskEv::Done(step) => self.step_is_done(d, step),
            DiskEv::Brought { bring, blocks, found } => {
                let found = found.unwrap_or_else(|| self.read_disk(d, blocks.clone()));
                let DonorHost { disk, memory, .. } = &mut self.donors[d];
                let Some(disk) = disk else { return };
                let first = blocks.start;
                let told = disk.resident.brought(bring, blocks, |block| {
                    let at = usize::try_from(block - first).expect("one of a reading");
                    // One that cannot be read is there as zeros, which do not fit its checksum.
                    memory.bring(block, Some(found[at].unwrap_or_default()));
                    memory.has(block)
                });
                self.donors[d].make_room();
                told.into_iter().for_each(|wait| self.disk_tells(d, wait, Ok(())));
            }
            DiskEv::Checked { wait, blocks, before } => self.has_checked(d, wait, &blocks, &before),
            DiskEv::Quiet(step) => {
                let DonorHost { disk, unnumbered, ledgers, .. } = &mut self.donors[d];
                let Some(disk) = disk.as_mut().filter(|disk| disk.steps == step) else { return };
                disk.marked_at = self.now;
                if disk.journal.mark(|held| marked_of(unnumbered, ledgers, held)).is_err() {
                    return self.disk_dies(d);
                }
                disk.journal.disk_mut().step_is_done();
                let again = disk.journal.is_to_be_marked();
                self.count("logs told that all is done");
                if again {
                    self.after(QUIET_NS, Ev::Donor(d, DonorEv::Disk(DiskEv::Quiet(step))));
                }
            }
            DiskEv::Early(wait) => self.disk_tells(d, wait, Ok(())),
            DiskEv::Look => self.disk_goes_on(d),
        }
    }

    fn step_is_done(&mut self, d: usize, step: u64) {
        let Some(disk) = self.donors[d].disk.as_mut().filter(|disk| disk.steps == step) else { return };
        disk.journal.disk_mut().step_is_done();
        match disk.doing.take() {
            Some(Step::Commit(done)) => {
                for (blocks, _, is_written) in &done {
                    if !is_written && let Some(disk) = &mut self.donors[d].disk {
                        disk.journal.disk_mut().in_flight.extend(blocks.clone());
                        disk.resident.doom(blocks.clone());
                    }
                    if !is_written {
                        self.note_untaken(d, blocks.clone());
                    }
                    if self.bug != Some(Bug::DirtyEvicted) {
                        self.donors[d].let_go(blocks.clone());
                    }
                }
                self.donors[d].make_room();
                for (_, wait, is_written) in done {
                    self.disk_tells(d, wait, if is_written { Ok(()) } else { Err(Errno::Io) });
                }
            }
            Some(Step::Intend(regions)) => {
                let disk = self.donors[d].disk.as_mut();
                let told = disk.map(|disk| disk.write_back.intended(&regions)).unwrap_or_default();
                self.tell_written(d, told);
            }
            Some(Step::Back(blocks)) => self.are_written_back(d, blocks),
            Some(Step::Clean) => {}
            Some(Step::Wipe(extents)) => {
                if let Some(disk) = &mut self.donors[d].disk {
                    for extent in extents.iter().map(|extent| u64::from(*extent)) {
                        disk.resident.forget(extent * EXTENT_BLOCKS..(extent + 1) * EXTENT_BLOCKS);
                    }
                }
                self.extents_are_wiped(d, extents);
            }
            None => {}
        }
        self.disk_goes_on(d);
        if self.donors[d].disk.as_ref().is_some_and(|disk| disk.doing.is_none()) {
            self.after(QUIET_NS, Ev::Donor(d, DonorEv::Disk(DiskEv::Quiet(step))));
        }
    }

    /// Goes on with what waited for the disk, if its connection is still there.
    pub(crate) fn disk_tells(&mut self, d: usize, wait: u64, result: Result<(), Errno>) {
        let Some(waiting) = self.donors[d].disk.as_mut().and_then(|disk| disk.waiting.remove(&wait)) else {
            return;
        };
        let Waiting { conn, header, ticket } = waiting;
        let serves = self.network.conns.get(&conn).is_some_and(|conn| conn.donor_end.is_some());
        if header.command == Command::Read && !serves {
            let at = usize::try_from(header.offset).expect("inside of the memory");
            return self.donors[d].let_go(blocks_of(at, header.length as usize));
        }
        self.answer_late(d, conn, |world, grant, end| match (header.command, result) {
            (Command::Read, _) => world.read(d, conn, end, &header, true),
            (_, Err(errno)) => end.outbox.error(header.cookie, errno, ""),
            (command, Ok(())) => {
                world.donors[d].landed(grant.volume, ticket);
                let at = usize::try_from(header.offset).expect("inside of the memory");
                let count = header.length as usize;
                match command {
                    Command::Write => {
                        let sums = world.donors[d].memory.sums(at, count);
                        end.outbox.done_with(header.cookie, sums.into_iter());
                    }
                    _ => end.outbox.done(header.cookie),
                }
            }
        });
    }

    /// Lets a connection, if it is still served, answer something that it was asked before.
    pub(crate) fn answer_late(
        &mut self,
        d: usize,
        conn: u64,
        answer: impl FnOnce(&mut World, &Grant, &mut DonorEnd),
    ) {
        let serves = |conn: &&mut Conn| conn.stage == Stage::Serving && conn.donor == Some(d);
        let Some(there) = self.network.conns.get_mut(&conn).filter(serves) else { return };
        let (Some(grant), Some(mut end)) = (there.grant, there.donor_end.take()) else { return };
        answer(self, &grant, &mut end);
        let answers = Some(end.answers()).filter(|answers| !answers.is_empty());
        if let Some(conn) = self.network.conns.get_mut(&conn).filter(|conn| conn.stage == Stage::Serving) {
            conn.donor_end = Some(end);
        }
        for bytes in answers.map(|answers| cut(&mut self.rng, answers)).unwrap_or_default() {
            self.send_to_client(conn, ToClient::Bytes(bytes));
        }
    }

    /// It does not take what has to be put down before anything else: its donor ends.
    pub(crate) fn disk_dies(&mut self, d: usize) {
        say!(self, "the disk of donor {d} takes nothing any more");
        self.end_donor(d, true);
    }

    fn extents_are_wiped(&mut self, d: usize, extents: Vec<u32>) {
        self.wipe_memory(d, &extents);
        self.step_donor(d, Event::Wiped { extents });
    }
}
