//! Where the coordinator's records are kept: one redb file in a directory, an etcd, or nowhere.
//!
//! Owns the choice, and the file `pool.redb`: one table, key to JSON. Never: what the records mean. Key invariant:
//! `commit` is durable when it returns, all of it or nothing. Two coordinators cannot open one directory, and of
//! those that share an etcd one leads (`term`). Tests: `tests/control.rs`.

use super::store_etcd::EtcdStore;
use cheetah_core::coordinator::{Effect, Record};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    pub(super) async fn load(&self) -> Result<Vec<Record>, StoreError> {
        match self {
            Store::Memory => Ok(Vec::new()),
            Store::File(file) => file.load(),
            Store::Etcd(store) => store.load().await,
        }
    }

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
            Store::Etcd(store) => store.term().check().map_err(StoreError::Deposed),
        }
    }

    /// Ends when it may not any more.
    pub(super) async fn deposed(&self) -> StoreError {
        match self {
            Store::Memory | Store::File(_) => std::future::pending().await,
            Store::Etcd(store) => StoreError::Deposed(store.term().ended().await),
        }
    }
}

impl File {
    /// Opens the directory, made if it is missing, readable by its owner only: leases are secrets.
    pub(super) fn open(directory: &Path) -> Result<Self, StoreError> {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let path = directory.join("pool.redb");
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        match Database::builder().create_file(file) {
            Ok(database) => Ok(File { database, path }),
            Err(DatabaseError::DatabaseAlreadyOpen) => Err(StoreError::InUse),
            Err(error) => Err(failed(error)),
        }
    }

    fn load(&self) -> Result<Vec<Record>, StoreError> {
        let read = self.database.begin_read().map_err(failed)?;
        let table = match read.open_table(RECORDS) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            other => other.map_err(failed)?,
        };
        let mut records = Vec::new();
        for entry in table.iter().map_err(failed)? {
            let (key, value) = entry.map_err(failed)?;
            let unreadable =
                |error| failed(format!("{}: record {}: {error}", self.path.display(), key.value()));
            records.push(serde_json::from_slice(value.value()).map_err(unreadable)?);
        }
        Ok(records)
    }

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
                    Effect::Reply { .. } | Effect::WakeAt(_) | Effect::Reach { .. } => {}
                }
            }
        }
        write.commit().map_err(failed)
    }
}
