//! Projects of files on a mount: set by directory, counted, limited.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use live::Live;

#[test]
fn a_tree_has_a_project_a_quota_and_an_account() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    let live = Live::new();
    let mount = live.dir.path().join("mnt");
    let at = |name: &str| mount.join(name).display().to_string();
    live.ok(&format!(
        "zpool create -O mountpoint={} -O compression=off tank {}",
        mount.display(),
        live.disk("a", 256)
    ));
    fs::create_dir_all(mount.join("tree/sub")).unwrap();
    fs::write(mount.join("tree/sub/old"), [7; 100_000]).unwrap();
    fs::write(mount.join("other"), [7; 100_000]).unwrap();
    std::os::unix::fs::symlink("sub", mount.join("tree/link")).unwrap();

    let (tree, sub, old) = (at("tree"), at("tree/sub"), at("tree/sub/old"));
    assert_eq!(live.ok(&format!("zfs project {tree}")), format!("    0 - {tree}\n    0 - {sub}\n"));
    live.ok(&format!("zfs project -p 42 {tree}"));
    assert_eq!(live.ok(&format!("zfs project -d {tree}")), format!("   42 - {tree}\n"));
    assert!(live.fails(&format!("zfs project -d {old}")).contains("'-d' option on non-dir target"));
    let found = live.ok(&format!("zfs project -c -r {tree}"));
    assert!(found.contains(&format!("{sub} - project ID is not set properly (0/42)\n")), "{found}");
    assert!(found.contains(&format!("{old} - project inherit flag is not set\n")), "{found}");
    // Without a number the tree's own project is handed down.
    live.ok(&format!("zfs project -r -s {tree}"));
    assert_eq!(
        live.ok(&format!("zfs project -r {tree}")),
        format!("   42 P {tree}\n   42 P {sub}\n   42 P {old}\n")
    );
    assert_eq!(live.ok(&format!("zfs project -c -r {tree}")), "");
    let nul = live.ok(&format!("zfs project -c -0 -r -p 43 {tree}"));
    assert_eq!(nul, format!("{tree}\0{sub}\0{old}\0"));

    // New files have it, too, and are counted.
    fs::write(mount.join("tree/sub/new"), vec![8; 1 << 20]).unwrap();
    assert!(live.ok(&format!("zfs project {}", at("tree/sub/new"))).starts_with("   42 "));
    live.ok("zpool sync");
    // Accounts begin in the background at the first mount; this waits for that.
    live.ok("zfs set version=current tank");
    let space = || -> Vec<String> {
        let text = live.ok("zfs projectspace -H -p -o name,used,quota,objused tank");
        text.lines().map(str::to_owned).collect()
    };
    let row = || -> (u64, String, u64) {
        let rows = space();
        let row: Vec<&str> =
            rows.iter().find_map(|row| row.strip_prefix("42\t")).unwrap().split('\t').collect();
        (row[0].parse().unwrap(), row[1].to_owned(), row[2].parse().unwrap())
    };
    let (used, quota, objects) = row();
    assert!((1_100_000..1_500_000).contains(&used) && quota == "0" && objects == 4, "{:?}", space());

    live.ok("zfs set projectquota@42=2M tank");
    assert_eq!(row().1, "2097152");
    // The quota is the size of the project's directories.
    let df = std::process::Command::new("df").args(["-B1", "--output=size", &tree]).output().unwrap();
    assert!(String::from_utf8_lossy(&df.stdout).contains("2097152"), "{df:?}");
    // No more than that can be reserved either.
    let new = fs::OpenOptions::new().write(true).open(mount.join("tree/sub/new")).unwrap();
    let reserve = |len| rustix::fs::fallocate(&new, rustix::fs::FallocateFlags::KEEP_SIZE, 0, len);
    assert_eq!((reserve(100_000), reserve(2 << 20)), (Ok(()), Err(rustix::io::Errno::NOSPC)));
    drop(new);
    let full = (0..20).find_map(|n| {
        let done = fs::write(mount.join(format!("tree/more{n}")), vec![9; 1 << 20]);
        live.ok("zpool sync");
        done.err()
    });
    assert_eq!(full.map(|e| e.kind()), Some(ErrorKind::QuotaExceeded));
    // Another project's files are not held to it, and a directory takes only its own.
    fs::write(mount.join("elsewhere"), vec![9; 4 << 20]).unwrap();
    let moved = fs::rename(mount.join("elsewhere"), mount.join("tree/elsewhere"));
    assert_eq!(moved.unwrap_err().kind(), ErrorKind::CrossesDevices);
    let linked = fs::hard_link(mount.join("elsewhere"), mount.join("tree/elsewhere"));
    assert_eq!(linked.unwrap_err().kind(), ErrorKind::CrossesDevices);

    live.ok(&format!("zfs project -C -k -r {tree}"));
    assert_eq!(live.ok(&format!("zfs project -d {tree}")), format!("   42 - {tree}\n"));
    live.ok(&format!("zfs project -C -r {tree}"));
    assert_eq!(live.ok(&format!("zfs project {sub}")).lines().next().unwrap(), format!("    0 - {sub}"));
    live.ok("zpool sync");
    assert!(
        !space().iter().any(|row| row.starts_with("42\t") && !row.starts_with("42\t0\t")),
        "{:?}",
        space()
    );
    live.export_and_verify("tank");
}

#[test]
fn accounts_begin_when_the_pool_can_keep_them() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    let live = Live::new();
    let mount = live.dir.path().join("mnt");
    live.ok(&format!("zpool create -d -O mountpoint={} tank {}", mount.display(), live.disk("a", 256)));
    for name in ["one", "two", "three"] {
        fs::write(mount.join(name), [7; 5000]).unwrap();
    }
    live.ok("zpool sync");
    let objects = |verb: &str| live.ok(&format!("zfs {verb} -H -p -o objused tank"));
    assert_eq!((objects("userspace"), objects("projectspace")), ("-\n".to_owned(), String::new()));
    live.ok("zpool upgrade tank");
    assert_eq!(objects("userspace"), "-\n");
    // The next use begins; this waits until it is done.
    fs::write(mount.join("four"), "").unwrap();
    live.ok("zfs set version=current tank");
    assert_eq!((objects("userspace"), objects("projectspace")), ("5\n".to_owned(), "5\n".to_owned()));
    // For projects only later changes count, and files that leave one may make its usage negative.
    let used: u64 = live.ok("zfs projectspace -H -p -o used tank").trim().parse().unwrap();
    assert!(used.cast_signed().unsigned_abs() < 3 * 5000, "{used}");
    live.export_and_verify("tank");
}

#[test]
fn space_is_found_by_path_and_by_type() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    let live = Live::new();
    let mount = live.dir.path().join("mnt");
    live.ok(&format!("zpool create -O mountpoint={} tank {}", mount.display(), live.disk("a", 128)));
    fs::create_dir(mount.join("dir")).unwrap();
    // A name need not be UTF-8.
    let name = std::ffi::OsStr::from_bytes(b"f\xff");
    fs::write(mount.join("dir").join(name), b"x").unwrap();
    live.ok("zpool sync");
    let dir = mount.join("dir");
    let listed = live.command(&format!("zfs project -c -0 -r -p 5 {}", dir.display())).output().unwrap();
    let end = [b"\0", dir.join(name).as_os_str().as_bytes(), b"\0"].concat();
    assert!(listed.stdout.ends_with(&end), "{listed:?}");

    let space = live.ok("zfs userspace -H -n tank");
    assert!(space.starts_with("POSIX User\t0\t"), "{space}");
    assert_eq!(live.ok(&format!("zfs userspace -H -n {}", dir.display())), space);
    assert!(live.fails("zfs userspace /proc").contains("not a ZFS filesystem"));
    let groups = live.ok("zfs groupspace -H -n tank");
    assert!(groups.starts_with("POSIX Group\t0\t"), "{groups}");
    assert_eq!(live.ok("zfs userspace -H -n -t posixgroup tank"), groups);
    assert_eq!(live.ok("zfs groupspace -H -n -t posixuser tank"), space);
    assert_eq!(live.ok("zfs userspace -H -n -t all tank"), format!("{groups}{space}"));
    assert!(live.fails("zfs userspace -t bogus tank").starts_with("invalid type 'bogus' for -t option"));

    let refused = live.fails("zfs set userquota@99999999999=1M tank");
    assert!(refused.contains("is no id of a user or group"), "{refused}");

    let link = live.dir.path().join("link");
    std::os::unix::fs::symlink(&mount, &link).unwrap();
    assert!(
        live.fails(&format!("zfs unmount {}", link.join("dir").display())).contains("not a ZFS filesystem")
    );
    live.ok(&format!("zfs unmount {}", link.display()));
    assert_eq!(live.ok("zfs get -H -o value mounted tank"), "no\n");
}
