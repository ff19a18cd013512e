//! A file that an HTTP or HTTPS server has, read by ranges over several connections.
//!
//! Owns: the address, the probe that tells whether ranges are honoured, connections that are kept, a read
//! that goes on where a connection broke, and finding that the file is another one meanwhile. Never: a
//! request other than GET, credentials, a cache, or in the clear what was asked for by HTTPS. Invariants:
//! no byte is given that did not come with the range that was asked for, of a file of the size, the ETag
//! and the time that it had when it was opened; a read ends when nothing came for as long as patience
//! lasts. Called by `raw`. Tests: below, `lab/tests/remote.rs`.

use crate::medium::{Medium, Opened};
use crate::tls::{self, NoTls};
use crate::{Options, SourceError, io_thread};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Reads at once, each over a connection of its own.
const CONNECTIONS: usize = 8;
/// Of one request: what is lost when its connection breaks is no more.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// A connection that gives nothing for so long is given up for another, if patience lasts longer.
const SILENT: Duration = Duration::from_secs(10);
/// Between attempts, doubled each time.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
const REDIRECTS_MAX: usize = 5;

/// `http://HOST[:PORT]/PATH[?QUERY]`, or `https://`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Url {
    is_tls: bool,
    /// Without brackets.
    host: String,
    port: u16,
    /// With its query; what no URL may have is percent-encoded.
    target: String,
}

/// What a server says of a file; another one where any of it is another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    etag: Option<String>,
    modified: Option<String>,
}

/// Why an attempt gave nothing, or not all.
enum Miss {
    /// Another may.
    Again(String),
    Final(String),
    NotThere,
}

#[derive(Debug)]
pub(crate) struct Remote(Arc<File>);

#[derive(Debug)]
struct File {
    url: Url,
    stamp: Stamp,
    patience: Duration,
    idle: Mutex<Vec<Connection>>,
}

type Connection = SendRequest<Empty<Bytes>>;

/// Why an address, or one that a server sends on to, is not asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UrlError {
    /// It is not of HTTP.
    Scheme,
    /// It has a user's name or password.
    Credentials,
    /// What stands where the server would be named.
    Server(String),
    /// The server sends on to this address, which cannot be asked.
    Moved(String, Box<UrlError>),
    /// It sends on from TLS to this address in the clear.
    Downgrade(String),
    /// It sends on to what is not a whole address.
    Relative(String),
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UrlError::Scheme => f.write_str("an address begins with http:// or https://"),
            UrlError::Credentials => f.write_str("names and passwords in an address are not sent"),
            UrlError::Server(text) => write!(f, "'{text}' is no HOST or HOST:PORT"),
            UrlError::Moved(to, why) => write!(f, "it is at {to} now, and {why}"),
            UrlError::Downgrade(to) => {
                write!(f, "it is at {to} now, in the clear: give that address if that will do")
            }
            UrlError::Relative(to) => write!(f, "it is said to be at {to} now: give that address"),
        }
    }
}

impl std::error::Error for UrlError {}

impl Url {
    fn parse(text: &str) -> Result<Url, UrlError> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let is_tls = scheme.eq_ignore_ascii_case("https");
        if !is_tls && !scheme.eq_ignore_ascii_case("http") {
            return Err(UrlError::Scheme);
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        if authority.contains('@') {
            return Err(UrlError::Credentials);
        }
        let bad = || UrlError::Server(authority.to_owned());
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| bad())?),
            _ => (authority, Url::usual_port(is_tls)),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if bare.is_empty() || port == 0 || !bare.chars().all(plain) {
            return Err(bad());
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Url { is_tls, host: bare.to_owned(), port, target: encoded(&target) })
    }

    const fn usual_port(is_tls: bool) -> u16 {
        if is_tls { 443 } else { 80 }
    }

    /// Where a redirection leads.
    fn follow(&self, location: &str) -> Result<Url, UrlError> {
        match location.strip_prefix('/') {
            Some(rest) if !rest.starts_with('/') => Ok(Url { target: encoded(location), ..self.clone() }),
            _ if location.contains("://") => match Url::parse(location) {
                Ok(url) if self.is_tls && !url.is_tls => Err(UrlError::Downgrade(location.to_owned())),
                followed => followed.map_err(|why| UrlError::Moved(location.to_owned(), Box::new(why))),
            },
            _ => Err(UrlError::Relative(location.to_owned())),
        }
    }

    fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == Url::usual_port(self.is_tls) { host } else { format!("{host}:{}", self.port) }
    }
}

/// With what no URL may have percent-encoded: names of files have spaces.
fn encoded(target: &str) -> String {
    let mut text = String::new();
    for byte in target.bytes() {
        if byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stamp { size, etag, modified } = self;
        write!(f, "{size} bytes")?;
        etag.iter().try_for_each(|etag| write!(f, ", ETag {etag}"))?;
        modified.iter().try_for_each(|modified| write!(f, ", modified {modified}"))
    }
}

impl Stamp {
    /// Of the file that a part was sent of.
    fn of(headers: &HeaderMap, size: u64) -> Stamp {
        Stamp { size, etag: text(headers, header::ETAG), modified: text(headers, header::LAST_MODIFIED) }
    }

    /// What a server may compare itself. Weak tags say too little for that.
    fn validator(&self) -> Option<&str> {
        let strong = self.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        strong.or(self.modified.as_deref())
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// `bytes FROM-TO/SIZE`: the first byte, the one behind the last, and the size where it is said.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64, Option<u64>)> {
    let said = text(headers, header::CONTENT_RANGE)?;
    let (range, size) = said.strip_prefix("bytes ")?.split_once('/')?;
    let (from, to) = range.split_once('-')?;
    let (from, to): (u64, u64) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
    (from <= to).then_some(())?;
    Some((from, to.checked_add(1)?, size.trim().parse().ok()))
}

/// What is said of a reply that is no part of a file.
fn refusal(status: StatusCode) -> Miss {
    let said = format!("the server answers {status}");
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Miss::NotThere,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Miss::Final(format!("{said}: it wants to know who asks, and credentials are not sent"))
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Miss::Again(said),
        _ if status.is_server_error() => Miss::Again(said),
        _ => Miss::Final(said),
    }
}

impl Remote {
    pub fn open(path: &Path, options: &Options) -> Opened {
        let fault = |why: String| SourceError::Open { path: path.to_path_buf(), why };
        let mut url = Url::parse(path.to_str().unwrap_or_default()).map_err(|why| fault(why.to_string()))?;
        let patience = options.patience;
        for _ in 0..=REDIRECTS_MAX {
            let asked = url.clone();
            let probed = io_thread::wait(async move { probe(&asked, patience).await });
            match probed.map_err(|e| fault(e.to_string()))? {
                Ok(Probed::File(stamp)) => {
                    let file = File { url, stamp, patience, idle: Mutex::default() };
                    return Ok(Some(Box::new(Remote(Arc::new(file)))));
                }
                Ok(Probed::Elsewhere(location)) => {
                    url = url.follow(&location).map_err(|why| fault(why.to_string()))?
                }
                Err(Miss::NotThere) => return Ok(None),
                Err(Miss::Again(why) | Miss::Final(why)) => return Err(fault(why)),
            }
        }
        Err(fault(format!(
            "more than {REDIRECTS_MAX} redirections, the last to {}://{}{}",
            if url.is_tls { "https" } else { "http" },
            url.authority(),
            url.target
        )))
    }
}

enum Probed {
    File(Stamp),
    Elsewhere(String),
}

/// Asks for the first byte: who honours ranges answers with that, whatever else it says of itself.
async fn probe(url: &Url, patience: Duration) -> Result<Probed, Miss> {
    let mut pauses = Pauses::new(patience);
    loop {
        match probe_once(url, patience).await {
            Err(Miss::Again(why)) => pauses.wait(why).await?,
            other => return other,
        }
    }
}

async fn probe_once(url: &Url, patience: Duration) -> Result<Probed, Miss> {
    let mut connection = connect(url, patience).await?;
    let reply = ask(&mut connection, url, (0, 1), None, patience).await?;
    let (status, headers) = (reply.status(), reply.headers());
    match status {
        StatusCode::PARTIAL_CONTENT => match content_range(headers) {
            Some((0, 1, Some(size))) => {
                check_encoding(headers)?;
                Ok(Probed::File(Stamp::of(headers, size)))
            }
            Some((0, 1, None)) => Err(Miss::Final("the server does not say how large it is".to_owned())),
            _ => Err(Miss::Final("the server answers with another range than it was asked for".to_owned())),
        },
        // Of an empty file there is no first byte.
        StatusCode::RANGE_NOT_SATISFIABLE => Ok(Probed::File(Stamp::of(headers, 0))),
        StatusCode::OK if text(headers, header::CONTENT_LENGTH).as_deref() == Some("0") => {
            Ok(Probed::File(Stamp::of(headers, 0)))
        }
        StatusCode::OK => Err(Miss::Final(
            "the server gives files as a whole only (it answers a request for a range with all of it): fetch it \
             first (`curl -O`), or serve it by another"
                .to_owned(),
        )),
        _ if status.is_redirection() => match text(headers, header::LOCATION) {
            Some(location) => Ok(Probed::Elsewhere(location)),
            None => Err(refusal(status)),
        },
        _ => Err(refusal(status)),
    }
}

/// What was compressed on the way has other bytes.
fn check_encoding(headers: &HeaderMap) -> Result<(), Miss> {
    match text(headers, header::CONTENT_ENCODING).filter(|how| how != "identity") {
        Some(how) => {
            Err(Miss::Final(format!("the server sends it compressed ({how}), though it was not asked to")))
        }
        None => Ok(()),
    }
}

async fn connect(url: &Url, patience: Duration) -> Result<Connection, Miss> {
    let broken = |why: &dyn fmt::Display| Miss::Again(format!("no connection to {}: {why}", url.authority()));
    let connecting = async {
        let stream = TcpStream::connect((url.host.as_str(), url.port)).await.map_err(|why| broken(&why))?;
        // Only a matter of latency.
        let _ = stream.set_nodelay(true);
        if !url.is_tls {
            return begin(stream).await.map_err(|why| broken(&why));
        }
        match tls::connect(stream, &url.host).await {
            Ok(stream) => begin(stream).await.map_err(|why| broken(&why)),
            Err(NoTls::Broken(why)) => Err(broken(&why)),
            Err(NoTls::NotBelieved(why)) => Err(Miss::Final(why)),
        }
    };
    let in_time = timeout(patience.min(SILENT), connecting).await;
    in_time.unwrap_or_else(|_| Err(Miss::Again(format!("no connection to {} in time", url.authority()))))
}

async fn begin<S>(stream: S) -> hyper::Result<Connection>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the sender; its errors reach whoever waits for an answer.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(requests)
}

/// The head of an answer to a question for the bytes from `range.0` on, to the one before `range.1`.
async fn ask(
    connection: &mut Connection,
    url: &Url,
    range: (u64, u64),
    validator: Option<&str>,
    patience: Duration,
) -> Result<Response<Incoming>, Miss> {
    let mut request = Request::get(&url.target)
        .header(header::HOST, url.authority())
        .header(header::USER_AGENT, concat!("cheetah/", env!("CARGO_PKG_VERSION")))
        .header(header::ACCEPT_ENCODING, "identity")
        .header(header::RANGE, format!("bytes={}-{}", range.0, range.1 - 1));
    if let Some(validator) = validator {
        request = request.header(header::IF_RANGE, validator);
    }
    let request = request.body(Empty::new()).map_err(|why| Miss::Final(why.to_string()))?;
    match timeout(patience.min(SILENT), connection.send_request(request)).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(why)) => Err(Miss::Again(format!("the connection broke: {why}"))),
        Err(_) => Err(Miss::Again("the server does not answer".to_owned())),
    }
}

/// Attempts, and how long nothing may come of them.
struct Pauses {
    patience: Duration,
    next: Duration,
    until: Instant,
}

impl Pauses {
    fn new(patience: Duration) -> Pauses {
        Pauses { patience, next: PAUSE, until: Instant::now() + patience }
    }

    /// Something came.
    fn reset(&mut self) {
        *self = Pauses::new(self.patience);
    }

    async fn wait(&mut self, why: String) -> Result<(), Miss> {
        if Instant::now() + self.next > self.until {
            let seconds = self.patience.as_secs_f64();
            return Err(Miss::Final(format!("nothing came in {seconds} s, at last: {why}")));
        }
        sleep(self.next).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
        Ok(())
    }
}

impl File {
    /// All of these bytes, or why not.
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Miss> {
        let mut bytes = Vec::with_capacity(len);
        let mut pauses = Pauses::new(self.patience);
        while bytes.len() < len {
            let had = bytes.len();
            let came = self.read_once(offset, len, &mut bytes).await;
            if bytes.len() > had {
                pauses.reset();
            }
            match came {
                Err(Miss::Again(why)) => pauses.wait(why).await?,
                Err(Miss::NotThere) => {
                    return Err(Miss::Final("the server does not have it any more".to_owned()));
                }
                other => other?,
            }
        }
        Ok(bytes)
    }

    /// What one answer gives of what is wanted still.
    async fn read_once(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> Result<(), Miss> {
        let from = offset + bytes.len() as u64;
        let to = offset + len as u64;
        let kept = self.kept();
        let mut connection = match kept {
            Some(connection) => connection,
            None => connect(&self.url, self.patience).await?,
        };
        let (validator, patience) = (self.stamp.validator(), self.patience);
        let reply = ask(&mut connection, &self.url, (from, to), validator, patience).await?;
        self.check(reply.status(), reply.headers(), from)?;
        let mut body = reply.into_body();
        while bytes.len() < len {
            let frame = timeout(patience.min(SILENT), body.frame()).await;
            let frame = frame.map_err(|_| Miss::Again("the server stopped sending".to_owned()))?;
            // It may give less than it was asked for; the rest is asked for again.
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|why| Miss::Again(format!("the connection broke: {why}")))?;
            if let Some(data) = frame.data_ref() {
                bytes.extend_from_slice(&data[..data.len().min(len - bytes.len())]);
            }
        }
        if offset + (bytes.len() as u64) == from {
            return Err(Miss::Again("the server sent a range without bytes".to_owned()));
        }
        // Kept where nothing of the answer is left.
        if let Ok(None) = timeout(PAUSE, body.frame()).await {
            self.keep(connection);
        }
        Ok(())
    }

    /// Whether a reply is a part, from this byte on, of the file that was opened.
    fn check(&self, status: StatusCode, headers: &HeaderMap, from: u64) -> Result<(), Miss> {
        match status {
            StatusCode::PARTIAL_CONTENT => {}
            // As `If-Range` has it: all of another one.
            StatusCode::OK => {
                let size = text(headers, header::CONTENT_LENGTH).and_then(|size| size.parse().ok());
                let is = Stamp::of(headers, size.unwrap_or(self.stamp.size));
                return match is == self.stamp {
                    true => Err(Miss::Again("the server answers with all of the file".to_owned())),
                    false => Err(self.changed_to(&is)),
                };
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(Miss::Final(format!(
                    "it ended before byte {from}, though it had {} bytes when it was opened: it was changed meanwhile",
                    self.stamp.size
                )));
            }
            _ => return Err(refusal(status)),
        }
        check_encoding(headers)?;
        let Some((first, _, size)) = content_range(headers) else {
            return Err(Miss::Final("the server does not say which range it answers with".to_owned()));
        };
        if first != from {
            return Err(Miss::Final(format!(
                "the server answers with byte {first} on, asked for byte {from} on"
            )));
        }
        let is = Stamp::of(headers, size.unwrap_or(self.stamp.size));
        if is == self.stamp { Ok(()) } else { Err(self.changed_to(&is)) }
    }

    fn changed_to(&self, is: &Stamp) -> Miss {
        Miss::Final(format!("it was changed while it was read: it was {}, and is {is}", self.stamp))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle();
        idle.retain(|connection| !connection.is_closed() && connection.is_ready());
        idle.pop()
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < CONNECTIONS {
            idle.push(connection);
        }
    }
}

impl Medium for Remote {
    fn size(&self) -> u64 {
        self.0.stamp.size
    }

    fn what(&self) -> &'static str {
        "raw image by HTTP"
    }

    fn read_at(&self, offset: u64, room: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size().saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = room.len().min(left).min(REQUEST_BYTES_MAX);
        if len == 0 {
            return Ok(0);
        }
        let file = self.0.clone();
        match io_thread::wait(async move { file.read(offset, len).await })? {
            Ok(bytes) => {
                room[..len].copy_from_slice(&bytes);
                Ok(len)
            }
            Err(Miss::Again(why) | Miss::Final(why)) => Err(io::Error::other(why)),
            Err(Miss::NotThere) => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    fn identity(&self) -> String {
        let Stamp { etag, modified, .. } = &self.0.stamp;
        let etag = etag.iter().map(|etag| format!("ETag {etag}"));
        let modified = modified.iter().map(|modified| format!("modified {modified}"));
        let all: Vec<String> = etag.chain(modified).collect();
        if all.is_empty() { "neither ETag nor time".to_owned() } else { all.join(", ") }
    }

    fn changed(&self) -> Option<String> {
        let file = self.0.clone();
        let probed = io_thread::wait(async move { probe(&file.url, file.patience).await });
        let why = match probed {
            Ok(Ok(Probed::File(is))) if is == self.0.stamp => return None,
            Ok(Ok(Probed::File(is))) if is.size != self.size() => {
                return Some(format!("it had {} bytes and has {}", self.size(), is.size));
            }
            Ok(Ok(Probed::File(is))) => return Some(format!("it was {}, and is {is}", self.0.stamp)),
            Ok(Ok(Probed::Elsewhere(location))) => format!("it is at {location} now"),
            Ok(Err(Miss::NotThere)) => "the server does not have it any more".to_owned(),
            Ok(Err(Miss::Again(why) | Miss::Final(why))) => why,
            Err(why) => why.to_string(),
        };
        Some(format!("it cannot be looked at any more ({why})"))
    }

    fn readers(&self) -> usize {
        CONNECTIONS
    }

    fn is_remote(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<(String, u16, String), UrlError> {
        Url::parse(text).map(|url| (url.host, url.port, url.target))
    }

    #[test]
    fn addresses_are_taken_apart() {
        let is = |text: &str, host: &str, port: u16, target: &str| {
            assert_eq!(url(text), Ok((host.to_owned(), port, target.to_owned())), "{text}");
        };
        is("http://host/a/b.E01", "host", 80, "/a/b.E01");
        is("HTTP://10.0.0.1:8080", "10.0.0.1", 8080, "/");
        is("http://[::1]:81/x?y=z#part", "::1", 81, "/x?y=z");
        is("http://[::1]?q", "::1", 80, "/?q");
        is("http://h/Windows 7.vmdk", "h", 80, "/Windows%207.vmdk");
        is("http://h/a%20b", "h", 80, "/a%20b");
        for bad in
            ["http:///x", "http://h:0/", "http://h:x/", "http://a b/", "http://me:secret@h/", "ftp://h/x"]
        {
            assert!(url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn redirections_are_followed_where_they_can_be() {
        let from = Url::parse("http://h:81/a").expect("an address");
        let to =
            |location: &str| from.follow(location).map(|url| format!("{}{}", url.authority(), url.target));
        assert_eq!(to("/b c"), Ok("h:81/b%20c".to_owned()));
        assert_eq!(to("http://other/b"), Ok("other/b".to_owned()));
        assert_eq!(to("https://other/b"), Ok("other/b".to_owned()));
        let sealed = Url::parse("https://h/a").expect("an address");
        let clear = sealed.follow("http://other/b").map(drop);
        assert!(clear == Err(UrlError::Downgrade("http://other/b".to_owned())));
        assert!(to("b").is_err() && to("//other/b").is_err());
    }

    #[test]
    fn a_range_is_what_it_says() {
        let range = |said: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_RANGE, said.parse().expect("a header"));
            content_range(&headers)
        };
        assert_eq!(range("bytes 0-0/1000"), Some((0, 1, Some(1000))));
        assert_eq!(range("bytes 7-9/*"), Some((7, 10, None)));
        for bad in ["bytes */1000", "bytes 9-7/10", "0-0/1", "bytes 0/1", &format!("bytes 0-{}/1", u64::MAX)]
        {
            assert_eq!(range(bad), None, "{bad}");
        }
    }
}
