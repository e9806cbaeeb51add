use super::*;

/// `zfs get all`, `zpool get all` as OpenZFS 2.3.2's kernel answered them for a fresh pool.
const ZFS_GET: &str = include_str!("../../tests/data/zfs-get.txt");
const ZPOOL_GET: &str = include_str!("../../tests/data/zpool-get.txt");

/// The lines of one dataset or pool: property, value, source.
fn lines<'a>(text: &'a str, of: &'a str) -> impl Iterator<Item = (&'a str, &'a str, &'a str)> {
    text.lines().filter_map(move |line| {
        let mut fields = line.split('\t');
        (fields.next() == Some(of))
            .then(|| (fields.next().unwrap(), fields.next().unwrap(), fields.next().unwrap()))
    })
}

/// Checks that the lines come in the table's order and that defaults and words are the table's.
fn check<'a>(
    text: impl Iterator<Item = (&'a str, &'a str, &'a str)>,
    find: impl Fn(&str) -> Option<(usize, &'static PropInfo)>,
) -> usize {
    let (mut last, mut count) = (None, 0);
    for (name, value, source) in text {
        let (at, info) = find(name).unwrap_or_else(|| panic!("{name}"));
        assert!(Some(at) > last, "{name} is out of order");
        (last, count) = (Some(at), count + 1);
        assert!(info.visible, "{name}");
        if source != "-" {
            assert!(!info.read_only() || value == "none", "{name} has a source");
        }
        let special = matches!(value, "-" | "none" | "yes" | "no" | "auto");
        match info.default {
            PropDefault::Number(default) if source == "default" && !special => match info.data_type {
                PropType::Index => assert_eq!(info.word(default), Some(value), "{name}"),
                _ => assert_eq!(default.to_string(), value, "{name}"),
            },
            PropDefault::String(default) if source == "default" => assert_eq!(default, value, "{name}"),
            _ => {}
        }
        if info.data_type == PropType::Index && !special {
            assert!(info.number_of(value).is_some(), "{name}={value}");
        }
    }
    count
}

#[test]
fn zfs_get_prints_in_our_order() {
    let find = |name: &str| ZfsProp::from_name(name).map(|prop| (prop as usize, prop.info()));
    assert_eq!(check(lines(ZFS_GET, "tank"), find), 76);
    assert_eq!(check(lines(ZFS_GET, "tank@one"), find), 32);
    // A volume, a snapshot of one, an encrypted file system, one half received, a bookmark.
    for (of, count) in
        [("tank/vol", 47), ("tank/vol@s", 23), ("tank/pass", 78), ("tank/partial", 72), ("tank/src#book", 7)]
    {
        assert_eq!(check(lines(ZFS_GET, of), find), count, "{of}");
    }
}

#[test]
fn kinds_with_a_property_list_it() {
    use DatasetTypes as T;
    let datasets = [
        ("tank", T::FILESYSTEM),
        ("tank@one", T::SNAPSHOT),
        ("tank/vol", T::VOLUME),
        ("tank/src#book", T::BOOKMARK),
    ];
    for (of, types) in datasets {
        for (name, ..) in lines(ZFS_GET, of) {
            assert!(ZfsProp::from_name(name).unwrap().info().types.contains(types), "{of} {name}");
        }
    }
}

#[test]
fn zpool_get_prints_in_our_order() {
    let find = |name: &str| ZpoolProp::from_name(name).map(|prop| (prop as usize, prop.info()));
    assert_eq!(check(lines(ZPOOL_GET, "tank").filter(|line| !line.0.starts_with("feature@")), find), 34);
    let shown: Vec<_> =
        ZpoolProp::ALL.iter().filter(|prop| prop.info().visible).map(|prop| prop.name()).collect();
    let printed: Vec<_> =
        lines(ZPOOL_GET, "tank").map(|line| line.0).filter(|name| !name.contains('@')).collect();
    assert_eq!(shown, printed);
}

#[test]
fn features_are_printed_in_our_order() {
    let printed: Vec<_> =
        lines(ZPOOL_GET, "tank").filter_map(|line| line.0.strip_prefix("feature@")).collect();
    let known: Vec<_> = crate::features::FEATURES.iter().map(|feature| feature.info().name).collect();
    assert_eq!(printed.len(), 44);
    assert_eq!(printed, known[..44]);
}

#[test]
fn tables_are_sound() {
    let infos = ZfsProp::ALL.iter().map(|p| p.info()).chain(ZpoolProp::ALL.iter().map(|p| p.info()));
    for info in infos.chain(VdevProp::ALL.iter().map(|p| p.info())) {
        assert_eq!(info.index.is_empty(), info.data_type != PropType::Index, "{}", info.name);
        assert_eq!(info.visible, info.values.is_some(), "{}", info.name);
        assert!(!info.column.is_empty());
        if let (PropType::Index, PropDefault::Number(default)) = (info.data_type, info.default) {
            assert!(
                info.read_only() || info.name == "version" || info.word(default).is_some(),
                "{}",
                info.name
            );
        }
    }
    for (count, expected) in
        [(ZfsProp::ALL.len(), 106), (ZpoolProp::ALL.len(), 40), (VdevProp::ALL.len(), 55)]
    {
        assert_eq!(count, expected);
    }
}

#[test]
fn words_and_numbers() {
    let compression = ZfsProp::Compression.info();
    assert_eq!(compression.number_of("gzip"), Some(10));
    assert_eq!(compression.word(10), Some("gzip"));
    assert_eq!(compression.number_of("zstd-19"), Some(16 | 19 << 7));
    assert_eq!(compression.number_of("zstd-fast-5"), Some(16 | 107 << 7));
    assert_eq!(ZfsProp::Dedup.info().number_of("sha256,verify"), Some(8 | 1 << 8));
    assert_eq!(ZfsProp::Compression.info().number_of("nonsense"), None);
}

#[test]
fn users_may_say_the_column() {
    assert_eq!(ZfsProp::from_user("avail"), Some(ZfsProp::Available));
    assert_eq!(ZfsProp::from_user("refer"), Some(ZfsProp::Referenced));
    assert_eq!(ZfsProp::from_user("REFER"), None);
    assert_eq!(ZpoolProp::from_user("cap"), Some(ZpoolProp::Capacity));
    assert_eq!(ZfsProp::from_user(""), None);
}

#[test]
fn other_names() {
    assert_eq!(
        PropName::parse("userused@ann"),
        Some(PropName::UserQuota(UserQuotaProp::UserUsed, "ann".into()))
    );
    assert_eq!(PropName::parse("written@monday"), Some(PropName::Written("@monday".into())));
    assert_eq!(PropName::parse("com.example:owner"), Some(PropName::User("com.example:owner".into())));
    assert_eq!(PropName::parse("written"), Some(PropName::Native(ZfsProp::Written)));
    // As `groupused@$GROUP` without a GROUP is in a script: it's the group 0.
    assert_eq!(
        PropName::parse("groupused@"),
        Some(PropName::UserQuota(UserQuotaProp::GroupUsed, String::new()))
    );
    assert_eq!(["", "12", "x", "-1"].map(UserQuotaProp::id), [Some(0), Some(12), None, None]);
    for none in ["nonsense", "written@", "Com.example:x", "a:b c", ""] {
        assert_eq!(PropName::parse(none), None, "{none}");
    }
    assert_eq!(UserQuotaProp::ALL.len(), 12);
    assert!(UserQuotaProp::ProjectObjQuota.is_quota() && UserQuotaProp::ProjectObjQuota.counts_objects());
}
