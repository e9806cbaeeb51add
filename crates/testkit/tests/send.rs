//! Send streams of the golden pool `streams` beside those that OpenZFS made of it: full, with all of `-Lec`,
//! incremental from a snapshot and from a bookmark.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test that can't go on must say so")]

use engine::send::{From, SendFlags, send};
use engine::spa::OpenOptions;
use testkit::golden::{self, Golden};

/// Bytes of a record without what follows it.
const RECORD: usize = 312;

fn stream(pool: &Golden, to: &str, from: Option<&str>, flags: SendFlags) -> Vec<u8> {
    let opened = pool.open_with(OpenOptions::default()).expect("the pool opens");
    let from = from.map(|name| From::snapshot(&opened.dsl.dataset(name).expect("from")).expect("from"));
    let mut out = Vec::new();
    send(&opened.dsl.dataset(to).expect("to"), from, flags, &mut out).expect("a stream");
    out
}

#[test]
fn streams_are_openzfs_byte_for_byte() {
    let Some(pool) = golden::get("streams") else { return };
    let plain = SendFlags::default();
    let cases = [
        ("full-a", "tank/src@a", None, plain),
        ("incr-a-b", "tank/src@b", Some("tank/src@a"), plain),
        ("from-bookmark", "tank/src@c", Some("tank/src@a"), plain),
    ];
    for (file, to, from, flags) in cases {
        let real = std::fs::read(pool.dir.join(format!("{file}.zstream"))).expect("a golden stream");
        let ours = stream(&pool, to, from, flags);
        assert!(real == ours, "{file}: they differ from byte {:?} on", first_difference(&real, &ours));
    }
}

/// A spill block embedded in its pointer: OpenZFS 2.3 sends it as an embedded write far behind the end of the file,
/// which loses the attributes; we send a SPILL record. All else is the same.
#[test]
fn embedded_spill_blocks_keep_their_attributes() {
    let Some(pool) = golden::get("streams") else { return };
    let flags = SendFlags { embed: true, large_blocks: true, compressed: true, ..SendFlags::default() };
    let real = std::fs::read(pool.dir.join("full-b-Lec.zstream")).expect("a golden stream");
    let ours = stream(&pool, "tank/src@b", None, flags);
    let at = first_difference(&real, &ours).expect("an embedded spill block");
    let kind = |stream: &[u8]| u32::from_le_bytes(stream[at..at + 4].try_into().expect("four bytes"));
    let (embedded, spill) = (8, 7);
    assert_eq!((kind(&real), kind(&ours)), (embedded, spill));
    // A record, and 70 embedded bytes rounded up there, 512 here.
    let (theirs, ours) = (&real[at + RECORD + 72..], &ours[at + RECORD + 512..]);
    assert_eq!(theirs.len(), ours.len());
    // Behind it only the running checksums differ, at the end of each record.
    let differing = theirs.iter().zip(ours).filter(|(a, b)| a != b).count();
    assert!(differing < theirs.len() / 10, "{differing} bytes of {}", theirs.len());
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    a.iter().zip(b).position(|(a, b)| a != b)
}
