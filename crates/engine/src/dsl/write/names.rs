//! Names of datasets, looked up in the MOS as it is now.

use ondisk::names::special_dir;
use zcommon::names;

use super::mos_tx::MosView;
pub use crate::dsl::lookup::FoundDataset;
use crate::dsl::lookup::{self, ReadNames};
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::zap::Value;

/// The directory of that name (`tank/a`), in the pool called `pool`.
pub fn dir(at: &MosView<'_>, pool: &str, name: &str) -> Result<u64> {
    lookup::dir(at, pool, name)
}

/// The dataset of that name: a head (`tank/a`) or a snapshot (`tank/a@b`).
pub fn find(at: &MosView<'_>, pool: &str, name: &str) -> Result<FoundDataset> {
    lookup::dataset(at, pool, name)
}

/// The snapshot of a head called `name`.
pub(super) fn snapshot(at: &MosView<'_>, head: u64, name: &str) -> Result<Option<u64>> {
    Ok(lookup::snapshot(at, &at.dataset(head)?, name)?.map(|(number, _)| number))
}

/// The value of a name in a ZAP of snapshots or bookmarks of a head. Case counts unless the head's names ignore it.
pub(super) fn in_names_of(at: &MosView<'_>, head: u64, zap: u64, name: &str) -> Result<Option<Value>> {
    let found = lookup::entry_of(&at.read_zap(zap)?, &at.dataset(head)?, name)?;
    Ok(found.map(|(value, _)| value))
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
pub fn of_snapshot(at: &MosView<'_>, pool: &str, number: u64) -> Result<String> {
    if !at.dataset(number)?.is_snapshot() {
        return Err(Error::not_found(format!("object {number} is no snapshot")));
    }
    lookup::dataset_name(at, pool, number)
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
    let (parent, last) = name.rsplit_once('/').ok_or_else(|| lookup::missing(name))?;
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

/// A hidden directory's number, from the root.
pub(super) fn hidden_dir(at: &MosView<'_>, name: &str) -> Result<u64> {
    let number = at.number_of(at.dir(at.root_dir()?)?.child_dir_zapobj, name)?;
    number.ok_or_else(|| Error::not_found(format!("no directory {name}")))
}

/// The directory of the MOS' own space.
pub(super) fn mos_dir(at: &MosView<'_>) -> Result<u64> {
    hidden_dir(at, special_dir::MOS)
}

/// The directory that owns the space to be freed.
pub(crate) fn free_dir(at: &MosView<'_>) -> Result<u64> {
    hidden_dir(at, special_dir::FREE)
}
