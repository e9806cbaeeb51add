//! Disks that are attached, detached and replaced, from the command line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use live::Live;

/// The device column of `zpool status`, in order, and the state of each.
fn config(live: &Live) -> Vec<(String, String)> {
    let status = live.ok("zpool status -P tank");
    let rows = status.lines().skip_while(|line| !line.contains("STATE")).skip(1);
    let rows = rows.take_while(|line| !line.starts_with("errors:")).filter(|line| !line.trim().is_empty());
    let row = |line: &str| {
        let mut words =
            line.split_whitespace().map(|word| word.rsplit('/').next().unwrap_or(word).to_owned());
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    };
    rows.map(row).collect()
}

fn names(live: &Live) -> String {
    config(live).into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_mirror_comes_and_goes() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    assert_eq!(
        live.fails(&format!("zpool detach tank {a}")),
        format!("cannot detach {a}: only applicable to mirror and replacing vdevs\n")
    );
    let small = live.disk("small", 64);
    assert_eq!(
        live.fails(&format!("zpool attach tank {a} {small}")),
        format!("cannot attach {small} to {a}: device is too small\n")
    );
    live.ok(&format!("zpool attach -w tank {a} {b}"));
    assert_eq!(names(&live), "tank mirror-0 a b");
    assert!(live.ok("zpool status tank").contains("resilvered"), "{}", live.ok("zpool status tank"));
    assert_eq!(
        live.fails(&format!("zpool attach tank {a} {b}")),
        format!(
            "invalid vdev specification\nuse '-f' to override the following errors:\n{b} is part of active pool 'tank'\n"
        )
    );
    live.ok(&format!("zpool attach tank {b} {c}"));
    live.ok("zpool wait -t resilver tank");
    live.ok(&format!("zpool detach tank {a}"));
    live.ok(&format!("zpool detach tank {b}"));
    assert_eq!(names(&live), "tank c");
    // Detached disks are free for other pools.
    live.ok(&format!("zpool create -O mountpoint=none other {a}"));
    live.ok("zpool destroy other");
    let history = live.ok("zpool history -i tank");
    assert!(history.contains(&format!("vdev attach attach vdev={b} to vdev={a}")), "{history}");
    assert!(history.contains(&format!("detach vdev={a}")), "{history}");
    let events = live.ok("zpool events tank");
    for class in
        ["sysevent.fs.zfs.vdev_attach", "sysevent.fs.zfs.vdev_remove", "sysevent.fs.zfs.resilver_finish"]
    {
        assert!(events.contains(class), "{class}: {events}");
    }
    live.export_and_verify("tank");
}

#[test]
fn a_disk_is_replaced_and_a_spare_stands_in() {
    let live = Live::new();
    let [a, b, c, d, s, e] = ["a", "b", "c", "d", "s", "e"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none tank raidz {a} {b} {c} spare {s}"));
    live.ok(&format!("zpool replace -w tank {b} {d}"));
    assert_eq!(names(&live), "tank raidz1-0 a d c spares s");
    assert_eq!(
        live.fails("zpool replace tank a"),
        format!(
            "invalid vdev specification\nuse '-f' to override the following errors:\n{a} is part of active pool 'tank'\n"
        )
    );
    assert_eq!(
        live.fails(&format!("zpool attach tank {a} {e}")),
        format!("cannot attach {e} to {a}: can only attach to mirrors and top-level disks\n")
    );
    assert_eq!(
        live.fails(&format!("zpool detach tank {s}")),
        format!("cannot detach {s}: device is reserved as a hot spare\n")
    );
    // By hand, and back.
    live.ok(&format!("zpool replace -w tank {a} {s}"));
    assert_eq!(names(&live), "tank raidz1-0 spare-0 a s d c spares s");
    assert_eq!(config(&live).pop(), Some(("s".into(), "INUSE".into())));
    live.ok(&format!("zpool detach tank {s}"));
    assert_eq!(names(&live), "tank raidz1-0 a d c spares s");
    assert_eq!(config(&live).pop(), Some(("s".into(), "AVAIL".into())));
    // By itself.
    live.ok(&format!("zpool offline -f tank {c}"));
    live.ok("zpool wait -t replace tank");
    assert_eq!(names(&live), "tank raidz1-0 a d spare-2 c s spares s");
    live.ok(&format!("zpool replace -w tank {c} {e}"));
    assert_eq!(names(&live), "tank raidz1-0 a d e spares s");
    assert_eq!(config(&live).pop(), Some(("s".into(), "AVAIL".into())));
    live.export_and_verify("tank");
}

/// Waits until `zpool status` of a pool matches.
fn wait_for(live: &Live, pool: &str, is_so: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let status = live.ok(&format!("zpool status {pool}"));
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < until, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The line of a spare in the list of spares: its state and the note behind.
fn spare_line(status: &str, spare: &str) -> String {
    let listed = status.split("spares").nth(1).unwrap_or_default();
    let line = listed.lines().find(|line| line.trim_start().starts_with(spare)).unwrap_or_default();
    line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
}

#[test]
fn pools_share_a_hot_spare() {
    let live = Live::new();
    let [a1, a2, b1, b2, c, s, n] = ["a1", "a2", "b1", "b2", "c", "s", "n"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none one mirror {a1} {a2} spare {s}"));
    live.ok(&format!("zpool create -O mountpoint=none two mirror {b1} {b2} spare {s}"));
    let state = |pool: &str| spare_line(&live.ok(&format!("zpool status {pool}")), &s);
    assert_eq!([state("one"), state("two")], ["AVAIL", "AVAIL"]);
    let why = live.fails(&format!("zpool add one spare {s}"));
    assert!(why.starts_with("cannot add to 'one': one or more vdevs refer to the same device"), "{why}");

    // A disk of the first pool dies, and then one of the second: it waits for the spare.
    live.ok(&format!("zpool offline -f one {a2}"));
    wait_for(&live, "one", |status| spare_line(status, &s) == "INUSE currently in use");
    assert_eq!(state("two"), "INUSE in use by pool 'one'");
    let json = live.ok("zpool status -j two");
    assert!(json.contains("\"used_by\":\"one\""), "{json}");
    let why = live.fails("zpool export one");
    assert!(why.contains("'one' has an active shared spare which could be used by other pools"), "{why}");
    // A third pool may have a spare that is in use, but no pool may have it as anything else.
    live.ok(&format!("zpool create -O mountpoint=none three {c} spare {s}"));
    assert_eq!(state("three"), "INUSE in use by pool 'one'");
    let why = live.fails(&format!("zpool add -f three {s}"));
    assert!(why.contains("is reserved as a hot spare for pool"), "{why}");
    live.ok("zpool destroy three");
    live.ok(&format!("zpool offline -f two {b2}"));
    let why = live.fails(&format!("zpool replace two {b2} {s}"));
    assert!(why.contains("is busy"), "{why}");

    // The first pool gets a new disk; the spare goes on to the second.
    live.ok(&format!("zpool replace -w one {a2} {n}"));
    wait_for(&live, "two", |status| spare_line(status, &s) == "INUSE currently in use");
    live.ok("zpool wait -t replace two");
    assert_eq!(state("one"), "INUSE in use by pool 'two'");
    live.ok("zpool export one");
    live.ok(&format!("zpool import -d {} one", live.disks().display()));
    assert_eq!(state("one"), "INUSE in use by pool 'two'");
    // It stays there for good, and the first pool's list is without it.
    live.ok(&format!("zpool detach two {b2}"));
    for pool in ["one", "two"] {
        let status = live.ok(&format!("zpool status {pool}"));
        assert!(!status.contains("spares") && status.contains("state: ONLINE"), "{status}");
    }
    live.export_and_verify("one");
    live.export_and_verify("two");
}

/// No scan meets the blocks that only a checkpoint has, so a disk that missed some lacks them until the checkpoint is gone.
#[test]
fn a_disk_that_lacks_data_beside_a_checkpoint_is_whole_without_it() {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    live.ok("zpool checkpoint tank");
    live.ok(&format!("zpool offline tank {a}"));
    live.ok("zfs create tank/new");
    live.ok(&format!("zpool online tank {a}"));
    let status = wait_for(&live, "tank", |status| status.contains("scan: resilvered"));
    assert!(status.contains("(awaiting resilver)"), "{status}");
    assert!(status.contains("action: Discard the checkpoint with 'zpool checkpoint -d'"), "{status}");
    live.ok("zpool checkpoint -d -w tank");
    let whole = |status: &str| !status.contains("action:") && !status.contains("resilver)");
    wait_for(&live, "tank", whole);
    live.export_and_verify("tank");
}

/// A spare that failed where it was used, and one whose pool was destroyed, have that pool's label still: the other pools that
/// share it use it all the same.
#[test]
fn a_shared_spare_is_free_though_its_label_says_otherwise() {
    let live = Live::new();
    let [a, b, c, d, n, s] = ["a", "b", "c", "d", "n", "s"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none one mirror {a} {b} spare {s}"));
    live.ok(&format!("zpool create -O mountpoint=none two mirror {c} {d} spare {s}"));
    let state = |pool: &str| spare_line(&live.ok(&format!("zpool status {pool}")), &s);
    let is_used = |status: &str| spare_line(status, &s) == "INUSE currently in use";
    live.ok(&format!("zpool offline -f one {a}"));
    wait_for(&live, "one", is_used);
    live.ok("zpool wait -t resilver one");
    live.ok(&format!("zpool offline -f one {s}"));
    live.ok(&format!("zpool detach one {s}"));
    assert_eq!([state("one"), state("two")], ["AVAIL", "AVAIL"]);
    live.ok(&format!("zpool offline -f two {c}"));
    wait_for(&live, "two", is_used);
    live.ok(&format!("zpool replace -w two {c} {n}"));
    assert_eq!([state("one"), state("two")], ["AVAIL", "AVAIL"]);
    live.ok(&format!("zpool replace -w one {a} {s}"));
    assert!(is_used(&live.ok("zpool status one")));
    live.ok("zpool destroy one");
    assert_eq!(state("two"), "AVAIL");
    live.ok(&format!("zpool offline -f two {d}"));
    wait_for(&live, "two", is_used);
    live.ok("zpool wait -t resilver two");
    live.export_and_verify("two");
}

/// A device that leaves a pool by any verb is closed when the verb returns, and free for another use.
#[test]
fn a_device_that_has_left_is_free_at_once() {
    let live = Live::new();
    let [a, b, o, cache, spare, log, third, new, whole] =
        ["a", "b", "o", "cache", "spare", "log", "third", "new", "whole"].map(|name| live.disk(name, 200));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b} cache {cache} spare {spare}"));
    live.ok(&format!("zpool create -O mountpoint=none other {o} spare {spare}"));
    let is_free = |disk: &str| {
        live.ok(&format!("zpool create -O mountpoint=none free {disk}"));
        live.ok("zpool destroy free");
    };

    live.ok(&format!("zpool remove tank {cache}"));
    live.ok(&format!("zpool add tank cache {cache}"));
    live.ok(&format!("zpool remove tank {cache}"));
    is_free(&cache);

    // The other pool keeps the spare that both had.
    live.ok(&format!("zpool remove tank {spare}"));
    let run = live.run(&format!("zpool create -f -O mountpoint=none free {spare}"));
    assert!(run.code != 0, "{}", run.out);
    live.ok(&format!("zpool remove other {spare}"));
    is_free(&spare);

    live.ok(&format!("zpool add -f tank log {log}"));
    live.ok(&format!("zpool remove tank {log}"));
    is_free(&log);

    live.ok(&format!("zpool attach -w tank {b} {third}"));
    live.ok(&format!("zpool detach tank {third}"));
    is_free(&third);

    live.ok(&format!("zpool replace -w tank {b} {new}"));
    is_free(&b);

    // The label of a disk that is out of use is not written when it is detached.
    live.ok(&format!("zpool offline tank {new}"));
    live.ok(&format!("zpool detach tank {new}"));
    live.ok(&format!("zpool create -f -O mountpoint=none free {new}"));
    live.ok("zpool destroy free");

    live.ok(&format!("zpool add -f tank {whole}"));
    live.ok(&format!("zpool remove -w tank {whole}"));
    is_free(&whole);
    live.ok("zpool destroy other");
    live.export_and_verify("tank");
}

#[test]
fn mirrors_are_split() {
    let live = Live::new();
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b} mirror {c} {d} log {e}"));
    live.ok("zfs create -o mountpoint=none tank/home");
    live.ok("zfs snapshot tank/home@now");
    assert_eq!(
        live.ok("zpool split -n tank half"),
        format!("would create 'half' with the following layout:\n\n\thalf\n\t  {b}\n\t  {d}\n")
    );
    assert_eq!(live.fails("zpool split tank tank"), "Unable to split tank: pool already exists\n");
    assert_eq!(live.fails("zpool split tank mirror"), "Unable to split tank: name is reserved\n");
    assert_eq!(
        live.fails(&format!("zpool split tank half {a} {b}")),
        "Unable to split tank: Device list must include at most one disk from each mirror\n"
    );
    assert_eq!(live.fails("zpool split tank half mirror"), "Cannot use 'mirror' as a device for splitting\n");
    assert_eq!(names(&live), "tank mirror-0 a b mirror-1 c d logs e");
    live.ok(&format!("zpool split tank half {a}"));
    assert_eq!(names(&live), "tank b c logs e");
    let history = live.ok("zpool history -i tank");
    assert!(history.contains(&format!("detach vdev={a}")) && history.contains("zpool split tank half"));
    live.ok(&format!("zpool import -d {} half", live.disks().display()));
    assert!(live.ok("zpool history -i half").contains("split from pool tank"));
    assert_eq!(live.ok("zfs list -H -o name -t all -r half"), "half\nhalf/home\nhalf/home@now\n");
    assert_eq!(
        live.fails("zpool split half third"),
        "Unable to split half: Source pool must be composed only of mirrors\n\n"
    );
    live.ok(&format!("zpool attach -w half {a} {}", live.disk("f", 80)));
    live.ok(&format!("zpool attach -w half {d} {}", live.disk("g", 80)));
    let root = live.dir.path().join("root");
    live.ok(&format!("zpool split -R {} -o comment=copy half third", root.display()));
    assert_eq!(live.ok("zpool get -H -o value comment third"), "copy\n");
    for pool in ["third", "half", "tank"] {
        live.export_and_verify(pool);
    }
}

/// A disk that was overwritten while the pool used it is replaced in place; a replacement that fails leaves it in use.
#[test]
fn a_disk_in_use_is_replaced_by_itself() {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    let wipe = |path: &str, size: u64| {
        let file = std::fs::OpenOptions::new().write(true).truncate(true).open(path).unwrap();
        file.set_len(size).unwrap();
    };
    live.ok("zpool sync tank");
    wipe(&b, 80 << 20);
    live.ok(&format!("zpool replace -f -w tank {b} {b}"));
    assert_eq!(
        config(&live).into_iter().map(|row| row.1).collect::<Vec<_>>(),
        ["ONLINE"; 4],
        "{}",
        live.ok("zpool status tank")
    );
    live.ok("zpool scrub -w tank");
    assert!(live.ok("zpool status tank").contains("repaired 0B"), "{}", live.ok("zpool status tank"));
    // The only other copy is not taken away.
    live.ok(&format!("zpool offline tank {a}"));
    live.ok("zpool sync tank");
    wipe(&b, 80 << 20);
    assert!(live.fails(&format!("zpool replace -f tank {b} {b}")).contains("is busy"));
    live.ok("zpool destroy -f tank");
}

#[test]
fn a_disk_stays_in_use_when_its_replacement_is_refused() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none tank raidz {a} {b} {c}"));
    live.ok("zpool sync tank");
    let wipe = || {
        let file = std::fs::OpenOptions::new().write(true).truncate(true).open(&b).unwrap();
        file.set_len(80 << 20).unwrap();
    };
    wipe();
    let why = live.fails(&format!("zpool replace -f -s tank {b} {b}"));
    assert!(why.contains("cannot replace"), "{why}");
    assert_eq!(names(&live), "tank raidz1-0 a b c");
    assert!(config(&live).iter().all(|row| row.1 == "ONLINE"), "{}", live.ok("zpool status tank"));
    // Its labels were written again when it came back.
    live.ok("zpool sync tank");
    wipe();
    live.ok(&format!("zpool replace -f -w tank {b} {b}"));
    live.export_and_verify("tank");
}

/// Damage that a scrub found leaves a disk degraded; it is replaced by itself all the same, and is degraded still after a
/// replacement that fails.
#[test]
fn an_offline_disk_is_cleared_and_replaced_by_itself() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b} {c}"));
    let member = format!("{b} is a member (ACTIVE) of pool \"tank\"");
    assert_eq!(live.fails(&format!("zpool labelclear {b}")), format!("{member}\n"));
    let advice = "Offline the disk first to clear its label.";
    assert_eq!(live.fails(&format!("zpool labelclear -f {b}")), format!("{member}. {advice}\n"));
    for (how, disk) in [("-f", &b), ("", &c)] {
        live.ok(&format!("zpool offline {how} tank {disk}"));
        assert!(live.fails(&format!("zpool labelclear {disk}")).contains("is a member (ACTIVE)"));
        live.ok(&format!("zpool labelclear -f {disk}"));
        live.ok(&format!("zpool replace -w tank {disk}"));
    }
    assert_eq!(names(&live), "tank mirror-0 a b c");
    assert!(!live.ok("zpool status tank").contains("DEGRADED"));
    // A disk that left the pool while it was offline belongs to no pool, whatever its label says.
    live.ok(&format!("zpool offline tank {c}"));
    live.ok(&format!("zpool detach tank {c}"));
    live.ok(&format!("zpool labelclear {c}"));
    for word in ["nowhere", "./nowhere"] {
        let why = format!("failed to find device {word}, try specifying absolute path instead\n");
        assert_eq!(live.fails(&format!("zpool labelclear {word}")), why);
    }
    let folder = std::env::temp_dir().display().to_string();
    let why = format!("failed to open {folder}: Is a directory\n");
    assert_eq!(live.fails(&format!("zpool labelclear {folder}")), why);
    // Vdevs with parts are opened again as a whole, and only their parts are taken out of use.
    live.ok("zpool online tank mirror-0");
    for how in ["", "-f"] {
        let verb = if how.is_empty() { "offline" } else { "fault" };
        let why = format!("cannot {verb} mirror-0: operation not supported on this type of pool\n");
        assert_eq!(live.fails(&format!("zpool offline {how} tank mirror-0")), why);
    }
    live.export_and_verify("tank");
}

#[test]
fn scrubs_and_reconstructions_have_columns_of_their_own() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none tank {a} {b}"));
    // Requests of the sizes of `-r` in a class: alone and together with others.
    let count = |class: usize| {
        let table = live.ok("zpool iostat -Hpr tank");
        let rows = table.lines().filter(|line| line.contains('\t'));
        let row = |line: &str| {
            line.split('\t').skip(1 + 2 * class).take(2).map(|n| n.parse::<u64>().unwrap()).sum::<u64>()
        };
        rows.map(row).sum::<u64>()
    };
    let (scrub, rebuild) = (4, 6);
    assert_eq!((count(scrub), count(rebuild)), (0, 0));
    live.ok("zpool scrub -w tank");
    let (scrubbed, rebuilt) = (count(scrub), count(rebuild));
    assert!(scrubbed > 0 && rebuilt == 0, "{scrubbed} {rebuilt}");
    live.ok(&format!("zpool attach -s -w tank {a} {c}"));
    assert!(count(rebuild) > 0);
    let waits = live.ok("zpool iostat -Hpw tank");
    let of_scrubs = waits.lines().filter_map(|line| line.split('\t').nth(9)?.parse::<u64>().ok());
    assert!(of_scrubs.sum::<u64>() > 0, "{waits}");
    live.export_and_verify("tank");
}

#[test]
fn a_degraded_disk_is_replaced_by_itself() {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none -O compression=off tank mirror {a} {b}"));
    for number in 0..40 {
        live.ok(&format!("zfs create tank/fs{number}"));
    }
    live.ok("zpool sync tank");
    let damage = |end: u64| {
        let mut file = std::fs::OpenOptions::new().write(true).open(&b).unwrap();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(4 << 20)).unwrap();
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0xa5), end - (4 << 20)), &mut file).unwrap();
    };
    damage(76 << 20);
    live.ok("zpool scrub -w tank");
    live.ok("zpool sync tank");
    let state = || config(&live).into_iter().find(|row| row.0 == "b").unwrap().1;
    assert_eq!(state(), "DEGRADED", "{}", live.ok("zpool status tank"));
    let zero = || std::fs::write(&b, vec![0; 80 << 20]).unwrap();
    zero();
    live.ok("zpool checkpoint tank");
    let why = live.fails(&format!("zpool replace -f tank {b} {b}"));
    assert!(why.contains("checkpoint"), "{why}");
    assert_eq!(state(), "DEGRADED", "{}", live.ok("zpool status tank"));
    live.ok("zpool checkpoint -d -w tank");
    zero();
    live.ok(&format!("zpool replace -f -w tank {b} {b}"));
    assert!(config(&live).iter().all(|row| row.1 == "ONLINE"), "{}", live.ok("zpool status tank"));
    live.export_and_verify("tank");
}

/// Without the fault agents spares wait for a command, and errors are only counted.
#[test]
fn spares_wait_for_a_command_without_the_fault_agents() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b} spare {c}"));
    live.ok("set aquifer_fault_agents=0");
    live.ok(&format!("zpool offline -f tank {b}"));
    live.ok("zpool sync tank");
    live.ok("zpool sync tank");
    assert!(!live.ok("zpool status tank").contains("spare-"), "{}", live.ok("zpool status tank"));
    live.ok(&format!("zpool replace -w tank {b} {c}"));
    assert!(live.ok("zpool status tank").contains("INUSE"), "{}", live.ok("zpool status tank"));
    live.export_and_verify("tank");
}

/// A distributed spare that a healing resilver fills has all of its disk's bytes.
#[test]
fn a_healing_resilver_fills_a_distributed_spare() {
    let live = Live::new();
    let disks = ["a", "b", "c", "d", "e"].map(|name| live.disk(name, 80));
    live.ok(&format!("zpool create -O mountpoint=none tank draid1:2d:5c:1s {}", disks.join(" ")));
    live.ok("set aquifer_fault_agents=0");
    for number in 0..20 {
        live.ok(&format!("zfs create tank/fs{number}"));
    }
    live.ok("zpool sync tank");
    live.ok(&format!("zpool offline -f tank {}", disks[2]));
    live.ok(&format!("zpool replace -w tank {} draid1-0-0", disks[2]));
    assert!(!live.ok("zpool status tank").contains("resilvered 0B"), "{}", live.ok("zpool status tank"));
    live.ok("zpool scrub -w tank");
    assert!(live.ok("zpool status tank").contains("repaired 0B"), "{}", live.ok("zpool status tank"));
    live.export_and_verify("tank");
}

/// The sync thread is in the middle of a scrub when the export waits for its end.
#[test]
fn a_pool_is_exported_during_a_scrub() {
    let live = Live::new();
    let disk = live.disk("a", 80);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    (0..40).for_each(|number| drop(live.ok(&format!("zfs create tank/fs{number}"))));
    live.ok("zpool sync tank");
    live.ok(&format!("zinject -d {disk} -D 20:1 -T read tank"));
    live.ok("zpool scrub tank");
    live.ok("zinject -c all");
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {disk} tank"));
    let status = live.ok("zpool status tank");
    assert!(status.contains("scrub in progress") || status.contains("scrub repaired"), "{status}");
    live.ok("zpool scrub -w tank");
    live.export_and_verify("tank");
}

#[test]
fn an_expansion_counts_the_bytes_that_it_moved() {
    let live = Live::new();
    let disks: Vec<String> = ["a", "b", "c", "d"].iter().map(|name| live.disk(name, 128)).collect();
    live.ok(&format!("zpool create -O mountpoint=none tank raidz {}", disks[..3].join(" ")));
    live.ok(&format!("zpool attach -w tank raidz1-0 {}", disks[3]));
    let status = live.ok("zpool status tank");
    let copied = status.split("copied ").nth(1).and_then(|rest| rest.split(' ').next());
    // Less than the free space of the scratch area, 3.5 MiB of each disk.
    let copied = copied.unwrap_or_else(|| panic!("{status}"));
    assert!(copied.ends_with(['K', 'B']) || copied.starts_with("1.") || copied.starts_with("2."), "{status}");
    live.export_and_verify("tank");
}

#[test]
fn a_mapping_that_is_being_condensed_goes_on_after_an_import_that_claims_a_log() {
    let live = Live::new();
    let disks: Vec<String> = ["a", "b", "c"].map(|name| live.disk(name, 128)).to_vec();
    let at = live.dir.path().join("mnt");
    let made =
        live.run(&format!("zpool create -O recordsize=4K -m {} tank {}", at.display(), disks.join(" ")));
    if !Path::new("/dev/fuse").exists() || made.err.contains("not permitted") {
        return eprintln!("SKIPPED: FUSE mounts are not possible here");
    }
    for setting in [
        "zfs_remove_max_segment=32768",
        "zfs_condense_min_mapping_bytes=1",
        "zfs_condense_indirect_obsolete_pct=1",
        "zfs_condense_max_obsolete_bytes=1",
        "zfs_condense_indirect_commit_entry_delay_ms=3600000",
    ] {
        live.ok(&format!("set -s {setting}"));
    }
    let file = |number: u32| at.join(number.to_string());
    let bytes = |number: u32| number.to_le_bytes().repeat(100 << 8);
    for number in 0..60 {
        fs::write(file(number), bytes(number)).unwrap();
    }
    live.ok("zpool sync tank");
    live.ok(&format!("zpool remove -w tank {}", disks[1]));
    let free = |numbers: std::ops::Range<u32>| {
        numbers.for_each(|number| fs::remove_file(file(number)).unwrap());
        (0..3).for_each(|_| drop(live.ok("zpool sync tank")));
    };
    free(0..20);
    for round in 0..2 {
        // More is obsolete than is being condensed, and a log is claimed in the import's first txg.
        free(20 + 10 * round..30 + 10 * round);
        fs::File::create(at.join("synced")).and_then(|file| file.sync_all()).unwrap();
        live.signal("-KILL");
        live.ok("zpool sync tank");
    }
    live.ok("set -s zfs_condense_indirect_commit_entry_delay_ms=0");
    (0..6).for_each(|_| drop(live.ok("zpool sync tank")));
    (40..60).for_each(|number| assert_eq!(fs::read(file(number)).unwrap(), bytes(number)));
    live.export_and_verify("tank");
    // Objects that a second beginning leaves behind are seen only when all objects are listed.
    if testkit::zdb::installed() {
        let listed = testkit::zdb::run(&live.disks(), "tank", &["-d"]).unwrap();
        assert!(!listed.contains("leaked"), "{listed}");
    }
}
