//! Nothing of a key is left in memory once it is dropped.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic, reason = "tests")]

use std::fs::File;
use std::os::unix::fs::FileExt;

use crypt::{DatasetKey, KeyFormat, Pbkdf2, Suite, WrappingKey};

/// Mask under which the needles are kept, so that the search does not find them.
const MASK: u8 = 0xa5;

/// Bytes that no other test has, made so that no copy of them exists before they are asked for.
fn fill(to: &mut [u8], seed: u8) {
    let mut state = u32::from(seed).wrapping_mul(0x9e37_79b9) | 1;
    for byte in to {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        *byte = state.to_le_bytes()[1];
    }
}

fn masked(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes.iter_mut().for_each(|byte| *byte ^= MASK);
    bytes
}

/// Returns how often the memory of this process contains the first 16 bytes of the masked secret.
fn found(needle: &[u8]) -> usize {
    let (maps, memory) =
        (std::fs::read_to_string("/proc/self/maps").unwrap(), File::open("/proc/self/mem").unwrap());
    let needle: [u8; 16] = needle[..16].try_into().unwrap();
    let mut count = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        if memory.read_exact_at(&mut bytes, from).is_ok() {
            // Bytes read are masked at once, so that the scan does not find its own copy.
            bytes.iter_mut().for_each(|byte| *byte ^= MASK);
            count += bytes.windows(16).filter(|window| *window == needle).count();
            bytes.fill(0);
        }
    }
    count
}

#[inline(never)]
fn use_keys(suite: Suite) -> usize {
    let (mut master, mut hmac, mut wrapping) = (vec![0; suite.key_len()], [0; 64], [0; 32]);
    fill(&mut master, 1);
    fill(&mut hmac, 2);
    fill(&mut wrapping, 3);
    let root = WrappingKey::derive(KeyFormat::Raw, &wrapping, None).unwrap();
    let key = DatasetKey::new(suite, 7, 1, &master, &hmac).unwrap();
    let wrapped = key.wrap(&root, [9; 12]).unwrap();
    drop(key);
    master.fill(0);
    hmac.fill(0);
    wrapping.fill(0);
    let key = wrapped.unwrap_with(&root).unwrap();
    let _ = key.dedup_params(b"text");
    let there = found(&masked(1, suite.key_len()));
    drop((key, root));
    there
}

#[test]
fn keys_are_gone_when_they_are_dropped() {
    for suite in Suite::ALL {
        assert!(use_keys(suite) > 0, "the search finds what is there");
        for (what, needle) in
            [("master", masked(1, suite.key_len())), ("hmac", masked(2, 64)), ("root", masked(3, 32))]
        {
            assert_eq!(found(&needle), 0, "{}: {what}", suite.name());
        }
    }
    let mut words = [0; 24];
    fill(&mut words, 4);
    words.iter_mut().for_each(|byte| *byte |= 1);
    let mut needle = words.to_vec();
    needle.iter_mut().for_each(|byte| *byte ^= MASK);
    let key =
        WrappingKey::derive(KeyFormat::Passphrase, &words, Some(Pbkdf2 { salt: 5, iters: 10 })).unwrap();
    words.fill(0);
    drop(key);
    assert_eq!(found(&needle), 0, "passphrase");
}
