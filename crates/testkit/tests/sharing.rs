//! Out-of-band dedup: files against a model, space and reference counts against the real zdb, writers that come between.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use engine::dsl::props::PropValue;
use engine::dsl::write::Hooks;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::sharing::{MEMORY_MIN, PassStep, SharingOutcome, SharingStats, Target, Watch, share};
use engine::spa::Spa;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::vdev::config::AllocBias;
use engine::zio::alloc::MetaslabClass;
use ondisk::ObjsetType;
use stdx::rng::Rng;
use testkit::pools;
use testkit::zdb::Judge;
use zcommon::features::Feature;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, create_fs, mount};

const POOL: &str = "shared";
const NAMES: [&str; 2] = ["shared/a", "shared/b"];
const BLOCK: usize = 4096;
/// Values of `checksum` and `dedup`.
const SHA256: u64 = 8;
const FLETCHER4: u64 = 7;

fn set(spa: &Arc<Spa>, name: &'static str, property: &'static str, value: u64) {
    spa.dsl_task(move |tasks| {
        tasks.set(name, &[(property, Some(PropValue::Number(value)))], SettingSource::Local)
    })
    .unwrap();
}

fn new_pool(dir: &Path, checksum: u64) -> Arc<Spa> {
    let env = Env::system(64 << 20).unwrap();
    let top = |n: usize| {
        let vdev = VdevSpec::Leaf(pools::leaf(&dir.join(format!("disk{n}")), 128 << 20));
        TopSpec { vdev, class: AllocBias::Normal, ashift: None }
    };
    let spa = pools::create_pool(&env, POOL, (1..=2).map(top).collect(), &|_, _| Ok(())).unwrap();
    for name in NAMES {
        let fs = pools::new_fs(&spa.pool.env);
        spa.dsl_task(move |tasks| {
            tasks.create(name, ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &fs))?;
            tasks.set(name, &[("recordsize", Some(PropValue::Number(BLOCK as u64)))], SettingSource::Local)
        })
        .unwrap();
        set(&spa, name, "checksum", checksum);
    }
    spa
}

/// Continues the run, and does some work at each step.
struct With<F>(F);

impl<F: FnMut(PassStep) -> bool> Watch for With<F> {
    fn goes_on(&mut self, _: u64, step: PassStep, _: u64) -> bool {
        (self.0)(step)
    }
}

fn run(spa: &Arc<Spa>, dry: bool, work: impl FnMut(PassStep) -> bool) -> SharingOutcome {
    let targets: Vec<Target> = NAMES.iter().map(|name| Target::open(spa, name).unwrap()).collect();
    share(spa, &targets, MEMORY_MIN, dry, &mut With(work)).unwrap()
}

fn sum(outcome: &SharingOutcome, of: impl Fn(&SharingStats) -> u64) -> u64 {
    outcome.found.iter().map(of).sum()
}

struct Files {
    fs: Vec<Arc<FsWriter>>,
    /// File system, object, content.
    all: Vec<(usize, u64, Vec<u8>)>,
}

impl Files {
    /// Files of blocks out of `palette` different ones.
    fn new(spa: &Arc<Spa>, palette: u64, random: &mut Rng) -> Self {
        let fs: Vec<_> = NAMES.iter().map(|name| mount(spa, name, Overrides::default()).unwrap()).collect();
        let mut files = Self { fs, all: Vec::new() };
        for n in 0..12 {
            let (at, fs) = (n % 2, &files.fs[n % 2]);
            let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
            let file = fs.dirs().create(fs.root, format!("file{n}").as_bytes(), &node).unwrap();
            let bytes: Vec<u8> = (0..40).flat_map(|_| block(random.next_u64() % palette)).collect();
            fs.data().write(file, 0, &bytes, true).unwrap();
            files.all.push((at, file, bytes));
        }
        files
    }

    fn check(&self) {
        for (at, file, bytes) in &self.all {
            let mut have = vec![0; bytes.len()];
            assert_eq!(self.fs[*at].data().read(*file, 0, &mut have).unwrap(), bytes.len());
            assert!(have == *bytes, "file {file} of {}", NAMES[*at]);
        }
    }

    fn write(&mut self, n: usize, blkid: usize, bytes: &[u8]) {
        let (at, file, content) = &mut self.all[n];
        self.fs[*at].data().write(*file, (blkid * BLOCK) as u64, bytes, true).unwrap();
        content[blkid * BLOCK..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// Block `n` of all.
fn block(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(n).fill(&mut bytes);
    bytes
}

/// Exports, asks zdb, removes all, and expects no clone to be left.
fn ends(spa: Arc<Spa>, mut files: Files, dir: &Path, snapshots: &[&'static str]) {
    let close = |files: &mut Files| {
        files.fs.iter().for_each(|fs| fs.unmount().unwrap());
        files.fs.clear();
    };
    files.check();
    close(&mut files);
    spa.export().unwrap();
    drop(spa);
    for judge in [Judge::USUAL, Judge::NEWEST] {
        if judge.installed() {
            judge.verify(dir, POOL).unwrap();
        }
    }
    let spa = pools::import_dir(dir, POOL).unwrap();
    files.fs = NAMES.iter().map(|name| mount(&spa, name, Overrides::default()).unwrap()).collect();
    files.check();
    for n in 0..files.all.len() {
        let fs = &files.fs[n % 2];
        fs.dirs().unlink(fs.root, format!("file{n}").as_bytes()).unwrap();
    }
    for &name in snapshots {
        spa.dsl_task(move |tasks| tasks.destroy_snapshots(&[name], false)).unwrap();
    }
    for _ in 0..100 {
        spa.sync().unwrap();
        if spa.feature(Feature::BlockCloning) == Some(0) {
            break;
        }
    }
    assert_eq!(spa.feature(Feature::BlockCloning), Some(0), "references are left");
    close(&mut files);
    spa.export().unwrap();
    drop(spa);
    if Judge::USUAL.installed() {
        Judge::USUAL.verify(dir, POOL).unwrap();
    }
}

fn shares_all(checksum: u64, prepare: impl Fn(&Arc<Spa>)) {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path(), checksum);
    prepare(&spa);
    let mut random = Rng::new(checksum);
    let files = Files::new(&spa, 30, &mut random);
    let planned = run(&spa, true, |_| true);
    assert_eq!(sum(&planned, |f| f.shared.blocks), 0);
    assert_eq!(sum(&planned, |f| f.all.blocks), 12 * 40);
    spa.sync().unwrap();
    let allocated = || {
        let stats = spa.space.class_stats(MetaslabClass::Normal);
        stats.allocated - stats.deferred
    };
    let before = allocated();
    let done = run(&spa, false, |_| true);
    files.check();
    // Every block but one of each content is a reference.
    let shared = sum(&done, |f| f.shared.blocks);
    assert_eq!(shared, sum(&planned, |f| f.equal.blocks));
    assert_eq!(shared + sum(&done, |f| f.already.blocks), 12 * 40 - 30);
    (0..3).for_each(|_| spa.sync().unwrap());
    if shared > 0 {
        assert!(allocated() + shared * BLOCK as u64 / 2 < before, "nothing was won");
    }
    // Nothing is left to do.
    let again = run(&spa, false, |_| true);
    assert_eq!((sum(&again, |f| f.equal.blocks), sum(&again, |f| f.already.blocks)), (0, 12 * 40 - 30));
    ends(spa, files, dir.path(), &[]);
}

#[test]
fn equal_blocks_of_a_strong_checksum_are_shared() {
    shares_all(SHA256, |_| ());
}

#[test]
fn equal_blocks_of_a_weak_checksum_are_read_and_shared() {
    shares_all(FLETCHER4, |_| ());
}

#[test]
fn deduplicated_blocks_are_shared_in_their_table() {
    shares_all(SHA256, |spa| set(spa, "shared/a", "dedup", SHA256));
}

#[test]
fn gang_blocks_are_shared() {
    shares_all(SHA256, |spa| spa.space.force_ganging(2048));
}

#[test]
fn blocks_of_snapshots_stay_and_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path(), SHA256);
    let mut random = Rng::new(3);
    let mut files = Files::new(&spa, 30, &mut random);
    spa.dsl_task(|tasks| tasks.snapshot(&["shared/a@one"], &[])).unwrap();
    for n in 0..100 {
        files.write(n % 12, n % 40, &block(random.next_u64() % 40));
    }
    let done = run(&spa, false, |_| true);
    let (held, shared) = (sum(&done, |f| f.held.blocks), sum(&done, |f| f.shared.blocks));
    assert!(held > 0 && held < shared, "{held} of {shared}");
    assert_eq!(done.found[1].held.blocks, 0, "it has no snapshot");
    ends(spa, files, dir.path(), &["shared/a@one"]);
}

#[test]
fn writers_between_the_steps_win() {
    for told in [PassStep::Find, PassStep::Choose, PassStep::Share] {
        let dir = tempfile::tempdir().unwrap();
        let spa = new_pool(dir.path(), SHA256);
        let mut random = Rng::new(4);
        let mut files = Files::new(&spa, 30, &mut random);
        let mut round = 0;
        let done = run(&spa, false, |step| {
            if step == told {
                for n in 0..60 {
                    let whole = block(random.next_u64() % 60);
                    files.write(
                        (n + round) % 12,
                        (n * 7) % 40,
                        if n % 3 == 0 { &whole[..100] } else { &whole },
                    );
                }
                let (at, file, bytes) = &mut files.all[round % 12];
                files.fs[*at].data().truncate(*file, 20 * BLOCK as u64).unwrap();
                files.fs[*at].data().truncate(*file, bytes.len() as u64).unwrap();
                bytes[20 * BLOCK..].fill(0);
                round += 1;
                if round % 2 == 0 {
                    spa.sync().unwrap();
                }
            }
            true
        });
        assert!(round > 0 && sum(&done, |f| f.shared.blocks) > 100, "{told:?}: {done:?}");
        files.check();
        ends(spa, files, dir.path(), &[]);
    }
}

#[test]
fn an_interrupted_run_leaves_all_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path(), SHA256);
    let files = Files::new(&spa, 30, &mut Rng::new(5));
    let done = run(&spa, false, |step| step != PassStep::Share);
    assert!(done.interrupted);
    files.check();
    ends(spa, files, dir.path(), &[]);
}

#[test]
fn datasets_that_must_not_change_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path(), SHA256);
    set(&spa, "shared/a", "readonly", 1);
    assert_eq!(Target::open(&spa, "shared/a").unwrap_err().kind(), engine::Kind::ReadOnly);
    assert_eq!(Target::open(&spa, "shared/c").unwrap_err().kind(), engine::Kind::NotFound);
    spa.export().unwrap();
}

/// The pointers that a run has judged are those of the datasets as they were opened: nothing replaces these meanwhile.
#[test]
fn datasets_of_a_run_are_neither_destroyed_nor_rolled_back() {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path(), SHA256);
    spa.dsl_task(|tasks| tasks.snapshot(&["shared/a@s"], &[])).unwrap();
    let target = Target::open(&spa, "shared/a").unwrap();
    let rollback = || spa.dsl_task(|tasks| tasks.rollback("shared/a", None));
    assert_eq!(rollback().unwrap_err().kind(), engine::Kind::Busy);
    drop(target);
    rollback().unwrap();
    let target = Target::open(&spa, "shared/b").unwrap();
    let destroy = || spa.dsl_task(|tasks| tasks.destroy("shared/b", false));
    assert_eq!(destroy().unwrap_err().kind(), engine::Kind::Busy);
    drop(target);
    destroy().unwrap();
    spa.export().unwrap();
}
