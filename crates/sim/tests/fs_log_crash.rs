//! Power cuts of a mounted file system: changes acknowledged by fsync are there at the next mount, other
//! changes are there completely or not at all, and no block is lost or leaked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blkdev::Device;
use engine::dsl::props::PropValue;
use engine::dsl::write::Tasks;
use engine::dsl::write::props::SettingSource;
use engine::spa::{ImportOptions, Spa, import};
use sim::check;
use sim::disk::{Disk, Event, Gate, Gated, Record};
use sim::image::{Pages, Replay};
use sim::world::{self, Machine, POOL, Shape};
use stdx::rng::Rng;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, RenameKind, Settings, XattrMode, mount};

const NAMES: [&str; 6] = ["a", "b", "c", "d/e", "d/f", "d/g"];

/// A file: its mode, names, bytes, extended attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen(u32, u64, Arc<Vec<u8>>, BTreeMap<Vec<u8>, Vec<u8>>);

type State = BTreeMap<&'static str, Seen>;

/// State after a step, and the names that it changed.
struct Step {
    state: State,
    touched: BTreeSet<&'static str>,
}

fn place(fs: &FsWriter, name: &'static str) -> (u64, &'static [u8]) {
    match name.split_once('/') {
        Some((dir, name)) => {
            (fs.dirs().lookup(fs.root, dir.as_bytes()).unwrap().unwrap().object, name.as_bytes())
        }
        None => (fs.root, name.as_bytes()),
    }
}

fn find(fs: &FsWriter, name: &'static str) -> Option<u64> {
    let (dir, last) = place(fs, name);
    fs.dirs().lookup(dir, last).unwrap().map(|entry| entry.object)
}

fn see(fs: &FsWriter) -> State {
    let one = |name: &'static str| {
        let number = find(fs, name)?;
        let attr = fs.attrs().get(number).unwrap();
        let mut bytes = vec![0; attr.size as usize];
        fs.data().read(number, 0, &mut bytes).unwrap();
        let names = fs.xattrs().names(number).unwrap();
        let xattrs = names.into_iter().map(|name| {
            let value = fs.xattrs().get(number, &name).unwrap().unwrap();
            (name, value)
        });
        Some((name, Seen(attr.perm, attr.links, Arc::new(bytes), xattrs.collect())))
    };
    NAMES.into_iter().filter_map(one).collect()
}

fn bytes(random: &mut Rng) -> Vec<u8> {
    let most = if random.below(3) == 0 { 300_000 } else { 6000 };
    let mut bytes = vec![0; 1 + random.below(most) as usize];
    random.fill(&mut bytes);
    bytes
}

/// One random change.
fn change(fs: &FsWriter, random: &mut Rng) -> zpl::Result<BTreeSet<&'static str>> {
    let pick = |random: &mut Rng| NAMES[random.below(NAMES.len() as u64) as usize];
    let (name, other) = (pick(random), pick(random));
    let (from, to) = (place(fs, name), place(fs, other));
    let mut touched = BTreeSet::from([name]);
    let Some(number) = find(fs, name) else {
        let new = NewNode::new(FileKind::Regular, 0o640, 0, 0);
        if random.below(3) == 0 {
            // One that gets its name when it is written.
            let made = fs.dirs().create_unnamed(from.0, &new)?;
            fs.data().write(made, 0, &bytes(random), true)?;
            fs.dirs().link(made, from.0, from.1)?;
            fs.close_file(made)?;
            return Ok(touched);
        }
        let made = fs.dirs().create(from.0, from.1, &new)?;
        fs.data().write(made, 0, &bytes(random), true)?;
        return Ok(touched);
    };
    // Other names of the file change with it.
    touched.extend(NAMES.into_iter().filter(|name| find(fs, name) == Some(number)));
    let at = random.below(400_000);
    match random.below(14) {
        // Blocks that a rewrite leaves unchanged must stay, too.
        12.. => {
            let mut same = vec![0; 1 + random.below(200_000) as usize];
            let at = (at / 2) & !0x3fff;
            let len = fs.data().read(number, at, &mut same)?;
            fs.data().write(number, at, &same[..len], true)?;
        }
        0..4 => fs.data().write(number, at, &bytes(random), true)?,
        4 => fs.data().append(number, &bytes(random), true).map(drop)?,
        5 => fs.data().truncate(number, at)?,
        6 => fs.data().punch(number, at, 70_000)?,
        7 => {
            touched.extend(NAMES.into_iter().filter(|name| find(fs, name) == find(fs, other)));
            touched.insert(other);
            fs.dirs().rename(from, to, RenameKind::Plain, (0, 0))?;
        }
        8 if find(fs, other).is_none() => {
            touched.insert(other);
            fs.dirs().link(number, to.0, to.1)?;
        }
        9 => fs.dirs().unlink(from.0, from.1)?,
        10 => {
            let value = bytes(random);
            let value = &value[..value.len().min(40_000)];
            fs.xattrs().set(number, b"user.x", Some(value), XattrMode::Set)?;
        }
        _ => fs.attrs().set(number, &Settings { mode: Some(random.below(0o1000)), ..Settings::default() })?,
    }
    Ok(touched)
}

fn set(spa: &Arc<Spa>, settings: &'static [(&'static str, u64)]) {
    spa.sync_task(move |spa: &Spa, tx: &engine::dmu::Tx| {
        let tasks = Tasks { at: spa.datasets.at(tx, spa), datasets: &spa.datasets, pool: POOL };
        settings.iter().try_for_each(|(name, value)| {
            tasks.set(POOL, &[(name, Some(PropValue::Number(*value)))], SettingSource::Local)
        })
    })
    .unwrap();
}

fn quiet() -> Overrides {
    Overrides { atime: Some(false), ..Overrides::default() }
}

/// Parameters of the work on a file system.
#[derive(Clone, Copy)]
struct Work {
    settings: &'static [(&'static str, u64)],
    steps: u64,
    seed: u64,
    /// Steps continue while txgs are written.
    overlap: bool,
}

/// Changes a file system; returns the state after each step. Acknowledged steps are marked.
fn run(spa: &Arc<Spa>, record: &Record, gate: &Gate, work: Work) -> Vec<Step> {
    let Work { steps, seed, overlap, .. } = work;
    let always = work.settings.contains(&("sync", 1));
    let fs = mount(spa, POOL, quiet()).unwrap();
    fs.dirs().create(fs.root, b"d", &NewNode::new(FileKind::Directory, 0o755, 0, 0)).unwrap();
    spa.sync().unwrap();
    record.mark(0);
    let mut random = Rng::new(seed);
    let mut all = vec![Step { state: see(&fs), touched: BTreeSet::new() }];
    let one = |all: &mut Vec<Step>, random: &mut Rng| {
        let touched = change(&fs, random).unwrap();
        all.push(Step { state: see(&fs), touched });
        if always || random.below(2) == 0 {
            fs.fsync(0).unwrap();
            record.mark(all.len() as u64 - 1);
        }
    };
    while all.len() as u64 <= steps {
        one(&mut all, &mut random);
        if random.below(6) != 0 {
            continue;
        }
        let sync = || spa.sync().unwrap();
        if overlap {
            let (writes, steps) = (1 + random.below(12), random.below(6));
            gate.overlap(writes, sync, |_| (0..steps).for_each(|_| one(&mut all, &mut random)));
        } else {
            sync();
        }
    }
    all
}

/// Imports an image, mounts, and compares; returns the number of replayed records.
fn checked(image: &[Pages], promised: u64, next: u64, all: &[Step]) -> Result<u64, String> {
    let devices = world::as_devices(&world::disks_of(image));
    let source = world::found(&devices).ok_or("no pool is found")?;
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = import(&world::env(2), source, &options).map_err(|e| format!("import: {e}"))?;
    let fs = mount(&spa, POOL, quiet()).map_err(|e| format!("mount: {e}"))?;
    let replayed = fs.replayed().unwrap();
    if let Some(e) = &replayed.error {
        return Err(format!("replay: {e}"));
    }
    let done = replayed.done;
    let (promised, next) = (promised as usize, next as usize);
    let open: BTreeSet<_> = all[promised + 1..=next].iter().flat_map(|step| step.touched.iter()).collect();
    let (have, want) = (see(&fs), &all[promised].state);
    for name in NAMES.iter().filter(|name| !open.contains(name)) {
        if have.get(name) != want.get(name) {
            let brief = |seen: Option<&Seen>| seen.map(|s| (s.0, s.1, s.2.len(), s.3.len()));
            let (have, want) = (brief(have.get(name)), brief(want.get(name)));
            return Err(format!("{name} is {have:?}, step {promised} promised {want:?}"));
        }
    }
    // The log works on, and nothing leaks.
    if let Some(number) = find(&fs, "a") {
        fs.data().write(number, 0, b"more", true).map_err(|e| e.to_string())?;
        fs.fsync(number).map_err(|e| format!("fsync: {e}"))?;
    }
    fs.unmount().map_err(|e| format!("unmount: {e}"))?;
    spa.export().map_err(|e| format!("export: {e}"))?;
    check::whole(&*check::opened(&devices)?)?;
    Ok(done)
}

fn gated(gate: &Arc<Gate>, disks: Vec<Arc<Disk>>) -> Vec<Device> {
    let gated = |disk| Arc::new(Gated { disk, gate: Arc::clone(gate) }) as Device;
    disks.into_iter().map(gated).collect()
}

fn survive(machine: Machine, work: Work, images: u64) {
    let Work { settings, seed, .. } = work;
    let env = world::env(seed);
    let (record, gate) = (Arc::new(Record::default()), Arc::new(Gate::default()));
    let devices = gated(&gate, world::recorded(&machine.blank(), &record));
    let spa = world::create_pool(&env, machine, &devices).unwrap();
    set(&spa, settings);
    let all = run(&spa, &record, &gate, work);
    let events = record.take();
    let steps = all.len() as u64 - 1;
    let marks: BTreeSet<u64> =
        events.iter().filter_map(|e| if let Event::Mark(step) = e { Some(*step) } else { None }).collect();
    let mut replay = Replay::new(vec![Pages::default(); machine.disks()]);
    let mut random = Rng::new(seed);
    let (mut begun, mut replayed, mut tried) = (false, 0, 0);
    let share = images as f64 / events.len() as f64;
    let mut due = 0.0;
    for (number, event) in events.iter().enumerate() {
        replay.step(event);
        let marked = matches!(event, Event::Mark(_));
        begun |= marked;
        if !begun {
            continue;
        }
        due += share;
        while due >= 1.0 || marked && due > 0.0 {
            let variant = random.below(replay.variants(32).max(1));
            let image = replay.image(variant, &mut random);
            let next = marks.range(replay.promised + 1..).next().copied().unwrap_or(steps);
            match checked(&image, replay.promised, next, &all) {
                Ok(done) => replayed += done,
                Err(why) => {
                    panic!("{machine:?} {settings:?} seed {seed} event {number} variant {variant}: {why}")
                }
            }
            tried += 1;
            due -= 1.0;
        }
    }
    println!("{machine:?} {settings:?}: {tried} images, {replayed} records done again");
    assert!(replayed > 0);
}

fn images() -> u64 {
    std::env::var("AQUIFER_IMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(20)
}

fn work(settings: &'static [(&'static str, u64)], seed: u64) -> Work {
    Work { settings, steps: 30, seed, overlap: false }
}

#[test]
fn synced_writes_survive_power_cuts() {
    survive(Shape::Mirror.into(), work(&[], 11), images());
    let machine = Machine { log_device: true, ..Shape::Single.into() };
    survive(machine, work(&[("sync", 1)], 12), images());
}

#[test]
fn blocks_that_the_log_points_to_survive_power_cuts() {
    survive(Shape::Raidz(1).into(), work(&[("logbias", 1), ("recordsize", 16 << 10)], 13), images());
    survive(Shape::Single.into(), work(&[("recordsize", 64 << 10)], 14), images());
}

#[test]
fn blocks_that_a_rewrite_left_where_they_were_survive_power_cuts() {
    let settings =
        &[("checksum", 8), ("compression", 15), ("recordsize", 16 << 10), ("logbias", 1), ("sync", 1)];
    survive(Shape::Single.into(), Work { steps: 40, ..work(settings, 15) }, images());
}

#[test]
fn writes_synced_while_a_txg_is_written_survive_power_cuts() {
    for (seed, settings) in (16..).zip([[].as_slice(), &[("sync", 1)], &[("recordsize", 16 << 10)]]) {
        let overlap = Work { overlap: true, steps: 60, ..work(settings, seed) };
        survive(Shape::Single.into(), overlap, images());
    }
}
