//! Device images with labels, made to order.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use checksum::Algorithm;
use nvpair::{NvList, NvValue};
use ondisk::label::{PHYS_OFFSET, PHYS_SIZE, RING_OFFSET, label_offset, label_verifier};
use ondisk::{Blkptr, Eck, EckPhys, Endian, Uberblock};

/// Size of every image: just above the least that OpenZFS looks at.
pub const SIZE: u64 = 65 << 20;

/// Adds the trailer that makes `body` a label block at this offset.
pub fn seal(mut block: Vec<u8>, len: usize, offset: u64, endian: Endian) -> Vec<u8> {
    block.resize(len - EckPhys::SIZE, 0);
    let mut whole = block.clone();
    whole.extend(Eck { endian, cksum: label_verifier(offset) }.to_bytes());
    let cksum = checksum::digest(Algorithm::Sha256, &whole, None, endian == Endian::Big);
    block.extend(Eck { endian, cksum }.to_bytes());
    block
}

/// Writes `config` into these labels of an image, which is created if need be.
pub fn write_labels(path: &Path, config: &NvList, labels: &[u32]) {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    if file.metadata().unwrap().len() == 0 {
        file.set_len(SIZE).unwrap();
    }
    let size = file.metadata().unwrap().len();
    for &label in labels {
        let at = label_offset(size, label).unwrap() + PHYS_OFFSET;
        let block =
            seal(config.encode_xdr().unwrap(), usize::try_from(PHYS_SIZE).unwrap(), at, Endian::Little);
        file.write_all_at(&block, at).unwrap();
    }
}

/// Writes an uberblock into slot `txg` of the ring of every label.
pub fn write_uberblock(path: &Path, txg: u64, ashift: u32, endian: Endian) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let uberblock = Uberblock {
        endian,
        version: 5000,
        txg,
        guid_sum: 1,
        timestamp: 1_700_000_000 + txg,
        rootbp: Blkptr::from_words([0; 16]),
        software_version: 5000,
        mmp_magic: 0,
        mmp_delay: 0,
        mmp_config: 0,
        checkpoint_txg: 0,
        raidz_reflow_info: 0,
    };
    let shift = ondisk::label::uberblock_shift(ashift);
    for label in 0..4 {
        let slot = txg % ondisk::label::uberblock_count(ashift);
        let at = label_offset(size, label).unwrap() + RING_OFFSET + (slot << shift);
        file.write_all_at(&seal(uberblock.to_bytes().to_vec(), 1 << shift, at, endian), at).unwrap();
    }
}

/// A list of pairs.
pub fn list<const N: usize>(pairs: [(&str, NvValue); N]) -> NvList {
    pairs.into_iter().collect()
}

/// A leaf with `path` in its configuration.
pub fn leaf(id: u64, guid: u64, path: &str) -> NvList {
    list([("type", "file".into()), ("id", id.into()), ("guid", guid.into()), ("path", path.into())])
}

/// An interior vdev.
pub fn interior(kind: &str, id: u64, guid: u64, children: Vec<NvList>) -> NvList {
    let mut vdev = list([("type", kind.into()), ("id", id.into()), ("guid", guid.into())]);
    if kind == "raidz" {
        vdev.add("nparity", 1u64);
    }
    vdev.add("ashift", 9u64).add("children", NvValue::ListArray(children));
    vdev
}

/// The label of a leaf of pool `name`.
pub fn label(name: &str, pool: u64, txg: u64, tops: u64, guid: u64, top: &NvList) -> NvList {
    list([
        ("version", 5000u64.into()),
        ("name", name.into()),
        ("state", 1u64.into()),
        ("txg", txg.into()),
        ("pool_guid", pool.into()),
        ("top_guid", top.u64("guid").unwrap().into()),
        ("guid", guid.into()),
        ("vdev_children", tops.into()),
        ("vdev_tree", NvValue::List(top.clone())),
    ])
}

/// All four labels.
pub const ALL: [u32; 4] = [0, 1, 2, 3];
