//! A pool of many donors in this process: the coordinator's machine of `core`, and donors that do what they
//! are told at once. Measures the coordinator's own work.
//!
//! Never: a network, a store, time that passes. Called by: `scale`. Tests: below.

use std::collections::BTreeMap;
use std::time::Instant;

use cheetah_core::api::{API_VERSION, Answer, Call, Create, Join, Refusal, Size, Sync};
use cheetah_core::coordinator::{CallId, Coordinator, Effect, Event};
use cheetah_core::limits::SECOND_NS;
use cheetah_core::map::{DonorId, DonorSecret, Medium, PoolId};
use cheetah_core::members::Caller;
use cheetah_core::units::Time;

const EXTENTS: u32 = 4;
/// How many of the calls are measured where each is alike.
const SAMPLE: u64 = 1_000;

pub struct Simulated {
    coordinator: Coordinator,
    now: Time,
    calls: u64,
    /// Each donor's call that is held back until there is news, and what it has carried out.
    held: BTreeMap<CallId, DonorId>,
    revisions: BTreeMap<DonorId, u64>,
    answers: BTreeMap<CallId, Result<Answer, Refusal>>,
    /// What the last donors that joined took, each.
    pub join_us: f64,
}

impl Simulated {
    pub fn with_donors(donors: u64) -> Self {
        let mut pool = Self {
            coordinator: Coordinator::new(PoolId(1)),
            now: SECOND_NS,
            calls: 0,
            held: BTreeMap::new(),
            revisions: BTreeMap::new(),
            answers: BTreeMap::new(),
            join_us: 0.0,
        };
        pool.step(Event::Wake);
        let sample = SAMPLE.min(donors);
        let mut start = Instant::now();
        for number in 1..=donors {
            if number == donors - sample + 1 {
                start = Instant::now();
            }
            pool.ask(Call::Join(joining(number))).expect("a donor joins");
        }
        pool.join_us = start.elapsed().as_secs_f64() * 1e6 / sample as f64;
        for number in 1..=donors {
            pool.sync(DonorId(number));
        }
        pool.settle();
        pool
    }

    /// The work for a heartbeat, while nothing else happens.
    pub fn heartbeat_us(&mut self) -> f64 {
        let donors: Vec<DonorId> = self.revisions.keys().copied().take(SAMPLE as usize).collect();
        let start = Instant::now();
        donors.iter().for_each(|donor| self.sync(*donor));
        start.elapsed().as_secs_f64() * 1e6 / donors.len() as f64
    }

    /// The work for a volume over everything, until every donor has confirmed and its maker has his answer.
    pub fn create_all_ms(&mut self) -> f64 {
        let create = Create::new("all", Size::All);
        let start = Instant::now();
        let call = self.call(Call::Create(create));
        self.settle();
        match self.answers.remove(&call) {
            Some(Ok(Answer::Volume(_))) => start.elapsed().as_secs_f64() * 1e3,
            other => panic!("no volume over all that is free: {other:?}"),
        }
    }

    fn sync(&mut self, donor: DonorId) {
        let revision = self.revisions.get(&donor).copied().unwrap_or(0);
        let sync = Sync {
            secret: DonorSecret(donor.0),
            revision,
            bytes_used: 0,
            connections: 0,
            leaving: false,
            goodbye: false,
            extents_offered: EXTENTS,
            incarnation: None,
        };
        let call = self.call(Call::Sync { donor, sync });
        self.revisions.entry(donor).or_default();
        self.held.insert(call, donor);
    }

    /// Every donor carries out what it heard and asks again, until nobody hears anything new.
    fn settle(&mut self) {
        loop {
            let heard: Vec<(CallId, DonorId)> = self
                .held
                .iter()
                .filter(|(call, _)| self.answers.contains_key(call))
                .map(|(call, donor)| (*call, *donor))
                .collect();
            if heard.is_empty() {
                return;
            }
            for (call, donor) in heard {
                self.held.remove(&call);
                if let Some(Ok(Answer::Duties(duties))) = self.answers.remove(&call)
                    && self.revisions.insert(donor, duties.revision) != Some(duties.revision)
                {
                    self.sync(donor);
                }
            }
        }
    }

    fn ask(&mut self, call: Call) -> Result<Answer, Refusal> {
        let call = self.call(call);
        self.answers.remove(&call).expect("answered at once")
    }

    fn call(&mut self, request: Call) -> CallId {
        self.calls += 1;
        let call = CallId(self.calls);
        let entropy = self.calls.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.step(Event::Call { call, entropy, pool: None, caller: Caller::Anyone, request });
        call
    }

    fn step(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.coordinator.step(self.now, event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Reply { call, answer } => drop(self.answers.insert(call, answer)),
                Effect::Greet { call, .. } => self.step(Event::Greeted { call, result: Ok(()) }),
                _ => {}
            }
        }
    }
}

fn joining(number: u64) -> Join {
    Join {
        version: API_VERSION,
        donor: DonorId(number),
        secret: DonorSecret(number),
        pool: None,
        revision: 0,
        name: format!("donor-{number}"),
        or_numbered: false,
        machine: String::new(),
        host: format!("host-{number}"),
        address: format!("10.{}.{}.{}:10809", number >> 16 & 255, number >> 8 & 255, number & 255),
        extents: EXTENTS,
        foreign_export: None,
        medium: Medium::Memory,
        keeps_auths: false,
        lineage: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_over_a_whole_pool_is_made() {
        let mut pool = Simulated::with_donors(20);
        assert!(pool.join_us > 0.0 && pool.heartbeat_us() > 0.0);
        assert!(pool.create_all_ms() > 0.0);
        assert!(matches!(pool.ask(Call::Show { name: "all".into() }), Ok(Answer::Volume(_))));
    }
}
