//! Rebuilds of pools on images, as `zpool import --rebuild` does them, and their judges.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that can't have its pool can't go on")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use blkdev::{OpenMode, OpenOptions};
use engine::Result;
use engine::env::Env;
use engine::scan::account::WINDOW_SECTORS;
use engine::scan::damage::{Damage, assess, which};
use engine::scan::rebuild::{RebuildOptions, survey};
use engine::spa::{ImportOptions, Pool, Spa, import_rebuilt};
use zutil::PoolCandidate;
use zutil::import::{candidates, select, source, source_with};

use crate::zdb::Judge;

fn candidate(dir: &Path, name: &str) -> PoolCandidate {
    select(candidates(&[dir.to_path_buf()]), name).expect("a pool")
}

fn view(dir: &Path, name: &str) -> Arc<Pool> {
    let env = Env::system(64 << 20).expect("an environment");
    engine::spa::open(&env, source(&candidate(dir, name)), engine::spa::OpenOptions::default())
        .expect("it opens")
}

/// The damage that a rebuild finds in the pool on the images of `dir`.
///
/// # Panics
/// If the pool cannot be opened.
pub fn damage(dir: &Path, name: &str) -> Vec<Damage> {
    assess(&view(dir, name), &AtomicBool::new(false))
}

/// Imports the pool and rebuilds what is damaged, in passes of `window` sectors; `accept`: although blocks cannot be read.
///
/// # Errors
/// The errors of the walk and of the import.
///
/// # Panics
/// If the pool cannot be opened.
pub fn rebuild_with(dir: &Path, name: &str, window: u64, accept: bool) -> Result<Arc<Spa>> {
    let pool = view(dir, name);
    let stop = AtomicBool::new(false);
    let which = which(&pool, &assess(&pool, &stop));
    let derived = survey(&pool, &RebuildOptions { which, window, accept, stop: &stop }, &mut |_| ())?;
    drop(pool);
    let env = Env::system(64 << 20)?;
    let write = OpenOptions { mode: OpenMode::ReadWrite, ..Default::default() };
    let how = ImportOptions { hostid: 7, hostname: "elsewhere".into(), force: true, ..Default::default() };
    import_rebuilt(&env, source_with(&candidate(dir, name), write), &how, derived)
}

/// As [`rebuild_with`], in one pass of what can be read completely.
///
/// # Panics
/// If it fails.
pub fn rebuild(dir: &Path, name: &str) -> Arc<Spa> {
    rebuild_with(dir, name, WINDOW_SECTORS, false).expect("it is rebuilt")
}

/// Lets the real zdbs that are installed judge the pool.
///
/// # Panics
/// If one finds something.
pub fn judge(dir: &Path, name: &str, judges: &[Judge]) {
    for judge in judges.iter().filter(|judge| judge.installed()) {
        judge.verify(dir, name).unwrap_or_else(|text| panic!("{judge:?}: {text}"));
    }
}
