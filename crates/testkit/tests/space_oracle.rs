//! Pools in which much is written and freed over many txgs, so that space maps grow, are flushed and
//! condensed; real zdb checks them at several moments.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use engine::dmu::{NewObject, Tx};
use engine::dsl::props::PropValue;
use engine::dsl::write::Hooks;
use engine::env::Env;
use engine::metaslab::policy::MetaslabLimits;
use engine::spa::layout::{PoolSpec, TopSpec, VdevSpec};
use engine::spa::space::PoolSpace;
use engine::spa::{NewPool, Spa, create};
use engine::vdev::config::AllocBias;
use stdx::rng::Rng;
use testkit::{pools, zdb};
use zcommon::features::Feature;

fn one(dir: &Path, name: &str, size: u64) -> VdevSpec {
    VdevSpec::Leaf(pools::leaf(&dir.join(name), size))
}

fn top(vdev: VdevSpec, class: AllocBias, ashift: u32) -> TopSpec {
    TopSpec { vdev, class, ashift: Some(ashift) }
}

fn pool(env: &Env, tops: Vec<TopSpec>, without: &[Feature]) -> Arc<Spa> {
    let features = zcommon::features::of_openzfs_2_3().into_iter().filter(|f| !without.contains(f));
    let spec = PoolSpec { tops, ..PoolSpec::default() };
    let new = NewPool {
        name: "space".into(),
        label_name: None,
        version: 5000,
        features: features.collect(),
        layout: spec.lay_out(0, 4, &mut || env.guid()).unwrap(),
        hostid: 1,
        hostname: "host".into(),
        command: "zpool create space".into(),
    };
    create(env, new, &|_, _| Ok(())).unwrap()
}

/// Objects of the MOS that come, change and go. They are known by no name, which only zdb's list of objects minds.
struct Load {
    spa: Arc<Spa>,
    rng: Rng,
    objects: Vec<u64>,
}

impl Load {
    fn group(&mut self, blocks: u64) {
        let (seed, objects) = (self.rng.next_u64(), self.objects.clone());
        let work = move |spa: &Spa, tx: &Tx| {
            let (mut rng, mut objects) = (Rng::new(seed), objects);
            for _ in 0..blocks {
                match rng.below(10) {
                    0 => {
                        let new = NewObject::plain(ondisk::ObjectType::UINT64_OTHER, 512 << rng.below(9));
                        objects.push(spa.mos.create_object(tx, new)?.number);
                    }
                    1 if objects.len() > 20 => {
                        let at = rng.below(objects.len() as u64) as usize;
                        spa.mos.free_object(tx, objects.swap_remove(at))?;
                    }
                    _ if !objects.is_empty() => {
                        let at = rng.below(objects.len() as u64) as usize;
                        let handle = spa.mos.handle(objects[at])?;
                        let size = handle.dnode().datablksz();
                        let mut bytes = vec![0; size as usize];
                        rng.fill(&mut bytes);
                        handle.write(tx, size * rng.below(40), &bytes)?;
                    }
                    _ => {}
                }
            }
            Ok(objects)
        };
        self.objects = self.spa.sync_task(work).unwrap();
    }
}

fn run(tops: impl FnOnce(&Path) -> Vec<TopSpec>, without: &[Feature], groups: u64, limits: MetaslabLimits) {
    if !zdb::installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let spa = pool(&env, tops(dir.path()), without);
    spa.space.set_limits(limits);
    let mut load = Load { spa, rng: Rng::new(7), objects: Vec::new() };
    for group in 1..=groups {
        load.group(60);
        if group % (groups / 3) == 0 {
            zdb::verify(dir.path(), "space").unwrap();
        }
    }
    // Only used space remains: in the space maps, too.
    load.spa.export().unwrap();
    drop(load);
    zdb::verify(dir.path(), "space").unwrap();
    let maps = zdb::run(dir.path(), "space", &["-mmm"]).unwrap();
    assert!(maps.contains("metaslab"), "{maps}");
}

fn disk(dir: &Path) -> Vec<TopSpec> {
    vec![top(one(dir, "disk", 300 << 20), AllocBias::Normal, 9)]
}

#[test]
fn with_logs() {
    run(disk, &[], 30, MetaslabLimits::default());
}

/// Few logs may stay, so that many metaslabs are flushed; small maps are condensed often.
#[test]
fn with_few_logs() {
    let limits = MetaslabLimits { logged_block: 1024, logs: 5, log_blocks: 10, ..MetaslabLimits::default() };
    run(disk, &[], 30, limits);
}

#[test]
fn without_logs() {
    run(
        disk,
        &[Feature::LogSpacemap],
        40,
        MetaslabLimits { classic_block: 512, ..MetaslabLimits::default() },
    );
}

#[test]
fn without_entries_of_two_words_and_histograms() {
    run(
        disk,
        &[Feature::LogSpacemap, Feature::SpacemapV2, Feature::SpacemapHistogram],
        30,
        MetaslabLimits::default(),
    );
}

#[test]
fn classes_and_raidz() {
    let tops = |dir: &Path| {
        let leaves = (0..4).map(|i| pools::leaf(&dir.join(format!("raidz{i}")), 100 << 20)).collect();
        vec![
            top(VdevSpec::Raidz { parity: 1, children: leaves }, AllocBias::Normal, 12),
            top(one(dir, "special", 80 << 20), AllocBias::Special, 12),
            top(one(dir, "log", 80 << 20), AllocBias::Log, 12),
        ]
    };
    run(tops, &[], 20, MetaslabLimits::default());
}

/// The space that writers may use equals that which a reader of the pool shows: vdevs on which nothing is allocated, their part of the
/// embedded log (which is more than the smallest slop here), and other classes count in the same way.
#[test]
fn writers_and_readers_count_the_same_space() {
    const SIZE: u64 = 16 << 30;
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let normal = |name| top(one(dir.path(), name, SIZE), AllocBias::Normal, 12);
    let special = top(one(dir.path(), "special", 1 << 30), AllocBias::Special, 12);
    pool(&env, vec![normal("disk1"), normal("disk2"), special], &[]).export().unwrap();
    let mut seen = Vec::new();
    for closed in [false, true] {
        let spa = testkit::pools::import_dir(dir.path(), "space").unwrap();
        let guid = spa.pool.tree().leaves().find(|leaf| leaf.path.ends_with("disk2")).unwrap().guid;
        let set = [("allocating".to_owned(), PropValue::Number(u64::from(!closed)))];
        spa.sync_task(move |spa, tx| spa.disks().set_props(guid, &set, tx)).unwrap();
        // The last frees are deferred for some txgs.
        (0..4).for_each(|_| spa.sync().unwrap());
        let [of_writers, slop] = [false, true].map(|netfree| Hooks::pool_space(&*spa, netfree));
        spa.export().unwrap();
        drop(spa);
        let dirs = [dir.path().to_owned()];
        let read = zutil::import::open_pool(&env, &dirs, "space", Default::default()).unwrap();
        let mut notes = Vec::new();
        let space = PoolSpace::of(&read, &mut notes);
        assert_eq!((space.usable(), PoolSpace::usable_of(&read, None, &mut notes)), (of_writers, of_writers));
        assert_eq!(space.slop() - space.slop() / 2, slop - of_writers);
        assert!(notes.is_empty(), "{notes:?}");
        seen.push((of_writers, space.slop()));
    }
    assert!(seen[0].0 > seen[1].0 + SIZE / 2 && seen[0].1 > 128 << 20, "{seen:?}");
}
