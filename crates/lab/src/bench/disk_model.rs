//! A disk as a model: memory behind nbdkit that answers as late, and as slowly, as a disk of that kind.
//!
//! Owns: the figures of a kind of disk, the server that keeps them, and its way to a block device without a
//! pool. Never: two requests of one disk at once, whoever has how many connections: an arm is in one place.
//! A request takes its delay and then its bytes' time, also where it follows the one before it: what lies
//! side by side is cheap only in one request. A flush takes no time, so what was written is on the disk when
//! that is answered, as with a drive whose cache is off, or outlives a loss of power.
//! Called by: `postmark`. Tests: below.

use std::path::PathBuf;

use crate::rivals::{NbdFuse, Rival};
use crate::tools;

#[derive(Debug)]
pub struct DiskModel {
    pub id: &'static str,
    pub name: &'static str,
    /// Of each request, beside what the server takes itself.
    delay: Option<&'static str>,
    /// In bits a second.
    rate: &'static str,
}

/// The paper's: 7.0 ms to seek, 4.17 ms for half a turn and some more for its bus; 25 MB/s.
pub const OF_THE_PAPER: DiskModel =
    DiskModel { id: "paper", name: "disk of 2000 (12 ms, 25 MB/s)", delay: Some("12ms"), rate: "200M" };

/// What a SATA SSD's bus carries. nbdkit's delays are whole milliseconds, and what it takes itself for a
/// request, some 50 to 100 us, is about what such a disk does.
pub const SATA_SSD: DiskModel = DiskModel { id: "ssd", name: "SATA SSD (500 MB/s)", delay: None, rate: "4G" };

impl DiskModel {
    /// One such disk of so many MiB, on a Unix socket.
    #[track_caller]
    pub fn start(&self, mib: u64) -> Rival {
        let (size, rate) = (format!("{mib}M"), format!("rate={}", self.rate));
        let delays = self.delay.map(|delay| [format!("delay-read={delay}"), format!("delay-write={delay}")]);
        let delays: Vec<&str> = delays.iter().flatten().map(String::as_str).collect();
        let filters = ["--filter=noparallel", "--filter=delay", "--filter=rate", "memory"];
        // A bucket as small as this lets no more through at once than what a request is.
        let options = [&size, "serialize=all-requests", &rate, "burstiness=0.05"];
        Rival::nbdkit_unix(&[&filters[..], &options, &delays].concat())
    }
}

/// Such a disk as a block device of this machine: nbdfuse in front of it, and a loop device over that file,
/// past the page cache, as an attached volume has one.
#[derive(Debug)]
pub struct Plain {
    pub device: PathBuf,
    _file: NbdFuse,
    _server: Rival,
}

impl Plain {
    #[track_caller]
    pub fn start(model: &DiskModel, mib: u64) -> Self {
        let server = model.start(mib);
        let file = NbdFuse::start(&server.uri);
        let path = file.path.display().to_string();
        let device = tools::run("losetup", ["--find", "--show", "--direct-io=on", path.as_str()]);
        Self { device: device.trim().into(), _file: file, _server: server }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // Before what serves it ends. One that is gone is fine.
        let _ = tools::output(tools::command("losetup").arg("--detach").arg(&self.device));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, Instant};

    #[test]
    fn a_disk_takes_one_request_at_a_time_and_its_delay_for_each() {
        let plain = Plain::start(&OF_THE_PAPER, 16);
        let file = crate::direct::open(&plain.device, true).expect("a device");
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for nth in 0..8_u64 {
                let file = &file;
                scope.spawn(move || {
                    let mut page = crate::direct::Aligned::new(4096);
                    file.write_at(page.bytes(), nth << 20).expect("a write");
                });
            }
        });
        // Never sooner; how much later is the machine's affair.
        assert!(begun.elapsed() >= Duration::from_millis(8 * 12));
    }
}
