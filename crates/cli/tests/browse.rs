//! The verbs that look into and copy out of a pool, on pools that OpenZFS made.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sha2::{Digest, Sha256};
use testkit::golden::{self, Golden};
use testkit::manifest::{Manifest, Record};

fn aquifer(pool: &Golden, words: &[&str]) -> Output {
    let (verb, rest) = words.split_first().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer"));
    command.arg(verb).arg("-d").arg(&pool.dir).args(rest).env("TZ", "UTC");
    command.output().unwrap()
}

fn ok(pool: &Golden, words: &[&str]) -> Vec<u8> {
    let out = aquifer(pool, words);
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// Compares a copied tree with the manifest: everything that this user could keep.
fn compare(root: &Path, manifest: &Manifest) {
    let am_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    for (path, want) in &manifest.files {
        let here = root.join(OsStr::from_bytes(path));
        if !am_root && matches!(want.kind, 'b' | 'c') {
            continue;
        }
        let meta = fs::symlink_metadata(&here).unwrap_or_else(|e| panic!("{}: {e}", here.display()));
        let seen = (meta.mtime(), meta.mtime_nsec());
        assert_eq!(seen, (want.mtime_sec, i64::from(want.mtime_nsec)), "{}", here.display());
        if am_root {
            assert_eq!((meta.uid(), meta.gid()), (want.uid, want.gid), "{}", here.display());
        }
        if am_root && want.kind != 'l' {
            assert_eq!(meta.mode() & 0o7777, want.mode, "{}", here.display());
        }
        match want.kind {
            'f' => regular(&here, &meta, want, am_root),
            'l' => assert_eq!(fs::read_link(&here).unwrap().as_os_str().as_bytes(), want.link),
            _ => {}
        }
    }
}

fn regular(here: &Path, meta: &fs::Metadata, want: &Record, am_root: bool) {
    assert_eq!((meta.len(), meta.nlink()), (want.size, want.nlink), "{}", here.display());
    if am_root || want.mode & 0o400 != 0 {
        let digest = hex(Sha256::digest(fs::read(here).unwrap()));
        assert_eq!(Some(digest), want.sha256, "{}", here.display());
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(golden::target()).unwrap()
}

#[test]
fn cp_keeps_everything_and_resumes() {
    let Some(pool) = golden::get("mirror3") else { return };
    let manifest = pool.manifest("live").unwrap();
    let dir = folder();
    let to = dir.path().join("copy");
    ok(&pool, &["cp", "-aq", "tank:", to.to_str().unwrap()]);
    compare(&to, &manifest);
    let sparse = to.join("d/sparse-256m");
    assert!(fs::metadata(&sparse).unwrap().blocks() * 512 < 8 << 20, "holes were filled");

    // A file gone, a file cut short before it was renamed: resume makes the tree whole again.
    fs::remove_file(to.join("d/random-mid")).unwrap();
    let before = fs::metadata(to.join("d/t128k")).map(|m| m.ino()).ok();
    ok(&pool, &["cp", "-aq", "--resume", "tank:/", to.to_str().unwrap()]);
    compare(&to, &manifest);
    assert_eq!(fs::metadata(to.join("d/t128k")).map(|m| m.ino()).ok(), before, "copied again");
    let left = walk(&to).into_iter().filter(|p| p.to_string_lossy().contains("partial"));
    assert_eq!(left.count(), 0);
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        all.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            all.extend(walk(&entry.path()));
        }
    }
    all
}

#[test]
fn damaged_pools_give_every_file() {
    for name in ["damaged-mirror", "damaged-raidz1", "damaged-raidz2"] {
        let Some(pool) = golden::get(name) else { continue };
        let dir = folder();
        ok(&pool, &["cp", "-rq", "tank:", dir.path().join("x").to_str().unwrap()]);
        compare(&dir.path().join("x"), &pool.manifest("live").unwrap());
    }
}

#[test]
fn tar_holds_the_tree_and_resumes() {
    let Some(pool) = golden::get("raidz1-3") else { return };
    let manifest = pool.manifest("live").unwrap();
    let whole = ok(&pool, &["tar", "-q", "tank:d"]);
    check_archive(&whole, &manifest);
    let dir = folder();
    let path = dir.path().join("a.tar");
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    ok(&pool, &["tar", "-q", "--resume", "-f", path.to_str().unwrap(), "tank:d"]);
    assert!(fs::read(&path).unwrap() == whole, "a resumed archive is the one that was interrupted");
}

/// A member as it lies in the archive.
struct Member {
    kind: u8,
    name: Vec<u8>,
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    data: Vec<u8>,
}

/// The members of a pax archive. (The `tar` crate can't be used: it takes a newline in an extended
/// attribute for the end of its record.)
fn members(bytes: &[u8]) -> Vec<Member> {
    let (mut at, mut all, mut records) = (0, Vec::new(), BTreeMap::new());
    while bytes[at] != 0 {
        let header = &bytes[at..at + 512];
        let size = std::str::from_utf8(&header[124..135]).unwrap();
        let size = usize::from_str_radix(size, 8).unwrap();
        let data = &bytes[at + 512..at + 512 + size];
        at += 512 + size.next_multiple_of(512);
        if header[156] == b'x' {
            records = pax_records(data);
            continue;
        }
        let own = header[..100].split(|b| *b == 0).next().unwrap().to_vec();
        let name = records.get(&b"GNU.sparse.name"[..]).or(records.get(&b"path"[..])).cloned();
        let name = name.unwrap_or(own);
        let name = name.strip_suffix(b"/").unwrap_or(&name).to_vec();
        let records = std::mem::take(&mut records);
        all.push(Member { kind: header[156], name, records, data: data.to_vec() });
    }
    assert!(bytes[at..].len() >= 1024 && bytes.len().is_multiple_of(10_240));
    all
}

fn pax_records(mut bytes: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|b| *b == b' ').unwrap();
        let len: usize = std::str::from_utf8(&bytes[..space]).unwrap().parse().unwrap();
        let record = &bytes[space + 1..len - 1];
        let equals = record.iter().position(|b| *b == b'=').unwrap();
        all.insert(record[..equals].to_vec(), record[equals + 1..].to_vec());
        bytes = &bytes[len..];
    }
    all
}

/// Every file is there once, with content, link and extended attributes of the manifest.
fn check_archive(bytes: &[u8], manifest: &Manifest) {
    let all = members(bytes);
    for m in &all {
        let want = &manifest.files[&m.name];
        let sparse = m.records.contains_key(&b"GNU.sparse.realsize"[..]);
        match (m.kind, sparse) {
            (b'0', false) => assert_eq!(Some(hex(Sha256::digest(&m.data))), want.sha256),
            (b'0', true) => assert_eq!(Some(hex(Sha256::digest(dense(m)))), want.sha256),
            (b'1', _) => assert!(want.nlink > 1 && m.data.is_empty()),
            _ => assert_ne!(want.kind, 'f'),
        }
        if m.kind != b'1' {
            for (xattr, value) in want.xattrs.iter().filter(|(name, _)| name.starts_with(b"user.")) {
                assert_eq!(m.records.get(&[b"SCHILY.xattr.", &xattr[..]].concat()), Some(value));
            }
            let mtime = format!("{}.{:09}", want.mtime_sec, want.mtime_nsec);
            let mtime = mtime.strip_suffix(".000000000").unwrap_or(&mtime);
            assert_eq!(m.records[&b"mtime"[..]], mtime.as_bytes());
        }
    }
    let names: BTreeSet<&Vec<u8>> = all.iter().map(|m| &m.name).collect();
    let sockets = manifest.files.values().filter(|r| r.kind == 's').count();
    let below = manifest.files.keys().filter(|p| p.starts_with(b"d/") || *p == b"d").count();
    assert_eq!((names.len() + sockets, names.len()), (below, all.len()));
}

/// A sparse member of GNU's version 1.0, with its holes.
fn dense(m: &Member) -> Vec<u8> {
    let mut numbers = m.data.split(|b| *b == b'\n').map(|n| std::str::from_utf8(n).unwrap());
    let mut number = || numbers.next().unwrap().parse::<usize>().unwrap();
    let count = number();
    let map: Vec<(usize, usize)> = (0..count).map(|_| (number(), number())).collect();
    let stored: usize = map.iter().map(|(_, len)| len).sum();
    let mut data = &m.data[m.data.len() - stored..];
    let size = std::str::from_utf8(&m.records[&b"GNU.sparse.realsize"[..]]).unwrap();
    let mut out = vec![0; size.parse().unwrap()];
    for (at, len) in map {
        out[at..at + len].copy_from_slice(&data[..len]);
        data = &data[len..];
    }
    out
}

#[test]
fn sums_and_cat_agree_with_openzfs() {
    let Some(pool) = golden::get("raidz2-6") else { return };
    let manifest = pool.manifest("live").unwrap();
    let out = ok(&pool, &["sha256sum", "-rz", "tank:"]);
    let mut seen = 0;
    for line in out.split(|&b| b == 0).filter(|l| !l.is_empty()) {
        let want = manifest.files[&line[66..]].sha256.clone().unwrap();
        assert_eq!(String::from_utf8_lossy(&line[..64]), want);
        seen += 1;
    }
    assert_eq!(seen, manifest.files.values().filter(|r| r.kind == 'f').count());
    let cat = ok(&pool, &["cat", "tank:/d/t513"]);
    assert_eq!(Some(hex(Sha256::digest(&cat))), manifest.files[&b"d/t513"[..]].sha256);
    let missing = aquifer(&pool, &["cat", "tank:nothing"]);
    assert_eq!(missing.status.code(), Some(1));
}

#[test]
fn find_prints_what_find_printed() {
    let Some(pool) = golden::get("draid1") else { return };
    let format = r"%y\t%m\t%U\t%G\t%n\t%s\t%T@\t%P\t%l\0";
    let mut ours: Vec<Vec<u8>> = split(&ok(&pool, &["find", "tank:", "-mindepth", "1", "-printf", format]));
    let mut theirs = split(&fs::read(pool.dir.join("manifest/live.find")).unwrap());
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
    let out = ok(&pool, &["find", "tank:d", "-type", "f", "!", "-size", "-200M", "-print"]);
    assert_eq!(String::from_utf8_lossy(&out), "d/sparse-256m\n");
}

fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split(|&b| b == 0).filter(|r| !r.is_empty()).map(<[u8]>::to_vec).collect()
}

#[test]
fn volumes_are_copied_sparse() {
    let Some(pool) = golden::get("zvol") else { return };
    let dir = folder();
    let to = dir.path().join("vol");
    ok(&pool, &["cp", "-q", "tank/vol", to.to_str().unwrap()]);
    let said = fs::read_to_string(pool.dir.join("zd0.sha256")).unwrap();
    assert_eq!(said.split_whitespace().next(), Some(hex(Sha256::digest(fs::read(&to).unwrap())).as_str()));
    let sparse = dir.path().join("sparse");
    ok(&pool, &["cp", "-q", "tank/sparse", sparse.to_str().unwrap()]);
    let meta = fs::metadata(&sparse).unwrap();
    assert!(meta.len() == 1 << 30 && meta.blocks() * 512 < 32 << 20);
}

#[test]
fn long_listing() {
    let Some(pool) = golden::get("mirror3") else { return };
    let out = ok(&pool, &["ls", "-ln", "tank:d"]);
    let text = String::from_utf8_lossy(&out);
    let line = text.lines().find(|l| l.ends_with(" fifo")).unwrap();
    assert!(line.starts_with("prw-r--r--"), "{line}");
    assert!(text.lines().any(|l| l.starts_with("brw") && l.contains("7, 0")));
    let stat = ok(&pool, &["stat", "tank:d/one"]);
    assert!(String::from_utf8_lossy(&stat).contains("Xattr: user.short=0x68656c6c6f"));
}

/// Where block `blkid` of a file lies on a pool of one disk: byte offset and length.
fn place(pool: &Golden, path: &str, blkid: u64) -> (u64, usize) {
    let pool = pool.open().unwrap();
    let fs = zpl::Filesystem::open(&pool.dsl.dataset("tank").unwrap()).unwrap();
    let number = fs.resolve(path.as_bytes(), true).unwrap().number();
    let bp = fs.objset.object(number).unwrap().blkptr(0, blkid).unwrap().unwrap();
    assert_eq!(bp.dvas().count(), 1);
    // Offsets of a vdev count from behind its two front labels and the boot block.
    (bp.dva(0).unwrap().offset + (4 << 20), usize::try_from(bp.psize()).unwrap())
}

#[test]
fn lost_blocks_are_named_and_the_rest_is_copied() {
    let Some(pool) = golden::get("basic") else { return };
    let (at, len) = place(&pool, "data/random-long", 2);
    let dir = folder();
    fs::create_dir(dir.path().join("pool")).unwrap();
    let disk = dir.path().join("pool/disk1");
    fs::copy(pool.dir.join("disk1"), &disk).unwrap();
    let file = fs::File::options().write(true).open(&disk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0x5a; len], at).unwrap();
    let damaged = Golden { name: "basic".to_owned(), dir: dir.path().join("pool") };

    let whole = ok(&pool, &["cat", "tank:data/random-long"]);
    let (from, to) = (2 << 17, 3 << 17);
    let mut want = whole.clone();
    want[from..to].fill(0);
    let range = format!("{from}-{}", to - 1);

    let copy = dir.path().join("copy");
    let out = aquifer(&damaged, &["cp", "-aq", "tank:data", copy.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(
        said.contains("random-long") && said.contains(&range) && said.contains("131072 bytes are lost"),
        "{said}"
    );
    assert!(fs::read(copy.join("random-long")).unwrap() == want);
    let device = |e: &fs::DirEntry| e.metadata().unwrap().rdev() != 0;
    let others = fs::read_dir(&copy).unwrap().filter(|e| !device(e.as_ref().unwrap())).count();
    assert_eq!(others, fs_names(&pool), "every other file is there");

    let out = aquifer(&damaged, &["cat", "tank:data/random-long"]);
    assert!(out.status.code() == Some(1) && out.stdout == want);
    let out = aquifer(&damaged, &["sha256sum", "-r", "tank:data"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(!String::from_utf8_lossy(&out.stdout).contains("random-long"));
    let out = aquifer(&damaged, &["tar", "-q", "tank:data"]);
    assert_eq!(out.status.code(), Some(1));
    let member = members(&out.stdout).into_iter().find(|m| m.name == b"data/random-long").unwrap();
    assert!(member.data == want);
}

fn fs_names(pool: &Golden) -> usize {
    split(&ok(
        pool,
        &["find", "tank:data", "-mindepth", "1", "-maxdepth", "1", "!", "-type", "b,c", "-print0"],
    ))
    .len()
}
