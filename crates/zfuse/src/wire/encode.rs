//! Encodes structures of the protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{FileAttr, FileHandle, FileType, FopenFlags, Generation};

/// Fields of an answer to `statx`: all of `stat`, and the birth time.
const BASIC_STATS: u32 = 0x7ff;
const BTIME: u32 = 0x800;

/// A buffer that grows field by field.
#[derive(Debug, Default)]
pub struct Out(Vec<u8>);

impl Out {
    /// The encoded bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends bytes.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends 16 bits.
    pub fn u16(self, value: u16) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    /// Appends 32 bits.
    pub fn u32(self, value: u32) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    /// Appends 32 bits with a sign.
    pub fn i32(self, value: i32) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    /// Appends 64 bits.
    pub fn u64(self, value: u64) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    /// Appends 64 bits with a sign.
    pub fn i64(self, value: i64) -> Self {
        self.raw(&value.to_ne_bytes())
    }

    /// Attributes of a file.
    #[doc(alias = "fuse_attr")]
    pub fn attr(self, attr: &FileAttr) -> Self {
        let times = [attr.atime, attr.mtime, attr.ctime].map(time);
        let out = self.u64(attr.ino.0).u64(attr.size).u64(attr.blocks);
        let out = times.iter().fold(out, |out, (seconds, _)| out.i64(*seconds));
        let out = times.iter().fold(out, |out, (_, nanos)| out.u32(*nanos));
        let mode = type_bits(attr.kind) | u32::from(attr.perm);
        let out = out.u32(mode).u32(attr.nlink).u32(attr.uid).u32(attr.gid).u32(attr.rdev);
        out.u32(attr.blksize).u32(0)
    }

    /// Attributes of a file with its birth time. The kernel replaces the device number by that of the mount.
    #[doc(alias = "fuse_statx")]
    pub fn statx(self, attr: &FileAttr) -> Self {
        let mode = type_bits(attr.kind) | u32::from(attr.perm);
        let out = self.u32(BASIC_STATS | BTIME).u32(attr.blksize).u64(0);
        let out = out.u32(attr.nlink).u32(attr.uid).u32(attr.gid);
        let out = out.u16(u16::try_from(mode).unwrap_or(0)).u16(0);
        let out = out.u64(attr.ino.0).u64(attr.size).u64(attr.blocks).u64(0);
        let times = [attr.atime, attr.crtime, attr.ctime, attr.mtime].map(time);
        let out = times.iter().fold(out, |out, (seconds, nanos)| out.i64(*seconds).u32(*nanos).u32(0));
        // The inverse of the packed format: 12 bits of major, 20 of minor.
        let (major, minor) = (attr.rdev >> 8 & 0xfff, attr.rdev & 0xff | attr.rdev >> 12 & 0xf_ff00);
        out.u32(major).u32(minor).u64(0).raw(&[0; 112])
    }

    /// A name's file, and the cache lifetime of both.
    #[doc(alias = "fuse_entry_out")]
    pub fn entry(self, keep: (&Duration, &Duration), attr: &FileAttr, generation: Generation) -> Self {
        let (keep_name, keep_attr) = keep;
        let out = self.u64(attr.ino.0).u64(generation.0);
        let out = out.u64(keep_name.as_secs()).u64(keep_attr.as_secs());
        out.u32(keep_name.subsec_nanos()).u32(keep_attr.subsec_nanos()).attr(attr)
    }

    /// An opened file.
    #[doc(alias = "fuse_open_out")]
    pub fn open(self, handle: FileHandle, flags: FopenFlags) -> Self {
        self.u64(handle.0).u32(flags.bits()).u32(0)
    }

    /// A name in a listing, padded to 8 bytes.
    #[doc(alias = "fuse_dirent")]
    pub fn dirent(self, ino: u64, next: u64, kind: FileType, name: &[u8]) -> Self {
        let len = u32::try_from(name.len()).unwrap_or(0);
        let out = self.u64(ino).u64(next).u32(len).u32(type_bits(kind) >> 12).raw(name);
        let fill = out.0.len().next_multiple_of(8) - out.0.len();
        out.raw([0; 8].get(..fill).unwrap_or_default())
    }
}

/// A type as mode bits.
fn type_bits(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => libc::S_IFIFO,
        FileType::CharDevice => libc::S_IFCHR,
        FileType::BlockDevice => libc::S_IFBLK,
        FileType::Directory => libc::S_IFDIR,
        FileType::RegularFile => libc::S_IFREG,
        FileType::Symlink => libc::S_IFLNK,
        FileType::Socket => libc::S_IFSOCK,
    }
}

/// Seconds since 1970, and nanoseconds beyond them.
fn time(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
        Err(e) => {
            let before = e.duration();
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => (-seconds, 0),
                nanos => ((-seconds).saturating_sub(1), 1_000_000_000 - nanos),
            }
        }
    }
}

/// A time from the kernel.
pub fn moment(seconds: i64, nanos: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(Duration::from_nanos(nanos.into()))).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::nothing;

    #[test]
    fn structures_have_the_lengths_that_the_kernel_expects() {
        let second = Duration::from_secs(1);
        assert_eq!(Out::default().statx(&nothing()).bytes().len(), 256);
        assert_eq!(Out::default().attr(&nothing()).bytes().len(), 88);
        assert_eq!(Out::default().entry((&second, &second), &nothing(), Generation(0)).bytes().len(), 128);
        assert_eq!(Out::default().open(FileHandle(1), FopenFlags::empty()).bytes().len(), 16);
        for (name, len) in [(&b"a"[..], 32), (b"12345678", 32), (b"123456789", 40)] {
            assert_eq!(Out::default().dirent(1, 2, FileType::Socket, name).bytes().len(), len);
        }
    }

    #[test]
    fn times_before_1970_come_back() {
        for (seconds, nanos) in [(0, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-2, 800_000_000)] {
            assert_eq!(time(moment(seconds, nanos)), (seconds, nanos));
        }
    }
}
