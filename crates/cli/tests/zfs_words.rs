//! Words and exit codes of `zfs` and `zpool` that programs look for, compared with the sources of OpenZFS 2.4.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::time::Duration;

use live::Live;

/// The length of the last record of a stream.
const RECORD: usize = 312;

/// A pool `tank` without mounts.
fn pool() -> Live {
    let live = Live::new();
    let disk = live.disk("a", 128);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live
}

/// zrepl looks for the first, and takes the names of the snapshots that stay from the others.
#[test]
fn snapshots_that_cannot_be_destroyed_together_are_all_named() {
    let live = pool();
    let run = live.run("zfs destroy");
    assert!(run.code == 2 && run.err.contains("<filesystem|volume>@<snap>[%<snap>][,...]"), "{}", run.err);
    live.ok("zfs create tank/a");
    for name in ["1", "2", "3", "4"] {
        live.ok(&format!("zfs snapshot tank/a@{name}"));
    }
    live.ok("zfs hold keep tank/a@2 tank/a@4");
    let held = |name: &str| {
        format!(
            "cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see holders.\n"
        )
    };
    let both = [held("tank/a@2"), held("tank/a@4")].concat();
    assert_eq!(live.fails("zfs destroy tank/a@1,2,3,4"), both);
    assert_eq!(live.fails("zfs destroy -r tank@2,4"), both);
    assert_eq!(live.ok("zfs list -H -o name -t snapshot"), "tank/a@1\ntank/a@2\ntank/a@3\ntank/a@4\n");
    live.ok("zfs destroy tank/a@1,none,3");
    live.ok("zfs release keep tank/a@2 tank/a@4");
    live.ok("zfs clone tank/a@2 tank/c");
    live.ok("zfs clone tank/a@4 tank/d");
    let cloned = "cannot destroy 'tank/a@2': snapshot has dependent clones\nuse '-R' to destroy the following datasets:\n\
                  tank/c\ncannot destroy 'tank/a@4': snapshot has dependent clones\nuse '-R' to destroy the following \
                  datasets:\ntank/d\n";
    live.answers(&[
        ("zfs destroy tank/a@2,4", 1, cloned),
        ("zfs destroy tank/a@", 1, "could not find any snapshots to destroy; check snapshot names.\n"),
        ("zfs destroy -d tank/a", 1, "cannot open 'tank/a': missing '@' delimiter in snapshot name\n"),
    ]);
    live.export_and_verify("tank");
}

#[test]
fn a_destroy_tells_the_space_of_snapshots_only() {
    let live = pool();
    live.ok("zfs create tank/a");
    for name in ["1", "2"] {
        live.ok(&format!("zfs snapshot -r tank@{name}"));
    }
    live.ok("zfs clone tank/a@2 tank/c");
    let list = "would destroy tank@1\nwould destroy tank/a@1\nwould reclaim 0B\n";
    assert_eq!(live.ok("zfs destroy -rnv tank@1"), list);
    assert_eq!(
        live.ok("zfs destroy -nv tank@%"),
        "would destroy tank@1\nwould destroy tank@2\nwould reclaim 0B\n"
    );
    assert_eq!(live.ok("zfs destroy -np tank@1%2"), "destroy\ttank@1\ndestroy\ttank@2\nreclaim\t0\n");
    assert_eq!(live.ok("zfs destroy -n tank@1"), "");
    assert_eq!(live.ok("zfs destroy -Rnp tank/a@2"), "destroy\ttank/c\ndestroy\ttank/a@2\nreclaim\t0\n");
    assert_eq!(live.ok("zfs destroy -nv tank/c"), "would destroy tank/c\n");
    live.ok("zfs destroy tank/c");
    let list = "destroy\ttank/a@1\ndestroy\ttank/a@2\ndestroy\ttank/a\n";
    assert_eq!(live.ok("zfs destroy -rnp tank/a"), list);
    live.ok("zfs destroy tank/a@1,2");
    live.ok("zfs destroy tank/a");
    // Without the word "reclaim": the pool's own file system is a file system, too.
    assert_eq!(live.ok("zfs destroy -rnv tank"), "would destroy tank@1\nwould destroy tank@2\n");
    live.export_and_verify("tank");
}

#[test]
fn snapshots_of_nothing_are_refused_with_the_usage() {
    let live = pool();
    live.ok("zfs snapshot tank@a");
    live.ok("zfs create tank/b");
    live.ok("zfs snapshot tank/b@a");
    let usage = "usage:\n\tsnapshot [-r] [-o property=value] ... <snapshot> ...\n";
    live.answers(&[
            (
                "zfs snapshot tank/none@x",
                2,
                &format!("cannot open 'tank/none': dataset does not exist\n{usage}"),
            ),
            ("zfs snapshot none@x", 2, &format!("cannot open 'none': dataset does not exist\n{usage}")),
            ("zfs snapshot tank", 2, usage),
            ("zfs snapshot tank@a", 1, "cannot create snapshot 'tank@a': dataset already exists\n"),
            (
                "zfs snapshot -r tank@a",
                1,
                "cannot create snapshot 'tank/b@a': dataset already exists\ncannot create snapshot 'tank@a': dataset already \
                 exists\nno snapshots were created\n",
            ),
            ("zfs snapshot tank@x/y", 1, "cannot create snapshot 'tank@x/y': trailing slash in name\n"),
            (
                "zfs snapshot -o compression=on tank@x",
                1,
                "cannot create snapshots : this property can not be modified for snapshots\n",
            ),
        ],
    );
    live.export_and_verify("tank");
}

#[test]
fn sharing_takes_openzfs_words() {
    let live = pool();
    live.ok("zfs create -s -V 4M tank/v");
    for line in ["share -a", "share -a nfs", "share -l -a smb", "unshare -a", "unshare -a nfs"] {
        assert_eq!(live.ok(&format!("zfs {line}")), "", "{line}");
    }
    for (line, code, why) in [
        (
            "zfs share",
            2,
            "missing filesystem argument (specify -a for all)\nusage:\n\tshare [-l] <-a [nfs|smb] | filesystem>\n",
        ),
        ("zfs share -a tank", 2, "share type must be one of: nfs, smb\nusage:\n\tshare"),
        ("zfs share -a nfs tank", 2, "too many arguments\nusage:\n\tshare"),
        ("zfs share nfs tank", 2, "too many arguments\nusage:\n\tshare"),
        ("zfs share none", 1, "cannot open 'none': dataset does not exist\n"),
        ("zfs share tank/v", 1, "cannot open 'tank/v': operation not applicable to datasets of this type\n"),
        (
            "zfs share tank",
            1,
            "cannot share 'tank': legacy share\nuse exports(5) or smb.conf(5) to share this filesystem, or set the sharenfs or \
             sharesmb property\n",
        ),
        (
            "zfs unshare",
            2,
            "missing filesystem argument\nusage:\n\tunshare <-a [nfs|smb] | filesystem|mountpoint>\n",
        ),
        (
            "zfs unshare tank",
            1,
            "cannot unshare 'tank': legacy share\nuse exports(5) or smb.conf(5) to unshare this filesystem\n",
        ),
        ("zfs unshare /none", 1, "cannot unshare '/none': not a ZFS filesystem\n"),
    ] {
        let run = live.run(line);
        assert!(run.code == code && run.err.starts_with(why), "{line}: {}: {}", run.code, run.err);
    }
    live.ok("zfs set sharenfs=on tank");
    live.answers(&[
        ("zfs share tank", 1, "zfs share: not supported yet: sharing over NFS or SMB\n"),
        ("zfs unshare tank", 1, "cannot unshare 'tank': not currently shared\n"),
    ]);
}

#[test]
fn values_are_refused_in_openzfs_words() {
    let live = pool();
    live.ok("zfs snapshot tank@a");
    live.ok("zfs create -s -V 4M tank/v");
    for (words, why) in [
        ("recordsize=3k tank", "'recordsize' must be power of 2 from 512B to 16M"),
        ("recordsize=none tank", "'recordsize' must be power of 2 from 512B to 16M"),
        (
            "compression=foo tank",
            "'compression' must be one of 'on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | zstd-fast | \
             zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]'",
        ),
        ("quota=bad tank", "bad numeric value 'bad'"),
        ("quota=1X tank", "invalid numeric suffix 'X'"),
        ("quota=0 tank", "use 'none' to disable quota/refquota"),
        ("quota=auto tank", "'auto' is invalid value for 'quota'"),
        ("refreservation=auto tank", "'refreservation=auto' only allowed on volumes"),
        ("mountpoint=rel tank", "'mountpoint' must be an absolute path, 'none', or 'legacy'"),
        ("readonly=on tank@a", "this property can not be modified for snapshots"),
        ("foo=1 tank@a", "this property can not be modified for snapshots"),
        ("foo=1 tank", "invalid property 'foo'"),
        ("used=1 tank", "'used' is readonly"),
        ("utf8only=on tank", "'utf8only' is readonly"),
        ("written@a=1 tank", "'written@a' is readonly"),
        ("atime=maybe tank", "'atime' must be one of 'on | off'"),
        ("copies=4 tank", "'copies' must be one of '1 | 2 | 3'"),
        ("atime=on tank/v", "'atime' does not apply to datasets of this type"),
        ("volsize=1 tank/v", "'volsize' must be a multiple of volume block size (16K)"),
        ("volsize=0 tank/v", "'volsize' cannot be zero"),
        (
            "special_small_blocks=17M tank",
            "invalid 'special_small_blocks' property: must be between zero and 16M",
        ),
        ("keylocation=x tank", "invalid keylocation"),
        ("keylocation=prompt tank", "keylocation must be 'none' for unencrypted datasets"),
        ("mlslabel=x tank", "mlslabels are unsupported"),
        ("userquota@no_such_user=1 tank", "'userquota@no_such_user' has an invalid user/group name"),
        ("userused@0=1 tank", "'userused@0' is readonly"),
        ("version=4 tank", "Can not downgrade; already at version 5"),
    ] {
        let run = live.run(&format!("zfs set {words}"));
        let name = words.split(' ').nth(1).unwrap();
        let expected = format!("cannot set property for '{name}': {why}\n");
        assert_eq!((run.code, run.err), (255, expected), "{words}");
    }
    for (words, code, why) in [
        ("", 2, "missing arguments\nusage:\n\tset [-u] "),
        ("atime=on", 2, "missing dataset name(s)\nusage:\n\tset [-u] "),
        ("tank", 2, "missing property=value argument(s)\nusage:\n\tset [-u] "),
        ("atime=on tank atime=off", 2, "invalid argument order\nusage:\n\tset [-u] "),
        ("atime=on atime=off tank tank/v", 255, "property 'atime' specified multiple times\n"),
        ("atime=on none", 1, "cannot open 'none': dataset does not exist\n"),
    ] {
        let run = live.run(&format!("zfs set {words}"));
        assert!(run.code == code && run.err.starts_with(why), "{words}: {}: {}", run.code, run.err);
    }
    live.export_and_verify("tank");
}

#[test]
fn words_that_are_not_utf8_are_refused_as_such() {
    let live = pool();
    let word = OsStr::from_bytes(b"tank/caf\xe9");
    for line in [
        "zfs",
        "zfs list",
        "zfs get all",
        "zfs create",
        "zfs destroy",
        "zfs snapshot",
        "zfs set atime=on",
        "zfs mount",
        "zfs program tank",
        "zfs receive",
        "zpool",
        "zpool status",
        "zpool list",
        "zpool import",
        "zpool add tank",
        "zdb",
        "ls",
        "",
    ] {
        let run = live.command(line).arg(word).output().unwrap();
        let err = String::from_utf8_lossy(&run.stderr);
        assert!(matches!(run.status.code(), Some(1 | 2 | 255)), "{line}: {:?}: {err}", run.status);
        assert!(!err.is_empty() && !err.contains("panicked"), "{line}: {err}");
    }
    live.ok("zfs list tank");
}

#[test]
fn channel_programs_are_refused() {
    let live = pool();
    let usage = "usage:\n\tprogram [-jn] [-t <instruction limit>] [-m <memory limit (b)>]\n\t    <pool> <program file> [lua args...]\n";
    live.answers(&[
        ("zfs program tank", 2, &format!("invalid number of arguments\n{usage}")),
        ("zfs program -t x tank /dev/null", 2, &format!("invalid argument 'x': expected integer\n{usage}")),
        ("zfs program tank /dev/null", 1, "zfs program: not supported yet: channel programs\n"),
    ]);
}

#[test]
fn a_dataset_that_is_being_received_is_busy() {
    let live = pool();
    live.ok("zfs create -s -V 4M tank/v");
    live.ok("zfs snapshot tank/v@1");
    live.ok("zfs snapshot tank/v@2");
    let stream = |line: &str| live.command(line).output().unwrap().stdout;
    let (full, more) = (stream("zfs send tank/v@1"), stream("zfs send -i @1 tank/v@2"));
    // Begins to receive a stream, without its last record.
    let begun = |line: &str, stream: &[u8], is_begun: &dyn Fn() -> bool| {
        let mut child = live.command(line).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(&stream[..stream.len() - RECORD]).unwrap();
        while !is_begun() {
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    };
    let second = |line: &str, stream: &[u8]| {
        let mut child = live.command(line).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A refused receive reads no more.
        let _ = child.stdin.as_mut().unwrap().write_all(stream);
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let exists = || live.run("zfs list tank/x").code == 0;
    let mut first = begun("zfs receive tank/x", &full, &exists);
    let why = "cannot receive new filesystem stream: destination 'tank/x' exists\nmust specify -F to overwrite it\n";
    assert_eq!(second("zfs receive tank/x", &full), (Some(1), why.to_owned()));
    let why = "cannot receive new filesystem stream: dataset is busy\n";
    assert_eq!(second("zfs receive -F tank/x", &full), (Some(1), why.to_owned()));
    assert_eq!(live.fails("zfs destroy tank/x"), "cannot destroy 'tank/x': dataset is busy\n");
    first.stdin.take().unwrap().write_all(&full[full.len() - RECORD..]).unwrap();
    assert!(first.wait().unwrap().success());
    // The received dataset is a clone of the snapshot.
    let has_clone = || live.run("zfs destroy -n tank/x@1").code != 0;
    for (line, why) in [
        ("zfs receive tank/x", "dataset is busy\n"),
        (
            "zfs receive -s tank/x",
            "destination tank/x contains partially-complete state from \"zfs receive -s\".\n",
        ),
    ] {
        let mut first = begun(line, &more, &has_clone);
        let busy = format!("cannot receive incremental stream: {why}");
        assert_eq!(second("zfs receive tank/x", &more), (Some(1), busy), "{line}");
        drop(first.stdin.take());
        assert!(!first.wait().unwrap().success());
    }
}

#[test]
fn removed_vdevs_are_listed_with_the_others() {
    let live = pool();
    let second = live.disk("b", 512);
    live.ok(&format!("zpool add tank {second}"));
    live.ok("zpool remove -w tank a");
    let removed = |line: &str| {
        let out = live.ok(line);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        out.lines().find(|line| line.contains("indirect-0")).map(words)
    };
    assert_eq!(removed("zpool iostat -Hv tank").unwrap(), ["indirect-0", "-", "-", "0", "0", "0", "0"]);
    assert!(removed("zpool list -v tank").is_some() && removed("zpool status tank").is_none());
    live.export_and_verify("tank");
}
