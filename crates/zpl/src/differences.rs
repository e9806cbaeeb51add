//! Differences between two states of a file system: for comparisons, and for mounts whose content is
//! exchanged.
//!
//! A file system's objects lie in an array. Blocks of that array that are the same in both states hold the same objects;
//! in the others each object is looked at.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use engine::Result;
use engine::dmu::{Object, Objset, SpecialObject};
use ondisk::dnode::DNODE_SHIFT;

use crate::filesystem::Filesystem;
use crate::inode::Inode;

/// Numbers of objects whose dnodes lie in blocks that are not the same in both states.
#[doc(alias = "dmu_diff")]
pub fn changed_objects(from: &Arc<Objset>, to: &Arc<Objset>) -> impl Iterator<Item = Result<u64>> + use<> {
    let metas = from.special(SpecialObject::Meta).zip(to.special(SpecialObject::Meta));
    let last = metas.as_ref().map_or(0, |(a, b)| a.dnode.maxblkid.max(b.dnode.maxblkid) + 1);
    (0..last).flat_map(move |blkid| match &metas {
        None => Vec::new(),
        Some((a, b)) => match differs(a, b, blkid) {
            Ok(false) => Vec::new(),
            Ok(true) => {
                let slots = b.dnode.datablksz() >> DNODE_SHIFT;
                (blkid * slots..(blkid + 1) * slots).filter(|&n| n != 0).map(Ok).collect()
            }
            Err(e) => vec![Err(e)],
        },
    })
}

fn differs(a: &Object, b: &Object, blkid: u64) -> Result<bool> {
    Ok(match (a.blkptr(0, blkid)?, b.blkptr(0, blkid)?) {
        (None, None) => false,
        (Some(a), Some(b)) => !a.same_block(&b),
        _ => true,
    })
}

/// The changes for a mounted file system when its content is exchanged.
#[derive(Debug, Default)]
pub struct Differences {
    /// Files that may have changed; new ones, too.
    pub files: BTreeSet<u64>,
    /// Those that are gone, or whose number is another file's.
    pub gone: HashSet<u64>,
    /// Names that no longer lead to the same file: directory and name.
    pub names: Vec<(u64, Vec<u8>)>,
    /// Directories that `files` have names in.
    pub parents: BTreeSet<u64>,
}

/// Returns the changes when `now` becomes `then`. A file that can't be read counts as missing.
///
/// # Errors
/// When the array of objects can't be read.
pub fn differences(now: &Arc<Filesystem>, then: &Arc<Filesystem>) -> Result<Differences> {
    let mut found = Differences::default();
    let mut dirs = Vec::new();
    for number in changed_objects(&now.objset, &then.objset) {
        let number = number?;
        let (old, new) = (now.inode(number).ok(), then.inode(number).ok());
        if old.is_none() && new.is_none() {
            continue;
        }
        found.files.insert(number);
        found.parents.extend([&old, &new].into_iter().flatten().map(|inode| inode.attr().parent));
        if old.is_some() && !same(old.as_ref(), new.as_ref()) {
            found.gone.insert(number);
        }
        if [&old, &new].into_iter().flatten().any(Inode::is_dir) {
            dirs.push((number, old, new));
        }
    }
    for (number, old, new) in dirs {
        let (old, new) = (names(old.as_ref()), names(new.as_ref()));
        let stays =
            |name: &Vec<u8>, object: &u64| new.get(name) == Some(object) && !found.gone.contains(object);
        let lost = old.iter().filter(|(name, object)| !stays(name, object)).map(|(name, _)| name);
        let came = new.keys().filter(|name| !old.contains_key(*name));
        found.names.extend(lost.chain(came).map(|name| (number, name.clone())));
    }
    Ok(found)
}

fn same(a: Option<&Inode>, b: Option<&Inode>) -> bool {
    a.zip(b)
        .is_some_and(|(a, b)| a.attr().generation == b.attr().generation && a.attr().kind == b.attr().kind)
}

/// Names in a directory, with their objects.
fn names(dir: Option<&Inode>) -> BTreeMap<Vec<u8>, u64> {
    let entries = dir.filter(|dir| dir.is_dir()).and_then(|dir| dir.entries().ok());
    entries.into_iter().flatten().flatten().map(|entry| (entry.name, entry.object)).collect()
}
