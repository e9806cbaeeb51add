//! Names of datasets that are known by number only.

use std::collections::HashMap;
use std::sync::Arc;

use crate::dsl::{Dsl, lookup};
use crate::error::{Error, Result};

/// Names that are remembered; those of a ZAP with more are not.
const MAX_NAMES: usize = 1 << 16;

/// The full name of directory `number`.
pub fn dir_name(dsl: &Arc<Dsl>, number: u64) -> Result<String> {
    lookup::dir_name(dsl.as_ref(), &dsl.pool_name, number)
}

/// The full name of dataset `number`, head or snapshot.
pub fn dataset_name(dsl: &Arc<Dsl>, number: u64) -> Result<String> {
    lookup::dataset_name(dsl.as_ref(), &dsl.pool_name, number)
}

/// Returns the entry of a ZAP of names that has this value. All of its entries are cached, so that many
/// look-ups read it once. A cached entry is used only while the ZAP still has it.
pub(in crate::dsl) fn name_of(dsl: &Dsl, zap: u64, number: u64) -> Result<String> {
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
