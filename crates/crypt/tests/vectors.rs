//! Real blocks, written by OpenZFS, against their MACs and their plaintext.
//!
//! `tests/data/blocks.txt` names each: the dataset, the kind, the file, the 128 bytes of its block
//! pointer, and the SHA-256 of the plaintext where OpenZFS's own tools gave it. `pass`, `raw` and `hex`
//! come from OpenZFS 2.3.2 (aes-256-gcm, aes-128-ccm, aes-192-gcm); `v0` from the pool `cryptv0` of
//! OpenZFS's test suite, of the time before version 1 (aes-256-ccm).

use std::path::PathBuf;

use crypt::{
    BlockKind, BlockParams, ByteOrder, DatasetKey, Error, KeyFormat, Pbkdf2, Suite, WrappedKey, WrappingKey,
    read_material, verify_indirect,
};
use sha2::{Digest, Sha256};

fn unhex(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn array<const N: usize>(digits: &str) -> [u8; N] {
    unhex(digits).try_into().unwrap()
}

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The "DSL Crypto Key" of a dataset as `zdb -dddd` prints it.
fn wrapped(dataset: &str) -> WrappedKey {
    let (suite, guid, version, iv, mac, master, hmac): (_, i64, _, _, _, _, _) = match dataset {
        "pass" => (
            Suite::Aes256Gcm,
            4183255221085138288,
            1,
            "c94883fd15ab0761afbb6541",
            "64754f016ea892ca4126972c3c636e63",
            "8648441a9b97d266e8c05beb43c912068b1909eca5d24930f40640ed6107c723",
            "27eb44b9115b1d89087802ea0fb5a01c871f8152d73fe2cf4bbffd6c57ceba02\
             ec5f059ee7cd62a726f29fa19703bef86f4fa16a1f9eb84cd82fbaef4d8e09e7",
        ),
        "raw" => (
            Suite::Aes128Ccm,
            2668157854505530087,
            1,
            "d0628adf198bc3f95f2d920d",
            "f0c0f3207515d875b2b203c3a074a38a",
            "7bea323854a3ffd42043d5d6a9e5ba9c00000000000000000000000000000000",
            "5b8567ee4f5a0325035e45da20cd0876c346e742e8dfda57fa0428017b521be1\
             3963451c04391c8e41db301e02fd359ba9be061c6973e4c97d5310f436cac40a",
        ),
        "hex" => (
            Suite::Aes192Gcm,
            -7956949240426179942,
            1,
            "e4b73e060edf92641cf349e5",
            "7ebaf484765f6eb9aac48c8419ed6a94",
            "e298a278d76a30ad65991cf6753593c939e50e83f029e8d00000000000000000",
            "843bb616c2449fc65cb02814d9ac06ee3226321b33202ef9c2abee500cdcbf7b\
             744e582714162275d9e07cb1bec1202a62ee8a94e6a9beecb5680a887085c5c0",
        ),
        _ => (
            Suite::Aes256Ccm,
            7559710735042684890,
            0,
            "0dee4938b16dceae68fdbeab",
            "9bff34456291c1d75fcb9fab46a5adfb",
            "51f55c5363b83b871ed7738ecd9e0394107591add82d43d2e098faee41b40716",
            "eee09681c5fb794ff97e9e3740ad7d5f482b3e6a01ee24a73cc6d11d3190d5f8\
             5824908bb95da22151a5d604fbf6bc72aba58b8255c867618b0e1ac4e94f638f",
        ),
    };
    let guid = guid.cast_unsigned();
    let (iv, mac, master, hmac) = (array(iv), array(mac), array(master), array(hmac));
    WrappedKey { suite, guid, version, iv, mac, master, hmac }
}

fn passphrase(dataset: &str, typed: &str) -> WrappingKey {
    let (salt, iters) = match dataset {
        "pass" => (-1781626263198025678_i64, 100_000),
        _ => (-8056533288461481176, 350_000),
    };
    let pbkdf2 = Pbkdf2 { salt: salt.cast_unsigned(), iters };
    let material = read_material(KeyFormat::Passphrase, typed.as_bytes());
    WrappingKey::derive(KeyFormat::Passphrase, &material, Some(pbkdf2)).unwrap()
}

fn wrapping(dataset: &str) -> WrappingKey {
    match dataset {
        "pass" => passphrase(dataset, "correct horse battery\n"),
        "raw" => WrappingKey::derive(KeyFormat::Raw, &data("raw.key"), None).unwrap(),
        "hex" => WrappingKey::derive(KeyFormat::Hex, &data("hex.key"), None).unwrap(),
        _ => passphrase(dataset, "password"),
    }
}

fn key(dataset: &str) -> DatasetKey {
    wrapped(dataset).unwrap_with(&wrapping(dataset)).unwrap()
}

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
