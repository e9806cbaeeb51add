//! Every file of images made by old versions of ZFS (pool versions 1 to 15, file system versions 1 to
//! 3, sparc's byte order, zstd by FreeBSD on ppc64), compared with the output of zdb.
//!
//! The images are part of OpenZFS's test suite; where it or zdb is not installed, the test prints a notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use engine::dsl::DatasetKind;
use engine::env::Env;
use engine::spa::{OpenOptions, Pool};
use testkit::golden;
use zpl::{FileKind, Filesystem, Inode};

const SUITE: &str = "/usr/share/zfs/zfs-tests/tests/functional";
/// Files of a pool whose bytes are compared; zdb needs a process for each.
const MAX_READ: usize = 4;

/// Output of zdb for a file: the names that it prints, and values as it prints them.
type Said = BTreeMap<String, String>;

fn zdb(dir: &Path, words: &[&str]) -> Option<String> {
    let mut command = testkit::zdb::command("zdb");
    let out = command.arg("-e").arg("-p").arg(dir).args(words).output().ok()?;
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The files of a dataset by object number.
fn said(dir: &Path, dataset: &str) -> BTreeMap<u64, Said> {
    let text = zdb(dir, &["-ddddd", &format!("{dataset}/")]).unwrap();
    let mut all: BTreeMap<u64, Said> = BTreeMap::new();
    let (mut object, mut header) = (0, false);
    for line in text.lines() {
        if header {
            object = line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
        }
        header = line.trim_start().starts_with("Object  lvl");
        if let Some((name, value)) = line.strip_prefix('\t').and_then(|l| l.split_once([' ', '\t'])) {
            let known = ["path", "uid", "gid", "gen", "mode", "size", "parent", "links", "pflags", "xattr"];
            if known.contains(&name) {
                all.entry(object).or_default().insert(name.to_owned(), value.trim_start().to_owned());
            }
        }
    }
    all.retain(|_, said| said.contains_key("mode"));
    all
}

fn ours(inode: &Inode) -> Said {
    let a = inode.attr();
    let values = [
        ("uid", a.owner.to_string()),
        ("gid", a.group.to_string()),
        ("gen", a.generation.to_string()),
        ("mode", format!("{:o}", a.mode())),
        ("size", a.size.to_string()),
        ("parent", a.parent.to_string()),
        ("links", a.links.to_string()),
        ("pflags", format!("{:x}", a.flags)),
        ("xattr", a.xattr.to_string()),
    ];
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Compares every file of a file system; how many there were.
fn compare(dir: &Path, fs: &Arc<Filesystem>) -> usize {
    let said = said(dir, &fs.name);
    let mut read = 0;
    for (object, mut want) in said.clone() {
        let inode = fs.inode(object).unwrap_or_else(|e| panic!("{} {object}: {e}", fs.name));
        let path = want.remove("path").unwrap_or_default();
        let mut have = ours(&inode);
        have.retain(|name, _| want.contains_key(name));
        assert_eq!(have, want, "{} object {object} {path}", fs.name);
        inode.acl().unwrap();
        inode.xattrs().unwrap();
        if path.len() > 1
            && path.starts_with('/')
            && !path.contains('?')
            && inode.attr().flags & zpl::pflags::XATTR == 0
        {
            let found = fs.resolve(path.as_bytes(), false);
            assert_eq!(found.unwrap().number(), object, "{path}");
            let plain = path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/.-_".contains(&b));
            let size = inode.attr().size;
            if inode.attr().kind == FileKind::Regular && plain && size > 0 && read < MAX_READ {
                read += 1;
                compare_bytes(dir, fs, &inode, &path);
            }
        }
    }
    said.len()
}

fn compare_bytes(dir: &Path, fs: &Arc<Filesystem>, inode: &Inode, path: &str) {
    let to =
        golden::target().join(format!("zdb-read-{}-{:x}-{}", std::process::id(), fs.guid, inode.number()));
    let words = ["-r", &fs.name, path.trim_start_matches('/'), to.to_str().unwrap()];
    zdb(dir, &words).unwrap();
    let theirs = fs::read(&to).unwrap_or_default();
    let _ = fs::remove_file(&to);
    let mut bytes = vec![0; usize::try_from(inode.attr().size).unwrap()];
    assert_eq!(inode.read_at(0, &mut bytes).unwrap(), bytes.len());
    assert!(theirs == bytes, "{} object {}: bytes differ", fs.name, inode.number());
}

fn filesystems(pool: &Arc<Pool>) -> Vec<Arc<Filesystem>> {
    let mut all = Vec::new();
    for dir in pool.dsl.walk(pool.dsl.root().unwrap()) {
        let head = dir.unwrap().head().unwrap();
        if head.kind().unwrap() == DatasetKind::Filesystem {
            match Filesystem::open(&head) {
                Ok(fs) => all.push(fs),
                Err(e) => assert_eq!(e.kind(), engine::Kind::KeyMissing, "{}: {e}", head.name),
            }
        }
    }
    all
}

/// Decompresses `from` with one of the machine's own programs.
fn decompress(from: &Path, to: &Path) -> bool {
    let gz = from.extension().is_some_and(|e| e == "Z");
    let program = if gz { "gzip" } else { "bunzip2" };
    let out = File::create(to).unwrap();
    let status = Command::new(program).arg("-dc").arg(from).stdout(out).stderr(Stdio::null()).status();
    status.is_ok_and(|s| s.success())
}

fn images() -> Vec<(PathBuf, &'static str)> {
    let suite = Path::new(SUITE);
    let mut all: Vec<(PathBuf, &str)> = Vec::new();
    for n in 1..=15 {
        let path = suite.join(format!("cli_root/zpool_upgrade/blockfiles/zfs-pool-v{n}.dat.bz2"));
        all.push((path, "version"));
    }
    all.push((suite.join("history/sparc.migratedpool.DAT.Z"), "history_pool"));
    all.push((suite.join("history/i386.migratedpool.DAT.Z"), "history_pool"));
    all.push((suite.join("cli_root/zpool_import/blockfiles/missing_ivset.dat.bz2"), "missing_ivset"));
    all.retain(|(path, _)| path.is_file());
    all
}

#[test]
fn files_of_old_images_are_what_zdb_says() {
    let images = images();
    if images.is_empty() || zdb(Path::new("/"), &["-?"]).is_none() {
        eprintln!("SKIPPED: the OpenZFS test suite's images and zdb are not installed");
        return;
    }
    let folder = golden::target().join(format!("old-images-{}", std::process::id()));
    let mut files = 0;
    for (n, (image, _)) in images.iter().enumerate() {
        let dir = folder.join(n.to_string());
        fs::create_dir_all(&dir).unwrap();
        if !decompress(image, &dir.join("disk")) {
            eprintln!("SKIPPED: {} can't be decompressed here", image.display());
            continue;
        }
        let candidates = zutil::import::candidates(std::slice::from_ref(&dir));
        assert_eq!(candidates.len(), 1, "{}", image.display());
        let source = zutil::import::source(&candidates[0]);
        let pool =
            engine::spa::open(&Env::system(64 << 20).unwrap(), source, OpenOptions::default()).unwrap();
        for fs in filesystems(&pool) {
            files += compare(&dir, &fs);
        }
    }
    let _ = fs::remove_dir_all(&folder);
    eprintln!("{files} files of {} images", images.len());
    assert!(files > 300);
}

#[test]
fn files_of_golden_pools_are_what_zdb_says() {
    if zdb(Path::new("/"), &["-?"]).is_none() {
        eprintln!("SKIPPED: zdb is not installed");
        return;
    }
    for name in ["basic", "quotas", "legacy-v28", "zfs-fuse-v23"] {
        let Some(golden) = golden::get(name) else { continue };
        let pool = golden.open().unwrap();
        let mut files = 0;
        for fs in filesystems(&pool) {
            files += compare(&golden.dir, &fs);
        }
        assert!(files > 100, "{name}: {files} files");
    }
}
