//! Every way in which writers and a donor can end around a write, one after the other: what seeds draw from,
//! walked through to the end.
//!
//! Owns: a world of one row and as many donors as it has fragments, without spares; the order of all that
//! happens in it, each order once; and what must hold: whoever attaches next reads what was acknowledged, or
//! what was being written, and the same again. Never: chance, bytes on a wire (`serving` has those), or the
//! coordinator, for which stands what it does with an amendment, and that it may start again meanwhile.
//!
//! A walk is made of lives. In each a writer attaches, reads all, writes, and may be killed between any two
//! events; once in a walk a donor is killed, or stands still for a while. What a life leaves behind is a
//! *legacy*; equal ones are followed once. Deliveries to several donors commute until the writer hears of
//! one, so they come in one order. Key rule: paths are told apart by choices alone, so a path is replayed by
//! them. Files: `life`, `legacy`. Tests: `tests/walk.rs`.

mod legacy;
mod life;

use crate::bugs::Bug;
use crate::plan::Layout;
use legacy::Legacy;
use life::{End, live};
use std::collections::HashSet;

/// One that is acknowledged before anything happens, a writer, and two that come after it.
pub const LIVES: usize = 4;

/// What is walked.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The fragments of the row; spares are none.
    pub layout: Layout,
    /// Writers, one after the other. Only the last one is never killed.
    pub lives: usize,
    /// Paths after which the walk is given up.
    pub paths_max: u64,
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
}

impl Choices {
    fn choose(&mut self, of: usize) -> usize {
        if of < 2 {
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

    /// The next path; false when that was the last.
    fn advance(&mut self) -> bool {
        self.next = 0;
        while let Some((choice, of)) = self.made.pop() {
            if choice + 1 < of {
                self.made.push((choice + 1, of));
                return true;
            }
        }
        false
    }
}

/// Walks through all there is, or to the first failure.
#[must_use]
pub fn walk(setup: Setup, mut told: impl FnMut(&Walked)) -> Walked {
    let Setup { layout, lives, paths_max, bug } = setup;
    let mut walked = Walked { is_complete: true, ..Walked::default() };
    let (mut known, mut followed) = (HashSet::new(), HashSet::new());
    // The first writer's first write is acknowledged before anything else happens.
    let mut legacies = vec![(Legacy::new(layout), 0)];
    while let Some((legacy, life)) = legacies.pop() {
        walked.legacies += 1;
        let mut choices = Choices::default();
        loop {
            if walked.paths >= paths_max {
                walked.is_complete = false;
                return walked;
            }
            walked.paths += 1;
            let one = live(legacy.clone(), (life, lives), bug, &mut choices, &mut known);
            match one {
                Ok((end, events)) => {
                    walked.events += events;
                    if let End::Left(legacy) = end
                        && followed.insert((life, legacy.digest()))
                    {
                        legacies.push((*legacy, life + 1));
                    }
                }
                Err(what) => {
                    walked.failure = Some(format!("life {life}: {what}; choices {:?}", choices.made));
                    return walked;
                }
            }
            if walked.paths.is_multiple_of(10_000) {
                told(&walked);
            }
            if !choices.advance() {
                break;
            }
        }
    }
    walked
}
