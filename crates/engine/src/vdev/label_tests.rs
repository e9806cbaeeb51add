//! Labels over devices that record, and devices that fail.

use std::collections::HashMap;
use std::sync::Arc;

use blkdev::{Device, Event, Fault, FaultyDevice, MemDevice, RecordingDevice};
use nvpair::NvList;
use ondisk::label::{LABEL_SIZE, MIN_DEVICE_SIZE, PHYS_OFFSET, PHYS_SIZE, RING_OFFSET, RING_SIZE};
use ondisk::{Blkptr, Eck, Endian, Uberblock};
use parking_lot::Mutex;

use super::config::VdevConfig;
use super::label::{ConfigSync, init_leaf, sealed, write_heartbeat};
use super::leaf::Leaf;
use super::tree::{Devices, Tree};
use crate::taskq::Inline;

/// Events of all devices, in order.
type Log = Arc<Mutex<Vec<(u64, Event)>>>;

/// Forwards requests to a device, and records the requests of all devices in one list.
#[derive(Debug)]
struct Noted {
    guid: u64,
    inner: Device,
    log: Log,
}

impl blkdev::BlockDevice for Noted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> blkdev::Geometry {
        self.inner.geometry()
    }

    fn submit(&self, io: blkdev::Io) {
        let event = match io.kind {
            blkdev::IoKind::Write => Event::Write(io.offset, Arc::from(&*io.buf)),
            _ => Event::Flush,
        };
        self.log.lock().push((self.guid, event));
        self.inner.submit(io);
    }
}

struct Rig {
    tree: Tree,
    faulty: Vec<Arc<FaultyDevice>>,
    memory: Vec<Arc<RecordingDevice>>,
    log: Log,
}

fn leaf_config(guid: u64, id: u64) -> NvList {
    let mut list = NvList::new();
    list.add("type", "file").add("id", id).add("guid", guid).add("ashift", 12u64);
    list
}

/// Two disks and a mirror, the second disk a log.
fn rig() -> Rig {
    let mut log_disk = leaf_config(2, 1);
    log_disk.add("is_log", 1u64);
    let mut mirror = NvList::new();
    mirror.add("type", "mirror").add("id", 2u64).add("guid", 9u64).add("ashift", 12u64);
    mirror.add("children", vec![leaf_config(3, 0), leaf_config(4, 1)]);
    let mut root = NvList::new();
    root.add("type", "root").add("guid", 8u64).add("children", vec![leaf_config(1, 0), log_disk, mirror]);
    let log = Log::default();
    let (mut faulty, mut memory, mut devices) = (Vec::new(), Vec::new(), Devices::new());
    for guid in 1..=4 {
        let bytes: Device = Arc::new(MemDevice::new("m", vec![0; MIN_DEVICE_SIZE as usize]));
        let record = Arc::new(RecordingDevice::new(bytes));
        let fault = Arc::new(FaultyDevice::new(Arc::clone(&record) as Device, guid));
        let noted = Noted { guid, inner: Arc::clone(&fault) as Device, log: Arc::clone(&log) };
        devices.insert(guid, Arc::new(noted) as Device);
        faulty.push(fault);
        memory.push(record);
    }
    let tree = Tree::build(VdevConfig::parse(&root).unwrap(), None, &devices, None).unwrap();
    Rig { tree, faulty, memory, log }
}

fn uberblock(txg: u64) -> Uberblock {
    Uberblock {
        endian: Endian::Little,
        version: 5000,
        txg,
        guid_sum: 1,
        timestamp: 2,
        rootbp: Blkptr::from_words([0; 16]),
        software_version: 5000,
        mmp_magic: 0,
        mmp_delay: 0,
        mmp_config: 0,
        checkpoint_txg: 0,
        raidz_reflow_info: 0,
    }
}

fn label_of(leaf: &Leaf) -> NvList {
    let mut label = NvList::new();
    label.add("guid", leaf.guid);
    label
}

fn sync(rig: &Rig, txg: u64, dirty: bool) -> crate::Result<()> {
    let label = |leaf: &Leaf| label_of(leaf);
    ConfigSync {
        tree: &rig.tree,
        executor: &Inline::default(),
        uberblock: &uberblock(txg),
        label: if dirty { Some(&label) } else { None },
        multihost: false,
        choice: 0,
        known: &HashMap::new(),
    }
    .run()
}

/// Classifies a write: label 0 to 3 and `true` for the configuration, `false` for a ring slot.
fn part(offset: u64) -> (u64, bool) {
    let from_end = (MIN_DEVICE_SIZE - 2 * LABEL_SIZE..).contains(&offset);
    let label = if from_end {
        2 + (offset + 2 * LABEL_SIZE - MIN_DEVICE_SIZE) / LABEL_SIZE
    } else {
        offset / LABEL_SIZE
    };
    (label, offset % LABEL_SIZE == PHYS_OFFSET)
}

/// The phases between flushes: which labels' configurations and rings were written, on which leaves.
fn phases(log: &Log) -> Vec<(Vec<u64>, Vec<(u64, bool)>)> {
    let mut all = Vec::new();
    let mut open: (Vec<u64>, Vec<(u64, bool)>) = Default::default();
    for (guid, event) in std::mem::take(&mut *log.lock()) {
        match event {
            Event::Write(offset, _) => {
                open.0.push(guid);
                open.1.push(part(offset));
            }
            _ if open.0.is_empty() => {}
            _ => all.push(std::mem::take(&mut open)),
        }
    }
    assert!(open.0.is_empty(), "ends with a flush");
    for (leaves, parts) in &mut all {
        leaves.sort_unstable();
        leaves.dedup();
        parts.sort_unstable();
        parts.dedup();
    }
    all
}

#[test]
fn the_order_is_that_of_the_crash_argument() {
    let rig = rig();
    sync(&rig, 33, true).unwrap();
    let ring = [0, 1, 2, 3].map(|label| (label, false)).to_vec();
    let everywhere = vec![1, 2, 3, 4];
    let expected = vec![
        (everywhere.clone(), vec![(0, true), (2, true)]),
        (everywhere.clone(), ring.clone()),
        (everywhere, vec![(1, true), (3, true)]),
    ];
    assert_eq!(phases(&rig.log), expected);
    sync(&rig, 34, false).unwrap();
    assert_eq!(phases(&rig.log), vec![(vec![1, 3, 4], ring)], "no logs, no labels");
    // Slots are 4 KiB here: 32 of them.
    let slot = |n: u64| blkdev::read_at(&*rig.memory[0], RING_OFFSET + n * 4096, 4096).unwrap();
    assert_eq!(Uberblock::from_bytes(&slot(1)).unwrap(), uberblock(33));
    assert_eq!(Uberblock::from_bytes(&slot(2)).unwrap(), uberblock(34));
    assert_eq!(*slot(2), *sealed(&uberblock(34).to_bytes(), 4096, RING_OFFSET + 2 * 4096));
}

#[test]
fn some_leaves_suffice() {
    let rig = rig();
    rig.faulty[1].inject(Fault::Dead);
    rig.faulty[3].inject(Fault::Dead);
    sync(&rig, 5, true).unwrap();
    rig.faulty[2].inject(Fault::Dead);
    assert!(sync(&rig, 6, true).is_err(), "the mirror took no label");
    rig.faulty[2].clear();
    rig.faulty[0].inject(Fault::WriteError(RING_OFFSET..RING_OFFSET + RING_SIZE));
    sync(&rig, 7, true).unwrap();
    rig.faulty.iter().for_each(|disk| disk.inject(Fault::Dead));
    assert!(sync(&rig, 8, false).is_err());
}

#[test]
fn a_failed_flush_stops_the_sync() {
    let rig = rig();
    let write = |guid: u64| {
        let leaf = rig.tree.leaf(guid).unwrap();
        leaf.write(5 << 20, stdx::Buf::from(&[1u8; 512][..]), Box::new(|result| result.unwrap()));
    };
    [3, 4].into_iter().for_each(write);
    rig.faulty[3].inject(Fault::Dead);
    sync(&rig, 5, false).unwrap();
    // The labels cannot be flushed either. That casts doubt on blocks that a resilver may have restored: the next txg counts,
    // too.
    assert_eq!(rig.tree.dirty_dtls(), [(4, vec![(5, 7)])]);
    rig.faulty[3].clear();
    write(1);
    rig.faulty[0].inject(Fault::Dead);
    assert!(sync(&rig, 6, false).is_err());
}

#[test]
fn a_new_leaf_has_four_labels_and_empty_rings() {
    let noise: Vec<u8> = (0..MIN_DEVICE_SIZE).map(|n| (n % 251) as u8).collect();
    let device = Arc::new(MemDevice::new("new", noise.clone()));
    let leaf = Leaf::new(7, "new".into(), Some(Arc::clone(&device) as Device));
    init_leaf(&leaf, &label_of(&leaf), &Inline::default()).unwrap();
    let bytes = device.snapshot();
    for start in [0, LABEL_SIZE, MIN_DEVICE_SIZE - 2 * LABEL_SIZE, MIN_DEVICE_SIZE - LABEL_SIZE] {
        let label = &bytes[start as usize..(start + LABEL_SIZE) as usize];
        let front = &noise[start as usize..start as usize + 8192];
        assert_eq!(label[..8192], *if start == 0 { &[0; 8192] } else { front });
        let phys = &label[PHYS_OFFSET as usize..(PHYS_OFFSET + PHYS_SIZE) as usize];
        assert_eq!(NvList::decode(phys).unwrap(), label_of(&leaf));
        for (at, len) in [(8192, 8192), (RING_OFFSET as usize, RING_SIZE as usize)] {
            let block = &label[at..at + len];
            assert!(block[..len - 40].iter().all(|byte| *byte == 0));
            assert!(Eck::from_trailer(block).is_ok());
        }
    }
    assert_eq!(bytes[1 << 20..(1 << 20) + 512], noise[1 << 20..(1 << 20) + 512], "boot area");
    let small = Leaf::new(8, "small".into(), Some(Arc::new(MemDevice::new("s", vec![0; 1 << 20])) as Device));
    assert!(init_leaf(&small, &label_of(&leaf), &Inline::default()).is_err());
    let mut long = label_of(&leaf);
    long.add("long", "x".repeat(120 << 10).as_str());
    assert_eq!(init_leaf(&leaf, &long, &Inline::default()).unwrap_err().kind(), crate::Kind::TooLong);
}

#[test]
fn the_heartbeat_has_the_last_slot_and_syncs_leave_it_alone() {
    let rig = rig();
    let leaf = rig.tree.leaf(1).unwrap();
    assert!(write_heartbeat(leaf, 12, 0, &uberblock(31), &Inline::default()));
    let slot = |n: u64| blkdev::read_at(&*rig.memory[0], RING_OFFSET + n * 4096, 4096).unwrap();
    assert_eq!(Uberblock::from_bytes(&slot(31)).unwrap().txg, 31);
    let uberblock = uberblock(62);
    let sync = ConfigSync {
        tree: &rig.tree,
        executor: &Inline::default(),
        uberblock: &uberblock,
        label: None,
        multihost: true,
        choice: 0,
        known: &HashMap::new(),
    };
    sync.run().unwrap();
    assert_eq!(Uberblock::from_bytes(&slot(0)).unwrap().txg, 62);
}

/// A label that a failed flush may have lost does not count.
#[test]
fn labels_that_cannot_be_flushed_are_none() {
    let rig = rig();
    sync(&rig, 10, true).unwrap();
    // The first flush is for the txg's blocks; in either attempt the others are for labels.
    let fail = |count| rig.faulty[0].inject(Fault::FlushErrors { count, lost: 0 });
    let leaf = rig.tree.leaf(1).unwrap();
    fail(2);
    leaf.write(8 << 20, stdx::Buf::from(&[1u8; 512][..]), Box::new(|_| ()));
    assert!(sync(&rig, 11, true).is_err(), "a txg whose blocks may be lost");
    assert!(sync(&rig, 11, true).is_err());
    sync(&rig, 11, true).unwrap();
    fail(2);
    assert!(sync(&rig, 12, true).is_err());
}
