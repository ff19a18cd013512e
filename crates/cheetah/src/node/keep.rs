//! One thing of a node, kept: started, started again when it ends, ended when the node does.
//!
//! Owns what an end means. Never: the order among several (`node`). Invariants: what a pool dismissed, and
//! what cannot be started as it was typed, is not started again; an attachment that is there already is taken
//! over. Called by `node`. Tests: `lab/tests/node.rs`.

use super::child::{As, Child, Ended, Next, Program};
use super::pause::Pause;
use super::{Phase, State};
use crate::cli_node::{Attachment, Lender};
use crate::failure::Failure;
use crate::output;
use crate::runtime_dir::{OtherClaim, Record, RuntimeDir};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Between two looks whether an attachment is there.
const LOOK: Duration = Duration::from_millis(500);
/// Told twice to end, until it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why something is not started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The node ends.
    Told,
    LetGo,
    CannotStart,
}

/// Told by one of several.
#[derive(Debug)]
pub struct News {
    pub number: usize,
    pub state: State,
}

/// What each needs to be kept.
#[derive(Debug)]
pub struct Keeper {
    pub number: usize,
    pub label: String,
    pub program: Program,
    pub phase: watch::Receiver<Phase>,
    pub news: mpsc::UnboundedSender<News>,
}

impl Keeper {
    fn tell(&self, state: State) {
        // Who listens has ended only with this task.
        let _ = self.news.send(News { number: self.number, state });
    }

    fn note(&self, text: &str) {
        output::note(&format!("{}: {text}", self.label));
    }

    async fn reached(&mut self, phase: Phase) {
        if self.phase.wait_for(|now| *now >= phase).await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits before the next start; whether there shall be one.
    async fn rest(&mut self, pause: Duration, until: Phase) -> bool {
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = self.reached(until) => false,
        }
    }

    /// It has ended by itself: for good, or until the pause is over.
    async fn after(&mut self, ended: Ended, pause: Duration, until: Phase) -> Option<Outcome> {
        let what = match ended {
            Ended::Usage => {
                self.tell(State::Gone);
                self.note("it cannot be started as it is typed, and is not started again");
                return Some(Outcome::CannotStart);
            }
            Ended::Well => "it ended".to_owned(),
            Ended::Badly(Some(status)) => format!("it ended with {status}"),
            Ended::Badly(None) => "it did not start".to_owned(),
        };
        self.tell(State::Troubled);
        self.note(&format!("{what}; it is started again in {} s", pause.as_secs()));
        (!self.rest(pause, until).await).then_some(Outcome::Told)
    }
}

/// A donor, whether of memory or of a disk.
pub async fn donor(lender: Lender, mut keeper: Keeper) -> Outcome {
    let mut pause = Pause::default();
    loop {
        let begun = Instant::now();
        let command = ("donate", As::Donor);
        let ended = match keeper.program.start(&keeper.label, command, &lender.words, lender.names_pool) {
            Ok(mut child) => match run_donor(&mut child, &mut keeper).await {
                Some(ended) => ended,
                None => return Outcome::Told,
            },
            Err(why) => {
                keeper.note(&format!("the kernel does not start it: {why}"));
                Ended::Badly(None)
            }
        };
        if ended == Ended::Well {
            keeper.tell(State::Gone);
            keeper.note("its pool let it go; it is not started again");
            return Outcome::LetGo;
        }
        if let Some(outcome) = keeper.after(ended, pause.after(begun.elapsed()), Phase::DonorsEnd).await {
            return outcome;
        }
    }
}

/// How it ended by itself. None: it was told to.
async fn run_donor(child: &mut Child, keeper: &mut Keeper) -> Option<Ended> {
    loop {
        tokio::select! {
            next = child.next() => match next {
                Next::Ready => keeper.tell(State::WasReady),
                Next::Ended(ended) => return Some(ended),
            },
            () = keeper.reached(Phase::DonorsEnd) => break,
        }
    }
    child.tell_to_end();
    tokio::select! {
        _ = child.ended() => return None,
        () = keeper.reached(Phase::AtOnce) => child.tell_to_end(),
    }
    if tokio::time::timeout(PATIENCE, child.ended()).await.is_err() {
        keeper.note("it does not end, and is killed");
        child.kill().await;
    }
    None
}

/// A volume that shall be attached.
pub async fn attachment(attachment: Attachment, mut keeper: Keeper) -> Outcome {
    keeper.reached(Phase::Runs).await;
    let mut pause = Pause::default();
    let outcome = loop {
        if *keeper.phase.borrow() >= Phase::Detaches {
            break Outcome::Told;
        }
        let begun = Instant::now();
        let ended = match attached(&attachment.name) {
            Ok(Some(claim)) => {
                keeper.tell(State::WasReady);
                tokio::select! {
                    () = gone(&claim) => Ended::Well,
                    () = keeper.reached(Phase::Detaches) => break Outcome::Told,
                }
            }
            Ok(None) => match attach(&attachment, &mut keeper).await {
                Some(Ended::Well) => continue,
                Some(ended) => ended,
                None => break Outcome::Told,
            },
            Err(failure) => {
                keeper.note(&failure.text());
                Ended::Badly(None)
            }
        };
        if let Some(outcome) = keeper.after(ended, pause.after(begun.elapsed()), Phase::Detaches).await {
            break outcome;
        }
    };
    if outcome == Outcome::Told {
        detach(&attachment, &mut keeper).await;
    }
    outcome
}

/// Who has the volume attached here.
fn attached(name: &str) -> Result<Option<OtherClaim>, Failure> {
    let directory = RuntimeDir::open()?;
    let record = directory.load::<Record>(name)?;
    if record.is_none_or(|record| record.is_starting()) {
        return Ok(None);
    }
    Ok(directory.other_claim(name)?.filter(|claim| !claim.has_ended()))
}

async fn gone(claim: &OtherClaim) {
    while !claim.has_ended() {
        tokio::time::sleep(LOOK).await;
    }
}

/// How the command ended. None: it was interrupted, and has taken back what it had begun.
async fn attach(attachment: &Attachment, keeper: &mut Keeper) -> Option<Ended> {
    let Attachment { words, names_pool, .. } = attachment;
    let command = ("attach", As::Client);
    let mut child = match keeper.program.start(&keeper.label, command, words, *names_pool) {
        Ok(child) => child,
        Err(why) => {
            keeper.note(&format!("the kernel does not start it: {why}"));
            return Some(Ended::Badly(None));
        }
    };
    tokio::select! {
        ended = child.ended() => return Some(ended),
        () = keeper.reached(Phase::Detaches) => child.tell_to_end(),
    }
    tokio::select! {
        _ = child.ended() => return None,
        // It then waits for nothing.
        () = keeper.reached(Phase::AtOnce) => child.tell_to_end(),
    }
    child.ended().await;
    None
}

/// Ends it if it is there. It says what is in the way, which may be somebody who uses it.
async fn detach(attachment: &Attachment, keeper: &mut Keeper) {
    let name = &attachment.name;
    if !matches!(attached(name), Ok(Some(_))) {
        return;
    }
    let left = |why: &str| format!("{why}: `cheetah detach {name}` ends it");
    let command = ("detach", As::Client);
    let started = keeper.program.start(&keeper.label, command, std::slice::from_ref(name), false);
    let mut child = match started {
        Ok(child) => child,
        Err(why) => {
            return keeper
                .note(&left(&format!("it is still attached, for the kernel starts nothing ({why})")));
        }
    };
    tokio::select! {
        ended = child.ended() => if ended != Ended::Well {
            keeper.note(&left("it is still attached"));
        },
        () = keeper.reached(Phase::AtOnce) => keeper.note(&left("it may be attached for a while")),
    }
}
