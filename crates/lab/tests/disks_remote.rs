//! Exports of NBD servers that others wrote, as disks of a pool: qemu-nbd and nbdkit over files.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use cheetah_lab::pool::{Pool, State};
use cheetah_lab::rivals::Rival;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::verified::Verified;
use cheetah_lab::{tools, wait, writer};

const MIB: u64 = 1 << 20;
const WRITERS: usize = 2;
const DISKS: usize = 3;
/// For a rebuild on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A pool whose donors lend what other servers have.
struct Exports {
    pool: Pool,
    servers: Vec<Rival>,
    place: Scratch,
}

impl Exports {
    fn new() -> Self {
        let place = Scratch::on_disk();
        for number in 0..DISKS {
            let file = File::create(place.join(format!("disk-{number}"))).expect("a file");
            file.set_len(300 * MIB).expect("it is as large as a disk");
        }
        let mut exports = Exports { pool: Pool::with(State::Directory, None), servers: Vec::new(), place };
        exports.start();
        exports
    }

    fn path(&self, number: usize) -> PathBuf {
        self.place.join(format!("disk-{number}"))
    }

    fn serve(&self, number: usize) -> Rival {
        let path = self.path(number);
        match number {
            0 => Rival::nbdkit(&["file", &path.display().to_string()]),
            _ => Rival::qemu_nbd_of(&path),
        }
    }

    fn start(&mut self) {
        for number in 0..DISKS {
            let server = self.serve(number);
            self.pool.donate_as(&format!("d{number}"), &["--disk", &server.uri, "--cache", "64M"]);
            self.servers.push(server);
        }
    }

    /// Kills everything there is, within a moment, the servers too.
    fn power_off(&mut self) {
        self.pool.kill_daemons();
        for mut server in self.servers.drain(..) {
            server.process.kill();
        }
        for number in 0..DISKS {
            self.pool.donor(&format!("d{number}")).kill();
        }
        self.pool.kill_coordinator();
    }
}

#[test]
fn what_was_acknowledged_on_exports_is_there_after_power_cuts() {
    let mut exports = Exports::new();
    exports.pool.ok(["create", "v", "96M", "--on", "disk", "--redundancy", "parity:2+1"]);
    let path = exports.pool.attach_fuse("v", &[]).path;
    let mut writers = writer::sharing(&path, exports.pool.scratch().path(), WRITERS, 96 * MIB);
    for cut in 0..2 {
        let written = writer::write_while(&mut writers, cut * 100, || {
            thread::sleep(Duration::from_secs(1));
            exports.power_off();
        });
        assert!(written > 0, "cut {cut}: nobody wrote");
        exports.pool.restart_coordinator();
        exports.start();
        assert_eq!(exports.pool.attach_fuse("v", &[]).path, path);
        for writer in &mut writers {
            assert_eq!(writer.check(), Vec::<String>::new(), "after cut {cut}");
        }
    }
    let verified = Verified::run(&exports.pool, "v");
    assert_eq!(verified.code, 0, "{verified:?}");
    // A server that ends takes its donor along, and no data: the others have it, and it comes back as it was.
    let written = writer::write_while(&mut writers[..1], 7, || {
        thread::sleep(Duration::from_secs(1));
        exports.servers[1].process.kill();
        let status = exports.pool.donor("d1").wait_for_end(LONG);
        assert!(!status.success());
        let server = exports.serve(1);
        exports.pool.donate_as("d1", &["--disk", &server.uri, "--cache", "64M"]);
        exports.servers[1] = server;
        wait::until("it is whole again", LONG, || exports.pool.volume_status("v")["health"] == "whole");
    });
    assert!(written > 0);
    tools::names(&exports.pool.log_of("d1"), &["nbd://"]);
    for writer in &mut writers {
        assert_eq!(writer.check(), Vec::<String>::new());
    }
}

#[test]
fn an_export_that_cannot_be_a_disk_is_refused_and_left_as_it_is() {
    let pool = Pool::start();
    let refused = |uri: &str, why: &[&str]| {
        let said = pool.fails(["donate", "--disk", uri, "--name", "other"]);
        tools::names(&said, why);
    };
    let small = Rival::nbdkit(&["memory", "20M"]);
    refused(&small.uri, &["cannot be lent", "smallest disk"]);
    let reads = Rival::nbdkit(&["-r", "memory", "300M"]);
    refused(&reads.uri, &["for reading alone"]);
    let forgets = Rival::nbdkit(&[
        "eval",
        "get_size=echo 300M",
        "pread=head -c $3 /dev/zero",
        "pwrite=cat >/dev/null",
        "can_flush=exit 3",
    ]);
    refused(&forgets.uri, &["knows no FLUSH"]);
    let place = Scratch::on_disk();
    let picture = place.join("picture");
    fs::write(&picture, vec![7; 200 * MIB as usize]).expect("a file");
    let holds = Rival::nbdkit(&["file", &picture.display().to_string()]);
    refused(&holds.uri, &["holds something that is not Cheetah's", "nothing was changed"]);
    assert!(fs::read(&picture).expect("a file").iter().all(|byte| *byte == 7));
    let named = Rival::qemu_nbd(300 * MIB, "lent");
    refused(&named.uri.replace("lent", "other"), &["no export of this name"]);
    refused("nbd://127.0.0.1:1/none", &["no connection"]);
    refused("nbds://127.0.0.1:1/none", &["no connection"]);
    refused("nbds://127.0.0.1:1/none?tls-psk-file=keys", &["certificates"]);
}

#[test]
fn of_two_donors_of_one_export_one_is_let_in() {
    let mut exports = Exports::new();
    let uri = exports.servers[0].uri.clone();
    let lends = ["--disk", uri.as_str()];
    exports.pool.donate_in_vain("d0", &lends, "Of a disk and its copy only one can be lent").kill();
    exports.pool.donor("d0").kill();
    exports.pool.donate_as("d0", &lends);
}
