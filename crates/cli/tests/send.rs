//! `zfs send` of golden pools compared with the streams that OpenZFS 2.3.2 made of them, and its messages.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that can't go on must say so")]

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};

use testkit::golden::{self, Golden};
use testkit::live::Live;

fn zfs_send(pool: &Golden, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer"));
    let place = format!("{}/.", pool.dir.display());
    command.args(["zfs", "send", "-d", &place]).args(words).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn streams_and_packages_are_openzfs_byte_for_byte() {
    let cases: [(&str, &[(&str, &[&str])]); 2] = [
        (
            "streams",
            &[
                ("full-a", &["tank/src@a"]),
                ("incr-a-b", &["-i", "@a", "tank/src@b"]),
                ("from-bookmark", &["-i", "#a", "tank/src@c"]),
                ("multi-a-c", &["-I", "@a", "tank/src@c"]),
                ("replicate-c", &["-R", "tank/src@c"]),
                ("props-b", &["-p", "tank/src@b"]),
                ("redacted", &["--redact", "book", "tank/src@a"]),
            ],
        ),
        ("encrypted", &[("raw-pass", &["-w", "tank/pass@s"])]),
    ];
    for (name, streams) in cases {
        let Some(pool) = golden::get(name) else { continue };
        for (file, words) in streams {
            let real = std::fs::read(pool.dir.join(format!("{file}.zstream"))).expect("a golden stream");
            let ours = zfs_send(&pool, words);
            assert!(ours.status.success(), "{file}: {}", text(&ours.stderr));
            assert!(ours.stdout == real, "{file} differs");
        }
    }
}

#[test]
fn sizes_and_refusals_are_in_openzfs_words() {
    let Some(pool) = golden::get("streams") else { return };
    let sizes = zfs_send(&pool, &["-nP", "-R", "tank/src@b"]);
    let lines = text(&sizes.stdout);
    let first: Vec<&str> = lines.lines().map(|line| line.rsplit_once('\t').unwrap().0).collect();
    let kid = ["full\ttank/src/kid@a", "incremental\ta\ttank/src/kid@b", "size"];
    assert_eq!(first, [&["full\ttank/src@a", "incremental\ta\ttank/src@b"][..], &kid].concat());
    // Where the space accounts do not suffice, the stream is counted: the length is exact then.
    let real = std::fs::metadata(pool.dir.join("redacted.zstream")).expect("a golden stream").len();
    let sizes = zfs_send(&pool, &["-nP", "--redact", "book", "tank/src@a"]);
    assert_eq!(text(&sizes.stdout), format!("full\ttank/src@a\t{real}\nsize\t{real}\n"));
    let cases: [(&[&str], &str); 8] = [
        (&["tank/src@nope"], "cannot open 'tank/src@nope': dataset does not exist"),
        (
            &["-i", "@b", "tank/src@a"],
            "warning: cannot send 'tank/src@a': not an earlier snapshot from the same fs",
        ),
        (
            &["-i", "#nope", "tank/src@a"],
            "warning: cannot send 'tank/src@a': incremental source (tank/src#nope) does not exist",
        ),
        (&["-w", "-d", "book", "tank/src@a"], "Error: raw sends may not be redacted."),
        (&["-I", "#a", "tank/src@b"], "Error: multiple snapshots cannot be sent from a bookmark."),
        (&["-R", "tank/src"], "Error: Unsupported flag with filesystem or bookmark."),
        (
            &["-X", "tank/src/kid", "tank/src@a"],
            "Cannot specify dataset exclusion (-X) on a non-recursive send.",
        ),
        (&["-d", "a", "tank/src@a"], "warning: cannot send 'tank/src@a': not a redaction bookmark"),
    ];
    for (words, said) in cases {
        let run = zfs_send(&pool, words);
        assert_eq!((run.status.code(), text(&run.stderr).trim_end()), (Some(1), said), "{words:?}");
        assert!(run.stdout.is_empty(), "{words:?}");
    }
}

/// The token of the golden pool's partly received dataset names the rest of `tank/src@a`.
/// Space and lengths since a bookmark are those since its snapshot, and stay so when snapshots go.
#[test]
fn sizes_since_a_bookmark_outlive_its_snapshot() {
    let Some(pool) = golden::get("streams") else { return };
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    live.ok(&format!("zpool create -m none tank {}", live.disk("d", 256)));
    for stream in ["full-a", "multi-a-c"] {
        let file = File::open(pool.dir.join(format!("{stream}.zstream"))).unwrap();
        let done = live.command("zfs receive -u tank/x").stdin(file).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        if stream == "full-a" {
            live.ok("zfs bookmark tank/x@a tank/x#a");
        }
    }
    let written = |since: &str, of: &str| live.ok(&format!("zfs get -Hpo value written{since} tank/x{of}"));
    let size = |since: &str, of: &str| {
        live.ok(&format!("zfs send -nP -i {since} tank/x{of}")).lines().last().unwrap().to_owned()
    };
    let ends = ["@b", "@c", ""];
    let by_snapshot = ends.map(|of| written("@a", of));
    assert_eq!(ends.map(|of| written("#a", of)), by_snapshot);
    assert_eq!(written("#a", "@a"), "-\n");
    let sizes = ["@b", "@c"].map(|of| size("@a", of));
    assert_eq!(["@b", "@c"].map(|of| size("#a", of)), sizes);
    live.ok("zfs destroy tank/x@a");
    assert_eq!(ends.map(|of| written("#a", of)), by_snapshot);
    assert_eq!(["@b", "@c"].map(|of| size("#a", of)), sizes);
    live.ok("zfs destroy tank/x@b");
    assert_eq!((written("#a", "@c"), written("#a", "")), (by_snapshot[1].clone(), by_snapshot[2].clone()));
    assert_eq!(size("#a", "@c"), sizes[1]);
    live.export_and_verify("tank");
}

#[test]
fn a_token_of_openzfs_names_the_rest() {
    let Some(pool) = golden::get("streams") else { return };
    let token = std::fs::read_to_string(pool.dir.join("resume-token.txt")).expect("a token");
    let run = zfs_send(&pool, &["-t", token.trim()]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let whole = std::fs::metadata(pool.dir.join("full-a.zstream")).expect("a golden stream").len();
    let rest = u64::try_from(run.stdout.len()).unwrap();
    assert!(rest > 1000 && rest < whole, "{rest} of {whole}");
    let bad = zfs_send(&pool, &["-t", "1-1-8-00000000"]);
    let said = "cannot resume send: resume token is corrupt (incorrect checksum)";
    assert_eq!((bad.status.code(), text(&bad.stderr).trim_end()), (Some(255), said));
}

#[test]
fn excluded_datasets_are_left_out() {
    let Some(pool) = golden::get("streams") else { return };
    let run = zfs_send(&pool, &["-nP", "-R", "-X", "tank/src/kid", "tank/src@c"]);
    let lines = text(&run.stdout);
    assert!(run.status.success() && lines.contains("tank/src@c") && !lines.contains("kid"), "{lines}");
}
