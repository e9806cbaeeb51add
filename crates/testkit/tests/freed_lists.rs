//! Lists of blocks to be freed that are damaged, and datasets whose metadata is: a pool is refused or goes on, and is not
//! suspended.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use engine::Kind;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::memory::Limit;
use engine::scan::damage::What;
use engine::spa::{Pool, Spa};
use ondisk::names::{dsl_dataset, dsl_dir, mos};
use ondisk::{Blkptr, ObjsetType};
use testkit::hurt::{blocks, destroy};
use testkit::pools;
use testkit::rebuilt::{damage, judge, rebuild};
use testkit::zdb::Judge;
use zpl::write::{NewNode, Overrides, create_fs, mount};

const POOL: &str = "freed";
const BOTH: &[Judge] = &[Judge::USUAL, Judge::NEWEST];

/// Changes a file of so many blocks.
fn write(spa: &Arc<Spa>, dataset: &str, blocks: usize) {
    let fs = mount(spa, dataset, Overrides::default()).unwrap();
    let file = match fs.dirs().lookup(fs.root, b"file").unwrap() {
        Some(found) => found.object,
        None => {
            fs.dirs().create(fs.root, b"file", &NewNode::new(zpl::FileKind::Regular, 0o644, 0, 0)).unwrap()
        }
    };
    let seed = u32::try_from(spa.uberblock().txg).unwrap();
    let word = |n: u32| (n ^ seed).wrapping_mul(2_654_435_761).to_le_bytes();
    let bytes: Vec<u8> = (0..u32::try_from(blocks << 15).unwrap()).flat_map(word).collect();
    fs.data().write(file, 0, &bytes, true).unwrap();
    spa.sync().unwrap();
    fs.unmount().unwrap();
}

/// A pool with the file system `fs`, its snapshot `one`, its clone `clone`, and other blocks in both since.
fn create(dir: &Path) -> Arc<Spa> {
    let spa = pools::create_fs_dir(dir, POOL, 128 << 20, Default::default()).unwrap();
    let fs = pools::new_fs(&spa.pool.env);
    spa.dsl_task(move |tasks| {
        tasks.create("freed/fs", ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &fs))
    })
    .unwrap();
    // Names that take more than a dnode has room for.
    for n in 0..20 {
        let (fs, name) = (pools::new_fs(&spa.pool.env), format!("freed/another-file-system-number-{n}"));
        spa.dsl_task(move |tasks| {
            tasks.create(&name, ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &fs))
        })
        .unwrap();
    }
    write(&spa, "freed/fs", 80);
    spa.dsl_task(|tasks| tasks.snapshot(&["freed/fs@one"], &[])).unwrap();
    write(&spa, "freed/fs", 40);
    spa.dsl_task(|tasks| tasks.clone_snapshot("freed/fs@one", "freed/clone")).unwrap();
    write(&spa, "freed/clone", 4);
    spa
}

fn named(pool: &Pool, name: &str) -> u64 {
    pool.directory().unwrap().u64(name).unwrap().unwrap_or(0)
}

/// Destroys all blocks of the lists that `pick` names, and of the lists below.
fn hurt(dir: &Path, pick: impl Fn(&Pool) -> Vec<u64>) -> usize {
    destroy(dir, POOL, |pool| {
        pick(pool).into_iter().flat_map(|n| blocks(pool, n, 0)).collect::<Vec<Blkptr>>()
    })
}

/// A pool that was exported while blocks of destroyed datasets waited to be freed.
fn exported(wanted: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path()).export().unwrap();
    let env = Env::system(64 << 20).unwrap();
    env.memory.set(Limit::AsyncBlockMax, 1).unwrap();
    let spa = pools::import_in(&env, dir.path(), POOL, Default::default()).unwrap();
    let clone = wanted == mos::DELETED_CLONES;
    spa.dsl_task(move |tasks| {
        tasks.destroy("freed/clone", false)?;
        if clone { Ok(()) } else { tasks.destroy("freed/fs@one", false) }
    })
    .unwrap();
    if wanted == mos::BPTREE_OBJ {
        spa.dsl_task(|tasks| tasks.destroy("freed/fs", false)).unwrap();
    }
    spa.suspending().abandon();
    dir
}

#[test]
fn damaged_lists_of_blocks_to_be_freed_are_refused_and_replaced() {
    for name in [mos::FREE_BPOBJ, mos::BPTREE_OBJ, mos::DELETED_CLONES] {
        let dir = exported(name);
        let lists = |pool: &Pool| {
            let list = named(pool, name);
            let object = pool.mos.object(list).unwrap();
            match engine::zap::Zap::open(&object) {
                Ok(zap) if name == mos::DELETED_CLONES => {
                    let lives: Vec<u64> =
                        zap.to_vec().unwrap().iter().filter_map(|e| e.value.first()).collect();
                    let parts = lives.iter().flat_map(|n| {
                        engine::zap::Zap::open(&pool.mos.object(*n).unwrap()).unwrap().to_vec().unwrap()
                    });
                    parts.filter_map(|e| e.value.first()).collect()
                }
                _ => vec![list],
            }
        };
        assert!(hurt(dir.path(), lists) > 0, "{name}");
        let before = std::fs::read(dir.path().join("disk1")).unwrap();
        let why = pools::import_dir(dir.path(), POOL).unwrap_err().to_string();
        assert!(why.contains("zpool import --rebuild") && why.contains(name), "{why}");
        assert!(std::fs::read(dir.path().join("disk1")).unwrap() == before, "nothing was to be written");
        let found = damage(dir.path(), POOL);
        assert!(matches!(&found[..], [one] if matches!(one.what, What::Freeing(_))), "{found:?}");
        let spa = rebuild(dir.path(), POOL);
        assert_eq!(engine::spa::props::freeing(&spa.view().unwrap()), 0, "{name}");
        spa.export().unwrap();
        drop(spa);
        judge(dir.path(), POOL, BOTH);
        assert!(damage(dir.path(), POOL).is_empty(), "{name}");
        let spa = pools::import_dir(dir.path(), POOL).unwrap();
        write(&spa, "freed", 4);
        spa.export().unwrap();
        drop(spa);
        judge(dir.path(), POOL, BOTH);
    }
}

/// Lists of the livelist of the clone.
fn livelist(pool: &Pool) -> Vec<u64> {
    let zap = |number: u64| engine::zap::Zap::open(&pool.mos.object(number).unwrap()).unwrap();
    let dir = pool.dsl.dataset("freed/clone").unwrap().phys.dir_obj;
    let list = zap(dir).u64(dsl_dir::LIVELIST).unwrap().unwrap();
    zap(list).to_vec().unwrap().iter().filter_map(|entry| entry.value.first()).collect()
}

#[test]
fn a_clone_whose_livelist_cannot_be_read_is_not_destroyed_and_the_pool_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path()).export().unwrap();
    assert!(hurt(dir.path(), livelist) > 0);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let why = spa.dsl_task(|tasks| tasks.destroy("freed/clone", false)).unwrap_err();
    assert!(why.to_string().contains("livelist of the dataset"), "{why}");
    write(&spa, "freed/fs", 4);
    assert!(spa.suspending().state().is_none());
    spa.export().unwrap();
}

/// A part of a list that is read only when its blocks are freed stops the freeing, not the pool; a rebuild frees the rest.
#[test]
fn freeing_stops_where_its_list_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let spa = create(dir.path());
    let small = [("recordsize", Some(PropValue::Number(512)))];
    spa.dsl_task(move |tasks| tasks.set("freed/clone", &small, SettingSource::Local)).unwrap();
    let fs = mount(&spa, "freed/clone", Overrides::default()).unwrap();
    let file =
        fs.dirs().create(fs.root, b"small", &NewNode::new(zpl::FileKind::Regular, 0o644, 0, 0)).unwrap();
    let bytes: Vec<u8> = (0..1_u32 << 19).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs.data().write(file, 0, &bytes[..1_500_000], true).unwrap();
    fs.unmount().unwrap();
    spa.export().unwrap();
    drop(spa);
    let first = |pool: &Pool| {
        let lists = livelist(pool).into_iter().map(|list| blocks(pool, list, 0));
        lists.filter(|all| all.len() > 1).map(|all| all[0]).collect()
    };
    assert!(destroy(dir.path(), POOL, first) > 0);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    spa.dsl_task(|tasks| tasks.destroy("freed/clone", false)).unwrap();
    (0..3).for_each(|_| write(&spa, "freed/fs", 4));
    assert!(spa.suspending().state().is_none());
    assert!(engine::spa::props::freeing(&spa.view().unwrap()) > 0);
    spa.export().unwrap();
    drop(spa);
    let why = pools::import_dir(dir.path(), POOL).unwrap_err().to_string();
    assert!(why.contains("zpool import --rebuild") && why.contains(mos::DELETED_CLONES), "{why}");
    let spa = rebuild(dir.path(), POOL);
    write(&spa, "freed/fs", 4);
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), POOL, BOTH);
}

/// Damage of a dataset's own metadata refuses its changes; all others are made.
#[test]
fn a_dataset_with_damaged_bookmarks_is_not_changed_and_the_pool_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let spa = create(dir.path());
    spa.dsl_task(|tasks| tasks.snapshot(&["freed/fs@zero"], &[])).unwrap();
    let mark = |n: u32| format!("freed/fs#mark{n}");
    for n in 0..40 {
        spa.dsl_task(move |tasks| tasks.bookmark(&mark(n), "freed/fs@one")).unwrap();
    }
    spa.export().unwrap();
    drop(spa);
    let bookmarks = |pool: &Pool| {
        let head = pool.dsl.dataset("freed/fs").unwrap().number;
        let object = pool.mos.object(head).unwrap();
        vec![engine::zap::Zap::open(&object).unwrap().u64(dsl_dataset::BOOKMARK_NAMES).unwrap().unwrap()]
    };
    assert!(hurt(dir.path(), bookmarks) > 0);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    for refused in [
        spa.dsl_task(|tasks| tasks.snapshot(&["freed/fs@two"], &[])),
        spa.dsl_task(|tasks| tasks.destroy("freed/fs@zero", false)),
        mount(&spa, "freed/fs", Overrides::default()).map(drop),
    ] {
        let why = refused.unwrap_err();
        assert!(
            why.kind() == Kind::Checksum && why.to_string().contains("bookmarks of the dataset"),
            "{why}"
        );
    }
    spa.dsl_task(|tasks| tasks.snapshot(&["freed@two"], &[])).unwrap();
    write(&spa, "freed", 4);
    assert!(spa.suspending().state().is_none());
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    spa.export().unwrap();
}

#[test]
fn a_pool_without_the_names_of_its_file_systems_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path()).export().unwrap();
    let children = |pool: &Pool| {
        let root = pool.mos.object(named(pool, mos::ROOT_DATASET)).unwrap();
        vec![ondisk::dsl::DslDir::from_bytes(root.dnode.bonus()).unwrap().child_dir_zapobj]
    };
    assert!(hurt(dir.path(), children) > 0);
    let before = std::fs::read(dir.path().join("disk1")).unwrap();
    let why = pools::import_dir(dir.path(), POOL).unwrap_err().to_string();
    assert!(why.contains("names of the pool's file systems") && why.contains("readonly=on"), "{why}");
    assert!(std::fs::read(dir.path().join("disk1")).unwrap() == before, "nothing was to be written");
}
