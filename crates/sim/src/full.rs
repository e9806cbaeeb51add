//! Pools that are filled to the last byte by each kind of operation, and emptied: every operation ends in "no
//! space" or "quota" at the call, the pool is never suspended, and files can always be removed afterwards.
//!
//! Layout, sizes, properties and operations follow from one seed.

use std::sync::Arc;

use crypt::Suite;
use engine::dsl::props::PropValue;
use engine::dsl::write::crypto::{Cipher, Encryption};
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::memory::limits::Limit;
use engine::spa::Spa;
use engine::{Error, Result};
use ondisk::ObjsetType;
use stdx::rng::Rng;
use zpl::write::{FsWriter, Overrides, create_fs, mount};

use crate::actor::is_refusal;
use crate::disk::Disk;
use crate::fill_ops::{Files, KINDS, Kind};
use crate::fill_tasks::{Made, TASKS, Task};
use crate::fill_volume::Volume;
use crate::image::Pages;
use crate::world::{self, Machine, POOL, Shape};
use crate::{check, keys};

/// Maximum dirty bytes of a txg: far more than the pool's reserve could cover.
const DIRTY: u64 = 512 << 20;
/// Bytes of the cache where threads are the machine's.
const ARC: u64 = 16 << 20;
/// Refusals that end a kind.
const REFUSALS: u64 = 3;

/// The amount of work.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Number of drawn kinds of operations.
    pub rounds: u64,
    /// Maximum operations of one kind.
    pub most: u64,
    /// Number of drawn kinds of dataset changes.
    pub tasks: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { rounds: 6, most: 12_000, tasks: 3 }
    }
}

/// A pool and its properties.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its devices.
    pub machine: Machine,
    /// Property of the file system.
    pub recordsize: u64,
    /// Property of the file system.
    pub copies: u64,
    /// Property of the file system, as a number.
    pub compression: u64,
    /// Whether blocks are deduplicated.
    pub dedup: bool,
    /// Whether the file system is encrypted.
    pub encrypted: bool,
    /// `quota` and `refquota` of the file system; 0 for none.
    pub quotas: [u64; 2],
    /// Whether extended attributes are stored in system attributes.
    pub xattr_sa: bool,
    /// Snapshots are taken occasionally, so that removed files are not freed.
    pub snapshots: bool,
    /// Allocations of at least so many bytes are refused as if space were fragmented.
    pub gangs: Option<u64>,
    /// The file system is a clone, and shares its first files with a snapshot.
    pub is_clone: bool,
    /// Number of threads that fill it at once; with more than one a seed does not repeat a run exactly.
    pub threads: u64,
}

fn one<T: Copy>(random: &mut Rng, all: &[T]) -> Option<T> {
    let at = random.below(all.len() as u64);
    all.get(usize::try_from(at).ok()?).copied()
}

impl Case {
    /// The pool of a seed.
    pub fn of(random: &mut Rng) -> Self {
        let shape = one(random, &Shape::ALL).unwrap_or(Shape::Single);
        let machine = Machine {
            log_device: random.below(4) == 0,
            classes: random.below(4) == 0,
            log_maps: random.below(4) != 0,
            ashift: one(random, &[None, Some(12)]).flatten(),
            ..shape.into()
        };
        let encrypted = random.below(4) == 0;
        let sizes = [512, 512, 1024, 4096, 8192, 32 << 10, 128 << 10, 1 << 20];
        Self {
            machine,
            recordsize: one(random, &sizes).unwrap_or(512),
            copies: 1 + random.below(if encrypted { 2 } else { 3 }),
            // off, lz4, gzip-1, zstd.
            compression: one(random, &[2, 2, 15, 5, 16]).unwrap_or(2),
            dedup: random.below(5) == 0,
            encrypted,
            quotas: [(); 2].map(|()| if random.below(6) == 0 { 8 << 20 } else { 0 }),
            xattr_sa: random.below(2) == 0,
            snapshots: random.below(2) == 0,
            gangs: (random.below(8) == 0).then_some(8 << 10),
            is_clone: random.below(4) == 0,
            threads: if random.below(3) == 0 { 4 } else { 1 },
        }
    }
}

/// The results.
#[derive(Debug, Clone, Default)]
pub struct Filled {
    /// Kinds of operations, with the number of successes and of refusals.
    pub rounds: Vec<(Kind, u64, u64)>,
    /// The same for changes of datasets, in the full pool.
    pub tasks: Vec<(Task, u64, bool)>,
    /// Removals that were refused while snapshots held everything.
    pub kept: u64,
}

struct Full {
    spa: Arc<Spa>,
    case: Case,
    random: Rng,
    name: String,
    fs: Arc<FsWriter>,
    files: Files,
    /// Files of the other threads.
    others: Vec<Files>,
    volume: Volume,
    snapshots: Vec<String>,
    tasks: Made,
    filled: Filled,
}

/// Repeats one kind of operation; returns it with the number of successes and of refusals.
fn repeat(kind: Kind, most: u64, step: &mut dyn FnMut() -> Result<()>) -> Result<(Kind, u64, u64)> {
    let (mut done, mut refused) = (0, 0);
    while done < most && refused < REFUSALS {
        match step() {
            Ok(()) => done += 1,
            Err(e) if is_refusal(&e) => refused += 1,
            Err(e) => return Err(Error::new(e.kind(), format!("{kind:?} after {done}")).because(e)),
        }
    }
    Ok((kind, done, refused))
}

/// Fills the pool of a seed in several ways, and empties it.
///
/// # Errors
/// The operation that neither succeeded nor was refused.
pub fn fill_and_empty(seed: u64, effort: Effort) -> std::result::Result<(Filled, Vec<Pages>), String> {
    let mut random = Rng::new(seed);
    let case = Case::of(&mut random);
    fill_case(seed, case, &[], effort).map_err(|why| format!("{case:?}: {why}"))
}

/// Fills one pool, first with the operations of `kinds`.
///
/// # Errors
/// The operation that neither succeeded nor was refused.
pub fn fill_case(
    seed: u64,
    case: Case,
    kinds: &[Kind],
    effort: Effort,
) -> std::result::Result<(Filled, Vec<Pages>), String> {
    let env = if case.threads > 1 { Env::system(ARC).map_err(said)? } else { world::env(seed) };
    env.memory.set(Limit::DirtyMax, DIRTY)?;
    let blank = case.machine.blank();
    let disks: Vec<Arc<Disk>> = (0..).zip(blank).map(|(n, pages)| Disk::over(n, pages, None)).collect();
    let spa = world::create_pool(&env, case.machine, &world::as_devices(&disks)).map_err(said)?;
    if let Some(size) = case.gangs {
        spa.space.force_ganging(size);
    }
    if case.threads > 1 {
        spa.start_thread().map_err(said)?;
    }
    let mut full = Full::begin(spa, case, Rng::new(seed ^ 1)).map_err(said)?;
    full.work(kinds, effort).map_err(|e| format!("{:?}: {e}", full.filled))?;
    let Full { spa, filled, fs, .. } = full;
    fs.unmount().and_then(|()| spa.export()).map_err(|e| format!("{filled:?}: the end: {e}"))?;
    let pages: Vec<Pages> = disks.iter().map(|disk| disk.pages()).collect();
    let pool = check::opened(&world::as_devices(&world::disks_of(&pages)))?;
    if !case.encrypted {
        check::whole(&pool).map_err(|why| format!("{filled:?}: {why}"))?;
    }
    Ok((filled, pages))
}

#[allow(clippy::needless_pass_by_value, reason = "a function for map_err")]
fn said(e: Error) -> String {
    e.to_string()
}

/// Sets properties of a file system.
fn set<const N: usize>(spa: &Arc<Spa>, name: &str, properties: [(&'static str, u64); N]) -> Result<()> {
    let name = name.to_owned();
    spa.dsl_task(move |tasks| {
        let values = properties.map(|(prop, value)| (prop, Some(PropValue::Number(value))));
        tasks.set(&name, &values, SettingSource::Local)
    })
}

impl Full {
    fn begin(spa: Arc<Spa>, case: Case, random: Rng) -> Result<Self> {
        let mut name = POOL.to_owned();
        if case.encrypted {
            name = format!("{POOL}/secret");
            let (made, fs) = (name.clone(), world::new_fs(&spa.pool.env));
            let suite = Cipher::Suite(Suite::Aes256Gcm);
            let encryption = Encryption { cipher: suite, key: Some(keys::new_key(5)?) };
            spa.dsl_task(move |tasks| {
                let fill = &mut |live: &Arc<engine::dsl::write::LiveDataset>, tx: &engine::dmu::Tx| {
                    create_fs(&live.objset, tx, &fs)
                };
                tasks.create_encrypted(&made, ObjsetType::Zfs, 0, encryption, fill)
            })?;
        }
        let properties = [
            ("recordsize", case.recordsize),
            ("copies", case.copies),
            ("compression", case.compression),
            ("dedup", if case.dedup { 8 } else { 2 }),
            ("xattr", if case.xattr_sa { 2 } else { 1 }),
        ];
        set(&spa, &name, properties)?;
        let mut fs = mount(&spa, &name, Overrides::default())?;
        let (mut random, mut files) = (random, Files::new(&fs, case.recordsize));
        // Objects of the clone have the same numbers.
        if case.is_clone {
            for kind in [Kind::Write, Kind::Tiny, Kind::Dirs] {
                (0..8).try_for_each(|_| files.step(&fs, kind, &mut random))?;
            }
            fs.unmount()?;
            let (origin, clone) = (format!("{name}@origin"), format!("{name}/clone"));
            let (snapshot, made) = (origin.clone(), clone.clone());
            spa.dsl_task(move |tasks| tasks.snapshot(&[&snapshot], &[]))?;
            spa.dsl_task(move |tasks| tasks.clone_snapshot(&origin, &made))?;
            name = clone;
            fs = mount(&spa, &name, Overrides::default())?;
        }
        let [quota, refquota] = case.quotas;
        set(&spa, &name, [("quota", quota), ("refquota", refquota)])?;
        let others = (1..case.threads).map(|n| files.beside(&fs, n)).collect();
        let volume = Volume::new(&name, case.recordsize);
        let (snapshots, filled, tasks) = (Vec::new(), Filled::default(), Made::default());
        Ok(Self { spa, case, random, name, fs, files, others, volume, snapshots, tasks, filled })
    }

    fn work(&mut self, kinds: &[Kind], effort: Effort) -> Result<()> {
        for &kind in kinds {
            self.fill(kind, effort.most)?;
        }
        for _ in 0..effort.rounds {
            let kind = one(&mut self.random, &KINDS).unwrap_or(Kind::Write);
            self.fill(kind, effort.most)?;
            match self.random.below(4) {
                0 => self.spa.sync()?,
                // The freed space cannot be used at once.
                1 => drop(self.remove_some(2)?),
                2 => drop(self.remove_some(10)?),
                _ => {}
            }
            if self.case.snapshots && self.random.below(2) == 0 {
                self.snapshot()?;
            }
        }
        self.change_datasets(effort)?;
        self.empty()
    }

    /// Changes datasets in a pool that is full or nearly so.
    fn change_datasets(&mut self, effort: Effort) -> Result<()> {
        for _ in 0..effort.tasks {
            let task = one(&mut self.random, &TASKS).unwrap_or(Task::Create);
            let named = |e: Error| Error::new(e.kind(), format!("{task:?}")).because(e);
            let (done, refused) = self.tasks.fill(&self.spa, task, effort.most / 8).map_err(named)?;
            self.filled.tasks.push((task, done, refused));
        }
        Ok(())
    }

    /// Repeats one kind of operation until it is refused, while the other threads do the same with their
    /// kinds.
    fn fill(&mut self, kind: Kind, most: u64) -> Result<()> {
        let (spa, fs, random) = (&self.spa, &self.fs, &mut self.random);
        let mut beside = Vec::new();
        for files in &mut self.others {
            let kind = one(random, &KINDS).filter(|kind| !kind.is_of_volume()).unwrap_or(Kind::Write);
            beside.push((files, kind, Rng::new(random.next_u64())));
        }
        let (files, volume) = (&mut self.files, &mut self.volume);
        let rounds = std::thread::scope(|scope| {
            let begun: Vec<_> = beside
                .into_iter()
                .map(|(files, kind, mut random)| {
                    scope.spawn(move || repeat(kind, most, &mut || files.step(fs, kind, &mut random)))
                })
                .collect();
            let first = repeat(kind, most, &mut || match kind.is_of_volume() {
                true => volume.step(spa, kind, random),
                false => files.step(fs, kind, random),
            });
            let panicked = |_| Err(Error::corrupt("a thread that fills the pool panicked"));
            let others: Vec<_> = begun.into_iter().map(|t| t.join().unwrap_or_else(panicked)).collect();
            std::iter::once(first).chain(others).collect::<Result<Vec<_>>>()
        })?;
        self.filled.rounds.extend(rounds);
        self.spa.sync().map_err(|e| Error::new(e.kind(), format!("sync of {kind:?}")).because(e))
    }

    fn snapshot(&mut self) -> Result<()> {
        let name = format!("{}@s{}", self.name, self.snapshots.len());
        let made = name.clone();
        match self.spa.dsl_task(move |tasks| tasks.snapshot(&[&made], &[])) {
            Ok(()) => self.snapshots.push(name),
            Err(e) if is_refusal(&e) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Removes one in `of` files; returns the number of refused removals.
    fn remove_some(&mut self, of: u64) -> Result<u64> {
        let mut refused = 0;
        for files in self.others.iter_mut().chain([&mut self.files]) {
            refused += files.remove(&self.fs, &mut |random| random.below(of) == 0, &mut self.random)?;
        }
        Ok(refused)
    }

    /// Removes everything; while snapshots hold it that may be refused.
    fn empty(&mut self) -> Result<()> {
        let refused = self.remove_some(1)?;
        self.filled.kept = refused;
        if refused > 0 && self.snapshots.is_empty() && self.tasks.is_empty() {
            return Err(Error::corrupt(format!("{refused} files can't be removed")));
        }
        for name in std::mem::take(&mut self.snapshots) {
            let named = |e: Error| Error::new(e.kind(), "a snapshot can't be destroyed").because(e);
            self.spa.dsl_task(move |tasks| tasks.destroy(&name, false)).map_err(named)?;
        }
        let named = |e: Error| Error::new(e.kind(), "the volume can't be discarded and destroyed").because(e);
        self.volume.destroy(&self.spa).map_err(named)?;
        let named = |e: Error| Error::new(e.kind(), "a dataset can't be destroyed").because(e);
        self.tasks.destroy(&self.spa).map_err(named)?;
        (0..4).try_for_each(|_| self.spa.sync())?;
        if self.remove_some(1)? > 0 {
            return Err(Error::corrupt("files can't be removed once the snapshots are gone"));
        }
        (0..4).try_for_each(|_| self.spa.sync())?;
        let named = |e: Error| Error::new(e.kind(), "an emptied pool takes nothing").because(e);
        self.files.step(&self.fs, Kind::Write, &mut self.random).map_err(named)?;
        self.spa.sync()
    }
}
