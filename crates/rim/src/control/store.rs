//! Where the coordinator's records are kept: one redb file in a directory, an etcd, or nowhere.
//!
//! Owns the choice, and the file `pool.redb`: one table, key to JSON. Never: what the records mean. Key
//! invariant: `commit` is durable when it returns, all of it or nothing; and a file is not changed before its
//! records were believed, for opening a database may repair it; and a file that is there and has no pool in
//! it is damage, never a new pool: it gets its name with its first commit. Two coordinators cannot open one
//! directory, and of those that share an etcd one leads (`term`). Tests: `tests/control.rs`,
//! `tests/control_state.rs`.

use super::store_etcd::EtcdStore;
use cheetah_core::coordinator::{Effect, Record};
use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition, TableError,
};
use rustix::fs::FlockOperation;
use std::fmt;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const FILE: &str = "pool.redb";
/// What to do about a state that is damaged: a new pool in its place would be none of the donors'.
const RESTORE: &str = "restore it, or start a new pool with another --state path";
/// So much is copied at once.
const COPY_BYTES: usize = 1 << 20;
const RECORDS: TableDefinition<&str, &[u8]> = TableDefinition::new("records");

#[derive(Debug)]
pub(super) enum Store {
    /// Lost when the process ends.
    Memory,
    File(Arc<File>),
    Etcd(EtcdStore),
}

#[derive(Debug)]
pub(super) struct File {
    database: Database,
    path: PathBuf,
    /// Where it lies until its first commit; `None` after it.
    unnamed: Mutex<Option<PathBuf>>,
}

/// A file that was read and not changed. Nobody else has it open meanwhile.
#[derive(Debug)]
pub(super) struct Seen {
    file: std::fs::File,
    path: PathBuf,
    unnamed: Option<PathBuf>,
    /// `None` where there is no pool yet.
    pub(super) records: Option<Vec<Record>>,
}

#[derive(Debug)]
pub(super) enum StoreError {
    /// Another coordinator has it open.
    InUse,
    /// This coordinator leads no more; what it was about to store may be stored or not.
    Deposed(String),
    Failed(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::InUse => f.write_str("another coordinator has it open"),
            StoreError::Deposed(why) | StoreError::Failed(why) => f.write_str(why),
        }
    }
}

fn failed(error: impl fmt::Display) -> StoreError {
    StoreError::Failed(error.to_string())
}

impl Store {
    /// Carries out the `Store` and `Forget` among the effects, durably; hands the effects back.
    pub(super) async fn commit(&self, effects: Vec<Effect>) -> Result<Vec<Effect>, StoreError> {
        match self {
            Store::Memory => Ok(effects),
            Store::File(file) => {
                let file = Arc::clone(file);
                let commit = tokio::task::spawn_blocking(move || file.commit(&effects).map(|()| effects));
                commit.await.map_err(failed)?
            }
            Store::Etcd(store) => store.commit(&effects).await.map(|()| effects),
        }
    }

    /// Whether what is stored may still be answered from.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self {
            Store::Memory | Store::File(_) => Ok(()),
            Store::Etcd(store) => Ok(store.term().check()?),
        }
    }

    /// Ends when it may not any more.
    pub(super) async fn deposed(&self) -> StoreError {
        match self {
            Store::Memory | Store::File(_) => std::future::pending().await,
            Store::Etcd(store) => store.term().ended().await.into(),
        }
    }
}

impl Seen {
    /// Reads the file in this directory, made if it is missing, both for their owner only: leases are
    /// secrets.
    pub(super) fn look(directory: &Path) -> Result<Self, StoreError> {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let path = directory.join(FILE);
        let unnamed = match std::fs::metadata(&path) {
            Ok(found) if found.len() == 0 => {
                return Err(failed(format!(
                    "{} is empty, which no pool's state is: {RESTORE}",
                    path.display()
                )));
            }
            Ok(_) => None,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Some(directory.join(format!("{FILE}.new-{}", std::process::id())))
            }
            Err(error) => return Err(failed(error)),
        };
        let is_new = unnamed.is_some();
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(is_new).truncate(is_new).mode(0o600);
        let file = options.open(unnamed.as_ref().unwrap_or(&path)).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StoreError::InUse),
            other => other.map_err(failed)?,
        }
        if is_new {
            return Ok(Seen { file, path, unnamed, records: None });
        }
        // The library does not survive each damage that there can be.
        let looked = std::panic::catch_unwind(AssertUnwindSafe(|| records(&file)));
        let records = looked.unwrap_or_else(|_| Err(failed("it is damaged beyond reading")));
        let damaged = |why: StoreError| failed(format!("{}: {why}; {RESTORE}", path.display()));
        let records = Some(records.map_err(damaged)?);
        Ok(Seen { file, path, unnamed, records })
    }

    /// From here on it may change: what it holds is believed.
    pub(super) fn open(self) -> Result<File, StoreError> {
        match Database::builder().create_file(self.file) {
            Ok(database) => Ok(File { database, path: self.path, unnamed: Mutex::new(self.unnamed) }),
            Err(DatabaseError::DatabaseAlreadyOpen) => Err(StoreError::InUse),
            Err(error) => Err(failed(error)),
        }
    }
}

/// From a copy in memory, which alone is repaired where that is needed.
fn records(file: &std::fs::File) -> Result<Vec<Record>, StoreError> {
    let bytes = file.metadata().map_err(failed)?.len();
    let copy = InMemoryBackend::new();
    copy.set_len(bytes).map_err(failed)?;
    let mut piece = vec![0; COPY_BYTES];
    for at in (0..bytes).step_by(COPY_BYTES) {
        let len = usize::try_from(bytes - at).unwrap_or(COPY_BYTES).min(COPY_BYTES);
        file.read_exact_at(&mut piece[..len], at).map_err(failed)?;
        copy.write(at, &piece[..len]).map_err(failed)?;
    }
    let mut database = Database::builder().create_with_backend(copy).map_err(failed)?;
    // Without it a page that is not as it was written would be read as if it were.
    if bytes > 0 && !database.check_integrity().map_err(failed)? {
        return Err(failed("it is damaged: parts of it are not as they were written"));
    }
    let read = database.begin_read().map_err(failed)?;
    let table = match read.open_table(RECORDS) {
        Err(TableError::TableDoesNotExist(_)) => return Err(failed("there is no pool in it")),
        other => other.map_err(failed)?,
    };
    let mut records = Vec::new();
    for entry in table.iter().map_err(failed)? {
        let (key, value) = entry.map_err(failed)?;
        let unreadable = |error| failed(format!("record {}: {error}", key.value()));
        records.push(serde_json::from_slice(value.value()).map_err(unreadable)?);
    }
    if records.is_empty() { Err(failed("there is no pool in it")) } else { Ok(records) }
}

impl File {
    /// In one durable transaction.
    fn commit(&self, effects: &[Effect]) -> Result<(), StoreError> {
        let write = self.database.begin_write().map_err(failed)?;
        {
            let mut table = write.open_table(RECORDS).map_err(failed)?;
            for effect in effects {
                match effect {
                    Effect::Store(record) => {
                        let value = serde_json::to_vec(record).map_err(failed)?;
                        table.insert(record.key().to_string().as_str(), value.as_slice()).map_err(failed)?;
                    }
                    Effect::Forget(key) => {
                        table.remove(key.to_string().as_str()).map_err(failed)?;
                    }
                    Effect::Reply { .. }
                    | Effect::Greet { .. }
                    | Effect::WakeAt(_)
                    | Effect::Reach { .. }
                    | Effect::Note(_) => {}
                }
            }
        }
        write.commit().map_err(failed)?;
        self.name()
    }

    /// Gives the file its name, now that there is a pool in it; never in place of another.
    fn name(&self) -> Result<(), StoreError> {
        let mut unnamed = self.unnamed.lock().map_err(failed)?;
        let Some(new) = unnamed.take() else { return Ok(()) };
        let linked = std::fs::hard_link(&new, &self.path);
        // What is left of it is in nobody's way.
        let _ = std::fs::remove_file(&new);
        linked.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => StoreError::InUse,
            _ => failed(error),
        })?;
        let directory = self.path.parent().unwrap_or(Path::new("."));
        std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
    }
}
