//! Overlays: what tools write over evidence is theirs, and the evidence is not touched.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cheetah_lab::dice::Dice;
use cheetah_lab::direct::{self, Aligned};
use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::mounted::Mounted;
use cheetah_lab::pool::{Attached, Pool, State};
use cheetah_lab::{hash, tools, wait};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// For a rebuild on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn pool_of(donors: &[(&str, &str)]) -> Pool {
    let mut pool = Pool::start();
    for (name, size) in donors {
        pool.donate(name, size);
    }
    pool
}

/// Loads an image as `case`, which is sealed then.
fn load(pool: &Pool, image: &Path) {
    let said = pool.ok(["load", &image.display().to_string(), "case"]);
    tools::names(&said, &["sealed: "]);
}

/// The first attachment of an overlay makes it.
fn lay_over(pool: &mut Pool) {
    pool.ok(["attach", "case", "--front", "export", "--overlay"]);
    pool.detach("case-overlay");
}

/// The volume under it holds what was loaded, by its donors and by its seal.
fn is_untouched(pool: &mut Pool, image: &Path) {
    tools::names(&pool.ok(["verify", "case"]), &["every block is what was written"]);
    let under = pool.attach_fuse("case", &[]);
    assert_eq!(hash::of_file(&under.path), hash::of_file(image), "the evidence changed");
    pool.detach("case");
}

/// An image of a file system that is still mounted: its log is to be replayed.
fn dirty(pool: &Pool, make: &[&str], mount: &[&str], bytes: u64) -> PathBuf {
    let (disk, image) = (pool.scratch().join("disk.raw"), pool.scratch().join("seized.raw"));
    fs::File::create(&disk).and_then(|file| file.set_len(bytes)).expect("a disk");
    tools::expect_success(tools::command(make[0]).args(&make[1..]).arg(&disk));
    let point = pool.scratch().directory("seized");
    let mounted = Mounted::new(&[mount, &["-o", "loop"]].concat(), &disk, &point);
    for number in 0..50u8 {
        fs::write(point.join(format!("file {number}")), vec![number; 10_000]).expect("a file");
    }
    tools::run("sync", ["-f", &point.display().to_string()]);
    fs::write(point.join("last"), b"written last").expect("a file");
    fs::File::open(point.join("last")).and_then(|file| file.sync_all()).expect("on its disk");
    fs::copy(&disk, &image).expect("a copy of a disk in use");
    mounted.unmount();
    image
}

/// Mounted for writing over an overlay, used, checked, and mounted by the next.
fn is_used_over_an_overlay(make: &[&str], mount: &[&str], check: &[&str], bytes: u64) {
    tools::need_root("loop devices and mounts");
    let mut pool = pool_of(&[("one", "1G"), ("two", "1G")]);
    let image = dirty(&pool, make, mount, bytes);
    load(&pool, &image);
    lay_over(&mut pool);
    let point = pool.scratch().directory("point");

    let device = pool.attach_loop("case-overlay", &[]).path;
    let mounted = Mounted::new(mount, &device, &point);
    assert_eq!(fs::read(point.join("last")).expect("its log was replayed"), b"written last");
    fs::remove_file(point.join("file 3")).expect("a file less");
    fs::write(point.join("new"), vec![7; 300_000]).expect("a file more");
    mounted.unmount();
    tools::run(check[0], check[1..].iter().copied().chain([device.display().to_string().as_str()]));
    pool.detach("case-overlay");
    let diff = pool.json(["diff", "case-overlay"]);
    assert!(
        diff["bytes_changed"].as_u64().is_some_and(|bytes| bytes > 300_000 && bytes < 64 * MIB),
        "{diff}"
    );
    is_untouched(&mut pool, &image);

    // Whoever comes next goes on with it.
    let device = pool.attach_loop("case-overlay", &[]).path;
    let mounted = Mounted::new(mount, &device, &point);
    assert_eq!(fs::read(point.join("new")).expect("it was written"), vec![7; 300_000]);
    assert!(!point.join("file 3").exists() && point.join("file 4").exists());
    mounted.unmount();
    pool.detach("case-overlay");
    is_untouched(&mut pool, &image);
}

#[test]
fn ext4_in_use_is_mounted_and_mended_over_evidence() {
    is_used_over_an_overlay(&["mkfs.ext4", "-q"], &[], &["e2fsck", "-f", "-y"], 96 * MIB);
}

#[test]
fn xfs_in_use_is_mounted_and_mended_over_evidence() {
    is_used_over_an_overlay(&["mkfs.xfs", "-q"], &[], &["xfs_repair"], 320 * MIB);
}

#[test]
fn btrfs_in_use_is_mounted_and_mended_over_evidence() {
    is_used_over_an_overlay(
        &["mkfs.btrfs", "-q"],
        &[],
        &["btrfs", "check", "--repair", "--force"],
        160 * MIB,
    );
}

#[test]
fn ntfs_in_use_is_mounted_and_mended_over_evidence() {
    is_used_over_an_overlay(&["mkntfs", "-q", "-F"], &["-t", "ntfs-3g"], &["ntfsfix"], 96 * MIB);
}

/// A file of blocks of which no two are the same.
fn image(pool: &Pool, bytes: usize) -> (PathBuf, Vec<u8>) {
    let mut dice = Dice::new(38);
    let bytes: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| dice.roll().to_le_bytes()).take(bytes).collect();
    (pool.scratch().file("disk.raw", &bytes), bytes)
}

/// Writes of all lengths anywhere, some of zeros, beside a copy of what has to come of them.
fn scribble(attached: &Attached, seen: &mut [u8], dice: &mut Dice, writes: usize) {
    let file = fs::File::options().read(true).write(true).open(&attached.path).expect("the view");
    for _ in 0..writes {
        let len = usize::try_from(dice.below(40_000) + 1).expect("small");
        let at = usize::try_from(dice.below((seen.len() - len) as u64)).expect("small");
        let bytes = vec![u8::try_from(dice.below(256)).expect("a byte"); len];
        file.write_all_at(&bytes, at as u64).expect("there is room");
        seen[at..at + len].copy_from_slice(&bytes);
    }
    file.sync_all().expect("on its donors");
}

#[test]
fn the_view_is_the_evidence_with_what_was_written_over_it() {
    let mut pool = pool_of(&[("one", "256M"), ("two", "256M"), ("three", "256M")]);
    // Its last block is not whole.
    let (file, mut seen) = image(&pool, (40 << 20) + 1536);
    load(&pool, &file);
    lay_over(&mut pool);
    tools::names(&pool.ok(["list"]), &["overlay of case"]);
    tools::names(&pool.ok(["show", "case-overlay"]), &["what tools change of 'case'", "is not touched"]);
    tools::names(&pool.ok(["log", "case"]), &["overlay case-overlay was made over it"]);
    let mut dice = Dice::new(7);
    for _ in 0..3 {
        let attached = pool.attach_fuse("case-overlay", &[]);
        scribble(&attached, &mut seen, &mut dice, 300);
        assert!(fs::read(&attached.path).expect("the view") == seen, "through the mount that wrote");
        let zeros = (11 << 20)..(12 << 20) + 100;
        let range = [zeros.start.to_string(), (zeros.end - zeros.start).to_string()];
        let path = attached.path.display().to_string();
        tools::run("fallocate", ["--zero-range", "--keep-size", "-o", &range[0], "-l", &range[1], &path]);
        seen[zeros].fill(0);
        let end = seen.len() - 700;
        fs::File::options()
            .write(true)
            .open(&attached.path)
            .and_then(|file| file.write_all_at(&[0xEE; 700], end as u64))
            .expect("its last bytes");
        seen[end..].fill(0xEE);
        pool.detach("case-overlay");
        let attached = pool.attach_fuse("case-overlay", &[]);
        assert!(fs::read(&attached.path).expect("the view") == seen, "by the next who attached it");
        pool.detach("case-overlay");
    }
    let saved = pool.scratch().join("saved.raw");
    pool.ok(["save", "case-overlay", &saved.display().to_string()]);
    assert!(fs::read(&saved).expect("a copy") == seen, "what tools see is saved");
    is_untouched(&mut pool, &file);
    pool.ok(["verify", "case-overlay"]);

    // A donor of both goes, and neither loses anything.
    pool.donate("spare", "256M");
    pool.donor("one").kill();
    wait::until("all to be rebuilt", LONG, || {
        ["case", "case-overlay"].iter().all(|name| pool.volume_status(name)["health"] == "whole")
    });
    let attached = pool.attach_fuse("case-overlay", &["--read-only"]);
    assert!(fs::read(&attached.path).expect("the view") == seen, "after a donor's end");
    pool.detach("case-overlay");
    is_untouched(&mut pool, &file);
}

#[test]
fn what_was_acknowledged_is_there_after_its_daemon_was_killed() {
    let mut pool = pool_of(&[("one", "256M"), ("two", "256M")]);
    let (file, was) = image(&pool, 48 << 20);
    load(&pool, &file);
    lay_over(&mut pool);
    let mut dice = Dice::new(11);
    let blocks = was.len() / BLOCK;
    let mut held: Vec<Option<u8>> = vec![None; blocks];
    for round in 1..=10u8 {
        let attached = pool.attach_fuse("case-overlay", &[]);
        let view = direct::open(&attached.path, true).expect("the view");
        let written: std::sync::Mutex<Vec<(usize, bool)>> = std::sync::Mutex::default();
        let kill_after = dice.below(150);
        std::thread::scope(|scope| {
            for writer in 0..4u64 {
                let (view, written) = (&view, &written);
                let mut dice = Dice::new(u64::from(round) * 100 + writer);
                scope.spawn(move || {
                    let mut block = Aligned::new(BLOCK);
                    block.bytes().fill(round);
                    loop {
                        // Each has blocks of its own.
                        let at = usize::try_from(dice.below(blocks as u64 / 4)).expect("small") * 4
                            + usize::try_from(writer).expect("small");
                        let is_done = view.write_all_at(block.bytes(), (at * BLOCK) as u64).is_ok();
                        written.lock().expect("no writer panics").push((at, is_done));
                        if !is_done {
                            return;
                        }
                    }
                });
            }
            wait::until("some writes", wait::SOON, || {
                written.lock().expect("no writer panics").len() as u64 > kill_after
            });
            tools::run("kill", ["-KILL", &attached.pid.to_string()]);
        });
        let in_flight: Vec<usize> = {
            let written = written.into_inner().expect("no writer panics");
            written.iter().filter(|(_, done)| *done).for_each(|(at, _)| held[*at] = Some(round));
            written.iter().filter(|(_, done)| !done).map(|(at, _)| *at).collect()
        };
        drop(view);
        pool.detach("case-overlay");
        let attached = pool.attach_fuse("case-overlay", &[]);
        let now = fs::read(&attached.path).expect("the view");
        for (at, expected) in held.iter_mut().enumerate() {
            let block = &now[at * BLOCK..][..BLOCK];
            let is = |byte: u8| block.iter().all(|other| *other == byte);
            let was_there = expected.map_or_else(|| block == &was[at * BLOCK..][..BLOCK], is);
            let came = in_flight.contains(&at) && is(round);
            assert!(was_there || came, "round {round}: block {at} is neither old nor new");
            if came {
                *expected = Some(round);
            }
        }
        pool.detach("case-overlay");
    }
    is_untouched(&mut pool, &file);
}

#[test]
fn what_is_no_evidence_has_no_overlay_and_what_has_one_stays() {
    let mut pool = pool_of(&[("one", "256M")]);
    pool.ok(["create", "scratch", "64M"]);
    let said = pool.run(["attach", "scratch", "--front", "export", "--overlay"]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    tools::names(&said.err, &["may still be changed", "`cheetah seal scratch`"]);
    let (file, _) = image(&pool, 1 << 20);
    load(&pool, &file);
    lay_over(&mut pool);
    let image = file.display().to_string();
    for (line, word) in [
        (&["delete", "case"][..], "'case-overlay': delete that first"),
        (&["attach", "case-overlay", "--front", "export", "--overlay"], "is an overlay itself"),
        (&["attach", "case", "--front", "export", "--overlay", "scratch"], "is no overlay"),
        (&["seal", "case-overlay"], "is an overlay"),
        (&["load", &image, "case-overlay", "--overwrite"], "is an overlay"),
        (&["diff", "case"], "is no overlay"),
        (&["attach", "case", "--overlay", "--read-only"], "cannot be used with"),
    ] {
        let said = pool.run(line);
        assert!(!said.status.success(), "{line:?}: {}", said.out);
        tools::names(&said.err, &[word]);
    }
    pool.ok(["delete", "case-overlay"]);
    pool.ok(["delete", "case"]);
}

/// What a source has yet to give is read from it through the overlay, and what is written is not filled over.
#[test]
fn evidence_that_is_still_filled_is_written_over() {
    let mut pool = pool_of(&[("one", "256M"), ("two", "256M")]);
    let (file, mut seen) = image(&pool, 40 << 20);
    pool.ok(["open", &file.display().to_string(), "case", "--rate", "1M"]);
    lay_over(&mut pool);
    let attached = pool.attach_fuse("case-overlay", &[]);
    scribble(&attached, &mut seen, &mut Dice::new(3), 100);
    assert!(fs::read(&attached.path).expect("the view") == seen);
    pool.ok(["fill", "case", "--rate", "0"]);
    wait::until("all of it to be here", LONG, || pool.volume_status("case")["content"]["state"] == "loaded");
    assert!(fs::read(&attached.path).expect("the view") == seen, "when all is here");
    pool.detach("case-overlay");
    is_untouched(&mut pool, &file);
}

/// 32 MiB that begin and end inside of blocks, which is as much as one request may have; by another host.
#[test]
fn the_largest_request_is_written_and_another_host_goes_on_with_it() {
    let lan = Arc::new(Lan::new(2, "10gbit"));
    let mut pool = Pool::with(State::Memory, Some(lan));
    pool.donate_everywhere(2, "256M");
    let (file, mut seen) = image(&pool, 100 << 20);
    load(&pool, &file);
    lay_over(&mut pool);
    let socket = pool.scratch().join("overlay.sock");
    let listen = format!("unix:{}", socket.display());
    let on_other_host = |pool: &Pool, arguments: &[&str]| {
        let mut command = pool.command_on(Node::Donor(2));
        command.env("XDG_RUNTIME_DIR", pool.scratch().directory("other-host")).args(arguments);
        tools::expect_success(&mut command)
    };
    let uri = format!("nbd+unix:///case-overlay?socket={}", socket.display());
    let script = format!(
        "import nbd; h = nbd.NBD(); h.connect_uri('{uri}'); h.pwrite(b'D' * (32 << 20), (3 << 20) + 511); \
         h.flush(); h.shutdown()"
    );
    for round in 0..2 {
        on_other_host(&pool, &["attach", "case-overlay", "--front", "export", "--listen", &listen]);
        tools::run("python3", ["-c", &script]);
        on_other_host(&pool, &["detach", "case-overlay"]);
        let begin = (3 << 20) + 511;
        seen[begin..begin + (32 << 20)].fill(b'D');
        let attached = pool.attach_fuse("case-overlay", &["--read-only"]);
        assert!(fs::read(&attached.path).expect("the view") == seen, "round {round}");
        pool.detach("case-overlay");
    }
    is_untouched(&mut pool, &file);
}

/// The writes that do not fit fail, nothing else does, and what fits later is written.
#[test]
fn an_overlay_without_room_fails_writes_and_nothing_else() {
    let mut pool = pool_of(&[("one", "256M")]);
    let (file, _) = image(&pool, 150 << 20);
    load(&pool, &file);
    lay_over(&mut pool);
    let attached = pool.attach_fuse("case-overlay", &[]);
    let view = direct::open(&attached.path, true).expect("the view");
    let mut block = Aligned::new(1 << 20);
    block.bytes().fill(9);
    let mut write = |at: u64| view.write_all_at(block.bytes(), at * MIB);
    let full = (0..150).find(|at| write(*at).is_err()).expect("64 MiB do not take 150");
    assert!((50..64).contains(&full), "{full} MiB were written");
    assert!(write(3).is_ok(), "what has its place is written");
    let mut now = Aligned::new(1 << 20);
    view.read_exact_at(now.bytes(), (full - 1) * MIB).expect("it was written");
    assert!(now.bytes().iter().all(|byte| *byte == 9));
    view.read_exact_at(now.bytes(), 149 * MIB).expect("the evidence reads on");
    pool.donate("two", "128M");
    wait::until("the write to fit", LONG, || write(full).is_ok());
    drop(view);
    pool.detach("case-overlay");
    is_untouched(&mut pool, &file);
}
