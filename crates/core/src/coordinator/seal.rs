//! Sealed volumes: what they hold is proved by one hash, and nobody writes them any more.
//!
//! Owns the room for proofs behind a volume's end, and the moment from which its map demands them. Never:
//! hashing (clients do), signing (the driver does), or the tree (`proofs`). Invariants: a volume is sealed by
//! who has it for writing, once it holds all of what it is to hold; what is sealed has no writer but one that
//! repairs, is not filled again, and is sealed for good; it can be deleted. Tests:
//! `tests/coordinator_seal.rs`.

use super::{Coordinator, Key, Note, Outcome, refuse};
use crate::api::{
    Answer, Attach, MANIFEST_OF_CIPHERTEXT, Manifest, ManifestCiphertext, ManifestHashes, Refusal,
    RefusalCode, Validated, Validation,
};
use crate::content::{Sealed, Sealing};
use crate::custody::Event;
use crate::map::{LeaseToken, Proofs, VolumeId};
use crate::members::Caller;
use crate::seed::Seed;
use crate::units::show_time;

impl Coordinator {
    /// What is sealed is read, repaired and deleted, and nothing else.
    pub(super) fn check_sealed(&self, id: VolumeId, name: &str, attach: &Attach) -> Result<(), Refusal> {
        let Some(sealed) = self.volumes.get(&id).and_then(|volume| volume.content.sealed.as_ref()) else {
            return Ok(());
        };
        if attach.yields || (attach.read_only && !attach.alone && attach.fill.is_none()) {
            return Ok(());
        }
        let to_do = match attach.fill {
            Some(_) => "load into another volume, or `cheetah delete` it first",
            None if attach.proofs => "`cheetah manifest` says by what",
            None => "attach it with --read-only",
        };
        let message =
            format!("volume '{name}' was sealed by {} and is never changed again: {to_do}", sealed.by);
        Err(refuse(RefusalCode::Conflict, message))
    }

    /// Whatever its holder asked for: of a sealed volume others read.
    pub(super) fn is_sealed(&self, id: VolumeId) -> bool {
        self.volumes.get(&id).is_some_and(|volume| volume.map.seal().is_some())
    }

    /// Which files a validation's report is. What is in them the pool does not know, and its comment says
    /// whose they are.
    pub(super) fn validation(&self, validation: &Validation) -> Result<Outcome, Refusal> {
        if !validation.is_whole() {
            let message = "a SHA-256 is 64 hexadecimal digits, in small letters".to_owned();
            return Err(refuse(RefusalCode::Invalid, message));
        }
        let by = match self.caller {
            Caller::Member(member) => member.to_string(),
            _ => "somebody, in the clear".to_owned(),
        };
        let at = show_time(self.time_of_day);
        let comment = format!("report of a validation, given to pool {} by {by} at {at}", self.pool);
        Ok(Outcome::Answer(Answer::Validated(Box::new(Validated { text: validation.text(), comment }))))
    }

    pub(super) fn manifest(&self, name: &str) -> Result<Manifest, Refusal> {
        let id = self.volume_named(name)?;
        let Some(volume) = self.volumes.get(&id) else { return Err(not_sealed(name)) };
        let sealed = volume.content.sealed.as_deref().ok_or_else(|| not_sealed(name))?;
        let load = volume.content.load.as_deref();
        let unreadable = load.map(|load| load.unreadable.clone()).unwrap_or_default();
        let load = load.filter(|_| volume.content.written.is_none());
        let Sealed { at, by, root, contents, md5, sha1, sha256, by_reading, custody } = sealed.clone();
        let blake3 = sealed.blake3();
        Ok(Manifest {
            format: "cheetah manifest".to_owned(),
            version: if contents.is_some() { MANIFEST_OF_CIPHERTEXT } else { 1 },
            volume: name.to_owned(),
            id,
            pool: self.pool,
            bytes: volume.map.size,
            hashes: ManifestHashes { md5, sha1, sha256, blake3 },
            encrypted: contents.map(|_| ManifestCiphertext { root }),
            hashed_by_reading: by_reading,
            sealed_at: at,
            sealed_by: by,
            case: self.case_of(id),
            custody,
            source: load.map(|load| load.source.clone()),
            loaded_at: load.map(|load| load.begun),
            source_changed: load.and_then(|load| load.changed.clone()),
            unreadable,
        })
    }

    /// Room behind the volume's end for what will prove it. Where the pool has none, its map says so by
    /// having none: it can be filled all the same.
    pub(super) fn make_room_for_proofs(&mut self, id: VolumeId, seed: &mut Seed) {
        let Some(volume) = self.volumes.get(&id).filter(|volume| volume.map.proofs.is_none()) else { return };
        // One that is larger than its memory is never whole.
        if volume.map.layers() > 1 {
            return;
        }
        let bytes = volume.map.tree().end();
        // It stays as it was where they do not fit.
        let _ = self.enlarge(id, seed, bytes, |map| map.proofs = Some(Proofs::default()));
    }

    /// From here on donors take no write to it, and readers ask for proofs.
    pub(super) fn seal(&mut self, id: VolumeId, token: LeaseToken, sealing: Sealing) -> Result<(), Refusal> {
        let (Some(volume), Some(lease)) = (self.volumes.get_mut(&id), self.leases.get(&token)) else {
            return Ok(());
        };
        let name = volume.map.name.clone();
        // What others may be writing is not sealed under them.
        if !(lease.record.fills || lease.record.seals) || lease.record.read_only {
            let message = format!("volume '{name}' is sealed by who has it for that: `cheetah seal {name}`");
            return Err(refuse(RefusalCode::Conflict, message));
        }
        let Some(proofs) = volume.map.proofs.as_mut() else {
            let message = format!("volume '{name}' has no room for the proofs of its blocks: nobody made it");
            return Err(refuse(RefusalCode::Invalid, message));
        };
        if !volume.content.is_usable() {
            let message =
                format!("volume '{name}' is not sealed: it does not hold all of what it is to hold");
            return Err(refuse(RefusalCode::Conflict, message));
        }
        if sealing.contents.is_some() != volume.map.encrypted {
            let message = match volume.map.encrypted {
                true => format!(
                    "volume '{name}' is encrypted, and sealed by who says what its contents are as well: `cheetah seal {name}` \
                     with its key, by a program as new as this pool"
                ),
                false => format!("volume '{name}' is not encrypted, and is proved by its contents alone"),
            };
            return Err(refuse(RefusalCode::Invalid, message));
        }
        let Sealing { root, contents, md5, sha1, sha256, by_reading } = sealing;
        let blake3 = contents.unwrap_or(root);
        let load = volume
            .content
            .load
            .as_ref()
            .filter(|load| load.source.size == volume.map.size && volume.content.written.is_none());
        let is = |hash: &Option<String>, other: &String| hash.as_ref().is_none_or(|hash| hash == other);
        if load.is_some_and(|load| !is(&load.md5, &md5) || !is(&load.sha256, &sha256)) {
            let message = format!("volume '{name}' is not sealed as something else than was loaded into it");
            return Err(refuse(RefusalCode::Conflict, message));
        }
        if volume.content.sealed.is_some() && proofs.root != Some(root) {
            let message = format!("volume '{name}' is sealed already, as something else");
            return Err(refuse(RefusalCode::Conflict, message));
        }
        // Told again, for the answer was lost.
        if proofs.root == Some(root) {
            return Ok(());
        }
        proofs.root = Some(root);
        volume.map.epoch += 1;
        let (at, by) = (self.time_of_day, lease.record.holder.clone());
        let event = Event::Sealed { holder: by.clone(), blake3, sha256: sha256.clone() };
        self.put_down(id, event);
        let custody = self.head_of(id);
        let sealed = Sealed { at, by: by.clone(), root, contents, md5, sha1, sha256, by_reading, custody };
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.content.sealed = Some(Box::new(sealed));
            volume.content.load.iter_mut().for_each(|load| load.unsealed = None);
        }
        self.dirty.insert(Key::Content(id));
        self.map_changed(id);
        let text = format!("{by} sealed volume {name}: BLAKE3 {blake3}");
        self.note(Note {
            event: "volume-sealed",
            volume: Some(name),
            holder: Some(by),
            text,
            ..Note::default()
        });
        Ok(())
    }
}

fn not_sealed(name: &str) -> Refusal {
    let message = format!("volume '{name}' is not sealed: `cheetah seal {name}` does that");
    refuse(RefusalCode::Conflict, message)
}
