//! `cheetah open` and `cheetah fill`: a volume that is read from its source when tools ask for it, and who
//! fills it.
//!
//! Owns: making the volume, starting and stopping its filler, and what is said of that. Never: reading the
//! source beyond its first chunk, filling, or sealing (`filler`). Invariant: a volume that was made for a
//! filler that did not start is deleted again. Tests: `lab/tests/open.rs`.

use crate::attach::{DYING_TIME, claim_of, start_daemon};
use crate::claims::recognised;
use crate::cli;
use crate::control::{self, Word};
use crate::custody;
use crate::daemon::Report;
use crate::failure::{Exit, Failure};
use crate::filler::{Order, Record};
use crate::load::{described, not_encrypted};
use crate::output;
use crate::pool::{done, encryption, find, volume};
use crate::runtime_dir::{Claim, RuntimeDir};
use crate::seal::takes_room;
use cheetah_client::Lease;
use cheetah_core::api::{Call, Create, RefusalCode, Size, VolumeDetail};
use cheetah_core::content::{ContentState, Source, ToLoad};
use cheetah_core::text::written;
use cheetah_core::units::show_bytes;
use cheetah_rim::control::{CallError, Client, own_name};
use cheetah_rim::descriptors;
use cheetah_source::{Options, Source as AnySource, is_address};
use serde::Serialize;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a filler may take to do what it is told: what is on its way to the donors is answered first.
const WORD_TIME: Duration = Duration::from_secs(40);

#[derive(Debug, Serialize)]
struct Opened {
    volume: String,
    source: String,
    /// What the file is: the size is that of the disk in it.
    format: String,
    checksummed: bool,
    size: u64,
    redundancy: String,
    /// It is larger than this, and keeps no more of itself on donors.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
    /// The volume was made just now; false: it was there, and is filled on.
    made: bool,
    /// It is to be sealed when all of it is here.
    seals: bool,
    /// The process that fills it.
    pid: u32,
    notes: Vec<String>,
}

pub async fn open(options: cli::Open) -> Result<(), Failure> {
    // An image may have more files than a process may open unless it asks.
    let _ = descriptors::raise();
    let pool = find(&options.pool).await?;
    let order = Order {
        pool: pool.url().to_owned(),
        name: options.name.clone(),
        source: absolute(&options.source)?,
        raw: options.raw,
        mounted: options.mounted,
        rate: options.rate,
        writable: options.writable,
    };
    let source = order.open().await?;
    let (detail, made) = ensure(&pool, &*source, &options).await?;
    custody::say_case(&pool, &options.name, &options.case).await?;
    let ready = match start(&pool, &order).await {
        Ok(ready) => ready,
        Err(failure) => {
            if made {
                // Nothing was written there. One that cannot be deleted says that nobody fills it.
                let _ = pool.call(Call::Delete { name: options.name.clone() }).await;
            }
            return Err(failure);
        }
    };
    let mut opened = Opened {
        volume: options.name,
        source: written(options.source.as_os_str().as_bytes()),
        format: source.describe(),
        checksummed: source.is_checksummed(),
        size: source.size(),
        redundancy: detail.status.redundancy.to_string(),
        memory: (detail.map.layers() > 1).then(|| detail.map.memory_bytes()),
        made,
        seals: false,
        pid: ready.pid,
        notes: ready.notes,
    };
    let whole = opened.memory.is_none();
    opened.seals = whole && !options.writable && has_room(&pool, &opened.volume).await;
    if whole && !options.writable && !opened.seals {
        opened.notes.push(not_to_be_sealed(&opened.volume, opened.size));
    }
    if options.memory.is_some() && !made {
        let note = "the volume was there already, and keeps as much of itself as it was made for".to_owned();
        opened.notes.push(note);
    }
    print(&opened, &*source, &options.json)
}

fn print(opened: &Opened, source: &dyn AnySource, json: &cli::JsonArg) -> Result<(), Failure> {
    if json.json {
        return output::json(opened);
    }
    let Opened { volume, source: file, size, redundancy, notes, made, .. } = opened;
    recognised(source, file).iter().for_each(|line| output::line(line));
    notes.iter().for_each(|note| output::note(note));
    let kept = match opened.memory {
        Some(memory) => format!(", of which donors keep {} at most", show_bytes(memory)),
        None => String::new(),
    };
    let how = if *made { "opened" } else { "goes on filling" };
    output::line(&format!("{how} {volume}: {} of {file}, {redundancy}{kept}", show_bytes(*size)));
    output::line(&format!(
        "tools can read it now: `cheetah attach {volume}`; `cheetah status` shows how far it is"
    ));
    output::line(match opened.seals {
        true => "it is sealed when all of it is here: nobody changes it from then on",
        false => "it is not sealed when all of it is here",
    });
    Ok(())
}

/// Whether the pool has made room for what proves the volume.
async fn has_room(pool: &Client, name: &str) -> bool {
    let detail = volume(pool, Call::Show { name: name.to_owned() }).await;
    detail.is_ok_and(|detail| detail.map.proofs.is_some())
}

fn not_to_be_sealed(name: &str, size: u64) -> String {
    format!("{}: lend more memory, then `cheetah seal {name}` when all is here", takes_room(size))
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    if is_address(path) {
        return Ok(path.to_path_buf());
    }
    std::path::absolute(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
}

/// The volume of this name, which is made if there is none; and whether it was.
async fn ensure(
    pool: &Client,
    source: &dyn AnySource,
    options: &cli::Open,
) -> Result<(VolumeDetail, bool), Failure> {
    let name = options.name.clone();
    match volume(pool, Call::Show { name: name.clone() }).await {
        Ok(detail) if options.encrypt.encrypt && !detail.status.encrypted => {
            return Err(Failure::new(Exit::Refused, not_encrypted(&name)));
        }
        Ok(detail) if detail.status.content.state == ContentState::Opened => return Ok((detail, false)),
        Ok(detail) if detail.map.backing.is_some() => {
            let text = format!(
                "volume '{name}' was opened before, and holds all of its source: choose another name, or `cheetah delete \
                 {name}`"
            );
            return Err(Failure::new(Exit::Refused, text));
        }
        Ok(_) => {
            let text = format!(
                "there is a volume '{name}' already, which was not opened from a source: choose another name, or `cheetah \
                 delete {name}`"
            );
            return Err(Failure::new(Exit::Refused, text));
        }
        Err(failure) if failure.code == "not_found" => {}
        Err(failure) => return Err(failure),
    }
    let source: Source = described(source);
    let size = Size::Bytes(source.size);
    let load = ToLoad { source, by: own_name(), backed: true, memory: options.memory };
    let load = Some(Box::new(load));
    let encrypted = encryption(pool, &name, options.encrypt)?;
    let (redundancy, on) = (options.redundancy, options.on.on);
    let create = Create { redundancy, load, on, encrypted, ..Create::new(name, size) };
    Ok((volume(pool, Call::Create(create)).await?, true))
}

/// Starts a filler on this machine, in the place of one that was killed.
async fn start(pool: &Client, order: &Order) -> Result<crate::daemon::Ready, Failure> {
    let directory = RuntimeDir::of_fillers()?;
    if let Some(record) = directory.load::<Record>(&order.name)? {
        match claim_of(record.pid, || RuntimeDir::of_fillers()?.try_claim(&record.order.name))? {
            None => {
                let text = format!(
                    "volume '{}' is filled on this machine already (process {}): `cheetah fill {} --stop` ends that",
                    order.name, record.pid, order.name
                );
                return Err(Failure::new(Exit::Refused, text));
            }
            // Dropped, it takes away what is left; the lease runs out by itself, and given back sooner.
            Some(_claim) => give_back(pool, &record).await,
        }
    }
    start_daemon(&directory, "serve-fill", &order.name, order).await
}

async fn give_back(pool: &Client, record: &Record) {
    if let Some(token) = record.token {
        Lease::give_back_of_ended(pool, &record.order.name, token, false).await;
    }
}

pub async fn fill(options: cli::Fill) -> Result<(), Failure> {
    let cli::Fill { name, pause, resume, rate, stop, .. } = &options;
    if !(*pause || *resume || *stop || rate.is_some()) {
        return Err(Failure::usage(
            "say what is to become of it: --pause, --resume, --rate or --stop; `cheetah status` shows how far it is",
        ));
    }
    let directory = RuntimeDir::of_fillers()?;
    let record = directory.load::<Record>(name)?;
    let words = [
        pause.then_some(Word::Pause),
        resume.then_some(Word::Resume),
        rate.map(Word::Rate),
        stop.then_some(Word::Stop),
    ];
    let told = match &record {
        Some(record) => tell_all(&directory, record, words.into_iter().flatten())?,
        None => false,
    };
    if !told && *resume {
        return go_on(&options, record).await;
    }
    if !told {
        return Err(not_filled_here(&options).await);
    }
    let text = match (stop, pause, resume) {
        (true, ..) => format!("nobody fills {name} any more"),
        (_, true, _) => format!("filling {name} pauses"),
        (.., true) => format!("filling {name} goes on"),
        _ => format!("the rate of {name} is changed"),
    };
    done(&options.json, &text)
}

/// Starts it again where it was.
async fn go_on(options: &cli::Fill, record: Option<Record>) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let name = &options.name;
    let detail = volume(&pool, Call::Show { name: name.clone() }).await?;
    let content = &detail.status.content;
    let Some(load) = content.load.as_ref().filter(|_| content.state == ContentState::Opened) else {
        let text = match content.state {
            ContentState::Loaded => {
                format!("volume '{name}' holds all of its source: there is nothing left to fill")
            }
            _ => format!("volume '{name}' was not opened from a source: `cheetah open` makes such a volume"),
        };
        return Err(Failure::new(Exit::Refused, text));
    };
    let (source, raw) = match &record {
        Some(Record { order, .. }) => (order.source.clone(), order.raw),
        None => {
            let path = PathBuf::from(&load.source.name);
            let raw = is_raw(&path, &load.source);
            (path, raw)
        }
    };
    let mounted = record.as_ref().is_some_and(|record| record.order.mounted);
    // Nobody wrote down what was said, but the pool made room for what is to be sealed; and what is sealed
    // stays so.
    let writable = record.map_or_else(|| detail.map.proofs.is_none(), |record| record.order.writable);
    let (pool_url, rate) = (pool.url().to_owned(), options.rate);
    let order = Order { pool: pool_url, name: name.clone(), source, raw, mounted, rate, writable };
    let ready = start(&pool, &order).await?;
    if options.json.json {
        return output::json(
            &serde_json::json!({ "done": format!("filling {name} goes on"), "pid": ready.pid }),
        );
    }
    ready.notes.iter().for_each(|note| output::note(note));
    output::line(&format!("filling {name} goes on"));
    Ok(())
}

/// Whether the volume was opened from the file as it stands, which nobody wrote down.
fn is_raw(path: &Path, source: &Source) -> bool {
    let is_it = |raw| {
        cheetah_source::open(path, &Options { raw, ..Options::default() })
            .is_ok_and(|found| found.size() == source.size)
    };
    !is_it(false) && is_it(true)
}

/// Tells a filler of this machine; false: it has ended.
fn tell_all(
    directory: &RuntimeDir,
    record: &Record,
    words: impl Iterator<Item = Word>,
) -> Result<bool, Failure> {
    let name = &record.order.name;
    let has_ended = || -> Result<bool, Failure> {
        let claim = claim_of(record.pid, || RuntimeDir::of_fillers()?.try_claim(name))?;
        // What is left is found by who goes on.
        Ok(claim.map(Claim::leave).is_some())
    };
    if has_ended()? {
        return Ok(false);
    }
    for word in words {
        if let Err(failure) = tell(directory, name, &word) {
            // It may have been killed just now, and be gone only when the last of its threads is.
            let patience = Instant::now() + DYING_TIME;
            while Instant::now() < patience {
                if has_ended()? {
                    return Ok(false);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            return Err(failure);
        }
    }
    Ok(true)
}

/// Tells a filler of this machine, and waits until it has done so.
fn tell(directory: &RuntimeDir, name: &str, word: &Word) -> Result<(), Failure> {
    let silent = |why: &str| Failure::failed(format!("what fills volume '{name}' does not answer: {why}"));
    let fault = |e: std::io::Error| silent(&e.to_string());
    let claim = directory.other_claim(name)?;
    let mut stream = directory.connect(name).map_err(|failure| silent(&failure.message))?;
    stream.set_read_timeout(Some(WORD_TIME)).map_err(fault)?;
    control::say(&stream, word).map_err(fault)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(fault)?;
    if let Ok(Report::Failed(told)) = serde_json::from_str(&answer) {
        return Err(told.into());
    }
    let patience = Instant::now() + WORD_TIME;
    while *word == Word::Stop && claim.as_ref().is_some_and(|claim| !claim.has_ended()) {
        if Instant::now() > patience {
            return Err(silent("it was told to end, and has not ended yet"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Who fills it, if anybody does.
async fn not_filled_here(options: &cli::Fill) -> Failure {
    let name = &options.name;
    let here = format!("volume '{name}' is not filled on this machine by this user");
    let Ok(pool) = find(&options.pool).await else { return Failure::new(Exit::Refused, here) };
    let text = match pool.call(Call::Show { name: name.clone() }).await {
        Ok(cheetah_core::api::Answer::Volume(detail)) => {
            let content = &detail.status.content;
            match &content.load {
                Some(load) if load.filling.is_some() => format!("{here}, but by {}: say it there", load.by),
                _ if content.state == ContentState::Opened => {
                    format!("{here}, nor anywhere else: `cheetah fill {name} --resume` goes on")
                }
                _ => format!("{here}: it is not one that is filled while tools read it"),
            }
        }
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::NotFound => refusal.message,
        _ => here,
    };
    Failure::new(Exit::Refused, text)
}
