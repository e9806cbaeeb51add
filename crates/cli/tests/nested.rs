//! Pools on files in mounts of the same daemon.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs;
use std::io::Write;

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
    std::thread::sleep(std::time::Duration::from_millis(700));
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
        let equal = heard.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(equal, Ok(true), "a read of the inner pool waits for ever");
    }
    live.ok("zpool export vault");
    live.ok("zpool export tank");
}
