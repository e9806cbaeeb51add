//! The golden streams.

use std::sync::Arc;

use engine::send::SendFlags;
use engine::spa::Pool;
use ondisk::ddt::DdtKey;
use ondisk::drr::DrrBody;
use ring::digest::{Context, SHA256};
use testkit::golden::{self, Covers, Golden};
use testkit::manifest::Record;
pub use testkit::streams::assert_same;
use testkit::streams::records;
use testkit::tree::{self, Tree};

use crate::tools::{Place, stream};

pub fn read(pool: &Golden, name: &str) -> Vec<u8> {
    std::fs::read(pool.dir.join(format!("{name}.zstream"))).expect("a golden stream")
}

#[test]
fn a_full_stream_and_an_incremental_one_become_what_was_sent() {
    let Some(pool) = golden::get("streams") else { return };
    let mut place = Place::new();
    let (full, more) = (read(&pool, "full-a"), read(&pool, "incr-a-b"));
    place.receive(&full, "ours/src@a", &|_| ()).expect("a full stream");
    place.receive(&more, "ours/src@b", &|_| ()).expect("an incremental stream");
    let opened = place.exported();
    let plain = SendFlags::default();
    assert_same(&stream(&opened, "ours/src@a", None, plain), &full);
    assert_same(&stream(&opened, "ours/src@b", Some("ours/src@a"), plain), &more);
    assert_holds(&opened, &pool, "at-a", "ours/src@a");
    assert_holds(&opened, &pool, "at-b", "ours/src@b");
}

/// OpenZFS made it from a bookmark of the snapshot that the target has.
#[test]
fn a_stream_from_a_bookmark_becomes_what_was_sent() {
    let Some(pool) = golden::get("streams") else { return };
    let mut place = Place::new();
    let more = read(&pool, "from-bookmark");
    place.receive(&read(&pool, "full-a"), "ours/src@a", &|_| ()).expect("a full stream");
    place.receive(&more, "ours/src@c", &|_| ()).expect("an incremental stream");
    let opened = place.exported();
    assert_same(&stream(&opened, "ours/src@c", Some("ours/src@a"), SendFlags::default()), &more);
    // No file changed between `@b` and `@c`.
    assert_holds(&opened, &pool, "at-b", "ours/src@c");
}

/// Blocks of an encrypted file system that came decrypted and compressed (`send -c`).
#[test]
fn a_decrypted_stream_becomes_what_was_sent() {
    let Some(pool) = golden::get("raw-received") else { return };
    let mut place = Place::new();
    let full = read(&pool, "plain-c-b");
    place.receive(&full, "ours/e@b", &|_| ()).expect("a full stream");
    let opened = place.exported();
    let flags = SendFlags { compressed: true, ..SendFlags::default() };
    // Encrypted blocks have no checksum that a stream without their MACs could name; those here are not encrypted.
    let without_sums = |stream: &[u8]| {
        let mut all = records(stream);
        for (body, _) in &mut all {
            if let DrrBody::Write(write) = body {
                (write.checksumtype, write.flags, write.key) = (0, 0, DdtKey::default());
            }
        }
        all
    };
    assert!(without_sums(&stream(&opened, "ours/e@b", None, flags)) == without_sums(&full));
    assert_holds(&opened, &pool, "at-src-b", "ours/e@b");
}

/// As `-Lec`: blocks that came compressed or embedded are as they came.
#[test]
fn compressed_and_embedded_blocks_stay_as_they_are() {
    let Some(pool) = golden::get("streams") else { return };
    let mut place = Place::new();
    let full = read(&pool, "full-b-Lec");
    place.receive(&full, "ours/src@b", &|_| ()).expect("a stream");
    let opened = place.exported();
    let flags = SendFlags { embed: true, large_blocks: true, compressed: true, ..SendFlags::default() };
    assert_same(&stream(&opened, "ours/src@b", None, flags), &full);
    assert_holds(&opened, &pool, "at-b", "ours/src@b");
}

/// The blocks that were just written are in the cache: those that came compressed are not read as their logical bytes.
#[test]
fn blocks_received_compressed_are_read_decompressed_before_the_next_import() {
    let Some(pool) = golden::get("streams") else { return };
    let place = Place::new();
    place.receive(&read(&pool, "full-b-Lec"), "ours/src@b", &|_| ()).expect("a stream");
    assert_holds(&place.spa().view().unwrap(), &pool, "at-b", "ours/src@b");
}

/// As in OpenZFS, a redacted range is received as a hole.
#[test]
fn a_redacted_stream_leaves_out_what_it_left_out() {
    let Some(pool) = golden::get("streams") else { return };
    let mut place = Place::new();
    let full = read(&pool, "redacted");
    place.receive(&full, "ours/src@b", &|_| ()).expect("a stream");
    let opened = place.exported();
    let ours = records(&stream(&opened, "ours/src@b", None, SendFlags::default()));
    let (gone, real): (Vec<_>, Vec<_>) =
        records(&full).into_iter().partition(|(body, _)| matches!(body, DrrBody::Redact(_)));
    // They are at the ends of their objects, where frees are left out.
    assert_eq!(gone.len(), 6);
    assert_eq!(ours.len(), real.len());
    ours.iter().zip(&real).for_each(|(ours, real)| assert_eq!(ours, real));
}

#[test]
fn raw_streams_are_received_without_a_key_and_opened_with_it() {
    let Some(pool) = golden::get("raw-received") else { return };
    let mut place = Place::new();
    let (full, more) = (read(&pool, "raw-a"), read(&pool, "raw-a-b"));
    place.receive(&full, "ours/r@a", &|_| ()).expect("a raw stream");
    place.receive(&more, "ours/r@b", &|_| ()).expect("an incremental raw stream");
    let opened = place.exported();
    let raw = SendFlags { raw: true, ..SendFlags::default() };
    assert_same(&stream(&opened, "ours/r@a", None, raw), &full);
    assert_same(&stream(&opened, "ours/r@b", Some("ours/r@a"), raw), &more);
    let root = opened.dsl.keys.root_of(&opened.dsl.dir("ours/r").unwrap()).unwrap().expect("encrypted");
    opened.dsl.keys.load(&root, b"correct horse battery").expect("the key");
    assert_holds(&opened, &pool, "at-src-b", "ours/r@b");
}

#[test]
fn a_raw_stream_of_a_dataset_with_children_of_other_keys_opens_with_its_own() {
    let Some(pool) = golden::get("encrypted") else { return };
    let mut place = Place::new();
    let full = read(&pool, "raw-pass");
    place.receive(&full, "ours/pass@s", &|_| ()).expect("a raw stream");
    let opened = place.exported();
    let raw = SendFlags { raw: true, ..SendFlags::default() };
    assert_same(&stream(&opened, "ours/pass@s", None, raw), &full);
    let root = opened.dsl.keys.root_of(&opened.dsl.dir("ours/pass").unwrap()).unwrap().expect("encrypted");
    opened.dsl.keys.load(&root, b"correct horse battery").expect("the key");
    let covers = Covers { dataset: "ours/pass@s".into(), recursive: false, checkpoint: false };
    assert!(!Tree::read(&opened, &covers).expect("every file").files.is_empty());
}

/// The device that the golden volume was, whatever flags it came with.
#[test]
fn a_volume_becomes_what_was_sent() {
    let Some(pool) = golden::get("zvol") else { return };
    let source = pool.open().expect("the pool");
    let sum = std::fs::read_to_string(pool.dir.join("zd0.sha256")).expect("its sum");
    let mut place = Place::new();
    let flags = [
        SendFlags::default(),
        SendFlags { compressed: true, ..SendFlags::default() },
        SendFlags { raw: true, ..SendFlags::default() },
    ];
    let streams = flags.map(|flags| stream(&source, "tank/vol@s", None, flags));
    for (number, stream) in streams.iter().enumerate() {
        place.receive(stream, &format!("ours/vol{number}@s"), &|_| ()).expect("a stream");
    }
    let opened = place.exported();
    for (number, (sent, flags)) in streams.iter().zip(flags).enumerate() {
        let name = format!("ours/vol{number}@s");
        assert_same(&stream(&opened, &name, None, flags), sent);
        let volume = zvol::Volume::open(&opened.dsl.dataset(&name).expect("a snapshot")).expect("a volume");
        let (mut digest, mut at) = (Context::new(&SHA256), 0);
        let mut piece = vec![0; 1 << 20];
        while at < volume.size {
            let read = volume.read_at(at, &mut piece).expect("its bytes");
            digest.update(&piece[..read]);
            at += read as u64;
        }
        let hex: String = digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(sum.starts_with(&hex), "{name}: {hex}, not {sum}");
    }
}

/// Every file equals its manifest entry.
pub fn assert_holds(opened: &Arc<Pool>, pool: &Golden, manifest: &str, dataset: &str) {
    let covers = Covers { dataset: dataset.into(), recursive: false, checkpoint: false };
    let wanted = pool.manifest(manifest).expect("a manifest");
    let excuse = |path: &[u8], have: &mut Record, want: &Record| {
        tree::excuse_golden(&format!("{}/{manifest}", pool.name), path, have, want);
    };
    let found = Tree::read(opened, &covers).expect("every file").differences(manifest, &wanted, &excuse);
    assert!(found.is_empty(), "{found:#?}");
}
