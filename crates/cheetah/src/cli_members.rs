//! The command line of pools of members: tokens, members, coming in, and the keys that members are given.
//! Never: behaviour.

use crate::cli::{JsonArg, PoolArg};
use cheetah_core::map::{MemberId, TokenId};
use cheetah_core::members::Role;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct Join {
    /// cheetah://HOST:PORT/TOKEN, as `cheetah token new` prints it; `-` reads it from standard input.
    pub url: String,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a token, and print the address by which others come in. Who reads it can come in.
    New(NewToken),
    /// List the tokens by which somebody may still come in.
    List(crate::cli::Report),
    /// Let nobody come in by a token any more. Who has is a member still.
    Revoke(RevokeToken),
}

#[derive(Debug, Args)]
pub struct NewToken {
    /// donor, client, viewer or admin: what those become who come in by it.
    #[arg(long)]
    pub role: Role,
    /// How many may come in. Without it: one; 0: all who have the token.
    #[arg(long, default_value_t = 1)]
    pub uses: u32,
    /// How long the token is good for: 30m, 12h, 7d.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_time)]
    pub expires: Duration,
    /// Come in by it at once, and keep the certificate in this directory for programs of others, which is
    /// made: ca-cert.pem, client-cert.pem, client-key.pem (and server-...), as libnbd, nbdkit and QEMU
    /// look for.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub pem: Option<PathBuf>,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct RevokeToken {
    /// As `cheetah token list` shows it.
    pub token: TokenId,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Subcommand)]
pub enum Member {
    /// List the members of the pool.
    List(crate::cli::Report),
    /// Put a member out of the pool: its leases and donors go with it, at once.
    Revoke(RevokeMember),
}

#[derive(Debug, Args)]
pub struct RevokeMember {
    /// As `cheetah member list` shows it.
    pub member: MemberId,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct EncryptArg {
    /// Encrypt each block on this machine: donors get ciphertext. The key is wrapped for this member of the
    /// pool (`cheetah grant` gives it to others), or comes from --key-file.
    #[arg(long)]
    pub encrypt: bool,
}

#[derive(Debug, Args)]
pub struct Grant {
    /// An encrypted volume, of which this one has the key.
    pub name: String,
    /// Who may attach it from now on, as `cheetah member list` shows it.
    pub member: MemberId,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

/// A number with s, m, h or d.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is no time: write a number with s, m, h or d, like 30m or 7d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(bad)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("7d"), Ok(Duration::from_secs(7 * 24 * 3600)));
        for bad in ["", "7", "d", "0h", "-1h", "1w", "99999999999999999999s", "ä"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
