//! What a client makes of each reply, well-formed and not.

use cheetah_nbd::client::Reply;
use cheetah_nbd::limits::{
    BLOCK_STATUS_DESCRIPTORS_MAX, ERROR_CHUNK_BYTES_MAX, REPLY_HEAD_BYTES_MAX, REQUEST_PAYLOAD_BYTES_MAX,
};
use cheetah_nbd::proto::chunk;
use cheetah_nbd::server::reply;
use cheetah_nbd::{Descriptor, Errno, StateFlags, Violation};

fn header(flags: u16, kind: u16, length: u32) -> Vec<u8> {
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef];
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&7u64.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

fn chunk(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(flags, kind, u32::try_from(payload.len()).unwrap());
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn the_layouts_are_the_protocol_s() {
    let simple = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7];
    assert_eq!(reply::simple(7, Some(Errno::Io)), simple);
    assert_eq!(reply::none_done(7)[..], header(1, chunk::NONE, 0));
    assert_eq!(reply::offset_data(7, false, 3, 16)[..20], header(0, chunk::OFFSET_DATA, 24));
    assert_eq!(reply::offset_data(7, true, 3, 16)[20..], 3u64.to_be_bytes());
    let hole = [&3u64.to_be_bytes()[..], &16u32.to_be_bytes()].concat();
    assert_eq!(reply::offset_hole(7, false, 3, 16)[..], chunk(0, chunk::OFFSET_HOLE, &hole));
    let mut out = Vec::new();
    reply::error(7, true, Errno::Io, "lost", &mut out);
    assert_eq!(out, chunk(1, chunk::ERROR, b"\0\0\0\x05\0\x04lost"));
    out.clear();
    reply::error_offset(7, false, Errno::Io, 9, "lost", &mut out);
    assert_eq!(out, chunk(0, chunk::ERROR_OFFSET, b"\0\0\0\x05\0\x04lost\0\0\0\0\0\0\0\x09"));
    out.clear();
    let zero = Descriptor { length: 512, flags: StateFlags::HOLE | StateFlags::ZERO };
    reply::block_status(7, true, 1, &[zero], &mut out);
    assert_eq!(out, chunk(1, chunk::BLOCK_STATUS, &[0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 3]));
}

#[test]
fn data_stays_with_the_driver() {
    let mut bytes = reply::offset_data(7, true, 3, 4).to_vec();
    bytes.extend_from_slice(b"data");
    let expected = Reply::OffsetData { cookie: 7, done: true, offset: 3, data_bytes: 4 };
    assert_eq!(Reply::decode(&bytes), Ok(Some((expected, 28))));
}

#[test]
fn impossible_lengths_are_refused_before_they_are_waited_for() {
    let descriptors = u32::try_from(8 * BLOCK_STATUS_DESCRIPTORS_MAX).unwrap();
    for (kind, lengths) in [
        (chunk::NONE, vec![1]),
        (chunk::OFFSET_DATA, vec![0, 8, REQUEST_PAYLOAD_BYTES_MAX + 9, u32::MAX]),
        (chunk::OFFSET_HOLE, vec![0, 11, 13]),
        (chunk::BLOCK_STATUS, vec![0, 4, 8, 13, descriptors + 12, u32::MAX]),
        (chunk::ERROR, vec![0, 5, ERROR_CHUNK_BYTES_MAX + 1, u32::MAX]),
        (chunk::ERROR_OFFSET, vec![6, 13, ERROR_CHUNK_BYTES_MAX + 1]),
        (chunk::ERR | 99, vec![5, ERROR_CHUNK_BYTES_MAX + 1]),
    ] {
        for bytes in lengths {
            let header = header(1, kind, bytes);
            assert_eq!(Reply::decode(&header), Err(Violation::ChunkLength { chunk: kind, bytes }));
        }
    }
    assert_eq!(Reply::need(&header(1, chunk::BLOCK_STATUS, descriptors + 4)), Ok(REPLY_HEAD_BYTES_MAX));
}

#[test]
fn contradictions_are_refused() {
    let hole = [0; 12];
    let long_message = b"\0\0\0\x05\0\x05lost";
    let no_offset = b"\0\0\0\x05\0\x09lost....9";
    let empty_run = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    for (flags, kind, payload) in [
        (0, chunk::NONE, &[][..]),
        (1, chunk::OFFSET_HOLE, &hole),
        (1, chunk::BLOCK_STATUS, &empty_run),
        (1, chunk::ERROR, b"\0\0\0\0\0\0"),
        (1, chunk::ERROR, long_message),
        (1, chunk::ERR | 99, long_message),
        (1, chunk::ERROR_OFFSET, no_offset),
    ] {
        let bytes = chunk(flags, kind, payload);
        assert_eq!(Reply::decode(&bytes), Err(Violation::ChunkMalformed(kind)), "{payload:?}");
    }
    assert_eq!(Reply::decode(&header(1, 99, 0)), Err(Violation::ChunkType(99)));
    assert_eq!(Reply::decode(&[0; 4]), Err(Violation::ReplyMagic(0)));
}

#[test]
fn error_chunks_of_a_later_protocol_are_errors() {
    let bytes = chunk(0, chunk::ERR | 99, b"\0\0\x0f\xff\0\x04lost and what came later");
    let expected = Reply::Error { cookie: 7, done: false, errno: Errno::Inval, message: "lost".into() };
    assert_eq!(Reply::decode(&bytes), Ok(Some((expected, bytes.len()))));
}

#[test]
fn messages_that_are_not_text_are_shown_as_far_as_they_are() {
    let bytes = chunk(1, chunk::ERROR, b"\0\0\0\x05\0\x02a\xff");
    let Ok(Some((Reply::Error { message, .. }, _))) = Reply::decode(&bytes) else { panic!() };
    assert_eq!(message, "a\u{fffd}");
}

#[test]
fn a_message_is_cut_where_the_protocol_ends_it() {
    let mut out = Vec::new();
    reply::error(7, true, Errno::Io, &"é".repeat(5000), &mut out);
    let Ok(Some((Reply::Error { message, .. }, _))) = Reply::decode(&out) else { panic!() };
    assert_eq!(message, "é".repeat(2048));
}

#[test]
fn more_descriptors_than_fit_are_left_out() {
    let mut out = Vec::new();
    let runs = vec![Descriptor { length: 1, flags: StateFlags::EMPTY }; BLOCK_STATUS_DESCRIPTORS_MAX + 1];
    reply::block_status(7, true, 1, &runs, &mut out);
    assert_eq!(out.len(), REPLY_HEAD_BYTES_MAX);
    assert!(matches!(Reply::decode(&out), Ok(Some((_, REPLY_HEAD_BYTES_MAX)))));
}
