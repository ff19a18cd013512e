//! Telling donors what is settled, so that the next writer has little to ask about.
//!
//! Owns when donors are told that all writes sent before the last time are complete everywhere. Never: which
//! writes donors list (`donor::ledger`, the dirty map). Tests: `tests/volume_finish.rs`,
//! `tests/volume_marks.rs`, the simulator.

use super::Key;
use super::base::Base;
use super::doubts::Stage;
use super::job::{Job, Phase, Run, Work};
use super::types::PartOp;
use crate::limits::{DIRTY_AGE_NS, READ_TOGETHER_NS, TICK_NS};
use crate::map::{DonorId, Placement};
use crate::units::Time;

#[derive(Debug, Default)]
pub(super) struct Aging {
    open: bool,
    /// When the last write ended whose marks the next aging may drop.
    settled_at: Time,
    /// Rounds until the donors know that nothing is half written.
    due: u32,
    aged_at: Time,
    /// Jobs born up to here had to be complete before the next round.
    mark: u64,
}

impl Aging {
    /// Tells the donors what is settled: all writes that were sent before the last time.
    pub(super) fn start(&mut self, base: &mut Base) {
        let due = self.due > 0 && base.now >= self.aged_at + DIRTY_AGE_NS;
        if due || (self.due > 0 && base.finishing.is_some()) {
            self.tell(base);
        }
    }

    /// A donor that was away may have marks that were settled meanwhile.
    pub(super) fn again(&mut self, base: &mut Base) {
        if base.shape.geometry.parity > 0 && !base.shape.read_only {
            self.due = 2;
        }
    }

    pub(super) fn tell(&mut self, base: &mut Base) {
        let mark = self.mark;
        let unsettled = |job: &Job| job.born <= mark && job.is_write();
        let open = base.jobs.iter().any(|(_, job)| unsettled(job));
        let noticed = base.shape.geometry.data == 1 || base.now >= self.settled_at + READ_TOGETHER_NS;
        if self.open
            || open
            || !noticed
            || !base.doubts.torn.is_empty()
            || base.doubts.stage != Stage::Serving
        {
            return;
        }
        (self.aged_at, self.open) = (base.now, true);
        self.due -= 1;
        base.add_job(None, Work::Age, 0, 0, 0);
    }

    /// Looked at by ticks, so not before the next one.
    pub(super) fn wake_at(&self, base: &Base) -> Option<Time> {
        let at = (self.aged_at + DIRTY_AGE_NS).max(base.ticked_at + TICK_NS);
        (self.due > 0).then_some(at)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.due == 0
    }

    pub(super) fn aged_at(&self) -> Time {
        self.aged_at
    }

    /// A write has ended, whoever it was for.
    pub(super) fn write_ended(&mut self, now: Time, job: &Job) {
        self.due = 2;
        // A reader may have read one slot before it and another after it.
        if job.born <= self.mark || matches!(job.work, Work::Resync | Work::Mend { .. }) {
            self.settled_at = now;
        }
    }

    pub(super) fn ended(&mut self, base: &Base) {
        // A write on another connection may have overtaken it until it was answered.
        (self.open, self.mark, self.aged_at) = (false, base.jobs.born, base.now);
    }
}

pub(super) fn begin(base: &mut Base, key: Key) {
    let up = base.links.iter().filter(|(_, link)| link.is_up() && link.fenced);
    for donor in up.map(|(donor, _)| donor).collect::<Vec<DonorId>>() {
        let nowhere = Placement { donor, extent: 0 };
        base.add_part(key, 0, nowhere, PartOp::Age, Run::about(0, 0));
    }
    base.set_phase(key, Phase::Reading);
}
