//! The error log when datasets and features change: promotions, destroyed datasets, object numbers that come again, and logs of
//! pools without `head_errlog`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::dmu::NewObject;
use engine::dsl::write::Encryption;
use engine::env::Env;
use engine::spa::errlog::{self, LoggedError};
use engine::spa::layout::{PoolSpec, TopSpec, VdevSpec};
use engine::spa::scrub::ScanCommand;
use engine::spa::{NewPool, Spa};
use engine::vdev::config::AllocBias;
use ondisk::{ErrBookmark, ObjectType, ObjsetType};
use testkit::pools;
use zcommon::features::Feature;

const POOL: &str = "faulty";
const BLOCK: usize = 8 << 10;
/// The mebibyte of the disk that is damaged.
const BAD: u64 = 11;

struct Bench {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
    /// The dataset with the damaged file.
    data: u64,
    /// The file's object number.
    file: u64,
}

impl Bench {
    /// A pool with a file, a snapshot `data@s` of it and a clone `clone`, and damage in both.
    fn new(without: &[Feature]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vdev = VdevSpec::Leaf(pools::leaf(&dir.path().join("disk1"), 96 << 20));
        let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }];
        let (spec, env) = (PoolSpec { tops, ..PoolSpec::default() }, Env::system(0).unwrap());
        let mut features = zcommon::features::of_openzfs_2_3();
        features.retain(|feature| !without.contains(feature));
        let new = NewPool {
            name: POOL.into(),
            label_name: None,
            version: 5000,
            features,
            layout: spec.lay_out(0, 4, &mut || env.guid()).unwrap(),
            hostid: 1,
            hostname: "host".into(),
            command: format!("zpool create {POOL}"),
        };
        let spa = engine::spa::create_encrypted(&env, new, Encryption::default(), &|_, _| Ok(())).unwrap();
        let data =
            spa.dsl_task(|t| t.create("faulty/data", ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
        let live = spa.datasets.open(&*spa, data).unwrap();
        let tx = spa.begin().unwrap();
        let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, BLOCK as u64);
        let file = live.objset.create_object(&tx, new).unwrap();
        let block: Vec<u8> = (0..BLOCK).map(|at| (at * 7 % 251) as u8).collect();
        for number in 0..1400 {
            let mut block = block.clone();
            stdx::rng::Rng::new(number).fill(&mut block);
            file.write(&tx, number * BLOCK as u64, &block).unwrap();
        }
        let file = file.number;
        drop((tx, live));
        spa.sync().unwrap();
        spa.dsl_task(|t| t.snapshot(&["faulty/data@s"], &[])).unwrap();
        spa.dsl_task(|t| t.clone_snapshot("faulty/data@s", "faulty/clone")).unwrap();
        spa.sync().unwrap();
        let bench = Self { dir, spa, data, file };
        let device = pools::open(&bench.dir.path().join("disk1"));
        blkdev::write_at(&*device, BAD << 20, &vec![0x5a; 1 << 20]).unwrap();
        bench.spa.pool.tree().leaves().for_each(|leaf| leaf.changed(0, u64::MAX));
        bench.scan(ScanCommand::Scrub);
        assert!(bench.logged().len() > 20, "{:?}", bench.logged());
        bench
    }

    fn scan(&self, command: ScanCommand) {
        self.spa.scans().start(command).unwrap();
        for _ in 0..1000 {
            if !self.spa.scans().is_scanning() && !self.spa.error_log().is_scrubbing() {
                return self.spa.sync().unwrap();
            }
            self.spa.sync().unwrap();
        }
        panic!("the scan does not end");
    }

    fn logged(&self) -> Vec<LoggedError> {
        errlog::errors(&self.spa.view().unwrap(), &mut Vec::new())
    }

    fn of(&self, dataset: u64) -> Vec<LoggedError> {
        self.logged().into_iter().filter(|error| error.objset == dataset).collect()
    }
}

#[test]
fn errors_follow_their_snapshots_and_go_with_the_last_dataset() {
    let bench = Bench::new(&[]);
    let spa = &bench.spa;
    let clone = spa.pool.dsl.dataset("faulty/clone").unwrap().number;
    let until = spa.pool.dsl.dataset("faulty/data@s").unwrap().phys.creation_txg;
    // Errors in the blocks of the snapshot, and of what was written since.
    let split = |dataset: u64| -> (Vec<_>, Vec<_>) {
        bench.of(dataset).into_iter().partition(|error| error.birth.is_some_and(|birth| birth <= until))
    };
    let (old, new) = split(bench.data);
    assert!(old.len() > 20 && split(clone).0.is_empty(), "{old:?}");
    spa.dsl_task(|t| t.promote("faulty/clone")).unwrap();
    spa.sync().unwrap();
    assert_eq!(split(bench.data), (Vec::new(), new.clone()), "the snapshot is the promoted clone's");
    let moved: Vec<_> = old.iter().map(|error| LoggedError { objset: clone, ..*error }).collect();
    assert_eq!(split(clone).0, moved);
    spa.dsl_task(|t| t.promote("faulty/data")).unwrap();
    spa.sync().unwrap();
    assert_eq!(split(bench.data), (old, new), "and back");
    spa.dsl_task(|t| t.destroy("faulty/clone", false)).unwrap();
    spa.dsl_task(|t| t.destroy("faulty/data@s", false)).unwrap();
    spa.dsl_task(|t| t.destroy("faulty/data", false)).unwrap();
    (0..4).for_each(|_| spa.sync().unwrap());
    assert_eq!(bench.of(bench.data), [], "no dataset has them");
    let log = spa.sync_task(|spa, tx| spa.datasets.at(tx, spa).zap_word(1, "errlog_last")).unwrap().unwrap();
    let key = engine::zap::int_name(bench.data);
    let list = spa.sync_task(move |spa, tx| spa.datasets.at(tx, spa).zap_word(log, key.as_str())).unwrap();
    assert_eq!(list, None, "and the list is gone");
    spa.export().unwrap();
}

#[test]
fn a_flat_log_gets_lists_with_births_when_the_feature_is_enabled() {
    let mut bench = Bench::new(&[Feature::HeadErrlog]);
    let of_file = |bench: &Bench| -> BTreeSet<u64> {
        let all = bench.logged().into_iter();
        all.filter(|error| (error.object, error.level) == (bench.file, 0)).map(|error| error.blkid).collect()
    };
    let flat = of_file(&bench);
    assert!(flat.len() > 20 && bench.logged().iter().all(|error| error.birth.is_none()));
    bench.spa.props().enable_features(vec![Feature::HeadErrlog]).unwrap();
    bench.spa.export().unwrap();
    bench.spa = pools::import_dir(bench.dir.path(), POOL).unwrap();
    assert_eq!(of_file(&bench), flat);
    let listed = bench.of(bench.data);
    assert!(listed.len() >= flat.len() && listed.iter().all(|error| error.birth > Some(0)), "{listed:?}");
    bench.scan(ScanCommand::ScrubErrors);
    assert_eq!(of_file(&bench), flat, "a scrub of the log understands it");
    bench.spa.export().unwrap();
}

#[test]
fn entries_without_a_birth_get_it_and_those_of_other_objects_go() {
    let bench = Bench::new(&[]);
    let (before, data) = (bench.of(bench.data), bench.data);
    let unborn = *before.iter().find(|error| error.object == bench.file).unwrap();
    bench
        .spa
        .sync_task(move |spa, tx| {
            let at = spa.datasets.at(tx, spa);
            let log = at.zap_word(1, "errlog_last")?.unwrap();
            let list = at.zap_word(log, engine::zap::int_name(data).as_str())?.unwrap();
            let LoggedError { object, level, blkid, .. } = unborn;
            at.zap_set(list, &ErrBookmark { object, level, blkid, birth: 0 }.to_name(), "")?;
            // The log itself has the number of a dataset that was destroyed.
            let other = at.create_zap(ObjectType::ERROR_LOG)?;
            at.zap_set(other, &ErrBookmark { object: 1, level: 0, blkid: 0, birth: 5 }.to_name(), "")?;
            at.zap_set(log, &engine::zap::int_name(log), other)
        })
        .unwrap();
    assert_eq!(bench.of(data).len(), before.len() + 1);
    bench.scan(ScanCommand::ScrubErrors);
    assert_eq!(bench.of(data), before, "each once");
    assert!(
        !bench.logged().iter().any(|error| (error.object, error.birth) == (1, Some(5))),
        "it is no dataset's"
    );
    bench.spa.export().unwrap();
}
