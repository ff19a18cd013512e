//! The client's half of the fixed newstyle handshake.
//!
//! Owns: what to ask, in which order, and what a server may leave out: structured replies, metadata contexts
//! and GO are all optional. Never: speaks oldstyle; TLS itself, which is the driver's. Key invariant: one
//! option is outstanding at a time, no byte behind the handshake is consumed, and no buffer outgrows
//! `limits`.
//!
//! Driver's order: receive, `input`, `take_output` and send, `poll`; at the end of the stream `eof`.
//! Tests: `tests/client_options.rs`, `tests/pair.rs`, `tests/properties.rs`, `fuzz/`.

use super::error::Error;
use super::option::{self, Info};
use crate::export::{ExportInfo, ListEntry, Negotiated};
use crate::limits::{
    EXPORT_NAME_BYTES_MAX, LIST_BYTES_MAX, LIST_ENTRIES_MAX, OPTION_REPLIES_MAX, OPTION_REPLY_BYTES_MAX,
};
use crate::proto::{
    BASE_ALLOCATION, CHEETAH_AUTH, CHEETAH_CONTEXT, CHEETAH_DIRTY, EXPORT_NAME_ZEROES_BYTES, IHAVEOPT,
    NBDMAGIC, OLDSTYLE_MAGIC, OPTION_REPLY_MAGIC, TransmissionFlags, handshake_flags as hs, opt, rep,
};
use crate::violation::Violation;
use crate::wire::{Fields, fill};

const GREETING_BYTES: usize = 18;
const REPLY_HEADER_BYTES: usize = 20;
const EXPORT_NAME_ANSWER_BYTES: usize = 10;

/// What to ask of a server. What it does not have is left out, never an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Empty: the server's default export. More than 4096 bytes or a NUL fails the handshake before it
    /// begins.
    pub export: String,
    /// Structured replies, without which holes arrive as zeros and errors have no words.
    pub structured: bool,
    /// Asks for structured replies too, since it needs them.
    pub base_allocation: bool,
    /// `cheetah:dirty`, likewise: only Cheetah's donors have it.
    pub dirty: bool,
    /// `cheetah:context`, likewise.
    pub context: bool,
    /// `cheetah:auth`, likewise.
    pub auth: bool,
}

impl Want {
    const fn contexts(&self) -> bool {
        self.base_allocation || self.dirty || self.context || self.auth
    }
}

/// What the driver does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// All that came is taken; receive more, after the output was sent.
    NeedInput,
    /// Speak TLS from here on, and call [`Handshake::tls_started`]. Bytes that came in the clear behind the
    /// server's word are nobody's: close where there are any.
    StartTls,
    /// Every byte not consumed belongs to the transmission phase.
    Ready(Negotiated),
    /// The answer to [`Handshake::list`]; send the output, then close.
    Listed(Vec<ListEntry>),
    /// Send the output, if there is any, then close.
    Failed(Error),
}

/// One handshake, for one connection: with the outcome [`Step::Ready`] it is over.
#[derive(Debug)]
pub struct Handshake {
    /// None lists the exports.
    want: Option<Want>,
    state: State,
    /// The message being received, never more than its known length.
    buffer: Vec<u8>,
    output: Vec<u8>,
    no_zeroes: bool,
    structured_replies: bool,
    base_allocation: Option<u32>,
    dirty: Option<u32>,
    context: Option<u32>,
    auth: Option<u32>,
    /// What the server said of the export so far.
    said: Info,
    list: Vec<ListEntry>,
    list_bytes: usize,
    /// Nothing is asked before TLS is spoken.
    over_tls: bool,
    fixed_newstyle: bool,
}

#[derive(Debug)]
enum State {
    Greeting,
    StartTls,
    ReplyHeader { asked: u32, replies: u32 },
    ReplyData { asked: u32, replies: u32, reply: u32, bytes: u32 },
    ExportName,
    Ready(Negotiated),
    Listed,
    Failed(Error),
}

impl Handshake {
    /// The greeting is the server's; there is no output before it.
    #[must_use]
    pub fn new(want: Want) -> Self {
        let named = want.export.len() <= EXPORT_NAME_BYTES_MAX && !want.export.contains('\0');
        let state = if named { State::Greeting } else { State::Failed(Error::ExportName) };
        Self::start(Some(want), state)
    }

    /// Asks for the server's exports instead of using one.
    #[must_use]
    pub fn list() -> Self {
        Self::start(None, State::Greeting)
    }

    const fn start(want: Option<Want>, state: State) -> Self {
        Self {
            want,
            state,
            buffer: Vec::new(),
            output: Vec::new(),
            no_zeroes: false,
            structured_replies: false,
            base_allocation: None,
            dirty: None,
            context: None,
            auth: None,
            said: Info::EMPTY,
            list: Vec::new(),
            list_bytes: 0,
            over_tls: false,
            fixed_newstyle: false,
        }
    }

    /// With TLS, or not at all: the server is told of no export before that.
    #[must_use]
    pub fn over_tls(self) -> Self {
        Self { over_tls: true, ..self }
    }

    // Events in.

    /// Takes bytes from the server and returns how many; it stops where the transmission phase starts.
    ///
    /// # Errors
    /// What the server did; from then on `poll` says Failed.
    pub fn input(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let want = match self.state {
                State::Greeting => GREETING_BYTES,
                State::ReplyHeader { .. } => REPLY_HEADER_BYTES,
                State::ReplyData { bytes, .. } => bytes as usize,
                State::ExportName if self.no_zeroes => EXPORT_NAME_ANSWER_BYTES,
                State::ExportName => EXPORT_NAME_ANSWER_BYTES + EXPORT_NAME_ZEROES_BYTES,
                State::StartTls | State::Ready(_) | State::Listed | State::Failed(_) => break,
            };
            let taken = fill(&mut self.buffer, want, rest);
            rest = &rest[taken..];
            // A peer that is no newstyle server may never send the rest of a greeting.
            let hopeless = matches!(self.state, State::Greeting) && self.greeting_is_foreign();
            if self.buffer.len() == want || hopeless {
                let message = std::mem::take(&mut self.buffer);
                if let Err(violation) = self.message(&message) {
                    self.state = State::Failed(Error::Violation(violation));
                    return Err(violation);
                }
            }
        }
        Ok(bytes.len() - rest.len())
    }

    /// The server closed the connection.
    pub fn eof(&mut self) {
        if !matches!(self.state, State::Ready(_) | State::Listed | State::Failed(_)) {
            let asked_export_name = matches!(self.state, State::ExportName);
            self.state = State::Failed(Error::Closed { asked_export_name });
        }
    }

    /// TLS is spoken, as [`Step::StartTls`] asked for; panics if that is not the step.
    pub fn tls_started(&mut self) {
        assert!(matches!(self.state, State::StartTls), "tls_started without a start of TLS");
        self.ask_first();
    }

    // Polls.

    /// Moves what is to be sent to the end of `out`.
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    /// What `input` and `eof` led to, each time anew: calling it changes nothing.
    #[must_use]
    pub fn poll(&self) -> Step {
        match &self.state {
            State::Greeting | State::ReplyHeader { .. } | State::ReplyData { .. } | State::ExportName => {
                Step::NeedInput
            }
            State::StartTls => Step::StartTls,
            State::Ready(negotiated) => Step::Ready(negotiated.clone()),
            State::Listed => Step::Listed(self.list.clone()),
            State::Failed(error) => Step::Failed(error.clone()),
        }
    }

    /// Holds between any two calls.
    ///
    /// # Panics
    /// A bug in this module.
    pub fn check_invariants(&self) {
        assert!(self.buffer.len() <= OPTION_REPLY_BYTES_MAX as usize);
        assert!(self.list.len() <= LIST_ENTRIES_MAX && self.list_bytes <= LIST_BYTES_MAX);
        // At most six options are asked in one handshake, and an export name is in three of them.
        assert!(self.output.len() <= 4 * (EXPORT_NAME_BYTES_MAX + 64));
        let contexts = [self.base_allocation, self.dirty, self.context, self.auth];
        assert!(contexts == [None; 4] || self.structured_replies);
    }

    // The messages of the server.

    fn greeting_is_foreign(&self) -> bool {
        let newstyle = [NBDMAGIC.to_be_bytes(), IHAVEOPT.to_be_bytes()];
        let magics = newstyle.as_flattened();
        let seen = self.buffer.len().min(magics.len());
        let at_edge = seen == 8 || seen == 16;
        at_edge && self.buffer[..seen] != magics[..seen] || seen > 8 && self.buffer[..8] != magics[..8]
    }

    fn message(&mut self, message: &[u8]) -> Result<(), Violation> {
        match self.state {
            State::Greeting => self.greeting(message),
            State::ReplyHeader { asked, replies } => self.reply_header(asked, replies, message),
            State::ReplyData { asked, replies, reply, .. } => self.reply(asked, replies, reply, message),
            State::ExportName => self.export_name_answer(message),
            State::StartTls | State::Ready(_) | State::Listed | State::Failed(_) => Ok(()),
        }
    }

    fn greeting(&mut self, message: &[u8]) -> Result<(), Violation> {
        let mut fields = Fields(message);
        if fields.u64() != Some(NBDMAGIC) {
            return Err(Violation::NotNbd);
        }
        let flags = match (fields.u64(), fields.u16()) {
            (Some(IHAVEOPT), Some(flags)) => flags,
            (Some(OLDSTYLE_MAGIC), _) => return Err(Violation::Oldstyle),
            _ => return Err(Violation::NotNbd),
        };
        // What else a server may offer is not ours to accept.
        let ours = flags & (hs::FIXED_NEWSTYLE | hs::NO_ZEROES);
        self.no_zeroes = ours & hs::NO_ZEROES != 0;
        self.output.extend_from_slice(&u32::from(ours).to_be_bytes());
        self.fixed_newstyle = ours & hs::FIXED_NEWSTYLE != 0;
        match self.over_tls {
            true if self.fixed_newstyle => self.ask(opt::STARTTLS, &[]),
            true => self.state = State::Failed(Error::NoTls),
            false => self.ask_first(),
        }
        Ok(())
    }

    fn ask_first(&mut self) {
        match &self.want {
            None if self.fixed_newstyle => self.ask(opt::LIST, &[]),
            None => self.state = State::Failed(Error::CannotList),
            Some(_) if !self.fixed_newstyle => self.ask_export_name(),
            Some(want) if want.structured || want.contexts() => {
                self.ask(opt::STRUCTURED_REPLY, &[]);
            }
            Some(_) => self.ask_go(),
        }
    }

    fn reply_header(&mut self, asked: u32, replies: u32, message: &[u8]) -> Result<(), Violation> {
        let mut fields = Fields(message);
        let magic = fields.u64().unwrap_or(0);
        let (Some(answered), Some(reply), Some(bytes)) = (fields.u32(), fields.u32(), fields.u32()) else {
            return Ok(());
        };
        if magic != OPTION_REPLY_MAGIC {
            return Err(Violation::OptionReplyMagic(magic));
        }
        if answered != asked {
            return Err(Violation::OptionReplyOrder { asked, answered });
        }
        if bytes > OPTION_REPLY_BYTES_MAX {
            return Err(Violation::OptionReplyTooBig { bytes });
        }
        let replies = replies + 1;
        if replies > OPTION_REPLIES_MAX {
            return Err(Violation::TooManyOptionReplies);
        }
        if bytes == 0 {
            return self.reply(asked, replies, reply, &[]);
        }
        self.state = State::ReplyData { asked, replies, reply, bytes };
        Ok(())
    }

    fn reply(&mut self, asked: u32, replies: u32, reply: u32, data: &[u8]) -> Result<(), Violation> {
        let malformed = Violation::OptionReplyMalformed { option: asked, reply };
        self.state = State::ReplyHeader { asked, replies };
        if reply == rep::ERR_TLS_REQD {
            self.state = State::Failed(Error::TlsRequired);
            return Ok(());
        }
        match (asked, reply) {
            (opt::STARTTLS, rep::ACK) if data.is_empty() => self.state = State::StartTls,
            (opt::STARTTLS, _) if reply & rep::ERR != 0 => {
                self.ask(opt::ABORT, &[]);
                self.state = State::Failed(Error::NoTls);
            }
            (opt::STRUCTURED_REPLY, rep::ACK) if data.is_empty() => {
                self.structured_replies = true;
                self.after_structured_reply();
            }
            (opt::STRUCTURED_REPLY, _) if reply & rep::ERR != 0 => self.ask_go(),
            (opt::SET_META_CONTEXT, rep::META_CONTEXT) => {
                let (id, name) = option::meta_context(data).ok_or(malformed)?;
                let known = [
                    (BASE_ALLOCATION, &mut self.base_allocation),
                    (CHEETAH_DIRTY, &mut self.dirty),
                    (CHEETAH_CONTEXT, &mut self.context),
                    (CHEETAH_AUTH, &mut self.auth),
                ];
                for (known, place) in known {
                    if name == known.as_bytes() {
                        *place = Some(id);
                    }
                }
                // With one id for two contexts no chunk could be told from another.
                let ids = [self.base_allocation, self.dirty, self.context, self.auth];
                if ids.iter().filter(|of| **of == Some(id)).count() > 1 {
                    return Err(malformed);
                }
            }
            (opt::SET_META_CONTEXT, rep::ACK) if data.is_empty() => self.ask_go(),
            (opt::SET_META_CONTEXT, _) if reply & rep::ERR != 0 => {
                (self.base_allocation, self.dirty, self.context, self.auth) = (None, None, None, None);
                self.ask_go();
            }
            (opt::GO, rep::INFO) => option::info(data, &mut self.said).map_err(|e| e.unwrap_or(malformed))?,
            (opt::GO, rep::ACK) if data.is_empty() => {
                let info = std::mem::take(&mut self.said).export().ok_or(Violation::NoExportInfo)??;
                self.ready(info);
            }
            (opt::GO, rep::ERR_UNSUP) => self.ask_export_name(),
            (opt::LIST, rep::SERVER) => {
                let entry = option::server(data).ok_or(malformed)?;
                self.list_bytes += entry.name.len() + entry.description.len();
                if self.list.len() == LIST_ENTRIES_MAX || self.list_bytes > LIST_BYTES_MAX {
                    self.list_bytes = 0;
                    self.list.clear();
                    return Err(Violation::TooManyOptionReplies);
                }
                self.list.push(entry);
            }
            (opt::LIST, rep::ACK) if data.is_empty() => {
                self.ask(opt::ABORT, &[]);
                self.state = State::Listed;
            }
            (opt::GO | opt::LIST, _) if reply & rep::ERR != 0 => {
                let message = option::message(data);
                self.ask(opt::ABORT, &[]);
                self.state = State::Failed(Error::Refused { option: asked, reply, message });
            }
            _ => return Err(malformed),
        }
        Ok(())
    }

    fn export_name_answer(&mut self, message: &[u8]) -> Result<(), Violation> {
        let mut fields = Fields(message);
        if let (Some(size), Some(flags)) = (fields.u64(), fields.u16()) {
            let info = option::export(size, TransmissionFlags(flags))?;
            self.ready(info);
        }
        Ok(())
    }

    // What to ask next.

    fn after_structured_reply(&mut self) {
        match &self.want {
            Some(want) if want.contexts() => {
                let data = option::meta_query(want);
                self.ask(opt::SET_META_CONTEXT, &data);
            }
            _ => self.ask_go(),
        }
    }

    fn ask_go(&mut self) {
        let data = option::info_query(self.export());
        self.ask(opt::GO, &data);
    }

    fn ask_export_name(&mut self) {
        let export = self.export().as_bytes().to_vec();
        self.ask(opt::EXPORT_NAME, &export);
        self.state = State::ExportName;
    }

    fn ask(&mut self, option: u32, data: &[u8]) {
        self.output.extend_from_slice(&IHAVEOPT.to_be_bytes());
        self.output.extend_from_slice(&option.to_be_bytes());
        self.output.extend_from_slice(&crate::wire::len32(data).to_be_bytes());
        self.output.extend_from_slice(data);
        self.state = State::ReplyHeader { asked: option, replies: 0 };
    }

    fn export(&self) -> &str {
        self.want.as_ref().map_or("", |want| &want.export)
    }

    fn ready(&mut self, info: ExportInfo) {
        self.state = State::Ready(Negotiated {
            export: self.export().to_owned(),
            info,
            structured_replies: self.structured_replies,
            base_allocation: self.base_allocation,
            dirty: self.dirty,
            context: self.context,
            auth: self.auth,
        });
    }
}
