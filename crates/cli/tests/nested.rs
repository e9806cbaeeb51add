//! Pools on files in mounts of the same daemon.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use live::Live;

#[test]
fn pools_and_keys_may_lie_in_mounts() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let (device, key, inner) = (at.join("device"), at.join("key"), live.dir.path().join("inner"));
    fs::File::create(&device).unwrap().set_len(80 << 20).unwrap();
    fs::write(&key, [7; 32]).unwrap();
    live.ok(&format!("zpool create -m {} vault {}", inner.display(), device.display()));
    fs::write(inner.join("file"), "kept").unwrap();
    live.ok(&format!(
        "zfs create -o encryption=on -o keyformat=raw -o keylocation=file://{} tank/sealed",
        key.display()
    ));
    let busy = format!("cannot unmount '{}': pool or dataset is busy\n", at.display());
    assert_eq!(live.fails("zpool export tank"), busy);
    // The pool within goes first; the next daemon has it again, after the one that it lies in.
    live.signal("-TERM");
    assert_eq!(live.ok("zpool list -H -o name"), "tank\nvault\n");
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "kept");
    live.ok("zfs load-key tank/sealed");
    assert_eq!(live.ok("zfs get -H -o value keystatus tank/sealed"), "available\n");
    live.ok("zpool export vault");
    live.ok("zpool export tank");
}

#[test]
fn a_daemon_that_is_killed_while_it_waits_for_its_own_mount_is_followed_by_another() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let (device, inner) = (at.join("device"), live.dir.path().join("inner"));
    fs::File::create(&device).unwrap().set_len(80 << 20).unwrap();
    live.ok(&format!("zpool create -m {} vault {}", inner.display(), device.display()));
    fs::write(inner.join("file"), "kept").unwrap();
    live.ok("zpool sync vault");
    // The inner pool writes when it happens.
    let target = inner.join("busy");
    let writer = std::thread::spawn(move || {
        let Ok(mut file) = fs::File::create(target) else { return };
        while file.write_all(&[7; 65536]).and_then(|()| file.sync_data()).is_ok() {}
    });
    std::thread::sleep(Duration::from_millis(700));
    live.signal("-KILL");
    assert_eq!(live.ok("zpool list -H -o name"), "tank\nvault\n");
    writer.join().unwrap();
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "kept");
    live.ok("zpool export vault");
    live.ok("zpool export tank");
}

/// `umount -l` leaves a connection that the kernel cannot show again; a foreign mount at its path is not ours to remove.

#[test]
fn a_pool_in_a_mount_is_read_from_that_mount() {
    const PART: usize = 64 << 10;
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let (device, inner) = (at.join("device"), live.dir.path().join("inner"));
    fs::File::create(&device).unwrap().set_len(80 << 20).unwrap();
    live.ok(&format!("zpool create -m {} vault {}", inner.display(), device.display()));
    let part = |number: u8| vec![number; PART];
    (0..64).for_each(|number| fs::write(inner.join(number.to_string()), part(number)).unwrap());
    // No cache has the bytes: neither the pool's nor the kernel's, of both mounts.
    for pool in ["vault", "tank"] {
        live.ok(&format!("zpool export {pool}"));
    }
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    live.ok(&format!("zpool import -d {} vault", device.display()));
    let (said, heard) = std::sync::mpsc::channel();
    for from in 0..4_u8 {
        let (inner, said) = (inner.clone(), said.clone());
        std::thread::spawn(move || {
            for number in (from..64).step_by(4) {
                let read = fs::read(inner.join(number.to_string())).unwrap();
                said.send(read == vec![number; PART]).unwrap();
            }
        });
    }
    for _ in 0..64 {
        let equal = heard.recv_timeout(Duration::from_secs(60));
        assert_eq!(equal, Ok(true), "a read of the inner pool waits for ever");
    }
    live.ok("zpool export vault");
    live.ok("zpool export tank");
}

/// A process that is stopped until this is dropped.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Self {
        signal("-STOP", pid);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("-CONT", self.0);
    }
}

fn signal(name: &str, pid: i32) {
    assert!(std::process::Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

/// The devices of the pool are in a mount of another daemon, which does not answer.
#[test]
fn pools_that_are_being_imported_are_not_denied() {
    let (outer, live) = (Live::new(), Live::new());
    let Some(at) = outer.mounted() else { return };
    let device = at.join("device");
    fs::File::create(&device).unwrap().set_len(80 << 20).unwrap();
    live.ok(&format!("zpool create -O mountpoint=none vault {}", device.display()));
    live.ok("zfs snapshot vault@sent");
    let sent = live.command("zfs send vault@sent").output().unwrap();
    fs::write(live.dir.path().join("stream"), sent.stdout).unwrap();
    live.signal("-TERM");
    let stopped = Stopped::new(outer.pid().unwrap());
    let coming = "pool 'vault' is being imported\n";
    for line in ["zpool list", "zpool status", "zpool iostat", "zfs list", "zpool list -H"] {
        let run = live.run(line);
        assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (1, "", coming), "{line}");
    }
    let named = "cannot open 'vault': the pool is being imported\n";
    for line in ["zpool list vault", "zpool status vault", "zpool get size vault"] {
        assert_eq!(live.fails(line), named, "{line}");
    }
    live.ok(&format!("zpool create -O mountpoint=none other {}", live.disk("c", 64)));
    live.ok("zfs snapshot other@sent");
    all_name_it(&live, &live.dir.path().join("stream"));
    live.ok("zpool export other");
    let mounts = live.run("zfs mount -a");
    assert_eq!((mounts.code, mounts.err.as_str()), (0, coming));
    drop(stopped);
    let until = Instant::now() + Duration::from_secs(60);
    while live.run("zpool list -H -o name").out != "vault\n" {
        assert!(Instant::now() < until, "{}", live.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    live.ok("zpool export vault");
    outer.ok("zpool export tank");
}

/// Commands wait for a while until the pool is there, so all of them wait together.
fn all_name_it(live: &Live, stream: &Path) {
    let lines = [
        (format!("zpool create -O mountpoint=none vault {}", live.disk("b", 64)), "create 'vault'"),
        ("zpool import -d . vault".to_owned(), "import 'vault'"),
        ("zfs create vault/a".to_owned(), "create 'vault/a'"),
        ("zfs rename vault/a vault/b".to_owned(), "open 'vault/a'"),
        ("zfs receive vault/a".to_owned(), "open 'vault'"),
        ("zfs destroy vault/a#b".to_owned(), "open 'vault/a#b'"),
        ("zfs redact vault/a@b c vault/d@e".to_owned(), "open 'vault/a@b'"),
        ("zfs diff vault@sent".to_owned(), "open 'vault'"),
        ("zfs diff other@sent vault@sent".to_owned(), "open 'vault@sent'"),
        ("kstat vault/txgs".to_owned(), "open 'vault'"),
        ("zilstat -p vault".to_owned(), "open 'vault'"),
    ];
    let start = |line: &str| {
        let mut command = live.command(line);
        command.stdin(fs::File::open(stream).unwrap()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let running: Vec<_> = lines.iter().map(|(line, _)| start(line)).collect();
    for ((line, cannot), child) in lines.iter().zip(running) {
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        let first = said.lines().next().unwrap_or_default();
        assert_eq!(first, format!("cannot {cannot}: the pool is being imported"), "{line}: {said}");
        assert_eq!(ended.status.code(), Some(1), "{line}");
    }
}
