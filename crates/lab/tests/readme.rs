//! README's "Use it", typed as it stands: every line after a prompt, on the hosts that the prompt names, each
//! a network namespace with a name of its own; and what it prints is what README shows. Of what stays and
//! shows nothing there, that it is ready.
//!
//! What is not README's: how much is lent and the size of the image (`REPLACED`), where the examiner's files
//! are, the token that the coordinator prints, and `poweroff`, which the lab carries out. Numbers, sizes,
//! ports and identities stand for any other; `...` for any lines, and `loading` for what only a terminal gets
//! to see. What looks at the pool is typed again until it shows that, for README's reader looks when it has
//! happened.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cheetah_lab::images::Sample;
use cheetah_lab::lan::{Lan, Node};
use cheetah_lab::pool::binary;
use cheetah_lab::process::Process;
use cheetah_lab::scratch::Scratch;
use cheetah_lab::{mark, tools, wait};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
/// What README lends and loads does not fit here.
const REPLACED: [(&str, &str); 2] = [("donate 80G", "donate 320M"), ("/mnt/", "mnt/")];
/// Three groups, each on three of four donors.
const IMAGE_BYTES: u64 = 300 << 20;
const LIMIT: Duration = Duration::from_secs(120);
/// What whatever stays says when it is of use, whether README shows it or not.
const READY: &str = "ready:";

/// A command as README has it, and what it shows below.
#[derive(Debug)]
struct Step {
    host: String,
    line: String,
    shows: Vec<String>,
}

/// The commands in the section's blocks.
fn steps(readme: &str) -> Vec<Step> {
    let section = readme.split("\n## Use it\n").nth(1).expect("README has a section on use");
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```\n").skip(1).step_by(2);
    let mut steps: Vec<Step> = Vec::new();
    for line in blocks.flat_map(str::lines).filter(|line| !line.is_empty()) {
        match line.split_once(" $ ").filter(|(hosts, _)| is_prompt(hosts)) {
            Some((hosts, typed)) => {
                let typed = typed.split(" # ").next().unwrap_or(typed).trim();
                let step =
                    |host: &str| Step { host: host.to_owned(), line: typed.to_owned(), shows: Vec::new() };
                steps.extend(hosts.split(',').map(step));
            }
            None => steps.last_mut().expect("a prompt comes first").shows.push(line.to_owned()),
        }
    }
    steps
}

/// `lab6`, or several that are typed the same, `lab7,lab8`.
fn is_prompt(hosts: &str) -> bool {
    hosts.split(',').all(|host| !host.is_empty() && host.chars().all(char::is_alphanumeric))
}

/// `cheetah://HOST:PORT/TOKEN`
fn is_invitation(word: &str) -> bool {
    word.strip_prefix("cheetah://").is_some_and(|rest| rest.contains('/'))
}

/// One host's processes that stay, and what README shows of each that was not seen yet.
struct Staying {
    host: String,
    process: Process,
    awaited: Vec<String>,
}

struct Hosts {
    lan: Lan,
    scratch: Scratch,
    staying: Vec<Staying>,
    /// As the coordinator printed it.
    invitation: Option<String>,
}

/// `lab6` at 10.0.0.6 and so on; the examiner, who runs the coordinator, at 10.0.0.5.
fn node_of(host: &str) -> Node {
    let number = host.strip_prefix("lab").and_then(|number| number.parse::<u8>().ok());
    number.map_or(Node::Client, |number| Node::Donor(number - 5))
}

impl Hosts {
    fn new(steps: &[Step]) -> Self {
        let (lan, scratch) = (Lan::new(4, "1gbit"), Scratch::new());
        let hosts = Self { lan, scratch, staying: Vec::new(), invitation: None };
        let mut names: Vec<&str> = steps.iter().map(|step| step.host.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let address = name.strip_prefix("lab").unwrap_or("5");
            let script = format!(
                "ip address add 10.0.0.{address}/24 dev e0 && ip route add default dev e0 && ip link set lo up"
            );
            tools::expect_success(hosts.lan.exec(node_of(name), "/bin/sh").args(["-c", &script]));
        }
        hosts
    }

    fn directory(&self, host: &str) -> PathBuf {
        self.scratch.directory(host)
    }

    fn typed(&self, host: &str, line: &str) -> Command {
        let mut command = self.lan.exec(node_of(host), "/bin/sh");
        let programs = binary().parent().expect("a directory").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(["-c", &format!("echo {host} >/proc/sys/kernel/hostname; {line}")])
            .current_dir(self.directory(host))
            .env(mark::VARIABLE, mark::own())
            .env("PATH", format!("{programs}:{path}"))
            .env("HOME", self.directory(host))
            .env("XDG_RUNTIME_DIR", self.directory(host))
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("CHEETAH_POOL");
        command
    }

    fn run(&mut self, step: &Step) {
        let line = REPLACED.iter().fold(step.line.clone(), |line, (from, to)| line.replace(from, to));
        let line = match line.split(' ').find(|word| is_invitation(word)) {
            Some(shown) => line.replace(shown, self.invitation.as_deref().expect("it was printed before")),
            None => line,
        };
        let stays = line.starts_with("cheetah donate") || line.ends_with('&');
        if line == "poweroff" {
            // Nobody says goodbye, and nothing answers any more.
            self.lan.cut(node_of(&step.host));
            self.lan.kill(node_of(&step.host));
            self.staying.retain(|staying| staying.host != step.host);
        } else if stays {
            // Whoever was switched off is on again.
            self.lan.heal(node_of(&step.host));
            let line = format!("exec {}", line.trim_end_matches('&'));
            let name = format!("{}-{}", step.host, self.staying.len());
            let process = Process::start(&name, self.typed(&step.host, &line), self.scratch.path());
            let (host, mut awaited) = (step.host.clone(), step.shows.clone());
            if awaited.is_empty() {
                awaited.push(READY.to_owned());
            }
            self.staying.push(Staying { host, process, awaited });
            if step.line.ends_with('&') {
                self.see_what_stays();
            }
        } else {
            self.see_what_stays();
            self.see(step, &line);
        }
    }

    fn see_what_stays(&mut self) {
        for staying in &mut self.staying {
            for line in std::mem::take(&mut staying.awaited) {
                let (host, wanted) = (&staying.host, alike(&line));
                wait::until(&format!("{line:?} on {host}"), wait::SOON, || {
                    assert!(staying.process.is_running(), "{host}: it ended: {}", staying.process.log());
                    let is_it = |line: &str| match wanted.as_str() {
                        READY => line.starts_with(READY),
                        wanted => alike(line) == wanted,
                    };
                    staying.process.log().lines().any(is_it)
                });
            }
        }
        if self.invitation.is_none() {
            let logs: Vec<String> = self.staying.iter().map(|staying| staying.process.log()).collect();
            let mut words = logs.iter().flat_map(|log| log.split_whitespace());
            self.invitation = words.find(|word| is_invitation(word)).map(str::to_owned);
        }
    }

    fn see(&self, step: &Step, line: &str) {
        let looks =
            ["cheetah show", "cheetah status", "cheetah list"].iter().any(|look| line.starts_with(look));
        let wanted: Vec<String> = step.shows.iter().map(|line| alike(line)).collect();
        let here = format!("{}/", self.directory(&step.host).display());
        let mut last = String::new();
        let mut is_shown = || {
            let mut command = self.typed(&step.host, line);
            let output = tools::output(&mut command);
            assert!(output.status.success(), "{}", tools::describe(&command, &output));
            // As README has it, whose paths begin at the root.
            let said = String::from_utf8_lossy(&output.stdout).replace(&here, "/");
            let printed: Vec<String> = said.lines().map(alike).filter(|line| !line.is_empty()).collect();
            let is_shown = shows(&wanted, &printed);
            if !is_shown && said != last {
                eprintln!("{} $ {line}\n{said}", step.host);
            }
            last = said;
            is_shown
        };
        let what = format!("{} $ {line}, and then\n{}", step.host, step.shows.join("\n"));
        if looks {
            wait::until(&what, LIMIT, is_shown);
        } else {
            assert!(is_shown(), "README shows {what}");
        }
    }
}

/// Whether the lines are those that README shows, where `...` stands for any and `loading` for none.
fn shows(wanted: &[String], printed: &[String]) -> bool {
    match wanted.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first.starts_with("loading ") => shows(rest, printed),
        Some((first, rest)) if first == "..." => {
            (0..=printed.len()).any(|from| shows(rest, &printed[from..]))
        }
        Some((first, rest)) => {
            printed.split_first().is_some_and(|(line, left)| line == first && shows(rest, left))
        }
    }
}

/// A line without what differs from machine to machine: numbers and sizes, ports, identities, the width of
/// columns.
fn alike(line: &str) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "s"];
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let bare = word.trim_matches(|c: char| "(),;:%".contains(c));
        let is_number = bare.parse::<f64>().is_ok();
        // An identity, or a hash.
        let is_identity = matches!(bare.len(), 16 | 64) && bare.chars().all(|c| c.is_ascii_hexdigit());
        if UNITS.contains(&bare) && words.last().is_some_and(|last| last.starts_with('#')) {
            continue;
        }
        match bare.rsplit_once(':').filter(|(ip, _)| ip.parse::<std::net::IpAddr>().is_ok()) {
            Some((ip, _)) => words.push(format!("{ip}:#")),
            None if is_number || is_identity => words.push("#".to_owned()),
            None if is_invitation(word) => words.push("cheetah://#".to_owned()),
            None => words.push(word.to_owned()),
        }
    }
    words.join(" ")
}

#[test]
fn what_readme_says_of_use_is_what_happens() {
    let steps = steps(&std::fs::read_to_string(README).expect("README"));
    assert!(steps.len() >= 12, "{steps:#?}");
    for needed in [
        "poweroff",
        "cheetah leave",
        "cheetah coordinate",
        "cheetah load",
        "cheetah status",
        "cheetah attach",
    ] {
        assert!(steps.iter().any(|step| step.line.contains(needed)), "README shows {needed}");
    }
    let mut hosts = Hosts::new(&steps);
    // A disk of which the image is the beginning.
    hosts.scratch.directory("examiner");
    hosts.scratch.directory("examiner/mnt");
    let disk = hosts.directory("examiner").join("disk.dd");
    std::fs::copy(Sample::named("fs.ntfs").path(), &disk).expect("the examiner's disk");
    let file = std::fs::OpenOptions::new().write(true).open(&disk).expect("the examiner's disk");
    file.set_len(IMAGE_BYTES).expect("a larger one");
    for step in &steps {
        hosts.run(step);
    }
}

#[test]
fn lines_are_alike_whatever_the_machine() {
    let same = [
        (
            "ready: donor lab7 lends 80 GiB at 10.0.0.7:40123",
            "ready: donor lab7 lends 320 MiB at 10.0.0.7:39",
        ),
        (
            "lab7 left the pool: 40 GiB moved to other donors in 93.1 s",
            "lab7 left the pool: 192 MiB moved to other donors in 2.0 s",
        ),
    ];
    for (one, other) in same {
        assert_eq!(alike(one), alike(other));
    }
    for (one, other) in
        [("donor lab7 holds 3 extents", "donor lab8 holds 3 extents"), ("parity:2+1", "parity:3+1")]
    {
        assert_ne!(alike(one), alike(other));
    }
    assert!(is_prompt("lab6") && is_prompt("lab7,lab8") && !is_prompt("a b") && !is_prompt("lab7,"));
    let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<String>>();
    let wanted = lines(&["a", "loading #", "...", "b"]);
    assert!(shows(&wanted, &lines(&["a", "x", "y", "b"])) && shows(&wanted, &lines(&["a", "b"])));
    assert!(!shows(&wanted, &lines(&["a", "b", "x"])) && !shows(&wanted, &lines(&["x", "a", "b"])));
}
