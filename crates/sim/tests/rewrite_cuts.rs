//! Power cuts amid each form of `zfs rewrite`: files have what fsync acknowledged, snapshots and clones what they had, every
//! image is whole, and a run that is started again ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::sync::Arc;

use blkdev::Device;
use crypt::Suite;
use engine::dsl::props::PropValue;
use engine::dsl::write::crypto::{Cipher, Encryption};
use engine::dsl::write::props::SettingSource;
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{ImportOptions, Spa, import};
use engine::vdev::config::AllocBias;
use engine::{Kind, Result};
use ondisk::ObjsetType;
use sim::disk::{Event, Record};
use sim::image::{Pages, Replay};
use sim::model::{Head, Model};
use sim::world::{self, POOL};
use sim::{check, keys};
use stdx::rng::Rng;
use testkit::zdb::Judge;
use zcommon::features::Feature;
use zpl::write::{
    CloneFrom, Finish, FsWriter, NewNode, Overrides, Reblocked, RewriteHow, Rewriting, Which, create_fs,
    mount,
};
use zpl::{FileKind, Filesystem};

const CHILD: &str = "sim/fs";
const COPY: &str = "sim/copy";
const BLOCK: u64 = 16 << 10;
const BLOCKS: u64 = 24;
const FILES: usize = 5;
/// The smallest record size.
const SMALL: u64 = 4 << 10;
/// Blocks that one step of a run covers.
const STEP: u64 = 8 * BLOCK;
const KEY: u64 = 5;
const SHA256: u64 = 8;
/// Images of a case, of one of many seeds. The last is shown to the real zdb.
const IMAGES: u64 = 24;
/// The same in the usual run.
const FEW: u64 = 3;

/// A form of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Record(u64),
    Some(Which, Rewriting),
}

/// The surroundings of a run.
#[derive(Debug, Clone, Copy, Default)]
struct Case {
    encrypted: bool,
    /// A snapshot, and a clone of it.
    snapshot: bool,
    /// Files share blocks.
    clones: bool,
    /// Other changes between the steps.
    writer: bool,
    /// Nearly no space is left.
    full: bool,
    /// Nearly no space is left below this quota.
    quota: bool,
    seed: u64,
}

/// Content of the files.
type State = Vec<Vec<u8>>;

fn name(n: usize) -> Vec<u8> {
    format!("file{n}").into_bytes()
}

fn bytes(seed: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn set(spa: &Arc<Spa>, dataset: &'static str, all: &'static [(&'static str, u64)]) {
    let all: Vec<_> = all.iter().map(|(name, value)| (*name, Some(PropValue::Number(*value)))).collect();
    spa.dsl_task(move |tasks| tasks.set(dataset, &all, SettingSource::Local)).unwrap();
}

fn leaf(device: &Device) -> LeafSpec {
    let (path, device) = (device.name().to_owned(), Arc::clone(device));
    LeafSpec { path, is_disk: false, whole_disk: None, devid: None, device }
}

/// Whether the run may stop there, which changes nothing.
fn is_refusal(kind: Kind) -> bool {
    matches!(kind, Kind::NoSpace | Kind::Quota | Kind::Busy)
}

/// A pool whose vdevs change before the run: the first disks, and the last one that comes later.
struct Bed {
    spa: Arc<Spa>,
    fs: Arc<FsWriter>,
    record: Arc<Record>,
    last: Device,
    disks: usize,
}

impl Bed {
    fn new(form: Form, case: Case) -> Self {
        let (env, record) = (world::env(case.seed), Arc::new(Record::default()));
        let disks = if matches!(form, Form::Some(Which::Compact, _)) { 4 } else { 2 };
        let blank = vec![Pages::empty(world::DISK_SIZE); disks];
        let mut devices = world::as_devices(&world::recorded(&blank, &record));
        let last = devices.pop().unwrap();
        let shape = if disks == 4 { world::Shape::Raidz(1) } else { world::Shape::Single };
        let root = world::new_fs(&env);
        let more = [Feature::PhysicalRewrite];
        let fill: engine::spa::create::FillRoot<'_> = &|objset, tx| create_fs(objset, tx, &root);
        let spa = world::pool_on(&env, (POOL, shape), devices, &more, fill).unwrap();
        set(&spa, POOL, &[("recordsize", BLOCK), ("compression", 2), ("atime", 0)]);
        let (new, cipher) = (world::new_fs(&env), Cipher::Suite(Suite::Aes256Gcm));
        let encryption = match case.encrypted {
            true => Encryption { cipher, key: Some(keys::new_key(KEY).unwrap()) },
            false => Encryption::default(),
        };
        spa.dsl_task(move |tasks| {
            tasks.create_encrypted(CHILD, ObjsetType::Zfs, 0, encryption, &mut |live, tx| {
                create_fs(&live.objset, tx, &new)
            })
        })
        .unwrap();
        let fs = mount(&spa, CHILD, Overrides::default()).unwrap();
        Self { spa, fs, record, last, disks }
    }

    /// Files; some are in the table, if the run takes them out of it.
    fn fill(&self, form: Form, case: Case) -> State {
        if matches!(form, Form::Some(Which::Undedup, _)) {
            set(&self.spa, CHILD, &[("dedup", SHA256)]);
        }
        let mut state = State::new();
        for n in 0..FILES {
            // Two are equal.
            let content = bytes(n.min(FILES - 2) as u64 + 1, BLOCKS * BLOCK);
            let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
            let file = self.fs.dirs().create(self.fs.root, &name(n), &node).unwrap();
            self.fs.data().write(file, 0, &content, true).unwrap();
            state.push(content);
        }
        // A file with a hole changes its record size by way of a hidden file.
        self.fs.data().punch(self.file(0), 3 * BLOCK, 2 * BLOCK).unwrap();
        state[0][3 * BLOCK as usize..][..2 * BLOCK as usize].fill(0);
        self.spa.sync().unwrap();
        if matches!(form, Form::Some(Which::Undedup, _)) {
            set(&self.spa, CHILD, &[("dedup", 2)]);
        }
        if case.clones {
            let from = CloneFrom::File(&self.fs, self.file(1));
            self.fs.clones().clone_range((from, 0), (self.file(2), 0), BLOCKS * BLOCK / 2, true).unwrap();
            let half = (BLOCKS * BLOCK / 2) as usize;
            let (one, two) = state.split_at_mut(2);
            two[0][..half].copy_from_slice(&one[1][..half]);
            self.spa.sync().unwrap();
        }
        if case.snapshot {
            self.spa.dsl_task(|tasks| tasks.snapshot(&["sim/fs@a"], &[])).unwrap();
            self.spa.dsl_task(|tasks| tasks.clone_snapshot("sim/fs@a", COPY).map(drop)).unwrap();
            // Some blocks that only the head has.
            let content = bytes(77, 6 * BLOCK);
            self.fs.data().write(self.file(3), BLOCK, &content, true).unwrap();
            state[3][BLOCK as usize..][..content.len()].copy_from_slice(&content);
            self.spa.sync().unwrap();
        }
        state
    }

    fn file(&self, n: usize) -> u64 {
        self.fs.dirs().lookup(self.fs.root, &name(n)).unwrap().unwrap().object
    }

    /// Brings the disk for which the run is made.
    fn widen(&self, form: Form) {
        match form {
            Form::Some(Which::Compact, _) => {
                let target = self.spa.pool.tree().config.children[0].guid;
                let device = NewDevice::Fresh { leaf: leaf(&self.last), ashift: None };
                self.spa
                    .disks()
                    .attach(Attach { target, device, replacing: false, sequential: false })
                    .unwrap();
                (0..3000)
                    .take_while(|_| self.spa.expansion().is_active())
                    .for_each(|_| self.spa.sync().unwrap());
                self.spa.sync().unwrap();
            }
            _ => {
                let vdev = VdevSpec::Leaf(leaf(&self.last));
                let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }];
                self.spa.vdevs().add(PoolSpec { tops, ..PoolSpec::default() }, true).unwrap();
            }
        }
    }

    /// Leaves nearly no space.
    fn press(&self, case: Case) {
        if case.quota {
            let used = self.fs.space().unwrap().referenced + (1 << 20);
            self.spa
                .dsl_task(move |tasks| {
                    tasks.set(CHILD, &[("refquota", Some(PropValue::Number(used)))], SettingSource::Local)
                })
                .unwrap();
        }
        if case.full {
            let root = mount(&self.spa, POOL, Overrides::default()).unwrap();
            let ballast = root
                .dirs()
                .create(root.root, b"ballast", &NewNode::new(FileKind::Regular, 0o644, 0, 0))
                .unwrap();
            let mut at = 0;
            for len in [1 << 20, 128 << 10, 16 << 10] {
                while root.data().write(ballast, at, &bytes(at, len), true).is_ok() {
                    at += len;
                }
                self.spa.sync().unwrap();
            }
            // Some space for the run.
            root.data().truncate(ballast, at.saturating_sub(600 << 10)).unwrap();
            root.unmount().unwrap();
            (0..4).for_each(|_| self.spa.sync().unwrap());
        }
    }
}

/// Runs the form over one file; `between` is called after each step. Returns the bytes written.
fn rewritten(fs: &FsWriter, file: u64, form: Form, between: &mut dyn FnMut()) -> Result<u64> {
    let mut written = 0;
    match form {
        Form::Some(which, births) => {
            for at in (0..BLOCKS * BLOCK).step_by(STEP as usize) {
                let how = RewriteHow { births, which, dry: false };
                written += fs.rewrites().rewrite_some(file, at, STEP, how)?.written;
                between();
            }
        }
        Form::Record(record) => match fs.reblocking().at_once(file, record)? {
            Reblocked::Already => {}
            Reblocked::Done(bytes) => {
                written += bytes;
                between();
            }
            Reblocked::NeedsHidden => {
                let help =
                    fs.dirs().create_unnamed(fs.root, &NewNode::new(FileKind::Regular, 0o600, 0, 0))?;
                let done = with_hidden(fs, (file, help), record, between);
                fs.close_file(help)?;
                written += done?;
            }
        },
    }
    Ok(written)
}

fn with_hidden(
    fs: &FsWriter,
    (file, help): (u64, u64),
    record: u64,
    between: &mut dyn FnMut(),
) -> Result<u64> {
    let Some(mut as_of) = fs.reblocking().begin(file, help, record)? else { return Ok(0) };
    let mut written = 0;
    for at in (0..BLOCKS * BLOCK).step_by(STEP as usize) {
        written += fs.reblocking().copy(file, help, at..at + STEP)?;
        between();
    }
    for round in 0.. {
        match fs.reblocking().finish(file, help, as_of, round < 2)? {
            Finish::Done => break,
            Finish::Again(ranges, txg) => {
                for (start, end) in ranges {
                    written += fs.reblocking().copy(file, help, start..end)?;
                }
                as_of = txg;
            }
        }
    }
    between();
    Ok(written)
}

fn read(fs: &FsWriter, file: u64) -> Vec<u8> {
    let mut bytes = vec![0; fs.attrs().get(file).unwrap().size as usize];
    fs.data().read(file, 0, &mut bytes).unwrap();
    bytes
}

/// The written content, for the checks of images.
struct Written {
    form: Form,
    case: Case,
    /// After each acknowledged step.
    states: Vec<State>,
    of_snapshot: State,
}

impl Written {
    /// Imports an image, compares it, ends the run, and compares again. Returns the disks.
    fn checked(&self, image: &[Pages], promised: usize) -> std::result::Result<Vec<Pages>, String> {
        let disks = world::disks_of(image);
        let devices = world::as_devices(&disks);
        let source = world::found(&devices).ok_or("no pool is found")?;
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let spa = import(&world::env(2), source, &options).map_err(|e| format!("import: {e}"))?;
        if self.case.encrypted {
            let head = Head { encrypted: true, key: Some(KEY), ..Head::default() };
            let model = Model { heads: [(CHILD.to_owned(), head)].into() };
            keys::unlock(&spa.view().unwrap(), &model)?;
        }
        let fs = mount(&spa, CHILD, Overrides::default()).map_err(|e| format!("mount: {e}"))?;
        let file = |n: usize| -> std::result::Result<u64, String> {
            Ok(fs.dirs().lookup(fs.root, &name(n)).unwrap().ok_or("a file is missing")?.object)
        };
        let mut state = State::new();
        for n in 0..FILES {
            let have = read(&fs, file(n)?);
            let fits = |state: Option<&State>| state.is_some_and(|state| state[n] == have);
            if !fits(self.states.get(promised)) && !fits(self.states.get(promised + 1)) {
                return Err(format!("file {n} is not as step {promised} promised"));
            }
            state.push(have);
        }
        self.look_at_snapshot(&spa)?;
        for n in 0..FILES {
            let again = || match rewritten(&fs, file(n)?, self.form, &mut || ()) {
                Err(e) if !is_refusal(e.kind()) => Err(format!("file {n}: {e}")),
                done => Ok(done.unwrap_or(0)),
            };
            again()?;
            spa.sync().map_err(|e| e.to_string())?;
            let ends = !matches!(self.form, Form::Some(Which::All, _));
            if again()? != 0 && ends && !(self.case.full || self.case.quota) {
                return Err(format!("the run of file {n} does not end"));
            }
            if read(&fs, file(n)?) != state[n] {
                return Err(format!("the second run changed file {n}"));
            }
        }
        self.look_at_snapshot(&spa)?;
        fs.unmount().map_err(|e| format!("unmount: {e}"))?;
        spa.export().map_err(|e| format!("export: {e}"))?;
        check::whole(&*check::opened(&devices)?)?;
        Ok(disks.iter().map(|disk| disk.pages()).collect())
    }

    fn look_at_snapshot(&self, spa: &Arc<Spa>) -> std::result::Result<(), String> {
        if !self.case.snapshot {
            return Ok(());
        }
        for dataset in ["sim/fs@a", COPY] {
            let fs = Filesystem::open(&spa.pool.dsl.dataset(dataset).unwrap()).map_err(|e| e.to_string())?;
            let root = fs.root().map_err(|e| e.to_string())?;
            for (n, wanted) in self.of_snapshot.iter().enumerate() {
                let entry = root.lookup(&name(n)).map_err(|e| e.to_string())?.ok_or("a file is missing")?;
                let inode = fs.inode(entry.object).map_err(|e| e.to_string())?;
                let mut have = vec![0; wanted.len()];
                inode.read_at(0, &mut have).map_err(|e| e.to_string())?;
                if have != *wanted {
                    return Err(format!("file {n} of {dataset} changed"));
                }
            }
        }
        Ok(())
    }
}

/// Runs a form with a record of the disks, and checks images of power cuts.
fn survives(form: Form, case: Case, images: u64) {
    let bed = Bed::new(form, case);
    let first = bed.fill(form, case);
    let mut of_snapshot = first.clone();
    if case.snapshot {
        let old = bytes(4, BLOCKS * BLOCK);
        of_snapshot[3].copy_from_slice(&old);
    }
    bed.widen(form);
    bed.press(case);
    bed.spa.sync().unwrap();
    bed.record.mark(0);
    let (mut states, mut random, mut total) = (vec![first], Rng::new(case.seed), 0);
    for n in 0..FILES {
        let mut between = || {
            if case.writer && random.below(2) == 0 {
                let mut next = states.last().unwrap().clone();
                let which = random.below(FILES as u64) as usize;
                // Within one block of each size: a cut leaves all of it or nothing.
                let at = random.below(BLOCKS * BLOCK / SMALL) * SMALL;
                let new = bytes(random.next_u64(), 1 + random.below(SMALL));
                let file = bed.file(which);
                match bed.fs.data().write(file, at, &new, true) {
                    Err(e) if is_refusal(e.kind()) => return,
                    done => done.unwrap(),
                }
                next[which][at as usize..][..new.len()].copy_from_slice(&new);
                states.push(next);
                bed.fs.fsync(file).unwrap();
                bed.record.mark(states.len() as u64 - 1);
            }
            if random.below(3) == 0 {
                bed.spa.sync().unwrap();
            }
        };
        match rewritten(&bed.fs, bed.file(n), form, &mut between) {
            Ok(written) => total += written,
            Err(e) if is_refusal(e.kind()) && (case.full || case.quota) => {}
            Err(e) => panic!("{form:?} {case:?}: {e}"),
        }
    }
    assert!(total > 0 || case.full || case.quota, "{form:?} {case:?}: nothing is written");
    bed.spa.sync().unwrap();
    let written = Written { form, case, states, of_snapshot };
    cut(&bed, &written, images);
}

fn cut(bed: &Bed, written: &Written, images: u64) {
    let (form, case) = (written.form, written.case);
    let events = bed.record.take();
    let begun = events.iter().position(|event| matches!(event, Event::Mark(0))).unwrap();
    let mut replay = Replay::new(vec![Pages::default(); bed.disks]);
    let (mut random, mut due, mut tried) = (Rng::new(case.seed), 0.5, 0);
    let part = images as f64 / (events.len() - begun) as f64;
    for (at, event) in events.iter().enumerate() {
        replay.step(event);
        due += if at > begun { part } else { 0.0 };
        if due < 1.0 {
            continue;
        }
        let variant = random.below(replay.variants(32).max(1));
        let image = replay.image(variant, &mut random);
        let failed = |why| panic!("{form:?} {case:?} event {at} variant {variant}: {why}");
        let disks = written.checked(&image, replay.promised as usize).unwrap_or_else(failed);
        if tried + 1 == images {
            common::show(&disks, &[Judge::NEWEST]);
        }
        (due, tried) = (due - 1.0, tried + 1);
    }
    println!(
        "{form:?}: {tried} images of {} events, {} writes beside it",
        events.len() - begun,
        written.states.len()
    );
}

const FORMS: [Form; 7] = [
    Form::Record(64 << 10),
    Form::Record(SMALL),
    Form::Some(Which::Balance, Rewriting::Logical),
    Form::Some(Which::Compact, Rewriting::Physical),
    Form::Some(Which::Dedup, Rewriting::Logical),
    Form::Some(Which::Undedup, Rewriting::Physical),
    Form::Some(Which::All, Rewriting::Physical),
];

#[test]
fn beside_snapshots_clones_and_writers() {
    for (seed, form) in (1..).zip(FORMS) {
        survives(form, Case { snapshot: true, clones: true, writer: true, seed, ..Case::default() }, FEW);
    }
}

#[test]
fn encrypted_and_with_writers() {
    for (seed, form) in (20..).zip(FORMS) {
        survives(form, Case { encrypted: true, clones: true, writer: true, seed, ..Case::default() }, FEW);
    }
}

#[test]
fn without_space() {
    for (seed, form) in (40..).zip(FORMS) {
        let writer = seed % 2 == 0;
        survives(form, Case { full: true, writer, seed, ..Case::default() }, FEW);
        survives(form, Case { quota: true, snapshot: true, writer, seed, ..Case::default() }, FEW);
    }
}

#[test]
#[ignore = "minutes; part of make test-long"]
fn with_many_seeds() {
    for seed in 100..140 {
        for form in FORMS {
            let mut random = Rng::new(seed);
            let mut any = || random.below(2) == 0;
            let case = Case {
                encrypted: any(),
                snapshot: any(),
                clones: any(),
                writer: any(),
                full: any(),
                quota: any(),
                seed,
            };
            survives(form, case, IMAGES);
        }
    }
}
