//! Pools that we make, on a file.

use std::path::Path;
use std::sync::Arc;

use blkdev::{FileDevice, OpenMode, OpenOptions};
use engine::Result;
use engine::dsl::write::{Encryption, Tasks};
use engine::env::Env;
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{ImportOptions, NewPool, Spa, create_encrypted, import};
use engine::vdev::config::AllocBias;
use zcommon::features::of_openzfs_2_3;
use zpl::Time;
use zpl::write::{NewFs, create_fs};
use zutil::import::{candidates, select, source_with};

/// Bytes of cache of a pool made by a test.
const TEST_CACHE: u64 = 64 << 20;

fn options() -> OpenOptions {
    OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() }
}

/// A file system as a test wants it.
pub fn new_fs(env: &Env) -> NewFs {
    NewFs::new(Time { sec: 1_700_000_000, nsec: 5 }, env.guid())
}

/// Makes pool `name` on a new file of `size` bytes in `dir`, with a file system at its root.
pub fn pool(dir: &Path, name: &str, size: u64, encryption: Encryption) -> Result<Arc<Spa>> {
    let env = Env::system(TEST_CACHE)?;
    let path = dir.join("disk");
    std::fs::File::create(&path)?.set_len(size)?;
    let device = FileDevice::open(&path, options()).map_err(|e| engine::Error::corrupt(e.to_string()))?;
    let leaf = LeafSpec {
        path: path.to_string_lossy().into_owned(),
        is_disk: false,
        whole_disk: None,
        devid: None,
        device: Arc::new(device),
    };
    let tops = vec![TopSpec { vdev: VdevSpec::Leaf(leaf), class: AllocBias::Normal, ashift: None }];
    let new = NewPool {
        name: name.into(),
        version: 5000,
        features: of_openzfs_2_3(),
        layout: PoolSpec { tops, ..PoolSpec::default() }.lay_out(0, 4, &mut || env.guid())?,
        hostid: 1,
        hostname: "host".into(),
        command: format!("zpool create {name}"),
    };
    let fs = new_fs(&env);
    create_encrypted(&env, new, encryption, &|objset, tx| create_fs(objset, tx, &fs))
}

/// Imports pool `name` in `dir` for writing, also one that was not exported.
pub fn reopen(dir: &Path, name: &str) -> Result<Arc<Spa>> {
    let candidate = select(candidates(&[dir.to_path_buf()]), name)?;
    let how = ImportOptions { force: true, ..ImportOptions::default() };
    import(&Env::system(TEST_CACHE)?, source_with(&candidate, options()), &how)
}

/// Changes datasets in syncing context.
pub fn task<T: Send + 'static>(
    spa: &Spa,
    work: impl FnOnce(&Tasks<'_>) -> Result<T> + Send + 'static,
) -> Result<T> {
    spa.sync_task(move |spa, tx| {
        let at = spa.datasets.at(tx, spa);
        work(&Tasks { at, datasets: &spa.datasets, pool: &spa.pool.name })
    })
}
