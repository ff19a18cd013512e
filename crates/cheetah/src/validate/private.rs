//! The pool that is harmed: a coordinator and four donors on this machine, of members, for one validation.
//!
//! Owns its processes, who they are, and their end. Never: anybody else's donors. Invariant: nothing of it
//! outlives this command. Called by `stage` and `harming`. Tests: `lab/tests/validate.rs`.

use super::case::{Done, Stop, here};
use super::program::Place;
use crate::crew::Member;
use std::fs;
use std::path::Path;
use std::time::Duration;

const DONORS: u32 = 4;
const STARTS_IN: Duration = Duration::from_secs(60);

pub struct PrivatePool {
    place: Place,
    coordinator: Member,
    donors: Vec<Member>,
}

impl PrivatePool {
    /// In a folder that is made. Each donor stands for a host, and lends so much.
    pub async fn start(folder: &Path, share: u64) -> Done<PrivatePool> {
        fs::create_dir_all(folder)?;
        let (admin, donor) = (folder.join("admin"), folder.join("donor"));
        let coordinate = ["coordinate", "--state", "memory", "--listen", "127.0.0.1:0"];
        let (coordinator, url) = Member::start("the private coordinator", &coordinate, &admin, true).await?;
        let place = Place { url: url.clone(), identity: Some(admin) };
        let said = place.run(&["token", "new", "--role", "donor", "--uses", "1"], STARTS_IN).await?;
        let invitation =
            said.json["url"].as_str().ok_or_else(|| here("a token of the private pool", said.why))?;
        let lends = Place { url: url.clone(), identity: Some(donor.clone()) };
        let joined = lends.run(&["join", invitation], STARTS_IN).await?;
        if joined.code != Some(0) {
            return Err(here("joining the private pool", joined.why));
        }
        let mut pool = PrivatePool { place, coordinator, donors: Vec::new() };
        let share = share.to_string();
        for number in 1..=DONORS {
            let name = format!("private-{number}");
            let arguments =
                ["donate", &share, "--pool", &url, "--name", &name, "--host-id", &name, "--no-drain"];
            pool.donors.push(Member::start(&name, &arguments, &donor, true).await?.0);
        }
        Ok(pool)
    }

    pub fn place(&self) -> Place {
        self.place.clone()
    }

    /// Those that run, each with its process.
    pub fn donors(&self) -> impl Iterator<Item = (&str, u32)> {
        self.donors.iter().filter_map(|donor| Some((donor.what.as_str(), donor.pid()?)))
    }

    /// As a machine that loses its power.
    pub async fn kill(&mut self, name: &str) -> Done {
        let donor = self.donors.iter_mut().find(|donor| donor.what == name && donor.pid().is_some());
        match donor {
            Some(donor) => {
                donor.kill().await;
                Ok(())
            }
            None => Err(Stop::NotShown(format!("no donor {name} runs that could be killed"))),
        }
    }

    pub async fn end(mut self) {
        for donor in &mut self.donors {
            donor.end().await;
        }
        self.coordinator.end().await;
    }
}
