//! Refused command lines, in the words of OpenZFS.

use super::live::Live;

/// Messages and exit codes are those of the kernel's OpenZFS 2.3.2.
#[test]
fn refusals_are_in_the_kernels_words() {
    let live = Live::new();
    let [a, b, spare] = ["a", "b", "c"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    live.ok("zfs create -s -V 4M tank/v");
    assert_eq!(live.ok("zpool get -H -o value,source readonly,bcloneused tank"), "off\t-\n0\t-\n");
    let nope = live.disks().join("nope").display().to_string();
    let unfit = "operation not applicable to datasets of this type";
    for (line, code, said) in [
        ("zfs rollback tank".to_owned(), 1, "cannot open 'tank': missing '@' delimiter in snapshot name".to_owned()),
        ("zfs rename tank/v q/a".to_owned(), 1, "cannot create 'q/a': no such pool 'q'".to_owned()),
        ("zfs mount tank/v".to_owned(), 1, format!("cannot open 'tank/v': {unfit}")),
        ("zfs userspace tank/v".to_owned(), 1, format!("cannot open 'tank/v': {unfit}")),
        ("zfs create -p tank".to_owned(), 0, String::new()),
        ("zfs create -p -V 4M tank/v".to_owned(), 0, String::new()),
        ("zfs create -p tank/v".to_owned(), 1, "cannot create 'tank/v': dataset already exists".to_owned()),
        ("zfs create -p nope".to_owned(), 1, "cannot create 'nope': missing dataset name".to_owned()),
        ("zfs destroy tank@a%b".to_owned(), 1, "could not find any snapshots to destroy; check snapshot names.".to_owned()),
        ("zfs destroy -r tank@%".to_owned(), 1, "could not find any snapshots to destroy; check snapshot names.".to_owned()),
        ("zfs destroy tank/none/x#nope".to_owned(), 1, "bookmark 'tank/none/x#nope' does not exist.".to_owned()),
        ("zfs destroy nope#nope".to_owned(), 1, "bookmark 'nope#nope' does not exist.".to_owned()),
        ("zfs destroy -n tank#nope".to_owned(), 255, "dryrun is not supported with bookmark".to_owned()),
        ("zpool create q b".to_owned(), 1, "cannot open 'b': no such device in /dev\nmust be a full path or shorthand device name".to_owned()),
        ("zpool create q ./b".to_owned(), 1, "cannot open './b': no such device in /dev\nmust be a full path or shorthand device name".to_owned()),
        ("zfs holds tank".to_owned(), 1, "'tank' is not a snapshot\nno datasets available".to_owned()),
        (format!("zpool create mirror {b}"), 1, "cannot create 'mirror': name is reserved\npool name may have been omitted".to_owned()),
        (format!("zpool create -o foo=1 q {b}"), 1, "property 'foo' is not a valid pool or vdev property".to_owned()),
        (format!("zpool create -O foo=1 q {b}"), 1, "property 'foo' is not a valid filesystem property".to_owned()),
        (format!("zpool create -o ashift=99 q {b}"), 1, "invalid 'ashift=99' property: only values between 9 and 16 are allowed.".to_owned()),
        (format!("zpool add tank {nope}"), 1, format!("cannot resolve path '{nope}'")),
        ("zpool get all nope".to_owned(), 1, "Cannot get properties of nope: no such pool available.".to_owned()),
        (format!("zpool online tank {b}"), 1, format!("couldn't find device \"{b}\" in pool \"tank\"")),
        (format!("zpool labelclear {a}"), 1, format!("{a} is a member (ACTIVE) of pool \"tank\"")),
        (format!("zpool labelclear {spare}"), 255, format!("failed to clear label for {spare}")),
        (format!("zpool labelclear {nope}"), 1, format!("failed to open {nope}: No such file or directory")),
        ("zpool import tank".to_owned(), 1, "cannot import 'tank': a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it a new name".to_owned()),
    ] {
        let run = live.run(&line);
        assert_eq!((run.code, run.err.trim_end()), (code, said.as_str()), "{line}");
    }
    live.export_and_verify("tank");
}

/// Errors in the words of a command are reported first, with OpenZFS's exit codes; also for unsupported
/// verbs.
#[test]
fn words_are_looked_at_first() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    for (line, code, why) in [
        ("zpool scrub none", 1, "cannot open 'none': no such pool"),
        ("zpool scrub -p tank", 0, ""),
        ("zpool scrub -s tank", 1, "cannot cancel scrubbing tank: there is no active scrub"),
        ("zpool ddtprune -p 5 none", 255, "cannot open 'none': no such pool"),
        ("zpool trim none", 255, "cannot open 'none': no such pool"),
        ("zpool checkpoint", 2, "missing pool argument\nusage:\n\tcheckpoint "),
        ("zpool remove tank /x", 1, "cannot remove /x: no such device in pool"),
        ("zpool detach tank /x", 255, "cannot detach /x: no such device in pool"),
        ("zpool replace tank /x /y", 255, "cannot replace /x with /y: no such device in pool"),
        ("zfs send tank/none@x", 1, "cannot open 'tank/none@x': dataset does not exist"),
        ("zfs send tank@x", 1, "cannot open 'tank@x': dataset does not exist"),
        ("zpool scrub -s -p tank", 2, "invalid option combination: -s and -p are mutually exclusive"),
        ("zpool scrub", 2, "missing pool name argument"),
        ("zpool resilver", 2, "missing pool name argument"),
        ("zpool remove tank a", 1, "cannot remove a: out of space"),
        ("zfs redact", 2, "too few arguments\nusage:\n\tredact <snapshot> <bookmark> <redaction_snapshot>"),
        ("zfs receive", 2, "missing snapshot argument"),
        ("zfs receive -c tank/new", 1, "cannot receive: failed to read from stream"),
    ] {
        let run = live.run(line);
        assert!(run.code == code && run.err.starts_with(why), "{line}: {}: {}", run.code, run.err);
    }
}
