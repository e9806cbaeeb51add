//! Golden pools imported for writing, written, exported, and judged by zdb and by OpenZFS' recorded view of
//! them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::dsl::DatasetKind;
use engine::env::Env;
use engine::spa::{OpenOptions, Spa};
use ondisk::names::dsl_dir;
use ondisk::{ObjectType, names};
use testkit::golden::{self, Covers, Golden};
use testkit::manifest::Record;
use testkit::pools;
use testkit::tree::{self, Tree, is_inconsistent};
use zutil::import::open_pool;

/// Pools with blocks that have more than one owner, or whose space is accounted in more than one place.
const SHARED: &[&str] = &[
    "basic",
    "classes",
    "legacy-v28",
    "zfs-fuse-v23",
    "dedup-fast",
    "dedup-legacy",
    "reflink",
    "checkpoint",
    "removed",
];

type Outcome<T = ()> = Result<T, String>;

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// A golden pool's copy.
struct Copy {
    golden: Golden,
    dir: tempfile::TempDir,
}

impl Copy {
    fn of(golden: &Golden) -> Self {
        let dir = tempfile::tempdir().unwrap();
        pools::copy(&golden.dir, dir.path());
        Self { golden: golden.clone(), dir }
    }

    fn import(&self) -> engine::Result<Arc<Spa>> {
        self.import_as(OpenOptions::default())
    }

    fn import_as(&self, open: OpenOptions) -> engine::Result<Arc<Spa>> {
        pools::import_at(self.dir.path(), self.golden.pool_name(), open)
    }

    /// Imports, does something, exports, and lets zdb judge.
    fn written<T>(&self, what: &str, work: impl FnOnce(&Arc<Spa>) -> Outcome<T>) -> Outcome<T> {
        let spa = self.import().map_err(text)?;
        let done = work(&spa)?;
        spa.export().map_err(text)?;
        drop(spa);
        self.judge().map_err(|why| format!("after {what}: {why}"))?;
        Ok(done)
    }

    fn judge(&self) -> Outcome {
        let zdb = self.golden.judge();
        if !zdb.installed() {
            return Ok(());
        }
        let (dir, pool) = (self.dir.path(), self.golden.pool_name());
        zdb.verify(dir, pool)?;
        if SHARED.contains(&self.golden.name.as_str()) {
            zdb.run(dir, pool, &["-DDDD"])?;
            zdb.run(dir, pool, &["-TTTT"])?;
        }
        match self.golden.name.as_str() {
            "checkpoint" => zdb.run(dir, pool, &["-k", "-bcc"]).map(drop),
            _ => Ok(()),
        }
    }

    /// Returns files that differ from OpenZFS' view of them, except those in `touched` (dataset and object).
    fn compare(&self, touched: &BTreeSet<(u64, u64)>) -> Outcome {
        let live = self.golden.manifests().into_iter().find(|(name, _)| name == "live");
        let Some((name, covers)) = live else { return Ok(()) };
        if matches!(self.golden.name.as_str(), "encrypted" | "unclean-log") {
            return Ok(());
        }
        let tree = self.tree(&covers)?;
        let label = format!("{}/{name}", self.golden.name);
        let excuse = |path: &[u8], have: &mut Record, want: &Record| {
            tree::excuse_golden(&label, path, have, want);
            if tree.objects.get(path).is_some_and(|at| touched.contains(at)) {
                have.sha256.clone_from(&want.sha256);
                // Before system attributes, targets of symbolic links were content.
                have.link.clone_from(&want.link);
            }
            // Some are files of their own, which were changed like others.
            have.xattrs.clone_from(&want.xattrs);
        };
        let wrong = tree.differences(&label, &self.golden.manifest(&name).unwrap(), &excuse);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }
}

impl Copy {
    /// A checkpoint brings everything back, whatever was done since.
    fn go_back(&self) -> Outcome {
        let found = self.golden.manifests().into_iter().find(|(_, covers)| covers.checkpoint);
        let Some((name, covers)) = found else { return Ok(()) };
        let open = OpenOptions { checkpoint: true, ..OpenOptions::default() };
        let spa = self.import_as(open).map_err(text)?;
        spa.sync().map_err(text)?;
        spa.export().map_err(text)?;
        let zdb = self.golden.judge();
        if zdb.installed() {
            zdb.verify(self.dir.path(), self.golden.pool_name())?;
        }
        let tree = self.tree(&covers)?;
        let wrong = tree.differences(&name, &self.golden.manifest(&name).unwrap(), &|_, _, _| ());
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    /// The present content.
    fn tree(&self, covers: &Covers) -> Outcome<Tree> {
        let env = Env::system(64 << 20).unwrap();
        let dirs = [self.dir.path().to_owned()];
        let pool = open_pool(&env, &dirs, self.golden.pool_name(), OpenOptions::default()).map_err(text)?;
        Tree::read(&pool, covers).map_err(text)
    }
}

/// Names of heads (children after parents) and of snapshots.
fn datasets(spa: &Spa) -> Outcome<(Vec<String>, Vec<String>)> {
    let (mut heads, mut snaps) = (Vec::new(), Vec::new());
    let dsl = &spa.pool.dsl;
    for dir in dsl.walk(dsl.dir(&spa.pool.name).map_err(text)?) {
        let dir = dir.map_err(text)?;
        for snapshot in dir.head().map_err(text)?.snapshots().map_err(text)? {
            snaps.push(snapshot.name);
        }
        heads.push(dir.name.clone());
    }
    Ok((heads, snaps))
}

/// Cuts holes into some files and overwrites others. Returns dataset and object of the changed files.
fn change(spa: &Arc<Spa>) -> Outcome<BTreeSet<(u64, u64)>> {
    change_some(spa, 2)
}

/// As [`change`], to one file of `every`. All of all files are cut off when that is 1.
fn change_some(spa: &Arc<Spa>, every: usize) -> Outcome<BTreeSet<(u64, u64)>> {
    let mut touched = BTreeSet::new();
    for name in datasets(spa)?.0 {
        let head = spa.pool.dsl.dataset(&name).map_err(text)?;
        let view = spa.datasets.view();
        let locked = view.extra(head.phys.dir_obj, dsl_dir::CRYPTO_KEY_OBJ).map_err(text)?.is_some();
        if locked || is_inconsistent(&head) || head.kind().map_err(text)? != DatasetKind::Filesystem {
            continue;
        }
        let dataset = spa.datasets.open(&**spa, head.number).map_err(text)?;
        let files: Vec<_> = dataset.objset.view().objects().map(|o| o.unwrap()).collect();
        let files = files.into_iter().filter(|o| o.dnode.object_type == ObjectType::PLAIN_FILE_CONTENTS);
        let tx = spa.begin().map_err(text)?;
        for (i, object) in files.enumerate().filter(|(i, _)| i % every == 0) {
            let handle = dataset.objset.handle(object.number).map_err(text)?;
            let blocks = object.dnode.maxblkid + 1;
            match i % 4 {
                _ if every == 1 => handle.free_blocks(&tx, 0, blocks).map_err(text)?,
                0 => handle.free_blocks(&tx, blocks / 2, blocks).map_err(text)?,
                _ => {
                    let block = usize::try_from(object.dnode.datablksz()).unwrap();
                    let bytes: Vec<u8> = (0..block).map(|b| (b * (i + 3) / 7) as u8).collect();
                    handle.write(&tx, 0, &bytes).map_err(text)?;
                }
            }
            touched.insert((head.number, object.number));
        }
    }
    spa.sync().map_err(text)?;
    Ok(touched)
}

/// Destroys all that can be destroyed: every other snapshot, then `all` of them and every dataset.
fn destroy(spa: &Arc<Spa>, all: bool) -> Outcome<usize> {
    let (mut heads, snaps) = datasets(spa)?;
    heads.sort_by_key(|name| std::cmp::Reverse(name.len()));
    let some = snaps.into_iter().enumerate().filter(|(i, _)| all || i % 2 == 0).map(|(_, name)| name);
    let names: Vec<String> = if all { some.chain(heads).collect() } else { some.collect() };
    let mut gone = 0;
    // Clones keep snapshots, snapshots heads.
    for name in names.iter().chain(&names) {
        let name = name.clone();
        gone += usize::from(spa.dsl_task(move |t| t.destroy(&name, false)).is_ok());
    }
    for _ in 0..6 {
        spa.sync().map_err(text)?;
    }
    Ok(gone)
}

fn round_trip(copy: &Copy) -> Outcome {
    let before = std::fs::read_dir(&copy.dir).unwrap().count();
    let touched = copy.written("a change", change)?;
    assert_eq!(before, std::fs::read_dir(&copy.dir).unwrap().count());
    copy.compare(&touched)
}

fn shared(copy: &Copy) -> Outcome {
    let touched = copy.written("a change", change)?;
    copy.written("some snapshots went", |spa| destroy(spa, false))?;
    copy.written("nothing", statistics_are_right)?;
    copy.compare(&touched)?;
    copy.written("all went", |spa| destroy(spa, true))?;
    copy.written("files were emptied", |spa| change_some(spa, 1))?;
    copy.written("nothing", nothing_is_shared)?;
    copy.go_back()
}

/// The totals of a dedup table equal the sums over its entries.
fn statistics_are_right(spa: &Arc<Spa>) -> Outcome {
    let mut notes = Vec::new();
    let tree = spa.pool.tree();
    for table in engine::ddt::tables(&spa.mos.view(), &mut notes) {
        for store in &table.stores {
            let mut found = engine::ddt::Totals::default();
            for entry in store.entries() {
                let entry = entry.map_err(text)?;
                for phys in &entry.phys {
                    let bp = phys.blkptr(&entry.key, table.checksum);
                    let dsize = engine::zio::deflated(&tree, &bp);
                    found.count(&engine::ddt::of_block(&bp, dsize, phys.refcnt), phys.refcnt);
                }
            }
            if store.histogram != Some(found.histogram) {
                return Err(format!("{}: the statistics are not those of the entries", store.name));
            }
        }
    }
    if notes.is_empty() { Ok(()) } else { Err(format!("{notes:?}")) }
}

/// Tables of shared blocks go with the last of them, unless datasets are left (of an encrypted or held one).
fn nothing_is_shared(spa: &Arc<Spa>) -> Outcome {
    let (heads, snaps) = datasets(spa)?;
    let mut notes = Vec::new();
    let tables = engine::ddt::tables(&spa.mos.view(), &mut notes);
    if !notes.is_empty() {
        return Err(format!("{notes:?}"));
    }
    let left = spa.shared.saved();
    println!("{heads:?} {snaps:?}: {} dedup tables, {left} bytes saved", tables.len());
    let directory = spa.view().and_then(|view| view.directory()).map_err(text)?.to_vec().map_err(text)?;
    let clones = directory.iter().filter(|e| e.name_lossy().starts_with(names::mos::BRT_VDEV_PREFIX)).count();
    let whole = heads.len() + snaps.len() > 1;
    if whole || tables.is_empty() && clones == 0 && left == 0 && spa.space_facts().dspace() > 0 {
        return Ok(());
    }
    Err(format!("{} dedup and {clones} clone tables are left, {left} bytes", tables.len()))
}

fn run(only: impl Fn(&str) -> bool, test: impl Fn(&Copy) -> Outcome) {
    let named = std::env::var("AQUIFER_POOL").ok();
    let mut failed = Vec::new();
    for golden in golden::all() {
        let name = golden.name.as_str();
        let damaged = name.starts_with("damaged") || name == "known-errors";
        if damaged || name == "streams" || !only(name) {
            continue;
        }
        if named.as_ref().is_some_and(|named| named != name) {
            continue;
        }
        if let Err(why) = test(&Copy::of(&golden)) {
            let head: Vec<String> = why.lines().take(12).map(|l| l.chars().take(300).collect()).collect();
            failed.push(format!("{name}: {}", head.join("\n  ")));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_golden_pool_is_written() {
    run(|_| true, round_trip);
}

/// Pools of older versions become such of version 5000, with features, and are written on.
fn upgraded(copy: &Copy) -> Outcome {
    let features = zcommon::features::of_openzfs_2_3();
    let first = features.clone();
    let touched = copy.written("an upgrade", |spa| {
        spa.props().enable_features(first).map_err(text)?;
        change(spa)
    })?;
    copy.compare(&touched)?;
    copy.written("some snapshots went", |spa| {
        let version = spa.config.lock().facts().version;
        assert!(version == 5000 && features.iter().all(|f| spa.features.is_enabled(*f)));
        destroy(spa, false)
    })?;
    copy.written("all went", |spa| destroy(spa, true)).map(drop)
}

#[test]
fn old_pools_are_upgraded() {
    run(|name| ["legacy-v28", "zfs-fuse-v23"].contains(&name), upgraded);
}

#[test]
fn blocks_with_several_owners_are_freed_with_the_last() {
    run(|name| SHARED.contains(&name), shared);
}
