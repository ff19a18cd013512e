//! What is not well with donors, and what became of one that was taken out.
//! Never: how volumes do without them (`volume`).

use super::{Code, Finding, State, sentence};
use crate::api::{DonorHealth, DonorStatus, Leaving, Stranger};
use crate::map::Medium;
use crate::units::{show_bytes, show_count};

pub(super) fn of_stranger(stranger: &Stranger) -> Finding {
    let Stranger { name, host, address, pool } = stranger;
    Finding {
        code: Code::DonorOfOtherPool,
        subject: format!("donor {name}"),
        state: State::Degraded,
        what: format!(
            "Donor {name} on host {host} ({address}) asks to join, and holds memory of another pool, {pool}, which it keeps."
        ),
        advice: "If that pool was here before, start its coordinator again with its own --state, and not this one. To have the \
                 donor lend here, end it and start it again, which wipes what it holds."
            .to_owned(),
    }
}

pub(super) fn of_donor(donor: &DonorStatus, all_whole: bool) -> Option<Finding> {
    let DonorStatus { name, host, address, .. } = donor;
    let held = match (donor.bytes_held, donor.bytes_given_up) {
        (0, 0) => "No volume counts on it.".to_owned(),
        (0, bytes) if all_whole => {
            format!(
                "No volume counts on it any more: the {} that lay there are rebuilt on others.",
                show_bytes(bytes)
            )
        }
        (0, bytes) => format!(
            "Others rebuild the {} of volumes that lay there, and none counts on it any more.",
            show_bytes(bytes)
        ),
        (bytes, _) => format!("{} of volumes lay there.", show_bytes(bytes)),
    };
    let subject = format!("donor {name}");
    let finding = match donor.health {
        DonorHealth::Lost => Finding {
            code: Code::DonorGone,
            subject,
            state: State::Degraded,
            what: format!(
                "Nothing was heard of donor {name} on host {host} for {}. {held}",
                show_count(donor.silent_ms / 1000, "second")
            ),
            advice: format!(
                "If it should be there, see that host {host} runs and that {address} is reached; a donor that ended is \
                 started again with {}. If it shall stay away: nothing.",
                match donor.medium {
                    Medium::Memory => "`cheetah donate`",
                    Medium::Disk => "`cheetah donate --disk` of the same disk, and has what it held",
                }
            ),
        },
        DonorHealth::Unknown => Finding {
            code: Code::DonorUnheard,
            subject,
            state: State::Unknown,
            what: format!(
                "The coordinator has not heard of donor {name} on host {host} since it began. {held}"
            ),
            advice:
                "Wait some seconds. A donor that is there says so, and one that is not is then named as gone."
                    .to_owned(),
        },
        DonorHealth::Alive => return bad_memory(donor).or_else(|| stuck(donor)),
    };
    Some(finding)
}

/// What is wrong of what it holds is found and healed, so nothing is missing yet.
fn bad_memory(donor: &DonorStatus) -> Option<Finding> {
    let DonorStatus { name, host, wrong_blocks, bytes_held, stuck, .. } = donor;
    let left = match (bytes_held, stuck) {
        (0, _) => "It holds nothing any more.".to_owned(),
        (left, None) => format!("The {} that it holds are moved to others.", show_bytes(*left)),
        (left, Some(why)) => format!("The {} that it holds cannot go: {why}.", show_bytes(*left)),
    };
    donor.has_bad_memory.then(|| Finding {
        code: Code::DonorBadMemory,
        subject: format!("donor {name}"),
        state: State::Degraded,
        what: format!(
            "Donor {name} on host {host} had wrong blocks {} again and again, {} in all, and more than all others. None \
             was delivered. It is given nothing more. {left}",
            match donor.medium {
                Medium::Memory => "in its memory",
                Medium::Disk => "on its disk",
            },
            show_count(*wrong_blocks, "block")
        ),
        advice: format!(
            "Test the {} of host {host} before it lends again; end the donor when it holds \
             nothing. One that is started again begins anew.",
            donor.medium
        ),
    })
}

/// Nothing is missing yet, and its owner waits.
fn stuck(donor: &DonorStatus) -> Option<Finding> {
    let why = donor.stuck.as_ref()?;
    let DonorStatus { name, host, .. } = donor;
    let wants = match donor.leaving {
        true => format!("is to leave, and {} that it holds cannot go", show_bytes(donor.bytes_held)),
        false => {
            let over = donor.bytes_held.saturating_sub(donor.bytes_offered);
            format!("is to give {} back to its owner, which cannot go", show_bytes(over))
        }
    };
    Some(Finding {
        code: Code::DonorStuck,
        subject: format!("donor {name}"),
        state: State::Exposed,
        what: format!("Donor {name} on host {host} {wants}."),
        advice: sentence(why),
    })
}

/// What became of a donor that was taken out without being emptied: it does not answer, or by force.
#[must_use]
pub fn taken_out(name: &str, leaving: &Leaving) -> String {
    let Leaving { silent, bytes_to_rebuild, bytes_given_up, bytes_lost, .. } = *leaving;
    let mut said = match silent {
        true => format!("{name} does not answer: nothing could be moved off it, and it is out of the pool"),
        false => format!("{name} was taken out of the pool, and nothing was moved off it"),
    };
    if bytes_given_up > 0 {
        said.push_str(&format!(
            "; {} were taken from it before and rebuilt on others",
            show_bytes(bytes_given_up)
        ));
    }
    match (bytes_to_rebuild, bytes_lost) {
        (0, 0) if bytes_given_up == 0 => said.push_str("; no volume counted on it"),
        (0, 0) => {}
        (0, lost) => said.push_str(&format!("; {} of volumes are lost with it", show_bytes(lost))),
        (held, 0) => said.push_str(&format!("; {} that it held are rebuilt on others", show_bytes(held))),
        (held, lost) => said.push_str(&format!(
            "; {} of volumes are lost with it, and what redundancy covers of the {} that it held is rebuilt on others",
            show_bytes(lost),
            show_bytes(held)
        )),
    }
    said
}
