//! Checksums against OpenZFS: its own functions, and blocks that its kernel module wrote.
//!
//! - `libzpool.txt`: the results of libzpool 2.3.2's `abd_checksum_*` (suffix `_bs`: the byteswap variant)
//!   for the bytes of [`pseudo_random`], by length; under each `salt` line, 0 is all zeros, 1 is `i * 7 + 1`.
//! - `golden.txt`: blocks of the golden pool `checksums`, one for each dataset, with the checksum that
//!   zdb shows in the block pointer pointing at it. The salt is that pool's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use checksum::{Algorithm, Cksum, Salt, Salted, digest};

const GOLDEN_SALT: Salt = [
    0xbc, 0xcb, 0x9d, 0xaa, 0xc5, 0x29, 0x8b, 0xd4, 0xfd, 0x19, 0xd8, 0xb8, 0xfb, 0x43, 0x4d, 0x26, 0x56,
    0x2d, 0x77, 0x1f, 0xe9, 0xf6, 0x03, 0x2b, 0x5a, 0x77, 0xa1, 0xa8, 0xc3, 0x1f, 0xed, 0x57,
];

fn algorithm(name: &str) -> Algorithm {
    match name {
        "off" => Algorithm::Off,
        "fletcher2" => Algorithm::Fletcher2,
        "fletcher4" => Algorithm::Fletcher4,
        "sha256" => Algorithm::Sha256,
        "sha512" => Algorithm::Sha512,
        "skein" => Algorithm::Skein,
        "edonr" => Algorithm::Edonr,
        "blake3" => Algorithm::Blake3,
        _ => panic!("{name}"),
    }
}

fn parse_words<'a>(fields: impl Iterator<Item = &'a str>) -> Cksum {
    let words: Vec<u64> = fields.map(|f| u64::from_str_radix(f, 16).unwrap()).collect();
    words.try_into().unwrap()
}

/// The top bytes of Knuth's 64-bit linear congruential generator, from 1.
fn pseudo_random(len: usize) -> Vec<u8> {
    let mut x = 1u64;
    (0..len)
        .map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        })
        .collect()
}

#[test]
fn every_function_equals_libzpool() {
    let mut salt = [0; 32];
    let mut checked = 0;
    for line in include_str!("data/libzpool.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields[0] == "salt" {
            salt = std::array::from_fn(|i| if fields[1] == "1" { i as u8 * 7 + 1 } else { 0 });
            continue;
        }
        let (name, swap) = fields[0].strip_suffix("_bs").map_or((fields[0], false), |name| (name, true));
        let buf = pseudo_random(fields[1].parse().unwrap());
        let expected = parse_words(fields[2..].iter().copied());
        assert_eq!(digest(algorithm(name), &buf, Some(&salt), swap), expected, "{line}");
        assert_eq!(Salted::new(&salt).digest(algorithm(name), &buf, swap), expected, "{line}");
        checked += 1;
    }
    assert_eq!(checked, 133);
}

#[test]
fn sha256_words_are_big_endian_in_either_order() {
    let buf = pseudo_random(512);
    assert_eq!(digest(Algorithm::Sha256, &buf, None, true), digest(Algorithm::Sha256, &buf, None, false));
}

#[test]
fn blocks_of_a_golden_pool() {
    let blocks: [(&str, &[u8]); 7] = [
        ("off", include_bytes!("data/off.bin")),
        ("fletcher2", include_bytes!("data/fletcher2.bin")),
        ("fletcher4", include_bytes!("data/fletcher4.bin")),
        ("sha256", include_bytes!("data/sha256.bin")),
        ("sha512", include_bytes!("data/sha512.bin")),
        ("skein", include_bytes!("data/skein.bin")),
        ("blake3", include_bytes!("data/blake3.bin")),
    ];
    for ((name, block), line) in blocks.iter().zip(include_str!("data/golden.txt").lines()) {
        let mut fields = line.split(' ');
        assert_eq!(fields.next(), Some(*name));
        assert_eq!(digest(algorithm(name), block, Some(&GOLDEN_SALT), false), parse_words(fields), "{name}");
    }
}
