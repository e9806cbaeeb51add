//! Scans that gather blocks and read them in device order: counts of the devices, and power cuts while gathered blocks are read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use blkdev::{BlockDevice, Device, Geometry, Io, IoKind};
use engine::dmu::NewObject;
use engine::dsl::write::{MosView, scan_state};
use engine::memory::Limit;
use engine::spa::scrub::{ScanCommand, ScanProgress};
use engine::spa::{ImportOptions, Spa, import};
use ondisk::pool::DslScan;
use ondisk::{ObjectType, ObjsetType};
use parking_lot::Mutex;
use sim::check::{opened, whole};
use sim::disk::{Disk, Record};
use sim::image::{Pages, Replay};
use sim::world::{self, Shape, as_devices, disks_of, env, found, pool_on, recorded};
use stdx::rng::Rng;

/// Front labels and boot space: blocks are behind them.
const FRONT: u64 = 4 << 20;

/// A disk that notes its reads.
#[derive(Debug)]
struct Watched {
    disk: Arc<Disk>,
    reads: Mutex<Vec<(u64, u64)>>,
}

impl BlockDevice for Watched {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&self, io: Io) {
        if io.kind == IoKind::Read && io.offset >= FRONT {
            self.reads.lock().push((io.offset, io.buf.len() as u64));
        }
        self.disk.submit(io);
    }
}

impl Watched {
    fn over(number: usize, size: u64) -> Arc<Self> {
        Arc::new(Self { disk: Disk::over(number, Pages::empty(size), None), reads: Mutex::default() })
    }

    /// Counts the reads since the last call.
    fn take(&self) -> Counts {
        let (mut counts, mut end, mut run) = (Counts::default(), FRONT, 0);
        for (offset, len) in std::mem::take(&mut *self.reads.lock()) {
            if offset < end {
                counts.back += 1;
                run = 0;
            }
            run += len;
            counts.reads += 1;
            counts.longest = counts.longest.max(run);
            counts.travel += offset.abs_diff(end);
            end = offset + len;
        }
        counts
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    reads: usize,
    /// Reads before the end of the last one.
    back: usize,
    /// The most bytes read between two of these.
    longest: u64,
    /// Bytes that the head passes without reading.
    travel: u64,
}

/// A file of so many blocks that were written in random order.
fn fragmented(spa: &Arc<Spa>, blocks: usize, size: usize) {
    let dataset = spa.dsl_task(|t| t.create("sim/data", ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
    let data = spa.datasets.open(&**spa, dataset).unwrap();
    let tx = spa.begin().unwrap();
    let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, size as u64);
    let object = data.objset.create_object(&tx, new).unwrap();
    drop(tx);
    let mut order: Vec<usize> = (0..blocks).collect();
    sim::image::shuffle(&mut order, &mut Rng::new(3));
    for part in order.chunks(blocks / 32) {
        let tx = spa.begin().unwrap();
        for block in part {
            let mut bytes = vec![0; size];
            Rng::new(*block as u64).fill(&mut bytes);
            object.write(&tx, (block * size) as u64, &bytes).unwrap();
        }
        drop(tx);
        spa.sync().unwrap();
    }
}

fn saved(spa: &Spa) -> DslScan {
    scan_state::load(&MosView { mos: &spa.mos }).unwrap().unwrap()
}

fn progress(spa: &Spa) -> ScanProgress {
    spa.scans().progress().unwrap().expect("a scan is under way")
}

fn finish(spa: &Spa) -> DslScan {
    for _ in 0..5000 {
        if !spa.scans().is_scanning() {
            return saved(spa);
        }
        spa.sync().unwrap();
    }
    panic!("the scan does not end: {:?}", saved(spa));
}

fn scrub(spa: &Spa) -> DslScan {
    spa.scans().start(ScanCommand::Scrub).unwrap();
    finish(spa)
}

fn limit(spa: &Spa, limit: Limit, value: u64) {
    spa.pool.env.memory.limits.set(limit, value).unwrap();
}

/// A scrub of a fragmented pool reads each disk in one sweep, of more bytes than a window of 64 MiB: legacy scans go back for
/// nearly every block, windows for each of them.
#[test]
fn a_fragmented_pool_is_read_in_one_sweep() {
    const BLOCK: usize = 16 << 10;
    let (blocks, env) = (5600, env(1));
    let disks = [Watched::over(0, 192 << 20), Watched::over(1, 192 << 20)];
    let devices = disks.iter().map(|disk| Arc::clone(disk) as Device).collect();
    let spa = pool_on(&env, (world::POOL, Shape::Mirror), devices, &[], &|_, _| Ok(())).unwrap();
    fragmented(&spa, blocks, BLOCK);
    let mut counts = Vec::new();
    for (legacy, window) in [(1, 7200), (0, 0), (0, 7200)] {
        limit(&spa, Limit::ScanLegacy, legacy);
        limit(&spa, Limit::ScanCheckpoint, window);
        disks[1].take();
        let end = scrub(&spa);
        assert_eq!((end.state, end.errors), (2, 0));
        counts.push(disks[1].take());
    }
    println!("in order of files, in windows, sorted: {counts:?}");
    let [legacy, windows, sorted] = counts[..] else { panic!("three scrubs") };
    assert!(legacy.back > blocks / 4 && windows.back < legacy.back / 20, "{counts:?}");
    assert!(sorted.back < windows.back && sorted.travel * 2 < windows.travel, "{counts:?}");
    assert!(sorted.longest > 80 << 20 && windows.longest < 64 << 20, "{counts:?}");
    // Neighbours are read together, though the disks answer each request at once.
    assert!(sorted.reads < blocks / 6, "{counts:?}");
}

/// Power cuts while gathered blocks are read: the scan continues from the position before they were gathered, and misses nothing.
#[test]
fn power_cuts_while_gathered_blocks_are_read_lose_nothing() {
    cuts(6);
}

#[test]
#[ignore = "minutes"]
fn power_cuts_at_many_moments_while_gathered_blocks_are_read_lose_nothing() {
    cuts(40);
}

fn imported(devices: &[Device], seed: u64) -> Arc<Spa> {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    import(&env(seed), found(devices).unwrap(), &options).unwrap()
}

fn cuts(moments: usize) {
    const BLOCKS: usize = 1200;
    let machine = world::Machine::from(Shape::Mirror);
    let disks = disks_of(&machine.blank());
    let env = env(1);
    let spa = pool_on(&env, (world::POOL, machine), as_devices(&disks), &[], &|_, _| Ok(())).unwrap();
    fragmented(&spa, BLOCKS, 4 << 10);
    spa.export().unwrap();
    drop(spa);
    // One side of the mirror is lost, but for its labels.
    for mib in 4..60 {
        blkdev::write_at(&*as_devices(&disks)[1], mib << 20, &vec![0x5a; 1 << 20]).unwrap();
    }
    let images: Vec<Pages> = disks.iter().map(|disk| disk.pages()).collect();
    let record = Arc::new(Record::default());
    let spa = imported(&as_devices(&recorded(&images, &record)), 1);
    spa.scans().start(ScanCommand::Scrub).unwrap();
    let mut before = 0;
    while spa.pool.env.memory.gathered() == 0 || progress(&spa).scan.examined > before {
        before = progress(&spa).scan.examined;
        spa.sync().unwrap();
    }
    // The walk is over; some of the blocks have been read.
    let reading = record.len();
    (0..2).for_each(|_| spa.sync().unwrap());
    let (now, kept) = (progress(&spa), saved(&spa));
    assert!(spa.scans().is_scanning() && now.scan.processed > 0 && now.issued < now.scan.examined, "{now:?}");
    assert!(kept.examined < now.issued / 2, "the position is the one before the blocks: {kept:?}, {now:?}");
    drop(spa);
    let events = record.take();
    let (mut replay, mut random) = (Replay::new(images), Rng::new(7));
    let every = ((events.len() - reading) / moments).max(1);
    for (at, event) in events.iter().enumerate() {
        replay.step(event);
        if at >= reading && (at - reading) % every == 0 {
            for variant in 0..replay.variants(2) {
                goes_on(&replay.image(variant, &mut random), &kept);
            }
        }
    }
}

/// The scan of an image goes on from the position that was saved.
fn goes_on(image: &[Pages], kept: &DslScan) {
    let disks = disks_of(image);
    let spa = imported(&as_devices(&disks), 2);
    let now = saved(&spa);
    assert_eq!((now.state, now.examined, now.bookmark), (1, kept.examined, kept.bookmark));
    let end = finish(&spa);
    assert_eq!((end.state, end.errors), (2, 0));
    let again = scrub(&spa);
    assert_eq!((again.processed, again.errors), (0, 0), "every block was repaired");
    spa.export().unwrap();
    drop(spa);
    let pool = opened(&as_devices(&disks)).unwrap();
    whole(&pool).unwrap();
}
