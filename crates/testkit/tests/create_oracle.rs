//! Pools that we make, judged by real zdb.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use blkdev::{FileDevice, OpenMode, OpenOptions};
use engine::env::Env;
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{NewPool, Spa, create};
use engine::vdev::config::AllocBias;

fn leaf(dir: &Path, name: &str, size: u64) -> LeafSpec {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    let device = FileDevice::open(&path, options).unwrap();
    LeafSpec {
        path: path.to_str().unwrap().to_owned(),
        is_disk: false,
        whole_disk: None,
        devid: None,
        device: Arc::new(device),
    }
}

fn new_pool(env: &Env, vdev: VdevSpec) -> Arc<Spa> {
    let spec = PoolSpec {
        tops: vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }],
        ..PoolSpec::default()
    };
    let layout = spec.lay_out(0, 4, &mut || env.guid()).unwrap();
    let new = NewPool {
        name: "oracle".into(),
        version: 5000,
        features: features_of_2_3(),
        layout,
        hostid: 1,
        hostname: "host".into(),
        command: "zpool create oracle".into(),
    };
    create(env, new, &|_, _| Ok(())).unwrap()
}

fn zdb(dir: &Path, args: &[&str]) -> String {
    let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(args).arg("oracle").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "zdb {args:?}: {}\n{text}", out.status);
    text
}

#[test]
fn an_empty_pool() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let spa = new_pool(&env, VdevSpec::Leaf(leaf(dir.path(), "disk1", 128 << 20)));
    for _ in 0..5 {
        spa.sync().unwrap();
    }
    drop(spa);
    println!("{}", zdb(dir.path(), &["-bcc"]));
}

/// What OpenZFS 2.3 enables.
fn features_of_2_3() -> Vec<zcommon::features::Feature> {
    let newer = ["physical_rewrite", "dynamic_gang_header", "block_cloning_endian"];
    let all = zcommon::features::FEATURES.iter().copied();
    all.filter(|f| !newer.contains(&f.info().name)).collect()
}
