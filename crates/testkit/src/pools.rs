//! Pools on image files in a directory: created, copied, imported for writing, changed.

#![expect(clippy::expect_used, reason = "a test that can't have its images can't go on")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use blkdev::{Device, FileDevice, OpenMode, OpenOptions};
use engine::Result;
use engine::dsl::write::Encryption;
use engine::env::Env;
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{FillRoot, ImportOptions, NewPool, Spa, create_encrypted, import};
use engine::vdev::config::AllocBias;
use zpl::Time;
use zpl::write::{NewFs, create_fs};
use zutil::import::{candidates, select, source_with};

/// Copies the files of a directory, preserving holes.
///
/// # Panics
/// If that fails.
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

/// Imports the pool on the images of a directory for writing, even if it was not exported; without a sync thread.
///
/// # Errors
/// Errors of [`engine::spa::import()`].
pub fn import_dir(dir: &Path, pool: &str) -> Result<Arc<Spa>> {
    import_at(dir, pool, engine::spa::OpenOptions::default())
}

/// Like [`import_dir`], at the requested state.
///
/// # Errors
/// Errors of [`engine::spa::import()`].
pub fn import_at(dir: &Path, pool: &str, open: engine::spa::OpenOptions) -> Result<Arc<Spa>> {
    import_in(&Env::system(64 << 20)?, dir, pool, open)
}

/// Like [`import_at`], in the caller's environment.
///
/// # Errors
/// Errors of [`engine::spa::import()`].
pub fn import_in(env: &Env, dir: &Path, pool: &str, open: engine::spa::OpenOptions) -> Result<Arc<Spa>> {
    // One of them was not exported by its creator. The one with a checkpoint was, although its checkpoint is
    // of an active pool.
    let force = !open.checkpoint;
    import_forced(env, dir, pool, open, force)
}

/// Like [`import_in`]; `force`: although another machine seems to use it.
///
/// # Errors
/// Errors of [`engine::spa::import()`].
pub fn import_forced(
    env: &Env,
    dir: &Path,
    pool: &str,
    open: engine::spa::OpenOptions,
    force: bool,
) -> Result<Arc<Spa>> {
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    let candidate = select(candidates(&[dir.to_path_buf()]), pool)?;
    let how = ImportOptions { open, hostid: 7, hostname: "elsewhere".into(), force, ..Default::default() };
    import(env, source_with(&candidate, options), &how)
}

/// An image file of `size` bytes, as a leaf of a new pool.
///
/// # Panics
/// If it cannot be created.
pub fn leaf(path: &Path, size: u64) -> LeafSpec {
    std::fs::File::create(path).and_then(|file| file.set_len(size)).expect("an image");
    let device = open(path);
    let path = path.to_string_lossy().into_owned();
    LeafSpec { path, is_disk: false, whole_disk: None, devid: None, device }
}

/// An image file as a writable device.
///
/// # Panics
/// If it cannot be opened.
pub fn open(path: &Path) -> Device {
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    Arc::new(FileDevice::open(path, options).expect("a device"))
}

/// A new pool with all features known to the real zdb; `fill` fills its root object set.
///
/// # Errors
/// Errors of [`engine::spa::create()`].
pub fn create_pool(env: &Env, name: &str, tops: Vec<TopSpec>, fill: FillRoot<'_>) -> Result<Arc<Spa>> {
    create_with(env, name, tops, Encryption::default(), fill)
}

fn create_with(
    env: &Env,
    name: &str,
    tops: Vec<TopSpec>,
    encryption: Encryption,
    fill: FillRoot<'_>,
) -> Result<Arc<Spa>> {
    let spec = PoolSpec { tops, ..PoolSpec::default() };
    let new = NewPool {
        name: name.into(),
        label_name: None,
        version: 5000,
        features: zcommon::features::of_openzfs_2_3(),
        layout: spec.lay_out(0, 4, &mut || env.guid())?,
        hostid: 1,
        hostname: "host".into(),
        command: format!("zpool create {name}"),
    };
    create_encrypted(env, new, encryption, fill)
}

/// A new pool on one image in a directory, without a file system.
///
/// # Errors
/// Errors of [`engine::spa::create()`].
pub fn create_dir(dir: &Path, name: &str, size: u64) -> Result<Arc<Spa>> {
    create_pool(&Env::system(64 << 20)?, name, one_image(dir, size), &|_, _| Ok(()))
}

/// Like [`create_dir`], in the caller's environment.
///
/// # Errors
/// Errors of [`engine::spa::create()`].
pub fn create_in(env: &Env, dir: &Path, name: &str, size: u64) -> Result<Arc<Spa>> {
    create_pool(env, name, one_image(dir, size), &|_, _| Ok(()))
}

/// A new pool on one image (`disk1`) in a directory, with a file system at its root.
///
/// # Errors
/// Errors of [`engine::spa::create_encrypted()`].
pub fn create_fs_dir(dir: &Path, name: &str, size: u64, encryption: Encryption) -> Result<Arc<Spa>> {
    create_fs_on(one_image(dir, size), name, encryption)
}

/// Like [`create_fs_dir`], on other vdevs.
///
/// # Errors
/// Errors of [`engine::spa::create_encrypted()`].
pub fn create_fs_on(tops: Vec<TopSpec>, name: &str, encryption: Encryption) -> Result<Arc<Spa>> {
    let env = Env::system(64 << 20)?;
    let fs = new_fs(&env);
    create_with(&env, name, tops, encryption, &|objset, tx| create_fs(objset, tx, &fs))
}

fn one_image(dir: &Path, size: u64) -> Vec<TopSpec> {
    let vdev = VdevSpec::Leaf(leaf(&dir.join("disk1"), size));
    vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }]
}

/// The properties of a file system for tests.
pub fn new_fs(env: &Env) -> NewFs {
    NewFs::new(Time { sec: 1_700_000_000, nsec: 5 }, env.guid())
}
