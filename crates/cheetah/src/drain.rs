//! How a donor is told to end: the first signal moves what it holds to others, the second leaves at once.
//!
//! Owns what a signal means for it, and what is said meanwhile. Never: the order of things, which is
//! `core::donor`'s. Invariant: a service manager's SIGTERM ends it within `DRAIN_NS`, a person's Ctrl-C when
//! nothing is lost by it.

use crate::signals::{Signals, Told};
use cheetah_core::api::AtStake;
use cheetah_core::donor::LeftWith;
use cheetah_core::limits::{DRAIN_NS, EXTENT_BYTES, SECOND_NS};
use cheetah_core::units::{show_bytes, show_count};
use cheetah_rim::control::{DonorHandle, DonorState};
use std::io::Write;
use std::time::Duration;

/// Between two lines about how far it is.
const PROGRESS: Duration = Duration::from_secs(3);
/// Until the first one: by then the coordinator has mostly said what leaving costs.
const FIRST: Duration = Duration::from_millis(200);

/// Waits for a signal and has the donor leave. `no_drain`: with the first one.
pub async fn told_to_leave(mut signals: Signals, donor: &DonorHandle, pool: &str, no_drain: bool) {
    let patient = signals.next().await == Told::ByPerson;
    if no_drain {
        return donor.terminate();
    }
    donor.leave(!patient);
    let mut state = donor.state();
    let (mut seen, mut said) = (DonorState::default(), String::new());
    let mut line = tokio::time::interval(PROGRESS);
    loop {
        tokio::select! {
            changed = state.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
                let now = state.borrow_and_update().clone();
                if now.draining.is_some() && seen.draining.is_none() {
                    line.reset_after(FIRST);
                }
                seen = now;
            }
            _ = signals.next() => {
                return donor.terminate();
            }
            _ = line.tick(), if seen.draining.is_some() && seen.extents_held > 0 => {
                // What stands in the way is said again when it is another; how far it is, each time.
                let now = progress(&seen, pool, patient);
                if now != said {
                    say(&now);
                }
                said = now;
            }
        }
    }
}

/// What went with a donor that has left with data: after the second signal, or when its time was over.
pub fn farewell(donor: &DonorHandle) {
    let state = donor.state();
    let left = state.borrow().left_with.clone();
    if let Some(left) = left {
        say(&left_with(&left));
    }
}

fn left_with(left: &LeftWith) -> String {
    let held = show_bytes(u64::from(left.extents) * EXTENT_BYTES);
    let when = match left.timed_out {
        true => format!("left after {} s", DRAIN_NS / SECOND_NS),
        false => "left at once".to_owned(),
    };
    let volumes = left.volumes.join(", ");
    let lost = at_stake(left.at_stake.as_deref(), "is");
    let told = if left.at_stake.is_some() { ", by what the coordinator last said" } else { "" };
    format!("{when} with {held} of {volumes} that nobody took over: {lost}{told}")
}

fn held(state: &DonorState) -> String {
    let volumes = state.draining.as_ref().map(|draining| draining.volumes.join(", ")).unwrap_or_default();
    format!("{} of {volumes}", show_bytes(u64::from(state.extents_held) * EXTENT_BYTES))
}

/// What going costs, in a clause; `is`: how it is said.
fn at_stake(at_stake: Option<&[AtStake]>, is: &str) -> String {
    let Some(each) = at_stake else { return format!("what redundancy does not cover {is} lost") };
    let lost = each.iter().filter(|stake| stake.bytes > 0);
    let lost: Vec<String> =
        lost.map(|stake| format!("{} of {}", show_bytes(stake.bytes), stake.volume)).collect();
    match lost.is_empty() {
        true => format!("nothing {is} lost but redundancy"),
        false => format!("{} {is} lost if all go that are leaving", lost.join(", ")),
    }
}

fn progress(state: &DonorState, pool: &str, patient: bool) -> String {
    let held = held(state);
    let answered = state.draining.as_ref().is_none_or(|draining| draining.answered);
    let what = match &state.stuck {
        _ if !answered => {
            format!("the coordinator at {pool} does not answer, so {held} cannot be moved to other donors")
        }
        _ if state.estranged.is_some() => {
            format!("the coordinator at {pool} does not let it in, so {held} cannot be moved to other donors")
        }
        Some(why) => format!("{held} cannot be moved to other donors: {why}"),
        None => format!("{held} are being moved to other donors"),
    };
    let again = if patient { "Ctrl-C again" } else { "a second signal" };
    let limit = match patient {
        true => String::new(),
        false => format!(", as it does after {} s", DRAIN_NS / SECOND_NS),
    };
    let cost = state.draining.as_ref().and_then(|draining| draining.at_stake.as_deref());
    let lost = at_stake(cost, "would be");
    let crowds: String = crowded(cost.unwrap_or_default()).iter().map(|crowd| format!("; {crowd}")).collect();
    format!("leaving: {what}; {again} leaves at once{limit} ({lost}){crowds}")
}

/// What ends up on a host that has a part of the same group.
pub fn crowded(at_stake: &[AtStake]) -> Vec<String> {
    let crowd = |stake: &AtStake| {
        let fragments = show_count(stake.slots_crowded, "fragment");
        let AtStake { volume, .. } = stake;
        format!(
            "{fragments} of {volume} can only go to a host that has one of the same group, and both go with it"
        )
    };
    at_stake.iter().filter(|stake| stake.slots_crowded > 0).map(crowd).collect()
}

/// To whoever still looks: the terminal may be gone, which is no reason to leave any sooner.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "cheetah: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_core::donor::Draining;

    fn stake(volume: &str, extents: u64) -> AtStake {
        AtStake { volume: volume.into(), bytes: extents * EXTENT_BYTES, slots_crowded: 0 }
    }

    #[test]
    fn who_waits_is_told_what_for_and_what_leaving_costs() {
        let volumes = vec!["a".into(), "b".into()];
        let draining = Draining { until: None, answered: true, volumes, at_stake: None };
        let mut state = DonorState { extents_held: 48, draining: Some(draining), ..DonorState::default() };
        assert_eq!(
            progress(&state, "http://c", true),
            "leaving: 3 GiB of a, b are being moved to other donors; Ctrl-C again leaves at once (what redundancy \
             does not cover would be lost)"
        );
        state.stuck = Some("no other donor has room".into());
        state.draining.iter_mut().for_each(|draining| draining.at_stake = Some(vec![stake("a", 0)]));
        let stuck = progress(&state, "http://c", false);
        assert!(
            stuck
                .contains("3 GiB of a, b cannot be moved to other donors: no other donor has room; a second")
        );
        assert!(stuck.ends_with("after 60 s (nothing would be lost but redundancy)"), "{stuck}");
        state.draining.iter_mut().for_each(|draining| draining.answered = false);
        assert!(progress(&state, "http://c", true).contains("http://c does not answer"));
    }

    #[test]
    fn who_left_with_data_says_what_is_lost() {
        let at_stake = Some(vec![stake("a", 16), stake("b", 0)]);
        let volumes = vec!["a".into(), "b".into()];
        let mut left = LeftWith { extents: 48, volumes, timed_out: false, at_stake };
        assert_eq!(
            left_with(&left),
            "left at once with 3 GiB of a, b that nobody took over: 1 GiB of a is lost if \
             all go that are leaving, by what the coordinator last said"
        );
        (left.timed_out, left.at_stake) = (true, None);
        assert_eq!(
            left_with(&left),
            "left after 60 s with 3 GiB of a, b that nobody took over: what redundancy does not cover is lost"
        );
    }
}
