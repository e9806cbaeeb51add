//! A file's attributes, decoded from whichever form the disk has them in.

use ondisk::ZnodePhys;
use ondisk::znode::pflags;

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// Named pipe.
    Fifo,
    /// Character device.
    CharDevice,
    /// Directory.
    Directory,
    /// Block device.
    BlockDevice,
    /// Regular file.
    Regular,
    /// Symbolic link.
    Symlink,
    /// Socket.
    Socket,
}

impl FileKind {
    /// From the format bits of a mode, shifted down: also the type in a directory entry.
    pub fn from_dirent_type(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// The type in a mode.
    pub fn from_mode(mode: u64) -> Option<Self> {
        Self::from_dirent_type(((mode >> 12) & 0xf) as u8)
    }

    /// `S_IFMT` bits of a mode.
    pub fn mode_bits(self) -> u32 {
        u32::from(self.dirent_type()) << 12
    }

    /// `DT_*` value.
    pub fn dirent_type(self) -> u8 {
        match self {
            Self::Fifo => 1,
            Self::CharDevice => 2,
            Self::Directory => 4,
            Self::BlockDevice => 6,
            Self::Regular => 8,
            Self::Symlink => 10,
            Self::Socket => 12,
        }
    }

    /// The letter that `find -type` and `ls -l` use; a regular file is `f`.
    pub fn letter(self) -> char {
        match self {
            Self::Fifo => 'p',
            Self::CharDevice => 'c',
            Self::Directory => 'd',
            Self::BlockDevice => 'b',
            Self::Regular => 'f',
            Self::Symlink => 'l',
            Self::Socket => 's',
        }
    }

    /// Character or block device.
    pub fn is_device(self) -> bool {
        matches!(self, Self::CharDevice | Self::BlockDevice)
    }
}

/// A moment: seconds since 1970 (before it: negative) and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, below a thousand million in a sound file system.
    pub nsec: u32,
}

impl Time {
    /// From the two words that ZFS stores.
    pub fn from_words(words: [u64; 2]) -> Self {
        let [sec, nsec] = words;
        Self { sec: sec.cast_signed(), nsec: u32::try_from(nsec).unwrap_or(0).min(999_999_999) }
    }
}

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rdev {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Rdev {
    /// From the 64-bit word that is stored, whose form depends on the system that made it: illumos
    /// puts the major number in the high half; Linux stores its own number, with 20 bits of minor
    /// number; zfs-fuse stored the C library's, with 8. A major number of 0, which real devices don't have,
    /// distinguishes them.
    #[doc(alias = "zfs_cmpldev")]
    pub fn from_expldev(raw: u64) -> Self {
        match ((raw >> 32) as u32, (raw >> 20) as u32) {
            (0, 0) => Self { major: (raw >> 8) as u32, minor: (raw & 0xff) as u32 },
            (0, major) => Self { major, minor: (raw & 0xf_ffff) as u32 },
            (major, _) => Self { major, minor: raw as u32 },
        }
    }
}

/// A file's attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// Type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits: the low 12 of a mode.
    pub perm: u32,
    /// Owner as Linux shows it: the low half of [`Self::owner`].
    pub uid: u32,
    /// Group as Linux shows it.
    pub gid: u32,
    /// Owner as stored: a FUID, with the index of its domain in the high half (0: a plain uid).
    pub owner: u64,
    /// Group as stored.
    pub group: u64,
    /// Bytes; entries (with `.` and `..`) of a directory.
    pub size: u64,
    /// Hard links.
    pub links: u64,
    /// Object of the directory it was last linked into.
    pub parent: u64,
    /// Txg of its creation.
    pub generation: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Device number of devices.
    pub rdev: Option<Rdev>,
    /// Device number as stored; 0 for files that are no device.
    pub raw_rdev: u64,
    /// See [`pflags`].
    pub flags: u64,
    /// Project.
    pub projid: u64,
    /// Object of its directory of extended attributes; 0: none.
    pub xattr: u64,
    /// Preferred block size.
    pub blksize: u32,
    /// Space it takes, in 512-byte units.
    pub blocks: u64,
}

impl Attr {
    /// Mode as `stat` returns it.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Whether all bits of `flag` (of [`pflags`]) are set.
    pub fn has_flag(&self, flag: u64) -> bool {
        self.flags & flag == flag
    }

    /// True for files and directories of the extended-attribute name space.
    pub fn is_xattr(&self) -> bool {
        self.has_flag(pflags::XATTR)
    }
}

/// The words that both on-disk forms have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Words {
    pub atime: [u64; 2],
    pub mtime: [u64; 2],
    pub ctime: [u64; 2],
    pub crtime: [u64; 2],
    pub r#gen: u64,
    pub mode: u64,
    pub size: u64,
    pub parent: u64,
    pub links: u64,
    pub xattr: u64,
    pub rdev: u64,
    pub flags: u64,
    pub uid: u64,
    pub gid: u64,
    pub projid: u64,
}

impl Words {
    pub(crate) fn from_znode(z: &ZnodePhys) -> Self {
        let pair = |words: [zerocopy::little_endian::U64; 2]| words.map(zerocopy::little_endian::U64::get);
        Self {
            atime: pair(z.atime),
            mtime: pair(z.mtime),
            ctime: pair(z.ctime),
            crtime: pair(z.crtime),
            r#gen: z.r#gen.get(),
            mode: z.mode.get(),
            size: z.size.get(),
            parent: z.parent.get(),
            links: z.links.get(),
            xattr: z.xattr.get(),
            rdev: z.rdev.get(),
            flags: z.flags.get(),
            uid: z.uid.get(),
            gid: z.gid.get(),
            projid: 0,
        }
    }

    /// The attributes; `None` when the mode has no known type.
    pub(crate) fn attr(&self, blksize: u32, blocks: u64) -> Option<Attr> {
        let kind = FileKind::from_mode(self.mode)?;
        Some(Attr {
            kind,
            perm: (self.mode & 0o7777) as u32,
            uid: self.uid as u32,
            gid: self.gid as u32,
            owner: self.uid,
            group: self.gid,
            size: self.size,
            links: self.links,
            parent: self.parent,
            generation: self.r#gen,
            atime: Time::from_words(self.atime),
            mtime: Time::from_words(self.mtime),
            ctime: Time::from_words(self.ctime),
            crtime: Time::from_words(self.crtime),
            rdev: kind.is_device().then(|| Rdev::from_expldev(self.rdev)),
            raw_rdev: self.rdev,
            flags: self.flags,
            projid: if self.flags & pflags::PROJID != 0 { self.projid } else { 0 },
            xattr: self.xattr,
            blksize,
            blocks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_entry_types_agree() {
        for kind in [FileKind::Fifo, FileKind::Directory, FileKind::Regular, FileKind::Socket] {
            assert_eq!(FileKind::from_mode(u64::from(kind.mode_bits() | 0o644)), Some(kind));
            assert_eq!(FileKind::from_dirent_type(kind.dirent_type()), Some(kind));
        }
        assert_eq!(FileKind::from_mode(0o644), None);
    }

    #[test]
    fn device_numbers_of_all_systems() {
        assert_eq!(Rdev::from_expldev(0x103), Rdev { major: 1, minor: 3 });
        assert_eq!(Rdev::from_expldev(0), Rdev { major: 0, minor: 0 });
        assert_eq!(Rdev::from_expldev(7 << 20), Rdev { major: 7, minor: 0 });
        assert_eq!(Rdev::from_expldev(0x0010_0003), Rdev { major: 1, minor: 3 });
        assert_eq!(Rdev::from_expldev(13 << 32 | 2), Rdev { major: 13, minor: 2 });
    }

    #[test]
    fn times_before_1970_and_hostile_nanoseconds() {
        assert_eq!(Time::from_words([u64::MAX, 5]), Time { sec: -1, nsec: 5 });
        assert!(Time::from_words([0, u64::MAX]).nsec < 1_000_000_000);
    }

    #[test]
    fn projects_count_only_with_their_flag() {
        let mut words = Words { mode: 0o100_644, projid: 9, ..Words::default() };
        assert_eq!(words.attr(512, 0).unwrap().projid, 0);
        words.flags = pflags::PROJID;
        assert_eq!(words.attr(512, 0).unwrap().projid, 9);
    }
}
