//! The intent log and numbers of objects that are used again: operations on a removed file are not replayed
//! on the next file with its number.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use blkdev::Device;
use engine::spa::{ImportOptions, import};
use sim::disk::{Gate, Gated};
use sim::world::{self, Machine, POOL, Shape};
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, RenameKind, mount};

/// Changes a file without a sync, and removes it.
type Going = fn(&FsWriter, u64);

fn written_and_replaced(fs: &FsWriter, file: u64) {
    fs.data().write(file, 0, b"nobody asked for these", true).unwrap();
    fs.dirs().rename((fs.root, b"b"), (fs.root, b"a"), RenameKind::Plain, (0, 0)).unwrap();
}

fn resized_without_a_name(fs: &FsWriter, file: u64) {
    fs.open_file(file).unwrap();
    fs.dirs().unlink(fs.root, b"a").unwrap();
    fs.data().truncate(file, 5000).unwrap();
    fs.close_file(file).unwrap();
}

/// A file goes, and while that is on its way to the disk, at its write number `writes`, another is made and synced.
/// Then the power fails. Returns whether the new one had the number of the removed one; `None` when the txg
/// has fewer writes.
fn number_is_used_again(going: Going, writes: u64) -> Option<bool> {
    let machine = Machine::from(Shape::Single);
    let (env, gate) = (world::env(writes), Arc::new(Gate::default()));
    let disks = world::disks_of(&machine.blank());
    let behind =
        |disk: &Arc<_>| Arc::new(Gated { disk: Arc::clone(disk), gate: Arc::clone(&gate) }) as Device;
    let devices: Vec<Device> = disks.iter().map(behind).collect();
    let spa = world::create_pool(&env, machine, &devices).unwrap();
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let create =
        |name: &[u8]| fs.dirs().create(fs.root, name, &NewNode::new(FileKind::Regular, 0o640, 0, 0)).unwrap();
    let (old, other) = (create(b"a"), create(b"b"));
    fs.fsync(0).unwrap();
    spa.sync().unwrap();
    going(&fs, old);
    let made = |is_held| {
        let new = create(b"c");
        // The first commit writes the creation, the second the records kept for that number.
        fs.fsync(other).unwrap();
        fs.fsync(new).unwrap();
        (is_held, new, disks[0].pages())
    };
    let (is_held, new, image) = gate.overlap(writes, || spa.sync().unwrap(), made);
    let source = world::found(&world::as_devices(&world::disks_of(&[image]))).unwrap();
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = import(&world::env(2), source, &options).unwrap();
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    assert!(fs.replayed().unwrap().error.is_none());
    let found = fs.dirs().lookup(fs.root, b"c").unwrap().unwrap().object;
    let size = fs.attrs().get(found).unwrap().size;
    assert_eq!(size, 0, "object {new} came after object {old}, at write {writes}");
    is_held.then_some(new == old)
}

fn nothing_is_brought_along(going: Going) {
    let again = (1..).map_while(|writes| number_is_used_again(going, writes)).filter(|&again| again).count();
    assert!(again > 0);
}

#[test]
fn writes_to_a_file_that_was_replaced_stay_behind() {
    nothing_is_brought_along(written_and_replaced);
}

#[test]
fn the_size_of_a_file_without_a_name_stays_behind() {
    nothing_is_brought_along(resized_without_a_name);
}
