//! The one place where an error of a volume becomes an error code of NBD.

use cheetah_nbd::Errno;
use cheetah_rim::volume::VolumeError;

pub(super) fn of(error: VolumeError) -> Errno {
    match error {
        VolumeError::OutOfRange => Errno::Inval,
        VolumeError::ReadOnly => Errno::Perm,
        VolumeError::NoMemory => Errno::NoSpc,
        VolumeError::Unsupported => Errno::NotSup,
        // EPERM for a lost lease would read as "this export is read-only"; the words with it name the cause.
        VolumeError::DonorLost
        | VolumeError::TimedOut
        | VolumeError::DonorFailed
        | VolumeError::Corrupt
        | VolumeError::Unreadable
        | VolumeError::Absent
        | VolumeError::LeaseLost => Errno::Io,
    }
}

/// What a client that shows messages shows.
pub(super) fn words(error: VolumeError) -> &'static str {
    match error {
        VolumeError::OutOfRange => "beyond the end of the volume",
        VolumeError::ReadOnly => "the volume is attached read-only",
        VolumeError::NoMemory => "a donor has no memory left",
        VolumeError::DonorLost => "more donors that hold this range are lost than redundancy covers",
        VolumeError::TimedOut => "a donor did not answer in time",
        VolumeError::DonorFailed => "a donor answered with an error",
        VolumeError::Corrupt => "a donor sent other bytes than were written, and redundancy does not help",
        VolumeError::LeaseLost => "the write lease is gone: another client may write",
        VolumeError::Unsupported => "a donor cannot do this",
        VolumeError::Unreadable => "the source of the volume could not be read there",
        VolumeError::Absent => "that was not read from the source of the volume yet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_cannot_be_had_is_eio() {
        for error in
            [VolumeError::DonorLost, VolumeError::TimedOut, VolumeError::DonorFailed, VolumeError::LeaseLost]
        {
            assert_eq!(of(error), Errno::Io);
            assert!(!words(error).is_empty());
        }
        assert_eq!(of(VolumeError::ReadOnly), Errno::Perm);
    }
}
