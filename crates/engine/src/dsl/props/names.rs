//! Names of datasets that are known by number only.

use crate::dsl::{Dataset, Dir, Dsl, MAX_NESTING};
use crate::error::{Error, Kind, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Names that are remembered; those of a ZAP with more are not.
const MAX_NAMES: usize = 1 << 16;

/// The full name of directory `number`.
#[doc(alias = "dsl_dir_name")]
pub fn dir_name(dsl: &Arc<Dsl>, number: u64) -> Result<String> {
    let mut parts = Vec::new();
    let mut at = number;
    for _ in 0..=MAX_NESTING {
        let dir = Dir::open(dsl, at, String::new())?;
        if dir.phys.parent_obj == 0 {
            parts.push(dsl.pool_name.clone());
            parts.reverse();
            return Ok(parts.join("/"));
        }
        let up = Dir::open(dsl, dir.phys.parent_obj, String::new())?;
        parts.push(name_of(dsl, up.phys.child_dir_zapobj, at)?);
        at = dir.phys.parent_obj;
    }
    Err(Error::new(Kind::Loop, format!("directory {number} is its own ancestor")))
}

/// The full name of dataset `number`, head or snapshot.
#[doc(alias = "dsl_dataset_name")]
pub fn dataset_name(dsl: &Arc<Dsl>, number: u64) -> Result<String> {
    let dataset = Dataset::open(dsl, number, String::new())?;
    let dir = dir_name(dsl, dataset.phys.dir_obj)?;
    if !dataset.is_snapshot() {
        return Ok(dir);
    }
    let head = Dir::open(dsl, dataset.phys.dir_obj, dir.clone())?.head()?;
    let snap = name_of(dsl, head.phys.snapnames_zapobj, number)?;
    Ok(format!("{dir}@{snap}"))
}

/// Returns the entry of a ZAP of names that has this value. All of its entries are cached, so that many
/// look-ups read it once. A cached entry is used only while the ZAP still has it.
#[doc(alias = "zap_value_search")]
fn name_of(dsl: &Dsl, zap: u64, number: u64) -> Result<String> {
    let missing = || Error::not_found(format!("object {number} has no name"));
    let place = (zap, number);
    let zap = dsl.zap(zap)?.ok_or_else(missing)?;
    let known = dsl.names.lock().get(&place).cloned();
    if let Some(name) = known.filter(|name| zap.u64(name).is_ok_and(|found| found == Some(number))) {
        return Ok(name);
    }
    let (mut all, mut unread) = (HashMap::new(), None);
    for entry in zap.entries() {
        match entry.map(|entry| (entry.value.first(), entry)) {
            Ok((Some(value), entry)) => drop(all.insert((place.0, value), entry.name_lossy())),
            Ok((None, _)) => {}
            // The name may stand elsewhere.
            Err(e) => unread = unread.or(Some(e)),
        }
    }
    let name = all.get(&place).cloned();
    if all.len() <= MAX_NAMES {
        let mut names = dsl.names.lock();
        if names.len().saturating_add(all.len()) > MAX_NAMES {
            names.clear();
        }
        names.extend(all);
    }
    name.ok_or_else(|| unread.unwrap_or_else(missing))
}
