//! Extended attributes, under their Linux names.
//!
//! Two forms may stand side by side: a packed nvlist in the system attribute `DXATTR` (`xattr=sa`),
//! and files in a hidden directory (`xattr=dir`). A stored name with one of Linux's prefixes is shown
//! as it is; one without (made by another system) as `user.NAME`. POSIX ACLs are stored as
//! `system.posix_acl_access` and `system.posix_acl_default`, in the form that `getxattr` returns.
//!
//! Differs from OpenZFS: attributes of FreeBSD's own name spaces are shown, too, and POSIX ACLs also
//! where the property `acltype` hides them: all stored attributes can be recovered.

use engine::{Error, Kind, Result};
use nvpair::{NvList, NvValue};

use crate::inode::Inode;

/// Longest value that is read whole.
const MAX_VALUE: u64 = 64 << 20;
const USER: &[u8] = b"user.";
/// Begin of names in FreeBSD's own name spaces.
const FREEBSD: [&[u8]; 1] = [b"freebsd:"];
const PREFIXES: [&[u8]; 4] = [USER, b"trusted.", b"security.", b"system."];

/// The stored form without a prefix of the name that Linux shows, as other systems store user attributes; `None` for names that
/// would be of another space then.
#[doc(alias = "ZFS_XA_NS_PREFIX_FORBIDDEN")]
pub(crate) fn bare(name: &[u8]) -> Option<&[u8]> {
    let bare = name.strip_prefix(USER)?;
    let other = FREEBSD.into_iter().chain(PREFIXES).any(|prefix| bare.starts_with(prefix));
    (!bare.is_empty() && !other).then_some(bare)
}

/// The name that Linux shows for a stored one.
pub(crate) fn shown(stored: &[u8]) -> Vec<u8> {
    if PREFIXES.iter().any(|p| stored.starts_with(p)) { stored.to_vec() } else { [USER, stored].concat() }
}

impl Inode {
    /// Names of all extended attributes, each once.
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        if let Some(list) = self.sa_xattrs()? {
            names.extend(list.iter().map(|pair| shown(pair.name.as_bytes())));
        }
        if let Some(dir) = self.xattr_dir()? {
            for entry in dir.entries()? {
                names.push(shown(&entry?.name));
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The value of the attribute called `name`; `None` when there is none.
    pub fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(value) = self.stored_xattr(name)? {
            return Ok(Some(value));
        }
        match name.strip_prefix(USER) {
            Some(bare) if !bare.is_empty() => self.stored_xattr(bare),
            _ => Ok(None),
        }
    }

    /// All attributes with their values, in the order of their names.
    pub fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut all = Vec::new();
        for name in self.xattr_names()? {
            if let Some(value) = self.xattr(&name)? {
                all.push((name, value));
            }
        }
        Ok(all)
    }

    fn stored_xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(list) = self.sa_xattrs()?
            && let Some(NvValue::ByteArray(value) | NvValue::Uint8Array(value)) = list.get(name)
        {
            return Ok(Some(value.clone()));
        }
        let Some(dir) = self.xattr_dir()? else { return Ok(None) };
        let Some(entry) = dir.lookup(name)? else { return Ok(None) };
        let file = self.fs.inode(entry.object)?;
        if file.attr.size > MAX_VALUE {
            return Err(file.error(Kind::TooLong, "the extended attribute is too long"));
        }
        let mut value = vec![0; usize::try_from(file.attr.size).unwrap_or(0)];
        let len = file.read_at(0, &mut value)?;
        value.truncate(len);
        Ok(Some(value))
    }

    fn sa_xattrs(&self) -> Result<Option<NvList>> {
        let Some(packed) = self.dxattr.as_ref().filter(|p| !p.is_empty()) else { return Ok(None) };
        let list = NvList::decode(packed);
        let bad = |e| Error::corrupt(format!("extended attributes: {e}"));
        list.map(Some).map_err(|e| self.fs.place(bad(e), self.number))
    }

    /// The hidden directory of extended attributes, when there is one.
    pub fn xattr_dir(&self) -> Result<Option<Self>> {
        match self.attr.xattr {
            0 => Ok(None),
            number => {
                let dir = self.fs.inode(number)?;
                if dir.is_dir() {
                    Ok(Some(dir))
                } else {
                    Err(dir.error(Kind::NotDirectory, "not a directory"))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_a_prefix_only_when_they_have_none() {
        assert_eq!(shown(b"user.a"), b"user.a");
        assert_eq!(shown(b"security.selinux"), b"security.selinux");
        assert_eq!(shown(b"com.apple.x"), b"user.com.apple.x");
    }
}
