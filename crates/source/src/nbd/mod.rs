//! A disk that an NBD server has, or a `qemu-nbd` of our own.
//!
//! Owns: reads by our own client, connections that are made anew, what the server says is zeros (which is
//! not fetched), and that the export is as large as it was. Never: writing; the only commands are READ,
//! BLOCK_STATUS and DISC, also where the export takes writes. Invariants: a read ends when nothing came for
//! as long as patience lasts; what the server answers with EIO is an error of that place alone. Called by
//! `raw`. Files: `helper` (a server of our own). Tests: below, `lab/tests/remote.rs`,
//! `lab/tests/remote_tls.rs`.

mod helper;

use crate::medium::{Medium, Opened};
use crate::{Options, SourceError};
use cheetah_link::{Access, Answered, Link, NoLink};
use cheetah_nbd::uri::{Transport, Uri};
use cheetah_nbd::{Command, Descriptor, Errno, StateFlags};
use helper::{Helper, Serves};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Reads on their way at once.
const IN_FLIGHT: usize = 8;
/// What any server answers at once.
const READ_BYTES_MAX: u32 = 4 << 20;
/// A server that gives nothing for so long is connected to anew, if patience lasts longer.
const SILENT: Duration = Duration::from_secs(10);
/// Between attempts, doubled each time.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// What is asked for at once where zeros are.
const WINDOW_BYTES: u64 = 64 << 20;
/// Windows of which it is known.
const WINDOWS_KEPT: usize = 16;
/// A server may tell of a window in so many answers; of the rest nothing is known.
const ANSWERS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Export {
    uri: Uri,
    /// Who serves it, if that is ours.
    helper: Option<Helper>,
    what: &'static str,
    size: u64,
    /// Requests are multiples of it.
    block: u64,
    most: u32,
    patience: Duration,
    link: Mutex<Option<Arc<Link>>>,
    zeros: Mutex<VecDeque<Window>>,
}

/// Where zeros are in a part of the export.
#[derive(Clone, Debug)]
struct Window {
    start: u64,
    zeros: Arc<Vec<Range<u64>>>,
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(link) = self.linked().take() {
            link.leave();
        }
    }
}

/// Attempts, and how long nothing may come of them.
struct Attempts {
    patience: Duration,
    until: Instant,
    next: Duration,
}

/// No attempt came to anything.
#[derive(Debug)]
struct NothingCame {
    within: Duration,
    at_last: String,
}

impl fmt::Display for NothingCame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing came in {} s, at last: {}", self.within.as_secs_f64(), self.at_last)
    }
}

impl std::error::Error for NothingCame {}

impl Attempts {
    fn new(patience: Duration) -> Attempts {
        Attempts { patience, until: Instant::now() + patience, next: PAUSE }
    }

    fn time(&self) -> Duration {
        self.patience.min(SILENT)
    }

    fn wait(&mut self, why: String) -> Result<(), NothingCame> {
        if Instant::now() + self.next > self.until {
            return Err(NothingCame { within: self.patience, at_last: why });
        }
        std::thread::sleep(self.next);
        self.next = (self.next * 2).min(PAUSE_MAX);
        Ok(())
    }
}

impl Export {
    pub fn open(path: &Path, options: &Options) -> Opened {
        let fault = |why: String| SourceError::Open { path: path.to_path_buf(), why };
        let uri = path.to_str().unwrap_or_default().parse::<Uri>();
        let uri = uri.map_err(|why| fault(why.to_string()))?;
        Export::reach(path, uri, None, "NBD export", options)
    }

    /// What another protocol has, through a server of our own.
    pub fn by_protocol(path: &Path, what: &'static str, options: &Options) -> Opened {
        let fault = |why: &str| SourceError::Open { path: path.to_path_buf(), why: why.to_owned() };
        let address = path.to_str().ok_or_else(|| fault("an address is text"))?;
        let authority = address.split_once("://").map_or("", |(_, rest)| rest);
        let user =
            authority.split('/').next().and_then(|part| part.rsplit_once('@')).map_or("", |(user, _)| user);
        if user.contains([':', '%']) {
            return Err(fault(
                "a password in an address is seen by all users of this machine: use keys, or a target without one",
            ));
        }
        Export::served(path, Serves::Address(address.to_owned()), what, options)
    }

    /// The disk that lies in a file of this machine, by a driver of QEMU.
    pub fn of_file(
        path: &Path,
        driver: &'static str,
        options: &Options,
    ) -> Result<Box<dyn Medium>, SourceError> {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let opened = Export::served(path, Serves::File { driver, path: absolute }, "image", options)?;
        let gone = "it was there, and is not any more".to_owned();
        opened.ok_or_else(|| SourceError::Open { path: path.to_path_buf(), why: gone })
    }

    fn served(path: &Path, serves: Serves, what: &'static str, options: &Options) -> Opened {
        let fault = |why: String| SourceError::Open { path: path.to_path_buf(), why };
        let helper = Helper::new(serves).map_err(|why| fault(format!("no place for a socket: {why}")))?;
        let socket = helper.socket().to_string_lossy().into_owned();
        let uri = Uri { transport: Transport::Unix { socket }, export: String::new(), tls: None };
        Export::reach(path, uri, Some(helper), what, options)
    }

    fn reach(path: &Path, uri: Uri, helper: Option<Helper>, what: &'static str, options: &Options) -> Opened {
        let fault = |why: String| SourceError::Open { path: path.to_path_buf(), why };
        let mut attempts = Attempts::new(options.patience);
        let link = loop {
            match connect(helper.as_ref(), &uri, attempts.time()) {
                Ok(link) => break link,
                Err(NoLink::NotThere) => return Ok(None),
                Err(NoLink::Final(why)) => return Err(fault(why)),
                Err(NoLink::Again(why)) => attempts.wait(why).map_err(|why| fault(why.to_string()))?,
            }
        };
        let info = &link.session.info;
        let (size, block) = (info.size, u64::from(info.block_min.max(1)));
        let most = info.block_max.min(READ_BYTES_MAX).max(info.block_min);
        let link = Mutex::new(Some(link));
        let (patience, zeros) = (options.patience, Mutex::default());
        Ok(Some(Box::new(Export { uri, helper, what, size, block, most, patience, link, zeros })))
    }

    fn linked(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, or a new one. `not`: this one is of no use any more.
    fn link(&self, not: Option<&Arc<Link>>, time: Duration) -> Result<Arc<Link>, NoLink> {
        let mut linked = self.linked();
        if let Some(link) = linked.as_ref().filter(|link| not.is_none_or(|not| !Arc::ptr_eq(link, not))) {
            return Ok(link.clone());
        }
        *linked = None;
        let link = connect(self.helper.as_ref(), &self.uri, time).map_err(|why| match why {
            // It opened before: what it serves may come back.
            NoLink::Final(why) if self.helper.is_some() => NoLink::Again(why),
            other => other,
        })?;
        let size = link.session.info.size;
        if size != self.size {
            link.leave();
            return Err(NoLink::Final(format!(
                "it was changed while it was read: it had {} bytes and has {size}",
                self.size
            )));
        }
        Ok(linked.insert(link).clone())
    }

    fn ask(&self, command: Command, offset: u64, length: u32) -> io::Result<Answered> {
        let mut attempts = Attempts::new(self.patience);
        let mut broken: Option<Arc<Link>> = None;
        loop {
            let why = match self.link(broken.as_ref(), attempts.time()) {
                Ok(link) => match link.ask(command, offset, length, attempts.time()) {
                    // It is about to end, and another may come in its place.
                    Ok(Answered { error: Some(Errno::Shutdown), .. }) => {
                        broken = Some(link);
                        "the server is shutting down".to_owned()
                    }
                    Ok(answered) => return Ok(answered),
                    Err(why) => {
                        broken = Some(link);
                        why.to_string()
                    }
                },
                Err(NoLink::Again(why)) => why,
                Err(NoLink::Final(why)) => return Err(io::Error::other(why)),
                Err(NoLink::NotThere) => "the server has no export of this name any more".to_owned(),
            };
            attempts.wait(why).map_err(io::Error::other)?;
        }
    }

    /// Whole blocks of the export.
    fn read_blocks(&self, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        Ok(self.ask(Command::Read, offset, length)?.done()?.bytes)
    }

    /// Where the server says zeros are, in the window that a byte is in.
    fn window(&self, offset: u64) -> io::Result<Option<Window>> {
        let start = offset / WINDOW_BYTES * WINDOW_BYTES;
        let known = || self.zeros.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = known().iter().find(|window| window.start == start) {
            return Ok(Some(window.clone()));
        }
        if self
            .link(None, self.patience.min(SILENT))
            .ok()
            .and_then(|link| link.session.base_allocation)
            .is_none()
        {
            return Ok(None);
        }
        let (end, mut at, mut zeros) = ((start + WINDOW_BYTES).min(self.size), start, Vec::new());
        for _ in 0..ANSWERS_MAX {
            let Ok(length) = u32::try_from(end - at) else { break };
            if length == 0 {
                break;
            }
            let Answered { error, status, .. } = self.ask(Command::BlockStatus, at, length)?;
            // Who cannot say has data.
            if error.is_some() || status.is_empty() {
                break;
            }
            at = note(at, end, &status, &mut zeros);
        }
        let window = Window { start, zeros: Arc::new(zeros) };
        let mut known = known();
        known.push_back(window.clone());
        if known.len() > WINDOWS_KEPT {
            known.pop_front();
        }
        Ok(Some(window))
    }
}

/// A server of our own is started anew for it: what is pending in it stays so, whoever connects.
fn connect(helper: Option<&Helper>, uri: &Uri, time: Duration) -> Result<Arc<Link>, NoLink> {
    match helper {
        Some(helper) => helper.link(uri, time),
        None => Link::open(uri, Access::Read, time),
    }
}

/// Adds what is zeros of a run of descriptors; where they end.
fn note(start: u64, end: u64, status: &[Descriptor], zeros: &mut Vec<Range<u64>>) -> u64 {
    let mut at = start;
    for Descriptor { length, flags } in status {
        let to = at.saturating_add(u64::from(*length)).min(end);
        // A hole may read as anything.
        if flags.contains(StateFlags::ZERO) && to > at {
            match zeros.last_mut().filter(|last| last.end == at) {
                Some(last) => last.end = to,
                None => zeros.push(at..to),
            }
        }
        at = to;
    }
    at
}

/// How far from `offset` on nothing but zeros is, or nothing that is known to be zeros.
fn run(zeros: &[Range<u64>], offset: u64, end: u64) -> (bool, u64) {
    let next = zeros.partition_point(|range| range.end <= offset);
    match zeros.get(next) {
        Some(range) if range.start <= offset => (true, range.end.min(end)),
        Some(range) => (false, range.start.min(end)),
        None => (false, end),
    }
}

impl Medium for Export {
    fn size(&self) -> u64 {
        self.size
    }

    fn what(&self) -> &'static str {
        self.what
    }

    fn read_at(&self, offset: u64, room: &mut [u8]) -> io::Result<usize> {
        let mut end = self.size.min(offset.saturating_add(room.len() as u64));
        if offset >= end {
            return Ok(0);
        }
        if let Some(window) = self.window(offset)? {
            let (is_zeros, to) = run(&window.zeros, offset, end.min(window.start + WINDOW_BYTES));
            if is_zeros {
                let len = usize::try_from(to - offset).map_or(room.len(), |len| len.min(room.len()));
                room[..len].fill(0);
                return Ok(len);
            }
            // A short run of zeros is less than another question.
            end = if to - offset >= u64::from(READ_BYTES_MAX) / 16 { to } else { end };
        }
        let first = offset / self.block * self.block;
        let last = end.next_multiple_of(self.block).min(self.size).min(first + u64::from(self.most));
        let length = u32::try_from(last - first).unwrap_or(self.most);
        let bytes = self.read_blocks(first, length)?;
        let from = usize::try_from(offset - first).unwrap_or_default();
        let len = bytes.len().saturating_sub(from).min(room.len());
        room[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }

    fn sector_bytes(&self) -> usize {
        usize::try_from(self.block).map_or(512, |block| block.max(512))
    }

    fn identity(&self) -> String {
        let export = &self.uri.export;
        if export.is_empty() { "the default export".to_owned() } else { format!("export {export}") }
    }

    /// A server says nothing of its export but the size: to who connects.
    fn changed(&self) -> Option<String> {
        match Link::open(&self.uri, Access::Read, self.patience.min(SILENT)) {
            Ok(link) => {
                let size = link.session.info.size;
                link.leave();
                (size != self.size).then(|| format!("it had {} bytes and has {size}", self.size))
            }
            // Some serve one at a time: who has the connection that it was read by has the export.
            Err(NoLink::Again(_)) => match self.ask(Command::Read, 0, u32::try_from(self.block).unwrap_or(1))
            {
                Ok(_) => None,
                Err(why) => Some(format!("it cannot be looked at any more ({why})")),
            },
            Err(NoLink::Final(why)) => Some(format!("it cannot be looked at any more ({why})")),
            Err(NoLink::NotThere) => Some("the server has no export of this name any more".to_owned()),
        }
    }

    fn readers(&self) -> usize {
        IN_FLIGHT
    }

    fn has_neighbours(&self) -> bool {
        false
    }

    fn is_remote(&self) -> bool {
        true
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_where_the_server_says_and_nowhere_else() {
        let (data, zero, hole) = (StateFlags::EMPTY, StateFlags::ZERO, StateFlags::HOLE);
        let of = |length: u32, flags| Descriptor { length, flags };
        let mut zeros = Vec::new();
        let said = [of(100, data), of(50, zero | hole), of(50, zero), of(10, hole), of(u32::MAX, zero)];
        assert_eq!(note(1000, 1300, &said, &mut zeros), 1300);
        assert_eq!(zeros, [1100..1200, 1210..1300]);
        assert_eq!(note(1300, 1400, &[of(100, zero)], &mut zeros), 1400);
        assert_eq!(zeros, [1100..1200, 1210..1400]);
        assert_eq!(run(&zeros, 1000, 1400), (false, 1100));
        assert_eq!(run(&zeros, 1100, 1400), (true, 1200));
        assert_eq!(run(&zeros, 1199, 1400), (true, 1200));
        assert_eq!(run(&zeros, 1200, 1205), (false, 1205));
        assert_eq!(run(&zeros, 1390, 1395), (true, 1395));
        assert_eq!(run(&[0..10], 10, 20), (false, 20));
    }
}
