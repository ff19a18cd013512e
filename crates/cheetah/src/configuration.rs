//! What people set once: `cheetah.toml` of this user and of this machine, a table for each command, keys as
//! its flags are called. A key becomes the default of its flag.
//!
//! Owns where the files are, which goes before which, and what is said of what is wrong in them. Never: what
//! a flag means. Invariant: a flag goes before the environment, that before the user's file, and that before
//! the machine's. Called by `main`. Tests: `configuration/tests.rs`; `lab/tests/install.rs`.

use crate::cli::Cli;
use crate::failure::Failure;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

#[cfg(test)]
mod tests;

/// Names a file that is read in place of both others; empty: none is read, as of what this program starts,
/// which is told all that it needs.
pub const VARIABLE: &str = "CHEETAH_CONFIG";
const FILE: &str = "cheetah.toml";
const OF_MACHINE: &str = "/etc/cheetah/cheetah.toml";
/// No file of this kind is larger.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Of no command alone: it may stand above all tables, for each command that has it.
const OF_ALL: &str = "pool";
/// An argument without a name of its own that a file may give.
const NAMELESS: &str = "size";
/// Flags that the environment gives too.
const VARIABLES: [(&str, &str); 3] =
    [("pool", "CHEETAH_POOL"), ("identity", "CHEETAH_IDENTITY"), ("host_id", "CHEETAH_HOST_ID")];

/// Why there is no command to carry out.
#[derive(Debug)]
pub enum NotParsed {
    /// The command line is wrong, or asks for help.
    Line(clap::Error),
    File(Failure),
}

impl From<clap::Error> for NotParsed {
    fn from(error: clap::Error) -> Self {
        NotParsed::Line(error)
    }
}

/// The command line, with what the files say where it says nothing.
pub fn parse(line: &[OsString]) -> Result<Cli, NotParsed> {
    let command = Cli::command();
    let settings = read_files(line).and_then(|files| merge(&command, &files)).map_err(|failure| {
        // Help is what whoever has a wrong file needs.
        match command.clone().try_get_matches_from(line) {
            Err(asked) if !asked.use_stderr() => NotParsed::Line(asked),
            _ => NotParsed::File(failure),
        }
    })?;
    let settings = unless_in(|name| std::env::var(name).ok(), settings);
    Ok(apply(&settings, line)?)
}

/// A file, by the name that people know it by.
struct Read {
    name: String,
    text: String,
}

/// Those that count here, the one that goes before first.
fn read_files(line: &[OsString]) -> Result<Vec<Read>, Failure> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let unread = |path: &Path, why: &str| {
        let text = format!("the configuration {} cannot be read: {why}", path.display());
        Failure::usage(text)
            .advise(format!("name another with --config or ${VARIABLE}, or put this one right"))
    };
    let open = |path: &Path| match std::fs::read_to_string(path) {
        Ok(text) if text.len() > FILE_BYTES_MAX => Err(unread(path, "it is larger than 1 MiB")),
        Ok(text) => Ok(Some(Read { name: path.display().to_string(), text })),
        // What is closed to this user is not meant for it.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Ok(None),
        Err(e) => Err(unread(path, &e.to_string())),
    };
    if let Some(named) = named(line).or_else(|| std::env::var_os(VARIABLE)) {
        if named.is_empty() {
            return Ok(Vec::new());
        }
        let path = PathBuf::from(named);
        let read =
            open(&path)?.ok_or_else(|| unread(&path, "there is none, or this user may not read it"))?;
        return Ok(vec![read]);
    }
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".config"));
    let own = variable("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    let own = own.map(|base| base.join("cheetah").join(FILE));
    let files = own.into_iter().chain([PathBuf::from(OF_MACHINE)]);
    files.filter_map(|path| open(&path).transpose()).collect()
}

/// What `--config` names; it has to be known before the rest can be parsed.
fn named(line: &[OsString]) -> Option<OsString> {
    let mut words = line.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if word == "--config" {
            return words.next().cloned();
        }
        if let Some(value) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            return Some(value.into());
        }
    }
    None
}

/// A key of a file, as the default that it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    /// The command, by its names: `["token", "new"]`; empty for what all have.
    command: Vec<String>,
    id: String,
    values: Vec<String>,
    is_flag: bool,
    /// Those that cannot be given together with it.
    excludes: Vec<String>,
    /// Whether it stood in the command's own table.
    is_own: bool,
    /// Of its file.
    line: usize,
}

impl Setting {
    fn is_off(&self) -> bool {
        self.is_flag && self.values == ["false"]
    }

    fn is_of(&self, other: &Setting) -> bool {
        self.command == other.command && self.id == other.id
    }

    fn excludes(&self, other: &Setting) -> bool {
        self.command == other.command
            && self.excludes.contains(&other.id)
            && !self.is_off()
            && !other.is_off()
    }
}

/// What all files say, each key once: as the first file has it.
fn merge(command: &Command, files: &[Read]) -> Result<Vec<Setting>, Failure> {
    let mut kept: Vec<Setting> = Vec::new();
    for file in files {
        let earlier = kept.len();
        let Read { name, text } = file;
        let settings = (File { name, text }).settings(command)?;
        for setting in settings {
            if kept.iter().any(|other| other.is_of(&setting)) {
                continue;
            }
            match kept.iter().enumerate().find(|(_, other)| other.excludes(&setting)) {
                None => kept.push(setting),
                // Whoever wrote both meant neither.
                Some((at, other)) if at >= earlier && other.is_own && setting.is_own => {
                    let (one, two) = (shown(&other.id), shown(&setting.id));
                    let text = format!("{name}:{}: {two} cannot be set together with {one}", setting.line);
                    return Err(Failure::usage(text).advise("remove one of them"));
                }
                Some(_) => {}
            }
        }
    }
    Ok(kept)
}

/// Leaves out what the environment says.
fn unless_in(variable: impl Fn(&str) -> Option<String>, settings: Vec<Setting>) -> Vec<Setting> {
    let is_said = |setting: &Setting| {
        let names = VARIABLES.iter().filter(|(id, _)| *id == setting.id);
        names.filter_map(|(_, name)| variable(name)).any(|value| !value.trim().is_empty())
    };
    settings.into_iter().filter(|setting| !is_said(setting)).collect()
}

/// As a key is written.
fn shown(id: &str) -> String {
    id.replace('_', "-")
}

struct File<'a> {
    name: &'a str,
    text: &'a str,
}

impl File<'_> {
    /// Those of commands' own tables first, and as they stand there.
    fn settings(&self, command: &Command) -> Result<Vec<Setting>, Failure> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            self.wrong(&span, error.message())
                .advise("it is written in TOML, like: listen = \"10.0.0.5:10808\"")
        })?;
        let mut settings = Vec::new();
        self.walk(command, &[], table.get_ref(), &mut settings)?;
        settings.sort_by_key(|setting: &Setting| (!setting.is_own, setting.line));
        Ok(settings)
    }

    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }

    fn wrong(&self, span: &Range<usize>, what: &str) -> Failure {
        Failure::usage(format!("{}:{}: {what}", self.name, self.line(span)))
    }

    /// The table of a command and those of the commands below it.
    fn walk(
        &self,
        command: &Command,
        path: &[String],
        table: &DeTable<'_>,
        settings: &mut Vec<Setting>,
    ) -> Result<(), Failure> {
        let table_name = path.join(".");
        for (key, value) in table {
            let (name, span) = (key.get_ref().as_ref(), key.span());
            if let Some(below) = commands(command).find(|below| below.get_name() == name) {
                let path: Vec<String> = path.iter().cloned().chain([name.to_owned()]).collect();
                let table = value.get_ref().as_table().ok_or_else(|| {
                    let what = format!("'{name}' is a command, and has a table of its own");
                    self.wrong(&span, &what).advise(format!("write [{}], and its keys below", path.join(".")))
                })?;
                self.walk(below, &path, table, settings)?;
            } else if path.is_empty() && name == OF_ALL {
                for (path, command, arg) in with_pool(command) {
                    settings.push(self.setting(command, &path, arg, value, false)?);
                }
            } else if let Some(arg) = keys(command).find(|arg| key_of(arg) == name) {
                settings.push(self.setting(command, path, arg, value, true)?);
            } else {
                return Err(self.unknown(command, &table_name, name, &span, value.get_ref().is_table()));
            }
        }
        Ok(())
    }

    fn unknown(
        &self,
        command: &Command,
        table: &str,
        name: &str,
        span: &Range<usize>,
        is_table: bool,
    ) -> Failure {
        if is_table {
            let names: Vec<&str> = commands(command).map(Command::get_name).collect();
            let whose = if table.is_empty() { "cheetah".to_owned() } else { format!("`cheetah {table}`") };
            let what = format!("[{name}] is none of the commands of {whose}");
            return match names.is_empty() {
                true => self.wrong(span, &what),
                false => self.wrong(span, &what).advise(format!("there are {}", names.join(", "))),
            };
        }
        let mut names: Vec<String> = keys(command).map(key_of).collect();
        if table.is_empty() {
            names.push(OF_ALL.to_owned());
        }
        names.sort_unstable();
        let place = if table.is_empty() { "above all tables".to_owned() } else { format!("in [{table}]") };
        let failure = self.wrong(span, &format!("there is no key '{name}' {place}"));
        match names.is_empty() {
            true => failure,
            false => failure.advise(format!("there are {}", names.join(", "))),
        }
    }

    fn setting(
        &self,
        command: &Command,
        path: &[String],
        arg: &Arg,
        value: &Spanned<DeValue<'_>>,
        is_own: bool,
    ) -> Result<Setting, Failure> {
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        let (key, span) = (key_of(arg), value.span());
        let values = values(arg, value.get_ref()).ok_or_else(|| {
            let right = match is_flag {
                true => format!("write {key} = true or {key} = false"),
                false => format!("write {key} = \"{}\"", value_name(arg)),
            };
            let kind = value.get_ref().type_str();
            self.wrong(&span, &format!("'{key}' takes no value of the kind '{kind}'")).advise(right)
        })?;
        for value in &values {
            if let Err(why) = check(command, arg, value) {
                return Err(self.wrong(&span, &why));
            }
        }
        Ok(Setting {
            command: path.to_vec(),
            id: arg.get_id().to_string(),
            values,
            is_flag,
            excludes: excluded(command, arg),
            is_own,
            line: self.line(&span),
        })
    }
}

fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

/// What a file may give: whatever has a name of its own, and how much is lent.
fn keys(command: &Command) -> impl Iterator<Item = &Arg> {
    let lends = command.get_name() == "donate";
    command.get_arguments().filter(move |arg| {
        let is_named = arg.get_long().is_some() || (lends && arg.get_id() == NAMELESS);
        is_named && !arg.is_hide_set() && arg.get_id() != "config"
    })
}

fn key_of(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| shown(arg.get_id().as_str()), str::to_owned)
}

fn value_name(arg: &Arg) -> String {
    let named = arg.get_value_names().and_then(<[_]>::first).map(|name| name.to_string());
    named.unwrap_or_else(|| key_of(arg).to_uppercase())
}

/// Every command that finds a pool, by its names.
fn with_pool(command: &Command) -> Vec<(Vec<String>, &Command, &Arg)> {
    let mut found = Vec::new();
    for below in commands(command) {
        let name = below.get_name().to_owned();
        let own = keys(below).find(|arg| arg.get_id() == OF_ALL);
        found.extend(own.map(|arg| (vec![name.clone()], below, arg)));
        let deeper = with_pool(below).into_iter();
        found.extend(deeper.map(|(path, command, arg)| ([vec![name.clone()], path].concat(), command, arg)));
    }
    found
}

/// As they would be typed. `None`: it is of a kind that this does not take.
fn values(arg: &Arg, value: &DeValue<'_>) -> Option<Vec<String>> {
    let typed = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        _ => None,
    };
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, DeValue::Boolean(is_on)) => Some(vec![is_on.to_string()]),
        (ArgAction::SetTrue, _) => None,
        (ArgAction::Append, DeValue::Array(all)) => all.iter().map(|one| typed(one.get_ref())).collect(),
        (_, one) => typed(one).map(|value| vec![value]),
    }
}

/// Whether the flag takes the value, by the flag's own word.
fn check(command: &Command, arg: &Arg, value: &str) -> Result<(), String> {
    let words = match (arg.get_long(), arg.get_action()) {
        (_, ArgAction::SetTrue) => return Ok(()),
        (Some(long), _) => vec![format!("--{long}={value}")],
        (None, _) => vec!["--".to_owned(), value.to_owned()],
    };
    let trial = command.clone().no_binary_name(true).mut_args(|arg| arg.required(false));
    match trial.try_get_matches_from(words) {
        Err(e) if matches!(e.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) => {
            let said = e.to_string();
            let said = said.split("\n\nFor more").next().unwrap_or_default();
            let words: Vec<&str> = said.trim_start_matches("error: ").split_whitespace().collect();
            Err(words.join(" "))
        }
        _ => Ok(()),
    }
}

/// Those that cannot be typed together with it, whichever of them says so.
fn excluded(command: &Command, arg: &Arg) -> Vec<String> {
    if arg.is_global_set() {
        return Vec::new();
    }
    let says = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    let others = command.get_arguments().filter(|other| says(arg, other) || says(other, arg));
    others.map(|other| other.get_id().to_string()).collect()
}

/// Parses with these as defaults, but for what the line says something against.
fn apply(settings: &[Setting], line: &[OsString]) -> Result<Cli, clap::Error> {
    let matched = |settings: &[&Setting]| {
        let command = Cli::command();
        let command =
            settings.iter().fold(command, |command, setting| give(command, &setting.command, setting));
        command.try_get_matches_from(line)
    };
    let all: Vec<&Setting> = settings.iter().collect();
    let mut found = matched(&all)?;
    let left: Vec<&Setting> = all.iter().copied().filter(|setting| !is_opposed(setting, &found)).collect();
    if left.len() < all.len() {
        found = matched(&left)?;
    }
    Cli::from_arg_matches_mut(&mut found).map_err(|error| error.format(&mut Cli::command()))
}

fn give(command: Command, path: &[String], setting: &Setting) -> Command {
    match path.split_first() {
        Some((first, rest)) => command.mut_subcommand(first, |below| give(below, rest, setting)),
        None => command.mut_arg(&setting.id, |arg| default_of(arg, setting)),
    }
}

fn default_of(arg: Arg, setting: &Setting) -> Arg {
    let arg = arg.required(false).default_values(setting.values.clone());
    match setting.is_flag {
        // It can be said on the line, too, that it is not wanted: --json=false.
        true => arg.action(ArgAction::Set).num_args(0..=1).require_equals(true).default_missing_value("true"),
        false => arg,
    }
}

/// Whether the line has something that cannot be together with it.
fn is_opposed(setting: &Setting, found: &ArgMatches) -> bool {
    let mut at = found;
    for name in &setting.command {
        match at.subcommand() {
            Some((called, below)) if called == name => at = below,
            _ => return false,
        }
    }
    let is_typed = |id: &String| at.value_source(id) == Some(ValueSource::CommandLine);
    setting.excludes.iter().any(is_typed)
}
