//! The datasets and snapshots of one mount, each in a slot that is filled on the first visit.
//!
//! Lock order: `table` is a leaf lock; datasets are opened without it.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use engine::dsl::props::DslDatasetStats;
use engine::dsl::props::settings::{PropRules, Settings};
use engine::dsl::{Dataset, DatasetKind};
use engine::spa::Pool;
use engine::spa::space::PoolSpace;
use engine::zil::in_memory::MemoryReplay;
use engine::{Error, Kind, Result};
use parking_lot::{Mutex, RwLock};
use zpl::Filesystem;
use zvol::Volume;

use crate::node::MAX_SLOTS;

/// The opened content of a dataset.
#[derive(Debug)]
pub enum Content {
    /// A file system.
    Filesystem(Arc<Filesystem>),
    /// A volume.
    Volume(Arc<Volume>),
    /// Neither can be opened; children are still shown.
    Closed(Error),
}

/// A dataset or snapshot in the tree.
#[derive(Debug)]
pub struct Slot {
    /// The dataset.
    pub dataset: Dataset,
    /// The parent's slot; its own for the top one.
    pub parent: usize,
    content: OnceLock<Content>,
    children: OnceLock<Vec<(String, u64)>>,
    posix_acl: OnceLock<bool>,
    /// Snapshots are created and destroyed: they are looked up each time.
    live: bool,
    /// The datasets below it are not shown.
    alone: bool,
    /// Number of its open files and directories.
    open: AtomicUsize,
    /// Names under which it was entered: for a renamed snapshot the kernel uses the old one.
    names: Mutex<BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<Arc<Slot>>,
    /// By guid: an object number may belong to another dataset later.
    by_dataset: HashMap<u64, usize>,
}

/// All datasets of a mount.
#[derive(Debug)]
pub struct Space {
    pool: Arc<Pool>,
    table: RwLock<Table>,
    /// Only the top dataset and its snapshots are shown.
    alone: bool,
    /// Bytes that datasets of the pool may use in all, computed once: the pool does not change.
    usable: OnceLock<u64>,
}

impl Slot {
    fn new(dataset: Dataset, parent: usize, (live, alone): (bool, bool)) -> Arc<Self> {
        let (content, children) = (OnceLock::new(), OnceLock::new());
        let (open, names) = (AtomicUsize::new(0), Mutex::default());
        let posix_acl = OnceLock::new();
        Arc::new(Self { dataset, parent, content, children, posix_acl, live, alone, open, names })
    }

    /// Registers an open file or directory.
    pub fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Registers a close.
    pub fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether any of its files or directories is open.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// The names under which it was entered.
    pub fn names(&self) -> Vec<String> {
        self.names.lock().iter().cloned().collect()
    }

    /// Opens the dataset, once.
    pub fn content(&self) -> &Content {
        self.content.get_or_init(|| open(&self.dataset).unwrap_or_else(Content::Closed))
    }

    /// Whether its POSIX access control lists are in effect (`acltype=posix`); with any other value the stored ones
    /// are not shown. Evaluated when the dataset is first visited.
    pub fn has_posix_acls(&self) -> bool {
        *self.posix_acl.get_or_init(|| posix_acls(&self.dataset).unwrap_or(false))
    }

    /// Child datasets, sorted by name: last component of the name and directory object.
    pub fn children(&self) -> &[(String, u64)] {
        self.children.get_or_init(|| {
            if self.alone || self.dataset.is_snapshot() {
                return Vec::new();
            }
            let all = self.dataset.dir().and_then(|dir| dir.children()).unwrap_or_default();
            let mut all: Vec<_> =
                all.into_iter().filter(|(name, _)| !name.starts_with('$') && !name.contains('%')).collect();
            all.sort();
            all
        })
    }

    /// When a snapshot was last created or destroyed, in seconds since 1970; 0 if never, as far as is known.
    pub fn snapshots_changed(&self) -> Result<u64> {
        Ok(self.dataset.dir()?.snapshots_changed()?.unwrap_or(0))
    }

    /// Whether its snapshots are created and destroyed.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Whether `.zfs` can be entered here.
    pub fn has_ctl(&self) -> bool {
        self.live || !self.dataset.is_snapshot() && !matches!(self.content(), Content::Volume(_))
    }
}

/// The value of `acltype=posix`.
#[doc(alias = "ZFS_ACLTYPE_POSIX")]
const POSIX: u64 = 1;

fn posix_acls(dataset: &Dataset) -> Result<bool> {
    // The one requested property is inherited by children and snapshots.
    let rules = PropRules { is_inherited: |_| true, is_for_snapshots: |_| true };
    let settings = Settings::of(dataset, rules)?;
    Ok(settings.get("acltype").and_then(|setting| setting.value.number()) == Some(POSIX))
}

/// Fails for a dataset with an incomplete receive.
///
/// # Errors
/// `Busy`, with the recommended action.
pub fn check_complete(dataset: &Dataset) -> Result<()> {
    if !dataset.is_inconsistent() {
        return Ok(());
    }
    let what = "contains a partly received state: resume the receive, or abort it with 'zfs receive -A'";
    Err(Error::new(Kind::Busy, what).in_dataset(&dataset.name))
}

fn open(dataset: &Dataset) -> Result<Content> {
    check_complete(dataset)?;
    match dataset.kind()? {
        DatasetKind::Filesystem => {
            let fs = Filesystem::open(dataset)?;
            tell(dataset, fs.replayed());
            Ok(Content::Filesystem(fs))
        }
        DatasetKind::Volume => {
            let volume = Volume::open(dataset)?;
            tell(dataset, volume.replayed());
            Ok(Content::Volume(volume))
        }
    }
}

fn tell(dataset: &Dataset, replayed: Option<&MemoryReplay>) {
    for note in replayed.iter().flat_map(|replayed| &replayed.notes) {
        eprintln!("{}: not replayed: {note}", dataset.name);
    }
}

impl Space {
    /// A tree with `top` at the mount point, and the datasets below it unless it is to be `alone`.
    pub fn new(pool: Arc<Pool>, top: Dataset, alone: bool) -> Arc<Self> {
        Self::with(pool, Slot::new(top, 0, (false, alone)))
    }

    /// The tree beside the live file system `top`: its current snapshots.
    pub fn live(pool: Arc<Pool>, top: Dataset) -> Arc<Self> {
        Self::with(pool, Slot::new(top, 0, (true, true)))
    }

    fn with(pool: Arc<Pool>, top: Arc<Slot>) -> Arc<Self> {
        let (by_dataset, alone) = (HashMap::from([(top.dataset.phys.guid, 0)]), top.alone);
        let table = Table { slots: vec![top], by_dataset };
        Arc::new(Self { pool, table: RwLock::new(table), alone, usable: OnceLock::new() })
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Bytes that are still available to the dataset of `slot`, quotas considered; 0 for a snapshot. A head that shows
    /// the snapshots of a live file system has 0, too: the pool as it was at that time does not know.
    ///
    /// # Errors
    /// When the dataset's directory or settings cannot be read.
    pub fn available(&self, slot: &Slot) -> Result<u64> {
        if slot.live || slot.dataset.is_snapshot() {
            return Ok(0);
        }
        // Parts of the pool that cannot be read are left out of its capacity.
        let usable = *self.usable.get_or_init(|| PoolSpace::usable_of(&self.pool, None, &mut Vec::new()));
        let rules = PropRules { is_inherited: |_| false, is_for_snapshots: |_| false };
        let settings = Settings::of(&slot.dataset, rules)?;
        let own = |name| settings.get(name).and_then(|setting| setting.value.number()).unwrap_or(0);
        let stats = DslDatasetStats::of(&slot.dataset, usable, own("refquota"), own("refreservation"))?;
        Ok(stats.head.map_or(0, |head| head.available))
    }

    /// The dataset in slot `id`.
    pub fn slot(&self, id: usize) -> Option<Arc<Slot>> {
        self.table.read().slots.get(id).cloned()
    }

    /// The slot of the child dataset `name` below slot `id`, if it exists.
    pub fn child(&self, id: usize, name: &str) -> Result<Option<usize>> {
        let Some(slot) = self.slot(id) else { return Ok(None) };
        let Some((_, number)) = slot.children().iter().find(|(n, _)| n == name) else { return Ok(None) };
        let dir = engine::dsl::Dir::open(&self.pool.dsl, *number, format!("{}/{name}", slot.dataset.name))?;
        // A directory without a dataset can only show its children, and has no slot for them.
        match dir.head() {
            Ok(head) => self.enter(head, id).map(Some),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The slot of the snapshot `name` of slot `id`, if it exists.
    pub fn snapshot(&self, id: usize, name: &str) -> Result<Option<usize>> {
        let Some(slot) = self.slot(id) else { return Ok(None) };
        let Some(snapshot) = slot.dataset.snapshot(name)? else { return Ok(None) };
        let found = self.enter(snapshot, id)?;
        if let Some(slot) = self.slot(found) {
            slot.names.lock().insert(name.to_owned());
        }
        Ok(Some(found))
    }

    /// The dataset of that guid, if it was entered.
    pub fn entered(&self, guid: u64) -> Option<Arc<Slot>> {
        let table = self.table.read();
        table.slots.get(*table.by_dataset.get(&guid)?).cloned()
    }

    fn enter(&self, dataset: Dataset, parent: usize) -> Result<usize> {
        let mut table = self.table.write();
        if let Some(&known) = table.by_dataset.get(&dataset.phys.guid) {
            return Ok(known);
        }
        let id = table.slots.len();
        if id >= MAX_SLOTS {
            return Err(Error::new(Kind::Limit, "too many datasets and snapshots in one mount"));
        }
        table.by_dataset.insert(dataset.phys.guid, id);
        table.slots.push(Slot::new(dataset, parent, (false, self.alone)));
        Ok(id)
    }
}
