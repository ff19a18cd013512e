//! Opening a tap: a network device whose frames a program reads and writes.
//!
//! Owns: the two ioctls that make a tap, the one unsafe code of the lab. Never: looks into a frame.
//! Invariant: each frame comes with a virtio header, so that the kernel leaves checksums undone on the way in
//! and takes them for right on the way out, as network cards with offloads do.
//! Called by: `wire`. One of the named modules that may use unsafe. Tests: those of `wire`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{IntegerSetter, Setter, ioctl, opcode};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// What stands before each frame, in bytes.
pub const HEADER_BYTES: usize = 10;
/// Set in a header's first byte when the checksum is still to be made, and taken for right when it is
/// delivered.
pub const CHECKSUM_UNDONE: u8 = 1;

const NAME_BYTES: usize = 16;
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
/// Checksums may come undone,
const CHECKSUM_OFFLOAD: usize = 0x01;
/// and what TCP sends at once may come so, by IPv4 and IPv6.
const TCP_OFFLOADS: usize = 0x02 | 0x04;
const TUNSETIFF: u32 = opcode::write::<c_int>(b'T', 202);
const TUNSETOFFLOAD: u32 = opcode::write::<std::ffi::c_uint>(b'T', 208);

/// What becomes of what TCP sends at once, up to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargeSends {
    /// It is cut into frames of the wire's size.
    Cut,
    /// It stays one frame: a fortieth of the work.
    Whole,
}

/// The kernel's `struct ifreq`.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

/// Makes a tap of this name in a network namespace (given by its path) and opens it, non-blocking.
///
/// # Errors
/// What the kernel says; `/dev/net/tun` may be missing.
pub fn open_in(namespace: &str, name: &str, large: LargeSends) -> io::Result<File> {
    let namespace = File::open(namespace)?;
    let mut request =
        InterfaceRequest { name: [0; NAME_BYTES], flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let offloads = match large {
        LargeSends::Cut => CHECKSUM_OFFLOAD,
        LargeSends::Whole => CHECKSUM_OFFLOAD | TCP_OFFLOADS,
    };
    // A thread of its own, because a thread's namespace is where the tap is made; it ends with the making.
    let maker = std::thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
        // SAFETY: TUNSETIFF reads (and fills in) one `struct ifreq`, whose layout is asserted above; the
        // kernel's answer goes into the setter's own copy, which is as large.
        unsafe { ioctl(&device, Setter::<TUNSETIFF, InterfaceRequest>::new(request))? };
        // SAFETY: TUNSETOFFLOAD takes a plain number and touches no memory.
        unsafe { ioctl(&device, IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads))? };
        Ok(File::from(device))
    });
    maker.join().unwrap_or_else(|_| Err(io::Error::other("the maker of the tap panicked")))
}
