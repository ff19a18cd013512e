//! A client's handshake against a server's, in memory: whole messages and single bytes must end alike.

use cheetah_nbd::client::{self, Error, Want};
use cheetah_nbd::proto::{handshake_flags, opt, rep};
use cheetah_nbd::server::{self, CloseReason, ExportError, Purpose};
use cheetah_nbd::{Command, ExportInfo, ListEntry, Negotiated, RequestHeader, TransmissionFlags};

/// The bytes of one direction that were sent and not yet consumed.
#[derive(Default)]
struct Pipe(Vec<u8>);

impl Pipe {
    /// Offers the front of the pipe, at most `piece` bytes, and drops what was taken.
    fn offer(&mut self, piece: usize, input: impl FnOnce(&[u8]) -> usize) -> bool {
        let taken = input(&self.0[..self.0.len().min(piece)]);
        self.0.drain(..taken);
        taken > 0
    }
}

struct World {
    client: client::Handshake,
    server: server::Handshake,
    to_client: Pipe,
    to_server: Pipe,
    piece: usize,
    lookups: Vec<(String, Purpose)>,
}

fn disk() -> ExportInfo {
    let flags = TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH | TransmissionFlags::SEND_TRIM;
    ExportInfo {
        block_min: 512,
        block_preferred: 65_536,
        description: "evidence, disk 1".into(),
        ..ExportInfo::new(1 << 30, flags)
    }
}

fn exports() -> Vec<ListEntry> {
    ["disk", "other"]
        .map(|name| ListEntry { name: name.into(), description: format!("about {name}") })
        .to_vec()
}

impl World {
    fn new(client: client::Handshake, piece: usize) -> Self {
        Self::with(client, server::Handshake::new(), piece)
    }

    fn with(client: client::Handshake, server: server::Handshake, piece: usize) -> Self {
        Self {
            client,
            server,
            to_client: Pipe::default(),
            to_server: Pipe::default(),
            piece,
            lookups: Vec::new(),
        }
    }

    /// Runs until nothing moves.
    fn run(mut self) -> Self {
        let mut moved = true;
        while moved {
            moved = false;
            self.server.take_output(&mut self.to_client.0);
            self.client.take_output(&mut self.to_server.0);
            moved |= self.to_client.offer(self.piece, |bytes| self.client.input(bytes).unwrap());
            moved |= self.to_server.offer(self.piece, |bytes| self.server.input(bytes).unwrap());
            self.client.check_invariants();
            self.server.check_invariants();
            match self.server.poll() {
                server::Step::Lookup { export, purpose } => {
                    self.server.answer_lookup(match export.as_str() {
                        "disk" => Ok(disk()),
                        "closing" => Err(ExportError::Shutdown),
                        "secret" => Err(ExportError::Policy("the lease token has expired".into())),
                        _ => Err(ExportError::Unknown("words".into())),
                    });
                    self.lookups.push((export, purpose));
                    moved = true;
                }
                server::Step::List => {
                    self.server.answer_list(Ok(&exports()));
                    moved = true;
                }
                _ => {}
            }
        }
        self
    }

    fn agreed(&self) -> (Negotiated, Negotiated) {
        match (self.client.poll(), self.server.poll()) {
            (client::Step::Ready(client), server::Step::Ready(server)) => (client, server),
            other => panic!("{other:?}"),
        }
    }
}

fn want(export: &str, structured: bool, base_allocation: bool) -> Want {
    Want { export: export.into(), structured, base_allocation, dirty: false, context: false, auth: false }
}

const PIECES: [usize; 4] = [1, 3, 17, 1 << 20];

#[test]
fn both_ends_agree_on_everything() {
    for piece in PIECES {
        for (structured, base_allocation) in [(false, false), (true, false), (true, true), (false, true)] {
            let want = want("disk", structured, base_allocation);
            let world = World::new(client::Handshake::new(want), piece).run();
            let (client, server) = world.agreed();
            assert_eq!(client, server);
            assert_eq!(client.structured_replies, structured || base_allocation);
            assert_eq!(client.base_allocation.is_some(), base_allocation);
            assert_eq!(client.info.flags.contains(TransmissionFlags::SEND_DF), client.structured_replies);
            assert_eq!((client.info.block_min, client.info.block_preferred), (512, 65_536));
            assert_eq!(client.info.description, "evidence, disk 1");
            assert!(world.to_client.0.is_empty() && world.to_server.0.is_empty());
        }
    }
}

#[test]
fn each_end_has_exactly_the_contexts_that_were_asked_for_and_are_offered() {
    for piece in PIECES {
        for bits in 0..32 {
            let [base_allocation, dirty, context, offered, auth] =
                [1, 2, 4, 8, 16].map(|bit| bits & bit != 0);
            let want = Want { dirty, context, auth, ..want("disk", false, base_allocation) };
            let server = server::Handshake::new();
            let server = if offered { server.of_donor() } else { server };
            let world = World::with(client::Handshake::new(want), server, piece).run();
            let (client, server) = world.agreed();
            assert_eq!(client, server);
            assert_eq!(client.structured_replies, base_allocation || dirty || context || auth);
            assert_eq!(client.base_allocation.is_some(), base_allocation);
            assert_eq!(client.dirty.is_some(), dirty && offered);
            assert_eq!(client.context.is_some(), context && offered);
            assert_eq!(client.auth.is_some(), auth && offered);
            let ids = [client.base_allocation, client.dirty, client.context, client.auth];
            let mut ids: Vec<u32> = ids.into_iter().flatten().collect();
            let count = ids.len();
            ids.dedup();
            assert_eq!(ids.len(), count, "no two have the same");
        }
    }
}

#[test]
fn the_driver_learns_what_a_lookup_is_for() {
    let world = World::new(client::Handshake::new(want("disk", true, true)), 1).run();
    let purposes: Vec<_> = world.lookups.iter().map(|(_, purpose)| *purpose).collect();
    assert_eq!(purposes, [Purpose::MetaContext, Purpose::Go]);
}

#[test]
fn requests_behind_the_handshake_are_left_alone() {
    let read = RequestHeader {
        flags: cheetah_nbd::CmdFlags::EMPTY,
        command: Command::Read,
        cookie: 1,
        offset: 0,
        length: 512,
    };
    let mut world = World::new(client::Handshake::new(want("disk", false, false)), 1 << 20);
    world.server.take_output(&mut world.to_client.0);
    world.to_client.offer(usize::MAX, |bytes| world.client.input(bytes).unwrap());
    world.client.take_output(&mut world.to_server.0);
    // A client that knows its server may send on before GO was answered.
    world.to_server.0.extend_from_slice(&read.encode());
    let world = world.run();
    world.agreed();
    assert_eq!(world.to_server.0, read.encode());
}

#[test]
fn replies_behind_the_handshake_are_left_alone() {
    let mut world = World::new(client::Handshake::new(want("disk", true, true)), 1 << 20).run();
    world.to_client.0.extend_from_slice(b"reply");
    assert!(!world.to_client.offer(usize::MAX, |bytes| world.client.input(bytes).unwrap()));
}

#[test]
fn a_refusal_arrives_with_its_reason() {
    for piece in PIECES {
        for (export, code, words) in [
            ("nothing", rep::ERR_UNKNOWN, "words"),
            ("closing", rep::ERR_SHUTDOWN, "the server is shutting down"),
            ("secret", rep::ERR_POLICY, "the lease token has expired"),
        ] {
            let world = World::new(client::Handshake::new(want(export, true, true)), piece).run();
            let client::Step::Failed(Error::Refused { option: opt::GO, reply, message }) =
                world.client.poll()
            else {
                panic!("{:?}", world.client.poll());
            };
            assert_eq!((reply, message.as_str()), (code, words));
            assert_eq!(world.server.poll(), server::Step::Close(CloseReason::Abort));
        }
    }
}

#[test]
fn a_list_arrives_whole_and_ends_politely() {
    for piece in PIECES {
        let world = World::new(client::Handshake::list(), piece).run();
        assert_eq!(world.client.poll(), client::Step::Listed(exports()));
        assert_eq!(world.server.poll(), server::Step::Close(CloseReason::Abort));
    }
}

/// An older server, made of ours by changing what it says.
fn older(piece: usize, flags: u16, export: &str) -> (client::Handshake, server::Handshake, Vec<u8>) {
    let mut client = client::Handshake::new(want(export, true, true));
    let mut server = server::Handshake::new();
    let (mut to_client, mut to_server) = (Pipe::default(), Pipe::default());
    server.take_output(&mut to_client.0);
    to_client.0[16..18].copy_from_slice(&flags.to_be_bytes());
    loop {
        let heard = to_client.offer(piece, |bytes| client.input(bytes).unwrap());
        client.take_output(&mut to_server.0);
        // GO becomes an option nobody knows; the reply must name GO again.
        let go = opt::GO.to_be_bytes();
        let is_go = to_server.0.len() >= 12 && to_server.0[8..12] == go;
        if is_go {
            to_server.0[8..12].copy_from_slice(&99u32.to_be_bytes());
        }
        let before = to_client.0.len();
        to_server.offer(usize::MAX, |bytes| server.input(bytes).unwrap());
        if let server::Step::Lookup { export, .. } = server.poll() {
            server.answer_lookup(if export == "disk" {
                Ok(disk())
            } else {
                Err(ExportError::Unknown("words".into()))
            });
        }
        server.take_output(&mut to_client.0);
        if is_go {
            to_client.0[before + 8..before + 12].copy_from_slice(&go);
        }
        if !heard {
            return (client, server, to_client.0);
        }
    }
}

#[test]
fn a_server_without_go_is_asked_by_export_name() {
    for piece in PIECES {
        for flags in [0, handshake_flags::FIXED_NEWSTYLE, handshake_flags::NO_ZEROES, 3, 0xffff] {
            let (client, server, left) = older(piece, flags, "disk");
            let (client::Step::Ready(client), server::Step::Ready(server)) = (client.poll(), server.poll())
            else {
                panic!("{flags} {:?} {:?}", client.poll(), server.poll());
            };
            assert_eq!(client.info.size, server.info.size);
            assert_eq!(client.info.flags, server.info.flags);
            assert_eq!(client.structured_replies, server.structured_replies);
            assert_eq!(client.base_allocation, server.base_allocation);
            assert!(left.is_empty(), "the zeroes belong to the handshake");
        }
    }
}

#[test]
fn a_refused_export_name_is_explained_at_the_end_of_the_stream() {
    let (mut client, server, _) = older(1, 3, "nothing");
    assert_eq!(server.poll(), server::Step::Close(CloseReason::Refused));
    client.eof();
    let client::Step::Failed(error) = client.poll() else { panic!() };
    assert_eq!(error, Error::Closed { asked_export_name: true });
    assert!(error.to_string().contains("no export of this name"));
}
