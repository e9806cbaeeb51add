//! Jobs are paced: they leave time to others where all leaves are on one disk.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use blkdev::{BlockDevice, Geometry, Io, MemDevice};
use engine::spa::layout::LeafSpec;

use super::*;

/// How long the disk takes for a request.
const REQUEST: Duration = Duration::from_millis(1);
const SIZE: usize = 80 << 20;
const RECORD: usize = 32 << 10;
const RECORDS: usize = 1500;

/// The disk on which all partitions are: it serves one request at a time.
#[derive(Debug, Default)]
struct Disk {
    busy: Mutex<()>,
    slow: AtomicBool,
}

/// A part of the disk, with a thread that waits for it.
#[derive(Debug)]
struct Partition {
    name: String,
    geometry: Geometry,
    requests: Mutex<mpsc::Sender<Io>>,
}

impl Partition {
    fn of(disk: &Arc<Disk>, name: String) -> Arc<Self> {
        let content = MemDevice::new(name.clone(), vec![0; SIZE]);
        let (requests, served) = mpsc::channel::<Io>();
        let (disk, geometry) = (Arc::clone(disk), content.geometry());
        std::thread::spawn(move || {
            for io in served {
                let busy = disk.busy.lock().unwrap();
                if disk.slow.load(Ordering::Relaxed) {
                    std::thread::sleep(REQUEST);
                }
                drop(busy);
                content.submit(io);
            }
        });
        Arc::new(Self { name, geometry, requests: Mutex::new(requests) })
    }
}

impl BlockDevice for Partition {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, io: Io) {
        self.requests.lock().unwrap().send(io).unwrap();
    }
}

struct Shared {
    disk: Arc<Disk>,
    spa: Arc<Spa>,
    file: (u64, u64),
}

impl Shared {
    /// A raidz2 of six partitions.
    fn new() -> Self {
        let disk = Arc::<Disk>::default();
        let leaf = |number: usize| {
            let path = format!("part{number}");
            let device = Partition::of(&disk, path.clone());
            LeafSpec { path, is_disk: false, whole_disk: None, devid: None, device }
        };
        let vdev = VdevSpec::Raidz { parity: 2, children: (0..6).map(leaf).collect() };
        let top = TopSpec { vdev, class: AllocBias::Normal, ashift: Some(12) };
        let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, vec![top], &|_, _| Ok(())).unwrap();
        let name = format!("{POOL}/data");
        let dataset =
            spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
        let data = spa.datasets.open(&*spa, dataset).unwrap();
        let tx = spa.begin().unwrap();
        let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, RECORD as u64);
        let object = data.objset.create_object(&tx, new).unwrap();
        let mut random = Rng::new(7);
        for number in 0..RECORDS {
            let mut bytes = vec![0; RECORD];
            random.fill(&mut bytes);
            object.write(&tx, (number * RECORD) as u64, &bytes).unwrap();
        }
        drop(tx);
        spa.sync().unwrap();
        spa.start_thread().unwrap();
        disk.slow.store(true, Ordering::Relaxed);
        let file = (dataset, object.number);
        Self { disk, spa, file }
    }

    /// Records that one caller reads in that time.
    fn reads(&self, time: Duration) -> u64 {
        let data = self.spa.datasets.open(&*self.spa, self.file.0).unwrap();
        let stored = data.objset.view().object(self.file.1).unwrap();
        let (end, mut random, mut count) = (Instant::now() + time, Rng::new(3), 0);
        while Instant::now() < end {
            let record = random.below(RECORDS as u64) * RECORD as u64;
            stored.read_vec(record, 8 << 10).unwrap();
            count += 1;
        }
        count
    }

    fn issued(&self) -> u64 {
        self.spa.scans().progress().unwrap().map_or(0, |now| now.issued)
    }
}

#[test]
fn readers_keep_half_of_their_speed_beside_a_scrub() {
    let shared = Shared::new();
    let time = Duration::from_millis(1500);
    let alone = shared.reads(time);
    shared.spa.scans().start(ScanCommand::Scrub).unwrap();
    let before = shared.issued();
    let beside = shared.reads(time);
    let issued = shared.issued() - before;
    assert!(shared.spa.scans().is_scanning(), "it goes on");
    assert!(beside * 2 >= alone, "{beside} reads, {alone} without the scrub");
    assert!(issued > 1 << 20, "the scrub has read {issued} bytes meanwhile");
    shared.disk.slow.store(false, Ordering::Relaxed);
    let begun = Instant::now();
    while shared.spa.scans().is_scanning() {
        assert!(begun.elapsed() < Duration::from_secs(60), "alone it does not rest");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(shared.scan_errors(), 0);
}

impl Shared {
    fn scan_errors(&self) -> u64 {
        scan_state::load(&MosView { mos: &self.spa.mos }).unwrap().unwrap().errors
    }
}
