//! Power cuts amid each job of a pool: scrub, resilver, sequential reconstruction, removal, expansion, initialization, trim.
//! The job goes on after the import and ends, the data is as it was, and the pool is whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use blkdev::Device;
use engine::dmu::NewObject;
use engine::dsl::write::{MosView, scan_state};
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::layout::LeafSpec;
use engine::spa::scrub::{ScanCommand, ScanFunc};
use engine::spa::sweep::{SweepCommand, SweepKind, TrimOptions};
use engine::spa::{ImportOptions, Spa, import};
use ondisk::{ObjectType, ObjsetType};
use sim::check::{opened, whole};
use sim::disk::Record;
use sim::image::{Pages, Replay};
use sim::world::{self, Machine, Shape, as_devices, disks_of, env, found, pool_on, recorded};
use stdx::rng::Rng;

const BLOCK: usize = 8 << 10;
const BLOCKS: usize = 600;
/// Txgs within which every job ends.
const MOST: usize = 4000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Scrub,
    Resilver,
    Rebuild,
    Removal,
    Expansion,
    Sweep(SweepKind),
}

const JOBS: [Job; 7] = [
    Job::Scrub,
    Job::Resilver,
    Job::Rebuild,
    Job::Removal,
    Job::Expansion,
    Job::Sweep(SweepKind::Initialize),
    Job::Sweep(SweepKind::Trim),
];

/// The content of a block.
fn body(number: usize) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(number as u64).fill(&mut bytes);
    bytes
}

fn leaf(device: &Device) -> LeafSpec {
    LeafSpec {
        path: device.name().to_owned(),
        is_disk: false,
        whole_disk: None,
        devid: None,
        device: Arc::clone(device),
    }
}

fn imported(devices: &[Device], seed: u64) -> Arc<Spa> {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    import(&env(seed), found(devices).unwrap(), &options).unwrap()
}

impl Job {
    fn shape(self) -> Shape {
        match self {
            Self::Removal => Shape::Stripe,
            Self::Expansion => Shape::Raidz(1),
            _ => Shape::Mirror,
        }
    }

    /// The disks of a pool, and an empty one; the number of the file's dataset and its own.
    fn pool(self) -> (Vec<Pages>, (u64, u64)) {
        let mut images = Machine::from(self.shape()).blank();
        if self == Self::Removal {
            // The rest has room for what is left of the pool.
            images.fill(Pages::empty(3 * world::DISK_SIZE));
        }
        let disks = disks_of(&images);
        let spa =
            pool_on(&env(1), (world::POOL, self.shape()), as_devices(&disks), &[], &|_, _| Ok(())).unwrap();
        let dataset =
            spa.dsl_task(|t| t.create("sim/data", ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
        let data = spa.datasets.open(&*spa, dataset).unwrap();
        let tx = spa.begin().unwrap();
        let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, BLOCK as u64);
        let object = data.objset.create_object(&tx, new).unwrap();
        (0..BLOCKS).for_each(|n| object.write(&tx, (n * BLOCK) as u64, &body(n)).unwrap());
        let number = object.number;
        drop((tx, object, data));
        spa.sync().unwrap();
        spa.export().unwrap();
        drop(spa);
        if self == Self::Scrub {
            // It has something to repair.
            let bad = vec![0x5a; 1 << 20];
            (4..60).for_each(|mib| blkdev::write_at(&*as_devices(&disks)[1], mib << 20, &bad).unwrap());
        }
        let empty = Pages::empty(images[0].size);
        images = disks.iter().map(|disk| disk.pages()).collect();
        images.push(empty);
        (images, (dataset, number))
    }

    fn start(self, spa: &Spa, idle: &Device) {
        let children = spa.pool.tree().config.children.clone();
        let attach = |target: u64, replacing: bool, sequential: bool| {
            let device = NewDevice::Fresh { leaf: leaf(idle), ashift: None };
            spa.attach(Attach { target, device, replacing, sequential }).unwrap();
        };
        match self {
            Self::Scrub => spa.scan(ScanCommand::Scrub).unwrap(),
            Self::Resilver => attach(children[0].children[0].guid, true, false),
            Self::Rebuild => attach(children[0].children[0].guid, false, true),
            Self::Removal => spa.remove(children[1].guid).unwrap(),
            Self::Expansion => attach(children[0].guid, false, false),
            Self::Sweep(kind) => {
                let leaves: Vec<u64> = spa.pool.tree().leaves().map(|leaf| leaf.guid).collect();
                let refused = spa.sweep(kind, SweepCommand::Start, TrimOptions::default(), &leaves).unwrap();
                assert!(refused.is_empty(), "{kind:?}");
            }
        }
    }

    /// Txgs until no job is under way.
    fn end(self, spa: &Spa) {
        let leaves: Vec<u64> = spa.pool.tree().leaves().map(|leaf| leaf.guid).collect();
        for _ in 0..MOST {
            spa.sync().unwrap();
            let steps = spa.run_steps();
            let scans = [ScanFunc::Scrub, ScanFunc::Resilver].map(|func| spa.scan_left(func).unwrap());
            let moves = spa.removal_left().unwrap().is_some() || spa.is_expanding();
            let sweeps = [SweepKind::Initialize, SweepKind::Trim];
            let sweeps = sweeps.iter().any(|kind| spa.sweep_left(*kind, &leaves).is_some());
            if scans == [None, None] && !moves && !sweeps && !steps {
                return;
            }
        }
        panic!("{self:?} does not end");
    }

    /// The job goes on after a power cut.
    fn goes_on(self, image: &[Pages], file: (u64, u64)) {
        let disks = disks_of(image);
        let spa = imported(&as_devices(&disks), 2);
        self.end(&spa);
        if self != Self::Removal {
            spa.scan(ScanCommand::Scrub).unwrap();
            self.end(&spa);
            let again = scan_state::load(&MosView { mos: &spa.mos }).unwrap().unwrap();
            assert_eq!((again.state, again.errors, again.processed), (2, 0, 0), "{self:?}");
        }
        let data = spa.datasets.open(&*spa, file.0).unwrap();
        let stored = data.objset.view().object(file.1).unwrap();
        (0..BLOCKS).for_each(|n| {
            assert_eq!(stored.read_vec((n * BLOCK) as u64, BLOCK).unwrap(), body(n), "{self:?}, block {n}");
        });
        drop((stored, data));
        spa.export().unwrap();
        drop(spa);
        whole(&opened(&as_devices(&disks)).unwrap()).unwrap();
    }

    fn cut(self, moments: usize) {
        let (images, file) = self.pool();
        let record = Arc::new(Record::default());
        let devices = as_devices(&recorded(&images, &record));
        let (idle, members) = devices.split_last().unwrap();
        let spa = imported(members, 1);
        self.start(&spa, idle);
        let begun = record.len();
        self.end(&spa);
        drop(spa);
        let (events, mut replay, mut random) = (record.take(), Replay::new(images), Rng::new(7));
        let every = (events.len() / moments).max(1);
        for (at, event) in events.iter().enumerate() {
            replay.step(event);
            // A scrub that has not begun repairs nothing.
            if at % every == every / 2 && (at >= begun || self != Self::Scrub) {
                for variant in 0..replay.variants(1) {
                    self.goes_on(&replay.image(variant, &mut random), file);
                }
            }
        }
    }
}

#[test]
fn jobs_survive_power_cuts() {
    JOBS.iter().for_each(|job| job.cut(5));
}

#[test]
#[ignore = "minutes"]
fn jobs_survive_power_cuts_at_many_moments() {
    JOBS.iter().for_each(|job| job.cut(40));
}
