//! Folders of images as people bring them: cut short, zeroed, doubled, mixed up, or no images at all.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use engine::env::Env;
use engine::{Kind, Result};
use testkit::golden;
use testkit::hostile::exercise::{self, Report};

const LABEL: u64 = 256 << 10;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Copies of a pool's disks, sparse, in a folder of their own.
fn copies(pool: &str, name: &str) -> Option<Folder> {
    let golden = golden::get(pool)?;
    let folder = Folder(golden::target().join(format!("images-{name}-{}", std::process::id())));
    fs::create_dir_all(&folder.0).unwrap();
    for entry in fs::read_dir(&golden.dir).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("disk") {
            copy(&entry.path(), &folder.0.join(entry.file_name()));
        }
    }
    Some(folder)
}

fn copy(from: &Path, to: &Path) {
    let (from, to) = (File::open(from).unwrap(), File::create(to).unwrap());
    let size = from.metadata().unwrap().len();
    to.set_len(size).unwrap();
    let mut block = vec![0; 256 << 10];
    let mut at = 0;
    while at < size {
        let n = from.read_at(&mut block, at).unwrap();
        if block[..n].iter().any(|&b| b != 0) {
            to.write_all_at(&block[..n], at).unwrap();
        }
        at += n as u64;
    }
}

fn open(folder: &Folder) -> Result<Report> {
    let env = Env::system(64 << 20).unwrap();
    let candidates = zutil::import::candidates(std::slice::from_ref(&folder.0));
    let source = zutil::import::source(&zutil::import::select(candidates, "tank")?);
    Ok(exercise::everything(&env, &source))
}

fn zero(folder: &Folder, disk: &str, from: u64, to: u64) {
    let file = File::options().write(true).open(folder.0.join(disk)).unwrap();
    file.write_all_at(&vec![0; usize::try_from(to - from).unwrap()], from).unwrap();
}

fn size(folder: &Folder, disk: &str) -> u64 {
    fs::metadata(folder.0.join(disk)).unwrap().len()
}

fn resize(folder: &Folder, disk: &str, size: u64) {
    File::options().write(true).open(folder.0.join(disk)).unwrap().set_len(size).unwrap();
}

#[test]
fn any_one_label_is_enough() {
    for kept in 0..4 {
        let Some(folder) = copies("quotas", "label") else { return };
        let end = size(&folder, "disk1");
        for (i, at) in [0, LABEL, end - 2 * LABEL, end - LABEL].into_iter().enumerate() {
            if i != kept {
                zero(&folder, "disk1", at, at + LABEL);
            }
        }
        assert!(open(&folder).unwrap().opened, "with label {kept} alone");
    }
}

#[test]
fn no_label_is_no_pool() {
    let Some(folder) = copies("quotas", "nolabel") else { return };
    let end = size(&folder, "disk1");
    zero(&folder, "disk1", 0, 2 * LABEL);
    zero(&folder, "disk1", end - 2 * LABEL, end);
    assert_eq!(open(&folder).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn disks_cut_short_or_grown() {
    for (wanted, opens) in
        [(8 << 20, None), (LABEL, None), (1, None), (0, Some(false)), (400 << 20, Some(true))]
    {
        let Some(folder) = copies("quotas", "size") else { return };
        resize(&folder, "disk1", wanted);
        let report = open(&folder);
        if let Some(opens) = opens {
            assert_eq!(report.is_ok_and(|r| r.opened), opens, "{wanted} bytes");
        }
    }
}

#[test]
fn zeroed_regions() {
    for mib in [4, 8, 16, 40, 60] {
        let Some(folder) = copies("quotas", "zeros") else { return };
        zero(&folder, "disk1", mib << 20, (mib + 8) << 20);
        let _ = open(&folder);
    }
}

#[test]
fn swapped_disks_are_known_by_guid() {
    let Some(folder) = copies("raidz1-3", "swapped") else { return };
    let path = |name: &str| folder.0.join(name);
    fs::rename(path("disk1"), path("x")).unwrap();
    fs::rename(path("disk2"), path("disk1")).unwrap();
    fs::rename(path("x"), path("disk2")).unwrap();
    assert!(open(&folder).unwrap().opened);
}

#[test]
fn the_same_disk_twice() {
    let Some(folder) = copies("mirror3", "twice") else { return };
    copy(&folder.0.join("disk1"), &folder.0.join("disk9"));
    fs::remove_file(folder.0.join("disk2")).unwrap();
    assert!(open(&folder).unwrap().opened);
}

#[test]
fn two_pools_of_one_name() {
    let (Some(folder), Some(other)) = (copies("quotas", "two"), copies("dedup-fast", "other")) else {
        return;
    };
    fs::rename(other.0.join("disk1"), folder.0.join("disk2")).unwrap();
    assert_eq!(open(&folder).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn a_disk_of_another_pool_is_left_out() {
    let (Some(folder), Some(other)) = (copies("mirror3", "foreign"), copies("zfs-fuse-v23", "from")) else {
        return;
    };
    let Some(first) = fs::read_dir(&other.0).unwrap().flatten().next() else { return };
    fs::rename(first.path(), folder.0.join("disk2")).unwrap();
    assert!(open(&folder).unwrap().opened);
}

#[test]
fn a_stale_disk_does_not_win() {
    let Some(folder) = copies("replacing", "stale") else { return };
    assert!(open(&folder).unwrap().opened);
}

#[test]
fn a_folder_of_junk() {
    let Some(folder) = copies("quotas", "junk") else { return };
    let path = |name: &str| folder.0.join(name);
    fs::write(path("empty"), b"").unwrap();
    fs::write(path("text"), "no pool\n".repeat(100_000)).unwrap();
    fs::write(path("short"), [0xff; 100]).unwrap();
    fs::create_dir(path("folder")).unwrap();
    std::os::unix::fs::symlink(path("circle"), path("circle")).unwrap();
    std::os::unix::fs::symlink("/nowhere", path("dangling")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("zeros")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(path("fifo")).status();
    drop((fifo, std::os::unix::net::UnixListener::bind(path("socket"))));
    (0..300).for_each(|i| fs::write(path(&format!("junk{i}")), [i as u8; 4096]).unwrap());
    assert!(open(&folder).unwrap().opened);
}
