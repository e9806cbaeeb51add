//! Golden pools imported for writing, written, exported, and judged by zdb and our own check.

use std::path::Path;

use engine::env::Env;
use engine::spa::{ImportOptions, import};
use testkit::{golden, zdb};
use zutil::import::{candidates, select, source_with};

/// Pools that this build says it can't write, and the word by which it says why.
const REFUSED: &[(&str, &str)] = &[
    ("basic", "cloned"),
    ("checkpoint", "checkpoint"),
    ("classes", "dedup table"),
    ("legacy-v28", "dedup table"),
    ("zfs-fuse-v23", "dedup table"),
    ("dedup-fast", "dedup table"),
    ("dedup-legacy", "dedup table"),
    ("reflink", "cloned"),
    ("removed", "removed"),
];

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            let mut cp = std::process::Command::new("cp");
            cp.arg("--sparse=always").arg(entry.path()).arg(to.join(entry.file_name()));
            assert!(cp.status().unwrap().success());
        }
    }
}

fn round_trip(name: &str, dir: &Path) -> Result<(), String> {
    let env = Env::system(64 << 20).unwrap();
    let options = blkdev::OpenOptions { mode: blkdev::OpenMode::ReadWrite, ..Default::default() };
    let found = candidates(&[dir.to_path_buf()]);
    let pool = found.first().ok_or("no pool found")?.name.clone();
    let candidate = select(found, &pool).map_err(|e| e.to_string())?;
    let before = std::fs::read_dir(dir).unwrap().count();
    let source = source_with(&candidate, options);
    // One of them was not exported by the machine that made it.
    let how = ImportOptions { hostid: 7, hostname: "elsewhere".into(), force: true, ..Default::default() };
    let refused = REFUSED.iter().find(|(n, _)| *n == name);
    let spa = match (import(&env, source, &how), refused) {
        (Ok(_), Some(_)) => return Err("it was not refused".into()),
        (Ok(spa), None) => spa,
        (Err(e), Some((_, word))) if e.to_string().contains(word) => return Ok(()),
        (Err(e), _) => return Err(e.to_string()),
    };
    for _ in 0..4 {
        spa.sync().map_err(|e| e.to_string())?;
    }
    spa.export().map_err(|e| e.to_string())?;
    drop(spa);
    assert_eq!(before, std::fs::read_dir(dir).unwrap().count());
    if zdb::installed() { zdb::verify(dir, &pool) } else { Ok(()) }
}

#[test]
fn every_golden_pool_is_written_or_refused() {
    let mut failed = Vec::new();
    for golden in golden::all() {
        let name = golden.name.as_str();
        if name.starts_with("damaged") || name == "streams" {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        copy(&golden.dir, dir.path());
        if let Err(why) = round_trip(name, dir.path()) {
            let head: Vec<&str> = why.lines().take(12).collect();
            failed.push(format!("{name}: {}", head.join("\n  ")));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
