//! A pool with `multihost=on` writes heartbeats, and imports watch for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::Kind;
use engine::dsl::props::PropValue;
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::spa::{ImportOptions, OpenOptions, Reach, Spa, import};
use engine::vdev::config::AllocBias;
use testkit::pools;
use zutil::import::{candidates, select, source_with};

const POOL: &str = "beats";

/// A pool that is in use, and a copy of its device.
fn in_use() -> (tempfile::TempDir, Arc<Spa>, tempfile::TempDir) {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let spa = pools::create_dir(dir.path(), POOL, 128 << 20).unwrap();
    let on = vec![("multihost".to_owned(), PropValue::Number(1))];
    spa.sync_task(move |spa, tx| spa.props().set(&on, tx)).unwrap();
    spa.multihost().heartbeat();
    pools::copy(dir.path(), other.path());
    (dir, spa, other)
}

/// Brings the copy's labels up to date: two at the start, two at the end.
fn carry(from: &Path, to: &Path) {
    const PAIR: u64 = 512 << 10;
    let from = std::fs::File::open(from.join("disk1")).unwrap();
    let to = std::fs::OpenOptions::new().write(true).open(to.join("disk1")).unwrap();
    for at in [0, from.metadata().unwrap().len() - PAIR] {
        let mut labels = vec![0; PAIR as usize];
        from.read_exact_at(&mut labels, at).unwrap();
        to.write_all_at(&labels, at).unwrap();
    }
}

fn import_elsewhere(dir: &Path) -> engine::Result<Arc<Spa>> {
    import_on(dir, 99, true)
}

fn import_on(dir: &Path, hostid: u64, force: bool) -> engine::Result<Arc<Spa>> {
    import_with(dir, hostid, ImportOptions { force, ..Default::default() })
}

fn import_with(dir: &Path, hostid: u64, how: ImportOptions) -> engine::Result<Arc<Spa>> {
    let options = blkdev::OpenOptions { mode: blkdev::OpenMode::ReadWrite, ..Default::default() };
    let source = source_with(&select(candidates(&[dir.to_path_buf()]), POOL)?, options);
    let how = ImportOptions { hostid, hostname: "other".into(), ..how };
    import(&engine::env::Env::system(64 << 20)?, source, &how)
}

#[test]
fn a_pool_in_use_is_not_imported() {
    let (dir, spa, other) = in_use();
    let newest = spa.uberblock();
    assert!(newest.mmp_delay > 0 && newest.mmp_interval_ms() == Some(1000));
    for force in [true, false] {
        let refused = std::thread::scope(|scope| {
            let (from, to, spa) = (dir.path(), other.path(), &spa);
            scope.spawn(move || {
                for _ in 0..6 {
                    std::thread::sleep(Duration::from_millis(700));
                    spa.multihost().heartbeat();
                    carry(from, to);
                }
            });
            import_on(other.path(), 99, force).unwrap_err()
        });
        assert!(refused.to_string().contains("is imported by host now"), "{refused}");
    }
    // A machine without a number can't be told from the owner.
    let refused = import_on(other.path(), 0, true).unwrap_err();
    assert!(refused.kind() == Kind::Busy && refused.to_string().contains("zgenhostid"), "{refused}");
}

/// The labels at the end of the device are of an earlier pool, whose txgs were higher.
#[test]
fn uberblocks_of_an_earlier_pool_are_no_heartbeats() {
    const PAIR: u64 = 512 << 10;
    let (_dir, _spa, other) = in_use();
    let earlier = tempfile::tempdir().unwrap();
    let old = pools::create_dir(earlier.path(), "old", 128 << 20).unwrap();
    for round in 0..20 {
        let comment = vec![("comment".to_owned(), PropValue::Text(format!("{round}")))];
        old.sync_task(move |spa, tx| spa.props().set(&comment, tx)).unwrap();
    }
    old.export().unwrap();
    drop(old);
    let from = std::fs::File::open(earlier.path().join("disk1")).unwrap();
    let to = std::fs::OpenOptions::new().write(true).open(other.path().join("disk1")).unwrap();
    let mut labels = vec![0; PAIR as usize];
    let at = from.metadata().unwrap().len() - PAIR;
    from.read_exact_at(&mut labels, at).unwrap();
    to.write_all_at(&labels, at).unwrap();
    import_elsewhere(other.path()).unwrap().export().unwrap();
}

#[test]
fn a_pool_that_was_left_is_imported_after_a_wait() {
    let (_dir, _spa, other) = in_use();
    let begun = std::time::Instant::now();
    let spa = import_elsewhere(other.path()).unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(20));
    spa.export().unwrap();
    drop(spa);
    // An exported pool has no owner.
    let begun = std::time::Instant::now();
    import_elsewhere(other.path()).unwrap().export().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15));
    if testkit::zdb::installed() {
        testkit::zdb::verify(other.path(), POOL).unwrap();
    }
}

/// A pool of two disks, a mirror if `mirrored`, that a machine left without an export; heartbeats came every 100 ms.
fn left(mirrored: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    for (limit, value) in [(Limit::MultihostInterval, 100), (Limit::MultihostFail, 2)] {
        env.memory.set(limit, value).unwrap();
    }
    let leaves = ["disk1", "disk2"].map(|name| pools::leaf(&dir.path().join(name), 128 << 20));
    let tops = match mirrored {
        true => vec![VdevSpec::Mirror(leaves.into())],
        false => leaves.into_iter().map(VdevSpec::Leaf).collect(),
    };
    let tops =
        tops.into_iter().map(|vdev| TopSpec { vdev, class: AllocBias::Normal, ashift: None }).collect();
    let spa = pools::create_pool(&env, POOL, tops, &|_, _| Ok(())).unwrap();
    let on = vec![("multihost".to_owned(), PropValue::Number(1))];
    spa.sync_task(move |spa, tx| spa.props().set(&on, tx)).unwrap();
    dir
}

/// Both wait for as long, and neither finds a heartbeat of the other.
#[test]
fn of_two_machines_that_import_at_once_one_gets_the_pool_at_most() {
    let mut winners = 0;
    for mirrored in [true, false, true, false] {
        let dir = left(mirrored);
        let at = dir.path();
        let both = std::thread::scope(|scope| {
            let threads = [98, 99].map(|host| scope.spawn(move || import_on(at, host, true)));
            threads.map(|thread| thread.join().unwrap())
        });
        let won = both.iter().filter(|result| result.is_ok()).count();
        assert!(won < 2, "both imported it");
        winners += won;
        for result in both {
            match result {
                Ok(spa) => spa.export().unwrap(),
                Err(why) => assert_eq!(why.kind(), Kind::Busy, "{why}"),
            }
        }
        if testkit::zdb::installed() {
            testkit::zdb::verify(dir.path(), POOL).unwrap();
        }
    }
    assert!(winners > 0, "each refused for the other's sake");
}

/// Another machine may use the pool with the half that this one does not see.
#[test]
fn half_a_mirror_is_claimed_on_request_only() {
    let dir = left(true);
    std::fs::remove_file(dir.path().join("disk2")).unwrap();
    let before = std::fs::read(dir.path().join("disk1")).unwrap();
    let refused = import_on(dir.path(), 99, true).unwrap_err();
    assert!(refused.kind() == Kind::NoDevice && refused.to_string().contains("-FX"), "{refused}");
    // The claim was taken back.
    let newest = |dir: &Path| {
        let source = zutil::import::source(&select(candidates(&[dir.to_path_buf()]), POOL).unwrap());
        source.uberblocks.iter().map(|found| found.uberblock).max_by(ondisk::Uberblock::preference).unwrap()
    };
    let after = newest(dir.path());
    std::fs::write(dir.path().join("disk1"), before).unwrap();
    assert_eq!(after.mmp_seq(), newest(dir.path()).mmp_seq());
    let open = OpenOptions { reach: Reach::Extreme, ..OpenOptions::default() };
    import_with(dir.path(), 99, ImportOptions { open, force: true, ..Default::default() })
        .unwrap()
        .export()
        .unwrap();
}

/// A clock that advances on request.
#[derive(Debug, Default)]
struct Stopped(AtomicU64);

impl stdx::clock::Clock for Stopped {
    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn wall(&self) -> (i64, u32) {
        (1_700_000_000 + self.0.load(Ordering::Relaxed) as i64, 0)
    }
}

/// A stopped process may continue when another machine has the pool already.
#[test]
fn a_pool_whose_owner_was_stopped_for_too_long_is_not_written() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(Stopped::default()));
    let env = engine::env::Env {
        clock: Arc::clone(&clock) as Arc<dyn stdx::clock::Clock>,
        ..engine::env::Env::system(64 << 20).unwrap()
    };
    let disk = dir.path().join("disk1");
    let spa = pools::create_in(&env, dir.path(), POOL, 128 << 20).unwrap();
    let on = vec![("multihost".to_owned(), PropValue::Number(1))];
    spa.sync_task(move |spa, tx| spa.props().set(&on, tx)).unwrap();
    let hold = |seconds: u64| clock.0.fetch_add(seconds, Ordering::Relaxed);
    spa.multihost().heartbeat();
    hold(9);
    spa.sync().unwrap();
    spa.multihost().heartbeat();
    hold(11);
    let before = std::fs::read(&disk).unwrap();
    let group = spa.sync();
    spa.multihost().heartbeat();
    assert!(before == std::fs::read(&disk).unwrap(), "something was written");
    assert_eq!(group.unwrap_err().kind(), engine::Kind::Suspended);
    let why = spa.suspending().resume(&|_| unreachable!("no device is lost")).unwrap_err().to_string();
    assert!(why.contains("another machine may have imported it"), "{why}");
}
