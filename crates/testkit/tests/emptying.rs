//! Large file systems of pools without `async_destroy` are emptied before they are destroyed; the next import
//! after a crash at any point destroys the rest.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use engine::dsl::Dir;
use engine::dsl::write::{DestroyOutcome, Tasks};
use engine::env::Env;
use engine::spa::layout::{PoolSpec, TopSpec, VdevSpec};
use engine::spa::{NewPool, Spa, create};
use engine::vdev::config::AllocBias;
use ondisk::ObjsetType;
use stdx::rng::Rng;
use testkit::{pools, zdb};
use zcommon::features::Feature;
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, create_fs, mount};

const POOL: &str = "old";
const NAME: &str = "old/large";

fn new_pool(dir: &Path, version: u64) -> Arc<Spa> {
    let env = Env::system(64 << 20).unwrap();
    let vdev = VdevSpec::Leaf(pools::leaf(&dir.join("disk1"), 256 << 20));
    let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }];
    let mut features = if version == 5000 { zcommon::features::of_openzfs_2_3() } else { Vec::new() };
    features.retain(|feature| *feature != Feature::AsyncDestroy);
    let new = NewPool {
        name: POOL.into(),
        label_name: None,
        version,
        features,
        layout: PoolSpec { tops, ..PoolSpec::default() }.lay_out(0, 4, &mut || env.guid()).unwrap(),
        hostid: 1,
        hostname: "host".into(),
        command: format!("zpool create {POOL}"),
    };
    create(&env, new, &|_, _| Ok(())).unwrap()
}

/// A file system with a long file, small files and a snapshot's clone of all that, which has changed it.
fn fill(spa: &Arc<Spa>, version: u64) {
    let mut fs = pools::new_fs(&spa.pool.env);
    if version < 5000 {
        (fs.projects, fs.count_objects) = (false, false);
    }
    let made = spa.dsl_task(move |tasks| {
        tasks.create(NAME, ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &fs))
    });
    made.unwrap();
    write(spa, NAME, 24 << 20);
    spa.dsl_task(|tasks| tasks.snapshot(&["old/large@s"], &[])).unwrap();
    spa.dsl_task(|tasks| tasks.clone_snapshot("old/large@s", "old/clone")).unwrap();
    write(spa, "old/clone", 20 << 20);
}

fn write(spa: &Arc<Spa>, name: &str, bytes: usize) {
    let fs = mount(spa, name, Overrides::default()).unwrap();
    let node = NewNode::new(FileKind::Regular, 0o600, 0, 0);
    let mut noise = vec![0; bytes];
    Rng::new(7).fill(&mut noise);
    let file = fs.dirs().create(fs.root, format!("long{bytes}").as_bytes(), &node).unwrap();
    fs.data().write(file, 0, &noise, true).unwrap();
    for n in 0..60 {
        let file = fs.dirs().create(fs.root, format!("small{bytes}-{n}").as_bytes(), &node).unwrap();
        fs.data().write(file, 0, &noise[n * 5000..][..5000], true).unwrap();
    }
    fs.unmount().unwrap();
    spa.sync().unwrap();
}

/// Frees the first objects of a marked head, as a crash could leave it.
fn free_some(spa: &Arc<Spa>, number: u64, count: usize) {
    let live = spa.datasets.open(&**spa, number).unwrap();
    let first: Vec<u64> = live.objset.view().objects().take(count).map(|o| o.unwrap().number).collect();
    let tx = spa.begin().unwrap();
    first.into_iter().for_each(|number| live.objset.free_object(&tx, number).unwrap());
    drop(tx);
    spa.sync().unwrap();
}

fn names(dir: &Dir) -> Vec<String> {
    let mut all: Vec<String> = dir.children().unwrap().into_iter().map(|(name, _)| name).collect();
    all.retain(|name| !name.starts_with('$'));
    all.sort();
    all
}

fn root(spa: &Arc<Spa>) -> Dir {
    spa.pool.dsl.dir(POOL).unwrap()
}

fn end(spa: Arc<Spa>, dir: &Path) {
    (0..3).for_each(|_| spa.sync().unwrap());
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir, POOL).unwrap();
    }
}

/// A crash now: checks the datasets that an import of the images destroys, and zdb's verdict afterwards.
fn crash(dir: &Path, left: &[&str]) {
    let copy = tempfile::tempdir().unwrap();
    pools::copy(dir, copy.path());
    let spa = pools::import_dir(copy.path(), POOL).unwrap();
    assert_eq!(names(&root(&spa)), left);
    let large = spa.pool.dsl.dir(NAME).ok();
    assert!(large.is_none_or(|dir| names(&dir).is_empty()));
    end(spa, copy.path());
}

fn destroy_with_crashes(version: u64) {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path(), version);
    fill(&spa, version);
    let both = ["clone", "large"];
    crash(dir.path(), &both);
    let begun = spa.dsl_task(|tasks| tasks.begin_destroy("old/clone")).unwrap();
    let DestroyOutcome::Marked(number) = begun else { panic!("{begun:?}") };
    crash(dir.path(), &["large"]);
    for count in [1, 8, 40] {
        free_some(&spa, number, count);
        crash(dir.path(), &["large"]);
    }
    spa.dsl().free_contents(number).unwrap();
    let left = spa.datasets.view().dataset(number).unwrap().unique_bytes;
    assert!(left < 1 << 20, "{left} bytes are left for one txg");
    crash(dir.path(), &["large"]);
    spa.dsl_task(|tasks| tasks.begin_destroy("old/clone")).unwrap();
    assert_eq!(names(&root(&spa)), ["large"]);
    // With a snapshot it can't be destroyed, and is not marked.
    assert!(spa.dsl().destroy_head(NAME).is_err());
    let head = spa.pool.dsl.dataset(NAME).unwrap();
    assert!(!head.is_inconsistent());
    spa.dsl_task(|tasks| tasks.destroy_snapshots(&["old/large@s"], false)).unwrap();
    spa.dsl().destroy_head(NAME).unwrap();
    assert!(names(&root(&spa)).is_empty());
    end(spa, dir.path());
}

/// A rollback leaves the previous content to a hidden head, which is emptied in later txgs.
fn roll_back_with_crashes(version: u64) {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path(), version);
    fill(&spa, version);
    let both = ["clone", "large"];
    spa.dsl_task(|tasks| tasks.snapshot(&["old/large@t"], &[])).unwrap();
    for round in 0..2 {
        write(&spa, NAME, (20 + round) << 20);
        let used = spa.pool.dsl.dataset(NAME).unwrap().phys.referenced_bytes;
        // Not as a task of datasets, which would empty it at once.
        let done = spa.sync_task(|spa, tx| {
            let at = spa.datasets.at(tx, spa);
            Tasks { at, datasets: &spa.datasets, pool: POOL }.rollback(NAME, None)
        });
        done.unwrap();
        assert!(spa.pool.dsl.dataset(NAME).unwrap().phys.referenced_bytes < used);
        let hidden = names(&spa.pool.dsl.dir(NAME).unwrap());
        let [hidden] = &hidden[..] else { panic!("{hidden:?}") };
        assert!(hidden.starts_with("%destroyed-"));
        let number = spa.pool.dsl.dataset(&format!("{NAME}/{hidden}")).unwrap().number;
        crash(dir.path(), &both);
        free_some(&spa, number, 8);
        crash(dir.path(), &both);
        spa.dsl().free_contents(number).unwrap();
        let left = spa.datasets.view().dataset(number).unwrap().unique_bytes;
        assert!(left < 1 << 20, "{left} bytes are left for one txg");
        spa.dsl_task(|_| Ok(())).unwrap();
        assert!(names(&spa.pool.dsl.dir(NAME).unwrap()).is_empty());
    }
    end(spa, dir.path());
}

#[test]
fn rollback_with_features_but_async_destroy() {
    roll_back_with_crashes(5000);
}

#[test]
fn rollback_of_version_28() {
    roll_back_with_crashes(28);
}

#[test]
fn with_features_but_async_destroy() {
    destroy_with_crashes(5000);
}

#[test]
fn of_version_28() {
    destroy_with_crashes(28);
}
