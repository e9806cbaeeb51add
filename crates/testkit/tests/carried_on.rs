//! OpenZFS's own engine continues pools that we wrote, and we continue its pools.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use engine::dsl::write::Encryption;
use engine::spa::Spa;
use stdx::rng::Rng;
use testkit::{pools, zdb, ztest};
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, mount};

/// The name is ztest's choice.
const POOL: &str = "ztest";
const FILE: u64 = 3 << 20;

fn body(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; FILE as usize];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn write(fs: &FsWriter, name: &str, seed: u64) {
    let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
    let file = fs.dirs().create(fs.root, name.as_bytes(), &node).unwrap();
    fs.data().write(file, 0, &body(seed), true).unwrap();
}

fn check(spa: &Spa, name: &str, seed: u64) {
    let fs = zpl::Filesystem::open(&spa.pool.dsl.dataset(POOL).unwrap()).unwrap();
    let found = fs.resolve(name.as_bytes(), true).unwrap();
    let mut got = vec![0; FILE as usize];
    assert_eq!(found.read_at(0, &mut got).unwrap(), got.len());
    assert!(got == body(seed), "{name}");
}

fn with_mount(spa: &Arc<Spa>, change: impl FnOnce(&FsWriter)) {
    let fs = mount(spa, POOL, Overrides::default()).unwrap();
    change(&fs);
    fs.unmount().unwrap();
}

/// Imports, checks the content, adds a file, exports; then zdb checks the pool.
fn go_on(dir: &Path, round: u64) {
    let spa = pools::import_dir(dir, POOL).unwrap();
    (0..round).for_each(|seed| check(&spa, &format!("file-{seed}"), seed));
    with_mount(&spa, |fs| write(fs, &format!("file-{round}"), round));
    check(&spa, &format!("file-{round}"), round);
    spa.export().unwrap();
    drop(spa);
    zdb::verify(dir, POOL).unwrap();
}

#[test]
fn ztest_carries_a_pool_of_ours_on_and_we_carry_on_with_its() {
    if !zdb::installed() || !ztest::can_carry_on() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 512 << 20, Encryption::default()).unwrap();
    with_mount(&spa, |fs| write(fs, "file-0", 0));
    spa.export().unwrap();
    drop(spa);
    ztest::carry_on(dir.path(), 6).unwrap();
    zdb::verify(dir.path(), POOL).unwrap();
    go_on(dir.path(), 1);
}
