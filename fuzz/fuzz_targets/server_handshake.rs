//! A server takes any bytes within its limits, and pieces of them lead where the whole leads.
#![no_main]

use cheetah_nbd::server::{ExportError, Handshake, Step};
use cheetah_nbd::{ExportInfo, ListEntry, TransmissionFlags};
use libfuzzer_sys::fuzz_target;

/// Feeds `bytes` in pieces; returns the last step, what was sent and what was not consumed.
fn serve(bytes: &[u8], piece: usize) -> (Step, Vec<u8>, usize) {
    let (mut server, mut output, mut rest) = (Handshake::new().of_donor(), Vec::new(), bytes);
    loop {
        let Ok(taken) = server.input(&rest[..rest.len().min(piece)]) else { break };
        rest = &rest[taken..];
        server.check_invariants();
        match server.poll() {
            Step::Lookup { export, .. } => server.answer_lookup(match export.len() % 4 {
                0 => Ok(ExportInfo::new(export.len() as u64, TransmissionFlags::SEND_DF)),
                1 => Ok(ExportInfo { description: export, ..ExportInfo::new(1 << 40, TransmissionFlags(1)) }),
                2 => Err(ExportError::Unknown("words".into())),
                _ => Err(ExportError::Policy(export)),
            }),
            Step::List => {
                server.answer_list(Ok(&[ListEntry { name: "disk".into(), description: "one".into() }]));
            }
            _ if taken == 0 => break,
            _ => {}
        }
        server.check_invariants();
        server.take_output(&mut output);
    }
    server.take_output(&mut output);
    (server.poll(), output, rest.len())
}

fuzz_target!(|bytes: &[u8]| {
    let whole = serve(bytes, usize::MAX);
    let pieces = serve(bytes, 1 + bytes.first().map_or(0, |b| usize::from(b % 16)));
    assert_eq!((&whole.0, &whole.1), (&pieces.0, &pieces.1));
    if matches!(whole.0, Step::Ready(_)) {
        assert_eq!(whole.2, pieces.2);
    }
});
