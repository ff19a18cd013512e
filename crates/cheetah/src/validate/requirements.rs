//! What is validated: each requirement in a sentence, where it comes from, when it is met, what that does not
//! say, and the cases that show it.
//!
//! Owns this table, the one place that says what a validation is. Never: how a case is done (`cases`). A
//! source is named as far as it is known for sure: without a clause where the number of one is not. Called by
//! `cli_validate`, `super` and `page`. Tests: below.

use serde::Serialize;

/// Where a case is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// The pool that is validated.
    Pool,
    /// A pool of four donors on this machine, for the validation alone: nobody else's donors are harmed.
    PrivatePool,
}

/// A requirement.
#[derive(Debug)]
pub struct Requirement {
    /// As `--only` takes it. It keeps its meaning.
    pub id: &'static str,
    pub text: &'static str,
    /// When it is met.
    pub criterion: &'static str,
    /// The documents that ask for it, or for something of its kind.
    pub sources: &'static [&'static str],
    /// What it does not show.
    pub limits: &'static str,
    pub cases: &'static [Planned],
}

/// A case, before it is done.
#[derive(Debug)]
pub struct Planned {
    pub id: &'static str,
    pub title: &'static str,
    pub on: On,
}

const fn on_pool(id: &'static str, title: &'static str) -> Planned {
    Planned { id, title, on: On::Pool }
}

const fn in_private(id: &'static str, title: &'static str) -> Planned {
    Planned { id, title, on: On::PrivatePool }
}

const IMAGING: &str = "NIST CFTT, Digital Data Acquisition Tool Specification, version 4.0 (2004)";
const BLOCKING: &str = "NIST CFTT, Hardware Write Blocker Device (HWB) Specification, version 2.0 (2004)";
const RECORDS: &str = "ISO/IEC 17025:2017, 7.5 (technical records)";
const DATA: &str = "ISO/IEC 17025:2017, 7.11 (control of data and information management)";

/// What asks for the form of the whole.
pub const FORM: [&str; 3] = [
    "ISO/IEC 17025:2017, 7.2.2 (validation of methods)",
    "Forensic Science Regulator (England and Wales), Code of Practice: validation",
    "Forensic Science Regulator, FSR-G-201, Validation (guidance)",
];

/// All of them, in the order in which they are shown.
pub const ALL: [Requirement; 10] = [
    Requirement {
        id: "acquired-exactly",
        text: "All that the source gives is acquired, and each byte of it as it is.",
        criterion: "MD5, SHA-1 and SHA-256 of what was loaded are the published ones, and donors confirm what they hold.",
        sources: &[IMAGING],
        limits: "What the kernel does not show of a disk (HPA, DCO, remapped sectors) is not acquired. Formats that are not \
                 named here were not tried.",
        cases: &[
            on_pool("raw", "a raw image in one file"),
            on_pool("parts", "a raw image in three parts"),
            on_pool("e01", "the same disk as an E01 of ewfacquirestream"),
        ],
    },
    Requirement {
        id: "source-unchanged",
        text: "The source is not changed by being loaded.",
        criterion: "Content, size and times of a file are the same afterwards; a medium is asked to read and nothing else.",
        sources: &[IMAGING, BLOCKING],
        limits: "The time of last access is not looked at. A disk's own firmware is not seen.",
        cases: &[
            on_pool("source-file", "a file, before and after its load"),
            on_pool("source-medium", "a medium that counts the commands it gets"),
        ],
    },
    Requirement {
        id: "unreadable-told",
        text: "What the source cannot give is told with its place, and is an error to whoever reads it. It is never filled in \
               silence.",
        criterion: "A bad sector is listed exactly, the command ends with 6, reads of it fail, and all around it is right.",
        sources: &[IMAGING],
        limits: "One sector that never answers. Media that answer slowly, or differently each time, were not tried.",
        cases: &[on_pool("bad-sector", "a medium with one sector that cannot be read")],
    },
    Requirement {
        id: "incomplete-told",
        text: "A load that was interrupted is not shown as complete evidence.",
        criterion: "After the loading process was killed the volume is called incomplete, is not attached, sealed or saved, and \
                    --resume completes it.",
        sources: &[IMAGING, DATA],
        limits: "The process was killed, not the machine.",
        cases: &[on_pool("killed-load", "a load that is killed half-way")],
    },
    Requirement {
        id: "read-exactly",
        text: "Tools read from an attachment what was loaded.",
        criterion: "The published hashes, from all bytes that a tool gets.",
        sources: &[BLOCKING],
        limits: "Read once, in order, by one tool at a time.",
        cases: &[
            on_pool("read-export", "through an NBD export"),
            on_pool("read-file", "through a file (FUSE)"),
        ],
    },
    Requirement {
        id: "write-blocked",
        text: "No write reaches evidence, and none is acknowledged.",
        criterion: "Each command that writes is answered with an error, and the content is the same afterwards.",
        sources: &[BLOCKING],
        limits: "By this program's own front ends. It guards volumes of the pool, and no disk that is plugged in here.",
        cases: &[
            on_pool("write-export", "WRITE, WRITE_ZEROES and TRIM to a read-only export"),
            on_pool("write-unsealed", "the same to a volume that is not sealed, attached read-only"),
            on_pool("write-file", "a write to the read-only file"),
            on_pool("write-sealed", "asking for a sealed volume for writing, and loading over it"),
        ],
    },
    Requirement {
        id: "saved-exactly",
        text: "What is saved is what was loaded.",
        criterion: "The published hashes, from the file on this disk, and the same in the file beside it.",
        sources: &[IMAGING],
        limits: "A raw file on this machine. An E01 is under acquired-exactly.",
        cases: &[on_pool("save", "a raw file with its hashes beside it")],
    },
    Requirement {
        id: "records-proved",
        text: "The manifest and the log of custody prove what they say, and altered ones are refused.",
        criterion: "Both verify by the pool's key as they are; with one byte changed, or the end cut off, neither does.",
        sources: &[RECORDS, DATA],
        limits: "The pool's key is as safe as the coordinator's machine. Times are those of its clock.",
        cases: &[
            on_pool("manifest", "the manifest, as it is and altered"),
            on_pool("custody", "the log of custody, as it is, altered and cut off"),
        ],
    },
    Requirement {
        id: "wrong-memory-found",
        text: "A block that went wrong in a donor's memory is found, and is never delivered.",
        criterion: "Every byte that is delivered is right: from redundancy where there is some, else an error.",
        sources: &[DATA],
        limits: "One block at a time. Wrong parity was not tried.",
        cases: &[
            in_private("flip", "one bit, in a volume with redundancy"),
            in_private("flip-alone", "one bit, in a volume without redundancy"),
            in_private("forged", "a sealed block that was changed so that it fits its checksum"),
        ],
    },
    Requirement {
        id: "loss-is-an-error",
        text: "When a donor dies, reads go on right as far as redundancy goes. Beyond that they are errors, never zeros.",
        criterion: "With redundancy the published hashes; without it each block is either right or an error.",
        sources: &[DATA],
        limits: "One donor, killed on this machine. Networks that lose packets were not tried.",
        cases: &[
            in_private("dead-donor", "one donor of a volume with redundancy"),
            in_private("dead-donor-alone", "one donor of a volume without redundancy"),
        ],
    },
];

/// Of the whole, whatever was shown.
pub const LIMITS: [&str; 6] = [
    "It says something of this program, this machine and this pool on this day. After an upgrade of any of them it has to be \
     done again.",
    "It says nothing of the tools that read a volume, or of what they make of it.",
    "It says nothing of speed, or of what happens under load.",
    "The image is made by the program: noise, zeros and runs, each sector with its number. It has no file system.",
    "The private pool is on one machine, by loopback. Its donors stand for hosts.",
    "A laboratory decides by itself whether these requirements are hers, and whether they are enough.",
];

/// As `--only` takes them.
pub fn ids() -> Vec<&'static str> {
    ALL.iter().map(|requirement| requirement.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_has_a_name_of_its_own_and_a_case() {
        let cases: Vec<&str> = ALL.iter().flat_map(|one| one.cases).map(|case| case.id).collect();
        assert_eq!(cases.iter().collect::<BTreeSet<_>>().len(), cases.len());
        assert_eq!(ids().iter().collect::<BTreeSet<_>>().len(), ALL.len());
        assert!(ALL.iter().all(|one| !one.cases.is_empty() && !one.sources.is_empty()));
    }
}
