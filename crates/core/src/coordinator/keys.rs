//! Keys of encrypted volumes, each wrapped for a member: who is given which.
//!
//! Owns what is kept of them, and who may give one on. Never: a key; what is kept here opens for its member
//! alone, and nothing here looks into it. Invariants: a member is given what was wrapped for it, and nothing
//! that was wrapped for another; and a key is given on by who was given it. Tests:
//! `tests/coordinator_keys.rs`.

use super::members::no_such_member;
use super::notes::Note;
use super::{Coordinator, Key, Outcome, refuse};
use crate::api::{Answer, Create, GrantKey, Refusal, RefusalCode, WrappedKey};
use crate::map::{MemberId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const CHECK_DIGITS: usize = 16;
const WRAPPED_DIGITS_MAX: usize = 1024;

/// Of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// As `WrappedKey::check`.
    pub check: String,
    /// As `WrappedKey::wrapped`, by the member that can open it.
    #[serde(default)]
    pub wrapped: BTreeMap<MemberId, String>,
    /// As `WrappedKey::under`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<String>,
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_whole(key: &WrappedKey) -> bool {
    let fits = |text: &String| is_digits(text) && text.len() <= WRAPPED_DIGITS_MAX;
    let mut parts = key.wrapped.iter().chain(&key.under);
    key.check.len() == CHECK_DIGITS && is_digits(&key.check) && parts.all(fits)
}

/// What a volume that is to be encrypted cannot be.
pub(super) fn check_create(create: &Create) -> Result<(), Refusal> {
    let Some(key) = &create.encrypted else { return Ok(()) };
    let invalid = |message: &str| Err(refuse(RefusalCode::Invalid, message));
    if !is_whole(key) {
        return invalid("what was sent of the volume's key is none");
    }
    if create.overlay_of.is_some() != key.under.is_some() {
        return invalid("the key of an overlay, and of nothing else, is one that the key of its base opens");
    }
    Ok(())
}

impl Coordinator {
    /// Of a volume that is about to be made.
    pub(super) fn keys_of_new(&self, key: Option<Box<WrappedKey>>) -> Option<Box<Keys>> {
        let WrappedKey { check, wrapped, under } = *key?;
        let wrapped = self.caller_id().zip(wrapped).into_iter().collect();
        Some(Box::new(Keys { check, wrapped, under }))
    }

    /// What this member is given of a volume's key with a lease. Of an overlay the key of its base opens it,
    /// so that whoever may read the base goes on with what was written over it.
    pub(super) fn key_for(&self, volume: VolumeId, member: Option<MemberId>) -> Option<Box<WrappedKey>> {
        let found = self.volumes.get(&volume)?;
        let Keys { check, wrapped, under } = found.keys.as_deref()?;
        let base = found.content.overlay.as_ref().and_then(|overlay| self.volumes.get(&overlay.of));
        let wrapped = base.map_or(Some(wrapped), |base| base.keys.as_deref().map(|keys| &keys.wrapped));
        let wrapped = member.zip(wrapped).and_then(|(member, wrapped)| wrapped.get(&member)).cloned();
        Some(Box::new(WrappedKey { check: check.clone(), wrapped, under: under.clone() }))
    }

    pub(super) fn grant_key(&mut self, name: &str, grant: GrantKey) -> Result<Outcome, Refusal> {
        let id = self.volume_named(name)?;
        let GrantKey { member, key } = grant;
        let caller = self.caller_id();
        let invalid = |message: String| Err(refuse(RefusalCode::Invalid, message));
        let Some(keys) = self.volumes.get(&id).and_then(|volume| volume.keys.as_deref()) else {
            return invalid(format!("volume '{name}' is not encrypted, and needs no key"));
        };
        if let Some(overlay) = self.volumes.get(&id).and_then(|volume| volume.content.overlay.as_ref()) {
            let base = &overlay.base;
            return invalid(format!(
                "volume '{name}' is an overlay of '{base}', whose key opens both: `cheetah grant {base} MEMBER`"
            ));
        }
        if !is_whole(&key) || key.check != keys.check {
            return invalid(format!("what was sent is not the key of volume '{name}'"));
        }
        let Some(wrapped) = key.wrapped else {
            return invalid("what was sent is wrapped for nobody".to_owned());
        };
        let Some(caller) = caller.filter(|caller| keys.wrapped.contains_key(caller)) else {
            let message = format!(
                "the key of volume '{name}' is given on by who was given it by the pool: ask one of those, or give it in a \
                 file"
            );
            return Err(refuse(RefusalCode::Forbidden, message));
        };
        if !self.is_member(member) {
            return Err(no_such_member(member));
        }
        if let Some(keys) = self.volumes.get_mut(&id).and_then(|volume| volume.keys.as_deref_mut()) {
            keys.wrapped.insert(member, wrapped);
        }
        self.dirty.insert(Key::Volume(id));
        let text = format!("member {caller} gave member {member} the key of volume {name}");
        self.note(Note { event: "key-granted", volume: Some(name.to_owned()), text, ..Note::default() });
        Ok(Outcome::Answer(Answer::Done))
    }

    /// A member that is none any more is given nothing; whoever comes with the same key is another.
    pub(super) fn forget_keys_of(&mut self, member: MemberId) {
        let changed = self
            .volumes
            .iter_mut()
            .filter_map(|(id, volume)| volume.keys.as_deref_mut()?.wrapped.remove(&member).map(|_| *id));
        let changed: Vec<VolumeId> = changed.collect();
        self.dirty.extend(changed.into_iter().map(Key::Volume));
    }
}
