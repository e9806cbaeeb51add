//! Clock, randomness, threads and disks of a simulated machine.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blkdev::Device;
use engine::Result;
use engine::env::{Env, SeededSecrets};
use engine::spa::create::FillRoot;
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{ImportSource, NewPool, Spa, create};
use engine::taskq::Inline;
use engine::vdev::config::AllocBias;
use parking_lot::Mutex;
use stdx::clock::Clock;
use stdx::rng::Rng;
use zcommon::features::{FEATURES, Feature};
use zutil::discover::from_device;
use zutil::search;

use crate::disk::{Disk, Record};
use crate::image::Pages;

/// Bytes of a simulated disk.
pub const DISK_SIZE: u64 = 64 << 20;
/// The pool's name.
pub const POOL: &str = "sim";

/// A clock that goes on by a millisecond whenever somebody looks.
#[derive(Debug, Default)]
pub struct SimClock(AtomicU64);

impl Clock for SimClock {
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn wall(&self) -> (i64, u32) {
        let millis = self.0.fetch_add(1, Ordering::Relaxed);
        (1_700_000_000 + i64::try_from(millis / 1000).unwrap_or(0), 0)
    }
}

/// An environment without threads whose every choice follows from `seed`.
pub fn env(seed: u64) -> Env {
    Env {
        clock: Arc::new(SimClock::default()),
        executor: Arc::new(Inline::default()),
        random: Arc::new(Mutex::new(Rng::new(seed))),
        secrets: Arc::new(SeededSecrets(Mutex::new(Rng::new(seed ^ u64::MAX)))),
        arc_max: 16 << 20,
    }
}

/// What the pool's top-level vdev is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One disk.
    Single,
    /// Two disks alike.
    Mirror,
    /// Parity over four disks.
    Raidz(u32),
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Single, Self::Mirror, Self::Raidz(1), Self::Raidz(2), Self::Raidz(3)];

    /// Disks that it needs.
    pub fn disks(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Mirror => 2,
            Self::Raidz(parity) => 3 + usize::try_from(parity).unwrap_or(0),
        }
    }

    fn spec(self, mut leaves: Vec<LeafSpec>) -> Option<VdevSpec> {
        Some(match self {
            Self::Single => VdevSpec::Leaf(leaves.pop()?),
            Self::Mirror => VdevSpec::Mirror(leaves),
            Self::Raidz(parity) => VdevSpec::Raidz { parity, children: leaves },
        })
    }
}

/// What OpenZFS 2.3 enables.
pub fn features() -> Vec<Feature> {
    let newer = ["physical_rewrite", "dynamic_gang_header", "block_cloning_endian"];
    FEATURES.iter().copied().filter(|f| !newer.contains(&f.info().name)).collect()
}

/// A new pool on recorded disks.
pub fn new_pool(env: &Env, shape: Shape, record: &Arc<Record>) -> Result<(Arc<Spa>, Vec<Arc<Disk>>)> {
    let disks: Vec<Arc<Disk>> = (0..shape.disks()).map(|n| Disk::new(n, DISK_SIZE, record)).collect();
    let devices = disks.iter().map(|disk| Arc::clone(disk) as Device).collect();
    let spa = pool_on(env, (POOL, shape), devices, &crate::workload::fill_root)?;
    Ok((spa, disks))
}

/// A new pool of that name and shape on `devices`.
pub fn pool_on(
    env: &Env,
    (name, shape): (&str, Shape),
    devices: Vec<Device>,
    fill_root: FillRoot<'_>,
) -> Result<Arc<Spa>> {
    let leaf = |device: Device| {
        let path = device.name().to_owned();
        LeafSpec { path, is_disk: false, whole_disk: None, devid: None, device }
    };
    let vdev = shape.spec(devices.into_iter().map(leaf).collect());
    let tops =
        vdev.into_iter().map(|vdev| TopSpec { vdev, class: AllocBias::Normal, ashift: None }).collect();
    let spec = PoolSpec { tops, ..PoolSpec::default() };
    let layout = spec.lay_out(0, engine::txg::INITIAL, &mut || env.guid())?;
    let new = NewPool {
        name: name.into(),
        version: 5000,
        features: features(),
        layout,
        hostid: 1,
        hostname: "sim".into(),
        command: format!("zpool create {name}"),
    };
    create(env, new, fill_root)
}

/// What an import finds on an image; `None` when there is no pool.
pub fn found(images: &[Pages]) -> Option<ImportSource> {
    let disks: Vec<Arc<Disk>> =
        images.iter().enumerate().map(|(n, pages)| Disk::over(n, DISK_SIZE, pages.clone(), None)).collect();
    let devices: Vec<_> = (0u64..).zip(&disks).map(|(n, disk)| from_device(&**disk, n)).collect();
    let candidate = search(&devices).into_iter().next()?;
    let mut by_guid: HashMap<u64, Device> = HashMap::new();
    for member in candidate.members.values() {
        let disk =
            disks.iter().find(|d| std::path::Path::new(blkdev::BlockDevice::name(&***d)) == member.path);
        if let Some(disk) = disk {
            by_guid.insert(member.guid, Arc::clone(disk) as Device);
        }
    }
    let opened = candidate.with_devices(by_guid);
    Some(zutil::import::gathered(&candidate, opened))
}
