//! Power cuts during `zfs receive -s`, with the streams of golden pools: an interrupted receive is continued
//! with the stream that its token asks for, and then equals an uninterrupted receive, stream for stream.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::sync::Arc;

use engine::dsl::props::resume;
use engine::recv::{Input, RECEIVE_CHILD, Wish, begin};
use engine::send::{From, Meter, SendFlags, SendOptions, send, send_with};
use engine::spa::{ImportOptions, OpenOptions, Pool, Spa, import};
use ondisk::drr::DrrBody;
use sim::check;
use sim::disk::Record;
use sim::image::{Pages, Replay};
use sim::world::{self, Machine, POOL, Shape};
use stdx::rng::Rng;
use testkit::golden;
use testkit::zdb::Judge;
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, mount};

/// Records between two syncs of the pool.
const SYNCED: u64 = 23;

/// A receive that is cut.
#[derive(Debug, Clone, Default)]
struct Case {
    /// Streams that are received before, and into which snapshots of the pool.
    base: Vec<(Vec<u8>, String)>,
    stream: Vec<u8>,
    /// Files that the pool's own file system has, with the snapshot `@o`.
    files: u64,
    /// The snapshot that the stream makes.
    to: String,
    /// The snapshot that it builds on.
    from: Option<String>,
    origin: Option<String>,
    force: bool,
    flags: SendFlags,
}

fn at(name: &str) -> String {
    format!("{POOL}/{name}")
}

/// The stream of a snapshot.
fn stream(pool: &Pool, to: &str, from: Option<&str>, flags: SendFlags) -> Vec<u8> {
    let from = from.map(|name| From::snapshot(&pool.dsl.dataset(name).unwrap()).unwrap());
    let mut out = Vec::new();
    send(&pool.dsl.dataset(to).unwrap(), from, flags, &mut out).unwrap();
    out
}

/// Receives a stream, at most `most` records of it, with a sync every [`SYNCED`] records.
fn receive(
    spa: &Arc<Spa>,
    stream: &[u8],
    target: &str,
    most: u64,
    change: &dyn Fn(&mut Wish),
) -> engine::Result<()> {
    let mut from = stream;
    let mut input = Input::new(&mut from);
    let item = input.record()?.unwrap();
    let DrrBody::Begin(record) = item.drr.body else { panic!("no BEGIN") };
    let (target, snapshot) = target.split_once('@').unwrap();
    let mut wish = Wish::of(&record, &item.payload, target, snapshot)?;
    wish.resumable = true;
    change(&mut wish);
    let mut receiver = begin(spa, wish, input.endian())?;
    let mut records = 0;
    let filled = receiver.fill(&mut input, &mut |_| {
        records += 1;
        if records % SYNCED == 0 {
            spa.sync().unwrap();
        }
        records < most
    });
    let done = filled.and_then(|()| receiver.end().map(drop));
    if done.is_err() {
        receiver.abort(true).unwrap();
    }
    done
}

impl Case {
    fn change(&self, wish: &mut Wish) {
        wish.force = self.force;
        if wish.resumes.is_none() {
            wish.origin.clone_from(&self.origin);
        }
    }

    /// The stream that the state of a partial receive asks for, made from the datasets of `whole`.
    fn rest(&self, whole: &Pool, pool: &Pool) -> Option<Vec<u8>> {
        let target = pool.dsl.dataset(self.to.split_once('@').unwrap().0).ok()?;
        let filled = target.dir().unwrap().child(RECEIVE_CHILD).unwrap().map(|child| child.head().unwrap());
        let state = resume::state(&filled.unwrap_or(target)).unwrap()?;
        let place = (state.u64("object").unwrap(), state.u64("offset").unwrap());
        let from =
            self.from.as_deref().map(|name| From::snapshot(&whole.dsl.dataset(name).unwrap()).unwrap());
        let options = SendOptions { flags: self.flags, from, resume: Some(place), ..SendOptions::default() };
        let mut out = Vec::new();
        send_with(&whole.dsl.dataset(&self.to).unwrap(), &options, &mut out, &Meter::default()).unwrap();
        Some(out)
    }

    /// All that the pool can send of the target.
    fn sent(&self, pool: &Pool) -> Vec<Vec<u8>> {
        let mut all = vec![stream(pool, &self.to, None, self.flags)];
        all.extend(self.from.as_deref().map(|from| stream(pool, &self.to, Some(from), self.flags)));
        all
    }

    /// Continues or repeats the receive in a pool that a cut left. Returns whether it was continued.
    fn finish(&self, image: &[Pages], whole: &Pool, random: &mut Rng) -> Result<(bool, Vec<Pages>), String> {
        let disks = world::disks_of(image);
        let devices = world::as_devices(&disks);
        let source = world::found(&devices).ok_or("no pool is found")?;
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let spa = import(&world::env(2), source, &options).map_err(|e| format!("import: {e}"))?;
        let mut resumed = false;
        for most in [random.below(40) + 1, u64::MAX] {
            if spa.pool.dsl.dataset(&self.to).is_ok() {
                break;
            }
            let done = match self.rest(whole, &spa.view().unwrap()) {
                Some(rest) => {
                    resumed = true;
                    receive(&spa, &rest, &self.to, most, &|wish| self.change(wish))
                }
                None => receive(&spa, &self.stream, &self.to, most, &|wish| self.change(wish)),
            };
            match done {
                Ok(()) => {}
                Err(e) if most < u64::MAX && e.what().contains("interrupted") => {}
                Err(e) => return Err(format!("resumed: {resumed}: {e}")),
            }
        }
        spa.export().map_err(|e| format!("export: {e}"))?;
        let opened = check::opened(&devices)?;
        check::whole(&opened)?;
        for (n, (have, want)) in self.sent(&opened).iter().zip(self.sent(whole)).enumerate() {
            differs(have, &want).map_err(|why| format!("resumed: {resumed}: stream {n}: {why}"))?;
        }
        Ok((resumed, disks.iter().map(|disk| disk.pages()).collect()))
    }
}

fn records(stream: &[u8]) -> Vec<(DrrBody, Vec<u8>)> {
    let mut from = stream;
    let mut input = Input::new(&mut from);
    std::iter::from_fn(|| input.record().unwrap()).map(|item| (item.drr.body, item.payload)).collect()
}

fn differs(have: &[u8], want: &[u8]) -> Result<(), String> {
    if have == want {
        return Ok(());
    }
    let (have, want) = (records(have), records(want));
    let at = have.iter().zip(&want).position(|(have, want)| have != want);
    let at = at.unwrap_or(have.len().min(want.len()));
    Err(format!("record {at} is {:?}, not {:?}", have.get(at).map(|r| &r.0), want.get(at).map(|r| &r.0)))
}

/// Cuts the receive at `images` moments and finishes each; zdb is shown each `shown`th result.
fn cut(name: &str, case: &Case, seed: u64, images: u64, shown: u64) {
    let machine = Machine::from(Shape::Single);
    let prepared = {
        let disks = world::disks_of(&machine.blank());
        let spa = world::create_pool(&world::env(seed), machine, &world::as_devices(&disks)).unwrap();
        if case.files > 0 {
            let fs = mount(&spa, POOL, Overrides::default()).unwrap();
            for n in 0..case.files {
                let new = NewNode::new(FileKind::Regular, 0o644, 0, 0);
                fs.dirs().create(fs.root, format!("file{n}").as_bytes(), &new).unwrap();
            }
            fs.unmount().unwrap();
            spa.dsl_task(|tasks| tasks.snapshot(&[&format!("{POOL}@o")], &[])).unwrap();
        }
        for (stream, to) in &case.base {
            receive(&spa, stream, to, u64::MAX, &|_| ()).unwrap();
        }
        spa.export().unwrap();
        disks.iter().map(|disk| disk.pages()).collect::<Vec<_>>()
    };
    let record = Arc::new(Record::default());
    let disks = world::recorded(&prepared, &record);
    let devices = world::as_devices(&disks);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = import(&world::env(seed), world::found(&devices).unwrap(), &options).unwrap();
    let begun = record.len();
    receive(&spa, &case.stream, &case.to, u64::MAX, &|wish| case.change(wish)).unwrap();
    let ended = record.len();
    spa.export().unwrap();
    drop(spa);
    let whole = check::opened(&devices).unwrap();
    let events = record.take();
    let mut replay = Replay::new(prepared);
    let (mut random, mut due, mut tried, mut resumed) = (Rng::new(seed), 0.0, 0, 0);
    let part = images as f64 / (ended - begun) as f64;
    for (at, event) in events.iter().enumerate() {
        replay.step(event);
        due += if (begun..ended).contains(&at) { part } else { 0.0 };
        while due >= 1.0 {
            let variant = random.below(replay.variants(32).max(1));
            let image = replay.image(variant, &mut random);
            match case.finish(&image, &whole, &mut random) {
                Ok((was, image)) => {
                    (due, tried, resumed) = (due - 1.0, tried + 1, resumed + u64::from(was));
                    if tried % shown == 0 {
                        common::show(&image, &[Judge::NEWEST]);
                    }
                }
                Err(why) => {
                    panic!("{name}, seed {seed}, event {at} of {begun}..{ended}, variant {variant}: {why}")
                }
            }
        }
    }
    println!("{name}: {tried} cuts, {resumed} continued, {} events", ended - begun);
    assert!(tried + 2 >= images && resumed * 2 >= tried, "{name}: {tried} cuts, {resumed} continued");
}

fn cases() -> Vec<(&'static str, Case)> {
    let mut all = Vec::new();
    let plain = SendFlags::default();
    let read = |golden: &golden::Golden, name: &str| {
        std::fs::read(golden.dir.join(format!("{name}.zstream"))).unwrap()
    };
    if let Some(pool) = golden::get("streams") {
        let (full, more) = (read(&pool, "full-a"), read(&pool, "incr-a-b"));
        let opened = pool.open().unwrap();
        let full_b = stream(&opened, "tank/src@b", None, plain);
        let base = vec![(full.clone(), at("src@a"))];
        let flags = SendFlags { embed: true, large_blocks: true, compressed: true, ..plain };
        let case = Case { to: at("src@b"), ..Case::default() };
        all.push(("full", Case { stream: full, to: at("src@a"), ..case.clone() }));
        let more = Case { base, stream: more, from: Some(at("src@a")), ..case.clone() };
        all.push(("incremental", more.clone()));
        all.push(("compressed", Case { stream: read(&pool, "full-b-Lec"), flags, ..case }));
        let clone = Case { origin: Some(at("src@a")), to: at("clone@b"), ..more.clone() };
        all.push(("clone", clone.clone()));
        all.push(("clone of a full stream", Case { stream: full_b.clone(), from: None, ..clone.clone() }));
        // Objects of the origin above the last object of the stream must be freed, also when the receive was
        // continued.
        let above =
            Case { origin: Some(format!("{POOL}@o")), files: 400, base: Vec::new(), from: None, ..clone };
        all.push(("clone of a larger origin", Case { stream: full_b.clone(), ..above }));
        all.push(("full over another", Case { stream: full_b, from: None, force: true, ..more }));
    }
    let raw = SendFlags { raw: true, ..plain };
    if let Some(pool) = golden::get("raw-received") {
        let (full, more) = (read(&pool, "raw-a"), read(&pool, "raw-a-b"));
        let case = Case { to: at("r@a"), flags: raw, stream: full.clone(), ..Case::default() };
        all.push(("raw", case.clone()));
        let base = vec![(full, at("r@a"))];
        let more = Case { base, stream: more, to: at("r@b"), from: Some(at("r@a")), ..case };
        all.push(("raw incremental", more.clone()));
        all.push(("raw clone", Case { origin: Some(at("r@a")), to: at("clone@b"), ..more }));
    }
    if let Some(pool) = golden::get("zvol") {
        let opened = pool.open_with(OpenOptions::default()).unwrap();
        let stream = stream(&opened, "tank/vol@s", None, plain);
        all.push(("volume", Case { stream, to: at("vol@s"), ..Case::default() }));
    }
    if let Some(pool) = golden::get("records") {
        let opened = pool.open().unwrap();
        let flags = SendFlags { large_blocks: true, ..plain };
        let stream = stream(&opened, "tank/recordsize-1M", None, flags);
        all.push(("large blocks", Case { stream, to: at("large@s"), flags, ..Case::default() }));
    }
    all
}

#[test]
fn receives_go_on_after_power_cuts_to_the_same_end() {
    for (name, case) in cases() {
        cut(name, &case, 1, 3, 3);
    }
}

#[test]
#[ignore = "minutes"]
fn receives_go_on_after_many_power_cuts_to_the_same_end() {
    for (name, case) in cases() {
        for seed in 2..5 {
            cut(name, &case, seed, 40, 10);
        }
    }
}
