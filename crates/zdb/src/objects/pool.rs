//! A whole pool: its MOS, pending frees, every dataset, and the check of feature counts.

use std::sync::Arc;

use clikit::verb::Outcome;
use engine::dsl::{Dataset, Dir, MAX_NESTING};
use ondisk::names::{mos, special_dir};

use super::dump::{Done, Dump};
use super::refcounts::{self, Counts};
use super::view::View;
use super::{bpobj, deadlist, dtl, objset};

/// Prints everything, in zdb's order: for each directory first its children, then snapshots, then itself.
pub fn run(dump: &mut Dump<'_>) -> Outcome {
    let pool = Arc::clone(&dump.session.pool);
    objset::print(dump, &mut View::mos(&pool))?;
    if dump.d >= 3 {
        waiting(dump)?;
        dtl::print(dump)?;
    }
    let mut counts = Counts::default();
    if let Some(root) = dump.read(pool.dsl.root()) {
        directory(dump, &root, 0, &mut counts)?;
    }
    if !dump.session.options.has('L') {
        origin(dump)?;
    }
    refcounts::print(dump, &counts)?;
    Ok(dump.exit)
}

/// Lists of blocks that a later txg would free.
fn waiting(dump: &mut Dump<'_>) -> Done {
    let lists = [
        (mos::SYNC_BPOBJ, "Deferred frees"),
        (mos::FREE_BPOBJ, "Pool snapshot frees"),
        (mos::OBSOLETE_BPOBJ, "Pool obsolete blocks"),
    ];
    let pool = Arc::clone(&dump.session.pool);
    let Some(directory) = dump.read(pool.directory()) else { return Ok(()) };
    for (name, title) in lists {
        if let Some(number) = dump.read(directory.u64(name)).flatten().filter(|&n| n != 0) {
            bpobj::full(dump, number, title, 0)?;
        }
    }
    bpobj::bptree(dump, &directory)
}

fn directory(dump: &mut Dump<'_>, dir: &Dir, depth: usize, counts: &mut Counts) -> Done {
    if depth > MAX_NESTING || !counts.visit(dir.number) {
        dump.problem(format_args!("the dataset tree contains itself at '{}'", dir.name));
        return Ok(());
    }
    let dsl = Arc::clone(&dir.dsl);
    if let Some(Some(children)) = dump.read(dsl.zap(dir.phys.child_dir_zapobj)) {
        for entry in children.entries() {
            let Some(entry) = dump.read(entry) else { continue };
            let (name, number) = (entry.name_lossy(), entry.value.first().unwrap_or(0));
            if name.starts_with('$') {
                continue;
            }
            if let Some(child) = dump.read(Dir::open(&dsl, number, format!("{}/{name}", dir.name))) {
                directory(dump, &child, depth + 1, counts)?;
            }
        }
    }
    if dir.phys.head_dataset_obj == 0 {
        return Ok(());
    }
    let Some(head) = dump.read(dir.head()) else { return Ok(()) };
    for snapshot in snapshots(dump, &head) {
        dataset(dump, &snapshot, counts)?;
    }
    dataset(dump, &head, counts)
}

/// In the order of their names' hashes, as zdb iterates.
fn snapshots(dump: &mut Dump<'_>, head: &Dataset) -> Vec<Dataset> {
    let Some(Some(names)) = dump.read(head.dsl.zap(head.phys.snapnames_zapobj)) else { return Vec::new() };
    let mut all = Vec::new();
    for entry in names.entries() {
        let Some(entry) = dump.read(entry) else { continue };
        let name = format!("{}@{}", head.name, entry.name_lossy());
        let number = entry.value.first().unwrap_or(0);
        all.extend(dump.read(Dataset::open(&head.dsl, number, name)));
    }
    all
}

fn dataset(dump: &mut Dump<'_>, dataset: &Dataset, counts: &mut Counts) -> Done {
    let opened = View::dataset(dump, dataset);
    let Some(mut view) = dump.read(opened) else { return Ok(()) };
    counts.add(dump, dataset);
    objset::print(dump, &mut view)
}

/// The hidden origin that every file system is a clone of.
fn origin(dump: &mut Dump<'_>) -> Done {
    let dsl = Arc::clone(&dump.session.pool.dsl);
    let found = dsl.root().and_then(|root| root.child(special_dir::ORIGIN));
    let Some(Some(dir)) = dump.read(found) else { return Ok(()) };
    let Some(head) = dump.read(dir.head()) else { return Ok(()) };
    let snapshot = Dataset::open(&dsl, head.phys.prev_snap_obj, format!("{}@$ORIGIN", head.name));
    for dataset in [Some(head), dump.read(snapshot)].into_iter().flatten() {
        deadlist::print(dump, dataset.phys.deadlist_obj, "Deadlist")?;
    }
    Ok(())
}
