//! Compressed data decompresses to the original; damaged data is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use compress::{Algorithm, DecompressError, compress, decompress};
use proptest::prelude::*;

/// Every algorithm with every level that it has.
fn choices() -> Vec<(Algorithm, u8)> {
    let plain = [Algorithm::Off, Algorithm::Lzjb, Algorithm::Zle, Algorithm::Lz4].map(|alg| (alg, 0));
    let gzip = (0..=9).map(|level| (Algorithm::Gzip, level));
    let zstd = (0..=19).chain(102..=123).map(|level| (Algorithm::Zstd, level));
    plain.into_iter().chain(gzip).chain(zstd).collect()
}

/// Text-like, zero-rich and random stretches, from a seed.
fn sample(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed | 1;
    let mut out = Vec::with_capacity(len + 300);
    while out.len() < len {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let run = 1 + (x >> 40) as usize % 200;
        match x >> 61 {
            0 | 1 => out.extend(std::iter::repeat_n(0, run)),
            2 | 3 => out.extend(b"the quick brown fox jumps over the lazy dog. ".iter().cycle().take(run)),
            4 => out.extend(std::iter::repeat_n((x >> 32) as u8, run)),
            5 if out.len() > run => out.extend_from_within(out.len() - run..),
            _ => out.extend((0..run).map(|i| (x.rotate_left(i as u32 * 7) >> 24) as u8)),
        }
    }
    out.truncate(len);
    out
}

#[test]
fn every_level_round_trips_at_every_size() {
    for len in [1, 2, 3, 15, 16, 17, 512, 4096, 131_072] {
        let plain = sample(len as u64, len);
        for (alg, level) in choices() {
            let packed = compress(alg, level, &plain, len * 2 + 64).unwrap();
            let mut padded = packed.clone();
            padded.resize(packed.len().next_multiple_of(512), 0);
            for stream in [&packed, &padded] {
                let mut back = vec![0xaa; len];
                decompress(alg, stream, &mut back).unwrap();
                assert!(back == plain, "{alg:?} {level} {len}");
            }
        }
    }
}

#[test]
fn sixteen_megabytes() {
    let plain = sample(7, 16 << 20);
    for alg in [Algorithm::Lzjb, Algorithm::Zle, Algorithm::Lz4, Algorithm::Gzip, Algorithm::Zstd] {
        let packed = compress(alg, 1, &plain, plain.len()).unwrap();
        let mut back = vec![0; plain.len()];
        decompress(alg, &packed, &mut back).unwrap();
        assert!(back == plain, "{alg:?}");
    }
}

#[test]
fn capacity_is_a_limit() {
    let noise: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (alg, level) in choices() {
        assert_eq!(compress(alg, level, &noise, 64), None, "{alg:?} {level}");
        assert_eq!(compress(alg, level, &noise, 0), None, "{alg:?} {level}");
    }
}

#[test]
fn unknown_levels_are_refused() {
    assert_eq!(compress(Algorithm::Gzip, 10, &[0; 64], 1000), None);
    assert_eq!(compress(Algorithm::Zstd, 20, &[0; 64], 1000), None);
}

#[test]
fn a_wrong_logical_size_is_refused() {
    let plain = sample(3, 4096);
    for alg in [Algorithm::Gzip, Algorithm::Lz4, Algorithm::Zstd] {
        let packed = compress(alg, 0, &plain, 8192).unwrap();
        assert!(decompress(alg, &packed, &mut [0; 4095]).is_err(), "{alg:?}");
        assert_eq!(decompress(alg, &packed, &mut [0; 4097]), Err(DecompressError::WrongLength), "{alg:?}");
    }
    for alg in [Algorithm::Lzjb, Algorithm::Zle, Algorithm::Off] {
        let packed = compress(alg, 0, &plain, 8192).unwrap();
        assert_eq!(decompress(alg, &packed, &mut vec![0; 8000]), Err(DecompressError::Truncated), "{alg:?}");
    }
}

#[test]
fn lengths_that_lie() {
    for alg in [Algorithm::Lz4, Algorithm::Zstd] {
        for len in [u32::MAX, u32::MAX - 3, 1 << 31, 505] {
            let mut block = vec![0; 512];
            block[..4].copy_from_slice(&len.to_be_bytes());
            let wanted = if alg == Algorithm::Lz4 && len == 505 {
                DecompressError::Corrupt
            } else {
                DecompressError::Truncated
            };
            assert_eq!(decompress(alg, &block, &mut [0; 1024]), Err(wanted), "{alg:?} {len}");
        }
        assert_eq!(decompress(alg, &[], &mut [0; 16]), Err(DecompressError::Truncated));
    }
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(vec![
        Algorithm::Lzjb,
        Algorithm::Gzip,
        Algorithm::Zle,
        Algorithm::Lz4,
        Algorithm::Zstd,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn noise_is_survived(
        alg in any_algorithm(), src in proptest::collection::vec(any::<u8>(), 0..600), len in 0usize..3000,
    ) {
        let _ = decompress(alg, &src, &mut vec![0; len]);
    }

    #[test]
    fn flipped_bits_are_survived(
        alg in any_algorithm(), seed in any::<u64>(), flips in proptest::collection::vec(any::<u32>(), 1..4),
        cut in 0usize..2000,
    ) {
        let plain = sample(seed, 4096);
        let mut packed = compress(alg, 0, &plain, 9000).unwrap();
        for flip in flips {
            let at = flip as usize / 8 % packed.len();
            packed[at] ^= 1 << (flip % 8);
        }
        packed.truncate(packed.len().saturating_sub(cut).max(1));
        let _ = decompress(alg, &packed, &mut [0; 4096]);
    }

    #[test]
    fn anything_round_trips(
        alg in any_algorithm(), plain in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 1..3000),
    ) {
        let packed = compress(alg, 0, &plain, plain.len() * 2 + 64).unwrap();
        let mut back = vec![1; plain.len()];
        decompress(alg, &packed, &mut back).unwrap();
        prop_assert_eq!(back, plain);
    }
}
