//! Corrective receives: damaged blocks are those of the stream again, and nothing else changes.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use engine::Kind;
use engine::recv::{Input, Wish, heal};
use engine::send::SendFlags;
use engine::spa::{Spa, errlog};
use ondisk::drr::DrrBody;
use ondisk::{Blkptr, ObjectType};
use testkit::golden;
use testkit::hostile::streams::{encode, items};
use testkit::pools::import_dir;

use crate::golden::{assert_same, read};
use crate::tools::{Place, stream};

/// Where the space of a vdev begins on its device.
const START: u64 = 4 << 20;

/// Objects of file contents with their first block.
fn files(spa: &Arc<Spa>, snapshot: &str) -> Vec<(u64, Blkptr)> {
    let objset = spa.pool.dsl.dataset(snapshot).unwrap().objset_as(engine::zio::Form::NoKey).unwrap();
    let all = objset.objects().map(|object| object.expect("an object"));
    let contents = all.filter(|object| object.dnode.object_type == ObjectType::PLAIN_FILE_CONTENTS);
    let first = contents.filter_map(|object| Some((object.number, object.blkptr(0, 0).unwrap()?)));
    first.filter(|(_, bp)| !bp.is_embedded()).collect()
}

fn damage(dir: &Path, bp: &Blkptr) {
    let disk = std::fs::OpenOptions::new().read(true).write(true).open(dir.join("disk1")).unwrap();
    for dva in bp.dvas() {
        let mut bytes = [0; 64];
        disk.read_exact_at(&mut bytes, dva.offset + START).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
        disk.write_all_at(&bytes, dva.offset + START).unwrap();
    }
}

fn healed(spa: &Arc<Spa>, stream: &[u8], snapshot: &str) -> engine::Result<u64> {
    let mut from = stream;
    let mut input = Input::new(&mut from);
    let item = input.record()?.expect("a record");
    let DrrBody::Begin(begin) = item.drr.body else { panic!("no BEGIN") };
    let (dataset, name) = snapshot.split_once('@').unwrap();
    let wish = Wish::of(&begin, &item.payload, dataset, name)?;
    heal(spa, &wish, &mut input, &mut |_| true)
}

/// The stream with another content of the first file.
fn of_another_file(stream: &[u8], object: u64) -> Vec<u8> {
    let all = items(stream);
    let first = all.iter().position(|item| matches!(&item.drr.body, DrrBody::Write(w) if w.object == object));
    encode(&all, ondisk::Endian::Little, &mut |at, _, payload| {
        if Some(at) == first {
            payload[3] ^= 1;
        }
    })
}

/// Receives a golden stream, damages blocks, and repairs them with the stream.
fn heals(pool: &str, file: &str, flags: SendFlags) {
    let Some(golden) = golden::get(pool) else { return };
    let real = read(&golden, file);
    let mut place = Place::new();
    place.receive(&real, "ours/src@a", &|_| ()).expect("a stream");
    let found = files(place.spa(), "ours/src@a");
    let some: Vec<_> = found.iter().step_by(found.len().div_ceil(5)).collect();
    assert!(some.len() >= 2, "{}", some.len());
    let spa = place.spa.take().unwrap();
    spa.export().expect("exported");
    drop(spa);
    some.iter().for_each(|(_, bp)| damage(place.dir.path(), bp));
    let spa = import_dir(place.dir.path(), "ours").expect("imported");
    place.spa = Some(Arc::clone(&spa));
    let objset = spa.pool.dsl.dataset("ours/src@a").unwrap().objset_as(engine::zio::Form::NoKey).unwrap();
    for (number, _) in &some {
        let read = objset.object(*number).unwrap().block(0);
        assert_eq!(read.expect_err("it is damaged").kind(), Kind::Checksum);
    }
    spa.sync().unwrap();
    assert_eq!(
        errlog::errors(&spa.view().unwrap(), &mut Vec::new()).len(),
        some.len(),
        "the damage is known"
    );

    let e = healed(&spa, &of_another_file(&real, some[0].0), "ours/src@a").expect_err("another content");
    assert!(e.kind() == Kind::Checksum && e.what().contains("not able to reconstruct"), "{e}");
    assert!(e.what().contains("record ") && e.what().contains("WRITE"), "{e}");
    let count = healed(&spa, &real, "ours/src@a").expect("repaired");
    assert_eq!(count, some.len() as u64);
    assert_eq!(healed(&spa, &real, "ours/src@a").expect("nothing to repair"), 0);
    spa.sync().unwrap();
    assert_eq!(
        errlog::errors(&spa.view().unwrap(), &mut Vec::new()),
        [],
        "the repaired blocks are forgotten"
    );
    drop((objset, spa));
    let opened = place.exported();
    assert_same(&stream(&opened, "ours/src@a", None, flags), &real);
}

#[test]
fn damaged_blocks_are_repaired() {
    heals("streams", "full-a", SendFlags::default());
}

#[test]
fn damaged_blocks_are_repaired_by_a_compressed_stream() {
    let flags = SendFlags { embed: true, large_blocks: true, compressed: true, ..SendFlags::default() };
    heals("streams", "full-b-Lec", flags);
}

#[test]
fn damaged_encrypted_blocks_are_repaired_by_a_raw_stream_without_the_key() {
    heals("raw-received", "raw-a", SendFlags { raw: true, ..SendFlags::default() });
}

#[test]
fn a_stream_of_another_snapshot_repairs_nothing() {
    let Some(golden) = golden::get("streams") else { return };
    let place = Place::new();
    place.receive(&read(&golden, "full-a"), "ours/src@a", &|_| ()).expect("a stream");
    let e = healed(place.spa(), &read(&golden, "incr-a-b"), "ours/src@a").expect_err("another snapshot");
    assert_eq!(e.kind(), Kind::Unsupported, "{e}");
    let e = healed(place.spa(), &read(&golden, "full-a"), "ours/src@none").expect_err("no snapshot");
    assert_eq!(e.kind(), Kind::NotFound, "{e}");
}

/// A plain stream has the logical bytes only: they are compressed again, and must become the kernel's bytes.
#[test]
fn blocks_that_a_kernel_compressed_are_repaired_by_a_plain_stream() {
    let Some(golden) = golden::get("compress") else { return };
    let place = tempfile::tempdir().unwrap();
    testkit::pools::copy(&golden.dir, place.path());
    let spa = import_dir(place.path(), "tank").expect("imported");
    let all = ["lz4", "gzip-1", "gzip-9", "lzjb", "zle"].map(|codec| {
        let snapshot = format!("tank/compression-{codec}@heal");
        let name = snapshot.clone();
        spa.dsl_task(move |tasks| tasks.snapshot(&[&name], &[])).expect("a snapshot");
        let plain = stream(&spa.view().unwrap(), &snapshot, None, SendFlags::default());
        let small: Vec<_> =
            files(&spa, &snapshot).into_iter().filter(|(_, bp)| bp.psize() < bp.lsize()).collect();
        assert!(!small.is_empty(), "{codec}");
        (snapshot, plain, small)
    });
    spa.export().expect("exported");
    drop(spa);
    all.iter().flat_map(|(.., small)| small).for_each(|(_, bp)| damage(place.path(), bp));
    let spa = import_dir(place.path(), "tank").expect("imported");
    for (snapshot, plain, small) in all {
        assert_eq!(healed(&spa, &plain, &snapshot).expect(&snapshot), small.len() as u64, "{snapshot}");
        assert_same(&stream(&spa.view().unwrap(), &snapshot, None, SendFlags::default()), &plain);
    }
}
