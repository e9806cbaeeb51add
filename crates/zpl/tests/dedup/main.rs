//! Dedup tables after random work, in both forms, against a model and real zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod limits;

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::Kind;
use engine::ddt::prune::{Candidates, Place, Prune, candidates};
use engine::ddt::{self, Totals};
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::scan::account::{WalkOptions, account};
use engine::spa::layout::{PoolSpec, TopSpec, VdevSpec};
use engine::spa::{NewPool, OpenOptions, Spa, create};
use engine::vdev::config::AllocBias;
use stdx::rng::Rng;
use testkit::golden;
use testkit::pools;
use testkit::zdb::Judge;
use zcommon::features::{Feature, of_openzfs_2_3};
use zpl::write::{
    CloneFrom, FsWriter, NewFs, NewNode, Overrides, RewriteHow, Rewriting, Which, create_fs, mount,
};
use zpl::{FileKind, Time};

const POOL: &str = "dpool";
const SNAPSHOTS: [&str; 2] = ["dpool@a", "dpool@b"];
const CLONE: &str = "dpool/clone";
const BLOCK: usize = 4096;
/// Different blocks.
const TAGS: u64 = 12;
const SHA256: u64 = 8;
const SHA512: u64 = 11;
const FLETCHER4: u64 = 7;
const EDONR: u64 = 13;
const ON: u64 = 1;
const OFF: u64 = 2;
const VERIFY: u64 = 256;

struct Bed {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
}

impl Bed {
    fn new(fast: bool) -> Self {
        Self::within(&Env::system(64 << 20).unwrap(), fast)
    }

    fn within(env: &Env, fast: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vdev = VdevSpec::Leaf(pools::leaf(&dir.path().join("disk1"), 256 << 20));
        let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }];
        let features = of_openzfs_2_3().into_iter().filter(|f| fast || *f != Feature::FastDedup).collect();
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
        let fs = NewFs { projects: false, ..NewFs::new(Time { sec: 1_700_000_000, nsec: 5 }, 99) };
        let spa = create(env, new, &|objset, tx| create_fs(objset, tx, &fs)).unwrap();
        let bed = Self { dir, spa };
        bed.set("recordsize", BLOCK as u64);
        bed
    }

    fn set(&self, name: &'static str, value: u64) {
        let all = [(name, Some(PropValue::Number(value)))];
        self.spa.dsl_task(move |tasks| tasks.set(POOL, &all, SettingSource::Local)).unwrap();
    }

    fn mount(&self, name: &str) -> Arc<FsWriter> {
        mount(&self.spa, name, Overrides::default()).unwrap()
    }

    /// The images as a power cut would leave them, judged by the newest zdb.
    fn judge(&self) {
        judged(self.dir.path(), &[Judge::NEWEST]);
    }

    /// Entries and references that the statistics count.
    fn counts(&self) -> (u64, u64) {
        let tables = ddt::tables(&self.spa.mos.view(), &mut Vec::new());
        let all = Totals::of(&tables, &|_| 0).all();
        (all.blocks, all.ref_blocks)
    }
}

/// Output of `zdb -D` for a copy in which all blocks have an owner.
fn judged(dir: &Path, judges: &[Judge]) -> String {
    let (copy, mut said) = (tempfile::tempdir().unwrap(), String::new());
    pools::copy(dir, copy.path());
    for judge in judges.iter().filter(|judge| judge.installed()) {
        judge.verify(copy.path(), POOL).unwrap_or_else(|why| panic!("{judge:?}: {why}"));
        said = judge.run(copy.path(), POOL, &["-D"]).unwrap();
    }
    said
}

fn block(tag: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(tag + 1).fill(&mut bytes);
    // Some compress.
    if tag.is_multiple_of(3) {
        bytes[300..].fill(tag as u8 | 1);
    }
    bytes
}

type Model = BTreeMap<u64, Vec<Option<u64>>>;

fn references(model: &Model) -> (u64, u64) {
    let mut refs: BTreeMap<u64, u64> = BTreeMap::new();
    model.values().flatten().flatten().for_each(|tag| *refs.entry(*tag).or_default() += 1);
    (refs.len() as u64, refs.values().sum())
}

fn check(fs: &FsWriter, model: &Model) {
    for (number, blocks) in model {
        for (i, tag) in blocks.iter().enumerate() {
            let mut out = vec![9; BLOCK];
            fs.data().read(*number, (i * BLOCK) as u64, &mut out).unwrap();
            assert!(out == tag.map_or(vec![0; BLOCK], block), "file {number} block {i} is not {tag:?}");
        }
    }
}

/// One random change.
fn change(fs: &FsWriter, model: &mut Model, random: &mut Rng, named: &mut u64) {
    let files: Vec<u64> = model.keys().copied().collect();
    let pick = (!files.is_empty()).then(|| files[random.below(files.len() as u64) as usize]);
    match (random.below(10), pick) {
        (0..=2, _) | (_, None) => {
            *named += 1;
            let name = format!("f{named}");
            let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
            let number = fs.dirs().create(fs.root, name.as_bytes(), &node).unwrap();
            let tags: Vec<u64> = (0..=random.below(8)).map(|_| random.below(TAGS)).collect();
            let bytes: Vec<u8> = tags.iter().flat_map(|tag| block(*tag)).collect();
            fs.data().write(number, 0, &bytes, true).unwrap();
            model.insert(number, tags.into_iter().map(Some).collect());
        }
        (3..=6, Some(number)) => {
            let blocks = model.get_mut(&number).unwrap();
            let (at, tag) = (random.below(blocks.len() as u64) as usize, random.below(TAGS));
            fs.data().write(number, (at * BLOCK) as u64, &block(tag), true).unwrap();
            blocks[at] = Some(tag);
        }
        (7, Some(number)) => {
            let blocks = model.get_mut(&number).unwrap();
            let at = random.below(blocks.len() as u64) as usize;
            fs.data().punch(number, (at * BLOCK) as u64, BLOCK as u64).unwrap();
            blocks[at] = None;
        }
        (_, Some(number)) => {
            let names = fs.dirs().entries(fs.root).unwrap();
            let entry = names.iter().find(|entry| entry.object == number).unwrap();
            fs.dirs().unlink(fs.root, &entry.name).unwrap();
            model.remove(&number);
        }
    }
}

/// Random work under one setting; the table must equal the model, and be gone at the end.
fn work(fast: bool, dedup: u64, seed: u64) {
    let bed = Bed::new(fast);
    bed.set("dedup", dedup);
    let (mut random, mut model, mut named) = (Rng::new(seed), Model::new(), 0);
    let fs = bed.mount(POOL);
    for round in 0..8 {
        for _ in 0..random.below(12) + 1 {
            change(&fs, &mut model, &mut random, &mut named);
        }
        bed.spa.sync().unwrap();
        bed.spa.sync().unwrap();
        check(&fs, &model);
        assert_eq!(bed.counts(), references(&model), "seed {seed} round {round}");
        if round % 4 == 3 {
            bed.judge();
        }
    }
    for name in SNAPSHOTS {
        bed.spa.dsl_task(move |tasks| tasks.snapshot(&[name], &[])).unwrap();
        for _ in 0..12 {
            change(&fs, &mut model, &mut random, &mut named);
        }
        bed.spa.sync().unwrap();
    }
    bed.spa.dsl_task(move |tasks| tasks.clone_snapshot(SNAPSHOTS[0], CLONE).map(drop)).unwrap();
    let cloned = bed.mount(CLONE);
    for n in 0..6 {
        let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
        let number = cloned.dirs().create(cloned.root, format!("c{n}").as_bytes(), &node).unwrap();
        cloned.data().write(number, 0, &block(n % TAGS), true).unwrap();
    }
    cloned.unmount().unwrap();
    drop(cloned);
    fs.unmount().unwrap();
    drop(fs);
    bed.spa.sync().unwrap();
    bed.judge();
    // The next import continues with the tables as they are on disk.
    let Bed { dir, spa } = bed;
    spa.export().unwrap();
    drop(spa);
    let bed = Bed { spa: pools::import_dir(dir.path(), POOL).unwrap(), dir };
    let fs = bed.mount(POOL);
    check(&fs, &model);
    bed.spa.dsl_task(move |tasks| tasks.destroy(CLONE, false)).unwrap();
    for name in SNAPSHOTS {
        bed.spa.dsl_task(move |tasks| tasks.destroy(name, false)).unwrap();
    }
    while !model.is_empty() {
        let number = *model.keys().next().unwrap();
        let entry =
            fs.dirs().entries(fs.root).unwrap().into_iter().find(|entry| entry.object == number).unwrap();
        fs.dirs().unlink(fs.root, &entry.name).unwrap();
        model.remove(&number);
    }
    // The log is flushed in some txgs.
    for _ in 0..30 {
        bed.spa.dsl_task(|_| Ok(())).unwrap();
    }
    let said = judged(bed.dir.path(), &[Judge::USUAL, Judge::NEWEST]);
    assert!(said.is_empty() || said.contains("All DDTs are empty"), "{said}");
    assert_eq!(bed.spa.features.count(Feature::FastDedup), 0);
    fs.unmount().unwrap();
}

#[test]
fn legacy_tables_count_what_there_is() {
    work(false, ON, 1);
    work(false, SHA512 | VERIFY, 2);
}

#[test]
fn fast_tables_count_what_there_is() {
    work(true, SHA256, 3);
    work(true, EDONR | VERIFY, 4);
}

/// Changes the references to blocks at random: clones, rewrites, entries pruned, dedup switched. Clones change the model, too.
fn share(bed: &Bed, fs: &FsWriter, model: &mut Model, random: &mut Rng, named: &mut u64) {
    let files: Vec<u64> = model.keys().copied().collect();
    if files.is_empty() {
        return change(fs, model, random, named);
    }
    let mut pick = || files[random.below(files.len() as u64) as usize];
    let (from, to) = (pick(), pick());
    let bytes = |blocks: usize| (blocks * BLOCK) as u64;
    match random.below(7) {
        0 | 1 => {
            *named += 1;
            let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
            let number = fs.dirs().create(fs.root, format!("f{named}").as_bytes(), &node).unwrap();
            let blocks = model[&from].clone();
            let len = bytes(blocks.len());
            let done =
                fs.clones().clone_range((CloneFrom::File(fs, from), 0), (number, 0), len, true).unwrap();
            assert_eq!(done, len);
            model.insert(number, blocks);
        }
        2 | 3 => {
            let (source, target) = (model[&from].clone(), model[&to].clone());
            let (at, onto) =
                (random.below(source.len() as u64) as usize, random.below(target.len() as u64) as usize);
            let len = (source.len() - at).min(target.len() - onto).min(1 + random.below(3) as usize);
            if from == to && at < onto + len && onto < at + len {
                return;
            }
            let source_at = (CloneFrom::File(fs, from), bytes(at));
            assert_eq!(
                fs.clones().clone_range(source_at, (to, bytes(onto)), bytes(len), true).unwrap(),
                bytes(len)
            );
            model.get_mut(&to).unwrap()[onto..onto + len].copy_from_slice(&source[at..at + len]);
        }
        4 => {
            let which = [Which::All, Which::Dedup, Which::Undedup][random.below(3) as usize];
            fs.rewrites()
                .rewrite_some(from, 0, 0, RewriteHow { births: Rewriting::Logical, which, dry: false })
                .unwrap();
        }
        5 if bed.spa.features.is_enabled(Feature::FastDedup) => {
            bed.spa.sharing().prune_ddt(Prune::Percentage(1 + random.below(100))).unwrap();
        }
        _ => bed.set("dedup", [ON, OFF, SHA512, ON | VERIFY][random.below(4) as usize]),
    }
}

/// Dedup, clones, rewrites, pruned entries and snapshots together: contents stay, no block leaks or is freed twice, and all
/// tables are gone with the last file.
#[test]
fn all_ways_to_share_blocks_end_in_empty_tables() {
    for (fast, seed) in [(true, 31), (false, 32), (true, 33)] {
        let bed = Bed::new(fast);
        bed.set("dedup", ON);
        let (mut random, mut model, mut named) = (Rng::new(seed), Model::new(), 0);
        let fs = bed.mount(POOL);
        for round in 0..30 {
            for _ in 0..=random.below(6) {
                match random.below(5) {
                    0..=1 => change(&fs, &mut model, &mut random, &mut named),
                    _ => share(&bed, &fs, &mut model, &mut random, &mut named),
                }
            }
            let name = SNAPSHOTS[(round / 5 % 2) as usize];
            match round % 10 {
                2 | 7 => bed.spa.dsl_task(move |tasks| tasks.snapshot(&[name], &[])).unwrap(),
                4 | 9 => bed.spa.dsl_task(move |tasks| tasks.destroy(name, false)).unwrap(),
                _ => {}
            }
            bed.spa.sync().unwrap();
            check(&fs, &model);
            if round % 10 == 8 {
                bed.judge();
            }
        }
        for entry in fs.dirs().entries(fs.root).unwrap() {
            fs.dirs().unlink(fs.root, &entry.name).unwrap();
        }
        // The log is flushed in some txgs.
        for _ in 0..30 {
            bed.spa.dsl_task(|_| Ok(())).unwrap();
        }
        assert_eq!(bed.counts(), (0, 0), "seed {seed}");
        assert!(engine::brt::table(&bed.spa.mos.view(), 0).unwrap().is_none(), "seed {seed}");
        let said = judged(bed.dir.path(), &[Judge::USUAL, Judge::NEWEST]);
        assert!(said.is_empty() || said.contains("All DDTs are empty"), "seed {seed}: {said}");
        fs.unmount().unwrap();
    }
}

/// Fletcher4 has no tables: a pool with that setting is written without dedup.
#[test]
fn copies_and_settings_change() {
    for fast in [false, true] {
        let bed = Bed::new(fast);
        let fs = bed.mount(POOL);
        let (mut random, mut model, mut named) = (Rng::new(5), Model::new(), 0);
        for (dedup, copies) in [(ON, 1), (ON, 3), (FLETCHER4, 2), (OFF, 1), (ON | VERIFY, 2), (SHA512, 1)] {
            bed.set("dedup", dedup);
            bed.set("copies", copies);
            for _ in 0..25 {
                change(&fs, &mut model, &mut random, &mut named);
            }
            bed.spa.sync().unwrap();
            check(&fs, &model);
            bed.judge();
        }
        fs.unmount().unwrap();
    }
}

/// Destroys all copies of a block of the meta object set.
fn destroy_block(dir: &Path, object: u64, blkid: u64) {
    let spa = pools::import_dir(dir, POOL).unwrap();
    let bp = spa.mos.view().object(object).unwrap().blkptr(0, blkid).unwrap().unwrap();
    spa.export().unwrap();
    let disk = std::fs::OpenOptions::new().write(true).open(dir.join("disk1")).unwrap();
    for dva in bp.dvas() {
        disk.write_all_at(&[0xee; 512], dva.offset + (4 << 20)).unwrap();
    }
}

/// Lost parts of a table cost space, never blocks that still have an owner; the pool stays in use.
#[test]
fn blocks_of_damaged_tables_leak() {
    for (fast, part) in [(false, 0), (false, 1), (true, 0), (true, 1), (true, 2)] {
        let bed = Bed::new(fast);
        bed.set("dedup", ON);
        let fs = bed.mount(POOL);
        let write = |fs: &FsWriter, name: &str, tags: std::ops::Range<u64>| {
            let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
            let number = fs.dirs().create(fs.root, name.as_bytes(), &node).unwrap();
            let bytes: Vec<u8> = tags.clone().flat_map(block).collect();
            fs.data().write(number, 0, &bytes, true).unwrap();
            (number, tags.map(Some).collect::<Vec<_>>())
        };
        let (gone, kept) = (write(&fs, "gone", 0..40), write(&fs, "kept", 0..40));
        fs.unmount().unwrap();
        drop(fs);
        if part < 2 {
            (0..30).for_each(|_| bed.spa.dsl_task(|_| Ok(())).unwrap());
        }
        let Bed { dir, spa } = bed;
        let tables = ddt::tables(&spa.mos.view(), &mut Vec::new());
        let (object, blkid) = match part {
            2 => (tables[0].logs.iter().find(|log| log.header.length > 0).unwrap().object, 0),
            part => (tables[0].stores[0].object, part),
        };
        spa.export().unwrap();
        drop(spa);
        destroy_block(dir.path(), object, blkid);
        let bed = Bed { spa: pools::import_dir(dir.path(), POOL).unwrap(), dir };
        let fs = bed.mount(POOL);
        let mut model: Model = [gone, kept].into();
        check(&fs, &model);
        fs.dirs().unlink(fs.root, b"gone").unwrap();
        let gone = *model.keys().next().unwrap();
        model.remove(&gone);
        // Freed space may be used again some txgs later.
        for n in 0..8 {
            model.extend([write(&fs, &format!("new{n}"), 100 * n + 30..100 * n + 100)]);
            (0..4).for_each(|_| bed.spa.dsl_task(|_| Ok(())).unwrap());
        }
        check(&fs, &model);
        fs.dirs().unlink(fs.root, b"kept").unwrap();
        fs.dirs().unlink(fs.root, b"new1").unwrap();
        (0..30).for_each(|_| bed.spa.dsl_task(|_| Ok(())).unwrap());
        model.retain(|number, _| {
            fs.dirs().entries(fs.root).unwrap().iter().any(|entry| entry.object == *number)
        });
        check(&fs, &model);
        assert!(!bed.spa.is_suspended(), "fast {fast} part {part}");
        fs.unmount().unwrap();
        bed.spa.export().unwrap();
    }
}

/// Blocks that an `fsync` has placed for the intent log enter the table with their txg, or give way to its
/// stored copy.
#[test]
fn blocks_of_the_intent_log_are_shared() {
    const LARGE: usize = 64 << 10;
    for (fast, dedup, copies) in [(true, ON, 1), (false, ON | VERIFY, 1), (true, ON, 2)] {
        let bed = Bed::new(fast);
        bed.set("recordsize", LARGE as u64);
        bed.set("dedup", dedup);
        let fs = bed.mount(POOL);
        let large = |tag: u64| {
            let mut bytes = vec![0; LARGE];
            Rng::new(tag).fill(&mut bytes);
            bytes
        };
        let write = |name: &str, tags: std::ops::Range<u64>| {
            let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
            let number = fs.dirs().create(fs.root, name.as_bytes(), &node).unwrap();
            fs.fsync(number).unwrap();
            for (i, tag) in tags.clone().enumerate() {
                fs.data().write(number, (i * LARGE) as u64, &large(tag), true).unwrap();
                fs.fsync(number).unwrap();
            }
            (number, tags)
        };
        let mut files = vec![write("a", 0..6), write("b", 3..9)];
        bed.set("copies", copies);
        bed.spa.sync().unwrap();
        files.push(write("c", 0..9));
        bed.spa.sync().unwrap();
        assert_eq!(bed.counts(), (9, 21), "fast {fast}");
        for (number, tags) in &files {
            for (i, tag) in tags.clone().enumerate() {
                let mut out = vec![0; LARGE];
                fs.data().read(*number, (i * LARGE) as u64, &mut out).unwrap();
                assert!(out == large(tag), "file {number} block {i}");
            }
        }
        bed.judge();
        for name in [b"a", b"b", b"c"] {
            fs.dirs().unlink(fs.root, name).unwrap();
        }
        (0..30).for_each(|_| bed.spa.dsl_task(|_| Ok(())).unwrap());
        assert_eq!(bed.counts(), (0, 0));
        bed.judge();
        fs.unmount().unwrap();
    }
}

/// A block of zeros is a hole where dedup is on, as in OpenZFS, though nothing is compressed.
#[test]
fn zeros_have_no_entry() {
    let bed = Bed::new(true);
    bed.set("dedup", ON);
    bed.set("compression", OFF);
    let fs = bed.mount(POOL);
    let number = fs.dirs().create(fs.root, b"zeros", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.data().write(number, 0, &[0; 16 * BLOCK], true).unwrap();
    fs.data().write(number, 16 * BLOCK as u64, &block(1), true).unwrap();
    bed.spa.sync().unwrap();
    assert_eq!(bed.counts(), (1, 1));
    fs.unmount().unwrap();
    bed.judge();
}

/// Pools that OpenZFS made, with tables, logs and clones of theirs: existing data is written once more, then
/// all of it is removed.
#[test]
fn tables_of_openzfs_are_written_on() {
    for name in ["dedup-fast", "dedup-legacy", "v24-cloned"] {
        let Some(golden) = golden::get(name) else { continue };
        let dir = tempfile::tempdir().unwrap();
        pools::copy(&golden.dir, dir.path());
        let pool = golden.pool_name();
        let verify = |when: &str| {
            if golden.judge().installed() {
                let crashed = tempfile::tempdir().unwrap();
                pools::copy(dir.path(), crashed.path());
                golden
                    .judge()
                    .verify(crashed.path(), pool)
                    .unwrap_or_else(|why| panic!("{name} {when}: {why}"));
            }
        };
        let spa = pools::import_dir(dir.path(), pool).unwrap();
        let all = [("dedup", Some(PropValue::Number(SHA256)))];
        spa.dsl_task(move |tasks| tasks.set(pool, &all, SettingSource::Local)).unwrap();
        let dsl = &spa.pool.dsl;
        let heads: Vec<String> = dsl
            .walk(dsl.root().unwrap())
            .filter_map(Result::ok)
            .filter(|dir| !dir.is_internal())
            .map(|dir| dir.name)
            .collect();
        for head in &heads {
            let Ok(fs) = mount(&spa, head, Overrides::default()) else { continue };
            let entries = fs.dirs().entries(fs.root).unwrap();
            for entry in entries.iter().filter(|entry| entry.kind == Some(FileKind::Regular)) {
                let size = usize::try_from(fs.attrs().get(entry.object).unwrap().size).unwrap().min(8 << 20);
                let mut bytes = vec![0; size];
                fs.data().read(entry.object, 0, &mut bytes).unwrap();
                let copy = [b"copy of ".as_slice(), &entry.name].concat();
                let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
                let number = fs.dirs().create(fs.root, &copy, &node).unwrap();
                fs.data().write(number, 0, &bytes, true).unwrap();
            }
            spa.sync().unwrap();
            fs.unmount().unwrap();
        }
        verify("written on");
        for _ in 0..12 {
            spa.dsl_task(|_| Ok(())).unwrap();
        }
        verify("some txgs later");
        for head in &heads {
            let Ok(fs) = mount(&spa, head, Overrides::default()) else { continue };
            for entry in fs.dirs().entries(fs.root).unwrap() {
                if entry.kind == Some(FileKind::Regular) {
                    fs.dirs().unlink(fs.root, &entry.name).unwrap();
                }
            }
            fs.unmount().unwrap();
        }
        for _ in 0..24 {
            spa.dsl_task(|_| Ok(())).unwrap();
        }
        verify("emptied");
        spa.export().unwrap();
    }
}

/// A scrub moves the records that the logs have when it begins to their tables, however slowly the settings do that otherwise.
#[test]
fn a_scrub_flushes_the_logs_first() {
    use engine::memory::Limit;
    use engine::spa::scrub::ScanCommand;
    let bed = Bed::new(true);
    bed.set("dedup", ON);
    bed.spa.pool.env.memory.limits.set(Limit::DedupLogTxgMax, 1 << 30).unwrap();
    let fs = bed.mount(POOL);
    let file = fs.dirs().create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    let mut bytes = vec![0; 3000 * BLOCK];
    Rng::new(78).fill(&mut bytes);
    fs.data().write(file, 0, &bytes, true).unwrap();
    for _ in 0..20 {
        bed.spa.sync().unwrap();
    }
    let in_log = || {
        let tables = ddt::tables(&bed.spa.mos.view(), &mut Vec::new());
        tables.iter().flat_map(|table| &table.logs).map(|log| log.entries.len()).sum::<usize>()
    };
    assert_eq!((in_log(), bed.counts()), (3000, (3000, 3000)));
    bed.spa.scans().start(ScanCommand::Scrub).unwrap();
    (0..100).take_while(|_| bed.spa.scans().is_scanning()).for_each(|_| bed.spa.sync().unwrap());
    assert!(!bed.spa.scans().is_scanning());
    assert_eq!((in_log(), bed.counts()), (0, (3000, 3000)));
    // Later records wait in the log again.
    fs.data().write(file, 0, &block(5), true).unwrap();
    bed.spa.sync().unwrap();
    bed.spa.sync().unwrap();
    assert!(in_log() > 0);
    fs.unmount().unwrap();
    bed.spa.export().unwrap();
    judged(bed.dir.path(), &[Judge::USUAL, Judge::NEWEST]);
}
