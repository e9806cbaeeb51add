//! Blocks that OpenZFS compressed.
//!
//! `data/NAME.N.bin` are blocks of the golden pool `compress` (dataset `compression-NAME`), padding and all;
//! `zstd-ppc64_fbsd.bin` is one of the OpenZFS test suite's pool `testpool_zstd`, whose header a big-endian
//! host wrote. `golden.txt` has the logical size and the SHA-256 of each as libzpool 2.3.2 decompresses it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use compress::{Algorithm, compress_as_openzfs, decompress, zstd};
use sha2::{Digest, Sha256};

fn algorithm(name: &str) -> Algorithm {
    match name.split(['-', '.']).next() {
        Some("gzip") => Algorithm::Gzip,
        Some("lz4") => Algorithm::Lz4,
        Some("lzjb") => Algorithm::Lzjb,
        Some("zle") => Algorithm::Zle,
        Some("zstd") => Algorithm::Zstd,
        _ => panic!("{name}"),
    }
}

fn block(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/{name}.bin", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn blocks_of_golden_pools() {
    let mut checked = 0;
    for line in include_str!("data/golden.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let mut out = vec![0x11; fields[1].parse().unwrap()];
        decompress(algorithm(fields[0]), &block(fields[0]), &mut out).unwrap();
        let hash: String = Sha256::digest(&out).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, fields[2], "{}", fields[0]);
        checked += 1;
    }
    assert_eq!(checked, 17);
}

#[test]
fn zstd_headers_of_either_byte_order() {
    for (name, level) in [("zstd.0", 3), ("zstd-19.0", 19), ("zstd-fast-5.0", 107), ("zstd-ppc64_fbsd", 3)] {
        let block = block(name);
        let (header, _) = zstd::Header::parse(&block).unwrap();
        assert_eq!((header.version, header.level), (10405, level), "{name}");
    }
    assert_eq!(zstd::Level::fast(5).unwrap().number(), 107);
}

#[test]
fn the_bytes_of_openzfs() {
    for (name, level) in
        [("lz4.0", 0), ("lz4.1", 0), ("gzip-1.0", 1), ("gzip-1.1", 1), ("gzip-9.0", 9), ("gzip-9.1", 9)]
    {
        let (stored, len) = (block(name), 128 << 10);
        let mut logical = vec![0; len];
        decompress(algorithm(name), &stored, &mut logical).unwrap();
        let again = compress_as_openzfs(algorithm(name), level, &logical, len - len / 8).unwrap();
        assert_eq!(again, stored[..again.len()], "{name}");
        assert!(stored[again.len()..].iter().all(|byte| *byte == 0), "{name}");
    }
}
