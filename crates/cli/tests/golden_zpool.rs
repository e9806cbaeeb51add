//! The output of `zpool` for the golden pools, as OpenZFS printed it before they were exported.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test that can't go on must say so")]

mod common;

use std::collections::BTreeMap;

use common::{aquifer, moments};
use testkit::golden::{self, Golden};

/// Properties that are not in the pool, or not the same once it is exported.
const NOT_COMPARED: [&str; 2] = [
    // Drawn at each import.
    "load_guid",
    // We open for reading; it was imported for writing.
    "readonly",
];

/// Features that OpenZFS 2.3.2, which made the pools, does not know.
const NEWER_FEATURES: [&str; 3] =
    ["feature@dynamic_gang_header", "feature@block_cloning_endian", "feature@physical_rewrite"];

/// Freed blocks count as allocated for two more txgs, in OpenZFS's memory only: while the pool was imported
/// it may have printed more than is on disk, never less.
const FREES_IN_FLIGHT: [&str; 3] = ["allocated", "free", "capacity"];

fn read(pool: &Golden, file: &str) -> String {
    std::fs::read_to_string(pool.dir.join(file)).expect(file)
}

fn pairs(text: &str) -> BTreeMap<String, (String, String)> {
    let field = |line: &str, n: usize| line.split('\t').nth(n).unwrap_or_default().to_owned();
    text.lines().map(|l| (field(l, 1), (field(l, 2), field(l, 3)))).collect()
}

fn get(pool: &Golden, txg: u64) -> BTreeMap<String, (String, String)> {
    let dir = pool.dir.display().to_string();
    pairs(&aquifer(&["zpool", "get", "-Hp", "-T", &txg.to_string(), "-d", &dir, "all"]).out)
}

/// Whether a difference in this property is to be expected.
fn is_excused(pool: &Golden, property: &str) -> bool {
    // The dedup log was longer before the export emptied it.
    let fast_dedup = ["dedup-fast", "classes", "v24-cloned"].contains(&pool.name.as_str());
    NOT_COMPARED.contains(&property)
        || NEWER_FEATURES.contains(&property)
        || (pool.name == "damaged-raidz2" && property == "health")
        || FREES_IN_FLIGHT.contains(&property)
        || (fast_dedup && property == "dedup_table_size")
}

#[test]
fn every_property_of_every_pool() {
    let mut wrong = Vec::new();
    for pool in golden::all().iter().filter(|p| p.name != "zfs-fuse-v23") {
        let expected = pairs(&read(pool, "zpool-get.txt"));
        let mut best: Option<Vec<String>> = None;
        for txg in moments(pool).into_iter().take(10) {
            let actual = get(pool, txg);
            let names = expected.keys().chain(actual.keys().filter(|name| !expected.contains_key(*name)));
            let differing = names.filter(|n| expected.get(*n) != actual.get(*n) && !is_excused(pool, n));
            let text = |n: &String| format!("{n}: {:?}, we say {:?}", expected.get(n), actual.get(n));
            let differing: Vec<String> = differing.map(text).collect();
            if best.as_ref().is_none_or(|b| differing.len() < b.len()) {
                best = Some(differing);
            }
        }
        let best = best.expect("a moment");
        wrong.extend(best.into_iter().map(|line| format!("{}: {line}", pool.name)));
    }
    assert!(wrong.is_empty(), "the nearest moments differ in\n{}", wrong.join("\n"));
}

#[test]
fn allocation_is_what_was_said_less_frees_in_flight() {
    let number = |all: &BTreeMap<String, (String, String)>, name: &str| -> u64 {
        all[name].0.parse().expect("a number")
    };
    // While a job runs there are frees in flight.
    let cut = |name: &str| {
        ["-cut", "-due", "-paused", "-suspended", "-in-use"].iter().any(|end| name.ends_with(end))
    };
    let (mut exact, mut idle) = (0, 0);
    for pool in golden::all().iter().filter(|p| p.name != "zfs-fuse-v23") {
        let expected = number(&pairs(&read(pool, "zpool-get.txt")), "allocated");
        // Older moments may be overwritten by now.
        let opened = moments(pool).into_iter().take(8).map(|txg| get(pool, txg));
        let actual: Vec<_> = opened.filter(|all| all.contains_key("size")).collect();
        if !cut(&pool.name) {
            idle += 1;
            exact += usize::from(actual.iter().any(|all| number(all, "allocated") == expected));
        }
        let near = |n: u64| n <= expected && expected - n <= expected / 10;
        assert!(actual.iter().any(|all| near(number(all, "allocated"))), "{}: {expected}", pool.name);
        for all in &actual {
            assert_eq!(number(all, "size"), number(all, "allocated") + number(all, "free"));
        }
    }
    assert!(exact * 2 >= idle, "{exact} of {idle} idle pools are exact");
}

#[test]
fn zfs_fuse_agrees_where_it_knew_a_property() {
    let Some(pool) = golden::get("zfs-fuse-v23") else { return };
    let text = read(&pool, "zpool-get.txt");
    let words = text.lines().skip(1).map(|l| l.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let expected: BTreeMap<String, String> = words.map(|w| (w[1].clone(), w[2].clone())).collect();
    let dir = pool.dir.display().to_string();
    let out = aquifer(&["zpool", "get", "-H", "-d", &dir, "all"]).out;
    let actual = pairs(&out);
    // Space as zfs-fuse saw it before the export; a property that is gone.
    let excused = ["allocated", "free", "capacity", "dedupratio", "dedupditto"];
    for (name, value) in expected.iter().filter(|(name, _)| !excused.contains(&name.as_str())) {
        assert_eq!(actual.get(name).map(|(v, _)| v), Some(value), "{name}");
    }
}

#[test]
fn history_is_the_same_line_for_line() {
    for pool in golden::all().iter().filter(|p| p.name != "zfs-fuse-v23") {
        let dir = pool.dir.display().to_string();
        let run = aquifer(&["zpool", "history", "-il", "-d", &dir]);
        // The machine that made the pools had no names for its users.
        let actual = run.out.replace("user 0 (root) on", "user 0 on");
        let expected = read(pool, "history.txt");
        let mut later = actual.lines().filter(|line| !expected.lines().any(|l| l == *line));
        assert!(expected.lines().all(|line| actual.lines().any(|l| l == line)), "{}", pool.name);
        // Operations after the text was recorded: the export, and an import and export more.
        let later_words = [
            " zpool export ",
            " reflow pause ",
            " open pool version ",
            " import pool version ",
            " zpool import ",
        ];
        let of_export = |line: &str| later_words.iter().any(|words| line.contains(words));
        assert!(later.all(of_export), "{}", pool.name);
    }
}

#[test]
fn status_is_the_same_but_for_paths() {
    for pool in golden::all().iter().filter(|p| p.name != "zfs-fuse-v23") {
        let dir = pool.dir.display().to_string();
        // The progress of a job grows until the export, and its rate is known only while it runs.
        let runs = ["rebuild-cut", "removal-cut", "expand-cut"].contains(&pool.name.as_str());
        let seen = |text: &str| squeezed(&if runs { without_job(text) } else { text.to_owned() });
        let mut expected = seen(&read(pool, "status.txt"));
        let mut words = vec!["zpool", "status", "-d", &dir];
        if pool.name == "known-errors" {
            // The text was taken with -v, while the pool was mounted and its counters stood.
            expected =
                expected.replace("/tmp/t/known-errors/", "tank:/").replace("ONLINE 0 0 4", "ONLINE 0 0 0");
            words.push("-v");
        }
        // The space of a checkpoint grew until the export: check every txg.
        let same = moments(pool).into_iter().any(|txg| {
            let txg = txg.to_string();
            let run = aquifer(&[&words[..], &["-T", &txg]].concat());
            seen(&run.out.replace(&dir, "DIR")) == expected
        });
        // Since then one disk was taken away, and parts of others overwritten.
        assert!(same || pool.name == "damaged-raidz2", "{}:\n{expected}", pool.name);
    }
}

/// A status without the lines of a job that runs: its heading and the indented lines below it.
fn without_job(text: &str) -> String {
    let mut of_job = false;
    let lines = text.lines().filter(|line| {
        let heads_job = ["  scan:", "remove:", "expand:"].iter().any(|head| line.starts_with(head));
        of_job = heads_job || of_job && line.starts_with('\t');
        !of_job
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Columns are as wide as the longest path; that they are right is tested where they are made.
fn squeezed(text: &str) -> String {
    let word = |word: &str| match word.strip_prefix("/share/out/").and_then(|rest| rest.split_once('/')) {
        Some((_, device)) => format!("DIR/{device}"),
        None => word.to_owned(),
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_list_adds_up() {
    let Some(pool) = golden::get("classes") else { return };
    let dir = pool.dir.display().to_string();
    let plain = aquifer(&["zpool", "list", "-d", &dir]);
    assert_eq!(
        plain.out,
        "NAME   SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT\n\
         tank   192M  3.64M   188M        -         -     5%     1%  2.54x    ONLINE  -\n"
    );
    let verbose = aquifer(&["zpool", "list", "-Hpv", "-d", &dir]);
    let sizes = verbose.out.lines().skip(1).filter(|l| l.split('\t').nth(3).is_some_and(|a| a != "-"));
    let number = |line: &str, n: usize| line.split('\t').nth(n).and_then(|w| w.parse::<u64>().ok());
    let data = sizes.filter(|l| !l.contains("mirror-3"));
    let allocated: u64 = data.filter_map(|l| number(l, 3)).sum();
    assert_eq!(number(verbose.out.lines().next().expect("a pool"), 2), Some(allocated));
}

#[test]
fn json_has_the_same_values() {
    let Some(pool) = golden::get("basic") else { return };
    let dir = pool.dir.display().to_string();
    let run = aquifer(&["zpool", "list", "-j", "--json-int", "-d", &dir]);
    let json: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!(json["output_version"]["command"], "zpool list");
    assert_eq!(json["pools"]["tank"]["properties"]["size"]["value"], 117_440_512);
    let run = aquifer(&["zpool", "status", "-j", "-d", &dir]);
    let json: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!(json["pools"]["tank"]["vdevs"]["tank"]["vdevs"].as_object().map(|m| m.len()), Some(1));
}

/// The values that OpenZFS's own code (libzpool 2.3.2, the pools imported for reading) and its `zpool get -p
/// all POOL all-vdevs` printed, except properties that change with each read or that need the space maps
/// loaded.
#[test]
fn every_property_of_every_vdev() {
    const OF_THE_MOMENT: [&str; 6] =
        ["read_ops", "read_bytes", "allocated", "free", "fragmentation", "capacity"];
    const SINCE_2_4: [&str; 3] = ["sit_out", "autosit", "slow_io_events"];
    for name in ["classes", "raidz2-6", "removed", "replacing"] {
        let Some(pool) = golden::get(name) else { return };
        let dir = pool.dir.display().to_string();
        let run = aquifer(&["zpool", "get", "-H", "-p", "all", "-d", &dir, "tank", "all-vdevs"]);
        let row = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let ours: Vec<Vec<String>> = run.out.replace(&dir, "DIR").lines().map(row).collect();
        let unlike =
            |word: &str| OF_THE_MOMENT.contains(&word) || SINCE_2_4.contains(&word) || word.contains(':');
        let kept = |row: &&Vec<String>| !unlike(&row[1]);
        let file =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/vdevprops/{name}.txt"));
        let real = std::fs::read_to_string(file).expect("stored");
        let real: Vec<Vec<String>> = real.lines().map(row).collect();
        for (real, ours) in real.iter().zip(ours.iter().filter(kept)) {
            assert_eq!(real, ours, "{name}");
        }
        assert_eq!(ours.iter().filter(kept).count(), real.len(), "{name}");
    }
}

#[test]
fn properties_of_vdevs_by_name() {
    let Some(pool) = golden::get("classes") else { return };
    let dir = pool.dir.display().to_string();
    let get = |args: &[&str]| aquifer(&[&["zpool", "get", "-d", &dir], args].concat());
    let run = get(&["-H", "-o", "name,value", "size", "tank", "mirror-1"]);
    assert_eq!(run.out, "mirror-1\t64M\n");
    let run = get(&["-j", "--json-int", "size,failfast", "tank", "mirror-1"]);
    let json: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    let vdev = &json["vdevs"]["mirror-1"];
    assert_eq!((&vdev["type"], &vdev["class"]), (&"VDEV".into(), &"special".into()));
    assert_eq!(vdev["properties"]["size"]["value"], 67_108_864);
    assert_eq!(json["pool"]["name"], "tank");
    let run = get(&["size", "tank", "nosuch"]);
    assert!(run.code == 2 && run.err.contains("nosuch (unknown)"), "{}", run.err);
    assert_eq!(get(&["nosuch", "tank", "mirror-1"]).code, 2);
}
