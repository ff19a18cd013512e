//! A file as a disk of encrypted blocks: what is in memory, on the disk, and there when it is opened again.

use super::*;
use crate::arena::Said;
use crate::auth::{self, AUTH_BYTES, Auth};
use crate::code::crc32c;
use cheetah_core::disk::NO_AUTH;
use cheetah_core::map::VolumeId;
use cheetah_nbd::Digest;
use std::collections::BTreeMap;
use tokio::sync::mpsc as told;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A file on a disk, which is gone at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = PathBuf::from(format!("/var/tmp/cheetah-disk-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Place(path)
    }

    fn open(&self) -> Disk {
        let bytes = (!self.0.exists()).then_some(100 << 20);
        loop {
            match Disk::open(&DiskAt::File { path: self.0.clone(), bytes }, 1 << 20) {
                // The threads of the one before have it until they end.
                Err(DiskError::InUse(_)) => std::thread::sleep(std::time::Duration::from_millis(10)),
                other => return other.expect("it is lent"),
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn lent(place: &Place) -> Disk {
    let disk = place.open();
    assert!(disk.keeps_auths());
    let owners = BTreeMap::from([(0, VolumeId(5))]);
    disk.keep(Held { owners, ..Held::default() }).expect("it is put down");
    disk
}

fn block(byte: u8) -> (Vec<u8>, Auth) {
    (vec![byte; BLOCK], [byte ^ 0x5a; AUTH_BYTES])
}

/// As a connection does when all of a write has landed.
fn lands(disk: &Disk, number: u64, (bytes, auth): &(Vec<u8>, Auth)) {
    let at = number * BLOCK_BYTES;
    disk.begin(at, BLOCK_BYTES);
    let begun = disk.arena().begin_write(at, BLOCK_BYTES);
    disk.arena().copy_in(at, bytes);
    disk.arena().set_auths(at, &[*auth]);
    disk.arena().wrote(begun, BLOCK_BYTES, None, None);
}

fn teller() -> (Teller, told::UnboundedReceiver<Told>) {
    let (tell, told) = told::unbounded_channel();
    (Teller { tell, waits_for: 1 }, told)
}

fn commit(disk: &Disk, number: u64) {
    let (teller, mut told) = teller();
    disk.commit(number * BLOCK_BYTES, BLOCK_BYTES, teller);
    told.blocking_recv().expect("it is told").result.expect("it is written");
}

/// What is read of a block, once it is in memory.
fn read(disk: &Disk, number: u64) -> (Vec<u8>, Auth) {
    let (teller, mut told) = teller();
    if disk.hold(number * BLOCK_BYTES, BLOCK_BYTES, &teller) == Hold::Waits {
        told.blocking_recv().expect("it is told").result.expect("it is read");
    }
    let mut bytes = vec![0; BLOCK];
    disk.arena().copy_out(number, &mut bytes);
    assert!(disk.arena().is_right(number), "block {number}");
    disk.let_go(number * BLOCK_BYTES, BLOCK_BYTES);
    (bytes, disk.arena().auths(number * BLOCK_BYTES, BLOCK_BYTES).next().expect("one"))
}

fn checks(disk: &Disk, number: u64) -> bool {
    let (teller, mut told) = teller();
    disk.check(number * BLOCK_BYTES, BLOCK_BYTES, teller);
    told.blocking_recv().expect("it is told").right[0]
}

#[test]
fn a_block_is_read_with_what_belongs_to_it_from_memory_and_from_the_file() {
    let place = Place::new("read");
    let disk = lent(&place);
    lands(&disk, 3, &block(1));
    assert_eq!((read(&disk, 3), disk.arena().auths_ahead()), (block(1), 1));
    commit(&disk, 3);
    assert_eq!((read(&disk, 3), disk.arena().auths_ahead()), (block(1), 0), "it takes no more memory");
    // What is not what its client meant does not count.
    lands(&disk, 3, &block(2));
    disk.cut(3 * BLOCK_BYTES, BLOCK_BYTES);
    assert_eq!((read(&disk, 3), disk.arena().auths_ahead()), (block(1), 0));
    assert!(checks(&disk, 3));
    lands(&disk, 4, &block(7));
    commit(&disk, 4);
    disk.begin(4 * BLOCK_BYTES, BLOCK_BYTES);
    disk.arena().zero(4 * BLOCK_BYTES, BLOCK_BYTES, false);
    commit(&disk, 4);
    drop(disk);
    let disk = place.open();
    assert_eq!(read(&disk, 3), block(1));
    assert!(checks(&disk, 3) && checks(&disk, 4));
    assert_eq!(disk.arena().auths(4 * BLOCK_BYTES, BLOCK_BYTES).next(), Some(NO_AUTH), "zeros have none");
    disk.wipe(&[0]).expect("it is wiped");
    assert_eq!(disk.arena().auths(3 * BLOCK_BYTES, BLOCK_BYTES).next(), Some(NO_AUTH));
}

#[test]
fn what_lands_with_write_back_has_it_in_memory_and_on_the_file_after_a_flush() {
    let place = Place::new("write-back");
    let disk = lent(&place);
    let (bytes, auth) = block(9);
    let sum = crc32c(&bytes) ^ auth::sum(&auth);
    let sums = Digest::of_blocks(3, [sum]);
    let said = Some(Said { digest: Digest { sums }, first: 3 });
    let land = |auth: &Auth| {
        let (teller, told) = teller();
        (disk.land(3 * BLOCK_BYTES, (&bytes, &[*auth]), said, false, teller), told)
    };
    assert_eq!(land(&[1; AUTH_BYTES]).0, None, "with another's it is not what its client said");
    let (landed, mut told) = land(&auth);
    if landed == Some(Landed::Waits) {
        told.blocking_recv().expect("it is told").result.expect("it may be in memory");
    }
    assert_eq!(read(&disk, 3), (bytes.clone(), auth));
    let (teller, mut told) = teller();
    if !disk.flush(teller) {
        told.blocking_recv().expect("it is told").result.expect("it is flushed");
    }
    assert!(checks(&disk, 3));
    assert_eq!(disk.arena().auths_ahead(), 0);
    drop(disk);
    let disk = place.open();
    // Its region may be older, as far as the disk knows, until that is taken back.
    disk.adopt(3 * BLOCK_BYTES, BLOCK_BYTES);
    assert_eq!(read(&disk, 3), (bytes, auth));
}
