//! The loop device over the FUSE file of a real volume. Needs root and /dev/loop-control; without them this
//! fails, it does not skip.
#![allow(clippy::unwrap_used)]

mod support;

use cheetah_front::fuse::{self, Options};
use cheetah_front::loopdev::{self, LoopError};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use support::{World, noise};

const SIZE: u64 = 8 * 1024 * 1024 + 513;

fn size_of(device: &std::path::Path) -> u64 {
    let name = device.file_name().unwrap().to_str().unwrap();
    let sectors = std::fs::read_to_string(format!("/sys/block/{name}/size")).unwrap();
    sectors.trim().parse::<u64>().unwrap() * loopdev::SECTOR_BYTES
}

#[test]
fn the_device_has_whole_sectors_direct_io_and_grows() {
    let world = World::new("loop", SIZE);
    let mut mounted = fuse::mount(&world.shared, &world.mountpoint(), &Options::default()).unwrap();
    let mut device = loopdev::attach(mounted.path(), &loopdev::Options::default()).unwrap();
    assert!(device.direct_io());
    assert_eq!((size_of(&device.path()), device.hidden_tail_bytes()), (SIZE - 1, 1));
    assert!(device.notes().iter().any(|note| note.contains("whole sectors")), "{:?}", device.notes());
    assert_eq!(loopdev::standing_on(mounted.path()), [device.path()]);
    let bytes = noise(3, 1 << 20);
    let block = OpenOptions::new().read(true).write(true).open(device.path()).unwrap();
    block.write_all_at(&bytes, 512).unwrap();
    block.sync_all().unwrap();
    assert!(std::fs::read(mounted.path()).unwrap()[512..512 + (1 << 20)] == bytes);
    drop(block);
    world.grow(SIZE + 1_000_000);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let grown = (SIZE + 1_000_000) / 512 * 512;
    while device.set_capacity().unwrap() != grown {
        assert!(std::time::Instant::now() < deadline, "the device never grew");
    }
    assert!(mounted.unmount().is_err(), "a device stands on it");
    device.detach().unwrap();
    assert_eq!(loopdev::standing_on(mounted.path()), Vec::<std::path::PathBuf>::new());
    loopdev::detach(&device.path()).unwrap();
    mounted.unmount().unwrap();
}

#[test]
fn a_read_only_device_refuses_writes() {
    let world = World::with("loop-ro", SIZE, true);
    let mounted = fuse::mount(&world.shared, &world.mountpoint(), &Options::default()).unwrap();
    let options = loopdev::Options { read_only: true, ..loopdev::Options::default() };
    let device = loopdev::attach(mounted.path(), &options).unwrap();
    let name = device.path().file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(std::fs::read_to_string(format!("/sys/block/{name}/ro")).unwrap().trim(), "1");
    device.detach().unwrap();
}

#[test]
fn less_than_a_sector_is_refused() {
    let world = World::new("loop-tiny", 511);
    let mounted = fuse::mount(&world.shared, &world.mountpoint(), &Options::default()).unwrap();
    let refused = loopdev::attach(mounted.path(), &loopdev::Options::default()).unwrap_err();
    assert!(matches!(refused, LoopError::TooSmall { bytes: 511 }));
}
