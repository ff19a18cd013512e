//! The system calls of the loop driver, their numbers and layouts.
//!
//! Owns: `<linux/loop.h>`, and of `<linux/blkpg.h>` what partitions take. Never: decides what to call. A
//! named module that may use unsafe: an ioctl takes an address, and each function here passes one of exactly
//! the type that its number stands for; the layouts are checked when this compiles.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_SET_STATUS64: libc::c_ulong = 0x4C04;
const LOOP_CTL_ADD: libc::c_ulong = 0x4C80;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const BLKPG: libc::c_ulong = 0x1269;
const BLKPG_ADD_PARTITION: libc::c_int = 1;
const BLKPG_DEL_PARTITION: libc::c_int = 2;

pub(super) const LO_FLAGS_READ_ONLY: u32 = 1;
/// The kernel looks for partitions, and takes them away with the device, also those that others made.
pub(super) const LO_FLAGS_PARTSCAN: u32 = 8;
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

#[repr(C)]
struct BlkpgArg {
    op: libc::c_int,
    flags: libc::c_int,
    datalen: libc::c_int,
    data: *mut BlkpgPartition,
}

#[repr(C)]
struct BlkpgPartition {
    start: i64,
    length: i64,
    pno: libc::c_int,
    devname: [u8; 64],
    volname: [u8; 64],
}

const _: () = {
    assert!(size_of::<BlkpgPartition>() == 152 && std::mem::offset_of!(BlkpgPartition, devname) == 20);
    assert!(std::mem::offset_of!(BlkpgArg, data) == 16 || size_of::<usize>() == 4);
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

/// Makes a device that was not there before, and gives its number.
pub(super) fn add(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: this ioctl takes a number; a negative one lets the kernel choose.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_ADD, -1 as libc::c_long) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// A device that is to be cleared by its last user's close is not any more. One of which nobody else was a
/// user cannot be told so.
pub(super) fn keep(device: BorrowedFd<'_>, info: &LoopInfo64) -> io::Result<()> {
    // SAFETY: the kernel reads one `loop_info64` from the address.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_STATUS64, std::ptr::from_ref(info)) })
}

pub(super) fn add_partition(device: BorrowedFd<'_>, number: u32, start: u64, len: u64) -> io::Result<()> {
    blkpg(device, BLKPG_ADD_PARTITION, number, start, len)
}

/// It fails where somebody uses the partition.
pub(super) fn delete_partition(device: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    blkpg(device, BLKPG_DEL_PARTITION, number, 0, 0)
}

fn blkpg(device: BorrowedFd<'_>, op: libc::c_int, number: u32, start: u64, len: u64) -> io::Result<()> {
    let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut partition = BlkpgPartition {
        start: i64::try_from(start).map_err(too_large)?,
        length: i64::try_from(len).map_err(too_large)?,
        pno: libc::c_int::try_from(number).map_err(too_large)?,
        devname: [0; 64],
        volname: [0; 64],
    };
    let datalen = libc::c_int::try_from(size_of::<BlkpgPartition>()).expect("152 bytes");
    let argument = BlkpgArg { op, flags: 0, datalen, data: &raw mut partition };
    // SAFETY: the kernel reads one `blkpg_ioctl_arg` from the address, and one `blkpg_partition` from the one
    // in it; both live here.
    check(unsafe { libc::ioctl(device.as_raw_fd(), BLKPG, std::ptr::from_ref(&argument)) })
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
