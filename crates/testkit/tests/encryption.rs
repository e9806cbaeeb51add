//! Encrypted datasets that we write, read by real zdb with the key, and by us.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crypt::{DatasetKey, KeyFormat, Suite};
use engine::dsl::RootKey;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::Source;
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
use zpl::write::{FsWriter, NewNode, Options, Overrides, RenameKind, XattrMode, create_fs, mount};

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

/// What zdb wants behind `-K`; it can't be given raw keys.
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
    pools::task(spa, move |t| {
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
    let dataset = spa.pool.dsl.dataset(name).unwrap();
    let fs = zpl::Filesystem::open(&dataset).unwrap();
    // What is small enough to lie in its pointer does not; what says nothing is authenticated.
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
    let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(["-K", key]).args(args).output().unwrap();
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

#[test]
fn zdb_reads_every_suite() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 256 << 20, Encryption::default()).unwrap();
    let all = datasets();
    for (name, suite, format) in &all {
        create(&spa, name, encrypted(*suite, *format)).unwrap();
        let fs = writer(&spa, name);
        // Bonus buffers of several sizes.
        let dnodesize = 512 << (suite.id() % 3);
        fs.set_options(Options { dnodesize, ..fs.options() });
        fill(&fs, suite.id());
        spa.sync().unwrap();
        let snap = format!("{name}@snap");
        pools::task(&spa, move |t| t.snapshot(&[&snap], &[])).unwrap();
        let fs = writer(&spa, name);
        let tiny = fs.lookup(fs.root, b"tiny").unwrap().unwrap().object;
        fs.write(tiny, 3, b"other", true).unwrap();
    }
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    for (name, suite, format) in &all {
        let dataset = spa.pool.dsl.dataset(name).unwrap();
        assert_eq!(spa.datasets.open(&*spa, dataset.number).unwrap_err().kind(), Kind::KeyMissing);
        assert_eq!(
            spa.load_key(name, b"00000000000000000000000000000000").unwrap_err().kind(),
            Kind::KeyWrong
        );
        spa.load_key(name, &material(*format)).unwrap();
        assert_eq!(spa.load_key(name, &material(*format)).unwrap_err().kind(), Kind::Exists);
        check(&spa, &format!("{name}@snap"), suite.id());
    }
    spa.export().unwrap();
    drop(spa);
    if !zdb::installed() {
        return;
    }
    zdb::verify(dir.path(), POOL).unwrap();
    let out = dir.path().join("out");
    let open = pools::import_dir(dir.path(), POOL).unwrap();
    for (name, suite, format) in &all {
        let Some(key) = for_zdb(*format) else { continue };
        zdb_with(dir.path(), &key, &["-r", name, "large", out.to_str().unwrap()]);
        assert!(std::fs::read(&out).unwrap() == body(suite.id(), 3 << 20), "{name}");
        let text = zdb_with(dir.path(), &key, &["-dddd", &format!("{name}@snap")]);
        assert!(text.contains("user.note = a note") && text.contains("file-77"), "{name}: {text}");
        // Without the key, OpenZFS makes a raw stream of it.
        let snap = open.pool.dsl.dataset(&format!("{name}@snap")).unwrap().number;
        let mut raw = Command::new("zdb");
        raw.args(["-e", "-p"]).arg(dir.path()).args(["-B", &format!("{POOL}/{snap}"), "w"]);
        let raw = raw.output().unwrap();
        assert!(raw.status.success() && raw.stdout.len() > 1 << 20, "{name}: {raw:?}");
    }
}

#[test]
fn gangs_of_encrypted_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let spa =
        pools::create_fs_dir(dir.path(), POOL, 128 << 20, encrypted(Suite::ON, KeyFormat::Hex)).unwrap();
    // The pool's root is its encryption root; what is made below inherits.
    let name = format!("{POOL}/below");
    create(&spa, &name, Encryption::default()).unwrap();
    // Only data blocks: the MOS needs its blocks to be written in place.
    spa.space.force_ganging(100_000);
    let fs = writer(&spa, &name);
    fill(&fs, 7);
    let file = fs.create(fs.root, b"noise", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    let mut noise = vec![0; 128 << 10];
    Rng::new(8).fill(&mut noise);
    fs.write(file, 0, &noise, true).unwrap();
    drop(fs);
    spa.sync().unwrap();
    spa.space.force_ganging(u64::MAX);
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    assert_eq!(spa.load_key(&name, HEX).unwrap_err().kind(), Kind::Invalid);
    spa.load_key(POOL, HEX).unwrap();
    let objset = spa.pool.dsl.dataset(&name).unwrap().objset().unwrap();
    let object = objset.object(file).unwrap();
    let bp = object.dnode.blkptrs()[0];
    assert!(bp.is_gang() && bp.is_encrypted() && bp.ndvas() <= 2, "{bp:?}");
    assert!(object.read_vec(0, noise.len()).unwrap() == noise);
    let fs = writer(&spa, &name);
    fs.unlink(fs.root, b"block").unwrap();
    drop(fs);
    spa.sync().unwrap();
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), POOL).unwrap();
        let out = dir.path().join("out");
        let key = std::str::from_utf8(HEX).unwrap();
        zdb_with(dir.path(), key, &["-r", &name, "noise", out.to_str().unwrap()]);
        assert!(std::fs::read(&out).unwrap() == noise);
    }
}

/// What must not be found on the disk.
const NEEDLE: &[u8] = b"haystack-has-this-needle";

fn occurrences(dir: &Path, what: &[u8]) -> usize {
    let bytes = std::fs::read(dir.join("disk1")).unwrap();
    // Most of the image was never written.
    let pieces =
        (0..bytes.len()).step_by(4096).map(|at| &bytes[at..(at + 4095 + what.len()).min(bytes.len())]);
    let used = pieces.filter(|piece| !piece.starts_with(&[0; 4096]));
    used.map(|piece| piece.windows(what.len()).filter(|w| *w == what).count()).sum()
}

fn needle_in(fs: &FsWriter, needle: &[u8]) {
    let file = || NewNode::new(FileKind::Regular, 0o644, 0, 0);
    let tiny = fs.create(fs.root, needle, &file()).unwrap();
    fs.write(tiny, 0, needle, true).unwrap();
    fs.set_xattr(tiny, b"user.small", Some(needle), XattrMode::Set).unwrap();
    fs.set_xattr(tiny, b"user.large", Some(&needle.repeat(200)), XattrMode::Set).unwrap();
    fs.set_xattr(tiny, &[b"user.", needle].concat(), Some(b"x"), XattrMode::Set).unwrap();
    let large = fs.create(fs.root, b"large", &file()).unwrap();
    for i in 0..40 {
        fs.write(large, i * 100_000, &[&body(i, 3000)[..], needle].concat(), true).unwrap();
    }
    fs.create(fs.root, b"link", &NewNode::symlink(needle, 0, 0)).unwrap();
    fs.create(fs.root, b"long link", &NewNode::symlink(&needle.repeat(30), 0, 0)).unwrap();
    let many = fs.create(fs.root, b"many", &NewNode::new(FileKind::Directory, 0o755, 0, 0)).unwrap();
    for i in 0..3000 {
        fs.create(many, &[needle, format!("{i}").as_bytes()].concat(), &file()).unwrap();
    }
    let mut options = fs.options();
    options.xattr_sa = false;
    fs.set_options(options);
    fs.set_xattr(many, &[b"user.", needle].concat(), Some(needle), XattrMode::Set).unwrap();
    // A file that is unlinked while it is open waits in the delete queue.
    let open = fs.create(fs.root, b"open", &file()).unwrap();
    fs.write(open, 0, needle, true).unwrap();
    fs.open_file(open).unwrap();
    fs.unlink(fs.root, b"open").unwrap();
    // Through the log, as far as there is one: a record with its data, and one that points to a block.
    fs.fsync(0).unwrap();
    fs.write(tiny, 9, needle, true).unwrap();
    let block = [needle, &body(1, (128 << 10) - needle.len())[..]].concat();
    fs.write(large, 40 << 17, &block, true).unwrap();
    fs.fsync(0).unwrap();
}

#[test]
fn nothing_is_written_in_the_clear() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 256 << 20, Encryption::default()).unwrap();
    let secrets = [0, 1].map(|i| format!("{POOL}/secret{i}"));
    let mut mounted = Vec::new();
    for (name, suite) in secrets.iter().zip([Suite::Aes256Gcm, Suite::Aes128Ccm]) {
        create(&spa, name, encrypted(suite, KeyFormat::Raw)).unwrap();
        let fs = mount(&spa, name, Overrides::default()).unwrap();
        needle_in(&fs, NEEDLE);
        // What is written twice in one group is written in place.
        spa.sync().unwrap();
        let large = fs.lookup(fs.root, b"large").unwrap().unwrap().object;
        (0..5).for_each(|i| fs.write(large, i * 7777, NEEDLE, true).unwrap());
        mounted.push(fs);
    }
    let name = format!("{POOL}/log");
    let number = pools::task(&spa, {
        let (name, seed) = (name.clone(), spa.pool.env.guid());
        let encryption = encrypted(Suite::Aes192Gcm, KeyFormat::Raw);
        move |t| {
            t.create_encrypted(&name, ObjsetType::Zvol, 0, encryption, &mut |live, tx| {
                zvol::create(&live.objset, tx, 8 << 20, 8192, seed)
            })
        }
    });
    let number = number.unwrap();
    let objset = Arc::clone(&spa.datasets.open(&*spa, number).unwrap().objset);
    let log = Zil::open(&objset, spa.log_host()).unwrap();
    let mut model = vec![0; 8 << 20];
    let (volume, mut random) = (objset.handle(ZVOL_OBJECT).unwrap(), Rng::new(5));
    for step in 0..40 {
        let data = NEEDLE.repeat(1 + random.below(if step % 9 == 0 { 9000 } else { 300 }) as usize);
        let at = random.below((model.len() - data.len()) as u64);
        model[at as usize..at as usize + data.len()].copy_from_slice(&data);
        let tx = spa.begin().unwrap();
        volume.write(&tx, at, &data).unwrap();
        match data.len() {
            0..60_000 if step % 2 == 0 => log.assign(Itx::write(ZVOL_OBJECT, at, &data), &tx),
            len => log.assign(Itx::write_later(ZVOL_OBJECT, at, len as u64), &tx),
        }
        drop(tx);
        log.commit(ZVOL_OBJECT).unwrap();
    }
    // What the log alone has when the power goes.
    for fs in &mounted {
        let last = fs.create(fs.root, b"last", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
        fs.write(last, 0, &[NEEDLE, &body(2, 200_000)[..]].concat(), true).unwrap();
        fs.set_xattr(last, b"user.last", Some(NEEDLE), XattrMode::Set).unwrap();
        fs.fsync(last).unwrap();
    }
    let crashed = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join("disk1"), crashed.path().join("disk1")).unwrap();
    assert_eq!(occurrences(crashed.path(), NEEDLE), 0);
    drop((volume, log, objset, mounted, spa));
    let spa = pools::import_dir(crashed.path(), POOL).unwrap();
    assert_eq!(spa.datasets.open(&*spa, number).unwrap_err().kind(), Kind::KeyMissing);
    spa.load_key(&name, &raw()).unwrap();
    let objset = Arc::clone(&spa.datasets.open(&*spa, number).unwrap().objset);
    let log = Zil::open(&objset, spa.log_host()).unwrap();
    assert!(log.needs_replay());
    let done = replay(&log, &mut zvol::replay::VolumeReplay::new(&spa, &objset)).unwrap();
    assert!(done.error.is_none() && done.done >= 39, "{done:?}");
    let have = objset.view().object(ZVOL_OBJECT).unwrap().read_vec(0, model.len()).unwrap();
    assert!(have == model);
    log.close().unwrap();
    for name in &secrets {
        spa.load_key(name, &raw()).unwrap();
        let fs = mount(&spa, name, Overrides::default()).unwrap();
        let done = fs.replayed().unwrap();
        assert!(done.error.is_none() && done.done >= 3, "{done:?}");
        let last = fs.lookup(fs.root, b"last").unwrap().unwrap().object;
        let mut have = vec![0; 200_000 + NEEDLE.len()];
        assert_eq!(fs.read(last, 0, &mut have).unwrap(), have.len());
        assert!(have == [NEEDLE, &body(2, 200_000)[..]].concat());
        assert_eq!(fs.xattr(last, b"user.last").unwrap().unwrap(), NEEDLE);
        fs.unmount().unwrap();
    }
    spa.export().unwrap();
    drop((log, objset, spa));
    assert_eq!(occurrences(crashed.path(), NEEDLE), 0);
    // The search finds what is there.
    let spa = pools::import_dir(crashed.path(), POOL).unwrap();
    needle_in(&writer(&spa, POOL), NEEDLE);
    spa.export().unwrap();
    drop(spa);
    assert!(occurrences(crashed.path(), NEEDLE) > 10);
    if zdb::installed() {
        zdb::verify(crashed.path(), POOL).unwrap();
    }
}

fn root_of(spa: &Spa, name: &str) -> String {
    let dir = spa.pool.dsl.dir(name).unwrap();
    spa.pool.dsl.keys.root_of(&dir).unwrap().map_or_else(String::new, |root| root.name)
}

fn refused<T: std::fmt::Debug>(result: Result<T>, kind: Kind) {
    assert_eq!(result.unwrap_err().kind(), kind);
}

/// Does something by names below the pool.
fn names<const N: usize>(
    spa: &Spa,
    parts: [&str; N],
    work: impl FnOnce(&engine::dsl::write::Tasks<'_>, [&str; N]) -> Result<()> + Send + 'static,
) -> Result<()> {
    let all = parts.map(|part| format!("{POOL}/{part}"));
    pools::task(spa, move |t| work(t, all.each_ref().map(String::as_str)))
}

/// `a` (hex) with `kid` and `kid/deep` that inherit, `a/clear` that is not encrypted, and `b` (passphrase).
fn family(dir: &Path) -> Arc<Spa> {
    let spa = pools::create_fs_dir(dir, POOL, 256 << 20, Encryption::default()).unwrap();
    let at = |name: &str| format!("{POOL}/{name}");
    create(&spa, &at("a"), encrypted(Suite::ON, KeyFormat::Hex)).unwrap();
    create(&spa, &at("a/kid"), Encryption::default()).unwrap();
    let other = Encryption { cipher: Cipher::Suite(Suite::Aes128Gcm), key: None };
    create(&spa, &at("a/kid/deep"), other.clone()).unwrap();
    create(&spa, &at("a/clear"), Encryption { cipher: Cipher::Off, key: None }).unwrap();
    create(&spa, &at("b"), encrypted(Suite::Aes256Ccm, KeyFormat::Passphrase)).unwrap();
    // What can't be meant.
    refused(create(&spa, &at("x"), other), Kind::Invalid);
    let keyed = Encryption { cipher: Cipher::Inherit, key: Some(own_key(KeyFormat::Raw)) };
    refused(create(&spa, &at("x"), keyed), Kind::Invalid);
    let mut lost = encrypted(Suite::ON, KeyFormat::Raw);
    lost.key.as_mut().unwrap().location = Some("file://nowhere".into());
    refused(create(&spa, &at("x"), lost), Kind::Invalid);
    for (i, name) in ["a", "a/kid", "a/kid/deep", "a/clear", "b"].into_iter().enumerate() {
        fill(&writer(&spa, &at(name)), i as u64);
    }
    assert_eq!(root_of(&spa, &at("a/kid/deep")), at("a"));
    assert_eq!(root_of(&spa, &at("a/clear")), "");
    spa.sync().unwrap();
    spa
}

/// Each key says how many directories share it; zdb counts blocks, and datasets that are encrypted.
fn judged(dir: &Path) {
    let spa = pools::import_dir(dir, POOL).unwrap();
    let mut uses: BTreeMap<u64, u64> = BTreeMap::new();
    for found in spa.pool.dsl.walk(spa.pool.dsl.root().unwrap()) {
        if let Some(object) = found.unwrap().extra(dsl_dir::CRYPTO_KEY_OBJ).unwrap() {
            *uses.entry(object.first().unwrap()).or_default() += 1;
        }
    }
    for (object, count) in uses {
        let key = spa.pool.dsl.zap(object).unwrap().unwrap();
        assert_eq!(key.u64(crypto_key::REFCOUNT).unwrap(), Some(count), "key {object}");
    }
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir, POOL).unwrap();
        let text = zdb::run(dir, POOL, &["-d"]).unwrap();
        assert!(!text.contains("mismatch"), "{text}");
    }
}

#[test]
fn keys_change_with_all_that_inherits() {
    let dir = tempfile::tempdir().unwrap();
    let spa = family(dir.path());
    let at = |name: &str| format!("{POOL}/{name}");
    names(&spa, ["a/kid@s"], |t, all| t.snapshot(&all, &[])).unwrap();
    names(&spa, ["a/kid@s", "clone"], |t, [s, c]| t.clone_snapshot(s, c).map(drop)).unwrap();
    create(&spa, &at("clone/below"), Encryption::default()).unwrap();
    assert_eq!(root_of(&spa, &at("clone/below")), at("a"));
    refused(spa.change_key(&at("clone"), Some(own_key(KeyFormat::Raw))), Kind::Invalid);
    refused(spa.change_key(&at("a/kid"), None), Kind::Invalid);
    refused(spa.change_key(&at("b"), None), Kind::Invalid);
    spa.change_key(&at("a/kid"), Some(own_key(KeyFormat::Passphrase))).unwrap();
    for name in ["a/kid", "a/kid/deep", "clone", "clone/below"] {
        assert_eq!(root_of(&spa, &at(name)), at("a/kid"), "{name}");
    }
    assert_eq!(root_of(&spa, &at("a")), at("a"));
    spa.change_key(&at("b"), Some(NewKey { location: None, ..own_key(KeyFormat::Raw) })).unwrap();
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    refused(spa.load_key(&at("b"), PASSPHRASE), Kind::KeyWrong);
    for (name, key) in [("a", HEX.to_vec()), ("a/kid", PASSPHRASE.to_vec()), ("b", raw())] {
        spa.check_key(&at(name), &key).unwrap();
        spa.load_key(&at(name), &key).unwrap();
    }
    for (name, seed) in [("a", 0), ("a/kid", 1), ("clone", 1), ("a/kid/deep", 2), ("a/kid@s", 1), ("b", 4)] {
        check(&spa, &at(name), seed);
    }
    spa.change_key(&at("a/kid"), None).unwrap();
    assert_eq!(root_of(&spa, &at("clone/below")), at("a"));
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
    if zdb::installed() {
        let text = zdb_with(dir.path(), std::str::from_utf8(HEX).unwrap(), &["-dddd", &at("clone")]);
        assert!(text.contains("user.note = a note"), "{text}");
    }
}

#[test]
fn datasets_move_between_encryption_roots_as_their_keys_allow() {
    let dir = tempfile::tempdir().unwrap();
    let spa = family(dir.path());
    let at = |name: &str| format!("{POOL}/{name}");
    let rename = |a, b| names(&spa, [a, b], |t, [a, b]| t.rename(a, b));
    refused(rename("a/kid", "b/kid"), Kind::Denied);
    refused(rename("a/kid", "kid"), Kind::Denied);
    rename("a/kid/deep", "a/deep").unwrap();
    rename("b", "a/kid/b").unwrap();
    rename("a/clear", "clear").unwrap();
    assert_eq!((root_of(&spa, &at("a/kid/b")), root_of(&spa, &at("a/deep"))), (at("a/kid/b"), at("a")));
    names(&spa, ["a@s", "a/kid@s"], |t, all| t.snapshot(&all, &[])).unwrap();
    names(&spa, ["a/kid@s", "c"], |t, [s, c]| t.clone_snapshot(s, c).map(drop)).unwrap();
    // Its origin inherits from `a`, and nothing above it does.
    refused(names(&spa, ["c"], |t, [c]| t.promote(c)), Kind::Denied);
    rename("c", "a/c").unwrap();
    names(&spa, ["a/c"], |t, [c]| t.promote(c)).unwrap();
    names(&spa, ["a@s", "root"], |t, [s, c]| t.clone_snapshot(s, c).map(drop)).unwrap();
    names(&spa, ["root"], |t, [c]| t.promote(c)).unwrap();
    for name in ["root", "a", "a/kid", "a/c", "a/deep"] {
        assert_eq!(root_of(&spa, &at(name)), at("root"), "{name}");
    }
    for (name, seed) in [("root", 0), ("a", 0), ("a/kid", 1), ("a/c", 1), ("a/deep", 2), ("a/kid/b", 4)] {
        check(&spa, &at(name), seed);
    }
    names(&spa, ["a/kid"], |t, [kid]| t.rollback(kid, None)).unwrap_err();
    names(&spa, ["a/kid@t"], |t, all| t.snapshot(&all, &[])).unwrap();
    let fs = writer(&spa, &at("a/kid"));
    fs.unlink(fs.root, b"large").unwrap();
    drop(fs);
    spa.sync().unwrap();
    names(&spa, ["a/kid"], |t, [kid]| t.rollback(kid, None)).unwrap();
    check(&spa, &at("a/kid"), 1);
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    spa.load_key(&at("root"), HEX).unwrap();
    check(&spa, &at("a/kid"), 1);
    check(&spa, &at("root@s"), 0);
}

#[test]
fn without_its_key_a_dataset_can_be_managed_and_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let spa = family(dir.path());
    let at = |name: &str| format!("{POOL}/{name}");
    let fs = writer(&spa, &at("a/kid"));
    refused(spa.unload_key(&at("a")), Kind::Busy);
    drop(fs);
    refused(spa.unload_key(&at("a/kid")), Kind::Invalid);
    refused(spa.unload_key(&at("a/clear")), Kind::Invalid);
    spa.unload_key(&at("a")).unwrap();
    refused(spa.unload_key(&at("a")), Kind::KeyMissing);
    let read = |name: &str| zpl::Filesystem::open(&spa.pool.dsl.dataset(&at(name)).unwrap()).map(drop);
    assert_eq!(read("a/kid").unwrap_err().kind(), zpl::Kind::KeyMissing);
    read("b").unwrap();
    refused(create(&spa, &at("a/more"), Encryption::default()), Kind::KeyMissing);
    refused(spa.change_key(&at("a"), Some(own_key(KeyFormat::Raw))), Kind::KeyMissing);
    names(&spa, ["a@s", "a/kid@s"], |t, all| t.snapshot(&all, &[])).unwrap();
    names(&spa, ["a/kid@s", "a/clone"], |t, [s, c]| t.clone_snapshot(s, c).map(drop)).unwrap();
    names(&spa, ["a#mark", "a@s"], |t, [m, s]| t.bookmark(m, s)).unwrap();
    names(&spa, ["a/kid", "a/child"], |t, [a, b]| t.rename(a, b)).unwrap();
    names(&spa, ["a/child"], |t, [c]| t.rollback(c, None)).unwrap();
    names(&spa, ["a/clone"], |t, [c]| t.promote(c)).unwrap();
    create(&spa, &at("a/open"), encrypted(Suite::Aes192Ccm, KeyFormat::Raw)).unwrap();
    let location = |of: &str, value: &str| {
        let value = Some(PropValue::Text(value.into()));
        names(&spa, [of], move |t, [of]| t.set(of, &[("keylocation", value)], Source::Local))
    };
    location("a", "file:///etc/key").unwrap();
    refused(location("a/child", "file:///etc/key"), Kind::Denied);
    refused(location("a/clear", "prompt"), Kind::Denied);
    refused(location("a", "none"), Kind::Invalid);
    let root = spa.pool.dsl.keys.root_of(&spa.pool.dsl.dir(&at("a")).unwrap()).unwrap().unwrap();
    assert_eq!((root.location.as_str(), spa.pool.dsl.keys.is_loaded(&root)), ("file:///etc/key", false));
    names(&spa, ["a/kid/deep"], |t, [d]| t.destroy(d, false)).unwrap_err();
    names(&spa, ["a/child/deep"], |t, [d]| t.destroy(d, false)).unwrap();
    spa.load_key(&at("a"), HEX).unwrap();
    check(&spa, &at("a/child"), 1);
    // Their numbers come again for datasets with other keys.
    for (i, name) in ["a/child", "a/clone@s", "a/clone", "a/open", "b"].into_iter().enumerate() {
        names(&spa, [name], |t, [d]| t.destroy(d, false)).unwrap();
        let again = format!("{POOL}/again{i}");
        create(&spa, &again, encrypted(Suite::Aes128Ccm, KeyFormat::Raw)).unwrap();
        fill(&writer(&spa, &again), 9);
        spa.sync().unwrap();
        check(&spa, &again, 9);
    }
    (0..4).for_each(|_| spa.sync().unwrap());
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    names(&spa, ["a#mark"], |t, [mark]| t.destroy_bookmark(mark)).unwrap();
    for name in ["again0", "again1", "again2", "again3", "again4", "a/clear", "a@s", "a"] {
        let name = at(name);
        pools::task(&spa, move |t| t.destroy(&name, false)).unwrap();
    }
    (0..4).for_each(|_| spa.sync().unwrap());
    assert_eq!(spa.features.count(Feature::Encryption), 0);
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
}

#[test]
fn without_a_key_nothing_is_written_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let spa =
        pools::create_fs_dir(dir.path(), POOL, 128 << 20, encrypted(Suite::ON, KeyFormat::Raw)).unwrap();
    spa.sync().unwrap();
    let root = spa.pool.dsl.keys.root_of(&spa.pool.dsl.dir(POOL).unwrap()).unwrap().unwrap();
    let fs = writer(&spa, POOL);
    let file = fs.create(fs.root, NEEDLE, &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.write(file, 0, NEEDLE, true).unwrap();
    // Behind the back of those who use it.
    spa.pool.dsl.keys.unload(root.dir).unwrap();
    refused(spa.sync(), Kind::Suspended);
    drop((fs, spa));
    assert_eq!(occurrences(dir.path(), NEEDLE), 0);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    spa.load_key(POOL, &raw()).unwrap();
    let fs = writer(&spa, POOL);
    assert!(fs.entries(fs.root).unwrap().is_empty());
}

#[test]
fn the_form_of_development_versions_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 128 << 20, Encryption::default()).unwrap();
    let name = format!("{POOL}/old");
    let number = create(&spa, &name, encrypted(Suite::ON, KeyFormat::Raw)).unwrap();
    let object = spa.pool.dsl.dir(&name).unwrap().extra(dsl_dir::CRYPTO_KEY_OBJ).unwrap();
    let old = DatasetKey::new(Suite::ON, 5, 0, &[1; 32], &[2; 64]).unwrap();
    let old = old.wrap(&own_key(KeyFormat::Raw).key.wrapping, [3; 12]).unwrap();
    let forged = pools::task(&spa, move |t| {
        let object = object.and_then(|v| v.first()).unwrap();
        t.at.zap_set(object, crypto_key::VERSION, 0)?;
        t.at.zap_set(object, crypto_key::GUID, old.guid)?;
        let bytes: [(_, &[u8]); 4] = [
            (crypto_key::IV, &old.iv),
            (crypto_key::MAC, &old.mac),
            (crypto_key::MASTER_KEY, &old.master),
            (crypto_key::HMAC_KEY, &old.hmac),
        ];
        bytes.into_iter().try_for_each(|(name, bytes)| t.at.zap_set(object, name, bytes))
    });
    forged.unwrap();
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    spa.load_key(&name, &raw()).unwrap();
    refused(spa.datasets.open(&*spa, number), Kind::ReadOnly);
}

fn sha256(bytes: &[u8]) -> String {
    let words = checksum::digest(checksum::Algorithm::Sha256, bytes, None, false);
    words.iter().map(|word| format!("{word:016x}")).collect()
}

/// What we do in each dataset that OpenZFS made.
fn change(spa: &Arc<Spa>, name: &str) {
    let fs = mount(spa, name, Overrides::default()).unwrap();
    let dir = fs.create(fs.root, b"ours", &NewNode::new(FileKind::Directory, 0o755, 0, 0)).unwrap();
    let file = fs.create(dir, b"file", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.write(file, 0, &body(77, 700_000), true).unwrap();
    fs.set_xattr(file, b"user.ours", Some(b"value"), XattrMode::Set).unwrap();
    fs.fsync(file).unwrap();
    let theirs = fs.lookup(fs.root, b"d").unwrap().unwrap().object;
    let many = fs.lookup(theirs, b"many").unwrap().unwrap().object;
    fs.unlink(many, b"f6").unwrap();
    fs.rename((many, b"f7"), (dir, b"moved"), RenameKind::Plain, (0, 0)).unwrap();
    spa.sync().unwrap();
    let snap = format!("{name}@ours");
    pools::task(spa, move |t| t.snapshot(&[&snap], &[])).unwrap();
    fs.write(file, 5, b"after the snapshot", true).unwrap();
    fs.unmount().unwrap();
}

#[test]
fn what_openzfs_encrypted_goes_on_with_us() {
    let Some(golden) = golden::get("encrypted") else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_dir(dir.path(), "tank").unwrap();
    let datasets = ["tank/pass/child", "tank/pass", "tank/raw", "tank/hex"];
    refused(mount(&spa, "tank/pass", Overrides::default()), Kind::KeyMissing);
    for (root, key) in golden.keys().unwrap() {
        spa.load_key(root, &key).unwrap();
    }
    datasets.iter().for_each(|name| change(&spa, name));
    create(&spa, "tank/pass/new", Encryption::default()).unwrap();
    fill(&writer(&spa, "tank/pass/new"), 5);
    spa.change_key("tank/raw", Some(own_key(KeyFormat::Passphrase))).unwrap();
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), "tank").unwrap();
        let text = zdb_with(dir.path(), std::str::from_utf8(PASSPHRASE).unwrap(), &["-dddd", "tank/raw"]);
        assert!(text.contains("user.ours = value"), "{text}");
        let text = zdb_with(dir.path(), "correct horse battery", &["-dddd", "tank/pass/new"]);
        assert!(text.contains("user.note = a note"), "{text}");
    }
    let spa = pools::import_dir(dir.path(), "tank").unwrap();
    for (root, key) in golden.keys().unwrap() {
        spa.load_key(root, if root == "tank/raw" { PASSPHRASE } else { &key }).unwrap();
    }
    check(&spa, "tank/pass/new", 5);
    let mut seen = 0;
    for (path, want) in golden.manifest("live").unwrap().files {
        let path = String::from_utf8(path).unwrap_or_default();
        let of = datasets.iter().find_map(|name| {
            let rest = path.strip_prefix(name.strip_prefix("tank/")?)?.strip_prefix('/')?;
            Some((zpl::Filesystem::open(&spa.pool.dsl.dataset(name).ok()?).ok()?, rest))
        });
        let (Some((fs, rest)), Some(sha)) = (of, want.sha256) else { continue };
        let found = match rest {
            "d/many/f6" => {
                assert!(fs.resolve(rest.as_bytes(), false).is_err());
                continue;
            }
            "d/many/f7" => fs.resolve(b"ours/moved", false).unwrap(),
            rest => fs.resolve(rest.as_bytes(), false).unwrap(),
        };
        let mut bytes = vec![0; want.size as usize];
        assert_eq!((found.attr().size, found.read_at(0, &mut bytes).unwrap()), (want.size, bytes.len()));
        assert_eq!(sha256(&bytes), sha, "{path}");
        seen += 1;
    }
    assert!(seen > 100, "{seen} files");
    for name in datasets {
        let read = |name: &str| {
            let fs = zpl::Filesystem::open(&spa.pool.dsl.dataset(name).unwrap()).unwrap();
            let mut bytes = vec![0; 700_000];
            fs.resolve(b"ours/file", true).unwrap().read_at(0, &mut bytes).unwrap();
            bytes
        };
        assert!(read(&format!("{name}@ours")) == body(77, 700_000));
        assert!(read(name)[5..].starts_with(b"after the snapshot"));
    }
}
