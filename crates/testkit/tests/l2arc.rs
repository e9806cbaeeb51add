//! Cache devices: blocks that were read come from there again, also after another import, also from one that OpenZFS
//! filled; damaged or lost blocks on them cost nothing but a read. Real zdb judges what we write.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use blkdev::{BlockDevice, Device, Event, Fault, FaultyDevice, Geometry, Io, IoKind, RecordingDevice};
use engine::arc::l2arc::{Fed, L2arc};
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::memory::Limit;
use engine::memory::stats::L2;
use engine::spa::Spa;
use engine::spa::layout::{LeafSpec, PoolSpec};
use ondisk::{ObjectType, ObjsetType};
use stdx::rng::Rng;
use testkit::{golden, pools};

const POOL: &str = "cached";
const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 400;

struct Bench {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
    /// Object set and object.
    file: (u64, u64),
    /// Guid of the cache device.
    cache: u64,
}

fn body(number: usize) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(number as u64).fill(&mut bytes[..BLOCK / 2]);
    bytes
}

impl Bench {
    fn new() -> Self {
        Self::on(|device| device)
    }

    /// With a cache device made from a file by `wrap`.
    fn on(wrap: impl FnOnce(Device) -> Device) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::system(64 << 20).unwrap();
        env.memory.set(Limit::L2RebuildMinSize, 0).unwrap();
        let spa = pools::create_in(&env, dir.path(), POOL, 128 << 20).unwrap();
        let name = format!("{POOL}/data");
        let number =
            spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
        let spec = pools::leaf(&dir.path().join("cache1"), 128 << 20);
        let spec = LeafSpec { device: wrap(spec.device), ..spec };
        spa.vdevs().add(PoolSpec { cache: vec![spec], ..PoolSpec::default() }, false).unwrap();
        let cache = spa.caches().devices()[0].leaf.guid;
        let mut bench = Self { dir, spa, file: (number, 0), cache };
        bench.l2().settle();
        bench.file.1 = bench.fill();
        bench
    }

    fn fill(&self) -> u64 {
        let data = self.spa.datasets.open(&*self.spa, self.file.0).unwrap();
        let tx = self.spa.begin().unwrap();
        let new = engine::dmu::NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, BLOCK as u64);
        let object = data.objset.create_object(&tx, new).unwrap();
        (0..BLOCKS).for_each(|n| object.write(&tx, (n * BLOCK) as u64, &body(n)).unwrap());
        drop(tx);
        self.spa.sync().unwrap();
        object.number
    }

    fn l2(&self) -> Arc<L2arc> {
        self.spa.caches().l2arc().unwrap()
    }

    fn count(&self, of: L2) -> u64 {
        self.spa.pool.env.memory.stats.second.get(of)
    }

    /// Reads every block, in no order that is read ahead, past the memory.
    fn read_all(&self) {
        self.spa.pool.arc.forget_all();
        let data = self.spa.datasets.open(&*self.spa, self.file.0).unwrap();
        let object = data.objset.view().object(self.file.1).unwrap();
        for n in (0..BLOCKS).map(|n| n * 171 % BLOCKS) {
            assert_eq!(object.read_vec((n * BLOCK) as u64, BLOCK).unwrap(), body(n), "block {n}");
        }
    }

    /// Feeds until nothing is left; returns the number of blocks.
    fn feed(&self) -> usize {
        let mut fed = 0;
        loop {
            self.l2().settle();
            let before = self.count(L2::WritesSent);
            self.spa.background().run_steps();
            self.l2().settle();
            if self.count(L2::WritesSent) == before {
                return fed;
            }
            fed += 1;
        }
    }

    fn cache_path(&self) -> PathBuf {
        self.dir.path().join("cache1")
    }

    /// Exports, or lets go as a kill does, and imports again, with the cache device.
    fn again(mut self, export: bool) -> Self {
        if export {
            self.spa.export().unwrap();
        }
        let dir = self.dir.path().to_path_buf();
        self.spa = {
            drop(self.spa);
            pools::import_dir(&dir, POOL).unwrap()
        };
        self.spa.pool.env.memory.set(Limit::L2RebuildMinSize, 0).unwrap();
        assert!(self.spa.caches().use_device(self.cache, "cache1", pools::open(&self.cache_path())));
        self.l2().settle();
        self
    }
}

/// Output of real zdb for a cache device; `None` without zdb.
fn zdb(path: &Path) -> Option<String> {
    let Ok(out) = Command::new("zdb").arg("-lll").arg(path).output() else {
        eprintln!("SKIPPED: there is no zdb here");
        return None;
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}");
    Some(text)
}

#[test]
fn blocks_come_from_the_cache_device_also_after_an_import_and_a_kill() {
    let bench = Bench::new();
    bench.read_all();
    assert!(bench.feed() > 0);
    let held = bench.spa.caches().devices()[0].allocated;
    assert!(held > (BLOCKS * BLOCK / 2) as u64, "{held}");
    let before = bench.count(L2::Hits);
    bench.read_all();
    assert!(bench.count(L2::Hits) - before >= BLOCKS as u64, "{}", bench.count(L2::Hits));
    assert_eq!((bench.count(L2::CksumBad), bench.count(L2::IoError)), (0, 0));
    let logs = bench.count(L2::LogBlkCount);
    assert!(logs > 10, "{logs}");
    if let Some(text) = zdb(&bench.cache_path()) {
        assert!(text.contains(&format!("log_blk_count:\t {logs} with valid cksum")), "{text}");
        assert!(text.contains("\t\t 0 with invalid cksum") && !text.contains("Mismatch"), "{text}");
        assert!(text.contains(&format!("lb_count_refcount: {logs}")), "{text}");
    }
    let mut bench = bench;
    for export in [true, false] {
        if !export {
            bench.spa.reguid(None).unwrap();
            bench.l2().settle();
        }
        bench = bench.again(export);
        assert_eq!(bench.count(L2::RebuildLogBlks), logs, "all log blocks are restored");
        assert_eq!(bench.count(L2::RebuildSuccess), 1);
        bench.read_all();
        // Blocks behind the last log block are not known any more.
        let hits = bench.count(L2::Hits);
        assert!(hits >= (BLOCKS - 10) as u64, "{hits}");
        assert_eq!(bench.count(L2::CksumBad), 0);
    }
}

#[test]
fn an_offline_cache_device_keeps_its_blocks_and_is_rebuilt_when_it_returns() {
    let bench = Bench::new();
    bench.read_all();
    bench.feed();
    let online = |bench: &Bench| {
        bench.spa.caches().online(bench.cache).unwrap();
        assert!(bench.spa.caches().use_device(bench.cache, "cache1", pools::open(&bench.cache_path())));
        bench.l2().settle();
    };
    let restored = bench.count(L2::LogBlkCount);
    for rebuilds in [1, 0] {
        let (size, logs) = (bench.count(L2::Size), bench.count(L2::LogBlkCount));
        bench.spa.pool.env.memory.set(Limit::L2RebuildEnabled, rebuilds).unwrap();
        bench.spa.caches().offline(bench.cache).unwrap();
        assert!(bench.spa.caches().devices().is_empty());
        // The txg frees some blocks of the MOS.
        assert!(size > 0 && bench.count(L2::Size) > size / 2, "its blocks are still counted");
        let hits = bench.count(L2::Hits);
        bench.read_all();
        assert_eq!(bench.count(L2::Hits), hits, "none of them is read");
        assert_eq!(bench.feed(), 0);
        online(&bench);
        assert_eq!(bench.count(L2::RebuildLogBlks), restored, "all log blocks are restored, once");
        bench.read_all();
        assert!(bench.count(L2::Hits) - hits >= (BLOCKS - 10) as u64);
        assert_eq!((bench.count(L2::CksumBad), bench.count(L2::LogBlkCount)), (0, logs));
        bench.feed();
    }
    bench.spa.export().unwrap();
    drop(bench.spa);
}

#[test]
fn a_cache_device_that_openzfs_filled_is_restored() {
    let Some(warm) = golden::get("l2arc-warm") else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&warm.dir, dir.path());
    let spa = pools::import_dir(dir.path(), warm.pool_name()).unwrap();
    let memory = &spa.pool.env.memory;
    memory.set(Limit::L2RebuildMinSize, 0).unwrap();
    let guid = zdb(&dir.path().join("disk2")).map(|text| {
        let at = text.find("\n    guid: ").unwrap();
        text[at + 11..].lines().next().unwrap().parse::<u64>().unwrap()
    });
    let Some(guid) = guid else { return };
    assert!(spa.caches().use_device(guid, "disk2", pools::open(&dir.path().join("disk2"))));
    let l2 = spa.caches().l2arc().unwrap();
    l2.settle();
    let stats = &memory.stats.second;
    assert_eq!((stats.get(L2::RebuildLogBlks), stats.get(L2::RebuildBufs)), (21, 21 * 9));
    spa.pool.arc.forget_all();
    let objset = spa.pool.dsl.dataset(warm.pool_name()).unwrap().objset().unwrap();
    for object in objset.objects().map(Result::unwrap) {
        (0..=object.dnode.maxblkid).for_each(|n| drop(object.block(n).unwrap()));
    }
    assert_eq!(stats.get(L2::CksumBad), 0);
    assert!(stats.get(L2::Hits) > 0);
}

#[test]
fn freed_blocks_and_small_devices_and_datasets_without_secondarycache_are_left_out() {
    let bench = Bench::new();
    let name = format!("{POOL}/data");
    let set = move |value: u64| {
        let name = name.clone();
        move |t: &engine::dsl::write::Tasks<'_>| {
            t.set(&name, &[("secondarycache", Some(PropValue::Number(value)))], SettingSource::Local)
        }
    };
    bench.spa.dsl_task(set(0)).unwrap();
    bench.read_all();
    bench.feed();
    let before = bench.count(L2::DataAsize);
    assert_eq!(before, 0, "nothing of it is cached");
    bench.spa.dsl_task(set(2)).unwrap();
    bench.read_all();
    bench.feed();
    assert!(bench.count(L2::DataAsize) > 0);
    // All is overwritten: the device's copies are dropped.
    let data = bench.spa.datasets.open(&*bench.spa, bench.file.0).unwrap();
    let object = data.objset.handle(bench.file.1).unwrap();
    let tx = bench.spa.begin().unwrap();
    (0..BLOCKS).for_each(|n| object.write(&tx, (n * BLOCK) as u64, &body(n)).unwrap());
    drop(tx);
    bench.spa.sync().unwrap();
    assert_eq!(bench.count(L2::DataAsize), 0);
    assert!(bench.spa.pool.env.memory.second() < 1 << 20);
    bench.spa.removal().remove(bench.cache).unwrap();
    assert_eq!((bench.count(L2::Asize), bench.count(L2::LogBlkCount)), (0, 0));
    assert_eq!(bench.spa.pool.env.memory.second(), 0);
    assert_eq!(bench.l2().feed(&mut |_, _| true), Fed::NoDevice);
}

/// With `l2arc_trim_ahead` a device without contents is trimmed as a whole, and a full one ahead of the writes.
#[test]
fn devices_are_trimmed_ahead_of_the_writes() {
    let bench = Bench::new();
    bench.spa.export().unwrap();
    let Bench { dir, spa, file, cache } = bench;
    let mut file = file;
    drop(spa);
    let path = dir.path().join("cache1");
    let env = Env::system(64 << 20).unwrap();
    for (limit, value) in [(Limit::L2RebuildMinSize, 0), (Limit::L2TrimAhead, 100)] {
        env.memory.set(limit, value).unwrap();
    }
    let spa = pools::import_in(&env, dir.path(), POOL, engine::spa::OpenOptions::default()).unwrap();
    let recording = Arc::new(RecordingDevice::new(pools::open(&path)));
    assert!(spa.caches().use_device(cache, "cache1", Arc::clone(&recording) as Device));
    let trims = || {
        let events = recording.take().into_iter();
        events
            .filter_map(|event| match event {
                Event::Trim(range) => Some((range.start, range.end)),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    let mut bench = Bench { dir, spa, file, cache };
    bench.l2().settle();
    let end = (128 << 20) - (512 << 10);
    assert_eq!(trims(), [(4 << 20, end)], "the whole device, from its header on");
    if let Some(text) = zdb(&path) {
        assert!(text.contains("trim_state: 4"), "{text}");
    }
    let mut trimmed = Vec::new();
    for _ in 0..60 {
        file.1 = bench.fill();
        bench.file = file;
        bench.read_all();
        bench.feed();
        bench.read_all();
        trimmed.extend(trims());
        if trimmed.len() > 1 {
            break;
        }
    }
    assert!(trimmed.first().is_some_and(|first| first.0 == (4 << 20) + 512), "{trimmed:?}");
    assert_eq!(bench.count(L2::CksumBad), 0);
    bench.spa.export().unwrap();
    if testkit::zdb::installed() {
        testkit::zdb::verify(bench.dir.path(), POOL).unwrap();
    }
}

/// A device whose writes take a while.
#[derive(Debug)]
struct Slow {
    inner: Device,
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl BlockDevice for Slow {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, io: Io) {
        if io.kind != IoKind::Write {
            return self.inner.submit(io);
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        let (inner, ended) = (Arc::clone(&self.inner), Arc::clone(&self.ended));
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            let theirs = io.done;
            let done = Box::new(move |result, buf| {
                ended.fetch_add(1, Ordering::SeqCst);
                theirs(result, buf);
            });
            inner.submit(Io { done, ..io });
        });
    }
}

/// The header of a device without a usable one is replaced in the background.
#[test]
fn an_export_waits_for_the_header_of_an_empty_device() {
    for waits in [true, false] {
        let bench = Bench::new();
        bench.spa.export().unwrap();
        let Bench { dir, spa, cache, .. } = bench;
        drop(spa);
        let path = dir.path().join("cache1");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], 4 << 20).unwrap();
        let spa = pools::import_dir(dir.path(), POOL).unwrap();
        let (begun, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let slow = Slow { inner: pools::open(&path), begun: Arc::clone(&begun), ended: Arc::clone(&ended) };
        assert!(spa.caches().use_device(cache, "cache1", Arc::new(slow)));
        // With the write under way, and perhaps before it begins.
        while waits && begun.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        spa.export().unwrap();
        let (first, done) = (begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
        assert_eq!(first, done, "a write was under way when the pool was exported");
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(begun.load(Ordering::SeqCst), first, "the device was written after the export");
    }
}

#[test]
fn a_device_that_lies_or_dies_costs_nothing_but_reads() {
    let mut faulty = None;
    let bench = Bench::on(|device| {
        let twin = Arc::new(FaultyDevice::new(device, 7));
        faulty = Some(Arc::clone(&twin));
        twin
    });
    let faulty = faulty.unwrap();
    bench.read_all();
    bench.feed();
    // Everything behind the header becomes wrong.
    faulty.inject(Fault::BitRot { range: 5 << 20..128 << 20, every: 4096 });
    bench.read_all();
    assert!(bench.count(L2::CksumBad) > 0);
    faulty.clear();
    bench.feed();
    bench.read_all();
    let hits = bench.count(L2::Hits);
    bench.read_all();
    assert!(bench.count(L2::Hits) > hits, "it was filled again");
    faulty.inject(Fault::Dead);
    bench.read_all();
    for _ in 0..5 {
        bench.feed();
        bench.read_all();
    }
    assert!(bench.spa.caches().devices()[0].failed);
    assert!(bench.spa.txgs.suspended().is_none());
    faulty.clear();
    assert!(bench.spa.caches().use_device(bench.cache, "cache1", pools::open(&bench.cache_path())), "online");
    bench.l2().settle();
    assert!(!bench.spa.caches().devices()[0].failed);
    bench.spa.sync().unwrap();
    bench.spa.export().unwrap();
}
