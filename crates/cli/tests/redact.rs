//! `zfs redact` in a daemon: the kernel's pool, written on.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test must say so")]

use std::path::Path;

use testkit::golden;
use testkit::live::{Live, Run};

/// A daemon with a copy of a golden pool.
fn with_golden(name: &str) -> Option<(Live, golden::Golden)> {
    let pool = golden::get(name)?;
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    for entry in std::fs::read_dir(&pool.dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("disk") {
            std::fs::copy(entry.path(), live.disks().join(entry.file_name())).unwrap();
        }
    }
    live.ok(&format!("zpool import -N -d {} tank", live.disks().display()));
    Some((live, pool))
}

fn refcount(live: &Live, feature: &str) -> String {
    live.ok(&format!("zpool get -H -o value feature@{feature} tank")).trim().to_owned()
}

#[test]
fn a_bookmark_of_ours_makes_the_kernels_stream() {
    let Some((live, pool)) = with_golden("streams") else { return };
    live.ok("zfs redact tank/src@a ours tank/red@r");
    let send = |line: &str| live.command(line).output().expect("it can be started");
    let real = std::fs::read(pool.dir.join("redacted.zstream")).expect("a golden stream");
    let ours = send("zfs send --redact ours tank/src@a");
    assert!(ours.status.success() && ours.stdout == real);
    let guid = live.ok("zfs get -Hpo value guid tank/red@r");
    assert_eq!(live.ok("zfs get -Hpo value redact_snaps tank/src#ours"), guid);
    // A copy of it is an ordinary bookmark.
    live.ok("zfs bookmark tank/src#ours tank/src#copy");
    assert!(live.fails("zfs send --redact copy tank/src@a").contains("not a redaction bookmark"));
    assert!(live.ok("zpool history -i tank").contains("bookmark tank/src (143) name=ours creation_txg=20"));

    live.ok("zfs destroy tank/src#ours");
    live.ok("zfs destroy tank/src#copy");
    assert_eq!(refcount(&live, "redaction_bookmarks"), "active");
    // The kernel's own goes, too.
    live.ok("zfs destroy tank/src#book");
    assert_eq!(refcount(&live, "redaction_bookmarks"), "enabled");
    // With a file system go its bookmarks.
    live.ok("zfs clone tank/src@a tank/twin");
    live.ok("zfs snapshot tank/twin@t");
    live.ok("zfs clone tank/twin@t tank/twins");
    live.ok("zfs snapshot tank/twins@u");
    live.ok("zfs redact tank/twin@t none tank/twins@u");
    assert_eq!(refcount(&live, "redaction_bookmarks"), "active");
    live.ok("zfs destroy -r tank/twins");
    live.ok("zfs destroy -r tank/twin");
    assert_eq!(refcount(&live, "redaction_bookmarks"), "enabled");
    live.ok("zfs redact tank/src@a last tank/red@r");
    live.export_and_verify("tank");
}

#[test]
fn a_long_list_of_snapshots_is_in_a_spill_block() {
    let Some((live, _)) = with_golden("streams") else { return };
    let names: Vec<String> = (0..40).map(|at| format!("tank/red@s{at}")).collect();
    names.iter().for_each(|name| drop(live.ok(&format!("zfs snapshot {name}"))));
    live.ok(&format!("zfs redact tank/src@a many {}", names.join(" ")));
    let guids = live.ok("zfs get -Hpo value redact_snaps tank/src#many");
    assert_eq!(guids.split(',').count(), 40);
    assert_eq!(refcount(&live, "redaction_list_spill"), "active");
    let stream = live.command("zfs send --redact many tank/src@a").output().unwrap();
    assert!(stream.status.success());
    live.ok("zpool export tank");
    testkit::zdb::verify(&live.disks(), "tank").unwrap();
    live.ok(&format!("zpool import -N -d {} tank", live.disks().display()));
    live.ok("zfs destroy tank/src#many");
    assert_eq!(refcount(&live, "redaction_list_spill"), "enabled");
    live.export_and_verify("tank");
}

#[test]
fn invalid_redactions_are_refused_in_openzfs_words() {
    let Some((live, pool)) = with_golden("streams") else { return };
    let cases = [
        ("tank/src@a book tank/red@r", 17, "specified redaction bookmark (book) provided already exists\n"),
        ("tank/src@a a#b tank/red@r", 22, "redaction bookmark name must not contain '#'\n"),
        (
            "tank/src@b new tank/src@a",
            22,
            "redaction snapshot must be descendent of snapshot being redacted\n",
        ),
        (
            "tank/src@b new tank/red@r",
            22,
            "redaction snapshot must be descendent of snapshot being redacted\n",
        ),
        (
            "tank/src@nope new tank/red@r",
            2,
            "cannot open 'tank/src@nope': dataset does not exist\nprovided snapshot tank/src@nope does not exist\n",
        ),
        ("tank/src@a #new @r", 18, "potentially invalid redaction snapshot; full dataset names required\n"),
        ("tank/src@a new @r", 18, "potentially invalid redaction snapshot; full dataset names required\n"),
    ];
    for (words, code, said) in cases {
        let run = live.run(&format!("zfs redact {words}"));
        assert_eq!((run.code, run.err.as_str()), (code, said), "{words}");
    }
    assert_eq!(live.run("zfs redact tank/src@a new").code, 2);
    // A redacted snapshot, a bookmark of it, and its stream.
    let stream = std::fs::File::open(pool.dir.join("redacted.zstream")).unwrap();
    let mut receive = live.command("zfs receive -u tank/less");
    assert!(receive.stdin(stream).status().unwrap().success());
    live.ok("zfs snapshot tank/less@b");
    let run = live.run("zfs redact tank/less@a new tank/less@b");
    let said = "attempted to redact redacted dataset or with respect to redacted dataset\n";
    assert_eq!((run.code, run.err.as_str()), (114, said));
    live.ok("zfs bookmark tank/less@a tank/less#a");
    let guid = live.ok("zfs get -Hpo value guid tank/red@r");
    assert_eq!(live.ok("zfs get -Hpo value redact_snaps tank/less#a"), guid);
    live.export_and_verify("tank");
}

/// A stream that builds on a redacted snapshot is received if it needs no block that was left out, and redacted datasets are
/// mounted only with `-f` and the setting.
#[test]
fn streams_since_redacted_snapshots_are_received() {
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    live.ok(&format!("zpool create -m none tank {}", live.disk("d1", 256)));
    live.ok("zfs create tank/src");
    live.ok("zfs snapshot tank/src@1");
    for name in ["a", "b", "c"] {
        live.ok(&format!("zfs clone tank/src@1 tank/{name}"));
        live.ok(&format!("zfs snapshot tank/{name}@s"));
    }
    live.ok("zfs redact tank/src@1 book tank/a@s tank/b@s");
    let stream = live.disks().join("stream");
    let send = |line: &str| {
        let file = std::fs::File::create(&stream).unwrap();
        assert!(live.command(line).stdout(file).status().unwrap().success(), "{line}");
    };
    let receive = |line: &str| -> Run {
        let file = std::fs::File::open(&stream).unwrap();
        live.command(line).stdin(file).output().unwrap().into()
    };
    let received = |line: &str| {
        let run = receive(line);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{line}");
    };
    send("zfs send --redact book tank/src@1");
    let at = live.disks().join("mnt");
    received(&format!("zfs receive -o mountpoint={} tank/less", at.display()));
    assert_eq!(live.ok("zfs get -H -o value mounted tank/less"), "no\n");
    let said = "cannot mount 'tank/less': Dataset is not complete, was created by receiving a redacted zfs send stream.\n";
    assert_eq!(live.fails("zfs mount tank/less"), said);
    assert_eq!(live.fails("zfs mount -f tank/less"), "cannot mount 'tank/less': dataset is busy\n");
    // From one of the redaction snapshots, and from one that is none.
    send("zfs send -i tank/src@1 tank/a@s");
    received("zfs receive -u tank/less-a");
    // It has all that the redacted snapshot lacks.
    assert_eq!(live.ok("zfs get -H -o value redact_snaps tank/less-a"), "-\n");
    send("zfs send -i tank/src@1 tank/c@s");
    assert!(receive("zfs receive -u tank/less-c").err.contains("redacted by other snapshots"));
    // A full stream needs nothing of its origin.
    send("zfs send tank/c@s");
    received("zfs receive -u -o origin=tank/less@1 tank/full-c");
    // Redacted by other snapshots, and by some of them.
    live.ok("zfs clone tank/src@1 tank/c-top");
    live.ok("zfs snapshot tank/c-top@s");
    live.ok("zfs clone tank/c-top@s tank/d");
    live.ok("zfs snapshot tank/d@s");
    live.ok("zfs redact tank/c-top@s other tank/d@s");
    send("zfs send -i tank/src@1 --redact other tank/c-top@s");
    assert!(receive("zfs receive -u tank/less-d").err.contains("redacted by other snapshots"));
    live.ok("zfs redact tank/src@1 less tank/c-top@s tank/d@s");
    send("zfs send --redact less tank/src@1");
    received("zfs receive -u tank/more");
    send("zfs send -i tank/src@1 --redact other tank/c-top@s");
    received("zfs receive -u -o origin=tank/more@1 tank/more-d");
    live.export_and_verify("tank");
}
