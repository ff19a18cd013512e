//! Whether a volume that was filled is sealed, and as what.
//!
//! Owns the conditions, which are those of a load, and sealing by reading where what was proved on the way is
//! of no use. Never: proofs (`hashing`), or telling the pool that all is here (`super`). Invariant: what is
//! sealed is what donors confirmed, of a source that did not change and is what it was said to be. Called by
//! `super`. Tests: `lab/tests/open_sealed.rs`.

use super::hashing::Hashed;
use crate::claims::Claimed;
use crate::control::{Asked, Word};
use crate::expected::{self, Expected, Hash};
use crate::seal;
use crate::signals::Signals;
use cheetah_core::content::{ByteRange, Check, Sealing};
use cheetah_rim::control::Client;
use cheetah_source::Source;
use tokio::io::AsyncWriteExt;

/// What becomes of the volume when all of it is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    Seals,
    /// It is to be sealed, and the pool had no room for what proves it.
    HasNoRoom,
    StaysOpen,
}

/// What came of filling it.
pub(super) struct Filled<'a> {
    pub(super) source: &'a dyn Source,
    pub(super) volume: &'a str,
    pub(super) hashed: &'a Hashed,
    pub(super) check: Check,
    pub(super) changed: Option<&'a String>,
    pub(super) unreadable: &'a [ByteRange],
    /// Hashes that it was to have, and who says so.
    pub(super) expected: &'a [(Hash, String)],
}

#[derive(Debug)]
pub(super) enum Verdict {
    Sealed(Box<Sealing>),
    /// Why not. `mends`: when it is read again it may be.
    Unsealed {
        why: String,
        mends: bool,
    },
    StaysOpen,
}

impl Filled<'_> {
    fn compared(&self) -> (Option<Claimed>, Vec<Expected>) {
        let hashes = &self.hashed.hashes;
        let claims = Claimed::new(self.source.claims(), hashes);
        (claims, expected::compared(self.expected.to_vec(), hashes))
    }

    /// What is wrong with what is here, in sentences.
    pub(super) fn faults(&self) -> Vec<String> {
        let Filled { volume, hashed: Hashed { hashes, .. }, unreadable, .. } = self;
        let file = self.source.path().display().to_string();
        let (claims, expected) = self.compared();
        let changed = self
            .changed
            .map(|how| format!("{file} changed while volume '{volume}' was filled from it: {how}"));
        let claims = claims.and_then(|claims| claims.fault(hashes, &file, volume, unreadable));
        changed
            .into_iter()
            .chain(expected::fault(&expected, &file, volume, unreadable))
            .chain(claims)
            .collect()
    }

    pub(super) fn verdict(&self, plan: Plan) -> Verdict {
        if plan == Plan::StaysOpen {
            return Verdict::StaysOpen;
        }
        if let Some(why) = self.never() {
            return Verdict::Unsealed { why, mends: false };
        }
        let not_now = |why: String| Verdict::Unsealed { why, mends: true };
        match &self.hashed.roots {
            _ if plan == Plan::HasNoRoom => not_now(seal::takes_room(self.source.size())),
            _ if self.check != Check::Same => {
                not_now("not all donors said that they hold what was written".to_owned())
            }
            Some(Ok(roots)) => Verdict::Sealed(Box::new(roots.sealing(&self.hashed.hashes, false))),
            Some(Err(why)) => not_now(why.clone()),
            None => not_now("it was not proved".to_owned()),
        }
    }

    /// Why it must not be sealed as what it is.
    fn never(&self) -> Option<String> {
        if self.check == Check::Differs {
            return Some("donors hold something else than was read of the source".to_owned());
        }
        if let Some(how) = self.changed {
            return Some(format!("the source changed while it was read: {how}"));
        }
        let (claims, expected) = self.compared();
        let claimed = claims.iter().flat_map(|claims| claims.differing(&self.hashed.hashes));
        let claimed = claimed.map(|name| format!("the {name} that the image claims"));
        let differing: Vec<String> = claimed.chain(expected::differing(&expected)).collect();
        (!differing.is_empty()).then(|| format!("the disk does not have {}", differing.join(" nor ")))
    }
}

/// Seals a volume that nobody fills any more, if that can be done now, and unless it is told to end.
pub(super) async fn by_reading(pool: &Client, volume: &str, asked: &mut Asked, signals: &mut Signals) {
    let told = async {
        loop {
            tokio::select! {
                _ = signals.next() => return,
                (word, mut stream) = asked.next_word() => {
                    let _ = stream.shutdown().await;
                    if matches!(word, None | Some(Word::Stop)) {
                        return;
                    }
                }
            }
        }
    };
    match seal::seal_by_reading(pool, volume, told).await {
        Ok(report) => sealed(volume, &report.blake3.to_string()),
        Err(failure) => tracing::error!("{}", failure.text()),
    }
}

/// For the filler's log.
pub(super) fn sealed(volume: &str, blake3: &str) {
    tracing::info!(target: "journal", event = "sealed", volume, "volume {volume} is sealed: BLAKE3 {blake3}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fill::Hashes;
    use crate::proofs::Roots;
    use cheetah_core::proofs::Root;
    use cheetah_source::{Claims, SourceError, Unreadable};
    use std::path::Path;

    /// A disk in an image that claims an MD5.
    #[derive(Debug)]
    struct Image(&'static str);

    impl Source for Image {
        fn size(&self) -> u64 {
            1 << 20
        }
        fn path(&self) -> &Path {
            Path::new("/e/disk.E01")
        }
        fn describe(&self) -> String {
            "E01 image".to_owned()
        }
        fn read_exact_at(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            unreachable!("nothing is read")
        }
        fn read_past_errors_at(&self, _: u64, _: &mut [u8]) -> Result<Vec<Unreadable>, SourceError> {
            unreachable!("nothing is read")
        }
        fn identity(&self) -> String {
            String::new()
        }
        fn changed(&self) -> Option<String> {
            None
        }
        fn is_checksummed(&self) -> bool {
            true
        }
        fn claims(&self) -> Claims {
            Claims { md5: Some(self.0.to_owned()), ..Claims::default() }
        }
    }

    static IMAGE: Image = Image("aa");
    static OTHER: Image = Image("ab");

    fn hashed() -> Hashed {
        let hashes = Hashes { md5: "aa".into(), sha1: "bb".into(), sha256: "cc".into() };
        Hashed { hashes, roots: Some(Ok(Roots { root: Root([7; 32]), contents: None })) }
    }

    fn filled(hashed: &Hashed) -> Filled<'_> {
        Filled {
            source: &IMAGE,
            volume: "case",
            hashed,
            check: Check::Same,
            changed: None,
            unreadable: &[],
            expected: &[],
        }
    }

    /// Why not, and whether that may mend.
    fn unsealed(plan: Plan, filled: &Filled<'_>) -> Option<(String, bool)> {
        match filled.verdict(plan) {
            Verdict::Unsealed { why, mends } => Some((why, mends)),
            Verdict::Sealed(_) | Verdict::StaysOpen => None,
        }
    }

    #[test]
    fn what_is_as_it_was_said_to_be_is_sealed() {
        let hashed = hashed();
        let (bad, root) = ([ByteRange { offset: 0, len: 4096 }], Root([7; 32]));
        for filled in [filled(&hashed), Filled { unreadable: &bad, ..filled(&hashed) }] {
            assert!(matches!(filled.verdict(Plan::Seals), Verdict::Sealed(of) if of.root == root));
            assert!(matches!(filled.verdict(Plan::StaysOpen), Verdict::StaysOpen));
        }
    }

    #[test]
    fn what_is_not_says_why_and_what_may_mend_is_told_from_what_does_not() {
        let hashed = hashed();
        let why = |text: &str, mends| Some((text.to_owned(), mends));
        let other = Filled { source: &OTHER, ..filled(&hashed) };
        let claim = why("the disk does not have the MD5 that the image claims", false);
        assert_eq!(
            (unsealed(Plan::Seals, &other), unsealed(Plan::HasNoRoom, &other)),
            (claim.clone(), claim)
        );
        let no_room = unsealed(Plan::HasNoRoom, &filled(&hashed));
        assert!(
            no_room.is_some_and(|(why, mends)| mends && why.contains("the pool has no room for as much"))
        );
        let sha1: Hash = format!("sha1:{}", "0".repeat(40)).parse().expect("a hash");
        let expected = [(sha1, "disk.sha1".to_owned())];
        assert_eq!(
            unsealed(Plan::Seals, &Filled { expected: &expected, ..filled(&hashed) }),
            why("the disk does not have the SHA-1 that disk.sha1 expects", false)
        );
        let how = "it is larger".to_owned();
        assert_eq!(
            unsealed(Plan::Seals, &Filled { changed: Some(&how), ..filled(&hashed) }),
            why("the source changed while it was read: it is larger", false)
        );
        for (check, mends) in [(Check::Differs, false), (Check::No, true)] {
            let said = unsealed(Plan::Seals, &Filled { check, ..filled(&hashed) });
            assert_eq!(said.map(|(_, may)| may), Some(mends), "{check:?}");
        }
        let unproved = Hashed { roots: Some(Err("a donor is gone".into())), ..hashed.clone() };
        assert_eq!(unsealed(Plan::Seals, &filled(&unproved)), why("a donor is gone", true));
    }
}
