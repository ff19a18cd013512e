//! The world of the donor's tests: one donor machine, a scripted coordinator, and every effect kept.

use cheetah_core::api::{Duties, Duty};
use cheetah_core::donor::{Access, ConnId, Donor, Effect, Event, export_name};
use cheetah_core::limits::SECOND_NS;
use cheetah_core::map::{DonorId, LeaseToken, PoolId, VolumeId};
use cheetah_core::units::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const POOL: PoolId = PoolId(5);
pub(crate) const WRITER: LeaseToken = LeaseToken(0xa);
pub(crate) const OTHER: LeaseToken = LeaseToken(0xb);

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) donor: Donor,
    pub(crate) access: Arc<Access>,
    pub(crate) wake: Option<Time>,
}

impl World {
    /// A donor of 8 extents that has asked to join.
    pub(crate) fn started() -> Self {
        let donor = Donor::new(DonorId(1), 8);
        let mut world = World { now: SECOND_NS, donor, access: Arc::default(), wake: None };
        let effects = world.step(Event::Started);
        assert!(
            effects.contains(&Effect::Join { donor: DonorId(1), pool: None, revision: 0, lineage: None }),
            "{effects:?}"
        );
        world
    }

    /// And is in the pool, with its first sync under way.
    pub(crate) fn joined() -> Self {
        let mut world = World::started();
        assert_eq!(world.step(Event::Joined { pool: POOL }), [sync(0, 0)]);
        world
    }

    /// And holds extents 0..4 for volume `v`, which `WRITER` may write.
    pub(crate) fn holding() -> Self {
        let mut world = World::joined();
        let effects = world.step(Event::Duties(duties(1, vec![duty(1, "v", 0..4, Some(WRITER))])));
        assert_eq!(effects, [sync(1, 0)], "what needs no wiping is confirmed at once");
        world
    }

    /// Everything but wake-ups and publications, which are kept.
    pub(crate) fn step(&mut self, event: Event) -> Vec<Effect> {
        let (mut effects, mut kept) = (Vec::new(), Vec::new());
        self.wake = None;
        self.donor.step(self.now, event, &mut effects);
        self.donor.check_invariants();
        for effect in effects {
            match effect {
                Effect::Publish(access) => self.access = access,
                Effect::WakeAt(at) => self.wake = Some(at),
                other => kept.push(other),
            }
        }
        kept
    }

    pub(crate) fn open(&mut self, conn: u64, name: &str, token: LeaseToken, session: u64) -> Vec<Effect> {
        self.step(Event::Opened {
            conn: ConnId(conn),
            export: export_name(name, token, session, self.donor.identity()),
            member: None,
        })
    }

    pub(crate) fn close(&mut self, conn: u64) -> Vec<Effect> {
        self.step(Event::Closed { conn: ConnId(conn) })
    }

    /// Jumps to the next wake-up.
    pub(crate) fn wake(&mut self) -> Vec<Effect> {
        self.now = self.wake.expect("waits for something");
        self.step(Event::Wake)
    }
}

pub(crate) fn sync(revision: u64, connections: u32) -> Effect {
    Effect::Sync {
        donor: DonorId(1),
        pool: Some(POOL),
        revision,
        connections,
        leaving: false,
        goodbye: false,
        offered: 8,
        incarnation: None,
    }
}

/// One that says that the donor wants to go.
pub(crate) fn leaving(revision: u64, connections: u32) -> Effect {
    Effect::Sync {
        donor: DonorId(1),
        pool: Some(POOL),
        revision,
        connections,
        leaving: true,
        goodbye: false,
        offered: 8,
        incarnation: None,
    }
}

pub(crate) fn goodbye(revision: u64, leaving: bool) -> Effect {
    Effect::Sync {
        donor: DonorId(1),
        pool: Some(POOL),
        revision,
        connections: 0,
        leaving,
        goodbye: true,
        offered: 8,
        incarnation: None,
    }
}

pub(crate) fn drop_of(conn: u64) -> Effect {
    Effect::Drop { conn: ConnId(conn) }
}

pub(crate) fn admits(effects: &[Effect], conn: u64) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Admit { conn: admitted, .. } if admitted.0 == conn))
}

pub(crate) fn duties(revision: u64, volumes: Vec<Duty>) -> Duties {
    Duties { revision, volumes, ..Duties::default() }
}

pub(crate) fn duty(
    volume: u64,
    name: &str,
    extents: std::ops::Range<u32>,
    writer: Option<LeaseToken>,
) -> Duty {
    let (volume, name, extents) = (VolumeId(volume), name.to_owned(), extents.collect());
    let (readers, members) = (Vec::new(), BTreeMap::new());
    Duty {
        volume,
        name,
        epoch: 1,
        extents,
        writer,
        repairs: false,
        sealed: false,
        readers,
        tend: false,
        backed: false,
        layers: 1,
        encrypted: false,
        write_back: false,
        members,
    }
}
