//! Who seals a volume or saves it, its coordinator, or a donor is killed on the way: the volume is what was
//! loaded, the log of its custody verifies, and no entry is lost that somebody was told of.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cheetah_lab::dice::Dice;
use cheetah_lab::pool::{Access, Pool, State};
use cheetah_lab::process::Process;
use cheetah_lab::wait;
use serde_json::Value;

const BYTES: u64 = 40 << 20;
/// For a lease of who was killed to run out, on a busy machine.
const LONG: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
enum Victim {
    Coordinator,
    /// The process that seals, or saves.
    Command,
    Donor,
}

impl Victim {
    fn of(number: u64) -> Victim {
        [Victim::Coordinator, Victim::Command, Victim::Donor][(number % 3) as usize]
    }
}

struct Stage {
    pool: Pool,
    dice: Dice,
    image: PathBuf,
    /// What the logs of all volumes held when somebody was told.
    told: Vec<(String, Vec<Value>)>,
}

fn entries(pool: &Pool, volume: &str) -> Vec<Value> {
    pool.json(["log", volume])["entries"].as_array().expect("entries").clone()
}

impl Stage {
    fn new() -> Stage {
        let mut pool = Pool::of(Access::Members, State::Directory, None);
        for number in 0..4 {
            pool.donate(&format!("d{number}"), "768M");
        }
        let mut dice = Dice::new(38);
        let image: Vec<u8> = (0..BYTES / 8).flat_map(|_| dice.roll().to_le_bytes()).collect();
        let image = pool.scratch().file("disk.dd", &image);
        Stage { pool, dice, image, told: Vec::new() }
    }

    /// Begins this, and kills somebody meanwhile. Whether the command says that it did it.
    fn disturbed(&mut self, (round, volume): (u64, &str), victim: Victim, arguments: &[&str]) -> bool {
        let mut command: Command = self.pool.command();
        command.args(arguments);
        let name = format!("{}-{round}", arguments[0]);
        let mut process = Process::start(&name, command, self.pool.scratch().path());
        std::thread::sleep(Duration::from_millis(self.dice.below(400)));
        self.told.push((volume.to_owned(), entries(&self.pool, volume)));
        match victim {
            Victim::Coordinator => {
                self.pool.kill_coordinator();
                std::thread::sleep(Duration::from_millis(self.dice.below(400)));
                self.pool.restart_coordinator();
            }
            Victim::Command => process.kill(),
            Victim::Donor => {
                let holders = self.pool.holders(volume, 0);
                let holder = holders[self.dice.below(holders.len() as u64) as usize].clone();
                self.pool.donor(&holder).kill();
                self.pool.donate(&format!("d{}", 4 + 2 * round + u64::from(arguments[0] == "save")), "768M");
            }
        }
        process.wait_for_end(LONG).success()
    }

    /// Loads a volume, which seals it, with a death on the way, and what its user would do then.
    fn sealed(&mut self, round: u64, volume: &str) {
        let image = self.image.display().to_string();
        let create = ["create", volume, &BYTES.to_string(), "--redundancy", "parity:2+1"];
        wait::until("donors to be heard of again", LONG, || self.pool.run(create).status.success());
        let arguments = ["load", &image, volume, "--resume"];
        let is_sealed =
            |pool: &Pool| pool.volume_status(volume)["content"]["sealed"]["root"].as_str().is_some();
        if self.disturbed((round, volume), Victim::of(round), &["load", &image, volume]) {
            assert!(is_sealed(&self.pool), "{volume}: it says that it did it");
        }
        wait::until("the volume to be sealed", LONG, || {
            let done = is_sealed(&self.pool)
                || self.pool.run(arguments).status.success()
                || self.pool.run(["seal", volume]).status.success();
            done && is_sealed(&self.pool)
        });
    }

    fn saved(&mut self, round: u64, volume: &str) {
        let file = self.pool.scratch().join(format!("{volume}.dd"));
        let name = file.display().to_string();
        let done = self.disturbed((round, volume), Victim::of(round + 1), &["save", volume, &name]);
        if !done {
            wait::until("the volume to be saved", LONG, || {
                self.pool.run(["save", volume, &name, "--overwrite"]).status.success()
            });
        }
        let same =
            std::fs::read(&file).expect("it is saved") == std::fs::read(&self.image).expect("the image");
        assert!(same, "{volume}: what was saved is what was loaded");
        std::fs::remove_file(&file).expect("it is there");
    }
}

/// In each round one of three is killed while a volume is sealed, another while it is saved.
fn killed(rounds: u64) {
    let mut stage = Stage::new();
    for round in 0..rounds {
        let volume = format!("case{round}");
        stage.sealed(round, &volume);
        stage.saved(round, &volume);
        stage.told.push((volume.clone(), entries(&stage.pool, &volume)));
        stage.pool.kill_coordinator();
        stage.pool.restart_coordinator();
        for (of, told) in &stage.told {
            assert_eq!(
                entries(&stage.pool, of)[..told.len()],
                told[..],
                "{of}: what somebody was told stays"
            );
        }
        let log = stage.pool.scratch().join(format!("{volume}.log")).display().to_string();
        stage.pool.ok(["log", &volume, "--export", &log]);
        let events: Vec<Value> =
            entries(&stage.pool, &volume).iter().map(|one| one["event"].clone()).collect();
        let count = |event: &str| events.iter().filter(|one| *one == event).count();
        assert!(count("sealed") == 1 && count("exported") >= 1, "{volume}: {events:?}");
        stage.pool.ok(["verify-log", &log]);
        stage.pool.ok(["verify", &volume]);
    }
}

#[test]
fn whoever_is_killed_while_a_volume_is_sealed_or_saved_takes_nothing_along() {
    killed(3);
}

#[test]
#[ignore = "minutes: make unclean"]
fn nor_in_ten_rounds() {
    killed(10);
}
