//! The system calls of the loop driver, their numbers and layouts.
//!
//! Owns: `<linux/loop.h>`. Never: decides what to call. A named module that may use unsafe: an ioctl takes an
//! address, and each function here passes one of exactly the type that its number stands for; the layouts are
//! checked when this compiles.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;

pub(super) const LO_FLAGS_READ_ONLY: u32 = 1;
pub(super) const LO_FLAGS_DIRECT_IO: u32 = 16;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    pub(super) size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    pub(super) flags: u32,
    pub(super) file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LoopConfig {
    pub(super) fd: u32,
    pub(super) block_size: u32,
    pub(super) info: LoopInfo64,
    reserved: [u64; 8],
}

const _: () = {
    assert!(size_of::<LoopInfo64>() == 232 && align_of::<LoopInfo64>() == 8);
    assert!(size_of::<LoopConfig>() == 304);
    assert!(std::mem::offset_of!(LoopConfig, info) == 8);
    assert!(std::mem::offset_of!(LoopInfo64, size_limit) == 32);
    assert!(std::mem::offset_of!(LoopInfo64, flags) == 52);
    assert!(std::mem::offset_of!(LoopInfo64, file_name) == 56);
};

impl LoopInfo64 {
    pub(super) const fn empty() -> LoopInfo64 {
        LoopInfo64 {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: 0,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

impl LoopConfig {
    pub(super) const fn new(fd: u32, block_size: u32, info: LoopInfo64) -> LoopConfig {
        LoopConfig { fd, block_size, info, reserved: [0; 8] }
    }
}

/// The number of a device that is free now; another process may take it first.
pub(super) fn get_free(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: this ioctl takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

pub(super) fn configure(device: BorrowedFd<'_>, config: &LoopConfig) -> io::Result<()> {
    // SAFETY: the kernel reads one `loop_config` from the address, which is what it points to.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, std::ptr::from_ref(config)) })
}

pub(super) fn status(device: BorrowedFd<'_>) -> io::Result<LoopInfo64> {
    let mut info = LoopInfo64::empty();
    // SAFETY: the kernel writes one `loop_info64` to the address; any bytes are a valid one.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) })?;
    Ok(info)
}

pub(super) fn set_capacity(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: this ioctl takes no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY) })
}

pub(super) fn clear(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: this ioctl takes no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
