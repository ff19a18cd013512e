//! The FUSE file over a real volume: it behaves as a block device would, whatever tools do to it.
//! Needs /dev/fuse and the right to mount; without them these tests fail, they do not skip.
#![allow(clippy::unwrap_used)]

mod support;

use cheetah_front::export::{self, Endpoint};
use cheetah_front::fuse::{self, MountError, Mounted, Options, UnmountError};
use cheetah_front::mountinfo;
use cheetah_rim::stream::Transport;
use rustix::mount::{MountFlags, UnmountFlags};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use support::{Client, World, noise};

const SIZE: u64 = 9 * 1024 * 1024 + 777;

fn mount(world: &World) -> Mounted {
    fuse::mount(&world.shared, &world.mountpoint(), &Options::default()).unwrap()
}

fn open(mounted: &Mounted) -> File {
    OpenOptions::new().read(true).write(true).open(mounted.path()).unwrap()
}

#[test]
fn bytes_come_back_and_the_size_is_exact() {
    let world = World::new("bytes", SIZE);
    let mut mounted = mount(&world);
    assert_eq!(mounted.path(), world.mountpoint().canonicalize().unwrap().join("scratch.raw"));
    let file = open(&mounted);
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o7777), (SIZE, 0o600));
    let bytes = noise(1, SIZE as usize);
    file.write_all_at(&bytes, 0).unwrap();
    file.sync_all().unwrap();
    assert!(std::fs::read(mounted.path()).unwrap() == bytes);
    let mut few = [0; 100];
    assert_eq!(file.read_at(&mut few, SIZE - 10).unwrap(), 10);
    assert_eq!(file.read_at(&mut few, SIZE).unwrap(), 0);
    drop(file);
    mounted.unmount().unwrap();
    assert!(*mounted.ended().borrow());
    assert_eq!(std::fs::read_dir(world.mountpoint()).unwrap().count(), 0);
}

#[test]
fn it_neither_grows_nor_shrinks_nor_goes_away() {
    let world = World::new("fixed", SIZE);
    let mounted = mount(&world);
    let file = open(&mounted);
    file.write_all_at(b"kept", 0).unwrap();
    assert_eq!(file.write_at(&[1; 100], SIZE - 30).unwrap(), 30, "up to the end");
    let full = file.write_at(&[1], SIZE).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(file.set_len(SIZE + 1).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    file.set_len(0).unwrap();
    drop(File::create(mounted.path()).unwrap());
    assert_eq!(std::fs::metadata(mounted.path()).unwrap().len(), SIZE);
    assert_eq!(&std::fs::read(mounted.path()).unwrap()[..4], b"kept");
    let refused = [
        std::fs::remove_file(mounted.path()),
        std::fs::write(world.mountpoint().join("other"), "x"),
        std::fs::create_dir(world.mountpoint().join("folder")),
        std::fs::rename(mounted.path(), world.mountpoint().join("renamed")),
    ];
    assert!(refused.iter().all(Result::is_err));
}

#[test]
fn holes_read_as_zeroes_and_are_found() {
    use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
    let world = World::new("holes", SIZE);
    let mounted = mount(&world);
    let file = open(&mounted);
    file.write_all_at(&vec![7; 1 << 20], 0).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, 100_000, 200_000).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE | keep, 500_000, 10).unwrap();
    let mut expected = vec![7; 1 << 20];
    expected[100_000..300_000].fill(0);
    expected[500_000..500_010].fill(0);
    assert!(std::fs::read(mounted.path()).unwrap()[..1 << 20] == expected);
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 10), Err(rustix::io::Errno::OPNOTSUPP));
    let hole = seek(&file, SeekFrom::Hole(0)).unwrap();
    assert!((100_000..110_000).contains(&hole), "{hole}");
    let data = seek(&file, SeekFrom::Data(hole)).unwrap();
    assert!((290_000..=300_000).contains(&data), "{data}");
    assert_eq!(seek(&file, SeekFrom::Data(2 << 20)), Err(rustix::io::Errno::NXIO));
}

/// Looks again until it holds: the kernel keeps what it was told of a file for a moment.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn writes_move_its_time_and_what_it_takes() {
    use rustix::fs::{FallocateFlags, fallocate};
    let world = World::new("times", SIZE);
    let exported =
        export::serve(&world.shared, &Endpoint::Unix(world.folder.join("sock")), Transport::default())
            .unwrap();
    let mounted = mount(&world);
    let stat = || std::fs::metadata(mounted.path()).unwrap();
    wait_until("nothing takes no blocks", || stat().blocks() == 0);
    let attached = stat().modified().unwrap();
    let file = open(&mounted);
    file.write_all_at(&noise(1, 8192), 4096).unwrap();
    let written = stat().modified().unwrap();
    assert!(written > attached);
    wait_until("two blocks of 4 KiB", || stat().blocks() == 16);
    assert_eq!(stat().modified().unwrap(), written, "a look is no write");
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 4096).unwrap();
    let punched = stat().modified().unwrap();
    assert!(punched > written);
    wait_until("one is left", || stat().blocks() == 8);
    // By another front end of the same volume.
    assert_eq!(Client::connect(&world.folder.join("sock")).write(1 << 20, &noise(2, 4096)), 0);
    wait_until("the export's write is seen", || {
        stat().modified().unwrap() > punched && stat().blocks() == 16
    });
    drop(exported);
}

/// More at once, and larger, than there are buffers: who comes late waits, and nobody for ever.
#[test]
fn more_requests_than_buffers_are_all_answered() {
    const THREADS: u64 = 64;
    const PIECE: usize = 1 << 20;
    let world = World::new("crowd", THREADS * PIECE as u64 + 777);
    let mounted = mount(&world);
    let path = mounted.path();
    let mut direct = OpenOptions::new();
    direct.read(true).write(true).custom_flags(libc::O_DIRECT);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let file = direct.open(path).unwrap();
            scope.spawn(move || {
                // O_DIRECT wants an aligned place.
                let mut memory = vec![0; PIECE + 4096];
                let at = memory.as_ptr().align_offset(4096);
                let room = &mut memory[at..at + PIECE];
                let offset = number * PIECE as u64;
                for round in 0..4 {
                    let bytes = noise(number * 10 + round, PIECE);
                    room.copy_from_slice(&bytes);
                    assert_eq!(file.write_at(room, offset).unwrap(), PIECE);
                    // One request of each size that has buffers of its own.
                    assert_eq!(file.write_at(&room[..4096], offset).unwrap(), 4096);
                    room.fill(0);
                    file.read_exact_at(room, offset).unwrap();
                    assert!(*room == bytes[..], "piece {number}");
                    file.sync_data().unwrap();
                }
            });
        }
    });
}

#[test]
fn the_directory_has_one_file_and_its_size_is_that_of_the_volume() {
    let world = World::new("directory", SIZE);
    let mounted = mount(&world);
    let names: Vec<_> =
        std::fs::read_dir(world.mountpoint()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["scratch.raw"]);
    let statistics = rustix::fs::statvfs(mounted.path()).unwrap();
    assert_eq!(statistics.f_blocks * statistics.f_frsize, SIZE.next_multiple_of(4096));
    assert!(std::fs::metadata(world.mountpoint().join("another")).is_err());
    // What a device has not: the kernel hears once that it is not there.
    for _ in 0..2 {
        let mut value = [0; 10];
        let refused = rustix::fs::getxattr(mounted.path(), "user.case", &mut value).unwrap_err();
        assert_eq!(refused, rustix::io::Errno::OPNOTSUPP);
    }
    let long = "x".repeat(255);
    let refused = std::fs::metadata(world.mountpoint().join(long)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::NotFound);
    let large = vec![1; 60_000];
    let flags = rustix::fs::XattrFlags::empty();
    assert!(rustix::fs::setxattr(mounted.path(), "user.large", &large, flags).is_err());
    assert_eq!(std::fs::metadata(mounted.path()).unwrap().len(), SIZE);
}

#[test]
fn growth_shows_in_a_file_that_is_open() {
    let world = World::new("growth", SIZE);
    let mounted = mount(&world);
    let file = open(&mounted);
    assert_eq!(file.metadata().unwrap().len(), SIZE);
    let size = SIZE + 200 * 1024 * 1024 + 1;
    world.grow(size);
    // The kernel is told by a thread of its own.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while file.metadata().unwrap().len() != size {
        assert!(std::time::Instant::now() < deadline, "the new size never showed");
        std::thread::yield_now();
    }
    file.write_all_at(b"behind the old end", size - 18).unwrap();
    let mut end = [0; 18];
    file.read_exact_at(&mut end, size - 18).unwrap();
    assert_eq!(&end, b"behind the old end");
}

#[test]
fn a_read_only_file_cannot_be_opened_for_writing() {
    let world = World::with("sealed", SIZE, true);
    let mounted = mount(&world);
    let metadata = std::fs::metadata(mounted.path()).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o400);
    let refused = OpenOptions::new().write(true).open(mounted.path()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(std::fs::read(mounted.path()).unwrap().len() as u64, SIZE);
}

/// Whoever still has the file open when its volume ends gets an error, and no tool hangs.
#[test]
fn a_volume_that_is_closed_under_its_mount_leaves_errors() {
    let world = World::new("closed", SIZE);
    let mounted = mount(&world);
    let file = open(&mounted);
    let handle = world.handle.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(handle.close());
    assert!(file.read_at(&mut [0; 10], 0).is_err());
    drop(mounted);
    assert!(file.read_at(&mut [0; 10], 4096).is_err());
    assert!(file.sync_all().is_err());
    assert_eq!(mount_at(&world), None, "it does not stay behind");
}

/// A dead mount cannot be looked at; its parent can.
fn mount_at(world: &World) -> Option<mountinfo::MountEntry> {
    let point = world.folder.canonicalize().unwrap().join("mnt");
    mountinfo::at(&mountinfo::read().unwrap(), &point).cloned()
}

#[test]
fn who_unmounts_it_elsewhere_ends_it() {
    let world = World::new("elsewhere", SIZE);
    let mut mounted = mount(&world);
    let mut ended = mounted.ended();
    assert!(!*ended.borrow());
    rustix::mount::unmount(world.mountpoint(), UnmountFlags::empty()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let limit = std::time::Duration::from_secs(20);
    runtime.block_on(async {
        tokio::time::timeout(limit, ended.wait_for(|ended| *ended)).await.unwrap().unwrap()
    });
    // What another mounts there since is not ours to unmount.
    assert_eq!(mount_at(&world), None);
    dead_mount(&world, "another");
    mounted.unmount().unwrap();
    drop(mounted);
    assert_eq!(mount_at(&world).unwrap().source, "another");
    rustix::mount::unmount(world.mountpoint(), UnmountFlags::DETACH).unwrap();
    // Nor what covers it.
    let mut mounted = mount(&world);
    rustix::mount::mount("none", world.mountpoint(), "tmpfs", MountFlags::empty(), None).unwrap();
    let covered = mounted.unmount().unwrap_err();
    assert!(matches!(&covered, UnmountError::Covered { .. }), "{covered}");
    assert_eq!(mount_at(&world).unwrap().fs_type, "tmpfs");
    rustix::mount::unmount(world.mountpoint(), UnmountFlags::empty()).unwrap();
    mounted.unmount().unwrap();
    assert_eq!(mount_at(&world), None);
    // Nothing of it is left on the volume: it can be mounted as often as one likes.
    for _ in 0..50 {
        mount(&world).unmount().unwrap();
    }
}

#[test]
fn a_busy_mount_stays_until_it_is_free() {
    let world = World::new("busy", SIZE);
    let mut mounted = mount(&world);
    let file = open(&mounted);
    assert!(matches!(mounted.unmount(), Err(UnmountError::Used { .. })));
    file.write_all_at(b"still served", 0).unwrap();
    let again = fuse::mount(&world.shared, &world.mountpoint(), &Options::default()).unwrap_err();
    assert!(matches!(&again, MountError::Busy { by, .. } if by.contains("cheetah:scratch")), "{again}");
    drop(file);
    mounted.unmount().unwrap();
}

/// By a bind, the kernel would let it be unmounted.
#[test]
fn it_stays_while_it_is_mounted_elsewhere_too() {
    let world = World::new("bound", SIZE);
    let mut mounted = mount(&world);
    let (bound, single) = (world.folder.join("bound"), world.folder.join("single"));
    std::fs::create_dir_all(&bound).unwrap();
    std::fs::write(&single, "").unwrap();
    for (from, to) in [(world.mountpoint(), &bound), (mounted.path().to_path_buf(), &single)] {
        rustix::mount::mount_bind(&from, to).unwrap();
        let refused = mounted.unmount().unwrap_err();
        assert!(refused.to_string().contains(&to.display().to_string()), "{refused}");
        assert!(std::fs::metadata(mounted.path()).is_ok() && std::fs::metadata(to).is_ok());
        rustix::mount::unmount(to, UnmountFlags::empty()).unwrap();
    }
    // What is open goes by no mount that is listed.
    rustix::mount::mount_bind(world.mountpoint(), &bound).unwrap();
    let file = OpenOptions::new().write(true).open(bound.join(mounted.path().file_name().unwrap())).unwrap();
    rustix::mount::unmount(&bound, UnmountFlags::DETACH).unwrap();
    let refused = mounted.unmount().unwrap_err();
    assert!(matches!(&refused, UnmountError::Used { .. }), "{refused}");
    file.write_all_at(b"still served", 0).unwrap();
    drop(file);
    mounted.unmount().unwrap();
}

/// What a killed daemon leaves: a mount whose descriptor nobody holds.
fn dead_mount(world: &World, source: &str) {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    rustix::mount::mount(source, world.mountpoint(), "fuse", MountFlags::NODEV, Some(data.as_c_str()))
        .unwrap();
}

#[test]
fn the_mount_of_a_dead_daemon_is_cleared_away() {
    let world = World::new("dead", SIZE);
    dead_mount(&world, "cheetah:scratch");
    let mounted = mount(&world);
    assert_eq!(std::fs::metadata(mounted.path()).unwrap().len(), SIZE);
    drop(mounted);
    dead_mount(&world, "cheetah:scratch");
    assert!(fuse::abandon(&world.mountpoint()).is_ok_and(|done| done.detached));
    assert_eq!(mount_at(&world), None);
}

#[test]
fn the_dead_mount_of_another_is_left_alone() {
    let world = World::new("foreign", SIZE);
    dead_mount(&world, "sshfs");
    let refused = fuse::mount(&world.shared, &world.mountpoint(), &Options::default()).unwrap_err();
    assert!(matches!(&refused, MountError::Dead { .. }), "{refused}");
    assert!(fuse::abandon(&world.mountpoint()).is_err());
    rustix::mount::unmount(world.mountpoint(), UnmountFlags::DETACH).unwrap();
}
