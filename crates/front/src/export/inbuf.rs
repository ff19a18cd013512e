//! The receive buffer of one connection: small while it is idle, large while requests come in batches.
//!
//! Owns: the bytes received and not yet taken. Never: more than `RECEIVE_BYTES_MAX`. Called by `connection`.
//! Tests: below.

use cheetah_rim::memory::wipe;
use std::ops::Range;

/// What an idle connection costs.
pub(super) const RECEIVE_BYTES_MIN: usize = 4 << 10;
pub(super) const RECEIVE_BYTES_MAX: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct InBuf {
    memory: Box<[u8]>,
    live: Range<usize>,
}

impl Drop for InBuf {
    /// What a client sent is nowhere when it is gone.
    fn drop(&mut self) {
        wipe(std::mem::take(&mut self.memory).into_vec());
    }
}

impl InBuf {
    pub(super) fn new() -> InBuf {
        InBuf { memory: vec![0; RECEIVE_BYTES_MIN].into(), live: 0..0 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.live.clone()]
    }

    pub(super) fn consume(&mut self, count: usize) {
        assert!(count <= self.live.len(), "only what is there is taken");
        self.live.start += count;
        if self.live.is_empty() {
            self.live = 0..0;
        }
    }

    /// Where to receive at least one byte, at most `limit`. What is there moves to the front if it must.
    pub(super) fn space(&mut self, limit: usize) -> &mut [u8] {
        if self.live.start > 0 && self.live.end + limit.min(RECEIVE_BYTES_MIN) > self.memory.len() {
            self.memory.copy_within(self.live.clone(), 0);
            self.live = 0..self.live.len();
        }
        let end = self.memory.len().min(self.live.end.saturating_add(limit));
        &mut self.memory[self.live.end..end]
    }

    /// `count` bytes came into `space`. A buffer that came full is doubled: there is more where that came
    /// from.
    pub(super) fn received(&mut self, count: usize) {
        self.live.end += count;
        assert!(self.live.end <= self.memory.len(), "received into the space given");
        if self.live.len() == self.memory.len() {
            self.resize(self.memory.len() * 2);
        }
    }

    /// Makes room for a request of `bytes` with its payload.
    pub(super) fn ensure(&mut self, bytes: usize) {
        if self.memory.len() < bytes {
            self.resize(bytes.next_power_of_two());
        }
    }

    pub(super) fn is_large(&self) -> bool {
        self.memory.len() > RECEIVE_BYTES_MIN
    }

    /// Back to the size of an idle one, if what is there fits.
    pub(super) fn shrink(&mut self) {
        if self.is_large() && self.live.len() < RECEIVE_BYTES_MIN {
            self.resize(RECEIVE_BYTES_MIN);
        }
    }

    fn resize(&mut self, bytes: usize) {
        let bytes = bytes.min(RECEIVE_BYTES_MAX);
        if bytes == self.memory.len() {
            return;
        }
        let mut memory: Box<[u8]> = vec![0; bytes].into();
        memory[..self.live.len()].copy_from_slice(self.bytes());
        self.live = 0..self.live.len();
        wipe(std::mem::replace(&mut self.memory, memory).into_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(buffer: &mut InBuf, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = buffer.space(usize::MAX);
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            buffer.received(count);
            rest = &rest[count..];
        }
    }

    #[test]
    fn it_grows_with_what_comes_and_shrinks_when_idle() {
        let mut buffer = InBuf::new();
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(100_000).collect();
        receive(&mut buffer, &bytes);
        assert_eq!(buffer.bytes(), bytes);
        assert!(buffer.is_large());
        buffer.consume(99_000);
        buffer.shrink();
        assert!(!buffer.is_large());
        assert_eq!(buffer.bytes(), &bytes[99_000..]);
        buffer.consume(1000);
        assert!(buffer.bytes().is_empty() && !buffer.space(28).is_empty());
        assert_eq!(buffer.space(28).len(), 28);
    }

    #[test]
    fn it_never_outgrows_its_limit_and_there_is_room_for_a_request() {
        let mut buffer = InBuf::new();
        receive(&mut buffer, &vec![1; RECEIVE_BYTES_MAX - 1]);
        assert_eq!(buffer.memory.len(), RECEIVE_BYTES_MAX);
        buffer.consume(RECEIVE_BYTES_MAX - 10);
        assert!(buffer.space(usize::MAX).len() >= RECEIVE_BYTES_MIN);
        assert_eq!(buffer.bytes().len(), 9);
        buffer.shrink();
        buffer.ensure(20_000);
        assert_eq!(buffer.memory.len(), 32 << 10);
    }
}
