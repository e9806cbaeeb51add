//! `zfs receive` in a daemon: messages, properties, the kept part of a stream that breaks off.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test must say so")]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use engine::env::Env;
use engine::sa::SaTables;
use engine::spa::OpenOptions;
use engine::zap::Zap;
use nvpair::{NvList, NvValue};
use ondisk::Endian;
use ondisk::names::master_node;
use testkit::big_endian;
use testkit::golden::{self, Covers};
use testkit::hostile::streams::{encode, items};
use testkit::live::{Live, Run};
use testkit::manifest::Record;
use testkit::streams::assert_same;
use testkit::tree::{self, Tree};
use zutil::import::open_pool;

/// Runs a line with a file as standard input.
fn fed(live: &Live, line: &str, stream: &Path) -> Run {
    let file = File::open(stream).expect("a stream");
    live.command(line).stdin(Stdio::from(file)).output().expect("it can be started").into()
}

#[test]
fn streams_are_received_as_openzfs_says() {
    let Some(pool) = golden::get("streams") else { return };
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    live.ok(&format!("zpool create -m none tank {}", live.disk("d1", 512)));
    let stream = |name: &str| pool.dir.join(format!("{name}.zstream"));
    let said = |line: &str, name: &str, code: i32, begins: &str| {
        let run = fed(&live, line, &stream(name));
        let text = format!("{}{}", run.out, run.err);
        assert!(run.code == code && text.starts_with(begins), "{line}: {}: {text}", run.code);
    };
    said(
        "zfs receive -vu tank/src",
        "full-a",
        0,
        "receiving full stream of tank/src@a into tank/src@a\nreceived 4.18M stream",
    );
    let exists = "cannot receive new filesystem stream: destination 'tank/src' exists\nmust specify -F to overwrite it\n";
    said("zfs receive -u tank/src", "full-a", 1, exists);
    said(
        "zfs receive -vu tank/src",
        "incr-a-b",
        0,
        "receiving incremental stream of tank/src@b into tank/src@b\n",
    );
    said(
        "zfs receive -vu tank/src",
        "incr-a-b",
        0,
        "receiving incremental stream of tank/src@b into tank/src@b\nsnap tank/src@b already exists; ignoring\n",
    );
    // Another snapshot of that name.
    live.ok("zfs destroy tank/src@b");
    live.ok("zfs snapshot tank/src@b");
    said(
        "zfs receive -u tank/src",
        "incr-a-b",
        1,
        "cannot restore to tank/src@b: destination already exists\n",
    );
    live.ok("zfs destroy tank/src@b");
    said("zfs receive -F -u tank/src", "incr-a-b", 0, "");
    let missing = "cannot receive incremental stream: destination 'tank/none' does not exist\n";
    said("zfs receive -u tank/none", "incr-a-b", 1, missing);
    said(
        "zfs receive -u -d tank/none",
        "full-a",
        1,
        "cannot receive: specified fs (tank/none) does not exist\n",
    );
    said(
        "zfs receive -vnu tank/dry",
        "full-a",
        0,
        "would receive full stream of tank/src@a into tank/dry@a\n",
    );
    said("zfs receive -u -o compression=gzip tank/props", "props-b", 0, "");
    let shown = live.ok("zfs get -H -o property,value,source compression,recordsize tank/props");
    assert_eq!(shown, "compression\tgzip\tlocal\nrecordsize\t128K\treceived\n");
    live.ok("zfs inherit -S compression tank/props");
    let shown = live.ok("zfs get -H -o value,source compression tank/props");
    assert_eq!(shown, "lz4\treceived\n");

    // Corrective receives of a snapshot that is not damaged.
    let corrective = "receiving corrective full stream of tank/src@a into tank/src@a\nreceived 4.18M stream";
    said("zfs receive -vc tank/src@a", "full-a", 0, corrective);
    let begins = "cannot receive new filesystem stream: ";
    let no_snapshot = format!("{begins}corrective recv must specify an existing snapshot to heal\n");
    said("zfs receive -c tank/src@none", "full-a", 1, &no_snapshot);
    let other = format!("{begins}local snapshot doesn't match the snapshot in the provided stream\n");
    said("zfs receive -c tank/src@b", "full-a", 1, &other);
    let flag = format!("{begins}corrective recv can not be used when combined with this flag\n");
    said("zfs receive -c -F tank/src@a", "full-a", 1, &flag);

    let part = live.disks().join("part");
    let whole = std::fs::read(stream("full-a")).unwrap();
    std::fs::write(&part, &whole[..2_000_000]).unwrap();
    let run = fed(&live, "zfs receive -u tank/part", &part);
    assert!(run.code == 1 && run.err.contains("incomplete stream (record 117"), "{}", run.err);
    assert!(!live.ok("zfs list -H -o name").contains("part"));
    let run = fed(&live, "zfs receive -s -u tank/part", &part);
    assert!(
        run.err.contains("Partially received snapshot is saved.") && run.err.contains("zfs send -t 1-"),
        "{}",
        run.err
    );
    assert!(live.ok("zfs get -H -o value receive_resume_token tank/part").starts_with("1-"));
    live.ok("zfs receive -A tank/part");
    let none = "'tank/src' does not have any resumable receive state to abort\n";
    assert_eq!(live.fails("zfs receive -A tank/src"), none);
    // A quota holds from the beginning.
    let exceeded = "cannot receive new filesystem stream: destination tank/tight space quota exceeded.";
    said("zfs receive -u -o quota=500K tank/tight", "full-a", 1, exceeded);
    assert!(live.fails("zfs list tank/tight").contains("does not exist"));
    live.export_and_verify("tank");
}

/// Sends with `line` into a new file.
fn sent(live: &Live, line: &str, to: &Path) {
    let file = File::create(to).expect("a file");
    let run: Run = live.command(line).stdout(Stdio::from(file)).output().expect("it can be started").into();
    assert_eq!(run.code, 0, "{line}: {}", run.err);
}

/// Keys need not be loaded for raw streams, streams with properties are not encrypted by where they arrive, a slight excess
/// of the refquota is kept, and the END of a package has sums of any kind.
#[test]
fn streams_that_openzfs_receives_are_received() {
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    let dir = tempfile::tempdir().expect("a folder");
    let (key, stream) = (dir.path().join("key"), dir.path().join("stream"));
    std::fs::write(&key, "a passphrase").expect("a file");
    live.ok(&format!("zpool create -m none tank {}", live.disk("d1", 256)));
    let key = key.display();
    live.ok(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://{key} tank/locked"
    ));
    live.ok("zfs create -o encryption=off tank/plain");
    live.ok("zfs snapshot -r tank@s");
    sent(&live, "zfs send -w tank/locked@s", &stream);
    let mountpoint = dir.path().join("mnt");
    let run = fed(&live, &format!("zfs receive -o mountpoint={} tank/raw", mountpoint.display()), &stream);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    assert_eq!(live.ok("zfs get -H -o value mounted,keystatus tank/raw"), "no\nunavailable\n");

    sent(&live, "zfs send -p tank/plain@s", &stream);
    live.ok("zfs unload-key tank/locked");
    let run = fed(&live, "zfs receive -u tank/locked/plain", &stream);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert_eq!(live.ok("zfs get -H -o value encryption tank/locked/plain"), "off\n");
    let run = fed(&live, "zfs receive -u -x encryption tank/locked/asked", &stream);
    assert!(run.code == 1 && run.err.contains("inherited key must be loaded"), "{}", run.err);
    let run = fed(&live, "zfs receive -u -x atime -x atime tank/twice", &stream);
    assert!(run.code != 0 && run.err.contains("specified multiple times"), "{}", run.err);

    live.ok("zfs create tank/src");
    live.ok("zfs snapshot tank/src@1");
    sent(&live, "zfs send -R tank/src@1", &stream);
    assert_eq!(fed(&live, "zfs receive -u tank/dst", &stream).code, 0);
    live.ok("zfs set refquota=30K tank/dst");
    live.ok("zfs set user:note=1 tank/src");
    live.ok("zfs snapshot tank/src@2");
    let over = live.ok("zfs get -Hp -o value referenced tank/dst").trim().parse::<u64>().expect("a number");
    live.ok(&format!("zfs set refquota={} tank/dst", over + 512));
    sent(&live, "zfs send -R -I @1 tank/src@2", &stream);
    let run = fed(&live, "zfs receive -u tank/dst", &stream);
    assert_eq!((run.code, run.err.as_str()), (0, ""));

    // As zstream redup does with the last record: it gets a checksum of all.
    let mut bytes = std::fs::read(&stream).expect("a stream");
    let last = bytes.len() - 8;
    bytes[last..].copy_from_slice(&7u64.to_le_bytes());
    std::fs::write(&stream, bytes).expect("a file");
    live.ok("zfs rollback -r tank/dst@1");
    assert_eq!(fed(&live, "zfs receive -u tank/dst", &stream).code, 0);
    live.export_and_verify("tank");
}

/// Packages of `-R` and `-I` of a big-endian system.
#[test]
fn packages_of_a_big_endian_system_are_received() {
    let Some(golden) = golden::get("streams") else { return };
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    let dir = tempfile::tempdir().expect("a folder");
    let opened = golden.open().expect("the pool");
    let mut tables = BTreeMap::new();
    for name in
        ["tank/src@a", "tank/src@b", "tank/src@c", "tank/src/kid@a", "tank/src/kid@b", "tank/src/kid@c"]
    {
        let objset = opened.dsl.dataset(name).expect("a snapshot").objset().expect("its objects");
        let master = Zap::open(&objset.object(1).expect("a master node")).expect("a ZAP");
        let attrs = master.lookup(master_node::SA_ATTRS.as_bytes()).expect("read").expect("attributes");
        tables.insert(name, SaTables::load(&objset, attrs.first().expect("a number")).expect("the tables"));
    }
    let turned = |name: &str| {
        let stream = std::fs::read(golden.dir.join(format!("{name}.zstream"))).expect("a golden stream");
        let turned = big_endian::of_package(&stream, &|snapshot| tables.get(snapshot));
        let path = dir.path().join(name);
        std::fs::write(&path, turned).expect("a file");
        path
    };
    live.ok(&format!("zpool create -m none tank {}", live.disk("d1", 256)));
    for (name, target) in [("replicate-c", "all"), ("full-a", "steps"), ("multi-a-c", "steps")] {
        let run = fed(&live, &format!("zfs receive -u tank/{target}"), &turned(name));
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{name}: {}", run.out);
    }
    let raw = golden::get("raw-received").map(|raw| raw.dir.join("raw-R-b.zstream"));
    if let Some(raw) = raw.as_deref().map(std::fs::read) {
        let path = dir.path().join("raw");
        std::fs::write(&path, big_endian::of(&raw.expect("a golden stream"), None)).expect("a file");
        let run = fed(&live, "zfs receive -u tank/raw", &path);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
        assert_eq!(live.ok("zfs get -H -o value keystatus tank/raw"), "unavailable\n");
    }
    let guids = |top: &str| {
        let text = live.ok(&format!("zfs list -H -r -t snapshot -o name,guid tank/{top}"));
        text.replace(&format!("tank/{top}"), "")
    };
    assert!(guids("all").starts_with(&guids("steps")), "{} {}", guids("all"), guids("steps"));
    assert_eq!(guids("all").lines().count(), 6);
    live.export_and_verify("tank");
    let env = Env::system(64 << 20).expect("a world");
    let ours = open_pool(&env, &[live.disks()], "tank", OpenOptions::default()).expect("the pool opens");
    for (manifest, name) in [
        ("at-a", "tank/steps@a"),
        ("at-b", "tank/steps@b"),
        ("at-b", "tank/all@b"),
        ("kid-at-c", "tank/all/kid@c"),
    ] {
        let covers = Covers { dataset: name.into(), recursive: false, checkpoint: false };
        let excuse = |path: &[u8], have: &mut Record, want: &Record| {
            tree::excuse_golden(&format!("streams/{manifest}"), path, have, want);
        };
        let wanted = golden.manifest(manifest).expect("a manifest");
        let found = Tree::read(&ours, &covers).expect("every file").differences(manifest, &wanted, &excuse);
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

/// Renames, promotions and, with -F, destroys of the sender are repeated.
#[test]
fn packages_rename_promote_and_destroy() {
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    let dir = tempfile::tempdir().expect("a folder");
    let stream = dir.path().join("stream");
    live.ok(&format!("zpool create -m none tank {}", live.disk("d1", 256)));
    for name in
        ["src", "src/keep", "src/old", "src/old/kid", "src/gone", "src/gone/too", "src/swap", "src/other"]
    {
        live.ok(&format!("zfs create tank/{name}"));
    }
    live.ok("zfs snapshot -r tank/src@1");
    live.ok("zfs clone tank/src/keep@1 tank/src/clone");
    live.ok("zfs snapshot tank/src/keep@extra");
    live.ok("zfs snapshot -r tank/src@2");
    sent(&live, "zfs send -R tank/src@2", &stream);
    let fed_ok = |line: &str| {
        let run = fed(&live, line, &stream);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{line}: {}", run.out);
    };
    fed_ok("zfs receive -u tank/dst");
    fed_ok("zfs receive -u tank/tame");
    live.ok("zfs rename tank/src/old tank/src/new");
    live.ok("zfs destroy -r tank/src/gone");
    live.ok("zfs destroy tank/src/keep@extra");
    live.ok("zfs promote tank/src/clone");
    live.ok("zfs rename tank/src/new@1 tank/src/new@first");
    // Two datasets exchange their names.
    live.ok("zfs rename tank/src/swap tank/src/third");
    live.ok("zfs rename tank/src/other tank/src/swap");
    live.ok("zfs rename tank/src/third tank/src/other");
    live.ok("zfs snapshot -r tank/src@3");
    sent(&live, "zfs send -R -I @2 tank/src@3", &stream);
    live.ok("zfs create tank/dst/local");
    live.ok("zfs snapshot tank/dst/keep@local");
    fed_ok("zfs receive -F -u tank/dst");
    let list = |top: &str| {
        let text = live.ok(&format!("zfs list -H -r -t all -o name,origin,guid tank/{top}"));
        let lines = text.lines().map(|line| {
            let mut words = line.split('\t');
            let (name, origin, guid) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            // The guids of heads differ.
            let guid = if name.contains('@') { guid } else { "" };
            format!("{name} {origin} {guid}").replace(&format!("tank/{top}"), "")
        });
        lines.collect::<Vec<_>>()
    };
    assert_eq!(list("dst"), list("src"));
    // Without -F nothing is destroyed.
    let run = fed(&live, "zfs receive -u tank/tame", &stream);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let tame = list("tame");
    assert!(tame.iter().any(|line| line.starts_with("/gone/too@2")), "{tame:?}");
    assert!(tame.iter().any(|line| line.starts_with("/new/kid@3")), "{tame:?}");
    live.export_and_verify("tank");
}

/// A target that has the state of an interrupted receive is destroyed with it, and so is a snapshot that the state builds on.
#[test]
fn interrupted_state_goes_with_its_target() {
    let Some(pool) = golden::get("streams") else { return };
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    live.ok(&format!("zpool create -m none tank {}", live.disk("d1", 512)));
    let stream = |name: &str| pool.dir.join(format!("{name}.zstream"));
    let part = live.disks().join("part");
    let interrupted = |name: &str, line: &str| {
        let whole = std::fs::read(stream(name)).unwrap();
        std::fs::write(&part, &whole[..whole.len() / 2]).unwrap();
        let run = fed(&live, line, &part);
        assert!(run.err.contains("Partially received snapshot is saved."), "{}", run.err);
    };
    let again = || {
        assert_eq!(fed(&live, "zfs receive -u tank/dst", &stream("full-a")).code, 0);
        interrupted("incr-a-b", "zfs receive -s -u tank/dst");
    };
    again();
    let refused = "cannot destroy 'tank/dst': filesystem has children\nuse '-r' to destroy the following datasets:\n\
                   tank/dst@a\ntank/dst/%recv\n";
    assert_eq!(live.fails("zfs destroy tank/dst"), refused);
    let refused = "cannot destroy 'tank/dst@a': snapshot has dependent clones\nuse '-R' to destroy the following \
                   datasets:\ntank/dst/%recv\n";
    assert_eq!(live.fails("zfs destroy tank/dst@a"), refused);
    live.ok("zfs destroy -r tank/dst");
    again();
    live.ok("zfs destroy -R tank/dst@a");
    let token = "zfs get -H -o value receive_resume_token tank/dst";
    assert_eq!(live.ok(token), "-\n");
    // State that builds on no snapshot.
    interrupted("full-a", "zfs receive -s -F -u tank/dst");
    assert!(live.ok(token).starts_with("1-"));
    live.ok("zfs destroy tank/dst");
    live.export_and_verify("tank");
}

/// A partly received dataset is neither taken a snapshot of nor sent, and it does not go while it has children.
#[test]
fn a_partly_received_dataset_does_not_pass_as_a_whole_one() {
    let Some(pool) = golden::get("streams") else { return };
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    live.ok(&format!("zpool create -m none tank {}", live.disk("d1", 512)));
    let part = live.disks().join("part");
    let whole = std::fs::read(pool.dir.join("full-a.zstream")).unwrap();
    std::fs::write(&part, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(fed(&live, "zfs receive -s -u tank/new", &part).code, 1);
    live.ok("zfs create tank/new/kid");
    live.ok("zfs snapshot tank/new/kid@kept");
    live.ok("zfs snapshot -r tank@cron");
    assert_eq!(live.ok("zfs list -Hr -t snapshot -o name tank"), "tank@cron\ntank/new/kid@kept\n");
    let busy = "cannot create snapshot 'tank/new@cron': dataset is busy\n";
    assert_eq!(live.fails("zfs snapshot tank/new@cron"), busy);
    let stream = File::create(live.disks().join("stream")).unwrap();
    let sent: Run = live.command("zfs send tank/new").stdout(Stdio::from(stream)).output().unwrap().into();
    assert!(sent.code == 1 && sent.err.contains("target is busy"), "{}: {}", sent.code, sent.err);
    let children = "cannot destroy 'tank/new': the dataset has children\n";
    assert_eq!(live.fails("zfs receive -A tank/new"), children);
    live.ok("zfs list tank/new/kid@kept");
    live.ok("zfs destroy -r tank/new/kid");
    live.ok("zfs receive -A tank/new");
    live.export_and_verify("tank");
}

/// Packages of OpenZFS that were received are sent again with the same options: the same records and the same list of datasets,
/// properties and snapshots.
#[test]
fn golden_packages_are_sent_again_as_they_came() {
    let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
    let cases = [
        ("streams", "tank", "src", &["replicate-c"][..], "-R tank/src@c"),
        ("streams", "tank", "src", &["full-a", "multi-a-c"], "-I @a tank/src@c"),
        ("streams", "tank", "src", &["props-b"], "-p tank/src@b"),
        // Named as the sender's pool: the names are those of the stream, too.
        ("raw-received", "src", "e", &["raw-R-b"], "-w -R src/e@b"),
    ];
    let again = live.dir.path().join("again");
    for (golden, pool, top, files, words) in cases {
        let Some(golden) = golden::get(golden) else { continue };
        live.ok(&format!("zpool create -f -m none {pool} {}", live.disk(pool, 256)));
        let path = |file: &str| golden.dir.join(format!("{file}.zstream"));
        for file in files {
            let run = fed(&live, &format!("zfs receive -u {pool}/{top}"), &path(file));
            assert_eq!((run.code, run.err.as_str()), (0, ""), "{file}: {}", run.out);
        }
        sent(&live, &format!("zfs send {words}"), &again);
        let real = std::fs::read(path(files.last().expect("a file"))).expect("a golden stream");
        same_package(&std::fs::read(&again).expect("a stream"), &real, words);
        live.export_and_verify(pool);
    }
}

/// Compares packages: their lists item by item, everything else as [`assert_same`] does.
fn same_package(ours: &[u8], real: &[u8], words: &str) {
    let (mut ours, mut real) = (items(ours), items(real));
    let lists = [&mut ours, &mut real].map(|all| {
        let payload = std::mem::take(&mut all[0].payload);
        all[0].drr.payloadlen = 0;
        let mut list =
            if payload.is_empty() { NvList::new() } else { NvList::decode(&payload).expect("a list") };
        // Datasets are listed by the guids of their heads, which a copy has of its own; properties in the order of a hash with
        // a salt.
        let datasets = list.remove("fss");
        let of = |all: &NvList| all.iter().map(|pair| sorted(&pair.value)).collect::<Vec<_>>();
        let datasets = datasets.map(|all| if let NvValue::List(all) = all { of(&all) } else { Vec::new() });
        (list, datasets)
    });
    assert_eq!(lists[0], lists[1], "{words}");
    let [ours, real] = [ours, real].map(|all| encode(&all, Endian::Little, &mut |_, _, _| ()));
    assert_same(&ours, &real);
}

/// The same with the pairs of lists by their names.
fn sorted(value: &NvValue) -> NvValue {
    let NvValue::List(list) = value else { return value.clone() };
    let mut pairs: Vec<_> = list.iter().collect();
    pairs.sort_by_key(|pair| pair.name.as_bytes());
    let mut sorted_list = NvList::with_flags(list.flags());
    pairs.into_iter().for_each(|pair| sorted_list.push(pair.name.clone(), sorted(&pair.value)));
    NvValue::List(sorted_list)
}
