//! The heads of writes whose payloads are lent: they leave as pages, too, so that many writes take two system calls together.
//!
//! Owns one connection's page of them, and which are free. Never: when one may change; it is given back when its write was answered.
//! Invariant: the page holds nothing else as long as it lives, and whoever is still sending from it then keeps it as it is.
//! Called by `conn`. Tests: below, `tests/data_path.rs`.

use crate::buffer::Buffer;
use cheetah_nbd::RequestHeader;

const PAGE_BYTES: usize = 4 << 10;

/// A head that is lent: its place on the page.
#[derive(Debug)]
pub(super) struct Head(usize);

#[derive(Debug)]
pub(super) struct Heads {
    page: Option<Buffer>,
    free: Vec<Head>,
}

impl Heads {
    /// As many as fit on a page; none where there is no memory for it. What finds no place is not lent.
    pub(super) fn new() -> Heads {
        let page = Buffer::standing(PAGE_BYTES).ok();
        let count = page.as_ref().map_or(0, |page| page.len() / RequestHeader::BYTES);
        Heads { page, free: (0..count).rev().map(Head).collect() }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn take(&mut self, header: &[u8; RequestHeader::BYTES]) -> Option<Head> {
        let head = self.free.pop()?;
        let page = self.page.as_mut().expect("its places are free");
        page[head.0 * RequestHeader::BYTES..][..RequestHeader::BYTES].copy_from_slice(header);
        Some(head)
    }

    pub(super) fn bytes(&self, head: &Head) -> &[u8] {
        let page = self.page.as_ref().expect("one of its places is taken");
        &page[head.0 * RequestHeader::BYTES..][..RequestHeader::BYTES]
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
        let header = |number: usize| [u8::try_from(number).expect("few"); RequestHeader::BYTES];
        let taken: Vec<Head> = (0..).map_while(|number| heads.take(&header(number))).collect();
        assert!(taken.len() > 100 && !heads.has_room());
        for (number, head) in taken.iter().enumerate() {
            assert_eq!(heads.bytes(head), header(number));
        }
        taken.into_iter().nth(7).map(|head| heads.give_back(head)).expect("there are more");
        let again = heads.take(&header(200)).expect("one was given back");
        assert_eq!(heads.bytes(&again), header(200));
    }
}
