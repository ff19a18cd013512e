//! `cheetah log` and `cheetah verify-log`: what a pool put down of a volume, and whether a copy of that
//! is whole; and what a client has to say for it.
//!
//! Owns the text of a log, its files, and the command line as it is put down. Never: what is put down
//! (core), or a pool's word about a file: `verify-log` asks nobody. Invariants: no token, password or
//! query of an address is put down; a file that is there is not replaced; and a log is good only where
//! its chain, its signature and the head that was named all are. Files: `case_uco` has a log in the words
//! of others. Tests: below, and `lab/tests/custody.rs`.

mod case_uco;

use crate::cli::JsonArg;
use crate::cli_custody::{CaseArgs, Log, VerifyLog};
use crate::failure::{Exit, Failure};
use crate::files;
use crate::output;
use crate::pool::{find, unexpected};
use cheetah_core::api::{Answer, Call, LogReport};
use cheetah_core::content::Check;
pub use cheetah_core::custody::Case;
use cheetah_core::custody::{self, Broken, Entry, Event, Said, Whole, head_in};
use cheetah_core::units::show_bytes;
use cheetah_rim::control::Client;
use cheetah_rim::control::signing::{BadSignature, PublicKey, verify};
use cheetah_rim::members::Invitation;
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;

/// Nobody exports a larger one.
const FILE_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug, Serialize)]
struct LogJson {
    pool: cheetah_core::map::PoolId,
    volume: cheetah_core::map::VolumeId,
    name: String,
    deleted: bool,
    entries: Vec<Value>,
    head: custody::Head,
    older: Vec<cheetah_core::api::OlderLog>,
    key: String,
    /// Those that were written.
    files: Vec<String>,
}

#[derive(Debug, Serialize)]
struct VerifyJson {
    file: String,
    good: bool,
    entries: u64,
    head: custody::Head,
    key: String,
    /// The key was named, and does not come with the log.
    key_named: bool,
    head_named: bool,
}

/// Has the case put down, with who says so: the program's version and its command line.
pub async fn say_case(pool: &Client, name: &str, given: &CaseArgs) -> Result<Case, Failure> {
    let CaseArgs { case, evidence, examiner, notes } = given.clone();
    let version = format!("cheetah {}", env!("CARGO_PKG_VERSION"));
    let command = command_line(std::env::args_os());
    let case = Case { case, evidence, examiner, notes, version, command };
    say(pool, name, Said::Case(case.clone())).await?;
    Ok(case)
}

/// Has something put down of a volume.
pub async fn say(pool: &Client, name: &str, said: Said) -> Result<(), Failure> {
    pool.call(Call::Say { name: name.to_owned(), said }).await?;
    Ok(())
}

/// A command line as a shell would take it, without what opens doors.
pub fn command_line(arguments: impl Iterator<Item = OsString>) -> String {
    let quoted = |argument: OsString| {
        let text = without_secrets(&argument.to_string_lossy());
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%[]".contains(c);
        match !text.is_empty() && text.chars().all(plain) {
            true => text,
            false => format!("'{}'", text.replace('\'', "'\\''")),
        }
    };
    arguments.map(quoted).collect::<Vec<_>>().join(" ")
}

/// An address without its token, its password and what it asks with.
fn without_secrets(argument: &str) -> String {
    let Some((scheme, rest)) = argument.split_once("://") else { return argument.to_owned() };
    let address = argument.split_once('=').filter(|(option, _)| option.starts_with("--"));
    let url = address.map_or(argument, |(_, url)| url);
    if Invitation::is_in(url) || scheme.ends_with("cheetah") {
        // The token is what follows the first slash.
        let places = rest
            .split(',')
            .map(|place| place.split('/').find(|part| !part.is_empty() && *part != "cheetah:"));
        let places: Vec<&str> = places.flatten().collect();
        return format!("{scheme}://{}", places.join(",cheetah://"));
    }
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (place, path) = rest.split_once('/').map_or((rest, None), |(place, path)| (place, Some(path)));
    let place = match place.rsplit_once('@') {
        Some((user, host)) => format!("{}@{host}", user.split(':').next().unwrap_or_default()),
        None => place.to_owned(),
    };
    path.map_or_else(|| format!("{scheme}://{place}"), |path| format!("{scheme}://{place}/{path}"))
}

/// The log of a volume, by its name or identity.
pub async fn fetch(pool: &Client, name: &str) -> Result<LogReport, Failure> {
    match pool.call(Call::Log { name: name.to_owned() }).await? {
        Answer::Log(log) => Ok(log),
        other => Err(unexpected(&other)),
    }
}

pub async fn log(options: Log) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let log = fetch(&pool, &options.name).await?;
    if options.case_uco {
        return output::document(&case_uco::document(&log));
    }
    let files = match &options.export {
        Some(file) => export(&log, file)?,
        None => Vec::new(),
    };
    if options.json.json {
        let entries =
            log.lines.iter().map(|line| serde_json::from_str(line).unwrap_or(Value::Null)).collect();
        let LogReport { pool, volume, name, deleted, head, older, key, .. } = log;
        return output::json(&LogJson { pool, volume, name, deleted, entries, head, older, key, files });
    }
    if files.is_empty() {
        lines(&log).iter().for_each(|line| output::line(line));
        return Ok(());
    }
    output::line(&format!("{} entries of volume {} are in {}", log.lines.len(), log.name, files[0]));
    output::line(&format!("beside it: {}", files[1..].join(", ")));
    output::line(&format!("head {}", log.head));
    output::line(&format!("key  {}", log.key));
    output::line("keep head and key elsewhere: who has them sees whether the file was changed or cut");
    Ok(())
}

/// The pool's public key as a file, as `minisign -p` takes it.
pub fn key_file(pool: &str, key: &str) -> String {
    format!("untrusted comment: public key of cheetah pool {pool}\n{key}\n")
}

/// Writes the log, its signature and the key, each to a file of its own.
fn export(log: &LogReport, file: &Path) -> Result<Vec<String>, Failure> {
    let all = [
        (file.to_path_buf(), log.text()),
        (files::beside(file, "minisig"), log.signature.clone()),
        (files::beside(file, "pub"), key_file(&log.pool.to_string(), &log.key)),
    ];
    if let Some((there, _)) = all.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        let what = format!("{} is there already", there.display());
        return Err(Failure::new(Exit::Refused, what).advise("name another file"));
    }
    for (path, text) in &all {
        files::write(path, text, false)?;
    }
    Ok(all.iter().map(|(path, _)| path.display().to_string()).collect())
}

fn lines(log: &LogReport) -> Vec<String> {
    let gone = if log.deleted { ", which was deleted" } else { "" };
    let mut lines = vec![format!("volume {} ({}){gone}", log.name, log.volume)];
    for line in &log.lines {
        match serde_json::from_str::<Entry>(line) {
            Ok(entry) => lines.extend(lines_of(&entry)),
            Err(why) => lines.push(format!("     an entry that cannot be read: {why}")),
        }
    }
    lines.push(format!("head {}", log.head));
    lines.push(format!("key  {}", log.key));
    for older in &log.older {
        lines.push(format!(
            "an older volume had this name: `cheetah log {}` shows its {} entries",
            older.volume, older.head.sequence
        ));
    }
    lines
}

fn lines_of(entry: &Entry) -> Vec<String> {
    let mut lines = vec![format!("{:>4}  {}  {}", entry.sequence, entry.utc, said(&entry.event))];
    let by = entry.by.as_ref().map(|by| format!("            by {by}"));
    lines.extend(by);
    if let Event::Case(case) = &entry.event {
        let Case { case, evidence, examiner, notes, version, command } = case;
        let fields = [("case", case), ("evidence", evidence), ("examiner", examiner), ("notes", notes)];
        let field = |(name, text): (&str, &Option<String>)| {
            text.as_ref().map(|text| format!("            {name:<9} {text}"))
        };
        lines.extend(fields.into_iter().filter_map(field));
        lines.push(format!("            command   {command} ({version})"));
    }
    lines
}

/// An event in a sentence.
pub fn said(event: &Event) -> String {
    match event {
        Event::Created { size, redundancy } => format!("made: {size} bytes, {redundancy}"),
        Event::Grown { size } => format!("grew to {size} bytes"),
        Event::Case(case) if case.is_named() => "the case".to_owned(),
        Event::Case(_) => "used by".to_owned(),
        Event::FillBegun { source, holder } => {
            format!(
                "{holder} begins to fill it from {} ({} bytes, {})",
                source.name, source.size, source.identity
            )
        }
        Event::Filled { sha256, md5, check, changed, unreadable_bytes } => {
            let checked = match check {
                Check::No => "not compared yet",
                Check::Same => "compared, and the same",
                Check::Differs => "compared, and NOT the same",
            };
            let unreadable = match unreadable_bytes {
                0 => String::new(),
                bytes => format!(", {} could not be read", show_bytes(*bytes)),
            };
            let changed =
                changed.as_ref().map_or_else(String::new, |how| format!(", the source changed: {how}"));
            format!("filled, {checked}{unreadable}{changed}; MD5 {md5}, SHA-256 {sha256}")
        }
        Event::Sealed { holder, blake3, sha256 } => {
            format!("sealed by {holder}; BLAKE3 {blake3}, SHA-256 {sha256}")
        }
        Event::NotSealed { why } => format!("NOT sealed, as it was to be: {why}"),
        Event::OverlayMade { overlay } => {
            format!("overlay {overlay} was made over it, and holds what tools change")
        }
        Event::FillEnded { bytes_done } => format!("filling ended before its end, at {bytes_done} bytes"),
        Event::Attached { holder, read_only } => {
            format!("attached {} by {holder}", if *read_only { "read-only" } else { "for writing" })
        }
        Event::Detached { holder, seconds, given_back } => match given_back {
            true => format!("detached by {holder} after {seconds} s"),
            false => format!("{holder} ended without a word, after {seconds} s"),
        },
        Event::Written { holder, certain: true } => format!("written by {holder}"),
        Event::Written { holder, certain: false } => {
            format!("perhaps written by {holder}, who ended without a word")
        }
        Event::DataLost { bytes } => format!("{} cannot be read: donors are gone", show_bytes(*bytes)),
        Event::Unflushed { bytes } => format!(
            "up to {} may be older than what was written last: donors stopped before it was flushed",
            show_bytes(*bytes)
        ),
        Event::DonorLost { donor, host } => format!("donor {donor} on {host} is gone"),
        Event::DonorSetAside { donor, why } => format!("donor {donor} was set aside ({why})"),
        Event::WrongBlocks { donor, blocks, healed } => {
            format!("{blocks} wrong blocks from donor {donor}, {healed} put right so far")
        }
        Event::Exported { file, bytes, sha256 } => {
            format!("saved to {file}: {bytes} bytes, SHA-256 {sha256}")
        }
        Event::Full => {
            "the log is long: from here on only fills, seals, losses, exports and the end".to_owned()
        }
        Event::Deleted => "deleted".to_owned(),
    }
}

/// Of `show`: the case, as it was said last.
pub fn case_lines(case: &Case) -> Vec<String> {
    let Case { case, evidence, examiner, notes, .. } = case;
    let fields = [("case", case), ("evidence", evidence), ("examiner", examiner), ("notes", notes)];
    let line = |(name, text): (&str, &Option<String>)| text.as_ref().map(|text| format!("{name:<11} {text}"));
    fields.into_iter().filter_map(line).collect()
}

pub fn verify_log(options: &VerifyLog) -> Result<(), Failure> {
    let VerifyLog { file, key, head, json: JsonArg { json } } = options;
    let text = read(file)?;
    let (key, key_named) = match key {
        Some(key) => (*key, true),
        None => (key_beside(file)?, false),
    };
    let signature = read(&files::beside(file, "minisig"))?;
    let shown = file.display();
    let bad = |why: String| Failure::new(Exit::DataLost, format!("{shown} is not good: {why}"));
    let whole = custody::check(&text).map_err(|broken: Broken| bad(broken.to_string()))?;
    let comment =
        verify(text.as_bytes(), &signature, &key).map_err(|why| bad(unsigned(&why, &whole, &signature)))?;
    match head_in(&comment) {
        Some(signed) => whole.reaches(&signed).map_err(|broken| bad(broken.to_string()))?,
        None => return Err(bad("its signature is not that of a log".to_owned())),
    }
    if let Some(known) = head {
        whole.reaches(known).map_err(|broken| bad(broken.to_string()))?;
    }
    let report = VerifyJson {
        file: shown.to_string(),
        good: true,
        entries: whole.entries.len() as u64,
        head: whole.head(),
        key: key.to_string(),
        key_named,
        head_named: head.is_some(),
    };
    if *json {
        return output::json(&report);
    }
    output::line(&format!("{shown} is good: {} entries, each follows from the one before", report.entries));
    output::line(&format!("signed by key {key}"));
    output::line(&format!("head {}", report.head));
    if !key_named {
        output::note(
            "the key came with the log: compare it with what `cheetah log` of its pool shows, or name it with --key",
        );
    }
    if head.is_none() {
        output::note(
            "whether entries were added later is known where `cheetah log` shows the head: name that with --head",
        );
    }
    Ok(())
}

/// Why a log whose chain holds is not what was signed: what the signature says of its end tells where.
fn unsigned(why: &BadSignature, whole: &Whole, signature: &str) -> String {
    let comment = signature.lines().nth(2).unwrap_or_default();
    match (why, head_in(comment)) {
        (BadSignature::File, Some(signed)) => match whole.reaches(&signed) {
            Err(broken) => format!("{broken}; the signature names the head {signed}"),
            Ok(()) if whole.head() != signed => format!(
                "line {}: entries were added behind entry {}, with which what was signed ends",
                signed.sequence + 1,
                signed.sequence
            ),
            Ok(()) => format!("its signature: {why}"),
        },
        _ => format!("its signature: {why}"),
    }
}

fn key_beside(file: &Path) -> Result<PublicKey, Failure> {
    let path = files::beside(file, "pub");
    if !path.exists() {
        let what = format!("no key to verify with: there is no {}", path.display());
        return Err(Failure::usage(what).advise("name the pool's key with --key, as `cheetah log` shows it"));
    }
    read(&path)?.parse().map_err(|why| Failure::failed(format!("{}: {why}", path.display())))
}

fn read(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let fault = |why: std::io::Error| match why.kind() {
        ErrorKind::NotFound => Failure::failed(format!("there is no {shown}"))
            .advise("`cheetah log NAME --export FILE` writes FILE, FILE.minisig and FILE.pub"),
        _ => Failure::failed(format!("cannot read {shown}: {why}")),
    };
    let bytes = std::fs::metadata(path).map_err(fault)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(Failure::failed(format!("{shown} is too large for a log: {}", show_bytes(bytes))));
    }
    let bytes = std::fs::read(path).map_err(fault)?;
    let line = |at: usize| bytes[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    String::from_utf8(bytes.clone()).map_err(|why| {
        let line = line(why.utf8_error().valid_up_to());
        Failure::new(
            Exit::DataLost,
            format!("{shown} is not good: line {line}: entry {line} was changed: it is no text"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_command_line_is_put_down_without_what_opens_doors() {
        let said = |arguments: &[&str]| command_line(arguments.iter().map(OsString::from));
        assert_eq!(
            said(&["cheetah", "load", "a b.dd", "v", "--notes", "it's"]),
            "cheetah load 'a b.dd' v --notes 'it'\\''s'"
        );
        let pool = said(&["--pool=cheetah://10.0.0.5:10808/SECRET"]);
        assert_eq!(pool, "--pool=cheetah://10.0.0.5:10808");
        assert_eq!(said(&["ssh://eve:pass@host/d.dd"]), "ssh://eve@host/d.dd");
        assert_eq!(said(&["https://host/d.dd?token=1#x"]), "https://host/d.dd");
        assert_eq!(said(&["cheetah://a:1/T,cheetah://b:1"]), "cheetah://a:1,cheetah://b:1");
    }

    #[test]
    fn json_has_what_was_said() {
        let said = Said::Exported { file: "f".into(), bytes: 1, sha256: "0".repeat(64) };
        assert_eq!(json!(said)["event"], "exported");
    }
}
