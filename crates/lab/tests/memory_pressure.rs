//! Write-back under memory pressure: a writer in a memory cgroup far smaller than what it writes, over ext4
//! on the loop device. A server that allocates while it is asked to write hangs here for good, beyond
//! SIGKILL. And how much memory a server has for that.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cheetah_lab::cgroup::Cgroup;
use cheetah_lab::pool::Pool;
use cheetah_lab::{process, tools, wait};

const LIMIT_BYTES: u64 = 160 << 20;
/// The writers take some seconds; one that hangs is freed after this, and the test fails.
const WRITER_TIME: Duration = Duration::from_secs(120);

/// Writes 480 MiB in four files at once, three times what the cgroup holds, and reads them back.
fn write_and_compare(with_server: bool, name: &str) {
    tools::need_root("a loop device and a memory cgroup");
    let cgroup = Cgroup::new(name, LIMIT_BYTES);
    let mut pool = Pool::start();
    for donor in ["one", "two"] {
        pool.donate(donor, "512M");
    }
    pool.ok(["create", "disk", "1G", "--redundancy", "stripe:2"]);
    let device = pool.attach_loop("disk", &[]).path.display().to_string();
    if with_server {
        let daemons = pool.daemons();
        assert_eq!(daemons.len(), 1, "one daemon serves the device");
        cgroup.take(daemons[0].pid);
    }
    let point = pool.scratch().directory("point").display().to_string();
    tools::run("mkfs.ext4", ["-q", "-F", &device]);
    tools::run("mount", [&device, &point]);
    let script = format!(
        "echo $$ >{} && cd {point} && head -c 120M /dev/urandom >a && for f in b c d; do cp a $f & done; wait && \
         sync --file-system . && cmp a b && cmp a c && cmp a d",
        cgroup.processes().display()
    );
    let mut writer = tools::command("sh").args(["-c", &script]).spawn().expect("a shell");
    let patience = Instant::now() + WRITER_TIME;
    let status = loop {
        if let Some(status) = writer.try_wait().expect("a child") {
            break status;
        }
        if Instant::now() > patience {
            free_the_hung(&cgroup, &pool);
            panic!("the writers hang: the server waits for memory that only it could free");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "the writers: {status}");
    tools::run("umount", [&point]);
    tools::run("e2fsck", ["-f", "-n", &device]);
    pool.detach("disk");
    wait::until("the cgroup is empty", Duration::from_secs(10), || {
        fs::read_to_string(cgroup.processes()).is_ok_and(|all| all.is_empty())
    });
}

/// Without this a hang would outlive the test, and SIGKILL.
fn free_the_hung(cgroup: &Cgroup, pool: &Pool) {
    let connections = Path::new("/sys/fs/fuse/connections");
    let _ = tools::output(tools::command("mount").args(["-t", "fusectl", "none"]).arg(connections));
    pool.kill_daemons();
    cgroup.set_limit(u64::from(u32::MAX));
    // A connection is named by the minor number of its mount's device.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for mount in mounts.lines().filter(|line| line.contains(" cheetah:disk ")) {
        let device = mount.split(' ').nth(2).and_then(|device| device.strip_prefix("0:"));
        if let Some(number) = device {
            let _ = fs::write(connections.join(number).join("abort"), "1");
        }
    }
}

#[test]
fn a_daemon_takes_at_most_112_mib_beside_its_cache_and_its_program() {
    let mut pool = Pool::start();
    for donor in ["one", "two", "three"] {
        pool.donate(donor, "256M");
    }
    pool.ok(["create", "disk", "256M", "--redundancy", "parity:2+1"]);
    let file = pool.attach_fuse("disk", &["--cache", "64M"]).path.display().to_string();
    let copy = |from: &str, to: &str| {
        tools::run("dd", [&format!("if={from}"), &format!("of={to}"), "bs=1M", "count=256", "status=none"]);
    };
    copy("/dev/urandom", &file);
    copy(&file, "/dev/null");
    // The program's own pages are the file's, and one for all that run it.
    let pid = pool.daemons()[0].pid;
    let own = process::peak_resident_bytes(pid) - process::program_bytes(pid);
    assert!(own <= (112 + 64) << 20, "{} MiB", own >> 20);
}

#[test]
fn a_writer_in_a_small_cgroup_is_served_from_outside_of_it() {
    write_and_compare(false, "writer");
}

#[test]
fn even_inside_the_writers_cgroup_the_server_does_not_wait_for_itself() {
    write_and_compare(true, "both");
}
