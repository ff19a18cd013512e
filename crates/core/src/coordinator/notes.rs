//! What happened to the pool, for its record: who joined, left and was lost, who made, attached and deleted
//! what.
//!
//! Owns those notes and their words. Never: time, or where they go; the driver logs each with the time, and
//! with who called. Invariants: a note follows what it tells of, in the same step, so that it is kept only
//! once that is stored; the name of an event stays for good. Tests: `tests/coordinator_notes.rs`.

use super::{CallId, Coordinator};
use crate::api::VolumeReport;
use crate::custody;
use crate::layout::lost_ranges;
use crate::limits::EXTENT_BYTES;
use crate::map::{DonorId, LeaseToken, VolumeId};
use crate::units::show_bytes;

/// One line of the record of what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Like `donor-lost`.
    pub event: &'static str,
    /// The volume's name, if it is about one.
    pub volume: Option<String>,
    /// The donor's name, or its identity where the name is not known.
    pub donor: Option<String>,
    /// Who has the lease that it is about.
    pub holder: Option<String>,
    /// One sentence.
    pub text: String,
    /// The call that brought it about; absent when time did.
    pub call: Option<CallId>,
    /// Something is worse than before.
    pub is_bad: bool,
}

impl Coordinator {
    pub(super) fn note(&mut self, note: Note) {
        self.notes.push(Note { call: self.calling, ..note });
    }

    pub(super) fn note_donor(&mut self, event: &'static str, id: DonorId) {
        let Some(donor) = self.donors.get(&id) else { return };
        let name = donor.record.name.clone();
        let (host, address) = (&donor.record.host, &donor.record.address);
        let lent = show_bytes(u64::from(donor.record.extents) * EXTENT_BYTES);
        let held = match donor.used() {
            0 => "no volume counts on it".to_owned(),
            extents => format!("{} of volumes lay there", show_bytes(u64::from(extents) * EXTENT_BYTES)),
        };
        let text = match event {
            "donor-joined" => format!("donor {name} on host {host} lends {lent} at {address}"),
            "donor-returned" => format!("donor {name} on host {host} is heard of again"),
            "donor-leaving" => format!("donor {name} on host {host} is going to leave; {held}"),
            "donor-left" => format!("donor {name} on host {host} left the pool; {held}"),
            _ => format!("donor {name} on host {host} is gone; {held}"),
        };
        let is_bad = event == "donor-lost";
        self.note(Note { event, donor: Some(name), text, is_bad, ..Note::default() });
    }

    /// A donor is gone, and with it, perhaps, data.
    pub(super) fn note_loss(&mut self, event: &'static str, id: DonorId) {
        self.note_donor(event, id);
        let volumes: Vec<VolumeId> =
            self.donors.get(&id).map(|donor| donor.held.keys().copied().collect()).unwrap_or_default();
        let name_of = |donor: &super::donors::Donor| (donor.record.name.clone(), donor.record.host.clone());
        let (donor, host) = self.donors.get(&id).map(name_of).unwrap_or_default();
        for volume in volumes {
            let lost = custody::Event::DonorLost { donor: donor.clone(), host: host.clone() };
            self.put_down(volume, lost);
            self.note_lost_data(volume);
        }
    }

    pub(super) fn note_lost_data(&mut self, id: VolumeId) {
        let Some(volume) = self.volumes.get(&id) else { return };
        let is_lost = |id: DonorId| !self.donors.get(&id).is_some_and(|donor| donor.alive);
        let bytes = super::status::bytes_of(&volume.map, &lost_ranges(&volume.map, is_lost));
        if bytes > 0 {
            let name = volume.map.name.clone();
            self.put_down(id, custody::Event::DataLost { bytes });
            let text = format!("{} of volume {name} cannot be read", show_bytes(bytes));
            let volume = Some(name);
            self.note(Note { event: "data-lost", volume, text, is_bad: true, ..Note::default() });
        }
    }

    /// Of the lease's volume more counts as it is on disks than it told `before`, perhaps without what was
    /// written last.
    pub(super) fn note_unflushed(&mut self, token: LeaseToken, before: &VolumeReport) {
        let Some(lease) = self.leases.get(&token) else { return };
        let bytes = lease.report.unflushed_bytes.saturating_sub(before.unflushed_bytes);
        let Some(volume) = self.volumes.get(&lease.record.volume).filter(|_| bytes > 0) else { return };
        let (id, name) = (volume.map.volume, volume.map.name.clone());
        self.put_down(id, custody::Event::Unflushed { bytes });
        let text = format!(
            "up to {} of volume {name} may be older than what was written last: its donors stopped before that was flushed",
            show_bytes(bytes)
        );
        self.note(Note {
            event: "writes-unflushed",
            volume: Some(name),
            text,
            is_bad: true,
            ..Note::default()
        });
    }

    pub(super) fn note_volume(&mut self, event: &'static str, id: VolumeId) {
        let Some(volume) = self.volumes.get(&id) else { return };
        let (name, size, redundancy) = (volume.map.name.clone(), volume.map.size, volume.map.redundancy);
        let text = match event {
            "volume-created" => format!("volume {name} was made: {size} bytes, {redundancy}"),
            "volume-grown" => format!("volume {name} grew to {size} bytes"),
            _ => format!("volume {name} of {size} bytes was deleted"),
        };
        let put_down = match event {
            "volume-created" => custody::Event::Created { size, redundancy: redundancy.to_string() },
            "volume-grown" => custody::Event::Grown { size },
            _ => custody::Event::Deleted,
        };
        self.put_down(id, put_down);
        self.note(Note { event, volume: Some(name), text, ..Note::default() });
    }

    /// A lease begins or ends.
    pub(super) fn note_lease(&mut self, token: LeaseToken, is_over: Option<Over>) {
        self.put_lease_down(token, is_over);
        let Some(lease) = self.leases.get(&token) else { return };
        let record = &lease.record;
        let Some(volume) = self.volumes.get(&record.volume) else { return };
        let (name, holder) = (volume.map.name.clone(), record.holder.clone());
        let (begins, ends) = match (record.alone, record.yields, record.read_only) {
            (true, ..) => ("load-begun", "load-ended"),
            (_, true, _) => ("repair-begun", "repair-ended"),
            _ => ("attached", "detached"),
        };
        let how = if record.read_only { "read-only" } else { "for writing" };
        let (event, text) = match (is_over, begins) {
            (None, "load-begun") => (begins, format!("{holder} begins to load volume {name}")),
            (None, "repair-begun") => (begins, format!("volume {name} is attached by {holder}")),
            (None, _) => (begins, format!("{holder} attached volume {name} {how}")),
            (Some(Over::GivenBack), "load-begun") => (ends, format!("{holder} loads volume {name} no more")),
            (Some(Over::GivenBack), "repair-begun") => {
                (ends, format!("volume {name} was given back by {holder}"))
            }
            (Some(Over::GivenBack), _) => (ends, format!("{holder} detached volume {name}")),
            (Some(Over::TakenAway), _) => {
                ("lease-ended", format!("the lease of {holder} on volume {name} ended"))
            }
        };
        // A repair that yields ends so, always.
        let is_bad = matches!(is_over, Some(Over::TakenAway)) && !record.yields;
        self.note(Note { event, volume: Some(name), holder: Some(holder), text, is_bad, ..Note::default() });
    }

    /// What moves by itself is nobody's custody.
    fn put_lease_down(&mut self, token: LeaseToken, is_over: Option<Over>) {
        let Some(lease) = self.leases.get(&token).filter(|lease| !lease.record.yields) else { return };
        let record = &lease.record;
        let (volume, holder, read_only) = (record.volume, record.holder.clone(), record.read_only);
        let seconds = self.time_of_day.saturating_sub(record.since);
        let event = match is_over {
            None => custody::Event::Attached { holder, read_only },
            Some(over) => custody::Event::Detached { holder, seconds, given_back: over == Over::GivenBack },
        };
        self.put_down(volume, event);
    }

    /// All of a source is in a volume.
    pub(super) fn note_loaded(&mut self, id: VolumeId, token: LeaseToken) {
        let Some(volume) = self.volumes.get(&id) else { return };
        let holder = self.leases.get(&token).map(|lease| lease.record.holder.clone());
        let name = volume.map.name.clone();
        if let Some(load) = &volume.content.load {
            let filled = custody::Event::Filled {
                md5: load.md5.clone().unwrap_or_default(),
                sha256: load.sha256.clone().unwrap_or_default(),
                check: load.check,
                changed: load.changed.clone(),
                unreadable_bytes: load.unreadable.iter().map(|range| range.len).sum(),
            };
            let why = load.unsealed.clone();
            self.put_down(id, filled);
            if let Some(why) = why {
                self.put_down(id, custody::Event::NotSealed { why });
            }
        }
        let text = format!("volume {name} is loaded");
        self.note(Note { event: "load-complete", volume: Some(name), holder, text, ..Note::default() });
    }

    pub(super) fn note_set_aside(&mut self, id: VolumeId, token: LeaseToken, donor: DonorId, why: &str) {
        let holder = self.leases.get(&token).map(|lease| lease.record.holder.clone());
        let volume = self.volumes.get(&id).map(|volume| volume.map.name.clone());
        let donor =
            self.donors.get(&donor).map_or_else(|| donor.to_string(), |donor| donor.record.name.clone());
        let set_aside = custody::Event::DonorSetAside { donor: donor.clone(), why: why.to_owned() };
        self.put_down(id, set_aside);
        let of = volume.clone().unwrap_or_default();
        let text = format!("donor {donor} was set aside from volume {of} ({why})");
        let donor = Some(donor);
        self.note(Note {
            event: "donor-set-aside",
            volume,
            donor,
            holder,
            text,
            is_bad: true,
            ..Note::default()
        });
    }
}

/// How a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    GivenBack,
    TakenAway,
}
