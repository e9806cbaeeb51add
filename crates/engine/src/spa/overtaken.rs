//! Older states whose blocks an expansion has moved since.
//!
//! A raidz that is expanded reads every block where the state's position has it. Once a newer state has copied more, those
//! places hold other sectors. A state from before that has its metadata only by luck, and hardly any of its data.
//!
//! Differs from OpenZFS, whose `zpool import -T` goes back to such a state if its metadata can be read, and overwrites the newest
//! state, which is whole.

use super::pool::Pool;
use super::source::ImportSource;
use crate::error::{Error, Kind};
use crate::vdev::config::{Kind as VdevKind, VdevConfig};
use crate::vdev::raidz_expand::ReflowState;

/// Why the state that the pool was opened at cannot be had back whole: the newest state of the source has moved blocks of it.
pub fn overtaken(source: &ImportSource, pool: &Pool) -> Option<Error> {
    let txg = pool.uberblock.txg;
    let newest = source.uberblocks.iter().map(|found| found.uberblock).max_by_key(|found| found.txg)?;
    if newest.txg <= txg {
        return None;
    }
    let position = |vdev: &VdevConfig, info: u64| {
        let at = ReflowState::from_uberblock(info).offset;
        (vdev.expand_txgs.len(), if vdev.expanding { at } else { 0 })
    };
    let labels = VdevConfig::parse(source.config.nvlist("vdev_tree")?).ok()?;
    let tree = pool.tree();
    let is_moved = |old: &&VdevConfig| {
        let now = labels.children.iter().find(|now| now.guid == old.guid && now.kind == VdevKind::Raidz);
        let now = now.map(|now| position(now, newest.raidz_reflow_info));
        now.is_some_and(|now| now > position(old, pool.uberblock.raidz_reflow_info))
    };
    let old = tree.config.children.iter().find(is_moved)?;
    let name = tree.top(old.id).map_or_else(String::new, |top| top.name.clone());
    let what = format!(
        "the expansion of {name} has moved blocks since txg {txg}: 'zpool import -o readonly=on -T {txg}' shows the files that are left"
    );
    Some(Error::new(Kind::Invalid, what))
}
