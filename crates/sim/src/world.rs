//! Clock, randomness, threads and disks of a simulated machine.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blkdev::Device;
use engine::Result;
use engine::env::{Env, SeededSecrets};
use engine::memory::{Limit, Memory};
use engine::spa::create::FillRoot;
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{ImportSource, NewPool, Spa, create};
use engine::taskq::Inline;
use engine::vdev::config::AllocBias;
use parking_lot::Mutex;
use stdx::clock::Clock;
use stdx::rng::Rng;
use zcommon::draid::DraidConfig;
use zcommon::features::{Feature, of_openzfs_2_3};
use zpl::Time;
use zpl::write::{NewFs, create_fs};
use zutil::discover::from_device;
use zutil::{PoolCandidate, search};

use crate::disk::{Disk, Record};
use crate::image::Pages;

/// Bytes of a simulated disk.
pub const DISK_SIZE: u64 = 64 << 20;
/// Bytes that a disk gains when it grows: more than two metaslabs.
pub const GROWTH: u64 = 40 << 20;
/// The pool's name.
pub const POOL: &str = "sim";
/// The start of the simulated time, in seconds since 1970.
const BEGIN: i64 = 1_700_000_000;

/// A clock that advances by a millisecond on each query.
#[derive(Debug, Default)]
pub struct SimClock(AtomicU64);

impl Clock for SimClock {
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn wall(&self) -> (i64, u32) {
        let millis = self.0.fetch_add(1, Ordering::Relaxed);
        (BEGIN + i64::try_from(millis / 1000).unwrap_or(0), 0)
    }
}

/// An environment without threads whose every choice follows from `seed`.
pub fn env(seed: u64) -> Env {
    let memory = Memory::of_size(16 << 20);
    // Small cache devices have log blocks, too.
    let set = memory.limits.set(Limit::L2RebuildMinSize, 0);
    debug_assert!(set.is_ok(), "0 is allowed");
    Env {
        clock: Arc::new(SimClock::default()),
        executor: Arc::new(Inline::default()),
        random: Arc::new(Mutex::new(Rng::new(seed))),
        secrets: Arc::new(SeededSecrets(Mutex::new(Rng::new(seed ^ u64::MAX)))),
        memory: Arc::new(memory),
    }
}

/// The layout of the pool's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One disk.
    Single,
    /// Two disks, each a vdev.
    Stripe,
    /// A mirror of two disks.
    Mirror,
    /// Parity over three disks more than the parity.
    Raidz(u32),
    /// Two data and one parity over five disks, with the space of one as a spare.
    Draid,
}

/// The layout of [`Shape::Draid`].
const DRAID: DraidConfig = DraidConfig { parity: 1, data: 2, children: 5, spares: 1 };

impl Shape {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Single,
        Self::Stripe,
        Self::Mirror,
        Self::Raidz(1),
        Self::Raidz(2),
        Self::Raidz(3),
        Self::Draid,
    ];

    /// Disks that it needs.
    pub fn disks(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Stripe | Self::Mirror => 2,
            Self::Raidz(parity) => 3 + usize::try_from(parity).unwrap_or(0),
            Self::Draid => 5,
        }
    }

    /// Number of disks that may fail without loss.
    pub fn spare(self) -> usize {
        match self {
            Self::Single | Self::Stripe => 0,
            Self::Mirror | Self::Draid => 1,
            Self::Raidz(parity) => usize::try_from(parity).unwrap_or(0),
        }
    }

    fn specs(self, leaves: Vec<LeafSpec>) -> Vec<VdevSpec> {
        match self {
            Self::Single | Self::Stripe => leaves.into_iter().map(VdevSpec::Leaf).collect(),
            Self::Mirror => vec![VdevSpec::Mirror(leaves)],
            Self::Raidz(parity) => vec![VdevSpec::Raidz { parity, children: leaves }],
            Self::Draid => vec![VdevSpec::Draid { config: DRAID, children: leaves }],
        }
    }
}

/// A pool's devices and the mode of its space maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Layout of the data.
    pub shape: Shape,
    /// A disk of its own for intent logs.
    pub log_device: bool,
    /// Disks of their own for metadata and small blocks, and for dedup tables.
    pub classes: bool,
    /// Changes of space maps go to a log first (feature `log_spacemap`).
    pub log_maps: bool,
    /// Its disks grow in the middle of the workload.
    pub grows: bool,
    /// The minimum ashift, if it is not taken from the disks.
    pub ashift: Option<u32>,
}

impl From<Shape> for Machine {
    fn from(shape: Shape) -> Self {
        Self { shape, log_device: false, classes: false, log_maps: true, grows: false, ashift: None }
    }
}

impl Machine {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let forms = [(false, false, true), (true, false, false), (true, true, true), (false, true, false)];
        forms.into_iter().flat_map(|(log_device, classes, log_maps)| {
            Shape::ALL.into_iter().map(move |shape| Self {
                shape,
                log_device,
                classes,
                log_maps,
                grows: false,
                ashift: None,
            })
        })
    }

    /// Disks that it needs.
    pub fn disks(self) -> usize {
        self.shape.disks() + if self.classes { 2 } else { 0 } + usize::from(self.log_device)
    }

    /// Its disks, empty. OpenZFS requires more space for a draid than for others.
    pub fn blank(self) -> Vec<Pages> {
        let size = if self.shape == Shape::Draid { DISK_SIZE + (32 << 20) } else { DISK_SIZE };
        let more = if self.grows { GROWTH } else { 0 };
        vec![Pages::empty(size + more); self.disks()]
    }

    fn features(self) -> Vec<Feature> {
        of_openzfs_2_3()
            .into_iter()
            .filter(|f| self.log_maps || !matches!(f, Feature::LogSpacemap | Feature::FastDedup))
            .collect()
    }
}

fn leaf(device: Device) -> LeafSpec {
    let path = device.name().to_owned();
    LeafSpec { path, is_disk: false, whole_disk: None, devid: None, device }
}

/// Properties of a new file system.
pub fn new_fs(env: &Env) -> NewFs {
    NewFs::new(Time { sec: env.clock.wall().0, nsec: 0 }, env.guid())
}

/// A new pool whose root file system is empty.
pub fn create_pool(env: &Env, machine: Machine, devices: &[Device]) -> Result<Arc<Spa>> {
    // As OpenZFS creates a pool's root: no feature is enabled yet at that moment.
    let fs = NewFs { projects: false, ..new_fs(env) };
    let more = [Feature::PhysicalRewrite];
    pool_on(env, (POOL, machine), devices.to_vec(), &more, &|objset, tx| create_fs(objset, tx, &fs))
}

/// A new pool of that name on `devices`, with OpenZFS 2.3's features and `more`.
pub fn pool_on(
    env: &Env,
    (name, machine): (&str, impl Into<Machine>),
    devices: Vec<Device>,
    more: &[Feature],
    fill_root: FillRoot<'_>,
) -> Result<Arc<Spa>> {
    let machine = machine.into();
    let mut leaves: Vec<LeafSpec> = devices.into_iter().map(leaf).collect();
    let mut others = Vec::new();
    let classes = if machine.classes { [AllocBias::Special, AllocBias::Dedup].as_slice() } else { &[] };
    for class in classes.iter().chain(machine.log_device.then_some(&AllocBias::Log)) {
        others.extend(leaves.pop().map(|leaf| (VdevSpec::Leaf(leaf), *class)));
    }
    let data = machine.shape.specs(leaves).into_iter().map(|vdev| (vdev, AllocBias::Normal));
    let top = |(vdev, class)| TopSpec { vdev, class, ashift: None };
    let tops = data.chain(others).map(top).collect();
    let spec = PoolSpec { tops, ashift: machine.ashift, ..PoolSpec::default() };
    let layout = spec.lay_out(0, engine::txg::INITIAL, &mut || env.guid())?;
    let new = NewPool {
        name: name.into(),
        label_name: None,
        version: 5000,
        features: machine.features().into_iter().chain(more.iter().copied()).collect(),
        layout,
        hostid: 1,
        hostname: "sim".into(),
        command: format!("zpool create {name}"),
    };
    create(env, new, fill_root)
}

/// A new pool on recorded disks.
pub fn new_pool(env: &Env, machine: Machine, record: &Arc<Record>) -> Result<(Arc<Spa>, Vec<Arc<Disk>>)> {
    let disks: Vec<Arc<Disk>> = recorded(&machine.blank(), record);
    Ok((create_pool(env, machine, &as_devices(&disks))?, disks))
}

/// Disks with the content of an image, with a record of their requests.
pub fn recorded(images: &[Pages], record: &Arc<Record>) -> Vec<Arc<Disk>> {
    let disk = |(n, pages): (usize, &Pages)| Disk::over(n, pages.clone(), Some(Arc::clone(record)));
    images.iter().enumerate().map(disk).collect()
}

/// Disks with the content of an image.
pub fn disks_of(images: &[Pages]) -> Vec<Arc<Disk>> {
    images.iter().enumerate().map(|(n, pages)| Disk::over(n, pages.clone(), None)).collect()
}

/// The disks as devices of the engine.
pub fn as_devices(disks: &[Arc<Disk>]) -> Vec<Device> {
    disks.iter().map(|disk| Arc::clone(disk) as Device).collect()
}

/// The import source of the pool found on devices, of [`POOL`] if there are several; `None` if there is none.
pub fn found(devices: &[Device]) -> Option<ImportSource> {
    found_by(devices, |candidates| {
        let at = candidates.iter().position(|candidate| candidate.name == POOL).unwrap_or(0);
        (at < candidates.len()).then(|| candidates.swap_remove(at))
    })
}

/// The import source of the pool `name` on devices, to be opened as pool `other`.
pub fn found_as(devices: &[Device], name: &str, other: &str) -> Option<ImportSource> {
    let source = found_by(devices, |candidates| candidates.extract_if(.., |c| c.name == name).next())?;
    Some(ImportSource { name: other.into(), ..source })
}

fn found_by(
    devices: &[Device],
    choose: impl FnOnce(&mut Vec<PoolCandidate>) -> Option<PoolCandidate>,
) -> Option<ImportSource> {
    let labels: Vec<_> = (0u64..).zip(devices).map(|(n, device)| from_device(&**device, n)).collect();
    let candidate = choose(&mut search(&labels))?;
    let mut by_guid: HashMap<u64, Device> = HashMap::new();
    for member in candidate.members.values() {
        if let Some(device) = devices.iter().find(|d| Path::new(d.name()) == member.path) {
            by_guid.insert(member.guid, Arc::clone(device));
        }
    }
    let opened = candidate.with_devices(by_guid);
    Some(zutil::import::gathered(&candidate, opened))
}
