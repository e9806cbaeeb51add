//! `zdb -d`, `-i`, `-O`, `-r`, `-B` on pools that OpenZFS made: against its own zdb where that is installed,
//! against its recorded output else; and on forged pools.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use engine::env::Env;
use sha2::{Digest, Sha256};
use testkit::golden::{self, Golden};
use testkit::hostile::{cases, forge::Forge};

/// Longest time for one image (`AQUIFER_HOSTILE=1` tries all of them).
const PATIENCE: Duration = Duration::from_secs(120);

/// Command lines for which every byte must be OpenZFS's.
const LINES: &[(&str, &str)] = &[
    ("basic", "-dddddd tank"),
    ("basic", "-dddd tank"),
    ("basic", "-dP tank"),
    ("basic", "-dddd tank/modern 2 0:40:f"),
    ("basic", "-ddddd tank/legacy@one 0:-1:A-f"),
    ("basic", "-vvO tank data/one"),
    ("unclean-log", "-dddddd tank"),
    ("unclean-log", "-iiii tank"),
    ("removed", "-dddddd tank"),
    ("replacing", "-dddddd tank"),
    ("reflink", "-dddddd tank"),
    ("zvol", "-dddddd tank"),
    ("dedup-legacy", "-dddddd tank"),
    ("legacy-v28", "-dddddd tank"),
    ("checkpoint", "-ddddd tank"),
    ("expanded", "-dddd tank"),
    ("draid1", "-ddddd tank"),
    ("encrypted", "-dd tank"),
    ("compress", "-dddddd tank 0:-1:z"),
];

/// Streams, with the SHA-256 of OpenZFS' output for them.
const STREAMS: &[(&str, &str, &str)] = &[
    ("basic", "92", "ca93ad741b107d5490419bebe6e26ca28f1e767bf57f185e6c2b666e343ca73c"),
    ("basic", "96 eLc", "159908acbd2b3190c229d913070ad91e25153096284a74f29a15eb26e87e89b4"),
    ("basic", "92 c", "eb6a3fc7cd65d387f65199b8052732dd960796d4b37da79c96e007fb6b92e325"),
    ("encrypted", "172 w", "7b8523aa8cbffcedf8714e3fc7a294122a4d75e3ce18764db5cd4c9a25e3b544"),
    ("encrypted", "176 w", "28ead935394a50457e88fff9e7ed0282e9218dc29a92ebeab5c8a3e5d1ee6fd0"),
    ("zvol", "143 Lc", "f69bdc2fb741699ccc3bf3bc3cc081558ee5ef25975519a68c8c0a3605301042"),
];

fn ours(pool: &Golden, words: &str) -> (i32, Vec<u8>) {
    run(Command::new(env!("CARGO_BIN_EXE_aquifer")).arg("zdb"), pool, words)
}

fn run(command: &mut Command, pool: &Golden, words: &str) -> (i32, Vec<u8>) {
    let command = command.args(["-e", "-p"]).arg(&pool.dir).args(words.split_whitespace());
    let out = command.env("TZ", "UTC").output().expect("the program starts");
    (out.status.code().unwrap_or(-1), out.stdout)
}

/// Whether OpenZFS's zdb is installed; prints a notice if not.
fn has_oracle() -> bool {
    let found = Command::new("zdb").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("SKIPPED: OpenZFS's zdb is not installed");
    }
    found
}

fn first_difference(ours: &[u8], theirs: &[u8]) -> String {
    let lines = |bytes: &[u8]| -> Vec<String> {
        bytes.split(|&b| b == b'\n').map(|l| String::from_utf8_lossy(l).into_owned()).collect()
    };
    let (ours, theirs) = (lines(ours), lines(theirs));
    let at = ours.iter().zip(&theirs).position(|(a, b)| a != b).unwrap_or(ours.len().min(theirs.len()));
    let line = |l: &[String]| l.get(at).cloned().unwrap_or_default();
    format!("line {}:\n  ours   {}\n  theirs {}", at + 1, line(&ours), line(&theirs))
}

#[test]
fn every_byte_is_openzfs_s() {
    if !has_oracle() {
        return;
    }
    for (name, line) in LINES {
        let Some(pool) = golden::get(name) else { continue };
        let (code, mine) = ours(&pool, line);
        let (want_code, want) = run(&mut testkit::zdb::command("zdb"), &pool, line);
        assert!(mine == want, "{name}: zdb {line}: {}", first_difference(&mine, &want));
        assert_eq!(code, want_code, "{name}: zdb {line}");
    }
}

#[test]
fn streams_are_openzfs_s() {
    for (name, line, digest) in STREAMS {
        let Some(pool) = golden::get(name) else { continue };
        let words = format!("-B tank/{line}");
        let (code, mine) = ours(&pool, &words);
        let sum: String = Sha256::digest(&mine).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!((code, sum.as_str()), (0, *digest), "{name}: zdb {words}");
    }
}

#[test]
fn objects_are_printed_as_they_were() {
    let stored = [("reflink", "-ddddd tank 1:12", "reflink.txt"), ("unclean-log", "-iiii tank", "log.txt")];
    for (name, line, file) in stored {
        let Some(pool) = golden::get(name) else { continue };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/zdb").join(file);
        let want = std::fs::read(&path).expect("the stored text is there");
        let (code, mine) = ours(&pool, line);
        assert_eq!(code, 0);
        assert!(mine == want, "{name}: zdb {line}: {}", first_difference(&mine, &want));
    }
}

#[test]
fn a_file_is_copied_out() {
    let Some(pool) = golden::get("basic") else { return };
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("one");
    let (code, text) = ours(&pool, &format!("-r tank data/one {}", target.display()));
    assert_eq!((code, String::from_utf8_lossy(&text).lines().count()), (0, 2));
    let copied = std::fs::read(&target).unwrap();
    assert_eq!(copied.len(), 8);
    assert_eq!(ours(&pool, "-O tank data/no/such").0, 2);
}

/// Runs a whole dump of the pool in `dir`; returns an error when it did not end properly.
fn survives(dir: &Path, pool: &str) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer"));
    command.args(["zdb", "-e", "-p"]).arg(dir).args(["-dddddd", pool]);
    let errors = std::fs::File::create(dir.join("errors")).map_err(|e| e.to_string())?;
    let mut child = command.stdout(Stdio::null()).stderr(errors).spawn().map_err(|e| e.to_string())?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            let text = std::fs::read(dir.join("errors")).unwrap_or_default();
            let panicked = String::from_utf8_lossy(&text).contains("panicked");
            let expected = matches!(status.code(), Some(0..=2)) && !panicked;
            return if expected { Ok(()) } else { Err(format!("ended with {status}")) };
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            return Err("is not over".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn lies_end_in_errors() {
    let env = Env::system(64 << 20).unwrap();
    let mut wrong = Vec::new();
    // Each is an image to write and a whole dump to make: a few of every kind, or all when asked for.
    let step = if std::env::var_os("AQUIFER_HOSTILE").is_some() { 1 } else { 16 };
    for case in cases::all().into_iter().step_by(step) {
        let Some(pool) = golden::get(case.pool) else { continue };
        let mut forge = Forge::new(&pool, &env).unwrap();
        (case.make)(&mut forge).unwrap();
        forge.finish().unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (name, disk) in &forge.disks {
            disk.save(&dir.path().join(name)).unwrap();
        }
        if let Err(why) = survives(dir.path(), pool.pool_name()) {
            wrong.push(format!("{case:?} {why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
