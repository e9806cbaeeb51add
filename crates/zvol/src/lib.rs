//! Volumes: datasets that hold a block device.
//!
//! Object 1 is the device's bytes, object 2 a ZAP with its `size`. Bytes that were never written or were
//! discarded is a hole and reads as zeros. Source: zvol.c, OpenZFS 2.3.

mod create;
mod live;
pub mod replay;

use std::sync::Arc;

pub use create::{check, create, reservation};
pub use live::{LiveVolume, open, replay_all};

use engine::dmu::prefetch::Prefetch;
use engine::dmu::{Content, Object, Objset, Span, Unreadable};
use engine::dsl::Dataset;
use engine::zap::Zap;
use engine::zil::in_memory::{MemoryReplay, WithLog};
use engine::{Error, Result};
use ondisk::names::{ZVOL_OBJECT, ZVOL_ZAP_OBJECT};
use stdx::Buf;

/// A volume open for reading.
#[derive(Debug)]
pub struct Volume {
    /// Name of the dataset.
    pub name: String,
    /// Guid of the dataset.
    pub guid: u64,
    /// Bytes of the device.
    pub size: u64,
    object: Object,
    /// The object set with what the intent log holds, which `object` is in.
    log: Option<WithLog>,
}

impl Volume {
    /// Opens the volume in `dataset` (a head or a snapshot). `Unsupported` for a file system,
    /// `KeyMissing` for an encrypted one without its key.
    ///
    /// Changes in the intent log beyond the newest txg are included, too (see [`engine::zil::in_memory`]);
    /// [`Volume::open_committed`] leaves them out.
    pub fn open(dataset: &Dataset) -> Result<Arc<Self>> {
        let open = || -> Result<Self> {
            let objset = dataset.objset()?;
            match replay::with_log(dataset, &objset) {
                Some(log) => Self::load(dataset, log.objset.view(), Some(log)),
                None => Self::load(dataset, objset, None),
            }
        };
        open().map(Arc::new).map_err(|e| e.in_dataset(&dataset.name))
    }

    /// As [`Volume::open`], but exactly as the newest txg left it.
    pub fn open_committed(dataset: &Dataset) -> Result<Arc<Self>> {
        let open = || Self::load(dataset, dataset.objset()?, None);
        open().map(Arc::new).map_err(|e| e.in_dataset(&dataset.name))
    }

    /// The in-memory replay of the intent log; `None` when there was none.
    pub fn replayed(&self) -> Option<&MemoryReplay> {
        self.log.as_ref().map(|log| &log.replayed)
    }

    fn load(dataset: &Dataset, objset: Arc<Objset>, log: Option<WithLog>) -> Result<Self> {
        if objset.phys.objset_type != ondisk::ObjsetType::Zvol {
            return Err(Error::unsupported(format!("not a volume but {}", objset.phys.objset_type.name())));
        }
        let properties = Zap::open(&objset.object(ZVOL_ZAP_OBJECT)?)?;
        let size = properties.need("size")?;
        let object = objset.object(ZVOL_OBJECT)?;
        Ok(Self { name: dataset.name.clone(), guid: dataset.phys.guid, size, object, log })
    }

    /// Bytes of a block (`volblocksize`).
    pub fn block_size(&self) -> u64 {
        self.object.dnode.datablksz()
    }

    /// Space it takes, in bytes.
    pub fn used(&self) -> u64 {
        self.object.dnode.used_bytes()
    }

    fn content(&self) -> Content<'_> {
        Content::new(&self.object, self.size)
    }

    /// Fills `out` from `offset`; how many bytes there were before the end of the device.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.content().read_at(offset, out).map_err(|e| e.in_dataset(&self.name))
    }

    /// As [`Volume::read_at`], but continues past unreadable ranges: they are zeros in `out` and listed.
    pub fn read_lossy(&self, offset: u64, out: &mut [u8]) -> (usize, Vec<Unreadable>) {
        let (len, mut bad) = self.content().read_lossy(offset, out);
        for u in &mut bad {
            u.error = u.error.clone().in_dataset(&self.name);
        }
        (len, bad)
    }

    /// A window of at most `max` bytes from `offset`, without copying. Empty at the end.
    pub fn chunk(&self, offset: u64, max: usize) -> Result<Buf> {
        self.content().chunk(offset, max).map_err(|e| e.in_dataset(&self.name))
    }

    /// The span (data, hole, or not known) that starts at `offset`; `None` at the end.
    pub fn span(&self, offset: u64, end: u64) -> Option<Span> {
        self.content().span(offset, end)
    }

    /// Announces a coming read to `prefetch`, so that sequential readers get read-ahead.
    pub fn read_ahead(&self, prefetch: &mut Prefetch, offset: u64, len: u64) {
        prefetch.observe(&self.object, offset, len.min(self.size.saturating_sub(offset)));
    }
}
