//! Names of datasets, looked up in the MOS as it is now.

use ondisk::dsl::DslDataset;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos, special_dir};
use zcommon::names;

use super::mos_tx::MosView;
use crate::dsl::MAX_NESTING;
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::zap::{Match, Value};

/// A dataset that a name means.
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

fn missing(name: &str) -> Error {
    Error::not_found("dataset does not exist").in_dataset(name)
}

/// The directory of that name (`tank/a`), in the pool called `pool`.
pub fn dir(at: &MosView<'_>, pool: &str, name: &str) -> Result<u64> {
    let mut parts = name.split('/');
    if parts.next() != Some(pool) {
        return Err(missing(name));
    }
    let root = at.zap_word(MOS_DIRECTORY_OBJECT, mos::ROOT_DATASET)?;
    let mut number = root.ok_or_else(|| missing(name))?;
    for part in parts {
        let child = at.zap_word(at.dir(number)?.child_dir_zapobj, part)?;
        number = child.ok_or_else(|| missing(name))?;
    }
    Ok(number)
}

/// The dataset of that name: a head (`tank/a`) or a snapshot (`tank/a@b`).
pub fn find(at: &MosView<'_>, pool: &str, name: &str) -> Result<FoundDataset> {
    let (dir_name, snap) = match name.split_once('@') {
        Some((dir, snap)) => (dir, Some(snap)),
        None => (name, None),
    };
    let dir = dir(at, pool, dir_name)?;
    let head = at.dir(dir)?.head_dataset_obj;
    if head == 0 {
        return Err(missing(name));
    }
    let Some(snap) = snap else { return Ok(FoundDataset { dir, head, snapshot: None }) };
    let number = snapshot(at, head, snap)?;
    Ok(FoundDataset { dir, head, snapshot: Some(number.ok_or_else(|| missing(name))?) })
}

/// The snapshot of a head called `name`.
#[doc(alias = "dsl_dataset_snap_lookup")]
pub(super) fn snapshot(at: &MosView<'_>, head: u64, name: &str) -> Result<Option<u64>> {
    Ok(in_names_of(at, head, at.dataset(head)?.snapnames_zapobj, name)?.and_then(|value| value.first()))
}

/// The value of a name in a ZAP of snapshots or bookmarks of a head. Case counts unless the head's names ignore it.
pub(super) fn in_names_of(at: &MosView<'_>, head: u64, zap: u64, name: &str) -> Result<Option<Value>> {
    if at.dataset(head)?.flags & DslDataset::FLAG_CI_DATASET == 0 {
        return at.zap_get(zap, name);
    }
    let found = at.read_zap(zap)?.lookup_norm(name.as_bytes(), Match::Normalized)?;
    Ok(found.map(|found| found.value))
}

/// A head; a snapshot's name is refused.
pub fn find_head(at: &MosView<'_>, pool: &str, name: &str) -> Result<FoundDataset> {
    match find(at, pool, name)? {
        found if found.snapshot.is_none() => Ok(found),
        _ => Err(Error::new(Kind::Invalid, "a snapshot is not accepted here").in_dataset(name)),
    }
}

/// A snapshot.
pub fn find_snapshot(at: &MosView<'_>, pool: &str, name: &str) -> Result<(FoundDataset, u64)> {
    let found = find(at, pool, name)?;
    let invalid = || Error::new(Kind::Invalid, "not the name of a snapshot").in_dataset(name);
    Ok((found, found.snapshot.ok_or_else(invalid)?))
}

/// The full name of a snapshot.
///
/// # Errors
/// `NotFound` when the object is no snapshot that has a name.
#[doc(alias = "dsl_dataset_name")]
pub fn of_snapshot(at: &MosView<'_>, pool: &str, number: u64) -> Result<String> {
    let snap = at.dataset(number)?;
    let mut dir = at.dir(snap.dir_obj)?;
    let head = at.dataset(dir.head_dataset_obj)?;
    let mut name = format!("@{}", key_of(at, head.snapnames_zapobj, number)?);
    let mut child = snap.dir_obj;
    // A name has at most 255 bytes, so it has no more parts than that.
    for _ in 0..zcommon::names::MAX_NAME_LEN {
        if dir.parent_obj == 0 {
            return Ok(format!("{pool}{name}"));
        }
        let parent = at.dir(dir.parent_obj)?;
        name = format!("/{}{name}", key_of(at, parent.child_dir_zapobj, child)?);
        (child, dir) = (dir.parent_obj, parent);
    }
    Err(Error::corrupt("a dataset directory contains itself"))
}

fn key_of(at: &MosView<'_>, zap: u64, number: u64) -> Result<String> {
    let found = at.zap_entries(zap)?.into_iter().find(|entry| entry.value.first() == Some(number));
    let found = found.ok_or_else(|| Error::not_found("the object has no name in the pool"))?;
    Ok(String::from_utf8_lossy(found.name()).into_owned())
}

/// The entry of a ZAP of names that has this value.
#[doc(alias = "zap_value_search")]
pub(super) fn of_value(at: &MosView<'_>, zap: u64, value: u64) -> Result<String> {
    let entries = at.zap_entries(zap)?;
    let entry = entries.iter().find(|e| e.value.first() == Some(value));
    let missing = || Error::corrupt(format!("object {value} has no name in {zap}"));
    Ok(entry.ok_or_else(missing)?.name_lossy())
}

/// As [`of_value`], with a name to try first: without it the whole ZAP is read.
pub(super) fn given(at: &MosView<'_>, zap: u64, value: u64, name: Option<&str>) -> Result<String> {
    match name {
        Some(name) if at.zap_word(zap, name)? == Some(value) => Ok(name.to_owned()),
        _ => of_value(at, zap, value),
    }
}

/// Components that a dataset's name may have.
pub(super) fn most_nested(at: &MosView<'_>) -> usize {
    usize::try_from(at.mos.view().arc().limits().get(Limit::Nesting)).unwrap_or(usize::MAX)
}

/// Parent directory and last component of the name of a dataset to be made.
pub(super) fn split_new<'n>(at: &MosView<'_>, pool: &str, name: &'n str) -> Result<(u64, &'n str)> {
    checked(name, names::check_nesting(name, most_nested(at)))?;
    split_free(at, pool, name)
}

/// As [`split_new`], of a name that a dataset is to get, however deep it is nested.
pub(super) fn split_free<'n>(at: &MosView<'_>, pool: &str, name: &'n str) -> Result<(u64, &'n str)> {
    checked(name, names::check_entity(name))?;
    let (parent, last) = name.rsplit_once('/').ok_or_else(|| missing(name))?;
    checked(name, names::check_component(last))?;
    let parent = dir(at, pool, parent)?;
    if at.zap_word(at.dir(parent)?.child_dir_zapobj, last)?.is_some() {
        return Err(Error::new(Kind::Exists, "dataset already exists").in_dataset(name));
    }
    Ok((parent, last))
}

/// Refuses a full name of 256 bytes and more, which does not fit OpenZFS's buffers.
pub(super) fn check_length(len: usize) -> Result<()> {
    match len < names::MAX_NAME_LEN {
        true => Ok(()),
        false => Err(Error::new(Kind::TooLong, "name is too long")),
    }
}

/// Refuses a last component that breaks the rules.
pub(super) fn check_part(part: &str) -> Result<()> {
    // The rules of whole names also exclude `.` and `..`.
    checked(part, names::check_component(part).and_then(|()| names::check_entity(part)))
}

fn checked(name: &str, result: std::result::Result<(), names::NameError>) -> Result<()> {
    result.map_err(|e| Error::new(Kind::Invalid, e.to_string()).in_dataset(name))
}

/// The nearest directory that both are below.
pub(super) fn common_ancestor(at: &MosView<'_>, a: u64, b: u64) -> Result<u64> {
    let path = |mut dir: u64| -> Result<Vec<u64>> {
        let mut path = Vec::new();
        while dir != 0 && path.len() <= MAX_NESTING {
            path.push(dir);
            dir = at.dir(dir)?.parent_obj;
        }
        Ok(path)
    };
    let above = path(a)?;
    Ok(path(b)?.into_iter().find(|dir| above.contains(dir)).unwrap_or(0))
}

/// A hidden directory's number, from the root.
pub(super) fn hidden_dir(at: &MosView<'_>, name: &str) -> Result<u64> {
    let root = at.zap_word(MOS_DIRECTORY_OBJECT, mos::ROOT_DATASET)?;
    let root = root.ok_or_else(|| Error::corrupt("the pool has no root dataset"))?;
    let number = at.zap_word(at.dir(root)?.child_dir_zapobj, name)?;
    number.ok_or_else(|| Error::not_found(format!("no directory {name}")))
}

/// The directory of the MOS' own space.
pub(super) fn mos_dir(at: &MosView<'_>) -> Result<u64> {
    hidden_dir(at, special_dir::MOS)
}

/// The directory that owns the space to be freed.
pub(super) fn free_dir(at: &MosView<'_>) -> Result<u64> {
    hidden_dir(at, special_dir::FREE)
}
