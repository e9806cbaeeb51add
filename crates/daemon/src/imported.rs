//! An imported pool, as the daemon holds it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use blkdev::{Device, Identity};
use engine::dsl::write::Tasks;
use engine::spa::devices::Reopened;
use engine::spa::suspension::Suspension;
use engine::spa::{Pool, Quiet, Spa};
use engine::vdev::leaf::Leaf;
use engine::{Error, Kind, Result};
use nvpair::NvList;
use parking_lot::{Mutex, RwLock};
use zcommon::health::Health;
use zcommon::vdev::VdevAux;
use zutil::PoolCandidate;

use crate::mounts::Mounts;

/// An imported pool, writable or read-only.
#[derive(Debug)]
enum Held {
    Live(Arc<Spa>),
    ReadOnly(Arc<Pool>),
}

/// The cache file of OpenZFS. As a value of the property `cachefile` it stands for the daemon's own.
#[doc(alias = "ZPOOL_CACHE")]
pub const DEFAULT_CACHE: &str = "/etc/zfs/zpool.cache";

/// The manner of a pool's import.
#[derive(Debug, Clone, Default)]
pub struct Manner {
    /// The root directory of mount points.
    pub altroot: Option<String>,
    /// Whether the cache file includes it.
    pub cached: bool,
    /// Another cache file that has it instead (property `cachefile`). The next daemon does not import it by itself.
    pub cachefile: Option<PathBuf>,
    /// File systems are not mounted automatically.
    pub no_mount: bool,
}

impl Manner {
    /// Applies the property `cachefile`: empty, `none`, or a path. OpenZFS's default path stands for our own.
    pub fn set_cachefile(&mut self, value: &str) {
        let is_other = !matches!(value, "" | "none" | DEFAULT_CACHE);
        self.cachefile = is_other.then(|| value.into());
        self.cached = value != "none" && !is_other;
    }
}

/// An imported pool. Every user of it holds this: an export waits until all holders have dropped it.
#[derive(Debug)]
pub struct Imported {
    held: Held,
    candidate: RwLock<PoolCandidate>,
    /// The manner of its import; properties may change it.
    pub manner: RwLock<Manner>,
    /// Number of this import (`load_guid`).
    pub load_guid: u64,
    /// When it was imported.
    pub since: Instant,
    /// Its mounts.
    pub mounts: Mounts,
    /// Directories with settings that have no effect, by number; `None` before the first check.
    pub unheeded: Mutex<Option<BTreeSet<u64>>>,
    /// Spares and cache devices, held open exclusively.
    aux: Mutex<Vec<Device>>,
}

impl Imported {
    pub(crate) fn live(spa: Arc<Spa>, candidate: PoolCandidate, manner: Manner) -> Self {
        Self::new(Held::Live(spa), candidate, manner)
    }

    pub(crate) fn read_only(pool: Arc<Pool>, candidate: PoolCandidate, manner: Manner) -> Self {
        Self::new(Held::ReadOnly(pool), candidate, manner)
    }

    fn new(held: Held, candidate: PoolCandidate, manner: Manner) -> Self {
        let env = match &held {
            Held::Live(spa) => &spa.pool.env,
            Held::ReadOnly(pool) => &pool.env,
        };
        let load_guid = env.guid();
        let dsl = match &held {
            Held::Live(spa) => &spa.pool.dsl,
            Held::ReadOnly(pool) => &pool.dsl,
        };
        if let Held::Live(spa) = &held {
            let name = spa.pool.name.clone();
            let notes = crate::bad_logs::BadLogs::at(crate::paths::RunPaths::of_process().bad_logs());
            spa.logs().refuse(notes.read());
            let pool = Arc::downgrade(spa);
            // Standard error is the daemon's log. If it is gone nothing can be reported.
            spa.suspending().when_suspended(Arc::new(move |why: &Suspension| {
                let whose = match why {
                    Suspension { is_ours: true, .. } => "an error of this program",
                    Suspension { is_damage: true, .. } => "damaged metadata",
                    _ => "its devices",
                };
                let _ = writeln!(io::stderr(), "pool {name} is suspended because of {whose}: {}", why.cause);
                let replaying = pool.upgrade().filter(|_| why.is_ours).map(|spa| spa.logs().replaying());
                if let Err(e) = notes.add(&replaying.unwrap_or_default()) {
                    let _ = writeln!(io::stderr(), "the intent logs of {name} cannot be noted: {e}");
                }
            }));
        }
        if let Some(root) = &manner.altroot {
            // The pool is new, so no root has been set before.
            let _ = dsl.altroot.set(root.trim_end_matches('/').to_owned());
        }
        let (candidate, manner) = (RwLock::new(candidate), RwLock::new(manner));
        Self {
            held,
            candidate,
            manner,
            load_guid,
            since: Instant::now(),
            mounts: Mounts::default(),
            unheeded: Mutex::default(),
            aux: Mutex::default(),
        }
    }

    /// Keeps spares and cache devices open, so that no other process can use them.
    pub fn hold(&self, mut devices: Vec<Device>) {
        self.aux.lock().append(&mut devices);
    }

    /// The spare or cache device of this identity, if the pool holds it open.
    pub(crate) fn holds(&self, wanted: &Identity) -> Option<Device> {
        let same = |device: &&Device| {
            crate::devices::identity(Path::new(device.name())).is_ok_and(|id| id == *wanted)
        };
        self.aux.lock().iter().find(same).cloned()
    }

    /// The pool for changes.
    ///
    /// # Errors
    /// `ReadOnly` if it was imported read-only.
    pub fn spa(&self) -> Result<&Arc<Spa>> {
        match &self.held {
            Held::Live(spa) => Ok(spa),
            Held::ReadOnly(pool) => Err(Error::new(Kind::ReadOnly, "pool is read-only").in_pool(&pool.name)),
        }
    }

    /// Keeps its datasets unchanged for a moment; `None` if nothing can change them anyway.
    pub fn quiet(&self) -> Option<Quiet> {
        match &self.held {
            Held::Live(spa) => Some(spa.quiet()),
            Held::ReadOnly(_) => None,
        }
    }

    /// Whether it is read-only.
    pub fn is_read_only(&self) -> bool {
        matches!(self.held, Held::ReadOnly(_))
    }

    /// Its name.
    pub fn name(&self) -> String {
        match &self.held {
            Held::Live(spa) => spa.pool.name.clone(),
            Held::ReadOnly(pool) => pool.name.clone(),
        }
    }

    /// Its current guid.
    pub fn guid(&self) -> u64 {
        match &self.held {
            Held::Live(spa) => spa.guid(),
            Held::ReadOnly(pool) => pool.guid,
        }
    }

    /// The pool's current state, for verbs that read.
    pub fn view(&self) -> Result<Arc<Pool>> {
        match &self.held {
            Held::ReadOnly(pool) => Ok(Arc::clone(pool)),
            Held::Live(spa) => spa.view(),
        }
    }

    /// Its configuration in the MOS.
    pub fn config(&self) -> NvList {
        match &self.held {
            Held::ReadOnly(pool) => pool.config.clone(),
            Held::Live(spa) => spa.mos_config(),
        }
    }

    /// The label contents when it was imported or last changed.
    pub fn candidate(&self) -> PoolCandidate {
        PoolCandidate { name: self.name(), guid: self.guid(), ..self.candidate.read().clone() }
    }

    /// Closes the devices of spares and cache devices that have left the pool, so that they can be used at once.
    fn let_go(&self) {
        let facts = {
            let _quiet = self.quiet();
            self.view().ok().and_then(|view| zutil::load::facts(&view))
        };
        // A pool that cannot be read may still have all of them.
        let Some(facts) = facts else { return };
        let paths = facts.spares.iter().chain(&facts.l2cache).filter_map(|aux| aux.path.as_deref());
        let paths: Vec<&Path> = paths.map(|path| Path::new(OsStr::from_bytes(path))).collect();
        let is_listed = |device: &Device| {
            let name = Path::new(device.name());
            let same = |path: &&Path| match (crate::devices::identity(path), crate::devices::identity(name)) {
                (Ok(listed), Ok(held)) => listed == held,
                _ => false,
            };
            paths.contains(&name) || paths.iter().any(same)
        };
        self.aux.lock().retain(is_listed);
    }

    /// Reads labels again, after devices appeared or disappeared.
    pub fn look_again(&self) {
        self.let_go();
        let paths = leaf_paths(&self.config());
        if let Some(found) = crate::devices::candidate_at(&paths, self.guid()) {
            *self.candidate.write() = found;
        }
    }

    /// Takes devices out of use whose labels are readable and not theirs any more, as far as the pool can do without them.
    /// `zpool reopen` and scrubs begin with it, because a disk that another program overwrote otherwise counts as a good one.
    ///
    /// # Errors
    /// If the pool is not open for writing, or suspended.
    #[doc(alias = "vdev_validate")]
    pub fn validate(&self) -> Result<()> {
        let spa = self.spa()?;
        if self.lost_devices().is_empty() {
            return Ok(());
        }
        // A device that is joining the pool has its final labels once the txg is on disk.
        spa.sync()?;
        let lost = self.lost_devices();
        if lost.is_empty() { Ok(()) } else { spa.disks().lose_devices(lost) }
    }

    fn lost_devices(&self) -> Vec<(u64, VdevAux)> {
        let Ok(spa) = self.spa() else { return Vec::new() };
        let tree = spa.pool.tree();
        let lost = |leaf: &Arc<Leaf>| {
            let in_use = leaf.health().is_readable() && tree.top_of(leaf.guid).is_some();
            let device = leaf.device().filter(|_| in_use)?;
            match leaf.inject.refuses_open() {
                true => Some((leaf.guid, VdevAux::OpenFailed)),
                false => {
                    crate::devices::is_foreign(&*device, leaf.guid).then_some((leaf.guid, VdevAux::BadLabel))
                }
            }
        };
        tree.leaves().filter_map(lost).collect()
    }

    /// Reopens the device of a leaf, if it is at the path in the configuration. One that another system has taken beyond the
    /// present state of the pool is refused; one that another system changed since it left the pool lacks everything.
    #[doc(alias = "vdev_validate")]
    pub fn reopen(&self, leaf: u64) -> Reopened {
        let device = crate::devices::reopen(&self.candidate(), &self.config(), leaf)?;
        let Held::Live(spa) = &self.held else { return Ok(device) };
        let guid = self.guid();
        if crate::devices::is_ahead(&*device, guid, || spa.uberblock()) {
            return Err(Health::cant_open(VdevAux::BadLabel));
        }
        if let Some(txg) = crate::devices::label_txg(&*device, guid) {
            spa.disks().doubt_returned(leaf, txg);
        }
        Ok(device)
    }

    /// Whether the device at the place of a leaf out of use is refused because it has a later state of the pool.
    pub fn is_ahead(&self, leaf: u64) -> bool {
        let health = self.spa().ok().and_then(|spa| spa.pool.tree().leaf(leaf).map(|leaf| leaf.health()));
        let refused = Health::cant_open(VdevAux::BadLabel);
        health == Some(refused)
            && crate::devices::reopen(&self.candidate(), &self.config(), leaf).is_ok()
            && self.reopen(leaf).is_err()
    }

    /// Resumes the pool if it was suspended. A device that another system changed meanwhile is not used.
    ///
    /// # Errors
    /// The reason why it cannot resume.
    pub fn resume(&self) -> Result<()> {
        self.spa()?.suspending().resume(&|leaf| self.reopen(leaf))
    }

    /// Runs a task on the pool's datasets, in syncing context.
    pub fn task<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tasks<'_>, &Spa) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.mounts.settle();
        self.spa()?.sync_task(move |spa, tx| {
            let at = spa.datasets.at(tx, spa);
            work(&Tasks { at, datasets: &spa.datasets, pool: &spa.pool.name }, spa)
        })
    }
}

/// Paths of all leaves in a configuration.
pub(crate) fn leaf_paths(config: &NvList) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let tree = config.nvlist("vdev_tree").and_then(zutil::tree::VdevNode::from_config);
    let Some(tree) = tree else { return Vec::new() };
    let leaves = tree.walk().filter(|vdev| vdev.is_leaf());
    let path = |path: &Vec<u8>| PathBuf::from(std::ffi::OsStr::from_bytes(path));
    leaves.filter_map(|leaf| leaf.path.as_ref().map(path)).collect()
}
