//! Names of datasets that are known by number only.

use crate::dsl::{Dataset, Dir, Dsl, MAX_NESTING};
use crate::error::{Error, Kind, Result};
use std::sync::Arc;

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

/// The entry of a ZAP of names that has this value.
#[doc(alias = "zap_value_search")]
fn name_of(dsl: &Dsl, zap: u64, number: u64) -> Result<String> {
    let missing = || Error::not_found(format!("object {number} has no name"));
    let zap = dsl.zap(zap)?.ok_or_else(missing)?;
    for entry in zap.entries() {
        let entry = entry?;
        if entry.value.first() == Some(number) {
            return Ok(entry.name_lossy());
        }
    }
    Err(missing())
}
