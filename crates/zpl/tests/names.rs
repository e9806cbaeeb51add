//! Names that need not be the same bytes, and operations on names that fail halfway.
//!
//! `data/names.tar.zst` is pool `zpltest`, version 23, made by zfs-fuse, with `ci` (casesensitivity=insensitive), `nd`
//! (normalization=formD) and `kc` (both: insensitive, formKC). Each has 300 files `File-Number-NNNN.Txt`,
//! which makes the directory a fat ZAP hashed by folded names, and nine odd ones; `ci` also
//! `SmallDir/MiXed`. The expected results are those of zfs-fuse for the same names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::Bench;

use engine::env::Env;
use engine::spa::OpenOptions;
use engine::{Kind, Result};
use testkit::golden;
use zpl::write::{FsWriter, NewNode, Options, RenameKind, XattrMode};
use zpl::{CaseSensitivity, FileKind, Filesystem};

fn filesystem(name: &str) -> Arc<Filesystem> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/names.tar.zst");
    let dir = golden::fixture(&archive).unwrap();
    let env = Env::system(16 << 20).unwrap();
    let pool = zutil::import::open_pool(&env, &[dir], "zpltest", OpenOptions::default()).unwrap();
    Filesystem::open(&pool.dsl.dataset(name).unwrap()).unwrap()
}

fn text(fs: &Arc<Filesystem>, name: &str) -> Option<String> {
    let file = fs.resolve(name.as_bytes(), true).ok()?;
    let chunk = file.chunk(0, 100).unwrap();
    Some(String::from_utf8_lossy(&chunk).trim().to_owned())
}

#[test]
fn case_does_not_count() {
    let fs = filesystem("zpltest/ci");
    assert_eq!(fs.case, CaseSensitivity::Insensitive);
    assert_eq!(text(&fs, "FILE-NUMBER-0007.TXT").as_deref(), Some("ci7"));
    assert_eq!(text(&fs, "smalldir/mixed").as_deref(), Some("m"));
    assert_eq!(text(&fs, "CAFÉ-0").as_deref(), Some("ci odd 0"));
    assert_eq!(text(&fs, "дОМ-2").as_deref(), Some("ci odd 2"));
    assert_eq!(text(&fs, "file-number-0300.txt"), None);
    // The name that is stored is the one that is shown.
    let dir = fs.root().unwrap();
    assert_eq!(dir.lookup(b"smallDIR").unwrap().unwrap().name, b"SmallDir");
}

#[test]
fn normal_forms_are_equal_but_case_counts() {
    let fs = filesystem("zpltest/nd");
    assert_eq!(fs.case, CaseSensitivity::Sensitive);
    assert_eq!(text(&fs, "File-Number-0299.Txt").as_deref(), Some("nd299"));
    assert_eq!(text(&fs, "FILE-Number-0299.Txt"), None);
    for name in ["Caf\u{e9}-0", "Cafe\u{301}-0"] {
        assert_eq!(text(&fs, name).as_deref(), Some("nd odd 0"));
    }
    assert_eq!(text(&fs, "\u{3a9}mega-6").as_deref(), Some("nd odd 6"));
}

#[test]
fn case_is_folded_before_compatibility_forms() {
    let fs = filesystem("zpltest/kc");
    for (name, found) in [
        ("\u{fb01}ne-3", Some("kc odd 3")),
        ("\u{fb01}NE-3", Some("kc odd 3")),
        ("fine-3", None),
        ("FINE-3", None),
        ("stra\u{df}e-4", Some("kc odd 4")),
        ("STRASSE-4", None),
        ("K\u{c5}ELVIN-8", Some("kc odd 8")),
    ] {
        assert_eq!(text(&fs, name).as_deref(), found, "{name}");
    }
}

#[test]
fn every_listed_name_is_found() {
    for name in ["zpltest/ci", "zpltest/nd", "zpltest/kc"] {
        let dir = filesystem(name).root().unwrap();
        let entries: Vec<_> = dir.entries().unwrap().map(|e| e.unwrap()).collect();
        assert!(entries.len() >= 309);
        for entry in entries {
            assert_eq!(dir.lookup(&entry.name).unwrap(), Some(entry));
        }
    }
}

fn file() -> NewNode<'static> {
    NewNode::new(FileKind::Regular, 0o644, 0, 0)
}

fn directory() -> NewNode<'static> {
    NewNode::new(FileKind::Directory, 0o755, 0, 0)
}

/// Every object with its attributes and extended attributes, and the entries of directories.
fn everything(fs: &FsWriter) -> Vec<String> {
    let mut all = Vec::new();
    for number in 1..2000 {
        let Ok(mut attr) = fs.attrs().get(number) else { continue };
        // A ZAP that grew for a name stays longer.
        (attr.blksize, attr.blocks) = (0, 0);
        let names = fs.xattrs().names(number).unwrap();
        let values: Vec<_> =
            names.iter().map(|name| (name, fs.xattrs().get(number, name).unwrap())).collect();
        let mut entries = fs.dirs().entries(number).unwrap_or_default();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        if attr.kind == FileKind::Directory {
            assert_eq!(attr.size, entries.len() as u64 + 2, "directory {number}");
        }
        all.push(format!("{number}: {attr:?} {values:?} {entries:?}"));
    }
    all
}

fn assert_clean(bench: &Bench) {
    for _ in 0..2 {
        bench.spa.sync().unwrap();
    }
    let text = bench.zdb(&["-bcc", "wpool"]);
    assert!(text.is_empty() || text.contains("No leaks"), "{text}");
}

/// A directory whose ZAP has no space for one more name that is equal but for case.
fn full_directory(fs: &FsWriter) -> (u64, impl Iterator<Item = Vec<u8>> + use<>) {
    let dir = fs.dirs().create(fs.root, b"full", &directory()).unwrap();
    let mut names = (0..1 << 10).map(|bits| {
        let flip = |(at, c): (usize, &u8)| if bits >> at & 1 == 1 { c.to_ascii_uppercase() } else { *c };
        b"abcdefghij".iter().enumerate().map(flip).collect::<Vec<u8>>()
    });
    for name in names.by_ref() {
        if let Err(e) = fs.dirs().create(dir, &name, &file()) {
            assert_eq!(e.kind(), Kind::NoSpace, "{e}");
            break;
        }
    }
    (dir, names)
}

#[test]
fn a_directory_without_space_for_a_name_loses_nothing() {
    let bench = Bench::new(256 << 20, |new| new.case = CaseSensitivity::Mixed);
    let fs = bench.writer(Options::default());
    let moved = fs.dirs().create(fs.root, b"moved", &file()).unwrap();
    fs.dirs().create(fs.root, b"sub", &directory()).unwrap();
    let (dir, mut names) = full_directory(&fs);
    let unnamed = fs.dirs().create_unnamed(fs.root, &file()).unwrap();
    let before = everything(&fs);
    let mut next = || names.next().unwrap();
    let refused = |what: &str, done: Result<()>| {
        assert_eq!(done.unwrap_err().kind(), Kind::NoSpace, "{what}");
        assert_eq!(everything(&fs), before, "{what}");
    };
    refused("create", fs.dirs().create(dir, &next(), &file()).map(drop));
    refused("mkdir", fs.dirs().create(dir, &next(), &directory()).map(drop));
    refused("symlink", fs.dirs().create(dir, &next(), &NewNode::symlink(b"target", 0, 0)).map(drop));
    refused("link", fs.dirs().link(moved, dir, &next()));
    refused("link of an unnamed file", fs.dirs().link(unnamed, dir, &next()));
    for kind in [RenameKind::Plain, RenameKind::NoReplace, RenameKind::NoReplaceWhiteout] {
        for name in [b"moved".as_slice(), b"sub"] {
            let done = fs.dirs().rename((fs.root, name), (dir, &next()), kind, (0, 0));
            refused(&format!("rename {kind:?}"), done);
        }
    }
    // There is space for a name that is there.
    fs.dirs().rename((fs.root, b"moved"), (dir, b"abcdefghij"), RenameKind::Plain, (0, 0)).unwrap();
    assert_eq!(fs.dirs().lookup(dir, b"abcdefghij").unwrap().unwrap().object, moved);
    fs.close_file(unnamed).unwrap();
    drop(fs);
    assert_clean(&bench);
}

/// Does `work` with its first step failing, then its second, and so on until none fails.
fn with_each_step_failing(fs: &FsWriter, what: &str, work: impl Fn() -> Result<()>) {
    let before = everything(fs);
    for failing in 1.. {
        fs.fail_step(failing);
        let done = work();
        fs.fail_step(0);
        match done {
            Err(e) => assert_eq!(e.kind(), Kind::Io, "{what}, step {failing}: {e}"),
            Ok(()) => {
                assert!(failing > 2, "{what} has several steps");
                assert_ne!(everything(fs), before, "{what}");
                return;
            }
        }
        assert_eq!(everything(fs), before, "{what}, step {failing}");
    }
}

/// Operations on names, each with a step that fails; `commit`: with txgs between them.
fn steps_fail(version: u64, commit: bool) {
    let bench = Bench::new(256 << 20, |new| new.version = version);
    let fs = bench.writer(Options { xattr_sa: false, ..Options::default() });
    let root = fs.root;
    let at = |name: &str| fs.dirs().lookup(root, name.as_bytes()).unwrap().unwrap().object;
    let does = |what: &str, work: &dyn Fn() -> Result<()>| {
        with_each_step_failing(&fs, what, work);
        if commit {
            bench.spa.sync().unwrap();
        }
    };
    let rename = |from: &[u8], to: (u64, &[u8]), kind| fs.dirs().rename((root, from), to, kind, (0, 0));
    let long = [b'n'; 4000];
    for name in ["a", "b", "c", "d"] {
        does("create", &|| fs.dirs().create(root, name.as_bytes(), &file()).map(drop));
    }
    for name in ["dir", "sub", "empty"] {
        does("mkdir", &|| fs.dirs().create(root, name.as_bytes(), &directory()).map(drop));
    }
    does("symlink", &|| fs.dirs().create(root, b"s", &NewNode::symlink(&long, 0, 0)).map(drop));
    does("link", &|| fs.dirs().link(at("a"), at("dir"), b"a2"));
    does("unlink of one name", &|| fs.dirs().unlink(at("dir"), b"a2"));
    does("xattr", &|| fs.xattrs().set(at("a"), b"user.x", Some(b"old"), XattrMode::Set));
    does("xattr again", &|| fs.xattrs().set(at("a"), b"user.x", Some(&long), XattrMode::Set));
    does("second xattr", &|| fs.xattrs().set(at("a"), b"user.y", Some(b"y"), XattrMode::Set));
    does("xattr goes", &|| fs.xattrs().set(at("a"), b"user.y", None, XattrMode::Set));
    if version == 5 {
        fs.set_options(Options::default());
        does("xattr is packed", &|| fs.xattrs().set(at("a"), b"user.x", Some(b"x"), XattrMode::Set));
        let large = vec![1; 40 << 10];
        does("xattr is not packed", &|| fs.xattrs().set(at("a"), b"user.x", Some(&large), XattrMode::Set));
        for (name, len) in [(b"user.x", 10), (b"user.y", 30_000), (b"user.z", 30_000)] {
            fs.xattrs().set(at("a"), name, Some(&vec![2; len]), XattrMode::Set).unwrap();
        }
        let value = [3; 20_000];
        does("xattr has no room", &|| fs.xattrs().set(at("a"), b"user.x", Some(&value), XattrMode::Set));
    }
    does("rename", &|| rename(b"a", (at("dir"), b"a"), RenameKind::Plain));
    does("rename over a file", &|| rename(b"b", (at("dir"), b"a"), RenameKind::Plain));
    does("rename of a directory", &|| rename(b"sub", (at("dir"), b"sub"), RenameKind::Plain));
    does("exchange", &|| rename(b"c", (at("dir"), b"sub"), RenameKind::Exchange));
    does("rename over a directory", &|| rename(b"empty", (root, b"c"), RenameKind::Plain));
    does("whiteout", &|| rename(b"d", (at("dir"), b"d"), RenameKind::Whiteout));
    does("whiteout of a directory", &|| rename(b"c", (at("dir"), b"c"), RenameKind::Whiteout));
    does("rmdir", &|| fs.dirs().rmdir(at("dir"), b"c"));
    does("unlink", &|| fs.dirs().unlink(root, b"s"));
    let open = fs.dirs().lookup(at("dir"), b"a").unwrap().unwrap().object;
    fs.open_file(open).unwrap();
    does("unlink of an open file", &|| fs.dirs().unlink(at("dir"), b"a"));
    let unnamed = fs.dirs().create_unnamed(root, &file()).unwrap();
    does("link of an unnamed file", &|| fs.dirs().link(unnamed, root, b"named"));
    fs.close_file(unnamed).unwrap();
    fs.close_file(open).unwrap();
    drop(fs);
    assert_clean(&bench);
}

#[test]
fn a_step_that_fails_undoes_those_before() {
    steps_fail(5, false);
}

#[test]
fn a_step_that_fails_undoes_those_before_in_files_on_disk() {
    steps_fail(5, true);
}

#[test]
fn a_step_that_fails_undoes_those_before_in_old_versions() {
    steps_fail(4, true);
}
