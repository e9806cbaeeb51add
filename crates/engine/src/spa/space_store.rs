//! Where the allocator's space maps are kept: objects of the MOS, and the notes that lead to them.

use nvpair::{NvList, NvValue};
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos, vdev_top};
use ondisk::{Byteswap, ObjectType};
use parking_lot::Mutex;
use zcommon::features::Feature;

use super::Spa;
use super::feature_set::{FeatureSet, ZAP_METADATA};
use crate::dmu::edit::{Edit, Objects};
use crate::dmu::{LiveObjset, NewObject, Tx};
use crate::error::{Error, Result};
use crate::metaslab::{SpaceMapStore, SpaceObject};
use crate::zap::{NewZap, ZapEdit};

/// Bytes of a space map's head when it has a histogram.
const WITH_HISTOGRAM: usize = 320;
/// Block of the table of unflushed txgs.
const UNFLUSHED_BLOCK: u64 = 128 << 10;

/// The store within one sync.
pub(super) struct SpaceStore<'a> {
    pub(crate) mos: &'a LiveObjset,
    pub(crate) tx: &'a Tx,
    pub(crate) features: &'a FeatureSet,
    pub(crate) config: &'a Mutex<super::config::PoolConfig>,
    pub(crate) salt: u64,
}

impl<'a> SpaceStore<'a> {
    /// The store of a pool in syncing context.
    pub(super) fn of(spa: &'a Spa, tx: &'a Tx) -> Self {
        Self { mos: &spa.mos, tx, features: &spa.features, config: &spa.config, salt: spa.pool.env.guid() }
    }
}

impl SpaceStore<'_> {
    fn map(&self, block_size: u64, head: usize) -> Result<u64> {
        let new =
            NewObject::with_bonus(ObjectType::SPACE_MAP, block_size, ObjectType::SPACE_MAP_HEADER, head);
        if head == WITH_HISTOGRAM {
            self.features.increment(Feature::SpacemapHistogram, self.tx)?;
        }
        self.mos.within(self.tx).create(&new)
    }

    fn zap(&self, number: u64, work: impl FnOnce(&mut ZapEdit<'_>) -> Result<()>) -> Result<()> {
        let objects = self.mos.within(self.tx);
        let mut object = objects.edit(number)?;
        work(&mut ZapEdit::open(&mut *object)?)
    }

    /// The ZAP of the logs; made with the first one.
    fn logs(&self) -> Result<u64> {
        let view = self.mos.view();
        let directory = crate::zap::Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?;
        if let Some(number) = directory.u64(mos::LOG_SPACEMAP_ZAP)?.filter(|&n| n != 0) {
            return Ok(number);
        }
        let objects = self.mos.within(self.tx);
        let number = objects.create(&NewObject::plain(ZAP_METADATA, 512))?;
        ZapEdit::create(&mut *objects.edit(number)?, &NewZap { salt: self.salt, ..NewZap::default() })?;
        self.zap(MOS_DIRECTORY_OBJECT, |zap| zap.insert(mos::LOG_SPACEMAP_ZAP, number))?;
        self.features.increment(Feature::LogSpacemap, self.tx)?;
        Ok(number)
    }

    fn top_zap(&self, vdev: u64) -> Result<u64> {
        let config = self.config.lock();
        let zap = config.top(vdev).and_then(|top| top.u64("com.delphix:vdev_zap_top"));
        zap.ok_or_else(|| Error::corrupt(format!("vdev {vdev} has no ZAP")))
    }
}

impl SpaceMapStore for SpaceStore<'_> {
    fn create(&mut self, what: &SpaceObject) -> Result<u64> {
        match *what {
            SpaceObject::Map { block_size, head } => self.map(block_size, head),
            SpaceObject::Log { txg, block_size, head } => {
                let logs = self.logs()?;
                let number = self.map(block_size, head)?;
                self.zap(logs, |zap| zap.add_int_key(txg, number))?;
                Ok(number)
            }
            SpaceObject::Checkpoint { vdev, block_size, head } => {
                let number = self.map(block_size, head)?;
                self.zap(self.top_zap(vdev)?, |zap| zap.insert(vdev_top::POOL_CHECKPOINT_SM, number))?;
                Ok(number)
            }
            SpaceObject::Obsolete { vdev, block_size, head } => {
                let number = self.map(block_size, head)?;
                self.zap(self.top_zap(vdev)?, |zap| zap.insert(vdev_top::INDIRECT_OBSOLETE_SM, number))?;
                self.features.increment(Feature::ObsoleteCounts, self.tx)?;
                Ok(number)
            }
            SpaceObject::Array { vdev } => {
                let new = NewObject::plain(ObjectType::OBJECT_ARRAY, 512);
                let number = self.mos.within(self.tx).create(&new)?;
                self.config.lock().set_top(vdev, "metaslab_array", number);
                Ok(number)
            }
            SpaceObject::UnflushedTxgs { vdev } => {
                let kind = ObjectType::newtype(Byteswap::Uint64, true, false);
                let number = self.mos.within(self.tx).create(&NewObject::plain(kind, UNFLUSHED_BLOCK))?;
                self.zap(self.top_zap(vdev)?, |zap| zap.insert(vdev_top::MS_UNFLUSHED_PHYS_TXGS, number))?;
                Ok(number)
            }
        }
    }

    fn open(&mut self, object: u64) -> Result<Box<dyn Edit + '_>> {
        Ok(Box::new(self.mos.handle(object)?.edit(self.tx)))
    }

    fn free(&mut self, what: &SpaceObject, object: u64) -> Result<()> {
        let head = match *what {
            SpaceObject::Map { head, .. }
            | SpaceObject::Log { head, .. }
            | SpaceObject::Checkpoint { head, .. }
            | SpaceObject::Obsolete { head, .. } => head,
            SpaceObject::Array { .. } | SpaceObject::UnflushedTxgs { .. } => 0,
        };
        if head == WITH_HISTOGRAM {
            self.features.decrement(Feature::SpacemapHistogram, self.tx)?;
        }
        match *what {
            SpaceObject::Log { txg, .. } => {
                let logs = self.logs()?;
                self.zap(logs, |zap| zap.remove(crate::zap::int_name(txg).as_bytes()))?;
            }
            SpaceObject::Checkpoint { vdev, .. } => {
                self.zap(self.top_zap(vdev)?, |zap| zap.remove(vdev_top::POOL_CHECKPOINT_SM))?;
            }
            SpaceObject::Obsolete { vdev, .. } => {
                self.zap(self.top_zap(vdev)?, |zap| zap.remove(vdev_top::INDIRECT_OBSOLETE_SM))?;
                self.features.decrement(Feature::ObsoleteCounts, self.tx)?;
            }
            _ => {}
        }
        self.mos.within(self.tx).free(object)
    }
}

/// Sets a number in a list, in its place when it is there.
pub(super) fn set(list: &mut NvList, name: &str, value: u64) {
    match list.get_mut(name) {
        Some(old) => *old = NvValue::Uint64(value),
        None => {
            list.add(name, value);
        }
    }
}
