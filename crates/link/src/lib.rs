//! One connection to an NBD server that others wrote: many questions are on their way at once, each asked and
//! awaited by a thread of its own.
//!
//! Owns: the socket, the handshake with a deadline, the thread that receives. Never: a second attempt, or
//! what an answer means. Invariants: a link that was opened for reading sends nothing but READ, BLOCK_STATUS
//! and DISC, whatever it is asked; each question is answered, or its asker hears that the connection ended;
//! where TLS is asked for, the server is told of no export before it is spoken.
//! Called by `source` (what a volume is filled from) and `rim::disk` (an export as a donor's disk). Tests:
//! `lab/tests/remote.rs`, `lab/tests/remote_tls.rs`, `lab/tests/disks_remote.rs`.
#![forbid(unsafe_code)]

pub mod tls;

use cheetah_nbd::client::{self, Answer, Handshake, Request, Step, Take, Transmission, Want};
use cheetah_nbd::proto::rep;
use cheetah_nbd::uri::{Tls, Transport, Uri};
use cheetah_nbd::{CmdFlags, Command, Descriptor, Errno, Negotiated, RequestHeader};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use tls::{NoTls, Records};

/// Received at once.
const RECEIVE_BYTES: usize = 256 << 10;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLink {
    /// A later attempt may have one.
    Again(String),
    /// None will.
    Final(String),
    /// The server has no export of this name.
    NotThere,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The connection broke or was ended, and why.
    Ended(String),
    /// Nothing came in time; the connection is given up.
    Silent,
    /// The link was opened for reading, and this would write.
    ForReading,
    /// More than the 4 GiB that a request can ask for.
    TooLong,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unanswered::Ended(why) => why,
            Unanswered::Silent => "the server does not answer",
            Unanswered::ForReading => "this connection is for reading alone",
            Unanswered::TooLong => "it is too much for one request",
        })
    }
}

impl std::error::Error for Unanswered {}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The socket, and what is between it and plain bytes.
#[derive(Debug)]
struct Channel {
    socket: Socket,
    records: Option<Records>,
}

/// What may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing that changes anything.
    Read,
    /// Everything.
    Write,
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Link {
    channel: Channel,
    access: Access,
    /// What the two agreed on.
    pub session: Negotiated,
    /// Locked before `asking`, so that requests leave one behind the other, in the order of their cookies.
    sending: Mutex<()>,
    /// Never locked while something is sent: a server that is not read from need not read either.
    asking: Mutex<Asking>,
}

#[derive(Debug)]
struct Asking {
    transmission: Transmission<Waiting>,
    cookie: u64,
    /// Why nothing more is asked.
    ended: Option<Unanswered>,
}

/// Who waits for an answer, and what came of it.
#[derive(Debug)]
struct Waiting {
    bytes: Mutex<Vec<u8>>,
    done: mpsc::Sender<Answered>,
}

/// What a question came to.
#[derive(Debug)]
pub struct Answered {
    /// None: it was done.
    pub error: Option<Errno>,
    /// Of a READ.
    pub bytes: Vec<u8>,
    /// Of a BLOCK_STATUS.
    pub status: Vec<Descriptor>,
}

impl Answered {
    /// What the server says of it as an error of this machine.
    ///
    /// # Errors
    /// It was not done.
    pub fn done(self) -> io::Result<Answered> {
        match self.error {
            None => Ok(self),
            Some(error) => Err(io::Error::from_raw_os_error(error.to_wire().cast_signed())),
        }
    }
}

/// An answer that is on its way.
#[derive(Debug)]
pub struct Pending {
    answered: mpsc::Receiver<Answered>,
}

impl Pending {
    /// Waits for it, on the link that was asked; after `time` without one that is given up, for all.
    ///
    /// # Errors
    /// As `Link::ask`.
    pub fn wait(self, link: &Link, time: Duration) -> Result<Answered, Unanswered> {
        match self.answered.recv_timeout(time) {
            Ok(answered) => Ok(answered),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                link.give_up(Unanswered::Silent);
                Err(Unanswered::Silent)
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let unknown = || Unanswered::Ended("the connection ended".to_owned());
                Err(link.asking().ended.clone().unwrap_or_else(unknown))
            }
        }
    }
}

struct Taking;

impl Take<Waiting> for Taking {
    fn data(&mut self, body: &Waiting, at: u32, bytes: &[u8]) {
        let at = at as usize;
        body.room()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn hole(&mut self, body: &Waiting, at: u32, end: u32) {
        body.room()[at as usize..end as usize].fill(0);
    }

    fn answer(&mut self, answer: Answer<Waiting>) {
        let Answer { error, status, body, .. } = answer;
        let bytes = std::mem::take(&mut *body.room());
        // Who asked may have gone.
        let _ = body.done.send(Answered { error, bytes, status });
    }
}

impl Waiting {
    fn room(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Socket {
    fn connect(to: &Transport, time: Duration) -> io::Result<Socket> {
        match to {
            Transport::Unix { socket } => Ok(Socket::Unix(match socket.strip_prefix('\0') {
                Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?,
                None => UnixStream::connect(socket)?,
            })),
            Transport::Tcp { host, port } => {
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, time) {
                        Ok(stream) => {
                            // Only a matter of latency.
                            let _ = stream.set_nodelay(true);
                            return Ok(Socket::Tcp(stream));
                        }
                        Err(why) => last = why,
                    }
                }
                Err(last)
            }
        }
    }

    /// How long one receive or send may take; `None`: as long as it takes.
    fn limit(&self, receive: Option<Duration>, send: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(receive)?;
                stream.set_write_timeout(send)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(receive)?;
                stream.set_write_timeout(send)
            }
        }
    }

    /// One receive or send takes what is left until then at most.
    fn limit_until(&self, until: Instant) -> io::Result<()> {
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not end it")),
            left => self.limit(Some(left), Some(left)),
        }
    }

    fn receive(&self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            let received = match self {
                Socket::Tcp(stream) => (&*stream).read(room),
                Socket::Unix(stream) => (&*stream).read(room),
            };
            match received {
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// What came is acknowledged at once: qemu-nbd sends an answer in several records, and the next of them
    /// when the one before has been acknowledged, which else is 40 ms later.
    fn acknowledge(&self) {
        if let Socket::Tcp(stream) = self {
            // Only a matter of latency.
            let _ = rustix::net::sockopt::set_tcp_quickack(stream, true);
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => (&*stream).write_all(bytes),
            Socket::Unix(stream) => (&*stream).write_all(bytes),
        }
    }

    fn close(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Channel {
    /// Called by one at a time: records go in order.
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match &self.records {
            None => self.socket.send(bytes),
            Some(records) => records.send(bytes, |sealed| self.socket.send(sealed)),
        }
    }

    fn receive(&self, room: &mut [u8]) -> io::Result<usize> {
        match &self.records {
            None => self.socket.receive(room),
            Some(records) => records.receive(room, |room| {
                self.socket.acknowledge();
                self.socket.receive(room)
            }),
        }
    }

    /// Speaks TLS from here on.
    fn start_tls(&mut self, uri: &Uri, until: Instant) -> Result<(), NoLink> {
        let records = Records::new(uri, uri.tls.as_ref().unwrap_or(&Tls::default()));
        let records = records.map_err(|why| NoLink::Final(why.to_string()))?;
        let socket = &self.socket;
        let receive = |room: &mut [u8]| {
            socket.limit_until(until)?;
            socket.receive(room)
        };
        records.begin(|sealed| socket.send(sealed), receive).map_err(|why| no_handshake(&why))?;
        self.records = Some(records);
        Ok(())
    }
}

impl Link {
    /// A connection whose handshake is done, `time` at most after the other end took it.
    ///
    /// # Errors
    /// There is none.
    pub fn open(uri: &Uri, access: Access, time: Duration) -> Result<Arc<Link>, NoLink> {
        let again = |why: io::Error| NoLink::Again(format!("no connection: {why}"));
        let socket = Socket::connect(&uri.transport, time).map_err(again)?;
        let mut channel = Channel { socket, records: None };
        let (session, rest) = shake_hands(&mut channel, uri, time)?;
        channel.socket.limit(None, Some(time)).map_err(again)?;
        let transmission = Transmission::new(&session, false, u64::from(u32::MAX), u32::MAX);
        let asking = Mutex::new(Asking { transmission, cookie: 0, ended: None });
        let link = Arc::new(Link { channel, access, session, sending: Mutex::new(()), asking });
        let receiver = link.clone();
        let receive = move || receiver.receive_all(rest);
        std::thread::Builder::new().name("nbd-link".to_owned()).spawn(receive).map_err(again)?;
        Ok(link)
    }

    fn asking(&self) -> MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, and waits for the answer; after `time` without one the connection is given up, for all.
    ///
    /// # Errors
    /// The connection has ended, or does now.
    pub fn ask(
        &self,
        command: Command,
        offset: u64,
        length: u32,
        time: Duration,
    ) -> Result<Answered, Unanswered> {
        self.send(command, offset, length, &[])?.wait(self, time)
    }

    /// Asks for `payload` to be written; the answer is waited for later, so many may be on their way.
    ///
    /// # Errors
    /// As `ask`.
    pub fn write(&self, offset: u64, payload: &[u8]) -> Result<Pending, Unanswered> {
        let length = u32::try_from(payload.len()).map_err(|_| Unanswered::TooLong)?;
        self.send(Command::Write, offset, length, payload)
    }

    fn send(
        &self,
        command: Command,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> Result<Pending, Unanswered> {
        let reads = matches!(command, Command::Read | Command::BlockStatus);
        if self.access == Access::Read && !reads {
            return Err(Unanswered::ForReading);
        }
        let room = if command == Command::Read { length as usize } else { 0 };
        let (done, answered) = mpsc::channel();
        let in_turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let heads = {
            let mut asking = self.asking();
            if let Some(why) = &asking.ended {
                return Err(why.clone());
            }
            let cookie = asking.cookie;
            asking.cookie += 1;
            let body = Waiting { bytes: Mutex::new(vec![0; room]), done };
            let context = self.session.base_allocation;
            let transmission = &mut asking.transmission;
            let plain = Request::plain(cookie, command, offset, length, body);
            transmission.queue(Request { context, ..plain });
            transmission.make_requests(0);
            let heads: Vec<u8> = transmission.unsent().flat_map(|part| part.head.to_vec()).collect();
            transmission.sent(heads.len() + payload.len());
            heads
        };
        let sent = self.channel.send(&heads).and_then(|()| self.channel.send(payload));
        drop(in_turn);
        if let Err(why) = sent {
            self.end(format!("the connection broke: {why}"));
        }
        Ok(Pending { answered })
    }

    /// Nothing comes of it any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.asking().ended.is_some()
    }

    /// Ends it; who waits hears why.
    pub fn end(&self, why: String) {
        self.give_up(Unanswered::Ended(why));
    }

    fn give_up(&self, why: Unanswered) {
        let mut asking = self.asking();
        asking.ended.get_or_insert(why);
        asking.transmission.end().for_each(drop);
        self.channel.socket.close();
    }

    /// What the protocol wants said before the end.
    pub fn leave(&self) {
        let (flags, command) = (CmdFlags::EMPTY, Command::Disc);
        let header = RequestHeader { flags, command, cookie: u64::MAX, offset: 0, length: 0 };
        // Not between the halves of another request.
        if let Ok(_in_turn) = self.sending.try_lock() {
            let _ = self.channel.send(&header.encode());
        }
        self.end("it is not wanted any more".to_owned());
    }

    fn receive_all(&self, mut input: Vec<u8>) {
        let mut room = vec![0; RECEIVE_BYTES];
        let why = loop {
            match self.channel.receive(&mut room) {
                Ok(0) => break "the server closed the connection".to_owned(),
                Ok(count) => input.extend_from_slice(&room[..count]),
                Err(why) => break format!("the connection broke: {why}"),
            }
            match self.asking().transmission.received(&input, &mut Taking) {
                Ok(used) => drop(input.drain(..used)),
                Err(violation) => break format!("the server broke the protocol: {violation}"),
            }
        };
        self.end(why);
    }
}

/// What was agreed on, and what came behind it.
fn shake_hands(channel: &mut Channel, uri: &Uri, time: Duration) -> Result<(Negotiated, Vec<u8>), NoLink> {
    let want = Want {
        export: uri.export.clone(),
        structured: true,
        base_allocation: true,
        dirty: false,
        context: false,
        auth: false,
    };
    let (mut handshake, until) = (Handshake::new(want), Instant::now() + time);
    if uri.tls.is_some() {
        handshake = handshake.over_tls();
    }
    let (mut output, mut room, mut rest) = (Vec::new(), [0; 4096], 0..0);
    // Under TLS.
    let mut has_answered = false;
    loop {
        handshake.take_output(&mut output);
        channel.send(&output).map_err(|why| no_handshake(&why))?;
        output.clear();
        match handshake.poll() {
            Step::NeedInput => {}
            Step::Ready(session) => return Ok((session, room[rest].to_vec())),
            Step::StartTls if rest.is_empty() => {
                channel.start_tls(uri, until)?;
                handshake.tls_started();
                continue;
            }
            Step::StartTls => {
                return Err(NoLink::Final("the server speaks on in the clear, where TLS begins".to_owned()));
            }
            Step::Listed(_) => {
                return Err(NoLink::Final("the server lists what it was not asked".to_owned()));
            }
            Step::Failed(error) => return Err(failed(&error)),
        }
        channel.socket.limit_until(until).map_err(|why| no_handshake(&why))?;
        let received = channel.receive(&mut room).map_err(|why| match &channel.records {
            Some(records) if !has_answered => no_handshake(&records.ended_at_once(why)),
            _ => no_handshake(&why),
        });
        has_answered = channel.records.is_some();
        match received? {
            0 => handshake.eof(),
            // What is wrong with it is what the next step says.
            count => rest = handshake.input(&room[..count]).unwrap_or(count)..count,
        }
    }
}

/// Another attempt may end it, but where one end does not believe the other.
fn no_handshake(why: &io::Error) -> NoLink {
    match why.get_ref().is_some_and(|why| why.is::<NoTls>()) {
        true => NoLink::Final(why.to_string()),
        false => NoLink::Again(format!("no handshake: {why}")),
    }
}

fn failed(error: &client::Error) -> NoLink {
    match error {
        client::Error::Refused { reply: rep::ERR_UNKNOWN, .. }
        | client::Error::Closed { asked_export_name: true } => NoLink::NotThere,
        client::Error::TlsRequired => NoLink::Final(format!("{error}: nbds:// speaks TLS")),
        // It may be full: some serve one client at a time and close the next one's connection.
        client::Error::Closed { .. } | client::Error::Refused { reply: rep::ERR_SHUTDOWN, .. } => {
            NoLink::Again(error.to_string())
        }
        other => NoLink::Final(other.to_string()),
    }
}
