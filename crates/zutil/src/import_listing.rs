//! The output of `zpool import` for a pool that could be imported, byte for byte as in OpenZFS 2.3.2.
//!
//! Labels alone have most of it. OpenZFS then loads the pool's metadata and shows the configuration from
//! there, with all top-level vdevs, allocation classes, spares and cache devices, and whether features are
//! disabled. A caller that can load it passes [`LoadOutcome::Loaded`]; without it, the labels' own view is
//! shown.

use zcommon::features::Feature;
use zcommon::vdev::{PoolState, VdevAux, VdevKind, VdevState};
use zcommon::version::spa_version_is_supported;

use crate::assess::{Presence, assess, assess_aux};
use crate::import_status::{Reason, reason};
use crate::names::{NameStyle, printable, vdev_name};
use crate::search::PoolCandidate;
use crate::tree::VdevNode;
use zcommon::health::Health;

/// Facts from the pool's metadata that its labels lack.
#[derive(Debug, Clone)]
pub struct MosFacts {
    /// The vdev tree of the pool's own configuration, with `bias` of top-level vdevs filled in. Paths are put
    /// right here.
    pub tree: VdevNode,
    /// Version in use.
    pub version: u64,
    /// Some feature that this software knows is not enabled.
    pub features_disabled: bool,
    /// Hot spares.
    pub spares: Vec<VdevNode>,
    /// Cache devices.
    pub l2cache: Vec<VdevNode>,
    /// A resilver was going on.
    pub resilvering: bool,
    /// A sequential rebuild was going on.
    pub rebuilding: bool,
    /// A line that its owner attached.
    pub comment: Option<String>,
    /// Number of a fault of old software that left traces (`zpool_errata_t`); 0: none is known.
    pub errata: u64,
}

/// How far loading the pool's metadata came.
#[derive(Debug, Clone)]
pub enum LoadOutcome {
    /// It wasn't tried.
    NotTried,
    /// It was read.
    Loaded(Box<MosFacts>),
    /// It can't be read.
    Corrupt,
    /// The version is newer than this software.
    VersionNewer,
    /// Multihost is on, and this machine has no hostid.
    HostidRequired,
    /// The pool needs features that this software lacks.
    Unsupported {
        /// Guid and description (may be empty) of each.
        features: Vec<(String, String)>,
        /// Reading is possible.
        read_only: bool,
    },
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListingOptions {
    /// Names of vdevs.
    pub names: NameStyle,
    /// This machine's host id.
    pub hostid: u64,
}

/// A pool's listing, ready to print or to ask.
#[derive(Debug, Clone)]
pub struct Listing<'a> {
    pool: &'a PoolCandidate,
    outcome: &'a LoadOutcome,
    options: ListingOptions,
    facts: Option<MosFacts>,
    /// The tree with the state of each vdev.
    pub tree: VdevNode,
    /// The gravest finding.
    pub reason: Reason,
}

/// The text for one pool.
pub fn render(pool: &PoolCandidate, outcome: &LoadOutcome, options: ListingOptions) -> String {
    Listing::new(pool, outcome, options).to_string()
}

impl LoadOutcome {
    /// The reason in the newest label why the pool can't be opened: its version, or a feature that reading
    /// needs. There is no point in trying to load such a pool.
    pub fn from_label(pool: &PoolCandidate) -> Option<Self> {
        if !spa_version_is_supported(pool.version) {
            return Some(Self::VersionNewer);
        }
        let unknown = pool.features_for_read.iter().filter(|guid| Feature::from_guid(guid).is_none());
        let features: Vec<_> = unknown.map(|guid| (guid.clone(), String::new())).collect();
        (!features.is_empty()).then_some(Self::Unsupported { features, read_only: false })
    }
}

impl<'a> Listing<'a> {
    /// Looks at every device of the pool.
    pub fn new(pool: &'a PoolCandidate, outcome: &'a LoadOutcome, options: ListingOptions) -> Self {
        let tree = assessed_tree(pool, outcome);
        let facts = match outcome {
            // A pool that can't be opened never got to the point where it knows these.
            LoadOutcome::Loaded(facts) if tree.health.state != VdevState::CantOpen => {
                Some(assessed_aux(pool, facts, &|_, _| false))
            }
            _ => None,
        };
        let reason = reason(pool, &tree, facts.as_ref(), outcome, options.hostid, None);
        Self { pool, outcome, options, tree, facts, reason }
    }

    fn errata(&self) -> u64 {
        self.facts.as_ref().map_or(0, |facts| facts.errata)
    }

    fn write(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "  pool: {}", printable(&self.pool.name))?;
        writeln!(f, "    id: {}", self.pool.guid)?;
        let destroyed = if self.pool.is_destroyed() { " (DESTROYED)" } else { "" };
        writeln!(f, " state: {}{destroyed}", self.tree.health.name())?;
        match status_text(self.reason) {
            _ if self.reason == Reason::Errata => {
                writeln!(f, "status: Errata #{} detected.", self.errata())?;
            }
            Some(status) => writeln!(f, "status: {status}")?,
            None => {}
        }
        if let LoadOutcome::Unsupported { features, .. } = self.outcome {
            for (guid, description) in features {
                match description.as_str() {
                    "" => writeln!(f, "\t{}", printable(guid))?,
                    text => writeln!(f, "\t{} ({})", printable(guid), printable(text))?,
                }
            }
        }
        if let Some(action) = action_text(self.reason, self.tree.health.state, self.errata()) {
            writeln!(f, "action: {action}")?;
        }
        if let Some(comment) =
            self.facts.as_ref().and_then(|f| f.comment.as_ref()).or(self.pool.comment.as_ref())
        {
            writeln!(f, "comment: {}", printable(comment))?;
        }
        if let Some(hint) = force_hint(self.tree.health, self.pool.state) {
            writeln!(f, "\t{hint}")?;
        }
        if let Some(id) = self.reason.message_id() {
            writeln!(f, "   see: https://openzfs.github.io/openzfs-docs/msg/{id}")?;
        }
        f.write_str("config:\n\n")?;
        self.write_config(f)?;
        if self.reason == Reason::BadGuidSum {
            f.write_str(
                "\n\tAdditional devices are known to be part of this pool, though their\n\
                 \texact configuration cannot be determined.\n",
            )?;
        }
        Ok(())
    }

    fn write_config(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = self.width();
        self.write_vdev(f, &self.tree, &printable(&self.pool.name), 0, width)?;
        if let Some(facts) = self.facts.as_ref() {
            self.write_aux(f, "cache", &facts.l2cache)?;
            self.write_aux(f, "spares", &facts.spares)?;
        }
        for class in ["dedup", "special", "logs"] {
            let members = self.tree.children.iter().filter(|top| class_of(top) == Some(class));
            for (count, top) in members.enumerate() {
                if count == 0 {
                    // The trailing tab is OpenZFS's.
                    writeln!(f, "\t{class}\t")?;
                }
                self.write_vdev(f, top, &self.name(top), 2, width)?;
            }
        }
        Ok(())
    }

    fn name(&self, vdev: &VdevNode) -> String {
        vdev_name(vdev, self.options.names, true)
    }

    fn write_vdev(
        &self,
        f: &mut std::fmt::Formatter<'_>,
        vdev: &VdevNode,
        name: &str,
        depth: usize,
        width: usize,
    ) -> std::fmt::Result {
        if matches!(vdev.kind, VdevKind::Missing | VdevKind::Hole) {
            return Ok(());
        }
        // Columns are counted in bytes, as printf does.
        let pad = width.saturating_sub(depth + name.len());
        write!(f, "\t{:depth$}{name}{:pad$}  {}", "", "", vdev.health.name())?;
        match vdev.health.import_text() {
            "" => writeln!(f)?,
            text => writeln!(f, "  {text}")?,
        }
        for child in vdev.children.iter().filter(|child| class_of(child).is_none()) {
            self.write_vdev(f, child, &self.name(child), depth + 2, width)?;
        }
        Ok(())
    }

    fn write_aux(
        &self,
        f: &mut std::fmt::Formatter<'_>,
        title: &str,
        vdevs: &[VdevNode],
    ) -> std::fmt::Result {
        if !vdevs.is_empty() {
            writeln!(f, "\t{title}")?;
        }
        for vdev in vdevs {
            writeln!(f, "\t  {}", vdev_name(vdev, self.options.names, false))?;
        }
        Ok(())
    }

    /// Columns that the widest name takes with its indentation, `missing` and `hole` included.
    #[doc(alias = "max_width")]
    fn width(&self) -> usize {
        fn widest(listing: &Listing<'_>, vdev: &VdevNode, depth: usize) -> usize {
            let below = vdev.children.iter().map(|child| widest(listing, child, depth + 2)).max();
            (listing.name(vdev).len() + depth).max(below.unwrap_or(0))
        }
        let facts = self.facts.as_ref();
        let aux = facts.into_iter().flat_map(|facts| facts.spares.iter().chain(&facts.l2cache));
        let aux = aux.map(|vdev| self.name(vdev).len() + 2).max().unwrap_or(0);
        widest(self, &self.tree, 0).max(aux).max(self.pool.name.len()).max(10)
    }
}

impl std::fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.write(f)
    }
}

/// The section below the pool's ordinary vdevs that a vdev is shown in.
pub fn class_of(vdev: &VdevNode) -> Option<&str> {
    match vdev.bias.as_deref() {
        _ if vdev.is_log => Some("logs"),
        // A removed vdev has no class any more.
        Some(_) if vdev.kind == VdevKind::Indirect => Some("removed"),
        bias => bias,
    }
}

/// The tree to show, with states: the pool's own where it is known, else the labels'.
fn assessed_tree(pool: &PoolCandidate, outcome: &LoadOutcome) -> VdevNode {
    let locate = |leaf: &VdevNode| pool.locate(leaf);
    let mut tree = labels_tree(pool);
    assess(&mut tree, &locate);
    if tree.health.state == VdevState::CantOpen {
        // Not even the labels' part opens: OpenZFS gets no further either.
        return tree;
    }
    let aux = match outcome {
        LoadOutcome::Loaded(facts) => return assessed_facts(pool, facts),
        LoadOutcome::Corrupt => VdevAux::CorruptData,
        LoadOutcome::VersionNewer => VdevAux::VersionNewer,
        LoadOutcome::HostidRequired => VdevAux::Active,
        LoadOutcome::Unsupported { .. } => VdevAux::UnsupportedFeature,
        LoadOutcome::NotTried if needs_missing(&tree) => VdevAux::BadGuidSum,
        LoadOutcome::NotTried => return tree,
    };
    tree.health = Health::cant_open(aux);
    tree
}

fn labels_tree(pool: &PoolCandidate) -> VdevNode {
    let tree = pool.config.nvlist("vdev_tree").and_then(VdevNode::from_config);
    tree.unwrap_or_else(|| VdevNode::empty_root(pool.guid))
}

fn needs_missing(tree: &VdevNode) -> bool {
    tree.children.iter().any(|top| top.kind == VdevKind::Missing)
}

/// Spares and cache devices where they are now, and whether they are there.
pub fn assessed_aux(pool: &PoolCandidate, facts: &MosFacts, has_left: &dyn Fn(u64, u64) -> bool) -> MosFacts {
    let mut facts = facts.clone();
    for vdev in facts.spares.iter_mut().chain(&mut facts.l2cache) {
        pool.fix_node_paths(vdev);
        assess_aux(vdev, &|leaf| pool.locate_aux(leaf, &|other| has_left(other, leaf.guid)));
    }
    facts
}

/// The pool's own tree with devices where they are now, and the state of each vdev as `locate` finds its leaves.
pub fn assessed_by(
    pool: &PoolCandidate,
    facts: &MosFacts,
    locate: &dyn Fn(&VdevNode) -> Presence,
) -> VdevNode {
    let mut tree = facts.tree.clone();
    pool.fix_node_paths(&mut tree);
    assess(&mut tree, locate);
    tree
}

/// As [`assessed_by`], of a pool that is not imported.
pub fn assessed_facts(pool: &PoolCandidate, facts: &MosFacts) -> VdevNode {
    let mut tree = assessed_by(pool, facts, &|leaf| pool.locate(leaf));
    if tree.health.state == VdevState::CantOpen {
        // OpenZFS learns the classes after it has opened the devices, so it shows none here.
        tree.children.iter_mut().for_each(|top| top.bias = None);
    }
    tree
}

fn status_text(reason: Reason) -> Option<&'static str> {
    Some(match reason {
        Reason::Ok | Reason::Errata | Reason::RemovedDev => return None,
        Reason::MissingDevR | Reason::MissingDevNr | Reason::BadGuidSum => {
            "One or more devices are missing from the system."
        }
        Reason::CorruptLabelR | Reason::CorruptLabelNr => "One or more devices contains corrupted data.",
        Reason::CorruptPool => "The pool metadata is corrupted.",
        Reason::VersionNewer => "The pool is formatted using an incompatible version.",
        Reason::HostidMismatch => "The pool was last accessed by another system.",
        Reason::HostidRequired => {
            "The pool has the multihost property on.  It cannot\n\
             \tbe safely imported when the system hostid is not set."
        }
        Reason::BadLog => "An intent log record cannot be read.",
        Reason::UnsupFeatRead => "The pool uses the following feature(s) not supported on this system:",
        Reason::UnsupFeatWrite => {
            "The pool can only be accessed in read-only mode on this system. It\n\
             \tcannot be accessed in read-write mode because it uses the following\n\
             \tfeature(s) not supported on this system:"
        }
        Reason::VersionOlder => "The pool is formatted using a legacy on-disk version.",
        Reason::FeatDisabled => {
            "Some supported features are not enabled on the pool.\n\
             \t(Note that they may be intentionally disabled if the\n\
             \t'compatibility' property is set.)"
        }
        Reason::Resilvering | Reason::Rebuilding => "One or more devices were being resilvered.",
        Reason::FaultedDevR | Reason::FaultedDevNr => "One or more devices are faulted.",
        Reason::OfflineDev => "One or more devices are offlined.",
        Reason::NonNativeAshift => {
            "One or more devices are configured to use a non-native block size.\n\
             \tExpect reduced performance."
        }
    })
}

fn action_text(reason: Reason, state: VdevState, errata: u64) -> Option<&'static str> {
    Some(match (state, reason) {
        (VdevState::Healthy, Reason::VersionOlder | Reason::FeatDisabled) => {
            "The pool can be imported using its name or numeric identifier, though\n\
             \tsome features will not be available without an explicit 'zpool upgrade'."
        }
        (VdevState::Healthy, Reason::HostidMismatch) => {
            "The pool can be imported using its name or numeric identifier and\n\
             \tthe '-f' flag."
        }
        (VdevState::Healthy, Reason::Errata) => errata_action(errata)?,
        (VdevState::Healthy, _) => "The pool can be imported using its name or numeric identifier.",
        (VdevState::Degraded, _) => {
            "The pool can be imported despite missing or damaged devices.  The\n\
             \tfault tolerance of the pool may be compromised if imported."
        }
        (_, Reason::VersionNewer) => {
            "The pool cannot be imported.  Access the pool on a system running newer\n\
             \tsoftware, or recreate the pool from backup."
        }
        (_, Reason::UnsupFeatRead) => {
            "The pool cannot be imported. Access the pool on a system that supports\n\
             \tthe required feature(s), or recreate the pool from backup."
        }
        (_, Reason::UnsupFeatWrite) => {
            "The pool cannot be imported in read-write mode. Import the pool with\n\
             \t'-o readonly=on', access the pool on a system that supports the\n\
             \trequired feature(s), or recreate the pool from backup."
        }
        (_, Reason::HostidRequired) => "Set a unique system hostid with the zgenhostid(8) command.",
        (_, Reason::MissingDevR | Reason::MissingDevNr | Reason::BadGuidSum) => {
            "The pool cannot be imported. Attach the missing\n\
             \tdevices and try again."
        }
        _ => "The pool cannot be imported due to damaged devices or data.",
    })
}

/// The action for each known fault of old software (`zpool_errata_t`).
fn errata_action(errata: u64) -> Option<&'static str> {
    Some(match errata {
        1 => {
            "The pool can be imported using its name or numeric identifier,\n\
             \thowever there is a compatibility issue which should be corrected\n\
             \tby running 'zpool scrub'"
        }
        2 => {
            "The pool cannot be imported with this version of ZFS due to\n\
             \tan active asynchronous destroy. Revert to an earlier version\n\
             \tand allow the destroy to complete before updating."
        }
        3 => {
            "Existing encrypted datasets contain an on-disk incompatibility, which\n\
             \tneeds to be corrected. Backup these datasets to new encrypted datasets\n\
             \tand destroy the old ones."
        }
        4 => {
            "Existing encrypted snapshots and bookmarks contain an on-disk\n\
             \tincompatibility. This may cause on-disk corruption if they are used\n\
             \twith 'zfs recv'. To correct the issue, enable the bookmark_v2 feature.\n\
             \tNo additional action is needed if there are no encrypted snapshots or\n\
             \tbookmarks. If preserving the encrypted snapshots and bookmarks is\n\
             \trequired, use a non-raw send to backup and restore them. Alternately,\n\
             \tthey may be removed to resolve the incompatibility."
        }
        _ => return None,
    })
}

/// A pool that looks corrupt because it is not exported may come with `-f`.
fn force_hint(health: Health, state: PoolState) -> Option<&'static str> {
    if !matches!(health.state, VdevState::Closed | VdevState::CantOpen) || health.aux != VdevAux::CorruptData
    {
        return None;
    }
    match state {
        PoolState::Destroyed => Some("The pool was destroyed, but can be imported using the '-Df' flags."),
        PoolState::Exported => None,
        _ => Some(
            "The pool may be active on another system, but can be imported using\n\
             \tthe '-f' flag.",
        ),
    }
}
