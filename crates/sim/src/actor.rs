//! Who works on the simulated pool: random steps, each of them operations on files, a mark, and perhaps a change of
//! datasets, and the model of what must be there after each.
//!
//! All of a step lies in one transaction group: nothing closes groups but the actor, since there are no threads. The
//! mark is the content of a file of the root file system, so a pool says itself which step it is at.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use engine::spa::{Pool, Spa};
use engine::{Error, Kind, Result};
use stdx::rng::Rng;
use zpl::write::{FsWriter, NewNode, Options};
use zpl::{FileKind, Filesystem};

use crate::model::{Head, Item, Model, Tree};
use crate::world::POOL;

/// File of the root file system that says which step was the last.
const MARK: &[u8] = b"step";
/// Operations of a step at most.
const MOST: u64 = 6;
/// Operations that are told of.
const TOLD: usize = 24;
/// Largest block of a file while nothing else is set.
const RECORD: u64 = 128 << 10;

/// Works on a pool.
#[derive(Debug)]
pub struct Actor {
    /// The pool.
    pub spa: Arc<Spa>,
    /// What must be there.
    pub model: Model,
    /// Steps done.
    pub step: u64,
    /// Bytes of files are kept below this.
    pub budget: u64,
    /// What was done last, for people.
    pub told: VecDeque<String>,
    pub(crate) random: Rng,
    /// Names of datasets and snapshots that were used.
    pub(crate) named: u64,
    /// Files without names that are open.
    pub(crate) open: Vec<(String, u64)>,
    writers: BTreeMap<String, Arc<FsWriter>>,
}

/// Whether an operation may fail so in a world without faults.
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
        actor.mark()?;
        actor.spa.sync()?;
        Ok(actor)
    }

    /// Goes on with a pool that is as `model` says, after `step`.
    pub fn with(spa: Arc<Spa>, model: Model, step: u64, random: Rng) -> Self {
        // Names that are new to any state that this may have come from.
        let named = step * 100;
        let (open, writers) = (Vec::new(), BTreeMap::new());
        Self { spa, model, step, budget: 3 << 20, told: VecDeque::new(), random, named, open, writers }
    }

    /// The file system of that name, open.
    pub fn writer(&mut self, dataset: &str) -> Result<Arc<FsWriter>> {
        if let Some(writer) = self.writers.get(dataset) {
            return Ok(Arc::clone(writer));
        }
        let spa = &self.spa;
        let live = spa.datasets.open(&**spa, spa.pool.dsl.dataset(dataset)?.number)?;
        let clock = Arc::clone(&spa.pool.env.clock);
        let options = self.options(dataset);
        let writer = FsWriter::open(&live.objset, Arc::clone(spa) as _, clock, options, spa.pool.env.guid())?;
        self.writers.insert(dataset.to_owned(), Arc::clone(&writer));
        Ok(writer)
    }

    fn options(&self, dataset: &str) -> Options {
        let recordsize = self.model.setting(dataset, "recordsize").unwrap_or(RECORD);
        let xattr_sa = self.model.setting(dataset, "xattr").is_none_or(|value| value != 1);
        Options { recordsize, xattr_sa, ..Options::default() }
    }

    /// Properties changed.
    pub(crate) fn refresh_options(&self) {
        for (name, writer) in &self.writers {
            writer.set_options(self.options(name));
        }
    }

    /// File systems are opened again: their names or what they hold changed under them.
    pub(crate) fn close_all(&mut self) {
        self.open.clear();
        self.writers.clear();
    }

    /// Notes what is being done.
    pub(crate) fn tell(&mut self, what: String) {
        self.told.push_back(format!("step {}: {what}", self.step));
        if self.told.len() > TOLD {
            self.told.pop_front();
        }
    }

    /// What was done last, one line each.
    pub fn story(&self) -> String {
        self.told.iter().map(|line| format!("\n  {line}")).collect()
    }

    /// Changes the model of a head.
    pub(crate) fn edit(&mut self, dataset: &str, work: impl FnOnce(&mut Tree)) {
        if let Some(head) = self.model.heads.get_mut(dataset) {
            work(Arc::make_mut(&mut head.tree));
        }
    }

    /// The model of a head.
    pub(crate) fn tree(&self, dataset: &str) -> Arc<Tree> {
        self.model.heads.get(dataset).map(|head| Arc::clone(&head.tree)).unwrap_or_default()
    }

    /// One of them.
    pub(crate) fn pick<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        let at = self.random.below(all.len() as u64);
        all.get(usize::try_from(at).ok()?).cloned()
    }

    /// Says in the pool that this step is reached.
    fn mark(&mut self) -> Result<()> {
        let writer = self.writer(POOL)?;
        let (root, step) = (writer.root, self.step);
        let number = match self.tree(POOL).get(root, MARK) {
            Some(number) => number,
            None => {
                let number = writer.create(root, MARK, &NewNode::new(FileKind::Regular, 0o644, 0, 0))?;
                self.edit(POOL, |tree| {
                    tree.set(root, MARK, number);
                    tree.items.insert(number, Arc::new(Item::new(FileKind::Regular, 0o644)));
                });
                number
            }
        };
        let bytes = step.to_le_bytes();
        writer.write(number, 0, &bytes, true)?;
        self.edit(POOL, |tree| tree.change(number, |item| item.bytes = Arc::new(bytes.to_vec())));
        Ok(())
    }

    /// Operations on files, and the mark. Nothing of it is on disk when this returns.
    pub fn change(&mut self) -> Result<()> {
        self.step += 1;
        for _ in 0..=self.random.below(MOST) {
            let datasets: Vec<String> = self.model.heads.keys().cloned().collect();
            if let Some(dataset) = self.pick(&datasets) {
                self.file_op(&dataset)?;
            }
        }
        self.mark()
    }

    /// A whole step: files, mark, and often a change of datasets or a sync. True: all of it is on disk.
    pub fn step(&mut self) -> Result<bool> {
        self.change()?;
        match self.random.below(4) {
            0 => Ok(false),
            1 => self.spa.sync().map(|()| true),
            _ => {
                self.dataset_op()?;
                Ok(true)
            }
        }
    }
}

/// The step that a pool is at.
pub fn step_of(pool: &Pool) -> Result<u64> {
    let fs = Filesystem::open_committed(&pool.dsl.dataset(POOL)?)?;
    let mut bytes = [0; 8];
    let read = fs.root()?.child(MARK)?.read_at(0, &mut bytes)?;
    if read < bytes.len() {
        return Err(Error::corrupt("the mark is cut"));
    }
    Ok(u64::from_le_bytes(bytes))
}
