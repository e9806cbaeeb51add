//! A mount for writing, held to a directory of this machine: the same operations give the same answers and leave the
//! same tree. Then real zdb looks at the pool.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod bench;

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bench::{Bench, as_other_user, shared_with_other_users};
use stdx::rng::Rng;
use zfuse::LiveOptions;
use zpl::CaseSensitivity;
use zpl::write::NewFs;

/// One operation; returns its result as text, so that two can be compared.
type Op = Box<dyn Fn(&Path) -> io::Result<String>>;

fn done(result: io::Result<()>) -> io::Result<String> {
    result.map(|()| String::new())
}

fn some_path(random: &mut Rng) -> PathBuf {
    let mut path = PathBuf::new();
    for _ in 0..random.below(3) {
        path.push(format!("d{}", random.below(3)));
    }
    path.join(["a", "b", "c", "d0", "d1", "long-name-0123456789-0123456789"][random.below(6) as usize])
}

fn operation(random: &mut Rng) -> (String, Op) {
    let (one, two) = (some_path(random), some_path(random));
    let (offset, len) = (random.below(300_000), random.below(200_000));
    let (byte, mode) = (random.below(255) as u8 + 1, random.below(0o1000) as u32 | 0o600);
    let name = |what: &str| format!("{what} {} {} {offset} {len}", one.display(), two.display());
    let open = |path: PathBuf| fs::OpenOptions::new().read(true).write(true).open(path);
    match random.below(16) {
        0 | 1 => (name("mkdir"), Box::new(move |at| done(fs::create_dir(at.join(&one))))),
        2..=4 => (
            name("create"),
            Box::new(move |at| {
                let mut options = fs::OpenOptions::new();
                let file = options.write(true).create_new(true).mode(mode).open(at.join(&one))?;
                done(file.write_all_at(&vec![byte; 1000], 0))
            }),
        ),
        5..=7 => (
            name("write"),
            Box::new(move |at| done(open(at.join(&one))?.write_all_at(&vec![byte; len as usize], offset))),
        ),
        8 => (name("truncate"), Box::new(move |at| done(open(at.join(&one))?.set_len(offset)))),
        9 => (name("unlink"), Box::new(move |at| done(fs::remove_file(at.join(&one))))),
        10 => (name("rmdir"), Box::new(move |at| done(fs::remove_dir(at.join(&one))))),
        11 => (name("rename"), Box::new(move |at| done(fs::rename(at.join(&one), at.join(&two))))),
        12 => (name("link"), Box::new(move |at| done(fs::hard_link(at.join(&one), at.join(&two))))),
        13 => (name("symlink"), Box::new(move |at| done(std::os::unix::fs::symlink(&two, at.join(&one))))),
        14 => (
            name("chmod"),
            Box::new(move |at| done(fs::set_permissions(at.join(&one), fs::Permissions::from_mode(mode)))),
        ),
        _ => (
            name("append and read"),
            Box::new(move |at| {
                let mut file = fs::OpenOptions::new().read(true).append(true).open(at.join(&one))?;
                file.write_all(b"appended")?;
                file.sync_all()?;
                let mut text = Vec::new();
                file.seek(SeekFrom::Start(offset / 2))?;
                file.read_to_end(&mut text)?;
                Ok(format!("{} {:?}", text.len(), text.iter().map(|b| u64::from(*b)).sum::<u64>()))
            }),
        ),
    }
}

/// Everything below `at`: path, type, mode, links, size, content or target.
fn tree(at: &Path) -> Vec<String> {
    let (mut all, mut waiting) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(at.join(&dir)).unwrap() {
            let path = dir.join(entry.unwrap().file_name());
            let meta = fs::symlink_metadata(at.join(&path)).unwrap();
            let kind = meta.file_type();
            let content = match kind {
                k if k.is_dir() => String::new(),
                k if k.is_symlink() => format!("{:?}", fs::read_link(at.join(&path)).unwrap()),
                _ => {
                    let bytes = fs::read(at.join(&path)).unwrap();
                    format!(
                        "{} {:x}",
                        bytes.len(),
                        bytes.iter().fold(7u64, |h, b| h.wrapping_mul(31) + u64::from(*b))
                    )
                }
            };
            let links = if kind.is_dir() { 0 } else { meta.nlink() };
            all.push(format!("{} {:o} {links} {content}", path.display(), meta.mode()));
            if kind.is_dir() {
                waiting.push(path);
            }
        }
    }
    all.sort();
    all
}

fn outcome(result: io::Result<String>) -> Result<String, Option<i32>> {
    result.map_err(|e| e.raw_os_error())
}

#[test]
fn a_mount_answers_as_a_directory_of_this_machine_does() {
    let Some(bench) = Bench::new() else { return };
    let mut random = Rng::new(20);
    for number in 0..3000 {
        let (name, op) = operation(&mut random);
        let (ours, theirs) = (outcome(op(&bench.mnt())), outcome(op(&bench.twin())));
        assert_eq!(ours, theirs, "operation {number}: {name}");
        if number % 500 == 499 {
            assert_eq!(tree(&bench.mnt()), tree(&bench.twin()), "after operation {number}");
        }
    }
    bench.end();
}

#[test]
fn open_files_live_on_and_snapshots_show_the_state_before() {
    let Some(bench) = Bench::new() else { return };
    let at = bench.mnt();
    fs::write(at.join("file"), b"first").unwrap();
    bench.pool.spa.dsl_task(|tasks| tasks.snapshot(&["tank@one"], &[])).unwrap();
    fs::write(at.join("file"), b"second").unwrap();
    let mut open = fs::File::open(at.join("file")).unwrap();
    fs::remove_file(at.join("file")).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "second");
    drop(open);
    let snapshots = at.join(".zfs/snapshot");
    assert_eq!(fs::read(snapshots.join("one/file")).unwrap(), b"first");
    assert_eq!(fs::write(snapshots.join("one/file"), b"x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    bench.pool.spa.dsl_task(|tasks| tasks.snapshot(&["tank@two"], &[])).unwrap();
    let mut names: Vec<_> = fs::read_dir(&snapshots).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["one", "two"]);
    assert!(!snapshots.join("two/file").exists());
    bench.end();
}

#[test]
fn a_name_that_is_too_long_is_said_to_be() {
    let Some(bench) = Bench::new() else { return };
    let at = bench.mnt().join("n".repeat(256));
    assert_eq!(fs::metadata(&at).unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    assert_eq!(fs::write(&at, b"").unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    fs::write(bench.mnt().join("n".repeat(255)), b"").unwrap();
    bench.end();
}

#[test]
fn times_attributes_and_holes_are_kept() {
    let Some(bench) = Bench::new() else { return };
    let path = bench.mnt().join("file");
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(&[7; 400_000], 0).unwrap();
    let times = fs::FileTimes::new()
        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789));
    file.set_times(times).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 123_456_789));
    use rustix::fs::{FallocateFlags, XattrFlags, fallocate, getxattr, listxattr, removexattr, setxattr};
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 131_072, 131_072).unwrap();
    let bytes = fs::read(&path).unwrap();
    let zeros = |range: std::ops::Range<usize>| bytes[range].iter().all(|b| *b == 0);
    assert!(zeros(131_072..262_144) && bytes[131_071] == 7 && bytes[262_144] == 7 && bytes.len() == 400_000);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(), 131_072);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(131_072)).unwrap(), 262_144);
    for len in [10, 5000, 60_000] {
        let value = vec![b'v'; len];
        setxattr(&path, "user.name", &value, XattrFlags::empty()).unwrap();
        let mut out = vec![0; 65_536];
        let got = getxattr(&path, "user.name", &mut out).unwrap();
        assert_eq!(&out[..got], value);
    }
    let set = |name, flags| setxattr(&path, name, b"x", flags).unwrap_err();
    assert_eq!(set("user.name", XattrFlags::CREATE), rustix::io::Errno::EXIST);
    assert_eq!(set("user.other", XattrFlags::REPLACE), rustix::io::Errno::NODATA);
    let both = ["user.name", "user.other"].map(|name| set(name, XattrFlags::CREATE | XattrFlags::REPLACE));
    assert_eq!(both, [rustix::io::Errno::EXIST, rustix::io::Errno::NODATA]);
    let mut names = vec![0; 100];
    let got = listxattr(&path, &mut names).unwrap();
    assert_eq!(&names[..got], b"user.name\0");
    removexattr(&path, "user.name").unwrap();
    assert_eq!(removexattr(&path, "user.name").unwrap_err(), rustix::io::Errno::NODATA);
    drop(file);
    bench.end();
}

/// A POSIX access control list as `getxattr` returns it: tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, perm, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    2_u32.to_le_bytes().into_iter().chain(entries.iter().flat_map(entry)).collect()
}

#[test]
fn new_files_inherit_posix_access_control_lists() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    const NONE: u32 = u32::MAX;
    let Some(bench) = Bench::with(LiveOptions { posix_acl: true, ..LiveOptions::default() }) else { return };
    let dir = bench.mnt().join("dir");
    let get = |path: &Path, name: &str| {
        let mut value = vec![0; 1000];
        getxattr(path, format!("system.posix_acl_{name}"), &mut value).map(|len| value[..len].to_vec())
    };
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    fs::create_dir(&dir).unwrap();
    // user::rwx user:1000:rwx group::r-x mask::rwx other::---
    let list = |user, group, mask, other| {
        acl(&[(1, user, NONE), (2, 7, 1000), (4, group, NONE), (16, mask, NONE), (32, other, NONE)])
    };
    setxattr(&dir, "system.posix_acl_default", &list(7, 5, 7, 0), XattrFlags::empty()).unwrap();
    let (file, sub) = (dir.join("file"), dir.join("sub"));
    fs::OpenOptions::new().write(true).create_new(true).mode(0o646).open(&file).unwrap();
    fs::create_dir(&sub).unwrap();
    // Neither the umask nor permissions that the directory's default list denies are in them.
    assert_eq!((get(&file, "access").unwrap(), mode(&file)), (list(6, 5, 4, 0), 0o640));
    assert_eq!(get(&file, "default").unwrap_err(), rustix::io::Errno::NODATA);
    assert_eq!((get(&sub, "access").unwrap(), mode(&sub)), (list(7, 5, 7, 0), 0o770));
    assert_eq!(get(&sub, "default").unwrap(), list(7, 5, 7, 0));
    // The mode and the list follow each other.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o615)).unwrap();
    assert_eq!(get(&file, "access").unwrap(), list(6, 5, 1, 5));
    setxattr(&file, "system.posix_acl_access", &list(4, 0, 6, 0), XattrFlags::empty()).unwrap();
    assert_eq!(mode(&file), 0o460);
    // A list that a mode can express is not stored.
    let plain = acl(&[(1, 6, NONE), (4, 4, NONE), (32, 0, NONE)]);
    setxattr(&file, "system.posix_acl_access", &plain, XattrFlags::empty()).unwrap();
    assert_eq!((mode(&file), get(&file, "access").unwrap_err()), (0o640, rustix::io::Errno::NODATA));
    bench.end();
}

#[test]
fn entries_that_the_kernel_keeps_are_right() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let Some(bench) = Bench::new() else { return };
    let path = bench.mnt().join("file");
    let settle = || {
        bench.pool.spa.sync().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1100));
        fs::metadata(&path).unwrap()
    };
    // That there is no such name is kept, until there is one.
    assert!(!path.exists());
    let mut random = Rng::new(5);
    let noise: Vec<u8> = (0..1 << 20).map(|_| random.below(256) as u8).collect();
    fs::write(&path, &noise[..100_000]).unwrap();
    let before = settle();
    assert!((190..600).contains(&before.blocks()), "{}", before.blocks());
    // A flag changes the time of change; the kernel does not see that by itself.
    let file = fs::File::open(&path).unwrap();
    ioctl_setflags(&file, ioctl_getflags(&file).unwrap() | IFlags::NODUMP).unwrap();
    assert_eq!(ioctl_getflags(&file).unwrap() & IFlags::NODUMP, IFlags::NODUMP);
    let after = fs::metadata(&path).unwrap();
    assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    // Space is known when the txg is on disk.
    fs::write(&path, &noise).unwrap();
    assert!(settle().blocks() >= 2048);
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    drop(file);
    bench.end();
}

#[test]
fn a_file_has_no_other_case_of_its_name_once_it_is_gone() {
    let insensitive = |new| NewFs { case: CaseSensitivity::Insensitive, ..new };
    let Some(bench) = Bench::made(LiveOptions::default(), insensitive) else { return };
    let names = ["Name", "NAME", "name"].map(|name| bench.mnt().join(name));
    for one in &names {
        for other in &names {
            fs::write(one, b"text").unwrap();
            assert_eq!(fs::read(other).unwrap(), b"text");
            fs::remove_file(other).unwrap();
            assert!(!names.iter().any(|name| name.exists()));
        }
    }
    bench.end();
}

#[test]
fn appended_records_of_several_writers_are_whole() {
    const WRITERS: u8 = 4;
    const RECORDS: u8 = 60;
    // Neither blocks nor pages are a multiple of it.
    const SIZE: usize = 5003;
    let Some(bench) = Bench::new() else { return };
    let path = bench.mnt().join("log");
    let append = || fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
    let shared = append();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (mut own, mut shared) = (append(), &shared);
            scope.spawn(move || {
                for number in 0..RECORDS {
                    let mut record = [writer ^ number; SIZE];
                    record[..2].copy_from_slice(&[writer, number]);
                    // Half of them through one open file, and some synchronous.
                    let file: &mut dyn Write = if writer % 2 == 0 { &mut own } else { &mut shared };
                    file.write_all(&record).unwrap();
                    if number % 16 == 0 {
                        shared.sync_data().unwrap();
                    }
                }
            });
        }
        // A concurrent stat sees no half of a record at the beginning.
        scope.spawn(|| (0..200).for_each(|_| drop(fs::metadata(&path).map(|meta| meta.len()))));
    });
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), SIZE * usize::from(WRITERS) * usize::from(RECORDS));
    let mut next = [0; WRITERS as usize];
    for record in bytes.chunks(SIZE) {
        let (writer, number) = (record[0], record[1]);
        assert!(record[2..].iter().all(|byte| *byte == writer ^ number));
        assert_eq!(std::mem::replace(&mut next[usize::from(writer)], number + 1), number);
    }
    drop(shared);
    bench.end();
}

#[test]
fn append_only_files_are_not_opened_for_more() {
    use rustix::fs::{IFlags, ioctl_setflags};
    let Some(bench) = Bench::new() else { return };
    let path = bench.mnt().join("log");
    fs::write(&path, b"first ").unwrap();
    let file = fs::File::open(&path).unwrap();
    // Only root sets that.
    if ioctl_setflags(&file, IFlags::APPEND).is_ok() {
        let refused =
            |result: io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM));
        refused(fs::write(&path, b"other"));
        refused(fs::OpenOptions::new().write(true).open(&path).map(drop));
        refused(fs::OpenOptions::new().append(true).open(&path).and_then(|file| file.set_len(1)));
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first second");
        ioctl_setflags(&file, IFlags::empty()).unwrap();
        fs::write(&path, b"").unwrap();
    }
    drop(file);
    bench.end();
}

#[test]
fn reading_is_noted_though_the_kernel_has_the_bytes() {
    let Some(bench) = Bench::new() else { return };
    let (file, dir) = (bench.mnt().join("file"), bench.mnt().join("dir"));
    fs::write(&file, b"text").unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("entry"), b"").unwrap();
    let atime = |path: &Path| fs::metadata(path).map(|meta| (meta.atime(), meta.atime_nsec())).unwrap();
    let read = |path: &Path| match path.is_dir() {
        true => drop(fs::read_dir(path).unwrap().count()),
        false => drop(fs::read(path).unwrap()),
    };
    for path in [&file, &dir] {
        let before = atime(path);
        std::thread::sleep(std::time::Duration::from_millis(20));
        read(path);
        let first = atime(path);
        assert!(first > before, "{}", path.display());
        std::thread::sleep(std::time::Duration::from_millis(20));
        read(path);
        assert_eq!(atime(path), first, "that it was read again tells nothing new (`relatime`)");
    }
    bench.end();
}

#[test]
fn the_root_has_a_link_for_a_visible_ctl_directory() {
    let Some(bench) = Bench::new() else { return };
    let links = || fs::metadata(bench.mnt()).unwrap().nlink();
    assert_eq!(links(), 2);
    bench.mounted.change(LiveOptions { snapdir: zfuse::Snapdir::Visible, ..LiveOptions::default() }).unwrap();
    assert_eq!(links(), 3);
    bench.mounted.change(LiveOptions::default()).unwrap();
    assert_eq!(links(), 2);
    bench.end();
}

#[test]
fn set_id_bits_are_gone_for_the_kernel_too_when_another_user_has_changed_the_file() {
    use rustix::fs::{FallocateFlags, fallocate};
    type Work = fn(&Path) -> io::Result<()>;
    let works: [(&str, Work); 4] = [
        ("write", |path| fs::OpenOptions::new().write(true).open(path)?.write_all_at(b"other", 0)),
        ("truncate", |path| fs::OpenOptions::new().write(true).open(path)?.set_len(1)),
        ("open and truncate", |path| fs::write(path, b"x")),
        ("fallocate", |path| {
            let file = fs::OpenOptions::new().write(true).open(path)?;
            Ok(fallocate(&file, FallocateFlags::empty(), 0, 9000)?)
        }),
    ];
    let Some(bench) = shared_with_other_users(LiveOptions::default()) else { return };
    for (name, work) in works {
        let path = bench.mnt().join(name);
        fs::write(&path, b"program").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        bench.pool.spa.sync().unwrap();
        // The kernel keeps the attributes of a file at rest.
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(mode(), 0o6777);
        as_other_user(&[], || work(&path)).unwrap().unwrap();
        assert_eq!(mode(), 0o777, "{name}");
        // Root keeps them.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        work(&path).unwrap();
        assert_eq!(mode(), 0o6777, "{name} by root");
    }
    // The mode in the kernel's cache decides when it runs a program; it does not ask for it then.
    let path = bench.mnt().join("id");
    let program = fs::read("/usr/bin/id").unwrap();
    fs::write(&path, &program).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
    bench.pool.spa.sync().unwrap();
    let runs_as = || {
        let out = std::process::Command::new(&path).arg("-u").output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    let write = || fs::OpenOptions::new().write(true).open(&path)?.write_all_at(&program[..4096], 0);
    let users = as_other_user(&[], || {
        let before = runs_as();
        write().unwrap();
        [before, runs_as()]
    });
    assert_eq!(users.unwrap(), ["0", "65534"]);
    // A file that is not executable loses the bit, too.
    let path = bench.mnt().join("data");
    fs::write(&path, b"").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4666)).unwrap();
    as_other_user(&[], || fs::OpenOptions::new().append(true).open(&path)?.write_all(b"x")).unwrap().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o666);
    bench.end();
}

#[test]
fn a_list_set_by_a_user_without_the_group_takes_its_set_id_bit() {
    use rustix::fs::{XattrFlags, setxattr};
    const NONE: u32 = u32::MAX;
    let options = LiveOptions { posix_acl: true, ..LiveOptions::default() };
    let Some(bench) = shared_with_other_users(options) else { return };
    let path = bench.mnt().join("file");
    fs::write(&path, b"").unwrap();
    std::os::unix::fs::chown(&path, Some(65534), Some(4242)).unwrap();
    let list = acl(&[(1, 7, NONE), (4, 5, NONE), (32, 5, NONE)]);
    let set = || setxattr(&path, "system.posix_acl_access", &list, XattrFlags::empty());
    for (groups, wanted) in [(&[4242, 9][..], 0o2755), (&[9][..], 0o755)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2777)).unwrap();
        as_other_user(groups, set).unwrap().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, wanted, "{groups:?}");
    }
    bench.end();
}

#[test]
fn a_short_file_asks_to_be_written_by_records() {
    let Some(bench) = Bench::new() else { return };
    let path = bench.mnt().join("file");
    for len in [0, 1000, 500_000] {
        fs::write(&path, vec![1; len]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().blksize(), 128 << 10, "{len} bytes");
    }
    bench.end();
}

#[test]
fn a_directory_that_is_open_when_it_goes_keeps_its_attributes() {
    let Some(bench) = Bench::new() else { return };
    let (one, two) = (bench.mnt().join("one"), bench.mnt().join("two"));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&two).unwrap();
    let open = fs::File::open(&two).unwrap();
    fs::rename(&one, &two).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    let moved = fs::File::open(&two).unwrap();
    fs::remove_dir(&two).unwrap();
    assert_eq!(moved.metadata().unwrap().nlink(), 0);
    drop((open, moved));
    bench.end();
}

#[test]
fn dos_attributes_are_set_and_shown() {
    const CLIENT: &str = r#"
        my ($request, $flags, $path) = @ARGV; open(my $file, "<", $path) or die; my $bytes = pack("Q", $flags);
        ioctl($file, $request, $bytes) or exit($! + 0); print unpack("Q", $bytes)"#;
    let Some(bench) = Bench::new() else { return };
    let path = bench.mnt().join("file");
    fs::write(&path, b"").unwrap();
    let of = |path: &Path, request: u32, flags: u64| {
        let words = [request.to_string(), flags.to_string()];
        let out =
            std::process::Command::new("perl").args(["-e", CLIENT]).args(words).arg(path).output().unwrap();
        let shown = String::from_utf8_lossy(&out.stdout).parse::<u64>();
        shown.map_err(|_| out.status.code().unwrap())
    };
    let dos = |request, flags| of(&path, request, flags);
    let (get, set) = (0x8008_8301, 0x4008_8302);
    let (hidden, offline, archive) = (1 << 33, 1 << 44, 1 << 35);
    dos(set, hidden | offline).unwrap();
    assert_eq!(dos(get, 0).unwrap() & !archive, hidden | offline);
    dos(set, hidden).unwrap();
    assert_eq!(dos(set, 1), Err(libc::EOPNOTSUPP));
    let reparse = 1 << 43;
    assert_eq!(dos(set, hidden | reparse), Err(libc::EPERM));
    assert_eq!(dos(get, 0).unwrap() & !archive, hidden);
    // The kernel passes on four bytes of the generation (FS_IOC_GETVERSION).
    let generation = bench.pool.fs.attrs().generation(fs::metadata(&path).unwrap().ino()).unwrap();
    assert_eq!(dos(0x8008_7601, u64::MAX).unwrap(), u64::MAX << 32 | generation);
    // Files of snapshots keep theirs, and refuse others.
    bench.pool.spa.dsl_task(|tasks| tasks.snapshot(&["tank@kept"], &[])).unwrap();
    dos(set, 0).unwrap();
    let kept = bench.mnt().join(".zfs/snapshot/kept/file");
    assert_eq!(of(&kept, get, 0).unwrap() & !archive, hidden);
    assert_eq!(of(&kept, 0x8008_7601, u64::MAX).unwrap(), u64::MAX << 32 | generation);
    assert_eq!(of(&kept, set, 0), Err(libc::EROFS));
    bench.end();
}

#[test]
fn flags_of_a_directory_protect_its_names() {
    use rustix::fs::{IFlags, ioctl_setflags};
    let Some(bench) = Bench::new() else { return };
    let (dir, out) = (bench.mnt().join("dir"), bench.mnt().join("out"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("file"), b"").unwrap();
    fs::write(&out, b"").unwrap();
    let handle = fs::File::open(&dir).unwrap();
    let refused = |what: &str, result: io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM), "{what}");
    };
    if ioctl_setflags(&handle, IFlags::IMMUTABLE).is_err() {
        return bench.end();
    }
    for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
        ioctl_setflags(&handle, flag).unwrap();
        refused("unlink", fs::remove_file(dir.join("file")));
        refused("rmdir", fs::remove_dir(dir.join("sub")));
        refused("rename out", fs::rename(dir.join("file"), bench.mnt().join("file")));
        refused("rename within", fs::rename(dir.join("file"), dir.join("other")));
        refused("rename over", fs::rename(&out, dir.join("file")));
        // An append-only directory accepts new names.
        let new: [(&str, io::Result<()>); 5] = [
            ("create", fs::write(dir.join("new"), b"")),
            ("mkdir", fs::create_dir(dir.join("newdir"))),
            ("symlink", std::os::unix::fs::symlink("x", dir.join("link"))),
            ("link", fs::hard_link(&out, dir.join("hard"))),
            ("rename in", fs::rename(&out, dir.join("out"))),
        ];
        for (what, result) in new {
            if flag == IFlags::APPEND { result.unwrap() } else { refused(what, result) }
        }
        // Its files can be changed, the directory itself can't.
        fs::write(dir.join("file"), b"text").unwrap();
        refused("chmod", fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)));
    }
    ioctl_setflags(&handle, IFlags::empty()).unwrap();
    let file = fs::File::open(dir.join("file")).unwrap();
    ioctl_setflags(&file, IFlags::APPEND).unwrap();
    refused("chmod", file.set_permissions(fs::Permissions::from_mode(0o700)));
    refused("chown", std::os::unix::fs::chown(dir.join("file"), Some(0), Some(1)));
    refused("utime", file.set_modified(std::time::UNIX_EPOCH));
    refused("link", fs::hard_link(dir.join("file"), dir.join("again")));
    ioctl_setflags(&file, IFlags::empty()).unwrap();
    drop((file, handle));
    bench.end();
}
