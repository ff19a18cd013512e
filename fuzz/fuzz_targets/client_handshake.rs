//! A client takes any bytes within its limits, and pieces of them lead where the whole leads.
#![no_main]

use cheetah_nbd::client::{Handshake, Step, Want};
use libfuzzer_sys::fuzz_target;

fn connect(mut client: Handshake, bytes: &[u8], piece: usize) -> (Step, Vec<u8>, usize) {
    let (mut output, mut rest) = (Vec::new(), bytes);
    while let Ok(taken @ 1..) = client.input(&rest[..rest.len().min(piece)]) {
        rest = &rest[taken..];
        client.check_invariants();
        client.take_output(&mut output);
    }
    client.take_output(&mut output);
    if matches!(client.poll(), Step::NeedInput) {
        client.eof();
    }
    (client.poll(), output, rest.len())
}

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (choice, piece, bytes) = input;
    let client = || match choice % 4 {
        0 => Handshake::list(),
        bits => Handshake::new(Want {
            export: "disk".into(),
            structured: bits & 1 != 0,
            base_allocation: bits & 2 != 0,
            dirty: choice & 4 != 0,
        }),
    };
    let whole = connect(client(), bytes, usize::MAX);
    let pieces = connect(client(), bytes, 1 + usize::from(piece % 16));
    assert_eq!((&whole.0, &whole.1), (&pieces.0, &pieces.1));
    if matches!(whole.0, Step::Ready(_)) {
        assert_eq!(whole.2, pieces.2);
    }
    if let Step::Failed(error) = whole.0 {
        assert!(!error.to_string().is_empty());
    }
});
