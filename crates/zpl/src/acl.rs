//! Access control lists: NFSv4 entries as ZFS keeps them, and their text.
//!
//! Every file has one; a trivial one expresses no more than the mode does. POSIX ACLs are something else:
//! they are kept as extended attributes (see [`crate::Inode::xattr`]). Source: zfs_acl.c, OpenZFS 2.3.

use std::fmt::Write;

use engine::{Error, Result};
use ondisk::acl::{
    ACL_VERSION_FUID, ACL_VERSION_INITIAL, Ace, AclPhys, ace_flags, ace_mask, ace_type, decode_aces,
};
use ondisk::znode::pflags;

use crate::inode::{AclSource, Inode};

/// Longest list that is read from an object of its own.
const MAX_ACL: u64 = 1 << 20;

/// How the entries were stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AclForm {
    /// Fixed entries with 32-bit ids, file systems of version 1 and 2.
    Initial,
    /// Entries with FUIDs.
    Fuid,
}

/// An access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    /// How it was stored.
    pub form: AclForm,
    /// True when it expresses no more than the mode.
    pub trivial: bool,
    /// The entries, in order.
    pub aces: Vec<Ace>,
}

impl Inode {
    /// The access control list; `None` when the file has none stored.
    pub fn acl(&self) -> Result<Option<Acl>> {
        self.read_acl().map_err(|e| self.fs.place(e, self.number))
    }

    fn read_acl(&self) -> Result<Option<Acl>> {
        let (version, count, bytes) = match &self.acl {
            AclSource::None => return Ok(None),
            AclSource::Sa(count, aces) => (ACL_VERSION_FUID, *count, aces.clone()),
            AclSource::Znode(phys) => {
                (phys.version.get(), u64::from(phys.ace_count()), self.znode_aces(phys)?)
            }
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let aces = decode_aces(&bytes, version, count).map_err(|e| Error::corrupt(e.to_string()))?;
        let form = if version == ACL_VERSION_INITIAL { AclForm::Initial } else { AclForm::Fuid };
        Ok(Some(Acl { form, trivial: self.attr.has_flag(pflags::ACL_TRIVIAL), aces }))
    }

    fn znode_aces(&self, phys: &AclPhys) -> Result<Vec<u8>> {
        match phys.extern_obj.get() {
            0 => Ok(phys.ace_data.to_vec()),
            number => {
                let object = self.fs.objset.object(number)?;
                let len = phys.ace_bytes().min(MAX_ACL).min(object.max_offset());
                object.read_vec(0, usize::try_from(len).unwrap_or(0))
            }
        }
    }
}

const MASKS: [(u32, char); 14] = [
    (ace_mask::READ_DATA, 'r'),
    (ace_mask::WRITE_DATA, 'w'),
    (ace_mask::EXECUTE, 'x'),
    (ace_mask::APPEND_DATA, 'p'),
    (ace_mask::DELETE_CHILD, 'D'),
    (ace_mask::DELETE, 'd'),
    (ace_mask::READ_ATTRIBUTES, 'a'),
    (ace_mask::WRITE_ATTRIBUTES, 'A'),
    (ace_mask::READ_NAMED_ATTRS, 'R'),
    (ace_mask::WRITE_NAMED_ATTRS, 'W'),
    (ace_mask::READ_ACL, 'c'),
    (ace_mask::WRITE_ACL, 'C'),
    (ace_mask::WRITE_OWNER, 'o'),
    (ace_mask::SYNCHRONIZE, 's'),
];

const FLAGS: [(u16, char); 7] = [
    (ace_flags::FILE_INHERIT, 'f'),
    (ace_flags::DIRECTORY_INHERIT, 'd'),
    (ace_flags::INHERIT_ONLY, 'i'),
    (ace_flags::NO_PROPAGATE_INHERIT, 'n'),
    (ace_flags::SUCCESSFUL_ACCESS, 'S'),
    (ace_flags::FAILED_ACCESS, 'F'),
    (ace_flags::INHERITED, 'I'),
];

/// An entry in the compact text of illumos and FreeBSD: `owner@:rw-p--aARWcCos:-------:allow`.
pub fn ace_text(ace: &Ace) -> String {
    let mut text = who(ace);
    text.push(':');
    text.extend(MASKS.iter().map(|&(bit, c)| if ace.access_mask & bit != 0 { c } else { '-' }));
    text.push(':');
    text.extend(FLAGS.iter().map(|&(bit, c)| if ace.flags & bit != 0 { c } else { '-' }));
    text.push(':');
    text.push_str(match ace.ace_type {
        ace_type::ALLOW | ace_type::ALLOWED_OBJECT => "allow",
        ace_type::DENY | ace_type::DENIED_OBJECT => "deny",
        ace_type::AUDIT | ace_type::AUDIT_OBJECT => "audit",
        ace_type::ALARM | ace_type::ALARM_OBJECT => "alarm",
        _ => "unknown",
    });
    text
}

fn who(ace: &Ace) -> String {
    match ace.flags & ace_flags::TYPE_FLAGS {
        ace_flags::OWNER => "owner@".to_owned(),
        f if f == ace_flags::GROUP | ace_flags::IDENTIFIER_GROUP => "group@".to_owned(),
        ace_flags::EVERYONE => "everyone@".to_owned(),
        f => {
            let mut text = String::new();
            let kind = if f & ace_flags::IDENTIFIER_GROUP != 0 { "group" } else { "user" };
            let _ = write!(text, "{kind}:{}", ace.who & u64::from(u32::MAX));
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_entries() {
        let owner = Ace { ace_type: 0, flags: 0x1000, access_mask: 0x1e_01bf, who: u64::MAX, object: None };
        assert_eq!(ace_text(&owner), "owner@:rwxp--aARWcCos:-------:allow");
        let group = Ace { ace_type: 1, flags: 0x43, access_mask: 2, who: 1 << 32 | 7, object: None };
        assert_eq!(ace_text(&group), "group:7:-w------------:fd-----:deny");
    }
}
