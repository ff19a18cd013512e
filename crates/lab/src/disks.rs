//! A pool whose donors lend disks, and what happens to it: power goes, and comes again.
//!
//! Owns the files that are the disks, and the end of all processes at once. Never: what a test demands of a
//! volume beyond what [`Disks::cut_power`] and [`Disks::keeps_a_file_system`] do. Tests: its users,
//! `tests/disks.rs` and `tests/disks_write_back.rs`.

use crate::mounted::Mounted;
use crate::pool::{Pool, State};
use crate::rivals::Rival;
use crate::scratch::Scratch;
use crate::verified::Verified;
use crate::writer::{self, Writer};
use crate::{tools, wait};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const WRITERS: usize = 4;
/// For a rebuild on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A pool whose donors `d1`, `d2`, ... lend a disk each; its coordinator keeps its state.
#[derive(Debug)]
pub struct Disks {
    /// The pool.
    pub pool: Pool,
    /// Where the disks are.
    pub place: Scratch,
    count: u32,
    /// Those whose disks forget what was not flushed when power goes, by number.
    caches: Option<BTreeMap<u32, Rival>>,
}

impl Disks {
    /// So many disks of this size.
    #[track_caller]
    pub fn new(count: u32, size: &str) -> Self {
        let mut disks = Disks::none(count);
        for number in 1..=count {
            let disk = format!("{}:{size}", disks.path(number).display());
            disks.lend(number, &disk);
        }
        disks
    }

    /// So many with a write cache, in front of files of so many bytes: nbdkit's, which writes to the file
    /// when it is told to flush. What it had not written then is gone with it.
    #[track_caller]
    pub fn with_write_caches(count: u32, bytes: u64) -> Self {
        let mut disks = Disks { caches: Some(BTreeMap::new()), ..Disks::none(count) };
        for number in 1..=count {
            let file = File::create(disks.path(number)).expect("a file");
            file.set_len(bytes).expect("room");
            disks.start(number);
        }
        disks
    }

    fn none(count: u32) -> Self {
        let place = Scratch::on_disk();
        Disks { pool: Pool::with(State::Directory, None), count, place, caches: None }
    }

    /// The file that is this disk.
    pub fn path(&self, number: u32) -> PathBuf {
        self.place.join(format!("disk-{number}"))
    }

    /// Kills everything there is, within a moment.
    pub fn power_off(&mut self) {
        if !self.pool.daemons().is_empty() {
            self.pool.kill_daemons();
        }
        for number in 1..=self.count {
            self.pool.donor(&format!("d{number}")).kill();
        }
        self.pool.kill_coordinator();
        if let Some(caches) = &mut self.caches {
            caches.clear();
        }
    }

    /// Starts all of it again but attachments.
    #[track_caller]
    pub fn power_on(&mut self) {
        self.pool.restart_coordinator();
        for number in 1..=self.count {
            self.start(number);
        }
    }

    /// Starts a donor on the disk that it had.
    #[track_caller]
    pub fn start(&mut self, number: u32) {
        let path = self.path(number).display().to_string();
        let disk = match &mut self.caches {
            None => path,
            Some(caches) => {
                let cache = Rival::nbdkit_unix(&["--filter=cache", "file", &path, "cache=writeback"]);
                let uri = cache.uri.clone();
                caches.insert(number, cache);
                uri
            }
        };
        self.lend(number, &disk);
    }

    /// With less memory than what is written, so that much of it is only on the disks.
    fn lend(&mut self, number: u32, disk: &str) {
        self.pool.donate_as(&format!("d{number}"), &["--disk", disk, "--cache", "64M"]);
    }

    /// Waits until a volume is whole again.
    #[track_caller]
    pub fn wait_until_whole(&self, volume: &str) {
        wait::until("it is whole again", LONG, || self.pool.volume_status(volume)["health"] == "whole");
    }

    /// A volume `v` that is made with these, and whose writers flush so often, loses nothing that they were
    /// promised by so many cuts, and fits its checksums.
    #[track_caller]
    pub fn survive(mut self, more: &[&str], flush_every: Option<usize>, cuts: u64) -> Disks {
        self.pool.ok(["create", "v", "96M", "--on", "disk"].iter().chain(more));
        let path = self.pool.attach_fuse("v", &[]).path;
        let mut writers = writer::sharing(&path, self.pool.scratch().path(), WRITERS, 96 << 20);
        if let Some(writes) = flush_every {
            writers.iter_mut().for_each(|writer| writer.flush_every(writes));
        }
        self.cut_power(("v", &path), &mut writers, cuts, |cut| 700 + cut % 5 * 300);
        assert_eq!(self.pool.lost_ranges("v"), []);
        let verified = Verified::run(&self.pool, "v");
        assert_eq!(verified.code, 0, "{verified:?}");
        self
    }

    /// Kills everything under writers of a volume that is a file at `path`, again and again, after so many
    /// milliseconds each time; what the writers were promised is there when it is on again.
    #[track_caller]
    pub fn cut_power(
        &mut self,
        (volume, path): (&str, &Path),
        writers: &mut [Writer],
        cuts: u64,
        after_ms: impl Fn(u64) -> u64,
    ) {
        for cut in 0..cuts {
            let written = writer::write_while(writers, cut * 100, || {
                thread::sleep(Duration::from_millis(after_ms(cut)));
                self.power_off();
            });
            assert!(written > 0, "cut {cut}: nobody wrote");
            self.power_on();
            assert_eq!(self.pool.attach_fuse(volume, &[]).path, path);
            for writer in &mut *writers {
                assert_eq!(writer.check(), Vec::<String>::new(), "after cut {cut}");
            }
        }
    }

    /// Cuts power under an ext4 on a volume: each time so many files were synchronised, and one was not.
    /// Those are there, and the file system is whole.
    #[track_caller]
    pub fn keeps_a_file_system(&mut self, volume: &str, rounds: u8, files: u8) {
        tools::need_root("loop devices and mounts");
        let point = self.pool.scratch().directory("point");
        let device = self.pool.attach_loop(volume, &[]).path;
        tools::expect_success(tools::command("mkfs.ext4").arg("-q").arg(&device));
        let mut sums = BTreeMap::new();
        for round in 0..rounds {
            let device = if round == 0 { device.clone() } else { self.pool.attach_loop(volume, &[]).path };
            let mounted = Mounted::new(&[], &device, &point);
            for number in 0..files {
                let name = format!("file {round} {number}");
                let bytes = vec![round.wrapping_mul(20).wrapping_add(number + 1); 200_000];
                let file = point.join(&name);
                fs::write(&file, &bytes).and_then(|()| File::open(&file)?.sync_all()).expect("on its disk");
                sums.insert(name, bytes);
            }
            // Not told to: it is cut off in the middle of the next one.
            let _ = fs::write(point.join("last"), vec![9; 5_000_000]);
            self.power_off();
            tools::run("umount", ["-l", &point.display().to_string()]);
            drop(mounted);
            self.power_on();
            let device = self.pool.attach_loop(volume, &[]).path;
            // Its log is replayed; then nothing may be left to mend.
            Mounted::new(&[], &device, &point).unmount();
            tools::expect_success(tools::command("e2fsck").args(["-f", "-n"]).arg(&device));
            let mounted = Mounted::new(&["-o", "ro"], &device, &point);
            for (name, bytes) in &sums {
                assert_eq!(fs::read(point.join(name)).expect("it was synchronised"), *bytes, "{name}");
            }
            mounted.unmount();
            self.pool.detach(volume);
        }
    }
}
