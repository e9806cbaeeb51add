//! Hot spares and cache devices in the workload: they come and go, spares take over and return, and blocks are read from
//! cache devices, which may misbehave in any way.

use std::sync::Arc;

use blkdev::{BlockDevice, Device, Fault, FaultyDevice};
use engine::memory::stats::L2;
use engine::spa::Spa;
use engine::spa::layout::PoolSpec;
use engine::spa::sparing::SpareSource;
use engine::vdev::config::{Kind, VdevConfig};
use zcommon::vdev::PoolState;
use zutil::discover::from_device;

use super::Run;
use super::jobs::spec_of;

/// Rounds of feeding after the pool was read.
const FEEDS: usize = 4;

/// The content of the best label of a disk: the state, and the guids of the disk and of its pool.
pub(super) fn label_of(disk: &Arc<FaultyDevice>) -> Option<(PoolState, u64, u64)> {
    let found = from_device(&**disk, 0);
    let label = found.labels.best()?;
    let state = label.u64("state").and_then(PoolState::from_number)?;
    Some((state, label.u64("guid").unwrap_or(0), label.u64("pool_guid").unwrap_or(0)))
}

/// The disks of the machine, from which the pool gets its spares.
#[derive(Debug)]
struct Shelf(Vec<Arc<FaultyDevice>>);

impl SpareSource for Shelf {
    fn device(&self, guid: u64, path: &str) -> Option<Device> {
        let disk = self.0.iter().find(|disk| disk.name() == path)?;
        let is_free = label_of(disk).is_some_and(|(state, own, _)| (state, own) == (PoolState::Spare, guid));
        is_free.then(|| Arc::clone(disk) as Device)
    }
}

/// `spare` vdevs of the pool: the guids of their leaves, the original first.
pub(super) fn pairs(spa: &Spa) -> Vec<Vec<u64>> {
    let tree = spa.pool.tree();
    let all = tree.config.children.iter().flat_map(VdevConfig::walk);
    let spares = all.filter(|vdev| vdev.kind == Kind::Spare);
    spares.map(|vdev| vdev.children.iter().map(|child| child.guid).collect()).collect()
}

impl Run {
    /// The actions of a host after an import: spares take over by themselves, and cache devices are used.
    pub(super) fn equip(&mut self) -> Result<(), String> {
        let spa = Arc::clone(&self.actor.spa);
        spa.spares().set(Arc::new(Shelf(self.faulty.clone())));
        for entry in spa.caches().entries().map_err(|e| e.to_string())? {
            let (guid, path) = (entry.u64("guid").unwrap_or(0), entry.str("path").unwrap_or_default());
            let Some(disk) = self.faulty.iter().find(|disk| disk.name() == path).cloned() else { continue };
            let is_own =
                label_of(&disk).is_some_and(|(state, own, _)| (state, own) == (PoolState::L2cache, guid));
            if is_own && spa.caches().use_device(guid, path, disk as Device) {
                self.count("cache device after a restart");
            }
        }
        Ok(())
    }

    /// Some pools begin with a spare or a cache device.
    pub(super) fn stock(&mut self) -> Result<(), String> {
        if self.random.below(2) == 0 {
            self.add_spare()?;
        }
        if self.random.below(2) == 0 {
            self.add_cache()?;
        }
        Ok(())
    }

    /// Counts spares that take over and return.
    pub(super) fn watch_spares(&mut self) {
        let now = !pairs(&self.actor.spa).is_empty();
        match (std::mem::replace(&mut self.is_spared, now), now) {
            (false, true) => self.count("spare in use"),
            (true, false) => self.count("spare out of use"),
            _ => {}
        }
    }

    pub(super) fn add_spare(&mut self) -> Result<bool, String> {
        let Some(disk) = self.idle() else { return Ok(false) };
        disk.clear();
        self.actor.tell(format!("{} becomes a spare", disk.name()));
        let spec = PoolSpec { spares: vec![spec_of(disk)], ..PoolSpec::default() };
        self.ask(|run| run.actor.spa.vdevs().add(spec, true))
    }

    pub(super) fn remove_spare(&mut self) -> Result<bool, String> {
        let entries = self.actor.spa.spares().entries().map_err(|e| e.to_string())?;
        let spares: Vec<u64> = entries.iter().filter_map(|entry| entry.u64("guid")).collect();
        let Some(spare) = self.actor.pick(&spares) else { return Ok(false) };
        self.actor.tell(format!("spare {spare} is removed"));
        self.ask(|run| run.actor.spa.removal().remove(spare))
    }

    /// A spare in use leaves, or the disk for which it stands in.
    pub(super) fn detach_of_pair(&mut self) -> Result<bool, String> {
        let leaves: Vec<u64> = pairs(&self.actor.spa).into_iter().flatten().collect();
        let tree = self.actor.spa.pool.tree();
        let leaves: Vec<u64> = leaves.into_iter().filter(|guid| tree.leaf(*guid).is_some()).collect();
        let Some(leaf) = self.actor.pick(&leaves) else { return Ok(false) };
        self.actor.tell(format!("{} is detached from its pair", tree.leaf_name(leaf, 0)));
        let done = self.ask(|run| run.actor.spa.disks().detach(leaf));
        self.keep_needed_disks_well();
        done
    }

    pub(super) fn add_cache(&mut self) -> Result<bool, String> {
        let Some(disk) = self.idle() else { return Ok(false) };
        disk.clear();
        self.actor.tell(format!("{} becomes a cache device", disk.name()));
        let spec = PoolSpec { cache: vec![spec_of(disk)], ..PoolSpec::default() };
        self.ask(|run| run.actor.spa.vdevs().add(spec, true))
    }

    pub(super) fn remove_cache(&mut self) -> Result<bool, String> {
        let entries = self.actor.spa.caches().entries().map_err(|e| e.to_string())?;
        let caches: Vec<u64> = entries.iter().filter_map(|entry| entry.u64("guid")).collect();
        let Some(cache) = self.actor.pick(&caches) else { return Ok(false) };
        self.actor.tell(format!("cache device {cache} is removed"));
        self.ask(|run| run.actor.spa.removal().remove(cache))
    }

    /// Cache devices get the blocks that reads find, which are then read from there; one of the devices may misbehave.
    pub(super) fn use_cache(&mut self) -> Result<bool, String> {
        let spa = Arc::clone(&self.actor.spa);
        let used: Vec<String> =
            spa.caches().devices().into_iter().map(|cache| cache.leaf.path.clone()).collect();
        let (Some(l2), Some(path)) = (spa.caches().l2arc(), self.actor.pick(&used)) else { return Ok(false) };
        self.actor.tell("all is read past the memory, twice".into());
        let hits = || spa.pool.env.memory.stats.second.get(L2::Hits);
        let before = hits();
        for _ in 0..2 {
            l2.settle();
            spa.pool.arc.forget_all();
            self.look()?;
            for _ in 0..FEEDS {
                spa.background().run_steps();
                l2.settle();
            }
            self.hurt_cache(&path);
        }
        if hits() > before {
            self.count("blocks from a cache device");
        }
        Ok(true)
    }

    fn hurt_cache(&mut self, path: &str) {
        let Some(disk) = self.faulty.iter().find(|disk| disk.name() == path).map(Arc::clone) else { return };
        let size = disk.geometry().size;
        let fault = match self.random.below(10) {
            0 => Fault::BitRot { range: 0..size, every: 1 << (4 + self.random.below(16)) },
            1 => Fault::LostWrites(0..size),
            2 => Fault::Torn(0..size),
            3 => Fault::Flaky(200),
            4 => Fault::Dead,
            5 => return disk.clear(),
            _ => return,
        };
        self.actor.tell(format!("{path} does {fault:?}"));
        disk.inject(fault);
        self.course.faults += 1;
    }

    /// No spare is in use any more: all disks are well.
    pub(super) fn spares_are_back(&self) -> Result<(), String> {
        let spa = &self.actor.spa;
        let tree = spa.pool.tree();
        match pairs(spa).first() {
            None => Ok(()),
            Some(pair) => {
                let names: Vec<String> = pair.iter().map(|guid| tree.leaf_name(*guid, 0)).collect();
                Err(format!("a spare has not returned: {names:?}"))
            }
        }
    }
}
