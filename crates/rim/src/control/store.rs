//! Where the coordinator's records are kept: one redb file in a directory, or nowhere.
//!
//! Owns the file `pool.redb`: one table, key to JSON. Never: what the records mean. Key invariant: `commit` is
//! durable when it returns, all of it or nothing. Two coordinators cannot open one directory.
//! Tests: `tests/control.rs`.

use cheetah_core::coordinator::{Effect, Record};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use std::fmt;
use std::path::{Path, PathBuf};

const RECORDS: TableDefinition<&str, &[u8]> = TableDefinition::new("records");

#[derive(Debug)]
pub(super) struct Store {
    /// `None`: memory, and lost when the process ends.
    database: Option<(Database, PathBuf)>,
}

#[derive(Debug)]
pub(super) enum StoreError {
    /// Another coordinator has it open.
    InUse,
    Failed(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::InUse => f.write_str("another coordinator has it open"),
            StoreError::Failed(why) => f.write_str(why),
        }
    }
}

fn failed(error: impl fmt::Display) -> StoreError {
    StoreError::Failed(error.to_string())
}

impl Store {
    pub(super) fn memory() -> Self {
        Store { database: None }
    }

    /// Opens the directory, made if it is missing, readable by its owner only: leases are secrets.
    pub(super) fn open(directory: &Path) -> Result<Self, StoreError> {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let path = directory.join("pool.redb");
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        match Database::builder().create_file(file) {
            Ok(database) => Ok(Store { database: Some((database, path)) }),
            Err(DatabaseError::DatabaseAlreadyOpen) => Err(StoreError::InUse),
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) fn load(&self) -> Result<Vec<Record>, StoreError> {
        let Some((database, path)) = &self.database else { return Ok(Vec::new()) };
        let read = database.begin_read().map_err(failed)?;
        let table = match read.open_table(RECORDS) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            other => other.map_err(failed)?,
        };
        let mut records = Vec::new();
        for entry in table.iter().map_err(failed)? {
            let (key, value) = entry.map_err(failed)?;
            let unreadable = |error| failed(format!("{}: record {}: {error}", path.display(), key.value()));
            records.push(serde_json::from_slice(value.value()).map_err(unreadable)?);
        }
        Ok(records)
    }

    /// Carries out the `Store` and `Forget` among the effects, in one durable transaction.
    pub(super) fn commit(&self, effects: &[Effect]) -> Result<(), StoreError> {
        let Some((database, _)) = &self.database else { return Ok(()) };
        let write = database.begin_write().map_err(failed)?;
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
                    Effect::Reply { .. } | Effect::WakeAt(_) => {}
                }
            }
        }
        write.commit().map_err(failed)
    }
}
