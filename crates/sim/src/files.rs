//! A pool on files of this machine, with its root file system open, for demo, benchmarks and tests.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use blkdev::{Device, FileDevice, OpenMode, OpenOptions};
use engine::Result;
use engine::env::Env;
use engine::spa::{ImportOptions, Spa, import};
use zpl::Time;
use zpl::write::{FsWriter, NewFs, Overrides, create_fs, mount};

use crate::world::{Shape, pool_on};

/// The pool's name.
pub const POOL: &str = "tank";

/// A pool with a sync thread, and its root file system.
#[derive(Debug)]
pub struct FilePool {
    /// The pool.
    pub spa: Arc<Spa>,
    /// Its root file system.
    pub fs: Arc<FsWriter>,
}

/// New files `disk1`, `disk2`, … of `size` bytes in `dir`.
pub fn disks(dir: &Path, count: usize, size: u64) -> Result<Vec<Device>> {
    let one = |number: usize| -> Result<Device> {
        let path = dir.join(format!("disk{number}"));
        fs::File::create(&path)?.set_len(size)?;
        Ok(Arc::new(FileDevice::open(&path, writable())?))
    };
    (1..=count).map(one).collect()
}

fn writable() -> OpenOptions {
    OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() }
}

impl FilePool {
    /// A new pool on `devices`.
    pub fn create(env: &Env, shape: Shape, devices: Vec<Device>) -> Result<Self> {
        Self::create_with(env, shape, devices, |new| new)
    }

    /// The same with a root file system whose properties `change` derives from the defaults.
    pub fn create_with(
        env: &Env,
        shape: Shape,
        devices: Vec<Device>,
        change: impl FnOnce(NewFs) -> NewFs,
    ) -> Result<Self> {
        let (sec, nsec) = env.clock.wall();
        // As OpenZFS creates a pool's root: no feature is enabled yet at that moment.
        let new = change(NewFs { projects: false, ..NewFs::new(Time { sec, nsec }, env.guid()) });
        let spa = pool_on(env, (POOL, shape), devices, &[], &|objset, tx| create_fs(objset, tx, &new))?;
        spa.start_thread()?;
        let fs = mount(&spa, POOL, Overrides::default())?;
        Ok(Self { spa, fs })
    }

    /// Unmounts and exports.
    pub fn export(self) -> Result<()> {
        let Self { spa, fs } = self;
        fs.unmount()?;
        drop(fs);
        spa.export()
    }
}

/// Imports the pool on the files in `dir` for writing, without a thread.
pub fn import_in(env: &Env, dir: &Path) -> Result<Arc<Spa>> {
    let candidate = zutil::import::select(zutil::import::candidates(&[dir.to_path_buf()]), POOL)?;
    let host = ImportOptions { hostid: 1, hostname: "sim".into(), ..ImportOptions::default() };
    import(env, zutil::import::source_with(&candidate, writable()), &host)
}
