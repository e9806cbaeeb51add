//! Pruned and limited tables, and the settings of their logs.

use super::*;

/// Pruned blocks and those beyond the quota are ordinary ones: they stay, and their space is freed with them.
#[test]
fn tables_are_pruned_and_limited() {
    let bed = Bed::new(true);
    bed.set("dedup", ON);
    let fs = bed.mount(POOL);
    let write = |name: &str, tags: std::ops::Range<u64>| {
        let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
        let number = fs.dirs().create(fs.root, name.as_bytes(), &node).unwrap();
        let bytes: Vec<u8> = tags.clone().flat_map(block).collect();
        fs.data().write(number, 0, &bytes, true).unwrap();
        (number, tags.map(Some).collect::<Vec<_>>())
    };
    let txgs = || (0..30).for_each(|_| bed.spa.dsl_task(|_| Ok(())).unwrap());
    let mut model: Model = [write("a", 0..40), write("b", 0..10)].into();
    txgs();
    assert_eq!(bed.counts(), (40, 50));
    bed.spa.sharing().prune_ddt(Prune::Age(1 << 20)).unwrap();
    assert_eq!(bed.counts(), (40, 50));
    // A walk in parts meets each of the 30 entries with one reference once.
    let (mut found, mut place) = (Vec::new(), Some(Place::default()));
    while let Some(from) = place {
        let (parts, next) = candidates(&bed.spa.mos.view(), (u64::MAX, 0), (from, 7)).unwrap();
        found.push(parts.iter().map(Candidates::count).sum::<usize>());
        place = next;
    }
    assert_eq!(found, [7, 7, 7, 7, 2]);
    ddt::prefetch(&bed.spa.mos.view()).unwrap();
    bed.spa.sharing().prune_ddt(Prune::Percentage(100)).unwrap();
    assert_eq!(bed.counts(), (10, 20));
    check(&fs, &model);
    bed.judge();
    // A pruned block that is written again has an entry of another place.
    model.extend([write("c", 30..40)]);
    txgs();
    assert_eq!(bed.counts(), (20, 30));
    bed.judge();
    let settings = [("dedup_table_quota".to_owned(), PropValue::Number(1))];
    bed.spa.sync_task(move |spa, tx| spa.props().set(&settings, tx)).unwrap();
    txgs();
    model.extend([write("d", 0..80)]);
    bed.spa.sync().unwrap();
    check(&fs, &model);
    assert_eq!(bed.counts(), (20, 50), "no entries are made, those there are used");
    bed.judge();
    for entry in fs.dirs().entries(fs.root).unwrap() {
        fs.dirs().unlink(fs.root, &entry.name).unwrap();
    }
    txgs();
    assert_eq!(bed.counts(), (0, 0));
    bed.judge();
    fs.unmount().unwrap();
}

/// Entries of older tables have no age.
#[test]
fn a_pool_without_fast_dedup_is_not_pruned() {
    let bed = Bed::new(false);
    let why = bed.spa.sharing().prune_ddt(Prune::Percentage(100)).unwrap_err();
    assert_eq!((why.kind(), why.what()), (Kind::Unsupported, "operation not supported on this type of pool"));
}

/// The settings decide how fast entries leave the log.
#[test]
fn settings_pace_the_log() {
    use engine::memory::Limit;
    let bed = Bed::new(true);
    bed.set("dedup", ON);
    let set = |limit: Limit, value: u64| bed.spa.pool.env.memory.limits.set(limit, value).unwrap();
    let in_log = || {
        let tables = ddt::tables(&bed.spa.mos.view(), &mut Vec::new());
        tables.iter().flat_map(|table| &table.logs).map(|log| log.entries.len()).sum::<usize>()
    };
    set(Limit::DedupFlushMax, 1);
    let fs = bed.mount(POOL);
    let file = fs.dirs().create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    let mut bytes = vec![0; 256 * BLOCK];
    Rng::new(77).fill(&mut bytes);
    fs.data().write(file, 0, &bytes, true).unwrap();
    for _ in 0..20 {
        bed.spa.sync().unwrap();
    }
    let before = in_log();
    assert!(before > 240, "{before}");
    bed.spa.sync_deferred().unwrap();
    assert_eq!(before - in_log(), 3, "each of three txgs flushes one");
    set(Limit::DedupFlushMax, 1024);
    bed.spa.sync_deferred().unwrap();
    assert_eq!(in_log(), 0);
    // Without a wait for the log's age an entry is in its table when zpool sync ends.
    set(Limit::DedupLogTxgMax, 1);
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    fs.data().write(file, 0, &bytes[..100 * BLOCK], true).unwrap();
    bed.spa.sync_deferred().unwrap();
    assert_eq!((in_log(), bed.counts()), (0, (256, 256)));
    fs.unmount().unwrap();
    bed.spa.export().unwrap();
    judged(bed.dir.path(), &[Judge::USUAL, Judge::NEWEST]);
}

/// Two pools share the memory for the keys of their tables, and find every duplicate nevertheless.
#[test]
fn two_pools_share_the_memory_for_keys() {
    use engine::memory::Limit;
    // Each table's index takes 384 KiB and its keys.
    const MOST: u64 = 900 << 10;
    const BLOCKS: u64 = 6000;
    let env = Env::system(64 << 20).unwrap();
    let limits = &env.memory.limits;
    limits.set(Limit::DedupIndexMax, MOST).unwrap();
    let held = || {
        limits.set(Limit::DedupIndexMax, 1 << 40).unwrap();
        let room = env.memory.dedup_index(0, 0);
        limits.set(Limit::DedupIndexMax, MOST).unwrap();
        (1 << 40) - room
    };
    let beds = [Bed::within(&env, true), Bed::within(&env, true)];
    let mounted = beds.each_ref().map(|bed| {
        bed.set("recordsize", 512);
        bed.set("dedup", ON);
        bed.mount(POOL)
    });
    let mut bytes = vec![0; usize::try_from(BLOCKS * 512).unwrap()];
    Rng::new(5).fill(&mut bytes);
    let mut most_held = 0;
    for name in [b"one", b"two"] {
        for (bed, fs) in beds.iter().zip(&mounted) {
            let file =
                fs.dirs().create(fs.root, name, &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
            fs.data().write(file, 0, &bytes, true).unwrap();
            bed.spa.sync_deferred().unwrap();
        }
        beds.iter().for_each(|bed| bed.spa.sync_deferred().unwrap());
        most_held = most_held.max(held());
    }
    assert!((1..=MOST).contains(&most_held), "{most_held} bytes");
    beds.iter().for_each(|bed| bed.spa.pool.env.memory.limits.set(Limit::DedupFlushMin, 100_000).unwrap());
    for (bed, fs) in beds.iter().zip(&mounted) {
        (0..12).for_each(|_| bed.spa.sync().unwrap());
        assert_eq!(bed.counts(), (BLOCKS, 2 * BLOCKS));
        fs.unmount().unwrap();
        bed.spa.export().unwrap();
    }
    drop(mounted);
    let dirs = beds.map(|bed| bed.dir);
    assert_eq!(held(), 0);
    dirs.iter().for_each(|dir| drop(judged(dir.path(), &[Judge::NEWEST])));
}

/// `zfs_dedup_log_mem_max` bounds the log of each table by itself, as in OpenZFS: a long log of one pool, or of another table,
/// does not hasten the flush of others.
#[test]
fn each_log_has_its_own_limit() {
    use engine::memory::Limit;
    const MOST: u64 = 1 << 20;
    const BLOCKS: usize = 1500;
    let env = Env::system(64 << 20).unwrap();
    // Nothing is flushed but for the memory.
    for (limit, value) in [(Limit::DedupLogMemMax, MOST), (Limit::DedupLogTxgMax, 1 << 30)] {
        env.memory.limits.set(limit, value).unwrap();
    }
    let beds = [Bed::within(&env, true), Bed::within(&env, true)];
    let mounted = beds.each_ref().map(|bed| {
        bed.set("recordsize", 512);
        bed.mount(POOL)
    });
    let (mut seed, mut most) = (0, [[0; 2]; 2]);
    for round in 0..6 {
        for (table, dedup) in [SHA256, SHA512].into_iter().enumerate() {
            for (pool, (bed, fs)) in beds.iter().zip(&mounted).enumerate() {
                // The second pool does less.
                let blocks = if pool == 0 { BLOCKS } else { BLOCKS / 10 };
                seed += 1;
                let mut bytes = vec![0; blocks * 512];
                Rng::new(seed).fill(&mut bytes);
                bed.set("dedup", dedup);
                let name = format!("{round} {table}");
                let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
                let file = fs.dirs().create(fs.root, name.as_bytes(), &node).unwrap();
                fs.data().write(file, 0, &bytes, true).unwrap();
                bed.spa.sync().unwrap();
                let tables = ddt::tables(&bed.spa.mos.view(), &mut Vec::new());
                for (most, table) in most[pool].iter_mut().zip(&tables) {
                    let entries = table.logs.iter().map(|log| log.entries.len()).sum::<usize>();
                    *most = entries.max(*most);
                }
            }
        }
    }
    // Half of it for each side, and what one txg adds.
    let side = usize::try_from(MOST / ddt::LOG_ENTRY_BYTES / 2).unwrap();
    let [busy, quiet] = most;
    assert!(busy.iter().all(|most| (side..=2 * side + BLOCKS).contains(most)), "{most:?}");
    assert!(busy.iter().sum::<usize>() > 2 * side, "two tables have more than one limit: {most:?}");
    assert_eq!(quiet, [6 * BLOCKS / 10; 2], "nothing is flushed");
    for (bed, fs) in beds.iter().zip(&mounted) {
        fs.unmount().unwrap();
        bed.spa.export().unwrap();
        judged(bed.dir.path(), &[Judge::USUAL, Judge::NEWEST]);
    }
}

/// A block gets more copies when it is written again with `copies`; pointers of before have fewer. Our check finds no leak then,
/// in one pass over the pool and in one for each metaslab.
#[test]
fn copies_that_came_later_are_no_leak() {
    for fast in [false, true] {
        let bed = Bed::new(fast);
        bed.set("dedup", ON);
        let fs = bed.mount(POOL);
        let bytes: Vec<u8> = (0..40).flat_map(block).collect();
        for copies in [1, 3, 2] {
            bed.set("copies", copies);
            let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
            let number = fs.dirs().create(fs.root, format!("f{copies}").as_bytes(), &node).unwrap();
            fs.data().write(number, 0, &bytes, true).unwrap();
            bed.spa.sync().unwrap();
        }
        if fast {
            // Only the table names their further copies then.
            fs.dirs().unlink(fs.root, b"f2").unwrap();
            fs.dirs().unlink(fs.root, b"f3").unwrap();
        }
        fs.unmount().unwrap();
        drop(fs);
        bed.spa.export().unwrap();
        let pool = zutil::import::open_pool(
            &Env::system(64 << 20).unwrap(),
            &[bed.dir.path().to_owned()],
            POOL,
            OpenOptions::default(),
        );
        let (pool, stop) = (pool.unwrap(), AtomicBool::new(false));
        for window in [u64::MAX, 1] {
            let options = WalkOptions { leaks: true, stop: &stop, window };
            let account = account(&pool, &options, &mut |_| ());
            let space = account.space.as_ref().unwrap();
            assert!(space.is_clean(), "fast {fast}, {window}: {space:?}");
            assert!(window == 1 || account.balances(), "{} {}", account.total_alloc(), account.total_found());
        }
        judged(bed.dir.path(), &[Judge::USUAL, Judge::NEWEST]);
    }
}

/// The pointer that is left may name fewer copies than the entry: without that the others would be lost.
#[test]
fn entries_with_several_copies_are_not_pruned() {
    let bed = Bed::new(true);
    bed.set("dedup", ON);
    let fs = bed.mount(POOL);
    let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
    for (copies, tags) in [(1, 0..20), (3, 10..20)] {
        bed.set("copies", copies);
        let number = fs.dirs().create(fs.root, format!("f{copies}").as_bytes(), &node).unwrap();
        fs.data().write(number, 0, &tags.flat_map(block).collect::<Vec<u8>>(), true).unwrap();
        bed.spa.sync().unwrap();
    }
    fs.dirs().unlink(fs.root, b"f3").unwrap();
    (0..30).for_each(|_| bed.spa.dsl_task(|_| Ok(())).unwrap());
    assert_eq!(bed.counts(), (20, 20));
    bed.spa.sharing().prune_ddt(Prune::Age(0)).unwrap();
    assert_eq!(bed.counts(), (10, 10));
    fs.dirs().unlink(fs.root, b"f1").unwrap();
    (0..8).for_each(|_| bed.spa.dsl_task(|_| Ok(())).unwrap());
    assert_eq!(bed.counts(), (0, 0));
    fs.unmount().unwrap();
    drop(fs);
    bed.spa.export().unwrap();
    judged(bed.dir.path(), &[Judge::USUAL, Judge::NEWEST]);
}
