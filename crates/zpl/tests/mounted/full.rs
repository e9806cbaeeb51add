//! Full file systems.

use super::*;

/// A writer without room gets the error at the call, can delete, and continue.
#[test]
fn a_full_pool_can_be_emptied() {
    let bench = Bench::new(80 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let mut rng = Rng::new(6);
    let mut files = 0;
    let full = loop {
        let name = format!("f{files}");
        let made = fs.dirs().create(fs.root, name.as_bytes(), &node(FileKind::Regular, 0o600));
        files += 1;
        let written = made.and_then(|number| fs.data().write(number, 0, &random(&mut rng, 700_000), true));
        match written {
            Ok(()) => assert!(files < 200, "more than there is"),
            Err(e) => break e,
        }
    };
    assert_eq!(full.kind(), zpl::Kind::NoSpace);
    assert!(files > 20, "{files}");
    assert!(fs.space().unwrap().available < 8 << 20);
    for n in 0..files / 2 {
        let _ = fs.dirs().unlink(fs.root, format!("f{n}").as_bytes());
    }
    bench.spa.sync().unwrap();
    let more = fs.dirs().create(fs.root, b"more", &node(FileKind::Regular, 0o600)).unwrap();
    fs.data().write(more, 0, &random(&mut rng, 2_000_000), true).unwrap();
    bench.spa.sync().unwrap();
    bench.set("refquota", fs.space().unwrap().referenced + (1 << 20));
    let mut grow = || fs.data().append(more, &random(&mut rng, 300_000), true);
    let refused = (0..20).find_map(|_| grow().err()).expect("the quota is refused");
    assert_eq!(refused.kind(), zpl::Kind::Quota);
    fs.dirs().unlink(fs.root, b"more").unwrap();
    fs.unmount().unwrap();
    drop(fs);
    bench.spa.export().unwrap();
    let text = bench.zdb(&["-bcc", "wpool"]);
    assert!(text.is_empty() || text.contains("No leaks"), "{text}");
}

/// Fills a pool with records of `recordsize` until it refuses, with errors at the call only, and empties it.
fn fill(layout: &str, ashift: u32, recordsize: u64, copies: u64) {
    let what = format!("{layout} ashift {ashift} recordsize {recordsize} copies {copies}");
    let vdev = |dir: &Path| {
        let sized = |n: u32, size| (0..n).map(|i| pools::leaf(&dir.join(format!("disk{i}")), size)).collect();
        let leaves = |n: u32| sized(n, 64 << 20);
        match layout {
            "disk" => VdevSpec::Leaf(pools::leaf(&dir.join("disk"), 64 << 20)),
            "mirror" => VdevSpec::Mirror(leaves(2)),
            "raidz1" => VdevSpec::Raidz { parity: 1, children: leaves(3) },
            "raidz2" => VdevSpec::Raidz { parity: 2, children: leaves(4) },
            "raidz3" => VdevSpec::Raidz { parity: 3, children: leaves(5) },
            _ => {
                let config = DraidConfig { parity: 1, data: 2, spares: 1, children: 5 };
                VdevSpec::Draid { config, children: sized(5, 80 << 20) }
            }
        }
    };
    println!("{what}");
    let bench = Bench::on(Some(ashift), vdev, |_| {});
    bench.set("copies", copies);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let mut rng = Rng::new(8);
    let mut write = |name: &str, step: u64, most: u64| {
        let number = fs.dirs().create(fs.root, name.as_bytes(), &node(FileKind::Regular, 0o600))?;
        let bytes = random(&mut rng, step as usize);
        (0..most).try_for_each(|i| fs.data().write(number, i * step, &bytes, true))
    };
    // Records above 1 MiB are written in pieces.
    let piece = recordsize.min(1 << 20);
    let full = write("large", 1 << 20, 1000).expect_err(&what);
    assert_eq!(full.kind(), zpl::Kind::NoSpace, "{what}: {full}");
    // Room for some thousand small ones, scattered and not.
    bench.spa.sync().unwrap();
    let find = |name: &str| fs.dirs().lookup(fs.root, name.as_bytes()).unwrap().map(|entry| entry.object);
    let large = find("large").unwrap();
    let size = fs.attrs().get(large).unwrap().size;
    fs.data().truncate(large, size.saturating_sub(6 << 20)).unwrap();
    (0..4).for_each(|_| bench.spa.sync().unwrap());
    bench.set("recordsize", recordsize);
    fs.refresh().unwrap();
    for round in 0..3 {
        let full = write(&format!("small{round}"), piece, 40_000);
        assert!(full.as_ref().is_err_and(|e| e.kind() == zpl::Kind::NoSpace), "{what}: {full:?}");
        bench.spa.sync().unwrap_or_else(|e| panic!("{what}: {e}"));
        if let Some(number) = find(&format!("small{round}")) {
            let size = fs.attrs().get(number).unwrap().size;
            fs.data().truncate(number, size / 2).unwrap();
        }
        (0..4).for_each(|_| bench.spa.sync().unwrap());
    }
    for name in ["large", "small0", "small1", "small2"] {
        let gone = fs.dirs().unlink(fs.root, name.as_bytes());
        assert!(gone.as_ref().map_or_else(|e| e.kind() == zpl::Kind::NotFound, |_| true), "{what}: {gone:?}");
    }
    bench.spa.sync().unwrap();
    fs.unmount().unwrap();
    drop(fs);
    bench.spa.export().unwrap();
    let text = bench.zdb(&["-bcc", "wpool"]);
    assert!(text.is_empty() || text.contains("No leaks"), "{what}: {text}");
}

/// A block that is written in pieces waits for a txg once, not with each piece, although 24 times its size is more than the pool has.
#[test]
fn pieces_of_a_large_block_are_written_together() {
    let bench = Bench::new(120 << 20, |_| {});
    bench.set("recordsize", 4 << 20);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let number = fs.dirs().create(fs.root, b"file", &node(FileKind::Regular, 0o600)).unwrap();
    let bytes = random(&mut Rng::new(9), 64 << 10);
    for what in ["new", "rewritten"] {
        let before = bench.spa.txgs.synced();
        (0..512).for_each(|i| fs.data().write(number, i * (64 << 10), &bytes, true).unwrap());
        let txgs = bench.spa.txgs.synced() - before;
        assert!((4..80).contains(&txgs), "{what}: {txgs}");
    }
    let full = (512..4096).find_map(|i| fs.data().write(number, i * (64 << 10), &bytes, true).err());
    assert_eq!(full.expect("more than there is").kind(), zpl::Kind::NoSpace);
    fs.dirs().unlink(fs.root, b"file").unwrap();
    fs.unmount().unwrap();
    drop(fs);
    bench.spa.export().unwrap();
    let text = bench.zdb(&["-bcc", "wpool"]);
    assert!(text.is_empty() || text.contains("No leaks"), "{text}");
}

/// Writers that begin at the same time do not all get the same space.
#[test]
fn writers_of_large_blocks_at_once_are_refused_at_the_call() {
    let bench = Bench::new(400 << 20, |_| {});
    bench.set("copies", 3);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let make =
        |name: &str| fs.dirs().create(fs.root, name.as_bytes(), &node(FileKind::Regular, 0o600)).unwrap();
    let fill = make("fill");
    let bytes = random(&mut Rng::new(10), 1 << 20);
    let mut at = 0;
    while fs.space().unwrap().available > 24 << 20 {
        fs.data().write(fill, at, &bytes, true).unwrap();
        at += 1 << 20;
        bench.spa.sync().unwrap();
    }
    bench.set("recordsize", 16 << 20);
    fs.refresh().unwrap();
    let files: Vec<u64> = (0..8).map(|n| make(&format!("file{n}"))).collect();
    for file in &files {
        fs.data().truncate(*file, 64 << 20).unwrap();
    }
    bench.spa.sync().unwrap();
    let barrier = std::sync::Barrier::new(files.len());
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                barrier.wait();
                let written = fs.data().write(*file, 16 << 20, &bytes[..4096], true);
                assert!(written.as_ref().err().is_none_or(|e| e.kind() == zpl::Kind::NoSpace), "{written:?}");
            });
        }
    });
    bench.spa.sync().unwrap();
    fs.dirs().unlink(fs.root, b"fill").unwrap();
    fs.unmount().unwrap();
    drop(fs);
    bench.spa.export().unwrap();
    let text = bench.zdb(&["-bcc", "wpool"]);
    assert!(text.is_empty() || text.contains("No leaks"), "{text}");
}

/// A small record takes a whole sector of each disk that has its data or parity. `AQUIFER_FILL=1` tries every layout
/// with every size and number of copies.
#[test]
fn every_layout_is_full_at_the_call() {
    fill("raidz3", 12, 512, 1);
    fill("mirror", 12, 512, 3);
    if std::env::var_os("AQUIFER_FILL").is_none() {
        return;
    }
    for layout in ["disk", "mirror", "raidz1", "raidz2", "raidz3", "draid"] {
        for (ashift, recordsize) in
            [(9, 512), (9, 131_072), (12, 512), (12, 4096), (12, 131_072), (12, 4 << 20)]
        {
            (1..=3).for_each(|copies| fill(layout, ashift, recordsize, copies));
        }
    }
}

#[test]
fn changed_bytes_are_counted_when_a_block_grows_or_takes_the_place_of_a_clone() {
    const RECORD: usize = 1 << 20;
    let bench = Bench::new(256 << 20, |_| {});
    bench.set("recordsize", RECORD as u64);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"f", &node(FileKind::Regular, 0o600)).unwrap();
    let bytes = random(&mut Rng::new(13), RECORD);
    bench.spa.sync().unwrap();
    let before = bench.spa.dirty.total();
    for (n, part) in bytes.chunks(64 << 10).enumerate() {
        fs.data().write(file, (n as u64) * (64 << 10), part, true).unwrap();
    }
    let grown = bench.spa.dirty.total() - before;
    assert!((RECORD as u64..2 * RECORD as u64).contains(&grown), "{grown}");
    let clone = fs.dirs().create(fs.root, b"clone", &node(FileKind::Regular, 0o600)).unwrap();
    bench.spa.sync().unwrap();
    let before = bench.spa.dirty.total();
    fs.clones()
        .clone_range((zpl::write::CloneFrom::File(&fs, file), 0), (clone, 0), RECORD as u64, true)
        .unwrap();
    fs.data().write(clone, 0, &bytes, true).unwrap();
    let written = bench.spa.dirty.total() - before;
    assert!(written >= RECORD as u64, "{written}");
    fs.unmount().unwrap();
}

/// fallocate reserves nothing, but it refuses sizes that can't be written anyway.
#[test]
fn more_than_there_is_cannot_be_allocated() {
    let bench = Bench::new(80 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let number = fs.dirs().create(fs.root, b"f", &node(FileKind::Regular, 0o600)).unwrap();
    let available = fs.space().unwrap().available;
    assert_eq!(fs.data().allocate(number, 0, available).unwrap_err().kind(), zpl::Kind::NoSpace);
    assert_eq!(fs.attrs().get(number).unwrap().size, 0);
    fs.data().allocate(number, 0, available / 2).unwrap();
    assert_eq!(fs.attrs().get(number).unwrap().size, available / 2);
    fs.unmount().unwrap();
}

const QUOTA: u64 = 20 << 20;

/// A quota is met at the call by what blocks take on disk, with parity and copies, before a txg has written them.
#[test]
fn unsynced_blocks_count_in_quotas_with_what_they_take_on_disk() {
    let vdev = |dir: &Path| {
        let children = (0..5).map(|i| pools::leaf(&dir.join(format!("disk{i}")), 256 << 20)).collect();
        VdevSpec::Raidz { parity: 2, children }
    };
    let bench = Bench::on(Some(12), vdev, |_| {});
    let mut rng = Rng::new(9);
    for (recordsize, copies) in [(4096, 1), (512, 3), (131_072, 3)] {
        let name = bench.child(&format!("r{recordsize}"));
        let step = recordsize.max(16 << 10);
        bench.set_of(&name, &[("quota", QUOTA), ("recordsize", recordsize), ("copies", copies)]);
        let fs = mount(&bench.spa, &name, Overrides::default()).unwrap();
        let file = fs.dirs().create(fs.root, b"f", &node(FileKind::Regular, 0o600)).unwrap();
        let full = (0..5000)
            .find_map(|i| fs.data().write(file, i * step, &random(&mut rng, step as usize), true).err());
        assert_eq!(full.map(|e| e.kind()), Some(zpl::Kind::Quota), "{name}");
        fs.unmount().unwrap();
        let used = bench.used(&name);
        assert!((QUOTA..QUOTA + QUOTA / 8).contains(&used), "{name}: {used}");
    }
}

/// File systems below a directory with a quota do not exceed it together.
#[test]
fn a_quota_counts_the_unsynced_blocks_of_all_below_it() {
    let bench = Bench::new(512 << 20, |_| {});
    let parent = bench.child("parent");
    bench.set_of(&parent, &[("quota", QUOTA)]);
    let mut rng = Rng::new(10);
    let all: Vec<_> = (0..6)
        .map(|n| mount(&bench.spa, &bench.child(&format!("parent/{n}")), Overrides::default()).unwrap())
        .collect();
    for fs in &all {
        let file = fs.dirs().create(fs.root, b"f", &node(FileKind::Regular, 0o600));
        let Ok(file) = file else { continue };
        let full =
            (0..19).find_map(|i| fs.data().write(file, i << 20, &random(&mut rng, 1 << 20), true).err());
        assert!(full.as_ref().is_none_or(|e| e.kind() == zpl::Kind::Quota), "{full:?}");
    }
    let used = bench.used(&parent);
    assert!((QUOTA..QUOTA + QUOTA / 8).contains(&used), "{used}");
    // The space of one is there for the next as soon as it is free.
    all[0].dirs().unlink(all[0].root, b"f").unwrap();
    let file = all[5].dirs().create(all[5].root, b"g", &node(FileKind::Regular, 0o600)).unwrap();
    all[5].data().write(file, 0, &random(&mut rng, 1 << 20), true).unwrap();
}
