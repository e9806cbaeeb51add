//! Removed, truncated and destroyed data is freed in bounded pieces.
#![expect(clippy::disallowed_methods, reason = "tests of threads")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Bench;
use engine::dsl::write::Tasks;
use engine::memory::Limit;
use engine::spa::Spa;
use stdx::rng::Rng;
use testkit::{pools, zdb};
use zpl::write::{FsWriter, NewNode, Overrides, Settings, XattrMode, mount};
use zpl::{FileKind, Time};

fn node(kind: FileKind, perm: u64) -> NewNode<'static> {
    NewNode::new(kind, perm, 1000, 100)
}

fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// The images as they are now, as a power cut would leave them: files are written without a cache of ours.
fn crashed(bench: &Bench) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    pools::copy(bench.dir.path(), dir.path());
    dir
}

/// Real zdb finds an owner for each block that is allocated.
fn no_leaks(dir: &Path) {
    if zdb::installed() {
        zdb::verify(dir, "wpool").unwrap();
    }
}

/// A long file is freed in bounded pieces. In the middle, the state on disk is consistent: the file waits in
/// the delete queue, and the next mount continues.
#[test]
fn a_long_file_is_freed_in_pieces() {
    let bench = Bench::new(256 << 20, |_| {});
    bench.set("recordsize", 512);
    bench.env.memory.set(Limit::AsyncBlockMax, 5_000).unwrap();
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let empty = fs.space().unwrap().referenced;
    let new = |name: &[u8]| fs.dirs().create(fs.root, name, &node(FileKind::Regular, 0o600)).unwrap();
    let (long, cut) = (new(b"long"), new(b"cut"));
    for (file, blocks) in [(long, 40_000), (cut, 30_000)] {
        fs.data().write(file, 0, &random(&mut Rng::new(5), blocks * 512), true).unwrap();
    }
    bench.spa.sync().unwrap();
    for (cuts, least) in [(true, 1), (false, 2)] {
        bench.spa.sync().unwrap();
        let begin = bench.spa.txgs.open();
        match cuts {
            true => fs.data().truncate(cut, 5000).unwrap(),
            false => fs.dirs().unlink(fs.root, b"long").unwrap(),
        }
        let groups = bench.spa.txgs.open() - begin;
        assert!(groups >= least, "{groups} groups free it");
        let crashed = crashed(&bench);
        no_leaks(crashed.path());
        let spa = pools::import_dir(crashed.path(), "wpool").unwrap();
        let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
        spa.sync().unwrap();
        let left = fs.dirs().entries(fs.root).unwrap().len();
        assert_eq!(left, if cuts { 2 } else { 1 });
        if !cuts {
            assert!(fs.space().unwrap().referenced < empty + (1 << 20));
        }
        fs.unmount().unwrap();
        drop(fs);
        spa.export().unwrap();
        if !cuts {
            no_leaks(crashed.path());
        }
    }
    let mut start = vec![0; 5000];
    assert_eq!(fs.data().read(cut, 0, &mut start).unwrap(), 5000);
    assert!(start == random(&mut Rng::new(5), 5000));
}

/// A destroyed dataset is freed in bounded pieces, and the next import continues.
#[test]
fn a_destroyed_dataset_is_freed_in_pieces() {
    let bench = Bench::new(256 << 20, |_| {});
    bench.env.memory.set(Limit::AsyncBlockMax, 700).unwrap();
    bench.set("recordsize", 512);
    let spa = &bench.spa;
    let made = |tasks: &Tasks<'_>| {
        let new = zpl::write::NewFs::new(Time { sec: 1_700_000_000, nsec: 5 }, 99);
        tasks.create("wpool/child", ondisk::ObjsetType::Zfs, 0, &mut |live, tx| {
            zpl::write::create_fs(&live.objset, tx, &new)
        })
    };
    spa.dsl_task(made).unwrap();
    let fs = mount(spa, "wpool/child", Overrides::default()).unwrap();
    let mut rng = Rng::new(7);
    for n in 0..300 {
        let file =
            fs.dirs().create(fs.root, format!("f{n}").as_bytes(), &node(FileKind::Regular, 0o600)).unwrap();
        fs.data().write(file, 0, &random(&mut rng, 512 * (n % 40)), true).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    spa.sync().unwrap();
    spa.dsl_task(|tasks| tasks.destroy("wpool/child", false)).unwrap();
    let freeing = |spa: &Spa| engine::spa::props::freeing(&spa.view().unwrap());
    let mut before = freeing(spa);
    assert!(before > 0);
    for n in 0..40 {
        if n == 2 {
            no_leaks(crashed(&bench).path());
        }
        spa.sync().unwrap();
        let left = freeing(spa);
        assert!(left < before, "each group frees something");
        before = left;
        if left == 0 {
            assert!(n > 4, "{n}");
            break;
        }
    }
    assert_eq!(before, 0);
    spa.export().unwrap();
    no_leaks(bench.dir.path());
}

fn referenced(fs: &FsWriter) -> u64 {
    fs.space().unwrap().referenced
}

/// A file system on a pool with a thread of its own, and files of many blocks in it.
fn long_files(names: &[&str]) -> (Bench, Arc<FsWriter>) {
    let bench = Bench::new(256 << 20, |_| {});
    bench.set("recordsize", 512);
    bench.env.memory.set(Limit::AsyncBlockMax, 4000).unwrap();
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    for name in names {
        let file = fs.dirs().create(fs.root, name.as_bytes(), &node(FileKind::Regular, 0o600)).unwrap();
        fs.data().write(file, 0, &random(&mut Rng::new(5), 60_000 * 512), true).unwrap();
    }
    bench.spa.sync().unwrap();
    bench.spa.start_thread().unwrap();
    (bench, fs)
}

/// The caller that removes a long file does not wait for its blocks, nor do writers, an unmount or a mount; the next mount
/// frees the rest.
#[test]
fn a_removed_file_is_freed_behind_its_users() {
    let (bench, fs) = long_files(&["a", "open"]);
    let all = referenced(&fs);
    let open = fs.dirs().lookup(fs.root, b"open").unwrap().unwrap().object;
    fs.open_file(open).unwrap();
    fs.dirs().unlink(fs.root, b"open").unwrap();
    fs.dirs().unlink(fs.root, b"a").unwrap();
    assert!(referenced(&fs) > all / 4 * 3, "unlink waits for the blocks");
    assert_eq!(fs.dirs().entries(fs.root).unwrap().len(), 0);
    let other = fs.dirs().create(fs.root, b"a", &node(FileKind::Regular, 0o600)).unwrap();
    fs.data().write(other, 0, b"new", true).unwrap();
    let mut kept = vec![0; 60_000 * 512];
    assert_eq!(fs.data().read(open, 0, &mut kept).unwrap(), kept.len());
    assert!(kept == random(&mut Rng::new(5), kept.len()), "an open file stays whole");
    fs.close_file(open).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    assert!(referenced(&fs) > all / 4, "the mount waits for what was left");
    bench.spa.dsl_task(|tasks| tasks.snapshot(&["wpool@meanwhile"], &[])).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    bench.spa.export().unwrap();
    no_leaks(bench.dir.path());
    let spa = pools::import_dir(bench.dir.path(), "wpool").unwrap();
    spa.start_thread().unwrap();
    let fs = mount(&spa, "wpool", Overrides::default()).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while referenced(&fs) > 1 << 20 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(referenced(&fs) < 1 << 20, "{} left", referenced(&fs));
    fs.unmount().unwrap();
    drop(fs);
    spa.dsl_task(|tasks| tasks.destroy("wpool@meanwhile", false)).unwrap();
    spa.export().unwrap();
    no_leaks(bench.dir.path());
}

/// A writer that finds no room waits while files are being freed.
#[test]
fn a_full_pool_has_room_as_files_are_freed() {
    let (bench, fs) = long_files(&["long"]);
    bench.set("recordsize", 128 << 10);
    let full = fs.dirs().create(fs.root, b"full", &node(FileKind::Regular, 0o600)).unwrap();
    let bytes = random(&mut Rng::new(9), 1 << 20);
    let end = (0_u64..).find(|n| fs.data().write(full, n << 20, &bytes, true).is_err()).unwrap();
    fs.dirs().unlink(fs.root, b"long").unwrap();
    for n in end..end + 10 {
        fs.data().write(full, n << 20, &bytes, true).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    bench.spa.export().unwrap();
    no_leaks(bench.dir.path());
}

/// A file with very many attributes in files changes its owner, and is removed, in bounded transactions.
#[test]
fn many_attributes_of_a_file_go_in_pieces() {
    const COUNT: u64 = 3000;
    let bench = Bench::new(256 << 20, |_| {});
    bench.set("xattr", 1);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &node(FileKind::Regular, 0o600)).unwrap();
    let name = |n: u64| format!("user.attribute-{n}").into_bytes();
    (0..COUNT).for_each(|n| fs.xattrs().set(file, &name(n), Some(b"value"), XattrMode::Set).unwrap());
    fs.attrs().set(file, &Settings { uid: Some(7), ..Settings::default() }).unwrap();
    let names = fs.xattrs().names(file).unwrap();
    assert_eq!(names.len() as u64, COUNT);
    bench.spa.sync().unwrap();
    let objects = |fs: &FsWriter| fs.space().unwrap().objects;
    let before = objects(&fs);
    fs.dirs().unlink(fs.root, b"file").unwrap();
    for _ in 0..1000 {
        bench.spa.sync().unwrap();
        if objects(&fs) + COUNT < before {
            break;
        }
    }
    assert!(objects(&fs) + COUNT < before, "{before} {}", objects(&fs));
    fs.unmount().unwrap();
    drop(fs);
    bench.spa.export().unwrap();
    no_leaks(bench.dir.path());
}
