//! A build of the program with faults planted in it, which `cheetah validate` has to find.
//!
//! Owns the faults, and the copy of the sources that they are planted in, under the directory of build
//! results. Never: the sources themselves: the product has no switch for a fault, not even one that is off.
//! Invariant: each fault has its place, or the build fails and says which has none. One build has all of
//! them; the variable `CHEETAH_PLANTED` says which is there. What is not changed is not built twice. Called
//! by: `tests/validate.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{pool, tools};

/// Says which fault is there.
pub const VARIABLE: &str = "CHEETAH_PLANTED";
/// The crates that the program is built of.
const CRATES: [&str; 11] =
    ["cheetah", "client", "core", "filesystem", "front", "link", "model", "nbd", "rim", "source", "terms"];

/// Where they lie in the copy, in place of `crates/`. Cargo knows a crate by its path within its workspace:
/// under the same one it would take what was built of the copy for what is built of the sources.
const FOLDER: &str = "faulty/";

/// A fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The requirement that is not met then.
    pub requirement: &'static str,
    /// The file of its place.
    file: &'static str,
    /// What stands there, once.
    right: &'static str,
    /// What stands there instead; `PLANTED` is whether this fault is the one.
    wrong: &'static str,
}

/// Of each kind that an examiner has to fear, one.
pub const FAULTS: [Fault; 4] = [
    // Nobody compares what came with its checksum.
    Fault {
        requirement: "wrong-memory-found",
        file: "crates/rim/src/volume/memory.rs",
        right: "        let knows = self.knows(fragment);\n        if !knows && sums.is_empty() {\n",
        wrong: "        let knows = self.knows(fragment);\n        if PLANTED || !knows && sums.is_empty() {\n",
    },
    // What the source does not give is zeros, and nobody is told.
    Fault {
        requirement: "unreadable-told",
        file: "crates/cheetah/src/fill.rs",
        right: "fn note(&self, unreadable: Vec<Unreadable>) {\n",
        wrong: "fn note(&self, unreadable: Vec<Unreadable>) {\n        if PLANTED { return; }\n",
    },
    // A load that ended before its end counts as complete.
    Fault {
        requirement: "incomplete-told",
        file: "crates/core/src/coordinator/content.rs",
        right: "            if content.state == ContentState::Loading {\n                content.state = ContentState::Incomplete;\n",
        wrong: "            if content.state == ContentState::Loading {\n                content.state = if PLANTED { ContentState::Loaded } \
                else { ContentState::Incomplete };\n",
    },
    // Who asks for a read-only attachment gets one that writes.
    Fault {
        requirement: "write-blocked",
        file: "crates/cheetah/src/attach.rs",
        right: "        read_only: options.read_only,\n        writable: options.writable,\n",
        wrong: "        read_only: options.read_only && !PLANTED,\n        writable: options.writable || PLANTED,\n",
    },
];

/// Builds it; where it is.
///
/// # Panics
/// A fault has no place any more, or the build fails.
#[track_caller]
pub fn program() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let root = Path::new(&here).join("../..");
    // What the program under test was built of is there already.
    let binary = pool::binary();
    let profile = binary.parent().expect("it is in a directory");
    let results = profile.parent().expect("of build results");
    let copy = results.join("planted");
    plant(&root, &copy);
    let mut cargo = Command::new(root.join("scripts/cargo"));
    cargo.args(["build", "--quiet", "--offline", "-p", "cheetah"]).current_dir(&copy).stdin(Stdio::null());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.env("CARGO_TARGET_DIR", results);
    tools::expect_success(&mut cargo);
    profile.join("cheetah-planted")
}

/// Copies the sources, with the faults in them.
fn plant(root: &Path, copy: &Path) {
    for name in ["Cargo.lock", "docs/CODES.md"] {
        put(&copy.join(name), &read(&root.join(name)));
    }
    put(&copy.join("Cargo.toml"), &read(&root.join("Cargo.toml")).replace("crates/", FOLDER));
    for name in CRATES {
        let place = format!("crates/{name}");
        let mut manifest = read(&root.join(&place).join("Cargo.toml"));
        if name == "cheetah" {
            // Beside the program, and not in its place.
            manifest += "\n[[bin]]\nname = \"cheetah-planted\"\npath = \"src/main.rs\"\n";
        }
        let here = |path: &str| copy.join(path.replacen("crates/", FOLDER, 1));
        put(&here(&format!("{place}/Cargo.toml")), &manifest);
        // A program of tests that the manifest names has to be there; nobody builds it.
        let tests = format!("{place}/tests/machines.rs");
        if root.join(&tests).exists() {
            put(&here(&tests), "");
        }
        let mut folders = vec![PathBuf::from(place).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(root.join(&folder)).expect("a folder of sources") {
                let entry = entry.expect("an entry");
                let path = folder.join(entry.file_name());
                match entry.file_type().expect("its type").is_dir() {
                    true => folders.push(path),
                    false => {
                        let text = with_faults(&path, read(&root.join(&path)));
                        put(&here(path.to_str().expect("a name of ours")), &text);
                    }
                }
            }
        }
    }
}

fn with_faults(path: &Path, mut text: String) -> String {
    for Fault { requirement, right, wrong, .. } in FAULTS.iter().filter(|fault| Path::new(fault.file) == path)
    {
        let places = text.matches(right).count();
        assert_eq!(places, 1, "{}: the fault against {requirement} has {places} places", path.display());
        let planted =
            format!("std::env::var(\"{VARIABLE}\").is_ok_and(|planted| planted == \"{requirement}\")");
        text = text.replace(right, &wrong.replace("PLANTED", &planted));
    }
    text
}

#[track_caller]
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// What is there already keeps its time, and is not built again.
#[track_caller]
fn put(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return;
    }
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
}
