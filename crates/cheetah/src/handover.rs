//! `cheetah report`: all that a pool knows of a volume, in a folder for the case file.
//!
//! Owns which files are made, and what is asked for them. Never: the page (`page`), what was put down of the
//! volume (core), or signatures (the pool's). Invariants: nothing is written over; what is signed is written
//! as it was signed, byte for byte; a volume that is gone is reported by what is left, its log. Called by
//! `main`. Tests: `lab/tests/handover.rs`.

mod page;

use crate::cli_custody::Handover;
use crate::custody;
use crate::failure::{Exit, Failure};
use crate::files;
use crate::manifest;
use crate::output;
use crate::pool::{find, unexpected};
use cheetah_core::api::{Answer, Call, LogReport, RefusalCode, SignedText, VolumeDetail};
use cheetah_core::text::written;
use cheetah_core::units::show_time;
use cheetah_rim::clock::seconds_since_1970;
use cheetah_rim::control::{CallError, Client};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;

/// All that there is to say.
struct Known {
    /// When it was asked for: seconds since 1970.
    at: u64,
    log: LogReport,
    /// None: the volume is gone.
    volume: Option<Box<VolumeDetail>>,
    /// Of a sealed volume.
    manifest: Option<SignedText>,
}

#[derive(Debug, Serialize)]
struct ReportJson {
    directory: String,
    files: Vec<String>,
}

pub async fn report(options: Handover) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let known = ask(&pool, &options.name).await?;
    let directory = &options.directory;
    fs::create_dir(directory).map_err(|why| match why.kind() {
        ErrorKind::AlreadyExists => {
            Failure::new(Exit::Refused, format!("{} is there already", directory.display()))
                .advise("name a folder that is not there yet")
        }
        _ => files::cannot("make", directory, &why),
    })?;
    let made = known.files();
    for (name, text) in &made {
        files::write(&directory.join(name), text, false)?;
    }
    let names: Vec<String> = made.into_iter().map(|(name, _)| name).collect();
    let shown = written(directory.as_os_str().as_bytes());
    if options.json.json {
        return output::json(&ReportJson { directory: shown, files: names });
    }
    output::line(&format!("the report of volume {} is in {shown}: {}", known.log.name, names.join(", ")));
    output::line(&format!("open {shown}/{} in a browser; it says how to check the others", page::NAME));
    Ok(())
}

async fn ask(pool: &Client, name: &str) -> Result<Known, Failure> {
    let log = custody::fetch(pool, name).await?;
    let at = seconds_since_1970();
    if log.deleted {
        return Ok(Known { at, log, volume: None, manifest: None });
    }
    let volume = match pool.call(Call::Show { name: log.name.clone() }).await {
        Ok(Answer::Volume(detail)) if detail.map.volume == log.volume => Some(detail),
        // Deleted this moment, or another has its name by now.
        Ok(Answer::Volume(_)) => None,
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::NotFound => None,
        Ok(other) => return Err(unexpected(&other)),
        Err(error) => return Err(error.into()),
    };
    let is_sealed = volume.as_ref().is_some_and(|detail| detail.status.content.sealed.is_some());
    let manifest = match is_sealed {
        true => Some(manifest::signed(pool, &log.name).await?),
        false => None,
    };
    Ok(Known { at, log, volume, manifest })
}

impl Known {
    /// Each with its name.
    fn files(&self) -> Vec<(String, String)> {
        let log = &self.log;
        let key = custody::key_file(&log.pool.to_string(), &log.key);
        let mut files = vec![
            (page::NAME.to_owned(), page::page(self)),
            ("report.json".to_owned(), self.json()),
            ("custody.log".to_owned(), log.text()),
            ("custody.log.minisig".to_owned(), log.signature.clone()),
            ("pool.pub".to_owned(), key),
        ];
        if let Some(SignedText { text, signature, .. }) = &self.manifest {
            files.push(("manifest.json".to_owned(), text.clone()));
            files.push(("manifest.json.minisig".to_owned(), signature.clone()));
        }
        files
    }

    fn json(&self) -> String {
        let parsed = |line: &String| serde_json::from_str::<Value>(line).unwrap_or(Value::Null);
        let entries: Vec<Value> = self.log.lines.iter().map(parsed).collect();
        let manifest = self.manifest.as_ref().map(|signed| parsed(&signed.text));
        let all = json!({
            "version": 1,
            "made_at": self.at,
            "made_at_utc": show_time(self.at),
            "made_by": concat!("cheetah ", env!("CARGO_PKG_VERSION")),
            "pool": self.log.pool,
            "volume": self.log.volume,
            "name": self.log.name,
            "deleted": self.log.deleted,
            "detail": self.volume,
            "manifest": manifest,
            "entries": entries,
            "head": self.log.head,
            "key": self.log.key,
        });
        serde_json::to_string_pretty(&all).unwrap_or_default() + "\n"
    }
}
