//! The JSON of `zpool status` and `zpool list`, key by key and in the same order, as OpenZFS 2.3.2's `zpool` printed
//! it for the golden pools (`tests/data/json`; the pools' folder is written as `DIR` there).
//!
//! The configurations came from OpenZFS's own "try import", which neither counts allocated space nor looks for
//! spares and cache devices; those two were passed to it.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test that can't go on must say so")]

mod common;
mod live;

use common::aquifer;
use live::Live;
use serde_json::Value;
use testkit::golden;

/// Keys whose values an import that was only tried does not know, or which are of the moment of the import.
const UNKNOWN: [&str; 8] = [
    "alloc_space",
    "to_reflow",
    "pass_start",
    "txg",
    "phys_space",
    "rep_dev_size",
    // The texts on features that are not enabled depend on the known features.
    "status",
    "action",
];

/// Properties that depend on allocated space, or that the configuration does not hold.
const PROPERTIES: [&str; 4] = ["allocated", "free", "capacity", "fragmentation"];

fn differences(real: &Value, ours: &Value, at: &str, found: &mut Vec<String>) {
    let (Some(r), Some(o)) = (real.as_object(), ours.as_object()) else {
        if real != ours {
            found.push(format!("{at}: {real}, we say {ours}"));
        }
        return;
    };
    let known = |key: &&String| !UNKNOWN.contains(&key.as_str());
    let (keys, mine): (Vec<_>, Vec<_>) = (r.keys().filter(known).collect(), o.keys().filter(known).collect());
    if keys != mine {
        found.push(format!("{at}: {keys:?}, we have {mine:?}"));
    }
    for key in keys.into_iter().filter(|key| !PROPERTIES.contains(&key.as_str())) {
        differences(&real[key], ours.get(key).unwrap_or(&Value::Null), &format!("{at}/{key}"), found);
    }
}

fn compare(name: &str, file: &str, args: &[&str]) {
    let Some(pool) = golden::get(name) else { return };
    let dir = pool.dir.display().to_string();
    let run = aquifer(&[args, &["-d", &dir]].concat());
    let stored = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/json").join(file);
    let real = std::fs::read_to_string(&stored).expect(file);
    let parse = |text: &str| -> Value { serde_json::from_str(text).expect("JSON") };
    let (real, ours) = (parse(&real), parse(&run.out.replace(&dir, "DIR")));
    let mut found = Vec::new();
    differences(&real, &ours, "", &mut found);
    assert!(found.is_empty(), "{file}:\n{}", found.join("\n"));
}

#[test]
fn status_is_openzfs_object_for_object() {
    for name in ["classes", "damaged-raidz2", "removed", "expanded", "replacing", "checkpoint"] {
        compare(name, &format!("{name}.status.json"), &["zpool", "status", "-j", "-p"]);
    }
}

#[test]
fn flat_status_lists_every_vdev_with_its_parent() {
    let flat = ["zpool", "status", "-j", "--json-int", "--json-flat-vdevs", "--json-pool-key-guid"];
    compare("classes", "classes.flat.json", &flat);
}

#[test]
fn a_verbose_list_has_its_vdevs() {
    let Some(pool) = golden::get("classes") else { return };
    let dir = pool.dir.display().to_string();
    // The stored list is OpenZFS 2.3's, whose vdevs had these properties whatever was asked for.
    let columns = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health";
    let run = aquifer(&["zpool", "list", "-v", "-j", "-p", "-o", columns, "-d", &dir]);
    let mut ours: Value = serde_json::from_str(&run.out.replace(&dir, "DIR")).expect("JSON");
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/json/classes.list.json");
    let mut real: Value =
        serde_json::from_str(&std::fs::read_to_string(file).expect("stored")).expect("JSON");
    // Sizes of spares and cache devices are known to an import that was carried out.
    for json in [&mut real, &mut ours] {
        for (class, disk) in [("l2cache", "DIR/disk7"), ("spares", "DIR/disk8")] {
            let vdev = &mut json["pools"]["tank"]["vdevs"][class][disk]["properties"];
            assert!(vdev.as_object_mut().expect("properties").remove("size").is_some());
        }
        json["pools"]["tank"].as_object_mut().expect("a pool").remove("properties");
    }
    let mut found = Vec::new();
    differences(&real, &ours, "", &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_pool_grows_by_what_its_devices_have_gained() {
    let Some(pool) = golden::get("mirror3") else { return };
    let dir = std::env::temp_dir().join(format!("aquifer-grown-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    for disk in ["disk1", "disk2", "disk3"] {
        std::fs::copy(pool.dir.join(disk), dir.join(disk)).expect("a copy");
    }
    let path = dir.display().to_string();
    let size = || aquifer(&["zpool", "list", "-H", "-p", "-o", "expandsize", "-d", &path]).out;
    let grow = |disk: &str| {
        let file = std::fs::File::options().write(true).open(dir.join(disk)).expect("a disk");
        file.set_len(file.metadata().expect("its size").len() + (64 << 20)).expect("a larger disk");
    };
    assert_eq!(size(), "-\n");
    ["disk1", "disk3"].into_iter().for_each(grow);
    assert_eq!(size(), "-\n", "a mirror is as large as its smallest side");
    grow("disk2");
    assert_eq!(size(), format!("{}\n", 64 << 20));
    std::fs::remove_dir_all(&dir).expect("removed");
}

/// Keys for a pool in use: those of the kernel's OpenZFS 2.3.2 for a pool with the same vdevs.
#[test]
fn vdevs_of_a_pool_in_use_have_the_kernels_keys() {
    let live = Live::new();
    let [a, b, log, cache, spare] = ["a", "b", "log", "cache", "spare"].map(|name| live.disk(name, 64));
    live.ok(&format!(
        "zpool create -O mountpoint=none tank mirror {a} {b} log {log} cache {cache} spare {spare}"
    ));
    live.ok(&format!("zpool offline tank {b}"));
    live.ok(&format!("zpool offline tank {log}"));
    let text = live.ok("zpool status -j --json-int -d -D tank");
    let pool = serde_json::from_str::<Value>(&text).expect("JSON")["pools"]["tank"].take();
    let keys = |at: &Value| at.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ");
    assert!(keys(&pool).ends_with(" vdevs logs l2cache spares dedup_stats error_count"), "{pool}");
    let (head, errors) = (
        "name vdev_type guid path class state",
        "read_errors write_errors checksum_errors slow_ios dio_verify_errors",
    );
    let leaves = &pool["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"];
    let leaf = format!("{head} rep_dev_size phys_space {errors}");
    assert_eq!([keys(&leaves[&a]), keys(&leaves[&b])], [leaf.clone(), leaf], "offline or not");
    let of_log = format!("{head} total_space def_space rep_dev_size phys_space {errors}");
    assert_eq!(keys(&pool["logs"][&log]), of_log);
    let of_cache = format!("{head} total_space rep_dev_size phys_space {errors}");
    assert_eq!(keys(&pool["l2cache"][&cache]), of_cache);
    // Labels at both ends, and a header.
    assert_eq!(pool["l2cache"][&cache]["total_space"], (64 << 20) - (4 << 20) - (512 << 10) - 512);
    assert_eq!(keys(&pool["spares"][&spare]), format!("{head} dio_verify_errors"));
    assert_eq!(pool["dedup_stats"].to_string(), r#"{"obj_count":0,"ddt_object_stats":{}}"#);
    let list = live.ok("zpool list -Hpv tank");
    let line = list.lines().find(|line| line.contains("/cache\t")).expect("a line");
    assert!(line.contains("\t67108864\t0\t62389760\t-\t-\t0\t0\t-\tONLINE"), "{line}");
    live.export_and_verify("tank");
}

/// A reader takes the rate of a scan from what this pass did and when it began.
#[test]
fn scans_and_reconstructions_have_their_numbers() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    live.ok("zpool scrub -w tank");
    let document = || {
        let text = live.ok("zpool status -j --json-int -T u tank");
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let found = document();
    assert!(found["time"].as_u64() > Some(1_000_000_000), "{found}");
    let scan = &found["pools"]["tank"]["scan_stats"];
    // The counts of the pass begin again where only gathered blocks are left to be read, as in OpenZFS.
    assert!(scan["issued_bytes_per_scan"].as_u64() > Some(0) && scan["bytes_per_scan"].is_u64(), "{scan}");
    assert!(scan["examined"].as_u64() > Some(0) && scan["issued"] == scan["examined"], "{scan}");
    assert!(scan["pass_start"].as_u64() >= scan["start_time"].as_u64(), "{scan}");
    live.ok(&format!("zpool attach -s -w tank {a} {c}"));
    let found = document();
    let rebuild = &found["pools"]["tank"]["scan_stats"]["rebuild_stats"]["mirror-0"];
    assert!(rebuild["state"] == "COMPLETE" && rebuild["rebuilt"].as_u64() > Some(0), "{rebuild}");
    assert_eq!(live.ok("zpool list -j -T u tank").matches("\"time\":\"").count(), 1);
    live.export_and_verify("tank");
}

#[test]
fn numbers_of_datasets_are_exact_and_pools_are_in_order() {
    let live = Live::new();
    for name in ["b", "a"] {
        live.ok(&format!("zpool create -O mountpoint=none {name} {}", live.disk(name, 64)));
    }
    assert_eq!(live.ok("zpool list -H -o name b a b"), "a\nb\n");
    let got: Value = serde_json::from_str(&live.ok("zfs get -j --json-int used,creation a")).unwrap();
    let props = &got["datasets"]["a"]["properties"];
    assert!(props["used"]["value"].is_u64() && props["creation"]["value"].is_u64(), "{got}");
}
