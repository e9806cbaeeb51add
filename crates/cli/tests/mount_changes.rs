//! Mounted file systems whose properties or names change, or that a refused command leaves alone.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use live::Live;

/// The kernel's mount points of a dataset of this test's pool.
fn places(live: &Live, dataset: &str) -> Vec<PathBuf> {
    let all = fs::read_to_string("/proc/mounts").unwrap();
    let place =
        |line: &str| line.strip_prefix(dataset)?.strip_prefix(' ')?.split(' ').next().map(PathBuf::from);
    // Other tests have pools of the same name.
    all.lines().filter_map(place).filter(|place| place.starts_with(live.dir.path())).collect()
}

/// A process with its working directory there.
struct Visitor(Child);

impl Visitor {
    fn of(at: &Path) -> Self {
        Self(Command::new("sleep").arg("600").current_dir(at).spawn().unwrap())
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_mounted_file_system_that_is_not_mounted_by_itself_stays_mounted() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    live.ok("zfs create -o canmount=noauto tank/root");
    live.ok("zfs mount tank/root");
    let other = live.dir.path().join("other");
    live.ok(&format!("zfs set mountpoint={} tank/root", other.display()));
    assert_eq!(places(&live, "tank/root"), [other]);
    live.ok("zfs inherit mountpoint tank/root");
    assert_eq!(places(&live, "tank/root"), [at.join("root")]);
    live.ok("zfs rename tank/root tank/new");
    assert_eq!(places(&live, "tank/new"), [at.join("new")]);
    live.ok("zfs set canmount=off tank/new");
    assert!(places(&live, "tank/new").is_empty());
    live.export_and_verify("tank");
}

#[test]
fn a_file_system_that_mount_put_somewhere_stays_there_when_it_is_renamed() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    live.ok("zfs create -o mountpoint=legacy tank/old");
    let own = at.join("own");
    fs::create_dir(&own).unwrap();
    live.ok(&format!("mount.zfs tank/old {}", own.display()));
    fs::write(own.join("file"), "content").unwrap();
    live.ok("zfs rename tank/old tank/new");
    assert_eq!(fs::read(own.join("file")).unwrap(), b"content");
    assert_eq!(live.ok("zfs get -H -o value mounted tank/new"), "yes\n");
    live.export_and_verify("tank");
}

#[test]
fn mount_options_of_an_import_are_parted_at_commas() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    live.ok("zpool export tank");
    let run = live.run(&format!("zpool import -d {} -o noatime,nosuid -o ro tank", live.disks().display()));
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let all = fs::read_to_string("/proc/mounts").unwrap();
    let line = all.lines().find(|line| line.split(' ').nth(1) == at.to_str()).unwrap();
    let options: Vec<&str> = line.split(' ').nth(3).unwrap().split(',').collect();
    assert!(["ro", "noatime", "nosuid"].iter().all(|option| options.contains(option)), "{line}");
}

#[test]
fn a_refused_rename_leaves_all_mounted() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    for name in ["a", "a/b", "a/b/c"] {
        live.ok(&format!("zfs create tank/{name}"));
    }
    let visitor = Visitor::of(&at.join("a"));
    assert!(live.fails("zfs rename tank/a tank/z").contains("is busy"));
    assert_eq!(places(&live, "tank/a/b"), [at.join("a/b")]);
    assert_eq!(places(&live, "tank/a/b/c"), [at.join("a/b/c")]);
    drop(visitor);
    live.ok("zfs rename tank/a tank/z");
    assert_eq!(places(&live, "tank/z/b/c"), [at.join("z/b/c")]);
    live.export_and_verify("tank");
}

#[test]
fn inheritance_from_a_child_does_not_concern_its_parent() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let own = live.dir.path().join("own");
    live.ok("zfs create tank/a");
    live.ok(&format!("zfs create -o mountpoint={} tank/a/b", own.display()));
    live.ok("zfs create tank/a/b/c");
    live.ok("zfs create tank/a/b/d");
    live.ok("zfs unmount tank/a/b/d");
    let _visitor = Visitor::of(&own.join("c"));
    let other = live.dir.path().join("other");
    live.ok(&format!("zfs set mountpoint={} tank/a", other.display()));
    assert_eq!(places(&live, "tank/a"), [other]);
    live.ok("zfs inherit mountpoint tank/a");
    assert_eq!(places(&live, "tank/a"), [at.join("a")]);
    live.ok("zfs set canmount=off tank/a");
    assert_eq!(places(&live, "tank/a/b/c"), [own.join("c")]);
    assert!(places(&live, "tank/a/b/d").is_empty());
}

#[test]
fn a_mount_that_stays_has_the_properties_of_the_new_place() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    live.ok("zfs create -o readonly=on -o exec=off tank/strict");
    live.ok("zfs create tank/old");
    let file = at.join("old/file");
    fs::write(&file, "before").unwrap();
    live.ok("zfs rename -u tank/old tank/strict/new");
    assert_eq!(places(&live, "tank/old"), [at.join("old")]);
    assert!(fs::write(&file, "after").is_err());
    let all = fs::read_to_string("/proc/mounts").unwrap();
    let line = all.lines().find(|line| line.contains(at.join("old").to_str().unwrap())).unwrap();
    assert!(line.contains("ro,") && line.contains("noexec"), "{line}");
    assert_eq!(fs::read(&file).unwrap(), b"before");
    live.export_and_verify("tank");
}

#[test]
fn a_refused_destroy_leaves_mounted_what_stays() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    for name in ["x", "x/y", "x/y/z", "p", "p/a", "p/b"] {
        live.ok(&format!("zfs create tank/{name}"));
    }
    live.ok("zfs snapshot tank/x/y@1");
    live.ok("zfs hold keep tank/x/y@1");
    assert!(live.fails("zfs destroy -r tank/x").contains("it's being held"));
    // As in OpenZFS what comes before it is gone.
    assert_eq!(live.ok("zfs list -H -o name -r tank/x"), "tank/x\ntank/x/y\n");
    assert_eq!(places(&live, "tank/x"), [at.join("x")]);
    assert_eq!(places(&live, "tank/x/y"), [at.join("x/y")]);
    let visitor = Visitor::of(&at.join("p/b"));
    assert!(live.fails("zfs destroy -r tank/p").contains("is busy"));
    assert_eq!(live.ok("zfs list -H -o name -r tank/p"), "tank/p\ntank/p/b\n");
    assert_eq!(places(&live, "tank/p/b"), [at.join("p/b")]);
    assert_eq!(places(&live, "tank/p"), [at.join("p")]);
    drop(visitor);
    live.ok("zfs release keep tank/x/y@1");
    live.ok("zfs destroy -r tank/x");
    live.ok("zfs destroy -r tank/p");
    assert!(!at.join("x").exists());
    live.export_and_verify("tank");
}

/// Three times as many lists without that, and no end of them.
#[test]
fn the_livelist_of_a_rewritten_clone_stays_short() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    live.ok("set zfs_livelist_max_entries=20 zfs_livelist_min_percent_shared=1");
    live.ok("zfs create -o recordsize=4K -o compression=off tank/fs");
    fs::write(at.join("fs/file"), vec![1; 1 << 20]).unwrap();
    live.ok("zfs snapshot tank/fs@1");
    live.ok("zfs clone tank/fs@1 tank/clone");
    for n in 0..20 {
        fs::write(at.join(format!("clone/{}", n % 5)), vec![n; 160 << 10]).unwrap();
        live.ok("zpool sync tank");
    }
    fs::remove_file(at.join("clone/0")).unwrap();
    live.export_and_verify("tank");
    let disks = live.disks().display().to_string();
    let shown = live.ok(&format!("zdb -e -p {disks} -vvvvv tank"));
    let line = shown.lines().find(|line| line.contains("Livelist:")).unwrap();
    let lists: u64 = line.split(", ").last().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((2..=8).contains(&lists), "{line}");
    live.ok(&format!("zpool import -d {disks} tank"));
    for n in 0..5 {
        fs::write(at.join(format!("clone/{n}")), vec![n; 80 << 10]).unwrap();
    }
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {disks} tank"));
    live.ok("zfs destroy tank/clone");
    live.ok("zpool wait -t free tank");
    live.export_and_verify("tank");
}

#[test]
fn an_unmount_takes_everything_below_wherever_it_is() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let own = live.dir.path().join("own");
    live.ok("zfs create tank/a");
    live.ok(&format!("zfs create -o mountpoint={} tank/a/b", own.display()));
    live.ok("zfs create tank/a/b/c");
    live.ok("zfs create -o mountpoint=legacy tank/a/old");
    live.ok("zfs create tank/aside");
    let legacy = live.dir.path().join("legacy");
    fs::create_dir(&legacy).unwrap();
    live.ok(&format!("mount.zfs tank/a/old {}", legacy.display()));
    let visitor = Visitor::of(&own);
    assert!(live.fails("zfs unmount tank/a").contains("is busy"));
    assert_eq!(places(&live, "tank/a"), [at.join("a")]);
    drop(visitor);
    live.ok("zfs unmount tank/a");
    assert_eq!(places(&live, "tank/a/old"), [legacy]);
    for name in ["a", "a/b", "a/b/c"] {
        assert!(places(&live, &format!("tank/{name}")).is_empty(), "{name}");
    }
    assert_eq!(places(&live, "tank/aside"), [at.join("aside")]);
    live.export_and_verify("tank");
}

/// As OpenZFS does: a dataset that stays keeps itself and what it needs.
#[test]
fn a_recursive_destroy_goes_on_behind_what_stays() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    for name in ["top", "top/a", "top/busy", "top/c", "top/c/held", "top/z", "clone"] {
        match name {
            "clone" => live.ok("zfs clone tank/top/z@2 tank/clone"),
            _ => live.ok(&format!("zfs create tank/{name}")),
        };
        live.ok(&format!("zfs snapshot tank/{name}@1"));
        live.ok(&format!("zfs snapshot tank/{name}@2"));
    }
    live.ok("zfs hold keep tank/top/c/held@2");
    let visitor = Visitor::of(&at.join("top/busy"));
    let run = live.run("zfs destroy -R tank/top");
    assert_eq!(run.code, 1, "{}", run.err);
    for what in [
        "cannot destroy snapshot tank/top/c/held@2: it's being held",
        &format!("cannot unmount '{}': ", at.join("top/busy").display()),
        "cannot destroy 'tank/top/c': filesystem has children",
    ] {
        assert!(run.err.contains(what), "{what}: {}", run.err);
    }
    let left = ["top", "top/busy", "top/c", "top/c/held", "top/c/held@1", "top/c/held@2"];
    let left: String = left.iter().map(|name| format!("tank/{name}\n")).collect();
    assert_eq!(live.ok("zfs list -H -o name -t all -r tank/top"), left);
    assert!(live.fails("zfs list tank/clone").contains("does not exist"));
    for name in ["top", "top/busy", "top/c", "top/c/held"] {
        assert_eq!(places(&live, &format!("tank/{name}")), [at.join(name)], "{name}");
    }
    drop(visitor);
    live.ok("zfs release keep tank/top/c/held@2");
    live.ok("zfs destroy -r tank/top");
    live.export_and_verify("tank");
}

#[test]
fn a_parent_that_was_not_mounted_is_mounted_below_its_children() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let new = live.dir.path().join("new");
    live.ok("zfs create -o canmount=off tank/a");
    live.ok("zfs create tank/a/b");
    fs::write(at.join("a/b/f"), "content").unwrap();
    live.ok(&format!("zfs set canmount=on mountpoint={} tank/a", new.display()));
    assert_eq!(places(&live, "tank/a"), std::slice::from_ref(&new));
    assert_eq!(fs::read_to_string(new.join("b/f")).unwrap(), "content");
    live.ok("zfs unmount tank/a/b");
    live.ok("zfs unmount tank/a");
    live.ok("zfs mount tank/a/b");
    live.ok("zfs inherit mountpoint tank/a");
    assert_eq!(fs::read_to_string(at.join("a/b/f")).unwrap(), "content");
    live.export_and_verify("tank");
}

#[test]
fn a_recursive_inherit_moves_what_had_a_place_of_its_own() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let own = live.dir.path().join("own");
    live.ok("zfs create tank/a");
    live.ok(&format!("zfs create -o mountpoint={} tank/a/b", own.display()));
    live.ok("zfs create -o mountpoint=none tank/a/c");
    live.ok("zfs create -V 1M -s tank/a/v");
    live.ok("zfs inherit -r mountpoint tank/a");
    for name in ["a", "a/b", "a/c"] {
        assert_eq!(places(&live, &format!("tank/{name}")), [at.join(name)]);
    }
    live.export_and_verify("tank");
}

#[test]
fn a_file_system_of_a_container_is_not_mounted_on_the_host() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let host = live.dir.path().join("host");
    fs::create_dir(&host).unwrap();
    fs::write(host.join("file"), "of the host").unwrap();
    let stays = || {
        assert!(places(&live, "tank/ct").is_empty() && places(&live, "tank/ct/below").is_empty());
        assert_eq!(fs::read(host.join("file")).unwrap(), b"of the host");
    };
    live.ok(&format!("zfs create -o zoned=on -o mountpoint={} tank/ct", host.display()));
    stays();
    live.ok("zfs create tank/ct/below");
    let said = live.fails("zfs mount tank/ct");
    assert_eq!(said, "cannot mount 'tank/ct': dataset is exported to a local zone\n");
    live.ok("zfs mount -a");
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    stays();
    live.ok("zfs rename tank/ct tank/x");
    live.ok("zfs rename tank/x tank/ct");
    live.ok("zfs inherit mountpoint tank/ct");
    live.ok(&format!("zfs set mountpoint={} tank/ct", host.display()));
    stays();
    // One that is mounted goes with its children, those aside that are not zoned.
    live.ok("zfs create -o mountpoint=none tank/later");
    live.ok(&format!("zfs create -o mountpoint={} tank/later/a", at.join("a").display()));
    live.ok(&format!("zfs create -o mountpoint={} -o zoned=off tank/later/b", at.join("b").display()));
    live.ok("zfs set zoned=on tank/later");
    assert!(places(&live, "tank/later/a").is_empty());
    assert_eq!(places(&live, "tank/later/b"), [at.join("b")]);
    live.ok("zfs inherit zoned tank/later");
    live.ok("zfs mount tank/later/a");
    live.export_and_verify("tank");
}

/// OpenZFS 2.4's words and exit code.
#[test]
fn a_file_system_that_cannot_be_mounted_is_made() {
    let live = Live::new();
    let Some(_) = live.mounted() else { return };
    let full = live.dir.path().join("full");
    fs::create_dir_all(full.join("x")).unwrap();
    live.ok("zfs snapshot tank@1");
    for verb in ["create", "clone"] {
        let from = if verb == "clone" { "tank@1" } else { "" };
        let run = live
            .run(&format!("zfs {verb} -o overlay=off -o mountpoint={} {from} tank/{verb}", full.display()));
        let made = "filesystem successfully created, but not mounted\n";
        assert_eq!(run.err, format!("cannot mount 'tank/{verb}': directory is not empty\n{made}"));
        assert_eq!(run.code, 0, "{verb}");
        assert_eq!(live.ok(&format!("zfs get -H -o value mounted tank/{verb}")), "no\n");
    }
    live.export_and_verify("tank");
}

#[test]
fn the_space_that_a_destroy_reclaims_counts_blocks_shared_by_its_snapshots() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    live.ok("zfs set compression=off tank");
    fs::write(at.join("kept"), vec![1; 1 << 20]).unwrap();
    live.ok("zfs snapshot tank@1");
    fs::write(at.join("shared"), vec![2; 4 << 20]).unwrap();
    live.ok("zfs snapshot tank@2");
    live.ok("zfs snapshot tank@3");
    fs::remove_file(at.join("shared")).unwrap();
    live.ok("zfs snapshot tank@4");
    let would = |names: &str| -> u64 {
        let said = live.ok(&format!("zfs destroy -nvp tank@{names}"));
        said.lines().find_map(|line| line.strip_prefix("reclaim\t")).unwrap().parse().unwrap()
    };
    assert!(would("2") < 1 << 20 && would("3") < 1 << 20 && would("1,3") < 1 << 20);
    for names in ["2%3", "2,3", "1%3", "%"] {
        assert!((4 << 20..5 << 20).contains(&would(names)), "{names}: {}", would(names));
    }
    live.export_and_verify("tank");
}

#[test]
fn a_read_only_import_mounts_each_file_system_by_itself() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    // Root pools are laid out so: the files of `usr` are the parent's, only `usr/local` is a file system.
    live.ok("zfs create -o canmount=off tank/usr");
    live.ok("zfs create tank/usr/local");
    live.ok("zfs create -o mountpoint=none tank/hidden");
    live.ok("zfs create -o canmount=noauto tank/never");
    fs::write(at.join("usr/prog"), "run").unwrap();
    fs::write(at.join("usr/local/own"), "local").unwrap();
    live.ok("zpool export tank");
    let import = format!("zpool import -d {} -o readonly=on tank", live.disks().display());
    live.ok(&import);
    let names = |dir: PathBuf| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(at.clone()), ["usr"]);
    assert_eq!(names(at.join("usr")), ["local", "prog"]);
    assert_eq!(fs::read_to_string(at.join("usr/prog")).unwrap(), "run");
    assert_eq!(fs::read_to_string(at.join("usr/local/own")).unwrap(), "local");
    // As much is available as `zfs list` says, in units of `df`.
    let df = std::process::Command::new("df")
        .args(["-B4096", "--output=avail"])
        .arg(at.join("usr/local"))
        .output()
        .unwrap();
    let shown: u64 = String::from_utf8_lossy(&df.stdout).split_whitespace().last().unwrap().parse().unwrap();
    let listed: u64 = live.ok("zfs get -Hp -o value available tank/usr/local").trim().parse().unwrap();
    assert!(shown > 0);
    assert_eq!(shown, listed / 4096);
    assert_eq!(live.ok("zfs get -H -o value,source readonly tank/usr/local"), "on\ttemporary\n");
    let said = live.fails("zfs mount tank/never");
    assert_eq!(said, "cannot mount 'tank/never': failed to create mountpoint: Read-only file system\n");
    assert_eq!(live.fails("zpool sync tank"), "sync 'tank' failed: pool is read-only\n");
    live.ok("zpool export tank");
}

/// The kernel's flags are not what the daemon told it last: `mount -i` calls no helper.
#[test]
fn a_mount_that_another_program_made_read_only_becomes_writable_again() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let (file, place) = (at.join("file"), at.display());
    for line in [
        format!("mount.zfs tank {place} -o remount,rw"),
        "zfs set readonly=off tank".to_owned(),
        "zfs inherit readonly tank".to_owned(),
        "zfs mount -o remount,rw tank".to_owned(),
    ] {
        fs::write(&file, "before").unwrap();
        let changed = Command::new("mount").args(["-i", "-o", "remount,ro"]).arg(&at).status().unwrap();
        assert!(changed.success());
        assert_eq!(fs::write(&file, "x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        // Other properties have no flags: they leave it as another program wants it.
        live.ok("zfs set compression=lz4 tank");
        assert!(fs::write(&file, "x").is_err());
        live.ok(&line);
        fs::write(&file, "after").unwrap_or_else(|why| panic!("{line}: {why}"));
    }
    live.export_and_verify("tank");
}

/// A mount without io_uring is a question of speed: the log tells of it.
#[test]
fn the_log_tells_why_mounts_do_without_io_uring() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    let made = live
        .command(&format!("zpool create -O mountpoint=none tank {disk}"))
        .env("AQUIFER_IO_URING", "0")
        .status();
    assert!(made.unwrap().success());
    assert!(live.log().contains("mounts use /dev/fuse, not io_uring: AQUIFER_IO_URING=0"), "{}", live.log());
}

/// Whether this process has mounts of its own, which a mount on the root needs: it would hide all files from programs
/// that begin at the root of all. Without them the test runs again in a process that has them.
fn has_own_mounts(test: &str) -> bool {
    const MARK: &str = "AQUIFER_TEST_OWN_MOUNTS";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no mounts of its own for a process here");
        return false;
    }
    let this = std::env::current_exe().unwrap();
    // The copies of other tests' mounts would keep those from being unmounted.
    let without = "umount -a -l -t fuse,fuse.zfs 2>/dev/null; exec \"$0\" \"$@\"";
    let mut again = unshare();
    again.args(["sh", "-c", without]).arg(this).args(["--exact", test, "--nocapture"]).env(MARK, "1");
    let again = again.status();
    assert!(again.unwrap().success());
    false
}

/// The root of a process stays below a mount on it, and no path leads to a mount that a later one hides.
#[test]
fn a_mount_on_the_root_is_undone_and_a_hidden_one_is_named() {
    if !has_own_mounts("a_mount_on_the_root_is_undone_and_a_hidden_one_is_named") {
        return;
    }
    let live = Live::new();
    if live.mounted().is_none() {
        return;
    }
    live.ok("zfs create tank/a");
    live.ok("zfs set mountpoint=/ tank/a");
    assert!(live.ok("zfs mount").lines().any(|line| line.starts_with("tank/a ")));
    live.ok("zfs set mountpoint=none tank/a");
    assert!(!live.ok("zfs mount").contains("tank/a"));

    let outer = live.dir.path().join("outer");
    live.ok(&format!("zfs create -o mountpoint={}/in tank/in", outer.display()));
    live.ok(&format!("zfs create -o mountpoint={} tank/out", outer.display()));
    let said = live.fails("zfs unmount tank/in");
    assert!(said.contains("is hidden by another mount"), "{said}");
    live.ok("zfs unmount tank/out");
    live.ok("zfs unmount tank/in");
    live.export_and_verify("tank");
}
