//! From a source into the pool, and out again: images in several forms, a medium with a bad sector, a load
//! that is killed.
//!
//! Owns these cases. Never: a source that is not this command's own. Called by `super`. Tests:
//! `lab/tests/validate.rs`.

use crate::validate::case::{Case, Done, Stop};
use crate::validate::image::{self, Answers, BAD_AT, BAD_BYTES, BLOCK_BYTES};
use crate::validate::medium::{Habits, Medium};
use crate::validate::probe::Export;
use crate::validate::requirements::On::Pool;
use crate::validate::stage::Stage;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// What writes an E01.
const EWF: &str = "ewfacquirestream";
/// A load begins, and a lease that nobody keeps ends.
const SOON: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(200);

fn same_hashes(case: &mut Case, of: &str, answers: &Answers, report: &Value) {
    let Answers { md5, sha1, sha256 } = answers;
    for (name, key, expected) in [("MD5", "md5", md5), ("SHA-1", "sha1", sha1), ("SHA-256", "sha256", sha256)]
    {
        let observed = report[key].as_str().unwrap_or("none");
        case.same(&format!("{name} of {of}"), expected, observed);
    }
}

/// Loads it into a volume of this name, and compares what comes of it with the answers.
async fn loaded(stage: &mut Stage, case: &mut Case, from: &str, name: &str) -> Done<Value> {
    let volume = stage.volume(Pool, name);
    let said = stage.run(case, Pool, &["load", from, &volume]).await?;
    let report = case.succeeded(said)?;
    same_hashes(case, "the disk that was loaded", &stage.image.whole, &report["file_hashes"]);
    let bytes = report["bytes"].to_string();
    case.same("bytes that were loaded", &stage.image.bytes.to_string(), &bytes);
    let verified = report["verified"] == true;
    case.check("what donors hold was verified", format!("verified: {}", report["verified"]), verified);
    Ok(report)
}

pub async fn raw(stage: &mut Stage, case: &mut Case) -> Done {
    let (image, path) = (stage.image.clone(), stage.image_file(case)?);
    if image.is_published() {
        let made = image::of_file(&path)?;
        case.same("SHA-256 of the image on this disk, as published", &image.whole.sha256, &made.sha256);
    }
    loaded(stage, case, &path.display().to_string(), "raw").await.map(drop)
}

pub async fn parts(stage: &mut Stage, case: &mut Case) -> Done {
    let directory = stage.file("parts");
    fs::create_dir(&directory)?;
    let first = stage.image.write_parts(&directory)?;
    case.did(format!("made the image in parts: {} and those behind it", first.display()));
    loaded(stage, case, &first.display().to_string(), "parts").await.map(drop)
}

pub async fn e01(stage: &mut Stage, case: &mut Case) -> Done {
    if !is_here(EWF) {
        return Err(Stop::NotShown(format!("{EWF} is not here (Debian: ewf-tools)")));
    }
    let evidence = stage.evidence(case).await?;
    let file = stage.file("disk.E01").display().to_string();
    let said = stage.run(case, Pool, &["save", &evidence, &file]).await?;
    case.succeeded(said)?;
    let report = loaded(stage, case, &file, "e01").await?;
    let source = report["source"].as_str().unwrap_or_default();
    case.check("it is read as an E01", source, source.starts_with("E01"));
    let same = &report["claims"]["same"];
    case.check("the hashes in the image are those of the disk", format!("same: {same}"), *same == true);
    Ok(())
}

/// Whether a tool of others can be started.
pub fn is_here(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(tool).is_file())
}

pub async fn source_file(stage: &mut Stage, case: &mut Case) -> Done {
    let path = stage.image_file(case)?;
    let look = |path: &Path| -> Done<(String, String)> {
        let found = fs::metadata(path)?;
        let stamp = |seconds: i64, nanos: i64| format!("{seconds}.{nanos:09}");
        let state = format!(
            "{} bytes, inode {}, mode {:o}, changed {}, inode changed {}",
            found.len(),
            found.ino(),
            found.mode(),
            stamp(found.mtime(), found.mtime_nsec()),
            stamp(found.ctime(), found.ctime_nsec())
        );
        Ok((image::of_file(path)?.sha256, state))
    };
    let (sha256, state) = look(&path)?;
    loaded(stage, case, &path.display().to_string(), "unchanged").await?;
    let (sha256_now, state_now) = look(&path)?;
    case.same("SHA-256 of the source before", &sha256, &sha256_now);
    case.same("the source before", &state, &state_now);
    Ok(())
}

fn medium(stage: &Stage, case: &mut Case, habits: Habits) -> Done<Medium> {
    let medium = Medium::serve(stage.image.clone(), habits, &stage.file("medium.sock"))?;
    case.did(format!("served the image as a medium: {}", medium.uri()));
    Ok(medium)
}

pub async fn source_medium(stage: &mut Stage, case: &mut Case) -> Done {
    let medium = medium(stage, case, Habits::default())?;
    loaded(stage, case, &medium.uri(), "medium").await?;
    let (got, writes) = (medium.got(), medium.got_writes());
    let text = got.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ");
    case.check("it was read", &text, got.get("Read").is_some_and(|count| *count > 0));
    case.check("no command that writes, though the medium offers them", &text, writes == 0);
    Ok(())
}

pub async fn bad_sector(stage: &mut Stage, case: &mut Case) -> Done {
    let bad = BAD_AT..BAD_AT + BAD_BYTES;
    let medium = medium(stage, case, Habits { bad: Some(bad), waits_in: None })?;
    let volume = stage.volume(Pool, "bad");
    let said = stage.run(case, Pool, &["load", &medium.uri(), &volume]).await?;
    if matches!(said.code, Some(3 | 5)) {
        return Err(Stop::NotShown(said.why));
    }
    case.ends_with("the load says that not all was read", 6, &said);
    let range = format!("[{{\"len\":{BAD_BYTES},\"offset\":{BAD_AT}}}]");
    case.same("what the load could not read", &range, &said.json["unreadable"].to_string());
    same_hashes(case, "all else, with zeros for it", &stage.image.with_zeros, &said.json["file_hashes"]);
    let shown = stage.shown(Pool, &volume).await?;
    let listed = &shown["unreadable"][0];
    let told = listed["offset"] == BAD_AT && listed["len"] == BAD_BYTES;
    case.check(format!("`show` lists {BAD_BYTES} bytes from {BAD_AT}"), listed.to_string(), told);
    let socket = stage.export(case, Pool, &volume, &["--read-only"]).await?;
    let mut export = Export::connect(&socket)?;
    case.did("read the bad sector, and the blocks beside its own");
    match export.read(BAD_AT, BAD_BYTES as u32)? {
        Ok(bytes) => {
            let what = if bytes.iter().all(|byte| *byte == 0) { "zeros" } else { "something" };
            case.check("reading it is an error", format!("{what} came"), false)
        }
        Err(errno) => case.check("reading it is an error", format!("{errno:?}"), true),
    };
    let block = BAD_AT - BAD_AT % BLOCK_BYTES;
    for at in [block - BLOCK_BYTES, block + BLOCK_BYTES] {
        let read = export.read(at, BLOCK_BYTES as u32)?;
        let is_right = read.as_ref().is_ok_and(|bytes| *bytes == stage.image.read(at, BLOCK_BYTES));
        let observed = read.map_or_else(|errno| format!("{errno:?}"), |_| "bytes came".to_owned());
        case.check(format!("the block at {at} is what the medium has"), observed, is_right);
    }
    drop(export);
    stage.detach(case, Pool, &volume).await?;
    let file = stage.file("bad.raw").display().to_string();
    let said = stage.run(case, Pool, &["save", &volume, &file]).await?;
    case.ends_with("saving it says that not all was read", 6, &said);
    let map = fs::read_to_string(format!("{file}.map")).unwrap_or_default();
    let bad = bad_in(&map);
    // A volume is read in blocks.
    let is_exact = bad == [(block, BLOCK_BYTES)];
    let observed = format!("{bad:?}");
    case.check(
        format!("its map lists {BLOCK_BYTES} bytes from {block} as bad, and no more"),
        observed,
        is_exact,
    );
    Ok(())
}

/// What a map of ddrescue calls bad: place and length of each range.
fn bad_in(map: &str) -> Vec<(u64, u64)> {
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let range = |line: &str| {
        let mut words = line.split_whitespace();
        let (at, len, state) = (number(words.next()?)?, number(words.next()?)?, words.next()?);
        (state == "-").then_some((at, len))
    };
    map.lines().filter(|line| !line.starts_with('#')).filter_map(range).collect()
}

pub async fn killed_load(stage: &mut Stage, case: &mut Case) -> Done {
    let half = stage.image.bytes / 2;
    let waits_in = Some(half..half + BLOCK_BYTES);
    let medium = medium(stage, case, Habits { bad: None, waits_in })?;
    let volume = stage.volume(Pool, "killed");
    let uri = medium.uri();
    case.did(format!("cheetah load {uri} {volume}, and killed it while the medium kept it waiting half-way"));
    let mut load = stage.place(Pool)?.start(&["load", &uri, &volume])?;
    let begun = |content: &Value| content["load"]["bytes_done"].as_u64().is_some_and(|bytes| bytes > 0);
    let waited = until(stage, &volume, begun).await;
    // Killed, whatever came before.
    let _ = load.kill().await;
    waited?;
    let content = until(stage, &volume, |content| content["state"] != "loading").await?;
    let state = content["state"].as_str().unwrap_or_default();
    case.same("the volume is called", "incomplete", state);
    stage.is_not_attached(case, "attaching it is refused", &volume, "--read-only").await?;
    let said = stage.run(case, Pool, &["seal", &volume]).await?;
    case.ends_with("sealing it is refused", 4, &said);
    let file = stage.file("killed.raw").display().to_string();
    let said = stage.run(case, Pool, &["save", &volume, &file]).await?;
    case.ends_with("saving it is refused", 4, &said);
    medium.let_go();
    let said = stage.run(case, Pool, &["load", &uri, &volume, "--resume"]).await?;
    let report = case.succeeded(said)?;
    same_hashes(case, "the disk, after --resume", &stage.image.whole, &report["file_hashes"]);
    let verified = &report["verified"];
    case.check("what donors hold was verified then", format!("verified: {verified}"), *verified == true);
    Ok(())
}

/// Waits for what a volume holds to be so.
async fn until(stage: &Stage, volume: &str, so: impl Fn(&Value) -> bool) -> Done<Value> {
    let end = Instant::now() + SOON;
    let mut last = "it is not there".to_owned();
    while Instant::now() < end {
        match stage.shown(Pool, volume).await {
            Ok(shown) => {
                let content = &shown["status"]["content"];
                if so(content) {
                    return Ok(content.clone());
                }
                last = content["state"].to_string();
            }
            // It is made by the load that was started.
            Err(Stop::NotShown(why)) => last = why,
            Err(stop) => return Err(stop),
        }
        tokio::time::sleep(AGAIN).await;
    }
    Err(Stop::NotShown(format!("volume {volume} did not become what was waited for: {last}")))
}

pub async fn save(stage: &mut Stage, case: &mut Case) -> Done {
    let evidence = stage.evidence(case).await?;
    let file = stage.file("saved.raw");
    let said = stage.run(case, Pool, &["save", &evidence, &file.display().to_string()]).await?;
    let report = case.succeeded(said)?;
    same_hashes(case, "the file, as `save` says", &stage.image.whole, &report["hashes"]);
    let Answers { sha256, .. } = image::of_file(&file)?;
    case.did("hashed the file on this disk");
    case.same("SHA-256 of the file", &stage.image.whole.sha256, &sha256);
    let as_loaded = &report["as_loaded"];
    case.check(
        "`save` says that it is what was loaded",
        format!("as loaded: {as_loaded}"),
        *as_loaded == true,
    );
    let beside = fs::read_to_string(crate::files::beside(&file, "sha256"))?;
    case.same("SHA-256 in the file beside it", &sha256, beside.split_whitespace().next().unwrap_or_default());
    Ok(())
}
