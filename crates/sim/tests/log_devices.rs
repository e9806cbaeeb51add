//! Logs on devices that fail, or are not there, when a pool is imported.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use blkdev::{Device, Fault, FaultyDevice};
use engine::Kind;
use engine::spa::{ImportOptions, Spa, import};
use engine::vdev::config::AllocBias;
use ondisk::objset::ZilHeader;
use sim::disk::Disk;
use sim::image::Pages;
use sim::world::{self, DISK_SIZE, Machine, POOL, Shape};
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, mount};

/// Bytes before the first of a vdev.
const LABELS: u64 = 4 << 20;
const BYTES: &[u8] = b"fsync said that these are there";

/// The devices of a pool on one disk and a log device, with a file that has an `fsync` behind it: `between` happens, the file is
/// written and synchronized, and the process is killed.
fn killed_after(between: impl FnOnce(&Arc<Spa>)) -> Vec<Pages> {
    let machine = Machine { log_device: true, ..Machine::from(Shape::Single) };
    let disks = world::disks_of(&machine.blank());
    let spa = world::create_pool(&world::env(1), machine, &world::as_devices(&disks)).unwrap();
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.fsync(file).unwrap();
    between(&spa);
    fs.data().write(file, 0, BYTES, true).unwrap();
    fs.fsync(file).unwrap();
    disks.iter().map(|disk| disk.pages()).collect()
}

fn killed() -> Vec<Pages> {
    killed_after(|_| ())
}

/// Guid of the log device.
fn log_leaf(spa: &Spa) -> u64 {
    let tree = spa.pool.tree();
    let log = tree.tops().find(|top| top.bias == AllocBias::Log).unwrap();
    log.leaves().next().unwrap().guid
}

fn started(devices: &[Device], needs_logs: bool) -> engine::Result<Arc<Spa>> {
    let options = ImportOptions { hostid: 1, needs_logs, ..ImportOptions::default() };
    import(&world::env(2), world::found(devices).unwrap(), &options)
}

fn wrapped(disks: &[Arc<Disk>]) -> (Vec<Arc<FaultyDevice>>, Vec<Device>) {
    let faulty: Vec<_> =
        disks.iter().map(|disk| Arc::new(FaultyDevice::new(Arc::clone(disk) as Device, 7))).collect();
    let devices = faulty.iter().map(|disk| Arc::clone(disk) as Device).collect();
    (faulty, devices)
}

/// All but labels fails.
fn fail(disk: &FaultyDevice) {
    disk.inject(Fault::ReadError(LABELS..DISK_SIZE - LABELS));
}

/// Checks the file, and its content.
fn holds_what_was_synced(spa: &Arc<Spa>) {
    let fs = mount(spa, POOL, Overrides::default()).unwrap();
    let file = fs.dirs().lookup(fs.root, b"file").unwrap().unwrap().object;
    let mut bytes = vec![0; BYTES.len()];
    assert_eq!(fs.data().read(file, 0, &mut bytes).unwrap(), BYTES.len());
    assert_eq!(bytes, BYTES);
}

#[test]
fn a_log_that_fails_after_it_was_claimed_waits() {
    let disks = world::disks_of(&killed());
    let (faulty, devices) = wrapped(&disks);
    let spa = started(&devices, true).unwrap();
    fail(&faulty[1]);
    assert_eq!(mount(&spa, POOL, Overrides::default()).unwrap_err().kind(), Kind::Io);
    faulty[1].clear();
    holds_what_was_synced(&spa);
}

#[test]
fn a_log_that_can_not_be_read_now_is_not_cut_short() {
    let disks = world::disks_of(&killed());
    let (faulty, devices) = wrapped(&disks);
    fail(&faulty[1]);
    let why = started(&devices, true).unwrap_err();
    assert!(why.kind() == Kind::Io && why.to_string().contains("intent log"), "{why}");

    holds_what_was_synced(&started(&world::as_devices(&disks), true).unwrap());
}

/// `zpool offline` of a log ends its chains, so that a crash leaves nothing that only the log has.
#[test]
fn a_log_taken_out_of_use_is_not_missed() {
    let images = killed_after(|spa| spa.disks().offline(log_leaf(spa), false).unwrap());
    let disks = world::disks_of(&images[..1]);
    holds_what_was_synced(&started(&world::as_devices(&disks), true).unwrap());
}

#[test]
fn a_log_whose_device_is_gone_is_given_up_with_its_head() {
    let disks = world::disks_of(&killed()[..1]);
    let devices = world::as_devices(&disks);
    assert_eq!(started(&devices, true).unwrap_err().kind(), Kind::NoDevice);
    let spa = started(&devices, false).unwrap();
    let header = spa.pool.dsl.dataset(POOL).unwrap().objset().unwrap().phys.zil_header;
    assert_eq!(header, ZilHeader::default());
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"new", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.fsync(file).unwrap();
}

/// Records that were claimed and not replayed before their device was lost: `zpool import -m` gives them up, and the device can
/// be removed.
#[test]
fn a_claimed_log_whose_device_is_gone_is_given_up_and_its_device_leaves() {
    let disks = world::disks_of(&killed());
    let spa = started(&world::as_devices(&disks), true).unwrap();
    spa.sync().unwrap();
    let images = vec![disks[0].pages()];
    let spa = started(&world::as_devices(&world::disks_of(&images)), false).unwrap();
    let header = || spa.pool.dsl.dataset(POOL).unwrap().objset().unwrap().phys.zil_header;
    assert_eq!(header(), ZilHeader::default());
    spa.removal().remove(log_leaf(&spa)).unwrap();
    assert!(spa.pool.tree().tops().all(|top| top.bias != AllocBias::Log || top.leaves().next().is_none()));
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"new", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.fsync(file).unwrap();
    fs.unmount().unwrap();
    spa.export().unwrap();
}
