//! Converts attributes to FUSE's types, and errors to errno.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::wire::{Errno, FileAttr, FileType, INodeNo};
use engine::{Error, Kind};
use zpl::{Attr, FileKind, Time};

/// FUSE's file type.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Regular => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
    }
}

/// A time in the system's clock type; times beyond its range are clamped.
fn moment(time: Time) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nsec));
    let seconds = Duration::from_secs(time.sec.unsigned_abs());
    let base = if time.sec < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    base.and_then(|b| b.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Attributes of a file.
pub fn of_file(ino: u64, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: moment(attr.atime),
        mtime: moment(attr.mtime),
        ctime: moment(attr.ctime),
        crtime: moment(attr.crtime),
        kind: file_type(attr.kind),
        perm: u16::try_from(attr.perm & 0o7777).unwrap_or(0),
        nlink: u32::try_from(attr.links).unwrap_or(u32::MAX),
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev.map_or(0, |r| device(r.major, r.minor)),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// The kernel's 32-bit device number (`new_encode_dev`): 12 bits of major, 20 of minor.
fn device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

/// Attributes of entries outside a file system: directories of datasets and snapshots, volumes.
pub fn synthetic(ino: u64, kind: FileType, size: u64, created: u64) -> FileAttr {
    let time = moment(Time { sec: i64::try_from(created).unwrap_or(0), nsec: 0 });
    let directory = kind == FileType::Directory;
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size / 512,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm: if directory { 0o555 } else { 0o444 },
        nlink: if directory { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 128 << 10,
        flags: 0,
    }
}

/// The attributes of a negative name: no inode.
pub fn nothing() -> FileAttr {
    synthetic(0, FileType::RegularFile, 0, 0)
}

/// The errno for an error.
pub fn errno(e: &Error) -> Errno {
    match e.kind() {
        Kind::NotFound => Errno::ENOENT,
        Kind::Invalid => Errno::EINVAL,
        Kind::Unsupported => Errno::ENOTSUP,
        Kind::KeyMissing | Kind::KeyWrong | Kind::Denied => Errno::EACCES,
        Kind::NotDirectory => Errno::ENOTDIR,
        Kind::IsDirectory => Errno::EISDIR,
        Kind::Loop => Errno::ELOOP,
        Kind::TooLong => Errno::ENAMETOOLONG,
        Kind::Interrupted => Errno::EINTR,
        Kind::ReadOnly => Errno::EROFS,
        Kind::Limit => Errno::ENOMEM,
        Kind::Busy | Kind::Again => Errno::EBUSY,
        Kind::Exists => Errno::EEXIST,
        Kind::NotEmpty => Errno::ENOTEMPTY,
        Kind::NotUtf8 => Errno::EILSEQ,
        Kind::NotPermitted => Errno::EPERM,
        Kind::TooLarge => Errno::EFBIG,
        Kind::OtherDevice => Errno::EXDEV,
        Kind::NoSpace | Kind::Fragmented => Errno::ENOSPC,
        Kind::Quota => Errno::EDQUOT,
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let t = moment(Time { sec: -2, nsec: 500_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(t).unwrap(), Duration::from_millis(1500));
    }

    #[test]
    fn device_numbers_are_packed_as_the_kernel_reads_them() {
        assert_eq!(device(8, 1), 0x801);
        assert_eq!(device(259, 300), 0x2c | (259 << 8) | ((300 & 0xf_ff00) << 12));
    }
}
