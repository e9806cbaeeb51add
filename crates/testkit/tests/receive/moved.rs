//! Streams of file systems in which blocks moved (`zfs rewrite -P`).

use std::sync::Arc;

use crypt::{KeyFormat, Suite};
use engine::dsl::RootKey;
use engine::dsl::write::{Cipher, Encryption, NewKey};
use engine::env::SystemSecrets;
use engine::send::SendFlags;
use engine::spa::Spa;
use ondisk::ObjsetType;
use stdx::rng::Rng;
use testkit::pools;
use zcommon::features::Feature;
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, Rewriting, create_fs, mount};

use super::tools::{Place, receive_into, stream};

pub(super) const SOURCE: &str = "ours/from";
pub(super) const KEY: [u8; 32] = [9; 32];

/// A file system [`SOURCE`], perhaps with a [`KEY`] of its own.
pub(super) fn source(spa: &Arc<Spa>, encrypted: bool) {
    let fs = pools::new_fs(&spa.pool.env);
    let own = || {
        let key = RootKey::create(KeyFormat::Raw, &KEY, None, &SystemSecrets).unwrap();
        NewKey { key, location: Some("prompt".into()) }
    };
    let how = match encrypted {
        true => Encryption { cipher: Cipher::Suite(Suite::Aes256Gcm), key: Some(own()) },
        false => Encryption::default(),
    };
    spa.dsl_task(move |tasks| {
        tasks.create_encrypted(SOURCE, ObjsetType::Zfs, 0, how, &mut |live, tx| {
            create_fs(&live.objset, tx, &fs)
        })
    })
    .unwrap();
}

fn content(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; 600_000];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Whatever moved between two snapshots, the stream from one to the other makes a whole file system.
fn arrives(encrypted: bool, flags: SendFlags) -> usize {
    let place = Place::new();
    let spa = place.spa();
    spa.props().enable_features(vec![Feature::PhysicalRewrite]).unwrap();
    source(spa, encrypted);
    let fs = mount(spa, SOURCE, Overrides::default()).unwrap();
    let files: Vec<u64> = (0..3)
        .map(|n| {
            let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
            let file = fs.dirs().create(fs.root, format!("file{n}").as_bytes(), &node).unwrap();
            fs.data().write(file, 0, &content(n), true).unwrap();
            file
        })
        .collect();
    let snapshot = |name: &'static str| spa.dsl_task(move |tasks| tasks.snapshot(&[name], &[])).unwrap();
    snapshot("ours/from@a");
    for file in &files[..2] {
        fs.rewrites().rewrite(*file, 0, 0, Rewriting::Physical).unwrap();
    }
    spa.sync().unwrap();
    fs.data().write(files[1], 7, b"new", true).unwrap();
    snapshot("ours/from@b");
    fs.unmount().unwrap();
    let full = stream(&spa.view().unwrap(), "ours/from@a", None, flags);
    let more = stream(&spa.view().unwrap(), "ours/from@b", Some("ours/from@a"), flags);
    receive_into(spa, &full, "ours/to@a", &|_| ()).unwrap();
    receive_into(spa, &more, "ours/to@b", &|_| ()).unwrap();
    if flags.raw && encrypted {
        spa.dsl().load_key("ours/to", &KEY).unwrap();
    }
    let there = zpl::Filesystem::open(&spa.pool.dsl.dataset("ours/to").unwrap()).unwrap();
    for n in 0..3 {
        let mut wanted = content(n);
        if n == 1 {
            wanted[7..10].copy_from_slice(b"new");
        }
        let file = there.resolve(format!("file{n}").as_bytes(), true).unwrap();
        let mut have = vec![0; wanted.len()];
        assert_eq!(file.read_at(0, &mut have).unwrap(), wanted.len());
        assert!(have == wanted, "file{n}");
    }
    more.len()
}

#[test]
fn moved_blocks_are_left_out_of_incremental_streams() {
    let one = content(0).len();
    for flags in [SendFlags::default(), SendFlags { raw: true, ..SendFlags::default() }] {
        let sent = arrives(false, flags);
        assert!(sent < one, "{sent} bytes are sent");
    }
}

#[test]
fn raw_streams_of_moved_blocks_open_with_the_key() {
    arrives(true, SendFlags::default());
    arrives(true, SendFlags { raw: true, ..SendFlags::default() });
}
