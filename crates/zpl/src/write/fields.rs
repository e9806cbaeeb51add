//! The attributes of files by name: numbers are each file system's own.

use engine::sa::{SaAttrs, SaTables};
use engine::{Error, Result};
use ondisk::ZnodePhys;
use ondisk::sa::SaAttr;

use crate::attr::{Time, Words};

/// Attributes of a file system.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names are ZFS's own")]
pub struct Fields {
    pub atime: SaAttr,
    pub mtime: SaAttr,
    pub ctime: SaAttr,
    pub crtime: SaAttr,
    pub r#gen: SaAttr,
    pub mode: SaAttr,
    pub size: SaAttr,
    pub parent: SaAttr,
    pub links: SaAttr,
    pub xattr: SaAttr,
    pub rdev: SaAttr,
    pub flags: SaAttr,
    pub uid: SaAttr,
    pub gid: SaAttr,
    pub dacl_count: SaAttr,
    pub dacl_aces: SaAttr,
    pub symlink: SaAttr,
    pub dxattr: SaAttr,
    pub projid: SaAttr,
    pub znode_acl: SaAttr,
    pub scanstamp: SaAttr,
}

impl Fields {
    /// The fields of the file system with these tables.
    pub fn of(tables: &SaTables) -> Result<Self> {
        let get = |name: &str| {
            let missing = || Error::corrupt(format!("the attribute {name} has no number"));
            tables.attr(name).ok_or_else(missing)
        };
        Ok(Self {
            atime: get("ZPL_ATIME")?,
            mtime: get("ZPL_MTIME")?,
            ctime: get("ZPL_CTIME")?,
            crtime: get("ZPL_CRTIME")?,
            r#gen: get("ZPL_GEN")?,
            mode: get("ZPL_MODE")?,
            size: get("ZPL_SIZE")?,
            parent: get("ZPL_PARENT")?,
            links: get("ZPL_LINKS")?,
            xattr: get("ZPL_XATTR")?,
            rdev: get("ZPL_RDEV")?,
            flags: get("ZPL_FLAGS")?,
            uid: get("ZPL_UID")?,
            gid: get("ZPL_GID")?,
            dacl_count: get("ZPL_DACL_COUNT")?,
            dacl_aces: get("ZPL_DACL_ACES")?,
            symlink: get("ZPL_SYMLINK")?,
            dxattr: get("ZPL_DXATTR")?,
            projid: get("ZPL_PROJID")?,
            znode_acl: get("ZPL_ZNODE_ACL")?,
            scanstamp: get("ZPL_SCANSTAMP")?,
        })
    }
}

impl Fields {
    /// The values of a file's attributes as words.
    ///
    /// # Errors
    /// `Corrupt` without a mode.
    pub(crate) fn words(&self, attrs: &SaAttrs) -> Result<Words> {
        // Fields are read in the order in which they are written here, in which a new file has them, too.
        let mut read = attrs.reader();
        let mode =
            read.word(self.mode).ok_or_else(|| Error::corrupt("the system attributes have no mode"))?;
        Ok(Words {
            mode,
            size: read.word(self.size).unwrap_or(0),
            r#gen: read.word(self.r#gen).unwrap_or(0),
            uid: read.word(self.uid).unwrap_or(0),
            gid: read.word(self.gid).unwrap_or(0),
            parent: read.word(self.parent).unwrap_or(0),
            flags: read.word(self.flags).unwrap_or(0),
            atime: read.pair(self.atime),
            mtime: read.pair(self.mtime),
            ctime: read.pair(self.ctime),
            crtime: read.pair(self.crtime),
            links: read.word(self.links).unwrap_or(0),
            projid: read.word(self.projid).unwrap_or(0),
            rdev: read.word(self.rdev).unwrap_or(0),
            xattr: read.word(self.xattr).unwrap_or(0),
        })
    }
}

/// Inputs of a new file's attributes.
#[derive(Debug, Clone)]
pub struct NewAttrs {
    /// Type and permission bits.
    pub mode: u64,
    /// Bytes, or entries of a directory.
    pub size: u64,
    /// Txg of creation.
    pub r#gen: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Directory.
    pub parent: u64,
    /// See [`ondisk::znode::pflags`].
    pub flags: u64,
    /// All four times.
    pub now: Time,
    /// Hard links.
    pub links: u64,
    /// Device number, of devices only.
    pub rdev: Option<u64>,
    /// Project, where files have one.
    pub projid: Option<u64>,
    /// Number and bytes of the access control entries.
    pub acl: (u64, Vec<u8>),
}

/// The two words of a moment.
pub fn time_bytes(time: Time) -> [u8; 16] {
    let words = u128::from(time.sec.cast_unsigned()) | u128::from(time.nsec) << 64;
    words.to_le_bytes()
}

impl NewAttrs {
    fn fill(&self, attrs: &mut SaAttrs, f: &Fields) -> Result<()> {
        let words = [
            (f.mode, self.mode),
            (f.size, self.size),
            (f.r#gen, self.r#gen),
            (f.uid, self.uid),
            (f.gid, self.gid),
            (f.parent, self.parent),
            (f.flags, self.flags),
        ];
        for (attr, word) in words {
            attrs.set_word(attr, word)?;
        }
        for attr in [f.atime, f.mtime, f.ctime, f.crtime] {
            attrs.set(attr, time_bytes(self.now))?;
        }
        attrs.set_word(f.links, self.links)
    }

    /// The znode of a file of versions 1 to 4, whose list of access control entries is still empty.
    pub fn build_znode(&self, f: &Fields) -> Result<SaAttrs> {
        let mut attrs = SaAttrs::decode_znode(&[0; ZnodePhys::SIZE])?;
        self.fill(&mut attrs, f)?;
        attrs.set_word(f.rdev, self.rdev.unwrap_or(0))?;
        Ok(attrs)
    }

    /// In OpenZFS's order, which readers of its accounts rely on.
    #[doc(alias = "zfs_mknode")]
    pub fn build(&self, f: &Fields) -> Result<SaAttrs> {
        let mut attrs = SaAttrs::new();
        self.fill(&mut attrs, f)?;
        if let Some(projid) = self.projid {
            attrs.set_word(f.projid, projid)?;
        }
        if let Some(rdev) = self.rdev {
            attrs.set_word(f.rdev, rdev)?;
        }
        attrs.set_word(f.dacl_count, self.acl.0)?;
        attrs.set(f.dacl_aces, &self.acl.1)?;
        Ok(attrs)
    }
}
