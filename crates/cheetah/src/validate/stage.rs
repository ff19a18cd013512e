//! What the cases of one validation share: the pools, the image, a folder of temporary files, and volumes
//! of names that nobody else has.
//!
//! Owns what was made, and taking it back: at the end, after Ctrl-C, and after a case that failed half-way.
//! Never: a volume, an attachment or a process that it did not make. Invariant: what is made is put down
//! before it is made. Called by `super` and the modules of cases. Tests: `lab/tests/validate.rs`.

use super::case::{Case, Done, Said, Stop, here};
use super::image::Image;
use super::private::PrivatePool;
use super::program::Place;
use super::requirements::On;
use crate::failure::Failure;
use crate::files;
use crate::pool::own_thing;
use cheetah_core::units::show_bytes;
use serde_json::Value;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A command, and another second for so many bytes of the image.
const COMMAND_ENDS: Duration = Duration::from_secs(120);
const BYTES_EACH_SECOND: u64 = 4 << 20;
/// The lease of a command that was killed ends by itself in that time.
const TAKEN_BACK_IN: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(300);

pub struct Stage {
    pub pool: Place,
    pub image: Image,
    folder: PathBuf,
    /// Of all that this validation makes.
    mark: String,
    private: Option<PrivatePool>,
    volumes: Vec<(On, String)>,
    attached: Vec<(On, String)>,
    /// Sealed, of the image: for all cases that only look.
    evidence: Option<String>,
}

impl Stage {
    pub fn set(pool: Place, image: Image) -> Result<Stage, Failure> {
        let mark = own_thing("validate")?;
        let folder = std::env::temp_dir().join(format!("cheetah-{mark}"));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|why| files::cannot("make", &folder, &why))?;
        let (private, volumes, attached, evidence) = (None, Vec::new(), Vec::new(), None);
        Ok(Stage { pool, image, folder, mark, private, volumes, attached, evidence })
    }

    /// A temporary file of this name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The image as a file, which is made once.
    pub fn image_file(&self, case: &mut Case) -> Done<PathBuf> {
        let path = self.file("image.raw");
        if !path.exists() {
            self.image.write(&path)?;
            case.did(format!("made the image, {} bytes: {}", self.image.bytes, path.display()));
        }
        Ok(path)
    }

    fn limit(&self) -> Duration {
        COMMAND_ENDS + Duration::from_secs(self.image.bytes / BYTES_EACH_SECOND)
    }

    pub fn place(&self, on: On) -> Done<Place> {
        match on {
            On::Pool => Ok(self.pool.clone()),
            On::PrivatePool => match &self.private {
                Some(private) => Ok(private.place()),
                None => Err(Stop::NotShown("the private pool did not start".to_owned())),
            },
        }
    }

    /// Runs a command on one of the pools.
    pub async fn run(&self, case: &mut Case, on: On, arguments: &[&str]) -> Done<Said> {
        case.did(format!("cheetah {}", arguments.join(" ")));
        self.place(on)?.run(arguments, self.limit()).await
    }

    /// A volume that is to be made under this name.
    pub fn volume(&mut self, on: On, name: &str) -> String {
        let name = format!("{}-{name}", self.mark);
        self.volumes.push((on, name.clone()));
        name
    }

    /// The volume that all cases may look at, loaded from the image and sealed.
    pub async fn evidence(&mut self, case: &mut Case) -> Done<String> {
        if let Some(name) = &self.evidence {
            return Ok(name.clone());
        }
        let (image, name) = (self.image_file(case)?, self.volume(On::Pool, "evidence"));
        let said = self.run(case, On::Pool, &["load", &image.display().to_string(), &name]).await?;
        let report = case.succeeded(said)?;
        let sealed = report["sealed"].as_str().unwrap_or("it is not sealed");
        if !case.check("what was loaded is sealed", sealed, report["sealed"].is_string()) {
            return Err(Stop::Failed);
        }
        self.evidence = Some(name.clone());
        Ok(name)
    }

    /// Attaches a volume as an export; its socket.
    pub async fn export(&mut self, case: &mut Case, on: On, name: &str, more: &[&str]) -> Done<PathBuf> {
        let socket = self.file(&format!("{}.nbd", self.attached.len()));
        let listen = format!("unix:{}", socket.display());
        let arguments = [&["attach", name, "--front", "export", "--listen", &listen], more].concat();
        self.attached.push((on, name.to_owned()));
        let said = self.run(case, on, &arguments).await?;
        case.succeeded(said)?;
        Ok(socket)
    }

    /// Attaching a volume as an export is refused.
    pub async fn is_not_attached(&mut self, case: &mut Case, what: &str, name: &str, more: &str) -> Done {
        let socket = format!("unix:{}", self.file("refused.nbd").display());
        let attach = ["attach", name, "--front", "export", "--listen", &socket, more];
        let said = self.run(case, On::Pool, &attach).await?;
        case.ends_with(what, 4, &said);
        match said.code {
            Some(0) => self.detach(case, On::Pool, name).await,
            _ => Ok(()),
        }
    }

    /// Attaches a volume as a file, which only is read; its path.
    pub async fn mounted(&mut self, case: &mut Case, name: &str) -> Done<PathBuf> {
        let directory = self.file("mnt");
        fs::create_dir_all(&directory)?;
        let arguments = ["attach", name, &directory.display().to_string(), "--read-only"];
        self.attached.push((On::Pool, name.to_owned()));
        let said = self.run(case, On::Pool, &arguments).await?;
        let report = case.succeeded(said)?;
        match report["path"].as_str() {
            Some(path) => Ok(path.into()),
            None => Err(Stop::NotShown("the attachment has no file".to_owned())),
        }
    }

    pub async fn detach(&mut self, case: &mut Case, on: On, name: &str) -> Done {
        let said = self.run(case, on, &["detach", name]).await?;
        case.succeeded(said)?;
        self.attached.retain(|attached| *attached != (on, name.to_owned()));
        Ok(())
    }

    /// What `show` says of a volume.
    pub async fn shown(&self, on: On, name: &str) -> Done<Value> {
        let said = self.place(on)?.run(&["show", name], self.limit()).await?;
        match said.code {
            Some(0) => Ok(said.json),
            _ => Err(here("`cheetah show`", said.why)),
        }
    }

    /// The private pool, which is started for the first case that needs it.
    pub async fn private(&mut self, case: &mut Case) -> Done<&mut PrivatePool> {
        if self.private.is_none() {
            let share = self.image.bytes.max(1 << 28).saturating_mul(4);
            case.did(format!("started a pool of four donors here, each lending {}", show_bytes(share)));
            self.private = Some(PrivatePool::start(&self.file("private"), share).await?);
        }
        self.private.as_mut().ok_or_else(|| Stop::NotShown("the private pool did not start".to_owned()))
    }

    /// What a case left attached, before the next one.
    pub async fn tidy(&mut self) {
        for (on, name) in std::mem::take(&mut self.attached) {
            if let Ok(place) = self.place(on) {
                // What cannot be detached is named when its volume cannot be deleted.
                let _ = place.run(&["detach", &name], COMMAND_ENDS).await;
            }
        }
        let evidence = self.evidence.clone();
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.volumes)
            .into_iter()
            .partition(|(_, name)| Some(name) == evidence.as_ref());
        self.volumes = kept;
        for (on, name) in gone {
            if !self.delete(on, &name).await {
                self.volumes.push((on, name));
            }
        }
    }

    /// Takes everything back; the volumes that are still there.
    pub async fn strike(mut self) -> Vec<String> {
        self.evidence = None;
        self.tidy().await;
        if let Some(private) = self.private.take() {
            private.end().await;
        }
        // What is left of it are temporary files.
        let _ = fs::remove_dir_all(&self.folder);
        let left = self.volumes.into_iter().filter(|(on, _)| *on == On::Pool);
        left.map(|(_, name)| name).collect()
    }

    /// Whether it is gone.
    async fn delete(&self, on: On, name: &str) -> bool {
        let Ok(place) = self.place(on) else { return true };
        let until = Instant::now() + TAKEN_BACK_IN;
        loop {
            match place.run(&["delete", name], COMMAND_ENDS).await {
                Ok(Said { code: Some(0), .. }) => return true,
                // It was never made.
                Ok(Said { error, .. }) if error == "not_found" => return true,
                // A lease of a command that was killed.
                Ok(Said { error, .. }) if error == "conflict" && Instant::now() < until => {}
                _ => return false,
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}
