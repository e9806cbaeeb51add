//! Discarding ranges of block devices, through Linux `ioctl`s that no safe crate offers.
//!
//! A hole punched into a block device is not a discard: Linux writes zeros then, and refuses where the disk has no command
//! for that. Source: `vdev_disk_io_trim`, vdev_disk.c, OpenZFS 2.4; block/ioctl.c, Linux 6.18.

use std::fs::File;
use std::io;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use crate::TrimSupport;

/// Offset and length, in bytes.
type Range = [u64; 2];

/// `BLKDISCARD` and `BLKSECDISCARD`, linux/fs.h.
const DISCARD: Opcode = opcode::none(0x12, 119);
const ERASE: Opcode = opcode::none(0x12, 125);

/// No device has such a range: the kernel refuses it behind the check whether the device supports the request.
const NO_RANGE: Range = [1, 1];

/// Tells a block device that a range is unused.
pub(crate) fn discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    Ok(range::<DISCARD>(file, [offset, len])?)
}

/// Has a block device make a range unreadable, with all copies that it keeps of it.
pub(crate) fn erase(file: &File, offset: u64, len: u64) -> io::Result<()> {
    Ok(range::<ERASE>(file, [offset, len])?)
}

/// The requests that a block device, open for writing, supports.
#[doc(alias("vdev_has_trim", "vdev_has_securetrim"))]
pub(crate) fn support(file: &File) -> TrimSupport {
    let is_known = |probed: Result<(), Errno>| probed == Err(Errno::INVAL);
    TrimSupport {
        trim: is_known(range::<DISCARD>(file, NO_RANGE)),
        erase: is_known(range::<ERASE>(file, NO_RANGE)),
    }
}

fn range<const REQUEST: Opcode>(file: &File, range: Range) -> Result<(), Errno> {
    // SAFETY: both requests read two 64-bit integers, and nothing else.
    let set = unsafe { Setter::<REQUEST, Range>::new(range) };
    // SAFETY: as above; the descriptor is open while this runs.
    unsafe { ioctl(file, set) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_have_the_kernels_numbers() {
        assert_eq!((DISCARD, ERASE), (0x1277, 0x127d));
    }

    #[test]
    fn a_file_is_no_disk() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(support(&file), TrimSupport { trim: false, erase: false });
        assert!(discard(&file, 0, 4096).is_err() && erase(&file, 0, 4096).is_err());
    }
}
