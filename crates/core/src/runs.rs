//! Runs: neighbouring bytes of one state.
//!
//! Owns how a range is cut into them. Never: what the state is, or who asks. Called by `donor` and by the
//! rim's arena. Tests: those of the maps that are walked.

/// Calls `each` with runs that together make up the range: (length, state). They end at multiples of `grain`
/// bytes, of which `state` knows each by its number, and neighbours differ.
#[inline]
pub fn runs(offset: u64, len: u64, grain: u64, state: impl Fn(u64) -> bool, mut each: impl FnMut(u64, bool)) {
    let end = offset + len;
    let (mut at, mut run) = (offset, (0, false));
    while at < end {
        let number = at / grain;
        let next = ((number + 1) * grain).min(end);
        let here = state(number);
        if run.0 > 0 && run.1 != here {
            each(run.0, run.1);
            run.0 = 0;
        }
        run = (run.0 + next - at, here);
        at = next;
    }
    if run.0 > 0 {
        each(run.0, run.1);
    }
}
