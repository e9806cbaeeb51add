//! Pools whose devices have grown: their new size, real zdb's verdict, and automatic growth.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use engine::dmu::NewObject;
use engine::dsl::props::PropValue;
use engine::env::Env;
use engine::spa::growth::expandable;
use engine::spa::layout::{LeafSpec, TopSpec, VdevSpec};
use engine::spa::{Pool, Spa};
use engine::vdev::config::AllocBias;
use ondisk::{ObjectType, ObjsetType};
use stdx::rng::Rng;
use testkit::{pools, zdb};

const POOL: &str = "grown";
const BEFORE: u64 = 64 << 20;
const AFTER: u64 = 160 << 20;
/// Bytes that a disk's labels take.
const LABELS: u64 = 9 << 19;
const BLOCK: usize = 128 << 10;

/// A pool of one vdev.
struct Bench {
    dir: tempfile::TempDir,
    disks: Vec<PathBuf>,
    spa: Arc<Spa>,
}

impl Bench {
    fn new(count: usize, make: impl FnOnce(Vec<LeafSpec>) -> VdevSpec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disks: Vec<_> = (1..=count).map(|n| dir.path().join(format!("disk{n}"))).collect();
        let leaves = disks.iter().map(|disk| pools::leaf(disk, BEFORE)).collect();
        let tops = vec![TopSpec { vdev: make(leaves), class: AllocBias::Normal, ashift: None }];
        let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
        Self { dir, disks, spa }
    }

    fn guid(&self, disk: usize) -> u64 {
        let (tree, path) = (self.spa.pool.tree(), self.disks[disk].to_str());
        tree.config.walk().into_iter().find(|vdev| vdev.path.as_deref() == path).unwrap().guid
    }

    /// Bytes of metaslabs, and expandable bytes.
    fn size(&self) -> (u64, u64) {
        let tree = self.spa.pool.tree();
        (self.spa.space.vdev_stats(0).unwrap().space, expandable(&tree, tree.config.children[0].guid))
    }

    fn online(&self, disk: usize) {
        self.spa.disks().online(self.guid(disk), None, true).unwrap();
    }
}

fn grow(disk: &Path) {
    std::fs::File::options().write(true).open(disk).unwrap().set_len(AFTER).unwrap();
}

/// Bytes in whole metaslabs of 16 MiB.
fn whole(bytes: u64) -> u64 {
    bytes - bytes % (16 << 20)
}

/// An object with that many random blocks; its numbers.
fn fill(spa: &Spa, blocks: usize) -> (u64, u64) {
    let name = format!("{POOL}/data");
    let number = spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
    let data = spa.datasets.open(spa, number).unwrap();
    let tx = spa.begin().unwrap();
    let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, BLOCK as u64);
    let object = data.objset.create_object(&tx, new).unwrap();
    drop(tx);
    let mut random = Rng::new(5);
    for at in 0..blocks {
        let tx = spa.begin().unwrap();
        object.write(&tx, (at * BLOCK) as u64, &bytes(&mut random)).unwrap();
    }
    spa.sync().unwrap();
    (number, object.number)
}

fn bytes(random: &mut Rng) -> Vec<u8> {
    (0..BLOCK / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

fn compare(spa: &Spa, (dataset, object): (u64, u64), blocks: usize) {
    let data = spa.datasets.open(spa, dataset).unwrap();
    let stored = data.objset.view().object(object).unwrap();
    let mut random = Rng::new(5);
    for at in 0..blocks {
        let read = stored.read_vec((at * BLOCK) as u64, BLOCK).unwrap();
        assert!(read == bytes(&mut random), "other bytes in block {at}");
    }
}

/// All four labels of each disk have the same uberblocks, and name the vdev's size.
fn labels_are_alike(disks: &[PathBuf], asize: u64) {
    for disk in disks {
        let out = Command::new("zdb").arg("-lu").arg(disk).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let sets: Vec<_> = text.lines().filter(|line| line.contains("labels = ")).collect();
        assert!(sets.len() > 1 && sets.iter().all(|line| line.trim() == "labels = 0 1 2 3"), "{text}");
        assert!(text.contains(&format!("asize: {asize}\n")), "{text}");
    }
}

#[test]
fn a_vdev_grows_when_all_of_its_devices_did() {
    let raidz = |children| VdevSpec::Raidz { parity: 1, children };
    let (one, more) = (BEFORE - LABELS, AFTER - LABELS);
    let single = Bench::new(1, |mut leaves| VdevSpec::Leaf(leaves.remove(0)));
    for (bench, width, blocks) in
        [(single, 1, 400), (Bench::new(2, VdevSpec::Mirror), 1, 8), (Bench::new(3, raidz), 3, 8)]
    {
        let last = bench.disks.len() - 1;
        assert_eq!(bench.size(), (whole(one * width), 0));
        for disk in 0..last {
            grow(&bench.disks[disk]);
            bench.online(disk);
            assert_eq!(bench.size(), (whole(one * width), 0), "one of them is as small as it was");
        }
        grow(&bench.disks[last]);
        bench.spa.disks().reopen(Vec::new()).unwrap();
        assert_eq!(bench.size(), (whole(one * width), whole((more - one) * width)));
        bench.online(last);
        assert_eq!(bench.size(), (whole(more * width), 0));
        // Of one disk more than it could hold before.
        let stored = fill(&bench.spa, blocks);
        let Bench { dir, disks, spa } = bench;
        // As after a crash.
        drop(spa);
        let spa = pools::import_dir(dir.path(), POOL).unwrap();
        compare(&spa, stored, blocks);
        spa.export().unwrap();
        if zdb::installed() {
            zdb::verify(dir.path(), POOL).unwrap();
            labels_are_alike(&disks, more * width);
        }
    }
}

/// The pool's internal history entries.
fn history(spa: &Spa) -> Vec<String> {
    let text = |list: &nvpair::NvList| list.str("history_internal_str").map(str::to_owned);
    spa.reports().events().after(0).iter().filter_map(|event| text(&event.payload)).collect()
}

#[test]
fn with_autoexpand_a_pool_grows_by_itself() {
    let on = |word: u64| vec![("autoexpand".to_owned(), PropValue::Number(word))];
    let bench = Bench::new(2, VdevSpec::Mirror);
    bench.disks.iter().for_each(|disk| grow(disk));
    bench.spa.sync_task(move |spa, tx| spa.props().set(&on(1), tx)).unwrap();
    assert_eq!(bench.size(), (whole(AFTER - LABELS), 0));
    let told = bench.spa.reports().events().after(0);
    assert_eq!(told.iter().filter(|e| e.class == "sysevent.fs.zfs.vdev_autoexpand").count(), 2);
    bench.spa.export().unwrap();
    let Bench { dir, disks, spa } = bench;
    drop(spa);

    let again = AFTER + (96 << 20);
    let larger = |disk: &PathBuf| std::fs::File::options().write(true).open(disk).unwrap().set_len(again);
    disks.iter().for_each(|disk| larger(disk).unwrap());
    let space = |pool: &Pool, spa: &Spa| {
        (pool.tree().config.children[0].asize, spa.space.vdev_stats(0).unwrap().space)
    };
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    assert_eq!(space(&spa.view().unwrap(), &spa), (again - LABELS, whole(again - LABELS)));
    let line = format!("pool '{POOL}' size: {}(+{})", whole(again - LABELS), 96 << 20);
    assert!(history(&spa).contains(&line), "{:?}", history(&spa));
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), POOL).unwrap();
    }
}
