//! The part `seeds`: what an examiner's tools take on an image of planted files, from a volume over four
//! donors at 1 Gbit/s, from the disk of this machine, and from a disk of 2006 (24 MB/s, by nbdkit's rate
//! filter). All cold.
//!
//! Owns: the image (ext4, filled with copies of Debian's planted samples, of which every third was deleted
//! again) and the tools' command lines. `SEEDS_MIB` makes the image smaller than 4 GiB. Each tool runs once
//! in each place: minutes do not jitter. Called by: `bench`. Tests: below.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use crate::bench::file;
use crate::bench::lan::hosts;
use crate::bench::part::Bench;
use crate::bench::row::Figure;
use crate::figures::Series;
use crate::pool::{Access, Pool, State};
use crate::rivals::{NbdFuse, Rival};
use crate::scratch::Scratch;
use crate::{images, tools};

pub const SECONDS: f64 = 1700.0;
pub const SETS: usize = TOOLS.len();

const DONORS: u8 = 4;
const MIB: u64 = 1 << 20;
const DISK_OF_2006: [&str; 2] = ["rate=192M", "burstiness=0.05"];

/// How a tool is run on an image: a shell line with the image as `$0`, an empty directory as `$1` and, for
/// the carvers, a configuration as `$2`.
const TOOLS: [(&str, &str); 7] = [
    ("md5sum", "md5sum \"$0\""),
    ("strings", "strings \"$0\""),
    ("tar", "mount -o ro,noload,loop \"$0\" \"$1\" && tar -C \"$1\" -cf - . | cat; umount \"$1\""),
    ("blkls", "blkls \"$0\""),
    ("fls -r", "fls -r \"$0\""),
    ("foremost", "foremost -w -q -i \"$0\" -o \"$1\""),
    ("scalpel", "rmdir \"$1\" && scalpel -p -c \"$2\" -o \"$1\" \"$0\""),
];

/// What scalpel looks for: the beginning and end of the planted kinds.
const CARVED: &str = "jpg y 20000000 \\xff\\xd8\\xff\\xe0 \\xff\\xd9\ngif y 5000000 \\x47\\x49\\x46\\x38 \\x00\\x3b\n\
                      png y 20000000 \\x50\\x4e\\x47? \\xff\\xfc\\xfd\\xfe\npdf y 5000000 %PDF %EOF\\x0d REVERSE\n";

pub fn run(bench: &mut Bench) {
    bench.prepare("the image is made and loaded");
    let mib = match std::env::var("SEEDS_MIB") {
        Ok(mib) => mib.parse().expect("SEEDS_MIB is a number"),
        Err(_) if bench.quick => 256,
        Err(_) => 4096,
    };
    let scratch = Scratch::new();
    let image = make_image(&scratch, mib);
    let lan = hosts("1gbit", DONORS);
    let mut pool = Pool::of(Access::Plaintext, State::Memory, Some(Arc::clone(&lan)));
    pool.donate_everywhere(DONORS, &format!("{}M", mib / 4 + 128));
    let size = (mib * MIB).to_string();
    pool.ok(["create", "image", &size, "--redundancy", "stripe:4"]);
    pool.ok(["load", &image.display().to_string(), "image", "--no-verify"]);
    let ours = pool.attach_fuse("image", &["--read-only"]).path;
    let file = format!("file={}", image.display());
    let old =
        Rival::nbdkit_unix(&["--readonly", "--filter=rate", "file", &file, DISK_OF_2006[0], DISK_OF_2006[1]]);
    let old_file = NbdFuse::start(&old.uri);
    for (name, line) in TOOLS {
        bench.set(name);
        let [ours, here, old] = [&ours, &image, &old_file.path]
            .map(|path| [seconds_of(line, path, &scratch)].into_iter().collect::<Series>());
        let id = name.replace(' ', "");
        for (peer_id, peer_name, peer) in
            [("disk", "this machine's disk", &here), ("2006", "disk of 2006", &old)]
        {
            let (id, what) =
                (format!("seeds.{id}.{peer_id}"), format!("{name} of an image of {mib} MiB, cold"));
            let peer = Some((peer_name, peer));
            bench.row(&Figure { peer, ..Figure::new(&id, what, "s", &ours) });
        }
    }
    pool.detach("image");
}

/// An ext4 image, three quarters full, with a third of that deleted again.
#[track_caller]
fn make_image(scratch: &Scratch, mib: u64) -> PathBuf {
    let image = scratch.sparse_file("image", mib * MIB);
    let mount = scratch.directory("image-mnt");
    let (image_name, mount_name) = (image.display().to_string(), mount.display().to_string());
    tools::run("mkfs.ext4", ["-q", "-F", "-m", "0", image_name.as_str()]);
    tools::run("mount", ["-o", "loop", image_name.as_str(), mount_name.as_str()]);
    let each = tools::run("du", ["-sm", images::PLANTED]);
    let each: u64 = each.split_whitespace().next().and_then(|mib| mib.parse().ok()).expect("a size");
    let copies = (mib * 3 / 4 / each).max(1);
    for copy in 0..copies {
        let to = mount.join(format!("copy-{copy}"));
        tools::run("cp", ["--recursive".as_ref(), images::PLANTED.as_ref(), to.as_os_str()]);
    }
    tools::run("sync", ["--file-system", mount_name.as_str()]);
    for copy in (0..copies).skip(1).step_by(3) {
        tools::run("rm", ["--recursive".as_ref(), mount.join(format!("copy-{copy}")).as_os_str()]);
    }
    tools::run("umount", [mount_name.as_str()]);
    image
}

#[track_caller]
fn seconds_of(line: &str, image: &Path, scratch: &Scratch) -> f64 {
    let empty = scratch.directory("empty");
    let configuration = scratch.file("scalpel.conf", CARVED.as_bytes());
    file::forget(image);
    let mut command: Command = tools::command("bash");
    command.args(["-o", "pipefail", "-c", line]).arg(image).arg(&empty).arg(configuration);
    let start = Instant::now();
    let output = tools::output(command.stdout(Stdio::null()));
    let seconds = start.elapsed().as_secs_f64();
    assert!(output.status.success(), "{}", tools::describe(&command, &output));
    // The carvers leave their notes there, or it was never used.
    let _ = std::fs::remove_dir_all(empty);
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_runs_on_the_image() {
        tools::need_root("a mounted image");
        let scratch = Scratch::new();
        let image = make_image(&scratch, 64);
        for (name, line) in TOOLS {
            assert!(seconds_of(line, &image, &scratch) > 0.0, "{name}");
        }
    }
}
