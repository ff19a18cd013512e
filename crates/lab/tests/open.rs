//! Volumes that are opened from a source: read while they are filled, with fillers, donors and coordinators
//! that are killed meanwhile, and sources that cannot be read everywhere.
//!
//! What a tool gets is compared with the disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cheetah_lab::dice::Dice;
use cheetah_lab::flip::Memory;
use cheetah_lab::fragment::Fragment;
use cheetah_lab::images::Sample;
use cheetah_lab::pool::{Attached, Pool, State};
use cheetah_lab::process::Process;
use cheetah_lab::rivals::{Rival, unix_uri};
use cheetah_lab::verified::Verified;
use cheetah_lab::web::Site;
use cheetah_lab::{hash, tools, wait};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;
/// Slow enough for a test to act meanwhile: what tools ask for is not held up.
const SLOW: &str = "2M";

/// Bytes that differ from each other everywhere, no multiple of a block.
fn disk(pool: &Pool, mib: usize) -> PathBuf {
    let whole = fs::read(Sample::named("fs.ntfs").path()).expect("a sample");
    let mut bytes: Vec<u8> = whole.iter().copied().cycle().take(mib * MIB + 512).collect();
    for (number, block) in bytes.chunks_mut(4096).enumerate() {
        // Some stay zeros, which are to be told from what is not here.
        if number % 3 > 0 {
            block[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        }
    }
    pool.scratch().file("disk.raw", &bytes)
}

fn e01(disk: &Path) -> PathBuf {
    let target = disk.with_extension("");
    tools::expect_success(tools::command("ewfacquire").args(["-u", "-q", "-t"]).arg(&target).arg(disk));
    target.with_extension("E01")
}

fn pool_of(donors: &[&str], state: State) -> Pool {
    let mut pool = Pool::with(state, None);
    for name in donors {
        pool.donate(name, "192M");
    }
    pool
}

#[track_caller]
fn open(pool: &Pool, source: &Path, more: &[&str]) -> Value {
    let source = source.display().to_string();
    pool.json([&["open", &source, "case"][..], more].concat())
}

fn content(pool: &Pool) -> Value {
    pool.json(["show", "case"])["status"]["content"].clone()
}

#[track_caller]
fn wait_until_whole(pool: &Pool) {
    wait::until("all of it is here", LONG, || content(pool)["state"] == "loaded");
}

/// Without what the kernel keeps of it.
#[track_caller]
fn read(file: &Path, at: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let file = File::open(file).expect("the volume's file");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).map(|()| bytes)
}

fn filler(pool: &Pool) -> u32 {
    let record = pool.scratch().join("run/cheetah/fill/case.json");
    let record: Value = serde_json::from_slice(&fs::read(record).expect("a record")).expect("JSON");
    record["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("a process")
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
}

fn attach(pool: &mut Pool) -> Attached {
    pool.attach_fuse("case", &["--read-only"])
}

#[test]
fn an_image_is_read_through_a_volume_while_that_is_filled_and_then_without_the_image() {
    let mut pool = pool_of(&["one", "two"], State::Memory);
    let disk = disk(&pool, 80);
    let image = e01(&disk);
    let opened = open(&pool, &image, &["--rate", SLOW]);
    assert_eq!(
        (&opened["checksummed"], &opened["made"]),
        (&Value::Bool(true), &Value::Bool(true)),
        "{opened}"
    );
    let attached = attach(&mut pool);
    let sha256 = hash::of_file(&disk);
    assert_eq!(hash::of_file(&attached.path), sha256, "while it is filled");
    assert_eq!(content(&pool)["load"]["source"]["size"], 80 * MIB as u64 + 512);
    pool.ok(["fill", "case", "--rate", "0"]);
    wait_until_whole(&pool);
    let load = content(&pool)["load"].clone();
    assert_eq!(
        (&load["sha256"], &load["check"]),
        (&Value::from(sha256.clone()), &Value::from("same")),
        "{load}"
    );
    fs::remove_file(&image).expect("the image");
    pool.detach("case");
    let attached = attach(&mut pool);
    assert_eq!(hash::of_file(&attached.path), sha256, "nobody needs the image any more");
    pool.detach("case");
    assert!(pool.fails(["fill", "case", "--resume"]).contains("holds all of"));
}

/// Opened from an address, read while it is filled, and read again without the server.
#[track_caller]
fn opens_from<S>(url: &str, server: S, disk: &Path) {
    let mut pool = pool_of(&["one", "two"], State::Memory);
    open(&pool, Path::new(url), &["--rate", SLOW]);
    let attached = attach(&mut pool);
    let (bytes, sha256) = (fs::read(disk).expect("the disk"), hash::of_file(disk));
    let last = bytes.len() - 4096;
    assert_eq!(read(&attached.path, last as u64, 4096).expect("it is fetched"), bytes[last..], "{url}");
    assert_eq!(content(&pool)["state"], "opened", "most of it is not here: {url}");
    assert_eq!(hash::of_file(&attached.path), sha256, "while it is filled: {url}");
    pool.ok(["fill", "case", "--rate", "0"]);
    wait_until_whole(&pool);
    let load = content(&pool)["load"].clone();
    let name = load["source"]["name"].as_str().expect("a name");
    assert_eq!((&load["sha256"], url.starts_with(name)), (&Value::from(sha256.clone()), true), "{load}");
    drop(server);
    pool.detach("case");
    let attached = attach(&mut pool);
    assert_eq!(hash::of_file(&attached.path), sha256, "without its server: {url}");
    pool.detach("case");
}

#[test]
fn an_image_that_a_server_has_is_opened_and_its_server_needed_until_all_is_here() {
    let pool = Pool::without_coordinator(None);
    let raw = disk(&pool, 24);
    let image = e01(&raw);
    for file in [&raw, &image] {
        let site = Site::lighttpd(pool.scratch().path());
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        opens_from(&format!("{}/{name}", site.url), site, &raw);
    }
    let kit = Rival::nbdkit(&["file", &raw.display().to_string()]);
    opens_from(&kit.uri.clone(), kit, &raw);
    // What a container holds, to several clients.
    let packed = pool.scratch().join("packed.qcow2");
    let mut convert = tools::command("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2", "-c"]).arg(&raw).arg(&packed);
    tools::expect_success(&mut convert);
    let socket = pool.scratch().join("qemu.sock");
    let mut command = tools::command("qemu-nbd");
    command.args(["--read-only", "--persistent", "--shared=0", "--format=qcow2", "--export-name=case"]);
    command.arg("--socket").arg(&socket).arg(&packed);
    let qemu = Process::start("qemu-nbd", command, pool.scratch().path());
    wait::until("qemu-nbd", wait::SOON, || socket.exists());
    opens_from(&unix_uri(&socket, "case"), qemu, &raw);
}

/// A file system of 96 MiB with a few hundred files in directories, most of it content.
fn file_system(pool: &Pool, make: &[&str]) -> PathBuf {
    let tree = pool.scratch().join("tree");
    for number in 0..400u32 {
        let directory = tree.join(format!("{}/{}", number % 7, number % 31));
        fs::create_dir_all(&directory).expect("a directory");
        let bytes = number.to_le_bytes().repeat(32 << 10);
        fs::write(directory.join(format!("file {number}")), &bytes[..bytes.len() - number as usize])
            .expect("a file");
    }
    let image = pool.scratch().join("fs.img");
    File::create(&image).and_then(|file| file.set_len(96 * MIB as u64)).expect("an image");
    tools::expect_success(tools::command(make[0]).args(&make[1..]).arg("-d").arg(&tree).arg(&image));
    image
}

/// How many bytes are here when who fills the volume was told to pause: what it was reading comes yet, and
/// is told of a second later.
fn done_at_rest(pool: &Pool) -> u64 {
    let mut last = (0, Instant::now());
    wait::for_some("nothing to come any more", LONG, || {
        let load = content(pool)["load"].clone();
        let done = load["bytes_done"].as_u64().expect("a number");
        if load["filling"]["paused"] != true || done != last.0 {
            last = (done, Instant::now());
        }
        (last.1.elapsed() > Duration::from_secs(3)).then_some(done)
    })
}

/// What tools will ask for is read before they do: a listing then has next to nothing read at the source,
/// while most of the disk is not here. (Unless it is told which file system that is, `fls` looks for others
/// in 8 MiB of it.)
#[test]
fn the_metadata_of_a_file_system_comes_first() {
    for make in [&["mke2fs", "-q", "-t", "ext4"][..], &["mke2fs", "-q", "-t", "ext2", "-I", "128"]] {
        let mut pool = pool_of(&["one", "two"], State::Memory);
        let image = file_system(&pool, make);
        open(&pool, &image, &["--rate", "8M"]);
        let log = pool.scratch().join("run/cheetah/fill/case.log");
        wait::until("its metadata is here", LONG, || {
            fs::read_to_string(&log).is_ok_and(|log| log.contains("the metadata of ext"))
        });
        pool.ok(["fill", "case", "--pause"]);
        let before = done_at_rest(&pool);
        let attached = attach(&mut pool);
        let list = |path: &Path| {
            tools::expect_success(tools::command("fls").args(["-f", "ext", "-r", "-p"]).arg(path))
        };
        let listed = list(&attached.path);
        assert!(listed.lines().count() >= 400, "{listed}");
        assert_eq!(listed, list(&image));
        let asked = done_at_rest(&pool) - before;
        // Beside other tests up to 5.2 MiB were seen, by itself less than 4.
        assert!(before < 40 * MIB as u64 && asked < before / 4, "{make:?}: {before} bytes, then {asked}");
        pool.detach("case");
    }
}

#[test]
fn a_filler_that_is_killed_leaves_what_is_here_and_the_next_one_reads_only_the_rest() {
    let mut pool = pool_of(&["one", "two"], State::Memory);
    let disk = disk(&pool, 48);
    let bytes = fs::read(&disk).expect("the disk");
    open(&pool, &disk, &["--rate", SLOW]);
    let attached = attach(&mut pool);
    assert_eq!(
        read(&attached.path, 40 * MIB as u64, 8192).expect("it is fetched"),
        bytes[40 * MIB..][..8192]
    );
    wait::until("some is here", LONG, || content(&pool)["load"]["bytes_done"].as_u64() > Some(4 << 20));
    kill(filler(&pool));
    assert_eq!(read(&attached.path, 40 * MIB as u64, 8192).expect("it is here"), bytes[40 * MIB..][..8192]);
    assert_eq!(read(&attached.path, 4096, 65536).expect("it is here"), bytes[4096..][..65536]);
    // Who asks for the rest waits, and gets it from the next one.
    let waits = {
        let path = attached.path.clone();
        std::thread::spawn(move || read(&path, 30 * MIB as u64, 4096))
    };
    pool.ok(["fill", "case", "--resume"]);
    assert_eq!(waits.join().expect("a reader").expect("it is fetched"), bytes[30 * MIB..][..4096]);
    let next = filler(&pool);
    let here = content(&pool)["load"]["bytes_done"].as_u64().expect("a number");
    wait_until_whole(&pool);
    let log = fs::read_to_string(pool.scratch().join("run/cheetah/fill/case.log")).expect("its log");
    assert!(log.contains("is filled, ") && here >= 4 << 20, "{next}: {log}");
    let (first, second) =
        (log.matches("is filled, 0 B are here").count(), log.matches("is filled, ").count());
    assert_eq!((first, second), (1, 2), "the second found what the first had left: {log}");
    assert_eq!(hash::of_file(&attached.path), hash::of_file(&disk));
}

#[test]
fn what_is_not_here_is_an_error_and_no_zeros_for_every_client() {
    let mut pool = pool_of(&["one"], State::Memory);
    let disk = disk(&pool, 16);
    let bytes = fs::read(&disk).expect("the disk");
    open(&pool, &disk, &["--rate", "64K"]);
    pool.ok(["fill", "case", "--pause"]);
    let attached = attach(&mut pool);
    assert_eq!(read(&attached.path, 8 * MIB as u64, 4096).expect("it is fetched"), bytes[8 * MIB..][..4096]);
    wait::until("the pool to hear of that", wait::SOON, || content(&pool)["load"]["bytes_done"] != 0);
    pool.ok(["fill", "case", "--stop"]);
    let verified = Verified::run(&pool, "case");
    let absent = verified.number("bytes_absent");
    assert_eq!(verified.code, 7, "{}", verified.report);
    assert!(absent > 0 && absent <= bytes.len() as u64 - 4096, "{}", verified.report);
    // Another's client asks the donor itself, under the reader's lease.
    assert_eq!(content(&pool)["state"], "opened");
    let Fragment { uri, offset } = Fragment::of(&pool, "case");
    let script = format!(
        "import nbd, errno\n\
         h = nbd.NBD(); h.add_meta_context('base:allocation'); h.set_uri_allow_local_file(True)\n\
         h.connect_uri('{uri}')\n\
         here, absent = {offset} + 8 * 1024 * 1024, {offset} + 9 * 1024 * 1024\n\
         assert len(h.pread(4096, here)) == 4096\n\
         try:\n    h.pread(4096, absent); raise SystemExit('absent bytes were given')\n\
         except nbd.Error as e:\n    assert e.errnum == errno.EIO, e\n\
         found = []\n\
         h.block_status(4096, absent, lambda c, o, e, err: found.append(e))\n\
         assert found and all(not flags & 2 for runs in found for flags in runs[1::2]), found\n\
         print('honest')"
    );
    let said = tools::run("python3", ["-c", &script]);
    assert!(said.contains("honest"), "{said}");
    pool.ok(["fill", "case", "--resume", "--rate", "0"]);
    wait_until_whole(&pool);
    assert_eq!(hash::of_file(&attached.path), hash::of_file(&disk));
    assert_eq!(Verified::run(&pool, "case").code, 0);
}

#[test]
fn a_damaged_chunk_is_an_error_where_it_is_and_nowhere_else() {
    let mut pool = pool_of(&["one"], State::Memory);
    let disk = disk(&pool, 8);
    let image = e01(&disk);
    // A stored chunk: what it holds is found in the image, and changed there.
    let bytes = fs::read(&disk).expect("the disk");
    let mut packed = fs::read(&image).expect("the image");
    let at = 4 * MIB;
    let place = packed.windows(64).position(|window| window == &bytes[at..at + 64]);
    let Some(place) = place else { panic!("the chunk at {at} is compressed: no byte of it can be found") };
    packed[place] ^= 1;
    fs::write(&image, packed).expect("the image");
    open(&pool, &image, &[]);
    let attached = attach(&mut pool);
    assert!(read(&attached.path, at as u64, 4096).is_err(), "it does not fit its checksum");
    wait_until_whole(&pool);
    let unreadable = content(&pool)["load"]["unreadable"][0].clone();
    let (from, len) =
        (unreadable["offset"].as_u64().expect("bytes"), unreadable["len"].as_u64().expect("bytes"));
    assert_eq!((from, len), (at as u64, 32 << 10), "the chunk");
    assert!(read(&attached.path, from, 4096).is_err());
    let (before, behind) = (from as usize, (from + len) as usize);
    assert_eq!(read(&attached.path, 0, before).expect("what lies before"), bytes[..before]);
    assert_eq!(read(&attached.path, from + len, bytes.len() - behind).expect("behind"), bytes[behind..]);
}

#[test]
fn what_a_donor_has_wrong_in_its_memory_is_read_from_the_source_again() {
    let mut pool = pool_of(&["one"], State::Memory);
    let disk = disk(&pool, 8);
    let bytes = fs::read(&disk).expect("the disk");
    open(&pool, &disk, &["--rate", "64K"]);
    pool.ok(["fill", "case", "--pause"]);
    let attached = attach(&mut pool);
    let at = 4 * MIB;
    assert_eq!(read(&attached.path, at as u64, 65536).expect("it is fetched"), bytes[at..][..65536]);
    let memory = Memory::of(pool.pid_of("one"));
    let (one, other) = (&bytes[at..][..4096], &bytes[at + 4 * 4096..][..4096]);
    let flips = memory.flip(&mut Dice::new(5), 2, |_, block| block == one || block == other);
    assert_eq!(memory.wrong(&flips), 2);
    assert_eq!(read(&attached.path, at as u64, 65536).expect("it is fetched again"), bytes[at..][..65536]);
    assert_eq!(memory.wrong(&flips), 0, "it was written again");
}

#[test]
fn what_a_donor_takes_with_it_is_read_from_the_source_again() {
    let mut pool = pool_of(&["one", "two", "three"], State::Memory);
    let disk = disk(&pool, 80);
    open(&pool, &disk, &["--rate", SLOW]);
    let attached = attach(&mut pool);
    let bytes = fs::read(&disk).expect("the disk");
    assert_eq!(read(&attached.path, MIB as u64, MIB).expect("it is fetched"), bytes[MIB..][..MIB]);
    let holder = pool.holders("case", 0)[0].clone();
    pool.donor(&holder).kill();
    assert_eq!(read(&attached.path, MIB as u64, MIB).expect("it is fetched again"), bytes[MIB..][..MIB]);
    assert_ne!(pool.holders("case", 0)[0], holder, "it has another home");
    pool.ok(["fill", "case", "--rate", "0"]);
    wait_until_whole(&pool);
    assert_eq!(hash::of_file(&attached.path), hash::of_file(&disk));
}

#[test]
fn a_coordinator_that_is_killed_holds_nobody_up() {
    let mut pool = pool_of(&["one", "two"], State::Directory);
    let disk = disk(&pool, 24);
    open(&pool, &disk, &["--rate", SLOW]);
    let attached = attach(&mut pool);
    let bytes = fs::read(&disk).expect("the disk");
    pool.kill_coordinator();
    assert_eq!(read(&attached.path, 20 * MIB as u64, MIB).expect("it is fetched"), bytes[20 * MIB..][..MIB]);
    pool.restart_coordinator();
    wait_until_whole(&pool);
    assert_eq!(hash::of_file(&attached.path), hash::of_file(&disk));
}

#[test]
fn only_who_fills_an_opened_volume_writes_it_and_it_has_no_parity() {
    let mut pool = pool_of(&["one", "two"], State::Memory);
    let disk = disk(&pool, 4);
    let said = pool.fails(["open", &disk.display().to_string(), "case", "--redundancy", "mirror:2"]);
    assert!(said.contains("cannot be mirror:2") && said.contains("read from the source again"), "{said}");
    open(&pool, &disk, &["--rate", "64K", "--redundancy", "stripe:2"]);
    assert!(pool.fails(["attach", "case", "--writable"]).contains("only who fills it writes it"));
    assert!(
        pool.fails(["open", &disk.display().to_string(), "case"]).contains("filled on this machine already")
    );
    assert!(pool.fails(["grow", "case", "1G"]).contains("does not grow"));
    let attached = attach(&mut pool);
    assert_eq!(hash::of_file(&attached.path), hash::of_file(&disk));
    pool.ok(["fill", "case", "--stop"]);
    fs::write(&disk, vec![7; 4 * MIB + 512]).expect("another disk of that name");
    let said = pool.fails(["fill", "case", "--resume"]);
    assert!(said.contains("is another or has changed since"), "{said}");
}
