//! Random sequences of dataset operations, checked by a recount: used, referenced and unique space counted
//! from all blocks on disk must equal the values in datasets and directories.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use blkdev::{FileDevice, OpenMode, OpenOptions};
use engine::Kind;
use engine::dmu::{NewObject, Objset};
use engine::dsl::Delta;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::dsl::write::{MosView, Tasks};
use engine::env::Env;
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{ImportOptions, NewPool, Spa, create, import};
use engine::types::Bookmark;
use engine::vdev::config::AllocBias;
use engine::zio::Form;
use ondisk::dsl::{DslDataset, DslDir};
use ondisk::{Blkptr, Dnode, ObjectType, ObjsetType, dnode};

const POOL: &str = "model";

fn new_pool(env: &Env, dir: &Path, version: u64) -> Arc<Spa> {
    let path = dir.join("disk");
    std::fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    let device = Arc::new(FileDevice::open(&path, options).unwrap());
    let path = path.to_str().unwrap().to_owned();
    let leaf = LeafSpec { path, is_disk: false, whole_disk: None, devid: None, device };
    let tops = vec![TopSpec { vdev: VdevSpec::Leaf(leaf), class: AllocBias::Normal, ashift: None }];
    let spec = PoolSpec { tops, ..PoolSpec::default() };
    let layout = spec.lay_out(0, 4, &mut || env.guid()).unwrap();
    let features = if version == 5000 { zcommon::features::of_openzfs_2_3() } else { Vec::new() };
    let command = format!("zpool create {POOL}");
    let (hostid, hostname) = (1, "host".into());
    let new =
        NewPool { name: POOL.into(), label_name: None, version, features, layout, hostid, hostname, command };
    create(env, new, &|_, _| Ok(())).unwrap()
}

/// A block's place (none for one that lies in its pointer), its birth and its size.
type Block = (Option<(u32, u64)>, u64, Delta);

struct Walk<'a> {
    view: MosView<'a>,
    found: Vec<Block>,
}

impl Walk<'_> {
    fn add(&mut self, bp: &Blkptr) {
        let size = Delta::of(self.view.dsize(bp), bp.psize(), bp.ucsize());
        self.found.push((bp.dva(0).map(|d| (d.vdev, d.offset)), bp.logical_birth(), size));
    }

    fn root(&mut self, bp: &Blkptr) {
        if bp.is_hole() {
            return;
        }
        let objset = Objset::open(self.view.mos.arc(), 0, bp, Form::Logical).unwrap();
        let phys = objset.phys.clone();
        for d in
            [Some(phys.meta_dnode), phys.userused, phys.groupused, phys.projectused].into_iter().flatten()
        {
            self.dnode(&objset, &d);
        }
        self.add(bp);
    }

    fn dnode(&mut self, objset: &Arc<Objset>, dnode: &Dnode) {
        if dnode.is_free() {
            return;
        }
        dnode.blkptrs().iter().for_each(|bp| self.block(objset, bp));
        dnode.spill().into_iter().for_each(|bp| self.block(objset, bp));
    }

    fn block(&mut self, objset: &Arc<Objset>, bp: &Blkptr) {
        if bp.is_hole() {
            return;
        }
        self.add(bp);
        let read = || objset.arc().read(bp, Bookmark::new(0, 0, 0, 0), Form::Logical).unwrap();
        if bp.level() > 0 {
            for bytes in read().as_chunks::<128>().0 {
                self.block(objset, &Blkptr::from_bytes(bytes).unwrap());
            }
        } else if bp.object_type() == ObjectType::DNODE {
            for (_, bytes) in dnode::slots(&read()) {
                self.dnode(objset, &Dnode::from_bytes(bytes).unwrap());
            }
        }
    }
}

fn blocks(view: &MosView<'_>, bp: &Blkptr) -> Vec<Block> {
    let mut walk = Walk { view: *view, found: Vec::new() };
    walk.root(bp);
    walk.found
}

fn sum<'b>(all: impl Iterator<Item = &'b Block>) -> Delta {
    all.fold(Delta::default(), |sum, (_, _, size)| sum.plus(*size))
}

fn referenced(phys: &DslDataset) -> Delta {
    Delta::of(phys.referenced_bytes, phys.compressed_bytes, phys.uncompressed_bytes)
}

fn places(all: &[Block]) -> BTreeMap<((u32, u64), u64), i64> {
    all.iter().filter_map(|(at, birth, size)| Some((((*at)?, *birth), size.used))).collect()
}

/// Recounts a directory with all below; returns the charge of its parent.
fn recount(view: &MosView<'_>, number: u64, name: &str) -> u64 {
    let dir = view.dir(number).unwrap();
    let mut expected = [0i64; 5];
    if dir.head_dataset_obj != 0 {
        recount_head(view, &dir, name, &mut expected);
    }
    for child in view.zap_entries(dir.child_dir_zapobj).unwrap() {
        let (part, child) = (child.name_lossy(), child.value.first().unwrap());
        let below = view.dir(child).unwrap();
        let used = match part.as_str() {
            // Their own blocks are not looked for here.
            "$MOS" | "$FREE" => below.used_bytes,
            _ => recount(view, child, &format!("{name}/{part}")),
        };
        expected[DslDir::USED_CHILD] += used.cast_signed();
        expected[DslDir::USED_CHILD_RSRV] += below.reserved.saturating_sub(used).cast_signed();
    }
    if dir.flags & DslDir::FLAG_USED_BREAKDOWN != 0 {
        assert_eq!(dir.used_breakdown.map(u64::cast_signed), expected, "breakdown of {name}");
    }
    assert_eq!(dir.used_bytes.cast_signed(), expected.iter().sum::<i64>(), "used of {name}");
    dir.used_bytes
}

fn recount_head(view: &MosView<'_>, dir: &DslDir, name: &str, expected: &mut [i64; 5]) {
    let head = view.dataset(dir.head_dataset_obj).unwrap();
    let origin = (dir.origin_obj != 0).then(|| view.dataset(dir.origin_obj).unwrap());
    let origin_txg = origin.map_or(0, |o| o.creation_txg);
    let live = blocks(view, &head.bp);
    assert_eq!(referenced(&head), sum(live.iter()), "referenced of {name}");
    let own: Vec<Block> = live.iter().filter(|(_, birth, _)| *birth > origin_txg).copied().collect();
    expected[DslDir::USED_HEAD] = sum(own.iter()).used;
    // Snapshots, newest first.
    let mut later = places(&live);
    let live_places = later.clone();
    let (mut next, mut at) = (live_places.clone(), head.prev_snap_obj);
    let mut in_snapshots = BTreeMap::new();
    let unique = |of: &BTreeMap<((u32, u64), u64), i64>, since: u64, next: &BTreeMap<_, i64>| -> i64 {
        of.iter()
            .filter(|((_, birth), _)| *birth > since)
            .filter(|(k, _)| !next.contains_key(*k))
            .map(|(_, s)| s)
            .sum()
    };
    let head_unique: i64 =
        live_places.iter().filter(|((_, birth), _)| *birth > head.prev_snap_txg).map(|(_, s)| s).sum();
    assert_eq!(head.unique_bytes.cast_signed(), head_unique, "unique of {name}");
    while at != 0 && at != dir.origin_obj {
        let snap = view.dataset(at).unwrap();
        let content = blocks(view, &snap.bp);
        assert_eq!(referenced(&snap), sum(content.iter()), "referenced of snapshot {at} of {name}");
        let of = places(&content);
        assert_eq!(
            snap.unique_bytes.cast_signed(),
            unique(&of, snap.prev_snap_txg, &next),
            "unique of {at} of {name}"
        );
        in_snapshots.extend(of.iter().filter(|((_, birth), _)| *birth > origin_txg).map(|(k, s)| (*k, *s)));
        later.extend(of.clone());
        next = of;
        at = snap.prev_snap_obj;
    }
    let in_snapshots = in_snapshots.iter().filter(|(k, _)| !live_places.contains_key(*k));
    expected[DslDir::USED_SNAP] = in_snapshots.map(|(_, s)| s).sum();
    let view_number = |prop: &str| view.zap_word(dir.props_zapobj, prop).unwrap().unwrap_or(0);
    expected[DslDir::USED_REFRSRV] =
        view_number("refreservation").saturating_sub(head.unique_bytes).cast_signed();
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51afd7ed558ccd) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(n.max(1)).unwrap()).unwrap()
    }

    fn pick<'s>(&mut self, all: &'s [String]) -> Option<&'s String> {
        all.get(self.below(all.len()))
    }
}

/// Names of all heads and of all snapshots.
fn all_names(spa: &Spa) -> (Vec<String>, Vec<String>) {
    let view = spa.datasets.view();
    let (mut heads, mut snaps) = (Vec::new(), Vec::new());
    let root = view.zap_word(1, "root_dataset").unwrap().unwrap();
    let mut stack = vec![(root, spa.pool.name.clone())];
    while let Some((number, name)) = stack.pop() {
        let dir = view.dir(number).unwrap();
        let head = view.dataset(dir.head_dataset_obj).unwrap();
        for snap in view.zap_entries(head.snapnames_zapobj).unwrap() {
            snaps.push(format!("{name}@{}", snap.name_lossy()));
        }
        for child in view.zap_entries(dir.child_dir_zapobj).unwrap() {
            let part = child.name_lossy();
            if !part.starts_with('$') {
                stack.push((child.value.first().unwrap(), format!("{name}/{part}")));
            }
        }
        heads.push(name);
    }
    heads.sort();
    snaps.sort();
    (heads, snaps)
}

fn write_some(spa: &Spa, random: &mut Random, name: &str) {
    let found = engine::dsl::write::names::find(&spa.datasets.view(), &spa.pool.name, name).unwrap();
    let dataset = spa.datasets.open(spa, found.head).unwrap();
    let tx = spa.begin().unwrap();
    let view = dataset.objset.view();
    let files = view.objects().map(|o| o.unwrap());
    let files = files.filter(|o| o.dnode.object_type == ObjectType::PLAIN_FILE_CONTENTS);
    let numbers: Vec<u64> = files.map(|o| o.number).collect();
    match random.below(6) {
        0 if !numbers.is_empty() => {
            dataset.objset.free_object(&tx, numbers[random.below(numbers.len())]).unwrap();
        }
        1 if !numbers.is_empty() => {
            let handle = dataset.objset.handle(numbers[random.below(numbers.len())]).unwrap();
            let start = random.next() % 20;
            handle.free_blocks(&tx, start, start + 1 + random.next() % 10).unwrap();
        }
        2 | 3 if !numbers.is_empty() => {
            let handle = dataset.objset.handle(numbers[random.below(numbers.len())]).unwrap();
            fill(random, &handle, &tx);
        }
        _ => {
            let size = 512 << random.below(9);
            let handle =
                dataset.objset.create_object(&tx, NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, size));
            fill(random, &handle.unwrap(), &tx);
        }
    }
}

fn fill(random: &mut Random, handle: &Arc<engine::dmu::Handle>, tx: &engine::dmu::Tx) {
    for _ in 0..=random.below(8) {
        let size = usize::try_from(handle.dnode().datablksz()).unwrap();
        let noise = random.below(size);
        let bytes: Vec<u8> =
            (0..size).map(|i| if i < noise { (random.next() & 255) as u8 } else { 0 }).collect();
        let at = random.next() % 24 * u64::try_from(size).unwrap();
        handle.write(tx, at, &bytes).unwrap();
    }
}

/// One random operation; impossible ones are refused.
fn operate(spa: &Spa, random: &mut Random, count: usize) -> String {
    let (heads, snaps) = all_names(spa);
    let head = random.pick(&heads).unwrap().clone();
    let snap = random.pick(&snaps).cloned().unwrap_or_default();
    let fresh = format!("n{count}");
    let size = random.next() % (1 << 20);
    let (what, result) = match random.below(20) {
        0 | 1 => {
            let name = format!("{head}/{fresh}");
            let fill = |_: &Arc<engine::dsl::write::LiveDataset>, _: &engine::dmu::Tx| Ok(());
            let result = {
                let name = name.clone();
                spa.dsl_task(move |t| t.create(&name, ObjsetType::Zfs, 0, &mut { fill }).map(drop))
            };
            (format!("create {name}"), result)
        }
        2..=5 => {
            let name = format!("{head}@{fresh}");
            (format!("snapshot {name}"), spa.dsl_task(move |t| t.snapshot(&[&name], &[])))
        }
        6 | 7 => {
            let name = format!("{head}/{fresh}");
            (format!("clone {snap} {name}"), spa.dsl_task(move |t| t.clone_snapshot(&snap, &name).map(drop)))
        }
        8..=10 => (format!("destroy {snap}"), spa.dsl_task(move |t| t.destroy(&snap, false))),
        11 => (format!("destroy -d {snap}"), spa.dsl_task(move |t| t.destroy(&snap, true))),
        12 => (format!("destroy {head}"), spa.dsl_task(move |t| t.destroy(&head, false))),
        13 => (format!("rollback {head}"), spa.dsl_task(move |t| t.rollback(&head, None))),
        14 | 15 => (format!("promote {head}"), spa.dsl_task(move |t| t.promote(&head))),
        16 => {
            let to = format!("{}/{fresh}", random.pick(&heads).unwrap());
            (format!("rename {head} {to}"), spa.dsl_task(move |t| t.rename(&head, &to)))
        }
        17 => {
            let mark = format!("{}#{fresh}", snap.split('@').next().unwrap());
            (format!("bookmark {snap} {mark}"), spa.dsl_task(move |t| t.bookmark(&mark, &snap)))
        }
        18 => {
            let prop = ["reservation", "refreservation"][random.below(2)];
            let value = if size.is_multiple_of(3) { 0 } else { size };
            let set = move |t: &Tasks<'_>| {
                t.set(&head, &[(prop, Some(PropValue::Number(value)))], SettingSource::Local)
            };
            (format!("set {prop}={value}"), spa.dsl_task(set))
        }
        _ => {
            let tag = format!("t{}", size % 2);
            let release = size.is_multiple_of(3);
            let hold =
                move |t: &Tasks<'_>| if release { t.release(&snap, &tag) } else { t.hold(&snap, &tag) };
            ("hold or release".to_owned(), spa.dsl_task(hold))
        }
    };
    match result {
        Ok(()) => what,
        Err(e) => {
            let refused = [
                Kind::Busy,
                Kind::Again,
                Kind::Exists,
                Kind::NotFound,
                Kind::Invalid,
                Kind::Quota,
                Kind::NoSpace,
                Kind::TooLong,
                Kind::Unsupported,
            ];
            assert!(refused.contains(&e.kind()), "{what}: {e}");
            format!("{what}: refused, {e}")
        }
    }
}

fn recount_all(spa: &Spa) {
    let view = spa.datasets.view();
    let root = view.zap_word(1, "root_dataset").unwrap().unwrap();
    recount(&view, root, &spa.pool.name);
}

fn steps(spa: &Spa, seed: u64, steps: usize) {
    let mut random = Random(seed);
    for count in 0..steps {
        let (heads, _) = all_names(spa);
        for _ in 0..random.below(4) {
            let name = random.pick(&heads).unwrap().clone();
            write_some(spa, &mut random, &name);
        }
        if random.below(3) == 0 {
            spa.sync().unwrap();
        }
        let what = operate(spa, &mut random, count);
        println!("{seed} {count}: {what}");
        if count % 4 == 3 {
            spa.sync().unwrap();
            recount_all(spa);
        }
    }
    for _ in 0..4 {
        spa.sync().unwrap();
    }
}

fn run(seed: u64, version: u64, count: usize) {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let spa = new_pool(&env, dir.path(), version);
    steps(&spa, seed, count);
    drop(spa);
    if testkit::zdb::installed() {
        testkit::zdb::verify(dir.path(), POOL).unwrap();
        testkit::zdb::run(dir.path(), POOL, &["-dd"]).unwrap();
        livelists_agree(dir.path());
    }
}

fn livelists_agree(dir: &Path) {
    if testkit::zdb::installed() {
        let text = testkit::zdb::run(dir, POOL, &["-y"]).unwrap();
        assert!(!text.contains("ERROR"), "{text}");
    }
}

/// A clone is noted in a livelist while it shares most with its origin, and freed by it.
#[test]
fn clones_have_livelists() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let spa = new_pool(&env, dir.path(), 5000);
    let mut random = Random(11);
    let origin = format!("{POOL}/a");
    let name = origin.clone();
    spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(())).map(drop)).unwrap();
    for _ in 0..60 {
        write_some(&spa, &mut random, &origin);
    }
    spa.sync().unwrap();
    let snapshot = format!("{origin}@s");
    let name = snapshot.clone();
    spa.dsl_task(move |t| t.snapshot(&[&name], &[])).unwrap();
    let list = |clone: &str| {
        let found = engine::dsl::write::names::find(&spa.datasets.view(), POOL, clone).unwrap();
        spa.datasets.view().extra(found.dir, "com.delphix:livelist").unwrap()
    };
    for (clone, writes) in [("model/few", 3), ("model/none", 0), ("model/many", 400)] {
        let from = snapshot.clone();
        spa.dsl_task(move |t| t.clone_snapshot(&from, clone).map(drop)).unwrap();
        assert!(list(clone).is_some());
        for i in 0..writes {
            write_some(&spa, &mut random, clone);
            if i % 7 == 0 {
                spa.sync().unwrap();
            }
        }
        spa.sync().unwrap();
        assert_eq!(list(clone).is_some(), writes < 100, "{clone}");
    }
    spa.export().unwrap();
    drop(spa);
    livelists_agree(dir.path());
    let spa = testkit::pools::import_dir(dir.path(), POOL).unwrap();
    for clone in ["model/few", "model/none", "model/many"] {
        spa.dsl_task(move |t| t.destroy(clone, false)).unwrap();
        let waits = spa.datasets.view().zap_word(1, "com.delphix:deleted_clones").unwrap();
        assert_eq!(waits.is_some(), clone != "model/many", "{clone}");
        spa.sync().unwrap();
        assert_eq!(spa.datasets.view().zap_word(1, "com.delphix:deleted_clones").unwrap(), None);
        recount_all(&spa);
    }
    assert_eq!(spa.features.count(zcommon::features::Feature::Livelist), 0);
    spa.export().unwrap();
    drop(spa);
    livelists_agree(dir.path());
    if testkit::zdb::installed() {
        testkit::zdb::verify(dir.path(), POOL).unwrap();
    }
}

/// Pools of OpenZFS: its accounts equal a recount, and stay so while we change its datasets.
#[test]
fn accounts_of_golden_pools() {
    for name in ["quotas", "mirror3"] {
        let Some(golden) = testkit::golden::get(name) else { continue };
        let dir = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&golden.dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                let mut cp = std::process::Command::new("cp");
                cp.arg("--sparse=always").arg(entry.path()).arg(dir.path().join(entry.file_name()));
                assert!(cp.status().unwrap().success());
            }
        }
        let env = Env::system(64 << 20).unwrap();
        let found = zutil::import::candidates(&[dir.path().to_path_buf()]);
        let pool = found.first().unwrap().name.clone();
        let candidate = zutil::import::select(found, &pool).unwrap();
        let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
        let source = zutil::import::source_with(&candidate, options);
        let how = ImportOptions { hostid: 7, hostname: "elsewhere".into(), ..Default::default() };
        let spa = import(&env, source, &how).unwrap();
        println!("{name}");
        recount_all(&spa);
        steps(&spa, 5, 16);
        spa.export().unwrap();
        drop(spa);
        if testkit::zdb::installed() {
            testkit::zdb::verify(dir.path(), &pool).unwrap();
        }
    }
}

#[test]
fn accounts_are_what_a_recount_gives() {
    for seed in 1..=2 {
        run(seed, 5000, 60);
    }
}

#[test]
fn accounts_of_old_pools() {
    for (seed, version) in [(11, 28), (13, 25), (14, 15), (15, 10)] {
        run(seed, version, 32);
    }
}

/// A pool may be suspended within the txg that creates a dataset: a list shows the state in memory.
#[test]
fn a_new_head_is_known_before_it_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(&Env::system(64 << 20).unwrap(), dir.path(), 5000);
    let dsl = Arc::clone(&spa.pool.dsl);
    let look = move |_: &_, _: &_| {
        let head = dsl.dataset(&format!("{POOL}/a"))?;
        assert!(head.phys.bp.is_hole());
        assert_eq!(head.kind()?, engine::dsl::DatasetKind::Volume);
        Ok(())
    };
    spa.dsl_task(move |t| t.create(&format!("{POOL}/a"), ObjsetType::Zvol, 0, &mut { look })).unwrap();
}
