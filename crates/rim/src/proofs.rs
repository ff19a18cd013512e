//! The hashing of sealed volumes: proofs made of what a volume holds, and blocks checked against them.
//!
//! Owns BLAKE3's subtrees, and the pages that a reader has. Of an encrypted volume the proof of a block is
//! BLAKE3 of its ciphertext, nonce and authentication tag, so that who has no key proves all of it as well.
//! Never: where pages lie (`core::proofs`), or how they are fetched (`volume::proving`). Invariant: a page
//! counts as known only when it came to the proof that the page above has of it, and the topmost to the root;
//! so whatever is known follows from the root alone. Tests: below, `lab/tests/seal.rs`.

use crate::auth::{Auth, NONE};
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::proofs::{Block, PROOF_BYTES, PROOFS_PER_PAGE, Page, Root, Tree};
use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Pages of the lowest level that a reader keeps: of 4 GiB of a volume, in 64 MiB.
const PAGES_MAX: usize = 8192;
/// What a builder hands out at once, where pages follow each other.
const RUN_BYTES: usize = 1 << 20;

/// The chaining value of a subtree, or the root where that is all there is.
pub type Proof = [u8; PROOF_BYTES as usize];

/// Of a block of an encrypted volume that was never written.
static OF_NOTHING: LazyLock<Proof> = LazyLock::new(|| hash_of_ciphertext(&[0; BLOCK], &NONE));

/// The proof of one block of ciphertext, with what is kept beside it.
pub(crate) fn proof_of_ciphertext(bytes: &[u8], auth: &Auth) -> Proof {
    if *auth == NONE && bytes.iter().all(|byte| *byte == 0) {
        return *OF_NOTHING;
    }
    hash_of_ciphertext(bytes, auth)
}

fn hash_of_ciphertext(bytes: &[u8], auth: &Auth) -> Proof {
    *blake3::Hasher::new().update(bytes).update(auth).finalize().as_bytes()
}

/// The proof of a block of an encrypted volume that was made zeros as a whole.
pub(crate) fn proof_of_nothing() -> Proof {
    *OF_NOTHING
}

/// The proof of the bytes of one block, or of a run of them that is a subtree.
fn proof_of(tree: Tree, offset: u64, bytes: &[u8]) -> Proof {
    if tree.blocks() == 1 {
        return *blake3::hash(bytes).as_bytes();
    }
    blake3::Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root()
}

/// What neighbours come to: the left subtree is the largest power of two that leaves something.
fn merged(proofs: &[Proof]) -> Proof {
    match proofs {
        [] => [0; 32],
        [one] => *one,
        all => {
            let (left, right) = all.split_at(all.len().next_power_of_two() / 2);
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

/// What the topmost page comes to.
fn root_of(proofs: &[Proof]) -> Root {
    match proofs {
        [] => Root([0; 32]),
        // Of a volume of one block its proof is the hash itself.
        [one] => Root(*one),
        all => {
            let (left, right) = all.split_at(all.len().next_power_of_two() / 2);
            Root(*merge_subtrees_root(&merged(left), &merged(right), Mode::Hash).as_bytes())
        }
    }
}

fn proofs_in(page: &[u8], count: u32) -> Vec<Proof> {
    page.as_chunks::<{ PROOF_BYTES as usize }>().0.iter().take(count as usize).copied().collect()
}

/// Makes the proofs of a volume whose bytes it is fed in order, or the proofs of its blocks.
#[derive(Debug)]
pub struct Builder {
    tree: Tree,
    fed: u64,
    /// What is there of a block.
    rest: Vec<u8>,
    /// The last page of each level, as far as it is there, and its number.
    levels: Vec<(u64, Vec<Proof>)>,
    ready: Vec<(u64, Vec<u8>)>,
    root: Option<Root>,
}

impl Builder {
    /// For a volume with this tree.
    #[must_use]
    pub fn new(tree: Tree) -> Builder {
        let levels = (0..tree.levels()).map(|_| (0, Vec::with_capacity(PROOFS_PER_PAGE as usize))).collect();
        Builder { tree, fed: 0, rest: Vec::with_capacity(BLOCK), levels, ready: Vec::new(), root: None }
    }

    /// The next bytes. What is behind the volume's end is passed over.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        let left = self.tree.size() - self.fed - self.rest.len() as u64;
        bytes = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        while !bytes.is_empty() {
            let wanted = usize::try_from((self.tree.size() - self.fed).min(BLOCK_BYTES)).unwrap_or(BLOCK);
            let (now, later) = bytes.split_at(bytes.len().min(wanted - self.rest.len()));
            bytes = later;
            if now.len() == wanted {
                self.block(now);
                continue;
            }
            self.rest.extend_from_slice(now);
            if self.rest.len() == wanted {
                let rest = std::mem::take(&mut self.rest);
                self.block(&rest);
                self.rest = rest;
                self.rest.clear();
            }
        }
    }

    /// The proofs of the next blocks, of an encrypted volume.
    pub fn feed_proofs(&mut self, proofs: &[Proof]) {
        for proof in proofs {
            self.push(0, *proof);
        }
    }

    fn block(&mut self, bytes: &[u8]) {
        let proof = proof_of(self.tree, self.fed, bytes);
        self.fed += bytes.len() as u64;
        self.push(0, proof);
    }

    fn push(&mut self, level: u32, proof: Proof) {
        let (index, proofs) = &mut self.levels[level as usize];
        proofs.push(proof);
        let page = Page { level, index: *index };
        if proofs.len() < self.tree.proofs_of(page) as usize {
            return;
        }
        let proofs = std::mem::take(proofs);
        *index += 1;
        let mut bytes: Vec<u8> = proofs.concat();
        bytes.resize(BLOCK, 0);
        let offset = self.tree.offset(page);
        match self.ready.last_mut() {
            Some((at, run)) if *at + run.len() as u64 == offset && run.len() < RUN_BYTES => run.extend(bytes),
            _ => self.ready.push((offset, bytes)),
        }
        if page == self.tree.top() {
            self.root = Some(root_of(&proofs));
        } else {
            self.push(level + 1, merged(&proofs));
        }
    }

    /// Pages that are to be written behind the volume's end: where, and what. Not before there are many, or
    /// all.
    pub fn take_pages(&mut self) -> Vec<(u64, Vec<u8>)> {
        let is_worth_it = self.root.is_some() || self.ready.iter().any(|(_, run)| run.len() >= RUN_BYTES);
        if is_worth_it { std::mem::take(&mut self.ready) } else { Vec::new() }
    }

    /// The hash of all, when all was fed.
    #[must_use]
    pub fn root(&self) -> Option<Root> {
        self.root
    }
}

/// What a reader knows of the proofs of a sealed volume.
#[derive(Debug)]
pub struct Pages {
    tree: Tree,
    root: Root,
    /// Its blocks are ciphertext.
    encrypted: bool,
    known: HashMap<Page, Known>,
    /// Of the lowest level, in the order in which they came.
    order: VecDeque<Page>,
}

/// A page, and what runs of 2, 4, 8 and more of its proofs come to.
#[derive(Debug)]
struct Known {
    runs: Vec<Vec<Proof>>,
}

impl Known {
    fn new(proofs: Vec<Proof>) -> Known {
        let mut runs = vec![proofs];
        while let Some(last) = runs.last().filter(|last| last.len() >= 2) {
            let (pairs, _) = last.as_chunks::<2>();
            let next = pairs.iter().map(|[l, r]| merge_subtrees_non_root(l, r, Mode::Hash)).collect();
            runs.push(next);
        }
        Known { runs }
    }
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// So many blocks are not what they are to be.
    Wrong(u32),
    /// This page is needed first; what proves it is known.
    Needs(Page),
}

impl Pages {
    /// Of a volume with this tree, sealed as this.
    #[must_use]
    pub fn new(tree: Tree, root: Root) -> Pages {
        Pages { tree, root, encrypted: false, known: HashMap::new(), order: VecDeque::new() }
    }

    /// Of one that is encrypted.
    #[must_use]
    pub fn of_ciphertext(tree: Tree, root: Root) -> Pages {
        Pages { encrypted: true, ..Pages::new(tree, root) }
    }

    /// The shape of its tree.
    #[must_use]
    pub fn tree(&self) -> Tree {
        self.tree
    }

    /// The page that has to be there first, if any, before this block can be checked.
    #[must_use]
    pub fn missing(&self, block: u64) -> Option<Page> {
        let mut above = match self.tree.block(block)? {
            Block::Data { .. } => Some(self.tree.proof_of_block(block)),
            Block::Proofs(page) => self.tree.proof_of_page(page),
        };
        let mut missing = None;
        while let Some(place) = above.filter(|place| !self.known.contains_key(&place.page)) {
            missing = Some(place.page);
            above = self.tree.proof_of_page(place.page);
        }
        missing
    }

    /// The page that has to be there first before any of these blocks can be checked.
    #[must_use]
    pub fn missing_of(&self, block: u64, blocks: u64) -> Option<Page> {
        let (mut at, end) = (block, block + blocks);
        while at < end {
            if let Some(page) = self.missing(at) {
                return Some(page);
            }
            // Blocks of data that one page proves; pages one by one.
            at = match at < self.tree.blocks() {
                true => ((at / PROOFS_PER_PAGE + 1) * PROOFS_PER_PAGE).min(self.tree.blocks()),
                false => at + 1,
            };
        }
        None
    }

    /// Checks whole blocks that follow each other, from this one on. `auths`: what is kept beside each, of
    /// an encrypted volume.
    #[must_use]
    pub(crate) fn check(&self, block: u64, bytes: &[u8], auths: &[Auth]) -> Checked {
        let (mut at, mut wrong) = (block, 0);
        let end = block + (bytes.len() / BLOCK) as u64;
        while at < end {
            if let Some(page) = self.missing(at) {
                return Checked::Needs(page);
            }
            let here = &bytes[index(at - block) * BLOCK..];
            let run = self.run(at, end);
            if run > 1 && self.is_right_run(at, run, here) {
                at += run;
                continue;
            }
            for nth in 0..run {
                let here = &here[index(nth) * BLOCK..][..BLOCK];
                let auth = auths.get(index(at + nth - block)).unwrap_or(&NONE);
                wrong += u32::from(!self.is_right(at + nth, here, auth));
            }
            at += run;
        }
        Checked::Wrong(wrong)
    }

    /// How many blocks from here on are a subtree inside one page, all of them to be checked.
    fn run(&self, at: u64, end: u64) -> u64 {
        let end = end.min(self.tree.blocks());
        if at >= end || self.encrypted {
            return 1;
        }
        let left = end - at;
        let aligned = 1 << at.trailing_zeros().min(PROOFS_PER_PAGE.trailing_zeros());
        let fits = 1 << left.ilog2();
        aligned.min(fits)
    }

    fn is_right_run(&self, at: u64, run: u64, bytes: &[u8]) -> bool {
        let place = self.tree.proof_of_block(at);
        let offset = at * BLOCK_BYTES;
        let len = (run * BLOCK_BYTES).min(self.tree.size() - offset);
        let known = self.known.get(&place.page).and_then(|known| known.runs.get(run.ilog2() as usize));
        let proof = known.and_then(|proofs| proofs.get(place.nth as usize / index(run)));
        proof.is_some_and(|proof| *proof == proof_of(self.tree, offset, &bytes[..index(len)]))
    }

    fn is_right(&self, block: u64, bytes: &[u8], auth: &Auth) -> bool {
        match self.tree.block(block) {
            Some(Block::Data { bytes: len }) => {
                let proof = match self.encrypted {
                    true => proof_of_ciphertext(bytes, auth),
                    false => proof_of(self.tree, block * BLOCK_BYTES, &bytes[..len as usize]),
                };
                let place = self.tree.proof_of_block(block);
                // What stands behind the end of the volume is given to nobody.
                self.proof(place.page, place.nth) == Some(proof)
            }
            // Pages are no secret, and have nothing beside them.
            Some(Block::Proofs(page)) => *auth == NONE && self.is_right_page(page, bytes),
            // Behind all that was sealed nobody reads.
            None => true,
        }
    }

    fn is_right_page(&self, page: Page, bytes: &[u8]) -> bool {
        let proofs = proofs_in(bytes, self.tree.proofs_of(page));
        match self.tree.proof_of_page(page) {
            None => root_of(&proofs) == self.root,
            Some(place) => self.proof(place.page, place.nth) == Some(merged(&proofs)),
        }
    }

    fn proof(&self, page: Page, nth: u32) -> Option<Proof> {
        self.known.get(&page)?.runs.first()?.get(nth as usize).copied()
    }

    /// Takes a page that came; false when it is not what it is to be.
    pub fn learn(&mut self, page: Page, bytes: &[u8]) -> bool {
        if !self.is_right_page(page, bytes) {
            return false;
        }
        let proofs = proofs_in(bytes, self.tree.proofs_of(page));
        if self.known.insert(page, Known::new(proofs)).is_none() && page.level == 0 {
            self.order.push_back(page);
        }
        while self.order.len() > PAGES_MAX {
            let oldest = self.order.pop_front();
            oldest.map(|page| self.known.remove(&page));
        }
        true
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::AUTH_BYTES;

    fn content(size: u64) -> Vec<u8> {
        (0..size).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    /// The volume with its proofs behind it, and the root.
    fn sealed(size: u64) -> (Vec<u8>, Root) {
        let bytes = content(size);
        let mut builder = Builder::new(Tree::new(size));
        let (mut pages, mut at) = (Vec::new(), 0);
        for step in [1, 4095, 70_000, 5].into_iter().cycle() {
            let end = bytes.len().min(at + step);
            builder.feed(&bytes[at..end]);
            pages.extend(builder.take_pages());
            at = end;
            if at == bytes.len() {
                break;
            }
        }
        let tree = Tree::new(size);
        let mut all = bytes;
        all.resize(index(tree.end()), 0);
        for (offset, page) in pages {
            all[index(offset)..][..page.len()].copy_from_slice(&page);
        }
        (all, builder.root().expect("all was fed"))
    }

    fn learn_all(pages: &mut Pages, all: &[u8]) {
        for block in 0..(all.len() / BLOCK) as u64 {
            while let Some(page) = pages.missing(block) {
                let at = index(pages.tree().offset(page));
                assert!(pages.learn(page, &all[at..at + BLOCK]), "{page:?}");
            }
        }
    }

    const SIZES: [u64; 9] =
        [1, 1024, 4096, 4097, 8192, 40_961, 128 * 4096, 128 * 4096 + 1, 129 * 128 * 4096 + 1025];

    /// The root is what other tools compute.
    #[test]
    fn the_root_is_blake3_of_the_volume() {
        for size in SIZES {
            let (_, root) = sealed(size);
            assert_eq!(root.0, *blake3::hash(&content(size)).as_bytes(), "{size}");
        }
    }

    #[test]
    fn what_was_sealed_fits_and_every_changed_block_is_found() {
        for size in SIZES {
            let (mut all, root) = sealed(size);
            let mut pages = Pages::new(Tree::new(size), root);
            learn_all(&mut pages, &all);
            let blocks = (all.len() / BLOCK) as u64;
            assert_eq!(pages.check(0, &all, &[]), Checked::Wrong(0), "{size}");
            for block in (0..blocks).step_by(37).chain([blocks - 1]) {
                let at = index(block) * BLOCK;
                all[at] ^= 1;
                assert_eq!(pages.check(0, &all, &[]), Checked::Wrong(1), "{size}: block {block}");
                assert_eq!(
                    pages.check(block, &all[at..at + BLOCK], &[]),
                    Checked::Wrong(1),
                    "{size}: {block}"
                );
                all[at] ^= 1;
            }
        }
    }

    /// A block at another place, and a page that its donor made up, are no better than a changed one.
    #[test]
    fn nothing_is_believed_that_does_not_follow_from_the_root() {
        let size = 300 * 4096;
        let (all, root) = sealed(size);
        let mut pages = Pages::new(Tree::new(size), root);
        let Some(top) = pages.missing(0) else { panic!("nothing is known") };
        assert_eq!(pages.check(0, &all[..BLOCK], &[]), Checked::Needs(top));
        let at = index(pages.tree().offset(top));
        let mut forged = all[at..at + BLOCK].to_vec();
        forged[..32].fill(7);
        assert!(!pages.learn(top, &forged));
        learn_all(&mut pages, &all);
        assert_eq!(pages.check(1, &all[..BLOCK], &[]), Checked::Wrong(1), "block 0 in the place of block 1");
        let other = Page { level: 0, index: 1 };
        let at = index(pages.tree().offset(Page { level: 0, index: 0 }));
        assert!(!pages.learn(other, &all[at..at + BLOCK]));
    }

    /// Blocks of ciphertext, with what is kept beside each, and the proofs behind them.
    fn sealed_ciphertext(blocks: u64) -> (Vec<u8>, Vec<Auth>, Tree, Root) {
        let tree = Tree::new(blocks * BLOCK_BYTES);
        let mut all = content(tree.size());
        let mut auths: Vec<Auth> = (0..blocks).map(|block| [(block % 200) as u8 + 1; AUTH_BYTES]).collect();
        // One that was never written.
        all[BLOCK..2 * BLOCK].fill(0);
        auths[1] = NONE;
        let mut builder = Builder::new(tree);
        for (block, auth) in all.chunks(BLOCK).zip(&auths) {
            builder.feed_proofs(&[proof_of_ciphertext(block, auth)]);
        }
        let pages = builder.take_pages();
        all.resize(index(tree.end()), 0);
        auths.resize(all.len() / BLOCK, NONE);
        for (offset, page) in pages {
            all[index(offset)..][..page.len()].copy_from_slice(&page);
        }
        (all, auths, tree, builder.root().expect("all was fed"))
    }

    #[test]
    fn of_ciphertext_its_bytes_and_what_is_kept_beside_them_are_proved() {
        for blocks in [2, 128, 129, 300] {
            let (mut all, mut auths, tree, root) = sealed_ciphertext(blocks);
            let mut pages = Pages::of_ciphertext(tree, root);
            learn_all(&mut pages, &all);
            assert_eq!(pages.check(0, &all, &auths), Checked::Wrong(0), "{blocks}");
            assert_eq!(
                pages.check(1, &all[BLOCK..2 * BLOCK], &[]),
                Checked::Wrong(0),
                "nothing is beside it"
            );
            for block in (0..all.len() / BLOCK).step_by(7) {
                all[block * BLOCK + 9] ^= 1;
                assert_eq!(pages.check(0, &all, &auths), Checked::Wrong(1), "{blocks}: block {block}");
                all[block * BLOCK + 9] ^= 1;
                auths[block][27] ^= 1;
                assert_eq!(pages.check(0, &all, &auths), Checked::Wrong(1), "{blocks}: tag of {block}");
                auths[block][27] ^= 1;
            }
        }
    }

    /// What `docs/FORMATS.md` says, computed by itself.
    #[test]
    fn the_root_of_ciphertext_is_as_it_is_documented() {
        let (all, auths, _, root) = sealed_ciphertext(2);
        let leaf = |at: usize| *blake3::hash(&[&all[at * BLOCK..][..BLOCK], &auths[at]].concat()).as_bytes();
        assert_eq!(root.0, *merge_subtrees_root(&leaf(0), &leaf(1), Mode::Hash).as_bytes());
    }
}
