//! `zpool split` in the workload: the halves of the mirrors become a pool of their own, which has all that the pool had.

use std::sync::Arc;

use blkdev::{Device, FaultyDevice};
use engine::spa::split::Split;
use engine::spa::{ImportOptions, Spa, import};
use engine::vdev::config::{AllocBias, VdevConfig};

use super::spares::label_of;
use super::{Run, guid_of};
use crate::actor::step_of;
use crate::check;
use crate::image::Pages;
use crate::model::{Known, compare};
use crate::world::{self, Shape};

/// The name of the new pool.
const HALF: &str = "half";

impl Run {
    /// Whether the pool may consist of mirrors only.
    pub(super) fn has_halves(&self) -> bool {
        self.machine.shape == Shape::Mirror && !self.machine.classes
    }

    /// One leaf of each mirror leaves. All disks have to be well.
    pub(super) fn split(&mut self) -> Result<bool, String> {
        let spa = Arc::clone(&self.actor.spa);
        let tree = spa.pool.tree();
        let is_log = |top: &VdevConfig| {
            tree.top(top.id).is_some_and(|top| spa.vdevs().bias_of(&top) == AllocBias::Log)
        };
        let mut leaves = Vec::new();
        for top in tree.config.children.iter().filter(|top| !is_log(top)) {
            let children: Vec<u64> = top.children.iter().map(|child| child.guid).collect();
            leaves.extend(self.actor.pick(&children));
        }
        let names: Vec<String> = leaves.iter().map(|guid| tree.leaf_name(*guid, 0)).collect();
        let paths: Vec<String> =
            leaves.iter().filter_map(|guid| Some(tree.leaf(*guid)?.path.clone())).collect();
        self.actor.tell(format!("{names:?} are split off"));
        let wish = Split { name: HALF.into(), leaves, props: Vec::new() };
        let done = self.ask(|run| run.actor.spa.vdevs().split(wish).map(|_| ()))?;
        self.keep_needed_disks_well();
        if done {
            self.half_is_right(&paths).map_err(|why| format!("in the new pool: {why}"))?;
        }
        Ok(done)
    }

    /// The new pool can be read and written, and has the content of the old one.
    fn half_is_right(&self, paths: &[String]) -> Result<(), String> {
        let pages: Vec<Pages> = self.disks.iter().map(|disk| disk.pages()).collect();
        let disks = world::disks_of(&pages);
        let devices: Vec<Device> = world::as_devices(&disks);
        let devices: Vec<Device> =
            devices.into_iter().filter(|disk| paths.iter().any(|path| path == disk.name())).collect();
        let found = || world::found_as(&devices, HALF, world::POOL).ok_or("it is not found".to_owned());
        let pool = check::opened_from(found()?)?;
        let step = step_of(&pool).map_err(|e| e.to_string())?;
        if step != self.actor.step {
            return Err(format!("it has step {step} instead of {}", self.actor.step));
        }
        compare(&pool, &self.actor.model, &Known::default())?;
        check::whole(&pool)?;
        let options = ImportOptions { hostid: 1, hostname: "sim".into(), ..ImportOptions::default() };
        let spa = import(&world::env(self.seed), found()?, &options).map_err(|e| e.to_string())?;
        spa.sync().and_then(|()| spa.export()).map_err(|e| e.to_string())?;
        drop(spa);
        let pool = check::opened_from(found()?)?;
        compare(&pool, &self.actor.model, &Known::default())?;
        check::whole(&pool).map(|_| ())
    }
}

/// A disk has the label of the pool that was split off, although the pool still lists it: the split was cut. It leaves;
/// returns false if it stays.
pub(super) fn leave_cut_split(spa: &Spa, disk: &Arc<FaultyDevice>) -> bool {
    let of_another = label_of(disk).is_some_and(|(_, _, pool)| pool != 0 && pool != spa.guid());
    match guid_of(spa, disk).filter(|_| of_another) {
        None => false,
        // A disk whose new label was lost when it joined the pool may be one that cannot leave.
        Some(guid) => spa.disks().detach(guid).is_ok(),
    }
}
