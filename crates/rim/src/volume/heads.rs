//! The heads of writes whose payloads are lent: they leave as pages, too, so that many writes take two system
//! calls together.
//!
//! Owns one connection's pages of them, and which are free. Never: when one may change; it is given back when
//! its write was answered. Invariant: the pages hold nothing else as long as they live, and whoever is still
//! sending from it then keeps it as it is. Called by `conn`. Tests: below, `tests/data_path.rs`.

use crate::buffer::Buffer;
use cheetah_core::layout::Scatter;
use cheetah_nbd::client::HEAD_BYTES;

const PAGES_BYTES: usize = 12 << 10;

/// A head that is lent: its place on the pages, and how much of that it takes.
#[derive(Debug)]
pub(super) struct Head {
    at: u32,
    bytes: u32,
}

impl Head {
    fn place(&self) -> Scatter {
        Scatter::whole(self.at * HEAD_BYTES as u32, self.bytes)
    }
}

#[derive(Debug)]
pub(super) struct Heads {
    page: Option<Buffer>,
    free: Vec<Head>,
}

impl Heads {
    /// As many as fit on a page; none where there is no memory for it. What finds no place is not lent.
    pub(super) fn new() -> Heads {
        let page = Buffer::standing(PAGES_BYTES).ok();
        let count = page.as_ref().map_or(0, |page| page.len() / HEAD_BYTES) as u32;
        Heads { page, free: (0..count).rev().map(|at| Head { at, bytes: 0 }).collect() }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn take(&mut self, header: &[u8]) -> Option<Head> {
        let mut head = self.free.pop()?;
        head.bytes = u32::try_from(header.len()).expect("at most HEAD_BYTES");
        let (place, page) = (head.place(), self.page.as_mut().expect("its places are free"));
        page.put(place, 0, place.len, Some(header));
        Some(head)
    }

    /// What is behind the first `skip` bytes of a head, if anything is.
    pub(super) fn piece(&self, head: &Head, skip: usize, pieces: &mut Vec<libc::iovec>) {
        let (place, page) = (head.place(), self.page.as_ref().expect("one of its places is taken"));
        let from = u32::try_from(skip).map_or(place.len, |skip| skip.min(place.len));
        page.pieces(place, from, place.len, usize::MAX, pieces);
    }

    pub(super) fn give_back(&mut self, head: Head) {
        self.free.push(head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_place_of_its_own_until_it_is_given_back() {
        let mut heads = Heads::new();
        let header = |number: u8| [number; HEAD_BYTES];
        let taken: Vec<Head> = (0..=u8::MAX).map_while(|number| heads.take(&header(number))).collect();
        assert!(taken.len() > 100 && !heads.has_room());
        let holds = |heads: &Heads, head: &Head, number: u8| {
            let mut pieces = Vec::new();
            heads.piece(head, 0, &mut pieces);
            heads.piece(head, HEAD_BYTES + 9, &mut pieces);
            let page = heads.page.as_ref().expect("there is memory");
            let place = pieces[0].iov_base as usize - page.as_ptr() as usize;
            assert_eq!((pieces.len(), pieces[0].iov_len), (1, HEAD_BYTES));
            assert_eq!(page[place..][..HEAD_BYTES], header(number));
        };
        for (number, head) in (0..).zip(&taken) {
            holds(&heads, head, number);
        }
        heads.give_back(taken.into_iter().nth(7).expect("there are more"));
        let again = heads.take(&header(200)).expect("one was given back");
        holds(&heads, &again, 200);
    }
}
