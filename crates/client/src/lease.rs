//! A lease: the right to read or write a volume, for as long as it is renewed.
//!
//! Owns taking one, what is told under it, giving it back, and what its grant says about the donors that this
//! machine cannot reach. Never: renews it (`keep`). Invariant: what is said under a lease is said to the pool
//! that gave it; another that came to the same address knows nothing of it. Tests: below; `lab/tests`.

use crate::error::Error;
use crate::key::key_for;
use cheetah_core::api::{Answer, Attach, Attached, Call};
use cheetah_core::content::{Beside, Fill, FillFrom, Source, Tell};
use cheetah_core::layout::{beyond, lost_ranges};
use cheetah_core::map::{DonorId, LeaseToken};
use cheetah_rim::cipher::VolumeKey;
use cheetah_rim::control::{Client, own_name};
use cheetah_rim::volume::Tuning;
use std::sync::Arc;

/// How a volume is attached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// No write leaves this process, and donors refuse them.
    pub read_only: bool,
    /// For writing also where `load` filled it; without this such a volume is attached for reading.
    pub writable: bool,
    /// Also where a load did not come to its end.
    pub incomplete: bool,
    /// An overlay as the volume that it is, and not what tools see through it.
    pub raw: bool,
    /// Nothing of it is read or written: donors are asked about what they hold. That takes no key.
    pub blind: bool,
    /// What changes speed and memory, and no answer.
    pub tuning: Tuning,
}

/// The right to read or write a volume. It ends when nobody renews it.
#[derive(Clone, Debug)]
pub struct Lease {
    /// What the pool granted.
    pub granted: Attached,
    /// It is taken away as soon as somebody else wants to write, and that is no fault.
    pub yields: bool,
    /// What is written under it are proofs.
    pub seals: bool,
    /// Nothing of it is read or written by tools, so that no key is needed.
    pub blind: bool,
    /// Of an encrypted volume.
    pub key: Option<Arc<VolumeKey>>,
    pool: Client,
}

impl Lease {
    /// For tools; the grant says whether it is for reading alone.
    ///
    /// # Errors
    /// The pool refused, or could not be asked.
    pub async fn for_tools(pool: &Client, volume: &str, options: &Options) -> Result<Lease, Error> {
        let Options { read_only, writable, incomplete, blind, .. } = *options;
        let attach = Attach { writable, incomplete, ..Attach::new(read_only, own_name()) };
        Lease::take(pool, volume, attach, blind).await
    }

    /// For filling a volume that nobody reads. `proofs`: it is to be sealed, so that room is made for what
    /// proves it; where the pool has none, the map says so.
    ///
    /// # Errors
    /// The pool refused, or could not be asked.
    pub async fn for_filling(pool: &Client, volume: &str, fill: Fill, proofs: bool) -> Result<Lease, Error> {
        let attach = Attach { alone: true, fill: Some(fill), proofs, ..Attach::new(false, own_name()) };
        Lease::take(pool, volume, attach, false).await
    }

    /// For sealing a volume, while others may read it.
    ///
    /// # Errors
    /// The pool refused, or could not be asked.
    pub async fn for_sealing(pool: &Client, volume: &str) -> Result<Lease, Error> {
        Lease::take(pool, volume, Attach { proofs: true, ..Attach::new(false, own_name()) }, false).await
    }

    /// For filling a volume that was opened from a source, while tools read it. `proofs`: as for a load.
    ///
    /// # Errors
    /// The pool refused, or could not be asked.
    pub async fn for_opening(
        pool: &Client,
        volume: &str,
        source: Source,
        proofs: bool,
    ) -> Result<Lease, Error> {
        let fill = Some(Fill { source, from: FillFrom::Open });
        Lease::take(pool, volume, Attach { fill, proofs, ..Attach::new(false, own_name()) }, false).await
    }

    /// For moving and rebuilding what nobody else does: it goes to whoever wants to write.
    ///
    /// # Errors
    /// The pool refused, or could not be asked.
    pub async fn for_tending(pool: &Client, volume: &str, holder: String) -> Result<Lease, Error> {
        Lease::take(pool, volume, Attach { yields: true, ..Attach::new(false, holder) }, false).await
    }

    async fn take(pool: &Client, volume: &str, attach: Attach, blind: bool) -> Result<Lease, Error> {
        let (name, yields) = (volume.to_owned(), attach.yields);
        let seals = attach.proofs && attach.fill.is_none();
        match pool.call(Call::Attach { name, attach }).await? {
            Answer::Attached(granted) => {
                granted.map.check().map_err(|bad| Error::Answer(bad.to_string()))?;
                let pool = pool.meant_for(granted.pool);
                // Who repairs moves ciphertext.
                let blind = blind || yields;
                let key = if blind { Ok(None) } else { key_for(&pool, &granted) };
                let mut lease = Lease { pool, granted, yields, seals, blind, key: None };
                match key {
                    Ok(key) => lease.key = key,
                    Err(error) => {
                        // What is not given back runs out by itself.
                        let _ = lease.give_back().await;
                        return Err(error);
                    }
                }
                Ok(lease)
            }
            other => Err(Error::Answer(format!(
                "the coordinator answered something else than was asked: {other:?}"
            ))),
        }
    }

    /// The volume's name.
    #[must_use]
    pub fn volume(&self) -> &str {
        &self.granted.map.name
    }

    /// The pool that gave it.
    #[must_use]
    pub fn pool(&self) -> &Client {
        &self.pool
    }

    /// Says to the pool what was put into the volume.
    ///
    /// # Errors
    /// The pool refused, or could not be asked.
    pub async fn tell(&self, tell: Tell) -> Result<(), Error> {
        let (name, token) = (self.volume().to_owned(), self.granted.token);
        self.pool.call(Call::Tell { name, token, tell }).await?;
        Ok(())
    }

    /// Ends it at once. One that is not given back runs out by itself.
    ///
    /// # Errors
    /// The pool refused, or could not be asked.
    pub async fn give_back(&self) -> Result<(), Error> {
        let (name, token) = (self.volume().to_owned(), self.granted.token);
        self.pool.call(Call::Detach { name, token }).await?;
        Ok(())
    }

    /// Gives back the lease of a process that was killed, as far as the pool can be asked: otherwise it runs
    /// out by itself. `may_have_written`: that is told first, for the process cannot say so any more.
    pub async fn give_back_of_ended(pool: &Client, volume: &str, token: LeaseToken, may_have_written: bool) {
        if may_have_written {
            let tell = Tell { unsure: true, ..Tell::default() };
            let _ = pool.call(Call::Tell { name: volume.to_owned(), token, tell }).await;
        }
        let _ = pool.call(Call::Detach { name: volume.to_owned(), token }).await;
    }

    /// The name of one of the volume's donors.
    #[must_use]
    pub fn donor_name(&self, id: DonorId) -> String {
        self.granted.map.routes.get(&id).map_or_else(|| id.to_string(), |route| route.name.clone())
    }

    /// Who else has the volume, as far as that changes what is read.
    #[must_use]
    pub fn beside_note(&self) -> Option<String> {
        (!self.granted.beside.is_empty()).then(|| beside_note(&self.granted.beside))
    }

    /// A volume is of no use where what it holds cannot be reached, though it is there for others; what the
    /// pool itself has lost is another matter, and the rest may be read. A writer needs more than what can be
    /// read: a group that has lost more than redundancy covers takes no writes at all.
    pub(crate) fn check_reached(&self, lost: &[(DonorId, String)]) -> Result<(), Error> {
        let Attached { map, unconfirmed, read_only, .. } = &self.granted;
        let is_lost = |id: DonorId| lost.iter().any(|(lost, _)| *lost == id);
        let is_lost_to_all = |id: DonorId| is_lost(id) && unconfirmed.contains(&id);
        let is_read = lost_ranges(map, is_lost) == lost_ranges(map, is_lost_to_all);
        let is_written = || beyond(map, is_lost).eq(beyond(map, is_lost_to_all));
        if is_read && (*read_only || is_written()) {
            return Ok(());
        }
        let here = lost.iter().filter(|(id, _)| !unconfirmed.contains(id));
        let donors = here.map(|(id, why)| (self.donor_name(*id), why.clone())).collect();
        Err(Error::Unreached { volume: map.name.clone(), donors })
    }

    /// Sentences about donors that cannot be reached.
    pub(crate) fn lost_notes(&self, lost: &[(DonorId, String)]) -> Vec<String> {
        let map = &self.granted.map;
        let beyond = !lost_ranges(map, |id| lost.iter().any(|(lost, _)| *lost == id)).is_empty();
        let so = match beyond {
            true => format!("ranges answer EIO, `cheetah show {}` lists them", map.name),
            false => "its part is read from the others".to_owned(),
        };
        let note = |(id, why): &(DonorId, String)| {
            format!("donor {} cannot be reached ({why}): {so}", self.donor_name(*id))
        };
        lost.iter().map(note).collect()
    }
}

pub(crate) fn has_writer(beside: &[Beside]) -> bool {
    beside.iter().any(|other| !other.read_only)
}

pub(crate) fn beside_note(beside: &[Beside]) -> String {
    let named: Vec<&str> = beside.iter().map(|other| other.holder.as_str()).collect();
    let named = named.join(" and ");
    match beside.first() {
        None => "nobody else has the volume attached so that it matters any more".to_owned(),
        Some(other) if other.read_only => {
            format!("the volume is read by {named}, who will see what is written here")
        }
        Some(_) => format!("the volume is attached for writing by {named}: what is read here may change"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_core::limits::EXTENT_BYTES;
    use cheetah_core::map::{Group, LeaseToken, Medium, Placement, PoolId, Route, Slot, VolumeId, VolumeMap};

    /// A volume on donors 1, 2 and 3, of which the coordinator has not heard lately of these.
    fn lease(redundancy: &str, silent: &[u64]) -> Lease {
        let redundancy: cheetah_core::map::Redundancy = redundancy.parse().expect("a redundancy");
        let donors = 1..=u64::from(redundancy.width());
        let slot = |donor: u64| Slot::held(Placement { donor: DonorId(donor), extent: 0 });
        let route = |donor: u64| {
            let (name, address) = (format!("d{donor}"), format!("10.0.0.{donor}:1000"));
            (DonorId(donor), Route { name, address, foreign_export: None })
        };
        let map = VolumeMap {
            volume: VolumeId(1),
            name: "v".into(),
            epoch: 1,
            size: u64::from(redundancy.data) * EXTENT_BYTES,
            redundancy,
            unit: 65536,
            groups: vec![Group { slots: donors.clone().map(slot).collect() }],
            routes: donors.map(route).collect(),
            bad: Vec::new(),
            hurry: false,
            backing: None,
            proofs: None,
            encrypted: false,
            write_back: false,
            medium: Medium::Memory,
            unreadable: Vec::new(),
        };
        let unconfirmed = silent.iter().map(|id| DonorId(*id)).collect();
        let granted = Attached {
            token: LeaseToken(1),
            pool: PoolId(1),
            lease_ms: 1,
            map,
            unconfirmed,
            fresh: false,
            read_only: false,
            content: Default::default(),
            beside: Vec::new(),
            key: None,
        };
        let pool = Client::new("http://127.0.0.1:9").expect("a URL");
        Lease { granted, yields: false, seals: false, blind: false, key: None, pool }
    }

    #[test]
    fn what_only_this_machine_does_not_reach_is_no_volume_for_it() {
        let lost = |ids: &[u64]| {
            let why = |id: &u64| (DonorId(*id), format!("10.0.0.{id}:1000: no route"));
            ids.iter().map(why).collect::<Vec<_>>()
        };
        let check = |redundancy, silent: &[u64], ids: &[u64]| {
            lease(redundancy, silent).check_reached(&lost(ids)).map_err(|error| error.to_string())
        };
        assert_eq!(check("parity:2+1", &[], &[2]), Ok(()), "redundancy covers it");
        let said = check("parity:2+1", &[], &[2, 3]).expect_err("more than redundancy covers");
        assert!(said.contains("'v'") && said.contains("d2 (10.0.0.2:1000: no route), d3 ("), "{said}");
        assert!(
            check("stripe:3", &[], &[1]).is_err_and(|said| said.contains("a donor that the pool does: d1 ("))
        );
        assert_eq!(check("stripe:3", &[1], &[1]), Ok(()), "it is lost to all, and the rest can be read");
        assert!(check("stripe:3", &[1], &[1, 2]).is_err_and(|said| !said.contains("d1")));
        let mut small = lease("parity:2+1", &[]);
        small.granted.map.size = 4096;
        let slots: Vec<_> = small.granted.map.groups[0].slots.iter().flat_map(|slot| slot.held).collect();
        let others = lost(&[slots[1].donor.0, slots[2].donor.0]);
        assert!(small.check_reached(&others).is_err(), "what is there can be read, but nothing be written");
        small.granted.read_only = true;
        assert!(small.check_reached(&others).is_ok());
        assert!(check("parity:2+1", &[1], &[1, 2]).is_err(), "with one lost to all the other is needed");
    }
}
