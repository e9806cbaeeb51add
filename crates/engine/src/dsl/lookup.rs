//! Directories and datasets looked up by name, by number, and upwards from a directory.
//!
//! Readers of a pool and the sync tasks that change it share these walks. Readers see the pool through [`Dsl`](super::Dsl), sync
//! tasks see the MOS as their transaction has left it.

use ondisk::dsl::{DslDataset, DslDir};

use super::MAX_NESTING;
use crate::error::{Error, Kind, Result};
use crate::zap::{Match, Zap};

/// Reads the structures of the MOS from which names of datasets are made.
pub(crate) trait ReadNames {
    /// The object number of the root directory.
    fn root_dir(&self) -> Result<u64>;
    /// A directory.
    fn dir_phys(&self, number: u64) -> Result<DslDir>;
    /// A dataset.
    fn dataset_phys(&self, number: u64) -> Result<DslDataset>;
    /// A ZAP; `None` for object 0.
    fn open_zap(&self, number: u64) -> Result<Option<Zap>>;

    /// The name in a ZAP of names whose value is `number`.
    ///
    /// # Errors
    /// `NotFound` when it has none.
    #[doc(alias = "zap_value_search")]
    fn name_of(&self, zap: u64, number: u64) -> Result<String> {
        let unnamed = || Error::not_found(format!("object {number} has no name"));
        let entries = self.open_zap(zap)?.ok_or_else(unnamed)?.to_vec()?;
        let entry = entries.iter().find(|entry| entry.value.first() == Some(number));
        Ok(entry.ok_or_else(unnamed)?.name_lossy())
    }

    /// The number of a name in a ZAP of names; `None` for object 0, too.
    fn number_of(&self, zap: u64, name: &str) -> Result<Option<u64>> {
        self.open_zap(zap)?.map_or(Ok(None), |zap| zap.u64(name))
    }

    /// A directory and those above it, the root last. Ends with an error where directories contain themselves.
    fn ancestors(&self, dir: u64) -> Ancestors<'_, Self> {
        Ancestors { at: self, next: dir, left: MAX_NESTING + 1 }
    }
}

/// Iterator over a directory and those above it.
#[derive(Debug)]
pub(crate) struct Ancestors<'a, R: ?Sized> {
    at: &'a R,
    /// The next directory; 0 after the root.
    next: u64,
    left: usize,
}

impl<R: ReadNames + ?Sized> Iterator for Ancestors<'_, R> {
    type Item = Result<(u64, DslDir)>;

    fn next(&mut self) -> Option<Self::Item> {
        let number = std::mem::take(&mut self.next);
        if number == 0 {
            return None;
        }
        let Some(left) = self.left.checked_sub(1) else {
            return Some(Err(Error::new(Kind::Loop, "the dataset's ancestors go in circles")));
        };
        self.left = left;
        let read = self.at.dir_phys(number);
        self.next = read.as_ref().map_or(0, |dir| dir.parent_obj);
        Some(read.map(|dir| (number, dir)))
    }
}

/// The objects of a dataset that was looked up by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundDataset {
    /// Its directory.
    pub dir: u64,
    /// Its head dataset.
    pub head: u64,
    /// The snapshot, if the name is one's.
    pub(crate) snapshot: Option<u64>,
}

impl FoundDataset {
    /// The dataset: the snapshot, or the head.
    pub fn dataset(&self) -> u64 {
        self.snapshot.unwrap_or(self.head)
    }
}

pub(super) fn missing(name: &str) -> Error {
    Error::not_found("dataset does not exist").in_dataset(name)
}

/// The directory called `name` (`tank/a`), in the pool called `pool`.
pub(super) fn dir<R: ReadNames + ?Sized>(at: &R, pool: &str, name: &str) -> Result<u64> {
    let mut parts = name.split('/');
    if parts.next() != Some(pool) {
        return Err(missing(name));
    }
    let (mut number, mut above) = (at.root_dir()?, pool.len());
    for (depth, part) in parts.enumerate() {
        if depth > MAX_NESTING {
            return Err(Error::new(Kind::TooLong, "name is nested too deeply").in_dataset(name));
        }
        let child = at.dir_phys(number).and_then(|dir| at.number_of(dir.child_dir_zapobj, part));
        let child = child.map_err(|e| e.in_dataset(name.get(..above).unwrap_or(name)))?;
        number = child.ok_or_else(|| missing(name))?;
        above += 1 + part.len();
    }
    Ok(number)
}

/// The dataset called `name`: a head (`tank/a`) or a snapshot (`tank/a@b`).
pub(super) fn dataset<R: ReadNames + ?Sized>(at: &R, pool: &str, name: &str) -> Result<FoundDataset> {
    let (dir_name, snap) = match name.split_once('@') {
        Some((dir, snap)) => (dir, Some(snap)),
        None => (name, None),
    };
    let dir = dir(at, pool, dir_name)?;
    let head = at.dir_phys(dir)?.head_dataset_obj;
    if head == 0 {
        return Err(missing(name));
    }
    let Some(snap) = snap else { return Ok(FoundDataset { dir, head, snapshot: None }) };
    let (number, _) = snapshot(at, &at.dataset_phys(head)?, snap)?.ok_or_else(|| missing(name))?;
    Ok(FoundDataset { dir, head, snapshot: Some(number) })
}

/// The snapshot of a head called `name`, and its name as it is stored.
#[doc(alias = "dsl_dataset_snap_lookup")]
pub(super) fn snapshot<R: ReadNames + ?Sized>(
    at: &R,
    head: &DslDataset,
    name: &str,
) -> Result<Option<(u64, String)>> {
    let Some(zap) = at.open_zap(head.snapnames_zapobj)? else { return Ok(None) };
    Ok(entry_of(&zap, head, name)?.and_then(|(value, name)| Some((value.first()?, name))))
}

/// The entry of a name in a ZAP of snapshots or bookmarks of a head, and the name as it is stored. Case counts unless the
/// head's names ignore it.
pub(super) fn entry_of(
    zap: &Zap,
    head: &DslDataset,
    name: &str,
) -> Result<Option<(crate::zap::Value, String)>> {
    if head.flags & DslDataset::FLAG_CI_DATASET == 0 {
        return Ok(zap.lookup(name.as_bytes())?.map(|value| (value, name.to_owned())));
    }
    let found = zap.lookup_norm(name.as_bytes(), Match::Normalized)?;
    Ok(found.map(|found| (found.value, String::from_utf8_lossy(&found.name).into_owned())))
}

/// The full name of a directory.
#[doc(alias = "dsl_dir_name")]
pub(super) fn dir_name<R: ReadNames + ?Sized>(at: &R, pool: &str, number: u64) -> Result<String> {
    let path = at.ancestors(number).collect::<Result<Vec<_>>>()?;
    if path.is_empty() {
        return Err(Error::not_found("object 0 is no directory"));
    }
    let steps = path.iter().zip(path.iter().skip(1)).rev();
    let mut name = pool.to_owned();
    for ((child, _), (_, parent)) in steps {
        name.push('/');
        name.push_str(&at.name_of(parent.child_dir_zapobj, *child)?);
    }
    Ok(name)
}

/// The full name of a dataset, head or snapshot.
#[doc(alias = "dsl_dataset_name")]
pub(super) fn dataset_name<R: ReadNames + ?Sized>(at: &R, pool: &str, number: u64) -> Result<String> {
    let dataset = at.dataset_phys(number)?;
    let dir = dir_name(at, pool, dataset.dir_obj)?;
    if !dataset.is_snapshot() {
        return Ok(dir);
    }
    let head = match at.dir_phys(dataset.dir_obj)?.head_dataset_obj {
        0 => return Err(Error::not_found("the directory has no dataset").in_dataset(&dir)),
        head => at.dataset_phys(head)?,
    };
    Ok(format!("{dir}@{}", at.name_of(head.snapnames_zapobj, number)?))
}

/// The nearest directory that both are below; 0: there is none.
pub(super) fn common_ancestor<R: ReadNames + ?Sized>(at: &R, a: u64, b: u64) -> Result<u64> {
    let above = at.ancestors(a).map(|step| Ok(step?.0)).collect::<Result<Vec<_>>>()?;
    for step in at.ancestors(b) {
        let (dir, _) = step?;
        if above.contains(&dir) {
            return Ok(dir);
        }
    }
    Ok(0)
}
