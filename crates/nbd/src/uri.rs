//! NBD URIs: `nbd://host[:port]/export` and `nbd+unix:///export?socket=PATH`, as libnbd and qemu read them,
//! and with TLS `nbds://` and `nbds+unix://`.
//!
//! Owns: parsing, percent-encoding and writing them. Never: resolves a name, opens a socket or reads a
//! certificate. Key invariants: what is written parses to the same value; an address that asks for TLS is
//! never taken for one without. Tests: below.

use crate::limits::EXPORT_NAME_BYTES_MAX;
use crate::proto::PORT;
use std::fmt;
use std::str::FromStr;

/// Where an export is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Uri {
    /// What to connect to.
    pub transport: Transport,
    /// Decoded, at most 4096 bytes, without NUL. Empty: the server's default export.
    pub export: String,
    /// Absent: all goes in the clear.
    pub tls: Option<Tls>,
}

/// What libnbd's parameters say of TLS.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tls {
    /// `tls-certificates`: a directory with `ca-cert.pem`, `client-cert.pem` and `client-key.pem`.
    pub certificates: Option<String>,
    /// `tls-hostname`: whose certificate the server shows, where it is not the host's in the address.
    pub hostname: Option<String>,
}

/// The address of a server. Of vsock there is none here.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// An IPv6 address stands here without its brackets.
    Tcp {
        /// A name or an address, decoded; `localhost` where the URI has none.
        host: String,
        /// Not 0; [`PORT`] where the URI has none.
        port: u16,
    },
    /// A path; a leading NUL means Linux's abstract namespace.
    Unix {
        /// Decoded, not empty, and with no other NUL than a leading one.
        socket: String,
    },
}

/// Why a text is not a URI to connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UriError {
    /// Not one of `nbd:`, `nbds:`, `nbd+unix:` and `nbds+unix:`.
    Scheme,
    /// A user name or `tls-psk-file`: a key that both ends have before.
    SharedKey,
    /// `tls-verify-peer` is not true.
    Unverified,
    /// The name of a parameter about TLS, where the scheme has none.
    InTheClear(String),
    /// No `//`, or a fragment.
    Form,
    /// A host that no resolver may be asked for, or brackets around what is no IPv6 address.
    Host,
    /// Not a number from 1 to 65535.
    Port,
    /// A `%` without two hex digits, or text that is not UTF-8 once decoded.
    Encoding,
    /// An export name of more than 4096 bytes, or with a NUL.
    Export,
    /// `nbd+unix:` without `socket=`, or with a host.
    Socket,
    /// The name of a parameter that is not known, or of `socket` where the transport is TCP.
    Parameter(String),
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let (scheme, rest) = text.split_once(':').ok_or(UriError::Scheme)?;
        let (unix, is_tls) = match scheme.to_ascii_lowercase().as_str() {
            "nbd" => (false, false),
            "nbds" => (false, true),
            "nbd+unix" => (true, false),
            "nbds+unix" => (true, true),
            _ => return Err(UriError::Scheme),
        };
        if rest.contains('#') {
            return Err(UriError::Form);
        }
        let (hierarchy, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = split_authority(hierarchy)?;
        let export = decode(export)?;
        if export.len() > EXPORT_NAME_BYTES_MAX || export.contains('\0') {
            return Err(UriError::Export);
        }
        let Parameters { socket, tls } = parameters(query, is_tls)?;
        let transport = match (unix, socket) {
            (true, Some(socket)) if authority.is_empty() => Transport::Unix { socket },
            (true, _) => return Err(UriError::Socket),
            (false, Some(_)) => return Err(UriError::Parameter("socket".to_owned())),
            (false, None) => tcp(authority)?,
        };
        Ok(Self { transport, export, tls: is_tls.then_some(tls) })
    }
}

#[derive(Default)]
struct Parameters {
    socket: Option<String>,
    tls: Tls,
}

/// The authority and the export name, both still encoded.
fn split_authority(hierarchy: &str) -> Result<(&str, &str), UriError> {
    let rest = hierarchy.strip_prefix("//").ok_or(UriError::Form)?;
    Ok(rest.split_once('/').unwrap_or((rest, "")))
}

fn tcp(authority: &str) -> Result<Transport, UriError> {
    if authority.contains('@') {
        return Err(UriError::SharedKey);
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(UriError::Host)?;
            let parses = address.split('%').next().is_some_and(|a| a.parse::<std::net::Ipv6Addr>().is_ok());
            if !parses {
                return Err(UriError::Host);
            }
            let port = if port.is_empty() { "" } else { port.strip_prefix(':').ok_or(UriError::Port)? };
            (decode(address)?, port)
        }
        None => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            let host = if host.is_empty() { "localhost".to_owned() } else { decode(host)? };
            if host.contains(':') {
                return Err(UriError::Host);
            }
            (host, port)
        }
    };
    // A decoded host must survive being written again, and be something a resolver may be asked.
    if host.contains(|c: char| c.is_control() || c.is_whitespace() || "/?#[]@".contains(c)) {
        return Err(UriError::Host);
    }
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    let port = match port {
        "" => PORT,
        _ if digits => port.parse().ok().filter(|p| *p > 0).ok_or(UriError::Port)?,
        _ => return Err(UriError::Port),
    };
    Ok(Transport::Tcp { host, port })
}

fn parameters(query: &str, is_tls: bool) -> Result<Parameters, UriError> {
    let mut found = Parameters::default();
    for pair in query.split(['&', ';']).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (decode(key)?, decode(value)?);
        match key.as_str() {
            // A NUL may only open an abstract name.
            "socket" if found.socket.is_some() || value.trim_start_matches('\0').is_empty() => {
                return Err(UriError::Socket);
            }
            "socket" if value.char_indices().any(|(at, c)| at > 0 && c == '\0') => {
                return Err(UriError::Socket);
            }
            "socket" => found.socket = Some(value),
            tls if tls.starts_with("tls-") && !is_tls => return Err(UriError::InTheClear(key)),
            "tls-psk-file" | "tls-username" => return Err(UriError::SharedKey),
            "tls-verify-peer" if ["true", "yes", "on", "1", "t", "y"].contains(&value.as_str()) => {}
            "tls-verify-peer" => return Err(UriError::Unverified),
            "tls-certificates" if is_text(&value) => found.tls.certificates = Some(value),
            "tls-hostname" if is_text(&value) => found.tls.hostname = Some(value),
            _ => return Err(UriError::Parameter(key)),
        }
    }
    Ok(found)
}

fn is_text(value: &str) -> bool {
    !value.is_empty() && !value.contains('\0')
}

fn decode(text: &str) -> Result<String, UriError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let ([high, low], tail) = rest.split_first_chunk::<2>().ok_or(UriError::Encoding)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
            return Err(UriError::Encoding);
        };
        bytes.push(high << 4 | low);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| UriError::Encoding)
}

/// Writes what is neither unreserved nor in `keep` percent-encoded.
fn encode(text: &str, keep: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.contains(&byte) {
            write!(f, "{}", char::from(byte))?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "nbds" } else { "nbd" })?;
        match &self.transport {
            Transport::Tcp { host, port } => {
                f.write_str("://")?;
                if host.contains(':') {
                    f.write_str("[")?;
                    encode(host, b":", f)?;
                    f.write_str("]")?;
                } else {
                    encode(host, b"", f)?;
                }
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
            }
            Transport::Unix { .. } => f.write_str("+unix://")?,
        }
        f.write_str("/")?;
        encode(&self.export, b"/:@", f)?;
        let socket = match &self.transport {
            Transport::Unix { socket } => Some(socket),
            Transport::Tcp { .. } => None,
        };
        let tls = self.tls.as_ref();
        let certificates = tls.and_then(|tls| tls.certificates.as_ref());
        let hostname = tls.and_then(|tls| tls.hostname.as_ref());
        let parameters = [("socket", socket), ("tls-certificates", certificates), ("tls-hostname", hostname)];
        let mut before = '?';
        for (key, value) in parameters {
            let Some(value) = value else { continue };
            write!(f, "{before}{key}=")?;
            encode(value, b"/:@", f)?;
            before = '&';
        }
        Ok(())
    }
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme => {
                write!(f, "the address does not start with nbd://, nbds://, nbd+unix:// or nbds+unix://")
            }
            Self::SharedKey => write!(
                f,
                "the address has a user name or a key that both ends share (tls-psk-file), which is not spoken: \
                 nbds:// shows certificates (tls-certificates=DIR)"
            ),
            Self::Unverified => write!(
                f,
                "the address would have any server believed: leave tls-verify-peer out, and name who vouches for \
                 the server with tls-certificates=DIR (ca-cert.pem)"
            ),
            Self::InTheClear(key) => {
                let key = key.escape_debug();
                write!(f, "the address has '{key}' and speaks in the clear: nbds:// speaks TLS")
            }
            Self::Form => {
                write!(
                    f,
                    "the address is not of the form nbd://host:port/export or nbd+unix:///export?socket=PATH"
                )
            }
            Self::Host => write!(f, "the host in the address is malformed"),
            Self::Port => write!(f, "the port in the address is not a number from 1 to 65535"),
            Self::Encoding => write!(f, "the address has a bad percent-encoding or is not UTF-8"),
            Self::Export => write!(f, "the export name is longer than 4096 bytes or contains a NUL"),
            Self::Socket => write!(f, "an nbd+unix address takes one socket=PATH and no host"),
            Self::Parameter(key) => {
                write!(f, "the address has the unknown parameter '{}'", key.escape_debug())
            }
        }
    }
}

impl std::error::Error for UriError {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn tcp(host: &str, port: u16, export: &str) -> Uri {
        Uri { transport: Transport::Tcp { host: host.into(), port }, export: export.into(), tls: None }
    }

    fn unix(socket: &str, export: &str) -> Uri {
        Uri { transport: Transport::Unix { socket: socket.into() }, export: export.into(), tls: None }
    }

    fn tls(uri: Uri, certificates: Option<&str>, hostname: Option<&str>) -> Uri {
        let (certificates, hostname) = (certificates.map(str::to_owned), hostname.map(str::to_owned));
        Uri { tls: Some(Tls { certificates, hostname }), ..uri }
    }

    #[test]
    fn reads_the_forms_of_the_standard() {
        for (text, uri) in [
            ("nbd://example.com/disk", tcp("example.com", PORT, "disk")),
            ("nbd://example.com", tcp("example.com", PORT, "")),
            ("nbd://example.com/", tcp("example.com", PORT, "")),
            ("nbd://example.com//disk", tcp("example.com", PORT, "/disk")),
            ("nbd://example.com/hello%20world", tcp("example.com", PORT, "hello world")),
            ("NBD://h:1/a/b", tcp("h", 1, "a/b")),
            ("nbd://", tcp("localhost", PORT, "")),
            ("nbd://h:/x", tcp("h", PORT, "x")),
            ("nbd://[::1]:10810/x", tcp("::1", 10810, "x")),
            ("nbd://[::1]", tcp("::1", PORT, "")),
            ("nbd+unix:///disk?socket=sock", unix("sock", "disk")),
            ("nbd+unix:///?socket=/run/a%3Fb", unix("/run/a?b", "")),
            ("nbd+unix://?socket=/s", unix("/s", "")),
            ("nbd+unix:///?socket=%00/abstract", unix("\0/abstract", "")),
            ("nbds://h/x", tls(tcp("h", PORT, "x"), None, None)),
            ("NBDS://h/x?tls-verify-peer=true", tls(tcp("h", PORT, "x"), None, None)),
            ("nbds://h:1/?tls-certificates=/a%20b", tls(tcp("h", 1, ""), Some("/a b"), None)),
            ("nbds+unix:///x?socket=s&tls-hostname=lab7", tls(unix("s", "x"), None, Some("lab7"))),
        ] {
            assert_eq!(text.parse(), Ok(uri), "{text}");
        }
    }

    #[test]
    fn refuses_what_it_would_misread() {
        for (text, error) in [
            ("nbds://user@h/x", UriError::SharedKey),
            ("nbd://user@h/x", UriError::SharedKey),
            ("nbds://h/x?tls-psk-file=/keys", UriError::SharedKey),
            ("nbds://h/x?tls-verify-peer=false", UriError::Unverified),
            ("nbds://h/x?tls-type=psk", UriError::Parameter("tls-type".into())),
            ("nbds://h/x?tls-certificates=", UriError::Parameter("tls-certificates".into())),
            ("nbds+unix:///x", UriError::Socket),
            ("nbds+vsock:///x", UriError::Scheme),
            ("nbd://h/x?tls-certificates=/a", UriError::InTheClear("tls-certificates".into())),
            ("http://h/x", UriError::Scheme),
            ("disk.img", UriError::Scheme),
            ("nbd:localhost:10809", UriError::Form),
            ("nbd://h/x#y", UriError::Form),
            ("nbd://h:port/x", UriError::Port),
            ("nbd://h:65536/x", UriError::Port),
            ("nbd://h:0/x", UriError::Port),
            ("nbd://h:+1/x", UriError::Port),
            ("nbd://[::1]1/x", UriError::Port),
            ("nbd://[::1/x", UriError::Host),
            ("nbd://[nonsense]/x", UriError::Host),
            ("nbd://a%20b/x", UriError::Host),
            ("nbd://a%3Ab/x", UriError::Host),
            ("nbd://h/%", UriError::Encoding),
            ("nbd://h/%4", UriError::Encoding),
            ("nbd://h/%zz", UriError::Encoding),
            ("nbd://h/%ff", UriError::Encoding),
            ("nbd://h/%00", UriError::Export),
            ("nbd+unix:///x", UriError::Socket),
            ("nbd+unix:///x?socket=", UriError::Socket),
            ("nbd+unix:///x?socket=a&socket=b", UriError::Socket),
            ("nbd+unix:///x?socket=a%00b", UriError::Socket),
            ("nbd+unix://host/x?socket=a", UriError::Socket),
            ("nbd://h/x?socket=a", UriError::Parameter("socket".into())),
            ("nbd://h/x?colour=red", UriError::Parameter("colour".into())),
        ] {
            let parsed: Result<Uri, UriError> = text.parse();
            assert_eq!(parsed, Err(error), "{text}");
        }
        let long = format!("nbd://h/{}", "x".repeat(EXPORT_NAME_BYTES_MAX + 1));
        assert_eq!(long.parse::<Uri>(), Err(UriError::Export));
    }

    proptest! {
        #[test]
        fn what_is_written_parses_to_the_same(
            host in "[a-z0-9.-]{1,20}|::1|fe80::1%eth0", port in 1u16.., export in "[^\0]{0,40}",
            socket in "\0?[^\0]{1,40}", use_unix: bool, use_tls: bool,
            certificates in proptest::option::of("[^\0]{1,20}"), hostname in proptest::option::of("[a-z0-9.]{1,20}"),
        ) {
            let uri = if use_unix { unix(&socket, &export) } else { tcp(&host, port, &export) };
            let uri = if use_tls { tls(uri, certificates.as_deref(), hostname.as_deref()) } else { uri };
            prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        }

        #[test]
        fn any_text_parses_or_is_refused_and_parsing_is_stable(text in "(nbds?://|nbds?\\+unix://)?[ -~\u{e9}]{0,60}") {
            if let Ok(uri) = text.parse::<Uri>() {
                prop_assert_eq!(uri.to_string().parse(), Ok(uri));
            }
        }
    }
}
