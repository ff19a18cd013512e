//! NBD servers that others wrote, as donors of a volume: nbdkit's memory plugin and qemu-nbd.

use cheetah_lab::pool::Pool;
use cheetah_lab::rivals::Rival;
use cheetah_lab::{tools, wait};

#[test]
fn a_stripe_over_nbdkit_and_qemu_nbd_holds_every_byte() {
    let nbdkit = Rival::nbdkit(&["memory", "1G"]);
    let qemu = Rival::qemu_nbd(1 << 30, "lent");
    let mut pool = Pool::in_the_clear();
    pool.donate_as("kit", &[&nbdkit.uri]);
    pool.donate_as("qemu", &[&qemu.uri]);
    pool.ok(["create", "case", "1G", "--redundancy", "stripe:2", "--unit", "64K"]);
    let uri = pool.attach_export("case", &[]).uri;

    let source =
        Rival::nbdkit_unix(&["sparse-random", "size=1G", "seed=7", "percent=50", "random-content=true"]);
    tools::run("nbdcopy", [&source.uri, &uri]);
    tools::run("nbdcopy", [&uri, &source.uri]);
    pool.detach("case");

    // The bytes are really there: both servers hold some of them.
    for server in [&nbdkit, &qemu] {
        let map = tools::run("nbdinfo", ["--map", "--totals", &server.uri]);
        assert!(map.lines().any(|line| line.ends_with("data") && !line.trim().starts_with("0 ")), "{map}");
    }
}

#[test]
fn a_foreign_donor_beside_one_of_ours_and_its_death() {
    let mut nbdkit = Rival::nbdkit(&["memory", "256M"]);
    let mut pool = Pool::in_the_clear();
    pool.donate("ours", "256M");
    pool.donate_as("theirs", &[&nbdkit.uri]);
    pool.create_linear("case", "384M");
    let uri = pool.attach_export("case", &[]).uri;
    let write = ["-f", "raw", "-c", "write -P 0x66 0 384M", "-c", "flush", &uri];
    tools::run("qemu-io", write);

    nbdkit.process.kill();
    wait::until("the status to name the foreign donor as lost", wait::SOON, || {
        pool.volume_status("case")["lost_donors"] == serde_json::json!(["theirs"])
    });
    tools::run("qemu-io", ["-f", "raw", "-r", "-c", "read -P 0x66 0 192M", &uri]);
    tools::expect_failure(tools::command("qemu-io").args(["-f", "raw", "-r", "-c", "read 320M 64k", &uri]));
}

#[test]
fn a_server_that_is_not_there_is_no_donor() {
    let pool = Pool::in_the_clear();
    let said = pool.fails(["donate", "nbd://127.0.0.1:9/", "--pool", pool.url(), "--name", "ghost"]);
    assert!(said.contains("127.0.0.1:9"), "{said}");
    assert_eq!(pool.status()["donors"], serde_json::json!([]));
}
