//! POSIX access control lists, as far as the kernel leaves them to a file system: inheritance to new files, and
//! consistency of mode and list.
//!
//! Lists are stored as extended attributes in the format of `getxattr`: a version, then 8 bytes for each entry.
//! Source: `acl(5)`, and `posix_acl_xattr.h` of Linux.

use engine::{Error, Kind, Result};
use zpl::write::{Settings, XattrMode};

use super::Live;
use super::privileges::Setter;

const SETGID: u64 = 0o2000;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const VERSION: u32 = 2;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PosixAcl(Vec<Entry>);

/// Whether an extended attribute is such a list.
pub fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Three permission bits of a mode.
fn bits(mode: u64, shift: u32) -> u16 {
    u16::try_from(mode >> shift & 7).unwrap_or(0)
}

impl PosixAcl {
    /// Parses the value of an attribute.
    pub fn parse(value: &[u8]) -> Result<Self> {
        let bad = || Error::new(Kind::Invalid, "not a POSIX access control list");
        let (version, entries) = value.split_first_chunk().ok_or_else(bad)?;
        let (entries, rest) = entries.as_chunks::<8>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return Err(bad());
        }
        let entry = |&[a, b, c, d, e, f, g, h]: &[u8; 8]| Entry {
            tag: u16::from_le_bytes([a, b]),
            perm: u16::from_le_bytes([c, d]) & 7,
            id: u32::from_le_bytes([e, f, g, h]),
        };
        Ok(Self(entries.iter().map(entry).collect()))
    }

    /// Encodes the value of an attribute.
    pub fn encode(&self) -> Vec<u8> {
        let entry = |e: &Entry| {
            let (tag, perm, id) = (e.tag.to_le_bytes(), e.perm.to_le_bytes(), e.id.to_le_bytes());
            [tag.as_slice(), &perm, &id].concat()
        };
        VERSION.to_le_bytes().into_iter().chain(self.0.iter().flat_map(entry)).collect()
    }

    fn has(&self, tags: u16) -> bool {
        self.0.iter().any(|entry| entry.tag & tags != 0)
    }

    /// Whether a mode cannot express the list.
    pub fn is_more_than_mode(&self) -> bool {
        self.has(USER | GROUP | MASK)
    }

    /// The entry that the group bits of a mode represent.
    fn group_class(&self) -> u16 {
        if self.has(MASK) { MASK } else { GROUP_OBJ }
    }

    /// The position of an entry's bits in a mode.
    fn shift(tag: u16, group_class: u16) -> Option<u32> {
        match tag {
            USER_OBJ => Some(6),
            OTHER => Some(0),
            tag if tag == group_class => Some(3),
            _ => None,
        }
    }

    /// The permission bits of the equivalent mode.
    pub fn perm(&self) -> u64 {
        let class = self.group_class();
        let shown = self.0.iter().filter_map(|e| Some(u64::from(e.perm) << Self::shift(e.tag, class)?));
        shown.fold(0, |perm, bits| perm | bits)
    }

    /// The list after `chmod`.
    #[doc(alias = "posix_acl_chmod")]
    pub fn chmod(mut self, mode: u64) -> Self {
        let class = self.group_class();
        for entry in &mut self.0 {
            if let Some(shift) = Self::shift(entry.tag, class) {
                entry.perm = bits(mode, shift);
            }
        }
        self
    }

    /// The mode and list of a file created with `mode` below a default list.
    #[doc(alias = "posix_acl_create")]
    pub fn inherited(mut self, mode: u64) -> Self {
        let class = self.group_class();
        for entry in &mut self.0 {
            if let Some(shift) = Self::shift(entry.tag, class) {
                entry.perm &= bits(mode, shift);
            }
        }
        self
    }
}

/// The inheritance of a new file from its directory.
#[derive(Debug)]
pub struct Inherited {
    /// Permission, set-id and sticky bits.
    pub perm: u64,
    /// Lists to be set.
    pub lists: Vec<(&'static [u8], Vec<u8>)>,
}

impl Live {
    fn acl(&self, object: u64, name: &[u8]) -> Result<Option<PosixAcl>> {
        if !self.options.read().posix_acl {
            return Ok(None);
        }
        self.files.xattrs().get(object, name)?.as_deref().map(PosixAcl::parse).transpose()
    }

    /// The inheritance of a file created in `dir` with `perm`. The umask applies only without a default list.
    #[doc(alias = "zpl_init_acl")]
    pub(super) fn inherit(&self, dir: u64, is_dir: bool, perm: u64, umask: u32) -> Result<Inherited> {
        let Some(default) = self.acl(dir, DEFAULT)? else {
            return Ok(Inherited { perm: perm & !u64::from(umask & 0o777), lists: Vec::new() });
        };
        let mut lists = Vec::new();
        if is_dir {
            lists.push((DEFAULT, default.encode()));
        }
        let access = default.inherited(perm);
        let perm = perm & !0o777 | access.perm();
        if access.is_more_than_mode() {
            lists.push((ACCESS, access.encode()));
        }
        Ok(Inherited { perm, lists })
    }

    /// After `chmod`: makes the list match the mode.
    pub(super) fn acl_follows(&self, object: u64, mode: u64) -> Result<()> {
        let Some(acl) = self.acl(object, ACCESS)? else { return Ok(()) };
        self.files.xattrs().set(object, ACCESS, Some(&acl.chmod(mode).encode()), XattrMode::Set)
    }

    /// Sets or removes a list, and makes the mode match.
    #[doc(alias = "zpl_set_acl")]
    pub(super) fn set_acl(&self, object: u64, name: &[u8], value: Option<&[u8]>, who: &Setter) -> Result<()> {
        self.files.restrictions().check_settable(object)?;
        let acl = value.map(PosixAcl::parse).transpose()?;
        let kept = match (&acl, name) {
            (Some(acl), ACCESS) => {
                let attr = self.files.attrs().get(object)?;
                let old = u64::from(attr.perm);
                let keeps = old & SETGID == 0 || who.is_member(attr.gid);
                let mode = old & !0o777 & !(if keeps { 0 } else { SETGID }) | acl.perm();
                if mode != old {
                    self.files.attrs().set(object, &Settings { mode: Some(mode), ..Settings::default() })?;
                }
                value.filter(|_| acl.is_more_than_mode())
            }
            _ => value,
        };
        match self.files.xattrs().set(object, name, kept, XattrMode::Set) {
            Err(e) if kept.is_none() && e.kind() == Kind::NotFound => Ok(()),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> PosixAcl {
        PosixAcl(entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect())
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn a_list_is_what_getxattr_gives() {
        let list = acl(&[(USER_OBJ, 6, NONE), (USER, 7, 1000), (GROUP_OBJ, 4, NONE), (MASK, 7, NONE)]);
        let bytes = list.encode();
        assert_eq!(&bytes[..12], [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
        assert_eq!(PosixAcl::parse(&bytes).unwrap(), list);
        assert!(PosixAcl::parse(&bytes[..11]).is_err() && PosixAcl::parse(&[]).is_err());
    }

    #[test]
    fn a_new_file_gets_at_most_what_it_asks_for() {
        let default = acl(&[
            (USER_OBJ, 7, NONE),
            (USER, 7, 1000),
            (GROUP_OBJ, 5, NONE),
            (MASK, 7, NONE),
            (OTHER, 4, NONE),
        ]);
        let got = default.inherited(0o640);
        // The mask represents the group; it limits the permissions of named users.
        let wanted = acl(&[
            (USER_OBJ, 6, NONE),
            (USER, 7, 1000),
            (GROUP_OBJ, 5, NONE),
            (MASK, 4, NONE),
            (OTHER, 0, NONE),
        ]);
        assert_eq!(got, wanted);
        assert_eq!(got.perm(), 0o640);
        assert!(got.is_more_than_mode());
        let plain = acl(&[(USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 5, NONE)]).inherited(0o666);
        assert_eq!((plain.perm(), plain.is_more_than_mode()), (0o644, false));
    }

    #[test]
    fn chmod_changes_the_mask_and_not_the_group() {
        let list = acl(&[
            (USER_OBJ, 7, NONE),
            (GROUP, 7, 5),
            (GROUP_OBJ, 5, NONE),
            (MASK, 7, NONE),
            (OTHER, 4, NONE),
        ]);
        let changed = list.chmod(0o600);
        let wanted = acl(&[
            (USER_OBJ, 6, NONE),
            (GROUP, 7, 5),
            (GROUP_OBJ, 5, NONE),
            (MASK, 0, NONE),
            (OTHER, 0, NONE),
        ]);
        assert_eq!(changed, wanted);
    }
}
