//! Damaged pools, from the command line: messages about them, and their recovery.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::path::Path;
use std::sync::Arc;

use engine::dmu::edit::Objects;
use engine::spa::layout::{LeafSpec, TopSpec, VdevSpec};
use engine::spa::{Pool, Spa};
use engine::vdev::config::AllocBias;
use engine::zap::ZapEdit;
use live::Live;
use ondisk::Blkptr;
use testkit::hurt::{blocks, destroy};
use testkit::pools;
use testkit::zdb::Judge;
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, mount};

const POOL: &str = "hurt";

fn file(spa: &Arc<Spa>, name: &[u8], byte: u8) {
    let fs = mount(spa, POOL, Overrides::default()).unwrap();
    let number = fs.dirs().create(fs.root, name, &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.data().write(number, 0, &vec![byte; 1 << 20], true).unwrap();
    spa.sync().unwrap();
    fs.unmount().unwrap();
}

/// A pool that was not exported, with a file `old`; `work` changes it further.
fn pool(dir: &Path, work: impl FnOnce(&Arc<Spa>)) {
    let spa = pools::create_fs_dir(dir, POOL, 128 << 20, Default::default()).unwrap();
    file(&spa, b"old", 7);
    work(&spa);
    spa.sync().unwrap();
    spa.suspending().abandon();
}

fn space_logs(pool: &Pool) -> Vec<Blkptr> {
    let logs = engine::metaslab::log::logs(&pool.mos).unwrap();
    logs.iter().flat_map(|log| blocks(pool, log.object.number, 0)).collect()
}

#[test]
fn a_pool_with_damaged_space_maps_is_rebuilt() {
    let live = Live::new();
    let dir = live.disks();
    pool(&dir, |_| ());
    assert!(destroy(&dir, POOL, space_logs) > 0);
    let from = format!("-f -d {}", dir.display());
    let before = std::fs::read(dir.join("disk1")).unwrap();
    let told = live.fails(&format!("zpool import {from} {POOL}"));
    assert!(
        told.contains("zpool import -o readonly=on") && told.contains("zpool import --rebuild"),
        "{told}"
    );
    let told = live.ok(&format!("zpool import {from} --rebuild -n {POOL}"));
    assert!(told.starts_with("damaged:\n\tlog of space maps: "), "dry: {told}");
    assert!(told.contains("\ncost: 1 pass over ") && told.contains("Nothing was written."), "{told}");
    let told = live.run(&format!("verify -q -d {} {POOL}", dir.display())).out;
    assert!(
        told.contains("damaged log of space maps: ") && told.contains("zpool import --rebuild"),
        "{told}"
    );
    assert!(std::fs::read(dir.join("disk1")).unwrap() == before, "nothing was to be written");
    live.ok(&format!("zpool import {from} -N -o readonly=on {POOL}"));
    live.ok(&format!("zpool export {POOL}"));
    let refused = live.run(&format!("zpool import {from} --accept-unreadable {POOL}"));
    assert!(refused.code == 2 && refused.err.contains("--rebuild"), "{}", refused.err);
    let told = live.ok(&format!("zpool import {from} -N --rebuild-space {POOL}"));
    assert!(told.contains("were written anew"), "{told}");
    assert_eq!(live.ok(&format!("zpool list -H -o health {POOL}")), "ONLINE\n");
    live.ok(&format!("zfs create -u {POOL}/more"));
    live.ok(&format!("zpool export {POOL}"));
    for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
        judge.verify(&dir, POOL).unwrap();
    }
    assert!(live.ok(&format!("verify -q -d {} {POOL}", dir.display())).contains("all is well"));
}

#[test]
fn the_newest_state_that_opens_is_named_with_what_changed_since() {
    let live = Live::new();
    let dir = live.disks();
    pool(&dir, |spa| {
        // The directory of the MOS changes in the txg of the file.
        spa.sync_task(|spa, tx| {
            ZapEdit::open(&mut *spa.mos.within(tx).edit(1)?)?.update("org.example:changed", 1_u64)
        })
        .unwrap();
        file(spa, b"new", 8);
        spa.sync_task(|spa, tx| {
            ZapEdit::open(&mut *spa.mos.within(tx).edit(1)?)?.update("org.example:changed", 2_u64)
        })
        .unwrap();
    });
    // Older states share the blocks that are older than the header.
    let changed = |pool: &Pool| {
        let mut all = blocks(pool, 1, 0);
        let header = all[0].physical_birth();
        all.retain(|bp| bp.physical_birth() >= header);
        all
    };
    assert!(destroy(&dir, POOL, changed) > 0);
    let from = format!("-d {}", dir.display());
    let told = live.ok(&format!("zpool import {from}"));
    assert!(
        told.contains("newest: The state of txg ") && told.contains(" older: The state of txg "),
        "{told}"
    );
    assert!(told.contains("\t    +\thurt:/new\n"), "{told}");
    assert!(told.contains(&format!("'zpool import -FX {POOL}'")), "{told}");
    let dry = live.run(&format!("zpool import -f {from} -FX -n {POOL}")).out;
    assert!(dry.starts_with("Would be able to return hurt to its state as of "), "{dry}");
    let before = std::fs::read(dir.join("disk1")).unwrap();
    let refused = live.run(&format!("zpool import -f {from} -N {POOL}"));
    assert!(refused.out.contains(" older: The state of txg "), "{} {}", refused.out, refused.err);
    assert!(std::fs::read(dir.join("disk1")).unwrap() == before, "nothing was to be written");
    // Blocks of that state may be overwritten, so it must be asked for.
    let refused = live.fails(&format!("zpool import -f {from} -N -F {POOL}"));
    assert!(refused.contains("-FX tries older ones"), "{refused}");
    assert!(std::fs::read(dir.join("disk1")).unwrap() == before, "nothing was to be written");
    let told = live.ok(&format!("zpool import -f {from} -N -FX {POOL}"));
    assert!(told.starts_with("Pool hurt returned to its state as of "), "{told}");
    live.ok(&format!("zpool export {POOL}"));
    if Judge::USUAL.installed() {
        Judge::USUAL.verify(&dir, POOL).unwrap();
    }
}

/// A rebuild does not go back by itself: where the newest state does not open, it names the one that does.
#[test]
fn a_rebuild_of_a_pool_whose_newest_state_is_gone_names_the_older_one() {
    let raidz = |children| VdevSpec::Raidz { parity: 2, children };
    let draid = |children| VdevSpec::Draid { config: "draid1:2d:4c:0s".parse().unwrap(), children };
    for make in [&raidz as &dyn Fn(Vec<LeafSpec>) -> VdevSpec, &draid] {
        let live = Live::new();
        let dir = live.disks();
        let leaves = (1..=4).map(|n| pools::leaf(&dir.join(format!("disk{n}")), 128 << 20)).collect();
        let top = TopSpec { vdev: make(leaves), class: AllocBias::Normal, ashift: None };
        let spa = pools::create_fs_on(vec![top], POOL, Default::default()).unwrap();
        file(&spa, b"old", 7);
        spa.suspending().abandon();
        drop(spa);
        assert!(destroy(&dir, POOL, |pool| vec![pool.uberblock.rootbp]) > 0);
        let from = format!("-f -d {}", dir.display());
        let run = live.run(&format!("zpool import {from} -N --rebuild -n {POOL}"));
        let is_named = run.out.contains(" older: The state of txg ");
        assert!(run.code != 0 && is_named, "{}: {}{}", run.code, run.out, run.err);
        let told = live.ok(&format!("zpool import {from} -N -F {POOL}"));
        assert!(told.starts_with("Pool hurt returned to its state as of "), "{told}");
        live.ok(&format!("zpool export {POOL}"));
        for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
            judge.verify(&dir, POOL).unwrap();
        }
    }
}

/// A listing says that a pool can only be read here, and which feature is the reason.
#[test]
fn a_pool_with_an_unknown_feature_that_writing_needs_is_listed_as_such() {
    let live = Live::new();
    let dir = live.disks();
    let spa = pools::create_fs_dir(&dir, POOL, 128 << 20, Default::default()).unwrap();
    let number = spa.view().unwrap().directory().unwrap().u64("features_for_write").unwrap().unwrap();
    spa.sync_task(move |spa, tx| {
        ZapEdit::open(&mut *spa.mos.within(tx).edit(number)?)?.update("org.example:compatible", 1_u64)
    })
    .unwrap();
    spa.export().unwrap();
    drop(spa);
    let from = format!("-d {}", dir.display());
    let told = live.ok(&format!("zpool import {from}"));
    assert!(told.contains(" state: UNAVAIL") && told.contains("\n\torg.example:compatible\n"), "{told}");
    assert!(
        told.contains("can only be accessed in read-only mode") && told.contains("'-o readonly=on'"),
        "{told}"
    );
    assert!(live.fails(&format!("zpool import -N {from} {POOL}")).contains("org.example:compatible"));
    live.ok(&format!("zpool import -N {from} -o readonly=on {POOL}"));
    live.ok(&format!("zpool export {POOL}"));
}

fn cut(path: &str, mib: u64) -> Vec<u8> {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(mib << 20).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn a_device_that_became_too_short_is_not_written() {
    let live = Live::new();
    let (one, two) = (live.disk("one", 160), live.disk("two", 160));
    let from = format!("-d {}", live.disks().display());
    live.ok(&format!("zpool create -m none {POOL} mirror {one} {two}"));
    live.ok(&format!("zpool export {POOL}"));
    let before = cut(&one, 136);
    live.ok(&format!("zpool import {from} -N {POOL}"));
    let status = live.ok(&format!("zpool status {POOL}"));
    assert!(status.contains(" UNAVAIL ") && status.contains("invalid label"), "{status}");
    live.ok(&format!("zfs create {POOL}/a"));
    assert!(std::fs::read(&one).unwrap() == before, "nothing was to be written");
    // Its labels must not stand where those of the short device would.
    cut(&one, 160);
    live.ok(&format!("zpool online {POOL} {one}"));
    live.ok(&format!("zpool wait -t resilver {POOL}"));
    assert_eq!(live.ok(&format!("zpool list -H -o health {POOL}")), "ONLINE\n");
    live.export_and_verify(POOL);
    let before = [cut(&one, 136), cut(&two, 136)];
    let refused = live.fails(&format!("zpool import {from} -N {POOL}"));
    assert!(refused.contains("one or more devices is currently unavailable"), "{refused}");
    assert!([&one, &two].map(|path| std::fs::read(path).unwrap()) == before, "nothing was to be written");
    // Its remaining bytes can be read.
    live.ok(&format!("zpool import {from} -N -o readonly=on {POOL}"));
}

#[test]
fn devices_of_a_pool_that_is_imported_read_only_are_in_use() {
    let live = Live::new();
    let (one, two) = (live.disk("one", 64), live.disk("two", 64));
    let from = format!("-d {}", live.disks().display());
    live.ok(&format!("zpool create -m none {POOL} mirror {one} {two}"));
    live.ok(&format!("zpool export {POOL}"));
    let before = std::fs::read(&one).unwrap();
    live.ok(&format!("zpool import {from} -N -o readonly=on {POOL}"));
    let other = Live::new();
    for line in [format!("zpool create -f -m none new {one}"), format!("zpool labelclear -f {one}")] {
        let refused = live.fails(&line);
        assert!(refused.contains("active pool 'hurt'") || refused.contains("(ACTIVE) of pool"), "{refused}");
        other.fails(&line);
    }
    assert!(std::fs::read(&one).unwrap() == before, "nothing was to be written");
    live.ok(&format!("zpool export {POOL}"));
    // Of one that was destroyed, too.
    live.ok(&format!("zpool import {from} -N {POOL}"));
    live.ok(&format!("zpool destroy {POOL}"));
    live.ok(&format!("zpool import {from} -N -D -o readonly=on {POOL}"));
    let refused = live.fails(&format!("zpool create -m none new {one}"));
    assert!(refused.contains("is part of active pool 'hurt'"), "{refused}");
    live.ok(&format!("zpool export {POOL}"));
    live.ok(&format!("zpool create -m none new {one}"));
}

#[test]
fn a_pool_with_one_damaged_space_map_is_refused_unchanged() {
    let live = Live::new();
    let dir = live.disks();
    pool(&dir, |_| ());
    let map = |pool: &Pool| {
        let config = &pool.tree().config.children[0];
        let table = engine::metaslab::table::Metaslabs::load(&pool.mos, config).unwrap();
        let metaslab = table
            .all
            .into_iter()
            .flatten()
            .find(|metaslab| metaslab.head.is_some_and(|head| head.length > 0));
        blocks(pool, metaslab.unwrap().space_map, 0)
    };
    assert!(destroy(&dir, POOL, map) > 0);
    let before = std::fs::read(dir.join("disk1")).unwrap();
    for rewind in ["", "-F", "-F -n"] {
        let told = live.fails(&format!("zpool import -f -d {} -N {rewind} {POOL}", dir.display()));
        assert!(told.contains("zpool import --rebuild"), "{rewind}: {told}");
    }
    assert!(std::fs::read(dir.join("disk1")).unwrap() == before, "nothing was to be written");
    live.ok(&format!("zpool import -f -d {} -N --rebuild {POOL}", dir.display()));
    live.export_and_verify(POOL);
}

#[test]
fn a_rewind_passes_over_states_that_can_only_be_read() {
    let live = Live::new();
    let disk = live.disk("disk1", 128);
    let from = format!("-d {}", live.disks().display());
    live.ok(&format!("zpool create -m none {POOL} {disk}"));
    for comment in ["a", "b"] {
        live.ok(&format!("zpool set comment={comment} {POOL}"));
        live.ok(&format!("zfs create {POOL}/{comment}"));
    }
    live.ok(&format!("zpool export {POOL}"));
    // The newest state is whole: there is no rewind to report.
    assert_eq!(live.ok(&format!("zpool import {from} -N -F {POOL}")), "");
    live.ok(&format!("zpool export {POOL}"));
    let config = |pool: &Pool| {
        let directory = pool.directory().unwrap();
        blocks(pool, directory.u64(ondisk::names::mos::CONFIG).unwrap().unwrap(), 0)
    };
    assert!(destroy(&live.disks(), POOL, config) > 0);
    let refused = live.run(&format!("zpool import {from} -N {POOL}"));
    assert!(refused.out.contains(" older: The state of txg "), "{}{}", refused.out, refused.err);
    let dry = live.run(&format!("zpool import {from} -N -F -n {POOL}"));
    assert!(dry.code == 1 && dry.out.starts_with("Would be able to return hurt to "), "{}", dry.out);
    let told = live.ok(&format!("zpool import {from} -N -F {POOL}"));
    assert!(told.starts_with("Pool hurt returned to its state as of "), "{told}");
    assert!(!told.contains(" minutes of transactions"), "the time since the export does not count: {told}");
    live.export_and_verify(POOL);
}

fn uberblocks(disk: &str) -> Vec<ondisk::Uberblock> {
    let device = blkdev::FileDevice::open(disk, blkdev::OpenOptions::default()).unwrap();
    zutil::ring::read_uberblocks(&device, None).into_iter().map(|slot| slot.uberblock).collect()
}

#[test]
fn a_state_that_is_gone_back_to_is_the_newest_before_anything_is_overwritten() {
    let live = Live::new();
    let disk = live.disk("disk1", 128);
    let from = format!("-d {}", live.disks().display());
    live.ok(&format!("zpool create -m none {POOL} {disk}"));
    live.ok(&format!("zfs create {POOL}/a"));
    live.ok(&format!("zfs create {POOL}/b"));
    live.ok(&format!("zpool export {POOL}"));
    let all = uberblocks(&disk);
    let newest = all.iter().map(|uberblock| uberblock.txg).max().unwrap();
    let old = all.iter().filter(|uberblock| uberblock.txg < newest).max_by_key(|old| old.txg).unwrap();
    live.ok(&format!("zpool import {from} -N -T {} {POOL}", old.txg));
    let after = uberblocks(&disk);
    let first = after.iter().find(|uberblock| uberblock.txg == newest + 1).unwrap();
    assert!(first.rootbp.same_block(&old.rootbp));
    live.export_and_verify(POOL);
}

/// The labels tell that there was a newer state: going back to an older one must be asked for.
#[test]
fn a_pool_whose_newest_uberblocks_are_gone_goes_back_on_request_only() {
    use std::os::unix::fs::FileExt;
    let live = Live::new();
    let disk = live.disk("disk1", 128);
    let from = format!("-d {}", live.disks().display());
    live.ok(&format!("zpool create -m none {POOL} {disk}"));
    ["a", "b", "c", "d"].iter().for_each(|name| drop(live.ok(&format!("zfs create {POOL}/{name}"))));
    live.ok(&format!("zpool export {POOL}"));
    let device = blkdev::FileDevice::open(&disk, blkdev::OpenOptions::default()).unwrap();
    let slots = zutil::ring::read_uberblocks(&device, None);
    let newest = slots.iter().map(|slot| slot.uberblock.txg).max().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&disk).unwrap();
    for slot in slots.iter().filter(|slot| slot.uberblock.txg + 3 > newest) {
        file.write_all_at(&[0; 1024], slot.offset).unwrap();
    }
    let before = std::fs::read(&disk).unwrap();
    let told = live.ok(&format!("zpool import {from}"));
    assert!(
        told.contains(" state: FAULTED") && told.contains(&format!("'zpool import -F {POOL}'")),
        "{told}"
    );
    assert!(told.contains(&format!("the labels are of txg {newest}")), "{told}");
    let refused = live.fails(&format!("zpool import -N {from} {POOL}"));
    assert!(refused.contains("the newest uberblocks are gone"), "{refused}");
    assert!(live.fails(&format!("zfs list {from} {POOL}")).contains("the newest uberblocks are gone"));
    assert!(std::fs::read(&disk).unwrap() == before, "nothing was to be written");
    let told = live.ok(&format!("zpool import -N -F {from} {POOL}"));
    assert!(told.starts_with("Pool hurt returned to its state as of "), "{told}");
    assert!(told.contains("Discarded up to 3 transaction groups"), "{told}");
    live.export_and_verify(POOL);
    let first = uberblocks(&disk).iter().map(|uberblock| uberblock.txg).max().unwrap();
    assert!(first > newest, "{first} comes after {newest}, which may be on other devices");
    assert_eq!(live.ok(&format!("zpool import -N {from} {POOL}")), "");
}

#[test]
fn a_daemon_that_was_killed_finds_disks_that_have_other_names_now() {
    let live = Live::new();
    let (one, two) = (live.disk("one", 64), live.disk("two", 64));
    live.ok(&format!("zpool create -m none {POOL} mirror {one} {two}"));
    live.signal("-KILL");
    std::fs::rename(&two, live.disks().join("renamed")).unwrap();
    assert_eq!(live.ok(&format!("zpool list -H -o health {POOL}")), "ONLINE\n");
    assert!(live.ok(&format!("zpool status {POOL}")).contains("/renamed"));
    live.export_and_verify(POOL);
}

#[test]
fn labels_of_an_earlier_pool_at_the_end_of_a_device_do_not_count() {
    let live = Live::new();
    let disk = live.disk("disk1", 128);
    live.ok(&format!("zpool create -m none old {disk}"));
    (0..5).for_each(|number| drop(live.ok(&format!("zfs create old/{number}"))));
    live.ok("zpool export old");
    cut(&disk, 96);
    live.ok(&format!("zpool create -f -m none {POOL} {disk}"));
    live.ok(&format!("zpool export {POOL}"));
    cut(&disk, 128);
    let told = live.ok(&format!("zpool import -d {}", live.disks().display()));
    assert!(told.contains(" state: ONLINE"), "{told}");
    live.ok(&format!("zpool import -N -d {} {POOL}", live.disks().display()));
}

/// Labels name the pool by the new guid in half of the copies of one disk, as when power fails in the first step of the change.
#[test]
fn a_change_of_the_guid_that_was_interrupted_leaves_one_pool() {
    let live = Live::new();
    let (one, two) = (live.disk("one", 64), live.disk("two", 64));
    live.ok(&format!("zpool create -m none {POOL} {one} {two}"));
    live.ok(&format!("zpool export {POOL}"));
    let before = [&one, &two].map(|path| std::fs::read(path).unwrap());
    let from = format!("-d {}", live.disks().display());
    live.ok(&format!("zpool import -N {from} {POOL}"));
    live.ok(&format!("zpool reguid {POOL}"));
    live.ok(&format!("zpool export {POOL}"));
    let after = std::fs::read(&one).unwrap();
    let mut cut = before[0].clone();
    // The configurations of the labels L0 and L2.
    for label in [0, cut.len() - (512 << 10)] {
        let place = label + (16 << 10)..label + (128 << 10);
        cut[place.clone()].copy_from_slice(&after[place]);
    }
    std::fs::write(&one, &cut).unwrap();
    std::fs::write(&two, &before[1]).unwrap();
    let told = live.ok(&format!("zpool import {from}"));
    assert!(told.matches("pool: hurt").count() == 1 && told.contains(" state: ONLINE"), "{told}");
    live.ok(&format!("zpool import -N {from} {POOL}"));
    assert_eq!(live.ok(&format!("zpool list -H -o health {POOL}")), "ONLINE\n");
    live.export_and_verify(POOL);
}
