//! `zfs receive` in a daemon: the effect of `-o`, `-x`, `-h` and raw packages on properties, holds and
//! encryption roots.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test must say so")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use ondisk::Endian;
use ondisk::drr::{DrrBody, DrrObject};
use testkit::golden;
use testkit::hostile::streams::{encode, items};
use testkit::live::{Live, Run};

struct Side {
    live: Live,
    dir: tempfile::TempDir,
}

impl Side {
    fn new() -> Self {
        let live = Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer")));
        live.ok(&format!("zpool create -m none tank {}", live.disk("d1", 512)));
        Self { live, dir: tempfile::tempdir().expect("a folder") }
    }

    fn stream(&self) -> PathBuf {
        self.dir.path().join("stream")
    }

    fn send(&self, line: &str) {
        let file = File::create(self.stream()).expect("a file");
        let run: Run = self.live.command(line).stdout(Stdio::from(file)).output().expect("it starts").into();
        assert_eq!(run.code, 0, "{line}: {}", run.err);
    }

    fn receive(&self, line: &str) -> Run {
        let file = File::open(self.stream()).expect("a stream");
        self.live.command(line).stdin(Stdio::from(file)).output().expect("it starts").into()
    }

    fn received(&self, line: &str) {
        let run = self.receive(line);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{line}: {}", run.out);
    }

    fn refused(&self, line: &str, why: &str) {
        let run = self.receive(line);
        assert!(run.code != 0 && run.err.contains(why), "{line}: {}: {}", run.code, run.err);
        assert_eq!(self.live.fails("zfs list tank/none").lines().count(), 1);
    }

    fn get(&self, what: &str) -> String {
        self.live.ok(&format!("zfs get -H -o value,source {what}"))
    }
}

/// Properties that say how blocks are written hold for the blocks of the stream.
#[test]
fn properties_hold_for_what_is_received() {
    let Some(pool) = golden::get("streams") else { return };
    let side = Side::new();
    let live = &side.live;
    std::fs::copy(pool.dir.join("full-a.zstream"), side.stream()).expect("a stream");
    side.received("zfs receive -u -o compression=gzip -o checksum=sha256 tank/packed");
    side.received("zfs receive -u -o compression=off tank/plain");
    std::fs::copy(pool.dir.join("incr-a-b.zstream"), side.stream()).expect("a stream");
    side.received("zfs receive -u tank/packed");
    side.received("zfs receive -u -o compression=gzip-9 tank/plain");
    assert_eq!(side.get("compression tank/plain"), "gzip-9\tlocal\n");
    let used = |name: &str| live.ok(&format!("zfs get -Hpo value logicalreferenced,referenced tank/{name}"));
    let number = |text: &str, n: usize| text.lines().nth(n).unwrap().parse::<u64>().unwrap();
    let (packed, plain) = (used("packed"), used("plain"));
    assert!(number(&packed, 1) * 2 < number(&plain, 1), "{packed} {plain}");
    assert_eq!(side.get("compression,checksum tank/packed"), "gzip\tlocal\nsha256\tlocal\n");
    live.export_and_verify("tank");
}

/// The settings of a first stream stay when it breaks off: the stream that resumes it has none.
#[test]
fn an_interrupted_first_receive_keeps_its_settings() {
    let Some(pool) = golden::get("streams") else { return };
    let side = Side::new();
    let live = &side.live;
    std::fs::copy(pool.dir.join("full-a.zstream"), side.stream()).expect("a stream");
    side.received("zfs receive -u tank/src");
    live.ok("zfs set compression=gzip atime=off com.example:note=sent quota=400M refreservation=9M tank/src");
    side.send("zfs send -p tank/src@a");
    let whole = std::fs::read(side.stream()).unwrap();
    std::fs::write(side.stream(), &whole[..whole.len() / 2]).unwrap();
    let line = "zfs receive -s -u -o readonly=on -o canmount=noauto -x compression tank/got";
    let run = side.receive(line);
    assert!(run.code == 1 && run.err.contains("Partially received snapshot is saved"), "{}", run.err);
    let names = "readonly,canmount,atime,com.example:note,quota,refreservation,compression tank/got";
    let kept = "on\tlocal\nnoauto\tlocal\noff\treceived\nsent\treceived\n400M\treceived\n9M\treceived\non\tdefault\n";
    assert_eq!(side.get(names), kept);
    assert_eq!(live.ok("zfs get -H -o received compression tank/got"), "gzip\n");
    let token = live.ok("zfs get -H -o value receive_resume_token tank/got");
    side.send(&format!("zfs send -t {token}"));
    side.received("zfs receive -s -u tank/got");
    assert_eq!(side.get(names), kept);
    live.ok("zfs list tank/got@a");
    // A stream that is not kept leaves nothing.
    std::fs::write(side.stream(), &whole[..whole.len() / 2]).unwrap();
    side.refused("zfs receive -u -o readonly=on tank/none", "incomplete stream");
    live.export_and_verify("tank");
}

#[test]
fn options_apply_to_the_stream_that_fits() {
    let side = Side::new();
    let live = &side.live;
    live.ok("zfs create -o atime=off -o user:a=sent tank/src");
    live.ok("zfs create -o user:b=sent tank/src/sub");
    live.ok("zfs create -s -V 1M tank/src/vol");
    live.ok("zfs snapshot -r tank/src@1");
    live.ok("zfs set user:s=snap tank/src@1");
    side.send("zfs send tank/src/vol@1");
    side.refused(
        "zfs receive -o atime=off tank/none",
        "property 'atime' does not apply to datasets of this type",
    );
    side.send("zfs send tank/src@1");
    for prop in ["version", "normalization", "volsize"] {
        side.refused(&format!("zfs receive -u -x {prop} tank/none"), prop);
    }
    side.refused("zfs receive -u -o version=1 tank/none", "version");
    side.refused("zfs receive -u -o copies=9 tank/none", "copies");
    side.received("zfs receive -u -o encryption=off tank/off");
    side.send("zfs send -R tank/src@1");
    side.refused("zfs receive -u -o volblock=64K tank/none", "volblock");
    side.received("zfs receive -u -o atime=on -o copies=2 -x user:b tank/all");
    assert_eq!(side.get("atime,copies tank/all"), "on\tlocal\n2\tlocal\n");
    assert_eq!(
        side.get("atime,copies tank/all/sub"),
        "on\tinherited from tank/all\n2\tinherited from tank/all\n"
    );
    assert_eq!(side.get("user:s tank/all@1"), "snap\treceived\n");
    assert_eq!(side.get("user:a,user:b tank/all/sub"), "sent\tinherited from tank/all\n-\t-\n");
    // A local setting stays with -x, and hides the received one.
    live.ok("zfs set user:a=here tank/all");
    live.ok("zfs set user:a=new tank/src");
    live.ok("zfs snapshot -r tank/src@2");
    side.send("zfs send -R -I @1 tank/src@2");
    side.received("zfs receive -u -x user:a tank/all");
    assert_eq!(side.get("user:a tank/all"), "here\tlocal\n");
    assert_eq!(live.ok("zfs get -H -o received user:a tank/all"), "new\n");
    live.export_and_verify("tank");
}

#[test]
fn holds_are_received_unless_they_are_left_out() {
    let side = Side::new();
    let live = &side.live;
    live.ok("zfs create tank/src");
    live.ok("zfs snapshot tank/src@1");
    live.ok("zfs hold keep tank/src@1");
    live.ok("zfs hold also tank/src@1");
    side.send("zfs send -h -R tank/src@1");
    side.received("zfs receive -u tank/held");
    side.received("zfs receive -u -h tank/free");
    let tags = live.ok("zfs holds -H tank/held@1");
    assert!(tags.contains("\tkeep\t") && tags.contains("\talso\t"), "{tags}");
    assert_eq!(live.ok("zfs holds -H tank/free@1"), "");
    side.send("zfs send -h tank/src@1");
    side.received("zfs receive -u tank/single");
    assert_eq!(live.ok("zfs holds -H tank/single@1").lines().count(), 2);
    assert!(live.fails("zfs destroy tank/held@1").contains("it's being held"));
    live.export_and_verify("tank");
}

/// Datasets inherit their keys after `send -Rw | receive` as on the sending side, and one key opens all of them.
#[test]
fn encryption_roots_are_those_of_the_sender() {
    let side = Side::new();
    let live = &side.live;
    let key = side.dir.path().join("key");
    std::fs::write(&key, "a passphrase").expect("a file");
    let own = format!("-o encryption=on -o keyformat=passphrase -o keylocation=file://{}", key.display());
    live.ok(&format!("zfs create {own} tank/src"));
    live.ok("zfs create tank/src/kid");
    live.ok("zfs create tank/src/kid/kid");
    live.ok(&format!("zfs create {own} tank/src/own"));
    live.ok("zfs create tank/src/own/kid");
    live.ok("zfs create -o encryption=off tank/src/open");
    live.ok("zfs snapshot -r tank/src@1");
    let roots = |top: &str| {
        let text = live
            .ok(&format!("zfs get -H -r -t filesystem -o name,value encryptionroot,keylocation tank/{top}"));
        text.replace(&format!("tank/{top}"), "")
    };
    side.send("zfs send -Rw tank/src@1");
    side.received("zfs receive -u tank/dst");
    assert_eq!(roots("dst"), roots("src"));
    live.ok("zfs load-key -r tank/dst");
    assert!(!live.ok("zfs get -H -r -t filesystem -o value keystatus tank/dst").contains("unavailable"));
    // The sender's tree changes: a root of its own inherits, and one that inherited does not.
    live.ok("zfs change-key -i tank/src/own");
    live.ok(&format!(
        "zfs change-key -o keyformat=passphrase -o keylocation=file://{} tank/src/kid",
        key.display()
    ));
    live.ok("zfs snapshot -r tank/src@2");
    side.send("zfs send -Rw -I @1 tank/src@2");
    side.received("zfs receive -u tank/dst");
    assert_eq!(roots("dst"), roots("src"));
    // All of it opens after an import with the one key that each root names.
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    live.ok("zfs load-key -r tank/dst");
    assert!(!live.ok("zfs get -H -r -t filesystem -o value keystatus tank/dst").contains("unavailable"));
    live.ok("zfs change-key -i tank/dst/kid");
    live.export_and_verify("tank");
}

/// `-x` hides a property of the stream, and its value is kept as the received one.
#[test]
fn excluded_user_properties_are_still_received() {
    let side = Side::new();
    let live = &side.live;
    live.ok("zfs create -o org:tag=sent tank/from");
    live.ok("zfs snapshot tank/from@a");
    side.send("zfs send -p tank/from@a");
    side.received("zfs receive -u -x org:tag tank/to");
    assert_eq!(live.ok("zfs get -H -o value,received,source org:tag tank/to"), "-\tsent\t-\n");
    assert_eq!(live.ok("zfs get -H -o value,received,source org:tag tank/from"), "sent\t-\tlocal\n");
}

/// A partly received dataset is sent from its own base, though other datasets received the same snapshot.
#[test]
fn a_saved_stream_builds_on_the_snapshot_of_its_dataset() {
    let Some(pool) = golden::get("streams") else { return };
    let side = Side::new();
    let live = &side.live;
    std::fs::copy(pool.dir.join("full-a.zstream"), side.stream()).expect("a stream");
    ["one", "two", "three"].iter().for_each(|name| side.received(&format!("zfs receive -u tank/{name}")));
    let incremental = std::fs::read(pool.dir.join("incr-a-b.zstream")).expect("a stream");
    let partial = incremental.get(..incremental.len() / 2).expect("half of it");
    for name in ["one", "two", "three"] {
        std::fs::write(side.stream(), partial).expect("a stream");
        assert_eq!(side.receive(&format!("zfs receive -s -u tank/{name}")).code, 1);
        let said = live.ok(&format!("zfs send -nv --saved tank/{name}"));
        assert!(said.starts_with("resume token contents:\n"), "{said}");
        assert!(
            said.contains(&format!(
                "\n\tobject = 0x0\n\toffset = 0x0\n\tbytes = 0x0\n\ttoname = tank/{name}\n"
            )),
            "{said}"
        );
        let line = format!("\nsend from tank/{name}@a to tank/{name} estimated size is ");
        assert!(said.contains(&line), "{said}");
        let last = live.ok(&format!("zfs send -nP --saved tank/{name}")).lines().last().unwrap().to_owned();
        assert!(last.strip_prefix("size\t").unwrap().parse::<u64>().unwrap() > 4096, "{last}");
        side.send(&format!("zfs send --saved tank/{name}"));
        assert!(File::open(side.stream()).and_then(|file| file.metadata()).expect("a stream").len() > 4096);
        live.ok(&format!("zfs receive -A tank/{name}"));
    }
    // A future clone is sent as one: its base is another dataset's, so the receiver makes a dataset for it.
    std::fs::write(side.stream(), partial).expect("a stream");
    assert_eq!(side.receive("zfs receive -s -u -o origin=tank/one@a tank/clone").code, 1);
    side.send("zfs send --saved tank/clone");
    let run = side.receive("zfs receive -s -u tank/again");
    assert!(run.code == 1 && run.err.contains("Partially received snapshot is saved."), "{}", run.err);
    live.export_and_verify("tank");
}

/// Datasets that a package leaves out stay at the target, though `-F` destroys those that the sender lacks.
#[test]
fn excluded_datasets_stay_at_the_target() {
    let side = Side::new();
    let live = &side.live;
    ["s", "s/kid", "s/gone"].iter().for_each(|name| drop(live.ok(&format!("zfs create tank/{name}"))));
    live.ok("zfs snapshot -r tank/s@a");
    side.send("zfs send -R tank/s@a");
    side.received("zfs receive -u tank/t");
    live.ok("zfs destroy -r tank/s/gone");
    live.ok("zfs snapshot -r tank/s@b");
    side.send("zfs send -R -X tank/s/kid -I @a tank/s@b");
    side.received("zfs receive -F -u tank/t");
    let there = "tank/t\ntank/t@a\ntank/t@b\ntank/t/kid\ntank/t/kid@a\n";
    assert_eq!(live.ok("zfs list -H -o name -t all -r tank/t"), there);
    live.export_and_verify("tank");
}

/// A property that the target has no room for is reported; the rest of the package is received.
#[test]
fn a_property_that_cannot_be_set_does_not_end_the_package() {
    let side = Side::new();
    side.live.ok(&format!("zpool create -m none small {}", side.live.disk("d2", 96)));
    side.live.ok("zfs create -o reservation=200M -o com.example:note=x tank/s");
    side.live.ok("zfs create tank/s/kid");
    side.live.ok("zfs snapshot -r tank/s@1");
    side.send("zfs send -R tank/s@1");
    let run = side.receive("zfs receive -u small/S");
    let why = "cannot receive reservation property on small/S: size is greater than available space\n";
    assert_eq!((run.code, run.err.as_str()), (0, why), "{}", run.out);
    assert_eq!(side.live.ok("zfs list -Hr -t snapshot -o name small"), "small/S@1\nsmall/S/kid@1\n");
    assert_eq!(side.get("com.example:note small/S"), "x\treceived\n");
    side.live.export_and_verify("small");
}

/// A clone of an encrypted snapshot needs the key before anything is created.
#[test]
fn a_clone_is_refused_before_it_is_made_without_the_key_of_its_origin() {
    let side = Side::new();
    let key = side.dir.path().join("key");
    std::fs::write(&key, [7; 32]).unwrap();
    let key = key.display();
    side.live.ok(&format!("zfs create -o encryption=on -o keyformat=raw -o keylocation=file://{key} tank/e"));
    side.live.ok("zfs create tank/src");
    side.live.ok("zfs snapshot tank/src@a");
    side.send("zfs send tank/src@a");
    side.received("zfs receive -u tank/e/o");
    side.live.ok("zfs snapshot tank/src@b");
    side.send("zfs send -i @a tank/src@b");
    side.live.ok("zfs unload-key tank/e");
    side.refused("zfs receive -u -o origin=tank/e/o@a tank/none", "key");
    side.live.export_and_verify("tank");
}

/// A stream whose objects need a feature that its first record does not name.
#[test]
fn a_stream_brings_no_large_objects_into_a_pool_without_their_features() {
    let side = Side::new();
    side.live.ok(&format!("zpool create -d -m none old {}", side.live.disk("d2", 96)));
    side.live.ok("zfs create tank/s");
    side.live.ok("zfs snapshot tank/s@1");
    side.send("zfs send tank/s@1");
    let all = items(&std::fs::read(side.stream()).unwrap());
    let last = all.iter().rposition(|item| matches!(item.drr.body, DrrBody::Object(_))).unwrap();
    let larger: [fn(&mut DrrObject); 2] = [|object| object.dn_slots = 2, |object| object.blksz = 256 << 10];
    for change in larger {
        let mut some = items(&std::fs::read(side.stream()).unwrap());
        if let DrrBody::Object(object) = &mut some[last].drr.body {
            change(object);
        }
        std::fs::write(side.stream(), encode(&some, Endian::Little, &mut |_, _, _| ())).unwrap();
        let run = side.receive("zfs receive -u old/s");
        assert!(run.code == 1 && run.err.contains("needs a feature"), "{}: {}", run.code, run.err);
        std::fs::write(side.stream(), encode(&all, Endian::Little, &mut |_, _, _| ())).unwrap();
    }
    side.received("zfs receive -u old/s");
    side.live.export_and_verify("old");
}

/// Quotas and reservations that a later stream no longer brings leave the accounts, too.
#[test]
fn received_reservations_that_are_cleared_take_no_space() {
    let side = Side::new();
    let live = &side.live;
    live.ok("zfs create -V 40M tank/v");
    live.ok("zfs create -o quota=100M -o reservation=50M -o refquota=90M -o refreservation=20M tank/p");
    let number = |prop: &str, name: &str| {
        live.ok(&format!("zfs get -Hpo value {prop} tank/{name}")).trim().parse::<u64>().unwrap()
    };
    for (name, left_out) in [("v", ""), ("p", "-x quota -x reservation -x refquota ")] {
        live.ok(&format!("zfs snapshot tank/{name}@1"));
        side.send(&format!("zfs send -p tank/{name}@1"));
        side.received(&format!("zfs receive -u tank/got-{name}"));
        assert!(number("usedbyrefreservation", &format!("got-{name}")) > 10 << 20);
        live.ok(&format!("zfs snapshot tank/{name}@2"));
        side.send(&format!("zfs send -p -i @1 tank/{name}@2"));
        side.received(&format!("zfs receive -u {left_out}-x refreservation tank/got-{name}"));
        assert_eq!(number("usedbyrefreservation", &format!("got-{name}")), 0);
        assert_eq!(side.get(&format!("refreservation tank/got-{name}")), "none\tdefault\n");
    }
    assert_eq!(side.get("quota,reservation,refquota tank/got-p"), "none\tdefault\n".repeat(3));
    live.ok("zfs destroy -r tank/got-v");
    live.ok("zfs destroy -r tank/got-p");
    live.ok("zpool wait -t free tank");
    live.export_and_verify("tank");
}

/// Whether the data of a snapshot can be read.
fn opens(live: &Live, snapshot: &str) -> bool {
    let out = File::create("/dev/null").expect("a sink");
    live.command(&format!("zfs send {snapshot}"))
        .stdout(Stdio::from(out))
        .status()
        .expect("it starts")
        .success()
}

/// A key that the sender changed opens the whole copy of its tree: the keys of children come wrapped by it.
#[test]
fn the_keys_of_a_tree_change_together() {
    for (format, old, new) in
        [("passphrase", &b"password1"[..], &b"password2"[..]), ("raw", &[1; 32][..], &[2; 32][..])]
    {
        let side = Side::new();
        let live = &side.live;
        let keys = [old, new].map(|bytes| {
            let path = side.dir.path().join(format!("key{}", bytes[bytes.len() - 1]));
            std::fs::write(&path, bytes).unwrap();
            format!("-o keyformat={format} -o keylocation=file://{}", path.display())
        });
        live.ok(&format!("zfs create -o encryption=on {} tank/src", keys[0]));
        live.ok("zfs create tank/src/kid");
        live.ok("zfs create tank/src/kid/own");
        live.ok("zfs snapshot -r tank/src@1");
        side.send("zfs send -Rw tank/src@1");
        side.received("zfs receive -u tank/dst");
        live.ok(&format!("zfs change-key {} tank/src", keys[1]));
        live.ok(&format!("zfs change-key {} tank/src/kid/own", keys[1]));
        live.ok("zfs snapshot -r tank/src@2");
        side.send("zfs send -Rw -I @1 tank/src@2");
        side.received("zfs receive -u tank/dst");
        live.ok("zfs load-key -r tank/dst");
        for name in ["dst", "dst/kid", "dst/kid/own"] {
            assert!(
                opens(live, &format!("tank/{name}@1")) && opens(live, &format!("tank/{name}@2")),
                "{name}"
            );
        }
        live.export_and_verify("tank");
    }
}

/// A dataset that was made to inherit its key here stays readable with that key.
#[test]
fn a_key_of_this_side_is_kept_by_raw_streams() {
    for (format, theirs, ours) in
        [("passphrase", &b"password1"[..], &b"password2"[..]), ("raw", &[1; 32][..], &[2; 32][..])]
    {
        let side = Side::new();
        let live = &side.live;
        for (name, bytes) in [("theirs", theirs), ("ours", ours)] {
            let path = side.dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let key = format!("-o keyformat={format} -o keylocation=file://{}", path.display());
            live.ok(&format!("zfs create -o encryption=on {key} tank/{name}"));
        }
        live.ok("zfs create tank/theirs/kid");
        live.ok("zfs snapshot tank/theirs/kid@1");
        side.send("zfs send -w tank/theirs/kid@1");
        side.received("zfs receive -u tank/ours/kid");
        live.ok(&format!(
            "zfs load-key -L file://{} tank/ours/kid",
            side.dir.path().join("theirs").display()
        ));
        live.ok("zfs change-key -i tank/ours/kid");
        live.ok("zfs snapshot tank/theirs/kid@2");
        side.send("zfs send -w -i @1 tank/theirs/kid@2");
        side.received("zfs receive -u tank/ours/kid");
        live.ok("zfs unload-key tank/ours");
        live.ok("zfs load-key tank/ours");
        assert!(opens(live, "tank/ours/kid@1") && opens(live, "tank/ours/kid@2"));
        live.export_and_verify("tank");
    }
}
