//! The golden streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::recv::Input;
use engine::send::SendFlags;
use engine::spa::Pool;
use ondisk::Raw;
use ondisk::ddt::DdtKey;
use ondisk::drr::{DrrBody, DrrFree, stream_feature};
use testkit::golden::{self, Covers, Golden};
use testkit::manifest::Record;
use testkit::tree::{self, Tree};

use crate::tools::{Place, stream};

pub fn read(pool: &Golden, name: &str) -> Vec<u8> {
    std::fs::read(pool.dir.join(format!("{name}.zstream"))).expect("a golden stream")
}

/// The same stream, but for the name of its snapshot in BEGIN.
pub fn assert_same(ours: &[u8], real: &[u8]) {
    let (ours, real) = (records(ours), records(real));
    for (at, (ours, real)) in ours.iter().zip(&real).enumerate() {
        assert!(ours.0 == real.0, "record {at} is {:?}, not {:?}", ours.0, real.0);
        assert!(ours.1 == real.1, "what follows record {at}, {:?}, differs", real.0);
    }
    assert_eq!(ours.len(), real.len());
}

/// Records without checksums and names, with their payloads. Frees behind the last block of an object are
/// left out: a stream does not say where an object ends that has holes there.
fn records(stream: &[u8]) -> Vec<(DrrBody, Vec<u8>)> {
    let mut from = stream;
    let mut input = Input::new(&mut from);
    let (mut all, mut ends) = (Vec::new(), BTreeMap::new());
    while let Some(item) = input.record().expect("a record") {
        let mut body = item.drr.body;
        match &mut body {
            DrrBody::Begin(begin) => {
                // Only a stream with redactions of its own has the flag.
                begin.versioninfo &= !(stream_feature::REDACTED << 2);
                begin.toname = Raw([0; 256]);
            }
            DrrBody::End(end) => end.checksum = [0; 4],
            DrrBody::Write(write) => {
                // Blocks sent uncompressed are stored according to the receiver's properties.
                write.key = if write.compressiontype == 0 { DdtKey::default() } else { write.key };
                ends.insert(write.object, write.offset + write.logical_size);
            }
            DrrBody::WriteEmbedded(write) => {
                let end = write.offset.wrapping_add(write.length);
                if write.offset < 1 << 63 {
                    ends.insert(write.object, end);
                }
            }
            _ => {}
        }
        all.push((body, item.payload));
    }
    let ends_before = |free: &DrrFree| ends.get(&free.object).copied().unwrap_or(0) <= free.offset;
    // OpenZFS sends an embedded spill block as an embedded write of block -2.
    let is_spill = |body: &DrrBody| match body {
        DrrBody::WriteEmbedded(write) => write.offset == write.length.wrapping_mul(u64::MAX - 1),
        DrrBody::Spill(_) => true,
        _ => false,
    };
    let embeds = all.iter().any(|(body, _)| matches!(body, DrrBody::WriteEmbedded(_)));
    all.retain(|(body, _)| !(embeds && is_spill(body)));
    all.retain(|(body, _)| !matches!(body, DrrBody::Free(free) if ends_before(free)));
    all
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
fn what_came_compressed_is_read_decompressed_before_the_next_import() {
    let Some(pool) = golden::get("streams") else { return };
    let place = Place::new();
    place.receive(&read(&pool, "full-b-Lec"), "ours/src@b", &|_| ()).expect("a stream");
    assert_holds(&place.spa().pool, &pool, "at-b", "ours/src@b");
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
