//! Labels and uberblocks of real pools, encoded again by us: the same bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use engine::spa::layout::config::{PoolFacts, guid_sum, put_in_order};
use engine::vdev::label::sealed;
use nvpair::NvList;
use ondisk::label::{LABELS, PHYS_OFFSET, PHYS_SIZE, RING_OFFSET, RING_SIZE, label_offset, uberblock_shift};
use ondisk::{Endian, Uberblock};
use testkit::golden;
use zcommon::vdev::PoolState;

/// Number of equal labels and uberblocks of a device.
fn check(path: &Path) -> (usize, usize) {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let (mut labels, mut slots) = (0, 0);
    for start in (0..LABELS).filter_map(|index| label_offset(size, index)) {
        let mut block = vec![0; PHYS_SIZE as usize];
        file.read_exact_at(&mut block, start + PHYS_OFFSET).unwrap();
        let Ok(label) = NvList::decode(&block) else { continue };
        let again = sealed(&label.encode_xdr().unwrap(), PHYS_SIZE, start + PHYS_OFFSET);
        assert!(*again == *block, "label at {start} of {}", path.display());
        labels += 1;
        let ashift = label.nvlist("vdev_tree").and_then(|tree| tree.u64("ashift")).or(label.u64("ashift"));
        let slot = 1usize << uberblock_shift(ashift.unwrap_or(9) as u32);
        let mut ring = vec![0; RING_SIZE as usize];
        file.read_exact_at(&mut ring, start + RING_OFFSET).unwrap();
        for (number, block) in ring.chunks(slot).enumerate() {
            let Ok(uberblock) = Uberblock::from_bytes(block) else { continue };
            if uberblock.endian == Endian::Big || uberblock.txg == 0 {
                continue;
            }
            let offset = start + RING_OFFSET + (number * slot) as u64;
            assert!(
                *sealed(&uberblock.to_bytes(), slot as u64, offset) == *block,
                "{}: slot {number}",
                path.display()
            );
            slots += 1;
        }
    }
    (labels, slots)
}

#[test]
fn labels_and_uberblocks_of_golden_pools_are_encoded_to_the_same_bytes() {
    let (mut labels, mut slots) = (0, 0);
    for pool in golden::all() {
        for entry in std::fs::read_dir(&pool.dir).unwrap().flatten() {
            let is_device = entry.metadata().is_ok_and(|meta| meta.is_file() && meta.len() >= 64 << 20);
            if is_device {
                let (l, s) = check(&entry.path());
                labels += l;
                slots += s;
            }
        }
    }
    eprintln!("{labels} labels and {slots} uberblocks");
    assert!(golden::all().is_empty() || (labels > 0 && slots > 0));
}

/// The facts of a pool as one of its labels has them.
fn facts(label: &NvList) -> PoolFacts {
    let word = |key: &str| label.str(key).map(str::to_owned);
    let number = |key: &str| label.u64(key).unwrap_or(0);
    let features = label
        .nvlist("features_for_read")
        .map(|list| list.iter().map(|pair| pair.name.to_string_lossy().into_owned()).collect());
    PoolFacts {
        version: number("version"),
        name: word("name").unwrap(),
        state: PoolState::from_number(number("state")).unwrap(),
        txg: number("txg"),
        errata: number("errata"),
        comment: word("comment"),
        compatibility: word("compatibility"),
        hostid: number("hostid"),
        hostname: word("hostname").unwrap_or_default(),
        features_for_read: features.unwrap_or_default(),
        split: None,
    }
}

/// OpenZFS 2.4 tells other tools the smallest and the largest allocation of a pool; no import reads them.
fn without_allocations(config: &NvList) -> NvList {
    let mut config = config.clone();
    ["min_alloc", "max_alloc"].iter().for_each(|key| drop(config.remove(key)));
    config
}

#[test]
fn labels_are_made_from_the_mos_as_openzfs_made_them() {
    let (mut labels, mut pools) = (0, 0);
    for golden in golden::all() {
        let Ok(pool) = golden.open() else { continue };
        let root = pool.config.nvlist("vdev_tree").unwrap();
        let mut ordered = root.clone();
        put_in_order(&mut ordered);
        assert_eq!(ordered, *root, "{}: keys are in order", golden.name);
        assert_eq!(guid_sum(root), pool.uberblock.guid_sum, "{}", golden.name);
        if pool.config.u64("errata").is_none() {
            continue;
        }
        let again = facts(&pool.config).mos_config(root);
        assert_eq!(again, without_allocations(&pool.config), "{}", golden.name);
        pools += 1;
        for leaf in pool.tree().leaves().filter_map(|leaf| leaf.device()) {
            let best = zutil::label::DeviceLabels::read(&*leaf);
            let Some(label) = best.best() else { continue };
            // An older label of a disk that was absent for a while tells of an older tree.
            if label.u64("txg") != pool.config.u64("txg") {
                continue;
            }
            let again = facts(label).leaf_label(root, label.u64("guid").unwrap()).unwrap();
            assert_eq!(again, without_allocations(label), "{}", golden.name);
            labels += 1;
        }
    }
    eprintln!("{labels} labels of {pools} pools");
}

#[test]
fn spares_and_cache_devices_have_their_own_labels() {
    let Some(golden) = golden::get("classes") else { return };
    let pool = golden.open().unwrap();
    let directory = engine::zap::Zap::open(&pool.mos.object(1).unwrap()).unwrap();
    let facts = facts(&pool.config);
    for (key, disk) in [("spares", "disk8"), ("l2cache", "disk7")] {
        let object = pool.mos.object(directory.need(key).unwrap()).unwrap();
        let list = engine::spa::packed_nvlist(&object).unwrap();
        let entry = &list.nvlist_array(key).unwrap()[0];
        let mut ordered = entry.clone();
        put_in_order(&mut ordered);
        assert_eq!(ordered, *entry);
        let label = if key == "spares" { facts.spare_label(entry) } else { facts.cache_label(entry) };
        let device = blkdev::FileDevice::open(golden.dir.join(disk), Default::default()).unwrap();
        assert_eq!(*zutil::label::DeviceLabels::read(&device).best().unwrap(), label);
    }
}
