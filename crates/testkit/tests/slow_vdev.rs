//! A vdev that is much slower than the other gets fewer blocks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use blkdev::{BlockDevice, Device, Geometry, Io, IoKind};
use engine::dmu::NewObject;
use engine::env::Env;
use engine::spa::layout::{PoolSpec, TopSpec, VdevSpec};
use engine::vdev::config::AllocBias;
use ondisk::{ObjectType, ObjsetType};
use testkit::pools;

/// Does one write after the other, each late.
#[derive(Debug)]
struct Slow {
    inner: Device,
    work: Mutex<mpsc::Sender<Io>>,
}

impl Slow {
    fn over(inner: Device, late: Duration) -> Arc<Self> {
        let (work, jobs) = mpsc::channel::<Io>();
        let device = Arc::clone(&inner);
        std::thread::spawn(move || {
            for io in jobs {
                std::thread::sleep(late);
                device.submit(io);
            }
        });
        Arc::new(Self { inner, work: Mutex::new(work) })
    }
}

impl BlockDevice for Slow {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, io: Io) {
        match io.kind {
            IoKind::Write => self.work.lock().unwrap().send(io).unwrap(),
            _ => self.inner.submit(io),
        }
    }
}

/// When the second vdev joins the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joins {
    AtCreation,
    SlowLater,
    FastLater,
}

#[test]
fn a_slow_vdev_gets_less() {
    write_beside_slow(Joins::AtCreation);
}

#[test]
fn a_slow_vdev_that_was_added_gets_less() {
    write_beside_slow(Joins::SlowLater);
}

#[test]
fn a_slow_vdev_gets_less_than_one_that_was_added() {
    write_beside_slow(Joins::FastLater);
}

fn write_beside_slow(joins: Joins) {
    let dir = tempfile::tempdir().unwrap();
    let leaf = |name: &str| pools::leaf(&dir.path().join(name), 256 << 20);
    let (fast, mut slow) = (leaf("fast"), leaf("slow"));
    slow.device = Slow::over(slow.device, Duration::from_millis(60));
    let top = |leaf| TopSpec { vdev: VdevSpec::Leaf(leaf), class: AllocBias::Normal, ashift: None };
    let env = Env::system(64 << 20).unwrap();
    let (first, later, slow_id) = match joins {
        Joins::AtCreation => (vec![top(fast), top(slow)], None, 1),
        Joins::SlowLater => (vec![top(fast)], Some(top(slow)), 1),
        Joins::FastLater => (vec![top(slow)], Some(top(fast)), 0),
    };
    let spa = pools::create_pool(&env, "uneven", first, &|_, _| Ok(())).unwrap();
    if let Some(top) = later {
        // The requests of a vdev that was there before count from then on, too.
        spa.vdevs().add(PoolSpec { tops: vec![top], ..PoolSpec::default() }, false).unwrap();
    }
    let number = spa.dsl_task(|t| t.create("uneven/data", ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
    let data = spa.datasets.open(&*spa, number).unwrap();
    let tx = spa.begin().unwrap();
    let object =
        data.objset.create_object(&tx, NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, 128 << 10)).unwrap();
    // No two words are equal, so that nothing gets smaller.
    let bytes: Vec<u8> =
        (0..8_u64 << 20).flat_map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()).collect();
    object.write(&tx, 0, &bytes).unwrap();
    drop(tx);
    spa.sync().unwrap();
    let used = |id| spa.space.vdev_stats(id).unwrap().allocated;
    let (fast, slow) = (used(1 - slow_id), used(slow_id));
    assert!(fast > 2 * slow, "{joins:?}: {fast} on the fast one, {slow} on the slow one");
    assert!(slow > 2 << 20, "{joins:?}: the slow one is not left out: {slow}");
    spa.export().unwrap();
    drop((data, spa));
    if testkit::zdb::installed() {
        testkit::zdb::verify(dir.path(), "uneven").unwrap();
    }
}
