//! Another pool's coordinator in the place of a pool's own: nothing that was lent to that one is touched,
//! whoever uses it is not disturbed, and all is as it was when its own is back.

use cheetah_lab::filled::{holds_at, write_at};
use cheetah_lab::pool::{Access, Pool, State};
use cheetah_lab::wait;
use serde_json::json;

const MIB: u64 = 1 << 20;

/// Two volumes, one of them in use.
#[track_caller]
fn pool_in_use() -> (Pool, std::path::PathBuf) {
    let mut pool = Pool::of(Access::Plaintext, State::Directory, None);
    pool.donate("one", "192M");
    pool.donate("two", "192M");
    for name in ["idle", "used"] {
        pool.ok(["create", name, "64M", "--redundancy", "stripe:2"]);
        let path = pool.attach_fuse(name, &[]).path;
        write_at(&path, 0x5a, 0);
        if name == "used" {
            return (pool, path);
        }
        pool.detach(name);
    }
    unreachable!("one of them is in use")
}

#[test]
fn a_stranger_in_the_coordinators_place_takes_and_wipes_nothing() {
    let (mut pool, path) = pool_in_use();
    let own = pool.status()["pool"].clone();
    pool.kill_coordinator();
    let other_home = pool.scratch().join("other-home").display().to_string();
    for state in ["memory", &other_home] {
        let mut stranger = pool.start_stranger(state);
        assert!(stranger.log().contains("new pool"), "{}", stranger.log());
        let status = wait::for_some("both donors, turned away", wait::SOON, || {
            let status = pool.status();
            (status["strangers"].as_array().map(Vec::len) == Some(2)).then_some(status)
        });
        assert_eq!((&status["donors"], &status["strangers"][0]["pool"]), (&json!([]), &own));
        for donor in ["one", "two"] {
            wait::until("a word about it", wait::SOON, || {
                pool.log_of(donor).contains("keeps asking for pool")
            });
        }
        // Its renewals are refused meanwhile, which is not the end of its lease.
        write_at(&path, 0x6b, 2 * MIB);
        assert!(holds_at(&path, 0x5a, 0) && holds_at(&path, 0x6b, 2 * MIB));
        assert!(stranger.terminate(wait::SOON).success());
    }

    pool.restart_coordinator();
    wait::until("both donors again", wait::SOON, || {
        let status = pool.status();
        let heard = |donor: &serde_json::Value| donor["heard"] == true;
        status["pool"] == own && status["donors"].as_array().is_some_and(|all| all.iter().all(heard))
    });
    write_at(&path, 0x7c, 4 * MIB);
    pool.detach("used");
    for name in ["idle", "used"] {
        let path = pool.attach_fuse(name, &[]).path;
        assert!(holds_at(&path, 0x5a, 0), "{name}");
        pool.detach(name);
    }
}

#[test]
fn an_empty_or_cut_state_is_damage_and_not_a_new_pool() {
    let (mut pool, path) = pool_in_use();
    pool.kill_coordinator();
    let state = pool.scratch().join("state/pool.redb");
    let kept = std::fs::read(&state).expect("the state");
    let listen = pool.url().trim_start_matches("http://").to_owned();
    let directory = state.parent().expect("a directory").display().to_string();
    for bytes in [0, 512, kept.len() / 2] {
        std::fs::write(&state, &kept[..bytes]).expect("a damaged state");
        let said = pool.fails(["coordinate", "--listen", &listen, "--state", &directory]);
        assert!(said.contains("pool.redb"), "{said}");
        assert!(said.contains("restore it, or start a new pool with another --state path"), "{said}");
    }
    std::fs::write(&state, &kept).expect("the state again");
    pool.restart_coordinator();
    assert!(holds_at(&path, 0x5a, 0));
    pool.detach("used");
}
