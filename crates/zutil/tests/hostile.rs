//! Labels from an enemy: whatever they say, the answer comes soon, in bounded memory, without panic.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use blkdev::MemDevice;
use common::{ALL, interior, label, leaf, seal, write_labels};
use nvpair::{NvList, NvValue};
use ondisk::Endian;
use ondisk::label::{PHYS_OFFSET, PHYS_SIZE, RING_OFFSET, label_offset};
use proptest::prelude::*;
use zutil::import_listing::{ListingOptions, LoadOutcome, render};
use zutil::ring::read_uberblocks;
use zutil::{DeviceLabels, discover, search};

/// Everything that is done with a folder of devices.
fn exercise(dir: &std::path::Path) -> Vec<String> {
    let pools = search(&discover(&[dir.to_owned()]).devices);
    let texts = pools.iter().map(|pool| {
        pool.open(blkdev::OpenOptions::default());
        pool.notes.iter().for_each(|note| drop(note.to_string()));
        let outcome = LoadOutcome::from_label(pool).unwrap_or(LoadOutcome::NotTried);
        render(pool, &LoadOutcome::Corrupt, ListingOptions::default());
        render(pool, &outcome, ListingOptions::default())
    });
    texts.collect()
}

fn one_device(config: &NvList) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    write_labels(&dir.path().join("a"), config, &ALL);
    exercise(dir.path())
}

#[test]
fn places_that_no_pool_has() {
    for id in [u64::MAX, 1 << 40, 5000] {
        assert_eq!(one_device(&label("tank", 7, 50, u64::MAX, 11, &leaf(id, 11, "/x"))).len(), 1);
    }
}

#[test]
fn trees_without_end() {
    let mut deep = leaf(0, 11, "/x");
    for _ in 0..90 {
        deep = interior("mirror", 0, 10, vec![deep]);
    }
    one_device(&label("tank", 7, 50, 1, 11, &deep));
    let wide = interior("mirror", 0, 10, (0..900).map(|i| leaf(i, 11, "/x")).collect());
    one_device(&label("tank", 7, 50, 1, 11, &wide));
}

#[test]
fn values_of_the_wrong_kind() {
    let good = label("tank", 7, 50, 1, 11, &leaf(0, 11, "/x"));
    for pair in &good {
        for wrong in
            [NvValue::Boolean, NvValue::Uint64(u64::MAX), NvValue::from("x"), NvValue::ListArray(vec![])]
        {
            let mut bad = good.clone();
            bad.add(pair.name.clone(), wrong);
            one_device(&bad);
        }
        let mut without = good.clone();
        without.remove(pair.name.as_bytes());
        one_device(&without);
    }
}

#[test]
fn numbers_at_their_limits() {
    for name in ["asize", "metaslab_shift", "ashift", "nparity", "id", "whole_disk", "draid_ndata", "is_log"]
    {
        for value in [0, 1, 63, 64, u64::MAX] {
            let mut top = interior("raidz", 0, 10, vec![leaf(0, 11, "/x"), leaf(1, 12, "/y")]);
            top.add(name, value);
            one_device(&label("tank", 7, 50, 1, 11, &top));
        }
    }
}

#[test]
fn paths_that_lead_nowhere_good() {
    let paths = ["", "/", ".", "/dev/null", "/dev/zero", "/proc/self/mem", "/dev/tty", "\u{fffd}/x"];
    for path in paths {
        let top = interior("mirror", 0, 10, vec![leaf(0, 11, "/x"), leaf(1, 12, path)]);
        one_device(&label("tank", 7, 50, 1, 11, &top));
    }
}

#[test]
fn names_that_are_no_text() {
    let mut config = label("tank", 7, 50, 1, 11, &leaf(0, 11, "/x"));
    config.add("name", NvValue::String(vec![0xff, b'a', 0x80].into()));
    assert!(one_device(&config)[0].starts_with("  pool: \u{fffd}a\u{fffd}\n"));
}

fn device(parts: &[(u64, Vec<u8>)]) -> MemDevice {
    let mut bytes = vec![0; 4 << 20];
    for (offset, part) in parts {
        let at = usize::try_from(*offset).unwrap();
        bytes[at..at + part.len()].copy_from_slice(part);
    }
    MemDevice::new("m", bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_in_a_label(bytes in proptest::collection::vec(any::<u8>(), 0..2000), sealed: bool) {
        let len = usize::try_from(PHYS_SIZE).unwrap();
        let at = label_offset(4 << 20, 0).unwrap() + PHYS_OFFSET;
        let block = if sealed { seal(bytes, len, at, Endian::Big) } else { bytes };
        let labels = DeviceLabels::read(&device(&[(at, block)]));
        labels.best();
        labels.others();
    }

    #[test]
    fn a_real_label_with_flipped_bits(flips in proptest::collection::vec((0usize..1200, 0u8..8), 1..12)) {
        let children = (0..3).map(|i| leaf(i, 11 + i, "/x")).collect();
        let config = label("tank", 7, 50, 2, 11, &interior("raidz", 0, 10, children));
        let mut packed = config.encode_xdr().unwrap();
        for (at, bit) in flips {
            let at = at % packed.len();
            packed[at] ^= 1 << bit;
        }
        let at = PHYS_OFFSET;
        let block = seal(packed, usize::try_from(PHYS_SIZE).unwrap(), at, Endian::Little);
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("a")).unwrap();
        file.set_len(common::SIZE).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &block, at).unwrap();
        exercise(dir.path());
    }

    #[test]
    fn any_bytes_in_a_ring(
        bytes in proptest::collection::vec(any::<u8>(), 1024),
        ashift in proptest::option::of(0u32..40),
        magic: bool,
    ) {
        let mut bytes = bytes;
        if magic {
            bytes[..8].copy_from_slice(&ondisk::uberblock::UBERBLOCK_MAGIC.to_le_bytes());
        }
        read_uberblocks(&device(&[(RING_OFFSET, bytes)]), ashift);
    }

    #[test]
    fn devices_of_any_size(size in 0usize..(2 << 20)) {
        let dev = MemDevice::new("m", vec![0xa5; size]);
        prop_assert!(DeviceLabels::read(&dev).best().is_none());
        prop_assert!(read_uberblocks(&dev, Some(9)).is_empty());
    }
}
