//! What a member keeps of itself: a directory that only its owner enters.
//!
//! Owns the files, by the names that libnbd, nbdkit and QEMU look for, so that their programs can use the
//! directory as it is. Never: contact with the pool (`control`). Invariants: a file is written whole or
//! not at all; a directory that others may enter, or a key that others may read, is not used; and an
//! identity of another pool is not overwritten. Tests: below; `lab/tests/members.rs`.

use super::authority::Key;
use super::credentials::Credentials;
use crate::clock::seconds_since_1970 as now;
use cheetah_core::api::Enrolled;
use cheetah_core::map::PoolId;
use cheetah_core::members::Member;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What names a directory in place of the user's own.
pub const IDENTITY_VARIABLE: &str = "CHEETAH_IDENTITY";

const AUTHORITY: &str = "ca-cert.pem";
const CERTIFICATE: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";
/// The same again, for programs that serve.
const SERVER: [&str; 2] = ["server-cert.pem", "server-key.pem"];
const MEMBER: &str = "member";
const POOL: &str = "pool";

/// What is known of a certificate without reading it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Validity {
    pool: PoolId,
    member: Member,
    /// Seconds since 1970.
    since: u64,
    until: u64,
}

/// Why an identity cannot be had or kept. Each says what to do.
#[derive(Debug)]
pub enum IdentityError {
    /// Others may read it.
    Exposed {
        path: PathBuf,
    },
    /// Another user of this machine owns it.
    OfAnother {
        path: PathBuf,
    },
    Io {
        path: PathBuf,
        error: io::Error,
    },
    /// What is there is no identity.
    Broken {
        directory: PathBuf,
        why: String,
    },
    /// There is one already.
    Taken {
        directory: PathBuf,
        member: Member,
        pool: PoolId,
    },
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityError::Exposed { path } => write!(
                f,
                "{} can be read by others than its owner, and holds what proves who this is: chmod -R go= it, or if \
                 somebody may have read it have an admin revoke the member",
                path.display()
            ),
            IdentityError::OfAnother { path } => write!(
                f,
                "{} belongs to another user: run this as that user, or name an identity of your own with --identity DIR",
                path.display()
            ),
            IdentityError::Io { path, error } => write!(f, "{}: {error}", path.display()),
            IdentityError::Broken { directory, why } => write!(
                f,
                "the identity in {} is of no use ({why}): remove it and join again with a new token",
                directory.display()
            ),
            IdentityError::Taken { directory, member, pool } => write!(
                f,
                "{} holds the identity of {member} of pool {pool} already: name another directory with --identity DIR, or \
                 remove that one to give it up",
                directory.display()
            ),
        }
    }
}

impl std::error::Error for IdentityError {}

/// A member's identity, as it is kept.
#[derive(Debug)]
pub struct Identity {
    directory: PathBuf,
    key: Key,
    credentials: Arc<Credentials>,
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let path = path.to_owned();
    move |error| IdentityError::Io { path, error }
}

/// Whole or not at all, and for its owner alone.
fn write(path: &Path, text: &str) -> Result<(), IdentityError> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let written = || {
        let _ = std::fs::remove_file(&new);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    written().map_err(io_at(path))
}

fn read(path: &Path) -> Result<Option<String>, IdentityError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_at(path)(error)),
    }
}

fn check_private(path: &Path) -> Result<(), IdentityError> {
    let found = std::fs::metadata(path).map_err(io_at(path))?;
    // What another user renews for its owner, the owner cannot read.
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(IdentityError::OfAnother { path: path.to_owned() });
    }
    if found.mode() & 0o077 != 0 { Err(IdentityError::Exposed { path: path.to_owned() }) } else { Ok(()) }
}

/// A directory for its owner alone, if it is not one yet.
fn make_private(directory: &Path) -> Result<(), IdentityError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(io_at(directory))?;
    check_private(directory)
}

fn validity(directory: &Path) -> Result<Option<Validity>, IdentityError> {
    let Some(text) = read(&directory.join(MEMBER))? else { return Ok(None) };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|why| IdentityError::Broken { directory: directory.to_owned(), why: why.to_string() })
}

impl Identity {
    /// Whether somebody may come in there: nobody has an identity in this directory that is good still, and
    /// one can be kept in it for its owner alone. A token that was used before that is known is lost.
    pub(crate) fn check_free(directory: &Path) -> Result<(), IdentityError> {
        make_private(directory)?;
        match validity(directory)?.filter(|validity| validity.until > now()) {
            Some(Validity { member, pool, .. }) => {
                Err(IdentityError::Taken { directory: directory.to_owned(), member, pool })
            }
            None => Ok(()),
        }
    }

    /// Keeps a new one.
    pub(crate) fn keep(
        directory: &Path,
        enrolled: &Enrolled,
        key: &Key,
        url: &str,
    ) -> Result<Identity, IdentityError> {
        make_private(directory)?;
        write(&directory.join(AUTHORITY), &enrolled.authority)?;
        write(&directory.join(KEY), &key.to_pem())?;
        if enrolled.role.serves() {
            write(&directory.join(SERVER[1]), &key.to_pem())?;
        }
        write(&directory.join(POOL), &format!("{url}\n"))?;
        put(directory, enrolled)?;
        let kept = Identity::load(directory)?;
        let gone = || IdentityError::Broken { directory: directory.to_owned(), why: "it is gone".to_owned() };
        kept.ok_or_else(gone)
    }

    /// Takes away one that its pool has revoked.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn forget(directory: &Path) -> Result<(), IdentityError> {
        for file in [MEMBER, CERTIFICATE, KEY, SERVER[0], SERVER[1]] {
            let path = directory.join(file);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_at(&path)(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The one in this directory, if there is one.
    ///
    /// # Errors
    /// Others may read it, or it is none.
    pub fn load(directory: &Path) -> Result<Option<Identity>, IdentityError> {
        let (Some(authority), Some(certificate)) =
            (read(&directory.join(AUTHORITY))?, read(&directory.join(CERTIFICATE))?)
        else {
            return Ok(None);
        };
        check_private(directory)?;
        check_private(&directory.join(KEY))?;
        let broken = |why: &dyn fmt::Display| IdentityError::Broken {
            directory: directory.to_owned(),
            why: why.to_string(),
        };
        let key = read(&directory.join(KEY))?.ok_or_else(|| broken(&"its key is missing"))?;
        let key = Key::from_pem(&key).map_err(|why| broken(&why))?;
        let credentials = Credentials::new(&authority, &certificate, &key).map_err(|why| broken(&why))?;
        Ok(Some(Identity { directory: directory.to_owned(), key, credentials: Arc::new(credentials) }))
    }

    /// Where a user's is unless the program is told otherwise: `$CHEETAH_IDENTITY`, else `cheetah/identity`
    /// in the user's configuration directory, and `cheetah/donor` of who lends: a machine that lends and is
    /// worked on has both. `None`: there is no such user.
    #[must_use]
    pub fn usual_directory(lends: bool) -> Option<PathBuf> {
        let variable = std::env::var_os(IDENTITY_VARIABLE).filter(|value| !value.is_empty());
        let own = || {
            let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
            let base = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home)?;
            Some(base.join("cheetah").join(if lends { "donor" } else { "identity" }))
        };
        variable.map(PathBuf::from).or_else(own)
    }

    /// The pool that the directory is about.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn pool_url(directory: &Path) -> Result<Option<String>, IdentityError> {
        Ok(read(&directory.join(POOL))?.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
    }

    /// Finds its pool at this address from now on, unless that is one of those that it knows.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn find_pool_at(&self, url: &str) -> Result<(), IdentityError> {
        let known = Identity::pool_url(&self.directory)?;
        if known.is_some_and(|known| known.split(',').any(|known| known == url)) {
            return Ok(());
        }
        write(&self.directory.join(POOL), &format!("{url}\n"))
    }

    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    #[must_use]
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }

    /// Seconds until the next certificate is due, when a third of this one's time is over; and until this one
    /// is of no use.
    #[must_use]
    pub fn due(&self) -> (u64, u64) {
        let Ok(Some(Validity { since, until, .. })) = validity(&self.directory) else { return (0, 0) };
        let due = since + until.saturating_sub(since) / 3;
        (due.saturating_sub(now()), until.saturating_sub(now()))
    }

    /// Goes by what another process of this member has renewed since.
    ///
    /// # Errors
    /// It is of no use.
    pub fn reread(&self) -> Result<(), IdentityError> {
        let Some(certificate) = read(&self.directory.join(CERTIFICATE))? else { return Ok(()) };
        self.show(&certificate)
    }

    pub(crate) fn take(&self, enrolled: &Enrolled) -> Result<(), IdentityError> {
        self.show(&enrolled.certificate)?;
        put(&self.directory, enrolled)
    }

    fn show(&self, certificate: &str) -> Result<(), IdentityError> {
        let broken = |why: &dyn fmt::Display| IdentityError::Broken {
            directory: self.directory.clone(),
            why: why.to_string(),
        };
        self.credentials.renew(certificate, &self.key).map_err(|why| broken(&why))
    }
}

fn put(directory: &Path, enrolled: &Enrolled) -> Result<(), IdentityError> {
    write(&directory.join(CERTIFICATE), &enrolled.certificate)?;
    if enrolled.role.serves() {
        write(&directory.join(SERVER[0]), &enrolled.certificate)?;
    }
    let member = Member { id: enrolled.member, role: enrolled.role };
    let (pool, since) = (enrolled.pool, now());
    let validity = Validity { pool, member, since, until: since.saturating_add(enrolled.lasts) };
    let text = serde_json::to_string(&validity).expect("a shape with string keys only");
    write(&directory.join(MEMBER), &text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::authority::Authority;
    use super::*;
    use cheetah_core::map::MemberId;
    use cheetah_core::members::Role;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    #[test]
    fn an_identity_is_kept_for_its_owner_alone_and_replaced_by_none() {
        let directory = std::env::temp_dir().join(format!("cheetah-identity-{}", std::process::id()));
        let pool = PoolId(3);
        let authority = Authority::of(pool, &Authority::make(pool).unwrap()).unwrap();
        let (key, member) = (Key::make().unwrap(), Member { id: MemberId(5), role: Role::Client });
        let certificate = authority.certify(member, &key.public(), &[], Duration::from_secs(60)).unwrap();
        let (member, role, authority, lasts) = (member.id, member.role, authority.pem().to_owned(), 60);
        let enrolled = Enrolled { pool, member, role, certificate, authority, lasts };
        assert!(Identity::load(&directory).unwrap().is_none());
        let kept = Identity::keep(&directory, &enrolled, &key, "cheetah://10.0.0.5:10808").unwrap();
        assert_eq!(kept.credentials().member(), Member { id: member, role });
        assert_eq!(Identity::pool_url(&directory).unwrap().unwrap(), "cheetah://10.0.0.5:10808");
        let (due, until) = kept.due();
        assert!((15..=20).contains(&due) && (50..=60).contains(&until), "{due} {until}");
        assert!(matches!(Identity::check_free(&directory), Err(IdentityError::Taken { .. })));
        for name in [KEY, SERVER[1], CERTIFICATE, MEMBER] {
            assert_eq!(std::fs::metadata(directory.join(name)).unwrap().mode() & 0o777, 0o600, "{name}");
        }
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(Identity::load(&directory), Err(IdentityError::Exposed { .. })));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
