//! Versions of file systems: giving one a newer version, and what its pool can count since.

use std::sync::atomic::AtomicBool;

use super::target::Target;

/// Gives a file system a version, and counts what is in it for its owners where that has not been done.
#[doc(alias("zfs_set_version", "zfs_ioc_userspace_upgrade"))]
pub fn set(target: &Target, version: u64) -> Result<(), String> {
    let text = |e: engine::Error| e.what().to_owned();
    if version != 5 {
        return Err("file systems can't be given an older version".to_owned());
    }
    let spa = target.pool.spa().map_err(text)?;
    let dataset = target.dataset().map_err(|e| e.message().unwrap_or_default())?;
    let live = spa.datasets.open(&**spa, dataset.number).map_err(text)?;
    // What is mounted counts in the background already: this waits for it.
    spa.begin_accounts(&live, &AtomicBool::new(false)).map(drop).map_err(text)
}
