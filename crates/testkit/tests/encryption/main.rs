//! Encrypted datasets that we write, read by real zdb with the key, and by us.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crypt::{DatasetKey, KeyFormat, Suite};
use engine::dsl::RootKey;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::dsl::write::{Cipher, Encryption, NewKey};
use engine::env::SystemSecrets;
use engine::spa::Spa;
use engine::zil::replay::replay;
use engine::zil::{Itx, Zil};
use engine::{Kind, Result};
use ondisk::ObjsetType;
use ondisk::names::{MASTER_NODE_OBJECT, ZVOL_OBJECT, crypto_key, dsl_dir};
use stdx::rng::Rng;
use testkit::{golden, pools, zdb};
use zcommon::features::Feature;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Options, Overrides, RenameKind, Rewriting, XattrMode, create_fs, mount};

mod keyless;
mod keys;
mod secrecy;
mod suites;

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

/// The argument of zdb's `-K`, which does not accept raw keys.
fn for_zdb(format: KeyFormat) -> Option<String> {
    (format != KeyFormat::Raw).then(|| String::from_utf8(material(format)).unwrap())
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
    let (name, fs) = (name.to_owned(), pools::new_fs(&spa.pool.env));
    spa.dsl_task(move |t| {
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
        let file = fs.dirs().create(fs.root, name.as_bytes(), &node).unwrap();
        fs.data().write(file, 0, &body(seed, len), true).unwrap();
        fs.xattrs().set(file, b"user.note", Some(b"a note"), XattrMode::Set).unwrap();
        fs.xattrs().set(file, b"user.long", Some(&[9; 3000]), XattrMode::Set).unwrap();
    }
    fs.dirs().create(fs.root, b"link", &NewNode::symlink(b"tiny", 0, 0)).unwrap();
    for i in 0..200 {
        let node = NewNode::new(FileKind::Regular, 0o600, 5, 6);
        fs.dirs().create(fs.root, format!("file-{i}").as_bytes(), &node).unwrap();
    }
}

fn check(spa: &Spa, name: &str, seed: u64) {
    let dataset = spa.pool.dsl.dataset(name).unwrap();
    let fs = zpl::Filesystem::open(&dataset).unwrap();
    // Encrypted blocks are never embedded; metadata without user data is only authenticated.
    let (objset, tiny) = (dataset.objset().unwrap(), fs.resolve(b"tiny", true).unwrap().number());
    let pointer = |number| objset.object(number).unwrap().dnode.blkptrs()[0];
    assert!(pointer(tiny).is_encrypted() && pointer(tiny).ndvas() == 1);
    assert!(pointer(MASTER_NODE_OBJECT).is_authenticated());
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
    let mut command = zdb::command("zdb");
    let out = command.args(["-e", "-p"]).arg(dir).args(["-K", key]).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "zdb {args:?}: {text}");
    text
}

/// Each suite with a key that zdb can be given, and one with a raw key.
fn datasets() -> Vec<(String, Suite, KeyFormat)> {
    let formats = [KeyFormat::Hex, KeyFormat::Passphrase].into_iter().cycle();
    let named = Suite::ALL.into_iter().zip(formats).map(|(s, f)| (format!("{POOL}/{}", s.name()), s, f));
    named.chain([(format!("{POOL}/raw"), Suite::ON, KeyFormat::Raw)]).collect()
}

fn refused<T: std::fmt::Debug>(result: Result<T>, kind: Kind) {
    assert_eq!(result.unwrap_err().kind(), kind);
}
