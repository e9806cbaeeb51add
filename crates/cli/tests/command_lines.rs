//! Command lines that OpenZFS 2.4.4's `zpool` and `zfs` refuse, or carry out in part, compared with what they answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod live;

use std::fs;

use live::Live;

/// A word that OpenZFS ignores nowhere must not widen a command to all pools, and a wrong name must not keep it from the others.
#[test]
fn commands_on_several_pools_do_what_they_name() {
    let live = Live::new();
    for pool in ["p1", "p2"] {
        live.ok(&format!("zpool create -m none {pool} {}", live.disk(pool, 64)));
        live.ok(&format!("zfs create -o version=3 {pool}/a"));
    }
    live.ok(&format!("zpool create -d -m none p3 {}", live.disk("p3", 64)));
    let usage = "usage:\n\tupgrade ";
    live.answers(&[
        ("zfs upgrade -a p1/a", 2, usage),
        ("zfs upgrade -a -r p1", 2, usage),
        ("zfs upgrade -V 5", 2, usage),
        ("zfs upgrade -r", 2, usage),
        ("zfs upgrade -v p1", 2, usage),
        ("zfs upgrade -v -a", 2, usage),
    ]);
    assert_eq!(live.ok("zfs get -H -o value version p1/a p2/a"), "3\n3\n");

    let missing = "cannot open 'nope': no such pool\n";
    let two = format!("{missing}cannot open 'no/pool': invalid character '/' in pool name\n");
    live.answers(&[
        ("zpool sync p1 nope no/pool", 1, &two),
        ("zpool reopen nope p1", 1, missing),
        ("zpool resilver p2 nope", 1, missing),
        ("zpool scrub -w p1 p1", 0, ""),
        ("zpool scrub p2 nope", 1, missing),
        ("zpool upgrade nope p3", 1, missing),
    ]);
    live.ok("zpool wait -t scrub p2");
    for pool in ["p1", "p2"] {
        assert!(live.ok(&format!("zpool status {pool}")).contains("scrub repaired 0B"), "{pool}");
    }
    assert_eq!(live.ok("zpool get -H -o value feature@large_blocks p3"), "enabled\n");
    let begun = || {
        ["p1", "p2"].map(|pool| live.ok(&format!("zpool history -i {pool}")).matches("scan setup").count())
    };
    let before = begun();
    live.ok("zpool scrub -a -w p3");
    assert_eq!(begun(), before, "-a with a name scrubs that pool only");

    let run = live.run("zpool list -j p1 nope");
    let document: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, run.err.as_str()), (1, missing));
    assert_eq!(document["pools"]["p1"]["name"], "p1");

    live.ok("zpool export p2 p2");
    let folder = live.disks();
    live.ok(&format!("zpool import -d {} -o readonly=on p2", folder.display()));
    live.answers(&[("zfs upgrade p2", 0, ""), ("zpool export nope p2", 1, missing)]);
    assert_eq!(live.fails("zpool list p2"), "cannot open 'p2': no such pool\n");
}

#[test]
fn sets_of_features_are_read_from_any_file() {
    let live = Live::new();
    let (set, disk) = (live.disks().join("set"), live.disk("a", 64));
    let value = set.display();
    let create = format!("zpool create -m none -o compatibility={value} tank {disk}");
    fs::write(&set, "lz4_compress nope\n").unwrap();
    let unknown = "Error: invalid feature name(s) in local compatibility files: nope \n";
    live.answers(&[(&create, 1, unknown)]);
    fs::write(&set, "lz4_compress").unwrap();
    let unread = format!("Error: could not read/parse feature file(s): {value} \n");
    live.answers(&[(&create, 1, &unread)]);
    fs::write(&set, "lz4_compress\n").unwrap();
    live.answers(&[(&create, 0, "")]);
    assert_eq!(
        live.ok("zpool get -H -o value feature@lz4_compress,feature@blake3 tank"),
        "active\ndisabled\n"
    );
    fs::write(&set, "nope\n").unwrap();
    live.answers(&[(&format!("zpool set compatibility={value} tank"), 1, unknown)]);
}

#[test]
fn wrong_words_are_refused_in_openzfs_words() {
    let live = Live::new();
    let (disk, other) = (live.disk("a", 64), live.disk("b", 64));
    live.ok(&format!("zpool create -m none tank {disk}"));
    live.ok("zfs create tank/fs");
    live.ok("zfs create -V 1M tank/vol");
    live.ok("zfs snapshot tank/fs@s");
    let type_of =
        |name: &str| format!("cannot open '{name}': operation not applicable to datasets of this type\n");
    let at = |name: &str| format!("cannot open '{name}': snapshot delimiter '@' is not expected here\n");
    let failed = |said: String, name: &str| format!("{said}Failed to open dataset: {name}\n");
    let missing = "cannot open 'nope': dataset does not exist\n";
    let normal = "invalid vdev specification\nthe following errors must be manually repaired:\n\
                  at least one general top-level vdev must be specified\n";
    live.answers(&[
            ("zfs list -d x tank", 2, "x is not an integer\nusage:\n"),
            ("zfs get -d x used tank", 2, "x is not an integer\nusage:\n"),
            ("zfs list -d 99999999999 tank", 0, ""),
            ("zpool list -T x", 2, "usage:\n\tlist "),
            ("zfs rename tank/fs tank/fs", 0, ""),
            ("zfs rename -u -p tank/fs tank/g", 2, "-u and -p options are mutually exclusive\nusage:\n"),
            ("zfs rename -p -r tank/fs@s tank/fs@t", 2, "-p and -r options are mutually exclusive\nusage:\n"),
            (
                "zfs rename -r tank/fs tank/g",
                2,
                "source dataset for recursive rename must be a snapshot\nusage:\n",
            ),
            ("zfs rename -u tank/vol tank/w", 1, &type_of("tank/vol")),
            ("zfs rename -u tank/fs@s tank/fs@t", 1, &at("tank/fs@s")),
            ("zfs wait tank/vol", 1, &type_of("tank/vol")),
            ("zfs mount -R tank/vol", 2, &format!("{}usage:\n", type_of("tank/vol"))),
            ("zfs mount -R -a", 2, "no dataset provided\nusage:\n"),
            ("zfs mount -o ro", 2, "missing filesystem argument (specify -a for all)\nusage:\n"),
            ("zfs allow tank/fs@s", 255, &failed(at("tank/fs@s"), "tank/fs@s")),
            ("zfs allow -u root snapshot nope", 255, &failed(missing.to_owned(), "nope")),
            (
                "zfs load-key -aL file:///x",
                2,
                "alternate keylocation may only be 'prompt' with -r or -a\nusage:\n",
            ),
            ("zfs change-key nope", 2, missing),
            ("zfs receive -A nope", 2, missing),
            (
                "zfs set sharesmb=bogus tank",
                255,
                "cannot set property for 'tank': 'sharesmb' cannot be set to invalid options\n",
            ),
            ("zfs inherit canmount tank", 1, "'canmount' property cannot be inherited\n"),
            (
                "zfs inherit quota tank",
                1,
                "'quota' property cannot be inherited\nuse 'zfs set quota=none' to clear\nuse 'zfs inherit -S quota' to revert \
                 to received value\n",
            ),
            (
                "zfs inherit compression tank/fs@s",
                1,
                "cannot inherit compression for 'tank/fs@s': property doesn't apply to datasets of this type\n",
            ),
            (
                "zfs list tank//x",
                1,
                "cannot open 'tank//x': empty component or misplaced '@' or '#' delimiter in name\n",
            ),
            ("zfs destroy tank/\u{e4}", 1, "cannot open 'tank/\u{e4}': invalid character '\u{e4}' in name\n"),
            ("zpool list tank@a", 1, "cannot open 'tank@a': invalid character '@' in pool name\n"),
            ("zpool set comment=x tank nope", 22, "cannot find 'nope' in 'tank': device not in pool\n"),
            (
                &format!("zpool set size=1 tank {disk}"),
                1,
                &format!("cannot set property size for {disk} on tank: 'size' is readonly\n"),
            ),
            (
                "zpool remove tank no nope",
                1,
                "cannot remove no: no such device in pool\ncannot remove nope: no such device in pool\n",
            ),
            ("zpool import -n", 2, "-n or -X only meaningful with -F\nusage:\n"),
            ("zpool events mirror-1", 2, "invalid pool name 'mirror-1'\nusage:\n"),
            (&format!("zpool create -fn -m none q log {other}"), 1, normal),
            (&format!("zpool create -fn -m none q spare {other}"), 1, normal),
            (
                &format!("zpool create -m none -o user:p=v q {other}"),
                1,
                "property 'user:p' is not a valid pool or vdev property\n",
            ),
            (
                &format!("zpool create -m none -o listsnaps=on -o listsnapshots=on q {other}"),
                1,
                "cannot create 'q': property 'listsnapshots' specified multiple times\n",
            ),
            ("zpool status -c", 0, ""),
        ],
    );
    live.export_and_verify("tank");
}
