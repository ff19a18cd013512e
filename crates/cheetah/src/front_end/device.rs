//! The volume as a block device: a loop device over its file.
//!
//! Owns: the device and the file under it, from their order to their end, and what is left of those whose
//! daemon was killed. Never: how the kernel is told (`cheetah_front::loopdev`). Tests:
//! `lab/tests/devices.rs`.

use super::{Of, file};
use crate::daemon::{Order, Ready};
use crate::failure::{Exit, Failure};
use crate::runtime_dir::Record;
use cheetah_front::loopdev::{self, LoopDevice};
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_blocking};

const GROWTH_TRIES: u32 = 100;
const GROWTH_PAUSE: Duration = Duration::from_millis(50);

pub struct Device {
    file: file::File,
    options: loopdev::Options,
    /// A device that is being made: it is waited for, whatever comes between.
    making: Option<JoinHandle<Result<LoopDevice, loopdev::LoopError>>>,
    device: Option<LoopDevice>,
}

impl Device {
    pub fn ordered(order: &Order) -> Result<Device, Failure> {
        let options = loopdev::Options {
            read_only: order.read_only,
            block_size: order.sector,
            ..loopdev::Options::default()
        };
        Ok(Device { file: file::File::ordered(order)?, options, making: None, device: None })
    }

    pub fn file(&self) -> &file::File {
        &self.file
    }

    pub fn path(&self) -> Option<PathBuf> {
        self.device.as_ref().map(LoopDevice::path)
    }

    pub async fn start(&mut self, of: &Of<'_>, ready: &mut Ready) -> Result<(), Failure> {
        self.file.start(of, ready)?;
        let path = ready.path.take().ok_or_else(|| Failure::failed("the volume's file is not mounted"))?;
        let options = self.options;
        // The kernel opens the file, which this process serves: not from the thread that runs the rest.
        let making = spawn_blocking(move || loopdev::attach(&path, &options));
        let made = self.making.insert(making).await;
        self.making = None;
        let device = made.map_err(|e| Failure::failed(e.to_string()))?;
        let device = device.map_err(|e| Failure::failed(e.to_string()))?;
        ready.notes.extend(device.notes().iter().cloned());
        ready.partitions = device.partitions();
        let shown: Vec<String> = ready.partitions.iter().map(|path| path.display().to_string()).collect();
        if !shown.is_empty() {
            ready.notes.push(format!("partitions: {}", shown.join(", ")));
        }
        ready.path = Some(device.path());
        ready.place = device.path().display().to_string();
        self.device = Some(device);
        Ok(())
    }

    pub async fn grow(&mut self, bytes: u64) {
        let Some(mut device) = self.device.take() else { return };
        let wanted = bytes / 512 * 512;
        let grown = spawn_blocking(move || {
            // The file's new size reaches the kernel with the front end's own notice; ask until it has.
            let mut result = device.set_capacity();
            for _ in 0..GROWTH_TRIES {
                if !matches!(result, Ok(size) if size < wanted) {
                    break;
                }
                std::thread::sleep(GROWTH_PAUSE);
                result = device.set_capacity();
            }
            (device, result)
        });
        if let Ok((device, result)) = grown.await {
            if let Err(error) = result {
                tracing::warn!(%error, "the loop device keeps its size");
            }
            self.device = Some(device);
        }
    }

    pub async fn end(&mut self) -> Result<(), Failure> {
        if let Some(making) = self.making.take()
            && let Ok(Ok(device)) = making.await
        {
            self.device = Some(device);
        }
        // Before the first of them ends: a refusal changes nothing.
        self.file.check_unused(self.path()).await?;
        if let Some(device) = self.device.take() {
            let ended = spawn_blocking(move || {
                let result = device.detach().map_err(|e| e.to_string());
                (device, result)
            });
            let (device, result) = ended.await.map_err(|e| Failure::failed(e.to_string()))?;
            if let Err(why) = result {
                self.device = Some(device);
                return Err(Failure::new(Exit::Refused, why));
            }
        }
        self.file.end().await
    }

    pub fn let_go(&self) {
        self.device.iter().for_each(LoopDevice::let_go);
    }
}

pub fn recover(record: &Record) -> Result<(), Failure> {
    if let Some(point) = &record.mountpoint {
        let mut devices = loopdev::standing_on(&file::path_below(point, &record.name));
        // None is named by one that was killed before it could; then all that stand there are its.
        devices.retain(|device| record.loop_device.as_ref().is_none_or(|own| own == device));
        for device in devices {
            loopdev::detach(&device).map_err(|e| Failure::new(Exit::Refused, e.to_string()))?;
        }
    }
    file::recover(record)
}
