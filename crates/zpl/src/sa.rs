//! System attributes: the tables of a file system, and a file's attributes through them.
//!
//! Since version 5 a file's attributes lie in its bonus buffer, and what does not fit in its spill
//! block, each with the number of a layout: the list of attributes that follow. Numbers of
//! attributes and layouts are the file system's own, so both are looked up here. Source: sa.c,
//! `sa_attr_reg_setup`, OpenZFS 2.3.

use std::collections::HashMap;
use std::sync::Arc;

use engine::dmu::{Object, Objset};
use engine::zap::Zap;
use engine::{Error, Result};
use ondisk::sa::{SA_LAYOUTS, SA_REGISTRY, SaAttr, SaHeader, ZPL_ATTRS, to_little_endian};

use crate::attr::Words;

/// Attributes that a registry may have, and layouts; numbers are 16 and 10 bits wide.
const MAX_ATTRS: usize = 1 << 12;
const MAX_LAYOUTS: usize = 1 << 10;
/// Attributes of a layout; all of them must fit a dnode and its spill block.
const MAX_LAYOUT_LEN: usize = 512;

/// What a file's system attributes say.
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

/// Registry and layouts of a file system.
#[derive(Debug, Default)]
pub(crate) struct SaTables {
    /// Attribute number to its name in [`ZPL_ATTRS`]; others are passed over.
    names: HashMap<u16, &'static str>,
    layouts: HashMap<u16, Vec<SaAttr>>,
}

impl SaTables {
    /// Reads the tables below the SA master node `number`.
    pub(crate) fn load(objset: &Arc<Objset>, number: u64) -> Result<Self> {
        let master = Zap::open(&objset.object(number)?)?;
        let registry = Zap::open(&objset.object(master.need(SA_REGISTRY)?)?)?;
        let layouts = Zap::open(&objset.object(master.need(SA_LAYOUTS)?)?)?;
        let mut tables = Self::default();
        let mut attrs = HashMap::new();
        for entry in registry.entries().take(MAX_ATTRS) {
            let entry = entry?;
            let value = entry.value.first().unwrap_or_default();
            let attr = SaAttr::from_registry(value).map_err(|e| Error::corrupt(e.to_string()))?;
            if let Some(known) = ZPL_ATTRS.iter().find(|a| a.name.as_bytes() == entry.name()) {
                tables.names.insert(attr.num, known.name);
            }
            attrs.insert(attr.num, attr);
        }
        for entry in layouts.entries().take(MAX_LAYOUTS) {
            let entry = entry?;
            let Ok(layout) = entry.name_lossy().parse::<u16>() else { continue };
            let numbers = entry.value.ints.iter().take(MAX_LAYOUT_LEN);
            let list: Option<Vec<SaAttr>> =
                numbers.map(|n| attrs.get(&u16::try_from(*n).ok()?).copied()).collect();
            let list = list.ok_or_else(|| {
                Error::corrupt(format!("attribute layout {layout} names an unregistered attribute"))
            })?;
            tables.layouts.insert(layout, list);
        }
        Ok(tables)
    }

    /// The attributes of `object`, from its bonus buffer and its spill block.
    pub(crate) fn read(&self, object: &Object) -> Result<SaFile> {
        let mut file = SaFile::default();
        self.buffer(object.dnode.bonus(), &mut file)?;
        if let Some(spill) = object.spill()? {
            self.buffer(&spill, &mut file)?;
        }
        if !file.seen_mode {
            return Err(Error::corrupt("the system attributes have no mode"));
        }
        Ok(file)
    }

    fn buffer(&self, bytes: &[u8], file: &mut SaFile) -> Result<()> {
        let header = SaHeader::from_bytes(bytes).map_err(|e| Error::corrupt(e.to_string()))?;
        let layout = self.layouts.get(&header.layout);
        let layout =
            layout.ok_or_else(|| Error::corrupt(format!("unknown attribute layout {}", header.layout)))?;
        if header.endian == ondisk::Endian::Big {
            let mut swapped = bytes.to_vec();
            to_little_endian(&mut swapped, layout).map_err(|e| Error::corrupt(e.to_string()))?;
            let header = SaHeader::from_bytes(&swapped).map_err(|e| Error::corrupt(e.to_string()))?;
            return self.attrs(&header, layout, file);
        }
        self.attrs(&header, layout, file)
    }

    fn attrs(&self, header: &SaHeader<'_>, layout: &[SaAttr], file: &mut SaFile) -> Result<()> {
        for item in header.attrs(layout) {
            let (attr, bytes) = item.map_err(|e| Error::corrupt(e.to_string()))?;
            if let Some(name) = self.names.get(&attr.num) {
                file.set(name, bytes);
            }
        }
        Ok(())
    }
}

impl SaFile {
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
