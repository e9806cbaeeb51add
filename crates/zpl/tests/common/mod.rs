//! A pool on one file whose root file system is written.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::dmu::LiveObjset;
use engine::dsl::props::PropValue;
use engine::dsl::write::Tasks;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::spa::layout::{PoolSpec, TopSpec, VdevSpec};
use engine::spa::{NewPool, Pool, Spa};
use engine::vdev::config::AllocBias;
use engine::zap::Zap;
use ondisk::ObjsetType;
use ondisk::dsl::DslDir;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use testkit::pools;
use zpl::write::{FsWriter, NewFs, Options, create_fs};
use zpl::{Filesystem, Time};

pub struct Bench {
    pub dir: tempfile::TempDir,
    pub env: Env,
    pub spa: Arc<Spa>,
    pub objset: Arc<LiveObjset>,
}

fn root_dataset(spa: &Spa) -> u64 {
    let directory = Zap::open(&spa.mos.view().object(MOS_DIRECTORY_OBJECT).unwrap()).unwrap();
    let dir = spa.mos.handle(directory.need(mos::ROOT_DATASET).unwrap()).unwrap();
    DslDir::from_bytes(dir.dnode().bonus()).unwrap().head_dataset_obj
}

impl Bench {
    pub fn new(size: u64, new: impl FnOnce(&mut NewFs)) -> Self {
        Self::on(None, |dir| VdevSpec::Leaf(pools::leaf(&dir.join("disk1"), size)), new)
    }

    /// A pool on the vdev that `vdev` makes in a directory.
    pub fn on(
        ashift: Option<u32>,
        vdev: impl FnOnce(&Path) -> VdevSpec,
        new: impl FnOnce(&mut NewFs),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::system(64 << 20).unwrap();
        let top = TopSpec { vdev: vdev(dir.path()), class: AllocBias::Normal, ashift };
        let mut fs = NewFs::new(Time { sec: 1_700_000_000, nsec: 5 }, 99);
        new(&mut fs);
        let fill = |objset: &Arc<LiveObjset>, tx: &engine::dmu::Tx| create_fs(objset, tx, &fs);
        let spa = pools::create_pool(&env, "wpool", vec![top], &fill).unwrap();
        let objset = Arc::clone(&spa.datasets.open(&*spa, root_dataset(&spa)).unwrap().objset);
        spa.sync().unwrap();
        Self { dir, env, spa, objset }
    }

    pub fn writer(&self, options: Options) -> Arc<FsWriter> {
        let txs = Arc::clone(&self.spa);
        FsWriter::open(&self.objset, txs, Arc::clone(&self.env.clock), options, 3).unwrap()
    }

    /// Sets a number property of the root file system.
    pub fn set(&self, name: &'static str, value: u64) {
        self.set_of("wpool", &[(name, value)]);
    }

    /// Sets number properties of a file system.
    pub fn set_of(&self, fs: &str, props: &[(&'static str, u64)]) {
        let (fs, all) =
            (fs.to_owned(), Vec::from_iter(props.iter().map(|p| (p.0, Some(PropValue::Number(p.1))))));
        self.spa.dsl_task(move |tasks| tasks.set(&fs, &all, SettingSource::Local)).unwrap();
    }

    /// Creates a file system below the root; its name.
    pub fn child(&self, name: &str) -> String {
        let (name, fs) = (format!("wpool/{name}"), pools::new_fs(&self.env));
        let new = name.clone();
        let create = move |tasks: &Tasks<'_>| {
            tasks.create(&new, ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &fs))
        };
        self.spa.dsl_task(create).unwrap();
        name
    }

    /// Bytes that a file system and everything below it use, as a fresh reader finds it.
    pub fn used(&self, fs: &str) -> u64 {
        self.spa.sync().unwrap();
        self.open_pool().dsl.dataset(fs).unwrap().dir().unwrap().phys.used_bytes
    }

    fn open_pool(&self) -> Arc<Pool> {
        let dirs: Vec<PathBuf> = vec![self.dir.path().to_owned()];
        let env = Env::system(32 << 20).unwrap();
        zutil::import::open_pool(&env, &dirs, "wpool", engine::spa::OpenOptions::default()).unwrap()
    }

    /// The state on disk, as a fresh reader finds it.
    pub fn reader(&self) -> Arc<Filesystem> {
        Filesystem::open(&self.open_pool().dsl.dataset("wpool").unwrap()).unwrap()
    }

    /// Real zdb's output; empty (with a notice) where there is none.
    pub fn zdb(&self, args: &[&str]) -> String {
        let mut command = testkit::zdb::command("zdb");
        let out = command.args(["-e", "-p"]).arg(self.dir.path()).args(args).output();
        let Ok(out) = out else {
            println!("SKIPPED: no zdb here");
            return String::new();
        };
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "zdb {args:?}: {}\n{text}", out.status);
        text
    }
}

/// A pool of a version without features, on one disk.
pub fn old_pool(dir: &Path, version: u64, change: impl FnOnce(&mut NewFs)) -> Arc<Spa> {
    let env = Env::system(64 << 20).unwrap();
    let vdev = VdevSpec::Leaf(pools::leaf(&dir.join("disk1"), 128 << 20));
    let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }];
    let new = NewPool {
        name: "old".into(),
        label_name: None,
        version,
        features: Vec::new(),
        layout: PoolSpec { tops, ..PoolSpec::default() }.lay_out(0, 4, &mut || env.guid()).unwrap(),
        hostid: 1,
        hostname: "host".into(),
        command: "zpool create old".into(),
    };
    let mut fs = NewFs::new(Time { sec: 1_700_000_000, nsec: 5 }, 99);
    (fs.projects, fs.count_objects) = (false, false);
    change(&mut fs);
    engine::spa::create(&env, new, &|objset, tx| create_fs(objset, tx, &fs)).unwrap()
}
