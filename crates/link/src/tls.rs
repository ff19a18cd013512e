//! TLS to servers that others wrote: whom to believe, and the two ends of a stream's records.
//!
//! Owns: the authorities of this machine (or of `SSL_CERT_FILE` and `SSL_CERT_DIR`), directories of
//! certificates as libnbd has them, and what is sealed and opened. Never: the socket, a certificate that is
//! not looked at, or TLS before 1.2. Invariants: what was sealed is sent in the order of its records, which
//! is the caller's to keep; what the server has to be answered (a new key) goes before the next request.
//! Called by `Link`, `source::tls` (authorities). Tests: below, `lab/tests/remote_tls.rs`.

use cheetah_nbd::uri::{Tls, Transport, Uri};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Sealed at once.
const SEALED_BYTES: usize = 256 << 10;
/// Received at once.
const ARRIVED_BYTES: usize = 64 << 10;
/// Where libnbd looks as well, from the user's home on and then from the root.
const AT_HOME: [&str; 2] = [".pki/libnbd", ".config/pki/libnbd"];
const FOR_ALL: &str = "/etc/pki/libnbd";

/// Why there is no TLS.
#[derive(Clone, Debug)]
pub enum NoTls {
    /// This machine believes no authority, and the first thing that was in the way.
    NoAuthority(Option<String>),
    /// A file of certificates cannot be used.
    File(PathBuf, String),
    /// It is neither a name nor an address.
    Name(String),
    /// Nobody vouches for the server, or for this machine's clock.
    NotBelieved(String),
    /// The server does not let in who shows this certificate, or none.
    NotLetIn(String),
    /// What is left of it.
    Other(rustls::Error),
}

impl fmt::Display for NoTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoTls::NoAuthority(why) => {
                let why = why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
                write!(
                    f,
                    "this machine believes no authority{why}: install ca-certificates, or name a file with SSL_CERT_FILE"
                )
            }
            NoTls::File(path, why) => write!(f, "{}: {why}", path.display()),
            NoTls::Name(name) => write!(f, "'{name}' is no name that a certificate has"),
            NoTls::NotBelieved(what) => write!(
                f,
                "the server's certificate is not good: {what} (tls-certificates=DIR names the authority to believe by \
                 its ca-cert.pem, tls-hostname=NAME whose certificate it is)"
            ),
            NoTls::NotLetIn(what) => write!(
                f,
                "the server does not let us in: {what} (tls-certificates=DIR names what to show it: client-cert.pem \
                 and client-key.pem)"
            ),
            NoTls::Other(why) => write!(f, "TLS failed: {why}"),
        }
    }
}

impl std::error::Error for NoTls {}

impl From<rustls::Error> for NoTls {
    fn from(why: rustls::Error) -> NoTls {
        match why {
            rustls::Error::InvalidCertificate(what) => NoTls::NotBelieved(what.to_string()),
            rustls::Error::AlertReceived(what) => NoTls::NotLetIn(format!("{what:?}")),
            other => NoTls::Other(other),
        }
    }
}

/// Whom this machine believes. Read once: there are more than a hundred.
///
/// # Errors
/// It believes nobody.
pub fn authorities() -> Result<Arc<RootCertStore>, NoTls> {
    static FOUND: OnceLock<Result<Arc<RootCertStore>, NoTls>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        match roots.add_parsable_certificates(found.certs) {
            (0, _) => Err(NoTls::NoAuthority(found.errors.first().map(ToString::to_string))),
            _ => Ok(Arc::new(roots)),
        }
    });
    found.clone()
}

/// Shows no certificate, and knows whether one was asked for: some servers end the connection without a word
/// then.
#[derive(Debug, Default)]
struct NothingToShow {
    asked: AtomicBool,
}

impl ResolvesClientCert for NothingToShow {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// A client's side that is yet to say its first word.
fn client(uri: &Uri, tls: &Tls, nothing: &Arc<NothingToShow>) -> Result<ClientConnection, NoTls> {
    let host = match (&tls.hostname, &uri.transport) {
        (Some(name), _) => name,
        (None, Transport::Tcp { host, .. }) => host,
        (None, Transport::Unix { .. }) => "localhost",
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|_| NoTls::Name(host.to_owned()))?;
    let directory = match &tls.certificates {
        Some(named) => Some(PathBuf::from(named)),
        None => usual_directory(),
    };
    let config = config(directory.as_deref(), nothing)?;
    let mut connection = ClientConnection::new(Arc::new(config), name)?;
    // What is given to it is taken out at once.
    connection.set_buffer_limit(None);
    Ok(connection)
}

fn usual_directory() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let own = home.into_iter().flat_map(|home| AT_HOME.map(|at| home.join(at)));
    own.chain([PathBuf::from(FOR_ALL)]).find(|directory| directory.is_dir())
}

/// As libnbd reads a directory: what is not there is not used, but for the directory itself.
fn config(directory: Option<&Path>, nothing: &Arc<NothingToShow>) -> Result<ClientConfig, NoTls> {
    let file = |name: &str| directory.map(|directory| directory.join(name)).filter(|path| path.exists());
    if let Some(missing) = directory.filter(|directory| !directory.is_dir()) {
        return Err(NoTls::File(missing.to_owned(), "there is no such directory of certificates".to_owned()));
    }
    let roots = match file("ca-cert.pem") {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&path)? {
                roots.add(certificate).map_err(unusable(&path))?;
            }
            Arc::new(roots)
        }
        None => authorities()?,
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
    let verifier: Arc<dyn ServerCertVerifier> = match file("ca-crl.pem") {
        Some(path) => {
            let lists: Result<Vec<_>, _> =
                CertificateRevocationListDer::pem_file_iter(&path).and_then(Iterator::collect);
            let verifier = verifier.with_crls(lists.map_err(unusable(&path))?);
            let verifier = verifier.only_check_end_entity_revocation().allow_unknown_revocation_status();
            verifier.build().map_err(unusable(&path))?
        }
        None => verifier.build().map_err(|why| NoTls::NotBelieved(why.to_string()))?,
    };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    // The verifier is rustls's own, with what the directory has.
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let Some(path) = file("client-cert.pem") else {
        return Ok(builder.with_client_cert_resolver(nothing.clone()));
    };
    let chain = certificates(&path)?;
    let path = path.with_file_name("client-key.pem");
    let key = PrivateKeyDer::from_pem_file(&path).map_err(unusable(&path))?;
    builder.with_client_auth_cert(chain, key).map_err(unusable(&path))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, NoTls> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match all {
        Ok(all) if all.is_empty() => Err(NoTls::File(path.to_owned(), "it holds no certificate".to_owned())),
        other => other.map_err(unusable(path)),
    }
}

fn unusable<E: fmt::Display>(path: &Path) -> impl FnOnce(E) -> NoTls {
    move |why| NoTls::File(path.to_owned(), format!("it cannot be used: {why}"))
}

/// What TLS makes of a stream: plain on this side, records on the other.
#[derive(Debug)]
pub(crate) struct Records {
    connection: Mutex<ClientConnection>,
    nothing: Arc<NothingToShow>,
    /// What came and is not opened yet. Locked by who receives, before `connection`.
    arrived: Mutex<Arrived>,
}

#[derive(Debug)]
struct Arrived {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Records {
    /// Nothing is said yet.
    pub(crate) fn new(uri: &Uri, tls: &Tls) -> Result<Records, NoTls> {
        let nothing = Arc::default();
        let connection = Mutex::new(client(uri, tls, &nothing)?);
        let arrived = Mutex::new(Arrived { bytes: vec![0; ARRIVED_BYTES], from: 0, to: 0 });
        Ok(Records { connection, nothing, arrived })
    }

    /// What an end of the connection before the first plain byte means.
    pub(crate) fn ended_at_once(&self, why: io::Error) -> io::Error {
        let ended = matches!(why.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset);
        match ended && self.nothing.asked.load(Ordering::Relaxed) {
            true => {
                io::Error::other(NoTls::NotLetIn("it asks for a certificate, and was shown none".to_owned()))
            }
            false => why,
        }
    }

    fn connection(&self) -> MutexGuard<'_, ClientConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says and hears what comes before the first plain byte.
    pub(crate) fn begin(
        &self,
        mut send: impl FnMut(&[u8]) -> io::Result<()>,
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let opened = self.open(&mut arrived);
            // Also what it thinks of the server, before that is an error here.
            let sent = self.sealed(&[]).and_then(|sealed| send(&sealed));
            opened.and(sent)?;
            if !self.connection().is_handshaking() {
                return Ok(());
            }
            arrived.fill(&mut receive)?;
        }
    }

    /// Hands out the records that `plain` makes, one part after another.
    pub(crate) fn send(&self, plain: &[u8], mut send: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        plain.chunks(SEALED_BYTES).try_for_each(|part| send(&self.sealed(part)?))
    }

    fn sealed(&self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let mut sealed = Vec::with_capacity(plain.len() + plain.len() / 64 + 64);
        let mut connection = self.connection();
        connection.writer().write_all(plain)?;
        while connection.wants_write() {
            connection.write_tls(&mut sealed)?;
        }
        Ok(sealed)
    }

    /// Plain bytes, at least one; none when the server said that it is done.
    pub(crate) fn receive(
        &self,
        room: &mut [u8],
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let mut filled = 0;
        loop {
            let read = self.connection().reader().read(&mut room[filled..]);
            match read {
                Ok(0) => return Ok(filled),
                Ok(count) => filled += count,
                Err(why) if why.kind() != ErrorKind::WouldBlock => return Err(why),
                Err(_) if arrived.from < arrived.to => self.open(&mut arrived)?,
                Err(_) if filled > 0 => return Ok(filled),
                Err(_) => arrived.fill(&mut receive)?,
            }
        }
    }

    /// Takes as much of what came as there is room for behind it.
    fn open(&self, arrived: &mut Arrived) -> io::Result<()> {
        let mut connection = self.connection();
        while arrived.from < arrived.to {
            let mut rest = &arrived.bytes[arrived.from..arrived.to];
            let before = rest.len();
            connection.read_tls(&mut rest)?;
            arrived.from += before - rest.len();
            let state = connection.process_new_packets().map_err(|why| io::Error::other(NoTls::from(why)))?;
            if state.plaintext_bytes_to_read() > 0 {
                break;
            }
        }
        Ok(())
    }
}

impl Arrived {
    fn fill(&mut self, receive: &mut impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<()> {
        (self.from, self.to) = (0, receive(&mut self.bytes)?);
        match self.to {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let why =
            config(Some(Path::new("/nowhere")), &Arc::default()).expect_err("there is none").to_string();
        assert!(why.contains("/nowhere: there is no such directory"), "{why}");
    }

    #[test]
    fn what_a_server_says_of_us_is_told_from_what_we_say_of_it() {
        let said = |why: rustls::Error| NoTls::from(why).to_string();
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert!(said(unknown).contains("certificate is not good"));
        let refused = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        assert!(said(refused).contains("does not let us in"));
    }
}
