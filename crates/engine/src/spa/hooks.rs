//! The operations that the DSL needs of a pool, one that is being created or one that is open, and those that
//! intent logs need.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ondisk::{Blkptr, ObjsetType};
use zcommon::features::Feature;

use super::Spa;
use super::errlog_lists;
use super::feature_set::FeatureSet;
use super::history_log::{HistoryEvent, HistoryOrigin};
use super::space::DedupTotals;
use super::space::slop::slop;
use super::subjects::{BlockSharing, IntentLogs, SpaceFacts};
use crate::dmu::tx::Reserved;
use crate::dmu::{LiveObjset, Tx};
use crate::dsl::write::scan_moves::DatasetMove;
use crate::dsl::write::space_throttle::SpaceSource;
use crate::dsl::write::{DslPool, Hooks};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::memory::Limit;
use crate::zil::LogHost;
use crate::zio::alloc::MetaslabClass;

/// Copies of a block, twice: as much again for the blocks above it.
const COPIES_AND_METADATA: u64 = 6;

/// A block large enough to measure the allocated size per byte.
const MIB: u64 = 1 << 20;

/// A pool that is being made.
#[derive(Debug)]
pub(super) struct Unborn<'a> {
    pub(crate) env: &'a Env,
    pub(crate) version: u64,
    pub(crate) features: &'a FeatureSet,
}

fn now(env: &Env) -> (u64, u64) {
    (env.now(), u64::from(env.clock.wall().1))
}

impl Hooks for Unborn<'_> {
    fn version(&self) -> u64 {
        self.version
    }

    fn feature(&self, feature: Feature) -> Option<u64> {
        self.features.is_enabled(feature).then(|| self.features.count(feature))
    }

    fn count_feature(&self, feature: Feature, delta: i64, tx: &Tx) -> Result<()> {
        self.features.count_by(feature, delta, tx)
    }

    fn free(&self, _: &Blkptr, _: &Tx) -> Result<()> {
        Err(Error::corrupt("a pool that is being made has nothing to free"))
    }

    fn mark_obsolete(&self, _: &Blkptr, _: &Tx) -> Result<()> {
        Err(Error::corrupt("a pool that is being made has no removed vdevs"))
    }

    fn dataset_gone(&self, _: u64) {}

    fn random(&self) -> u64 {
        self.env.guid()
    }

    fn now(&self) -> (u64, u64) {
        now(self.env)
    }

    fn pool_space(&self, _: bool) -> u64 {
        u64::MAX
    }

    fn log(&self, _: &str, _: &str, _: u64, _: &str, _: &Tx) -> Result<()> {
        // The record of the pool's creation suffices.
        Ok(())
    }
}

impl Hooks for Spa {
    fn version(&self) -> u64 {
        self.config.lock().facts().version
    }

    fn feature(&self, feature: Feature) -> Option<u64> {
        self.features.is_enabled(feature).then(|| self.features.count(feature))
    }

    fn count_feature(&self, feature: Feature, delta: i64, tx: &Tx) -> Result<()> {
        let labels = self.features.in_labels();
        self.features.count_by(feature, delta, tx)?;
        if self.features.in_labels() != labels {
            self.config.lock().change_facts(|_| ());
        }
        Ok(())
    }

    fn free(&self, bp: &Blkptr, tx: &Tx) -> Result<()> {
        self.sharing().free_block(bp, tx)
    }

    fn mark_obsolete(&self, bp: &Blkptr, tx: &Tx) -> Result<()> {
        let Some(dva) = bp.dvas().next() else { return Ok(()) };
        if self.features.is_enabled(Feature::BlockCloning) {
            return self.sharing().keep_place(u64::from(dva.vdev), tx);
        }
        self.space.mark_obsolete(&dva);
        Ok(())
    }

    fn is_held(&self, number: u64) -> bool {
        self.datasets.long_holds.has(number)
    }

    fn dataset_gone(&self, number: u64) {
        self.pool.dsl.keys.forget(number);
    }

    fn scan_moved(&self, moved: DatasetMove) -> Result<()> {
        self.scanning.moved(moved)
    }

    fn forget_errors(&self, head: u64, tx: &Tx) -> Result<()> {
        match self.features.is_active(Feature::HeadErrlog) {
            true => errlog_lists::delete_list(&self.datasets.at(tx, self), head),
            false => Ok(()),
        }
    }

    fn errors_moved(&self, from_to: (u64, u64), until: u64, tx: &Tx) -> Result<()> {
        match self.features.is_active(Feature::HeadErrlog) {
            true => errlog_lists::hand_over(&self.datasets.at(tx, self), from_to, until),
            false => Ok(()),
        }
    }

    fn random(&self) -> u64 {
        self.pool.env.guid()
    }

    fn now(&self) -> (u64, u64) {
        now(&self.pool.env)
    }

    fn pool_space(&self, netfree: bool) -> u64 {
        let slop = self.space_facts().slop();
        let space = self.space_facts().dspace().saturating_sub(self.space.checkpoint_space());
        // Operations that free space in the end may use half of the slop.
        space.saturating_sub(if netfree { slop / 2 } else { slop })
    }

    fn relieve(&self, tx: &Tx) {
        self.write_early(tx);
    }

    fn log(&self, what: &str, name: &str, number: u64, details: &str, tx: &Tx) -> Result<()> {
        let dataset = (!name.is_empty()).then(|| (name.to_owned(), number));
        let (name, text) = (what.to_owned(), details.to_owned());
        let origin = HistoryOrigin { who: 0, host: self.config.lock().facts().hostname.clone() };
        self.reports().log_history(&HistoryEvent::Internal { name, dataset, text }, &origin, tx)
    }
}

impl SpaceSource for Spa {
    fn datasets(&self) -> &DslPool {
        &self.datasets
    }

    fn synced(&self) -> u64 {
        self.txgs.synced()
    }

    fn dirty(&self) -> u64 {
        self.dirty.total()
    }

    fn reserve(&self, bytes: u64) -> (Reserved, u64) {
        self.dirty.reserve(bytes)
    }

    fn worst_sizes(&self) -> [u64; 2] {
        self.space.worst_asizes([MIB, ondisk::MIN_BLOCK_SIZE], self.txgs.synced())
    }

    fn needed_and_inflation(&self, worst: [u64; 2]) -> (u64, u64) {
        let [_, least] = worst;
        let inflation = least / ondisk::MIN_BLOCK_SIZE;
        let least_inflation = self.limits().get(Limit::AsizeInflation);
        let needed = self.dirty.needs().most_asize(worst);
        (needed, inflation.saturating_mul(COPIES_AND_METADATA).max(least_inflation))
    }

    fn deferred(&self) -> u64 {
        self.space.deferred()
    }

    fn is_freeing(&self) -> bool {
        self.activities.are_draining() || self.freeing.is_waiting()
    }

    fn sync(&self) -> Result<()> {
        Self::sync(self)
    }
}

/// The pool operations for intent logs, which don't keep the pool open.
#[derive(Debug)]
struct LogsOf(Weak<Spa>);

impl LogsOf {
    fn spa(&self) -> Result<Arc<Spa>> {
        self.0.upgrade().ok_or_else(|| Error::new(crate::Kind::Invalid, "the pool has been closed"))
    }
}

impl LogHost for LogsOf {
    fn begin(&self) -> Result<Tx> {
        let spa = self.spa()?;
        spa.multihost().check_claim()?;
        Ok(Tx::begin(&spa.txgs, &spa.dirty))
    }

    fn synced(&self) -> u64 {
        self.0.upgrade().map_or(0, |spa| spa.on_disk(spa.txgs.synced()))
    }

    fn written(&self) -> u64 {
        self.0.upgrade().map_or(0, |spa| spa.txgs.synced())
    }

    fn is_frozen(&self) -> bool {
        self.0.upgrade().is_some_and(|spa| spa.is_frozen_at(u64::MAX))
    }

    fn wait_synced(&self, txg: u64) -> Result<()> {
        self.spa()?.wait_synced(txg)
    }

    fn wait_all(&self) -> Result<()> {
        self.spa()?.sync()
    }

    fn free(&self, bp: &Blkptr, tx: &Tx) -> Result<()> {
        self.spa()?.sharing().free_block(bp, tx)
    }

    fn random(&self) -> u64 {
        self.0.upgrade().map_or(0, |spa| spa.pool.env.guid())
    }

    fn now(&self) -> Duration {
        self.0.upgrade().map_or(Duration::ZERO, |spa| spa.pool.env.clock.monotonic())
    }

    /// The feature `zilsaxattr` is in use from here on, so that the first record of an extended attribute needs no txg of its
    /// own to activate it.
    #[doc(alias = "zil_commit_activate_saxattr_feature")]
    fn begins(&self, objset: &LiveObjset, tx: &Tx) {
        let Some(spa) = self.0.upgrade() else { return };
        if objset.objset_type() == ObjsetType::Zfs
            && spa.features.is_enabled(Feature::Zilsaxattr)
            && let Some(dataset) = spa.datasets.opened(objset.id)
        {
            dataset.use_feature(Feature::Zilsaxattr, tx);
        }
    }

    fn version(&self) -> u64 {
        self.0.upgrade().map_or(0, |spa| spa.config.lock().facts().version)
    }

    fn has_log_devices(&self) -> bool {
        self.0.upgrade().is_some_and(|spa| spa.space.class_stats(MetaslabClass::Log).space > 0)
    }
}

impl IntentLogs<'_> {
    /// Returns the pool operations for intent logs.
    pub fn host(self) -> Arc<dyn LogHost> {
        Arc::new(LogsOf(Weak::clone(&self.spa.me)))
    }
}

impl BlockSharing<'_> {
    /// The totals of all dedup tables and their logs as of the last txg.
    pub fn dedup_totals(self) -> DedupTotals {
        let (dsize, ref_dsize) = self.spa.shared.dedup_totals();
        DedupTotals { dsize, ref_dsize }
    }
}

impl SpaceFacts<'_> {
    /// Bytes that datasets may refer to, all together: shared blocks count once per reference.
    #[doc(alias = "spa_get_dspace")]
    pub fn dspace(self) -> u64 {
        real_dspace(self.spa).saturating_add(self.spa.shared.saved())
    }

    /// Bytes that are kept back so that deleting always works.
    #[doc(alias = "spa_get_slop_space")]
    pub(crate) fn slop(self) -> u64 {
        slop(real_dspace(self.spa), self.spa.space.class_stats(MetaslabClass::EmbeddedLog).dspace)
    }
}

/// Deflated bytes of the normal class, without vdevs on which nothing is allocated: data overwritten
/// there needs as much space elsewhere.
fn real_dspace(spa: &Spa) -> u64 {
    spa.space.class_stats(MetaslabClass::Normal).dspace.saturating_sub(spa.space.closed_dspace())
}
