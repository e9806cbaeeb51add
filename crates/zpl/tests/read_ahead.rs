//! Files of a live file system are read ahead: forward, backward, at equal distances, and not at random places.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use common::Bench;
use engine::memory::stats::ReadPurpose;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Options, ReadHow};

const RECORD: u64 = 128 << 10;
const RECORDS: u64 = 256;
const HOW: ReadHow = ReadHow { noticed: true, paged: true };

/// Bytes that tell their place.
fn content(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| (at / 512 * 7 + at % 251) as u8).collect()
}

struct Reads {
    bench: Bench,
    fs: std::sync::Arc<FsWriter>,
    file: u64,
}

impl Reads {
    fn new() -> Self {
        let bench = Bench::new(256 << 20, |_| ());
        let fs = bench.writer(Options { recordsize: RECORD, ..Options::default() });
        let file = fs.dirs().create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
        for record in 0..RECORDS {
            fs.data().write(file, record * RECORD, &content(record * RECORD, RECORD as usize), true).unwrap();
        }
        bench.spa.sync().unwrap();
        Self { bench, fs, file }
    }

    /// Empties the cache until it stays so: blocks that another thread still reads ahead arrive later.
    fn forget(&self) {
        let mut still = 0;
        while still < 5 {
            self.bench.env.memory.set(engine::memory::Limit::ArcMax, 1).unwrap();
            self.bench.env.memory.set(engine::memory::Limit::ArcMax, 64 << 20).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            let sizes = self.bench.env.memory.contents().sizes;
            let is_empty = sizes.recent.data + sizes.frequent.data + sizes.uncached.data == 0;
            still = if is_empty { still + 1 } else { 0 };
        }
    }

    /// Reads the ranges from an empty cache; returns how many blocks the reader asked for first, and how many were read ahead.
    /// The share of each depends on the machine, because another thread reads ahead.
    fn read(&self, ranges: impl Iterator<Item = (u64, usize)>) -> (u64, u64) {
        self.forget();
        let misses = |prefetch| {
            self.bench.env.memory.stats.misses.get(ReadPurpose { prefetch, ..ReadPurpose::default() })
        };
        let before = (misses(false), misses(true));
        for (offset, len) in ranges {
            let pieces = self.fs.data().read_pieces(self.file, offset, len, HOW).unwrap();
            assert_eq!(pieces.iter().map(|piece| piece.len()).sum::<usize>(), len);
            assert_eq!(
                pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>(),
                content(offset, len)
            );
        }
        (misses(false) - before.0, misses(true) - before.1)
    }
}

#[test]
fn streams_are_read_ahead() {
    let reads = Reads::new();
    let forward = reads.read((0..RECORDS * 2).map(|half| (half * RECORD / 2, (RECORD / 2) as usize)));
    assert!(forward.1 > RECORDS / 8 && forward.0 + forward.1 <= RECORDS + 8, "forward {forward:?}");
    let backward = reads.read((0..RECORDS).rev().map(|record| (record * RECORD, RECORD as usize)));
    assert!(backward.1 > RECORDS / 8 && backward.0 + backward.1 <= RECORDS + 8, "backward {backward:?}");
    let steps = reads.read((0..RECORDS / 5).map(|record| (record * 5 * RECORD, 4096)));
    assert!(steps.1 > 0 && steps.1 <= RECORDS / 5 + 40, "steps {steps:?}");
    let two = (0..RECORDS / 2).flat_map(|record| [record, record + RECORDS / 2]);
    let two = reads.read(two.map(|record| (record * RECORD, RECORD as usize)));
    assert!(two.1 > RECORDS / 8, "two streams {two:?}");
}

#[test]
fn scattered_reads_are_not_read_ahead() {
    let reads = Reads::new();
    let scattered = reads.read((0..60).map(|number| (number * number * 37 % RECORDS * RECORD + 4096, 4096)));
    assert!(scattered.1 == 0, "scattered {scattered:?}");
}

#[test]
fn nothing_is_read_ahead_where_that_is_off() {
    let reads = Reads::new();
    reads.fs.set_options(Options { recordsize: RECORD, reads_ahead: false, ..Options::default() });
    let forward = reads.read((0..RECORDS).map(|record| (record * RECORD, RECORD as usize)));
    assert_eq!(forward, (RECORDS, 0));
}

#[test]
fn pieces_end_with_the_file_and_include_what_is_not_written_yet() {
    let reads = Reads::new();
    let end = RECORDS * RECORD;
    reads.fs.data().write(reads.file, end - 100, &[9; 300], true).unwrap();
    let pieces = reads.fs.data().read_pieces(reads.file, end - RECORD - 50, 1 << 20, HOW).unwrap();
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
    let mut good = content(end - RECORD - 50, RECORD as usize - 50);
    good.extend([9; 300]);
    assert_eq!(bytes, good);
    assert!(reads.fs.data().read_pieces(reads.file, end + 200, 10, HOW).unwrap().is_empty());
}

/// Blocks that the page cache has as well take only their part of the memory, whether they were written or read; all of the file would fit.
#[test]
fn blocks_in_the_page_cache_are_not_kept_twice() {
    const PART: u64 = 16 << 20;
    let reads = Reads::new();
    let kept = || {
        let sizes = reads.bench.env.memory.contents().sizes;
        (sizes.recent.data + sizes.frequent.data, sizes.uncached.data)
    };
    let pieces = || (0..RECORDS * 2).map(|half| (half * RECORD / 2, (RECORD / 2) as usize));
    reads.read(pieces());
    let (others, paged) = kept();
    assert!(others <= 6 << 20 && (PART / 2..=PART).contains(&paged), "{others} {paged}");
    // Random reads of the same blocks are answered from memory and keep them there.
    let last = (RECORDS - 1) * RECORD;
    reads.fs.data().read_pieces(reads.file, last + 5, 10, HOW).unwrap();
    assert_eq!(kept(), (others + RECORD, paged - RECORD));

    // Whole blocks at random places. The first is asked for again when it has left: the page cache does not keep it.
    reads.forget();
    let places = || (0..=u8::MAX).map(|n| u64::from(n.reverse_bits()) * RECORD);
    for offset in places().chain([0]) {
        reads.fs.data().read_pieces(reads.file, offset, RECORD as usize, HOW).unwrap();
    }
    assert_eq!(kept(), (RECORD, PART));

    let direct = ReadHow { paged: false, ..HOW };
    reads.forget();
    for (offset, len) in pieces() {
        reads.fs.data().read_pieces(reads.file, offset, len, direct).unwrap();
    }
    assert_eq!(kept(), (RECORDS * RECORD, 0));

    let new =
        reads.fs.dirs().create(reads.fs.root, b"new", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    reads.forget();
    let write = |from: u64, paged: bool| {
        for record in from..from + RECORDS {
            let (at, bytes) = (record * RECORD, content(record * RECORD, RECORD as usize));
            match paged {
                true => reads.fs.data().write_paged(new, at, &bytes, true).unwrap(),
                false => reads.fs.data().write(new, at, &bytes, true).unwrap(),
            }
        }
        reads.bench.spa.sync().unwrap();
    };
    write(0, true);
    assert_eq!(kept(), (0, PART));
    // Blocks that replace others are likely to be patched again.
    write(0, true);
    assert!(kept().0 >= RECORDS * RECORD, "{:?}", kept());
    write(RECORDS, false);
    assert!(kept().0 + kept().1 > RECORDS * RECORD, "{:?}", kept());
}
