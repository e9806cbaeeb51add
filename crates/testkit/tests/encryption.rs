//! Encrypted datasets that we write, read by real zdb with the key, and by us.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crypt::{KeyFormat, Suite};
use engine::dsl::RootKey;
use engine::dsl::write::{Cipher, Encryption, NewKey};
use engine::env::SystemSecrets;
use engine::spa::Spa;
use engine::{Kind, Result};
use ondisk::ObjsetType;
use stdx::rng::Rng;
use testkit::{made, zdb};
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Options, XattrMode, create_fs};

const POOL: &str = "crypt";
const PASSPHRASE: &[u8] = b"a long enough passphrase";
const HEX: &[u8] = b"00112233445566778899aabbccddeeff0123456789abcdef0123456789ABCDEF";

fn raw() -> Vec<u8> {
    (1..=32).collect()
}

fn material(format: KeyFormat) -> Vec<u8> {
    match format {
        KeyFormat::Raw => raw(),
        KeyFormat::Hex => HEX.to_vec(),
        KeyFormat::Passphrase => PASSPHRASE.to_vec(),
    }
}

/// What zdb wants behind `-K`.
fn for_zdb(format: KeyFormat) -> String {
    match format {
        KeyFormat::Raw => raw().iter().map(|b| format!("{b:02x}")).collect(),
        _ => String::from_utf8(material(format)).unwrap(),
    }
}

fn own_key(format: KeyFormat) -> NewKey {
    let iters = (format == KeyFormat::Passphrase).then_some(100_000);
    let key = RootKey::create(format, &material(format), iters, &SystemSecrets).unwrap();
    NewKey { key, location: Some("prompt".into()) }
}

fn encrypted(suite: Suite, format: KeyFormat) -> Encryption {
    Encryption { cipher: Cipher::Suite(suite), key: Some(own_key(format)) }
}

fn create(spa: &Arc<Spa>, name: &str, encryption: Encryption) -> Result<u64> {
    let (name, fs) = (name.to_owned(), made::new_fs(&spa.pool.env));
    made::task(spa, move |t| {
        t.create_encrypted(&name, ObjsetType::Zfs, 0, encryption, &mut |live, tx| {
            create_fs(&live.objset, tx, &fs)
        })
    })
}

fn writer(spa: &Arc<Spa>, name: &str) -> Arc<FsWriter> {
    let number = spa.pool.dsl.dataset(name).unwrap().number;
    let objset = Arc::clone(&spa.datasets.open(&**spa, number).unwrap().objset);
    let clock = Arc::clone(&spa.pool.env.clock);
    FsWriter::open(&objset, Arc::clone(spa) as _, clock, Options::default(), 3).unwrap()
}

fn body(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    // Half of it can be compressed.
    bytes.iter_mut().step_by(2).for_each(|b| *b = 7);
    bytes
}

/// Files of all kinds of blocks: tiny, several blocks, indirect blocks.
fn fill(fs: &FsWriter, seed: u64) {
    for (name, len) in [("tiny", 20), ("block", 9000), ("large", 3 << 20)] {
        let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
        let file = fs.create(fs.root, name.as_bytes(), &node).unwrap();
        fs.write(file, 0, &body(seed, len), true).unwrap();
        fs.set_xattr(file, b"user.note", Some(b"a note"), XattrMode::Set).unwrap();
        fs.set_xattr(file, b"user.long", Some(&[9; 3000]), XattrMode::Set).unwrap();
    }
    fs.create(fs.root, b"link", &NewNode::symlink(b"tiny", 0, 0)).unwrap();
    for i in 0..200 {
        let node = NewNode::new(FileKind::Regular, 0o600, 5, 6);
        fs.create(fs.root, format!("file-{i}").as_bytes(), &node).unwrap();
    }
}

fn check(spa: &Spa, name: &str, seed: u64) {
    let fs = zpl::Filesystem::open(&spa.pool.dsl.dataset(name).unwrap()).unwrap();
    for (file, len) in [("tiny", 20), ("block", 9000), ("large", 3 << 20)] {
        let found = fs.resolve(file.as_bytes(), true).unwrap();
        let mut got = vec![0; len];
        assert_eq!(found.read_at(0, &mut got).unwrap(), len);
        assert!(got == body(seed, len), "{name}/{file}");
        assert_eq!(found.xattr(b"user.long").unwrap().unwrap(), vec![9; 3000]);
    }
    assert_eq!(fs.root().unwrap().entries().unwrap().count(), 204);
}

fn zdb_with(dir: &Path, key: &str, args: &[&str]) -> String {
    let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(["-K", key]).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "zdb {args:?}: {text}");
    text
}

const FORMATS: [KeyFormat; 3] = [KeyFormat::Raw, KeyFormat::Hex, KeyFormat::Passphrase];

#[test]
fn zdb_reads_every_suite() {
    let dir = tempfile::tempdir().unwrap();
    let spa = made::pool(dir.path(), POOL, 256 << 20, Encryption::default()).unwrap();
    let all: Vec<_> = Suite::ALL.into_iter().zip(FORMATS.into_iter().cycle()).collect();
    for (suite, format) in &all {
        let name = format!("{POOL}/{}", suite.name());
        create(&spa, &name, encrypted(*suite, *format)).unwrap();
        fill(&writer(&spa, &name), suite.id());
        spa.sync().unwrap();
        let snap = format!("{name}@snap");
        made::task(&spa, move |t| t.snapshot(&[&snap], &[])).unwrap();
        let fs = writer(&spa, &name);
        let tiny = fs.lookup(fs.root, b"tiny").unwrap().unwrap().object;
        fs.write(tiny, 3, b"other", true).unwrap();
    }
    spa.export().unwrap();
    drop(spa);
    let spa = made::reopen(dir.path(), POOL).unwrap();
    for (suite, format) in &all {
        let name = format!("{POOL}/{}", suite.name());
        let dataset = spa.pool.dsl.dataset(&name).unwrap();
        assert_eq!(spa.datasets.open(&*spa, dataset.number).unwrap_err().kind(), Kind::KeyMissing);
        assert_eq!(
            spa.load_key(&name, b"00000000000000000000000000000000").unwrap_err().kind(),
            Kind::KeyWrong
        );
        spa.load_key(&name, &material(*format)).unwrap();
        assert_eq!(spa.load_key(&name, &material(*format)).unwrap_err().kind(), Kind::Exists);
        check(&spa, &format!("{name}@snap"), suite.id());
    }
    spa.export().unwrap();
    drop(spa);
    if !zdb::installed() {
        return;
    }
    zdb::verify(dir.path(), POOL).unwrap();
    let out = dir.path().join("out");
    for (suite, format) in &all {
        let name = format!("{POOL}/{}", suite.name());
        let key = for_zdb(*format);
        zdb_with(dir.path(), &key, &["-r", &name, "large", out.to_str().unwrap()]);
        assert!(std::fs::read(&out).unwrap() == body(suite.id(), 3 << 20), "{name}");
        let text = zdb_with(dir.path(), &key, &["-dddd", &format!("{name}@snap")]);
        assert!(text.contains("user.note = a note") && text.contains("file-77"), "{name}: {text}");
    }
}
