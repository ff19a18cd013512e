//! A way to a donor that does to what passes what a test tells it: holds it back, breaks it, turns answers
//! round.
//!
//! Owns the way, and how requests and answers are told apart on it. Never: an end of the connection. Called
//! by `data_path`.
#![allow(clippy::unwrap_used)]

use cheetah_nbd::client::Reply;
use cheetah_nbd::{Command, Errno, RequestHeader};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a way to a donor is told to do.
#[derive(Debug, Default)]
pub struct Orders {
    /// Answer with nonsense, and read no further until the client has let go of the connection.
    pub breaks: AtomicBool,
    /// Take nothing from the client.
    pub holds: AtomicBool,
    /// Turn the donor's answers, all to writes from then on, into errors.
    pub fails: AtomicBool,
    /// Hand on the donor's answers, all to writes from then on, the last one first.
    pub reverses: AtomicBool,
    /// Answer the next large write that begins at 0 as soon as its header is here, and read no further. Done
    /// once.
    pub lies: AtomicBool,
}

/// A way to a donor, on which little fits.
pub struct Way {
    pub address: String,
    pub orders: Arc<Orders>,
    pub let_go: mpsc::Sender<()>,
    /// How many writes the client has asked for.
    pub writes: Arc<AtomicUsize>,
    /// How many answers were handed on before an earlier one.
    pub overtook: Arc<AtomicUsize>,
    /// What came after it broke.
    pub came: JoinHandle<Vec<u8>>,
}

impl Way {
    pub fn to(donor: String, takes_in: Option<usize>) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Some(bytes) = takes_in {
            rustix::net::sockopt::set_socket_recv_buffer_size(&listener, bytes).unwrap();
            // A sender's buffer grows with its segments.
            let (fd, segment_bytes) = (listener.as_raw_fd(), 536i32);
            let value = (&raw const segment_bytes).cast();
            // SAFETY: the value is an integer of four bytes that outlives the call.
            let set = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, value, 4) };
            assert_eq!(set, 0);
        }
        let address = listener.local_addr().unwrap().to_string();
        let (let_go, gone) = mpsc::channel();
        let (orders, writes, overtook) =
            (Arc::<Orders>::default(), Arc::<AtomicUsize>::default(), Arc::default());
        let (told, counted, overtaking) = (orders.clone(), writes.clone(), Arc::clone(&overtook));
        let came = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut far = TcpStream::connect(donor).unwrap();
            let (replies, back) = (far.try_clone().unwrap(), client.try_clone().unwrap());
            let of_replies = told.clone();
            std::thread::spawn(move || Way::back(replies, back, &of_replies, &overtaking));
            let mut seen = Vec::new();
            let mut bytes = vec![0; 4096];
            loop {
                let got = client.read(&mut bytes).unwrap();
                if got == 0 {
                    return Vec::new();
                }
                if told.breaks.load(Ordering::Acquire) {
                    bytes.truncate(got);
                    break;
                }
                seen.extend_from_slice(&bytes[..got]);
                let headers = seen.windows(RequestHeader::BYTES).map(|bytes| bytes.try_into().unwrap());
                let headers = headers.filter_map(|bytes| RequestHeader::decode_in(bytes, true).ok());
                for RequestHeader { cookie, offset, length, .. } in
                    headers.filter(|header| header.command == Command::Write)
                {
                    counted.fetch_add(1, Ordering::AcqRel);
                    let is_large = offset == 0 && length >= LARGE_BYTES;
                    if is_large && told.lies.swap(false, Ordering::AcqRel) {
                        client.write_all(&Way::answer(&Reply::None { cookie })).unwrap();
                        gone.recv().unwrap();
                        return Vec::new();
                    }
                }
                seen.drain(..seen.len().saturating_sub(RequestHeader::BYTES - 1));
                far.write_all(&bytes[..got]).unwrap();
                while told.holds.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            // No more than shows it: the end of a client that has not received all of it would be a reset.
            client.write_all(&[0x55; 20]).unwrap();
            gone.recv().unwrap();
            client.read_to_end(&mut bytes).unwrap();
            bytes
        });
        Way { address, orders, let_go, writes, overtook, came }
    }

    fn back(mut replies: TcpStream, mut back: TcpStream, told: &Orders, overtook: &AtomicUsize) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let mut got = match replies.read(&mut bytes) {
                Ok(got) if got > 0 => got,
                _ => return,
            };
            let (fails, reverses) =
                (told.fails.load(Ordering::Acquire), told.reverses.load(Ordering::Acquire));
            if reverses {
                // What comes soon after it, too.
                replies.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                while let Ok(more @ 1..) = replies.read(&mut bytes[got..]) {
                    got += more;
                }
                replies.set_read_timeout(None).unwrap();
            }
            // Answers to writes, of which the last one may be here in part.
            while (fails || reverses)
                && answers(&bytes[..got]).iter().map(|each| each.len()).sum::<usize>() < got
            {
                match replies.read(&mut bytes[got..]) {
                    Ok(more) if more > 0 => got += more,
                    _ => return,
                }
            }
            let answers = if fails || reverses { answers(&bytes[..got]) } else { Vec::new() };
            let passed = if fails {
                let failed = answers.iter().flat_map(|answer| {
                    let cookie = u64::from_be_bytes(answer[8..16].try_into().unwrap());
                    let (done, errno, message) = (true, Errno::Io, String::new());
                    Way::answer(&Reply::Error { cookie, done, errno, message })
                });
                back.write_all(&failed.collect::<Vec<u8>>())
            } else if reverses {
                overtook.fetch_add(answers.len() - 1, Ordering::AcqRel);
                back.write_all(&answers.into_iter().rev().flatten().copied().collect::<Vec<u8>>())
            } else {
                back.write_all(&bytes[..got])
            };
            if passed.is_err() {
                return;
            }
        }
    }

    fn answer(reply: &Reply) -> Vec<u8> {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        cheetah_nbd::seal(&mut bytes);
        bytes
    }
}

/// More than the sockets of a way on which little fits take in.
const LARGE_BYTES: u32 = 256 << 10;
/// The answers to writes that are here in full, each a chunk.
fn answers(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut answers = Vec::new();
    while let Some(need) = Reply::need_in(bytes, true).ok().filter(|need| *need <= bytes.len()) {
        let (answer, rest) = bytes.split_at(need);
        answers.push(answer);
        bytes = rest;
    }
    answers
}
