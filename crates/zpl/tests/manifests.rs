//! Every golden pool, file by file, against OpenZFS' view: type, mode, owner, links, size, times, targets,
//! devices, extended attributes and content.
#![expect(clippy::disallowed_methods, reason = "tests of threads")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use engine::spa::OpenOptions;
use testkit::golden::{self, Golden};
use testkit::manifest::Record;
use testkit::tree::{self, Tree};
use zpl::Filesystem;

/// Differences listed before a report is cut.
const MAX_SHOWN: usize = 20;

fn check(pool_name: &Golden) -> (usize, Vec<String>) {
    let (mut files, mut wrong) = (0, Vec::new());
    for (name, covers) in pool_name.manifests() {
        let options = OpenOptions { checkpoint: covers.checkpoint, ..OpenOptions::default() };
        let pool = pool_name.open_with_keys(options).unwrap();
        let manifest = pool_name.manifest(&name).unwrap();
        let label = format!("{}/{name}", pool_name.name);
        files += manifest.files.len();
        let excuse = |path: &[u8], have: &mut Record, want: &Record| {
            tree::excuse_golden(&label, path, have, want);
        };
        wrong.extend(Tree::read(&pool, &covers).unwrap().differences(&label, &manifest, &excuse));
    }
    (files, wrong)
}

#[test]
fn every_file_is_as_openzfs_saw_it() {
    let mut all = Vec::new();
    let only = std::env::var("AQUIFER_POOL").ok();
    for pool in golden::all() {
        // Blocks of two files there are lost.
        if pool.name == "known-errors" || only.as_ref().is_some_and(|o| *o != pool.name) {
            continue;
        }
        let started = std::time::Instant::now();
        let (files, wrong) = check(&pool);
        eprintln!("{}: {files} files, {} differ, {:?}", pool.name, wrong.len(), started.elapsed());
        all.extend(wrong);
    }
    let shown: Vec<&String> = all.iter().take(MAX_SHOWN).collect();
    assert!(all.is_empty(), "{} differences:\n{shown:#?}", all.len());
}

#[test]
fn an_unclean_pool_shows_what_was_synced() {
    let Some(golden) = golden::get("unclean-log") else { return };
    let pool = golden.open().unwrap();
    let dataset = pool.dsl.dataset("tank").unwrap();
    let fs = Filesystem::open(&dataset).unwrap();
    let replayed = fs.replayed().unwrap();
    assert_eq!((replayed.applied, replayed.notes.len()), (16, 0));
    let linked = fs.resolve(b"dir/s", false).unwrap();
    assert_eq!(linked.readlink().unwrap(), b"t");
    let g = fs.resolve(b"dir/g", true).unwrap();
    assert_eq!((g.attr().links, g.number()), (2, fs.resolve(b"dir/h", true).unwrap().number()));
    assert!(fs.resolve(b"dir/f", true).is_err() && fs.resolve(b"sync-3", true).is_err());
    let committed = Filesystem::open_committed(&dataset).unwrap();
    assert!(committed.replayed().is_none() && committed.resolve(b"last", true).is_err());
    assert!(committed.resolve(b"sync-3", true).is_ok());
}
