//! What a donor of a pool serves, over the wire and with a real lease: an export ends where the volume does,
//! who asks in another way is told how, and nobody is told what there is.
#![allow(clippy::unwrap_used)]

mod torn;
mod wire;

use cheetah_core::api::{Answer, Attach, Attached, Call, Create, Size};
use cheetah_core::donor::export_name;
use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{DonorId, LeaseToken, Medium, Redundancy, VolumeMap};
use cheetah_nbd::client::{Error, Handshake, Step, Want};
use cheetah_nbd::proto::{opt, rep};
use cheetah_nbd::{Command, Errno};
use cheetah_rim::arena::Arena;
use cheetah_rim::control::{
    Client as Pool, CoordinateOptions, Coordination, DonorControl, DonorHooks, DonorOptions, StateAt,
    coordinate,
};
use cheetah_rim::donor::{DonorServer, Gate};
use cheetah_rim::net::{Bound, Endpoint};
use cheetah_rim::stream::Transport;
use cheetah_rim::volume::{Completion, Op, Sink, Submission, Tuning, VolumeHandle, VolumeOptions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use tokio::runtime::Handle;
use wire::{Client, shake};

const EXTENTS: u32 = 4;

/// A pool of one donor, whose memory is real. It lives on a thread of its own, so that the tests may wait.
struct World {
    runtime: Handle,
    _coordination: Coordination,
    pool: Pool,
    donor: DonorServer,
}

impl World {
    fn start(over: &Transport) -> World {
        let over = over.clone();
        let (started, starting) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                started.send(World::begin(&over).await).unwrap();
                std::future::pending::<()>().await;
            });
        });
        starting.recv().unwrap()
    }

    async fn begin(over: &Transport) -> World {
        let listen = "127.0.0.1:0".parse().unwrap();
        let coordination = coordinate(CoordinateOptions::new(listen, StateAt::Memory)).await.unwrap();
        let pool = Pool::new(&coordination.url()).unwrap();
        let bound = Bound::new(&Endpoint::Tcp(listen)).unwrap();
        let Endpoint::Tcp(listen) = bound.endpoint else { panic!("bound to TCP") };
        let arena = Arc::new(Arena::new(EXTENTS).unwrap());
        let wiped = arena.clone();
        let hooks = DonorHooks {
            wipe: Arc::new(move |extents| {
                wiped.wipe(extents);
                Ok(())
            }),
            bytes_used: Arc::new(|| 0),
            keep: None,
        };
        let options = DonorOptions {
            name: "d".into(),
            or_numbered: false,
            host: "h".into(),
            machine: String::new(),
            listen,
            extents: EXTENTS,
            foreign_export: None,
            medium: Medium::Memory,
            keeps_auths: false,
        };
        let (control, mut handle) = DonorControl::new(options, pool.clone(), hooks).unwrap();
        let donor = DonorServer::start(bound, &arena, &Gate::Pooled(handle.clone()), over).unwrap();
        tokio::spawn(control.run());
        handle.joined().await.expect("a pool");
        World { runtime: Handle::current(), _coordination: coordination, pool, donor }
    }

    fn create(&self, name: &str, extents: u64) {
        let (name, size) = (name.to_owned(), Size::Bytes(extents * EXTENT_BYTES));
        let redundancy = Some(Redundancy::LINEAR);
        let create = Create { redundancy, ..Create::new(name, size) };
        self.call(Call::Create(create));
    }

    fn attach(&self, name: &str, read_only: bool) -> Attached {
        let attach = Attach::new(read_only, "me");
        match self.call(Call::Attach { name: name.into(), attach }) {
            Answer::Attached(attached) => attached,
            other => panic!("{other:?}"),
        }
    }

    fn call(&self, call: Call) -> Answer {
        self.runtime.block_on(self.pool.call(call)).unwrap()
    }

    /// With this lease.
    fn open(&self, lease: &Attached) -> Client {
        let donor: DonorId = lease.map.donors().next().unwrap();
        let export = export_name(&lease.map.name, lease.token, 1, donor);
        self.ask(&export).unwrap()
    }

    fn ask(&self, export: &str) -> Result<Client, Error> {
        let want = Want {
            export: export.into(),
            structured: true,
            base_allocation: true,
            dirty: false,
            context: false,
            auth: false,
        };
        Client::open(&self.donor, want)
    }
}

over_each_transport!(
    an_export_ends_where_its_volume_does,
    what_a_volume_has_gained_is_served_and_what_is_not_its_own_inside_is_refused,
    who_has_no_lease_hears_how_to_ask_and_no_names,
);

fn an_export_ends_where_its_volume_does(over: &Transport) {
    let world = World::start(over);
    world.create("case", 2);
    world.create("other", 1);
    let end = 2 * EXTENT_BYTES;
    let mut writer = world.open(&world.attach("case", false));
    let mut reader = world.open(&world.attach("case", true));
    assert_eq!((writer.session.info.size, reader.session.info.size), (end, end));
    let (room, none, sealed) = (Some(Errno::NoSpc), Some(Errno::Inval), Some(Errno::Perm));
    // Across its end, in what is another volume's, in what is nobody's, behind all that is lent.
    let ranges = [(end - 1, 2), (end, 4096), (3 * EXTENT_BYTES, 1), (4 * EXTENT_BYTES, 1), (u64::MAX, 1)];
    for (offset, len) in ranges {
        for (command, to_writer, to_reader) in [
            (Command::Read, none, none),
            (Command::Cache, none, none),
            (Command::BlockStatus, none, none),
            (Command::Trim, none, sealed),
            (Command::Write, room, sealed),
            (Command::WriteZeroes, room, sealed),
        ] {
            assert_eq!(writer.done(command, offset, len), to_writer, "{command:?} {offset} {len}");
            assert_eq!(reader.done(command, offset, len), to_reader, "{command:?} {offset} {len}");
        }
    }
    assert_eq!(writer.done(Command::Write, end - 1, 1), None);
    assert_eq!(reader.done(Command::Write, end - 1, 1), sealed);
}

fn what_a_volume_has_gained_is_served_and_what_is_not_its_own_inside_is_refused(over: &Transport) {
    let world = World::start(over);
    world.create("case", 1);
    world.create("other", 1);
    let mut writer = world.open(&world.attach("case", false));
    let at = |extent: u64| extent * EXTENT_BYTES;
    let asks = |client: &mut Client, offset| client.done(Command::Write, offset, 4096);
    assert_eq!(asks(&mut writer, at(2)), Some(Errno::NoSpc));
    let grow = Call::Grow { name: "case".into(), size: Size::Bytes(2 * EXTENT_BYTES) };
    world.call(grow);
    assert_eq!(asks(&mut writer, at(2)), None, "answered once the donor knows");
    assert_eq!(asks(&mut writer, at(1)), Some(Errno::Perm), "another's");
    assert_eq!(asks(&mut writer, at(3)), Some(Errno::NoSpc));
}

fn who_has_no_lease_hears_how_to_ask_and_no_names(over: &Transport) {
    let world = World::start(over);
    world.create("case-7", 1);
    let lease = world.attach("case-7", true);
    for export in ["", "case-7", "arena", "case-7@", "nothing"] {
        let Err(Error::Refused { reply: rep::ERR_UNKNOWN, message, .. }) = world.ask(export) else {
            panic!("{export} is not an export")
        };
        assert!(message.contains("NAME@TOKEN"), "{message}");
    }
    let told = |export: &str| match world.ask(export) {
        Err(Error::Refused { reply: rep::ERR_UNKNOWN, message, .. }) => message,
        _ => panic!("{export} is not an export"),
    };
    let token = lease.token;
    assert_eq!(told("case-7@00000000000000ff"), told("nothing@00000000000000ff"), "names cannot be probed");
    assert_eq!(told(&format!("case-8@{token}")), told("case-7@00000000000000ff"));
    let listed = shake(&world.donor, Handshake::list()).1;
    let Step::Failed(Error::Refused { option: opt::LIST, reply: rep::ERR_POLICY, message }) = listed else {
        panic!("a list of names: {listed:?}")
    };
    assert!(message.contains("NAME@TOKEN") && !message.contains("case-7"), "{message}");
    assert!(world.ask(&format!("case-7@{token}")).is_ok(), "as it was told");
}

/// Passes on to a donor; each connection has a bit of its payload flipped on its way there, and the first one
/// a bit of this byte, too.
fn flipping(donor: String, byte: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut first = Some(byte);
        for client in listener.incoming() {
            let (mut client, mut far) = (client.unwrap(), TcpStream::connect(&donor).unwrap());
            let (mut replies, mut back) = (far.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut replies, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            let flips: Vec<usize> = first.take().into_iter().chain([20_000]).collect();
            std::thread::spawn(move || {
                let (mut at, mut bytes) = (0, vec![0; 4096]);
                while let Ok(got @ 1..) = client.read(&mut bytes) {
                    for flip in flips.iter().filter(|flip| (at..at + got).contains(*flip)) {
                        bytes[flip - at] ^= 4;
                    }
                    at += got;
                    if far.write_all(&bytes[..got]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[derive(Debug)]
struct Done(mpsc::Sender<Completion>);

impl Sink for Done {
    fn complete(&self, completion: Completion) {
        self.0.send(completion).unwrap();
    }
}

fn one(world: &World, map: VolumeMap, token: LeaseToken, op: Op, bytes: &[u8]) -> Vec<u8> {
    let (fresh, transport) = (true, Transport::default());
    let tuning = Tuning { connections: Some(1), ..Tuning::default() };
    let read_only = op == Op::Read;
    let volume =
        VolumeHandle::start(VolumeOptions { map, token, read_only, fresh, tuning, transport, key: None })
            .unwrap();
    let mut buffer = volume.pool().take_blocking(bytes.len());
    buffer.copy_from_slice(bytes);
    let (send, done) = mpsc::channel();
    let (len, sink) = (u32::try_from(bytes.len()).unwrap(), Arc::new(Done(send)));
    volume.submit(Submission { op, offset: 0, len, buffer: Some(buffer), token: 1, sink });
    let done = done.recv().unwrap();
    world.runtime.block_on(volume.close());
    done.result.unwrap();
    done.buffer.map(|buffer| buffer.to_vec()).unwrap_or_default()
}

/// What is asked for by its name would be passed over where a bit of that flips, and nothing checked.
#[test]
fn a_bit_of_the_handshake_that_flips_takes_no_check_away() {
    for byte in [70, 130] {
        let world = World::start(&Transport::default());
        world.create("case", 1);
        let Attached { mut map, token, .. } = world.attach("case", false);
        let direct = map.clone();
        let route = map.routes.values_mut().next().unwrap();
        route.address = flipping(route.address.clone(), byte);
        let bytes: Vec<u8> = (0..65536_u32).map(|at| (at * 7 + 1) as u8).collect();
        one(&world, map, token, Op::Write, &bytes);
        let reader = world.attach("case", true);
        let found = one(&world, direct, reader.token, Op::Read, &vec![0; bytes.len()]);
        assert!(found == bytes, "byte {byte}: what flipped later was not found");
    }
}
