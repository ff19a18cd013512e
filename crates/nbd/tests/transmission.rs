//! What a server makes of a client's bytes does not depend on how they come: cut anywhere, and payloads shown
//! to the machine or received past it.

use cheetah_nbd::limits::REQUEST_PAYLOAD_BYTES_MAX;
use cheetah_nbd::server::Transmission;
use cheetah_nbd::server::transmission::Step;
use cheetah_nbd::{
    CmdFlags, Command, Errno, ExportInfo, Negotiated, Reject, RequestHeader, TransmissionFlags, Violation,
};
use proptest::prelude::*;

const SIZE: u64 = 1000;
const LARGE: u32 = 40;

fn session() -> Negotiated {
    let flags = TransmissionFlags(u16::MAX).without(TransmissionFlags::READ_ONLY);
    let info = ExportInfo::new(SIZE, flags);
    let contexts = (Some(1), Some(2));
    Negotiated {
        export: String::new(),
        info,
        structured_replies: true,
        base_allocation: contexts.0,
        dirty: contexts.1,
        context: None,
        auth: None,
    }
}

/// What a driver learns.
#[derive(Clone, PartialEq, Debug)]
enum Event {
    Request(RequestHeader, Result<Command, Errno>),
    /// The payload as it lies where the driver put it.
    Whole(RequestHeader, Vec<u8>),
    End,
    Violation(Violation),
}

/// What a client sends.
#[derive(Clone, Debug)]
enum Sent {
    Request(RequestHeader),
    Bytes(Vec<u8>),
}

fn sent() -> impl Strategy<Value = Sent> {
    let offset = prop_oneof![4 => 0..SIZE, 1 => any::<u64>()];
    let length =
        prop_oneof![8 => 0..100u32, 1 => REQUEST_PAYLOAD_BYTES_MAX - 1..REQUEST_PAYLOAD_BYTES_MAX + 2];
    let command = prop_oneof![2 => Just(1), 2 => prop::sample::select(vec![0, 1, 3, 4, 5, 6, 7, 0x4348, 99])];
    let flags = prop_oneof![6 => Just(0), 1 => any::<u16>()];
    let request = (flags, command, any::<u64>(), offset, length).prop_map(
        |(flags, command, cookie, offset, length)| {
            let (flags, command) = (CmdFlags(flags), Command::from_wire(command));
            // A payload of megabytes tells no more than one of bytes.
            let length = if command == Command::Write && length <= REQUEST_PAYLOAD_BYTES_MAX {
                length % 100
            } else {
                length
            };
            Sent::Request(RequestHeader { flags, command, cookie, offset, length })
        },
    );
    let disc = Just(Sent::Request(RequestHeader {
        flags: CmdFlags::EMPTY,
        command: Command::Disc,
        cookie: 0,
        offset: 0,
        length: 0,
    }));
    let bytes = prop::collection::vec(any::<u8>(), 0..60).prop_map(Sent::Bytes);
    prop_oneof![30 => request, 1 => disc, 1 => bytes]
}

fn payload(request: &RequestHeader) -> Vec<u8> {
    (0..request.payload_bytes()).map(|at| (u64::from(at) * 7 + request.cookie) as u8).collect()
}

/// The bytes of all that was sent, what is to be made of them by the rules for each request alone, and how
/// many are not taken.
fn expected(all: &[Sent]) -> (Vec<u8>, Vec<Event>, usize) {
    let (mut bytes, mut events, mut is_over, mut left) = (Vec::new(), Vec::new(), false, 0);
    for sent in all {
        let before = bytes.len();
        let request = match sent {
            Sent::Request(request) => request,
            Sent::Bytes(noise) => {
                bytes.extend_from_slice(noise);
                // Whatever they are, the requests behind them are not found any more; so they are the last.
                left += noise.len();
                if let (Some(header), false) = (noise.first_chunk(), is_over) {
                    events.push(Event::Violation(RequestHeader::decode(header).unwrap_err()));
                }
                break;
            }
        };
        bytes.extend_from_slice(&request.encode());
        let verdict = request.check(&session());
        if !matches!(verdict, Err(Reject::Close(_))) {
            bytes.extend_from_slice(&payload(request));
        }
        if is_over {
            left += bytes.len() - before;
            continue;
        }
        let verdict = match verdict {
            Ok(Command::Disc) => {
                events.push(Event::End);
                is_over = true;
                continue;
            }
            Err(Reject::Close(violation)) => {
                events.push(Event::Violation(violation));
                left += bytes.len() - before;
                is_over = true;
                continue;
            }
            Err(Reject::Reply(errno)) => Err(errno),
            Ok(command) => Ok(command),
        };
        events.push(Event::Request(*request, verdict));
        if request.payload_bytes() > 0 {
            events.push(Event::Whole(*request, payload(request)));
        }
    }
    (bytes, events, left)
}

/// A driver with nothing but memory: `cuts` say how much comes at once, and `direct` whether a payload then
/// goes past the machine.
struct Driver {
    machine: Transmission,
    kept: Vec<u8>,
    place: Vec<u8>,
    events: Vec<Event>,
    is_over: bool,
}

impl Driver {
    /// All steps that there are.
    fn digest(&mut self) {
        let input = std::mem::take(&mut self.kept);
        let mut rest = &input[..];
        while !self.is_over {
            let step = self.machine.next(&mut rest);
            self.machine.check_invariants();
            match step {
                Ok(None) => break,
                Ok(Some(Step::Request { header, verdict })) => {
                    self.events.push(Event::Request(header, verdict));
                    self.place = vec![0; header.payload_bytes() as usize];
                }
                Ok(Some(Step::Payload { at, bytes })) => {
                    assert!(!bytes.is_empty());
                    self.place[at..at + bytes.len()].copy_from_slice(bytes);
                }
                Ok(Some(Step::Whole(header))) => {
                    let place = std::mem::take(&mut self.place);
                    self.events.push(Event::Whole(header, place));
                }
                Ok(Some(Step::End)) => {
                    self.events.push(Event::End);
                    self.is_over = true;
                }
                Err(violation) => {
                    self.events.push(Event::Violation(violation));
                    self.is_over = true;
                }
            }
        }
        self.kept = rest.to_vec();
        let last_is_large = self.events.iter().rev().find_map(|event| match event {
            // These are said of the request behind them.
            Event::Request(header, _) if matches!(header.command, Command::Mark | Command::Digest) => None,
            Event::Request(header, _) => Some(header.payload_bytes() >= LARGE),
            _ => None,
        });
        let between = self.machine.payload().is_none();
        assert_eq!(self.machine.head_only(), between && last_is_large == Some(true));
    }

    fn receive(&mut self, mut bytes: &[u8], direct: bool) {
        if let (Some(payload), true) = (self.machine.payload(), direct && self.kept.is_empty()) {
            let (at, landed) = (payload.at, payload.missing().min(bytes.len()));
            self.place[at..at + landed].copy_from_slice(&bytes[..landed]);
            self.machine.landed(landed);
            self.machine.check_invariants();
            bytes = &bytes[landed..];
        }
        self.kept.extend_from_slice(bytes);
        self.digest();
    }
}

fn drive(bytes: &[u8], cuts: &[(usize, bool)]) -> (Vec<Event>, usize) {
    let machine = Transmission::new(session(), LARGE);
    let mut driver =
        Driver { machine, kept: Vec::new(), place: Vec::new(), events: Vec::new(), is_over: false };
    let mut rest = bytes;
    for (cut, direct) in cuts.iter().cycle() {
        let (now, later) = rest.split_at(rest.len().min(*cut));
        driver.receive(now, *direct);
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    (driver.events, driver.kept.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_same_bytes_are_the_same_steps_however_they_come(
        all in prop::collection::vec(sent(), 0..30),
        cuts in prop::collection::vec((1..120usize, any::<bool>()), 1..20),
    ) {
        let (bytes, events, left) = expected(&all);
        prop_assert_eq!(drive(&bytes, &cuts), (events.clone(), left));
        prop_assert_eq!(drive(&bytes, &[(usize::MAX, false)]), (events.clone(), left));
        prop_assert_eq!(drive(&bytes, &[(1, true)]), (events, left));
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        cuts in prop::collection::vec((1..50usize, any::<bool>()), 1..9),
        magic: bool,
    ) {
        let mut bytes = bytes;
        if magic && bytes.len() >= RequestHeader::BYTES {
            bytes[..4].copy_from_slice(&cheetah_nbd::proto::REQUEST_MAGIC.to_be_bytes());
            bytes[4..8].copy_from_slice(&[0, 0, 0, 1]);
            bytes[24..27].fill(0);
        }
        prop_assert_eq!(drive(&bytes, &cuts), drive(&bytes, &[(usize::MAX, false)]));
    }
}
