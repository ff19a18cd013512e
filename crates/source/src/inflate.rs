//! Decompression of one block, and Adler-32.
//!
//! Owns: that a stream gives as many bytes as its block has, into memory that the caller has, whatever the
//! stream says. Called by `blocks` and `ewf`. Tests: below.

use flate2::{Decompress, FlushDecompress, Status};
use std::cell::RefCell;

/// What stands around deflated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// RFC 1950: a header, and the Adler-32 of what was compressed.
    Zlib,
    /// RFC 1951: nothing.
    Deflate,
}

thread_local! {
    /// Its tables are made once for each thread.
    static STREAM: RefCell<Decompress> = RefCell::new(Decompress::new(true));
}

/// Fills `room` from a stream; with zlib's header and checksum all of it was compared. Answers how much of
/// the room came.
///
/// # Errors
/// What is wrong with the stream, in words.
pub(crate) fn inflate(form: Form, from: &[u8], room: &mut [u8]) -> Result<usize, &'static str> {
    STREAM.with_borrow_mut(|stream| {
        stream.reset(form == Form::Zlib);
        let status = stream.decompress(from, room, FlushDecompress::Finish);
        let came = usize::try_from(stream.total_out()).unwrap_or(usize::MAX);
        match (status, form) {
            (Ok(Status::StreamEnd), _) => Ok(came),
            // Without a checksum there is nothing behind the last byte that is wanted.
            (Ok(_), Form::Deflate) if came == room.len() => Ok(came),
            (Ok(_), _) if came == room.len() => Err("its data decompresses to more than it has room for"),
            (Ok(_), _) => Err("its compressed data ends early"),
            (Err(_), _) => Err("its compressed data is damaged"),
        }
    })
}

/// RFC 1950, 8.2.
pub(crate) fn adler32(bytes: &[u8]) -> u32 {
    zlib_rs::adler32::adler32(1, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_stream_gives_what_it_holds_and_no_more() {
        let text = b"all work and no play ".repeat(500);
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        zlib.write_all(&text).expect("memory");
        let zlib = zlib.finish().expect("memory");
        let mut room = vec![0; text.len()];
        assert_eq!(inflate(Form::Zlib, &zlib, &mut room), Ok(text.len()));
        assert_eq!(room, text);
        assert_eq!(inflate(Form::Deflate, &zlib[2..], &mut room), Ok(text.len()));
        assert_eq!(inflate(Form::Deflate, &zlib[2..], &mut room[..100]), Ok(100));
        assert!(inflate(Form::Zlib, &zlib, &mut room[..100]).is_err_and(|why| why.contains("more")));
        assert!(inflate(Form::Zlib, &zlib[..20], &mut room).is_err());
        let mut flipped = zlib;
        *flipped.last_mut().expect("a checksum") ^= 1;
        assert!(inflate(Form::Zlib, &flipped, &mut room).is_err(), "its checksum is compared");
        assert!(inflate(Form::Zlib, b"", &mut room).is_err());
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    }
}
