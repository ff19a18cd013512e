//! What is not well in a pool: each finding with a stable code, the state it leaves its subject in, what
//! happened, and what to do.
//!
//! Owns the judgement, from what the coordinator reports to a list of findings, the worst first. Never:
//! calls, printing, or exit codes. Invariants: no finding, no fault; what was not heard of lately is unknown,
//! never well; a code keeps its meaning for good, and `docs/CODES.md` explains each. Called by the commands
//! that report. Files: `donor`, `volume` (as the coordinator sees them), `attachment` (what those report who
//! have a volume attached). Tests: `tests/findings.rs`.

mod attachment;
mod donor;
mod volume;

pub use attachment::is_silent;
pub use donor::taken_out;
pub use volume::{of_volume, progress};

use crate::api::{PoolStatus, VolumeStatus};
use crate::map::DonorId;
use serde::{Deserialize, Serialize};

/// How its subject is. The worse, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing is wrong.
    Well,
    /// Nothing is missing, and less may fail than one would think.
    Exposed,
    /// Nobody has heard of it lately.
    Unknown,
    /// All of it is there, with less behind it than it should have.
    Degraded,
    /// Data cannot be read.
    Lost,
}

impl State {
    /// The word that texts and JSON have for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            State::Well => "well",
            State::Exposed => "exposed",
            State::Unknown => "unknown",
            State::Degraded => "degraded",
            State::Lost => "lost",
        }
    }
}

/// What kind of thing was found. Scripts go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// No donor is in the pool.
    PoolEmpty,
    /// A donor asks to join that holds memory of another pool.
    DonorOfOtherPool,
    /// A donor counts as lost: silent for `DONOR_SILENCE_NS`, ended, or gone with what it held.
    DonorGone,
    /// A donor was not heard of since the coordinator began.
    DonorUnheard,
    /// An attachment does not reach donors that the coordinator hears; `Lost` where it cannot read something.
    DonorUnreachable,
    /// An attachment got blocks with a wrong checksum. The subject is the volume, and the text names the
    /// donors.
    DonorWrongBlocks,
    /// A donor had wrong blocks again and again. It is emptied.
    DonorBadMemory,
    /// What a donor is to give up has nowhere to go, or nobody moves it.
    DonorStuck,
    /// A part of a volume cannot be read, as the coordinator sees it.
    VolumeLost,
    /// Fragments are missing, and are rebuilt without anybody's doing.
    VolumeDegraded,
    /// Fragments are missing, and no donor has room for them.
    VolumeNeedsDonor,
    /// Fragments are missing, and nobody can rebuild them before the volume is attached for writing.
    VolumeNeedsWriter,
    /// A volume is whole, and one host has several fragments of a group.
    VolumeCrowded,
    /// Holders of a volume were not heard of since the coordinator began, and none is known to be missing.
    VolumeUnheard,
    /// A scrub found fragments that contradict each other, and no checksum that tells which is wrong.
    VolumeDisagrees,
    /// Writes that no flush had covered may be lost with the memory of donors that stopped.
    VolumeUnflushed,
    /// A load of a volume has not begun, or did not come to its end.
    VolumeIncomplete,
    /// It was opened from a source that nobody reads now.
    VolumeUnfilled,
    /// A loaded volume was checked, and does not hold what its source held.
    VolumeDiffers,
    /// An attachment was not heard of for `ATTACHMENT_SILENCE_NS`. What it reported before is not used.
    AttachmentSilent,
}

impl Code {
    /// Every code once; `docs/CODES.md` has a row for each.
    pub const ALL: [Code; 20] = [
        Code::PoolEmpty,
        Code::DonorOfOtherPool,
        Code::DonorGone,
        Code::DonorUnheard,
        Code::DonorUnreachable,
        Code::DonorWrongBlocks,
        Code::DonorBadMemory,
        Code::DonorStuck,
        Code::VolumeLost,
        Code::VolumeDegraded,
        Code::VolumeNeedsDonor,
        Code::VolumeNeedsWriter,
        Code::VolumeCrowded,
        Code::VolumeUnheard,
        Code::VolumeDisagrees,
        Code::VolumeUnflushed,
        Code::VolumeIncomplete,
        Code::VolumeUnfilled,
        Code::VolumeDiffers,
        Code::AttachmentSilent,
    ];

    /// As it is written everywhere, in JSON too.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Code::PoolEmpty => "pool-empty",
            Code::DonorOfOtherPool => "donor-of-other-pool",
            Code::DonorGone => "donor-gone",
            Code::DonorUnheard => "donor-unheard",
            Code::DonorUnreachable => "donor-unreachable",
            Code::DonorWrongBlocks => "donor-wrong-blocks",
            Code::DonorBadMemory => "donor-bad-memory",
            Code::DonorStuck => "donor-stuck",
            Code::VolumeLost => "volume-lost",
            Code::VolumeDegraded => "volume-degraded",
            Code::VolumeNeedsDonor => "volume-needs-donor",
            Code::VolumeNeedsWriter => "volume-needs-writer",
            Code::VolumeCrowded => "volume-crowded",
            Code::VolumeUnheard => "volume-unheard",
            Code::VolumeDisagrees => "volume-disagrees",
            Code::VolumeUnflushed => "volume-unflushed",
            Code::VolumeIncomplete => "volume-incomplete",
            Code::VolumeUnfilled => "volume-unfilled",
            Code::VolumeDiffers => "volume-differs",
            Code::AttachmentSilent => "attachment-silent",
        }
    }
}

/// One thing that is not well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind. Findings of one kind may advise different things.
    pub code: Code,
    /// `volume case7`, `donor lab7`, `pool`.
    pub subject: String,
    /// The state that this alone leaves its subject in.
    pub state: State,
    /// What happened, in sentences.
    pub what: String,
    /// What to do next.
    #[serde(rename = "do")]
    pub advice: String,
}

/// The worst of what was found.
#[must_use]
pub fn worst(findings: &[Finding]) -> State {
    findings.iter().map(|finding| finding.state).max().unwrap_or(State::Well)
}

/// All that is not well, the worst first.
#[must_use]
pub fn of_pool(status: &PoolStatus) -> Vec<Finding> {
    let name_of = |id: DonorId| {
        let donor = status.donors.iter().find(|donor| donor.donor == id);
        donor.map_or_else(|| id.to_string(), |donor| donor.name.clone())
    };
    let mut found = Vec::new();
    if status.donors.is_empty() {
        found.push(Finding {
            code: Code::PoolEmpty,
            subject: "pool".to_owned(),
            state: State::Degraded,
            what: "No donor is in this pool, so it has no memory.".to_owned(),
            advice: "On each idle machine: `cheetah donate SIZE --pool URL`.".to_owned(),
        });
    }
    found.extend(status.strangers.iter().map(donor::of_stranger));
    let is_whole = |volume: &VolumeStatus| volume.slots_missing == 0 && volume.bytes_lost == 0;
    let all_whole = status.volumes.iter().all(is_whole);
    found.extend(status.donors.iter().filter_map(|donor| donor::of_donor(donor, all_whole)));
    for volume in &status.volumes {
        found.extend(of_volume(volume, &name_of));
    }
    sort(&mut found);
    found
}

fn sort(found: &mut [Finding]) {
    found.sort_by_key(|finding| std::cmp::Reverse(finding.state));
}

/// With a capital letter and a full stop; `parity:3+1` stays as it is written.
fn sentence(text: &str) -> String {
    if text.split(' ').next().is_some_and(|word| word.contains(':')) {
        return format!("{text}.");
    }
    let mut letters = text.chars();
    let first: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}
