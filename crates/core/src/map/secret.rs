//! What a donor proves with who it is.
//!
//! Owns its form. Invariant: no `Debug` and no error shows it. Tests: below.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a donor proves with who it is: chosen at its start like its identity, which everybody is shown; known
/// to it and to its coordinators, and printed nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DonorSecret(pub u64);

impl fmt::Debug for DonorSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DonorSecret(..)")
    }
}

impl From<DonorSecret> for String {
    fn from(secret: DonorSecret) -> String {
        format!("{:016x}", secret.0)
    }
}

impl TryFrom<String> for DonorSecret {
    type Error = BadSecret;
    fn try_from(text: String) -> Result<Self, BadSecret> {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(&text, 16).ok().filter(|_| digits).map(DonorSecret).ok_or(BadSecret)
    }
}

/// A text that is no donor's secret. What is wrong with it is not shown: it may be nearly right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSecret;

impl fmt::Display for BadSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a donor's secret is 16 hexadecimal digits")
    }
}

impl std::error::Error for BadSecret {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_read_what_they_write_and_are_not_shown() {
        let secret = DonorSecret(0xabc);
        assert_eq!(DonorSecret::try_from(String::from(secret)), Ok(secret));
        assert!(!format!("{secret:?}").contains("abc"));
        for bad in ["", "+000000000000abc", "0000000000000abcd"] {
            assert!(
                DonorSecret::try_from(bad.to_owned()).is_err_and(|why| !why.to_string().contains("abc")),
                "{bad}"
            );
        }
    }
}
