//! Finds the path of a file by walking from it up through its parents.

use std::collections::HashMap;

use engine::zap::Zap;
use engine::{Kind, Result};
use ondisk::znode::{dirent_object, pflags};
use zpl::Inode;

/// Maximum number of directories with cached names, and of names in all of them.
const MAX_DIRS: usize = 64;
const MAX_NAMES: usize = 1 << 20;
/// Maximum path depth in components; ends the walk in a directory tree that contains itself.
const MAX_DEPTH: usize = 4096;

/// Cached names of directory entries by object: without the cache each directory would be read once for each of its
/// files.
#[derive(Debug, Default)]
pub struct Paths {
    dirs: HashMap<u64, HashMap<u64, Vec<u8>>>,
    names: usize,
    unlinked: Option<Vec<u64>>,
}

impl Paths {
    /// Returns the path from the dataset's root, or the reason why there is none.
    #[doc(alias = "zfs_obj_to_path")]
    pub fn of(&mut self, inode: &Inode) -> Vec<u8> {
        if self.unlinked(inode).contains(&inode.number()) {
            return b"on delete queue".to_vec();
        }
        self.walk(inode).unwrap_or_else(|_| b"path not found, possibly leaked".to_vec())
    }

    /// Returns the path from the dataset's root. Files of extended attributes lie in `<xattrdir>`.
    pub fn walk(&mut self, inode: &Inode) -> Result<Vec<u8>> {
        let mut parts = Vec::new();
        let mut here = inode.clone();
        while here.number() != here.filesystem().root && here.attr().parent != here.number() {
            if parts.len() > MAX_DEPTH {
                return Err(engine::Error::new(Kind::Loop, "the path is too long"));
            }
            let parent = here.filesystem().inode(here.attr().parent)?;
            if here.is_dir() && here.attr().has_flag(pflags::XATTR) {
                parts.push(b"<xattrdir>".to_vec());
            } else {
                parts.push(self.name_in(&parent, here.number())?);
            }
            here = parent;
        }
        if parts.is_empty() {
            return Ok(b"/".to_vec());
        }
        Ok(parts.iter().rev().flat_map(|part| [b"/", part.as_slice()].concat()).collect())
    }

    fn name_in(&mut self, dir: &Inode, number: u64) -> Result<Vec<u8>> {
        if !self.dirs.contains_key(&dir.number()) {
            if self.dirs.len() >= MAX_DIRS || self.names >= MAX_NAMES {
                (self.dirs, self.names) = (HashMap::new(), 0);
            }
            let names = names_of(dir)?;
            self.names += names.len();
            self.dirs.insert(dir.number(), names);
        }
        let name = self.dirs.get(&dir.number()).and_then(|names| names.get(&number));
        name.cloned().ok_or_else(|| engine::Error::not_found("no such entry"))
    }

    /// Files that were unlinked while open.
    fn unlinked(&mut self, inode: &Inode) -> &[u64] {
        self.unlinked.get_or_insert_with(|| {
            let fs = inode.filesystem();
            let zap = fs.objset.object(fs.unlinked_set).and_then(|object| Zap::open(&object));
            let entries = zap.iter().flat_map(|zap| zap.entries().flatten().take(MAX_NAMES));
            entries.filter_map(|e| e.value.first()).collect()
        })
    }
}

/// The first name of each object in a directory.
fn names_of(dir: &Inode) -> Result<HashMap<u64, Vec<u8>>> {
    let zap = Zap::open(&dir.filesystem().objset.object(dir.number())?)?;
    let mut names = HashMap::new();
    for entry in zap.entries().flatten().take(MAX_NAMES) {
        let object = dirent_object(entry.value.first().unwrap_or(0));
        names.entry(object).or_insert_with(|| entry.name().to_vec());
    }
    Ok(names)
}
