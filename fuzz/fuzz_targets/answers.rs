//! Whatever a server sends, and however it is cut, the client's machine gives the same answers and puts no
//! byte outside of what it asked for.
#![no_main]

use cheetah_nbd::client::{Answer, Request, Take, Transmission};
use cheetah_nbd::{CmdFlags, Command, ExportInfo, Negotiated, TransmissionFlags};
use libfuzzer_sys::fuzz_target;

const LENGTH: u32 = 600;

#[derive(Debug, Default, PartialEq)]
struct Taken {
    data: Vec<Vec<u8>>,
    answers: Vec<String>,
}

impl Take<usize> for Taken {
    fn data(&mut self, body: &usize, at: u32, bytes: &[u8]) {
        let at = at as usize;
        self.data[*body][at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn hole(&mut self, body: &usize, at: u32, end: u32) {
        self.data[*body][at as usize..end as usize].fill(0);
    }

    fn answer(&mut self, answer: Answer<usize>) {
        self.answers.push(format!("{answer:?}"));
    }
}

fn answers(bytes: &[u8], cuts: &[u8]) -> (Taken, bool) {
    let info = ExportInfo::new(1 << 20, TransmissionFlags(u16::MAX));
    let session = Negotiated {
        export: String::new(),
        info,
        structured_replies: true,
        base_allocation: Some(1),
        dirty: Some(2),
        context: Some(3),
        auth: None,
    };
    let mut machine = Transmission::new(&session, true, 1 << 16, 256);
    let mut taken = Taken { data: vec![vec![0xee; LENGTH as usize]; 6], answers: Vec::new() };
    let commands =
        [Command::Read, Command::Write, Command::Write, Command::BlockStatus, Command::Flush, Command::Read];
    for (body, command) in commands.into_iter().enumerate() {
        let (cookie, offset, context) = (body as u64, body as u64 * u64::from(LENGTH), Some(2));
        let (flags, mark) = (CmdFlags::EMPTY, None);
        machine.queue(Request { cookie, command, flags, offset, length: LENGTH, mark, context, body });
    }
    machine.make_requests(4096);
    let whole = |machine: &mut Transmission<usize>| -> usize {
        machine.unsent().map(|part| part.head.len() + part.request.payload_bytes() as usize).sum()
    };
    let all = whole(&mut machine);
    machine.sent(all);
    let (mut kept, mut rest, mut cuts) = (Vec::new(), bytes, cuts.iter().cycle());
    while !rest.is_empty() {
        let cut = cuts.next().map_or(rest.len(), |cut| usize::from(*cut) + 1).min(rest.len());
        kept.extend_from_slice(&rest[..cut]);
        rest = &rest[cut..];
        match machine.received(&kept, &mut taken) {
            Ok(used) => drop(kept.drain(..used)),
            Err(_) => return (taken, true),
        }
    }
    (taken, false)
}

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (bytes, cuts) = input;
    assert_eq!(answers(&bytes, &cuts), answers(&bytes, &[]));
});
