//! A sequential reconstruction, and a log that an import has to claim.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use blkdev::{BlockDevice, Device};
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::layout::LeafSpec;
use engine::spa::{ImportOptions, import};
use sim::world::{self, Machine, POOL, Shape};
use stdx::rng::Rng;
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, mount};

const BYTES: u64 = 14 << 20;

#[test]
fn a_reconstruction_goes_on_after_an_import_that_claims_a_log() {
    let machine = Machine::from(Shape::Mirror);
    let mut blank = machine.blank();
    blank.extend(blank.first().cloned());
    let disks = world::disks_of(&blank);
    let spa = world::create_pool(&world::env(1), machine, &world::as_devices(&disks[..2])).unwrap();
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    let mut random = Rng::new(5);
    for at in (0..BYTES).step_by(1 << 20) {
        let bytes: Vec<u8> = (0..1 << 17).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        fs.data().write(file, at, &bytes, true).unwrap();
        spa.sync().unwrap();
    }
    let device = Arc::clone(&disks[2]) as Device;
    let leaf = LeafSpec { path: device.name().into(), is_disk: false, whole_disk: None, devid: None, device };
    let target = spa.pool.tree().leaves().find(|leaf| leaf.path == disks[0].name()).unwrap().guid;
    let device = NewDevice::Fresh { leaf, ashift: None };
    spa.disks().attach(Attach { target, device, replacing: false, sequential: true }).unwrap();
    (0..6).for_each(|_| spa.sync().unwrap());
    assert!(spa.rebuilds().is_rebuilding());
    // The first commit makes the log and waits for its txg; what the second writes is in the log alone.
    for bytes in [b"these make the log, ", b"these are in the log"] {
        fs.data().write(file, 0, bytes, true).unwrap();
        fs.fsync(file).unwrap();
    }
    // The power fails.
    let pages: Vec<_> = disks.iter().map(|disk| disk.pages()).collect();
    drop((fs, spa));

    let disks = world::disks_of(&pages);
    let source = world::found(&world::as_devices(&disks)).unwrap();
    let spa =
        import(&world::env(2), source, &ImportOptions { hostid: 1, ..ImportOptions::default() }).unwrap();
    let new = spa.pool.tree().leaves().find(|leaf| leaf.path == disks[2].name()).cloned().unwrap();
    // A healing resilver of so little ends in the txg that claims the log.
    assert!(!new.dtl.read().is_empty(), "a healing resilver took its place");
    assert!(spa.rebuilds().is_rebuilding() && !spa.scans().is_scanning());
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let replayed = fs.replayed().unwrap();
    assert!(replayed.done > 0 && replayed.error.is_none(), "the log was empty: {replayed:?}");
    while spa.rebuilds().is_rebuilding() {
        spa.sync().unwrap();
    }
    assert!(new.dtl.read().is_empty());
    while spa.scans().is_scanning() {
        spa.sync().unwrap();
    }
    assert_eq!(new.errors.counts(), [0; 3]);
}
