//! Scrubs and resilvers of encrypted datasets whose keys are not loaded.

use engine::dsl::write::{MosView, scan_state};
use engine::spa::errlog;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::spa::scrub::ScanCommand;
use engine::vdev::config::AllocBias;
use ondisk::pool::DslScan;

use super::*;

const SIZE: u64 = 128 << 20;
/// `open` with its key, `shut` without.
const NAMES: [&str; 2] = ["crypt/open", "crypt/shut"];

struct Bench {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
}

impl Bench {
    /// A pool that was imported, with the key of the first dataset loaded.
    fn new(make: impl Fn(Vec<engine::spa::layout::LeafSpec>) -> VdevSpec, disks: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let leaf = |number: usize| pools::leaf(&dir.path().join(format!("disk{number}")), SIZE);
        let vdev = make((1..=disks).map(leaf).collect());
        let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }];
        let spa = pools::create_fs_on(tops, POOL, Encryption::default()).unwrap();
        for (seed, name) in NAMES.into_iter().enumerate() {
            create(&spa, name, encrypted(Suite::ON, KeyFormat::Hex)).unwrap();
            fill(&writer(&spa, name), seed as u64);
        }
        spa.sync().unwrap();
        spa.export().unwrap();
        drop(spa);
        let spa = pools::import_dir(dir.path(), POOL).unwrap();
        spa.dsl().load_key(NAMES[0], HEX).unwrap();
        Self { dir, spa }
    }

    fn disk(&self, number: usize) -> blkdev::Device {
        pools::open(&self.dir.path().join(format!("disk{number}")))
    }

    fn guid(&self, number: usize) -> u64 {
        let end = format!("/disk{number}");
        let tree = self.spa.pool.tree();
        let is_it = |path: &String| path.ends_with(&end);
        tree.config.walk().into_iter().find(|v| v.path.as_ref().is_some_and(is_it)).unwrap().guid
    }

    /// Writes garbage over a disk between its labels.
    fn spoil(&self, number: usize) {
        let (device, bad) = (self.disk(number), vec![0x5a; 1 << 20]);
        (4..(SIZE >> 20) - 1).for_each(|mib| blkdev::write_at(&*device, mib << 20, &bad).unwrap());
        self.spa.pool.tree().leaves().for_each(|leaf| leaf.changed(0, u64::MAX));
    }

    fn scanned(&self) -> DslScan {
        for _ in 0..1000 {
            if !self.spa.scans().is_scanning() {
                return scan_state::load(&MosView { mos: &self.spa.mos }).unwrap().unwrap();
            }
            self.spa.sync().unwrap();
        }
        panic!("the scan does not end");
    }

    fn scrub(&self) -> DslScan {
        self.spa.scans().start(ScanCommand::Scrub).unwrap();
        self.scanned()
    }

    fn is_loaded(&self, name: &str) -> bool {
        let keys = &self.spa.pool.dsl.keys;
        keys.is_loaded(&keys.root_of(&self.spa.pool.dsl.dir(name).unwrap()).unwrap().unwrap())
    }

    /// All files are right, read with both keys.
    fn end(self) {
        self.spa.dsl().load_key(NAMES[1], HEX).unwrap();
        NAMES.into_iter().enumerate().for_each(|(seed, name)| check(&self.spa, name, seed as u64));
        self.spa.export().unwrap();
        let Self { dir, spa } = self;
        drop(spa);
        if zdb::installed() {
            zdb::verify(dir.path(), POOL).unwrap();
        }
    }
}

#[test]
fn a_scrub_repairs_encrypted_blocks_without_their_keys() {
    let raidz = |children| VdevSpec::Raidz { parity: 1, children };
    for bench in [Bench::new(VdevSpec::Mirror, 2), Bench::new(raidz, 3)] {
        assert!(bench.is_loaded(NAMES[0]) && !bench.is_loaded(NAMES[1]));
        bench.spoil(2);
        let repaired = bench.scrub();
        assert!(repaired.processed > 3 << 20 && repaired.errors == 0, "{repaired:?}");
        let again = bench.scrub();
        assert_eq!((again.processed, again.errors), (0, 0));
        assert!(!bench.is_loaded(NAMES[1]));
        // Only repaired blocks are left.
        bench.spoil(1);
        bench.end();
    }
}

#[test]
fn a_resilver_brings_encrypted_blocks_without_their_keys() {
    let bench = Bench::new(VdevSpec::Mirror, 2);
    bench.spa.dsl().load_key(NAMES[1], HEX).unwrap();
    bench.spa.disks().offline(bench.guid(2), false).unwrap();
    for (seed, name) in NAMES.into_iter().enumerate() {
        let (fs, file) = (writer(&bench.spa, name), number_of(&bench.spa, name));
        fs.data().write(file, 0, &body(7 + seed as u64, 3 << 20), true).unwrap();
        fs.data().write(file, 0, &body(seed as u64, 3 << 20), true).unwrap();
    }
    bench.spa.sync().unwrap();
    bench.spa.dsl().unload_key(NAMES[1]).unwrap();
    bench.spa.disks().online(bench.guid(2), Some(Ok(bench.disk(2))), false).unwrap();
    bench.spa.sync().unwrap();
    bench.spa.sync().unwrap();
    let brought = bench.scanned();
    assert!(brought.func == 2 && brought.errors == 0 && brought.processed > 6 << 20, "{brought:?}");
    assert_eq!(bench.scrub().processed, 0);
    bench.spoil(1);
    bench.end();
}

#[test]
fn lost_encrypted_blocks_are_reported_without_their_keys() {
    const FRONT: u64 = 4 << 20;
    let bench = Bench::new(|mut leaves| VdevSpec::Leaf(leaves.remove(0)), 1);
    bench.spa.dsl().load_key(NAMES[1], HEX).unwrap();
    let (device, mut files) = (bench.disk(1), Vec::new());
    for name in NAMES {
        let dataset = bench.spa.pool.dsl.dataset(name).unwrap();
        let file = number_of(&bench.spa, name);
        let bp = errlog::block_at(&dataset.objset().unwrap(), file, 0, 5).unwrap().unwrap();
        assert!(bp.is_encrypted() && bp.ndvas() == 1);
        let at = bp.dvas().next().unwrap().offset + FRONT;
        let good = blkdev::read_at(&*device, at, 4096).unwrap();
        blkdev::write_at(&*device, at, &[0x5a; 4096]).unwrap();
        files.push((dataset.number, file, at, good));
    }
    bench.spa.dsl().unload_key(NAMES[1]).unwrap();
    bench.spa.pool.tree().leaves().for_each(|leaf| leaf.changed(0, u64::MAX));
    let lost = || {
        bench.spa.sync().unwrap();
        let logged = errlog::errors(&bench.spa.view().unwrap(), &mut Vec::new());
        logged.iter().map(|error| (error.objset, error.object, error.blkid)).collect::<Vec<_>>()
    };
    assert_eq!(bench.scrub().errors, 2);
    assert_eq!(lost(), files.iter().map(|(dataset, file, ..)| (*dataset, *file, 5)).collect::<Vec<_>>());
    // They are intact again: a scrub of the error log, and one of the pool, find that without the key.
    for (number, (.., at, good)) in files.iter().enumerate() {
        blkdev::write_at(&*device, *at, good).unwrap();
        bench.spa.pool.tree().leaves().for_each(|leaf| leaf.changed(0, u64::MAX));
        if number == 0 {
            bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
            while bench.spa.error_log().is_scrubbing() {
                bench.spa.sync().unwrap();
            }
        } else {
            assert_eq!(bench.scrub().errors, 0);
        }
        assert_eq!(lost().len(), 1 - number);
    }
    bench.end();
}

fn number_of(spa: &Spa, name: &str) -> u64 {
    let fs = zpl::Filesystem::open(&spa.pool.dsl.dataset(name).unwrap()).unwrap();
    fs.resolve(b"large", true).unwrap().number()
}
