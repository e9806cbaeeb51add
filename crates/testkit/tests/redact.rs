//! Redaction lists: equal to the kernel's, and with the blocks that a clone changed in whatever way.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test that can't go on must say so")]

use engine::dsl::props::bookmarks::bookmarks;
use engine::send::redact::Search;
use engine::send::{Meter, RedactedRange, Redaction};
use engine::spa::OpenOptions;
use testkit::golden;

/// `zfs redact tank/src@a book tank/red@r`, as the kernel did it.
#[test]
fn a_list_is_the_kernels() {
    let Some(pool) = golden::get("streams") else { return };
    let opened = pool.open_with(OpenOptions::default()).expect("the pool opens");
    let dataset = |name: &str| opened.dsl.dataset(name).expect("a dataset");
    let book =
        bookmarks(&dataset("tank/src")).expect("bookmarks").into_iter().find(|book| book.name == "book");
    let list =
        Redaction::open(&opened.dsl, book.expect("the bookmark").phys.redaction_obj).expect("the list");
    let real: Vec<RedactedRange> = list.runs((0, 0)).map(|run| run.expect("a run")).collect();
    assert!(real.len() > 3);

    let hole_birth = opened.features.enabled_txg.get("com.delphix:hole_birth").copied();
    // A small window asks for many walks, each from where the last one ended.
    for window in [1 << 16, 3, 1] {
        let (of, by) = (dataset("tank/src@a"), [dataset("tank/red@r")]);
        let mut search = Search::new(&of, &by, hole_birth).expect("a search");
        search.set_window(window);
        let mut ours: Vec<RedactedRange> = Vec::new();
        while !search.is_done() {
            let mut next = Search::new(&of, &by, hole_birth).expect("a search");
            next.set_window(window);
            next.go_on_from(search.place());
            for entry in next.next_entries(&Meter::default()).expect("entries") {
                let (object, start) = (entry.object, entry.blkid);
                let run =
                    RedactedRange { object, start, end: start + entry.count(), size: entry.block_size() };
                match ours.last_mut() {
                    Some(last) if last.object == object && last.end == start => last.end = run.end,
                    _ => ours.push(run),
                }
            }
            assert!(next.place() > search.place());
            search = next;
        }
        assert_eq!(ours, real, "window of {window}");
    }
}

/// With respect to several snapshots only blocks that all of them changed are redacted; with one that changed
/// nothing, none.
#[test]
fn blocks_unchanged_in_one_snapshot_are_sent() {
    let Some(pool) = golden::get("streams") else { return };
    let opened = pool.open_with(OpenOptions::default()).expect("the pool opens");
    let dataset = |name: &str| opened.dsl.dataset(name).expect("a dataset");
    let hole_birth = opened.features.enabled_txg.get("com.delphix:hole_birth").copied();
    let entries = |by: &[&str], window: usize| {
        let by: Vec<_> = by.iter().map(|name| dataset(name)).collect();
        let mut search = Search::new(&dataset("tank/src@a"), &by, hole_birth).expect("a search");
        search.set_window(window);
        let mut all = Vec::new();
        while !search.is_done() {
            for entry in search.next_entries(&Meter::default()).expect("entries") {
                all.extend((0..entry.count()).map(|at| (entry.object, entry.blkid + at)));
            }
        }
        all
    };
    let (one, other) = (entries(&["tank/red@r"], 1 << 16), entries(&["tank/src@b"], 1 << 16));
    let both: Vec<_> = one.iter().filter(|block| other.contains(block)).copied().collect();
    assert!(!other.is_empty() && one != other);
    for window in [1 << 16, 2, 1] {
        assert_eq!(entries(&["tank/red@r", "tank/src@b"], window), both, "window of {window}");
        assert_eq!(entries(&["tank/src@b", "tank/red@r"], window), both, "window of {window}");
    }
}
