//! What must hold of the contents of volumes: whom the coordinator lets in, and what it records, while
//! volumes are loaded.
//!
//! Owns: what was said and answered about every volume that was filled, and the rules for that. Half a load
//! is never served as a whole one, what is recorded as done was acknowledged, a load goes on from the same
//! source only, one that overwrites gets a volume that nobody had, and one that wrote nothing leaves none of
//! it. Never: bytes (`oracle`), or what a load does (`load`). Key rule: between what was said and its answer
//! both may be so. Called by `load`, `client` and `coordinator`. Tests: the planted bugs.

use crate::calls::Outcome;
use crate::client::Client;
use crate::oracle::Version;
use crate::world::World;
use cheetah_core::api::{Answer, Attached, RefusalCode};
use cheetah_core::content::{Check, Content, ContentState, FillFrom};
use cheetah_core::coordinator::{ContentRecord, Key, Record};
use cheetah_core::map::{LeaseToken, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// What a client tells the coordinator about its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Written,
    Done(u64),
    Loaded(Check),
    Untouched,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No load, as far as anybody was told.
    #[default]
    Plain,
    /// A load was begun, and nobody has said that it has come to its end.
    Half,
    /// That it has was said, or that it is no load, and not answered yet.
    Either,
    Whole,
    /// To its end, and not what its source is.
    Differs,
}

#[derive(Debug, Default)]
struct Held {
    stage: Stage,
    /// Of the last lease that fills it.
    filler: Option<LeaseToken>,
    /// Nobody had written it when that was given.
    fresh: bool,
    source: Option<usize>,
    /// What loads of that source wrote.
    versions: BTreeSet<Version>,
    /// So many bytes from the start were acknowledged to them.
    acknowledged: u64,
    /// The coordinator knows that a tool wrote.
    written: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Contents {
    volumes: BTreeMap<VolumeId, Held>,
    /// Loads of volumes of a name that want to attach, and of which nobody knows what came of it.
    sought: BTreeMap<String, usize>,
}

impl Contents {
    pub(crate) fn sought(&mut self, name: &str) {
        *self.sought.entry(name.to_owned()).or_default() += 1;
    }

    fn is_sought(&self, name: &str) -> bool {
        self.sought.get(name).is_some_and(|count| *count > 0)
    }

    pub(crate) fn wrote(&mut self, volume: VolumeId, version: Version) {
        self.volumes.entry(volume).or_default().versions.insert(version);
    }

    pub(crate) fn acknowledged(&mut self, volume: VolumeId, bytes: u64) {
        let held = self.volumes.entry(volume).or_default();
        held.acknowledged = held.acknowledged.max(bytes);
    }

    pub(crate) fn versions(&self, volume: VolumeId) -> Option<&BTreeSet<Version>> {
        self.volumes.get(&volume).map(|held| &held.versions)
    }

    /// What it was filled from, as far as it was.
    pub(crate) fn source(&self, volume: VolumeId) -> Option<usize> {
        self.volumes.get(&volume).and_then(|held| held.source)
    }

    /// Whether a load of it has come to its end, as its loader was told.
    pub(crate) fn is_whole(&self, volume: VolumeId) -> bool {
        self.volumes.get(&volume).is_some_and(|held| held.stage == Stage::Whole)
    }

    /// Somebody begins to say it.
    pub(crate) fn says(&mut self, volume: VolumeId, token: LeaseToken, word: Word) {
        let held = self.volumes.entry(volume).or_default();
        if held.filler == Some(token) && matches!(word, Word::Loaded(_) | Word::Untouched) {
            held.stage = Stage::Either;
        }
    }

    /// It is carried out.
    fn heard(&mut self, volume: VolumeId, token: LeaseToken, word: Word) {
        let held = self.volumes.entry(volume).or_default();
        let fills = held.filler == Some(token);
        match word {
            Word::Written => held.written = true,
            Word::Loaded(Check::Differs) if fills => held.stage = Stage::Differs,
            Word::Loaded(_) if fills => (held.stage, held.written) = (Stage::Whole, false),
            Word::Untouched if fills && held.fresh => {
                (held.stage, held.source, held.written) = (Stage::Plain, None, false);
            }
            Word::Untouched if fills => held.stage = Stage::Half,
            _ => {}
        }
    }

    /// A load is let in.
    fn begins(&mut self, source: usize, size: u64, from: FillFrom, given: &Attached) -> Result<(), String> {
        let known = self.volumes.contains_key(&given.map.volume);
        // Then another load may have begun it, whose loader never heard that.
        let sought = self.is_sought(&given.map.name);
        let held = self.volumes.entry(given.map.volume).or_default();
        let load = given.content.load.as_ref();
        let done = load.map_or(u64::MAX, |load| load.bytes_done);
        let wrong = match from {
            _ if given.read_only || given.content.state != ContentState::Loading => {
                "and it is not being loaded"
            }
            FillFrom::Overwrite if known => "and is the volume that it was before",
            // Somebody may have grown it before its loader heard of it.
            FillFrom::Overwrite
                if given.map.size != size && given.map.epoch == 1 || given.map.size < size =>
            {
                "and is not as large as its source"
            }
            FillFrom::Overwrite if !given.fresh => "and somebody may have written it",
            FillFrom::Overwrite | FillFrom::Fresh if done != 0 => "and something counts as loaded already",
            FillFrom::Fresh if held.written || matches!(held.stage, Stage::Whole | Stage::Half) => {
                "and it was written or loaded before"
            }
            FillFrom::Resume if held.source != Some(source) && !sought => {
                "and nobody had begun to load that source"
            }
            FillFrom::Resume if held.written => "and a tool has written it since",
            FillFrom::Resume if done > held.acknowledged => "and more counts as loaded than was acknowledged",
            _ => "",
        };
        if !wrong.is_empty() {
            return Err(format!("volume {} is given to be loaded ({from:?}), {wrong}", given.map.name));
        }
        if from != FillFrom::Resume {
            *held = Held::default();
        }
        (held.stage, held.filler, held.source) = (Stage::Half, Some(given.token), Some(source));
        held.fresh = given.fresh;
        Ok(())
    }

    /// Somebody is let in who does not load.
    fn let_in(&mut self, client: &Client, given: &Attached) -> Result<(), String> {
        let sought = self.is_sought(&client.name);
        let held = self.volumes.entry(given.map.volume).or_default();
        let (name, wants) = (&given.map.name, &client.wants);
        let half = match held.stage {
            Stage::Half => "half a load",
            Stage::Differs => "what is not what was loaded",
            _ => "",
        };
        if !half.is_empty() && !wants.incomplete {
            return Err(format!("{half} is attached as volume {name} by who did not ask for that"));
        }
        let loaded = match held.stage {
            Stage::Plain if !sought => Some(false),
            Stage::Plain | Stage::Either => None,
            Stage::Half | Stage::Whole | Stage::Differs => Some(true),
        };
        let expected = loaded.map(|loaded| wants.read_only || (loaded && !wants.writable));
        if expected.is_some_and(|expected| expected != given.read_only) {
            let (asked, got) = (wants.read_only, given.read_only);
            return Err(format!(
                "volume {name} ({:?}) is attached with read_only {got}, asked for with {asked} and writable {}",
                held.stage, wants.writable
            ));
        }
        Ok(())
    }

    fn recorded(&self, volume: VolumeId, content: &Content) -> Result<(), String> {
        let Some(load) = &content.load else { return Ok(()) };
        let acknowledged = self.volumes.get(&volume).map_or(0, |held| held.acknowledged);
        let (done, size) = (load.bytes_done, load.source.size);
        if done > acknowledged {
            return Err(format!(
                "{done} bytes are recorded as loaded, of which {acknowledged} were acknowledged"
            ));
        }
        if content.state == ContentState::Loaded && done != size {
            return Err(format!("a load is recorded as at its end with {done} of {size} bytes"));
        }
        Ok(())
    }
}

impl World {
    /// The coordinator answers who wants to attach.
    pub(crate) fn attach_is_right(&mut self, c: usize, answer: &Outcome) {
        let client = &self.clients[c];
        let load = client.load.as_ref();
        if load.is_some() {
            self.contents.sought.entry(client.name.clone()).and_modify(|count| *count -= 1);
        }
        let right = match answer {
            Ok(Answer::Attached(given)) => match load {
                Some(load) => {
                    let size = self.loads.size(load.source);
                    self.contents.begins(load.source, size, load.from, given)
                }
                None => self.contents.let_in(client, given),
            },
            Err(refusal) if refusal.code == RefusalCode::Conflict && load.is_none() => {
                // Only what a volume holds is a reason to begin anew.
                let by_content = refusal.message.contains("--overwrite");
                let volume = self.stored_maps().find(|map| map.name == client.name).map(|map| map.volume);
                let stage =
                    volume.and_then(|volume| self.contents.volumes.get(&volume)).map(|held| held.stage);
                let whole = matches!(stage, None | Some(Stage::Plain | Stage::Whole))
                    && !self.contents.is_sought(&client.name);
                match by_content && whole {
                    true => Err(format!(
                        "{:?} is refused, though it is no half load: {}",
                        client.wants, refusal.message
                    )),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        };
        if let Err(what) = right {
            self.fail(what);
        }
    }

    /// What a client told is answered.
    pub(crate) fn word_is_heard(&mut self, c: usize, word: Word) {
        let client = &self.clients[c];
        let (Some(volume), Some(token)) = (client.volume, client.token) else { return };
        self.contents.heard(volume, token, word);
        let ended = self.verdict.lease_ended.contains(&token);
        let held = self.contents.volumes.get(&volume);
        if word == Word::Untouched && !ended && held.is_some_and(|held| held.stage == Stage::Plain) {
            let stored = match self.coordinator.store.get(&Key::Content(volume)) {
                Some(Record::Content(record)) => record.content.clone(),
                _ => Content::default(),
            };
            if stored != Content::default() {
                let what = format!(
                    "a load ended before its first byte, and volume {volume} is not as it was made: {stored:?}"
                );
                return self.fail(what);
            }
            self.count("volumes as they were made after a load of nothing");
        }
    }

    pub(crate) fn content_is_right(&mut self, record: &ContentRecord) {
        if let Err(what) = self.contents.recorded(record.volume, &record.content) {
            self.fail(format!("volume {}: {what}", record.volume));
        }
    }
}
