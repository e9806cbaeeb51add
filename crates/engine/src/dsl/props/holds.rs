//! Holds: names that keep a snapshot from being destroyed.

use crate::dsl::Dataset;
use crate::error::Result;

/// A hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserHold {
    /// Its tag.
    pub tag: String,
    /// When it was made, seconds since 1970.
    pub time: u64,
}

/// The holds of a snapshot, in the order of their tags' hashes.
#[doc(alias = "dsl_dataset_get_holds")]
pub fn holds(snapshot: &Dataset) -> Result<Vec<UserHold>> {
    let Some(zap) = snapshot.dsl.zap(snapshot.phys.userrefs_obj)? else { return Ok(Vec::new()) };
    let entries = zap.to_vec()?;
    Ok(entries.iter().map(|e| UserHold { tag: e.name_lossy(), time: e.value.first().unwrap_or(0) }).collect())
}
