//! What was saved, as Digital Forensics XML 1.2.
//!
//! Owns: that text. Never: a secret; of the command line, what stands behind the host of an address is
//! left out, since a token may. Invariant: its elements come in the order of the schema, `dfxml.xsd`
//! v1.2.0 of the DFXML working group. Called by `sidecars`. Tests: below; `lab/tests/save.rs` has it read
//! by others.

use super::sidecars::{Facts, Hashed};
use crate::cli_saving::Format;
use crate::fill::Hashes;
use cheetah_core::content::ByteRange;
use cheetah_core::text::written;
use cheetah_core::units::{iso_time, show_count};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

const HEAD: &str = "<?xml version='1.0' encoding='UTF-8'?>
<dfxml xmlns='http://www.forensicswiki.org/wiki/Category:Digital_Forensics_XML'
       xmlns:dc='http://purl.org/dc/elements/1.1/' version='1.2.0'>
";
const SECTOR_BYTES: u64 = 512;

pub fn text(facts: &Facts<'_>) -> String {
    let mut text = HEAD.to_owned();
    text += "  <metadata>\n    <dc:type>Disk Image</dc:type>\n  </metadata>\n";
    text += &creator(facts, std::env::args_os());
    let _ = writeln!(text, "  <source>\n    {}\n  </source>", element("image_filename", facts.volume));
    text += &volume(facts);
    for Hashed { name, bytes, hashes } in &facts.files {
        let name = element("filename", &written(name.as_bytes()));
        let _ = writeln!(text, "  <fileobject>\n    {name}\n    <filesize>{bytes}</filesize>");
        let _ = writeln!(text, "{}  </fileobject>", digests("    ", hashes));
    }
    text + "</dfxml>\n"
}

fn creator(facts: &Facts<'_>, line: impl Iterator<Item = OsString>) -> String {
    let system = rustix::system::uname();
    let said = |text: &std::ffi::CStr| written(text.to_bytes());
    let environment = [
        element("os_sysname", &said(system.sysname())),
        element("os_release", &said(system.release())),
        element("os_version", &said(system.version())),
        element("host", &said(system.nodename())),
        element("arch", &said(system.machine())),
        element("command_line", &command_line(line)),
        element("uid", &rustix::process::getuid().as_raw().to_string()),
        element("start_time", &iso_time(facts.began)),
    ];
    let mut text = format!(
        "  <creator>\n    <program>cheetah</program>\n    <version>{}</version>\n",
        env!("CARGO_PKG_VERSION")
    );
    text += "    <execution_environment>\n";
    for line in environment {
        let _ = writeln!(text, "      {line}");
    }
    text += "    </execution_environment>\n";
    if let Some(writer) = facts.writer {
        let (name, version) = writer.split_once(' ').unwrap_or((writer, ""));
        let _ = writeln!(text, "    <library name='{}' version='{}'/>", escaped(name), escaped(version));
    }
    text + "  </creator>\n"
}

/// All of it with its hashes, and what of it could not be read.
fn volume(facts: &Facts<'_>) -> String {
    let Facts { bytes, unreadable, .. } = facts;
    let mut text = format!("  <volume>\n    <byte_runs>\n      <byte_run img_offset='0' len='{bytes}'>\n");
    text += &digests("        ", facts.hashes);
    text += "      </byte_run>\n    </byte_runs>\n";
    if !unreadable.is_empty() {
        text += "    <byte_runs>\n";
        for ByteRange { offset, len } in *unreadable {
            let _ = writeln!(
                text,
                "      <byte_run img_offset='{offset}' len='{len}' fill='0' type='unreadable'/>"
            );
        }
        text += "    </byte_runs>\n";
    }
    let _ = writeln!(text, "    <sector_size>{SECTOR_BYTES}</sector_size>");
    if !unreadable.is_empty() {
        let ranges = show_count(unreadable.len() as u64, "range");
        let what = match facts.format {
            Format::Raw => "the image",
            Format::E01 => "the E01",
        };
        let error =
            format!("{ranges} could not be read; {what} has zeros there, and the hashes are of these");
        let _ = writeln!(text, "    {}", element("error", &error));
    }
    text + "  </volume>\n"
}

fn digests(margin: &str, hashes: &Hashes) -> String {
    let Hashes { md5, sha1, sha256 } = hashes;
    let all = [("MD5", md5), ("SHA1", sha1), ("SHA256", sha256)];
    all.iter().fold(String::new(), |mut text, (kind, digits)| {
        let _ = writeln!(text, "{margin}<hashdigest type='{kind}'>{digits}</hashdigest>");
        text
    })
}

fn element(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>", escaped(text))
}

/// What XML has for itself; what it cannot have at all, control characters, does not get this far.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&apos;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// As a shell would take it.
fn command_line(line: impl Iterator<Item = OsString>) -> String {
    let quoted = |argument: OsString| {
        let text = written(public(&argument).as_bytes());
        let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%".contains(c);
        match !text.is_empty() && text.chars().all(is_plain) {
            true => text,
            false => format!("'{}'", text.replace('\'', "'\\''")),
        }
    };
    line.map(quoted).collect::<Vec<_>>().join(" ")
}

/// Of addresses, only which machines they are of.
fn public(argument: &OsStr) -> OsString {
    let Some(text) = argument.to_str().filter(|text| text.contains("://")) else {
        return argument.to_owned();
    };
    let hidden = text.split(',').map(|address| {
        let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
        let scheme_end = if scheme.is_empty() { "" } else { "://" };
        match rest.split_once('/') {
            Some((host, behind)) if !behind.is_empty() => format!("{scheme}{scheme_end}{host}/..."),
            _ => address.to_owned(),
        }
    });
    OsString::from(hidden.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_tells_no_token() {
        let line = ["cheetah", "save", "case 7", "--pool=cheetah://h:1/SECRET,cheetah://i:2/SECRET", "it's"];
        let text = command_line(line.into_iter().map(OsString::from));
        assert_eq!(text, "cheetah save 'case 7' --pool=cheetah://h:1/...,cheetah://i:2/... 'it'\\''s'");
    }

    #[test]
    fn text_cannot_be_taken_for_xml() {
        assert_eq!(
            element("a", "<b x='1'>&\u{1}\u{ffff}"),
            "<a>&lt;b x=&apos;1&apos;&gt;&amp;\u{fffd}\u{fffd}</a>"
        );
    }
}
