//! A vdev tree as a configuration describes it, reduced to the parts for finding and showing a pool.

use nvpair::NvList;

use zcommon::health::Health;
use zcommon::vdev::VdevKind;

/// Vdevs that one tree may have in all. A label of 112 KiB can't hold as many.
const MAX_NODES: usize = 1 << 14;
/// Deepest nesting: root, top, spare, replacing, leaf, and some.
const MAX_DEPTH: usize = 12;

/// One vdev.
#[derive(Debug, Clone)]
pub struct VdevNode {
    /// Its kind; one of a later release counts as missing.
    pub kind: VdevKind,
    /// Index among its siblings.
    pub id: u64,
    /// Its guid; 0 for `missing` and `hole`.
    pub guid: u64,
    /// Where its device was last seen, or is now.
    pub path: Option<Vec<u8>>,
    /// The place of its device, as the system that wrote the configuration called it.
    pub phys_path: Option<String>,
    /// Its device's name that stays when the path changes.
    pub devid: Option<String>,
    /// It serves the intent log.
    pub is_log: bool,
    /// Allocation class: `special` or `dedup`.
    pub bias: Option<String>,
    /// Its administrator took it offline.
    pub offline: bool,
    /// Its administrator declared it faulted.
    pub faulted: bool,
    /// It was absent when the configuration was written, and known by its guid alone.
    pub not_present: bool,
    /// The pool owns the whole disk, of which `path` is the first partition.
    pub whole_disk: bool,
    /// Parity of a raidz or draid.
    pub nparity: u64,
    /// It is being removed.
    #[doc(alias = "vs_scan_removing")]
    pub removing: bool,
    /// Nothing new is put on it, or on the top-level vdev that it is part of (`allocating=off`).
    #[doc(alias = "vs_noalloc")]
    pub no_alloc: bool,
    /// A raidz expansion is under way.
    pub expanding: bool,
    /// It waits for a resilver of its own.
    #[doc(alias = "vs_resilver_deferred")]
    pub deferred: bool,
    /// Data disks a group, children and spares of a draid.
    pub draid: Option<(u64, u64, u64)>,
    /// Usable bytes of a top-level vdev.
    pub asize: u64,
    /// Log2 of the smallest block of a top-level vdev.
    pub ashift: u64,
    /// Log2 of a metaslab of a top-level vdev.
    pub metaslab_shift: u64,
    /// Its parts.
    pub children: Vec<VdevNode>,
    /// How it is; set by [`crate::assess`].
    pub health: Health,
    /// Log2 of the vdev's smallest block, and of the larger one that its device writes at once; `None` if the former
    /// is not smaller.
    #[doc(alias("vs_configured_ashift", "vs_physical_ashift"))]
    pub small_blocks: Option<(u64, u64)>,
}

impl VdevNode {
    /// Reads a tree. `None` when it has no type, nests too deep, or has too many vdevs.
    pub fn from_config(config: &NvList) -> Option<Self> {
        let mut root = Self::parse(config, 0, &mut 0)?;
        root.children.iter_mut().filter(|top| top.no_alloc).for_each(Self::set_no_alloc);
        Some(root)
    }

    fn set_no_alloc(&mut self) {
        self.no_alloc = true;
        self.children.iter_mut().for_each(Self::set_no_alloc);
    }

    fn parse(config: &NvList, depth: usize, count: &mut usize) -> Option<Self> {
        *count += 1;
        if depth > MAX_DEPTH || *count > MAX_NODES {
            return None;
        }
        let number = |name: &str| config.u64(name).unwrap_or(0);
        let draid = config.u64("draid_ndata").map(|ndata| {
            let nchildren = config.nvlist_array("children").map_or(0, <[_]>::len);
            (ndata, u64::try_from(nchildren).unwrap_or(0), number("draid_nspares"))
        });
        let parts = config.nvlist_array("children").unwrap_or_default();
        let children = parts.iter().map(|part| Self::parse(part, depth + 1, count));
        Some(Self {
            kind: VdevKind::from_name(config.str("type")?).unwrap_or(VdevKind::Missing),
            id: number("id"),
            guid: number("guid"),
            path: config.string("path").map(|path| path.as_bytes().to_vec()),
            phys_path: config.str("phys_path").map(str::to_owned),
            devid: config.str("devid").map(str::to_owned),
            is_log: number("is_log") != 0,
            bias: config.str("alloc_bias").map(str::to_owned),
            offline: number("offline") != 0,
            faulted: number("faulted") != 0 && config.str("aux_state") == Some("external"),
            not_present: config.contains("not_present"),
            whole_disk: number("whole_disk") != 0,
            // Raidz had no parity to choose before pool version 3.
            nparity: config.u64("nparity").unwrap_or(1),
            removing: number("removing") != 0 && config.str("type") != Some("indirect"),
            no_alloc: number("non_allocating") != 0,
            expanding: config.contains("raidz_expanding"),
            deferred: config.contains("com.datto:resilver_defer"),
            draid,
            asize: number("asize"),
            ashift: number("ashift"),
            metaslab_shift: number("metaslab_shift"),
            children: children.collect::<Option<Vec<_>>>()?,
            health: Health::CLOSED,
            small_blocks: None,
        })
    }

    /// Returns the vdev's smallest block and the larger one of its device, as log2, unless the user ignores the
    /// difference.
    pub fn non_native_block(&self) -> Option<(u64, u64)> {
        let is_ignored = || crate::environment::var("ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE").is_some();
        self.small_blocks.filter(|_| !is_ignored())
    }

    /// A root without children, for a pool without a usable tree in its labels.
    pub fn empty_root(guid: u64) -> Self {
        Self {
            kind: VdevKind::Root,
            id: 0,
            guid,
            path: None,
            phys_path: None,
            devid: None,
            is_log: false,
            bias: None,
            offline: false,
            faulted: false,
            not_present: false,
            whole_disk: false,
            nparity: 0,
            removing: false,
            no_alloc: false,
            expanding: false,
            deferred: false,
            draid: None,
            asize: 0,
            ashift: 0,
            metaslab_shift: 0,
            children: Vec::new(),
            health: Health::CLOSED,
            small_blocks: None,
        }
    }

    /// Whether it is a device, or stands for one.
    pub fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    /// Whether it is a slot without a device of its own: not counted in its parent's state.
    #[doc(alias = "vdev_is_concrete")]
    pub fn is_virtual(&self) -> bool {
        matches!(self.kind, VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect)
    }

    /// The vdev and everything below it, parents first.
    pub fn walk(&self) -> Box<dyn Iterator<Item = &Self> + '_> {
        Box::new(std::iter::once(self).chain(self.children.iter().flat_map(Self::walk)))
    }
}
