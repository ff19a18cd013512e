//! Somebody who listens where a donor said that it does, for tests of donors without a data server: each
//! greeting is answered well, whomever it means. Owns nothing but its listener; it ends with the process.

use cheetah_nbd::server::{Handshake, Step};
use cheetah_nbd::{ExportInfo, TransmissionFlags};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Listens from now on.
pub(crate) fn listens() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        // A caller that goes away half-way is none of ours.
        listener.incoming().flatten().for_each(|stream| drop(answer(stream)));
    });
    address
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let (mut handshake, mut input) = (Handshake::new(), Vec::new());
    loop {
        let mut output = Vec::new();
        handshake.take_output(&mut output);
        stream.write_all(&output)?;
        match handshake.poll() {
            Step::Lookup { .. } => {
                handshake.answer_lookup(Ok(ExportInfo::new(1 << 40, TransmissionFlags::EMPTY)));
            }
            Step::List => handshake.answer_list(Ok(&[])),
            Step::Ready(_) | Step::StartTls | Step::Close(_) => return Ok(()),
            Step::NeedInput => {
                let mut bytes = [0; 4096];
                let got = stream.read(&mut bytes)?;
                if got == 0 {
                    return Ok(());
                }
                input.extend_from_slice(&bytes[..got]);
                let used = handshake.input(&input).map_err(|why| std::io::Error::other(why.to_string()))?;
                input.drain(..used);
            }
        }
    }
}
