//! Intent logs that can't be replayed: the mount is refused with the reason, the log stays, other file
//! systems are mounted, and the log can be given up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use engine::dsl::write::Encryption;
use engine::spa::{OpenOptions, Spa};
use engine::zil::Zil;
use engine::zil::replay::{Record, Replayer, discard, replay, waiting};
use engine::{Error, Kind, Result};
use testkit::{pools, zdb};
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, mount};

fn forged() -> (tempfile::TempDir, u64) {
    let dir = tempfile::tempdir().unwrap();
    let file = testkit::kept_log::forge(dir.path(), "wpool");
    (dir, file)
}

fn start_of(spa: &Arc<Spa>, file: u64) -> Vec<u8> {
    let fs = mount(spa, "wpool", Overrides::default()).unwrap();
    let mut bytes = vec![0; 3000];
    fs.data().read(file, 0, &mut bytes).unwrap();
    fs.unmount().unwrap();
    [0, 1000, 2000].map(|at| bytes[at]).to_vec()
}

#[test]
fn a_log_with_a_bad_record_is_kept_until_it_is_given_up() {
    let (dir, file) = forged();
    for round in 0..2 {
        // The second time the records before it are done already.
        let spa = pools::import_dir(dir.path(), "wpool").unwrap();
        let e = mount(&spa, "wpool", Overrides::default()).unwrap_err();
        let said = e.causes().map(ToString::to_string).collect::<Vec<_>>().join(" | ");
        assert!(said.contains("2 records of its intent log wait; 'zfs discard-log' gives them up"), "{said}");
        assert!(said.contains("REMOVE") && e.kind() == Kind::NotFound, "{said}");
        // Others are not concerned.
        let other = mount(&spa, "wpool/other", Overrides::default()).unwrap();
        other.dirs().create(other.root, b"new", &NewNode::new(FileKind::Regular, 0o600, 0, 0)).unwrap();
        other.dirs().unlink(other.root, b"new").unwrap();
        other.unmount().unwrap();
        drop(other);
        if round == 1 {
            let live = spa.datasets.open(&*spa, spa.pool.dsl.dataset("wpool").unwrap().number).unwrap();
            let waits = waiting(&live.objset.view());
            let told: Vec<_> = waits.iter().map(|w| (w.kind.as_str(), w.object, w.name.clone())).collect();
            assert_eq!(told, [("REMOVE", None, Some(b"never was".to_vec())), ("WRITE", Some(file), None)]);
            assert_eq!(discard(&live.objset, spa.logs().host()).unwrap(), waits);
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
        let zil = Zil::open(&live.objset, spa.logs().host()).unwrap();
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
    assert_eq!(discard(&live.objset, spa.logs().host()).unwrap().len(), 2);
    assert_eq!(start_of(&spa, file), [2, 1, 1]);
    spa.export().unwrap();
    drop((spa, live));
    if zdb::installed() {
        zdb::verify(dir.path(), "wpool").unwrap();
    }
}

/// A panic within a transaction suspends the pool; the suspension's message explains the import without the
/// replay.
#[test]
fn a_replay_that_suspends_the_pool_says_the_way_out() {
    let (dir, _) = forged();
    let spa = pools::import_dir(dir.path(), "wpool").unwrap();
    let live = spa.datasets.open(&*spa, spa.pool.dsl.dataset("wpool").unwrap().number).unwrap();
    let zil = Zil::open(&live.objset, spa.logs().host()).unwrap();
    struct Torn<'a>(&'a Spa);
    impl Replayer for Torn<'_> {
        fn replay(&mut self, _: &Zil, _: &Record<'_>) -> Result<()> {
            let _tx = self.0.begin()?;
            panic!("a fault of ours");
        }
    }
    let other = spa.datasets.open(&*spa, spa.pool.dsl.dataset("wpool/other").unwrap().number).unwrap();
    drop(spa.logs().note_replay("wpool/other", &other.objset).unwrap());
    let note = spa.logs().note_replay("wpool", &live.objset).unwrap();
    assert!(spa.suspending().state().is_none());
    let done = replay(&zil, &mut Torn(&spa)).unwrap();
    assert!(done.error.is_some());
    drop(note);
    let said = spa.suspending().state().unwrap().cause;
    let ways = ["the intent log of wpool was being replayed", "'zpool import -N'", "'zfs discard-log wpool'"];
    assert!(ways.iter().all(|way| said.contains(way)) && !said.contains("other"), "{said}");
    let logs = spa.logs().replaying();
    assert_eq!(logs.len(), 1);
    zil.abandon();
    drop((zil, live, other, spa));
    // The state on disk is unchanged. The daemon passes the log to the next import: only its file system is
    // not mounted.
    let spa = pools::import_dir(dir.path(), "wpool").unwrap();
    spa.logs().refuse(logs);
    for _ in 0..2 {
        let why = mount(&spa, "wpool", Overrides::default()).unwrap_err().to_string();
        assert!(why.contains("'zfs discard-log wpool'"), "{why}");
    }
    mount(&spa, "wpool/other", Overrides::default()).unwrap().unmount().unwrap();
    let live = spa.datasets.open(&*spa, spa.pool.dsl.dataset("wpool").unwrap().number).unwrap();
    assert_eq!(discard(&live.objset, spa.logs().host()).unwrap().len(), 3);
    drop(live);
    mount(&spa, "wpool", Overrides::default()).unwrap().unmount().unwrap();
    spa.export().unwrap();
}

#[test]
fn a_pool_that_goes_back_drops_the_logs_of_what_it_leaves() {
    let (dir, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let spa = pools::create_fs_dir(dir.path(), "wpool", 128 << 20, Encryption::default()).unwrap();
    let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o600, 0, 0)).unwrap();
    let commits = |fs: &FsWriter, byte: u8| commit(fs, file, byte);
    let mut back = 0;
    for byte in 1..6 {
        commits(&fs, byte);
        spa.sync().unwrap();
        back = if byte == 2 { spa.txgs.synced() } else { back };
    }
    commits(&fs, 6);
    pools::copy(dir.path(), crashed.path());
    let open = OpenOptions { txg: Some(back), ..OpenOptions::default() };
    let spa = pools::import_at(crashed.path(), "wpool", open).unwrap();
    let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
    let mut bytes = vec![0; 20 * 4096];
    fs.data().read(file, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 2), "{}", bytes[0]);
    commits(&fs, 7);
    fs.unmount().unwrap();
    drop(fs);
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(crashed.path(), "wpool").unwrap();
    }
}

/// Overwrites the file's 80 KiB, and commits that often.
fn commit(fs: &FsWriter, file: u64, byte: u8) {
    for at in 0..20 {
        fs.data().write(file, at * 4096, &[byte; 4096], true).unwrap();
        fs.fsync(file).unwrap();
    }
}

/// The pool as a power cut leaves it, imported at a state.
fn after_cut(dir: &tempfile::TempDir, open: OpenOptions) -> (tempfile::TempDir, Arc<Spa>) {
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), crashed.path());
    let env = engine::env::Env::system(64 << 20).unwrap();
    let spa = pools::import_forced(&env, crashed.path(), "wpool", open, true).unwrap();
    (crashed, spa)
}

/// The checkpoint has logs with records: not claimed, or claimed and not replayed. They go on after it, are claimed and
/// replayed by another import, and the pool returns to the checkpoint after a power cut.
#[test]
fn a_pool_that_returns_to_its_checkpoint_has_the_logs_of_then() {
    for (claimed, is_replayed) in [(false, false), (false, true), (true, false), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let spa = pools::create_fs_dir(dir.path(), "wpool", 128 << 20, Encryption::default()).unwrap();
        let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
        let file = fs.dirs().create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o600, 0, 0)).unwrap();
        commit(&fs, file, 1);
        spa.sync().unwrap();
        commit(&fs, file, 2);
        let (dir, spa, fs) = if claimed {
            let (dir, spa) = after_cut(&dir, OpenOptions::default());
            spa.checkpoint().take().unwrap();
            let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
            (dir, spa, fs)
        } else {
            spa.checkpoint().take().unwrap();
            (dir, spa, fs)
        };
        for byte in 3..8 {
            commit(&fs, file, byte);
            spa.sync().unwrap();
        }
        commit(&fs, file, 8);
        let (dir, _spa, _fs) = if is_replayed {
            let (dir, spa) = after_cut(&dir, OpenOptions::default());
            let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
            commit(&fs, file, 9);
            spa.sync().unwrap();
            commit(&fs, file, 10);
            (dir, spa, fs)
        } else {
            (dir, spa, fs)
        };
        let (dir, spa) = after_cut(&dir, OpenOptions { checkpoint: true, ..OpenOptions::default() });
        let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
        let mut bytes = vec![0; 20 * 4096];
        fs.data().read(file, 0, &mut bytes).unwrap();
        // The txg of the checkpoint wrote the second round, by whichever way.
        assert!(bytes.iter().all(|byte| *byte == 2), "{claimed} {is_replayed}: {}", bytes[0]);
        commit(&fs, file, 11);
        fs.unmount().unwrap();
        drop(fs);
        spa.export().unwrap();
        drop(spa);
        for judge in [zdb::Judge::USUAL, zdb::Judge::NEWEST] {
            if judge.installed() {
                judge.verify(dir.path(), "wpool").unwrap();
            }
        }
    }
}
