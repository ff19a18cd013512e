//! What all that fills a volume comes to: its hashes, and its proofs if it is to be sealed.
//!
//! Owns the thread that takes the volume's contents in the source's order, from what was just read or from
//! donors, and how often it begins anew. Never: reading the source (`work`), or what follows (`sealing`).
//! Invariants: of a block that the source cannot give zeros are hashed, all of it, as nobody is given any;
//! proofs are of what donors hold, so that what was written again behind them is proved again; and a pass has
//! nothing on its way any more when the next one begins. Called by `work`. Tests: `lab/tests/open_sealed.rs`.

use super::runs::outside;
use super::work::{Filling, LOOK};
use crate::failure::Failure;
use crate::fill::{CHUNK_BYTES, Chunk, Hashes, Hashing};
use crate::proofs::{Proving, Roots};
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_rim::volume::{Completion, Op, VolumeError};
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// After this what others have to bring first is tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// Proofs are on their way to donors again when hashing is so far behind where they were not taken: more
/// than waits for their thread.
const UNSTUCK_BYTES: u64 = 64 << 20;

/// What all of it comes to.
#[derive(Clone, Debug)]
pub struct Hashed {
    pub hashes: Hashes,
    /// Of a volume that is to be sealed: what proves it, or why nothing does.
    pub roots: Option<Result<Roots, String>>,
}

impl Hashed {
    pub fn is_proved(&self) -> bool {
        self.roots.as_ref().is_some_and(Result::is_ok)
    }
}

impl Filling {
    /// Until it ends.
    pub(super) fn hash(self: &Arc<Filling>) {
        while self.begin_pass() {
            match self.pass() {
                Some(Ok(hashed)) => {
                    let mut state = self.state();
                    state.stuck = None;
                    if !state.again {
                        state.result = Some(hashed);
                    }
                }
                Some(Err(failure)) => tracing::error!("hashing failed: {}", failure.text()),
                None => continue,
            }
            self.changed.notify_all();
            let mut state = self.state();
            while !state.ends && !state.again {
                let waited = self.changed.wait_timeout(state, LOOK);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn begin_pass(&self) -> bool {
        let mut state = self.state();
        (state.hashed, state.taken, state.again, state.result) = (0, 0, false, None);
        state.kept.clear();
        !state.ends
    }

    /// From the first byte to the last; none: it ends, or is to begin anew.
    fn pass(self: &Arc<Filling>) -> Option<Result<Hashed, Failure>> {
        let (hashing, size) = (Hashing::start(), self.size());
        let mut proving = self.proves.then(|| self.prove());
        let (mut at, mut fault) = (0, None);
        while at < size {
            let Some(bytes) = self.bytes_at(at) else {
                // What it has on its way would land over what is written next.
                let _ = proving.map(Proving::finish);
                return None;
            };
            at += bytes.len() as u64;
            hashing.feed(&bytes);
            if let Some(Err(failure)) = proving.as_ref().map(|proving| self.feed(proving, &bytes, at)) {
                tracing::error!("the volume cannot be proved: {}", failure.text());
                let _ = proving.take().map(Proving::finish);
                fault = Some(failure);
            }
            let mut state = self.state();
            state.hashed = at;
            state.kept = state.kept.split_off(&at);
            state.stuck.take_if(|(then, _)| at > *then + UNSTUCK_BYTES);
        }
        let roots = fault.map(Err).or_else(|| proving.map(Proving::finish));
        let roots = roots.map(|roots| roots.map_err(|failure| failure.text()));
        Some(hashing.finish().map(|hashes| Hashed { hashes, roots }))
    }

    fn feed(&self, proving: &Proving, bytes: &Chunk, end: u64) -> Result<(), Failure> {
        proving.feed(bytes);
        let absent = if self.volume.is_encrypted() { self.state().order.bad().to_vec() } else { Vec::new() };
        proving.reached(end, &absent)
    }

    fn prove(self: &Arc<Filling>) -> Proving {
        let this = self.clone();
        Proving::start_with(&self.volume, self.size(), Arc::new(move |error| this.is_to_write_again(error)))
    }

    /// Donors come and go, and another gets what is behind the volume's end as well.
    fn is_to_write_again(&self, error: VolumeError) -> bool {
        if error == VolumeError::OutOfRange {
            return false;
        }
        let why = format!("donors do not take the proofs of what was read: {error}");
        let mut state = self.state();
        if state.stuck.as_ref().is_none_or(|(_, before)| *before != why) {
            tracing::warn!("filling waits: {why}");
        }
        state.stuck = Some((state.hashed, why));
        let goes_on = !state.ends && !state.again;
        drop(state);
        if goes_on {
            std::thread::sleep(AGAIN);
        }
        goes_on
    }

    /// What the source has there, up to the end of a chunk, once it is here; none: it ends, or the pass does.
    fn bytes_at(&self, at: u64) -> Option<Chunk> {
        let chunk = CHUNK_BYTES as u64;
        let border = ((at / chunk + 1) * chunk).min(self.size());
        loop {
            let range = {
                let mut state = self.state();
                loop {
                    if state.ends || state.again {
                        return None;
                    }
                    let end = state.kept.range(at..border).next().map_or(border, |(begin, _)| *begin);
                    if let Some(bytes) = state.kept.remove(&at) {
                        state.taken = at + bytes.len() as u64;
                        return Some(bytes);
                    }
                    if state.order.has(&(at..end)) {
                        state.taken = end;
                        break at..end;
                    }
                    let waited = self.changed.wait_timeout(state, LOOK);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            };
            if let Some(bytes) = self.read_good(&range) {
                return Some(Arc::new(bytes));
            }
            // It went with a donor, or is wrong there: then it comes again.
            self.state().taken = at;
            self.bring_again(&range);
            std::thread::sleep(AGAIN);
        }
    }

    /// What donors have of it, with zeros for what the source could not give.
    fn read_good(&self, range: &Range<u64>) -> Option<Vec<u8>> {
        debug_assert!(range.start.is_multiple_of(BLOCK_BYTES));
        let parts = outside(range, self.state().order.bad());
        let at = |byte: u64| usize::try_from(byte - range.start).expect("a chunk");
        let mut bytes = vec![0; at(range.end)];
        for part in parts {
            let Completion { result, buffer, .. } = self.request(Op::Read, part.clone(), None);
            let (Ok(()), Some(buffer)) = (result, buffer) else { return None };
            bytes[at(part.start)..at(part.end)].copy_from_slice(&buffer);
        }
        Some(bytes)
    }
}
