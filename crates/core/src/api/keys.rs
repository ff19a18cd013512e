//! What is said of the keys of encrypted volumes, which the pool carries and cannot open.
//! Never: behaviour, or a key itself.

use crate::map::MemberId;
use serde::{Deserialize, Serialize};

/// The key of an encrypted volume, as the pool has it for one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedKey {
    /// By which a key is told from another: 16 hexadecimal digits, from which it does not follow.
    pub check: String,
    /// What only the member can open, in hexadecimal digits. Absent: the key is in a file of its owner's.
    #[serde(default)]
    pub wrapped: Option<String>,
    /// Of an overlay: its key, which the key of its base opens, in hexadecimal digits. `wrapped` is then that
    /// of the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<String>,
}

/// Who has the key of a volume gives it to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantKey {
    /// Who may have it from now on.
    pub member: MemberId,
    /// Wrapped for that member.
    pub key: WrappedKey,
}
