//! Drives the simulated pool with random steps, each of them operations on files, a mark, and perhaps a change of
//! datasets, and maintains the model of the expected state after each.
//!
//! A step lies completely in one txg: only the actor closes txgs, because there are no threads. The mark is the
//! content of a file of the root file system, so the pool itself records its step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use engine::spa::{Pool, Spa};
use engine::{Error, Kind, Result};
use stdx::rng::Rng;
use zpl::write::{FsWriter, NewNode, Overrides, mount};
use zpl::{FileKind, Filesystem};
use zvol::LiveVolume;

use crate::content::Content;
use crate::dataset_ops::new_name_of;
use crate::keys;
use crate::model::{Head, Item, Model, Tree, read_model};
use crate::world::POOL;

/// File of the root file system that contains the number of the last step.
pub(crate) const MARK: &[u8] = b"step";
/// Maximum operations of a step.
const MOST: u64 = 6;
/// Maximum recorded operations for reports.
const TOLD: usize = 24;

/// A change of a file; `None` if it was removed.
#[derive(Debug, Clone)]
pub struct Change {
    /// The file system.
    pub dataset: String,
    /// The file.
    pub number: u64,
    /// The new state.
    pub item: Option<Arc<Item>>,
}

/// A dataset in use.
#[derive(Debug)]
pub(crate) enum Mounted {
    Files(Arc<FsWriter>),
    Volume(Arc<LiveVolume>),
}

impl Mounted {
    fn end(self) -> Result<()> {
        match self {
            Self::Files(writer) => writer.unmount(),
            Self::Volume(volume) => volume.close(),
        }
    }
}

/// The end of a step.
#[derive(Debug, Clone)]
pub enum Ended {
    /// Not synced: it is on disk when a later one is.
    Open,
    /// All of it is on disk.
    Synced,
    /// These files survive: file system, file, present state.
    Committed(Vec<(String, u64, Arc<Item>)>),
}

/// The error of a step that spans two txgs, because a writer waited for space: no power cut in it can be judged.
pub const SPLIT: &str = "a txg was closed in the middle of a step";

/// Works on a pool.
#[derive(Debug)]
pub struct Actor {
    /// The pool.
    pub spa: Arc<Spa>,
    /// The expected state.
    pub model: Model,
    /// Steps done.
    pub step: u64,
    /// Maximum bytes of files.
    pub budget: u64,
    /// All changes of files.
    pub history: Vec<Change>,
    /// The last operations, for reports.
    pub told: VecDeque<String>,
    /// Txgs may be closed in the middle of a step.
    pub may_split: bool,
    /// A step whose txg was closed in its middle, because a writer waited for freed space, is synced at once.
    pub syncs_splits: bool,
    /// The txg of this step was closed in its middle.
    pub was_split: bool,
    /// Entries pruned from dedup tables.
    pub pruned: u64,
    pub(crate) random: Rng,
    /// A file system that must not be mounted in this step.
    pub(crate) barred: Option<String>,
    /// Number of used names of datasets and snapshots.
    pub(crate) named: u64,
    /// Open files without names.
    pub(crate) open: Vec<(String, u64)>,
    pub(crate) mounted: BTreeMap<String, Mounted>,
}

/// Whether an operation may fail like this without faults.
pub(crate) fn is_refusal(e: &Error) -> bool {
    matches!(e.kind(), Kind::NoSpace | Kind::Quota)
}

impl Actor {
    /// Begins with a new pool, and writes its first mark.
    pub fn new(spa: Arc<Spa>, random: Rng) -> Result<Self> {
        let mut actor = Self::with(spa, Model::default(), 0, random);
        actor.model.heads.insert(POOL.into(), Head::default());
        let root = actor.writer(POOL)?.root;
        actor.edit(POOL, |tree| *tree = Tree::new(root));
        actor.begin()
    }

    /// Begins with an existing, populated pool, and writes its first mark.
    pub fn take_over(spa: Arc<Spa>, random: Rng) -> Result<Self> {
        let unread = |why: String| Error::new(Kind::Corrupt, why);
        let model = read_model(&*spa.view()?).map_err(unread)?;
        let mut actor = Self::with(spa, model, 0, random);
        // Logs may contain more.
        actor.mount_all()?;
        actor.spa.sync()?;
        actor.model = read_model(&*actor.spa.view()?).map_err(unread)?;
        actor.take_keys()?;
        actor.begin()
    }

    /// Gives every encryption root a key known to the model.
    fn take_keys(&mut self) -> Result<()> {
        let encrypted = self.model.heads.iter().filter(|(_, head)| head.encrypted);
        for name in encrypted.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            let pool = &self.spa.pool;
            let root = pool.dsl.keys.root_of(&pool.dsl.dir(&name)?)?;
            if root.is_some_and(|root| root.name == name) {
                let key = self.random.next_u64();
                let (task_name, new) = (name.clone(), keys::new_key(key)?);
                self.spa.dsl_task(move |tasks| tasks.change_key(&task_name, Some(new)))?;
                self.model.heads.get_mut(&name).map(|head| head.key.replace(key));
            }
        }
        Ok(())
    }

    fn begin(mut self) -> Result<Self> {
        self.mark()?;
        self.spa.sync()?;
        Ok(self)
    }

    /// Mounts everything.
    pub fn mount_all(&mut self) -> Result<()> {
        let is_volume = |(name, head): (&String, &Head)| (name.clone(), head.tree.is_volume());
        let all: Vec<(String, bool)> = self.model.heads.iter().map(is_volume).collect();
        for (name, is_volume) in all {
            match is_volume {
                true => self.volume(&name).map(|_| ()),
                false => self.writer(&name).map(|_| ()),
            }?;
        }
        Ok(())
    }

    /// Continues with a pool in the state of `model`, after `step`.
    pub fn with(spa: Arc<Spa>, model: Model, step: u64, random: Rng) -> Self {
        // Names that are new to any earlier state of this pool.
        let named = step * 100;
        let (open, mounted) = (Vec::new(), BTreeMap::new());
        Self {
            spa,
            model,
            step,
            budget: 3 << 20,
            history: Vec::new(),
            told: VecDeque::new(),
            may_split: false,
            syncs_splits: false,
            was_split: false,
            pruned: 0,
            barred: None,
            random,
            named,
            open,
            mounted,
        }
    }

    /// The mounted file system of that name.
    pub fn writer(&mut self, dataset: &str) -> Result<Arc<FsWriter>> {
        if let Some(Mounted::Files(writer)) = self.mounted.get(dataset) {
            return Ok(Arc::clone(writer));
        }
        let writer = mount(&self.spa, dataset, Overrides::default())?;
        if let Some(e) = writer.replayed().and_then(|done| done.error.clone()) {
            return Err(e);
        }
        self.mounted.insert(dataset.to_owned(), Mounted::Files(Arc::clone(&writer)));
        Ok(writer)
    }

    /// Names of mounted file systems.
    pub(crate) fn mounted_files(&self) -> Vec<String> {
        let files = self.mounted.iter().filter(|(_, mounted)| matches!(mounted, Mounted::Files(_)));
        files.map(|(name, _)| name.clone()).collect()
    }

    /// Unmounts a file system. All changes are on disk on return.
    pub(crate) fn unmount(&mut self, dataset: &str) -> Result<()> {
        self.open.retain(|(of, _)| of != dataset);
        self.mounted.remove(dataset).map_or(Ok(()), Mounted::end)
    }

    /// Unmounts all.
    pub fn unmount_all(&mut self) -> Result<()> {
        self.open.clear();
        std::mem::take(&mut self.mounted).into_values().try_for_each(Mounted::end)
    }

    /// A file system and all below it were renamed.
    pub(crate) fn renamed(&mut self, old: &str, new: &str) {
        let name = |name: String| new_name_of(&name, old, new).unwrap_or(name);
        self.mounted = std::mem::take(&mut self.mounted).into_iter().map(|(n, m)| (name(n), m)).collect();
        self.open = std::mem::take(&mut self.open).into_iter().map(|(n, number)| (name(n), number)).collect();
    }

    /// Records the current operation.
    pub(crate) fn tell(&mut self, what: String) {
        self.told.push_back(format!("step {}: {what}", self.step));
        if self.told.len() > TOLD {
            self.told.pop_front();
        }
    }

    /// The last operations, one per line.
    pub fn story(&self) -> String {
        self.told.iter().map(|line| format!("\n  {line}")).collect()
    }

    /// Changes the model of a head, and records the changed files.
    pub(crate) fn edit(&mut self, dataset: &str, work: impl FnOnce(&mut Tree)) {
        let Some(head) = self.model.heads.get_mut(dataset) else { return };
        let before = head.tree.items.clone();
        work(Arc::make_mut(&mut head.tree));
        let after = &head.tree.items;
        let numbers: BTreeSet<u64> = before.keys().chain(after.keys()).copied().collect();
        for number in numbers {
            let item = after.get(&number);
            if before.get(&number).map(Arc::as_ptr) != item.map(Arc::as_ptr) {
                self.history.push(Change { dataset: dataset.to_owned(), number, item: item.cloned() });
            }
        }
    }

    /// The model of a head.
    pub(crate) fn tree(&self, dataset: &str) -> Arc<Tree> {
        self.model.heads.get(dataset).map(|head| Arc::clone(&head.tree)).unwrap_or_default()
    }

    /// A random element.
    pub(crate) fn pick<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        let at = self.random.below(all.len() as u64);
        all.get(usize::try_from(at).ok()?).cloned()
    }

    /// Writes the number of this step into the pool.
    fn mark(&mut self) -> Result<()> {
        let writer = self.writer(POOL)?;
        let (root, step) = (writer.root, self.step);
        let number = match self.tree(POOL).get(root, MARK) {
            Some(number) => number,
            None => {
                let number =
                    writer.dirs().create(root, MARK, &NewNode::new(FileKind::Regular, 0o644, 0, 0))?;
                let acl = writer.acls().get(number)?;
                self.edit(POOL, |tree| {
                    tree.set(root, MARK, number);
                    tree.items.insert(number, Arc::new(Item { acl, ..Item::new(FileKind::Regular, 0o644) }));
                });
                number
            }
        };
        let bytes = step.to_le_bytes();
        writer.data().write(number, 0, &bytes, true)?;
        self.edit(POOL, |tree| tree.change(number, |item| item.bytes = Arc::new(Content::of(&bytes))));
        Ok(())
    }

    /// Runs operations on files, and writes the mark. None of it is on disk on return.
    ///
    /// # Errors
    /// Also if a txg was closed meanwhile: the step would span two txgs.
    pub fn change(&mut self) -> Result<()> {
        self.step += 1;
        self.writer(POOL)?;
        let group = self.spa.txgs.open();
        for _ in 0..=self.random.below(MOST) {
            let barred = self.barred.clone();
            let heads = self.model.heads.keys().filter(|name| Some(*name) != barred.as_ref());
            let datasets: Vec<String> = heads.cloned().collect();
            match self.pick(&datasets) {
                Some(name) if self.tree(&name).is_volume() => self.volume_op(&name)?,
                Some(name) => self.file_op(&name)?,
                None => {}
            }
        }
        self.mark()?;
        match self.spa.txgs.open() == group || self.may_split {
            true => Ok(()),
            false if self.syncs_splits => {
                self.was_split = true;
                self.spa.sync()
            }
            false => Err(Error::new(Kind::Invalid, SPLIT)),
        }
    }

    /// A whole step: files, mark, and often a change of datasets, a sync, or files that are committed.
    pub fn step(&mut self) -> Result<Ended> {
        match self.random.below(8) {
            0 => self.change().map(|()| Ended::Open),
            1 => {
                self.change()?;
                self.spa.sync().map(|()| Ended::Synced)
            }
            2 | 3 => {
                self.change()?;
                self.commit().map(Ended::Committed)
            }
            _ => self.dataset_step().map(|()| Ended::Synced),
        }
    }

    /// Commits some files.
    fn commit(&mut self) -> Result<Vec<(String, u64, Arc<Item>)>> {
        let (group, mut done) = (self.spa.txgs.open(), Vec::new());
        for _ in 0..=self.random.below(2) {
            let datasets: Vec<String> = self.model.heads.keys().cloned().collect();
            let Some(dataset) = self.pick(&datasets) else { break };
            if self.tree(&dataset).is_volume() {
                self.tell(format!("{dataset}: flush"));
                self.flush_volume(&dataset, group)?;
                let items = self.tree(&dataset).items.clone();
                done.extend(items.into_iter().map(|(number, item)| (dataset.clone(), number, item)));
                continue;
            }
            let (fs, tree) = (self.writer(&dataset)?, self.tree(&dataset));
            let files: Vec<u64> = tree.items.keys().copied().collect();
            let all = self.random.below(5) == 0;
            let Some(number) = self.pick(&files) else { continue };
            self.tell(format!("{dataset}: commit {number}, all {all}"));
            fs.fsync(if all { 0 } else { number })?;
            let kept = tree.items.iter().filter(|(n, _)| all || **n == number);
            done.extend(kept.map(|(n, item)| (dataset.clone(), *n, Arc::clone(item))));
        }
        Ok(done)
    }
}

/// The step that a pool has reached.
pub fn step_of(pool: &Pool) -> Result<u64> {
    let fs = Filesystem::open_committed(&pool.dsl.dataset(POOL)?)?;
    let mut bytes = [0; 8];
    let read = fs.root()?.child(MARK)?.read_at(0, &mut bytes)?;
    if read < bytes.len() {
        return Err(Error::corrupt("the mark is cut"));
    }
    Ok(u64::from_le_bytes(bytes))
}
