//! A real volume for the front ends: donors of this process, over loopback TCP, and the volume driver.
//! Owns: the processes' memory, a scratch directory, an NBD client that sends what it is told.
//! Never: a stand-in for a part that a user would use.
#![allow(dead_code, clippy::unwrap_used)]

use cheetah_core::limits::EXTENT_BYTES;
use cheetah_core::map::{
    DonorId, Group, LeaseToken, Medium, Placement, Redundancy, Route, Slot, VolumeId, VolumeMap,
};
use cheetah_front::Shared;
use cheetah_nbd::{CmdFlags, Command, RequestHeader};
use cheetah_rim::arena::Arena;
use cheetah_rim::donor::{DonorServer, Gate};
use cheetah_rim::net::Bound;
use cheetah_rim::stream::Transport;
use cheetah_rim::volume::{Caching, Rule, Tuning, VolumeHandle, VolumeOptions};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub const DONORS: u64 = 2;
const EXTENTS: u32 = 4;

pub struct World {
    pub handle: VolumeHandle,
    pub shared: Shared,
    pub folder: PathBuf,
    donors: Vec<(Arc<Arena>, DonorServer)>,
}

impl World {
    pub fn new(name: &str, size: u64) -> World {
        World::with(name, size, false)
    }

    pub fn with(name: &str, size: u64, read_only: bool) -> World {
        let donors: Vec<_> = (0..DONORS).map(|_| donor()).collect();
        let options = VolumeOptions {
            map: map(&donors, 1, size),
            token: LeaseToken(0),
            read_only,
            fresh: true,
            tuning: Tuning {
                caching: Caching { bytes: 4 << 20, keeps: true, takes: false, rule: Rule::Streams },
                ..Tuning::default()
            },
            transport: Transport::default(),
            key: None,
        };
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let folder = format!("cheetah-front-{}-{number}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(folder.join("mnt")).unwrap();
        let handle = VolumeHandle::start(options).unwrap();
        World { shared: Shared::new(handle.clone()), handle, folder, donors }
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    /// Grows the volume and returns when its handle says so.
    pub fn grow(&self, size: u64) {
        let mut sizes = self.handle.size_changes();
        self.handle.update_map(map(&self.donors, 2, size));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(sizes.wait_for(|now| *now == size)).unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(self.mountpoint());
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn donor() -> (Arc<Arena>, DonorServer) {
    let arena = Arc::new(Arena::new(EXTENTS).unwrap());
    let bound = Bound::new(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let server = DonorServer::start(bound, &arena, &Gate::alone(EXTENTS), &Transport::default()).unwrap();
    (arena, server)
}

fn map(donors: &[(Arc<Arena>, DonorServer)], epoch: u64, size: u64) -> VolumeMap {
    let redundancy = Redundancy { data: DONORS as u32, parity: 0 };
    let group = |extent: u32| Group {
        slots: (0..DONORS).map(|donor| Slot::held(Placement { donor: DonorId(donor), extent })).collect(),
    };
    let routes: BTreeMap<DonorId, Route> = (0u64..)
        .zip(donors)
        .map(|(id, (_, server))| {
            let address = server.endpoint().to_string();
            let route = Route { name: format!("d{id}"), address, foreign_export: Some(String::new()) };
            (DonorId(id), route)
        })
        .collect();
    let groups = u32::try_from(size.div_ceil(DONORS * EXTENT_BYTES)).unwrap();
    let groups = (0..groups).map(group).collect();
    let map = VolumeMap {
        volume: VolumeId(1),
        name: "scratch".into(),
        epoch,
        size,
        redundancy,
        unit: 65536,
        groups,
        routes,
        bad: Vec::new(),
        unreadable: Vec::new(),
        hurry: false,
        backing: None,
        proofs: None,
        encrypted: false,
        write_back: false,
        medium: Medium::Memory,
    };
    map.check().unwrap();
    map
}

/// Bytes that look like nothing, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A client after its handshake; simple replies.
pub struct Client(pub UnixStream);

impl Client {
    pub fn connect(socket: &Path) -> Client {
        let mut stream = UnixStream::connect(socket).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        // Fixed newstyle without zeroes; GO for the default export.
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        let go = [b"IHAVEOPT".as_slice(), &7u32.to_be_bytes(), &6u32.to_be_bytes(), &[0; 6]].concat();
        stream.write_all(&go).unwrap();
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head).unwrap();
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut body = vec![0; number(16) as usize];
            stream.read_exact(&mut body).unwrap();
            if number(12) == 1 {
                return Client(stream);
            }
        }
    }

    pub fn send(&mut self, command: Command, cookie: u64, offset: u64, length: u32, payload: &[u8]) {
        let header = RequestHeader { flags: CmdFlags::EMPTY, command, cookie, offset, length };
        self.0.write_all(&header.encode()).unwrap();
        self.0.write_all(payload).unwrap();
    }

    /// The cookie and error code of the next reply.
    pub fn reply(&mut self) -> (u64, u32) {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        (
            u64::from_be_bytes(head[8..].try_into().unwrap()),
            u32::from_be_bytes(head[4..8].try_into().unwrap()),
        )
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> u32 {
        self.send(Command::Write, 1, offset, bytes.len() as u32, bytes);
        self.reply().1
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        self.send(Command::Read, 2, offset, len, &[]);
        assert_eq!(self.reply(), (2, 0));
        let mut bytes = vec![0; len as usize];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }
}
