//! Gang headers of the size of an allocation: gangs within gangs make `dynamic_gang_header` active; OpenZFS
//! 2.4 reads blocks written before and after.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use engine::env::Env;
use engine::spa::Spa;
use engine::spa::layout::{LeafSpec, TopSpec, VdevSpec};
use engine::vdev::config::AllocBias;
use engine::vdev::plan::DATA_START;
use engine::zio::gang_members;
use testkit::pattern::Pattern;
use testkit::{pools, zdb};
use zcommon::draid::DraidConfig;
use zcommon::features::Feature;

const POOL: &str = "ganged";
const BLOCK: usize = 128 << 10;
const BLOCKS: usize = 24;
const FILE: Pattern = Pattern { blocks: BLOCKS, block: BLOCK };

fn leaves(dir: &Path, numbers: std::ops::Range<usize>) -> Vec<LeafSpec> {
    numbers.map(|number| pools::leaf(&dir.join(format!("disk{number}")), 128 << 20)).collect()
}

fn top(vdev: VdevSpec, ashift: u32) -> TopSpec {
    TopSpec { vdev, class: AllocBias::Normal, ashift: Some(ashift) }
}

/// A layout and the bytes of its largest header.
fn layouts(dir: &Path, which: usize) -> (Vec<TopSpec>, u64) {
    let disk = |number: usize, ashift| top(VdevSpec::Leaf(leaves(dir, number..number + 1).remove(0)), ashift);
    match which {
        0 => (vec![disk(0, 12)], 4096),
        1 => (vec![top(VdevSpec::Raidz { parity: 1, children: leaves(dir, 0..3) }, 12)], 4096),
        // Copies of a header stand on both vdevs: it has the size of the smaller allocation.
        2 => (vec![disk(0, 12), disk(1, 13)], 4096),
        _ => {
            let config = DraidConfig { parity: 1, data: 2, children: 4, spares: 0 };
            (vec![top(VdevSpec::Draid { config, children: leaves(dir, 0..4) }, 12)], 8192)
        }
    }
}

/// Reads the object; returns the sizes of its blocks' gang headers.
fn read(spa: &Arc<Spa>, (number, object): (u64, u64)) -> Vec<u64> {
    let data = spa.datasets.open(&**spa, number).unwrap();
    let object = data.objset.view().object(object).unwrap();
    let pointers: Vec<_> =
        (0..BLOCKS as u64).map(|block| object.blkptr(0, block).unwrap().unwrap()).collect();
    for at in 0..BLOCKS {
        assert!(object.read_vec((at * BLOCK) as u64, BLOCK).unwrap() == FILE.bytes(at));
    }
    pointers.iter().map(|bp| gang_members(&spa.pool.zio, bp).unwrap().header_size).collect()
}

#[test]
fn headers_grow_once_gangs_nest() {
    for which in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let (tops, wide) = layouts(dir.path(), which);
        let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
        spa.props().enable_features(vec![Feature::DynamicGangHeader]).unwrap();
        spa.space.force_ganging(16 << 10);
        let old = FILE.create(&spa, &format!("{POOL}/old"));
        assert_eq!(read(&spa, old), vec![512; BLOCKS], "layout {which}");
        spa.sync().unwrap();
        assert!(spa.features.is_active(Feature::DynamicGangHeader), "layout {which}");
        let new = FILE.create(&spa, &format!("{POOL}/new"));
        assert_eq!(read(&spa, new), vec![wide; BLOCKS], "layout {which}");
        spa.export().unwrap();
        drop(spa);
        let judge = zdb::Judge::NEWEST;
        let verify = || judge.installed().then(|| judge.verify(dir.path(), POOL).unwrap());
        verify();
        let spa = pools::import_dir(dir.path(), POOL).unwrap();
        assert_eq!((read(&spa, old), read(&spa, new)), (vec![512; BLOCKS], vec![wide; BLOCKS]));
        for name in ["old", "new"] {
            let name = format!("{POOL}/{name}");
            spa.dsl_task(move |t| t.destroy(&name, false)).unwrap();
            spa.sync().unwrap();
        }
        spa.export().unwrap();
        drop(spa);
        verify();
    }
}

/// Nothing is larger than 512 bytes where no larger header exists or the feature is disabled.
#[test]
fn headers_stay_small_where_they_must() {
    for (ashift, enabled) in [(9, true), (12, false)] {
        let dir = tempfile::tempdir().unwrap();
        let tops = vec![top(VdevSpec::Leaf(leaves(dir.path(), 0..1).remove(0)), ashift)];
        let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
        if enabled {
            spa.props().enable_features(vec![Feature::DynamicGangHeader]).unwrap();
        }
        spa.space.force_ganging(16 << 10);
        let first = FILE.create(&spa, &format!("{POOL}/first"));
        spa.sync().unwrap();
        assert!(!spa.features.is_active(Feature::DynamicGangHeader));
        let second = FILE.create(&spa, &format!("{POOL}/second"));
        assert_eq!([read(&spa, first), read(&spa, second)].concat(), vec![512; 2 * BLOCKS]);
        spa.export().unwrap();
    }
}

/// The MOS names the features, so that a program that opens the pool reads its gangs before it knows the size of headers.
#[test]
fn headers_of_the_mos_stay_small() {
    let dir = tempfile::tempdir().unwrap();
    let tops = vec![top(VdevSpec::Leaf(leaves(dir.path(), 0..1).remove(0)), 10)];
    let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
    spa.props().enable_features(vec![Feature::DynamicGangHeader]).unwrap();
    spa.space.force_ganging(1024);
    FILE.create(&spa, &format!("{POOL}/data"));
    for number in 0..24 {
        let name = format!("{POOL}/{number}");
        spa.dsl_task(move |t| t.create(&name, ondisk::ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
    }
    assert!(spa.features.is_active(Feature::DynamicGangHeader));
    let view = spa.mos.view();
    let objects = (1..400).filter_map(|number| view.object(number).ok());
    let blocks =
        objects.flat_map(|object| (0..4).filter_map(move |blkid| object.blkptr(0, blkid).ok().flatten()));
    let gangs: Vec<_> = blocks.filter(|bp| bp.is_gang()).collect();
    let late = gangs.iter().filter(|bp| bp.accounting_birth() > spa.txgs.synced() - 24);
    assert!(late.count() > 0, "no block of the MOS became a gang since the feature is active");
    for bp in &gangs {
        assert_eq!(gang_members(&spa.pool.zio, bp).unwrap().header_size, 512);
    }
    spa.export().unwrap();
    drop(spa);
    if zdb::Judge::NEWEST.installed() {
        zdb::Judge::NEWEST.verify(dir.path(), POOL).unwrap();
    }
    pools::import_dir(dir.path(), POOL).unwrap().export().unwrap();
}

/// A gang whose header is lost can be freed: only the space of its pieces is lost with it.
#[test]
fn a_gang_with_a_damaged_header_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let tops = vec![top(VdevSpec::Leaf(leaves(dir.path(), 0..1).remove(0)), 12)];
    let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
    spa.space.force_ganging(16 << 10);
    let (number, object) = FILE.create(&spa, &format!("{POOL}/old"));
    let view = spa.datasets.open(&*spa, number).unwrap().objset.view();
    let lost = view.object(object).unwrap().blkptr(0, 3).unwrap().unwrap();
    drop(view);
    spa.export().unwrap();
    drop(spa);
    let disk = std::fs::OpenOptions::new().write(true).open(dir.path().join("disk0")).unwrap();
    lost.dvas().for_each(|dva| disk.write_all_at(&[0xa5; 512], dva.offset + DATA_START).unwrap());
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let data = spa.datasets.open(&*spa, number).unwrap();
    let tx = spa.begin().unwrap();
    data.objset.free_object(&tx, object).unwrap();
    drop((tx, data));
    (0..4).for_each(|_| spa.sync().unwrap());
    let events = spa.reports().events().after(0);
    assert!(events.iter().any(|event| event.class == "ereport.fs.zfs.data"), "it is reported");
    spa.space.force_ganging(16 << 10);
    let new = FILE.create(&spa, &format!("{POOL}/new"));
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    read(&spa, new);
    spa.export().unwrap();
    drop(spa);
    let judge = zdb::Judge::NEWEST;
    if judge.installed() {
        let text = judge.run(dir.path(), POOL, &["-bcc"]).unwrap_or_else(|text| text);
        let leaks = text.lines().filter(|line| line.starts_with("leaked space:"));
        let sizes = leaks.map(|line| line.rsplit_once("size ").unwrap().1.parse::<usize>().unwrap());
        let lost: usize = sizes.sum();
        // Pieces that are gangs have headers.
        assert!((BLOCK..2 * BLOCK).contains(&lost), "{lost} bytes\n{text}");
        assert!(!text.contains("errors:") && !text.contains("checksum errors"), "{text}");
    }
}
