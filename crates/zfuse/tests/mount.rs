//! Real mounts of golden pools, compared with OpenZFS' view of them through the kernel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::Digest;
use testkit::golden::{self, Golden};
use testkit::manifest::Record;
use zfuse::{MountOptions, Mounted};

/// Mounts, or prints why that is not possible here.
fn mount(golden: &Golden, dataset: &str, at: &Path) -> Option<Mounted> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return None;
    }
    let pool = golden.open().unwrap();
    let dataset = pool.dsl.dataset(dataset).unwrap();
    match zfuse::mount(&pool, dataset, at, MountOptions::default()) {
        Ok(mounted) => Some(mounted),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("SKIPPED: FUSE mounts are not allowed here: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn sha256(path: &Path) -> String {
    let mut file = fs::File::open(path).unwrap();
    let mut hash = sha2::Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => return hash.finalize().iter().map(|b| format!("{b:02x}")).collect(),
            n => hash.update(&buffer[..n]),
        }
    }
}

fn record(path: &Path, like: &Record) -> Record {
    let meta = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let kind = meta.file_type();
    let letter = match kind {
        k if k.is_dir() => 'd',
        k if k.is_symlink() => 'l',
        k if k.is_fifo() => 'p',
        k if k.is_socket() => 's',
        k if k.is_char_device() => 'c',
        k if k.is_block_device() => 'b',
        _ => 'f',
    };
    let link =
        if letter == 'l' { fs::read_link(path).unwrap().into_os_string().into_vec() } else { Vec::new() };
    let device = matches!(letter, 'c' | 'b').then(|| {
        let dev = meta.rdev();
        (rustix::fs::major(dev), rustix::fs::minor(dev))
    });
    Record {
        kind: letter,
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        nlink: meta.nlink(),
        size: meta.size(),
        mtime_sec: meta.mtime(),
        mtime_nsec: u32::try_from(meta.mtime_nsec()).unwrap(),
        link,
        sha256: like.sha256.as_ref().map(|_| sha256(path)),
        xattrs: like.xattrs.keys().map(|name| (name.clone(), xattr(path, name))).collect(),
        rdev: like.rdev.and(device),
    }
}

fn xattr(path: &Path, name: &[u8]) -> Vec<u8> {
    let mut value = vec![0; 64 << 10];
    let name = std::ffi::OsStr::from_bytes(name);
    let len =
        rustix::fs::lgetxattr(path, name, &mut value).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    value.truncate(len);
    value
}

/// Paths below `dir`, relative to it.
fn walk(dir: &Path, below: &Path, found: &mut BTreeMap<Vec<u8>, PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        found.insert(path.strip_prefix(below).unwrap().as_os_str().as_bytes().to_vec(), path.clone());
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            walk(&path, below, found);
        }
    }
}

fn compare(golden: &Golden, manifest: &str, dataset: &str) {
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = mount(golden, dataset, dir.path()) else { return };
    let manifest = golden.manifest(manifest).unwrap();
    let mut seen = BTreeMap::new();
    walk(dir.path(), dir.path(), &mut seen);
    let names: Vec<_> = manifest.files.keys().filter(|k| !k.is_empty()).collect();
    assert_eq!(seen.keys().collect::<Vec<_>>(), names, "{}", golden.name);
    for (path, want) in &manifest.files {
        let full = dir.path().join(std::ffi::OsStr::from_bytes(path));
        assert_eq!(record(&full, want), *want, "{}: {}", golden.name, full.display());
    }
    mounted.unmount().unwrap();
}

#[test]
fn a_mount_shows_what_openzfs_showed() {
    for name in ["basic", "damaged-raidz2", "draid1", "legacy-v28", "compress"] {
        if let Some(golden) = golden::get(name) {
            compare(&golden, "live", "tank");
        }
    }
}

#[test]
fn a_snapshot_is_mounted_alone_and_found_below_dot_zfs() {
    let Some(golden) = golden::get("basic") else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = mount(&golden, "tank", dir.path()) else { return };
    let list = |path: &Path| {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(list(&dir.path().join(".zfs")), ["snapshot"]);
    assert_eq!(list(&dir.path().join(".zfs/snapshot")), ["one", "two"]);
    let through = list(&dir.path().join(".zfs/snapshot/one/data"));
    mounted.unmount().unwrap();
    let Some(mounted) = mount(&golden, "tank@one", dir.path()) else { return };
    assert_eq!(list(&dir.path().join("data")), through);
    assert!(fs::write(dir.path().join("new"), "x").is_err());
    mounted.unmount().unwrap();
}

#[test]
fn a_volume_is_a_file() {
    let Some(golden) = golden::get("zvol") else { return };
    let want = fs::read_to_string(golden.dir.join("zd0.sha256")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = mount(&golden, "tank", dir.path()) else { return };
    assert_eq!(want.split_whitespace().next(), Some(sha256(&dir.path().join("vol")).as_str()));
    assert_eq!(fs::metadata(dir.path().join("sparse")).unwrap().len(), 1 << 30);
    mounted.unmount().unwrap();
}

#[test]
fn access_control_lists_are_hidden_where_they_do_not_count() {
    const ACCESS: &[u8] = b"system.posix_acl_access";
    let Some(golden) = golden::get("basic") else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = mount(&golden, "tank", dir.path()) else { return };
    let lists = |at: &str| {
        let mut files = BTreeMap::new();
        walk(&dir.path().join(at), dir.path(), &mut files);
        let has = |path: &&PathBuf| {
            let mut names = vec![0; 64 << 10];
            let len = rustix::fs::llistxattr(*path, &mut names).unwrap();
            let listed = names[..len].split(|byte| *byte == 0).any(|name| name == ACCESS);
            let read = rustix::fs::lgetxattr(*path, std::ffi::OsStr::from_bytes(ACCESS), &mut vec![0; 4096]);
            assert_eq!(listed, read.is_ok(), "{}", path.display());
            listed
        };
        files.values().filter(has).count()
    };
    // The clone has its origin's files, but not the property.
    assert!(lists("modern") > 0);
    assert_eq!(lists("cloned"), 0);
    mounted.unmount().unwrap();
}

#[test]
fn a_partial_receive_is_not_mounted() {
    /// `DS_FLAG_INCONSISTENT`.
    const INCONSISTENT: u64 = 1;
    let Some(golden) = golden::get("basic") else { return };
    let pool = golden.open().unwrap();
    let mut dataset = pool.dsl.dataset("tank").unwrap();
    dataset.phys.flags |= INCONSISTENT;
    let dir = tempfile::tempdir().unwrap();
    let refused = zfuse::mount(&pool, dataset, dir.path(), MountOptions::default());
    let why = refused.map(drop).unwrap_err().to_string();
    assert!(why.contains("partly received") && why.contains("receive -A"), "{why}");
}
