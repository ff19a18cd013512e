//! The data of options as a server reads it, and the option replies it writes.
//!
//! Owns: two layouts, an export with info requests and an export with metadata queries. Never: state of the
//! handshake. Key invariant: an option is checked to its last byte first, so nothing trails and what
//! contradicts its own length is INVALID, whatever else is wrong with it; only then is it held to limits.
//! Tests: `tests/server_options.rs`.

use crate::export::{ExportInfo, ListEntry};
use crate::limits::{
    EXPORT_NAME_BYTES_MAX, INFO_REQUESTS_MAX, LIST_OUTPUT_BYTES_MAX, MESSAGE_BYTES_MAX, META_QUERIES_MAX,
    META_QUERY_BYTES_MAX, STRING_BYTES_MAX,
};
use crate::proto::{
    BASE_ALLOCATION, CHEETAH_AUTH, CHEETAH_CONTEXT, CHEETAH_DIRTY, OPTION_REPLY_MAGIC, info, opt, rep,
};
use crate::wire::{Fields, len32, prefix};

/// Why an option's data is refused: the reply to give, and a sentence for the client's user.
pub(super) type Refusal = (u32, &'static str);

const MALFORMED: Refusal = (rep::ERR_INVALID, "the option's data is malformed");

/// The data of INFO and GO.
#[derive(Debug)]
pub(super) struct InfoQuery {
    pub(super) export: String,
    pub(super) wants_name: bool,
    pub(super) wants_description: bool,
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Debug)]
pub(super) struct MetaQuery {
    pub(super) export: String,
    /// Which contexts the queries select, whether or not the server has them.
    pub(super) base_allocation: bool,
    pub(super) dirty: bool,
    pub(super) context: bool,
    pub(super) auth: bool,
}

/// An export name: text of bounded length without NUL.
pub(super) fn export_name(bytes: &[u8]) -> Result<String, Refusal> {
    if bytes.len() > EXPORT_NAME_BYTES_MAX {
        return Err((rep::ERR_TOO_BIG, "the export name is longer than 4096 bytes"));
    }
    let text = std::str::from_utf8(bytes).ok().filter(|name| !name.contains('\0'));
    text.map(str::to_owned).ok_or((rep::ERR_INVALID, "the export name is not UTF-8 text without NUL"))
}

pub(super) fn info_query(data: &[u8]) -> Result<InfoQuery, Refusal> {
    let mut fields = Fields(data);
    let name = fields.counted().ok_or(MALFORMED)?;
    let count = fields.u16().ok_or(MALFORMED)?;
    let infos = fields.rest();
    if infos.len() != 2 * usize::from(count) {
        return Err(MALFORMED);
    }
    if count > INFO_REQUESTS_MAX {
        return Err((rep::ERR_TOO_BIG, "too many info requests in one option"));
    }
    // EXPORT and BLOCK_SIZE are sent unasked; what is unknown is to be ignored.
    let wants = |info: u16| infos.chunks_exact(2).any(|asked| asked == info.to_be_bytes());
    let (wants_name, wants_description) = (wants(info::NAME), wants(info::DESCRIPTION));
    Ok(InfoQuery { export: export_name(name)?, wants_name, wants_description })
}

pub(super) fn meta_query(option: u32, data: &[u8]) -> Result<MetaQuery, Refusal> {
    let mut fields = Fields(data);
    let name = fields.counted().ok_or(MALFORMED)?;
    let count = fields.u32().ok_or(MALFORMED)?;
    let queries = fields.0;
    // Each takes four bytes at least, so this ends with the data, whatever the count says.
    for _ in 0..count {
        fields.counted().ok_or(MALFORMED)?;
    }
    if !fields.is_empty() {
        return Err(MALFORMED);
    }
    if count > META_QUERIES_MAX {
        return Err((rep::ERR_TOO_BIG, "too many metadata queries in one option"));
    }
    // Listing without a query asks for everything, setting without one selects nothing.
    let lists = option == opt::LIST_META_CONTEXT;
    let all = lists && count == 0;
    let export = export_name(name)?;
    let mut query = MetaQuery { export, base_allocation: all, dirty: all, context: all, auth: all };
    let mut queries = Fields(queries);
    while let Some(text) = queries.counted() {
        if text.len() > META_QUERY_BYTES_MAX {
            return Err((rep::ERR_TOO_BIG, "a metadata query is longer than 4096 bytes"));
        }
        let text = std::str::from_utf8(text).map_err(|_| MALFORMED)?;
        if !text.contains(':') {
            return Err((rep::ERR_INVALID, "a metadata query has no namespace"));
        }
        query.base_allocation |= text == BASE_ALLOCATION || (lists && text == "base:");
        query.dirty |= text == CHEETAH_DIRTY || (lists && text == "cheetah:");
        query.context |= text == CHEETAH_CONTEXT || (lists && text == "cheetah:");
        query.auth |= text == CHEETAH_AUTH || (lists && text == "cheetah:");
    }
    Ok(query)
}

pub(super) fn reply(option: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&len32(data).to_be_bytes());
    out.extend_from_slice(data);
}

pub(super) fn refuse(option: u32, (kind, message): (u32, &str), out: &mut Vec<u8>) {
    reply(option, kind, prefix(message, MESSAGE_BYTES_MAX).as_bytes(), out);
}

/// What INFO and GO say of an export, up to but without the ACK.
pub(super) fn infos(option: u32, query: &InfoQuery, export: &ExportInfo, out: &mut Vec<u8>) {
    let mut data = info::EXPORT.to_be_bytes().to_vec();
    data.extend_from_slice(&export.size.to_be_bytes());
    data.extend_from_slice(&export.flags.0.to_be_bytes());
    reply(option, rep::INFO, &data, out);

    let mut data = info::BLOCK_SIZE.to_be_bytes().to_vec();
    for bytes in [export.block_min, export.block_preferred, export.block_max] {
        data.extend_from_slice(&bytes.to_be_bytes());
    }
    reply(option, rep::INFO, &data, out);

    if query.wants_name {
        info_text(option, info::NAME, &query.export, out);
    }
    if query.wants_description && !export.description.is_empty() {
        info_text(option, info::DESCRIPTION, &export.description, out);
    }
}

fn info_text(option: u32, kind: u16, text: &str, out: &mut Vec<u8>) {
    let mut data = kind.to_be_bytes().to_vec();
    data.extend_from_slice(prefix(text, STRING_BYTES_MAX).as_bytes());
    reply(option, rep::INFO, &data, out);
}

pub(super) fn meta_context(option: u32, id: u32, name: &str, out: &mut Vec<u8>) {
    let mut data = id.to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    reply(option, rep::META_CONTEXT, &data, out);
}

/// The answer to LIST; all of it or a refusal, so that nobody takes a part for the whole.
pub(super) fn list(entries: &[ListEntry], out: &mut Vec<u8>) {
    let start = out.len();
    for entry in entries {
        if entry.name.len() > EXPORT_NAME_BYTES_MAX || out.len() - start > LIST_OUTPUT_BYTES_MAX {
            out.truncate(start);
            refuse(opt::LIST, (rep::ERR_POLICY, "the list of exports is too long to be sent"), out);
            return;
        }
        let mut data = len32(entry.name.as_bytes()).to_be_bytes().to_vec();
        data.extend_from_slice(entry.name.as_bytes());
        data.extend_from_slice(prefix(&entry.description, STRING_BYTES_MAX).as_bytes());
        reply(opt::LIST, rep::SERVER, &data, out);
    }
    reply(opt::LIST, rep::ACK, &[], out);
}
