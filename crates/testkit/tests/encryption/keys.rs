//! Keys that change, move and are missing.

use super::*;

fn root_of(spa: &Spa, name: &str) -> String {
    let dir = spa.pool.dsl.dir(name).unwrap();
    spa.pool.dsl.keys.root_of(&dir).unwrap().map_or_else(String::new, |root| root.name)
}

/// Does something by names below the pool.
fn names<const N: usize>(
    spa: &Spa,
    parts: [&str; N],
    work: impl FnOnce(&engine::dsl::write::Tasks<'_>, [&str; N]) -> Result<()> + Send + 'static,
) -> Result<()> {
    let all = parts.map(|part| format!("{POOL}/{part}"));
    spa.dsl_task(move |t| work(t, all.each_ref().map(String::as_str)))
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
    // Invalid combinations.
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

/// Each key counts the directories that share it; zdb counts blocks, and datasets that are encrypted.
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
    refused(spa.dsl().change_key(&at("clone"), Some(own_key(KeyFormat::Raw))), Kind::Invalid);
    refused(spa.dsl().change_key(&at("a/kid"), None), Kind::Invalid);
    refused(spa.dsl().change_key(&at("b"), None), Kind::Invalid);
    spa.dsl().change_key(&at("a/kid"), Some(own_key(KeyFormat::Passphrase))).unwrap();
    for name in ["a/kid", "a/kid/deep", "clone", "clone/below"] {
        assert_eq!(root_of(&spa, &at(name)), at("a/kid"), "{name}");
    }
    assert_eq!(root_of(&spa, &at("a")), at("a"));
    spa.dsl().change_key(&at("b"), Some(NewKey { location: None, ..own_key(KeyFormat::Raw) })).unwrap();
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    refused(spa.dsl().load_key(&at("b"), PASSPHRASE), Kind::KeyWrong);
    for (name, key) in [("a", HEX.to_vec()), ("a/kid", PASSPHRASE.to_vec()), ("b", raw())] {
        spa.dsl().check_key(&at(name), &key).unwrap();
        spa.dsl().load_key(&at(name), &key).unwrap();
    }
    for (name, seed) in [("a", 0), ("a/kid", 1), ("clone", 1), ("a/kid/deep", 2), ("a/kid@s", 1), ("b", 4)] {
        check(&spa, &at(name), seed);
    }
    spa.dsl().change_key(&at("a/kid"), None).unwrap();
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
    fs.dirs().unlink(fs.root, b"large").unwrap();
    drop(fs);
    spa.sync().unwrap();
    names(&spa, ["a/kid"], |t, [kid]| t.rollback(kid, None)).unwrap();
    check(&spa, &at("a/kid"), 1);
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    spa.dsl().load_key(&at("root"), HEX).unwrap();
    check(&spa, &at("a/kid"), 1);
    check(&spa, &at("root@s"), 0);
}

#[test]
fn without_its_key_a_dataset_can_be_managed_and_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let spa = family(dir.path());
    let at = |name: &str| format!("{POOL}/{name}");
    let fs = writer(&spa, &at("a/kid"));
    refused(spa.dsl().unload_key(&at("a")), Kind::Busy);
    drop(fs);
    refused(spa.dsl().unload_key(&at("a/kid")), Kind::Invalid);
    refused(spa.dsl().unload_key(&at("a/clear")), Kind::Invalid);
    spa.dsl().unload_key(&at("a")).unwrap();
    refused(spa.dsl().unload_key(&at("a")), Kind::KeyMissing);
    let read = |name: &str| zpl::Filesystem::open(&spa.pool.dsl.dataset(&at(name)).unwrap()).map(drop);
    assert_eq!(read("a/kid").unwrap_err().kind(), zpl::Kind::KeyMissing);
    read("b").unwrap();
    refused(create(&spa, &at("a/more"), Encryption::default()), Kind::KeyMissing);
    refused(spa.dsl().change_key(&at("a"), Some(own_key(KeyFormat::Raw))), Kind::KeyMissing);
    names(&spa, ["a@s", "a/kid@s"], |t, all| t.snapshot(&all, &[])).unwrap();
    names(&spa, ["a/kid@s", "a/clone"], |t, [s, c]| t.clone_snapshot(s, c).map(drop)).unwrap();
    names(&spa, ["a#mark", "a@s"], |t, [m, s]| t.bookmark(m, s)).unwrap();
    names(&spa, ["a/kid", "a/child"], |t, [a, b]| t.rename(a, b)).unwrap();
    names(&spa, ["a/child"], |t, [c]| t.rollback(c, None)).unwrap();
    names(&spa, ["a/clone"], |t, [c]| t.promote(c)).unwrap();
    create(&spa, &at("a/open"), encrypted(Suite::Aes192Ccm, KeyFormat::Raw)).unwrap();
    let location = |of: &str, value: &str| {
        let value = Some(PropValue::Text(value.into()));
        names(&spa, [of], move |t, [of]| t.set(of, &[("keylocation", value)], SettingSource::Local))
    };
    location("a", "file:///etc/key").unwrap();
    refused(location("a/child", "file:///etc/key"), Kind::Denied);
    refused(location("a/clear", "prompt"), Kind::Denied);
    refused(location("a", "none"), Kind::Invalid);
    let root = spa.pool.dsl.keys.root_of(&spa.pool.dsl.dir(&at("a")).unwrap()).unwrap().unwrap();
    assert_eq!((root.location.as_str(), spa.pool.dsl.keys.is_loaded(&root)), ("file:///etc/key", false));
    names(&spa, ["a/kid/deep"], |t, [d]| t.destroy(d, false)).unwrap_err();
    names(&spa, ["a/child/deep"], |t, [d]| t.destroy(d, false)).unwrap();
    spa.dsl().load_key(&at("a"), HEX).unwrap();
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
        spa.dsl_task(move |t| t.destroy(&name, false)).unwrap();
    }
    (0..4).for_each(|_| spa.sync().unwrap());
    assert_eq!(spa.features.count(Feature::Encryption), 0);
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
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
    let forged = spa.dsl_task(move |t| {
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
    spa.dsl().load_key(&name, &raw()).unwrap();
    refused(spa.datasets.open(&*spa, number), Kind::ReadOnly);
}

#[test]
fn a_key_stays_loaded_while_a_stream_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let spa = family(dir.path());
    names(&spa, ["a/kid@s"], |t, [snap]| t.snapshot(&[snap], &[])).unwrap();
    let at = |name: &str| spa.pool.dsl.dir(&format!("{POOL}/{name}")).unwrap().number;
    let snapshot = spa.pool.dsl.dataset(&format!("{POOL}/a/kid@s")).unwrap().number;
    let hold = spa.datasets.hold_long(snapshot).unwrap().with_key();
    refused(spa.datasets.unload_key(at("a")), Kind::Busy);
    spa.datasets.unload_key(at("b")).unwrap();
    drop(hold);
    // A raw stream needs none.
    let _hold = spa.datasets.hold_long(snapshot).unwrap();
    spa.datasets.unload_key(at("a")).unwrap();
}
