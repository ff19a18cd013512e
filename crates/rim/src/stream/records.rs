//! TLS 1.3's records of an established connection: sealed and opened where they lie (RFC 8446, 5).
//!
//! Owns both directions' keys, their sequence numbers and their renewal, and what a peer says to TLS itself:
//! key updates, alerts, tickets. Never: the handshake, which rustls makes and of which these keys come, a
//! connection's bytes (`tls`), or whom to trust. Invariants: every record is checked before anything of it
//! is given out; no key seals more records than it may; what is no record of TLS 1.3 ends the connection.
//! Tests: below, against rustls; with GnuTLS (libnbd, nbdkit) in `lab/tests/members.rs`.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};
use std::fmt;
use std::io;
use std::ops::Range;

/// Bytes of a user in a record, at most.
pub(super) const PAYLOAD_BYTES_MAX: usize = 1 << 14;
/// Before the payload: type, version, length.
pub(super) const HEADER_BYTES: usize = 5;
/// Behind it: what kind of record it is in truth, and the tag.
const TYPE_BYTES: usize = 1;
const TAG_BYTES: usize = 16;
/// The length of what is sealed may be so much, with padding.
const SEALED_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 256;
/// A record, whatever it is.
pub(super) const RECORD_BYTES_MAX: usize = HEADER_BYTES + SEALED_BYTES_MAX;
/// Records that a key seals, less than RFC 8446, 5.5 allows with AES-GCM. Tests get to see what comes then.
const RECORDS_MAX: u64 = if cfg!(test) { 50 } else { 1 << 24 };
/// Handshake messages that come in parts are kept up to here: tickets of servers that others wrote.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// Kind and length.
const MESSAGE_HEADER_BYTES: usize = 4;
const NEW_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// What the peer did that TLS does not allow, or that was done to its bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// A record that does not fit its tag.
    Tag,
    /// A length, a type or a message that is none.
    Malformed(&'static str),
    /// It says that it ends, and why.
    Alert(u8),
    /// No further keys are to be had.
    Keys(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Tag => f.write_str("TLS: a record was changed on its way"),
            Broken::Malformed(what) => write!(f, "TLS: {what}"),
            Broken::Alert(code) => write!(f, "TLS: the peer ends it with alert {code}"),
            Broken::Keys(why) => write!(f, "TLS: no further key: {why}"),
        }
    }
}

impl std::error::Error for Broken {}

impl From<Broken> for io::Error {
    fn from(broken: Broken) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, broken)
    }
}

/// One direction.
struct Half {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl fmt::Debug for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Half").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Half {
    fn of((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Half, Broken> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Broken::Keys("an unknown cipher was agreed on".to_owned())),
        };
        let bad = || Broken::Keys("it has another length".to_owned());
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).map_err(|_| bad())?);
        let iv = iv.as_ref().try_into().map_err(|_| bad())?;
        Ok(Half { key, iv, sequence })
    }

    /// Of the next record (RFC 8446, 5.3). Never the same twice.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= of_sequence;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Where further keys come from.
pub(super) enum Keys {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl From<KernelConnection<ClientConnectionData>> for Keys {
    fn from(keys: KernelConnection<ClientConnectionData>) -> Self {
        Keys::Client(keys)
    }
}

impl From<KernelConnection<ServerConnectionData>> for Keys {
    fn from(keys: KernelConnection<ServerConnectionData>) -> Self {
        Keys::Server(keys)
    }
}

impl Keys {
    fn next_to_send(&mut self) -> Result<Half, Broken> {
        let next = match self {
            Keys::Client(keys) => keys.update_tx_secret(),
            Keys::Server(keys) => keys.update_tx_secret(),
        };
        Half::of(next.map_err(|why| Broken::Keys(why.to_string()))?)
    }

    fn next_to_receive(&mut self) -> Result<Half, Broken> {
        let next = match self {
            Keys::Client(keys) => keys.update_rx_secret(),
            Keys::Server(keys) => keys.update_rx_secret(),
        };
        Half::of(next.map_err(|why| Broken::Keys(why.to_string()))?)
    }
}

/// What a record was, once opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// Bytes for the user, where they lie in what came.
    Data(Range<usize>),
    /// Something between the two ends' TLS. It may have left something to send.
    Own,
    /// The peer sends nothing any more.
    End,
}

/// A connection's records, both ways.
#[derive(Debug)]
pub(super) struct Records {
    send: Half,
    receive: Half,
    keys: Keys,
    /// Of a handshake message that is not whole yet.
    message: Vec<u8>,
}

impl Records {
    /// Of a handshake that is over, with what makes further keys.
    pub(super) fn of(secrets: ExtractedSecrets, keys: impl Into<Keys>) -> Result<Records, Broken> {
        let (send, receive) = (Half::of(secrets.tx)?, Half::of(secrets.rx)?);
        Ok(Records { send, receive, keys: keys.into(), message: Vec::new() })
    }

    /// Seals what `fill` writes behind the header, `len` bytes, as a record at the end of `out`.
    pub(super) fn seal(
        &mut self,
        out: &mut Vec<u8>,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Broken> {
        if self.send.sequence >= RECORDS_MAX {
            self.update_key(out)?;
        }
        self.seal_as(DATA, out, len, fill)
    }

    fn seal_as(
        &mut self,
        kind: u8,
        out: &mut Vec<u8>,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Broken> {
        let sealed =
            u16::try_from(len + TYPE_BYTES + TAG_BYTES).map_err(|_| Broken::Malformed("too much"))?;
        let [high, low] = sealed.to_be_bytes();
        let header = [DATA, 3, 3, high, low];
        out.extend_from_slice(&header);
        let start = out.len();
        out.resize(start + len, 0);
        fill(&mut out[start..]);
        out.push(kind);
        let nonce = self.send.nonce();
        let tag = self.send.key.seal_in_place_separate_tag(nonce, Aad::from(header), &mut out[start..]);
        let tag = tag.map_err(|_| Broken::Keys("it does not seal".to_owned()))?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Says that nothing is sent any more.
    pub(super) fn seal_end(&mut self, out: &mut Vec<u8>) -> Result<(), Broken> {
        self.seal_as(ALERT, out, CLOSE_NOTIFY.len(), |to| to.copy_from_slice(&CLOSE_NOTIFY))
    }

    /// Seals with another key from here on. The peer is not asked to: it counts for itself.
    fn update_key(&mut self, out: &mut Vec<u8>) -> Result<(), Broken> {
        let message = [KEY_UPDATE, 0, 0, 1, 0];
        self.seal_as(HANDSHAKE, out, message.len(), |to| to.copy_from_slice(&message))?;
        self.send = self.keys.next_to_send()?;
        Ok(())
    }

    /// How long the record is that these bytes begin with; `None` while that has not come.
    pub(super) fn record_len(bytes: &[u8]) -> Result<Option<usize>, Broken> {
        let [kind, _, _, high, low, ..] = *bytes else { return Ok(None) };
        let sealed = usize::from(u16::from_be_bytes([high, low]));
        match (kind, sealed) {
            (DATA, TAG_BYTES..=SEALED_BYTES_MAX) => Ok(Some(HEADER_BYTES + sealed)),
            (DATA, _) => Err(Broken::Malformed("a record of a length that none has")),
            _ => Err(Broken::Malformed("a record of a kind that none has here")),
        }
    }

    /// Opens a whole record in its place. What it has TLS send goes to `out`.
    pub(super) fn open(&mut self, record: &mut [u8], out: &mut Vec<u8>) -> Result<Opened, Broken> {
        let (header, sealed) = record.split_at_mut(HEADER_BYTES);
        let header: [u8; HEADER_BYTES] = (&*header).try_into().map_err(|_| Broken::Malformed("no record"))?;
        let nonce = self.receive.nonce();
        let opened = self.receive.key.open_in_place(nonce, Aad::from(header), sealed);
        let opened = opened.map_err(|_| Broken::Tag)?;
        // Behind the type there may be zeros as padding.
        let at = opened.iter().rposition(|byte| *byte != 0);
        let at = at.ok_or(Broken::Malformed("a record without a type"))?;
        let kind = opened[at];
        if kind != HANDSHAKE && !self.message.is_empty() {
            return Err(Broken::Malformed("a message that is cut off"));
        }
        match kind {
            DATA if at > PAYLOAD_BYTES_MAX => Err(Broken::Malformed("too much in a record")),
            DATA => Ok(Opened::Data(HEADER_BYTES..HEADER_BYTES + at)),
            ALERT => match opened[..at] {
                [_, 0] => Ok(Opened::End),
                [_, code] => Err(Broken::Alert(code)),
                _ => Err(Broken::Malformed("an alert that is none")),
            },
            HANDSHAKE => {
                self.message.extend_from_slice(&opened[..at]);
                self.messages(out)?;
                Ok(Opened::Own)
            }
            _ => Err(Broken::Malformed("a record of a kind that none has here")),
        }
    }

    /// Carries out the messages that are whole.
    fn messages(&mut self, out: &mut Vec<u8>) -> Result<(), Broken> {
        loop {
            let [kind, high, middle, low, rest @ ..] = self.message.as_slice() else { return Ok(()) };
            let (kind, len) = (*kind, u32::from_be_bytes([0, *high, *middle, *low]) as usize);
            if len > MESSAGE_BYTES_MAX {
                return Err(Broken::Malformed("a message that is too long"));
            }
            let Some(body) = rest.get(..len) else { return Ok(()) };
            match (kind, body) {
                // Nothing is resumed here.
                (NEW_TICKET, _) => drop(self.message.drain(..MESSAGE_HEADER_BYTES + len)),
                // A key is changed between records, not within one.
                (KEY_UPDATE, [asks @ (0 | 1)]) if rest.len() == len => {
                    let asks = *asks == 1;
                    self.message.clear();
                    self.receive = self.keys.next_to_receive()?;
                    if asks {
                        self.update_key(out)?;
                    }
                }
                _ => return Err(Broken::Malformed("a message that has no place here")),
            }
        }
    }
}
