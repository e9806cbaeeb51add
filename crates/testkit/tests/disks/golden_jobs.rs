//! Jobs that the kernel began and was cut off in, carried to their ends.

use engine::spa::errlog;
use engine::spa::sweep::{SweepCommand, SweepKind, TrimOptions};
use engine::spa::{OpenOptions, Pool};
use testkit::golden::Golden;
use testkit::{golden, tree};

use super::*;

/// A golden pool, imported for writing in a copy of its directory.
fn imported(golden: &Golden) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_dir(dir.path(), golden.pool_name()).unwrap();
    Bench { dir, spa, file: (0, 0) }
}

/// Carries a golden pool's job to its end: `wanted` is the shape then. A scrub finds nothing to repair, both zdbs find
/// neither error nor leak, and every file equals its manifest entry. Returns the pool, opened again
/// read-only.
fn to_its_end(golden: &Golden, bench: Bench, wanted: &str) -> Arc<Pool> {
    bench.spa.sync().unwrap();
    bench.spa.sync().unwrap();
    bench.settle();
    assert_eq!(bench.shape(), wanted, "{}", golden.name);
    bench.scrub_is_clean();
    bench.spa.export().unwrap();
    let Bench { dir, spa, .. } = bench;
    drop(spa);
    judged(dir.path(), golden.pool_name());
    let dirs = [dir.path().to_owned()];
    let env = Env::system(64 << 20).unwrap();
    let pool = zutil::import::open_pool(&env, &dirs, golden.pool_name(), OpenOptions::default()).unwrap();
    for (name, covers) in golden.manifests() {
        let label = format!("{}/{name}", golden.name);
        let excuse = |path: &[u8], have: &mut _, want: &_| tree::excuse_golden(&label, path, have, want);
        let manifest = golden.manifest(&name).unwrap();
        assert!(!manifest.files.is_empty(), "{label}");
        let wrong = tree::Tree::read(&pool, &covers).unwrap().differences(&label, &manifest, &excuse);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
    pool
}

/// The pool that the kernel left in the middle of a job, carried to its end.
fn carried_on(name: &str, wanted: &str) {
    let Some(golden) = golden::get(name) else { return };
    to_its_end(&golden, imported(&golden), wanted);
}

#[test]
fn work_begun_by_the_kernel_is_carried_on() {
    carried_on("resilver-cut", "raidz(disk1 disk5 disk3 disk4)");
    carried_on("resilver-due", "raidz(disk1 disk2 disk3 disk4)");
    carried_on("spare-in-use", "raidz(disk1 disk2 spare(disk3 disk5) disk4)");
    carried_on("draid-spare-in-use", "draid(disk1 disk2 disk3 spare(disk4 draid1-0-0) disk5 disk6)");
    // The removed disk has no name.
    carried_on("removal-cut", "disk1  disk3");
    carried_on("expand-cut", "raidz(disk1 disk2 disk3 disk4 disk5)");
}

#[test]
fn a_scrub_that_the_kernel_paused_goes_on_and_repairs() {
    let Some(golden) = golden::get("scrub-paused") else { return };
    let bench = imported(&golden);
    let paused = bench.scanned();
    bench.spa.sync().unwrap();
    assert!(!bench.spa.scans().is_scanning() && bench.scanned().examined == paused.examined, "{paused:?}");
    bench.spa.scans().start(ScanCommand::Scrub).unwrap();
    bench.settle();
    let end = bench.scanned();
    assert_eq!((end.state, end.errors, end.start_time), (2, 0, paused.start_time), "{end:?}");
    assert!(end.processed > paused.processed, "{end:?}");
    to_its_end(&golden, bench, "raidz(disk1 disk2 disk3 disk4)");
}

#[test]
fn an_initialization_that_the_kernel_suspended_goes_on() {
    let Some(golden) = golden::get("init-suspended") else { return };
    let bench = imported(&golden);
    let disk = bench.guid("disk1");
    let kind = SweepKind::Initialize;
    assert_eq!(bench.spa.free_space().left(kind, &[disk]), None, "it is suspended");
    let refused =
        bench.spa.free_space().sweep(kind, SweepCommand::Start, TrimOptions::default(), &[disk]).unwrap();
    assert!(refused.is_empty());
    assert!(bench.spa.free_space().left(kind, &[disk]).is_some());
    bench.settle();
    assert_eq!(bench.spa.free_space().left(kind, &[disk]), None);
    to_its_end(&golden, bench, "mirror(disk1 disk2 disk3)");
}

/// A scrub finds the damage that the kernel has logged, and forgets it when nothing refers to it.
#[test]
fn damage_that_the_kernel_knew_is_found_again_and_forgotten_when_it_is_gone() {
    let Some(golden) = golden::get("known-errors") else { return };
    let pool = golden.pool_name();
    let bench = imported(&golden);
    let logged = |bench: &Bench| errlog::errors(&bench.spa.view().unwrap(), &mut Vec::new());
    let known = logged(&bench);
    assert!(!known.is_empty());
    let scrub = |bench: &Bench| {
        bench.spa.scans().start(ScanCommand::Scrub).unwrap();
        bench.settle();
        (bench.scanned().errors, logged(bench))
    };
    assert_eq!(scrub(&bench), (2, known), "they are damaged still");
    let fs = zpl::write::mount(&bench.spa, pool, zpl::write::Overrides::default()).unwrap();
    let names = ["d", "many"];
    let dir = names
        .iter()
        .fold(fs.root, |dir, name| fs.dirs().lookup(dir, name.as_bytes()).unwrap().unwrap().object);
    fs.dirs().unlink(dir, b"f11").unwrap();
    fs.unmount().unwrap();
    assert_eq!(scrub(&bench).0, 2, "the snapshot has both");
    bench.spa.dsl_task(move |t| t.destroy(&format!("{pool}@s"), false)).unwrap();
    (0..3).for_each(|_| bench.spa.sync().unwrap());
    assert_eq!(scrub(&bench), (0, Vec::new()));
    bench.spa.export().unwrap();
    let Bench { dir, spa, .. } = bench;
    drop(spa);
    judged(dir.path(), pool);
}

fn judged(dir: &Path, pool: &str) {
    for judge in [zdb::Judge::USUAL, zdb::Judge::NEWEST] {
        if judge.installed() {
            judge.verify(dir, pool).unwrap();
        }
    }
}

#[test]
fn a_rebuild_that_the_kernel_began_is_continued() {
    let Some(golden) = golden::get("rebuild-cut") else { return };
    let state = |pool: &Arc<Pool>| {
        let active = pool.features.is_active("org.openzfs:device_rebuild");
        (active, zutil::load::facts(pool).unwrap().rebuilding)
    };
    assert_eq!(state(&golden.open().unwrap()), (true, true));
    let bench = imported(&golden);
    let before = bench.record("disk1");
    assert!(before.rebuild_state == 1 && before.last_offset > 0, "{before:?}");
    bench.spa.sync().unwrap();
    let after = bench.record("disk1");
    assert_eq!(
        (after.rebuild_state, after.start_time, after.max_txg),
        (1, before.start_time, before.max_txg)
    );
    assert!(
        after.last_offset > before.last_offset && after.bytes_scanned > before.bytes_scanned,
        "{after:?}"
    );
    while bench.spa.rebuilds().is_rebuilding() {
        bench.spa.sync().unwrap();
    }
    let record = bench.record("disk1");
    assert_eq!((record.rebuild_state, record.errors), (3, 0), "{record:?}");
    let pool = to_its_end(&golden, bench, "mirror(disk1 disk2 disk3)");
    assert_eq!(state(&pool), (false, false));
    let tree = pool.config.nvlist("vdev_tree").unwrap();
    let leaves = tree.nvlist_array("children").unwrap()[0].nvlist_array("children").unwrap();
    for leaf in leaves {
        assert!(!leaf.contains("rebuild_txg") && !leaf.contains("resilver_txg"), "{leaf:?}");
    }
}

#[test]
fn a_stale_disk_of_the_kernels_pool_comes_back_or_is_replaced() {
    let Some(golden) = golden::get("replacing") else { return };
    let disk2 = |bench: &Bench| {
        let tree = bench.spa.pool.tree();
        let all = tree.config.walk();
        let found = all.into_iter().find(|v| v.path.as_ref().is_some_and(|path| path.ends_with("/disk2")));
        found.unwrap().guid
    };
    let back = imported(&golden);
    let device = pools::open(&back.dir.path().join("disk2"));
    assert_eq!(back.spa.disks().online(disk2(&back), Some(Ok(device)), false).unwrap(), Health::ONLINE);
    to_its_end(&golden, back, "raidz(disk1 disk2 disk3)");
    let replaced = imported(&golden);
    let size = std::fs::metadata(replaced.path("disk1")).unwrap().len();
    replaced.join(disk2(&replaced), replaced.new_leaf("fresh", size), true).unwrap();
    assert_eq!(replaced.shape(), "raidz(disk1 replacing(disk2 fresh) disk3)");
    to_its_end(&golden, replaced, "raidz(disk1 fresh disk3)");
}

#[test]
fn a_pool_that_the_kernel_removed_a_disk_from_gets_a_mirrored_one() {
    let Some(golden) = golden::get("removed") else { return };
    let bench = imported(&golden);
    let shape = bench.shape();
    let size = std::fs::metadata(bench.path("disk1")).unwrap().len();
    let first = bench.spa.pool.tree().config.children[0].guid;
    bench.join(first, bench.new_leaf("fresh", size), false).unwrap();
    // Blocks of the removed disk are read through its mapping, and resilvered where they are now.
    let wanted = shape.replacen("disk1", "mirror(disk1 fresh)", 1);
    assert_ne!(wanted, shape);
    bench.settle();
    for leaf in bench.spa.pool.tree().leaves() {
        assert!(leaf.dtl.read().is_empty(), "{} lacks {:?}", leaf.path, leaf.dtl.read());
    }
    to_its_end(&golden, bench, &wanted);
}
