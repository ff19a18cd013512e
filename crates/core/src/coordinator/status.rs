//! What the pool and its volumes look like from outside, with the exact bytes that are lost.
//!
//! Never: changes. Tests: `tests/coordinator_donors.rs`.

use super::donors::Donor;
use super::volumes::Volume;
use super::{Coordinator, Outcome};
use crate::api::{
    API_VERSION, Answer, Attachment, Crowd, DonorHealth, DonorStatus, PoolStatus, Refusal, VolumeDetail,
    VolumeHealth, VolumeStatus, WaitsFor,
};
use crate::hosts;
use crate::layout::{LostRange, lost_ranges, unreadable_ranges};
use crate::limits::{EXTENT_BYTES, LEASE_RENEW_NS, MILLISECOND_NS};
use crate::map::{DonorId, Slot, VolumeMap};
use crate::units::{Time, show_bytes, show_count};
use std::collections::BTreeSet;

impl Coordinator {
    pub(super) fn pool_status(&self, now: Time) -> PoolStatus {
        let mut donors: Vec<&Donor> = self.donors.values().collect();
        donors.sort_by_key(|donor| donor.record.join);
        let donors: Vec<DonorStatus> =
            donors.into_iter().map(|donor| self.donor_status(donor, now)).collect();
        let mut volumes: Vec<&Volume> = self.volumes.values().collect();
        volumes.sort_by_key(|volume| volume.order);
        let alive = || donors.iter().filter(|donor| donor.health == DonorHealth::Alive);
        PoolStatus {
            version: API_VERSION,
            pool: self.pool,
            bytes_total: alive().map(|donor| donor.bytes_total).sum(),
            bytes_free: alive().map(|donor| donor.bytes_free).sum(),
            volumes: volumes.into_iter().map(|volume| self.detail(volume).status).collect(),
            donors,
            addresses: self.addresses.iter().map(ToString::to_string).collect(),
            strangers: self.strangers.shown(now),
            members_only: self.authority().is_some(),
        }
    }

    pub(super) fn show(&self, name: &str) -> Result<Outcome, Refusal> {
        let id = self.volume_named(name)?;
        Ok(Outcome::Answer(Answer::Volume(self.rehearsed(&self.volumes[&id]).into())))
    }

    pub(super) fn detail(&self, volume: &Volume) -> VolumeDetail {
        let map = &volume.map;
        let is_lost = |id: DonorId| !self.donors.get(&id).is_some_and(|donor| donor.alive);
        let is_unheard = |id: DonorId| self.donors.get(&id).is_some_and(|donor| donor.alive && !donor.heard);
        let mut seen_here = condition(map, is_lost, is_unheard);
        let machine = |id: DonorId| self.donors.get(&id).filter(|donor| donor.alive).map(Donor::machine);
        let crowd =
            hosts::crowd(map, machine).map(|(slots, host)| Crowd { host: self.host_named(host), slots });
        if crowd.is_some() {
            seen_here.health = seen_here.health.max(VolumeHealth::Crowded);
        }
        let leases = volume.leases.iter().filter_map(|token| self.leases.get(token));
        let (attachments, lost_to) = leases
            .map(|lease| {
                let seen = condition(map, |id| lease.lost.iter().any(|(lost, _)| *lost == id), |_| false);
                let attachment = Attachment {
                    holder: lease.record.holder.clone(),
                    read_only: lease.record.read_only,
                    place: lease.place.clone(),
                    lost: lease.lost.clone(),
                    report: lease.report.clone(),
                    health: seen.health,
                    slots_missing: seen.slots_missing,
                    bytes_lost: bytes_of(map, &seen.lost),
                    heard: lease.heard.is_some(),
                    silent_ms: lease.heard.map_or(0, |heard| self.now.saturating_sub(heard) / MILLISECOND_NS),
                };
                (attachment, seen.lost)
            })
            .unzip();
        let slots = || map.groups.iter().flat_map(|group| &group.slots);
        let count = |is: &dyn Fn(&Slot) -> bool| slots().filter(|slot| is(slot)).count() as u64;
        let lost_routes = map.routes.iter().filter(|(id, _)| is_lost(**id));
        let status = VolumeStatus {
            volume: map.volume,
            name: map.name.clone(),
            size: map.size,
            redundancy: map.redundancy,
            unit: map.unit,
            medium: map.medium,
            encrypted: map.encrypted,
            write_back: map.write_back,
            epoch: map.epoch,
            follow: volume.follow,
            attachments,
            health: seen_here.health,
            slots_missing: seen_here.slots_missing,
            slots: slots().count() as u64,
            slots_filling: count(&|slot| slot.filling.is_some()),
            lost_donors: lost_routes.map(|(_, route)| route.name.clone()).collect(),
            bytes_lost: bytes_of(map, &seen_here.lost),
            repair: None,
            waits_for: None,
            may_lose_hosts: hosts::may_lose(map, machine),
            crowd,
            content: Box::new(volume.content.clone()),
        };
        let (repair, waits_for) = self.outlook(volume, &status).unzip();
        let status = VolumeStatus { repair, waits_for: waits_for.flatten(), ..status };
        let mut map_shown = map.clone();
        if let Some(filler) = map_shown.backing.as_mut().and_then(|backing| backing.filler.as_mut()) {
            // Who has no lease has nothing to ask there.
            filler.export.clear();
        }
        VolumeDetail {
            status,
            map: map_shown,
            lost: seen_here.lost,
            lost_to,
            rehearsal: None,
            unreadable: unreadable_ranges(map),
            case: self.case_of(map.volume),
        }
    }

    /// What people call a machine.
    pub(super) fn host_named(&self, machine: &str) -> String {
        let here = |donor: &&Donor| donor.machine() == machine;
        self.donors.values().find(here).map_or(machine, |donor| &donor.record.host).to_owned()
    }

    /// Who rebuilds or moves what is due, or what it lacks.
    fn outlook(&self, volume: &Volume, status: &VolumeStatus) -> Option<(String, Option<WaitsFor>)> {
        let VolumeStatus { slots_missing: missing, slots_filling: filling, .. } = *status;
        let written = self.writer(status.volume).is_some();
        if status.health == VolumeHealth::Crowded && filling == 0 {
            let why = format!("one moves when another host lends {}", status.medium);
            return Some((why, Some(WaitsFor::Donor)));
        }
        if status.health == VolumeHealth::Lost || missing == 0 && (written || filling == 0) {
            return None;
        }
        let redundancy = status.redundancy;
        let width = redundancy.width() as usize;
        let fits = |donor: &&Donor| donor.record.medium == status.medium;
        let here =
            self.donors.values().filter(fits).filter(|donor| donor.alive && !donor.record.leaving).count();
        let homeless = self.homeless_of(volume);
        if homeless > 0 && here < width {
            let missing = match width - here {
                1 => "add one".to_owned(),
                more => format!("add {more}"),
            };
            let needed = show_count(width as u64, "donor");
            let are = if here == 1 { "is" } else { "are" };
            let why = format!(
                "{redundancy} needs {needed} and {here} {are} there: {missing} with `cheetah donate`"
            );
            return Some((why, Some(WaitsFor::Donor)));
        }
        if homeless > 0 {
            let what = fragments(homeless);
            let why = format!("no donor has room for {what}: start another with `cheetah donate`");
            return Some((why, Some(WaitsFor::Donor)));
        }
        let verb = if missing > 0 { "rebuilds" } else { "moves" };
        match (written, self.tender_for(volume)) {
            (true, _) if filling > 0 => None,
            (true, _) => Some((self.rebuilt_when(volume), None)),
            (false, Some(_)) => Some((format!("a donor {verb} it in a moment"), None)),
            (false, None) => {
                let why = format!("none of its donors can attach it: attach it, for who writes it {verb} it");
                Some((why, Some(WaitsFor::Writer)))
            }
        }
    }

    fn donor_status(&self, donor: &Donor, now: Time) -> DonorStatus {
        let record = &donor.record;
        DonorStatus {
            donor: record.donor,
            name: record.name.clone(),
            host: record.host.clone(),
            machine: donor.machine().to_owned(),
            address: record.address.clone(),
            health: match (donor.alive, donor.heard) {
                (false, _) => DonorHealth::Lost,
                (true, false) => DonorHealth::Unknown,
                (true, true) => DonorHealth::Alive,
            },
            medium: record.medium,
            bytes_total: u64::from(record.extents) * EXTENT_BYTES,
            // What a lost donor has left is of no use to anyone, and who may be lost is given nothing.
            bytes_free: if donor.alive && donor.heard { u64::from(donor.room()) * EXTENT_BYTES } else { 0 },
            bytes_used: donor.bytes_used,
            bytes_held: u64::from(donor.used()) * EXTENT_BYTES,
            bytes_offered: u64::from(donor.spare()) * EXTENT_BYTES,
            wrong_blocks: donor.blame.blocks,
            has_bad_memory: donor.blame.has_bad_memory,
            keeps_checksums: record.foreign_export.is_none(),
            leaving: record.leaving,
            heard: donor.heard,
            silent_ms: now.saturating_sub(donor.last_seen) / MILLISECOND_NS,
            bytes_given_up: u64::from(donor.given_up) * EXTENT_BYTES,
            stuck: if donor.alive { self.stuck(record.donor) } else { None },
        }
    }

    /// When who has the volume for writing rebuilds what is missing: what it still reaches is not missing to
    /// it.
    fn rebuilt_when(&self, volume: &Volume) -> String {
        let slots = volume.map.groups.iter().flat_map(|group| &group.slots);
        let missing = slots.filter_map(|slot| match slot.held {
            None => Some(None),
            Some(held) => {
                let lives = self.donors.get(&held.donor).is_some_and(|donor| donor.alive);
                (!lives).then_some(Some(held.donor))
            }
        });
        let writer = self.writer(volume.map.volume);
        // By then it was asked, and would have said so.
        let reaches = |id: DonorId| {
            let lost = writer.is_some_and(|writer| writer.lost.iter().any(|(lost, _)| *lost == id));
            !lost && self.given_up_at(id) + 2 * LEASE_RENEW_NS <= self.now
        };
        let reached: Option<BTreeSet<DonorId>> = missing.map(|of| of.filter(|id| reaches(*id))).collect();
        let Some(reached) = reached.filter(|reached| !reached.is_empty()) else {
            return "it is rebuilt in a moment".to_owned();
        };
        let name =
            |id: &DonorId| volume.map.routes.get(id).map_or_else(String::new, |route| route.name.clone());
        let names = reached.iter().map(name).collect::<Vec<_>>().join(", ");
        format!("who has it attached still reaches {names}, and it is rebuilt when that ends")
    }
}

/// What a volume is without some donors.
struct Condition {
    health: VolumeHealth,
    slots_missing: u64,
    lost: Vec<LostRange>,
}

fn condition(
    map: &VolumeMap,
    is_lost: impl Fn(DonorId) -> bool,
    is_unheard: impl Fn(DonorId) -> bool,
) -> Condition {
    let lost = lost_ranges(map, &is_lost);
    let slots = || map.groups.iter().flat_map(|group| &group.slots);
    let is_missing = |slot: &&Slot| slot.held.is_none_or(|held| is_lost(held.donor));
    let slots_missing = slots().filter(is_missing).count() as u64;
    let health = match (lost.is_empty(), slots_missing) {
        (false, _) => VolumeHealth::Lost,
        (true, 0) if slots().filter_map(|slot| slot.held).any(|held| is_unheard(held.donor)) => {
            VolumeHealth::Unknown
        }
        (true, 0) => VolumeHealth::Whole,
        (true, _) => VolumeHealth::Degraded,
    };
    Condition { health, slots_missing, lost }
}

/// So many fragments, for people.
pub(super) fn fragments(count: usize) -> String {
    let bytes = show_bytes((count as u64).saturating_mul(EXTENT_BYTES));
    format!("{} ({bytes})", show_count(count as u64, "fragment"))
}

/// Bytes of the volume inside the ranges: the last piece of each may be cut by the volume's end.
pub(super) fn bytes_of(map: &VolumeMap, lost: &[LostRange]) -> u64 {
    let bytes = |range: &LostRange| {
        let before_last = range.count.saturating_sub(1);
        let last = range.offset + before_last * range.stride;
        before_last * range.len + range.len.min(map.size.saturating_sub(last))
    };
    lost.iter().map(bytes).sum()
}
