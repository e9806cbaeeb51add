//! The keys that the tests use, as OpenZFS stored them.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::PathBuf;

use crypt::{DatasetKey, KeyFormat, Pbkdf2, Suite, WrappedKey, WrappingKey, read_material};

pub fn unhex(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

pub fn array<const N: usize>(digits: &str) -> [u8; N] {
    unhex(digits).try_into().unwrap()
}

pub fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The "DSL Crypto Key" of a dataset as `zdb -dddd` prints it.
pub fn wrapped(dataset: &str) -> WrappedKey {
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

pub fn passphrase(dataset: &str, typed: &str) -> WrappingKey {
    let (salt, iters) = match dataset {
        "pass" => (-1781626263198025678_i64, 100_000),
        _ => (-8056533288461481176, 350_000),
    };
    let pbkdf2 = Pbkdf2 { salt: salt.cast_unsigned(), iters };
    let material = read_material(KeyFormat::Passphrase, typed.as_bytes());
    WrappingKey::derive(KeyFormat::Passphrase, &material, Some(pbkdf2)).unwrap()
}

pub fn wrapping(dataset: &str) -> WrappingKey {
    match dataset {
        "pass" => passphrase(dataset, "correct horse battery\n"),
        "raw" => WrappingKey::derive(KeyFormat::Raw, &data("raw.key"), None).unwrap(),
        "hex" => WrappingKey::derive(KeyFormat::Hex, &data("hex.key"), None).unwrap(),
        _ => passphrase(dataset, "password"),
    }
}

pub fn key(dataset: &str) -> DatasetKey {
    wrapped(dataset).unwrap_with(&wrapping(dataset)).unwrap()
}
