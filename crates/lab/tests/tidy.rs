//! Rules of the house that no compiler checks: what each file opens with, how long things are, what may
//! depend on what. Everything is read from the files that git tracks (and those not yet added), so build
//! results never count.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cheetah_lab::tools;

/// Without the tests in it.
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 79;
/// More of them a header lists.
const MODULES_UNLISTED_MAX: usize = 2;
/// `max_width` of rustfmt, which leaves comments and text as they are.
const LINE_CHARS_MAX: usize = 110;

/// What each crate may depend on within the house. Arrows point inward only.
const ARROWS: [(&str, &[&str]); 13] = [
    ("core", &[]),
    ("nbd", &[]),
    ("terms", &["core", "nbd"]),
    ("link", &["nbd"]),
    ("rim", &["core", "link", "nbd", "terms"]),
    ("front", &["core", "nbd", "rim"]),
    ("client", &["core", "rim"]),
    ("source", &["core", "link", "nbd"]),
    ("filesystem", &[]),
    ("sim", &["core", "nbd", "terms"]),
    ("model", &["core"]),
    ("cheetah", &["client", "core", "filesystem", "model", "nbd", "rim", "front", "source"]),
    // Nothing depends on the lab; it drives the program from outside, reuses the codec for its load
    // generator, measures the client and the erasure code by themselves, compares the readers of images with
    // other programs, and draws with the model's plots.
    ("lab", &["client", "core", "model", "nbd", "rim", "source"]),
];

/// Crates that may hold unsafe code; every other one forbids it at the top of its library or program.
const UNSAFE_CRATES: [&str; 3] = ["rim", "front", "lab"];

fn root() -> PathBuf {
    // Asked for now and not when it is built: two checkouts share one build directory.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    Path::new(&here).join("../..").canonicalize().expect("the workspace")
}

/// Every file of the project by its path from the workspace.
fn files() -> BTreeMap<String, String> {
    let root = root();
    let root_name = root.display().to_string();
    let listed =
        tools::run("git", ["-C", &root_name, "ls-files", "--cached", "--others", "--exclude-standard"]);
    let text = |name: &str| fs::read_to_string(root.join(name)).ok();
    let files: BTreeMap<_, _> =
        listed.lines().filter_map(|name| Some((name.to_owned(), text(name)?))).collect();
    assert!(files.len() > 20, "git lists only {} files", files.len());
    files
}

fn rust_files() -> BTreeMap<String, String> {
    files().into_iter().filter(|(name, _)| name.ends_with(".rs")).collect()
}

#[track_caller]
fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// `FILE:LINE: TEXT` of every line for which `wrong` holds.
fn lines_that(files: &BTreeMap<String, String>, wrong: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in files {
        for (index, line) in text.lines().enumerate() {
            if wrong(name, line) {
                found.push(format!("{name}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    found
}

#[test]
fn every_rust_file_opens_with_what_it_is() {
    let found: Vec<String> = rust_files()
        .into_iter()
        .filter(|(_, text)| !text.trim_start_matches("#![no_main]").trim_start().starts_with("//! "))
        .map(|(name, _)| name)
        .collect();
    assert_none("files without a //! header", &found);
}

/// The modules that a header lists behind `Files:` or `Parts:`, up to its next paragraph or `Tests:`.
fn listed_modules(text: &str) -> Option<Vec<&str>> {
    let header_len = text.lines().take_while(|line| line.starts_with("//!")).map(|line| line.len() + 1).sum();
    let header = &text[..header_len];
    let list = header.split_once("Files:").or_else(|| header.split_once("Parts:"))?.1;
    let list = list.split("Tests:").next()?.split("//!\n").next()?;
    let is_module = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    Some(list.split('`').skip(1).step_by(2).filter(is_module).collect())
}

/// `mod NAME;` of a file, whatever it is seen by.
fn modules(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let name = line.strip_suffix(';')?.rsplit_once("mod ")?.1;
        (!line.starts_with(['/', ' '])).then_some(name)
    })
}

#[test]
fn a_header_lists_the_modules_that_there_are() {
    let (mut found, mut lists) = (Vec::new(), 0);
    for (name, text) in rust_files() {
        let there: Vec<&str> = modules(&text).collect();
        let is_of_tests = |module: &&&str| module.ends_with("tests");
        let Some(listed) = listed_modules(&text) else {
            let is_root = ["/lib.rs", "/main.rs"].iter().any(|end| name.ends_with(end));
            if name.contains("/src/")
                && !is_root
                && there.iter().filter(|module| !is_of_tests(module)).count() > MODULES_UNLISTED_MAX
            {
                found.push(format!("{name} has modules that its header does not list behind `Files:`"));
            }
            continue;
        };
        lists += 1;
        let missing = there.iter().filter(|module| !is_of_tests(module) && !listed.contains(module));
        found.extend(missing.map(|module| format!("{name} does not list `{module}`")));
        let gone = listed.iter().filter(|module| !there.contains(module));
        found.extend(gone.map(|module| format!("{name} lists `{module}`, which is none of its modules")));
    }
    assert!(lists >= 10, "only {lists} headers list modules: are they read?");
    assert_none("headers that are not true", &found);
}

/// Files of tests that are parts of one program: what that does not name is never run.
#[test]
fn a_program_of_tests_has_every_file_that_there_is() {
    let (files, mut programs) = (files(), 0);
    let mut found = Vec::new();
    for (name, text) in &files {
        let Some(tests) = name.strip_suffix("/tests/machines.rs") else { continue };
        programs += 1;
        let there: Vec<&str> = modules(text).collect();
        let within = format!("{tests}/tests/");
        let beside = files.keys().filter_map(|name| name.strip_prefix(&within)?.strip_suffix(".rs"));
        let of_it = beside.filter(|name| !name.contains('/') && *name != "machines" && !there.contains(name));
        found.extend(of_it.map(|name| format!("{within}machines.rs does not name `{name}`")));
    }
    assert_eq!(programs, 2, "those of core and nbd");
    assert_none("tests that never run", &found);
}

#[test]
fn no_line_is_longer_than_rustfmt_would_have_it() {
    let long = |_: &str, line: &str| {
        // Text in quotes stays on the line that it was written on.
        let holds_text = line.contains('"') || line.ends_with('\\');
        let is_comment = line.trim_start().starts_with("//");
        line.chars().count() > LINE_CHARS_MAX && (is_comment || !holds_text)
    };
    assert_none("too long", &lines_that(&rust_files(), long));
}

#[test]
fn files_and_functions_are_of_a_sitting() {
    let mut found = Vec::new();
    for (name, text) in rust_files() {
        let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
        let lines = code.lines().count();
        if lines > FILE_LINES_MAX {
            found.push(format!("{name}: {lines} lines, at most {FILE_LINES_MAX}"));
        }
        for (line, function, length) in functions(&text) {
            if length > FUNCTION_LINES_MAX {
                found.push(format!(
                    "{name}:{line}: fn {function} has {length} lines, at most {FUNCTION_LINES_MAX}"
                ));
            }
        }
    }
    assert_none("too long", &found);
}

/// Beside what it has to say, each is as long as somebody reads in one go.
#[test]
fn what_is_read_first_stays_short_and_leads_to_what_is_there() {
    let texts: Vec<(&str, String)> = ["README.md", "ARCHITECTURE.md", "docs/DETAILS.md"]
        .map(|name| (name, fs::read_to_string(root().join(name)).expect("it is there")))
        .to_vec();
    let words =
        |text: &str| text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
    assert!(texts[0].1.lines().count() <= 90, "README has {} lines", texts[0].1.lines().count());
    assert!(words(&texts[1].1) <= 3_000, "ARCHITECTURE has {} words", words(&texts[1].1));
    let headings = |text: &str| -> Vec<String> {
        let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
        let names = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
        let kept = |c: &char| c.is_alphanumeric() || " -".contains(*c);
        names.map(|name| name.chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
    };
    let mut dead = Vec::new();
    for (name, text) in &texts {
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (path, part) = link.split_once('#').unwrap_or((link, ""));
            let from = root().join(name);
            let file = if path.is_empty() { from } else { from.parent().expect("a folder").join(path) };
            let there = fs::read_to_string(&file)
                .is_ok_and(|text| part.is_empty() || headings(&text).iter().any(|heading| heading == part));
            let is_folder = part.is_empty() && file.is_dir();
            if !there && !is_folder {
                dead.push(format!("{name}: {link}"));
            }
        }
    }
    assert_none("lead nowhere", &dead);
}

#[test]
fn what_the_volume_machine_is_made_of_has_a_file_each() {
    let (mut found, mut seen) = (Vec::new(), 0);
    for (name, text) in rust_files() {
        if !name.starts_with("crates/core/src/volume/") {
            continue;
        }
        let own = |of: &str| {
            let defines = |kind: &str| {
                text.contains(&format!("{kind} {of} ")) || text.contains(&format!("{kind} {of}<"))
            };
            defines("struct") || defines("enum")
        };
        let blocks = text.lines().filter_map(|line| line.strip_prefix("impl")?.strip_suffix(" {"));
        for block in blocks.filter(|block| !block.contains(" for ")) {
            let of = block.trim_start_matches(['<', 'T', '>']).trim();
            let of = of.split('<').next().unwrap_or(of);
            seen += 1;
            if !own(of) {
                found.push(format!("{name}: impl {of}"));
            }
        }
    }
    assert!(seen > 20, "only {seen} blocks were seen: are they read?");
    assert_none("written outside their own file", &found);
}

/// A caller of a library asks an error what it is. Programs show theirs, and parsers of their options give
/// clap a sentence.
#[test]
fn errors_of_libraries_are_types() {
    const LIBRARIES: [&str; 8] = ["core", "nbd", "terms", "link", "rim", "front", "client", "source"];
    let is_of_library =
        |name: &str| LIBRARIES.iter().any(|of| name.starts_with(&format!("crates/{of}/src/")));
    let without_tests = |(name, text): (String, String)| {
        let code = text.split("\n#[cfg(test)]\n").next().unwrap_or_default().to_owned();
        (name, code)
    };
    let files =
        rust_files().into_iter().filter(|(name, _)| is_of_library(name) && !name.ends_with("tests.rs"));
    let files: BTreeMap<String, String> = files.map(without_tests).collect();
    assert!(files.len() > 100, "only {} files of libraries", files.len());
    let is_text = |_: &str, line: &str| line.contains("Result<") && line.ends_with(", String> {");
    assert_none("errors that are text", &lines_that(&files, is_text));
}

/// (line, name, lines) of every function that rustfmt laid out: its body ends at a brace of its own
/// indentation.
fn functions(text: &str) -> Vec<(usize, String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let indentation = line.len() - line.trim_start().len();
        let Some(name) = function_name(line.trim_start()) else { continue };
        let end = format!("{}}}", " ".repeat(indentation));
        let length = lines[index..]
            .iter()
            .position(|line| *line == end || line.ends_with(';') && index_is(line, indentation));
        found.push((index + 1, name.to_owned(), length.map_or(1, |last| last + 1)));
    }
    found
}

/// Whether a line stands at exactly this indentation.
fn index_is(line: &str, indentation: usize) -> bool {
    line.len() - line.trim_start().len() == indentation
}

fn function_name(line: &str) -> Option<&str> {
    const BEFORE: [&str; 7] =
        ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe ", "extern \"C\" "];
    let mut rest = line;
    while let Some(shorter) = BEFORE.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = shorter;
    }
    rest.strip_prefix("fn ")?.split(['(', '<']).next()
}

#[test]
fn nothing_is_left_unfinished() {
    // Spelt in two halves, so that this file does not find itself.
    let words: Vec<String> =
        [("to", "do!("), ("unimple", "mented!("), ("db", "g!("), ("FIX", "ME"), ("X", "XX")]
            .iter()
            .map(|(a, b)| format!("{a}{b}"))
            .collect();
    let found = lines_that(&rust_files(), |_, line| words.iter().any(|word| line.contains(word)));
    assert_none("unfinished", &found);
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    let words: Vec<String> = [
        ("/wo", "rk/"),
        ("/ro", "ot/"),
        ("..", "/shared"),
        ("crates", ".io/api"),
        ("index.crates", ".io"),
        ("static.crates", ".io"),
        ("deb.debian", ".org"),
        ("security.debian", ".org"),
        ("static.rust-", "lang.org"),
        ("sh.rust", "up.rs"),
    ]
    .iter()
    .map(|(a, b)| format!("{a}{b}"))
    .collect();
    let mut files = files();
    files.retain(|name, _| name != "Cargo.lock");
    let found = lines_that(&files, |_, line| words.iter().any(|word| line.contains(word.as_str())));
    assert_none("paths of one machine, or hosts of registries", &found);
}

#[test]
fn arrows_point_inward() {
    let mut found = Vec::new();
    for (name, text) in files() {
        let Some(member) = name.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let Some((_, allowed)) = ARROWS.iter().find(|(arrow, _)| *arrow == member) else {
            found.push(format!("{name}: a crate that the table of arrows does not know"));
            continue;
        };
        for dependency in dependencies(&text, false) {
            let Some(inner) = dependency.strip_prefix("cheetah-") else { continue };
            if !allowed.contains(&inner) {
                found.push(format!("{name}: {member} must not depend on {inner}"));
            }
        }
        for dependency in dependencies(&text, true) {
            // Tests of a crate may use the inner ones too, and the lab is everybody's.
            let Some(inner) = dependency.strip_prefix("cheetah-") else { continue };
            if !allowed.contains(&inner) && inner != "lab" {
                found.push(format!("{name}: tests of {member} must not depend on {inner}"));
            }
        }
    }
    assert_none("arrows that point outward", &found);
}

/// The names under `[dependencies]` and `[build-dependencies]`, or those under `[dev-dependencies]`.
fn dependencies(manifest: &str, for_tests: bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut section = "";
    for line in manifest.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            continue;
        }
        let wanted = match for_tests {
            true => section.ends_with("dev-dependencies"),
            false => section.ends_with("dependencies") && !section.ends_with("dev-dependencies"),
        };
        if wanted && !line.is_empty() && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            found.push(name.trim_matches('"').to_owned());
        }
    }
    found
}

#[test]
fn the_core_decides_and_does_nothing_else() {
    let files = files();
    let manifest = &files["crates/core/Cargo.toml"];
    let pure = ["serde", "serde_json", "sha2"];
    assert_eq!(dependencies(manifest, false), pure, "core depends on what computes, and nothing else");
    let manifest = &files["crates/nbd/Cargo.toml"];
    assert_eq!(dependencies(manifest, false), Vec::<String>::new(), "nbd depends on nothing");
    let manifest = &files["crates/terms/Cargo.toml"];
    let words = ["cheetah-core", "cheetah-nbd"];
    assert_eq!(dependencies(manifest, false), words, "terms depends on what it translates");

    let outside = |name: &str, line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        let words: &[&str] = match name {
            _ if name.starts_with("crates/core/src/") => &[
                "std::time::Instant",
                "std::time::SystemTime",
                "std::fs",
                "std::thread",
                "std::process",
                "std::env",
                "std::io",
                "HashMap",
                "HashSet",
            ],
            _ if name.starts_with("crates/nbd/src/") || name.starts_with("crates/terms/src/") => {
                &["std::fs", "std::thread", "std::time::Instant"]
            }
            _ => return false,
        };
        uses_sockets(code) || words.iter().any(|word| code.contains(word))
    };
    assert_none("effects in a crate that has none", &lines_that(&rust_files(), outside));
}

/// Whether a line uses more of `std::net` than an address type by its full name: addresses are data, sockets
/// are not.
fn uses_sockets(code: &str) -> bool {
    const ADDRESSES: [&str; 4] = ["SocketAddr", "IpAddr", "Ipv4Addr", "Ipv6Addr"];
    let name_of =
        |rest: &str| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
    code.split("std::net").skip(1).any(|rest| {
        let name = name_of(rest.trim_start_matches("::"));
        !ADDRESSES.contains(&name.as_str())
    })
}

#[test]
fn unsafe_code_is_where_it_is_said_to_be() {
    let files = rust_files();
    let mut found = Vec::new();
    for (member, _) in ARROWS {
        let main = ["lib.rs", "main.rs"]
            .iter()
            .find_map(|file| files.get_key_value(&format!("crates/{member}/src/{file}")));
        let (name, text) = main.unwrap_or_else(|| panic!("crates/{member} has neither lib.rs nor main.rs"));
        let forbids = text.contains("#![forbid(unsafe_code)]");
        let denies = forbids || text.contains("#![deny(unsafe_code)]");
        if !UNSAFE_CRATES.contains(&member) && !forbids {
            found.push(format!("{name}: lacks #![forbid(unsafe_code)]"));
        } else if !denies {
            found.push(format!(
                "{name}: lacks #![deny(unsafe_code)], with #![allow] only in the modules that need it"
            ));
        }
    }
    // A block needs its reason in the lines before it; the lint asks the same where clippy runs.
    for (name, text) in &files {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let block = format!("un{} {{", "safe");
            let explained =
                || lines[index.saturating_sub(6)..=index].iter().any(|line| line.contains("SAFETY:"));
            if code.contains(&block) && !explained() {
                found.push(format!("{name}:{}: an unsafe block without its reason", index + 1));
            }
        }
    }
    assert_none("unsafe code", &found);
}

/// The checks above find what they look for.
#[test]
fn planted_faults_are_found() {
    let long = format!("    pub(crate) async fn long(&self) {{\n{}    }}\n", "        step();\n".repeat(130));
    assert_eq!(functions(&long), [(1, "long".to_owned(), 132)]);
    assert_eq!(functions("fn short() {\n}\nfn next() {}\n")[0], (1, "short".to_owned(), 2));
    assert!(uses_sockets("use std::net::TcpStream;") && uses_sockets("use std::net::{IpAddr, TcpStream};"));
    assert!(!uses_sockets("use std::net::SocketAddr;") && !uses_sockets("std::net::Ipv6Addr::LOCALHOST"));
    let manifest = "[package]\nname = \"x\"\n[dependencies]\ncheetah-rim.workspace = true\nserde = \"1\"\n\
                    [dev-dependencies]\nproptest = \"1\"\n";
    assert_eq!(dependencies(manifest, false), ["cheetah-rim", "serde"]);
    assert_eq!(dependencies(manifest, true), ["proptest"]);
    let files = BTreeMap::from([("a.rs".to_owned(), "good\nbad\n".to_owned())]);
    assert_eq!(lines_that(&files, |_, line| line == "bad"), ["a.rs:2: bad"]);
}
