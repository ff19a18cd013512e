//! How a donor is told to end: the first signal moves what it holds to others, the second leaves at once.
//!
//! Owns the signals and what is said meanwhile. Never: the order of things, which is `core::donor`'s. Invariant: a
//! service manager's SIGTERM ends it within `DRAIN_NS`, a person's Ctrl-C when nothing is lost by it.

use crate::failure::Failure;
use cheetah_core::limits::{DRAIN_NS, EXTENT_BYTES, SECOND_NS};
use cheetah_core::units::show_bytes;
use cheetah_rim::control::{DonorHandle, DonorState};
use std::io::Write;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Between two lines about how far it is.
const PROGRESS: Duration = Duration::from_secs(3);

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let listen = |kind| {
            signal(kind)
                .map_err(|e| Failure::failed(format!("this process gets no signals from the kernel: {e}")))
        };
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Whether it was a person at a terminal: someone who sees what is said, and can ask again.
    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => false,
            _ = self.hangup.recv() => false,
            _ = self.interrupt.recv() => true,
        }
    }
}

/// Waits for a signal and has the donor leave; resolves when it leaves at once. `no_drain`: with the first one.
pub async fn told_to_leave(donor: &DonorHandle, pool: &str, no_drain: bool) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let patient = signals.next().await;
    if no_drain {
        donor.terminate();
        return Ok(());
    }
    donor.leave(!patient);
    let mut state = donor.state();
    let mut seen = DonorState::default();
    let mut line = tokio::time::interval(PROGRESS);
    loop {
        tokio::select! {
            changed = state.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
                let now = state.borrow_and_update().clone();
                if now.draining.is_none() && seen.draining.is_some() && seen.extents_held > 0 {
                    let limit = Duration::from_nanos(DRAIN_NS).as_secs();
                    say(&format!("leaving after {limit} s with {} that nobody took over", held(&seen)));
                }
                if now.draining.is_some() && seen.draining.is_none() {
                    line.reset_immediately();
                }
                seen = now;
            }
            _ = signals.next() => {
                donor.terminate();
                return Ok(());
            }
            _ = line.tick(), if seen.draining.is_some() && seen.extents_held > 0 => {
                say(&progress(&seen, pool, patient));
            }
        }
    }
}

fn held(state: &DonorState) -> String {
    let volumes = state.draining.as_ref().map(|draining| draining.volumes.join(", ")).unwrap_or_default();
    format!("{} of {volumes}", show_bytes(u64::from(state.extents_held) * EXTENT_BYTES))
}

fn progress(state: &DonorState, pool: &str, patient: bool) -> String {
    let held = held(state);
    let answered = state.draining.as_ref().is_none_or(|draining| draining.answered);
    let what = match &state.stuck {
        _ if !answered => {
            format!("the coordinator at {pool} does not answer, so {held} cannot be moved to other donors")
        }
        Some(why) => format!("{held} cannot be moved to other donors: {why}"),
        None => format!("{held} are being moved to other donors"),
    };
    let again = if patient { "Ctrl-C again" } else { "a second signal" };
    let limit = match patient {
        true => String::new(),
        false => format!(", as it does after {} s", DRAIN_NS / SECOND_NS),
    };
    let lost = show_bytes(u64::from(state.extents_held) * EXTENT_BYTES);
    format!("leaving: {what}; {again} leaves at once{limit} (up to {lost} would be lost)")
}

/// To whoever still looks: the terminal may be gone, which is no reason to leave any sooner.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "cheetah: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_core::donor::Draining;

    #[test]
    fn who_waits_is_told_what_for_and_what_leaving_costs() {
        let draining = Draining { until: None, answered: true, volumes: vec!["a".into(), "b".into()] };
        let mut state = DonorState { extents_held: 48, draining: Some(draining), ..DonorState::default() };
        assert_eq!(
            progress(&state, "http://c", true),
            "leaving: 3 GiB of a, b are being moved to other donors; Ctrl-C again leaves at once (up to 3 GiB would be lost)"
        );
        state.stuck = Some("no other donor has room".into());
        let stuck = progress(&state, "http://c", false);
        assert!(
            stuck
                .contains("3 GiB of a, b cannot be moved to other donors: no other donor has room; a second")
        );
        assert!(stuck.contains("after 60 s"), "{stuck}");
        state.draining.iter_mut().for_each(|draining| draining.answered = false);
        assert!(progress(&state, "http://c", true).contains("http://c does not answer"));
    }
}
