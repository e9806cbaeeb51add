//! Against libzpool 2.3.2's own `zio_crypt_*`, in both byte orders: no real pool with encrypted blocks of
//! the other order is to be had.
//!
//! `tests/data/libzpool.txt` holds its results for the blocks that the functions here build (salt 1 to 8, IV
//! 1 to 12), with the keys of the datasets in [`common`]: pseudo-random bytes, in which only the fields that
//! say where things are have been made to fit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests")]

mod common;

use common::{data, key, unhex};
use crypt::{BlockKind, BlockParams, ByteOrder, DatasetKey, ObjsetMacs, indirect_mac, verify_indirect};
use sha2::{Digest, Sha256};
use stdx::rng::Rng;

const SALT: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
const IV: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Rng::new(seed).fill(&mut out);
    out
}

fn word(big: bool, n: usize) -> [u8; 8] {
    if big { (n as u64).to_be_bytes() } else { (n as u64).to_le_bytes() }
}

/// Not embedded, encrypted, and perhaps a hole.
fn fix_pointer(b: &mut [u8], at: usize, big: bool, hole: bool) {
    b[at + if big { 51 } else { 52 }] &= 0x7f;
    b[at + if big { 48 } else { 55 }] |= 0x20;
    if hole {
        b[at..at + 16].fill(0);
    }
}

fn fix_dnode(b: &mut [u8], at: usize, i: usize, big: bool, object_type: u8, slots: usize) {
    let pointers = 1 + i % 3;
    (b[at], b[at + 3], b[at + 4]) = (object_type, pointers as u8, if i % 2 == 1 { 44 } else { 17 });
    if i % 11 == 5 {
        b[at + 10..at + 12].fill(0);
    } else {
        b[at + 10] |= 1;
    }
    b[at + 12] = slots as u8 - 1;
    if pointers == 3 && slots == 1 {
        b[at + 7] &= !4;
    }
    for j in 0..pointers {
        fix_pointer(b, at + 64 + 128 * j, big, j == 0 && i % 4 == 2);
    }
    if b[at + 7] & 4 != 0 {
        fix_pointer(b, at + 512 * slots - 128, big, false);
    }
}

fn dnodes(seed: u64, big: bool) -> Vec<u8> {
    let (mut b, mut i) = (random(seed, 16384), 0);
    while i < 32 {
        let slots = if i % 5 == 0 && i < 31 { 2 } else { 1 };
        fix_dnode(&mut b, i * 512, i, big, if i % 7 == 3 { 0 } else { 19 }, slots);
        i += slots;
    }
    b
}

fn log_block(seed: u64, big: bool) -> Vec<u8> {
    let (mut b, mut at) = (random(seed, 8192), 184);
    for (kind, len) in [(9, 192), (9, 1000), (24, 64 + 8 + 256), (1, 56), (20, 64)] {
        b[at..at + 8].copy_from_slice(&word(big, kind));
        b[at + 8..at + 16].copy_from_slice(&word(big, len));
        at += len;
    }
    b[136..144].copy_from_slice(&word(big, at));
    b[at..].fill(0);
    b
}

fn objset(seed: u64, big: bool, len: usize) -> Vec<u8> {
    let mut b = random(seed, len);
    b[if big { 719 } else { 712 }] |= 1; // accounting is complete
    fix_dnode(&mut b, 0, 2, big, 10, 1);
    for (i, at) in [1024, 1536, 2048].into_iter().enumerate().filter(|(_, at)| at + 512 <= len) {
        fix_dnode(&mut b, at, i, big, 39, 1);
    }
    b
}

fn pointers(seed: u64, big: bool) -> Vec<u8> {
    let mut b = random(seed, 8192);
    for i in 0..64 {
        fix_pointer(&mut b, i * 128, big, i % 4 == 2);
    }
    b
}

/// MAC and hash of the ciphertext; and checks that decrypting returns the plaintext.
fn encrypt(key: &DatasetKey, kind: BlockKind, order: ByteOrder, plain: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut block = plain.to_vec();
    let mac = key.encrypt(kind, order, &SALT, &IV, &mut block).unwrap();
    let mut opened = block.clone();
    key.decrypt(kind, order, &BlockParams { salt: SALT, iv: IV, mac }, &mut opened).unwrap();
    if kind == BlockKind::Zil {
        assert_eq!((&opened[..168], &opened[184..]), (&plain[..168], &plain[184..]));
        block[168..184].fill(0); // libzpool leaves storing the MAC to its caller
    } else {
        assert_eq!(opened, plain);
    }
    (mac.to_vec(), Sha256::digest(&block).to_vec())
}

fn compute(order: ByteOrder, dataset: &str, case: &str) -> (Vec<u8>, Vec<u8>) {
    let big = order == ByteOrder::Big;
    let index = ["raw", "hex", "v0"].iter().position(|d| *d == dataset).unwrap_or(0) as u64;
    match case {
        "dnode" => encrypt(&key(dataset), BlockKind::Dnode, order, &dnodes(100 + index, big)),
        "zil" => encrypt(&key(dataset), BlockKind::Zil, order, &log_block(200 + index, big)),
        "indirect" => {
            let block = pointers(400, big);
            let mac = indirect_mac(1, order, &block);
            verify_indirect(order, &block, &mac).unwrap();
            (mac.to_vec(), vec![])
        }
        "dedup" => {
            let (salt, iv) = key(dataset).dedup_params(&random(500, 4096));
            (salt.to_vec(), iv.to_vec())
        }
        _ => {
            let len = case.strip_prefix("objset").unwrap().parse().unwrap();
            let ObjsetMacs { portable, local } =
                key(dataset).objset_macs(order, &objset(300 + index, big, len)).unwrap();
            (portable.to_vec(), local.to_vec())
        }
    }
}

#[test]
fn both_byte_orders_give_what_libzpool_gives() {
    let text = String::from_utf8(data("libzpool.txt")).unwrap();
    let mut wrong = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let order = if fields[0] == "big" { ByteOrder::Big } else { ByteOrder::Little };
        let (first, second) = compute(order, fields[1], fields[2]);
        let expected = if fields[4] == "-" { vec![] } else { unhex(fields[4]) };
        if (first, second) != (unhex(fields[3]), expected) {
            wrong.push(fields[..3].join(" "));
        }
    }
    assert_eq!(text.lines().count(), 34);
    assert!(wrong.is_empty(), "{wrong:?}");
}
