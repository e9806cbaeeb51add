//! Power cuts amid each job of a pool: scrubs, resilvers, reconstructions, spares, removals and condensing, expansion, splits,
//! the discard of a checkpoint, initialization, trim. The job goes on after the import and ends, the data is as it was, and the
//! pool is whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use blkdev::Device;
use engine::dsl::write::{MosView, scan_state};
use engine::memory::Limit;
use engine::metaslab::policy::MetaslabLimits;
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::checkpoint::CheckpointState;
use engine::spa::errlog;
use engine::spa::layout::{LeafSpec, PoolSpec};
use engine::spa::scrub::ScanCommand;
use engine::spa::sparing::SpareSource;
use engine::spa::split::Split;
use engine::spa::sweep::{SweepCommand, SweepKind, TrimOptions};
use engine::spa::{ImportOptions, Spa, WaitActivity, import};
use engine::vdev::config::AllocBias;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use sim::check::{opened, opened_from, whole};
use sim::disk::Record;
use sim::image::{Pages, Replay};
use sim::world::{self, Machine, Shape, as_devices, disks_of, env, found, found_as, pool_on, recorded};
use stdx::rng::Rng;
use testkit::pattern::{File, Pattern};

const BLOCK: usize = 8 << 10;
const BLOCKS: usize = 600;
const FILE: Pattern = Pattern { blocks: BLOCKS, block: BLOCK };
/// Labels and boot space at the front of a disk.
const FRONT: u64 = 4 << 20;
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
    Discard,
    Condense,
    ErrorScrub,
    Split,
    /// A distributed spare takes over.
    DraidSpare,
    /// The disk that it stands for is back.
    DraidReturn,
    HotSpare,
    RemoveLog,
    RemoveCache,
}

const JOBS: [Job; 16] = [
    Job::Discard,
    Job::Condense,
    Job::ErrorScrub,
    Job::Split,
    Job::DraidSpare,
    Job::DraidReturn,
    Job::HotSpare,
    Job::RemoveLog,
    Job::RemoveCache,
    Job::Scrub,
    Job::Resilver,
    Job::Rebuild,
    Job::Removal,
    Job::Expansion,
    Job::Sweep(SweepKind::Initialize),
    Job::Sweep(SweepKind::Trim),
];

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

/// The other half of a split pool.
const HALF: &str = "half";

/// Spares by the names of their devices.
#[derive(Debug)]
struct Shelf(Vec<Device>);

impl SpareSource for Shelf {
    fn device(&self, _: u64, path: &str) -> Option<Device> {
        self.0.iter().find(|device| device.name() == path).cloned()
    }
}

fn is_condensing(spa: &Spa) -> bool {
    let state = MosView { mos: &spa.mos }.zap_get(MOS_DIRECTORY_OBJECT, mos::CONDENSING_INDIRECT).unwrap();
    state.is_some_and(|state| state.ints.iter().any(|word| *word != 0))
}

impl Job {
    fn machine(self) -> Machine {
        let shape = match self {
            Self::Removal | Self::Condense => Shape::Stripe,
            Self::Expansion => Shape::Raidz(1),
            Self::Discard | Self::ErrorScrub => Shape::Single,
            Self::DraidSpare | Self::DraidReturn => Shape::Draid,
            _ => Shape::Mirror,
        };
        Machine { log_device: self == Self::RemoveLog, ..Machine::from(shape) }
    }

    /// Brings a pool with the file into the state in which the job begins.
    fn prepare(self, spa: &Arc<Spa>, file: File, members: &[Device], idle: &Device) {
        let tops = spa.pool.tree().config.children.clone();
        match self {
            Self::Discard => {
                // Space maps of many blocks.
                spa.space.set_limits(MetaslabLimits { logged_block: 512, ..MetaslabLimits::default() });
                spa.checkpoint().take().unwrap();
                (0..12).for_each(|part| FILE.write(spa, file, |n| n % 12 == part));
                (0..3).for_each(|_| spa.sync().unwrap());
                assert!(spa.space.checkpoint_space() > (BLOCKS * BLOCK) as u64);
            }
            Self::Condense => {
                spa.removal().remove(tops[1].guid).unwrap();
                self.end(spa);
                (0..3).for_each(|part| FILE.write(spa, file, |n| n % 4 == part));
                (0..3).for_each(|_| spa.sync().unwrap());
            }
            Self::ErrorScrub => {
                let objset = spa.datasets.open(&**spa, file.0).unwrap();
                let view = objset.objset.view();
                let put = |n: usize, bytes: &[u8]| {
                    let bp = errlog::block_at(&view, file.1, 0, n as u64).unwrap().unwrap();
                    let at = bp.dvas().next().unwrap().offset + FRONT;
                    blkdev::write_at(&*members[0], at, bytes).unwrap();
                    spa.pool.tree().leaves().for_each(|leaf| leaf.changed(at, BLOCK as u64));
                };
                (0..BLOCKS / 4).for_each(|n| put(n, &[0x5a; BLOCK]));
                spa.scans().start(ScanCommand::Scrub).unwrap();
                self.end(spa);
                (0..BLOCKS / 4).for_each(|n| put(n, &FILE.bytes(n)));
                assert!(errlog::errors(&spa.view().unwrap(), &mut Vec::new()).len() > 100);
            }
            Self::DraidReturn => {
                Self::DraidSpare.start(spa, members, idle);
                self.end(spa);
                FILE.write(spa, file, |n| n % 2 == 0);
            }
            Self::HotSpare => {
                spa.vdevs().add(PoolSpec { spares: vec![leaf(idle)], ..PoolSpec::default() }, true).unwrap();
            }
            Self::RemoveCache => {
                spa.vdevs().add(PoolSpec { cache: vec![leaf(idle)], ..PoolSpec::default() }, true).unwrap();
            }
            _ => {}
        }
    }

    /// Settings of an import.
    fn set(self, spa: &Spa, devices: &[Device]) {
        let set = |limit, value| spa.pool.env.memory.limits.set(limit, value).unwrap();
        match self {
            Self::Discard => set(Limit::DiscardMemory, 1),
            Self::Condense => {
                set(Limit::CondenseMinMapping, 1);
                set(Limit::CondenseObsoletePercent, 1);
            }
            Self::ErrorScrub => set(Limit::ScrubErrorBlocks, 20),
            Self::HotSpare => spa.spares().set(Arc::new(Shelf(devices.to_vec()))),
            _ => {}
        }
    }

    /// A property that only the end of this job has.
    fn check(self, spa: &Spa, devices: &[Device], file: File) {
        match self {
            Self::Discard => assert_ne!(spa.checkpoint().state().unwrap(), CheckpointState::Discarding),
            Self::Condense => assert!(!is_condensing(spa)),
            Self::ErrorScrub => assert_eq!(errlog::errors(&spa.view().unwrap(), &mut Vec::new()), []),
            Self::Split => {
                // Until it can be found there is no other pool.
                let Some(half) = found_as(devices, HALF, HALF) else { return };
                let options = ImportOptions { force: true, ..ImportOptions::default() };
                let half = import(&env(3), half, &options).unwrap();
                assert!(FILE.is_in(&half, file));
                half.export().unwrap();
                drop(half);
                whole(&opened_from(found_as(devices, HALF, HALF).unwrap()).unwrap()).unwrap();
            }
            _ => {}
        }
    }

    /// The disks of a pool, and an idle one; the number of the file's dataset and its own.
    fn pool(self) -> (Vec<Pages>, File) {
        let machine = self.machine();
        let mut images = machine.blank();
        if matches!(self, Self::Removal | Self::Condense) {
            // The rest has room for what is left of the pool.
            images.fill(Pages::empty(3 * world::DISK_SIZE));
        }
        images.push(Pages::empty(images[0].size));
        let disks = disks_of(&images);
        let devices = as_devices(&disks);
        let (idle, members) = devices.split_last().unwrap();
        let spa = pool_on(&env(1), (world::POOL, machine), members.to_vec(), &[], &|_, _| Ok(())).unwrap();
        let file = FILE.create(&spa, "sim/data");
        self.prepare(&spa, file, members, idle);
        spa.export().unwrap();
        drop(spa);
        if self == Self::Scrub {
            // It has something to repair.
            let bad = vec![0x5a; 1 << 20];
            (4..60).for_each(|mib| blkdev::write_at(&*members[1], mib << 20, &bad).unwrap());
        }
        (disks.iter().map(|disk| disk.pages()).collect(), file)
    }

    fn start(self, spa: &Spa, members: &[Device], idle: &Device) {
        let children = spa.pool.tree().config.children.clone();
        let attach = |target: u64, replacing: bool, sequential: bool| {
            let device = NewDevice::Fresh { leaf: leaf(idle), ashift: None };
            spa.disks().attach(Attach { target, device, replacing, sequential }).unwrap();
        };
        match self {
            Self::Scrub => spa.scans().start(ScanCommand::Scrub).unwrap(),
            Self::Resilver => attach(children[0].children[0].guid, true, false),
            Self::Rebuild => attach(children[0].children[0].guid, false, true),
            Self::Removal => spa.removal().remove(children[1].guid).unwrap(),
            Self::Expansion => attach(children[0].guid, false, false),
            Self::Sweep(kind) => {
                let leaves: Vec<u64> = spa.pool.tree().leaves().map(|leaf| leaf.guid).collect();
                let refused = spa
                    .free_space()
                    .sweep(kind, SweepCommand::Start, TrimOptions::default(), &leaves)
                    .unwrap();
                assert!(refused.is_empty(), "{kind:?}");
            }
            Self::Discard => spa.checkpoint().discard().unwrap(),
            // Its settings begin it.
            Self::Condense => {
                spa.sync().unwrap();
                assert!(is_condensing(spa));
            }
            Self::ErrorScrub => spa.scans().start(ScanCommand::ScrubErrors).unwrap(),
            Self::Split => {
                let leaves = vec![children[0].children[1].guid];
                spa.vdevs()
                    .split(Split { name: HALF.to_owned(), leaves, props: Vec::new() })
                    .map(drop)
                    .unwrap();
            }
            Self::DraidSpare => {
                let target = children[0].children[0].guid;
                spa.disks().offline(target, false).unwrap();
                let guid = spa.spares().entries().unwrap()[0].u64("guid").unwrap();
                let device = NewDevice::Spare { guid, device: None };
                spa.disks().attach(Attach { target, device, replacing: true, sequential: true }).unwrap();
            }
            Self::DraidReturn => {
                let all = children[0].walk();
                let disk = all.iter().find(|v| v.path.as_deref() == Some(members[0].name())).unwrap();
                spa.disks().online(disk.guid, Some(Ok(Arc::clone(&members[0]))), false).unwrap();
            }
            Self::HotSpare => {
                spa.disks().fault(children[0].children[0].guid, false).unwrap();
            }
            Self::RemoveLog => {
                let tree = spa.pool.tree();
                let log = tree.tops().find(|top| top.bias == AllocBias::Log).unwrap().id;
                spa.removal().remove(children.iter().find(|top| top.id == log).unwrap().guid).unwrap();
            }
            Self::RemoveCache => {
                let cache = spa.caches().entries().unwrap()[0].u64("guid").unwrap();
                spa.removal().remove(cache).unwrap();
            }
        }
    }

    /// Txgs until no job is under way.
    fn end(self, spa: &Spa) {
        let mut quiet = 0;
        for _ in 0..MOST {
            spa.sync().unwrap();
            let steps = spa.background().run_steps();
            let mut works = WaitActivity::ALL.into_iter().filter(|work| *work != WaitActivity::Free);
            let is_under_way = works.any(|work| spa.background().left(work).unwrap().is_some());
            let is_busy = is_under_way || steps || is_condensing(spa);
            quiet = if is_busy { 0 } else { quiet + 1 };
            // Some follow others a few txgs later.
            if quiet > 3 {
                return;
            }
        }
        panic!("{self:?} does not end");
    }

    /// Whether a job that nothing cut has come to its end.
    fn has_ended(self, spa: &Spa) -> bool {
        let tree = spa.pool.tree();
        let has = |kind: &str| tree.config.walk().iter().any(|vdev| vdev.kind.name() == kind);
        match self {
            Self::Discard => spa.checkpoint().state().unwrap() == CheckpointState::None,
            Self::Split => !has("mirror"),
            Self::DraidSpare | Self::HotSpare => has("spare"),
            Self::DraidReturn => !has("spare"),
            Self::Resilver => !has("replacing"),
            Self::RemoveLog => tree.tops().all(|top| top.bias != AllocBias::Log),
            Self::RemoveCache => spa.caches().entries().unwrap().is_empty(),
            Self::Removal | Self::Condense => tree.tops().any(|top| top.mapping().is_some()),
            _ => true,
        }
    }

    /// The job goes on after a power cut.
    fn goes_on(self, image: &[Pages], file: File) {
        let disks = disks_of(image);
        let devices = as_devices(&disks);
        let spa = imported(&devices, 2);
        self.set(&spa, &devices);
        self.end(&spa);
        if self != Self::Removal {
            spa.scans().start(ScanCommand::Scrub).unwrap();
            self.end(&spa);
            let again = scan_state::load(&MosView { mos: &spa.mos }).unwrap().unwrap();
            assert_eq!((again.state, again.errors, again.processed), (2, 0, 0), "{self:?}");
        }
        assert!(FILE.is_in(&spa, file), "{self:?}");
        self.check(&spa, &devices, file);
        spa.export().unwrap();
        drop(spa);
        whole(&opened(&devices).unwrap()).unwrap();
    }

    fn cut(self, moments: usize) {
        let (images, file) = self.pool();
        let record = Arc::new(Record::default());
        let devices = as_devices(&recorded(&images, &record));
        let (idle, members) = devices.split_last().unwrap();
        // With the seed that made the pool, new vdevs would get the guids of old ones.
        let spa = imported(members, 4);
        self.set(&spa, &devices);
        self.start(&spa, members, idle);
        let begun = record.len();
        self.end(&spa);
        assert!(self.has_ended(&spa), "{self:?}");
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
    JOBS.iter().for_each(|job| job.cut(4));
}

#[test]
#[ignore = "minutes"]
fn jobs_survive_power_cuts_at_many_moments() {
    JOBS.iter().for_each(|job| job.cut(40));
}
