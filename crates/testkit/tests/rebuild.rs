//! Space maps and tables rebuilt from the blocks: each kind of object damaged, on pools of many layouts; both
//! zdbs judge.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use engine::ddt::prune::Prune;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::scan::account::WINDOW_SECTORS;
use engine::scan::damage::What;
use engine::spa::errlog::{LoggedError, errors};
use engine::spa::{Pool, Spa};
use engine::{Kind, brt, ddt};
use ondisk::names::{mos, vdev_top};
use ondisk::{Blkptr, ChecksumType, ObjsetType};
use testkit::hurt::{blocks, destroy};
use testkit::rebuilt::{damage, judge, rebuild, rebuild_with};
use testkit::zdb::Judge;
use testkit::{golden, pools};
use zpl::write::create_fs;
use zutil::import::candidates;

/// Objects of a kind in a pool.
fn objects(pool: &Pool, what: &str) -> Vec<u64> {
    let directory = pool.directory().unwrap();
    let tops = pool.tree().config.children.clone();
    let of_vdev = |name: &str| {
        let zaps = tops.iter().filter(|top| top.top_zap != 0);
        let zaps = zaps.map(|top| engine::zap::Zap::open(&pool.mos.object(top.top_zap).unwrap()).unwrap());
        zaps.filter_map(|zap| zap.u64(name).unwrap()).collect::<Vec<_>>()
    };
    match what {
        "array" => tops.iter().map(|top| top.metaslab_array).filter(|&n| n != 0).collect(),
        "maps" => {
            let arrays = objects(pool, "array").into_iter();
            let words = arrays.flat_map(|n| {
                let object = pool.mos.object(n).unwrap();
                let len = usize::try_from(object.max_offset()).unwrap().min(1 << 16);
                object.read_vec(0, len).unwrap()
            });
            let words: Vec<u8> = words.collect();
            words.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).filter(|&n| n != 0).collect()
        }
        "unflushed" => of_vdev(vdev_top::MS_UNFLUSHED_PHYS_TXGS),
        "log" => {
            let logs = engine::metaslab::log::logs(&pool.mos).unwrap();
            logs.iter().map(|log| log.object.number).collect()
        }
        "log zap" => directory.u64(mos::LOG_SPACEMAP_ZAP).unwrap().into_iter().collect(),
        "dedup" => {
            let tables = ddt::tables(&pool.mos, &mut Vec::new());
            tables.iter().flat_map(|table| table.stores.iter().map(|store| store.object)).collect()
        }
        "dedup statistics" => directory.u64(mos::DDT_STATS).unwrap().into_iter().collect(),
        "dedup directory" => {
            let tables = ddt::tables(&pool.mos, &mut Vec::new());
            tables.iter().map(|table| table.root).filter(|&root| root != 1).collect()
        }
        "clones" => {
            let tables = brt::named(&pool.mos).unwrap();
            tables.iter().filter_map(|(_, number)| brt::entries_object(&pool.mos, *number)).collect()
        }
        "clone counters" => brt::named(&pool.mos).unwrap().into_iter().map(|(_, number)| number).collect(),
        _ => panic!("{what}"),
    }
}

fn hurt(dir: &Path, name: &str, what: &str) -> usize {
    destroy(dir, name, |pool| {
        let all = objects(pool, what).into_iter();
        all.flat_map(|number| blocks(pool, number, 0)).collect::<Vec<Blkptr>>()
    })
}

fn copy(name: &str) -> Option<tempfile::TempDir> {
    let golden = golden::get(name)?;
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    Some(dir)
}

fn name_of(dir: &Path) -> String {
    candidates(&[dir.to_path_buf()]).remove(0).name
}

/// Makes a file system, fills its object set, and destroys it again.
fn write_on(spa: &Arc<Spa>, name: &str) {
    let number = |name, value| (name, Some(PropValue::Number(value)));
    for round in 0..3 {
        let fs = pools::new_fs(&spa.pool.env);
        let txg = spa.uberblock().txg;
        let new: &'static str = format!("{name}/new{round}-{txg}").leak();
        spa.dsl_task(move |tasks| {
            tasks.create(new, ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &fs))?;
            tasks.set(new, &[number("recordsize", 8192)], SettingSource::Local)
        })
        .unwrap();
        let fs = zpl::write::mount(spa, new, zpl::write::Overrides::default()).unwrap();
        let node = zpl::write::NewNode::new(zpl::FileKind::Regular, 0o644, 0, 0);
        let file = fs.dirs().create(fs.root, b"file", &node).unwrap();
        let bytes: Vec<u8> =
            (0..1_u32 << 18).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
        fs.data().write(file, 0, &bytes, true).unwrap();
        spa.sync().unwrap();
        if round == 1 {
            fs.data().truncate(file, 4096).unwrap();
        }
        fs.unmount().unwrap();
    }
    for _ in 0..4 {
        spa.sync().unwrap();
    }
}

/// Damages `what`, rebuilds, and lets zdb judge; then writes more and lets it judge again.
fn mended(dir: &Path, what: &str, judges: &[Judge]) {
    let name = name_of(dir);
    if hurt(dir, &name, what) == 0 {
        eprintln!("{name} has no {what}");
        return;
    }
    assert!(!damage(dir, &name).is_empty(), "{what}");
    let spa = rebuild(dir, &name);
    spa.sync().unwrap();
    spa.export().unwrap();
    drop(spa);
    judge(dir, &name, judges);
    assert!(damage(dir, &name).is_empty(), "{what}: {:?}", damage(dir, &name));
    let spa = pools::import_dir(dir, &name).unwrap();
    write_on(&spa, &name);
    spa.export().unwrap();
    drop(spa);
    judge(dir, &name, judges);
}

const BOTH: &[Judge] = &[Judge::USUAL, Judge::NEWEST];

#[test]
fn space_maps_of_all_layouts() {
    for pool in
        ["mirror3", "raidz1-3", "raidz2-6", "draid1", "classes", "encrypted", "stripe-mixed", "removed"]
    {
        for what in ["maps", "array"] {
            let Some(dir) = copy(pool) else { continue };
            eprintln!("{pool}: {what}");
            mended(dir.path(), what, BOTH);
        }
    }
}

/// A pool that was not exported has logs of space maps.
fn unexported() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_dir(dir.path(), "logged", 256 << 20).unwrap();
    write_on(&spa, "logged");
    spa.suspending().abandon();
    dir
}

#[test]
fn logs_of_space_maps() {
    for what in ["log", "log zap", "unflushed", "maps", "array"] {
        let dir = unexported();
        eprintln!("{what}");
        mended(dir.path(), what, BOTH);
    }
}

#[test]
fn tables_of_dedup_and_clones() {
    for (pool, what) in [
        ("dedup-legacy", "dedup"),
        ("dedup-fast", "dedup"),
        ("dedup-fast", "dedup directory"),
        ("dedup-legacy", "dedup statistics"),
        ("dedup-fast", "dedup statistics"),
        ("reflink", "clones"),
        ("reflink", "clone counters"),
        ("dedup-fast", "maps"),
        ("reflink", "maps"),
    ] {
        let Some(dir) = copy(pool) else { continue };
        eprintln!("{pool}: {what}");
        mended(dir.path(), what, BOTH);
    }
}

#[test]
fn jobs_under_way() {
    for pool in ["checkpoint", "removal-cut", "expand-cut", "unclean-log", "resilver-cut"] {
        let Some(dir) = copy(pool) else { continue };
        eprintln!("{pool}");
        let name = name_of(dir.path());
        hurt(dir.path(), &name, "maps");
        let spa = rebuild(dir.path(), &name);
        spa.sync().unwrap();
        spa.export().unwrap();
        drop(spa);
        judge(dir.path(), &name, BOTH);
    }
}

#[test]
fn several_passes_find_the_same() {
    let dir = unexported();
    hurt(dir.path(), "logged", "maps");
    let spa = rebuild_with(dir.path(), "logged", 1 << 14, false).unwrap();
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), "logged", BOTH);
}

#[test]
fn a_damaged_map_is_refused_with_advice_and_nothing_is_written() {
    let dir = unexported();
    hurt(dir.path(), "logged", "log");
    assert_eq!(damage(dir.path(), "logged")[0].what, What::SpaceLog);
    let before = std::fs::read(dir.path().join("disk1")).unwrap();
    let why = pools::import_dir(dir.path(), "logged").unwrap_err();
    assert!(why.to_string().contains("zpool import --rebuild"), "{why}");
    assert!(std::fs::read(dir.path().join("disk1")).unwrap() == before);
}

#[test]
fn unreadable_blocks_must_be_accepted() {
    let dir = unexported();
    let lost = destroy(dir.path(), "logged", |pool| {
        let datasets = pool.mos.objects().filter_map(Result::ok);
        let roots =
            datasets.filter_map(|object| ondisk::dsl::DslDataset::from_bytes(object.dnode.bonus()).ok());
        let mut largest = roots.filter(|phys| !phys.bp.is_hole()).collect::<Vec<_>>();
        largest.sort_by_key(|phys| phys.referenced_bytes);
        let root = largest.last().unwrap().bp;
        let objset = engine::dmu::Objset::open(&pool.arc, 99, &root, engine::zio::Form::Logical).unwrap();
        let objects = objset.objects().filter_map(Result::ok);
        let large = objects.filter(|object| object.dnode.nlevels > 1);
        large.filter_map(|object| object.blkptr(1, 0).unwrap()).collect()
    });
    assert!(lost > 0);
    hurt(dir.path(), "logged", "maps");
    let why = rebuild_with(dir.path(), "logged", WINDOW_SECTORS, false).unwrap_err();
    assert_eq!(why.kind(), Kind::Corrupt);
    assert!(why.to_string().contains("--accept-unreadable"), "{why}");
    let spa = rebuild_with(dir.path(), "logged", WINDOW_SECTORS, true).unwrap();
    write_on(&spa, "logged");
    spa.export().unwrap();
}

#[test]
fn a_damaged_clone_table_refuses_clones_and_the_pool_goes_on() {
    let Some(dir) = copy("reflink") else { return };
    let name = name_of(dir.path());
    let mut counters = Vec::new();
    let hurt = destroy(dir.path(), &name, |pool| {
        counters = objects(pool, "clone counters");
        let heads = objects(pool, "clones").into_iter().chain(objects(pool, "clone counters"));
        heads.flat_map(|number| blocks(pool, number, 0)).collect()
    });
    assert!(hurt > 0);
    let spa = pools::import_dir(dir.path(), &name).unwrap();
    let damaged = spa.shared.damaged();
    assert!(damaged[0].0.starts_with("clone table"), "{damaged:?}");
    let told = |log: Vec<LoggedError>| log.iter().any(|e| e.objset == 0 && counters.contains(&e.object));
    assert!(told(spa.error_log().unlogged()), "the damage is to be logged");
    spa.sync().unwrap();
    spa.sync().unwrap();
    assert!(told(errors(&spa.view().unwrap(), &mut Vec::new())), "the damage is in the error log");
    write_on(&spa, &name);
    assert!(spa.shared.refuses_clones().is_some());
    spa.export().unwrap();
    drop(spa);
    let spa = rebuild(dir.path(), &name);
    assert!(spa.shared.damaged().is_empty());
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), &name, BOTH);
}

/// Statistics that cannot be read leave the tables as they are: the pool is written on, and nothing is added to a table, not
/// even to one of another checksum.
#[test]
fn the_pool_goes_on_without_the_statistics_of_dedup_tables() {
    for pool in ["dedup-legacy", "dedup-fast"] {
        let Some(dir) = copy(pool) else { continue };
        let name = name_of(dir.path());
        assert!(hurt(dir.path(), &name, "dedup statistics") > 0);
        let spa = pools::import_dir(dir.path(), &name).unwrap();
        for checksum in [ChecksumType::Sha256, ChecksumType::Skein] {
            let number = |name, value| (name, Some(PropValue::Number(value)));
            let of = u64::from(checksum.raw());
            spa.dsl_task(move |tasks| {
                tasks.set("tank", &[number("dedup", of), number("checksum", of)], SettingSource::Local)
            })
            .unwrap();
            write_on(&spa, &name);
        }
        spa.export().unwrap();
        drop(spa);
        let spa = rebuild(dir.path(), &name);
        write_on(&spa, &name);
        spa.export().unwrap();
        drop(spa);
        judge(dir.path(), &name, BOTH);
    }
}

/// Beside a damaged dedup table the clone table counts a clone of one of its blocks; after a rebuild only one of them does.
#[test]
fn a_clone_made_beside_a_damaged_dedup_table_is_counted_once() {
    let Some(dir) = copy("dedup-fast") else { return };
    let name = name_of(dir.path());
    assert!(hurt(dir.path(), &name, "dedup") > 0);
    let spa = pools::import_dir(dir.path(), &name).unwrap();
    let fs = zpl::write::mount(&spa, "tank/d-sha512", zpl::write::Overrides::default()).unwrap();
    let found = |dir: u64, name: &[u8]| fs.dirs().lookup(dir, name).unwrap().unwrap().object;
    let file = found(found(fs.root, b"x"), b"t128k-plus-1");
    let node = zpl::write::NewNode::new(zpl::FileKind::Regular, 0o644, 0, 0);
    let copy = fs.dirs().create(fs.root, b"copy", &node).unwrap();
    let len = fs.attrs().get(file).unwrap().size;
    assert_eq!(
        fs.clones().clone_range((zpl::write::CloneFrom::File(&fs, file), 0), (copy, 0), len, true).unwrap(),
        len
    );
    fs.unmount().unwrap();
    spa.sync().unwrap();
    assert!(brt::table(&spa.mos.view(), 0).unwrap().is_some());
    spa.export().unwrap();
    drop(spa);
    let spa = rebuild(dir.path(), &name);
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), &name, BOTH);
}

/// Two blocks have one dedup key and several references each: an entry was pruned, its block was cloned, and the same content
/// was written again, twice.
#[test]
fn a_pruned_block_that_was_cloned_and_written_again_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), "pruned", 128 << 20, Default::default()).unwrap();
    let on = [("dedup", Some(PropValue::Number(1)))];
    spa.dsl_task(move |tasks| tasks.set("pruned", &on, SettingSource::Local)).unwrap();
    let fs = zpl::write::mount(&spa, "pruned", zpl::write::Overrides::default()).unwrap();
    let bytes: Vec<u8> = (0..1_u32 << 17).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let new = |name: &[u8]| {
        let node = zpl::write::NewNode::new(zpl::FileKind::Regular, 0o644, 0, 0);
        fs.dirs().create(fs.root, name, &node).unwrap()
    };
    // The log of the table goes to its ZAPs.
    let flush = || (0..30).for_each(|_| spa.dsl_task(|_| Ok(())).unwrap());
    let first = new(b"first");
    fs.data().write(first, 0, &bytes, true).unwrap();
    flush();
    spa.sharing().prune_ddt(Prune::Percentage(100)).unwrap();
    let (clone, len) = (new(b"clone"), bytes.len() as u64);
    let source = zpl::write::CloneFrom::File(&fs, first);
    assert_eq!(fs.clones().clone_range((source, 0), (clone, 0), len, true).unwrap(), len);
    let same = [first, clone, new(b"again"), new(b"more")];
    same[2..].iter().for_each(|file| fs.data().write(*file, 0, &bytes, true).unwrap());
    flush();
    fs.unmount().unwrap();
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), "pruned", &[Judge::NEWEST]);
    assert!(hurt(dir.path(), "pruned", "dedup") > 0);
    let spa = rebuild(dir.path(), "pruned");
    assert!(brt::table(&spa.mos.view(), 0).unwrap().is_some());
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), "pruned", &[Judge::NEWEST]);
    // Each reference is counted: the space returns with the last one.
    let spa = pools::import_dir(dir.path(), "pruned").unwrap();
    let fs = zpl::write::mount(&spa, "pruned", zpl::write::Overrides::default()).unwrap();
    for (file, name) in same.iter().zip(["first", "clone", "again", "more"]) {
        assert!(content(&fs, *file) == bytes, "{name}");
        fs.dirs().unlink(fs.root, name.as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), "pruned", &[Judge::NEWEST]);
}

/// Files of the root directory, by name.
fn files_of(fs: &zpl::write::FsWriter) -> Vec<(Vec<u8>, u64)> {
    let object = fs.objset.object(&fs.objset.view(), fs.root).unwrap();
    let entries = engine::zap::Zap::open(&object).unwrap().to_vec().unwrap();
    let all =
        entries.iter().map(|e| (e.name_lossy().into_bytes(), e.value.first().unwrap() & ((1 << 48) - 1)));
    all.filter(|(_, file)| fs.node(*file).unwrap().kind() == zpl::FileKind::Regular).collect()
}

fn content(fs: &zpl::write::FsWriter, file: u64) -> Vec<u8> {
    let size = usize::try_from(fs.attrs().get(file).unwrap().size).unwrap();
    let mut bytes = vec![0; size];
    fs.data().read(file, 0, &mut bytes).unwrap();
    bytes
}

/// The heads of the clone tables are whole, and leaves are lost: blocks that these may list are not freed while another
/// file has them, none of them is cloned, and a rebuild makes everything clean.
#[test]
fn a_lost_leaf_of_a_clone_table_frees_nothing_twice() {
    let Some(dir) = copy("reflink") else { return };
    let name = name_of(dir.path());
    let hurt = destroy(dir.path(), &name, |pool| {
        let tables = objects(pool, "clones").into_iter();
        tables.flat_map(|number| blocks(pool, number, 0)).collect()
    });
    assert!(hurt > 0);
    let found = damage(dir.path(), &name);
    assert!(found.iter().any(|damage| matches!(damage.what, What::Clones(_))), "{found:?}");
    let spa = pools::import_dir(dir.path(), &name).unwrap();
    assert!(spa.shared.damaged().is_empty(), "the heads are whole");
    let dataset = spa.pool.dsl.dataset("tank/live").map(|_| "tank/live").unwrap_or("tank");
    let fs = zpl::write::mount(&spa, dataset, zpl::write::Overrides::default()).unwrap();
    let mut files = files_of(&fs);
    files.sort_by_key(|(_, file)| fs.attrs().get(*file).unwrap().size);
    let kept = files.split_off(files.len() - 1);
    let before: Vec<Vec<u8>> = kept.iter().map(|(_, file)| content(&fs, *file)).collect();

    let node = zpl::write::NewNode::new(zpl::FileKind::Regular, 0o644, 0, 0);
    let copy = fs.dirs().create(fs.root, b"copy", &node).unwrap();
    let (large, len) = kept
        .iter()
        .map(|(_, file)| (*file, fs.attrs().get(*file).unwrap().size))
        .max_by_key(|f| f.1)
        .unwrap();
    let why = fs
        .clones()
        .clone_range((zpl::write::CloneFrom::File(&fs, large), 0), (copy, 0), len, true)
        .unwrap_err();
    assert_eq!(why.kind(), Kind::Unsupported, "{why}");
    files.iter().for_each(|(name, _)| fs.dirs().unlink(fs.root, name).unwrap());
    // New blocks would take the place of blocks that were freed too early.
    write_on(&spa, &name);
    fs.unmount().unwrap();
    spa.export().unwrap();
    drop(spa);

    let spa = pools::import_dir(dir.path(), &name).unwrap();
    let fs = zpl::write::mount(&spa, dataset, zpl::write::Overrides::default()).unwrap();
    kept.iter().zip(&before).for_each(|((_, file), bytes)| assert!(content(&fs, *file) == *bytes));
    fs.unmount().unwrap();
    spa.export().unwrap();
    drop(spa);
    let spa = rebuild(dir.path(), &name);
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), &name, BOTH);
}
