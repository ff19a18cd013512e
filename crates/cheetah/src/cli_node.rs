//! The command line of `node`: what one machine lends, and what it shall have attached. Never: behaviour.

use crate::cli::{Attach, Cli, Command, JsonArg, PoolArg};
use crate::cli_serving::Donate;
use clap::{Args, Parser};

pub const NODE_EXAMPLES: &str = "\
Examples:
  cheetah node --donate auto --donate '--disk /srv/cheetah:500G' --attach 'case7 /mnt/case7'
  cheetah node              as [node] in cheetah.toml says:
                              donate = [\"auto --reserve 8G\", \"--disk /dev/sdb --cache 16G\"]
                              attach = [\"case7 /mnt/case7\", \"case8 --front export\"]
  cheetah node --check      what it would run";

#[derive(Debug, Args)]
pub struct Node {
    /// What to lend, in the words that follow `cheetah donate`: \"auto --reserve 8G\", \"--disk /dev/sdb\".
    /// Each is a process of its own, so each disk is best given by itself.
    #[arg(long, value_name = "WORDS", value_parser = parse_lender)]
    pub donate: Vec<Lender>,
    /// What shall be attached, in the words that follow `cheetah attach`: \"case7 /mnt/case7 --front loop\".
    #[arg(long, value_name = "WORDS", value_parser = parse_attachment)]
    pub attach: Vec<Attachment>,
    /// Say what would be run, and run nothing.
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub pool: PoolArg,
    #[command(flatten)]
    pub json: JsonArg,
}

/// A process that lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lender {
    /// Behind `donate`.
    pub words: Vec<String>,
    /// As its lines are told from others'.
    pub label: String,
    pub names_pool: bool,
}

/// A volume that shall be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Behind `attach`.
    pub words: Vec<String>,
    /// What is attached by them: the volume, or what lies over it.
    pub name: String,
    pub names_pool: bool,
}

fn parse_lender(text: &str) -> Result<Lender, String> {
    let (words, command) = parse("donate", text)?;
    let Command::Donate(Donate { size, disk, name, pool, no_pool, .. }) = command else {
        return Err("it is no donor".to_owned());
    };
    let label = match (name, &size, &disk[..]) {
        (Some(name), _, _) => name,
        (None, None, []) => return Err("it says nothing to lend: how much memory, or --disk".to_owned()),
        (None, None, [disk, ..]) => format!("disk {disk}"),
        (None, Some(size), _) if size.starts_with("nbd") => size.clone(),
        (None, Some(_), _) => "memory".to_owned(),
    };
    Ok(Lender { words, label, names_pool: no_pool || pool.pool.is_some() })
}

fn parse_attachment(text: &str) -> Result<Attachment, String> {
    let (words, command) = parse("attach", text)?;
    let Command::Attach(Attach { name, overlay, pool, .. }) = command else {
        return Err("it is no attachment".to_owned());
    };
    let name = match overlay {
        Some(overlay) => crate::overlay::name_of(&name, overlay),
        None => name,
    };
    Ok(Attachment { words, name, names_pool: pool.pool.is_some() })
}

/// The words, and what they mean behind that command.
fn parse(command: &str, text: &str) -> Result<(Vec<String>, Command), String> {
    let words = words(text)?;
    let line = ["cheetah", command].into_iter().chain(words.iter().map(String::as_str));
    let cli = Cli::try_parse_from(line).map_err(|error| {
        let said = error.to_string();
        let first = said.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    })?;
    match cli.command.wants_json() {
        true => Err("--json is for `cheetah node` itself".to_owned()),
        false => Ok((words, cli.command)),
    }
}

/// As a shell would part them; quotes keep spaces in a word, and nothing else has a meaning.
fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in text.chars() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '"' | '\'') => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    match quote {
        Some(quote) => Err(format!("a quote {quote} is not closed")),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parted_as_by_a_shell() {
        let parted = |text| words(text).expect("words");
        assert_eq!(parted("auto  --max 8G "), ["auto", "--max", "8G"]);
        assert_eq!(parted("case7 '/mnt/a b' x\"y z\" ''"), ["case7", "/mnt/a b", "xy z", ""]);
        assert!(words("'open").is_err_and(|why| why.contains("not closed")));
        assert!(parted("").is_empty());
    }

    #[test]
    fn a_lender_is_called_by_what_it_lends() {
        let label = |text| parse_lender(text).map(|lender| lender.label);
        assert_eq!(label("auto --reserve 8G"), Ok("memory".to_owned()));
        assert_eq!(label("--disk /dev/sdb --cache 1G"), Ok("disk /dev/sdb".to_owned()));
        assert_eq!(label("4G --name lab7-fast"), Ok("lab7-fast".to_owned()));
        assert!(label("").is_err_and(|why| why.contains("nothing to lend")));
        assert!(label("auto --frobnicate").is_err_and(|why| why.contains("--frobnicate")));
    }

    #[test]
    fn an_attachment_is_called_by_what_is_attached() {
        let name = |text| parse_attachment(text).map(|attachment| attachment.name);
        assert_eq!(name("case7 /mnt/case7 --front loop"), Ok("case7".to_owned()));
        assert_eq!(name("case7 --overlay=mine"), Ok("mine".to_owned()));
        assert_eq!(name("case7 --overlay"), Ok("case7-overlay".to_owned()));
        assert!(name("").is_err() && name("case7 --front moon").is_err());
    }
}
