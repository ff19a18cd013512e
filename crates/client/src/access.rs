//! Reading and writing an attached volume at any byte, as files are.
//!
//! Owns how a transfer of any length becomes requests, several under way at once. Never: policy beyond that.
//! Invariant: when a transfer returns, none of its requests is under way; of one that failed the error names
//! the first part of it that did. Tests: below; `lab/tests/client.rs`.

use crate::error::Error;
use crate::volume::Volume;
use cheetah_core::limits::REQUEST_BYTES_MAX;
use cheetah_rim::buffer::{Buffer, LARGE_BYTES};
use cheetah_rim::volume::{Completion, Op, Sink, Submission, VolumeError, VolumeHandle};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Requests of one transfer that are under way at once.
const UNDER_WAY_MAX: usize = 16;

impl Volume {
    /// Fills `bytes` with what the volume holds from `offset` on.
    ///
    /// # Errors
    /// The first part that could not be read; then nothing in `bytes` is to be relied on.
    pub async fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let len = bytes.len() as u64;
        let mut transfer = self.transfer(offset, len)?;
        let mut put = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
        for part in parts(offset, len, LARGE_BYTES as u64) {
            let (_, len) = within(offset, &part);
            let buffer = transfer.buffer(len, &mut put).await;
            transfer.submit(Op::Read, part.start, len, Some(buffer));
        }
        transfer.finish(put).await
    }

    /// Puts `bytes` into the volume from `offset` on. Acknowledged, they are with as many donors as
    /// redundancy asks for.
    ///
    /// # Errors
    /// The first part that was not written; others may be.
    pub async fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut transfer = self.transfer(offset, bytes.len() as u64)?;
        for part in parts(offset, bytes.len() as u64, LARGE_BYTES as u64) {
            let (at, len) = within(offset, &part);
            let mut buffer = transfer.buffer(len, |_, _| {}).await;
            buffer.copy_from_slice(&bytes[at..at + len]);
            transfer.submit(Op::Write, part.start, len, Some(buffer));
        }
        transfer.finish(|_, _| {}).await
    }

    /// Makes `len` bytes from `offset` on read as zeros, and gives their memory back.
    ///
    /// # Errors
    /// The first part that failed; others may be zeros.
    pub async fn zero_at(&self, offset: u64, len: u64) -> Result<(), Error> {
        let mut transfer = self.transfer(offset, len)?;
        for part in parts(offset, len, REQUEST_BYTES_MAX.into()) {
            transfer.make_room(|_, _| {}).await;
            let (_, len) = within(offset, &part);
            transfer.submit(Op::Zero { keep: false }, part.start, len, None);
        }
        transfer.finish(|_, _| {}).await
    }

    /// A barrier: fails if what was acknowledged since the last one is gone with its donors. Of a volume with
    /// write-back, what was acknowledged before it is on the disks of all who hold a part of it then.
    ///
    /// # Errors
    /// It is gone.
    pub async fn flush(&self) -> Result<(), Error> {
        let mut transfer = self.transfer(0, 0)?;
        transfer.submit(Op::Flush, 0, 0, None);
        transfer.finish(|_, _| {}).await
    }

    /// One that leaves the volume changes nothing of it.
    fn transfer(&self, offset: u64, len: u64) -> Result<Transfer<'_>, Error> {
        let end = offset.checked_add(len).filter(|end| *end <= self.size());
        end.ok_or(Error::Request { offset, why: VolumeError::OutOfRange })?;
        let (sink, done) = unbounded_channel();
        let (volume, sink) = (self.handle(), Arc::new(ToChannel(sink)));
        Ok(Transfer { volume, offset, sink, done, under_way: 0, failed: None })
    }
}

/// Requests of at most `part_bytes`, which end at multiples of it.
fn parts(offset: u64, len: u64, part_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let (mut at, end) = (offset, offset + len);
    std::iter::from_fn(move || {
        let start = at;
        at = end.min((start / part_bytes + 1) * part_bytes);
        (start < end).then_some(start..at)
    })
}

/// Where a part lies in the transfer, and how long it is.
fn within(offset: u64, part: &Range<u64>) -> (usize, usize) {
    let small = |bytes: u64| usize::try_from(bytes).expect("a transfer fits in memory");
    (small(part.start - offset), small(part.end - part.start))
}

#[derive(Debug)]
struct ToChannel(UnboundedSender<Completion>);

impl Sink for ToChannel {
    fn complete(&self, completion: Completion) {
        // A transfer that was given up wants to hear nothing.
        let _ = self.0.send(completion);
    }
}

/// The requests of one transfer.
struct Transfer<'a> {
    volume: &'a VolumeHandle,
    offset: u64,
    sink: Arc<dyn Sink>,
    done: UnboundedReceiver<Completion>,
    under_way: usize,
    failed: Option<(u64, VolumeError)>,
}

impl Transfer<'_> {
    fn submit(&mut self, op: Op, offset: u64, len: usize, buffer: Option<Buffer>) {
        self.under_way += 1;
        let len = u32::try_from(len).expect("a part");
        self.volume.submit(Submission { op, offset, len, buffer, token: offset, sink: self.sink.clone() });
    }

    /// A buffer for one request more. The volume's buffers are shared with others, and those of this transfer
    /// come back only where it takes its answers.
    async fn buffer(&mut self, len: usize, mut take: impl FnMut(usize, &[u8])) -> Buffer {
        self.make_room(&mut take).await;
        loop {
            if let Some(buffer) = self.volume.pool().try_take(len) {
                return buffer;
            }
            if self.under_way == 0 {
                return self.volume.pool().take(len).await;
            }
            self.answered(&mut take).await;
        }
    }

    async fn make_room(&mut self, mut take: impl FnMut(usize, &[u8])) {
        while self.under_way >= UNDER_WAY_MAX {
            self.answered(&mut take).await;
        }
    }

    async fn answered(&mut self, take: &mut impl FnMut(usize, &[u8])) {
        let Some(Completion { token, result, buffer, .. }) = self.done.recv().await else { return };
        self.under_way -= 1;
        match (result, buffer) {
            (Ok(()), Some(buffer)) => {
                take(usize::try_from(token - self.offset).expect("inside of the transfer"), &buffer);
            }
            (Ok(()), None) => {}
            (Err(why), _) => {
                if self.failed.is_none_or(|(first, _)| token < first) {
                    self.failed = Some((token, why));
                }
            }
        }
    }

    async fn finish(mut self, mut take: impl FnMut(usize, &[u8])) -> Result<(), Error> {
        while self.under_way > 0 {
            self.answered(&mut take).await;
        }
        match self.failed {
            Some((offset, why)) => Err(Error::Request { offset, why }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_a_transfer_and_are_no_larger_than_asked(
            offset in 0u64..5000, len in 0u64..5000, part_bytes in 1u64..2000,
        ) {
            let mut at = offset;
            for part in parts(offset, len, part_bytes) {
                prop_assert_eq!(part.start, at);
                prop_assert!(part.end > at && part.end - at <= part_bytes);
                prop_assert!(part.end == offset + len || part.end % part_bytes == 0);
                at = part.end;
            }
            prop_assert_eq!(at, offset + len);
        }
    }
}
