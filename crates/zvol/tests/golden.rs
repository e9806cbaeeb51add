//! A volume made by OpenZFS, byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use engine::dmu::Span;
use sha2::{Digest, Sha256};
use zvol::Volume;

fn data_bytes(volume: &Volume) -> u64 {
    let (mut at, mut data) = (0, 0);
    while let Some(span) = volume.span(at, u64::MAX) {
        let range = span.range();
        assert_eq!(range.start, at);
        match span {
            Span::Data(_) => data += range.end - at,
            Span::Hole(_) => {}
            Span::Unreadable(u) => panic!("{}", u.error),
        }
        at = range.end;
    }
    assert_eq!(at, volume.size);
    data
}

#[test]
fn volumes_have_the_bytes_that_openzfs_saw() {
    let Some(golden) = testkit::golden::get("zvol") else { return };
    let pool = golden.open().unwrap();
    let volume = Volume::open(&pool.dsl.dataset("tank/vol").unwrap()).unwrap();
    let mut hash = Sha256::new();
    let mut at = 0;
    loop {
        let chunk = volume.chunk(at, 1 << 20).unwrap();
        if chunk.is_empty() {
            break;
        }
        hash.update(&*chunk);
        at += chunk.len() as u64;
    }
    assert_eq!((at, volume.size), (24 << 20, 24 << 20));
    let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    let said = std::fs::read_to_string(golden.dir.join("zd0.sha256")).unwrap();
    assert_eq!(said.split_whitespace().next(), Some(hex.as_str()));

    let sparse = Volume::open(&pool.dsl.dataset("tank/sparse").unwrap()).unwrap();
    assert_eq!(sparse.size, 1 << 30);
    assert!(data_bytes(&sparse) < 16 << 20);
    assert!(data_bytes(&volume) <= volume.size);
    assert!(Volume::open(&pool.dsl.dataset("tank").unwrap()).is_err());
}
