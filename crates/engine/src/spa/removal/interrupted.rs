//! Removals that a crash interrupted before they had begun on disk, or in their last step.
//!
//! A vdev that was closed to allocation for a removal that never began is used again. OpenZFS removes a log vdev in two
//! txgs: the first marks it as `removing` and takes its space maps and ZAPs, the second leaves a hole. A log vdev between
//! the two gets the hole.
//!
//! Format source: `spa_vdev_remove_log`, `vdev_passivate`, vdev_removal.c; OpenZFS 2.4.

use super::REMOVING;
use crate::error::Result;
use crate::spa::config::PoolConfig;
use crate::spa::layout::config::{TOP_ZAP, edit};
use crate::spa::pool::Pool;
use crate::spa::subjects::Removal;
use crate::spa::vdev_props::NON_ALLOCATING;
use crate::vdev::config::AllocBias;
use crate::zap::Zap;

/// Prepares the configuration of a pool that is imported: opens vdevs that nothing closes but an interrupted command, and
/// closes log vdevs that are half removed.
///
/// # Errors
/// When the MOS cannot be read.
pub(in crate::spa) fn settle_interrupted(pool: &Pool, config: &mut PoolConfig) -> Result<()> {
    for top in pool.tree().tops() {
        let Some(list) = config.top(top.id) else { continue };
        let is_set = |name: &str| list.u64(name).unwrap_or(0) != 0;
        if top.bias == AllocBias::Log && is_set(REMOVING) {
            config.set_passive(top.id, true);
            continue;
        }
        if !is_set(NON_ALLOCATING) || is_set(REMOVING) || top.is_removed() {
            continue;
        }
        // A vdev without a ZAP keeps no property: its state is taken as it is.
        let (guid, zap) = (list.u64("guid").unwrap_or(0), list.u64(TOP_ZAP).filter(|zap| *zap != 0));
        let allocating = zap.map(|zap| Zap::open(&pool.mos.object(zap)?)?.u64("allocating")).transpose()?;
        if zap.is_some() && allocating.flatten() != Some(0) {
            config.change_root(|root| {
                edit(root, guid, &mut |top| drop(top.remove(NON_ALLOCATING)));
            });
        }
    }
    Ok(())
}

impl Removal<'_> {
    /// Ends removals of log vdevs that another implementation began.
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    #[doc(alias = "spa_vdev_remove_log")]
    pub(super) fn end_of_logs(self) -> Result<()> {
        let tree = self.spa.pool.zio.tree();
        let half = |id: &u64| {
            let config = self.spa.config.lock();
            config.top(*id).is_some_and(|top| top.u64(REMOVING).unwrap_or(0) != 0)
        };
        let logs = tree.tops().filter(|top| top.bias == AllocBias::Log).map(|top| top.id).filter(half);
        // From the end, where no hole is left.
        let mut logs: Vec<u64> = logs.filter(|id| self.spa.space.bytes_in_use(*id) == 0).collect();
        logs.reverse();
        if logs.is_empty() {
            return Ok(());
        }
        self.spa.sync_task(move |spa, tx| {
            let at = spa.datasets.at(tx, spa);
            logs.iter().try_for_each(|log| spa.removal().leave_hole(&at, *log))
        })
    }
}
