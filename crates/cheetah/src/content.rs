//! What is said of what a volume holds: at attach, in tables, and in `show`.
//! Never: calls, printing, or the judgement (`core::findings`). Called by `daemon` and `report`. Tests:
//! below.

use crate::on_disk;
use cheetah_core::api::Attached;
use cheetah_core::content::{Check, Content, ContentState, Filling, Load, Sealed, Written};
use cheetah_core::layout::LostRange;
use cheetah_core::units::{show_bytes, show_time};

/// What who attaches it ought to know.
pub fn notes_at_attach(lease: &Attached, asked_read_only: bool) -> Vec<String> {
    let (name, content) = (&lease.map.name, &lease.content);
    let mut notes = Vec::new();
    if content.state == ContentState::Opened {
        notes.push(format!("volume '{name}': {}", sentence(content)));
    } else if let Some(load) = &content.load
        && lease.read_only
        && !asked_read_only
        && content.sealed.is_none()
    {
        notes.push(format!(
            "volume '{name}' was loaded from {} and is attached read-only: say --writable to let tools change it",
            load.source.name
        ));
    }
    if !content.is_usable() {
        notes.push(format!("volume '{name}': {}", sentence(content)));
    } else if let Some(how) = content.load.as_ref().and_then(|load| load.changed.as_ref()) {
        notes.push(format!("volume '{name}' was loaded from a file that changed while it was read: {how}"));
    }
    if let (Some(written), Some(_)) = (&content.written, &content.load) {
        notes.push(format!("volume '{name}' {}", since(written)));
    }
    let on_disk = content.load.as_ref().and_then(|load| load.on_disk.as_ref());
    if let Some(what) = on_disk.and_then(|on_disk| on_disk::encrypted(on_disk)) {
        notes.push(format!("volume '{name}': {what}, and what that holds cannot be read without its key"));
    }
    let unreadable =
        content.load.iter().flat_map(|load| &load.unreadable).map(|range| range.len).sum::<u64>();
    if unreadable > 0 {
        notes.push(format!(
            "{} of volume '{name}' could not be read at the source and answer EIO: `cheetah show {name}` lists them",
            show_bytes(unreadable)
        ));
    }
    notes
}

/// For a column of a table.
pub fn word(content: &Content) -> String {
    let load = content.load.as_ref();
    let percent =
        load.and_then(|load| load.bytes_done.saturating_mul(100).checked_div(load.source.size)).unwrap_or(0);
    if let Some(overlay) = &content.overlay {
        return format!("overlay of {}", overlay.base);
    }
    let mut said = match content.state {
        ContentState::Fresh => "empty".to_owned(),
        ContentState::Written => "written".to_owned(),
        ContentState::Loading => format!("loading, {percent} %"),
        ContentState::Incomplete => format!("INCOMPLETE, {percent} %"),
        ContentState::Opened => match load.and_then(|load| load.filling.as_ref()) {
            None => format!("NOT FILLED, {percent} %"),
            Some(Filling { paused: true, .. }) => format!("paused, {percent} %"),
            Some(Filling { full: true, .. }) => format!("opened, {percent} % here"),
            Some(_) => format!("filling, {percent} %"),
        },
        ContentState::Loaded => match load.map(|load| load.check) {
            Some(Check::Same) => "loaded, verified".to_owned(),
            Some(Check::Differs) => "loaded, DIFFERS".to_owned(),
            _ => "loaded, not verified".to_owned(),
        },
    };
    let Some(load) = load else {
        return if content.sealed.is_some() { format!("{said}, sealed") } else { said };
    };
    if load.changed.is_some() {
        said.push_str(", source changed");
    }
    if !load.unreadable.is_empty() {
        said.push_str(", bad sectors");
    }
    match &content.written {
        Some(written) if written.certain => said.push_str(", written since"),
        Some(_) => said.push_str(", maybe written since"),
        None => {}
    }
    if content.sealed.is_some() {
        said.push_str(", sealed");
    } else if load.unsealed.is_some() {
        said.push_str(", NOT SEALED");
    }
    said
}

/// What a load came to.
fn sentence(content: &Content) -> String {
    if let Some(overlay) = &content.overlay {
        let size = show_bytes(overlay.size);
        return format!("what tools change of '{}' ({size}), which is not touched", overlay.base);
    }
    let Some(load) = &content.load else {
        return match content.state {
            ContentState::Fresh => "nobody has written it".to_owned(),
            _ => "written by tools".to_owned(),
        };
    };
    let (source, by) = (&load.source.name, &load.by);
    let (done, size) = (show_bytes(load.bytes_done), show_bytes(load.source.size));
    match content.state {
        ContentState::Loading => format!("{done} of {size} of {source} loaded so far, by {by}"),
        ContentState::Incomplete => {
            format!("incomplete: {done} of {size} of {source} were loaded, by {by}, {}", when(load))
        }
        ContentState::Opened => match &load.filling {
            Some(filling) => {
                format!("{done} of {size} of {source} are here, {by} {}", gets_on(load, filling))
            }
            None => format!(
                "{done} of {size} of {source} are here, and nobody fills it: what is not here is an error"
            ),
        },
        _ => {
            let checked = match load.check {
                Check::Same => "checked, and the same",
                Check::Differs => "checked, and NOT what the source held",
                Check::No => "not checked",
            };
            format!("{size} of {source} loaded by {by}, {}, {checked}", when(load))
        }
    }
}

/// How who fills it gets on.
fn gets_on(load: &Load, filling: &Filling) -> String {
    let rate = filling.bytes_per_second;
    let left = load.source.size.saturating_sub(load.bytes_done);
    match left.checked_div(rate) {
        _ if let Some(why) = &filling.trouble => format!("fills it and waits: {why}"),
        _ if filling.paused || filling.full => "reads only what tools ask for".to_owned(),
        _ if left == 0 => "checks them".to_owned(),
        Some(seconds) => format!("fills it, {}/s, {seconds} s left", show_bytes(rate)),
        None => "fills it".to_owned(),
    }
}

fn when(load: &Load) -> String {
    show_time(load.ended.unwrap_or(load.begun))
}

/// The lines of `show`.
pub fn lines(content: &Content, unreadable: &[LostRange]) -> Vec<String> {
    let mut lines = vec![format!("content     {}", sentence(content))];
    if let Some(sealed) = &content.sealed {
        let Sealed { at, by, root, contents, .. } = &**sealed;
        lines.push(format!("sealed      {} by {by}: nobody changes it any more", show_time(*at)));
        lines.push(format!("            BLAKE3 of the volume  {}", sealed.blake3()));
        if contents.is_some() {
            lines.push(format!(
                "            over its ciphertext   {root}: what donors hold is checked against this"
            ));
        }
    }
    let Some(load) = &content.load else {
        lines.extend(content.written.iter().map(|written| format!("            {}", since_made(written))));
        return lines;
    };
    if let Some(memory) = load.memory {
        lines.push(format!(
            "            donors keep {} of it at most, and the rest is read again when tools ask for it: it is",
            show_bytes(memory)
        ));
        lines.push(
            "            never here as a whole, so there is no hash of it, and nothing is verified"
                .to_owned(),
        );
    }
    lines.extend(load.md5.iter().map(|md5| format!("            MD5 of the source     {md5}")));
    lines.extend(load.sha256.iter().map(|sha256| format!("            SHA-256 of the source {sha256}")));
    lines.push(format!("            the source is         {}", load.source.identity));
    if content.state == ContentState::Opened && !load.source.checksummed {
        lines.push("            it has no checksums of its own: what it gives is taken as it is".to_owned());
    }
    if !load.unreadable.is_empty() && load.md5.is_some() {
        lines.push("            zeros stand in the hashes for what could not be read".to_owned());
    }
    lines.extend(
        load.changed.iter().map(|how| format!("            the source changed while it was read: {how}")),
    );
    lines.extend(
        load.unsealed.iter().map(|why| format!("            it was to be sealed, and is NOT: {why}")),
    );
    lines.extend(load.on_disk.iter().flat_map(|on_disk| on_disk::lines(on_disk)));
    lines.extend(content.written.iter().map(|written| format!("written     {}", since(written))));
    let line = |range| format!("unreadable  {range}: the source could not be read there");
    lines.extend(unreadable.iter().map(line));
    lines
}

fn since(written: &Written) -> String {
    let Written { at, by, certain } = written;
    match certain {
        true => format!("was written since it was loaded: first at {} by {by}", show_time(*at)),
        false => format!(
            "may have been written since it was loaded: {by} had it for writing from {} on and ended without a word",
            show_time(*at)
        ),
    }
}

fn since_made(written: &Written) -> String {
    let Written { at, by, certain } = written;
    match certain {
        true => format!("first at {} by {by}", show_time(*at)),
        false => format!("perhaps, from {} on, by {by}, who ended without a word", show_time(*at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cheetah_core::content::{ByteRange, Source};

    fn loaded() -> Content {
        let source = Source {
            name: "/e/disk.raw".into(),
            size: 200 << 20,
            identity: "inode 7".into(),
            checksummed: false,
        };
        let load = Load {
            source,
            by: "eve@lab process 7".into(),
            begun: 1_764_108_900,
            ended: Some(1_764_108_907),
            bytes_done: 200 << 20,
            filling: None,
            made: true,
            md5: Some("d41d8cd98f00b204e9800998ecf8427e".into()),
            sha256: None,
            check: Check::Same,
            changed: None,
            unsealed: None,
            unreadable: Vec::new(),
            on_disk: None,
            memory: None,
        };
        Content {
            state: ContentState::Loaded,
            load: Some(Box::new(load)),
            written: None,
            ..Content::default()
        }
    }

    #[test]
    fn a_table_says_what_there_is_to_know() {
        let mut content = loaded();
        assert_eq!(word(&Content::default()), "empty");
        assert_eq!(word(&content), "loaded, verified");
        content.written = Some(Written { at: 1, by: "bob".into(), certain: false });
        assert_eq!(word(&content), "loaded, verified, maybe written since");
        if let Some(load) = &mut content.load {
            (load.check, load.bytes_done) = (Check::No, 50 << 20);
            load.unreadable = vec![ByteRange { offset: 0, len: 512 }];
        }
        (content.state, content.written) = (ContentState::Incomplete, None);
        assert_eq!(word(&content), "INCOMPLETE, 25 %, bad sectors");
    }

    #[test]
    fn what_is_not_sealed_though_it_was_to_be_says_why() {
        let mut content = loaded();
        if let Some(load) = &mut content.load {
            load.unsealed = Some("the disk does not have the MD5 that the image claims".into());
        }
        assert_eq!(word(&content), "loaded, verified, NOT SEALED");
        let said = lines(&content, &[]).join("\n");
        assert!(said.contains("and is NOT: the disk does not have the MD5 that the image claims"), "{said}");
    }

    #[test]
    fn show_has_who_when_and_the_hashes() {
        let mut content = loaded();
        content.written = Some(Written { at: 1_764_108_999, by: "bob@lab process 9".into(), certain: true });
        let said = lines(&content, &[]).join("\n");
        assert!(said.contains(
            "200 MiB of /e/disk.raw loaded by eve@lab process 7, 2025-11-25 22:15:07 UTC, checked"
        ));
        assert!(said.contains("MD5 of the source     d41d8cd98f00b204e9800998ecf8427e"), "{said}");
        assert!(said.contains("the source is         inode 7"), "{said}");
        assert!(said.contains(
            "written     was written since it was loaded: first at 2025-11-25 22:16:39 UTC by bob@lab"
        ));
    }
}
