//! A coordinator's state that was damaged: refused as it lies, or believed as it was; never changed first and
//! refused then.

mod greeter;

use cheetah_core::api::{API_VERSION, Answer, Call, Join, PoolStatus};
use cheetah_core::map::{DonorId, DonorSecret};
use cheetah_rim::control::{Client, CoordinateError, CoordinateOptions, Coordination, StateAt, coordinate};
use std::path::{Path, PathBuf};

async fn start(directory: &Path) -> Result<Coordination, CoordinateError> {
    let listen = "127.0.0.1:0".parse().expect("an address");
    coordinate(CoordinateOptions::new(listen, StateAt::Directory(directory.to_owned()))).await
}

async fn status(coordination: &Coordination) -> PoolStatus {
    let client = Client::new(&coordination.url()).expect("a URL");
    match client.call(Call::Pool).await {
        Ok(Answer::Pool(status)) => status,
        other => panic!("{other:?}"),
    }
}

/// What is stored of the donors, which is what a status tells besides time.
fn stored(status: &PoolStatus) -> Vec<(DonorId, String, String, u64)> {
    let donor = |donor: &cheetah_core::api::DonorStatus| {
        (donor.donor, donor.name.clone(), donor.address.clone(), donor.bytes_total)
    };
    status.donors.iter().map(donor).collect()
}

/// The state of a coordinator with some donors, as it lies there while that one still runs: what a `kill -9`
/// leaves.
async fn unclean(directory: &Path) -> (Vec<u8>, PoolStatus) {
    let coordination = start(directory).await.expect("starts");
    let client = Client::new(&coordination.url()).expect("a URL");
    for id in 1..=40 {
        let join = Join {
            version: API_VERSION,
            donor: DonorId(id),
            secret: DonorSecret(id),
            pool: None,
            revision: 0,
            name: format!("d{id}"),
            or_numbered: false,
            machine: String::new(),
            host: format!("host-{id}"),
            address: greeter::listens().to_string(),
            extents: 4,
            foreign_export: None,
            medium: cheetah_core::map::Medium::Memory,
            keeps_auths: false,
            lineage: None,
        };
        client.call(Call::Join(join)).await.expect("joins");
    }
    let (status, bytes) = (status(&coordination).await, std::fs::read(directory.join("pool.redb")));
    coordination.stop().await.expect("stops");
    (bytes.expect("a file"), status)
}

#[tokio::test]
async fn a_state_with_a_flipped_bit_is_refused_unchanged_or_says_what_it_said() {
    let directory: PathBuf = std::env::temp_dir().join(format!("cheetah-state-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let (unclean, before) = unclean(&directory).await;
    let file = directory.join("pool.redb");
    let clean = std::fs::read(&file).expect("a file");
    let (mut refused, mut believed) = (0, 0);
    for bytes in [clean, unclean] {
        let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        let spread = used.iter().step_by(used.len() / 60);
        // The first bytes say what the rest is.
        for at in spread.copied().chain(0..24) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            std::fs::write(&file, &damaged).expect("written");
            match start(&directory).await {
                Err(error) => {
                    refused += 1;
                    assert!(matches!(error, CoordinateError::State { .. }), "byte {at}: {error}");
                    assert!(error.to_string().contains("nothing was changed"), "{error}");
                    assert!(std::fs::read(&file).expect("a file") == damaged, "byte {at}: {error}");
                }
                Ok(coordination) => {
                    believed += 1;
                    let now = status(&coordination).await;
                    let (was, is) = (stored(&before), stored(&now));
                    // After a crash the last commit may be given up, and with it what was never answered.
                    let gone = was.len() - is.len();
                    assert!(gone <= 1 && is == was[..is.len()], "byte {at}: {is:?}");
                    assert_eq!(now.pool, before.pool, "byte {at}");
                    coordination.stop().await.expect("stops");
                }
            }
        }
    }
    assert!(refused > 10 && believed > 10, "both happen: {refused} and {believed}");
    let _ = std::fs::remove_dir_all(&directory);
}

#[tokio::test]
async fn a_state_that_is_not_a_coordinators_is_refused_unchanged() {
    let directory: PathBuf = std::env::temp_dir().join(format!("cheetah-bad-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("pool.redb");
    // A good database with a record that is none.
    let database = redb::Database::create(&file).expect("a database");
    let write = database.begin_write().expect("begins");
    {
        let records = redb::TableDefinition::<&str, &[u8]>::new("records");
        let mut table = write.open_table(records).expect("a table");
        table.insert("lease/1", &b"{\"not\": \"a record\"}"[..]).expect("inserted");
    }
    write.commit().expect("commits");
    drop(database);
    let before = std::fs::read(&file).expect("a file");
    let error = start(&directory).await.expect_err("refused");
    assert!(error.to_string().contains("lease/1"), "{error}");
    assert!(std::fs::read(&file).expect("a file") == before);
    let _ = std::fs::remove_dir_all(&directory);
}
