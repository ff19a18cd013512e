//! The command line: what can be asked for, with examples. Never: behaviour.

use crate::cli_attach::ATTACH_EXAMPLES;
pub use crate::cli_attach::{Attach, Detach, Diff};
use crate::cli_custody::{
    CaseArgs, Handover, LOG_EXAMPLES, Log, REPORT_EXAMPLES, VERIFY_LOG_EXAMPLES, VerifyLog,
};
use crate::cli_machine::{DOCTOR_EXAMPLES, Doctor, Manual};
pub use crate::cli_members::EncryptArg;
use crate::cli_members::{Grant, Join, Member, Token};
use crate::cli_model::{MODEL_EXAMPLES, Model, SIMULATE_EXAMPLES, Simulate};
use crate::cli_node::{NODE_EXAMPLES, Node};
use crate::cli_saving::{SAVE_EXAMPLES, Save};
use crate::cli_seal::{MANIFEST_EXAMPLES, SEAL_EXAMPLES};
pub use crate::cli_seal::{Manifest, Verify};
use crate::cli_serving::{Coordinate, Donate};
use crate::cli_validate::{VALIDATE_EXAMPLES, Validate};
use crate::expected::Hash;
use cheetah_core::map::{Medium, Redundancy};
use cheetah_core::units::parse_bytes;
use cheetah_rim::volume::Rule;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: the message says what happened, to what, and what to do next
  2  the command line is wrong
  3  no coordinator was found, or it does not answer
  4  refused: no member, no such volume or donor, a name taken, a second writer, a device in use, not a disk
  5  the pool has not enough free memory
  6  data is lost or differs: a hash that does not match, a range that cannot be read, or, of `validate`, a
     requirement that is not met
  7  `status -x`, `verify`, `doctor` and `validate` only: not all is well, or not all was checked, and nothing
     is lost

Files, with a table for each command and keys as its flags are called:
  ~/.config/cheetah/cheetah.toml, then /etc/cheetah/cheetah.toml

Environment:
  CHEETAH_CONFIG   a file in place of both, as --config; empty: none
  CHEETAH_POOL     URL of the coordinator, or several, as --pool
  CHEETAH_IDENTITY the directory of this user's identity, as --identity
  CHEETAH_KEY_FILE the key of encrypted volumes, as --key-file
  CHEETAH_HOST_ID  what tells this machine from any other, as --host-id of donate
  CHEETAH_LOG      what to log on stderr: error, warn, info, debug; without it, faults and what happened to the pool";

/// Pools the idle memory of ordinary machines into fast, disposable block volumes.
#[derive(Debug, Parser)]
#[command(name = "cheetah", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    /// Who this is to a pool of members: a directory. Without it: $CHEETAH_IDENTITY, then
    /// ~/.config/cheetah/identity (~/.config/cheetah/donor of who lends).
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub identity: Option<PathBuf>,
    /// The key of encrypted volumes: 32 bytes or 64 hexadecimal digits, in a file of mode 600. Without it:
    /// $CHEETAH_KEY_FILE, then what the pool has wrapped for this member.
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,
    /// A configuration in place of this user's and this machine's. Without it: $CHEETAH_CONFIG.
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Debug, Args)]
pub struct PoolArg {
    /// The coordinator, like cheetah://10.0.0.5:10808; all that share a state, with commas between them.
    /// A donor comes in by a /TOKEN behind it, others by `cheetah join`. http://HOST:PORT of a pool in the
    /// clear.
    /// Without it: $CHEETAH_POOL, then the pool that this user has joined.
    #[arg(long, value_name = "URL[,URL...]")]
    pub pool: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub struct JsonArg {
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct OnArg {
    /// What it lies on: memory, or disks that donors lend (`donate --disk`), which keep it when all machines
    /// are switched off.
    #[arg(long, value_name = "memory|disk", default_value = "memory", value_parser = parse_medium)]
    pub on: Medium,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct WriteBackArg {
    /// Answer a write when it is in the memory of all donors that hold a part of it; it is on their disks
    /// within seconds. What a flush covers is there after any stop. Writes since then may not be when more
    /// donors end at once than the redundancy covers. Of volumes on disk with redundancy.
    #[arg(long)]
    pub write_back: bool,
}

fn parse_medium(text: &str) -> Result<Medium, String> {
    let all = [Medium::Memory, Medium::Disk];
    all.into_iter().find(|medium| medium.to_string() == text).ok_or_else(|| "memory or disk".to_owned())
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Everything on this machine: coordinator, donors and an attached volume `scratch`, until Ctrl-C.
    #[command(
        after_help = "Examples:\n  cheetah up\n  cheetah up --donors 4 --size 8G --mount /mnt/scratch --export 127.0.0.1:10809"
    )]
    Up(Up),
    /// Run the coordinator of a pool.
    #[command(
        after_help = "Examples:\n  cheetah coordinate --listen 10.0.0.5:10808\n  cheetah coordinate --state memory\n  cheetah coordinate --listen 10.0.0.5:10808 --state etcd://127.0.0.1:2379/lab\n      on two machines of one etcd: one leads, the other takes over within seconds; donors and clients name\n      both, --pool cheetah://10.0.0.5:10808,cheetah://10.0.0.6:10808"
    )]
    Coordinate(Coordinate),
    /// Lend memory of this machine, until SIGTERM or Ctrl-C: the first moves what it holds to others, the
    /// second leaves at once. Its owner comes first: memory that the machine needs is given back. It waits
    /// for its pool, if that is not there yet.
    #[command(
        after_help = "Examples:\n  cheetah donate 16G --pool cheetah://10.0.0.5:10808/TOKEN     the line that the coordinator printed\n  cheetah donate auto --listen 10.0.0.7:0\n  cheetah donate auto --reserve 8G --max 32G\n  cheetah donate nbd://10.0.0.9:10809/disk    lend another NBD server's space\n  cheetah donate 2G --no-pool                 one NBD export, no coordinator"
    )]
    Donate(Donate),
    /// All that one machine lends, and all that it shall have attached, until SIGTERM or Ctrl-C: then it
    /// detaches, and its donors end as by themselves. What ends before is started again.
    #[command(after_help = NODE_EXAMPLES)]
    Node(Node),
    /// Make a volume.
    #[command(
        after_help = "Examples:\n  cheetah create case7 500G\n  cheetah create scratch all --redundancy stripe:4\n  cheetah create safe 100G --redundancy parity:4+2\n  cheetah create pool all --redundancy linear --follow\n  cheetah create case8 100G --encrypt         donors get ciphertext"
    )]
    Create(Create),
    /// Make a volume available to tools: a file, a block device or an NBD export. One attachment of a volume
    /// for each user of a machine.
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(Attach),
    /// What of a volume an overlay changes: the ranges that tools wrote.
    Diff(Diff),
    /// End an attachment of this machine, also after its daemon was killed.
    Detach(Detach),
    /// Copy a disk, or the disk in an image, into a volume, hash it, and have donors check what they hold.
    #[command(
        after_help = "Examples:\n  cheetah load disk.dd case7        makes the volume case7 if there is none\n  cheetah load disk.dd case7 --overwrite    into one that was written before\n  cheetah load disk.dd case7 --resume       after one that was interrupted\n  cheetah load /dev/sdb case7 --json"
    )]
    Load(Load),
    /// Make a volume of a disk, or of the disk in an image, that tools can read at once: what is not here yet
    /// is read when they ask for it, the rest goes on in the background.
    #[command(
        after_help = "Examples:\n  cheetah open suspect.E01 case7      then: cheetah attach case7\n  cheetah open suspect.E01 case7 --rate 50M\n  cheetah open suspect.E01 case7      again, after it was stopped or killed: goes on"
    )]
    Open(Open),
    /// What fills a volume that was opened: stop it, have it pause, or go on.
    #[command(
        after_help = "Examples:\n  cheetah fill case7 --pause       only what tools ask for is read\n  cheetah fill case7 --resume      goes on, also after it was stopped or killed\n  cheetah fill case7 --rate 20M    for what nobody waits for; 0: as fast as it goes\n  cheetah fill case7 --stop        what is here stays readable; the rest is EIO"
    )]
    Fill(Fill),
    /// Write a volume to a file, raw or as E01, hash it on the way, and read the file back. Files with its
    /// hashes are put beside it.
    #[command(after_help = SAVE_EXAMPLES)]
    Save(Save),
    /// What the pool put down of a volume: who made, filled, attached and deleted it, and what went wrong.
    /// It stays when the volume goes, and is signed.
    #[command(after_help = LOG_EXAMPLES)]
    Log(Log),
    /// Whether a copy of a volume's log is whole, and what its pool signed. Needs no pool.
    #[command(after_help = VERIFY_LOG_EXAMPLES)]
    VerifyLog(VerifyLog),
    /// Make a folder for the case file: a page with what a volume holds and what happened to it, and the
    /// signed files that prove it.
    #[command(after_help = REPORT_EXAMPLES)]
    Report(Handover),
    /// Have nobody change a volume any more: it is read to its end, hashed, and each of its blocks gets a
    /// proof that readers check.
    #[command(after_help = SEAL_EXAMPLES)]
    Seal(Named),
    /// Print what a sealed volume holds: its hashes, its source, when and by whom, signed by the pool. With a
    /// file, the text and its signature are written, which `minisign` verifies.
    #[command(after_help = MANIFEST_EXAMPLES)]
    Manifest(Manifest),
    /// Show that this program, on this machine and this pool, does what a laboratory has to show of its
    /// tools: stated requirements, an image with published hashes, planted faults, and a signed report of
    /// what was shown and what was not.
    #[command(after_help = VALIDATE_EXAMPLES)]
    Validate(Validate),
    /// Have donors compare all that they hold of a volume with its checksums, at the speed of their memory.
    /// What is wrong is put right from redundancy.
    #[command(
        after_help = "Examples:\n  cheetah verify case7\n  cheetah verify case7 --json\n\nExit code: 0 when every block was checked and is right, 6 when blocks were wrong, healed or not, or data is lost,\n7 when not all could be checked."
    )]
    Verify(Verify),
    /// The pool at a glance: donors, volumes, and of what is not well what happened and what to do.
    #[command(
        after_help = "Examples:\n  cheetah status\n  cheetah status -x        one line; exit code 0 when all is well, 6 when data is lost, else 7"
    )]
    Status(Status),
    /// What a code that `status` shows means, and what to do about it.
    #[command(after_help = "Example:\n  cheetah explain volume-degraded")]
    Explain(Explain),
    /// What of this machine is in the way of lending, attaching or coordinating, and what to do about it.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(Doctor),
    /// How fast a pool of disks and memories would be, by the formulas of DRALIC, a system of this kind.
    #[command(after_help = MODEL_EXAMPLES)]
    Model(Box<Model>),
    /// The same by simulation: queues, failures, rebuilds, up to 10,000 nodes. Needs no pool.
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(Box<Simulate>),
    /// List the volumes.
    List(Report),
    /// All about one volume: where it lies, who has it attached, what is lost.
    Show(Named),
    /// Make a volume larger, also while it is attached.
    #[command(after_help = "Examples:\n  cheetah grow case7 600G\n  cheetah grow scratch all")]
    Grow(Grow),
    /// Delete a volume; its memory, or its place on disks, is wiped and free again.
    Delete(Named),
    /// Take a donor out of the pool: what it holds is moved to others first.
    #[command(
        after_help = "Examples:\n  cheetah leave lab7              waits until it is empty; Ctrl-C ends only the waiting\n  cheetah leave lab7 --no-wait\n  cheetah leave lab7 --force      at once, whatever is lost"
    )]
    Leave(Leave),
    /// Come into a pool of members by a token; the identity is kept for the commands that follow.
    #[command(after_help = "Example:\n  cheetah join cheetah://10.0.0.5:10808/TOKEN")]
    Join(Join),
    /// Tokens, by which others come into a pool of members.
    #[command(
        subcommand,
        after_help = "Examples:\n  cheetah token new --role donor --uses 40     one line for forty machines\n  cheetah token new --role client\n  cheetah token new --role client --pem ~/tls     for nbdinfo, nbdcopy, qemu-img"
    )]
    Token(Token),
    /// The members of a pool.
    #[command(subcommand)]
    Member(Member),
    /// Give the key of an encrypted volume to another member, wrapped for that one.
    #[command(
        after_help = "Example:\n  cheetah grant case7 0123456789abcdef     as `cheetah member list` shows it"
    )]
    Grant(Grant),
    /// Print a completion script for a shell.
    #[command(
        after_help = "Example:\n  cheetah completions bash > ~/.local/share/bash-completion/completions/cheetah"
    )]
    Completions { shell: clap_complete::Shell },
    /// Write the manual's pages, for who packs the program.
    #[command(hide = true)]
    Manual(Manual),
    /// Serves an attachment: what `attach` starts in the background.
    #[command(hide = true)]
    Serve,
    /// Fills an opened volume: what `open` starts in the background.
    #[command(hide = true)]
    ServeFill,
}

impl Command {
    /// Whether `--json` was given.
    pub fn wants_json(&self) -> bool {
        let given = match self {
            Command::Up(options) => &options.json,
            Command::Create(options) => &options.json,
            Command::Attach(options) => &options.json,
            Command::Diff(options) => &options.json,
            Command::Detach(options) => &options.json,
            Command::Load(options) => &options.json,
            Command::Save(options) => &options.json,
            Command::Log(options) => &options.json,
            Command::VerifyLog(options) => &options.json,
            Command::Report(options) => &options.json,
            Command::Open(options) => &options.json,
            Command::Fill(options) => &options.json,
            Command::Status(options) => &options.json,
            Command::Explain(options) => &options.json,
            Command::Doctor(options) => &options.json,
            Command::Model(options) => &options.json,
            Command::Simulate(options) => &options.json,
            Command::List(options) => &options.json,
            Command::Show(options) | Command::Delete(options) | Command::Seal(options) => &options.json,
            Command::Verify(options) => &options.json,
            Command::Validate(options) => &options.json,
            Command::Manifest(options) => &options.json,
            Command::Grow(options) => &options.json,
            Command::Grant(options) => &options.json,
            Command::Leave(options) => &options.json,
            Command::Coordinate(options) => &options.json,
            Command::Donate(options) => &options.json,
            Command::Node(options) => &options.json,
            Command::Join(options) => &options.json,
            Command::Token(Token::New(options)) => &options.json,
            Command::Token(Token::List(options)) | Command::Member(Member::List(options)) => &options.json,
            Command::Token(Token::Revoke(options)) => &options.json,
            Command::Member(Member::Revoke(options)) => &options.json,
            Command::Completions { .. } | Command::Manual(_) | Command::Serve | Command::ServeFill => {
                return false;
            }
        };
        given.json
    }
}

#[derive(Debug, Args)]
pub struct Up {
    /// How many donors, each a process of its own.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub donors: u32,
    /// Size of the volume `scratch`.
    #[arg(long, default_value = "1G", value_parser = parse_bytes)]
    pub size: u64,
    /// linear, stripe:K, mirror:R or parity:K+M. Without it: a stripe over all donors.
    #[arg(long)]
    pub redundancy: Option<Redundancy>,
    /// Where to mount the volume's file.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub mount: Option<PathBuf>,
    /// Where to serve the volume by NBD: IP:PORT or unix:PATH.
    /// Without it: a Unix socket in the runtime directory that only this user can reach.
    #[arg(long, value_name = "ADDR")]
    pub export: Option<String>,
    /// Where the coordinator listens.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: String,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Create {
    pub name: String,
    /// Exact size, like 500G or 52428800, or `all` that is free (without --redundancy: less what a rebuild
    /// needs).
    pub size: String,
    /// linear (donors in the order they joined), stripe:K, mirror:R or parity:K+M. Without it: parity:K+1
    /// over up to 9 hosts, leaving one out and room to rebuild what any one holds where there are four or
    /// more; parity:2+1 with three, mirror:2 with two, linear with one.
    #[arg(long)]
    pub redundancy: Option<Redundancy>,
    /// Bytes that one donor holds of a row of a stripe, a power of two from 4K to 1M. Without it: 256K, and
    /// 64K with parity.
    #[arg(long, value_parser = parse_bytes)]
    pub unit: Option<u64>,
    /// Grow by what each new donor lends.
    #[arg(long)]
    pub follow: bool,
    #[command(flatten)]
    pub on: OnArg,
    #[command(flatten)]
    pub write_back: WriteBackArg,
    #[command(flatten)]
    pub encrypt: EncryptArg,
    #[command(flatten)]
    pub case: CaseArgs,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Front {
    /// A file MOUNTPOINT/NAME.raw for any tool, of the user who attaches it (with sudo: of who typed that).
    /// Root may read it where root attached it, or /etc/fuse.conf has user_allow_other.
    Fuse,
    /// An NBD export.
    Export,
    /// A loop device over the file, with its partitions (needs root).
    Loop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReadAhead {
    Auto,
    Thesis,
    Off,
}

impl From<ReadAhead> for Rule {
    fn from(chosen: ReadAhead) -> Rule {
        match chosen {
            ReadAhead::Auto => Rule::Streams,
            ReadAhead::Thesis => Rule::Thesis,
            ReadAhead::Off => Rule::Off,
        }
    }
}

#[derive(Debug, Args)]
pub struct Load {
    /// A disk or an image of one: raw, E01, QCOW2, VMDK, VHD or VHDX, any part of several; or the address of
    /// one: https://HOST/PATH, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH,
    /// iscsi://HOST/TARGET/LUN, ssh://USER@HOST/PATH. It is only ever read.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The volume. If there is none of this name it is made, exactly as large as the disk.
    pub name: String,
    #[command(flatten)]
    pub on: OnArg,
    #[command(flatten)]
    pub write_back: WriteBackArg,
    #[command(flatten)]
    pub encrypt: EncryptArg,
    /// Load into a volume that was loaded or written before, whatever it holds; not while anybody reads it.
    /// The volume is made anew, as large as the file: nothing of what it held stays.
    #[arg(long)]
    pub overwrite: bool,
    /// Go on with a load of the same file that was interrupted, or check one that was not checked: what is
    /// there already is read and compared, the rest is copied.
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Load the bytes of the file as they stand, though it holds a disk (E01, QCOW2, ...) or is a part of
    /// one.
    #[arg(long)]
    pub raw: bool,
    /// Read a disk though a file system on it is mounted for writing: it may change meanwhile.
    #[arg(long)]
    pub mounted: bool,
    /// A hash that the disk has to have, as md5:HEX, sha1:HEX or sha256:HEX; can be given several times. What
    /// files beside a raw image say (IMAGE.md5, IMAGE.sha1, IMAGE.sha256) is compared in any case.
    #[arg(long, value_name = "HASH")]
    pub expect: Vec<Hash>,
    /// Where to write which parts could be read and which not, as a map of GNU ddrescue.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub map: Option<PathBuf>,
    /// How long a server that has the disk may give nothing before the load ends; what is loaded stays, and
    /// --resume goes on.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
    /// Let tools change the volume later. Without this it is sealed once all of it is there: nobody writes it
    /// any more, and whoever reads it checks every block against its proof.
    #[arg(long)]
    pub writable: bool,
    /// Do not have the donors check what they hold in the end.
    #[arg(long)]
    pub no_verify: bool,
    /// Read the volume back and compare its hashes, in place of having the donors check what they hold.
    #[arg(long, conflicts_with = "no_verify")]
    pub read_back: bool,
    /// Refused: see `open`.
    #[arg(long, value_name = "SIZE", hide = true)]
    pub memory: Option<String>,
    #[command(flatten)]
    pub case: CaseArgs,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Open {
    /// A disk or an image of one: raw, E01, QCOW2, VMDK, VHD or VHDX, any part of several; a file, or an
    /// address (http://, https://, nbd://, nbd+unix://, iscsi://, ssh://). It is only ever read.
    #[arg(value_hint = ValueHint::FilePath)]
    pub source: PathBuf,
    /// The volume. If there is none of this name it is made, exactly as large as the disk.
    pub name: String,
    /// The bytes of the file as they stand, though it holds a disk (E01, QCOW2, ...) or is a part of one.
    #[arg(long)]
    pub raw: bool,
    /// Read a disk though a file system on it is mounted for writing: it may change meanwhile.
    #[arg(long)]
    pub mounted: bool,
    /// Keep at most so much of it on donors, for a disk that is larger than the pool. What was read ahead
    /// goes first, then what was asked for longest ago; it is read again when tools ask for it.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// linear or stripe:K: what a donor takes with it is read again. Without it: linear.
    #[arg(long)]
    pub redundancy: Option<Redundancy>,
    #[command(flatten)]
    pub on: OnArg,
    #[command(flatten)]
    pub encrypt: EncryptArg,
    /// Bytes each second that are read of what nobody waits for. Without it: as fast as it goes.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub rate: Option<u64>,
    /// Let tools change the volume later. Without this it is sealed once all of it is there: nobody writes it
    /// any more, and whoever reads it checks every block against its proof.
    #[arg(long)]
    pub writable: bool,
    #[command(flatten)]
    pub case: CaseArgs,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Fill {
    pub name: String,
    /// Read only what tools ask for.
    #[arg(long, conflicts_with_all = ["resume", "stop"])]
    pub pause: bool,
    /// Go on: after a pause, or on this machine after nobody fills it any more.
    #[arg(long, conflicts_with = "stop")]
    pub resume: bool,
    /// Bytes each second that are read of what nobody waits for; 0: as fast as it goes.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub rate: Option<u64>,
    /// End it. What is here stays readable, and --resume goes on from there.
    #[arg(long)]
    pub stop: bool,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Status {
    /// Only whether all is well: one line, and an exit code of 0 (well), 6 (data is lost) or 7 (anything
    /// else).
    #[arg(short = 'x')]
    pub unwell_only: bool,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Explain {
    /// Like volume-degraded.
    pub code: String,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Report {
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Named {
    pub name: String,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Grow {
    pub name: String,
    /// The new exact size, or `all` that is free.
    pub size: String,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[derive(Debug, Args)]
pub struct Leave {
    pub donor: String,
    /// At once, even if volumes lose what it holds.
    #[arg(long)]
    pub force: bool,
    /// Return when the coordinator has agreed, without waiting until the donor is empty.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
