//! From a pool in the clear to a pool of members on the same machines, as the manual says it: no volume is
//! lost on the way.

use cheetah_lab::dice::Dice;
use cheetah_lab::hash;
use cheetah_lab::pool::Pool;

/// Blocks of which no two are the same.
fn image(seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    (0..(12 << 20) / 8).flat_map(|_| dice.roll().to_le_bytes()).collect()
}

/// What tools read of the volume.
fn read(pool: &mut Pool, name: &str) -> String {
    let attached = pool.attach_fuse(name, &["--read-only"]);
    let found = hash::of_file(&attached.path);
    pool.detach(name);
    found
}

#[test]
fn volumes_of_a_pool_in_the_clear_move_to_a_pool_of_members() {
    let (mut clear, mut members) = (Pool::in_the_clear(), Pool::start());
    for donor in ["a", "b", "c"] {
        clear.donate(donor, "128M");
        members.donate(donor, "128M");
    }
    let evidence = clear.scratch().file("evidence.raw", &image(1));
    let written = clear.scratch().file("written.raw", &image(2));
    clear.ok(["load", &evidence.display().to_string(), "evidence"]);
    clear.ok(["load", &written.display().to_string(), "work", "--writable"]);
    for (name, original, more) in [("evidence", &evidence, None), ("work", &written, Some("--writable"))] {
        let log = clear.scratch().join(format!("{name}.log")).display().to_string();
        clear.ok(["log", name, "--export", &log]);
        clear.ok(["verify-log", &log]);
        let attached = clear.attach_export_unix(name, &["--read-only"]);
        let moved: Vec<&str> = ["load", &attached.uri, name].into_iter().chain(more).collect();
        members.ok(moved);
        clear.detach(name);
        members.ok(["verify", name]);
        clear.ok(["delete", name]);
        assert_eq!(read(&mut members, name), hash::of_file(original), "{name}");
    }
    let listed = members.json(["list"]);
    let sealed = |name: &str| {
        let volumes = listed["volumes"].as_array().expect("volumes");
        let volume = volumes.iter().find(|volume| volume["name"] == name).expect("it is there");
        volume["content"]["sealed"].clone()
    };
    assert_ne!(sealed("evidence"), sealed("work"), "evidence is sealed in the new pool, too: {listed}");
    assert_eq!(clear.json(["list"])["volumes"], serde_json::json!([]), "nothing is left in the old one");
}
