//! A pool on one file whose root file system is written.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use blkdev::{FileDevice, OpenMode};
use engine::dmu::live::policy::Policy;
use engine::dmu::live::sync::BlockOps;
use engine::dmu::{LiveObjset, Tx};
use engine::env::Env;
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{DatasetSync, NewPool, Spa, create};
use engine::vdev::config::AllocBias;
use engine::zap::Zap;
use engine::zio::Form;
use engine::{Result, sa};
use ondisk::dsl::{DslDataset, DslDir};
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::{Blkptr, ObjsetType};
use zpl::write::{FsWriter, NewFs, Options, create_fs};
use zpl::{Filesystem, Time};

pub struct Bench {
    pub dir: tempfile::TempDir,
    pub env: Env,
    pub spa: Arc<Spa>,
    pub objset: Arc<LiveObjset>,
}

#[derive(Debug)]
struct Sync {
    number: u64,
    objset: Arc<LiveObjset>,
}

struct Ops<'a>(&'a Spa);

impl BlockOps for Ops<'_> {
    fn born(&self, _: &Blkptr, _: &Tx) -> Result<()> {
        Ok(())
    }

    fn killed(&self, bp: &Blkptr, tx: &Tx) -> Result<()> {
        self.0.free_block(bp, tx)
    }
}

impl DatasetSync for Sync {
    fn sync(&self, spa: &Spa, tx: &Tx) -> Result<()> {
        if !self.objset.is_dirty(tx.txg()) {
            return Ok(());
        }
        let changed = self.objset.sync_objects(tx, &Ops(spa))?;
        sa::usage::account(&self.objset, &changed, tx, 77)?;
        self.objset.sync_objects(tx, &Ops(spa))?;
        let bp = self.objset.sync_root(tx, &Ops(spa))?;
        let handle = spa.mos.handle(self.number)?;
        let mut phys = DslDataset::from_bytes(handle.dnode().bonus()).unwrap();
        phys.bp = bp;
        handle.set_bonus(tx, &phys.to_bytes())
    }

    fn mos_used(&self, _: [i64; 3], _: &Tx) -> Result<()> {
        Ok(())
    }

    fn is_dirty(&self, txg: u64) -> bool {
        self.objset.is_dirty(txg)
    }
}

fn leaf(path: &Path, size: u64) -> LeafSpec {
    std::fs::File::create(path).unwrap().set_len(size).unwrap();
    let options = blkdev::OpenOptions { mode: OpenMode::ReadWrite, ..blkdev::OpenOptions::default() };
    let device = FileDevice::open(path, options).unwrap();
    let path = path.to_str().unwrap().to_owned();
    LeafSpec { path, is_disk: false, whole_disk: None, devid: None, device: Arc::new(device) }
}

fn root_dataset(spa: &Spa) -> u64 {
    let directory = Zap::open(&spa.mos.view().object(MOS_DIRECTORY_OBJECT).unwrap()).unwrap();
    let dir = spa.mos.handle(directory.need(mos::ROOT_DATASET).unwrap()).unwrap();
    DslDir::from_bytes(dir.dnode().bonus()).unwrap().head_dataset_obj
}

impl Bench {
    pub fn new(size: u64, new: impl FnOnce(&mut NewFs)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::system(64 << 20).unwrap();
        let vdev = VdevSpec::Leaf(leaf(&dir.path().join("disk1"), size));
        let spec = PoolSpec {
            tops: vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }],
            ..PoolSpec::default()
        };
        let layout = spec.lay_out(0, 4, &mut || env.guid()).unwrap();
        let newer = ["physical_rewrite", "dynamic_gang_header", "block_cloning_endian"];
        let features = zcommon::features::FEATURES.iter().copied();
        let pool = NewPool {
            name: "wpool".into(),
            version: 5000,
            features: features.filter(|f| !newer.contains(&f.info().name)).collect(),
            layout,
            hostid: 1,
            hostname: "host".into(),
            command: "zpool create wpool".into(),
        };
        let spa = create(&env, pool, &|_, _| Ok(())).unwrap();
        let number = root_dataset(&spa);
        let objset =
            LiveObjset::create(&spa.pool.arc, number, ObjsetType::Zfs, 4096, Form::Logical, Policy::dataset());
        spa.set_datasets(Arc::new(Sync { number, objset: Arc::clone(&objset) }));
        let mut fs = NewFs::new(Time { sec: 1_700_000_000, nsec: 5 }, 99);
        new(&mut fs);
        {
            let tx = spa.begin().unwrap();
            create_fs(&objset, &tx, &fs).unwrap();
        }
        spa.sync().unwrap();
        Self { dir, env, spa, objset }
    }

    pub fn writer(&self, options: Options) -> Arc<FsWriter> {
        let txs = Arc::clone(&self.spa);
        FsWriter::open(&self.objset, txs, Arc::clone(&self.env.clock), options, 3).unwrap()
    }

    /// What is on disk, as a fresh reader finds it.
    pub fn reader(&self) -> Arc<Filesystem> {
        let dirs: Vec<PathBuf> = vec![self.dir.path().to_owned()];
        let env = Env::system(32 << 20).unwrap();
        let pool = zutil::import::open_pool(&env, &dirs, "wpool", engine::spa::OpenOptions::default()).unwrap();
        Filesystem::open(&pool.dsl.dataset("wpool").unwrap()).unwrap()
    }

    /// Real zdb's output; empty (and said so) where there is none.
    pub fn zdb(&self, args: &[&str]) -> String {
        let out = Command::new("zdb").args(["-e", "-p"]).arg(self.dir.path()).args(args).output();
        let Ok(out) = out else {
            println!("SKIPPED: no zdb here");
            return String::new();
        };
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "zdb {args:?}: {}\n{text}", out.status);
        text
    }
}
