//! Leases: who may write a volume, and who reads it.
//!
//! Owns giving, renewing and ending them. Never: enforcement, which is the donors' part.
//! Invariant: at most one read-write lease per volume, and no other beside one that fills it; a writer whose
//! lease ran out costs the volume an epoch, so whoever comes next is told apart from it. Tests:
//! `tests/coordinator_leases.rs`.

use super::confirm::{Held, lease_gone};
use super::notes::Over;
use super::record::LeaseRecord;
use super::{Coordinator, Key, Outcome, Timer, check_version, door, open, refuse};
use crate::api::{Answer, Attach, Attached, Refusal, RefusalCode, Renew, VolumeReport};
use crate::content::Fill;
use crate::limits::{DONOR_SILENCE_NS, LEASE_NS, LEASE_RENEW_NS, MILLISECOND_NS, POOL_LEASES_MAX, SECOND_NS};
use crate::map::{DonorId, LeaseToken, VolumeId};
use crate::seed::Seed;
use crate::units::Time;

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) record: LeaseRecord,
    pub(super) place: String,
    pub(super) lost: Vec<(DonorId, String)>,
    pub(super) report: VolumeReport,
    pub(super) expires: Time,
    /// When its holder was last heard of; absent since a restart.
    pub(super) heard: Option<Time>,
    /// The newest map that its holder said it goes by.
    pub(super) epoch: u64,
}

impl Coordinator {
    pub(super) fn attach(
        &mut self,
        now: Time,
        seed: &mut Seed,
        name: &str,
        attach: Attach,
    ) -> Result<Outcome, Refusal> {
        let attach = door::attach(attach);
        check_version(attach.version, &attach.holder)?;
        let id = self.volume_named(name)?;
        let attach = Attach { read_only: self.gets_read_only(id, &attach), ..attach };
        let fill = attach.fill.clone().filter(|fill| attach.alone || open::opens(fill));
        self.check_attach(id, name, &attach, fill.as_ref())?;
        // Of two that yield the second was told to come by this coordinator: the first may have ended before
        // it gave back what it had.
        if !attach.read_only {
            self.send_away(id);
        }
        let fills = fill.is_some();
        let id = match fill {
            Some(fill) => self.begin_fill(now, seed, id, &attach.holder, fill)?,
            None => id,
        };
        let proofs = attach.proofs && !attach.read_only && !attach.yields;
        if proofs {
            self.make_room_for_proofs(id, seed);
        }
        let token = LeaseToken(seed.draw_free(|number| self.leases.contains_key(&LeaseToken(number))));
        let Attach { read_only, holder, yields, alone, .. } = attach;
        let seals = proofs && !fills;
        let since = self.time_of_day;
        let fresh = self.volumes.get(&id).is_some_and(|volume| volume.fresh);
        let member = self.caller_id();
        let record = LeaseRecord {
            token,
            volume: id,
            read_only,
            holder,
            yields,
            alone,
            fills,
            seals,
            fresh,
            since,
            member,
        };
        let expires = now + LEASE_NS;
        let epoch = self.volumes.get(&id).map_or(0, |volume| volume.map.epoch);
        if let Some(volume) = self.volumes.get_mut(&id).filter(|_| fresh && !read_only) {
            volume.fresh = false;
            self.dirty.extend([Key::Volume(id), Key::Content(id)]);
        }
        self.leases.insert(
            token,
            Lease {
                record,
                place: String::new(),
                lost: Vec::new(),
                report: VolumeReport::default(),
                expires,
                heard: Some(now),
                epoch,
            },
        );
        self.timers.insert((expires, Timer::Lease(token)));
        self.dirty.insert(Key::Lease(token));
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.leases.insert(token);
        }
        self.note_lease(token, None);
        self.touch_volume(id);
        Ok(Outcome::Hold(Held::Attach { volume: id, token }, now + DONOR_SILENCE_NS))
    }

    /// Whether it may be attached so; nothing is changed.
    fn check_attach(
        &self,
        id: VolumeId,
        name: &str,
        attach: &Attach,
        fill: Option<&Fill>,
    ) -> Result<(), Refusal> {
        if self.leases.len() >= POOL_LEASES_MAX {
            let message = format!("the pool is at its limit of {POOL_LEASES_MAX} attachments");
            return Err(refuse(RefusalCode::Unavailable, message));
        }
        self.check_sealed(id, name, attach)?;
        self.check_overlay(id, name, attach)?;
        self.check_open(id, name, attach)?;
        if let Some(message) = self.in_the_way(id, name, attach) {
            return Err(refuse(RefusalCode::Conflict, message));
        }
        self.check_usable(id, name, attach)?;
        fill.map_or(Ok(()), |fill| self.check_fill(id, fill))
    }

    /// Whose lease does not go together with this one, and what to do.
    fn in_the_way(&self, id: VolumeId, name: &str, attach: &Attach) -> Option<String> {
        let is_overlay = self.is_overlay(id);
        let changes_overlay = is_overlay && !attach.read_only && !attach.yields;
        // Who yields is in nobody's way.
        let writer = self.writer(id).filter(|writer| !writer.record.yields);
        let filler = writer.filter(|writer| writer.record.alone);
        let (lease, does, way_out) = if let Some(filler) = filler {
            (filler, "is being filled by", "wait until it is done")
        } else if let Some(writer) = writer.filter(|_| !attach.read_only || is_overlay) {
            (writer, "is attached for writing by", "detach it there")
        } else if let Some(reader) = self.reader(id).filter(|_| attach.alone || changes_overlay) {
            (reader, "would change under who reads it,", "detach it there")
        } else {
            return None;
        };
        let seconds = LEASE_NS / SECOND_NS;
        let holder = &lease.record.holder;
        let gone = format!("(if that machine is gone, its lease ends by itself within {seconds} s)");
        // Only tools can do with less: who yields moves what lies there, and who fills writes. An overlay has
        // one user, whatever that does.
        let tools = !is_overlay && filler.is_none() && !attach.alone && !attach.yields;
        let or = if tools { ", or attach it with --read-only" } else { "" };
        Some(format!("volume '{name}' {does} {holder}; {way_out} {gone}{or}"))
    }

    pub(super) fn writer(&self, id: VolumeId) -> Option<&Lease> {
        self.leases_of(id).find(|lease| !lease.record.read_only)
    }

    fn reader(&self, id: VolumeId) -> Option<&Lease> {
        self.leases_of(id).find(|lease| lease.record.read_only)
    }

    pub(super) fn leases_of(&self, id: VolumeId) -> impl Iterator<Item = &Lease> {
        let tokens = self.volumes.get(&id).into_iter().flat_map(|volume| &volume.leases);
        tokens.filter_map(|token| self.leases.get(token))
    }

    pub(super) fn attached(&self, token: LeaseToken) -> Option<Answer> {
        let Lease { record, .. } = self.leases.get(&token)?;
        let (id, fresh, read_only) = (record.volume, record.fresh, record.read_only);
        let map = self.volumes.get(&id)?.map.clone();
        let lease_ms = LEASE_NS / MILLISECOND_NS;
        Some(Answer::Attached(Attached {
            token,
            pool: self.pool,
            lease_ms,
            map,
            unconfirmed: self.unconfirmed(id),
            fresh,
            read_only,
            content: self.content(id),
            beside: self.beside(token),
            key: self.key_for(id, record.member),
        }))
    }

    pub(super) fn renew(
        &mut self,
        now: Time,
        name: &str,
        token: LeaseToken,
        renew: Renew,
    ) -> Result<Outcome, Refusal> {
        let id = self.check_lease(name, token)?;
        self.extend_lease(token, now + LEASE_NS);
        let lease = self.leases.get_mut(&token).zip(self.volumes.get(&id));
        let Some((lease, volume)) = lease else { return Err(lease_gone(token)) };
        let knows = |donor: &DonorId| self.donors.contains_key(donor);
        let renew = door::renew(renew, &volume.map, &lease.report, knows);
        lease.heard = Some(now);
        lease.place = renew.place;
        self.replan |= lease.lost != renew.lost;
        let known = std::mem::replace(&mut lease.lost, renew.lost);
        let is_known = |id: &DonorId| known.iter().any(|(known, _)| known == id);
        let lost = lease.lost.iter().map(|(id, _)| *id).filter(|id| !is_known(id));
        let lost: Vec<DonorId> = lost.collect();
        let report = std::mem::replace(&mut lease.report, *renew.report);
        self.note_wrong_blocks(token, &report);
        self.blame(now, token, &report);
        self.note_unflushed(token, &report);
        lost.into_iter().for_each(|donor| self.doubt(donor));
        self.names_epoch(token, renew.epoch);
        let strangers = self.strangers_of(renew.guests);
        if !strangers.is_empty() {
            return Ok(Outcome::Answer(self.renewed(token, None, strangers)));
        }
        Ok(Outcome::Hold(Held::Renew { token, epoch: renew.epoch }, now + LEASE_RENEW_NS))
    }

    pub(super) fn detach(&mut self, name: &str, token: LeaseToken) -> Result<Outcome, Refusal> {
        self.check_lease(name, token)?;
        self.note_lease(token, Some(Over::GivenBack));
        self.remove_lease(token);
        Ok(Outcome::Answer(Answer::Done))
    }

    /// The volume that the lease is of, if it is the one of this name.
    pub(super) fn check_lease(&self, name: &str, token: LeaseToken) -> Result<VolumeId, Refusal> {
        let lease = self.leases.get(&token).ok_or_else(|| lease_gone(token))?;
        let volume = self.volumes.get(&lease.record.volume).filter(|volume| volume.map.name == name);
        volume.map(|volume| volume.map.volume).ok_or_else(|| lease_gone(token))
    }

    /// Takes the lease of a writer that yields away, as if it had run out: the donors refuse it before
    /// anybody else is let in.
    pub(super) fn send_away(&mut self, id: VolumeId) {
        if let Some(token) = self.writer(id).filter(|writer| writer.record.yields).map(|w| w.record.token) {
            self.lease_expired(token);
        }
    }

    pub(super) fn lease_expired(&mut self, token: LeaseToken) {
        self.note_lease(token, Some(Over::TakenAway));
        let Some(lease) = self.leases.get(&token) else { return };
        let (id, fenced) = (lease.record.volume, !lease.record.read_only);
        self.lease_lapsed(token);
        if let Some(volume) = self.volumes.get_mut(&id).filter(|_| fenced) {
            volume.map.epoch += 1;
            self.dirty.insert(Key::Volume(id));
        }
        self.remove_lease(token);
    }

    pub(super) fn remove_lease(&mut self, token: LeaseToken) {
        let Some(lease) = self.leases.remove(&token) else { return };
        self.timers.remove(&(lease.expires, Timer::Lease(token)));
        self.dirty.insert(Key::Lease(token));
        let id = lease.record.volume;
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.leases.remove(&token);
        }
        if lease.record.fills {
            self.fill_ended(id);
        }
        self.touch_volume(id);
        self.free_retired(id);
    }
}

pub(super) fn read_only(token: LeaseToken) -> Refusal {
    let message =
        format!("lease {token} is for reading; only who has the volume attached for writing changes its map");
    refuse(RefusalCode::Gone, message)
}
