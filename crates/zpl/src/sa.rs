//! Values of a file's system attributes, by name.

use engine::dmu::Object;
use engine::sa::{SaAttrs, SaTables};
use engine::{Error, Result};

use crate::attr::Words;

/// Values of a file's system attributes.
#[derive(Debug, Clone, Default)]
pub(crate) struct SaFile {
    pub words: Words,
    pub symlink: Option<Vec<u8>>,
    pub dxattr: Option<Vec<u8>>,
    pub dacl_count: Option<u64>,
    pub dacl_aces: Option<Vec<u8>>,
    pub znode_acl: Option<Vec<u8>>,
    seen_mode: bool,
}

impl SaFile {
    /// The attributes of `object`, from its bonus buffer and its spill block.
    pub(crate) fn read(tables: &SaTables, object: &Object) -> Result<Self> {
        let spill = object.spill()?;
        let attrs = SaAttrs::decode(tables, object.dnode.bonus(), spill.as_deref())?;
        Self::of(tables, &attrs)
    }

    /// Takes the values from decoded attributes.
    pub(crate) fn of(tables: &SaTables, attrs: &SaAttrs) -> Result<Self> {
        let mut file = Self::default();
        for (attr, bytes) in attrs.iter() {
            if let Some(name) = tables.name(attr.num) {
                file.set(name, bytes);
            }
        }
        if !file.seen_mode {
            return Err(Error::corrupt("the system attributes have no mode"));
        }
        Ok(file)
    }

    fn set(&mut self, name: &str, bytes: &[u8]) {
        let w = &mut self.words;
        match name {
            "ZPL_ATIME" => w.atime = pair(bytes),
            "ZPL_MTIME" => w.mtime = pair(bytes),
            "ZPL_CTIME" => w.ctime = pair(bytes),
            "ZPL_CRTIME" => w.crtime = pair(bytes),
            "ZPL_GEN" => w.r#gen = word(bytes),
            "ZPL_MODE" => {
                w.mode = word(bytes);
                self.seen_mode = true;
            }
            "ZPL_SIZE" => w.size = word(bytes),
            "ZPL_PARENT" => w.parent = word(bytes),
            "ZPL_LINKS" => w.links = word(bytes),
            "ZPL_XATTR" => w.xattr = word(bytes),
            "ZPL_RDEV" => w.rdev = word(bytes),
            "ZPL_FLAGS" => w.flags = word(bytes),
            "ZPL_UID" => w.uid = word(bytes),
            "ZPL_GID" => w.gid = word(bytes),
            "ZPL_PROJID" => w.projid = word(bytes),
            "ZPL_SYMLINK" => self.symlink = Some(bytes.to_vec()),
            "ZPL_DXATTR" => self.dxattr = Some(bytes.to_vec()),
            "ZPL_DACL_COUNT" => self.dacl_count = Some(word(bytes)),
            "ZPL_DACL_ACES" => self.dacl_aces = Some(bytes.to_vec()),
            "ZPL_ZNODE_ACL" => self.znode_acl = Some(bytes.to_vec()),
            _ => {}
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

fn pair(bytes: &[u8]) -> [u64; 2] {
    [word(bytes), word(bytes.get(8..).unwrap_or_default())]
}
