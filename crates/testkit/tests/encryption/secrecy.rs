//! Nothing of an encrypted dataset reaches a device in the clear, or without its key.

use super::*;

/// Bytes that must not be found on the disk.
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
    let tiny = fs.dirs().create(fs.root, needle, &file()).unwrap();
    fs.data().write(tiny, 0, needle, true).unwrap();
    fs.xattrs().set(tiny, b"user.small", Some(needle), XattrMode::Set).unwrap();
    fs.xattrs().set(tiny, b"user.large", Some(&needle.repeat(200)), XattrMode::Set).unwrap();
    fs.xattrs().set(tiny, &[b"user.", needle].concat(), Some(b"x"), XattrMode::Set).unwrap();
    let large = fs.dirs().create(fs.root, b"large", &file()).unwrap();
    for i in 0..40 {
        fs.data().write(large, i * 100_000, &[&body(i, 3000)[..], needle].concat(), true).unwrap();
    }
    fs.dirs().create(fs.root, b"link", &NewNode::symlink(needle, 0, 0)).unwrap();
    fs.dirs().create(fs.root, b"long link", &NewNode::symlink(&needle.repeat(30), 0, 0)).unwrap();
    let many = fs.dirs().create(fs.root, b"many", &NewNode::new(FileKind::Directory, 0o755, 0, 0)).unwrap();
    for i in 0..3000 {
        fs.dirs().create(many, &[needle, format!("{i}").as_bytes()].concat(), &file()).unwrap();
    }
    let mut options = fs.options();
    options.xattr_sa = false;
    fs.set_options(options);
    fs.xattrs().set(many, &[b"user.", needle].concat(), Some(needle), XattrMode::Set).unwrap();
    // A file that is unlinked while it is open waits in the delete queue.
    let open = fs.dirs().create(fs.root, b"open", &file()).unwrap();
    fs.data().write(open, 0, needle, true).unwrap();
    fs.open_file(open).unwrap();
    fs.dirs().unlink(fs.root, b"open").unwrap();
    // Through the log, as far as there is one: a record with its data, and one that points to a block.
    fs.fsync(0).unwrap();
    fs.data().write(tiny, 9, needle, true).unwrap();
    let block = [needle, &body(1, (128 << 10) - needle.len())[..]].concat();
    fs.data().write(large, 40 << 17, &block, true).unwrap();
    fs.fsync(0).unwrap();
}

/// A reader of the pool finds what only the log has, with the key, and writes nothing.
fn last_is_read_only(dir: &Path, name: &str) {
    let before = std::fs::read(dir.join("disk1")).unwrap();
    let env = engine::env::Env::system(64 << 20).unwrap();
    let open = engine::spa::OpenOptions::default();
    let pool = zutil::import::open_pool(&env, &[dir.to_owned()], POOL, open).unwrap();
    let dataset = pool.dsl.dataset(name).unwrap();
    assert_eq!(zpl::Filesystem::open(&dataset).unwrap_err().kind(), Kind::KeyMissing);
    let root = pool.dsl.keys.root_of(&dataset.dir().unwrap()).unwrap().unwrap();
    pool.dsl.keys.load(&root, &raw()).unwrap();
    let fs = zpl::Filesystem::open(&dataset).unwrap();
    let replayed = fs.replayed().unwrap();
    assert!(replayed.notes.is_empty() && replayed.applied >= 3, "{replayed:?}");
    let last = fs.resolve(b"last", true).unwrap();
    let mut have = vec![0; 200_000 + NEEDLE.len()];
    assert_eq!(last.read_at(0, &mut have).unwrap(), have.len());
    assert!(have == [NEEDLE, &body(2, 200_000)[..]].concat());
    assert_eq!(last.xattr(b"user.last").unwrap().unwrap(), NEEDLE);
    assert!(before == std::fs::read(dir.join("disk1")).unwrap());
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
        // A block written twice in one txg is written in place.
        spa.sync().unwrap();
        let large = fs.dirs().lookup(fs.root, b"large").unwrap().unwrap().object;
        (0..5).for_each(|i| fs.data().write(large, i * 7777, NEEDLE, true).unwrap());
        mounted.push(fs);
    }
    let name = format!("{POOL}/log");
    let number = spa.dsl_task({
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
    let log = Zil::open(&objset, spa.logs().host()).unwrap();
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
    // Data that only the log has at the power cut.
    for fs in &mounted {
        let last = fs.dirs().create(fs.root, b"last", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
        fs.data().write(last, 0, &[NEEDLE, &body(2, 200_000)[..]].concat(), true).unwrap();
        fs.xattrs().set(last, b"user.last", Some(NEEDLE), XattrMode::Set).unwrap();
        fs.fsync(last).unwrap();
    }
    let crashed = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join("disk1"), crashed.path().join("disk1")).unwrap();
    assert_eq!(occurrences(crashed.path(), NEEDLE), 0);
    drop((volume, log, objset, mounted, spa));
    secrets.iter().for_each(|name| last_is_read_only(crashed.path(), name));
    let spa = pools::import_dir(crashed.path(), POOL).unwrap();
    assert_eq!(spa.datasets.open(&*spa, number).unwrap_err().kind(), Kind::KeyMissing);
    spa.dsl().load_key(&name, &raw()).unwrap();
    let objset = Arc::clone(&spa.datasets.open(&*spa, number).unwrap().objset);
    let log = Zil::open(&objset, spa.logs().host()).unwrap();
    assert!(log.needs_replay());
    let done = replay(&log, &mut zvol::replay::VolumeReplay::new(&spa, &objset)).unwrap();
    assert!(done.error.is_none() && done.done >= 39, "{done:?}");
    let have = objset.view().object(ZVOL_OBJECT).unwrap().read_vec(0, model.len()).unwrap();
    assert!(have == model);
    log.close().unwrap();
    for name in &secrets {
        spa.dsl().load_key(name, &raw()).unwrap();
        let fs = mount(&spa, name, Overrides::default()).unwrap();
        let done = fs.replayed().unwrap();
        assert!(done.error.is_none() && done.done >= 3, "{done:?}");
        let last = fs.dirs().lookup(fs.root, b"last").unwrap().unwrap().object;
        let mut have = vec![0; 200_000 + NEEDLE.len()];
        assert_eq!(fs.data().read(last, 0, &mut have).unwrap(), have.len());
        assert!(have == [NEEDLE, &body(2, 200_000)[..]].concat());
        assert_eq!(fs.xattrs().get(last, b"user.last").unwrap().unwrap(), NEEDLE);
        fs.unmount().unwrap();
    }
    spa.export().unwrap();
    drop((log, objset, spa));
    assert_eq!(occurrences(crashed.path(), NEEDLE), 0);
    // The search finds existing bytes.
    let spa = pools::import_dir(crashed.path(), POOL).unwrap();
    needle_in(&writer(&spa, POOL), NEEDLE);
    spa.export().unwrap();
    drop(spa);
    assert!(occurrences(crashed.path(), NEEDLE) > 10);
    if zdb::installed() {
        zdb::verify(crashed.path(), POOL).unwrap();
    }
}

#[test]
fn without_a_key_nothing_is_written_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let spa =
        pools::create_fs_dir(dir.path(), POOL, 128 << 20, encrypted(Suite::ON, KeyFormat::Raw)).unwrap();
    spa.sync().unwrap();
    let root = spa.pool.dsl.keys.root_of(&spa.pool.dsl.dir(POOL).unwrap()).unwrap().unwrap();
    let fs = writer(&spa, POOL);
    let file = fs.dirs().create(fs.root, NEEDLE, &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.data().write(file, 0, NEEDLE, true).unwrap();
    // While the dataset is in use.
    spa.pool.dsl.keys.unload(root.dir).unwrap();
    refused(spa.sync(), Kind::Suspended);
    drop((fs, spa));
    assert_eq!(occurrences(dir.path(), NEEDLE), 0);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    spa.dsl().load_key(POOL, &raw()).unwrap();
    let fs = writer(&spa, POOL);
    assert!(fs.dirs().entries(fs.root).unwrap().is_empty());
}
