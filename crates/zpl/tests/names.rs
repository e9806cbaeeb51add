//! Names that need not be the same bytes: a pool made by zfs-fuse with a file system of each kind.
//!
//! `data/names.tar.zst` is pool `zpltest`, version 23, with `ci` (casesensitivity=insensitive), `nd`
//! (normalization=formD) and `kc` (both: insensitive, formKC). Each has 300 files `File-Number-NNNN.Txt`,
//! which makes the directory a fat ZAP hashed by folded names, and nine odd ones; `ci` also
//! `SmallDir/MiXed`. The expected results are those of zfs-fuse for the same names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use engine::env::Env;
use engine::spa::OpenOptions;
use testkit::golden;
use zpl::{CaseSensitivity, Filesystem};

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
