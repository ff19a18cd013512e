//! HTTP servers of files: lighttpd and Python's, which others wrote, and one of our own that misbehaves as it
//! is told to.
//! Invariant: each has a port of its own on loopback, is ready when its constructor returns, and ends with
//! it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::process::Process;
use crate::rivals::free_port;
use crate::scratch::Scratch;
use crate::{authority, tools, wait};

/// A server of somebody else's over a directory.
#[derive(Debug)]
pub struct Site {
    pub process: Process,
    pub url: String,
    _scratch: Scratch,
}

impl Site {
    #[track_caller]
    pub fn lighttpd(directory: &Path) -> Self {
        Self::lighttpd_with(directory, Scratch::new(), "", "http")
    }

    /// By HTTPS; and the certificate of who vouches for it.
    #[track_caller]
    pub fn lighttpd_tls(directory: &Path) -> (Self, PathBuf) {
        let scratch = Scratch::new();
        let both = authority::certify(&scratch);
        let pem = scratch.file("both.pem", &both).display().to_string();
        let more = format!(
            "server.modules += (\"mod_openssl\")\nssl.engine = \"enable\"\nssl.pemfile = \"{pem}\"\n"
        );
        let authority = scratch.join(authority::AUTHORITY);
        (Self::lighttpd_with(directory, scratch, &more, "https"), authority)
    }

    #[track_caller]
    fn lighttpd_with(directory: &Path, scratch: Scratch, more: &str, scheme: &str) -> Self {
        let port = free_port();
        let text = format!(
            "server.document-root = \"{}\"\nserver.port = {port}\nserver.bind = \"127.0.0.1\"\n{more}",
            directory.display()
        );
        let mut command = tools::command("lighttpd");
        command.arg("-D").arg("-f").arg(scratch.file("lighttpd.conf", text.as_bytes()));
        Self::on(port, "lighttpd", command, scratch, scheme)
    }

    /// Python's `http.server`, which knows no ranges.
    #[track_caller]
    pub fn python(directory: &Path) -> Self {
        let port = free_port();
        let mut command = tools::command("python3");
        command.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]).arg(directory);
        command.arg(port.to_string());
        Self::on(port, "http.server", command, Scratch::new(), "http")
    }

    fn on(port: u16, name: &str, command: std::process::Command, scratch: Scratch, scheme: &str) -> Self {
        let process = Process::start(name, command, scratch.path());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        wait::until(name, wait::SOON, || TcpStream::connect(address).is_ok());
        Self { process, url: format!("{scheme}://{address}"), _scratch: scratch }
    }
}

/// What a server of ours does otherwise than it should.
#[derive(Debug, Default)]
pub struct Manners {
    /// An answer breaks off behind so many bytes; 0: none does.
    pub breaks_off_after: AtomicUsize,
    /// So many requests are answered with 503 first.
    pub busy_for: AtomicUsize,
    /// It says that it takes ranges.
    pub says_ranges: AtomicBool,
    /// It sends no more, and keeps the connection.
    pub hangs: AtomicBool,
    /// The same for ranges from this byte on, but for the last MiB, which is looked at first; 0: none.
    pub hangs_from: AtomicU64,
    /// Connections are closed before they say anything.
    pub away: AtomicBool,
}

/// One file at every path that ends with its name, by a server of ours.
#[derive(Debug)]
pub struct Web {
    pub url: String,
    pub manners: Arc<Manners>,
    /// Ranges that were asked for.
    pub asked: Arc<Mutex<Vec<(u64, u64)>>>,
    file: Arc<Served>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Served {
    bytes: Mutex<Arc<Vec<u8>>>,
    version: AtomicU64,
    ended: AtomicBool,
}

impl Web {
    #[track_caller]
    pub fn serve(bytes: Vec<u8>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let manners = Arc::new(Manners::default());
        let bytes = Mutex::new(Arc::new(bytes));
        let file = Arc::new(Served { bytes, version: AtomicU64::new(1), ended: AtomicBool::new(false) });
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (to_file, to_manners, to_asked) = (file.clone(), manners.clone(), asked.clone());
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if to_file.ended.load(Ordering::Acquire) {
                    return;
                }
                let (file, manners, asked) = (to_file.clone(), to_manners.clone(), to_asked.clone());
                // It ends with its connection, which its client ends.
                std::thread::spawn(move || while answer(&stream, &file, &manners, &asked).is_some() {});
            }
        });
        let url = format!("http://{address}/disk.img");
        Self { url, manners, asked, file, address, accepting: Some(accepting) }
    }

    /// Another file stands there from now on.
    pub fn replace(&self, bytes: Vec<u8>) {
        *self.file.bytes.lock().expect("no server panicked") = Arc::new(bytes);
        self.file.version.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.file.ended.store(true, Ordering::Release);
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// Answers one request; `None` when the connection is to end.
fn answer(
    stream: &TcpStream,
    file: &Served,
    manners: &Manners,
    asked: &Mutex<Vec<(u64, u64)>>,
) -> Option<()> {
    let (mut range, mut lines) = (None, 0);
    for line in BufReader::with_capacity(1, stream).lines() {
        let line = line.ok()?.to_ascii_lowercase();
        lines += 1;
        if line.is_empty() {
            break;
        }
        if let Some((from, to)) = line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-')) {
            range = Some((from.parse::<u64>().ok()?, to.parse::<u64>().ok()? + 1));
        }
    }
    if lines == 0 || manners.away.load(Ordering::Acquire) {
        return None;
    }
    let mut stream = stream;
    let left = |count: &AtomicUsize| {
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok()
    };
    if left(&manners.busy_for) {
        stream.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n").ok()?;
        return Some(());
    }
    let version = file.version.load(Ordering::Acquire);
    let bytes = file.bytes.lock().ok()?.clone();
    let (from, to) = range?;
    let (from, to) = (from.min(bytes.len() as u64), to.min(bytes.len() as u64));
    asked.lock().ok()?.push((from, to));
    let accepts = if manners.says_ranges.load(Ordering::Acquire) { "Accept-Ranges: bytes\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 206 Partial\r\n{accepts}ETag: \"v{version}\"\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{}\r\n\r\n",
        to - from,
        to.saturating_sub(1),
        bytes.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    let is_last = from + (1 << 20) > bytes.len() as u64;
    let hangs_from = manners.hangs_from.load(Ordering::Acquire);
    while manners.hangs.load(Ordering::Acquire) || hangs_from > 0 && from >= hangs_from && !is_last {
        // Until the other end gives up.
        if stream.read(&mut [0]).unwrap_or(0) == 0 {
            return None;
        }
    }
    let part = &bytes[from as usize..to as usize];
    let limit = manners.breaks_off_after.load(Ordering::Acquire);
    if limit > 0 && part.len() > limit {
        stream.write_all(&part[..limit]).ok()?;
        return None;
    }
    stream.write_all(part).ok()
}
