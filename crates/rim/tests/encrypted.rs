//! Encrypted volumes over real sockets: donors that hold ciphertext, and what a donor that lies can do. A lie
//! is told by a second client, which writes what it likes as the volume's writer: to the donor that is right,
//! checksums and all.
#![allow(clippy::unwrap_used)]

mod noise;
mod wire;

use cheetah_core::api::{Answer, Attach, Attached, Call, Create, Size, WrappedKey};
use cheetah_core::content::{Sealing, Tell};
use cheetah_core::donor::export_name;
use cheetah_core::limits::{BLOCK_BYTES, EXTENT_BYTES};
use cheetah_core::map::{DonorId, Medium, VolumeMap};
use cheetah_core::proofs::Tree;
use cheetah_nbd::client::{Reply, Want};
use cheetah_nbd::limits::AUTH_BYTES;
use cheetah_nbd::{CmdFlags, Command, Errno, RequestHeader};
use cheetah_rim::arena::Arena;
use cheetah_rim::cipher::VolumeKey;
use cheetah_rim::control::{
    Client as Pool, CoordinateOptions, Coordination, DonorControl, DonorHooks, DonorOptions, StateAt,
    coordinate,
};
use cheetah_rim::donor::{DonorServer, Gate};
use cheetah_rim::net::{Bound, Endpoint};
use cheetah_rim::proofs::Builder;
use cheetah_rim::stream::Transport;
use cheetah_rim::volume::{
    Caching, Completion, Op, Rule, Seen, Sink, Submission, Tuning, VolumeError, VolumeHandle, VolumeOptions,
};
use noise::noise;
use std::io::Write;
use std::sync::{Arc, mpsc};
use tokio::runtime::Handle;
use wire::Client;

const EXTENTS: u32 = 4;
const BLOCK: usize = BLOCK_BYTES as usize;
/// It ends inside of a block.
const SIZE: u64 = (2 << 20) + 777;
const RAW_SESSION: u64 = 1 << 40;

/// A pool of donors, whose memory is real. It lives on a thread of its own, so that the tests may wait.
struct World {
    runtime: Handle,
    _coordination: Coordination,
    pool: Pool,
    donors: Vec<DonorServer>,
    key: Arc<VolumeKey>,
}

impl World {
    fn start(donors: usize, redundancy: &str) -> World {
        let (started, starting) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                started.send(World::begin(donors).await).unwrap();
                std::future::pending::<()>().await;
            });
        });
        let world: World = starting.recv().unwrap();
        let encrypted = Some(Box::new(WrappedKey { check: world.key.check(), wrapped: None, under: None }));
        let redundancy = redundancy.parse().ok();
        let create = Create { redundancy, encrypted, ..Create::new("v", Size::Bytes(SIZE)) };
        world.call(Call::Create(create));
        world
    }

    async fn begin(count: usize) -> World {
        let listen = "127.0.0.1:0".parse().unwrap();
        let coordination = coordinate(CoordinateOptions::new(listen, StateAt::Memory)).await.unwrap();
        let pool = Pool::new(&coordination.url()).unwrap();
        let mut donors = Vec::new();
        for at in 0..count {
            let bound = Bound::new(&Endpoint::Tcp(listen)).unwrap();
            let Endpoint::Tcp(listen) = bound.endpoint else { panic!("bound to TCP") };
            let arena = Arc::new(Arena::new(EXTENTS).unwrap());
            let wiped = arena.clone();
            let wipe = move |extents: &[u32]| {
                wiped.wipe(extents);
                Ok(())
            };
            let hooks = DonorHooks { wipe: Arc::new(wipe), bytes_used: Arc::new(|| 0), keep: None };
            let options = DonorOptions {
                name: format!("d{at}"),
                or_numbered: false,
                host: format!("h{at}"),
                machine: format!("m{at}"),
                listen,
                extents: EXTENTS,
                foreign_export: None,
                medium: Medium::Memory,
                keeps_auths: false,
            };
            let (control, mut handle) = DonorControl::new(options, pool.clone(), hooks).unwrap();
            let gate = Gate::Pooled(handle.clone());
            donors.push(DonorServer::start(bound, &arena, &gate, &Transport::default()).unwrap());
            tokio::spawn(control.run());
            handle.joined().await.expect("a pool");
        }
        let key = Arc::new(VolumeKey::make().unwrap());
        World { runtime: Handle::current(), _coordination: coordination, pool, donors, key }
    }

    fn call(&self, call: Call) -> Answer {
        self.runtime.block_on(self.pool.call(call)).unwrap()
    }

    fn attach(&self, read_only: bool) -> Attached {
        self.attach_as(Attach::new(read_only, "me"))
    }

    fn attach_as(&self, attach: Attach) -> Attached {
        match self.call(Call::Attach { name: "v".into(), attach }) {
            Answer::Attached(attached) => attached,
            other => panic!("{other:?}"),
        }
    }

    fn volume(&self, read_only: bool) -> Volume<'_> {
        Volume::start(self, self.attach(read_only), Some(self.key.clone()))
    }
}

/// An attached volume: what tools see of it, and what lies under that.
struct Volume<'a> {
    world: &'a World,
    lease: Attached,
    under: VolumeHandle,
    view: VolumeHandle,
}

#[derive(Debug)]
struct Done(mpsc::Sender<Completion>);

impl Sink for Done {
    fn complete(&self, completion: Completion) {
        self.0.send(completion).unwrap();
    }
}

impl Volume<'_> {
    fn start(world: &World, lease: Attached, key: Option<Arc<VolumeKey>>) -> Volume<'_> {
        let caching = Caching { bytes: 4 << 20, keeps: true, takes: false, rule: Rule::Streams };
        let tuning = Tuning { connections: Some(1), caching, ..Tuning::default() };
        let under = VolumeHandle::start(VolumeOptions {
            map: lease.map.clone(),
            token: lease.token,
            read_only: lease.read_only,
            fresh: lease.fresh,
            tuning,
            transport: Transport::default(),
            key: key.clone(),
        });
        let under = under.unwrap();
        let (mut amendments, pool) = (under.take_amendments().unwrap(), world.pool.clone());
        let (token, amended) = (lease.token, under.clone());
        world.runtime.spawn(async move {
            while let Some(amend) = amendments.recv().await {
                let call = Call::Amend { name: "v".into(), token, amend };
                match pool.call(call).await {
                    Ok(Answer::Renewed(renewed)) => amended.amended(renewed.map),
                    _ => amended.amended(None),
                }
            }
        });
        let view = match key {
            Some(key) => VolumeHandle::decrypted(&under, lease.map.volume, key).unwrap(),
            None => under.clone(),
        };
        world.runtime.block_on(under.settled());
        Volume { world, lease, under, view }
    }

    fn ask(&self, op: Op, offset: u64, bytes: &[u8]) -> Result<Vec<u8>, VolumeError> {
        let mut buffer = self.view.pool().take_blocking(bytes.len());
        buffer.copy_from_slice(bytes);
        let (send, done) = mpsc::channel();
        let (len, sink) = (bytes.len() as u32, Arc::new(Done(send)));
        let buffer = matches!(op, Op::Read | Op::Write).then_some(buffer);
        self.view.submit(Submission { op, offset, len, buffer, token: 1, sink });
        let done = done.recv().unwrap();
        done.result.map(|()| done.buffer.map(|buffer| buffer.to_vec()).unwrap_or_default())
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.ask(Op::Write, offset, bytes).unwrap();
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, VolumeError> {
        self.ask(Op::Read, offset, &vec![0xee; len])
    }

    /// Blocks that were wrong, by donor.
    fn accused(&self) -> Vec<(DonorId, u64)> {
        let seen: Option<Seen> = self.world.runtime.block_on(self.under.look());
        seen.unwrap().report.corrupt_blocks
    }

    fn end(self) {
        self.world.runtime.block_on(self.view.close());
        self.world.runtime.block_on(self.under.close());
        let token = self.lease.token;
        self.world.call(Call::Detach { name: "v".into(), token });
    }
}

/// One block as a donor has it: its bytes, and what is kept with them.
type Kept = (Vec<u8>, [u8; AUTH_BYTES]);

/// Who writes to a donor what it likes, under a writer's lease.
struct Liar(Client);

impl Liar {
    fn of(world: &World, lease: &Attached, donor: DonorId, auth: bool) -> Liar {
        Liar::beside(world, lease, donor, auth, RAW_SESSION)
    }

    /// In the same session as an attachment, which would be shut out by a later one.
    fn beside(world: &World, lease: &Attached, donor: DonorId, auth: bool, session: u64) -> Liar {
        let endpoint = lease.map.routes[&donor].address.clone();
        let server = world.donors.iter().find(|server| server.endpoint().to_string() == endpoint).unwrap();
        let want = Want {
            export: export_name("v", lease.token, session, donor),
            structured: true,
            base_allocation: true,
            dirty: false,
            context: true,
            auth,
        };
        Liar(Client::open(server, want).unwrap())
    }

    fn read(&mut self, address: u64) -> Kept {
        self.0.send(Command::Read, CmdFlags::EMPTY, address, BLOCK_BYTES);
        let Reply::Auth { all, .. } = self.0.reply() else { panic!("no tags") };
        assert!(matches!(self.0.reply(), Reply::Contexts { .. }));
        (self.0.data(1, address, BLOCK), all[0])
    }

    fn write(&mut self, address: u64, (bytes, auth): &Kept) -> Reply {
        let header = |command, offset, length: usize| {
            let (flags, cookie, length) = (CmdFlags::EMPTY, 1, length as u32);
            RequestHeader { flags, command, cookie, offset, length }.encode_in(true)
        };
        let message = [
            &header(Command::Auth, 0, auth.len())[..],
            auth,
            &header(Command::Write, address, bytes.len()),
            bytes,
        ];
        self.0.stream.write_all(&message.concat()).unwrap();
        self.0.reply()
    }
}

/// Who holds the first block of a slot, and at which address.
fn place(map: &VolumeMap, slot: usize) -> (DonorId, u64) {
    let held = map.groups[0].slots[slot].held.unwrap();
    (held.donor, u64::from(held.extent) * EXTENT_BYTES)
}

#[test]
fn what_is_written_in_any_pieces_is_read_and_donors_hold_none_of_it() {
    for redundancy in ["linear", "stripe:2", "mirror:2", "parity:2+1"] {
        let world = World::start(4, redundancy);
        let mut model = vec![0; SIZE as usize];
        let volume = world.volume(false);
        assert!(volume.read(0, 1 << 20).unwrap().iter().all(|byte| *byte == 0), "{redundancy}");
        for (nth, (offset, len)) in [
            (0, 1 << 20),
            (4095, 2),
            (70_000, 300_000),
            ((1 << 20) - 5, 10),
            (SIZE - 1, 1),
            (SIZE - 5000, 5000),
            (8192, 4096),
            (100, 17),
        ]
        .into_iter()
        .enumerate()
        {
            let bytes = noise(nth as u64 + 9, len as usize);
            volume.write(offset, &bytes);
            model[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        for (offset, len) in [(16384, 8192), (30_000, 10_000), (SIZE - 300, 300)] {
            volume.ask(Op::Zero { keep: false }, offset, &vec![0; len]).unwrap();
            model[offset as usize..][..len].fill(0);
        }
        let right = |volume: &Volume<'_>, what: &str| {
            for (offset, len) in [(0, 1 << 20), (1 << 20, (1 << 20) + 777), (65_535, 4098), (SIZE - 1, 1)] {
                let read = volume.read(offset, len).unwrap();
                assert!(read == model[offset as usize..][..len], "{redundancy} {what} {offset}+{len}");
            }
            assert_eq!(volume.read(SIZE, 1), Err(VolumeError::OutOfRange));
        };
        right(&volume, "as it was written");
        volume.end();
        let volume = world.volume(true);
        right(&volume, "attached again");
        assert_eq!(volume.accused(), []);
        let (donor, address) = place(&volume.lease.map, 0);
        let (bytes, auth) = Liar::of(&world, &volume.lease, donor, true).read(address + 2 * BLOCK_BYTES);
        assert!(auth != [0; AUTH_BYTES] && bytes != model[2 * BLOCK..3 * BLOCK], "{redundancy}");
        volume.end();
    }
}

/// Each lie: what a donor has in place of block 1 of slot 0.
fn lies(liar: &mut Liar, address: u64, before: &Kept) -> Vec<(&'static str, Kept)> {
    let (own, other) = (liar.read(address + BLOCK_BYTES), liar.read(address));
    let mut altered = own.clone();
    altered.0[7] ^= 1;
    let mut tag = own.clone();
    tag.1[20] ^= 1;
    let unsealed = (vec![7; BLOCK], [0; AUTH_BYTES]);
    let _ = before;
    vec![
        ("altered", altered),
        ("with another tag", tag),
        ("moved", other.clone()),
        ("with another's tag", (own.0, other.1)),
        ("in the clear", unsealed),
    ]
}

/// A volume that was written, and what is in it.
fn filled(donors: usize, redundancy: &str) -> (World, Vec<u8>) {
    let (world, bytes) = (World::start(donors, redundancy), noise(3, 1 << 20));
    let writer = world.volume(false);
    writer.write(0, &bytes);
    writer.end();
    (world, bytes)
}

#[test]
fn a_block_that_was_altered_or_moved_is_an_error_where_nothing_else_has_it() {
    let (world, bytes) = filled(1, "linear");
    let lease = world.attach(false);
    let (donor, address) = place(&lease.map, 0);
    let mut liar = Liar::of(&world, &lease, donor, true);
    let was = liar.read(address + BLOCK_BYTES);
    for (lie, kept) in lies(&mut liar, address, &was) {
        assert!(matches!(liar.write(address + BLOCK_BYTES, &kept), Reply::Contexts { .. }), "{lie}");
        let reader = world.volume(true);
        assert_eq!(reader.read(BLOCK_BYTES, BLOCK), Err(VolumeError::Corrupt), "{lie}");
        assert_eq!(reader.read(BLOCK_BYTES + 9, 20), Err(VolumeError::Corrupt), "{lie}");
        assert!(reader.read(0, BLOCK).unwrap() == bytes[..BLOCK], "{lie}");
        assert!(reader.read(2 * BLOCK_BYTES, BLOCK).unwrap() == bytes[2 * BLOCK..3 * BLOCK], "{lie}");
        assert!(matches!(reader.accused()[..], [(accused, _)] if accused == donor), "{lie}");
        reader.end();
    }
    liar.write(address + BLOCK_BYTES, &was);
    let reader = world.volume(true);
    assert!(reader.read(0, 1 << 20).unwrap() == bytes);
    reader.end();
}

#[test]
fn a_donor_that_lies_is_gone_round_and_named() {
    for redundancy in ["mirror:2", "parity:2+1"] {
        let (world, bytes) = filled(3, redundancy);
        let lease = world.attach(false);
        let (donor, address) = place(&lease.map, 0);
        let mut liar = Liar::of(&world, &lease, donor, true);
        let was = liar.read(address + BLOCK_BYTES);
        for (lie, kept) in lies(&mut liar, address, &was) {
            liar.write(address + BLOCK_BYTES, &kept);
            let reader = world.volume(true);
            assert!(reader.read(0, 1 << 20).unwrap() == bytes, "{redundancy}: {lie}");
            let accused = reader.accused();
            // A copy may have been read from the other one.
            let is_meant = accused.iter().all(|(accused, _)| *accused == donor);
            assert!(is_meant && (redundancy == "mirror:2" || !accused.is_empty()), "{redundancy}: {lie}");
            reader.end();
        }
    }
}

#[test]
fn a_block_that_its_writer_has_written_since_is_not_taken_for_the_older_one() {
    let world = World::start(1, "linear");
    let writer = world.volume(false);
    let (old, new) = (noise(3, 4 * BLOCK), noise(4, 4 * BLOCK));
    writer.write(0, &old);
    let (donor, address) = place(&writer.lease.map, 0);
    let mut liar = Liar::of(&world, &world.attach(true), donor, true);
    let older = liar.read(address);
    writer.write(0, &new);
    drop(liar);
    // What the donor says of itself is right: the writer alone knows better.
    let end = Liar::beside(&world, &writer.lease, donor, true, 1).write(address, &older);
    assert!(matches!(end, Reply::Contexts { .. }));
    assert_eq!(writer.read(0, BLOCK), Err(VolumeError::Corrupt));
    assert!(writer.read(BLOCK_BYTES, 3 * BLOCK).unwrap() == new[BLOCK..]);
    writer.end();
}

#[test]
fn without_the_tags_nothing_is_written_and_without_the_key_nothing_is_read() {
    let world = World::start(1, "linear");
    let writer = world.volume(false);
    writer.write(0, &noise(3, 4 * BLOCK));
    let (donor, address) = place(&writer.lease.map, 0);
    let mut plain = Liar::of(&world, &writer.lease, donor, false);
    plain.0.send(Command::Write, CmdFlags::EMPTY, address, BLOCK_BYTES);
    assert!(matches!(plain.0.reply(), Reply::Error { errno: Errno::Inval, .. }));
    drop(plain);
    writer.end();
    let blind = Volume::start(&world, world.attach(true), None);
    assert_eq!(blind.read(0, BLOCK), Err(VolumeError::Unsupported));
    blind.end();
    let other = Arc::new(VolumeKey::make().unwrap());
    let other = Volume::start(&world, world.attach(true), Some(other));
    assert_eq!(other.read(0, BLOCK), Err(VolumeError::Corrupt));
    assert!(other.read(1 << 20, BLOCK).unwrap().iter().all(|byte| *byte == 0), "never written");
    other.end();
}

impl World {
    /// Seals what the volume holds under a lease for that, as who has the key does.
    fn seal(&self) {
        let lease = self.attach_as(Attach { proofs: true, ..Attach::new(false, "me") });
        assert!(lease.map.proofs.is_some(), "there is room");
        let volume = Volume::start(self, lease, Some(self.key.clone()));
        let tree = volume.lease.map.tree();
        volume.view.note_proofs();
        let contents = volume.read(0, SIZE as usize).unwrap();
        let proofs = volume.view.noted_proofs(0..tree.blocks(), |_| false).expect("all was read");
        let (mut ciphertext, mut plain) = (Builder::new(tree), Builder::new(Tree::new(SIZE)));
        ciphertext.feed_proofs(&proofs);
        plain.feed(&contents);
        for (offset, pages) in ciphertext.take_pages() {
            volume.write(offset, &pages);
        }
        let (root, contents) = (ciphertext.root().unwrap(), plain.root());
        assert_ne!(Some(root), contents, "what is proved is not the contents");
        let (md5, sha1, sha256) = ("0".repeat(32), "1".repeat(40), "a".repeat(64));
        let sealing = Sealing { root, contents, md5, sha1, sha256, by_reading: true };
        let tell = Tell { sealed: Some(Box::new(sealing)), ..Tell::default() };
        self.call(Call::Tell { name: "v".into(), token: volume.lease.token, tell });
        volume.end();
    }

    /// As a donor that repairs: nobody else writes what is sealed.
    fn repairing(&self) -> Attached {
        self.attach_as(Attach { yields: true, ..Attach::new(false, "me") })
    }
}

/// Two generations of the same bytes, sealed as the second: what a donor had of the first opens as well.
fn sealed_twice_written(redundancy: &str) -> (World, Vec<u8>, (DonorId, u64), Kept) {
    let world = World::start(3, redundancy);
    let (older, bytes) = (noise(8, SIZE as usize), noise(9, SIZE as usize));
    let writer = world.volume(false);
    writer.write(0, &older);
    let (donor, address) = place(&writer.lease.map, 0);
    let before = Liar::beside(&world, &writer.lease, donor, true, 1).read(address + BLOCK_BYTES);
    writer.write(0, &bytes);
    writer.end();
    world.seal();
    (world, bytes, (donor, address), before)
}

#[test]
fn an_older_block_that_opens_is_found_by_the_seal() {
    for redundancy in ["linear", "mirror:2", "parity:2+1"] {
        let (world, bytes, (donor, address), older) = sealed_twice_written(redundancy);
        let mut liar = Liar::of(&world, &world.repairing(), donor, true);
        let right = liar.read(address + BLOCK_BYTES);
        for (lie, kept) in [("older", older), ("with another tag", (right.0.clone(), [7; AUTH_BYTES]))] {
            assert!(matches!(liar.write(address + BLOCK_BYTES, &kept), Reply::Contexts { .. }), "{lie}");
            let reader = world.volume(true);
            let is_alone = redundancy == "linear";
            for (offset, len) in [(BLOCK_BYTES, BLOCK), (BLOCK_BYTES + 9, 20), (0, 1 << 20)] {
                let expected = match is_alone {
                    true => Err(VolumeError::Corrupt),
                    false => Ok(bytes[offset as usize..][..len].to_vec()),
                };
                assert!(reader.read(offset, len) == expected, "{redundancy}, {lie}: {offset}+{len}");
            }
            let accused = reader.accused();
            assert!(accused.iter().all(|(accused, _)| *accused == donor), "{redundancy}, {lie}");
            assert!(redundancy == "mirror:2" || !accused.is_empty(), "{redundancy}, {lie}");
            reader.end();
            // Who has no key finds it as well, and is given nothing.
            let blind = Volume::start(&world, world.attach(true), None);
            let checked = VolumeHandle::undisclosed(&blind.under, blind.lease.map.volume).unwrap();
            let blind = Volume { view: checked, ..blind };
            let found = blind.read(BLOCK_BYTES, BLOCK);
            assert_eq!(found, if is_alone { Err(VolumeError::Corrupt) } else { Ok(vec![0; BLOCK]) }, "{lie}");
            assert_eq!(
                blind.read(4 * BLOCK_BYTES, BLOCK),
                Ok(vec![0; BLOCK]),
                "it is right, and no secret is told"
            );
            blind.end();
        }
        liar.write(address + BLOCK_BYTES, &right);
        let reader = world.volume(true);
        assert!(reader.read(0, SIZE as usize).unwrap() == bytes, "{redundancy}");
        assert_eq!(reader.accused(), []);
        reader.end();
    }
}

/// What the authentication tags alone cannot know.
#[test]
fn without_a_seal_an_older_block_is_taken_for_the_newer_one() {
    let world = World::start(1, "linear");
    let writer = world.volume(false);
    writer.write(0, &noise(8, 4 * BLOCK));
    let (donor, address) = place(&writer.lease.map, 0);
    let older = Liar::beside(&world, &writer.lease, donor, true, 1).read(address);
    writer.write(0, &noise(9, 4 * BLOCK));
    writer.end();
    Liar::of(&world, &world.attach(false), donor, true).write(address, &older);
    let reader = world.volume(true);
    assert!(reader.read(0, BLOCK).unwrap() == noise(8, 4 * BLOCK)[..BLOCK]);
    reader.end();
}
