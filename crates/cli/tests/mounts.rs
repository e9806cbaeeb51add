//! Mounts by the built binary: properties that change while the file system is in use, and `.zfs`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use live::Live;

/// Source, type and options of a mount, as the kernel tells them.
fn in_kernel(at: &Path) -> (String, String, Vec<String>) {
    let all = fs::read_to_string("/proc/mounts").unwrap();
    let line = all.lines().rfind(|line| line.split(' ').nth(1) == at.to_str()).unwrap().to_owned();
    let words: Vec<&str> = line.split(' ').collect();
    let options = words[3].split(',').map(str::to_owned).collect();
    (words[0].to_owned(), words[2].to_owned(), options)
}

fn has(at: &Path, option: &str) -> bool {
    in_kernel(at).2.iter().any(|have| have == option)
}

#[test]
fn default_mountpoint_directories_are_removed_at_unmount() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let stands = |name: &str| at.join(name).exists();
    for name in ["a", "a/b", "k"] {
        live.ok(&format!("zfs create tank/{name}"));
    }
    live.ok("zfs rename tank/a tank/z");
    assert!(!stands("a") && stands("z/b"));
    let other = live.dir.path().join("other");
    live.ok(&format!("zfs set mountpoint={} tank/z", other.display()));
    assert!(!stands("z") && other.join("b").exists());
    live.ok("zfs inherit mountpoint tank/z");
    // This one was chosen.
    assert!(stands("z/b") && other.exists());
    live.ok("zfs destroy -r tank/z");
    assert!(!stands("z"));
    live.ok("zfs unmount tank/k");
    assert!(stands("k"));
    fs::write(at.join("k/file"), "").unwrap();
    live.ok("zfs destroy tank/k");
    assert!(stands("k/file"));
    live.ok("zpool export tank");
    assert!(at.exists());
    let (root, disk) = (live.dir.path().join("root"), live.disk("b", 128));
    for verb in ["export", "destroy"] {
        live.ok(&format!("zpool create -f -R {} pool {disk}", root.display()));
        live.ok("zfs create pool/a");
        assert!(root.join("pool/a").exists());
        live.ok(&format!("zpool {verb} pool"));
        assert!(!root.join("pool").exists(), "{verb}");
    }
}

#[test]
fn property_changes_apply_to_mounts_at_once() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let (source, kind, _) = in_kernel(&at);
    assert_eq!((source.as_str(), kind.as_str()), ("tank", "fuse.zfs"));
    let script = at.join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new(&script).status().unwrap().success());

    live.ok("zfs set readonly=on tank");
    assert!(has(&at, "ro"));
    assert_eq!(fs::write(at.join("x"), "x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    live.ok("zfs inherit readonly tank");
    fs::write(at.join("x"), "x").unwrap();
    // The kernel does not make it read-only while a file is open for writing; that it is does not depend on it.
    let mut open = fs::File::create(at.join("open")).unwrap();
    let told = live.fails("zfs set readonly=on tank");
    assert!(told.ends_with("property may be set but unable to remount filesystem\n"), "{told}");
    assert_eq!(open.write_all(b"x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::write(at.join("y"), "y").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    live.ok("zfs set readonly=off tank");
    open.write_all(b"x").unwrap();
    // Only `off` takes it away, and it is in use.
    live.ok("zfs set canmount=noauto tank");
    live.ok("zfs set canmount=on tank");
    let busy = format!("cannot unmount '{}': pool or dataset is busy\n", at.display());
    assert_eq!(live.fails("zfs set canmount=off tank"), busy);
    assert_eq!(live.fails("zfs umount tank"), busy);
    assert_eq!(live.fails("zpool export tank"), busy);
    let not_destroyed = "could not destroy 'tank': could not unmount datasets\n";
    assert_eq!(live.fails("zpool destroy tank"), busy + not_destroyed);
    open.write_all(b"x").unwrap();
    drop(open);

    live.ok("zfs set exec=off atime=off tank");
    assert!(has(&at, "noexec") && has(&at, "noatime"));
    assert_eq!(Command::new(&script).status().unwrap_err().kind(), ErrorKind::PermissionDenied);
    live.ok("zfs set exec=on atime=on devices=off setuid=off tank");
    assert!(!has(&at, "noexec") && has(&at, "relatime") && has(&at, "nodev") && has(&at, "nosuid"));
    assert!(Command::new(&script).status().unwrap().success());
    live.ok("zfs umount tank");
    // An option of the command stays while properties change.
    live.ok("zfs mount -o ro tank");
    live.ok("zfs set exec=off tank");
    assert!(has(&at, "ro") && has(&at, "noexec"));
    live.export_and_verify("tank");
}

fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn snapshots_come_and_go_below_dot_zfs() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let (ctl, all) = (at.join(".zfs"), at.join(".zfs/snapshot"));
    let file = |snapshot: &str| fs::read_to_string(all.join(snapshot).join("file"));
    fs::write(at.join("file"), "one").unwrap();
    assert_eq!(names(&at), ["file"]);
    live.ok("zfs set snapdir=visible tank");
    assert_eq!(names(&at), [".zfs", "file"]);
    live.ok("zfs set snapdir=disabled tank");
    assert!(!ctl.exists());
    live.ok("zfs set snapdir=hidden tank");
    assert_eq!((names(&at), names(&ctl)), (vec!["file".to_owned()], vec!["snapshot".to_owned()]));

    // Taken by the command, seen at once; another of the same name is another.
    live.ok("zfs snapshot tank@a");
    assert_eq!((names(&all), file("a").unwrap()), (vec!["a".to_owned()], "one".to_owned()));
    live.ok("zfs destroy tank@a");
    assert_eq!((names(&all).len(), file("a").unwrap_err().kind()), (0, ErrorKind::NotFound));
    fs::write(at.join("file"), "two").unwrap();
    live.ok("zfs snapshot tank@a");
    assert_eq!(file("a").unwrap(), "two");
    live.ok("zfs rename tank@a tank@b");
    assert_eq!((names(&all), file("b").unwrap()), (vec!["b".to_owned()], "two".to_owned()));

    // Taken, renamed and destroyed from inside.
    fs::write(at.join("file"), "three").unwrap();
    fs::create_dir(all.join("c")).unwrap();
    assert_eq!(file("c").unwrap(), "three");
    assert_eq!(fs::create_dir(all.join("c")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::rename(all.join("c"), all.join("d")).unwrap();
    assert_eq!(live.ok("zfs list -H -t snapshot -o name"), "tank@b\ntank@d\n");
    live.ok("zfs hold keep tank@d");
    assert_eq!(fs::remove_dir(all.join("d")).unwrap_err().kind(), ErrorKind::ResourceBusy);
    live.ok("zfs release keep tank@d");
    fs::remove_dir(all.join("d")).unwrap();
    assert_eq!(names(&all), ["b"]);
    live.export_and_verify("tank");
}

#[test]
fn a_rollback_destroys_nothing_while_something_of_it_is_used() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let file = at.join("file");
    for name in ["a", "b", "c"] {
        fs::write(&file, name).unwrap();
        live.ok(&format!("zfs snapshot tank@{name}"));
    }
    live.ok("zfs clone tank@b tank/clone");
    live.ok("zfs snapshot tank/clone@own");
    assert_eq!(
        live.fails("zfs rollback -r tank@a"),
        "cannot rollback to 'tank@a': clones of previous snapshots exist\nuse '-R' to force deletion of the following clones and dependents:\ntank/clone@own\ntank/clone\n"
    );
    let refused = |said: &str| {
        let open = fs::File::open(&file).unwrap();
        assert_eq!(live.fails("zfs rollback -R tank@a"), said);
        let all = "tank\ntank@a\ntank@b\ntank@c\ntank/clone\ntank/clone@own\n";
        assert_eq!(live.ok("zfs list -H -o name -t all"), all);
        // Nothing was unmounted for it.
        assert_eq!(open.metadata().unwrap().len(), 1);
        assert_eq!(names(&at.join("clone")), ["file"]);
    };
    live.ok("zfs hold keep tank@b");
    live.ok("zfs hold keep tank/clone@own");
    refused("cannot destroy 'tank/clone@own': dataset is busy\ncannot destroy 'tank@b': dataset is busy\n");
    live.ok("zfs release keep tank@b");
    live.ok("zfs release keep tank/clone@own");
    let visited = fs::File::open(at.join(".zfs/snapshot/c/file")).unwrap();
    refused("cannot destroy 'tank@c': dataset is busy\n");
    drop(visited);
    let used = fs::File::open(at.join("clone/file")).unwrap();
    assert!(live.fails("zfs rollback -R tank@a").starts_with("cannot unmount"));
    drop(used);
    let before = fs::OpenOptions::new().append(true).open(&file).unwrap();
    live.ok("zfs rollback -R tank@a");
    assert_eq!(live.ok("zfs list -H -o name -t all"), "tank\ntank@a\n");
    // A process that had the file open continues with the same file.
    assert_eq!(fs::read(&file).unwrap(), b"a");
    before.write_at(b"x", 0).unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"ax");
    drop(before);
    live.export_and_verify("tank");
}

#[test]
fn a_rollback_leaves_mounted_what_was() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    fs::create_dir(at.join("stays")).unwrap();
    live.ok("zfs create tank/old");
    live.ok("zfs snapshot tank@a");
    live.ok("zfs create tank/new");
    for name in ["file", "stays/file", "old/file", "new/file"] {
        fs::write(at.join(name), name).unwrap();
    }
    let (device, stood) = (fs::metadata(&at).unwrap().dev(), at.join("stays"));
    // A process with its working directory there that looks for the file and then waits.
    let mut child = Command::new("sh");
    let child =
        child.arg("-c").arg("cat file; read go; test ! -e file && echo new > other").current_dir(&stood);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; "stays/file".len()];
    child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    let old = fs::File::open(at.join("old/file")).unwrap();
    live.ok("zfs rollback tank@a");
    assert_eq!(fs::metadata(&at).unwrap().dev(), device);
    assert_eq!(names(&at), ["new", "old", "stays"]);
    // One below, whose folder went and came, is mounted again; the other was left alone.
    assert_eq!(fs::read(at.join("new/file")).unwrap(), b"new/file");
    assert_eq!(old.metadata().unwrap().dev(), fs::metadata(at.join("old")).unwrap().dev());
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(stood.join("other")).unwrap(), b"new\n");
    drop(old);
    live.export_and_verify("tank");
}

#[test]
fn access_control_lists_come_and_go_with_their_property() {
    const ACCESS: &str = "system.posix_acl_access";
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let file = at.join("file");
    fs::write(&file, "x").unwrap();
    // The owner, a named user, the group, a mask, others.
    let entries =
        [(1u16, 6u16, u32::MAX), (2, 6, 1000), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        list.extend(tag.to_le_bytes().into_iter().chain(perm.to_le_bytes()).chain(id.to_le_bytes()));
    }
    let set = || rustix::fs::setxattr(&file, ACCESS, &list, rustix::fs::XattrFlags::empty());
    let get = || {
        let mut value = vec![0; 100];
        rustix::fs::getxattr(&file, ACCESS, &mut value).map(|len| value[..len].to_vec())
    };
    assert_eq!(set().unwrap_err(), rustix::io::Errno::OPNOTSUPP);
    assert_eq!(get().unwrap_err(), rustix::io::Errno::NODATA);
    let open = fs::File::open(&file).unwrap();
    live.ok("zfs set acltype=posix tank");
    set().unwrap();
    assert_eq!(get().unwrap(), list);
    live.ok("zfs set acltype=off tank");
    assert_eq!(get().unwrap_err(), rustix::io::Errno::NODATA);
    live.ok("zfs set acltype=posix tank");
    assert_eq!(get().unwrap(), list);
    assert_eq!(open.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    drop(open);
    live.export_and_verify("tank");
}

#[test]
fn a_snapshot_in_use_stays() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let all = at.join(".zfs/snapshot");
    fs::create_dir(at.join("folder")).unwrap();
    fs::write(at.join("folder/file"), "x").unwrap();
    live.ok("zfs snapshot tank@a");
    let busy = || {
        let said = "cannot destroy snapshot tank@a: dataset is busy\n";
        assert_eq!(live.fails("zfs destroy tank@a"), said);
        assert_eq!(live.fails("zfs destroy -r tank"), said);
        assert_eq!(fs::remove_dir(all.join("a")).unwrap_err().kind(), ErrorKind::ResourceBusy);
    };
    // Looked at, open, stood in at the top and below.
    let mut open = fs::File::open(all.join("a/folder/file")).unwrap();
    busy();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    drop(open);
    for folder in ["a", "a/folder"] {
        let mut child = Command::new("sleep").arg("30").current_dir(all.join(folder)).spawn().unwrap();
        busy();
        // By force neither, on Linux.
        let said = live.fails("zpool destroy -f tank");
        assert!(said.contains("busy"), "{said}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    live.ok("zfs destroy tank@a");

    // Mounted by itself.
    let other = live.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    live.ok("zfs snapshot tank@a");
    live.ok(&format!("mount.zfs tank@a {}", other.display()));
    assert_eq!(fs::read_to_string(other.join("folder/file")).unwrap(), text);
    busy();
    let rw = live.fails(&format!("mount.zfs tank@a {} -o remount,rw", other.display()));
    assert!(rw.contains("a snapshot is read-only"), "{rw}");
    live.ok(&format!("mount.zfs tank@a {} -o remount,ro", other.display()));
    assert!(Command::new("umount").arg(&other).status().unwrap().success());
    live.ok("zfs destroy tank@a");
    live.export_and_verify("tank");
}

#[test]
fn mounts_tell_of_themselves_and_go_in_order() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let mounted = |name: &str| live.ok(&format!("zfs get -H -o value mounted {name}")).trim().to_owned();
    live.ok("zfs create tank/a");
    live.ok("zfs create tank/a/b");
    assert_eq!(mounted("tank/a/b"), "yes");
    let listed: serde_json::Value = serde_json::from_str(&live.ok("zfs mount -j")).unwrap();
    assert_eq!(listed["output_version"]["command"], "zfs mount");
    let item = &listed["datasets"]["tank/a/b"];
    assert_eq!(
        (&item["filesystem"], item["mountpoint"].as_str()),
        (&"tank/a/b".into(), at.join("a/b").to_str())
    );
    // A property that an option overrides is shown as temporary.
    live.ok("zfs mount -o remount,ro tank/a");
    assert_eq!(live.ok("zfs get -H -o value,source readonly tank/a"), "on\ttemporary\n");
    assert!(has(&at.join("a"), "ro"));
    // By a path in it, through a link.
    std::os::unix::fs::symlink(&at, live.dir.path().join("link")).unwrap();
    fs::create_dir(at.join("folder")).unwrap();
    for (path, name) in [("link/folder", "tank"), ("mnt/a/b", "tank/a/b")] {
        let path = live.dir.path().join(path);
        assert_eq!(live.ok(&format!("zfs list -H -o name {}", path.display())), format!("{name}\n"));
        assert_eq!(live.ok(&format!("zfs get -H -o name type {}", path.display())), format!("{name}\n"));
    }
    assert_eq!(live.fails("zfs list /proc/self"), "'/proc/self': not a ZFS filesystem\n");
    // Mounts below go first; a mount returns with its mount point.
    live.ok("zfs unmount tank/a");
    assert_eq!((mounted("tank/a"), mounted("tank/a/b")), ("no".to_owned(), "no".to_owned()));
    live.ok(&format!("zfs set mountpoint={} tank/a", at.join("other").display()));
    assert_eq!((mounted("tank/a"), mounted("tank/a/b")), ("yes".to_owned(), "yes".to_owned()));
    // Others may unmount, too.
    assert!(Command::new("umount").arg(at.join("other/b")).status().unwrap().success());
    live.ok("zfs mount tank/a/b");
    // One that stands at the place of another goes before it.
    live.ok(&format!("zfs create -o mountpoint={} tank/c", at.join("other").display()));
    live.ok("zfs unmount -a");
    assert_eq!(mounted("tank"), "no");
    live.ok("zpool destroy tank");
}

#[test]
fn a_mount_removed_by_umount_is_closed_by_a_thread_that_may_wait() {
    let live = Live::new();
    let Some(_) = live.mounted() else { return };
    let at = live.dir.path().join("legacy");
    fs::create_dir(&at).unwrap();
    let mount = format!("mount.zfs tank/a {}", at.display());
    let umount = || assert!(Command::new("umount").arg(&at).status().unwrap().success());
    live.ok("zfs create -o mountpoint=legacy tank/a");
    live.ok(&mount);
    assert_eq!(
        live.fails("zfs unmount tank/a"),
        "cannot unmount 'tank/a': legacy mountpoint\nuse umount(8) to unmount this filesystem\n"
    );
    live.ok("zfs unmount -a");
    fs::write(at.join("file"), "not on disk yet").unwrap();
    // A device of a pool means its root file system.
    let (disk, place) = (live.disks().join("a"), live.dir.path().join("mnt"));
    let by_device = |options: &str| format!("mount.zfs {options} {} {}", disk.display(), place.display());
    assert!(live.fails(&by_device("-o zfsutil,abc")).contains("invalid mount option 'abc'"));
    live.ok(&by_device("-s -o zfsutil,abc"));
    assert_eq!(live.ok("zfs get -H -o value mounted tank"), "yes\n");
    umount();
    // A query holds the pool quiet, so that nothing can be written until it ends.
    assert_eq!(live.ok("zfs get -H -o value type tank/a"), "filesystem\n");
    live.ok(&mount);
    assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "not on disk yet");
    umount();
    live.ok("zfs destroy tank/a");
    live.export_and_verify("tank");
}

#[test]
fn an_old_file_system_is_written_and_upgraded() {
    let (live, Some(golden)) = (Live::new(), testkit::golden::get("zfs-fuse-v23")) else { return };
    for entry in fs::read_dir(&golden.dir).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("disk") {
            fs::copy(entry.path(), live.disks().join(entry.file_name())).unwrap();
        }
    }
    let (name, root) = (golden.pool_name(), live.dir.path().join("root"));
    let run =
        live.run(&format!("zpool import -f -R {} -d {} {name}", root.display(), live.disks().display()));
    if !Path::new("/dev/fuse").exists() || run.err.contains("not permitted") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {}", run.err);
        return;
    }
    assert_eq!(run.code, 0, "{}", run.err);
    let at = PathBuf::from(live.ok(&format!("zfs get -H -o value mountpoint {name}")).trim_end());
    assert!(fs::read_dir(&at).unwrap().count() > 0);
    fs::write(at.join("new"), "of version 4").unwrap();
    fs::create_dir(at.join("new dir")).unwrap();
    fs::rename(at.join("new"), at.join("new dir/file")).unwrap();
    let version = || live.ok(&format!("zfs get -H -o value version {name}"));
    assert_eq!(version(), "4\n");
    // The pool is too old for version 5.
    let why = "pool and or dataset must be upgraded to set this property or value\n";
    assert!(live.fails(&format!("zfs set version=5 {name}")).ends_with(why));
    live.ok(&format!("zpool upgrade {name}"));
    assert!(live.ok(&format!("zfs upgrade {name}")).contains("1 filesystems upgraded\n"));
    assert_eq!(version(), "5\n");
    fs::write(at.join("new dir/later"), "of version 5").unwrap();
    assert_eq!(fs::read_to_string(at.join("new dir/file")).unwrap(), "of version 4");
    live.export_and_verify(name);
}

#[test]
fn mount_takes_the_options_of_fstab_again_and_at_two_places() {
    let live = Live::new();
    let Some(_) = live.mounted() else { return };
    let places = ["one", "two"].map(|name| live.dir.path().join(name));
    let [one, two] = &places;
    places.iter().for_each(|at| fs::create_dir(at).unwrap());
    live.ok("zfs create -o mountpoint=legacy tank/a");
    live.ok(&format!(
        "mount.zfs tank/a {} -o rw,nodiratime,sync,lazytime,x-systemd.automount",
        one.display()
    ));
    assert!(has(one, "nodiratime") && has(one, "sync"));
    fs::write(one.join("file"), "text").unwrap();
    live.ok(&format!("mount.zfs tank/a {} -o remount,ro", one.display()));
    assert!(has(one, "ro") && fs::write(one.join("file"), "x").is_err());
    // mount(8) repeats what the kernel shows of a FUSE mount.
    let shown = "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,async,remount";
    live.ok(&format!("mount.fuse.zfs tank/a {} -o {shown}", one.display()));
    fs::write(one.join("file"), "more").unwrap();
    // One file system at two places, of which one only shows it.
    live.ok(&format!("mount.zfs tank/a {} -o ro", two.display()));
    assert_eq!(fs::read_to_string(two.join("file")).unwrap(), "more");
    let device = |at: &Path| fs::metadata(at).unwrap().dev();
    assert_eq!(device(one), device(two));
    assert_eq!(fs::write(two.join("file"), "x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    fs::write(one.join("file"), "most").unwrap();
    let again = live.fails(&format!("mount.zfs tank/a {}", two.display()));
    assert!(again.contains("is already mounted"), "{again}");
    // Either goes by itself, or with the pool.
    assert!(Command::new("umount").arg(two).status().unwrap().success());
    live.ok(&format!("mount.zfs tank/a {}", two.display()));
    fs::write(two.join("file"), "all").unwrap();
    live.export_and_verify("tank");
    assert!(!two.join("file").exists() && !one.join("file").exists());
}

#[test]
fn detached_and_hidden_mounts_are_busy_at_once_and_foreign_mounts_stay() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    live.ok("zfs create tank/a");
    let a = at.join("a");
    let system = |words: &[&str]| Command::new(words[0]).args(&words[1..]).status().unwrap().success();
    let place = a.to_str().unwrap();
    if !system(&["mount", "-t", "tmpfs", "foreign", place]) {
        eprintln!("SKIPPED: tmpfs cannot be mounted here");
        return;
    }
    let begin = std::time::Instant::now();
    let busy = format!("cannot unmount '{place}': pool or dataset is busy");
    // Hidden by another file system, whose flags stay as they are when properties change.
    let hidden = format!("{busy}: {place} is hidden by another mount\n");
    assert_eq!(live.fails("zfs unmount tank/a"), hidden);
    assert!(system(&["mount", "-o", "remount,nosuid,nodev", place]));
    let before = in_kernel(&a);
    live.run("zfs set exec=off tank/a");
    live.run("zfs set exec=on atime=off tank/a");
    assert_eq!(in_kernel(&a), before);
    assert!(system(&["umount", place]));
    // The next change tells the kernel what it was not told while the mount was hidden.
    assert!(!has(&a, "noatime"));
    live.ok("zfs set snapdir=visible tank/a");
    assert!(has(&a, "noatime"));
    fs::write(a.join("file"), "written before").unwrap();
    let file = fs::OpenOptions::new().append(true).open(a.join("file")).unwrap();
    assert!(system(&["umount", "-l", place]));
    assert!(live.fails("zfs mount tank/a").contains("'tank/a': it was detached (umount -l) while in use"));
    assert!(system(&["mount", "-t", "tmpfs", "foreign", place]));
    assert!(live.fails("zfs unmount tank/a").starts_with(&busy));
    assert!(live.fails("zpool export tank").contains("busy"));
    // Each of them waited for a minute before.
    assert!(begin.elapsed().as_secs() < 50, "{:?}", begin.elapsed());
    (&file).write_all(b", and while detached").unwrap();
    live.ok("zfs unmount -f tank/a");
    assert_eq!(in_kernel(&a).0, "foreign");
    assert!(system(&["umount", place]));
    live.ok("zfs mount tank/a");
    assert_eq!(fs::read_to_string(a.join("file")).unwrap(), "written before, and while detached");
    // A directory above it has another name by now, and a link stands at the old one.
    live.ok("zfs create -p tank/b/c");
    fs::create_dir_all(at.join("b/x/y")).unwrap();
    live.ok(&format!("zfs set mountpoint={} tank/b/c", at.join("b/x/y").display()));
    fs::rename(at.join("b/x"), at.join("b/z")).unwrap();
    std::os::unix::fs::symlink("/", at.join("b/x")).unwrap();
    live.ok("zfs set readonly=on tank/b/c");
    live.ok("zfs unmount tank/b/c");
    let moved = format!(" {} ", at.join("b/z/y").display());
    assert!(!fs::read_to_string("/proc/mounts").unwrap().contains(&moved));
    assert!((&file).write_all(b"lost").is_err());
    drop(file);
    live.export_and_verify("tank");
}

/// The error output of a command that succeeds.
fn warns(live: &Live, line: &str) -> String {
    let run = live.run(line);
    assert_eq!(run.code, 0, "{line}: {}{}", run.out, run.err);
    run.err
}

/// OpenZFS's words and exit code; what can be mounted is mounted.
#[test]
fn a_file_system_that_cannot_move_leaves_its_property_set() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    live.ok("zfs create -o overlay=off tank/a");
    live.ok(&format!("zfs create -o mountpoint={} tank/b", at.join("own").display()));
    let full = live.dir.path().join("full");
    fs::create_dir_all(full.join("x")).unwrap();
    let said = warns(&live, &format!("zfs set mountpoint={} tank/a", full.display()));
    let remount = "property may be set but unable to remount filesystem\n";
    let kept = format!("cannot mount 'tank/a': directory is not empty\n{remount}");
    assert_eq!(said, kept);
    let got = live.ok("zfs get -H -o value mountpoint,mounted tank/a");
    assert_eq!(got, format!("{}\nno\n", full.display()));
    live.ok("zfs inherit mountpoint tank/a");
    assert_eq!(live.ok("zfs get -H -o value mounted tank/a"), "yes\n");
    // One that was not mounted.
    live.ok("zfs set mountpoint=legacy tank/a");
    assert_eq!(warns(&live, &format!("zfs set mountpoint={} tank/a", full.display())), kept);
    // One that follows another.
    live.ok("zfs create tank/above");
    live.ok("zfs create tank/above/under");
    live.ok("zfs set overlay=off tank/above");
    fs::create_dir_all(full.join("under/x")).unwrap();
    live.ok("zfs set mountpoint=none tank/above");
    live.ok("zfs set overlay=off tank/above/under");
    let said = warns(&live, &format!("zfs set mountpoint={} tank/above", full.display()));
    assert!(said.ends_with(remount), "{said}");
    fs::create_dir_all(at.join("above/x")).unwrap();
    assert!(warns(&live, "zfs inherit mountpoint tank/above").ends_with(remount));
    live.export_and_verify("tank");
}
