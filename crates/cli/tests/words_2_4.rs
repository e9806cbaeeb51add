//! Words, options and exit codes of `zfs` and `zpool`, compared with the sources of OpenZFS 2.4.4.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::process::Command;

use live::{Live, Run};

/// A pool `tank` without mounts.
fn pool() -> Live {
    let live = Live::new();
    let disk = live.disk("a", 128);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live
}

/// Runs lines and checks their exit codes and the begin of standard error; an empty text means no output.
fn said(live: &Live, lines: &[(&str, i32, &str)]) {
    for (line, code, err) in lines {
        let run = live.run(line);
        let fits = run.err.starts_with(err) && (!err.is_empty() || run.err.is_empty());
        assert!(run.code == *code && fits, "{line}: {}: {}", run.code, run.err);
    }
}

/// Runs a line with standard output as the shell's words say.
fn with_output(live: &Live, line: &str, output: &str) -> Run {
    let command = live.command(line);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec \"$0\" \"$@\" {output}")]).arg(command.get_program());
    shell.args(command.get_args()).current_dir(live.disks());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.output().unwrap().into()
}

#[test]
fn a_stream_that_cannot_be_written_is_an_error() {
    let live = pool();
    live.ok("zfs snapshot tank@a");
    let closed = "warning: cannot send 'tank@a': Bad file descriptor\n";
    let full = "warning: cannot send 'tank@a': No space left on device\n";
    for (line, output, code, err) in [
        ("zfs send tank@a", ">&-", 1, closed),
        ("zfs send -R tank@a", ">&-", 1, closed),
        ("zfs send -n tank@a", ">&-", 0, ""),
        ("zfs send tank@a", ">/dev/full", 1, full),
        ("zfs send tank@a", ">/dev/null", 0, ""),
        ("zfs send tank@a", "<>/dev/null >&0", 0, ""),
        ("zpool list", ">&-", 0, ""),
        ("zpool list", ">/dev/full", 1, "cannot write output: No space left on device\n"),
    ] {
        let run = with_output(&live, line, output);
        assert_eq!((run.code, run.err.as_str()), (code, err), "{line} {output}");
    }
    live.export_and_verify("tank");
}

#[test]
fn refusals_of_commands_on_datasets() {
    let live = pool();
    for line in [
        "zfs create tank/o",
        "zfs snapshot tank/o@both",
        "zfs snapshot tank/o@origin",
        "zfs clone tank/o@origin tank/c",
        "zfs snapshot tank/c@both",
        "zfs create -s -V 4M tank/v",
        "zfs snapshot tank/v@a",
    ] {
        live.ok(line);
    }
    let unfit = "operation not applicable to datasets of this type";
    let conflict = "cannot promote 'tank/c': conflicting snapshot 'both' from parent 'tank/o@origin'\n";
    let undetermined = "Unable to determine which snapshots to compare: invalid name\n";
    let unrelated = "Not an earlier snapshot from the same fs: invalid name\n";
    let later = "Unable to obtain diffs: \n   Not an earlier snapshot from the same fs\n";
    let no_tag = "cannot release hold from snapshot 'tank/o@both': no such tag on this dataset\n";
    let no_place = "cannot open 'tank/none': dataset does not exist\ncannot receive new filesystem stream: unable to \
                    restore to destination\n";
    said(
        &live,
        &[
            ("zfs promote tank/c", 1, conflict),
            ("zfs hold", 2, "usage:\n\thold [-r] <tag> <snapshot> ...\n"),
            ("zfs hold a", 2, "usage:\n\thold [-r] <tag> <snapshot> ...\n"),
            ("zfs release a", 2, "usage:\n\trelease [-r] <tag> <snapshot> ...\n"),
            ("zfs hold .a tank/o@both", 2, "tag may not start with '.'\nusage:\n"),
            ("zfs release .a tank/o@both", 1, no_tag),
            ("zfs hold -t a tank/o@both", 0, ""),
            ("zfs release a tank/o@both", 0, ""),
            ("zfs diff", 2, "must provide at least one snapshot name\nusage:\n"),
            ("zfs diff @both", 2, "usage:\n"),
            ("zfs diff none@a", 1, "cannot open 'none': dataset does not exist\n"),
            ("zfs diff tank/none@a", 1, "cannot open 'tank/none': dataset does not exist\n"),
            ("zfs diff tank/v@a", 1, &format!("cannot open 'tank/v': {unfit}\n")),
            (
                "zfs diff tank/o",
                1,
                "Badly formed snapshot name tank/o: missing '@' delimiter in snapshot name\n",
            ),
            ("zfs diff tank/o tank/o@both", 1, undetermined),
            ("zfs diff tank/o@both tank/o@", 1, undetermined),
            ("zfs diff tank/c@both tank/o@both", 1, unrelated),
            ("zfs diff tank/o@origin tank/o@both", 1, later),
            ("zfs diff tank/o@both tank/o@origin", 0, ""),
            ("zfs diff @both tank/o@origin", 0, ""),
            ("zfs diff tank/o@origin tank/c", 0, ""),
        ],
    );
    let stream = live.dir.path().join("stream");
    let sent = live.command("zfs send tank/o@both").output().unwrap();
    std::fs::write(&stream, sent.stdout).unwrap();
    let mut receive = live.command("zfs receive tank/none/new");
    let run = Run::from(receive.stdin(std::fs::File::open(&stream).unwrap()).output().unwrap());
    assert_eq!((run.code, run.err.as_str()), (1, no_place));
    live.export_and_verify("tank");
}

#[test]
fn keys_of_several_datasets_are_loaded() {
    let live = pool();
    let key = live.dir.path().join("key");
    std::fs::write(&key, "a pass phrase\n").unwrap();
    for name in ["tank/a", "tank/b"] {
        let location = format!("file://{}", key.display());
        live.ok(&format!(
            "zfs create -o encryption=on -o keyformat=passphrase -o keylocation={location} {name}"
        ));
    }
    live.ok("zfs create tank/open");
    assert_eq!(live.ok("zfs load-key -a"), "");
    live.ok("zfs unload-key tank/a tank/b");
    assert_eq!(live.ok("zfs load-key -n tank/a"), "1 / 1 key(s) successfully verified\n");
    said(
        &live,
        &[
            ("zfs load-key", 2, "Missing dataset argument or -a option\nusage:\n"),
            ("zfs unload-key", 2, "Missing dataset argument or -a option\nusage:\n"),
            ("zfs load-key -a tank", 2, "Cannot specify dataset with -a option\nusage:\n"),
            ("zfs unload-key tank/open", 255, "Key unload error: 'tank/open' is not encrypted.\n"),
            ("zfs load-key tank/none tank/a", 1, "cannot open 'tank/none': dataset does not exist\n"),
            ("zfs load-key tank/open tank/b", 255, "Key load error: 'tank/open' is not encrypted.\n"),
        ],
    );
    let status = live.ok("zfs get -H -o value keystatus tank/a tank/b");
    assert_eq!(status, "available\navailable\n");
    assert_eq!(live.ok("zfs unload-key -a"), "2 / 2 key(s) successfully unloaded\n");
    live.export_and_verify("tank");
}

#[test]
fn refusals_and_hidden_options_of_commands_on_pools() {
    let live = pool();
    let b = live.disk("b", 64);
    live.ok(&format!("zpool create -O mountpoint=none other {b}"));
    let words = format!("{}/a {b} other unknown", live.disks().display());
    let list = format!(
        "Expected a list of vdevs in \"tank\", but got:\n\t{}/a (vdev in this pool)\n\t{b} (vdev in another pool)\n\tother \
         (pool)\n\tunknown (unknown)\n\nusage:\n",
        live.disks().display()
    );
    let rewinds = "-n or -X only meaningful with -F\nusage:\n\tclear [-Fn] [--power] <pool> [device]\n";
    said(
        &live,
        &[
            (&format!("zpool get size tank {words}"), 2, &list),
            ("zpool clear -n tank", 2, rewinds),
            ("zpool clear -X tank", 2, rewinds),
            ("zpool clear -nFX tank", 0, ""),
            ("zpool clear -FX tank", 0, ""),
            ("zpool clear --power tank", 0, ""),
        ],
    );
    let run = live.run(&format!("zpool import -CE -d {}", live.disks().display()));
    assert_eq!((run.code, run.err.as_str()), (0, "no pools available to import\n"));
    live.ok("zpool export other");
    live.export_and_verify("tank");
}
