//! Snapshots that last as long as the work that needs them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use engine::dsl::write::Encryption;
use testkit::{pools, zdb};

const POOL: &str = "held";
const SNAPSHOT: &str = "held@work-1";

#[test]
fn a_temporary_snapshot_goes_with_its_hold_or_with_the_next_import() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 128 << 20, Encryption::default()).unwrap();
    let take = || spa.dsl_task(|tasks| tasks.snapshot_tmp(SNAPSHOT, "work"));
    take().unwrap();
    assert!(spa.pool.dsl.dataset(SNAPSHOT).is_ok());
    spa.dsl_task(|tasks| tasks.release(SNAPSHOT, "work")).unwrap();
    assert!(spa.pool.dsl.dataset(SNAPSHOT).is_err());
    take().unwrap();
    spa.dsl_task(|tasks| tasks.hold(SNAPSHOT, "mine")).unwrap();
    spa.dsl_task(|tasks| tasks.snapshot_tmp("held@work-2", "work")).unwrap();
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), crashed.path());
    drop(spa);

    let spa = pools::import_dir(crashed.path(), POOL).unwrap();
    assert!(spa.pool.dsl.dataset("held@work-2").is_err());
    // Another hold keeps it.
    assert!(spa.pool.dsl.dataset(SNAPSHOT).is_ok());
    spa.dsl_task(|tasks| tasks.release(SNAPSHOT, "mine")).unwrap();
    assert!(spa.pool.dsl.dataset(SNAPSHOT).is_err());
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(crashed.path(), POOL).unwrap();
    }
}
