//! The client library with a real pool: bytes at any place, a donor's death, and errors that say what
//! happened.

use std::sync::atomic::{AtomicBool, Ordering};

use cheetah_client::{Client, Error, Options, VolumeError, blocking::Volume, of_identity};
use cheetah_core::api::RefusalCode;
use cheetah_lab::load::next_random;
use cheetah_lab::pool::Pool;
use cheetah_rim::control::CallError;

#[path = "../../client/examples/note.rs"]
mod note;

/// A pool of members, and this process as its admin.
fn pool_of(donors: u8) -> (Pool, Client) {
    let mut pool = Pool::start();
    for number in 1..=donors {
        pool.donate(&format!("d{number}"), "256M");
    }
    let client = of_identity(&pool.identity()).expect("it is the pool's admin");
    (pool, client)
}

/// The code of a refusal.
fn refused(result: Result<Volume, Error>) -> RefusalCode {
    match result.map(drop) {
        Err(Error::Call(CallError::Refused(refusal))) => refusal.code,
        other => panic!("it was not refused: {other:?}"),
    }
}

#[test]
fn the_example_outlives_a_donor() {
    let (mut pool, client) = pool_of(4);
    pool.ok(["create", "case7", "128M"]);
    let killed = AtomicBool::new(false);
    let said = note::keep_a_note(&client, "case7", || {
        let holder = pool.holders("case7", 0).swap_remove(0);
        pool.donor(&holder).kill();
        killed.store(true, Ordering::Relaxed);
    });
    assert_eq!(said.expect("redundancy covers it"), "seen at 10:42");
    assert!(killed.load(Ordering::Relaxed));
    let volume = Volume::open(&client, "case7", &Options { read_only: true, ..Options::default() });
    let volume = volume.expect("its lease was given back, and three donors are enough");
    let mut note = [0; 13];
    volume.read_at(4096, &mut note).expect("it was written with one donor less");
    assert_eq!(&note, b"gone at 10:43");
    volume.detach().expect("it is given back");
}

#[test]
fn bytes_are_where_they_were_put_whatever_their_place_and_number() {
    const BYTES: u64 = 80 << 20;
    let (pool, client) = pool_of(3);
    pool.ok(["create", "case7", "80M", "--redundancy", "parity:2+1"]);
    let volume = Volume::open(&client, "case7", &Options::default()).expect("it is there");
    assert_eq!(volume.size(), BYTES);
    let mut model = vec![0u8; BYTES as usize];
    let mut seed = 0x2006;
    let mut next = |below: u64| {
        seed = next_random(seed);
        (seed >> 16) % below
    };
    for turn in 0..40u8 {
        // Some are longer than all that may be under way at once.
        let len = if turn % 8 == 0 { next(24 << 20) } else { next(10_000) };
        let at = next(BYTES - len);
        let range = at as usize..(at + len) as usize;
        match turn % 5 {
            4 => {
                volume.zero_at(at, len).expect("zeros");
                model[range.clone()].fill(0);
            }
            _ => {
                model[range.clone()].iter_mut().enumerate().for_each(|(n, byte)| *byte = turn ^ n as u8);
                volume.write_at(at, &model[range.clone()]).expect("a write");
            }
        }
        let mut read = vec![0; range.len()];
        volume.read_at(at, &mut read).expect("a read");
        assert!(read == model[range], "{len} bytes at {at} are not what was written");
    }
    volume.flush().expect("all donors are there");
    let mut all = vec![0; BYTES as usize];
    volume.read_at(0, &mut all).expect("a read of everything");
    assert!(all == model);
    volume.read_at(0, &mut []).expect("nothing is always there");
    volume.detach().expect("it is given back");
}

#[test]
fn what_cannot_be_is_said_and_changes_nothing() {
    let (pool, client) = pool_of(1);
    pool.ok(["create", "case7", "64M"]);
    let options = Options::default();
    assert_eq!(refused(Volume::open(&client, "case8", &options)), RefusalCode::NotFound);
    let volume = Volume::open(&client, "case7", &options).expect("it is there");
    assert_eq!(refused(Volume::open(&client, "case7", &options)), RefusalCode::Conflict, "one writer");
    let end = volume.size();
    for (offset, len) in [(end - 1, 2), (end, 1), (u64::MAX - 1, 9), (end - (3 << 20), 4 << 20)] {
        let read = volume.read_at(offset, &mut vec![0; len]);
        let is_beyond = |result: &Result<(), Error>| match result {
            Err(Error::Request { offset: at, why: VolumeError::OutOfRange }) => *at == offset,
            _ => false,
        };
        assert!(is_beyond(&read), "{read:?}");
        let write = volume.write_at(offset, &vec![1; len]);
        assert!(is_beyond(&write), "{write:?}");
        assert!(is_beyond(&volume.zero_at(offset, len as u64)));
    }
    let mut last = vec![1; 3 << 20];
    volume.read_at(end - (3 << 20), &mut last).expect("a read");
    assert!(last.iter().all(|byte| *byte == 0), "a part of what reaches beyond the end was written");
    volume.detach().expect("it is given back");
    let reader = Options { read_only: true, ..options };
    let volume = Volume::open(&client, "case7", &reader).expect("it was given back");
    let refused = volume.write_at(0, b"no");
    assert!(matches!(refused, Err(Error::Request { offset: 0, why: VolumeError::ReadOnly })), "{refused:?}");
    drop(volume);
    let gone = Client::new("http://127.0.0.1:9").expect("a URL");
    let said = Volume::open(&gone, "case7", &options).map(drop).expect_err("nobody listens there");
    assert!(matches!(said, Error::Call(CallError::Unreachable { .. })), "{said:?}");
    assert!(said.to_string().contains("cheetah coordinate"), "it says what to do: {said}");
}
