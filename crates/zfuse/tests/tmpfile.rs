//! Files without a name, the time of birth, and set-id bits on a mount.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod bench;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use bench::{Bench, as_other_user, shared_with_other_users};
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, StatxFlags, fallocate, linkat, statx};
use zfuse::LiveOptions;

fn unnamed(dir: &Path, more: OFlags) -> File {
    let flags = (OFlags::TMPFILE | more).bits();
    let flags = i32::try_from(flags & !(OFlags::WRONLY | OFlags::RDWR).bits()).unwrap();
    fs::OpenOptions::new().read(true).write(true).mode(0o640).custom_flags(flags).open(dir).unwrap()
}

fn name(file: &File, path: &Path) -> rustix::io::Result<()> {
    let fd = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, fd, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

#[test]
fn a_file_without_a_name_gets_one_or_goes() {
    let Some(bench) = Bench::new() else { return };
    let dir = bench.mnt().join("d");
    fs::create_dir(&dir).unwrap();
    let mut file = unnamed(&dir, OFlags::empty());
    file.write_all(&[7; 300_000]).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o7777, meta.len()), (0, 0o640, 300_000));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    // A second descriptor of it, by its own number.
    let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    name(&file, &dir.join("named")).unwrap();
    name(&file, &dir.join("twice")).unwrap();
    drop((file, again));
    assert_eq!(fs::read(dir.join("named")).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::metadata(dir.join("twice")).unwrap().nlink(), 2);
    // One that must not get a name, and one that is closed without: both are gone.
    let closed = unnamed(&dir, OFlags::empty());
    closed.write_all_at(&[1; 5000], 0).unwrap();
    let exclusive = unnamed(&dir, OFlags::EXCL);
    assert_eq!(name(&exclusive, &dir.join("never")), Err(rustix::io::Errno::NOENT));
    let objects = [&closed, &exclusive].map(|file| file.metadata().unwrap().ino());
    drop((closed, exclusive));
    // The kernel tells of the last close later.
    let gone = |object: &u64| bench.pool.fs.attrs().get(*object).is_err();
    for _ in 0..200 {
        if objects.iter().all(gone) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(objects.iter().all(gone));
    bench.end();
}

#[test]
fn the_time_of_birth_is_told() {
    let Some(bench) = Bench::new() else { return };
    let path = bench.mnt().join("born");
    fs::write(&path, b"one").unwrap();
    let born = || {
        let found = statx(CWD, &path, AtFlags::empty(), StatxFlags::ALL).unwrap();
        assert!(found.stx_mask & StatxFlags::BTIME.bits() != 0);
        (found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
    };
    let first = born();
    let object = fs::metadata(&path).unwrap().ino();
    let stored = bench.pool.fs.attrs().get(object).unwrap().crtime;
    assert_eq!(first, (stored.sec, stored.nsec));
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(&path, b"other").unwrap();
    bench.pool.spa.sync().unwrap();
    assert_eq!(born(), first);
    assert!(
        fs::metadata(&path).unwrap().created().unwrap() < fs::metadata(&path).unwrap().modified().unwrap()
    );
    let found = statx(CWD, "/dev/null", AtFlags::empty(), StatxFlags::BASIC_STATS).unwrap();
    let node = bench.mnt().join("null");
    let made = rustix::fs::mknodat(
        CWD,
        &node,
        rustix::fs::FileType::CharacterDevice,
        0o600.into(),
        rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor),
    );
    if made.is_ok() {
        let copy = statx(CWD, &node, AtFlags::empty(), StatxFlags::ALL).unwrap();
        assert_eq!((copy.stx_rdev_major, copy.stx_rdev_minor), (found.stx_rdev_major, found.stx_rdev_minor));
        assert_eq!(copy.stx_mode & 0o170_000, 0o020_000);
    }
    bench.end();
}

#[test]
fn an_extended_attribute_has_a_name_behind_its_kind() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    let Some(bench) = Bench::new() else { return };
    let path = bench.mnt().join("file");
    fs::write(&path, b"").unwrap();
    for kind in ["user.", "trusted.", "security."] {
        let set = setxattr(&path, kind, b"x", XattrFlags::empty());
        assert_eq!(set, Err(rustix::io::Errno::INVAL), "{kind}");
        assert_eq!(getxattr(&path, kind, &mut [0; 8]), Err(rustix::io::Errno::INVAL), "{kind}");
    }
    bench.end();
}

/// The kernel refers to them without having opened them.
#[test]
fn removed_files_have_attributes_while_something_refers_to_them() {
    let Some(bench) = Bench::new() else { return };
    let [file, dir, over] = ["file", "dir", "over"].map(|name| bench.mnt().join(name));
    let links = |of: &std::os::fd::OwnedFd| rustix::fs::fstat(of).map(|stat| stat.st_nlink);
    for round in 0..3 {
        fs::write(&file, b"text").unwrap();
        fs::write(&over, b"over").unwrap();
        fs::create_dir(&dir).unwrap();
        let held = [&file, &dir, &over].map(|path| {
            rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty()).unwrap()
        });
        let open = fs::File::open(&file).unwrap();
        fs::rename(&file, &over).unwrap();
        fs::remove_file(&over).unwrap();
        fs::remove_dir(&dir).unwrap();
        drop(open);
        // Others get the numbers.
        (0..round).for_each(|n| fs::write(bench.mnt().join(format!("{n}")), b"").unwrap());
        bench.pool.spa.sync().unwrap();
        if round == 0 {
            assert_eq!(held.each_ref().map(links), [Ok(0); 3]);
            let list = rustix::fs::openat(
                &held[1],
                ".",
                OFlags::RDONLY | OFlags::DIRECTORY,
                rustix::fs::Mode::empty(),
            );
            assert_eq!(list.map(drop), Ok(()));
        }
        drop(held);
    }
    bench.end();
}

#[test]
fn a_whiteout_is_left_without_replacing_anything() {
    use rustix::fs::{RenameFlags, renameat_with};
    let Some(bench) = Bench::new() else { return };
    let [from, to, other] = ["from", "to", "other"].map(|name| bench.mnt().join(name));
    [&from, &other].into_iter().for_each(|path| fs::write(path, b"text").unwrap());
    let both = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
    assert_eq!(renameat_with(CWD, &from, CWD, &other, both), Err(rustix::io::Errno::EXIST));
    renameat_with(CWD, &from, CWD, &to, both).unwrap();
    assert_eq!(fs::read(&to).unwrap(), b"text");
    let left = statx(CWD, &from, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::ALL).unwrap();
    assert_eq!((left.stx_mode & 0o170_000, left.stx_rdev_major, left.stx_rdev_minor), (0o020_000, 0, 0));
    bench.end();
}

/// Without the group's right to execute, members of the group keep the bit.
#[test]
fn the_set_group_id_bit_stays_where_linux_keeps_it() {
    type Work = fn(&Path) -> std::io::Result<()>;
    let works: [(&str, Work); 3] = [
        ("write", |path| fs::OpenOptions::new().write(true).open(path)?.write_all_at(b"other", 0)),
        ("truncate", |path| fs::OpenOptions::new().write(true).open(path)?.set_len(1)),
        ("fallocate", |path| {
            let file = fs::OpenOptions::new().write(true).open(path)?;
            Ok(fallocate(&file, FallocateFlags::empty(), 0, 9000)?)
        }),
    ];
    let Some(bench) = shared_with_other_users(LiveOptions::default()) else { return };
    for (name, work) in works {
        let path = bench.mnt().join(name);
        fs::write(&path, b"program").unwrap();
        for (group, mode, wanted) in [
            (65534, 0o6666, 0o2666),
            (65534, 0o6766, 0o2766),
            (65534, 0o6676, 0o676),
            (0, 0o6666, 0o666),
            (0, 0o6777, 0o777),
            (0, 0o2767, 0o767),
        ] {
            std::os::unix::fs::chown(&path, None, Some(group)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            as_other_user(&[], || work(&path)).unwrap().unwrap();
            let found = fs::metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(found, wanted, "{name} {group} {mode:o}");
        }
    }
    bench.end();
}
