//! Compares the pool's feature counts with the counted uses.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use clikit::verb::Exit;
use engine::dsl::Dataset;
use engine::dsl::props::bookmarks;
use engine::zap::Zap;
use ondisk::dsl::ZfsBookmark;
use ondisk::indirect::IndirectMapping;
use ondisk::names::{dsl_dataset, dsl_dir, mos, vdev_top};
use zcommon::features::{FEATURES, Feature, FeatureFlags};

use super::dump::{Done, Dump, out};

/// zdb's exit code for a mismatch.
const MISMATCH: Exit = Exit(2);

/// Counts collected while visiting the datasets.
#[derive(Debug, Default)]
pub struct Counts {
    uses: HashMap<&'static str, u64>,
    remap_deadlists: u64,
    dirs: HashSet<u64>,
}

impl Counts {
    /// Records a directory; returns false if it was seen before.
    pub fn visit(&mut self, dir: u64) -> bool {
        self.dirs.insert(dir)
    }

    /// Counts the features that a dataset uses.
    pub fn add(&mut self, dump: &mut Dump<'_>, dataset: &Dataset) {
        let extras = dump.read(dataset.extras()).flatten();
        let has =
            |name: &str| extras.as_ref().is_some_and(|z| matches!(z.lookup(name.as_bytes()), Ok(Some(_))));
        for feature in FEATURES.iter().map(|f| f.info()) {
            if feature.flags.contains(FeatureFlags::PER_DATASET) && has(feature.guid) {
                self.count(feature.guid, 1);
            }
        }
        if has(dsl_dataset::REMAP_DEADLIST) {
            self.remap_deadlists += 1;
        }
        if dataset.is_snapshot() {
            return;
        }
        for bookmark in dump.read(bookmarks::bookmarks(dataset)).unwrap_or_default() {
            let redacts = u64::from(bookmark.phys.redaction_obj != 0);
            self.count(Feature::RedactionBookmarks.info().guid, redacts);
            let spills = redacts != 0 && spills(dataset, bookmark.phys.redaction_obj);
            self.count(Feature::RedactionListSpill.info().guid, u64::from(spills));
            let written = bookmark.phys.flags & ZfsBookmark::FLAG_HAS_FBN != 0;
            self.count(Feature::BookmarkWritten.info().guid, u64::from(written));
        }
        let livelist = dataset.dir().and_then(|dir| dir.extra(dsl_dir::LIVELIST));
        if matches!(livelist, Ok(Some(_))) {
            self.count(Feature::Livelist.info().guid, 1);
        }
    }

    fn count(&mut self, guid: &'static str, by: u64) {
        *self.uses.entry(guid).or_default() += by;
    }

    fn of(&self, guid: &str) -> u64 {
        self.uses.get(guid).copied().unwrap_or(0)
    }
}

fn spills(dataset: &Dataset, list: u64) -> bool {
    dataset.dsl.mos.object(list).is_ok_and(|object| object.dnode.spill().is_some())
}

/// Features that are not counted in the datasets' own ZAPs.
const COUNTED: [Feature; 4] =
    [Feature::RedactionBookmarks, Feature::BookmarkWritten, Feature::Livelist, Feature::RedactionListSpill];

/// Prints one line for each countable feature.
pub fn print(dump: &mut Dump<'_>, counts: &Counts) -> Done {
    let pool = Arc::clone(&dump.session.pool);
    for feature in FEATURES {
        let info = feature.info();
        if !info.flags.contains(FeatureFlags::PER_DATASET) && !COUNTED.contains(feature) {
            continue;
        }
        let Some(refcount) = pool.features.count(info.guid) else { continue };
        let found = counts.of(info.guid);
        if found == refcount {
            out!(dump, "Verified {} feature refcount of {refcount} is correct\n", info.name);
        } else {
            out!(dump, "{} feature refcount mismatch: {found} datasets != {refcount} refcount\n", info.name);
            dump.exit = MISMATCH;
        }
    }
    if dump.exit.0 >= MISMATCH.0 {
        return Ok(());
    }
    removal(dump, counts)
}

/// Removed devices, and the records of blocks freed from them.
fn removal(dump: &mut Dump<'_>, counts: &Counts) -> Done {
    let pool = Arc::clone(&dump.session.pool);
    let (mut devices, mut obsolete) = (0, counts.remap_deadlists);
    let tree = pool.tree();
    for top in &tree.config.children {
        if top.indirect_object != 0 {
            devices += 1;
            obsolete += u64::from(has_counts(dump, top.indirect_object));
        }
        let Some(Some(zap)) = dump.read(pool.dsl.zap(top.top_zap)) else { continue };
        let number = |name: &str| zap.u64(name).ok().flatten().unwrap_or(0);
        obsolete += u64::from(number(vdev_top::OBSOLETE_COUNTS_ARE_PRECISE) != 0);
        obsolete += u64::from(number(vdev_top::INDIRECT_OBSOLETE_SM) != 0);
    }
    let directory = dump.read(pool.directory());
    let in_mos = |zap: &Zap, name: &str| zap.lookup(name.as_bytes()).ok().flatten();
    if let Some(zap) = &directory {
        obsolete += u64::from(in_mos(zap, mos::OBSOLETE_BPOBJ).is_some());
        // Vdev, previous obsolete space map, next mapping: a condense adds two objects.
        let condensing = in_mos(zap, mos::CONDENSING_INDIRECT).map(|v| v.ints);
        let next = condensing.and_then(|words| words.get(2).copied()).unwrap_or(0);
        obsolete += if next != 0 { 2 } else { 0 };
    }
    let checks = [
        (Feature::DeviceRemoval, "device_removal", "indirect vdevs", devices),
        (Feature::ObsoleteCounts, "indirect_refcount", "obsolete counts objects", obsolete),
    ];
    for (feature, name, what, found) in checks {
        let refcount = pool.features.count(feature.info().guid).unwrap_or(0);
        if found == refcount {
            out!(dump, "Verified {name} feature refcount of {refcount} is correct\n");
        } else {
            out!(dump, "Number of {what} ({found}) does not match feature count ({refcount})\n");
            dump.exit = Exit(dump.exit.0.max(Exit::FAILED.0));
        }
    }
    Ok(())
}

/// Whether a mapping counts the obsolete parts of its entries.
fn has_counts(dump: &mut Dump<'_>, mapping: u64) -> bool {
    let object = dump.session.pool.mos.object(mapping);
    dump.read(object).is_some_and(|object| object.dnode.bonus().len() >= IndirectMapping::SIZE)
}
