//! Loop devices as a user of disk images meets them: partitions, sectors; and the end of a device or file,
//! refused while it is used.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Child;

use cheetah_lab::pool::Pool;
use cheetah_lab::{tools, wait};
use serde_json::json;

const MIB: u64 = 1 << 20;

/// A disk with an MBR: type 0x83, from MiB and for MiB.
fn disk(pool: &Pool, name: &str, partitions: &[(u8, u64, u64)]) -> String {
    let mut image = vec![0; 16 * MIB as usize];
    for (index, (kind, start, len)) in partitions.iter().enumerate() {
        let entry = &mut image[446 + index * 16..][..16];
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&sectors(*start));
        entry[12..16].copy_from_slice(&sectors(*len));
        image[(start * MIB) as usize..][..name.len()].copy_from_slice(name.as_bytes());
    }
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    pool.scratch().file(name, &image).display().to_string()
}

fn sectors(mib: u64) -> [u8; 4] {
    u32::try_from(mib * MIB / 512).expect("few").to_le_bytes()
}

fn partitions(device: &Path) -> Vec<(String, u64)> {
    let name = device.file_name().and_then(|name| name.to_str()).expect("a device").to_owned();
    let folder = PathBuf::from("/sys/block").join(&name);
    let mut found: Vec<(String, u64)> = std::fs::read_dir(&folder)
        .expect("the device")
        .flatten()
        .filter_map(|entry| {
            let partition = entry.file_name().to_str()?.strip_prefix(&name)?.to_owned();
            let size = std::fs::read_to_string(entry.path().join("size")).ok()?;
            Some((partition, size.trim().parse::<u64>().ok()? * 512 / MIB))
        })
        .collect();
    found.sort();
    found
}

fn partition(device: &Path, number: u32) -> PathBuf {
    PathBuf::from(format!("{}p{number}", device.display()))
}

fn owned(found: &[(&str, u64)]) -> Vec<(String, u64)> {
    found.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect()
}

fn backing(device: &Path) -> Option<String> {
    let name = device.file_name().and_then(|name| name.to_str())?;
    std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()
}

fn pool() -> Pool {
    tools::need_root("loop devices");
    let mut pool = Pool::start();
    pool.donate("one", "256M");
    pool
}

#[test]
fn partitions_are_those_of_the_image_and_none_of_an_earlier_one() {
    let mut pool = pool();
    let first = disk(&pool, "first.dd", &[(0x83, 1, 2), (0x07, 4, 8)]);
    let second = disk(&pool, "second.dd", &[(0x83, 2, 5)]);
    let plain = pool.scratch().sparse_file("plain.dd", 16 * MIB).display().to_string();
    for (image, name) in [(&first, "a"), (&second, "b"), (&plain, "c")] {
        pool.ok(["load", image, name, "--no-verify"]);
    }
    let device = pool.attach_loop("a", &[]).path;
    assert_eq!(partitions(&device), owned(&[("p1", 2), ("p2", 8)]));
    let mut head = [0; 8];
    File::open(partition(&device, 2)).and_then(|file| file.read_exact_at(&mut head, 0)).expect("its head");
    assert_eq!(&head, b"first.dd");
    pool.detach("a");
    let again = pool.attach_loop("b", &["--read-only"]).path;
    assert_eq!(partitions(&again), owned(&[("p1", 5)]));
    let written = File::options().write(true).open(partition(&again, 1));
    assert!(
        written.and_then(|file| file.write_all_at(&head, 0)).is_err(),
        "a partition of what is read-only"
    );
    pool.detach("b");

    // What another left behind on a device that is free.
    let left = pool.attach_loop("a", &[]).path;
    pool.detach("a");
    let bare = pool.scratch().sparse_file("bare.dd", 16 * MIB).display().to_string();
    let losetup = |arguments: &[&str]| tools::run("losetup", arguments);
    // Others may have that device for a moment: the kernel hands out the first that is free.
    wait::until("the device that was free", wait::SOON, || {
        let taken = tools::output(tools::command("losetup").args([&left.display().to_string(), &bare]));
        taken.status.success()
    });
    tools::run("partx", ["--add", "--nr", "1:2", &first_on(&left, &first)]);
    losetup(&["--detach", &left.display().to_string()]);
    assert_eq!(partitions(&left).len(), 2, "nothing was left behind");
    let device = pool.attach_loop("c", &[]).path;
    assert_eq!(partitions(&device), owned(&[]));
    pool.detach("c");
}

/// Puts an image's table onto a device, and names the device.
fn first_on(device: &Path, image: &str) -> String {
    let table = std::fs::read(image).expect("the image")[..512].to_vec();
    let file = File::options().write(true).open(device).expect("the device");
    file.write_all_at(&table, 0).and_then(|()| file.sync_all()).expect("a table");
    device.display().to_string()
}

/// Holds a file open for as long as it lives.
struct Holder(Child);

impl Holder {
    #[track_caller]
    fn of(path: &Path) -> Holder {
        let mut command = tools::command("sleep");
        command.arg("1000").stdin(File::open(path).expect("it opens"));
        Holder(command.spawn().expect("sleep"))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a device has nothing of this file any more. Another test may have it by now.
fn is_given_back(device: &Path, file: Option<&str>) -> bool {
    match backing(device) {
        None => partitions(device).is_empty(),
        Some(other) => file != Some(other.as_str()),
    }
}

#[test]
fn an_end_that_is_refused_changes_nothing() {
    let mut pool = pool();
    let image = disk(&pool, "case.dd", &[(0x83, 1, 2)]);
    pool.ok(["load", &image, "case", "--no-verify"]);
    let device = pool.attach_loop("case", &[]).path;
    let (before, shown) = (backing(&device), partitions(&device));
    let name = device.file_name().and_then(|name| name.to_str()).expect("a device").to_owned();
    let file = pool.mount_directory("case").join("case.raw");
    for held in [partition(&device, 1), device.clone(), file] {
        let holder = Holder::of(&held);
        let said = pool.run(["detach", "case"]);
        assert_eq!(said.status.code(), Some(4), "{}", said.err);
        for word in [held.display().to_string(), format!("process {} (sleep)", holder.0.id())] {
            assert!(said.err.contains(&word), "{word} is not in: {}", said.err);
        }
        drop(holder);
        let armed = std::fs::read_to_string(format!("/sys/block/{name}/loop/autoclear")).unwrap_or_default();
        assert_eq!(armed.trim(), "0", "it goes when its user does");
        assert_eq!((backing(&device), partitions(&device)), (before.clone(), shown.clone()));
        let places = pool.volume_status("case")["attachments"].clone();
        assert_eq!(places[0]["place"], json!(device));
    }
    pool.detach("case");
    assert!(is_given_back(&device, before.as_deref()));
}

/// A mount in a namespace that the daemon does not see, by a process that has no descriptor of it.
#[test]
fn users_that_nobody_sees_are_not_harmed() {
    let mut pool = pool();
    let image = pool.scratch().sparse_file("fs.dd", 16 * MIB).display().to_string();
    tools::run("mkfs.ext4", ["-q", &image]);
    pool.ok(["load", &image, "case", "--no-verify"]);
    let device = pool.attach_loop("case", &["--writable"]).path;
    let (point, shown) = (pool.scratch().directory("point"), device.display().to_string());
    let mut hidden = tools::command("unshare");
    let script = format!(
        "mount {shown} {0} && echo in > {0}/mounted && sync && touch {0}.done && exec sleep 1000",
        point.display()
    );
    hidden.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let hidden = Holder(hidden.spawn().expect("unshare"));
    let done = PathBuf::from(format!("{}.done", point.display()));
    wait::until("the hidden mount", wait::SOON, || done.exists());
    let said = pool.run(["detach", "case"]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    assert!(said.err.contains("namespace"), "{}", said.err);
    drop(hidden);
    let before = backing(&device);
    assert!(before.is_some(), "the device went with its user");
    pool.detach("case");
    assert!(is_given_back(&device, before.as_deref()));
}

/// A volume as a file, the shell with a script that uses it and then waits, and where the script says that it
/// has begun.
struct User {
    holder: Holder,
    begun: PathBuf,
}

impl User {
    #[track_caller]
    fn start(pool: &Pool, name: &str, wrap: &[&str], script: &str) -> User {
        let begun = pool.scratch().join(format!("{name}.begun"));
        let mut command = tools::command(wrap.first().unwrap_or(&"bash"));
        command.args(wrap.iter().skip(1));
        if !wrap.is_empty() {
            command.arg("bash");
        }
        command.args(["-c", &format!("set -e; {script}; touch {}; exec sleep 1000", begun.display())]);
        let user = User { holder: Holder(command.spawn().expect("bash")), begun };
        wait::until("the user of the file", wait::SOON, || user.begun.exists());
        user
    }
}

/// By a bind, in a namespace of its own, by what a loop device stands on: the kernel would let the mount go,
/// and who has the file open would lose it.
#[test]
fn a_file_that_is_used_by_another_way_stays() {
    let mut pool = pool();
    pool.create_linear("case", "64M");
    let path = pool.attach_fuse("case", &[]).path;
    let (point, bound) = (pool.mount_directory("case"), pool.scratch().directory("bound"));
    let single = pool.scratch().file("single.raw", b"");
    let (file, point, bound, single) = (
        path.display().to_string(),
        point.display().to_string(),
        bound.display().to_string(),
        single.display().to_string(),
    );
    let refused = |pool: &Pool, words: &[&str]| {
        let said = pool.run(["detach", "case"]);
        assert_eq!(said.status.code(), Some(4), "{}{}", said.out, said.err);
        for word in words {
            assert!(said.err.contains(word), "{word} is not in: {}", said.err);
        }
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.write_all_at(b"served", 0))
            .expect("still served");
        assert_eq!(pool.volume_status("case")["attachments"][0]["place"], json!(path));
    };
    for (from, to) in [(&point, &bound), (&file, &single)] {
        tools::run("mount", ["--bind", from, to]);
        refused(&pool, &["is mounted at", to]);
        let inside = if to == &bound { format!("{to}/case.raw") } else { to.clone() };
        let user = User::start(&pool, "bound", &[], &format!("exec 5<>{inside}"));
        refused(&pool, &["is mounted at", to, &format!("process {}", user.holder.0.id())]);
        drop(user);
        let device = tools::run("losetup", ["--find", "--show", &inside]);
        refused(&pool, &[device.trim(), to]);
        tools::run("losetup", ["--detach", device.trim()]);
        std::fs::remove_file(pool.scratch().join("bound.begun")).expect("its sign");
        tools::run("umount", [to]);
    }
    // Where another namespace has the mount for itself; that it is there is no use of it.
    for propagation in ["private", "slave"] {
        let unshare = ["unshare", "--mount", "--propagation", propagation];
        let user = User::start(&pool, propagation, &unshare, &format!("exec 5<>{file}"));
        refused(&pool, &[&format!("process {}", user.holder.0.id())]);
    }
    let idle = User::start(&pool, "idle", &["unshare", "--mount", "--propagation", "private"], "true");
    // What was written by a mapping and not synced.
    let write = "import mmap, time; f = open('MAPPED', 'r+b'); m = mmap.mmap(f.fileno(), 9 << 20); f.close(); \
                 m[:] = b'D' * (9 << 20); open('BEGUN', 'w').close(); time.sleep(1000)";
    let begun = pool.scratch().join("mapped.begun").display().to_string();
    tools::run("mount", ["--bind", &point, &bound]);
    let write = write.replace("MAPPED", &format!("{bound}/case.raw")).replace("BEGUN", &begun);
    let mut mapper = tools::command("python3");
    let mapper = Holder(mapper.args(["-c", &write]).spawn().expect("python3"));
    wait::until("what is mapped", wait::SOON, || Path::new(&begun).exists());
    tools::run("umount", ["--lazy", &bound]);
    refused(&pool, &[&format!("process {} (python3)", mapper.0.id())]);
    drop(mapper);
    pool.detach("case");
    drop(idle);
    let path = pool.attach_fuse("case", &[]).path;
    let mut end = [0; 4096];
    File::open(&path).and_then(|file| file.read_exact_at(&mut end, (9 << 20) - 4096)).expect("its end");
    assert!(end == [b'D'; 4096], "what was written is lost");
    pool.detach("case");
}

/// A disk with sectors of 4096 bytes: its GPT says so.
#[test]
fn sectors_are_as_long_as_the_table_says() {
    let mut pool = pool();
    let image = pool.scratch().sparse_file("large.dd", 16 * MIB);
    write_gpt(&image, 4096);
    pool.ok(["load", &image.display().to_string(), "large", "--no-verify"]);
    let logical = |device: &Path| {
        let name = device.file_name().and_then(|name| name.to_str()).expect("a device").to_owned();
        let text = std::fs::read_to_string(format!("/sys/block/{name}/queue/logical_block_size"));
        text.expect("a size").trim().to_owned()
    };
    let device = pool.attach_loop("large", &[]).path;
    assert_eq!(logical(&device), "4096");
    assert_eq!(partitions(&device), owned(&[("p1", 4)]));
    pool.detach("large");
    let device = pool.attach_loop("large", &["--sector", "512"]).path;
    assert_eq!((logical(&device).as_str(), partitions(&device)), ("512", owned(&[])));
    pool.detach("large");
    let plain = pool.scratch().sparse_file("plain.dd", 16 * MIB).display().to_string();
    pool.ok(["load", &plain, "plain", "--no-verify"]);
    assert_eq!(logical(&pool.attach_loop("plain", &["--sector", "4096"]).path), "4096");
    pool.detach("plain");
}

/// One partition of 4 MiB from MiB 1 on.
fn write_gpt(path: &Path, sector: u64) {
    let file = File::options().write(true).open(path).expect("the image");
    let crc = |bytes: &[u8]| {
        let step = |crc: u32, byte: &u8| {
            (0..8)
                .fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
        };
        !bytes.iter().fold(!0, step)
    };
    let mut first = [0; 512];
    (first[450], first[454], first[510], first[511]) = (0xee, 1, 0x55, 0xaa);
    first[458..462].fill(0xff);
    let mut entries = [0; 128 * 128];
    entries[0] = 7;
    entries[32..40].copy_from_slice(&(MIB / sector).to_le_bytes());
    entries[40..48].copy_from_slice(&(5 * MIB / sector - 1).to_le_bytes());
    let mut head = [0; 92];
    head[..8].copy_from_slice(b"EFI PART");
    (head[10], head[12], head[24], head[72], head[80], head[84]) = (1, 92, 1, 2, 128, 128);
    head[40..48].copy_from_slice(&(64u64).to_le_bytes());
    head[48..56].copy_from_slice(&(16 * MIB / sector - 64).to_le_bytes());
    head[88..92].copy_from_slice(&crc(&entries).to_le_bytes());
    let sum = crc(&head);
    head[16..20].copy_from_slice(&sum.to_le_bytes());
    for (offset, bytes) in [(0, &first[..]), (sector, &head), (2 * sector, &entries)] {
        file.write_all_at(bytes, offset).expect("a table");
    }
}
