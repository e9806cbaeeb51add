//! A mounted file system gets the content of a snapshot: the mount stays, and open files continue with the
//! snapshot's content. Then real zdb checks the pool.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::env::Env;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat, statat};
use rustix::io::Errno;
use sim::files::{FilePool, POOL, disks};
use sim::world::Shape;
use zfuse::{LiveOptions, Mounted, Ready, mount_live};
use zpl::Filesystem;
use zpl::differences::differences;
use zpl::write::{FsWriter, mount_after};

struct Bench {
    dir: tempfile::TempDir,
    pool: FilePool,
    mounted: Mounted,
    files: RefCell<Arc<FsWriter>>,
}

impl Bench {
    /// `None`, with a notice, where nothing can be mounted.
    fn new() -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            eprintln!("SKIPPED: no /dev/fuse here");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("pool")).unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        let devices = disks(&dir.path().join("pool"), 2, 256 << 20).unwrap();
        let pool = FilePool::create(&Env::system(64 << 20).unwrap(), Shape::Mirror, devices).unwrap();
        let dataset = pool.spa.pool.dsl.dataset(POOL).unwrap();
        let (at, options) = (dir.path().join("mnt"), LiveOptions::default());
        let mounted = mount_live(
            &pool.spa.view().unwrap(),
            dataset,
            Arc::clone(&pool.fs),
            (at.as_path(), Ready::AsIs),
            options,
            None,
        );
        match mounted {
            Ok(mounted) => Some(Self { files: RefCell::new(Arc::clone(&pool.fs)), dir, pool, mounted }),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("SKIPPED: FUSE mounts are not allowed here: {e}");
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn snapshot(&self) {
        self.pool.spa.dsl_task(|tasks| tasks.snapshot(&["tank@one"], &[])).unwrap();
    }

    fn rollback(&self, work: impl FnOnce() -> engine::Result<()>) -> engine::Result<()> {
        let spa = &self.pool.spa;
        let state = |name: &str| Filesystem::open_committed(&spa.pool.dsl.dataset(name)?);
        self.mounted.exchange(
            || {
                let found = differences(&state(POOL)?, &state("tank@one")?)?;
                work()?;
                Ok(found)
            },
            |before| {
                let files = mount_after(spa, POOL, before)?;
                *self.files.borrow_mut() = Arc::clone(&files);
                Ok(files)
            },
        )
    }

    fn end(self) {
        let Self { dir, pool, mounted, files } = self;
        // A child that another test is just starting has our files until it runs its program.
        let begin = Instant::now();
        while let Err(e) = mounted.try_unmount(false) {
            assert!(e.kind() == io::ErrorKind::ResourceBusy && begin.elapsed().as_secs() < 60, "{e}");
            std::thread::sleep(Duration::from_millis(10));
        }
        mounted.unmount().unwrap();
        files.borrow().unmount().unwrap();
        drop(files);
        pool.export().unwrap();
        if testkit::zdb::installed() {
            testkit::zdb::verify(&dir.path().join("pool"), POOL).unwrap();
        }
    }
}

fn open(path: PathBuf) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn text(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn open_files_have_the_content_of_the_snapshot_after_a_rollback() {
    let Some(bench) = Bench::new() else { return };
    let at = bench.mnt();
    fs::create_dir_all(at.join("dir/below")).unwrap();
    for (name, bytes) in [("kept", "first"), ("removed", "back"), ("dir/moved", "moved"), ("same", "same")] {
        fs::write(at.join(name), bytes).unwrap();
    }
    bench.snapshot();
    let device = fs::metadata(&at).unwrap().dev();
    let folder = openat(rustix::fs::CWD, at.join("dir"), OFlags::DIRECTORY, Mode::empty()).unwrap();
    let (kept, same) = (open(at.join("kept")), open(at.join("same")));
    let unlinked = open(at.join("removed"));
    flock(&kept, FlockOperation::LockExclusive).unwrap();
    kept.write_all_at(&[b'x'; 300_000], 0).unwrap();
    fs::remove_file(at.join("removed")).unwrap();
    fs::rename(at.join("dir/moved"), at.join("elsewhere")).unwrap();
    fs::remove_dir(at.join("dir/below")).unwrap();
    fs::create_dir(at.join("new")).unwrap();
    fs::write(at.join("new/file"), "new").unwrap();
    let new = open(at.join("new/file"));
    // The kernel knows now that these are not there, and how long that one is.
    for name in ["removed", "dir/moved", "dir/below"] {
        assert!(!at.join(name).exists());
    }
    assert_eq!(kept.metadata().unwrap().len(), 300_000);

    bench.rollback(|| bench.pool.spa.dsl_task(|tasks| tasks.rollback(POOL, Some("tank@one")))).unwrap();

    assert_eq!(fs::metadata(&at).unwrap().dev(), device);
    let mut bytes = [0; 100];
    for (file, want) in [(&kept, "first"), (&same, "same"), (&unlinked, "back")] {
        let len = file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(std::str::from_utf8(&bytes[..len]).unwrap(), want);
        assert_eq!(file.metadata().unwrap().len(), want.len() as u64);
    }
    for (name, want) in [("kept", "first"), ("removed", "back"), ("dir/moved", "moved"), ("same", "same")] {
        assert_eq!(text(at.join(name)), want);
    }
    assert!(at.join("dir/below").is_dir());
    assert!(!at.join("elsewhere").exists() && !at.join("new").exists());
    let mut names: Vec<_> = fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["dir", "kept", "removed", "same"]);
    // A process's working directory stays valid.
    assert_eq!(statat(&folder, "moved", rustix::fs::AtFlags::empty()).unwrap().st_size, 5);
    // A removed file can't be used, and stays so when another file gets its number.
    let number = new.metadata().err().map(|e| e.raw_os_error());
    assert_eq!(number, Some(Some(Errno::STALE.raw_os_error())));
    for round in 0..40 {
        fs::write(at.join(format!("other{round}")), "other").unwrap();
    }
    assert!(new.read_at(&mut bytes, 0).is_err() && new.write_all_at(b"x", 0).is_err());
    drop(new);
    for round in 0..40 {
        assert_eq!(text(at.join(format!("other{round}"))), "other");
    }
    // The lock is held still.
    let busy = flock(open(at.join("kept")), FlockOperation::NonBlockingLockExclusive);
    assert_eq!(busy.unwrap_err(), Errno::WOULDBLOCK);
    // New writes are there.
    kept.write_all_at(b"FI", 0).unwrap();
    kept.sync_all().unwrap();
    assert_eq!(text(at.join("kept")), "FIrst");
    fs::remove_file(at.join("kept")).unwrap();
    assert_eq!(kept.read_at(&mut bytes, 0).unwrap(), 5);
    drop((kept, same, unlinked, folder));
    bench.end();
}

#[test]
fn a_rollback_that_fails_changes_nothing() {
    let Some(bench) = Bench::new() else { return };
    let at = bench.mnt();
    fs::write(at.join("file"), "first").unwrap();
    bench.snapshot();
    let file = open(at.join("file"));
    file.write_all_at(b"second", 0).unwrap();
    let busy = || engine::Error::new(engine::Kind::Busy, "not now");
    assert_eq!(bench.rollback(|| Err(busy())).unwrap_err().kind(), engine::Kind::Busy);
    assert_eq!(text(at.join("file")), "second");
    file.write_all_at(b"third!", 0).unwrap();
    assert_eq!(text(at.join("file")), "third!");
    drop(file);
    bench.end();
}
