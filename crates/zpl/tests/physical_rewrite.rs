//! `zfs rewrite -P`: births of rewritten blocks, and the space of datasets that share them, judged by the real zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use engine::dsl::props::PropValue;
use engine::dsl::write::Hooks;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::send::{From, SendFlags, send};
use engine::spa::layout::{PoolSpec, TopSpec, VdevSpec};
use engine::spa::{NewPool, Spa, WaitActivity, create};
use engine::vdev::config::AllocBias;
use ondisk::{Blkptr, ObjsetType};
use stdx::rng::Rng;
use testkit::pools;
use testkit::zdb::Judge;
use zcommon::features::{FEATURES, Feature, of_openzfs_2_3};
use zpl::FileKind;
use zpl::write::{CloneFrom, FsWriter, NewNode, Overrides, Rewriting, create_fs, mount};

const POOL: &str = "moved";
const BLOCK: usize = 4096;
/// Blocks of the large file: its pointers are in an indirect block.
const BLOCKS: usize = 40;
/// Values of `checksum`, `compression` and `dedup`.
const SHA256: u64 = 8;
const EDONR: u64 = 13;
const LZ4: u64 = 15;

struct Bed {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
}

impl Bed {
    fn new(features: Vec<Feature>) -> Self {
        Self::sized(features, 256 << 20)
    }

    fn sized(features: Vec<Feature>, size: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::system(64 << 20).unwrap();
        let vdev = VdevSpec::Leaf(pools::leaf(&dir.path().join("disk1"), size));
        let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }];
        let new = NewPool {
            name: POOL.into(),
            label_name: None,
            version: 5000,
            features,
            layout: PoolSpec { tops, ..PoolSpec::default() }.lay_out(0, 4, &mut || env.guid()).unwrap(),
            hostid: 1,
            hostname: "host".into(),
            command: format!("zpool create {POOL}"),
        };
        let fs = pools::new_fs(&env);
        let spa = create(&env, new, &|objset, tx| create_fs(objset, tx, &fs)).unwrap();
        let bed = Self { dir, spa };
        bed.set("recordsize", BLOCK as u64);
        bed.set("compression", 2);
        bed
    }

    fn whole() -> Self {
        Self::new(FEATURES.to_vec())
    }

    fn set(&self, name: &'static str, value: u64) {
        let all = [(name, Some(PropValue::Number(value)))];
        self.spa.dsl_task(move |tasks| tasks.set(POOL, &all, SettingSource::Local)).unwrap();
    }

    fn mount(&self, name: &str) -> Arc<FsWriter> {
        mount(&self.spa, name, Overrides::default()).unwrap()
    }

    fn snapshot(&self, name: &str) {
        let name = name.to_owned();
        self.spa.dsl_task(move |tasks| tasks.snapshot(&[&name], &[])).unwrap();
    }

    fn clone(&self, snapshot: &str, name: &str) {
        let (snapshot, name) = (snapshot.to_owned(), name.to_owned());
        self.spa.dsl_task(move |tasks| tasks.clone_snapshot(&snapshot, &name).map(drop)).unwrap();
    }

    fn destroy(&self, name: &str) {
        let name = name.to_owned();
        self.spa.dsl_task(move |tasks| tasks.destroy(&name, false)).unwrap();
        self.settle();
    }

    /// Waits until background frees have taken effect.
    fn settle(&self) {
        (0..3).for_each(|_| self.spa.sync().unwrap());
    }

    /// The newest zdb, and the images as a power cut would leave them.
    fn zdb(&self, args: &[&str]) -> Option<String> {
        let copy = tempfile::tempdir().unwrap();
        pools::copy(self.dir.path(), copy.path());
        Judge::NEWEST.installed().then(|| Judge::NEWEST.run(copy.path(), POOL, args).unwrap())
    }

    /// The images as a power cut would leave them, judged by the newest zdb.
    fn judge(&self, what: &str) {
        let copy = tempfile::tempdir().unwrap();
        pools::copy(self.dir.path(), copy.path());
        if Judge::NEWEST.installed() {
            Judge::NEWEST.verify(copy.path(), POOL).unwrap_or_else(|why| panic!("{what}: {why}"));
        }
    }

    fn uses(&self) -> u64 {
        self.spa.feature(Feature::PhysicalRewrite).unwrap()
    }
}

fn content(seed: u64, blocks: usize) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK * blocks];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn make(fs: &FsWriter, name: &str, bytes: &[u8]) -> u64 {
    let file =
        fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.data().write(file, 0, bytes, true).unwrap();
    file
}

fn pointers(fs: &FsWriter, file: u64, level: u8, count: usize) -> Vec<Blkptr> {
    let synced = fs.objset.handle(file).unwrap().synced();
    (0..count).map(|i| synced.blkptr(level, i as u64).unwrap().unwrap()).collect()
}

fn is(fs: &FsWriter, file: u64, bytes: &[u8]) {
    let mut have = vec![0; bytes.len()];
    assert_eq!(fs.data().read(file, 0, &mut have).unwrap(), bytes.len());
    assert!(have == bytes, "file {file}");
}

fn births(all: &[Blkptr]) -> Vec<(u64, u64, bool)> {
    all.iter().map(|bp| (bp.logical_birth(), bp.physical_birth(), bp.is_rewritten())).collect()
}

/// Bytes of the stream from the first to the second snapshot.
fn stream(bed: &Bed, from: &str, to: &str) -> usize {
    let open = |name: &str| bed.spa.pool.dsl.dataset(name).unwrap();
    let mut out = Vec::new();
    let base = From::snapshot(&open(from)).unwrap();
    send(&open(to), Some(base), SendFlags::default(), &mut out).unwrap();
    out.len()
}

#[test]
fn a_moved_block_keeps_its_logical_birth_and_is_not_sent() {
    let bed = Bed::whole();
    let fs = bed.mount(POOL);
    let (bytes, small) = (content(1, BLOCKS), content(2, 1)[..700].to_vec());
    let (file, one) = (make(&fs, "file", &bytes), make(&fs, "one", &small));
    bed.snapshot("moved@a");
    let (before, above) = (pointers(&fs, file, 0, BLOCKS), pointers(&fs, file, 1, 1));
    let referenced = |name: &str| bed.spa.pool.dsl.dataset(name).unwrap().phys;
    assert_eq!(bed.uses(), 0);

    assert_eq!(fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap(), bytes.len() as u64);
    assert_eq!(fs.rewrites().rewrite(one, 0, 0, Rewriting::Physical).unwrap(), 1024);
    // A block that waits to be written is left out, and one that is written afterwards is new.
    assert_eq!(fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap(), 0);
    fs.data().write(file, 3 * BLOCK as u64 + 5, b"new", true).unwrap();
    bed.spa.sync().unwrap();
    let mut bytes = bytes;
    bytes[3 * BLOCK + 5..][..3].copy_from_slice(b"new");
    is(&fs, file, &bytes);
    is(&fs, one, &small);

    let (after, new_above) = (pointers(&fs, file, 0, BLOCKS), pointers(&fs, file, 1, 1));
    let txg = new_above[0].logical_birth();
    assert!(txg > above[0].logical_birth() && !new_above[0].is_rewritten());
    for (blkid, (old, new)) in before.iter().zip(&after).enumerate() {
        let wanted = if blkid == 3 { (txg, txg, false) } else { (old.logical_birth(), txg, true) };
        assert_eq!((new.logical_birth(), new.physical_birth(), new.is_rewritten()), wanted, "block {blkid}");
        assert_ne!(old.dva(0), new.dva(0), "block {blkid}");
        assert_eq!(new.accounting_birth(), txg);
    }
    let top = pointers(&fs, one, 0, 1)[0];
    assert!(top.is_rewritten() && top.logical_birth() < txg, "a pointer of the dnode: {top}");
    assert_eq!(bed.uses(), 1);
    let data = (BLOCKS * BLOCK) as u64;
    assert!(referenced("moved@a").unique_bytes >= data, "only the snapshot has the old blocks");
    assert!(referenced(POOL).unique_bytes >= data, "only the head has the new ones");

    bed.snapshot("moved@b");
    assert_eq!(bed.uses(), 2, "its snapshot, too");
    let moved = stream(&bed, "moved@a", "moved@b");
    assert!(moved < data as usize / 4, "{moved} bytes are sent");
    fs.rewrites().rewrite(file, 0, 0, Rewriting::Logical).unwrap();
    bed.snapshot("moved@c");
    let last = births(&pointers(&fs, file, 0, BLOCKS));
    assert!(last.iter().all(|(logical, physical, moved)| logical == physical && !moved && *logical > txg));
    let sent = stream(&bed, "moved@b", "moved@c");
    assert!(sent > data as usize, "{sent} bytes are sent");
    // A block that was moved twice.
    fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap();
    bed.spa.sync().unwrap();
    fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap();
    bed.spa.sync().unwrap();
    let twice = births(&pointers(&fs, file, 0, BLOCKS));
    assert!(twice.iter().zip(&last).all(|(now, then)| now.0 == then.0 && now.1 > then.1 && now.2));
    bed.judge("moved twice");
    if let Some(said) = bed.zdb(&["-ddddddbbbb"]) {
        let shown = |(logical, physical, _): &(u64, u64, bool)| {
            assert!(logical < physical);
            said.matches(&format!(" B={logical}/{physical} ")).count()
        };
        // The one block that was written in between was sent by the logical rewrite as the others were.
        assert!(twice.iter().all(|births| shown(births) >= BLOCKS), "{said}");
    }
    ["moved@b", "moved@a", "moved@c"].iter().for_each(|name| bed.destroy(name));
    bed.judge("without snapshots");
    is(&fs, file, &bytes);
    assert_eq!(bed.uses(), 1);
    fs.unmount().unwrap();
}

#[test]
fn a_pool_without_the_feature_moves_nothing() {
    let bed = Bed::new(of_openzfs_2_3());
    let fs = bed.mount(POOL);
    let file = make(&fs, "file", &content(1, 4));
    bed.spa.sync().unwrap();
    let refused = fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap_err();
    assert_eq!(refused.kind(), engine::Kind::Unsupported);
    assert_eq!(fs.rewrites().rewrite(file, 0, 0, Rewriting::Logical).unwrap(), 4 * BLOCK as u64);
    fs.unmount().unwrap();
}

/// The orders of `n` steps.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(n - 1);
    let with = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, n - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..n).map(move |at| with(order, at))).collect()
}

/// Makes `name`: snapshots a, b and c, and a clone of b, with rewrites between them. Returns the file system and its file.
fn shared(bed: &Bed, name: &str, bytes: &[u8]) -> (Arc<FsWriter>, u64) {
    let (child, new) = (name.to_owned(), pools::new_fs(&bed.spa.pool.env));
    bed.spa
        .dsl_task(move |tasks| {
            tasks
                .create(&child, ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &new))
                .map(drop)
        })
        .unwrap();
    let fs = bed.mount(name);
    let (file, one) = (make(&fs, "file", bytes), make(&fs, "one", &bytes[..BLOCK]));
    let quarter = (BLOCK * BLOCKS / 4) as u64;
    bed.snapshot(&format!("{name}@a"));
    fs.rewrites().rewrite(file, 0, 2 * quarter, Rewriting::Physical).unwrap();
    fs.rewrites().rewrite(one, 0, 0, Rewriting::Physical).unwrap();
    bed.snapshot(&format!("{name}@b"));
    let clone = format!("{name}-clone");
    bed.clone(&format!("{name}@b"), &clone);
    let theirs = bed.mount(&clone);
    theirs.rewrites().rewrite(file, quarter, 2 * quarter, Rewriting::Physical).unwrap();
    theirs.rewrites().rewrite(one, 0, 0, Rewriting::Physical).unwrap();
    fs.rewrites().rewrite(file, quarter, 3 * quarter, Rewriting::Physical).unwrap();
    bed.spa.sync().unwrap();
    // Blocks that only the livelist of the clone knows die again.
    theirs.rewrites().rewrite(file, quarter, quarter, Rewriting::Physical).unwrap();
    bed.snapshot(&format!("{name}@c"));
    is(&theirs, file, bytes);
    is(&theirs, one, &bytes[..BLOCK]);
    theirs.unmount().unwrap();
    (fs, file)
}

/// Snapshots and clones around rewrites, destroyed in every order that is allowed: each block is freed once, when its last
/// user goes.
#[test]
fn datasets_that_share_moved_blocks_go_in_any_order() {
    let bed = Bed::whole();
    let bytes = content(3, BLOCKS);
    let parts = ["@a", "-clone", "@b", "@c"];
    // The clone goes before its origin.
    let allowed = |order: &Vec<usize>| {
        let place = |n: usize| order.iter().position(|&step| step == n);
        place(1) < place(2)
    };
    let orders: Vec<Vec<usize>> = orders(parts.len()).into_iter().filter(allowed).collect();
    assert_eq!(orders.len(), 12);
    let name = |n: usize| format!("{POOL}/fs{n}");
    let all: Vec<_> = (0..orders.len()).map(|n| shared(&bed, &name(n), &bytes)).collect();
    bed.judge("made");
    for step in 0..parts.len() {
        for (n, order) in orders.iter().enumerate() {
            bed.destroy(&format!("{}{}", name(n), parts[order[step]]));
            is(&all[n].0, all[n].1, &bytes);
        }
        bed.judge(&format!("step {step}"));
    }
    assert_eq!(bed.uses(), 12, "the heads are left");
    for (n, (fs, _)) in all.iter().enumerate() {
        fs.dirs().unlink(fs.root, b"file").unwrap();
        fs.dirs().unlink(fs.root, b"one").unwrap();
        bed.settle();
        let head = bed.spa.pool.dsl.dataset(&name(n)).unwrap().phys;
        assert!(head.referenced_bytes < 1 << 20 && head.unique_bytes == head.referenced_bytes, "{head:?}");
        fs.unmount().unwrap();
    }
    bed.judge("removed");
}

/// Rollback and promote take contents with moved blocks from one dataset to the other.
#[test]
fn rollback_and_promote_keep_count_of_moved_blocks() {
    const CLONE: &str = "moved/clone";
    let bed = Bed::whole();
    let bytes = content(4, BLOCKS);
    let fs = bed.mount(POOL);
    let file = make(&fs, "file", &bytes);
    bed.snapshot("moved@a");
    fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    bed.spa.dsl_task(|tasks| tasks.rollback(POOL, None)).unwrap();
    bed.settle();
    assert_eq!(bed.uses(), 0);
    let fs = bed.mount(POOL);
    fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap();
    bed.snapshot("moved@b");
    bed.clone("moved@b", CLONE);
    let theirs = bed.mount(CLONE);
    theirs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap();
    fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap();
    bed.spa.sync().unwrap();
    bed.spa.dsl_task(|tasks| tasks.promote(CLONE)).unwrap();
    bed.judge("promoted");
    is(&theirs, file, &bytes);
    is(&fs, file, &bytes);
    fs.unmount().unwrap();
    theirs.unmount().unwrap();
    bed.spa.dsl_task(|tasks| tasks.snapshot(&["moved/clone@z"], &[])).unwrap();
    bed.destroy("moved/clone@a");
    bed.judge("without a");
    assert_eq!(bed.uses(), 4);
}

/// References by clones and dedup tables are counted as before, whatever moves.
#[test]
fn cloned_and_deduplicated_blocks_move() {
    let bed = Bed::whole();
    let fs = bed.mount(POOL);
    let bytes = content(5, BLOCKS);
    let (file, copy) = (make(&fs, "file", &bytes), make(&fs, "copy", b""));
    bed.spa.sync().unwrap();
    fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap();
    bed.spa.sync().unwrap();
    let clone =
        || fs.clones().clone_range((CloneFrom::File(&fs, file), 0), (copy, 0), bytes.len() as u64, true);
    assert_eq!(clone().unwrap(), bytes.len() as u64);
    bed.spa.sync().unwrap();
    let (source, cloned) = (pointers(&fs, file, 0, BLOCKS), pointers(&fs, copy, 0, BLOCKS));
    for (source, cloned) in source.iter().zip(&cloned) {
        assert!(source.is_rewritten() && !cloned.is_rewritten());
        assert_eq!((source.dva(0), source.physical_birth()), (cloned.dva(0), cloned.physical_birth()));
        assert!(cloned.logical_birth() > cloned.physical_birth());
    }
    fs.rewrites().rewrite(copy, 0, 0, Rewriting::Physical).unwrap();
    bed.spa.sync().unwrap();
    let moved = pointers(&fs, copy, 0, BLOCKS);
    assert!(moved.iter().zip(&cloned).all(|(new, old)| new.logical_birth() == old.logical_birth()));
    assert!(moved.iter().all(Blkptr::is_rewritten));
    bed.judge("the clone moved");

    // The table has nothing yet: the blocks are new.
    bed.set("checksum", SHA256);
    bed.set("dedup", SHA256);
    fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap();
    bed.spa.sync().unwrap();
    let listed = pointers(&fs, file, 0, BLOCKS);
    assert!(
        listed.iter().all(|bp| bp.dedup() && !bp.is_rewritten() && bp.logical_birth() == bp.physical_birth())
    );
    // Blocks that the table has: they are shared, with the physical birth of the stored copy.
    fs.rewrites().rewrite(copy, 0, 0, Rewriting::Physical).unwrap();
    bed.spa.sync().unwrap();
    let shared = pointers(&fs, copy, 0, BLOCKS);
    for (stored, shared) in listed.iter().zip(&shared) {
        assert_eq!((shared.dva(0), shared.physical_birth()), (stored.dva(0), stored.physical_birth()));
        assert!(shared.dedup() && !shared.is_rewritten() && shared.logical_birth() > shared.physical_birth());
    }
    // A block that is the stored copy already stays as it is.
    fs.rewrites().rewrite(copy, 0, 0, Rewriting::Physical).unwrap();
    fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap();
    bed.spa.sync().unwrap();
    assert!(pointers(&fs, copy, 0, BLOCKS) == shared && pointers(&fs, file, 0, BLOCKS) == listed);
    bed.judge("kept");
    // Out of the table.
    bed.set("dedup", 2);
    bed.set("compression", LZ4);
    fs.rewrites().rewrite(copy, 0, 0, Rewriting::Physical).unwrap();
    bed.spa.sync().unwrap();
    let out = pointers(&fs, copy, 0, BLOCKS);
    assert!(out.iter().zip(&shared).all(|(new, old)| new.logical_birth() == old.logical_birth()));
    assert!(out.iter().all(|bp| bp.is_rewritten() && !bp.dedup()));
    is(&fs, file, &bytes);
    is(&fs, copy, &bytes);
    bed.judge("out of the table");
    fs.dirs().unlink(fs.root, b"file").unwrap();
    fs.dirs().unlink(fs.root, b"copy").unwrap();
    bed.settle();
    bed.judge("removed");
    fs.unmount().unwrap();
}

/// Blocks that a checkpoint needs stay, whatever moves, and are freed with it.
#[test]
fn blocks_move_beside_a_checkpoint() {
    let bed = Bed::whole();
    let fs = bed.mount(POOL);
    let bytes = content(6, BLOCKS);
    let file = make(&fs, "file", &bytes);
    bed.spa.sync().unwrap();
    fs.rewrites().rewrite(file, 0, (BLOCK * BLOCKS / 2) as u64, Rewriting::Physical).unwrap();
    bed.spa.checkpoint().take().unwrap();
    for _ in 0..2 {
        fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap();
        bed.settle();
    }
    bed.judge("beside the checkpoint");
    bed.spa.checkpoint().discard().unwrap();
    while bed.spa.background().left(WaitActivity::Discard).unwrap().is_some() {
        bed.spa.sync().unwrap();
    }
    bed.judge("without the checkpoint");
    is(&fs, file, &bytes);
    fs.unmount().unwrap();
}

/// Edon-R is no checksum for dedup, but strong enough to leave a block in its place.
#[test]
fn equal_content_stays_in_its_place() {
    let bed = Bed::whole();
    bed.set("checksum", EDONR);
    bed.set("compression", LZ4);
    let fs = bed.mount(POOL);
    let file = make(&fs, "file", &content(1, BLOCKS));
    bed.spa.sync().unwrap();
    let before = pointers(&fs, file, 0, BLOCKS);
    fs.rewrites().rewrite(file, 0, 0, Rewriting::Logical).unwrap();
    bed.spa.sync().unwrap();
    assert_eq!(pointers(&fs, file, 0, BLOCKS), before);
    bed.judge("edonr");
    fs.unmount().unwrap();
}

/// A rewrite that finds no space ends there; its work so far stays, and nothing is lost.
#[test]
fn a_full_pool_refuses_to_move_more() {
    let bed = Bed::sized(FEATURES.to_vec(), 96 << 20);
    bed.set("recordsize", 128 << 10);
    let fs = bed.mount(POOL);
    let bytes = content(7, (36 << 20) / BLOCK);
    let file = make(&fs, "file", &bytes);
    bed.snapshot("moved@a");
    let refused = fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap_err();
    assert_eq!(refused.kind(), engine::Kind::NoSpace);
    bed.settle();
    is(&fs, file, &bytes);
    let moved = pointers(&fs, file, 0, bytes.len() >> 17).iter().filter(|bp| bp.is_rewritten()).count();
    assert!(moved > 0 && moved < bytes.len() >> 17, "{moved}");
    bed.judge("full");
    bed.destroy("moved@a");
    assert_eq!(fs.rewrites().rewrite(file, 0, 0, Rewriting::Physical).unwrap(), bytes.len() as u64);
    bed.settle();
    is(&fs, file, &bytes);
    bed.judge("moved");
    fs.unmount().unwrap();
}

#[test]
fn the_same_content_gets_the_copies_that_are_set_today() {
    let bed = Bed::whole();
    bed.set("checksum", SHA256);
    bed.set("compression", LZ4);
    let fs = bed.mount(POOL);
    let file = make(&fs, "file", &content(1, BLOCKS));
    bed.spa.sync().unwrap();
    for copies in [2, 3, 1] {
        bed.set("copies", copies);
        fs.rewrites().rewrite(file, 0, 0, Rewriting::Logical).unwrap();
        bed.spa.sync().unwrap();
        let have = pointers(&fs, file, 0, BLOCKS);
        assert!(have.iter().all(|bp| bp.ndvas() as u64 == copies), "{copies} copies are asked for");
    }
    bed.judge("copies");
    fs.unmount().unwrap();
}
