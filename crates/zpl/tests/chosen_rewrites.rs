//! `zfs rewrite --balance`, `--compact`, `--dedup`, `--undedup`: only the chosen blocks move, content and snapshots stay, and
//! tables count what there is, judged by the real zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use engine::ddt::{self, Totals};
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::layout::{PoolSpec, TopSpec, VdevSpec};
use engine::spa::{NewPool, Spa, create};
use engine::vdev::config::AllocBias;
use ondisk::{Blkptr, ObjsetType};
use stdx::rng::Rng;
use testkit::pools;
use testkit::zdb::Judge;
use zcommon::features::FEATURES;
use zpl::write::{
    CloneFrom, FsWriter, NewNode, Overrides, RewriteHow, Rewriting, Tally, Which, create_fs, mount,
};
use zpl::{FileKind, Filesystem};

const POOL: &str = "chosen";
const CHILD: &str = "chosen/fs";
const RECORD: u64 = 16 << 10;
/// Blocks of a file.
const BLOCKS: u64 = 64;
const SIZE: u64 = BLOCKS * RECORD;
const DISK: u64 = 96 << 20;
const ASHIFT: u32 = 9;
/// Values of properties.
const SHA256: u64 = 8;
const OFF: u64 = 2;

struct Bed {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
}

fn top(vdev: VdevSpec) -> TopSpec {
    TopSpec { vdev, class: AllocBias::Normal, ashift: Some(ASHIFT) }
}

impl Bed {
    /// A pool on one disk, or on a raidz of several.
    fn new(disks: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::system(64 << 20).unwrap();
        let mut leaves: Vec<_> =
            (1..=disks).map(|n| pools::leaf(&dir.path().join(format!("disk{n}")), DISK)).collect();
        let vdev = match disks {
            1 => VdevSpec::Leaf(leaves.remove(0)),
            _ => VdevSpec::Raidz { parity: 1, children: leaves },
        };
        let spec = PoolSpec { tops: vec![top(vdev)], ..PoolSpec::default() };
        let new = NewPool {
            name: POOL.into(),
            label_name: None,
            version: 5000,
            features: FEATURES.to_vec(),
            layout: spec.lay_out(0, 4, &mut || env.guid()).unwrap(),
            hostid: 1,
            hostname: "host".into(),
            command: format!("zpool create {POOL}"),
        };
        let fs = pools::new_fs(&env);
        let spa = create(&env, new, &|objset, tx| create_fs(objset, tx, &fs)).unwrap();
        let bed = Self { dir, spa };
        bed.set("compression", OFF);
        bed.set("recordsize", RECORD);
        bed
    }

    fn leaf(&self, name: &str) -> engine::spa::layout::LeafSpec {
        pools::leaf(&self.dir.path().join(name), DISK)
    }

    fn set(&self, name: &'static str, value: u64) {
        let all = [(name, Some(PropValue::Number(value)))];
        self.spa.dsl_task(move |tasks| tasks.set(POOL, &all, SettingSource::Local)).unwrap();
    }

    /// A mounted file system below the pool's.
    fn child(&self) -> Arc<FsWriter> {
        let fs = pools::new_fs(&self.spa.pool.env);
        self.spa
            .dsl_task(move |tasks| {
                tasks.create(CHILD, ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &fs))
            })
            .unwrap();
        mount(&self.spa, CHILD, Overrides::default()).unwrap()
    }

    fn snapshot(&self, name: &str) {
        let name = format!("{CHILD}@{name}");
        self.spa.dsl_task(move |tasks| tasks.snapshot(&[&name], &[])).unwrap();
    }

    fn destroy(&self, name: &str) {
        let name = format!("{CHILD}@{name}");
        self.spa.dsl_task(move |tasks| tasks.destroy(&name, false)).unwrap();
        self.settle();
    }

    /// Waits until background frees and the logs of tables have taken effect.
    fn settle(&self) {
        (0..12).for_each(|_| self.spa.dsl_task(|_| Ok(())).unwrap());
    }

    /// The images as a power cut would leave them, judged by the newest zdb: it knows leaks of tables.
    fn judge(&self, what: &str) {
        let copy = tempfile::tempdir().unwrap();
        pools::copy(self.dir.path(), copy.path());
        if Judge::NEWEST.installed() {
            Judge::NEWEST.verify(copy.path(), POOL).unwrap_or_else(|why| panic!("{what}: {why}"));
        }
    }

    /// Entries and references of dedup tables.
    fn listed(&self) -> (u64, u64) {
        let tables = ddt::tables(&self.spa.mos.view(), &mut Vec::new());
        let all = Totals::of(&tables, &|_| 0).all();
        (all.blocks, all.ref_blocks)
    }

    /// Content of a file of a snapshot.
    fn of_snapshot(&self, name: &str, file: u64) -> Vec<u8> {
        let fs = Filesystem::open(&self.spa.pool.dsl.dataset(&format!("{CHILD}@{name}")).unwrap()).unwrap();
        let inode = fs.inode(file).unwrap();
        let mut bytes = vec![0; inode.attr().size as usize];
        assert_eq!(inode.read_at(0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    fn used(&self, vdev: u64) -> u64 {
        self.spa.space.vdev_stats(vdev).unwrap().allocated
    }

    /// Rewrites a file, after a dry run, which must say the same.
    fn rewrite(&self, fs: &FsWriter, file: u64, which: Which, births: Rewriting) -> Tally {
        let before = pointers(fs, file);
        let planned =
            fs.rewrites().rewrite_some(file, 0, 0, RewriteHow { births, which, dry: true }).unwrap();
        self.spa.sync().unwrap();
        assert!(pointers(fs, file) == before, "a dry run changes nothing");
        let done = fs.rewrites().rewrite_some(file, 0, 0, RewriteHow { births, which, dry: false }).unwrap();
        self.spa.sync().unwrap();
        // A dry run does not know how even the vdevs become.
        assert!(planned == done || which == Which::Balance && planned.written >= done.written);
        let now = pointers(fs, file);
        let changed = now.iter().zip(&before).filter(|(now, then)| now != then).count();
        assert_eq!(changed as u64 * RECORD, done.written, "{done:?}");
        done
    }
}

fn content(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn make(fs: &FsWriter, name: &str, bytes: &[u8]) -> u64 {
    let file =
        fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.data().write(file, 0, bytes, true).unwrap();
    file
}

fn is(fs: &FsWriter, file: u64, bytes: &[u8]) {
    let mut have = vec![0xee; bytes.len() + 5];
    assert_eq!(fs.data().read(file, 0, &mut have).unwrap(), bytes.len());
    assert!(have[..bytes.len()] == *bytes, "file {file}");
}

fn pointers(fs: &FsWriter, file: u64) -> Vec<Blkptr> {
    let synced = fs.objset.handle(file).unwrap().synced();
    (0..BLOCKS).map(|blkid| synced.blkptr(0, blkid).unwrap().unwrap()).collect()
}

fn whole(written: u64) -> Tally {
    Tally { written, ..Tally::default() }
}

/// Blocks take fewer sectors after a raidz is expanded; those that a snapshot or a clone keeps stay.
#[test]
fn compact_saves_sectors_of_an_expanded_raidz() {
    let bed = Bed::new(3);
    let fs = bed.child();
    let names = ["new births", "old births", "cloned", "of a snapshot"];
    let [new, old, cloned, kept] = names.map(|name| make(&fs, name, &content(name.len() as u64)));
    bed.spa.sync().unwrap();
    let clone = make(&fs, "clone", b"");
    let from = CloneFrom::File(&fs, cloned);
    assert_eq!(fs.clones().clone_range((from, 0), (clone, 0), SIZE, true).unwrap(), SIZE);
    bed.spa.sync().unwrap();
    let compact = |file, births| bed.rewrite(&fs, file, Which::Compact, births);
    assert_eq!(compact(new, Rewriting::Logical), Tally { passed: SIZE, ..Tally::default() });
    let target = bed.spa.pool.tree().config.children[0].guid;
    let device = NewDevice::Fresh { leaf: bed.leaf("disk4"), ashift: None };
    bed.spa.disks().attach(Attach { target, device, replacing: false, sequential: false }).unwrap();
    // A block that is written amid the expansion has the old width.
    assert_eq!(compact(new, Rewriting::Logical).passed, SIZE);
    (0..3000).take_while(|_| bed.spa.expansion().is_active()).for_each(|_| bed.spa.sync().unwrap());
    // New blocks have the new width from a later txg on. Until it is open the pool has work, however idle it is.
    (0..9).take_while(|_| bed.spa.expansion().is_widening()).for_each(|_| bed.spa.sync().unwrap());
    let plan = RewriteHow { births: Rewriting::Logical, which: Which::Compact, dry: true };
    assert_eq!(fs.rewrites().rewrite_some(new, 0, 0, plan).unwrap().written, SIZE);
    bed.settle();
    let sectors = |file: u64| -> Vec<u64> {
        let mut all: Vec<_> =
            pointers(&fs, file).iter().map(|bp| bp.dva(0).unwrap().asize >> ASHIFT).collect();
        all.dedup();
        all
    };
    // 32 sectors of data in rows of two or of three, one of parity for each row; an even number in all.
    assert!([new, old, cloned, kept].into_iter().all(|file| sectors(file) == [48]));
    let births = |file: u64| -> Vec<u64> { pointers(&fs, file).iter().map(Blkptr::logical_birth).collect() };
    let before = (births(old), bed.used(0));
    assert_eq!(compact(new, Rewriting::Logical), whole(SIZE));
    assert_eq!(compact(old, Rewriting::Physical), whole(SIZE));
    assert_eq!(compact(cloned, Rewriting::Logical), Tally { shared: SIZE, ..Tally::default() });
    bed.snapshot("a");
    assert_eq!(compact(kept, Rewriting::Logical), Tally { shared: SIZE, ..Tally::default() });
    let after = [new, old, cloned, clone, kept].map(sectors);
    assert_eq!(after.map(|all| all[0]), [44, 44, 48, 48, 48]);
    assert_eq!(births(old), before.0);
    assert!(births(new).iter().all(|birth| *birth > before.0[0]));
    bed.settle();
    // Eight sectors of 96 in each two blocks, but for what the metadata takes.
    let won = before.1 - bed.used(0);
    assert!(won > 2 * BLOCKS * (4 << ASHIFT) * 3 / 4, "{won} bytes");
    assert_eq!(compact(new, Rewriting::Logical).passed, SIZE, "a second run");
    bed.judge("compacted");
    bed.destroy("a");
    fs.dirs().unlink(fs.root, b"clone").unwrap();
    bed.settle();
    assert_eq!(compact(kept, Rewriting::Logical), whole(SIZE));
    assert_eq!(compact(cloned, Rewriting::Logical), whole(SIZE));
    bed.settle();
    for (file, name) in [new, old, cloned, kept].into_iter().zip(names) {
        is(&fs, file, &content(name.len() as u64));
        assert_eq!(sectors(file), [44]);
    }
    bed.judge("all compacted");
    fs.unmount().unwrap();
}

/// A vdev that was added gets its share, and then nothing moves any more.
#[test]
fn balance_fills_a_vdev_that_was_added() {
    let bed = Bed::new(1);
    let fs = bed.child();
    let files: Vec<u64> = (0..20).map(|n| make(&fs, &format!("f{n}"), &content(n))).collect();
    bed.set("dedup", SHA256);
    let listed = make(&fs, "listed", &content(100));
    bed.spa.sync().unwrap();
    bed.set("dedup", OFF);
    let clone = make(&fs, "clone", b"");
    fs.clones().clone_range((CloneFrom::File(&fs, files[0]), 0), (clone, 0), SIZE, true).unwrap();
    bed.spa.sync().unwrap();
    let balance = |file| bed.rewrite(&fs, file, Which::Balance, Rewriting::Physical);
    assert_eq!(balance(files[1]).passed, SIZE, "one vdev is even");
    let vdev = VdevSpec::Leaf(bed.leaf("disk2"));
    bed.spa.vdevs().add(PoolSpec { tops: vec![top(vdev)], ..PoolSpec::default() }, true).unwrap();
    let shared = Tally { shared: SIZE, ..Tally::default() };
    assert_eq!([listed, clone, files[0]].map(balance), [shared; 3]);
    bed.snapshot("a");
    assert_eq!(balance(files[1]), shared);
    bed.destroy("a");
    let tallies: Vec<Tally> = files[1..].iter().map(|file| balance(*file)).collect();
    let moved: u64 = tallies.iter().map(|tally| tally.written).sum();
    // Half of all, but a hundredth of a vdev at each side.
    assert!((8 << 20..12 << 20).contains(&moved), "{moved} bytes moved");
    assert!(bed.spa.space_facts().surplus().is_empty());
    bed.settle();
    assert!(bed.used(0).abs_diff(bed.used(1)) < DISK / 40, "{} {}", bed.used(0), bed.used(1));
    assert!(files.iter().all(|file| balance(*file).written == 0), "a second run");
    let vdevs = |file: u64| pointers(&fs, file).iter().map(|bp| bp.dva(0).unwrap().vdev).max().unwrap();
    assert!([listed, clone, files[0]].map(vdevs) == [0; 3] && vdevs(files[1]) == 1);
    for (n, file) in (0..).zip(&files) {
        is(&fs, *file, &content(n));
    }
    is(&fs, clone, &content(0));
    bed.judge("even");
    fs.unmount().unwrap();
}

/// Into the table and out of it, beside snapshots and clones.
#[test]
fn dedup_and_undedup_count_what_there_is() {
    for births in [Rewriting::Logical, Rewriting::Physical] {
        let bed = Bed::new(1);
        let fs = bed.child();
        let (one, two) = (make(&fs, "one", &content(1)), make(&fs, "two", &content(1)));
        let (source, clone) = (make(&fs, "source", &content(2)), make(&fs, "clone", b""));
        bed.spa.sync().unwrap();
        fs.clones().clone_range((CloneFrom::File(&fs, source), 0), (clone, 0), SIZE, true).unwrap();
        bed.snapshot("before");
        let all = [(one, 1), (two, 1), (source, 2), (clone, 2)];
        let rewrite = |file, which| bed.rewrite(&fs, file, which, births);
        assert_eq!(rewrite(one, Which::Undedup).passed, SIZE);
        let mut wanted = (0, 0);
        for ((file, _), fresh) in all.into_iter().zip([BLOCKS, 0, BLOCKS, 0]) {
            assert_eq!(rewrite(file, Which::Dedup), Tally { kept: SIZE, ..whole(SIZE) });
            wanted = (wanted.0 + fresh, wanted.1 + BLOCKS);
            assert_eq!(bed.listed(), wanted);
        }
        assert!(all.iter().all(|(file, _)| rewrite(*file, Which::Dedup).passed == SIZE), "a second run");
        assert!(pointers(&fs, one).iter().zip(pointers(&fs, two)).all(|(a, b)| a.dva(0) == b.dva(0)));
        // The property says where later writes go: out of the table.
        fs.data().write(one, 3 * RECORD, &content(3)[..RECORD as usize], true).unwrap();
        bed.spa.sync().unwrap();
        assert_eq!(bed.listed(), (2 * BLOCKS, 4 * BLOCKS - 1));
        bed.snapshot("within");
        let old = pointers(&fs, two)[0].logical_birth();
        for (file, kept) in [(one, SIZE - RECORD), (two, SIZE), (source, SIZE), (clone, SIZE)] {
            let tally = rewrite(file, Which::Undedup);
            assert_eq!((tally.written, tally.kept, tally.shared), (kept, kept, 0));
        }
        assert_eq!(births == Rewriting::Physical, pointers(&fs, two)[0].logical_birth() == old);
        assert_eq!(bed.listed(), (2 * BLOCKS, 4 * BLOCKS - 1), "the snapshot's");
        bed.judge("out of the table, beside a snapshot");
        for (file, seed) in all {
            assert!(bed.of_snapshot("before", file) == content(seed));
            let mut now = content(seed);
            if file == one {
                now[3 * RECORD as usize..][..RECORD as usize].copy_from_slice(&content(3)[..RECORD as usize]);
            }
            is(&fs, file, &now);
            assert!(bed.of_snapshot("within", file) == now);
        }
        bed.destroy("within");
        bed.settle();
        assert_eq!(bed.listed(), (0, 0));
        bed.destroy("before");
        [b"one".as_slice(), b"two", b"source", b"clone"]
            .iter()
            .for_each(|name| fs.dirs().unlink(fs.root, name).unwrap());
        bed.settle();
        bed.judge("removed");
        fs.unmount().unwrap();
    }
}
