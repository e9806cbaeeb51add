//! Blocks that a kernel compressed and deduplicated are shared with the same data written here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use engine::dsl::props::PropValue;
use engine::dsl::write::Encryption;
use engine::dsl::write::props::SettingSource;
use engine::memory::Limit;
use engine::spa::Spa;
use engine::zio::Form;
use ondisk::{Blkptr, ObjectType};
use testkit::{golden, pools};
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, mount};

fn first_block(spa: &Arc<Spa>, dataset: &str, number: u64) -> Option<Blkptr> {
    let objset = spa.pool.dsl.dataset(dataset).unwrap().objset_as(Form::NoKey).unwrap();
    objset.object(number).unwrap().blkptr(0, 0).unwrap()
}

fn files(spa: &Arc<Spa>, dataset: &str) -> Vec<(u64, Blkptr)> {
    let objset = spa.pool.dsl.dataset(dataset).unwrap().objset_as(Form::NoKey).unwrap();
    let all = objset.objects().map(|object| object.expect("an object"));
    let contents = all.filter(|object| object.dnode.object_type == ObjectType::PLAIN_FILE_CONTENTS);
    contents.filter_map(|object| Some((object.number, object.blkptr(0, 0).unwrap()?))).collect()
}

fn new(fs: &FsWriter, name: &str, bytes: &[u8]) -> u64 {
    let number =
        fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.data().write(number, 0, bytes, true).unwrap();
    number
}

fn shares(pool: &str) {
    let Some(golden) = golden::get(pool) else { return };
    let (dir, dataset) = (tempfile::tempdir().unwrap(), "tank/d-on");
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_dir(dir.path(), "tank").unwrap();
    let fs = mount(&spa, dataset, Overrides::default()).unwrap();
    let theirs = files(&spa, dataset);
    let theirs: Vec<_> = theirs.into_iter().filter(|(_, bp)| bp.dedup() && bp.psize() < bp.lsize()).collect();
    assert!(!theirs.is_empty());
    let ours: Vec<u64> = theirs
        .iter()
        .map(|(number, _)| {
            let mut bytes =
                vec![0; usize::try_from(fs.attrs().get(*number).unwrap().size).unwrap().min(16 << 20)];
            fs.data().read(*number, 0, &mut bytes).unwrap();
            new(&fs, &format!("copy-{number}"), &bytes)
        })
        .collect();
    spa.sync().unwrap();
    for ((number, bp), ours) in theirs.iter().zip(ours) {
        let shared = first_block(&spa, dataset, ours).unwrap();
        assert!(shared.dvas().eq(bp.dvas()), "the copy of {number}: {shared:?}, not {bp:?}");
    }
    fs.unmount().unwrap();
}

#[test]
fn blocks_of_fast_dedup_are_shared() {
    shares("dedup-fast");
}

#[test]
fn blocks_of_legacy_tables_are_shared() {
    shares("dedup-legacy");
}

/// No golden pool has gzip and dedup: the stored bytes are compared with those of zlib. A setting gives those of the fast
/// encoder.
#[test]
fn deduplicated_gzip_has_the_bytes_of_openzfs() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), "ours", 128 << 20, Encryption::default()).unwrap();
    let all = [("compression", Some(PropValue::Number(10))), ("dedup", Some(PropValue::Number(8 | 256)))];
    spa.dsl_task(move |tasks| tasks.set("ours", &all, SettingSource::Local)).unwrap();
    let fs = mount(&spa, "ours", Overrides::default()).unwrap();
    let text: Vec<u8> =
        (0..40_000_u32).flat_map(|i| (i * i % 9973).to_string().into_bytes()).take(128 << 10).collect();
    let gzip = |encode: fn(compress::Algorithm, u8, &[u8], usize) -> Option<Vec<u8>>, size: usize| {
        let mut bytes = encode(compress::Algorithm::Gzip, 6, &text, text.len()).unwrap();
        bytes.resize(size, 0);
        bytes
    };
    for (name, is_fast) in [("as OpenZFS", false), ("fast", true)] {
        spa.pool.env.memory.limits.set(Limit::DedupFastGzip, u64::from(is_fast)).unwrap();
        let number = new(&fs, name, &text);
        spa.sync().unwrap();
        let bp = first_block(&spa, "ours", number).unwrap();
        assert!(bp.dedup() && bp.compress() == Some(ondisk::CompressType::Gzip6), "{bp:?}");
        let (dva, size) = (bp.dvas().next().unwrap(), usize::try_from(bp.psize()).unwrap());
        let stored = spa.pool.zio.read_physical(u64::from(dva.vdev), dva.offset, bp.psize()).unwrap();
        assert_eq!(stored[..] == gzip(compress::compress_as_openzfs, size)[..], !is_fast, "{name}");
        assert_eq!(stored[..] == gzip(compress::compress, size)[..], is_fast, "{name}");
    }
    fs.unmount().unwrap();
}
