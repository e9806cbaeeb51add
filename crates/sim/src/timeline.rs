//! The state after each step and the promises, against which a restarted machine is checked.

use std::sync::Arc;

use blkdev::Device;
use engine::spa::{ImportOptions, OpenOptions, Reach, Spa, import};
use ondisk::Blkptr;
use stdx::rng::Rng;

use crate::actor::{Actor, Change, Ended, step_of};
use crate::keys;
use crate::model::{Known, Model, Tree, compare, read_dataset};
use crate::promise::{Promises, is_kept};
use crate::world;

/// The state that a pool returns to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Back {
    /// The newest.
    #[default]
    Nowhere,
    /// To the state of its checkpoint.
    Checkpoint,
    /// To the state of so many txgs before (`zpool import -T`).
    By(u64),
}

/// A start of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Boot {
    /// A number that no earlier start had; names of logs must not repeat.
    pub number: u64,
    /// The state that the pool returns to.
    pub back: Back,
}

impl From<u64> for Boot {
    fn from(number: u64) -> Self {
        Self { number, back: Back::Nowhere }
    }
}

/// The history since the pool was created.
#[derive(Debug, Default)]
pub struct Timeline {
    /// The state after each step; states that were lost are forgotten.
    states: Vec<Model>,
    /// The promises.
    pub promises: Promises,
    history: Vec<Change>,
}

impl Timeline {
    /// The first state.
    pub fn begin(actor: &Actor) -> Self {
        Self { states: vec![actor.model.clone()], ..Self::default() }
    }

    /// Records a step; returns the number of promises, if it adds one.
    pub fn note(&mut self, actor: &mut Actor, ended: Ended) -> Option<u64> {
        self.states.push(actor.model.clone());
        self.history.append(&mut actor.history);
        self.promises.note(actor.step, ended, self.history.len())
    }

    /// The last step is on disk; returns the number of promises.
    pub fn all_safe(&mut self, actor: &Actor) -> u64 {
        self.promises.note(actor.step, Ended::Synced, self.history.len()).unwrap_or(0)
    }

    /// The machine restarted at an earlier step: later ones are void, and the promises have been checked.
    pub fn forget_after(&mut self, actor: &Actor) {
        self.promises = Promises::default();
        self.states.truncate(usize::try_from(actor.step).unwrap_or(0) + 1);
    }

    /// The state after `step`, which must not be older than the first `promised` promises require.
    pub fn state(&self, step: u64, promised: u64) -> Result<&Model, String> {
        let wanted = self.promises.step(promised);
        if step < wanted {
            return Err(format!("step {wanted} was promised and {step} is there"));
        }
        let state = usize::try_from(step).ok().and_then(|step| self.states.get(step));
        state.ok_or(format!("step {step} never was"))
    }

    /// Imports the pool for writing: it matches the state after a step, and after the log replay committed changes
    /// are present. `known` holds earlier comparisons.
    pub fn resume(
        &self,
        devices: &[Device],
        promised: u64,
        boot: Boot,
        known: &Known,
    ) -> Result<Actor, String> {
        let mut spa = started(devices, boot)?;
        let view = |spa: &Spa| spa.view().map_err(|e| format!("it can't be read: {e}"));
        let step = step_of(&*view(&spa)?).map_err(|e| format!("its mark is damaged: {e}"))?;
        let state = self.state(step, promised)?;
        let mut random = Rng::new(boot.number ^ step);
        if random.below(2) == 0 && state.heads.values().any(|head| head.encrypted) {
            // The keys are missing for a while, perhaps until the next boot; logs wait.
            keys::stay_locked(&spa, state)?;
            if random.below(2) == 0 {
                spa.export().map_err(|e| format!("it can't be exported without its keys: {e}"))?;
                spa = started(devices, (boot.number ^ 1 << 62).into())?;
            }
        }
        compare(&*view(&spa)?, state, known).map_err(|why| format!("after step {step}: {why}"))?;
        let mut actor = Actor::with(spa, state.clone(), step, random);
        let names: Vec<String> = actor.model.heads.keys().cloned().collect();
        let before: Vec<Blkptr> = names.iter().map(|name| root_of(&actor, name)).collect::<Result<_, _>>()?;
        actor.mount_all().map_err(|e| format!("it can't be mounted: {e}"))?;
        actor.spa.sync().map_err(|e| e.to_string())?;
        for (name, before) in names.iter().zip(before) {
            // File systems unchanged by a log have been compared already.
            let tree = match root_of(&actor, name)? == before {
                true => actor.tree(name),
                false => Arc::new(live_tree(&actor, name).map_err(|why| format!("{name}: {why}"))?),
            };
            self.kept(promised, step, name, &tree).map_err(|why| format!("{name}: {why}"))?;
            if let Some(head) = actor.model.heads.get_mut(name) {
                head.tree = tree;
            }
        }
        Ok(actor)
    }

    /// Committed changes are present in a file system whose log was replayed.
    fn kept(&self, promised: u64, step: u64, name: &str, tree: &Tree) -> Result<(), String> {
        for ((dataset, number), (item, changes)) in self.promises.files(promised, step) {
            if dataset != name {
                continue;
            }
            let later = self.history.iter().skip(changes);
            let later: Vec<&Change> = later.filter(|c| c.dataset == name && c.number == number).collect();
            is_kept(tree, number, item, &later)?;
        }
        Ok(())
    }
}

/// The pool on `devices`, imported for writing.
fn started(devices: &[Device], boot: Boot) -> Result<Arc<Spa>, String> {
    let source = world::found(devices).ok_or("no pool is found")?;
    let newest = source.uberblocks.iter().map(|found| found.uberblock.txg).max().unwrap_or(0);
    let open = match boot.back {
        Back::Nowhere => OpenOptions::default(),
        Back::Checkpoint => OpenOptions { checkpoint: true, ..OpenOptions::default() },
        Back::By(txgs) => {
            OpenOptions { txg: Some(newest - txgs), reach: Reach::Extreme, ..OpenOptions::default() }
        }
    };
    let options = ImportOptions {
        open,
        hostid: 1,
        hostname: "sim".into(),
        needs_logs: true,
        ..ImportOptions::default()
    };
    import(&world::env(boot.number), source, &options).map_err(|e| format!("it can't be imported: {e}"))
}

/// The on-disk location of a head's root block.
fn root_of(actor: &Actor, name: &str) -> Result<Blkptr, String> {
    Ok(actor.spa.pool.dsl.dataset(name).map_err(|e| e.to_string())?.phys.bp)
}

/// The content of a mounted file system, all of it on disk.
fn live_tree(actor: &Actor, name: &str) -> Result<Tree, String> {
    read_dataset(&actor.spa.pool.dsl.dataset(name).map_err(|e| e.to_string())?)
}
