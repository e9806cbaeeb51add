//! Znodes of ZPL versions 1 to 4: the fixed structure in a file's bonus buffer, before system
//! attributes replaced it.
//!
//! Its 264 bytes in the bonus buffer are followed by a symbolic link's target, if it fits, or the 32 bytes of
//! an anti-virus scan stamp. Source: `znode_phys_t`, zfs_sa.h, OpenZFS 2.3.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;
use crate::acl::AclPhys;

/// A znode as it lies on disk. Times are seconds and nanoseconds; seconds are signed.
#[doc(alias = "znode_phys_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "POSIX and ZFS's own names")]
pub struct ZnodePhys {
    pub atime: [U64; 2],
    pub mtime: [U64; 2],
    pub ctime: [U64; 2],
    pub crtime: [U64; 2],
    /// Txg of creation.
    pub r#gen: U64,
    pub mode: U64,
    pub size: U64,
    pub parent: U64,
    pub links: U64,
    /// Object of the extended-attribute directory, 0: none.
    pub xattr: U64,
    pub rdev: U64,
    /// See [`pflags`].
    pub flags: U64,
    pub uid: U64,
    pub gid: U64,
    pub zap: U64,
    pub pad: [U64; 3],
    pub acl: AclPhys,
}

impl ZnodePhys {
    /// Bytes on disk.
    #[doc(alias = "ZFS_OLD_ZNODE_PHYS_SIZE")]
    pub const SIZE: usize = 264;

    /// Returns the znode at the start of a bonus buffer, and the rest of the buffer.
    pub fn from_bonus(bonus: &[u8]) -> Result<(&Self, &[u8]), Malformed> {
        Self::ref_from_prefix(bonus).map_err(|_| Malformed::short("znode", bonus.len(), Self::SIZE))
    }
}

const _: () = assert!(size_of::<ZnodePhys>() == ZnodePhys::SIZE && align_of::<ZnodePhys>() == 1);
const _: () = assert!(std::mem::offset_of!(ZnodePhys, acl) == 176);

/// Object that a directory entry's value names.
#[doc(alias = "ZFS_DIRENT_OBJ")]
pub fn dirent_object(value: u64) -> u64 {
    value & ((1 << 48) - 1)
}

/// Kind of file in a directory entry's value: the high four bits of the mode. 0 in old file systems, which
/// don't record it.
#[doc(alias = "ZFS_DIRENT_TYPE")]
pub fn dirent_type(value: u64) -> u8 {
    (value >> 60) as u8
}

/// Bits of a file's persistent flags (`zp_flags`, the attribute `ZPL_FLAGS`).
#[expect(missing_docs, reason = "the names are ZFS's own")]
pub mod pflags {
    pub const XATTR: u64 = 0x1;
    pub const INHERIT_ACE: u64 = 0x2;
    pub const ACL_TRIVIAL: u64 = 0x4;
    pub const ACL_OBJ_ACE: u64 = 0x8;
    pub const ACL_PROTECTED: u64 = 0x10;
    pub const ACL_DEFAULTED: u64 = 0x20;
    pub const ACL_AUTO_INHERIT: u64 = 0x40;
    pub const BONUS_SCANSTAMP: u64 = 0x80;
    pub const NO_EXECS_DENIED: u64 = 0x100;
    pub const READONLY: u64 = 0x1_0000_0000;
    pub const HIDDEN: u64 = 0x2_0000_0000;
    pub const SYSTEM: u64 = 0x4_0000_0000;
    pub const ARCHIVE: u64 = 0x8_0000_0000;
    pub const IMMUTABLE: u64 = 0x10_0000_0000;
    pub const NOUNLINK: u64 = 0x20_0000_0000;
    pub const APPENDONLY: u64 = 0x40_0000_0000;
    pub const NODUMP: u64 = 0x80_0000_0000;
    pub const OPAQUE: u64 = 0x100_0000_0000;
    pub const AV_QUARANTINED: u64 = 0x200_0000_0000;
    pub const AV_MODIFIED: u64 = 0x400_0000_0000;
    pub const REPARSE: u64 = 0x800_0000_0000;
    pub const OFFLINE: u64 = 0x1000_0000_0000;
    pub const SPARSE: u64 = 0x2000_0000_0000;
    pub const PROJINHERIT: u64 = 0x4000_0000_0000;
    pub const PROJID: u64 = 0x8000_0000_0000;
}
