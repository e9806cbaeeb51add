//! Every property of every dataset, snapshot and bookmark of the golden pools, as OpenZFS printed them.
//!
//! What OpenZFS printed is the state of some transaction group before the export; exporting changes space a
//! little. So each pool is asked at all the moments that can still be opened, newest first, until one of
//! them agrees in everything.

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

/// What OpenZFS printed, without what can't be expected of us.
fn expected(pool: &Golden) -> Vec<Line> {
    let text = std::fs::read_to_string(pool.dir.join("zfs-get.txt")).expect("zfs-get.txt");
    let by_fuse = pool.name == "zfs-fuse-v23";
    let all = text.lines().map(|line| if by_fuse { split_columns(line) } else { split_tabs(line) });
    all.filter(|(_, property, ..)| {
        !NOT_STORED.contains(&property.as_str())
            // Before extensible_dataset this is kept in memory only.
            && !(pool.name == "legacy-v28" && property == "snapshots_changed")
            // zfs-fuse has other defaults for these, and kept back half the slop.
            && !(by_fuse && ["aclmode", "mlslabel", "available"].contains(&property.as_str()))
    })
    .collect()
}

/// What we print. Of zfs-fuse's pool only what zfs-fuse knew is compared.
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
