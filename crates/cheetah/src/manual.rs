//! The manual's pages, one for each command, out of what `--help` says.
//!
//! Owns how examples and exit codes stand there: line by line, as in the help. Never: text of its own. Called
//! by who packs the program. Tests: `lab/tests/install.rs`.

use crate::cli::Cli;
use crate::cli_machine::Manual;
use crate::failure::Failure;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;
use std::path::Path;

pub fn write(options: &Manual) -> Result<(), Failure> {
    let directory = &options.directory;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let written = std::fs::create_dir_all(directory).and_then(|()| write_below(&command, directory));
    written.map_err(|e| Failure::failed(format!("cannot write to {}: {e}", directory.display())))
}

fn write_below(command: &Command, directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_below(below, directory)?;
    }
    let source = format!("cheetah {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source).manual("Cheetah");
    std::fs::write(directory.join(man.get_filename()), page(command, &man)?)
}

fn page(command: &Command, man: &Man) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(help) = command.get_after_help() {
        as_it_stands(&help.to_string()).to_writer(&mut page)?;
    }
    Ok(page)
}

/// Examples and tables, of which no line may be filled. What ends in a colon at the margin heads a section.
fn as_it_stands(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut is_in_section = false;
    for line in text.lines() {
        match line.strip_suffix(':').filter(|_| !line.starts_with(' ')) {
            Some(head) => {
                // A long head says more than a title can.
                let (title, more) = head.split_once(", ").unwrap_or((head, ""));
                if is_in_section {
                    roff.control("fi", []);
                }
                roff.control("SH", [title.to_uppercase().as_str()]);
                if !more.is_empty() {
                    roff.text([roman(format!("{title}, {more}:"))]);
                    roff.control("PP", []);
                }
                roff.control("nf", []);
                is_in_section = true;
            }
            None if is_in_section => {
                roff.text([roman(line)]);
            }
            None => {
                roff.control("PP", []);
                roff.text([roman(line)]);
            }
        }
    }
    if is_in_section {
        roff.control("fi", []);
    }
    roff
}
