//! The import of a pool whose space maps and tables are rebuilt from a walk over its blocks.
//!
//! All content of space maps, their logs, dedup tables and clone tables follows from block pointers.
//! `scan::rebuild` walks the pool and derives their content ([`Derived`]); this module writes it.
//!
//! The txg that claims the intent logs, the first one, replaces everything at once:
//!
//! 1. the logs' blocks are claimed in the derived space;
//! 2. the old objects leave the MOS without being read or freed ([`crate::dmu::dirty::Handle::forget`]): their blocks are
//!    not among those that the walk counted, so their space is free already;
//! 3. tables are stored, damaged lists of blocks to be freed become empty, then maps of all metaslabs are stored.
//!
//! Crash argument: until the uberblock of this txg is on disk, the pool is as it was, except that blocks of the old objects may
//! be overwritten. They read as damaged maps or tables, and the next rebuild does not need them.
//!
//! Blocks that are freed in that txg before the tables are stored leak: [`shared`].

use std::collections::BTreeSet;
use std::sync::Arc;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos, vdev_top};
use ondisk::{Blkptr, ObjectType};
use zcommon::features::Feature;

use super::Spa;
use super::freed_lists::ReplacedLists;
use super::pool::Pool;
use super::shared::Shared;
use crate::brt;
use crate::ddt::rebuild::{Gathered, named};
use crate::dmu::edit::Objects;
use crate::dmu::{Objset, Tx};
use crate::error::{Error, Kind, Result};
use crate::metaslab::log::logs;
use crate::metaslab::rebuild::{DerivedSpace, has_metaslabs};
use crate::metaslab::table;
use crate::vdev::config::VdevConfig;
use crate::zap::{Zap, ZapEdit};

/// Bytes of a space map's head with a histogram.
const WITH_HISTOGRAM: usize = 320;
/// Most metaslabs of one vdev whose maps are looked for.
const MAX_METASLABS: u64 = 1 << 20;

/// The tables to rebuild. Space maps always are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RebuildTables {
    /// Dedup tables.
    pub dedup: bool,
    /// Clone tables.
    pub clones: bool,
    /// Lists of blocks to be freed: they become empty.
    pub freeing: bool,
}

/// Objects of the MOS that are replaced, and the notes that lead to them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Replaced {
    /// Which tables are among them.
    pub(crate) which: RebuildTables,
    /// Their numbers.
    pub(crate) objects: BTreeSet<u64>,
    /// Objects among them that are emptied and keep their number: the arrays of space maps, which the configuration names.
    arrays: BTreeSet<u64>,
    /// Entries of the MOS directory.
    names: Vec<String>,
    /// ZAPs of top-level vdevs with a table of unflushed txgs.
    top_zaps: Vec<u64>,
    /// Checksums whose dedup table has the form of `fast_dedup`.
    fast: BTreeSet<u8>,
    /// Lists of blocks to be freed.
    lists: ReplacedLists,
}

/// The result of a walk.
#[derive(Debug)]
pub struct Derived {
    /// The state that was walked.
    pub(crate) txg: u64,
    /// The structures to replace.
    pub(crate) replaced: Replaced,
    /// Allocated space.
    pub(crate) found: DerivedSpace,
    /// Entries of the dedup tables.
    pub(crate) dedup: Gathered,
    /// Blocks of replaced objects that the checkpoint refers to: they are freed, so that their space is kept for it.
    pub(crate) kept: Vec<Blkptr>,
    /// Additional references of cloned blocks: each block, and how many.
    pub(crate) clones: Vec<(Blkptr, u64)>,
}

impl Derived {
    /// Leaves references to the clone tables that the dedup tables do not count.
    ///
    /// # Errors
    /// `Unsupported` in a pool without clone tables.
    pub(crate) fn leave_to_clones(&mut self) -> Result<()> {
        let rest = self.dedup.uncounted(&self.replaced.fast);
        if !rest.is_empty() && !self.replaced.which.clones {
            let what =
                "two blocks with several references have one dedup key, and the pool has no clone tables";
            return Err(Error::unsupported(what));
        }
        self.clones.extend(rest);
        Ok(())
    }
}

impl Replaced {
    /// Finds the objects that hold space maps, and those of the tables in `which`.
    ///
    /// # Errors
    /// When the MOS's own objects cannot be listed.
    pub(crate) fn find(pool: &Pool, which: RebuildTables) -> Result<Self> {
        let mut found = Self { which, ..Self::default() };
        found.find_space(pool)?;
        if which.dedup {
            let makes_fast = pool.features.count(Feature::FastDedup.info().guid).is_some();
            let tables = named(&pool.mos, makes_fast)?;
            found.objects.extend(tables.objects);
            found.names.extend(tables.names);
            found.fast = tables.fast;
            found.add_kind(pool, |kind| kind == ObjectType::DDT_ZAP)?;
        }
        if which.clones {
            for (name, number) in brt::named(&pool.mos)? {
                found.objects.insert(number);
                found.objects.extend(brt::entries_object(&pool.mos, number));
                found.names.push(name);
            }
        }
        if which.freeing {
            found.lists = ReplacedLists::find(pool)?;
            found.objects.extend(&found.lists.objects);
            found.names.extend_from_slice(&found.lists.names);
        }
        found.objects.remove(&0);
        Ok(found)
    }

    /// Maps that arrays and the log's ZAP name. Where these cannot be read, all maps that nothing else names.
    fn find_space(&mut self, pool: &Pool) -> Result<()> {
        let (tree, directory) = (pool.tree(), pool.directory()?);
        let mut is_whole = true;
        for config in tree.config.children.iter().filter(|config| has_metaslabs(config)) {
            if config.metaslab_array != 0 {
                self.objects.insert(config.metaslab_array);
                self.arrays.insert(config.metaslab_array);
                let count = config.asize.checked_shr(config.metaslab_shift).unwrap_or(0).min(MAX_METASLABS);
                match words(&pool.mos, config.metaslab_array, count) {
                    Ok(maps) => self.objects.extend(maps),
                    Err(_) => is_whole = false,
                }
            }
            if config.top_zap != 0 {
                let zap = Zap::open(&pool.mos.object(config.top_zap)?)?;
                if let Some(number) = zap.u64(vdev_top::MS_UNFLUSHED_PHYS_TXGS)? {
                    self.objects.insert(number);
                    self.top_zaps.push(config.top_zap);
                }
            }
        }
        if let Some(number) = directory.u64(mos::LOG_SPACEMAP_ZAP)?.filter(|&number| number != 0) {
            self.objects.insert(number);
            self.names.push(mos::LOG_SPACEMAP_ZAP.to_owned());
            match logs(&pool.mos) {
                Ok(logs) => self.objects.extend(logs.iter().map(|log| log.object.number)),
                Err(_) => is_whole = false,
            }
        }
        if !is_whole {
            let kept = kept_maps(pool)?;
            let before = self.objects.clone();
            self.add_kind(pool, |kind| kind == ObjectType::SPACE_MAP)?;
            self.objects.retain(|number| before.contains(number) || !kept.contains(number));
        }
        Ok(())
    }

    fn add_kind(&mut self, pool: &Pool, wanted: impl Fn(ObjectType) -> bool) -> Result<()> {
        for object in pool.mos.objects() {
            let object = object?;
            if wanted(object.dnode.object_type) {
                self.objects.insert(object.number);
            }
        }
        Ok(())
    }
}

/// Space maps that are not of metaslabs: DTLs, checkpoint space maps, obsolete space maps.
fn kept_maps(pool: &Pool) -> Result<BTreeSet<u64>> {
    let tree = pool.tree();
    if pool.directory()?.lookup(mos::CONDENSING_INDIRECT.as_bytes())?.is_some() {
        let what = "a metaslab array cannot be read while the mapping of a removed vdev is condensed";
        return Err(Error::unsupported(what));
    }
    let mut kept: BTreeSet<u64> = tree.config.walk().iter().map(|config| config.dtl_object).collect();
    for config in &tree.config.children {
        kept.extend(table::checkpoint(&pool.mos, config)?);
        kept.extend(table::obsolete(&pool.mos, config)?);
    }
    Ok(kept)
}

/// The first `count` words of an object.
fn words(mos: &Arc<Objset>, number: u64, count: u64) -> Result<Vec<u64>> {
    let len = usize::try_from(count.saturating_mul(8)).unwrap_or(usize::MAX);
    let bytes = mos.object(number)?.read_vec(0, len)?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// Refuses a walk's result for another state than the one opened.
pub(super) fn check(derived: &Derived, pool: &Pool) -> Result<()> {
    if derived.txg == pool.uberblock.txg {
        return Ok(());
    }
    let what = format!(
        "the pool was changed by another program while its blocks were walked: from txg {} to {}",
        derived.txg, pool.uberblock.txg
    );
    Err(Error::new(Kind::Busy, what))
}

/// The tables of a pool until [`Spa::replace_derived`]: those that are replaced are unknown.
pub(super) fn shared(pool: &Pool, which: RebuildTables) -> Result<Shared> {
    Shared::load_some(pool, !which.dedup, !which.clones)
}

impl Spa {
    /// Replaces the old structures by the derived ones (syncing context, in the first txg).
    pub(super) fn replace_derived(&self, derived: Derived, tx: &Tx) -> Result<()> {
        let Derived { replaced, dedup, clones, kept, .. } = derived;
        kept.iter().try_for_each(|bp| self.sharing().free_places(bp, tx))?;
        let within = self.mos.within(tx);
        let mut histograms = 0;
        for number in &replaced.objects {
            let handle = self.mos.handle(*number)?;
            let dnode = handle.dnode();
            let is_map = dnode.object_type == ObjectType::SPACE_MAP;
            histograms += i64::from(is_map && dnode.bonus().len() >= WITH_HISTOGRAM);
            match (dnode.is_free(), replaced.arrays.contains(number)) {
                (true, _) => {}
                (false, true) => handle.forget_content(tx)?,
                (false, false) => handle.forget(tx)?,
            }
        }
        reduce(self, Feature::SpacemapHistogram, histograms, tx)?;
        let mut edit = within.edit(MOS_DIRECTORY_OBJECT)?;
        let mut directory = ZapEdit::open(&mut *edit)?;
        replaced.names.iter().try_for_each(|name| directory.remove(name))?;
        drop(edit);
        for zap in &replaced.top_zaps {
            ZapEdit::open(&mut *within.edit(*zap)?)?.remove(vdev_top::MS_UNFLUSHED_PHYS_TXGS)?;
        }
        reduce(self, Feature::LogSpacemap, i64::MAX, tx)?;
        if replaced.which.dedup {
            reduce(self, Feature::FastDedup, i64::MAX, tx)?;
            self.sharing().replace_dedup(dedup, &replaced.fast, tx)?;
        }
        if replaced.which.clones {
            reduce(self, Feature::BlockCloningEndian, i64::MAX, tx)?;
            reduce(self, Feature::BlockCloning, i64::MAX, tx)?;
            self.sharing().replace_clones(clones, tx)?;
        }
        if replaced.which.freeing {
            self.replace_lists(&replaced.lists, tx)?;
        }
        Ok(())
    }
}

/// Takes at most `uses` from the count of a feature.
fn reduce(spa: &Spa, feature: Feature, uses: i64, tx: &Tx) -> Result<()> {
    let count = i64::try_from(spa.features.count(feature)).unwrap_or(i64::MAX);
    match count.min(uses) {
        0 => Ok(()),
        less => spa.features.count_by(feature, -less, tx),
    }
}

/// Whether a pool's vdev is being removed: copies of its blocks are allocated, too.
pub(crate) fn is_being_removed(config: &VdevConfig) -> bool {
    config.removing && config.indirect_object != 0
}
