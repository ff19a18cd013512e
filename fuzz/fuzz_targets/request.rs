//! A request header decodes and encodes stably, and passing the check means lying inside the export.
#![no_main]

use cheetah_nbd::{Command, Errno, ExportInfo, Negotiated, Reject, RequestHeader, TransmissionFlags};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: ([u8; 24], u64, u16, u8, bool, [Option<u32>; 2])| {
    let (fields, size, flags, block, structured_replies, [base_allocation, dirty]) = input;
    let mut bytes = [0; RequestHeader::BYTES];
    bytes[..4].copy_from_slice(&cheetah_nbd::proto::REQUEST_MAGIC.to_be_bytes());
    bytes[4..].copy_from_slice(&fields);
    let header = RequestHeader::decode(&bytes).expect("the magic is right");
    let once = header.encode();
    assert_eq!(once, bytes);
    let again = RequestHeader::decode(&once).expect("our own bytes");
    assert_eq!((again, again.encode()), (header, once));

    bytes[3] ^= 1;
    assert!(RequestHeader::decode(&bytes).is_err());

    let info = ExportInfo { block_min: 1 << (block % 17), ..ExportInfo::new(size, TransmissionFlags(flags)) };
    let (export, context) = (String::new(), dirty);
    let auth = None;
    let session = Negotiated { export, info, structured_replies, base_allocation, dirty, context, auth };
    let ranged = !matches!(header.command, Command::Flush | Command::Disc);
    let end = header.offset.checked_add(u64::from(header.length));
    let inside = end.is_some_and(|end| end <= size);
    let checked = header.check(&session);
    assert!(checked.is_err() || !ranged || inside);
    // Only what would need room where there is none is told so.
    let needs_room = matches!(header.command, Command::Write | Command::WriteZeroes);
    assert!(checked != Err(Reject::Reply(Errno::NoSpc)) || (needs_room && !inside));
});
