//! What volumes hold: begun, told and ended loads, and who wrote a volume since.
//!
//! Owns the state of a volume's content and who may attach it for that. Never: bytes, or leases (`leases`).
//! Invariants: a volume is `Loading` only while who fills it has the lease, whatever became of that process;
//! a load that was begun and not told to be at its end is `Incomplete`, and so is a volume that was made for
//! one; a writer that ended without a word counts as having written; and what was loaded is changed by nobody
//! who did not ask for that. Tests: `tests/coordinator_content.rs`.

use super::leases::{Lease, read_only};
use super::record::LeaseRecord;
use super::{Coordinator, Key, Outcome, door, open, refuse};
use crate::api::{Answer, Attach, Refusal, RefusalCode};
use crate::content::{
    Beside, Check, Content, ContentState, Fill, FillFrom, Load, Loaded, Source, Tell, ToLoad, UnixSeconds,
    Written, cover, in_fragments,
};
use crate::custody;
use crate::limits::{BESIDE_MAX, UNREADABLE_RANGES_MAX};
use crate::map::{LeaseToken, VolumeId};
use crate::seed::Seed;
use crate::units::{Time, show_bytes, show_time};

impl Coordinator {
    /// For what is recorded of when; nothing is decided by it.
    pub fn tell_time_of_day(&mut self, unix_seconds: UnixSeconds) {
        self.time_of_day = unix_seconds;
    }

    pub(super) fn content(&self, id: VolumeId) -> Content {
        self.volumes.get(&id).map(|volume| volume.content.clone()).unwrap_or_default()
    }

    fn set_content(&mut self, id: VolumeId, change: impl FnOnce(&mut Content)) {
        if let Some(volume) = self.volumes.get_mut(&id) {
            change(&mut volume.content);
            self.dirty.insert(Key::Content(id));
        }
    }

    /// Whether who asks for the volume gets it for reading alone.
    pub(super) fn gets_read_only(&self, id: VolumeId, attach: &Attach) -> bool {
        let loaded = self.volumes.get(&id).is_some_and(|volume| volume.content.load.is_some());
        let fills = attach.alone || attach.fill.as_ref().is_some_and(open::opens);
        let stays = loaded || self.is_sealed(id);
        attach.read_only || (stays && !attach.writable && !fills && !attach.yields && !attach.proofs)
    }

    /// Tools do not see half an image unless they ask for that.
    pub(super) fn check_usable(&self, id: VolumeId, name: &str, attach: &Attach) -> Result<(), Refusal> {
        let content = self.content(id);
        if attach.incomplete || attach.alone || attach.yields || content.is_usable() {
            return Ok(());
        }
        let what = unfit(name, &content);
        let message = format!(
            "{what}; `--overwrite` instead of that begins anew, and `cheetah attach {name} --incomplete` shows what is there"
        );
        Err(refuse(RefusalCode::Conflict, message))
    }

    /// Whether the volume may be filled so; nothing is changed.
    pub(super) fn check_fill(&self, id: VolumeId, fill: &Fill) -> Result<(), Refusal> {
        let Some(volume) = self.volumes.get(&id) else { return Ok(()) };
        let (name, size, content) = (&volume.map.name, volume.map.size, &volume.content);
        let conflict = |message: String| Err(refuse(RefusalCode::Conflict, message));
        match (fill.from, &content.load) {
            (FillFrom::Overwrite, _) => Ok(()),
            (FillFrom::Open, Some(load)) if is_same(&load.source, &fill.source) => Ok(()),
            (FillFrom::Open, load) => conflict(another_source(name, load.as_deref(), &fill.source)),
            // Who made it for that, or who does the same again after that one was ended.
            (FillFrom::Fresh, Some(load))
                if volume.fresh && load.made && is_same(&load.source, &fill.source) =>
            {
                Ok(())
            }
            (FillFrom::Fresh, _) if !content.is_usable() => {
                conflict(format!("{}; `--overwrite` instead of that begins anew", unfit(name, content)))
            }
            (FillFrom::Fresh, _) if content.state != ContentState::Fresh => conflict(format!(
                "volume '{name}' was loaded or written before and may hold data, which would be overwritten: load into \
                 another volume, or say --overwrite"
            )),
            (FillFrom::Fresh, _) if fill.source.size > size => conflict(format!(
                "{} has {} bytes, volume '{name}' has {size}: `cheetah grow {name} {}` makes room",
                fill.source.name, fill.source.size, fill.source.size
            )),
            (FillFrom::Fresh, _) => Ok(()),
            (FillFrom::Resume, None) => conflict(format!(
                "no load of volume '{name}' was begun, so there is none to go on with: leave --resume out"
            )),
            (FillFrom::Resume, Some(_)) if content.written.is_some() => conflict(format!(
                "{}, and --resume would put what the source holds over that: load into another volume to keep it, or say \
                 --overwrite",
                written_since(name, content)
            )),
            (FillFrom::Resume, Some(load)) => {
                if is_same(&load.source, &fill.source) {
                    return Ok(());
                }
                conflict(format!(
                    "{}: --overwrite instead of --resume begins anew",
                    another_source(name, Some(load), &fill.source)
                ))
            }
        }
    }

    /// Nobody has begun to load it, and nobody is to take it for what it shall be.
    pub(super) fn made_to_be_loaded(&mut self, id: VolumeId, ToLoad { source, by, .. }: ToLoad) {
        let load = Load { made: true, ..begun(source, by, self.time_of_day) };
        self.set_content(id, |content| {
            content.state = ContentState::Incomplete;
            content.load = Some(Box::new(load));
        });
    }

    /// The volume is being loaded from here on, or one of the same name that takes its place. `check_fill`
    /// has passed.
    pub(super) fn begin_fill(
        &mut self,
        now: Time,
        seed: &mut Seed,
        id: VolumeId,
        by: &str,
        fill: Fill,
    ) -> Result<VolumeId, Refusal> {
        let Fill { source, from } = fill;
        let put_down = custody::Event::FillBegun { source: source.clone(), holder: by.to_owned() };
        if from == FillFrom::Open {
            self.put_down(id, put_down);
            self.set_content(id, |content| open::begun(content, by));
            return Ok(id);
        }
        let id = match from {
            FillFrom::Overwrite => self.make_anew(now, id, seed, source.size)?,
            FillFrom::Fresh | FillFrom::Resume | FillFrom::Open => id,
        };
        self.put_down(id, put_down);
        self.show_unreadable(id, false);
        let load = begun(source, by.to_owned(), self.time_of_day);
        self.set_content(id, |content| {
            let before = content.load.take();
            let made = before.as_ref().is_some_and(|load| load.made);
            let before = before.filter(|_| from == FillFrom::Resume);
            let (bytes_done, unreadable) =
                before.map(|load| (load.bytes_done, load.unreadable)).unwrap_or_default();
            content.state = ContentState::Loading;
            content.load = Some(Box::new(Load { bytes_done, made, unreadable, ..load }));
        });
        Ok(id)
    }

    pub(super) fn tell(&mut self, name: &str, token: LeaseToken, tell: Tell) -> Result<Outcome, Refusal> {
        let id = self.check_lease(name, token)?;
        check_tell(&tell)?;
        let mut tell = door::tell(tell);
        if let Some(volume) = self.volumes.get(&id) {
            open::check_loaded(&volume.map, &tell)?;
        }
        let sealing = tell.sealed.take();
        // Told again, for the answer was lost, its end is no other than it was.
        let is_of_end = tell.loaded.is_some() && !self.is_sealed(id);
        if sealing.is_none() || is_of_end {
            self.told(id, token, tell)?;
        }
        if let Some(sealing) = sealing {
            self.seal(id, token, *sealing)?;
        }
        Ok(Outcome::Answer(Answer::Done))
    }

    /// Takes in all that is told but a seal.
    fn told(&mut self, id: VolumeId, token: LeaseToken, tell: Tell) -> Result<(), Refusal> {
        let Some(lease) = self.leases.get(&token) else { return Ok(()) };
        if lease.record.read_only {
            return Err(read_only(token));
        }
        let (fills, by, now) = (lease.record.fills, lease.record.holder.clone(), self.time_of_day);
        if tell.untouched && fills {
            self.never_touched(token);
        } else if fills {
            let (complete, filler) = (tell.loaded.is_some(), tell.filler.clone().map(|filler| *filler));
            self.set_content(id, |content| told_of_load(content, tell, now));
            if filler.is_some() {
                self.set_filler(id, filler);
            }
            if complete {
                self.complete(id);
                self.note_loaded(id, token);
            }
            if self.volumes.get(&id).is_some_and(|volume| volume.map.backing.is_some()) {
                // Beside its readers, who are given no block of it meanwhile.
                self.show_unreadable(id, true);
            }
        } else if tell.written {
            self.note_written(id, Written { at: now, by, certain: true });
        } else if tell.unsure {
            self.lease_lapsed(token);
        }
        Ok(())
    }

    fn note_written(&mut self, id: VolumeId, written: Written) {
        let has = self.volumes.get(&id).and_then(|volume| volume.content.written.as_ref());
        let is_known = has.is_some_and(|known| known.certain || !written.certain);
        if !is_known {
            let (holder, certain) = (written.by.clone(), written.certain);
            self.put_down(id, custody::Event::Written { holder, certain });
        }
        self.set_content(id, |content| {
            if !is_known {
                content.written = Some(written);
            }
            if content.state == ContentState::Fresh {
                content.state = ContentState::Written;
            }
        });
    }

    /// Nothing was written under the lease that fills it: it is as it was made, if nobody had written before.
    pub(super) fn never_touched(&mut self, token: LeaseToken) {
        let Some(lease) = self.leases.get(&token).filter(|lease| lease.record.fills && lease.record.fresh)
        else {
            return;
        };
        let id = lease.record.volume;
        let loads = |content: &Content| {
            content.state == ContentState::Loading
                && content.load.as_ref().is_some_and(|load| load.bytes_done == 0)
        };
        if !self.volumes.get(&id).is_some_and(|volume| loads(&volume.content)) {
            return;
        }
        self.set_content(id, |content| match &mut content.load {
            Some(load) if load.made => content.state = ContentState::Incomplete,
            _ => *content = Content::default(),
        });
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.fresh = true;
            self.dirty.insert(Key::Volume(id));
        }
    }

    /// The lease was not given back: what its holder did at the end is not known.
    pub(super) fn lease_lapsed(&mut self, token: LeaseToken) {
        let Some(Lease { record, .. }) = self.leases.get(&token) else { return };
        if record.read_only || record.yields || record.fills || record.seals {
            return;
        }
        let written = Written { at: record.since, by: record.holder.clone(), certain: false };
        self.note_written(record.volume, written);
    }

    /// The lease that filled the volume is gone, whatever came of it.
    pub(super) fn fill_ended(&mut self, id: VolumeId) {
        let now = self.time_of_day;
        let content = self.volumes.get(&id).map(|volume| &volume.content);
        let ends = content.filter(|content| content.state != ContentState::Loaded);
        if let Some(load) = ends.and_then(|content| content.load.as_ref()) {
            let bytes_done = load.bytes_done;
            self.put_down(id, custody::Event::FillEnded { bytes_done });
        }
        self.set_content(id, |content| {
            if content.state == ContentState::Loading {
                content.state = ContentState::Incomplete;
                if let Some(load) = &mut content.load {
                    load.ended = Some(now);
                }
            }
            if let Some(load) = &mut content.load {
                load.filling = None;
            }
        });
        self.set_filler(id, None);
        self.show_unreadable(id, true);
    }

    /// Whether ranges that the source could not give answer an error: not to who fills the volume.
    fn show_unreadable(&mut self, id: VolumeId, shown: bool) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        let list = volume.content.load.as_ref().filter(|_| shown).map(|load| load.unreadable.as_slice());
        let mut runs = in_fragments(&volume.map, list.unwrap_or_default());
        runs.sort_unstable();
        if volume.map.unreadable != runs {
            volume.map.unreadable = runs;
            volume.map.epoch += 1;
            self.map_changed(id);
        }
    }

    /// Those that the holder of the lease should know of: who writes beside a reader, who reads beside a
    /// writer.
    pub(super) fn beside(&self, token: LeaseToken) -> Vec<Beside> {
        let Some(lease) = self.leases.get(&token) else { return Vec::new() };
        let mine = &lease.record;
        let matters = |other: &&Lease| {
            // Who fills what tools read changes nothing of what they read.
            let fills = |lease: &LeaseRecord| lease.fills && !lease.alone;
            other.record.token != token
                && other.record.read_only != mine.read_only
                && !(other.record.yields || fills(&other.record) || fills(mine))
        };
        let beside =
            |other: &Lease| Beside { holder: other.record.holder.clone(), read_only: other.record.read_only };
        self.leases_of(mine.volume).filter(matters).take(BESIDE_MAX).map(beside).collect()
    }
}

/// A load of which nothing is written yet.
fn begun(source: Source, by: String, begun: UnixSeconds) -> Load {
    Load {
        source,
        by,
        begun,
        ended: None,
        bytes_done: 0,
        filling: None,
        made: false,
        md5: None,
        sha256: None,
        check: Check::No,
        changed: None,
        unsealed: None,
        unreadable: Vec::new(),
        on_disk: None,
        memory: None,
    }
}

/// A name alone says little: another file may have it by now, and a disk another name.
fn is_same(one: &Source, other: &Source) -> bool {
    (one.size, &one.identity) == (other.size, &other.identity)
}

fn another_source(name: &str, load: Option<&Load>, source: &Source) -> String {
    let Some(load) = load else { return format!("volume '{name}' was not opened from a source") };
    format!(
        "volume '{name}' was begun from {} ({} bytes, {}), and {} is another or has changed since ({} bytes, {})",
        load.source.name, load.source.size, load.source.identity, source.name, source.size, source.identity
    )
}

fn check_tell(tell: &Tell) -> Result<(), Refusal> {
    let more = tell.loaded.iter().flat_map(|loaded| &loaded.unreadable).count() + tell.unreadable.len();
    if more > 2 * UNREADABLE_RANGES_MAX {
        return Err(refuse(RefusalCode::Invalid, "more unreadable ranges than a volume may have"));
    }
    let loaded = tell.loaded.iter().flat_map(|loaded| [(&loaded.md5, 32), (&loaded.sha256, 64)]);
    let sealed = tell.sealed.iter().flat_map(|s| [(&s.md5, 32), (&s.sha1, 40), (&s.sha256, 64)]);
    loaded.chain(sealed).try_for_each(|(text, digits)| check_hash(text, digits))
}

/// Whether the text is a hash of so many digits.
pub(super) fn check_hash(text: &str, digits: usize) -> Result<(), Refusal> {
    if text.len() != digits || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(refuse(RefusalCode::Invalid, "a hash must be written in hexadecimal digits"));
    }
    Ok(())
}

fn told_of_load(content: &mut Content, tell: Tell, now: UnixSeconds) {
    let Some(load) = &mut content.load else { return };
    let fills = matches!(content.state, ContentState::Loading | ContentState::Opened);
    load.filling = tell.filling.map(|filling| *filling).or(load.filling.take());
    // One that its end has overtaken on the way says less than that.
    if let Some(done) = tell.bytes_done.filter(|_| fills) {
        load.bytes_done = done.min(load.source.size);
    }
    load.on_disk = tell.on_disk.or(load.on_disk.take());
    cover(&mut load.unreadable, tell.unreadable);
    let Some(loaded) = tell.loaded else { return };
    let Loaded { md5, sha256, check, changed, unsealed, unreadable } = *loaded;
    (load.md5, load.sha256, load.unsealed) = (Some(md5), Some(sha256), unsealed);
    (load.check, load.changed, load.ended) = (check, changed, Some(now));
    (load.bytes_done, load.filling) = (load.source.size, None);
    load.unreadable.clear();
    cover(&mut load.unreadable, unreadable);
    content.state = ContentState::Loaded;
    content.written = None;
}

/// What a tool did to what was loaded.
fn written_since(name: &str, content: &Content) -> String {
    match &content.written {
        Some(Written { at, by, certain: true }) => {
            format!("volume '{name}' was written by {by} since its load, first at {}", show_time(*at))
        }
        Some(Written { at, by, certain: false }) => format!(
            "volume '{name}' may have been written by {by}, who had it for writing from {} on and ended without a word",
            show_time(*at)
        ),
        None => format!("nobody wrote volume '{name}' since its load"),
    }
}

/// Why the volume is not what its source was, and how to go on.
fn unfit(name: &str, content: &Content) -> String {
    let Some(load) = &content.load else { return format!("volume '{name}' is being filled") };
    let source = &load.source.name;
    if content.written.is_some() {
        let is = match content.state {
            ContentState::Loaded => format!("does not hold what {source} held when it was loaded"),
            _ => format!("is incomplete: a load of {source} ended before its end"),
        };
        return format!(
            "volume '{name}' {is}, and {}: `cheetah load {source} {name} --resume` is refused for that",
            written_since(name, content)
        );
    }
    if content.state == ContentState::Loaded {
        return format!(
            "volume '{name}' does not hold what {source} held when it was loaded: `cheetah load {source} {name} --resume` \
             puts that right"
        );
    }
    if load.made && load.bytes_done == 0 && load.ended.is_none() {
        return format!(
            "volume '{name}' is incomplete: {} made it to load {source} into it, and nothing was loaded; `cheetah load \
             {source} {name} --resume` does that",
            load.by
        );
    }
    format!(
        "volume '{name}' is incomplete: {} of {} of {source} were loaded by {} when that ended; `cheetah load {source} \
         {name} --resume` goes on from there",
        show_bytes(load.bytes_done),
        show_bytes(load.source.size),
        load.by
    )
}
