//! The `cheetah` program: parses, calls the command, turns its failure into a message and an exit code.
//! Never: what a command does; each has a module of its own.

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr)]

mod attach;
mod chunks;
mod claims;
mod cli;
mod cli_attach;
mod cli_custody;
mod cli_machine;
mod cli_members;
mod cli_model;
mod cli_node;
mod cli_saving;
mod cli_seal;
mod cli_serving;
mod cli_validate;
mod configuration;
mod content;
mod control;
mod crew;
mod custody;
mod daemon;
mod diff;
mod disk;
mod doctor;
mod donate;
mod drain;
mod expected;
mod failure;
mod files;
mod fill;
mod filler;
mod front_end;
mod handover;
mod health;
mod html;
mod leave;
mod load;
mod manifest;
mod manual;
mod mapfile;
mod members;
mod model;
mod mover;
mod node;
mod on_disk;
mod open;
mod output;
mod overlay;
mod pool;
mod progress;
mod proofs;
mod proved;
mod report;
mod runtime_dir;
mod save;
mod seal;
mod signals;
mod simulate;
mod starting;
mod up;
mod validate;
mod verify;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use cli::{Cli, Command};
use configuration::NotParsed;
use failure::Failure;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

/// What is logged unless `CHEETAH_LOG` says otherwise: faults, and what pools and attachments keep a record
/// of.
const LOGGED: &str = "warn,journal=info";

fn main() -> ExitCode {
    cheetah_rim::memory::survive_file_limit();
    cheetah_rim::names::look_up_without_plugins();
    let line: Vec<OsString> = std::env::args_os().collect();
    let cli = match configuration::parse(&line) {
        Ok(cli) => cli,
        Err(NotParsed::Line(error)) => return end_of_parsing(&error),
        Err(NotParsed::File(failure)) => return end_of_files(&failure),
    };
    if cli.command.wants_json() {
        output::use_json();
    }
    if let Err(failure) = members::hide_token() {
        return end(&failure);
    }
    let filter = std::env::var("CHEETAH_LOG").unwrap_or_else(|_| LOGGED.into());
    let filter = tracing_subscriber::EnvFilter::try_new(filter).unwrap_or_else(|_| LOGGED.into());
    // Colours are for a terminal; names of modules are for nobody who reads this.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| output::Log)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // A closed stderr is no reason to say so on it.
        .log_internal_errors(false)
        .init();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            return end(&Failure::failed(format!("this process gets no event loop from the kernel: {e}")));
        }
    };
    // A pool for its own time has identities for its own time.
    if !matches!(cli.command, Command::Up(_)) {
        members::begin(cli.identity.as_deref(), matches!(cli.command, Command::Donate(_)));
    }
    members::use_key_file(cli.key_file.as_deref());
    let may_hang = matches!(cli.command, Command::Load(_) | Command::Save(_));
    let ended = runtime.block_on(run(cli.command));
    if may_hang {
        // A read of a source may take as long as that is silent, a write to a pipe as long as nobody reads,
        // and nobody wants what comes of it.
        runtime.shutdown_background();
    }
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => end(&failure),
    }
}

/// A configuration is as wrong as a command line may be.
fn end_of_files(failure: &Failure) -> ExitCode {
    if std::env::args_os().any(|argument| argument == "--json") {
        output::use_json();
    }
    end(failure)
}

/// Help and version are parsed as errors, too.
fn end_of_parsing(error: &clap::Error) -> ExitCode {
    if let Some(failure) = std::env::args().nth(1).and_then(|command| no_size(error, &command)) {
        if std::env::args_os().any(|argument| argument == "--json") {
            output::use_json();
        }
        return end(&failure);
    }
    if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
        output::use_json();
        let text = error.to_string();
        let said = text.strip_prefix("error: ").unwrap_or(&text).lines().next().unwrap_or_default();
        return end(&Failure::usage(said).advise("see `cheetah --help`"));
    }
    // Whoever closed the pipe has seen enough.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
}

/// What stands where a size goes and begins like an option.
fn no_size(error: &clap::Error, command: &str) -> Option<Failure> {
    let takes_size = ["donate", "create", "grow"].contains(&command);
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_unknown = error.kind() == ErrorKind::UnknownArgument && !given.starts_with("--");
    (takes_size && is_unknown).then(|| {
        // Of `-1G` the parser names `-1`.
        let typed = std::env::args().find(|argument| argument.starts_with(given.as_str()));
        let given = typed.as_deref().unwrap_or(given.as_str());
        Failure::usage(format!("'{given}' is neither an option of `cheetah {command}` nor a size"))
            .advise("write a size as bytes or a number with K, M, G or T, like 512M or 4G")
    })
}

fn end(failure: &Failure) -> ExitCode {
    failure.print();
    ExitCode::from(failure.exit as u8)
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(options) => up::up(options).await,
        Command::Coordinate(options) => pool::coordinate(options).await,
        Command::Donate(options) => donate::donate(options).await,
        Command::Create(options) => pool::create(options).await,
        Command::Attach(options) => attach::attach(options).await,
        Command::Diff(options) => diff::diff(options).await,
        Command::Detach(options) => attach::detach(options).await,
        Command::Load(options) => load::load(options).await,
        Command::Open(options) => open::open(options).await,
        Command::Fill(options) => open::fill(options).await,
        Command::Verify(options) => verify::verify(options).await,
        Command::Validate(options) => validate::validate(options).await,
        Command::Save(options) => save::save(options).await,
        Command::Seal(options) => seal::seal(options).await,
        Command::Manifest(options) => manifest::manifest(options).await,
        Command::Status(options) => report::status(options).await,
        Command::List(options) => report::list(options).await,
        Command::Show(options) => report::show(options).await,
        Command::Log(options) => custody::log(options).await,
        Command::Report(options) => handover::report(options).await,
        Command::VerifyLog(options) => custody::verify_log(&options),
        Command::Grow(options) => pool::grow(options).await,
        Command::Grant(options) => members::grant(options).await,
        Command::Delete(options) => pool::delete(options).await,
        Command::Node(options) => node::node(options).await,
        Command::Leave(options) => leave::leave(options).await,
        Command::Join(options) => members::join(options).await,
        Command::Token(command) => members::token(command).await,
        Command::Member(command) => members::member(command).await,
        Command::Doctor(options) => doctor::doctor(options).await,
        Command::Explain(options) => report::explain(&options),
        Command::Model(options) => model::model(*options).await,
        Command::Simulate(options) => simulate::simulate(&options),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "cheetah", &mut script);
            output::raw(&script);
            Ok(())
        }
        Command::Manual(options) => manual::write(&options),
        Command::Serve => daemon::serve_from_stdin().await,
        Command::ServeFill => filler::serve_from_stdin().await,
    }
}
