//! Labels and uberblocks of real pools, encoded again by us: the same bytes.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use engine::vdev::label::sealed;
use nvpair::NvList;
use ondisk::label::{LABELS, PHYS_OFFSET, PHYS_SIZE, RING_OFFSET, RING_SIZE, label_offset, uberblock_shift};
use ondisk::{Endian, Uberblock};
use testkit::golden;

/// How many labels and uberblocks of a device came out the same.
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
