//! One file of any type: its attributes and the way to its content.

use std::sync::{Arc, OnceLock};

use engine::dmu::Object;
use engine::zap::Zap;
use engine::{Error, Kind, Result};
use ondisk::acl::AclPhys;
use ondisk::{Dnode, ObjectType, ZnodePhys};
use zerocopy::FromBytes;

use crate::attr::{Attr, Words};
use crate::filesystem::Filesystem;
use crate::sa::SaFile;

/// Longest symbolic link that is followed or shown.
const MAX_LINK: u64 = 64 << 10;

/// Where the ACL lies.
#[derive(Debug, Clone)]
pub(crate) enum AclSource {
    /// Number of entries and their bytes, from system attributes.
    Sa(u64, Vec<u8>),
    /// The head in an old znode.
    Znode(Box<AclPhys>),
    /// Nowhere.
    None,
}

/// A file, directory, link, device…
#[derive(Debug, Clone)]
pub struct Inode {
    pub(crate) fs: Arc<Filesystem>,
    pub(crate) number: u64,
    pub(crate) attr: Attr,
    pub(crate) object: Object,
    pub(crate) symlink: Option<Vec<u8>>,
    pub(crate) dxattr: Option<Vec<u8>>,
    pub(crate) acl: AclSource,
    zap: OnceLock<Zap>,
}

impl Inode {
    pub(crate) fn load(fs: &Arc<Filesystem>, number: u64) -> Result<Self> {
        let object = fs.objset.object(number)?;
        match object.dnode.bonustype {
            ObjectType::SA => Self::from_sa(fs, object),
            ObjectType::ZNODE => Self::from_znode(fs, object),
            _ => Err(Error::corrupt("the object is not a file")),
        }
    }

    fn from_sa(fs: &Arc<Filesystem>, object: Object) -> Result<Self> {
        let file = SaFile::read(fs.sa()?, &object)?;
        let attr = attr(&file.words, &object.dnode)?;
        let SaFile { symlink, dxattr, dacl_count, dacl_aces, znode_acl, .. } = file;
        let znode_acl = znode_acl.as_deref().and_then(|raw| AclPhys::read_from_prefix(raw).ok());
        let acl = match (dacl_count, dacl_aces, znode_acl) {
            (Some(count), Some(aces), _) => AclSource::Sa(count, aces),
            (_, _, Some((phys, _))) => AclSource::Znode(Box::new(phys)),
            _ => AclSource::None,
        };
        Ok(Self::new(fs, object, attr, symlink, dxattr, acl))
    }

    fn from_znode(fs: &Arc<Filesystem>, object: Object) -> Result<Self> {
        let (znode, rest) =
            ZnodePhys::from_bonus(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
        let attr = attr(&Words::from_znode(znode), &object.dnode)?;
        let target = usize::try_from(attr.size).ok().and_then(|size| rest.get(..size));
        let symlink = target.filter(|_| attr.kind == crate::FileKind::Symlink).map(<[u8]>::to_vec);
        let acl = AclSource::Znode(Box::new(znode.acl));
        Ok(Self::new(fs, object, attr, symlink, None, acl))
    }

    fn new(
        fs: &Arc<Filesystem>,
        object: Object,
        attr: Attr,
        symlink: Option<Vec<u8>>,
        dxattr: Option<Vec<u8>>,
        acl: AclSource,
    ) -> Self {
        let number = object.number;
        let fs = Arc::clone(fs);
        Self { fs, number, attr, object, symlink, dxattr, acl, zap: OnceLock::new() }
    }

    /// The file system it is in.
    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.fs
    }

    /// Its object number, which `stat` shows as the inode number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its object; `None` if an intent log that waits may have changed it.
    pub fn stored(&self) -> Option<&Object> {
        self.fs.replayed().is_none().then_some(&self.object)
    }

    /// Its attributes.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// The packed list of extended attributes that lie in the system attributes.
    pub fn packed_xattrs(&self) -> Option<&[u8]> {
        self.dxattr.as_deref()
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.is_dir()
    }

    /// The directory it was last linked into; the root is its own.
    pub fn parent(&self) -> Result<Self> {
        if self.number == self.fs.root {
            return Ok(self.clone());
        }
        self.fs.inode(self.attr.parent)
    }

    /// Target of a symbolic link.
    pub fn readlink(&self) -> Result<Vec<u8>> {
        if self.attr.kind != crate::FileKind::Symlink {
            return Err(self.error(Kind::Invalid, "not a symbolic link"));
        }
        if let Some(target) = &self.symlink {
            return Ok(target.clone());
        }
        let size = self.attr.size.min(self.object.max_offset());
        if size > MAX_LINK {
            return Err(self.error(Kind::TooLong, "the symbolic link's target is too long"));
        }
        let read = self.object.read_vec(0, usize::try_from(size).unwrap_or(0));
        read.map_err(|e| e.in_dataset(&self.fs.name))
    }

    /// The directory's ZAP.
    pub(crate) fn zap(&self) -> Result<&Zap> {
        if !self.is_dir() {
            return Err(self.error(Kind::NotDirectory, "not a directory"));
        }
        if let Some(zap) = self.zap.get() {
            return Ok(zap);
        }
        let zap = Zap::open(&self.object).map_err(|e| self.fs.place(e, self.number))?;
        Ok(self.zap.get_or_init(|| zap))
    }

    pub(crate) fn error(&self, kind: Kind, what: &str) -> Error {
        self.fs.error(kind, what, self.number)
    }
}

pub(crate) fn attr(words: &Words, dnode: &Dnode) -> Result<Attr> {
    let blksize = u32::try_from(dnode.datablksz()).unwrap_or(u32::MAX);
    // Like OpenZFS: data rounded to units, and the slots of the dnode.
    let slots = u64::try_from(dnode.slots()).unwrap_or(0);
    let blocks = dnode.used_bytes().saturating_add(256) / 512 + slots;
    let bad = || Error::corrupt(format!("mode {:o} names no known file type", words.mode));
    words.attr(blksize, blocks).ok_or_else(bad)
}
