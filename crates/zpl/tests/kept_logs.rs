//! Intent logs that can't be replayed: the mount is refused and says why, the log stays, other file systems are mounted,
//! and the log can be given up.

mod common;

use std::sync::Arc;

use common::Bench;
use engine::spa::Spa;
use engine::zil::replay::{Record, Replayer, discard, replay, waiting};
use engine::zil::{Itx, Zil};
use engine::{Error, Kind, Result};
use ondisk::zil::{LogRecord, LrRemove, Remove, TxType};
use testkit::{pools, zdb};
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, mount};

/// A file system with a file and, in its log, a write to it, a removal that nothing allows, and another write.
fn forged() -> (tempfile::TempDir, u64) {
    let bench = Bench::new(128 << 20, |_| {});
    let spa = &bench.spa;
    let fs = mount(spa, "wpool", Overrides::default()).unwrap();
    let file = fs.create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o600, 0, 0)).unwrap();
    let root = fs.root;
    fs.write(file, 0, &[1; 3000], true).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let other = spa.pool.env.guid();
    spa.dsl_task(move |tasks| {
        tasks.create("wpool/other", ondisk::ObjsetType::Zfs, 0, &mut |live, tx| {
            let now = zpl::Time { sec: 1_700_000_000, nsec: 0 };
            zpl::write::create_fs(&live.objset, tx, &zpl::write::NewFs::new(now, other))
        })
    })
    .unwrap();
    let zil = Zil::open(&bench.objset, spa.log_host()).unwrap();
    // The chain begins with a group on disk.
    for round in 0..2 {
        let tx = spa.begin().unwrap();
        zil.assign(Itx::write(file, 0, &[2; 1000]), &tx);
        let bad = Remove { lr: LrRemove { doid: root }, name: b"never was" };
        if round == 1 {
            zil.assign(Itx::new(0, TxType(TxType::REMOVE), &LogRecord::Remove(bad)), &tx);
            zil.assign(Itx::write(file, 1000, &[3; 1000]), &tx);
        }
        drop(tx);
        zil.commit(0).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    pools::copy(bench.dir.path(), dir.path());
    zil.close().unwrap();
    (dir, file)
}

fn start_of(spa: &Arc<Spa>, file: u64) -> Vec<u8> {
    let fs = mount(spa, "wpool", Overrides::default()).unwrap();
    let mut bytes = vec![0; 3000];
    fs.read(file, 0, &mut bytes).unwrap();
    fs.unmount().unwrap();
    [0, 1000, 2000].map(|at| bytes[at]).to_vec()
}

#[test]
fn a_log_with_a_bad_record_is_kept_until_it_is_given_up() {
    let (dir, file) = forged();
    for round in 0..2 {
        // The second time what is before the record is done already.
        let spa = pools::import_dir(dir.path(), "wpool").unwrap();
        let e = mount(&spa, "wpool", Overrides::default()).unwrap_err();
        let said = e.causes().map(ToString::to_string).collect::<Vec<_>>().join(" | ");
        assert!(said.contains("2 records of its intent log wait; 'zfs discard-log' gives them up"), "{said}");
        assert!(said.contains("REMOVE") && e.kind() == Kind::NotFound, "{said}");
        // Others are not concerned.
        let other = mount(&spa, "wpool/other", Overrides::default()).unwrap();
        other.create(other.root, b"new", &NewNode::new(FileKind::Regular, 0o600, 0, 0)).unwrap();
        other.unlink(other.root, b"new").unwrap();
        other.unmount().unwrap();
        drop(other);
        if round == 1 {
            let live = spa.datasets.open(&*spa, spa.pool.dsl.dataset("wpool").unwrap().number).unwrap();
            let waits = waiting(&live.objset.view());
            let told: Vec<_> = waits.iter().map(|w| (w.kind.as_str(), w.object, w.name.clone())).collect();
            assert_eq!(told, [("REMOVE", None, Some(b"never was".to_vec())), ("WRITE", Some(file), None)]);
            assert_eq!(discard(&live.objset, spa.log_host()).unwrap(), waits);
            assert_eq!(start_of(&spa, file), [2, 1, 1], "what came before the record was done");
        }
        spa.export().unwrap();
        drop(spa);
        if zdb::installed() {
            zdb::verify(dir.path(), "wpool").unwrap();
        }
    }
}

/// Fails in one way at the first record, and does nothing at the others.
struct Faulty(Option<fn() -> Result<()>>);

impl Replayer for Faulty {
    fn replay(&mut self, log: &Zil, _: &Record<'_>) -> Result<()> {
        match self.0 {
            Some(fails) => fails(),
            None => {
                let _ = log;
                Ok(())
            }
        }
    }
}

#[test]
fn a_replay_that_panics_or_finds_no_room_leaves_the_log_as_it_was() {
    let (dir, file) = forged();
    let spa = pools::import_dir(dir.path(), "wpool").unwrap();
    let live = spa.datasets.open(&*spa, spa.pool.dsl.dataset("wpool").unwrap().number).unwrap();
    let full: fn() -> Result<()> = || Err(Error::new(Kind::NoSpace, "the pool is full"));
    let ends: [(fn() -> Result<()>, _); 2] =
        [(|| panic!("a fault of ours"), Kind::Invalid), (full, Kind::NoSpace)];
    for (end, kind) in ends {
        let zil = Zil::open(&live.objset, spa.log_host()).unwrap();
        let done = replay(&zil, &mut Faulty(Some(end))).unwrap();
        assert_eq!((done.done, done.lost), (0, 3));
        let e = done.complete().unwrap_err();
        assert_eq!(e.kind(), kind);
        assert!(e.what().contains("3 records of its intent log wait"), "{e}");
        assert!(zil.needs_replay());
        zil.close().unwrap();
    }
    // All of it is there for the next, up to the bad record.
    assert_eq!(mount(&spa, "wpool", Overrides::default()).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(discard(&live.objset, spa.log_host()).unwrap().len(), 2);
    assert_eq!(start_of(&spa, file), [2, 1, 1]);
    spa.export().unwrap();
    drop((spa, live));
    if zdb::installed() {
        zdb::verify(dir.path(), "wpool").unwrap();
    }
}
