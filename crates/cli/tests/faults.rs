//! Consequences of an error of this program, and remains of keys in memory.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod live;

use std::fs;

use live::Live;

#[test]
fn a_request_that_panics_suspends_the_pool_and_nothing_else() {
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: this build has no fault on purpose");
        return;
    }
    let live = Live::new();
    let Some(at) = live.mounted_by(&[("AQUIFER_PANIC_AT", "unlucky")], "", &live.disk("a", 128)) else {
        return;
    };
    live.ok(&format!("zpool create -O mountpoint=none other {}", live.disk("b", 128)));
    fs::write(at.join("before"), "on disk").unwrap();
    live.ok("zpool sync tank");
    let failed = fs::write(at.join("unlucky"), "x").unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(5), "{failed}");
    // The daemon lives, reads continue, changes are refused.
    assert_eq!(fs::read(at.join("before")).unwrap(), b"on disk");
    assert_eq!(fs::write(at.join("after"), "x").unwrap_err().raw_os_error(), Some(5));
    live.ok("zfs create other/child");
    let status = live.ok("zpool status tank");
    assert!(status.contains(" state: SUSPENDED\n"), "{status}");
    let said = "status: The pool is suspended because of an error of Aquifer; no device failed.\n";
    assert!(status.contains(said) && status.contains("broke off a change halfway"), "{status}");
    assert!(status.contains("zpool export -f") && !status.contains("errors experienced"), "{status}");
    // No device is blamed.
    let vdevs: Vec<_> = status.lines().filter(|line| line.ends_with("     0     0     0")).collect();
    assert_eq!(vdevs.len(), 2, "{status}");
    assert!(vdevs.iter().all(|line| line.contains("ONLINE")), "{status}");
    let log = live.log();
    assert!(log.contains("a fault on purpose"), "{log}");
    assert!(log.contains("pool tank is suspended because of an error of this program"), "{log}");
    live.fails("zpool clear tank");
    live.ok("zpool export -f tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    let names: Vec<_> = fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["before"]);
    fs::write(at.join("after"), "x").unwrap();
    live.ok("zpool export -a");
}

fn occurrences(bytes: &[u8], needle: &[u8]) -> usize {
    let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == needle[0]);
    starts.filter(|(at, _)| bytes[*at..].starts_with(needle)).count()
}

/// Counts these bytes in the memory of a process; `None` where it can't be read.
fn found(pid: i32, needle: &[u8]) -> Option<usize> {
    use std::os::unix::fs::FileExt;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let memory = fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut count = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        let mut bytes = vec![0; usize::try_from(to - from).ok()?];
        if memory.read_exact_at(&mut bytes, from).is_ok() {
            // Most pages were never used.
            let used = (0..bytes.len()).step_by(4096).filter(|at| bytes[*at..at + 4096] != [0; 4096]);
            let with_edge = |at: usize| &bytes[at..bytes.len().min(at + 4095 + needle.len())];
            count += used.map(|at| occurrences(with_edge(at), needle)).sum::<usize>();
        }
    }
    Some(count)
}

#[test]
fn a_key_is_gone_from_memory_once_it_is_unloaded() {
    use std::io::Write;
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let raw: Vec<u8> = (0..32u8).map(|n| n.wrapping_mul(89) ^ 0x5c).collect();
    let other: Vec<u8> = (0..32u8).map(|n| n.wrapping_mul(57) ^ 0xc3).collect();
    let hex: String = other.iter().map(|byte| format!("{byte:02x}")).collect();
    let phrase = "nine swans over the ice";
    let file = live.dir.path().join("key");
    fs::write(&file, &raw).unwrap();
    let asked = |line: &str, key: &str| {
        let mut child = live.command(line).stdin(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("{key}\n").as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{line}");
    };
    let create = |format: &str| format!("zfs create -o encryption=on -o keyformat={format} tank/{format}");
    live.ok(&format!(
        "zfs create -o encryption=on -o keyformat=raw -o keylocation=file://{} tank/raw",
        file.display()
    ));
    asked(&create("hex"), &hex);
    asked(&create("passphrase"), phrase);
    let daemon = live.pid().unwrap();
    let needles =
        [("raw", &raw[..]), ("hex", &other), ("hex", hex.as_bytes()), ("passphrase", phrase.as_bytes())];
    // The search finds existing bytes.
    match found(daemon, &raw) {
        None => return eprintln!("SKIPPED: the memory of other processes can't be read here"),
        Some(count) => assert!(count > 0),
    }
    for round in 0..2 {
        for name in ["raw", "hex", "passphrase"] {
            fs::write(at.join(name).join(format!("file{round}")), vec![7; 100_000]).unwrap();
            live.ok("zpool sync tank");
            live.ok(&format!("zfs unmount tank/{name}"));
            live.ok(&format!("zfs unload-key tank/{name}"));
        }
        for (name, needle) in needles {
            assert_eq!(found(daemon, needle), Some(0), "{name} in round {round}");
        }
        asked("zfs load-key tank/hex", &hex);
        asked("zfs load-key tank/passphrase", phrase);
        live.ok("zfs load-key tank/raw");
        live.ok("zfs mount -a");
    }
    live.ok("zpool export tank");
}
