//! Reading ahead over a link that takes long, by real tools: what they get is right, and few of their reads
//! wait.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cheetah_lab::images::Sample;
use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::pool::{Pool, State};
use cheetah_lab::scratch::Scratch;
use cheetah_lab::wire::Wire;
use cheetah_lab::{tools, wait};

const DONORS: u8 = 3;
const BYTES: u64 = 48 << 20;
const BLOCK: usize = 4096;

struct Far {
    pool: Pool,
    image: Vec<u8>,
    _wire: Wire,
}

/// Bytes of which no two blocks are the same.
fn noise(scratch: &Scratch) -> PathBuf {
    let path = scratch.join("image");
    let mut command = tools::command("dd");
    command.args(["if=/dev/urandom", "bs=1M", "status=none"]);
    tools::expect_success(
        command.arg(format!("of={}", path.display())).arg(format!("count={}", BYTES >> 20)),
    );
    path
}

/// Hosts whose client can be moved away, and a pool on them.
fn hosts() -> (Arc<Lan>, Wire, Pool) {
    let lan = Arc::new(Lan::new(DONORS, "1gbit"));
    let wire = Wire::long(&lan, Duration::from_millis(20));
    let mut pool = Pool::with(State::Memory, Some(lan.clone()));
    pool.donate_everywhere(DONORS, "128M");
    (lan, wire, pool)
}

/// A volume with an image in it, far away.
fn far(image: &Path) -> Far {
    let (lan, wire, pool) = hosts();
    pool.ok(["load", &image.display().to_string(), "case"]);
    lan.detour(Node::Client);
    let image = std::fs::read(image).expect("the image");
    Far { pool, image, _wire: wire }
}

/// Reads that found what they asked for here, that waited for what was on its way, and that asked donors.
fn counts(pool: &Pool) -> [u64; 3] {
    let report = &pool.volume_status("case")["attachments"][0]["report"];
    ["reads_here", "reads_coming", "reads_asked"].map(|name| report[name].as_u64().unwrap_or_default())
}

/// Waits until the client has told of all its reads.
fn counted(pool: &Pool) -> [u64; 3] {
    let mut before = [0; 3];
    wait::for_some("the counts of reads", wait::SOON, || {
        // It tells every two seconds.
        std::thread::sleep(Duration::from_millis(2500));
        let now = counts(pool);
        let settled = now == before && now != [0; 3];
        before = now;
        settled.then_some(now)
    })
}

/// Reads blocks at these places and compares them; how many of the reads came here, and how many asked
/// donors.
fn asked_for(far: &mut Far, places: impl Iterator<Item = u64>) -> (u64, u64) {
    let file = far.pool.attach_fuse("case", &["--read-only"]).path;
    let open = File::open(&file).expect("the volume's file");
    // Without it the kernel reads more than it is asked for.
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::Random).expect("advice");
    let mut block = [0; BLOCK];
    for place in places {
        open.read_exact_at(&mut block, place).expect("a read");
        let at = usize::try_from(place).expect("small");
        assert!(block == far.image[at..at + BLOCK], "{place} is not what was loaded");
    }
    drop(open);
    let [here, coming, asked] = counted(&far.pool);
    far.pool.detach("case");
    (here + coming + asked, asked)
}

#[test]
fn backwards_and_in_strides_few_reads_ask_donors() {
    let scratch = Scratch::new();
    let mut far = far(&noise(&scratch));
    let block = BLOCK as u64;
    let blocks = BYTES / block;
    let backward = (0..blocks).rev().map(|number| number * block);
    let (came, asked) = asked_for(&mut far, backward);
    assert!(asked < blocks / 50, "{asked} of {blocks} reads backwards asked donors");
    // How many the tool finds in the kernel is a race between the two; with none given, every read comes
    // here.
    assert!(came < blocks, "all {blocks} reads came here: the kernel was not given what is read next");
    let strided = (0..230).map(|number| number * 200 * 1024);
    let (_, asked) = asked_for(&mut far, strided);
    assert!(asked < 30, "{asked} of 230 reads in strides asked donors");
}

#[test]
fn the_kernel_keeps_the_read_ahead_that_it_was_given() {
    let mut pool = Pool::start();
    pool.donate("d", "64M");
    pool.create_linear("case", "64M");
    let file = pool.attach_fuse("case", &[]).path;
    let mount = file.parent().expect("its directory");
    let device = tools::run("mountpoint", ["-d", &mount.display().to_string()]);
    let setting = format!("/sys/class/bdi/{}/read_ahead_kb", device.trim());
    assert_eq!(std::fs::read(&file).expect("zeros").len(), 64 << 20);
    assert_eq!(std::fs::read_to_string(&setting).expect("a setting").trim(), "1024");
}

#[test]
fn over_a_long_way_connections_run_bbr() {
    let (lan, _wire, mut pool) = hosts();
    pool.ok(["create", "case", "64M"]);
    let coordinator = format!(":{} ", pool.url().rsplit(':').next().expect("a port"));
    let mut run_bbr = || {
        pool.attach_fuse("case", &[]);
        let data_of = |node: Node| {
            let mut ss = lan.exec(node, tools::need("ss"));
            let told = tools::expect_success(ss.args(["--tcp", "--info", "--no-header", "--oneline"]));
            let data = told.lines().filter(|line| !line.contains(&coordinator));
            data.map(|line| line.contains(" bbr ")).collect::<Vec<_>>()
        };
        // What is read is sent by donors, what is written by the client.
        let donors = (1..=DONORS).flat_map(|number| data_of(Node::Donor(number))).collect::<Vec<_>>();
        let client = data_of(Node::Client);
        pool.detach("case");
        assert!(client.len() >= DONORS.into() && donors.len() == client.len(), "{client:?}, {donors:?}");
        [client, donors].concat()
    };
    let near = run_bbr();
    lan.detour(Node::Client);
    let far = run_bbr();
    assert!(near.iter().all(|bbr| !bbr), "{near:?}");
    assert!(far.iter().all(|bbr| *bbr), "as root, on a kernel that has or can load tcp_bbr: {far:?}");
}

#[test]
fn a_walk_through_a_far_file_system_takes_a_third_of_the_round_trips() {
    let image = Sample::named("fs.ntfs").path();
    let mut far = far(&image);
    let fls =
        |file: &Path| tools::expect_success(tools::command("fls").args(["-r", "-p", "-o", "2048"]).arg(file));
    let right = fls(&image);
    let mut walk = |rule: &str| {
        let file = far.pool.attach_fuse("case", &["--read-only", "--read-ahead", rule]).path;
        assert_eq!(fls(&file), right, "{rule}");
        let counts = counted(&far.pool);
        far.pool.detach("case");
        counts
    };
    // By this rule the kernel is given nothing that it did not ask for, so all reads that the tool makes
    // come.
    let reads: u64 = walk("thesis").iter().sum();
    let [here, coming, asked] = walk("auto");
    assert!(3 * asked <= reads, "of {reads} reads {here} found it here, {coming} waited, {asked} asked");
}
