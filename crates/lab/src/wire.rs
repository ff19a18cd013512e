//! A wire that delays frames, damages them, or drops those of one connection: two taps, and a thread between
//! them.
//!
//! Owns: the second bridge of a lab, on which hosts are whose frames take the detour over the wire
//! (`Lan::detour`). Never: touches the frames of other hosts; needs netem, which many kernels lack.
//! Invariant: a flip is damage that TCP does not notice: one bit, well behind the TCP header, of a frame
//! whose checksum is still undone, so that the receiving kernel takes it for right. Only checks from end to
//! end find it. Called by: the fault runs, `tests/survive.rs`. Tests: below.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::dice::Dice;
use crate::lan::Lan;
use crate::tap::{self, LargeSends};

/// More than the largest frame with its header.
const FRAME_BYTES: usize = (64 << 10) + 64 + tap::HEADER_BYTES;
/// What may wait in one direction; more is dropped, as a switch does.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Flips fall from here on: behind the headers of Ethernet, IP and TCP, and 34 bytes into the payload.
const FLIP_FROM: usize = tap::HEADER_BYTES + 100;
/// Only a frame longer than this is flipped.
const FLIP_FRAME_BYTES: usize = tap::HEADER_BYTES + 120;
/// In a frame of IPv4 and TCP without options: the kind of the frame, the protocol, the two ports.
const ETHERTYPE_AT: usize = tap::HEADER_BYTES + 12;
const PROTOCOL_AT: usize = tap::HEADER_BYTES + 23;
const PORTS_AT: usize = tap::HEADER_BYTES + 34;
const TCP: u8 = 6;
/// How the header of an NBD request begins, and how long it is.
const REQUEST_MAGIC: [u8; 4] = [0x25, 0x60, 0x95, 0x13];
const REQUEST_BYTES: usize = 28;
const FRAMES_AT_ONCE: usize = 64;
/// How often the thread looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);

/// What went over the wire, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub frames: u64,
    pub bytes: u64,
    /// Frames with a flipped bit.
    pub flips: u64,
    /// Dropped because too much waited, or because their connection hangs.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct Shared {
    delay_us: AtomicU64,
    /// Of a million frames, so many are flipped.
    flip_ppm: AtomicU64,
    /// The same of those that have the header of a request: it is what is flipped.
    request_flip_ppm: AtomicU64,
    /// Frames from and to this TCP port go nowhere; 0 is none.
    hung_port: AtomicU16,
    frames: AtomicU64,
    bytes: AtomicU64,
    flips: AtomicU64,
    dropped: AtomicU64,
    ended: AtomicBool,
}

/// The wire of one lab. Dropping it ends its thread; hosts on it are then cut off until they are healed.
#[derive(Debug)]
pub struct Wire {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Lays a wire in a lab, which has none yet; it is perfect until told otherwise.
    #[track_caller]
    pub fn new(lan: &Lan, seed: u64) -> Self {
        Self::lay(lan, seed, LargeSends::Cut)
    }

    /// One that is long and nothing else: what is sent at once stays in one piece, or a thread of a slow
    /// machine could not carry 1 Gbit/s.
    #[track_caller]
    pub fn long(lan: &Lan, round_trip: Duration) -> Self {
        let wire = Self::lay(lan, 0, LargeSends::Whole);
        wire.delay(round_trip / 2);
        wire
    }

    #[track_caller]
    fn lay(lan: &Lan, seed: u64, large: LargeSends) -> Self {
        let [near, far] = lan.lay_wire(large);
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || carry(&for_thread, [near, far], Dice::new(seed)));
        Self { shared, thread: Some(thread) }
    }

    /// Delays each frame by so much, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.shared.delay_us.store(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Flips one bit in so many of a million frames (500 are 0.05 %).
    pub fn corrupt(&self, frames_in_a_million: u64) {
        self.shared.flip_ppm.store(frames_in_a_million, Relaxed);
    }

    /// Flips one bit of the first NBD request's header in so many of a million frames that have one: of what
    /// is asked for, never of payload.
    pub fn corrupt_requests(&self, frames_in_a_million: u64) {
        self.shared.request_flip_ppm.store(frames_in_a_million, Relaxed);
    }

    /// From now on the TCP connection of this port, at either end, hangs: neither end is told. All others go
    /// on.
    pub fn hang(&self, port: u16) {
        self.shared.hung_port.store(port, Relaxed);
    }

    pub fn count(&self) -> Count {
        let shared = &self.shared;
        Count {
            frames: shared.frames.load(Relaxed),
            bytes: shared.bytes.load(Relaxed),
            flips: shared.flips.load(Relaxed),
            dropped: shared.dropped.load(Relaxed),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // That it panicked was said on stderr.
            let _ = thread.join();
        }
    }
}

/// Frames of one direction that wait until they are due.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
}

impl Queue {
    fn push(&mut self, due: Instant, frame: &[u8]) -> bool {
        if self.bytes + frame.len() > QUEUE_BYTES_MAX {
            return false;
        }
        // Frames never overtake each other, also when the delay was made shorter.
        let due = self.waiting.back().map_or(due, |(last, _)| due.max(*last));
        self.bytes += frame.len();
        self.waiting.push_back((due, frame.to_vec()));
        true
    }

    /// Hands on what is due; answers when to come again.
    fn drain(&mut self, now: Instant, to: &mut File) -> Option<Instant> {
        while let Some((due, frame)) = self.waiting.front() {
            if *due > now {
                return Some(*due);
            }
            match to.write(frame) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Some(now + Duration::from_micros(50));
                }
                // A frame that the kernel refuses is a lost frame.
                _ => self.bytes -= frame.len(),
            }
            self.waiting.pop_front();
        }
        None
    }
}

fn carry(shared: &Shared, mut taps: [File; 2], mut dice: Dice) {
    let mut queues = [Queue::default(), Queue::default()];
    let mut frame = vec![0; FRAME_BYTES];
    while !shared.ended.load(Relaxed) {
        let now = Instant::now();
        let mut wake = now + LOOK;
        for (from, queue) in queues.iter_mut().enumerate() {
            if let Some(due) = queue.drain(now, &mut taps[1 - from]) {
                wake = wake.min(due);
            }
        }
        let pause = wake.saturating_duration_since(Instant::now());
        let pause = Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as i64 };
        let mut looks = [&taps[0], &taps[1]].map(|tap| PollFd::new(tap, PollFlags::IN));
        if !matches!(poll(&mut looks, Some(&pause)), Ok(ready) if ready > 0) {
            continue;
        }
        let ready = looks.map(|look| look.revents().contains(PollFlags::IN));
        for from in [0, 1].into_iter().filter(|from| ready[*from]) {
            for _ in 0..FRAMES_AT_ONCE {
                let Ok(bytes) = taps[from].read(&mut frame) else { break };
                take(shared, &mut dice, &mut frame[..bytes], &mut queues[from]);
            }
        }
    }
}

fn take(shared: &Shared, dice: &mut Dice, frame: &mut [u8], queue: &mut Queue) {
    shared.frames.fetch_add(1, Relaxed);
    shared.bytes.fetch_add((frame.len() - tap::HEADER_BYTES) as u64, Relaxed);
    let hung = shared.hung_port.load(Relaxed);
    if hung != 0 && tcp_ports(frame).is_some_and(|ports| ports.contains(&hung)) {
        shared.dropped.fetch_add(1, Relaxed);
        return;
    }
    if dice.one_of_a_million(shared.flip_ppm.load(Relaxed)) && flip(dice, frame) {
        shared.flips.fetch_add(1, Relaxed);
    }
    if dice.one_of_a_million(shared.request_flip_ppm.load(Relaxed)) && flip_request(dice, frame) {
        shared.flips.fetch_add(1, Relaxed);
    }
    let due = Instant::now() + Duration::from_micros(shared.delay_us.load(Relaxed));
    if !queue.push(due, frame) {
        shared.dropped.fetch_add(1, Relaxed);
    }
}

fn tcp_ports(frame: &[u8]) -> Option<[u16; 2]> {
    let kind = frame.get(ETHERTYPE_AT..ETHERTYPE_AT + 3)?;
    let port = |at: usize| frame.get(at..at + 2).map(|port| u16::from_be_bytes([port[0], port[1]]));
    let tcp = kind == [0x08, 0x00, 0x45] && frame.get(PROTOCOL_AT) == Some(&TCP);
    Some([port(PORTS_AT)?, port(PORTS_AT + 2)?]).filter(|_| tcp)
}

/// Flips one bit of a frame's payload, when nobody below the application will notice.
fn flip(dice: &mut Dice, frame: &mut [u8]) -> bool {
    if frame.len() <= FLIP_FRAME_BYTES || frame[0] & tap::CHECKSUM_UNDONE == 0 {
        return false;
    }
    let at = FLIP_FROM + dice.below((frame.len() - FLIP_FROM) as u64) as usize;
    frame[at] ^= 1 << dice.below(8);
    true
}

/// Flips one bit of the first request's header behind its magic, which lies in the frame as a whole.
fn flip_request(dice: &mut Dice, frame: &mut [u8]) -> bool {
    if frame[0] & tap::CHECKSUM_UNDONE == 0 {
        return false;
    }
    let from = tap::HEADER_BYTES.min(frame.len());
    let magic = frame[from..].windows(REQUEST_BYTES).position(|header| header.starts_with(&REQUEST_MAGIC));
    let Some(magic) = magic else { return false };
    let behind = REQUEST_MAGIC.len() as u64;
    let at = from + magic + (behind + dice.below(REQUEST_BYTES as u64 - behind)) as usize;
    frame[at] ^= 1 << dice.below(8);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lan::Node;
    use crate::{rivals, tools, wait};

    fn ping_ms(lan: &Lan) -> f64 {
        let mut command = lan.exec(Node::Client, tools::need("bash"));
        // A refused connection takes one round trip.
        let script = format!(
            "t0=$EPOCHREALTIME; (echo >/dev/tcp/{}/9) 2>/dev/null; t1=$EPOCHREALTIME; echo $t0 $t1",
            Node::Donor(1).address()
        );
        command.args(["-c", &script]);
        let said = tools::expect_success(&mut command);
        let times: Vec<f64> = said.split_whitespace().map(|time| time.parse().expect("a time")).collect();
        (times[1] - times[0]) * 1e3
    }

    #[test]
    fn a_detour_delays_both_ways_and_ends() {
        let lan = Lan::new(2, "1gbit");
        let wire = Wire::new(&lan, 1);
        wire.delay(Duration::from_millis(20));
        assert!(ping_ms(&lan) < 40.0, "nobody is on the wire yet");
        lan.detour(Node::Donor(1));
        wait::until("the detour", wait::SOON, || ping_ms(&lan) >= 40.0);
        assert!(wire.count().frames > 0);
        lan.heal(Node::Donor(1));
        wait::until("the end of the detour", wait::SOON, || ping_ms(&lan) < 40.0);
    }

    #[test]
    fn flips_arrive_though_tcp_checks() {
        let lan = Lan::new(1, "10gbit");
        let wire = Wire::new(&lan, 1);
        lan.detour(Node::Donor(1));
        let dropped = lan.dropped_at_taps();
        let rate = rivals::iperf3_between(&lan, Node::Donor(1), Node::Client, 1);
        assert!(rate > 100.0, "{rate} Mbit/s over a perfect wire");
        assert_eq!(lan.dropped_at_taps(), dropped, "a perfect wire loses nothing");
        wire.corrupt(100_000);
        let script =
            format!("exec 3<>/dev/tcp/{}/5000; cat <&3 | tr -d '\\000' | wc -c", Node::Donor(1).address());
        let serve = "import socket; s = socket.create_server(('', 5000)); print('up', flush=True); \
                     c, _ = s.accept(); c.sendall(bytes(32 << 20)); c.close()";
        let scratch = crate::scratch::Scratch::new();
        let mut server = lan.exec(Node::Donor(1), tools::need("python3"));
        server.args(["-c", serve]);
        let mut server = crate::process::Process::start("zeros", server, scratch.path());
        server.wait_for_line("up", wait::SOON);
        let mut reader = lan.exec(Node::Client, tools::need("bash"));
        reader.args(["-c", &script]);
        let wrong: u64 = tools::expect_success(&mut reader).trim().parse().expect("a number");
        let flips = wire.count().flips;
        assert!(wrong > 0 && wrong <= flips, "{wrong} wrong bytes arrived of {flips} flips");
    }
}
