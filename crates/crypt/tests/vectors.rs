//! Real blocks, written by OpenZFS, against their MACs and their plaintext.
//!
//! `tests/data/blocks.txt` names each: the dataset, the kind, the file, the 128 bytes of its block
//! pointer, and the SHA-256 of the plaintext where OpenZFS's own tools gave it. `pass`, `raw` and `hex`
//! come from OpenZFS 2.3.2 (aes-256-gcm, aes-128-ccm, aes-192-gcm); `v0` from the pool `cryptv0` of
//! OpenZFS's test suite, of the time before version 1 (aes-256-ccm).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests")]

mod common;

use common::{array, data, key, passphrase, unhex, wrapped, wrapping};
use crypt::{BlockKind, BlockParams, ByteOrder, DatasetKey, Error, verify_indirect};
use sha2::{Digest, Sha256};

/// A line of `blocks.txt`.
struct Vector {
    dataset: String,
    kind: String,
    block: Vec<u8>,
    order: ByteOrder,
    params: BlockParams,
    plaintext: Option<[u8; 32]>,
}

fn vectors() -> Vec<Vector> {
    let text = String::from_utf8(data("blocks.txt")).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(parse).collect()
}

fn parse(line: &str) -> Vector {
    let fields: Vec<&str> = line.split(' ').collect();
    let bp = unhex(fields[3]);
    let word = |n: usize| u64::from_le_bytes(bp[8 * n..8 * n + 8].try_into().unwrap());
    let cksum = [word(12), word(13), word(14), word(15)];
    Vector {
        dataset: fields[0].into(),
        kind: fields[1].into(),
        block: data(fields[2]),
        order: ByteOrder::Little,
        params: BlockParams::from_bp_words([word(4), word(5)], word(6), word(11), cksum),
        plaintext: (fields[4] != "-").then(|| array(fields[4])),
    }
}

/// Decrypts, compares, and encrypts back to the same bytes.
fn check_encrypted(key: &DatasetKey, kind: BlockKind, v: &Vector) -> Vec<u8> {
    let mut block = v.block.clone();
    key.decrypt(kind, v.order, &v.params, &mut block).unwrap();
    let plain = block.clone();
    let mac = key.encrypt(kind, v.order, &v.params.salt, &v.params.iv, &mut block).unwrap();
    assert_eq!((mac, &block), (v.params.mac, &v.block));
    if let Some(expected) = v.plaintext {
        assert_eq!(<[u8; 32]>::from(Sha256::digest(&plain)), expected);
    }
    let (half, mut bad) = (v.block.len() / 2, v.block.clone());
    bad[half] ^= 0x10;
    assert_eq!(key.decrypt(kind, v.order, &v.params, &mut bad), Err(Error::BadMac));
    plain
}

#[test]
fn blocks_of_openzfs_open_and_close_to_the_same_bytes() {
    let vectors = vectors();
    for v in &vectors {
        let key = key(&v.dataset);
        println!("{} {}", v.dataset, v.kind);
        match v.kind.as_str() {
            "data" => drop(check_encrypted(&key, BlockKind::Data, v)),
            "dnode" => {
                let plain = check_encrypted(&key, BlockKind::Dnode, v);
                // Every system-attribute bonus starts with its magic number.
                let magics = plain.windows(4).filter(|w| *w == 0x2f505a_u32.to_le_bytes()).count();
                assert!(magics > 0);
            }
            "auth" => key.verify_authenticated(&v.block, &v.params.mac).unwrap(),
            "objset" => key.verify_objset(v.order, &v.block).unwrap(),
            kind => {
                let size = kind.strip_prefix("indirect:").unwrap().parse().unwrap();
                let mut block = v.block.clone();
                block.resize(size, 0);
                verify_indirect(v.order, &block, &v.params.mac).unwrap();
            }
        }
    }
    assert!(vectors.len() >= 11);
}

#[test]
fn wrong_keys_are_refused() {
    for typed in ["correct horse batterz", "correct horse battery ", "correct horse battery\r"] {
        let wrong = passphrase("pass", typed);
        assert_eq!(wrapped("pass").unwrap_with(&wrong).unwrap_err(), Error::WrongKey);
    }
    for (a, b) in [("raw", "hex"), ("hex", "raw"), ("raw", "pass")] {
        assert_eq!(wrapped(a).unwrap_with(&wrapping(b)).unwrap_err(), Error::WrongKey);
    }
}

#[test]
fn a_key_wraps_to_what_openzfs_wrote() {
    for dataset in ["pass", "raw", "hex", "v0"] {
        let expected = wrapped(dataset);
        assert_eq!(key(dataset).wrap(&wrapping(dataset), expected.iv).unwrap(), expected);
    }
}
