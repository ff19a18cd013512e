//! Which of several that call themselves the same disk is the one that has all that was written.
//!
//! Owns that decision. A disk can be copied, and can be set back: what it held then is not what counts now.
//! So each run of its donor names itself, and those before it that the disk knows of; the coordinator keeps
//! which one it let in last, and lets in who comes behind that one and nobody else. Never: what a donor of a
//! disk missed while it was away (`amend`), or memory, which ends with its process. Invariant: of one disk at
//! most one run is in the pool, and each is behind the one that was in before it.
//! Tests: `tests/coordinator_lineage.rs`.

use super::record::DonorRecord;
use super::{Coordinator, refuse};
use crate::api::{Join, Lineage, Refusal, RefusalCode};
use crate::map::Incarnation;

impl Coordinator {
    /// Whether who joins as a disk that is known is behind the run that was in last, and that one has ended.
    pub(super) fn check_lineage(&mut self, join: &Join) -> Result<(), Refusal> {
        let Some(donor) = self.donors.get(&join.donor) else { return Ok(()) };
        let (record, lineage) = (&donor.record, join.lineage.as_deref());
        if lineage.map(|lineage| lineage.incarnation) == record.incarnation {
            return Ok(());
        }
        let name = &record.name;
        if !is_behind(record, lineage) {
            let message = format!(
                "the disk at {} was set back, or is an older copy of donor '{name}': that one was in this pool since, and \
                 this disk does not know of it, so it lacks what was written then. Start the newest one. If there is \
                 none any more, `cheetah leave {name}` takes this donor out, and what it held is rebuilt from others",
                join.address
            );
            return Err(refuse(RefusalCode::Conflict, message));
        }
        // One that listens where the other did has its place.
        if donor.alive && donor.heard && record.address != join.address {
            let message = format!(
                "donor '{name}' of this disk runs already, at {}; if it has just ended, this passes in a moment. Of a disk \
                 and its copy only one can be lent",
                record.address
            );
            self.doubt(join.donor);
            return Err(refuse(RefusalCode::Unavailable, message));
        }
        Ok(())
    }
}

fn is_behind(record: &DonorRecord, lineage: Option<&Lineage>) -> bool {
    let (Some(was), Some(lineage)) = (record.incarnation, lineage) else {
        // A state of before there were any.
        return record.incarnation.is_none();
    };
    // One that has synced was told, and its disk knows: a disk that only knows that it tried is older.
    lineage.last == Some(was) || (!record.synced && lineage.tried.contains(&was))
}

/// Whether the run that was let in last syncs. Any other has to join again, and hears then why it cannot.
pub(super) fn check_incarnation(record: &DonorRecord, syncs: Option<Incarnation>) -> Result<(), Refusal> {
    if record.incarnation == syncs {
        return Ok(());
    }
    let message = format!("donor '{}' was started again since; it has to join again", record.name);
    Err(refuse(RefusalCode::Gone, message))
}
