//! Access control lists as ZFS keeps them.
//!
//! Three forms: version 0, fixed 12-byte entries with 32-bit owners (ZPL versions 1 and 2); version
//! 1, entries of 8 bytes (owner@, group@, everyone@), 16 (a user or group, 64-bit FUID) or 48
//! (object entries, from CIFS). Small lists lie in the znode's [`AclPhys`], others in an object or
//! system attribute. Source: zfs_acl.h, OpenZFS 2.3.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Cursor, Malformed};

/// Version of a list of fixed entries.
#[doc(alias = "ZFS_ACL_VERSION_INITIAL")]
pub const ACL_VERSION_INITIAL: u16 = 0;
/// Version of a list of entries with FUIDs.
#[doc(alias = "ZFS_ACL_VERSION_FUID")]
pub const ACL_VERSION_FUID: u16 = 1;
/// Bytes for entries in the znode: six of version 0.
#[doc(alias = "ZFS_ACE_SPACE")]
pub const ACE_SPACE: usize = 72;
/// Bytes of an entry of version 0.
pub const OLD_ACE_SIZE: usize = 12;

/// Bits of an entry's `flags`.
#[expect(missing_docs, reason = "the names are ZFS's own")]
pub mod ace_flags {
    pub const FILE_INHERIT: u16 = 0x0001;
    pub const DIRECTORY_INHERIT: u16 = 0x0002;
    pub const NO_PROPAGATE_INHERIT: u16 = 0x0004;
    pub const INHERIT_ONLY: u16 = 0x0008;
    pub const SUCCESSFUL_ACCESS: u16 = 0x0010;
    pub const FAILED_ACCESS: u16 = 0x0020;
    pub const IDENTIFIER_GROUP: u16 = 0x0040;
    pub const INHERITED: u16 = 0x0080;
    pub const OWNER: u16 = 0x1000;
    pub const GROUP: u16 = 0x2000;
    pub const EVERYONE: u16 = 0x4000;
    /// The bits of the kind of principal.
    pub const TYPE_FLAGS: u16 = OWNER | GROUP | EVERYONE | IDENTIFIER_GROUP;
}

/// Values of an entry's `ace_type`.
#[expect(missing_docs, reason = "the names are ZFS's own")]
pub mod ace_type {
    pub const ALLOW: u16 = 0;
    pub const DENY: u16 = 1;
    pub const AUDIT: u16 = 2;
    pub const ALARM: u16 = 3;
    pub const ALLOWED_OBJECT: u16 = 5;
    pub const DENIED_OBJECT: u16 = 6;
    pub const AUDIT_OBJECT: u16 = 7;
    pub const ALARM_OBJECT: u16 = 8;
}

/// Bits of an entry's access mask.
#[expect(missing_docs, reason = "the names are ZFS's own")]
pub mod ace_mask {
    pub const READ_DATA: u32 = 0x0000_0001;
    pub const WRITE_DATA: u32 = 0x0000_0002;
    pub const APPEND_DATA: u32 = 0x0000_0004;
    pub const READ_NAMED_ATTRS: u32 = 0x0000_0008;
    pub const WRITE_NAMED_ATTRS: u32 = 0x0000_0010;
    pub const EXECUTE: u32 = 0x0000_0020;
    pub const DELETE_CHILD: u32 = 0x0000_0040;
    pub const READ_ATTRIBUTES: u32 = 0x0000_0080;
    pub const WRITE_ATTRIBUTES: u32 = 0x0000_0100;
    pub const DELETE: u32 = 0x0001_0000;
    pub const READ_ACL: u32 = 0x0002_0000;
    pub const WRITE_ACL: u32 = 0x0004_0000;
    pub const WRITE_OWNER: u32 = 0x0008_0000;
    pub const SYNCHRONIZE: u32 = 0x0010_0000;
}

/// The list's head in a znode, as it lies on disk. In version 0 `size` counts entries, and the bytes of
/// `count` are padding.
#[doc(alias = "zfs_acl_phys_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AclPhys {
    /// Object that holds the entries; 0: they are here.
    pub extern_obj: U64,
    /// Bytes of the entries (version 0: their number).
    pub size: U32,
    /// [`ACL_VERSION_INITIAL`] or [`ACL_VERSION_FUID`].
    pub version: U16,
    /// Number of entries (version 0: padding).
    pub count: U16,
    /// Entries, if they fit.
    pub ace_data: [u8; ACE_SPACE],
}

impl AclPhys {
    /// Bytes on disk.
    pub const SIZE: usize = 88;

    /// Number of entries, whatever the version.
    pub fn ace_count(&self) -> u32 {
        if self.version.get() == ACL_VERSION_INITIAL { self.size.get() } else { self.count.get().into() }
    }

    /// Bytes of the entries, whatever the version.
    pub fn ace_bytes(&self) -> u64 {
        let size = u64::from(self.size.get());
        if self.version.get() == ACL_VERSION_INITIAL { size * OLD_ACE_SIZE as u64 } else { size }
    }
}

const _: () = assert!(size_of::<AclPhys>() == AclPhys::SIZE && align_of::<AclPhys>() == 1);

/// One access control entry, whatever the form it lay in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ace {
    /// See [`ace_type`].
    pub ace_type: u16,
    /// See [`ace_flags`].
    pub flags: u16,
    /// See [`ace_mask`].
    pub access_mask: u32,
    /// User or group, a FUID (domain index in the high 32 bits); all ones for owner@, group@, everyone@.
    pub who: u64,
    /// Object type and inherited object type of an object entry.
    pub object: Option<([u8; 16], [u8; 16])>,
}

/// Whether the flags alone name the subject: owner@, group@, everyone@.
pub fn is_abstract(flags: u16) -> bool {
    use ace_flags::{EVERYONE, GROUP, IDENTIFIER_GROUP, OWNER, TYPE_FLAGS};
    matches!(flags & TYPE_FLAGS, f if f == OWNER || f == EVERYONE || f == GROUP | IDENTIFIER_GROUP)
}

/// Whether entries of this type have object types.
pub fn is_object(ace_type: u16) -> bool {
    (ace_type::ALLOWED_OBJECT..=ace_type::ALARM_OBJECT).contains(&ace_type)
}

/// Bytes of an entry of version 1 with this type and these flags. Only entries that allow or deny omit a subject that their
/// flags name.
#[doc(alias = "zfs_ace_fuid_size")]
pub fn ace_size(ace_type: u16, flags: u16) -> usize {
    match ace_type {
        _ if is_object(ace_type) => 48,
        ace_type::ALLOW | ace_type::DENY if is_abstract(flags) => 8,
        _ => 16,
    }
}

/// Decodes `count` entries of a list of this version; trailing bytes are ignored.
pub fn decode_aces(bytes: &[u8], version: u16, count: u32) -> Result<Vec<Ace>, Malformed> {
    let mut at = Cursor::new("acl", bytes);
    let read = match version {
        ACL_VERSION_INITIAL => read_old_ace,
        ACL_VERSION_FUID => read_ace,
        _ => return Err(Malformed::new("acl", format!("version {version}"))),
    };
    // No allocation ahead: a hostile count fails at the end of the bytes.
    (0..count).map(|_| read(&mut at)).collect()
}

fn read_old_ace(at: &mut Cursor<'_>) -> Result<Ace, Malformed> {
    let (who, access_mask, flags, ace_type) = (at.u32()?, at.u32()?, at.u16()?, at.u16()?);
    let who = if is_abstract(flags) { u64::MAX } else { who.into() };
    Ok(Ace { ace_type, flags, access_mask, who, object: None })
}

fn read_ace(at: &mut Cursor<'_>) -> Result<Ace, Malformed> {
    let (ace_type, flags, access_mask) = (at.u16()?, at.u16()?, at.u32()?);
    let mut ace = Ace { ace_type, flags, access_mask, who: u64::MAX, object: None };
    let size = ace_size(ace_type, flags);
    if size > 8 {
        let who = at.u64()?;
        ace.who = if is_abstract(flags) { u64::MAX } else { who };
    }
    if size > 16 {
        ace.object = Some((at.array()?, at.array()?));
    }
    Ok(ace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_three_sizes() {
        let mut bytes = Vec::new();
        for (kind, flags, size) in [
            (0u16, 0x1000u16, 8),
            (1, 0x40, 16),
            (5, 0, 48),
            (0, 0x2040, 8),
            (2, 0x4000, 16),
            (3, 0x1000, 16),
            (6, 0x1000, 48),
        ] {
            let start = bytes.len();
            bytes.extend(kind.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            bytes.resize(start + size, 9);
            assert_eq!(ace_size(kind, flags), size);
        }
        let aces = decode_aces(&bytes, ACL_VERSION_FUID, 7).unwrap();
        assert_eq!(aces[0].who, u64::MAX);
        assert_eq!(aces[1].who, 0x0909_0909_0909_0909);
        assert!(aces[2].object.is_some() && aces[6].object.is_some());
        assert_eq!((aces[4].who, aces[5].who, aces[6].who), (u64::MAX, u64::MAX, u64::MAX));
        assert!(decode_aces(&bytes, ACL_VERSION_FUID, u32::MAX).is_err());
        assert!(decode_aces(&bytes, 2, 0).is_err());
    }
}
