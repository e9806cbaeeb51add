//! `aquifer dedup` and `aquifer advise` by the built binary, on a mounted pool.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs;
use std::path::Path;

use live::Live;
use serde_json::Value;
use stdx::rng::Rng;
use testkit::zdb::Judge;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn equal_files_are_shared_while_they_are_mounted() {
    let live = Live::new();
    let Some(at) = live.mounted_on("-O checksum=sha256", &live.disk("a", 128)) else { return };
    live.ok("zfs create tank/ro");
    // Four files of two contents, 1M each.
    for n in 0..4 {
        fs::write(at.join(format!("file{n}")), noise(n % 2, 1 << 20)).unwrap();
    }
    live.ok("zpool sync tank");
    let json = |line: &str| serde_json::from_str::<Value>(&live.ok(line)).unwrap();
    let advice = json(&format!("advise dedup --time 20 -j {}", at.display()));
    assert_eq!(advice["choices"][1]["at_least"], 50.0, "{advice}");
    assert_eq!(advice["command"], "aquifer dedup tank");
    let planned = json("dedup -n -j --json-int tank");
    assert_eq!(planned["datasets"]["tank"]["equal"]["blocks"], 16, "{planned}");
    assert_eq!(planned["datasets"]["tank"]["shared"]["blocks"], 0);
    let lines = live.ok("dedup -H -p -r tank");
    let cells: Vec<&str> = lines.lines().next().unwrap().split('\t').collect();
    assert_eq!(cells[0], "tank");
    assert_eq!((cells[3], cells[4]), ("2097152", "2097152"), "{lines}");
    assert_eq!(live.ok("zpool get -H -o value bcloneratio tank"), "2.00x\n");
    assert!(live.ok("zpool history tank").contains("dedup -H -p -r tank"));
    for n in 0..4 {
        assert!(fs::read(at.join(format!("file{n}"))).unwrap() == noise(n % 2, 1 << 20));
    }
    let counter = |file: &str, name: &str| {
        let text = live.ok(&format!("kstat {file}"));
        let row = text.lines().find(|line| line.split_whitespace().next() == Some(name)).map(str::to_owned);
        row.and_then(|row| row.split_whitespace().nth(2)?.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{name}: {text}"))
    };
    live.ok("zfs create -o dedup=on tank/d");
    for name in ["one", "two"] {
        fs::write(at.join("d").join(name), noise(9, 1 << 20)).unwrap();
        live.ok("zpool sync tank");
    }
    let counters = ["lookup", "lookup_new", "lookup_existing", "lookup_live_miss"];
    assert_eq!(counters.map(|name| counter("tank/ddt_stats_sha256", name)), [16, 8, 8, 16]);
    assert_eq!(counter("tank/ddt_stats_skein", "lookup"), 0);
    assert_eq!(counter("brtstats", "decref_entry_still_referenced"), 0);
    fs::remove_file(at.join("file0")).unwrap();
    live.ok("zpool sync tank");
    assert_eq!(counter("brtstats", "decref_free_data_later"), 8);
    live.ok("zfs set readonly=on tank/ro");
    assert_eq!(live.fails("dedup tank/ro"), "cannot dedup 'tank/ro': the dataset is read-only\n");
    assert_eq!(live.fails("dedup tank/none"), "cannot open 'tank/none': dataset does not exist\n");
    live.ok("zpool export tank");
    // New pools have `block_cloning_endian`, whose entries the zdb of 2.3 cannot read.
    if Judge::NEWEST.installed() {
        Judge::NEWEST.verify(&live.disks(), "tank").unwrap();
    }
}

/// The log of a dedup table counts before it is flushed.
#[test]
fn the_ratio_of_an_imported_pool_follows_its_writes() {
    let live = Live::new();
    let Some(at) = live.mounted_on("-O dedup=on", &live.disk("a", 128)) else { return };
    for (copies, ratio) in [(1, "1.00"), (2, "2.00"), (3, "3.00")] {
        fs::write(at.join(format!("file{copies}")), noise(7, 1 << 20)).unwrap();
        live.ok("zpool sync tank");
        assert_eq!(live.ok("zpool get -H -p -o value dedupratio tank").trim(), ratio);
    }
}

/// A limited rewrite takes the time that its rate gives it.
#[test]
fn a_rewrite_keeps_to_its_limit() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    let (file, bytes) = (at.join("file"), noise(9, 12 << 20));
    fs::write(&file, &bytes).unwrap();
    live.ok("zpool sync tank");
    let began = std::time::Instant::now();
    live.ok(&format!("zfs rewrite --limit 4M --recordsize=64K {}", file.display()));
    let took = began.elapsed().as_secs_f64();
    assert!(took >= 2.0, "12 MiB took {took} s at 4 MiB/s");
    assert!(fs::read(&file).unwrap() == bytes);
    live.ok("zpool export tank");
    if Judge::NEWEST.installed() {
        Judge::NEWEST.verify(&live.disks(), "tank").unwrap();
    }
}

/// Unsynced data is planned, too; a pool of a version without dedup gets no table.
#[test]
fn a_plan_counts_what_was_just_written_and_old_pools_get_no_table() {
    let live = Live::new();
    let Some(at) = live.mounted_on("-o version=20 -O compression=off", &live.disk("a", 128)) else { return };
    let file = at.join("file");
    std::fs::write(&file, noise(3, 3 << 20)).unwrap();
    assert_eq!(live.ok(&format!("zfs rewrite -n --undedup {}", file.display())), "0 of 0 files to write\n");
    let line = format!("zfs rewrite --dedup {}", file.display());
    let run = live.run(&line);
    assert!(run.code != 0 && run.err.contains("pool must be upgraded to have dedup tables"), "{}", run.err);
    live.ok("zpool upgrade -V 21 tank");
    std::fs::write(at.join("new"), noise(4, 3 << 20)).unwrap();
    assert_eq!(
        live.ok(&format!("zfs rewrite -n --dedup {}", at.join("new").display())),
        "3M of 1 file to write\n"
    );
    live.ok(&line);
    live.ok("zpool sync tank");
    assert!(live.ok("zpool status -D tank").contains("DDT entries 24"));
    // Tables at their quota take no block: a run would write all blocks in vain, and the next one again.
    live.ok("zpool set dedup_table_quota=1 tank");
    let plan = format!("zfs rewrite -n --dedup {}", at.join("new").display());
    assert_eq!(live.ok(&plan), "0 of 0 files to write\n");
    live.ok("zpool set dedup_table_quota=none tank");
    assert_eq!(live.ok(&plan), "3M of 1 file to write\n");
    live.export_and_verify("tank");
}

/// Advice on a dataset counts blocks of the size that its files have, and not what is shared already, whether it is mounted or
/// not.
#[test]
fn advice_on_a_dataset_knows_its_blocks() {
    let live = Live::new();
    let Some(at) = live.mounted_on("-O recordsize=16K -O checksum=sha256", &live.disk("a", 128)) else {
        return;
    };
    // 201 contents, each twice, never at the same place of a record of 128K.
    let mut bytes = Vec::new();
    (0..402).for_each(|n| bytes.extend(noise(n * 7 % 201, 16 << 10)));
    fs::write(at.join("file"), &bytes).unwrap();
    let json = |line: &str| serde_json::from_str::<Value>(&live.ok(line)).unwrap();
    let saves = |line: &str| {
        let advice = json(line);
        let on = advice["choices"][1].clone();
        let [low, mid, high] =
            ["at_least", "saves_percent", "at_most"].map(|bound| on[bound].as_f64().unwrap());
        assert_eq!((low, high), (mid, mid), "all blocks are read: {advice}");
        (mid, advice)
    };
    assert_eq!(saves("advise dedup --time 20 -j tank").0, 50.0);
    assert_eq!(saves(&format!("advise dedup --time 20 -j {}", at.display())).0, 50.0);
    // No record of 128K is repeated.
    assert_eq!(saves("advise dedup --time 20 --recordsize 128K -j tank").0, 0.0);
    live.ok("zfs unmount tank");
    assert_eq!(saves("advise dedup --time 20 -j tank").0, 50.0);
    live.ok("dedup tank");
    let (left, advice) = saves("advise dedup --time 20 -j tank");
    assert_eq!((left, &advice["command"]), (0.0, &Value::Null), "{advice}");
    assert!(
        advice["advice"].as_str().unwrap().starts_with("100.0% of the blocks are shared already. "),
        "{advice}"
    );
    assert!(json("advise recordsize --time 2 -j tank")["choices"].as_array().unwrap().len() > 3);
    live.ok("zfs create -s -V 16M -o volblocksize=16K tank/volume");
    assert_eq!(live.fails("advise dedup tank/none"), "cannot open 'tank/none': dataset does not exist\n");
    let empty = live.fails("advise compression tank/volume");
    assert!(empty.contains("no block") || empty.contains("no file"), "{empty}");
    live.ok("zpool export tank");
}

/// Files are cloned between file systems of a pool, compressed ones and those of snapshots, too. Where blocks cannot be shared,
/// bytes are copied, which the command says, or the file is refused.
#[test]
fn files_are_cloned_between_file_systems() {
    let live = Live::new();
    let Some(at) = live.mounted_on("-O compression=on", &live.disk("a", 256)) else { return };
    let key = live.dir.path().join("key");
    fs::write(&key, [7; 32]).unwrap();
    let secret = format!("-o encryption=on -o keyformat=raw -o keylocation=file://{}", key.display());
    for words in ["tank/a", "-o recordsize=16K tank/b", &format!("{secret} tank/secret"), "tank/secret/child"]
    {
        live.ok(&format!("zfs create {words}"));
    }
    // It compresses to half.
    let text = |seed: u64, len: usize| -> Vec<u8> {
        noise(seed, len / 2 + 1).iter().flat_map(|b| format!("{b:02x}").into_bytes()).take(len).collect()
    };
    let bytes = text(1, (4 << 20) + 777);
    let path = |name: &str| at.join(name).display().to_string();
    fs::create_dir(path("a/dir")).unwrap();
    fs::write(path("a/dir/text"), &bytes).unwrap();
    fs::write(path("a/dir/small"), b"a few bytes").unwrap();
    std::os::unix::fs::symlink("text", path("a/dir/link")).unwrap();
    let saved = || -> u64 {
        live.ok("zpool sync tank");
        live.ok("zpool get -H -p -o value bclonesaved tank").trim().parse().unwrap()
    };
    let run = live.run(&format!("clone -r -p {} {}", path("a/dir"), path("b")));
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(fs::read(path("b/dir/text")).unwrap() == bytes);
    assert_eq!(fs::read(path("b/dir/small")).unwrap(), b"a few bytes");
    assert_eq!(fs::read_link(path("b/dir/link")).unwrap().to_str(), Some("text"));
    let once = saved();
    assert!(once > 2 << 20, "{once}");
    // Within a file system, and over a file whose pages the kernel has.
    fs::write(path("a/old"), text(2, 5 << 20)).unwrap();
    assert!(fs::read(path("a/old")).unwrap().len() == 5 << 20);
    assert!(live.fails(&format!("clone {} {}", path("a/dir/text"), path("a/old"))).contains("File exists"));
    let told = live.ok(&format!("clone -f -j --json-int {} {}", path("a/dir/text"), path("a/old")));
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&told["cloned_bytes"], &told["copied"]),
        (&bytes.len().into(), &Value::Array(vec![])),
        "{told}"
    );
    assert!(fs::read(path("a/old")).unwrap() == bytes);
    let twice = saved();
    assert!(twice > once + (2 << 20), "{once} {twice}");
    // From a snapshot, to the other file system.
    live.ok("zfs snapshot tank/a@s");
    live.ok(&format!("clone {} {}", path("a/.zfs/snapshot/s/dir/text"), path("b/back")));
    assert!(fs::read(path("b/back")).unwrap() == bytes && saved() > twice);
    // Other keys: copied, or refused.
    let before = saved();
    let to = path("secret/text");
    let refused = live.fails(&format!("clone --only {} {to}", path("a/dir/text")));
    assert!(refused.contains("different keys") && !Path::new(&to).exists(), "{refused}");
    let run = live.run(&format!("clone {} {to}", path("a/dir/text")));
    assert!(
        run.code == 0 && run.err.contains("copied, not shared: ") && run.err.contains("different keys"),
        "{run:?}"
    );
    assert!(fs::read(&to).unwrap() == bytes);
    let run = live.run(&format!("clone {to} {}", path("b/plain")));
    assert!(run.code == 0 && run.err.contains("different keys"), "{run:?}");
    assert!(fs::read(path("b/plain")).unwrap() == bytes);
    // A child with the same wrapping key has another master key.
    assert!(
        live.fails(&format!("clone --only {to} {}", path("secret/child/text"))).contains("different keys")
    );
    assert_eq!(saved(), before);
    live.ok(&format!("clone --only {to} {}", path("secret/again")));
    assert!(fs::read(path("secret/again")).unwrap() == bytes && saved() > before);
    // The last reference takes the tables with it.
    live.ok("zfs destroy tank/a@s");
    for name in ["a/dir", "b/dir"] {
        fs::remove_dir_all(path(name)).unwrap();
    }
    for name in ["a/old", "b/back", "b/plain", "secret/text", "secret/again"] {
        fs::remove_file(path(name)).unwrap();
    }
    assert!((0..100).any(|_| saved() == 0), "nothing is shared any more");
    live.ok("zpool export tank");
    if Judge::NEWEST.installed() {
        Judge::NEWEST.verify(&live.disks(), "tank").unwrap();
    }
}

/// The cached part of dedup tables: all after a prefetch, and hardly any after an import. A scrub moves the logs to the tables.
#[test]
fn the_cached_part_of_the_tables_is_told() {
    let live = Live::new();
    let Some(at) = live.mounted_on("-O recordsize=4K -O dedup=on -O compression=off", &live.disk("a", 128))
    else {
        return;
    };
    fs::write(at.join("file"), noise(3, 8 << 20)).unwrap();
    live.ok("zpool sync tank");
    live.ok("zpool scrub -w tank");
    let numbers = || -> Vec<u64> {
        let status = live.ok("zpool status -DDp tank");
        let line = status.lines().find(|line| line.starts_with(" dedup: ")).unwrap().to_owned();
        let words: Vec<&str> = line.split_whitespace().collect();
        [3, 5, 8, 11]
            .map(|at| words[at].trim_end_matches(',').parse().unwrap_or_else(|_| panic!("{line}")))
            .to_vec()
    };
    let after = numbers();
    assert!(after[0] == 2048 && after[1] > 100_000 && after[3] > 100_000, "{after:?}");
    assert!(!live.ok("zpool status -D tank").contains(" cached ("));
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    let fresh = numbers();
    assert!(fresh[3] <= 65_536, "{fresh:?}");
    live.ok("zpool prefetch -t ddt tank");
    let read = numbers();
    assert_eq!(read[3], read[2], "{read:?}");
    assert_eq!(live.ok("zpool get -H -p -o value dedupcached tank").trim(), read[3].to_string());
    let json = |line: &str| serde_json::from_str::<Value>(&live.ok(line)).unwrap();
    let stats = json("zpool status -DD -j --json-int tank")["pools"]["tank"]["dedup_stats"].clone();
    assert_eq!((&stats["cspace"], &stats["mspace"]), (&read[3].into(), &read[2].into()), "{stats}");
    live.ok("zpool export tank");
    // A pool that is only read has tables, too.
    live.ok(&format!("zpool import -o readonly=on -d {} tank", live.disks().display()));
    live.ok("zpool prefetch tank");
    let said = live.fails("zpool ddtprune -p 0x10 tank");
    assert!(said.contains("read-only") || said.contains("readonly"), "{said}");
    live.ok("zpool export tank");
}
