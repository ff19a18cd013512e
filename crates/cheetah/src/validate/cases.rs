//! Which function does which case.
//!
//! Owns that list. Never: what is done. Called by `super`. Files: `acquiring` (from a source into the pool,
//! and out), `blocking` (tools at an attachment), `proving` (manifest and log), `harming` (the private pool).
//! Tests: below; `lab/tests/validate.rs`.

mod acquiring;
mod blocking;
mod harming;
mod proving;

use super::case::{Case, Done, Outcome, Stop};
use super::requirements::Planned;
use super::stage::Stage;

pub async fn run(stage: &mut Stage, planned: &'static Planned) -> Outcome {
    let mut case = Case::begin(planned);
    let done = by_name(stage, &mut case, planned.id).await;
    let outcome = case.end(done);
    stage.tidy().await;
    outcome
}

async fn by_name(stage: &mut Stage, case: &mut Case, id: &str) -> Done {
    match id {
        "raw" => acquiring::raw(stage, case).await,
        "parts" => acquiring::parts(stage, case).await,
        "e01" => acquiring::e01(stage, case).await,
        "source-file" => acquiring::source_file(stage, case).await,
        "source-medium" => acquiring::source_medium(stage, case).await,
        "bad-sector" => acquiring::bad_sector(stage, case).await,
        "killed-load" => acquiring::killed_load(stage, case).await,
        "save" => acquiring::save(stage, case).await,
        "read-export" => blocking::read_export(stage, case).await,
        "read-file" => blocking::read_file(stage, case).await,
        "write-export" => blocking::write_export(stage, case).await,
        "write-unsealed" => blocking::write_unsealed(stage, case).await,
        "write-file" => blocking::write_file(stage, case).await,
        "write-sealed" => blocking::write_sealed(stage, case).await,
        "manifest" => proving::manifest(stage, case).await,
        "custody" => proving::custody(stage, case).await,
        "flip" => harming::flip(stage, case).await,
        "flip-alone" => harming::flip_alone(stage, case).await,
        "forged" => harming::forged(stage, case).await,
        "dead-donor" => harming::dead_donor(stage, case).await,
        "dead-donor-alone" => harming::dead_donor_alone(stage, case).await,
        // The table and this list are one program's.
        other => Err(Stop::NotShown(format!("this program has no case {other}"))),
    }
}
