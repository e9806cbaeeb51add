//! Resolves damaged blocks to names: datasets, paths, devices.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::dsl::Dataset;
use engine::scan::reader::Request;
use engine::scan::verify::{Damaged, Remedy, Report, other_references};
use engine::spa::Pool;
use engine::types::Bookmark;
use zpl::Filesystem;

/// Maximum depth of a path.
const MAX_DEPTH: usize = 1024;
/// Maximum number of lines with a path: each may require reading a directory.
const MAX_PATHS: usize = 4096;

/// One line of the table of damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Dataset or snapshot, `MOS` for the pool's own objects.
    pub dataset: String,
    /// Path, or another designation of the object.
    pub file: String,
    /// The object.
    pub object: u64,
    /// The kind of blocks: `data`, `L1`…, `log`, `root`.
    pub level: String,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Blocks.
    pub blocks: u64,
    /// Devices with bad bytes.
    pub vdevs: Vec<String>,
    /// How the data can be recovered.
    pub remedy: Remedy,
}

/// The table of damage.
#[derive(Debug, Default)]
pub struct Places {
    /// Its lines.
    pub lines: Vec<Line>,
}

impl Places {
    /// Resolves the names of all damage in a report.
    pub fn new(pool: &Arc<Pool>, report: &Report, stop: &AtomicBool) -> Self {
        if report.damage.is_empty() && report.account.unreadable.is_empty() {
            return Self::default();
        }
        let mut names = Names { datasets: datasets(pool), files: HashMap::new(), left: MAX_PATHS };
        let mut lines: Vec<Line> = report.damage.iter().map(|d| line(pool, &mut names, d)).collect();
        let lost: HashSet<(u32, u64)> =
            report.failed.iter().filter_map(|(r, _)| r.bp.dva(0)).map(|d| (d.vdev, d.offset)).collect();
        if !lost.is_empty() {
            let more = other_references(pool, &lost, stop);
            lines.extend(more.iter().map(|request| reference(pool, &mut names, request)));
        }
        Self { lines }
    }
}

fn line(pool: &Pool, names: &mut Names, damaged: &Damaged) -> Line {
    let place = &damaged.place;
    let (dataset, file) = names.of(place.objset, place.object);
    let tree = pool.tree();
    Line {
        dataset,
        file,
        object: place.object,
        level: if place.spill { "spill".to_owned() } else { level(place.level) },
        start: damaged.start,
        end: damaged.end,
        blocks: damaged.blocks,
        vdevs: place.leaves.iter().map(|leaf| tree.leaf_name(*leaf, place.top)).collect(),
        remedy: place.remedy,
    }
}

/// Another file that shares a lost block.
fn reference(pool: &Pool, names: &mut Names, request: &Request) -> Line {
    let (dataset, file) = names.of(request.at.objset, request.at.object);
    let top = request.bp.dva(0).map_or(0, |d| u64::from(d.vdev));
    Line {
        dataset,
        file,
        object: request.at.object,
        level: level(request.at.level),
        start: request.start,
        end: request.end,
        blocks: 1,
        vdevs: vec![pool.tree().leaf_name(0, top)],
        remedy: Remedy::Lost,
    }
}

fn level(level: i64) -> String {
    match level {
        Bookmark::ROOT => "root".to_owned(),
        Bookmark::ZIL => "log".to_owned(),
        0 => "data".to_owned(),
        n => format!("L{n}"),
    }
}

/// Every dataset and snapshot by its object set.
fn datasets(pool: &Pool) -> HashMap<u64, Dataset> {
    let mut all = HashMap::new();
    let Ok(root) = pool.dsl.root() else { return all };
    for dir in pool.dsl.walk(root).flatten() {
        let Ok(head) = dir.head() else { continue };
        for snapshot in head.snapshots().unwrap_or_default() {
            all.insert(snapshot.number, snapshot);
        }
        all.insert(head.number, head);
    }
    all
}

struct Names {
    datasets: HashMap<u64, Dataset>,
    files: HashMap<u64, Option<Arc<Filesystem>>>,
    left: usize,
}

impl Names {
    fn of(&mut self, objset: u64, object: u64) -> (String, String) {
        if objset == 0 {
            return ("MOS".to_owned(), format!("object {object}"));
        }
        let Some(dataset) = self.datasets.get(&objset) else {
            return (format!("objset {objset}"), format!("object {object}"));
        };
        let name = dataset.name.clone();
        let fs = self.files.entry(objset).or_insert_with(|| Filesystem::open(dataset).ok());
        let fs = fs.as_ref().filter(|_| object != 0 && self.left > 0);
        let found = fs.and_then(|fs| {
            self.left -= 1;
            path(fs, object)
        });
        (
            name,
            found.unwrap_or_else(|| if object == 0 { "metadata".into() } else { format!("object {object}") }),
        )
    }
}

/// The path of an object, up through the directories it was last linked into.
fn path(fs: &Arc<Filesystem>, object: u64) -> Option<String> {
    let mut parts = Vec::new();
    let mut inode = fs.inode(object).ok()?;
    for _ in 0..MAX_DEPTH {
        if inode.number() == fs.root().ok()?.number() {
            let names = parts.iter().rev().map(String::as_str).collect::<Vec<_>>();
            return Some(format!("/{}", names.join("/")));
        }
        let parent = inode.parent().ok()?;
        let mut entries = parent.entries().ok()?.flatten();
        let entry = entries.find(|entry| entry.object == inode.number())?;
        parts.push(String::from_utf8_lossy(&entry.name).into_owned());
        inode = parent;
    }
    None
}
