//! Our zdb prints the same as the real zdb and zhack for a pool that we wrote.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::aquifer;
use engine::env::Env;
use sim::files::{FilePool, POOL, disks};
use sim::tree::copy_in;
use sim::world::Shape;

/// Labels, uberblocks, configuration, history, space maps, tables; every object; every block.
const OPTIONS: [&str; 5] = ["-uCDTmMh", "-uCCDDTTmmmMMhh", "-uuuuDDDTTTmmm", "-dddd", "-bbb"];

/// A pool with a directory of this project's in it, a snapshot of that, and a clone.
fn written(dir: &Path, shape: Shape) {
    let devices = disks(dir, shape.disks(), 256 << 20).unwrap();
    let pool = FilePool::create(&Env::system(64 << 20).unwrap(), shape, devices).unwrap();
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../zpool/src");
    assert!(copy_in(&pool.fs, &tree, pool.fs.root).unwrap().files > 10);
    pool.spa
        .dsl_task(|tasks| {
            tasks.snapshot(&["tank@first"], &[])?;
            tasks.clone_snapshot("tank@first", "tank/clone")
        })
        .unwrap();
    pool.fs.dirs().unlink(pool.fs.root, b"status.rs").unwrap();
    pool.export().unwrap();
}

fn run(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).env("TZ", "UTC").output().ok()?;
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Lines `feature = count`, of zhack's print or of our dump of the MOS.
fn counts(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(str::trim).filter(|line| line.contains(':') && line.contains(" = "));
    lines.filter(|line| line.ends_with(|c: char| c.is_ascii_digit())).map(str::to_owned).collect()
}

#[test]
fn our_zdb_and_the_real_one_print_a_written_pool_alike() {
    for shape in [Shape::Single, Shape::Mirror, Shape::Raidz(2)] {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path(), shape);
        let path = dir.path().to_str().unwrap();
        for option in OPTIONS {
            let args = [option, "-e", "-p", path, POOL];
            let Some(theirs) = run("zdb", &args) else {
                eprintln!("SKIPPED: zdb is not installed");
                return;
            };
            let ours = aquifer(&[&["zdb"], &args[..]].concat());
            let wrong = theirs.lines().zip(ours.out.lines()).find(|(a, b)| a != b);
            assert_eq!(wrong, None, "{shape:?} {option}");
            assert_eq!(theirs.len(), ours.out.len(), "{shape:?} {option}");
        }
    }
}

#[test]
fn zhack_counts_the_features_that_we_count() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), Shape::Raidz(1));
    let path = dir.path().to_str().unwrap();
    let Some(theirs) = run("zhack", &["-d", path, "feature", "stat", POOL]) else {
        eprintln!("SKIPPED: zhack is not installed");
        return;
    };
    let ours = aquifer(&["zdb", "-dddd", "-e", "-p", path, POOL]);
    let (theirs, ours) = (counts(&theirs), counts(&ours.out));
    assert!(theirs.len() > 30, "{theirs:?}");
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
