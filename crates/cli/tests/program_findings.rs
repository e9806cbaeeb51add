//! Differences that programs on mounts and scripts met, each in its smallest form.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use live::Live;
use rustix::io::Errno;

/// A pool `tank` on one disk, mounted at the returned path; `None` without FUSE.
fn mounted(options: &str) -> Option<(Live, std::path::PathBuf)> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return None;
    }
    let live = Live::new();
    let at = live.dir.path().join("mnt");
    live.ok(&format!("zpool create {options} -O mountpoint={} tank {}", at.display(), live.disk("a", 256)));
    Some((live, at))
}

/// Scripts repeat what `zfs get all` prints.
#[test]
fn no_key_may_be_asked_for() {
    let live = Live::new();
    let (disk, key) = (live.disk("a", 128), live.dir.path().join("key"));
    std::fs::write(&key, "passphrase").unwrap();
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    let location = format!("keylocation=file://{}", key.display());
    live.ok(&format!("zfs create -o encryption=on -o keyformat=passphrase -o {location} tank/e"));
    live.ok("zfs create -o keylocation=none tank/a");
    live.ok("zfs create -o encryption=off -o keylocation=none tank/b");
    live.ok("zfs create -p -o keyformat=none tank/e/x/y");
    assert_eq!(live.ok("zfs get -H -o value encryptionroot tank/e/x/y"), "tank/e\n");
    for (name, options, why) in [
        ("tank/n", "-o keyformat=none", "Encryption must be turned on"),
        ("tank/n", "-o keyformat=passphrase", "Encryption must be turned on"),
        ("tank/e/n", "-o keylocation=none", "Keyformat required"),
        ("tank/e/n", "-o keyformat=none -o keylocation=prompt", "Keyformat required"),
    ] {
        let err = live.fails(&format!("zfs create {options} {name}"));
        assert!(err.contains(why), "{options}: {err}");
    }
    live.ok("zfs snapshot tank/a@1");
    let stream = live.command("zfs send tank/a@1").output().unwrap().stdout;
    let file = live.dir.path().join("stream");
    std::fs::write(&file, stream).unwrap();
    let input = std::fs::File::open(&file).unwrap();
    assert!(
        live.command("zfs receive -u -o keylocation=none tank/r").stdin(input).status().unwrap().success()
    );
    assert_eq!(live.ok("zfs get -H -o value keylocation tank/r"), "none\n");
}

/// Programs look for these words.
#[test]
fn invalid_streams_and_targets_are_refused_in_openzfs_words() {
    let live = Live::new();
    let disk = live.disk("a", 128);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live.ok("zfs create -s -V 1M tank/v");
    live.ok("zfs snapshot tank@1");
    assert_eq!(
        live.run("zfs unmount tank/v").err,
        "cannot open 'tank/v': operation not applicable to datasets of this type\n"
    );
    let stream = live.command("zfs send tank@1").output().unwrap().stdout;
    let file = live.dir.path().join("stream");
    let received = |bytes: &[u8], name: &str| {
        fs::write(&file, bytes).unwrap();
        let output = live.command(&format!("zfs receive {name}")).stdin(File::open(&file).unwrap()).output();
        String::from_utf8(output.unwrap().stderr).unwrap()
    };
    for (bytes, why) in [
        (&[0; 4096][..], "invalid stream (bad magic number)"),
        (&[b'x'; 4096][..], "invalid stream (bad magic number)"),
        (&stream[..100], "failed to read from stream"),
        (&[], "failed to read from stream"),
    ] {
        assert_eq!(received(bytes, "tank/n"), format!("cannot receive: {why}\n"));
    }
    let no_place = "cannot receive new filesystem stream: unable to restore to destination";
    assert_eq!(
        received(&stream, "gone/n"),
        format!("cannot open 'gone': dataset does not exist\n{no_place}\n")
    );
    let run = live.command("zfs get -H -o value snapshots_changed tank").env("TZ", "UTC").output().unwrap();
    let shown = String::from_utf8(run.stdout).unwrap();
    let hour = shown.get(11..13).unwrap();
    assert!(!hour.starts_with('0') && shown.get(13..14) == Some(":"), "{shown}");
}

#[test]
fn a_token_that_cannot_be_used_gives_openzfs_exit_code() {
    let live = Live::new();
    let disk = live.disk("a", 128);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    let run = live.run("zfs send -t 1-abc-def-0");
    assert_eq!(run.code, 255, "{}", run.err);
    assert_eq!(live.run("zfs send tank@1").code, 1);
}

#[test]
fn a_file_moves_out_of_a_snapshot_as_a_copy() {
    let Some((live, at)) = mounted("") else { return };
    fs::write(at.join("file"), "old").unwrap();
    live.ok("zfs snapshot tank@a");
    let kept = at.join(".zfs/snapshot/a/file");
    for moved in [fs::rename(&kept, at.join("back")), fs::hard_link(&kept, at.join("back"))] {
        assert_eq!(moved.unwrap_err().raw_os_error(), Some(Errno::XDEV.raw_os_error()));
    }
    assert_eq!(fs::read(&kept).unwrap(), b"old");
    live.export_and_verify("tank");
}

#[test]
fn names_that_are_not_utf8_are_refused_as_such() {
    use std::os::unix::ffi::OsStrExt;
    let Some((live, at)) = mounted("-O utf8only=on") else { return };
    let name = at.join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    assert_eq!(File::create(name).unwrap_err().raw_os_error(), Some(Errno::ILSEQ.raw_os_error()));
    live.export_and_verify("tank");
}

#[test]
fn space_beyond_a_quota_is_not_reserved() {
    let Some((live, at)) = mounted("-O quota=40M") else { return };
    let file = File::create(at.join("file")).unwrap();
    let reserve = |len: u64| {
        let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, keep, 0, len)
    };
    assert_eq!(reserve(1 << 40), Err(Errno::NOSPC));
    assert_eq!(reserve(1 << 20), Ok(()));
    assert_eq!(file.metadata().unwrap().len(), 0);
    drop(file);
    live.export_and_verify("tank");
}

/// As in OpenZFS: those of the system, such as capabilities of programs, stay in force.
#[test]
fn without_extended_attributes_only_those_of_users_are_refused() {
    use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
    let Some((live, at)) = mounted("") else { return };
    let (file, mut value, mut names) = (at.join("file"), [0; 64], [0; 256]);
    fs::write(&file, "").unwrap();
    for name in ["user.a", "trusted.a", "security.a"] {
        setxattr(&file, name, b"old", XattrFlags::empty()).unwrap();
    }
    live.ok("zfs set xattr=off tank");
    for name in ["trusted.a", "security.a"] {
        assert_eq!(getxattr(&file, name, &mut value), Ok(3), "{name}");
        setxattr(&file, name, b"newer", XattrFlags::empty()).unwrap();
    }
    assert_eq!(setxattr(&file, "user.a", b"new", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(getxattr(&file, "user.a", &mut value), Err(Errno::OPNOTSUPP));
    removexattr(&file, "security.a").unwrap();
    let len = listxattr(&file, &mut names).unwrap();
    assert_eq!(&names[..len], b"trusted.a\0");
    live.ok("zfs set xattr=sa tank");
    assert_eq!(getxattr(&file, "user.a", &mut value), Ok(3));
    live.export_and_verify("tank");
}

/// The kernel ends a connection with its last copy: detached here, the file system would go on there.
#[test]
fn a_private_copy_of_a_mount_is_named_and_nothing_is_detached() {
    let Some((live, at)) = mounted("") else { return };
    fs::write(at.join("file"), "here").unwrap();
    // Mounts of tests that run at the same time are not kept.
    let apart = format!(
        "awk '$3 == \"fuse.zfs\" && $2 != \"{}\" {{ print $2 }}' /proc/mounts | while read at; do umount -l \"$at\"; done; \
         exec sleep 600",
        at.display()
    );
    let other = Command::new("unshare").args(["-m", "sh", "-c", &apart]).spawn();
    let Ok(mut other) = other else { return eprintln!("SKIPPED: no unshare here") };
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    while namespace(&other.id().to_string()) == namespace("self") {
        if other.try_wait().unwrap().is_some() {
            return eprintln!("SKIPPED: no mount namespaces here");
        }
        std::thread::yield_now();
    }
    let why = format!("process {} has it mounted in a mount namespace of its own", other.id());
    // While the program starts, its copies are shared still.
    while !fs::read_to_string(format!("/proc/{}/comm", other.id())).unwrap().starts_with("sleep") {
        std::thread::yield_now();
    }
    for line in ["zfs unmount tank", "zpool export tank"] {
        let said = live.fails(line);
        assert!(said.contains("busy") && (line.starts_with("zpool") || said.contains(&why)), "{said}");
    }
    assert_eq!(fs::read(at.join("file")).unwrap(), b"here");
    other.kill().unwrap();
    other.wait().unwrap();
    // The kernel ends the namespace a moment later.
    while !live.run("zfs unmount tank").err.is_empty() {
        std::thread::yield_now();
    }
    live.export_and_verify("tank");
}

/// A bind mount of another process keeps the file system, and is not ours to unmount.
#[test]
fn a_file_system_that_is_bound_elsewhere_is_busy_at_once() {
    let Some((live, at)) = mounted("") else { return };
    fs::create_dir(at.join("dir")).unwrap();
    fs::write(at.join("dir/file"), "here").unwrap();
    let bound = live.dir.path().join("bound");
    fs::create_dir(&bound).unwrap();
    for what in [at.clone(), at.join("dir")] {
        if !Command::new("mount").arg("--bind").args([&what, &bound]).status().unwrap().success() {
            return eprintln!("SKIPPED: no bind mounts here");
        }
        let begin = std::time::Instant::now();
        let why = format!("pool or dataset is busy: it is bound to {}\n", bound.display());
        let place = at.display();
        assert_eq!(live.fails("zfs unmount tank"), format!("cannot unmount '{place}': {why}"));
        assert!(live.fails("zpool export tank").contains("busy"));
        // It waited for a minute before.
        assert!(begin.elapsed().as_secs() < 30, "{:?}", begin.elapsed());
        assert_eq!(fs::read(at.join("dir/file")).unwrap(), b"here");
        assert!(fs::read_dir(&bound).unwrap().count() == 1);
        assert!(Command::new("umount").arg(&bound).status().unwrap().success());
        live.ok("zfs unmount tank");
        live.ok("zfs mount tank");
    }
    live.export_and_verify("tank");
}

/// File systems of version 1 store no types of entries.
#[test]
fn old_directories_are_listed_as_directories() {
    let Some((live, at)) = mounted("") else { return };
    live.ok("zfs create -o version=1 tank/old");
    let dir = at.join("old");
    (0..300).for_each(|n| fs::create_dir(dir.join(format!("{n}"))).unwrap());
    live.ok("zfs snapshot tank/old@a");
    for dir in [dir.clone(), dir.join(".zfs/snapshot/a")] {
        let types = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_type().unwrap().is_dir());
        assert_eq!(types.filter(|is_dir| *is_dir).count(), 300, "{}", dir.display());
    }
    live.export_and_verify("tank");
}

#[test]
fn the_longest_file_is_sent_and_received() {
    let Some((live, at)) = mounted("") else { return };
    live.ok("zfs create tank/from");
    File::create(at.join("from/long")).unwrap().write_all_at(b"x", (1 << 63) - 2).unwrap();
    live.ok("zfs snapshot tank/from@a");
    let mut send = live.command("zfs send tank/from@a").stdout(Stdio::piped()).spawn().unwrap();
    let stream = Stdio::from(send.stdout.take().unwrap());
    let received = live.command("zfs receive tank/to").stdin(stream).output().unwrap();
    assert!(received.status.success() && send.wait().unwrap().success(), "{received:?}");
    let mut end = [0];
    File::open(at.join("to/long")).unwrap().read_exact_at(&mut end, (1 << 63) - 2).unwrap();
    assert_eq!(end, *b"x");
    live.export_and_verify("tank");
}

/// zrepl looks for these words to learn whether transfers can be resumed; scripts look at the exit code.
#[test]
fn usage_and_exit_codes_say_what_programs_look_for() {
    let live = Live::new();
    let words = |line: &str| live.run(line).err;
    assert!(words("zfs send").contains("send [-nVvPe] -t <receive_resume_token>"));
    assert!(words("zfs receive").contains("receive -A <filesystem|volume>"));
    assert!(live.fails("zpool iostat").contains("no pools available"));
    live.ok("zpool list");
}

#[test]
fn dos_attributes_are_their_owners() {
    const CLIENT: &str = r#"
        my ($user, $flags, $path) = @ARGV; open(my $file, "<", $path) or die; $> = $user;
        my $bytes = pack("Q", $flags); ioctl($file, 0x40088302, $bytes) or exit($! + 0)"#;
    let Some((live, at)) = mounted("") else { return };
    let path = at.join("file");
    fs::write(&path, "").unwrap();
    let set = |user: u32, flags: u64| {
        let words = [user.to_string(), flags.to_string()];
        Command::new("perl").args(["-e", CLIENT]).args(words).arg(&path).status().unwrap().code().unwrap()
    };
    let (hidden, immutable) = (1 << 33, 1 << 36);
    assert_eq!(set(65_534, hidden), Errno::ACCESS.raw_os_error());
    std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
    assert_eq!(set(65_534, hidden), 0);
    assert_eq!(set(65_534, hidden | immutable), Errno::PERM.raw_os_error());
    live.export_and_verify("tank");
}

#[test]
fn words_of_newer_releases_and_typing_errors_are_told_apart() {
    let live = Live::new();
    live.ok(&format!("zpool create -m none tank {}", live.disk("a", 64)));
    // A feature that does not exist has no row, and does not hide the others.
    assert_eq!(live.ok("zpool get -H -o property feature@nosuch,health,unsupported@x:y tank"), "health\n");
    // A set of features that does not exist would switch all checks off.
    let refused = live.fails("zpool set compatibility=nosuch tank");
    assert_eq!(refused, "Error: could not read/parse feature file(s): nosuch \n");
    assert_eq!(live.ok("zpool get -H -o value compatibility tank"), "off\n");
    // A feature that no upgrade enables is not missed.
    live.ok(&format!("zpool create -m none -o compatibility=openzfs-2.3-linux up {}", live.disk("b", 64)));
    live.ok("zpool set compatibility=openzfs-2.4-linux up");
    assert!(live.ok("zpool status up").contains("requested features are not enabled"));
    let listed = live.ok("zpool upgrade");
    assert!(
        listed.contains("\n      dynamic_gang_header(*)\n") && listed.contains("marked with (*)"),
        "{listed}"
    );
    live.ok("zpool upgrade up");
    assert!(!live.ok("zpool status up").contains("status:"));
}

#[test]
fn vdevs_are_listed_with_the_columns_that_were_asked_for() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    live.ok(&format!("zpool create -m none tank {disk} log {}", live.disk("b", 64)));
    let list = live.ok("zpool list -Hpv -o name,health,guid,feature@lz4_compress tank");
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows[0][..2], ["tank", "ONLINE"]);
    assert_eq!(rows[1], ["", disk.as_str(), "ONLINE", "-", "-"]);
    let whole = live.ok("zpool list -Hv tank");
    // Ten columns behind the name: the last one, ALTROOT, only pools have.
    let row: Vec<&str> = whole.lines().nth(1).unwrap().split('\t').collect();
    assert!(row.len() == 12 && row[11] == "-", "{row:?}");
    let json = live.ok("zpool list -jv -o name,health tank");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let props = &json["pools"]["tank"]["vdevs"][disk.as_str()]["properties"];
    assert_eq!(props.as_object().unwrap().keys().collect::<Vec<_>>(), ["health"]);
}

#[test]
fn half_of_a_json_document_is_not_printed() {
    let live = Live::new();
    live.ok(&format!("zpool create -m none tank {}", live.disk("a", 64)));
    for line in [
        "zpool status -j tank nosuch",
        "zpool get -j size nosuch",
        "zfs list -j tank nosuch",
        "zfs get -j used tank nosuch",
    ] {
        let run = live.run(line);
        assert!(run.code == 1 && run.out.is_empty() && run.err.contains("nosuch"), "{line}: {}", run.out);
    }
}

#[test]
fn a_held_snapshot_is_called_held() {
    let live = Live::new();
    live.ok(&format!("zpool create -m none tank {}", live.disk("a", 64)));
    live.ok("zfs create tank/a");
    live.ok("zfs snapshot -r tank@s");
    live.ok("zfs hold keep tank/a@s");
    for line in ["zfs destroy tank/a@s", "zfs destroy -r tank@s", "zfs destroy -r tank/a"] {
        let refused = live.fails(line);
        let why =
            "cannot destroy snapshot tank/a@s: it's being held. Run 'zfs holds -r tank/a@s' to see holders.";
        assert!(refused.contains(why), "{line}: {refused}");
    }
}

#[test]
fn properties_of_vdevs_that_came_with_2_4_are_kept() {
    let live = Live::new();
    let disks = ["a", "b", "c"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -m none tank raidz1 {}", disks.join(" ")));
    let value =
        |props: &str, vdev: &str| live.ok(&format!("zpool get -H -o value,source {props} tank {vdev}"));
    assert_eq!(value("autosit,slow_io_events", "raidz1-0"), "off\tdefault\non\tdefault\n");
    live.ok("zpool set autosit=on tank raidz1-0");
    live.ok(&format!("zpool set slow_io_events=off tank {}", disks[0]));
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -N -d {} tank", live.disks().display()));
    assert_eq!(value("autosit", "raidz1-0"), "on\tlocal\n");
    assert_eq!(value("autosit,slow_io_events,sit_out", &disks[0]), "-\t-\noff\tlocal\noff\t-\n");
    live.fails(&format!("zpool set autosit=on tank {}", disks[0]));
    live.ok(&format!("zpool set sit_out=on tank {}", disks[0]));
    assert_eq!(value("sit_out", &disks[0]), "on\t-\n");
    let refused = live.fails(&format!("zpool set sit_out=on tank {}", disks[1]));
    assert!(refused.contains("too many disks already sitting out"), "{refused}");
    live.ok(&format!("zpool set sit_out=off tank {}", disks[0]));
    assert_eq!(value("sit_out", &disks[0]), "off\t-\n");
    live.fails("zpool set sit_out=on tank raidz1-0");
    live.export_and_verify("tank");
}

#[test]
fn variables_of_the_environment_name_vdevs() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    live.ok(&format!("zpool create -m none tank {disk}"));
    let guid = live.ok(&format!("zpool get -H -o value guid tank {disk}"));
    for line in ["zpool status tank", "zpool list -v tank", "zpool iostat -v tank"] {
        let named = live.command(line).env("ZPOOL_VDEV_NAME_GUID", "YES").output().unwrap();
        let named = String::from_utf8(named.stdout).unwrap();
        assert!(named.contains(guid.trim()) && !named.contains(&disk), "{line}: {named}");
        assert!(live.ok(line).contains(&disk), "{line}");
    }
}

#[test]
fn a_package_of_streams_is_dumped_with_its_list() {
    let live = Live::new();
    live.ok(&format!("zpool create -m none tank {}", live.disk("a", 64)));
    live.ok("zfs create tank/a");
    live.ok("zfs set com.example:key=value tank/a");
    live.ok("zfs snapshot -r tank@s");
    let stream = live.disks().join("stream");
    let sent = live.command("zfs send -R tank@s").output().unwrap();
    fs::write(&stream, sent.stdout).unwrap();
    for verbose in ["", "-v", "-vv"] {
        let ours = live.ok(&format!("zstream dump {verbose} {}", stream.display()));
        assert!(
            ours.contains("nvlist version: 0\n\ttosnap = s\n") && ours.contains("com.example:key = value")
        );
        let theirs =
            Command::new("zstream-2.4").arg("dump").args(verbose.split_whitespace()).arg(&stream).output();
        match theirs {
            Ok(theirs) => assert_eq!(ours, String::from_utf8(theirs.stdout).unwrap(), "{verbose}"),
            Err(_) => eprintln!("SKIPPED: no zstream of OpenZFS 2.4 here"),
        }
    }
}

#[test]
fn reports_end_with_the_pools() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    assert_eq!(live.ok("zpool list 0.1"), "no pools available\n");
    assert_eq!((live.ok("zpool list -H 0.1"), live.run("zpool list -H").err), Default::default());
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    for verb in ["list", "status"] {
        let why = live.fails(&format!("zpool {verb} none 0.1"));
        assert_eq!(why, "cannot open 'none': no such pool\n");
    }
    let mut listing = live.command("zpool list -H -o name tank 0.1").spawn().unwrap();
    live.ok("zpool export tank");
    assert_eq!(listing.wait().unwrap().code(), Some(1));
}

#[test]
fn datasets_that_refuse_to_inherit_are_named_and_the_others_do() {
    let (from, to) = (Live::new(), Live::new());
    for live in [&from, &to] {
        let disk = live.disk("d", 128);
        live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    }
    from.ok("zfs create tank/t");
    for name in ["a", "b", "c"] {
        from.ok(&format!("zfs create -o quota=5M tank/t/{name}"));
    }
    from.ok("zfs snapshot -r tank/t@1");
    let stream = from.dir.path().join("stream");
    let file = std::fs::File::create(&stream).unwrap();
    assert!(from.command("zfs send -R tank/t@1").stdout(file).status().unwrap().success());
    let file = std::fs::File::open(&stream).unwrap();
    assert!(to.command("zfs receive -u tank/t").stdin(file).status().unwrap().success());
    for name in ["a", "b", "c"] {
        to.ok(&format!("zfs set quota=20M tank/t/{name}"));
    }
    to.ok("zfs set reservation=8M tank/t/b");
    let why = to.fails("zfs inherit -rS quota tank/t");
    assert_eq!(why, "cannot inherit quota for 'tank/t/b': out of space\n");
    assert_eq!(to.ok("zfs get -H -o value quota tank/t/a tank/t/b tank/t/c"), "5M\n20M\n5M\n");
    assert!(to.ok("zpool history tank").contains("zfs inherit -rS quota tank/t"));
    to.export_and_verify("tank");
}

/// Backups read with `O_NOATIME`; the kernel asks for the bytes long after the open.
#[test]
fn reading_with_o_noatime_leaves_the_access_time() {
    use std::io::Read;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let Some((live, at)) = mounted("-O relatime=off") else { return };
    let (file, dir) = (at.join("file"), at.join("dir"));
    fs::write(&file, vec![7; 300_000]).unwrap();
    fs::create_dir(&dir).unwrap();
    let old = rustix::fs::Timespec { tv_sec: 1000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    let atime = |path: &Path| fs::metadata(path).unwrap().atime();
    for path in [&file, &dir] {
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
        let flags = rustix::fs::OFlags::NOATIME.bits().cast_signed();
        let mut open = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap();
        if path == &file {
            let all = rustix::fs::Advice::DontNeed;
            rustix::fs::fadvise(&open, 0, None, all).unwrap();
            assert_eq!(open.read_to_end(&mut Vec::new()).unwrap(), 300_000);
        } else {
            assert!(rustix::fs::Dir::read_from(&open).unwrap().count() >= 2);
        }
        assert_eq!(atime(path), 1000, "{}", path.display());
    }
    assert!(!fs::read(&file).unwrap().is_empty() && atime(&file) > 1000);
    live.ok("zpool export tank");
}

/// An append-only file takes the present time for both of its times, as a write sets them, and no other.
#[test]
fn one_time_of_an_append_only_file_is_not_set() {
    let Some((live, at)) = mounted("") else { return };
    let file = at.join("log");
    fs::write(&file, b"text").unwrap();
    if !Command::new("chattr").arg("+a").arg(&file).status().is_ok_and(|done| done.success()) {
        eprintln!("SKIPPED: no chattr here");
        return;
    }
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let omit = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let set = |last_access, last_modification| {
        let times = rustix::fs::Timestamps { last_access, last_modification };
        rustix::fs::utimensat(rustix::fs::CWD, &file, &times, rustix::fs::AtFlags::empty())
    };
    assert_eq!(set(now, omit), Err(Errno::PERM));
    assert_eq!(set(omit, now), Err(Errno::PERM));
    assert_eq!(set(now, now), Ok(()));
    live.ok("zpool export tank");
}
