//! Pools on image files in a directory: made, copied, and imported for writing.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use blkdev::{FileDevice, OpenMode, OpenOptions};
use engine::Result;
use engine::env::Env;
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{FillRoot, ImportOptions, NewPool, Spa, create, import};
use engine::vdev::config::AllocBias;
use zutil::import::{candidates, select, source_with};

/// Copies the files of a directory, holes as holes.
///
/// # Panics
/// When that fails.
pub fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_file() {
            let mut cp = Command::new("cp");
            cp.arg("--sparse=always").arg(entry.path()).arg(to.join(entry.file_name()));
            assert!(cp.status().expect("cp runs").success());
        }
    }
}

/// Imports the pool on the images of a directory for writing, even if nobody exported it; without a sync thread.
///
/// # Errors
/// As [`engine::spa::import()`].
pub fn import_dir(dir: &Path, pool: &str) -> Result<Arc<Spa>> {
    import_at(dir, pool, engine::spa::OpenOptions::default())
}

/// As [`import_dir`], at the state asked for.
///
/// # Errors
/// As [`engine::spa::import()`].
pub fn import_at(dir: &Path, pool: &str, open: engine::spa::OpenOptions) -> Result<Arc<Spa>> {
    let env = Env::system(64 << 20)?;
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    let candidate = select(candidates(&[dir.to_path_buf()]), pool)?;
    // One of them was not exported by the machine that made it.
    let how =
        ImportOptions { open, hostid: 7, hostname: "elsewhere".into(), force: true, ..Default::default() };
    import(&env, source_with(&candidate, options), &how)
}

/// An image file of `size` bytes, as a leaf of a pool to be made.
///
/// # Panics
/// When it can't be made.
pub fn leaf(path: &Path, size: u64) -> LeafSpec {
    std::fs::File::create(path).and_then(|file| file.set_len(size)).expect("an image");
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    let device = Arc::new(FileDevice::open(path, options).expect("a device"));
    let path = path.to_string_lossy().into_owned();
    LeafSpec { path, is_disk: false, whole_disk: None, devid: None, device }
}

/// A new pool with all features that real zdb knows; its root object set is filled by `fill`.
///
/// # Errors
/// As [`engine::spa::create()`].
pub fn create_pool(env: &Env, name: &str, tops: Vec<TopSpec>, fill: FillRoot<'_>) -> Result<Arc<Spa>> {
    let spec = PoolSpec { tops, ..PoolSpec::default() };
    let new = NewPool {
        name: name.into(),
        version: 5000,
        features: zcommon::features::of_openzfs_2_3(),
        layout: spec.lay_out(0, 4, &mut || env.guid())?,
        hostid: 1,
        hostname: "host".into(),
        command: format!("zpool create {name}"),
    };
    create(env, new, fill)
}

/// A new pool on one image in a directory, without a file system.
///
/// # Errors
/// As [`engine::spa::create()`].
pub fn create_dir(dir: &Path, name: &str, size: u64) -> Result<Arc<Spa>> {
    let env = Env::system(64 << 20)?;
    let vdev = VdevSpec::Leaf(leaf(&dir.join("disk1"), size));
    let top = TopSpec { vdev, class: AllocBias::Normal, ashift: None };
    create_pool(&env, name, vec![top], &|_, _| Ok(()))
}
