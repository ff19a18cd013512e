//! What an image says of the disk in it, beside what the disk was when it was read.
//!
//! Owns: the line that says what was recognised, and the comparison with the hashes that the image claims.
//! Never: hashing (`fill`), or the volume. Invariant: a claim counts as kept only where its hash was computed
//! over all of the disk. Called by `load`. Tests: below; `lab/tests/sources.rs`.

use crate::fill::Hashes;
use cheetah_core::content::ByteRange;
use cheetah_core::units::{show_bytes, show_count};
use cheetah_source::{Claims, Source};
use serde::Serialize;

/// What the image claims, and whether that is so.
#[derive(Debug, Serialize)]
pub struct Claimed {
    #[serde(skip_serializing_if = "Option::is_none")]
    md5: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha1: Option<String>,
    /// Each hash that it claims is that of the disk as it was read.
    same: bool,
    /// What could not be read when the image was made: it holds zeros there.
    unread_then: Vec<ByteRange>,
}

/// One line on what was recognised; none where a file is what it seems to be.
pub fn recognised(source: &dyn Source, file: &str) -> Option<String> {
    let what = source.describe();
    if source.is_bare() {
        return None;
    }
    let sums = match source.is_checksummed() {
        true => "checksummed",
        false => "without checksums of its own",
    };
    Some(format!("{file}: {what}, {}, {sums}", show_bytes(source.size())))
}

impl Claimed {
    pub fn new(claims: Claims, hashes: &Hashes) -> Option<Claimed> {
        let Claims { md5, sha1, unread_then } = claims;
        if md5.is_none() && sha1.is_none() && unread_then.is_empty() {
            return None;
        }
        let fits = |claimed: &Option<String>, is: &String| claimed.as_ref().is_none_or(|of| of == is);
        let same = fits(&md5, &hashes.md5) && fits(&sha1, &hashes.sha1);
        let unread_then = unread_then.into_iter().map(ByteRange::from).collect();
        Some(Claimed { md5, sha1, same, unread_then })
    }

    /// Both, as they are called.
    fn hashes<'a>(&'a self, is: &'a Hashes) -> impl Iterator<Item = (&'static str, &'a str, &'a str)> {
        let all = [("MD5", &self.md5, is.md5.as_str()), ("SHA-1", &self.sha1, is.sha1.as_str())];
        all.into_iter().filter_map(|(name, claimed, is)| Some((name, claimed.as_deref()?, is)))
    }

    pub fn lines(&self, is: &Hashes) -> Vec<String> {
        let hashes = self.hashes(is).map(|(name, claimed, is)| match claimed == is {
            true => format!("{name} as the image claims"),
            false => format!("{name} DIFFERS: the image claims {claimed}"),
        });
        let unread = self.unread_then.iter().map(|ByteRange { offset, len }| {
            format!("unread then     {len} bytes from {offset} on: who made the image could not read them; it has zeros there")
        });
        hashes.chain(unread.take(64)).collect()
    }

    /// The hashes that it claims, and the disk has not.
    pub fn differing(&self, is: &Hashes) -> Vec<&'static str> {
        self.hashes(is).filter(|(_, claimed, is)| claimed != is).map(|(name, ..)| name).collect()
    }

    /// What is wrong, if anything is.
    pub fn fault(&self, is: &Hashes, file: &str, volume: &str, unreadable: &[ByteRange]) -> Option<String> {
        let wrong = self.differing(is);
        if wrong.is_empty() {
            return None;
        }
        let why = match unreadable.len() as u64 {
            0 => "the image or its claim was changed since it was made".to_owned(),
            count => format!("zeros stand in it for {} that could not be read", show_count(count, "range")),
        };
        Some(format!(
            "the {} of the disk in {file} is not the one that the image claims: {why}. Volume '{volume}' holds what was read",
            wrong.join(" and ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_kept_or_not() {
        let is = Hashes { md5: "aa".into(), sha1: "bb".into(), sha256: "cc".into() };
        let claims = |md5: &str, sha1: Option<&str>| Claims {
            md5: Some(md5.into()),
            sha1: sha1.map(str::to_owned),
            ..Claims::default()
        };
        assert!(Claimed::new(Claims::default(), &is).is_none());
        let kept = Claimed::new(claims("aa", Some("bb")), &is).expect("it claims something");
        assert!(kept.same && kept.fault(&is, "f", "v", &[]).is_none());
        assert_eq!(kept.lines(&is), ["MD5 as the image claims", "SHA-1 as the image claims"]);
        let not = Claimed::new(claims("aa", Some("b0")), &is).expect("it claims something");
        assert!(!not.same);
        assert_eq!(not.lines(&is)[1], "SHA-1 DIFFERS: the image claims b0");
        let fault = not.fault(&is, "f", "v", &[]).expect("it differs");
        assert!(fault.starts_with("the SHA-1 of the disk in f is not the one"), "{fault}");
    }
}
