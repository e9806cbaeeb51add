//! Power cuts during out-of-band dedup: files have the changes acknowledged by fsync, and every image is
//! consistent, with the references of its clone tables.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::sharing::{MEMORY_MIN, PassStep, Target, Watch, share};
use engine::spa::{ImportOptions, import};
use sim::check;
use sim::disk::{Event, Record};
use sim::image::{Pages, Replay};
use sim::world::{self, Machine, POOL, Shape};
use stdx::rng::Rng;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, mount};

const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 10;
const FILES: usize = 8;
/// Images of power cuts for each kind of pool.
const IMAGES: u64 = 60;

type State = Vec<Vec<u8>>;

/// Block `n` of all.
fn block(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(n).fill(&mut bytes);
    bytes
}

fn name(n: usize) -> Vec<u8> {
    format!("file{n}").into_bytes()
}

/// Overwrites a block with each call, synchronously, and marks the record when that is promised.
struct Writer {
    fs: Arc<FsWriter>,
    files: Vec<u64>,
    states: Vec<State>,
    record: Arc<Record>,
    random: Rng,
}

impl Watch for Writer {
    fn goes_on(&mut self, _: u64, _: PassStep, _: u64) -> bool {
        let mut next = self.states.last().unwrap().clone();
        let (n, at) = (self.random.below(FILES as u64) as usize, self.random.below(BLOCKS as u64) as usize);
        let bytes = block(self.random.below(12));
        self.fs.data().write(self.files[n], (at * BLOCK) as u64, &bytes, true).unwrap();
        next[n][at * BLOCK..][..BLOCK].copy_from_slice(&bytes);
        self.states.push(next);
        self.fs.fsync(self.files[n]).unwrap();
        self.record.mark(self.states.len() as u64 - 1);
        true
    }
}

fn content(fs: &FsWriter, file: u64) -> Vec<u8> {
    let mut bytes = vec![0; fs.attrs().get(file).unwrap().size as usize];
    fs.data().read(file, 0, &mut bytes).unwrap();
    bytes
}

fn checked(image: &[Pages], promised: usize, states: &[State]) -> Result<(), String> {
    let devices = world::as_devices(&world::disks_of(image));
    let source = world::found(&devices).ok_or("no pool is found")?;
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = import(&world::env(2), source, &options).map_err(|e| format!("import: {e}"))?;
    let fs = mount(&spa, POOL, Overrides::default()).map_err(|e| format!("mount: {e}"))?;
    for n in 0..FILES {
        let file = fs.dirs().lookup(fs.root, &name(n)).unwrap().ok_or("a file is missing")?.object;
        let have = content(&fs, file);
        let fits = |state: Option<&State>| state.is_some_and(|state| state[n] == have);
        if !fits(states.get(promised)) && !fits(states.get(promised + 1)) {
            return Err(format!("file {n} is not as step {promised} promised"));
        }
    }
    fs.unmount().map_err(|e| format!("unmount: {e}"))?;
    spa.export().map_err(|e| format!("export: {e}"))?;
    check::whole(&*check::opened(&devices)?).map(drop)
}

fn survives(machine: Machine, checksum: u64, seed: u64) {
    let (env, record) = (world::env(seed), Arc::new(Record::default()));
    let devices = world::as_devices(&world::recorded(&machine.blank(), &record));
    let spa = world::create_pool(&env, machine, &devices).unwrap();
    spa.dsl_task(move |tasks| {
        let number = |n: u64| Some(PropValue::Number(n));
        tasks.set(
            POOL,
            &[("recordsize", number(BLOCK as u64)), ("checksum", number(checksum))],
            SettingSource::Local,
        )
    })
    .unwrap();
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    let mut random = Rng::new(seed);
    let (mut files, mut state) = (Vec::new(), Vec::new());
    for n in 0..FILES {
        let file =
            fs.dirs().create(fs.root, &name(n), &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
        let bytes: Vec<u8> = (0..BLOCKS).flat_map(|_| block(random.below(12))).collect();
        fs.data().write(file, 0, &bytes, true).unwrap();
        files.push(file);
        state.push(bytes);
    }
    spa.sync().unwrap();
    record.mark(0);
    let mut writer =
        Writer { fs: Arc::clone(&fs), files, states: vec![state], record: Arc::clone(&record), random };
    let mut shared = 0;
    for _ in 0..4 {
        let target = Target::open(&spa, POOL).unwrap();
        let done = share(&spa, &[target], MEMORY_MIN, false, &mut writer).unwrap();
        shared += done.found[0].shared.blocks;
        spa.sync().unwrap();
    }
    assert!(shared > 40, "{shared} blocks are shared");
    let events = record.take();
    let begun = events.iter().position(|event| matches!(event, Event::Mark(0))).unwrap();
    let mut replay = Replay::new(vec![Pages::default(); machine.disks()]);
    let (mut random, mut due, mut tried) = (Rng::new(seed), 0.0, 0);
    let part = IMAGES as f64 / (events.len() - begun) as f64;
    for (at, event) in events.iter().enumerate() {
        replay.step(event);
        due += if at > begun { part } else { 0.0 };
        while due >= 1.0 {
            let variant = random.below(replay.variants(32).max(1));
            let image = replay.image(variant, &mut random);
            if let Err(why) = checked(&image, replay.promised as usize, &writer.states) {
                panic!("{machine:?} seed {seed} event {at} variant {variant}: {why}");
            }
            (due, tried) = (due - 1.0, tried + 1);
        }
    }
    println!("{machine:?}: {tried} images, {shared} blocks shared");
    assert!(tried >= IMAGES - 2);
}

#[test]
fn shared_blocks_survive_power_cuts() {
    survives(Shape::Single.into(), 8, 1);
    survives(Shape::Raidz(1).into(), 7, 2);
}
