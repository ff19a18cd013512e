//! `cheetah doctor`: what of this machine is in the way of lending, attaching or coordinating, and what to do
//! about it.
//!
//! Owns what is printed. Parts: `judge` decides from what was found, and does nothing else; `look` finds it,
//! and changes nothing. Tests: `doctor/judge.rs`; `lab/tests/install.rs`.

mod judge;
mod look;

use crate::cli_machine::Doctor;
use crate::failure::{Exit, Failure};
use crate::output;
use judge::{Judgement, State};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Report {
    /// The worst of all.
    state: State,
    checks: Vec<Judgement>,
}

pub async fn doctor(options: Doctor) -> Result<(), Failure> {
    let found = look::look(&options.pool).await?;
    let checks = judge::judge(&found);
    let state = checks.iter().map(|check| check.state).max().unwrap_or(State::Ok);
    if options.json.json {
        output::json(&Report { state, checks })?;
    } else {
        checks.iter().for_each(|check| output::line(&line(check)));
    }
    match state {
        State::InTheWay => Err(Failure::reported(Exit::Unwell)),
        State::Ok | State::Slower => Ok(()),
    }
}

fn line(check: &Judgement) -> String {
    let Judgement { state, check, found, advice } = check;
    let advice = advice.as_ref().map(|advice| format!("; {advice}")).unwrap_or_default();
    format!("{:<10}  {check:<18}  {found}{advice}", state.to_string())
}
