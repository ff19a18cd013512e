//! Why a volume cannot be used, or a request of it failed.
//!
//! Owns the words. Never: exit codes (the program), or errno (front ends). Tests: below, and where each is
//! made.

use cheetah_core::units::show_count;
use cheetah_rim::cipher::KeyError;
use cheetah_rim::control::{BadUrl, CallError};
use cheetah_rim::members::IdentityError;
use cheetah_rim::own_fault::own_fault;
use cheetah_rim::volume::VolumeError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// What went wrong; its text says what happened, to what, and what to do next.
#[derive(Debug)]
pub enum Error {
    /// What was to be a coordinator's URL is none.
    Url(BadUrl),
    /// The identity of this member is of no use.
    Identity(IdentityError),
    /// There is none in that directory: nobody has joined a pool.
    NoIdentity(PathBuf),
    /// The coordinator refused, or could not be asked.
    Call(CallError),
    /// The coordinator said something that cannot be.
    Answer(String),
    /// This machine refused memory or a thread.
    Machine(io::Error),
    /// This process may open fewer files than the connections to the volume's donors need.
    Files {
        /// The volume's name.
        volume: String,
        /// How many donors it lies on.
        donors: usize,
        /// Files that the process may open.
        have: u64,
        /// Files that it needs.
        need: u64,
    },
    /// This machine does not reach donors that the pool does, and the volume is of no use without them.
    Unreached {
        /// The volume's name.
        volume: String,
        /// Name of each donor, and why it cannot be reached.
        donors: Vec<(String, String)>,
    },
    /// A request was not carried out, or only in part.
    Request {
        /// Where the part that failed begins, in bytes.
        offset: u64,
        /// What became of it.
        why: VolumeError,
    },
    /// An encrypted volume of which this one has no key.
    NoKey {
        /// The volume's name.
        volume: String,
    },
    /// The key that it has is another volume's.
    OtherKey {
        /// The volume's name.
        volume: String,
        /// Where it came from, unless the pool had it.
        file: Option<PathBuf>,
    },
    /// A key that cannot be read, made or wrapped.
    BadKey {
        /// The volume's name.
        volume: String,
        /// What is wrong with it.
        why: KeyError,
    },
    /// A volume that is to be encrypted, by nobody that a key could be kept for.
    NoMember {
        /// The volume's name.
        volume: String,
    },
    /// What tools would see through an overlay cannot be had.
    Overlay {
        /// Its name.
        volume: String,
        /// Of what it is one.
        base: String,
        /// What is wrong.
        why: String,
    },
    /// The volume was written, and the pool did not hear of it: the lease is left to run out, which says so.
    Untold,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Url(error) => error.fmt(f),
            Error::Identity(error) => error.fmt(f),
            Error::NoIdentity(directory) => write!(
                f,
                "{} holds no identity of a pool's member: `cheetah join cheetah://HOST:PORT/TOKEN` makes one",
                directory.display()
            ),
            Error::Call(error) => error.fmt(f),
            Error::Answer(what) => f.write_str(what),
            Error::Machine(error) => write!(f, "this machine cannot serve a volume: {}", own_fault(error)),
            Error::Files { volume, donors, have, need } => write!(
                f,
                "this process may open {have} files, and volume '{volume}' on {} needs {need}: raise `ulimit -n`",
                show_count(*donors as u64, "donor")
            ),
            Error::Unreached { volume, donors } => {
                let each: Vec<String> = donors.iter().map(|(name, why)| format!("{name} ({why})")).collect();
                write!(
                    f,
                    "volume '{volume}' cannot be used on this machine, which does not reach {} that the pool does: \
                     {}; see that this machine has a way to their addresses (another network, a firewall), or use \
                     it on one that has",
                    if each.len() == 1 { "a donor" } else { "donors" },
                    each.join(", ")
                )
            }
            Error::Request { offset, why } => write!(f, "the request at byte {offset} failed: {why}"),
            Error::NoKey { volume } => write!(
                f,
                "volume '{volume}' is encrypted, and its key was given neither to this member nor in a file: have one that \
                 has it say `cheetah grant {volume} MEMBER`, or name its file with --key-file FILE"
            ),
            Error::OtherKey { volume, file: Some(file) } => write!(
                f,
                "the key in {} is not that of volume '{volume}': name another file with --key-file FILE",
                file.display()
            ),
            Error::OtherKey { volume, file: None } => write!(
                f,
                "the key that the pool has for this member is not that of volume '{volume}': have it granted anew with \
                 `cheetah grant {volume} MEMBER`"
            ),
            Error::BadKey { volume, why } => write!(f, "volume '{volume}' is encrypted: {why}"),
            Error::NoMember { volume } => write!(
                f,
                "volume '{volume}' cannot be encrypted without a place for its key: name a file with --key-file FILE (32 \
                 bytes, as `openssl rand -hex 32` prints them), or join a pool of members"
            ),
            Error::Overlay { volume, base, why } => write!(
                f,
                "volume '{volume}' cannot be used as an overlay of '{base}': {why}; '{base}' itself is not touched by that"
            ),
            Error::Untold => f.write_str(
                "the pool did not hear that the volume was written; its lease runs out by itself, and says so",
            ),
        }
    }
}

impl std::error::Error for Error {}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        Error::Call(error)
    }
}

impl From<IdentityError> for Error {
    fn from(error: IdentityError) -> Self {
        Error::Identity(error)
    }
}

impl From<BadUrl> for Error {
    fn from(error: BadUrl) -> Self {
        Error::Url(error)
    }
}
