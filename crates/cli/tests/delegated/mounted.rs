//! Mounts of delegated users, and access of other users to mounts.

use std::fs;
use std::os::unix::process::CommandExt;

use super::live::Run;
use super::{DELEGATED, House, is_root};

#[test]
fn links_in_a_users_folder_lead_no_mount_elsewhere() {
    if !is_root() || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: only root with /dev/fuse can mount for others");
        return;
    }
    let house = House::new();
    let (disk, at) = (house.live.disk("a", 128), house.live.dir.path().join("tank"));
    house.owner(&format!("zpool create -O mountpoint={} tank {disk}", at.display()));
    house.owner("zfs create tank/home");
    std::os::unix::fs::chown(at.join("home"), Some(DELEGATED), Some(DELEGATED)).unwrap();
    house.owner(&format!("zfs allow -u {DELEGATED} create,mount tank/home"));
    let told = house.delegated("zfs create tank/home/new");
    let words = "filesystem successfully created, but it may only be mounted by root\n";
    assert_eq!((told.code, told.err.as_str()), (0, words));
    assert!(
        house
            .delegated("zfs mount -a")
            .err
            .starts_with("cannot mount 'tank/home/new': Insufficient privileges")
    );
    assert!(house.may("zdb").contains("pool_guid"));
    let (target, way) = (house.live.dir.path().join("secret"), at.join("home/new"));
    fs::create_dir(&target).unwrap();
    let link = || {
        let mut command = std::process::Command::new("ln");
        let done = command.arg("-s").arg(&target).arg(&way).uid(DELEGATED).gid(DELEGATED).status().unwrap();
        assert!(done.success());
    };
    link();
    for line in ["zfs mount tank/home/new", "zfs mount -a"] {
        let run = house.live.run(line);
        assert!(run.code != 0 && run.err.contains("symbolic link"), "{line}: {run:?}");
    }
    fs::remove_file(&way).unwrap();
    house.owner("zfs mount -a");
    assert_eq!(house.owner("zfs mount").lines().count(), 3);
    // Nor does the way to an unmount.
    house.owner("zfs unmount tank/home/new");
    fs::remove_dir(&way).unwrap();
    link();
    let run = house.live.run("zfs create tank/home/new/deep");
    assert!(run.err.ends_with("filesystem successfully created, but not mounted\n"), "{run:?}");
    assert!(!target.join("deep").exists());
    house.live.export_and_verify("tank");
}

#[test]
fn snapshots_are_made_by_mkdir_with_the_permission() {
    let is_root = std::process::Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if !is_root || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: only root with /dev/fuse can mount for others");
        return;
    }
    let house = House::new();
    let (disk, at) = (house.live.disk("a", 128), house.live.dir.path().join("tank"));
    house.owner(&format!("zpool create -O mountpoint={} tank {disk}", at.display()));
    let folder = at.join(".zfs/snapshot");
    let does = |program: &str, name: &str| {
        let mut command = std::process::Command::new(program);
        command.arg(folder.join(name)).uid(DELEGATED).gid(DELEGATED).stderr(std::process::Stdio::null());
        command.status().unwrap().success()
    };
    let seconds = || fs::metadata(&folder).unwrap().modified().unwrap().elapsed().unwrap().as_secs();
    assert!(seconds() > 1_000_000 && !does("mkdir", "one"));
    house.owner(&format!("zfs allow -u {DELEGATED} snapshot tank"));
    assert!(does("mkdir", "one") && seconds() < 100);
    assert!(!does("rmdir", "one"));
    house.owner(&format!("zfs allow -u {DELEGATED} destroy,mount tank"));
    assert!(does("rmdir", "one"));
    assert_eq!(house.owner("zfs list -H -t snapshot tank"), "");
    for line in ["-c -l create", "-s @set", "-e -u staff hold", "everyone type", "3999999999 hold"] {
        let run = house.live.run(&format!("zfs allow {line} tank"));
        assert!(run.code != 0, "{line}: {}", run.out);
    }
    house.live.export_and_verify("tank");
}

/// The list of a file: owner and mask `rw`, the delegated user `r`, nothing for others.
fn list_for_delegated() -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries = [(1u16, 6u16, NONE), (2, 4, DELEGATED), (4, 0, NONE), (16, 6, NONE), (32, 0, NONE)];
    let entry = |(tag, perm, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2u32.to_le_bytes().to_vec()].into_iter().chain(entries.map(entry)).flatten().collect()
}

#[test]
fn a_read_only_tree_for_all_users_heeds_lists_where_they_count() {
    use rustix::fs::{XattrFlags, setxattr};
    if !is_root() || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: needs root and /dev/fuse");
        return;
    }
    let house = House::new();
    let (disk, at) = (house.live.disk("a", 128), house.live.dir.path().join("mnt"));
    house.owner(&format!("zpool create -O mountpoint={} -O acltype=posix tank {disk}", at.display()));
    for name in ["on", "off"] {
        house.owner(&format!("zfs create tank/{name}"));
        let file = at.join(name).join("file");
        fs::write(&file, name).unwrap();
        setxattr(&file, "system.posix_acl_access", &list_for_delegated(), XattrFlags::empty()).unwrap();
    }
    house.owner("zfs set acltype=off tank/off");
    house.live.export_and_verify("tank");
    let tree = house.live.dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let (disks, to) = (house.live.disks(), tree.display());
    house.owner(&format!("mount -o allow_other -d {} tank {to}", disks.display()));
    let read = |name: &str| {
        let mut command = std::process::Command::new("cat");
        command.arg(tree.join(name).join("file")).uid(DELEGATED).gid(DELEGATED).current_dir("/");
        let run: Run = command.output().unwrap().into();
        run
    };
    let list = |name: &str| {
        let mut value = [0; 64];
        rustix::fs::getxattr(tree.join(name).join("file"), "system.posix_acl_access", &mut value)
    };
    let (on, off) = (read("on"), read("off"));
    let (shown, hidden) = (list("on"), list("off"));
    let unmounted = std::process::Command::new("umount").arg(&tree).status().unwrap();
    assert!(unmounted.success());
    assert_eq!((on.code, on.out.as_str()), (0, "on"), "{on:?}");
    assert!(off.code == 1 && off.err.contains("Permission denied"), "{off:?}");
    assert_eq!((shown, hidden), (Ok(44), Err(rustix::io::Errno::NODATA)));
}
