//! A donor over the wire: its dirty map (which requests mark, what a flush does, what each client is told),
//! and replies that leave together.
#![allow(clippy::unwrap_used)]

mod torn;
mod wire;

use cheetah_core::limits::DIRTY_REGION_BYTES as REGION;
use cheetah_nbd::client::Reply;
use cheetah_nbd::{CmdFlags, Command, Errno, Mark, RequestHeader, StateFlags};
use cheetah_rim::arena::Arena;
use cheetah_rim::donor::{DonorServer, Gate};
use cheetah_rim::net::Bound;
use cheetah_rim::stream::Transport;
use std::io::Write;
use std::sync::Arc;
use wire::Client;

fn donor(over: &Transport) -> DonorServer {
    let arena = Arc::new(Arena::new(1).unwrap());
    let bound = Bound::new(&"127.0.0.1:0".parse().unwrap()).unwrap();
    DonorServer::start(bound, &arena, &Gate::alone(1), over).unwrap()
}

over_each_transport!(
    what_changes_data_marks_and_the_second_flush_forgets,
    what_is_refused_marks_nothing,
    each_client_is_answered_in_the_contexts_it_agreed_to,
    replies_that_leave_together_are_what_was_asked_for,
    a_client_that_numbers_its_writes_is_told_which_are_not_known_to_be_complete,
    what_a_write_covered_comes_back_while_it_is_not_known_to_be_complete,
    what_a_write_covered_comes_back_when_it_is_cut_off,
);

fn what_changes_data_marks_and_the_second_flush_forgets(over: &Transport) {
    let donor = donor(over);
    let (mut writer, mut reader) =
        (Client::connect(&donor, true, false), Client::connect(&donor, false, true));
    assert_eq!(reader.dirty(6), [false; 6]);
    assert_eq!(writer.done(Command::Write, REGION - 1, 2), None);
    assert_eq!(writer.done(Command::Trim, 2 * REGION, REGION), None);
    assert_eq!(writer.done(Command::Flush, 0, 0), None);
    assert_eq!(writer.done(Command::WriteZeroes, 4 * REGION + 5, 1), None);
    assert_eq!(writer.done(Command::Cache, 5 * REGION, REGION), None);
    assert_eq!(reader.dirty(6), [true, true, true, false, true, false]);
    assert_eq!(reader.done(Command::Flush, 0, 0), None, "any connection that may write");
    assert_eq!(reader.dirty(6), [false, false, false, false, true, false]);
    assert_eq!(writer.done(Command::Flush, 0, 0), None);
    assert_eq!(reader.dirty(6), [false; 6]);
}

fn what_is_refused_marks_nothing(over: &Transport) {
    let donor = donor(over);
    let mut client = Client::connect(&donor, false, true);
    let end = cheetah_core::limits::EXTENT_BYTES;
    assert_eq!(client.done(Command::Write, end - 1, 2), Some(Errno::NoSpc));
    assert_eq!(client.done(Command::Trim, end - 1, 2), Some(Errno::Inval));
    assert_eq!(client.status(CmdFlags::EMPTY, 0, end), [(client.session.dirty, vec![(end, false)])]);
}

fn each_client_is_answered_in_the_contexts_it_agreed_to(over: &Transport) {
    let donor = donor(over);
    let (mut both, mut base) = (Client::connect(&donor, true, true), Client::connect(&donor, true, false));
    assert_eq!(both.done(Command::Write, 4096, 4096), None);
    let (holes, marks) = (
        (both.session.base_allocation, vec![(4096, true), (4096, false), (REGION, true)]),
        (both.session.dirty, vec![(REGION, true), (8192, false)]),
    );
    assert_eq!(both.status(CmdFlags::EMPTY, 0, REGION + 8192), [holes.clone(), marks]);
    assert_eq!(base.status(CmdFlags::EMPTY, 0, REGION + 8192), [holes]);
    let one = both.status(CmdFlags::REQ_ONE, 0, REGION + 8192);
    assert_eq!(one.iter().map(|(_, runs)| runs.len()).collect::<Vec<_>>(), [1, 1]);
    let mut none = Client::connect(&donor, false, false);
    assert_eq!(none.done(Command::BlockStatus, 0, 4096), Some(Errno::Inval));
}

fn replies_that_leave_together_are_what_was_asked_for(over: &Transport) {
    const HALF: usize = 2 << 20;
    let donor = donor(over);
    let mut client = Client::connect(&donor, false, false);
    // Data, nothing, data.
    let mut kept: Vec<u8> =
        (0..3 * HALF as u32 / 4).flat_map(|number| (number | 1 << 31).to_le_bytes()).collect();
    kept[HALF..2 * HALF].fill(0);
    for at in [0, 2 * HALF] {
        let length = HALF as u32;
        let header = RequestHeader {
            flags: CmdFlags::EMPTY,
            command: Command::Write,
            cookie: 0,
            offset: at as u64,
            length,
        };
        client.stream.write_all(&header.encode()).unwrap();
        client.stream.write_all(&kept[at..at + HALF]).unwrap();
        assert!(matches!(client.reply(), Reply::None { .. }));
    }
    // More than sockets hold, so that they are full in the middle of replies: lent and copied ones, and
    // holes.
    let lens = [65_536, 65_536, 1 << 20, 4096, 100_001, 262_144, 512, 131_072, 65_535, 1 << 20, 65_537];
    let asked: Vec<(usize, usize)> = (0..200)
        .map(|number| (number * 77_824 % (3 * HALF - (1 << 20)), lens[number % lens.len()]))
        .collect();
    let mut headers = Vec::new();
    for (cookie, (offset, length)) in asked.iter().enumerate() {
        let (cookie, offset, length) = (cookie as u64, *offset as u64, *length as u32);
        let header = RequestHeader { flags: CmdFlags::EMPTY, command: Command::Read, cookie, offset, length };
        headers.extend(header.encode());
    }
    client.stream.write_all(&headers).unwrap();
    for (cookie, (offset, length)) in asked.into_iter().enumerate() {
        let data = client.data(cookie as u64, offset as u64, length);
        assert!(data == kept[offset..offset + length], "request {cookie}: {offset}+{length}");
    }
}

fn what_a_write_covered_comes_back_while_it_is_not_known_to_be_complete(over: &Transport) {
    let donor = donor(over);
    let mut writer = Client::connect(&donor, false, true);
    let say = |client: &mut Client, number, complete, keep| {
        let mark = Mark { number, targets: 0b11, complete, keep };
        client.stream.write_all(&mark.header().encode()).unwrap();
    };
    // What `Client` writes is sevens; beside them nothing was written yet.
    assert_eq!(writer.done(Command::Write, 0, 8192), None);
    say(&mut writer, 7, 0, true);
    assert_eq!(writer.done(Command::WriteZeroes, 0, 4096), None);
    assert_eq!(writer.done(Command::Write, 4096, 8192), None);
    say(&mut writer, 8, 0, false);
    assert_eq!(writer.done(Command::Write, 16384, 4096), None);
    let reading = |client: &mut Client, offset: u64| {
        client.send(Command::Read, CmdFlags::EMPTY, offset, 4096);
        client.data(1, offset, 4096)[17]
    };
    assert_eq!([0, 4096, 8192].map(|at| reading(&mut writer, at)), [0, 7, 7]);
    drop(writer);

    let mut next = Client::connect(&donor, false, true);
    say(&mut next, 0, 0, false);
    next.send(Command::BlockStatus, CmdFlags::EMPTY, 0, REGION);
    let Reply::Ledger { entries, .. } = next.reply() else { panic!("no ledger") };
    let kept: Vec<_> = entries.iter().map(|entry| (entry.from, entry.undo)).collect();
    assert_eq!(kept, [(0, true), (4096, true), (16384, false)]);
    let Reply::BlockStatus { .. } = next.reply() else { panic!("no status") };
    assert_eq!(next.done(Command::Undo, 0, 4096), Some(Errno::NotSup), "of no write");
    say(&mut next, 8, 0, false);
    assert_eq!(next.done(Command::Undo, 16384, 4096), Some(Errno::NotSup), "it was not to be kept");
    say(&mut next, 7, 0, false);
    assert_eq!(next.done(Command::Undo, 0, 16384), Some(Errno::NotSup), "it did not reach so far");
    assert_eq!(next.done(Command::Undo, 0, 12288), None);
    assert_eq!(next.done(Command::Undo, 0, 12288), None, "asked again");
    assert_eq!([0, 4096, 8192, 16384].map(|at| reading(&mut next, at)), [7, 7, 0, 7]);
    say(&mut next, 9, 7, true);
    assert_eq!(next.done(Command::Write, 0, 4096), None);
    say(&mut next, 7, 7, true);
    assert_eq!(next.done(Command::Undo, 0, 4096), Some(Errno::NotSup), "it is complete");
}

fn what_a_write_covered_comes_back_when_it_is_cut_off(over: &Transport) {
    let donor = donor(over);
    let mut writer = Client::connect(&donor, false, true);
    assert_eq!(writer.done(Command::Write, 0, 8192), None);
    let cut_off = |mut client: Client, keep| {
        let mark = Mark { number: 7, targets: 0b11, complete: 0, keep };
        let (command, cookie, length) = (Command::Write, 1, 12288);
        let write = RequestHeader { flags: CmdFlags::EMPTY, command, cookie, offset: 0, length };
        client
            .stream
            .write_all(&[&mark.header().encode()[..], &write.encode(), &[9; 6000]].concat())
            .unwrap();
    };
    let comes_to_read = |expected: [u8; 3]| {
        let mut client = Client::connect(&donor, false, true);
        let mut read = |offset: u64| {
            client.send(Command::Read, CmdFlags::EMPTY, offset, 4096);
            client.data(1, offset, 4096)[17]
        };
        let mut found = [0; 3];
        for _ in 0..500 {
            found = [0, 4096, 8192].map(&mut read);
            if found == expected {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(found, expected);
    };
    cut_off(writer, false);
    comes_to_read([9, 9, 0]);
    assert_eq!(Client::connect(&donor, false, true).done(Command::Write, 0, 8192), None);
    comes_to_read([7, 7, 0]);
    let marks = Client::connect(&donor, false, true);
    cut_off(marks, true);
    // It may not have come yet.
    std::thread::sleep(std::time::Duration::from_millis(100));
    comes_to_read([7, 7, 0]);
}

fn a_client_that_numbers_its_writes_is_told_which_are_not_known_to_be_complete(over: &Transport) {
    let donor = donor(over);
    let mut writer = Client::connect(&donor, false, true);
    let mark = |number, complete| Mark { number, targets: 0b11, complete, keep: true }.header().encode();
    let mut write = |number, complete, offset| {
        writer.stream.write_all(&mark(number, complete)).unwrap();
        assert_eq!(writer.done(Command::Write, offset, 4096), None);
    };
    write(7, 0, 0);
    write(8, 0, REGION);
    write(9, 7, 2 * REGION);
    // A write that its client does not finish, and of which nothing is kept to be put back.
    let unkept = Mark { number: 10, targets: 0b11, complete: 7, keep: false };
    writer.stream.write_all(&unkept.header().encode()).unwrap();
    let header = RequestHeader {
        flags: CmdFlags::EMPTY,
        command: Command::Write,
        cookie: 1,
        offset: 4096,
        length: 4096,
    };
    writer.stream.write_all(&header.encode()).unwrap();
    writer.stream.write_all(&[7; 100]).unwrap();
    drop(writer);
    let mut next = Client::connect(&donor, false, true);
    next.stream.write_all(&mark(0, 0)).unwrap();
    let listed = (0..1_000).find_map(|_| {
        next.send(Command::BlockStatus, CmdFlags::EMPTY, 0, 4 * REGION);
        let Reply::Ledger { complete, entries, .. } = next.reply() else { panic!("no ledger") };
        let Reply::BlockStatus { descriptors, .. } = next.reply() else { panic!("no status") };
        assert!(descriptors.iter().all(|run| run.flags == StateFlags::EMPTY), "all have numbers");
        let listed: Vec<_> = entries.iter().map(|entry| (entry.number, entry.from, entry.landed)).collect();
        // The donor may not have read all of it yet.
        (listed.len() == 3).then_some((complete, listed))
    });
    let listed = listed.expect("the last write was noted");
    assert_eq!(listed, (7, vec![(8, REGION, true), (9, 2 * REGION, true), (10, 4096, false)]));
    // Whoever gives no numbers is told of all that was written lately, as before.
    let mut reader = Client::connect(&donor, false, true);
    assert_eq!(reader.dirty(4), [true, true, true, false]);
}
