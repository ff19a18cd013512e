//! The NBD export over a real volume, by a client that can also misbehave. (Clients that others wrote are
//! used by the end-to-end tests.)
#![allow(clippy::unwrap_used)]

mod support;
#[path = "../../rim/tests/torn/mod.rs"]
mod torn;

use cheetah_front::export::{self, Endpoint, ExportError, Exported};
use cheetah_front::fuse;
use cheetah_nbd::Command;
use cheetah_rim::stream::Transport;
use std::io::Read;
use std::time::{Duration, Instant};
use support::{Client, World, noise};

const SIZE: u64 = 40 * 1024 * 1024 + 3;

fn serve(world: &World, over: &Transport) -> Exported {
    export::serve(&world.shared, &Endpoint::Unix(world.folder.join("sock")), over.clone()).unwrap()
}

fn stop(exported: &Exported) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(exported.stop(Duration::from_secs(20)))
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

over_each_transport!(
    what_is_written_in_any_size_comes_back,
    many_requests_at_once_are_all_answered,
    wrong_requests_are_answered_and_their_payload_skipped,
    what_leaves_the_export_is_told_so_and_changes_nothing,
    a_disconnect_drains_the_writes_before_it,
    clients_that_stop_in_the_middle_hold_up_nobody,
    the_file_shows_what_came_through_the_export,
    only_the_socket_of_a_dead_server_is_replaced,
    stopping_answers_what_was_begun_and_ends_idle_clients,
);

fn what_is_written_in_any_size_comes_back(over: &Transport) {
    let world = World::new("sizes", SIZE);
    let exported = serve(&world, over);
    let mut client = Client::connect(&world.folder.join("sock"));
    let mut model = vec![0; SIZE as usize];
    let writes = [
        (0u64, 1usize),
        (4095, 4098),
        (16_383, 16_384),
        (60_000, 16_385),
        (1 << 20, 1 << 20),
        (5 << 20, 33 << 19),
    ];
    for (seed, (offset, len)) in (1u64..).zip(writes) {
        let bytes = noise(seed, len);
        model[offset as usize..][..len].copy_from_slice(&bytes);
        assert_eq!(client.write(offset, &bytes), 0);
    }
    assert_eq!(client.write(SIZE - 3, b"end"), 0);
    model[SIZE as usize - 3..].copy_from_slice(b"end");
    for (offset, len) in [(0, 100_000), (0, 32 << 20), (SIZE - 5, 5), (77, 0)] {
        assert!(client.read(offset, len) == model[offset as usize..][..len as usize], "{offset} {len}");
    }
    drop(client);
    assert!(stop(&exported));
    assert!(!world.folder.join("sock").exists());
}

fn many_requests_at_once_are_all_answered(over: &Transport) {
    let world = World::new("many", SIZE);
    let _exported = serve(&world, over);
    let mut client = Client::connect(&world.folder.join("sock"));
    let mut reader = Client(client.0.try_clone().unwrap());
    let count = 3000u64;
    let answers = std::thread::spawn(move || (0..count).map(|_| reader.reply()).collect::<Vec<_>>());
    for cookie in 0..count {
        let len = if cookie % 10 == 0 { 100_000 } else { 100 };
        client.send(Command::Write, cookie, cookie * 8192, len, &noise(cookie, len as usize));
    }
    let mut answers = answers.join().unwrap();
    answers.sort_unstable();
    assert!(answers == (0..count).map(|cookie| (cookie, 0)).collect::<Vec<_>>());
    for cookie in (0..count).step_by(7) {
        assert!(client.read(cookie * 8192, 100) == noise(cookie, 100));
    }
}

fn wrong_requests_are_answered_and_their_payload_skipped(over: &Transport) {
    let world = World::new("wrong", SIZE);
    let _exported = serve(&world, over);
    let mut client = Client::connect(&world.folder.join("sock"));
    client.send(Command::Unknown(99), 1, 0, 10, &[]);
    client.send(Command::Write, 2, SIZE - 1, 100_000, &vec![0; 100_000]);
    client.send(Command::Read, 3, SIZE, 1, &[]);
    client.send(Command::Flush, 4, 0, 0, &[]);
    let mut answers: Vec<_> = (0..4).map(|_| client.reply()).collect();
    answers.sort_unstable();
    assert_eq!(answers, [(1, 22), (2, 28), (3, 22), (4, 0)]);
    // Out of step: the connection is closed, and others are not disturbed.
    let mut other = Client::connect(&world.folder.join("sock"));
    std::io::Write::write_all(&mut client.0, &[0; 28]).unwrap();
    assert_eq!(client.0.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(other.write(0, b"x"), 0);
}

/// The volume's own end decides: what would need room there is ENOSPC (28), all else EINVAL (22).
fn what_leaves_the_export_is_told_so_and_changes_nothing(over: &Transport) {
    for read_only in [false, true] {
        let world = World::with(if read_only { "end-sealed" } else { "end" }, SIZE, read_only);
        let _exported = serve(&world, over);
        let mut client = Client::connect(&world.folder.join("sock"));
        let (room, none, sealed) = (28, 22, 1);
        for (command, beyond) in [
            (Command::Read, none),
            (Command::Write, if read_only { sealed } else { room }),
            (Command::WriteZeroes, if read_only { sealed } else { room }),
            (Command::Trim, if read_only { sealed } else { none }),
            (Command::Cache, none),
        ] {
            for (offset, len) in
                [(SIZE - 1, 2), (SIZE, 1), (SIZE - 4096, 8192), (u64::MAX, 1), (1 << 40, 4096)]
            {
                let payload = vec![7; if command == Command::Write { len as usize } else { 0 }];
                client.send(command, 9, offset, len, &payload);
                assert_eq!(client.reply(), (9, beyond), "{command:?} {offset} {len}");
            }
        }
        assert!(client.read(SIZE - 4096, 4096) == [0; 4096], "a refused write wrote nothing");
    }
}

fn a_disconnect_drains_the_writes_before_it(over: &Transport) {
    let world = World::new("drain", SIZE);
    let _exported = serve(&world, over);
    let mut client = Client::connect(&world.folder.join("sock"));
    for at in 0..20u64 {
        client.send(Command::Write, at, at << 20, 1 << 20, &noise(at, 1 << 20));
    }
    client.send(Command::Disc, 99, 0, 0, &[]);
    let mut answers = Vec::new();
    client.0.read_to_end(&mut answers).unwrap();
    assert_eq!(answers.len(), 20 * 16);
    let mut client = Client::connect(&world.folder.join("sock"));
    assert!((0..20u64).all(|at| client.read(at << 20, 1 << 20) == noise(at, 1 << 20)));
}

fn clients_that_stop_in_the_middle_hold_up_nobody(over: &Transport) {
    let world = World::new("stalled", SIZE);
    let exported = serve(&world, over);
    let mounted = fuse::mount(&world.shared, &world.mountpoint(), &fuse::Options::default()).unwrap();
    let socket = world.folder.join("sock");
    let mut stalled: Vec<Client> = (0..20).map(|_| Client::connect(&socket)).collect();
    for client in &mut stalled[..10] {
        for cookie in 0..16 {
            client.send(Command::Read, cookie, 0, 1 << 20, &[]);
        }
    }
    for client in &mut stalled[10..] {
        client.send(Command::Write, 0, 0, 1 << 20, b"and no more");
    }
    wait_until("they are connected", || exported.clients() == 20);
    assert_eq!(std::fs::read(mounted.path()).unwrap().len() as u64, SIZE);
    // Small requests have buffers of their own. (Large ones of other clients come when patience ends.)
    let mut client = Client::connect(&socket);
    assert_eq!(client.write(0, b"small"), 0);
    drop(stalled);
    wait_until("they are gone", || exported.clients() == 1);
}

fn the_file_shows_what_came_through_the_export(over: &Transport) {
    let world = World::new("coherent", SIZE);
    let _exported = serve(&world, over);
    let mounted = fuse::mount(&world.shared, &world.mountpoint(), &fuse::Options::default()).unwrap();
    let mut client = Client::connect(&world.folder.join("sock"));
    for round in 0..20u64 {
        let bytes = noise(round, 300_000);
        assert_eq!(client.write(5000, &bytes), 0);
        assert!(std::fs::read(mounted.path()).unwrap()[5000..305_000] == bytes, "round {round}");
    }
}

fn only_the_socket_of_a_dead_server_is_replaced(over: &Transport) {
    let world = World::new("socket", SIZE);
    let socket = world.folder.join("sock");
    std::fs::write(&socket, "evidence").unwrap();
    let refused = export::serve(&world.shared, &Endpoint::Unix(socket.clone()), over.clone());
    assert!(matches!(refused, Err(ExportError::NotSocket { .. })));
    assert_eq!(std::fs::read(&socket).unwrap(), b"evidence");
    std::fs::remove_file(&socket).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let exported = serve(&world, over);
    let twice = export::serve(&world.shared, &Endpoint::Unix(socket.clone()), over.clone());
    assert!(matches!(twice, Err(ExportError::Listen(why)) if why.to_string().contains("in use")));
    assert_eq!(Client::connect(&socket).read(0, 1), [0]);
    assert!(stop(&exported));
}

fn stopping_answers_what_was_begun_and_ends_idle_clients(over: &Transport) {
    let world = World::new("stop", SIZE);
    let exported = serve(&world, over);
    let socket = world.folder.join("sock");
    let mut idle = Client::connect(&socket);
    let mut half = Client::connect(&socket);
    half.send(Command::Write, 0, 0, 1 << 20, b"half");
    wait_until("both are connected", || exported.clients() == 2);
    assert!(stop(&exported));
    assert_eq!(exported.clients(), 0);
    assert_eq!(idle.0.read(&mut [0; 1]).unwrap(), 0);
    drop(half);
}
