//! Files of a live file system are read ahead: forward, backward, at equal distances, and not at random places.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use common::Bench;
use engine::memory::stats::ReadPurpose;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Options};

const RECORD: u64 = 128 << 10;
const RECORDS: u64 = 256;

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
        let file = fs.create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
        for record in 0..RECORDS {
            fs.write(file, record * RECORD, &content(record * RECORD, RECORD as usize), true).unwrap();
        }
        bench.spa.sync().unwrap();
        Self { bench, fs, file }
    }

    /// Reads the ranges from an empty cache; returns how many blocks the reader asked for first, and how many were read ahead. The
    /// share of each depends on the machine, because another thread reads ahead.
    fn read(&self, ranges: impl Iterator<Item = (u64, usize)>) -> (u64, u64) {
        self.bench.env.memory.set(engine::memory::Limit::ArcMax, 1).unwrap();
        self.bench.env.memory.set(engine::memory::Limit::ArcMax, 64 << 20).unwrap();
        let misses =
            |prefetch| self.bench.env.memory.stats.misses.get(ReadPurpose { prefetch, metadata: false });
        let before = (misses(false), misses(true));
        for (offset, len) in ranges {
            let pieces = self.fs.read_pieces(self.file, offset, len, true).unwrap();
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
    reads.fs.write(reads.file, end - 100, &[9; 300], true).unwrap();
    let pieces = reads.fs.read_pieces(reads.file, end - RECORD - 50, 1 << 20, true).unwrap();
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
    let mut good = content(end - RECORD - 50, RECORD as usize - 50);
    good.extend([9; 300]);
    assert_eq!(bytes, good);
    assert!(reads.fs.read_pieces(reads.file, end + 200, 10, true).unwrap().is_empty());
}
