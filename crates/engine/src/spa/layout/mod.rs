//! Converts a user's specification into the vdev tree of a new pool, or of vdevs added to one.
//!
//! Everything that OpenZFS would record is decided here: guids, sector shift, size, metaslab size. Entries
//! for MOS objects (metaslab arrays, ZAPs) are added by the sync that creates these.
//!
//! The allocation class of a top-level vdev (special, dedup) is not in its configuration but in its ZAP in
//! the MOS, under [`ALLOCATION_BIAS`]; only logs are marked in both.

pub mod config;
pub(crate) mod size;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blkdev::Device;
use nvpair::NvList;
use ondisk::label::{LABEL_END_SIZE, LABEL_START_SIZE, MIN_DEVICE_SIZE};
use zcommon::draid::{DraidConfig, MAX_CHILDREN};
use zcommon::features::Feature;
use zcommon::version::{
    SPA_VERSION_L2CACHE, SPA_VERSION_RAIDZ2, SPA_VERSION_RAIDZ3, SPA_VERSION_SLOGS, SPA_VERSION_SPARES,
};

use crate::error::{Error, Kind, Result};
use crate::vdev::config::AllocBias;
use crate::vdev::draid::DraidGeometry;
use crate::vdev::tree::Devices;
use size::Sectors;

/// Key of the allocation class in a top-level vdev's ZAP.
#[doc(alias = "VDEV_TOP_ZAP_ALLOCATION_BIAS")]
pub(crate) const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";

/// One device.
#[derive(Debug, Clone)]
pub struct LeafSpec {
    /// Absolute path.
    pub path: String,
    /// A disk or partition, else a file.
    pub is_disk: bool,
    /// For a disk: whether the pool owns all of it.
    pub whole_disk: Option<bool>,
    /// Name that stays when the path changes.
    pub devid: Option<String>,
    /// The device, open for writing.
    pub device: Device,
}

/// A top-level vdev.
#[derive(Debug, Clone)]
pub enum VdevSpec {
    /// One device.
    Leaf(LeafSpec),
    /// All devices alike.
    Mirror(Vec<LeafSpec>),
    /// Parity.
    Raidz {
        /// 1 to 3.
        parity: u32,
        /// The devices.
        children: Vec<LeafSpec>,
    },
    /// Declustered parity.
    Draid {
        /// Parity, data, children, spares.
        config: DraidConfig,
        /// The devices, as many as in the config.
        children: Vec<LeafSpec>,
    },
}

/// A top-level vdev and its allocation class.
#[derive(Debug, Clone)]
pub struct TopSpec {
    /// Its devices.
    pub vdev: VdevSpec,
    /// Its allocation class.
    pub class: AllocBias,
    /// Sector shift, when not to be detected.
    pub ashift: Option<u32>,
}

/// Specification of a pool.
#[derive(Debug, Clone, Default)]
pub struct PoolSpec {
    /// Top-level vdevs, in order.
    pub tops: Vec<TopSpec>,
    /// Hot spares.
    pub spares: Vec<LeafSpec>,
    /// Level-2 cache.
    pub cache: Vec<LeafSpec>,
    /// Sector shift, when not to be detected.
    pub ashift: Option<u32>,
    /// Least number of metaslabs of a vdev, when it is not the default.
    pub least_metaslabs: Option<u64>,
    /// Spares that other pools have, too: their guids by path. They keep guid and label, by which those pools find them.
    #[doc(alias = "spa_spare_exists")]
    pub shared: BTreeMap<String, u64>,
}

/// A vdev tree that was laid out.
#[derive(Debug, Default)]
pub struct TreeLayout {
    /// Top-level vdevs in order, as [`config`] has them; `metaslab_array` is 0.
    pub(crate) tops: Vec<NvList>,
    /// Allocation class of each of them.
    pub(crate) classes: Vec<AllocBias>,
    /// Entries for the MOS's list of spares, those that draids bring included.
    pub(crate) spares: Vec<NvList>,
    /// Entries for the MOS's list of cache devices.
    pub(crate) cache: Vec<NvList>,
    /// The devices by guid: leaves, spares and cache.
    pub devices: Devices,
    /// The spares among them that other pools have labelled.
    pub shared: BTreeSet<u64>,
}

impl TreeLayout {
    /// Features that these vdevs use, each with how often.
    #[doc(alias("spa_activate_allocation_classes", "spa_draid_feature_incr"))]
    pub(crate) fn features(&self) -> Vec<(Feature, i64)> {
        let classes = self.classes.iter().any(|class| matches!(class, AllocBias::Special | AllocBias::Dedup));
        let draids = self.tops.iter().filter(|top| top.str("type") == Some("draid")).count();
        vec![
            (Feature::AllocationClasses, i64::from(classes)),
            (Feature::Draid, i64::try_from(draids).unwrap_or(i64::MAX)),
        ]
    }

    /// The vdevs and devices that old pool versions do not have: what they are, and the first version with them.
    #[doc(alias("vdev_alloc", "spa_validate_aux", "vdev_raidz_init"))]
    fn versions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let parities = self.tops.iter().filter(|top| top.str("type") == Some("raidz"));
        let raidz = parities.filter_map(|top| match top.u64("nparity") {
            Some(2) => Some(("raidz2", SPA_VERSION_RAIDZ2)),
            Some(3) => Some(("raidz3", SPA_VERSION_RAIDZ3)),
            _ => None,
        });
        let others = [
            (self.classes.contains(&AllocBias::Log), ("a log", SPA_VERSION_SLOGS)),
            (!self.spares.is_empty(), ("a hot spare", SPA_VERSION_SPARES)),
            (!self.cache.is_empty(), ("a cache device", SPA_VERSION_L2CACHE)),
        ];
        raidz.chain(others.into_iter().filter_map(|(has, row)| has.then_some(row)))
    }

    /// Refuses vdevs and devices that a pool of this version does not have, or whose feature is not enabled
    /// (`is_enabled`): no other implementation would open the pool.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check_supported(&self, version: u64, is_enabled: impl Fn(Feature) -> bool) -> Result<()> {
        const REFUSED: &str = "operation not supported on this type of pool";
        if let Some((what, least)) = self.versions().find(|(_, least)| version < *least) {
            let why = format!("{REFUSED}: {what} needs pool version {least}, and this is version {version}");
            return Err(Error::unsupported(why));
        }
        match self.features().into_iter().find(|(feature, uses)| *uses > 0 && !is_enabled(*feature)) {
            None => Ok(()),
            Some(_) => Err(Error::unsupported(REFUSED)),
        }
    }

    /// The root of a pool with just these top-level vdevs.
    pub(crate) fn root(&self, pool_guid: u64, create_txg: u64) -> NvList {
        let mut root = NvList::new();
        root.add("type", "root").add("id", 0u64).add("guid", pool_guid).add("create_txg", create_txg);
        root.add("children", self.tops.clone());
        root
    }
}

impl AllocBias {
    /// The word under [`ALLOCATION_BIAS`]; none for an ordinary vdev.
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            Self::Normal => None,
            Self::Log => Some("log"),
            Self::Special => Some("special"),
            Self::Dedup => Some("dedup"),
        }
    }
}

/// Makes guids and collects devices while a pool is laid out.
struct Builder<'a> {
    guid: &'a mut dyn FnMut() -> u64,
    create_txg: u64,
    least_metaslabs: Option<u64>,
    layout: TreeLayout,
    paths: Vec<String>,
}

impl PoolSpec {
    /// Lays the pool out; `first` is the number of its first top-level vdev, 0 for a new pool. `random`
    /// returns numbers for guids.
    ///
    /// # Errors
    /// `Invalid` with a sentence for the user.
    pub fn lay_out(
        &self,
        first: u64,
        create_txg: u64,
        random: &mut dyn FnMut() -> u64,
    ) -> Result<TreeLayout> {
        if first == 0 && !self.tops.iter().any(|top| top.class == AllocBias::Normal) {
            return Err(invalid("at least one ordinary top-level vdev is needed"));
        }
        let mut used = BTreeSet::from([0]);
        let mut guid = || {
            // 0 means no guid; two alike are as good as impossible, but cheap to rule out.
            let mut next = random();
            while !used.insert(next) {
                next = next.wrapping_add(1);
            }
            next
        };
        let mut builder = Builder {
            guid: &mut guid,
            create_txg,
            least_metaslabs: self.least_metaslabs,
            layout: TreeLayout::default(),
            paths: Vec::new(),
        };
        for (id, top) in (first..).zip(&self.tops) {
            builder.top(id, top, self.ashift)?;
        }
        for spare in &self.spares {
            let known = self.shared.get(&spare.path).copied();
            builder.layout.shared.extend(known);
            let entry = builder.aux(spare, known, true, self.ashift)?;
            builder.layout.spares.push(entry);
        }
        // Devices come first: they take over before distributed spares do.
        builder.layout.spares.sort_by_key(|spare| spare.str("type") == Some("dspare"));
        for device in &self.cache {
            let entry = builder.aux(device, None, false, self.ashift)?;
            builder.layout.cache.push(entry);
        }
        Ok(builder.layout)
    }
}

impl Builder<'_> {
    fn top(&mut self, id: u64, spec: &TopSpec, ashift: Option<u32>) -> Result<()> {
        let (kind, leaves, parity) = shape(spec)?;
        let mut sectors: Option<Sectors> = None;
        let mut smallest = u64::MAX;
        for leaf in leaves {
            let at = |e: Error| e.on_vdev(&leaf.path);
            let geometry = leaf.device.geometry();
            let of_leaf = Sectors::of(&geometry);
            sectors = Some(sectors.map_or(of_leaf, |others| others.and(of_leaf)));
            smallest = smallest.min(size::leaf_asize(geometry.size).map_err(at)?);
        }
        let sectors = sectors.ok_or_else(|| invalid("a vdev needs devices"))?;
        let ashift = size::ashift(sectors, spec.ashift.or(ashift))?;
        let asize = asize(spec, ashift, smallest)?;
        let shift = match self.least_metaslabs {
            Some(least) => size::metaslab_shift_of(asize, least),
            None => size::metaslab_shift(asize),
        };

        let only = if let VdevSpec::Leaf(leaf) = &spec.vdev { Some(leaf) } else { None };
        let guid = (self.guid)();
        let mut list = NvList::new();
        list.add("type", only.map_or(kind, leaf_kind)).add("id", id).add("guid", guid);
        if let Some(leaf) = only {
            self.claim(leaf, guid)?;
            describe(&mut list, leaf);
        }
        if parity > 0 {
            list.add("nparity", u64::from(parity));
        }
        if let VdevSpec::Draid { config, .. } = &spec.vdev {
            list.add("draid_ndata", config.data).add("draid_nspares", config.spares);
            list.add("draid_ngroups", config.groups().unwrap_or(0));
        }
        list.add("metaslab_array", 0u64).add("metaslab_shift", u64::from(shift));
        list.add("ashift", u64::from(ashift)).add("asize", asize);
        list.add("is_log", u64::from(spec.class == AllocBias::Log)).add("create_txg", self.create_txg);
        if only.is_none() {
            let children = (0u64..).zip(leaves).map(|(id, leaf)| self.child(id, leaf));
            list.add("children", children.collect::<Result<Vec<_>>>()?);
        }
        config::put_in_order(&mut list);
        self.layout.tops.push(list);
        self.layout.classes.push(spec.class);
        if let VdevSpec::Draid { config, .. } = &spec.vdev {
            (0..config.spares).for_each(|number| self.distributed_spare(config, (id, guid), number, ashift));
        }
        Ok(())
    }

    fn child(&mut self, id: u64, leaf: &LeafSpec) -> Result<NvList> {
        let guid = (self.guid)();
        self.claim(leaf, guid)?;
        let mut list = NvList::new();
        list.add("type", leaf_kind(leaf)).add("id", id).add("guid", guid);
        describe(&mut list, leaf);
        list.add("create_txg", self.create_txg);
        config::put_in_order(&mut list);
        Ok(list)
    }

    /// A spare or cache device; `known` is the guid of one that another pool has.
    #[doc(alias = "vdev_label_init")]
    fn aux(
        &mut self,
        leaf: &LeafSpec,
        known: Option<u64>,
        is_spare: bool,
        forced: Option<u32>,
    ) -> Result<NvList> {
        let geometry = leaf.device.geometry();
        size::leaf_asize(geometry.size).map_err(|e| e.on_vdev(&leaf.path))?;
        let ashift = size::ashift(Sectors::of(&geometry), forced)?;
        let guid = known.unwrap_or_else(|| (self.guid)());
        self.claim(leaf, guid)?;
        let mut list = NvList::new();
        list.add("type", leaf_kind(leaf)).add("guid", guid);
        describe(&mut list, leaf);
        if is_spare {
            list.add("is_spare", 1u64);
        }
        list.add("ashift", u64::from(ashift));
        config::put_in_order(&mut list);
        Ok(list)
    }

    /// A spare made of spare space of the draid `(id, guid)`.
    #[doc(alias = "vdev_draid_spare_create")]
    fn distributed_spare(&mut self, config: &DraidConfig, draid: (u64, u64), number: u64, ashift: u32) {
        let name = zcommon::vdev::draid_spare_name(config.parity, draid.0, number);
        let mut list = NvList::new();
        list.add("type", "dspare").add("guid", (self.guid)()).add("path", name.as_str());
        list.add("top_guid", draid.1).add("spareid", number).add("whole_disk", 1u64).add("is_spare", 1u64);
        list.add("ashift", u64::from(ashift));
        self.layout.spares.push(list);
    }

    /// Each device may be used once.
    fn claim(&mut self, leaf: &LeafSpec, guid: u64) -> Result<()> {
        let mut known = self.layout.devices.values();
        if self.paths.contains(&leaf.path) || known.any(|device| Arc::ptr_eq(device, &leaf.device)) {
            return Err(invalid("the device is given twice").on_vdev(&leaf.path));
        }
        self.paths.push(leaf.path.clone());
        self.layout.devices.insert(guid, Device::clone(&leaf.device));
        Ok(())
    }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, what)
}

pub(super) fn leaf_kind(leaf: &LeafSpec) -> &'static str {
    if leaf.is_disk { "disk" } else { "file" }
}

pub(super) fn describe(list: &mut NvList, leaf: &LeafSpec) {
    list.add("path", leaf.path.as_str());
    if let Some(devid) = &leaf.devid {
        list.add("devid", devid.as_str());
    }
    if let Some(whole) = leaf.whole_disk.filter(|_| leaf.is_disk) {
        list.add("whole_disk", u64::from(whole));
    }
}

/// Kind, devices and parity of a vdev whose numbers are possible.
fn shape(spec: &TopSpec) -> Result<(&'static str, &[LeafSpec], u32)> {
    let (kind, leaves, parity): (_, &[LeafSpec], u32) = match &spec.vdev {
        VdevSpec::Leaf(leaf) => ("disk", std::slice::from_ref(leaf), 0),
        VdevSpec::Mirror(leaves) => ("mirror", leaves, 0),
        VdevSpec::Raidz { parity, children } => ("raidz", children, *parity),
        VdevSpec::Draid { config, children } => {
            ("draid", children, u32::try_from(config.parity).unwrap_or(u32::MAX))
        }
    };
    let least = match &spec.vdev {
        VdevSpec::Leaf(_) => 1,
        VdevSpec::Mirror(_) => 2,
        VdevSpec::Raidz { parity, .. } if !(1..=3).contains(parity) => {
            return Err(invalid(format!("raidz has 1 to 3 parity devices, not {parity}")));
        }
        VdevSpec::Raidz { .. } | VdevSpec::Draid { .. } => usize::try_from(parity).unwrap_or(0) + 1,
    };
    let most = usize::try_from(MAX_CHILDREN).unwrap_or(usize::MAX);
    if leaves.len() < least || (leaves.len() > most && parity > 0) {
        let name = if parity > 0 { format!("{kind}{parity}") } else { kind.to_owned() };
        let bound = if leaves.len() < least { ("at least", least) } else { ("at most", most) };
        return Err(invalid(format!("{name} takes {} {} devices, not {}", bound.0, bound.1, leaves.len())));
    }
    if spec.class == AllocBias::Log && parity > 0 {
        return Err(invalid(format!("a log can be a device or a mirror, not {kind}")));
    }
    if let VdevSpec::Draid { config, children } = &spec.vdev {
        check_draid(config, children.len())?;
    }
    Ok((kind, leaves, parity))
}

fn check_draid(config: &DraidConfig, children: usize) -> Result<()> {
    let name = config.to_string();
    name.parse::<DraidConfig>().map_err(|e| invalid(e.to_string()))?;
    if u64::try_from(children) != Ok(config.children) {
        return Err(invalid(format!("{name} takes {} devices, not {children}", config.children)));
    }
    Ok(())
}

/// Allocatable bytes of a top-level vdev whose smallest device has `smallest` usable bytes.
fn asize(spec: &TopSpec, ashift: u32, smallest: u64) -> Result<u64> {
    match &spec.vdev {
        VdevSpec::Leaf(_) | VdevSpec::Mirror(_) => Ok(smallest),
        VdevSpec::Raidz { children, .. } => {
            Ok(smallest.saturating_mul(u64::try_from(children.len()).unwrap_or(u64::MAX)))
        }
        VdevSpec::Draid { config, .. } => {
            let asize = DraidGeometry::new(ashift, *config, config.groups().unwrap_or(0))?.capacity(smallest);
            // `vdev_open` refuses a vdev whose children hold less together than the smallest device (OpenZFS 2.3).
            let least = MIN_DEVICE_SIZE - LABEL_START_SIZE - LABEL_END_SIZE;
            let what = || invalid("the devices are too small for this draid: OpenZFS would not open it");
            if asize < least { Err(what()) } else { Ok(asize) }
        }
    }
}

#[cfg(test)]
mod tests;
