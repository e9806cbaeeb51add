//! Versions of file systems: upgrades, and the accounting that a newer version allows.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clikit::settings::TOO_OLD;
use clikit::target::Target;
use zpl::write::{FsWriter, Options};

/// Fails when a pool is too old for file systems of a version.
pub fn check(target: &Target, version: u64) -> Result<(), String> {
    match zpl::pool_version_for(version) > target.view.version() {
        true => Err(TOO_OLD.to_owned()),
        false => Ok(()),
    }
}

/// Sets a file system's version, and counts its files for their owners where that has not been done.
#[doc(alias("zfs_set_version", "zfs_ioc_userspace_upgrade"))]
pub fn set(target: &Target, version: u64) -> Result<(), String> {
    let text = |e: engine::Error| e.what().to_owned();
    check(target, version)?;
    let spa = target.pool.spa().map_err(text)?;
    let dataset = target.dataset().map_err(|e| e.message().unwrap_or_default())?;
    let live = spa.datasets.open(&**spa, dataset.number).map_err(text)?;
    let (env, txs) = (&spa.pool.env, Arc::clone(spa));
    // Loaded without cleaning the delete queue: where it is mounted, removed files may still be open.
    let fs = FsWriter::load(&live.objset, txs, Arc::clone(&env.clock), Options::default(), env.guid());
    fs.and_then(|fs| fs.set_version(version)).map_err(text)?;
    spa.sync().map_err(text)?;
    // A mounted file system counts in the background already: this waits for it.
    spa.dsl().begin_accounts(&live, &AtomicBool::new(false)).map(drop).map_err(text)
}
