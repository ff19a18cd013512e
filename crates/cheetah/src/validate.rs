//! `cheetah validate`: whether this program, on this machine and this pool, does what a laboratory has to
//! show of its tools; and a report that says what was shown and what was not.
//!
//! Owns the order of the cases, the verdict, and the files of the report. Never: a volume, an attachment or
//! a donor of others; a verdict of what was not done. Invariants: each case runs this program as an
//! examiner runs it; what is made is taken back, also after Ctrl-C; what is signed is written as it was
//! signed. Files: `requirements` (what is shown, and why), `cases` (how), `case` (a verdict), `stage`
//! (what cases share), `program` (its commands), `private` (the pool that is harmed), `image`, `medium`,
//! `memory` and `probe` (what faults and tools are made of), `facts` (where it was done), `page` (for
//! people). Tests: `lab/tests/validate.rs`. Called by `main`.

mod case;
mod cases;
mod facts;
mod image;
mod medium;
mod memory;
mod page;
mod private;
mod probe;
mod program;
pub mod requirements;
mod stage;

use crate::cli_validate::Validate;
use crate::custody::key_file;
use crate::failure::{Exit, Failure};
use crate::files;
use crate::output;
use crate::pool::{find, pool_status, unexpected};
use crate::signals::Signals;
use case::{Case, Judged, Outcome, Verdict};
use cheetah_core::api::{Answer, Call, SignedText, VALIDATION_HTML, VALIDATION_JSON, Validation};
use cheetah_core::text::{hex, written};
use cheetah_core::units::{show_count, show_time};
use cheetah_rim::clock::seconds_since_1970 as now;
use cheetah_rim::control::Client;
use facts::Facts;
use image::{Answers, Image, PUBLISHED_BYTES};
use program::Place;
use requirements::{ALL, FORM, LIMITS, Planned};
use serde::Serialize;
use sha2::{Digest, Sha256};
use stage::Stage;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Of what the pool signs: as `sha256sum -c` reads it.
const SUMS: &str = "validation.sha256";

/// All that a validation came to.
#[derive(Debug)]
struct Known {
    begun: u64,
    ended: u64,
    facts: Facts,
    image: Image,
    judged: Vec<Judged>,
    /// Volumes that could not be deleted.
    left: Vec<String>,
}

/// What is printed.
#[derive(Debug, Serialize)]
struct ValidateReport {
    verdict: Verdict,
    statement: String,
    directory: String,
    files: Vec<String>,
    /// The pool's public key.
    key: String,
    requirements: Vec<Short>,
    /// Volumes that could not be deleted.
    left: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Short {
    requirement: &'static str,
    verdict: Verdict,
}

pub async fn validate(options: Validate) -> Result<(), Failure> {
    let bytes = options.size.unwrap_or(PUBLISHED_BYTES);
    if bytes < PUBLISHED_BYTES {
        return Err(Failure::usage(format!("an image has {PUBLISHED_BYTES} bytes at least")));
    }
    let pool = find(&options.pool).await?;
    let status = pool_status(&pool).await?;
    let (begun, mut signals) = (now(), Signals::listen()?);
    let directory = made(&options, begun)?;
    let identity = crate::members::directory().cloned();
    let facts = Facts::look(&options, &pool, status).await;
    let image = crate::load::blocking(move || Ok(Image::new(bytes))).await?;
    let mut stage = Stage::set(Place { url: pool.url().to_owned(), identity }, image.clone())
        .inspect_err(|_| drop(fs::remove_dir(&directory)))?;
    let judged = tokio::select! {
        judged = all(&mut stage, &options.only) => Some(judged),
        _ = signals.next() => None,
    };
    let left = stage.strike().await;
    for name in &left {
        output::note(&format!("volume {name} could not be deleted: `cheetah delete {name}` does it"));
    }
    let Some(judged) = judged else {
        // Empty, as it was made.
        let _ = fs::remove_dir(&directory);
        return Err(Failure::failed("interrupted: there is no report"));
    };
    let known = Known { begun, ended: now(), facts, image, judged, left };
    let signed = known.write(&pool, &directory).await?;
    known.tell(&options, &directory, &signed)
}

/// The folder of the report, before anything is done.
fn made(options: &Validate, begun: u64) -> Result<PathBuf, Failure> {
    let day = show_time(begun).replace(" UTC", "Z").replace(' ', "T").replace(':', "");
    let named = options.out.clone().unwrap_or_else(|| PathBuf::from(format!("cheetah-validation-{day}")));
    fs::create_dir(&named).map_err(|why| match why.kind() {
        ErrorKind::AlreadyExists => {
            Failure::new(Exit::Refused, format!("{} is there already", named.display()))
                .advise("name a folder that is not there yet with --out")
        }
        _ => files::cannot("make", &named, &why),
    })?;
    Ok(named)
}

/// Each case that is asked for, one after the other.
async fn all(stage: &mut Stage, only: &[String]) -> Vec<Judged> {
    let mut judged = Vec::new();
    for requirement in &ALL {
        let is_asked_for = only.is_empty() || only.iter().any(|id| id == requirement.id);
        let mut outcomes = Vec::new();
        for planned in requirement.cases {
            outcomes.push(match is_asked_for {
                true => told(cases::run(stage, planned).await, planned),
                false => Case::passed_over(planned),
            });
        }
        judged.push(Judged { requirement, outcomes });
    }
    judged
}

/// A line for each case, also without a terminal.
fn told(outcome: Outcome, planned: &Planned) -> Outcome {
    let word = outcome.verdict.word();
    output::aside(&format!("{word:<9}  {:<16}  {} ({:.1} s)", planned.id, planned.title, outcome.seconds));
    if let Some(why) = &outcome.why {
        output::aside(&format!("           {why}"));
    }
    for check in outcome.checks.iter().filter(|check| !check.passed) {
        output::aside(&format!("           expected: {}", check.expected));
        output::aside(&format!("           observed: {}", check.observed));
    }
    outcome
}

impl Known {
    fn ids_with(&self, verdict: Verdict) -> Vec<&'static str> {
        let with = self.judged.iter().filter(|judged| judged.verdict() == verdict);
        with.map(|judged| judged.requirement.id).collect()
    }

    /// One that failed is enough. What was not asked for is neither for it nor against it.
    fn verdict(&self) -> Verdict {
        match () {
            () if !self.ids_with(Verdict::Failed).is_empty() => Verdict::Failed,
            () if !self.ids_with(Verdict::NotShown).is_empty() => Verdict::NotShown,
            () => Verdict::Passed,
        }
    }

    /// The whole in a few sentences.
    fn statement(&self) -> String {
        let passed = self.ids_with(Verdict::Passed).len();
        let all = show_count(ALL.len() as u64, "requirement");
        let mut said = match passed == ALL.len() {
            true => format!("All {all} were shown to be met."),
            false => format!("Of {all}, {passed} were shown to be met."),
        };
        for (verdict, what) in [
            (Verdict::Failed, "Not met"),
            (Verdict::NotShown, "Not shown, or not all of it"),
            (Verdict::NotAskedFor, "Not asked for"),
        ] {
            let ids = self.ids_with(verdict);
            if !ids.is_empty() {
                said += &format!(" {what}: {}.", ids.join(", "));
            }
        }
        said
    }

    fn json(&self) -> String {
        #[derive(Serialize)]
        struct All<'a> {
            version: u32,
            format: &'static str,
            verdict: Verdict,
            statement: String,
            begun_at: u64,
            begun_at_utc: String,
            ended_at: u64,
            ended_at_utc: String,
            form: [&'static str; 3],
            #[serde(flatten)]
            facts: &'a Facts,
            image: ImageJson<'a>,
            requirements: Vec<RequirementJson<'a>>,
            limits: [&'static str; 6],
            left: &'a [String],
        }
        let requirements = self.judged.iter().map(RequirementJson::of).collect();
        let Image { bytes, whole, with_zeros } = &self.image;
        let all = All {
            version: 1,
            format: "cheetah validation",
            verdict: self.verdict(),
            statement: self.statement(),
            begun_at: self.begun,
            begun_at_utc: show_time(self.begun),
            ended_at: self.ended,
            ended_at_utc: show_time(self.ended),
            form: FORM,
            facts: &self.facts,
            image: ImageJson { bytes: *bytes, published: self.image.is_published(), whole, with_zeros },
            requirements,
            limits: LIMITS,
            left: &self.left,
        };
        serde_json::to_string_pretty(&all).unwrap_or_default() + "\n"
    }

    /// The report, and then what the pool signs of it.
    async fn write(&self, pool: &Client, directory: &Path) -> Result<SignedText, Failure> {
        let (html, json) = (page::page(self), self.json());
        for (name, text) in [(VALIDATION_HTML, &html), (VALIDATION_JSON, &json)] {
            files::write(&directory.join(name), text, false)?;
        }
        let hash = |text: &str| hex(&Sha256::digest(text));
        let call = Call::Validation(Validation { html: hash(&html), json: hash(&json) });
        let unsigned = |failure: Failure| Failure {
            message: format!("the report in {} is not signed: {}", directory.display(), failure.message),
            ..failure
        };
        let signed = match pool.call(call).await {
            Ok(Answer::Signed(signed)) => *signed,
            Ok(other) => return Err(unsigned(unexpected(&other))),
            Err(error) => return Err(unsigned(error.into())),
        };
        let key = key_file(&self.facts.pool.pool, &signed.key);
        let sums = directory.join(SUMS);
        files::write(&sums, &signed.text, false)?;
        files::write(&files::beside(&sums, "minisig"), &signed.signature, false)?;
        files::write(&directory.join("pool.pub"), &key, false)?;
        Ok(signed)
    }

    /// Says what came of it, and where that stands.
    fn tell(&self, options: &Validate, directory: &Path, signed: &SignedText) -> Result<(), Failure> {
        let (verdict, shown) = (self.verdict(), written(directory.as_os_str().as_bytes()));
        if options.json.json {
            let files = [VALIDATION_HTML, VALIDATION_JSON, SUMS, "validation.sha256.minisig", "pool.pub"];
            let short =
                |judged: &Judged| Short { requirement: judged.requirement.id, verdict: judged.verdict() };
            output::json(&ValidateReport {
                verdict,
                statement: self.statement(),
                directory: shown,
                files: files.map(str::to_owned).to_vec(),
                key: signed.key.clone(),
                requirements: self.judged.iter().map(short).collect(),
                left: self.left.clone(),
            })?;
        } else {
            output::line(&self.statement());
            output::line(&format!(
                "the report is in {shown}: {VALIDATION_HTML}, {VALIDATION_JSON}; anybody checks it so:"
            ));
            output::line(&format!("minisign -Vm {SUMS} -P {} && sha256sum -c {SUMS}", signed.key));
        }
        match verdict {
            Verdict::Failed => Err(Failure::reported(Exit::DataLost)),
            Verdict::NotShown => Err(Failure::reported(Exit::Unwell)),
            Verdict::Passed | Verdict::NotAskedFor => Ok(()),
        }
    }
}

#[derive(Serialize)]
struct ImageJson<'a> {
    bytes: u64,
    /// Others know its hashes.
    published: bool,
    whole: &'a Answers,
    with_zeros: &'a Answers,
}

#[derive(Serialize)]
struct RequirementJson<'a> {
    requirement: &'static str,
    text: &'static str,
    criterion: &'static str,
    sources: &'static [&'static str],
    limits: &'static str,
    verdict: Verdict,
    cases: &'a [Outcome],
}

impl<'a> RequirementJson<'a> {
    fn of(judged: &'a Judged) -> RequirementJson<'a> {
        let requirements::Requirement { id, text, criterion, sources, limits, .. } = *judged.requirement;
        let (verdict, cases) = (judged.verdict(), &judged.outcomes[..]);
        RequirementJson { requirement: id, text, criterion, sources, limits, verdict, cases }
    }
}
