//! A pool on a file whose directory `names` has `AQUIFER_NAMES` (default 20,000) files, for measurements of listings
//! (docs/memory.md). With `AQUIFER_DIR` the pool stays in that folder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::PathBuf;

use engine::env::Env;
use sim::files::{self, FilePool};
use sim::world::Shape;
use zpl::FileKind;
use zpl::write::NewNode;

#[test]
fn a_directory_of_many_names_is_made_and_counted() {
    let count: u64 = std::env::var("AQUIFER_NAMES").map_or(20_000, |count| count.parse().unwrap());
    let scratch = tempfile::tempdir().unwrap();
    let dir = std::env::var_os("AQUIFER_DIR").map_or_else(|| scratch.path().to_path_buf(), PathBuf::from);
    let disks = files::disks(&dir, 1, (256 << 20) + count * 1500).unwrap();
    let pool = FilePool::create(&Env::system(64 << 20).unwrap(), Shape::Single, disks).unwrap();
    let fs = &pool.fs;
    let names = fs.dirs().create(fs.root, b"names", &NewNode::new(FileKind::Directory, 0o755, 0, 0)).unwrap();
    for number in 0..count {
        let name = format!("a file with number {number}");
        fs.dirs().create(names, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    }
    assert_eq!(fs.attrs().get(names).unwrap().size, count + 2);
    pool.export().unwrap();
}
