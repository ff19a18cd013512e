//! How tools reach an attached volume: which front ends there are, and what each of them can do.
//!
//! Owns: one word for each step of their lives (start, grow, end, let go, recover), the same for all. Never:
//! the volume or its lease (`daemon`), or what a request means (`cheetah_front`). Invariants: what was begun
//! is in the value, so a start may be given up at any point and then ended; an end that is refused changes
//! nothing; what is in use is never taken from its users. One more is a file here and a variant.
//! Called by `daemon` and `up` (a front end of this process), `attach` (one whose process was killed).
//! Files: `file`, `device` (a loop device over the file), `export`. Tests: `lab/tests`.

mod device;
mod export;
mod file;

use crate::cli::{self, Front};
use crate::daemon::{Order, Ready};
use crate::failure::Failure;
use crate::runtime_dir::Record;
use cheetah_front::Shared;
use cheetah_rim::stream::Transport;
use std::path::PathBuf;
use tokio::sync::watch;

impl Front {
    /// Refuses options of an attachment that this front end has no use for.
    pub fn check(self, options: &cli::Attach) -> Result<(), Failure> {
        let refused = match self {
            Front::Export if options.mountpoint.is_some() => {
                "an export has no mount point: leave it out, or choose another --front"
            }
            Front::Fuse | Front::Export if options.sector.is_some() => {
                "--sector is for --front loop: a file or an export has no sectors"
            }
            Front::Fuse | Front::Loop if options.listen.is_some() => {
                "--listen is for --front export: a file or a loop device listens nowhere"
            }
            _ => return Ok(()),
        };
        Err(Failure::usage(refused))
    }

    /// It has a file in a directory.
    pub fn has_mountpoint(self) -> bool {
        self != Front::Export
    }

    /// What was read is kept here: of a file the kernel keeps it, and tools that read an export may not.
    pub fn keeps_reads(self) -> bool {
        self == Front::Export
    }

    /// The kernel takes what is read ahead, unless a write could be overtaken by it; a loop device goes past
    /// the kernel's cache.
    pub fn takes_ahead(self) -> bool {
        self == Front::Fuse
    }
}

pub enum FrontEnd {
    File(file::File),
    Device(device::Device),
    Export(export::Export),
}

/// What is the same for every front end of an attachment.
pub struct Of<'a> {
    pub volume: &'a Shared,
    /// Somebody else has the volume for writing.
    pub writer_beside: bool,
    /// How others than this machine may reach it.
    pub transport: Transport,
}

impl FrontEnd {
    /// What an order asks for; nothing of it is begun.
    pub fn ordered(order: &Order) -> Result<FrontEnd, Failure> {
        Ok(match order.front {
            Front::Fuse => FrontEnd::File(file::File::ordered(order)?),
            Front::Loop => FrontEnd::Device(device::Device::ordered(order)?),
            Front::Export => FrontEnd::Export(export::Export::at(&order.listen)?),
        })
    }

    /// Beside another.
    pub fn export(listen: &str) -> Result<FrontEnd, Failure> {
        Ok(FrontEnd::Export(export::Export::at(listen)?))
    }

    /// Until tools can use it; what they and their user ought to know is added to `ready`.
    pub async fn start(&mut self, of: &Of<'_>, ready: &mut Ready) -> Result<(), Failure> {
        match self {
            FrontEnd::File(file) => file.start(of, ready),
            FrontEnd::Device(device) => device.start(of, ready).await,
            FrontEnd::Export(export) => export.start(of, ready),
        }
    }

    /// The volume has so many bytes now.
    pub async fn grow(&mut self, bytes: u64) {
        match self {
            FrontEnd::Device(device) => device.grow(bytes).await,
            // The file's server and each new client of an export look for themselves.
            FrontEnd::File(_) | FrontEnd::Export(_) => {}
        }
    }

    /// Somebody else has the volume for writing, or nobody has.
    pub fn set_writer_beside(&self, there: bool) {
        match self {
            FrontEnd::File(file) => file.set_writer_beside(there),
            FrontEnd::Device(device) => device.file().set_writer_beside(there),
            FrontEnd::Export(_) => {}
        }
    }

    /// Turns true when somebody else ended it, by umount.
    pub fn ended(&self) -> Option<watch::Receiver<bool>> {
        match self {
            FrontEnd::File(file) => file.ended(),
            FrontEnd::Device(device) => device.file().ended(),
            FrontEnd::Export(_) => None,
        }
    }

    /// Ends it, as far as nobody uses it.
    pub async fn end(&mut self) -> Result<(), Failure> {
        match self {
            FrontEnd::File(file) => {
                file.check_unused(None).await?;
                file.end().await
            }
            FrontEnd::Device(device) => device.end().await,
            FrontEnd::Export(export) => {
                export.end().await;
                Ok(())
            }
        }
    }

    /// What is in use goes with its last user.
    pub fn let_go(&self) {
        if let FrontEnd::Device(device) = self {
            device.let_go();
        }
    }

    /// The block device, once there is one.
    pub fn device_path(&self) -> Option<PathBuf> {
        match self {
            FrontEnd::Device(device) => device.path(),
            FrontEnd::File(_) | FrontEnd::Export(_) => None,
        }
    }

    /// Ends what a daemon that was killed left standing.
    pub fn recover(record: &Record) -> Result<(), Failure> {
        match record.front {
            Front::Fuse => file::recover(record),
            Front::Loop => device::recover(record),
            // The next one replaces its socket.
            Front::Export => Ok(()),
        }
    }
}
