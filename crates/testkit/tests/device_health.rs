//! Disks that fail, are taken out of use and come back while a pool is written: their states, the results of
//! reads, and real zdb's verdict on the pool.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blkdev::{Device, Fault, FaultyDevice};
use engine::Kind;
use engine::dmu::NewObject;
use engine::dsl::props::PropValue;
use engine::dsl::write::LiveDataset;
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::Spa;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::spa::sweep::{SweepCommand, SweepKind, TrimOptions};
use engine::vdev::config::AllocBias;
use engine::vdev::leaf::Leaf;
use ondisk::{ObjectType, ObjsetType};
use testkit::{pools, zdb};
use zcommon::health::Health;
use zcommon::vdev::{VdevAux, VdevState};

const POOL: &str = "hurt";
const FAULTED: Health = Health::faulted(VdevAux::ErrorsExceeded);
const DEGRADED: Health = Health { state: VdevState::Degraded, aux: VdevAux::ErrorsExceeded };
/// Bytes of the file that each round rewrites in part.
const FILE: usize = 1 << 20;
const BLOCK: usize = 16 << 10;

/// A pool over disks that can be made to fail, with one file.
struct Bench {
    dir: tempfile::TempDir,
    disks: Vec<Arc<FaultyDevice>>,
    spa: Arc<Spa>,
    file: (u64, u64),
    /// The file's expected content.
    model: Vec<u8>,
    round: u8,
}

impl Bench {
    fn new(count: usize, make: impl Fn(Vec<engine::spa::layout::LeafSpec>) -> VdevSpec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut disks = Vec::new();
        let mut leaves = Vec::new();
        for number in 1..=count {
            let mut leaf = pools::leaf(&dir.path().join(format!("disk{number}")), 96 << 20);
            let faulty = Arc::new(FaultyDevice::new(leaf.device, 7));
            leaf.device = Arc::clone(&faulty) as Device;
            disks.push(faulty);
            leaves.push(leaf);
        }
        // Nothing stays in memory: every read asks the disks.
        let env = Env::system(0).unwrap();
        let tops = vec![TopSpec { vdev: make(leaves), class: AllocBias::Normal, ashift: None }];
        let spa = pools::create_pool(&env, POOL, tops, &|_, _| Ok(())).unwrap();
        let name = format!("{POOL}/data");
        let number =
            spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
        let data = spa.datasets.open(&*spa, number).unwrap();
        let tx = spa.begin().unwrap();
        let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, BLOCK as u64);
        let object = data.objset.create_object(&tx, new).unwrap();
        object.write(&tx, 0, &vec![1; FILE]).unwrap();
        drop(tx);
        spa.sync().unwrap();
        let file = (number, object.number);
        Self { dir, disks, spa, file, model: vec![1; FILE], round: 1 }
    }

    fn mirror() -> Self {
        Self::new(2, VdevSpec::Mirror)
    }

    fn data(&self) -> Arc<LiveDataset> {
        self.spa.datasets.open(&*self.spa, self.file.0).unwrap()
    }

    /// Rewrites every third block or so, and reads all of the file.
    fn write(&mut self) {
        self.round += 1;
        let round = self.round;
        let data = self.data();
        let object = data.objset.handle(self.file.1).unwrap();
        let tx = self.spa.begin().unwrap();
        for number in (usize::from(round % 3)..FILE / BLOCK).step_by(3) {
            let bytes: Vec<u8> = (0..BLOCK).map(|at| round ^ (at * number % 251) as u8).collect();
            object.write(&tx, (number * BLOCK) as u64, &bytes).unwrap();
            self.model[number * BLOCK..][..BLOCK].copy_from_slice(&bytes);
        }
        drop(tx);
        self.spa.sync().unwrap();
        self.read();
    }

    fn read(&self) {
        let stored = self.data().objset.view().object(self.file.1).unwrap();
        assert!(stored.read_vec(0, FILE).unwrap() == self.model, "other bytes in round {}", self.round);
    }

    fn guid(&self, disk: usize) -> u64 {
        let path = self.dir.path().join(format!("disk{}", disk + 1));
        let path = path.to_str().unwrap();
        let tree = self.spa.pool.tree();
        tree.config.walk().into_iter().find(|v| v.path.as_deref() == Some(path)).unwrap().guid
    }

    fn leaf(&self, disk: usize) -> Arc<Leaf> {
        Arc::clone(self.spa.pool.tree().leaf(self.guid(disk)).unwrap())
    }

    fn device(&self, disk: usize) -> Device {
        Arc::clone(&self.disks[disk]) as Device
    }

    fn health(&self, disk: usize) -> Health {
        self.leaf(disk).health()
    }

    /// Whether a disk lacks something, or did until a resilver brought it.
    fn was_stale(&self, disk: usize) -> bool {
        !self.leaf(disk).dtl.read().is_empty() || self.told("resilver_start") > 0
    }

    fn told(&self, class: &str) -> usize {
        self.spa.reports().events().after(0).iter().filter(|event| event.class.ends_with(class)).count()
    }

    /// Exports it; zdb has its say, and finds `shown` in the configuration.
    fn export(self, shown: &[&str]) -> tempfile::TempDir {
        let Self { dir, spa, .. } = self;
        spa.export().unwrap();
        drop(spa);
        if zdb::installed() {
            zdb::verify(dir.path(), POOL).unwrap();
            let config = zdb::run(dir.path(), POOL, &["-C"]).unwrap();
            shown.iter().for_each(|words| assert!(config.contains(words), "{words}: {config}"));
        }
        dir
    }
}

fn reimported(dir: &Path, file: (u64, u64), model: &[u8]) -> Arc<Spa> {
    let spa = pools::import_dir(dir, POOL).unwrap();
    let data = spa.datasets.open(&*spa, file.0).unwrap();
    let stored = data.objset.view().object(file.1).unwrap();
    assert!(stored.read_vec(0, FILE).unwrap() == model, "other bytes after the import");
    spa
}

/// A disk stops working: it is faulted and no longer used, and its DTL is complete when it comes back.
#[test]
fn a_dead_disk_is_faulted_and_never_believed_when_it_is_back() {
    let raidz = |children| VdevSpec::Raidz { parity: 1, children };
    let draid = |children| VdevSpec::Draid { config: "draid1:2d:4c:0s".parse().unwrap(), children };
    for mut bench in [Bench::mirror(), Bench::new(3, raidz), Bench::new(4, draid)] {
        bench.write();
        bench.disks[1].inject(Fault::Dead);
        (0..3).for_each(|_| bench.write());
        assert_eq!(bench.health(1), FAULTED);
        assert_eq!((bench.told("probe_failure"), bench.told("statechange")), (1, 1));
        let counted = bench.leaf(1).errors.counts();
        bench.write();
        assert_eq!(bench.leaf(1).errors.counts(), counted, "a faulted disk is left alone");
        assert_eq!(bench.spa.disks().offline(bench.guid(0), false).unwrap_err().kind(), Kind::Busy);

        bench.disks[1].clear();
        let (guid, device) = (bench.guid(1), bench.device(1));
        assert_eq!(
            bench.spa.disks().online(guid, Some(Ok(Arc::clone(&device))), false).unwrap(),
            FAULTED,
            "clear comes first"
        );
        bench.spa.disks().clear(vec![(guid, Some(Ok(device)))]).unwrap();
        assert_eq!((bench.health(1), bench.leaf(1).errors.counts()), (Health::ONLINE, [0; 3]));
        (0..2).for_each(|_| bench.write());
        assert_eq!(bench.leaf(1).errors.counts(), [0; 3], "what is known to be stale is not even tried");
        assert!(bench.leaf(1).dtl.read().is_empty(), "a resilver has brought what it lacked");
        // Writes during its return may need another resilver.
        let told = [bench.told("resilver_start"), bench.told("resilver_finish")];
        assert!(told[0] > 0 && told[0] == told[1], "{told:?}");
        bench.spa.disks().offline(bench.guid(0), false).unwrap();
        bench.read();
        let (file, model) = (bench.file, bench.model.clone());
        let dir = bench.export(&[]);
        drop(reimported(dir.path(), file, &model));
    }
}

/// Offline lasts, until the disk is brought back; a temporary one ends with the export.
#[test]
fn offline_outlives_an_export_unless_it_is_temporary() {
    for temporary in [false, true] {
        let mut bench = Bench::mirror();
        let guid = bench.guid(0);
        bench.spa.disks().offline(guid, temporary).unwrap();
        bench.write();
        assert_eq!(bench.health(0), Health::OFFLINE);
        let (file, model) = (bench.file, bench.model.clone());
        let dir = bench.export(if temporary { &[] } else { &["offline: 1"] });
        let spa = reimported(dir.path(), file, &model);
        let leaf = Arc::clone(spa.pool.tree().leaf(guid).unwrap());
        assert_eq!(leaf.health() == Health::OFFLINE, !temporary);
        if !temporary {
            assert!(!leaf.dtl.read().is_empty());
            let device = pools::open(&dir.path().join("disk1"));
            assert_eq!(spa.disks().online(guid, Some(Ok(device)), false).unwrap(), Health::ONLINE);
        }
        spa.export().unwrap();
        drop(spa);
        if zdb::installed() {
            zdb::verify(dir.path(), POOL).unwrap();
            assert!(!zdb::run(dir.path(), POOL, &["-C"]).unwrap().contains("offline"));
        }
        drop(reimported(dir.path(), file, &model));
    }
}

/// A working disk that fails too often is faulted; one that returns wrong bytes too often is only degraded.
#[test]
fn too_many_errors_are_too_many() {
    let mut bench = Bench::mirror();
    // Labels at either end can be written, so the disk works.
    bench.disks[0].inject(Fault::WriteError(4 << 20..90 << 20));
    for _ in 0..12 {
        bench.write();
    }
    assert_eq!((bench.health(0), bench.told("probe_failure")), (FAULTED, 0));
    let (file, model) = (bench.file, bench.model.clone());
    let dir = bench.export(&["faulted: 1", "aux_state: 'err_exceeded'"]);
    let spa = reimported(dir.path(), file, &model);
    assert!(spa.pool.tree().leaves().all(|leaf| leaf.health() == Health::ONLINE), "a new chance");
    drop(spa);

    let mut bench = Bench::mirror();
    bench.disks[0].inject(Fault::BitRot { range: 4 << 20..90 << 20, every: 512 });
    for _ in 0..4 {
        bench.write();
    }
    assert_eq!(bench.health(0), DEGRADED);
    bench.disks[0].clear();
    bench.spa.disks().clear(vec![(bench.guid(0), None)]).unwrap();
    assert_eq!(bench.health(0), Health::ONLINE);
}

/// The limits are properties of the vdev, or else of its ancestors.
#[test]
fn properties_say_how_many_errors_are_too_many() {
    let mut bench = Bench::mirror();
    let top = bench.spa.pool.tree().config.children[0].guid;
    let set = |bench: &Bench, vdev: u64, most: u64| {
        let settings = vec![("checksum_n".to_owned(), PropValue::Number(most))];
        bench.spa.sync_task(move |spa, tx| spa.disks().set_props(vdev, &settings, tx)).unwrap();
    };
    set(&bench, top, 5000);
    bench.disks[0].inject(Fault::BitRot { range: 4 << 20..90 << 20, every: 512 });
    (0..4).for_each(|_| bench.write());
    assert!(bench.leaf(0).errors.counts()[2] > 10);
    assert_eq!(bench.health(0), Health::ONLINE);
    set(&bench, bench.guid(0), 3);
    (0..2).for_each(|_| bench.write());
    assert_eq!(bench.health(0), DEGRADED);
}

/// A slow disk is degraded; when another one beside it is slow, too, the cause is elsewhere.
#[test]
fn disks_that_are_slow_together_are_not_degraded() {
    for slow in [1, 2] {
        let mut bench = Bench::mirror();
        let settings = vec![("slow_io_n".to_owned(), PropValue::Number(5))];
        let top = bench.spa.pool.tree().config.children[0].guid;
        bench.spa.sync_task(move |spa, tx| spa.disks().set_props(top, &settings, tx)).unwrap();
        for disk in 0..slow {
            bench.leaf(disk).stats.slow.fetch_add(9, Ordering::Relaxed);
        }
        bench.write();
        let first = if slow == 1 { DEGRADED } else { Health::ONLINE };
        assert_eq!([bench.health(0), bench.health(1)], [first, Health::ONLINE]);
    }
}

/// The administrator's word lasts; of a disk that can't be done without it only makes a degraded one.
#[test]
fn faults_by_order() {
    let mut bench = Bench::mirror();
    let (first, second) = (bench.guid(0), bench.guid(1));
    bench.spa.disks().fault(first, false).unwrap();
    bench.spa.disks().fault(second, true).unwrap();
    let external = |state| Health { state, aux: VdevAux::External };
    assert_eq!(bench.health(0), external(VdevState::Faulted));
    assert_eq!(bench.health(1), external(VdevState::Degraded));
    bench.write();
    let (file, model) = (bench.file, bench.model.clone());
    let dir = bench.export(&["faulted: 1", "aux_state: 'external'"]);
    let spa = reimported(dir.path(), file, &model);
    let health = |guid| spa.pool.tree().leaf(guid).unwrap().health();
    assert_eq!(health(first), external(VdevState::Faulted));
    assert_eq!(health(second), Health::ONLINE);
}

/// A disk that was pulled out is removed; one without which the pool has nothing left suspends it.
#[test]
fn pulled_disks_are_removed_and_the_last_one_is_not_given_up() {
    let mut bench = Bench::mirror();
    bench.disks[1].inject(Fault::Gone);
    (0..2).for_each(|_| bench.write());
    assert_eq!((bench.health(1), bench.told("resource.fs.zfs.removed")), (Health::REMOVED, 1));
    bench.disks[0].inject(Fault::Dead);
    let tx = bench.spa.begin().unwrap();
    bench.data().objset.handle(bench.file.1).unwrap().write(&tx, 0, &[9; 100]).unwrap();
    drop(tx);
    assert_eq!(bench.spa.sync().unwrap_err().kind(), Kind::Suspended);
    assert_eq!(bench.spa.begin().unwrap_err().kind(), Kind::Suspended);
    assert!(bench.health(0).is_readable());
    // When the disks are back, synced data is there.
    let (file, model, dir) = (bench.file, bench.model.clone(), bench.dir);
    drop(bench.spa);
    drop(reimported(dir.path(), file, &model));
}

/// Changes a part of the file, and asks for the txg; how that ended.
fn change(bench: &mut Bench, byte: u8) -> engine::Result<()> {
    change_then(bench, byte, |_| ())
}

/// Like `change`; `fails` comes between the change, which may read an indirect block, and the txg.
fn change_then(bench: &mut Bench, byte: u8, fails: impl FnOnce(&Bench)) -> engine::Result<()> {
    let tx = bench.spa.begin().unwrap();
    let bytes = vec![byte; FILE / 2];
    bench.data().objset.handle(bench.file.1).unwrap().write(&tx, 0, &bytes).unwrap();
    bench.model[..FILE / 2].copy_from_slice(&bytes);
    drop(tx);
    fails(bench);
    bench.spa.sync()
}

fn all_gone(bench: &Bench) {
    bench.disks.iter().for_each(|disk| disk.inject(Fault::Gone));
}

/// All disks go away in the middle of a txg: it waits, and continues when they are back.
#[test]
fn a_suspended_pool_goes_on_where_it_stopped() {
    let raidz = |children| VdevSpec::Raidz { parity: 1, children };
    let one = |mut children: Vec<_>| VdevSpec::Leaf(children.remove(0));
    for mut bench in [Bench::new(1, one), Bench::mirror(), Bench::new(3, raidz)] {
        bench.spa.start_thread().unwrap();
        for round in 0..2 {
            assert_eq!(change_then(&mut bench, 10 + round, all_gone).unwrap_err().kind(), Kind::Suspended);
            assert_eq!(bench.spa.begin().unwrap_err().kind(), Kind::Suspended);
            drop(bench.spa.quiet());
            // They are still away.
            let absent = |_| Err(Health::cant_open(VdevAux::OpenFailed));
            let _ = bench.spa.suspending().resume(&absent);
            assert!(bench.spa.sync().is_err());
            bench.disks.iter().for_each(|disk| disk.clear());
            let guids: Vec<u64> = (0..bench.disks.len()).map(|disk| bench.guid(disk)).collect();
            let back = |guid| Ok(bench.device(guids.iter().position(|&known| known == guid).unwrap()));
            bench.spa.suspending().resume(&back).unwrap();
            bench.spa.disks().clear(guids.iter().map(|&guid| (guid, Some(back(guid)))).collect()).unwrap();
            bench.spa.sync().unwrap();
            bench.read();
            bench.write();
            assert!((0..bench.disks.len()).all(|disk| bench.health(disk) == Health::ONLINE));
        }
        let (file, model) = (bench.file, bench.model.clone());
        let dir = bench.export(&[]);
        drop(reimported(dir.path(), file, &model));
    }
}

/// A disk that was away while the pool was suspended may have lost what a resilver had restored before: another one follows.
#[test]
fn blocks_restored_before_a_suspension_are_restored_again() {
    let mut bench = Bench::mirror();
    let guids = [bench.guid(0), bench.guid(1)];
    bench.spa.disks().offline(guids[1], true).unwrap();
    bench.write();
    let suspend = |bench: &Bench, on| bench.spa.pool.env.memory.limits.set(Limit::ScanSuspend, on).unwrap();
    suspend(&bench, 1);
    bench.spa.disks().online(guids[1], Some(Ok(bench.device(1))), false).unwrap();
    bench.spa.start_thread().unwrap();
    while !bench.spa.scans().is_scanning() {
        bench.spa.sync().unwrap();
    }
    assert_eq!(change_then(&mut bench, 9, all_gone).unwrap_err().kind(), Kind::Suspended);
    bench.disks.iter().for_each(|disk| disk.clear());
    bench.spa.suspending().resume(&|guid| Ok(bench.device(usize::from(guid == guids[1])))).unwrap();
    suspend(&bench, 0);
    while !bench.leaf(1).dtl.read().is_empty() {
        bench.spa.sync().unwrap();
    }
    assert_eq!(bench.told("resilver_finish"), 2);
    bench.read();
    bench.export(&[]);
}

/// Two of four disks of a raidz1 fail while blocks that the txg wrote before are written anew in their place: half of the
/// columns have the new content, half have the old. Nothing is lost, since the new content waits to be written.
#[test]
fn an_overwrite_that_failed_halfway_does_not_keep_a_pool_suspended() {
    let raidz = |children| VdevSpec::Raidz { parity: 1, children };
    let mut bench = Bench::new(4, raidz);
    bench.spa.start_thread().unwrap();
    for round in 0..4 {
        for disk in &bench.disks[..2] {
            disk.inject(Fault::DiesOnOverwrite(4 << 20..95 << 20));
        }
        assert_eq!(change(&mut bench, 20 + round).unwrap_err().kind(), Kind::Suspended);
        bench.disks.iter().for_each(|disk| disk.clear());
        let guids: Vec<u64> = (0..bench.disks.len()).map(|disk| bench.guid(disk)).collect();
        let back = |guid| Ok(bench.device(guids.iter().position(|&known| known == guid).unwrap()));
        bench.spa.suspending().resume(&back).unwrap();
        bench.spa.disks().clear(guids.iter().map(|&guid| (guid, Some(back(guid)))).collect()).unwrap();
        bench.spa.sync().unwrap();
        bench.read();
    }
    let (file, model) = (bench.file, bench.model.clone());
    let dir = bench.export(&[]);
    drop(reimported(dir.path(), file, &model));
}

/// A disk that returns without acknowledged writes is detected; without another copy the pool stays
/// suspended.
#[test]
fn a_disk_that_forgot_its_writes_is_noticed() {
    let one = |mut children: Vec<_>| VdevSpec::Leaf(children.remove(0));
    for (count, goes_on) in [(1, false), (2, true)] {
        let mut bench = match goes_on {
            true => Bench::mirror(),
            false => Bench::new(count, one),
        };
        bench.spa.start_thread().unwrap();
        let (file, model) = (bench.file, bench.model.clone());
        let image = bench.dir.path().join("disk1");
        let before = std::fs::read(&image).unwrap();
        // Data goes to the middle; the labels, which come last, can't be written.
        let end = 96 << 20;
        bench.disks.iter().for_each(|disk| disk.inject(Fault::WriteError(0..512 << 10)));
        bench.disks.iter().for_each(|disk| disk.inject(Fault::WriteError(end - (600 << 10)..end)));
        assert_eq!(change(&mut bench, 77).unwrap_err().kind(), Kind::Suspended);
        bench.disks.iter().for_each(|disk| disk.clear());
        bench.disks[0].inject(Fault::Gone);
        std::fs::OpenOptions::new().write(true).open(&image).unwrap().write_all(&before).unwrap();
        let resumed = bench.spa.suspending().resume(&|_| {
            bench.disks[0].clear();
            Ok(bench.device(0))
        });
        if goes_on {
            resumed.unwrap();
            bench.spa.sync().unwrap();
            bench.read();
            assert!(bench.was_stale(0));
            assert!(bench.leaf(1).dtl.read().ranges().is_empty());
            bench.export(&[]);
        } else {
            let why = resumed.unwrap_err().to_string();
            assert!(why.contains("lost what they had taken"), "{why}");
            let told = ["ereport.fs.zfs.data", "ereport.fs.zfs.checksum"].map(|class| bench.told(class));
            assert_eq!(told, [0, 0], "nothing on disk refers to what is missing");
            assert!(bench.spa.sync().is_err());
            bench.spa.suspending().abandon();
            let Bench { spa, dir, .. } = bench;
            drop(spa);
            drop(reimported(dir.path(), file, &model));
        }
    }
}

/// A flush fails once, and the system drops the pages that it could not write: the txg is not committed over
/// it. Blocks still in memory are written again; a mirror continues at once, and the DTL of the failed side
/// gets the txg. Where the flushes of all disks fail the pool is suspended, and `zpool clear` resumes it without loss.
#[test]
fn writes_lost_by_a_failed_flush_are_not_committed() {
    let one = |mut children: Vec<_>| VdevSpec::Leaf(children.remove(0));
    for (is_mirror, failing) in [(false, 1), (true, 1), (true, 2)] {
        let mut bench = if is_mirror { Bench::mirror() } else { Bench::new(1, one) };
        bench.spa.start_thread().unwrap();
        let fault = Fault::FlushErrors { count: 1, lost: 1000 };
        bench.disks.iter().take(failing).for_each(|disk| disk.inject(fault.clone()));
        let changed = change(&mut bench, 77);
        if failing < bench.disks.len() {
            changed.unwrap();
            assert!(bench.was_stale(0) && bench.leaf(1).dtl.read().is_empty());
        } else {
            assert_eq!(changed.unwrap_err().kind(), Kind::Suspended);
            bench.spa.suspending().resume(&|_| Err(Health::cant_open(VdevAux::OpenFailed))).unwrap();
            bench.spa.sync().unwrap();
        }
        bench.read();
        // The content of the disks themselves, as after a power cut.
        let crashed = tempfile::tempdir().unwrap();
        pools::copy(bench.dir.path(), crashed.path());
        drop(reimported(crashed.path(), bench.file, &bench.model));
        bench.export(&[]);
    }
}

/// A change that failed because the pool is suspended does not take effect when the pool is resumed.
#[test]
fn a_change_that_failed_at_a_suspension_does_not_come_later() {
    let one = |mut children: Vec<_>| VdevSpec::Leaf(children.remove(0));
    let mut bench = Bench::new(1, one);
    bench.spa.start_thread().unwrap();
    assert_eq!(change_then(&mut bench, 7, all_gone).unwrap_err().kind(), Kind::Suspended);
    let suspension = bench.spa.suspending().state().unwrap();
    assert!(!suspension.is_ours, "{suspension:?}");
    let name = format!("{POOL}/later");
    let create =
        |name: String| bench.spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(())));
    assert_eq!(create(name.clone()).unwrap_err().kind(), Kind::Suspended);
    bench.disks[0].clear();
    bench.spa.suspending().resume(&|_| Ok(bench.device(0))).unwrap();
    bench.spa.sync().unwrap();
    create(name).unwrap();
    bench.export(&[]);
}

/// A panic in the middle of a change: the pool is suspended for good, its disks are not blamed, and the last
/// synced state is there at the next import.
#[test]
fn half_a_change_never_reaches_the_disk() {
    let mut bench = Bench::mirror();
    bench.write();
    bench.spa.start_thread().unwrap();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    bench.spa.suspending().when_suspended(Arc::new(move |why| listener.lock().unwrap().push(why.clone())));
    let (spa, data, number) = (Arc::clone(&bench.spa), bench.data(), bench.file.1);
    let changing = std::thread::spawn(move || {
        let tx = spa.begin().unwrap();
        data.objset.handle(number).unwrap().write(&tx, 0, &[0xee; 100]).unwrap();
        panic!("in the middle of a change");
    });
    assert!(changing.join().is_err());
    assert_eq!(bench.spa.sync().unwrap_err().kind(), Kind::Suspended);
    while told.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    let suspension = bench.spa.suspending().state().unwrap();
    assert!(suspension.is_ours && suspension.cause.contains("broke off a change"), "{suspension:?}");
    assert_eq!((told.lock().unwrap().as_slice(), bench.told("fs.zfs.io_failure")), (&[suspension][..], 1));
    assert!(bench.spa.suspending().resume(&|_| Err(Health::REMOVED)).is_err() && bench.spa.sync().is_err());
    bench.spa.suspending().abandon();
    let Bench { spa, dir, file, model, .. } = bench;
    drop(spa);
    drop(reimported(dir.path(), file, &model));
}

/// A suspended pool with jobs is given up: nothing keeps it open when its last user is gone.
#[test]
fn jobs_do_not_keep_a_pool_open_that_was_given_up() {
    let mut bench = Bench::new(3, |children| VdevSpec::Raidz { parity: 1, children });
    bench.spa.start_thread().unwrap();
    let leaves: Vec<u64> = (0..3).map(|disk| bench.guid(disk)).collect();
    for kind in [SweepKind::Initialize, SweepKind::Trim] {
        let refused =
            bench.spa.free_space().sweep(kind, SweepCommand::Start, TrimOptions::default(), &leaves).unwrap();
        assert!(refused.is_empty(), "{refused:?}");
    }
    assert_eq!(change_then(&mut bench, 10, all_gone).unwrap_err().kind(), Kind::Suspended);
    assert_eq!(bench.spa.export().unwrap_err().kind(), Kind::Suspended);
    bench.spa.suspending().abandon();
    let pool = Arc::downgrade(&bench.spa);
    drop(bench);
    let end = Instant::now() + Duration::from_secs(20);
    while pool.upgrade().is_some() {
        assert!(Instant::now() < end, "something keeps the pool open");
        std::thread::sleep(Duration::from_millis(1));
    }
}
