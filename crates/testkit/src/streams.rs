//! Send streams that mean the same.
#![expect(clippy::expect_used, reason = "only tests run this, and end with it")]

use std::collections::BTreeMap;

use engine::recv::Input;
use ondisk::Raw;
use ondisk::ddt::DdtKey;
use ondisk::drr::{DrrBody, DrrFree, stream_feature};

/// Compares two streams or packages but for names in BEGIN records and for checksums. The lists at the head of packages are
/// compared, too.
///
/// # Panics
/// If they differ.
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
///
/// # Panics
/// If the stream is damaged.
pub fn records(stream: &[u8]) -> Vec<(DrrBody, Vec<u8>)> {
    let mut from = stream;
    let mut input = Input::new(&mut from);
    // Objects have their numbers within one stream of a package.
    let (mut all, mut ends, mut number) = (Vec::new(), BTreeMap::new(), 0);
    while let Some(item) = input.record().expect("a record") {
        let mut body = item.drr.body;
        match &mut body {
            DrrBody::Begin(begin) => {
                // Only a stream with redactions of its own has the flag.
                begin.versioninfo &= !(stream_feature::REDACTED << 2);
                begin.toname = Raw([0; 256]);
                number += 1;
            }
            DrrBody::End(end) => end.checksum = [0; 4],
            DrrBody::Write(write) => {
                // Blocks sent uncompressed are stored according to the receiver's properties.
                write.key = if write.compressiontype == 0 { DdtKey::default() } else { write.key };
                ends.insert((number, write.object), write.offset + write.logical_size);
            }
            DrrBody::WriteEmbedded(write) => {
                let end = write.offset.wrapping_add(write.length);
                if write.offset < 1 << 63 {
                    ends.insert((number, write.object), end);
                }
            }
            _ => {}
        }
        all.push((number, body, item.payload));
    }
    let ends_before =
        |number: u32, free: &DrrFree| ends.get(&(number, free.object)).copied().unwrap_or(0) <= free.offset;
    // OpenZFS sends an embedded spill block as an embedded write of block -2.
    let is_spill = |body: &DrrBody| match body {
        DrrBody::WriteEmbedded(write) => write.offset == write.length.wrapping_mul(u64::MAX - 1),
        DrrBody::Spill(_) => true,
        _ => false,
    };
    let embeds = all.iter().any(|(_, body, _)| matches!(body, DrrBody::WriteEmbedded(_)));
    all.retain(|(_, body, _)| !(embeds && is_spill(body)));
    all.retain(|(number, body, _)| !matches!(body, DrrBody::Free(free) if ends_before(*number, free)));
    all.into_iter().map(|(_, body, payload)| (body, payload)).collect()
}
