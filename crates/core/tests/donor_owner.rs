//! What an owner can spare, over time: at once less, slowly more, and never data that wanders to and fro.

use cheetah_core::donor::owner::{Ease, Offer, Owner, Pressure, Sample, Terms};
use cheetah_core::limits::{
    EXTENT_BYTES, MILLISECOND_NS, OWNER_CALM_NS, OWNER_GROW_NS, OWNER_LAST_EXTENT_NS, OWNER_LAST_NS,
    OWNER_LOOK_HOLDING_NS, OWNER_LOOK_NS, OWNER_LOOK_SHORT_NS, SECOND_NS,
};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const PER_GIB: u32 = (GIB / EXTENT_BYTES) as u32;

/// A machine of 64 GiB whose donor obeys: what it holds beyond its offer is moved, a few extents a second.
struct Machine {
    now: u64,
    owner: Owner,
    /// What the owner's programs take.
    demand: u64,
    used: u64,
    held: u32,
    pressure: Option<Pressure>,
}

impl Machine {
    fn new(max: u32, reserve: u64) -> Self {
        let owner = Owner::new(Terms { extents_max: max, reserve_bytes: reserve });
        Machine { now: SECOND_NS, owner, demand: 8 * GIB, used: 0, held: 0, pressure: None }
    }

    fn hold(&mut self, extents: u32) {
        (self.held, self.used) = (extents, u64::from(extents) * EXTENT_BYTES);
    }

    fn available(&self) -> u64 {
        (64 * GIB).saturating_sub(self.demand + self.used)
    }

    fn look(&mut self) -> Offer {
        self.look_after(SECOND_NS)
    }

    fn look_after(&mut self, pause_ns: u64) -> Offer {
        self.now += pause_ns;
        self.owner.step(self.now, &self.sample())
    }

    fn sample(&self) -> Sample {
        Sample {
            available_bytes: self.available(),
            used_bytes: self.used,
            held_extents: self.held,
            pressure: self.pressure,
        }
    }

    fn pause_after(&mut self, demand: u64) -> u64 {
        self.demand = demand;
        self.look();
        self.owner.pause_ns(&self.sample())
    }

    /// Looks for so many seconds; the offers.
    fn pass(&mut self, seconds: u64) -> Vec<u32> {
        (0..seconds).map(|_| self.look().extents).collect()
    }
}

#[test]
fn at_first_it_offers_what_is_above_the_reserve_and_no_more_than_the_most() {
    assert_eq!(Machine::new(10_000, 16 * GIB).look(), Offer { extents: 40 * PER_GIB, ease: Ease::Plenty });
    assert_eq!(Machine::new(100, 16 * GIB).look(), Offer { extents: 100, ease: Ease::Plenty });
    let mut full = Machine::new(100, 60 * GIB);
    assert_eq!(full.look(), Offer { extents: 0, ease: Ease::Tight });
}

#[test]
fn a_shortfall_is_asked_for_at_once_and_once() {
    let mut machine = Machine::new(40 * PER_GIB, 16 * GIB);
    machine.look();
    machine.hold(40 * PER_GIB);
    assert_eq!(machine.look(), Offer { extents: 40 * PER_GIB, ease: Ease::Plenty });
    machine.demand += 4 * GIB;
    let less = Offer { extents: 36 * PER_GIB, ease: Ease::Shrinking };
    assert_eq!(machine.look(), less);
    assert_eq!(machine.look(), less, "what is asked for and not moved yet is not asked for again");
    for held in (36 * PER_GIB..40 * PER_GIB).rev() {
        machine.hold(held);
        assert_eq!(machine.look().extents, 36 * PER_GIB, "nor while it is on its way");
    }
    assert_eq!(machine.look().ease, Ease::Tight);
    machine.demand += 1;
    assert_eq!(machine.look().extents, 36 * PER_GIB - 1, "rounded so that the reserve is whole");
}

#[test]
fn when_it_gets_tight_nothing_is_asked_back_but_nothing_more_is_offered() {
    let mut machine = Machine::new(40 * PER_GIB, 16 * GIB);
    machine.hold(10 * PER_GIB);
    machine.look();
    // The owner takes what was offered and not held: the reserve is whole.
    machine.demand = 64 * GIB - 16 * GIB - machine.used;
    assert_eq!(machine.look(), Offer { extents: 10 * PER_GIB, ease: Ease::Tight });
    // Extents that are held and were never written are no reason to ask for them.
    machine.used /= 2;
    machine.demand = 64 * GIB - 16 * GIB - machine.used;
    assert_eq!(machine.look(), Offer { extents: 10 * PER_GIB, ease: Ease::Tight });
    // Short of a fifth of what is used: a fifth of what is held.
    machine.demand += GIB;
    assert_eq!(machine.look(), Offer { extents: 8 * PER_GIB, ease: Ease::Shrinking });
}

#[test]
fn a_machine_that_is_full_of_others_gets_all_of_it_back() {
    let mut machine = Machine::new(40 * PER_GIB, 16 * GIB);
    machine.hold(10 * PER_GIB);
    machine.look();
    machine.demand = 64 * GIB - machine.used;
    assert_eq!(machine.look(), Offer { extents: 0, ease: Ease::Shrinking });
}

#[test]
fn an_owner_who_outruns_what_can_be_moved_gets_all_before_nothing_is_left() {
    let mut machine = Machine::new(40 * PER_GIB, 4 * GIB);
    machine.hold(40 * PER_GIB);
    machine.demand = 18 * GIB;
    machine.look();
    // A GiB a second, from 6 GiB on, of which 4 are the reserve.
    let (looks, step) = (192, 32 << 20);
    let mut take = || {
        machine.demand += step;
        machine.look_after(OWNER_LOOK_SHORT_NS).ease
    };
    let eases: Vec<_> = (1..=looks).map(|_| take()).collect();
    let outrun = eases.iter().position(|ease| *ease == Ease::Outrun).expect("it ends");
    assert!(eases[64..outrun].iter().all(|ease| *ease == Ease::Shrinking), "{eases:?}");
    let left_ns = (looks - 1 - outrun as u64) * OWNER_LOOK_SHORT_NS;
    let needed = OWNER_LAST_NS + u64::from(40 * PER_GIB) * OWNER_LAST_EXTENT_NS;
    assert!(
        (needed - OWNER_LOOK_SHORT_NS..=needed + OWNER_LOOK_SHORT_NS).contains(&left_ns),
        "{left_ns} ns left"
    );
}

#[test]
fn a_burst_is_no_reason_to_end_nor_is_little_that_becomes_no_less() {
    let mut machine = Machine::new(40 * PER_GIB, 4 * GIB);
    machine.hold(40 * PER_GIB);
    machine.demand = 23 * GIB;
    machine.look();
    // Nine parts in ten of what is left, between two looks: at that rate it would last 14 ms.
    machine.demand += 920 << 20;
    let after_burst: Vec<_> = (0..8).map(|_| machine.look_after(OWNER_LOOK_SHORT_NS).ease).collect();
    assert!(after_burst.iter().all(|ease| *ease == Ease::Shrinking), "{after_burst:?}");
    let mut machine = Machine::new(40 * PER_GIB, 4 * GIB);
    machine.hold(40 * PER_GIB);
    machine.demand = 24 * GIB - 4096;
    let with_one_block: Vec<_> = (0..8).map(|_| machine.look_after(OWNER_LOOK_SHORT_NS).ease).collect();
    assert!(with_one_block.iter().all(|ease| *ease == Ease::Shrinking), "{with_one_block:?}");
}

#[test]
fn a_donor_without_data_has_nothing_to_free_by_ending() {
    let mut machine = Machine::new(40 * PER_GIB, 4 * GIB);
    for (used, ease) in [(EXTENT_BYTES - 1, Ease::Shrinking), (EXTENT_BYTES, Ease::Outrun)] {
        machine.hold(1);
        machine.used = used;
        machine.demand = 61 * GIB;
        machine.look();
        machine.demand = 64 * GIB - machine.used;
        assert_eq!(machine.look().ease, ease, "{used} bytes");
    }
}

#[test]
fn it_looks_most_often_while_the_reserve_becomes_less() {
    let mut machine = Machine::new(40 * PER_GIB, 4 * GIB);
    assert_eq!(machine.pause_after(50 * GIB), OWNER_LOOK_NS, "it holds nothing");
    machine.hold(1);
    assert_eq!(machine.pause_after(50 * GIB), OWNER_LOOK_HOLDING_NS);
    assert_eq!(machine.pause_after(61 * GIB), OWNER_LOOK_SHORT_NS);
    assert_eq!(machine.pause_after(61 * GIB), OWNER_LOOK_HOLDING_NS, "short for long is no reason");
}

#[test]
fn it_grows_back_after_calm_and_slowly() {
    let mut machine = Machine::new(100, 16 * GIB);
    machine.hold(100);
    machine.look();
    machine.demand = 64 * GIB;
    assert_eq!(machine.look().extents, 0);
    machine.hold(0);
    machine.demand = 8 * GIB;
    let calm = OWNER_CALM_NS / SECOND_NS;
    assert!(machine.pass(calm - 1).iter().all(|offer| *offer == 0));
    let grown = machine.pass(41);
    assert_eq!([grown[0], grown[9], grown[10], grown[19], grown[20], grown[40]], [5, 5, 10, 10, 15, 25]);
    assert_eq!(machine.pass(1000).pop(), Some(100));
}

#[test]
fn it_does_not_grow_to_where_the_next_breath_makes_it_shrink() {
    let mut machine = Machine::new(60 * PER_GIB, 16 * GIB);
    machine.demand = 64 * GIB;
    machine.look();
    machine.demand = 8 * GIB;
    assert_eq!(machine.pass(2000).pop(), Some(38 * PER_GIB), "an eighth of the reserve is left between");
    machine.hold(38 * PER_GIB);
    machine.demand += 2 * GIB - 1;
    assert_eq!(machine.look().extents, 38 * PER_GIB);
}

#[test]
fn an_owner_who_comes_and_goes_makes_the_offer_fall_once() {
    let mut machine = Machine::new(40 * PER_GIB, 16 * GIB);
    machine.hold(40 * PER_GIB);
    machine.look();
    let mut offers = Vec::new();
    for _ in 0..50 {
        machine.demand = 12 * GIB;
        offers.extend(machine.pass(5));
        machine.hold(36 * PER_GIB);
        machine.demand = 8 * GIB;
        offers.extend(machine.pass(15));
    }
    assert!(offers.iter().all(|offer| *offer == 36 * PER_GIB), "{offers:?}");
}

#[test]
fn waiting_for_memory_counts_only_where_little_is_left() {
    let much = |total| Pressure { some_avg10: 9000, full_avg10: 5000, stall_ns_total: total };
    let mut machine = Machine::new(20 * PER_GIB, 8 * GIB);
    machine.hold(20 * PER_GIB);
    machine.pressure = Some(much(0));
    assert_eq!(machine.look().ease, Ease::Plenty, "someone waits, with 36 GiB left: not for ours");
    machine.demand = 64 * GIB - machine.used - 10 * GIB;
    machine.pressure = Some(Pressure::default());
    assert_eq!(machine.look().ease, Ease::Plenty);
    machine.pressure = Some(Pressure { some_avg10: 2000, ..Pressure::default() });
    assert_eq!(machine.look(), Offer { extents: 20 * PER_GIB, ease: Ease::Tight });
    // A fifth of the last second, long before an average of ten of them shows it.
    machine.pressure = Some(Pressure { stall_ns_total: 200 * MILLISECOND_NS, ..Pressure::default() });
    let twice_the_reserve = Offer { extents: 14 * PER_GIB, ease: Ease::Shrinking };
    assert_eq!(machine.look(), twice_the_reserve);
    assert_eq!(machine.look(), twice_the_reserve, "and does not fall on while it is being moved");
}

#[test]
fn without_a_reserve_it_yields_only_the_last_byte() {
    let mut machine = Machine::new(20 * PER_GIB, 0);
    machine.hold(20 * PER_GIB);
    machine.pressure = Some(Pressure { some_avg10: 9000, full_avg10: 9000, stall_ns_total: 0 });
    machine.look();
    machine.demand = 64 * GIB - machine.used;
    assert_eq!(machine.look().extents, 20 * PER_GIB);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever owner and pool do: never above the most, never faster up than agreed, and once what is held
    /// is within the offer the reserve is whole.
    #[test]
    fn the_reserve_is_given_back(
        demands in prop::collection::vec((0..72_u64, 1..60_u64, any::<bool>()), 1..20),
        max in 1..2000_u32, reserve in 0..24_u64, written in 1..=4_u64,
    ) {
        let mut machine = Machine::new(max, reserve * GIB);
        let (mut before, mut rises) = (machine.look().extents, Vec::new());
        for (demand, seconds, fills) in demands {
            machine.demand = demand * GIB;
            for _ in 0..seconds {
                let offer = machine.look();
                prop_assert!(offer.extents <= max);
                let short = matches!(offer.ease, Ease::Shrinking | Ease::Outrun);
                prop_assert_eq!(short, offer.extents < machine.held);
                if offer.extents > before {
                    prop_assert!(offer.extents - before <= (max / 20).max(1));
                    rises.push(machine.now);
                }
                before = offer.extents;
                let whole = machine.available() >= reserve * GIB;
                prop_assert!(whole || machine.held == 0 || short);
                machine.held = if fills && offer.extents > machine.held {
                    offer.extents.min(machine.held + 200)
                } else {
                    machine.held.saturating_sub(20).max(offer.extents.min(machine.held))
                };
                machine.used = u64::from(machine.held) * EXTENT_BYTES * written / 4;
            }
        }
        prop_assert!(rises.windows(2).all(|pair| pair[1] - pair[0] >= OWNER_GROW_NS));
    }
}
