//! Every suite and form of key, gang blocks, and datasets encrypted by OpenZFS: files that real zdb reads
//! with the key.

use super::*;

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
        spa.dsl_task(move |t| t.snapshot(&[&snap], &[])).unwrap();
        let fs = writer(&spa, name);
        let tiny = fs.dirs().lookup(fs.root, b"tiny").unwrap().unwrap().object;
        fs.data().write(tiny, 3, b"other", true).unwrap();
    }
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    for (name, suite, format) in &all {
        let dataset = spa.pool.dsl.dataset(name).unwrap();
        assert_eq!(spa.datasets.open(&*spa, dataset.number).unwrap_err().kind(), Kind::KeyMissing);
        assert_eq!(
            spa.dsl().load_key(name, b"00000000000000000000000000000000").unwrap_err().kind(),
            Kind::KeyWrong
        );
        spa.dsl().load_key(name, &material(*format)).unwrap();
        assert_eq!(spa.dsl().load_key(name, &material(*format)).unwrap_err().kind(), Kind::Exists);
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
        let mut raw = zdb::command("zdb");
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
    // The pool's root is its encryption root; new descendants inherit it.
    let name = format!("{POOL}/below");
    create(&spa, &name, Encryption::default()).unwrap();
    // Only data blocks.
    spa.space.force_ganging(100_000);
    let fs = writer(&spa, &name);
    fill(&fs, 7);
    let file = fs.dirs().create(fs.root, b"noise", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    let mut noise = vec![0; 128 << 10];
    Rng::new(8).fill(&mut noise);
    fs.data().write(file, 0, &noise, true).unwrap();
    drop(fs);
    spa.sync().unwrap();
    spa.space.force_ganging(u64::MAX);
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    assert_eq!(spa.dsl().load_key(&name, HEX).unwrap_err().kind(), Kind::Invalid);
    spa.dsl().load_key(POOL, HEX).unwrap();
    let objset = spa.pool.dsl.dataset(&name).unwrap().objset().unwrap();
    let object = objset.object(file).unwrap();
    let bp = object.dnode.blkptrs()[0];
    assert!(bp.is_gang() && bp.is_encrypted() && bp.ndvas() <= 2, "{bp:?}");
    assert!(object.read_vec(0, noise.len()).unwrap() == noise);
    let fs = writer(&spa, &name);
    fs.dirs().unlink(fs.root, b"block").unwrap();
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

fn sha256(bytes: &[u8]) -> String {
    let words = checksum::digest(checksum::Algorithm::Sha256, bytes, None, false);
    words.iter().map(|word| format!("{word:016x}")).collect()
}

/// Our changes in each of OpenZFS' datasets.
fn change(spa: &Arc<Spa>, name: &str) {
    let fs = mount(spa, name, Overrides::default()).unwrap();
    let dir = fs.dirs().create(fs.root, b"ours", &NewNode::new(FileKind::Directory, 0o755, 0, 0)).unwrap();
    let file = fs.dirs().create(dir, b"file", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.data().write(file, 0, &body(77, 700_000), true).unwrap();
    fs.xattrs().set(file, b"user.ours", Some(b"value"), XattrMode::Set).unwrap();
    fs.fsync(file).unwrap();
    let theirs = fs.dirs().lookup(fs.root, b"d").unwrap().unwrap().object;
    let many = fs.dirs().lookup(theirs, b"many").unwrap().unwrap().object;
    fs.dirs().unlink(many, b"f6").unwrap();
    fs.dirs().rename((many, b"f7"), (dir, b"moved"), RenameKind::Plain, (0, 0)).unwrap();
    spa.sync().unwrap();
    let snap = format!("{name}@ours");
    spa.dsl_task(move |t| t.snapshot(&[&snap], &[])).unwrap();
    fs.data().write(file, 5, b"after the snapshot", true).unwrap();
    fs.unmount().unwrap();
}

#[test]
fn datasets_encrypted_by_openzfs_are_carried_on() {
    let Some(golden) = golden::get("encrypted") else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_dir(dir.path(), "tank").unwrap();
    let datasets = ["tank/pass/child", "tank/pass", "tank/raw", "tank/hex"];
    refused(mount(&spa, "tank/pass", Overrides::default()), Kind::KeyMissing);
    for (root, key) in golden.keys().unwrap() {
        spa.dsl().load_key(root, &key).unwrap();
    }
    datasets.iter().for_each(|name| change(&spa, name));
    create(&spa, "tank/pass/new", Encryption::default()).unwrap();
    fill(&writer(&spa, "tank/pass/new"), 5);
    spa.dsl().change_key("tank/raw", Some(own_key(KeyFormat::Passphrase))).unwrap();
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
        spa.dsl().load_key(root, if root == "tank/raw" { PASSPHRASE } else { &key }).unwrap();
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

/// `zfs rewrite -P` seals each block anew, and raw streams need every block whose MAC changed: such blocks
/// count as new.
#[test]
fn blocks_that_are_sealed_anew_keep_no_birth() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 256 << 20, Encryption::default()).unwrap();
    spa.props().enable_features(vec![Feature::PhysicalRewrite]).unwrap();
    let name = format!("{POOL}/moved");
    create(&spa, &name, encrypted(Suite::Aes256Gcm, KeyFormat::Hex)).unwrap();
    let fs = mount(&spa, &name, Overrides::default()).unwrap();
    fill(&fs, 5);
    spa.sync().unwrap();
    for file in ["tiny", "block", "large"] {
        let number = fs.dirs().lookup(fs.root, file.as_bytes()).unwrap().unwrap().object;
        let pointer = || fs.objset.handle(number).unwrap().synced().blkptr(0, 0).unwrap().unwrap();
        let before = pointer();
        assert!(fs.rewrites().rewrite(number, 0, 0, Rewriting::Physical).unwrap() > 0);
        spa.sync().unwrap();
        let after = pointer();
        assert!(after.is_encrypted() && !after.is_rewritten(), "{after}");
        assert!(before.logical_birth() < after.logical_birth());
        assert_ne!(before.checksum_words(), after.checksum_words(), "another IV");
    }
    fs.unmount().unwrap();
    drop(fs);
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    spa.dsl().load_key(&name, &material(KeyFormat::Hex)).unwrap();
    check(&spa, &name, 5);
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), POOL).unwrap();
        let (out, key) = (dir.path().join("out"), for_zdb(KeyFormat::Hex).unwrap());
        zdb_with(dir.path(), &key, &["-r", &name, "large", out.to_str().unwrap()]);
        assert!(std::fs::read(&out).unwrap() == body(5, 3 << 20));
    }
}
