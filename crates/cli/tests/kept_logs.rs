//! An intent log that can't be replayed, from the command line: the message of the mount, the content under
//! `-o ro` and `readonly=on`, and discarding the log.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::path::Path;

use live::Live;

const LINES: [&str; 2] = ["TX_REMOVE", "TX_WRITE"];

/// The forged pool, imported without mounts; `None`, with a notice, where nothing can be mounted.
fn imported(live: &Live) -> Option<String> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return None;
    }
    testkit::kept_log::forge(&live.disks(), "wpool");
    let at = live.dir.path().join("mnt").display().to_string();
    live.ok(&format!("zpool import -f -N -d {} wpool", live.disks().display()));
    // The property is set; the file system cannot be mounted there.
    let set = live.run(&format!("zfs set mountpoint={at} wpool"));
    assert!(set.code == 0 && set.err.contains("cannot be replayed"), "{}: {}", set.code, set.err);
    Some(at)
}

fn content(at: &str) -> Vec<u8> {
    let bytes = std::fs::read(Path::new(at).join("file")).unwrap();
    [0, 1000, 2000].map(|place| bytes[place]).to_vec()
}

#[test]
fn a_log_with_a_bad_record_is_shown_listed_and_given_up() {
    let live = Live::new();
    let Some(at) = imported(&live) else { return };
    let said = live.fails("zfs mount wpool");
    if said.contains("not permitted") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {said}");
        return;
    }
    assert!(said.contains("2 records of its intent log wait; 'zfs discard-log' gives them up"), "{said}");
    assert!(said.contains("REMOVE"), "{said}");
    // The other file system is not concerned: it was mounted when its mountpoint was set.
    live.ok("zfs unmount wpool/other");
    // All but the bad record is shown, by an option and by the property; nothing of it is written.
    live.ok("zfs mount -o ro wpool");
    assert_eq!(content(&at), [2, 3, 1]);
    assert!(std::fs::write(Path::new(&at).join("file"), b"x").is_err());
    live.ok("zfs unmount wpool");
    live.ok("zfs set readonly=on wpool");
    live.ok("zfs mount wpool");
    assert_eq!(content(&at), [2, 3, 1]);
    live.ok("zfs unmount wpool");
    live.ok("zfs inherit readonly wpool");
    assert!(live.fails("zfs mount wpool").contains("discard-log"));
    // Listed, then given up.
    for (line, end) in
        [("zfs discard-log -n wpool", "2 records wait"), ("zfs discard-log wpool", "2 records are lost")]
    {
        let told = live.ok(line);
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines.iter().zip(LINES).all(|(line, kind)| line.starts_with(kind)), "{told}");
        assert!(told.contains("never was") && lines.last() == Some(&end), "{told}");
    }
    assert_eq!(live.ok("zfs discard-log wpool"), "0 records are lost\n");
    live.ok("zfs mount wpool");
    assert_eq!(content(&at), [2, 1, 1]);
    std::fs::write(Path::new(&at).join("new"), b"x").unwrap();
    assert!(live.fails("zfs discard-log wpool@none").contains("wpool@none"));
    live.export_and_verify("wpool");
}
