//! A mount to work on.
#![allow(clippy::unwrap_used, clippy::panic, dead_code, reason = "tests, each with a part of this")]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::env::Env;
use sim::files::{FilePool, POOL, disks};
use sim::world::Shape;
use zfuse::{LiveOptions, Mounted, Ready, mount_live};
use zpl::write::NewFs;

/// A mount of a mirror of two files, and an empty directory beside it.
pub struct Bench {
    pub dir: tempfile::TempDir,
    pub pool: FilePool,
    pub mounted: Mounted,
}

impl Bench {
    pub fn new() -> Option<Self> {
        Self::with(LiveOptions::default())
    }

    pub fn with(options: LiveOptions) -> Option<Self> {
        Self::made(options, |new| new)
    }

    /// `None`, with a notice, where nothing can be mounted.
    pub fn made(options: LiveOptions, change: impl FnOnce(NewFs) -> NewFs) -> Option<Self> {
        // The name of the test program says over which transport it mounts.
        Self::over(module_path!().contains("io_uring"), options, change)
    }

    /// As [`Bench::made`], over io_uring or `/dev/fuse`.
    pub fn over(
        over_io_uring: bool,
        options: LiveOptions,
        change: impl FnOnce(NewFs) -> NewFs,
    ) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            eprintln!("SKIPPED: no /dev/fuse here");
            return None;
        }
        zfuse::use_io_uring(over_io_uring);
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("pool")).unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        fs::create_dir(dir.path().join("twin")).unwrap();
        let devices = disks(&dir.path().join("pool"), 2, 256 << 20).unwrap();
        let pool = FilePool::create_with(&Env::system(64 << 20).unwrap(), Shape::Mirror, devices, change);
        let pool = pool.unwrap();
        let dataset = pool.spa.pool.dsl.dataset(POOL).unwrap();
        let at = dir.path().join("mnt");
        match mount_live(
            &pool.spa.view().unwrap(),
            dataset,
            Arc::clone(&pool.fs),
            (at.as_path(), Ready::AsIs),
            options,
            None,
        ) {
            Ok(mounted) if over_io_uring && !mounted.is_over_io_uring() => {
                eprintln!(
                    "SKIPPED: no FUSE over io_uring here (fuse.enable_uring is off, or Linux is older than 6.14)"
                );
                None
            }
            Ok(mounted) => {
                assert_eq!(mounted.is_over_io_uring(), over_io_uring);
                Some(Self { dir, pool, mounted })
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("SKIPPED: FUSE mounts are not allowed here: {e}");
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    pub fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn twin(&self) -> PathBuf {
        self.dir.path().join("twin")
    }

    /// Unmounts, exports, and asks zdb.
    pub fn end(self) {
        let Self { dir, pool, mounted } = self;
        mounted.unmount().unwrap();
        pool.export().unwrap();
        if testkit::zdb::installed() {
            testkit::zdb::verify(&dir.path().join("pool"), POOL).unwrap();
        }
    }
}

/// Runs `work` as a thread of user and group 65534 with these other groups; `None` for one that may not become so.
pub fn as_other_user<T: Send>(groups: &[u32], work: impl FnOnce() -> T + Send) -> Option<T> {
    use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    std::thread::scope(|scope| {
        let become_nobody = || -> rustix::io::Result<()> {
            let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
            let (user, group) = (Uid::from_raw(65534), Gid::from_raw(65534));
            set_thread_groups(&groups)?;
            set_thread_res_gid(group, group, group)?;
            set_thread_res_uid(user, user, user)
        };
        scope.spawn(move || become_nobody().is_ok().then(work)).join().unwrap()
    })
}

/// A mount for all users, with a file of each of these modes that all can write.
pub fn shared_with_other_users(options: LiveOptions) -> Option<Bench> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs another user");
        return None;
    }
    let bench = Bench::with(LiveOptions { allow_other: true, ..options })?;
    fs::set_permissions(bench.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    Some(bench)
}
