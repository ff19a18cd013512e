//! A sealed volume that is read, by tools or by who repairs it: each block is checked against its proof
//! before anybody gets it.
//!
//! Owns which answers wait for proofs, and the reads that bring those. Never: hashing (`crate::proofs`), or
//! what follows from a block that is wrong (the machine says). Invariant: of a sealed volume the machine
//! hears of no block that came, and of none that was rebuilt, before that block was checked; what waits is in
//! memory that nothing else uses, or is passed over. A page is read like the volume's data, and so checked
//! and, where it is wrong, gone round like that. Called by `super`. Tests: `lab/tests/seal.rs`.

use super::Driver;
use super::conn::{Body, unproved};
use super::handle::{Completion, Op, Sink, Submission};
use super::memory::Memory;
use crate::buffer::{Buffer, Pool};
use crate::proofs::{Checked, Pages};
use cheetah_core::layout::{Geometry, Scatter};
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES, REQUESTS_IN_FLIGHT_MAX};
use cheetah_core::map::{DonorId, VolumeMap};
use cheetah_core::proofs::{Block, PROOFS_PER_PAGE, Page};
use cheetah_core::volume::{At, Event, Fragment, Key, Mem, PartOp, Unproved, VolumeError};
use cheetah_nbd::Errno;
use cheetah_nbd::client::Answer;
use cheetah_terms::client::answered;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Tools' requests on their way at most: there is always room for the reads that bring proofs.
pub(super) const TOOLS_MAX: usize = REQUESTS_IN_FLIGHT_MAX / 2;
/// Pages that are read at once where a tool reads on.
const PAGES_AHEAD: u64 = 16;
const BLOCK: u32 = BLOCK_BYTES as u32;

/// What waits for a page.
#[derive(Debug)]
enum Waiting {
    Part { donor: DonorId, answer: Box<Answer<Body>>, has_sums: bool },
    Rebuilt { job: Key, fragment: Fragment, at: At, len: u32 },
}

/// The proofs of a sealed volume, and what waits for some.
#[derive(Debug)]
pub(super) struct Proving {
    pub(super) pages: Pages,
    geometry: Geometry,
    waiting: Vec<Waiting>,
    asked: BTreeSet<Page>,
    /// The page that comes next where a tool reads on.
    next: u64,
    /// So many are read one by one.
    singly: u64,
    brought: Arc<Brought>,
    pool: Pool,
}

/// Reads of pages that have ended, until the driver looks.
#[derive(Debug, Default)]
struct Brought(Mutex<Vec<Completion>>);

impl Sink for Brought {
    fn complete(&self, completion: Completion) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(completion);
    }
}

impl Proving {
    /// None of a volume that is not sealed.
    pub(super) fn new(map: &VolumeMap, pool: Pool) -> Option<Proving> {
        let root = map.seal()?;
        let pages = match map.encrypted {
            true => Pages::of_ciphertext(map.tree(), root),
            false => Pages::new(map.tree(), root),
        };
        Some(Proving {
            pages,
            geometry: Geometry::new(map.redundancy, map.unit),
            waiting: Vec::new(),
            asked: BTreeSet::new(),
            next: 0,
            singly: 0,
            brought: Arc::default(),
            pool,
        })
    }

    /// A read that came, of which proofs are still to come.
    pub(super) fn waits(&mut self, donor: DonorId, answer: Answer<Body>, has_sums: bool) {
        self.waiting.push(Waiting::Part { donor, answer: Box::new(answer), has_sums });
    }

    /// Checks what lies in memory of a fragment. Of parity there are no proofs: what is made from it is
    /// checked.
    pub(super) fn check(&self, memory: &Memory, fragment: Fragment, mem: Mem, scatter: Scatter) -> Checked {
        let Fragment { group, slot, local } = fragment;
        if self.geometry.data > 1 && slot >= self.geometry.data {
            return Checked::Wrong(0);
        }
        let runs = || self.runs(group, slot, local, scatter);
        let missing = |(block, _, blocks): (u64, u32, u32)| self.pages.missing_of(block, blocks.into());
        if let Some(page) = runs().find_map(missing) {
            return Checked::Needs(page);
        }
        let mut wrong = 0;
        for (block, offset, blocks) in runs() {
            let (at, len) = (At { mem, offset }, blocks * BLOCK);
            match self.pages.check(block, memory.bytes(at, len), memory.auths(at, len)) {
                Checked::Wrong(more) => wrong += more,
                needs => return needs,
            }
        }
        Checked::Wrong(wrong)
    }

    /// What of a part lies in one piece in the volume and in memory: first block of the volume, offset in
    /// memory, blocks.
    fn runs(
        &self,
        group: u32,
        slot: u32,
        local: u32,
        scatter: Scatter,
    ) -> impl Iterator<Item = (u64, u32, u32)> {
        let geometry = self.geometry;
        let mut done = 0;
        std::iter::from_fn(move || {
            let left = scatter.len.checked_sub(done).filter(|left| *left > 0)?;
            let (offset, piece) = scatter.locate(done);
            let slot = if geometry.data == 1 { 0 } else { slot };
            let group_bytes = u64::from(geometry.data) * EXTENT_BYTES;
            let at = u64::from(group) * group_bytes + u64::from(geometry.offset(slot, local + done));
            let len = piece.min(left).min(geometry.unit - (local + done) % geometry.unit);
            done += len;
            Some((at / BLOCK_BYTES, offset, len / BLOCK))
        })
    }

    /// Whether there is anything to look at.
    fn has_news(&self) -> bool {
        !self.waiting.is_empty() || !self.brought.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn wants(&mut self, page: Page, wanted: &mut Vec<Page>) {
        if self.asked.insert(page) {
            wanted.push(page);
        }
    }

    /// How many pages are read with this one: those that follow, where a tool reads on, and which the same
    /// page proves.
    fn pages_with(&mut self, page: Page) -> u64 {
        if page.level > 0 || page.index != self.next || self.singly > 0 {
            self.next = page.index + 1;
            self.singly = self.singly.saturating_sub(1);
            return 1;
        }
        let to_border = PROOFS_PER_PAGE - page.index % PROOFS_PER_PAGE;
        let left = self.pages.tree().pages(0) - page.index;
        let pages = PAGES_AHEAD.min(to_border).min(left);
        self.next = page.index + pages;
        pages
    }
}

impl Driver {
    /// From the newest map: it may have been sealed since.
    pub(super) fn look_whether_sealed(&mut self) {
        if let Some(opening) = &mut self.memory.opening {
            opening.hear_of_proofs(self.machine.map());
        }
        if self.memory.proving.is_none() {
            self.memory.proving = Proving::new(self.machine.map(), self.shared.pool.clone());
            if self.memory.proving.is_some() {
                // What was read ahead before was not checked so.
                self.answered_here.push(Event::Forget);
            }
        }
    }

    /// Has the proofs of what a tool is about to read on their way before that.
    pub(super) fn ask_for_proofs(&mut self, offset: u64, len: u32) {
        let Some(proving) = &mut self.memory.proving else { return };
        let (first, last) = (offset / BLOCK_BYTES, offset.saturating_add(len.into()).div_ceil(BLOCK_BYTES));
        let (mut at, mut wanted) = (first, Vec::new());
        while at < last.min(proving.pages.tree().blocks()) {
            if let Some(page) = proving.pages.missing(at) {
                proving.wants(page, &mut wanted);
            }
            at = (at / PROOFS_PER_PAGE + 1) * PROOFS_PER_PAGE;
        }
        self.read_pages(wanted);
    }

    fn read_pages(&mut self, wanted: Vec<Page>) {
        for page in wanted {
            let Some(proving) = &mut self.memory.proving else { return };
            let pages = proving.pages_with(page);
            let (offset, len) = (proving.pages.tree().offset(page), pages * BLOCK_BYTES);
            let len = u32::try_from(len).expect("a few pages");
            // Nobody gives one back while this thread waits.
            let buffer = proving.pool.try_take(len as usize).or_else(|| Buffer::standing(len as usize).ok());
            let Some(mut buffer) = buffer.filter(|_| self.machine.has_room()) else {
                // It is wanted again when something else has come.
                proving.asked.remove(&page);
                continue;
            };
            for more in page.index..page.index + pages {
                proving.asked.insert(Page { index: more, ..page });
            }
            if self.machine.map().encrypted {
                buffer.expect_auths();
            }
            let sink = proving.brought.clone();
            self.submit_now(Submission {
                op: Op::Read,
                offset,
                len,
                buffer: Some(buffer),
                token: offset,
                sink,
            });
        }
    }

    /// Takes in the pages that came, and what waited for them; asks for those that are needed next. True when
    /// the machine has something to hear.
    pub(super) fn prove(&mut self) -> bool {
        let Driver { memory, machine, shared, answered_here, .. } = self;
        let Some(mut proving) = memory.proving.take_if(|proving| proving.has_news()) else { return false };
        let brought = std::mem::take(&mut *proving.brought.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut failed = BTreeSet::new();
        for completion in brought {
            proving.take(completion, &mut failed);
        }
        let mut wanted = Vec::new();
        // Before it serves, no page can be read.
        let (repairs, is_starting) = (!shared.read_only, !machine.is_serving());
        let tree = proving.pages.tree();
        for waiting in std::mem::take(&mut proving.waiting) {
            let goes_without = |page| machine.goes_without_proof(waiting.what(), tree.offset(page));
            let checked = match &waiting {
                Waiting::Part { answer, .. } => {
                    let Body { mem, scatter, fragment, .. } = &answer.body;
                    proving.check(memory, *fragment, *mem, *scatter)
                }
                Waiting::Rebuilt { fragment, at, len, .. } => {
                    proving.check(memory, *fragment, at.mem, Scatter::whole(at.offset, *len))
                }
            };
            match checked {
                Checked::Needs(page) if goes_without(page) => waiting.ends(Some(0), answered_here),
                // Who repairs has the checksums as well, and loses nothing for good for want of a proof.
                Checked::Needs(page) if repairs && (is_starting || failed.contains(&page)) => {
                    waiting.ends(Some(0), answered_here);
                }
                Checked::Needs(page) if !failed.contains(&page) => {
                    proving.wants(page, &mut wanted);
                    proving.waiting.push(waiting);
                }
                Checked::Needs(_) => waiting.ends(None, answered_here),
                Checked::Wrong(blocks) => waiting.ends(Some(blocks), answered_here),
            }
        }
        memory.proving = Some(proving);
        let is_news = !self.answered_here.is_empty();
        self.read_pages(wanted);
        is_news
    }

    /// What was rebuilt is checked, now or when its proofs are here.
    pub(super) fn verify(&mut self, job: Key, fragment: Fragment, at: At, len: u32) {
        let right = self.memory.verify(fragment, at, len);
        match &mut self.memory.proving {
            Some(proving) if right => {
                proving.waiting.push(Waiting::Rebuilt { job, fragment, at, len });
            }
            _ => self.answered_here.push(Event::Verified { job, right }),
        }
    }

    /// The machine does not want the answer any more.
    pub(super) fn forget_waiting(&mut self, is_meant: impl Fn(DonorId, Key) -> bool) -> bool {
        let Some(proving) = &mut self.memory.proving else { return false };
        let before = proving.waiting.len();
        proving.waiting.retain(|waiting| match waiting {
            Waiting::Part { donor, answer, .. } => !is_meant(*donor, Key::from_u64(answer.cookie)),
            Waiting::Rebuilt { .. } => true,
        });
        proving.waiting.len() < before
    }
}

impl Waiting {
    fn what(&self) -> Unproved {
        match self {
            Waiting::Part { answer, .. } => Unproved::Part(Key::from_u64(answer.cookie)),
            Waiting::Rebuilt { job, .. } => Unproved::Job(*job),
        }
    }

    /// `wrong`: how many blocks; none where that cannot be found out.
    fn ends(self, wrong: Option<u32>, events: &mut Vec<Event>) {
        match self {
            Waiting::Rebuilt { job, .. } => events.push(Event::Verified { job, right: wrong == Some(0) }),
            Waiting::Part { mut answer, has_sums, .. } => {
                if wrong.is_none() {
                    answer.error = Some(Errno::Io);
                }
                let wrong = wrong.and_then(|blocks| unproved(blocks, has_sums));
                answered(PartOp::Read, *answer, wrong, events);
            }
        }
    }
}

impl Proving {
    /// A read of pages ended: what is right is known from now on.
    fn take(&mut self, completion: Completion, failed: &mut BTreeSet<Page>) {
        let Completion { token: offset, result, buffer, .. } = completion;
        let Some(buffer) = buffer else { return };
        let bytes = buffer.to_vec();
        let is_alone = bytes.len() as u64 == BLOCK_BYTES;
        for (nth, bytes) in bytes.chunks(BLOCK_BYTES as usize).enumerate() {
            let Some(Block::Proofs(page)) = self.pages.tree().block(offset / BLOCK_BYTES + nth as u64) else {
                continue;
            };
            self.asked.remove(&page);
            let is_here = result.is_ok() && self.pages.learn(page, bytes);
            if !is_here {
                tracing::debug!(?page, error = ?result.err().unwrap_or(VolumeError::Corrupt), "no proofs");
                // Of several that were read together one may be bad: each is asked for by itself then.
                if is_alone {
                    failed.insert(page);
                } else {
                    self.singly = 2 * PAGES_AHEAD;
                }
            }
        }
    }
}
