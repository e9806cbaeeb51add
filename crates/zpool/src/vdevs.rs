//! The vdevs of a command line: `mirror a b log c`, from words to devices that are open for a new pool.
//!
//! Source of words and rules: zpool_vdev.c, OpenZFS 2.3.
//!
//! Differs from OpenZFS: a file in the current folder may be named without its path.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use blkdev::Device;
use clikit::ctx::Ctx;
use clikit::members::spare_at;
use clikit::verb::Failure;
use clikit::verb::strerror;
use daemon::devices;
use engine::memory::{Limit, Limits};
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::vdev::config::AllocBias;
use zcommon::draid::DraidConfig;

use super::draid_word::DraidWord;
use super::in_use::Question;

/// Where short names of devices are looked for.
const DEVICE_DIRS: [&str; 8] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-partuuid",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev",
];
/// Devices of one vdev may differ in size by so much.
const SIZE_FUZZ: u64 = 16 << 20;

/// A vdev as it was typed.
#[derive(Debug, Clone)]
pub struct Group {
    /// How its devices stand together.
    pub kind: Kind,
    /// Its allocation class.
    pub class: AllocBias,
    /// Its devices.
    pub leaves: Vec<Leaf>,
}

/// How devices stand together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One device.
    Single,
    /// All alike.
    Mirror,
    /// With this much parity.
    Raidz(u32),
    /// With parity, spread.
    Draid(DraidConfig),
}

/// A device as it was found.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// Its absolute path.
    pub path: PathBuf,
    /// A disk, not a file.
    pub is_disk: bool,
    /// Bytes; 0 when not known.
    pub size: u64,
}

/// Everything that was typed.
#[derive(Debug, Clone, Default)]
pub struct Vdevs {
    /// Top-level vdevs.
    pub tops: Vec<Group>,
    /// Spares.
    pub spares: Vec<Leaf>,
    /// Cache devices.
    pub cache: Vec<Leaf>,
}

fn invalid(what: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("invalid vdev specification: {what}"))
}

/// Where the words are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Class(AllocBias),
    Spares,
    Cache,
}

/// Reads the words.
#[doc(alias = "construct_spec")]
pub fn parse(words: &[String], ctx: &Ctx) -> Result<Vdevs, Failure> {
    let mut vdevs = Vdevs::default();
    let mut section = Section::Class(AllocBias::Normal);
    let mut seen: Vec<&str> = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let word = word.as_str();
        if let Some(next) = section_of(word) {
            // Special and dedup vdevs may follow any number of such words.
            let repeats = matches!(next, Section::Class(AllocBias::Special | AllocBias::Dedup));
            if !repeats && seen.contains(&word) {
                return Err(invalid(format!("'{word}' can be specified only once")));
            }
            let takes_groups = matches!(next, Section::Class(_));
            if words.peek().is_none_or(|n| section_of(n).is_some() || (is_grouping(n) && !takes_groups)) {
                let devices = if word == "log" { "device" } else { "devices" };
                return Err(invalid(format!("{word} requires at least 1 {devices}")));
            }
            seen.push(word);
            section = next;
            continue;
        }
        let Some(typed) = group_of(word)? else {
            vdevs.add(section, Kind::Single, vec![find(word, ctx)?]);
            continue;
        };
        let class = match section {
            Section::Class(class) => class,
            // A group ends the lists of spares and cache devices.
            Section::Spares | Section::Cache => AllocBias::Normal,
        };
        if class == AllocBias::Log && !matches!(typed, Typed::Kind(Kind::Mirror)) {
            return Err(invalid(format!("unsupported 'log' device: {word}")));
        }
        let mut leaves = Vec::new();
        while let Some(next) = words.next_if(|next| !is_grouping(next)) {
            leaves.push(find(next, ctx)?);
        }
        let least = typed.least();
        if leaves.len() < least {
            return Err(invalid(format!("{word} requires at least {least} devices")));
        }
        section = Section::Class(class);
        vdevs.add(section, typed.with(leaves.len())?, leaves);
    }
    if vdevs.tops.is_empty() && vdevs.spares.is_empty() && vdevs.cache.is_empty() {
        return Err(invalid("at least one toplevel vdev must be specified"));
    }
    Ok(vdevs)
}

impl Vdevs {
    fn add(&mut self, section: Section, kind: Kind, mut leaves: Vec<Leaf>) {
        match section {
            Section::Spares => self.spares.append(&mut leaves),
            Section::Cache => self.cache.append(&mut leaves),
            Section::Class(class) => self.tops.push(Group { kind, class, leaves }),
        }
    }

    /// All devices.
    pub fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        let tops = self.tops.iter().flat_map(|top| &top.leaves);
        tops.chain(&self.spares).chain(&self.cache)
    }
}

fn section_of(word: &str) -> Option<Section> {
    Some(match word {
        "log" => Section::Class(AllocBias::Log),
        "special" => Section::Class(AllocBias::Special),
        "dedup" => Section::Class(AllocBias::Dedup),
        "spare" => Section::Spares,
        "cache" => Section::Cache,
        _ => return None,
    })
}

fn is_grouping(word: &str) -> bool {
    section_of(word).is_some() || group_of(word).is_ok_and(|kind| kind.is_some())
}

/// A word that begins a group; a draid's numbers may depend on how many devices follow.
#[derive(Debug, Clone, Copy)]
enum Typed {
    Kind(Kind),
    Draid(DraidWord),
}

#[doc(alias = "is_grouping")]
fn group_of(word: &str) -> Result<Option<Typed>, Failure> {
    Ok(Some(Typed::Kind(match word {
        "mirror" => Kind::Mirror,
        "raidz" | "raidz1" => Kind::Raidz(1),
        "raidz2" => Kind::Raidz(2),
        "raidz3" => Kind::Raidz(3),
        _ => return DraidWord::parse(word).transpose().map(|d| d.map(Typed::Draid)).map_err(Failure::failed),
    })))
}

impl Typed {
    fn least(self) -> usize {
        let parity = match self {
            Self::Kind(Kind::Single) => return 1,
            Self::Kind(Kind::Mirror) => return 2,
            Self::Kind(Kind::Raidz(parity)) => parity.into(),
            Self::Kind(Kind::Draid(config)) => config.parity,
            Self::Draid(word) => word.parity,
        };
        usize::try_from(parity).unwrap_or(0) + 1
    }

    fn with(self, disks: usize) -> Result<Kind, Failure> {
        match self {
            Self::Kind(kind) => Ok(kind),
            Self::Draid(word) => word.with(disks).map(Kind::Draid).map_err(Failure::failed),
        }
    }
}

/// The device that a word means.
#[doc(alias = "make_leaf_vdev")]
pub fn find(word: &str, ctx: &Ctx) -> Result<Leaf, Failure> {
    let path = locate(word, ctx).ok_or_else(|| {
        Failure::failed(format!(
            "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand device name"
        ))
    })?;
    let meta = fs::metadata(&path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Failure::failed(format!("cannot resolve path '{word}'")),
        _ => Failure::failed(format!("cannot open '{word}': {}", strerror(&e))),
    })?;
    let is_disk = meta.file_type().is_block_device();
    if !is_disk && !meta.is_file() {
        return Err(Failure::failed(format!("cannot use '{word}': must be a block device or regular file")));
    }
    Ok(Leaf { path, is_disk, size: if is_disk { 0 } else { meta.len() } })
}

/// The path of a device that a word means, if it is absolute or in one of the folders of devices.
#[doc(alias = "zfs_resolve_shortname")]
pub fn locate(word: &str, ctx: &Ctx) -> Option<PathBuf> {
    if word.starts_with('/') {
        return Some(PathBuf::from(word));
    }
    let session = ctx.session().ok();
    let folders = session.and_then(|session| session.env.get("ZPOOL_IMPORT_PATH")).map(std::env::split_paths);
    let known: Vec<PathBuf> = match folders {
        Some(folders) => folders.map(|dir| dir.join(word)).collect(),
        None => DEVICE_DIRS.iter().map(|dir| Path::new(dir).join(word)).collect(),
    };
    known.into_iter().find(|path| path.exists())
}

/// Objections that the user overrides.
#[derive(Debug, Clone, Copy)]
pub struct Silenced {
    /// That devices seem to be in use.
    pub in_use: bool,
    /// That vdevs protect less than others.
    pub replication: bool,
}

impl Silenced {
    /// Everything (`-f`), or nothing.
    pub fn all(force: bool) -> Self {
        Self { in_use: force, replication: force }
    }
}

/// Objections to using the devices.
#[derive(Debug, Default)]
pub struct Objections {
    lines: Vec<String>,
}

impl Objections {
    /// Returns all that are not silenced. Some can't be overridden and never are.
    #[doc(alias("check_in_use", "check_replication"))]
    pub fn of(vdevs: &Vdevs, silenced: Silenced, ctx: &Ctx, known: Option<&Group>) -> Self {
        let mut all = Self::default();
        for leaf in vdevs.leaves() {
            let spare = vdevs.spares.iter().any(|spare| spare.path == leaf.path);
            all.lines.extend(Question { force: silenced.in_use, spare, ctx }.objection(leaf));
        }
        if !silenced.replication && all.lines.is_empty() {
            all.replication(vdevs, known);
        }
        all
    }

    /// Vdevs that protect less than the others. Log vdevs are exempt.
    fn replication(&mut self, vdevs: &Vdevs, known: Option<&Group>) {
        let tops: Vec<&Group> = vdevs.tops.iter().filter(|top| top.class != AllocBias::Log).collect();
        tops.iter().for_each(|group| self.alike(group));
        let differ = tops.windows(2).find_map(|pair| match pair {
            [a, b] => differ(a, b),
            _ => None,
        });
        let differ = differ.or_else(|| old_and_new(known?, tops.first()?));
        self.lines.extend(differ);
    }

    fn alike(&mut self, group: &Group) {
        let name = name_of(group);
        if group.leaves.iter().any(|leaf| leaf.is_disk) && group.leaves.iter().any(|leaf| !leaf.is_disk) {
            self.lines.push(format!("mismatched replication level: {name} contains both files and devices"));
        }
        if has_different_sizes(group) {
            self.lines.push(format!("{name} contains devices of different sizes"));
        }
    }

    /// The failure that they make.
    #[doc(alias = "vdev_error")]
    pub fn failure(self, force: bool) -> Option<Failure> {
        if self.lines.is_empty() {
            return None;
        }
        let how = match force {
            true => "the following errors must be manually repaired:",
            false => "use '-f' to override the following errors:",
        };
        Some(Failure::failed(format!("invalid vdev specification\n{how}\n{}", self.lines.join("\n"))))
    }
}

fn name_of(group: &Group) -> &'static str {
    match group.kind {
        Kind::Single if group.leaves.iter().any(|leaf| leaf.is_disk) => "disk",
        Kind::Single => "file",
        Kind::Mirror => "mirror",
        Kind::Raidz(_) => "raidz",
        Kind::Draid(_) => "draid",
    }
}

fn parity(group: &Group) -> u64 {
    match group.kind {
        Kind::Raidz(parity) => parity.into(),
        Kind::Draid(config) => config.parity,
        Kind::Single | Kind::Mirror => 0,
    }
}

/// For a vdev with parity and a mirror: returns the one with parity and the mirror.
#[doc(alias = "is_raidz_mirror")]
fn raidz_and_mirror<'a>(a: &'a Group, b: &'a Group) -> Option<(&'a Group, &'a Group)> {
    match (a.kind, b.kind) {
        (Kind::Raidz(_) | Kind::Draid(_), Kind::Mirror) => Some((a, b)),
        (Kind::Mirror, Kind::Raidz(_) | Kind::Draid(_)) => Some((b, a)),
        _ => None,
    }
}

/// Vdevs with as much parity lose as much, each of them a raidz or a draid, however many disks they have.
#[doc(alias = "is_raidz_draid")]
fn have_parity(a: &Group, b: &Group) -> bool {
    let has = |group: &Group| matches!(group.kind, Kind::Raidz(_) | Kind::Draid(_));
    has(a) && has(b)
}

fn has_different_sizes(group: &Group) -> bool {
    let sizes = || group.leaves.iter().map(|leaf| leaf.size).filter(|size| *size != 0);
    let (Some(least), Some(most)) = (sizes().min(), sizes().max()) else { return false };
    most - least > SIZE_FUZZ
}

/// Whether the vdevs of a pool protect alike.
#[doc(alias = "get_replication")]
pub fn are_alike(all: &[Group]) -> bool {
    let differ = |pair: &[Group]| matches!(pair, [a, b] if differ(a, b).is_some());
    !all.iter().any(has_different_sizes) && !all.windows(2).any(differ)
}

fn differ(a: &Group, b: &Group) -> Option<String> {
    let (first, second) = (name_of(a), name_of(b));
    let lead = "mismatched replication level:";
    if let Some((raidz, mirror)) = raidz_and_mirror(a, b) {
        let (ways, losses) = (mirror.leaves.len(), mirror.leaves.len().saturating_sub(1));
        let (parity, what) = (parity(raidz), "vdevs with different redundancy");
        let alike = usize::try_from(parity) == Ok(losses);
        return (!alike).then(|| {
            let kind = name_of(raidz);
            format!("{lead} {kind} and mirror {what}, {parity} vs. {losses} ({ways}-way) are present")
        });
    }
    if have_parity(a, b) {
        let (one, other) = (parity(a), parity(b));
        let what = "vdevs with different redundancy";
        return (one != other)
            .then(|| format!("{lead} {first} and {second} {what}, {one} vs. {other} are present"));
    }
    if first != second {
        return Some(format!("{lead} both {first} and {second} vdevs are present"));
    }
    let (ways, others) = (a.leaves.len(), b.leaves.len());
    (ways != others).then(|| format!("{lead} both {ways}-way and {others}-way {first} vdevs are present"))
}

fn old_and_new(old: &Group, new: &Group) -> Option<String> {
    let (first, second) = (name_of(old), name_of(new));
    let lead = "mismatched replication level: pool";
    if let Some((raidz, mirror)) = raidz_and_mirror(old, new) {
        let (ways, losses) = (mirror.leaves.len(), mirror.leaves.len().saturating_sub(1));
        let (parity, kind) = (parity(raidz), name_of(raidz));
        let what = format!("and new vdev with different redundancy, {kind} and mirror vdevs");
        let alike = usize::try_from(parity) == Ok(losses);
        return (!alike).then(|| format!("{lead} {what}, {parity} vs. {losses} ({ways}-way)"));
    }
    if have_parity(old, new) {
        let (one, other) = (parity(old), parity(new));
        let what = format!("and new vdev with different redundancy, {first} and {second} vdevs");
        return (one != other).then(|| format!("{lead} {what}, {one} vs. {other}"));
    }
    if first != second {
        return Some(format!("{lead} uses {first} and new vdev is {second}"));
    }
    let (ways, others) = (old.leaves.len(), new.leaves.len());
    (ways != others)
        .then(|| format!("{lead} uses {ways}-way {first} and new vdev uses {others}-way {second}"))
}

/// Why a device could not be opened.
#[derive(Debug)]
pub enum NotOpened {
    /// It is in use.
    Held,
    /// It is smaller than any pool's device.
    TooSmall,
    /// Something else, as a sentence.
    Other(String),
}

/// Opens the devices: from here on no other process can use them.
pub fn open(
    vdevs: &Vdevs,
    ashift: Option<u32>,
    (action, pool): (&str, &str),
    ctx: &Ctx,
) -> Result<PoolSpec, Failure> {
    open_as(vdevs, ashift, ctx, &|why| match why {
        NotOpened::Held => {
            let what = "one or more vdevs refer to the same device, or one of\nthe devices is part of an active md or lvm device";
            Failure::cannot(action, pool, what)
        }
        NotOpened::TooSmall => {
            Failure::cannot(action, pool, "one or more devices is less than the minimum size (64M)")
        }
        NotOpened::Other(what) => Failure::failed(what),
    })
}

/// As [`open`], with the caller's words for errors.
pub fn open_as(
    vdevs: &Vdevs,
    ashift: Option<u32>,
    ctx: &Ctx,
    failure: &dyn Fn(NotOpened) -> Failure,
) -> Result<PoolSpec, Failure> {
    let registry = ctx.registry()?;
    let leaf_of = |leaf: &Leaf, shared: Option<Device>| -> Result<LeafSpec, Failure> {
        let device = shared.map_or_else(|| devices::open(&leaf.path), Ok);
        let device = device.map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::ResourceBusy => failure(NotOpened::Held),
            _ => {
                failure(NotOpened::Other(format!("cannot open '{}': {}", leaf.path.display(), strerror(&e))))
            }
        })?;
        if device.geometry().size < ondisk::label::MIN_DEVICE_SIZE {
            return Err(failure(NotOpened::TooSmall));
        }
        let path = leaf.path.to_string_lossy().into_owned();
        Ok(LeafSpec {
            path,
            is_disk: leaf.is_disk,
            whole_disk: leaf.is_disk.then_some(false),
            devid: None,
            device,
        })
    };
    let leaf = |leaf: &Leaf| leaf_of(leaf, None);
    let leaves = |all: &[Leaf]| all.iter().map(leaf).collect::<Result<Vec<_>, _>>();
    let limits = &registry.memory.limits;
    let least_metaslabs = Some(limits.get(Limit::MinMetaslabs));
    let mut spec = PoolSpec { ashift, least_metaslabs, ..PoolSpec::default() };
    for top in &vdevs.tops {
        let mut devices = leaves(&top.leaves)?;
        let vdev = match top.kind {
            Kind::Single => match devices.pop() {
                Some(only) => VdevSpec::Leaf(only),
                None => continue,
            },
            Kind::Mirror => VdevSpec::Mirror(devices),
            Kind::Raidz(parity) => VdevSpec::Raidz { parity, children: devices },
            Kind::Draid(config) => VdevSpec::Draid { config, children: devices },
        };
        let is_files = top.leaves.iter().all(|leaf| !leaf.is_disk);
        let ashift = if is_files { ashift_of_files(limits, ashift) } else { ashift };
        spec.tops.push(TopSpec { vdev, class: top.class, ashift });
    }
    // Pools may have the same spare.
    for spare in &vdevs.spares {
        let leaf = leaf_of(spare, registry.held(&spare.path))?;
        if let Some(guid) = spare_at(&spare.path, ctx) {
            spec.shared.insert(leaf.path.clone(), guid);
        }
        spec.spares.push(leaf);
    }
    spec.cache = leaves(&vdevs.cache)?;
    Ok(spec)
}

/// The sector shift of a new vdev of files, of which the system knows no sectors.
#[doc(alias("vdev_file_physical_ashift", "vdev_ashift_optimize"))]
fn ashift_of_files(limits: &Limits, wanted: Option<u32>) -> Option<u32> {
    let get = |limit| u32::try_from(limits.get(limit)).unwrap_or(0);
    let logical = get(Limit::FileLogicalAshift);
    let physical = Some(get(Limit::FilePhysicalAshift)).filter(|shift| *shift <= get(Limit::MaxAutoAshift));
    Some(wanted.filter(|wanted| *wanted >= logical).unwrap_or_else(|| logical.max(physical.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_the_sectors_of_files() {
        let limits = Limits::default();
        assert_eq!(
            [None, Some(8), Some(13)].map(|wanted| ashift_of_files(&limits, wanted)),
            [9, 9, 13].map(Some)
        );
        limits.set(Limit::FilePhysicalAshift, 12).unwrap();
        limits.set(Limit::FileLogicalAshift, 10).unwrap();
        assert_eq!(
            [None, Some(9), Some(11)].map(|wanted| ashift_of_files(&limits, wanted)),
            [12, 12, 11].map(Some)
        );
        limits.set(Limit::FilePhysicalAshift, 16).unwrap();
        assert_eq!(ashift_of_files(&limits, None), Some(10), "too large to count by itself");
    }
}
