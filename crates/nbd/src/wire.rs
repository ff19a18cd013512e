//! Big-endian fields out of a slice, each checked.
//! Never: an index that the peer chose without a check; a short slice is `None`, never a panic.

/// Takes fields off the front of a message.
#[derive(Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    /// A 32-bit length and that many bytes.
    pub(crate) fn counted(&mut self) -> Option<&'a [u8]> {
        let count = usize::try_from(self.u32()?).ok()?;
        self.bytes(count)
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Copies `part` to `out[at..]` and returns where it ended; `N` and the parts are constants of the caller.
pub(crate) const fn put<const N: usize, const M: usize>(
    out: &mut [u8; N],
    at: usize,
    part: [u8; M],
) -> usize {
    let mut i = 0;
    while i < M {
        out[at + i] = part[i];
        i += 1;
    }
    at + M
}

/// The length of a slice the caller bounded by a limit far below 4 GiB.
pub(crate) fn len32(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// The longest prefix of `text` that is at most `bytes_max` long and still UTF-8.
pub(crate) fn prefix(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Text of a peer for people: at most `bytes_max` bytes of it, what is not UTF-8 replaced.
pub(crate) fn lossy(bytes: &[u8], bytes_max: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    prefix(&text, bytes_max).to_owned()
}

/// Moves up to `want - buffer.len()` bytes over; returns how many.
pub(crate) fn fill(buffer: &mut Vec<u8>, want: usize, from: &[u8]) -> usize {
    let taken = want.saturating_sub(buffer.len()).min(from.len());
    buffer.extend_from_slice(&from[..taken]);
    taken
}
