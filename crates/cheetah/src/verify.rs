//! `cheetah verify`: the donors of a volume compare what they hold with its checksums; what is wrong is put
//! right by who may write the volume.
//!
//! Owns the order of checking, waiting for what is healed and checking that again, and the report. Never: the
//! checking (`core::volume`), payload (none travels), or healing (the volume's writer, or one of its donors).
//! Invariant: "right" is said only when every block of every fragment was checked. Tests:
//! `lab/tests/verify.rs`.

use crate::cli;
use crate::failure::{Exit, Failure};
use crate::manifest;
use crate::output::{self, natural};
use crate::pool::{find, volume};
use crate::progress::Shown;
use crate::proved::{self, Proved};
use crate::signals::Signals;
use cheetah_client::{Options, Volume, VolumeError};
use cheetah_core::api::{Call, VolumeDetail};
use cheetah_core::content::{Content, ContentState};
use cheetah_core::layout::{LostRange, data_ranges};
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::map::DonorId;
use cheetah_core::units::{show_bytes, show_count};
use cheetah_rim::volume::{Scope, Scrubbed, ScrubbedDonor};
use serde::Serialize;
use std::time::{Duration, Instant};

/// How often is looked how far it is.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks whether what was wrong is healed.
const HEAL_LOOK: Duration = Duration::from_millis(500);
/// What was wrong is given up when for so long nothing more of it was healed.
const HEAL_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize)]
struct VerifyReport {
    volume: String,
    /// Every block was checked, and is right by now.
    right: bool,
    seconds: f64,
    /// Of fragments, as are all bytes here but those of `wrong` and `lost`.
    bytes_checked: u64,
    bytes_per_second: f64,
    bytes_unchecked: u64,
    /// Of fragments that nobody holds.
    bytes_missing: u64,
    /// Of the volume's source, not here yet.
    bytes_absent: u64,
    blocks_wrong: u64,
    /// Of these, put right.
    blocks_healed: u64,
    donors: Vec<DonorReport>,
    /// Where the volume has blocks that are wrong still.
    wrong: Vec<LostRange>,
    /// What of the volume nobody can read.
    lost: Vec<LostRange>,
    /// Of a sealed volume: what came of reading it to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    proved: Option<Proved>,
    /// Something is put right: the volume has redundancy.
    #[serde(skip)]
    heals: bool,
}

#[derive(Debug, Serialize)]
struct DonorReport {
    donor: DonorId,
    name: String,
    bytes_checked: u64,
    blocks_wrong: u64,
    bytes_unchecked: u64,
    /// Why something was not checked.
    why_unchecked: Option<String>,
}

pub async fn verify(options: cli::Verify) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let mut signals = Signals::listen()?;
    // A part of a load can be checked as well.
    let attach = Options { read_only: true, incomplete: true, raw: true, blind: true, ..Options::default() };
    let attached = Volume::open(&pool, &options.name, &attach).await?;
    let compared = match &options.manifest {
        Some(file) => manifest::compare(&pool, &attached.lease().granted, file).await,
        None => Ok(String::new()),
    };
    let compared = match compared {
        Ok(compared) => compared,
        Err(failure) => {
            let _ = attached.detach().await;
            return Err(failure);
        }
    };
    let checked = tokio::select! {
        // What was told while it was attached comes before a check that is over at once.
        biased;
        _ = signals.next() => Err(Failure::failed(format!("interrupted: volume '{}' is not verified", options.name))),
        checked = check_and_prove(&attached) => checked,
    };
    let report = match checked {
        Ok((checked, proved)) => {
            let detail = volume(&pool, Call::Show { name: options.name.clone() }).await;
            detail.map(|detail| checked.report(&attached, detail, proved))
        }
        Err(failure) => Err(failure),
    };
    // A lease that was not given back runs out by itself.
    let _ = attached.detach().await;
    let report = report?;
    match options.json.json {
        true => output::json(&report)?,
        false => {
            report.lines().iter().for_each(|line| output::line(line));
            if !compared.is_empty() {
                output::line(&compared);
            }
        }
    }
    report.verdict()
}

async fn check_and_prove(volume: &Volume) -> Result<(Checked, Option<Proved>), Failure> {
    let checked = check(volume).await?;
    let proved = match volume.lease().granted.map.seal() {
        Some(root) => Some(proved::read_through(volume, root).await?),
        None => None,
    };
    if proved.as_ref().is_some_and(|proved| !proved.is_right()) {
        // The pool hears of it while the volume is attached, and has what has redundancy put right.
        tokio::time::sleep(HEAL_LOOK).await;
    }
    Ok((checked, proved))
}

/// What came of checking.
pub struct Checked {
    /// All of it.
    found: Scrubbed,
    seconds: f64,
    /// What was wrong, when it was last looked at.
    left: Scrubbed,
    pub blocks_left: u64,
}

/// Has the donors check all that they hold, and waits for what is wrong to be healed.
pub async fn check(volume: &Volume) -> Result<Checked, Failure> {
    let started = Instant::now();
    let found = pass(volume, Scope::All, true).await?;
    let seconds = started.elapsed().as_secs_f64().max(1e-6);
    let (mut left, mut blocks_left) = (found.clone(), blocks_wrong(&found));
    let heals = volume.lease().granted.map.redundancy.parity > 0;
    let (mut progress, mut fewest) = (Instant::now(), blocks_left);
    if blocks_left > 0 && !heals {
        // The coordinator counts what is wrong by donor, and hears of it while the volume is attached.
        tokio::time::sleep(HEAL_LOOK).await;
    }
    while heals && blocks_left > 0 && progress.elapsed() < HEAL_PATIENCE {
        tokio::time::sleep(HEAL_LOOK).await;
        left = pass(volume, Scope::Wrong, false).await?;
        // What was wrong and is not answered for is no better.
        let unseen =
            left.bytes_missing + left.donors.values().map(|donor| donor.bytes_unchecked).sum::<u64>();
        blocks_left = blocks_wrong(&left) + unseen.div_ceil(BLOCK_BYTES);
        if blocks_left < fewest {
            (progress, fewest) = (Instant::now(), blocks_left);
        }
    }
    Ok(Checked { found, seconds, left, blocks_left })
}

/// Waits for a pass of the scrubber to come to its end.
async fn pass(volume: &Volume, scope: Scope, is_shown: bool) -> Result<Scrubbed, Failure> {
    let ended = || Failure::failed("the attachment has ended: is the volume gone?");
    let before = volume.handle().look().await.ok_or_else(ended)?.scrubbed.passes;
    volume.handle().scrub(scope);
    let mut shown = None;
    loop {
        let scrubbed = volume.handle().look().await.ok_or_else(ended)?.scrubbed;
        if scrubbed.passes > before {
            return Ok(scrubbed);
        }
        if is_shown && scrubbed.is_under_way {
            let start = || Shown::start("checking", volume.lease().volume(), scrubbed.bytes_total);
            shown.get_or_insert_with(start).set_position(scrubbed.bytes_done());
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn blocks_wrong(scrubbed: &Scrubbed) -> u64 {
    scrubbed.donors.values().map(|donor| donor.blocks_wrong).sum()
}

impl Checked {
    /// Whether somebody holds all of it and could say something of that.
    pub fn is_of_all(&self) -> bool {
        let unchecked = self.found.donors.values().any(|donor| donor.bytes_unchecked > 0);
        !unchecked && self.found.bytes_missing == 0
    }

    fn report(self, volume: &Volume, detail: VolumeDetail, proved: Option<Proved>) -> VerifyReport {
        let Checked { found, seconds, left, blocks_left } = self;
        let lease = volume.lease();
        let donor = |(id, said): (&DonorId, &ScrubbedDonor)| DonorReport {
            donor: *id,
            name: lease.donor_name(*id),
            bytes_checked: said.bytes_checked,
            blocks_wrong: said.blocks_wrong,
            bytes_unchecked: said.bytes_unchecked,
            why_unchecked: said.why_unchecked.map(reason),
        };
        let mut donors: Vec<DonorReport> = found.donors.iter().map(donor).collect();
        donors.sort_by_cached_key(|donor| natural(&donor.name));
        let sum = |of: fn(&DonorReport) -> u64| donors.iter().map(of).sum::<u64>();
        let bytes_checked = sum(|donor| donor.bytes_checked);
        let (bytes_unchecked, blocks_wrong) = (sum(|d| d.bytes_unchecked), sum(|d| d.blocks_wrong));
        let bytes_absent = absent(&detail.status.content);
        let is_whole = bytes_unchecked + found.bytes_missing + bytes_absent == 0 && detail.lost.is_empty();
        VerifyReport {
            volume: lease.volume().to_owned(),
            right: is_whole && blocks_left == 0 && proved.as_ref().is_none_or(Proved::is_right),
            proved,
            seconds,
            bytes_checked,
            bytes_per_second: bytes_checked as f64 / seconds,
            bytes_unchecked,
            bytes_missing: found.bytes_missing,
            bytes_absent,
            blocks_wrong,
            blocks_healed: blocks_wrong.saturating_sub(blocks_left),
            donors,
            wrong: data_ranges(&detail.map, &left.wrong),
            lost: detail.lost,
            heals: lease.granted.map.redundancy.parity > 0,
        }
    }
}

/// So much of what it was opened from nobody has read yet.
fn absent(content: &Content) -> u64 {
    let load = content.load.as_ref().filter(|_| content.state == ContentState::Opened);
    load.map_or(0, |load| load.source.size.saturating_sub(load.bytes_done))
}

/// Why a donor said nothing of a part.
fn reason(why: VolumeError) -> String {
    match why {
        VolumeError::Unsupported => "it is another NBD server, which keeps no checksums".to_owned(),
        VolumeError::DonorLost => "it cannot be reached".to_owned(),
        VolumeError::TimedOut => "it does not answer".to_owned(),
        other => other.to_string(),
    }
}

impl VerifyReport {
    fn lines(&self) -> Vec<String> {
        let VerifyReport { volume, seconds, bytes_checked, bytes_per_second, donors, .. } = self;
        let by = show_count(donors.iter().filter(|donor| donor.bytes_checked > 0).count() as u64, "donor");
        let rate = show_bytes(*bytes_per_second as u64);
        let mut lines = vec![format!(
            "volume '{volume}': {} checked by {by} in {seconds:.1} s ({rate}/s)",
            show_bytes(*bytes_checked)
        )];
        let row = |donor: &DonorReport| {
            let unchecked = match &donor.why_unchecked {
                Some(why) => format!("{}: {why}", show_bytes(donor.bytes_unchecked)),
                None => "-".to_owned(),
            };
            let wrong = if donor.blocks_wrong == 0 {
                "-".to_owned()
            } else {
                show_count(donor.blocks_wrong, "block")
            };
            vec![donor.name.clone(), show_bytes(donor.bytes_checked), wrong, unchecked]
        };
        let rows: Vec<_> = donors.iter().map(row).collect();
        lines.extend(output::lay_out(&["DONOR", "CHECKED", "WRONG", "NOT CHECKED"], &rows));
        for (word, ranges) in [("WRONG", &self.wrong), ("LOST", &self.lost)] {
            lines.extend(ranges.iter().map(|range| format!("{word:<5}  {range}")));
        }
        lines.extend(self.proved.iter().flat_map(Proved::lines));
        if self.right && self.blocks_wrong == 0 {
            lines.push("every block is what was written".to_owned());
        }
        lines
    }

    /// What is not as it should be, the worst first.
    fn verdict(&self) -> Result<(), Failure> {
        let VerifyReport { volume, blocks_wrong, blocks_healed, .. } = self;
        let left = blocks_wrong - blocks_healed;
        let were = show_count(*blocks_wrong, "block");
        let (was, lies) = match *blocks_wrong {
            1 => ("is", "it lies: no tool gets its bytes"),
            _ => ("are", "they lie: no tool gets their bytes"),
        };
        if left > 0 && !self.heals {
            let text = format!("{were} of volume '{volume}' {was} wrong where {lies}");
            let advice = match self.proved {
                Some(_) => {
                    "delete it, and load it again from its source; `cheetah leave` takes the donor out that is named above"
                }
                None => {
                    "load it again with --overwrite from its source; `cheetah leave` takes the donor out that is named above"
                }
            };
            return Err(Failure::new(Exit::DataLost, text).advise(advice));
        }
        if left > 0 {
            let text = format!("{were} of volume '{volume}' {was} wrong, and {left} not healed so far");
            let advice = "see `cheetah status`, and verify again; what stays wrong comes back when the volume is deleted and loaded again from its source";
            return Err(Failure::new(Exit::DataLost, text).advise(advice));
        }
        if !self.lost.is_empty() {
            let text = format!("ranges of volume '{volume}' cannot be read; those above answer EIO");
            return Err(Failure::new(Exit::DataLost, text));
        }
        if *blocks_wrong > 0 {
            let text = format!(
                "{were} of volume '{volume}' {} wrong, and {} healed from redundancy",
                if *blocks_wrong == 1 { "was" } else { "were" },
                if *blocks_wrong == 1 { "was" } else { "all were" },
            );
            let advice = "suspect the memory of the donor that is named above; `cheetah leave` moves away what it holds";
            return Err(Failure::new(Exit::DataLost, text).advise(advice));
        }
        if let Some(failure) = self.proved.as_ref().and_then(|proved| proved.fault(volume)) {
            return Err(failure);
        }
        if self.bytes_unchecked + self.bytes_missing + self.bytes_absent > 0 {
            let parts = [
                (self.bytes_unchecked, "of donors that did not answer, as said above"),
                (self.bytes_missing, "of fragments that nobody holds now"),
                (self.bytes_absent, "that is not here yet"),
            ];
            let parts = parts.into_iter().filter(|(bytes, _)| *bytes > 0);
            let parts: Vec<_> =
                parts.map(|(bytes, whose)| format!("{} {whose}", show_bytes(bytes))).collect();
            let text = format!("not all of volume '{volume}' was checked: not {}", parts.join(", and not "));
            let advice = match self.bytes_unchecked + self.bytes_missing {
                0 => {
                    "what is not here is read from its source; verify again when `cheetah show` says that all is here"
                }
                _ => "see `cheetah status`, and verify again when it is well",
            };
            return Err(Failure::new(Exit::Unwell, text).advise(advice));
        }
        Ok(())
    }
}
