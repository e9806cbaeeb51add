//! A power cut at every write and flush of a small workload with dedup, in both forms of tables: contents and references are
//! those of an acknowledged state, zdb finds nothing, and the tables end with the last reference.
//!
//! A spread sample in the default run; all moments by hand and in `make test-long`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::ddt::prune::Prune;
use engine::ddt::{self, Totals};
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::{ImportOptions, Spa, import};
use sim::check;
use sim::disk::{Event, Record};
use sim::image::{Pages, Replay};
use sim::world::{self, Machine, POOL, Shape};
use stdx::rng::Rng;
use testkit::zdb::Judge;
use zcommon::features::Feature;
use zpl::FileKind;
use zpl::write::{CloneFrom, FsWriter, NewFs, NewNode, Overrides, create_fs, mount};

const BLOCK: usize = 4096;
const SNAPSHOT: &str = "sim@a";
const COPY: &str = "sim/copy";
const SHA256: u64 = 8;
/// Txgs in which logs are flushed and frees end.
const SETTLED: usize = 12;

/// A block pointer of the model: born by one write. Snapshots and clones share it.
type Pointer = usize;
/// Blocks of a file; 0 is a hole.
type File = Vec<Pointer>;
/// Files of a head or snapshot.
type Tree = BTreeMap<&'static str, File>;

/// A state of the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    /// By names of heads and snapshots.
    trees: BTreeMap<&'static str, Tree>,
    /// Copies that the table has, by content.
    listed: BTreeMap<u64, usize>,
}

impl State {
    fn live(&self) -> BTreeSet<Pointer> {
        self.trees.values().flat_map(Tree::values).flatten().copied().filter(|pointer| *pointer > 0).collect()
    }
}

/// All pointers that ever were, and the states.
#[derive(Debug, Default)]
struct Model {
    /// Content and copy of each pointer but the first.
    pointers: Vec<(u64, usize)>,
    copies: usize,
    now: State,
    states: Vec<State>,
}

impl Model {
    fn of(&self, pointer: Pointer) -> (u64, usize) {
        self.pointers[pointer - 1]
    }

    fn pointer(&mut self, tag: u64, copy: usize) -> Pointer {
        self.pointers.push((tag, copy));
        self.pointers.len()
    }

    /// Entries and references of the table.
    fn counts(&self, state: &State) -> (u64, u64) {
        let listed = |pointer: &Pointer| {
            let (tag, copy) = self.of(*pointer);
            (state.listed.get(&tag) == Some(&copy)).then_some(tag)
        };
        let refs: Vec<u64> = state.live().iter().filter_map(listed).collect();
        (refs.iter().collect::<BTreeSet<_>>().len() as u64, refs.len() as u64)
    }

    /// Whether a pruned block has been cloned. Of OpenZFS 2.3.2, whose zdb then fails, that is a known fault.
    fn has_cloned_pruned(&self, state: &State) -> bool {
        let mut seen = BTreeSet::new();
        let live = state.live();
        let pruned = live.iter().map(|pointer| self.of(*pointer));
        pruned.filter(|(tag, copy)| state.listed.get(tag) != Some(copy)).any(|(_, copy)| !seen.insert(copy))
    }

    /// Entries without references leave the table.
    fn forget(&mut self) {
        let used: BTreeSet<(u64, usize)> = self.now.live().iter().map(|pointer| self.of(*pointer)).collect();
        self.now.listed.retain(|tag, copy| used.contains(&(*tag, *copy)));
    }

    fn bytes(&self, file: &File) -> Vec<u8> {
        let bytes = |pointer: &Pointer| match *pointer {
            0 => vec![0; BLOCK],
            pointer => block(self.of(pointer).0),
        };
        file.iter().flat_map(bytes).collect()
    }
}

fn block(tag: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(tag + 1).fill(&mut bytes);
    bytes
}

/// The pool while it is worked on.
struct Bed {
    spa: Arc<Spa>,
    heads: BTreeMap<&'static str, Arc<FsWriter>>,
    record: Arc<Record>,
    model: Model,
}

/// Logs change sides every few txgs, and take several to be flushed.
fn env(seed: u64) -> Env {
    let env = world::env(seed);
    for (limit, value) in [(Limit::DedupLogTxgMax, 3), (Limit::DedupFlushMin, 3), (Limit::DedupFlushTxgs, 3)]
    {
        env.memory.limits.set(limit, value).unwrap();
    }
    env
}

fn file(fs: &FsWriter, name: &str) -> u64 {
    match fs.dirs().lookup(fs.root, name.as_bytes()).unwrap() {
        Some(entry) => entry.object,
        None => {
            fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap()
        }
    }
}

impl Bed {
    fn new(fast: bool, seed: u64) -> Self {
        let (env, record) = (env(seed), Arc::new(Record::default()));
        let machine = Machine { log_maps: fast, ..Shape::Single.into() };
        let devices = world::as_devices(&world::recorded(&machine.blank(), &record));
        // Both zdbs know its features.
        let root = NewFs { projects: false, ..world::new_fs(&env) };
        let spa =
            world::pool_on(&env, (POOL, machine), devices, &[], &|o, tx| create_fs(o, tx, &root)).unwrap();
        let all = [("recordsize", BLOCK as u64), ("dedup", SHA256), ("compression", 2), ("atime", 0)];
        let all = all.map(|(name, value)| (name, Some(PropValue::Number(value))));
        spa.dsl_task(move |tasks| tasks.set(POOL, &all, SettingSource::Local)).unwrap();
        let mut model = Model::default();
        model.now.trees.insert(POOL, Tree::new());
        let heads = [(POOL, mount(&spa, POOL, Overrides::default()).unwrap())].into();
        let mut bed = Self { spa, heads, record, model };
        bed.spa.sync().unwrap();
        bed.promise();
        bed
    }

    /// The present state is on disk.
    fn promise(&mut self) {
        self.model.forget();
        self.record.mark(self.model.states.len() as u64);
        self.model.states.push(self.model.now.clone());
    }

    fn synced(&mut self) {
        self.spa.sync().unwrap();
        self.promise();
    }

    fn write(&mut self, head: &'static str, name: &'static str, at: usize, tags: &[u64]) {
        let fs = &self.heads[head];
        let bytes: Vec<u8> = tags.iter().flat_map(|tag| block(*tag)).collect();
        fs.data().write(file(fs, name), (at * BLOCK) as u64, &bytes, true).unwrap();
        let pointers: Vec<Pointer> = tags
            .iter()
            .map(|tag| {
                let fresh = self.model.copies + 1;
                let copy = *self.model.now.listed.entry(*tag).or_insert(fresh);
                self.model.copies = self.model.copies.max(copy);
                self.model.pointer(*tag, copy)
            })
            .collect();
        let have = self.model.now.trees.get_mut(head).unwrap().entry(name).or_default();
        have.resize(have.len().max(at + tags.len()), 0);
        have[at..at + tags.len()].copy_from_slice(&pointers);
    }

    fn punch(&mut self, head: &'static str, name: &'static str, at: usize) {
        let fs = &self.heads[head];
        fs.data().punch(file(fs, name), (at * BLOCK) as u64, BLOCK as u64).unwrap();
        self.model.now.trees.get_mut(head).unwrap().get_mut(name).unwrap()[at] = 0;
    }

    fn unlink(&mut self, head: &'static str, name: &'static str) {
        let fs = &self.heads[head];
        fs.dirs().unlink(fs.root, name.as_bytes()).unwrap();
        self.model.now.trees.get_mut(head).unwrap().remove(name);
    }

    /// Another file gets the same blocks.
    fn reflink(&mut self, head: &'static str, from: &'static str, to: &'static str) {
        let fs = &self.heads[head];
        let source = self.model.now.trees[head][from].clone();
        let len = (source.len() * BLOCK) as u64;
        let done =
            fs.clones().clone_range((CloneFrom::File(fs, file(fs, from)), 0), (file(fs, to), 0), len, true);
        assert_eq!(done.unwrap(), len);
        let cloned = source.iter().map(|pointer| match *pointer {
            0 => 0,
            pointer => {
                let (tag, copy) = self.model.of(pointer);
                self.model.pointer(tag, copy)
            }
        });
        let cloned: File = cloned.collect();
        self.model.now.trees.get_mut(head).unwrap().insert(to, cloned);
    }

    fn prune(&mut self) {
        (0..SETTLED).for_each(|_| self.synced());
        if !self.spa.features.is_enabled(Feature::FastDedup) {
            return;
        }
        self.spa.sharing().prune_ddt(Prune::Age(0)).unwrap();
        let mut refs: BTreeMap<usize, usize> = BTreeMap::new();
        let live = self.model.now.live();
        live.iter().for_each(|pointer| *refs.entry(self.model.of(*pointer).1).or_default() += 1);
        let before = self.model.now.listed.len();
        self.model.now.listed.retain(|_, copy| refs[copy] > 1);
        assert!(self.model.now.listed.len() < before, "something is pruned");
        assert_eq!(counts(&self.spa), self.model.counts(&self.model.now), "pruned");
        self.promise();
    }

    fn work(&mut self) {
        self.write(POOL, "a", 0, &[1, 2, 3, 1, 4, 5, 6, 7]);
        self.write(POOL, "b", 0, &[1, 1, 8, 9]);
        self.synced();
        self.write(POOL, "a", 1, &[10, 1]);
        self.punch(POOL, "b", 0);
        self.synced();
        self.write(POOL, "c", 0, &[2, 11, 11, 12]);
        // The log of a file system has it first.
        self.heads[POOL].fsync(0).unwrap();
        self.promise();
        self.write(POOL, "b", 3, &[13]);
        self.synced();
        self.spa.dsl_task(|tasks| tasks.snapshot(&[SNAPSHOT], &[])).unwrap();
        let tree = self.model.now.trees[POOL].clone();
        self.model.now.trees.insert(SNAPSHOT, tree);
        self.promise();
        self.unlink(POOL, "b");
        self.write(POOL, "a", 4, &[1, 14, 2]);
        self.synced();
        self.spa.dsl_task(|tasks| tasks.clone_snapshot(SNAPSHOT, COPY).map(drop)).unwrap();
        let tree = self.model.now.trees[SNAPSHOT].clone();
        self.model.now.trees.insert(COPY, tree);
        self.promise();
        self.heads.insert(COPY, mount(&self.spa, COPY, Overrides::default()).unwrap());
        self.write(COPY, "d", 0, &[15, 1, 7, 16]);
        self.write(COPY, "a", 0, &[17]);
        self.synced();
        self.reflink(POOL, "a", "e");
        self.synced();
        self.prune();
        // Pruned blocks are written again, cloned, and freed.
        self.write(POOL, "f", 0, &[12, 13, 15, 17, 20]);
        self.synced();
        self.reflink(COPY, "d", "g");
        self.synced();
        self.unlink(COPY, "d");
        self.unlink(POOL, "e");
        self.synced();
        self.heads.remove(COPY).unwrap().unmount().unwrap();
        self.spa.dsl_task(|tasks| tasks.destroy(COPY, false)).unwrap();
        self.model.now.trees.remove(COPY);
        self.promise();
        self.spa.dsl_task(|tasks| tasks.destroy(SNAPSHOT, false)).unwrap();
        self.model.now.trees.remove(SNAPSHOT);
        self.promise();
        for _ in 0..SETTLED {
            self.synced();
        }
        assert_eq!(counts(&self.spa), self.model.counts(&self.model.now), "before the last files");
        for name in ["a", "c", "f"] {
            self.unlink(POOL, name);
            self.synced();
        }
        for _ in 0..SETTLED {
            self.synced();
        }
        self.heads.remove(POOL).unwrap().unmount().unwrap();
        self.spa.export().unwrap();
    }
}

/// Entries and references that the statistics count.
fn counts(spa: &Spa) -> (u64, u64) {
    let tables = ddt::tables(&spa.mos.view(), &mut Vec::new());
    let all = Totals::of(&tables, &|_| 0).all();
    (all.blocks, all.ref_blocks)
}

/// Files of a head.
fn content(fs: &FsWriter) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs.dirs().entries(fs.root).unwrap() {
        let mut bytes = vec![0; fs.attrs().get(entry.object).unwrap().size as usize];
        fs.data().read(entry.object, 0, &mut bytes).unwrap();
        all.insert(String::from_utf8_lossy(&entry.name).into_owned(), bytes);
    }
    all
}

fn pages(devices: &[Arc<sim::disk::Disk>]) -> Vec<Pages> {
    devices.iter().map(|disk| disk.pages()).collect()
}

impl Model {
    /// Whether the heads have the content of this state.
    fn fits(&self, state: &State, found: &BTreeMap<&'static str, BTreeMap<String, Vec<u8>>>) -> bool {
        let wanted = state.trees.iter().filter(|(name, _)| !name.contains('@'));
        let wanted: BTreeMap<_, BTreeMap<_, _>> = wanted
            .map(|(head, tree)| {
                (*head, tree.iter().map(|(name, file)| ((*name).to_owned(), self.bytes(file))).collect())
            })
            .collect();
        wanted == *found
    }

    /// Imports an image, compares it, frees everything, and compares again.
    fn check(&self, image: &[Pages], promised: usize, shows: bool) -> Result<(), String> {
        let disks = world::disks_of(image);
        let devices = world::as_devices(&disks);
        let opened = || {
            let source = world::found(&devices).ok_or("no pool is found")?;
            let options = ImportOptions { force: true, ..ImportOptions::default() };
            import(&env(2), source, &options).map_err(|e| format!("import: {e}"))
        };
        let spa = opened()?;
        let mut heads = BTreeMap::new();
        for name in [POOL, COPY].into_iter().filter(|name| spa.pool.dsl.dataset(name).is_ok()) {
            heads.insert(name, mount(&spa, name, Overrides::default()).map_err(|e| format!("mount: {e}"))?);
        }
        (0..3).try_for_each(|_| spa.sync()).map_err(|e| e.to_string())?;
        let found = heads.iter().map(|(name, fs)| (*name, content(fs))).collect();
        let has_snapshot = spa.pool.dsl.dataset(SNAPSHOT).is_ok();
        let count = counts(&spa);
        let states = || self.states.iter().skip(promised).take(2);
        let fits =
            |state: &&State| self.fits(state, &found) && state.trees.contains_key(SNAPSHOT) == has_snapshot;
        let fitting: Vec<(u64, u64)> = states().filter(fits).map(|state| self.counts(state)).collect();
        if !fitting.contains(&count) {
            let names: Vec<_> = found.iter().map(|(name, files)| (name, files.keys())).collect();
            return Err(format!("{count:?} is none of {fitting:?} of step {promised}: {names:?}"));
        }
        heads.into_values().try_for_each(|fs| fs.unmount()).map_err(|e| format!("unmount: {e}"))?;
        spa.export().map_err(|e| format!("export: {e}"))?;
        check::whole(&*check::opened(&devices)?)?;
        if shows {
            common::show(&pages(&disks), &[Judge::NEWEST]);
        }
        if shows && !states().any(|state| self.has_cloned_pruned(state)) {
            common::show(&pages(&disks), &[Judge::USUAL]);
        }
        let spa = opened()?;
        for name in [COPY, SNAPSHOT].into_iter().filter(|name| spa.pool.dsl.dataset(name).is_ok()) {
            spa.dsl_task(move |tasks| tasks.destroy(name, false)).map_err(|e| format!("{name}: {e}"))?;
        }
        let fs = mount(&spa, POOL, Overrides::default()).map_err(|e| format!("mount: {e}"))?;
        for entry in fs.dirs().entries(fs.root).unwrap() {
            fs.dirs().unlink(fs.root, &entry.name).map_err(|e| format!("unlink: {e}"))?;
        }
        (0..SETTLED).try_for_each(|_| spa.sync()).map_err(|e| e.to_string())?;
        let (left, fast) = (counts(&spa), spa.features.count(Feature::FastDedup));
        let clones = engine::brt::table(&spa.mos.view(), 0).map_err(|e| e.to_string())?;
        if left != (0, 0) || fast != 0 || clones.is_some() {
            return Err(format!("{left:?} is left, {fast} fast tables, {clones:?}"));
        }
        fs.unmount().map_err(|e| format!("unmount: {e}"))?;
        spa.export().map_err(|e| format!("export: {e}"))?;
        check::whole(&*check::opened(&devices)?)?;
        if shows {
            common::show(&pages(&disks), &[Judge::USUAL, Judge::NEWEST]);
        }
        Ok(())
    }
}

/// Cuts at each `stride`th moment, in `variants` ways; one of `shown` images goes to zdb.
fn survives(fast: bool, most: usize, variants: u64, shown: usize) {
    let mut bed = Bed::new(fast, 1);
    bed.work();
    let (model, events) = (bed.model, bed.record.take());
    let begun = events.iter().position(|event| matches!(event, Event::Mark(0))).unwrap();
    let moments = events[begun..].iter().filter(|event| !matches!(event, Event::Mark(_))).count();
    let part = most.min(moments) as f64 / moments as f64;
    let mut replay = Replay::new(vec![Pages::default(); 1]);
    let (mut random, mut due, mut tried) = (Rng::new(7), 0.5, 0);
    for (at, event) in events.iter().enumerate() {
        replay.step(event);
        if at <= begun || matches!(event, Event::Mark(_)) {
            continue;
        }
        due += part;
        if due < 1.0 {
            continue;
        }
        due -= 1.0;
        for _ in 0..variants {
            let variant = random.below(replay.variants(32).max(1));
            let image = replay.image(variant, &mut random);
            tried += 1;
            let shows = tried % shown == 0;
            if let Err(why) = model.check(&image, replay.promised as usize, shows) {
                panic!("fast {fast} event {at} variant {variant}: {why}");
            }
        }
    }
    println!("fast {fast}: {tried} images of {moments} moments, {} states", model.states.len());
    assert!(tried as u64 >= most.min(moments) as u64 * variants);
}

#[test]
fn dedup_survives_power_cuts() {
    survives(false, 20, 1, 20);
    survives(true, 30, 1, 30);
}

#[test]
#[ignore = "minutes; part of make test-long"]
fn dedup_survives_a_power_cut_at_every_moment() {
    survives(false, usize::MAX, 2, 100);
    survives(true, usize::MAX, 2, 100);
}
