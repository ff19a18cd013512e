//! `cheetah node`: what one machine lends, and what it shall have attached, under one supervisor.
//!
//! Owns which processes there are, and the order of their start and end: donors, then attachments; at the
//! end attachments first, whose last writes this machine's donors may have to take. Never: lending or serving
//! (`donate`, `attach`; each is this program as it is typed). Each donor is a process, and not a task of one:
//! one that the kernel ends for its memory, whose disk hangs, or that is killed takes no other along, memory
//! that a donor locks and gives back counts as its own, and a supervisor that holds no data can be small.
//!
//! Invariants: what ends is started again, later each time, but for what its pool dismissed or what cannot be
//! started as it was typed; nothing that it started is left when it has ended, or is named. A supervisor that
//! is killed outright leaves all of it running. Called by `main`. Parts: `child` (a process and what it
//! says), `keep` (start, end and start again), `pause`. Tests: there; `lab/tests/node.rs`.

mod child;
mod keep;
mod pause;

use crate::cli_node::{Attachment, Lender, Node};
use crate::failure::Failure;
use crate::members;
use crate::output;
use crate::signals::Signals;
use cheetah_core::units::show_count;
use child::Program;
use keep::{Keeper, News, Outcome};
use serde_json::json;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// How far it is with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Starts,
    /// Donors are there, or are known to be in trouble: attachments begin.
    Runs,
    Detaches,
    DonorsEnd,
    /// Told twice: nothing is waited for.
    AtOnce,
}

pub async fn node(options: Node) -> Result<(), Failure> {
    check(&options)?;
    if options.check {
        return tell_plan(&options);
    }
    // Children end with this process's futures.
    crate::daemon::abort_on_panic();
    let signals = Signals::listen()?;
    let program = Program::own(options.pool.pool.clone())?;
    Supervisor::start(&options, &program).run(signals).await
}

fn check(options: &Node) -> Result<(), Failure> {
    if options.donate.is_empty() && options.attach.is_empty() {
        let advice = "write [node] with donate = [\"auto\"] or attach = [\"case7\"] into cheetah.toml, or give \
                      --donate or --attach";
        return Err(Failure::usage("this node has nothing to lend and nothing to attach").advise(advice));
    }
    let mut names = BTreeSet::new();
    match options.attach.iter().find(|attachment| !names.insert(&attachment.name)) {
        Some(Attachment { name, .. }) => {
            Err(Failure::usage(format!("volume '{name}' would be attached twice")).advise("name it once"))
        }
        None => Ok(()),
    }
}

/// What would be run.
fn tell_plan(options: &Node) -> Result<(), Failure> {
    let donors = options.donate.iter().map(|Lender { words, label, .. }| (label.clone(), "donate", words));
    let attachments = options.attach.iter();
    let attachments = attachments.map(|attachment| (label_of(attachment), "attach", &attachment.words));
    let all = donors.chain(attachments).map(|(label, command, words)| {
        // A token is nobody's to read.
        let plain = |word: &String| {
            members::without_token(OsStr::new(word)).map_or_else(|| word.clone(), |(plain, _)| plain)
        };
        let words = words.iter().map(plain);
        (label, [command.to_owned()].into_iter().chain(words).collect::<Vec<String>>())
    });
    if options.json.json {
        let all: Vec<_> = all.map(|(label, words)| json!({ "name": label, "command": words })).collect();
        return output::json(&json!({ "runs": all }));
    }
    for (label, words) in all {
        output::line(&format!("{label}: cheetah {}", words.join(" ")));
    }
    Ok(())
}

fn label_of(attachment: &Attachment) -> String {
    format!("volume {}", attachment.name)
}

/// All that it keeps running.
#[derive(Debug)]
struct Supervisor {
    phase: watch::Sender<Phase>,
    news: mpsc::UnboundedReceiver<News>,
    donors: JoinSet<Outcome>,
    attachments: JoinSet<Outcome>,
    /// Of those that are kept, donors first.
    states: Vec<State>,
    donors_count: usize,
    is_announced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starts,
    /// It has failed once, and is started again.
    Troubled,
    /// It was ready, whatever it is now.
    WasReady,
    /// It is not started again.
    Gone,
}

impl Supervisor {
    fn start(options: &Node, program: &Program) -> Supervisor {
        let (phase, _) = watch::channel(Phase::Starts);
        let (tell, news) = mpsc::unbounded_channel();
        let (mut donors, mut attachments) = (JoinSet::new(), JoinSet::new());
        let keeper = |number: usize, label: String| Keeper {
            number,
            label,
            program: program.clone(),
            phase: phase.subscribe(),
            news: tell.clone(),
        };
        for (number, lender) in options.donate.iter().enumerate() {
            donors.spawn(keep::donor(lender.clone(), keeper(number, lender.label.clone())));
        }
        for (number, attachment) in (options.donate.len()..).zip(&options.attach) {
            attachments.spawn(keep::attachment(attachment.clone(), keeper(number, label_of(attachment))));
        }
        let states = vec![State::Starts; donors.len() + attachments.len()];
        let donors_count = donors.len();
        Supervisor { phase, news, donors, attachments, states, donors_count, is_announced: false }
    }

    /// Until it is told to end, or nothing is left to keep.
    async fn run(mut self, mut signals: Signals) -> Result<(), Failure> {
        let outcomes = tokio::select! {
            outcomes = self.serve() => outcomes,
            _ = signals.next() => {
                output::waits("ending");
                self.end(&mut signals).await;
                output::line("stopped");
                return Ok(());
            }
        };
        if outcomes.contains(&Outcome::CannotStart) {
            let advice = "correct what is said above, and start it again";
            return Err(Failure::usage("nothing of this node runs any more").advise(advice));
        }
        output::line("nothing of this node runs any more: its pool let all of it go");
        Ok(())
    }

    /// What became of all, once all of it has ended for good.
    async fn serve(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        loop {
            self.go_on();
            tokio::select! {
                // What it told before it ended comes first.
                biased;
                Some(News { number, state }) = self.news.recv() => self.take(number, state),
                Some(ended) = self.donors.join_next() => outcomes.extend(ended.ok()),
                Some(ended) = self.attachments.join_next() => outcomes.extend(ended.ok()),
            }
            if outcomes.len() == self.states.len() {
                return outcomes;
            }
        }
    }

    fn take(&mut self, number: usize, state: State) {
        let was = &mut self.states[number];
        // One that is started again was ready all the same.
        if !(state == State::Troubled && *was == State::WasReady) {
            *was = state;
        }
    }

    /// Attachments begin once donors have; and it is ready once all is.
    fn go_on(&mut self) {
        if !self.states[..self.donors_count].contains(&State::Starts) {
            self.phase.send_if_modified(|phase| {
                let begins = *phase == Phase::Starts;
                if begins {
                    *phase = Phase::Runs;
                }
                begins
            });
        }
        let is_there = |state: &State| matches!(state, State::WasReady | State::Gone);
        let (donors, attachments) = self.states.split_at(self.donors_count);
        let ready =
            |states: &[State]| states.iter().filter(|state| **state == State::WasReady).count() as u64;
        let (donors, attachments) = (ready(donors), ready(attachments));
        if self.is_announced || !self.states.iter().all(is_there) || donors + attachments == 0 {
            return;
        }
        self.is_announced = true;
        let (donors, attachments) = (show_count(donors, "donor"), show_count(attachments, "attachment"));
        output::ready(&format!("node of {donors} and {attachments}"));
    }

    /// Attachments first. Told again, nothing is waited for.
    async fn end(&mut self, signals: &mut Signals) {
        for phase in [Phase::Detaches, Phase::DonorsEnd] {
            if self.is_at_once() {
                break;
            }
            self.phase.send_replace(phase);
            let tasks = if phase == Phase::Detaches { &mut self.attachments } else { &mut self.donors };
            tokio::select! {
                () = until_ended(tasks) => {}
                _ = signals.next() => {
                    self.phase.send_replace(Phase::AtOnce);
                }
            }
        }
        until_ended(&mut self.attachments).await;
        until_ended(&mut self.donors).await;
    }

    fn is_at_once(&self) -> bool {
        *self.phase.borrow() == Phase::AtOnce
    }
}

async fn until_ended(tasks: &mut JoinSet<Outcome>) {
    while tasks.join_next().await.is_some() {}
}
