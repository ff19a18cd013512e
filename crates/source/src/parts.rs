//! A raw image in parts: `disk.001`, `disk.002` ..., `disk.aa`, `disk.ab` ..., each as large as the first,
//! and the last as large as what was left.
//!
//! Owns: how tools number parts, finding all of them from any one, naming the one that is missing. Never:
//! what the disk in them is. Invariant: parts are joined only where each is there and has the size that it
//! must have. Called by `open`. Tests: below.

use crate::files;
use crate::{RawSource, Source, SourceError, Unreadable};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// More than any tool makes; each is a question to a server.
const PARTS_ASKED_MAX: usize = 10_000;

/// The parts of one image, in order.
#[derive(Debug)]
pub(crate) struct Parts {
    path: PathBuf,
    files: Vec<RawSource>,
    /// Of all but the last.
    part_bytes: u64,
    size: u64,
}

/// The image that a file is a part of; `None` when it is one by itself.
pub(crate) fn open(given: &RawSource) -> Result<Option<Parts>, SourceError> {
    let path = given.path();
    let Some(names) = all_of(given)? else { return Ok(None) };
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        files.push(given.part_beside(&name)?);
    }
    let part_bytes = files.first().map_or(0, Source::size);
    let (last, whole) = (files.len() - 1, |file: &&RawSource| file.size() == part_bytes);
    let odd = files[..last].iter().find(|file| !whole(file));
    if let Some(odd) = odd.or_else(|| files.last().filter(|file| file.size() > part_bytes)) {
        let why = format!(
            "one of {} parts and has {} bytes where the first has {part_bytes}, and only the last may be smaller. If they \
             belong together, put them together with `cat`, in order, and load what comes of it; --raw loads this \
             part alone",
            files.len(),
            odd.size()
        );
        return Err(SourceError::Refused { path: odd.path().to_path_buf(), why });
    }
    let size = files.iter().map(Source::size).sum();
    Ok(Some(Parts { path: path.to_path_buf(), files, part_bytes, size }))
}

/// The files of the image that this one is a part of, from the first to the last.
fn all_of(given: &RawSource) -> Result<Option<Vec<PathBuf>>, SourceError> {
    let path = given.path();
    let Some(ending) = files::ending(path) else { return Ok(None) };
    let with = |ending: &str| files::with_ending(path, ending);
    let Some(firsts) = firsts(ending) else { return Ok(None) };
    let beside = match given.is_remote() {
        true => endings_asked_for(given, &firsts, ending)?,
        false => endings_beside(path, ending),
    };
    let Some(first) = firsts.iter().find(|first| beside.contains(first)) else {
        // Alone it may be what its name does not say: a version, a year. A zero in front makes it a part.
        let counted =
            ending.len() > 2 && ending.starts_with('0') && ending.bytes().all(|b| b.is_ascii_digit());
        let neighbour =
            firsts.len() > 1 && beside.iter().any(|other| other != ending && is_next(other, ending));
        return match counted || neighbour {
            true => Err(missing(path, with(firsts.last().map_or("001", String::as_str)))),
            false => Ok(None),
        };
    };
    let mut endings = vec![first.clone()];
    while let Some(next) = endings.last().and_then(|last| next(last).into_iter().find(|n| beside.contains(n)))
    {
        endings.push(next);
    }
    // What is behind a gap.
    let behind = |other: &&String| other.len() == first.len() && !endings.contains(other);
    if beside.iter().any(|other| behind(&other)) || !endings.iter().any(|one| one == ending) {
        let lacks = endings.last().and_then(|last| next(last).into_iter().next());
        // `disk.aa` beside `disk.zz`, whatever that is, is no gap.
        let letters = first.bytes().all(|byte| byte.is_ascii_alphabetic());
        return match lacks {
            Some(lacks) if !letters || endings.len() > 1 => Err(missing(path, with(&lacks))),
            _ => Ok(None),
        };
    }
    if endings.len() == 1 {
        return Ok(None);
    }
    Ok(Some(endings.iter().map(|ending| with(ending)).collect()))
}

fn missing(path: &Path, part: PathBuf) -> SourceError {
    SourceError::Missing { path: path.to_path_buf(), part }
}

/// What the first part may be called where one has this ending; `None` where it is none.
fn firsts(ending: &str) -> Option<Vec<String>> {
    let all = |is: fn(&u8) -> bool| ending.bytes().all(|byte| is(&byte));
    let len = ending.len();
    if (2..=4).contains(&len) && all(u8::is_ascii_digit) {
        // Counting from .001 goes on behind .999 with .1000.
        let widths = (2..=len).rev();
        return Some(widths.flat_map(|width| [0, 1].map(|number| format!("{number:0width$}"))).collect());
    }
    // As split(1) counts. Other letters are too common among files that are whole.
    let (small, capital) = (all(u8::is_ascii_lowercase), all(u8::is_ascii_uppercase));
    let begins = ending.starts_with(['a', 'A']) || (len == 4 && ending.starts_with(['z', 'Z']));
    if (2..=4).contains(&len) && (small || capital) && (begins || len == 2) {
        let letter = if small { "a" } else { "A" };
        let mut firsts = vec![letter.repeat(len.min(3))];
        firsts.extend((len == 4).then(|| letter.repeat(2)));
        return Some(firsts);
    }
    None
}

/// What tools call the part behind one of this ending.
fn next(ending: &str) -> Vec<String> {
    let digits = ending.bytes().all(|byte| byte.is_ascii_digit());
    let (zero, last) = match ending.bytes().next() {
        _ if digits => (b'0', b'9'),
        Some(byte) if byte.is_ascii_uppercase() => (b'A', b'Z'),
        _ => (b'a', b'z'),
    };
    let mut counted = ending.as_bytes().to_vec();
    let carried = counted.iter().rposition(|byte| *byte != last);
    let mut found = Vec::new();
    let as_text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_default();
    if let Some(at) = carried {
        counted[at] += 1;
        counted[at + 1..].fill(zero);
        found.push(as_text(counted));
    } else if digits {
        found.push(format!("1{}", "0".repeat(ending.len())));
    }
    // split(1) never fills its last letter: behind .yz comes .zaaa, behind .89 comes .9000.
    let bytes = ending.as_bytes();
    if bytes[0] + 1 == last && bytes[1..].iter().all(|byte| *byte == last) {
        let wider = [vec![last], vec![zero; ending.len() + 1]].concat();
        found.push(as_text(wider));
    }
    found
}

fn is_next(one: &str, other: &str) -> bool {
    next(one).iter().any(|next| next == other) || next(other).iter().any(|next| next == one)
}

/// The same where a directory cannot be listed: a server is asked for one after the other, to the first that
/// is not there.
fn endings_asked_for(given: &RawSource, firsts: &[String], ending: &str) -> Result<Vec<String>, SourceError> {
    let is_there = |ending: &String| {
        let is_given = files::ending(given.path()) == Some(ending);
        Ok::<_, SourceError>(is_given || given.beside(&files::with_ending(given.path(), ending))?.is_some())
    };
    let mut found = vec![ending.to_owned()];
    let mut from = vec![ending.to_owned()];
    for first in firsts {
        if is_there(first)? {
            from.push(first.clone());
            break;
        }
    }
    while let Some(last) = from.pop() {
        if !found.contains(&last) {
            found.push(last.clone());
        }
        for next in next(&last) {
            if !found.contains(&next) && found.len() < PARTS_ASKED_MAX && is_there(&next)? {
                from.push(next);
                break;
            }
        }
    }
    Ok(found)
}

/// The endings of files whose names are the same up to that, and which may be parts as well.
fn endings_beside(path: &Path, ending: &str) -> Vec<String> {
    let digits = |ending: &str| ending.bytes().all(|byte| byte.is_ascii_digit());
    let kind = |of: &str| (digits(of), of.bytes().all(|byte| byte.is_ascii_uppercase()));
    let stem: Option<OsString> = path.file_stem().map(OsString::from);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A directory that cannot be listed leaves the file alone.
    let Ok(listed) = std::fs::read_dir(directory) else { return vec![ending.to_owned()] };
    let names = listed.filter_map(|entry| Some(PathBuf::from(entry.ok()?.file_name())));
    let same = names.filter(|name| name.file_stem() == stem.as_deref());
    let endings = same.filter_map(|name| Some(name.extension()?.to_str()?.to_owned()));
    endings.filter(|other| kind(other) == kind(ending) && (2..=4).contains(&other.len())).collect()
}

impl Parts {
    /// Which part a byte is in, where in it, and how much of a read it has.
    fn place(&self, offset: u64, len: usize) -> (&RawSource, u64, usize) {
        let at = usize::try_from(offset / self.part_bytes).unwrap_or(usize::MAX).min(self.files.len() - 1);
        let inside = offset - at as u64 * self.part_bytes;
        let left = self.files[at].size().saturating_sub(inside);
        (&self.files[at], inside, usize::try_from(left).map_or(len, |left| left.min(len)))
    }
}

impl Source for Parts {
    fn size(&self) -> u64 {
        self.size
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn describe(&self) -> String {
        format!("raw image in {} parts", self.files.len())
    }

    fn read_exact_at(&self, offset: u64, room: &mut [u8]) -> Result<(), SourceError> {
        let mut done = 0;
        while done < room.len() {
            let (file, inside, len) = self.place(offset + done as u64, room.len() - done);
            // Behind the last byte, as in one file.
            let len = if len == 0 { room.len() - done } else { len };
            file.read_exact_at(inside, &mut room[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    fn read_past_errors_at(&self, offset: u64, room: &mut [u8]) -> Result<Vec<Unreadable>, SourceError> {
        let (mut done, mut lost) = (0, Vec::new());
        while done < room.len() {
            let at = offset + done as u64;
            let (file, inside, len) = self.place(at, room.len() - done);
            let len = if len == 0 { room.len() - done } else { len };
            let within = file.read_past_errors_at(inside, &mut room[done..done + len])?;
            lost.extend(within.into_iter().map(|Unreadable { range, why }| Unreadable {
                range: at + (range.start - inside)..at + (range.end - inside),
                why,
            }));
            done += len;
        }
        Ok(lost)
    }

    fn identity(&self) -> String {
        format!("{}: {}", self.describe(), files::identity(&self.files))
    }

    fn changed(&self) -> Option<String> {
        files::changed(&self.files)
    }

    fn is_checksummed(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::files::tests::Scratch;

    #[test]
    fn tools_count_in_their_ways() {
        let nexts = |ending: &str| next(ending).join(" ");
        assert_eq!(nexts("001"), "002");
        assert_eq!(nexts("999"), "1000");
        assert_eq!(nexts("09"), "10");
        assert_eq!(nexts("89"), "90 9000");
        assert_eq!(nexts("az"), "ba");
        assert_eq!(nexts("yz"), "za zaaa");
        assert_eq!(nexts("AAZ"), "ABA");
        assert_eq!(nexts("zz"), "");
        let firsts = |ending: &str| firsts(ending).unwrap_or_default().join(" ");
        assert_eq!(firsts("003"), "000 001 00 01");
        assert_eq!(firsts("ab"), "aa");
        assert_eq!(firsts("AAB"), "AAA");
        assert_eq!((firsts("dd").as_str(), firsts("raw").as_str(), firsts("img").as_str()), ("aa", "", ""));
        assert_eq!(firsts("E01") + &firsts("7") + &firsts("a") + &firsts("aB"), "");
    }

    /// Makes parts of some bytes, and opens one of them.
    fn opened(parts: &[(&str, usize)], given: &str) -> Result<String, String> {
        let scratch = Scratch::new();
        let mut whole = Vec::new();
        for (name, len) in parts {
            let bytes: Vec<u8> = (0..*len).map(|at| (at * 7 + name.len() * 13 + whole.len()) as u8).collect();
            scratch.file(name, &bytes);
            whole.extend(bytes);
        }
        let source = crate::open(&scratch.join(given), &Options::default());
        let source =
            source.map_err(|error| error.to_string().replace(&scratch.join("").display().to_string(), ""))?;
        if source.describe().contains("parts") {
            assert_eq!(source.size(), whole.len() as u64);
            let mut all = vec![0; whole.len()];
            source.read_exact_at(0, &mut all).map_err(|e| e.to_string())?;
            assert!(all == whole);
            let (from, to) = (whole.len() / 3, whole.len() - 1);
            assert_eq!(
                source.read_past_errors_at(from as u64, &mut all[from..to]).map_err(|e| e.to_string())?,
                []
            );
            assert!(all == whole);
            assert!(source.read_exact_at(from as u64, &mut vec![0; whole.len()]).is_err());
        }
        Ok(source.describe())
    }

    #[test]
    fn any_part_opens_all() {
        for names in [
            ["disk.001", "disk.002", "disk.003"],
            ["disk.000", "disk.001", "disk.002"],
            ["disk.dd.00", "disk.dd.01", "disk.dd.02"],
            ["disk.aa", "disk.ab", "disk.ac"],
            ["disk.AAA", "disk.AAB", "disk.AAC"],
            ["disk.0001", "disk.0002", "disk.0003"],
        ] {
            let parts = [(names[0], 5000), (names[1], 5000), (names[2], 123)];
            for given in names {
                assert_eq!(opened(&parts, given).as_deref(), Ok("raw image in 3 parts"), "{given}");
            }
        }
        let many: Vec<String> = (1..=1001).map(|number| format!("disk.{number:03}")).collect();
        let many: Vec<(&str, usize)> = many.iter().map(|name| (name.as_str(), 16)).collect();
        assert_eq!(opened(&many, "disk.1000").as_deref(), Ok("raw image in 1001 parts"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let gap = [("disk.001", 50), ("disk.002", 50), ("disk.004", 50)];
        for given in ["disk.001", "disk.004"] {
            let why = opened(&gap, given).expect_err("a part is missing");
            assert!(why.starts_with("disk.003 is missing"), "{why}");
        }
        let why = opened(&[("disk.ab", 50), ("disk.ac", 50), ("disk.aa", 50), ("disk.ae", 50)], "disk.ab");
        assert!(why.expect_err("a gap").starts_with("disk.ad is missing"));
        let why = opened(&[("disk.002", 50), ("disk.003", 50)], "disk.003").expect_err("no first part");
        assert!(why.starts_with("disk.") && why.contains("01 is missing"), "{why}");
        assert!(opened(&[("disk.007", 50)], "disk.007").is_err());
        let odd = opened(&[("disk.001", 50), ("disk.002", 49), ("disk.003", 50)], "disk.001");
        assert!(odd.expect_err("an odd part").starts_with("disk.002 is one of 3 parts and has 49 bytes"));
        let last = opened(&[("disk.001", 50), ("disk.002", 51)], "disk.001");
        assert!(last.expect_err("a large part").contains("disk.002 is one of 2 parts and has 51 bytes"));
    }

    #[test]
    fn what_is_no_part_is_read_by_itself() {
        assert_eq!(opened(&[("disk.001", 50)], "disk.001").as_deref(), Ok("raw image"));
        assert_eq!(opened(&[("disk.dd", 50), ("disk.de", 50)], "disk.dd").as_deref(), Ok("raw image"));
        assert_eq!(opened(&[("disk", 50), ("disk.001", 50)], "disk").as_deref(), Ok("raw image"));
        assert_eq!(opened(&[("disk.raw", 50), ("disk.rax", 50)], "disk.raw").as_deref(), Ok("raw image"));
        assert_eq!(opened(&[("mail.2019", 50)], "mail.2019").as_deref(), Ok("raw image"));
        assert_eq!(
            opened(&[("other.001", 50), ("disk.002", 50), ("disk.001", 50)], "other.001").as_deref(),
            Ok("raw image")
        );
    }
}
