//! The server's half of the fixed newstyle handshake, from the greeting to the transmission phase.
//!
//! Owns: the order of things and what is remembered between options. Never: knows the exports; it asks the
//! driver ([`Step::Lookup`], [`Step::List`]) and waits, taking no input meanwhile. Key invariant: no byte
//! behind the option that ends the handshake is consumed, and no buffer outgrows `limits`.
//!
//! Driver's order: `take_output` and send, `poll`; on NeedInput receive and `input`, on Lookup or List find
//! out and answer; repeat. Tests: `tests/server_options.rs`, `tests/pair.rs`, `tests/properties.rs`, `fuzz/`.

use super::option::{self, InfoQuery, MetaQuery};
use super::step::{CloseReason, ExportError, Purpose, Step};
use crate::export::{ExportInfo, ListEntry, Negotiated};
use crate::limits::{
    EXPORT_BYTES_MAX, EXPORT_NAME_BYTES_MAX, HANDSHAKE_OUTPUT_BYTES_MAX, LIST_OUTPUT_BYTES_MAX,
    OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX, STRING_BYTES_MAX,
};
use crate::proto::{
    BASE_ALLOCATION, CHEETAH_AUTH, CHEETAH_CONTEXT, CHEETAH_DIRTY, EXPORT_NAME_ZEROES_BYTES, IHAVEOPT,
    NBDMAGIC, TransmissionFlags, handshake_flags as hs, opt, rep,
};
use crate::violation::Violation;
use crate::wire::{Fields, fill, len32, prefix};

/// The ids of the metadata contexts.
const BASE_ALLOCATION_ID: u32 = 1;
const DIRTY_ID: u32 = 2;
const CONTEXT_ID: u32 = 3;
const AUTH_ID: u32 = 4;
const OPTION_HEADER_BYTES: usize = 16;

/// One client's handshake, begun with its connection and over with [`Step::Ready`] or [`Step::Close`].
#[derive(Debug)]
pub struct Handshake {
    state: State,
    /// The message being received, never more than its known length.
    buffer: Vec<u8>,
    output: Vec<u8>,
    options: u32,
    fixed_newstyle: bool,
    no_zeroes: bool,
    structured_replies: bool,
    /// Whether Cheetah's own contexts are offered beside `base:allocation`.
    is_donor: bool,
    /// The contexts that were agreed, and the export they were agreed for.
    contexts: Option<MetaQuery>,
    tls: Tls,
}

/// Whether TLS is spoken, or has to be before anything else is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tls {
    NotOffered,
    Required,
    Spoken,
}

#[derive(Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData {
        option: u32,
        bytes: u32,
    },
    /// Reads past an option that is too big to hold.
    Skip {
        option: u32,
        bytes: u32,
    },
    Lookup(Lookup),
    List,
    StartTls,
    Ready(Negotiated),
    Close(CloseReason),
}

#[derive(Debug)]
enum Lookup {
    ExportName(String),
    Info { option: u32, query: InfoQuery },
    Meta { option: u32, query: MetaQuery },
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new()
    }
}

impl Handshake {
    /// The output already holds the greeting.
    #[must_use]
    pub fn new() -> Self {
        let mut output = Vec::with_capacity(256);
        output.extend_from_slice(&NBDMAGIC.to_be_bytes());
        output.extend_from_slice(&IHAVEOPT.to_be_bytes());
        output.extend_from_slice(&(hs::FIXED_NEWSTYLE | hs::NO_ZEROES).to_be_bytes());
        Self {
            state: State::ClientFlags,
            buffer: Vec::new(),
            output,
            options: 0,
            fixed_newstyle: false,
            no_zeroes: false,
            structured_replies: false,
            is_donor: false,
            contexts: None,
            tls: Tls::NotOffered,
        }
    }

    /// Of a server that can tell what was written lately, and keeps a checksum of each block: it offers
    /// `cheetah:dirty` and `cheetah:context`, too.
    #[must_use]
    pub fn of_donor(self) -> Self {
        Self { is_donor: true, ..self }
    }

    /// Of a server that says nothing of itself in the clear: all but STARTTLS and ABORT is refused until TLS
    /// is spoken.
    #[must_use]
    pub fn behind_tls(self) -> Self {
        Self { tls: Tls::Required, ..self }
    }

    // Events in.

    /// Takes bytes from the client and returns how many. It stops at a step that is the driver's to take,
    /// and while much output is unsent: drain the output, poll, then offer the rest again.
    ///
    /// # Errors
    /// What the client did; from then on `poll` says Close.
    pub fn input(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let mut rest = bytes;
        while !rest.is_empty() && self.output.len() < HANDSHAKE_OUTPUT_BYTES_MAX {
            let want = match self.state {
                State::ClientFlags => 4,
                State::OptionHeader => OPTION_HEADER_BYTES,
                State::OptionData { bytes, .. } => bytes as usize,
                State::Skip { ref mut bytes, .. } => {
                    let taken = rest.len().min(*bytes as usize);
                    *bytes -= len32(&rest[..taken]);
                    rest = &rest[taken..];
                    if *bytes == 0 {
                        self.skipped();
                    }
                    continue;
                }
                State::Lookup(_) | State::List | State::StartTls | State::Ready(_) | State::Close(_) => break,
            };
            let taken = fill(&mut self.buffer, want, rest);
            rest = &rest[taken..];
            if self.buffer.len() == want {
                let message = std::mem::take(&mut self.buffer);
                if let Err(violation) = self.message(&message) {
                    self.state = State::Close(CloseReason::Violation(violation));
                    return Err(violation);
                }
            }
        }
        Ok(bytes.len() - rest.len())
    }

    /// Answers [`Step::Lookup`]; panics if that is not the step.
    pub fn answer_lookup(&mut self, answer: Result<ExportInfo, ExportError>) {
        let state = std::mem::replace(&mut self.state, State::OptionHeader);
        let State::Lookup(lookup) = state else {
            panic!("answer_lookup without a lookup");
        };
        let info = match answer {
            Ok(info) => self.as_sent(info),
            Err(error) => return self.refuse_lookup(&lookup, &error),
        };
        match lookup {
            Lookup::ExportName(export) => {
                self.output.extend_from_slice(&info.size.to_be_bytes());
                self.output.extend_from_slice(&info.flags.0.to_be_bytes());
                if !self.no_zeroes {
                    self.output.extend_from_slice(&[0; EXPORT_NAME_ZEROES_BYTES]);
                }
                self.ready(export, info);
            }
            Lookup::Info { option, query } => {
                option::infos(option, &query, &info, &mut self.output);
                option::reply(option, rep::ACK, &[], &mut self.output);
                if option == opt::GO {
                    self.ready(query.export, info);
                }
            }
            Lookup::Meta { option, query } => self.meta_context(option, query),
        }
    }

    /// Answers [`Step::List`]; panics if that is not the step.
    pub fn answer_list(&mut self, entries: Result<&[ListEntry], &ExportError>) {
        assert!(matches!(self.state, State::List), "answer_list without a list");
        self.state = State::OptionHeader;
        match entries {
            Ok(entries) => option::list(entries, &mut self.output),
            Err(error) => self.refuse(opt::LIST, error.reply()),
        }
    }

    /// Answers [`Step::StartTls`], once TLS is spoken; panics if that is not the step. What was agreed in the
    /// clear is forgotten: anybody on the way may have said it.
    pub fn tls_started(&mut self) {
        assert!(matches!(self.state, State::StartTls), "tls_started without a start of TLS");
        self.state = State::OptionHeader;
        (self.tls, self.structured_replies, self.contexts) = (Tls::Spoken, false, None);
    }

    // Polls.

    /// Moves what is to be sent to the end of `out`.
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    /// What the driver does next, each time anew: calling it changes nothing.
    #[must_use]
    pub fn poll(&self) -> Step {
        match &self.state {
            State::ClientFlags | State::OptionHeader | State::OptionData { .. } | State::Skip { .. } => {
                Step::NeedInput
            }
            State::Lookup(lookup) => {
                let (export, purpose) = match lookup {
                    Lookup::ExportName(export) => (export, Purpose::Go),
                    Lookup::Info { option: opt::GO, query } => (&query.export, Purpose::Go),
                    Lookup::Info { query, .. } => (&query.export, Purpose::Info),
                    Lookup::Meta { query, .. } => (&query.export, Purpose::MetaContext),
                };
                Step::Lookup { export: export.clone(), purpose }
            }
            State::List => Step::List,
            State::StartTls => Step::StartTls,
            State::Ready(negotiated) => Step::Ready(negotiated.clone()),
            State::Close(reason) => Step::Close(*reason),
        }
    }

    /// Holds between any two calls.
    ///
    /// # Panics
    /// A bug in this module.
    pub fn check_invariants(&self) {
        assert!(self.buffer.len() <= OPTION_BYTES_MAX as usize);
        // What one option adds is at most its refusal and infos, or a list.
        let option_output_bytes_max = LIST_OUTPUT_BYTES_MAX + 4 * STRING_BYTES_MAX;
        assert!(self.output.len() <= HANDSHAKE_OUTPUT_BYTES_MAX + option_output_bytes_max);
        assert!(self.options <= OPTIONS_MAX + 1);
        assert!(self.contexts.is_none() || self.structured_replies);
        assert!(
            self.is_donor
                || !self
                    .contexts
                    .as_ref()
                    .is_some_and(|agreed| agreed.dirty || agreed.context || agreed.auth)
        );
    }

    // The messages of the client.

    fn message(&mut self, message: &[u8]) -> Result<(), Violation> {
        match self.state {
            State::ClientFlags => self.client_flags(message),
            State::OptionHeader => self.option_header(message),
            State::OptionData { option, .. } => self.option(option, message),
            _ => Ok(()),
        }
    }

    fn client_flags(&mut self, message: &[u8]) -> Result<(), Violation> {
        let flags = Fields(message).u32().unwrap_or(u32::MAX);
        let (fixed, no_zeroes) = (u32::from(hs::FIXED_NEWSTYLE), u32::from(hs::NO_ZEROES));
        if flags & !(fixed | no_zeroes) != 0 {
            return Err(Violation::ClientFlags(flags));
        }
        self.fixed_newstyle = flags & fixed != 0;
        self.no_zeroes = flags & no_zeroes != 0;
        self.state = State::OptionHeader;
        Ok(())
    }

    fn option_header(&mut self, message: &[u8]) -> Result<(), Violation> {
        let mut fields = Fields(message);
        let (Some(magic), Some(option), Some(bytes)) = (fields.u64(), fields.u32(), fields.u32()) else {
            return Ok(());
        };
        if magic != IHAVEOPT {
            return Err(Violation::OptionMagic(magic));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(Violation::TooManyOptions);
        }
        if option == opt::EXPORT_NAME && bytes as usize > EXPORT_NAME_BYTES_MAX {
            return Err(Violation::ExportName);
        }
        if !self.fixed_newstyle && option != opt::EXPORT_NAME {
            return Err(Violation::NotFixedNewstyle);
        }
        if bytes > OPTION_SKIP_BYTES_MAX {
            return Err(Violation::OptionTooBig { option, bytes });
        }
        if bytes > OPTION_BYTES_MAX {
            self.state = State::Skip { option, bytes };
            return Ok(());
        }
        if bytes == 0 {
            return self.option(option, &[]);
        }
        self.state = State::OptionData { option, bytes };
        Ok(())
    }

    fn skipped(&mut self) {
        let State::Skip { option, .. } = self.state else { return };
        self.state = State::OptionHeader;
        match option {
            opt::ABORT => self.abort(),
            _ if self.tls == Tls::Required => self.refuse(option, TLS_REQUIRED),
            opt::LIST | opt::STRUCTURED_REPLY | opt::STARTTLS => self.refuse(option, NO_DATA),
            _ if !knows(option) => self.refuse(option, UNSUPPORTED),
            _ => {
                // A SET that fails leaves no context behind.
                if option == opt::SET_META_CONTEXT {
                    self.contexts = None;
                }
                self.refuse(option, (rep::ERR_TOO_BIG, "the option is larger than 64 KiB"));
            }
        }
    }

    fn abort(&mut self) {
        option::reply(opt::ABORT, rep::ACK, &[], &mut self.output);
        self.state = State::Close(CloseReason::Abort);
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Result<(), Violation> {
        self.state = State::OptionHeader;
        match option {
            opt::STARTTLS => self.start_tls(data),
            // It has no error reply: the protocol has the server close.
            opt::EXPORT_NAME if self.tls == Tls::Required => self.state = State::Close(CloseReason::Refused),
            opt::ABORT => self.abort(),
            _ if self.tls == Tls::Required => self.refuse(option, TLS_REQUIRED),
            opt::EXPORT_NAME => {
                let export = option::export_name(data).map_err(|_| Violation::ExportName)?;
                self.state = State::Lookup(Lookup::ExportName(export));
            }
            opt::LIST | opt::STRUCTURED_REPLY if !data.is_empty() => self.refuse(option, NO_DATA),
            opt::LIST => self.state = State::List,
            opt::STRUCTURED_REPLY => {
                self.structured_replies = true;
                option::reply(option, rep::ACK, &[], &mut self.output);
            }
            opt::INFO | opt::GO => match option::info_query(data) {
                Ok(query) => self.state = State::Lookup(Lookup::Info { option, query }),
                Err(refusal) => self.refuse(option, refusal),
            },
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_option(option, data),
            _ => self.refuse(option, UNSUPPORTED),
        }
        Ok(())
    }

    fn start_tls(&mut self, data: &[u8]) {
        match self.tls {
            Tls::NotOffered => self.refuse(opt::STARTTLS, UNSUPPORTED),
            _ if !data.is_empty() => self.refuse(opt::STARTTLS, NO_DATA),
            Tls::Spoken => self.refuse(opt::STARTTLS, (rep::ERR_INVALID, "TLS is spoken already")),
            Tls::Required => {
                option::reply(opt::STARTTLS, rep::ACK, &[], &mut self.output);
                self.state = State::StartTls;
            }
        }
    }

    fn meta_option(&mut self, option: u32, data: &[u8]) {
        if option == opt::SET_META_CONTEXT {
            self.contexts = None;
        }
        if !self.structured_replies {
            let refusal = (rep::ERR_INVALID, "metadata contexts need structured replies");
            return self.refuse(option, refusal);
        }
        match option::meta_query(option, data) {
            Ok(query) => self.state = State::Lookup(Lookup::Meta { option, query }),
            Err(refusal) => self.refuse(option, refusal),
        }
    }

    // The ends of lookups.

    fn refuse_lookup(&mut self, lookup: &Lookup, error: &ExportError) {
        let option = match lookup {
            Lookup::ExportName(_) => {
                self.state = State::Close(CloseReason::Refused);
                return;
            }
            Lookup::Info { option, .. } | Lookup::Meta { option, .. } => *option,
        };
        self.refuse(option, error.reply());
    }

    fn meta_context(&mut self, option: u32, mut query: MetaQuery) {
        query.dirty &= self.is_donor;
        query.context &= self.is_donor;
        query.auth &= self.is_donor;
        let sets = option == opt::SET_META_CONTEXT;
        // The id in a list is reserved.
        let id = |id| if sets { id } else { 0 };
        let contexts = [
            (query.base_allocation, BASE_ALLOCATION_ID, BASE_ALLOCATION),
            (query.dirty, DIRTY_ID, CHEETAH_DIRTY),
            (query.context, CONTEXT_ID, CHEETAH_CONTEXT),
            (query.auth, AUTH_ID, CHEETAH_AUTH),
        ];
        for (_, number, name) in contexts.into_iter().filter(|(is_chosen, ..)| *is_chosen) {
            option::meta_context(option, id(number), name, &mut self.output);
        }
        option::reply(option, rep::ACK, &[], &mut self.output);
        if sets {
            self.contexts = Some(query);
        }
    }

    fn ready(&mut self, export: String, info: ExportInfo) {
        // Contexts agreed for another export do not count.
        let agreed = self.contexts.as_ref().filter(|contexts| contexts.export == export);
        let id = |chosen: fn(&MetaQuery) -> bool, id| agreed.filter(|agreed| chosen(agreed)).map(|_| id);
        self.state = State::Ready(Negotiated {
            base_allocation: id(|agreed| agreed.base_allocation, BASE_ALLOCATION_ID),
            dirty: id(|agreed| agreed.dirty, DIRTY_ID),
            context: id(|agreed| agreed.context, CONTEXT_ID),
            auth: id(|agreed| agreed.auth, AUTH_ID),
            structured_replies: self.structured_replies,
            export,
            info,
        });
    }

    /// The export as the client is told of it.
    fn as_sent(&self, mut info: ExportInfo) -> ExportInfo {
        debug_assert!(info.size <= EXPORT_BYTES_MAX && info.block_min.is_power_of_two());
        debug_assert!(info.block_min <= info.block_preferred && info.block_min <= info.block_max);
        info.flags |= TransmissionFlags::HAS_FLAGS;
        info.flags = info.flags.without(TransmissionFlags::SEND_DF);
        if self.structured_replies {
            info.flags |= TransmissionFlags::SEND_DF;
        }
        info.description.truncate(prefix(&info.description, STRING_BYTES_MAX).len());
        info
    }

    fn refuse(&mut self, option: u32, refusal: (u32, &str)) {
        option::refuse(option, refusal, &mut self.output);
    }
}

const UNSUPPORTED: option::Refusal = (rep::ERR_UNSUP, "the option is not supported");

const TLS_REQUIRED: option::Refusal =
    (rep::ERR_TLS_REQD, "this server speaks TLS only, with members of its pool: a certificate is needed");

const NO_DATA: option::Refusal = (rep::ERR_INVALID, "the option takes no data");

const fn knows(option: u32) -> bool {
    matches!(
        option,
        opt::ABORT
            | opt::LIST
            | opt::INFO
            | opt::GO
            | opt::STRUCTURED_REPLY
            | opt::LIST_META_CONTEXT
            | opt::SET_META_CONTEXT
    )
}
