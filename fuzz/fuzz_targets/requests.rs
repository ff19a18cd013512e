//! Whatever a client sends, and however it is cut, the server's machine gives the same steps, takes no more
//! than is there, and contradicts nothing.
#![no_main]

use cheetah_nbd::server::Transmission;
use cheetah_nbd::server::transmission::Step;
use cheetah_nbd::{ExportInfo, Negotiated, TransmissionFlags};
use libfuzzer_sys::fuzz_target;

fn steps(bytes: &[u8], cuts: &[u8]) -> Vec<String> {
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
    let mut machine = Transmission::new(session, 1 << 10);
    let (mut steps, mut kept, mut rest, mut cuts) = (Vec::new(), Vec::new(), bytes, cuts.iter().cycle());
    while !rest.is_empty() {
        let cut = cuts.next().map_or(rest.len(), |cut| usize::from(*cut) + 1).min(rest.len());
        kept.extend_from_slice(&rest[..cut]);
        rest = &rest[cut..];
        let mut input = &kept[..];
        loop {
            let step = machine.next(&mut input);
            machine.check_invariants();
            match step {
                Ok(None) => break,
                // Its pieces are cut as the input is.
                Ok(Some(Step::Payload { .. })) => {}
                Ok(Some(Step::End)) | Err(_) => {
                    steps.push(format!("{step:?}"));
                    return steps;
                }
                Ok(Some(step)) => steps.push(format!("{step:?}")),
            }
        }
        kept = input.to_vec();
    }
    steps
}

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (bytes, cuts) = input;
    assert_eq!(steps(&bytes, &cuts), steps(&bytes, &[]));
});
