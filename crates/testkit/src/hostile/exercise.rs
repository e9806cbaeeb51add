//! All operations of offline verbs on a pool, at the level of libraries.
//!
//! The bounds here limit the amount of *data* (files, bytes of a file); the engine must stop any other endless
//! work. Errors are counted, not judged.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::dmu::{Object, Objset};
use engine::dsl::{Dataset, props};
use engine::env::Env;
use engine::scan::account;
use engine::send::SendFlags;
use engine::spa::{ImportSource, OpenOptions, Pool, Reach};
use engine::zap::Zap;
use engine::zio::Form;
use ondisk::ObjectType;
use props::userspace::AccountKind;
use zpl::{Filesystem, Inode};

/// Files visited in one dataset.
const FILES: usize = 400;
/// Entries visited in one directory or ZAP.
const ENTRIES: usize = 20_000;
/// Bytes read of one object.
const BYTES: u64 = 2 << 20;
/// Block pointers visited by the leak check.
const POINTERS: u64 = 300_000;
/// Objects visited in one object set.
const OBJECTS: usize = 3_000;

/// The results.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Whether the pool could be opened.
    pub opened: bool,
    /// Datasets and snapshots met.
    pub datasets: usize,
    /// Files met.
    pub files: usize,
    /// Bytes that could be read.
    pub bytes: u64,
    /// Errors met.
    pub errors: usize,
    /// The first few of them.
    pub first: Vec<String>,
    /// Steps that took long.
    pub slow: Vec<(String, Duration)>,
}

impl Report {
    fn ok<T>(&mut self, result: engine::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                self.errors += 1;
                if self.first.len() < 4 {
                    self.first.push(e.to_string());
                }
                None
            }
        }
    }

    fn timed<T>(&mut self, what: &str, step: impl FnOnce(&mut Self) -> T) -> T {
        let start = Instant::now();
        let value = step(self);
        if start.elapsed() > Duration::from_secs(2) {
            self.slow.push((what.to_owned(), start.elapsed()));
        }
        value
    }
}

/// Opens `source` in every way, and runs all operations on it.
pub fn everything(env: &Env, source: &ImportSource) -> Report {
    let mut report = Report::default();
    for (rewind, checkpoint) in [(true, true), (true, false), (false, false)] {
        let reach = if rewind { Reach::Extreme } else { Reach::Newest };
        let options = OpenOptions { reach, checkpoint, ..OpenOptions::default() };
        let opened = report.timed("open", |r| r.ok(engine::spa::open(env, source.clone(), options)));
        if let (Some(pool), false) = (opened, checkpoint || rewind) {
            report.opened = true;
            exercise(&pool, &mut report);
        }
    }
    report
}

/// Runs all operations on an open pool.
pub fn exercise(pool: &Arc<Pool>, report: &mut Report) {
    let mut notes = Vec::new();
    let space = report.timed("space", |_| engine::spa::space::PoolSpace::of(pool, &mut notes));
    report.errors += notes.len() + pool.notes.len();
    let _ = (space.size(), space.allocated(), space.fragmentation(), space.slop());
    report.timed("mos", |r| objects(&pool.mos, r));
    report.timed("tables", |r| tables(pool, r));
    report.timed("blocks", |r| blocks(pool, r));
    let Some(root) = report.ok(pool.dsl.root()) else { return };
    report.timed("datasets", |r| {
        for dir in pool.dsl.walk(root) {
            let Some(dir) = r.ok(dir) else { continue };
            let head = dir.head();
            let Some(head) = r.ok(head) else { continue };
            dataset(&head, space.usable(), r);
            let snapshots = head.snapshots();
            for snapshot in r.ok(snapshots).unwrap_or_default().into_iter().take(8) {
                dataset(&snapshot, space.usable(), r);
            }
        }
    });
}

/// The pool's own records.
fn tables(pool: &Arc<Pool>, report: &mut Report) {
    let mut notes = Vec::new();
    report.ok(engine::spa::history::history(pool));
    engine::spa::errlog::errors(pool, &mut notes);
    for table in engine::ddt::tables(&pool.mos, &mut notes) {
        for store in &table.stores {
            store.entries().take(ENTRIES).for_each(|entry| _ = report.ok(entry));
        }
    }
    for top in &pool.tree().config.children {
        if let Some(Some(table)) = report.ok(engine::brt::table(&pool.mos, top.id)) {
            table.entries().take(ENTRIES).for_each(|entry| _ = report.ok(entry));
        }
    }
    report.errors += notes.len();
}

/// Compares every pointer with the space maps, up to the bound.
fn blocks(pool: &Arc<Pool>, report: &mut Report) {
    let stop = AtomicBool::new(false);
    let options = account::WalkOptions { leaks: true, stop: &stop, window: account::WINDOW_SECTORS };
    let mut met = 0;
    let account = account::account(pool, &options, &mut |_| {
        met += 1;
        stop.store(met > POINTERS, Ordering::Relaxed);
    });
    report.errors += account.notes.len();
    let _ = (account.total_alloc(), account.total_found(), account.balances());
}

/// A reader of a stream that stops at some point.
struct Enough(u64);

impl std::io::Write for Enough {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let left = self.0.checked_sub(bytes.len() as u64);
        self.0 = left.ok_or_else(|| std::io::Error::other("enough"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The dataset as a stream, plain and with all stream features.
fn stream(dataset: &Dataset, report: &mut Report) {
    let plain = SendFlags::default();
    for flags in [plain, SendFlags { embed: true, large_blocks: true, compressed: true, raw: true }] {
        report.ok(engine::send::send(dataset, None, flags, &mut Enough(BYTES)));
    }
}

fn dataset(dataset: &Dataset, space: u64, report: &mut Report) {
    report.datasets += 1;
    report.timed(&format!("properties of {}", dataset.name), |r| properties(dataset, space, r));
    let Some(objset) = report.ok(dataset.objset_as(Form::NoKey)) else { return };
    report.timed(&format!("objects of {}", dataset.name), |r| objects(&objset, r));
    report.timed(&format!("stream of {}", dataset.name), |r| stream(dataset, r));
    report.timed(&format!("log of {}", dataset.name), |r| {
        for block in engine::zil::chain(&objset) {
            r.errors += block.records().filter(|(_, record)| record.is_err()).count();
        }
    });
    report.timed(&format!("files of {}", dataset.name), |r| {
        if let Some(fs) = r.ok(Filesystem::open(dataset)) {
            files(&fs, r);
        } else if let Some(volume) = r.ok(zvol::Volume::open(dataset)) {
            let mut out = vec![0; BYTES as usize];
            r.ok(volume.read_at(0, &mut out));
            let mut at = 0;
            while let Some(span) = volume.span(at, u64::MAX).filter(|_| at < 1 << 40) {
                at = span.range().end;
            }
        }
    });
}

fn properties(dataset: &Dataset, space: u64, report: &mut Report) {
    let rules = props::settings::PropRules { is_inherited: |_| true, is_for_snapshots: |_| true };
    report.ok(props::Settings::of(dataset, rules));
    report.ok(props::DslDatasetStats::of(dataset, space, 0, 0));
    report.ok(props::bookmarks::bookmarks(dataset));
    report.ok(props::holds::holds(dataset));
    report.ok(props::resume::token(dataset));
    report.ok(props::names::dataset_name(&dataset.dsl, dataset.number));
    if let Ok(objset) = dataset.objset_as(Form::NoKey) {
        for account in [AccountKind::User, AccountKind::Group, AccountKind::Project] {
            report.ok(props::userspace::usage(&objset, account));
        }
    }
}

fn objects(objset: &Arc<Objset>, report: &mut Report) {
    for object in objset.objects().take(OBJECTS) {
        let Some(object) = report.ok(object) else { continue };
        report.timed(&format!("object {} of {}", object.number, objset.id), |r| one(&object, r));
    }
}

fn one(object: &Object, report: &mut Report) {
    let kind = object.dnode.object_type;
    if kind.byteswap() == Some(ondisk::Byteswap::Zap)
        && let Some(zap) = report.ok(Zap::open(object))
    {
        for entry in zap.entries().take(ENTRIES) {
            report.ok(entry);
        }
    }
    if matches!(kind, ObjectType::SPACE_MAP) {
        report.ok(engine::metaslab::load(object, 9, 0, u64::MAX));
    }
    if matches!(kind, ObjectType::PACKED_NVLIST) {
        report.ok(engine::spa::packed_nvlist(object));
    }
    let mut at = 0;
    let mut extents = 0;
    while let Some(Some(extent)) = report.ok(object.next_extent(at, u64::MAX)) {
        at = extent.end;
        extents += 1;
        if extents > 1000 || at == u64::MAX {
            break;
        }
    }
    let mut out = vec![0; BYTES.min(object.max_offset()) as usize];
    report.ok(object.read_at(0, &mut out));
    report.ok(object.spill());
}

fn files(fs: &Arc<Filesystem>, report: &mut Report) {
    let Some(root) = report.ok(fs.root()) else { return };
    for path in [&b"a/../b/./c"[..], b"/x", b"dir", b"link", b"loop/loop/loop"] {
        report.ok(fs.resolve(path, true));
    }
    let mut seen = HashSet::from([root.number()]);
    let mut stack = vec![root];
    while let Some(inode) = stack.pop() {
        report.files += 1;
        if report.files.is_multiple_of(FILES) {
            break;
        }
        file(&inode, report);
        if !inode.is_dir() {
            continue;
        }
        let Some(entries) = report.ok(inode.entries()) else { continue };
        for entry in entries.take(ENTRIES) {
            let Some(entry) = report.ok(entry) else { continue };
            report.ok(inode.lookup(&entry.name));
            if stack.len() < FILES && seen.insert(entry.object) {
                stack.extend(report.ok(fs.inode(entry.object)));
            }
        }
    }
}

fn file(inode: &Inode, report: &mut Report) {
    report.ok(inode.xattrs());
    report.ok(inode.acl());
    report.ok(inode.parent());
    if inode.attr().kind == zpl::FileKind::Symlink {
        report.ok(inode.readlink());
        return;
    }
    if inode.attr().kind != zpl::FileKind::Regular {
        return;
    }
    let mut at = 0;
    while at < BYTES {
        let Some(chunk) = report.ok(inode.chunk(at, 1 << 20)).filter(|c| !c.is_empty()) else { break };
        at += chunk.len() as u64;
        report.bytes += chunk.len() as u64;
    }
    let mut out = vec![0; 1 << 20];
    report.ok(inode.read_lossy(inode.attr().size / 2, &mut out));
    let mut at = 0;
    for _ in 0..1000 {
        let Some(Some(span)) = report.ok(inode.span(at, u64::MAX)) else { break };
        at = span.range().end;
    }
    report.ok(inode.next_hole(0));
}
