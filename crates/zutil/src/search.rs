//! From labels to pools.
//!
//! A label describes its pool, its own vdev, and its complete top-level vdev; of the other top-level vdevs it
//! has only the number and the positions of holes. So the configuration of a pool is put together from the
//! newest label of each top-level vdev, in the frame of the newest label of all. A vdev that no label
//! describes becomes `missing`. Then each leaf gets the path at which a device with its guid was found.
//!
//! Differs from OpenZFS: where two devices carry the same guid (a copied disk), the one with the newer
//! label is used before the one at the expected path; contradictions are reported as notes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nvpair::{NvList, NvValue};
use zcommon::vdev::PoolState;

use crate::assess::Presence;
use crate::discover::{FoundDevice, probe};
use crate::tree::VdevNode;

/// Top-level vdevs that a pool may have; more is a forged label.
const MAX_TOPS: u64 = 1 << 12;
/// Maximum depth of a vdev tree with corrected paths.
const MAX_DEPTH: usize = 12;

/// A device that is part of a pool.
#[derive(Debug, Clone)]
pub struct Member {
    /// Guid of the leaf vdev.
    pub guid: u64,
    /// Newest txg in its labels; 0 for spares and cache devices.
    pub txg: u64,
    /// The path to open it by.
    pub path: PathBuf,
    /// The device.
    pub device: FoundDevice,
}

/// A pool that could be imported, judging by labels.
#[derive(Debug, Clone)]
pub struct PoolCandidate {
    /// The pool's name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Its state in the newest label.
    pub state: PoolState,
    /// Txg of the newest label.
    pub txg: u64,
    /// Version in the newest label: 1 to 28, or 5000.
    pub version: u64,
    /// Host that used it last; 0: none is recorded.
    pub hostid: u64,
    /// Name of that host.
    pub hostname: String,
    /// A line that its owner attached.
    pub comment: Option<String>,
    /// Feature guids that reading needs.
    pub features_for_read: Vec<String>,
    /// The configuration in the form that an import takes: `vdev_tree` has a root with every top-level
    /// vdev, holes and missing ones included, and paths where the devices are now.
    pub config: NvList,
    /// Devices by leaf guid; spares and cache devices of any pool are among them.
    pub members: BTreeMap<u64, Member>,
    /// Remarks for the user.
    pub notes: Vec<Note>,
    /// Devices that have left it, which older states of it may need. They are no members.
    pub left: Vec<Member>,
}

/// Something odd about a pool's devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// Two devices have the same guid: one was copied from the other.
    Duplicate {
        /// The one that is used.
        used: PathBuf,
        /// The one that is not.
        ignored: PathBuf,
    },
    /// Its labels are older than the pool's: it was absent for a while.
    Stale {
        /// The device.
        path: PathBuf,
        /// Txg of its labels.
        txg: u64,
        /// Txg of the pool's newest label.
        newest: u64,
    },
    /// The newest configuration has no place for it: detached, replaced, or removed.
    NotInConfig(PathBuf),
    /// Only some of its four labels are good.
    TornLabels {
        /// The device.
        path: PathBuf,
        /// Usable labels.
        good: usize,
    },
    /// No label of it has a right checksum.
    Unverified(PathBuf),
    /// It still carries labels of something else.
    OtherLabels(PathBuf),
    /// Two top-level vdevs claim the same place; the newer one has it.
    SamePlace(u64),
    /// A label claims a place that no pool has, or has no vdev tree.
    Nonsense(PathBuf),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate { used, ignored } => write!(
                f,
                "{} and {} carry the same vdev; {} is used",
                used.display(),
                ignored.display(),
                used.display()
            ),
            Self::Stale { path, txg, newest } => write!(
                f,
                "{}: its labels are of txg {txg}, the pool's newest of txg {newest}: it missed writes",
                path.display()
            ),
            Self::NotInConfig(path) => {
                write!(f, "{}: was part of this pool and no longer is", path.display())
            }
            Self::TornLabels { path, good } => {
                write!(f, "{}: only {good} of 4 labels are good", path.display())
            }
            Self::Unverified(path) => {
                write!(f, "{}: no label has a right checksum; the best is used unverified", path.display())
            }
            Self::OtherLabels(path) => write!(f, "{}: also carries labels of another vdev", path.display()),
            Self::SamePlace(id) => write!(f, "two top-level vdevs claim place {id}; the newer one is used"),
            Self::Nonsense(path) => write!(f, "{}: its label describes no possible vdev", path.display()),
        }
    }
}

/// A label's claims, read once.
struct Claim<'a> {
    device: &'a FoundDevice,
    config: &'a NvList,
    guid: u64,
    top_guid: u64,
    txg: u64,
}

/// Groups devices into pools; sorted by name, then guid.
pub fn search(devices: &[FoundDevice]) -> Vec<PoolCandidate> {
    let mut pools: BTreeMap<u64, Vec<Claim<'_>>> = BTreeMap::new();
    let mut aux: Vec<Claim<'_>> = Vec::new();
    let certain = certain(devices);
    for device in devices {
        let Some(config) = config_of(device, &certain) else { continue };
        let number = |name: &str| config.u64(name).unwrap_or(0);
        let (guid, top_guid, txg) = (number("guid"), number("top_guid"), number("txg"));
        let claim = Claim { device, config, guid, top_guid, txg };
        match config.u64("state").and_then(PoolState::from_number) {
            Some(PoolState::Spare | PoolState::L2cache) => aux.push(claim),
            _ if config.contains("top_guid") && config.contains("pool_guid") => {
                pools.entry(number("pool_guid")).or_default().push(claim);
            }
            _ => {}
        }
    }
    let mut found: Vec<_> =
        pools.into_iter().filter_map(|(guid, claims)| candidate(guid, &claims, &aux)).collect();
    for device in devices {
        let Some((pool, guid)) = device.labels.left() else { continue };
        let member = Member { guid, txg: 0, path: device.path().to_owned(), device: device.clone() };
        let left = found.iter_mut().filter(|candidate| candidate.guid == pool);
        left.for_each(|candidate| candidate.left.push(member.clone()));
    }
    found.sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
    found
}

/// Pools that a device names without doubt.
fn certain(devices: &[FoundDevice]) -> BTreeSet<u64> {
    let labels = devices.iter().map(|device| &device.labels).filter(|labels| labels.rival().is_none());
    labels.filter_map(|labels| labels.best()?.u64("pool_guid")).collect()
}

/// The configuration that a device counts with. Half of its labels may name the pool by a new guid and half by the old one,
/// when power failed in a change of the guid: it is grouped with devices that name one guid only, so that the pool is not found
/// in two parts.
fn config_of<'a>(device: &'a FoundDevice, certain: &BTreeSet<u64>) -> Option<&'a NvList> {
    let best = device.labels.best()?;
    let is_certain = |config: &NvList| config.u64("pool_guid").is_some_and(|guid| certain.contains(&guid));
    match device.labels.rival() {
        Some(rival) if is_certain(rival) && !is_certain(best) => Some(rival),
        _ => Some(best),
    }
}

fn candidate(guid: u64, claims: &[Claim<'_>], aux: &[Claim<'_>]) -> Option<PoolCandidate> {
    let newest = claims.iter().max_by_key(|claim| (claim.txg, std::cmp::Reverse(claim.device.path())))?;
    let mut notes = Vec::new();
    let tree = assemble(guid, newest, claims, &mut notes);
    let mut members = BTreeMap::new();
    let wanted = paths_by_guid(&tree);
    for claim in claims.iter().chain(aux) {
        enlist(&mut members, claim, wanted.get(&claim.guid).map(PathBuf::as_path), &mut notes);
    }
    judge(newest.txg, claims, &wanted, &members, &mut notes);
    let config = newest.config;
    let text = |name: &str| config.string(name).map(|text| text.to_string_lossy().into_owned());
    let mut candidate = PoolCandidate {
        name: text("name")?,
        guid,
        state: config.u64("state").and_then(PoolState::from_number)?,
        txg: newest.txg,
        version: config.u64("version").unwrap_or(0),
        hostid: config.u64("hostid").unwrap_or(0),
        hostname: text("hostname").unwrap_or_default(),
        comment: text("comment"),
        features_for_read: config.nvlist("features_for_read").map(feature_names).unwrap_or_default(),
        config: NvList::new(),
        members,
        notes,
        left: Vec::new(),
    };
    candidate.adopt_strays(&tree);
    candidate.config = pool_config(config, candidate.with_paths(&tree));
    Some(candidate)
}

fn feature_names(list: &NvList) -> Vec<String> {
    list.iter().map(|pair| pair.name.to_string_lossy().into_owned()).collect()
}

/// The root vdev over the newest description of each top-level vdev.
fn assemble(guid: u64, newest: &Claim<'_>, claims: &[Claim<'_>], notes: &mut Vec<Note>) -> NvList {
    let mut best: BTreeMap<u64, &Claim<'_>> = BTreeMap::new();
    for claim in claims {
        let slot = best.entry(claim.top_guid).or_insert(claim);
        if claim.txg > slot.txg {
            *slot = claim;
        }
    }
    let mut places: BTreeMap<u64, (u64, &NvList)> = BTreeMap::new();
    for claim in best.values() {
        let top = claim.config.nvlist("vdev_tree");
        let Some((id, top)) = top.and_then(|top| Some((top.u64("id").filter(|id| *id < MAX_TOPS)?, top)))
        else {
            notes.push(Note::Nonsense(claim.device.path().to_owned()));
            continue;
        };
        match places.get(&id) {
            Some((txg, _)) if *txg >= claim.txg => notes.push(Note::SamePlace(id)),
            earlier => {
                if earlier.is_some() {
                    notes.push(Note::SamePlace(id));
                }
                places.insert(id, (claim.txg, top));
            }
        }
    }
    let known = places.last_key_value().map_or(0, |(id, _)| id + 1);
    let count = newest.config.u64("vdev_children").unwrap_or(known).min(MAX_TOPS);
    let holes = newest.config.u64_array("hole_array").unwrap_or_default();
    let tops = (0..count).map(|id| match places.get(&id) {
        Some((_, top)) => (*top).clone(),
        None => placeholder(if holes.contains(&id) { "hole" } else { "missing" }, id),
    });
    let mut root = NvList::new();
    root.add("type", "root").add("id", 0u64).add("guid", guid);
    root.add("children", NvValue::ListArray(tops.collect()));
    root
}

fn placeholder(kind: &str, id: u64) -> NvList {
    let mut list = NvList::new();
    list.add("type", kind).add("id", id).add("guid", 0u64);
    list
}

/// The configuration for an import: the pool's own facts and the whole tree.
fn pool_config(label: &NvList, tree: NvList) -> NvList {
    const KEPT: [&str; 13] = [
        "version",
        "pool_guid",
        "name",
        "comment",
        "compatibility",
        "state",
        "txg",
        "hostid",
        "hostname",
        "vdev_children",
        "hole_array",
        "errata",
        "features_for_read",
    ];
    let mut config = NvList::new();
    for name in KEPT {
        if let Some(value) = label.get(name) {
            config.add(name, value.clone());
        }
    }
    config.add("vdev_tree", tree);
    config
}

/// Every leaf's guid with the path that the configuration expects it at.
fn paths_by_guid(tree: &NvList) -> BTreeMap<u64, PathBuf> {
    let Some(root) = VdevNode::from_config(tree) else { return BTreeMap::new() };
    let leaves = root.walk().filter(|vdev| vdev.is_leaf() && vdev.guid != 0);
    leaves
        .map(|leaf| (leaf.guid, PathBuf::from(OsStr::from_bytes(leaf.path.as_deref().unwrap_or_default()))))
        .collect()
}

/// Makes a device the member for its guid, unless a better one is known.
fn enlist(
    members: &mut BTreeMap<u64, Member>,
    claim: &Claim<'_>,
    wanted: Option<&Path>,
    notes: &mut Vec<Note>,
) {
    let device = claim.device;
    let path = wanted.filter(|path| device.has_name(path)).unwrap_or(device.path()).to_owned();
    let member = Member { guid: claim.guid, txg: claim.txg, path, device: device.clone() };
    let Some(rival) = members.get(&claim.guid) else {
        members.insert(claim.guid, member);
        return;
    };
    if rank(&member, wanted) > rank(rival, wanted) {
        notes.push(Note::Duplicate { used: member.path.clone(), ignored: rival.path.clone() });
        members.insert(claim.guid, member);
    } else {
        notes.push(Note::Duplicate { used: rival.path.clone(), ignored: member.path });
    }
}

type Rank = (bool, u64, bool, bool, usize, std::cmp::Reverse<usize>);

/// Which of two devices with one guid is the better: larger is better.
fn rank(member: &Member, wanted: Option<&Path>) -> Rank {
    let device = &member.device;
    (
        device.labels.is_verified(),
        member.txg,
        wanted == Some(&member.path),
        wanted.and_then(Path::file_name) == member.path.file_name(),
        device.labels.count(),
        std::cmp::Reverse(device.order()),
    )
}

fn judge(
    newest: u64,
    claims: &[Claim<'_>],
    wanted: &BTreeMap<u64, PathBuf>,
    members: &BTreeMap<u64, Member>,
    notes: &mut Vec<Note>,
) {
    for claim in claims {
        let Some(member) = members.get(&claim.guid).filter(|m| m.device.identity == claim.device.identity)
        else {
            continue;
        };
        let (path, labels) = (member.path.clone(), &claim.device.labels);
        let good = labels.count();
        match () {
            () if !wanted.contains_key(&claim.guid) => notes.push(Note::NotInConfig(path.clone())),
            () if claim.txg < newest => {
                notes.push(Note::Stale { path: path.clone(), txg: claim.txg, newest });
            }
            () => {}
        }
        if !labels.is_verified() {
            notes.push(Note::Unverified(path.clone()));
        }
        if !labels.others().is_empty() {
            notes.push(Note::OtherLabels(path.clone()));
        }
        if good < 4 {
            notes.push(Note::TornLabels { path, good });
        }
    }
}

/// A top-level vdev whose content one of these leaves has.
fn stand_in(id: usize, ashift: u64, leaves: &[(u64, PathBuf)]) -> NvList {
    let number = |at: usize| u64::try_from(at).unwrap_or(u64::MAX);
    let leaf = |(at, (guid, path)): (usize, &(u64, PathBuf))| {
        let mut leaf = NvList::new();
        leaf.add("type", "disk").add("id", number(at)).add("guid", *guid);
        leaf.add("path", NvValue::String(path.clone().into_os_string().into_vec().into()));
        leaf
    };
    let mut top = NvList::new();
    top.add("type", "mirror").add("id", number(id)).add("guid", 0u64).add("ashift", ashift);
    top.add("children", NvValue::ListArray(leaves.iter().enumerate().map(leaf).collect()));
    top
}

impl PoolCandidate {
    /// For an import of an older state: devices that have left the pool since then are found again, by their guids. Their
    /// contents date from the moment they left.
    ///
    /// Until the older state's own configuration has been read, they stand in for the one top-level vdev of the newest one that
    /// has no device: a hole, or a disk that is not there. Some blocks of that configuration may be on it alone, and checksums
    /// tell which device has them.
    pub fn readmit(&mut self) {
        let left = std::mem::take(&mut self.left);
        let leaves: Vec<_> = left.iter().map(|member| (member.guid, member.path.clone())).collect();
        for member in left {
            self.members.entry(member.guid).or_insert(member);
        }
        let Some(NvValue::List(root)) = self.config.get_mut("vdev_tree") else { return };
        let Some(NvValue::ListArray(tops)) = root.get_mut("children") else { return };
        let lacks = |top: &NvList| match top.str("type") {
            Some("hole" | "missing") => true,
            _ => {
                let is_there = |guid| self.members.contains_key(&guid);
                top.nvlist_array("children").is_none() && !top.u64("guid").is_some_and(is_there)
            }
        };
        let lacking: Vec<usize> = (0..tops.len()).filter(|at| tops.get(*at).is_some_and(lacks)).collect();
        let ashift = tops.iter().find_map(|top| top.u64("ashift"));
        if let [at] = *lacking
            && let (false, Some(ashift), Some(top)) = (leaves.is_empty(), ashift, tops.get_mut(at))
        {
            *top = stand_in(at, ashift, &leaves);
        }
    }

    /// Whether it was destroyed and could be brought back.
    pub fn is_destroyed(&self) -> bool {
        self.state == PoolState::Destroyed
    }

    /// The device of a leaf vdev.
    pub fn member(&self, guid: u64) -> Option<&Member> {
        self.members.get(&guid)
    }

    /// The device in this leaf's place: the device found by its guid, else whatever is at the
    /// path that the configuration names.
    pub fn locate(&self, leaf: &VdevNode) -> Presence {
        match self.members.get(&leaf.guid) {
            Some(member) => member.device.presence(),
            None => self.look(leaf),
        }
    }

    /// The device now at the path in this leaf's configuration.
    pub fn look(&self, leaf: &VdevNode) -> Presence {
        let Some(path) = leaf.path.as_deref().map(OsStr::from_bytes).map(Path::new) else {
            return Presence::Absent;
        };
        match probe(path) {
            Ok(Some(device)) if speaks_of(&device, self.guid, leaf.guid) => device.presence(),
            Ok(Some(_)) => Presence::Foreign,
            Ok(None) if is_device(path) => Presence::Unlabelled,
            _ => Presence::Absent,
        }
    }

    /// As [`PoolCandidate::locate`], for a spare or cache device. `has_left` returns whether a pool, by its guid, is known not
    /// to have the device any more: that could not be written into a label while the device failed.
    #[doc(alias = "vdev_validate_aux")]
    pub fn locate_aux(&self, leaf: &VdevNode, has_left: &dyn Fn(u64) -> bool) -> Presence {
        match self.locate(leaf) {
            Presence::Foreign => {}
            found => return found,
        }
        let path = leaf.path.as_deref().map(OsStr::from_bytes).map(Path::new);
        match path.and_then(|path| probe(path).ok().flatten()) {
            Some(device) if is_left_over(&device, leaf.guid, has_left) => device.presence(),
            _ => Presence::Foreign,
        }
    }

    /// Leaves that no search found but that stand where the configuration expects them.
    fn adopt_strays(&mut self, tree: &NvList) {
        for (guid, path) in paths_by_guid(tree) {
            if self.members.contains_key(&guid) || path.as_os_str().is_empty() {
                continue;
            }
            let Ok(Some(device)) = probe(&path) else { continue };
            if speaks_of(&device, self.guid, guid) {
                let txg = device.labels.best().and_then(|label| label.u64("txg")).unwrap_or(0);
                self.members.insert(guid, Member { guid, txg, path, device });
            }
        }
    }

    /// The tree with each found leaf's `path` set to where it was found.
    pub fn with_paths(&self, tree: &NvList) -> NvList {
        let mut tree = tree.clone();
        self.fix_paths(&mut tree, 0);
        tree
    }

    /// Sets the path of each found leaf below `vdev` to where it was found.
    pub fn fix_node_paths(&self, vdev: &mut VdevNode) {
        vdev.children.iter_mut().for_each(|child| self.fix_node_paths(child));
        if vdev.is_leaf()
            && let Some(member) = self.members.get(&vdev.guid)
        {
            vdev.path = Some(member.path.as_os_str().as_bytes().to_vec());
        }
    }

    fn fix_paths(&self, vdev: &mut NvList, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        if let Some(NvValue::ListArray(children)) = vdev.get_mut("children") {
            return children.iter_mut().for_each(|child| self.fix_paths(child, depth + 1));
        }
        let Some(member) = vdev.u64("guid").and_then(|guid| self.members.get(&guid)) else { return };
        let path = member.path.clone().into_os_string().into_vec();
        match vdev.get_mut("path") {
            Some(value) => *value = NvValue::String(path.into()),
            None => vdev.push("path", NvValue::String(path.into())),
        }
    }
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() || meta.file_type().is_block_device())
}

impl FoundDevice {
    fn presence(&self) -> Presence {
        let (size, physical_sector) = (self.geometry.size, self.geometry.physical_sector);
        Presence::Present { size, physical_sector }
    }
}

/// Whether a label names a spare or cache device as part of a pool that does not have it any more.
fn is_left_over(device: &FoundDevice, guid: u64, has_left: &dyn Fn(u64) -> bool) -> bool {
    device.labels.best().is_some_and(|label| is_leftover_label(label, guid, has_left))
}

/// As for a device, of its label.
pub fn is_leftover_label(label: &NvList, guid: u64, has_left: &dyn Fn(u64) -> bool) -> bool {
    let state = label.u64("state").and_then(PoolState::from_number);
    let is_over = || state == Some(PoolState::Destroyed) || label.u64("pool_guid").is_some_and(has_left);
    label.u64("guid") == Some(guid) && is_over()
}

fn speaks_of(device: &FoundDevice, pool: u64, guid: u64) -> bool {
    device.labels.best().is_some_and(|label| {
        let aux = matches!(
            label.u64("state").and_then(PoolState::from_number),
            Some(PoolState::Spare | PoolState::L2cache)
        );
        label.u64("guid") == Some(guid) && (aux || label.u64("pool_guid") == Some(pool))
    })
}
