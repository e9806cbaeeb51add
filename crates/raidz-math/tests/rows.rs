//! Parity against the textbook, and every set of missing columns of small rows back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests")]

use proptest::prelude::*;
use raidz_math::{RaidzError, generate, rebuild, reconstruct};

fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    for _ in 0..8 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = a << 1 ^ if a >= 0x80 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

/// The definition, byte by byte: parity row k is the sum of (2^k)^(n-1-j) D_j.
fn textbook(data: &[Vec<u8>], nparity: usize, len: usize) -> Vec<Vec<u8>> {
    let row = |k: u32| {
        (0..len)
            .map(|at| {
                data.iter()
                    .fold(0, |sum, column| multiply(sum, 1 << k) ^ column.get(at).copied().unwrap_or(0))
            })
            .collect()
    };
    (0..nparity as u32).map(row).collect()
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stdx::rng::Rng::new(seed).fill(&mut bytes);
    bytes
}

/// A whole row: parity first, then `lens` data columns.
fn row(seed: u64, nparity: usize, lens: &[usize]) -> Vec<Vec<u8>> {
    let data: Vec<Vec<u8>> =
        lens.iter().enumerate().map(|(i, len)| noise(seed * 1000 + i as u64, *len)).collect();
    let len = lens.iter().copied().max().unwrap();
    let mut parity = vec![vec![0xee; len]; nparity];
    let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    generate(&sources, &mut targets).unwrap();
    assert!(parity == textbook(&data, nparity, len));
    parity.extend(data);
    parity
}

/// Damages the `missing` columns of a good row, rebuilds them, and compares.
fn check_rebuild(good: &[Vec<u8>], nparity: usize, missing: &[usize]) {
    let mut bad = good.to_vec();
    for column in missing {
        bad[*column].fill(0x5a);
    }
    let mut columns: Vec<&mut [u8]> = bad.iter_mut().map(Vec::as_mut_slice).collect();
    reconstruct(nparity, &mut columns, missing).unwrap();
    assert!(bad == good, "missing {missing:?} of {}", good.len());
    check_data_rebuild(good, nparity, missing);
}

/// The same, of the data alone, from parity that is only read.
fn check_data_rebuild(good: &[Vec<u8>], nparity: usize, missing: &[usize]) {
    let (parity, data) = good.split_at(nparity);
    let parity =
        parity.iter().enumerate().map(|(row, column)| if missing.contains(&row) { &[] } else { &column[..] });
    let lost: Vec<usize> = missing.iter().filter_map(|column| column.checked_sub(nparity)).collect();
    let mut bad = data.to_vec();
    for column in &lost {
        bad[*column].fill(0x5a);
    }
    let mut columns: Vec<&mut [u8]> = bad.iter_mut().map(Vec::as_mut_slice).collect();
    rebuild(&parity.collect::<Vec<_>>(), &mut columns, &lost).unwrap();
    assert!(bad == data, "missing {missing:?} of {}", good.len());
}

/// All sets of up to `most` numbers below `count`.
fn subsets(count: usize, most: usize) -> Vec<Vec<usize>> {
    (0..1u32 << count)
        .filter(|mask| mask.count_ones() as usize <= most)
        .map(|mask| (0..count).filter(|i| mask >> i & 1 == 1).collect())
        .collect()
}

#[test]
fn every_set_of_missing_columns_of_every_small_row() {
    for nparity in 1..=3 {
        for ndata in 1..=7usize {
            // Big columns first, as RAIDZ lays them out; lengths that leave a rest for each kind of vector.
            for (big, small) in [(512, 512), (1024, 512), (683, 171), (9, 0)] {
                let lens: Vec<usize> =
                    (0..ndata).map(|i| if i < ndata.div_ceil(2) { big } else { small }).collect();
                let good = row(ndata as u64, nparity, &lens);
                for missing in subsets(nparity + ndata, nparity) {
                    check_rebuild(&good, nparity, &missing);
                }
            }
        }
    }
}

/// A block of 3 KiB of the golden pool `raidz3-8` (ashift 9), as it lies on the eight disks: P, Q, R, then
/// five data columns, the last four a sector shorter.
#[test]
fn a_row_that_openzfs_wrote() {
    let mut bytes: &[u8] = include_bytes!("data/row.bin");
    let lens = [1024, 1024, 1024, 1024, 512, 512, 512, 512];
    let row: Vec<Vec<u8>> = lens.iter().map(|len| bytes.split_off(..*len).unwrap().to_vec()).collect();
    assert!(textbook(&row[3..], 3, 1024) == row[..3]);
    for missing in subsets(row.len(), 3) {
        check_rebuild(&row, 3, &missing);
    }
}

#[test]
fn the_widest_row() {
    let good = row(5, 3, &[64; 255]);
    for missing in [[3, 4, 5], [3, 130, 257], [0, 3, 257], [1, 2, 256], [255, 256, 257]] {
        check_rebuild(&good, 3, &missing);
    }
}

#[test]
fn parity_that_was_not_read_is_not_needed() {
    for (absent, missing) in
        [(vec![1, 2], vec![3]), (vec![0, 1], vec![5]), (vec![1], vec![4, 6]), (vec![0], vec![3, 2])]
    {
        let good = row(9, 3, &[600, 600, 600, 88]);
        let mut bad = good.clone();
        missing.iter().for_each(|column| bad[*column].fill(0));
        let mut columns: Vec<&mut [u8]> = bad.iter_mut().map(Vec::as_mut_slice).collect();
        for column in &absent {
            columns[*column] = &mut [];
        }
        reconstruct(3, &mut columns, &missing).unwrap();
        assert!(bad == good, "without {absent:?}");
    }
}

#[test]
fn invalid_columns_are_refused() {
    let (mut a, mut b, mut c) = ([0; 8], [0; 8], [0; 9]);
    assert_eq!(generate(&[], &mut [&mut a]), Err(RaidzError::Columns));
    assert_eq!(generate(&[&b], &mut []), Err(RaidzError::Columns));
    assert_eq!(generate(&[[0; 8].as_slice(); 256], &mut [&mut a]), Err(RaidzError::Columns));
    assert_eq!(generate(&[&c], &mut [&mut a]), Err(RaidzError::Lengths));
    assert_eq!(generate(&[&[0; 8]], &mut [&mut a, &mut c]), Err(RaidzError::Lengths));
    let mut columns: [&mut [u8]; 3] = [&mut a, &mut b, &mut c];
    assert_eq!(reconstruct(1, &mut columns, &[1]), Err(RaidzError::Lengths));
    let mut c = [0; 8];
    let mut columns: [&mut [u8]; 3] = [&mut a, &mut b, &mut c];
    assert_eq!(reconstruct(4, &mut columns, &[1]), Err(RaidzError::Columns));
    assert_eq!(reconstruct(1, &mut columns, &[1, 2]), Err(RaidzError::TooManyMissing));
    assert_eq!(reconstruct(1, &mut columns, &[3]), Err(RaidzError::Index));
    assert_eq!(reconstruct(2, &mut columns, &[1, 1]), Err(RaidzError::Index));
    let mut columns: [&mut [u8]; 3] = [&mut [], &mut b, &mut c];
    assert_eq!(reconstruct(1, &mut columns, &[1]), Err(RaidzError::TooManyMissing));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rows_of_any_shape(
        seed in 0u64..1_000_000, nparity in 1usize..=3, lens in proptest::collection::vec(0usize..1500, 1..20),
        picks in proptest::collection::vec(any::<u32>(), 0..=3),
    ) {
        prop_assume!(lens.iter().any(|len| *len > 0));
        let good = row(seed, nparity, &lens);
        let mut missing: Vec<usize> = picks.iter().map(|pick| *pick as usize % good.len()).take(nparity).collect();
        missing.sort_unstable();
        missing.dedup();
        check_rebuild(&good, nparity, &missing);
    }
}
