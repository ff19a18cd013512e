//! Faults of donors, in the private pool: memory that changed, and a donor that dies.
//!
//! Owns these cases. Never: a donor of the pool that is validated. Invariant: the fault is there before
//! anything is read, or the case says that it is not shown. Called by `super`. Tests:
//! `lab/tests/validate.rs`.

use crate::validate::case::{Case, Done, Stop};
use crate::validate::image::BLOCK_BYTES;
use crate::validate::memory::Memory;
use crate::validate::probe::Export;
use crate::validate::requirements::On::PrivatePool;
use crate::validate::stage::Stage;
use cheetah_nbd::Errno;

/// Of the image, a block of noise.
const NOISE: u64 = 1025;

/// A volume of the image in the private pool.
async fn loaded(
    stage: &mut Stage,
    case: &mut Case,
    name: &str,
    kind: &[&str],
    load: &[&str],
) -> Done<String> {
    stage.private(case).await?;
    let (image, volume) = (stage.image_file(case)?.display().to_string(), stage.volume(PrivatePool, name));
    if !kind.is_empty() {
        let size = stage.image.bytes.to_string();
        let create = [&["create", &volume, &size], kind].concat();
        let said = stage.run(case, PrivatePool, &create).await?;
        case.succeeded(said)?;
    }
    let said = stage.run(case, PrivatePool, &[&["load", &image, &volume], load].concat()).await?;
    case.succeeded(said)?;
    Ok(volume)
}

/// The donor whose memory has this block of the image, and where.
async fn found(stage: &mut Stage, case: &mut Case) -> Done<(String, Memory, u64)> {
    let wanted = stage.image.read(NOISE * BLOCK_BYTES, BLOCK_BYTES);
    let private = stage.private(case).await?;
    for (name, pid) in private.donors() {
        let memory = Memory::of(pid)?;
        if let Some(at) = memory.find(&wanted)? {
            return Ok((name.to_owned(), memory, at));
        }
    }
    Err(Stop::NotShown("no donor of the private pool has the block in its memory".to_owned()))
}

/// What an export gave, block by block.
#[derive(Default)]
struct Read {
    right: u64,
    /// Bytes that are none of the image: this must never be.
    wrong: u64,
    errors: u64,
    first_wrong: Option<u64>,
    error: Option<Errno>,
}

impl Read {
    fn told(&self) -> String {
        let Read { right, wrong, errors, first_wrong, error } = self;
        let at = first_wrong.map_or_else(String::new, |at| format!(" (the first at byte {at})"));
        let errno = error.map_or_else(String::new, |errno| format!(" ({errno:?})"));
        format!("{right} blocks right, {wrong} wrong{at}, {errors} errors{errno}")
    }
}

async fn read(stage: &mut Stage, case: &mut Case, volume: &str) -> Done<Read> {
    let socket = stage.export(case, PrivatePool, volume, &["--read-only"]).await?;
    case.did("read all of the export, block by block");
    let image = stage.image.clone();
    let reading = move || {
        let (mut export, mut read) = (Export::connect(&socket)?, Read::default());
        for at in (0..image.bytes).step_by(BLOCK_BYTES as usize) {
            let expected = image.read(at, BLOCK_BYTES);
            match export.read(at, expected.len() as u32)? {
                Ok(bytes) if bytes == expected => read.right += 1,
                Ok(_) => {
                    read.wrong += 1;
                    read.first_wrong.get_or_insert(at);
                }
                Err(errno) => {
                    read.errors += 1;
                    read.error = Some(errno);
                }
            }
        }
        Ok::<Read, std::io::Error>(read)
    };
    let read = tokio::task::spawn_blocking(reading).await;
    let read = read.map_err(|why| Stop::NotShown(why.to_string()))??;
    stage.detach(case, PrivatePool, volume).await?;
    Ok(read)
}

fn all_right(case: &mut Case, read: &Read) {
    case.check("every block is right", read.told(), read.wrong == 0 && read.errors == 0 && read.right > 0);
}

fn right_or_error(case: &mut Case, read: &Read) {
    case.check("no block is wrong", read.told(), read.wrong == 0);
    case.check("what cannot be right is an error", read.told(), read.errors > 0);
    case.check("all else is right", read.told(), read.right > 0);
}

fn is_right_again(stage: &Stage, memory: &Memory, at: u64) -> Done<bool> {
    Ok(memory.block(at)? == stage.image.read(NOISE * BLOCK_BYTES, BLOCK_BYTES))
}

/// Redundancy puts the block right again, where somebody looks for wrong ones.
async fn healed(stage: &mut Stage, case: &mut Case, volume: &str, memory: &Memory, at: u64) -> Done {
    let said = stage.run(case, PrivatePool, &["verify", volume]).await?;
    let report = &said.json;
    let observed = format!("right: {}, {}", report["right"], said.why);
    case.check("`verify` has all right in the end", observed, report["right"] == true);
    let is_right = is_right_again(stage, memory, at)?;
    let observed = if is_right { "it is" } else { "it is not" };
    case.check("the donor's memory has the block again", observed, is_right);
    Ok(())
}

/// Changes one bit of the block that is looked for; where that is.
async fn flipped(stage: &mut Stage, case: &mut Case) -> Done<(Memory, u64)> {
    let (donor, memory, at) = found(stage, case).await?;
    memory.flip(at)?;
    case.did(format!("changed one bit of block {NOISE} in the memory of {donor}"));
    Ok((memory, at))
}

pub async fn flip(stage: &mut Stage, case: &mut Case) -> Done {
    let volume = loaded(stage, case, "flip", &[], &["--writable"]).await?;
    let (memory, at) = flipped(stage, case).await?;
    let read = read(stage, case, &volume).await?;
    all_right(case, &read);
    healed(stage, case, &volume, &memory, at).await
}

pub async fn flip_alone(stage: &mut Stage, case: &mut Case) -> Done {
    let kind = ["--redundancy", "linear"];
    let volume = loaded(stage, case, "flip-alone", &kind, &["--writable"]).await?;
    flipped(stage, case).await?;
    let read = read(stage, case, &volume).await?;
    right_or_error(case, &read);
    let said = stage.run(case, PrivatePool, &["verify", &volume]).await?;
    case.ends_with("`verify` finds it", 6, &said);
    Ok(())
}

pub async fn forged(stage: &mut Stage, case: &mut Case) -> Done {
    let volume = loaded(stage, case, "forged", &[], &[]).await?;
    let (donor, memory, at) = found(stage, case).await?;
    memory.forge(at)?;
    case.did(format!("changed block {NOISE} in the memory of {donor} so that its checksum is as before"));
    let read = read(stage, case, &volume).await?;
    all_right(case, &read);
    // The donor says that all is well: who looks by the seal knows better. Donors that repair do so as well.
    let said = stage.run(case, PrivatePool, &["verify", &volume]).await?;
    let is_found = said.code == Some(6) && said.why.contains(&donor);
    let is_healed = said.code == Some(0) && is_right_again(stage, &memory, at)?;
    let observed = match is_healed {
        true => "the donor's memory has the block again".to_owned(),
        false => said.told(),
    };
    let expected = format!("`verify` ends with 6 and names {donor}, or the block was healed before");
    case.check(expected, observed, is_found || is_healed);
    Ok(())
}

/// A donor that holds a part of the volume.
async fn holder(stage: &mut Stage, volume: &str) -> Done<String> {
    let shown = stage.shown(PrivatePool, volume).await?;
    let donors = shown["donors"].as_array().into_iter().flatten();
    let mut holding =
        donors.filter(|donor| donor["extents_held"].as_u64() > Some(0) && donor["gone"] == false);
    let name = holding.next().and_then(|donor| donor["name"].as_str());
    name.map(str::to_owned).ok_or_else(|| Stop::NotShown("no donor holds a part of the volume".to_owned()))
}

async fn kill_holder(stage: &mut Stage, case: &mut Case, volume: &str) -> Done {
    let donor = holder(stage, volume).await?;
    stage.private(case).await?.kill(&donor).await?;
    case.did(format!("killed {donor}"));
    Ok(())
}

pub async fn dead_donor(stage: &mut Stage, case: &mut Case) -> Done {
    let volume = loaded(stage, case, "dead", &[], &[]).await?;
    kill_holder(stage, case, &volume).await?;
    let read = read(stage, case, &volume).await?;
    all_right(case, &read);
    Ok(())
}

pub async fn dead_donor_alone(stage: &mut Stage, case: &mut Case) -> Done {
    let kind = ["--redundancy", "stripe:3"];
    let volume = loaded(stage, case, "dead-alone", &kind, &["--writable"]).await?;
    kill_holder(stage, case, &volume).await?;
    let read = read(stage, case, &volume).await?;
    right_or_error(case, &read);
    let file = stage.file("dead.raw").display().to_string();
    let said = stage.run(case, PrivatePool, &["save", &volume, &file]).await?;
    case.ends_with("saving it says that not all could be read", 6, &said);
    Ok(())
}
