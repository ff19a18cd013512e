//! How much of a machine's memory its donor lends, second by second: the machine's owner comes first.
//!
//! Owns the rule that turns what is seen of the machine into an offer. Never: reading the machine
//! (`rim::owner`), or moving data: what is held beyond the offer is the coordinator's to move.
//! Key invariants: the offer falls with the first sample that asks for it, by all that is missing of the
//! reserve; it rises after `OWNER_CALM_NS` without any such sample, by `OWNER_GROW_PERCENT` of the loan in
//! each `OWNER_GROW_NS`, so that an owner who comes and goes does not make data wander. What the donor holds
//! already is asked back only when the reserve is touched. Where memory runs out faster than data can be
//! moved the donor ends, while some is left: at the end of it the kernel would end the donor, and then the
//! owner's programs before the donor's memory is free. Tests: `tests/donor_owner.rs`.

use crate::limits::{
    EXTENT_BYTES, OWNER_CALM_NS, OWNER_FALL_NS, OWNER_FLOOR_BYTES_MAX, OWNER_GROW_NS, OWNER_GROW_PERCENT,
    OWNER_LAST_EXTENT_NS, OWNER_LAST_NS, OWNER_LOOK_HOLDING_NS, OWNER_LOOK_NS, OWNER_LOOK_SHORT_NS,
    OWNER_STALL_PERCENT_MAX,
};
use crate::units::Time;
use std::collections::VecDeque;

/// What was agreed with the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Extents of 64 MiB that are offered at most.
    pub extents_max: u32,
    /// What has to stay available to the owner.
    pub reserve_bytes: u64,
}

/// One look at the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// What could be used without pushing anything out; the memory that the donor's data takes is not in it.
    pub available_bytes: u64,
    /// Memory that the donor's data takes.
    pub used_bytes: u64,
    /// Extents that volumes hold of the donor; most of their memory may not be in use yet.
    pub held_extents: u32,
    /// `None` where the kernel does not tell.
    pub pressure: Option<Pressure>,
}

/// What the kernel says of tasks that wait for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Part of the last ten seconds in which some task waited, and in which all did, in 1/100 of a percent.
    pub some_avg10: u32,
    /// The latter of the two, never more than `some_avg10`.
    pub full_avg10: u32,
    /// Time in which some task waited, since the machine started.
    pub stall_ns_total: u64,
}

/// The relation of an offer to what is held. The worse, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ease {
    /// There is more than what is held.
    Plenty,
    /// Nothing beyond what is held.
    Tight,
    /// Less than what is held.
    Shrinking,
    /// Nothing will be left before what is held could be moved: the donor has to end now.
    Outrun,
}

/// How much a donor lends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Extents in all, held ones included.
    pub extents: u32,
    /// What that leaves of what is held.
    pub ease: Ease,
}

/// The rule, and what it has seen of one machine.
#[derive(Clone, Debug)]
pub struct Owner {
    terms: Terms,
    /// `None` before the first sample.
    offered: Option<u32>,
    /// When the owner last needed something.
    troubled_at: Time,
    raised_at: Time,
    /// Of the last sample: when, and `stall_ns_total`.
    stalls: Option<(Time, u64)>,
    /// What was available in the last looks, oldest first: the last `OWNER_FALL_NS`, and one look from
    /// before.
    lately: VecDeque<(Time, u64)>,
    /// The reserve was touched at the last look.
    was_short: bool,
}

/// The reserve of `donate auto` unless told otherwise: a quarter of the machine, and no less than 1 GiB.
#[must_use]
pub fn reserve_of_auto(total_bytes: u64) -> u64 {
    (total_bytes / 4).max(1 << 30)
}

/// The reserve when the owner named a size: only what keeps the machine out of its swap.
#[must_use]
pub fn reserve_of_size(total_bytes: u64) -> u64 {
    (total_bytes / 16).clamp(128 << 20, 1 << 30)
}

impl Owner {
    /// Nothing is seen yet. The first look offers all that fits, without a wait.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Owner {
            terms,
            offered: None,
            troubled_at: 0,
            raised_at: 0,
            stalls: None,
            lately: VecDeque::new(),
            was_short: false,
        }
    }

    /// One look at the machine. `now` never goes back.
    pub fn step(&mut self, now: Time, sample: &Sample) -> Offer {
        let Sample { available_bytes: available, used_bytes: used, held_extents: held, .. } = *sample;
        let stalling = self.stalling(now, sample.pressure);
        // Tasks also wait for memory for reasons that are not ours, like a limit of their own. So waiting
        // counts only where little is left; there it says that what seems available is not.
        let near = !self.leaves_room(sample);
        let stalled = near && stalling == Stalling::Much;
        let pressed = near && stalling != Stalling::Little;
        let reserve = self.terms.reserve_bytes.saturating_mul(if stalled { 2 } else { 1 });
        let short = available < reserve;
        // What the donor's data may take in all; what it takes already is as good as available.
        let bearable = (used.saturating_add(available)).saturating_sub(reserve);
        let target = match short {
            true => part_of(held, bearable, used),
            false => extents(bearable).max(held),
        };
        let target = target.min(self.terms.extents_max);
        let before = self.offered.unwrap_or(target);
        let mut offered = before.min(target);
        // An offer that is up to the edge counts, too: raised in the next calm it would have to fall again.
        let comfortable = extents(bearable.saturating_sub(reserve / 8)).min(self.terms.extents_max);
        if target < before || short || pressed || comfortable < offered {
            self.troubled_at = now;
        }
        if now >= self.troubled_at + OWNER_CALM_NS && now >= self.raised_at + OWNER_GROW_NS {
            let step = (self.terms.extents_max.saturating_mul(OWNER_GROW_PERCENT) / 100).max(1);
            if comfortable > offered {
                (offered, self.raised_at) = ((offered + step).min(comfortable), now);
            }
        }
        self.offered = Some(offered);
        let outrun = self.outrun(now, sample, short);
        let tight = short || pressed || (offered <= held && offered < self.terms.extents_max);
        let ease = match () {
            () if outrun => Ease::Outrun,
            () if offered < held => Ease::Shrinking,
            () if tight => Ease::Tight,
            () => Ease::Plenty,
        };
        Offer { extents: offered, ease }
    }

    /// Whether so much is left that nobody who waits for memory is taken for the owner in need.
    #[must_use]
    pub fn leaves_room(&self, sample: &Sample) -> bool {
        sample.available_bytes >= self.terms.reserve_bytes.saturating_mul(2)
    }

    /// How long until the next look.
    #[must_use]
    pub fn pause_ns(&self, sample: &Sample) -> u64 {
        let falling = self.lately.iter().any(|(_, before)| *before > sample.available_bytes);
        match () {
            () if self.was_short && falling => OWNER_LOOK_SHORT_NS,
            () if sample.held_extents > 0 => OWNER_LOOK_HOLDING_NS,
            () => OWNER_LOOK_NS,
        }
    }

    /// Whether memory runs out before what is held could be moved. A burst that is over is no reason, so both
    /// the last while and the last look must say so, and the reserve must have been touched before.
    fn outrun(&mut self, now: Time, sample: &Sample, short: bool) -> bool {
        let last = self.lately.back().copied();
        self.lately.push_back((now, sample.available_bytes));
        while self.lately.get(1).is_some_and(|(then, _)| then + OWNER_FALL_NS <= now) {
            self.lately.pop_front();
        }
        let first = self.lately.front().copied().filter(|(then, _)| then + OWNER_FALL_NS <= now);
        let goes_on = std::mem::replace(&mut self.was_short, short) && short;
        let needed = OWNER_LAST_NS + sample.used_bytes / EXTENT_BYTES * OWNER_LAST_EXTENT_NS;
        let floor = (self.terms.reserve_bytes / 8).min(OWNER_FLOOR_BYTES_MAX);
        let spare = sample.available_bytes.saturating_sub(floor);
        let ends = |since: Option<(Time, u64)>| {
            since.is_some_and(|(then, before)| {
                let (passed, fall) = (now - then, before.saturating_sub(sample.available_bytes));
                u128::from(spare) * u128::from(passed) < u128::from(fall) * u128::from(needed)
            })
        };
        goes_on && sample.used_bytes >= EXTENT_BYTES && ends(first) && ends(last)
    }

    fn stalling(&mut self, now: Time, pressure: Option<Pressure>) -> Stalling {
        let Some(pressure) = pressure else { return Stalling::Little };
        let before = self.stalls.replace((now, pressure.stall_ns_total));
        let lately = before.is_some_and(|(then, total)| {
            let (passed, stalled) = (now.saturating_sub(then), pressure.stall_ns_total.saturating_sub(total));
            stalled.saturating_mul(100) > passed.saturating_mul(OWNER_STALL_PERCENT_MAX)
        });
        let above = |hundredths: u32| u64::from(hundredths) > OWNER_STALL_PERCENT_MAX * 100;
        match () {
            () if lately || above(pressure.full_avg10) => Stalling::Much,
            () if above(pressure.some_avg10) => Stalling::Some,
            () => Stalling::Little,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stalling {
    Little,
    Some,
    Much,
}

/// Whole extents of so many bytes.
fn extents(bytes: u64) -> u32 {
    u32::try_from(bytes / EXTENT_BYTES).unwrap_or(u32::MAX)
}

/// How many of the extents held may stay when their data takes `used` bytes and may take `bearable`, which is
/// less. Those that are hardly written free little each, so that more of them have to go.
fn part_of(held: u32, bearable: u64, used: u64) -> u32 {
    let full = u64::from(held) * EXTENT_BYTES;
    if used >= full {
        return extents(bearable).min(held);
    }
    let part = u128::from(held) * u128::from(bearable) / u128::from(used.max(1));
    u32::try_from(part).unwrap_or(u32::MAX).min(held)
}
