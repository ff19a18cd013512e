//! Files as people write them, and what becomes of a command line with them.

use super::*;
use crate::cli::Command as Asked;

fn file(name: &str, text: &str) -> Read {
    Read { name: name.into(), text: text.into() }
}

fn parsed(files: &[Read], line: &str) -> Cli {
    let settings = merge(&Cli::command(), files).expect("right files");
    apply(&settings, &words(line)).expect("a right line")
}

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

fn wrong(text: &str) -> Failure {
    merge(&Cli::command(), &[file("x.toml", text)]).expect_err("a wrong file")
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    let failure = wrong(text);
    assert_eq!(failure.exit as i32, 2);
    let said = failure.text();
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
}

#[test]
fn a_flag_goes_before_the_users_file_and_that_before_the_machines() {
    let own = file("own", "[donate]\nname = \"own\"\n");
    let machine = file("machine", "[donate]\nsize = \"auto\"\nname = \"machine\"\nreserve = \"8G\"\n");
    let files = [own, machine];
    let Asked::Donate(donate) = parsed(&files, "cheetah donate").command else { panic!("donate") };
    assert_eq!((donate.size.as_deref(), donate.name.as_deref()), (Some("auto"), Some("own")));
    assert_eq!(donate.reserve, Some(8 << 30));
    let Asked::Donate(donate) = parsed(&files, "cheetah donate 4G --name typed").command else {
        panic!("donate")
    };
    assert_eq!((donate.size.as_deref(), donate.name.as_deref()), (Some("4G"), Some("typed")));
}

#[test]
fn the_environment_goes_before_files() {
    let settings = merge(&Cli::command(), &[file("x", "pool = \"http://10.0.0.5:1\"\n")]).expect("right");
    assert!(settings.len() > 10, "it is for each command that finds a pool");
    let blank = unless_in(|_| Some(" ".into()), settings.clone());
    assert_eq!(blank, settings, "what says nothing is nothing");
    assert!(unless_in(|name| (name == "CHEETAH_POOL").then(|| "u".into()), settings).is_empty());
}

#[test]
fn a_pool_for_all_gives_way_to_that_of_a_command() {
    let files = [file("x", "pool = \"http://all:1\"\n[status]\npool = \"http://one:1\"\n")];
    let Asked::Status(status) = parsed(&files, "cheetah status").command else { panic!("status") };
    assert_eq!(status.pool.pool.as_deref(), Some("http://one:1"));
    let Asked::List(list) = parsed(&files, "cheetah list").command else { panic!("list") };
    assert_eq!(list.pool.pool.as_deref(), Some("http://all:1"));
    let files =
        [file("own", "pool = \"http://own:1\"\n"), file("machine", "[status]\npool = \"http://m:1\"\n")];
    let Asked::Status(status) = parsed(&files, "cheetah status").command else { panic!("status") };
    assert_eq!(status.pool.pool.as_deref(), Some("http://own:1"), "a user's file goes before, all of it");
}

#[test]
fn what_a_file_turns_on_can_be_turned_off_on_the_line() {
    let files = [file("x", "[attach]\nread-only = true\n[status]\njson = true\n")];
    let Asked::Attach(attach) = parsed(&files, "cheetah attach case7").command else { panic!("attach") };
    assert!(attach.read_only && !attach.writable);
    let Asked::Attach(attach) = parsed(&files, "cheetah attach case7 --writable").command else {
        panic!("attach")
    };
    assert!(attach.writable && !attach.read_only, "both would contradict each other");
    let status = |line: &str| match parsed(&files, line).command {
        Asked::Status(status) => status.json.json,
        _ => panic!("status"),
    };
    assert!(status("cheetah status") && status("cheetah status --json"));
    assert!(!status("cheetah status --json=false"));
}

#[test]
fn of_two_files_that_contradict_each_other_the_users_holds() {
    let files = [file("own", "[attach]\nwritable = true\n"), file("machine", "[attach]\nread-only = true\n")];
    let Asked::Attach(attach) = parsed(&files, "cheetah attach case7").command else { panic!("attach") };
    assert!(attach.writable && !attach.read_only);
    says("[attach]\nwritable = true\nread-only = true\n", &["x.toml:3", "writable", "remove one"]);
    let files = [file("x", "[attach]\nwritable = false\nread-only = true\n")];
    assert!(matches!(parsed(&files, "cheetah attach c").command, Asked::Attach(attach) if attach.read_only));
    let files = [file("x", "pool = \"http://all:1\"\n[donate]\nno-pool = true\n")];
    assert!(matches!(parsed(&files, "cheetah donate 1G").command, Asked::Donate(donate) if donate.no_pool));
}

#[test]
fn numbers_texts_and_lists_are_taken_as_they_would_be_typed() {
    let text = "[load]\npatience = 60\nexpect = [\"md5:00112233445566778899aabbccddeeff\"]\n[token.new]\nrole = \"donor\"\nuses = 40\n";
    let files = [file("x", text)];
    let Asked::Load(load) = parsed(&files, "cheetah load disk.dd case7").command else { panic!("load") };
    assert_eq!((load.patience, load.expect.len()), (60, 1));
    assert!(matches!(parsed(&files, "cheetah token new").command, Asked::Token(_)), "the role is set");
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_with_what_is_right() {
    says("\n[coordinat]\nlisten = 1\n", &["x.toml:2", "[coordinat]", "coordinate, donate"]);
    says(
        "[coordinate]\n\nlissten = \"x\"\n",
        &["x.toml:3", "'lissten' in [coordinate]", "listen, plaintext, state"],
    );
    says("[donate]\nname = true\n", &["x.toml:2", "'name'", "boolean", "name = \"NAME\""]);
    says("[coordinate]\nplaintext = \"yes\"\n", &["x.toml:2", "plaintext = true or plaintext = false"]);
    says("[attach]\ncache = \"5G\"\n", &["x.toml:2", "'5G'", "1M to 3G"]);
    says("[attach]\nfront = \"usb\"\n", &["x.toml:2", "'usb'", "fuse, export, loop"]);
    says("[attach]\npoll-us = 5000\n", &["x.toml:2", "5000", "1000"]);
    says("listen = \"x\"\n", &["x.toml:1", "above all tables", "identity, key-file, pool"]);
    says("donate = \"auto\"\n", &["x.toml:1", "[donate]"]);
    says("[token.nev]\nrole = \"donor\"\n", &["x.toml:1", "[nev]", "new, list, revoke"]);
    says("[donate\n", &["x.toml:1", "TOML"]);
    says("[serve]\n", &["x.toml:1", "none of the commands"]);
    says("[load]\nmemory = \"8G\"\n", &["x.toml:2", "no key 'memory'"]);
}

#[test]
fn a_named_file_is_found_on_the_line() {
    let found = |line: &str| named(&words(line));
    assert_eq!(found("cheetah --config a status"), Some("a".into()));
    assert_eq!(found("cheetah status --config=b"), Some("b".into()));
    assert_eq!(found("cheetah load -- --config c"), None);
    assert_eq!(found("cheetah status"), None);
}

/// Each flag of each command is a key, by the same word, and none of them makes the command inconsistent.
#[test]
fn every_flag_can_be_set() {
    fn all(command: &Command, path: &[String], settings: &mut Vec<Setting>) {
        for arg in keys(command) {
            let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
            let values = if is_flag { vec!["false".to_owned()] } else { continue };
            let (id, excludes) = (arg.get_id().to_string(), excluded(command, arg));
            settings.push(Setting {
                command: path.to_vec(),
                id,
                values,
                is_flag,
                excludes,
                is_own: true,
                line: 1,
            });
        }
        for below in commands(command) {
            all(below, &[path, &[below.get_name().to_owned()]].concat(), settings);
        }
    }
    let mut settings = Vec::new();
    all(&Cli::command(), &[], &mut settings);
    assert!(settings.len() > 30, "only {} flags", settings.len());
    let command =
        settings.iter().fold(Cli::command(), |command, setting| give(command, &setting.command, setting));
    command.debug_assert();
}
