//! The first fragment of an attached volume, as a client of somebody else's asks its donor for it.
//! Never: what the donor ought to say; the test does.
//! Called by: `tests/open.rs`, `tests/open_larger.rs`.

use std::fs;

use serde_json::Value;

use crate::pool::Pool;

const EXTENT_BYTES: u64 = 64 << 20;

/// Where it lies.
#[derive(Clone, Debug)]
pub struct Fragment {
    /// Its donor's export of the volume, under the lease of who has it attached.
    pub uri: String,
    /// The fragment's first byte in that export.
    pub offset: u64,
}

impl Fragment {
    /// Of a volume that a daemon of this pool's user has attached.
    ///
    /// # Panics
    /// It is not attached, or nobody holds it.
    #[track_caller]
    pub fn of(pool: &Pool, volume: &str) -> Self {
        let detail = pool.json(["show", volume]);
        let record = pool.scratch().join(format!("run/cheetah/{volume}.json"));
        let record: Value = serde_json::from_slice(&fs::read(record).expect("a record")).expect("JSON");
        let token = record["token"].as_str().expect("a lease");
        let (routes, held) = (&detail["map"]["routes"], &detail["map"]["groups"][0]["slots"][0]["held"]);
        let donor = held["donor"].as_str().expect("a donor");
        let address = routes[donor]["address"].as_str().expect("an address");
        let scheme = if pool.url().starts_with("cheetah://") { "nbds" } else { "nbd" };
        let uri = pool.certified(&format!("{scheme}://{address}/{volume}@{token}.1.{donor}"));
        Self { uri, offset: held["extent"].as_u64().expect("an extent") * EXTENT_BYTES }
    }
}
