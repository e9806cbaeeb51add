use std::sync::Arc;

use blkdev::Geometry;
use nvpair::NvValue;
use zcommon::vdev::PoolState;

use super::config::PoolFacts;
use super::*;
use crate::vdev::config::VdevConfig;
use crate::vdev::tree::Tree;

const MIB: u64 = 1 << 20;

/// A device that claims a size and has no bytes.
fn leaf_of(name: &str, size: u64, physical: u32) -> LeafSpec {
    #[derive(Debug)]
    struct Claims(Geometry);
    impl blkdev::BlockDevice for Claims {
        fn name(&self) -> &str {
            "claims"
        }
        fn geometry(&self) -> Geometry {
            self.0
        }
        fn submit(&self, io: blkdev::Io) {
            (io.done)(Err(std::io::Error::other("no bytes")), io.buf);
        }
    }
    let geometry = Geometry {
        size,
        logical_sector: 512,
        physical_sector: physical,
        rotational: false,
        read_only: false,
    };
    LeafSpec {
        path: format!("/pool/{name}"),
        is_disk: false,
        whole_disk: None,
        devid: None,
        device: Arc::new(Claims(geometry)),
    }
}

fn leaves(count: u64, size: u64) -> Vec<LeafSpec> {
    (0..count).map(|n| leaf_of(&format!("d{n}-{size}"), size, 512)).collect()
}

fn normal(vdev: VdevSpec) -> TopSpec {
    TopSpec { vdev, class: AllocBias::Normal, ashift: None }
}

fn lay_out(tops: Vec<TopSpec>) -> Result<TreeLayout> {
    let mut next = 100;
    let mut random = || {
        next += 1;
        next
    };
    PoolSpec { tops, ..PoolSpec::default() }.lay_out(0, crate::txg::INITIAL, &mut random)
}

fn keys(list: &NvList) -> Vec<String> {
    list.iter().map(|pair| pair.name.to_string_lossy().into_owned()).collect()
}

#[test]
fn sizes_are_those_of_real_pools() {
    let raidz = |parity, count, size| VdevSpec::Raidz { parity, children: leaves(count, size) };
    let draid = "draid1:2d:5c:1s".parse().unwrap();
    let cases = [
        (VdevSpec::Leaf(leaf_of("d", 128 * MIB, 512)), 129_499_136, 24),
        (VdevSpec::Mirror(leaves(3, 80 * MIB)), 79_167_488, 24),
        (raidz(1, 3, 80 * MIB), 237_502_464, 24),
        (raidz(2, 6, 80 * MIB), 475_004_928, 25),
        (raidz(3, 8, 80 * MIB), 633_339_904, 26),
        (VdevSpec::Draid { config: draid, children: leaves(5, 80 * MIB) }, 100_663_296, 24),
    ];
    for (vdev, asize, shift) in cases {
        let layout = lay_out(vec![normal(vdev)]).unwrap();
        let top = &layout.tops[0];
        assert_eq!((top.u64("asize"), top.u64("metaslab_shift")), (Some(asize), Some(shift)));
        assert_eq!((top.u64("ashift"), top.u64("metaslab_array")), (Some(9), Some(0)));
    }
}

#[test]
fn a_tree_has_its_keys_in_order_and_builds() {
    let spec = PoolSpec {
        tops: vec![
            normal(VdevSpec::Raidz { parity: 2, children: leaves(4, 64 * MIB) }),
            TopSpec {
                vdev: VdevSpec::Leaf(leaf_of("log", 64 * MIB, 4096)),
                class: AllocBias::Log,
                ashift: None,
            },
            normal(VdevSpec::Draid {
                config: "draid1:2d:5c:1s".parse().unwrap(),
                children: leaves(5, 99 * MIB),
            }),
        ],
        shared: BTreeMap::new(),
        spares: vec![leaf_of("spare", 64 * MIB, 512)],
        cache: vec![leaf_of("cache", 64 * MIB, 512)],
        ashift: None,
        least_metaslabs: None,
    };
    let mut next = 0;
    // Numbers that collide, and 0: guids are unique all the same.
    let layout = spec
        .lay_out(0, 4, &mut || {
            next += 1;
            next / 3
        })
        .unwrap();
    let root = layout.root(7777, 4);
    let tops = root.nvlist_array("children").unwrap();
    let raidz =
        ["type", "id", "guid", "nparity", "metaslab_array", "metaslab_shift", "ashift", "asize", "is_log"];
    assert_eq!(keys(&tops[0])[..9], raidz);
    assert_eq!(keys(&tops[0])[9..], ["create_txg", "children"]);
    let child = &tops[0].nvlist_array("children").unwrap()[1];
    assert_eq!(keys(child), ["type", "id", "guid", "path", "create_txg"]);
    assert_eq!(
        (tops[1].u64("is_log"), tops[1].u64("ashift"), tops[1].str("type")),
        (Some(1), Some(12), Some("file"))
    );
    assert_eq!(
        keys(&layout.spares[1]),
        ["type", "guid", "path", "top_guid", "spareid", "whole_disk", "is_spare", "ashift"]
    );
    assert_eq!(layout.spares[1].str("path"), Some("draid1-2-0"));
    assert_eq!(keys(&layout.spares[0]), ["type", "guid", "path", "is_spare", "ashift"]);
    assert_eq!(keys(&layout.cache[0]), ["type", "guid", "path", "ashift"]);
    assert_eq!(layout.devices.len(), 12);
    let config = VdevConfig::parse(&root).unwrap();
    let guids: std::collections::BTreeSet<u64> = config.walk().iter().map(|vdev| vdev.guid).collect();
    assert_eq!(guids.len(), 13);
    let tree = Tree::build(config, None, &layout.devices, None).unwrap();
    assert!(tree.leaves().all(|leaf| leaf.is_writable()));
}

#[test]
fn labels_have_what_openzfs_writes() {
    let spec = vec![
        normal(VdevSpec::Mirror(leaves(2, 64 * MIB))),
        TopSpec { vdev: VdevSpec::Leaf(leaf_of("log", 64 * MIB, 512)), class: AllocBias::Log, ashift: None },
    ];
    let layout = lay_out(spec).unwrap();
    let mut root = layout.root(7777, 4);
    let leaf =
        root.nvlist_array("children").unwrap()[0].nvlist_array("children").unwrap()[1].u64("guid").unwrap();
    assert!(config::edit(&mut root, leaf, &mut |vdev| {
        vdev.add(config::LEAF_ZAP, 66u64).add("DTL", 55u64);
    }));
    assert!(!config::edit(&mut root, 1, &mut |_| {}));
    let facts = PoolFacts {
        version: 5000,
        name: "tank".into(),
        state: PoolState::Active,
        txg: 10,
        errata: 0,
        comment: None,
        compatibility: None,
        hostid: 1,
        hostname: "host".into(),
        features_for_read: vec!["com.delphix:hole_birth".into()],
        split: None,
    };
    let edited = config::find(&root, leaf).unwrap();
    assert_eq!(keys(edited), ["type", "id", "guid", "path", "DTL", "create_txg", config::LEAF_ZAP]);
    let label = facts.leaf_label(&root, leaf).unwrap();
    let head =
        ["version", "name", "state", "txg", "pool_guid", "errata", "hostid", "hostname", "top_guid", "guid"];
    assert_eq!(keys(&label)[..10], head);
    assert_eq!(keys(&label)[10..], ["vdev_children", "vdev_tree", "features_for_read"]);
    let in_label = config::find(label.nvlist("vdev_tree").unwrap(), leaf).unwrap();
    assert_eq!(keys(in_label), ["type", "id", "guid", "path", "DTL", "create_txg"]);
    let log = layout.tops[1].u64("guid").unwrap();
    let first = facts.first_label(&root, log, 4).unwrap();
    assert_eq!((first.u64("is_log"), first.u64("txg"), first.u64("create_txg")), (Some(1), Some(0), Some(4)));
    assert!(facts.leaf_label(&root, 1).is_err());
    let mos = facts.mos_config(&root);
    assert!(config::find(mos.nvlist("vdev_tree").unwrap(), leaf).unwrap().contains(config::LEAF_ZAP));
    assert!(matches!(mos.get("com.delphix:has_per_vdev_zaps"), Some(NvValue::Boolean)));
}

#[test]
fn invalid_layouts_are_refused_in_words() {
    let refused = |top: TopSpec| lay_out(vec![top]).unwrap_err().to_string();
    let small = leaf_of("small", 63 * MIB, 512);
    assert!(refused(normal(VdevSpec::Leaf(small))).contains("smaller than 64 MiB"));
    assert!(refused(normal(VdevSpec::Mirror(leaves(1, 64 * MIB)))).contains("mirror takes at least 2"));
    let raidz = |parity, count| normal(VdevSpec::Raidz { parity, children: leaves(count, 64 * MIB) });
    assert!(refused(raidz(2, 2)).contains("raidz2 takes at least 3"));
    assert!(refused(raidz(4, 9)).contains("1 to 3"));
    assert!(refused(raidz(1, 256)).contains("at most 255"));
    let draid = |name: &str, count, size| {
        normal(VdevSpec::Draid { config: name.parse().unwrap(), children: leaves(count, size) })
    };
    assert!(refused(draid("draid1:2d:5c:1s", 4, 64 * MIB)).contains("takes 5 devices, not 4"));
    assert!(refused(draid("draid1:2d:4c:0s", 4, 64 * MIB)).contains("too small for this draid"));
    let log = TopSpec { class: AllocBias::Log, ..raidz(1, 3) };
    assert!(lay_out(vec![raidz(1, 3), log.clone()]).unwrap_err().to_string().contains("a log can be"));
    assert!(
        refused(TopSpec { vdev: VdevSpec::Leaf(leaf_of("l", 64 * MIB, 512)), ..log })
            .contains("at least one ordinary")
    );
    let twice = leaf_of("d", 64 * MIB, 512);
    assert!(refused(normal(VdevSpec::Mirror(vec![twice.clone(), twice]))).contains("given twice"));
    let forced = TopSpec { ashift: Some(17), ..normal(VdevSpec::Leaf(leaf_of("d", 64 * MIB, 512))) };
    assert!(refused(forced).contains("between 9 and 16"));
}
