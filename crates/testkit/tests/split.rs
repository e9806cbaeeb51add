//! `zpool split`: both pools whole, judged by real zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use engine::Kind;
use engine::dsl::props::PropValue;
use engine::env::Env;
use engine::spa::Spa;
use engine::spa::layout::{PoolSpec, TopSpec, VdevSpec};
use engine::spa::scrub::ScanCommand;
use engine::spa::split::Split;
use engine::spa::sweep::{SweepCommand, SweepKind, TrimOptions};
use engine::vdev::config::AllocBias;
use testkit::pattern::Pattern;
use testkit::zdb::Judge;
use testkit::{pools, zdb};

const POOL: &str = "old";
const BLOCKS: usize = 100;
const BLOCK: usize = 8 << 10;
const SIZE: u64 = 80 << 20;
const FILE: Pattern = Pattern { blocks: BLOCKS, block: BLOCK };

struct Bench {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
    file: (u64, u64),
}

fn scrub(spa: &Spa) {
    spa.scans().start(ScanCommand::Scrub).unwrap();
    (0..1000).take_while(|_| spa.scans().is_scanning()).for_each(|_| spa.sync().unwrap());
    let view = engine::dsl::write::MosView { mos: &spa.mos };
    let scan = engine::dsl::write::scan_state::load(&view).unwrap().unwrap();
    assert_eq!((scan.processed, scan.errors), (0, 0));
}

fn check(dir: &Path, pool: &str) {
    for judge in [Judge::USUAL, Judge::NEWEST] {
        if judge.installed() {
            judge.verify(dir, pool).unwrap();
            let text = judge.run(dir, pool, &["-d"]).unwrap();
            assert!(!text.contains("leaked"), "{text}");
        }
    }
}

impl Bench {
    /// Two mirrors with a log between them, and a spare.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let leaf = |number: u32| pools::leaf(&dir.path().join(format!("disk{number}")), SIZE);
        let mirror = |numbers: [u32; 2]| VdevSpec::Mirror(numbers.map(leaf).to_vec());
        let top = |vdev, class| TopSpec { vdev, class, ashift: None };
        let tops = vec![
            top(mirror([1, 2]), AllocBias::Normal),
            top(VdevSpec::Leaf(leaf(5)), AllocBias::Log),
            top(mirror([3, 4]), AllocBias::Normal),
        ];
        let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
        let spares = PoolSpec { spares: vec![leaf(6)], ..PoolSpec::default() };
        spa.vdevs().add(spares, true).unwrap();
        let file = FILE.create(&spa, &format!("{POOL}/data"));
        Self { dir, spa, file }
    }

    fn guid(&self, name: &str) -> u64 {
        let path = self.dir.path().join(name);
        let tree = self.spa.pool.tree();
        tree.config.walk().into_iter().find(|v| v.path.as_deref() == path.to_str()).unwrap().guid
    }

    fn wish(&self, disks: &[&str]) -> Split {
        let comment = ("comment".to_owned(), PropValue::Text("half".to_owned()));
        let leaves = disks.iter().map(|disk| self.guid(disk)).collect();
        Split { name: "new".to_owned(), leaves, props: vec![comment] }
    }

    fn shape(spa: &Spa) -> Vec<(String, usize)> {
        let tree = spa.pool.tree();
        let tops = tree.config.children.iter();
        tops.map(|top| (top.kind.name().to_owned(), top.children.len())).collect()
    }
}

fn shape(all: &[(&str, usize)]) -> Vec<(String, usize)> {
    all.iter().map(|(kind, children)| ((*kind).to_owned(), *children)).collect()
}

#[test]
fn both_halves_are_pools() {
    let bench = Bench::new();
    let guid = bench.spa.vdevs().split(bench.wish(&["disk2", "disk4"])).unwrap();
    assert_eq!(Bench::shape(&bench.spa), shape(&[("file", 0), ("file", 0), ("file", 0)]));
    let dir = bench.dir.path();
    check(dir, "new");
    // The old pool stays in use, and the new one is not affected.
    FILE.add(&bench.spa, bench.file.0);
    let spa = pools::import_dir(dir, "new").unwrap();
    assert_eq!((spa.guid(), Bench::shape(&spa)), (guid, shape(&[("file", 0), ("hole", 0), ("file", 0)])));
    assert_eq!(spa.config.lock().facts().comment.as_deref(), Some("half"));
    assert!(spa.spares().entries().unwrap().is_empty() && bench.spa.spares().entries().unwrap().len() == 1);
    let dataset = bench.file.0;
    assert!(FILE.is_in(&spa, bench.file) && FILE.is_in(&bench.spa, bench.file));
    FILE.add(&spa, dataset);
    FILE.add(&bench.spa, dataset);
    for spa in [&spa, &bench.spa] {
        assert!(FILE.is_in(spa, bench.file));
        scrub(spa);
        spa.export().unwrap();
    }
    let Bench { dir, spa: old, .. } = bench;
    drop((spa, old));
    check(dir.path(), "new");
    check(dir.path(), POOL);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    assert!(FILE.is_in(&spa, bench.file));
}

#[test]
fn the_new_pool_says_where_it_is_from() {
    if !zdb::installed() {
        return;
    }
    let bench = Bench::new();
    let from = bench.spa.guid();
    bench.spa.vdevs().split(bench.wish(&["disk1", "disk3"])).unwrap();
    let label = zdb::run(bench.dir.path(), "new", &["-C"]).unwrap();
    assert!(label.contains(&format!("split_guid: {from}")), "{label}");
    let history = zdb::run(bench.dir.path(), "new", &["-h"]).unwrap();
    assert!(history.contains(&format!("split from pool {POOL}")), "{history}");
    pools::import_dir(bench.dir.path(), "new").unwrap().export().unwrap();
    let label = zdb::run(bench.dir.path(), "new", &["-C"]).unwrap();
    assert!(!label.contains("split"), "{label}");
}

#[test]
fn power_lost_before_the_old_pool_knows_leaves_both_whole() {
    let bench = Bench::new();
    bench.spa.sync().unwrap();
    let cut = tempfile::tempdir().unwrap();
    let copy = |names: &[&str]| {
        for name in names {
            std::fs::copy(bench.dir.path().join(name), cut.path().join(name)).unwrap();
        }
    };
    copy(&["disk1", "disk3", "disk5", "disk6"]);
    bench.spa.vdevs().split(bench.wish(&["disk2", "disk4"])).unwrap();
    copy(&["disk2", "disk4"]);
    let new = pools::import_dir(cut.path(), "new").unwrap();
    let old = pools::import_dir(cut.path(), POOL).unwrap();
    assert_eq!(Bench::shape(&old), shape(&[("mirror", 2), ("file", 0), ("mirror", 2)]));
    let dataset = bench.file.0;
    for spa in [&new, &old] {
        assert!(FILE.is_in(spa, bench.file));
        FILE.add(spa, dataset);
        assert!(FILE.is_in(spa, bench.file));
    }
    scrub(&new);
    let leaves = bench.wish(&["disk1", "disk3"]).leaves;
    let gone: Vec<u64> =
        old.pool.tree().leaves().filter(|leaf| leaf.device().is_none()).map(|l| l.guid).collect();
    assert_eq!(gone.len(), leaves.len());
    gone.into_iter().for_each(|leaf| old.disks().detach(leaf).unwrap());
    scrub(&old);
    [new, old].into_iter().for_each(|spa| spa.export().unwrap());
    check(cut.path(), "new");
    check(cut.path(), POOL);
}

#[test]
fn devices_that_are_no_half_are_refused() {
    let bench = Bench::new();
    let refused = |disks: &[&str], wanted: &str| {
        let why = bench.spa.vdevs().split(bench.wish(disks)).unwrap_err();
        assert_eq!(why.what(), wanted, "{disks:?}");
    };
    let invalid = "invalid argument for this pool operation";
    refused(&["disk1"], invalid);
    refused(&["disk1", "disk2"], invalid);
    refused(&["disk1", "disk5"], invalid);
    refused(&["disk1", "disk3", "disk5"], invalid);
    bench.spa.disks().offline(bench.guid("disk2"), true).unwrap();
    refused(&["disk2", "disk3"], invalid);
    refused(&["disk1", "disk3"], "pool is busy");
    bench.spa.sync().unwrap();
    assert!(FILE.is_in(&bench.spa, bench.file));
    bench.spa.export().unwrap();
    check(bench.dir.path(), POOL);
}

#[test]
fn a_checkpoint_forbids_it_and_an_initialization_does_not() {
    let bench = Bench::new();
    bench.spa.checkpoint().take().unwrap();
    let why = bench.spa.vdevs().split(bench.wish(&["disk1", "disk3"])).unwrap_err();
    assert_eq!((why.kind(), why.what()), (Kind::Exists, "checkpoint exists"));
    bench.spa.checkpoint().discard().unwrap();
    (0..10).for_each(|_| bench.spa.sync().unwrap());
    let leaves = bench.wish(&["disk1", "disk3"]).leaves;
    bench
        .spa
        .free_space()
        .sweep(SweepKind::Initialize, SweepCommand::Start, TrimOptions::default(), &leaves)
        .unwrap();
    bench.spa.vdevs().split(bench.wish(&["disk1", "disk3"])).unwrap();
    assert_eq!(bench.spa.free_space().left(SweepKind::Initialize, &[]), None);
    bench.spa.export().unwrap();
    check(bench.dir.path(), "new");
    check(bench.dir.path(), POOL);
}
