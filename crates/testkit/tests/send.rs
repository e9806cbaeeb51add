//! Send streams of golden pools beside those that OpenZFS made of them: full, with all of `-Lec`, incremental from a
//! snapshot and from a bookmark, redacted, raw, of volumes; and streams that continue where a receive stopped.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that can't go on must say so"
)]

use engine::dsl::props::bookmarks::bookmarks;
use engine::send::{From, Meter, SendFlags, SendOptions, send, send_with};
use engine::spa::OpenOptions;
use ondisk::Endian;
use ondisk::drr::{Drr, DrrBody, stream_feature};
use testkit::golden::{self, Golden};
use testkit::hostile::streams::{encode, items};
use testkit::zdb;

/// Bytes of a record without its payload.
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

/// The bookmark `#book` of `tank/src` redacts the blocks that `tank/red@r` changed.
#[test]
fn a_redacted_stream_is_openzfs_byte_for_byte() {
    let Some(pool) = golden::get("streams") else { return };
    let opened = pool.open_with(OpenOptions::default()).expect("the pool opens");
    let head = opened.dsl.dataset("tank/src").expect("the dataset");
    let book = bookmarks(&head).expect("bookmarks").into_iter().find(|book| book.name == "book");
    let redact = Some(book.expect("the bookmark").phys.redaction_obj);
    let real = std::fs::read(pool.dir.join("redacted.zstream")).expect("a golden stream");
    let mut ours = Vec::new();
    let options = SendOptions { redact, ..SendOptions::default() };
    let snapshot = opened.dsl.dataset("tank/src@a").expect("the snapshot");
    send_with(&snapshot, &options, &mut ours, &Meter::default()).expect("a stream");
    assert_eq!(first_difference(&real, &ours), None);
    assert_eq!(real.len(), ours.len());
}

#[test]
fn a_raw_stream_is_openzfs_byte_for_byte() {
    let Some(pool) = golden::get("encrypted") else { return };
    let real = std::fs::read(pool.dir.join("raw-pass.zstream")).expect("a golden stream");
    let flags = SendFlags { raw: true, ..SendFlags::default() };
    let ours = stream(&pool, "tank/pass@s", None, flags);
    assert_eq!((first_difference(&real, &ours), ours.len()), (None, real.len()));
}

/// OpenZFS received `tank/r` from these streams of `src/e` (the one that is not raw was made of `src/e`, too). The name is the
/// only difference; with it, the checksums of all records.
#[test]
fn streams_that_openzfs_received_raw_are_sent_as_they_came() {
    let Some(pool) = golden::get("raw-received") else { return };
    let raw = SendFlags { raw: true, ..SendFlags::default() };
    let compressed = SendFlags { compressed: true, ..SendFlags::default() };
    let cases = [
        ("raw-a", "tank/r@a", None, raw),
        ("raw-a-b", "tank/r@b", Some("tank/r@a"), raw),
        ("plain-c-b", "tank/r@b", None, compressed),
    ];
    let opened = pool.open_with_keys(OpenOptions::default()).expect("the pool opens");
    for (file, to, from, flags) in cases {
        let real = std::fs::read(pool.dir.join(format!("{file}.zstream"))).expect("a golden stream");
        let from = from.map(|name| From::snapshot(&opened.dsl.dataset(name).expect("from")).expect("from"));
        let mut ours = Vec::new();
        send(&opened.dsl.dataset(to).expect("to"), from, flags, &mut ours).expect("a stream");
        let (mut ours, theirs) = (items(&ours), items(&real));
        let (DrrBody::Begin(one), DrrBody::Begin(two)) = (&mut ours[0].drr.body, &theirs[0].drr.body) else {
            panic!("no BEGIN")
        };
        assert!(one.name() == to.as_bytes() && two.name() == to.replace("tank/r", "src/e").as_bytes());
        one.toname = two.toname;
        let ours = encode(&ours, Endian::Little, &mut |_, _, _| ());
        assert!(real == ours, "{file}: they differ from byte {:?} on", first_difference(&real, &ours));
    }
}

/// The real sender, in OpenZFS's zdb, makes the same streams of a volume.
#[test]
fn streams_of_volumes_are_openzfs_byte_for_byte() {
    let Some(pool) = golden::get("zvol") else { return };
    if !zdb::installed() {
        return;
    }
    let opened = pool.open().expect("the pool opens");
    let number = opened.dsl.dataset("tank/vol@s").expect("the snapshot").number;
    for letters in ["", "c", "eLc", "w"] {
        let has = |letter| letters.contains(letter);
        let flags =
            SendFlags { embed: has('e'), large_blocks: has('L'), compressed: has('c'), raw: has('w') };
        let mut theirs = zdb::command("zdb");
        theirs.args(["-e", "-p"]).arg(&pool.dir).args(["-B", &format!("tank/{number}"), letters]);
        let theirs = theirs.output().expect("zdb runs").stdout;
        let ours = stream(&pool, "tank/vol@s", None, flags);
        assert!(theirs.len() > 1 << 20, "{letters}: {} bytes", theirs.len());
        assert_eq!((first_difference(&theirs, &ours), ours.len()), (None, theirs.len()), "{letters}");
    }
}

/// The records of a stream with their payloads, without BEGIN and END.
fn records(stream: &[u8]) -> Vec<(DrrBody, &[u8])> {
    let (mut rest, mut all) = (stream, Vec::new());
    while !rest.is_empty() {
        let drr = Drr::from_bytes(rest, Endian::Little).expect("a record");
        let payload = usize::try_from(drr.payload_size()).expect("a size");
        if !matches!(drr.body, DrrBody::Begin(_) | DrrBody::End(_)) {
            all.push((drr.body, &rest[RECORD..RECORD + payload]));
        }
        rest = &rest[RECORD + payload..];
    }
    all
}

/// From wherever a receive stopped, a stream continues with the object at hand and then has the rest.
#[test]
fn a_stream_goes_on_from_any_block() {
    let Some(pool) = golden::get("streams") else { return };
    let opened = pool.open_with(OpenOptions::default()).expect("the pool opens");
    let snapshot = opened.dsl.dataset("tank/src@b").expect("the snapshot");
    let from = From::snapshot(&opened.dsl.dataset("tank/src@a").expect("from")).expect("from");
    for from in [None, Some(from)] {
        let options = |resume| SendOptions { from: from.clone(), resume, ..SendOptions::default() };
        let make = |resume| {
            let mut out = Vec::new();
            send_with(&snapshot, &options(resume), &mut out, &Meter::default()).expect("a stream");
            out
        };
        let whole = make(None);
        let whole = records(&whole);
        let mut tried = 0;
        for (at, (body, _)) in whole.iter().enumerate() {
            let DrrBody::Write(write) = body else { continue };
            tried += 1;
            let rest = make(Some((write.object, write.offset)));
            let Ok(Drr { body: DrrBody::Begin(begin), .. }) = Drr::from_bytes(&rest, Endian::Little) else {
                panic!("no BEGIN")
            };
            assert_ne!(begin.features() & stream_feature::RESUMING, 0);
            let rest = records(&rest);
            assert!(matches!(rest[0].0, DrrBody::Object(o) if o.object == write.object));
            let first = rest.iter().position(|(body, _)| matches!(body, DrrBody::Write(_))).expect("a write");
            assert!(first <= 3, "{first} records before the first block");
            assert!(rest[first..] == whole[at..], "object {} offset {}", write.object, write.offset);
        }
        assert!(tried > 3);
    }
}
