//! Donors of the pool: joining, the sync that is heartbeat and long poll in one, silence, and leaving.
//!
//! Owns what is known of each donor and which of its extents are free. Never: which lease may do what.
//! Invariant: `free` and the extents under `held` are disjoint and together all of the donor.
//! Tests: `tests/coordinator_donors.rs`.

use super::blame::Blame;
use super::confirm::Held;
use super::doubt::Doubt;
use super::extents::Extents;
use super::lineage::check_incarnation;
use super::record::DonorRecord;
use super::{Coordinator, Key, Outcome, Timer, check_version, refuse};
use crate::api::{Answer, Duties, Join, Joined, Refusal, RefusalCode, Sync};
use crate::limits::{
    DONOR_EXTENTS_MAX, DONOR_LISTED_NS, DONOR_MEMORY_EXTENTS_MAX, DONOR_SILENCE_NS, EXTENT_BYTES,
    HEARTBEAT_NS, MILLISECOND_NS, NAME_BYTES_MAX, PLACE_BYTES_MAX, POOL_DONORS_MAX, SECOND_NS,
};
use crate::map::{DonorId, DonorSecret, Route, VolumeId};
use crate::seed::Seed;
use crate::text::is_harmless;
use crate::units::{Time, check_name, show_bytes, show_count};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

#[derive(Clone, Debug)]
pub(super) struct Donor {
    pub(super) record: DonorRecord,
    pub(super) alive: bool,
    /// Nothing listens where it did, and it is not heard: its process has ended, and its memory with it.
    pub(super) ended: bool,
    pub(super) doubt: Option<Doubt>,
    /// Since the coordinator started. A donor that is only remembered may be dead, so it is given nothing
    /// new.
    pub(super) heard: bool,
    pub(super) last_seen: Time,
    /// When its timer is set for: the end of its silence, or of its listing once it is lost.
    pub(super) timer: Time,
    pub(super) free: Extents,
    /// Ascending.
    pub(super) held: BTreeMap<VolumeId, Vec<u32>>,
    /// Of the last change of what it shall hold.
    pub(super) revision: u64,
    /// The last that it said it had carried out.
    pub(super) confirmed: u64,
    /// Its open sync, and the revision that it named.
    pub(super) poll: Option<(super::CallId, u64)>,
    pub(super) bytes_used: u64,
    /// Extents that its owner can spare now, as it last said.
    pub(super) offered: u32,
    /// Volumes of which extents were taken from it, and the revision by which it will have wiped them.
    pub(super) wipes: BTreeMap<VolumeId, u64>,
    /// What it is to wipe was forgotten by a restart: by this revision it will have wiped all of it.
    pub(super) wipes_all: u64,
    /// How often writers set it aside since it last completed a fragment, and until when it gets none.
    pub(super) set_aside: u32,
    pub(super) rest_until: Time,
    /// Extents that were taken from it because it was away, since it was last heard of: others rebuild what
    /// they held.
    pub(super) given_up: u32,
    pub(super) blame: Blame,
}

impl Donor {
    pub(super) fn join(record: DonorRecord, revision: u64, now: Time) -> Donor {
        Donor {
            free: Extents::all(record.extents),
            offered: record.extents,
            wipes: BTreeMap::new(),
            wipes_all: 0,
            set_aside: 0,
            rest_until: 0,
            given_up: 0,
            blame: Blame::default(),
            record,
            alive: true,
            ended: false,
            doubt: None,
            heard: true,
            last_seen: now,
            timer: now + DONOR_SILENCE_NS,
            held: BTreeMap::new(),
            revision,
            confirmed: 0,
            poll: None,
            bytes_used: 0,
        }
    }

    /// Gives this extent to the volume; false when it is not free. `sort_held` afterwards.
    pub(super) fn take(&mut self, volume: VolumeId, extent: u32) -> bool {
        let taken = self.free.take(extent);
        if taken {
            self.held.entry(volume).or_default().push(extent);
        }
        taken
    }

    /// Gives the lowest free extent to the volume. `sort_held` afterwards.
    pub(super) fn take_lowest(&mut self, volume: VolumeId) -> Option<u32> {
        let extent = self.free.take_lowest()?;
        self.held.entry(volume).or_default().push(extent);
        Some(extent)
    }

    /// The volume's extent is free again.
    pub(super) fn give_back(&mut self, volume: VolumeId, extent: u32) {
        let Some(extents) = self.held.get_mut(&volume) else { return };
        if let Ok(at) = extents.binary_search(&extent) {
            extents.remove(at);
            self.free.give_back(extent);
        }
        if extents.is_empty() {
            self.held.remove(&volume);
        }
    }

    /// How many extents it holds.
    pub(super) fn used(&self) -> u32 {
        self.record.extents - self.free.count()
    }

    /// How many more extents it may be given.
    pub(super) fn room(&self) -> u32 {
        if self.record.leaving { 0 } else { self.spare().saturating_sub(self.used()) }
    }

    /// How many extents it shall have at most: what its owner can spare, and none of bad memory.
    pub(super) fn spare(&self) -> u32 {
        if self.blame.has_bad_memory { 0 } else { self.offered }
    }

    /// How many extents it holds beyond that.
    pub(super) fn excess(&self) -> u32 {
        self.used().saturating_sub(self.spare())
    }

    /// What was ever taken from it of this volume is wiped: what it is given next is blank.
    pub(super) fn has_wiped(&self, volume: VolumeId) -> bool {
        self.confirmed >= self.wipes_all && self.wipes.get(&volume).is_none_or(|by| self.confirmed >= *by)
    }

    pub(super) fn sort_held(&mut self, volume: VolumeId) {
        if let Some(extents) = self.held.get_mut(&volume) {
            extents.sort_unstable();
        }
    }

    /// What goes when its machine goes.
    pub(super) fn machine(&self) -> &str {
        let DonorRecord { machine, host, .. } = &self.record;
        if machine.is_empty() { host } else { machine }
    }

    pub(super) fn route(&self) -> Route {
        Route {
            name: self.record.name.clone(),
            address: self.record.address.clone(),
            foreign_export: self.record.foreign_export.clone(),
        }
    }
}

impl Coordinator {
    /// Whether it may join as far as it can be known without a connection to it.
    pub(super) fn check_joining(&mut self, now: Time, join: &Join) -> Result<(), Refusal> {
        check_version(join.version, &format!("donor '{}' on {}", join.name, join.host))?;
        check_join(join)?;
        self.check_joins_here(now, join)?;
        check_revision(&join.name, join.revision, self.revision)?;
        if let Some(donor) = self.donors.get(&join.donor) {
            check_secret(&donor.record, join.secret)?;
        }
        let departed = self.donors.get(&join.donor).is_some_and(|donor| donor.record.departed);
        if departed || self.dismissed.contains_key(&join.donor) {
            let message =
                format!("donor '{}' was taken out of the pool; start it again to lend anew", join.name);
            return Err(refuse(RefusalCode::Gone, message));
        }
        self.check_address(join)?;
        self.check_donor_name(join)?;
        let known = self.donors.get(&join.donor);
        if known.is_none() && self.donors.len() >= POOL_DONORS_MAX {
            let message = format!("the pool is at its limit of {POOL_DONORS_MAX} donors");
            return Err(refuse(RefusalCode::Unavailable, message));
        }
        self.check_lineage(join)?;
        let known = self.donors.get(&join.donor);
        if let Some(donor) = known.filter(|donor| donor.record.extents != join.extents) {
            let extents = show_count(donor.record.extents.into(), "extent");
            let message = format!("donor '{}' is known with {extents}", join.name);
            return Err(refuse(RefusalCode::Conflict, message));
        }
        Ok(())
    }

    /// It answers at its address.
    pub(super) fn take_in(&mut self, now: Time, seed: &mut Seed, join: Join) -> Result<Joined, Refusal> {
        self.bury_who_was_at(&join);
        let name = self.name_for(&join);
        let join = Join { name: name.clone(), ..join };
        let id = join.donor;
        if self.donors.contains_key(&id) {
            self.rejoin(join);
        } else {
            let revision = self.next_revision();
            let Join { donor, name, host, machine, address, extents, .. } = join;
            let Join { foreign_export, medium, keeps_auths, lineage, .. } = join;
            let (secret, join) = (Some(join.secret), self.joins);
            let (departed, leaving, member) = (false, false, self.caller_id());
            self.joins += 1;
            let record = DonorRecord {
                donor,
                secret,
                name,
                host,
                machine,
                address,
                extents,
                foreign_export,
                join,
                departed,
                leaving,
                member,
                medium,
                keeps_auths,
                incarnation: lineage.map(|lineage| lineage.incarnation),
                synced: false,
            };
            self.donors.insert(id, Donor::join(record, revision, now));
            self.dirty.insert(Key::Donor(id));
            self.replan = true;
            self.note_donor("donor-joined", id);
            self.grow_followers(seed);
        }
        self.hear(now, seed, id);
        // Who had its name before, and is lost, is forgotten now.
        let namesakes = self.donors.iter().filter(|(_, other)| other.record.name == name);
        let namesakes: Vec<DonorId> = namesakes.map(|(other, _)| *other).collect();
        namesakes.into_iter().for_each(|other| self.tidy_donor(now, other));
        Ok(Joined { pool: self.pool, heartbeat_ms: HEARTBEAT_NS / MILLISECOND_NS, name })
    }

    /// A donor of ours that was there before is dead.
    fn bury_who_was_at(&mut self, join: &Join) {
        let was = |donor: &&mut Donor| {
            let DonorRecord { donor: id, address, foreign_export, .. } = &donor.record;
            donor.alive && *id != join.donor && *address == join.address && foreign_export.is_none()
        };
        if join.foreign_export.is_some() {
            return;
        }
        let Some(donor) = self.donors.values_mut().find(was) else { return };
        let id = donor.record.donor;
        donor.alive = false;
        (self.unsettled, self.replan) = (true, true);
        self.note_loss("donor-lost", id);
        self.doubt_volumes_of(id);
    }

    /// What the donor is called: as it asks, or where that is another's, with the first number that is free.
    /// One that is known keeps what it was given.
    fn name_for(&self, join: &Join) -> String {
        if !join.or_numbered {
            return join.name.clone();
        }
        if let Some(donor) = self.donors.get(&join.donor) {
            return donor.record.name.clone();
        }
        let in_use = |donor: &&Donor| donor.alive || !donor.held.is_empty();
        let taken: BTreeSet<&str> =
            self.donors.values().filter(in_use).map(|donor| donor.record.name.as_str()).collect();
        let numbered = |number: usize| {
            let number = format!("-{number}");
            let room = NAME_BYTES_MAX.saturating_sub(number.len()).min(join.name.len());
            format!("{}{number}", &join.name[..room])
        };
        let names = std::iter::once(join.name.clone()).chain((2..).map(numbered));
        let mut free = names.filter(|name| !taken.contains(name.as_str()));
        free.next().expect("numbers do not end")
    }

    /// A live donor keeps its name for itself, unless the newcomer listens where it did: then it is dead.
    fn check_donor_name(&self, join: &Join) -> Result<(), Refusal> {
        let same = |donor: &&Donor| {
            donor.alive && donor.record.name == join.name && donor.record.donor != join.donor
        };
        let Some(donor) = self.donors.values().find(same) else { return Ok(()) };
        if donor.record.address == join.address && join.foreign_export.is_none() {
            return Ok(());
        }
        if join.or_numbered {
            return Ok(());
        }
        let DonorRecord { host, address, .. } = &donor.record;
        let message = format!(
            "the pool has a donor named '{}' already ({host}, {address}); choose another name with --name, \
             or try again in {} s if that one was just killed",
            join.name,
            DONOR_SILENCE_NS / SECOND_NS
        );
        Err(refuse(RefusalCode::Conflict, message))
    }

    /// The same process joins again, perhaps under another address.
    fn rejoin(&mut self, join: Join) {
        let Some(donor) = self.donors.get_mut(&join.donor) else { return };
        let before = (donor.route(), donor.machine().to_owned());
        let Join { name, host, machine, address, foreign_export, keeps_auths, lineage, .. } = join;
        let incarnation = lineage.map(|lineage| lineage.incarnation);
        let synced = donor.record.synced && incarnation == donor.record.incarnation;
        let record = donor.record.clone();
        donor.record = DonorRecord { name, host, machine, address, foreign_export, keeps_auths, ..record };
        (donor.record.incarnation, donor.record.synced) = (incarnation, synced);
        self.dirty.insert(Key::Donor(join.donor));
        let route = donor.route();
        // As after an upgrade: what its groups have beside them may be on its machine.
        let same_machine = donor.machine() == before.1;
        if !same_machine {
            self.unsettle_donor(join.donor);
        }
        let Some(donor) = self.donors.get(&join.donor).filter(|_| route != before.0) else { return };
        let volumes: Vec<VolumeId> = donor.held.keys().copied().collect();
        for id in volumes {
            let Some(volume) = self.volumes.get_mut(&id) else { continue };
            volume.map.routes.insert(join.donor, route.clone());
            volume.map.epoch += 1;
            self.dirty.insert(Key::Volume(id));
            self.touch_volume(id);
        }
    }

    pub(super) fn sync(
        &mut self,
        now: Time,
        call: super::CallId,
        id: DonorId,
        sync: &Sync,
    ) -> Result<Outcome, Refusal> {
        let dismissed = Duties { revision: sync.revision, dismissed: true, ..Duties::default() };
        if let Some((until, secret)) = self.dismissed.get(&id).copied() {
            if secret != Some(sync.secret) {
                return Err(unproven(id));
            }
            self.dismissed.remove(&id);
            self.timers.remove(&(until, Timer::Dismissed(id)));
            return Ok(Outcome::Answer(Answer::Duties(dismissed)));
        }
        let Some(donor) = self.donors.get_mut(&id) else {
            let message = format!("the pool does not know donor {id}; it has to join again");
            return Err(refuse(RefusalCode::Gone, message));
        };
        check_secret(&donor.record, sync.secret)?;
        if donor.record.departed {
            return Ok(Outcome::Answer(Answer::Duties(dismissed)));
        }
        check_incarnation(&donor.record, sync.incarnation)?;
        check_revision(&donor.record.name, sync.revision, donor.revision)?;
        if donor.record.incarnation.is_some() && !donor.record.synced {
            donor.record.synced = true;
            self.dirty.insert(Key::Donor(id));
        }
        let leaving_before = donor.record.leaving;
        donor.bytes_used = sync.bytes_used.min(u64::from(donor.record.extents) * EXTENT_BYTES);
        let confirms = donor.confirmed != sync.revision;
        donor.confirmed = sync.revision;
        donor.wipes.retain(|_, by| *by > sync.revision);
        self.unsettled |= confirms;
        self.replan |= confirms;
        self.answer_poll(id);
        if sync.goodbye {
            self.depart(now, id);
            return Ok(Outcome::Answer(Answer::Duties(dismissed)));
        }
        self.hear_offer(now, id, sync);
        self.hear_wiped(id);
        if !self.donors.get(&id).is_some_and(|donor| donor.alive || !donor.record.departed) {
            self.dismissed.remove(&id);
            return Ok(Outcome::Answer(Answer::Duties(dismissed)));
        }
        self.hear(now, &mut Seed(sync.revision ^ id.0), id);
        // Who begins to leave hears at once what that costs: its owner waits to be told.
        let is_news = |donor: &Donor| {
            donor.revision > sync.revision || (donor.record.leaving && !leaving_before && donor.used() > 0)
        };
        if self.donors.get(&id).is_some_and(is_news) {
            return Ok(Outcome::Answer(Answer::Duties(self.duties(id))));
        }
        if let Some(donor) = self.donors.get_mut(&id) {
            donor.poll = Some((call, sync.revision));
        }
        Ok(Outcome::Hold(Held::Poll { donor: id }, now + HEARTBEAT_NS))
    }

    /// What the donor's owner can spare, and whether it wants to go: once said, that holds.
    fn hear_offer(&mut self, now: Time, id: DonorId, sync: &Sync) {
        let Some(donor) = self.donors.get_mut(&id) else { return };
        let offered = sync.extents_offered.min(donor.record.extents);
        let more = offered > donor.offered;
        let less = offered < donor.offered && offered < donor.used();
        donor.offered = offered;
        self.replan |= more;
        if less {
            self.unsettle_donor(id);
        }
        if sync.leaving {
            self.drain(now, id);
        }
    }

    /// Volumes that follow waited for what a restart had made uncertain.
    fn hear_wiped(&mut self, id: DonorId) {
        let Some(donor) = self.donors.get_mut(&id) else { return };
        if donor.wipes_all > 0 && donor.confirmed >= donor.wipes_all {
            donor.wipes_all = 0;
            let mut seed = Seed(donor.confirmed ^ id.0);
            self.grow_followers(&mut seed);
        }
    }

    /// A sign of life.
    fn hear(&mut self, now: Time, seed: &mut Seed, id: DonorId) {
        let Some(donor) = self.donors.get_mut(&id) else { return };
        let returned = !(donor.alive && donor.heard);
        (donor.alive, donor.heard) = (true, true);
        (donor.ended, donor.doubt, donor.given_up) = (false, None, 0);
        donor.last_seen = now;
        self.set_donor_timer(id, now + DONOR_SILENCE_NS);
        if returned {
            (self.unsettled, self.replan) = (true, true);
            // With it there may be enough to do without one that has ended.
            self.unsettle_donor(id);
            self.note_donor("donor-returned", id);
            self.doubt_volumes_of(id);
            self.grow_followers(seed);
        }
    }

    pub(super) fn donor_named(&self, name: &str) -> Result<DonorId, Refusal> {
        let named = |donor: &&Donor| donor.record.name == name || donor.record.donor.to_string() == name;
        let present = |donor: &&Donor| !donor.record.departed && named(donor);
        let mut found: Vec<&Donor> = self.donors.values().filter(present).collect();
        found.sort_by_key(|donor| (!donor.alive, donor.record.join));
        match found[..] {
            [] if self.donors.values().any(|donor| named(&donor)) => {
                let message =
                    format!("donor '{name}' has left already; what it held is lost, see `cheetah status`");
                Err(refuse(RefusalCode::NotFound, message))
            }
            [] => {
                let message = format!(
                    "there is no donor '{name}' in this pool; `cheetah status` shows those there are"
                );
                Err(refuse(RefusalCode::NotFound, message))
            }
            [_, _, ..] => {
                let each = found.iter().map(|donor| {
                    let DonorRecord { donor: id, host, address, .. } = &donor.record;
                    let health = if donor.alive { "alive" } else { "lost" };
                    format!("{id} is {health} ({host}, {address})")
                });
                let message = format!(
                    "the pool has {} named '{name}': {}; say which by that number",
                    show_count(found.len() as u64, "donor"),
                    each.collect::<Vec<_>>().join(", ")
                );
                Err(refuse(RefusalCode::Conflict, message))
            }
            [only] => Ok(only.record.donor),
        }
    }

    /// Takes a donor out for good; it stays listed as lost while a volume refers to it.
    pub(super) fn depart(&mut self, now: Time, id: DonorId) {
        let Some(donor) = self.donors.get_mut(&id) else { return };
        donor.alive = false;
        donor.record.departed = true;
        self.note_loss("donor-left", id);
        self.dirty.insert(Key::Donor(id));
        self.unsettled = true;
        self.answer_poll(id);
        self.doubt_volumes_of(id);
        self.abandon(now, id);
        self.tidy_donor(now, id);
    }

    pub(super) fn donor_timer(&mut self, now: Time, id: DonorId) {
        let Some(donor) = self.donors.get_mut(&id) else { return };
        if donor.alive {
            donor.alive = false;
            (self.unsettled, self.replan) = (true, true);
            self.note_loss("donor-lost", id);
            self.doubt(id);
            self.doubt_volumes_of(id);
            // What of it a source still gives is read anew elsewhere.
            self.unsettle_donor(id);
            self.tidy_donor(now, id);
        } else if donor.held.is_empty() {
            return self.remove_donor(id);
        }
        self.set_donor_timer(id, now + DONOR_LISTED_NS);
    }

    /// Forgets a lost donor that holds nothing once it left or another has its name, and lets one go that
    /// wanted to.
    pub(super) fn tidy_donor(&mut self, now: Time, id: DonorId) {
        let Some(donor) = self.donors.get(&id) else { return };
        if !donor.held.is_empty() {
            return;
        }
        if donor.record.leaving && !donor.record.departed {
            return self.dismiss(now, id);
        }
        if donor.alive {
            return;
        }
        let name = &donor.record.name;
        let replaced = || self.donors.values().any(|other| other.alive && other.record.name == *name);
        if donor.record.departed || replaced() {
            self.remove_donor(id);
        } else if donor.timer <= now {
            self.set_donor_timer(id, now + DONOR_LISTED_NS);
        }
    }

    fn remove_donor(&mut self, id: DonorId) {
        self.answer_poll(id);
        if let Some(donor) = self.donors.remove(&id) {
            self.timers.remove(&(donor.timer, Timer::Donor(id)));
            self.dirty.insert(Key::Donor(id));
        }
    }

    pub(super) fn set_donor_timer(&mut self, id: DonorId, at: Time) {
        if let Some(donor) = self.donors.get_mut(&id) {
            self.timers.remove(&(donor.timer, Timer::Donor(id)));
            donor.timer = at;
            self.timers.insert((at, Timer::Donor(id)));
        }
    }
}

fn unproven(id: DonorId) -> Refusal {
    let message = format!("donor {id} is known, and this call does not prove that it is from that donor");
    refuse(RefusalCode::Conflict, message)
}

fn check_secret(record: &DonorRecord, secret: DonorSecret) -> Result<(), Refusal> {
    if record.secret == Some(secret) { Ok(()) } else { Err(unproven(record.donor)) }
}

/// Counters are the coordinator's: who claims to be further than it was told makes it up, or was told by a
/// state newer than this one, in which what it holds stands.
fn check_revision(name: &str, claimed: u64, told: u64) -> Result<(), Refusal> {
    if claimed <= told {
        return Ok(());
    }
    let message = format!(
        "donor '{name}' names revision {claimed}, and was told {told} at most: if this coordinator's state is older than the \
         pool (a backup, a machine set back), start it with the newest one; the donor keeps what it holds meanwhile"
    );
    Err(refuse(RefusalCode::Invalid, message))
}

fn check_join(join: &Join) -> Result<(), Refusal> {
    let invalid = |message: String| Err(refuse(RefusalCode::Invalid, message));
    check_name(&join.name).map_err(|bad| refuse(RefusalCode::Invalid, bad.to_string()))?;
    // It is asked for by this name, so none of it can be left out.
    let export = join.foreign_export.as_deref().unwrap_or_default();
    if export.len() > PLACE_BYTES_MAX || !export.chars().all(is_harmless) {
        return invalid(format!("the export must be one line of at most {PLACE_BYTES_MAX} bytes"));
    }
    let reachable = |address: &SocketAddr| address.port() != 0 && !address.ip().is_unspecified();
    if !join.address.parse().is_ok_and(|address| reachable(&address)) {
        return invalid(format!(
            "donor '{}' gave '{}', not the IP:PORT clients reach it at",
            join.name, join.address
        ));
    }
    let is_memory = join.foreign_export.is_none() && join.medium.is_memory();
    let extents_max = if is_memory { DONOR_MEMORY_EXTENTS_MAX } else { DONOR_EXTENTS_MAX };
    if join.extents == 0 || join.extents > extents_max {
        let bytes = EXTENT_BYTES;
        let (least, most) = (show_bytes(bytes), show_bytes(bytes * u64::from(extents_max)));
        return invalid(format!("donor '{}' must lend between {least} and {most}", join.name));
    }
    Ok(())
}
