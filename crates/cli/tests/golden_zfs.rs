//! Every property of every dataset, snapshot and bookmark of the golden pools, as OpenZFS printed them.
//!
//! OpenZFS' output is the state of some txg before the export; exporting changes space a little. So each pool
//! is read at all txgs that can still be opened, newest first, until one of them agrees in everything.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test that can't go on must say so")]

mod common;

use std::collections::BTreeSet;

use common::{aquifer, moments, options};
use testkit::golden::{self, Golden};

/// Properties that are not in the pool: whether it was mounted then.
const NOT_STORED: [&str; 1] = ["mounted"];

/// A line of `zfs get -Hp`: dataset, property, value, source.
type Line = (String, String, String, String);

#[test]
fn every_property_of_every_dataset() {
    for pool in golden::all() {
        let expected = expected(&pool);
        let mut best: Option<Vec<String>> = None;
        for txg in moments(&pool) {
            let difference = difference(&expected, &actual(&pool, txg));
            let better = best.as_ref().is_none_or(|b| difference.len() < b.len());
            if better {
                best = Some(difference);
            }
            if best.as_ref().is_some_and(Vec::is_empty) {
                break;
            }
        }
        let best = best.unwrap_or_default();
        assert!(best.is_empty(), "{}: nearest moment differs in\n{}", pool.name, best.join("\n"));
    }
}

#[test]
fn the_newest_moment_differs_in_space_only() {
    let space = [
        "used",
        "available",
        "referenced",
        "logicalused",
        "logicalreferenced",
        "usedbychildren",
        "usedbydataset",
        "usedbysnapshots",
        "written",
        "compressratio",
        "refcompressratio",
    ];
    for pool in golden::all() {
        let newest = moments(&pool).into_iter().next().expect("a moment");
        let is_space = |line: &&String| !space.iter().any(|p| line.split('\t').nth(1) == Some(p));
        let difference = difference(&expected(&pool), &actual(&pool, newest));
        let other: Vec<_> = difference.iter().filter(is_space).collect();
        assert!(other.is_empty(), "{}: {other:#?}", pool.name);
    }
}

/// OpenZFS' output, without the lines that we can't match.
fn expected(pool: &Golden) -> Vec<Line> {
    let text = std::fs::read_to_string(pool.dir.join("zfs-get.txt")).expect("zfs-get.txt");
    let by_fuse = pool.name == "zfs-fuse-v23";
    let all = text.lines().map(|line| if by_fuse { split_columns(line) } else { split_tabs(line) });
    all.filter(|(_, property, ..)| {
        // Before extensible_dataset this is kept in memory only.
        let in_memory = pool.name == "legacy-v28" && property == "snapshots_changed";
        // 2.4 has another name for the default.
        let newer = pool.is_of_2_4() && property == "xattr";
        // zfs-fuse has other defaults for these, and kept back half the slop.
        let other = by_fuse && ["aclmode", "mlslabel", "available"].contains(&property.as_str());
        let excused = in_memory || newer || other;
        !excused && !NOT_STORED.contains(&property.as_str())
    })
    .collect()
}

/// Our output. For zfs-fuse's pool only properties that zfs-fuse knew are compared.
fn actual(pool: &Golden, txg: u64) -> Vec<Line> {
    let txg = txg.to_string();
    let mut args = vec!["zfs", "get", "-Hp", "-T", &txg];
    let options = options(pool);
    args.extend(options.iter().map(String::as_str));
    args.push("all");
    let run = aquifer(&args);
    run.out.lines().map(split_tabs).collect()
}

fn split_tabs(line: &str) -> Line {
    let mut fields = line.split('\t').map(str::to_owned);
    let mut next = || fields.next().unwrap_or_default();
    (next(), next(), next(), next())
}

/// zfs-fuse had no `-H` for sources: columns are separated by spaces, ratios end in `x`.
fn split_columns(line: &str) -> Line {
    let mut words = line.split_whitespace();
    let mut next = || words.next().unwrap_or_default().to_owned();
    let (name, property, value) = (next(), next(), next());
    let source = words.collect::<Vec<_>>().join(" ");
    (name, property, value.trim_end_matches('x').to_owned(), source)
}

/// Lines of one side that the other lacks, marked as diff does.
fn difference(expected: &[Line], actual: &[Line]) -> Vec<String> {
    let have: BTreeSet<&Line> = actual.iter().collect();
    let missing = expected.iter().filter(|line| !have.contains(line) && !is_same_token(line, actual));
    let want: BTreeSet<(&str, &str)> = expected.iter().map(|l| (l.0.as_str(), l.1.as_str())).collect();
    let known: BTreeSet<&str> = expected.iter().map(|l| l.1.as_str()).collect();
    let extra = actual
        .iter()
        .filter(|l| known.contains(l.1.as_str()) && !want.contains(&(l.0.as_str(), l.1.as_str())));
    let text = |mark: &str, l: &Line| format!("{mark}{}\t{}\t{}\t{}", l.0, l.1, l.2, l.3);
    missing.map(|l| text("-", l)).chain(extra.map(|l| text("+", l))).collect()
}

/// Two gzips of one list are the same token.
fn is_same_token(line: &Line, actual: &[Line]) -> bool {
    let ours = actual.iter().find(|l| l.0 == line.0 && l.1 == "receive_resume_token");
    line.1 == "receive_resume_token" && ours.is_some_and(|ours| unpack(&ours.2) == unpack(&line.2))
}

/// The list in a resume token.
fn unpack(token: &str) -> Vec<u8> {
    let mut fields = token.split('-').skip(2);
    let size = usize::from_str_radix(fields.next().expect("size"), 16).expect("hex");
    let hex = fields.next().expect("bytes");
    let byte = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex");
    let packed: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    let mut out = vec![0; size];
    compress::decompress(compress::Algorithm::Gzip, &packed, &mut out).expect("gzip");
    out
}

/// Paths of a manifest with the number of hard links of each.
fn manifest(pool: &Golden, name: &str) -> std::collections::BTreeMap<Vec<u8>, u64> {
    let bytes = std::fs::read(pool.dir.join("manifest").join(format!("{name}.find"))).expect("manifest");
    let record = |record: &[u8]| {
        let fields: Vec<&[u8]> = record.split(|&b| b == b'\t').collect();
        let links = std::str::from_utf8(fields[4]).ok()?.parse().ok()?;
        (!fields[7].is_empty()).then(|| (fields[7].to_vec(), links))
    };
    bytes.split(|&b| b == 0).filter(|r| !r.is_empty()).filter_map(record).collect()
}

#[test]
fn differences_are_those_of_the_manifests() {
    let Some(pool) = golden::get("basic") else { return };
    let (one, two) = (manifest(&pool, "at-one"), manifest(&pool, "at-two"));
    let dir = pool.dir.display().to_string();
    let run = common::aquifer_bytes(&["zfs", "diff", "-Hh", "-d", &dir, "tank@one", "tank@two"]);
    let (mut gone, mut new) = (BTreeSet::new(), BTreeSet::new());
    for line in run.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
        let fields: Vec<&[u8]> = line.split(|&b| b == b'\t').collect();
        let path = |field: &[u8]| {
            field.strip_prefix(b"/tmp/t/basic/".as_slice()).expect("below the mount point").to_vec()
        };
        match fields[0] {
            b"-" => drop(gone.insert(path(fields[1]))),
            b"+" => drop(new.insert(path(fields[1]))),
            b"R" => {
                gone.insert(path(fields[1]));
                new.insert(path(fields[2]));
            }
            other => assert_eq!(other, b"M"),
        }
    }
    assert!(gone.iter().all(|path| one.contains_key(path) && !two.contains_key(path)));
    assert!(new.iter().all(|path| two.contains_key(path) && !one.contains_key(path)));
    // A file with several names shows up under one of them.
    let single = |links: &u64| *links == 1;
    let is_new = |(path, links): &(&Vec<u8>, &u64)| single(links) && !one.contains_key(*path);
    assert!(two.iter().filter(is_new).all(|(path, _)| new.contains(path)));
    let is_gone = |(path, links): &(&Vec<u8>, &u64)| single(links) && !two.contains_key(*path);
    assert!(one.iter().filter(is_gone).all(|(path, _)| gone.contains(path)));
    assert!(!gone.is_empty() && !new.is_empty());
}

#[test]
fn space_by_owner_is_what_openzfs_counted() {
    let Some(pool) = golden::get("quotas") else { return };
    let dir = pool.dir.display().to_string();
    for who in ["userspace", "groupspace", "projectspace"] {
        let expected = std::fs::read_to_string(pool.dir.join(format!("{who}.txt"))).expect(who);
        assert_eq!(aquifer(&["zfs", who, "-Hnp", "-d", &dir, "tank/q"]).out, expected);
    }
    let get =
        |property: &str| aquifer(&["zfs", "get", "-Hp", "-o", "value", "-d", &dir, property, "tank/q"]).out;
    assert_eq!(get("userused@1000"), "91136\n");
    assert_eq!(get("userquota@1000"), "5242880\n");
    assert_eq!(get("userobjquota@1000"), "100\n");
    assert_eq!(get("groupquota@54321"), "6291456\n");
    assert_eq!(get("projectused@7"), "603648\n");
}

#[test]
fn holds_and_space_since_a_snapshot() {
    let Some(pool) = golden::get("basic") else { return };
    let dir = pool.dir.display().to_string();
    let holds = aquifer(&["zfs", "holds", "-r", "-d", &dir, "tank@two"]);
    assert_eq!(holds.out, "NAME      TAG   TIMESTAMP\ntank@two  keep  Fri Nov 20 23:43 2026\n");
    let get = |property: &str, name: &str| {
        aquifer(&["zfs", "get", "-Hp", "-o", "value", "-d", &dir, property, name]).out
    };
    // `written` counts from the snapshot just before it; a bookmark counts as its snapshot.
    assert_eq!(get("written@one", "tank@two"), get("written", "tank@two"));
    assert_eq!(get("written@two", "tank"), get("written", "tank"));
    assert_eq!(get("written#mark", "tank@two"), get("written@one", "tank@two"));
    let since: u64 = get("written@one", "tank").trim().parse().expect("a number");
    let last: u64 = get("written", "tank").trim().parse().expect("a number");
    assert!(since > last);
}

#[test]
fn lists_sort_filter_and_recurse() {
    let Some(pool) = golden::get("basic") else { return };
    let dir = pool.dir.display().to_string();
    let list = |args: &[&str]| {
        let mut all = vec!["zfs", "list", "-H", "-o", "name", "-d", &dir];
        all.extend(args);
        aquifer(&all).out
    };
    assert_eq!(list(&["-t", "snapshot", "tank"]), "tank@one\ntank@two\n");
    assert_eq!(list(&["-t", "bookmark", "-r", "tank"]), "tank#mark\n");
    assert_eq!(list(&["tank"]), "tank\n");
    assert_eq!(list(&["-d", "0", "-r", "tank"]), "tank\n");
    assert_eq!(list(&["-S", "guid", "-d", "1", "-t", "fs", "tank"]).lines().count(), 5);
    let all = list(&["-t", "all"]);
    let expected = std::fs::read_to_string(pool.dir.join("zfs-list.txt")).expect("zfs-list.txt");
    let names: Vec<&str> = expected.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(all.lines().collect::<Vec<_>>(), names);
    let missing = aquifer(&["zfs", "list", "-d", &dir, "tank/none"]);
    assert_eq!(
        (missing.code, missing.err.as_str()),
        (1, "cannot open 'tank/none': dataset does not exist\n")
    );
    let json = aquifer(&["zfs", "list", "-j", "--json-int", "-t", "snapshot", "-d", &dir, "tank"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(json["datasets"]["tank@one"]["createtxg"], 43);
    assert_eq!(json["datasets"]["tank@one"]["properties"]["referenced"]["value"], 6_133_248);
}
