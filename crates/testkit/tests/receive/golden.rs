//! The golden streams.

use std::collections::BTreeMap;

use engine::recv::Input;
use engine::send::SendFlags;
use ondisk::Raw;
use ondisk::ddt::DdtKey;
use ondisk::drr::{DrrBody, DrrFree};
use testkit::golden::{self, Golden};

use crate::tools::{Place, stream};

fn read(pool: &Golden, name: &str) -> Vec<u8> {
    std::fs::read(pool.dir.join(format!("{name}.zstream"))).expect("a golden stream")
}

/// The same stream, but for the name of its snapshot in BEGIN.
fn assert_same(ours: &[u8], real: &[u8]) {
    let (ours, real) = (records(ours), records(real));
    for (at, (ours, real)) in ours.iter().zip(&real).enumerate() {
        assert!(ours.0 == real.0, "record {at} is {:?}, not {:?}", ours.0, real.0);
        assert!(ours.1 == real.1, "what follows record {at}, {:?}, differs", real.0);
    }
    assert_eq!(ours.len(), real.len());
}

/// Records without checksums and names, with what follows them. What is free behind the last block of an object is left
/// out: a stream does not say where an object ends that has holes there.
fn records(stream: &[u8]) -> Vec<(DrrBody, Vec<u8>)> {
    let mut from = stream;
    let mut input = Input::new(&mut from);
    let (mut all, mut ends) = (Vec::new(), BTreeMap::new());
    while let Some(item) = input.next().expect("a record") {
        let mut body = item.drr.body;
        match &mut body {
            DrrBody::Begin(begin) => begin.toname = Raw([0; 256]),
            DrrBody::End(end) => end.checksum = [0; 4],
            DrrBody::Write(write) => {
                // What was sent as it reads is stored as the receiver's properties say.
                write.key = if write.compressiontype == 0 { DdtKey::default() } else { write.key };
                ends.insert(write.object, write.offset + write.logical_size);
            }
            DrrBody::WriteEmbedded(write) => drop(ends.insert(write.object, write.offset + write.length)),
            _ => {}
        }
        all.push((body, item.payload));
    }
    let ends_before = |free: &DrrFree| ends.get(&free.object).copied().unwrap_or(0) <= free.offset;
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
}
