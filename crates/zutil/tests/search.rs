//! Pools from labels: any one label is enough, devices are known by guid, contradictions are noted.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::expect_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};

use common::{ALL, interior, label, leaf, list, write_labels, write_uberblock};
use ondisk::Endian;
use zutil::{Note, PoolCandidate, discover, search};

fn pools(dir: &Path) -> Vec<PoolCandidate> {
    search(&discover(&[dir.to_owned()]).devices)
}

fn one(dir: &Path) -> PoolCandidate {
    let mut all = pools(dir);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// A raidz1 of disks 11, 12, 13 in pool 7, expected at /old/a, /old/b, /old/c.
fn raidz(dir: &Path) {
    let names = ["a", "b", "c"];
    let children = (0u64..).zip(names).map(|(i, n)| leaf(i, 11 + i, &format!("/old/{n}"))).collect();
    let top = interior("raidz", 0, 10, children);
    for (i, name) in (0u64..).zip(names) {
        write_labels(&dir.join(name), &label("tank", 7, 50, 1, 11 + i, &top), &ALL);
    }
}

fn leaf_paths(pool: &PoolCandidate) -> Vec<PathBuf> {
    let tree = pool.config.nvlist("vdev_tree").unwrap();
    let top = &tree.nvlist_array("children").unwrap()[0];
    let leaves = top.nvlist_array("children").unwrap().iter();
    leaves.map(|leaf| PathBuf::from(leaf.str("path").unwrap())).collect()
}

#[test]
fn disks_are_known_by_guid() {
    let dir = tempfile::tempdir().unwrap();
    raidz(dir.path());
    std::fs::rename(dir.path().join("a"), dir.path().join("t")).unwrap();
    std::fs::rename(dir.path().join("b"), dir.path().join("a")).unwrap();
    std::fs::rename(dir.path().join("t"), dir.path().join("b")).unwrap();
    let pool = one(dir.path());
    let real = dir.path().canonicalize().unwrap();
    assert_eq!(leaf_paths(&pool), ["b", "a", "c"].map(|n| real.join(n)));
    assert_eq!((pool.name.as_str(), pool.guid, pool.txg, pool.notes.len()), ("tank", 7, 50, 0));
}

#[test]
fn any_one_label_is_enough() {
    for good in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let top = leaf(0, 11, "/old/a");
        write_labels(&dir.path().join("a"), &label("tank", 7, 50, 1, 11, &top), &[good]);
        let pool = one(dir.path());
        assert_eq!(pool.guid, 7);
        assert!(matches!(pool.notes.as_slice(), [Note::TornLabels { good: 1, .. }]), "{:?}", pool.notes);
    }
}

#[test]
fn the_newest_label_counts_and_a_torn_one_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let top = leaf(0, 11, "/old/a");
    write_labels(&path, &label("old", 7, 50, 1, 11, &top), &[0, 1]);
    write_labels(&path, &label("new", 7, 51, 1, 11, &top), &[2]);
    write_labels(&path, &label("torn", 7, 52, 1, 11, &top), &[3]);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let torn = ondisk::label::label_offset(common::SIZE, 3).unwrap() + ondisk::label::PHYS_OFFSET + 100_000;
    std::os::unix::fs::FileExt::write_all_at(&file, b"x", torn).unwrap();
    assert_eq!(one(dir.path()).name, "new");
}

#[test]
fn a_former_pool_in_the_other_labels_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    write_labels(&path, &label("old", 5, 9999, 1, 99, &leaf(0, 99, "/x")), &[2, 3]);
    write_labels(&path, &label("new", 7, 4, 1, 11, &leaf(0, 11, "/x")), &[0, 1]);
    let pool = one(dir.path());
    assert_eq!(pool.name, "new");
    assert!(pool.notes.iter().any(|note| matches!(note, Note::OtherLabels(_))));
}

/// Power failed between the two halves of a disk's labels, in a change of the pool's guid or in a split: in the latter case the
/// disk's newest uberblock is one of the new pool, which the old one must not follow.
#[test]
fn a_disk_amid_a_change_of_guid_stays_and_one_amid_a_split_leaves() {
    for split in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        raidz(dir.path());
        let mut new = label("new", 8, 51, 1, 11, &leaf(0, 11, "/old/a"));
        if split {
            new.add("split_guid", 7u64);
        }
        write_labels(&dir.path().join("a"), &new, &[0, 2]);
        let found: Vec<(u64, usize)> =
            pools(dir.path()).iter().map(|pool| (pool.guid, pool.members.len())).collect();
        assert_eq!(found, if split { vec![(8, 1), (7, 2)] } else { vec![(7, 3)] });
    }
}

#[test]
fn a_copied_disk_is_used_once() {
    let dir = tempfile::tempdir().unwrap();
    raidz(dir.path());
    std::fs::copy(dir.path().join("b"), dir.path().join("0-copy-of-b")).unwrap();
    let pool = one(dir.path());
    let real = dir.path().canonicalize().unwrap();
    assert_eq!(leaf_paths(&pool), ["a", "b", "c"].map(|n| real.join(n)));
    let note = Note::Duplicate { used: real.join("b"), ignored: real.join("0-copy-of-b") };
    assert_eq!(pool.notes, [note]);
}

#[test]
fn the_newer_of_two_copies_is_used() {
    let dir = tempfile::tempdir().unwrap();
    raidz(dir.path());
    let top =
        one(dir.path()).config.nvlist("vdev_tree").unwrap().nvlist_array("children").unwrap()[0].clone();
    write_labels(&dir.path().join("newer"), &label("tank", 7, 60, 1, 12, &top), &ALL);
    let pool = one(dir.path());
    assert_eq!(leaf_paths(&pool)[1].file_name().unwrap(), "newer");
    assert_eq!(pool.notes.iter().filter(|note| matches!(note, Note::Stale { txg: 50, .. })).count(), 2);
}

#[test]
fn one_file_under_many_names_is_one_device() {
    let dir = tempfile::tempdir().unwrap();
    raidz(dir.path());
    std::os::unix::fs::symlink(dir.path().join("b"), dir.path().join("by-id-b")).unwrap();
    std::fs::hard_link(dir.path().join("c"), dir.path().join("hard")).unwrap();
    let found = discover(&[dir.path().to_owned(), dir.path().join("b")]);
    assert_eq!(found.devices.len(), 3);
    assert_eq!(search(&found.devices)[0].notes, []);
}

#[test]
fn two_pools_of_one_name_stay_apart() {
    let dir = tempfile::tempdir().unwrap();
    raidz(dir.path());
    write_labels(&dir.path().join("z"), &label("tank", 8, 50, 1, 21, &leaf(0, 21, "/old/a")), &ALL);
    assert_eq!(pools(dir.path()).iter().map(|pool| pool.guid).collect::<Vec<_>>(), [7, 8]);
}

#[test]
fn holes_and_missing_tops_keep_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = label("tank", 7, 50, 4, 11, &leaf(2, 11, "/old/a"));
    config.add("hole_array", &[1u64][..]);
    write_labels(&dir.path().join("a"), &config, &ALL);
    let pool = one(dir.path());
    let tops = pool.config.nvlist("vdev_tree").unwrap().nvlist_array("children").unwrap();
    let kinds: Vec<_> = tops.iter().map(|top| top.str("type").unwrap()).collect();
    assert_eq!(kinds, ["missing", "hole", "file", "missing"]);
}

#[test]
fn spares_are_members_but_no_pool() {
    let dir = tempfile::tempdir().unwrap();
    let spare = list([("version", 5000u64.into()), ("state", 3u64.into()), ("guid", 77u64.into())]);
    write_labels(&dir.path().join("spare"), &spare, &ALL);
    assert!(pools(dir.path()).is_empty());
    raidz(dir.path());
    assert!(one(dir.path()).member(77).is_some());
}

#[test]
fn half_made_and_foreign_files_are_in_no_pool() {
    let dir = tempfile::tempdir().unwrap();
    write_labels(&dir.path().join("a"), &label("tank", 7, 0, 1, 11, &leaf(0, 11, "/x")), &ALL);
    std::fs::write(dir.path().join("text"), b"hello").unwrap();
    std::fs::File::create(dir.path().join("zeros")).unwrap().set_len(common::SIZE).unwrap();
    std::os::unix::fs::symlink("/nowhere", dir.path().join("dangling")).unwrap();
    std::fs::create_dir(dir.path().join("dir")).unwrap();
    let fifo = std::ffi::CString::new(dir.path().join("fifo").to_str().unwrap()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &*fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let found = discover(&[dir.path().to_owned()]);
    // The half-made one looks like a device that has left a pool.
    assert!(found.devices.len() == 1 && found.skipped.is_empty(), "{found:?}");
    assert!(pools(dir.path()).is_empty());
    assert_eq!(discover(&[dir.path().join("none")]).skipped.len(), 1);
}

#[test]
fn a_device_that_has_left_is_a_member_only_for_older_states() {
    let dir = tempfile::tempdir().unwrap();
    write_labels(&dir.path().join("a"), &label("tank", 7, 50, 1, 11, &leaf(0, 11, "/x")), &ALL);
    write_labels(&dir.path().join("b"), &label("tank", 7, 0, 1, 12, &leaf(0, 12, "/y")), &ALL);
    let mut pool = one(dir.path());
    assert!(pool.member(11).is_some() && pool.member(12).is_none());
    pool.readmit();
    assert_eq!(pool.member(12).unwrap().path, dir.path().join("b"));
}

/// Blocks that lead to the older state's configuration may be on such a device alone.
#[test]
fn a_device_that_has_left_stands_in_for_a_hole() {
    let dir = tempfile::tempdir().unwrap();
    let mut top = leaf(0, 11, "/x");
    top.add("ashift", 9u64);
    let mut newest = label("tank", 7, 50, 1, 11, &top);
    newest.remove("vdev_children");
    newest.add("vdev_children", 2u64).add("hole_array", vec![1u64]);
    write_labels(&dir.path().join("a"), &newest, &ALL);
    write_labels(&dir.path().join("b"), &label("tank", 7, 0, 1, 12, &leaf(0, 12, "/y")), &ALL);
    let mut pool = one(dir.path());
    let second = |pool: &PoolCandidate| {
        let tops = pool.config.nvlist("vdev_tree").unwrap().nvlist_array("children").unwrap().to_vec();
        let leaves = tops[1].nvlist_array("children").unwrap_or_default();
        (
            tops[1].str("type").unwrap().to_owned(),
            leaves.iter().filter_map(|leaf| leaf.u64("guid")).collect::<Vec<_>>(),
        )
    };
    assert_eq!(second(&pool), ("hole".to_owned(), vec![]));
    pool.readmit();
    assert_eq!(second(&pool), ("mirror".to_owned(), vec![12]));
}

#[test]
fn a_device_at_its_expected_path_is_found_outside_the_search() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let stray = elsewhere.path().join("b");
    let children = vec![leaf(0, 11, "/old/a"), leaf(1, 12, stray.to_str().unwrap())];
    let top = interior("mirror", 0, 10, children);
    write_labels(&dir.path().join("a"), &label("tank", 7, 50, 1, 11, &top), &ALL);
    write_labels(&stray, &label("tank", 7, 50, 1, 12, &top), &ALL);
    assert_eq!(one(dir.path()).member(12).unwrap().path, stray);
}

#[test]
fn uberblocks_of_both_byte_orders_and_all_slot_sizes() {
    for (ashift, endian) in [(9, Endian::Little), (12, Endian::Big), (13, Endian::Little)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut top = leaf(0, 11, "/x");
        top.add("ashift", u64::from(ashift));
        write_labels(&path, &label("tank", 7, 50, 1, 11, &top), &ALL);
        [4, 5, 6].iter().for_each(|txg| write_uberblock(&path, *txg, ashift, endian));
        let opened = one(dir.path()).open(blkdev::OpenOptions::default());
        let found: Vec<_> = opened.uberblocks.iter().map(|u| (u.uberblock.txg, u.copies)).collect();
        assert_eq!(found, [(6, 4), (5, 4), (4, 4)]);
        let dev = &opened.devices[&11];
        assert_eq!(zutil::ring::read_uberblocks(&**dev, None).len(), 12, "without knowing the slot size");
    }
}
