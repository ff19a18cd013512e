//! The one place where an error of a volume becomes an errno of a file.

use cheetah_rim::volume::VolumeError;
use rustix::io::Errno;

pub(super) fn of(error: VolumeError) -> Errno {
    match error {
        // What a block device answers to a write behind its end.
        VolumeError::OutOfRange => Errno::NOSPC,
        VolumeError::ReadOnly => Errno::ROFS,
        VolumeError::NoMemory => Errno::NOSPC,
        // Tools that punch holes go on without when they hear this.
        VolumeError::Unsupported => Errno::OPNOTSUPP,
        // A lost lease too: file systems know what EIO means and stop writing. ESTALE or EACCES, which name
        // the cause, make some tools retry or blame permissions; the cause is in the volume's status.
        VolumeError::DonorLost
        | VolumeError::TimedOut
        | VolumeError::DonorFailed
        | VolumeError::Corrupt
        | VolumeError::Unreadable
        | VolumeError::Absent
        | VolumeError::LeaseLost => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_cannot_be_had_is_eio_and_nothing_else_is() {
        for error in
            [VolumeError::DonorLost, VolumeError::TimedOut, VolumeError::DonorFailed, VolumeError::LeaseLost]
        {
            assert_eq!(of(error), Errno::IO);
        }
        assert_eq!(of(VolumeError::ReadOnly), Errno::ROFS);
        assert_eq!(of(VolumeError::NoMemory), Errno::NOSPC);
        assert_eq!(of(VolumeError::OutOfRange), Errno::NOSPC);
    }
}
