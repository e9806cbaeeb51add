//! The vdev tree as a config nvlist describes it, checked.
//!
//! Format source: `vdev_config_generate`, OpenZFS 2.3; key names in fs/zfs.h (`ZPOOL_CONFIG_*`).

use nvpair::NvList;
use zcommon::draid::DraidConfig;
pub use zcommon::vdev::VdevKind as Kind;
use zcommon::vdev::interior_name;

use crate::error::{Error, Result};

/// Most vdevs that a config may hold in all; far above any real pool.
const MAX_VDEVS: usize = 1 << 16;
/// Deepest nesting: root, top, spare, replacing, leaf, and some.
const MAX_DEPTH: usize = 8;

/// Which allocation class a top-level vdev serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllocBias {
    /// Ordinary data.
    Normal,
    /// The intent log.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

/// One vdev of a config: the parsed fields that reading needs, and the complete nvlist.
#[derive(Debug, Clone)]
pub struct VdevConfig {
    /// Its type.
    pub kind: Kind,
    /// Index among its siblings, as recorded.
    pub id: u64,
    /// Its guid; 0 for a hole.
    pub guid: u64,
    /// Where its device was last seen.
    pub path: Option<String>,
    /// Sector shift (top-level vdevs).
    pub ashift: u32,
    /// Allocatable bytes, all children together (top-level vdevs).
    pub asize: u64,
    /// Parity disks (raidz, draid).
    pub nparity: u32,
    /// Allocation class.
    pub(crate) bias: AllocBias,
    /// MOS object holding the space map numbers, 0 when none.
    pub metaslab_array: u64,
    /// Metaslab size as a shift.
    pub metaslab_shift: u32,
    /// MOS object of the leaf's DTL, 0 when none.
    pub dtl_object: u64,
    /// MOS ZAP of the top-level vdev, 0 when none.
    pub top_zap: u64,
    /// Indirect mapping object, 0 when none.
    pub indirect_object: u64,
    /// Indirect births object, 0 when none.
    pub indirect_births: u64,
    /// A removal or expansion of this vdev is under way.
    pub removing: bool,
    /// Raidz expansion under way.
    pub expanding: bool,
    /// Txgs at which the raidz was expanded, oldest first.
    pub(crate) expand_txgs: Vec<u64>,
    /// draid: its numbers.
    pub(crate) draid: Option<DraidConfig>,
    /// draid: groups per pattern of rows.
    pub(crate) draid_groups: u32,
    /// dspare: guid of the draid it belongs to and which spare it is.
    pub(crate) spare_of: Option<(u64, u32)>,
    /// Administratively offline.
    pub offline: bool,
    /// Its children.
    pub children: Vec<VdevConfig>,
    /// Everything as recorded.
    pub nvlist: NvList,
}

impl VdevConfig {
    /// Reads a `vdev_tree` nvlist.
    pub fn parse(list: &NvList) -> Result<Self> {
        let mut budget = MAX_VDEVS;
        parse(list, 0, &mut budget)
    }

    /// This vdev and all below it, parents first.
    pub fn walk(&self) -> Vec<&VdevConfig> {
        let mut all = vec![self];
        let mut next = 0;
        while let Some(vdev) = all.get(next).copied() {
            all.extend(vdev.children.iter());
            next += 1;
        }
        all
    }

    /// The name that status lists show: `raidz2-0`, `mirror-1`, or the device's path.
    pub(crate) fn name(&self) -> String {
        match self.kind {
            Kind::Disk | Kind::File => self.path.clone().unwrap_or_else(|| self.guid.to_string()),
            Kind::Root | Kind::DraidSpare => self.path.clone().unwrap_or_else(|| self.kind.name().to_owned()),
            kind => interior_name(kind, Some(u64::from(self.nparity)), self.draid, self.id),
        }
    }
}

/// Largest sector of a vdev, as a power of two.
#[doc(alias = "ASHIFT_MAX")]
const MAX_ASHIFT: u32 = 16;

fn parse(list: &NvList, depth: usize, budget: &mut usize) -> Result<VdevConfig> {
    if depth > MAX_DEPTH {
        return Err(Error::corrupt("the vdev tree is nested too deeply"));
    }
    *budget = budget.checked_sub(1).ok_or_else(|| Error::corrupt("the vdev tree has too many vdevs"))?;
    let number = |name: &str| list.u64(name).unwrap_or(0);
    let small = |name: &str| u32::try_from(number(name)).unwrap_or(u32::MAX);
    let word = list.str("type").unwrap_or_default();
    let kind =
        Kind::from_name(word).ok_or_else(|| Error::unsupported(format!("unknown vdev type '{word}'")))?;
    let ashift = small("ashift");
    if ashift > MAX_ASHIFT {
        return Err(Error::corrupt(format!("vdev {} has ashift {ashift}", number("guid"))));
    }
    let mut children = Vec::new();
    for child in list.nvlist_array("children").unwrap_or_default() {
        children.push(parse(child, depth + 1, budget)?);
    }
    if kind.is_leaf() != children.is_empty()
        && !matches!(kind, Kind::Root | Kind::Hole | Kind::Missing | Kind::Indirect)
    {
        return Err(Error::corrupt(format!(
            "{word} vdev {} has {} children",
            number("guid"),
            children.len()
        )));
    }
    let nparity = nparity(list, kind);
    let draid = (kind == Kind::Draid).then(|| DraidConfig {
        parity: u64::from(nparity),
        data: u64::from(small("draid_ndata")),
        children: u64::try_from(children.len()).unwrap_or(u64::MAX),
        spares: u64::from(small("draid_nspares")),
    });
    Ok(VdevConfig {
        kind,
        id: number("id"),
        guid: number("guid"),
        path: list.string("path").map(|s| s.to_string_lossy().into_owned()),
        ashift,
        asize: number("asize"),
        nparity,
        bias: bias(list),
        metaslab_array: number("metaslab_array"),
        metaslab_shift: small("metaslab_shift"),
        dtl_object: number("DTL"),
        top_zap: number("com.delphix:vdev_zap_top"),
        indirect_object: number("com.delphix:indirect_object"),
        indirect_births: number("com.delphix:indirect_births"),
        removing: number("removing") != 0,
        expanding: list.contains("raidz_expanding"),
        expand_txgs: list.u64_array("raidz_expand_txgs").map(<[u64]>::to_vec).unwrap_or_default(),
        draid,
        draid_groups: small("draid_ngroups"),
        spare_of: (kind == Kind::DraidSpare).then(|| (number("top_guid"), small("spareid"))),
        offline: number("offline") != 0,
        children,
        nvlist: list.clone(),
    })
}

/// Pools before raidz2 did not record the parity: it was one.
fn nparity(list: &NvList, kind: Kind) -> u32 {
    let recorded = list.u64("nparity").and_then(|n| u32::try_from(n).ok());
    match kind {
        Kind::Raidz | Kind::Draid => recorded.unwrap_or(1),
        _ => 0,
    }
}

fn bias(list: &NvList) -> AllocBias {
    if list.u64("is_log").unwrap_or(0) != 0 {
        return AllocBias::Log;
    }
    match list.str("alloc_bias") {
        Some("log") => AllocBias::Log,
        Some("special") => AllocBias::Special,
        Some("dedup") => AllocBias::Dedup,
        _ => AllocBias::Normal,
    }
}
