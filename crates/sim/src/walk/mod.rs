//! Every way in which writers and a donor can end around a write, one after the other: what seeds draw from,
//! walked through to the end.
//!
//! Owns: a world of core's three machines, one row, its donors and spares; the order of all that happens in
//! it, each order once; and what must hold: whoever attaches next reads what was acknowledged, or what was
//! being written, and the same again; nothing lands of who lost its lease; nothing hangs. Never: chance (the
//! seed is one), or bytes on a wire (`serving` has those).
//!
//! A walk is made of lives. In each a writer waits for its lease, reads all, writes, and may be killed
//! between any two events; once in a walk a donor is killed, or stands still for a while, and once the
//! coordinator starts again around a step that it stores. What a life leaves behind is a *legacy*; equal
//! ones are followed once. Deliveries to several donors commute until the writer hears of one, so they come
//! in one order. Calls to the coordinator are carried at once. Key rule: paths are told apart by choices
//! alone, so a path is replayed by them.
//!
//! Files: `life` (what may happen), `writer` (its machine and its user), `donor`, `pool` (the coordinator,
//! and calls), `legacy`, `digest`. Tests: `tests/walk.rs`.

mod digest;
mod donor;
mod legacy;
mod life;
mod pool;
mod writer;

use crate::bugs::Bug;
use crate::plan::Layout;
use cheetah_core::seed::Seed;
use legacy::Legacy;
use life::{End, Known, live};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

/// One that is acknowledged before anything happens, a writer, and two that come after it.
pub const LIVES: usize = 4;

/// Paths from one beginning before another has its turn.
const TURN: u64 = 50;
/// Beginnings of one stage that wait: each has a copy of the world.
const BEGINNINGS_MAX: usize = 2_000;

/// What is walked.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The fragments of the row, and donors beside those.
    pub layout: Layout,
    /// Writers, one after the other. Only the last one is never killed.
    pub lives: usize,
    /// Paths after which the walk is given up.
    pub paths_max: u64,
    /// Which of them come first.
    pub seed: u64,
    pub bug: Option<Bug>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Walked {
    /// Orders of events, each to the end of a life.
    pub paths: u64,
    pub events: u64,
    /// Different ones that a life began with.
    pub legacies: u64,
    /// All there were.
    pub is_complete: bool,
    /// What did not hold, and the choices that lead there.
    pub failure: Option<String>,
}

/// The choices of one path: each, and of how many.
#[derive(Default)]
struct Choices {
    made: Vec<(usize, usize)>,
    next: usize,
    /// The first of each is taken, and nothing is noted.
    is_off: bool,
}

impl Choices {
    fn choose(&mut self, of: usize) -> usize {
        if of < 2 || self.is_off {
            return 0;
        }
        if self.next == self.made.len() {
            self.made.push((0, of));
        }
        let (choice, known) = self.made[self.next];
        assert_eq!(known, of, "a path does the same when it is walked again");
        self.next += 1;
        choice
    }

    /// Whether the path has left those that were walked before.
    fn are_new(&self) -> bool {
        self.next == self.made.len()
    }
}

/// A path that was walked, and another choice at one place of it.
struct Turn {
    path: Rc<[(usize, usize)]>,
    at: usize,
    choice: usize,
}

/// The choices of the lives before, the newest first.
struct Trail {
    life: usize,
    made: Vec<(usize, usize)>,
    before: Option<Rc<Trail>>,
}

impl Trail {
    fn show(&self) -> String {
        let before = self.before.as_ref().map_or(String::new(), |before| before.show() + " ");
        let made: Vec<String> = self.made.iter().map(|(choice, _)| choice.to_string()).collect();
        format!("{before}life {}: [{}]", self.life, made.join(","))
    }
}

/// What is walked from one legacy on.
struct Beginning {
    legacy: Legacy,
    life: usize,
    /// Paths that are left; none yet where none was walked.
    turns: Option<Vec<Turn>>,
    trail: Option<Rc<Trail>>,
}

impl Beginning {
    /// Any of the paths that are left: those beside each other differ in what came last alone.
    fn next(&mut self, seed: &mut Seed) -> Option<Choices> {
        let Some(turns) = &mut self.turns else { return Some(Choices::default()) };
        if turns.is_empty() {
            return None;
        }
        let Turn { path, at, choice } = turns.swap_remove((seed.draw() % turns.len() as u64) as usize);
        let other = (choice, path[at].1);
        Some(Choices { made: path[..at].iter().copied().chain([other]).collect(), next: 0, is_off: false })
    }

    /// What else could have been chosen where nobody has chosen before: from the place `new` on.
    fn walked(&mut self, made: &[(usize, usize)], new: usize) {
        let path: Rc<[(usize, usize)]> = made.into();
        let turns = self.turns.get_or_insert_default();
        for (at, (_, of)) in (0..).zip(made).skip(new) {
            turns.extend((1..*of).map(|choice| Turn { path: Rc::clone(&path), at, choice }));
        }
    }
}

/// Beginnings by how far they are: waiting for a lease, and with one, of each life; without the fault and
/// with it, for there are many more of those that had it.
struct Beginnings {
    stages: Vec<VecDeque<Beginning>>,
    next: usize,
}

impl Beginnings {
    fn push(&mut self, legacy: Legacy, life: usize, trail: Option<Rc<Trail>>) {
        self.stages[stage_of(&legacy, life)].push_back(Beginning { legacy, life, turns: None, trail });
    }

    /// Of each stage in turn, so that all are walked however early it ends. Who would leave more than can be
    /// kept waits.
    fn pop(&mut self) -> Option<Beginning> {
        let count = self.stages.len();
        let in_turn = |nth: usize| (self.next + nth) % count;
        let is_next = |stage: &usize| {
            let mut after = self.stages.iter().skip(stage / 2 * 2 + 2).take(2);
            let room = after.all(|after| after.len() < BEGINNINGS_MAX);
            room && !self.stages[*stage].is_empty()
        };
        let stage = (0..count).map(in_turn).find(is_next)?;
        self.next = stage + 1;
        self.stages[stage].pop_front()
    }
}

/// Walks through all there is, or to the first failure.
#[must_use]
pub fn walk(setup: Setup, mut told: impl FnMut(&Walked)) -> Walked {
    let Setup { layout, lives, paths_max, seed, bug } = setup;
    let mut walked = Walked { is_complete: true, ..Walked::default() };
    let (mut known, mut followed) = (Known::new(), HashSet::new());
    let stages = (0..4 * lives).map(|_| VecDeque::new()).collect();
    let mut beginnings = Beginnings { stages, next: 0 };
    // The first writer's first write is acknowledged before anything else happens.
    match Legacy::new(layout, bug) {
        Ok(legacy) => beginnings.push(legacy, 0, None),
        Err(what) => return Walked { failure: Some(what), ..walked },
    }
    let mut seed = Seed(seed);
    while let Some(mut beginning) = beginnings.pop() {
        walked.legacies += u64::from(beginning.turns.is_none());
        let life = beginning.life;
        for _ in 0..TURN {
            let Some(mut choices) = beginning.next(&mut seed) else { break };
            if walked.paths >= paths_max {
                walked.is_complete = false;
                return walked;
            }
            walked.paths += 1;
            let new = choices.made.len();
            let one = live(beginning.legacy.clone(), (life, lives), &mut choices, &mut known);
            beginning.walked(&choices.made, new);
            let trail = Trail { life, made: choices.made, before: beginning.trail.clone() };
            match one {
                Ok((end, events)) => {
                    walked.events += events;
                    if let End::Left(legacy, next) = end
                        && followed.insert((next, legacy.digest()))
                    {
                        beginnings.push(*legacy, next, Some(Rc::new(trail)));
                    }
                }
                Err(what) => {
                    walked.failure = Some(format!("{what}; {}", trail.show()));
                    return walked;
                }
            }
            if walked.paths.is_multiple_of(10_000) {
                told(&walked);
            }
        }
        if beginning.turns.as_ref().is_some_and(|turns| !turns.is_empty()) {
            beginnings.stages[stage_of(&beginning.legacy, life)].push_back(beginning);
        }
    }
    walked
}

fn stage_of(legacy: &Legacy, life: usize) -> usize {
    life * 4 + 2 * usize::from(legacy.attached.is_some()) + usize::from(legacy.fault_left)
}
