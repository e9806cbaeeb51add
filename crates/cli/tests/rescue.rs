//! Damaged pools, from the command line: messages about them, and their recovery.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::path::Path;
use std::sync::Arc;

use engine::dmu::edit::Objects;
use engine::spa::{Pool, Spa};
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
    let number = fs.create(fs.root, name, &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.write(number, 0, &vec![byte; 1 << 20], true).unwrap();
    spa.sync().unwrap();
    fs.unmount().unwrap();
}

/// A pool that was not exported, with a file `old`; `work` changes it further.
fn pool(dir: &Path, work: impl FnOnce(&Arc<Spa>)) {
    let spa = pools::create_fs_dir(dir, POOL, 128 << 20, Default::default()).unwrap();
    file(&spa, b"old", 7);
    work(&spa);
    spa.sync().unwrap();
    spa.abandon();
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
    assert!(told.contains(&format!("'zpool import -F {POOL}'")), "{told}");
    let dry = live.run(&format!("zpool import -f {from} -F -n {POOL}")).out;
    assert!(dry.starts_with("Would be able to return hurt to its state as of "), "{dry}");
    let before = std::fs::read(dir.join("disk1")).unwrap();
    let refused = live.run(&format!("zpool import -f {from} -N {POOL}"));
    assert!(refused.out.contains(" older: The state of txg "), "{} {}", refused.out, refused.err);
    assert!(std::fs::read(dir.join("disk1")).unwrap() == before, "nothing was to be written");
    let told = live.ok(&format!("zpool import -f {from} -N -F {POOL}"));
    assert!(told.starts_with("Pool hurt returned to its state as of "), "{told}");
    live.ok(&format!("zpool export {POOL}"));
    if Judge::USUAL.installed() {
        Judge::USUAL.verify(&dir, POOL).unwrap();
    }
}
