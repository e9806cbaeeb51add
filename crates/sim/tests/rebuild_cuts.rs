//! Power cuts while space maps and tables are rebuilt: at each moment the pool is either as it was, and the
//! rebuild begins again, or whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use blkdev::Device;
use engine::Result;
use engine::scan::account::WINDOW_SECTORS;
use engine::scan::damage::{assess, which};
use engine::scan::rebuild::{RebuildOptions, survey};
use engine::spa::{ImportOptions, OpenOptions, Spa, import_rebuilt, open};
use sim::check::{opened, whole};
use sim::crash::ForeignPool;
use sim::disk::Record;
use sim::image::{Pages, Replay};
use sim::world::{as_devices, disks_of, env, found, recorded};
use stdx::rng::Rng;
use testkit::hurt::{blocks, destroy};
use testkit::{golden, pools};

fn rebuild(devices: &[Device]) -> Result<Arc<Spa>> {
    let (env, stop) = (env(1), AtomicBool::new(false));
    let pool = open(&env, found(devices).unwrap(), OpenOptions::default())?;
    let which = which(&pool, &assess(&pool, &stop));
    let options = RebuildOptions { which, window: WINDOW_SECTORS, accept: false, stop: &stop };
    let derived = survey(&pool, &options, &mut |_| ())?;
    drop(pool);
    let how = ImportOptions { hostid: 7, hostname: "sim".into(), force: true, ..Default::default() };
    import_rebuilt(&env, found(devices).unwrap(), &how, derived)
}

/// Whether nothing is damaged and nothing is leaked.
fn is_whole(devices: &[Device]) -> std::result::Result<(), String> {
    let pool = opened(devices)?;
    let damage = assess(&pool, &AtomicBool::new(false));
    match damage.first() {
        Some(damage) => Err(format!("{}: {}", damage.what, damage.why)),
        None => whole(&pool).map(drop),
    }
}

fn checked(image: &[Pages], committed: u64, at: usize) {
    let devices = as_devices(&disks_of(image));
    if opened(&devices).unwrap().uberblock.txg >= committed {
        return is_whole(&devices).unwrap_or_else(|why| panic!("event {at}, committed: {why}"));
    }
    let spa = rebuild(&devices).unwrap_or_else(|why| panic!("event {at}: {why}"));
    spa.sync().unwrap();
    spa.export().unwrap();
    drop(spa);
    is_whole(&devices).unwrap_or_else(|why| panic!("event {at}, rebuilt again: {why}"));
}

fn cut(name: &str, hurts: &dyn Fn(&engine::spa::Pool) -> Vec<ondisk::Blkptr>, moments: usize) {
    let Some(golden) = golden::get(name) else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let pool = zutil::import::candidates(&[dir.path().to_path_buf()]).remove(0).name;
    assert!(destroy(dir.path(), &pool, hurts) > 0);
    let images = ForeignPool::in_folder(dir.path()).unwrap().disks;
    let record = Arc::new(Record::default());
    let disks = recorded(&images, &record);
    let spa = rebuild(&as_devices(&disks)).unwrap();
    spa.sync().unwrap();
    let committed = spa.uberblock().txg;
    drop(spa);
    // The txg of the rebuild is the first that the pool has not had.
    let before = opened(&as_devices(&disks_of(&images))).unwrap().uberblock.txg;
    assert!(committed > before);
    let (events, mut replay, mut random) = (record.take(), Replay::new(images), Rng::new(7));
    let every = (events.len() / moments).max(1);
    for (at, event) in events.iter().enumerate() {
        replay.step(event);
        if at % every == 0 {
            for variant in 0..replay.variants(3) {
                checked(&replay.image(variant, &mut random), before + 1, at);
            }
        }
    }
}

fn maps(pool: &engine::spa::Pool) -> Vec<ondisk::Blkptr> {
    let objects = pool.mos.objects().map(Result::unwrap);
    let tree = pool.tree();
    let dtls: Vec<u64> = tree.config.walk().iter().map(|config| config.dtl_object).collect();
    let maps = objects.filter(|o| o.dnode.object_type == ondisk::ObjectType::SPACE_MAP);
    let maps = maps.map(|object| object.number).filter(|number| !dtls.contains(number));
    maps.flat_map(|number| blocks(pool, number, 0)).collect()
}

fn tables(pool: &engine::spa::Pool) -> Vec<ondisk::Blkptr> {
    let dedup = engine::ddt::tables(&pool.mos, &mut Vec::new());
    let dedup = dedup.iter().flat_map(|table| table.stores.iter().map(|store| store.object));
    let clones = engine::brt::named(&pool.mos).unwrap();
    let clones = clones.iter().filter_map(|(_, number)| engine::brt::entries_object(&pool.mos, *number));
    dedup.chain(clones).flat_map(|number| blocks(pool, number, 0)).collect()
}

#[test]
fn rebuilds_survive_power_cuts() {
    cut("raidz1-3", &maps, 10);
    cut("dedup-fast", &tables, 10);
    cut("reflink", &tables, 10);
}

#[test]
#[ignore = "minutes"]
fn rebuilds_survive_power_cuts_at_many_moments() {
    for (name, hurts) in [
        ("mirror3", &maps as &dyn Fn(&engine::spa::Pool) -> Vec<ondisk::Blkptr>),
        ("raidz1-3", &maps),
        ("unclean-log", &maps),
        ("dedup-fast", &tables),
        ("dedup-legacy", &tables),
        ("reflink", &tables),
    ] {
        cut(name, hurts, 300);
    }
}
