//! Pools that we make, judged by real zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use blkdev::{OpenMode, OpenOptions};
use engine::dmu::NewObject;
use engine::env::Env;
use engine::spa::events::Event;
use engine::spa::layout::{PoolSpec, TopSpec, VdevSpec};
use engine::spa::{ImportOptions, NewPool, Spa, create, import};
use engine::vdev::config::{AllocBias, Kind};
use nvpair::NvValue;
use ondisk::ObjectType;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use stdx::rng::Rng;
use testkit::{pools, zdb};
use zutil::import::{candidates, select, source_with};

fn new_pool(env: &Env, vdev: VdevSpec) -> Arc<Spa> {
    versioned(env, vdev, 5000)
}

fn versioned(env: &Env, vdev: VdevSpec, version: u64) -> Arc<Spa> {
    let spec = PoolSpec {
        tops: vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }],
        ..PoolSpec::default()
    };
    let layout = spec.lay_out(0, 4, &mut || env.guid()).unwrap();
    let new = NewPool {
        name: "oracle".into(),
        label_name: None,
        version,
        features: if version == 5000 { zcommon::features::of_openzfs_2_3() } else { Vec::new() },
        layout,
        hostid: 1,
        hostname: "host".into(),
        command: "zpool create oracle".into(),
    };
    create(env, new, &|_, _| Ok(())).unwrap()
}

#[test]
fn an_empty_pool() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let spa = new_pool(&env, VdevSpec::Leaf(pools::leaf(&dir.path().join("disk1"), 128 << 20)));
    for _ in 0..5 {
        spa.sync().unwrap();
    }
    drop(spa);
    judged(dir.path());
}

/// Before version 3, space is counted with the parity of raidz, also after imports.
#[test]
fn versions_before_3_count_parity() {
    for (version, ratio) in [(2, 512), (3, 341)] {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::system(64 << 20).unwrap();
        let leaves = (1..=3).map(|n| pools::leaf(&dir.path().join(format!("disk{n}")), 128 << 20)).collect();
        let spa = versioned(&env, VdevSpec::Raidz { parity: 1, children: leaves }, version);
        let counted = |spa: &Spa| spa.pool.zio.tree().top(0).unwrap().deflate_ratio();
        assert_eq!(counted(&spa), ratio);
        spa.export().unwrap();
        drop(spa);
        let spa = import_as_found(dir.path());
        assert_eq!(counted(&spa), ratio);
        (0..4).for_each(|_| spa.sync().unwrap());
        spa.export().unwrap();
        drop(spa);
        judged(dir.path());
    }
}

#[test]
fn a_pool_grows_and_changes_its_guid() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let spa = new_pool(&env, VdevSpec::Leaf(pools::leaf(&dir.path().join("disk1"), 128 << 20)));
    let mirror = VdevSpec::Mirror(vec![
        pools::leaf(&dir.path().join("disk2"), 128 << 20),
        pools::leaf(&dir.path().join("disk3"), 128 << 20),
    ]);
    let top = |vdev, class| TopSpec { vdev, class, ashift: None };
    let log = VdevSpec::Leaf(pools::leaf(&dir.path().join("disk4"), 64 << 20));
    let special = VdevSpec::Leaf(pools::leaf(&dir.path().join("disk5"), 64 << 20));
    let tops =
        vec![top(mirror, AllocBias::Normal), top(log, AllocBias::Log), top(special, AllocBias::Special)];
    spa.vdevs().add(PoolSpec { tops, ..PoolSpec::default() }, false).unwrap();
    let leaf = spa.pool.tree().leaves().find(|leaf| leaf.path.ends_with("disk3")).unwrap().guid;
    spa.disks().offline(leaf, false).unwrap();
    assert_eq!(spa.reguid(None).unwrap_err().what(), "one or more devices is currently unavailable");
    spa.disks().online(leaf, Some(Ok(pools::open(&dir.path().join("disk3")))), false).unwrap();
    let old = spa.guid();
    let new = spa.reguid(None).unwrap();
    let details = format!("old={old} new={new}");
    let told = |event: &Event| event.payload.str("history_internal_str") == Some(&details);
    assert!(spa.reports().events().after(0).iter().any(told), "{details}");
    let reguid = |event: &&Event| event.payload.str("class") == Some("sysevent.fs.zfs.pool_reguid");
    let events = spa.reports().events().after(0);
    assert_eq!(events.iter().find(reguid).unwrap().payload.u64("pool_guid"), Some(new));
    (0..3).for_each(|_| spa.sync().unwrap());
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
}

/// OpenZFS takes the space maps and ZAPs of a log in one txg and leaves the hole in the next: here the first was its last.
#[test]
fn a_log_that_is_half_removed_leaves_a_hole() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let spa = new_pool(&env, VdevSpec::Leaf(pools::leaf(&dir.path().join("disk1"), 128 << 20)));
    let new = |name, class| TopSpec {
        vdev: VdevSpec::Leaf(pools::leaf(&dir.path().join(name), 128 << 20)),
        class,
        ashift: None,
    };
    let tops = vec![new("disk2", AllocBias::Log), new("disk3", AllocBias::Normal)];
    spa.vdevs().add(PoolSpec { tops, ..PoolSpec::default() }, false).unwrap();
    (0..3).for_each(|_| spa.sync().unwrap());
    spa.sync_task(|spa, tx| {
        let mut gone = Vec::new();
        spa.config.lock().change_root(|root| {
            let Some(NvValue::ListArray(tops)) = root.get_mut("children") else { panic!("no vdevs") };
            for zap in ["com.delphix:vdev_zap_leaf", "com.delphix:vdev_zap_top"] {
                gone.extend(tops[1].u64(zap));
                tops[1].remove(zap);
            }
            tops[1].remove("metaslab_array");
            tops[1].add("metaslab_array", 0_u64).add("removing", 1_u64);
        });
        let at = spa.datasets.at(tx, spa);
        let all = at.zap_word(MOS_DIRECTORY_OBJECT, mos::VDEV_ZAP_MAP)?.unwrap();
        gone.into_iter().try_for_each(|zap| {
            at.zap_remove(all, &format!("{zap:x}"))?;
            at.free_object(zap)
        })
    })
    .unwrap();
    drop(spa);
    let candidate = select(candidates(&[dir.path().to_owned()]), "oracle").unwrap();
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    let import_options = ImportOptions { hostid: 1, ..ImportOptions::default() };
    let spa = import(&env, source_with(&candidate, options), &import_options).unwrap();
    let kinds: Vec<Kind> = spa.pool.tree().config.children.iter().map(|top| top.kind).collect();
    assert_eq!(kinds, [Kind::File, Kind::Hole, Kind::File]);
    (0..3).for_each(|_| spa.sync().unwrap());
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
}

#[test]
fn a_pool_gets_spares_and_caches() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let spa = new_pool(&env, VdevSpec::Leaf(pools::leaf(&dir.path().join("disk1"), 128 << 20)));
    let device = |name| vec![pools::leaf(&dir.path().join(name), 64 << 20)];
    spa.vdevs().add(PoolSpec { spares: device("spare1"), ..PoolSpec::default() }, false).unwrap();
    spa.vdevs()
        .add(PoolSpec { spares: device("spare2"), cache: device("cache1"), ..PoolSpec::default() }, false)
        .unwrap();
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
    // They are listed where they are, after a move, too.
    let moved = dir.path().join("moved");
    std::fs::create_dir(&moved).unwrap();
    for name in ["disk1", "spare1", "spare2", "cache1"] {
        std::fs::rename(dir.path().join(name), moved.join(name)).unwrap();
    }
    import_as_found(&moved).export().unwrap();
    judged(&moved);
    let env = Env::system(64 << 20).unwrap();
    let pool = zutil::import::open_pool(&env, &[moved], "oracle", Default::default()).unwrap();
    for (name, count) in [("spares", 2), ("l2cache", 1)] {
        let number = pool.directory().unwrap().u64(name).unwrap().unwrap();
        let list = engine::spa::packed_nvlist(&pool.mos.object(number).unwrap()).unwrap();
        let paths: Vec<_> = list.nvlist_array(name).unwrap().iter().filter_map(|d| d.str("path")).collect();
        assert!(paths.len() == count && paths.iter().all(|path| Path::new(path).exists()), "{paths:?}");
    }
}

fn import_as_found(dir: &Path) -> Arc<Spa> {
    let env = Env::system(64 << 20).unwrap();
    let found = select(candidates(&[dir.to_owned()]), "oracle").unwrap();
    let members = found.members.values();
    let paths = members.map(|leaf| (leaf.guid, leaf.path.to_str().unwrap().to_owned())).collect();
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    import(&env, source_with(&found, options), &ImportOptions { paths, ..Default::default() }).unwrap()
}

fn judged(dir: &Path) {
    if zdb::installed() {
        zdb::verify(dir, "oracle").unwrap();
    }
}

#[test]
fn objects_of_a_dataset_are_written_changed_and_freed() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let leaves = (1..=5).map(|n| pools::leaf(&dir.path().join(format!("disk{n}")), 128 << 20)).collect();
    let spa = new_pool(&env, VdevSpec::Raidz { parity: 2, children: leaves });
    let head = spa.pool.dsl.dataset("oracle").unwrap().number;
    let root = spa.datasets.open(&*spa, head).unwrap();
    let mut random = Rng::new(5);
    let mut numbers: Vec<u64> = Vec::new();
    for round in 0..60 {
        let tx = spa.begin().unwrap();
        let size = 512 << random.below(9);
        let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, size);
        let object = root.objset.create_object(&tx, new).unwrap();
        numbers.push(object.number);
        for _ in 0..random.below(40) {
            let mut bytes = vec![0; random.below(30_000) as usize];
            if random.below(3) > 0 {
                random.fill(&mut bytes);
            } else if random.below(2) > 0 {
                bytes.fill(7);
            }
            let number = numbers[random.below(numbers.len() as u64) as usize];
            let object = root.objset.handle(number).unwrap();
            match random.below(5) {
                0 => {
                    let start = random.below(100);
                    object.free_blocks(&tx, start, start + random.below(1000)).unwrap();
                }
                _ => object.write(&tx, random.below(8 << 20), &bytes).unwrap(),
            }
        }
        if random.below(4) == 0 {
            let number = numbers.remove(random.below(numbers.len() as u64) as usize);
            root.objset.free_object(&tx, number).unwrap();
        }
        drop(tx);
        if round % 3 == 0 {
            spa.sync().unwrap();
        }
    }
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
}
