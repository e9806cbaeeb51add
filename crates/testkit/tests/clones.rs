//! Cloned blocks: files against a model, reference counts against the real zdb, and clone tables that come to nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine::dsl::props::PropValue;
use engine::dsl::write::Hooks;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::spa::Spa;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::vdev::config::AllocBias;
use ondisk::ObjsetType;
use stdx::rng::Rng;
use testkit::zdb::Judge;
use testkit::{golden, pools};
use zcommon::features::Feature;
use zpl::FileKind;
use zpl::write::{CloneFrom, FsWriter, NewNode, Overrides, create_fs, mount};

const POOL: &str = "cloned";
const BLOCK: u64 = 4096;

fn node() -> NewNode<'static> {
    NewNode::new(FileKind::Regular, 0o644, 0, 0)
}

fn make_fs(spa: &Arc<Spa>, name: &'static str, recordsize: u64) {
    let fs = pools::new_fs(&spa.pool.env);
    spa.dsl_task(move |tasks| {
        tasks.create(name, ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &fs))?;
        tasks.set(name, &[("recordsize", Some(PropValue::Number(recordsize)))], SettingSource::Local)
    })
    .unwrap();
}

fn set(spa: &Arc<Spa>, name: &'static str, property: &'static str, value: u64) {
    spa.dsl_task(move |tasks| {
        tasks.set(name, &[(property, Some(PropValue::Number(value)))], SettingSource::Local)
    })
    .unwrap();
}

fn new_pool(dir: &Path, tops: usize) -> Arc<Spa> {
    let env = Env::system(64 << 20).unwrap();
    let top = |n: usize| {
        let vdev = VdevSpec::Leaf(pools::leaf(&dir.join(format!("disk{n}")), 128 << 20));
        TopSpec { vdev, class: AllocBias::Normal, ashift: None }
    };
    let spa = pools::create_pool(&env, POOL, (1..=tops).map(top).collect(), &|_, _| Ok(())).unwrap();
    make_fs(&spa, "cloned/a", BLOCK);
    make_fs(&spa, "cloned/b", BLOCK);
    spa
}

fn open(spa: &Arc<Spa>, name: &str) -> Arc<FsWriter> {
    mount(spa, name, Overrides::default()).unwrap()
}

fn noise(random: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

fn content(fs: &FsWriter, file: u64) -> Vec<u8> {
    let mut bytes = vec![0; fs.attrs().get(file).unwrap().size as usize];
    assert_eq!(fs.data().read(file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn clone_all(from: (&FsWriter, u64), to: (&FsWriter, u64)) -> u64 {
    let len = from.0.attrs().get(from.1).unwrap().size;
    to.0.clones().clone_range((CloneFrom::File(from.0, from.1), 0), (to.1, 0), len, true).unwrap()
}

/// Used and saved bytes, and entries, as both the tables and the pool say.
fn counted(spa: &Arc<Spa>) -> (u64, u64) {
    spa.sync().unwrap();
    let view = spa.mos.view();
    let mut all = (0, 0);
    for config in &spa.pool.tree().config.children {
        let Some(table) = engine::brt::table(&view, config.id).unwrap() else { continue };
        let entries: Vec<_> = table.entries().map(Result::unwrap).collect();
        assert_eq!(u64::try_from(entries.len()).unwrap(), table.head.totalcount);
        all.0 += table.head.totalcount;
        all.1 += entries.iter().map(|entry| entry.refcnt).sum::<u64>();
    }
    all
}

fn judged(dir: &Path, judge: Judge) {
    if judge.installed() {
        judge.verify(dir, POOL).unwrap();
    }
}

fn is_over(spa: &Arc<Spa>) {
    for _ in 0..100 {
        spa.sync().unwrap();
        if spa.feature(Feature::BlockCloning) == Some(0) {
            break;
        }
    }
    assert_eq!(spa.feature(Feature::BlockCloning), Some(0));
    assert_eq!(counted(spa), (0, 0));
}

#[test]
fn a_cloned_file_shares_its_blocks_until_the_last_reference_ends() {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path(), 2);
    let (a, b) = (open(&spa, "cloned/a"), open(&spa, "cloned/b"));
    let mut bytes = noise(&mut Rng::new(1), 100 * 4096 + 700);
    bytes[8 * 4096..12 * 4096].fill(0);
    let one = a.dirs().create(a.root, b"one", &node()).unwrap();
    a.data().write(one, 0, &bytes, true).unwrap();
    a.data().punch(one, 8 * 4096, 4 * 4096).unwrap();
    let (two, three) = (
        a.dirs().create(a.root, b"two", &node()).unwrap(),
        b.dirs().create(b.root, b"three", &node()).unwrap(),
    );
    // Cloning waits for blocks that are not on disk yet.
    assert_eq!(clone_all((&a, one), (&a, two)), bytes.len() as u64);
    // A clone that is not on disk yet is one, too.
    assert_eq!(clone_all((&a, two), (&b, three)), bytes.len() as u64);
    assert!(content(&a, two) == bytes && content(&b, three) == bytes);
    assert_eq!(counted(&spa), (97, 194));
    assert!(content(&a, two) == bytes && content(&b, three) == bytes);
    // A block over itself.
    assert_eq!(
        a.clones().clone_range((CloneFrom::File(&a, two), 0), (one, 0), 4096 * 3, true).unwrap(),
        4096 * 3
    );
    assert_eq!(counted(&spa), (97, 194));
    // Clones that are overwritten, truncated or removed in the same txg are never counted.
    let four = a.dirs().create(a.root, b"four", &node()).unwrap();
    let five = a.dirs().create(a.root, b"five", &node()).unwrap();
    clone_all((&a, one), (&a, four));
    clone_all((&a, one), (&a, five));
    a.data().write(four, 4096 + 100, b"part of a block", true).unwrap();
    a.data().write(four, 2 * 4096, &bytes[..4096], true).unwrap();
    a.data().truncate(four, 5 * 4096 + 7).unwrap();
    a.dirs().unlink(a.root, b"five").unwrap();
    let mut expected = bytes[..5 * 4096 + 7].to_vec();
    expected[4096 + 100..][..15].copy_from_slice(b"part of a block");
    expected[2 * 4096..3 * 4096].copy_from_slice(&bytes[..4096]);
    assert!(content(&a, four) == expected);
    assert_eq!(counted(&spa), (97, 194 + 3));
    assert!(content(&a, four) == expected);
    a.dirs().unlink(a.root, b"one").unwrap();
    assert_eq!(counted(&spa), (97, 97 + 3));
    a.dirs().unlink(a.root, b"four").unwrap();
    assert!(content(&a, two) == bytes && content(&b, three) == bytes);
    a.unmount().unwrap();
    b.unmount().unwrap();
    spa.export().unwrap();
    drop((a, b, spa));
    judged(dir.path(), Judge::USUAL);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let (a, b) = (open(&spa, "cloned/a"), open(&spa, "cloned/b"));
    assert!(content(&a, two) == bytes && content(&b, three) == bytes);
    b.dirs().unlink(b.root, b"three").unwrap();
    is_over(&spa);
    assert!(content(&a, two) == bytes);
    a.unmount().unwrap();
    b.unmount().unwrap();
    spa.export().unwrap();
    drop((a, b, spa));
    judged(dir.path(), Judge::USUAL);
}

#[test]
fn ranges_that_do_not_fit_are_left_to_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path(), 1);
    let a = open(&spa, "cloned/a");
    let one = a.dirs().create(a.root, b"one", &node()).unwrap();
    let bytes = noise(&mut Rng::new(2), 10 * 4096);
    a.data().write(one, 0, &bytes, true).unwrap();
    let clone = |from, to, len| a.clones().clone_range((CloneFrom::File(&a, one), from), to, len, true);
    let kind = |result: engine::Result<u64>| result.unwrap_err().kind();
    let two = a.dirs().create(a.root, b"two", &node()).unwrap();
    assert_eq!(kind(clone(1, (two, 0), 4096)), engine::Kind::Invalid);
    assert_eq!(kind(clone(0, (two, 512), 8192)), engine::Kind::Invalid);
    assert_eq!(kind(clone(0, (two, 0), 100)), engine::Kind::Invalid);
    assert_eq!(kind(clone(0, (one, 4096), 8192)), engine::Kind::Invalid, "it overlaps itself");
    assert_eq!(clone(40960, (two, 0), 100).unwrap(), 0);
    assert_eq!(clone(4096, (two, 0), 10000).unwrap(), 8192, "up to the last whole block");
    assert!(content(&a, two) == bytes[4096..][..8192]);
    assert_eq!(clone(4096, (one, 5 * 4096), 8192).unwrap(), 8192, "within a file");
    assert!(content(&a, one)[5 * 4096..][..8192] == bytes[4096..][..8192]);
    a.unmount().unwrap();
    spa.export().unwrap();
    drop((a, spa));
    judged(dir.path(), Judge::USUAL);
}

/// Files by file system and name.
type Model = BTreeMap<(usize, u8), Vec<u8>>;

struct Run {
    spa: Arc<Spa>,
    fs: Vec<Arc<FsWriter>>,
    files: BTreeMap<(usize, u8), u64>,
    model: Model,
    random: Rng,
    snapshots: Vec<String>,
}

const NAMES: [&str; 2] = ["cloned/a", "cloned/b"];

impl Run {
    fn file(&mut self) -> (usize, u8) {
        let key = (self.random.below(2) as usize, self.random.below(5) as u8);
        if !self.files.contains_key(&key) {
            let fs = &self.fs[key.0];
            let file = fs.dirs().create(fs.root, &[b'f', b'0' + key.1], &node()).unwrap();
            self.files.insert(key, file);
            self.model.insert(key, Vec::new());
        }
        key
    }

    fn write(&mut self) {
        let key = self.file();
        let at = self.random.below(60 * 4096) as usize;
        let len = 1 + self.random.below(20_000) as usize;
        let mut bytes = noise(&mut self.random, len);
        if self.random.below(4) == 0 {
            bytes.fill(7);
        }
        self.fs[key.0].data().write(self.files[&key], at as u64, &bytes, true).unwrap();
        let model = self.model.get_mut(&key).unwrap();
        model.resize(model.len().max(at + len), 0);
        model[at..at + len].copy_from_slice(&bytes);
    }

    fn clone(&mut self) {
        let (from, to) = (self.file(), self.file());
        let (at, put) = (self.random.below(40) * BLOCK, self.random.below(40) * BLOCK);
        let (at, put) = if self.random.below(2) == 0 { (0, 0) } else { (at, put) };
        let len = (1 + self.random.below(40)) * BLOCK;
        let source = CloneFrom::File(&self.fs[from.0], self.files[&from]);
        let done = self.fs[to.0].clones().clone_range((source, at), (self.files[&to], put), len, true);
        let done = match done {
            Ok(done) => done as usize,
            Err(e) => return assert_eq!(e.kind(), engine::Kind::Invalid, "{e}"),
        };
        let (at, put) = (at as usize, put as usize);
        let bytes = self.model[&from][at.min(self.model[&from].len())..][..done].to_vec();
        let model = self.model.get_mut(&to).unwrap();
        model.resize(model.len().max(if done == 0 { 0 } else { put + done }), 0);
        if done > 0 {
            model[put..put + done].copy_from_slice(&bytes);
        }
    }

    fn cut(&mut self) {
        let key = self.file();
        let size = self.random.below(70 * 4096);
        self.fs[key.0].data().truncate(self.files[&key], size).unwrap();
        self.model.get_mut(&key).unwrap().resize(size as usize, 0);
    }

    fn punch(&mut self) {
        let key = self.file();
        let (at, len) = (self.random.below(50 * 4096), 1 + self.random.below(50_000));
        self.fs[key.0].data().punch(self.files[&key], at, len).unwrap();
        let model = self.model.get_mut(&key).unwrap();
        let end = model.len().min((at + len) as usize);
        model[(at as usize).min(end)..end].fill(0);
    }

    fn remove(&mut self) {
        let key = self.file();
        let fs = &self.fs[key.0];
        fs.dirs().unlink(fs.root, &[b'f', b'0' + key.1]).unwrap();
        self.files.remove(&key);
        self.model.remove(&key);
    }

    fn snapshot(&mut self) {
        if self.snapshots.len() > 3 {
            let gone = self.snapshots.remove(self.random.below(4) as usize);
            return self.spa.dsl_task(move |tasks| tasks.destroy_snapshots(&[&gone], false)).unwrap();
        }
        let name = format!("{}@s{}", NAMES[self.random.below(2) as usize], self.random.below(1 << 40));
        self.snapshots.push(name.clone());
        self.spa.dsl_task(move |tasks| tasks.snapshot(&[&name], &[])).unwrap();
    }

    fn check(&self) {
        for (key, bytes) in &self.model {
            assert!(content(&self.fs[key.0], self.files[key]) == *bytes, "{key:?}");
        }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..8 => self.write(),
            8..16 => self.clone(),
            16 => self.cut(),
            17 => self.punch(),
            18 => self.remove(),
            19 => self.snapshot(),
            20 => self.spa.sync().unwrap(),
            21 => self.check(),
            _ => {
                let key = self.file();
                self.fs[key.0].fsync(self.files[&key]).unwrap();
            }
        }
    }

    fn mount(&mut self) {
        self.fs = NAMES.iter().map(|name| open(&self.spa, name)).collect();
    }
}

fn random_work(seed: u64, prepare: impl Fn(&Arc<Spa>), judge: Judge) {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path(), 2);
    prepare(&spa);
    let mut run = Run {
        spa,
        fs: Vec::new(),
        files: BTreeMap::new(),
        model: BTreeMap::new(),
        random: Rng::new(seed),
        snapshots: Vec::new(),
    };
    run.mount();
    for round in 0..2 {
        (0..100).for_each(|_| run.step());
        // The power fails after all is safe: the logs have it.
        run.fs.iter().for_each(|fs| fs.fsync(0).unwrap());
        let crashed = tempfile::tempdir().unwrap();
        pools::copy(dir.path(), crashed.path());
        run.check();
        run.fs.iter().for_each(|fs| fs.unmount().unwrap());
        run.fs.clear();
        counted(&run.spa);
        run.spa.export().unwrap();
        run.spa = pools::import_dir(crashed.path(), POOL).unwrap();
        if round == 1 {
            // A log that waits, with its references, and is not done again this time.
            run.spa.export().unwrap();
            judged(crashed.path(), judge);
            run.spa = pools::import_dir(crashed.path(), POOL).unwrap();
        }
        run.mount();
        run.check();
        counted(&run.spa);
        run.fs.iter().for_each(|fs| fs.unmount().unwrap());
        run.fs.clear();
        run.spa.export().unwrap();
        judged(crashed.path(), judge);
        pools::copy(crashed.path(), dir.path());
        run.spa = pools::import_dir(dir.path(), POOL).unwrap();
        run.mount();
        run.check();
    }
    let kept: Vec<String> = std::mem::take(&mut run.snapshots);
    for key in run.files.keys() {
        let fs = &run.fs[key.0];
        fs.dirs().unlink(fs.root, &[b'f', b'0' + key.1]).unwrap();
    }
    for name in kept {
        run.spa.dsl_task(move |tasks| tasks.destroy_snapshots(&[&name], false)).unwrap();
    }
    is_over(&run.spa);
    run.fs.iter().for_each(|fs| fs.unmount().unwrap());
    run.fs.clear();
    run.spa.export().unwrap();
    judged(dir.path(), judge);
}

#[test]
fn random_work_agrees_with_a_model() {
    random_work(0, |_| {}, Judge::USUAL);
}

#[test]
fn deduplicated_blocks_are_cloned_in_their_table() {
    random_work(7, |spa| NAMES.iter().for_each(|name| set(spa, name, "dedup", 8)), Judge::USUAL);
}

#[test]
fn compressed_and_embedded_blocks_are_cloned() {
    random_work(8, |spa| NAMES.iter().for_each(|name| set(spa, name, "compression", 15)), Judge::USUAL);
}

/// OpenZFS' clones are cloned again, and freed completely.
#[test]
fn golden_clones_are_cloned_and_freed() {
    let Some(golden) = golden::get("reflink") else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_dir(dir.path(), golden.pool_name()).unwrap();
    assert!(spa.feature(Feature::BlockCloning).unwrap() > 0);
    let name = spa.pool.dsl.dataset("tank/live").map(|_| "tank/live").unwrap_or("tank");
    let fs = open(&spa, name);
    let names: Vec<(Vec<u8>, u64)> = files_of(&fs);
    let before: Vec<Vec<u8>> = names.iter().map(|(_, file)| content(&fs, *file)).collect();
    let mut copies = Vec::new();
    for (n, (_, file)) in names.iter().enumerate() {
        let copy = fs.dirs().create(fs.root, format!("copy{n}").as_bytes(), &node()).unwrap();
        let len = fs.attrs().get(*file).unwrap().size;
        match fs.clones().clone_range((CloneFrom::File(&fs, *file), 0), (copy, 0), len, true) {
            Ok(done) => assert_eq!(done, len),
            Err(e) => panic!("{e}"),
        }
        copies.push(copy);
    }
    names.iter().for_each(|(name, _)| fs.dirs().unlink(fs.root, name).unwrap());
    spa.sync().unwrap();
    assert!(copies.iter().zip(&before).all(|(copy, bytes)| content(&fs, *copy) == *bytes));
    (0..copies.len()).for_each(|n| fs.dirs().unlink(fs.root, format!("copy{n}").as_bytes()).unwrap());
    fs.unmount().unwrap();
    is_over(&spa);
    spa.export().unwrap();
    if golden.judge().installed() {
        golden.judge().verify(dir.path(), golden.pool_name()).unwrap();
    }
}

fn files_of(fs: &FsWriter) -> Vec<(Vec<u8>, u64)> {
    let object = fs.objset.object(&fs.objset.view(), fs.root).unwrap();
    let zap = engine::zap::Zap::open(&object).unwrap();
    let entries = zap.to_vec().unwrap();
    let all =
        entries.iter().map(|e| (e.name_lossy().into_bytes(), e.value.first().unwrap() & ((1 << 48) - 1)));
    all.filter(|(_, file)| fs.node(*file).unwrap().kind() == FileKind::Regular).collect()
}
