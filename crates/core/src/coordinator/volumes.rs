//! Volumes: create, grow, follow, delete.
//!
//! Owns names, sizes and which extents a volume has. Never: the choice of donors (`placement`).
//! Invariant: a map passes `VolumeMap::check`, its epoch only grows, and its extents are under `held` of
//! their donors. Tests: `tests/coordinator_volumes.rs`.

use super::confirm::Held;
use super::keys::{self, Keys};
use super::retire::Retired;
use super::tend::Ailing;
use super::wants::{Wants, lend};
use super::{Coordinator, Key, Outcome, door, open, refuse};
use crate::api::{Answer, Create, Refusal, RefusalCode, Size};
use crate::content::Content;
use crate::custody;
use crate::limits::{
    DONOR_SILENCE_NS, EXTENT_BYTES, POOL_VOLUMES_MAX, UNIT_MAX_BYTES, UNIT_MIN_BYTES, VOLUME_BYTES_MAX,
};
use crate::map::{
    Backing, DonorId, Group, LeaseToken, Medium, Placement, Redundancy, Slot, VolumeId, VolumeMap,
};
use crate::overlay::least_bytes;
use crate::placement::{
    Choice, Room, default_choice, default_first, groups_max, most_protected, narrower, place,
};
use crate::seed::Seed;
use crate::units::{Time, check_name, show_bytes, show_count};
use std::collections::{BTreeMap, BTreeSet};

/// How many donors a message lists before it says "and N more".
const DONORS_NAMED_MAX: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) map: VolumeMap,
    pub(super) follow: bool,
    pub(super) order: u64,
    /// Of the last change of its map or leases; its donors know it when they confirm this or a later one.
    pub(super) revision: u64,
    pub(super) leases: BTreeSet<LeaseToken>,
    /// Nobody has had a write lease.
    pub(super) fresh: bool,
    pub(super) content: Content,
    /// Slots whose filling the donor may not have heard of yet, and the revision that tells it.
    pub(super) pending: BTreeMap<(u32, u32), u64>,
    /// The epoch before that of `map`, when its writer was given a map of that: the same one but for what is
    /// pending. None once anybody was given `map`.
    pub(super) between: Option<u64>,
    /// Extents that its slots have left and that clients with an older map may still be reading.
    pub(super) retired: Vec<Retired>,
    /// The donor that attaches it while nobody else writes it, because there is something to move or to
    /// rebuild.
    pub(super) tender: Option<DonorId>,
    /// A reader met blocks that are wrong where they lie, and nobody has compared all fragments since.
    pub(super) ailing: Option<Ailing>,
    /// Of an encrypted volume.
    pub(super) keys: Option<Box<Keys>>,
}

impl Volume {
    /// One that nobody has attached yet.
    pub(super) fn new(map: VolumeMap, follow: bool, order: u64) -> Volume {
        Volume {
            map,
            follow,
            order,
            revision: 0,
            leases: BTreeSet::new(),
            fresh: true,
            content: Content::default(),
            pending: BTreeMap::new(),
            between: None,
            retired: Vec::new(),
            tender: None,
            ailing: None,
            keys: None,
        }
    }

    /// The epoch of the newest map that its writer can have been given.
    pub(super) fn newest_given(&self) -> u64 {
        self.between.filter(|between| between + 1 == self.map.epoch).unwrap_or(self.map.epoch)
    }
}

impl Coordinator {
    pub(super) fn create(&mut self, now: Time, seed: &mut Seed, create: Create) -> Result<Outcome, Refusal> {
        check_create(&create)?;
        let Create { name, size, redundancy, unit, follow, load, overlay_of, on, encrypted, write_back } =
            door::create(create);
        let overlay = overlay_of.map(|base| self.overlay_over(&base, encrypted.is_some())).transpose()?;
        let size = overlay.as_ref().map_or(size, |overlay| Size::Bytes(least_bytes(overlay.size)));
        self.check_one_more(&name)?;
        let is_backed = load.as_ref().is_some_and(|load| load.backed);
        let memory = load.as_ref().filter(|_| is_backed).and_then(|load| load.memory);
        let keys = self.keys_of_new(encrypted);
        let wants = Wants { is_backed, encrypted: keys.is_some(), on };
        let rooms = self.rooms(None, wants);
        // A volume that follows grows with each single donor, which only `linear` can.
        let wanted = match size {
            Size::Bytes(bytes) => Some(bytes.div_ceil(EXTENT_BYTES)),
            Size::All => None,
        };
        let asked = redundancy.or((follow || is_backed).then_some(Redundancy::LINEAR));
        let choice = match asked {
            // Who says how gets all there is of it.
            Some(redundancy) => Some(Choice { redundancy, groups: groups_max(redundancy.width(), &rooms) }),
            None => default_choice(wanted, &rooms),
        };
        let Some(Choice { redundancy, groups }) = choice else {
            return Err(self.unprotected(&name, wanted, &rooms, wants));
        };
        check_write_back(write_back, on, redundancy)?;
        let unit = unit.unwrap_or(redundancy.default_unit());
        let group_bytes = u64::from(redundancy.data) * EXTENT_BYTES;
        let (groups, size) = match size {
            Size::Bytes(bytes) => (bytes.div_ceil(group_bytes), bytes),
            Size::All => (groups, groups * group_bytes),
        };
        let (groups, layers) = open::dealt_out(groups, redundancy, memory)?;
        let id = self.new_id(seed);
        let placed =
            self.place_groups(id, redundancy, groups, wants, seed).filter(|placed| !placed.is_empty());
        let groups = placed.ok_or_else(|| {
            let shortage = self.shortage(&name, redundancy, groups.max(1), wants);
            if is_backed && memory.is_none() { open::or_a_part(shortage) } else { shortage }
        })?;
        let order = self.volumes.values().map(|volume| volume.order + 1).max().unwrap_or(0);
        let map = VolumeMap {
            volume: id,
            name: name.clone(),
            epoch: 1,
            size,
            redundancy,
            unit,
            groups,
            routes: BTreeMap::new(),
            bad: Vec::new(),
            unreadable: Vec::new(),
            hurry: false,
            backing: is_backed.then(|| Backing { layers, ..Backing::default() }),
            proofs: None,
            encrypted: wants.encrypted,
            write_back,
            medium: on,
        };
        self.names.insert(name, id);
        self.volumes.insert(id, Volume { keys, ..Volume::new(map, follow, order) });
        self.map_changed(id);
        if let Some(load) = load {
            self.made_to_be_loaded(id, *load);
        }
        if is_backed {
            self.back(id);
        }
        if let Some(overlay) = overlay {
            self.lay_over(id, overlay);
        }
        // Where hosts are few, for who joins later.
        self.wanting.insert(id);
        self.replan = true;
        self.note_volume("volume-created", id);
        Ok(Outcome::Hold(Held::Volume { volume: id }, now + DONOR_SILENCE_NS))
    }

    fn new_id(&self, seed: &mut Seed) -> VolumeId {
        VolumeId(seed.draw_free(|number| self.volumes.contains_key(&VolumeId(number))))
    }

    /// Whether there may be another volume, of this name.
    fn check_one_more(&self, name: &str) -> Result<(), Refusal> {
        if self.names.contains_key(name) {
            let message = format!(
                "there is a volume '{name}' already; choose another name, or `cheetah delete {name}`"
            );
            return Err(refuse(RefusalCode::Conflict, message));
        }
        if self.volumes.len() >= POOL_VOLUMES_MAX {
            let message = format!("the pool is at its limit of {POOL_VOLUMES_MAX} volumes");
            return Err(refuse(RefusalCode::Unavailable, message));
        }
        Ok(())
    }

    pub(super) fn grow(
        &mut self,
        now: Time,
        seed: &mut Seed,
        name: &str,
        size: Size,
    ) -> Result<Outcome, Refusal> {
        let id = self.volume_named(name)?;
        if self.volumes[&id].map.backing.is_some() {
            let message = format!(
                "volume '{name}' was opened from a source, and is as large as that: it does not grow"
            );
            return Err(refuse(RefusalCode::Invalid, message));
        }
        if self.volumes[&id].map.proofs.is_some() {
            let message = format!(
                "volume '{name}' has the proofs of what it holds behind its end, and does not grow: make another \
                 one, or load with --writable"
            );
            return Err(refuse(RefusalCode::Invalid, message));
        }
        match size {
            Size::All => {
                if !self.grow_by_all(id, seed) {
                    let map = &self.volumes[&id].map;
                    return Err(self.shortage(name, map.redundancy, 1, Wants::of(map)));
                }
            }
            Size::Bytes(bytes) => self.grow_to(id, seed, bytes)?,
        }
        Ok(Outcome::Hold(Held::Volume { volume: id }, now + DONOR_SILENCE_NS))
    }

    fn grow_to(&mut self, id: VolumeId, seed: &mut Seed, bytes: u64) -> Result<(), Refusal> {
        check_size(bytes)?;
        let map = &self.volumes[&id].map;
        let (name, size) = (&map.name, map.size);
        if bytes <= size {
            let message = format!(
                "volume '{name}' has {size} bytes already and was asked to grow to {bytes}; volumes do not shrink, \
                 name a larger size or `all`"
            );
            return Err(refuse(RefusalCode::Invalid, message));
        }
        let (redundancy, wants) = (map.redundancy, Wants::of(map));
        self.enlarge(id, seed, bytes, |map| map.size = bytes)
            .map_err(|more| self.shortage(&self.volumes[&id].map.name, redundancy, more, wants))?;
        self.note_volume("volume-grown", id);
        Ok(())
    }

    /// Gives a volume place for so many bytes in all, which `change` is the reason for. Nothing is changed
    /// where they do not fit.
    ///
    /// # Errors
    /// How many more groups it needs.
    pub(super) fn enlarge(
        &mut self,
        id: VolumeId,
        seed: &mut Seed,
        bytes: u64,
        change: impl FnOnce(&mut VolumeMap),
    ) -> Result<(), u64> {
        let map = &self.volumes[&id].map;
        let more = bytes.div_ceil(map.group_bytes()).saturating_sub(map.groups.len() as u64);
        let groups = self.place_groups(id, map.redundancy, more, Wants::of(map), seed).ok_or(more)?;
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.map.groups.extend(groups);
            change(&mut volume.map);
            volume.map.epoch += 1;
        }
        self.map_changed(id);
        self.wanting.insert(id);
        self.replan = true;
        Ok(())
    }

    /// Grows by every whole group that is free; false when there is none.
    fn grow_by_all(&mut self, id: VolumeId, seed: &mut Seed) -> bool {
        let map = &self.volumes[&id].map;
        let groups = groups_max(map.redundancy.width(), &self.rooms(Some(id), Wants::of(map)));
        let size = (map.groups.len() as u64 + groups) * map.group_bytes();
        if size <= map.size {
            return false;
        }
        self.grow_to(id, seed, size.min(VOLUME_BYTES_MAX)).is_ok()
    }

    /// Volumes that follow take what a donor brought, the oldest first.
    pub(super) fn grow_followers(&mut self, seed: &mut Seed) {
        let follows = self.volumes.values().filter(|volume| volume.follow && volume.map.proofs.is_none());
        let mut followers: Vec<(u64, VolumeId)> =
            follows.map(|volume| (volume.order, volume.map.volume)).collect();
        followers.sort_unstable();
        for (_, id) in followers {
            let map = &self.volumes[&id].map;
            if groups_max(map.redundancy.width(), &self.rooms(Some(id), Wants::of(map))) > 0 {
                self.grow_by_all(id, seed);
            }
        }
    }

    pub(super) fn delete(&mut self, now: Time, name: &str) -> Result<Outcome, Refusal> {
        let id = self.volume_named(name)?;
        let leases = self.volumes[&id].leases.iter().filter_map(|token| self.leases.get(token));
        let holders: Vec<&str> =
            leases.filter(|lease| !lease.record.yields).map(|lease| lease.record.holder.as_str()).collect();
        if !holders.is_empty() {
            let message =
                format!("volume '{name}' is attached by {}; detach it there first", holders.join(", "));
            return Err(refuse(RefusalCode::Conflict, message));
        }
        self.check_not_under(id)?;
        self.send_away(id);
        self.note_volume("volume-deleted", id);
        let Some(volume) = self.take_out(id) else { return Ok(Outcome::Answer(Answer::Done)) };
        self.names.remove(name);
        for donor_id in donors_of(&volume) {
            self.tidy_donor(now, donor_id);
        }
        Ok(Outcome::Answer(Answer::Done))
    }

    /// Forgets the volume, whose extents are free then; its donors are told so.
    fn take_out(&mut self, id: VolumeId) -> Option<Volume> {
        self.touch_volume(id);
        let volume = self.volumes.remove(&id)?;
        self.dirty.extend([Key::Volume(id), Key::Content(id)]);
        for donor_id in donors_of(&volume) {
            let Some(donor) = self.donors.get_mut(&donor_id) else { continue };
            donor.revision = self.revision;
            self.woken.insert(donor_id);
            for extent in donor.held.remove(&id).unwrap_or_default() {
                donor.free.give_back(extent);
            }
        }
        self.wanting.remove(&id);
        self.replan = true;
        Some(volume)
    }

    /// Puts one in its place that nobody has written, of this size: nothing of what was there can be read
    /// again.
    pub(super) fn make_anew(
        &mut self,
        now: Time,
        id: VolumeId,
        seed: &mut Seed,
        bytes: u64,
    ) -> Result<VolumeId, Refusal> {
        check_size(bytes)?;
        let anew = self.new_id(seed);
        let Some(volume) = self.take_out(id) else { return Ok(id) };
        let VolumeMap { name, redundancy, medium, encrypted, write_back, .. } = &volume.map;
        let groups = bytes.div_ceil(volume.map.group_bytes());
        let wants = Wants::of(&volume.map);
        let Some(groups) = self.place_groups(anew, *redundancy, groups, wants, seed) else {
            let refusal = self.shortage(name, *redundancy, groups, wants);
            self.put_back(volume);
            return Err(refusal);
        };
        let map = VolumeMap {
            volume: anew,
            name: name.clone(),
            epoch: 1,
            size: bytes,
            redundancy: *redundancy,
            unit: volume.map.unit,
            groups,
            routes: BTreeMap::new(),
            bad: Vec::new(),
            unreadable: Vec::new(),
            hurry: false,
            backing: None,
            proofs: None,
            encrypted: *encrypted,
            write_back: *write_back,
            medium: *medium,
        };
        self.put_down_of(id, name.clone(), custody::Event::Deleted);
        self.names.insert(name.clone(), anew);
        let keys = volume.keys.clone();
        self.volumes.insert(anew, Volume { keys, ..Volume::new(map, false, volume.order) });
        self.map_changed(anew);
        // Where hosts are few, for who joins later.
        self.wanting.insert(anew);
        self.note_volume("volume-created", anew);
        self.put_said_down(id, anew);
        for donor_id in donors_of(&volume) {
            self.tidy_donor(now, donor_id);
        }
        Ok(anew)
    }

    /// As it was before it was taken out, in the same step.
    fn put_back(&mut self, volume: Volume) {
        let id = volume.map.volume;
        let left = volume.retired.iter().map(|retired| retired.placement);
        for member in volume.map.groups.iter().flat_map(|group| group.placements()).chain(left) {
            if let Some(donor) = self.donors.get_mut(&member.donor) {
                let taken = donor.take(id, member.extent);
                assert!(taken, "{member:?} was given back in this step");
            }
        }
        for donor_id in donors_of(&volume) {
            if let Some(donor) = self.donors.get_mut(&donor_id) {
                donor.sort_held(id);
            }
        }
        self.wanting.insert(id);
        self.volumes.insert(id, volume);
        self.touch_volume(id);
    }

    /// Takes the extents of new groups from their donors; `None`, and nothing taken, when they do not fit.
    fn place_groups(
        &mut self,
        id: VolumeId,
        redundancy: Redundancy,
        groups: u64,
        wants: Wants,
        seed: &mut Seed,
    ) -> Option<Vec<Group>> {
        // What is new has nothing to wipe.
        let known = self.volumes.contains_key(&id).then_some(id);
        let placed = place(redundancy, groups, &self.rooms(known, wants), seed)?;
        let mut extent_of = |donor: DonorId| {
            let extent = self.donors.get_mut(&donor).and_then(|donor| donor.take_lowest(id));
            let extent = extent.expect("placement stays within the rooms it was given");
            Slot::held(Placement { donor, extent })
        };
        let groups: Vec<Group> = placed
            .into_iter()
            .map(|donors| Group { slots: donors.into_iter().map(&mut extent_of).collect() })
            .collect();
        Some(groups)
    }

    /// After slots were given to donors: routes, order, store, and word to them.
    pub(super) fn map_changed(&mut self, id: VolumeId) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        let members =
            volume.map.groups.iter().flat_map(|group| group.placements()).map(|member| member.donor);
        for donor_id in members.collect::<BTreeSet<DonorId>>() {
            if let Some(donor) = self.donors.get_mut(&donor_id) {
                donor.sort_held(id);
                volume.map.routes.insert(donor_id, donor.route());
            }
        }
        self.dirty.insert(Key::Volume(id));
        self.touch_volume(id);
    }

    /// Nobody said which redundancy, and none fits; that none at all would fit is for people to choose.
    fn unprotected(&self, name: &str, extents: Option<u64>, rooms: &[Room], wants: Wants) -> Refusal {
        let first = default_first(rooms);
        let free: u64 = rooms.iter().map(|room| u64::from(room.extents_free)).sum();
        let groups = extents.unwrap_or(1).div_ceil(first.data.into());
        let unheard = self.donors.values().any(|donor| donor.alive && !donor.heard);
        if unheard || free == 0 || extents.is_some_and(|wanted| wanted > free) {
            return self.shortage(name, first, groups, wants);
        }
        let bytes = |extents: u64| show_bytes(extents.saturating_mul(EXTENT_BYTES));
        let fits = match most_protected(rooms) {
            Some(choice) => format!("at most {} fit as {}", bytes(choice.data()), choice.redundancy),
            None => "nothing fits that one host could be lost of".to_owned(),
        };
        let message = format!(
            "volume '{name}' does not fit with redundancy: as {first} it needs {} spread evenly, {} is free ({}), and \
             so {fits}; ask for less, start another donor with `{}`, or take `--redundancy linear`, \
             which fits but has no protection: what a lost donor held is lost",
            bytes(groups.saturating_mul(first.width().into())),
            bytes(free),
            self.free_by_donor(rooms),
            lend(wants.on),
        );
        self.or_lend_anew(wants, refuse(RefusalCode::PoolFull, message))
    }

    fn free_by_donor(&self, rooms: &[Room]) -> String {
        let name_of =
            |room: &Room| self.donors.get(&room.donor).map_or("", |donor| donor.record.name.as_str());
        let free = |room: &Room| show_bytes(u64::from(room.extents_free) * EXTENT_BYTES);
        let mut each: Vec<String> = (rooms.iter().take(DONORS_NAMED_MAX))
            .map(|room| format!("{} {}", name_of(room), free(room)))
            .collect();
        if rooms.len() > DONORS_NAMED_MAX {
            each.push(format!("and {} more", show_count((rooms.len() - DONORS_NAMED_MAX) as u64, "donor")));
        }
        each.join(", ")
    }

    /// Says what is free and where, and what was needed.
    fn shortage(&self, name: &str, redundancy: Redundancy, groups: u64, wants: Wants) -> Refusal {
        self.or_lend_anew(wants, self.shortage_of(name, redundancy, groups, wants))
    }

    fn shortage_of(&self, name: &str, redundancy: Redundancy, groups: u64, wants: Wants) -> Refusal {
        let rooms = self.rooms(None, Wants { is_backed: false, ..wants });
        let on = wants.on;
        let lend = lend(on);
        let unheard = self.donors.values().filter(|donor| donor.alive && !donor.heard).count();
        if unheard > 0 {
            let message = format!(
                "there is no room for volume '{name}' yet: the coordinator has just started and has not heard of \
                 {unheard} of its donors so far; try again in some seconds"
            );
            return refuse(RefusalCode::Unavailable, message);
        }
        if rooms.is_empty() {
            let message = format!(
                "the pool has no donors that lend {on}, so there is none for volume '{name}'; run `{lend}` on a machine \
                 with idle {on}"
            );
            return refuse(RefusalCode::PoolFull, message);
        }
        let width = redundancy.width() as usize;
        if rooms.len() < width {
            let missing = width - rooms.len();
            let message = format!(
                "{redundancy} needs {} and the pool has {}: {missing} more must join \
                 (`{lend}`), or ask for what fewer donors can do, like {}",
                show_count(width as u64, "donor"),
                rooms.len(),
                narrower(redundancy, u32::try_from(rooms.len()).unwrap_or(u32::MAX))
            );
            return refuse(RefusalCode::PoolFull, message);
        }
        let bytes = |extents: u64| show_bytes(extents.saturating_mul(EXTENT_BYTES));
        let free: u64 = rooms.iter().map(|room| u64::from(room.extents_free)).sum();
        let fits = groups_max(redundancy.width(), &rooms) * u64::from(redundancy.data);
        let message = format!(
            "the pool is too full for volume '{name}': it needs {} more as {redundancy}, and {} is free ({}), of which \
             {redundancy} can use {}; ask for less, delete a volume, or start another donor with `{lend}`",
            bytes(groups.saturating_mul(redundancy.width().into())),
            bytes(free),
            self.free_by_donor(&rooms),
            bytes(fits),
        );
        refuse(RefusalCode::PoolFull, message)
    }
}

/// Every donor that holds something of it.
fn donors_of(volume: &Volume) -> BTreeSet<DonorId> {
    let left = volume.retired.iter().map(|retired| retired.placement.donor);
    volume.map.donors().chain(left).collect()
}

fn check_create(create: &Create) -> Result<(), Refusal> {
    open::check_create(create)?;
    keys::check_create(create)?;
    let invalid = |message: String| Err(refuse(RefusalCode::Invalid, message));
    check_name(&create.name).map_err(|bad| refuse(RefusalCode::Invalid, bad.to_string()))?;
    if let Size::Bytes(bytes) = create.size {
        check_size(bytes)?;
    }
    let possible = |unit: u32| unit.is_power_of_two() && (UNIT_MIN_BYTES..=UNIT_MAX_BYTES).contains(&unit);
    if let Some(unit) = create.unit.filter(|unit| !possible(*unit)) {
        let (least, most) = (show_bytes(UNIT_MIN_BYTES.into()), show_bytes(UNIT_MAX_BYTES.into()));
        return invalid(format!(
            "a unit of {unit} bytes is not possible: use a power of two from {least} to {most}"
        ));
    }
    let Some(redundancy) = create.redundancy else { return Ok(()) };
    // What has a name can be had; the shapes alone could say more.
    let named = redundancy.to_string().parse::<Redundancy>();
    named.map(|_| ()).map_err(|bad| refuse(RefusalCode::Invalid, bad.to_string()))
}

/// What is in memory alone has to be in two.
fn check_write_back(write_back: bool, on: Medium, redundancy: Redundancy) -> Result<(), Refusal> {
    let message = match redundancy.parity {
        _ if !write_back => return Ok(()),
        _ if on.is_memory() => {
            "a volume in memory has nothing to write back to: leave out --write-back, or say --on disk"
                .to_owned()
        }
        0 => format!(
            "a volume that is {redundancy} cannot have --write-back: what one donor has in memory alone would be lost \
             with it; use mirror:R or parity:K+M, or leave it out"
        ),
        _ => return Ok(()),
    };
    Err(refuse(RefusalCode::Invalid, message))
}

fn check_size(bytes: u64) -> Result<(), Refusal> {
    let what = match bytes {
        0 => "a volume cannot have zero bytes".to_owned(),
        _ if bytes > VOLUME_BYTES_MAX => {
            format!("{bytes} bytes is beyond the largest volume, 2^63 - 1 bytes")
        }
        _ => return Ok(()),
    };
    Err(refuse(RefusalCode::Invalid, format!("{what}; name a size like 4G, or `all`")))
}
