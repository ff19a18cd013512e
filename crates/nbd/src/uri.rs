//! NBD URIs, as libnbd and qemu write them.

use std::fmt;
use std::str::FromStr;

/// Where an export is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uri {
    pub transport: Transport,
    pub export: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// An IPv6 address stands here without its brackets.
    Tcp { host: String, port: u16 },
    /// A path; a leading NUL means Linux's abstract namespace.
    Unix { socket: String },
}

/// Why a text is not a URI to connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UriError {
    NotNbd,
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(_text: &str) -> Result<Self, UriError> {
        Err(UriError::NotNbd)
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for UriError {}
